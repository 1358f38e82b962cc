//! Keeps what was found unfit.
//!
//! ```text
//!  quarantine/sled-<first>.suspect/    copy of a generation in doubt, made before it is opened
//!  quarantine/sled-<first>.<n>/        REASON, generation/, and before-open/ if it was in doubt
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::repair::Repair;
use crate::files;
use crate::frame::Seq;

/// Copies a generation in doubt. There is one copy at most: an older one is replaced.
pub(super) fn copy_suspect(journal_dir: &Path, first: Seq, dir: &Path) -> io::Result<()> {
    let to = suspect_dir(journal_dir, first);
    files::create_dir(&journal_dir.join("quarantine"))?;
    remove_tree(&to)?;
    copy_tree(dir, &to)?;
    files::sync_parent(&to)
}

/// Drops the copy of a generation that turned out well.
pub(super) fn drop_suspect(journal_dir: &Path, first: Seq) -> io::Result<()> {
    remove_tree(&suspect_dir(journal_dir, first))
}

/// Moves an unfit generation away; returns where it is kept, `None` if there was nothing to keep.
pub(super) fn set_aside(
    journal_dir: &Path,
    first: Seq,
    dir: &Path,
    cause: &Repair,
) -> io::Result<Option<PathBuf>> {
    let suspect = suspect_dir(journal_dir, first);
    if !dir.exists() && !suspect.exists() {
        return Ok(None);
    }
    let kept = files::quarantine_dir(journal_dir, &format!("sled-{first:020}"))?;
    files::publish(&kept.join("REASON"), format!("{cause}\n").as_bytes())?;
    for (from, name) in [(suspect.as_path(), "before-open"), (dir, "generation")] {
        match fs::rename(from, kept.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => files::sync_parent(from)?,
        }
    }
    files::sync_dir(&kept)?;
    Ok(Some(kept))
}

fn suspect_dir(journal_dir: &Path, first: Seq) -> PathBuf {
    journal_dir.join("quarantine").join(format!("sled-{first:020}.suspect"))
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    files::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            fs::copy(entry.path(), &target)?;
            File::open(&target)?.sync_all()?;
        }
    }
    files::sync_dir(to)
}
