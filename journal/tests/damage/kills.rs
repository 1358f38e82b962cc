//! Repairs that are killed at every step, and given again: the same end.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use cocoon_journal::inspect::{Inspector, Piece};
use cocoon_journal::repair::{Going, RepairError, RepairOptions, repair};
use cocoon_journal::verify::verify;
use cocoon_journal::{Options, SegmentedJournal};

use crate::judge::salvaged;
use crate::world::{Copy, Log, World, append, files, options};

/// Where a child works, and at which boundary, counted from 1, it dies.
const DIR: &str = "COCOON_TEST_REPAIR";
const KILL_AT: &str = "COCOON_TEST_KILL_AT";

/// What is damaged, and what comes of it.
struct Case {
    damage: fn(&Path),
    /// The fewest boundaries that a repair of it passes.
    steps: usize,
    lost: bool,
}

fn boundary(name: &'static str) {
    static PASSED: AtomicUsize = AtomicUsize::new(0);
    if !name.starts_with("repair.") {
        return;
    }
    let passed = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
    if std::env::var(KILL_AT).is_ok_and(|at| at == passed.to_string()) {
        nix::sys::signal::raise(nix::sys::signal::SIGKILL).unwrap();
    }
}

fn accepting(boundary: fn(&'static str)) -> RepairOptions {
    let journal = Options { boundary, ..options() };
    RepairOptions { journal, accept_loss: true, ..RepairOptions::default() }
}

/// Not a test of its own: what the children of the others do.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    repair(&dir, &accepting(boundary)).unwrap();
}

/// Runs the child; says whether it was killed.
fn killed(dir: &Path, at: usize) -> bool {
    use std::os::unix::process::ExitStatusExt;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kills::child"]).env(DIR, dir).env(KILL_AT, at.to_string());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(status.success() || status.signal() == Some(9), "boundary {at}: {status}");
    !status.success()
}

