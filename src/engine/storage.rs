//! Directories and disks of a VM.

use std::path::Path;

use cocoon_model::record::{self, VmRecord};
use cocoon_model::step::Outcome;

use super::Engine;
use super::effect::perform;
use crate::host::directory::{self, BirthCertificate};
use crate::host::disk::{self, Overlay};
use crate::host::lock::OpsGuard;

impl Engine {
    pub(super) fn prepare_storage(&self, guard: &OpsGuard, record: &VmRecord) -> Outcome {
        match self.make_storage(guard, record) {
            Ok(()) => Outcome::Done,
            Err(reason) => Outcome::Failed(reason),
        }
    }

    fn make_storage(&self, guard: &OpsGuard, record: &VmRecord) -> Result<(), String> {
        let id = record.core.id.as_str();
        let root = self.root_uuid();
        let core = &record.core;
        let certificate =
            BirthCertificate::new(root, id).made_as(&core.name, core.image, &record.spec);
        perform("storage.make-run-directory", || {
            make_directory(Path::new(&record.spec.run_dir), &certificate)
        })?;
        perform("storage.make-log-directory", || {
            make_directory(Path::new(&record.spec.log_dir), &certificate)
        })?;
        record.spec.disks.iter().try_for_each(|disk| make_disk(guard, disk))
    }
}

fn make_directory(path: &Path, certificate: &BirthCertificate) -> Result<(), String> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .map_err(|error| format!("cannot create {}: {error}", parent.display()))?;
    }
    directory::create(path, certificate).map(|_| ()).map_err(|error| error.to_string())
}

/// Makes a disk, on a base of the image store or empty. The helper inherits the ops lock: should we die, the lock is not
/// free while it still writes.
fn make_disk(guard: &OpsGuard, wanted: &record::Disk) -> Result<(), String> {
    let target = Path::new(&wanted.path);
    let Some((base, _)) = &wanted.base else {
        return perform("storage.make-disk", || disk::create_raw(target, wanted.size))
            .map_err(|error| error.to_string());
    };
    let plan = Overlay::plan(Path::new(base), target, Some(wanted.size));
    let plan = plan.map_err(|error| error.to_string())?;
    perform("storage.make-disk", || plan.create(Path::new("qemu-img"), guard, None))
        .map_err(|error| error.to_string())
}
