//! Moving old history away.
//!
//! ```text
//!  1 sealed segments copied to DIR/seg, synced, compared         archive.copied
//!  2 stub: the state at the end of what was copied               archive.stub
//!  3 JournalArchived                                             archive.recorded
//!  4 the segments removed, the oldest first                      archive.removed (each)
//!  5 what the event store had of them removed                    archive.store
//! ```
//!
//! Until a segment is removed all of history is here; before it is, it is there. A process that dies in between leaves
//! both, and doing the same again goes on. The directory can be read as a journal: it begins where this one did, and
//! ends with an empty segment that says what comes next, so that the next archive may go into the same directory.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::checkpoint::{CheckpointError, Stub, StubContent, stub};
use crate::cursor::{Cursor, Mark};
use crate::directory::{Directory, sync_dir};
use crate::error::JournalError;
use crate::files;
use crate::frame::{Frame, Hash, Position, Seq, Writer};
use crate::journal::{Fold, Journal as _, Proposal};
use crate::reserved::JournalEvent;
use crate::segment::{HEADER_LEN, SegmentHeader};
use crate::segmented::{Options, SegmentedJournal, read_durable};
use crate::store::{Store, StoreError, StoreOptions};

/// Why history was not moved. What was not moved is where it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The state at the end of what is moved.
    #[error(transparent)]
    Stub(#[from] CheckpointError),
    /// The event store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A call failed.
    #[error("cannot {action} {}: {source}; nothing was removed that is not in the archive", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process does the same.
    #[error("another process is moving history of this journal; wait for it to end")]
    Busy,
    /// The event store is in use.
    #[error(
        "the event store is in use by another process, mostly the daemon; stop it, do this again, and start it again"
    )]
    StoreBusy,
    /// Something else is in the archive's place.
    #[error("{} is there already, and is not what would be put there; give another directory", path.display())]
    Occupied {
        /// The file.
        path: PathBuf,
    },
    /// An earlier move was not finished.
    #[error(
        "moving events up to {up_to} to {} was begun and not finished; finish that first: `cocoon journal archive --before {} --to {}`",
        to.display(), up_to + 1, to.display()
    )]
    Unfinished {
        /// The last event that was to be moved.
        up_to: Seq,
        /// Where to.
        to: PathBuf,
    },
}

impl ArchiveError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// Up to where history is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Segments all of whose events are before this one.
    Seq(Seq),
    /// Segments that were full by this time, microseconds since 1970.
    Time(i64),
}

/// The right to move history away, and what would be moved.
#[derive(Debug)]
pub struct Archive {
    directory: Directory,
    options: Options,
    to: PathBuf,
    /// Segments to move, by their first sequence numbers, ascending.
    moving: Vec<Seq>,
    /// The one with which history begins then.
    first: Seq,
    stub: Option<Stub>,
    /// Nobody feeds it what is about to go.
    store: Store,
    _lock: files::Held,
}

