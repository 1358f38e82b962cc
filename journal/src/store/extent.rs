//! How far a generation reaches: kept in it under a key of its own, and beside it in a small file.
//!
//! The file (`STAMP`) is written after every flush, so it tells later whether the database lost
//! something that it had. It is replaced whole but not synced: an old one promises less, never
//! more.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::files;
use crate::frame::{Frame, Hash, Position, Seq};

const MAGIC: &[u8; 8] = b"CCNSTAMP";
const FORMAT: u8 = 1;
const EXTENT_LEN: usize = 1 + 8 + 32 + 8 + 32 + 8 + 8 + 8;
const STAMP_LEN: usize = 8 + EXTENT_LEN + 8 + 4;

/// The events of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// First sequence number, also the name of the generation.
    pub(super) first: Seq,
    /// Hash of the frame before the first.
    pub(super) before: Hash,
    /// The last frame held; `first - 1` and `before` if there is none yet.
    pub(super) last: Position,
    /// First sequence number of the next generation, once the last frame held is a seal.
    pub(super) next: Option<Seq>,
    /// Earliest and latest wall clock, in microseconds since 1970.
    pub(super) wall: (i64, i64),
}

impl Extent {
    pub(super) fn empty(first: Seq, before: Hash) -> Self {
        let last = Position { seq: first.saturating_sub(1), hash: before };
        Self { first, before, last, next: None, wall: (i64::MAX, i64::MIN) }
    }

    /// The extent once it holds `frame` too.
    pub(super) fn with(mut self, frame: &Frame, hash: Hash) -> Self {
        self.last = frame.position(hash);
        self.next = frame.entries.iter().find_map(crate::reserved::sealed_next);
        let wall = frame.header.wall_us;
        self.wall = (self.wall.0.min(wall), self.wall.1.max(wall));
        self
    }

    /// Format (1), first (8), hash before (32), last (8), hash (32), next or 0 (8), earliest and
    /// latest wall clock (8 each); little-endian.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&self.first.to_le_bytes());
        bytes.extend_from_slice(&self.before);
        bytes.extend_from_slice(&self.last.seq.to_le_bytes());
        bytes.extend_from_slice(&self.last.hash);
        bytes.extend_from_slice(&self.next.unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(&self.wall.0.to_le_bytes());
        bytes.extend_from_slice(&self.wall.1.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; EXTENT_LEN] = bytes.try_into().ok()?;
        let number = |at: usize| bytes[at..].first_chunk().map(|chunk| u64::from_le_bytes(*chunk));
        let hash = |at: usize| bytes[at..].first_chunk::<32>().copied();
        let extent = Self {
            first: number(1)?,
            before: hash(9)?,
            last: Position { seq: number(41)?, hash: hash(49)? },
            next: number(81).filter(|next| *next > 0),
            wall: (number(89)?.cast_signed(), number(97)?.cast_signed()),
        };
        let sane = extent.first > 0
            && extent.last.seq >= extent.first - 1
            && extent.next.is_none_or(|next| Some(next) == extent.last.seq.checked_add(1));
        (bytes[0] == FORMAT && sane).then_some(extent)
    }
}

/// Nothing there, or something else than a file.
fn is_no_stamp(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    files::open_to_read(path)?.take(STAMP_LEN as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What a generation had when it was last flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) extent: Extent,
    /// Length of the database file in bytes.
    pub(super) db_len: u64,
}

impl Stamp {
    /// Reads the stamp in a generation's directory; `None` if it is not there or not whole.
    pub(super) fn read(dir: &Path) -> io::Result<Option<Self>> {
        match read_bounded(&dir.join("STAMP")) {
            Ok(bytes) => Ok(Self::decode(&bytes)),
            Err(error) if is_no_stamp(error.kind()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        let path = dir.join("STAMP");
        let writing = files::writing_path(&path);
        files::create(&writing)?.write_all(&self.encode())?;
        fs::rename(writing, path)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.extent.encode());
        bytes.extend_from_slice(&self.db_len.to_le_bytes());
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; STAMP_LEN] = bytes.try_into().ok()?;
        let (body, crc) = bytes.split_at(STAMP_LEN - 4);
        if crc != crc32fast::hash(body).to_le_bytes() || &body[..8] != MAGIC {
            return None;
        }
        let (extent, db_len) = body[8..].split_at(EXTENT_LEN);
        let db_len = u64::from_le_bytes(db_len.try_into().ok()?);
        Some(Self { extent: Extent::decode(extent)?, db_len })
    }
}
