//! What every [`Journal`] must do, whatever keeps it.
//!
//! Built for tests only (feature `conformance`): a case fails by panicking.

#![expect(clippy::unwrap_used, reason = "a conformance case fails by panicking")]

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::error::JournalError;
use crate::frame::{
    Entry, Frame, FrameError, Hash, MAX_BODY_LEN, Position, Seq, Subject, Writer, hash_of,
};
use crate::journal::{Fold, Journal, Outcome, Proposal};
use crate::reserved;

/// A fold that keeps every frame, and refuses events of kind [`REFUSED`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Everything {
    position: Position,
    frames: Vec<Frame>,
}

/// A kind that [`Everything`] refuses.
pub const REFUSED: u16 = 666;

/// Why [`Everything`] refuses.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused: {0}")]
pub struct Refused(&'static str);

impl Fold for Everything {
    type Error = Refused;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Refused> {
        if frame.entries.iter().any(|entry| entry.kind == REFUSED) {
            return Err(Refused("by the fold"));
        }
        self.position = frame.position(hash);
        self.frames.push(frame.clone());
        Ok(())
    }
}

impl Everything {
    fn numbers(&self) -> Vec<u64> {
        let own = |entry: &&Entry| entry.kind < reserved::FIRST_KIND;
        let entries = self.frames.iter().flat_map(|frame| &frame.entries).filter(own);
        entries.map(|entry| u64::from_le_bytes(entry.body[..8].try_into().unwrap())).collect()
    }
}

fn number(number: u64) -> Entry {
    Entry {
        kind: 1,
        version: 1,
        subject: Subject::new("conformance").unwrap(),
        body: number.to_le_bytes().to_vec(),
    }
}

fn writer(operation: u128) -> Writer {
    Writer {
        operation: Uuid::from_u128(operation),
        pid: std::process::id(),
        start_time: 7,
        verb: "conformance".into(),
    }
}

fn propose<J: Journal>(
    journal: &mut J,
    fold: &mut Everything,
    entries: Vec<Entry>,
) -> Result<Outcome<()>, JournalError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    journal.transact(fold, &writer(1), deadline, |_| Ok(Proposal::Append(entries, ())))
}

fn append<J: Journal>(journal: &mut J, fold: &mut Everything, n: u64) {
    propose(journal, fold, vec![number(n)]).unwrap();
}

/// Runs every case. `fresh` makes an empty journal and gives a function that opens handles on it.
pub fn run<J: Journal + Send, Open: Fn() -> J + Sync>(fresh: impl Fn() -> Open) {
    an_empty_journal_is_empty(&fresh());
    sequence_numbers_are_dense_and_the_chain_holds(&fresh());
    decisions_are_serial(&fresh());
    handles_see_each_other(&fresh());
    a_fold_continues_from_where_it_stands(&fresh());
    frames_are_found_by_any_of_their_numbers(&fresh());
    what_is_refused_leaves_no_trace(&fresh());
    foreign_states_are_refused(&fresh());
    ordinals_count_within_an_operation(&fresh());
    decisions_in_a_row_are_frames_of_their_own(&fresh());
    a_failing_decision_leaves_those_before_it(&fresh());
}

fn propose_each<J: Journal>(
    journal: &mut J,
    fold: &mut Everything,
    proposals: Vec<Result<Vec<Entry>, Refused>>,
) -> Result<Vec<Outcome<usize>>, JournalError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut proposals = proposals.into_iter();
    journal.transact_each(fold, &writer(1), deadline, |fold| {
        let seen = fold.frames.len();
        let propose = |entries: Vec<Entry>| match entries.is_empty() {
            true => Proposal::Answer(seen),
            false => Proposal::Append(entries, seen),
        };
        proposals.next().map(|entries| entries.map(propose))
    })
}

fn decisions_in_a_row_are_frames_of_their_own<J: Journal>(open: &impl Fn() -> J) {
    let (mut journal, mut fold) = (open(), Everything::default());
    assert!(propose_each(&mut journal, &mut fold, Vec::new()).unwrap().is_empty());
    let proposals = vec![Ok(vec![number(1), number(2)]), Ok(Vec::new()), Ok(vec![number(3)])];
    let outcomes = propose_each(&mut journal, &mut fold, proposals).unwrap();
    let seen: Vec<usize> = outcomes.iter().map(|outcome| outcome.answer).collect();
    assert_eq!(seen, [0, 1, 1], "each sees what those before it did");
    let seqs: Vec<_> = outcomes.iter().map(|outcome| outcome.seqs.clone()).collect();
    assert_eq!(seqs, [Some(1..=2), None, Some(3..=3)]);
    let own = fold.frames.iter().filter(|frame| frame.entries[0].kind < reserved::FIRST_KIND);
    let ordinals: Vec<u32> = own.map(|frame| frame.header.ordinal).collect();
    assert_eq!(ordinals, [0, 1]);
    let mut another = Everything::default();
    open().refresh(&mut another).unwrap();
    assert_eq!(another, fold, "all of it is durable");
}

