//! Reading without the lock.
//!
//! `HEAD` is read before the log, so that everything it speaks of must be there. A reader that meets a
//! bad tail reads again a few times: most likely a writer is at it. If what is missing was durable it
//! takes the lock, because only its holder may call damage. If frames above `HEAD` remain, the reader
//! syncs before it answers from them, which takes as long as their writer's own sync. If `HEAD` does not
//! follow, that one has failed or its writer has died: then a sync alone proves nothing, and the reader
//! writes them again under the lock and says in `HEAD` what it has synced.

use std::path::Path;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{Options, SegmentedJournal, State, torn, transact};
use crate::cursor::{Cursor, Found, From, Step};
use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Frame, Hash, Position, Seq, Writer};
use crate::head::Head;
use crate::journal::{Fold, Unfolded};
use crate::lock::Lock;
use crate::view::{Stop, View};

/// How often a bad tail is read again, and how long after.
const READ_AGAIN: [Duration; 3] =
    [Duration::from_micros(200), Duration::from_millis(1), Duration::from_millis(4)];
/// How long a reader waits for the lock under which it may call damage.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn refresh<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
) -> Result<(), JournalError> {
    look_ahead(journal, state, fold)?;
    make_durable(journal, state, fold)
}

/// Reads what is there, durable or not.
pub(super) fn look_ahead<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
) -> Result<(), JournalError> {
    if state.poisoned {
        return Err(JournalError::Poisoned);
    }
    let mut pauses = READ_AGAIN.iter();
    loop {
        match attempt(journal, state, fold) {
            Ok(Reading::Whole) => return Ok(()),
            Err(error @ (JournalError::Fold { .. } | JournalError::NewerFormat { .. })) => {
                return Err(error);
            }
            other => match (pauses.next(), other) {
                (Some(pause), _) => std::thread::sleep(*pause),
                // The tail of a dead writer: nothing that was ever acknowledged.
                (None, Ok(Reading::BadTail(true))) => return Ok(()),
                (None, Ok(_) | Err(_)) => return judge(journal, state, fold),
            },
        }
    }
}

enum Reading {
    Whole,
    /// Whether, as far as one can tell without the lock, nothing in it was ever durable.
    BadTail(bool),
    TooShort,
}

fn attempt<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
) -> Result<Reading, JournalError> {
    let head = state.read_head(journal)?;
    let stop = match transact::advance(journal, state, fold, head.as_ref()) {
        Ok(stop) => stop,
        Err(error) => {
            state.view = None;
            return Err(error);
        }
    };
    let end = state.view.as_ref().map_or(0, |view| view.end().seq);
    let too_short = fold.position().seq > end
        || head.is_some_and(|head| head.mark.seq > end)
        || journal.proofs.iter().any(|proof| proof.position.seq > end);
    Ok(match &stop {
        _ if too_short => Reading::TooShort,
        Stop::End => Reading::Whole,
        Stop::Bad(_) => Reading::BadTail(match &state.view {
            Some(view) => torn::check(journal, view, fold.position(), head.as_ref(), &stop).is_ok(),
            None => false,
        }),
    })
}

/// Reads once more under the lock: what is wrong now is damage.
fn judge<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
) -> Result<(), JournalError> {
    let reader = reader()?;
    let deadline = Instant::now() + JUDGE_TIMEOUT;
    let lock = match Lock::acquire(&journal.directory.lock(), &reader, deadline) {
        Err(error) if may_only_read(&error) => None,
        lock => Some(lock?),
    };
    state.view = None;
    let head = state.read_head(journal)?;
    let judged = transact::advance(journal, state, fold, head.as_ref()).and_then(|stop| {
        let view = state.view.as_ref().ok_or(JournalError::Poisoned)?;
        torn::check(journal, view, fold.position(), head.as_ref(), &stop)
    });
    match judged {
        Err(JournalError::Damaged { path, seq, offset, what }) if lock.is_none() => {
            Err(JournalError::Unreadable { path, seq, offset, what })
        }
        judged => judged,
    }
}

fn make_durable<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
) -> Result<(), JournalError> {
    let Some(view) = &state.view else { return Ok(()) };
    let end = view.end().seq;
    if view.pending().is_empty() || end <= state.synced {
        return Ok(());
    }
    // Frames of an older segment are pending only if its seal is, too: the next has no frame yet.
    view.sync_pending()?;
    let mut pauses = READ_AGAIN.iter();
    while state.read_head(journal)?.is_none_or(|head| head.mark.seq < end) {
        match pauses.next() {
            Some(pause) => std::thread::sleep(*pause),
            None => {
                write_again(journal, state, fold)?;
                break;
            }
        }
    }
    state.synced = end;
    Ok(())
}

