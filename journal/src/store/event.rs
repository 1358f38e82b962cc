//! Events as the store keeps them, and the keys under which they are found.
//!
//! | Key | Value |
//! |---|---|
//! | `e` seq | the event |
//! | `s` subject length (1), subject, seq | |
//! | `o` operation id (16), seq | |
//! | `t` wall clock, seq | |
//! | `m` | how far the generation reaches |
//!
//! Numbers in keys are big-endian, so that their order is the order of the keys; the wall clock has
//! its sign bit flipped for the same reason. Everything of a frame is written in one batch.
//!
//! An event is kept as crc32 of the rest (4), format (1), its index in its frame (2), number of
//! events of the frame (2), hash of the frame (32), and a frame that holds this one event.

use uuid::Uuid;

use crate::frame::{Entry, Frame, FrameError, FrameHeader, Hash, Seq, Subject};

const FORMAT: u8 = 1;
const HEAD_LEN: usize = 4 + 1 + 2 + 2 + 32;
const SEQ_LEN: usize = 8;

/// One event with all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its sequence number.
    pub seq: Seq,
    /// Hash of the frame that it came in.
    pub hash: Hash,
    /// Header of that frame: when, by whom, after what.
    pub header: FrameHeader,
    /// The event.
    pub entry: Entry,
}

/// The first bytes of keys. The letters are stored: never reuse one.
pub(super) const EVENT: u8 = b'e';
pub(super) const SUBJECT: u8 = b's';
pub(super) const OPERATION: u8 = b'o';
pub(super) const TIME: u8 = b't';
/// The key of the extent.
pub(super) const EXTENT_KEY: &[u8] = b"m";

pub(super) fn event_key(seq: Seq) -> Vec<u8> {
    with_seq(vec![EVENT], seq)
}

/// The sequence number that ends a key.
pub(super) fn seq_of(key: &[u8]) -> Option<Seq> {
    key.last_chunk::<SEQ_LEN>().map(|bytes| Seq::from_be_bytes(*bytes))
}

/// What the keys of all events about a subject begin with.
pub(super) fn subject_prefix(subject: &Subject) -> Vec<u8> {
    let text = subject.as_str().as_bytes();
    // A subject is at most 40 bytes long.
    let len = u8::try_from(text.len()).unwrap_or(u8::MAX);
    [&[SUBJECT, len], text].concat()
}

/// What the keys of all events of an operation begin with.
pub(super) fn operation_prefix(operation: Uuid) -> Vec<u8> {
    [&[OPERATION][..], operation.as_bytes()].concat()
}

/// What the keys of all events of one microsecond begin with.
pub(super) fn time_prefix(wall_us: i64) -> Vec<u8> {
    let ordered = wall_us.cast_unsigned() ^ (1 << 63);
    [&[TIME][..], &ordered.to_be_bytes()].concat()
}

/// The index keys of an event.
pub(super) fn index_keys(header: &FrameHeader, entry: &Entry, seq: Seq) -> [Vec<u8>; 3] {
    [
        with_seq(subject_prefix(&entry.subject), seq),
        with_seq(operation_prefix(header.operation), seq),
        with_seq(time_prefix(header.wall_us), seq),
    ]
}

/// The key that follows all keys with this prefix and any sequence number.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    [prefix, &[0xFF; SEQ_LEN + 1]].concat()
}

fn with_seq(mut key: Vec<u8>, seq: Seq) -> Vec<u8> {
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

/// The bytes of one event of a frame.
pub(super) fn encode(
    header: &FrameHeader,
    hash: Hash,
    index: u16,
    entry: &Entry,
) -> Result<Vec<u8>, FrameError> {
    let seq = header.seq.saturating_add(u64::from(index));
    let header_of_one = FrameHeader { seq, count: 1, ..header.clone() };
    let frame = Frame { header: header_of_one, entries: vec![entry.clone()] }.encode()?;
    let mut bytes = vec![0; 4];
    bytes.push(FORMAT);
    bytes.extend_from_slice(&index.to_le_bytes());
    bytes.extend_from_slice(&header.count.to_le_bytes());
    bytes.extend_from_slice(&hash);
    bytes.extend_from_slice(&frame);
    let crc = crc32fast::hash(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

/// Reads what [`encode`] made for the event `seq`.
pub(super) fn decode(bytes: &[u8], seq: Seq) -> Result<StoredEvent, String> {
    let (head, frame) = bytes.split_at_checked(HEAD_LEN).ok_or("an event is cut short")?;
    if head[..4] != crc32fast::hash(&bytes[4..]).to_le_bytes() {
        return Err(format!("the checksum of event {seq} does not match"));
    }
    if head[4] != FORMAT {
        return Err(format!("event {seq} has format {}, this program reads {FORMAT}", head[4]));
    }
    let (frame, len, _) = Frame::decode(frame).map_err(|error| format!("event {seq}: {error}"))?;
    let index = u16::from_le_bytes([head[5], head[6]]);
    let count = u16::from_le_bytes([head[7], head[8]]);
    let mut hash = [0; 32];
    hash.copy_from_slice(&head[9..]);
    let Frame { mut header, mut entries } = frame;
    let first = header.seq.checked_sub(u64::from(index));
    let (Some(entry), Some(first)) = (entries.pop(), first) else {
        return Err(format!("event {seq} has no content"));
    };
    let whole = entries.is_empty() && HEAD_LEN + len == bytes.len() && index < count;
    if header.seq != seq || !whole {
        return Err(format!("event {seq} lies under the wrong key"));
    }
    (header.seq, header.count) = (first, count);
    Ok(StoredEvent { seq, hash, header, entry })
}
