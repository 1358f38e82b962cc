//! Every write, sync, open, rename and allocation of the journal and of what is derived from it, failing once.
//!
//! A life of a journal is lived once to count its calls, then once for each call and each error that it may give. After
//! the failure the same process goes on, as a command or the daemon does: with a new handle on the same files.

use std::os::unix::fs::FileExt as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cocoon_journal::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
use cocoon_journal::error::AnyError;
use cocoon_journal::store::Store;
use cocoon_journal::verify::verify;
use cocoon_journal::{Journal as _, SegmentedJournal, Seq};
use cocoon_test_faults::{Call, Kind, Verdict, judged};

use crate::support::*;

/// A process that goes on, whatever fails.
struct Life {
    dir: PathBuf,
    open: Option<(SegmentedJournal, Log)>,
    acknowledged: Vec<(Seq, String)>,
    /// What was told, step by step.
    failures: Vec<String>,
}

type Step = fn(&mut Life, usize) -> Result<(), AnyError>;

impl Life {
    fn journal(&mut self) -> Result<&mut (SegmentedJournal, Log), AnyError> {
        if self.open.is_none() {
            let journal = SegmentedJournal::open(&self.dir, small_segments(4))?;
            self.open = Some((journal, Log::default()));
        }
        self.open.as_mut().ok_or_else(|| "just opened".into())
    }

    fn append(&mut self, number: usize) -> Result<(), AnyError> {
        let body = format!("event {number}");
        let (journal, log) = self.journal()?;
        let seqs = append(journal, log, body.clone())?.seqs.unwrap();
        self.acknowledged.push((*seqs.start(), body));
        Ok(())
    }

    fn refresh(&mut self, _: usize) -> Result<(), AnyError> {
        let (journal, log) = self.journal()?;
        Ok(journal.refresh(log)?)
    }

    fn store(&mut self, _: usize) -> Result<(), AnyError> {
        let dir = self.dir.clone();
        let (journal, _) = self.journal()?;
        let durable = journal.durable()?;
        let mut store = Store::try_open(&dir)?.ok_or("somebody has the store")?;
        store.catch_up(&*journal, durable)?;
        Ok(())
    }

    fn checkpoint(&mut self, _: usize) -> Result<(), AnyError> {
        let dir = self.dir.clone();
        let (journal, log) = self.journal()?;
        journal.refresh(log)?;
        let durable = journal.durable()?;
        if durable.seq < log.position.seq {
            // Not known to be durable yet: nothing derived leads.
            return Ok(());
        }
        let options = CheckpointOptions::default();
        let mut writer = CheckpointWriter::try_lock(&dir, options)?.ok_or("somebody writes one")?;
        let state = log.events.iter().map(|(seq, entry)| (seq.to_be_bytes(), entry.body.clone()));
        writer.write_whole(log.position, durable, state)?;
        Ok(())
    }

    /// Appends, with a seal every four events, and everything derived now and then.
    fn live(dir: PathBuf) -> Self {
        let mut life = Self { dir, open: None, acknowledged: Vec::new(), failures: Vec::new() };
        let append = Self::append as Step;
        let derived = [append, Self::store, append, Self::checkpoint, append, Self::refresh];
        let steps = [append; 6].into_iter().chain(derived).chain(derived).chain([append; 2]);
        for (number, step) in steps.enumerate() {
            if let Err(error) = step(&mut life, number) {
                life.failures.push(format!("step {number}: {error}"));
                // Nothing that was in memory counts any more.
                life.open = None;
            }
        }
        life
    }
}

/// A directory in which a life begins, and its calls below it.
struct Stage {
    scratch: tempfile::TempDir,
    dir: PathBuf,
}

impl Stage {
    fn new(prepare: fn(&Path)) -> Self {
        // In memory: what is tested is what happens when calls fail, thousands of times.
        let memory = Path::new("/dev/shm");
        let scratch =
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let scratch = scratch.unwrap();
        let dir = scratch.path().canonicalize().unwrap().join("journal");
        prepare(&dir);
        Self { scratch, dir }
    }

