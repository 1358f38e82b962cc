//! Reading an export of JSON lines back into frames.
//!
//! What the lines of a frame say is put together to a frame again, whose hash must be the one that they name: so every
//! field that goes into the frame is proven, whatever became of the text on its way.

use std::io::{self, BufRead};

use serde::Deserialize;
use uuid::Uuid;

use crate::bundle::Bundled;
use crate::frame::{
    Entry, Frame, FrameError, FrameHeader, Hash, MAX_EVENTS, Position, Seq, Subject, hash_of,
};

/// No line is longer, in bytes: a body has at most 4 KiB, and is in it twice.
const MAX_LINE: u64 = 256 * 1024;

/// Why lines are no export, or not be believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinesFault {
    /// The input failed.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// A line is not what it should be.
    #[error("line {line} is no line of an export: {what}; use another copy")]
    Line {
        /// Number of the line, from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// The lines of a frame do not give the frame.
    #[error(
        "the lines of the frame at seq {seq} are not as they were written: {what}; use another copy"
    )]
    Frame {
        /// First sequence number of the frame.
        seq: Seq,
        /// What is wrong.
        what: String,
    },
    /// The last line is missing.
    #[error("it is cut short after seq {seq}; use another copy")]
    CutShort {
        /// Last good sequence number.
        seq: Seq,
    },
}

/// One line, as far as a frame is made of it.
#[derive(Deserialize)]
struct Line {
    seq: Seq,
    frame: Seq,
    prev_len: u32,
    kind: u16,
    version: u16,
    subject: String,
    wall_us: i64,
    boottime_us: u64,
    boot_id: String,
    operation: String,
    ordinal: u32,
    pid: u32,
    start_time: u64,
    verb: String,
    durable_seq: Seq,
    codec: u8,
    flags: u16,
    hash: String,
    prev_hash: String,
    body: String,
    #[serde(default)]
    redacted: bool,
}

/// The last line.
#[derive(Deserialize)]
struct End {
    root: String,
    frames: u64,
    events: u64,
    last_seq: Seq,
    last_hash: String,
}

/// A line of either kind.
enum Read {
    Event(Box<Line>),
    End(End),
    Nothing,
}

/// The frames of an export of JSON lines. Ends without an error only after its last line was found to fit.
#[derive(Debug)]
pub struct JsonFrames<R> {
    input: R,
    line: u64,
    /// The first line of the next frame, read already.
    ahead: Option<String>,
    frames: u64,
    events: u64,
    last: Position,
    redacted: bool,
    root: Option<Uuid>,
    done: bool,
}

impl<R: BufRead> JsonFrames<R> {
    /// Begins to read.
    pub fn new(input: R) -> Self {
        Self {
            input,
            line: 0,
            ahead: None,
            frames: 0,
            events: 0,
            last: Position::default(),
            redacted: false,
            root: None,
            done: false,
        }
    }

    /// Whether a line so far said that it is redacted.
    #[must_use]
    pub fn is_redacted(&self) -> bool {
        self.redacted
    }

    /// The root that was exported; known at the end.
    #[must_use]
    pub fn root(&self) -> Option<Uuid> {
        self.root
    }

