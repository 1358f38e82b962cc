use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;
use tempfile::TempDir;

use super::block::{Pointer, checksum, push_entry};
use super::footer::{Footer, header};
use super::*;

type Model = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn write(path: &Path, model: &Model) -> TableId {
    let mut writer = TableWriter::create(path).unwrap();
    for (key, value) in model {
        writer.push(key, value.as_deref()).unwrap();
    }
    writer.finish().unwrap()
}

fn scratch(model: &Model) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    write(&path, model);
    (dir, path)
}

fn numbered(count: u32, value_len: usize) -> Model {
    let value = |n: u32| (!n.is_multiple_of(7)).then(|| vec![n.to_le_bytes()[0]; value_len]);
    (0..count).map(|n| (format!("key/{n:08}").into_bytes(), value(n))).collect()
}

fn arbitrary_model() -> impl Strategy<Value = Model> {
    let key = proptest::collection::vec(0u8..4, 0..12);
    let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..900));
    proptest::collection::btree_map(key, value, 0..120)
}

fn collect(iter: TableIter<'_>) -> Result<Model, TableError> {
    iter.collect()
}

#[test]
fn an_empty_table_knows_nothing() {
    let (_dir, path) = scratch(&Model::new());
    let table = Table::open(&path).unwrap();
    assert_eq!(table.get(b"").unwrap(), None);
    assert_eq!(collect(table.range(b"")).unwrap(), Model::new());
    table.verify().unwrap();
}

#[test]
fn a_table_of_several_levels_finds_every_key_and_no_other() {
    let model = numbered(20_000, 60);
    let (_dir, path) = scratch(&model);
    let table = Table::open(&path).unwrap();
    assert!(table.root.as_ref().unwrap().level() >= 2);
    for (key, value) in model.iter().step_by(37) {
        assert_eq!(table.get(key).unwrap().as_ref(), Some(value));
        assert_eq!(table.get(&[key, &b"x"[..]].concat()).unwrap(), None);
    }
    table.verify().unwrap();
}

#[test]
fn the_largest_key_and_value_fit_and_larger_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let (key, value) = (vec![7; MAX_KEY], vec![9; MAX_VALUE]);
    let mut writer = TableWriter::create(&path).unwrap();
    writer.push(b"a", Some(b"first")).unwrap();
    writer.push(&key, Some(&value)).unwrap_err();
    let mut writer = TableWriter::create(&path).unwrap();
    writer.push(&key, Some(&value)).unwrap();
    let more = writer.push(&vec![8; MAX_KEY + 1], None).unwrap_err();
    assert!(matches!(more, TableError::TooLarge { .. }));
    writer.finish().unwrap();
    assert_eq!(Table::open(&path).unwrap().get(&key).unwrap(), Some(Some(value)));
}

#[test]
fn keys_out_of_order_are_refused_and_nothing_is_published() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let mut writer = TableWriter::create(&path).unwrap();
    writer.push(b"b", None).unwrap();
    assert!(matches!(writer.push(b"b", None), Err(TableError::OutOfOrder { .. })));
    assert!(matches!(writer.push(b"a", None), Err(TableError::OutOfOrder { .. })));
    drop(writer);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_newer_format_is_named_and_not_called_damage() {
    let (_dir, path) = scratch(&numbered(3, 10));
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    fs::write(&path, &bytes).unwrap();
    let error = Table::open(&path).unwrap_err();
    assert!(error.is_damage(), "one that ends as format 1 is none of a newer format: {error}");
    let (footer, crc) = (bytes.len() - footer::FOOTER_LEN, bytes.len() - 4);
    bytes[footer + 8] = 9;
    let checksum = crc32fast::hash(&bytes[footer..crc]).to_le_bytes();
    bytes[crc..].copy_from_slice(&checksum);
    fs::write(&path, bytes).unwrap();
    let error = Table::open(&path).unwrap_err();
    assert!(matches!(error, TableError::Unsupported { found: 9, .. }), "{error}");
}

/// The bytes of format 1, which every later program must read. Never edit them: add the next
/// format's beside them.
#[test]
fn format_1_stays_readable() {
    let model = Model::from([(b"a".to_vec(), Some(b"1".to_vec())), (b"bb".to_vec(), None)]);
    let golden = golden_1();
    let (_dir, path) = scratch(&model);
    assert_eq!(hex(&fs::read(&path).unwrap()), golden);
    fs::write(&path, unhex(&golden)).unwrap();
    let table = Table::open(&path).unwrap();
    table.verify().unwrap();
    assert_eq!(collect(table.range(b"")).unwrap(), model);
}

