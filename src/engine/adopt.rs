//! Taking a root for good that is unconfirmed: `cocoon adopt`.
//!
//! A survey compares the records with the directories, locks and processes that are there, and proposes something for each
//! that differs. What is proposed is journalled only under the VM's lock, after a second look; the root is confirmed last:
//!
//! ```text
//!   RootUnconfirmed ─► for each VM: lock, look again, Adopted ─► witness ─► RootAdopted ─► marker
//! ```
//!
//! Each step may be the last one of a process that dies: the root stays unconfirmed until all are done, and the next
//! adoption finds what is left. Nothing is ended and nothing removed here; what an older record still owed is dropped
//! where its VM has gone on since.

use std::path::{Path, PathBuf};

use cocoon_model::command::{Command, VmmSeen};
use cocoon_model::event::vm::Adopted;
use cocoon_model::id::VmId;
use cocoon_model::record::VmState;
use cocoon_model::view::View as _;

use super::caller::Caller;
use super::effect::perform;
use super::{Engine, EngineError};
use crate::home::Home;
use crate::host::directory;
use crate::host::disk;
use crate::host::lock::OpsGuard;

mod relocate;
mod survey;

/// What is proposed for something that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proposal {
    /// It has no record: make one of what its directory says.
    TakeIn(Box<Adopted>),
    /// Its record is an older one: bring it up to what is there. Part of every adoption.
    BringUp(Box<Adopted>),
    /// Leave it as it is.
    Leave,
    /// It cannot be told what it is; the root cannot be adopted before that.
    CannotTell,
}

impl Proposal {
    /// The word in JSON and tables.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::TakeIn(_) => "take-in",
            Self::BringUp(_) => "bring-up",
            Self::Leave => "leave",
            Self::CannotTell => "cannot-tell",
        }
    }
}

/// Something whose record and world differ.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The VM.
    pub id: VmId,
    /// Its name, where something says it.
    pub name: Option<String>,
    /// State and generation of its record, if it has one.
    pub record: Option<(VmState, u64)>,
    /// The generation that its directory has seen.
    pub noted: Option<u64>,
    /// Its run directory, if that is there.
    pub directory: Option<PathBuf>,
    /// Its VMM.
    pub vmm: VmmSeen,
    /// What is proposed.
    pub proposal: Proposal,
    /// Why.
    pub remark: String,
}

/// Everything that a survey found.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Why the root is unconfirmed; `None` if it is not.
    pub unconfirmed: Option<String>,
    /// What differs, by id.
    pub findings: Vec<Finding>,
}

/// Which VMs without a record are taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// All that can be.
    All,
    /// None: they are left as they are.
    None,
    /// Those with one of these names or ids.
    These(Vec<String>),
}

impl Selection {
    fn wants(&self, finding: &Finding) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::These(named) => named.iter().any(|wanted| finding.is_called(wanted)),
        }
    }
}

impl Finding {
    fn is_called(&self, wanted: &str) -> bool {
        self.name.as_deref() == Some(wanted) || self.id.as_str() == wanted
    }

    /// What would be journalled of it, if anything.
    fn adopted(&self, selection: &Selection) -> Option<&Adopted> {
        match &self.proposal {
            Proposal::BringUp(found) => Some(found),
            Proposal::TakeIn(found) if selection.wants(self) => Some(found),
            Proposal::TakeIn(_) | Proposal::Leave | Proposal::CannotTell => None,
        }
    }
}

/// What an adoption came to.
#[derive(Debug, Clone, Default)]
pub struct Adoption {
    /// VMs that were taken in or brought up.
    pub taken: Vec<VmId>,
    /// The root was unconfirmed and is confirmed now.
    pub confirmed: bool,
}

impl Engine {
    /// Compares records with what is there. Changes nothing.
    ///
    /// # Errors
    /// If the state or the directories cannot be read, or this root is a copy of one that is still there.
    pub fn survey_root(&self) -> Result<Survey, EngineError> {
        self.refuse_copy()?;
        self.refuse_elsewhere()?;
        Ok(Survey { unconfirmed: self.unconfirmed()?, findings: self.findings()? })
    }

    /// Takes in what was found and chosen, then confirms the root. May be repeated.
    ///
    /// # Errors
    /// A name that nothing found has; a VM that cannot be judged, or that somebody works on; or the journal. What was taken
    /// in before stays so, and the root stays unconfirmed.
    pub fn adopt(
        &self,
        survey: &Survey,
        selection: &Selection,
        caller: &Caller,
    ) -> Result<Adoption, EngineError> {
        self.refuse_copy()?;
        self.refuse_elsewhere()?;
        check_selection(survey, selection)?;
        if let Some(finding) = survey.findings.iter().find(|f| f.proposal == Proposal::CannotTell) {
            let (id, why) = (finding.id, &finding.remark);
            return Err(EngineError::Host(format!(
                "vm {id}: {why}; nothing was adopted, since what it is decides what may be done to it"
            )));
        }
        self.ledger().record_doubt(&caller.another())?;
        let mut adoption = Adoption::default();
        for finding in &survey.findings {
            if finding.adopted(selection).is_some() && self.adopt_one(finding, selection, caller)? {
                adoption.taken.push(finding.id);
            }
        }
        adoption.confirmed = self.unconfirmed()?.is_some();
        if adoption.confirmed {
            self.confirm(caller)?;
        }
        Ok(adoption)
    }

