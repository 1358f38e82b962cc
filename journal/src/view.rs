//! What one handle has validated: the end of the log, and every frame above the known durable end.
//!
//! ```text
//!   ...durable frames... | pending frames (in memory as well) | end
//!                        ^ known durable                      ^ where the next frame goes
//! ```
//!
//! Pending frames may be anybody's. Whoever writes next writes them again with its own, from here:
//! a sync that failed for their writer may have lost them in a way that no later sync reports.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cursor::{Cursor, Fault, Found, From, Mark, Step};
use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Frame, Hash, Position, Seq};
use crate::head::Head;
use crate::journal::Fold;
use crate::segment::Segment;

/// A frame that is not known to be durable.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) after: Mark,
    pub(crate) bytes: Vec<u8>,
}

impl Pending {
    pub(crate) fn offset(&self) -> u64 {
        self.after.offset.saturating_sub(u64::from(self.after.last_len))
    }
}

/// Why reading stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// At the end.
    End,
    /// At bytes that are no frame.
    Bad(Fault),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct View {
    cursor: Cursor,
    known: Seq,
    pending: VecDeque<Pending>,
}

impl View {
    /// A view that starts where both `position` and the durable end are still ahead.
    pub(crate) fn open(
        directory: &Directory,
        position: Position,
        head: Option<&Head>,
    ) -> Result<Self, JournalError> {
        let base = match head {
            Some(head) if head.mark.seq < position.seq => head.mark.position(),
            _ => position,
        };
        let located = Cursor::locate(directory, From::Position(base), head)?;
        let Some(mut cursor) = located else { return Err(ends_early(directory, base)) };
        if head.is_none() {
            // What is durable is then only known of what lies before the segment.
            let first = cursor.mark().segment;
            cursor =
                Cursor::at_segment(directory, first)?.ok_or_else(|| ends_early(directory, base))?;
        }
        let known = match head {
            Some(head) => head.mark.seq,
            None => cursor.mark().seq,
        };
        Ok(Self { cursor, known, pending: VecDeque::new() })
    }

    /// A view of the last two segments, for when nothing else tells where to begin.
    pub(crate) fn latest(directory: &Directory) -> Result<Self, JournalError> {
        let firsts = directory.list()?;
        let missing = || JournalError::Missing { path: directory.path().to_owned() };
        let first = *firsts.iter().rev().take(2).next_back().ok_or_else(missing)?;
        let cursor = Cursor::at_segment(directory, first)?.ok_or_else(missing)?;
        let known = cursor.mark().seq;
        Ok(Self { cursor, known, pending: VecDeque::new() })
    }

    /// The end of what was validated.
    pub(crate) fn end(&self) -> Mark {
        self.cursor.mark()
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        self.cursor.segment()
    }

    /// Highest sequence number known to be durable.
    pub(crate) fn known(&self) -> Seq {
        self.known
    }

    pub(crate) fn pending(&self) -> &VecDeque<Pending> {
        &self.pending
    }

    /// Everything up to `seq` is durable.
    pub(crate) fn learn(&mut self, seq: Seq) {
        self.known = self.known.max(seq);
        while self.pending.front().is_some_and(|first| first.after.seq <= self.known) {
            self.pending.pop_front();
        }
    }

    /// Reads what is new, and hands it to `fold`.
    pub(crate) fn advance<F: Fold>(
        &mut self,
        head: Option<&Head>,
        fold: &mut F,
    ) -> Result<Stop, JournalError> {
        self.cursor.reload();
        if let Some(head) = head {
            self.learn_head(head)?;
        }
        loop {
            match self.cursor.step()? {
                Step::Frame(found) => {
                    if let Some(head) = head {
                        self.check_head(head, found.after)?;
                    }
                    let (frame, hash) = self.take(found);
                    feed(fold, &frame, hash)?;
                }
                Step::End => return Ok(Stop::End),
                Step::Bad(fault) => return Ok(Stop::Bad(fault)),
            }
        }
    }

    fn take(&mut self, found: Found) -> (Frame, Hash) {
        self.learn(found.frame.header.durable_seq);
        if found.after.seq > self.known {
            self.pending.push_back(Pending { after: found.after, bytes: found.bytes });
        }
        (found.frame, found.hash)
    }

    /// Takes over what `HEAD` says, unless it names other frames than this view has.
    pub(crate) fn learn_head(&mut self, head: &Head) -> Result<(), JournalError> {
        self.check_head(head, self.end())?;
        for pending in &self.pending {
            self.check_head(head, pending.after)?;
        }
        self.learn(head.mark.seq);
        Ok(())
    }

    fn check_head(&self, head: &Head, mark: Mark) -> Result<(), JournalError> {
        if head.mark.seq != mark.seq || head.mark.hash == mark.hash {
            return Ok(());
        }
        let what = "the frame there is not the one that HEAD calls durable";
        Err(self.damaged_at(mark, what.to_owned()))
    }

