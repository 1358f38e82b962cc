//! The event that says what a repair did.

use std::time::Instant;

use uuid::Uuid;

use super::plan::{Decided, How};
use super::{LOCK_TIMEOUT, RepairError, RepairOptions};
use crate::cursor::{Cursor, Step};
use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Entry, Frame, Seq, Writer};
use crate::journal::{Journal, Proposal, Unfolded};
use crate::reserved::JournalEvent;
use crate::segmented::{Options, SegmentedJournal};
use crate::view::View;

/// The event of a plan.
pub(super) fn entry(decided: &Decided) -> Result<Entry, JournalError> {
    let Decided { last_kept, first_lost, lost, .. } = *decided;
    Ok(JournalEvent::Salvaged { last_kept, first_lost, lost }.to_entry()?)
}

/// Appends it, unless an earlier repair did before it was killed. Gives its sequence number.
pub(super) fn record(
    directory: &Directory,
    options: &RepairOptions,
    decided: &Decided,
) -> Result<Seq, RepairError> {
    let journal = Options { boundary: |_| {}, ..options.journal.clone() };
    let mut journal = SegmentedJournal::open(directory.path(), journal)?;
    let mut fold = Looking { end: start(directory)?, operation: decided.operation, found: None };
    let writer = Writer::of_this_process(decided.operation, "journal repair")
        .map_err(JournalError::io("read", std::path::Path::new("/proc/self/stat")))?;
    let entry = entry(decided)?;
    let recorded = journal.transact(&mut fold, &writer, Instant::now() + LOCK_TIMEOUT, |fold| {
        Ok(match fold.found {
            Some(seq) => Proposal::Answer(Some(seq)),
            None => Proposal::Append(vec![entry], None),
        })
    })?;
    let own = recorded.seqs.map(|seqs| *seqs.start());
    Ok(recorded.answer.or(own).unwrap_or_default())
}

/// The event of a plan, if it is where it would be: in the segment that was cut, or among the last.
pub(super) fn find(directory: &Directory, decided: &Decided) -> Option<Seq> {
    let mut cursor = match decided.how {
        How::Cut { segment, .. } => Cursor::at_segment(directory, segment).ok()??,
        _ => {
            let firsts = directory.list().ok()?;
            Cursor::at_segment(directory, *firsts.iter().rev().take(2).next_back()?).ok()??
        }
    };
    // What follows the last good frame does not matter here.
    while let Ok(Step::Frame(found)) = cursor.step() {
        if found.frame.header.operation == decided.operation {
            return Some(found.frame.header.seq);
        }
    }
    None
}

/// A place some way before the end.
fn start(directory: &Directory) -> Result<Unfolded, JournalError> {
    View::latest(directory).map(|view| Unfolded(view.end().position()))
}

/// A fold that looks for an operation.
struct Looking {
    end: Unfolded,
    operation: Uuid,
    found: Option<Seq>,
}

impl crate::journal::Fold for Looking {
    type Error = std::convert::Infallible;

    fn position(&self) -> crate::frame::Position {
        self.end.0
    }

    fn apply(&mut self, frame: &Frame, hash: crate::frame::Hash) -> Result<(), Self::Error> {
        if frame.header.operation == self.operation {
            self.found = Some(frame.header.seq);
        }
        self.end.apply(frame, hash)
    }
}
