//! Looking at a journal without touching it, whatever state it is in.
//!
//! ```text
//!   segment --> frame, frame, ... --> seal --> segment ...      pieces, in order
//!                  |
//!                  | bytes that are no frame: a fault that says where and what, then
//!                  +--> the next whole frame, found by scanning for the magic number
//! ```
//!
//! Takes no lock, creates and writes nothing, opens files for reading alone, and goes on after damage as far as anything
//! can be found. So it serves for a journal in use, for a stopped one, and for a damaged copy of its
//! directory alike. A journal in use may be caught amid a write: a bad end is read again a few times before it is told.
//!
//! What checkpoints and the event store say to include is held against the log: they never lead it.
//! It tells damage from the unfinished tail of a dead writer by the same rules as a writer, but it is not the judge:
//! only who holds the writers' lock is.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use crate::checkpoint::stub;
use crate::directory::Directory;
use crate::error::JournalError;
use crate::files;
use crate::frame::{Frame, FrameError, Hash, MAGIC, Position, Seq};
use crate::head::{self, Head};
use crate::proof::{self, Proof};
use crate::reserved::sealed_next;
use crate::segment::{HEADER_LEN, SegmentHeader};

mod fault;
#[cfg(test)]
mod tests;

pub use fault::{Fault, FaultKind};

/// Most bytes of a segment that are looked at; a writer seals one long before.
const MAX_SEGMENT: u64 = 256 * 1024 * 1024;
/// How often a bad end is read again, and how long after: somebody may be writing it.
const READ_AGAIN: [Duration; 3] =
    [Duration::from_micros(200), Duration::from_millis(1), Duration::from_millis(4)];

/// One thing that was found, in the order of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A segment begins.
    Segment(SeenSegment),
    /// A whole frame.
    Frame(SeenFrame),
    /// Something is wrong here, or worth knowing.
    Fault(Fault),
}

/// A segment file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenSegment {
    /// First sequence number, by its name.
    pub first: Seq,
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// What its header says; `None` if that cannot be read.
    pub header: Option<SegmentHeader>,
}

/// A whole frame and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenFrame {
    /// The frame.
    pub frame: Frame,
    /// Its hash.
    pub hash: Hash,
    /// The segment that holds it, by its first sequence number.
    pub segment: Seq,
    /// Offset in the segment, bytes.
    pub offset: u64,
    /// The frame as it is stored.
    pub bytes: Vec<u8>,
}

impl SeenFrame {
    /// Offset of its end, bytes.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(widen(self.bytes.len()))
    }
}

/// How far the journal says to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableEnd {
    /// Last sequence number, with the hash of its frame.
    pub position: Position,
    /// The segment, by its first sequence number.
    pub segment: Seq,
    /// Offset of the end of that frame, bytes.
    pub offset: u64,
    /// The boot in which that was known.
    pub boot_id: Uuid,
    /// The root that the journal belongs to.
    pub root: Uuid,
}

impl From<Head> for DurableEnd {
    fn from(head: Head) -> Self {
        let mark = head.mark;
        Self {
            position: mark.position(),
            segment: mark.segment,
            offset: mark.offset,
            boot_id: head.boot_id,
            root: head.root,
        }
    }
}

/// A reader that goes through a journal once.
#[derive(Debug)]
pub struct Inspector {
    directory: PathBuf,
    listed: Vec<Seq>,
    head: Option<DurableEnd>,
    root: Option<Uuid>,
    durably: bool,
    /// What derived files say that the log holds.
    proofs: Vec<Proof>,
    /// The last frame that was delivered.
    last: Position,
    last_len: u32,
    stage: Stage,
    found: VecDeque<Piece>,
}

#[derive(Debug)]
enum Stage {
    /// After a segment (none before the first), whose last frame may seal the way to the next.
    Between {
        after: Option<Seq>,
        sealed: Option<Seq>,
    },
    In(Open),
    End,
}

/// A segment in memory.
#[derive(Debug)]
struct Open {
    first: Seq,
    path: PathBuf,
    bytes: Vec<u8>,
    offset: usize,
    sealed: Option<Seq>,
    read_again: usize,
}

