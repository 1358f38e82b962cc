//! Checking, counting and exporting, on sound and on damaged journals.

use std::os::unix::fs::FileExt;

use cocoon_journal::bundle::{BundleFault, BundleReader};
use cocoon_journal::export::lines::{JsonFrames, LinesFault};
use cocoon_journal::export::{Described, export_binary, export_json_lines};
use cocoon_journal::inspect::FaultKind;
use cocoon_journal::reserved::JOURNAL_SEALED;
use cocoon_journal::verify::{stats, verify};
use cocoon_journal::{JournalError, Position};

use crate::support::*;

fn journal_of(count: u64, segment_events: u64) -> (Root, Log) {
    let root = Root::new();
    let mut journal = root.open_with(small_segments(segment_events));
    let mut log = Log::default();
    for n in 0..count {
        append(&mut journal, &mut log, n.to_string()).unwrap();
    }
    (root, log)
}

fn snapshot(root: &Root) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let seg = std::fs::read_dir(root.path().join("seg")).unwrap();
    let mut files: Vec<_> = seg.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn a_sound_journal_has_no_problems_and_its_figures_are_right() {
    let (root, log) = journal_of(20, 6);
    let before = snapshot(&root);
    let report = verify(&root.path()).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!((report.first, report.last), (Some(1), log.position));
    assert_eq!(report.durable, Some(log.position));
    assert_eq!(report.events, log.events.len() as u64);
    assert_eq!(report.frames, log.frames as u64);
    let stats = stats(&root.path()).unwrap();
    assert_eq!(stats.kinds[&JOURNAL_SEALED].events, log.count(JOURNAL_SEALED) as u64);
    assert_eq!(
        (stats.kinds[&1].events, stats.kinds[&1].bytes),
        (20, 30),
        "10 one-digit, 10 two-digit"
    );
    assert_eq!((stats.boots, stats.operations, stats.quarantined), (1, 1, 0));
    assert_eq!(snapshot(&root), before, "read-only");
    let nothing = verify(&root.path().join("nowhere"));
    assert!(matches!(nothing, Err(JournalError::Missing { .. })));
}

#[test]
fn an_unfinished_tail_is_a_leftover() {
    let (root, _) = journal_of(3, 100);
    let file = std::fs::OpenOptions::new().write(true).open(root.segment(1)).unwrap();
    let end = file.metadata().unwrap().len();
    file.write_all_at(b"CCNF torn", end).unwrap();
    let report = verify(&root.path()).unwrap();
    assert!(report.is_sound());
    let [problem] = report.problems.as_slice() else { panic!("{:?}", report.problems) };
    assert_eq!((problem.kind, problem.offset, problem.seq), (FaultKind::Tail, end, 4));
}

/// Whatever single byte is hit: verify names it, export gives the rest, and nobody panics.
#[test]
fn every_damaged_byte_of_a_segment_is_found() {
    let (root, log) = journal_of(6, 4);
    let (path, bytes) = snapshot(&root).remove(0);
    for at in (0..bytes.len()).step_by(3) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&path, &damaged).unwrap();
        let report = verify(&root.path()).unwrap();
        assert!(!report.is_sound(), "byte {at}");
        let mut out = Vec::new();
        let exported = export_json_lines(
            &root.path(),
            &(1..=u64::MAX),
            None,
            |_| Described::default(),
            &mut out,
        );
        let exported = exported.unwrap();
        assert!(exported.events + 1 >= log.events.len() as u64, "byte {at}: all but one frame");
        assert!(!exported.problems.is_empty());
    }
    for len in (0..bytes.len()).step_by(7) {
        std::fs::write(&path, &bytes[..len]).unwrap();
        assert!(!verify(&root.path()).unwrap().is_sound(), "cut at {len}");
    }
}

#[test]
fn missing_segments_and_foreign_ones_are_found() {
    let (root, _) = journal_of(12, 4);
    let files = snapshot(&root);
    std::fs::remove_file(&files[1].0).unwrap();
    assert!(!verify(&root.path()).unwrap().is_sound(), "one is missing");
    std::fs::write(&files[1].0, &files[0].1).unwrap();
    assert!(!verify(&root.path()).unwrap().is_sound(), "another is in its place");
    std::fs::write(&files[1].0, &files[1].1).unwrap();
    assert!(verify(&root.path()).unwrap().is_sound());
}

#[test]
fn json_lines_name_everything() {
    let (root, log) = journal_of(7, 100);
    let describe = |entry: &cocoon_journal::Entry| match entry.body.as_slice() {
        b"3" => Described { name: Some("Three".into()), body: Some(serde_json::json!({"n": 3})) },
        _ => Described::default(),
    };
    let mut out = Vec::new();
    let exported = export_json_lines(&root.path(), &(3..=5), None, describe, &mut out).unwrap();
    assert_eq!((exported.frames, exported.events, exported.last.seq), (3, 3, 5));
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0]["seq"], 3);
    assert_eq!(lines[0]["body"], "32", "hexadecimal");
    assert_eq!((&lines[1]["name"], &lines[1]["event"]["n"]), (&"Three".into(), &3.into()));
    assert_eq!((&lines[3]["end"], &lines[3]["last_seq"]), (&true.into(), &5.into()));
    assert_eq!(lines[2]["prev_hash"], lines[1]["hash"]);
    assert_eq!(lines[0]["verb"], "test");
    assert_eq!(log.position.seq, 7);
}

