//! One journal from its first process to its last.

use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cocoon_journal::store::Store;
use cocoon_journal::{Journal as _, Options, SegmentedJournal, Seq};
use tempfile::TempDir;

use super::damage;
use super::promises::Whole;
use crate::child::{Job, Work};
use crate::support::*;

/// Rounds of a life.
const ROUNDS: u64 = 16;
/// After so many rounds everything is read from the beginning.
const READ_EVERY: u64 = 4;
/// The most that a process does.
const ACTIONS: u64 = 14;
/// The most that passes before a kill from outside, microseconds.
const MOST_US: u64 = 25_000;

/// What a run came to.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) killed: u64,
    pub(super) promises: u64,
    ended: u64,
    lives: u64,
    events: u64,
    torn: u64,
    damaged: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.killed += other.killed;
        self.promises += other.promises;
        self.ended += other.ended;
        self.lives += other.lives;
        self.events += other.events;
        self.torn += other.torn;
        self.damaged += other.damaged;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { killed, promises, ended, lives, events, torn, damaged } = self;
        writeln!(f, "{killed} processes killed, {ended} ended by themselves, in {lives} journals")?;
        writeln!(f, "{torn} torn tails, {damaged} derived files damaged")?;
        writeln!(f, "{promises} things told to processes, {events} events in the end")
    }
}

pub(super) struct Life {
    dir: TempDir,
    random: Random,
    name: String,
    segment_events: u64,
    /// Where the processes wrote down what they were told.
    told: Vec<PathBuf>,
    head: Option<Vec<u8>>,
    counts: Counts,
}

impl Life {
    pub(super) fn new(seed: u64, number: u64) -> Self {
        let mut random = Random::seeded(seed.wrapping_mul(1_000_003).wrapping_add(number));
        let memory = fs::metadata("/dev/shm").is_ok();
        let dir = if memory { TempDir::new_in("/dev/shm") } else { TempDir::new() }.unwrap();
        let segment_events = [5, 30, 120, 1000][random.index(4)];
        let counts = Counts { lives: 1, ..Counts::default() };
        let name = format!("seed {seed}, journal {number}");
        Self { dir, random, name, segment_events, told: Vec::new(), head: None, counts }
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// Rounds until there were enough kills, or this journal is old.
    pub(super) fn live(mut self, killed: &AtomicU64, enough: u64) -> Counts {
        for round in 1..=ROUNDS {
            let before = self.counts.killed;
            self.round(round);
            let kills = self.counts.killed - before;
            let all = killed.fetch_add(kills, Ordering::Relaxed) + kills;
            if round % READ_EVERY == 0 {
                self.check(round);
            }
            if all >= enough {
                break;
            }
        }
        self.ends_well();
        self.counts
    }

    fn round(&mut self, round: u64) {
        let processes = 1 + self.random.below(5);
        let running: Vec<_> = (0..processes).map(|process| self.start(round, process)).collect();
        for (child, patience) in running {
            let status = end(child, patience);
            match (status.code(), status.signal()) {
                (Some(0), _) => self.counts.ended += 1,
                (_, Some(9)) => self.counts.killed += 1,
                _ => panic!("{}, round {round}: a process ended with {status}", self.name),
            }
        }
        self.misfortune();
    }

    /// A process, and after what time it is to be killed from outside, if at all.
    fn start(&mut self, round: u64, process: u64) -> (Child, Option<Duration>) {
        let id = format!("r{round}p{process}");
        let acks = self.dir.path().join(format!("told-{id}"));
        self.told.push(acks.clone());
        let fate = self.random.below(10);
        let kill_at = if fate < 5 { 1 + self.random.below(120) } else { 0 };
        let patience = Duration::from_micros(self.random.below(MOST_US));
        let job = Job {
            journal: self.journal(),
            acks,
            id,
            count: 1 + self.random.below(ACTIONS),
            kill_at,
            segment_events: self.segment_events,
            work: Work::Mix(self.random.below(u64::MAX)),
        };
        (job.spawn(), (5..9).contains(&fate).then_some(patience))
    }

    /// What happens to files while nobody lives.
    fn misfortune(&mut self) {
        let journal = self.journal();
        if self.random.percent(30) {
            damage::tear(&journal, &mut self.random);
            self.counts.torn += 1;
        }
        if self.random.percent(35) {
            damage::derived(&journal, &mut self.random);
            self.counts.damaged += 1;
        }
        let head = journal.join("HEAD");
        if self.random.percent(10)
            && let Some(older) = &self.head
        {
            fs::write(&head, older).unwrap();
        }
        if self.random.percent(30) {
            self.head = fs::read(head).ok();
        }
    }

    fn check(&mut self, round: u64) -> Whole {
        let context = format!("{}, round {round}", self.name);
        let whole = Whole::read(&self.journal());
        for told in self.told.drain(..) {
            self.counts.promises += whole.check(&told, &context);
        }
        whole
    }

    /// Everything works, and the store has what the log has.
    fn ends_well(&mut self) {
        self.told = fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("told-"))
            .collect();
        self.counts.promises = 0;
        let path = self.journal();
        let mut journal = SegmentedJournal::open(&path, Options::default()).unwrap();
        let mut whole = Whole::read(&path);
        append(&mut journal, &mut whole, "last.0.0.1.").unwrap();
        let whole = self.check(ROUNDS);
        self.counts.events = whole.position.seq;
        let durable = journal.durable().unwrap();
        assert_eq!(durable, whole.position, "{}", self.name);
        let mut store = Store::try_open(&path).unwrap().unwrap();
        store.catch_up(&journal, durable).unwrap();
        // What lies damaged where no catch-up looks is found so, and mended by the next.
        if store.verify().is_err() {
            store.catch_up(&journal, durable).unwrap();
        }
        let stored = store.range(1..=Seq::MAX).unwrap();
        let seqs: Vec<Seq> = stored.map(|event| event.unwrap().seq).collect();
        assert_eq!(seqs, Vec::from_iter(1..=durable.seq), "{}", self.name);
    }
}

/// Waits for the end of a process, and brings it about if that was said.
fn end(mut child: Child, patience: Option<Duration>) -> ExitStatus {
    if let Some(patience) = patience {
        // The moment is what is random here.
        std::thread::sleep(patience);
        let _ = child.kill();
    }
    child.wait().unwrap()
}
