use std::collections::BTreeMap;

use proptest::prelude::*;
use tempfile::TempDir;

use super::manifest::{NamedTable, Problem};
use super::*;
use crate::frame::Hash;

mod crash;

type State = BTreeMap<Vec<u8>, Vec<u8>>;
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn at(seq: Seq) -> Position {
    Position { seq, hash: hash(seq) }
}

fn hash(seq: Seq) -> Hash {
    let mut hash = [0; 32];
    if seq > 0 {
        hash[..8].copy_from_slice(&seq.to_be_bytes());
        hash[31] = 1;
    }
    hash
}

fn durable() -> Position {
    at(u64::MAX)
}

fn writer(dir: &Path) -> CheckpointWriter {
    CheckpointWriter::try_lock(dir, CheckpointOptions::default()).unwrap().unwrap()
}

/// `count` keys whose values name the sequence number that wrote them.
fn changes(seq: Seq, keys: std::ops::Range<u32>) -> Changes {
    keys.map(|n| (format!("k{n:05}").into_bytes(), Some(format!("{n} at {seq}").into_bytes())))
        .collect()
}

fn step(state: &mut State, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(state.insert(key.clone(), value.clone())),
            None => drop(state.remove(key)),
        }
    }
}

fn content(checkpoint: &Checkpoint) -> Result<State, CheckpointError> {
    checkpoint.prefix(b"").collect()
}

/// Checkpoints at 100 (base of 400 keys), 200 and 300 (deltas); returns the state of each.
fn three() -> (TempDir, BTreeMap<Seq, State>) {
    let dir = tempfile::tempdir().unwrap();
    let (mut state, mut states, mut since) = (State::new(), BTreeMap::new(), Position::default());
    for (seq, keys) in [(100, 0..400), (200, 10..20), (300, 15..30)] {
        let mut changed = changes(seq, keys);
        if seq == 300 {
            changed.insert(b"k00012".to_vec(), None);
        }
        step(&mut state, &changed);
        writer(dir.path()).write_changes(since, at(seq), durable(), changed.clone()).unwrap();
        since = at(seq);
        states.insert(seq, state.clone());
    }
    (dir, states)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names = files_in(&dir.join("ckpt")).unwrap();
    names.sort();
    names
}

fn padded(seq: Seq, extension: &str) -> String {
    format!("{seq:020}.{extension}")
}

#[test]
fn a_journal_without_checkpoints_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let latest = Checkpoint::latest(dir.path()).unwrap();
    assert!(latest.checkpoint.is_none() && latest.damaged.is_empty());
}

#[test]
fn deltas_hide_and_delete_what_lies_below() {
    let (dir, states) = three();
    let checkpoint = Checkpoint::latest(dir.path()).unwrap().checkpoint.unwrap();
    assert_eq!(checkpoint.position(), at(300));
    assert_eq!(checkpoint.deltas(), 2);
    assert_eq!(content(&checkpoint).unwrap(), states[&300]);
    assert_eq!(checkpoint.get(b"k00012").unwrap(), None);
    assert_eq!(checkpoint.get(b"k00011").unwrap(), Some(b"11 at 200".to_vec()));
    assert_eq!(checkpoint.get(b"k00015").unwrap(), Some(b"15 at 300".to_vec()));
    checkpoint.verify().unwrap();
}

#[test]
fn the_last_two_are_kept_and_what_nothing_names_goes() {
    let (dir, states) = three();
    let ckpt = dir.path().join("ckpt");
    for leftover in [padded(250, "delta"), padded(300, "base.writing"), padded(299, "ckpt.writing")]
    {
        fs::write(ckpt.join(leftover), b"a writer died here").unwrap();
    }
    fs::write(ckpt.join("README"), b"not ours").unwrap();
    writer(dir.path()).write_changes(at(300), at(400), durable(), changes(400, 0..2)).unwrap();
    let tables =
        [padded(100, "base"), padded(200, "delta"), padded(300, "delta"), padded(400, "delta")];
    let manifests = [padded(300, "ckpt"), padded(400, "ckpt")];
    let mut expected: Vec<_> = tables.into_iter().chain(manifests).collect();
    expected.push("README".to_owned());
    expected.sort();
    assert_eq!(names(dir.path()), expected);
    let older = Checkpoint::open(dir.path(), 300).unwrap();
    assert_eq!(content(&older).unwrap(), states[&300]);
}

