//! Processes that are killed while they write checkpoints.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{Changes, State, at, changes, content, durable, names, step, writer};
use crate::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
use crate::frame::{Position, Seq};
use crate::testing::{Random, boundary, child_dir, kill_at_each_boundary, spawn};

const CHILD: &str = "checkpoint::tests::crash::child";
const LAST: Seq = 11;

/// What changed from one checkpoint to the next; the third and the ninth delta lead to a merge.
fn round(seq: Seq) -> Changes {
    match seq {
        1 => changes(1, 0..900),
        3 => changes(3, 100..600),
        _ => {
            let mut changed = changes(seq, 20..22);
            changed.insert(format!("k{seq:05}").into_bytes(), None);
            changed
        }
    }
}

fn state(seq: Seq) -> State {
    let mut state = State::new();
    for seq in 1..=seq {
        step(&mut state, &round(seq));
    }
    state
}

fn write(writer: &mut CheckpointWriter) {
    let position = |writer: &CheckpointWriter| {
        writer.previous().map_or(Position::default(), Checkpoint::position)
    };
    while position(writer).seq < LAST {
        let since = position(writer);
        let next = since.seq + 1;
        writer.write_changes(since, at(next), durable(), round(next)).unwrap();
    }
}

/// Not a test of its own: what the children of the tests below do.
#[test]
fn child() {
    let Some(dir) = child_dir() else { return };
    let options = CheckpointOptions { boundary, ..CheckpointOptions::default() };
    write(&mut CheckpointWriter::try_lock(&dir, options).unwrap().unwrap());
}

fn goes_on(dir: &Path, killed: &str) {
    let latest = Checkpoint::latest(dir).unwrap();
    assert!(latest.damaged.is_empty(), "{killed}: {:?}", latest.damaged);
    if let Some(checkpoint) = latest.checkpoint {
        assert_eq!(content(&checkpoint).unwrap(), state(checkpoint.position().seq), "{killed}");
        checkpoint.verify().unwrap();
    }
    write(&mut writer(dir));
    // One more checkpoint, so that what the dead writer left is surely cleaned up.
    writer(dir).write_changes(at(LAST), at(LAST + 1), durable(), round(LAST + 1)).unwrap();
    let checkpoint = Checkpoint::latest(dir).unwrap().checkpoint.unwrap();
    assert_eq!(content(&checkpoint).unwrap(), state(LAST + 1), "{killed}");
    let older = Checkpoint::open(dir, LAST).unwrap();
    let mut expected: BTreeSet<String> = BTreeSet::new();
    for manifest in [&checkpoint.manifest, &older.manifest] {
        expected.insert(format!("{:020}.ckpt", manifest.position.seq));
        expected.extend(manifest.tables.iter().map(super::NamedTable::name));
    }
    assert_eq!(names(dir), Vec::from_iter(expected), "{killed}");
}

#[test]
fn killed_at_each_boundary() {
    kill_at_each_boundary(CHILD, |_| {}, goes_on);
}

#[test]
fn killed_at_random() {
    let mut random = Random::new();
    let scratch = tempfile::tempdir().unwrap();
    for round in 0..6 {
        let dir = scratch.path().join(round.to_string());
        fs::create_dir(&dir).unwrap();
        for _ in 0..8 {
            let mut child = spawn(CHILD, &dir, None);
            // The moment is the subject of the test, so it is not awaited but drawn.
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        goes_on(&dir, &format!("round {round}"));
    }
}
