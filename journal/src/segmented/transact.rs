//! One transaction.
//!
//! ```text
//!  read what is new, without the lock           the section below is then short
//!  ---- LOCK ----------------------------------------------------------------
//!  check the files are still in place           journal.locked
//!  read what is newer; judge a bad tail         (torn.rs)
//!  decide, apply the frame to the fold          (again and again, if there are several decisions)
//!  write pending frames and these, in one write    journal.write.before/after
//!  seal, if the segment is full                 (seal.rs)
//!  ---- unlock -------------------------------- journal.unlock
//!  fdatasync                                    journal.sync.before/after
//!  HEAD                                         journal.head.after
//! ```
//!
//! The sync comes after the release so that writers which waited for the lock sync together.

use std::ops::RangeInclusive;
use std::time::Instant;

use super::{Author, Owed, SegmentedJournal, State, seal, torn};
use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Entry, Seq, Writer, hash_of};
use crate::head::Head;
use crate::journal::{Fold, Outcome, Proposal};
use crate::lock::Lock;
use crate::segment::Room;
use crate::view::{Stop, View, feed};

/// The answers, each with the sequence numbers of its events.
type Answers<T> = Vec<(T, Option<RangeInclusive<Seq>>)>;

/// What was done under the lock: decisions up to the first that failed, and what is to be synced.
struct Section<T> {
    answers: Answers<T>,
    failure: Option<JournalError>,
    owed: Option<Owed>,
}

pub(super) fn transact<F: Fold, T>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    writer: &Writer,
    deadline: Instant,
    decide: impl FnOnce(&F) -> Result<Proposal<T>, F::Error>,
) -> Result<Outcome<T>, JournalError> {
    let mut decide = Some(decide);
    let once = |fold: &F| decide.take().map(|decide| decide(fold));
    let mut outcomes = transact_each(journal, state, fold, writer, deadline, once)?;
    // One decision was asked for, so there is one outcome.
    outcomes.pop().ok_or(JournalError::Poisoned)
}

pub(super) fn transact_each<F: Fold, T>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    writer: &Writer,
    deadline: Instant,
    decide: impl FnMut(&F) -> Option<Result<Proposal<T>, F::Error>>,
) -> Result<Vec<Outcome<T>>, JournalError> {
    if state.poisoned {
        return Err(JournalError::Poisoned);
    }
    look_ahead(journal, state, fold)?;
    let lock = Lock::acquire(&journal.directory.lock(), writer, deadline)?;
    state.met_others |= lock.waited();
    journal.boundary("journal.locked");
    let section = locked(journal, state, fold, writer, decide);
    journal.boundary("journal.unlock");
    drop(lock);
    let Section { answers, failure, owed } = section?;
    if let Some(owed) = owed
        && let Err(error) = journal.settle(state, &owed)
    {
        state.poisoned = true;
        return Err(unacknowledged(&answers, owed.mark.seq, error));
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let position = fold.position();
    let outcomes = answers.into_iter().map(|(answer, seqs)| Outcome { answer, seqs, position });
    Ok(outcomes.collect())
}

/// The error for what was applied, and perhaps written, but may not survive.
fn unacknowledged<T>(answers: &Answers<T>, last: Seq, source: JournalError) -> JournalError {
    let own = answers.iter().find_map(|(_, seqs)| seqs.as_ref());
    let first = own.map_or(last, |seqs| *seqs.start());
    JournalError::Unacknowledged { seqs: first..=last.max(first), source: Box::new(source) }
}

/// Writes again, and makes durable, what was read above the known durable end; decides nothing. After a sync that
/// failed for whoever wrote it, only that proves it to be on the disk: the kernel tells one process of such a failure,
/// and may then take pages that it could not write for written.
pub(super) fn write_again<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    writer: &Writer,
    deadline: Instant,
) -> Result<(), JournalError> {
    let lock = Lock::acquire(&journal.directory.lock(), writer, deadline)?;
    journal.boundary("journal.locked");
    let written = write_what_was_read(journal, state, fold);
    journal.boundary("journal.unlock");
    drop(lock);
    let settled = written.and_then(|owed| match owed {
        Some(owed) => journal.settle(state, &owed),
        None => Ok(()),
    });
    // The fold may have followed frames that do not survive.
    state.poisoned = settled.is_err();
    settled
}

fn write_what_was_read<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
) -> Result<Option<Owed>, JournalError> {
    let head = check_place(journal, state)?;
    let stop = advance(journal, state, fold, head.as_ref())?;
    let view = state.view.as_mut().ok_or(JournalError::Poisoned)?;
    torn::check(journal, view, fold.position(), head.as_ref(), &stop)?;
    if view.pending().is_empty() {
        return Ok(None);
    }
    // An unfinished tail behind them is for whoever writes something of its own.
    write_pending(&journal.directory, view, None)?;
    Ok(Some(Owed { segment: view.segment().clone(), mark: view.end() }))
}

/// Reads what can be read without the lock. Whatever is wrong is judged under it.
fn look_ahead<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
) -> Result<(), JournalError> {
    let result =
        state.read_head(journal).and_then(|head| advance(journal, state, fold, head.as_ref()));
    match result {
        Ok(_) => Ok(()),
        Err(error @ (JournalError::Fold { .. } | JournalError::NewerFormat { .. })) => Err(error),
        Err(_) => {
            state.view = None;
            Ok(())
        }
    }
}

/// Brings view and fold to the end of the log.
pub(super) fn advance<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    head: Option<&Head>,
) -> Result<Stop, JournalError> {
    let view = match &mut state.view {
        Some(view) => {
            view.compare()?;
            view.catch_up(&journal.directory, head, fold)?;
            view
        }
        none => none.insert(View::open(&journal.directory, fold.position(), head)?),
    };
    view.advance(head, fold)
}