    /// Lives a life in which the call at `fail` gives the errno; gives the calls as well. `None` without the right.
    fn live(&self, fail: Option<(usize, i32)>) -> Option<(Life, Vec<Call>)> {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (noted, below) = (calls.clone(), self.scratch.path().canonicalize().unwrap());
        let judge = move |call: &Call| {
            if !call.path.starts_with(&below) {
                return Verdict::Go;
            }
            let mut noted = noted.lock().unwrap();
            noted.push(call.clone());
            match fail {
                Some((at, errno)) if at + 1 == noted.len() => Verdict::Fail(errno),
                _ => Verdict::Go,
            }
        };
        let dir = self.dir.clone();
        let life = judged(judge, move || Life::live(dir));
        if let Err(error) = &life {
            println!("skipped: the kernel does not let calls be judged: {error}");
        }
        let calls = calls.lock().unwrap().clone();
        Some((life.ok()?, calls))
    }
}

fn strerror(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (").next().unwrap().to_owned()
}

/// After the life: what everybody else sees, and that it goes on.
fn check(life: &Life, context: &str) {
    let acknowledged = |log: &Log| {
        for (seq, body) in &life.acknowledged {
            let found = log.events.iter().find(|(found, _)| found == seq).map(|(_, entry)| entry);
            let found = found.map(|entry| String::from_utf8_lossy(&entry.body).into_owned());
            assert_eq!(found.as_ref(), Some(body), "{context}: seq {seq} is lost");
        }
    };
    let mut log = read(&life.dir).unwrap_or_else(|error| panic!("{context}: {error}"));
    acknowledged(&log);
    let options = cocoon_journal::Options::default();
    let mut journal = SegmentedJournal::open(&life.dir, options).unwrap();
    append(&mut journal, &mut log, "after").unwrap_or_else(|error| panic!("{context}: {error}"));
    acknowledged(&log);
    let bodies = log.bodies();
    let distinct: std::collections::BTreeSet<_> = bodies.iter().collect();
    assert_eq!(distinct.len(), bodies.len(), "{context}: nothing is there twice");
    let report = verify(&life.dir).unwrap();
    assert!(report.is_sound(), "{context}: {report:?}");
    assert_eq!(report.last.seq, log.position.seq, "{context}");
    derived(life, &journal, &log, context);
}

/// Nothing derived is ahead of the log, or different. A checkpoint that could not be read is set aside by the next one.
fn derived(life: &Life, journal: &SegmentedJournal, log: &Log, context: &str) {
    if let Some(checkpoint) = Checkpoint::latest(&life.dir).unwrap().checkpoint {
        checkpoint.verify().unwrap();
        assert!(checkpoint.position().seq <= log.position.seq, "{context}");
    }
    let options = CheckpointOptions::default();
    let mut writer = CheckpointWriter::try_lock(&life.dir, options).unwrap().unwrap();
    writer.write_whole(log.position, log.position, [(b"key", b"value")]).unwrap();
    drop(writer);
    let latest = Checkpoint::latest(&life.dir).unwrap();
    assert!(latest.damaged.is_empty(), "{context}: {:?}", latest.damaged);
    assert_eq!(latest.checkpoint.unwrap().position(), log.position, "{context}");
    let mut store = Store::try_open(&life.dir).unwrap().unwrap();
    let caught_up = store.catch_up(journal, journal.durable().unwrap()).unwrap();
    let accuses = |repair: &cocoon_journal::store::Repaired| repair.cause.accuses_log();
    assert!(!caught_up.repairs.iter().any(accuses), "{context}: {:?}", caught_up.repairs);
    store.verify().unwrap();
    let stored = store.range(1..=Seq::MAX).unwrap().map(|event| event.unwrap().seq);
    assert!(stored.eq(1..=log.position.seq), "{context}: the store has all");
}

/// Fails each call once with each of its errors, or every so many-th of them.
fn fail_each(prepare: fn(&Path), every: usize) {
    let stage = Stage::new(prepare);
    let Some((life, calls)) = stage.live(None) else { return };
    assert_eq!(life.failures, Vec::<String>::new());
    check(&life, "nothing failed");
    for kind in [Kind::Open, Kind::Write, Kind::Sync, Kind::Rename, Kind::Allocate] {
        assert!(calls.iter().any(|call| call.kind == kind), "{kind:?} is among the calls");
    }
    let points = calls.iter().enumerate();
    let points = points.flat_map(|(at, call)| call.kind.errors().iter().map(move |e| (at, *e)));
    let points: Vec<_> = points.step_by(every).collect();
    let (mut told, mut wrong) = (0, Vec::new());
    for (at, errno) in &points {
        match catch_unwind(|| fail_one(prepare, *at, *errno)) {
            Ok(one) => told += usize::from(one),
            Err(_) => wrong.push((at, calls.get(*at), strerror(*errno))),
        }
    }
    assert!(wrong.is_empty(), "see above: {wrong:#?}");
    println!("{} calls, {} failures of them, {told} of these told", calls.len(), points.len());
    assert!(told * 3 > points.len(), "failures reach the caller");
}

/// Whether the failure was told.
fn fail_one(prepare: fn(&Path), at: usize, errno: i32) -> bool {
    let stage = Stage::new(prepare);
    let (life, calls) = stage.live(Some((at, errno))).unwrap();
    // Threads of the store may change the order of calls a little; there is one in that place all the same.
    let Some(call) = calls.get(at) else { return false };
    let name = call.path.strip_prefix(stage.scratch.path()).unwrap_or(&call.path).display();
    let context = format!("{} of {:?} {name} (call {at})", strerror(errno), call.kind);
    assert!(life.failures.len() <= 1, "{context}: the next step goes on: {:#?}", life.failures);
    if let Some(failure) = life.failures.first() {
        assert!(failure.contains(&strerror(errno)), "{context}: why: {failure}");
        let below = stage.scratch.path().to_str().unwrap();
        let named = failure.contains(below) || failure.contains("of the event store");
        assert!(named, "{context}: on what: {failure}");
    }
    let segment = call.path.extension() == Some("seg".as_ref());
    let told = !life.failures.is_empty();
    assert!(
        told || !segment || !matches!(call.kind, Kind::Write | Kind::Sync),
        "{context}: untold"
    );
    check(&life, &context);
    told
}

/// One in so many of the points is taken; all of them with `JOURNAL_FAULTS=1`.
fn every(default: usize) -> usize {
    std::env::var("JOURNAL_FAULTS").map_or(default, |every| every.parse().unwrap())
}

#[test]
fn each_call_of_a_whole_life_fails_once() {
    fail_each(|_| {}, every(29));
}

/// A journal whose last writer died amid its write.
fn with_a_torn_tail(dir: &Path) {
    let mut journal = SegmentedJournal::open(dir, small_segments(4)).unwrap();
    let mut log = Log::default();
    for n in 0..6 {
        append(&mut journal, &mut log, format!("before {n}")).unwrap();
    }
    let segment = std::fs::read_dir(dir.join("seg")).unwrap().map(|entry| entry.unwrap().path());
    let file = std::fs::OpenOptions::new().write(true).open(segment.max().unwrap()).unwrap();
    file.write_all_at(&[0xee; 200], file.metadata().unwrap().len()).unwrap();
}

#[test]
fn each_call_of_a_life_that_begins_with_a_torn_tail_fails_once() {
    fail_each(with_a_torn_tail, every(31));
}

/// How often what is done in a root syncs a segment. `None` without the right to look.
fn syncs(root: &Root, act: impl FnOnce() + Send + 'static) -> Option<usize> {
    let below = root.path().canonicalize().unwrap().join("seg");
    let count = Arc::new(Mutex::new(0));
    let counted = count.clone();
    let judge = move |call: &Call| {
        if call.kind == Kind::Sync && call.path.starts_with(&below) {
            *counted.lock().unwrap() += 1;
        }
        Verdict::Go
    };
    judged(judge, act).ok()?;
    let count = *count.lock().unwrap();
    Some(count)
}

#[test]
fn preparing_from_what_is_not_durable_syncs_nothing_and_answering_does() {
    let root = Root::new();
    append(&mut root.open(), &mut Log::default(), "first").unwrap();
    let head = std::fs::read(root.path().join("HEAD")).unwrap();
    append(&mut root.open(), &mut root.read(), "second").unwrap();
    // As it is while the second writer has written and not yet synced.
    std::fs::write(root.path().join("HEAD"), head).unwrap();
    let dir = root.path();
    let prepare = move || {
        let mut log = Log::default();
        root_at(&dir).look_ahead(&mut log).unwrap();
        assert_eq!(log.bodies(), ["first", "second"]);
    };
    let Some(count) = syncs(&root, prepare) else { return };
    assert_eq!(count, 0);
    let dir = root.path();
    let answer = move || root_at(&dir).refresh(&mut Log::default()).unwrap();
    assert!(syncs(&root, answer).unwrap() > 0);
}

fn root_at(dir: &Path) -> SegmentedJournal {
    SegmentedJournal::open(dir, cocoon_journal::Options::default()).unwrap()
}
