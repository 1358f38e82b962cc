//! A fold that remembers everything, and short ways to use it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use cocoon_journal::{
    Entry, Fold, Frame, Hash, Journal, JournalError, Options, Outcome, Position, Proposal,
    SegmentedJournal, Seq, Subject, Writer,
};
use tempfile::TempDir;
use uuid::Uuid;

/// Everything that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) position: Position,
    pub(crate) events: Vec<(Seq, Entry)>,
    pub(crate) frames: usize,
}

impl Log {
    /// Bodies of the events that are not the journal's own.
    pub(crate) fn bodies(&self) -> Vec<String> {
        let own = |entry: &&Entry| entry.kind < cocoon_journal::reserved::FIRST_KIND;
        let entries = self.events.iter().map(|(_, entry)| entry).filter(own);
        entries.map(|entry| String::from_utf8(entry.body.clone()).unwrap()).collect()
    }

    /// How many events of a kind there were.
    pub(crate) fn count(&self, kind: u16) -> usize {
        self.events.iter().filter(|(_, entry)| entry.kind == kind).count()
    }
}

impl Fold for Log {
    type Error = Infallible;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Infallible> {
        assert_eq!(frame.header.seq, self.position.seq + 1, "frames come in order");
        self.events.extend(frame.events().map(|(seq, entry)| (seq, entry.clone())));
        self.position = frame.position(hash);
        self.frames += 1;
        Ok(())
    }
}

pub(crate) fn entry(body: impl Into<String>) -> Entry {
    Entry {
        kind: 1,
        version: 1,
        subject: Subject::new("vm/test").unwrap(),
        body: body.into().into_bytes(),
    }
}

pub(crate) fn writer() -> Writer {
    Writer {
        operation: Uuid::from_u128(1),
        pid: std::process::id(),
        start_time: 0,
        verb: "test".into(),
    }
}

pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A directory for a journal, gone when dropped.
pub(crate) struct Root {
    dir: TempDir,
}

impl Root {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    pub(crate) fn open(&self) -> SegmentedJournal {
        self.open_with(Options::default())
    }

    pub(crate) fn open_with(&self, options: Options) -> SegmentedJournal {
        SegmentedJournal::open(&self.path(), options).unwrap()
    }

    /// The log as a new handle reads it.
    pub(crate) fn read(&self) -> Log {
        read(&self.path()).unwrap()
    }

    pub(crate) fn segment(&self, first: Seq) -> PathBuf {
        self.path().join(format!("seg/{first:020}.seg"))
    }
}

pub(crate) fn read(path: &Path) -> Result<Log, JournalError> {
    let mut log = Log::default();
    SegmentedJournal::open(path, Options::default())?.refresh(&mut log)?;
    Ok(log)
}

/// Appends one event.
pub(crate) fn append(
    journal: &mut impl Journal,
    log: &mut impl Fold,
    body: impl Into<String>,
) -> Result<Outcome<()>, JournalError> {
    let entries = vec![entry(body)];
    journal.transact(log, &writer(), deadline(), |_| Ok(Proposal::Append(entries, ())))
}

/// Appends one event that may use the reserve.
pub(crate) fn append_from_reserve(
    journal: &mut impl Journal,
    log: &mut Log,
    body: impl Into<String>,
) -> Result<Outcome<()>, JournalError> {
    let proposal = Proposal::AppendFromReserve(vec![entry(body)], ());
    journal.transact(log, &writer(), deadline(), |_| Ok(proposal))
}

/// Options with small segments.
pub(crate) fn small_segments(events: u64) -> Options {
    Options { segment_events: events, ..Options::default() }
}

/// A small generator with a seed that a failure can be repeated from (xorshift).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Seeded from `JOURNAL_SEED`, else from the clock; says so.
    pub(crate) fn from_environment() -> Self {
        let now = || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            u64::try_from(since.as_nanos() & u128::from(u64::MAX)).unwrap()
        };
        let seed =
            std::env::var("JOURNAL_SEED").map_or_else(|_| now(), |seed| seed.parse().unwrap());
        println!("JOURNAL_SEED={seed}");
        Self(seed | 1)
    }

    /// Repeats the choices of a seed. Neighbouring seeds have nothing in common.
    pub(crate) fn seeded(seed: u64) -> Self {
        let mixed = (seed ^ (seed >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = Self(mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1);
        random.below(2);
        random
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The low bits of a xorshift are the worst.
        (self.0 >> 11) % limit
    }

    /// An index below `limit`.
    pub(crate) fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap()
    }

    /// Whether something of this many in a hundred happens.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
