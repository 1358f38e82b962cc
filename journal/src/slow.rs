//! Telling what a slow disk, or a slow holder of the lock, keeps one waiting for.
//!
//! ```text
//!   first wait of the process   a thread begins to watch, if stderr is a terminal
//!   a wait, or slow waits in a row, of a second together   told once, with the file's name; the thread ends
//!   no wait                     the thread sleeps until there is one
//! ```
//!
//! It is told as a warning: on stderr, where no script reads an answer, and once a process. Where nobody sits at a terminal
//! it is told when the wait ends: a thread would cost each command more than all that it does on a quick disk.

use std::fs::File;
use std::io::{IsTerminal as _, stderr};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

use crate::lock::Holder;

/// After so long it is told.
const PATIENCE: Duration = Duration::from_secs(1);
/// A wait shorter than this is not slow, and those before it are forgotten.
const SLOW: Duration = Duration::from_millis(50);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// A file to be on the disk.
    Sync,
    /// A lock that somebody else holds.
    Lock,
}

#[derive(Debug)]
struct Wait {
    number: u64,
    since: Instant,
    what: For,
    path: PathBuf,
}

#[derive(Debug)]
struct Watch {
    waits: Vec<Wait>,
    /// How many there were.
    count: u64,
    /// How long slow ones in a row have taken.
    spent: Duration,
    thread: Thread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    None,
    Watching,
    /// Nothing is waited for.
    Idle,
    /// There is none: it is told afterwards.
    Needless,
    /// It was told, or cannot be.
    Done,
}

static WATCH: Mutex<Watch> =
    Mutex::new(Watch { waits: Vec::new(), count: 0, spent: Duration::ZERO, thread: Thread::None });
static BEGUN: Condvar = Condvar::new();

fn watch() -> MutexGuard<'static, Watch> {
    // Each change of it is whole.
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something that may have to wait.
pub(crate) fn watched<T>(what: For, path: &Path, wait: impl FnOnce() -> T) -> T {
    let Some(_ended) = begin(what, path) else { return wait() };
    wait()
}

/// Ends a wait.
struct Ended(u64);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut watch = watch();
        let Some(at) = watch.waits.iter().position(|wait| wait.number == self.0) else { return };
        let ended = watch.waits.swap_remove(at);
        let taken = ended.since.elapsed();
        watch.spent = if taken < SLOW { Duration::ZERO } else { watch.spent + taken };
        if watch.thread == Thread::Needless && watch.spent >= PATIENCE {
            watch.thread = Thread::Done;
            let spent = watch.spent;
            drop(watch);
            tell_afterwards(ended.what, &ended.path, spent);
        }
    }
}

fn begin(what: For, path: &Path) -> Option<Ended> {
    let mut watch = watch();
    match watch.thread {
        Thread::Done => return None,
        Thread::Watching | Thread::Needless => {}
        Thread::Idle => BEGUN.notify_one(),
        Thread::None if !stderr().is_terminal() => watch.thread = Thread::Needless,
        Thread::None => {
            let named = std::thread::Builder::new().name("slow-disk".to_owned());
            if named.stack_size(128 * 1024).spawn(look).is_err() {
                watch.thread = Thread::Done;
                return None;
            }
            watch.thread = Thread::Watching;
        }
    }
    watch.count += 1;
    let number = watch.count;
    watch.waits.push(Wait { number, since: Instant::now(), what, path: path.to_owned() });
    Some(Ended(number))
}

/// Watches until there is something to tell.
fn look() {
    // Signals are for the threads that work. Where they cannot be blocked, handlers run here, as anywhere.
    let _ = SigSet::all().thread_block();
    let mut watch = watch();
    loop {
        let longest = watch.waits.iter().min_by_key(|wait| wait.since);
        let Some(longest) = longest else {
            watch.thread = Thread::Idle;
            watch = BEGUN.wait(watch).unwrap_or_else(PoisonError::into_inner);
            watch.thread = Thread::Watching;
            continue;
        };
        let taken = watch.spent + longest.since.elapsed();
        if let Some(left) = PATIENCE.checked_sub(taken).filter(|left| !left.is_zero()) {
            let waited = BEGUN.wait_timeout(watch, left);
            watch = waited.unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        let (what, path) = (longest.what, longest.path.clone());
        watch.thread = Thread::Done;
        drop(watch);
        return tell(what, &path, taken);
    }
}

fn tell_afterwards(what: For, path: &Path, taken: Duration) {
    let (path, seconds) = (path.display(), taken.as_secs_f64());
    match what {
        For::Sync => tracing::warn!("waiting for the disk to write {path} took {seconds:.1} s"),
        For::Lock => tracing::warn!("waiting for {path} took {seconds:.1} s"),
    }
}

fn tell(what: For, path: &Path, taken: Duration) {
    let (path, seconds) = (path.display(), taken.as_secs_f64());
    match what {
        For::Sync => {
            tracing::warn!(
                "waiting for the disk to write {path}; {seconds:.1} s so far, and the answer comes after it"
            );
        }
        For::Lock => {
            let holder = File::open(path.to_string()).ok().and_then(|file| Holder::read(&file));
            let holder = holder.map_or("another command".to_owned(), |holder| holder.to_string());
            tracing::warn!("waiting for {path}, held by {holder}; {seconds:.1} s so far");
        }
    }
}
