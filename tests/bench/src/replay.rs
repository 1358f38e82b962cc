//! The state folded from segments, on one core.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use cocoon::codec;
use cocoon::engine::fold::StateFold;
use cocoon_journal::{Fold as _, Options, SegmentedJournal};

use crate::Outcome;
use crate::storm::{past, scratch};
use crate::table::{head, median, ratio, row};

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Events of the history
    #[arg(long, default_value_t = 1_000_000)]
    events: u64,
    /// VMs that are still there at its end
    #[arg(long, default_value_t = 100)]
    residents: usize,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// What is read.
struct History {
    dir: PathBuf,
    segments: Vec<PathBuf>,
}

type Stage = (&'static str, fn(&History) -> Outcome<u64>);

/// Each does what the one before it does, and more.
const STAGES: [Stage; 5] = [
    ("read the bytes", read),
    ("the same, and crc32 of all", checksum),
    ("frames: crc and chain checked", frames),
    ("the same, and events decoded", decode),
    ("the same, and folded", fold),
];
/// The stage that the others are compared with.
const PEER: usize = 1;

pub(crate) fn run(args: &ReplayArgs) -> Outcome {
    let scratch = scratch()?;
    let began = Instant::now();
    let events = past(scratch.path(), args.residents, args.events)?.seq()?;
    let made = began.elapsed();
    let history = History::open(&scratch.path().join("journal"))?;
    let bytes = read(&history)?;
    let mut times = [const { Vec::new() }; STAGES.len()];
    for _ in 0..args.rounds {
        for ((_, stage), times) in STAGES.iter().zip(&mut times) {
            let began = Instant::now();
            stage(&history)?;
            times.push(began.elapsed());
        }
    }
    println!(
        "{events} events in {} frames, {bytes} bytes of segments, made in {:.1} s; one thread, {} rounds\n",
        frames(&history)?,
        made.as_secs_f64(),
        args.rounds
    );
    report(events, bytes, &times.map(|times| median(&times)));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn report(events: u64, bytes: u64, times: &[Duration; STAGES.len()]) {
    head(&["what", "ms (median)", "events/s", "MB/s", "time, of reading with crc32"]);
    for ((what, _), time) in STAGES.iter().zip(times) {
        let seconds = time.as_secs_f64();
        row(&[
            (*what).to_owned(),
            format!("{:.1}", seconds * 1e3),
            format!("{:.0}", events as f64 / seconds),
            format!("{:.0}", bytes as f64 / seconds / 1e6),
            ratio(*time, times[PEER]),
        ]);
    }
}

impl History {
    fn open(dir: &Path) -> Outcome<Self> {
        let files = std::fs::read_dir(dir.join("seg"))?;
        let mut segments =
            files.map(|file| Ok(file?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
        segments.sort();
        Ok(Self { dir: dir.to_owned(), segments })
    }

    /// Hands all bytes to `take`, in pieces; gives their number.
    fn read(&self, mut take: impl FnMut(&[u8])) -> Outcome<u64> {
        let mut buffer = vec![0; 64 * 1024];
        let mut total = 0;
        for segment in &self.segments {
            let mut file = File::open(segment)?;
            loop {
                let len = file.read(&mut buffer)?;
                if len == 0 {
                    break;
                }
                total += u64::try_from(len)?;
                take(buffer.get(..len).unwrap_or_default());
            }
        }
        Ok(total)
    }

    fn journal(&self) -> Outcome<SegmentedJournal> {
        Ok(SegmentedJournal::open(&self.dir, Options::default())?)
    }
}

fn read(history: &History) -> Outcome<u64> {
    history.read(|bytes| {
        std::hint::black_box(bytes);
    })
}

fn checksum(history: &History) -> Outcome<u64> {
    let mut hasher = crc32fast::Hasher::new();
    history.read(|bytes| hasher.update(bytes))?;
    Ok(u64::from(hasher.finalize()))
}

fn frames(history: &History) -> Outcome<u64> {
    let mut count = 0;
    for frame in history.journal()?.frames(1)? {
        std::hint::black_box(frame?);
        count += 1;
    }
    Ok(count)
}

fn decode(history: &History) -> Outcome<u64> {
    let mut count = 0;
    for frame in history.journal()?.frames(1)? {
        for (_, entry) in frame?.0.events() {
            std::hint::black_box(codec::decode(entry)?);
            count += 1;
        }
    }
    Ok(count)
}

fn fold(history: &History) -> Outcome<u64> {
    let mut fold = StateFold::default();
    for frame in history.journal()?.frames(1)? {
        let (frame, hash) = frame?;
        fold.apply(&frame, hash)?;
    }
    Ok(fold.position().seq)
}
