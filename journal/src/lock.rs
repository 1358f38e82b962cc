//! `LOCK`: one writer at a time, for the length of one transaction.
//!
//! ```text
//!  free --flock--> taken --path still names this file?--> held --unlock--> free
//!                    |  no: somebody replaced it             |
//!                    +-- open again                          +-- death: the kernel unlocks
//! ```
//!
//! The file is opened close-on-exec for each transaction and unlocked explicitly, so that a child
//! forked by another thread in between cannot keep the lock. While it is held every blockable signal
//! of the thread is blocked, and the file names the holder. A waiter sleeps in `flock`, interrupted by
//! a timer of its own; a holder that somebody has stopped is continued.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::JournalError;
use crate::files;
use crate::frame::Writer;
use crate::slow::{For, watched};

mod holder;
mod wait;

pub use holder::Holder;

/// The lock, held. Dropping it releases.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    signals: SigSet,
    waited: bool,
}

impl Lock {
    /// Takes the lock at `path`, waiting for it until `deadline`.
    pub(crate) fn acquire(
        path: &Path,
        writer: &Writer,
        deadline: Instant,
    ) -> Result<Self, JournalError> {
        let started = Instant::now();
        loop {
            let file = open(path)?;
            let Some((signals, waited)) = lock_file(&file, path, deadline)? else {
                return Err(busy(&file, started));
            };
            let lock = Self { file, signals, waited };
            if lock.is_at(path)? {
                // Only messages depend on the record: a full or failing disk keeps nobody from the lock.
                if let Err(error) = Holder::of(writer).record(&lock.file) {
                    tracing::debug!(%error, path = %path.display(), "the holder is not recorded");
                }
                return Ok(lock);
            }
        }
    }

    /// Whether somebody else held it first.
    pub(crate) fn waited(&self) -> bool {
        self.waited
    }

    fn is_at(&self, path: &Path) -> Result<bool, JournalError> {
        let held = self.file.metadata().map_err(JournalError::io("look at", path))?;
        match std::fs::metadata(path) {
            Ok(named) => Ok((held.dev(), held.ino()) == (named.dev(), named.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(JournalError::io("look at", path)(error)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Both are best effort: a stale record names a process that no longer holds the lock, which
        // the next holder overwrites; and closing the file unlocks it too.
        let _ = self.file.write_all_at(Holder::NONE, 0);
        let _ = flock(&self.file, FlockOperation::Unlock);
        let _ = self.signals.thread_set_mask();
    }
}

fn open(path: &Path) -> Result<File, JournalError> {
    let mut options = OpenOptions::new();
    // The standard library opens everything close-on-exec.
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    files::open_regular(path, &mut options).map_err(JournalError::io("open", path))
}

fn busy(file: &File, started: Instant) -> JournalError {
    JournalError::Busy { holder: Holder::read(file), waited: started.elapsed() }
}

/// Locks `file` and blocks the signals of the thread; gives the mask to restore and whether it had to wait, or `None`
/// at the deadline.
fn lock_file(
    file: &File,
    path: &Path,
    deadline: Instant,
) -> Result<Option<(SigSet, bool)>, JournalError> {
    let signals = block_signals(path)?;
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Ok(Some((signals, false))),
        Err(Errno::WOULDBLOCK) => {}
        Err(errno) => {
            let _ = signals.thread_set_mask();
            return Err(JournalError::errno("lock", path)(errno));
        }
    }
    signals.thread_set_mask().map_err(|errno| signal_error(path, errno))?;
    let locked = watched(For::Lock, path, || wait::until(file, deadline))
        .map_err(JournalError::io("wait for", path))?;
    if !locked {
        return Ok(None);
    }
    Ok(Some((block_signals(path)?, true)))
}

fn block_signals(path: &Path) -> Result<SigSet, JournalError> {
    SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(|errno| signal_error(path, errno))
}

fn signal_error(path: &Path, errno: nix::errno::Errno) -> JournalError {
    JournalError::Io {
        action: "block signals around",
        path: PathBuf::from(path),
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests;