/// What was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    /// First event that was moved.
    pub from: Seq,
    /// First event that stays.
    pub first: Seq,
    /// Segments that were moved.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Archive {
    /// Looks at what can be moved: sealed segments, never the one that is written to. `Ok(None)` if there is none.
    ///
    /// # Errors
    ///
    /// If there is no journal, another process moves history, or an earlier move was not finished.
    pub fn begin(
        dir: &Path,
        before: Before,
        to: &Path,
        options: Options,
    ) -> Result<Option<Self>, ArchiveError> {
        let directory = Directory::new(dir);
        if directory.list()?.is_empty() {
            return Err(JournalError::Missing { path: dir.to_owned() }.into());
        }
        let path = dir.join("ARCHIVE");
        let lock = files::try_lock(&path).map_err(ArchiveError::io("lock", &path))?;
        let lock = lock.ok_or(ArchiveError::Busy)?;
        let to = absolute(to)?;
        let stub = Stub::latest(dir)?;
        let listed = directory.list()?;
        refuse_lost_beginning(&directory, &listed, stub.as_ref())?;
        let begun = unfinished(&listed, stub.as_ref(), &to)?;
        let first = cut(&directory, &listed, before)?.max(begun);
        let Some(first) = first else { return Ok(None) };
        let moving = listed.into_iter().filter(|segment| *segment < first).collect::<Vec<_>>();
        if moving.is_empty() {
            return Ok(None);
        }
        let boundary = options.boundary;
        let store = Store::try_open_with(dir, StoreOptions { boundary })?;
        let store = store.ok_or(ArchiveError::StoreBusy)?;
        Ok(Some(Self { directory, options, to, moving, first, stub, store, _lock: lock }))
    }

    /// The state that is already there to go on from: that at the end of what was moved before.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn previous(&self) -> Result<Option<Stub>, ArchiveError> {
        Ok(Stub::latest(self.directory.path())?)
    }

    /// Last event that is to be moved.
    #[must_use]
    pub fn up_to(&self) -> Seq {
        self.first.saturating_sub(1)
    }

    /// Copies the segments, and visits those of their frames that follow what was moved before. `progress` is told of
    /// segments: how many are done, of how many.
    ///
    /// # Errors
    ///
    /// If a segment is damaged, or cannot be copied; or an error of `visit`.
    pub fn copy<E: From<ArchiveError>>(
        &self,
        mut visit: impl FnMut(&Frame, Hash) -> Result<(), E>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Position, E> {
        let known = self.stub.as_ref().map_or(0, |stub| stub.position().seq);
        let end = self.walk(known, &mut visit)?;
        let to = self.to.join("seg");
        make_dirs(&to)?;
        self.refuse_own_place(&to)?;
        for (done, first) in (1..).zip(&self.moving) {
            copy_file(&self.directory.segment(*first), &name_in(&to, *first))?;
            progress(done, self.moving.len());
        }
        self.copy_stub()?;
        self.copy_header(&to)?;
        sync_dir(&to).map_err(ArchiveError::from)?;
        sync_dir(&self.to).map_err(ArchiveError::from)?;
        (self.options.boundary)("archive.copied");
        Ok(end)
    }

    /// A copy onto itself would be removed with the original.
    fn refuse_own_place(&self, to: &Path) -> Result<(), ArchiveError> {
        let real = |path: &Path| fs::canonicalize(path).map_err(ArchiveError::io("find", path));
        let journal = real(self.directory.path())?;
        if real(to)?.starts_with(&journal)
            || real(to)?.starts_with(real(&self.directory.segments())?)
        {
            return Err(ArchiveError::Occupied { path: self.to.clone() });
        }
        Ok(())
    }

    /// Reads every frame that is to be moved, which proves their chain up to the segment that stays.
    fn walk<E: From<ArchiveError>>(
        &self,
        known: Seq,
        visit: &mut impl FnMut(&Frame, Hash) -> Result<(), E>,
    ) -> Result<Position, E> {
        let missing = || JournalError::Missing { path: self.directory.path().to_owned() };
        let begin = self.moving.first().copied().unwrap_or(self.first);
        let cursor = Cursor::at_segment(&self.directory, begin).map_err(ArchiveError::from)?;
        let mut cursor = cursor.ok_or_else(|| ArchiveError::from(missing()))?;
        while cursor.mark().seq < self.up_to() {
            let found = read_durable(&mut cursor).map_err(ArchiveError::from)?;
            if found.after.seq > known {
                visit(&found.frame, found.hash)?;
            }
        }
        let end = cursor.mark().position();
        let stays = self.directory.open_segment(self.first).map_err(ArchiveError::from)?;
        let stays = stays.ok_or_else(|| ArchiveError::from(missing()))?;
        if Mark::start_of(&stays).position() != end {
            let error = JournalError::Damaged {
                path: stays.path,
                seq: self.first,
                offset: 0,
                what: "it does not continue the segments before it".to_owned(),
            };
            return Err(ArchiveError::from(error).into());
        }
        Ok(end)
    }

    /// What was moved before begins with a state: the archive needs it too.
    fn copy_stub(&self) -> Result<(), ArchiveError> {
        let begins = self.moving.first().copied().unwrap_or_default();
        let Some(stub) = self.stub.as_ref().filter(|stub| stub.position().seq + 1 == begins) else {
            return Ok(());
        };
        let to = stub::path_of(&self.to, stub.position().seq);
        if let Some(parent) = to.parent() {
            make_dirs(parent)?;
            copy_file(stub.path(), &to)?;
            sync_dir(parent)?;
        }
        Ok(())
    }

    /// The archive ends with the header of the segment that stays, and nothing in it.
    fn copy_header(&self, to: &Path) -> Result<(), ArchiveError> {
        let Some(stays) = self.directory.open_segment(self.first)? else { return Ok(()) };
        let path = name_in(to, self.first);
        if path.exists() {
            return same_beginning(&path, &stays.header);
        }
        files::publish(&path, &stays.header.encode()).map_err(ArchiveError::io("write", &path))
    }

    /// Leaves the stub in the place of what was copied, records it, and removes the segments. `end` is what
    /// [`copy`](Self::copy) returned; `state` and `remembered` are as for [`StubContent`], and not needed if the stub is
    /// there already.
    ///
    /// # Errors
    ///
    /// If any of it fails. Doing the same again goes on.
    pub fn finish(
        mut self,
        end: Position,
        state: Vec<(Vec<u8>, Vec<u8>)>,
        remembered: Vec<Vec<u8>>,
        writer: &Writer,
        deadline: Instant,
    ) -> Result<Archived, ArchiveError> {
        let dir = self.directory.path();
        let boundary = self.options.boundary;
        let resumed = self.stub.as_ref().is_some_and(|stub| stub.position() == end);
        if !resumed {
            let moved_to = self.to.clone();
            let content = StubContent { position: end, moved_to, state, remembered };
            Stub::write(dir, &content)?.verify()?;
        }
        boundary("archive.stub");
        let from = self.moving.first().copied().unwrap_or_default();
        let event = JournalEvent::Archived { from, first: self.first, hash: end.hash };
        self.record(&event, end, writer, deadline)?;
        boundary("archive.recorded");
        let mut bytes = 0;
        for first in &self.moving {
            let path = self.directory.segment(*first);
            bytes += fs::metadata(&path).map_or(0, |meta| meta.len());
            files::remove(&path).map_err(ArchiveError::io("remove", &path))?;
            // In this order on disk, too: what remains is always the end of history.
            sync_dir(&self.directory.segments())?;
            boundary("archive.removed");
        }
        self.store.retire(self.first)?;
        Stub::clean(self.directory.path())?;
        boundary("archive.store");
        Ok(Archived { from, first: self.first, segments: self.moving.len(), bytes })
    }

    /// Records the move, unless a process that died amid it did.
    fn record(
        &self,
        event: &JournalEvent,
        end: Position,
        writer: &Writer,
        deadline: Instant,
    ) -> Result<(), ArchiveError> {
        let mut journal = SegmentedJournal::open(self.directory.path(), self.options.clone())?;
        let mut fold = Recorded { position: end, first: self.first, is_recorded: false };
        let entry = event.to_entry().map_err(JournalError::from)?;
        journal.transact(&mut fold, writer, deadline, |fold| {
            Ok(match fold.is_recorded {
                true => Proposal::Answer(()),
                false => Proposal::Append(vec![entry], ()),
            })
        })?;
        Ok(())
    }
}

