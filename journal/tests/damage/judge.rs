//! What comes of a damaged journal.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use cocoon_journal::checkpoint::Checkpoint;
use cocoon_journal::inspect::FaultKind;
use cocoon_journal::repair::{Going, RepairError, RepairOptions, repair};
use cocoon_journal::reserved::{FIRST_KIND, JournalEvent};
use cocoon_journal::store::{Store, StoreError};
use cocoon_journal::verify::verify;
use cocoon_journal::{Entry, Journal, SegmentedJournal, Seq};

use crate::harm::Harm;
use crate::world::{Copy, Log, World, append, files, options};

/// How it ended, from the least trouble to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// Commands go on; nothing is lost.
    GoesOn,
    /// Commands go on, and history is whole; what is derived was made anew.
    MadeAnew,
    /// Commands that need the damaged part refuse; `journal repair` puts everything back.
    Repaired,
    /// Commands refuse and say what is in the way; that moved away, nothing is lost.
    MovedAway,
    /// Events are lost and named; repair refuses, and with the loss accepted the state is whole.
    HistoryLost,
    /// Events are lost and named; repair refuses, and with the loss accepted goes on before it.
    EventsLost,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GoesOn => "goes on",
            Self::MadeAnew => "made anew",
            Self::Repaired => "repaired",
            Self::MovedAway => "named",
            Self::HistoryLost => "history lost, named",
            Self::EventsLost => "events lost, named",
        })
    }
}

/// Opens, reads, writes, verifies and repairs; panics if any of it lies.
pub(crate) fn judge(world: &World, copy: &Copy, harm: Harm, label: &str) -> Outcome {
    let dir = copy.path();
    let before = kept_files(&dir);
    let run = || by_uid(harm, &dir, || judge_as_owner(world, &dir, label));
    let outcome = catch_unwind(AssertUnwindSafe(run));
    let outcome = outcome.unwrap_or_else(|_| panic!("{label}: it panicked, see above"));
    assert!(
        before <= kept_files(&dir) || outcome <= Outcome::MovedAway,
        "{label}: evidence is gone"
    );
    outcome
}

/// Permissions are nothing to root: this thread becomes somebody else.
fn by_uid<T>(harm: Harm, dir: &Path, run: impl FnOnce() -> T + Send) -> T
where
    T: Send,
{
    if harm != Harm::Closed || !nix::unistd::geteuid().is_root() {
        return run();
    }
    let nobody = nix::unistd::Uid::from_raw(65_534);
    let parent = dir.parent().unwrap();
    for path in files(dir).into_iter().chain(dirs(parent)) {
        nix::unistd::chown(&path, Some(nobody), None).unwrap();
    }
    std::thread::scope(|scope| {
        let as_nobody = || {
            // Only this thread: the C library would change all of them.
            // SAFETY: a plain system call with numbers.
            let set =
                unsafe { nix::libc::syscall(nix::libc::SYS_setresuid, 65_534, 65_534, 65_534) };
            assert_eq!(set, 0);
            run()
        };
        scope.spawn(as_nobody).join().unwrap()
    })
}

fn dirs(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = vec![dir.to_owned()];
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(dirs(&path));
        }
    }
    found
}

fn kept_files(dir: &Path) -> usize {
    files(dir).len()
}

fn judge_as_owner(world: &World, dir: &Path, label: &str) -> Outcome {
    match attempt(world, dir, label) {
        Ok(()) => after(world, dir, label),
        Err(refusal) => {
            assert!(
                refusal.contains("cocoon journal") || refusal.contains("Permission denied"),
                "{label}: {refusal}"
            );
            mend(world, dir, label)
        }
    }
}

/// All that commands do; an error is what they would say. History that is read must be whole.
fn attempt(world: &World, dir: &Path, label: &str) -> Result<(), String> {
    let told = |error: cocoon_journal::JournalError| error.to_string();
    let mut journal = SegmentedJournal::open(dir, options()).map_err(told)?;
    // A checkpoint serves, however it fares, or is passed over.
    let latest = Checkpoint::latest(dir).map_err(|error| error.to_string())?;
    let read = |log: &mut Log| journal.refresh(log);
    let mut whole = Log::default();
    read(&mut whole).map_err(told)?;
    assert_eq!(whole.events[..world.acknowledged.len()], world.acknowledged[..], "{label}: read");
    if let Some(checkpoint) = latest.checkpoint {
        for entry in checkpoint.prefix(b"").flatten() {
            let seq = Seq::from_be_bytes(entry.0[1..].try_into().unwrap());
            let index = usize::try_from(seq - 1).unwrap();
            assert_eq!(entry.1, world.acknowledged[index].1.body, "{label}: checkpoint");
        }
    }
    append(&mut journal, &mut whole, b"after".to_vec()).map_err(told)?;
    follow(&journal, &whole, dir, label)
}