    /// Compares the pending frames with what is on disk. They may have vanished there (a page that
    /// could not be written back); then they will be written again. Other frames in their place mean
    /// that this view has followed a history that was never durable.
    pub(crate) fn compare(&self) -> Result<(), JournalError> {
        let live = self.end().segment;
        let here = || self.pending.iter().filter(|pending| pending.after.segment == live);
        let Some(start) = here().next().map(Pending::offset) else { return Ok(()) };
        // Pending frames lie back to back.
        let mut bytes = vec![0; here().map(|pending| pending.bytes.len()).sum()];
        let len = self.segment().read(&mut bytes, start)?;
        let mut on_disk = bytes.get(..len).unwrap_or_default();
        for pending in here() {
            let (found, rest) = on_disk.split_at(pending.bytes.len().min(on_disk.len()));
            if found != pending.bytes
                && let Ok((frame, _, hash)) = Frame::decode(on_disk)
            {
                let folded = pending.after.position();
                return Err(JournalError::Diverged { folded, found: frame.position(hash) });
            }
            on_disk = rest;
        }
        Ok(())
    }

    /// Syncs the segments that hold pending frames: the live one, and those before it whose seal is
    /// pending.
    pub(crate) fn sync_pending(&self) -> Result<(), JournalError> {
        let live = self.end().segment;
        let mut synced = live;
        for pending in &self.pending {
            let number = pending.after.segment;
            if number != live && number != synced {
                if let Some(segment) = self.cursor.directory().open_segment(number)? {
                    segment.sync()?;
                }
                synced = number;
            }
        }
        self.segment().sync()
    }

    /// The error for damage at `mark`.
    fn damaged_at(&self, mark: Mark, what: String) -> JournalError {
        JournalError::Damaged {
            path: self.segment().path.clone(),
            seq: mark.seq,
            offset: mark.offset,
            what,
        }
    }

    /// The error for damage right after the end of the view.
    pub(crate) fn damaged(&self, what: String) -> JournalError {
        damaged(&self.cursor, what)
    }

    /// Adds a frame that is about to be written at the end.
    pub(crate) fn append(&mut self, frame: &Frame, hash: Hash, bytes: Vec<u8>) {
        let after = self.end().after(frame, hash, bytes.len());
        self.cursor.skip_own(frame, after);
        self.pending.push_back(Pending { after, bytes });
    }

    /// Enters the next segment after a seal was appended.
    pub(crate) fn cross_seal(&mut self) -> Result<Option<Fault>, JournalError> {
        self.cursor.cross_seal()
    }

    /// Brings `fold` from wherever it stands to the end of the view, or as near as it is.
    pub(crate) fn catch_up<F: Fold>(
        &self,
        directory: &Directory,
        head: Option<&Head>,
        fold: &mut F,
    ) -> Result<(), JournalError> {
        let (end, position) = (self.end().position(), fold.position());
        if position.seq >= end.seq {
            return if position.seq > end.seq || position == end {
                Ok(())
            } else {
                Err(JournalError::Diverged { folded: position, found: end })
            };
        }
        let located = Cursor::locate(directory, From::Position(position), head)?;
        let mut cursor = located.ok_or_else(|| ends_early(directory, position))?;
        while fold.position().seq < end.seq {
            match cursor.step()? {
                Step::Frame(found) => feed(fold, &found.frame, found.hash)?,
                Step::End => return Err(ends_early(directory, end)),
                Step::Bad(fault) => return Err(damaged(&cursor, fault.to_string())),
            }
        }
        Ok(())
    }
}

/// Hands one frame to a fold, unless the fold has it already.
pub(crate) fn feed<F: Fold>(fold: &mut F, frame: &Frame, hash: Hash) -> Result<(), JournalError> {
    let position = fold.position();
    let found = frame.position(hash);
    if found.seq <= position.seq {
        return if found.seq < position.seq || found == position {
            Ok(())
        } else {
            Err(JournalError::Diverged { folded: position, found })
        };
    }
    let header = &frame.header;
    if header.seq != position.seq.saturating_add(1) || header.prev_hash != position.hash {
        return Err(JournalError::Diverged { folded: position, found });
    }
    fold.apply(frame, hash)
        .map_err(|error| JournalError::Fold { seq: header.seq, source: Box::new(error) })
}

fn ends_early(directory: &Directory, base: Position) -> JournalError {
    JournalError::Damaged {
        path: directory.segments(),
        seq: base.seq,
        offset: 0,
        what: format!("it has no readable frame that ends at seq {}", base.seq),
    }
}

fn damaged(cursor: &Cursor, what: String) -> JournalError {
    let mark = cursor.mark();
    JournalError::Damaged {
        path: cursor.segment().path.clone(),
        seq: mark.seq.saturating_add(1),
        offset: mark.offset,
        what,
    }
}
