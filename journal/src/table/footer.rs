//! The first and the last bytes of a table file.

use super::block::Pointer;
use super::{TABLE_FORMAT, TableId};

const MAGIC: &[u8; 8] = b"CCNTABLE";
const END_MAGIC: &[u8; 8] = b"TABLEEND";

/// Length of the header in bytes: magic (8), format (2), zeroes (6).
pub(super) const HEADER_LEN: usize = 16;
/// Length of the footer in bytes.
pub(super) const FOOTER_LEN: usize = 76;

/// The header of the newest format.
pub(super) fn header() -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&TABLE_FORMAT.to_le_bytes());
    bytes
}

/// The format that a header names; `None` if it is not a table's.
pub(super) fn header_format(bytes: &[u8; HEADER_LEN]) -> Option<u16> {
    let (magic, rest) = bytes.split_at(8);
    let zeroes = rest[2..].iter().all(|byte| *byte == 0);
    (magic == MAGIC && zeroes).then(|| u16::from_le_bytes([rest[0], rest[1]]))
}

/// The last bytes of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Footer {
    /// Height of the root block above the entries.
    pub(super) root_level: u8,
    /// Where the root block lies; of length 0 if the table has no entries.
    pub(super) root: Pointer,
    /// What the table is.
    pub(super) id: TableId,
}

impl Default for Footer {
    fn default() -> Self {
        Self {
            root_level: 0,
            root: Pointer::default(),
            id: TableId { entries: 0, file_len: 0, digest: [0; 32] },
        }
    }
}

impl Footer {
    /// Magic (8), format (2), root level (1), zero (1), root length (4), root offset (8), entries
    /// (8), file length (8), digest (32), crc32 of the 72 bytes before (4).
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FOOTER_LEN);
        bytes.extend_from_slice(END_MAGIC);
        bytes.extend_from_slice(&TABLE_FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[self.root_level, 0]);
        bytes.extend_from_slice(&self.root.len.to_le_bytes());
        bytes.extend_from_slice(&self.root.offset.to_le_bytes());
        bytes.extend_from_slice(&self.id.entries.to_le_bytes());
        bytes.extend_from_slice(&self.id.file_len.to_le_bytes());
        bytes.extend_from_slice(&self.id.digest);
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; FOOTER_LEN]) -> Result<Self, &'static str> {
        let (body, crc) = bytes.split_at(FOOTER_LEN - 4);
        if crc != crc32fast::hash(body).to_le_bytes() {
            return Err("its checksum does not match");
        }
        if &body[..8] != END_MAGIC || body[8..10] != TABLE_FORMAT.to_le_bytes() || body[11] != 0 {
            return Err("it does not end as a table does");
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(&body[40..72]);
        Ok(Self {
            root_level: body[10],
            root: Pointer { len: le_u32(&body[12..16]), offset: le_u64(&body[16..24]) },
            id: TableId { entries: le_u64(&body[24..32]), file_len: le_u64(&body[32..40]), digest },
        })
    }
}

/// Reads the first four bytes, or as many as there are.
pub(super) fn le_u32(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Reads the first eight bytes, or as many as there are.
pub(super) fn le_u64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