/// Whether a move is recorded in what stays.
struct Recorded {
    position: Position,
    first: Seq,
    is_recorded: bool,
}

impl Fold for Recorded {
    type Error = std::convert::Infallible;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Self::Error> {
        let mut events = frame.entries.iter().filter_map(JournalEvent::from_entry);
        self.is_recorded |= events.any(
            |event| matches!(event, JournalEvent::Archived { first, .. } if first == self.first),
        );
        self.position = frame.position(hash);
        Ok(())
    }
}

/// The segment with which history would begin, by what is wanted; the first one if nothing can be moved.
fn cut(directory: &Directory, listed: &[Seq], before: Before) -> Result<Option<Seq>, ArchiveError> {
    let mut cut = None;
    for (at, first) in listed.iter().enumerate() {
        let Some(segment) = directory.open_segment(*first)? else { continue };
        let fits = match before {
            Before::Seq(seq) => *first <= seq,
            Before::Time(us) => segment.header.created_us <= us,
        };
        // A segment without a frame may be one that no seal names.
        let is_last = at + 1 == listed.len();
        if at > 0 && (!fits || (is_last && segment.len()? <= HEADER_LEN)) {
            break;
        }
        cut = Some(*first);
    }
    Ok(cut)
}

/// The state at the end of what goes cannot be had where what is before it is lost.
fn refuse_lost_beginning(
    directory: &Directory,
    listed: &[Seq],
    stub: Option<&Stub>,
) -> Result<(), JournalError> {
    let first = stub.map_or(1, |stub| stub.position().seq.saturating_add(1));
    if listed.first().is_some_and(|listed| *listed <= first) {
        return Ok(());
    }
    let what = "the segment with which history begins is not there".to_owned();
    Err(JournalError::Damaged { path: directory.segment(first), seq: first, offset: 0, what })
}

