//! Frames to bytes and back.

use uuid::Uuid;

use super::{
    Entry, Frame, FrameError, FrameHeader, HEADER_LEN, HEADER_VERSION, Hash, MAGIC, MAX_BODY_LEN,
    MAX_EVENTS, MAX_FRAME_LEN, MAX_VERB_LEN, Seq, Subject,
};

/// Bytes of an event before its subject.
const ENTRY_HEADER_LEN: usize = 8;
/// Bytes that the checksum does not cover: the magic and itself.
const UNCHECKED_LEN: usize = 8;

/// The hash of an encoded frame.
#[must_use]
pub fn hash_of(encoded: &[u8]) -> Hash {
    *blake3::hash(encoded).as_bytes()
}

/// What the fixed header says, before any checksum was looked at: good for finding one's way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek {
    /// Length of the whole frame in bytes, between the header and [`MAX_FRAME_LEN`].
    pub len: usize,
    /// Length of the frame before it in the same segment, 0 for the first.
    pub prev_len: usize,
    /// Sequence number of the first event.
    pub seq: Seq,
    /// Number of events.
    pub count: u16,
}

impl Peek {
    /// Sequence number of the last event.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.seq.saturating_add(u64::from(self.count).saturating_sub(1))
    }
}

impl Frame {
    /// The bytes of the frame.
    ///
    /// # Errors
    ///
    /// A named limit was exceeded, or `header.count` is not the number of events.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let len = self.checked_len()?;
        let too_large = |_| FrameError::FrameTooLarge { len };
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0; 4]);
        encode_header(&self.header, u32::try_from(len).map_err(too_large)?, &mut out)?;
        for entry in &self.entries {
            encode_entry(entry, &mut out)?;
        }
        let crc = crc32fast::hash(out.get(UNCHECKED_LEN..).unwrap_or_default());
        if let Some(slot) = out.get_mut(4..UNCHECKED_LEN) {
            slot.copy_from_slice(&crc.to_le_bytes());
        }
        Ok(out)
    }

    fn checked_len(&self) -> Result<usize, FrameError> {
        let count = self.entries.len();
        match count {
            0 => return Err(FrameError::NoEvents),
            1..=MAX_EVENTS => {}
            _ => return Err(FrameError::TooManyEvents { count }),
        }
        if usize::from(self.header.count) != count {
            return Err(FrameError::Malformed { what: "the header counts other events" });
        }
        let verb = &self.header.verb;
        if verb.len() > MAX_VERB_LEN {
            return Err(FrameError::VerbTooLong { verb: verb.clone() });
        }
        let mut len = HEADER_LEN + verb.len();
        for entry in &self.entries {
            if entry.body.len() > MAX_BODY_LEN {
                return Err(FrameError::EventTooLarge { kind: entry.kind, len: entry.body.len() });
            }
            len += ENTRY_HEADER_LEN + entry.subject.as_bytes().len() + entry.body.len();
        }
        if len > MAX_FRAME_LEN { Err(FrameError::FrameTooLarge { len }) } else { Ok(len) }
    }

    /// Reads the frame at the start of `bytes`; gives it with its length in bytes and its hash.
    /// What follows the frame is ignored.
    ///
    /// # Errors
    ///
    /// [`FrameError::Incomplete`] if more bytes may make it whole; any other says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize, Hash), FrameError> {
        let peek = Peek::new(bytes)?;
        let whole = bytes
            .get(..peek.len)
            .ok_or(FrameError::Incomplete { have: bytes.len(), need: peek.len })?;
        let mut input = Input(whole);
        input.take(4)?;
        let found = input.u32()?;
        let computed = crc32fast::hash(input.0);
        if found != computed {
            return Err(FrameError::BadChecksum { found, computed });
        }
        let frame = decode_checked(&mut input)?;
        Ok((frame, peek.len, hash_of(whole)))
    }
}

impl Peek {
    /// Looks at the header at the start of `bytes` without verifying anything but its limits.
    ///
    /// # Errors
    ///
    /// [`FrameError::Incomplete`], [`FrameError::BadMagic`] or [`FrameError::Malformed`].
    /// [`FrameError::NewerVersion`] only if the checksum vouches for it.
    pub fn new(bytes: &[u8]) -> Result<Self, FrameError> {
        let magic = bytes.get(..MAGIC.len().min(bytes.len())).unwrap_or_default();
        if !MAGIC.starts_with(magic) {
            return Err(FrameError::BadMagic);
        }
        let incomplete = || FrameError::Incomplete { have: bytes.len(), need: HEADER_LEN };
        let header = bytes.get(..HEADER_LEN).ok_or_else(incomplete)?;
        let mut input = Input(header.get(8..).ok_or_else(incomplete)?);
        let version = input.u8()?;
        input.take(3)?;
        let len = widen(input.u32()?);
        if !(HEADER_LEN..=MAX_FRAME_LEN).contains(&len) {
            return Err(FrameError::Malformed { what: "its length is out of range" });
        }
        if version != HEADER_VERSION {
            return Err(unknown_version(bytes, version, len));
        }
        let prev_len = widen(input.u32()?);
        input.take(4)?;
        let seq = input.u64()?;
        input.take(60)?;
        Ok(Self { len, prev_len, seq, count: input.u16()? })
    }
}

/// A version that no program has written yet is believed only under a good checksum.
fn unknown_version(bytes: &[u8], version: u8, len: usize) -> FrameError {
    let Some(whole) = bytes.get(..len) else {
        return FrameError::Incomplete { have: bytes.len(), need: len };
    };
    let mut input = Input(whole.get(4..).unwrap_or_default());
    let found = input.u32().unwrap_or_default();
    let computed = crc32fast::hash(input.0);
    if found != computed {
        return FrameError::BadChecksum { found, computed };
    }
    if version > HEADER_VERSION {
        return FrameError::NewerVersion { version };
    }
    FrameError::Malformed { what: "its header version is 0" }
}

