//! What a holder of the lock makes of a log that does not end well.
//!
//! ```text
//!  ends below HEAD, below the fold, or below  damage
//!    what a checkpoint or the store includes
//!  bad frame that HEAD, or any later frame,   damage
//!    calls durable
//!  seal whose next segment is not there       damage
//!  anything else bad at the end               tail of a dead writer: its bytes are saved under
//!                                             their hash (unless the disk is full), the cut is
//!                                             journalled, they are overwritten
//! ```

use super::{Author, SegmentedJournal, State, seal, transact};
use crate::cursor::Fault;
use crate::directory::sync_dir;
use crate::error::JournalError;
use crate::frame::{Frame, MAGIC, Position, Seq, Writer, hash_of};
use crate::head::Head;
use crate::journal::Fold;
use crate::reserved::JournalEvent;
use crate::segment::{Room, write_durably};
use crate::view::{Stop, View};

/// Longest tail that is looked at; a segment is sealed long before.
const MAX_TAIL: u64 = 64 * 1024 * 1024;

/// A tail that was put aside and is to be overwritten.
pub(super) struct Cut {
    /// Where it ended.
    end: u64,
}

impl Cut {
    /// Adds zeroes to `bytes`, which end at `offset`, so that nothing of the tail is left.
    pub(super) fn pad(&self, offset: u64, bytes: &mut Vec<u8>) {
        let missing = self.end.saturating_sub(offset);
        let len = bytes.len().saturating_add(usize::try_from(missing).unwrap_or_default());
        bytes.resize(len, 0);
    }
}

/// Judges the end of the log after everything readable was read.
pub(super) fn judge<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    head: Option<&Head>,
    stop: Stop,
    writer: &Writer,
) -> Result<Option<Cut>, JournalError> {
    let view = state.view.as_ref().ok_or(JournalError::Poisoned)?;
    check(journal, view, fold.position(), head, &stop)?;
    match stop {
        Stop::End => {
            if !state.swept {
                seal::sweep(journal, view)?;
                if view.end().seq == 0 {
                    // Whoever made the journal may have died before it was durable.
                    journal.directory.sync_names()?;
                }
                state.swept = true;
            }
            Ok(None)
        }
        Stop::Bad(fault) => cut(journal, state, fold, writer, &fault).map(Some),
    }
}

/// Refuses a log that lacks what was durable. Final only for a holder of the lock.
pub(super) fn check(
    journal: &SegmentedJournal,
    view: &View,
    folded: Position,
    head: Option<&Head>,
    stop: &Stop,
) -> Result<(), JournalError> {
    let end = view.end().seq;
    let durable = view.known().max(head.map_or(0, |head| head.mark.seq));
    let fault = match stop {
        Stop::End => "the log ends here".to_owned(),
        Stop::Bad(fault @ (Fault::NextMissing(_) | Fault::NextForeign(_))) => {
            return Err(view.damaged(fault.to_string()));
        }
        Stop::Bad(fault) => fault.to_string(),
    };
    if durable > end {
        return Err(view.damaged(format!("{fault}, though seq {durable} was durable")));
    }
    if folded.seq > end {
        return Err(view.damaged(format!("{fault}, though there is a state of seq {}", folded.seq)));
    }
    if let Some(proof) = journal.proofs.iter().find(|proof| proof.position.seq > end) {
        let (path, seq) = (proof.path.display(), proof.position.seq);
        return Err(
            view.damaged(format!("{fault}, though {path} proves that seq {seq} was durable"))
        );
    }
    match stop {
        Stop::End => Ok(()),
        Stop::Bad(fault) => check_tail(view, fault),
    }
}

/// Refuses a tail that holds a frame whose writer knew the bad one to be durable.
fn check_tail(view: &View, fault: &Fault) -> Result<(), JournalError> {
    let tail = read_tail(view, fault)?;
    match named_by_later_frame(&tail, view.end().seq.saturating_add(1)) {
        None => Ok(()),
        Some((offset, seq)) => Err(view.damaged(format!(
            "{fault}, though the frame {offset} bytes later says that seq {seq} was durable"
        ))),
    }
}

fn cut<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    writer: &Writer,
    fault: &Fault,
) -> Result<Cut, JournalError> {
    let view = state.view.as_ref().ok_or(JournalError::Poisoned)?;
    let tail = read_tail(view, fault)?;
    let end = view.end();
    let hash = hash_of(&tail);
    let length = u64::try_from(tail.len()).unwrap_or(u64::MAX);
    match put_aside(journal, end.segment, end.offset, &tail) {
        // Nothing of it was ever acknowledged; what frees space must be able to go on.
        Err(error) if error.is_full_disk() => {
            tracing::warn!(
                "the unfinished tail of a dead writer is cut without a copy of it: {error}"
            );
        }
        put_aside => put_aside?,
    }
    journal.boundary("journal.tail.saved");
    tracing::warn!(segment = end.segment, offset = end.offset, length, %fault, "cutting the unfinished tail of a dead writer");
    let event = JournalEvent::TailCut { segment: end.segment, offset: end.offset, length, hash };
    let author = Author::journal(writer);
    transact::append_as(journal, state, fold, &author, vec![event.to_entry()?], Room::Reserve)?;
    Ok(Cut { end: end.offset.saturating_add(length) })
}

/// The bytes after the last good frame, without the zeroes at their end.
fn read_tail(view: &View, fault: &Fault) -> Result<Vec<u8>, JournalError> {
    let offset = view.end().offset;
    let len = view.segment().len()?.saturating_sub(offset);
    if len > MAX_TAIL {
        return Err(view.damaged(format!("{fault}, and {len} bytes follow")));
    }
    let mut tail = vec![0; usize::try_from(len).unwrap_or_default()];
    let read = view.segment().read(&mut tail, offset)?;
    let used = tail.iter().take(read).rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    tail.truncate(used);
    Ok(tail)
}

/// Looks for a whole frame whose writer knew `bad` to be durable; gives its offset and what it knew.
fn named_by_later_frame(tail: &[u8], bad: Seq) -> Option<(usize, Seq)> {
    let starts = tail.windows(MAGIC.len()).enumerate().filter(|(_, bytes)| *bytes == MAGIC);
    starts.map(|(offset, _)| offset).find_map(|offset| {
        let (frame, ..) = Frame::decode(tail.get(offset..)?).ok()?;
        let durable = frame.header.durable_seq;
        (durable >= bad).then_some((offset, durable))
    })
}

fn put_aside(
    journal: &SegmentedJournal,
    segment: Seq,
    offset: u64,
    tail: &[u8],
) -> Result<(), JournalError> {
    let dir = journal.directory.quarantine();
    let hash: String = hash_of(tail).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = dir.join(format!("tail-{segment:020}-{offset}-{hash}.bin"));
    if path.exists() {
        return Ok(());
    }
    let temporary = path.with_extension("tmp");
    if let Err(error) = write_durably(&temporary, tail, 0o600) {
        // What was written of it takes up room.
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    std::fs::rename(&temporary, &path).map_err(JournalError::io("rename", &temporary))?;
    sync_dir(&dir)
}
