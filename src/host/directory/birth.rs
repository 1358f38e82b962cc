//! The directories of one VM: born with a certificate, removed only by it.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use cocoon_model::id::ImageId;
use cocoon_model::record::VmSpec;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{DirectoryError, failure, tree};
use crate::host::boot;

/// The name of the certificate within a VM directory.
pub(super) const CERTIFICATE: &str = ".cocoon-birth.json";

/// What the name of a VM directory begins with until it is complete.
const UNBORN_PREFIX: &str = ".birth-";

/// The form of certificates and markers that this version writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 1;

/// The longest certificate or marker that is read, in bytes.
const FILE_MAX: u64 = 64 << 10;

/// Whose a VM directory is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BirthCertificate {
    /// The form of this record.
    pub format: u32,
    /// The root that the VM belongs to.
    pub root: Uuid,
    /// The VM.
    pub vm: String,
    /// When the directory was created, in microseconds since 1970.
    pub created_us: u64,
    /// What the VM was made as: enough to make its record anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<MadeAs>,
}

/// What a VM was made as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeAs {
    /// Its name.
    pub name: String,
    /// The image that its disks stand on.
    pub image: ImageId,
    /// All that was fixed at its birth.
    pub spec: VmSpec,
}

impl BirthCertificate {
    /// A certificate for a directory that is created now.
    pub fn new(root: Uuid, vm: &str) -> Self {
        Self { format: FORMAT, root, vm: vm.to_owned(), created_us: boot::wall_us(), made: None }
    }

    /// The same, with what the VM is made as.
    #[must_use]
    pub fn made_as(self, name: &str, image: ImageId, spec: &VmSpec) -> Self {
        let made = MadeAs { name: name.to_owned(), image, spec: spec.clone() };
        Self { made: Some(made), ..self }
    }

    fn names(&self, root: Uuid, vm: &str) -> bool {
        self.root == root && self.vm == vm
    }
}

/// Whether a directory had to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is new and empty, its certificate aside.
    New,
    /// It was there, with a certificate of the same root and VM.
    Existing,
}

/// Whether a directory had to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It, or what was left of it, is gone now.
    Removed,
    /// Nothing was there.
    NothingThere,
}

/// What stands at the path of a VM directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A directory with nothing in it, not even a certificate: the last rest of a removal.
    Empty,
    /// A directory with content but without a certificate: not ours, as far as we know.
    Uncertified,
    /// A directory that says whose it is.
    Certified(Box<BirthCertificate>),
}

/// Creates the directory of a VM with mode 0700 and the certificate in it, durably.
///
/// A directory that was there with a certificate of the same root and VM is fine. Whoever calls
/// this holds the ops lock of the VM, so nobody else creates or removes the same directory.
pub fn create(path: &Path, certificate: &BirthCertificate) -> Result<Created, DirectoryError> {
    let place = Place::of(path)?;
    match place.found()? {
        Found::Certified(found) if found.names(certificate.root, &certificate.vm) => {
            return Ok(Created::Existing);
        }
        Found::Certified(found) => return Err(foreign(path, &found)),
        Found::Uncertified => return Err(DirectoryError::Uncertified { path: path.to_owned() }),
        Found::Empty => place.remove_directory(&place.name)?,
        Found::Nothing => {}
    }
    place.bear(certificate)?;
    Ok(Created::New)
}

/// Tells whose directory stands at a path.
pub fn inspect(path: &Path) -> Result<Found, DirectoryError> {
    match Place::of(path) {
        Err(DirectoryError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(Found::Nothing)
        }
        place => place?.found(),
    }
}

/// Removes the directory of a VM with all that is in it, if its certificate names this root and
/// this VM.
///
/// May be repeated until it succeeds; a directory that is not there is fine.
pub fn remove(path: &Path, root: Uuid, vm: &str) -> Result<Removed, DirectoryError> {
    let place = match Place::of(path) {
        Err(DirectoryError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Removed::NothingThere);
        }
        place => place?,
    };
    let unborn = place.remove_unborn()?;
    let Some(directory) = place.open(&place.name)? else { return Ok(unborn) };
    match place.certified(&directory)? {
        Found::Certified(found) if found.names(root, vm) => {
            tree::empty(&directory, path, Some(OsStr::new(CERTIFICATE)))?;
            place.unlink_certificate(&directory)?;
        }
        Found::Certified(found) => return Err(foreign(path, &found)),
        Found::Uncertified => return Err(DirectoryError::Uncertified { path: path.to_owned() }),
        Found::Empty | Found::Nothing => {}
    }
    place.remove_directory(&place.name)?;
    Ok(Removed::Removed)
}

/// All VM directories in a run or log directory, sorted, with what each says of itself.
///
/// One that was never born completely is listed as [`Found::Nothing`]; [`remove`] takes its rest
/// away. Files, links and what is called `.something` are passed over.
pub fn survey(parent: &Path) -> Result<Vec<(PathBuf, Found)>, DirectoryError> {
    let unreadable = |error| failure("list", parent, error);
    let entries = match std::fs::read_dir(parent) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let mut paths = std::collections::BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = name.strip_prefix(UNBORN_PREFIX).unwrap_or(&name);
        if entry.file_type().map_err(unreadable)?.is_dir() && !name.starts_with('.') {
            paths.insert(parent.join(name));
        }
    }
    paths.into_iter().map(|path| inspect(&path).map(|found| (path, found))).collect()
}

fn foreign(path: &Path, found: &BirthCertificate) -> DirectoryError {
    DirectoryError::Foreign { path: path.to_owned(), root: found.root, vm: found.vm.clone() }
}

