//! What stays of history that was moved away: the state at its end.
//!
//! ```text
//!  journal/stub/<seq>.stub      one table:
//!    "\0position"               seq u64, hash (32): the last frame that was moved
//!    "\0moved-to"               where it went, a path
//!    "\x01..."                  what the user of the journal wants remembered of it beside the state
//!    everything else            the keys of the state, as in a checkpoint
//! ```
//!
//! A stub is a checkpoint that is never merged or replaced by a later state, only by the stub of a later move: it is
//! where folding begins if there is no later checkpoint, as the start of the journal is where nothing was moved.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::manifest::{Manifest, NamedTable, TableKind};
use super::{Checkpoint, CheckpointError, checkpoint_dir};
use crate::files;
use crate::frame::{Position, Seq};
use crate::table::{Table, TableWriter};

const POSITION: &[u8] = b"\0position";
const MOVED_TO: &[u8] = b"\0moved-to";
const REMEMBERED: u8 = 1;

/// The state before the first event that is kept.
#[derive(Debug)]
pub struct Stub {
    table: Table,
    position: Position,
}

/// What a stub is made of.
#[derive(Debug)]
pub struct StubContent {
    /// The last frame that was moved away.
    pub position: Position,
    /// Where it went.
    pub moved_to: PathBuf,
    /// Keys of the state with their values, ascending; none begins with a byte below 2.
    pub state: Vec<(Vec<u8>, Vec<u8>)>,
    /// What else is to be remembered, ascending.
    pub remembered: Vec<Vec<u8>>,
}

impl Stub {
    /// The stub of the journal in `journal_dir`; `None` if nothing was moved away. Of several, which a mover that died
    /// may leave, the last.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn latest(journal_dir: &Path) -> Result<Option<Self>, CheckpointError> {
        match list(journal_dir)?.last() {
            Some(seq) => Self::open(&path_of(journal_dir, *seq)).map(Some),
            None => Ok(None),
        }
    }

    /// The stub whose last event that was moved is `seq`, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn at(journal_dir: &Path, seq: Seq) -> Result<Option<Self>, CheckpointError> {
        if !list(journal_dir)?.contains(&seq) {
            return Ok(None);
        }
        Self::open(&path_of(journal_dir, seq)).map(Some)
    }

    /// Opens the stub in a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no stub.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        Self::of_table(Table::open(path)?)
    }

    /// The stub in an open file, which errors call `path`.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn of_file(file: File, path: &Path) -> Result<Self, CheckpointError> {
        Self::of_table(Table::of_file(file, path)?)
    }

    fn of_table(table: Table) -> Result<Self, CheckpointError> {
        let damaged = |what| CheckpointError::Damaged { path: table.path().to_owned(), what };
        let bytes = table.get(POSITION)?.flatten();
        let position = bytes.as_deref().and_then(decode_position);
        let position = position.ok_or_else(|| damaged("it does not say where history begins"))?;
        Ok(Self { table, position })
    }

    /// The last frame that was moved away: the state is that after it.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.table.path()
    }

    /// Where history was moved to, as it was called then.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn moved_to(&self) -> Result<Option<PathBuf>, CheckpointError> {
        use std::os::unix::ffi::OsStringExt as _;
        let bytes = self.table.get(MOVED_TO)?.flatten();
        Ok(bytes.map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes))))
    }

    /// What was to be remembered beside the state, ascending. Ends after an error.
    pub fn remembered(&self) -> impl Iterator<Item = Result<Vec<u8>, CheckpointError>> + '_ {
        let entries = self.table.prefix(&[REMEMBERED]);
        entries.map(|entry| match entry {
            Ok((key, _)) => Ok(key.get(1..).unwrap_or_default().to_vec()),
            Err(error) => Err(error.into()),
        })
    }

    /// The keys of the state with their values, ascending. Ends after an error.
    pub fn state(&self) -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), CheckpointError>> + '_ {
        let entries = self.table.range(&[REMEMBERED + 1]);
        entries.map(|entry| match entry {
            Ok((key, value)) => Ok((key, value.unwrap_or_default())),
            Err(error) => Err(error.into()),
        })
    }

    /// Reads all of it and checks it.
    ///
    /// # Errors
    /// Names the first damaged place.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.table.verify().map_err(CheckpointError::from)
    }

    /// The state as a checkpoint.
    #[must_use]
    pub fn checkpoint(self) -> Checkpoint {
        let named =
            NamedTable { kind: TableKind::Base, seq: self.position.seq, id: self.table.id() };
        let manifest = Manifest { position: self.position, tables: vec![named] };
        Checkpoint { manifest, tables: vec![self.table] }
    }

    /// Writes the stub of the journal in `journal_dir`, durably, and opens it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(journal_dir: &Path, content: &StubContent) -> Result<Self, CheckpointError> {
        use std::os::unix::ffi::OsStrExt as _;
        let path = path_of(journal_dir, content.position.seq);
        make_dir(journal_dir)?;
        let mut table = TableWriter::create(&path)?;
        table.push(MOVED_TO, Some(content.moved_to.as_os_str().as_bytes()))?;
        table.push(POSITION, Some(&encode_position(content.position)))?;
        for name in &content.remembered {
            table.push(&[&[REMEMBERED], name.as_slice()].concat(), Some(&[]))?;
        }
        for (key, value) in &content.state {
            table.push(key, Some(value))?;
        }
        table.finish()?;
        Self::open(&path)
    }

    /// Removes stubs that a later one has replaced.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn clean(journal_dir: &Path) -> Result<(), CheckpointError> {
        let seqs = list(journal_dir)?;
        for seq in seqs.iter().rev().skip(1) {
            let path = path_of(journal_dir, *seq);
            files::remove(&path).map_err(|source| CheckpointError::Io {
                path,
                doing: "remove",
                source,
            })?;
        }
        Ok(())
    }
}

