//! Logs that do not end well: unfinished tails are cut and journalled, damage is named.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cocoon_journal::reserved::{JOURNAL_TAIL_CUT, JournalEvent};
use cocoon_journal::{Journal, JournalError, Position, Proposal};

use crate::support::*;

/// A journal with some events, none of which `HEAD` speaks of: as after a power cut.
fn written(count: u64) -> (Root, Log) {
    let root = Root::new();
    let mut journal = root.open();
    let mut log = Log::default();
    for n in 0..count {
        append(&mut journal, &mut log, n.to_string()).unwrap();
    }
    (root, log)
}

fn forget_head(root: &Root) {
    std::fs::write(root.path().join("HEAD"), [0; 1024]).unwrap();
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn append_garbage(path: &Path, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, len(path)).unwrap();
}

#[test]
fn an_unfinished_frame_is_put_aside_and_its_cut_journalled() {
    let (root, log) = written(5);
    let segment = root.segment(1);
    let end = len(&segment);
    let tail = [b"CCNF".as_slice(), &[0xee; 300]].concat();
    append_garbage(&segment, &tail);
    assert_eq!(root.read(), log, "a reader stops before it");

    let mut journal = root.open();
    let mut new = Log::default();
    let outcome = append(&mut journal, &mut new, "after").unwrap();
    assert_eq!(outcome.seqs, Some(7..=7), "after the cut, which is event 6");
    let hash = cocoon_journal::frame::hash_of(&tail);
    let (seq, cut) = &new.events[5];
    let expected = JournalEvent::TailCut { segment: 1, offset: end, length: 304, hash };
    assert_eq!((*seq, JournalEvent::from_entry(cut)), (6, Some(expected)));
    let saved: Vec<_> = std::fs::read_dir(root.path().join("quarantine")).unwrap().collect();
    let [Ok(saved)] = saved.as_slice() else { panic!("{saved:?}") };
    assert_eq!(std::fs::read(saved.path()).unwrap(), tail);
    assert_eq!(root.read(), new);
}

#[test]
fn nothing_of_a_long_tail_is_left() {
    let (root, _) = written(2);
    append_garbage(&root.segment(1), &[0xee; 5000]);
    let grown = len(&root.segment(1));
    let mut log = Log::default();
    append(&mut root.open(), &mut log, "x").unwrap();
    assert_eq!(len(&root.segment(1)), grown, "overwritten, never truncated");
    assert!(!std::fs::read(root.segment(1)).unwrap().ends_with(&[0xee]));
    for n in 0..30 {
        append(&mut root.open(), &mut log, n.to_string()).unwrap();
    }
    assert_eq!(log.count(JOURNAL_TAIL_CUT), 1, "the zeroes are no tail");
    assert_eq!(root.read(), log);
}

#[test]
fn an_answer_cuts_too() {
    let (root, log) = written(2);
    append_garbage(&root.segment(1), b"CCNF");
    let mut new = Log::default();
    root.open()
        .transact(&mut new, &writer(), deadline(), |log| Ok(Proposal::Answer(log.frames)))
        .unwrap();
    assert_eq!(new.frames, log.frames + 1);
    assert_eq!(root.read(), new);
}

#[test]
fn a_torn_last_frame_that_nobody_knew_durable_is_cut() {
    let (root, _) = written(5);
    forget_head(&root);
    let end = len(&root.segment(1));
    flip(&root.segment(1), end - 1);
    let mut log = Log::default();
    append(&mut root.open(), &mut log, "again").unwrap();
    assert_eq!(log.bodies(), ["0", "1", "2", "3", "again"]);
    assert_eq!(log.count(JOURNAL_TAIL_CUT), 1);
}

#[track_caller]
fn assert_damaged(root: &Root, expected_seq: u64) {
    let before = std::fs::read(root.segment(1)).unwrap();
    let error = append(&mut root.open(), &mut Log::default(), "x").expect_err("it is damaged");
    let JournalError::Damaged { seq, .. } = error else { panic!("{error}") };
    assert_eq!(seq, expected_seq, "{error}");
    let error = read(&root.path()).expect_err("it is damaged for readers, too");
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    assert_eq!(std::fs::read(root.segment(1)).unwrap(), before, "nothing was changed");
}

