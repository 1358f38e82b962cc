//! Processes that are killed while they use the store.

use std::time::Duration;

use super::{assert_holds, full, store};
use crate::store::{Repair, Store, StoreOptions, generation_dir, store_dir};
use crate::testing::{Log, Random, boundary, child_dir, kill_at_each_boundary, spawn};
use std::fs;
use std::path::Path;

const CHILD: &str = "store::tests::crash::child";

fn log() -> Log {
    Log::new(3, 24, 0)
}

/// Not a test of its own: what the children of the tests below do.
#[test]
fn child() {
    let Some(dir) = child_dir() else { return };
    let log = log();
    for count in [10, 24, 26, log.frames.len()] {
        let options = StoreOptions { boundary };
        let mut store = Store::try_open_with(&dir, options).unwrap().unwrap();
        let durable = log.prefix(count).end();
        if store.position().unwrap().seq < durable.seq {
            store.catch_up(&log, durable).unwrap();
        }
    }
    let options = StoreOptions { boundary };
    let mut store = Store::try_open_with(&dir, options).unwrap().unwrap();
    store.catch_up(&log, log.end()).unwrap();
}

/// Nothing was damaged: the next process goes on and leaves no trace of what happened.
fn goes_on(dir: &Path, at: &str) {
    let log = log();
    let report = store(dir).catch_up(&log, log.end()).unwrap_or_else(|e| panic!("{at}: {e}"));
    assert_eq!(report.repairs, vec![], "{at}");
    assert_holds(&mut store(dir), &log);
    let quarantine = fs::read_dir(dir.join("quarantine")).map_or(0, Iterator::count);
    assert_eq!(quarantine, 0, "{at}");
}

#[test]
fn killed_at_each_boundary_of_catching_up_and_of_making_generations() {
    kill_at_each_boundary(CHILD, |_| {}, goes_on);
}

#[test]
fn killed_at_each_boundary_of_a_repair() {
    let broken = |dir: &Path| {
        let log = log();
        store(dir).catch_up(&log, log.end()).unwrap();
        let (first, second) = (log.segments()[0], log.segments()[1]);
        fs::write(generation_dir(&store_dir(dir), first).join("db"), b"").unwrap();
        fs::remove_dir_all(generation_dir(&store_dir(dir), second)).unwrap();
    };
    kill_at_each_boundary(CHILD, broken, |dir, at| {
        let log = log();
        let report = store(dir).catch_up(&log, log.end()).unwrap_or_else(|e| panic!("{at}: {e}"));
        // Whatever was already repaired is not repaired again.
        assert!(report.repairs.len() <= 2, "{at}: {report:?}");
        assert_holds(&mut store(dir), &log);
        let kept = fs::read_dir(dir.join("quarantine")).unwrap();
        let generations = kept.filter(|k| k.as_ref().unwrap().path().join("generation").exists());
        assert_eq!(generations.count(), 1, "{at}");
    });
}

#[test]
fn killed_at_each_boundary_of_leaving_another_history() {
    let other = |dir: &Path| {
        let log = Log::new(4, 20, 9);
        store(dir).catch_up(&log, log.end()).unwrap();
    };
    kill_at_each_boundary(CHILD, other, |dir, at| {
        let log = log();
        store(dir).catch_up(&log, log.end()).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert_holds(&mut store(dir), &log);
        let kept = fs::read_dir(dir.join("quarantine")).unwrap();
        let generations = kept.filter(|k| k.as_ref().unwrap().path().join("generation").exists());
        // All four, and perhaps an empty one that was begun after the last of them.
        assert!((4..=5).contains(&generations.count()), "{at}");
    });
}

#[test]
fn killed_at_random() {
    let mut random = Random::new();
    let scratch = tempfile::tempdir().unwrap();
    for round in 0..6 {
        let dir = scratch.path().join(round.to_string());
        fs::create_dir(&dir).unwrap();
        for _ in 0..12 {
            let mut child = spawn(CHILD, &dir, None);
            // The moment is the subject of the test, so it is not awaited but drawn.
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        goes_on(&dir, &format!("round {round}"));
    }
}

#[test]
fn killed_while_opening_leaves_a_generation_in_doubt_that_is_read_whole() {
    let (dir, log) = full();
    let newest = generation_dir(&store_dir(dir.path()), *log.segments().last().unwrap());
    fs::write(newest.join("SUSPECT"), b"").unwrap();
    let generating = newest.join("snap.0000000000FFFFFF.generating");
    fs::write(&generating, b"").unwrap();
    let report = store(dir.path()).catch_up(&log, log.end()).unwrap();
    assert_eq!(report.repairs, vec![]);
    assert!(!generating.exists() && !newest.join("SUSPECT").exists());
    assert_holds(&mut store(dir.path()), &log);
}

/// Stamps are not synced: after a power cut there may be an older one, or one of no length.
#[test]
fn stamps_that_a_power_cut_left_behind_are_no_damage() {
    let log = log();
    let (scratch, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    store(scratch.path()).catch_up(&log, log.end()).unwrap();
    let prefix = log.prefix(10);
    store(old.path()).catch_up(&prefix, prefix.end()).unwrap();
    let stamp = |dir: &Path| generation_dir(&store_dir(dir), 1).join("STAMP");
    let older = fs::read(stamp(old.path())).unwrap();
    for bytes in [&older[..], b""] {
        fs::write(stamp(scratch.path()), bytes).unwrap();
        let report = store(scratch.path()).catch_up(&log, log.end()).unwrap();
        assert_eq!(report.repairs, vec![]);
        assert_holds(&mut store(scratch.path()), &log);
    }
}

#[test]
fn a_generation_in_doubt_is_copied_before_it_is_opened() {
    let (dir, log) = full();
    let newest = generation_dir(&store_dir(dir.path()), *log.segments().last().unwrap());
    let whole = fs::read(newest.join("db")).unwrap();
    let cut = &whole[..3000];
    fs::write(newest.join("db"), cut).unwrap();
    let report = store(dir.path()).catch_up(&log, log.end()).unwrap();
    let repaired = &report.repairs[0];
    assert!(!matches!(repaired.cause, Repair::Missing | Repair::Ahead { .. }));
    let kept = repaired.kept.as_ref().unwrap().join("before-open/db");
    assert!(fs::read(kept).unwrap() == cut);
    assert_holds(&mut store(dir.path()), &log);
}
