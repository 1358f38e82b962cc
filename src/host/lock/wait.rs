//! Waiting for a lock until a deadline, without polling.
//!
//! `flock` knows no deadline, and interrupting it takes a signal, which a library must not claim
//! for itself. So whoever has to wait leaves it to a thread that blocks in `flock`:
//!
//! ```text
//!              ┌── locked ──────────► Got(file) ──► handed to the caller
//!  Wanted ─────┤
//!    ▲         └── deadline passes ─► Abandoned ──► locked ──► Finished (file closed at once)
//!    └── the same lock is wanted again ───┘
//! ```
//!
//! An abandoned thread stays parked and serves the next caller that wants the same lock, so a
//! caller that tries again and again against a stuck holder never has more than one thread waiting.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use nix::sys::signal::SigSet;

use super::LockError;
use super::file::{self, Mode};

/// How often a lock file may be swept under our hands before that is an error.
const REPLACED_MAX: u32 = 1000;

const STACK_BYTES: usize = 128 << 10;

/// Takes a lock, waiting until `deadline` or for ever; `None` when the deadline has passed. The
/// file is the one at the path. With a deadline in the past it tries once.
pub(super) fn take_until(
    path: &Path,
    mode: Mode,
    deadline: Option<Instant>,
) -> Result<Option<File>, LockError> {
    for _ in 0..REPLACED_MAX {
        let Some(file) = lock_some_file(path, mode, deadline)? else { return Ok(None) };
        if file::is_at_path(path, &file)? {
            return Ok(Some(file));
        }
    }
    Err(LockError::Replaced { path: path.to_owned() })
}

fn lock_some_file(
    path: &Path,
    mode: Mode,
    deadline: Option<Instant>,
) -> Result<Option<File>, LockError> {
    let file = file::open(path)?;
    if file::try_lock(path, &file, mode)? {
        return Ok(Some(file));
    }
    match deadline {
        None => file::lock(path, &file, mode).map(|()| Some(file)),
        Some(deadline) if deadline <= Instant::now() => Ok(None),
        Some(deadline) => Waiter::obtain(path, mode, file)?.wait(deadline),
    }
}

/// A thread that blocks in `flock`, and whoever waits for it.
struct Waiter {
    path: PathBuf,
    inode: (u64, u64),
    mode: Mode,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Wanted,
    Abandoned,
    Got(Result<File, LockError>),
    Finished,
}

/// Threads whose callers gave up.
static PARKED: Mutex<Vec<Arc<Waiter>>> = Mutex::new(Vec::new());

impl Waiter {
    /// A parked thread that waits for the same lock, or a new one.
    fn obtain(path: &Path, mode: Mode, file: File) -> Result<Arc<Self>, LockError> {
        let found = file.metadata().map_err(|error| file::failure("look at", path, error))?;
        let inode = (found.dev(), found.ino());
        match Self::unpark(inode, mode) {
            Some(waiter) => Ok(waiter),
            None => Self::start(path, inode, mode, file),
        }
    }

    fn unpark(inode: (u64, u64), mode: Mode) -> Option<Arc<Self>> {
        let mut parked = locked(&PARKED);
        let at = parked
            .iter()
            .position(|waiter| waiter.inode == inode && waiter.mode == mode && waiter.claim())?;
        Some(parked.swap_remove(at))
    }

    fn claim(&self) -> bool {
        let mut state = locked(&self.state);
        let parked = matches!(*state, State::Abandoned);
        if parked {
            *state = State::Wanted;
        }
        parked
    }

    fn start(
        path: &Path,
        inode: (u64, u64),
        mode: Mode,
        file: File,
    ) -> Result<Arc<Self>, LockError> {
        let waiter = Arc::new(Self {
            path: path.to_owned(),
            inode,
            mode,
            state: Mutex::new(State::Wanted),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&waiter);
        thread::Builder::new()
            .name("lock-waiter".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || theirs.run(file))
            .map_err(|error| file::failure("start a thread that waits for", path, error))?;
        Ok(waiter)
    }

    fn run(&self, file: File) {
        // Signals are for the threads that expect them.
        let _ = SigSet::all().thread_block();
        let outcome = file::lock(&self.path, &file, self.mode).map(|()| file);
        let mut state = locked(&self.state);
        if matches!(*state, State::Wanted) {
            *state = State::Got(outcome);
            self.changed.notify_one();
            return;
        }
        *state = State::Finished;
        drop(state);
        drop(outcome);
        locked(&PARKED).retain(|waiter| !std::ptr::eq(Arc::as_ptr(waiter), self));
    }

    /// Waits for the thread until the deadline, then parks it.
    fn wait(self: Arc<Self>, deadline: Instant) -> Result<Option<File>, LockError> {
        let mut state = locked(&self.state);
        loop {
            if let State::Got(_) = *state {
                return match std::mem::replace(&mut *state, State::Finished) {
                    State::Got(outcome) => outcome.map(Some),
                    State::Wanted | State::Abandoned | State::Finished => Ok(None),
                };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.park()
    }

    /// Gives up, unless the lock came at the last moment.
    fn park(self: Arc<Self>) -> Result<Option<File>, LockError> {
        let mut parked = locked(&PARKED);
        let mut state = locked(&self.state);
        if let State::Got(_) = *state {
            drop((state, parked));
            return self.wait(Instant::now());
        }
        *state = State::Abandoned;
        drop(state);
        parked.push(self);
        Ok(None)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many threads wait for a lock that nobody wants any more.
#[cfg(test)]
pub(super) fn parked_for(path: &Path) -> usize {
    locked(&PARKED).iter().filter(|waiter| waiter.path == path).count()
}
