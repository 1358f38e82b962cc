//! A history in one file: what a backup is, and the binary form of an export.
//!
//! ```text
//! offset  bytes  field
//!      0      8  magic "CCNBND\r\n"
//!      8      4  crc32 of bytes 12 to 127
//!     12      2  format version (1)
//!     14      2  flags: 1 a backup, 2 redacted
//!     16     16  uuid of the root
//!     32      8  sequence number of the first event
//!     40     32  hash of the frame before it (zeroes for the very first)
//!     72      8  wall clock when it was made, microseconds since 1970
//!     80      8  length of the stub, 0 if there is none
//!     88      8  zero
//!     96     32  in a later format: the version of the program that it needs, ASCII, zeroes after it
//!    128         stub: the state before the first event (see `checkpoint`), if that is not the very first
//!                frames, byte for byte
//!                end:
//!      0      8  magic "CCNEND\r\n"
//!      8     24  frames u64, events u64, last sequence number u64
//!     32     32  hash of the last frame
//!     64     32  blake3 of every byte before the end: the digest by which the bundle is known
//!     96      4  crc32 of the 96 bytes before
//! ```
//!
//! Nothing follows the end. It tells a whole bundle from one that was cut short, the digest a sound one from one that
//! was changed, and the chain from frame to frame one history from another.
//!
//! Segments are not in it: frames say where one was sealed, so that it can be cut into the same segments again.

use std::io;

use uuid::Uuid;

use crate::frame::{FrameError, Hash, Position, Seq};

mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{BundleReader, Bundled};
pub use write::BundleWriter;

/// The format that is written, and the newest that is read.
pub const BUNDLE_FORMAT: u16 = 1;
/// Bytes before the stub.
pub const BUNDLE_HEADER_LEN: usize = 128;
/// Bytes of the end.
const END_LEN: usize = 100;
const MAGIC: [u8; 8] = *b"CCNBND\r\n";
const END_MAGIC: [u8; 8] = *b"CCNEND\r\n";
const BACKUP: u16 = 1;
const REDACTED: u16 = 2;

/// What the start of a bundle says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleHeader {
    /// Whether it is a backup, from which a root can be restored; else it is an export.
    pub is_backup: bool,
    /// Whether names and the like were replaced by placeholders.
    pub is_redacted: bool,
    /// The root that it was made of.
    pub root: Uuid,
    /// Sequence number of the first event.
    pub first: Seq,
    /// Hash of the frame before it; zeroes for the very first.
    pub prev_hash: Hash,
    /// Wall clock when it was made, microseconds since 1970.
    pub made_us: i64,
    /// Length of the stub in bytes, 0 if there is none.
    pub stub_len: u64,
}

/// What a whole bundle holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BundleEnd {
    /// Frames.
    pub frames: u64,
    /// Events in these.
    pub events: u64,
    /// The last frame.
    pub last: Position,
    /// Digest of everything before the end.
    pub digest: Hash,
}

/// Why a bundle cannot be read, or not be believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleFault {
    /// The input failed.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// Something else.
    #[error("it is no backup or export of a journal: {what}; check the name of the file")]
    Foreign {
        /// What speaks against it.
        what: &'static str,
    },
    /// Written by a newer program.
    #[error("it has bundle format {version}, and this program reads up to {BUNDLE_FORMAT}; {}", crate::error::way_out(needs.as_deref()))]
    Newer {
        /// Its format.
        version: u16,
        /// The version that it says to need.
        needs: Option<String>,
    },
    /// A frame is damaged, or not the one that should follow.
    #[error("it is damaged after seq {seq}: {source}; use another copy")]
    Frame {
        /// Last good sequence number.
        seq: Seq,
        /// What is wrong.
        source: FrameError,
    },
    /// The end is missing.
    #[error("it is cut short after seq {seq}; use another copy")]
    CutShort {
        /// Last good sequence number.
        seq: Seq,
    },
    /// The end does not fit what is before it.
    #[error("it is damaged: {what}; use another copy")]
    End {
        /// What does not fit.
        what: &'static str,
    },
}

impl BundleHeader {
    /// The bytes at the start of the file.
    #[must_use]
    pub fn encode(&self) -> [u8; BUNDLE_HEADER_LEN] {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let flags = flag(self.is_backup, BACKUP) | flag(self.is_redacted, REDACTED);
        let mut out = Vec::with_capacity(BUNDLE_HEADER_LEN);
        out.extend_from_slice(&BUNDLE_FORMAT.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(self.root.as_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.prev_hash);
        out.extend_from_slice(&self.made_us.to_le_bytes());
        out.extend_from_slice(&self.stub_len.to_le_bytes());
        out.resize(BUNDLE_HEADER_LEN - 12, 0);
        let mut header = [0; BUNDLE_HEADER_LEN];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&crc32fast::hash(&out).to_le_bytes());
        header[12..].copy_from_slice(&out);
        header
    }

    /// Reads the start of a bundle.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, BundleFault> {
        let Some(header) = bytes.first_chunk::<BUNDLE_HEADER_LEN>() else {
            let begins = MAGIC.starts_with(bytes.get(..8.min(bytes.len())).unwrap_or_default());
            let what = if begins { "it is cut short" } else { "it does not begin like one" };
            return Err(BundleFault::Foreign { what });
        };
        if header[..8] != MAGIC {
            return Err(BundleFault::Foreign { what: "it does not begin like one" });
        }
        if crc32fast::hash(&header[12..]).to_le_bytes() != header[8..12] {
            return Err(BundleFault::End { what: "the checksum of its header does not match" });
        }
        let version = u16::from_le_bytes([header[12], header[13]]);
        let flags = u16::from_le_bytes([header[14], header[15]]);
        if version != BUNDLE_FORMAT || flags & !(BACKUP | REDACTED) != 0 {
            let needs = crate::error::version_in(&header[96..]);
            return Err(BundleFault::Newer { version: version.max(BUNDLE_FORMAT), needs });
        }
        Ok(Self {
            is_backup: flags & BACKUP != 0,
            is_redacted: flags & REDACTED != 0,
            root: Uuid::from_bytes(array(header, 16)),
            first: u64::from_le_bytes(array(header, 32)),
            prev_hash: array(header, 40),
            made_us: i64::from_le_bytes(array(header, 72)),
            stub_len: u64::from_le_bytes(array(header, 80)),
        })
    }
}

impl BundleEnd {
    fn encode(&self) -> Vec<u8> {
        let mut out = END_MAGIC.to_vec();
        for number in [self.frames, self.events, self.last.seq] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.last.hash);
        out.extend_from_slice(&self.digest);
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }
}

/// `N` bytes at a place that is within the header.
fn array<const N: usize>(header: &[u8; BUNDLE_HEADER_LEN], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&header[at..at + N]);
    array
}
