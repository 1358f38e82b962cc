//! Removing the lock files of a VM that is gone, under its ops lock.

use std::io;
use std::path::Path;

use super::{LockError, LockGuard, Locks, Mode, OpsGuard, file};
use crate::host::lock::Holder;

impl Locks {
    /// Removes the VMM lock file of the guarded VM, whose VMM is proven dead.
    ///
    /// # Errors
    /// [`LockError::VmmAlive`] if a VMM holds it after all; or the file system refuses.
    pub fn remove_vmm(&self, guard: &OpsGuard) -> Result<(), LockError> {
        let path = self.vmm(guard.vm())?;
        if file::open_existing(&path)?.is_none() {
            return Ok(());
        }
        // As for a launch: somebody who only looks holds it for an instant.
        let _held = self.vmm_for_launch(guard.vm())?;
        unlink(&path)
    }

    /// Removes the ops lock file of the guarded VM, whose record is gone. Whoever waits for the lock finds the file
    /// replaced, and begins anew.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn remove_ops(&self, guard: &OpsGuard) -> Result<(), LockError> {
        unlink(&self.vm(guard.vm())?.path)
    }

    /// Has the image store for itself, if nobody else uses it.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    pub fn try_images_exclusive(&self, holder: &Holder) -> Result<Option<LockGuard>, LockError> {
        let taken = self.images().try_take(Mode::Exclusive, holder)?;
        Ok(taken.ok().map(|held| LockGuard { held }))
    }
}

fn unlink(path: &Path) -> Result<(), LockError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(file::failure("remove", path, error))
        }
        _ => Ok(()),
    }
}
