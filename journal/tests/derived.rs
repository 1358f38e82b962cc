//! What is derived from the journal, against the journal itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cocoon_journal::checkpoint::{self, Checkpoint, CheckpointOptions, CheckpointWriter};
use cocoon_journal::inspect::FaultKind;
use cocoon_journal::store::{self, FeedMessage, Store, StoredEvent};
use cocoon_journal::verify::verify;
use cocoon_journal::{
    Entry, Fold, Frame, Hash, Journal, JournalError, Options, Position, Proposal, SegmentedJournal,
    Seq, Subject, Writer,
};
use tempfile::TempDir;
use uuid::Uuid;

/// How many events each subject has.
#[derive(Debug, Default)]
struct Counts {
    position: Position,
    of: std::collections::BTreeMap<String, u64>,
}

impl Fold for Counts {
    type Error = Infallible;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Infallible> {
        for entry in &frame.entries {
            *self.of.entry(entry.subject.as_str().to_owned()).or_default() += 1;
        }
        self.position = frame.position(hash);
        Ok(())
    }
}

struct World {
    scratch: TempDir,
    journal: SegmentedJournal,
    counts: Counts,
}

impl World {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let journal = open(&scratch.path().join("journal"));
        Self { scratch, journal, counts: Counts::default() }
    }

    fn dir(&self) -> PathBuf {
        self.scratch.path().join("journal")
    }

    /// Journals decisions of two events each.
    fn decide(&mut self, decisions: u32) {
        for n in 0..decisions {
            let writer = Writer {
                operation: Uuid::from_u128(u128::from(n / 3)),
                pid: 7,
                start_time: 70,
                verb: "test".to_owned(),
            };
            let entry = |subject: String, body| Entry {
                kind: 1,
                version: 1,
                subject: Subject::new(subject).unwrap(),
                body,
            };
            let entries =
                vec![entry(format!("vm/{}", n % 9), vec![1; 40]), entry("image/a".into(), vec![])];
            let deadline = Instant::now() + Duration::from_secs(30);
            let decided = |_: &Counts| Ok(Proposal::Append(entries, ()));
            self.journal.transact(&mut self.counts, &writer, deadline, decided).unwrap();
        }
    }

    fn store(&self) -> Store {
        Store::try_open(&self.dir()).unwrap().unwrap()
    }

    fn assert_stored(&self) {
        let mut store = self.store();
        let frames = self.journal.frames_from(1).unwrap().map(Result::unwrap);
        let expected: Vec<(Seq, Entry, Hash)> = frames
            .flat_map(|(frame, hash)| {
                let events = frame.events().map(|(seq, entry)| (seq, entry.clone(), hash));
                events.collect::<Vec<_>>()
            })
            .collect();
        let plain = |event: StoredEvent| (event.seq, event.entry, event.hash);
        let found = store.range(1..=Seq::MAX).unwrap().map(|event| plain(event.unwrap()));
        assert!(found.eq(expected));
        store.verify().unwrap();
    }
}

fn open(dir: &Path) -> SegmentedJournal {
    SegmentedJournal::open(dir, Options { segment_events: 60, ..Options::default() }).unwrap()
}

#[test]
fn the_store_follows_the_journal_across_seals() {
    let mut world = World::new();
    for _ in 0..6 {
        world.decide(35);
        let durable = world.journal.durable().unwrap();
        assert!(store::due(store::lag(&world.dir(), durable.seq).unwrap()) == (durable.seq > 900));
        let report = world.store().catch_up(&world.journal, durable).unwrap();
        assert_eq!((report.position, report.repairs), (durable, vec![]));
    }
    let segments = fs::read_dir(world.dir().join("seg")).unwrap().count();
    let generations = fs::read_dir(world.dir().join("sled")).unwrap().count();
    assert!(segments > 4 && generations >= segments - 1, "{segments} {generations}");
    world.assert_stored();
}

