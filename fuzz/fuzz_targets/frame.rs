//! Bytes to a frame of the journal. The checksum is put right first, or nothing would ever come past it.

#![no_main]

use cocoon_journal::frame::Frame;
use libfuzzer_sys::fuzz_target;

/// Magic and checksum, which the checksum does not cover.
const UNCHECKED_LEN: usize = 8;

fuzz_target!(|bytes: &[u8]| {
    let _ = Frame::decode(bytes);
    let mut bytes = bytes.to_vec();
    let Ok(length) = length(&bytes) else { return };
    if length < UNCHECKED_LEN || length > bytes.len() {
        return;
    }
    let checksum = crc32fast::hash(&bytes[UNCHECKED_LEN..length]);
    bytes[4..UNCHECKED_LEN].copy_from_slice(&checksum.to_le_bytes());
    if let Ok((frame, used, _)) = Frame::decode(&bytes) {
        assert_eq!(used, length);
        assert_eq!(frame.encode().expect("what was read can be written"), bytes[..length]);
    }
});

fn length(bytes: &[u8]) -> Result<usize, cocoon_journal::FrameError> {
    cocoon_journal::frame::Peek::new(bytes).map(|peek| peek.len)
}
