//! Backups of a journal in use, and journals made from them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use cocoon_journal::backup::{BackupError, backup, backup_to};
use cocoon_journal::bundle::{BundleReader, Bundled};
use cocoon_journal::export::export_binary;
use cocoon_journal::reserved::{JOURNAL_RESTORED, JournalEvent};
use cocoon_journal::staging::{Staging, StagingError};
use cocoon_journal::verify::verify;
use cocoon_journal::{Journal as _, Options, Position, Proposal, SegmentedJournal};
use uuid::Uuid;

use crate::child::{Job, Work, acks};
use crate::support::*;

fn back_up(dir: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    backup(dir, &mut out, &mut |_, _| {}).unwrap();
    out
}

fn frames_of(bundle: &[u8]) -> Vec<Bundled> {
    BundleReader::new(bundle).unwrap().map(Result::unwrap).collect()
}

/// Makes a journal of a backup.
fn restore(bundle: &[u8], place: &Path) -> Result<Position, StagingError> {
    let mut reader = BundleReader::new(bundle)?;
    let header = reader.header().clone();
    let mut staging = Staging::begin(place, header.root, Options::default())?;
    let last = staging.fill(Position::default(), reader.by_ref(), |_| Ok(()))?;
    let (taken_us, backup) = (header.made_us, reader.end().digest);
    let origin = JournalEvent::Restored { last: last.seq, taken_us, backup };
    staging.place(last, &origin, &writer())?;
    Ok(last)
}

fn journal_of(count: u64, segment_events: u64) -> (Root, Log) {
    let root = Root::new();
    let mut journal = root.open_with(small_segments(segment_events));
    let mut log = Log::default();
    for n in 0..count {
        append(&mut journal, &mut log, n.to_string()).unwrap();
    }
    (root, log)
}