#[test]
fn many_or_large_deltas_become_a_base() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = changes(1, 0..2000);
    let mut written =
        vec![writer(dir.path()).write_changes(at(0), at(1), durable(), state.clone()).unwrap()];
    for seq in 2..=9 {
        let changed = changes(seq, 7..9);
        state.extend(changed.clone());
        written.push(
            writer(dir.path())
                .write_changes(at(seq - 1), at(seq), durable(), changed.clone())
                .unwrap(),
        );
    }
    assert!(matches!(written[..8], [Written::Base(_), .., Written::Delta(_)]));
    assert_eq!(written[8], Written::Base(at(9)));
    let large =
        writer(dir.path()).write_changes(at(9), at(10), durable(), changes(10, 0..1000)).unwrap();
    assert_eq!(large, Written::Base(at(10)));
    let older = Checkpoint::open(dir.path(), 9).unwrap();
    let expected: State = state.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
    assert_eq!(content(&older).unwrap(), expected);
}

#[test]
fn a_checkpoint_never_leads_what_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(dir.path());
    let other = Position { seq: 10, hash: [9; 32] };
    for refused in [at(11), other] {
        let error = writer.write_changes(at(0), refused, at(10), changes(1, 0..1)).unwrap_err();
        assert!(matches!(error, CheckpointError::NotDurable { .. }), "{error}");
    }
    assert_eq!(names(dir.path()), Vec::<String>::new());
    writer.write_changes(at(0), at(10), at(10), changes(1, 0..1)).unwrap();
}

#[test]
fn changes_must_continue_the_history_that_is_there() {
    let (dir, states) = three();
    let mut writer = writer(dir.path());
    let some = changes(400, 0..1);
    let error = writer.write_changes(at(301), at(400), durable(), some.clone()).unwrap_err();
    assert!(matches!(error, CheckpointError::Discontinuous { .. }), "{error}");
    let forged = Position { seq: 300, hash: [9; 32] };
    let error = writer.write_changes(forged, at(400), durable(), some.clone()).unwrap_err();
    assert!(matches!(error, CheckpointError::Diverged { .. }), "{error}");
    let error = writer.write_changes(at(200), forged, durable(), some.clone()).unwrap_err();
    assert!(matches!(error, CheckpointError::Diverged { .. }), "{error}");
    let written = writer.write_changes(at(100), at(250), durable(), some).unwrap();
    assert_eq!(written, Written::Already(at(300)));
    // Older changes, up to a later position, include everything that the newer checkpoint has.
    let mut since_100 = changes(200, 10..20);
    since_100.extend(changes(300, 15..30));
    since_100.insert(b"k00012".to_vec(), None);
    writer.write_changes(at(100), at(350), durable(), since_100.clone()).unwrap();
    let latest = Checkpoint::latest(dir.path()).unwrap().checkpoint.unwrap();
    assert_eq!((latest.position(), content(&latest).unwrap()), (at(350), states[&300].clone()));
}

#[test]
fn there_is_one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = writer(dir.path());
    assert!(
        CheckpointWriter::try_lock(dir.path(), CheckpointOptions::default()).unwrap().is_none()
    );
    drop(first);
    assert!(
        CheckpointWriter::try_lock(dir.path(), CheckpointOptions::default()).unwrap().is_some()
    );
}

