//! What differs between the records and the world.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cocoon_model::command::VmmSeen;
use cocoon_model::event::vm::Adopted;
use cocoon_model::id::VmId;
use cocoon_model::record::{BackendKind, RemovalPhase, VmRecord, VmState};
use cocoon_model::view::View as _;

use super::relocate::relocated;
use super::{Finding, Proposal, certificate};
use crate::engine::ledger::Named;
use crate::engine::{Engine, EngineError};
use crate::host::directory::{self, BirthCertificate, Found};
use crate::host::lock::Observed;

/// The longest name of a VM, bytes.
const NAME_MAX: usize = 63;
/// Characters of an id that make a name another one.
const SHORT_ID: usize = 8;

impl Engine {
    /// Everything that differs, by id.
    pub(super) fn findings(&self) -> Result<Vec<Finding>, EngineError> {
        let records = self.vms()?;
        let mut findings = Vec::new();
        for record in &records {
            findings.extend(self.judge_record(record)?);
        }
        let known: BTreeSet<VmId> = records.iter().map(|record| record.core.id).collect();
        let strangers = self.strangers(&known)?;
        let named = if strangers.is_empty() { Named::default() } else { self.named()? };
        let mut names = BTreeSet::new();
        for (id, (path, found)) in strangers {
            let told = self.judge_stranger(id, path, found, &named, &mut names)?;
            findings.push(told);
        }
        findings.sort_by_key(|finding| finding.id);
        Ok(findings)
    }

    /// One of them once more, under its lock.
    pub(super) fn look_again(&self, finding: &Finding) -> Result<Option<Finding>, EngineError> {
        let id = finding.id;
        if let Some(record) = self.vm(id)? {
            return self.judge_record(&record);
        }
        let Some(path) = finding.directory.clone() else { return Ok(None) };
        let made = certificate(&path, self.root_uuid()).map(|certificate| *certificate);
        self.judge_stranger(id, path, made, &self.named()?, &mut BTreeSet::new()).map(Some)
    }

    /// A VM with a record; nothing if its record says what is there, or what any actor finds out by itself.
    fn judge_record(&self, record: &VmRecord) -> Result<Option<Finding>, EngineError> {
        let core = &record.core;
        let run_dir = PathBuf::from(&record.spec.run_dir);
        let (spec, moved) = relocated(record, self.settings(), self.root_uuid());
        let noted = directory::noted_generation(Path::new(&spec.run_dir));
        let vmm = self.observe_vmm(record)?;
        let finding = |proposal, remark: String| Finding {
            id: core.id,
            name: Some(core.name.clone()),
            record: Some((core.state, core.generation)),
            noted,
            directory: Some(PathBuf::from(&spec.run_dir)).filter(|path| path.exists()),
            vmm: vmm.clone(),
            proposal,
            remark,
        };
        let going = |t: &cocoon_model::record::Tombstone| t.phase == RemovalPhase::Deleting;
        if core.tombstone.as_ref().is_some_and(going) {
            let remark = "it is being removed; whoever comes next after the adoption finishes that";
            return Ok(Some(finding(Proposal::Leave, remark.to_owned())));
        }
        let drifted = matches!(vmm, VmmSeen::Alive(_))
            && (core.state != VmState::Running || core.operation.is_some());
        let older = self.older(record)?.is_some() || noted.is_some_and(|n| n > core.generation);
        if !(older || drifted || moved) {
            return Ok(self
                .remark(record, &run_dir)
                .map(|remark| finding(Proposal::Leave, remark)));
        }
        let identity = match &vmm {
            VmmSeen::Inconclusive(reason) => {
                return Ok(Some(finding(Proposal::CannotTell, reason.clone())));
            }
            VmmSeen::Alive(identity) => Some(*identity),
            VmmSeen::Dead => None,
        };
        let found = Adopted {
            name: core.name.clone(),
            image: core.image,
            spec: Box::new(spec.clone()),
            generation: core.generation.max(noted.unwrap_or(0)).saturating_add(1),
            first_booted: core.first_booted || has_run(&spec.log_dir),
            identity,
        };
        let remark = match (older, drifted) {
            (true, _) => "its record is older than it is",
            (false, true) => "it runs, and its record says otherwise",
            (false, false) => "it was moved with its root",
        };
        Ok(Some(finding(Proposal::BringUp(Box::new(found)), remark.to_owned())))
    }

    /// What somebody who looks at the whole root wants to know of a VM that needs no adoption.
    fn remark(&self, record: &VmRecord, run_dir: &Path) -> Option<String> {
        let core = &record.core;
        if core.state == VmState::Creating {
            let idle = !matches!(self.locks().observe_ops(core.id.as_str()), Ok(Observed::Held(_)));
            return idle
                .then(|| "it was never finished; gc clears it away after the adoption".to_owned());
        }
        (!run_dir.exists()).then(|| {
            format!("its directory is gone; `cocoon vm rm {}` clears its record away", core.name)
        })
    }

