//! What the tests of derived files share: a log made up in memory, and children that are killed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::error::AnyError;
use crate::frame::Writer;
use crate::frame::{Entry, Frame, FrameHeader, Hash, Position, Seq, Subject, hash_of};
use crate::journal::{Journal as _, Proposal, Unfolded};
use crate::reserved::JournalEvent;
use crate::segmented::{Options, SegmentedJournal};
use crate::store::{FrameSource, Frames};

pub(crate) mod disk;

/// A log in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) frames: Vec<(Frame, Hash)>,
}

impl Log {
    /// `segments` segments of `frames` frames of 1 to 3 events; each but the last ends with a seal.
    /// `salt` makes another history of the same shape.
    pub(crate) fn new(segments: u64, frames: u64, salt: u8) -> Self {
        let mut log = Self::default();
        for segment in 0..segments {
            for n in 0..frames {
                let entries = (0..=n % 3).map(|i| entry(n * 7 + i, salt)).collect();
                log.push(entries);
            }
            if segment + 1 < segments {
                let next = log.end().seq + 2;
                log.push(vec![JournalEvent::Sealed { next }.to_entry().unwrap()]);
            }
        }
        log
    }

    pub(crate) fn push(&mut self, entries: Vec<Entry>) {
        let Position { seq, hash: prev_hash } = self.end();
        let n = self.frames.len() as i64;
        let header = FrameHeader {
            codec: 1,
            flags: 0,
            prev_len: 0,
            ordinal: 0,
            seq: seq + 1,
            count: u16::try_from(entries.len()).unwrap(),
            // The clock is set back every 50 frames.
            wall_us: n % 50 * 1000 - 10_000 + n,
            boottime_us: n.cast_unsigned(),
            boot_id: Uuid::from_u128(1),
            operation: Uuid::from_u128(u128::from((n / 4).cast_unsigned())),
            pid: 42,
            start_time: 4200,
            verb: "create".to_owned(),
            durable_seq: seq,
            prev_hash,
        };
        let frame = Frame { header, entries };
        let hash = hash_of(&frame.encode().unwrap());
        self.frames.push((frame, hash));
    }

    pub(crate) fn end(&self) -> Position {
        self.frames.last().map_or(Position::default(), |(frame, hash)| frame.position(*hash))
    }

    /// The log up to its `count`-th frame.
    pub(crate) fn prefix(&self, count: usize) -> Self {
        Self { frames: self.frames[..count].to_vec() }
    }

    pub(crate) fn events(&self) -> Vec<(Seq, Hash, FrameHeader, Entry)> {
        let of = |(frame, hash): &(Frame, Hash)| {
            let (header, hash) = (frame.header.clone(), *hash);
            let events =
                frame.events().map(|(seq, entry)| (seq, hash, header.clone(), entry.clone()));
            events.collect::<Vec<_>>()
        };
        self.frames.iter().flat_map(of).collect()
    }

    /// First sequence numbers of the segments.
    pub(crate) fn segments(&self) -> Vec<Seq> {
        let sealed = self.frames.iter().flat_map(|(frame, _)| &frame.entries);
        std::iter::once(1).chain(sealed.filter_map(crate::reserved::sealed_next)).collect()
    }
}

fn entry(n: u64, salt: u8) -> Entry {
    let subject = Subject::new(format!("vm/{}", n % 5)).unwrap();
    Entry { kind: 1, version: 1, subject, body: vec![salt.wrapping_add(n.to_le_bytes()[0]); 120] }
}

impl FrameSource for Log {
    fn frames_from(&self, seq: Seq) -> Result<Frames<'_>, AnyError> {
        let from = self.frames.partition_point(|(frame, _)| frame.last_seq() < seq);
        Ok(Box::new(self.frames[from..].iter().cloned().map(Ok)))
    }

    fn end(&self) -> Result<Position, AnyError> {
        Ok(Self::end(self))
    }
}