#[test]
fn a_lost_head_does_not_make_the_store_look_ahead() {
    let mut world = World::new();
    world.decide(100);
    let durable = world.journal.durable().unwrap();
    world.store().catch_up(&world.journal, durable).unwrap();
    // HEAD as a power cut may leave it: older than the log.
    let head = fs::read(world.dir().join("HEAD")).unwrap();
    world.decide(40);
    let durable = world.journal.durable().unwrap();
    world.store().catch_up(&world.journal, durable).unwrap();
    fs::write(world.dir().join("HEAD"), head).unwrap();
    world.journal = open(&world.dir());
    let known = world.journal.durable().unwrap();
    assert!(known.seq < durable.seq);
    let report = world.store().catch_up(&world.journal, known).unwrap();
    assert_eq!((report.position, report.repairs), (durable, vec![]));
    world.decide(1);
    let durable = world.journal.durable().unwrap();
    let report = world.store().catch_up(&world.journal, durable).unwrap();
    assert_eq!((report.position, report.repairs), (durable, vec![]));
    world.assert_stored();
}

#[test]
fn a_log_that_lost_its_end_is_accused_by_the_store() {
    let mut world = World::new();
    world.decide(20);
    let durable = world.journal.durable().unwrap();
    world.store().catch_up(&world.journal, durable).unwrap();
    let segment = world.dir().join("seg").join(format!("{:020}.seg", 1));
    let file = fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.set_len(segment.metadata().unwrap().len() - 500).unwrap();
    fs::remove_file(world.dir().join("HEAD")).unwrap();
    world.journal = open(&world.dir());
    let accuses = |error: JournalError| {
        let text = error.to_string();
        assert!(text.contains("sled proves that seq 40 was durable"), "{text}");
        assert!(text.contains("`cocoon journal repair`"), "{text}");
    };
    accuses(world.journal.durable().unwrap_err());
    world.journal = open(&world.dir());
    accuses(world.journal.refresh(&mut Counts::default()).unwrap_err());
    world.journal = open(&world.dir());
    let report = world.store().catch_up(&world.journal, Position { seq: 3, ..durable });
    assert!(report.unwrap_err().to_string().contains("was durable"), "the store is left alone");
    assert_eq!(store::position(&world.dir()).unwrap(), durable);
    assert!(!world.dir().join("quarantine").read_dir().unwrap().any(|_| true));
    let faults = verify(&world.dir()).unwrap().problems;
    assert!(faults.iter().any(|fault| fault.kind == FaultKind::Derived), "{faults:?}");
}

#[test]
fn a_checkpoint_and_the_tail_give_the_state_of_the_whole() {
    let mut world = World::new();
    world.decide(300);
    let at = world.counts.position;
    assert!(checkpoint::due(at.seq, 0));
    let durable = world.journal.durable().unwrap();
    let mut writer =
        CheckpointWriter::try_lock(&world.dir(), CheckpointOptions::default()).unwrap().unwrap();
    let state = world.counts.of.iter().map(|(key, count)| (key, count.to_le_bytes()));
    writer.write_whole(at, durable, state).unwrap();
    world.decide(50);

    let checkpoint = Checkpoint::latest(&world.dir()).unwrap().checkpoint.unwrap();
    let mut counts = Counts { position: checkpoint.position(), ..Counts::default() };
    for entry in checkpoint.prefix(b"") {
        let (key, value) = entry.unwrap();
        let count = u64::from_le_bytes(value.try_into().unwrap());
        counts.of.insert(String::from_utf8(key).unwrap(), count);
    }
    world.journal.refresh(&mut counts).unwrap();
    assert_eq!(counts.position, world.counts.position);
    assert_eq!(counts.of, world.counts.of);
}

#[test]
fn a_daemon_feeds_the_store_while_others_write() {
    let mut world = World::new();
    let source = open(&world.dir());
    let (outcomes, received) = std::sync::mpsc::channel();
    let report = move |outcome| outcomes.send(outcome).unwrap();
    let (sender, thread) = store::spawn_writer(world.store(), source, report).unwrap();
    for _ in 0..50 {
        world.decide(3);
        sender.send(FeedMessage::CatchUp(world.journal.durable().unwrap())).unwrap();
    }
    drop(sender);
    drop(thread.join().unwrap());
    let last = received.iter().map(Result::unwrap).last().unwrap();
    assert_eq!(last.position, world.journal.durable().unwrap());
    world.assert_stored();
}
