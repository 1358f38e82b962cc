//! Power cuts: what was written but not synced is gone, in part, or out of order.
//!
//! A writer "dies" by a panic at the boundary before its sync. Then the bytes above the last sync are
//! replaced by everything that a disk may have made of them.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cocoon_journal::{Options, SegmentedJournal};

use crate::support::*;

thread_local! {
    static DIE_AT: Cell<&'static str> = const { Cell::new("") };
}

fn boundary(name: &'static str) {
    if DIE_AT.get() == name {
        panic!("dies at {name}");
    }
}

/// `synced` acknowledged events, then `lost` that were written but never synced.
/// Gives the segment's bytes and where the unsynced part begins.
fn written(root: &Root, synced: u64, lost: u64) -> (Vec<u8>, Vec<usize>) {
    let options = || Options { boundary, ..Options::default() };
    let mut log = Log::default();
    let mut journal = root.open_with(options());
    let len = || std::fs::read(root.segment(1)).unwrap().len();
    for n in 0..synced {
        append(&mut journal, &mut log, format!("synced {n}")).unwrap();
    }
    let mut ends = vec![len()];
    for n in 0..lost {
        DIE_AT.set("journal.sync.before");
        let died = catch_unwind(AssertUnwindSafe(|| {
            append(&mut root.open_with(options()), &mut Log::default(), format!("lost {n}"))
        }));
        DIE_AT.set("");
        assert!(died.is_err(), "it got to its sync");
        ends.push(len());
    }
    (std::fs::read(root.segment(1)).unwrap(), ends)
}

/// After the cut: everything synced is there, perhaps some of the rest in order, and it goes on.
#[track_caller]
fn assert_goes_on(root: &Root, synced: u64, context: &str) {
    let seen = read(&root.path()).unwrap_or_else(|error| panic!("{context}: reading: {error}"));
    let mut log = Log::default();
    append(&mut root.open(), &mut log, "next").unwrap_or_else(|error| panic!("{context}: {error}"));
    let bodies = log.bodies();
    let rest = bodies.len() as u64 - 1 - synced;
    let mut expected: Vec<_> = (0..synced).map(|n| format!("synced {n}")).collect();
    expected.extend((0..rest).map(|n| format!("lost {n}")));
    assert_eq!(seen.bodies(), expected, "{context}: a reader");
    expected.push("next".to_owned());
    assert_eq!(bodies, expected, "{context}: a writer");
    assert_eq!(read(&root.path()).unwrap(), log, "{context}");
}

fn restart(root: &Root, bytes: &[u8], head: &[u8]) {
    let _ = std::fs::remove_dir_all(root.path().join("quarantine"));
    std::fs::create_dir(root.path().join("quarantine")).unwrap();
    std::fs::write(root.segment(1), bytes).unwrap();
    std::fs::write(root.path().join("HEAD"), head).unwrap();
}

#[test]
fn an_unsynced_tail_may_end_anywhere() {
    let root = Root::new();
    let (bytes, ends) = written(&root, 3, 2);
    let head = std::fs::read(root.path().join("HEAD")).unwrap();
    for len in (ends[0]..=bytes.len()).step_by(3) {
        restart(&root, &bytes[..len], &head);
        assert_goes_on(&root, 3, &format!("cut at {len}"));
        let len = (len + 1).min(bytes.len());
        let mut zeroed = bytes.clone();
        zeroed[len..].fill(0);
        restart(&root, &zeroed, &head);
        assert_goes_on(&root, 3, &format!("zeroes from {len}"));
    }
}

#[test]
fn unsynced_frames_may_be_missing_in_any_combination() {
    let root = Root::new();
    let (bytes, ends) = written(&root, 2, 4);
    let head = std::fs::read(root.path().join("HEAD")).unwrap();
    for lost in 0..16 {
        for fill in [0, 0xee] {
            let mut bytes = bytes.clone();
            for n in (0..4).filter(|n| lost & (1 << n) != 0) {
                bytes[ends[n]..ends[n + 1]].fill(fill);
            }
            restart(&root, &bytes, &head);
            assert_goes_on(&root, 2, &format!("frames {lost:04b} are {fill:02x}"));
        }
    }
}

#[test]
fn head_may_be_older_or_gone() {
    let root = Root::new();
    let (bytes, _) = written(&root, 0, 0);
    let mut heads = vec![std::fs::read(root.path().join("HEAD")).unwrap()];
    drop(bytes);
    let mut journal = root.open();
    let mut log = Log::default();
    for n in 0..6 {
        append(&mut journal, &mut log, format!("synced {n}")).unwrap();
        heads.push(std::fs::read(root.path().join("HEAD")).unwrap());
    }
    let bytes = std::fs::read(root.segment(1)).unwrap();
    for (age, head) in heads.iter().enumerate() {
        restart(&root, &bytes, head);
        assert_goes_on(&root, 6, &format!("HEAD of {age}"));
    }
}

/// A writer that died after its write: the next one's sync covers both, whatever it answers.
#[test]
fn an_answer_from_unsynced_frames_is_made_durable_first() {
    use cocoon_journal::{Journal, Proposal};
    let root = Root::new();
    written(&root, 1, 1);
    let journal: &mut SegmentedJournal = &mut root.open();
    assert_eq!(journal.durable().unwrap().seq, 1);
    let mut log = Log::default();
    let decide = |log: &Log| Ok(Proposal::Answer(log.frames));
    assert_eq!(journal.transact(&mut log, &writer(), deadline(), decide).unwrap().answer, 2);
    assert_eq!(journal.durable().unwrap().seq, 2);
}
