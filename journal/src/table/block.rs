//! One block of a table: a few sorted entries under one checksum.

use std::ops::Range;

use super::footer::{le_u32, le_u64};
use super::{MAX_KEY, MAX_VALUE};

/// A block is closed before it grows beyond this many bytes; a single large entry may make it
/// longer.
pub(super) const BLOCK_LEN: usize = 4096;
/// The value length that says "deleted".
const DELETED: u32 = u32::MAX;
const ENTRY_HEADER: usize = 6;
const CRC_LEN: usize = 4;

/// Where a block lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pointer {
    /// Byte offset in the file.
    pub(super) offset: u64,
    /// Length in bytes, checksum included.
    pub(super) len: u32,
}

impl Pointer {
    pub(super) fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }
}

/// Length that an entry takes in a block, in bytes.
pub(super) fn entry_len(key: &[u8], value: Option<&[u8]>) -> usize {
    ENTRY_HEADER + key.len() + value.map_or(0, <[u8]>::len)
}

/// Appends an entry whose sizes were checked against [`MAX_KEY`] and [`MAX_VALUE`].
pub(super) fn push_entry(block: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    debug_assert!(key.len() <= MAX_KEY && value.is_none_or(|value| value.len() <= MAX_VALUE));
    let key_len = u16::try_from(key.len()).unwrap_or(u16::MAX);
    let value_len = value.map_or(DELETED, |value| u32::try_from(value.len()).unwrap_or(DELETED));
    block.extend_from_slice(&key_len.to_le_bytes());
    block.extend_from_slice(&value_len.to_le_bytes());
    block.extend_from_slice(key);
    block.extend_from_slice(value.unwrap_or_default());
}

/// The checksum of a block that lies at `offset`.
pub(super) fn checksum(offset: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

#[derive(Debug)]
struct Slot {
    key: Range<usize>,
    value: Option<Range<usize>>,
}

/// A block that was read and found whole: its checksum holds, its entries fill it exactly, and
/// their keys ascend.
#[derive(Debug)]
pub(super) struct Block {
    offset: u64,
    bytes: Vec<u8>,
    slots: Vec<Slot>,
}

impl Block {
    pub(super) fn decode(bytes: Vec<u8>, offset: u64) -> Result<Self, &'static str> {
        let end = bytes.len().checked_sub(CRC_LEN).filter(|end| *end > 1);
        let end = end.ok_or("it is shorter than the shortest block")?;
        if checksum(offset, &bytes[..end]).to_le_bytes() != bytes[end..] {
            return Err("its checksum does not match");
        }
        let mut slots: Vec<Slot> = Vec::new();
        let mut at = 1;
        while at < end {
            let slot = parse_slot(&bytes[..end], at).ok_or("an entry reaches beyond its end")?;
            if slots.last().is_some_and(|last| bytes[last.key.clone()] >= bytes[slot.key.clone()]) {
                return Err("its keys do not ascend");
            }
            at = slot.value.as_ref().map_or(slot.key.end, |value| value.end);
            slots.push(slot);
        }
        Ok(Self { offset, bytes, slots })
    }

    pub(super) fn level(&self) -> u8 {
        self.bytes[0]
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The key of an entry; a block always has at least one.
    pub(super) fn key(&self, slot: usize) -> &[u8] {
        &self.bytes[self.slots[slot].key.clone()]
    }

    pub(super) fn value(&self, slot: usize) -> Option<&[u8]> {
        self.slots[slot].value.clone().map(|value| &self.bytes[value])
    }

    /// The child that an entry of a block above level 0 names.
    pub(super) fn pointer(&self, slot: usize) -> Option<Pointer> {
        let value = self.value(slot).filter(|value| value.len() == 12)?;
        Some(Pointer { offset: le_u64(value), len: le_u32(&value[8..]) })
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        self.last_at_or_below(key).filter(|slot| self.key(*slot) == key)
    }

    /// The last entry whose key is at or below `key`.
    pub(super) fn last_at_or_below(&self, key: &[u8]) -> Option<usize> {
        self.slots.partition_point(|slot| &self.bytes[slot.key.clone()] <= key).checked_sub(1)
    }

    /// The first entry whose key is at or above `key`; the number of entries if there is none.
    pub(super) fn first_at_or_above(&self, key: &[u8]) -> usize {
        self.slots.partition_point(|slot| &self.bytes[slot.key.clone()] < key)
    }
}

fn parse_slot(bytes: &[u8], at: usize) -> Option<Slot> {
    let header = bytes.get(at..at.checked_add(ENTRY_HEADER)?)?;
    let key_len = usize::from(u16::from_le_bytes([header[0], header[1]]));
    let value_len = le_u32(&header[2..]);
    let key = at + ENTRY_HEADER..(at + ENTRY_HEADER).checked_add(key_len)?;
    let value = match value_len {
        DELETED => None,
        len => Some(key.end..key.end.checked_add(usize::try_from(len).ok()?)?),
    };
    let end = value.as_ref().map_or(key.end, |value| value.end);
    (key_len <= MAX_KEY && end <= bytes.len()).then_some(Slot { key, value })
}
