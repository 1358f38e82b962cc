//! Disk images: what they are, and making new ones from them.
//!
//! A guest writes to an overlay or to a copy, never to the image that it was made from. Every file is made under a
//! name of its own beside its target (`.<name>.partial`), made durable and then renamed, so that a target that exists
//! is whole, and what a crash leaves is found by its name and made anew.
//!
//! Making an overlay is `qemu-img`'s work. It runs as a helper that holds the VM's lock, so that nobody else takes the
//! VM while a `qemu-img` of a dead operation still writes.

pub mod copy;
pub mod inspect;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use thiserror::Error;

pub use self::copy::{CopyMethod, copy_image};
pub use self::inspect::{ImageFormat, ImageInfo, Qcow2Header, inspect};
use crate::host::lock::OpsGuard;
use crate::host::spawn::{HelperCommand, HelperError};
use crate::host::vmm::DiskFormat;

/// The tool that is looked for along `PATH` unless another one is configured.
pub const QEMU_IMG: &str = "qemu-img";

/// Why a disk image cannot be used or made.
#[derive(Debug, Error)]
pub enum DiskError {
    /// The host refused something.
    #[error("cannot {action} the disk image {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// The image.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The image is damaged.
    #[error(
        "the disk image {path} is damaged: {problem}; check it with 'qemu-img check' or get it again"
    )]
    Damaged {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The image is sound, and not one that a VM here may be made from.
    #[error(
        "the disk image {path} cannot be used: {problem}; give another one, or convert it with 'qemu-img convert -O qcow2'"
    )]
    Refused {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The image is of a format that is not read here.
    #[error(
        "the disk image {} is {format}, and only qcow2 and raw disks are taken; convert it: qemu-img convert -O qcow2 {} {}",
        path.display(), path.display(), path.with_extension("qcow2").display()
    )]
    Foreign {
        /// The image.
        path: PathBuf,
        /// What it is, with its article.
        format: &'static str,
    },
    /// The image is packed.
    #[error("the disk image {} is compressed; unpack it first, with {tool}", path.display())]
    Compressed {
        /// The image.
        path: PathBuf,
        /// What unpacks it.
        tool: &'static str,
    },
    /// `qemu-img` did not do its work.
    #[error("cannot make the overlay {path}: {source}")]
    Tool {
        /// The overlay.
        path: PathBuf,
        /// What the tool said.
        source: HelperError,
    },
    /// The wanted size does not fit.
    #[error(
        "the disk {path} cannot have {wanted} bytes: its image needs {least}; ask for at least that much"
    )]
    TooSmall {
        /// The disk to be made.
        path: PathBuf,
        /// The size asked for, in bytes.
        wanted: u64,
        /// The least possible size, in bytes.
        least: u64,
    },
}

pub(crate) fn io_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> DiskError + 'a {
    move |source| DiskError::Io { action, path: path.to_owned(), source }
}

/// A copy-on-write disk above an image that is never written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    base: PathBuf,
    base_format: DiskFormat,
    target: PathBuf,
    size: u64,
}

impl Overlay {
    /// Plans an overlay of `size` bytes at `target` above the image `base`; `None` is the size of the image.
    pub fn plan(base: &Path, target: &Path, size: Option<u64>) -> Result<Self, DiskError> {
        if !base.is_absolute() || base.to_str().is_none() {
            let problem = "an overlay needs its image by an absolute path in UTF-8".to_owned();
            return Err(DiskError::Refused { path: base.to_owned(), problem });
        }
        let info = inspect(base)?;
        let base_format = info.disk_format(base)?;
        let size = size.unwrap_or(info.virtual_size);
        if size < info.virtual_size {
            let least = info.virtual_size;
            return Err(DiskError::TooSmall { path: target.to_owned(), wanted: size, least });
        }
        Ok(Self { base: base.to_owned(), base_format, target: target.to_owned(), size })
    }

    /// The overlay's size as the guest sees it, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the target is there already, and is this overlay.
    pub fn is_done(&self) -> Result<bool, DiskError> {
        if !self.target.try_exists().map_err(io_error("look for", &self.target))? {
            return Ok(false);
        }
        self.check(&self.target).map(|()| true)
    }

