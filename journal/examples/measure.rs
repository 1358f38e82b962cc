//! Measures the journal on this machine, as ratios to what the disk itself does.
//!
//! `cargo run --release -p cocoon-journal --example measure [DIR]`

use std::convert::Infallible;
use std::error::Error;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cocoon_journal::{
    Entry, Fold, Frame, Hash, Journal, Options, Position, Proposal, SegmentedJournal, Subject,
    Writer,
};
use nix::time::{ClockId, clock_gettime};
use uuid::Uuid;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// As little as a fold can keep.
#[derive(Default)]
struct Counting {
    position: Position,
    events: u64,
    bytes: usize,
}

impl Fold for Counting {
    type Error = Infallible;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> std::result::Result<(), Infallible> {
        self.position = frame.position(hash);
        self.events += u64::from(frame.header.count);
        self.bytes += frame.entries.iter().map(|entry| entry.body.len()).sum::<usize>();
        Ok(())
    }
}

const ROUND: Duration = Duration::from_secs(2);
const BODY: usize = 200;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("--append"), Some(dir)) => {
            println!("{}", append_for(Path::new(&dir), ROUND)?);
            Ok(())
        }
        (dir, _) => measure(Path::new(dir.unwrap_or("."))),
    }
}

fn measure(base: &Path) -> Result<()> {
    let dir = tempfile::tempdir_in(base)?;
    let journal = dir.path().join("journal");
    for round in 1..=3 {
        let raw = raw_appends(&dir.path().join("raw"))?;
        let single = rate(append_for(&journal, ROUND)?);
        println!("round {round}: raw append + fdatasync {raw:.0}/s");
        println!("  1 handle    {single:8.0}/s  {:.2} of raw", single / raw);
        for processes in [8, 32] {
            let shared = rate(appenders(&journal, processes)?);
            println!("  {processes:2} processes {shared:7.0}/s  {:.2} of raw", shared / raw);
        }
    }
    cold(&journal)?;
    fold_all("1 event a frame", &journal)?;
    // Reading is measured, not writing: where there is memory for it, no disk is needed.
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir_in(base))?;
    history(&memory.path().join("history"))
}

fn rate(count: u64) -> f64 {
    Duration::from_secs(count).as_secs_f64() / ROUND.as_secs_f64()
}

fn entry() -> Result<Entry> {
    Ok(Entry { kind: 1, version: 1, subject: Subject::new("vm/measure")?, body: vec![7; BODY] })
}

fn writer() -> Writer {
    Writer {
        operation: Uuid::nil(),
        pid: std::process::id(),
        start_time: 0,
        verb: "measure".into(),
    }
}

fn append(journal: &mut SegmentedJournal, fold: &mut Counting, count: usize) -> Result<()> {
    let entries = vec![entry()?; count];
    let deadline = Instant::now() + Duration::from_secs(60);
    journal.transact(fold, &writer(), deadline, |_| Ok(Proposal::Append(entries, ())))?;
    Ok(())
}

/// Appends for a while; gives the number of events.
fn append_for(dir: &Path, time: Duration) -> Result<u64> {
    let mut journal = SegmentedJournal::open(dir, Options::default())?;
    let mut fold = Counting { position: journal.durable()?, ..Counting::default() };
    let started = Instant::now();
    let mut count = 0;
    while started.elapsed() < time {
        append(&mut journal, &mut fold, 1)?;
        count += 1;
    }
    Ok(count)
}

fn appenders(dir: &Path, processes: usize) -> Result<u64> {
    let spawn = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--append").arg(dir).stdout(Stdio::piped()).spawn()
    };
    let children = (0..processes).map(|_| spawn()).collect::<std::io::Result<Vec<_>>>()?;
    let mut total = 0;
    for child in children {
        let output = child.wait_with_output()?;
        total += String::from_utf8(output.stdout)?.trim().parse::<u64>()?;
    }
    Ok(total)
}

fn raw_appends(path: &Path) -> Result<f64> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let (started, mut count) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        file.write_all_at(&[7; 355], count * 355)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(rate(count))
}

fn cpu() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Opening a journal and reading its last 300 frames, as a command does.
fn cold(dir: &Path) -> Result<()> {
    let journal = SegmentedJournal::open(dir, Options::default())?;
    let last = journal.durable()?.seq;
    let (frame, _) = journal.frames_from(last.saturating_sub(300))?.next().ok_or("no frames")??;
    let position = Position { seq: frame.header.seq - 1, hash: frame.header.prev_hash };
    let rounds = 200;
    let before = cpu()?;
    let mut events = 0;
    for _ in 0..rounds {
        let journal = SegmentedJournal::open(dir, Options::default())?;
        let mut fold = Counting { position, ..Counting::default() };
        journal.refresh(&mut fold)?;
        events = fold.events;
    }
    let each = (cpu()? - before) / rounds;
    println!("open + read {events} events near the end: {} us of CPU", each.as_micros());
    Ok(())
}

/// A million events, folded from the segments.
fn history(dir: &Path) -> Result<()> {
    let mut journal = SegmentedJournal::open(dir, Options::default())?;
    let mut fold = Counting::default();
    while fold.events < 1_000_000 {
        append(&mut journal, &mut fold, 16)?;
    }
    fold_all("16 events a frame", dir)?;
    Ok(())
}

fn fold_all(what: &str, dir: &Path) -> Result<()> {
    let (before, started) = (cpu()?, Instant::now());
    let mut fold = Counting::default();
    SegmentedJournal::open(dir, Options::default())?.refresh(&mut fold)?;
    let seconds = (cpu()? - before).as_secs_f64();
    let rate = Duration::from_secs(fold.events).as_secs_f64() / seconds;
    println!("fold {} events, {what}: {rate:.0}/s of CPU, {:?}", fold.events, started.elapsed());
    Ok(())
}
