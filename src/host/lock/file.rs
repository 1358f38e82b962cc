//! One lock file: opened, checked against its path, and the record in it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::{Holder, LockError, Observed};

/// The longest record that is read, in bytes.
const RECORD_MAX: u64 = 4096;

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Together with others that share it.
    Shared,
    /// Alone.
    Exclusive,
}

impl Mode {
    fn blocking(self) -> FlockOperation {
        match self {
            Mode::Shared => FlockOperation::LockShared,
            Mode::Exclusive => FlockOperation::LockExclusive,
        }
    }

    fn trying(self) -> FlockOperation {
        match self {
            Mode::Shared => FlockOperation::NonBlockingLockShared,
            Mode::Exclusive => FlockOperation::NonBlockingLockExclusive,
        }
    }
}

/// A locked file. The lock goes with the last copy of the descriptor, never earlier: there is no
/// explicit unlock, because that would take it from helpers as well.
#[derive(Debug)]
pub(super) struct Held {
    file: File,
    clears_record: bool,
}

impl Held {
    /// A lock whose file says nothing about its holder.
    pub(super) fn unrecorded(file: File) -> Self {
        Self { file, clears_record: false }
    }

    /// A lock whose file names its holder. Sharers write over each other: any of them serves in a
    /// message.
    pub(super) fn recorded(file: File, mode: Mode, holder: &Holder) -> Self {
        // Only messages depend on the record. A full disk must not keep anybody from taking a lock.
        if let Err(error) = write_holder(&file, holder) {
            tracing::debug!(%error, "the holder of a lock could not be recorded");
        }
        Self { file, clears_record: mode == Mode::Exclusive }
    }
}

impl Held {
    /// Whether `path` still names the file that is locked.
    pub(super) fn is_at(&self, path: &Path) -> Result<bool, LockError> {
        is_at_path(path, &self.file)
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Overwritten, not truncated: that needs no new block on a full disk when the next holder
        // writes.
        if self.clears_record {
            let _ = self.file.write_at(b"\n", 0);
        }
    }
}

/// Creates a directory that only this user may enter, or checks that an existing one is such.
pub(super) fn private_directory(path: &Path) -> Result<(), LockError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failure("create", path, error));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(path).map_err(|error| failure("look at", path, error))?;
    let problem = if !found.is_dir() {
        "is not a directory"
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        "belongs to another user"
    } else if found.mode() & 0o077 != 0 {
        "may be entered by other users"
    } else {
        return Ok(());
    };
    Err(LockError::Insecure { path: path.to_owned(), problem })
}

/// Opens a lock file for taking, creating it if need be.
pub(super) fn open(path: &Path) -> Result<File, LockError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .custom_flags(no_follow())
        .open(path)
        .map_err(|error| failure("open", path, error))
}

/// Opens a lock file for looking at it; `None` when there is none.
pub(super) fn open_existing(path: &Path) -> Result<Option<File>, LockError> {
    match OpenOptions::new().read(true).custom_flags(no_follow()).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failure("open", path, error)),
    }
}

/// Waits in the kernel until the file is locked.
pub(super) fn lock(path: &Path, file: &File, mode: Mode) -> Result<(), LockError> {
    loop {
        match flock(file, mode.blocking()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(failure("lock", path, error.into())),
            Ok(()) => return Ok(()),
        }
    }
}

/// Locks the file if that is possible at once.
pub(super) fn try_lock(path: &Path, file: &File, mode: Mode) -> Result<bool, LockError> {
    loop {
        match flock(file, mode.trying()) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(failure("lock", path, error.into())),
        }
    }
}

/// Whether the open file is still the one at its path. A lock on any other one locks nothing.
pub(super) fn is_at_path(path: &Path, file: &File) -> Result<bool, LockError> {
    let ours = file.metadata().map_err(|error| failure("look at", path, error))?;
    match std::fs::symlink_metadata(path) {
        Ok(theirs) => Ok((ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failure("look at", path, error)),
    }
}

/// Whether a lock is held in a way that excludes `mode`. Creates no file.
pub(super) fn observe(path: &Path, mode: Mode) -> Result<Observed, LockError> {
    loop {
        let Some(file) = open_existing(path)? else { return Ok(Observed::NoFile) };
        if !try_lock(path, &file, mode)? {
            return Ok(Observed::Held(holder_in(&file)));
        }
        if is_at_path(path, &file)? {
            return Ok(Observed::Free);
        }
    }
}

/// Whether somebody holds a lock, whoever it is.
pub(super) fn is_held(path: &Path, mode: Mode) -> Result<bool, LockError> {
    match open_existing(path)? {
        Some(file) => Ok(!try_lock(path, &file, mode)?),
        None => Ok(false),
    }
}

/// Who is recorded as the holder, if anybody is.
pub(super) fn read_holder(path: &Path) -> Option<Holder> {
    holder_in(&open_existing(path).ok()??)
}

fn holder_in(file: &File) -> Option<Holder> {
    let mut bytes = Vec::new();
    file.take(RECORD_MAX).read_to_end(&mut bytes).ok()?;
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    serde_json::from_slice(line).ok()
}

fn write_holder(file: &File, holder: &Holder) -> io::Result<()> {
    let mut line = serde_json::to_vec(holder)?;
    line.push(b'\n');
    // What follows the first line break is the rest of an earlier, longer record and is never read.
    file.write_all_at(&line, 0)
}

/// No link is followed, and no other end is waited for where somebody put a pipe.
fn no_follow() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

pub(super) fn failure(what: &'static str, path: &Path, source: io::Error) -> LockError {
    LockError::Io { what, path: path.to_owned(), source }
}