    /// Directories that say they are of this root and have no record, and VMMs that hold the lock of such a VM.
    fn strangers(
        &self,
        known: &BTreeSet<VmId>,
    ) -> Result<BTreeMap<VmId, (PathBuf, Option<BirthCertificate>)>, EngineError> {
        let mut strangers = BTreeMap::new();
        for parent in [&self.settings().run_dir, &self.settings().log_dir] {
            let found = directory::survey(&parent.join(BackendKind::Qemu.as_str()))
                .map_err(|error| EngineError::Host(error.to_string()))?;
            for (path, found) in found {
                let Found::Certified(certificate) = found else { continue };
                let Ok(id) = certificate.vm.parse::<VmId>() else { continue };
                if certificate.root == self.root_uuid() && !known.contains(&id) {
                    strangers.entry(id).or_insert((path, Some(*certificate)));
                }
            }
        }
        for id in self.locks().held_vmms()? {
            let Ok(id) = id.parse::<VmId>() else { continue };
            if !known.contains(&id) {
                let run_dir = &self.settings().run_dir;
                let path = Self::own_directory(run_dir, BackendKind::Qemu.as_str(), id);
                strangers.entry(id).or_insert((path, None));
            }
        }
        Ok(strangers)
    }

    fn judge_stranger(
        &self,
        id: VmId,
        path: PathBuf,
        certificate: Option<BirthCertificate>,
        named: &Named,
        names: &mut BTreeSet<String>,
    ) -> Result<Finding, EngineError> {
        let vmm = self.look_for_vmm(id, &path)?;
        let made = certificate.and_then(|certificate| certificate.made);
        let noted = directory::noted_generation(&path);
        let (proposal, remark) = match &made {
            None => (Proposal::Leave, "nothing says what it was made as".to_owned()),
            Some(_) if named.vms.contains(&id) && vmm == VmmSeen::Dead => {
                let why = "it was removed, says the journal; gc clears it away after the adoption";
                (Proposal::Leave, why.to_owned())
            }
            Some(made) => match missing_disk(&made.spec) {
                Some(missing) => {
                    (Proposal::Leave, format!("it is not whole: {missing} is missing"))
                }
                None => self.propose_to_take_in(id, made, noted, &vmm, names)?,
            },
        };
        let name = match &proposal {
            Proposal::TakeIn(found) => Some(found.name.clone()),
            _ => made.map(|made| made.name),
        };
        let directory = path.exists().then_some(path);
        Ok(Finding { id, name, record: None, noted, directory, vmm, proposal, remark })
    }

    fn propose_to_take_in(
        &self,
        id: VmId,
        made: &directory::MadeAs,
        noted: Option<u64>,
        vmm: &VmmSeen,
        names: &mut BTreeSet<String>,
    ) -> Result<(Proposal, String), EngineError> {
        let identity = match vmm {
            VmmSeen::Alive(identity) => Some(*identity),
            VmmSeen::Dead => None,
            VmmSeen::Inconclusive(reason) => {
                let why = format!("whether it runs cannot be told: {reason}");
                return Ok((Proposal::Leave, why));
            }
        };
        let name = self.free_name(&made.name, id, names)?;
        let remark = if name == made.name {
            "it has no record".to_owned()
        } else {
            format!("it has no record, and its name \"{}\" is taken", made.name)
        };
        let found = Adopted {
            name,
            image: made.image,
            spec: Box::new(made.spec.clone()),
            generation: noted.unwrap_or(1).saturating_add(1),
            first_booted: has_run(&made.spec.log_dir),
            identity,
        };
        Ok((Proposal::TakeIn(Box::new(found)), remark))
    }

    /// The name, or that name with a part of the id if it is taken.
    fn free_name(
        &self,
        wanted: &str,
        id: VmId,
        names: &mut BTreeSet<String>,
    ) -> Result<String, EngineError> {
        let taken = self.ledger().state().vm_by_name(wanted)?.is_some() || names.contains(wanted);
        let short = id.as_str().get(..SHORT_ID).unwrap_or_default();
        let name = if taken {
            let kept: String = wanted.chars().take(NAME_MAX - SHORT_ID - 1).collect();
            format!("{kept}-{short}")
        } else {
            wanted.to_owned()
        };
        names.insert(name.clone());
        Ok(name)
    }

    fn look_for_vmm(&self, id: VmId, run_dir: &Path) -> Result<VmmSeen, EngineError> {
        let held = matches!(self.locks().observe_vmm(id.as_str())?, Observed::Held(_));
        Ok(match self.scan_for(&run_dir.join("api.sock")) {
            VmmSeen::Dead if held => VmmSeen::Inconclusive(
                "its VMM lock is held by a process that cannot be found".into(),
            ),
            seen => seen,
        })
    }
}

/// A VMM has written here.
fn has_run(log_dir: &str) -> bool {
    Path::new(log_dir).join("vmm.log").exists()
}

fn missing_disk(spec: &cocoon_model::record::VmSpec) -> Option<String> {
    let missing = spec.disks.iter().find(|disk| !Path::new(&disk.path).exists());
    missing.map(|disk| disk.path.clone())
}

/// Whether a certified directory of this VM stands at a path.
pub(super) fn is_of(path: &Path, root: uuid::Uuid, id: VmId) -> bool {
    certificate(path, root).is_some_and(|certificate| certificate.vm == id.as_str())
}
