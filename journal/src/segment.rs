//! Segment files: `seg/<first seq, 20 digits>.seg`, a header and then frames back to back.
//!
//! ```text
//! offset  bytes  field
//!      0      8  magic "CCNSEG\r\n"
//!      8      4  crc32 of bytes 12 to 127
//!     12      2  format version (1)
//!     14      2  zero
//!     16     16  uuid of the root that the journal belongs to
//!     32      8  sequence number of the first event
//!     40     32  hash of the last frame of the segment before (zeroes for the first)
//!     72      8  wall clock at creation, microseconds since 1970
//!     80      8  offset of the end of the segment before (0 for the first)
//!     88      4  length of the last frame of the segment before (0 for the first)
//!     92      4  zero
//!     96     32  in a later format: the version of the program that it needs, ASCII, zeroes after it
//!    128         frames
//! ```
//!
//! A segment appears under its name complete with its header, and takes frames only once the seal at
//! the end of the segment before names it and is durable. It is never copied or renamed, and no byte of it
//! is ever cut off. Blocks are allocated past its end while it is live: the reserve that can still be written
//! on a full disk.
//! After its last frame there is either the end of the file or nothing but zeroes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use uuid::Uuid;

use crate::error::JournalError;
use crate::files;
use crate::frame::{Hash, Seq};
use crate::slow::{For, watched};
#[cfg(test)]
use crate::testing::disk as calls;

/// The calls on which every acknowledgement rests. Tests put a disk in their place that fails and forgets.
#[cfg(not(test))]
mod calls {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    pub(super) fn opened(_: &File, _: &Path) {}

    pub(super) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    pub(super) fn sync(file: &File) -> io::Result<()> {
        file.sync_data()
    }
}

/// Bytes before the first frame.
pub const HEADER_LEN: u64 = 128;
/// The format that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;

/// Bytes past the end of the live segment whose blocks are allocated, for whoever may write on a full
/// disk: some hundred frames.
pub const RESERVE: u64 = 256 * 1024;
/// Blocks are allocated this many bytes further ahead, so that it is not done for each frame.
const STEP: u64 = 64 * 1024;
/// What the block count of a file may tell too much, in bytes: it includes the file system's own index.
const SLACK: u64 = 16 * 1024;
const HEADER_BYTES: usize = 128;
const MAGIC: [u8; 8] = *b"CCNSEG\r\n";

/// Which room a frame may be written into when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// All but the reserve.
    Ordinary,
    /// The reserve too.
    Reserve,
}

/// What the start of a segment file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The root that the journal belongs to.
    pub root: Uuid,
    /// Sequence number of the first event.
    pub first: Seq,
    /// Hash of the last frame of the segment before; zeroes for the first.
    pub prev_hash: Hash,
    /// Wall clock at creation, microseconds since 1970.
    pub created_us: i64,
    /// Where the last frame of the segment before ends, in bytes; 0 for the first. A hint: it shortens
    /// the way to what lies near the end of that segment.
    pub prev_end: u64,
    /// Length of that frame in bytes; 0 for the first.
    pub prev_last_len: u32,
}

