//! Many processes at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use crate::child::{Job, Work, acks};
use crate::support::*;

fn job(dir: &Path, id: &str, count: u64) -> Job {
    Job {
        journal: dir.join("journal"),
        acks: dir.join(format!("acks-{id}")),
        id: id.to_owned(),
        count,
        kill_at: 0,
        segment_events: 50,
        work: Work::Append,
    }
}

/// Compares every acknowledgement with the log; gives how many there were.
fn assert_acknowledged(dir: &Path, ids: &[String]) -> usize {
    let log = read(&dir.join("journal")).unwrap();
    let bodies: BTreeMap<u64, &[u8]> =
        log.events.iter().map(|(seq, entry)| (*seq, entry.body.as_slice())).collect();
    let all = log.bodies();
    let mut count = 0;
    for id in ids {
        let acked = acks(&dir.join(format!("acks-{id}")));
        for (seq, body) in &acked {
            assert_eq!(bodies.get(seq).copied(), Some(body.as_bytes()), "seq {seq} of {id}");
        }
        assert!(acked.is_sorted(), "{id}: numbers rise");
        let prefix = format!("{id}.");
        let written: Vec<_> = all.iter().filter(|body| body.starts_with(&prefix)).collect();
        let numbers = 0..written.len();
        let expected: Vec<_> = numbers.map(|n| format!("{prefix}{n}")).collect();
        assert_eq!(written, expected.iter().collect::<Vec<_>>(), "once each, in order");
        assert!(written.len() <= acked.len() + 1, "{id}: only one may be unacknowledged");
        count += acked.len();
    }
    assert!(all.len() <= count + ids.len());
    count
}

#[test]
fn sixty_four_first_commands_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let ids: Vec<_> = (0..64).map(|n| format!("first{n}")).collect();
    let children: Vec<_> = ids.iter().map(|id| job(dir.path(), id, 1).spawn()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(assert_acknowledged(dir.path(), &ids), 64);
}

#[test]
fn parallel_writers_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ids: Vec<_> = (0..8).map(|n| format!("w{n}")).collect();
    let children: Vec<_> = ids.iter().map(|id| job(dir.path(), id, 100).spawn()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(assert_acknowledged(dir.path(), &ids), 800);
}

#[test]
fn writers_killed_at_random_lose_nothing_acknowledged() {
    let kills = std::env::var("JOURNAL_KILLS").map_or(60, |kills| kills.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::from_environment();
    let mut ids = Vec::new();
    let mut running: Vec<Child> = Vec::new();
    for kill in 0..kills {
        while running.len() < 6 {
            let id = format!("k{}", ids.len());
            running.push(job(dir.path(), &id, u64::MAX).spawn());
            ids.push(id);
        }
        // A random time is what this test is about; nothing is asserted about it.
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let victim = usize::try_from(random.below(6)).unwrap();
        let mut victim = running.swap_remove(victim);
        victim.kill().unwrap();
        victim.wait().unwrap();
        if kill % 20 == 0 {
            read(&dir.path().join("journal")).unwrap();
        }
    }
    for child in &mut running {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let acknowledged = assert_acknowledged(dir.path(), &ids);
    println!("{kills} kills, {acknowledged} acknowledged");
    let mut log = read(&dir.path().join("journal")).unwrap();
    let options = cocoon_journal::Options::default();
    let path = dir.path().join("journal");
    let mut journal = cocoon_journal::SegmentedJournal::open(&path, options).unwrap();
    append(&mut journal, &mut log, "z.0").unwrap();
}
