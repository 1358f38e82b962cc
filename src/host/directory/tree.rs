//! Emptying a directory without leaving it: every step goes through the descriptor of the directory
//! above.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, unlinkat};
use rustix::io::Errno;

use super::{DirectoryError, failure};

/// How deep directories may be nested; each level costs a descriptor while it is emptied.
const DEPTH_MAX: usize = 128;

/// Opens a directory by its name in another one: never through a link, never across a mount.
pub(super) fn open_directory(parent: impl AsFd, name: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match openat2(&parent, name, flags, Mode::empty(), resolve) {
            // A rename elsewhere on the host raced with the lookup.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

/// Whether a directory has no entries.
pub(super) fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    Ok(entries(directory)?.is_empty())
}

/// Removes all that is in a directory, save one name at its top. `path` is for messages.
pub(super) fn empty(
    directory: &OwnedFd,
    path: &Path,
    keep: Option<&OsStr>,
) -> Result<(), DirectoryError> {
    empty_to_depth(directory, path, keep, DEPTH_MAX)
}

fn empty_to_depth(
    directory: &OwnedFd,
    path: &Path,
    keep: Option<&OsStr>,
    depth: usize,
) -> Result<(), DirectoryError> {
    let listed = entries(directory).map_err(|error| failure("list", path, error))?;
    for (name, kind) in listed {
        let name = OsStr::from_bytes(&name);
        if Some(name) == keep {
            continue;
        }
        let path = path.join(name);
        if kind == FileType::Directory || !unlink(directory, name, &path)? {
            remove_directory(directory, name, &path, depth)?;
        }
    }
    Ok(())
}

/// Removes a file; `false` when it turns out to be a directory.
fn unlink(directory: &OwnedFd, name: &OsStr, path: &Path) -> Result<bool, DirectoryError> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(Errno::BUSY) => Err(DirectoryError::MountPoint { path: path.to_owned() }),
        Err(error) => Err(failure("remove", path, error)),
    }
}

fn remove_directory(
    parent: &OwnedFd,
    name: &OsStr,
    path: &Path,
    depth: usize,
) -> Result<(), DirectoryError> {
    if depth == 0 {
        return Err(DirectoryError::TooDeep { path: path.to_owned(), max: DEPTH_MAX });
    }
    match open_directory(parent, Path::new(name)) {
        Ok(directory) => empty_to_depth(&directory, path, None, depth - 1)?,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::XDEV) => return Err(DirectoryError::MountPoint { path: path.to_owned() }),
        Err(error) => return Err(failure("open", path, error)),
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failure("remove", path, error)),
    }
}

/// All entries, read before any is removed: removing while reading makes some file systems skip
/// entries.
fn entries(directory: &OwnedFd) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            entries.push((name.to_owned(), entry.file_type()));
        }
    }
    Ok(entries)
}
