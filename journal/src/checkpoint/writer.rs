//! Writes checkpoints, one writer at a time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::manifest::{Manifest, NamedTable, TableKind, name_of, seq_of};
use super::merge::{Merge, Source};
use super::{
    Checkpoint, CheckpointError, DamagedCheckpoint, Latest, checkpoint_dir, files_in, list, stub,
};
use crate::files;
use crate::frame::{Position, Seq};
use crate::table::{Table, TableWriter};

/// How a writer works. The default is right outside tests.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointOptions {
    /// Deltas are merged into a new base when there are so many.
    pub max_deltas: usize,
    /// Deltas are merged when they take more than this share of the base's bytes, in percent.
    pub max_delta_percent: u64,
    /// Called with a name before and after each step, so that a test can end the process there.
    pub boundary: fn(&'static str),
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self { max_deltas: 8, max_delta_percent: 25, boundary: |_| {} }
    }
}

/// What a writer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Nothing: a checkpoint at or after the position was there already, at this position.
    Already(Position),
    /// A delta on top of the checkpoint before.
    Delta(Position),
    /// A new base.
    Base(Position),
}

/// The right to write checkpoints; it ends with the value or with the process.
pub struct CheckpointWriter {
    journal_dir: PathBuf,
    dir: PathBuf,
    options: CheckpointOptions,
    previous: Option<Checkpoint>,
    damaged: Vec<DamagedCheckpoint>,
    _lock: files::Held,
}

impl CheckpointWriter {
    /// Takes the writer's lock of the journal in `journal_dir`; `None` if another process has it.
    ///
    /// # Errors
    /// Any [`CheckpointError`] of reading the newest checkpoint, damage excepted: damaged
    /// checkpoints are passed over and go to `quarantine/` with the next write.
    pub fn try_lock(
        journal_dir: &Path,
        options: CheckpointOptions,
    ) -> Result<Option<Self>, CheckpointError> {
        let dir = checkpoint_dir(journal_dir);
        files::create_dir(&dir).map_err(|source| io_error(&dir, "create", source))?;
        let path = journal_dir.join("CKPT");
        let lock = files::try_lock(&path).map_err(|source| io_error(&path, "lock", source))?;
        let Some(lock) = lock else { return Ok(None) };
        let Latest { checkpoint: previous, damaged } = newest(journal_dir)?;
        let journal_dir = journal_dir.to_owned();
        Ok(Some(Self { journal_dir, dir, options, previous, damaged, _lock: lock }))
    }

    /// The newest checkpoint that can be read.
    #[must_use]
    pub fn previous(&self) -> Option<&Checkpoint> {
        self.previous.as_ref()
    }

