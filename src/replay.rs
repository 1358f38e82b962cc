//! Forensics: what happened, who held what, who died, what was owed, which invariant broke.
//!
//! ```text
//!   journal files, bundle ---> pieces --Timeline--> lines      rows of events; notes of deaths, reboots, damage
//!                                            |
//!                                        Tracker                 every subject's record as of the last row
//!                                            |
//!              --at, --diff, --explain  <----+----> --check      the judge of the model reads the same events
//! ```
//!
//! Nothing here takes a lock, writes, or creates anything: it serves for the root in use, for a stopped one, and for a
//! copy of a `journal/` directory, a backup or an export alike, and shows as much as can be found of a damaged one.
//!
//! One format for all traces, also those of the checker: `seq time actor event subject state->state locks owed`, with
//! `!` for a death and `^` for a restart of the host.

use std::path::{Path, PathBuf};

use cocoon_journal::JournalError;
use cocoon_journal::bundle::BundleFault;

use cocoon_model::invariant::Judge;

use crate::engine::base::CheckpointBase;

pub mod check;
pub mod diff;
pub mod explain;
pub mod filter;
pub mod line;
pub mod pieces;
pub mod point;
pub mod snapshot;
pub mod text;
pub mod timeline;
pub mod track;

pub use pieces::Pieces;
pub use timeline::Timeline;

/// Why a journal could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// There is no journal, or it cannot be listed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file that is no backup and no export.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: BundleFault,
    },
    /// No VM of that name or id.
    #[error(
        "the journal knows no VM `{reference}`; `cocoon replay --at now` lists those that are there"
    )]
    UnknownVm {
        /// What was asked for.
        reference: String,
    },
}

/// Finds the directory of the journal in a root, in a copy of its `journal/`, or in a directory of segment files.
#[must_use]
pub fn locate(path: &Path) -> PathBuf {
    let inside = path.join("journal");
    if inside.join("seg").is_dir() && !path.join("seg").is_dir() { inside } else { path.to_owned() }
}

/// A judge of a history: it begins with the state that an archive left, if there is one.
#[must_use]
pub fn judge(journal: &Path) -> Judge<CheckpointBase> {
    let stub = Pieces::open(journal).ok().and_then(|mut pieces| pieces.stub());
    let judge = stub.map(|stub| {
        let applied = stub.position().seq;
        Judge::on(CheckpointBase::new(Some(stub.checkpoint())), applied)
    });
    // Without it, what is judged says that it does not begin at the beginning.
    judge.and_then(Result::ok).unwrap_or_default()
}

/// Everything that happened, from the first event that is there: in a journal's directory, a backup or an export.
///
/// # Errors
/// [`ReplayError::Journal`] if there is no journal.
pub fn open(journal: &Path) -> Result<Timeline<Pieces>, ReplayError> {
    Ok(Timeline::new(Pieces::open(journal)?))
}
