//! Power cuts of a real file system: an ext4 in a file, shut down under load without flushing anything, mounted again.
//!
//! ```text
//!   writers, a reader, a deriver (processes)      this test
//!     append, print `seq body`  ----------------> pipes, outside the file system
//!     park at a chosen boundary, print `at` ----> FS_IOC_SHUTDOWN, no log flush
//!     fail, or are killed                         unmount, mount, compare
//! ```
//!
//! Needs root and a loop device; without them it is skipped, unless `COCOON_REQUIRE` names `powercut`.
//! `POWER_CUTS` says how many cuts.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "journal/support.rs"]
#[expect(dead_code, reason = "others use the rest of it")]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use cocoon_journal::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
use cocoon_journal::store::{Store, StoreOptions};
use cocoon_journal::verify::verify;
use cocoon_journal::{
    Fold, Frame, Hash, Journal as _, Options, Position, SegmentedJournal, Seq, Unfolded,
};
use cocoon_test_faults::disk::{Disk, skipped};
use cocoon_test_faults::{Call, Kind, Verdict, judged};
use support::*;
use uuid::Uuid;

/// The disk, and what belongs to a boot.
struct Host {
    disk: Disk,
}

impl Host {
    /// Makes one whose power can be cut, and shows it.
    fn new() -> Result<Self, String> {
        let host = Self { disk: Disk::new(256 << 20)? };
        host.disk.cut()?;
        host.boot()?;
        Ok(host)
    }

    /// The power is back.
    fn boot(&self) -> Result<(), String> {
        self.disk.unmount()?;
        fs::write(self.boot_id(), Uuid::new_v4().to_string()).unwrap();
        self.disk.mount()
    }

    fn journal(&self) -> PathBuf {
        self.disk.path().join("journal")
    }

    fn boot_id(&self) -> PathBuf {
        self.disk.beside().join("boot_id")
    }
}

fn options(boot_id: PathBuf) -> Options {
    Options { boot_id_path: boot_id, boundary, ..small_segments(64) }
}

/// Tells the parent that the boundary it chose is reached, and stays there.
fn boundary(name: &'static str) {
    if std::env::var("POWER_PARK_AT").is_ok_and(|at| at == name) {
        say(&format!("at {name}"));
        loop {
            std::thread::park();
        }
    }
}

fn say(line: &str) {
    // One write: a line is whole, or not there.
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// A process under load.
struct Worker {
    child: Child,
    name: String,
}

impl Worker {
    fn start(
        host: &Host,
        role: &str,
        name: String,
        park: Option<&str>,
        lines: &Sender<Line>,
    ) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "worker", "--ignored", "--nocapture"]);
        command.env("POWER_ROLE", role).env("POWER_NAME", &name);
        command.env("POWER_JOURNAL", host.journal()).env("POWER_BOOT", host.boot_id());
        if let Some(park) = park {
            command.env("POWER_PARK_AT", park);
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, told) = (lines.clone(), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || {
            for line in told.lines().map_while(Result::ok) {
                if let Some(line) = Line::parse(&line)
                    && lines.send(line).is_err()
                {
                    return;
                }
            }
        });
        Self { child, name }
    }
}

/// What a worker told.
enum Line {
    /// This was in the journal then.
    Acknowledged(u64, Seq, String),
    /// An answer was given then, as of this frame.
    Answered(u64, Position),
    /// It stays at a boundary.
    At,
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        let told = || {
            let mut fields = rest.splitn(3, ' ');
            let number = |field: Option<&str>| field?.parse().ok();
            let (at, seq) = (number(fields.next())?, number(fields.next())?);
            Some((at, seq, fields.next()?.to_owned()))
        };
        match word {
            "ack" => told().map(|(at, seq, body)| Self::Acknowledged(at, seq, body)),
            "saw" => told()
                .map(|(at, seq, hash)| Self::Answered(at, Position { seq, hash: unhex(&hash) })),
            "at" => Some(Self::At),
            _ => None,
        }
    }

    /// Whether it was told before that time. Only such a line counts: a call that the cut overtakes may return without
    /// an error from the kernel, which is dead in a real cut.
    fn is_before(&self, cut: u64) -> bool {
        match self {
            Self::Acknowledged(at, ..) | Self::Answered(at, _) => *at < cut,
            Self::At => true,
        }
    }
}