/// Writes so many events into a journal, with short segments.
pub(crate) fn write_events(dir: &Path, events: u64, segment_events: u64) {
    let options = Options { segment_events, ..Options::default() };
    let mut journal = SegmentedJournal::open(dir, options).unwrap();
    let writer = Writer::of_this_process(Uuid::from_u128(3), "test").unwrap();
    let stub = crate::checkpoint::Stub::latest(dir).unwrap();
    let mut end = Unfolded(stub.map(|stub| stub.position()).unwrap_or_default());
    journal.refresh(&mut end).unwrap();
    for n in 0..events {
        let entries = vec![entry(n, 0)];
        let deadline = Instant::now() + Duration::from_secs(60);
        journal
            .transact(&mut end, &writer, deadline, |_| Ok(Proposal::Append(entries, ())))
            .unwrap();
    }
}

/// A child is told by these where to work and when to die.
const DIR: &str = "COCOON_TEST_DIR";
const KILL_AT: &str = "COCOON_TEST_KILL_AT";

/// The directory to work in, if this process is a child made by [`spawn`].
pub(crate) fn child_dir() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

/// A boundary hook for children: notes the name, and dies by SIGKILL at the one chosen.
pub(crate) fn boundary(name: &'static str) {
    static PASSED: AtomicUsize = AtomicUsize::new(0);
    let Some(dir) = child_dir() else { return };
    let passed = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
    let mut notes = fs::OpenOptions::new().create(true).append(true).open(notes(&dir)).unwrap();
    writeln!(notes, "{name}").unwrap();
    if std::env::var(KILL_AT).is_ok_and(|at| at == passed.to_string()) {
        nix::sys::signal::raise(nix::sys::signal::SIGKILL).unwrap();
    }
}

/// The names of the boundaries that the children in `dir` passed.
pub(crate) fn passed(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(notes(dir)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn notes(dir: &Path) -> PathBuf {
    dir.with_extension("boundaries")
}

/// Runs one test of this binary as a child that works in `dir`.
pub(crate) fn spawn(test: &str, dir: &Path, kill_at: Option<usize>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(DIR, dir);
    if let Some(at) = kill_at {
        command.env(KILL_AT, at.to_string());
    }
    command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}

/// Kills the child `test` at each of the boundaries that it passes, each time in a fresh directory
/// made by `prepare`, and lets `check` look at what it left.
pub(crate) fn kill_at_each_boundary(
    test: &str,
    prepare: impl Fn(&Path),
    check: impl Fn(&Path, &str),
) {
    use std::os::unix::process::ExitStatusExt;
    let run = |kill_at| {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("journal");
        fs::create_dir(&dir).unwrap();
        prepare(&dir);
        let status = spawn(test, &dir, kill_at).wait().unwrap();
        (scratch, dir, status)
    };
    let (_scratch, dir, status) = run(None);
    assert!(status.success(), "{test}: {status}");
    let names = passed(&dir);
    check(&dir, "the end");
    assert!(!names.is_empty());
    for (n, name) in (1..).zip(&names) {
        let (_scratch, dir, status) = run(Some(n));
        assert_eq!(status.signal(), Some(9), "{test}, boundary {n} {name}");
        check(&dir, &format!("boundary {n}, {name}"));
    }
}

/// A small generator for tests whose seed is printed (xorshift).
pub(crate) struct Random(u64);

impl Random {
    /// Seeded from `COCOON_TEST_SEED` or the clock; prints the seed.
    pub(crate) fn new() -> Self {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let given = std::env::var("COCOON_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or(u64::from(clock.subsec_nanos()) | 1);
        println!("COCOON_TEST_SEED={seed}");
        Self(seed)
    }

    /// Repeats the choices of a seed.
    pub(crate) fn seeded(seed: u64) -> Self {
        // Zero is the one state that a xorshift never leaves.
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
