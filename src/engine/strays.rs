//! Directories of VMs that have no record.
//!
//! There should be none: a record goes last. Yet a disk may be put back from a backup, or a journal be older than the
//! world. So a directory is removed only if its birth certificate names this root, the journal has named the VM, its ops
//! lock is free and no VMM holds its lock. Anything else is listed and left alone.

use std::path::{Path, PathBuf};

use cocoon_model::command::VmmSeen;
use cocoon_model::id::VmId;
use cocoon_model::record::BackendKind;

use super::caller::Caller;
use super::effect::perform;
use super::gc::{Collected, Collection};
use super::ledger::Named;
use super::{Engine, EngineError};
use crate::host::directory::{self, Found};
use crate::host::lock::Observed;

impl Engine {
    /// Collects run and log directories without a record.
    pub(super) fn collect_directories(
        &self,
        caller: &Caller,
        collection: &mut Collection,
    ) -> Result<(), EngineError> {
        let strays = self.stray_directories()?;
        if strays.is_empty() {
            return Ok(());
        }
        let named = self.named()?;
        for (path, id, reason) in strays {
            match self.collect_directory(&path, id, &named, caller) {
                Ok(None) => collection.collected.push(Collected {
                    module: "vm",
                    what: path.display().to_string(),
                    reason,
                }),
                Ok(Some(why)) => collection.left.push((id, format!("{}: {why}", path.display()))),
                Err(error) => collection.failures.push(error),
            }
        }
        Ok(())
    }

    /// Directories that say they are of a VM of this root which has no record.
    pub(super) fn stray_directories(
        &self,
    ) -> Result<Vec<(PathBuf, VmId, &'static str)>, EngineError> {
        let mut strays = Vec::new();
        let parents = [
            (&self.settings().run_dir, "orphan-runDir"),
            (&self.settings().log_dir, "orphan-logDir"),
        ];
        for (parent, reason) in parents {
            let found = directory::survey(&parent.join(BackendKind::Qemu.as_str()))
                .map_err(|error| EngineError::Host(error.to_string()))?;
            for (path, found) in found {
                let Found::Certified(certificate) = found else { continue };
                let Ok(id) = certificate.vm.parse() else { continue };
                if certificate.root == self.root_uuid() && self.vm(id)?.is_none() {
                    strays.push((path, id, reason));
                }
            }
        }
        Ok(strays)
    }

    /// Removes one; why not, if it is left.
    fn collect_directory(
        &self,
        path: &Path,
        id: VmId,
        named: &Named,
        caller: &Caller,
    ) -> Result<Option<String>, EngineError> {
        if !named.vms.contains(&id) {
            let why = "the journal has never named this VM; is it an older one than these files?";
            return Ok(Some(why.to_owned()));
        }
        let Ok(guard) = self.locks().try_ops(id.as_str(), &caller.holder()?)? else {
            return Ok(Some("somebody works on it".to_owned()));
        };
        self.require_confirmed()?;
        if self.vm(id)?.is_some() {
            return Ok(Some("it has a record by now".to_owned()));
        }
        match self.locks().observe_vmm(id.as_str())? {
            Observed::Held(_) => return Ok(Some("its VMM lives".to_owned())),
            Observed::Free | Observed::NoFile => match self.scan_for(&path.join("api.sock")) {
                VmmSeen::Dead => {}
                VmmSeen::Alive(_) => return Ok(Some("its VMM lives".to_owned())),
                VmmSeen::Inconclusive(reason) => return Ok(Some(reason)),
            },
        }
        let root = self.root_uuid();
        perform("gc.remove-directory", || directory::remove(path, root, id.as_str()))
            .map_err(|error| EngineError::Host(error.to_string()))?;
        self.sweep_ops_lock(&guard);
        Ok(None)
    }
}
