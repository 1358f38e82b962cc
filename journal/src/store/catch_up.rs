//! Brings the store up to the log, and repairs what does not fit it.
//!
//! A pass looks at the sealed generations by their stamps (each must lead to the next), then
//! follows the log with the newest. The first thing that does not fit is rebuilt and ends the pass;
//! passes are made until one finds nothing to repair, because a rebuilt generation may show that
//! its neighbour is wrong too.

use std::cmp::Ordering;

use super::extent::Extent;
use super::generation::{Generation, Unfit};
use super::repair::{Repair, Repaired};
use super::source::{FrameSource, Frames};
use super::{Store, StoreError, generation_dir, generations, io_error, quarantine};
use crate::checkpoint::Stub;
use crate::frame::{Frame, Hash, Position, Seq};

/// Events applied in one batch, unless a single frame has more.
const BATCH_EVENTS: u64 = 256;
/// Events applied between two flushes.
const FLUSH_EVENTS: u64 = 4096;

/// What a catch-up did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaughtUp {
    /// The last frame that the store holds now.
    pub position: Position,
    /// Number of events that were added, those excepted that went into a generation while it was
    /// rebuilt.
    pub events: u64,
    /// What was repaired, in order.
    pub repairs: Vec<Repaired>,
}

/// Whether a pass may go on, or something was repaired and all must be looked at again.
#[derive(PartialEq, Eq)]
enum Pass {
    Fits,
    Repaired,
}

impl Store {
    /// Applies all frames up to `durable` that are not in the store yet, and rebuilds generations
    /// that are missing, behind what they had, damaged, ahead of the log or of another history.
    /// Doing it again changes nothing. When it returns, everything is synced.
    ///
    /// `durable` is a position up to which the log is known to be synced; frames beyond it are not
    /// touched. It may be an old one: a store that is ahead of it is held against the real end of
    /// the log. A repair that [accuses the log](Repair::accuses_log) must be raised by the caller.
    ///
    /// # Errors
    /// Any [`StoreError`] but [`StoreError::Unfit`] and [`StoreError::Before`]. What was there
    /// before is still there then.
    pub fn catch_up<S: FrameSource + ?Sized>(
        &mut self,
        source: &S,
        durable: Position,
    ) -> Result<CaughtUp, StoreError> {
        let mut work =
            CatchUp { store: self, source, durable, end: None, report: CaughtUp::default() };
        loop {
            let firsts = generations(&work.store.dir)?;
            let repairs = work.report.repairs.len();
            if repairs > 3 * firsts.len() + 8 {
                return Err(StoreError::Unsettled { repairs, dir: work.store.dir.clone() });
            }
            if work.sealed(&firsts)? == Pass::Fits && work.follow()? == Pass::Fits {
                return Ok(work.report);
            }
        }
    }
}

struct CatchUp<'a, S: ?Sized> {
    store: &'a mut Store,
    source: &'a S,
    durable: Position,
    /// The real end of the log, once it was asked for.
    end: Option<Position>,
    report: CaughtUp,
}