    /// Makes it with `qemu_img` as a helper that holds `lock`; one that is there already is fine.
    pub fn create(
        &self,
        qemu_img: &Path,
        lock: &OpsGuard,
        deadline: Option<Instant>,
    ) -> Result<(), DiskError> {
        if self.is_done()? {
            return Ok(());
        }
        remove_partial(&self.target)?;
        let made = partial(&self.target);
        let helper = HelperCommand::new(qemu_img).args(self.arguments(&made));
        helper
            .holding(lock.inheritable_fd())
            .run(deadline)
            .map_err(|source| DiskError::Tool { path: self.target.clone(), source })?;
        self.check(&made)?;
        publish(&made, &self.target)
    }

    fn arguments(&self, made: &Path) -> Vec<OsString> {
        let options = ["create", "-q", "-f", "qcow2", "-F", self.base_format.as_str(), "-b"];
        let mut arguments: Vec<OsString> = options.iter().map(OsString::from).collect();
        arguments.push(self.base.clone().into());
        arguments.push(made.into());
        arguments.push(self.size.to_string().into());
        arguments
    }

    fn check(&self, path: &Path) -> Result<(), DiskError> {
        let info = inspect(path)?;
        let problem = match &info.format {
            ImageFormat::Qcow2(header) if header.backing_file.as_deref() != self.base.to_str() => {
                format!("it stands on {:?}, not on {}", header.backing_file, self.base.display())
            }
            ImageFormat::Qcow2(_) if info.virtual_size != self.size => {
                format!("it has {} bytes, not {}", info.virtual_size, self.size)
            }
            ImageFormat::Qcow2(_) => return Ok(()),
            other => format!("it is {other}, not qcow2"),
        };
        Err(DiskError::Damaged { path: path.to_owned(), problem })
    }
}

/// Makes an empty raw disk of `size` bytes that takes no space yet. One that is there with that size is left alone.
pub fn create_raw(target: &Path, size: u64) -> Result<(), DiskError> {
    if fs::metadata(target).is_ok_and(|meta| meta.is_file() && meta.len() == size) {
        return Ok(());
    }
    let path = partial(target);
    let file = create_anew(&path)?;
    file.set_len(size).map_err(io_error("size", &path))?;
    publish(&path, target)
}

/// Removes what an interrupted making of `target` left.
pub fn remove_partial(target: &Path) -> Result<(), DiskError> {
    let path = partial(target);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", &path)(error))
        }
        _ => Ok(()),
    }
}

/// The name under which `target` is made.
#[must_use]
pub fn partial(target: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".partial");
    target.with_file_name(name)
}

/// A new file that only its owner can read, in place of what an interrupted attempt left.
pub(crate) fn create_anew(path: &Path) -> Result<File, DiskError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("replace", path)(error));
        }
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options.open(path).map_err(io_error("create", path))
}

/// Whether a qcow2 disk names this file as what it stands on.
pub fn stands_on(disk: &Path, base: &Path) -> Result<bool, DiskError> {
    match inspect(disk)?.format {
        ImageFormat::Qcow2(header) => Ok(header.backing_file.as_deref() == base.to_str()),
        other => {
            let problem = format!("it is {other}, not qcow2");
            Err(DiskError::Damaged { path: disk.to_owned(), problem })
        }
    }
}

/// Has a qcow2 disk name another file as what it stands on, whose content is the same. May be repeated.
pub fn rebase(
    disk: &Path,
    base: &Path,
    base_format: DiskFormat,
    lock: &OpsGuard,
) -> Result<(), DiskError> {
    let helper = HelperCommand::new(QEMU_IMG)
        .args(["rebase", "-u", "-f", "qcow2", "-F", base_format.as_str(), "-b"])
        .arg(base)
        .arg(disk);
    helper
        .holding(lock.inheritable_fd())
        .run(None)
        .map(drop)
        .map_err(|source| DiskError::Tool { path: disk.to_owned(), source })
}

