//! What a disk image is, told from its first bytes, whatever they are.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::{DiskError, io_error};
use crate::host::vmm::DiskFormat;

/// How much of an image is looked at, in bytes.
const HEAD: usize = 512;

/// The longest name of a backing file, in bytes, as the format has it.
const BACKING_MAX: u32 = 1023;

/// The format of an image, and what its header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// No magic number that is known: the bytes of the disk themselves.
    Raw,
    /// QEMU's copy-on-write format.
    Qcow2(Qcow2Header),
    /// Another format, by its name.
    Foreign(&'static str),
    /// A compressed file, by the tool that unpacks it.
    Compressed(&'static str),
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Qcow2(_) => "qcow2",
            Self::Foreign(name) | Self::Compressed(name) => name,
        })
    }
}

/// The header of a qcow2 image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Qcow2Header {
    /// The format's version, 2 or 3.
    pub version: u32,
    /// The disk's size as the guest sees it, in bytes.
    pub virtual_size: u64,
    /// The cluster size as a power of two.
    pub cluster_bits: u32,
    /// The image that this one stands on.
    pub backing_file: Option<String>,
    /// Whether its contents are encrypted.
    pub encrypted: bool,
    /// Features without which the image cannot be read, as a bit mask.
    pub incompatible_features: u64,
}

/// Bits of `incompatible_features`.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its format.
    pub format: ImageFormat,
    /// The disk's size as the guest sees it, in bytes.
    pub virtual_size: u64,
    /// The file's length in bytes.
    pub file_size: u64,
    /// What the file takes on the host's disk, in bytes.
    pub allocated_bytes: u64,
}

impl ImageInfo {
    /// The format as hypervisors name it; refuses formats that none here reads.
    pub fn disk_format(&self, path: &Path) -> Result<DiskFormat, DiskError> {
        match &self.format {
            ImageFormat::Raw => Ok(DiskFormat::Raw),
            ImageFormat::Qcow2(_) => Ok(DiskFormat::Qcow2),
            ImageFormat::Foreign(format) => {
                Err(DiskError::Foreign { path: path.to_owned(), format })
            }
            ImageFormat::Compressed(tool) => {
                Err(DiskError::Compressed { path: path.to_owned(), tool })
            }
        }
    }

    /// Refuses an image that came from outside and would lead the hypervisor to other files, or that it could not
    /// read: a backing file, an external data file, encryption, marked damage, features that are not known.
    pub fn check_import(&self, path: &Path) -> Result<DiskFormat, DiskError> {
        let format = self.disk_format(path)?;
        let ImageFormat::Qcow2(header) = &self.format else {
            return self.check_raw(path).map(|()| format);
        };
        let known = DIRTY | COMPRESSION_TYPE | EXTENDED_L2;
        let features = header.incompatible_features;
        if let Some(backing) = &header.backing_file {
            return refuse(path, format!("it stands on another file, {backing:?}"));
        }
        if header.encrypted {
            return refuse(path, "it is encrypted".to_owned());
        }
        if features & EXTERNAL_DATA != 0 {
            return refuse(path, "its data is in another file".to_owned());
        }
        if features & CORRUPT != 0 {
            let problem = "it is marked as corrupt".to_owned();
            return Err(DiskError::Damaged { path: path.to_owned(), problem });
        }
        if features & !known != 0 {
            return refuse(path, format!("it has unknown features ({:#x})", features & !known));
        }
        Ok(format)
    }

    fn check_raw(&self, path: &Path) -> Result<(), DiskError> {
        let problem = match self.file_size {
            0 => "it is empty",
            size if !size.is_multiple_of(512) => {
                "its length is no multiple of 512 bytes, so it is no raw disk"
            }
            _ => return Ok(()),
        };
        refuse(path, problem.to_owned())
    }
}

fn refuse<T>(path: &Path, problem: String) -> Result<T, DiskError> {
    Err(DiskError::Refused { path: path.to_owned(), problem })
}

/// Looks at the image at `path`. Backing files are not opened.
pub fn inspect(path: &Path) -> Result<ImageInfo, DiskError> {
    // Opening a FIFO would wait for its other end.
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(nix::libc::O_NONBLOCK);
    let file = options.open(path).map_err(io_error("open", path))?;
    let meta = file.metadata().map_err(io_error("read", path))?;
    if !meta.is_file() {
        return refuse(path, "it is no regular file".to_owned());
    }
    let mut head = Vec::with_capacity(HEAD);
    io::Read::read_to_end(&mut io::Read::take(&file, HEAD as u64), &mut head)
        .map_err(io_error("read", path))?;
    let damaged = |problem| DiskError::Damaged { path: path.to_owned(), problem };
    let mut format = sniff(&head).map_err(damaged)?;
    let mut virtual_size = meta.len();
    match &mut format {
        ImageFormat::Qcow2(header) => {
            virtual_size = header.virtual_size;
            header.backing_file = backing_file(&file, &head).map_err(io_error("read", path))?;
        }
        ImageFormat::Raw if ends_like_vhd(&file, meta.len()).map_err(io_error("read", path))? => {
            format = ImageFormat::Foreign("a VHD image");
        }
        _ => {}
    }
    let allocated_bytes = meta.blocks().saturating_mul(512);
    Ok(ImageInfo { format, virtual_size, file_size: meta.len(), allocated_bytes })
}