/// Nanoseconds, by a clock that all processes share.
fn now() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    u64::try_from(now.tv_sec()).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap()
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Hash {
    let byte = |at: usize| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).unwrap();
    std::array::from_fn(byte)
}

#[test]
#[ignore = "run by the other test, as a process of its own"]
fn worker() {
    let Ok(role) = std::env::var("POWER_ROLE") else { return };
    let dir = PathBuf::from(std::env::var_os("POWER_JOURNAL").unwrap());
    let boot_id = PathBuf::from(std::env::var_os("POWER_BOOT").unwrap());
    let Ok(journal) = SegmentedJournal::open(&dir, options(boot_id)) else { return };
    match role.as_str() {
        "writer" => write(journal, &std::env::var("POWER_NAME").unwrap()),
        "reader" => answer(&journal),
        _ => derive(&journal, &dir),
    }
}

fn write(mut journal: SegmentedJournal, name: &str) {
    let mut log = Log::default();
    for n in 0.. {
        let body = format!("{name}.{n}");
        let Ok(outcome) = append(&mut journal, &mut log, body.clone()) else { return };
        say(&format!("ack {} {} {body}", now(), outcome.seqs.unwrap().start()));
    }
}

fn answer(journal: &SegmentedJournal) {
    let mut seen = Unfolded::default();
    loop {
        let before = seen.0;
        if journal.refresh(&mut seen).is_err() {
            return;
        }
        if seen.0 != before {
            say(&format!("saw {} {} {}", now(), seen.0.seq, hex(&seen.0.hash)));
        }
    }
}

/// Feeds the store and writes checkpoints until that fails.
fn derive(journal: &SegmentedJournal, dir: &Path) {
    let mut log = Log::default();
    loop {
        if journal.refresh(&mut log).is_err() {
            return;
        }
        let Ok(durable) = journal.durable() else { return };
        let at = log.position;
        let checkpoints = CheckpointOptions { boundary, ..CheckpointOptions::default() };
        let Ok(Some(mut writer)) = CheckpointWriter::try_lock(dir, checkpoints) else { return };
        let state = log.events.iter().map(|(seq, _)| (seq.to_be_bytes(), seq.to_le_bytes()));
        if durable.seq >= at.seq && writer.write_whole(at, durable, state).is_err() {
            return;
        }
        drop(writer);
        let Ok(Some(mut store)) = Store::try_open_with(dir, StoreOptions { boundary }) else {
            return;
        };
        if store.catch_up(journal, durable).is_err() {
            return;
        }
    }
}

/// Everything that was ever told.
#[derive(Default)]
struct Told {
    acknowledged: BTreeMap<Seq, String>,
    answered: BTreeMap<Seq, Hash>,
}

impl Told {
    fn take(&mut self, line: Line) -> bool {
        match line {
            Line::Acknowledged(_, seq, body) => {
                let before = self.acknowledged.insert(seq, body);
                assert_eq!(before, None, "seq {seq} was acknowledged twice");
            }
            Line::Answered(_, position) => {
                let before = self.answered.insert(position.seq, position.hash);
                assert!(before.is_none_or(|hash| hash == position.hash), "two histories");
            }
            Line::At => return true,
        }
        false
    }
}

/// A log, and the hash at each of its frames.
#[derive(Default)]
struct Hashes {
    log: Log,
    at: BTreeMap<Seq, Hash>,
}

impl Fold for Hashes {
    type Error = std::convert::Infallible;

