//! What can go wrong, as sentences, with kinds for exit codes and hints for people.

use std::path::PathBuf;
use std::time::Duration;

use cocoon_journal::JournalError;
use cocoon_model::decide::Refusal;
use cocoon_model::id::{BadName, VmId};
use cocoon_model::view::Unreadable;

use super::fold::FoldError;
use crate::codec::CodecError;
use crate::host::lock::{Busy, Holder, LockError};
use crate::host::process::ProcessError;

/// What kind of failure it is; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// It was refused, or it failed: exit 1.
    Failed,
    /// It was asked wrongly: exit 2.
    Usage,
    /// We are wrong: exit 70.
    Bug,
}

/// Why an operation did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The state does not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A reference resolves to nothing.
    #[error("{what} {reference}: {what} not found")]
    NotFound {
        /// `vm` or `image`.
        what: &'static str,
        /// What was asked for.
        reference: String,
    },
    /// A reference resolves to several.
    #[error("ambiguous ref \"{reference}\": multiple matches: {}", candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        reference: String,
        /// What it could mean.
        candidates: Vec<String>,
    },
    /// A create, run or clone of this very VM is in flight.
    #[error("vm {id}: refused: `{}` of it is in flight ({}); it is not touched", verb, holder_text(holder.as_deref()))]
    InFlight {
        /// The VM.
        id: VmId,
        /// What is in flight.
        verb: &'static str,
        /// Who does it.
        holder: Option<Box<Holder>>,
    },
    /// Somebody works on it, and goes on doing so.
    #[error("{0}")]
    Busy(Busy),
    /// A step failed.
    #[error("vm {id}: {step}: {reason}")]
    Step {
        /// The VM.
        id: VmId,
        /// The step.
        step: &'static str,
        /// What happened.
        reason: String,
    },
    /// A value cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// A wait ran out of time.
    #[error("{what} did not come about within {} s", waited.as_secs_f64())]
    TimedOut {
        /// What was waited for.
        what: String,
        /// For how long.
        waited: Duration,
    },
    /// A name cannot be given.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The fold over the journal.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// A lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The file system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The host lacks or refuses something; the sentence says it all.
    #[error("{0}")]
    Host(String),
    /// Something that cannot happen did.
    #[error("this should not have happened: {0}; please report it with `cocoon journal export`")]
    Bug(String),
}

fn holder_text(holder: Option<&Holder>) -> String {
    holder.map_or_else(|| "by an unknown process".to_owned(), ToString::to_string)
}

impl EngineError {
    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Bug(_) => ErrorKind::Bug,
            Self::Invalid(_) | Self::Name(_) => ErrorKind::Usage,
            _ => ErrorKind::Failed,
        }
    }

    /// What the user can do, where the sentence does not say it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused(refusal) => refusal.hint(),
            Self::NotFound { what, .. } => {
                Some(format!("`cocoon {what} list` shows what is there"))
            }
            Self::Ambiguous { .. } => {
                Some("give more characters of the id, or the name".to_owned())
            }
            Self::InFlight { .. } => {
                Some("wait for it to end, or add --wait to do so here".to_owned())
            }
            Self::Busy(_) => Some("wait longer with --timeout, or end that process".to_owned()),
            _ => None,
        }
    }

    /// A failure of the file system, for `map_err`.
    pub fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

impl From<Unreadable> for EngineError {
    fn from(error: Unreadable) -> Self {
        Self::Fold(error.into())
    }
}

impl From<CodecError> for EngineError {
    fn from(error: CodecError) -> Self {
        Self::Fold(error.into())
    }
}

impl From<Busy> for EngineError {
    fn from(busy: Busy) -> Self {
        Self::Busy(busy)
    }
}
