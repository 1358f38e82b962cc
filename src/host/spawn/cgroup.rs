//! A cgroup of its own for each VMM, so that stopping the caller's unit does not kill it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A cgroup for one VMM: `<cgroup2 mount>/<slice>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    slice: String,
    name: String,
}

/// Why a scope could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// Processes still live in it.
    #[error("cgroup {path} still has processes; stop them, then try again")]
    Populated {
        /// The cgroup.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot remove cgroup {path}: {source}")]
    Io {
        /// The cgroup.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A prepared cgroup, ready to be entered.
pub(super) struct Prepared {
    pub(super) path: PathBuf,
    pub(super) processes: File,
}

impl Scope {
    /// The scope of a VM, `cocoon.slice/vm-<id>.scope`.
    pub fn of_vm(vm: &str) -> Self {
        Self::within("cocoon.slice", vm)
    }

    /// The scope of a VM within another slice. Characters that cannot stand in a cgroup's name
    /// become `_`.
    pub fn within(slice: &str, vm: &str) -> Self {
        Self { slice: component(slice), name: format!("vm-{}.scope", component(vm)) }
    }

    /// Creates the cgroup, or finds it, and opens it for entering. The error is a reason in words.
    pub(super) fn prepare(&self) -> Result<Prepared, String> {
        let mount = mount_point()?;
        let slice = mount.join(&self.slice);
        let path = slice.join(&self.name);
        for directory in [&slice, &path] {
            match std::fs::create_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(format!("cannot create cgroup {}: {error}", directory.display()));
                }
                _ => {}
            }
        }
        match OpenOptions::new().write(true).open(path.join("cgroup.procs")) {
            Ok(processes) => Ok(Prepared { path, processes }),
            Err(error) => Err(format!("cannot enter cgroup {}: {error}", path.display())),
        }
    }

    /// Whether this process may create cgroups of this slice. The error is a reason in words.
    pub fn is_possible(&self) -> Result<(), String> {
        let mount = mount_point()?;
        let slice = mount.join(&self.slice);
        let parent = if slice.is_dir() { slice } else { mount };
        rustix::fs::access(&parent, rustix::fs::Access::WRITE_OK)
            .map_err(|error| format!("cannot create cgroups in {}: {error}", parent.display()))
    }

    /// Removes the cgroup once its VMM is dead; one that does not exist is fine.
    pub fn remove(&self) -> Result<(), ScopeError> {
        let Ok(mount) = mount_point() else { return Ok(()) };
        let path = mount.join(&self.slice).join(&self.name);
        if !path.exists() {
            return Ok(());
        }
        match std::fs::remove_dir(&path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                Err(ScopeError::Populated { path })
            }
            Err(source) => Err(ScopeError::Io { path, source }),
        }
    }
}

fn component(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = text.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    // A leading dot would let `..` through.
    name.strip_prefix('.').map_or(name.clone(), |rest| format!("_{rest}"))
}

/// Where the unified hierarchy is mounted. The error is a reason in words.
fn mount_point() -> Result<PathBuf, String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| format!("cannot read /proc/self/mountinfo: {error}"))?;
    find_mount(&text).ok_or_else(|| "no cgroup2 file system is mounted".to_owned())
}

/// The first cgroup2 mount of a mount table; a path with escaped characters is passed over.
fn find_mount(mount_info: &str) -> Option<PathBuf> {
    let mounts = mount_info.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let is_cgroup2 = file_system.split(' ').next() == Some("cgroup2");
        is_cgroup2.then(|| mount.split(' ').nth(4)).flatten()
    });
    mounts.filter(|path| !path.contains('\\')).map(|path| Path::new(path).to_owned()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_among_the_others() {
        let table = "25 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                     26 25 0:23 / /sys/fs/cgroup/cpu rw,relatime shared:5 - cgroup cgroup rw,cpu\n\
                     27 25 0:24 / /odd\\040path rw - cgroup2 cgroup2 rw\n\
                     28 25 0:24 / /sys/fs/cgroup/unified rw shared:9 master:1 - cgroup2 cgroup2 rw";
        assert_eq!(find_mount(table), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(find_mount("garbage\n - cgroup2"), None);
    }

    #[test]
    fn names_cannot_leave_the_slice() {
        let scope = Scope::within("../x/y", "a/../b");
        assert_eq!(scope, Scope { slice: "_._x_y".into(), name: "vm-a_.._b.scope".into() });
    }
}
