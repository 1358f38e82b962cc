//! Shared syncs: many processes that append in a loop.
//!
//! ```text
//!   one file         one process: write, fdatasync, write, fdatasync, ...
//!   cocoon, one      one process: lock, write, unlock, fdatasync, HEAD, ...
//!   cocoon, many     the same in each; whoever finds in HEAD that another's sync covered its frame syncs no more
//! ```
//!
//! A slow disk is made by a wait before each sync of an event, in the peer as in ours: each waits by itself, as with a device
//! that takes that long for a flush and takes several at once. The real sync follows.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _, stdin, stdout};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use cocoon_journal::verify::verify;
use cocoon_journal::{
    Entry, Journal as _, Options, Proposal, SegmentedJournal, Subject, Unfolded, Writer,
};
use nix::fcntl::{FallocateFlags, fallocate};
use uuid::Uuid;

use crate::Outcome;
use crate::storm::scratch;
use crate::table::{head, middle, row};

#[derive(Debug, Args)]
pub(crate) struct SyncsArgs {
    /// Processes at once
    #[arg(long, default_value_t = 32)]
    processes: usize,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Bytes of the body of an event
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Milliseconds that each sync takes longer
    #[arg(long, default_value_t = 0)]
    delay: u64,
}

/// What an appender appends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// A file
    File,
    /// A journal
    Journal,
}

#[derive(Debug, Args)]
pub(crate) struct AppenderArgs {
    /// What it appends to
    target: Target,
    /// Where
    place: PathBuf,
    /// For how many seconds
    seconds: u64,
    /// Bytes of each append; of a journal, of the body of the event
    bytes: usize,
    /// Milliseconds that each sync takes longer
    delay: u64,
}

