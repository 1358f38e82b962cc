//! Disks that fail: writes that cannot be made, pages that vanish after they were written.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use cocoon_journal::{Journal, JournalError, Options, Proposal, SegmentedJournal};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::support::*;

/// A frame that its writer wrote but did not live to sync; a second handle has seen it.
fn seen_but_never_synced(root: &Root) -> (SegmentedJournal, Log, Vec<u8>) {
    let mut log = Log::default();
    append(&mut root.open(), &mut log, "durable").unwrap();
    let before = std::fs::read(root.segment(1)).unwrap();
    let boundary = |name| assert_ne!(name, "journal.sync.before", "the writer dies");
    let dying = || root.open_with(Options { boundary, ..Options::default() });
    let died =
        catch_unwind(AssertUnwindSafe(|| append(&mut dying(), &mut Log::default(), "unsynced")));
    assert!(died.is_err());
    let boundary = |name| assert!(name != "journal.locked" || !DIES.get(), "the reader is stopped");
    let journal = root.open_with(Options { boundary, ..Options::default() });
    DIES.set(true);
    let stopped = catch_unwind(AssertUnwindSafe(|| journal.refresh(&mut log)));
    DIES.set(false);
    assert!(stopped.is_err(), "it was about to write again what it saw");
    assert_eq!(log.bodies(), ["durable", "unsynced"]);
    (journal, log, before)
}

/// The kernel could not write the page back, told somebody else, and dropped it.
#[test]
fn a_vanished_frame_is_written_again_by_whoever_relied_on_it() {
    let root = Root::new();
    let (mut journal, mut log, before) = seen_but_never_synced(&root);
    let whole = std::fs::read(root.segment(1)).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(root.segment(1)).unwrap();
    file.write_all_at(&vec![0; whole.len() - before.len()], before.len() as u64).unwrap();
    append(&mut journal, &mut log, "next").unwrap();
    assert_eq!(log.bodies(), ["durable", "unsynced", "next"]);
    assert_eq!(root.read(), log);
}

/// The same, but meanwhile another process has gone on without the frame.
#[test]
fn a_handle_that_followed_a_lost_history_is_told() {
    let root = Root::new();
    let (mut journal, mut log, before) = seen_but_never_synced(&root);
    std::fs::write(root.segment(1), before).unwrap();
    let mut other = Log::default();
    append(&mut root.open(), &mut other, "other").unwrap();
    let error = append(&mut journal, &mut log, "mine").unwrap_err();
    assert!(matches!(error, JournalError::Diverged { .. }), "{error}");
    assert_eq!(root.read(), other, "nothing of the other history is touched");
    let mut anew = Log::default();
    append(&mut root.open(), &mut anew, "mine").unwrap();
    assert_eq!(anew.bodies(), ["durable", "other", "mine"]);
}

thread_local! {
    static DIES: Cell<bool> = const { Cell::new(false) };
    /// The boundary at which the segment's descriptor breaks.
    static BREAK_AT: Cell<&'static str> = const { Cell::new("") };
    static SEGMENT: RefCell<PathBuf> = RefCell::default();
}

/// At the boundary, puts a pipe in place of the open segment: no write and no sync works any more.
fn break_segment(name: &'static str) {
    if BREAK_AT.get() != name {
        return;
    }
    let (pipe, _) = nix::unistd::pipe().unwrap();
    let segment = SEGMENT.with_borrow(Clone::clone);
    let mut broken = 0;
    for fd in std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()) {
        if std::fs::read_link(&fd).is_ok_and(|target| target == segment) {
            let number = fd.file_name().unwrap().to_str().unwrap().parse().unwrap();
            // SAFETY: the descriptor belongs to a file that this test opened, and stays open.
            assert_eq!(unsafe { nix::libc::dup2(pipe.as_raw_fd(), number) }, number);
            broken += 1;
        }
    }
    assert!(broken > 0, "the segment is open");
}

