//! One generation: a sled database that follows one segment.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::event::{self, StoredEvent};
use super::extent::{Extent, Stamp};
use super::guarded::{Db, Fault};
use super::repair::Repair;
use super::{StoreError, StoreOptions, generation_dir, io_error, quarantine, store_dir};
use crate::files;
use crate::frame::{Frame, Hash, Position, Seq};

/// Pairs read from sled at a time.
const CHUNK: usize = 256;
/// Present while an opening is under way, and after a fault: the generation is in doubt.
const MARK: &str = "SUSPECT";

/// Why a generation cannot be used.
#[derive(Debug)]
pub(super) enum Unfit {
    /// Something else than the generation is at fault.
    Error(StoreError),
    /// It must be rebuilt.
    Repair(Repair),
}

impl Unfit {
    pub(super) fn into_error(self, generation: Seq) -> StoreError {
        match self {
            Self::Error(error) => error,
            Self::Repair(repair) => StoreError::Unfit { generation, repair },
        }
    }
}

impl From<StoreError> for Unfit {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

fn damaged(what: impl Into<String>) -> Unfit {
    Unfit::Repair(Repair::Damaged { what: what.into() })
}

#[derive(Debug)]
pub(super) struct Generation {
    dir: PathBuf,
    db: Db,
    extent: Extent,
    flushed: Position,
    options: StoreOptions,
}

impl Generation {
    /// Opens the generation that begins at `first`, and holds it against what it had before.
    pub(super) fn open(
        journal_dir: &Path,
        first: Seq,
        options: StoreOptions,
    ) -> Result<Self, Unfit> {
        let dir = generation_dir(&store_dir(journal_dir), first);
        if !dir.exists() {
            return Err(Unfit::Repair(Repair::Missing));
        }
        let io = |doing| {
            move |source| Unfit::Error(io_error(&dir_of(journal_dir, first), doing, source))
        };
        only_files(&dir).map_err(io("look through"))??;
        let stamp = Stamp::read(&dir).map_err(io("read the stamp in"))?;
        // sled would quietly make a new, empty database.
        let db_len =
            db_len(&dir).ok_or_else(|| damaged("its database file is missing or empty"))?;
        let suspect = dir.join(MARK).exists() || stamp.is_none_or(|stamp| db_len < stamp.db_len);
        if suspect {
            quarantine::copy_suspect(journal_dir, first, &dir).map_err(io("copy"))?;
        }
        mark(&dir).map_err(io("mark"))?;
        (options.boundary)("store.open.marked");
        let mut generation = Self::open_marked(dir.clone(), first, stamp, options)?;
        if suspect {
            generation.verify()?;
            generation.flush()?;
            quarantine::drop_suspect(journal_dir, first).map_err(io("drop the copy of"))?;
        }
        if !suspect && stamp.is_some_and(|stamp| stamp.extent != generation.extent) {
            // Its writer died between the flush and the stamp.
            generation.flush()?;
        }
        files::remove(&dir.join(MARK)).map_err(io("unmark"))?;
        (options.boundary)("store.open.unmarked");
        Ok(generation)
    }

    fn open_marked(
        dir: PathBuf,
        first: Seq,
        stamp: Option<Stamp>,
        options: StoreOptions,
    ) -> Result<Self, Unfit> {
        let db = Db::open(&dir).map_err(|fault| unfit(&dir, fault))?;
        let bytes = db.get(event::EXTENT_KEY).map_err(|fault| unfit(&dir, fault))?;
        let extent = bytes.as_deref().and_then(Extent::decode);
        let extent = extent.ok_or_else(|| damaged("it does not say how far it reaches"))?;
        let generation = Self { dir, db, extent, flushed: extent.last, options };
        if extent.first != first {
            return Err(damaged(format!("it begins at seq {}", extent.first)));
        }
        if let Some(had) = stamp.map(|stamp| stamp.extent) {
            generation.check_against(&had)?;
        }
        generation.check_last()?;
        Ok(generation)
    }

    /// Makes a generation in a directory of its own, lets `fill` write to it, and syncs all of it.
    /// It has no name yet: [`install`](Self::install) gives it that.
    pub(super) fn build(
        journal_dir: &Path,
        extent: Extent,
        options: StoreOptions,
        fill: impl FnOnce(&mut Self) -> Result<(), Unfit>,
    ) -> Result<Extent, Unfit> {
        let dir = building_dir(journal_dir, extent.first);
        let path = dir.as_path();
        let io = |doing| move |source| Unfit::Error(io_error(path, doing, source));
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(io("remove"))?;
        }
        files::create_dir(&dir).map_err(io("create"))?;
        (options.boundary)("store.build.created");
        let db = Db::open(&dir).map_err(|fault| unfit(&dir, fault))?;
        let flushed = extent.last;
        let mut generation = Self { dir: dir.clone(), db, extent, flushed, options };
        (options.boundary)("store.build.opened");
        generation.append(&[])?;
        fill(&mut generation)?;
        generation.flush()?;
        (options.boundary)("store.build.filled");
        let extent = generation.extent;
        drop(generation);
        sync_tree(&dir).map_err(io("sync"))?;
        (options.boundary)("store.build.synced");
        Ok(extent)
    }