/// The format of an image that begins with `head`. The backing file's name is not within it.
fn sniff(head: &[u8]) -> Result<ImageFormat, String> {
    let magic = |known: &&(usize, &[u8], ImageFormat)| {
        head.get(known.0..).is_some_and(|bytes| bytes.starts_with(known.1))
    };
    if head.starts_with(b"QFI\xfb") && be32(head, 4) != Some(1) {
        return parse_qcow2(head).map(ImageFormat::Qcow2);
    }
    Ok(MAGICS.iter().find(magic).map_or(ImageFormat::Raw, |(_, _, format)| format.clone()))
}

/// What begins like this, from this offset on, is no disk as it is.
const MAGICS: [(usize, &[u8], ImageFormat); 15] = [
    (0, b"QFI\xfb\0\0\0\x01", ImageFormat::Foreign("a qcow image of version 1")),
    (0, b"KDMV", ImageFormat::Foreign("a VMDK image")),
    (0, b"COWD", ImageFormat::Foreign("a VMDK image")),
    (0, b"# Disk DescriptorFile", ImageFormat::Foreign("the descriptor of a VMDK image")),
    (0, b"vhdxfile", ImageFormat::Foreign("a VHDX image")),
    (0, VHD, ImageFormat::Foreign("a VHD image")),
    (64, b"\x7f\x10\xda\xbe", ImageFormat::Foreign("a VDI image")),
    (0, b"QED\0", ImageFormat::Foreign("a QED image")),
    (0, b"WithoutFreeSpace", ImageFormat::Foreign("a Parallels image")),
    (0, b"WithouFreSpacExt", ImageFormat::Foreign("a Parallels image")),
    (0, b"\x1f\x8b", ImageFormat::Compressed("gunzip")),
    (0, b"\xfd7zXZ\0", ImageFormat::Compressed("unxz")),
    (0, b"\x28\xb5\x2f\xfd", ImageFormat::Compressed("unzstd")),
    (0, b"BZh", ImageFormat::Compressed("bunzip2")),
    (0, b"PK\x03\x04", ImageFormat::Compressed("unzip")),
];

/// What the footer of a VHD image begins with. One of a fixed size has no header: its first bytes are those of the disk.
const VHD: &[u8] = b"conectix";

/// How long that footer is, in bytes.
const VHD_FOOTER: u64 = 512;

fn ends_like_vhd(file: &File, length: u64) -> io::Result<bool> {
    let Some(at) = length.checked_sub(VHD_FOOTER) else { return Ok(false) };
    let mut magic = [0; VHD.len()];
    file.read_exact_at(&mut magic, at)?;
    Ok(magic == *VHD)
}

fn parse_qcow2(head: &[u8]) -> Result<Qcow2Header, String> {
    let cut = || "its header is cut off".to_owned();
    let version = be32(head, 4).ok_or_else(cut)?;
    if !matches!(version, 2 | 3) {
        return Err(format!("qcow2 version {version} is not known"));
    }
    let cluster_bits = be32(head, 20).ok_or_else(cut)?;
    if !(9..=21).contains(&cluster_bits) {
        return Err(format!("a cluster cannot have 2^{cluster_bits} bytes"));
    }
    let virtual_size = be64(head, 24).ok_or_else(cut)?;
    if virtual_size > i64::MAX.unsigned_abs() {
        return Err(format!("a disk cannot have {virtual_size} bytes"));
    }
    let encrypted = be32(head, 32).ok_or_else(cut)? != 0;
    let features = if version == 3 { be64(head, 72).ok_or_else(cut)? } else { 0 };
    if be64(head, 8).ok_or_else(cut)? != 0
        && !(1..=BACKING_MAX).contains(&be32(head, 16).ok_or_else(cut)?)
    {
        return Err("the name of its backing file has an impossible length".to_owned());
    }
    Ok(Qcow2Header {
        version,
        virtual_size,
        cluster_bits,
        backing_file: None,
        encrypted,
        incompatible_features: features,
    })
}

