//! Making the journal of a root from a history that comes from elsewhere, at once or not at all.
//!
//! ```text
//!  <dir>.placing/   locked; whatever a dead one left is cleared      staging.begun
//!    stub, segments, HEAD: written, every frame checked, synced      staging.filled
//!    an event that says where all this comes from                    (a transaction like any other)
//!  renamed to <dir>, which must not be there                         staging.before-place, staging.placed
//! ```
//!
//! A process that dies before the last step leaves a directory that means nothing and that the next one clears; one that
//! dies after it leaves a journal which says of itself what it is. So nobody ever meets half a journal, or one that
//! passes for the original.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use uuid::Uuid;

use crate::backup::rename_new;
use crate::bundle::{BundleFault, Bundled};
use crate::checkpoint::{CheckpointError, Stub, stub};
use crate::clock::boot_id;
use crate::cursor::{Mark, check_known};
use crate::directory::{Directory, sync_dir};
use crate::error::{AnyError, JournalError};
use crate::export::lines::LinesFault;
use crate::frame::{Entry, Position, Seq, Writer};
use crate::head::{Head, HeadFile};
use crate::journal::{Journal as _, Proposal, Unfolded};
use crate::reserved::{JournalEvent, sealed_next};
use crate::segment::{HEADER_LEN, SegmentHeader};
use crate::segmented::{Options, SegmentedJournal};

/// Nobody else uses a journal that has no name yet.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why no journal was made. Nothing was placed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// The journal that is being made.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The file that it is made from.
    #[error(transparent)]
    Bundle(#[from] BundleFault),
    /// The lines that it is made from.
    #[error(transparent)]
    Lines(#[from] LinesFault),
    /// The source is another one than it should be; the sentence says it all.
    #[error("{0}")]
    Source(String),
    /// The state before its first event.
    #[error("the state that it begins with is damaged: {0}; use another copy")]
    Stub(#[from] CheckpointError),
    /// A call failed.
    #[error("cannot {action} {}: {source}; nothing was placed", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is a journal, or something in its place.
    #[error(
        "{} is there already, and nothing is ever written over a journal; move it aside, as in `mv {} {}.before`, and try again",
        path.display(), path.display(), path.display()
    )]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// Another process does the same.
    #[error("another process is making {}; wait for it to end", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The frames are no history of this kind.
    #[error("{what} (seq {seq}); use another copy")]
    Chain {
        /// First sequence number of the frame.
        seq: Seq,
        /// What is wrong.
        what: &'static str,
    },
    /// An event that the caller does not take.
    #[error("event {seq} cannot be taken over: {source}")]
    Event {
        /// Its sequence number.
        seq: Seq,
        /// Why.
        source: AnyError,
    },
}

impl StagingError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// A journal in the making, under a name that means nothing. Dropped, it is removed.
#[derive(Debug)]
pub struct Staging {
    /// The name that it will get.
    place: PathBuf,
    directory: Directory,
    root: Uuid,
    options: Options,
    /// Holds the lock on the directory.
    _lock: File,
    live: Option<Live>,
    placed: bool,
}

/// The segment that is being written.
#[derive(Debug)]
struct Live {
    out: BufWriter<File>,
    path: PathBuf,
    mark: Mark,
}

impl Staging {
    /// Begins a journal of `root` that will be placed at `place`, whose parent must exist.
    ///
    /// # Errors
    ///
    /// If something is at `place`, or another process is at the same.
    pub fn begin(place: &Path, root: Uuid, options: Options) -> Result<Self, StagingError> {
        refuse_occupied(place)?;
        let mut name = place.as_os_str().to_owned();
        name.push(".placing");
        let path = PathBuf::from(name);
        let lock = take(&path, place)?;
        clear(&path)?;
        let directory = Directory::new(&path);
        directory.prepare()?;
        (options.boundary)("staging.begun");
        let place = place.to_owned();
        Ok(Self { place, directory, root, options, _lock: lock, live: None, placed: false })
    }

