//! The image store: files by the hash of their content, and the images made of them.
//!
//! ```text
//!   copy to incoming/<hash>.<random> -> sync -> Imported -> rename to blobs/<hash>
//!   RemoveBegan -> unlink blobs that no other image has -> Removed
//! ```
//!
//! The event comes before a blob is in its place, so that the journal has named every blob that is there: gc touches no
//! other. Who finds a blob of an image missing looks for it among what came in, and places it.
//!
//! Importers hold the images lock shared, whoever unlinks holds it exclusively: a blob without a record may be about to
//! get one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cocoon_model::command::Command;
use cocoon_model::decide::{Refusal, Settled};
use cocoon_model::id::{ImageId, check_image_name};
use cocoon_model::record::{Blob, Boot, DiskFormat, ImageContent, ImageRecord};
use cocoon_model::state::State;
use cocoon_model::view::View as _;

use super::base::CheckpointBase;
use super::caller::Caller;
use store::Incoming;

use super::effect::perform;
use super::{Engine, EngineError, random, resolve};
use crate::host::disk;
use crate::host::lock::LockGuard;

mod store;

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

/// The longest command line that Linux takes, in bytes.
const CMDLINE_MAX: usize = 2047;

impl ImageSource {
    /// Refuses what no guest could be booted with, before anything is copied.
    fn check(&self) -> Result<(), EngineError> {
        let Self::Direct { cmdline, .. } = self else { return Ok(()) };
        if cmdline.len() > CMDLINE_MAX {
            let length = cmdline.len();
            return Err(EngineError::Invalid(format!(
                "--cmdline has {length} bytes; Linux takes at most {CMDLINE_MAX}"
            )));
        }
        if cmdline.contains(char::is_control) {
            let what = "--cmdline has a control character; write it on one line, without tabs";
            return Err(EngineError::Invalid(what.to_owned()));
        }
        Ok(())
    }
}

/// Told how many bytes of how many are copied, and of which file.
pub type Progress<'a> = &'a mut dyn FnMut(&Path, u64, u64);

impl Engine {
    /// The image that a reference means.
    ///
    /// # Errors
    /// If there is none.
    pub fn image(&self, reference: &str) -> Result<Arc<ImageRecord>, EngineError> {
        image_in(self.ledger().refresh()?, reference)
    }