/// Makes `path` durable and gives it the name `target`.
pub(crate) fn publish(path: &Path, target: &Path) -> Result<(), DiskError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    file.sync_all().map_err(io_error("sync", path))?;
    fs::rename(path, target).map_err(io_error("name", target))?;
    let directory = target.parent().unwrap_or_else(|| Path::new("/"));
    File::open(directory)
        .and_then(|file| file.sync_all())
        .map_err(io_error("sync the directory of", target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::lock::{Holder, Locks};
    use crate::host::vmm::find_executable;

    /// The lock of a VM, unless this host has no `qemu-img`.
    fn lock(root: &Path) -> Option<OpsGuard> {
        if find_executable(Path::new(QEMU_IMG)).is_none() {
            let required = std::env::var("COCOON_REQUIRE").unwrap_or_default();
            assert!(!required.contains("qemu"), "qemu-img is required and not installed");
            eprintln!("skipped: qemu-img is not installed");
            return None;
        }
        let holder = Holder::own("test", uuid::Uuid::nil()).unwrap();
        Some(Locks::open(root).unwrap().ops("vm", &holder, None).unwrap())
    }

    #[test]
    fn an_overlay_is_made_above_raw_and_above_qcow2() {
        let directory = tempfile::tempdir().unwrap();
        let Some(lock) = lock(directory.path()) else { return };
        let base = directory.path().join("base, raw");
        create_raw(&base, 1 << 20).unwrap();
        let first = Overlay::plan(&base, &directory.path().join("first.qcow2"), None).unwrap();
        assert!(!first.is_done().unwrap());
        fs::write(partial(&first.target), "left by an interrupted attempt").unwrap();
        first.create(Path::new(QEMU_IMG), &lock, None).unwrap();
        assert!(first.is_done().unwrap());
        first.create(Path::new("/never/run/again"), &lock, None).unwrap();

        let second = directory.path().join("second.qcow2");
        let second = Overlay::plan(&first.target, &second, Some(4 << 20)).unwrap();
        second.create(Path::new(QEMU_IMG), &lock, None).unwrap();
        assert_eq!(inspect(&second.target).unwrap().virtual_size, 4 << 20);
        assert!(!partial(&second.target).exists());
    }

    #[test]
    fn an_overlay_of_another_base_or_size_is_never_taken_for_done() {
        let directory = tempfile::tempdir().unwrap();
        let Some(lock) = lock(directory.path()) else { return };
        let (base, other) = (directory.path().join("base"), directory.path().join("other"));
        create_raw(&base, 1 << 20).unwrap();
        create_raw(&other, 1 << 20).unwrap();
        let target = directory.path().join("target");
        let overlay = Overlay::plan(&base, &target, None).unwrap();
        overlay.create(Path::new(QEMU_IMG), &lock, None).unwrap();
        let moved = Overlay::plan(&other, &target, None).unwrap();
        let grown = Overlay::plan(&base, &target, Some(2 << 20)).unwrap();
        for different in [moved, grown] {
            let error = different.create(Path::new(QEMU_IMG), &lock, None).unwrap_err();
            assert!(matches!(error, DiskError::Damaged { .. }), "{error}");
        }
    }

    #[test]
    fn a_tool_that_fails_leaves_no_overlay() {
        let directory = tempfile::tempdir().unwrap();
        let Some(lock) = lock(directory.path()) else { return };
        let base = directory.path().join("base");
        create_raw(&base, 1 << 20).unwrap();
        let overlay = Overlay::plan(&base, &directory.path().join("o"), None).unwrap();
        fs::remove_file(&base).unwrap();
        let error = overlay.create(Path::new(QEMU_IMG), &lock, None).unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
        assert!(!overlay.target.exists());
    }

    #[test]
    fn an_overlay_is_never_smaller_than_its_base() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("base");
        create_raw(&base, 1 << 20).unwrap();
        let error = Overlay::plan(&base, &directory.path().join("o"), Some(1 << 19)).unwrap_err();
        assert!(matches!(error, DiskError::TooSmall { least, .. } if least == 1 << 20), "{error}");
    }

    #[test]
    fn a_raw_disk_takes_no_space_and_is_not_made_twice() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        fs::write(partial(&disk), "left by an interrupted attempt").unwrap();
        create_raw(&disk, 1 << 30).unwrap();
        let info = inspect(&disk).unwrap();
        assert_eq!((info.virtual_size, info.allocated_bytes < 1 << 20), (1 << 30, true));
        let mut file = OpenOptions::new().write(true).open(&disk).unwrap();
        io::Write::write_all(&mut file, b"data").unwrap();
        create_raw(&disk, 1 << 30).unwrap();
        let mut head = [0; 4];
        io::Read::read_exact(&mut File::open(&disk).unwrap(), &mut head).unwrap();
        assert_eq!(&head, b"data");
        assert!(!partial(&disk).exists());
    }
}
