//! A journal made by the real writer, then damaged in every way that files can be.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::*;
use crate::frame::{Entry, Subject, Writer};
use crate::journal::{Journal, Proposal, Unfolded};
use crate::segmented::{Options, SegmentedJournal};

/// A journal of `events` frames of one event each, ten frames a segment (the seal included).
struct Made {
    dir: TempDir,
}

impl Made {
    fn new(events: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { segment_events: 9, ..Options::default() };
        let mut journal = SegmentedJournal::open(&dir.path().join("journal"), options).unwrap();
        let mut fold = Unfolded(Position::default());
        let writer =
            Writer { operation: Uuid::from_u128(1), pid: 1, start_time: 1, verb: "test".into() };
        for n in 0..events {
            let subject = Subject::new("vm/a").unwrap();
            let entry = Entry { kind: 1, version: 1, subject, body: n.to_le_bytes().to_vec() };
            let deadline = Instant::now() + Duration::from_secs(60);
            journal
                .transact(&mut fold, &writer, deadline, |_| {
                    Ok(Proposal::Append(vec![entry.clone()], ()))
                })
                .unwrap();
        }
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    fn segment(&self, first: Seq) -> PathBuf {
        self.path().join(format!("seg/{first:020}.seg"))
    }

    fn pieces(&self) -> (Vec<SeenFrame>, Vec<Fault>) {
        let (mut frames, mut faults) = (Vec::new(), Vec::new());
        for piece in Inspector::open(&self.path()).unwrap() {
            match piece {
                Piece::Segment(_) => {}
                Piece::Frame(seen) => frames.push(seen),
                Piece::Fault(fault) => faults.push(fault),
            }
        }
        (frames, faults)
    }

    fn seqs(&self) -> (Vec<Seq>, Vec<FaultKind>) {
        let (frames, faults) = self.pieces();
        let seqs = frames.iter().map(|seen| seen.frame.header.seq).collect();
        (seqs, faults.iter().map(|fault| fault.kind).collect())
    }

    /// Where the frame with this sequence number lies.
    fn place(&self, seq: Seq) -> SeenFrame {
        let (frames, _) = self.pieces();
        frames.into_iter().find(|seen| seen.frame.header.seq == seq).unwrap()
    }

    fn flip(&self, seq: Seq) {
        let seen = self.place(seq);
        let path = self.segment(seen.segment);
        let mut bytes = fs::read(&path).unwrap();
        let at = usize::try_from(seen.offset).unwrap() + seen.bytes.len() - 1;
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    }

    fn forget_head(&self) {
        fs::remove_file(self.path().join("HEAD")).unwrap();
    }
}

#[test]
fn a_sound_journal_is_read_whole_and_left_alone() {
    let made = Made::new(25);
    let before = listing(&made.path());
    let (seqs, faults) = made.seqs();
    assert_eq!(faults, []);
    assert_eq!(seqs, (1..=*seqs.last().unwrap()).collect::<Vec<_>>());
    assert_eq!(made.pieces().0.iter().filter(|seen| seen.segment == 1).count(), 10);
    let head = *Inspector::open(&made.path()).unwrap().head().unwrap();
    assert_eq!(head.position.seq, *seqs.last().unwrap());
    assert_eq!(listing(&made.path()), before);
    for seen in made.pieces().0 {
        assert_eq!(seen.frame.encode().unwrap(), seen.bytes);
    }
}

fn listing(dir: &Path) -> Vec<(PathBuf, std::time::SystemTime, u64)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let meta = entry.metadata().unwrap();
        all.push((entry.path(), meta.modified().unwrap(), meta.len()));
        if meta.is_dir() {
            all.extend(listing(&entry.path()));
        }
    }
    all.sort();
    all
}

#[test]
fn a_flipped_bit_costs_its_frame_and_no_other() {
    let made = Made::new(25);
    let whole = made.seqs().0;
    made.flip(5);
    let (frames, faults) = made.pieces();
    let seqs: Vec<Seq> = frames.iter().map(|seen| seen.frame.header.seq).collect();
    assert_eq!(seqs, whole.into_iter().filter(|seq| *seq != 5).collect::<Vec<_>>());
    let kinds: Vec<_> = faults.iter().map(|fault| fault.kind).collect();
    assert_eq!(kinds, [FaultKind::Bytes, FaultKind::Gap]);
    assert_eq!(faults[0].seq, 5);
    assert!(faults[0].what.contains("checksum"), "{}", faults[0]);
    assert_eq!(faults[1].lost, Some(5..=5));
}

