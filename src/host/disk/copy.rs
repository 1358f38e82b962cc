//! Copying a disk image: shared blocks where the file system can, else the data without the holes.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use rustix::fs::{copy_file_range, ioctl_ficlone};

use super::{DiskError, create_anew, io_error, partial, publish};

/// How an image was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMethod {
    /// Both files share their blocks until one is written.
    Reflink,
    /// The data was copied, holes stayed holes.
    Sparse,
}

/// Copies the image `from` to `to`, whole or not at all. A `to` that exists is replaced.
pub fn copy_image(from: &Path, to: &Path) -> Result<CopyMethod, DiskError> {
    let source = File::open(from).map_err(io_error("open", from))?;
    let path = partial(to);
    let copy = create_anew(&path)?;
    let method = match ioctl_ficlone(&copy, &source) {
        Ok(()) => CopyMethod::Reflink,
        // Every other failure shows up again in the copy, with its own words.
        Err(_) => {
            copy_sparse(&source, &copy).map_err(io_error("copy", from))?;
            CopyMethod::Sparse
        }
    };
    publish(&path, to)?;
    Ok(method)
}

fn copy_sparse(source: &File, copy: &File) -> io::Result<()> {
    let length = source.metadata()?.len();
    copy.set_len(length)?;
    let mut at = 0;
    while let Some((start, end)) = next_data(source, at)? {
        copy_range(source, copy, start, end)?;
        at = end;
    }
    Ok(())
}

/// The next range of data at or after `at`; `None` if only a hole follows.
fn next_data(file: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let seek = |offset: u64, whence| {
        let offset = i64::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
        lseek(file, offset, whence).map(i64::unsigned_abs)
    };
    let start = match seek(at, Whence::SeekData) {
        Ok(start) => start,
        Err(Errno::ENXIO) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    Ok(Some((start, seek(start, Whence::SeekHole)?)))
}

fn copy_range(source: &File, copy: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let left = usize::try_from(end - from).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(source, Some(&mut from), copy, Some(&mut to), left) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Across file systems, some kernels and some file systems refuse.
            Err(
                rustix::io::Errno::XDEV | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL,
            ) => {
                return copy_by_hand(source, copy, from, end);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(source: &File, copy: &File, start: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let mut block = vec![0; 1 << 20];
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(block.len());
        let window = block.get_mut(..wanted).unwrap_or_default();
        source.read_exact_at(window, at)?;
        copy.write_all_at(window, at)?;
        at += wanted as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    fn image_with_holes(path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(64 << 20).unwrap();
        for at in [0, 5 << 20, (64 << 20) - 4096] {
            file.write_all_at(&[7; 4096], at).unwrap();
        }
    }

    #[test]
    fn a_copy_is_equal_and_as_sparse() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        image_with_holes(&from);
        copy_image(&from, &to).unwrap();
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
        let blocks = std::fs::metadata(&to).unwrap().blocks();
        assert!(blocks * 512 < 1 << 20, "{blocks} blocks");
    }

    #[test]
    fn every_way_of_copying_gives_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let from = directory.path().join("from");
        image_with_holes(&from);
        let source = File::open(&from).unwrap();
        let sparse = create_anew(&directory.path().join("sparse")).unwrap();
        copy_sparse(&source, &sparse).unwrap();
        let by_hand = create_anew(&directory.path().join("by-hand")).unwrap();
        copy_by_hand(&source, &by_hand, 0, 64 << 20).unwrap();
        let expected = std::fs::read(&from).unwrap();
        for name in ["sparse", "by-hand"] {
            assert!(std::fs::read(directory.path().join(name)).unwrap() == expected, "{name}");
        }
    }

    #[test]
    fn a_failed_copy_leaves_the_target_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("to");
        std::fs::write(&to, "before").unwrap();
        let error = copy_image(&directory.path().join("absent"), &to).unwrap_err();
        assert!(matches!(error, DiskError::Io { action: "open", .. }), "{error}");
        assert_eq!(std::fs::read(&to).unwrap(), b"before");
    }
}
