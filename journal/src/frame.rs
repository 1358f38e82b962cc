//! Frames: one decision each, whole under one checksum, chained by hash.
//!
//! A frame carries the events of one decision. It is there wholly or not at all, because a single
//! crc covers everything after it. All integers are little-endian.
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic "CCNF"
//!      4      4  crc32 of every byte from 8 to the end of the frame
//!      8      1  header version (1)
//!      9      1  codec of the bodies
//!     10      2  flags
//!     12      4  length of the whole frame, magic included
//!     16      4  length of the frame before it in the same segment, 0 for the first
//!     20      4  ordinal of the frame within its operation
//!     24      8  seq of the first event
//!     32      8  wall clock, microseconds since 1970 (signed)
//!     40      8  CLOCK_BOOTTIME, microseconds
//!     48     16  boot id
//!     64     16  operation id
//!     80      8  start time of the writing process, clock ticks since boot
//!     88      4  pid of the writing process
//!     92      2  number of events, 1 to 16
//!     94      1  length of the verb, at most 32
//!     95      1  zero
//!     96      8  seq that the writer knew to be durable
//!    104     32  hash of the frame before it (zeroes for the very first)
//!    136      n  verb, UTF-8
//!            ..  events
//!
//! an event: kind u16, version u16, subject length u8, zero u8, body length u16, subject, body
//! ```
//!
//! The hash of a frame is blake3 over all its bytes, and since these include the hash of the frame
//! before, one hash stands for the whole history up to it. Decoding checks the crc first and looks
//! at the content second: a flipped bit in a body mostly decodes to a wrong value without an error.

use std::fmt;

use thiserror::Error;
use uuid::Uuid;

mod codec;
mod subject;

pub use codec::{Peek, hash_of};
pub use subject::Subject;

/// Sequence number of an event. The first is 1; 0 means "nothing yet".
pub type Seq = u64;

/// A blake3 hash.
pub type Hash = [u8; 32];

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"CCNF";
/// The header version that this crate writes, and the newest that it reads.
pub const HEADER_VERSION: u8 = 1;
/// Bytes before the verb.
pub const HEADER_LEN: usize = 136;
/// Codec id of bodies in bincode 2, standard configuration.
pub const CODEC_BINCODE: u8 = 1;
/// Most events in one frame.
pub const MAX_EVENTS: usize = 16;
/// Most bytes of one frame.
pub const MAX_FRAME_LEN: usize = 64 * 1024;
/// Most bytes of the body of one event.
pub const MAX_BODY_LEN: usize = 4 * 1024;
/// Most bytes of a verb.
pub const MAX_VERB_LEN: usize = 32;

/// One event: its kind and version say how to read the body, which the journal never does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the kind, from the user's written table; 60000 and above belong to the journal.
    pub kind: u16,
    /// Version of the body's layout within the kind.
    pub version: u16,
    /// What the event is about.
    pub subject: Subject,
    /// Encoded payload, at most [`MAX_BODY_LEN`] bytes.
    pub body: Vec<u8>,
}

/// Who writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The operation on whose behalf.
    pub operation: Uuid,
    /// Process id, in the pid namespace of the writer.
    pub pid: u32,
    /// Start time of that process in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_time: u64,
    /// The command, at most [`MAX_VERB_LEN`] bytes, for people.
    pub verb: String,
}

/// Everything about a frame but its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Codec of the bodies ([`CODEC_BINCODE`]).
    pub codec: u8,
    /// Reserved for later use; zero.
    pub flags: u16,
    /// Length in bytes of the frame before it in the same segment; 0 for the first of a segment.
    pub prev_len: u32,
    /// Ordinal of this frame among those that its writer's handle wrote for the operation, from 0.
    pub ordinal: u32,
    /// Sequence number of the first event.
    pub seq: Seq,
    /// Number of events; event `i` has sequence number `seq + i`.
    pub count: u16,
    /// Wall clock in microseconds since 1970.
    pub wall_us: i64,
    /// `CLOCK_BOOTTIME` in microseconds: comparable only under the same `boot_id`.
    pub boottime_us: u64,
    /// Which boot of the host.
    pub boot_id: Uuid,
    /// The operation on whose behalf the frame was written; nil for the journal's own.
    pub operation: Uuid,
    /// Process id of the writer.
    pub pid: u32,
    /// Start time of the writer in clock ticks since boot.
    pub start_time: u64,
    /// The writer's command, at most [`MAX_VERB_LEN`] bytes.
    pub verb: String,
    /// The sequence number that the writer knew to be durable.
    pub durable_seq: Seq,
    /// Hash of the frame before this one; zeroes for the first of a journal.
    pub prev_hash: Hash,
}

