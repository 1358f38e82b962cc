//! The journal in segment files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::clock::{BOOT_ID_PATH, Clock, boot_id};
use crate::cursor::Mark;
use crate::directory::{Directory, refuse_network_file_system};
use crate::error::JournalError;
use crate::frame::{CODEC_BINCODE, Entry, Frame, FrameHeader, Hash, Position, Seq, Writer};
use crate::head::{Head, HeadFile};
use crate::journal::{Fold, Journal, Outcome, Proposal};
use crate::lock::Lock;
use crate::proof::{self, Proof};
use crate::segment::Segment;
use crate::view::View;

mod read;
mod seal;
mod torn;
mod transact;

pub use read::Frames;
pub(crate) use read::{make_sure, read_durable};

/// How a journal is kept. The default is right for production.
#[derive(Clone, Debug)]
pub struct Options {
    /// A segment is sealed once it is at least this long, in bytes.
    pub segment_bytes: u64,
    /// A segment is sealed once it holds at least this many events.
    pub segment_events: u64,
    /// The root that the journal belongs to. When given, an existing journal must name the same; when
    /// not, a new journal makes one up.
    pub root: Option<Uuid>,
    /// How long opening may wait for another process that creates the journal.
    pub create_timeout: Duration,
    /// Codec id written into frames.
    pub codec: u8,
    /// Sources of time.
    pub clock: Clock,
    /// Where to read the boot id.
    pub boot_id_path: PathBuf,
    /// Called at each boundary between effects, with its name. For crash tests.
    pub boundary: fn(&'static str),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 4 * 1024 * 1024,
            segment_events: 10_000,
            root: None,
            create_timeout: Duration::from_secs(10),
            codec: CODEC_BINCODE,
            clock: Clock::default(),
            boot_id_path: PathBuf::from(BOOT_ID_PATH),
            boundary: |_| {},
        }
    }
}

/// A handle on the journal of one directory. Any number of processes, and of handles in a process,
/// may have one at a time.
#[derive(Debug)]
pub struct SegmentedJournal {
    directory: Directory,
    options: Options,
    root: Uuid,
    boot_id: Uuid,
    /// What derived files said of the log before it was read.
    proofs: Vec<Proof>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    view: Option<View>,
    head: Option<HeadFile>,
    /// Operation that wrote last through this handle, and how many frames it has written.
    operation: (Uuid, u32),
    /// A write or a sync failed after the fold had gone ahead.
    poisoned: bool,
    /// How far this handle's own reader's syncs reach.
    synced: Seq,
    /// Whether segments that no seal names were looked for.
    swept: bool,
    /// Whether this handle ever had to wait for another writer.
    met_others: bool,
}

impl SegmentedJournal {
    /// Opens the journal in `dir`, and creates it on first use. Safe to call from many processes at
    /// once. The parent of `dir` must exist.
    ///
    /// # Errors
    ///
    /// If `dir` lies on a network file system, holds something else or cannot be used.
    pub fn open(dir: &Path, options: Options) -> Result<Self, JournalError> {
        Self::open_or(dir, options, create)
    }

    /// Opens the journal in `dir`, which must be there.
    ///
    /// # Errors
    ///
    /// [`JournalError::Missing`], and those of [`open`](Self::open).
    pub fn open_existing(dir: &Path, options: Options) -> Result<Self, JournalError> {
        Self::open_or(dir, options, |_, _| Err(JournalError::Missing { path: dir.to_owned() }))
    }

    fn open_or(
        dir: &Path,
        options: Options,
        create: impl FnOnce(&Directory, &Options) -> Result<Uuid, JournalError>,
    ) -> Result<Self, JournalError> {
        let directory = Directory::new(dir);
        let boot_id = boot_id(&options.boot_id_path)?;
        let root = match find_root(&directory)? {
            Some(root) => {
                refuse_network_file_system(dir)?;
                root
            }
            None => create(&directory, &options)?,
        };
        if let Some(expected) = options.root.filter(|expected| *expected != root) {
            return Err(JournalError::ForeignRoot { path: dir.to_owned(), expected, found: root });
        }
        let proofs = proof::read(dir);
        Ok(Self { directory, options, root, boot_id, proofs, state: Mutex::default() })
    }

    /// The root that the journal belongs to.
    #[must_use]
    pub fn root(&self) -> Uuid {
        self.root
    }

    /// The id of the boot that this handle stamps on its frames.
    #[must_use]
    pub fn boot_id(&self) -> Uuid {
        self.boot_id
    }

    /// Whether this handle ever had to wait for another writer.
    #[must_use]
    pub fn met_others(&self) -> bool {
        self.lock_state().met_others
    }

    /// The directory of the journal.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    fn boundary(&self, name: &'static str) {
        (self.options.boundary)(name);
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        // A panic of a caller's fold leaves the state between two frames, where it is sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next frame, at `mark`.
    fn frame(&self, entries: Vec<Entry>, author: &Author<'_>, mark: Mark, durable: Seq) -> Frame {
        let header = FrameHeader {
            codec: self.options.codec,
            flags: 0,
            prev_len: mark.last_len,
            ordinal: author.ordinal,
            seq: mark.seq.saturating_add(1),
            // Encoding refuses a frame with other than 1 to 16 events.
            count: u16::try_from(entries.len()).unwrap_or(u16::MAX),
            wall_us: (self.options.clock.wall_us)(),
            boottime_us: (self.options.clock.boottime_us)(),
            boot_id: self.boot_id,
            operation: author.operation,
            pid: author.writer.pid,
            start_time: author.writer.start_time,
            verb: author.writer.verb.clone(),
            durable_seq: durable,
            prev_hash: mark.hash,
        };
        Frame { header, entries }
    }
}