impl<S: FrameSource + ?Sized> CatchUp<'_, S> {
    /// Looks at where the history begins and whether each generation leads to the next.
    fn sealed(&mut self, firsts: &[Seq]) -> Result<Pass, StoreError> {
        let Some((first, rest)) = firsts.split_first() else { return self.begin() };
        if let Some(begins) = self.moved_before()?.filter(|begins| first < begins) {
            // It cannot be held against the log, nor made anew from it.
            self.store.retire(begins)?;
            return Ok(Pass::Repaired);
        }
        if *first > 1 && self.first_frame(1)?.is_some_and(|(frame, _)| frame.header.seq < *first) {
            return self.begin();
        }
        let mut current = *first;
        for next in rest {
            if self.leads(current, *next)? == Pass::Repaired {
                return Ok(Pass::Repaired);
            }
            current = *next;
        }
        Ok(Pass::Fits)
    }

    /// The event with which history begins here, if what was before was moved away.
    fn moved_before(&self) -> Result<Option<Seq>, StoreError> {
        let stub = Stub::latest(&self.store.journal_dir)
            .map_err(|error| StoreError::Source(error.into()))?;
        let Some(moved) = stub.map(|stub| stub.position().seq) else { return Ok(None) };
        let first = self.first_frame(1)?.map_or(0, |(frame, _)| frame.header.seq);
        Ok(Some(first.min(moved.saturating_add(1))))
    }

    /// Makes the generation with which the kept history begins.
    fn begin(&mut self) -> Result<Pass, StoreError> {
        match self.first_frame(1)? {
            Some((frame, _)) if frame.header.seq <= self.durable.seq => {
                let first = frame.header.seq;
                if !generations(&self.store.dir)?.is_empty() {
                    return self.rebuild(first, Repair::Missing);
                }
                self.create(Extent::empty(first, frame.header.prev_hash)).map(|()| Pass::Fits)
            }
            _ => Ok(Pass::Fits),
        }
    }

    /// Checks that the generation `first` was sealed and leads to the generation `next`.
    fn leads(&mut self, first: Seq, next: Seq) -> Result<Pass, StoreError> {
        let (one, other) = match (self.store.sealed_extent(first), self.store.extent(next)) {
            (Ok(one), Ok(other)) => (one, other),
            (Err(unfit), _) => return self.repair(first, unfit),
            (_, Err(unfit)) => return self.repair(next, unfit),
        };
        if next > self.durable.seq.saturating_add(1) {
            // A rebuilt one could not reach its seal; a later catch-up that knows more will look.
            return Ok(Pass::Fits);
        }
        let before = Position { seq: next - 1, hash: other.before };
        match one.next {
            Some(leads_to) if leads_to < next => self.rebuild(leads_to, Repair::Missing),
            Some(leads_to) if leads_to == next && one.last == before => Ok(Pass::Fits),
            _ if one.last.seq >= before.seq => {
                self.part(next, &Repair::Different { store: before, log: one.last })
            }
            _ => self.rebuild(first, Repair::Behind { had: before, has: one.last }),
        }
    }

    /// Follows the log with the newest generation, and with new ones after each seal.
    fn follow(&mut self) -> Result<Pass, StoreError> {
        while let Some(first) = generations(&self.store.dir)?.pop() {
            let extent = match self.store.open_generation(first) {
                Ok(generation) => generation.extent(),
                Err(unfit) => return self.repair(first, unfit),
            };
            self.report.position = extent.last;
            if let Some(repair) = self.contradicts(extent.last)? {
                return self.part(first, &repair);
            }
            if extent.last.seq >= self.durable.seq {
                return Ok(Pass::Fits);
            }
            if let Some(next) = extent.next {
                self.create(Extent::empty(next, extent.last.hash))?;
                continue;
            }
            match self.extend(first, extent.last) {
                Ok(()) => {}
                Err(Unfit::Repair(cause)) if cause.accuses_log() => {
                    return self.part(first, &cause);
                }
                Err(unfit) => {
                    // After a failed write sled refuses everything; opened anew it goes on.
                    self.store.open.remove(&first);
                    return self.repair(first, unfit);
                }
            }
        }
        Ok(Pass::Fits)
    }

    /// The store and the log part at the generation `found` or before. All from the first one that the
    /// log does not bear out are kept aside; following the log makes them anew.
    fn part(&mut self, found: Seq, cause: &Repair) -> Result<Pass, StoreError> {
        let firsts = generations(&self.store.dir)?;
        let mut from = found;
        for first in firsts.iter().copied().filter(|first| *first < found) {
            if !self.agrees(first)? {
                from = first;
                break;
            }
        }
        // The newest first: if this process dies in between, what remains still leads somewhere.
        for first in firsts.into_iter().rev().filter(|first| *first >= from) {
            self.discard(first, cause.clone())?;
        }
        Ok(Pass::Repaired)
    }

    /// Says whether the log bears a generation out, as far as it is durable.
    fn agrees(&mut self, first: Seq) -> Result<bool, StoreError> {
        let extent = match self.store.extent(first) {
            Ok(extent) => extent,
            Err(Unfit::Error(error)) => return Err(error),
            Err(Unfit::Repair(_)) => return Ok(false),
        };
        let begins = self.first_frame(first)?.is_none_or(|(frame, _)| {
            frame.header.seq == first && frame.header.prev_hash == extent.before
        });
        let last = extent.last;
        let ends = last.seq < first
            || self.first_frame(last.seq)?.is_none_or(|(frame, hash)| frame.position(hash) == last);
        Ok(begins && ends)
    }

    /// What the log says against a generation that ends at `last`.
    fn contradicts(&mut self, last: Position) -> Result<Option<Repair>, StoreError> {
        let log = if last.seq > self.durable.seq { self.end()? } else { self.durable };
        let store = last;
        Ok(match last.seq.cmp(&log.seq) {
            Ordering::Greater => Some(Repair::Ahead { store, log }),
            Ordering::Equal if last.hash != log.hash => Some(Repair::Different { store, log }),
            _ => None,
        })
    }

    /// How far the log really reaches. The caller's position may be older than the store: another
    /// process was quicker, or a power cut undid what was written down of it. This one only judges;
    /// no frame beyond the caller's position is taken.
    fn end(&mut self) -> Result<Position, StoreError> {
        if let Some(end) = self.end {
            return Ok(end);
        }
        let end = self.source.end().map_err(StoreError::Source)?;
        self.end = Some(end);
        Ok(end)
    }

    /// Adds the frames after `last` to a generation, up to its seal or the durable position.
    fn extend(&mut self, first: Seq, last: Position) -> Result<(), Unfit> {
        let source = self.source;
        let mut frames = source.frames_from(last.seq + 1).map_err(source_error)?;
        let head = frames.next().transpose().map_err(source_error)?;
        let Some(head) = head.filter(|(frame, _)| frame.header.seq <= last.seq + 1) else {
            return Err(StoreError::Gap { expected: last.seq + 1 }.into());
        };
        if head.0.header.seq <= last.seq || head.0.header.prev_hash != last.hash {
            let log = Position { seq: last.seq, hash: head.0.header.prev_hash };
            return Err(Unfit::Repair(Repair::Different { store: last, log }));
        }
        let frames: Frames<'_> = Box::new(std::iter::once(Ok(head)).chain(frames));
        let durable = self.durable;
        let generation = self.store.open_generation(first)?;
        fill(generation, frames, durable)?;
        generation.flush()?;
        self.report.position = generation.extent().last;
        self.report.events += self.report.position.seq - last.seq;
        if self.report.position == last {
            // The position called durable lies inside a frame.
            return Err(StoreError::Chain { seq: last.seq + 1 }.into());
        }
        Ok(())
    }

    /// Makes an empty generation, the next one to be written to.
    fn create(&mut self, extent: Extent) -> Result<(), StoreError> {
        let (journal_dir, options) = (&self.store.journal_dir, self.store.options);
        Generation::build(journal_dir, extent, options, |_| Ok(()))
            .map_err(|unfit| unfit.into_error(extent.first))?;
        Generation::install(journal_dir, extent.first)?;
        (options.boundary)("store.created");
        Ok(())
    }

    fn repair(&mut self, first: Seq, unfit: Unfit) -> Result<Pass, StoreError> {
        match unfit {
            Unfit::Error(error) => Err(error),
            Unfit::Repair(cause) if first <= self.durable.seq.saturating_add(1) => {
                self.rebuild(first, cause)
            }
            Unfit::Repair(cause) => self.discard(first, cause),
        }
    }

    /// Builds a generation anew from the log, keeps the old one aside and puts the new one in its
    /// place. If the log cannot be read, nothing is moved.
    fn rebuild(&mut self, first: Seq, cause: Repair) -> Result<Pass, StoreError> {
        tracing::warn!(generation = first, %cause, "rebuilding a generation of the event store");
        self.store.open.remove(&first);
        let before = match self.first_frame(first)? {
            Some((frame, _)) if frame.header.seq == first => frame.header.prev_hash,
            // No segment begins there: the generation has no place in this history.
            Some((frame, _)) if frame.header.seq < first => return self.part(first, &cause),
            None if first == self.durable.seq.saturating_add(1) => self.durable.hash,
            _ => return Err(StoreError::Gap { expected: first }),
        };
        let (journal_dir, options) = (&self.store.journal_dir, self.store.options);
        let (durable, source) = (self.durable, self.source);
        Generation::build(journal_dir, Extent::empty(first, before), options, |generation| {
            let frames = source.frames_from(first).map_err(source_error)?;
            fill(generation, frames, durable)
        })
        .map_err(|unfit| unfit.into_error(first))?;
        let kept = self.set_aside(first, &cause)?;
        Generation::install(&self.store.journal_dir, first)?;
        (options.boundary)("store.rebuilt");
        self.report.repairs.push(Repaired { generation: first, cause, kept });
        Ok(Pass::Repaired)
    }

    /// Keeps a generation aside.
    fn discard(&mut self, first: Seq, cause: Repair) -> Result<Pass, StoreError> {
        tracing::warn!(generation = first, %cause, "keeping a generation of the event store aside");
        self.store.open.remove(&first);
        let kept = self.set_aside(first, &cause)?;
        self.report.repairs.push(Repaired { generation: first, cause, kept });
        Ok(Pass::Repaired)
    }

    fn set_aside(
        &self,
        first: Seq,
        cause: &Repair,
    ) -> Result<Option<std::path::PathBuf>, StoreError> {
        let dir = generation_dir(&self.store.dir, first);
        let kept = quarantine::set_aside(&self.store.journal_dir, first, &dir, cause)
            .map_err(|source| io_error(&dir, "move to quarantine", source))?;
        (self.store.options.boundary)("store.aside");
        Ok(kept)
    }

    /// The first durable frame at or after `seq`.
    fn first_frame(&self, seq: Seq) -> Result<Option<(Frame, Hash)>, StoreError> {
        if seq > self.durable.seq {
            return Ok(None);
        }
        self.frames_from(seq)?.next().transpose().map_err(StoreError::Source)
    }

    fn frames_from(&self, seq: Seq) -> Result<Frames<'_>, StoreError> {
        self.source.frames_from(seq).map_err(StoreError::Source)
    }
}