    /// The image that a reference means, for a command that names it: its transaction judges again.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn image_to_use(&self, reference: &str) -> Result<Arc<ImageRecord>, EngineError> {
        let mut ledger = self.ledger();
        image_in(ledger.look_ahead()?, reference)
            .or_else(|_| image_in(ledger.refresh()?, reference))
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
        source.check()?;
        self.require_confirmed()?;
        self.finish_half_removed(name, caller)?;
        let lock = self.locks().images_shared(&caller.holder()?, caller.deadline())?;
        for dir in [self.blobs_dir(), self.incoming_dir()] {
            perform("image.make-directory", || fs::create_dir_all(&dir))
                .map_err(EngineError::io("create", dir))?;
        }
        let mut incoming = Incoming::default();
        let imported = self.import_into(&mut incoming, name, source, caller, &lock, progress);
        // Of what was refused nothing stays; of what was imported everything has its place. What a failing journal says
        // nothing certain about stays for gc, which asks the journal.
        if !matches!(imported, Err(EngineError::Journal(_))) {
            incoming.discard();
        }
        drop(lock);
        imported.and_then(|()| self.image(name))
    }

    fn import_into(
        &self,
        incoming: &mut Incoming,
        name: &str,
        source: &ImageSource,
        caller: &Caller,
        lock: &LockGuard,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let content = self.take_in(source, incoming, progress)?;
        incoming.sync(&self.incoming_dir())?;
        let digest = digest(&content);
        let name = name.to_owned();
        let command = Command::ImportImage { id: random::id(), name, digest, content };
        self.submit_images(lock, caller, &command)?;
        incoming.place(&self.blobs_dir())
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
        incoming: &mut Incoming,
        progress: Progress<'_>,
    ) -> Result<ImageContent, EngineError> {
        match source {
            ImageSource::Direct { kernel, initrd, rootfs, cmdline } => {
                let rootfs = match rootfs {
                    Some(path) => Some(self.take_in_disk(path, incoming, progress)?),
                    None => None,
                };
                Ok(ImageContent::Direct {
                    kernel: self.copy_in(kernel, incoming, progress)?.0,
                    initrd: self.copy_in(initrd, incoming, progress)?.0,
                    rootfs,
                    cmdline: cmdline.clone(),
                })
            }
            ImageSource::Disk(path) => {
                let (disk, format, virtual_size) = self.take_in_disk(path, incoming, progress)?;
                Ok(ImageContent::Disk { disk, format, virtual_size })
            }
        }
    }

    fn take_in_disk(
        &self,
        path: &Path,
        incoming: &mut Incoming,
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
        let (blob, copy) = self.copy_in(path, incoming, progress)?;
        // Only the copy counts: the original may change meanwhile.
        let (format, info) = check(&copy)?;
        Ok((blob, format, info.virtual_size))
    }

    /// Copies a file into the store; where the copy is.
    fn copy_in(
        &self,
        path: &Path,
        incoming: &mut Incoming,
        progress: Progress<'_>,
    ) -> Result<(Blob, PathBuf), EngineError> {
        // Opening a pipe would wait for its other end.
        let total = fs::metadata(path).map_err(EngineError::io("look at", path))?;
        if !total.is_file() {
            return Err(EngineError::Invalid(format!("{} is not a file", path.display())));
        }
        let mut from = File::open(path).map_err(EngineError::io("open", path))?;
        let told = |done| progress(path, done, total.len());
        incoming.copy(&mut from, &self.incoming_dir(), told).map_err(EngineError::io("copy", path))
    }

    /// Makes sure that all files of an image are in their place.
    ///
    /// # Errors
    /// A file that is nowhere, or the disk.
    pub(super) fn place_blobs(&self, image: &ImageRecord) -> Result<(), EngineError> {
        let mut failure = None;
        for blob in image.content.blobs() {
            let path = self.blob_path(&blob.hash);
            let lacking = match store::place_from(&self.incoming_dir(), &path) {
                Ok(true) => continue,
                Ok(false) => EngineError::Host(format!(
                    "image \"{}\" lacks its file {}; import it again under another name, or put the file back",
                    image.core.name,
                    path.display()
                )),
                Err(error) => error,
            };
            failure.get_or_insert(lacking);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Removes an image that no VM uses.
    ///
    /// # Errors
    /// A refusal that names its users, or the disk.
    pub fn remove_image(&self, id: ImageId, caller: &Caller) -> Result<(), EngineError> {
        self.require_confirmed()?;
        let lock = self.locks().images_exclusive(&caller.holder()?, caller.deadline())?;
        self.require_confirmed()?;
        let began = self.ledger().refresh()?.image(id)?.is_some_and(|image| {
            // A removal that fails again has nothing new to tell the journal.
            image.core.removing.is_some()
        });
        if began {
            self.unlink_blobs_of_removed()?;
        }
        self.submit_images(&lock, caller, &Command::RemoveImage { id })?;
        self.unlink_blobs_of_removed()?;
        self.submit_images(&lock, caller, &Command::FinishImageRemoval { id })?;
        Ok(())
    }

    /// Hashes of all blobs of images that stay, and of those of images that go and of no other.
    fn blobs_by_fate(&self) -> Result<(BTreeSet<String>, BTreeSet<String>), EngineError> {
        let images = self.ledger().refresh()?.images()?;
        let hashes = |going: bool| {
            let images = images.iter().filter(move |image| image.core.removing.is_some() == going);
            images.flat_map(|image| image.content.blobs()).map(|blob| blob.hash.clone())
        };
        let kept: BTreeSet<String> = hashes(false).collect();
        let going = hashes(true).filter(|hash| !kept.contains(hash)).collect();
        Ok((kept, going))
    }

    /// Unlinks the blobs of images that are being removed; the images lock is held exclusively.
    fn unlink_blobs_of_removed(&self) -> Result<Vec<PathBuf>, EngineError> {
        let (_, going) = self.blobs_by_fate()?;
        let paths = going.iter().map(|hash| self.blob_path(hash)).filter(|path| path.exists());
        store::unlink(paths.collect())
    }

    /// Finishes what importers and removers left that died, and unlinks what no image has. Nothing if the lock is taken.
    ///
    /// # Errors
    /// The journal or the disk.
    pub(super) fn collect_images(&self, caller: &Caller) -> Result<Vec<PathBuf>, EngineError> {
        let Some(lock) = self.locks().try_images_exclusive(&caller.holder()?)? else {
            return Ok(Vec::new());
        };
        // What was collected before may have shown that the journal is an older one.
        self.require_confirmed()?;
        let (going, staying): (Vec<_>, Vec<_>) =
            self.images()?.into_iter().partition(|image| image.core.removing.is_some());
        for image in &staying {
            if let Err(error) = self.place_blobs(image) {
                tracing::warn!("{error}");
            }
        }
        // Their removal is on record: as long as it fails, nothing more is.
        let mut unlinked = self.unlink_blobs_of_removed()?;
        for id in going.iter().map(|image| image.core.id) {
            self.submit_images(&lock, caller, &Command::RemoveImage { id })?;
            self.submit_images(&lock, caller, &Command::FinishImageRemoval { id })?;
        }
        unlinked.extend(self.unlink_strays()?);
        Ok(unlinked)
    }

    /// Unlinks copies that nobody finished, and blobs that the journal has named and no image has any more. A blob that it
    /// has never named may belong to a later journal than this one: it is left alone.
    fn unlink_strays(&self) -> Result<Vec<PathBuf>, EngineError> {
        let (kept, _) = self.blobs_by_fate()?;
        let mut strays = store::files(&self.blobs_dir())?;
        strays.retain(|path| store::name(path).is_some_and(|name| !kept.contains(&name)));
        if !strays.is_empty() {
            let named = self.named()?;
            strays.retain(|path| store::name(path).is_some_and(|name| named.blobs.contains(&name)));
            // A VM that was taken in as it was found may stand on files of an image that has no record.
            let used = self.files_of_vms()?;
            strays.retain(|path| !used.contains(path));
        }
        // A copy that an image still waits for is the only one there is.
        let awaited = |path: &PathBuf| {
            let hash = store::hash_of_copy(path).filter(|hash| kept.contains(hash));
            hash.is_some_and(|hash| !self.blob_path(&hash).exists())
        };
        let incoming = store::files(&self.incoming_dir())?;
        strays.extend(incoming.into_iter().filter(|path| !awaited(path)));
        store::unlink(strays)
    }
}

impl Engine {
    /// Files of the store on which VMs stand.
    fn files_of_vms(&self) -> Result<BTreeSet<PathBuf>, EngineError> {
        let mut files = BTreeSet::new();
        for record in self.vms()? {
            if let Boot::Direct { kernel, initrd, .. } = &record.spec.boot {
                files.extend([PathBuf::from(kernel), PathBuf::from(initrd)]);
            }
            let bases = record.spec.disks.iter().filter_map(|disk| disk.base.as_ref());
            files.extend(bases.map(|(base, _)| PathBuf::from(base)));
        }
        Ok(files)
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

fn image_in(
    state: &State<CheckpointBase>,
    reference: &str,
) -> Result<Arc<ImageRecord>, EngineError> {
    let id = resolve::image(state, reference)?;
    state
        .image(id)?
        .ok_or_else(|| EngineError::NotFound { what: "image", reference: reference.to_owned() })
}
