//! Copying a journal while it is in use.
//!
//! ```text
//!  what is durable now --> segments, frame by frame --> FILE.writing --synced, renamed--> FILE
//! ```
//!
//! Everything that was acknowledged before the backup began is in it, and nothing that is not durable. Writers are not
//! held up: the end is looked at as any decision looks at it, and everything before it is read without a lock. sled is not
//! touched, and what is written meanwhile is left for the next backup.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use uuid::Uuid;

use crate::bundle::{BundleEnd, BundleHeader, BundleWriter};
use crate::checkpoint::{CheckpointError, Stub};
use crate::cursor::Cursor;
use crate::directory::{Directory, sync_dir};
use crate::error::JournalError;
use crate::files;
use crate::frame::{Position, Seq, Writer};
use crate::journal::{Journal as _, Proposal, Unfolded};
use crate::segmented::{Options, SegmentedJournal, read_durable};

/// How long to wait for the moment in which the end of the journal is looked at; it is one like that of any decision.
const PATIENCE: Duration = Duration::from_secs(10);

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// The root that it is of.
    pub root: Uuid,
    /// First sequence number in it.
    pub first: Seq,
    /// Wall clock when it was begun, microseconds since 1970.
    pub made_us: i64,
    /// What it holds, and its digest.
    pub end: BundleEnd,
}

