//! Damage of every kind to every file: wrong data never comes out, and the next catch-up repairs it.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{assert_holds, full, plain, store};
use crate::frame::{Seq, Subject};
use crate::store::{generation_dir, store_dir};
use crate::testing::{Log, Random};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    BitFlip,
    BitFlipInTail,
    Truncate,
    ZeroPage,
    GarbageInside,
    GarbageAppended,
    Empty,
    Missing,
}

const DAMAGES: [Damage; 8] = [
    Damage::BitFlip,
    Damage::BitFlipInTail,
    Damage::Truncate,
    Damage::ZeroPage,
    Damage::GarbageInside,
    Damage::GarbageAppended,
    Damage::Empty,
    Damage::Missing,
];

impl Damage {
    fn apply(self, path: &Path, random: &mut Random) {
        let mut bytes = fs::read(path).unwrap();
        let len = bytes.len();
        let mut place = |limit: usize| usize::try_from(random.below(limit.max(1) as u64)).unwrap();
        let at = place(len);
        match self {
            Self::BitFlip => bytes[at] ^= 1 << (at % 8),
            Self::BitFlipInTail => bytes[len - 1 - place(len.min(4096))] ^= 4,
            Self::Truncate => bytes.truncate(at),
            Self::ZeroPage => bytes[at / 4096 * 4096..].iter_mut().take(4096).for_each(|b| *b = 0),
            Self::GarbageInside => bytes[at..].iter_mut().take(64).for_each(|b| *b ^= 0xA5),
            Self::GarbageAppended => bytes.extend_from_slice(&[0xA5; 700]),
            Self::Empty => bytes.clear(),
            Self::Missing => return fs::remove_file(path).unwrap(),
        }
        fs::write(path, bytes).unwrap();
    }
}

fn file(dir: &Path, generation: Seq, name: &str) -> PathBuf {
    let dir = generation_dir(&store_dir(dir), generation);
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(name);
    names.into_iter().rfind(named).unwrap()
}

/// Before any repair: every answer is right, or an error. The store may end early only if it says so.
fn answers_right_or_not(dir: &Path, log: &Log) {
    let mut store = store(dir);
    let all = log.events();
    for seq in (1..=log.end().seq).step_by(5) {
        if let Ok(Some(found)) = store.event(seq) {
            let index = usize::try_from(seq - 1).unwrap();
            assert!((found.seq, found.hash, found.header, found.entry) == all[index]);
        }
    }
    if let Ok(found) = plain(store.range(1..=Seq::MAX).unwrap()) {
        let end = store.position().unwrap().seq;
        let complete = found == all || (end == 0 && found == all[..found.len()]);
        assert!(complete, "{} of {} events, position {end}", found.len(), all.len());
    }
    let subject = Subject::new("vm/1").unwrap();
    if let Ok(found) = store.by_subject(&subject).and_then(plain) {
        let expected: Vec<_> = all.into_iter().filter(|e| e.3.subject == subject).collect();
        assert!(found == expected || store.position().unwrap().seq == 0);
    }
}

fn survives(name: &str, rounds: u64) {
    survives_in(name, rounds, full);
}

fn survives_in(name: &str, rounds: u64, full: impl Fn() -> (TempDir, Log)) {
    let mut random = Random::new();
    for damage in DAMAGES {
        for round in 0..rounds {
            let (dir, log) = full();
            let segments = log.segments();
            let generation = segments[usize::try_from(round).unwrap() % segments.len()];
            damage.apply(&file(dir.path(), generation, name), &mut random);
            if round % 2 == 0 {
                answers_right_or_not(dir.path(), &log);
            }
            let what = format!("{damage:?} of {name}, round {round}");
            let caught = store(dir.path()).catch_up(&log, log.end());
            caught.unwrap_or_else(|error| panic!("{what}: {error}"));
            // What only reading everything can find is found now, and repaired by the next catch-up.
            if store(dir.path()).verify().is_err() {
                let report = store(dir.path()).catch_up(&log, log.end()).unwrap();
                assert!(!report.repairs.is_empty(), "{what}");
                assert!(report.repairs.iter().all(|r| r.kept.is_some()), "{what}");
            }
            assert_holds(&mut store(dir.path()), &log);
        }
    }
}

#[test]
fn damage_to_the_database_file() {
    survives("db", 6);
}

/// Many sled segments, and, every other time, no snapshot: the whole log is read again at opening.
#[test]
#[ignore = "takes minutes"]
fn damage_to_a_large_database_file() {
    let log = Log::new(2, 1200, 0);
    let flip = std::cell::Cell::new(false);
    survives_in("db", 4, || {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path()).catch_up(&log, log.end()).unwrap();
        if flip.replace(!flip.get()) {
            for first in log.segments() {
                let dir = generation_dir(&store_dir(dir.path()), first);
                for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                    if entry.file_name().to_string_lossy().starts_with("snap.") {
                        fs::remove_file(entry.path()).unwrap();
                    }
                }
            }
        }
        (dir, log.clone())
    });
}

#[test]
fn damage_to_the_snapshot() {
    survives("snap.", 3);
}

#[test]
fn damage_to_the_configuration() {
    survives("conf", 3);
}

#[test]
fn damage_to_the_stamp() {
    survives("STAMP", 3);
}

#[test]
fn missing_generations_are_made_again() {
    for lost in [vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2], vec![0, 1, 2]] {
        let (dir, log) = full();
        for n in &lost {
            let dir = generation_dir(&store_dir(dir.path()), log.segments()[*n]);
            fs::remove_dir_all(dir).unwrap();
        }
        let mut store = store(dir.path());
        store.catch_up(&log, log.end()).unwrap();
        assert_holds(&mut store, &log);
    }
}

#[test]
fn a_generation_that_fell_back_to_an_older_state_is_noticed() {
    let (dir, log) = full();
    let newest = generation_dir(&store_dir(dir.path()), *log.segments().last().unwrap());
    let older = tempfile::tempdir().unwrap();
    let prefix = log.prefix(log.frames.len() - 20);
    store(older.path()).catch_up(&prefix, prefix.end()).unwrap();
    let source = generation_dir(&store_dir(older.path()), *log.segments().last().unwrap());
    for entry in fs::read_dir(&newest).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && !path.ends_with("STAMP") {
            fs::remove_file(path).unwrap();
        }
    }
    for entry in fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && !path.ends_with("STAMP") {
            fs::copy(&path, newest.join(path.file_name().unwrap())).unwrap();
        }
    }
    let error = store(dir.path()).event(log.end().seq).unwrap_err();
    assert!(error.to_string().contains("it reached"), "{error}");
    let report = store(dir.path()).catch_up(&log, log.end()).unwrap();
    assert_eq!(report.repairs.len(), 1);
    assert_holds(&mut store(dir.path()), &log);
}
