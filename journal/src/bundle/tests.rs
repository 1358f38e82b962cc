use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::frame::Frame;
use crate::testing::Log;

fn sample() -> BundleHeader {
    BundleHeader {
        is_backup: true,
        is_redacted: true,
        root: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
        first: 10_001,
        prev_hash: [0x5a; 32],
        made_us: 1_790_000_000_123_456,
        stub_len: 4096,
    }
}

/// A bundle of a log, with a stub of some bytes.
fn bundle(log: &Log, stub: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let stub_len = stub.len() as u64;
    let header = BundleHeader {
        first: 1,
        prev_hash: Hash::default(),
        is_redacted: false,
        stub_len,
        ..sample()
    };
    let mut writer = BundleWriter::new(&mut out, &header).unwrap();
    writer.stub(stub, stub_len).unwrap();
    for (frame, hash) in &log.frames {
        writer.frame(frame, *hash, &frame.encode().unwrap()).unwrap();
    }
    let end = writer.finish().unwrap();
    assert_eq!((end.last, end.frames), (log.end(), log.frames.len() as u64));
    out
}

fn read(bytes: &[u8]) -> Result<Vec<Frame>, BundleFault> {
    let mut reader = BundleReader::new(bytes)?;
    reader.by_ref().map(|bundled| bundled.map(|bundled| bundled.frame)).collect()
}

#[test]
fn version_1_header_is_golden() {
    let golden = include_bytes!("../../tests/golden/bundle-header-v1.bin");
    assert_eq!(&sample().encode(), golden);
    assert_eq!(BundleHeader::decode(golden).unwrap(), sample());
}

#[test]
fn what_went_in_comes_out() {
    let log = Log::new(3, 5, 0);
    let bytes = bundle(&log, b"the state before");
    let frames: Vec<Frame> = log.frames.iter().map(|(frame, _)| frame.clone()).collect();
    assert_eq!(read(&bytes).unwrap(), frames);
    let mut reader = BundleReader::new(bytes.as_slice()).unwrap();
    let mut stub = Vec::new();
    reader.copy_stub(&mut stub).unwrap();
    assert_eq!(stub, b"the state before");
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), frames.len());
    assert_eq!(reader.end().last, log.end());
}

#[test]
fn every_cut_and_every_changed_byte_is_refused() {
    let bytes = bundle(&Log::new(2, 3, 0), b"stub");
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "cut at {len}");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(read(&changed).is_err(), "byte {at}");
    }
    assert!(read(&[&bytes[..], b"x"].concat()).is_err(), "something follows");
}

/// Two histories that fit byte by byte do not fit each other.
#[test]
fn a_frame_of_another_history_is_refused() {
    let (one, other) = (Log::new(1, 6, 0), Log::new(1, 6, 1));
    let mut mixed = one.prefix(3);
    mixed.frames.extend_from_slice(&other.frames[3..]);
    let bytes = bundle(&mixed, b"");
    assert!(matches!(read(&bytes), Err(BundleFault::Frame { .. })));
    let mut gap = one;
    gap.frames.remove(3);
    assert!(
        matches!(read(&bundle(&gap, b"")), Err(BundleFault::Frame { .. })),
        "a backup has none"
    );
}

fn with_crc(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&bytes[12..BUNDLE_HEADER_LEN]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn a_later_format_names_the_version_that_it_needs() {
    let mut bytes = bundle(&Log::new(1, 2, 0), b"");
    bytes[12] = 2;
    bytes[96..101].copy_from_slice(b"9.9.0");
    let told = read(&with_crc(bytes.clone())).unwrap_err().to_string();
    assert!(told.contains("bundle format 2") && told.contains("9.9.0"), "{told}");
    bytes[12] = 1;
    bytes[15] = 0x80;
    assert!(matches!(read(&with_crc(bytes)), Err(BundleFault::Newer { .. })), "unknown flags");
}

#[test]
fn a_length_that_is_not_there_costs_nothing() {
    let mut bytes = bundle(&Log::new(1, 2, 0), b"");
    bytes[80..88].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(read(&with_crc(bytes)), Err(BundleFault::CutShort { .. })));
}

proptest! {
    /// Whatever the bytes are, put right or not: no panic, and frames only in order.
    #[test]
    fn arbitrary_bytes_are_survived(
        cut in 0_usize..2000,
        at in 0_usize..2000,
        more in proptest::collection::vec(any::<u8>(), 0..200),
        right in any::<bool>(),
    ) {
        let mut bytes = bundle(&Log::new(2, 3, 0), b"stub");
        let (cut, at) = (cut.min(bytes.len()), at.min(bytes.len()));
        bytes.splice(at.min(cut)..cut, more);
        if right && bytes.len() >= BUNDLE_HEADER_LEN {
            bytes = with_crc(bytes);
        }
        if let Ok(reader) = BundleReader::new(Cursor::new(bytes)) {
            let frames = reader.filter_map(Result::ok);
            let seqs: Vec<_> = frames.map(|bundled| bundled.frame.header.seq).collect();
            prop_assert!(seqs.is_sorted());
        }
    }
}