    /// Takes over the state before the first event; `copy` writes it. It is believed once the caller knows that the
    /// source is whole, and [`fill`](Self::fill) found that the frames continue it.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn stub<E>(
        &mut self,
        before: Position,
        copy: impl FnOnce(&mut File) -> Result<(), E>,
    ) -> Result<(), StagingError>
    where
        StagingError: From<E>,
    {
        let dir = self.directory.path();
        stub::make_dir(dir)?;
        let path = stub::path_of(dir, before.seq);
        let mut file = File::create(&path).map_err(StagingError::io("create", &path))?;
        copy(&mut file)?;
        file.sync_all().map_err(StagingError::io("sync", &path))?;
        sync_dir(&dir.join("stub"))?;
        Ok(())
    }

    /// Writes the frames, each of which must continue the one before it, into segments; returns where they end. `check`
    /// may refuse an event.
    ///
    /// # Errors
    ///
    /// Those of the source, and frames that are not the history after `before`.
    pub fn fill<E>(
        &mut self,
        before: Position,
        frames: impl Iterator<Item = Result<Bundled, E>>,
        mut check: impl FnMut(&Entry) -> Result<(), AnyError>,
    ) -> Result<Position, StagingError>
    where
        StagingError: From<E>,
    {
        let header = SegmentHeader {
            root: self.root,
            first: before.seq.saturating_add(1),
            prev_hash: before.hash,
            created_us: (self.options.clock.wall_us)(),
            prev_end: 0,
            prev_last_len: 0,
        };
        self.begin_segment(&header)?;
        for bundled in frames {
            let bundled = bundled?;
            for (seq, entry) in bundled.frame.events() {
                check(entry).map_err(|source| StagingError::Event { seq, source })?;
            }
            self.push(&bundled)?;
        }
        let end = self.end_segment()?;
        if before.seq > 0 {
            self.check_stub(before)?;
        }
        self.publish(end)?;
        self.directory.sync_names()?;
        (self.options.boundary)("staging.filled");
        Ok(end.position())
    }

    fn check_stub(&self, before: Position) -> Result<(), StagingError> {
        let chain = |what| StagingError::Chain { seq: before.seq, what };
        let stub = Stub::latest(self.directory.path())?;
        let stub = stub.ok_or_else(|| chain("the state before its first event is missing"))?;
        stub.verify()?;
        if stub.position() == before {
            Ok(())
        } else {
            Err(chain("its first event does not continue the state that it begins with"))
        }
    }

    fn begin_segment(&mut self, header: &SegmentHeader) -> Result<(), StagingError> {
        self.directory.create_segment(header)?;
        let path = self.directory.segment(header.first);
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(StagingError::io("open", &path))?;
        let mark = Mark {
            segment: header.first,
            seq: header.first.saturating_sub(1),
            hash: header.prev_hash,
            offset: HEADER_LEN,
            last_len: 0,
        };
        let out = BufWriter::with_capacity(256 * 1024, file);
        self.live = Some(Live { out, path, mark });
        Ok(())
    }

    /// Makes the segment at hand durable; says where it ends.
    fn end_segment(&mut self) -> Result<Mark, StagingError> {
        let Some(mut live) = self.live.take() else {
            return Err(JournalError::Missing { path: self.place.clone() }.into());
        };
        let synced = live.out.flush().and_then(|()| live.out.get_ref().sync_all());
        synced.map_err(StagingError::io("write", &live.path))?;
        Ok(live.mark)
    }

    fn push(&mut self, bundled: &Bundled) -> Result<(), StagingError> {
        let Bundled { frame, hash, bytes } = bundled;
        let header = &frame.header;
        let Some(live) = &mut self.live else {
            return Err(JournalError::Missing { path: self.place.clone() }.into());
        };
        let chain = |what| Err(StagingError::Chain { seq: header.seq, what });
        if header.seq != live.mark.seq.saturating_add(1) {
            return chain("events are missing before it");
        }
        if header.prev_hash != live.mark.hash || header.prev_len != live.mark.last_len {
            return chain("it does not continue the one before");
        }
        check_known(frame, &live.path)?;
        live.out.write_all(bytes).map_err(StagingError::io("write", &live.path))?;
        live.mark = live.mark.after(frame, *hash, bytes.len());
        let Some(next) = frame.entries.last().and_then(sealed_next) else { return Ok(()) };
        if next != live.mark.seq.saturating_add(1) {
            return chain("it seals the way to a segment that cannot follow");
        }
        let (created_us, end) = (header.wall_us, self.end_segment()?);
        self.begin_segment(&SegmentHeader {
            root: self.root,
            first: next,
            prev_hash: end.hash,
            created_us,
            prev_end: end.offset,
            prev_last_len: end.last_len,
        })
    }

    /// Everything is synced: HEAD says so.
    fn publish(&self, mark: Mark) -> Result<(), StagingError> {
        self.directory.create_head()?;
        if mark.seq == 0 {
            return Ok(());
        }
        let boot_id = boot_id(&self.options.boot_id_path)?;
        if let Some(head) = HeadFile::open(&self.directory.head())? {
            head.publish(&Head { mark, boot_id, root: self.root })?;
        }
        Ok(())
    }

    /// Records where the history comes from, and gives the journal its name. `end` is what [`fill`](Self::fill)
    /// returned.
    ///
    /// # Errors
    ///
    /// If something has come to its place meanwhile, or a call fails.
    pub fn place(
        mut self,
        end: Position,
        origin: &JournalEvent,
        writer: &Writer,
    ) -> Result<(), StagingError> {
        let boundary = self.options.boundary;
        let options = Options { root: Some(self.root), ..self.options.clone() };
        let mut journal = SegmentedJournal::open(self.directory.path(), options)?;
        let entry = origin.to_entry().map_err(JournalError::from)?;
        let deadline = Instant::now() + PATIENCE;
        journal.transact(&mut Unfolded(end), writer, deadline, |_| {
            Ok(Proposal::Append(vec![entry], ()))
        })?;
        drop(journal);
        self.directory.sync_names()?;
        boundary("staging.before-place");
        let (from, to) = (self.directory.path(), self.place.as_path());
        refuse_occupied(to)?;
        // An empty directory is in nobody's way, but it is in that of the renaming.
        let _ = std::fs::remove_dir(to);
        rename_new(from, to).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => StagingError::Exists { path: to.to_owned() },
            _ => StagingError::io("rename", from)(error),
        })?;
        self.placed = true;
        if let Some(parent) = to.parent() {
            sync_dir(parent)?;
        }
        boundary("staging.placed");
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.placed {
            // What stays is cleared by the next one.
            let _ = std::fs::remove_dir_all(self.directory.path());
        }
    }
}

