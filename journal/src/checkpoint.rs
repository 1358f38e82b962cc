//! Checkpoints: the folded state at one position, looked up without being read whole.
//!
//! ```text
//!  journal/CKPT                        flock of the writer, tried and never waited for
//!  journal/ckpt/<seq>.ckpt             manifest: position, and the tables that make up the state
//!  journal/ckpt/<seq>.base             every key
//!  journal/ckpt/<seq>.delta            the keys that changed or went since the checkpoint before
//!  journal/stub/<seq>.stub             the state before the first event, where older ones were moved away
//!  journal/quarantine/                 what was found damaged
//!
//!  1024.ckpt --> 512.base, 1024.delta
//!  1536.ckpt --> 512.base, 1024.delta, 1536.delta        a later table hides the keys of an earlier one
//!  2048.ckpt --> 2048.base                               deltas are merged once they are many or large
//! ```
//!
//! Every file is written under a temporary name, synced, renamed, and never changed again. The
//! manifest is published last, so a writer that dies leaves only files that nothing names; the next
//! writer removes them. The last two checkpoints are kept: if the newest is damaged, a reader falls
//! back to the older one, says so, and folds a longer tail.
//!
//! A checkpoint never leads the log: a position beyond the one proven durable is refused. Hence a
//! checkpoint that is ahead of the log, or has another hash at an equal sequence number, is proof
//! of damage.
//!
//! Keys and values are bytes; their meaning belongs to the user of the journal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::frame::{Position, Seq};
use crate::proof::Proof;
use crate::table::{Table, TableError};

mod manifest;
mod merge;
pub(crate) mod stub;
mod writer;

use manifest::Manifest;
pub use manifest::{CHECKPOINT_FORMAT, TableKind};
use merge::{Merge, Source};
pub use stub::{Stub, StubContent};
pub use writer::{CheckpointOptions, CheckpointWriter, Written};

/// A checkpoint is due when so many events were applied since the last one.
pub const CHECKPOINT_EVERY: u64 = 384;

/// How often the directory is listed again when files vanish under a reader. Each time a writer
/// must have published two checkpoints meanwhile.
const RELISTINGS: usize = 16;

/// Says whether a state at `applied` should be written, the last checkpoint being at `checkpoint`.
#[must_use]
pub fn due(applied: Seq, checkpoint: Seq) -> bool {
    applied.saturating_sub(checkpoint) >= CHECKPOINT_EVERY
}

/// Why a checkpoint could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done, as a verb.
        doing: &'static str,
        /// What the file system said.
        source: io::Error,
    },
    /// A table could not be read or written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A manifest's bytes are not those that were written, or a table is not the one it names.
    #[error("checkpoint {} is damaged: {what}; the state can be folded from the journal", path.display())]
    Damaged {
        /// The manifest or table.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// The checkpoint was written by a newer program.
    #[error(
        "checkpoint {} has format {found}, this program reads up to {CHECKPOINT_FORMAT}; use the newer program that wrote it",
        path.display()
    )]
    Unsupported {
        /// The manifest.
        path: PathBuf,
        /// Its format.
        found: u16,
    },
    /// What is derived never leads: the position is not proven durable.
    #[error(
        "no checkpoint at {at}: the journal is durable only up to {durable}; sync the journal first"
    )]
    NotDurable {
        /// The position that was offered.
        at: Position,
        /// The position up to which the journal is durable.
        durable: Position,
    },
    /// The changes do not follow any checkpoint that is there.
    #[error(
        "the changes since {since} do not continue the checkpoint at {checkpoint}; write the whole state instead"
    )]
    Discontinuous {
        /// Where the changes begin.
        since: Position,
        /// The newest checkpoint; the start of the journal if there is none.
        checkpoint: Position,
    },
    /// Two histories: the same sequence number with another hash.
    #[error(
        "the checkpoint at {checkpoint} belongs to another history than {at}; run `journal verify`"
    )]
    Diverged {
        /// The position that was offered.
        at: Position,
        /// The newest checkpoint.
        checkpoint: Position,
    },
}