pub(crate) fn run(args: &SyncsArgs) -> Outcome {
    let dir = scratch()?;
    let frame = frame_len(args.bytes)?;
    let (mut file, mut one, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..args.rounds {
        let place = dir.path().join(format!("{number}"));
        std::fs::create_dir(&place)?;
        file.push(rate(args, Target::File, &place.join("file"), 1, frame)?);
        one.push(rate(args, Target::Journal, &place.join("one"), 1, args.bytes)?);
        many.push(rate(args, Target::Journal, &place.join("many"), args.processes, args.bytes)?);
    }
    println!(
        "appending events of {} bytes, each durable, frames of {frame} bytes; {} rounds of {} s, each sync {} ms longer\n",
        args.bytes, args.rounds, args.seconds, args.delay
    );
    head(&["what", "events/s (median round)", "of one write + fdatasync"]);
    let peer = middle(&file);
    for (what, rates) in [
        ("one process, write + fdatasync".to_owned(), &file),
        ("one cocoon process".to_owned(), &one),
        (format!("{} cocoon processes", args.processes), &many),
    ] {
        let rate = middle(rates);
        row(&[what, format!("{rate:.0}"), format!("{:.2}", rate / peer)]);
    }
    Ok(())
}

/// Bytes that a frame with one such event takes.
fn frame_len(bytes: usize) -> Outcome<usize> {
    let dir = tempfile::tempdir()?;
    let place = dir.path().join("journal");
    let mut append = journal(&place, bytes)?;
    append()?;
    let before = verify(&place)?;
    append()?;
    let after = verify(&place)?;
    let bytes = |report: &cocoon_journal::verify::Report| -> u64 {
        report.segments.iter().map(|segment| segment.bytes).sum()
    };
    Ok(usize::try_from(bytes(&after) - bytes(&before))?)
}

/// Events a second of so many appenders.
fn rate(
    args: &SyncsArgs,
    target: Target,
    place: &Path,
    processes: usize,
    bytes: usize,
) -> Outcome<f64> {
    let start = || Appender::start(target, place, args.seconds, bytes, args.delay);
    let mut appenders = (0..processes).map(|_| start()).collect::<Outcome<Vec<_>>>()?;
    for appender in &mut appenders {
        appender.read()?;
    }
    for appender in &mut appenders {
        appender.to.write_all(b"go\n")?;
    }
    let mut rate = 0.0;
    for mut appender in appenders {
        let said = appender.read()?;
        rate += said.trim().parse::<f64>().map_err(|error| format!("{said:?}: {error}"))?;
        let status = appender.child.wait()?;
        if !status.success() {
            return Err(format!("an appender failed: {status}").into());
        }
    }
    Ok(rate)
}

/// An appender's process, seen from outside.
struct Appender {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Appender {
    fn start(
        target: Target,
        place: &Path,
        seconds: u64,
        bytes: usize,
        delay: u64,
    ) -> Outcome<Self> {
        let name = target.to_possible_value().ok_or("every target has a name")?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["appender", name.get_name()])
            .arg(place)
            .args([seconds.to_string(), bytes.to_string(), delay.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take().ok_or("no stdin")?;
        let from = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Self { child, to, from })
    }

    fn read(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.from.read_line(&mut line)? {
            0 => Err("an appender ended early".into()),
            _ => Ok(line),
        }
    }
}

type Append = Box<dyn FnMut() -> Outcome>;

/// The appender itself: says that it is ready, waits for the word, appends, says how many events a second it were.
pub(crate) fn append(args: &AppenderArgs) -> Outcome {
    DELAY_MS.store(args.delay, Ordering::Relaxed);
    let mut append = match args.target {
        Target::File => file(&args.place, args.bytes)?,
        Target::Journal => journal(&args.place, args.bytes)?,
    };
    append()?;
    println!("ready");
    stdout().flush()?;
    stdin().read_line(&mut String::new())?;
    let (began, length) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut events = 0_u32;
    while began.elapsed() < length {
        append()?;
        events += 1;
    }
    println!("{}", f64::from(events) / began.elapsed().as_secs_f64());
    Ok(())
}

/// The peer has its blocks allocated before, as our segments have.
fn file(path: &Path, bytes: usize) -> Outcome<Append> {
    let (file, bytes) = (File::create(path)?, vec![b'x'; bytes]);
    let mut end = 0;
    let mut allocated = 0;
    Ok(Box::new(move || {
        let len = u64::try_from(bytes.len())?;
        if end + len > allocated {
            let step = 1 << 20;
            fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, allocated.cast_signed(), step)?;
            allocated += step.cast_unsigned();
        }
        file.write_all_at(&bytes, end)?;
        end += len;
        delay(1);
        Ok(file.sync_data()?)
    }))
}

fn journal(place: &Path, bytes: usize) -> Outcome<Append> {
    let options = Options { boundary: slowed, ..Options::default() };
    let mut journal = SegmentedJournal::open(place, options)?;
    let mut fold = Unfolded::default();
    let writer = Writer::of_this_process(Uuid::new_v4(), "bench")?;
    let subject = Subject::new("vm/bench")?;
    let entry = Entry { kind: 1, version: 1, subject, body: vec![b'x'; bytes] };
    Ok(Box::new(move || {
        let deadline = Instant::now() + Duration::from_secs(60);
        let entries = vec![entry.clone()];
        journal.transact(&mut fold, &writer, deadline, |_| Ok(Proposal::Append(entries, ())))?;
        Ok(())
    }))
}

static DELAY_MS: AtomicU64 = AtomicU64::new(0);

fn delay(syncs: u64) {
    let delay = DELAY_MS.load(Ordering::Relaxed);
    if delay > 0 {
        std::thread::sleep(Duration::from_millis(delay * syncs));
    }
}

/// Where the journal syncs: before it answers; and twice when it makes a segment, once when it ends one, under the lock.
fn slowed(boundary: &'static str) {
    match boundary {
        "journal.sync.before" | "journal.seal.synced" => delay(1),
        "journal.seal.created" => delay(2),
        _ => {}
    }
}