/// The name may lie anywhere in the file, so it is read apart. [`parse_qcow2`] has checked its length.
fn backing_file(file: &File, head: &[u8]) -> io::Result<Option<String>> {
    let (Some(offset), Some(length)) = (be64(head, 8), be32(head, 16)) else { return Ok(None) };
    if offset == 0 {
        return Ok(None);
    }
    let mut name = vec![0; usize::try_from(length.min(BACKING_MAX)).unwrap_or_default()];
    file.read_exact_at(&mut name, offset)?;
    Ok(Some(String::from_utf8_lossy(&name).into_owned()))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    field.try_into().ok().map(u32::from_be_bytes)
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    field.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(version: u32, features: u64) -> Vec<u8> {
        let mut head = vec![0; 104];
        head[..4].copy_from_slice(b"QFI\xfb");
        head[4..8].copy_from_slice(&version.to_be_bytes());
        head[20..24].copy_from_slice(&16_u32.to_be_bytes());
        head[24..32].copy_from_slice(&(10_u64 << 30).to_be_bytes());
        head[72..80].copy_from_slice(&features.to_be_bytes());
        head
    }

    fn with_backing(name: &str) -> Vec<u8> {
        let mut head = header(3, 0);
        head[8..16].copy_from_slice(&104_u64.to_be_bytes());
        head[16..20].copy_from_slice(&u32::try_from(name.len()).unwrap().to_be_bytes());
        head.extend(name.bytes());
        head
    }

    fn inspected(bytes: &[u8]) -> Result<DiskFormat, DiskError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        inspect(file.path())?.check_import(file.path())
    }

    #[test]
    fn a_plain_image_is_taken_in() {
        assert_eq!(inspected(&header(2, 0)).unwrap(), DiskFormat::Qcow2);
        assert_eq!(
            inspected(&header(3, DIRTY | COMPRESSION_TYPE | EXTENDED_L2)).unwrap(),
            DiskFormat::Qcow2
        );
        assert_eq!(inspected(&[0; 1024]).unwrap(), DiskFormat::Raw);
    }

    #[test]
    fn an_image_that_leads_elsewhere_is_refused() {
        let mut encrypted = header(3, 0);
        encrypted[35] = 2;
        for (bytes, words) in [
            (with_backing("/etc/shadow"), "\"/etc/shadow\""),
            (header(3, EXTERNAL_DATA), "another file"),
            (header(3, 1 << 40), "unknown features (0x10000000000)"),
            (encrypted, "encrypted"),
            (Vec::new(), "empty"),
            (vec![0; 513], "no multiple of 512"),
        ] {
            let error = inspected(&bytes).unwrap_err();
            assert!(matches!(error, DiskError::Refused { .. }), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn an_image_of_another_format_is_told_by_what_it_is_and_not_taken_for_sectors() {
        let mut vdi = b"<<< Oracle VM VirtualBox Disk Image >>>\n".to_vec();
        vdi.resize(1024, 0);
        vdi[64..68].copy_from_slice(&0xbeda_107f_u32.to_le_bytes());
        let mut fixed_vhd = vec![0; 4096];
        fixed_vhd[4096 - 512..][..8].copy_from_slice(VHD);
        let padded = |magic: &[u8]| [magic, &[0; 1024]].concat();
        for (bytes, words) in [
            (vdi, "a VDI image"),
            (fixed_vhd, "a VHD image"),
            (padded(b"conectix"), "a VHD image"),
            (padded(b"vhdxfile"), "a VHDX image"),
            (padded(b"KDMV\x01"), "a VMDK image"),
            (padded(b"COWD\x01"), "a VMDK image"),
            (padded(b"# Disk DescriptorFile\n"), "of a VMDK image"),
            (padded(b"QFI\xfb\0\0\0\x01"), "qcow image of version 1"),
        ] {
            let error = inspected(&bytes).unwrap_err();
            assert!(matches!(error, DiskError::Foreign { .. }), "{error}");
            assert!(error.to_string().contains(words), "{error}");
            assert!(error.to_string().contains("qemu-img convert -O qcow2"), "{error}");
        }
        let error = inspected(&padded(b"\x1f\x8b\x08")).unwrap_err();
        assert!(error.to_string().contains("unpack it first, with gunzip"), "{error}");
    }

    #[test]
    fn damage_is_told_from_refusal() {
        let mut clusters = header(3, 0);
        clusters[23] = 40;
        let mut long_name = with_backing("x");
        long_name[16..20].copy_from_slice(&5000_u32.to_be_bytes());
        for bytes in
            [header(4, 0), header(3, CORRUPT), header(3, 0)[..50].to_vec(), clusters, long_name]
        {
            let error = inspected(&bytes).unwrap_err();
            assert!(matches!(error, DiskError::Damaged { .. }), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [fifo.as_path(), directory.path(), Path::new("/dev/null")] {
            let error = inspect(path).unwrap_err();
            assert!(matches!(error, DiskError::Refused { .. }), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = sniff(&bytes);
            let _ = sniff(&[b"QFI\xfb\0\0\0\x03".as_slice(), &bytes].concat());
        }

        #[test]
        fn a_backing_file_anywhere_never_panics(offset in any::<u64>(), length in any::<u32>()) {
            let mut head = header(3, 0);
            head[8..16].copy_from_slice(&offset.to_be_bytes());
            head[16..20].copy_from_slice(&length.to_be_bytes());
            let _ = inspected(&head);
        }
    }
}