impl Inspector {
    /// Begins to look at the journal in `dir`; a directory that holds segment files itself will do.
    ///
    /// # Errors
    ///
    /// [`JournalError::Missing`] if there is no segment, or the directory cannot be listed.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        // HEAD first: everything that it speaks of must be there.
        let head = read_head(&dir.join("HEAD"));
        let proofs = proof::read(dir);
        let inside = dir.join("seg");
        let directory = if inside.is_dir() { inside } else { dir.to_owned() };
        let mut listed = Directory::list_in(&directory)?;
        drop_leftovers(&mut listed, &stub::list(dir).unwrap_or_default());
        if listed.is_empty() && head.is_none() && proofs.is_empty() {
            return Err(JournalError::Missing { path: dir.to_owned() });
        }
        Ok(Self {
            directory,
            listed,
            head,
            root: None,
            durably: false,
            proofs,
            last: Position::default(),
            last_len: 0,
            stage: Stage::Between { after: None, sealed: None },
            found: VecDeque::new(),
        })
    }

    /// Makes durable what it reads, for who answers from it.
    #[must_use]
    pub fn made_durable(mut self) -> Self {
        self.durably = true;
        self
    }

    /// How far the journal says to be durable, if it says so.
    #[must_use]
    pub fn head(&self) -> Option<&DurableEnd> {
        self.head.as_ref()
    }

    /// First sequence number that is there, by the names of the segments.
    #[must_use]
    pub fn begins_at(&self) -> Seq {
        self.listed.first().copied().unwrap_or_default()
    }

    /// The last frame that was delivered so far.
    #[must_use]
    pub fn reached(&self) -> Position {
        self.last
    }

    fn path_of(&self, first: Seq) -> PathBuf {
        self.directory.join(format!("{first:020}.seg"))
    }

    fn tell(&mut self, fault: Fault) {
        self.found.push_back(Piece::Fault(fault));
    }

    /// A fault at the next sequence number.
    fn fault(&self, kind: FaultKind, path: &Path, offset: usize, what: String) -> Fault {
        Fault {
            kind,
            path: path.to_owned(),
            offset: widen(offset),
            len: 0,
            seq: self.last.seq.saturating_add(1),
            lost: None,
            what,
        }
    }

    fn listed_after(&self, after: Option<Seq>) -> Option<Seq> {
        self.listed.iter().copied().find(|first| after.is_none_or(|after| *first > after))
    }

    /// Enters the next segment, or ends.
    fn enter(&mut self, after: Option<Seq>, sealed: Option<Seq>) -> Stage {
        let named = sealed.filter(|next| self.path_of(*next).exists());
        if let (Some(next), None) = (sealed, named) {
            let what = format!("the next segment, {next}, is missing");
            let fault = self.fault(FaultKind::Segment, &self.path_of(next), 0, what);
            self.tell(fault);
        }
        let Some(first) = named.or_else(|| self.listed_after(after)) else {
            self.end();
            return Stage::End;
        };
        let path = self.path_of(first);
        let bytes = match read_file(&path, self.durably) {
            Ok(bytes) => bytes,
            Err(error) => {
                let what = format!("it cannot be read: {error}");
                let fault = self.fault(FaultKind::Unreadable, &path, 0, what);
                self.tell(fault);
                return Stage::Between { after: Some(first), sealed: None };
            }
        };
        self.entered(first, &path, &bytes, after.is_some() && named.is_none());
        let offset = usize::try_from(HEADER_LEN).unwrap_or(usize::MAX);
        Stage::In(Open { first, path, bytes, offset, sealed: None, read_again: 0 })
    }

    /// Tells of a segment's beginning and judges its header.
    fn entered(&mut self, first: Seq, path: &Path, bytes: &[u8], unnamed: bool) {
        let header = SegmentHeader::decode(bytes);
        if self.last == Position::default() {
            let hash = header.as_ref().map(|header| header.prev_hash).unwrap_or_default();
            self.last = Position { seq: first.saturating_sub(1), hash };
        }
        self.last_len = 0;
        self.found.push_back(Piece::Segment(SeenSegment {
            first,
            path: path.to_owned(),
            len: widen(bytes.len()),
            header: header.as_ref().ok().cloned(),
        }));
        let wrong = match &header {
            Err(fault) => Some(fault.to_string()),
            Ok(header) if header.first != first => {
                Some(format!("its header says that it begins at {}", header.first))
            }
            Ok(header) if self.root.is_some_and(|root| root != header.root) => {
                Some(format!("it belongs to another root, {}", header.root))
            }
            Ok(header) => {
                self.root = Some(header.root);
                None
            }
        };
        if let Some(what) = wrong {
            let fault = self.fault(FaultKind::Header, path, 0, what);
            self.tell(fault);
        }
        if unnamed {
            let fault = self.unnamed(path, bytes);
            self.tell(fault);
        }
    }

    fn unnamed(&self, path: &Path, bytes: &[u8]) -> Fault {
        let frames = bytes.get(usize::try_from(HEADER_LEN).unwrap_or_default()..);
        if is_zero(frames.unwrap_or_default()) {
            let what = "it is empty and no seal names it; the next writer discards it".to_owned();
            return self.fault(FaultKind::Unused, path, 0, what);
        }
        let what = "the segment before it does not end in a seal that names it".to_owned();
        self.fault(FaultKind::Segment, path, 0, what)
    }

    /// Reads on in a segment: tells what is there, or leaves it.
    fn read_on(&mut self, mut open: Open) -> Stage {
        let rest = open.bytes.get(open.offset..).unwrap_or_default();
        if open.sealed.is_some() || rest.is_empty() {
            return self.leave(&open);
        }
        match Frame::decode(rest) {
            Ok((frame, len, hash)) => {
                let bytes = rest.get(..len).unwrap_or_default().to_vec();
                let offset = open.offset;
                open.offset += len;
                open.read_again = 0;
                self.judge(
                    &mut open,
                    SeenFrame { frame, hash, segment: 0, offset: widen(offset), bytes },
                );
                Stage::In(open)
            }
            Err(_) if is_zero(rest) => self.leave(&open),
            Err(error) => self.bad_bytes(open, &error),
        }
    }

    /// Leaves a segment at its end.
    fn leave(&mut self, open: &Open) -> Stage {
        let rest = open.bytes.get(open.offset..).unwrap_or_default();
        if open.sealed.is_some() && !is_zero(rest) {
            let what = format!("{} bytes follow the seal", rest.len());
            let mut fault = self.fault(FaultKind::Bytes, &open.path, open.offset, what);
            fault.len = widen(rest.len());
            self.tell(fault);
        }
        Stage::Between { after: Some(open.first), sealed: open.sealed }
    }

    /// Takes over a frame, and tells if it is not the one that should follow.
    fn judge(&mut self, open: &mut Open, mut seen: SeenFrame) {
        seen.segment = open.first;
        let at = usize::try_from(seen.offset).unwrap_or(usize::MAX);
        let expected = self.last.seq.saturating_add(1);
        let (header, position) = (&seen.frame.header, seen.frame.position(seen.hash));
        if header.seq < expected {
            let what = format!("the frame there has seq {}, {expected} should follow", header.seq);
            let mut fault = self.fault(FaultKind::Order, &open.path, at, what);
            fault.len = widen(seen.bytes.len());
            return self.tell(fault);
        }
        if header.seq > expected {
            let lost = expected..=header.seq.saturating_sub(1);
            let what = format!("events {} to {} are missing", lost.start(), lost.end());
            let mut fault = self.fault(FaultKind::Gap, &open.path, at, what);
            fault.lost = Some(lost);
            self.tell(fault);
        } else if header.prev_hash != self.last.hash || header.prev_len != self.last_len {
            let what = "the frame does not continue the one before it".to_owned();
            let fault = self.fault(FaultKind::Chain, &open.path, at, what);
            self.tell(fault);
        }
        if let Some(head) = self.head
            && head.position.seq == position.seq
            && head.position.hash != position.hash
        {
            let what = "the frame there is not the one that HEAD calls durable".to_owned();
            let fault = self.fault(FaultKind::Head, &open.path, at, what);
            self.tell(fault);
        }
        self.judge_proofs(position);
        open.sealed = seen.frame.entries.last().and_then(sealed_next);
        self.last = position;
        self.last_len = u32::try_from(seen.bytes.len()).unwrap_or(u32::MAX);
        self.found.push_back(Piece::Frame(seen));
    }

    /// Bytes that are no frame: read again, tell, and go on behind them.
    fn bad_bytes(&mut self, mut open: Open, error: &FrameError) -> Stage {
        let is_last = self.listed_after(Some(open.first)).is_none();
        if is_last && let Some(pause) = READ_AGAIN.get(open.read_again) {
            std::thread::sleep(*pause);
            open.read_again += 1;
            if let Ok(bytes) = read_file(&open.path, self.durably) {
                open.bytes = bytes;
            }
            return Stage::In(open);
        }
        let rest = open.bytes.get(open.offset..).unwrap_or_default();
        let expected = self.last.seq.saturating_add(1);
        let promised = self.head.is_some_and(|head| head.position.seq >= expected);
        if is_last && !promised && !frames_in(rest).any(|(_, later)| later >= expected) {
            let used = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let what = format!("{used} bytes of an unfinished write: {error}");
            let mut fault = self.fault(FaultKind::Tail, &open.path, open.offset, what);
            fault.len = widen(used);
            self.tell(fault);
            return Stage::Between { after: Some(open.first), sealed: None };
        }
        let skip = frames_in(rest).next().map_or(rest.len(), |(offset, _)| offset);
        let kind = match error {
            FrameError::NewerVersion { .. } => FaultKind::Newer,
            _ => FaultKind::Bytes,
        };
        let mut fault = self.fault(kind, &open.path, open.offset, error.to_string());
        fault.len = widen(skip);
        self.tell(fault);
        self.last_len = 0;
        open.offset += skip;
        Stage::In(open)
    }

    /// Holds what derived files say of a frame against it.
    fn judge_proofs(&mut self, position: Position) {
        let other = |proof: &&Proof| {
            proof.position.seq == position.seq && proof.position.hash != position.hash
        };
        for proof in self.proofs.iter().filter(other).cloned().collect::<Vec<_>>() {
            let what = "it includes another frame than the log has there".to_owned();
            let mut fault = self.fault(FaultKind::Derived, &proof.path, 0, what);
            fault.seq = position.seq;
            self.tell(fault);
        }
    }

    /// Everything was read: is it all that was durable?
    fn end(&mut self) {
        self.end_of_proofs();
        self.end_of_head();
    }

    fn end_of_proofs(&mut self) {
        let last = self.last.seq;
        for proof in std::mem::take(&mut self.proofs) {
            let proven = proof.position.seq;
            if proven > last {
                let what = format!("it includes seq {proven}, and the log ends at seq {last}");
                let mut fault = self.fault(FaultKind::Derived, &proof.path, 0, what);
                fault.lost = Some(last.saturating_add(1)..=proven);
                self.tell(fault);
            }
        }
    }

    fn end_of_head(&mut self) {
        let Some(head) = self.head.filter(|head| head.position.seq > self.last.seq) else { return };
        let lost = self.last.seq.saturating_add(1)..=head.position.seq;
        let what = format!(
            "the log ends at seq {}, though HEAD says that seq {} was durable",
            self.last.seq,
            lost.end()
        );
        let offset = usize::try_from(head.offset).unwrap_or(usize::MAX);
        let mut fault = self.fault(FaultKind::Head, &self.path_of(head.segment), offset, what);
        fault.lost = Some(lost);
        self.tell(fault);
    }
}

