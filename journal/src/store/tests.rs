use std::collections::BTreeSet;

use proptest::prelude::*;
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::frame::{Entry, Frame, FrameHeader, Hash, Subject};
use crate::testing::Log;

mod crash;
mod damage;

type Event = (Seq, Hash, FrameHeader, Entry);

fn store(dir: &Path) -> Store {
    Store::try_open(dir).unwrap().unwrap()
}

/// A store that has caught up with three segments.
fn full() -> (TempDir, Log) {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::new(3, 40, 0);
    let report = store(dir.path()).catch_up(&log, log.end()).unwrap();
    assert_eq!((report.position, report.repairs), (log.end(), vec![]));
    (dir, log)
}

fn plain(events: Events<'_>) -> Result<Vec<Event>, StoreError> {
    events.map(|event| event.map(|e| (e.seq, e.hash, e.header, e.entry))).collect()
}

/// Everything in the store is the log, by every way of asking.
fn assert_holds(store: &mut Store, log: &Log) {
    let all = log.events();
    assert_eq!(store.position().unwrap(), log.end());
    assert!(plain(store.range(1..=Seq::MAX).unwrap()).unwrap() == all);
    let subjects: BTreeSet<String> = all.iter().map(|e| e.3.subject.as_str().to_owned()).collect();
    for subject in subjects {
        let subject = Subject::new(subject).unwrap();
        let expected: Vec<_> = all.iter().filter(|e| e.3.subject == subject).cloned().collect();
        assert!(plain(store.by_subject(&subject).unwrap()).unwrap() == expected);
    }
    store.verify().unwrap();
}

#[test]
fn an_empty_journal_makes_an_empty_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = store(dir.path());
    let report = store.catch_up(&Log::default(), Position::default()).unwrap();
    assert_eq!(report, CaughtUp::default());
    assert_eq!(store.first_seq().unwrap(), None);
    assert_eq!(store.event(1).unwrap(), None);
}

#[test]
fn it_holds_the_log_in_a_generation_for_each_segment() {
    let (dir, log) = full();
    let mut store = store(dir.path());
    assert_eq!(generations(&store.dir).unwrap(), log.segments());
    assert_holds(&mut store, &log);
}

#[test]
fn catching_up_again_changes_nothing() {
    let (dir, log) = full();
    let mut store = store(dir.path());
    let report = store.catch_up(&log, log.end()).unwrap();
    assert_eq!(report, CaughtUp { position: log.end(), events: 0, repairs: vec![] });
    assert_holds(&mut store, &log);
}

#[test]
fn it_follows_in_steps_of_any_size_and_never_leads() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::new(4, 15, 0);
    for count in (0..=log.frames.len()).step_by(7).chain([log.frames.len()]) {
        let durable = log.prefix(count);
        let mut store = store(dir.path());
        // The log already has more than is known to be durable.
        let report = store.catch_up(&log, durable.end()).unwrap();
        assert_eq!((report.position, report.repairs), (durable.end(), vec![]), "{count} frames");
        assert_eq!(lag(dir.path(), log.end().seq).unwrap(), log.end().seq - durable.end().seq);
        if count > 0 {
            assert_holds(&mut store, &durable);
        }
    }
}

#[test]
fn an_old_durable_position_does_not_make_the_store_look_ahead() {
    let (dir, log) = full();
    for frames in [0, 5, 41, 100] {
        let report = store(dir.path()).catch_up(&log, log.prefix(frames).end()).unwrap();
        assert_eq!(report, CaughtUp { position: log.end(), events: 0, repairs: vec![] });
    }
    let mut longer = log.clone();
    longer.push(vec![log.frames[0].0.entries[0].clone()]);
    store(dir.path()).catch_up(&longer, log.prefix(5).end()).unwrap();
    // What is not known to be durable is not taken, even so.
    assert_holds(&mut store(dir.path()), &log);
    store(dir.path()).catch_up(&longer, longer.end()).unwrap();
    assert_holds(&mut store(dir.path()), &longer);
}

#[test]
fn there_is_one_owner_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = store(dir.path());
    assert!(Store::try_open(dir.path()).unwrap().is_none());
    drop(first);
    assert!(Store::try_open(dir.path()).unwrap().is_some());
}

#[test]
fn operations_and_times_are_found_across_generations() {
    let (dir, log) = full();
    let mut store = store(dir.path());
    let all = log.events();
    // Frames 40 to 43 are one operation, with the seal of the first segment among them.
    let operation = Uuid::from_u128(10);
    let expected: Vec<_> = all.iter().filter(|e| e.2.operation == operation).cloned().collect();
    assert!(expected.len() > 4);
    assert!(plain(store.by_operation(operation).unwrap()).unwrap() == expected);
    assert!(plain(store.by_operation(Uuid::from_u128(999)).unwrap()).unwrap().is_empty());
    for range in [-10_000..0, 5..9_000, i64::MIN..i64::MAX, 20..20, 100_000..200_000] {
        let expected: Vec<_> =
            all.iter().filter(|e| range.contains(&e.2.wall_us)).cloned().collect();
        assert!(plain(store.by_time(range.clone()).unwrap()).unwrap() == expected, "{range:?}");
    }
}

