use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::backup::backup;
use crate::bundle::BundleReader;
use crate::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
use crate::inspect::{Inspector, Piece};
use crate::journal::Unfolded;
use crate::staging::Staging;
use crate::testing::{boundary, child_dir, kill_at_each_boundary, write_events};
use crate::verify::verify;

fn writer() -> Writer {
    Writer::of_this_process(Uuid::from_u128(5), "archive").unwrap()
}

fn archive(
    journal: &Path,
    before: Seq,
    to: &Path,
    boundary: fn(&'static str),
) -> Result<Option<Archived>, ArchiveError> {
    let options = Options { boundary, ..Options::default() };
    let Some(archive) = Archive::begin(journal, Before::Seq(before), to, options)? else {
        return Ok(None);
    };
    let previous = archive.previous()?;
    let mut seen = previous.as_ref().map_or(0, |stub| stub.position().seq);
    let end = archive.copy::<ArchiveError>(
        |frame, _| {
            assert_eq!(frame.header.seq, seen + 1, "each frame once, in order");
            seen = frame.last_seq();
            Ok(())
        },
        &mut |_, _| {},
    )?;
    let state = vec![(b"v/a".to_vec(), seen.to_le_bytes().to_vec())];
    let remembered = vec![b"vm/a".to_vec()];
    let deadline = Instant::now() + Duration::from_secs(60);
    archive.finish(end, state, remembered, &writer(), deadline).map(Some)
}

/// Sequence numbers and hashes of all frames.
fn frames(dir: &Path) -> Vec<Position> {
    let pieces = Inspector::open(dir).unwrap();
    pieces
        .filter_map(|piece| match piece {
            Piece::Segment(_) => None,
            Piece::Frame(seen) => Some(seen.frame.position(seen.hash)),
            Piece::Fault(fault) => panic!("{fault}"),
        })
        .collect()
}

/// Nothing of `before` is lost, and what is in both places is the same.
fn assert_all_there(before: &[Position], journal: &Path, to: &Path, place: &str) {
    let (kept, mut moved) =
        (frames(journal), if to.join("seg").exists() { frames(to) } else { Vec::new() });
    let begins = kept.first().map_or(0, |first| first.seq);
    moved.retain(|position| position.seq < begins);
    let all = [moved, kept].concat();
    assert_eq!(all.get(..before.len()), Some(before), "{place}");
}

#[test]
fn history_goes_and_the_state_stays() {
    let scratch = tempfile::tempdir().unwrap();
    let (journal, to) = (scratch.path().join("journal"), scratch.path().join("old"));
    write_events(&journal, 20, 6);
    let before = frames(&journal);
    assert_eq!(archive(&journal, 7, &to, |_| {}).unwrap(), None, "no whole segment is before 7");
    let archived = archive(&journal, 16, &to, |_| {}).unwrap().unwrap();
    assert_eq!((archived.from, archived.first, archived.segments), (1, 15, 2));
    assert_all_there(&before, &journal, &to, "after it");
    assert_eq!(frames(&to).last().unwrap().seq, 14);
    let stub = Stub::latest(&journal).unwrap().unwrap();
    assert_eq!(stub.position(), before[13]);
    assert_eq!(stub.moved_to().unwrap(), Some(to.clone()));
    assert_eq!(stub.remembered().map(Result::unwrap).collect::<Vec<_>>(), [b"vm/a"]);
    let checkpoint = Checkpoint::latest(&journal).unwrap().checkpoint.unwrap();
    assert_eq!(checkpoint.position(), stub.position());
    assert_eq!(checkpoint.get(b"v/a").unwrap().unwrap(), 14_u64.to_le_bytes());
    let handle = SegmentedJournal::open(&journal, Options::default()).unwrap();
    let gone = handle.frames(3).unwrap_err();
    assert!(matches!(gone, JournalError::HistoryBegins { first: 15, wanted: 3 }));
    let mut fold = Unfolded(stub.position());
    handle.refresh(&mut fold).unwrap();
    assert_eq!(archive(&journal, 16, &to, |_| {}).unwrap(), None, "there is no more of it");
    write_events(&journal, 10, 6);
    let before = [before, frames(&journal)].concat();
    let again = archive(&journal, 25, &to, |_| {}).unwrap().unwrap();
    assert_eq!(again.from, 15);
    let stub = Stub::latest(&journal).unwrap().unwrap();
    assert_eq!(stub.position().seq + 1, again.first);
    assert_eq!(std::fs::read_dir(journal.join("stub")).unwrap().count(), 1);
    assert_eq!(
        frames(&to).len() as u64,
        stub.position().seq,
        "into the same archive, one frame an event"
    );
    assert!(verify(&journal).unwrap().is_sound() && verify(&to).unwrap().is_sound());
    assert_eq!(before[0].seq, 1);
}

/// A writer of checkpoints goes on from the stub, and what the stub remembers beside the state stays there.
#[test]
fn checkpoints_go_on_from_the_stub() {
    let scratch = tempfile::tempdir().unwrap();
    let (journal, to) = (scratch.path().join("journal"), scratch.path().join("old"));
    write_events(&journal, 20, 6);
    archive(&journal, 16, &to, |_| {}).unwrap().unwrap();
    let stub = Stub::latest(&journal).unwrap().unwrap().position();
    let mut writer =
        CheckpointWriter::try_lock(&journal, CheckpointOptions::default()).unwrap().unwrap();
    assert_eq!(writer.previous().map(Checkpoint::position), Some(stub));
    let end = *frames(&journal).last().unwrap();
    writer.write_changes(stub, end, end, [(b"v/b".to_vec(), Some(b"new".to_vec()))]).unwrap();
    drop(writer);
    let latest = Checkpoint::latest(&journal).unwrap().checkpoint.unwrap();
    assert_eq!(latest.position(), end);
    let keys: Vec<_> = latest.prefix(b"").map(|entry| entry.unwrap().0).collect();
    assert_eq!(keys, [b"v/a".to_vec(), b"v/b".to_vec()]);
    latest.verify().unwrap();
    // Without checkpoints the stub is still there.
    std::fs::remove_dir_all(journal.join("ckpt")).unwrap();
    let latest = Checkpoint::latest(&journal).unwrap().checkpoint.unwrap();
    assert_eq!(latest.position(), stub);
}

#[test]
fn the_event_store_follows() {
    let scratch = tempfile::tempdir().unwrap();
    let (journal, to) = (scratch.path().join("journal"), scratch.path().join("old"));
    write_events(&journal, 20, 6);
    let handle = SegmentedJournal::open(&journal, Options::default()).unwrap();
    let mut store = Store::try_open(&journal).unwrap().unwrap();
    let durable = handle.durable().unwrap();
    store.catch_up(&handle, durable).unwrap();
    let refused = archive(&journal, 16, &to, |_| {});
    assert!(
        matches!(refused, Err(ArchiveError::StoreBusy)),
        "the owner of the store must go first"
    );
    assert_eq!(frames(&journal).len(), 23, "nothing was removed");
    drop(store);
    archive(&journal, 16, &to, |_| {}).unwrap().unwrap();
    let mut store = Store::try_open(&journal).unwrap().unwrap();
    assert_eq!(store.first_seq().unwrap(), Some(15));
    let durable = handle.durable().unwrap();
    assert_eq!(store.catch_up(&handle, durable).unwrap().repairs, []);
    store.verify().unwrap();
    drop(store);
    std::fs::remove_dir_all(journal.join("sled")).unwrap();
    let mut store = Store::try_open(&journal).unwrap().unwrap();
    assert_eq!(store.catch_up(&handle, durable).unwrap().position, durable, "made anew");
    assert_eq!(store.first_seq().unwrap(), Some(15));
}

/// A backup of it begins with the state, and so does what is made of the backup.
#[test]
fn what_is_left_can_be_backed_up_and_restored() {
    let scratch = tempfile::tempdir().unwrap();
    let (journal, to) = (scratch.path().join("journal"), scratch.path().join("old"));
    write_events(&journal, 20, 6);
    archive(&journal, 16, &to, |_| {}).unwrap().unwrap();
    let mut out = Vec::new();
    backup(&journal, &mut out, &mut |_, _| {}).unwrap();
    let place = scratch.path().join("restored");
    let make = |bytes: &[u8]| -> Result<Position, crate::staging::StagingError> {
        let mut reader = BundleReader::new(bytes)?;
        let header = reader.header().clone();
        let before = Position { seq: header.first - 1, hash: header.prev_hash };
        let mut staging = Staging::begin(&place, header.root, Options::default())?;
        staging.stub(before, |file| reader.copy_stub(file))?;
        let last = staging.fill(before, reader.by_ref(), |_| Ok(()))?;
        let origin = JournalEvent::Restored { last: last.seq, taken_us: 0, backup: [0; 32] };
        staging.place(last, &origin, &writer()).map(|()| last)
    };
    for at in (128..out.len()).step_by(61) {
        let mut damaged = out.clone();
        damaged[at] ^= 1;
        assert!(make(&damaged).is_err(), "byte {at}");
    }
    make(&out).unwrap();
    let stub = Stub::latest(&place).unwrap().unwrap();
    assert_eq!(stub.position().seq, 14);
    stub.verify().unwrap();
    let was = frames(&journal);
    assert_eq!(frames(&place)[..was.len()], was);
    assert!(verify(&place).unwrap().is_sound());
}

#[test]
fn no_archive_lies_within_the_journal_or_over_something_else() {
    let scratch = tempfile::tempdir().unwrap();
    let journal = scratch.path().join("journal");
    write_events(&journal, 20, 6);
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink(&journal, &link).unwrap();
    let linked = scratch.path().join("linked");
    std::fs::create_dir(&linked).unwrap();
    std::os::unix::fs::symlink(journal.join("seg"), linked.join("seg")).unwrap();
    for to in [journal.clone(), journal.join("old"), link, linked] {
        let refused = archive(&journal, 16, &to, |_| {});
        assert!(
            matches!(refused, Err(ArchiveError::Occupied { .. })),
            "{}: {refused:?}",
            to.display()
        );
        assert_eq!(frames(&journal).len(), 23, "{}", to.display());
    }
    let other = scratch.path().join("other");
    std::fs::create_dir_all(other.join("seg")).unwrap();
    std::fs::write(name_in(&other.join("seg"), 1), "mine").unwrap();
    let refused = archive(&journal, 16, &other, |_| {});
    assert!(matches!(refused, Err(ArchiveError::Occupied { .. })));
    assert_eq!(frames(&journal).len(), 23);
}

#[test]
fn damage_is_not_moved_away() {
    let scratch = tempfile::tempdir().unwrap();
    let (journal, to) = (scratch.path().join("journal"), scratch.path().join("old"));
    write_events(&journal, 20, 6);
    let path = name_in(&journal.join("seg"), 8);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[500] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(archive(&journal, 16, &to, |_| {}).is_err());
    assert!(name_in(&journal.join("seg"), 1).exists() && Stub::latest(&journal).unwrap().is_none());
}

#[test]
fn child() {
    if let Some(dir) = child_dir() {
        archive(&dir.join("journal"), 22, &dir.join("old"), boundary).unwrap();
    }
}

fn prepare(dir: &Path) {
    let journal = dir.join("journal");
    write_events(&journal, 24, 6);
    let handle = SegmentedJournal::open(&journal, Options::default()).unwrap();
    let mut store = Store::try_open(&journal).unwrap().unwrap();
    let durable = handle.durable().unwrap();
    store.catch_up(&handle, durable).unwrap();
}

/// Wherever a move is killed: nothing is lost, the journal goes on, and doing the same again ends it.
fn check(dir: &Path, place: &str) {
    let (journal, to) = (dir.join("journal"), dir.join("old"));
    let whole = tempfile::tempdir().unwrap();
    write_events(&whole.path().join("journal"), 24, 6);
    let begins = |dir: &Path| frames(dir).first().unwrap().seq;
    let kept = frames(&journal);
    let all: Vec<u64> = match begins(&journal) {
        1 => kept.iter().map(|position| position.seq).collect(),
        first => {
            let moved = frames(&to).into_iter().filter(|position| position.seq < first);
            moved.chain(kept).map(|position| position.seq).collect()
        }
    };
    assert!(all.iter().copied().eq(1..=all.len() as u64) && all.len() >= 27, "{place}: {all:?}");
    let handle = SegmentedJournal::open(&journal, Options::default()).unwrap();
    let checkpoint = Checkpoint::latest(&journal).unwrap().checkpoint;
    let mut fold = Unfolded(checkpoint.map(|it| it.position()).unwrap_or_default());
    handle.refresh(&mut fold).unwrap_or_else(|error| panic!("{place}: {error}"));
    let elsewhere = archive(&journal, 22, &dir.join("elsewhere"), |_| {});
    match elsewhere {
        Err(ArchiveError::Unfinished { to: begun, .. }) => assert_eq!(begun, to, "{place}"),
        Ok(_) => return assert_all_moved(&journal, place),
        Err(error) => panic!("{place}: {error}"),
    }
    archive(&journal, 22, &to, |_| {}).unwrap_or_else(|error| panic!("{place}: {error}"));
    assert_all_moved(&journal, place);
}

fn assert_all_moved(journal: &Path, place: &str) {
    let kept = frames(journal);
    assert_eq!(kept.first().unwrap().seq, 22, "{place}");
    assert_eq!(Stub::latest(journal).unwrap().unwrap().position().seq, 21, "{place}");
    let handle = SegmentedJournal::open(journal, Options::default()).unwrap();
    let archived: Vec<_> = handle
        .frames(22)
        .unwrap()
        .flat_map(|frame| frame.unwrap().0.entries)
        .filter(|entry| entry.kind == crate::reserved::JOURNAL_ARCHIVED)
        .collect();
    assert_eq!(archived.len(), 1, "{place}: recorded once");
    let mut store = Store::try_open(journal).unwrap().unwrap();
    let durable = handle.durable().unwrap();
    assert_eq!(store.catch_up(&handle, durable).unwrap().repairs, [], "{place}");
    assert_eq!(store.first_seq().unwrap(), Some(22), "{place}");
}

#[test]
fn a_move_that_is_killed_loses_nothing_and_goes_on() {
    kill_at_each_boundary("archive::tests::child", prepare, check);
}
