//! Round trips, limits, golden bytes and hostile input.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn sample() -> Frame {
    let entry = |kind, subject: &str, body: &[u8]| Entry {
        kind,
        version: 3,
        subject: Subject::new(subject).unwrap(),
        body: body.to_vec(),
    };
    Frame {
        header: FrameHeader {
            codec: CODEC_BINCODE,
            flags: 0,
            prev_len: 77,
            ordinal: 5,
            seq: 41,
            count: 2,
            wall_us: 1_790_000_000_123_456,
            boottime_us: 987_654_321,
            boot_id: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
            operation: Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            pid: 4242,
            start_time: 123_456,
            verb: "vm create".to_owned(),
            durable_seq: 39,
            prev_hash: [0xa5; 32],
        },
        entries: vec![entry(7, "vm/a", b"body"), entry(60_001, "journal", b"")],
    }
}

#[test]
fn version_1_bytes_are_golden() {
    let golden = include_bytes!("../../tests/golden/frame-v1.bin");
    let (frame, len, hash) = Frame::decode(golden).expect("the golden frame decodes");
    assert_eq!((frame, len), (sample(), golden.len()));
    assert_eq!(sample().encode().unwrap(), golden, "the bytes of version 1 have changed");
    assert_eq!(hex_prefix(&hash), "c33f0ba1");
}

/// Fills an empty golden file; a written one is never touched.
#[test]
#[ignore = "run by hand when a header version is added"]
fn write_golden() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/frame-v1.bin");
    if std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        std::fs::write(path, sample().encode().unwrap()).unwrap();
    }
}

#[test]
fn limits_are_refused_by_name() {
    let mut frame = sample();
    frame.entries[0].body = vec![0; MAX_BODY_LEN + 1];
    assert_eq!(frame.encode(), Err(FrameError::EventTooLarge { kind: 7, len: 4097 }));
    frame.entries = vec![Entry { body: vec![0; MAX_BODY_LEN], ..sample().entries[0].clone() }; 16];
    frame.header.count = 16;
    assert!(matches!(frame.encode(), Err(FrameError::FrameTooLarge { .. })));
    frame.entries = vec![sample().entries[0].clone(); 17];
    assert_eq!(frame.encode(), Err(FrameError::TooManyEvents { count: 17 }));
    frame.entries.clear();
    assert_eq!(frame.encode(), Err(FrameError::NoEvents));
    let mut frame = sample();
    frame.header.verb = "v".repeat(33);
    assert!(matches!(frame.encode(), Err(FrameError::VerbTooLong { .. })));
    assert!(Subject::new("x".repeat(41)).is_err() && Subject::new("").is_err());
    assert!(Subject::new("two words").is_err() && Subject::new("x".repeat(40)).is_ok());
}

#[test]
fn the_largest_frame_round_trips() {
    let mut frame = sample();
    frame.entries = vec![Entry { body: vec![1; 4000], ..sample().entries[0].clone() }; 16];
    frame.header.count = 16;
    let bytes = frame.encode().unwrap();
    assert_eq!(Frame::decode(&bytes).unwrap().0, frame);
}

#[test]
fn every_cut_is_incomplete_and_every_bit_flip_is_refused() {
    let bytes = sample().encode().unwrap();
    for len in 0..bytes.len() {
        let error = Frame::decode(&bytes[..len]).expect_err("a cut frame is no frame");
        assert!(matches!(error, FrameError::Incomplete { .. }), "{len}: {error}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        Frame::decode(&flipped).expect_err("a flipped bit must not pass");
    }
}

#[test]
fn a_newer_version_is_named_only_under_a_good_checksum() {
    let mut bytes = sample().encode().unwrap();
    bytes[8] = 9;
    assert!(matches!(Frame::decode(&bytes), Err(FrameError::BadChecksum { .. })));
    let crc = crc32fast::hash(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Frame::decode(&bytes), Err(FrameError::NewerVersion { version: 9 }));
}

prop_compose! {
    fn any_entry()(
        kind: u16, version: u16, subject in "[!-~]{1,40}",
        body in proptest::collection::vec(any::<u8>(), 0..300),
    ) -> Entry {
        Entry { kind, version, subject: Subject::new(subject).unwrap(), body }
    }
}

prop_compose! {
    fn any_frame()(
        entries in proptest::collection::vec(any_entry(), 1..=MAX_EVENTS),
        seq in 1..u64::MAX - 16, wall_us: i64, boottime_us: u64, ids: (u128, u128),
        pid: u32, start_time: u64, verb in "[ -~]{0,32}", numbers: (u8, u16, u32, u32),
        prev_hash: [u8; 32],
    ) -> Frame {
        let (codec, flags, prev_len, ordinal) = numbers;
        Frame {
            header: FrameHeader {
                codec, flags, prev_len, ordinal, seq,
                count: u16::try_from(entries.len()).unwrap(),
                wall_us, boottime_us,
                boot_id: Uuid::from_u128(ids.0),
                operation: Uuid::from_u128(ids.1),
                pid, start_time, verb,
                durable_seq: seq - 1,
                prev_hash,
            },
            entries,
        }
    }
}

proptest! {
    #[test]
    fn any_frame_round_trips(frame in any_frame(), rest: Vec<u8>) {
        let bytes = frame.encode().unwrap();
        let mut longer = bytes.clone();
        longer.extend_from_slice(&rest);
        let (back, len, hash) = Frame::decode(&longer).unwrap();
        prop_assert_eq!((back, len, hash), (frame, bytes.len(), hash_of(&bytes)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(Frame::decode(&bytes).is_err());
        let mut dressed = MAGIC.to_vec();
        dressed.extend_from_slice(&bytes);
        prop_assert!(Frame::decode(&dressed).is_err());
    }

    /// Hostile content under a good checksum: no panic, and whatever passes is canonical.
    #[test]
    fn forged_content_never_panics(frame in any_frame(), at: prop::sample::Index, byte: u8) {
        let mut bytes = frame.encode().unwrap();
        let at = 8 + at.index(bytes.len() - 8);
        bytes[at] = byte;
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        if let Ok((forged, len, _)) = Frame::decode(&bytes) {
            prop_assert_eq!(forged.encode().unwrap(), &bytes[..len]);
        }
    }

    #[test]
    fn flipped_bits_are_never_accepted(frame in any_frame(), bits in proptest::collection::vec(any::<prop::sample::Index>(), 1..4)) {
        let mut bytes = frame.encode().unwrap();
        let total = bytes.len() * 8;
        let flips: std::collections::BTreeSet<_> = bits.iter().map(|bit| bit.index(total)).collect();
        for bit in flips {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        prop_assert!(Frame::decode(&bytes).is_err());
    }
}