    fn position(&self) -> Position {
        self.log.position()
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Self::Error> {
        self.at.insert(frame.last_seq(), hash);
        self.log.apply(frame, hash)
    }
}

/// Moments at which the power goes. The others are random.
const MOMENTS: [(&str, &str); 14] = [
    ("writer", "journal.write.after"),
    ("deriver", "store.flushed"),
    ("writer", "journal.seal.created"),
    ("deriver", "checkpoint.manifest.after"),
    ("writer", "journal.sync.after"),
    ("deriver", "store.build.synced"),
    ("writer", "journal.seal.synced"),
    ("deriver", "checkpoint.table.filled"),
    ("writer", "journal.head.after"),
    ("deriver", "store.build.filled"),
    ("deriver", "checkpoint.manifest.before"),
    ("deriver", "store.created"),
    ("writer", "journal.write.before"),
    ("deriver", "store.stamped"),
];

/// Loads the file system, cuts its power; gives whether that was at the chosen moment.
fn cut_under_load(host: &Host, cut: usize, told: &mut Told) -> bool {
    let (lines, received) = channel();
    let moment = cut.is_multiple_of(2).then(|| MOMENTS[cut / 2 % MOMENTS.len()]);
    let park = |role, first| moment.filter(|(r, _)| first && *r == role).map(|(_, at)| at);
    let mut workers: Vec<_> = (0..4)
        .map(|n| {
            let name = format!("w{cut}.{n}");
            Worker::start(host, "writer", name, park("writer", n == 0), &lines)
        })
        .collect();
    workers.push(Worker::start(host, "reader", format!("r{cut}"), None, &lines));
    let deriver = park("deriver", true);
    workers.push(Worker::start(host, "deriver", format!("d{cut}"), deriver, &lines));
    drop(lines);
    let nanos = Uuid::new_v4().as_u128() % 400;
    let load = Duration::from_millis(150 + u64::try_from(nanos).unwrap());
    let until = Instant::now() + if moment.is_some() { Duration::from_secs(5) } else { load };
    let parked = listen(&received, until, u64::MAX, told);
    let cut = now();
    host.disk.cut().unwrap();
    for worker in &mut workers {
        let _ = worker.child.kill();
        worker.child.wait().unwrap_or_else(|error| panic!("{}: {error}", worker.name));
    }
    // What was told before the end still counts.
    listen(&received, Instant::now() + Duration::from_secs(60), cut, told);
    parked
}

/// Listens until that time, or until somebody stays at a boundary, or until all are gone.
fn listen(lines: &Receiver<Line>, until: Instant, cut: u64, told: &mut Told) -> bool {
    while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if line.is_before(cut) && told.take(line) {
            return true;
        }
    }
    false
}

/// After the power is back.
fn check(host: &Host, told: &Told, context: &str) -> Seq {
    let dir = host.journal();
    let mut journal = SegmentedJournal::open(&dir, options(host.boot_id())).unwrap();
    let mut hashes = Hashes::default();
    journal.refresh(&mut hashes).unwrap_or_else(|error| panic!("{context}: {error}"));
    let bodies: BTreeMap<Seq, &[u8]> =
        hashes.log.events.iter().map(|(seq, entry)| (*seq, entry.body.as_slice())).collect();
    for (seq, body) in &told.acknowledged {
        assert_eq!(bodies.get(seq).copied(), Some(body.as_bytes()), "{context}: seq {seq} is lost");
    }
    for (seq, hash) in &told.answered {
        let found = hashes.at.get(seq);
        assert_eq!(found, Some(hash), "{context}: an answer of seq {seq} is not on disk");
    }
    let mut log = hashes.log;
    derived(&dir, &journal, &hashes.at, context);
    append(&mut journal, &mut log, format!("after {context}")).unwrap();
    let report = verify(&dir).unwrap();
    assert!(report.is_sound(), "{context}: {report:?}");
    let bodies = log.bodies();
    assert_eq!(bodies.iter().collect::<BTreeSet<_>>().len(), bodies.len(), "{context}: twice");
    log.position.seq
}

/// What is derived is at most as far as the log, and of the same history.
fn derived(dir: &Path, journal: &SegmentedJournal, at: &BTreeMap<Seq, Hash>, context: &str) {
    let latest = Checkpoint::latest(dir).unwrap();
    assert!(latest.damaged.is_empty(), "{context}: {:?}", latest.damaged);
    if let Some(checkpoint) = latest.checkpoint {
        let position = checkpoint.position();
        assert_eq!(at.get(&position.seq), Some(&position.hash), "{context}: checkpoint leads");
        checkpoint.verify().unwrap();
    }
    let mut store = Store::try_open(dir).unwrap().unwrap();
    let stored = store.position().unwrap();
    assert!(stored.seq == 0 || at.get(&stored.seq) == Some(&stored.hash), "{context}: store leads");
    let caught_up = store.catch_up(journal, journal.durable().unwrap()).unwrap();
    let accuses = |repair: &cocoon_journal::store::Repaired| repair.cause.accuses_log();
    assert!(!caught_up.repairs.iter().any(accuses), "{context}: {:?}", caught_up.repairs);
    store.verify().unwrap();
}

