//! Putting aside what is in the way, and putting back what belongs there.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::RepairError;
use super::walk::{Walked, Write, narrow};
use crate::directory::{Directory, sync_dir};
use crate::error::JournalError;
use crate::files;
use crate::frame::Seq;
use crate::segment::write_durably;

/// Mode of the files that a group may be allowed to read.
const FILE_MODE: u32 = 0o640;
/// What the owner needs.
const OWNER_MODE: u32 = 0o600;

/// A file that cannot be used as it is.
#[derive(Debug)]
pub(super) struct Obstacle {
    pub(super) path: PathBuf,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A pipe, a directory, a device, a link.
    NoFile,
    /// Its owner may not read or write it.
    Closed(u32),
}

impl Obstacle {
    fn at(path: PathBuf) -> Result<Option<Self>, JournalError> {
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(JournalError::io("look at", &path)(error)),
        };
        let mode = meta.mode();
        let ours = meta.uid() == nix::unistd::geteuid().as_raw();
        Ok(if !meta.is_file() {
            Some(Self { path, what: What::NoFile })
        } else if ours && mode & OWNER_MODE != OWNER_MODE {
            Some(Self { path, what: What::Closed(mode) })
        } else {
            None
        })
    }

    /// A directory that its owner may not use.
    fn directory(path: PathBuf) -> Result<Option<Self>, JournalError> {
        let meta = fs::metadata(&path).map_err(JournalError::io("look at", &path))?;
        let closed = meta.mode() & 0o700 != 0o700 && meta.uid() == nix::unistd::geteuid().as_raw();
        Ok(closed.then(|| Self { path, what: What::Closed(meta.mode() | 0o100) }))
    }

    /// Clears the way; what is no file is kept in `dir`.
    pub(super) fn clear(&self, dir: &Path) -> Result<(), JournalError> {
        match self.what {
            What::NoFile => {
                let name = self.path.file_name().unwrap_or_default();
                let kept = dir.join(name);
                rename_if_there(&self.path, &kept)
            }
            What::Closed(mode) => {
                let permissions = fs::Permissions::from_mode((mode & 0o777) | OWNER_MODE);
                fs::set_permissions(&self.path, permissions)
                    .map_err(JournalError::io("set the mode of", &self.path))
            }
        }
    }
}

/// What stands where HEAD and segments belong, and is none.
pub(super) fn obstacles(directory: &Directory) -> Result<Vec<Obstacle>, JournalError> {
    let mut found = Vec::new();
    found.extend(Obstacle::directory(directory.segments())?);
    let segments = directory.list()?.into_iter().map(|first| directory.segment(first));
    for path in std::iter::once(directory.head()).chain(segments) {
        found.extend(Obstacle::at(path)?);
    }
    Ok(found)
}

/// Gives the owner of the files the right to use them.
pub(super) fn make_readable(directory: &Directory) -> Result<Vec<PathBuf>, JournalError> {
    let mut made = Vec::new();
    let mut derived = Vec::new();
    for name in ["ckpt", "sled"] {
        closed_below(&directory.path().join(name), &mut derived)?;
    }
    for obstacle in obstacles(directory)?.into_iter().chain(derived) {
        if matches!(obstacle.what, What::Closed(_)) {
            obstacle.clear(directory.path())?;
            made.push(obstacle.path);
        }
    }
    Ok(made)
}

/// What its owner may not use of a directory of derived files.
fn closed_below(dir: &Path, found: &mut Vec<Obstacle>) -> Result<(), JournalError> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let closed =
            if is_dir { Obstacle::directory(path.clone())? } else { Obstacle::at(path.clone())? };
        found.extend(closed);
        if is_dir {
            closed_below(&path, found)?;
        }
    }
    Ok(())
}

/// Puts aside what stands where locks belong, before any is taken. A lock file has no content.
pub(super) fn clear_locks(dir: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let mut cleared = Vec::new();
    for name in ["LOCK", "OWNER", "CKPT"] {
        if let Some(obstacle) = Obstacle::at(dir.join(name))? {
            let aside = files::quarantine_dir(dir, &format!("lock-{name}"))
                .map_err(JournalError::io("make a directory in the quarantine of", dir))?;
            obstacle.clear(&aside)?;
            cleared.push(obstacle.path);
        }
    }
    Ok(cleared)
}