/// Where the stub at `seq` lies.
pub(crate) fn path_of(journal_dir: &Path, seq: Seq) -> PathBuf {
    journal_dir.join("stub").join(format!("{seq:020}.stub"))
}

/// Makes the directory of stubs.
pub(crate) fn make_dir(journal_dir: &Path) -> Result<(), CheckpointError> {
    let path = journal_dir.join("stub");
    files::create_dir(&path).map_err(|source| CheckpointError::Io { path, doing: "create", source })
}

/// Gives a writer of checkpoints, who found none after `written`, the stub's state to go on from, if that is later.
pub(super) fn seed(journal_dir: &Path, written: Seq) -> Result<bool, CheckpointError> {
    let later = |stub: &Stub| stub.position.seq > written;
    let Some(stub) = Stub::latest(journal_dir)?.filter(later) else { return Ok(false) };
    let (dir, seq) = (checkpoint_dir(journal_dir), stub.position.seq);
    let mut table = TableWriter::create(&dir.join(format!("{seq:020}.base")))?;
    for entry in stub.state() {
        let (key, value) = entry?;
        table.push(&key, Some(&value))?;
    }
    let named = NamedTable { kind: TableKind::Base, seq, id: table.finish()? };
    Manifest { position: stub.position, tables: vec![named] }.publish(&dir).map(|()| true)
}

/// Sequence numbers of the stubs, ascending.
pub(crate) fn list(journal_dir: &Path) -> Result<Vec<Seq>, CheckpointError> {
    let dir = journal_dir.join("stub");
    let io = |source| CheckpointError::Io { path: dir.clone(), doing: "list", source };
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut seqs = Vec::new();
    for entry in entries {
        seqs.extend(entry.map_err(io)?.file_name().to_str().and_then(seq_of));
    }
    seqs.sort_unstable();
    Ok(seqs)
}

fn seq_of(name: &str) -> Option<Seq> {
    let digits = name.strip_suffix(".stub")?;
    let plain = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

fn encode_position(position: Position) -> Vec<u8> {
    [&position.seq.to_le_bytes()[..], &position.hash].concat()
}

fn decode_position(bytes: &[u8]) -> Option<Position> {
    let (seq, hash) = bytes.split_first_chunk()?;
    Some(Position { seq: u64::from_le_bytes(*seq), hash: hash.try_into().ok()? })
}