    fn read_line(&mut self) -> Result<Option<String>, LinesFault> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        let mut text = String::new();
        let read = io::Read::take(&mut self.input, MAX_LINE).read_line(&mut text);
        let len = read.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => self.fault("it is not UTF-8"),
            _ => LinesFault::Io(error),
        })?;
        self.line += 1;
        match (len, text.ends_with('\n')) {
            (0, _) => Ok(None),
            (_, true) => Ok(Some(text)),
            (len, false) if u64::try_from(len) == Ok(MAX_LINE) => Err(self.fault("it is too long")),
            (_, false) => Err(LinesFault::CutShort { seq: self.last.seq }),
        }
    }

    fn fault(&self, what: &(impl ToString + ?Sized)) -> LinesFault {
        LinesFault::Line { line: self.line, what: what.to_string() }
    }

    fn parse(&mut self, text: &str) -> Result<Read, LinesFault> {
        if text.trim().is_empty() {
            return Ok(Read::Nothing);
        }
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| self.fault(&error))?;
        if value.get("end").is_some() {
            let end = serde_json::from_value(value).map_err(|error| self.fault(&error))?;
            return Ok(Read::End(end));
        }
        let line: Line = serde_json::from_value(value).map_err(|error| self.fault(&error))?;
        self.redacted |= line.redacted;
        Ok(Read::Event(Box::new(line)))
    }

    fn step(&mut self) -> Result<Option<Bundled>, LinesFault> {
        let mut lines: Vec<Line> = Vec::new();
        loop {
            let Some(text) = self.read_line()? else {
                return Err(LinesFault::CutShort { seq: self.last.seq });
            };
            match self.parse(&text)? {
                Read::Nothing => {}
                Read::Event(line)
                    if lines.first().is_none_or(|first| first.frame == line.frame) =>
                {
                    if lines.len() == MAX_EVENTS {
                        return Err(self.fault("a frame has not so many events"));
                    }
                    lines.push(*line);
                }
                Read::End(end) if lines.is_empty() => return self.finish(&end).map(|()| None),
                Read::Event(_) | Read::End(_) => {
                    self.ahead = Some(text);
                    return self.frame(lines).map(Some);
                }
            }
        }
    }

    fn frame(&mut self, lines: Vec<Line>) -> Result<Bundled, LinesFault> {
        let Some(first) = lines.first() else {
            return Err(LinesFault::CutShort { seq: self.last.seq });
        };
        let (seq, named) = (first.frame, first.hash.clone());
        let fault = |what: &str| LinesFault::Frame { seq, what: what.to_owned() };
        let header = header(first, lines.len()).ok_or_else(|| fault("an id is not one"))?;
        let in_order = (seq..).zip(&lines).all(|(seq, line)| line.seq == seq);
        if !in_order || (self.frames > 0 && seq <= self.last.seq) {
            return Err(fault("its events are not in order"));
        }
        let entries: Option<Vec<Entry>> = lines.into_iter().map(entry).collect();
        let entries = entries.ok_or_else(|| fault("a body or a subject cannot be read"))?;
        let frame = Frame { header, entries };
        let bytes = frame.encode().map_err(|error: FrameError| fault(&error.to_string()))?;
        let hash = hash_of(&bytes);
        if array::<32>(&named) != Some(hash) {
            return Err(fault("they do not give the hash that they name"));
        }
        // What cannot be read back is not written either.
        Frame::decode(&bytes).map_err(|error| fault(&error.to_string()))?;
        if seq == self.last.seq.saturating_add(1)
            && self.frames > 0
            && frame.header.prev_hash != self.last.hash
        {
            return Err(fault("it does not continue the one before"));
        }
        self.frames += 1;
        self.events += u64::from(frame.header.count);
        self.last = frame.position(hash);
        Ok(Bundled { frame, hash, bytes })
    }

    fn finish(&mut self, end: &End) -> Result<(), LinesFault> {
        let hash: Option<Hash> = array(&end.last_hash);
        let read = (self.frames, self.events, self.last.seq, Some(self.last.hash));
        if read != (end.frames, end.events, end.last_seq, hash) {
            return Err(self.fault("it does not fit the lines before it: some are missing"));
        }
        self.root = Uuid::parse_str(&end.root).ok();
        while let Some(text) = self.read_line()? {
            if !text.trim().is_empty() {
                return Err(self.fault("something follows the end"));
            }
        }
        Ok(())
    }
}

impl<R: BufRead> Iterator for JsonFrames<R> {
    type Item = Result<Bundled, LinesFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step();
        self.done = !matches!(step, Ok(Some(_)));
        step.transpose()
    }
}

fn header(line: &Line, count: usize) -> Option<FrameHeader> {
    Some(FrameHeader {
        codec: line.codec,
        flags: line.flags,
        prev_len: line.prev_len,
        ordinal: line.ordinal,
        seq: line.frame,
        count: u16::try_from(count).ok()?,
        wall_us: line.wall_us,
        boottime_us: line.boottime_us,
        boot_id: Uuid::parse_str(&line.boot_id).ok()?,
        operation: Uuid::parse_str(&line.operation).ok()?,
        pid: line.pid,
        start_time: line.start_time,
        verb: line.verb.clone(),
        durable_seq: line.durable_seq,
        prev_hash: array(&line.prev_hash)?,
    })
}

fn entry(line: Line) -> Option<Entry> {
    let subject = Subject::new(line.subject).ok()?;
    Some(Entry { kind: line.kind, version: line.version, subject, body: bytes(&line.body)? })
}

fn array<const N: usize>(hex: &str) -> Option<[u8; N]> {
    bytes(hex)?.try_into().ok()
}

/// The bytes that hexadecimal digits stand for.
fn bytes(hex: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}
