//! SIGKILL at every boundary: counted first, then each in turn, and again during the recovery.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use cocoon_journal::Options;

use crate::child::{Job, Work, acks};
use crate::support::*;

/// Events that each child appends: enough to seal twice.
const COUNT: u64 = 6;
const SEGMENT_EVENTS: u64 = 3;

fn job(dir: &Path, id: &str, kill_at: u64) -> Job {
    Job {
        journal: dir.join("journal"),
        acks: dir.join(format!("acks-{id}")),
        id: id.to_owned(),
        count: COUNT,
        kill_at,
        segment_events: SEGMENT_EVENTS,
        work: Work::Append,
    }
}

/// Leaves an unfinished tail, as a writer does that dies within a write.
fn tear(dir: &Path) {
    let seg = dir.join("journal/seg");
    let newest = std::fs::read_dir(seg).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    bytes.extend_from_slice(b"CCNF torn in the middle");
    std::fs::write(newest, bytes).unwrap();
}

/// Everything acknowledged is there under its number, in order; what else is there was being written
/// by a child that died.
#[track_caller]
fn assert_sound(dir: &Path, ids: &[&str], context: &str) {
    let log = read(&dir.join("journal")).unwrap_or_else(|error| panic!("{context}: {error}"));
    let mut expected = Vec::new();
    for id in ids {
        let acked = acks(&dir.join(format!("acks-{id}")));
        for (seq, body) in &acked {
            let found = log.events.iter().find(|(found, _)| found == seq);
            let found = found.map(|(_, entry)| String::from_utf8_lossy(&entry.body).into_owned());
            assert_eq!(found.as_ref(), Some(body), "{context}: seq {seq} was acknowledged");
        }
        let written = log.bodies().iter().filter(|body| body.starts_with(id)).count();
        assert!(written == acked.len() || written == acked.len() + 1, "{context}: {id} {written}");
        expected.extend((0..written).map(|n| format!("{id}.{n}")));
    }
    assert_eq!(log.bodies(), expected, "{context}: no loss, no duplicate, no other order");
}

fn assert_usable(dir: &Path, context: &str) {
    let path = dir.join("journal");
    let mut log = read(&path).unwrap();
    let mut journal = cocoon_journal::SegmentedJournal::open(&path, Options::default()).unwrap();
    let before = log.bodies().len();
    append(&mut journal, &mut log, "z.0").unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(read(&path).unwrap().bodies().len(), before + 1, "{context}");
}

/// Runs `a`, killed at each boundary; then `b` on what it left, killed at every `stride`th boundary.
fn matrix(prepare: impl Fn(&Path), stride: usize) {
    let count = |dir: &Path, id: &str| {
        let job = job(dir, id, 0);
        assert!(job.spawn().wait().unwrap().success());
        job.boundaries()
    };
    let fresh = || {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        dir
    };
    let dir = fresh();
    let first = count(dir.path(), "a");
    assert!(first > COUNT * 6, "{first} boundaries");
    let second = count(dir.path(), "b");
    for at in 1..=first {
        let dir = fresh();
        let status = job(dir.path(), "a", at).spawn().wait().unwrap();
        assert_eq!(status.signal(), Some(9), "killed at boundary {at} of {first}");
        let offset = usize::try_from(at).unwrap() % stride;
        for again in (1..=second).skip(offset).step_by(stride) {
            let context = format!("a killed at {at}, b at {again}");
            let copy = tempfile::tempdir().unwrap();
            copy_dir(dir.path(), copy.path());
            job(copy.path(), "b", again).spawn().wait().unwrap();
            assert_sound(copy.path(), &["a", "b"], &context);
            assert_usable(copy.path(), &context);
        }
        assert_sound(dir.path(), &["a"], &format!("a killed at {at}"));
        assert!(job(dir.path(), "b", 0).spawn().wait().unwrap().success());
        assert_sound(dir.path(), &["a", "b"], &format!("a killed at {at}, b whole"));
    }
}

fn copy_dir(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn from_nothing() {
    matrix(|_| (), 9);
}

#[test]
fn after_a_torn_tail() {
    let prepare = |dir: &Path| {
        let path = dir.join("journal");
        drop(cocoon_journal::SegmentedJournal::open(&path, Options::default()).unwrap());
        tear(dir);
    };
    matrix(prepare, 9);
}