fn a_failing_decision_leaves_those_before_it<J: Journal>(open: &impl Fn() -> J) {
    let (mut journal, mut fold) = (open(), Everything::default());
    for fails in [Err(Refused("by the decision")), Ok(vec![Entry { kind: REFUSED, ..number(0) }])] {
        let proposals = vec![Ok(vec![number(1)]), fails, Ok(vec![number(9)])];
        assert!(propose_each(&mut journal, &mut fold, proposals).is_err());
        append(&mut journal, &mut fold, 2);
    }
    let mut another = Everything::default();
    open().refresh(&mut another).unwrap();
    assert_eq!(another.numbers(), [1, 2, 1, 2]);
    assert_eq!(another, fold);
}

fn an_empty_journal_is_empty<J: Journal>(open: &impl Fn() -> J) {
    let journal = open();
    let mut fold = Everything::default();
    journal.refresh(&mut fold).unwrap();
    assert_eq!(fold, Everything::default());
    assert_eq!(journal.durable().unwrap(), Position::default());
    assert!(journal.frames_from(1).unwrap().next().is_none());
}

fn sequence_numbers_are_dense_and_the_chain_holds<J: Journal>(open: &impl Fn() -> J) {
    let (mut journal, mut fold) = (open(), Everything::default());
    for n in 1..=30 {
        let count = n % 5 + 1;
        let before = fold.position.seq;
        let entries = (0..count).map(|_| number(n)).collect();
        let outcome = propose(&mut journal, &mut fold, entries).unwrap();
        let seqs = outcome.seqs.unwrap();
        assert_eq!((*seqs.start(), *seqs.end()), (before + 1, before + count));
        assert_eq!(outcome.position, fold.position);
        assert!(journal.durable().unwrap().seq >= *seqs.end(), "acknowledged means durable");
    }
    let mut position = Position::default();
    for found in journal.frames_from(1).unwrap() {
        let (frame, hash) = found.unwrap();
        assert_eq!((frame.header.seq, frame.header.prev_hash), (position.seq + 1, position.hash));
        assert!(frame.header.durable_seq < frame.header.seq);
        assert_eq!(hash, hash_of(&frame.encode().unwrap()));
        position = frame.position(hash);
    }
    assert_eq!(position, fold.position);
}

fn decisions_are_serial<J: Journal + Send>(open: &(impl Fn() -> J + Sync)) {
    let count = |rounds: u64| {
        let (mut journal, mut fold) = (open(), Everything::default());
        for _ in 0..rounds {
            let deadline = Instant::now() + Duration::from_secs(60);
            let decide = |fold: &Everything| {
                let next = fold.numbers().last().copied().unwrap_or_default() + 1;
                Ok(Proposal::Append(vec![number(next)], ()))
            };
            journal.transact(&mut fold, &writer(1), deadline, decide).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| count(25));
        }
    });
    let mut fold = Everything::default();
    open().refresh(&mut fold).unwrap();
    assert_eq!(fold.numbers(), (1..=100).collect::<Vec<_>>(), "each saw all before it");
}

fn handles_see_each_other<J: Journal>(open: &impl Fn() -> J) {
    let (mut a, mut b) = (open(), open());
    let (mut fold_a, mut fold_b) = (Everything::default(), Everything::default());
    for n in (0..20).step_by(2) {
        append(&mut a, &mut fold_a, n);
        append(&mut b, &mut fold_b, n + 1);
    }
    a.refresh(&mut fold_a).unwrap();
    assert_eq!(fold_a, fold_b);
    assert_eq!(fold_a.numbers(), (0..20).collect::<Vec<_>>());
}

fn a_fold_continues_from_where_it_stands<J: Journal>(open: &impl Fn() -> J) {
    let (mut journal, mut fold) = (open(), Everything::default());
    let mut states = vec![fold.clone()];
    for n in 0..20 {
        append(&mut journal, &mut fold, n);
        states.push(fold.clone());
    }
    for state in states {
        for journal in [&journal, &open()] {
            let mut state = state.clone();
            journal.refresh(&mut state).unwrap();
            assert_eq!(state, fold);
        }
    }
}