#[test]
fn nothing_told_is_taken_back_by_a_power_cut() {
    std::thread::spawn(cuts).join().unwrap();
}

fn cuts() {
    let host = match Host::new() {
        Ok(host) => host,
        Err(reason) => return skipped("powercut", &reason),
    };
    let count = std::env::var("POWER_CUTS").map_or(6, |count| count.parse().unwrap());
    let (mut told, mut parked, mut last) = (Told::default(), 0, 0);
    for cut in 0..count {
        parked += usize::from(cut_under_load(&host, cut, &mut told));
        host.boot().unwrap();
        last = check(&host, &told, &format!("cut {cut}"));
    }
    assert!(count < 2 || parked > 0, "some moments were met");
    println!(
        "{count} cuts, {parked} at a chosen moment: {} acknowledged, {} answers, {last} events",
        told.acknowledged.len(),
        told.answered.len()
    );
}

/// A sync that fails for its writer, and is then nobody's: the kernel takes what it could not write for written, and
/// tells no other process. Whoever answers from such frames has to write them again.
#[test]
fn what_a_failed_sync_left_is_not_trusted() {
    std::thread::spawn(|| {
        for answer in [answer_of_a_reader as fn(&Path) -> Vec<String>, answer_of_a_follower] {
            lose_what_a_failed_sync_left(answer);
        }
    })
    .join()
    .unwrap();
}

fn lose_what_a_failed_sync_left(answer: fn(&Path) -> Vec<String>) {
    let host = match Host::new() {
        Ok(host) => host,
        Err(reason) => return skipped("powercut", &reason),
    };
    let dir = host.journal();
    let mut log = Log::default();
    let open = |dir: &Path| SegmentedJournal::open(dir, Options::default()).unwrap();
    append(&mut open(&dir), &mut log, "durable").unwrap();
    let writer = {
        let dir = dir.clone();
        move || append(&mut open(&dir), &mut Log::default(), "doubtful").is_err()
    };
    let failing = |call: &Call| match call.kind {
        Kind::Sync => Verdict::Fail(nix::libc::EIO),
        _ => Verdict::Go,
    };
    match judged(failing, writer) {
        Ok(failed) => assert!(failed, "it is not acknowledged"),
        Err(error) => return skipped("faults", &error.to_string()),
    }
    let answered = {
        let dir = dir.clone();
        judged(pretend_until_written(dir.join("seg")), move || answer(&dir)).unwrap()
    };
    assert_eq!(answered.last().unwrap(), "doubtful", "it is there to be seen");
    host.disk.cut().unwrap();
    host.boot().unwrap();
    let found = read(&dir).unwrap().bodies();
    assert_eq!(found, answered, "an answer was given that is not on disk");
}

/// Syncs do nothing for a process that has not written.
fn pretend_until_written(below: PathBuf) -> impl FnMut(&Call) -> Verdict + Send + 'static {
    let mut written = false;
    move |call| {
        let ours = call.path.starts_with(&below);
        written |= ours && call.kind == Kind::Write;
        if ours && call.kind == Kind::Sync && !written { Verdict::Pretend } else { Verdict::Go }
    }
}

fn answer_of_a_reader(dir: &Path) -> Vec<String> {
    read(dir).unwrap().bodies()
}

fn answer_of_a_follower(dir: &Path) -> Vec<String> {
    let mut tail = cocoon_journal::Tail::open(dir, 1).unwrap();
    let mut log = Log::default();
    while log.bodies().len() < 2 {
        let (frame, hash) = tail.next(Duration::from_secs(60)).unwrap().unwrap();
        log.apply(&frame, hash).unwrap();
    }
    log.bodies()
}