impl SegmentHeader {
    /// The bytes at the start of the file.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(self.root.as_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.prev_hash);
        out.extend_from_slice(&self.created_us.to_le_bytes());
        out.extend_from_slice(&self.prev_end.to_le_bytes());
        out.extend_from_slice(&self.prev_last_len.to_le_bytes());
        out.resize(HEADER_BYTES - 12, 0);
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&crc32fast::hash(&out).to_le_bytes());
        header[12..].copy_from_slice(&out);
        header
    }

    /// Reads the start of a segment file.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let header = bytes.first_chunk::<HEADER_BYTES>().ok_or(HeaderFault::Short(bytes.len()))?;
        if header[..8] != MAGIC {
            return Err(HeaderFault::Magic);
        }
        if crc32fast::hash(&header[12..]).to_le_bytes() != header[8..12] {
            return Err(HeaderFault::Checksum);
        }
        let version = u16::from_le_bytes([header[12], header[13]]);
        if version != FORMAT_VERSION {
            let needs = crate::error::version_in(&header[96..]);
            return Err(HeaderFault::Version { version, needs });
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[at..at + 8]);
            word
        };
        let mut root = [0; 16];
        root.copy_from_slice(&header[16..32]);
        let mut prev_hash = [0; 32];
        prev_hash.copy_from_slice(&header[40..72]);
        Ok(Self {
            root: Uuid::from_bytes(root),
            first: u64::from_le_bytes(word(32)),
            prev_hash,
            created_us: i64::from_le_bytes(word(72)),
            prev_end: u64::from_le_bytes(word(80)),
            prev_last_len: u32::from_le_bytes([header[88], header[89], header[90], header[91]]),
        })
    }
}

/// What is wrong with the header of a segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// The file ends inside the header.
    #[error("its header is cut short at {0} bytes")]
    Short(usize),
    /// Not a segment.
    #[error("it does not start like a segment")]
    Magic,
    /// Damaged.
    #[error("the checksum of its header does not match")]
    Checksum,
    /// Written by a newer program.
    #[error("its format version is {version}; {}", crate::error::way_out(needs.as_deref()))]
    Version {
        /// Its format.
        version: u16,
        /// The version of the program that it says to need.
        needs: Option<String>,
    },
}

/// An open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
    identity: (u64, u64),
}

impl Segment {
    /// Opens `path` and checks its header. `Ok(None)` if there is no such file.
    pub(crate) fn open(path: &Path, first: Seq) -> Result<Option<Self>, JournalError> {
        let file = match open_file(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(JournalError::io("open", path)(error)),
        };
        let mut bytes = [0; HEADER_BYTES];
        let len = read_at_most(&file, &mut bytes, 0).map_err(JournalError::io("read", path))?;
        let header = SegmentHeader::decode(&bytes[..len]).map_err(|fault| match fault {
            HeaderFault::Version { version, needs } if version > FORMAT_VERSION => {
                JournalError::NewerFormat {
                    path: path.to_owned(),
                    what: "segment format",
                    version: u32::from(version),
                    needs,
                }
            }
            fault => damaged_header(path, first, fault.to_string()),
        })?;
        if header.first != first {
            return Err(damaged_header(
                path,
                first,
                format!("it says to begin at {}", header.first),
            ));
        }
        let meta = file.metadata().map_err(JournalError::io("look at", path))?;
        let identity = (meta.dev(), meta.ino());
        calls::opened(&file, path);
        Ok(Some(Self { file, path: path.to_owned(), header, identity }))
    }

    /// Whether the path still leads to this very file.
    pub(crate) fn is_in_place(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity)
    }

    pub(crate) fn len(&self) -> Result<u64, JournalError> {
        let meta = self.file.metadata().map_err(JournalError::io("look at", &self.path))?;
        Ok(meta.len())
    }

    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize, JournalError> {
        read_at_most(&self.file, buffer, offset).map_err(JournalError::io("read", &self.path))
    }

    /// Makes sure that a frame of `len` bytes at `end`, the end of what was written, will find its blocks
    /// allocated, and leaves the reserve behind it to those who may use it.
    pub(crate) fn find_room(&self, end: u64, len: usize, room: Room) -> Result<(), JournalError> {
        let meta = self.file.metadata().map_err(JournalError::io(FIND_ROOM, &self.path))?;
        let allocated = meta.blocks().saturating_mul(512).saturating_sub(SLACK);
        let needed = end.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        let ordinary = needed.saturating_add(RESERVE);
        let goal = if room == Room::Reserve { needed } else { ordinary };
        if allocated >= goal {
            return Ok(());
        }
        match allocate(&self.file, end, ordinary + STEP)
            .or_else(|_| allocate(&self.file, end, goal))
        {
            Ok(()) => Ok(()),
            Err(errno) if room == Room::Ordinary && is_full(errno) => {
                Err(JournalError::OnlyReserveLeft {
                    path: self.path.clone(),
                    kept: allocated.saturating_sub(end),
                    source: errno.into(),
                })
            }
            Err(errno) => Err(JournalError::errno(FIND_ROOM, &self.path)(errno)),
        }
    }

    /// Gives back what was allocated past the end: this segment is sealed. The caller holds the lock.
    pub(crate) fn release_reserve(&self) {
        // Cut to its own length it keeps every byte. Where that fails, some blocks stay taken.
        let released = self.file.metadata().and_then(|meta| self.file.set_len(meta.len()));
        if let Err(error) = released {
            tracing::debug!(%error, path = %self.path.display(), "the reserve stays with a sealed segment");
        }
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), JournalError> {
        calls::write(&self.file, bytes, offset).map_err(JournalError::io("write to", &self.path))
    }

    pub(crate) fn sync(&self) -> Result<(), JournalError> {
        watched(For::Sync, &self.path, || calls::sync(&self.file))
            .map_err(JournalError::io("sync", &self.path))
    }
}