/// Everything that was acknowledged before the backup began is in it, in its place; and all that is in it stays true.
#[test]
fn a_backup_while_sixty_four_processes_write() {
    let dir = tempfile::tempdir().unwrap();
    let job = |id: &String| Job {
        journal: dir.path().join("journal"),
        acks: dir.path().join(format!("acks-{id}")),
        id: id.clone(),
        count: 24,
        kill_at: 0,
        segment_events: 100,
        work: Work::Append,
    };
    let ids: Vec<_> = (0..64).map(|n| format!("w{n}")).collect();
    let mut children: Vec<_> = ids.iter().map(|id| job(id).spawn()).collect();
    let acked = || -> BTreeMap<u64, String> {
        ids.iter().flat_map(|id| acks(&dir.path().join(format!("acks-{id}")))).collect()
    };
    let mut backups = Vec::new();
    for wanted in [64, 400, 900] {
        while acked().len() < wanted
            && children.iter_mut().any(|child| child.try_wait().unwrap().is_none())
        {
            std::thread::yield_now();
        }
        let before = acked();
        backups.push((before, back_up(&dir.path().join("journal"))));
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let (_, whole) = (0, frames_of(&back_up(&dir.path().join("journal"))));
    assert_eq!(acked().len(), 64 * 24);
    for (before, bundle) in backups {
        let frames = frames_of(&bundle);
        assert_eq!(frames, whole[..frames.len()], "a backup is the beginning of what came to be");
        let events = frames.iter().flat_map(|bundled| bundled.frame.events());
        let bodies: BTreeMap<u64, &[u8]> =
            events.map(|(seq, entry)| (seq, entry.body.as_slice())).collect();
        assert!(before.len() >= 64);
        for (seq, body) in before {
            assert_eq!(
                bodies.get(&seq).copied(),
                Some(body.as_bytes()),
                "seq {seq} was acknowledged"
            );
        }
    }
}

#[test]
fn a_restored_journal_is_the_same_and_says_what_it_is() {
    let (root, log) = journal_of(20, 6);
    let bundle = back_up(&root.path());
    let elsewhere = tempfile::tempdir().unwrap();
    let place = elsewhere.path().join("journal");
    assert_eq!(restore(&bundle, &place).unwrap(), log.position);
    let report = verify(&place).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(report.durable, Some(report.last), "HEAD is right");
    let restored = read(&place).unwrap();
    assert_eq!(restored.events[..log.events.len()], log.events);
    assert_eq!(restored.count(JOURNAL_RESTORED), 1);
    assert_eq!(restored.events.len(), log.events.len() + 1);
    for first in [8, 15] {
        let name = format!("seg/{first:020}.seg");
        let [was, is] = [&root.path(), &place].map(|dir| std::fs::read(dir.join(&name)).unwrap());
        assert!(was == is, "sealed segment {first} is the same, byte for byte");
    }
    let mut journal = SegmentedJournal::open(&place, Options::default()).unwrap();
    let mut log = restored;
    append(&mut journal, &mut log, "on").unwrap();
    assert_eq!(read(&place).unwrap(), log);
}

/// What is staged is durable and says so before anything is added to it.
#[test]
fn head_is_right_before_the_journal_has_its_name() {
    let (root, log) = journal_of(10, 4);
    let bundle = back_up(&root.path());
    let elsewhere = tempfile::tempdir().unwrap();
    let place = elsewhere.path().join("journal");
    let mut staging = Staging::begin(&place, Uuid::from_u128(7), Options::default()).unwrap();
    let reader = BundleReader::new(bundle.as_slice()).unwrap();
    staging.fill(Position::default(), reader, |_| Ok(())).unwrap();
    let report = verify(&elsewhere.path().join("journal.placing")).unwrap();
    assert_eq!((report.durable, report.problems), (Some(log.position), Vec::new()));
}

/// Nobody could open what would be made of it.
#[test]
fn a_history_behind_a_barrier_is_not_placed() {
    let (root, mut log) = journal_of(2, 100);
    let event = JournalEvent::Upgraded { from: 1, to: 2, needs: "9.9.0".to_owned() };
    let entries = vec![event.to_entry().unwrap()];
    let propose = |_: &Log| Ok(Proposal::Append(entries, ()));
    root.open().transact(&mut log, &writer(), deadline(), propose).unwrap();
    let mut bundle = Vec::new();
    export_binary(&root.path(), &(1..=u64::MAX), None, &mut bundle).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let told = restore(&bundle, &elsewhere.path().join("journal")).unwrap_err().to_string();
    assert!(told.contains("9.9.0"), "{told}");
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    let told = backup(&root.path(), &mut Vec::new(), &mut |_, _| {}).unwrap_err().to_string();
    assert!(told.contains("9.9.0"), "{told}");
}

/// A backup that ends with a seal has the next segment, which is empty, in it.
#[test]
fn a_backup_may_end_anywhere() {
    for count in 1..14 {
        let (root, log) = journal_of(count, 4);
        let elsewhere = tempfile::tempdir().unwrap();
        let place = elsewhere.path().join("journal");
        assert_eq!(restore(&back_up(&root.path()), &place).unwrap(), log.position, "{count}");
        assert_eq!(verify(&place).unwrap().problems, [], "{count}");
        let mut journal = SegmentedJournal::open(&place, small_segments(4)).unwrap();
        let mut log = Log::default();
        append(&mut journal, &mut log, "on").unwrap();
        assert_eq!(read(&place).unwrap(), log, "{count}");
    }
}

#[test]
fn nothing_is_ever_written_over() {
    let (root, log) = journal_of(5, 100);
    let bundle = back_up(&root.path());
    let refused = restore(&bundle, &root.path()).unwrap_err();
    assert!(matches!(refused, StagingError::Exists { .. }));
    assert!(refused.to_string().contains("mv "), "{refused}");
    assert_eq!(root.read(), log);
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("b");
    std::fs::write(&path, "mine").unwrap();
    let refused = backup_to(&root.path(), &path, |_| {}, &mut |_, _| {});
    assert!(matches!(refused, Err(BackupError::Exists { .. })));
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink(scratch.path().join("nowhere"), &link).unwrap();
    let refused = backup_to(&root.path(), &link, |_| {}, &mut |_, _| {});
    assert!(matches!(refused, Err(BackupError::Exists { .. })), "a link is no free name");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let target = scratch.path().join("target");
    std::fs::write(&target, "mine").unwrap();
    std::os::unix::fs::symlink(&target, scratch.path().join("c.writing")).unwrap();
    let refused = backup_to(&root.path(), &scratch.path().join("c"), |_| {}, &mut |_, _| {});
    assert!(matches!(refused, Err(BackupError::Output { .. })), "nor is it followed");
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
}

#[test]
fn a_damaged_backup_places_nothing() {
    let (root, _) = journal_of(8, 3);
    let bundle = back_up(&root.path());
    let elsewhere = tempfile::tempdir().unwrap();
    let place = elsewhere.path().join("journal");
    for at in (0..bundle.len()).step_by(37) {
        let mut damaged = bundle.clone();
        damaged[at] ^= 4;
        assert!(restore(&damaged, &place).is_err(), "byte {at}");
        assert!(restore(&bundle[..at], &place).is_err(), "cut at {at}");
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0, "byte {at}");
    }
    restore(&bundle, &place).unwrap();
}