impl Iterator for Inspector {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.found.pop_front() {
                return Some(piece);
            }
            self.stage = match std::mem::replace(&mut self.stage, Stage::End) {
                Stage::Between { after, sealed } => self.enter(after, sealed),
                Stage::In(open) => self.read_on(open),
                Stage::End => return None,
            };
        }
    }
}

/// Passes over segments that were to be removed when a mover of history died: those before the state that it left, if not
/// all of them are there.
fn drop_leftovers(listed: &mut Vec<Seq>, stubs: &[Seq]) {
    let begins = |first: Seq| first <= 1 || stubs.contains(&first.saturating_sub(1));
    if listed.first().is_none_or(|first| begins(*first)) {
        return;
    }
    let after = |stub: &&Seq| listed.contains(&stub.saturating_add(1));
    if let Some(stub) = stubs.iter().rev().find(after).copied() {
        listed.retain(|first| *first > stub);
    }
}

/// Whole frames in `bytes` behind its first byte: their offsets, and what their writers knew to be durable.
fn frames_in(bytes: &[u8]) -> impl Iterator<Item = (usize, Seq)> {
    let starts = bytes.windows(MAGIC.len()).enumerate().skip(1);
    starts.filter(|(_, start)| *start == MAGIC).filter_map(|(offset, _)| {
        let (frame, ..) = Frame::decode(bytes.get(offset..)?).ok()?;
        Some((offset, frame.header.durable_seq))
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn read_file(path: &Path, durably: bool) -> io::Result<Vec<u8>> {
    let file = files::open_to_read(path)?;
    let mut bytes = Vec::new();
    (&file).take(MAX_SEGMENT).read_to_end(&mut bytes)?;
    if durably {
        file.sync_data()?;
    }
    Ok(bytes)
}

/// A HEAD that cannot be read says nothing.
fn read_head(path: &Path) -> Option<DurableEnd> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(head::FILE_LEN).ok()?;
    files::open_to_read(path).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    head::furthest(&bytes).map(DurableEnd::from)
}

fn widen(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