#[test]
fn a_bad_frame_that_head_names_is_damage() {
    let (root, _) = written(5);
    let end = len(&root.segment(1));
    flip(&root.segment(1), end - 1);
    assert_damaged(&root, 5);
}

#[test]
fn a_bad_frame_that_a_later_frame_names_is_damage() {
    let (root, _) = written(5);
    forget_head(&root);
    let frame = (len(&root.segment(1)) - 128) / 5;
    flip(&root.segment(1), 128 + 2 * frame + 20);
    assert_damaged(&root, 3);
}

#[test]
fn a_log_cut_short_is_damage() {
    let (root, _) = written(5);
    let file = OpenOptions::new().write(true).open(root.segment(1)).unwrap();
    let frame = (len(&root.segment(1)) - 128) / 5;
    file.set_len(128 + 3 * frame).unwrap();
    assert_damaged(&root, 4);
}

#[test]
fn a_log_behind_a_state_is_damage() {
    let (root, mut log) = written(5);
    forget_head(&root);
    let file = OpenOptions::new().write(true).open(root.segment(1)).unwrap();
    let frame = (len(&root.segment(1)) - 128) / 5;
    file.set_len(128 + 3 * frame).unwrap();
    let error = append(&mut root.open(), &mut log, "x").unwrap_err();
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
}

#[test]
fn a_state_of_another_history_is_refused() {
    let (root, log) = written(5);
    let position = Position { hash: [1; 32], ..log.position };
    let mut other = Log { position, ..log };
    let error = append(&mut root.open(), &mut other, "x").unwrap_err();
    assert!(
        matches!(error, JournalError::Diverged { .. } | JournalError::Damaged { .. }),
        "{error}"
    );
}

#[test]
fn a_missing_sealed_segment_is_damage() {
    let root = Root::new();
    let mut log = Log::default();
    let mut journal = root.open_with(small_segments(4));
    for n in 0..10 {
        append(&mut journal, &mut log, n.to_string()).unwrap();
    }
    std::fs::remove_file(root.segment(6)).unwrap();
    let error = read(&root.path()).unwrap_err();
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
}

#[test]
fn losing_all_segments_is_no_empty_journal() {
    let (root, _) = written(3);
    std::fs::remove_file(root.segment(1)).unwrap();
    let error = read(&root.path()).unwrap_err();
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
}

#[test]
fn without_head_everything_is_still_there() {
    let (root, log) = written(5);
    std::fs::remove_file(root.path().join("HEAD")).unwrap();
    assert_eq!(root.read(), log);
    let mut new = Log::default();
    append(&mut root.open(), &mut new, "x").unwrap();
    assert_eq!(new.position.seq, 6);
    assert_eq!(cocoon_journal::Journal::durable(&root.open()).unwrap(), new.position);
}

/// A writer that died while sealing left a segment that no seal names; then the log went another way.
#[test]
fn a_segment_that_no_seal_names_misleads_nobody() {
    let root = Root::new();
    let mut log = Log::default();
    let mut journal = root.open_with(small_segments(6));
    for n in 0..3 {
        append(&mut journal, &mut log, n.to_string()).unwrap();
    }
    let boundary = |name| assert_ne!(name, "journal.seal.created", "the writer dies");
    let options = cocoon_journal::Options { boundary, ..small_segments(4) };
    let mut dying = root.open_with(options);
    let append_dying = || append(&mut dying, &mut Log::default(), "never");
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(append_dying)).is_err());
    assert!(root.segment(6).exists(), "made for after event 4 and its seal");
    let orphan = std::fs::read(root.segment(6)).unwrap();
    for n in 3..5 {
        append(&mut journal, &mut log, n.to_string()).unwrap();
        std::fs::write(root.segment(6), &orphan).unwrap();
        let mut anew = log.clone();
        root.open().refresh(&mut anew).unwrap();
        assert_eq!(anew, log, "found from its own state");
        assert_eq!(root.read(), log);
    }
    append(&mut root.open(), &mut log, "5").unwrap();
    assert!(!root.segment(6).exists(), "swept");
    append(&mut journal, &mut log, "6").unwrap();
    assert_eq!(root.read(), log);
}