#[test]
fn ranges_end_where_the_store_does_and_do_not_begin_before_it() {
    let (_dir, log) = full();
    let second = log.segments()[1];
    // A journal whose first segment is no longer kept.
    let frames = log.frames.iter().filter(|(frame, _)| frame.header.seq >= second).cloned();
    let kept = Log { frames: frames.collect() };
    let dir = tempfile::tempdir().unwrap();
    let mut store = store(dir.path());
    store.catch_up(&kept, kept.end()).unwrap();
    assert_eq!(store.first_seq().unwrap(), Some(second));
    let error = store.range(1..=5).map(|_| ()).unwrap_err();
    assert!(matches!(error, StoreError::Before { begins, asked: 1 } if begins == second));
    let some = plain(store.range(second + 3..=second + 9).unwrap()).unwrap();
    assert_eq!(
        some.iter().map(|e| e.0).collect::<Vec<_>>(),
        Vec::from_iter(second + 3..=second + 9)
    );
    let end = kept.end().seq;
    assert_eq!(plain(store.range(end..=end + 10).unwrap()).unwrap().len(), 1);
    assert_eq!(plain(store.range(end + 1..=end + 10).unwrap()).unwrap().len(), 0);
}

#[test]
fn a_store_ahead_of_the_log_is_kept_aside_and_accuses_the_log() {
    for lost in [3, 45, 90] {
        let (dir, log) = full();
        let shorter = log.prefix(log.frames.len() - lost);
        let report = store(dir.path()).catch_up(&shorter, shorter.end()).unwrap();
        let ahead = &report.repairs[0];
        assert!(
            matches!(ahead.cause, Repair::Ahead { store, .. } if store == log.end()),
            "{ahead:?}"
        );
        assert!(ahead.cause.accuses_log());
        let kept = ahead.kept.as_ref().unwrap();
        assert!(kept.join("generation/db").exists() && kept.join("REASON").exists());
        assert_holds(&mut store(dir.path()), &shorter);
    }
}

#[test]
fn a_store_of_another_history_is_rebuilt_whole() {
    let (dir, _) = full();
    let other = Log::new(3, 40, 77);
    let report = store(dir.path()).catch_up(&other, other.end()).unwrap();
    assert!(report.repairs.iter().all(|r| matches!(r.cause, Repair::Different { .. })));
    assert_eq!(report.repairs.iter().map(|r| r.generation).collect::<BTreeSet<_>>().len(), 3);
    assert_holds(&mut store(dir.path()), &other);
}

#[test]
fn a_store_whose_log_is_sealed_elsewhere_is_rebuilt_whole() {
    for other in [Log::new(4, 25, 9), Log::new(1, 130, 9), Log::new(2, 60, 0)] {
        let (dir, _) = full();
        let report = store(dir.path()).catch_up(&other, other.end()).unwrap();
        assert!(report.repairs.iter().any(|r| r.cause.accuses_log()), "{report:?}");
        assert_holds(&mut store(dir.path()), &other);
        assert_eq!(generations(&store_dir(dir.path())).unwrap(), other.segments());
    }
}

#[test]
fn a_repair_with_an_old_durable_position_is_finished_by_a_later_one() {
    let (dir, log) = full();
    fs::write(generation_dir(&store_dir(dir.path()), 1).join("db"), b"").unwrap();
    let old = log.prefix(20).end();
    let report = store(dir.path()).catch_up(&log, old).unwrap();
    assert_eq!(report.repairs.len(), 1, "{report:?}");
    let error = plain(store(dir.path()).range(1..=Seq::MAX).unwrap()).unwrap_err();
    assert!(matches!(error, StoreError::Unfit { generation: 1, .. }), "{error}");
    store(dir.path()).catch_up(&log, log.end()).unwrap();
    assert_holds(&mut store(dir.path()), &log);
}

#[test]
fn a_durable_position_inside_a_frame_is_refused() {
    let log = Log::new(1, 20, 0);
    let dir = tempfile::tempdir().unwrap();
    let inside = log.frames.iter().find(|(frame, _)| frame.header.count == 3).unwrap();
    let durable = Position { seq: inside.0.header.seq + 1, hash: [1; 32] };
    let error = store(dir.path()).catch_up(&log, durable).unwrap_err();
    assert!(matches!(error, StoreError::Chain { .. }), "{error}");
}