fn zero(path: &Path, share: (usize, usize), len: usize) {
    let size = usize::try_from(fs::metadata(path).unwrap().len()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let at = size * share.0 / share.1;
    file.write_all_at(&vec![0; len.min(size - at)], at as u64).unwrap();
}

fn segment(dir: &Path, n: usize) -> PathBuf {
    files(&dir.join("seg"))[n].clone()
}

fn forget_store(dir: &Path) {
    fs::remove_dir_all(dir.join("sled")).unwrap();
}

/// Bodies of the events that are not the journal's own, as far as they are there.
fn bodies(dir: &Path) -> Vec<(u64, Vec<u8>)> {
    let frames = Inspector::open(dir).unwrap().filter_map(|piece| match piece {
        Piece::Frame(seen) => Some(seen.frame),
        _ => None,
    });
    let events = frames.flat_map(|frame| {
        frame.events().map(|(seq, entry)| (seq, entry.body.clone())).collect::<Vec<_>>()
    });
    let own = salvaged(dir);
    events.filter(|(seq, _)| own.iter().all(|(salvage, _)| salvage != seq)).collect()
}

fn damaged(world: &World, case: &Case) -> Copy {
    let copy = world.copy();
    (case.damage)(&copy.path());
    copy
}

/// Kills a repair at each of its steps, and gives it again.
fn survives(case: &Case) {
    let world = World::new();
    let whole = damaged(&world, case);
    repair(&whole.path(), &accepting(|_| {})).unwrap();
    let (expected, recorded) = (bodies(&whole.path()), salvaged(&whole.path()));
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    assert_eq!(recorded[0].1 > 0, case.lost);
    let mut at = 1;
    loop {
        let copy = damaged(&world, case);
        if !killed(&copy.path(), at) {
            break;
        }
        // Others come by: they may not go on with less.
        let mut log = Log::default();
        let passed_by = SegmentedJournal::open(&copy.path(), options())
            .and_then(|mut journal| append(&mut journal, &mut log, b"by".to_vec()));
        let by = passed_by.is_ok().then(|| b"by".to_vec());
        repair(&copy.path(), &accepting(|_| {})).unwrap();
        let (mut found, told) = (bodies(&copy.path()), salvaged(&copy.path()));
        found.retain(|(_, body)| by.as_ref() != Some(body));
        assert_eq!(found, expected, "step {at}");
        assert_eq!(told.len(), 1, "step {at}: {told:?}");
        let report = verify(&copy.path()).unwrap();
        assert!(report.is_sound(), "step {at}: {:#?}", report.problems);
        assert!(repair(&copy.path(), &accepting(|_| {})).unwrap().is_sound(), "step {at}");
        at += 1;
    }
    assert!(at > case.steps, "only {at} steps");
}

#[test]
fn bytes_that_are_put_back() {
    let damage = |dir: &Path| {
        zero(&segment(dir, 1), (1, 3), 900);
        fs::remove_file(segment(dir, 2)).unwrap();
    };
    survives(&Case { damage, steps: 8, lost: false });
}

#[test]
fn history_that_is_lost_below_a_checkpoint() {
    let damage = |dir: &Path| {
        forget_store(dir);
        zero(&segment(dir, 1), (1, 3), 900);
    };
    survives(&Case { damage, steps: 6, lost: true });
}

#[test]
fn events_that_are_lost_for_good() {
    let damage = |dir: &Path| {
        let generations = fs::read_dir(dir.join("sled")).unwrap().map(|dir| dir.unwrap().path());
        for generation in generations.filter(|path| path > &dir.join(format!("sled/{:020}", 2))) {
            fs::remove_dir_all(generation).unwrap();
        }
        zero(&segment(dir, 3), (1, 2), 3000);
        fs::remove_file(segment(dir, 4)).unwrap();
    };
    survives(&Case { damage, steps: 8, lost: true });
}

#[test]
fn what_is_lost_is_said_to_the_event_and_refused() {
    let world = World::new();
    let copy = world.copy();
    forget_store(&copy.path());
    let path = segment(&copy.path(), 1);
    let (first, last, offset) = frame_in(&path, 5);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 64], offset).unwrap();
    let before = files(&copy.path());
    let refusing = RepairOptions { journal: options(), ..RepairOptions::default() };
    let Err(RepairError::Lost(found)) = repair(&copy.path(), &refusing) else { panic!() };
    assert_eq!(
        found.losses.iter().map(|loss| loss.seqs.clone()).collect::<Vec<_>>(),
        [first..=last]
    );
    assert!(found.losses[0].after_us.is_some() && found.losses[0].before_us.is_some());
    assert!(matches!(found.going, Some(Going::FromCheckpoint { .. })), "{:?}", found.going);
    let text = RepairError::Lost(found).to_string();
    assert!(text.contains(&format!("1 events are lost for good (seq {first})")), "{text}");
    assert!(text.contains("`cocoon journal repair --accept-loss`"), "{text}");
    let made: Vec<_> =
        files(&copy.path()).into_iter().filter(|path| !before.contains(path)).collect();
    assert_eq!(made, Vec::<PathBuf>::new(), "nothing was changed");
    // A backup has it.
    let backup = world.copy();
    let from = RepairOptions { copies: vec![backup.path()], ..refusing };
    let done = repair(&copy.path(), &from).unwrap();
    assert_eq!((done.restored.len(), done.lost()), (1, 0));
    assert_eq!(bodies(&copy.path()), bodies(&backup.path()));
}

/// Numbers and offset of a frame of a segment.
fn frame_in(path: &Path, n: usize) -> (u64, u64, u64) {
    let frames = Inspector::open(path.parent().unwrap()).unwrap().filter_map(|piece| match piece {
        Piece::Frame(seen) => Some(seen),
        _ => None,
    });
    let name = path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    let seen = frames.filter(|seen| seen.segment == name).nth(n).unwrap();
    (seen.frame.header.seq, seen.frame.last_seq(), seen.offset)
}
