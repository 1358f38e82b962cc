//! Golden bytes: whatever was ever written stays readable, and is still written in the same way.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;

use cocoon::codec::{self, RECORD_FORMAT, decode, decode_record, encode, encode_record, hex};
use cocoon_journal::{Entry, Subject};
use cocoon_model::event::{Event, KindInfo};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::samples;
use crate::{golden_directory, is_blessed};

/// The golden lines of a file. When blessed, adds lines that are missing at its end; what is there stays.
fn golden(name: &str, made: &[String]) -> Vec<String> {
    let path = golden_directory().join(name);
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let lines: Vec<String> = kept.lines().map(str::to_owned).collect();
    if is_blessed() && made.len() > lines.len() && made.starts_with(&lines) {
        std::fs::create_dir_all(golden_directory()).unwrap();
        std::fs::write(&path, made.join("\n") + "\n").unwrap();
        return made.to_vec();
    }
    lines
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn file_of(info: &KindInfo) -> String {
    format!("{}-v{}-{}.txt", info.kind, info.version, info.name)
}

fn line_of(event: &Event) -> String {
    let entry = encode(event).unwrap();
    format!("{} {}", entry.subject, hex(&entry.body)).trim_end().to_owned()
}

fn entry_of(kind: u16, version: u16, line: &str) -> Entry {
    let (subject, body) = line.split_once(' ').unwrap_or((line, ""));
    Entry { kind, version, subject: Subject::new(subject).unwrap(), body: bytes(body) }
}

fn by_file() -> BTreeMap<String, Vec<Event>> {
    let mut files = BTreeMap::<String, Vec<Event>>::new();
    for event in samples::events() {
        files.entry(file_of(event.info())).or_default().push(event);
    }
    files
}

#[test]
fn events_are_written_as_ever_and_read_back() {
    let samples = by_file();
    for info in Event::kinds() {
        let file = file_of(info);
        let events = samples.get(&file).unwrap_or_else(|| panic!("no sample of {}", info.name));
        let made: Vec<String> = events.iter().map(line_of).collect();
        let kept = golden(&file, &made);
        assert_eq!(
            kept, made,
            "{file}: bytes that were ever written never change; give the kind a new version, or \
             add a sample with COCOON_BLESS=1"
        );
        for (line, event) in kept.iter().zip(events) {
            let entry = entry_of(info.kind, info.version, line);
            assert_eq!(decode(&entry).as_ref(), Ok(&Some(event.clone())), "{file}");
        }
    }
}

#[test]
fn whatever_version_was_ever_written_is_read() {
    let mut read = 0;
    for path in std::fs::read_dir(golden_directory()).unwrap() {
        let path: PathBuf = path.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut parts = name.splitn(3, '-');
        let Ok(kind) = parts.next().unwrap().parse() else { continue };
        let version = parts.next().unwrap().trim_start_matches('v').parse().unwrap();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let event = decode(&entry_of(kind, version, line)).expect(&name).expect(&name);
            assert_eq!(event.info().kind, kind, "{name}");
            assert!(codec::event_json(&event).is_object(), "{name} can be shown");
            read += 1;
        }
    }
    assert!(read >= Event::kinds().count());
}

#[test]
fn a_body_that_is_cut_or_too_long_is_refused() {
    for event in samples::events() {
        let entry = encode(&event).unwrap();
        let longer = Entry { body: [&entry.body[..], &[0]].concat(), ..entry.clone() };
        assert!(decode(&longer).is_err(), "{event:?}");
        for len in 0..entry.body.len() {
            let shorter = Entry { body: entry.body[..len].to_vec(), ..entry.clone() };
            assert!(decode(&shorter).is_err(), "{event:?} cut at {len}");
        }
    }
}

/// Checks records of a checkpoint in every format that was ever written.
fn check_records<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, records: &[T]) {
    let made: Vec<String> =
        records.iter().map(|record| hex(&encode_record(record).unwrap())).collect();
    for format in 1..=RECORD_FORMAT {
        let file = format!("record-v{format}-{name}.txt");
        let kept = golden(&file, if format == RECORD_FORMAT { &made } else { &[] });
        assert!(!kept.is_empty(), "{file} is missing");
        if format == RECORD_FORMAT {
            assert_eq!(kept, made, "{file}: give records a new format");
        }
        for (line, record) in kept.iter().zip(records) {
            assert_eq!(decode_record::<T>(&bytes(line)).as_ref(), Ok(record), "{file}");
        }
    }
}

#[test]
fn records_of_every_format_are_read() {
    check_records("vm", &samples::vm_records());
    check_records("image", &samples::image_records());
    check_records("supervisor", &[samples::supervisor_record()]);
    check_records("root", &samples::root_records());
    check_records("id", &[samples::vm_id()]);
    assert!(decode_record::<cocoon_model::id::Id>(&[RECORD_FORMAT + 1]).is_err());
    assert!(decode_record::<cocoon_model::id::Id>(&[]).is_err());
}
