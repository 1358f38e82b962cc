//! One way through the log as it should be: what is good stays, what is bad is put back, the rest is lost.
//!
//! Works on images of the segments in memory; nothing is written.

use uuid::Uuid;

use super::image::Images;
use super::sources::{Kept, Sources};
use super::{Loss, RepairOptions, Restored, Source, bits};
use crate::checkpoint::Stub;
use crate::cursor::Mark;
use crate::directory::Directory;
use crate::error::JournalError;
use crate::files;
use crate::frame::{Frame, Hash, Position, Seq};
use crate::head::{self, Head};
use crate::proof::{self, Proof};
use crate::reserved::sealed_next;
use crate::segment::{HEADER_LEN, SegmentHeader};

/// Bytes that are to be put back, with what they are.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) segment: Seq,
    pub(super) bytes: Vec<u8>,
    pub(super) told: Restored,
}

/// Where the log is cut if it must be: before its first loss.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutAt {
    pub(super) mark: Mark,
}

/// What the walk found.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) writes: Vec<Write>,
    pub(super) losses: Vec<Loss>,
    /// Before the first loss.
    pub(super) cut: Option<CutAt>,
    /// Where the log ends, or will.
    pub(super) end: Mark,
    /// Highest number that anything knows.
    pub(super) known: Seq,
    /// Hashes of the frames that checkpoints stand on, where the log bears them out.
    pub(super) borne_out: Vec<Position>,
    pub(super) images: Images,
    pub(super) root: Uuid,
}

struct Walk<'a> {
    directory: &'a Directory,
    options: &'a RepairOptions,
    images: Images,
    sources: Sources,
    listed: Vec<Seq>,
    head: Option<Head>,
    proofs: Vec<Proof>,
    root: Uuid,
    at: Mark,
    wall_us: Option<i64>,
    /// The highest number that anything knows, once something was found wrong.
    known: Option<Seq>,
    /// A loss after which no frame was read yet.
    open_loss: bool,
    walked: (Vec<Write>, Vec<Loss>, Option<CutAt>, Vec<Position>),
}

pub(super) fn walk(directory: &Directory, options: &RepairOptions) -> Result<Walked, JournalError> {
    let head = read_head(directory);
    let proofs = proof::read(directory.path());
    let listed = directory.list()?;
    if listed.is_empty() && head.is_none() && proofs.is_empty() {
        return Err(JournalError::Missing { path: directory.path().to_owned() });
    }
    let mut walk = Walk {
        directory,
        options,
        images: Images::new(directory),
        sources: Sources::new(directory.path(), &options.copies),
        listed,
        head,
        proofs,
        root: Uuid::nil(),
        at: Mark::default(),
        wall_us: None,
        known: None,
        open_loss: false,
        walked: Default::default(),
    };
    walk.find_root();
    walk.enter_first()?;
    while walk.step()? {}
    Ok(walk.finish())
}

/// HEAD, if it can be read and speaks of anything.
fn read_head(directory: &Directory) -> Option<Head> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let limit = u64::try_from(head::FILE_LEN).ok()?;
    files::open_to_read(&directory.head()).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    head::furthest(&bytes)
}