fn golden_1() -> String {
    include_str!("golden/format-1.hex").split_whitespace().collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Whatever was done to the file: each answer is right or an error, and [`Table::verify`] notices.
fn right_or_error(path: &Path, model: &Model) -> Result<(), TestCaseError> {
    let Ok(table) = Table::open(path) else { return Ok(()) };
    for (key, value) in model {
        if let Ok(found) = table.get(key) {
            prop_assert_eq!(found.as_ref(), Some(value));
        }
    }
    if let Ok(found) = collect(table.range(b"")) {
        prop_assert_eq!(&found, model);
    }
    prop_assert!(table.verify().is_err());
    Ok(())
}

/// A level, and entries of a key and the number of the block that it points at.
type CraftedBlock = (u8, Vec<(u8, usize)>);

/// A file whose checksums all hold but whose blocks point anywhere.
fn crafted(blocks: &[CraftedBlock], root: usize) -> Vec<u8> {
    let sizes: Vec<usize> = blocks.iter().map(|(_, entries)| 1 + entries.len() * 19 + 4).collect();
    let offset = |n: usize| (HEADER_LEN + sizes[..n].iter().sum::<usize>()) as u64;
    let pointer = |n: usize| Pointer { offset: offset(n), len: u32::try_from(sizes[n]).unwrap() };
    let mut bytes = header().to_vec();
    for (level, entries) in blocks {
        let mut block = vec![*level];
        for (key, target) in entries {
            push_entry(&mut block, &[*key], Some(&pointer(target % blocks.len()).encode()));
        }
        block.extend(checksum(bytes.len() as u64, &block).to_le_bytes());
        bytes.extend(block);
    }
    let root = root % blocks.len();
    let file_len = (bytes.len() + FOOTER_LEN) as u64;
    let id = TableId { entries: 3, file_len, digest: [0; 32] };
    bytes.extend(Footer { root_level: blocks[root].0, root: pointer(root), id }.encode());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_answers_as_a_map_does(model in arbitrary_model(), probe in proptest::collection::vec(0u8..4, 0..6)) {
        let (_dir, path) = scratch(&model);
        let table = Table::open(&path).unwrap();
        let found = table.get(&probe).unwrap();
        prop_assert_eq!(found.as_ref(), model.get(&probe));
        prop_assert_eq!(table.id().entries, model.len() as u64);
        let above: Model = model.range(probe.clone()..).map(|(k, v)| (k.clone(), v.clone())).collect();
        prop_assert_eq!(collect(table.range(&probe)).unwrap(), above);
        let under: Model =
            model.into_iter().filter(|(key, _)| key.starts_with(&probe)).collect();
        prop_assert_eq!(collect(table.prefix(&probe)).unwrap(), under);
                table.verify().unwrap();
    }

    #[test]
    fn a_flipped_bit_never_gives_a_wrong_answer(model in arbitrary_model(), at: prop::sample::Index, bit in 0u8..8) {
        let (_dir, path) = scratch(&model);
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        right_or_error(&path, &model)?;
    }

    #[test]
    fn a_cut_grown_or_zeroed_file_never_gives_a_wrong_answer(at: prop::sample::Index, how in 0..3) {
        let model = numbered(300, 90);
        let (_dir, path) = scratch(&model);
        let written = fs::read(&path).unwrap();
        let mut bytes = written.clone();
        let at = at.index(bytes.len() - 64);
        match how {
            0 => bytes.truncate(at),
            1 => bytes.extend(&bytes[at..at + 64].to_vec()),
            _ => bytes[at..at + 64].fill(0),
        }
        // A run of zeros inside a value of zeros is no damage.
        prop_assume!(bytes != written);
        fs::write(&path, bytes).unwrap();
        right_or_error(&path, &model)?;
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400), framed: bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let mut file = if framed { header().to_vec() } else { Vec::new() };
        file.extend(bytes);
        fs::write(&path, file).unwrap();
        prop_assert!(Table::open(&path).is_err());
    }

    #[test]
    fn a_crafted_file_neither_panics_nor_loops(
        blocks in proptest::collection::vec(
            (0u8..4, proptest::collection::vec((any::<u8>(), any::<usize>()), 1..5)), 1..8),
        root: usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        fs::write(&path, crafted(&blocks, root)).unwrap();
        if let Ok(table) = Table::open(&path) {
            let _ = table.get(&[128]);
            let _ = table.range(&[128]).count();
            prop_assert!(table.verify().is_err());
        }
    }
}
