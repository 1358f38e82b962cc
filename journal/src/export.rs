//! Taking the history elsewhere: as JSON lines for any program, as the frames themselves for this one.
//!
//! Both read the whole journal, change nothing, take no lock, and skip what is damaged; what they
//! skipped is in the result.
//!
//! The binary form:
//!
//! ```text
//! segment header (128 bytes; first seq and the hash before it)
//! frames, byte for byte
//! "CCNEND\r\n", frames u64, events u64, last seq u64, last hash (32), crc32 of the 64 bytes before
//! ```
//!
//! The trailer tells a whole export from one that was cut short.

use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::Path;

use serde::Serialize;
use uuid::Uuid;

use crate::error::JournalError;
use crate::frame::{Entry, Frame, Hash, Position, Seq};
use crate::inspect::Fault;
use crate::scan::scan;
use crate::segment::SegmentHeader;

mod binary;

pub use binary::{BinaryFrames, ExportFault};

/// How an event is shown in JSON.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Described {
    /// Name of the kind.
    pub name: Option<String>,
    /// The body in readable form, instead of its bytes in hexadecimal.
    pub body: Option<serde_json::Value>,
}

/// What was exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Frames written.
    pub frames: u64,
    /// Events written.
    pub events: u64,
    /// The last frame written.
    pub last: Position,
    /// What was wrong with the journal.
    pub problems: Vec<Fault>,
}

/// One event as a line of JSON. Hashes, ids and bodies are in hexadecimal.
#[derive(Serialize)]
struct Line<'a> {
    seq: Seq,
    /// First sequence number of the frame.
    frame: Seq,
    kind: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    version: u16,
    subject: &'a str,
    wall_us: i64,
    boottime_us: u64,
    boot_id: String,
    operation: String,
    ordinal: u32,
    pid: u32,
    start_time: u64,
    verb: &'a str,
    durable_seq: Seq,
    codec: u8,
    flags: u16,
    hash: &'a str,
    prev_hash: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

/// Writes the events of the frames that overlap `seqs`, one JSON object a line.
///
/// `describe` may name a kind and show its body; else the body is in hexadecimal.
///
/// # Errors
///
/// If there is no journal, or `out` fails.
pub fn export_json_lines(
    dir: &Path,
    seqs: &RangeInclusive<Seq>,
    mut describe: impl FnMut(&Entry) -> Described,
    out: &mut impl Write,
) -> Result<Exported, JournalError> {
    let mut exported = Exported::default();
    let scan = scan(dir, |found| {
        if overlaps(&found.frame, seqs) {
            write_lines(&found.frame, found.hash, &mut describe, out).map_err(failed)?;
            exported.count(&found.frame, found.hash);
        }
        Ok(())
    })?;
    out.flush().map_err(failed)?;
    Ok(Exported { problems: scan.problems, ..exported })
}

fn write_lines(
    frame: &Frame,
    hash: Hash,
    describe: &mut impl FnMut(&Entry) -> Described,
    out: &mut impl Write,
) -> io::Result<()> {
    let header = &frame.header;
    let (hash, prev_hash) = (hex(&hash), hex(&header.prev_hash));
    for (seq, entry) in frame.events() {
        let Described { name, body: event } = describe(entry);
        let line = Line {
            seq,
            frame: header.seq,
            kind: entry.kind,
            name,
            version: entry.version,
            subject: entry.subject.as_str(),
            wall_us: header.wall_us,
            boottime_us: header.boottime_us,
            boot_id: header.boot_id.to_string(),
            operation: header.operation.to_string(),
            ordinal: header.ordinal,
            pid: header.pid,
            start_time: header.start_time,
            verb: &header.verb,
            durable_seq: header.durable_seq,
            codec: header.codec,
            flags: header.flags,
            hash: &hash,
            prev_hash: &prev_hash,
            body: event.is_none().then(|| hex(&entry.body)),
            event,
        };
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Writes the frames that overlap `seqs` in the binary form.
///
/// # Errors
///
/// If there is no journal, or `out` fails.
pub fn export_binary(
    dir: &Path,
    seqs: &RangeInclusive<Seq>,
    out: &mut impl Write,
) -> Result<Exported, JournalError> {
    let root = crate::verify::verify(dir)?.root.unwrap_or(Uuid::nil());
    let mut exported = Exported::default();
    let begin = |frame: Option<&Frame>| SegmentHeader {
        root,
        first: frame.map_or(*seqs.start(), |frame| frame.header.seq),
        prev_hash: frame.map(|frame| frame.header.prev_hash).unwrap_or_default(),
        created_us: frame.map_or(0, |frame| frame.header.wall_us),
        prev_end: 0,
        prev_last_len: 0,
    };
    let scan = scan(dir, |found| {
        if overlaps(&found.frame, seqs) {
            if exported.frames == 0 {
                out.write_all(&begin(Some(&found.frame)).encode()).map_err(failed)?;
            }
            out.write_all(&found.bytes).map_err(failed)?;
            exported.count(&found.frame, found.hash);
        }
        Ok(())
    })?;
    if exported.frames == 0 {
        out.write_all(&begin(None).encode()).map_err(failed)?;
    }
    out.write_all(&binary::trailer(&exported)).and_then(|()| out.flush()).map_err(failed)?;
    Ok(Exported { problems: scan.problems, ..exported })
}

impl Exported {
    fn count(&mut self, frame: &Frame, hash: Hash) {
        self.frames += 1;
        self.events += u64::from(frame.header.count);
        self.last = frame.position(hash);
    }
}

fn overlaps(frame: &Frame, seqs: &RangeInclusive<Seq>) -> bool {
    frame.header.seq <= *seqs.end() && frame.last_seq() >= *seqs.start()
}

fn failed(error: io::Error) -> JournalError {
    JournalError::io("write the export to", Path::new("output"))(error)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