#[test]
fn the_binary_form_is_whole_or_refused() {
    let (root, log) = journal_of(9, 4);
    let mut out = Vec::new();
    let exported = export_binary(&root.path(), &(1..=u64::MAX), None, &mut out).unwrap();
    assert_eq!(exported.last, log.position);
    let frames: Result<Vec<_>, _> = BundleReader::new(out.as_slice()).unwrap().collect();
    let frames = frames.unwrap();
    let mut position = Position::default();
    for bundled in &frames {
        assert_eq!(bundled.frame.header.prev_hash, position.hash);
        position = bundled.frame.position(bundled.hash);
    }
    assert_eq!((position, frames.len()), (log.position, log.frames));
    let read = |bytes: &[u8]| -> Result<usize, BundleFault> {
        BundleReader::new(bytes)?.try_fold(0, |count, frame| frame.map(|_| count + 1))
    };
    for len in 0..out.len() {
        assert!(read(&out[..len]).is_err(), "cut at {len}");
    }
    for at in 0..out.len() {
        let mut damaged = out.clone();
        damaged[at] ^= 1;
        assert!(read(&damaged).is_err(), "byte {at}");
    }
    let mut empty = Vec::new();
    export_binary(&root.path(), &(500..=600), None, &mut empty).unwrap();
    assert_eq!(read(&empty).unwrap(), 0);
}

/// Whatever becomes of the text of an export of lines: its frames are those that were written, or it is refused.
#[test]
fn lines_give_the_very_frames_or_are_refused() {
    let (root, log) = journal_of(9, 4);
    let mut text = Vec::new();
    let all = 1..=u64::MAX;
    export_json_lines(&root.path(), &all, None, |_| Described::default(), &mut text).unwrap();
    let mut bundle = Vec::new();
    export_binary(&root.path(), &all, None, &mut bundle).unwrap();
    let read = |text: &[u8]| -> Result<Vec<_>, LinesFault> { JsonFrames::new(text).collect() };
    let expected: Vec<_> =
        BundleReader::new(bundle.as_slice()).unwrap().map(Result::unwrap).collect();
    assert_eq!(read(&text).unwrap(), expected);
    assert_eq!(expected.len(), log.frames);
    let mut part = Vec::new();
    export_json_lines(&root.path(), &(6..=8), None, |_| Described::default(), &mut part).unwrap();
    assert_eq!(read(&part).unwrap().len(), 3, "a part is read as well");
    for len in 0..text.len() {
        assert!(read(&text[..len]).is_err(), "cut at {len}");
    }
    for at in (0..text.len()).step_by(3) {
        let mut damaged = text.clone();
        damaged[at] = damaged[at].wrapping_add(1);
        if let Ok(frames) = read(&damaged) {
            // A field that is there for readers alone, or an end that says the same.
            assert_eq!(frames, expected, "byte {at}");
        }
    }
    // Of a damaged journal frames are missing, and nothing follows from the one before: each proves itself.
    let gap = String::from_utf8(part).unwrap();
    let mut gap: Vec<&str> = gap.lines().collect();
    gap.remove(1);
    let gap = format!("{}\n", gap.join("\n"))
        .replace("\"frames\":3,\"events\":3", "\"frames\":2,\"events\":2");
    assert_eq!(read(gap.as_bytes()).unwrap().len(), 2);
    let body = gap.find("\"body\":\"").unwrap() + 8;
    let mut damaged = gap.into_bytes();
    damaged[body] ^= 1;
    assert!(matches!(read(&damaged), Err(LinesFault::Frame { .. })));
    let lines: Vec<&str> = std::str::from_utf8(&text).unwrap().lines().collect();
    for at in 0..lines.len() {
        let mut fewer = lines.clone();
        fewer.remove(at);
        let fewer = format!("{}\n", fewer.join("\n"));
        assert!(read(fewer.as_bytes()).is_err(), "without line {at}");
    }
}

#[test]
fn an_edited_export_is_a_history_of_its_own_that_says_so() {
    let (root, log) = journal_of(9, 4);
    let mut edit = |frame: &mut cocoon_journal::Frame| {
        for entry in &mut frame.entries {
            if entry.kind == 1 {
                entry.body = b"***".to_vec();
            }
        }
        Ok(())
    };
    let (all, mut bundle, mut text) = (1..=u64::MAX, Vec::new(), Vec::new());
    export_binary(&root.path(), &all, Some(&mut edit), &mut bundle).unwrap();
    let describe = |_: &cocoon_journal::Entry| Described::default();
    export_json_lines(&root.path(), &all, Some(&mut edit), describe, &mut text).unwrap();
    let mut reader = BundleReader::new(bundle.as_slice()).unwrap();
    assert!(reader.header().is_redacted);
    let frames: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(frames.len(), log.frames);
    let mut lines = JsonFrames::new(text.as_slice());
    assert_eq!(lines.by_ref().map(Result::unwrap).collect::<Vec<_>>(), frames);
    assert!(lines.is_redacted());
    assert_ne!(frames.last().unwrap().hash, log.position.hash);
    let bodies = frames.iter().flat_map(|bundled| &bundled.frame.entries);
    let bodies: Vec<_> = bodies.filter(|entry| entry.kind == 1).map(|entry| &entry.body).collect();
    assert!(bodies.len() == 9 && bodies.iter().all(|body| *body == b"***"));
}