fn locked<F: Fold, T>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    writer: &Writer,
    decide: impl FnMut(&F) -> Option<Result<Proposal<T>, F::Error>>,
) -> Result<Section<T>, JournalError> {
    let head = check_place(journal, state)?;
    let stop = advance(journal, state, fold, head.as_ref())?;
    let cut = torn::judge(journal, state, fold, head.as_ref(), stop, writer)?;
    let mut answers = Vec::new();
    let failure = decide_all(journal, state, fold, writer, decide, &mut answers).err();
    let appended = answers.iter().any(|(_, seqs)| seqs.is_some());
    match write(journal, state, fold, writer, appended, cut.as_ref()) {
        Ok(owed) => Ok(Section { answers, failure, owed }),
        Err(error) => {
            // The fold has gone ahead of the disk, with a frame of its own or of somebody else.
            state.poisoned = true;
            Err(unacknowledged(&answers, fold.position().seq, error))
        }
    }
}

/// Takes decisions until there are no more, or one fails; those before it stand.
fn decide_all<F: Fold, T>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    writer: &Writer,
    mut decide: impl FnMut(&F) -> Option<Result<Proposal<T>, F::Error>>,
    answers: &mut Answers<T>,
) -> Result<(), JournalError> {
    while let Some(proposal) = decide(fold) {
        let answer = match proposal.map_err(|error| JournalError::Decide(Box::new(error)))? {
            Proposal::Answer(answer) => (answer, None),
            Proposal::Append(entries, answer) => {
                (answer, Some(append(journal, state, fold, writer, entries, Room::Ordinary)?))
            }
            Proposal::AppendFromReserve(entries, answer) => {
                (answer, Some(append(journal, state, fold, writer, entries, Room::Reserve)?))
            }
        };
        answers.push(answer);
    }
    Ok(())
}

/// Makes sure that the files which are open are those that the paths name; gives what `HEAD` says.
fn check_place(
    journal: &SegmentedJournal,
    state: &mut State,
) -> Result<Option<Head>, JournalError> {
    if state.view.as_ref().is_some_and(|view| !view.segment().is_in_place()) {
        state.view = None;
        state.head = None;
    }
    let head = state.read_head(journal)?;
    if head.is_none() && !journal.directory.head().exists() {
        journal.directory.create_head()?;
        state.head = None;
    }
    Ok(head)
}

/// Applies a new frame to the fold and adds it to what is to be written.
fn append<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    writer: &Writer,
    entries: Vec<Entry>,
    room: Room,
) -> Result<RangeInclusive<Seq>, JournalError> {
    let ordinal = match state.operation {
        (operation, count) if operation == writer.operation => count,
        _ => 0,
    };
    let author = Author { writer, operation: writer.operation, ordinal };
    let seqs = append_as(journal, state, fold, &author, entries, room)?;
    state.operation = (writer.operation, ordinal.saturating_add(1));
    Ok(seqs)
}

pub(super) fn append_as<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    author: &Author<'_>,
    entries: Vec<Entry>,
    room: Room,
) -> Result<RangeInclusive<Seq>, JournalError> {
    let view = state.view.as_mut().ok_or(JournalError::Poisoned)?;
    let frame = journal.frame(entries, author, view.end(), view.known());
    let bytes = frame.encode()?;
    let hash = hash_of(&bytes);
    // A full disk is met here, before the fold has gone ahead, and leaves this handle as it was.
    view.segment().find_room(view.end().offset, bytes.len(), room)?;
    feed(fold, &frame, hash)?;
    view.append(&frame, hash, bytes);
    Ok(frame.header.seq..=frame.last_seq())
}

/// Writes everything that is not known to be durable; says what is to be synced.
fn write<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    writer: &Writer,
    appended: bool,
    cut: Option<&torn::Cut>,
) -> Result<Option<Owed>, JournalError> {
    let sealing = if appended { seal::prepare(journal, state, fold, writer)? } else { None };
    let Some(view) = state.view.as_mut() else { return Err(JournalError::Poisoned) };
    if view.pending().is_empty() {
        return Ok(None);
    }
    journal.boundary("journal.write.before");
    write_pending(&journal.directory, view, cut)?;
    journal.boundary("journal.write.after");
    if let Some(sealing) = sealing {
        seal::finish(journal, state, &sealing)?;
        return Ok(None);
    }
    let view = state.view.as_ref().ok_or(JournalError::Poisoned)?;
    Ok(Some(Owed { segment: view.segment().clone(), mark: view.end() }))
}

/// One write a segment: mostly there is one. An older segment with pending frames ends in a seal that
/// its writer did not live to sync: nothing may follow it before that is made good.
fn write_pending(
    directory: &Directory,
    view: &mut View,
    cut: Option<&torn::Cut>,
) -> Result<(), JournalError> {
    let live = view.segment().clone();
    while let Some(first) = view.pending().front() {
        let (number, offset) = (first.after.segment, first.offset());
        let mut bytes = Vec::new();
        let mut last = first.after;
        for pending in view.pending().iter().take_while(|next| next.after.segment == number) {
            bytes.extend_from_slice(&pending.bytes);
            last = pending.after;
        }
        if number == live.header.first {
            if let Some(cut) = cut {
                cut.pad(last.offset, &mut bytes);
            }
            return live.write(&bytes, offset);
        }
        seal::make_good(directory, view, number, offset, &bytes, last.seq)?;
    }
    Ok(())
}
