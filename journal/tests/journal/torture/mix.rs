//! What a process under torture does, and what it writes down.
//!
//! Lines, each written at once:
//!
//! | line | it was told that |
//! |---|---|
//! | `+ SEQ BODY` | this event is acknowledged |
//! | `= SEQ HASH COUNT` | the frame that ends there has this hash, and so many events of users lie up to it |
//! | `~ SEQ HASH` | the event lies in the frame with this hash |
//! | `! WORDS` | something that must not be |

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::time::Duration;

use cocoon_journal::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
use cocoon_journal::reserved::FIRST_KIND;
use cocoon_journal::store::{Store, StoreOptions};
use cocoon_journal::{
    Entry, Fold, Frame, Hash, Journal, JournalError, Options, Position, Proposal, SegmentedJournal,
    Tail,
};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::child::{Job, boundary};
use crate::support::*;

type Failure = Box<dyn std::error::Error>;

/// The state: how many events of users there were.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    position: Position,
    events: u64,
}

impl Fold for Count {
    type Error = Infallible;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Infallible> {
        let own = |entry: &&Entry| entry.kind < FIRST_KIND;
        self.events += frame.entries.iter().filter(own).count() as u64;
        self.position = frame.position(hash);
        Ok(())
    }
}

pub(crate) fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Mix<'a> {
    job: &'a Job,
    random: Random,
    told: File,
    journal: SegmentedJournal,
    count: Count,
    made: u64,
}

/// Does as many things as the job says.
pub(crate) fn run(job: &Job, seed: u64) {
    let mut random = Random::seeded(seed);
    let told = OpenOptions::new().append(true).create(true).open(&job.acks).unwrap();
    let failing = fail_calls(job, &mut random);
    let Some(mut mix) = Mix::new(job, random, told, failing) else { return };
    for _ in 0..job.count {
        let Err(error) = mix.act() else { continue };
        // Damage of what is derived is passed over or repaired without a word, so any failure is that of a call.
        if !failing {
            mix.tell(&format!("! {error}\n"));
            return;
        }
        let Some(journal) = open(job) else { return };
        (mix.journal, mix.count) = (journal, Count::default());
    }
}

fn open(job: &Job) -> Option<SegmentedJournal> {
    let options = Options { boundary, ..small_segments(job.segment_events) };
    SegmentedJournal::open(&job.journal, options).ok()
}

/// The state as of the newest checkpoint that can be read; the empty one if there is none.
fn from_checkpoint(job: &Job) -> Result<Count, Failure> {
    let Some(checkpoint) = Checkpoint::latest(&job.journal)?.checkpoint else {
        return Ok(Count::default());
    };
    let Ok(Some(events)) = checkpoint.get(b"events") else { return Ok(Count::default()) };
    let events = u64::from_le_bytes(events.as_slice().try_into()?);
    Ok(Count { position: checkpoint.position(), events })
}

/// Some processes may not let files grow beyond a point, or have few open: calls of theirs fail, writes in the middle.
fn fail_calls(job: &Job, random: &mut Random) -> bool {
    let (resource, limit) = match random.below(10) {
        0 | 1 => {
            let newest = crate::torture::damage::newest_segment(&job.journal);
            let len = newest.map_or(0, |path| std::fs::metadata(path).unwrap().len());
            (Resource::RLIMIT_FSIZE, len + 200 + random.below(20_000))
        }
        2 => (Resource::RLIMIT_NOFILE, 5 + random.below(10)),
        _ => return false,
    };
    // SAFETY: no handler is installed, the signal is only ignored: the call then fails with EFBIG.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
    setrlimit(resource, limit, limit).unwrap();
    true
}

impl<'a> Mix<'a> {
    fn new(job: &'a Job, random: Random, mut told: File, failing: bool) -> Option<Self> {
        let Some(journal) = open(job) else {
            if !failing {
                told.write_all(b"! the journal cannot be opened\n").unwrap();
            }
            return None;
        };
        let count = from_checkpoint(job).unwrap_or_default();
        Some(Self { job, random, told, journal, count, made: 0 })
    }

    fn tell(&mut self, lines: &str) {
        // Where files may not grow, what cannot be written down was not told.
        let _ = self.told.write_all(lines.as_bytes());
    }

    fn act(&mut self) -> Result<(), Failure> {
        match self.random.below(100) {
            0..62 => self.append(),
            62..78 => {
                self.journal.refresh(&mut self.count)?;
                self.tell_position();
                Ok(())
            }
            78..86 => self.range(),
            86..90 => self.follow(),
            90..94 => self.checkpoint(),
            94 => self.feed(),
            _ => self.restart(),
        }
    }