/// The store follows, and has everything. What is wrong with a sealed generation is only found when somebody
/// asks, and mended by the next catch-up.
fn follow(journal: &SegmentedJournal, whole: &Log, dir: &Path, label: &str) -> Result<(), String> {
    let mut store = Store::try_open(dir).map_err(|error| error.to_string())?.ok_or("owned")?;
    let durable = journal.durable().map_err(|error| error.to_string())?;
    for _ in 0..4 {
        let caught_up = store.catch_up(journal, durable).map_err(|error| error.to_string())?;
        assert_eq!(caught_up.position, durable, "{label}: the store follows");
        for repair in caught_up.repairs {
            assert!(!repair.cause.accuses_log(), "{label}: {repair:?}");
        }
        match store.range(1..=durable.seq).unwrap().collect::<Result<Vec<_>, _>>() {
            Ok(stored) => {
                let stored: Vec<(Seq, Entry)> =
                    stored.into_iter().map(|event| (event.seq, event.entry)).collect();
                assert_eq!(stored, whole.events, "{label}: the store has everything");
                return Ok(());
            }
            Err(StoreError::Unfit { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    panic!("{label}: the store is not mended");
}

/// Commands go on: is there still something to be mended?
fn after(world: &World, dir: &Path, label: &str) -> Outcome {
    let report = verify(dir).unwrap();
    let damage: Vec<_> = report.problems.iter().filter(|fault| fault.kind.is_damage()).collect();
    if damage.is_empty() {
        let aside = std::fs::read_dir(dir.join("quarantine")).unwrap().count();
        return if aside > 0 { Outcome::MadeAnew } else { Outcome::GoesOn };
    }
    assert!(damage.iter().all(|fault| fault.kind != FaultKind::Derived), "{label}: {damage:?}");
    mend(world, dir, label)
}

/// `journal repair`, without and with the loss accepted.
fn mend(world: &World, dir: &Path, label: &str) -> Outcome {
    let before = files(dir).len();
    let dry = RepairOptions { dry_run: true, ..RepairOptions::default() };
    let _ = repair(dir, &dry);
    assert_eq!(files(dir).len(), before, "{label}: a dry run makes nothing");
    let options = RepairOptions { journal: options(), ..RepairOptions::default() };
    let found = match repair(dir, &options) {
        Ok(done) => {
            let moved = done.restored.is_empty();
            let restored = done.recorded;
            attempt(world, dir, label)
                .unwrap_or_else(|error| panic!("{label}: repaired, but {error}"));
            assert!(verify(dir).unwrap().is_sound(), "{label}: {done:?}");
            assert!(repair(dir, &options).unwrap().is_sound(), "{label}: it is done");
            assert!(moved || salvaged(dir).contains(&(restored.unwrap(), 0)), "{label}: recorded");
            return if moved { Outcome::MovedAway } else { Outcome::Repaired };
        }
        Err(RepairError::Lost(found)) => found,
        Err(error) => panic!("{label}: {error}"),
    };
    assert!(found.lost() > 0 && found.going.is_some(), "{label}: {found:?}");
    let accepting = RepairOptions { accept_loss: true, ..options };
    let done = repair(dir, &accepting).unwrap_or_else(|error| panic!("{label}: {error}"));
    assert_eq!(done.losses, found.losses, "{label}");
    go_on(world, dir, &done.going.unwrap(), label)
}

/// After a loss that was accepted.
fn go_on(world: &World, dir: &Path, going: &Going, label: &str) -> Outcome {
    assert!(verify(dir).unwrap().is_sound(), "{label}: {:#?}", verify(dir).unwrap().problems);
    assert!(salvaged(dir).iter().any(|(_, lost)| *lost > 0), "{label}");
    let mut journal = SegmentedJournal::open(dir, options()).unwrap();
    let (mut log, outcome) = match going {
        Going::Cut { last, .. } => {
            let mut log = Log::default();
            journal.refresh(&mut log).unwrap();
            let kept = usize::try_from(*last).unwrap();
            assert_eq!(log.events[..kept], world.acknowledged[..kept], "{label}");
            assert!(log.events[kept].1.kind >= FIRST_KIND, "{label}: the loss is told next");
            (log, Outcome::EventsLost)
        }
        Going::FromCheckpoint { checkpoint, .. } => {
            let mut log = Log { position: *checkpoint, events: Vec::new() };
            journal.refresh(&mut log).unwrap();
            let from = usize::try_from(checkpoint.seq).unwrap();
            let rest = &world.acknowledged[from..];
            assert_eq!(log.events[..rest.len()], *rest, "{label}");
            (log, Outcome::HistoryLost)
        }
    };
    append(&mut journal, &mut log, b"on".to_vec()).unwrap();
    outcome
}

/// What repairs have recorded: the event's number, and how many events it calls lost.
pub(crate) fn salvaged(dir: &Path) -> Vec<(Seq, u64)> {
    let pieces = cocoon_journal::inspect::Inspector::open(dir).unwrap();
    let frames = pieces.filter_map(|piece| match piece {
        cocoon_journal::inspect::Piece::Frame(seen) => Some(seen.frame),
        _ => None,
    });
    let events = frames.flat_map(|frame| {
        frame.events().map(|(seq, entry)| (seq, entry.clone())).collect::<Vec<_>>()
    });
    let told = events.filter_map(|(seq, entry)| match JournalEvent::from_entry(&entry) {
        Some(JournalEvent::Salvaged { lost, .. }) => Some((seq, lost)),
        _ => None,
    });
    told.collect()
}
