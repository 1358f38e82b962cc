//! A journal in memory, for tests and for the model checker: the same contract, nothing durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use uuid::Uuid;

use crate::clock::Clock;
use crate::error::JournalError;
use crate::frame::{
    CODEC_BINCODE, Entry, Frame, FrameHeader, Hash, Position, Seq, Writer, hash_of,
};
use crate::journal::{Fold, Journal, Outcome, Proposal};
use crate::view::feed;

/// A handle on a journal in memory. Clones are further handles on the same journal.
///
/// Times come from the host's clocks unless [`with_clock`](Self::with_clock) replaces them; the boot
/// id is nil, so that equal decisions at equal times give equal bytes.
#[derive(Clone, Debug, Default)]
pub struct MemoryJournal {
    frames: Arc<Mutex<Vec<(Frame, Hash)>>>,
    clock: Clock,
    operation: (Uuid, u32),
}

impl MemoryJournal {
    /// An empty journal.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty journal that takes its times from `clock`.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// A further handle on the same journal.
    #[must_use]
    pub fn handle(&self) -> Self {
        Self { operation: (Uuid::nil(), 0), ..self.clone() }
    }

    /// All frames with their hashes.
    #[must_use]
    pub fn frames(&self) -> Vec<(Frame, Hash)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Frame, Hash)>> {
        // Frames are pushed whole; a panic elsewhere cannot leave half of one.
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ordinal(&self, operation: Uuid) -> u32 {
        if self.operation.0 == operation { self.operation.1 } else { 0 }
    }

    fn frame(&self, entries: Vec<Entry>, writer: &Writer, end: Position) -> Frame {
        let header = FrameHeader {
            codec: CODEC_BINCODE,
            flags: 0,
            prev_len: 0,
            ordinal: self.ordinal(writer.operation),
            seq: end.seq.saturating_add(1),
            // Encoding refuses a frame with other than 1 to 16 events.
            count: u16::try_from(entries.len()).unwrap_or(u16::MAX),
            wall_us: (self.clock.wall_us)(),
            boottime_us: (self.clock.boottime_us)(),
            boot_id: Uuid::nil(),
            operation: writer.operation,
            pid: writer.pid,
            start_time: writer.start_time,
            verb: writer.verb.clone(),
            durable_seq: end.seq,
            prev_hash: end.hash,
        };
        Frame { header, entries }
    }
}

fn end_of(frames: &[(Frame, Hash)]) -> Position {
    frames.last().map(|(frame, hash)| frame.position(*hash)).unwrap_or_default()
}

fn catch_up<F: Fold>(frames: &[(Frame, Hash)], fold: &mut F) -> Result<(), JournalError> {
    let (folded, end) = (fold.position(), end_of(frames));
    if folded.seq > end.seq {
        return Err(JournalError::Diverged { folded, found: end });
    }
    let first = frames.partition_point(|(frame, _)| frame.last_seq() < folded.seq);
    frames.iter().skip(first).try_for_each(|(frame, hash)| feed(fold, frame, *hash))
}

impl Journal for MemoryJournal {
    fn transact<F: Fold, T>(
        &mut self,
        fold: &mut F,
        writer: &Writer,
        _deadline: Instant,
        decide: impl FnOnce(&F) -> Result<Proposal<T>, F::Error>,
    ) -> Result<Outcome<T>, JournalError> {
        let mut frames = self.lock();
        catch_up(&frames, fold)?;
        let (entries, answer) =
            match decide(fold).map_err(|error| JournalError::Decide(Box::new(error)))? {
                Proposal::Append(entries, answer)
                | Proposal::AppendFromReserve(entries, answer) => (entries, answer),
                Proposal::Answer(answer) => {
                    return Ok(Outcome { answer, seqs: None, position: fold.position() });
                }
            };
        let frame = self.frame(entries, writer, end_of(&frames));
        let hash = hash_of(&frame.encode()?);
        feed(fold, &frame, hash)?;
        let seqs = Some(frame.header.seq..=frame.last_seq());
        let ordinal = frame.header.ordinal;
        frames.push((frame, hash));
        drop(frames);
        self.operation = (writer.operation, ordinal.saturating_add(1));
        Ok(Outcome { answer, seqs, position: fold.position() })
    }

    fn refresh<F: Fold>(&self, fold: &mut F) -> Result<(), JournalError> {
        catch_up(&self.lock(), fold)
    }

    fn look_ahead<F: Fold>(&self, fold: &mut F) -> Result<(), JournalError> {
        catch_up(&self.lock(), fold)
    }

    fn frames_from(
        &self,
        seq: Seq,
    ) -> Result<impl Iterator<Item = Result<(Frame, Hash), JournalError>>, JournalError> {
        let frames = self.frames();
        Ok(frames.into_iter().filter(move |(frame, _)| frame.last_seq() >= seq).map(Ok))
    }

    fn durable(&self) -> Result<Position, JournalError> {
        Ok(end_of(&self.lock()))
    }
}
