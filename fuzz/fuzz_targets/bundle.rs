//! Bytes to a backup or an export. The checksum of the header is put right, or nothing would ever come past it.

#![no_main]

use cocoon_journal::bundle::{BUNDLE_HEADER_LEN, BundleReader};
use libfuzzer_sys::fuzz_target;

/// Magic and checksum, which the checksum does not cover.
const UNCHECKED_LEN: usize = 12;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    let mut bytes = bytes.to_vec();
    if bytes.len() >= BUNDLE_HEADER_LEN {
        let checksum = crc32fast::hash(&bytes[UNCHECKED_LEN..BUNDLE_HEADER_LEN]);
        bytes[8..UNCHECKED_LEN].copy_from_slice(&checksum.to_le_bytes());
        read(&bytes);
    }
});

fn read(bytes: &[u8]) {
    let Ok(mut reader) = BundleReader::new(bytes) else { return };
    let mut last = 0;
    for bundled in reader.by_ref() {
        let Ok(bundled) = bundled else { return };
        assert!(bundled.frame.header.seq > last, "frames come in order");
        last = bundled.frame.last_seq();
        let again = bundled.frame.encode().expect("what was read can be written");
        assert_eq!(again, bundled.bytes);
    }
}