#[test]
fn a_log_that_grew_in_another_way_is_noticed_at_the_next_frame() {
    let log = Log::new(1, 40, 0);
    let dir = tempfile::tempdir().unwrap();
    store(dir.path()).catch_up(&log, log.end()).unwrap();
    let other = Log::new(1, 60, 9);
    let report = store(dir.path()).catch_up(&other, other.end()).unwrap();
    assert!(matches!(report.repairs[0].cause, Repair::Different { .. }));
    assert_holds(&mut store(dir.path()), &other);
}

#[test]
fn frames_that_do_not_chain_are_refused_and_leave_the_store_as_it_was() {
    let log = Log::new(1, 40, 0);
    let dir = tempfile::tempdir().unwrap();
    store(dir.path()).catch_up(&log.prefix(20), log.prefix(20).end()).unwrap();
    let mut gap = log.clone();
    gap.frames.remove(30);
    let error = store(dir.path()).catch_up(&gap, log.end()).unwrap_err();
    assert!(matches!(error, StoreError::Chain { .. }), "{error}");
    let forged = Position { hash: [1; 32], ..log.end() };
    let error = store(dir.path()).catch_up(&log, forged).unwrap_err();
    assert!(matches!(error, StoreError::Chain { .. }), "{error}");
    let short = log.prefix(20);
    let error = store(dir.path()).catch_up(&short, log.end()).unwrap_err();
    assert!(matches!(error, StoreError::Gap { .. }), "{error}");
    let report = store(dir.path()).catch_up(&log, log.end()).unwrap();
    assert_eq!(report.repairs, vec![]);
    assert_holds(&mut store(dir.path()), &log);
}

#[test]
fn a_log_that_cannot_be_read_moves_nothing() {
    struct Unreadable;
    impl FrameSource for Unreadable {
        fn frames_from(&self, _: Seq) -> Result<Frames<'_>, AnyError> {
            Err("the segment is gone".into())
        }

        fn end(&self) -> Result<Position, AnyError> {
            Err("the segment is gone".into())
        }
    }
    let (dir, log) = full();
    let second = log.segments()[1];
    let db = generation_dir(&store_dir(dir.path()), second).join("db");
    fs::write(&db, b"").unwrap();
    let error = store(dir.path()).catch_up(&Unreadable, log.end()).unwrap_err();
    assert!(matches!(error, StoreError::Source(_)), "{error}");
    assert!(db.exists() && !dir.path().join("quarantine").exists());
}

#[test]
fn one_thread_feeds_the_store_and_answers() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::new(3, 40, 0);
    let (reports, received) = crossbeam_channel::unbounded();
    let report = move |outcome: Result<CaughtUp, StoreError>| {
        reports.send(outcome.unwrap().position).unwrap();
    };
    let (sender, thread) = spawn_writer(store(dir.path()), log.clone(), report).unwrap();
    for count in 1..=log.frames.len() {
        sender.send(FeedMessage::CatchUp(log.prefix(count).end())).unwrap();
    }
    let (answer, answered) = crossbeam_channel::bounded(1);
    let asked = log.end().seq;
    let question = move |store: &mut Store| answer.send(store.event(asked).unwrap()).unwrap();
    sender.send(FeedMessage::Ask(Box::new(question))).unwrap();
    assert_eq!(answered.recv().unwrap().unwrap().seq, asked);
    drop(sender);
    let mut store = thread.join().unwrap();
    assert_eq!(received.iter().last(), Some(log.end()));
    assert_holds(&mut store, &log);
}

fn sample() -> (Frame, Hash) {
    Log::new(1, 9, 0).frames[5].clone()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stored_event_with_a_flipped_bit_is_refused(at: prop::sample::Index, bit in 0u8..8) {
        let (frame, hash) = sample();
        let mut bytes = event::encode(&frame.header, hash, 1, &frame.entries[1]).unwrap();
        let seq = frame.header.seq + 1;
        let read = event::decode(&bytes, seq).unwrap();
        prop_assert_eq!((read.header, read.hash, read.entry), (frame.header, hash, frame.entries[1].clone()));
        prop_assert!(event::decode(&bytes, seq + 1).is_err());
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(event::decode(&bytes, seq).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_no_event_and_no_stamp(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(event::decode(&bytes, 1).is_err());
        prop_assert_eq!(Stamp::decode(&bytes), None);
        let mut sealed = crc32fast::hash(&bytes).to_le_bytes().to_vec();
        sealed.extend(&bytes);
        prop_assert!(event::decode(&sealed, 1).is_err());
    }

    #[test]
    fn a_stamp_with_a_flipped_bit_is_refused(at: prop::sample::Index, bit in 0u8..8) {
        let (frame, hash) = sample();
        let extent = Extent::empty(frame.header.seq, frame.header.prev_hash).with(&frame, hash);
        let stamp = Stamp { extent, db_len: 99 };
        let mut bytes = stamp.encode();
        prop_assert_eq!(Stamp::decode(&bytes), Some(stamp));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert_eq!(Stamp::decode(&bytes), None);
    }
}