impl CheckpointError {
    /// Says whether this checkpoint cannot be had, whatever the reason, so that an older one or a fold
    /// from the journal helps: damaged, missing, or kept back by the disk or by its permissions. What
    /// would keep any other file back as well (no descriptors, no memory) is not of that kind.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Table(TableError::Io { source, .. }) | Self::Io { source, .. } => {
                !is_shortage(source)
            }
            Self::Table(error) => error.is_damage(),
            _ => false,
        }
    }
}

/// A checkpoint that was passed over, and why.
#[derive(Debug)]
pub struct DamagedCheckpoint {
    /// Its sequence number, from the name of its manifest; 0 for all of them.
    pub seq: Seq,
    /// What is wrong with it.
    pub error: CheckpointError,
}

/// The newest checkpoint that can be read.
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint; `None` if there is none, or all are damaged.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that are damaged, the newest first.
    pub damaged: Vec<DamagedCheckpoint>,
}

/// An open checkpoint. Its files may be removed meanwhile: it holds them open.
#[derive(Debug)]
pub struct Checkpoint {
    manifest: Manifest,
    /// The base first, then the deltas, the newest last.
    tables: Vec<Table>,
}

impl Checkpoint {
    /// Opens the newest checkpoint of the journal in `journal_dir`, passing over damaged ones.
    ///
    /// # Errors
    /// [`CheckpointError::Unsupported`] for a newer format, and whatever the file system refuses.
    pub fn latest(journal_dir: &Path) -> Result<Latest, CheckpointError> {
        Self::latest_before(journal_dir, Seq::MAX)
    }

