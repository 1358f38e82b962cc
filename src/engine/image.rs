//! The image store: files by the hash of their content, and the images made of them.
//!
//! ```text
//!   copy to <root>/images/incoming/ -> sync -> rename to blobs/<hash> -> sync directory -> Imported
//!   RemoveBegan -> unlink blobs that no other image has -> Removed
//! ```
//!
//! Importers hold the images lock shared, whoever unlinks holds it exclusively: a blob without a record may be about to
//! get one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cocoon_model::command::Command;
use cocoon_model::decide::{Refusal, Settled};
use cocoon_model::id::{ImageId, check_image_name};
use cocoon_model::record::{Blob, DiskFormat, ImageContent, ImageRecord};

use super::caller::Caller;
use super::effect::perform;
use super::{Engine, EngineError, random, resolve};
use crate::host::disk;
use crate::host::lock::LockGuard;

/// Bytes copied at once.
const CHUNK: usize = 1 << 20;

/// Files to make an image of.
#[derive(Debug, Clone)]
pub enum ImageSource {
    /// A kernel with its initrd, and perhaps a root disk.
    Direct {
        /// The kernel.
        kernel: PathBuf,
        /// The initrd.
        initrd: PathBuf,
        /// The root disk.
        rootfs: Option<PathBuf>,
        /// Kernel command line.
        cmdline: String,
    },
    /// A bootable disk, qcow2 or raw.
    Disk(PathBuf),
}

/// Told how many bytes of how many are copied, and of which file.
pub type Progress<'a> = &'a mut dyn FnMut(&Path, u64, u64);

impl Engine {
    /// The image that a reference means.
    ///
    /// # Errors
    /// If there is none.
    pub fn image(&self, reference: &str) -> Result<Arc<ImageRecord>, EngineError> {
        use cocoon_model::view::View as _;
        let mut ledger = self.ledger();
        let state = ledger.refresh()?;
        let id = resolve::image(state, reference)?;
        state
            .image(id)?
            .ok_or_else(|| EngineError::NotFound { what: "image", reference: reference.to_owned() })
    }

