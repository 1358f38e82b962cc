//! Taking the history elsewhere: as JSON lines for any program, or as the frames themselves in a [bundle](crate::bundle).
//!
//! Both read the whole journal, change nothing, take no lock, and skip what is damaged; what they
//! skipped is in the result. Both can be read again, frame by frame, with proof that they are what was written: a
//! bundle by its bytes, lines ([`lines`]) because the hash of a frame is in them and its bytes follow from the rest.
//!
//! Lines are one event each, and the last one, `{"end":true,...}`, tells a whole export from one that was cut short.
//!
//! An [`Edit`] changes frames on their way, so that names can be replaced. The frames are then chained anew, and the
//! export says that it is redacted.

use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::Path;

use serde::Serialize;
use uuid::Uuid;

use crate::bundle::{BundleHeader, BundleWriter};
use crate::clock::Clock;
use crate::error::{AnyError, JournalError};
use crate::frame::{Entry, Frame, FrameError, Hash, Position, Seq, hash_of};
use crate::inspect::{Fault, Inspector, Piece};
use crate::reserved::sealed_next;
use crate::scan::scan;

pub mod lines;

/// Takes a frame with its hash and its bytes.
type Visit<'a> = &'a mut dyn FnMut(&Frame, Hash, &[u8]) -> io::Result<()>;

/// Changes a frame before it is exported.
pub type Edit<'a> = &'a mut dyn FnMut(&mut Frame) -> Result<(), AnyError>;

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
    /// Length of the frame before it in its segment.
    prev_len: u32,
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
    body: String,
    #[serde(skip_serializing_if = "is_false")]
    redacted: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The last line.
#[derive(Serialize)]
struct End {
    end: bool,
    root: String,
    frames: u64,
    events: u64,
    last_seq: Seq,
    last_hash: String,
    redacted: bool,
}

/// Writes the events of the frames that overlap `seqs`, one JSON object a line.
///
/// `describe` may name a kind and show its body, which is there in hexadecimal too.
///
/// # Errors
///
/// If there is no journal, `edit` refuses a frame, or `out` fails.
pub fn export_json_lines(
    dir: &Path,
    seqs: &RangeInclusive<Seq>,
    edit: Option<Edit<'_>>,
    mut describe: impl FnMut(&Entry) -> Described,
    out: &mut impl Write,
) -> Result<Exported, JournalError> {
    let redacted = edit.is_some();
    let (root, _) = begins_with(dir, seqs)?;
    let exported = each(dir, seqs, edit, &mut |frame, hash, _| {
        write_lines(frame, hash, redacted, &mut describe, out)
    })?;
    let end = End {
        end: true,
        root: root.to_string(),
        frames: exported.frames,
        events: exported.events,
        last_seq: exported.last.seq,
        last_hash: hex(&exported.last.hash),
        redacted,
    };
    let text = serde_json::to_string(&end).map_err(|error| failed(error.into()))?;
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(failed)?;
    Ok(exported)
}

fn write_lines(
    frame: &Frame,
    hash: Hash,
    redacted: bool,
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
            prev_len: header.prev_len,
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
            event,
            body: hex(&entry.body),
            redacted,
        };
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Writes the frames that overlap `seqs` as a bundle.
///
/// # Errors
///
/// If there is no journal, `edit` refuses a frame, or `out` fails.
pub fn export_binary(
    dir: &Path,
    seqs: &RangeInclusive<Seq>,
    edit: Option<Edit<'_>>,
    out: &mut impl Write,
) -> Result<Exported, JournalError> {
    let (root, before) = begins_with(dir, seqs)?;
    let header = BundleHeader {
        is_backup: false,
        is_redacted: edit.is_some(),
        root,
        first: before.seq.saturating_add(1),
        prev_hash: before.hash,
        made_us: (Clock::default().wall_us)(),
        stub_len: 0,
    };
    let mut bundle = BundleWriter::new(out, &header).map_err(failed)?;
    let exported =
        each(dir, seqs, edit, &mut |frame, hash, bytes| bundle.frame(frame, hash, bytes))?;
    bundle.finish().map_err(failed)?;
    Ok(exported)
}

/// The root of a journal, and the frame before the first that is wanted.
fn begins_with(dir: &Path, seqs: &RangeInclusive<Seq>) -> Result<(Uuid, Position), JournalError> {
    let mut root = Uuid::nil();
    for piece in Inspector::open(dir)? {
        match piece {
            Piece::Segment(segment) => root = segment.header.map_or(root, |header| header.root),
            Piece::Frame(seen) if overlaps(&seen.frame, seqs) => {
                let header = seen.frame.header;
                let seq = header.seq.saturating_sub(1);
                return Ok((root, Position { seq, hash: header.prev_hash }));
            }
            Piece::Frame(_) | Piece::Fault(_) => {}
        }
    }
    let seq = seqs.start().saturating_sub(1);
    Ok((root, Position { seq, hash: Hash::default() }))
}

/// Visits the frames that overlap `seqs`, edited.
fn each(
    dir: &Path,
    seqs: &RangeInclusive<Seq>,
    edit: Option<Edit<'_>>,
    visit: Visit<'_>,
) -> Result<Exported, JournalError> {
    let mut exported = Exported::default();
    let mut editor = edit.map(|edit| Editor { edit, last: None, last_len: 0 });
    let scan = scan(dir, |found| {
        if !overlaps(&found.frame, seqs) {
            return Ok(());
        }
        let Some(editor) = &mut editor else {
            visit(&found.frame, found.hash, &found.bytes).map_err(failed)?;
            exported.count(&found.frame, found.hash);
            return Ok(());
        };
        let (frame, bytes) = editor.edit(found.frame.clone())?;
        let hash = hash_of(&bytes);
        visit(&frame, hash, &bytes).map_err(failed)?;
        exported.count(&frame, hash);
        Ok(())
    })?;
    Ok(Exported { problems: scan.problems, ..exported })
}

/// Edits frames and chains them anew.
struct Editor<'a> {
    edit: Edit<'a>,
    last: Option<Position>,
    last_len: u32,
}

impl Editor<'_> {
    fn edit(&mut self, mut frame: Frame) -> Result<(Frame, Vec<u8>), JournalError> {
        (self.edit)(&mut frame).map_err(JournalError::Decide)?;
        if let Some(last) = self.last {
            frame.header.prev_hash = last.hash;
            frame.header.prev_len = self.last_len;
        }
        let bytes = frame.encode()?;
        self.last = Some(frame.position(hash_of(&bytes)));
        // A segment is as long as it was, and begins where it did.
        let seals = frame.entries.last().and_then(sealed_next).is_some();
        let too_long = |_| FrameError::FrameTooLarge { len: bytes.len() };
        self.last_len = if seals { 0 } else { u32::try_from(bytes.len()).map_err(too_long)? };
        Ok((frame, bytes))
    }
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
