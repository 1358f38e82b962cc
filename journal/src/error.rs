//! What can go wrong with a journal, as sentences.

use std::error::Error as StdError;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use uuid::Uuid;

use crate::frame::{FrameError, Position, Seq};
use crate::lock::Holder;

/// The error of any caller: of a fold that refuses a frame, of a decision that refuses to be made.
pub type AnyError = Box<dyn StdError + Send + Sync + 'static>;

/// Why the journal could not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no room but what is kept for whoever frees space. Nothing was written.
    #[error(
        "the disk is full ({}: {source}); {} KiB are kept for stop, rm and gc: free space, e.g. with `cocoon gc` or `cocoon vm rm`, and try again",
        path.display(), kept / 1024
    )]
    OnlyReserveLeft {
        /// The segment that cannot grow.
        path: PathBuf,
        /// Bytes that are kept.
        kept: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// Locks and syncs of network file systems cannot be relied upon.
    #[error(
        "{} lies on {kind}, where locks and syncs cannot be relied upon; use a local file system",
        path.display()
    )]
    NetworkFileSystem {
        /// The directory.
        path: PathBuf,
        /// Name of the file system.
        kind: &'static str,
    },
    /// There is no journal here.
    #[error(
        "{} holds no journal; check the path, or `cocoon journal repair` if its segments are gone",
        path.display()
    )]
    Missing {
        /// The directory.
        path: PathBuf,
    },
    /// The journal belongs to another root than the one expected.
    #[error(
        "the journal in {} belongs to root {found}, not to {expected}; check the configured path",
        path.display()
    )]
    ForeignRoot {
        /// The directory.
        path: PathBuf,
        /// The root that was asked for.
        expected: Uuid,
        /// The root that the journal names.
        found: Uuid,
    },
    /// A limit of the frame format was exceeded. Nothing was written.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Somebody else held the lock until the deadline. Nothing was written.
    #[error("the journal has been locked for {} ms by {}; try again, or look at that process",
        waited.as_millis(), holder.as_ref().map_or("an unknown process".to_owned(), ToString::to_string))]
    Busy {
        /// Who holds it, if it says so.
        holder: Option<Holder>,
        /// How long the caller waited.
        waited: Duration,
    },
    /// What was once durable is gone or changed.
    #[error(
        "the journal is damaged: {what} ({}, seq {seq}, offset {offset}); nothing was changed. `cocoon journal verify` lists all of it, `cocoon journal repair` puts back what is kept elsewhere; else `cocoon journal restore` a backup",
        path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// First sequence number that cannot be relied upon.
        seq: Seq,
        /// Where in the file, in bytes.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// A reader without the right to lock found frames that cannot be read although durable.
    #[error(
        "{} cannot be read at seq {seq}, offset {offset}: {what}. If it stays so, look with `cocoon journal verify` and mend it with `cocoon journal repair`",
        path.display()
    )]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// First sequence number that could not be read.
        seq: Seq,
        /// Where in the file, in bytes.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// The state was folded from frames that this journal does not have.
    #[error(
        "the state was folded up to {folded}, but the journal has {found} there; give the command again, and if that does not help, type `cocoon journal verify`"
    )]
    Diverged {
        /// Where the fold stands.
        folded: Position,
        /// What the journal has at or before that sequence number.
        found: Position,
    },
    /// Older frames were retired.
    #[error(
        "the history of this journal begins at seq {first}; seq {wanted} is no longer here. `cocoon journal verify` says what is"
    )]
    HistoryBegins {
        /// First sequence number present.
        first: Seq,
        /// The one asked for.
        wanted: Seq,
    },
    /// Written by a newer program.
    #[error(
        "{} has {what} {version}, which this program does not know; nothing was written. {}",
        path.display(),
        way_out(needs.as_deref())
    )]
    NewerFormat {
        /// Which file.
        path: PathBuf,
        /// The part that is newer: what has a number.
        what: &'static str,
        /// The number found.
        version: u32,
        /// The version of the program that it says to need.
        needs: Option<String>,
    },
    /// Frames were written or applied, but whether they will survive is unknown.
    #[error(
        "events {} to {} are not acknowledged: {source}. They may or may not be part of the history: open the journal anew and look",
        seqs.start(), seqs.end()
    )]
    Unacknowledged {
        /// The events in doubt.
        seqs: RangeInclusive<Seq>,
        /// The write or sync that failed.
        source: Box<JournalError>,
    },
    /// An earlier write or sync through this handle failed.
    #[error(
        "an earlier write to the journal failed, so this handle's state may be ahead of the disk; open the journal anew"
    )]
    Poisoned,
    /// The fold refused a frame.
    #[error("event {seq} cannot be applied: {source}")]
    Fold {
        /// First sequence number of the frame.
        seq: Seq,
        /// The fold's reason.
        source: AnyError,
    },
    /// The decision itself failed. Nothing was appended.
    #[error(transparent)]
    Decide(AnyError),
}

/// What to do about what a newer program wrote.
pub(crate) fn way_out(needs: Option<&str>) -> String {
    match needs {
        Some(version) => format!("It needs version {version} or newer: install that"),
        None => "Use the newer program that wrote it".to_owned(),
    }
}

/// The version of the program that a header of a later format names: ASCII with zeroes after it.
pub(crate) fn version_in(field: &[u8]) -> Option<String> {
    let used = field.split(|byte| *byte == 0).next()?;
    let plain = !used.is_empty() && used.iter().all(u8::is_ascii_graphic);
    plain.then(|| String::from_utf8_lossy(used).into_owned())
}

impl JournalError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn errno(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.to_owned();
        move |errno| Self::Io { action, path, source: errno.into() }
    }

    /// The caller's own error, if this is one that its fold or its decision returned.
    ///
    /// # Errors
    ///
    /// Gives the journal's error back if it is not one of type `E`.
    pub fn into_caller_error<E: StdError + Send + Sync + 'static>(self) -> Result<E, Self> {
        match self {
            Self::Decide(source) => source.downcast().map(|e| *e).map_err(Self::Decide),
            Self::Fold { seq, source } => {
                source.downcast().map(|e| *e).map_err(|source| Self::Fold { seq, source })
            }
            other => Err(other),
        }
    }

    /// Whether the disk was full.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::OnlyReserveLeft { .. } => true,
            Self::Unacknowledged { source, .. } => source.is_full_disk(),
            _ => false,
        }
    }
}