#[test]
fn the_last_frame_is_damage_if_head_knows_it_and_else_a_tail() {
    let made = Made::new(4);
    made.flip(4);
    let (seqs, faults) = made.seqs();
    assert_eq!((seqs, faults), (vec![1, 2, 3], vec![FaultKind::Bytes, FaultKind::Head]));
    made.forget_head();
    let (seqs, faults) = made.seqs();
    assert_eq!((seqs, faults), (vec![1, 2, 3], vec![FaultKind::Tail]));
}

#[test]
fn without_head_a_later_frame_tells_what_was_durable() {
    let made = Made::new(6);
    made.flip(4);
    made.forget_head();
    assert_eq!(made.seqs(), (vec![1, 2, 3, 5, 6], vec![FaultKind::Bytes, FaultKind::Gap]));
}

#[test]
fn a_cut_file_ends_below_head() {
    let made = Made::new(4);
    let at = made.place(3).offset;
    fs::File::options().write(true).open(made.segment(1)).unwrap().set_len(at).unwrap();
    let (frames, faults) = made.pieces();
    assert_eq!(frames.len(), 2);
    assert_eq!(faults[0].kind, FaultKind::Head);
    assert_eq!(faults[0].lost, Some(3..=4));
}

#[test]
fn a_missing_segment_is_named_and_what_follows_is_read() {
    let made = Made::new(25);
    let whole = made.seqs().0;
    fs::remove_file(made.segment(11)).unwrap();
    let (frames, faults) = made.pieces();
    let seqs: Vec<Seq> = frames.iter().map(|seen| seen.frame.header.seq).collect();
    let expected: Vec<Seq> = whole.into_iter().filter(|seq| !(11..=20).contains(seq)).collect();
    assert_eq!(seqs, expected);
    assert_eq!(faults[0].kind, FaultKind::Segment);
    assert!(faults[0].what.contains("11"), "{}", faults[0]);
    assert!(faults.iter().any(|fault| fault.lost == Some(11..=20)), "{faults:?}");
}

#[test]
fn a_damaged_header_hides_no_frame() {
    let made = Made::new(25);
    let whole = made.seqs().0;
    let path = made.segment(11);
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(made.seqs(), (whole, vec![FaultKind::Header]));
}

#[test]
fn a_segment_from_elsewhere_does_not_continue() {
    let (made, other) = (Made::new(25), Made::new(25));
    fs::copy(other.segment(11), made.segment(11)).unwrap();
    let faults = made.seqs().1;
    assert_eq!(faults, [FaultKind::Header, FaultKind::Chain, FaultKind::Chain]);
}

#[test]
fn an_empty_segment_without_a_seal_is_no_damage() {
    let made = Made::new(4);
    let header = fs::read(made.segment(1)).unwrap()[..128].to_vec();
    let mut header = SegmentHeader::decode(&header).unwrap();
    header.first = 5;
    fs::write(made.segment(5), header.encode()).unwrap();
    let (seqs, faults) = made.seqs();
    assert_eq!((seqs, faults), (vec![1, 2, 3, 4], vec![FaultKind::Unused]));
}

#[test]
fn no_damage_to_any_byte_panics_or_goes_unseen() {
    let made = Made::new(3);
    let path = made.segment(1);
    let sound = fs::read(&path).unwrap();
    for at in (0..sound.len()).step_by(3) {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x40;
        fs::write(&path, &bytes).unwrap();
        assert!(!made.seqs().1.is_empty(), "byte {at}");
    }
    for len in (0..sound.len()).step_by(17) {
        fs::write(&path, &sound[..len]).unwrap();
        assert!(!made.seqs().1.is_empty(), "cut at {len}");
    }
}

#[test]
fn a_directory_of_segments_alone_will_do() {
    let made = Made::new(12);
    let whole = made.seqs();
    let pieces = Inspector::open(&made.path().join("seg")).unwrap();
    assert_eq!(pieces.filter(|piece| matches!(piece, Piece::Frame(_))).count(), whole.0.len());
    assert!(matches!(Inspector::open(made.dir.path()), Err(JournalError::Missing { .. })));
}