/// On whose behalf a frame is written.
struct Author<'a> {
    writer: &'a Writer,
    operation: Uuid,
    ordinal: u32,
}

impl<'a> Author<'a> {
    /// The journal itself, in the process of `writer`.
    fn journal(writer: &'a Writer) -> Self {
        Self { writer, operation: Uuid::nil(), ordinal: 0 }
    }
}

impl State {
    /// The durable end as published, with the file opened on first use.
    fn read_head(&mut self, journal: &SegmentedJournal) -> Result<Option<Head>, JournalError> {
        if self.head.is_none() {
            self.head = HeadFile::open(&journal.directory.head())?;
        }
        let head = self.head.as_ref().map_or(Ok(None), HeadFile::read)?;
        match head {
            Some(head) if head.root != journal.root => Err(JournalError::ForeignRoot {
                path: journal.directory.head(),
                expected: journal.root,
                found: head.root,
            }),
            head => Ok(head),
        }
    }
}

/// The root that an existing journal names.
fn find_root(directory: &Directory) -> Result<Option<Uuid>, JournalError> {
    for first in directory.list()?.into_iter().rev() {
        if let Some(segment) = directory.open_segment(first)? {
            return Ok(Some(segment.header.root));
        }
    }
    Ok(None)
}

fn create(directory: &Directory, options: &Options) -> Result<Uuid, JournalError> {
    directory.prepare()?;
    let creator = Writer::of_this_process(Uuid::nil(), "journal create")
        .map_err(JournalError::io("read", Path::new("/proc/self/stat")))?;
    let deadline = Instant::now() + options.create_timeout;
    let _lock = Lock::acquire(&directory.lock(), &creator, deadline)?;
    (options.boundary)("journal.create.locked");
    if let Some(root) = find_root(directory)? {
        return Ok(root);
    }
    refuse_lost_segments(directory)?;
    let root = options.root.unwrap_or_else(Uuid::new_v4);
    directory.create(root, (options.clock.wall_us)(), options.boundary)?;
    (options.boundary)("journal.create.segment");
    Ok(root)
}

/// Without a segment there was no journal yet, unless something else knows of one.
fn refuse_lost_segments(directory: &Directory) -> Result<(), JournalError> {
    let head = HeadFile::open(&directory.head())?.map_or(Ok(None), |file| file.read())?;
    let by_head = head.map(|head| ("HEAD".to_owned(), head.mark.seq));
    let proofs = proof::read(directory.path()).into_iter();
    let known = proofs.map(|proof| (proof.path.display().to_string(), proof.position.seq));
    let Some((file, seq)) = by_head.into_iter().chain(known).max_by_key(|(_, seq)| *seq) else {
        return Ok(());
    };
    Err(JournalError::Damaged {
        path: directory.segments(),
        seq: 1,
        offset: 0,
        what: format!("all segments are gone, {file} knows of {seq} events"),
    })
}

impl Journal for SegmentedJournal {
    fn transact<F: Fold, T>(
        &mut self,
        fold: &mut F,
        writer: &Writer,
        deadline: Instant,
        decide: impl FnOnce(&F) -> Result<Proposal<T>, F::Error>,
    ) -> Result<Outcome<T>, JournalError> {
        let mut state = self.lock_state();
        transact::transact(self, &mut state, fold, writer, deadline, decide)
    }

    fn transact_each<F: Fold, T>(
        &mut self,
        fold: &mut F,
        writer: &Writer,
        deadline: Instant,
        decide: impl FnMut(&F) -> Option<Result<Proposal<T>, F::Error>>,
    ) -> Result<Vec<Outcome<T>>, JournalError> {
        let mut state = self.lock_state();
        transact::transact_each(self, &mut state, fold, writer, deadline, decide)
    }

    fn refresh<F: Fold>(&self, fold: &mut F) -> Result<(), JournalError> {
        read::refresh(self, &mut self.lock_state(), fold)
    }

    fn look_ahead<F: Fold>(&self, fold: &mut F) -> Result<(), JournalError> {
        read::look_ahead(self, &mut self.lock_state(), fold)
    }

    fn frames_from(
        &self,
        seq: Seq,
    ) -> Result<impl Iterator<Item = Result<(Frame, Hash), JournalError>>, JournalError> {
        self.frames(seq)
    }

    fn durable(&self) -> Result<Position, JournalError> {
        read::durable(self, &mut self.lock_state())
    }
}

/// What is to be made durable after the lock is released.
struct Owed {
    segment: Arc<Segment>,
    mark: Mark,
}

impl SegmentedJournal {
    /// Makes `owed` durable and says so in `HEAD`, unless somebody else has.
    fn settle(&self, state: &mut State, owed: &Owed) -> Result<(), JournalError> {
        // If it cannot be told what others have synced, this one syncs.
        let head = state.read_head(self).unwrap_or_default();
        let by_others =
            head.is_some_and(|head| head.boot_id == self.boot_id && head.mark.seq >= owed.mark.seq);
        if !by_others {
            self.boundary("journal.sync.before");
            owed.segment.sync()?;
            self.boundary("journal.sync.after");
            self.publish(state, owed.mark);
        }
        if let Some(view) = &mut state.view {
            view.learn(owed.mark.seq);
        }
        Ok(())
    }

    /// Says in `HEAD` that everything up to `mark` is durable. It is, whether that can be said or not: without it the next
    /// ones write and sync the same frames once more.
    fn publish(&self, state: &State, mark: Mark) {
        let head = Head { mark, boot_id: self.boot_id, root: self.root };
        if let Some(file) = &state.head
            && let Err(error) = file.publish(&head)
        {
            tracing::warn!("{error}; nothing is lost, but the disk needs a look");
        }
        self.boundary("journal.head.after");
    }
}
