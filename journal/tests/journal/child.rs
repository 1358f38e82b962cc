//! This test binary again, as a process that can be killed.
//!
//! The child appends numbered events and writes down, with one `write(2)` each, what was acknowledged; or it does a bit
//! of everything ([`mix`](crate::torture::mix)).

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use cocoon_journal::{Options, SegmentedJournal};
use nix::sys::signal::Signal;

use crate::support::*;
use crate::torture::mix;

/// What a child is to do.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) journal: PathBuf,
    /// Where acknowledgements go, one line each: `seq body`.
    pub(crate) acks: PathBuf,
    /// First part of the bodies of its events: `id.n`.
    pub(crate) id: String,
    /// How many events to append.
    pub(crate) count: u64,
    /// SIGKILL itself at this boundary, counted from 1; 0 for never.
    pub(crate) kill_at: u64,
    pub(crate) segment_events: u64,
    pub(crate) work: Work,
}

/// What kind of work that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Appends one event after the other.
    Append,
    /// Does a bit of everything, by the choices of a seed.
    Mix(u64),
}

static KILL_AT: AtomicU64 = AtomicU64::new(0);
static BOUNDARIES: AtomicU64 = AtomicU64::new(0);

pub(crate) fn boundary(_: &'static str) {
    let number = BOUNDARIES.fetch_add(1, Ordering::SeqCst) + 1;
    if number == KILL_AT.load(Ordering::SeqCst) {
        nix::sys::signal::raise(Signal::SIGKILL).unwrap();
    }
}

impl Job {
    pub(crate) fn spawn(&self) -> Child {
        let numbers = [self.count, self.kill_at, self.segment_events].map(|n| n.to_string());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child::child", "--ignored", "--nocapture"])
            .env("JOURNAL_CHILD_PATHS", std::env::join_paths([&self.journal, &self.acks]).unwrap())
            .env("JOURNAL_CHILD_NUMBERS", numbers.join(" "))
            .env("JOURNAL_CHILD_ID", &self.id)
            .stdout(Stdio::null());
        if let Work::Mix(seed) = self.work {
            command.env("JOURNAL_CHILD_MIX", seed.to_string());
        }
        command.spawn().unwrap()
    }

    fn from_environment() -> Option<Self> {
        let paths = std::env::var_os("JOURNAL_CHILD_PATHS")?;
        let mut paths = std::env::split_paths(&paths);
        let numbers = std::env::var("JOURNAL_CHILD_NUMBERS").ok()?;
        let mut numbers = numbers.split(' ').map(|number| number.parse().unwrap());
        Some(Self {
            journal: paths.next()?,
            acks: paths.next()?,
            id: std::env::var("JOURNAL_CHILD_ID").ok()?,
            count: numbers.next()?,
            kill_at: numbers.next()?,
            segment_events: numbers.next()?,
            work: std::env::var("JOURNAL_CHILD_MIX")
                .map_or(Work::Append, |seed| Work::Mix(seed.parse().unwrap())),
        })
    }

    fn run(&self) {
        KILL_AT.store(self.kill_at, Ordering::SeqCst);
        if let Work::Mix(seed) = self.work {
            return mix::run(self, seed);
        }
        let options = Options { boundary, ..small_segments(self.segment_events) };
        let mut acks = OpenOptions::new().append(true).create(true).open(&self.acks).unwrap();
        let mut journal = SegmentedJournal::open(&self.journal, options).unwrap();
        let mut log = Log::default();
        for n in 0..self.count {
            let body = format!("{}.{n}", self.id);
            let outcome = append(&mut journal, &mut log, body.clone()).unwrap();
            let line = format!("{} {body}\n", outcome.seqs.unwrap().start());
            acks.write_all(line.as_bytes()).unwrap();
        }
        let boundaries = BOUNDARIES.load(Ordering::SeqCst);
        std::fs::write(self.acks.with_extension("boundaries"), boundaries.to_string()).unwrap();
    }

    /// How many boundaries a run without a kill passed.
    pub(crate) fn boundaries(&self) -> u64 {
        let text = std::fs::read_to_string(self.acks.with_extension("boundaries")).unwrap();
        text.parse().unwrap()
    }
}

/// What children wrote down: sequence number and body.
pub(crate) fn acks(path: &Path) -> Vec<(u64, String)> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let parse = |line: &str| {
        let (seq, body) = line.split_once(' ').unwrap();
        (seq.parse().unwrap(), body.to_owned())
    };
    text.lines().map(parse).collect()
}

#[test]
#[ignore = "run by other tests, as a process of its own"]
fn child() {
    if let Some(job) = Job::from_environment() {
        job.run();
    }
}