fn append_with_a_broken_disk(root: &Root, at: &'static str) {
    let mut log = Log::default();
    append(&mut root.open(), &mut log, "before").unwrap();
    let mut journal = root.open_with(Options { boundary: break_segment, ..Options::default() });
    SEGMENT.replace(root.segment(1).canonicalize().unwrap());
    BREAK_AT.set(at);
    let error = append(&mut journal, &mut log, "doubtful").unwrap_err();
    BREAK_AT.set("");
    let JournalError::Unacknowledged { seqs, .. } = &error else { panic!("{error}") };
    assert_eq!(*seqs, 2..=2, "{error}");
    let again = append(&mut journal, &mut log, "again").unwrap_err();
    assert!(matches!(again, JournalError::Poisoned), "{again}");
    assert!(matches!(journal.refresh(&mut log), Err(JournalError::Poisoned)));
}

#[test]
fn a_failed_write_is_no_acknowledgement() {
    let root = Root::new();
    append_with_a_broken_disk(&root, "journal.write.before");
    let mut log = Log::default();
    append(&mut root.open(), &mut log, "after").unwrap();
    assert_eq!(log.bodies(), ["before", "after"]);
}

#[test]
fn a_failed_sync_is_no_acknowledgement_and_the_next_writer_makes_up_for_it() {
    let root = Root::new();
    append_with_a_broken_disk(&root, "journal.sync.before");
    assert_eq!(root.open().durable().unwrap().seq, 1);
    let mut log = Log::default();
    append(&mut root.open(), &mut log, "after").unwrap();
    assert_eq!(log.bodies(), ["before", "doubtful", "after"]);
    assert_eq!(root.open().durable().unwrap().seq, 3);
}

/// In a mount namespace of this thread: a file system of 1 MiB.
fn on_a_small_disk(test: impl FnOnce(&Path) + Send + 'static) {
    let run = move || {
        if unshare(CloneFlags::CLONE_NEWNS).is_err() {
            println!("skipped: mounting needs privileges");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let size = Some("size=1m");
        mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), size).unwrap();
        test(dir.path());
        nix::mount::umount2(dir.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    };
    std::thread::spawn(run).join().unwrap();
}

/// Takes all that is left of the disk.
fn fill(ballast: &Path) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(ballast).unwrap();
    while file.write(&[1; 4096]).is_ok() {}
}

/// Allocated bytes of a file.
fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_full_disk_is_named_and_can_be_left() {
    on_a_small_disk(|dir| {
        let path = dir.join("journal");
        let ballast = dir.join("ballast");
        std::fs::write(&ballast, vec![1; 400 * 1024]).unwrap();
        let mut journal = SegmentedJournal::open(&path, Options::default()).unwrap();
        let mut log = Log::default();
        let mut acknowledged = 0;
        let error = loop {
            match append(&mut journal, &mut log, "x".repeat(4000)) {
                Ok(_) => acknowledged += 1,
                Err(error) => break error,
            }
        };
        assert!(error.is_full_disk(), "{error}");
        let text = error.to_string();
        assert!(text.contains("No space left") && text.contains("KiB are kept for"), "{text}");
        assert!(acknowledged > 10, "{acknowledged}");
        assert_eq!(log.bodies().len(), acknowledged, "the fold is as it was");
        assert_eq!(read(&path).unwrap(), log, "nothing acknowledged is lost");
        std::fs::remove_file(&ballast).unwrap();
        append(&mut journal, &mut log, "after").unwrap();
        assert_eq!(log.bodies().len(), acknowledged + 1, "the same handle goes on");
        assert_eq!(read(&path).unwrap(), log);
    });
}

/// What is kept serves those that may use it, and only them, to its last byte.
#[test]
fn the_reserve_of_a_full_disk_is_for_those_who_may_use_it() {
    on_a_small_disk(|dir| {
        let path = dir.join("journal");
        let mut journal = SegmentedJournal::open(&path, Options::default()).unwrap();
        let mut log = Log::default();
        append(&mut journal, &mut log, "before").unwrap();
        fill(&dir.join("ballast"));
        let body = "x".repeat(4000);
        while append(&mut journal, &mut log, body.clone()).is_ok() {}
        let ordinary = log.bodies().len();
        let mut urgent = 0;
        let error = loop {
            match append_from_reserve(&mut journal, &mut log, body.clone()) {
                Ok(_) => urgent += 1,
                Err(error) => break error,
            }
            let refused = append(&mut journal, &mut log, "refused").unwrap_err();
            assert!(matches!(refused, JournalError::OnlyReserveLeft { .. }), "{refused}");
        };
        assert!(urgent * 4000 >= 200 * 1024, "{urgent} frames");
        assert!(error.is_full_disk() && error.to_string().contains("No space left"), "{error}");
        assert_eq!(log.bodies().len(), ordinary + urgent);
        assert_eq!(read(&path).unwrap(), log);
        std::fs::remove_file(dir.join("ballast")).unwrap();
        append(&mut journal, &mut log, "after").unwrap();
        assert!(allocated(&path.join("seg/00000000000000000001.seg")) > 512 * 1024, "kept anew");
        assert_eq!(read(&path).unwrap(), log);
    });
}