impl Walk<'_> {
    /// The root that was given, or that the first file names.
    fn find_root(&mut self) {
        let mut root = self.options.journal.root;
        for first in &self.listed {
            let first = *first;
            root = root.or(self.images.header(first).map(|header| header.root));
        }
        self.root = root.or(self.head.map(|head| head.root)).unwrap_or_default();
        // A HEAD of another root speaks of another log.
        self.head = self.head.filter(|head| head.root == self.root);
    }

    /// History begins with the first segment that is there, or with that of a generation before it.
    fn enter_first(&mut self) -> Result<(), JournalError> {
        let listed = self.listed.first().copied().unwrap_or(1);
        let first = if listed > 1 && self.begins_at_one() { 1 } else { listed };
        let image = self.images.get(first)?;
        let found = SegmentHeader::decode(&image.bytes).ok().filter(|header| header.first == first);
        let frame = Frame::decode(image.after(header_len())).ok().map(|(frame, ..)| frame);
        let frame = frame.filter(|frame| frame.header.seq == first);
        let prev_hash = match (first, &frame, &found) {
            (1, ..) => Hash::default(),
            (_, Some(frame), _) => frame.header.prev_hash,
            (_, None, Some(header)) => header.prev_hash,
            (_, None, None) => Hash::default(),
        };
        let wall_us = frame.map(|frame| frame.header.wall_us);
        let created_us = wall_us.unwrap_or_else(|| (self.options.journal.clock.wall_us)());
        let header = found
            .filter(|header| header.root == self.root && header.prev_hash == prev_hash)
            .unwrap_or(SegmentHeader {
                root: self.root,
                first,
                prev_hash,
                created_us,
                prev_end: 0,
                prev_last_len: 0,
            });
        self.enter(&header)
    }

    /// Whether the event store begins before the first segment, and no stub says that what was before it
    /// was moved away, so that the segment is missing.
    fn begins_at_one(&self) -> bool {
        let before = self.listed.first().map_or(0, |first| first.saturating_sub(1));
        if matches!(Stub::at(self.directory.path(), before), Ok(Some(_))) {
            return false;
        }
        let generations = crate::store::generation_dirs(self.directory.path());
        generations.first().is_some_and(|(first, _)| *first == 1)
    }

    fn ask(&mut self, last: Position) -> Result<Option<Kept>, JournalError> {
        let dir = self.directory.path();
        self.sources.after(last).map_err(JournalError::io("look for lost frames beside", dir))
    }

    /// Goes to the first frame of a segment, which must begin with `header`.
    fn enter(&mut self, header: &SegmentHeader) -> Result<(), JournalError> {
        self.images.keep_only(header.first);
        let image = self.images.get(header.first)?;
        let there = SegmentHeader::decode(&image.bytes);
        // What is only a hint, or a note, may differ.
        let same = there.is_ok_and(|there| {
            (there.root, there.first, there.prev_hash)
                == (header.root, header.first, header.prev_hash)
        });
        if !same {
            self.put(header.first, 0, &header.encode(), None, Source::Chain)?;
        }
        self.at = Mark {
            segment: header.first,
            seq: header.first.saturating_sub(1),
            hash: header.prev_hash,
            offset: HEADER_LEN,
            last_len: 0,
        };
        Ok(())
    }

    fn put(
        &mut self,
        segment: Seq,
        offset: usize,
        bytes: &[u8],
        frame: Option<&Frame>,
        source: Source,
    ) -> Result<(), JournalError> {
        let image = self.images.get(segment)?;
        image.put(offset, bytes);
        let told = Restored {
            path: image.path.clone(),
            offset: widen(offset),
            len: widen(bytes.len()),
            seqs: frame.map(|frame| frame.header.seq..=frame.last_seq()),
            source,
        };
        self.walked.0.push(Write { segment, bytes: bytes.to_vec(), told });
        Ok(())
    }

    /// One frame further; false at the end.
    fn step(&mut self) -> Result<bool, JournalError> {
        let (segment, offset) = (self.at.segment, narrow(self.at.offset));
        let decoded = Frame::decode(self.images.get(segment)?.after(offset));
        if let Ok((frame, len, hash)) = decoded
            && self.follows(&frame)
        {
            return self.take(&frame, hash, len);
        }
        let known = self.known()?;
        if self.at.seq >= known {
            // The end, or the tail of a dead writer: the next writer sees to it.
            return Ok(false);
        }
        if let Some(Kept { frame, bytes, hash, source }) = self.find()? {
            self.put(segment, offset, &bytes, Some(&frame), source)?;
            return self.take(&frame, hash, bytes.len());
        }
        self.lose(known)
    }

    fn follows(&self, frame: &Frame) -> bool {
        let header = &frame.header;
        header.seq == self.at.seq.saturating_add(1)
            && header.prev_hash == self.at.hash
            && header.prev_len == self.at.last_len
    }

    /// The frame that should be here, from wherever it can be had.
    fn find(&mut self) -> Result<Option<Kept>, JournalError> {
        let (segment, offset) = (self.at.segment, narrow(self.at.offset));
        let seq = self.at.seq.saturating_add(1);
        let image = self.images.get(segment)?;
        let next = image.frame_beside(offset, seq.saturating_add(1));
        let beside =
            next.as_ref().map(|(at, frame)| (*at, frame.header.seq, frame.header.prev_hash));
        if let Some(kept) = self.ask(self.at.position())?
            && self.follows(&kept.frame)
            && beside
                .is_none_or(|(_, seq, hash)| seq != kept.frame.last_seq() + 1 || hash == kept.hash)
        {
            return Ok(Some(kept));
        }
        let vouched = self.vouched(beside.map(|(_, seq, hash)| (seq, hash)));
        let image = self.images.get(segment)?;
        let ends = image.bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let (from, to) = (offset, beside.map_or(ends.max(offset), |(at, ..)| at));
        let bytes = image.bytes.get(from..to).unwrap_or_default().to_vec();
        let mended = bits::mend(&bytes, |frame, hash| {
            self.follows(frame) && vouched.contains(&frame.position(hash))
        });
        Ok(mended.map(|(frame, bytes, hash)| Kept { frame, bytes, hash, source: Source::Bit }))
    }

    /// Frames whose hash something else names.
    fn vouched(&self, beside: Option<(Seq, Hash)>) -> Vec<Position> {
        let next = beside.map(|(seq, hash)| Position { seq: seq.saturating_sub(1), hash });
        let head = self.head.map(|head| head.mark.position());
        let proofs: Vec<_> = self.proofs.iter().map(|proof| proof.position).collect();
        let later = self.listed.iter().copied().filter(|first| *first > self.at.segment);
        let headers = later.filter_map(|first| {
            let header = self.images.header(first)?;
            Some(Position { seq: first.saturating_sub(1), hash: header.prev_hash })
        });
        next.into_iter().chain(head).chain(proofs).chain(headers).collect()
    }

    /// The highest number that anything behind this place knows to have been durable.
    fn known(&mut self) -> Result<Seq, JournalError> {
        if let Some(known) = self.known {
            return Ok(known);
        }
        let head = self.head.map_or(0, |head| head.mark.seq);
        let proofs = self.proofs.iter().map(|proof| proof.position.seq).max().unwrap_or_default();
        let (segment, offset) = (self.at.segment, narrow(self.at.offset));
        let mut known = head.max(proofs).max(self.images.get(segment)?.durable_after(offset));
        let later: Vec<Seq> =
            self.listed.iter().copied().filter(|first| *first > segment).collect();
        for first in later {
            let image = self.images.get(first)?;
            if image.after(header_len()).iter().any(|byte| *byte != 0) {
                known = known.max(first.saturating_sub(1)).max(image.durable_after(header_len()));
            }
            self.images.keep_only(segment);
        }
        self.known = Some(known);
        let image = self.images.get(segment)?;
        self.sources.remember(image.frames(offset));
        Ok(known)
    }

    /// Takes a frame that is good, or will be.
    fn take(&mut self, frame: &Frame, hash: Hash, len: usize) -> Result<bool, JournalError> {
        let position = frame.position(hash);
        if self.open_loss {
            self.open_loss = false;
            if let Some(loss) = self.walked.1.last_mut() {
                loss.before_us = Some(frame.header.wall_us);
            }
        }
        self.wall_us = Some(frame.header.wall_us);
        self.at = self.at.after(frame, hash, len);
        if self.proofs.iter().any(|proof| proof.position == position) {
            self.walked.3.push(position);
        }
        if let Some(next) = frame.entries.last().and_then(sealed_next) {
            self.clear_after_seal()?;
            let header = SegmentHeader {
                root: self.root,
                first: next,
                prev_hash: hash,
                created_us: frame.header.wall_us,
                prev_end: self.at.offset,
                prev_last_len: self.at.last_len,
            };
            self.enter(&header)?;
        }
        Ok(true)
    }

    /// Nothing follows a seal.
    fn clear_after_seal(&mut self) -> Result<(), JournalError> {
        let (segment, offset) = (self.at.segment, narrow(self.at.offset));
        let rest = self.images.get(segment)?.after(offset);
        if rest.iter().any(|byte| *byte != 0) {
            let zeroes = vec![0; rest.len()];
            self.put(segment, offset, &zeroes, None, Source::Nothing)?;
        }
        Ok(())
    }

    /// Notes a loss and goes on behind it; false if nothing is there.
    fn lose(&mut self, known: Seq) -> Result<bool, JournalError> {
        let first = self.at.seq.saturating_add(1);
        let (segment, offset) = (self.at.segment, narrow(self.at.offset));
        let image = self.images.get(segment)?;
        let path = image.path.clone();
        let next = image.next_frame(offset.saturating_sub(1), first);
        let later = self.listed.iter().copied().find(|next| *next > segment.max(self.at.seq));
        self.walked.2.get_or_insert(CutAt { mark: self.at });
        let mut loss = Loss {
            seqs: first..=known,
            path,
            offset: self.at.offset,
            after_us: self.wall_us,
            before_us: None,
        };
        self.open_loss = true;
        let goes_on = match (next, later) {
            // The same place in another history: everything from here on is of that.
            (Some((_, frame)), _) if frame.header.seq == first => {
                self.at.seq = known.max(first);
                false
            }
            (Some((at, frame)), _) => {
                loss.seqs = first..=frame.header.seq.saturating_sub(1).max(first);
                self.at = Mark {
                    segment,
                    seq: frame.header.seq.saturating_sub(1),
                    hash: frame.header.prev_hash,
                    offset: widen(at),
                    last_len: frame.header.prev_len,
                };
                true
            }
            (None, Some(later)) => {
                loss.seqs = first..=later.saturating_sub(1).max(first);
                self.enter_after_loss(later)?;
                true
            }
            (None, None) => {
                self.at.seq = known;
                false
            }
        };
        self.walked.1.push(loss);
        Ok(goes_on)
    }

    /// A segment whose seal is lost says itself what was before it.
    fn enter_after_loss(&mut self, first: Seq) -> Result<(), JournalError> {
        let image = self.images.get(first)?;
        let header = SegmentHeader::decode(&image.bytes).ok();
        let frame = Frame::decode(image.after(header_len())).ok().map(|(frame, ..)| frame);
        let prev_hash = header.as_ref().map(|header| header.prev_hash);
        let prev_hash = prev_hash.or(frame.as_ref().map(|frame| frame.header.prev_hash));
        let header = header.unwrap_or(SegmentHeader {
            root: self.root,
            first,
            prev_hash: prev_hash.unwrap_or_default(),
            created_us: frame.map_or(0, |frame| frame.header.wall_us),
            prev_end: 0,
            prev_last_len: 0,
        });
        self.enter(&header)
    }

    fn finish(self) -> Walked {
        let (writes, losses, cut, borne_out) = self.walked;
        let proven = self.proofs.iter().map(|proof| proof.position.seq).max().unwrap_or_default();
        let head = self.head.map_or(0, |head| head.mark.seq);
        Walked {
            writes,
            losses,
            cut,
            known: self.at.seq.max(proven).max(head),
            end: self.at,
            borne_out,
            images: self.images,
            root: self.root,
        }
    }
}

fn header_len() -> usize {
    narrow(HEADER_LEN)
}

pub(super) fn narrow(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

pub(super) fn widen(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