/// The place of a VM directory in its parent, which is held open.
pub(super) struct Place {
    path: PathBuf,
    parent: OwnedFd,
    name: PathBuf,
    unborn: PathBuf,
}

impl Place {
    pub(super) fn of(path: &Path) -> Result<Self, DirectoryError> {
        let bad_name = || DirectoryError::BadName { path: path.to_owned() };
        let name = path.file_name().ok_or_else(bad_name)?;
        let above = path.parent().ok_or_else(bad_name)?;
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(above, flags, Mode::empty())
            .map_err(|error| failure("open", above, error))?;
        let mut unborn = std::ffi::OsString::from(UNBORN_PREFIX);
        unborn.push(name);
        Ok(Self { path: path.to_owned(), parent, name: name.into(), unborn: unborn.into() })
    }

    fn found(&self) -> Result<Found, DirectoryError> {
        match self.open(&self.name)? {
            Some(directory) => self.certified(&directory),
            None => Ok(Found::Nothing),
        }
    }

    /// Opens the VM directory itself; `None` when nothing is there.
    pub(super) fn directory(&self) -> Result<Option<OwnedFd>, DirectoryError> {
        self.open(&self.name)
    }

    /// Opens a directory of the parent; `None` when nothing is there.
    fn open(&self, name: &Path) -> Result<Option<OwnedFd>, DirectoryError> {
        let path = || self.path.with_file_name(name);
        match tree::open_directory(&self.parent, name) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(DirectoryError::NotADirectory { path: path() }),
            Err(Errno::XDEV) => Err(DirectoryError::MountPoint { path: path() }),
            Err(error) => Err(failure("open", &path(), error)),
        }
    }

    /// What an open VM directory says of itself.
    fn certified(&self, directory: &OwnedFd) -> Result<Found, DirectoryError> {
        let path = self.path.join(CERTIFICATE);
        if let Some(certificate) = read_record::<BirthCertificate>(directory, CERTIFICATE, &path)? {
            return Ok(Found::Certified(Box::new(certificate)));
        }
        let empty = tree::is_empty(directory).map_err(|e| failure("list", &self.path, e))?;
        Ok(if empty { Found::Empty } else { Found::Uncertified })
    }

    /// Builds the directory under its unborn name, then gives it its own.
    fn bear(&self, certificate: &BirthCertificate) -> Result<(), DirectoryError> {
        let unborn = self.path.with_file_name(&self.unborn);
        match rustix::fs::mkdirat(&self.parent, &self.unborn, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failure("create", &unborn, error)),
        }
        let missing = || failure("open", &unborn, Errno::NOENT);
        let directory = self.open(&self.unborn)?.ok_or_else(missing)?;
        write_record(&directory, CERTIFICATE, &unborn.join(CERTIFICATE), certificate)?;
        rename_new(&self.parent, &self.unborn, &self.name)
            .map_err(|error| failure("create", &self.path, error))?;
        self.sync_parent()
    }

    /// Removes what a creation that was cut short left behind.
    fn remove_unborn(&self) -> Result<Removed, DirectoryError> {
        let Some(directory) = self.open(&self.unborn)? else { return Ok(Removed::NothingThere) };
        self.unlink_certificate(&directory)?;
        self.remove_directory(&self.unborn)?;
        Ok(Removed::Removed)
    }

    fn unlink_certificate(&self, directory: &OwnedFd) -> Result<(), DirectoryError> {
        match rustix::fs::unlinkat(directory, CERTIFICATE, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failure("remove", &self.path.join(CERTIFICATE), error)),
        }
    }

    /// Removes an empty directory of the parent, durably.
    fn remove_directory(&self, name: &Path) -> Result<(), DirectoryError> {
        match rustix::fs::unlinkat(&self.parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => self.sync_parent(),
            Err(error) => Err(failure("remove", &self.path.with_file_name(name), error)),
        }
    }

    fn sync_parent(&self) -> Result<(), DirectoryError> {
        let above = self.path.parent().unwrap_or(Path::new("."));
        rustix::fs::fsync(&self.parent).map_err(|error| failure("sync", above, error))
    }
}

/// Renames within a directory, never over something.
pub(super) fn rename_new(directory: &OwnedFd, from: &Path, to: &Path) -> Result<(), Errno> {
    rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE)
}

/// Reads a certificate or marker; `None` when there is none.
pub(super) fn read_record<T: for<'de> Deserialize<'de>>(
    directory: impl AsFd,
    name: &str,
    path: &Path,
) -> Result<Option<T>, DirectoryError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
        Ok(file) => std::fs::File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(failure("open", path, error)),
    };
    let mut bytes = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(|error| failure("read", path, error))?;
    let damaged = |reason: String| DirectoryError::Damaged { path: path.to_owned(), reason };
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format <= u64::from(FORMAT) => {}
        Some(format) => return Err(damaged(format!("format {format} needs a newer version"))),
        None => return Err(damaged("it has no format number".to_owned())),
    }
    serde_json::from_value(value).map(Some).map_err(|error| damaged(error.to_string()))
}

/// Writes a certificate or marker into a directory that nobody looks into yet, durably.
pub(super) fn write_record(
    directory: &OwnedFd,
    name: &str,
    path: &Path,
    record: &impl Serialize,
) -> Result<(), DirectoryError> {
    let failed = |error: std::io::Error| failure("write", path, error);
    let mut bytes = serde_json::to_vec_pretty(record).map_err(|error| failed(error.into()))?;
    bytes.push(b'\n');
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| failed(error.into()))?;
    let mut file = std::fs::File::from(file);
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    rustix::fs::fsync(directory).map_err(|error| failed(error.into()))
}