/// A writer that died while it wrote, and no room for a copy of what it left.
#[test]
fn an_unfinished_tail_does_not_lock_a_full_disk() {
    on_a_small_disk(|dir| {
        let path = dir.join("journal");
        let mut journal = SegmentedJournal::open(&path, Options::default()).unwrap();
        let mut log = Log::default();
        append(&mut journal, &mut log, "before").unwrap();
        let segment = path.join("seg/00000000000000000001.seg");
        fill(&dir.join("ballast"));
        let file = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
        file.write_all_at(&[0xee; 300], file.metadata().unwrap().len()).unwrap();
        append_from_reserve(&mut journal, &mut log, "urgent").unwrap();
        assert_eq!(log.bodies(), ["before", "urgent"]);
        assert_eq!(log.count(cocoon_journal::reserved::JOURNAL_TAIL_CUT), 1);
        assert_eq!(std::fs::read_dir(path.join("quarantine")).unwrap().count(), 0);
        assert_eq!(read(&path).unwrap(), log);
    });
}

#[test]
fn a_seal_waits_for_space() {
    on_a_small_disk(|dir| {
        let path = dir.join("journal");
        let options = Options { segment_events: 2, ..Options::default() };
        let mut journal = SegmentedJournal::open(&path, options).unwrap();
        let mut log = Log::default();
        append(&mut journal, &mut log, "0").unwrap();
        let ballast = dir.join("ballast");
        fill(&ballast);
        append(&mut journal, &mut log, "1").unwrap();
        append(&mut journal, &mut log, "2").unwrap();
        let files = || std::fs::read_dir(path.join("seg")).unwrap().count();
        assert_eq!(files(), 1, "and nothing half made that takes room");
        std::fs::remove_file(&ballast).unwrap();
        append(&mut journal, &mut log, "3").unwrap();
        let (sealed, next) = ("seg/00000000000000000001.seg", "seg/00000000000000000006.seg");
        assert!(path.join(next).exists(), "4 events and the seal");
        assert!(allocated(&path.join(next)) >= 256 * 1024, "the next has its reserve");
        assert!(allocated(&path.join(sealed)) < 16 * 1024, "the sealed one gave it back");
        assert_eq!(read(&path).unwrap(), log);
    });
}

#[test]
fn another_root_is_refused() {
    let root = Root::new();
    let journal = root.open();
    let other = Some(uuid::Uuid::from_u128(5));
    let same = Options { root: Some(journal.root()), ..Options::default() };
    SegmentedJournal::open(&root.path(), same).unwrap();
    let error = SegmentedJournal::open(&root.path(), Options { root: other, ..Options::default() });
    assert!(matches!(error.unwrap_err(), JournalError::ForeignRoot { .. }));
}

#[test]
fn a_journal_put_in_place_of_another_is_noticed() {
    let (root, copy) = (Root::new(), tempfile::tempdir().unwrap());
    let (mut journal, mut log) = (root.open(), Log::default());
    append(&mut journal, &mut log, "0").unwrap();
    let status =
        std::process::Command::new("cp").arg("-a").arg(root.path()).arg(copy.path()).status();
    assert!(status.unwrap().success());
    append(&mut journal, &mut log, "1").unwrap();
    std::fs::rename(root.path(), copy.path().join("old")).unwrap();
    std::fs::rename(copy.path().join("journal"), root.path()).unwrap();
    let decide = |_: &Log| Ok(Proposal::Answer(()));
    let error = journal.transact(&mut log, &writer(), deadline(), decide).unwrap_err();
    assert!(
        matches!(error, JournalError::Damaged { .. } | JournalError::Diverged { .. }),
        "{error}"
    );
}