    fn tell_position(&mut self) {
        let Count { position, events } = self.count;
        self.tell(&format!("= {} {} {events}\n", position.seq, hex(&position.hash)));
    }

    /// One to three decisions of 1 to 16 events.
    fn append(&mut self) -> Result<(), Failure> {
        let mut decisions = Vec::new();
        for _ in 0..=self.random.below(3) {
            let (number, of) = (self.made, 1 + self.random.below(16));
            self.made += 1;
            let padding = "x".repeat(self.random.index(200));
            let body = |place| entry(format!("{}.{number}.{place}.{of}.{padding}", self.job.id));
            decisions.push((0..of).map(body).collect::<Vec<_>>());
        }
        let mut left = decisions.iter().cloned();
        let decide = |_: &Count| Some(Ok(Proposal::Append(left.next()?, ())));
        let outcomes =
            self.journal.transact_each(&mut self.count, &writer(), deadline(), decide)?;
        let mut lines = String::new();
        for (outcome, entries) in outcomes.iter().zip(&decisions) {
            for (seq, entry) in outcome.seqs.clone().unwrap().zip(entries) {
                lines += &format!("+ {seq} {}\n", String::from_utf8_lossy(&entry.body));
            }
        }
        self.tell(&lines);
        self.tell_position();
        Ok(())
    }

    fn range(&mut self) -> Result<(), Failure> {
        let durable = Journal::durable(&self.journal)?;
        let from = 1 + self.random.below(durable.seq + 1);
        let mut lines = String::new();
        for frame in self.journal.frames(from)?.take(20) {
            let (frame, hash) = frame?;
            lines += &format!("~ {} {}\n", frame.last_seq(), hex(&hash));
        }
        self.tell(&lines);
        Ok(())
    }

    fn follow(&mut self) -> Result<(), Failure> {
        let from = self.count.position.seq.saturating_sub(self.random.below(20)).max(1);
        let mut tail = Tail::open(&self.job.journal, from)?;
        let mut before: Option<Position> = None;
        for _ in 0..=self.random.below(10) {
            let Some((frame, hash)) = tail.next(Duration::from_millis(8))? else { break };
            let header = &frame.header;
            if before.is_some_and(|b| (header.seq, header.prev_hash) != (b.seq + 1, b.hash)) {
                return Err(
                    format!("the follower was given {} after {before:?}", header.seq).into()
                );
            }
            before = Some(frame.position(hash));
            self.tell(&format!("~ {} {}\n", frame.last_seq(), hex(&hash)));
        }
        Ok(())
    }

    /// Brings the state to the end, durably.
    fn settle(&mut self) -> Result<Position, JournalError> {
        let answer = |_: &Count| Ok(Proposal::Answer(()));
        self.journal.transact(&mut self.count, &writer(), deadline(), answer)?;
        Journal::durable(&self.journal)
    }

    fn checkpoint(&mut self) -> Result<(), Failure> {
        let durable = self.settle()?;
        let options = CheckpointOptions { boundary, ..CheckpointOptions::default() };
        let Some(mut writer) = CheckpointWriter::try_lock(&self.job.journal, options)? else {
            return Ok(());
        };
        let state = [("events", self.count.events.to_le_bytes())];
        writer.write_whole(self.count.position, durable, state)?;
        Ok(())
    }

    fn feed(&mut self) -> Result<(), Failure> {
        let durable = self.settle()?;
        let options = StoreOptions { boundary };
        let Some(mut store) = Store::try_open_with(&self.job.journal, options)? else {
            return Ok(());
        };
        for repaired in store.catch_up(&self.journal, durable)?.repairs {
            if repaired.cause.accuses_log() {
                return Err(format!("the store accuses the log: {repaired:?}").into());
            }
        }
        let from = 1 + self.random.below(durable.seq.max(1));
        let mut lines = String::new();
        for event in store.range(from..=from + 30)? {
            // Damage that the catch-up did not meet is named, and nothing of it is taken for true.
            let Ok(event) = event else { break };
            lines += &format!("~ {} {}\n", event.seq, hex(&event.hash));
        }
        self.tell(&lines);
        Ok(())
    }

    /// Another process in its place, whose state begins with the newest checkpoint.
    fn restart(&mut self) -> Result<(), Failure> {
        self.count = from_checkpoint(self.job)?;
        let options = Options { boundary, ..small_segments(self.job.segment_events) };
        self.journal = SegmentedJournal::open(&self.job.journal, options)?;
        self.tell_position();
        Ok(())
    }
}