    /// Gives the generation that was built its name.
    pub(super) fn install(journal_dir: &Path, first: Seq) -> Result<(), StoreError> {
        let (from, to) = (building_dir(journal_dir, first), dir_of(journal_dir, first));
        fs::rename(&from, &to)
            .and_then(|()| files::sync_parent(&to))
            .map_err(|source| io_error(&to, "install", source))
    }

    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    /// Number of events applied since the last flush.
    pub(super) fn unflushed(&self) -> u64 {
        self.extent.last.seq.saturating_sub(self.flushed.seq)
    }

    /// Applies frames that follow the last one, all or none of them. Not durable before a flush.
    pub(super) fn append(&mut self, frames: &[(Frame, Hash)]) -> Result<(), Unfit> {
        let mut batch = sled::Batch::default();
        let mut extent = self.extent;
        for (frame, hash) in frames {
            put(&mut batch, frame, *hash)?;
            extent = extent.with(frame, *hash);
        }
        batch.insert(event::EXTENT_KEY, extent.encode());
        self.db.apply(batch).map_err(|fault| unfit(&self.dir, fault))?;
        self.extent = extent;
        Ok(())
    }

    /// Makes everything applied survive a power cut, and writes down how far it reaches.
    pub(super) fn flush(&mut self) -> Result<(), Unfit> {
        self.db.flush().map_err(|fault| unfit(&self.dir, fault))?;
        (self.options.boundary)("store.flushed");
        self.flushed = self.extent.last;
        self.write_stamp()
    }

    pub(super) fn event(&self, seq: Seq) -> Result<Option<StoredEvent>, Unfit> {
        let bytes = self.db.get(&event::event_key(seq)).map_err(|fault| unfit(&self.dir, fault))?;
        bytes.map(|bytes| event::decode(&bytes, seq)).transpose().map_err(damaged)
    }

    /// Up to 256 events from `from` to `to`, without a gap.
    pub(super) fn events(&self, from: Seq, to: Seq) -> Result<Vec<StoredEvent>, Unfit> {
        let to = to.min(from.saturating_add(CHUNK as u64 - 1)).min(self.extent.last.seq);
        let keys = (event::event_key(from), event::event_key(to.saturating_add(1)));
        let pairs =
            self.db.scan(&keys.0, &keys.1, CHUNK).map_err(|fault| unfit(&self.dir, fault))?;
        let mut events = Vec::with_capacity(pairs.len());
        for (seq, (key, value)) in (from..).zip(&pairs) {
            if event::seq_of(key) != Some(seq) {
                return Err(damaged(format!("event {seq} is missing")));
            }
            events.push(event::decode(value, seq).map_err(damaged)?);
        }
        if from <= to && events.len() as u64 != to - from + 1 {
            return Err(damaged(format!("events between {from} and {to} are missing")));
        }
        Ok(events)
    }

    /// The sequence numbers that end the index keys between two keys, in the order of the keys.
    pub(super) fn indexed(&self, from: &[u8], to: &[u8]) -> Result<Vec<Seq>, Unfit> {
        let mut seqs = Vec::new();
        let mut from = from.to_vec();
        loop {
            let pairs = self.db.scan(&from, to, CHUNK).map_err(|fault| unfit(&self.dir, fault))?;
            for (key, _) in &pairs {
                seqs.push(event::seq_of(key).ok_or_else(|| damaged("an index key is cut short"))?);
            }
            match pairs.last() {
                Some((key, _)) if pairs.len() == CHUNK => from = [key, &[0][..]].concat(),
                _ => return Ok(seqs),
            }
        }
    }

    /// Reads everything: each event is there once, chained to the one before, and in each index.
    pub(super) fn verify(&self) -> Result<(), Unfit> {
        let Extent { first, last, .. } = self.extent;
        let (mut next, mut hash, mut frame_hash) = (first, self.extent.before, self.extent.before);
        while next <= last.seq {
            for event in self.events(next, last.seq)? {
                if event.seq == event.header.seq {
                    frame_hash = hash;
                }
                self.verify_event(&event, frame_hash)?;
                (next, hash) = (event.seq + 1, event.hash);
            }
        }
        if hash != last.hash {
            return Err(damaged("its last event is not the one that it says"));
        }
        let count = (last.seq + 1).saturating_sub(first);
        for letter in [event::EVENT, event::SUBJECT, event::OPERATION, event::TIME] {
            if self.indexed(&[letter], &[letter + 1])?.len() as u64 != count {
                return Err(damaged(format!("index `{}` has another size", char::from(letter))));
            }
        }
        Ok(())
    }

