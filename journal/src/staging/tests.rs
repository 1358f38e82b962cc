use super::*;
use crate::backup::backup;
use crate::bundle::BundleReader;
use crate::inspect::{Inspector, Piece};
use crate::testing::{boundary, child_dir, kill_at_each_boundary, write_events};
use crate::verify::verify;

/// Makes a journal of the backup that lies beside its place.
fn restore(dir: &Path, boundary: fn(&'static str)) -> Result<(), StagingError> {
    let bytes = std::fs::read(dir.join("backup")).unwrap();
    let mut reader = BundleReader::new(bytes.as_slice())?;
    let header = reader.header().clone();
    let options = Options { boundary, ..Options::default() };
    let mut staging = Staging::begin(&dir.join("root/journal"), header.root, options)?;
    let last = staging.fill(Position::default(), reader.by_ref(), |_| Ok(()))?;
    let backup = reader.end().digest;
    let origin = JournalEvent::Restored { last: last.seq, taken_us: header.made_us, backup };
    let writer = Writer::of_this_process(Uuid::from_u128(4), "restore").unwrap();
    staging.place(last, &origin, &writer)
}

#[test]
fn child() {
    if let Some(dir) = child_dir() {
        restore(&dir, boundary).unwrap();
    }
}

fn prepare(dir: &Path) {
    let source = tempfile::tempdir().unwrap();
    let journal = source.path().join("journal");
    write_events(&journal, 14, 5);
    let mut out = Vec::new();
    backup(&journal, &mut out, &mut |_, _| {}).unwrap();
    std::fs::write(dir.join("backup"), out).unwrap();
    std::fs::create_dir(dir.join("root")).unwrap();
}

/// Wherever a restore is killed: the next one makes the journal, or says that it is there; and it is whole, and says that
/// it was restored, once.
fn check(dir: &Path, place: &str) {
    let journal = dir.join("root/journal");
    if journal.exists() {
        assert!(verify(&journal).unwrap().is_sound(), "{place}: nobody meets half a journal");
    }
    match restore(dir, |_| {}) {
        Ok(()) | Err(StagingError::Exists { .. }) => {}
        Err(error) => panic!("{place}: {error}"),
    }
    let report = verify(&journal).unwrap();
    assert_eq!(report.problems, [], "{place}");
    assert_eq!(report.durable, Some(report.last), "{place}");
    let frames = Inspector::open(&journal).unwrap().filter_map(|piece| match piece {
        Piece::Frame(seen) => Some(seen.frame),
        _ => None,
    });
    let events: Vec<_> = frames.flat_map(|frame| frame.entries).collect();
    let origins = events.iter().filter_map(JournalEvent::from_entry);
    let origins = origins.filter(|event| matches!(event, JournalEvent::Restored { .. }));
    assert_eq!(origins.count(), 1, "{place}");
    let left: Vec<_> = std::fs::read_dir(dir.join("root")).unwrap().collect();
    assert_eq!(left.len(), 1, "{place}: {left:?}");
}

#[test]
fn a_restore_that_is_killed_leaves_nothing_half_done() {
    kill_at_each_boundary("staging::tests::child", prepare, check);
}
