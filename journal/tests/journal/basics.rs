//! One or two handles, no failures.

use cocoon_journal::reserved::JOURNAL_SEALED;
use cocoon_journal::{Journal, Proposal};

use crate::support::*;

#[test]
fn what_is_appended_is_read_by_others_in_order() {
    let root = Root::new();
    let mut journal = root.open();
    let mut log = Log::default();
    for n in 0..100 {
        let outcome = append(&mut journal, &mut log, format!("{n}")).unwrap();
        assert_eq!(outcome.seqs, Some(n + 1..=n + 1));
        assert_eq!(journal.durable().unwrap(), log.position, "acknowledged means durable");
    }
    let other = root.read();
    assert_eq!(other, log);
    assert_eq!(other.bodies(), (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_decision_sees_what_others_wrote() {
    let root = Root::new();
    let (mut a, mut b) = (root.open(), root.open());
    let (mut log_a, mut log_b) = (Log::default(), Log::default());
    append(&mut a, &mut log_a, "a").unwrap();
    let outcome = b
        .transact(&mut log_b, &writer(), deadline(), |log| Ok(Proposal::Answer(log.bodies())))
        .unwrap();
    assert_eq!((outcome.answer, outcome.seqs), (vec!["a".to_owned()], None));
    append(&mut b, &mut log_b, "b").unwrap();
    a.refresh(&mut log_a).unwrap();
    assert_eq!(log_a, log_b);
}

#[test]
fn a_decision_of_several_events_is_one_frame() {
    let root = Root::new();
    let mut journal = root.open();
    let mut log = Log::default();
    let entries: Vec<_> = (0..16).map(|n| entry(n.to_string())).collect();
    let outcome = journal
        .transact(&mut log, &writer(), deadline(), |_| Ok(Proposal::Append(entries, ())))
        .unwrap();
    assert_eq!((outcome.seqs, log.frames), (Some(1..=16), 1));
    assert_eq!(root.read(), log);
}

#[test]
fn segments_are_sealed_and_followed() {
    let root = Root::new();
    let mut journal = root.open_with(small_segments(5));
    let mut log = Log::default();
    let mut reader = Log::default();
    let tail = root.open();
    for n in 0..50 {
        append(&mut journal, &mut log, n.to_string()).unwrap();
        tail.refresh(&mut reader).unwrap();
        assert_eq!(reader, log);
    }
    assert_eq!(log.count(JOURNAL_SEALED), 10);
    assert_eq!(std::fs::read_dir(root.path().join("seg")).unwrap().count(), 11);
    assert_eq!(root.read(), log);
    for seq in 1..=log.position.seq {
        let mut frames = journal.frames_from(seq).unwrap();
        let (frame, _) = frames.next().unwrap().unwrap();
        assert_eq!(frame.header.seq, seq, "found by its number");
        let rest = frames.map(|frame| frame.unwrap().0.last_seq()).last();
        assert_eq!(rest.unwrap_or(seq), log.position.seq);
    }
    assert!(journal.frames_from(log.position.seq + 1).unwrap().next().is_none());
}

#[test]
fn a_fold_may_start_anywhere_and_lag_behind() {
    let root = Root::new();
    let mut journal = root.open_with(small_segments(7));
    let mut log = Log::default();
    let mut earlier = vec![log.clone()];
    for n in 0..40 {
        append(&mut journal, &mut log, n.to_string()).unwrap();
        earlier.push(log.clone());
    }
    for mut old in earlier {
        let mut again = old.clone();
        root.open().refresh(&mut old).unwrap();
        assert_eq!(old, log, "from a fresh handle");
        journal.refresh(&mut again).unwrap();
        assert_eq!(again, log, "from a handle that is ahead");
    }
}