/// Why no backup was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The state before the first event.
    #[error(transparent)]
    Stub(#[from] CheckpointError),
    /// The output failed.
    #[error("cannot write the backup to {}: {source}; nothing was left under that name", path.display())]
    Output {
        /// Where to.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Something is there already.
    #[error("{} exists already, and backups replace nothing; give another name", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Another process writes the same backup.
    #[error("another process is writing {}; wait for it, or give another name", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
}

/// Writes a backup of the journal in `dir`. `progress` is told how far it is: the last sequence number that was written,
/// and the last that will be.
///
/// # Errors
///
/// If there is no journal, if it cannot be read, or if `out` fails.
pub fn backup(
    dir: &Path,
    out: &mut impl Write,
    progress: &mut dyn FnMut(Seq, Seq),
) -> Result<Backup, BackupError> {
    let directory = Directory::new(dir);
    if directory.list()?.is_empty() {
        return Err(JournalError::Missing { path: dir.to_owned() }.into());
    }
    // Nothing is created: there are segments.
    let options = Options::default();
    let made_us = (options.clock.wall_us)();
    let mut journal = SegmentedJournal::open(dir, options)?;
    let until = durable_end(&mut journal)?;
    let stub = Stub::latest(dir)?;
    let mut cursor = first_segment(&directory, stub.as_ref())?;
    let before = cursor.mark().position();
    let stub_file = stub.map(|stub| open_stub(&stub)).transpose()?;
    let header = BundleHeader {
        is_backup: true,
        is_redacted: false,
        root: journal.root(),
        first: before.seq.saturating_add(1),
        prev_hash: before.hash,
        made_us,
        stub_len: stub_file.as_ref().map_or(0, |(_, len)| *len),
    };
    let output = |source| BackupError::Output { path: PathBuf::from("output"), source };
    let mut bundle = BundleWriter::new(out, &header).map_err(output)?;
    if let Some((file, len)) = stub_file {
        bundle.stub(file, len).map_err(output)?;
    }
    while bundle.last().seq < until.seq {
        let found = read_durable(&mut cursor)?;
        bundle.frame(&found.frame, found.hash, &found.bytes).map_err(output)?;
        progress(bundle.last().seq, until.seq);
    }
    if bundle.last() != until {
        return Err(JournalError::Diverged { folded: until, found: bundle.last() }.into());
    }
    let end = bundle.finish().map_err(output)?;
    Ok(Backup { root: header.root, first: header.first, made_us, end })
}

/// A cursor at the segment with which history begins, which is that after the stub, or the very first.
fn first_segment(directory: &Directory, stub: Option<&Stub>) -> Result<Cursor, JournalError> {
    let position = stub.map(Stub::position).unwrap_or_default();
    let first = position.seq.saturating_add(1);
    let lost = |what: String| JournalError::Damaged {
        path: directory.segment(first),
        seq: first,
        offset: 0,
        what,
    };
    let Some(cursor) = Cursor::at_segment(directory, first)? else {
        return Err(lost("the segment with which history begins is not there".to_owned()));
    };
    if cursor.mark().position() == position {
        Ok(cursor)
    } else {
        Err(lost("it does not continue what was moved away".to_owned()))
    }
}

fn open_stub(stub: &Stub) -> Result<(File, u64), BackupError> {
    // What is damaged is not handed on.
    stub.verify()?;
    let path = stub.path();
    let file = File::open(path).map_err(JournalError::io("open", path))?;
    let len = file.metadata().map_err(JournalError::io("look at", path))?.len();
    Ok((file, len))
}

/// Writes a backup into a new file, which appears under its name whole and durable, or not at all.
///
/// # Errors
///
/// As [`backup`]; and if there is something under that name.
pub fn backup_to(
    dir: &Path,
    path: &Path,
    boundary: fn(&'static str),
    progress: &mut dyn FnMut(Seq, Seq),
) -> Result<Backup, BackupError> {
    let output = |source| BackupError::Output { path: path.to_owned(), source };
    let mut name = path.as_os_str().to_owned();
    name.push(".writing");
    let writing = PathBuf::from(name);
    let file = begin(path, &writing)?;
    boundary("journal.backup.begun");
    let mut out = BufWriter::with_capacity(256 * 1024, &file);
    let made = backup(dir, &mut out, progress).and_then(|made| {
        out.flush().and_then(|()| file.sync_all()).map_err(output)?;
        drop(out);
        boundary("journal.backup.written");
        name_it(&writing, path)?;
        boundary("journal.backup.named");
        Ok(made)
    });
    if made.is_err() {
        // It is of no use to anybody, and the next one would only overwrite it.
        let _ = std::fs::remove_file(&writing);
    }
    made.map_err(|error| match error {
        BackupError::Output { source, .. } => output(source),
        error => error,
    })
}

/// Opens the file under its temporary name, whatever a dead writer left there.
fn begin(path: &Path, writing: &Path) -> Result<File, BackupError> {
    let output = |source| BackupError::Output { path: path.to_owned(), source };
    if path.symlink_metadata().is_ok() {
        return Err(BackupError::Exists { path: path.to_owned() });
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(nix::libc::O_NOFOLLOW);
    let file = options.open(writing).map_err(output)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(BackupError::Busy { path: path.to_owned() }),
        Err(errno) => return Err(output(errno.into())),
    }
    // Who held it may have finished meanwhile: then this is the finished backup, under its own name.
    if !files::names(writing, &file).map_err(output)? {
        return begin(path, writing);
    }
    if !file.metadata().map_err(output)?.is_file() {
        return Err(output(io::Error::other(format!("{} is no file", writing.display()))));
    }
    file.set_len(0).map_err(output)?;
    Ok(file)
}

fn name_it(writing: &Path, path: &Path) -> Result<(), BackupError> {
    let output = |source| BackupError::Output { path: path.to_owned(), source };
    rename_new(writing, path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => BackupError::Exists { path: path.to_owned() },
        _ => output(error),
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_dir(parent.unwrap_or(Path::new(".")))?;
    Ok(())
}

/// Renames to a name that must be free.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can promise it; then a look before has to do.
        Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_err() => {
            std::fs::rename(from, to)
        }
        Err(Errno::INVAL | Errno::NOSYS) => Err(io::ErrorKind::AlreadyExists.into()),
        done => done.map_err(io::Error::from),
    }
}

/// How far the journal is durable now: everything that was acknowledged, and nothing that may yet be lost.
///
/// `HEAD` alone cannot tell: of two processes that publish at once, the one that knows less may write last. So this asks as
/// a decision asks that needs no event: what is not known to be durable is made so first.
fn durable_end(journal: &mut SegmentedJournal) -> Result<Position, JournalError> {
    let mut end = Unfolded(journal.durable()?);
    let writer = Writer::of_this_process(Uuid::nil(), "journal backup")
        .map_err(JournalError::io("read", Path::new("/proc/self/stat")))?;
    let deadline = Instant::now() + PATIENCE;
    match journal.transact(&mut end, &writer, deadline, |_| Ok(Proposal::Answer(()))) {
        Ok(outcome) => Ok(outcome.position),
        // Who may only read makes durable what it reads.
        Err(JournalError::Io { source, .. })
            if matches!(
                source.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            let mut end = Unfolded(journal.durable()?);
            journal.refresh(&mut end)?;
            Ok(end.0)
        }
        Err(error) => Err(error),
    }
}
