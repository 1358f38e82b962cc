//! Whatever the files hold: no panic, and never a silently shorter history.

use cocoon_journal::verify::verify;
use cocoon_journal::{Journal, Proposal, Tail};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::support::*;

/// Something that happens to a file.
#[derive(Clone, Debug)]
enum Harm {
    Flip(Index, u8),
    Zero(Index, usize),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Append(Vec<u8>),
    /// Bytes of one place put into another.
    Copy(Index, Index, usize),
}

fn any_harm() -> impl Strategy<Value = Harm> {
    let bytes = || proptest::collection::vec(any::<u8>(), 1..80);
    prop_oneof![
        (any::<Index>(), 1..=255_u8).prop_map(|(at, bits)| Harm::Flip(at, bits)),
        (any::<Index>(), 1..400_usize).prop_map(|(at, len)| Harm::Zero(at, len)),
        any::<Index>().prop_map(Harm::Cut),
        (any::<Index>(), bytes()).prop_map(|(at, bytes)| Harm::Insert(at, bytes)),
        bytes().prop_map(Harm::Append),
        (any::<Index>(), any::<Index>(), 1..400_usize)
            .prop_map(|(a, b, len)| Harm::Copy(a, b, len)),
    ]
}

impl Harm {
    fn befall(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let size = bytes.len();
        let place = |at: &Index| at.index(size);
        match self {
            Self::Flip(at, bits) => bytes[place(at)] ^= bits,
            Self::Zero(at, len) => {
                let end = (place(at) + len).min(size);
                bytes[place(at)..end].fill(0);
            }
            Self::Cut(at) => bytes.truncate(place(at)),
            Self::Insert(at, more) => {
                bytes.splice(place(at)..place(at), more.iter().copied());
            }
            Self::Append(more) => bytes.extend_from_slice(more),
            Self::Copy(from, to, len) => {
                let (from, to) = (place(from), place(to));
                let len = *len.min(&(size - from.max(to)));
                bytes.copy_within(from..from + len, to);
            }
        }
    }
}

struct Original {
    segment: Vec<u8>,
    head: Vec<u8>,
    bodies: Vec<String>,
}

fn original(root: &Root) -> Original {
    let mut log = Log::default();
    let mut journal = root.open();
    for n in 0..6 {
        append(&mut journal, &mut log, format!("event {n}")).unwrap();
    }
    Original {
        segment: std::fs::read(root.segment(1)).unwrap(),
        head: std::fs::read(root.path().join("HEAD")).unwrap(),
        bodies: log.bodies(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// HEAD is whole: the history is whole, or it is refused.
    #[test]
    fn a_harmed_segment_is_refused_or_whole(harms in proptest::collection::vec(any_harm(), 1..4)) {
        let root = Root::new();
        let original = original(&root);
        let mut bytes = original.segment.clone();
        harms.iter().for_each(|harm| harm.befall(&mut bytes));
        std::fs::write(root.segment(1), &bytes).unwrap();
        if let Ok(log) = read(&root.path()) {
            prop_assert_eq!(&log.bodies(), &original.bodies);
        }
        if let Ok(report) = verify(&root.path()) {
            prop_assert!(!report.is_sound() || bytes.starts_with(&original.segment));
        }
        if let Ok(mut tail) = Tail::open(&root.path(), 1) {
            let mut bodies = Vec::new();
            while let Ok(Some((frame, _))) = tail.try_next() {
                bodies.extend(frame.entries.into_iter().map(|entry| String::from_utf8(entry.body).unwrap()));
            }
            prop_assert!(original.bodies.starts_with(&bodies));
        }
        if let Ok(mut journal) = cocoon_journal::SegmentedJournal::open(&root.path(), small_segments(50)) {
            let decide = |log: &Log| Ok(Proposal::Answer(log.bodies()));
            let answer = journal.transact(&mut Log::default(), &writer(), deadline(), decide);
            if let Ok(outcome) = answer {
                prop_assert_eq!(outcome.answer, original.bodies);
            }
        }
    }

    /// HEAD is harmed, too: what is read is a beginning of the history, never anything else.
    #[test]
    fn with_a_harmed_head_nothing_is_invented(
        harms in proptest::collection::vec(any_harm(), 0..3),
        of_head in proptest::collection::vec(any_harm(), 1..4),
    ) {
        let root = Root::new();
        let mut original = original(&root);
        harms.iter().for_each(|harm| harm.befall(&mut original.segment));
        of_head.iter().for_each(|harm| harm.befall(&mut original.head));
        std::fs::write(root.segment(1), &original.segment).unwrap();
        std::fs::write(root.path().join("HEAD"), &original.head).unwrap();
        if let Ok(log) = read(&root.path()) {
            prop_assert!(original.bodies.starts_with(&log.bodies()));
            prop_assert!(log.bodies().len() == 6 || !harms.is_empty());
        }
        let _ = verify(&root.path());
        if let Ok(mut journal) = cocoon_journal::SegmentedJournal::open(&root.path(), small_segments(50)) {
            let mut log = Log::default();
            if append(&mut journal, &mut log, "next").is_ok() {
                let bodies = log.bodies();
                prop_assert!(original.bodies.starts_with(&bodies[..bodies.len() - 1]));
                prop_assert_eq!(read(&root.path()).unwrap(), log);
            }
        }
    }
}
