//! Journals that no command would write: illegal events, other boots, clocks that were set.

use std::cell::Cell;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cocoon_journal::clock::Clock;
use cocoon_journal::{
    Entry, Fold, Frame, Hash, Journal as _, Options, Position, Proposal, SegmentedJournal, Writer,
};
use cocoon_model::event::vm::Prereserved;
use cocoon_model::event::{Event, VmEvent};
use cocoon_model::id::Id;
use cocoon_model::record::{BackendKind, Boot, ImageType, OperationKind, VmConfig, VmSpec};
use uuid::Uuid;

thread_local! {
    static WALL_US: Cell<i64> = const { Cell::new(0) };
    static BOOTTIME_US: Cell<u64> = const { Cell::new(0) };
}

struct Blind(Position);

impl Fold for Blind {
    type Error = Infallible;

    fn position(&self) -> Position {
        self.0
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Infallible> {
        self.0 = frame.position(hash);
        Ok(())
    }
}

/// A journal that is written as one likes.
pub(crate) struct Forger {
    dir: tempfile::TempDir,
    journal: SegmentedJournal,
    fold: Blind,
}

/// Who writes.
#[derive(Clone)]
pub(crate) struct Hand {
    writer: Writer,
}

impl Hand {
    pub(crate) fn new(verb: &str, pid: u32) -> Self {
        let operation = Uuid::from_u128(u128::from(pid));
        Self { writer: Writer { operation, pid, start_time: 1, verb: verb.to_owned() } }
    }
}

impl Forger {
    /// An empty journal in the first boot, at the start of 2026.
    pub(crate) fn new() -> Self {
        Self::with_segments(Options::default().segment_events)
    }

    /// One whose segments are full after so many events.
    pub(crate) fn with_segments(events: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let journal = open(dir.path(), 1, events);
        let forger = Self { dir, journal, fold: Blind(Position::default()) };
        forger.set_clock(1_767_225_600_000_000, 1_000_000);
        forger
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// Brings the event store up to the end of the journal.
    pub(crate) fn feed_store(&self) {
        let mut store = cocoon_journal::store::Store::try_open(&self.path()).unwrap().unwrap();
        store.catch_up(&self.journal, self.fold.0).unwrap();
    }

    pub(crate) fn set_clock(&self, wall_us: i64, boottime_us: u64) {
        WALL_US.set(wall_us);
        BOOTTIME_US.set(boottime_us);
    }

    /// Restarts the host: from here on frames are of another boot.
    pub(crate) fn reboot(&mut self, boot: u128) {
        let events = Options::default().segment_events;
        self.journal = open(self.dir.path(), boot, events);
    }

    pub(crate) fn write(&mut self, hand: &Hand, events: &[Event]) {
        let entries = events.iter().map(|event| cocoon::codec::encode(event).unwrap());
        self.write_entries(hand, entries.collect());
    }

    pub(crate) fn write_entries(&mut self, hand: &Hand, entries: Vec<Entry>) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let journal = &mut self.journal;
        journal
            .transact(&mut self.fold, &hand.writer, deadline, |_| Ok(Proposal::Append(entries, ())))
            .unwrap();
        WALL_US.set(WALL_US.get() + 1_000_000);
        BOOTTIME_US.set(BOOTTIME_US.get() + 1_000_000);
    }
}

fn open(dir: &Path, boot: u128, segment_events: u64) -> SegmentedJournal {
    let boot_id_path = dir.join("boot_id");
    std::fs::write(&boot_id_path, Uuid::from_u128(boot).to_string()).unwrap();
    let clock = Clock { wall_us: || WALL_US.get(), boottime_us: || BOOTTIME_US.get() };
    let options = Options { clock, boot_id_path, segment_events, ..Options::default() };
    SegmentedJournal::open(&dir.join("journal"), options).unwrap()
}

/// The event of the VM in a slot.
pub(crate) fn vm(slot: u8, event: impl Into<VmEvent>) -> Event {
    Event::Vm(Id::from_slot(slot), event.into())
}

/// A reservation by `create`.
pub(crate) fn reserved(name: &str) -> Prereserved {
    let config = VmConfig {
        cpu: 1,
        memory: 64 << 20,
        storage: 64 << 20,
        queue_size: 0,
        disk_queue_size: 0,
        image: "guest".to_owned(),
        image_digest: "blake3:5a".to_owned(),
        image_type: ImageType::Cloudimg,
        no_direct_io: false,
    };
    let spec = VmSpec {
        backend: BackendKind::Qemu,
        config,
        boot: Boot::Disk,
        disks: Vec::new(),
        nics: Vec::new(),
        run_dir: "/nowhere/run".to_owned(),
        log_dir: "/nowhere/log".to_owned(),
    };
    Prereserved {
        name: name.to_owned(),
        image: Id::from_slot(200),
        operation: OperationKind::Create,
        spec: Box::new(spec),
    }
}