/// An output that fails leaves nothing under the name, nor beside it.
#[test]
fn a_backup_that_fails_leaves_nothing() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (root, _) = journal_of(8, 3);
    let failed = backup(&root.path(), &mut Full(900), &mut |_, _| {});
    assert!(matches!(failed, Err(BackupError::Output { .. })));
    let scratch = tempfile::tempdir().unwrap();
    let mut segment = std::fs::OpenOptions::new().append(true).open(root.segment(1)).unwrap();
    // A journal that cannot be read to its durable end gives no backup either.
    segment.write_all(b"x").unwrap();
    std::fs::remove_file(root.segment(5)).unwrap();
    let failed = backup_to(&root.path(), &scratch.path().join("b"), |_| {}, &mut |_, _| {});
    assert!(failed.is_err());
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// After a reboot nobody may have published how far the journal is durable; what was acknowledged is in the backup.
#[test]
fn a_backup_in_a_later_boot_has_all_of_it() {
    let (root, log) = journal_of(6, 100);
    // HEAD is never synced: a power cut may leave an older one, or none.
    std::fs::write(root.path().join("HEAD"), [0; 1024]).unwrap();
    let frames = frames_of(&back_up(&root.path()));
    assert_eq!(frames.last().unwrap().frame.position(frames.last().unwrap().hash), log.position);
}

#[test]
fn other_roots_and_other_histories_are_told_apart() {
    let (root, _) = journal_of(5, 100);
    let bundle = back_up(&root.path());
    let reader = BundleReader::new(bundle.as_slice()).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let place = elsewhere.path().join("journal");
    let mut staging = Staging::begin(&place, Uuid::from_u128(7), Options::default()).unwrap();
    let busy = Staging::begin(&place, Uuid::from_u128(7), Options::default());
    assert!(matches!(busy, Err(StagingError::Busy { .. })));
    let without_first = reader.skip(1);
    let refused = staging.fill(Position::default(), without_first, |_| Ok(()));
    assert!(matches!(refused, Err(StagingError::Chain { seq: 2, .. })));
    drop(staging);
    let reader = BundleReader::new(bundle.as_slice()).unwrap();
    let mut staging = Staging::begin(&place, Uuid::from_u128(7), Options::default()).unwrap();
    let refused = staging.fill(Position::default(), reader, |entry| match entry.body.as_slice() {
        b"3" => Err("not this one".into()),
        _ => Ok(()),
    });
    assert!(matches!(refused, Err(StagingError::Event { seq: 4, .. })));
}

#[test]
fn a_reader_of_a_restored_root_names_it() {
    let (root, _) = journal_of(5, 100);
    let uuid = SegmentedJournal::open(&root.path(), Options::default()).unwrap().root();
    let elsewhere = tempfile::tempdir().unwrap();
    let place = elsewhere.path().join("journal");
    restore(&back_up(&root.path()), &place).unwrap();
    let journal = SegmentedJournal::open(&place, Options::default()).unwrap();
    assert_eq!(journal.root(), uuid);
    assert_eq!(journal.durable().unwrap().seq, 6);
}