    fn verify_event(&self, event: &StoredEvent, before: Hash) -> Result<(), Unfit> {
        if event.header.prev_hash != before {
            return Err(damaged(format!("event {} does not follow the one before", event.seq)));
        }
        for key in event::index_keys(&event.header, &event.entry, event.seq) {
            if self.db.get(&key).map_err(|fault| unfit(&self.dir, fault))?.is_none() {
                return Err(damaged(format!("event {} is missing in an index", event.seq)));
            }
        }
        Ok(())
    }

    fn check_against(&self, had: &Extent) -> Result<(), Unfit> {
        let has = self.extent;
        if has.last.seq < had.last.seq {
            return Err(Unfit::Repair(Repair::Behind { had: had.last, has: has.last }));
        }
        if has.before != had.before || (has.last.seq == had.last.seq && has.last != had.last) {
            return Err(damaged("it is not the database that it was"));
        }
        Ok(())
    }

    fn check_last(&self) -> Result<(), Unfit> {
        let last = self.extent.last;
        if last.seq < self.extent.first {
            return Ok(());
        }
        match self.event(last.seq)? {
            Some(event) if event.hash == last.hash => Ok(()),
            _ => Err(damaged("its last event is not the one that it says")),
        }
    }

    fn write_stamp(&self) -> Result<(), Unfit> {
        let stamp = Stamp { extent: self.extent, db_len: db_len(&self.dir).unwrap_or(0) };
        let io = |source| Unfit::Error(io_error(&self.dir, "write the stamp in", source));
        stamp.write(&self.dir).map_err(io)?;
        (self.options.boundary)("store.stamped");
        Ok(())
    }
}

/// Puts a generation in doubt: its next opening copies it first and reads it whole.
pub(super) fn mark(dir: &Path) -> io::Result<()> {
    match files::create(&dir.join(MARK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The stamp of the generation in `dir` if nothing speaks against it.
pub(super) fn trusted_stamp(dir: &Path, first: Seq) -> Result<Option<Stamp>, Unfit> {
    let io = |source| Unfit::Error(io_error(dir, "read the stamp in", source));
    let stamp = Stamp::read(dir).map_err(io)?.filter(|stamp| stamp.extent.first == first);
    let whole = |stamp: &Stamp| db_len(dir).is_some_and(|len| len >= stamp.db_len);
    Ok(stamp.filter(whole).filter(|_| !dir.join(MARK).exists()))
}

/// Length of the database file in bytes; `None` if it is missing or empty.
fn db_len(dir: &Path) -> Option<u64> {
    fs::metadata(dir.join("db")).ok().map(|metadata| metadata.len()).filter(|len| *len > 0)
}

fn put(batch: &mut sled::Batch, frame: &Frame, hash: Hash) -> Result<(), Unfit> {
    for (index, (seq, entry)) in (0u16..).zip(frame.events()) {
        let value = event::encode(&frame.header, hash, index, entry)
            .map_err(|error| Unfit::Error(StoreError::Source(Box::new(error))))?;
        batch.insert(event::event_key(seq), value);
        for key in event::index_keys(&frame.header, entry, seq) {
            batch.insert(key, &[]);
        }
    }
    Ok(())
}

fn unfit(dir: &Path, fault: Fault) -> Unfit {
    match fault {
        Fault::Io(source) => Unfit::Error(io_error(dir, "use", source)),
        Fault::Damage(what) => damaged(what),
    }
}

/// Refuses what sled would wait for, or follow to somewhere else: pipes, devices, links.
fn only_files(dir: &Path) -> io::Result<Result<(), Unfit>> {
    let strange = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Err(damaged(format!("`{name}` is neither a file nor a directory of its own"))))
    };
    if !fs::symlink_metadata(dir)?.is_dir() {
        return strange(dir);
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        let is_blobs = entry.file_name() == "blobs";
        if kind.is_dir() && is_blobs {
            if let Err(unfit) = only_files(&path)? {
                return Ok(Err(unfit));
            }
        } else if !kind.is_file() {
            return strange(&path);
        }
    }
    Ok(Ok(()))
}

/// Says whether sled may open what is in `dir`.
pub(super) fn is_plain(dir: &Path) -> Result<(), String> {
    match only_files(dir) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(unfit)) => Err(format!("{unfit:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn dir_of(journal_dir: &Path, first: Seq) -> PathBuf {
    generation_dir(&store_dir(journal_dir), first)
}

fn building_dir(journal_dir: &Path, first: Seq) -> PathBuf {
    dir_of(journal_dir, first).with_extension("building")
}

/// Syncs every file and directory: sled leaves its configuration and new names to chance.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    files::sync_dir(dir)
}