fn frames_are_found_by_any_of_their_numbers<J: Journal>(open: &impl Fn() -> J) {
    let (mut journal, mut fold) = (open(), Everything::default());
    for n in 0..10 {
        propose(&mut journal, &mut fold, vec![number(n); 3]).unwrap();
    }
    for seq in 1..=fold.position.seq {
        let (frame, _) = journal.frames_from(seq).unwrap().next().unwrap().unwrap();
        assert!((frame.header.seq..=frame.last_seq()).contains(&seq), "{seq}");
    }
    let after: Seq = journal.durable().unwrap().seq + 1;
    assert!(journal.frames_from(after).unwrap().next().is_none());
}

fn what_is_refused_leaves_no_trace<J: Journal>(open: &impl Fn() -> J) {
    let (mut journal, mut fold) = (open(), Everything::default());
    append(&mut journal, &mut fold, 1);
    let before = fold.clone();

    let large = Entry { body: vec![0; MAX_BODY_LEN + 1], ..number(0) };
    let error = propose(&mut journal, &mut fold, vec![large]).unwrap_err();
    assert!(matches!(error, JournalError::Frame(FrameError::EventTooLarge { .. })), "{error}");
    let error = propose(&mut journal, &mut fold, vec![]).unwrap_err();
    assert!(matches!(error, JournalError::Frame(FrameError::NoEvents)), "{error}");
    let refused = Entry { kind: REFUSED, ..number(0) };
    let error = propose(&mut journal, &mut fold, vec![number(2), refused]).unwrap_err();
    assert_eq!(error.into_caller_error::<Refused>().unwrap(), Refused("by the fold"));
    let deadline = Instant::now() + Duration::from_secs(60);
    let decide = |_: &_| Err::<Proposal<()>, _>(Refused("by the decision"));
    let error = journal.transact(&mut fold, &writer(1), deadline, decide).unwrap_err();
    assert_eq!(error.into_caller_error::<Refused>().unwrap(), Refused("by the decision"));
    let decide = |fold: &Everything| Ok(Proposal::Answer(fold.frames.len()));
    let outcome = journal.transact(&mut fold, &writer(1), deadline, decide).unwrap();
    assert_eq!((outcome.answer, outcome.seqs), (before.frames.len(), None));

    assert_eq!(fold, before);
    append(&mut journal, &mut fold, 2);
    assert_eq!(fold.numbers(), [1, 2], "the handle goes on");
    let mut other = Everything::default();
    open().refresh(&mut other).unwrap();
    assert_eq!(other, fold);
}

fn foreign_states_are_refused<J: Journal>(open: &impl Fn() -> J) {
    let (mut journal, mut fold) = (open(), Everything::default());
    append(&mut journal, &mut fold, 1);
    append(&mut journal, &mut fold, 2);
    let ahead = Position { seq: fold.position.seq + 5, ..fold.position };
    let other = Position { hash: [9; 32], ..fold.position };
    for position in [ahead, other] {
        let mut foreign = Everything { position, ..Everything::default() };
        let error = propose(&mut open(), &mut foreign, vec![number(3)]).unwrap_err();
        let named = matches!(error, JournalError::Diverged { .. } | JournalError::Damaged { .. });
        assert!(named, "{error}");
        assert_eq!(journal.durable().unwrap(), fold.position, "nothing was written");
    }
}

fn ordinals_count_within_an_operation<J: Journal>(open: &impl Fn() -> J) {
    let (mut journal, mut fold) = (open(), Everything::default());
    let deadline = Instant::now() + Duration::from_secs(60);
    for operation in [1, 1, 2, 2, 2] {
        let entries = vec![number(0)];
        let decide = |_: &_| Ok(Proposal::Append(entries, ()));
        journal.transact(&mut fold, &writer(operation), deadline, decide).unwrap();
    }
    let own = |frame: &&Frame| !frame.header.operation.is_nil();
    let ordinals: Vec<_> =
        fold.frames.iter().filter(own).map(|frame| frame.header.ordinal).collect();
    assert_eq!(ordinals, [0, 1, 0, 1, 2]);
    let header = &fold.frames[0].header;
    assert_eq!(header.writer(), writer(1));
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::memory::MemoryJournal;
    use crate::segmented::{Options, SegmentedJournal};

    fn in_files(options: &Options) {
        run(|| {
            let (dir, options) = (TempDir::new().unwrap(), options.clone());
            move || SegmentedJournal::open(&dir.path().join("journal"), options.clone()).unwrap()
        });
    }

    #[test]
    fn in_memory() {
        run(|| {
            let journal = MemoryJournal::new();
            move || journal.handle()
        });
    }

    #[test]
    fn in_one_segment() {
        in_files(&Options::default());
    }

    #[test]
    fn in_many_segments() {
        in_files(&Options { segment_events: 3, ..Options::default() });
        in_files(&Options { segment_bytes: 1, ..Options::default() });
    }
}