/// Keeps the bytes that are about to be overwritten. What an earlier, killed repair kept is the original.
pub(super) fn save_originals(
    directory: &Directory,
    dir: &Path,
    walked: &Walked,
    boundary: fn(&'static str),
) -> Result<(), RepairError> {
    for write in &walked.writes {
        let name = format!("{:020}-{}.bin", write.segment, write.told.offset);
        let kept = dir.join(name);
        if kept.exists() {
            continue;
        }
        let there = original(directory, write)?;
        if there.is_empty() {
            continue;
        }
        files::publish(&kept, &there).map_err(JournalError::io("write", &kept))?;
        boundary("repair.kept");
    }
    Ok(())
}

fn original(directory: &Directory, write: &Write) -> Result<Vec<u8>, JournalError> {
    let path = directory.segment(write.segment);
    let file = match files::open_to_read(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(JournalError::io("open", &path)(error)),
    };
    let mut bytes = vec![0; write.bytes.len()];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = write.told.offset + super::walk::widen(done);
        match file.read_at(rest, at).map_err(JournalError::io("read", &path))? {
            0 => break,
            read => done += read,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Writes back what belongs there. A segment that is gone appears whole.
pub(super) fn write_back(
    directory: &Directory,
    walked: &Walked,
    boundary: fn(&'static str),
) -> Result<(), RepairError> {
    let segments: BTreeSet<Seq> = walked.writes.iter().map(|write| write.segment).collect();
    for segment in segments {
        let path = directory.segment(segment);
        if path.exists() {
            let mut options = OpenOptions::new();
            let file = files::open_regular(&path, options.write(true))
                .map_err(JournalError::io("open", &path))?;
            for write in walked.writes.iter().filter(|write| write.segment == segment) {
                file.write_all_at(&write.bytes, write.told.offset)
                    .map_err(JournalError::io("write to", &path))?;
                boundary("repair.written");
            }
            file.sync_all().map_err(JournalError::io("sync", &path))?;
        } else {
            whole(directory, segment, walked)?;
        }
        boundary("repair.synced");
    }
    Ok(())
}

fn whole(directory: &Directory, segment: Seq, walked: &Walked) -> Result<(), JournalError> {
    let writes = walked.writes.iter().filter(|write| write.segment == segment);
    let mut bytes = Vec::new();
    for write in writes {
        let end = narrow(write.told.offset).saturating_add(write.bytes.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Some(place) = bytes.get_mut(narrow(write.told.offset)..end) {
            place.copy_from_slice(&write.bytes);
        }
    }
    replace(directory, segment, &bytes)
}

/// Gives a segment this content in one step.
pub(super) fn replace(
    directory: &Directory,
    segment: Seq,
    bytes: &[u8],
) -> Result<(), JournalError> {
    let path = directory.segment(segment);
    let temporary = path.with_extension("tmp");
    write_durably(&temporary, bytes, FILE_MODE)?;
    fs::rename(&temporary, &path).map_err(JournalError::io("rename", &temporary))?;
    sync_dir(&directory.segments())
}

/// Moves a file or directory into a directory of `kept`, whose name is `below`.
pub(super) fn move_aside(path: &Path, kept: &Path, below: &str) -> Result<(), JournalError> {
    let dir = kept.join(below);
    files::create_dir(&dir).map_err(JournalError::io("create", &dir))?;
    rename_if_there(path, &dir.join(path.file_name().unwrap_or_default()))?;
    sync_dir(&dir)?;
    path.parent().map_or(Ok(()), sync_dir)
}

fn rename_if_there(from: &Path, to: &Path) -> Result<(), JournalError> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(JournalError::io("put aside", from)(error))
        }
        _ => Ok(()),
    }
}

/// Copies a segment as it is.
pub(super) fn copy_aside(path: &Path, kept: &Path, below: &str) -> Result<(), JournalError> {
    let dir = kept.join(below);
    files::create_dir(&dir).map_err(JournalError::io("create", &dir))?;
    let target = dir.join(path.file_name().unwrap_or_default());
    if target.exists() {
        return Ok(());
    }
    let mut from = match files::open_to_read(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(JournalError::io("open", path)(error)),
    };
    let writing = files::writing_path(&target);
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(OWNER_MODE);
    let mut to: File = files::open_regular(&writing, &mut options)
        .map_err(JournalError::io("create", &writing))?;
    io::copy(&mut from, &mut to)
        .and_then(|_| to.sync_all())
        .and_then(|()| fs::rename(&writing, &target))
        .map_err(JournalError::io("copy", path))?;
    sync_dir(&dir)
}