/// The segment with which history was to begin when a mover died before all others were removed.
fn unfinished(listed: &[Seq], stub: Option<&Stub>, to: &Path) -> Result<Option<Seq>, ArchiveError> {
    let Some(stub) = stub else { return Ok(None) };
    let up_to = stub.position().seq;
    if listed.first().is_none_or(|first| *first > up_to) {
        return Ok(None);
    }
    match stub.moved_to()? {
        Some(begun) if begun != to => Err(ArchiveError::Unfinished { up_to, to: begun }),
        _ => Ok(Some(up_to.saturating_add(1))),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, ArchiveError> {
    std::path::absolute(path).map_err(ArchiveError::io("find", path))
}

fn name_in(dir: &Path, first: Seq) -> PathBuf {
    dir.join(format!("{first:020}.seg"))
}

fn make_dirs(path: &Path) -> Result<(), ArchiveError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(ArchiveError::io("create", path))?;
    let synced = path.parent().map_or(Ok(()), files::sync_dir);
    synced.map_err(ArchiveError::io("sync the directory of", path))
}

/// Copies a file durably, and reads the copy back. One that is there must be the same, or be its beginning.
fn copy_file(from: &Path, to: &Path) -> Result<(), ArchiveError> {
    let content = fs::read(from).map_err(ArchiveError::io("read", from))?;
    match fs::symlink_metadata(to) {
        Ok(meta) if !meta.is_file() => return Err(ArchiveError::Occupied { path: to.to_owned() }),
        Ok(_) => {
            let there = read_upto(to, content.len()).map_err(ArchiveError::io("read", to))?;
            if there == content {
                return Ok(());
            }
            let header = usize::try_from(HEADER_LEN).unwrap_or(usize::MAX);
            if there.len() > header || !content.starts_with(&there) {
                return Err(ArchiveError::Occupied { path: to.to_owned() });
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(ArchiveError::io("look at", to)(error)),
    }
    write_copy(to, &content).map_err(ArchiveError::io("write", to))?;
    let copy = fs::read(to).map_err(ArchiveError::io("read", to))?;
    if copy == content { Ok(()) } else { Err(ArchiveError::Occupied { path: to.to_owned() }) }
}

fn write_copy(to: &Path, content: &[u8]) -> io::Result<()> {
    let writing = files::writing_path(to);
    let mut file = files::create(&writing)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&writing, to)?;
    files::sync_parent(to)
}

/// At most one byte more than `len`, so that a longer file differs.
fn read_upto(path: &Path, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(len).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn same_beginning(path: &Path, header: &SegmentHeader) -> Result<(), ArchiveError> {
    let len = usize::try_from(HEADER_LEN).unwrap_or(usize::MAX);
    let there = read_upto(path, len).map_err(ArchiveError::io("read", path))?;
    if there.starts_with(&header.encode()) {
        Ok(())
    } else {
        Err(ArchiveError::Occupied { path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests;