    /// Writes the state at `at`, given the keys that changed (or, with `None`, went) after `since`,
    /// in ascending order. The caller's `since` may be older than the newest checkpoint (another
    /// process was quicker), never newer.
    ///
    /// # Errors
    /// [`CheckpointError::NotDurable`], [`CheckpointError::Discontinuous`],
    /// [`CheckpointError::Diverged`], and those of writing and reading. If a table of the
    /// checkpoint before turns out damaged, call [`quarantine`](Self::quarantine) and
    /// [`write_whole`](Self::write_whole).
    pub fn write_changes<K, V>(
        &mut self,
        since: Position,
        at: Position,
        durable: Position,
        changes: impl IntoIterator<Item = (K, Option<V>)>,
    ) -> Result<Written, CheckpointError>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        if let Some(written) = self.begin(at, durable)? {
            return Ok(written);
        }
        let Some(previous) = &self.previous else {
            if since != Position::default() {
                let checkpoint = Position::default();
                return Err(CheckpointError::Discontinuous { since, checkpoint });
            }
            let entries = changes.into_iter().filter_map(|(key, value)| Some((key, value?)));
            return self.base(at, entries);
        };
        check_continues(since, previous.position())?;
        let mut tables = previous.manifest.tables.clone();
        let changes = changes.into_iter().map(|(key, value)| Ok((key, value)));
        tables.push(self.table(TableKind::Delta, at.seq, changes)?);
        (self.options.boundary)("checkpoint.delta.after");
        if self.should_merge(&tables) {
            tables = vec![self.merge(at.seq, &tables)?];
            (self.options.boundary)("checkpoint.merge.after");
        }
        self.publish(&Manifest { position: at, tables })
    }

    /// Writes the state at `at`, given all its keys in ascending order.
    ///
    /// # Errors
    /// [`CheckpointError::NotDurable`], [`CheckpointError::Diverged`], and those of writing.
    pub fn write_whole<K, V>(
        &mut self,
        at: Position,
        durable: Position,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Written, CheckpointError>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        match self.begin(at, durable)? {
            Some(written) => Ok(written),
            None => self.base(at, entries),
        }
    }

    /// Moves the newest checkpoint out of the way, after its reader found it damaged or ahead of
    /// the log. Returns the directory that keeps it; `None` if there is no checkpoint.
    ///
    /// # Errors
    /// Those of moving the files and of opening the checkpoint before.
    pub fn quarantine(&mut self) -> Result<Option<PathBuf>, CheckpointError> {
        let Some(previous) = self.previous.take() else { return Ok(None) };
        let kept = self.set_aside(previous.position().seq);
        let Latest { checkpoint, damaged } = newest(&self.journal_dir)?;
        (self.previous, self.damaged) = (checkpoint, damaged);
        kept.map(Some)
    }

    /// Refuses what must not be written, and clears the way for what may.
    fn begin(
        &mut self,
        at: Position,
        durable: Position,
    ) -> Result<Option<Written>, CheckpointError> {
        if at.seq > durable.seq || (at.seq == durable.seq && at.hash != durable.hash) {
            return Err(CheckpointError::NotDurable { at, durable });
        }
        if let Some(checkpoint) = self.previous.as_ref().map(Checkpoint::position) {
            if checkpoint.seq == at.seq && checkpoint.hash != at.hash {
                return Err(CheckpointError::Diverged { at, checkpoint });
            }
            if checkpoint.seq >= at.seq {
                return Ok(Some(Written::Already(checkpoint)));
            }
        }
        for damaged in std::mem::take(&mut self.damaged) {
            tracing::warn!(seq = damaged.seq, error = %damaged.error, "a damaged checkpoint goes to quarantine");
            self.set_aside(damaged.seq)?;
        }
        (self.options.boundary)("checkpoint.begin");
        Ok(None)
    }

    fn base<K, V>(
        &mut self,
        at: Position,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Written, CheckpointError>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let entries = entries.into_iter().map(|(key, value)| Ok((key, Some(value))));
        let base = self.table(TableKind::Base, at.seq, entries)?;
        (self.options.boundary)("checkpoint.base.after");
        self.publish(&Manifest { position: at, tables: vec![base] })
    }

    fn table<K, V>(
        &self,
        kind: TableKind,
        seq: Seq,
        entries: impl IntoIterator<Item = Result<(K, Option<V>), CheckpointError>>,
    ) -> Result<NamedTable, CheckpointError>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let path = self.dir.join(format!("{seq:020}.{}", kind.extension()));
        let mut table = TableWriter::create(&path)?;
        for entry in entries {
            let (key, value) = entry?;
            table.push(key.as_ref(), value.as_ref().map(AsRef::as_ref))?;
        }
        (self.options.boundary)("checkpoint.table.filled");
        Ok(NamedTable { kind, seq, id: table.finish()? })
    }

    fn should_merge(&self, tables: &[NamedTable]) -> bool {
        let Some((base, deltas)) = tables.split_first() else { return false };
        let bytes: u64 = deltas.iter().map(|delta| delta.id.file_len).sum();
        deltas.len() >= self.options.max_deltas
            || bytes.saturating_mul(100)
                > base.id.file_len.saturating_mul(self.options.max_delta_percent)
    }

    /// Streams all tables into a new base; a deleted key has nothing left to hide and goes.
    fn merge(&self, seq: Seq, tables: &[NamedTable]) -> Result<NamedTable, CheckpointError> {
        let opened: Result<Vec<_>, _> =
            tables.iter().map(|table| Table::open(&table.path(&self.dir))).collect();
        let opened = opened?;
        let sources = opened.iter().map(|table| Box::new(table.range(&[])) as Source<'_>).collect();
        let live = Merge::new(sources).filter_map(|entry| match entry {
            Ok((key, value)) => value.map(|value| Ok((key, Some(value)))),
            Err(error) => Some(Err(CheckpointError::from(error))),
        });
        self.table(TableKind::Base, seq, live)
    }

    fn publish(&mut self, manifest: &Manifest) -> Result<Written, CheckpointError> {
        (self.options.boundary)("checkpoint.manifest.before");
        manifest.publish(&self.dir)?;
        (self.options.boundary)("checkpoint.manifest.after");
        let written = match manifest.tables.len() {
            1 => Written::Base(manifest.position),
            _ => Written::Delta(manifest.position),
        };
        self.previous = Some(Checkpoint::open_in(&self.dir, manifest.position.seq)?);
        self.clean()?;
        (self.options.boundary)("checkpoint.clean.after");
        Ok(written)
    }

    /// Keeps the last two checkpoints, and removes older ones and what no manifest names.
    fn clean(&self) -> Result<(), CheckpointError> {
        let seqs = list(&self.dir)?;
        for seq in seqs.iter().skip(2) {
            self.remove(&name_of(*seq))?;
        }
        self.sync_dir()?;
        (self.options.boundary)("checkpoint.clean.manifests");
        let kept = self.referenced(seqs.iter().take(2).copied())?;
        for name in files_in(&self.dir)? {
            if is_ours(&name) && seq_of(&name).is_none() && !kept.contains(&name) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The names of the tables of these checkpoints. One whose manifest cannot be read names none:
    /// its tables are of no use to anybody, and the next write moves what is left of it to
    /// `quarantine/`.
    fn referenced(
        &self,
        seqs: impl Iterator<Item = Seq>,
    ) -> Result<BTreeSet<String>, CheckpointError> {
        let mut names = BTreeSet::new();
        for seq in seqs {
            match Manifest::read(&self.dir, seq) {
                Ok(manifest) => names.extend(manifest.tables.iter().map(NamedTable::name)),
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// Moves a checkpoint's manifest, and those of its tables that no other one needs, to
    /// `quarantine/`.
    fn set_aside(&self, seq: Seq) -> Result<PathBuf, CheckpointError> {
        let others = list(&self.dir)?.into_iter().filter(|other| *other != seq);
        let needed = self.referenced(others)?;
        let mut names: Vec<String> = self.referenced([seq].into_iter())?.into_iter().collect();
        names.retain(|name| !needed.contains(name));
        // The manifest goes first: without it the tables are nobody's, and a crash leaves no
        // dangling name.
        names.insert(0, name_of(seq));
        let kept = files::quarantine_dir(&self.journal_dir, &format!("ckpt-{seq:020}"))
            .map_err(|source| io_error(&self.journal_dir, "make quarantine/ in", source))?;
        for name in names {
            let from = self.dir.join(&name);
            match fs::rename(&from, kept.join(&name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io_error(&from, "move to quarantine", error));
                }
                _ => self.sync_dir()?,
            }
        }
        files::sync_dir(&kept).map_err(|source| io_error(&kept, "sync", source))?;
        Ok(kept)
    }

    fn remove(&self, name: &str) -> Result<(), CheckpointError> {
        let path = self.dir.join(name);
        files::remove(&path).map_err(|source| io_error(&path, "remove", source))
    }

    fn sync_dir(&self) -> Result<(), CheckpointError> {
        files::sync_dir(&self.dir).map_err(|source| io_error(&self.dir, "sync", source))
    }
}

/// The checkpoint to go on from; what a stub holds is made into one first.
fn newest(journal_dir: &Path) -> Result<Latest, CheckpointError> {
    let latest = Checkpoint::latest_written_before(journal_dir, Seq::MAX)?;
    let written = latest.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.position().seq);
    if stub::seed(journal_dir, written)? {
        return Checkpoint::latest_written_before(journal_dir, Seq::MAX);
    }
    Ok(latest)
}

/// Changes since `since` may be laid over a checkpoint that is not older.
fn check_continues(since: Position, checkpoint: Position) -> Result<(), CheckpointError> {
    if since.seq == checkpoint.seq && since.hash != checkpoint.hash {
        return Err(CheckpointError::Diverged { at: since, checkpoint });
    }
    if since.seq > checkpoint.seq {
        return Err(CheckpointError::Discontinuous { since, checkpoint });
    }
    Ok(())
}

/// Only names that this module makes are ever removed.
fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(&format!(".{}", files::WRITING)).unwrap_or(name);
    let Some((digits, extension)) = name.split_once('.') else { return false };
    digits.len() == 20
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && ["ckpt", "base", "delta"].contains(&extension)
}

fn io_error(path: &Path, doing: &'static str, source: std::io::Error) -> CheckpointError {
    CheckpointError::Io { path: path.to_owned(), doing, source }
}
