//! A journal in a directory of its own, and those who use it.

use std::cell::RefCell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use uuid::Uuid;

use super::truth::{Event, Read, Truth, events_of, parse};
use super::{Beside, Fate, Operation};
use crate::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
use crate::error::JournalError;
use crate::frame::{Entry, Position, Seq, Writer};
use crate::journal::{Journal, Outcome, Proposal};
use crate::segmented::{Options, SegmentedJournal};
use crate::store::Store;
use crate::tail::Tail;
use crate::testing::Random;
use crate::testing::disk::{self, Killed};

/// How many handles there are, each in the part of a process.
pub(super) const HANDLES: usize = 3;
/// Longer than a follower lets HEAD stand still.
const STILL: Duration = Duration::from_millis(7);

/// A handle with its state, and how many faults there had been when it was opened.
struct Handle {
    journal: SegmentedJournal,
    read: Read,
    faults: u64,
    excused: bool,
}

pub(super) struct World {
    scratch: TempDir,
    segment_events: u64,
    boots: u32,
    handles: [Option<Handle>; HANDLES],
    follower: Option<(Tail, Position, u64)>,
    truth: Truth,
    /// What HEAD was since the last power cut: it is not synced, so that a cut may leave any of it.
    heads: Vec<Vec<u8>>,
    faults: u64,
    store_damaged: bool,
}

type Shared = Rc<RefCell<World>>;