    /// Takes one in, as it is found under its lock; says whether that was news.
    fn adopt_one(
        &self,
        finding: &Finding,
        selection: &Selection,
        caller: &Caller,
    ) -> Result<bool, EngineError> {
        let id = finding.id;
        let guard = self.locks().ops(id.as_str(), &caller.holder()?, caller.deadline())?;
        let now = self.look_again(finding)?;
        if let Some(Finding { proposal: Proposal::CannotTell, remark, .. }) = &now {
            return Err(EngineError::Host(format!(
                "VM {id} can no longer be told: {remark}; see `cocoon doctor`, then give the command again"
            )));
        }
        let Some(found) = now.as_ref().and_then(|now| now.adopted(selection)) else {
            return Ok(false);
        };
        self.rebase_disks(&guard, found)?;
        let command = Command::TakeIn { id, found: Box::new(found.clone()) };
        let settled = self.submit_locked(&guard, &caller.another(), &command)?;
        if let Some(record) = self.vm(id)? {
            self.note_generation(&record);
        }
        Ok(settled.is_none())
    }

    /// Disks of a root that was moved still name the images at its old place.
    fn rebase_disks(&self, guard: &OpsGuard, found: &Adopted) -> Result<(), EngineError> {
        if found.identity.is_some() {
            return Ok(());
        }
        for wanted in &found.spec.disks {
            let Some((base, format)) = &wanted.base else { continue };
            let (target, base) = (Path::new(&wanted.path), Path::new(base));
            if disk::stands_on(target, base)
                .map_err(|error| EngineError::Host(error.to_string()))?
            {
                continue;
            }
            perform("adopt.rebase-disk", || disk::rebase(target, base, *format, guard))
                .map_err(|error| EngineError::Host(error.to_string()))?;
        }
        Ok(())
    }

    /// Confirms the root, with all that made it doubtful.
    fn confirm(&self, caller: &Caller) -> Result<(), EngineError> {
        let presence = self.look_at_place()?;
        self.ledger().convince_witness()?;
        let place = presence.place().clone();
        self.submit(&caller.another(), &Command::AdoptRoot { place })?;
        if presence.is_unmarked() {
            Home::mark_again(&self.settings().root_dir, self.root_uuid())?;
            self.look_at_place()?;
        }
        Ok(())
    }

    /// A journal that was restored or imported beside the root that it was taken from knows the VMs of that root. As long as
    /// their directories are there, they are not this root's.
    fn refuse_elsewhere(&self) -> Result<(), EngineError> {
        let run_dir = &self.settings().run_dir;
        let here = run_dir.canonicalize().map_err(EngineError::io("look at", run_dir))?;
        for record in self.ledger().refresh()?.vms()? {
            let (spec, _) = relocate::relocated(&record, self.settings(), self.root_uuid());
            let elsewhere = Path::new(&spec.run_dir).canonicalize();
            if elsewhere.is_ok_and(|directory| !directory.starts_with(&here)) {
                return Err(EngineError::Host(format!(
                    "VM {} is in {}, which is not below {}, the run directory of this root: the root that this journal was taken from is still there, and both would act on the same VMs; use that one, or move it away before you adopt this one",
                    record.core.name,
                    spec.run_dir,
                    run_dir.display()
                )));
            }
        }
        Ok(())
    }

    /// A copy beside its original would end the same VMs and remove the same directories.
    fn refuse_copy(&self) -> Result<(), EngineError> {
        let presence = self.look_at_place()?;
        let root = self.ledger().refresh()?.root()?;
        match presence.original(root.place.as_ref(), self.root_uuid()) {
            None => Ok(()),
            Some(original) => Err(EngineError::Host(format!(
                "{} is a copy of {original}, which is still there: both would act on the same VMs; use {original}, or move it away before you adopt this one",
                self.settings().root_dir.display()
            ))),
        }
    }

    /// Where the run or log directory of a VM of this root belongs.
    fn own_directory(parent: &Path, backend: &str, id: VmId) -> PathBuf {
        parent.join(backend).join(id.as_str())
    }
}

fn check_selection(survey: &Survey, selection: &Selection) -> Result<(), EngineError> {
    let Selection::These(named) = selection else { return Ok(()) };
    let is_found = |wanted: &String| {
        let candidates = survey.findings.iter().filter(|finding| finding.is_called(wanted));
        candidates
            .into_iter()
            .any(|f| matches!(f.proposal, Proposal::TakeIn(_) | Proposal::BringUp(_)))
    };
    match named.iter().find(|wanted| !is_found(wanted)) {
        None => Ok(()),
        Some(unknown) => Err(EngineError::Host(format!(
            "nothing that could be taken in is called \"{unknown}\"; `cocoon adopt --dry-run` lists what is there"
        ))),
    }
}

/// The certificate of a run or log directory, if it has one of this root.
fn certificate(path: &Path, root: uuid::Uuid) -> Option<Box<directory::BirthCertificate>> {
    match directory::inspect(path) {
        Ok(directory::Found::Certified(certificate)) if certificate.root == root => {
            Some(certificate)
        }
        _ => None,
    }
}