/// Applies frames, each following the one before, up to a seal or the durable position.
fn fill(generation: &mut Generation, frames: Frames<'_>, durable: Position) -> Result<(), Unfit> {
    let mut last = generation.extent().last;
    let mut batch: Vec<(Frame, Hash)> = Vec::new();
    for item in frames {
        let (frame, hash) = item.map_err(source_error)?;
        if frame.last_seq() > durable.seq {
            break;
        }
        check_chain(&frame, hash, last, durable)?;
        last = frame.position(hash);
        let sealed =
            frame.entries.iter().any(|entry| crate::reserved::sealed_next(entry).is_some());
        batch.push((frame, hash));
        if sealed || last.seq == durable.seq {
            break;
        }
        if last.seq - generation.extent().last.seq >= BATCH_EVENTS {
            apply(generation, &mut batch)?;
        }
    }
    apply(generation, &mut batch)
}

fn apply(generation: &mut Generation, batch: &mut Vec<(Frame, Hash)>) -> Result<(), Unfit> {
    generation.append(batch)?;
    batch.clear();
    if generation.unflushed() >= FLUSH_EVENTS {
        generation.flush()?;
    }
    Ok(())
}

fn check_chain(
    frame: &Frame,
    hash: Hash,
    last: Position,
    durable: Position,
) -> Result<(), StoreError> {
    let seq = frame.header.seq;
    let follows = Some(seq) == last.seq.checked_add(1) && frame.header.prev_hash == last.hash;
    let ends = frame.last_seq() != durable.seq || hash == durable.hash;
    if follows && ends && !frame.entries.is_empty() {
        Ok(())
    } else {
        Err(StoreError::Chain { seq })
    }
}

fn source_error(error: crate::error::AnyError) -> Unfit {
    Unfit::Error(StoreError::Source(error))
}