    /// Opens the newest checkpoint below `seq`: the way on for who found a damaged block in a later
    /// one.
    ///
    /// Where history was moved away, and there is none since, it is the state at the end of what was moved.
    ///
    /// # Errors
    /// As [`latest`](Self::latest).
    pub fn latest_before(journal_dir: &Path, seq: Seq) -> Result<Latest, CheckpointError> {
        let mut latest = Self::latest_written_before(journal_dir, seq)?;
        let written = latest.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.position().seq);
        if let Some(stub) = Stub::latest(journal_dir)?
            && (written + 1..seq).contains(&stub.position().seq)
        {
            latest.checkpoint = Some(stub.checkpoint());
        }
        Ok(latest)
    }

    fn latest_written_before(journal_dir: &Path, seq: Seq) -> Result<Latest, CheckpointError> {
        let dir = checkpoint_dir(journal_dir);
        let mut seqs = match list(&dir) {
            Ok(seqs) => seqs,
            // Without its checkpoints the state is folded from the journal.
            Err(error) if error.is_damage() => {
                return Ok(Latest {
                    checkpoint: None,
                    damaged: vec![DamagedCheckpoint { seq: 0, error }],
                });
            }
            Err(error) => return Err(error),
        };
        for _ in 0..RELISTINGS {
            let latest = Self::newest_of(&dir, seqs.iter().copied().filter(|found| *found < seq))?;
            let again = list(&dir)?;
            if latest.damaged.is_empty() || again == seqs {
                return Ok(latest);
            }
            seqs = again;
        }
        Self::newest_of(&dir, seqs.into_iter().filter(|found| *found < seq))
    }

    /// Opens the checkpoint at exactly `seq`.
    ///
    /// # Errors
    /// Any [`CheckpointError`] of reading.
    pub fn open(journal_dir: &Path, seq: Seq) -> Result<Self, CheckpointError> {
        Self::open_in(&checkpoint_dir(journal_dir), seq)
    }

    /// The sequence numbers of all checkpoints of the journal in `journal_dir`, the newest first,
    /// readable or not.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn list(journal_dir: &Path) -> Result<Vec<Seq>, CheckpointError> {
        list(&checkpoint_dir(journal_dir))
    }

    fn newest_of(dir: &Path, seqs: impl Iterator<Item = Seq>) -> Result<Latest, CheckpointError> {
        let mut damaged = Vec::new();
        for seq in seqs {
            match Self::open_in(dir, seq) {
                Ok(checkpoint) => return Ok(Latest { checkpoint: Some(checkpoint), damaged }),
                Err(error) if error.is_damage() => damaged.push(DamagedCheckpoint { seq, error }),
                Err(error) => return Err(error),
            }
        }
        Ok(Latest { checkpoint: None, damaged })
    }

    fn open_in(dir: &Path, seq: Seq) -> Result<Self, CheckpointError> {
        let manifest = Manifest::read(dir, seq)?;
        let mut tables = Vec::with_capacity(manifest.tables.len());
        for named in &manifest.tables {
            let table = Table::open(&named.path(dir))?;
            if table.id() != named.id {
                let path = table.path().to_owned();
                return Err(CheckpointError::Damaged {
                    path,
                    what: "it is not the table that the manifest names",
                });
            }
            tables.push(table);
        }
        Ok(Self { manifest, tables })
    }

    /// What the state includes: everything up to and with this frame.
    #[must_use]
    pub fn position(&self) -> Position {
        self.manifest.position
    }

    /// Number of delta tables above the base.
    #[must_use]
    pub fn deltas(&self) -> usize {
        self.tables.len().saturating_sub(1)
    }

    /// Bytes of the checkpoint's tables on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.id().file_len).sum()
    }

    /// Looks a key up.
    ///
    /// # Errors
    /// [`CheckpointError::Table`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, CheckpointError> {
        for table in self.tables.iter().rev() {
            if let Some(value) = table.get(key)? {
                return Ok(value);
            }
        }
        Ok(None)
    }

    /// All keys that begin with `prefix`, in ascending order, with their values. Ends after an
    /// error.
    pub fn prefix<'a>(
        &'a self,
        prefix: &[u8],
    ) -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), CheckpointError>> + 'a {
        let sources = self.tables.iter().map(|table| Box::new(table.prefix(prefix)) as Source<'a>);
        Merge::new(sources.collect()).filter_map(|entry| match entry {
            Ok((key, value)) => value.map(|value| Ok((key, value))),
            Err(error) => Some(Err(error.into())),
        })
    }

    /// Reads every table whole and checks it.
    ///
    /// # Errors
    /// [`CheckpointError::Table`] names the first damaged place.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.tables.iter().try_for_each(Table::verify).map_err(CheckpointError::from)
    }
}

/// Whether the system ran out of something, so that other files would fare no better.
fn is_shortage(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let short = [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::ENOSPC, Errno::EDQUOT];
    short.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// What the manifests that can be read prove of the log.
pub(crate) fn proofs(journal_dir: &Path) -> Vec<Proof> {
    let dir = checkpoint_dir(journal_dir);
    let seqs = list(&dir).unwrap_or_default();
    let manifests = seqs.into_iter().filter_map(|seq| Manifest::read(&dir, seq).ok());
    manifests
        .map(|manifest| Proof {
            path: dir.join(manifest::name_of(manifest.position.seq)),
            position: manifest.position,
        })
        .collect()
}

fn checkpoint_dir(journal_dir: &Path) -> PathBuf {
    journal_dir.join("ckpt")
}

/// The checkpoints that have a manifest, the newest first; none if the directory is not there yet.
fn list(dir: &Path) -> Result<Vec<Seq>, CheckpointError> {
    let mut seqs: Vec<Seq> =
        files_in(dir)?.iter().filter_map(|name| manifest::seq_of(name)).collect();
    seqs.sort_unstable_by(|a, b| b.cmp(a));
    Ok(seqs)
}

fn files_in(dir: &Path) -> Result<Vec<String>, CheckpointError> {
    let io = |source| CheckpointError::Io { path: dir.to_owned(), doing: "list", source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(io)?.file_name().into_string().ok());
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