/// What another handle does at a boundary.
type Aside = (&'static str, Box<dyn FnOnce()>);

/// What is to happen at the boundaries that the handle in action passes.
#[derive(Default)]
struct Plan {
    dies: Option<usize>,
    beside: Option<Aside>,
}

thread_local! {
    static PLAN: RefCell<Plan> = RefCell::default();
}

fn boundary(name: &'static str) {
    let (dies, beside) = PLAN.with_borrow_mut(|plan| {
        plan.dies = plan.dies.map(|left| left - 1);
        (plan.dies == Some(0), plan.beside.take_if(|(at, _)| *at == name))
    });
    if dies {
        resume_unwind(Box::new(Killed));
    }
    if let Some((_, act)) = beside {
        act();
    }
}

/// Runs `act` as the process that has this plan and meets this fate; `None` if that killed it. Says too whether
/// anything of the fate came about.
fn live<T>(fate: &Fate, beside: Option<Aside>, act: impl FnOnce() -> T) -> (Option<T>, bool) {
    let dies = if let Fate::Dies(at) = fate { Some(*at) } else { None };
    let fault = if let Fate::Meets(fault) = fate { Some(*fault) } else { None };
    let outer = (PLAN.replace(Plan { dies, beside }), disk::arm(fault));
    let result = catch_unwind(AssertUnwindSafe(act));
    let left = (PLAN.replace(outer.0), disk::arm(outer.1));
    let met = fault.is_some() && left.1.is_none();
    match result {
        Ok(result) => (Some(result), met),
        Err(panic) if panic.is::<Killed>() => (None, true),
        Err(panic) => resume_unwind(panic),
    }
}

impl World {
    pub(super) fn new(segment_events: u64) -> Shared {
        disk::install();
        let memory = fs::metadata("/dev/shm").is_ok();
        let scratch = if memory { TempDir::new_in("/dev/shm") } else { TempDir::new() }.unwrap();
        let mut world = Self {
            scratch,
            segment_events,
            boots: 0,
            handles: Default::default(),
            follower: None,
            truth: Truth::default(),
            heads: Vec::new(),
            faults: 0,
            store_damaged: false,
        };
        world.boot();
        world.handles[0] = Some(world.open());
        world.note_head();
        Rc::new(RefCell::new(world))
    }

    fn dir(&self) -> PathBuf {
        self.scratch.path().join("journal")
    }

    fn boot(&mut self) {
        self.boots += 1;
        let id = Uuid::from_u128(u128::from(self.boots));
        fs::write(self.scratch.path().join("boot"), id.to_string()).unwrap();
    }

    fn open(&self) -> Handle {
        let options = Options {
            segment_events: self.segment_events,
            boot_id_path: self.scratch.path().join("boot"),
            boundary,
            ..Options::default()
        };
        let journal = SegmentedJournal::open(&self.dir(), options).unwrap();
        Handle { journal, read: Read::default(), faults: self.faults, excused: false }
    }

    fn take(&mut self, handle: usize) -> Handle {
        let taken = self.handles[handle].take();
        let mut handle = taken.unwrap_or_else(|| self.open());
        // Whoever comes first is told of a failed write-back.
        handle.excused = disk::has_news();
        handle
    }

    fn note_head(&mut self) {
        let head = fs::read(self.dir().join("HEAD")).unwrap();
        if self.heads.last() != Some(&head) {
            self.heads.push(head);
        }
    }

    pub(super) fn act(world: &Shared, operation: Operation) {
        match operation {
            Operation::Append { handle, counts, fate, beside } => {
                Self::append(world, handle, counts, &fate, beside);
            }
            Operation::Read { handle, fate } => Self::read(world, handle, &fate),
            Operation::From { handle, at } => world.borrow_mut().frames_from(handle, at),
            Operation::Follow => world.borrow_mut().follow(),
            Operation::Restart { handle, from_checkpoint } => {
                let world = &mut *world.borrow_mut();
                world.handles[handle] = from_checkpoint.then(|| world.open_on_checkpoint());
            }
            Operation::Checkpoint { handle } => world.borrow_mut().checkpoint(handle),
            Operation::Feed { handle } => world.borrow_mut().feed(handle),
            Operation::Damage { store, choice } => world.borrow_mut().damage(store, choice),
            Operation::FailWriteBack => {
                world.borrow_mut().faults += 1;
                disk::fail_write_back();
            }
            Operation::Evict => {
                world.borrow_mut().faults += 1;
                disk::evict();
            }
            Operation::PowerCut { choice } => world.borrow_mut().power_cut(choice),
        }
        world.borrow_mut().note_head();
    }

    /// Whether a handle may fail now: something happened since it was opened, of which it may be told at any later
    /// time, or was still to be told to somebody.
    fn may_fail(&self, handle: &Handle) -> bool {
        handle.faults < self.faults || handle.excused
    }

    fn append(world: &Shared, number: usize, counts: Vec<u8>, fate: &Fate, beside: Option<Beside>) {
        let mut handle = world.borrow_mut().take(number);
        let beside = beside.map(|beside| {
            let (world, at) = (Rc::clone(world), beside.at);
            let act = move || Self::act_beside(&world, number, &beside);
            (at, Box::new(act) as Box<dyn FnOnce()>)
        });
        let (mut counts, mut made) = (counts.into_iter(), Vec::new());
        let (result, met) = live(fate, beside, || {
            handle.journal.transact_each(&mut handle.read, &writer(), deadline(), |_| {
                let entries = world.borrow_mut().truth.decide(counts.next()?);
                made.push(entries.clone());
                Some(Ok(Proposal::Append(entries, ())))
            })
        });
        if let Some(Ok(outcomes)) = &result {
            assert_eq!(outcomes.len(), made.len());
            for (outcome, made) in outcomes.iter().zip(&made) {
                world.borrow_mut().acknowledged(outcome, made);
            }
        }
        world.borrow_mut().came_to(number, handle, result.map(|result| result.map(drop)), met);
    }

    fn act_beside(world: &Shared, busy: usize, beside: &Beside) {
        let free = if beside.handle == busy { (busy + 1) % HANDLES } else { beside.handle };
        match beside.reads {
            true => Self::read(world, free, &beside.fate),
            false => Self::append(world, free, vec![2], &beside.fate, None),
        }
        world.borrow_mut().note_head();
    }

    fn read(world: &Shared, number: usize, fate: &Fate) {
        let mut handle = world.borrow_mut().take(number);
        let (result, met) = live(fate, None, || handle.journal.refresh(&mut handle.read));
        world.borrow_mut().came_to(number, handle, result, met);
    }

    fn acknowledged(&mut self, outcome: &Outcome<()>, made: &[Entry]) {
        let events = made.iter().map(|entry| Event::of_entry(entry).unwrap());
        let events: Vec<_> = outcome.seqs.clone().unwrap().zip(events).collect();
        assert_eq!(events.len(), made.len());
        self.truth.promise(&events, "an acknowledgement");
    }

    /// What a handle's action came to; whoever failed is replaced by another.
    fn came_to(
        &mut self,
        number: usize,
        handle: Handle,
        result: Option<Result<(), JournalError>>,
        met: bool,
    ) {
        self.faults += u64::from(met);
        match result {
            None => {}
            Some(Ok(())) => {
                self.truth.promise(&handle.read.events, "an answer");
                self.handles[number] = Some(handle);
            }
            Some(Err(error)) => assert!(self.may_fail(&handle), "{error}"),
        }
    }

    fn frames_from(&mut self, number: usize, at: u64) {
        let handle = self.take(number);
        let seq = 1 + at % (self.truth.end() + 2);
        let read = || -> Result<Vec<_>, JournalError> {
            let durable = Journal::durable(&handle.journal)?;
            let frames: Result<Vec<_>, _> = handle.journal.frames(seq)?.collect();
            let frames = frames?;
            let mut next = None;
            for (frame, _) in &frames {
                let holds = frame.header.seq <= seq && seq <= frame.last_seq();
                assert!(next.map_or(holds, |next| frame.header.seq == next), "no gap");
                next = Some(frame.last_seq() + 1);
            }
            assert_eq!(next.unwrap_or(seq).max(seq), seq.max(durable.seq + 1), "to the end");
            Ok(frames)
        };
        match read() {
            Ok(frames) => {
                let events: Vec<_> =
                    frames.iter().flat_map(|(frame, _)| events_of(frame)).collect();
                self.truth.promise(&events, "a range");
                self.handles[number] = Some(handle);
            }
            Err(error) => assert!(self.may_fail(&handle), "{error}"),
        }
    }

    fn follow(&mut self) {
        let (follower, news) = (self.follower.take(), disk::has_news());
        let (mut tail, mut position, faults) = follower.unwrap_or_else(|| {
            (Tail::open(&self.dir(), 1).unwrap(), Position::default(), self.faults)
        });
        loop {
            match tail.next(STILL) {
                Ok(Some((frame, hash))) => {
                    let header = &frame.header;
                    let follows = (header.seq, header.prev_hash);
                    assert_eq!(follows, (position.seq + 1, position.hash), "no gap");
                    self.truth.promise(&events_of(&frame), "the follower");
                    position = frame.position(hash);
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(faults < self.faults || news, "{error}");
                    return;
                }
            }
        }
        self.follower = Some((tail, position, faults));
    }

    /// Brings a handle up to the end, durably; how far that is.
    fn settled(&mut self, number: usize) -> Option<(Handle, Position)> {
        let mut handle = self.take(number);
        let answer = |_: &Read| Ok(Proposal::Answer(()));
        let settled = handle
            .journal
            .transact(&mut handle.read, &writer(), deadline(), answer)
            .and_then(|_| Journal::durable(&handle.journal));
        match settled {
            Ok(durable) => {
                self.truth.promise(&handle.read.events, "an answer");
                assert_eq!(durable, handle.read.position);
                Some((handle, durable))
            }
            Err(error) => {
                assert!(self.may_fail(&handle), "{error}");
                None
            }
        }
    }

    fn checkpoint(&mut self, number: usize) {
        let Some((handle, durable)) = self.settled(number) else { return };
        let mut writer =
            CheckpointWriter::try_lock(&self.dir(), CheckpointOptions::default()).unwrap().unwrap();
        let events = &handle.read.events;
        let entries = events.iter().map(|(seq, event)| (seq.to_be_bytes(), event.encode()));
        writer.write_whole(handle.read.position, durable, entries).unwrap();
        self.handles[number] = Some(handle);
    }

    /// A handle whose state begins with the newest checkpoint, if that can be read.
    fn open_on_checkpoint(&mut self) -> Handle {
        let mut handle = self.open();
        let latest = Checkpoint::latest(&self.dir()).unwrap();
        let Some(checkpoint) = latest.checkpoint else { return handle };
        let event = |(key, value): (Vec<u8>, Vec<u8>)| {
            (Seq::from_be_bytes(key.try_into().unwrap()), Event::decode(&value))
        };
        let events: Result<Vec<_>, _> =
            checkpoint.prefix(b"").map(|entry| entry.map(event)).collect();
        match events {
            Ok(events) => {
                self.truth.promise(&events, "a checkpoint");
                handle.read = Read { position: checkpoint.position(), events };
            }
            Err(error) => assert!(error.is_damage(), "{error}"),
        }
        handle
    }

    fn feed(&mut self, number: usize) {
        let Some((handle, durable)) = self.settled(number) else { return };
        let mut store = Store::try_open(&self.dir()).unwrap().unwrap();
        for again in [false, true] {
            let report = store.catch_up(&handle.journal, durable).unwrap();
            assert_eq!(report.position, durable);
            for repaired in report.repairs {
                assert!(self.store_damaged, "{repaired:?}");
                assert!(!repaired.cause.accuses_log(), "{repaired:?}");
            }
            let stored: Result<Vec<_>, _> = store.range(1..=Seq::MAX).and_then(Iterator::collect);
            match stored {
                Ok(stored) => {
                    let events = stored
                        .into_iter()
                        .filter_map(|event| Some((event.seq, Event::of_entry(&event.entry)?)));
                    assert!(events.eq(handle.read.events.iter().copied()));
                    break;
                }
                Err(error) => assert!(self.store_damaged && !again, "{error}"),
            }
            // Damage that a catch-up does not meet is found by reading all of it, and mended by the next.
            store.verify().unwrap_err();
        }
        self.store_damaged = false;
        self.handles[number] = Some(handle);
    }

    fn damage(&mut self, store: bool, choice: u64) {
        let mut files = Vec::new();
        list(&self.dir().join(if store { "sled" } else { "ckpt" }), &mut files);
        if files.is_empty() {
            return;
        }
        self.store_damaged |= store;
        let mut random = Random::seeded(choice);
        let mut below = |end: usize| usize::try_from(random.below(end as u64)).unwrap();
        let path = &files[below(files.len())];
        let mut bytes = fs::read(path).unwrap();
        match below(5) {
            0 => return fs::remove_file(path).unwrap(),
            1 => bytes.clear(),
            2 => bytes.truncate(below(bytes.len() + 1)),
            3 => bytes.extend_from_slice(&[0x5a; 77]),
            _ if bytes.is_empty() => {}
            _ => {
                let at = below(bytes.len());
                bytes[at] ^= 1 << below(8);
            }
        }
        fs::write(path, bytes).unwrap();
    }

    fn power_cut(&mut self, choice: u64) {
        let mut random = Random::seeded(choice);
        self.handles = Default::default();
        self.follower = None;
        disk::cut(&mut random);
        let mut slot = |from: usize| {
            let version = random.below(self.heads.len() as u64);
            self.heads[usize::try_from(version).unwrap()][from..from + 512].to_vec()
        };
        let head = [slot(0), slot(512)].concat();
        fs::write(self.dir().join("HEAD"), &head).unwrap();
        self.heads = vec![head];
        self.boot();
    }

    /// Everybody's view, and what a power cut would leave, have what was promised.
    pub(super) fn check(&self) {
        let path = |first: Seq| self.dir().join(format!("seg/{first:020}.seg"));
        let cached = parse(|first| fs::read(path(first)).ok());
        self.truth.check(&cached, "what is read");
        let on_disk =
            parse(|first| disk::durable(&path(first)).or_else(|| fs::read(path(first)).ok()));
        self.truth.check(&on_disk, "what a power cut leaves");
    }

    /// After all of it, everything works, and nobody has to be restarted for it.
    pub(super) fn goes_on(world: &Shared) {
        disk::fail_write_back();
        world.borrow_mut().faults += 1;
        let decisions = world.borrow().truth.decisions();
        for _ in 0..=HANDLES {
            // Each failure is told once.
            Self::append(world, 0, vec![1], &Fate::Lives, None);
        }
        let world = &mut *world.borrow_mut();
        assert!(world.truth.decisions() > decisions);
        world.handles = Default::default();
        world.follower = None;
        world.follow();
        let (handle, end) = world.settled(1).expect("nothing is in the way any more");
        assert_eq!(world.follower.as_ref().map(|(_, position, _)| *position), Some(end));
        world.handles[1] = Some(handle);
        world.feed(1);
        world.checkpoint(1);
        world.check();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        disk::remove();
    }
}

fn list(dir: &std::path::Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            list(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn writer() -> Writer {
    Writer { operation: Uuid::from_u128(1), pid: 1, start_time: 1, verb: "test".to_owned() }
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(2)
}
