//! The files of the image store.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use cocoon_model::record::Blob;

use crate::engine::effect::perform;
use crate::engine::{EngineError, random};

/// Bytes copied at once.
const CHUNK: usize = 1 << 20;

/// Copies that have come in and have no place yet.
#[derive(Debug, Default)]
pub(super) struct Incoming(Vec<(Blob, PathBuf)>);

impl Incoming {
    /// Copies a file into `dir`, synced, under the hash of what was copied; `told` hears how many bytes are done.
    pub(super) fn copy(
        &mut self,
        from: &mut impl Read,
        dir: &Path,
        told: impl FnMut(u64),
    ) -> io::Result<(Blob, PathBuf)> {
        let unique = random::id();
        let path = dir.join(unique.as_str());
        let mut to = perform("image.open-incoming", || File::create_new(&path))?;
        let copied = perform("image.copy", || {
            copy(from, &mut to, told).and_then(|copied| to.sync_all().map(|()| copied))
        });
        let named = copied.and_then(|(hash, size)| {
            let named = dir.join(format!("{hash}.{unique}"));
            perform("image.name-incoming", || fs::rename(&path, &named))?;
            Ok((Blob { hash, size }, named))
        });
        match named {
            Ok(named) => {
                self.0.push(named.clone());
                Ok(named)
            }
            Err(error) => {
                drop_incoming(&path);
                Err(error)
            }
        }
    }

    /// Makes the names of the copies durable.
    pub(super) fn sync(&self, dir: &Path) -> Result<(), EngineError> {
        perform("image.sync-incoming", || sync_directory(dir)).map_err(EngineError::io("sync", dir))
    }

    /// Moves all copies to their places.
    pub(super) fn place(&mut self, blobs: &Path) -> Result<(), EngineError> {
        for (blob, path) in self.0.drain(..) {
            place(&path, &blobs.join(&blob.hash))?;
        }
        Ok(())
    }

    /// Removes the copies that have no place. The user hears of what went wrong, not of this; gc clears what stays.
    pub(super) fn discard(self) {
        for (_, path) in self.0 {
            drop_incoming(&path);
        }
    }
}

fn drop_incoming(path: &Path) {
    let _ = perform("image.drop-incoming", || fs::remove_file(path));
}

fn copy(
    from: &mut impl Read,
    to: &mut impl Write,
    mut told: impl FnMut(u64),
) -> io::Result<(String, u64)> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    let mut done = 0;
    loop {
        let read = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let piece = chunk.get(..read).unwrap_or_default();
        hasher.update(piece);
        to.write_all(piece)?;
        done += read as u64;
        told(done);
    }
    Ok((hasher.finalize().to_hex().to_string(), done))
}

fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Moves a synced copy to its place. A blob that is there already has the same content, by its name, and stays: VMs may
/// have it open. One of another length was damaged, and is replaced. Somebody else may have moved this very copy.
fn place(copy: &Path, blob: &Path) -> Result<(), EngineError> {
    let placed = perform("image.place", || {
        let length = |path: &Path| fs::metadata(path).ok().map(|found| found.len());
        let whole = length(blob).is_some_and(|there| Some(there) == length(copy));
        let moved = if whole { fs::remove_file(copy) } else { fs::rename(copy, blob) };
        match moved {
            Err(error) if error.kind() == io::ErrorKind::NotFound && blob.exists() => Ok(()),
            moved => moved,
        }?;
        blob.parent().map_or(Ok(()), sync_directory)
    });
    placed.map_err(EngineError::io("place", blob))
}

/// Makes sure that a blob is in its place, taking it from what came in if need be; whether it is.
pub(super) fn place_from(incoming: &Path, blob: &Path) -> Result<bool, EngineError> {
    if blob.exists() {
        return Ok(true);
    }
    let Some(hash) = name(blob) else { return Ok(false) };
    let came_in = files(incoming)?;
    let copy = came_in.iter().find(|path| hash_of_copy(path).as_ref() == Some(&hash));
    if let Some(copy) = copy {
        place(copy, blob)?;
    }
    Ok(blob.exists())
}

/// The hash of a copy that has come in whole.
pub(super) fn hash_of_copy(path: &Path) -> Option<String> {
    name(path)?.split_once('.').map(|(hash, _)| hash.to_owned())
}

/// Removes files; which they were.
pub(super) fn unlink(paths: Vec<PathBuf>) -> Result<Vec<PathBuf>, EngineError> {
    for path in &paths {
        perform("image.unlink", || fs::remove_file(path))
            .map_err(EngineError::io("remove", path))?;
    }
    Ok(paths)
}

/// The last part of a path, if it is a text.
pub(super) fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// The files of a directory, sorted; none if it is not there.
pub(super) fn files(dir: &Path) -> Result<Vec<PathBuf>, EngineError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(EngineError::Io { action: "list", path: dir.to_owned(), source });
        }
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(EngineError::io("list", dir))?;
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}
