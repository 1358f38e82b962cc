//! Whether the root may be acted upon, or somebody has to look at it first.
//!
//! A journal that is older than its world, or a root that is a copy, would have VMs ended and directories removed that it
//! knows nothing of. Such a root is *unconfirmed*, and stays so until `cocoon adopt`:
//!
//! ```text
//!   the journal says so (restored, imported, salvaged with a loss, RootUnconfirmed) ─┐
//!   the witness beside the journal has seen a later end ── RootUnconfirmed ──────────┤
//!   the directory of a VM has seen a later generation ──── RootUnconfirmed ──────────┼──► unconfirmed ── RootAdopted ──► confirmed
//!   the root is not at the place where it was marked or adopted ─────────────────────┤
//!   its marker is gone ──────────────────────────────────────────────────────────────┘
//! ```
//!
//! What the world proves is journalled, since it may be overwritten; what the place proves is read anew each time. Every
//! decision asks again under the journal's lock, so nothing that follows from a decision happens in such a root. Effects
//! that come before their decision ask first.

use std::path::Path;

use cocoon_model::command::{Command, VmmSeen};
use cocoon_model::decide::Refusal;
use cocoon_model::record::{Place, VmRecord, VmState};
use cocoon_model::recover::is_older;
use uuid::Uuid;

use super::caller::Caller;
use super::{Engine, EngineError};
use crate::host::directory::{self, DirectoryError, Kind};
use crate::host::lock::Observed;

/// The file beside the journal that witnesses how far it has come.
pub(super) const WITNESS: &str = ".cocoon-reached";

/// Where a root is, and where it was when it was marked.
#[derive(Debug, Clone)]
pub struct Presence {
    now: Place,
    marked: Option<Place>,
}

impl Presence {
    /// Looks at the root.
    ///
    /// # Errors
    /// If its directory or marker cannot be read.
    pub fn read(root: &Path) -> Result<Self, DirectoryError> {
        let marked = directory::marker(root, Kind::Root)?.map(|marker| marker.place());
        Ok(Self { now: directory::place(root)?, marked })
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.now
    }

    /// Whether its marker is gone.
    #[must_use]
    pub fn is_unmarked(&self) -> bool {
        self.marked.is_none()
    }

    /// Where it was when it was last adopted, else when it was marked.
    fn before<'a>(&'a self, adopted: Option<&'a Place>) -> Option<&'a Place> {
        adopted.or(self.marked.as_ref())
    }

    /// Why the place is a reason to doubt the root.
    #[must_use]
    pub fn doubt(&self, adopted: Option<&Place>) -> Option<String> {
        if self.is_unmarked() {
            return Some("its marker .cocoon-root.json is gone".to_owned());
        }
        let before = self.before(adopted)?;
        let moved = directory::moved(before, &self.now)?;
        Some(if before.path.is_empty() || before.path == self.now.path {
            moved.to_string()
        } else {
            format!("{moved}; it was at {}", before.path)
        })
    }

    /// Where the root is that this one is a copy of, if that is still there: two cannot have the same VMs.
    #[must_use]
    pub fn original(&self, adopted: Option<&Place>, root: Uuid) -> Option<String> {
        let before = self.before(adopted).filter(|before| before.path != self.now.path)?;
        let path = Path::new(&before.path);
        let there = directory::marker(path, Kind::Root).ok().flatten()?;
        let same = there.root == root
            && directory::place(path).is_ok_and(|place| directory::moved(before, &place).is_none());
        // The same directory under another name is no copy.
        let apart = directory::moved(before, &self.now).is_some();
        (same && apart).then(|| before.path.clone())
    }
}

impl Engine {
    /// Looks again at the place of the root.
    ///
    /// # Errors
    /// If its directory or marker cannot be read.
    pub fn look_at_place(&self) -> Result<Presence, EngineError> {
        let presence = Presence::read(&self.settings().root_dir)
            .map_err(|error| EngineError::Host(error.to_string()))?;
        self.ledger().stand_at(presence.clone());
        Ok(presence)
    }

    /// Why the root is unconfirmed, as the end of that sentence; `None` if it is not.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn unconfirmed(&self) -> Result<Option<String>, EngineError> {
        self.ledger().unconfirmed()
    }

    /// Refuses an effect in an unconfirmed root.
    ///
    /// # Errors
    /// [`Refusal::Unconfirmed`]; or the state cannot be read.
    pub fn require_confirmed(&self) -> Result<(), EngineError> {
        match self.unconfirmed()? {
            Some(reason) => Err(Refusal::Unconfirmed(reason).into()),
            None => Ok(()),
        }
    }

    /// Refuses to act upon a record that its VM's directory or VMM proves to be an older one; from then on the whole root is
    /// unconfirmed.
    pub(super) fn refuse_older(
        &self,
        caller: &Caller,
        record: &VmRecord,
    ) -> Result<(), EngineError> {
        match self.older(record)? {
            Some(reason) => Err(self.doubt(caller, reason)),
            None => Ok(()),
        }
    }

    /// Journals that the root is unconfirmed, and says it as a refusal.
    pub(super) fn doubt(&self, caller: &Caller, reason: String) -> EngineError {
        match self.submit(&caller.another(), &Command::Doubt { reason: reason.clone() }) {
            Ok(_) => Refusal::Unconfirmed(reason).into(),
            Err(error) => error,
        }
    }

    /// What proves that a record is an older one.
    ///
    /// Whoever works on the VM may have gone on since the record was read. What is seen in the world was in the journal
    /// before, so a record that is read after it, and still behind it, is conclusive.
    pub(super) fn older(&self, record: &VmRecord) -> Result<Option<String>, EngineError> {
        let id = record.core.id;
        let noted = directory::noted_generation(Path::new(&record.spec.run_dir));
        if let Some(noted) = noted.filter(|noted| is_older(&record.core, *noted)) {
            let now = self.vm(id)?.filter(|now| is_older(&now.core, noted));
            return Ok(now.map(|now| {
                format!(
                    "the directory of VM {id} has seen its generation {noted}, the journal knows of {}",
                    now.core.generation
                )
            }));
        }
        let is_creating = |record: &VmRecord| record.core.state == VmState::Creating;
        let launched = is_creating(record)
            && matches!(self.locks().observe_vmm(id.as_str())?, Observed::Held(_))
            && matches!(self.observe_vmm(record)?, VmmSeen::Alive(_))
            && self.vm(id)?.is_some_and(|now| is_creating(&now));
        Ok(launched
            .then(|| format!("VM {id} runs, and the journal says that it is still being made")))
    }

    /// Notes in the directory of the guarded VM how far its record has come.
    pub(super) fn note_generation(&self, record: &VmRecord) {
        let run_dir = Path::new(&record.spec.run_dir);
        let noted = super::effect::perform("vm.note-generation", || {
            directory::note_generation(run_dir, record.core.generation)
        });
        if let Err(error) = noted {
            // It is evidence for the case that somebody puts an older journal back, and nothing else.
            tracing::debug!("{error}");
        }
    }
}