/// Every kind of damage, done to one file of the newest checkpoint.
fn damage(path: &Path, kind: usize, place: usize) {
    let mut bytes = fs::read(path).unwrap();
    let place = place % bytes.len();
    match kind {
        0 => bytes[place] ^= 0x10,
        1 => bytes.truncate(place),
        2 => bytes[place / 512 * 512..].iter_mut().take(512).for_each(|byte| *byte = 0),
        3 => bytes.extend_from_slice(b"garbage"),
        4 => bytes.clear(),
        _ => return fs::remove_file(path).unwrap(),
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_newest_checkpoint_falls_back_says_so_and_is_kept_aside() {
    for (extension, kind) in [("ckpt", 0), ("ckpt", 1), ("ckpt", 2), ("ckpt", 3), ("ckpt", 4)]
        .into_iter()
        .chain([1, 3, 4, 5].map(|kind| ("delta", kind)))
    {
        let (dir, states) = three();
        damage(&dir.path().join("ckpt").join(padded(300, extension)), kind, 77);
        let latest = Checkpoint::latest(dir.path()).unwrap();
        assert_eq!(latest.damaged.len(), 1, "{extension} {kind}");
        assert_eq!(latest.damaged[0].seq, 300);
        assert!(latest.damaged[0].error.to_string().contains(&padded(300, extension)));
        let older = latest.checkpoint.unwrap();
        assert_eq!((older.position(), content(&older).unwrap()), (at(200), states[&200].clone()));

        let mut writer = writer(dir.path());
        let refused = writer.write_changes(at(300), at(400), durable(), changes(400, 0..1));
        assert!(matches!(refused, Err(CheckpointError::Discontinuous { .. })));
        let mut since_200 = changes(300, 15..30);
        since_200.insert(b"k00012".to_vec(), None);
        writer.write_changes(at(200), at(300), durable(), since_200.clone()).unwrap();
        let latest = Checkpoint::latest(dir.path()).unwrap();
        assert!(latest.damaged.is_empty());
        assert_eq!(content(&latest.checkpoint.unwrap()).unwrap(), states[&300]);
        let kept = dir.path().join("quarantine").join(format!("ckpt-{:020}.0", 300));
        assert!(kept.join(padded(300, "ckpt")).exists(), "{extension} {kind}");
    }
}

#[test]
fn a_damaged_base_leaves_none_until_the_state_is_written_whole() {
    let (dir, states) = three();
    damage(&dir.path().join("ckpt").join(padded(100, "base")), 1, 40);
    let latest = Checkpoint::latest(dir.path()).unwrap();
    assert!(latest.checkpoint.is_none());
    assert_eq!(latest.damaged.iter().map(|damaged| damaged.seq).collect::<Vec<_>>(), [300, 200]);
    writer(dir.path()).write_whole(at(300), durable(), &states[&300]).unwrap();
    let latest = Checkpoint::latest(dir.path()).unwrap();
    assert!(latest.damaged.is_empty());
    assert_eq!(content(&latest.checkpoint.unwrap()).unwrap(), states[&300]);
}

#[test]
fn a_block_found_damaged_late_can_be_set_aside() {
    let (dir, states) = three();
    damage(&dir.path().join("ckpt").join(padded(100, "base")), 0, 100);
    let latest = Checkpoint::latest(dir.path()).unwrap().checkpoint.unwrap();
    let error = content(&latest).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("the block at byte 16"), "{error}");
    let older = Checkpoint::latest_before(dir.path(), 300).unwrap().checkpoint.unwrap();
    assert_eq!(older.position(), at(200));
    let mut writer = writer(dir.path());
    while let Some(previous) = writer.previous() {
        assert!(previous.verify().is_err());
        assert!(writer.quarantine().unwrap().unwrap().exists());
    }
    writer.write_whole(at(300), durable(), &states[&300]).unwrap();
    let latest = Checkpoint::latest(dir.path()).unwrap().checkpoint.unwrap();
    assert_eq!(content(&latest).unwrap(), states[&300]);
}

#[test]
fn a_newer_manifest_stops_instead_of_being_passed_over() {
    let (dir, _) = three();
    let path = dir.path().join("ckpt").join(padded(300, "ckpt"));
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    let end = bytes.len() - 4;
    let crc = crc32fast::hash(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let error = Checkpoint::latest(dir.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::Unsupported { found: 2, .. }), "{error}");
}

/// The bytes of format 1, which every later program must read. Never edit them: add the next
/// format's beside them.
#[test]
fn manifest_format_1_stays_readable() {
    let text: String = include_str!("golden/manifest-1.hex").split_whitespace().collect();
    let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    let golden: Vec<u8> = text.as_bytes().chunks(2).map(pair).collect();
    assert_eq!(sample().encode(), golden);
    assert_eq!(Manifest::decode(&golden).unwrap(), sample());
}

fn sample() -> Manifest {
    let id = |n: u8| crate::table::TableId {
        entries: 3 + u64::from(n),
        file_len: 1000,
        digest: [n; 32],
    };
    let tables = vec![
        NamedTable { kind: TableKind::Base, seq: 512, id: id(1) },
        NamedTable { kind: TableKind::Delta, seq: 1024, id: id(2) },
    ];
    Manifest { position: Position { seq: 1024, hash: [7; 32] }, tables }
}

fn arbitrary_changes() -> impl Strategy<Value = Changes> {
    let key = proptest::collection::vec(0u8..3, 1..5);
    let value = proptest::option::weighted(0.7, proptest::collection::vec(any::<u8>(), 0..300));
    proptest::collection::btree_map(key, value, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_holds_the_state_that_was_folded(
        rounds in proptest::collection::vec(arbitrary_changes(), 1..14),
        prefix in proptest::collection::vec(0u8..3, 0..3),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut state, mut seq) = (State::new(), 0);
        for changes in rounds {
            step(&mut state, &changes);
            writer(dir.path()).write_changes(at(seq), at(seq + 1), durable(), changes.clone()).unwrap();
            seq += 1;
            let checkpoint = Checkpoint::latest(dir.path()).unwrap().checkpoint.unwrap();
            prop_assert_eq!(checkpoint.position(), at(seq));
            prop_assert_eq!(&content(&checkpoint).unwrap(), &state);
            let under: Result<State, _> = checkpoint.prefix(&prefix).collect();
            let expected: State = state.clone().into_iter().filter(|(key, _)| key.starts_with(&prefix)).collect();
            prop_assert_eq!(under.unwrap(), expected);
            for key in changes.keys() {
                prop_assert_eq!(checkpoint.get(key).unwrap(), state.get(key).cloned());
            }
            checkpoint.verify().unwrap();
        }
    }

    #[test]
    fn a_manifest_with_a_flipped_bit_is_refused(at: prop::sample::Index, bit in 0u8..8) {
        let mut bytes = sample().encode();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(matches!(Manifest::decode(&bytes), Err(Problem::Bad(_))));
    }

    #[test]
    fn arbitrary_bytes_are_no_manifest(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), sealed: bool) {
        if sealed {
            bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        }
        prop_assert!(Manifest::decode(&bytes).is_err());
    }

    #[test]
    fn any_damage_to_any_file_is_noticed(
        file in prop::sample::select(vec![(300, "ckpt"), (300, "delta"), (200, "delta"), (100, "base")]),
        kind in 0usize..6,
        place: usize,
    ) {
        let (dir, states) = three();
        damage(&dir.path().join("ckpt").join(padded(file.0, file.1)), kind, place);
        for latest in [Checkpoint::latest(dir.path()).unwrap(), Checkpoint::latest_before(dir.path(), 300).unwrap()] {
            let Some(checkpoint) = latest.checkpoint else { continue };
            let expected = &states[&checkpoint.position().seq];
            if let Ok(found) = content(&checkpoint) {
                prop_assert_eq!(&found, expected);
            }
            for (key, value) in expected {
                if let Ok(found) = checkpoint.get(key) {
                    prop_assert_eq!(found.as_ref(), Some(value));
                }
            }
        }
    }
}