/// Whether anything is at the place of a journal but an empty directory.
fn refuse_occupied(place: &Path) -> Result<(), StagingError> {
    let free = match place.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(StagingError::io("look at", place)(error)),
        Ok(meta) if meta.is_dir() => {
            let mut entries = std::fs::read_dir(place).map_err(StagingError::io("list", place))?;
            entries.next().is_none()
        }
        Ok(_) => false,
    };
    if free { Ok(()) } else { Err(StagingError::Exists { path: place.to_owned() }) }
}

/// Makes the directory if it is not there, and locks it. It may be renamed or removed by its last holder meanwhile.
fn take(path: &Path, place: &Path) -> Result<File, StagingError> {
    loop {
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StagingError::io("create", path)(error));
            }
            _ => {}
        }
        let meta = path.symlink_metadata().map_err(StagingError::io("look at", path))?;
        if !meta.is_dir() {
            return Err(StagingError::Exists { path: path.to_owned() });
        }
        let dir = File::open(path).map_err(StagingError::io("open", path))?;
        match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(StagingError::Busy { path: place.to_owned() }),
            Err(errno) => return Err(StagingError::io("lock", path)(errno.into())),
        }
        let held = dir.metadata().map_err(StagingError::io("look at", path))?;
        let named = path.symlink_metadata();
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
            return Ok(dir);
        }
    }
}

/// Removes what a dead process left in the directory.
fn clear(path: &Path) -> Result<(), StagingError> {
    for entry in std::fs::read_dir(path).map_err(StagingError::io("list", path))? {
        let entry = entry.map_err(StagingError::io("list", path))?;
        let (leftover, is_dir) = (entry.path(), entry.file_type());
        let removed = match is_dir.map_err(StagingError::io("look at", &leftover))?.is_dir() {
            true => std::fs::remove_dir_all(&leftover),
            false => std::fs::remove_file(&leftover),
        };
        removed.map_err(StagingError::io("remove", &leftover))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
