//! Looking at all that is there, however damaged.
//!
//! Where a cursor stops at the first thing that is wrong, a scan notes it, looks for the next whole
//! frame by its magic number, and goes on. It changes nothing and takes no lock.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Frame, FrameError, Hash, MAGIC, Position, Seq};
use crate::head::{Head, HeadFile};
use crate::reserved::sealed_next;
use crate::segment::{HEADER_LEN, SegmentHeader};

/// Largest file that is taken for a segment; one is sealed at a few MiB.
const MAX_SEGMENT: u64 = 1024 * 1024 * 1024;

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Left by a process that died; the next writer deals with it, and nothing is lost.
    Leftover,
    /// History is lost or cannot be relied upon.
    Damage,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// In which file.
    pub path: PathBuf,
    /// Where in it, in bytes.
    pub offset: u64,
    /// First sequence number concerned.
    pub seq: Seq,
    /// How bad it is.
    pub severity: Severity,
    /// What it is.
    pub what: String,
}

/// A good frame.
#[derive(Debug)]
pub(crate) struct Scanned<'a> {
    pub(crate) frame: &'a Frame,
    pub(crate) hash: Hash,
    pub(crate) bytes: &'a [u8],
}

/// What a scan learnt of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// First sequence number, and name.
    pub first: Seq,
    /// Its header, if it can be read.
    pub header: Option<SegmentHeader>,
    /// Good frames in it.
    pub frames: u64,
    /// Events in these.
    pub events: u64,
    /// Bytes up to the end of the last good frame.
    pub bytes: u64,
    /// The next segment, if it is sealed.
    pub sealed: Option<Seq>,
}

/// What a scan learnt.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) segments: Vec<SegmentReport>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) durable: Option<Head>,
    pub(crate) first: Option<Seq>,
    pub(crate) last: Position,
}

