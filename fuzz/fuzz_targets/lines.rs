//! Text to the frames of an export of JSON lines.

#![no_main]

use cocoon_journal::export::lines::JsonFrames;
use cocoon_journal::frame::Frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for bundled in JsonFrames::new(bytes) {
        let Ok(bundled) = bundled else { return };
        let (frame, len, hash) = Frame::decode(&bundled.bytes).expect("what was made can be read");
        assert_eq!((frame, len, hash), (bundled.frame, bundled.bytes.len(), bundled.hash));
    }
});