const FIND_ROOM: &str = "find room in";

/// Allocates blocks from `from` to `to` without changing the length of the file.
fn allocate(file: &File, from: u64, to: u64) -> Result<(), Errno> {
    loop {
        match fallocate(file, FallocateFlags::KEEP_SIZE, from, to.saturating_sub(from)) {
            Err(Errno::INTR) => {}
            // A file system that cannot do it says at the write whether there is room.
            Ok(()) | Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

/// Writes a new segment durably under a temporary name, with the reserve that it begins with. Where that
/// fails, the room it took is given back.
pub(crate) fn write_new(
    path: &Path,
    header: &SegmentHeader,
    mode: u32,
) -> Result<(), JournalError> {
    let written = create_file(path, mode).and_then(|file| {
        allocate(&file, 0, HEADER_LEN + RESERVE + STEP)
            .map_err(JournalError::errno(FIND_ROOM, path))?;
        fill(&file, path, &header.encode())
    });
    if written.is_err() {
        // What stays is replaced by the next attempt.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn damaged_header(path: &Path, seq: Seq, what: String) -> JournalError {
    JournalError::Damaged { path: path.to_owned(), seq, offset: 0, what }
}

/// Opens for writing, or for reading alone where that is all one may.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    match files::open_regular(path, OpenOptions::new().read(true).write(true)) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            files::open_to_read(path)
        }
        other => other,
    }
}

fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = offset + u64::try_from(done).unwrap_or_default();
        match file.read_at(rest, at) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes a whole file durably under a temporary name next to `path`.
pub(crate) fn write_durably(path: &Path, bytes: &[u8], mode: u32) -> Result<(), JournalError> {
    fill(&create_file(path, mode)?, path, bytes)
}

fn create_file(path: &Path, mode: u32) -> Result<File, JournalError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    files::open_regular(path, &mut options).map_err(JournalError::io("create", path))
}

fn fill(file: &File, path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    file.write_all_at(bytes, 0).map_err(JournalError::io("write to", path))?;
    watched(For::Sync, path, || file.sync_all()).map_err(JournalError::io("sync", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SegmentHeader {
        SegmentHeader {
            root: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
            first: 10_001,
            prev_hash: [0x5a; 32],
            created_us: 1_790_000_000_123_456,
            prev_end: 4_200_000,
            prev_last_len: 217,
        }
    }

    #[test]
    fn version_1_header_is_golden() {
        let golden = include_bytes!("../tests/golden/segment-header-v1.bin");
        assert_eq!(SegmentHeader::decode(golden), Ok(sample()));
        assert_eq!(&sample().encode(), golden);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let bytes = sample().encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(SegmentHeader::decode(&bytes[..len]), Err(HeaderFault::Short(len)));
        }
    }
}