impl FrameHeader {
    /// Who wrote the frame.
    #[must_use]
    pub fn writer(&self) -> Writer {
        Writer {
            operation: self.operation,
            pid: self.pid,
            start_time: self.start_time,
            verb: self.verb.clone(),
        }
    }
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// When, by whom, after what.
    pub header: FrameHeader,
    /// The events, 1 to [`MAX_EVENTS`]; event `i` has sequence number `header.seq + i`.
    pub entries: Vec<Entry>,
}

impl Frame {
    /// Sequence number of the last event of the frame.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.header.seq.saturating_add(u64::from(self.header.count).saturating_sub(1))
    }

    /// The events with their sequence numbers.
    pub fn events(&self) -> impl Iterator<Item = (Seq, &Entry)> {
        (self.header.seq..).zip(&self.entries)
    }

    /// Where a fold stands once it has applied this frame, whose hash is `hash`.
    #[must_use]
    pub fn position(&self, hash: Hash) -> Position {
        Position { seq: self.last_seq(), hash }
    }
}

/// How far something has followed the journal. The default is the start of an empty journal.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// Last sequence number applied.
    pub seq: Seq,
    /// Hash of the last frame applied.
    pub hash: Hash,
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.seq, hex_prefix(&self.hash))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The first eight hexadecimal digits of a hash, for messages.
#[must_use]
pub fn hex_prefix(hash: &Hash) -> String {
    hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Why bytes are no frame, or events cannot become one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A frame must carry an event.
    #[error("a decision without events cannot be journalled; answer instead of appending")]
    NoEvents,
    /// More than [`MAX_EVENTS`].
    #[error("one decision made {count} events, at most {MAX_EVENTS} fit a frame; split it")]
    TooManyEvents {
        /// How many there were.
        count: usize,
    },
    /// A body above [`MAX_BODY_LEN`].
    #[error(
        "an event of kind {kind} is {len} bytes long, at most {MAX_BODY_LEN} are allowed; keep the content in a file and journal its hash"
    )]
    EventTooLarge {
        /// Kind of the event.
        kind: u16,
        /// Length of its body in bytes.
        len: usize,
    },
    /// A frame above [`MAX_FRAME_LEN`].
    #[error("the events of one decision take {len} bytes, at most {MAX_FRAME_LEN} fit a frame")]
    FrameTooLarge {
        /// Length of the encoded frame in bytes.
        len: usize,
    },
    /// A verb above [`MAX_VERB_LEN`].
    #[error("the verb {verb:?} is longer than {MAX_VERB_LEN} bytes; shorten it")]
    VerbTooLong {
        /// The verb.
        verb: String,
    },
    /// A subject that is empty, longer than [`Subject::MAX_LEN`] or not printable ASCII.
    #[error("{subject:?} cannot name a subject: 1 to 40 printable ASCII characters are needed")]
    BadSubject {
        /// What was given.
        subject: String,
    },
    /// The bytes end before the frame does.
    #[error("the frame is cut short: {have} bytes are there, {need} are needed")]
    Incomplete {
        /// Bytes present.
        have: usize,
        /// Bytes that the frame needs, as far as known.
        need: usize,
    },
    /// Not the start of a frame.
    #[error("no frame starts here: the magic number is missing")]
    BadMagic,
    /// The checksum does not match.
    #[error("the checksum of the frame is {found:08x}, its bytes give {computed:08x}")]
    BadChecksum {
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// Written by a newer program.
    #[error(
        "the frame has header version {version}, this program reads up to {HEADER_VERSION}; use the newer program that wrote it"
    )]
    NewerVersion {
        /// The version found.
        version: u8,
    },
    /// The checksum holds but the content breaks a rule of the format.
    #[error("the frame is malformed: {what}")]
    Malformed {
        /// Which rule.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests;