    /// All images, by name.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn images(&self) -> Result<Vec<Arc<ImageRecord>>, EngineError> {
        let mut images = self.ledger().refresh()?.images()?;
        images.sort_by(|a, b| a.core.name.cmp(&b.core.name));
        Ok(images)
    }

    /// Where a blob is.
    #[must_use]
    pub fn blob_path(&self, hash: &str) -> PathBuf {
        self.blobs_dir().join(hash)
    }

    fn blobs_dir(&self) -> PathBuf {
        self.settings().root_dir.join("images").join("blobs")
    }

    fn incoming_dir(&self) -> PathBuf {
        self.settings().root_dir.join("images").join("incoming")
    }

    /// Imports an image; the very same content under the same name is fine.
    ///
    /// # Errors
    /// A file that cannot be read or is none of the formats, a name that is taken, or the disk.
    pub fn import_image(
        &self,
        name: &str,
        source: &ImageSource,
        caller: &Caller,
        progress: Progress<'_>,
    ) -> Result<Arc<ImageRecord>, EngineError> {
        check_image_name(name)?;
        self.finish_half_removed(name, caller)?;
        let lock = self.locks().images_shared(&caller.holder()?, caller.deadline())?;
        for dir in [self.blobs_dir(), self.incoming_dir()] {
            perform("image.make-directory", || fs::create_dir_all(&dir))
                .map_err(EngineError::io("create", dir))?;
        }
        let content = self.take_in(source, progress)?;
        let digest = digest(&content);
        let command =
            Command::ImportImage { id: random::id(), name: name.to_owned(), digest, content };
        self.submit_images(&lock, caller, &command)?;
        drop(lock);
        self.image(name)
    }

    /// A removal that died half-way gives the name free.
    fn finish_half_removed(&self, name: &str, caller: &Caller) -> Result<(), EngineError> {
        let images = self.images()?;
        let mut named = images.iter().filter(|image| image.core.name == name);
        let Some(half) = named.find(|image| image.core.removing.is_some()) else { return Ok(()) };
        match self.remove_image(half.core.id, &caller.another()) {
            // Its remover was alive, and has finished while we waited for the lock.
            Ok(()) | Err(EngineError::Refused(Refusal::ImageNotFound(_))) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn submit_images(
        &self,
        _lock: &LockGuard,
        caller: &Caller,
        command: &Command,
    ) -> Result<Option<Settled>, EngineError> {
        self.submit(caller, command)
    }

    fn take_in(
        &self,
        source: &ImageSource,
        progress: Progress<'_>,
    ) -> Result<ImageContent, EngineError> {
        match source {
            ImageSource::Direct { kernel, initrd, rootfs, cmdline } => {
                let rootfs = match rootfs {
                    Some(path) => Some(self.take_in_disk(path, progress)?),
                    None => None,
                };
                Ok(ImageContent::Direct {
                    kernel: self.copy_in(kernel, progress)?,
                    initrd: self.copy_in(initrd, progress)?,
                    rootfs,
                    cmdline: cmdline.clone(),
                })
            }
            ImageSource::Disk(path) => {
                let (disk, format, virtual_size) = self.take_in_disk(path, progress)?;
                Ok(ImageContent::Disk { disk, format, virtual_size })
            }
        }
    }

    fn take_in_disk(
        &self,
        path: &Path,
        progress: Progress<'_>,
    ) -> Result<(Blob, DiskFormat, u64), EngineError> {
        let check = |file: &Path| {
            let info = disk::inspect(file).and_then(|info| Ok((info.check_import(path)?, info)));
            info.map_err(|error| EngineError::Invalid(error.to_string()))
        };
        // What is no disk is refused before it is copied.
        if path.is_file() {
            check(path)?;
        }
        let blob = self.copy_in(path, progress)?;
        // Only the copy counts: the original may change meanwhile.
        let (format, info) = check(&self.blob_path(&blob.hash))?;
        Ok((blob, format, info.virtual_size))
    }

    /// Copies a file into the store, under the hash of what was copied, durable.
    fn copy_in(&self, path: &Path, progress: Progress<'_>) -> Result<Blob, EngineError> {
        let mut from = File::open(path).map_err(EngineError::io("open", path))?;
        let total = from.metadata().map_err(EngineError::io("look at", path))?;
        if !total.is_file() {
            return Err(EngineError::Invalid(format!("{} is not a file", path.display())));
        }
        let incoming = self.incoming_dir().join(random::id().as_str());
        let mut to = perform("image.open-incoming", || File::create_new(&incoming))
            .map_err(EngineError::io("create", &incoming))?;
        let copied = perform("image.copy", || {
            copy(&mut from, &mut to, |done| progress(path, done, total.len()))
        });
        let (hash, size) = match copied.and_then(|copied| to.sync_all().map(|()| copied)) {
            Ok(copied) => copied,
            Err(source) => {
                // The user hears of the copy, not of the clearing up; gc clears what stays.
                let _ = perform("image.drop-incoming", || fs::remove_file(&incoming));
                let path = path.to_owned();
                return Err(EngineError::Io { action: "copy", path, source });
            }
        };
        let blob = self.blob_path(&hash);
        perform("image.place", || place(&incoming, &blob))
            .map_err(EngineError::io("place", &blob))?;
        Ok(Blob { hash, size })
    }

    /// Removes an image that no VM uses.
    ///
    /// # Errors
    /// A refusal that names its users, or the disk.
    pub fn remove_image(&self, id: ImageId, caller: &Caller) -> Result<(), EngineError> {
        let lock = self.locks().images_exclusive(&caller.holder()?, caller.deadline())?;
        self.submit_images(&lock, caller, &Command::RemoveImage { id })?;
        self.unlink_unused_blobs()?;
        self.submit_images(&lock, caller, &Command::FinishImageRemoval { id })?;
        Ok(())
    }

    /// Unlinks blobs that no image has, and copies that nobody finished; the images lock is held exclusively.
    fn unlink_unused_blobs(&self) -> Result<Vec<PathBuf>, EngineError> {
        let images = self.ledger().refresh()?.images()?;
        let kept: BTreeSet<String> = images
            .iter()
            .filter(|image| image.core.removing.is_none())
            .flat_map(|image| image.content.blobs().into_iter().map(|blob| blob.hash.clone()))
            .collect();
        let mut unlinked = Vec::new();
        for (dir, kept) in [(self.blobs_dir(), Some(&kept)), (self.incoming_dir(), None)] {
            for path in files(&dir)? {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
                if kept.zip(name.as_ref()).is_some_and(|(kept, name)| kept.contains(name)) {
                    continue;
                }
                perform("image.unlink", || fs::remove_file(&path))
                    .map_err(EngineError::io("remove", &path))?;
                unlinked.push(path);
            }
        }
        Ok(unlinked)
    }

    /// Finishes removals of images that died half-way, and unlinks what no image has. Nothing if the lock is taken.
    ///
    /// # Errors
    /// The journal or the disk.
    pub(super) fn collect_images(&self, caller: &Caller) -> Result<Vec<PathBuf>, EngineError> {
        let Some(lock) = self.locks().try_images_exclusive(&caller.holder()?)? else {
            return Ok(Vec::new());
        };
        let half_gone: Vec<ImageId> = self
            .images()?
            .iter()
            .filter(|image| image.core.removing.is_some())
            .map(|image| image.core.id)
            .collect();
        for id in &half_gone {
            self.submit_images(&lock, caller, &Command::RemoveImage { id: *id })?;
        }
        let unlinked = self.unlink_unused_blobs()?;
        for id in half_gone {
            self.submit_images(&lock, caller, &Command::FinishImageRemoval { id })?;
        }
        Ok(unlinked)
    }
}

fn files(dir: &Path) -> Result<Vec<PathBuf>, EngineError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
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

fn copy(
    from: &mut impl Read,
    to: &mut impl Write,
    mut told: impl FnMut(u64),
) -> std::io::Result<(String, u64)> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    let mut done = 0;
    loop {
        let read = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
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

/// Moves a synced copy to its place. A blob that is there already has the same content by its name.
fn place(incoming: &Path, blob: &Path) -> std::io::Result<()> {
    fs::rename(incoming, blob)?;
    match blob.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

/// The digest of an image: over the hashes of its files and how they are used.
fn digest(content: &ImageContent) -> String {
    let mut hasher = blake3::Hasher::new();
    let kind: &[u8] = match content {
        ImageContent::Direct { .. } => b"direct\n",
        ImageContent::Disk { .. } => b"disk\n",
    };
    hasher.update(kind);
    for blob in content.blobs() {
        hasher.update(blob.hash.as_bytes()).update(b"\n");
    }
    if let ImageContent::Direct { cmdline, .. } = content {
        hasher.update(cmdline.as_bytes());
    }
    format!("blake3:{}", hasher.finalize().to_hex())
}
