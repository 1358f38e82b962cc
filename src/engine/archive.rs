//! Moving old history away: the state at its end is folded and left in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use cocoon_journal::archive::{Archive, ArchiveError, Archived, Before};
use cocoon_journal::checkpoint::{CheckpointError, Stub};
use cocoon_journal::{Fold as _, Frame, Position};

use super::base::{CheckpointBase, key_change};
use super::effect::{self, perform};
use super::fold::{FoldError, StateFold};
use super::ledger::Named;
use super::{Caller, Engine, EngineError};
use crate::codec;
use crate::host::directory;

const PATIENCE: Duration = Duration::from_secs(10);

/// Why history was not moved.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Fold(#[from] FoldError),
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Archive(ArchiveError::Journal(error)) => Self::Journal(error),
            Failure::Archive(error) => Self::Host(error.to_string()),
            Failure::Fold(error) => Self::Fold(error),
        }
    }
}

fn archive_error(error: ArchiveError) -> EngineError {
    Failure::Archive(error).into()
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn stub_error(error: CheckpointError) -> EngineError {
    EngineError::Host(error.to_string())
}

/// What is left of the history that goes.
#[derive(Default)]
struct Remains {
    state: BTreeMap<Vec<u8>, Vec<u8>>,
    remembered: BTreeSet<Vec<u8>>,
}

impl Engine {
    /// Moves whole segments before a point to a directory; `None` if there is none to move. `progress` is told how many
    /// of them are copied, of how many.
    ///
    /// # Errors
    /// If the journal cannot be read or folded, or the directory not be written. History is where it was then.
    pub fn archive(
        &self,
        caller: &Caller,
        before: Before,
        to: &Path,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<Archived>, EngineError> {
        let marked = directory::marker(to, directory::Kind::Root);
        if marked.is_ok_and(|mark| mark.is_some()) || to.join("journal").exists() {
            return Err(EngineError::Invalid(format!(
                "{} is a root, and its own history would no longer be found beside an archive; choose another directory",
                to.display()
            )));
        }
        let dir = self.journal_dir();
        let begun = Archive::begin(&dir, before, to, effect::journal_options());
        let Some(archive) = begun.map_err(archive_error)? else { return Ok(None) };
        let mut remains = Remains::of(archive.previous().map_err(archive_error)?.as_ref())?;
        let previous = archive.previous().map_err(archive_error)?;
        let position = previous.as_ref().map_or(Position::default(), Stub::position);
        let base = CheckpointBase::new(previous.map(Stub::checkpoint));
        let mut fold = StateFold::on(base, position);
        let copied = perform("archive.copy", || {
            archive.copy::<Failure>(
                |frame, hash| {
                    remains.remember(frame)?;
                    Ok(fold.apply(frame, hash)?)
                },
                progress,
            )
        });
        let end = copied?;
        for change in fold.state().changes() {
            remains.change(key_change(&change)?);
        }
        let Remains { state, remembered } = remains;
        let (state, remembered) = (state.into_iter().collect(), remembered.into_iter().collect());
        let deadline = caller.deadline().unwrap_or_else(|| Instant::now() + PATIENCE);
        let finished = perform("archive.finish", || {
            archive.finish(end, state, remembered, &caller.writer(), deadline)
        });
        finished.map(Some).map_err(archive_error)
    }
}

impl Remains {
    /// What was left of the history that went before.
    fn of(stub: Option<&Stub>) -> Result<Self, EngineError> {
        let mut remains = Self::default();
        let Some(stub) = stub else { return Ok(remains) };
        for entry in stub.state() {
            let (key, value) = entry.map_err(stub_error)?;
            remains.state.insert(key, value);
        }
        for name in stub.remembered() {
            remains.remembered.insert(name.map_err(stub_error)?);
        }
        Ok(remains)
    }

    fn change(&mut self, (key, value): (Vec<u8>, Option<Vec<u8>>)) {
        match value {
            Some(value) => self.state.insert(key, value),
            None => self.state.remove(&key),
        };
    }

    /// What a collector may remove is only what the journal has named, wherever that part of it is.
    fn remember(&mut self, frame: &Frame) -> Result<(), FoldError> {
        let mut named = Named::default();
        for (_, entry) in frame.events() {
            named.learn(codec::decode(entry)?.as_ref());
        }
        self.remembered.extend(named.vms.iter().map(|id| vm_key(id.as_str())));
        self.remembered.extend(named.blobs.iter().map(|hash| blob_key(hash)));
        Ok(())
    }
}

const VM: &str = "vm/";
const BLOB: &str = "blob/";

fn vm_key(id: &str) -> Vec<u8> {
    format!("{VM}{id}").into_bytes()
}

fn blob_key(hash: &str) -> Vec<u8> {
    format!("{BLOB}{hash}").into_bytes()
}

/// What history that was moved away had named.
pub(super) fn remembered(dir: &Path, named: &mut Named) -> Result<(), EngineError> {
    let Some(stub) = Stub::latest(dir).map_err(stub_error)? else { return Ok(()) };
    for name in stub.remembered() {
        let name = name.map_err(stub_error)?;
        let Ok(name) = std::str::from_utf8(&name) else { continue };
        if let Some(id) = name.strip_prefix(VM).and_then(|id| id.parse().ok()) {
            named.vms.insert(id);
        } else if let Some(hash) = name.strip_prefix(BLOB) {
            named.blobs.insert(hash.to_owned());
        }
    }
    Ok(())
}