/// As far as this reader may: one that may only read has to rely on its sync.
fn write_again<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
) -> Result<(), JournalError> {
    let reader = reader()?;
    let deadline = Instant::now() + JUDGE_TIMEOUT;
    match transact::write_again(journal, state, fold, &reader, deadline) {
        Err(error) if may_only_read(&error) => {
            state.poisoned = false;
            Ok(())
        }
        written => written,
    }
}

fn reader() -> Result<Writer, JournalError> {
    Writer::of_this_process(Uuid::nil(), "journal read")
        .map_err(JournalError::io("read", Path::new("/proc/self/stat")))
}

fn may_only_read(error: &JournalError) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match error {
        JournalError::Io { source, .. } => {
            matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem)
        }
        _ => false,
    }
}

/// Makes durable what is readable in `directory` up to `from` and beyond, for a follower of it.
pub(crate) fn make_sure(directory: &Directory, from: Position) -> Result<(), JournalError> {
    let journal = SegmentedJournal::open_existing(directory.path(), Options::default())?;
    let mut state = journal.lock_state();
    write_again(&journal, &mut state, &mut Unfolded(from))
}

pub(super) fn durable(
    journal: &SegmentedJournal,
    state: &mut State,
) -> Result<Position, JournalError> {
    match state.read_head(journal)? {
        Some(head) => Ok(head.mark.position()),
        None => durable_without_head(journal, state),
    }
}

/// Without `HEAD` everything readable is made durable.
fn durable_without_head(
    journal: &SegmentedJournal,
    state: &mut State,
) -> Result<Position, JournalError> {
    let mut view = View::latest(&journal.directory)?;
    let mut end = Unfolded(view.end().position());
    view.advance(None, &mut end)?;
    view.sync_pending()?;
    write_again(journal, state, &mut end)?;
    Ok(end.0)
}

impl SegmentedJournal {
    /// The durable frames from the one that holds `seq` on, up to what is durable now.
    ///
    /// # Errors
    ///
    /// [`JournalError::HistoryBegins`] if `seq` was retired; whatever reading meets.
    pub fn frames(&self, seq: Seq) -> Result<Frames, JournalError> {
        let mut state = self.lock_state();
        let until = durable(self, &mut state)?.seq;
        if seq > until {
            return Ok(Frames { cursor: None, until });
        }
        let head: Option<Head> = state.read_head(self)?;
        let cursor = Cursor::locate(&self.directory, From::Seq(seq), head.as_ref())?;
        if cursor.is_none() {
            return Err(JournalError::Missing { path: self.directory.path().to_owned() });
        }
        Ok(Frames { cursor, until })
    }
}

/// Frames in order; ends at what was durable when it was made, or after an error.
#[derive(Debug)]
pub struct Frames {
    cursor: Option<Cursor>,
    until: Seq,
}

impl Frames {
    fn read(cursor: &mut Cursor) -> Result<(Frame, Hash), JournalError> {
        read_durable(cursor).map(|found| (found.frame, found.hash))
    }
}

/// Reads a frame that must be there.
pub(crate) fn read_durable(cursor: &mut Cursor) -> Result<Found, JournalError> {
    let mut pauses = READ_AGAIN.iter();
    loop {
        let what = match cursor.step()? {
            Step::Frame(found) => return Ok(found),
            Step::End => "the log ends here".to_owned(),
            Step::Bad(fault) => fault.to_string(),
        };
        match pauses.next() {
            Some(pause) => std::thread::sleep(*pause),
            None => return Err(unreadable(cursor, what)),
        }
    }
}

fn unreadable(cursor: &Cursor, what: String) -> JournalError {
    let mark = cursor.mark();
    JournalError::Unreadable {
        path: cursor.segment().path.clone(),
        seq: mark.seq.saturating_add(1),
        offset: mark.offset,
        what,
    }
}

impl Iterator for Frames {
    type Item = Result<(Frame, Hash), JournalError>;

    fn next(&mut self) -> Option<Self::Item> {
        let cursor = self.cursor.as_mut().filter(|cursor| cursor.mark().seq < self.until)?;
        let read = Self::read(cursor);
        if read.is_err() {
            self.cursor = None;
        }
        Some(read)
    }
}
