//! Journals that a newer program wrote: refused in words, and not a byte of them is changed.
//!
//! The bytes are kept, as a program that knows them all will need them to be told what this one does with them;
//! `COCOON_BLESS=1` adds those that are missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cocoon_journal::frame::hash_of;
use cocoon_journal::reserved::{JOURNAL_UPGRADED, JournalEvent};
use cocoon_journal::segment::SegmentHeader;
use cocoon_journal::{
    Entry, Frame, FrameHeader, Hash, Journal as _, JournalError, Options, SegmentedJournal, Tail,
};
use uuid::Uuid;

use crate::support::*;

/// A segment as a newer program may write it.
struct Forged {
    bytes: Vec<u8>,
    seq: u64,
    hash: Hash,
    last_len: u32,
}

impl Forged {
    fn new() -> Self {
        let header = SegmentHeader {
            root: Uuid::from_u128(9),
            first: 1,
            prev_hash: Hash::default(),
            created_us: 1_790_000_000_000_000,
            prev_end: 0,
            prev_last_len: 0,
        };
        Self { bytes: header.encode().to_vec(), seq: 0, hash: Hash::default(), last_len: 0 }
    }

    fn frame(&mut self, flags: u16, entry: Entry) -> &mut Self {
        let header = FrameHeader {
            codec: 1,
            flags,
            prev_len: self.last_len,
            ordinal: 0,
            seq: self.seq + 1,
            count: 1,
            wall_us: 1_790_000_000_000_000,
            boottime_us: 1,
            boot_id: Uuid::from_u128(1),
            operation: Uuid::from_u128(2),
            pid: 1,
            start_time: 1,
            verb: "newer".to_owned(),
            durable_seq: self.seq,
            prev_hash: self.hash,
        };
        let bytes = Frame { header, entries: vec![entry] }.encode().unwrap();
        self.seq += 1;
        (self.hash, self.last_len) = (hash_of(&bytes), u32::try_from(bytes.len()).unwrap());
        self.bytes.extend_from_slice(&bytes);
        self
    }
}

fn barrier() -> Entry {
    let event = JournalEvent::Upgraded { from: 1, to: 2, needs: "9.9.0".to_owned() };
    event.to_entry().unwrap()
}

/// Writes a number into a checked header, and puts its checksum right.
fn patch(bytes: &mut [u8], crc: usize, end: usize, at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
    let from = crc + 4;
    let sum = crc32fast::hash(&bytes[from..end]);
    bytes[crc..from].copy_from_slice(&sum.to_le_bytes());
}

fn forge(name: &str) -> Vec<u8> {
    let mut forged = Forged::new();
    forged.frame(0, entry("old"));
    match name {
        "barrier" => {
            forged.frame(0, barrier()).frame(0, entry("new"));
        }
        "kind" => {
            forged.frame(0, Entry { kind: 60_999, ..barrier() });
        }
        "kind-version" => {
            forged.frame(0, Entry { version: 2, ..barrier() });
        }
        "flags" => {
            forged.frame(1, entry("new"));
        }
        "frame" => {
            let begins = forged.bytes.len();
            forged.frame(0, entry("new"));
            let end = forged.bytes.len();
            patch(&mut forged.bytes, begins + 4, end, begins + 8, &[2]);
        }
        "segment" => {
            patch(&mut forged.bytes, 8, 128, 96, b"9.9.0");
            patch(&mut forged.bytes, 8, 128, 12, &2_u16.to_le_bytes());
        }
        _ => panic!("{name}"),
    }
    forged.bytes
}

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/newer/{name}.seg"));
    if std::env::var_os("COCOON_BLESS").is_some() && !path.exists() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, forge(name)).unwrap();
    }
    std::fs::read(path).unwrap()
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    found
}

fn refused(error: &JournalError, name: &str, words: &[&str]) {
    let told = error.to_string();
    assert!(matches!(error, JournalError::NewerFormat { .. }), "{name}: {told}");
    for word in words {
        assert!(told.contains(word), "{name}: no {word:?} in {told:?}");
    }
}

#[test]
fn what_a_newer_version_wrote_is_refused_in_words_and_left_alone() {
    let cases: [(&str, &[&str]); 6] = [
        ("barrier", &["record format 2", "version 9.9.0 or newer", "nothing was written"]),
        ("kind", &["kind 60999", "newer program"]),
        ("kind-version", &["kind 60005", "newer program"]),
        ("flags", &["frame flags 1", "newer program"]),
        ("frame", &["frame header version 2", "newer program"]),
        ("segment", &["segment format 2", "version 9.9.0 or newer"]),
    ];
    assert_eq!(JOURNAL_UPGRADED, 60_005);
    for (name, words) in cases {
        let root = Root::new();
        std::fs::create_dir_all(root.path().join("seg")).unwrap();
        std::fs::write(root.segment(1), fixture(name)).unwrap();
        let before = files(&root.path());
        let mut log = Log::default();
        match SegmentedJournal::open(&root.path(), Options::default()) {
            Err(error) => refused(&error, name, words),
            Ok(mut journal) => {
                refused(&append(&mut journal, &mut log, "mine").unwrap_err(), name, words);
                refused(&journal.refresh(&mut Log::default()).unwrap_err(), name, words);
                let read =
                    journal.frames(1).and_then(|frames| frames.collect::<Result<Vec<_>, _>>());
                refused(&read.unwrap_err(), name, words);
                let mut tail = Tail::open(&root.path(), 2).unwrap();
                let told = (0..3).find_map(|_| tail.try_next().err());
                refused(&told.unwrap(), name, words);
            }
        }
        assert!(log.events.len() <= 1, "{name}: what came before it is all that was folded");
        assert_eq!(files(&root.path()), before, "{name}: not a byte was written");
    }
}

/// A program that knows a later HEAD leaves one that says so.
#[test]
fn a_head_of_a_newer_version_is_refused() {
    let root = Root::new();
    let mut journal = root.open();
    append(&mut journal, &mut Log::default(), "old").unwrap();
    let path = root.path().join("HEAD");
    let mut head = std::fs::read(&path).unwrap();
    patch(&mut head, 4, 108, 8, &2_u16.to_le_bytes());
    std::fs::write(&path, &head).unwrap();
    let before = files(&root.path());
    let mut journal = root.open();
    let error = append(&mut journal, &mut Log::default(), "mine").unwrap_err();
    refused(&error, "HEAD", &["version 2", "newer program"]);
    assert_eq!(files(&root.path()), before);
}
