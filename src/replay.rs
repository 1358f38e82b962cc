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

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
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
    /// Nothing that could hold a journal, or be a copy of one.
    #[error("{} {problem}; give a root, a journal's directory, a backup or an export", path.display())]
    NoSource {
        /// The path.
        path: PathBuf,
        /// What is there.
        problem: &'static str,
    },
    /// Its owner keeps others from reading it.
    #[error(
        "user {user} may not read {}{}; ask as that user or as root, or for a backup (`cocoon journal backup`)",
        path.display(),
        owner.map(|owner| format!(", which belongs to user {owner}")).unwrap_or_default()
    )]
    NotReadable {
        /// The directory or file.
        path: PathBuf,
        /// Who asks, as a number.
        user: u32,
        /// Whose it is, where that can be seen.
        owner: Option<u32>,
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
///
/// # Errors
/// [`ReplayError::NoSource`] and [`ReplayError::NotReadable`]: it cannot be told whether a journal is there.
pub fn locate(path: &Path) -> Result<PathBuf, ReplayError> {
    let given = look_at(path)?;
    if !given.is_some_and(|meta| meta.is_dir()) {
        return Ok(path.to_owned());
    }
    let inside = path.join("journal");
    let (here, within) = (look_at(&path.join("seg"))?, look_at(&inside.join("seg"))?);
    let is_dir = |meta: Option<Metadata>| meta.is_some_and(|meta| meta.is_dir());
    Ok(if is_dir(within) && !is_dir(here) { inside } else { path.to_owned() })
}

/// What is at a path that has to be readable; `None` if nothing is there.
fn look_at(path: &Path) -> Result<Option<Metadata>, ReplayError> {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        // What keeps us out is a directory above it.
        Err(error) if refused(&error) => return Err(not_readable(path.parent().unwrap_or(path))),
        Err(_) => return Ok(None),
    };
    let read = if meta.is_dir() {
        fs::read_dir(path).map(drop)
    } else if meta.is_file() {
        File::open(path).map(drop)
    } else {
        let problem = "is neither a directory nor a file";
        return Err(ReplayError::NoSource { path: path.to_owned(), problem });
    };
    match read {
        Err(error) if refused(&error) => Err(not_readable(path)),
        _ => Ok(Some(meta)),
    }
}

fn not_readable(path: &Path) -> ReplayError {
    let owner = fs::metadata(path).ok().map(|meta| meta.uid());
    let user = nix::unistd::geteuid().as_raw();
    ReplayError::NotReadable { path: path.to_owned(), user, owner }
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
