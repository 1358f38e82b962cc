//! Paths of a VM whose root was moved with it.

use std::path::{Path, PathBuf};

use cocoon_model::record::{Boot, VmRecord, VmSpec};
use uuid::Uuid;

use super::survey::is_of;
use crate::engine::Engine;
use crate::settings::Settings;

/// What the VM was made as, with the paths at which its parts are now, and whether any is another. Only what is gone from
/// its old place and certified at its new one has moved.
pub(super) fn relocated(record: &VmRecord, settings: &Settings, root: Uuid) -> (VmSpec, bool) {
    let mut spec = record.spec.clone();
    let (id, backend) = (record.core.id, spec.backend.as_str());
    let mut moved = false;
    let old_run = PathBuf::from(&spec.run_dir);
    let new_run = Engine::own_directory(&settings.run_dir, backend, id);
    if !old_run.exists() && old_run != new_run && is_of(&new_run, root, id) {
        moved = true;
        for disk in &mut spec.disks {
            if let Ok(inside) = Path::new(&disk.path).strip_prefix(&old_run) {
                disk.path = text(&new_run.join(inside));
            }
        }
        spec.run_dir = text(&new_run);
    }
    let old_log = PathBuf::from(&spec.log_dir);
    let new_log = Engine::own_directory(&settings.log_dir, backend, id);
    if !old_log.exists() && old_log != new_log && is_of(&new_log, root, id) {
        moved = true;
        spec.log_dir = text(&new_log);
    }
    for path in files_of_images(&mut spec) {
        if let Some(new) = moved_blob(path, settings) {
            moved = true;
            *path = new;
        }
    }
    (spec, moved)
}

/// Every path of a spec into the image store.
fn files_of_images(spec: &mut VmSpec) -> Vec<&mut String> {
    let VmSpec { boot, disks, .. } = spec;
    let mut paths: Vec<&mut String> =
        disks.iter_mut().filter_map(|disk| disk.base.as_mut()).map(|(base, _)| base).collect();
    if let Boot::Direct { kernel, initrd, .. } = boot {
        paths.extend([kernel, initrd]);
    }
    paths
}

/// Where a file of the image store is now, if it is gone from where it was: its name is its hash.
fn moved_blob(path: &str, settings: &Settings) -> Option<String> {
    let old = Path::new(path);
    let new = settings.root_dir.join("images/blobs").join(old.file_name()?);
    (!old.exists() && new.exists()).then(|| text(&new))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