/// Visits every good frame of the journal in `dir`, in order.
pub(crate) fn scan(
    dir: &Path,
    mut visit: impl FnMut(&Scanned<'_>) -> Result<(), JournalError>,
) -> Result<Scan, JournalError> {
    let directory = Directory::new(dir);
    let firsts = directory.list()?;
    let head = HeadFile::open(&directory.head())?;
    let mut scan =
        Scan { durable: head.as_ref().map_or(Ok(None), HeadFile::read)?, ..Scan::default() };
    if firsts.is_empty() && scan.durable.is_none() {
        return Err(JournalError::Missing { path: dir.to_owned() });
    }
    for first in firsts {
        scan.segment(&directory.segment(first), first, &mut visit)?;
    }
    scan.conclude(&directory);
    Ok(scan)
}

impl Scan {
    fn problem(&mut self, path: &Path, offset: u64, severity: Severity, what: impl Into<String>) {
        let seq = self.last.seq.saturating_add(1);
        let what = what.into();
        self.problems.push(Problem { path: path.to_owned(), offset, seq, severity, what });
    }

    fn segment(
        &mut self,
        path: &Path,
        first: Seq,
        visit: &mut impl FnMut(&Scanned<'_>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let mut report =
            SegmentReport { first, header: None, frames: 0, events: 0, bytes: 0, sealed: None };
        match read(path) {
            Ok(bytes) => {
                self.header(path, &bytes, &mut report);
                self.frames(path, &bytes, &mut report, visit)?;
            }
            Err(error) => self.problem(path, 0, Severity::Damage, error.to_string()),
        }
        self.segments.push(report);
        Ok(())
    }

    fn header(&mut self, path: &Path, bytes: &[u8], report: &mut SegmentReport) {
        match SegmentHeader::decode(bytes) {
            Ok(header) => {
                self.join(path, &header, report.first);
                report.header = Some(header);
            }
            Err(fault) => self.problem(path, 0, Severity::Damage, fault.to_string()),
        }
    }

    /// How a segment continues the one before.
    fn join(&mut self, path: &Path, header: &SegmentHeader, name: Seq) {
        let expected = Position { seq: name.saturating_sub(1), hash: header.prev_hash };
        let sealed = self.segments.last().map(|before| before.sealed);
        let Some(sealed) = sealed else {
            // The first that is there: what was before it is its own word.
            self.last = expected;
            return;
        };
        if header.first != name {
            let what = format!("its header says that it begins at seq {}", header.first);
            self.problem(path, 0, Severity::Damage, what);
        } else if sealed == Some(name) && self.last != expected {
            self.problem(path, 0, Severity::Damage, "it does not continue the segment before it");
        }
    }

    fn frames(
        &mut self,
        path: &Path,
        bytes: &[u8],
        report: &mut SegmentReport,
        visit: &mut impl FnMut(&Scanned<'_>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let mut offset = usize::try_from(HEADER_LEN).unwrap_or(usize::MAX);
        while let Some(rest) = bytes.get(offset..).filter(|rest| rest.iter().any(|b| *b != 0)) {
            match Frame::decode(rest) {
                Ok((frame, len, hash)) => {
                    let bytes = rest.get(..len).unwrap_or_default();
                    self.frame(path, offset, report, &Scanned { frame: &frame, hash, bytes });
                    visit(&Scanned { frame: &frame, hash, bytes })?;
                    offset += len;
                    report.bytes = widen(offset);
                }
                Err(error) => {
                    let skip = next_frame(rest).unwrap_or(rest.len());
                    self.gap(path, offset, &error, skip == rest.len());
                    offset += skip;
                }
            }
        }
        Ok(())
    }

    fn frame(
        &mut self,
        path: &Path,
        offset: usize,
        report: &mut SegmentReport,
        found: &Scanned<'_>,
    ) {
        let header = &found.frame.header;
        if report.sealed.is_some() {
            self.problem(path, widen(offset), Severity::Damage, "a frame follows the seal");
        } else if header.seq != self.last.seq.saturating_add(1) {
            let what = format!("seq {} follows seq {}", header.seq, self.last.seq);
            self.problem(path, widen(offset), Severity::Damage, what);
        } else if header.prev_hash != self.last.hash {
            let what = "the frame does not continue the one before it";
            self.problem(path, widen(offset), Severity::Damage, what);
        }
        self.first.get_or_insert(header.seq);
        self.last = found.frame.position(found.hash);
        report.frames += 1;
        report.events += u64::from(header.count);
        report.sealed = found.frame.entries.last().and_then(sealed_next);
    }

    fn gap(&mut self, path: &Path, offset: usize, error: &FrameError, to_the_end: bool) {
        let known = self.durable.map_or(0, |head| head.mark.seq);
        let severity = match error {
            FrameError::NewerVersion { .. } => Severity::Damage,
            _ if to_the_end && known <= self.last.seq => Severity::Leftover,
            _ => Severity::Damage,
        };
        self.problem(path, widen(offset), severity, error.to_string());
    }

    /// What can only be said at the end.
    fn conclude(&mut self, directory: &Directory) {
        self.seals(directory);
        let Some(head) = self.durable else { return };
        if head.mark.seq > self.last.seq {
            let what = format!("seq {} was durable, but the log ends before", head.mark.seq);
            self.problem(&directory.segments(), 0, Severity::Damage, what);
        } else if head.mark.seq == self.last.seq && head.mark.hash != self.last.hash {
            let what = "it calls another frame durable than the log has";
            self.problem(&directory.head(), 0, Severity::Damage, what);
        }
    }

    /// Each segment must be named by the seal before it, and each seal lead to a segment.
    fn seals(&mut self, directory: &Directory) {
        let mut live = self.segments.first().map(|segment| segment.first);
        for segment in self.segments.clone() {
            let path = directory.segment(segment.first);
            if live != Some(segment.first) {
                let (severity, what) = if segment.frames == 0 {
                    (Severity::Leftover, "no seal leads to this segment, which is empty")
                } else {
                    (Severity::Damage, "no seal leads to this segment")
                };
                self.problem(&path, 0, severity, what);
            } else if segment.sealed.is_some() {
                live = segment.sealed;
            }
        }
        let missing = live.filter(|live| self.segments.iter().all(|there| there.first != *live));
        if let Some(missing) = missing {
            let what = "a seal leads to this segment, but it is not there";
            self.problem(&directory.segment(missing), 0, Severity::Damage, what);
        }
    }
}

/// Reads a file whole, and makes durable what was read.
fn read(path: &Path) -> Result<Vec<u8>, JournalError> {
    let file = File::open(path).map_err(JournalError::io("open", path))?;
    let mut bytes = Vec::new();
    let limited = (&file).take(MAX_SEGMENT).read_to_end(&mut bytes);
    limited.map_err(JournalError::io("read", path))?;
    file.sync_data().map_err(JournalError::io("sync", path))?;
    Ok(bytes)
}

/// Where in `bytes`, after their start, the next whole frame begins.
pub(crate) fn next_frame(bytes: &[u8]) -> Option<usize> {
    let candidates = bytes.windows(MAGIC.len()).enumerate().skip(1);
    let mut starts = candidates.filter(|(_, start)| *start == MAGIC).map(|(offset, _)| offset);
    starts.find(|offset| bytes.get(*offset..).is_some_and(|rest| Frame::decode(rest).is_ok()))
}

fn widen(offset: usize) -> u64 {
    u64::try_from(offset).unwrap_or(u64::MAX)
}
