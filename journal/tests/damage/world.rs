//! A journal with everything that one can have, and copies of it.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cocoon_journal::checkpoint::{CheckpointOptions, CheckpointWriter};
use cocoon_journal::store::Store;
use cocoon_journal::{
    Entry, Fold, Frame, Hash, Journal, JournalError, Options, Position, Proposal, SegmentedJournal,
    Seq, Subject as About, Writer,
};
use tempfile::TempDir;
use uuid::Uuid;

/// Everything that happened, as a fold.
#[derive(Debug, Default, Clone)]
pub(crate) struct Log {
    pub(crate) position: Position,
    pub(crate) events: Vec<(Seq, Entry)>,
}

impl Fold for Log {
    type Error = Infallible;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Infallible> {
        self.events.extend(frame.events().map(|(seq, entry)| (seq, entry.clone())));
        self.position = frame.position(hash);
        Ok(())
    }
}

/// A kind of file, with one of its kind.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
}

pub(crate) struct World {
    dir: TempDir,
    /// All that was acknowledged, the journal's own events too.
    pub(crate) acknowledged: Vec<(Seq, Entry)>,
    /// The same directory at an earlier time.
    older: PathBuf,
}

pub(crate) fn options() -> Options {
    Options { segment_events: 40, ..Options::default() }
}

pub(crate) fn writer() -> Writer {
    Writer { operation: Uuid::from_u128(7), pid: 7, start_time: 70, verb: "test".to_owned() }
}

/// Appends one event.
pub(crate) fn append(
    journal: &mut SegmentedJournal,
    log: &mut impl Fold<Error = Infallible>,
    body: Vec<u8>,
) -> Result<Seq, JournalError> {
    let subject = About::new("vm/a").unwrap();
    let entries = vec![Entry { kind: 1, version: 1, subject, body }];
    let deadline = Instant::now() + Duration::from_secs(30);
    let decide = |_: &_| Ok(Proposal::Append(entries, ()));
    Ok(*journal.transact(log, &writer(), deadline, decide)?.seqs.unwrap().end())
}

impl World {
    /// Four sealed segments and a live one; two checkpoints, the older with a delta; the store up to the middle of the live
    /// segment. An older copy is from its beginning.
    pub(crate) fn new() -> Self {
        let dir = scratch();
        let live = dir.path().join("journal");
        let mut journal = SegmentedJournal::open(&live, options()).unwrap();
        let mut log = Log::default();
        let older = dir.path().join("older");
        for n in 0..190_u32 {
            append(&mut journal, &mut log, n.to_le_bytes().repeat(10)).unwrap();
            match n {
                100 | 140 | 165 => checkpoint(&live, &log, n == 100),
                110 | 162 | 175 => follow(&live, &journal),
                166 => copy_tree(&live, &older),
                _ => {}
            }
        }
        Self { dir, acknowledged: log.events, older }
    }

    pub(crate) fn copy(&self) -> Copy {
        let dir = scratch();
        copy_tree(&self.dir.path().join("journal"), &dir.path().join("journal"));
        Copy { dir, older: self.older.clone() }
    }

    /// One of each kind of file.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let journal = self.dir.path().join("journal");
        let last = |dir: &str, ending: &str| -> PathBuf {
            let found = files(&journal.join(dir))
                .into_iter()
                .filter(|path| path.to_string_lossy().ends_with(ending));
            found.max().unwrap().strip_prefix(&journal).unwrap().to_owned()
        };
        let first_segment = PathBuf::from(format!("seg/{:020}.seg", 1));
        let middle = files(&journal.join("seg"))[2].strip_prefix(&journal).unwrap().to_owned();
        let sled = |n: usize, name: &str| {
            let mut dirs: Vec<_> = fs::read_dir(journal.join("sled"))
                .unwrap()
                .map(|dir| dir.unwrap().path())
                .collect();
            dirs.sort();
            let dir = if n == 0 { &dirs[0] } else { dirs.last().unwrap() };
            let inside = files(dir)
                .into_iter()
                .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(name));
            inside.min().map(|path| path.strip_prefix(&journal).unwrap().to_owned())
        };
        let named = |name: &'static str, path: PathBuf| Subject { name, path };
        let mut subjects = vec![
            named("first segment, sealed", first_segment),
            named("sealed segment", middle),
            named("live segment", last("seg", ".seg")),
            named("HEAD", "HEAD".into()),
            named("checkpoint: manifest", last("ckpt", ".ckpt")),
            named("checkpoint: base", last("ckpt", ".base")),
            named("checkpoint: delta", last("ckpt", ".delta")),
        ];
        let of_store = [
            ("sealed generation: db", sled(0, "db")),
            ("sealed generation: conf", sled(0, "conf")),
            ("sealed generation: snapshot", sled(0, "snap.")),
            ("sealed generation: STAMP", sled(0, "STAMP")),
            ("live generation: db", sled(1, "db")),
            ("live generation: conf", sled(1, "conf")),
            ("live generation: snapshot", sled(1, "snap.")),
            ("live generation: STAMP", sled(1, "STAMP")),
        ];
        subjects.extend(of_store.into_iter().filter_map(|(name, path)| Some(named(name, path?))));
        for name in ["LOCK", "OWNER", "CKPT"] {
            subjects.push(named(name, name.into()));
        }
        subjects
    }
}

/// In memory where that is possible: nothing here is about what is on disk, and syncs take time.
pub(crate) fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A copy that may be damaged.
pub(crate) struct Copy {
    dir: TempDir,
    older: PathBuf,
}

impl Copy {
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    pub(crate) fn older(&self, path: &Path) -> PathBuf {
        self.older.join(path)
    }
}

fn checkpoint(dir: &Path, log: &Log, whole: bool) {
    let mut writer =
        CheckpointWriter::try_lock(dir, CheckpointOptions::default()).unwrap().unwrap();
    let entries = log
        .events
        .iter()
        .map(|(seq, entry)| ([&b"e"[..], &seq.to_be_bytes()].concat(), entry.body.clone()));
    let at = log.position;
    if whole {
        writer.write_whole(at, at, entries).unwrap();
    } else {
        let since = writer.previous().unwrap().position();
        let new =
            entries.skip(usize::try_from(since.seq).unwrap()).map(|(key, body)| (key, Some(body)));
        writer.write_changes(since, at, at, new).unwrap();
    }
}

pub(crate) fn follow(dir: &Path, journal: &SegmentedJournal) {
    let durable = journal.durable().unwrap();
    // Opened twice, so that sled has made a snapshot of it.
    for _ in 0..2 {
        Store::try_open(dir).unwrap().unwrap().catch_up(journal, durable).unwrap();
    }
}

/// All files below a directory, in order.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}