fn encode_header(header: &FrameHeader, len: u32, out: &mut Vec<u8>) -> Result<(), FrameError> {
    out.extend_from_slice(&[HEADER_VERSION, header.codec]);
    out.extend_from_slice(&header.flags.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&header.prev_len.to_le_bytes());
    out.extend_from_slice(&header.ordinal.to_le_bytes());
    out.extend_from_slice(&header.seq.to_le_bytes());
    out.extend_from_slice(&header.wall_us.to_le_bytes());
    out.extend_from_slice(&header.boottime_us.to_le_bytes());
    out.extend_from_slice(header.boot_id.as_bytes());
    out.extend_from_slice(header.operation.as_bytes());
    out.extend_from_slice(&header.start_time.to_le_bytes());
    out.extend_from_slice(&header.pid.to_le_bytes());
    out.extend_from_slice(&header.count.to_le_bytes());
    let verb_len = u8::try_from(header.verb.len())
        .map_err(|_| FrameError::VerbTooLong { verb: header.verb.clone() })?;
    out.extend_from_slice(&[verb_len, 0]);
    out.extend_from_slice(&header.durable_seq.to_le_bytes());
    out.extend_from_slice(&header.prev_hash);
    out.extend_from_slice(header.verb.as_bytes());
    Ok(())
}

fn encode_entry(entry: &Entry, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let subject = entry.subject.as_bytes();
    let too_large = |_| FrameError::EventTooLarge { kind: entry.kind, len: entry.body.len() };
    out.extend_from_slice(&entry.kind.to_le_bytes());
    out.extend_from_slice(&entry.version.to_le_bytes());
    out.extend_from_slice(&[u8::try_from(subject.len()).map_err(too_large)?, 0]);
    out.extend_from_slice(&u16::try_from(entry.body.len()).map_err(too_large)?.to_le_bytes());
    out.extend_from_slice(subject);
    out.extend_from_slice(&entry.body);
    Ok(())
}

/// Reads everything after the checksum, which has been found good.
fn decode_checked(input: &mut Input<'_>) -> Result<Frame, FrameError> {
    input.take(1)?;
    let codec = input.u8()?;
    let flags = input.u16()?;
    input.take(4)?;
    let prev_len = input.u32()?;
    let ordinal = input.u32()?;
    let seq = input.u64()?;
    let wall_us = i64::from_le_bytes(input.array()?);
    let boottime_us = input.u64()?;
    let boot_id = Uuid::from_bytes(input.array()?);
    let operation = Uuid::from_bytes(input.array()?);
    let start_time = input.u64()?;
    let pid = input.u32()?;
    let count = input.u16()?;
    let verb_len = usize::from(input.u8()?);
    input.zero()?;
    let durable_seq = input.u64()?;
    let prev_hash = input.array()?;
    let verb = decode_verb(input, verb_len)?;
    check_numbers(seq, count, durable_seq)?;
    let entries = decode_entries(input, usize::from(count))?;
    let header = FrameHeader {
        codec,
        flags,
        prev_len,
        ordinal,
        seq,
        count,
        wall_us,
        boottime_us,
        boot_id,
        operation,
        pid,
        start_time,
        verb,
        durable_seq,
        prev_hash,
    };
    Ok(Frame { header, entries })
}

fn check_numbers(seq: Seq, count: u16, durable_seq: Seq) -> Result<(), FrameError> {
    let what = if seq == 0 || seq.checked_add(u64::from(count)).is_none() {
        "its sequence number is out of range"
    } else if !(1..=MAX_EVENTS).contains(&usize::from(count)) {
        "its number of events is out of range"
    } else if durable_seq >= seq {
        "it calls itself durable before it was written"
    } else {
        return Ok(());
    };
    Err(FrameError::Malformed { what })
}

fn decode_verb(input: &mut Input<'_>, len: usize) -> Result<String, FrameError> {
    if len > MAX_VERB_LEN {
        return Err(FrameError::Malformed { what: "its verb is too long" });
    }
    std::str::from_utf8(input.take(len)?)
        .map(str::to_owned)
        .map_err(|_| FrameError::Malformed { what: "its verb is not UTF-8" })
}

fn decode_entries(input: &mut Input<'_>, count: usize) -> Result<Vec<Entry>, FrameError> {
    let entries = (0..count).map(|_| decode_entry(input)).collect::<Result<_, _>>()?;
    if input.0.is_empty() {
        Ok(entries)
    } else {
        Err(FrameError::Malformed { what: "bytes are left over after its last event" })
    }
}

fn decode_entry(input: &mut Input<'_>) -> Result<Entry, FrameError> {
    let kind = input.u16()?;
    let version = input.u16()?;
    let subject_len = usize::from(input.u8()?);
    input.zero()?;
    let body_len = usize::from(input.u16()?);
    let subject = Subject::from_bytes(input.take(subject_len)?)
        .ok_or(FrameError::Malformed { what: "it has a bad subject" })?;
    if body_len > MAX_BODY_LEN {
        return Err(FrameError::Malformed { what: "it has too large an event" });
    }
    Ok(Entry { kind, version, subject, body: input.take(body_len)?.to_vec() })
}

fn widen(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], FrameError> {
        let short = FrameError::Malformed { what: "its content is longer than its length" };
        let (head, rest) = self.0.split_at_checked(len).ok_or(short)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, FrameError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, FrameError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_le_bytes)
    }

    fn zero(&mut self) -> Result<(), FrameError> {
        match self.u8()? {
            0 => Ok(()),
            _ => Err(FrameError::Malformed { what: "a reserved byte is not zero" }),
        }
    }
}
