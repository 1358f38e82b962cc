//! Removing the lock files of things that are gone.

use std::io;
use std::path::{Path, PathBuf};

use super::file::{self, Mode};
use super::{LockError, Locks};

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Lock files that were removed.
    pub removed: Vec<PathBuf>,
    /// Lock files of unknown things that somebody holds: an operation that has not written its
    /// record yet, or a VMM that nobody knows of.
    pub held: Vec<PathBuf>,
}

impl Locks {
    /// Removes the lock files of VMs and snapshots that `is_known` does not know and nobody holds.
    ///
    /// `is_known` is asked under the lock. Whoever creates a thing takes its lock first and records
    /// it later, so under the lock "unknown" is final: the creator either has not begun, and will
    /// find the file replaced, or has failed.
    pub fn sweep(&self, is_known: impl Fn(&str) -> bool) -> Result<Sweep, LockError> {
        let mut sweep = Sweep::default();
        for (folder, suffix) in [("vm", ".lock"), ("vmm", ".lock"), ("snapshot", ".lease")] {
            let folder = self.directory.join(folder);
            for name in names(&folder)? {
                let Some(id) = name.strip_suffix(suffix) else { continue };
                if !is_known(id) {
                    sweep_one(folder.join(&name), id, &is_known, &mut sweep)?;
                }
            }
        }
        Ok(sweep)
    }
}

impl Locks {
    /// Ids of the VMs whose VMM lock is held. Creates nothing and hinders nobody.
    pub fn held_vmms(&self) -> Result<Vec<String>, LockError> {
        let mut held = Vec::new();
        for name in names(&self.directory.join("vmm"))? {
            if let Some(id) = name.strip_suffix(".lock")
                && self.vmm_is_held(id)?
            {
                held.push(id.to_owned());
            }
        }
        Ok(held)
    }
}

fn names(folder: &Path) -> Result<Vec<String>, LockError> {
    let unreadable = |error| file::failure("list", folder, error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        names.extend(entry.map_err(unreadable)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

fn sweep_one(
    path: PathBuf,
    id: &str,
    is_known: &impl Fn(&str) -> bool,
    sweep: &mut Sweep,
) -> Result<(), LockError> {
    let Some(locked) = file::open_existing(&path)? else { return Ok(()) };
    if !file::try_lock(&path, &locked, Mode::Exclusive)? {
        sweep.held.push(path);
        return Ok(());
    }
    if !file::is_at_path(&path, &locked)? || is_known(id) {
        return Ok(());
    }
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(file::failure("remove", &path, error));
        }
        _ => {}
    }
    sweep.removed.push(path);
    Ok(())
}
