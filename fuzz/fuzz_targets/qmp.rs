//! Bytes to messages of a VMM, whole and in pieces: the pieces change nothing.

#![no_main]

use cocoon::host::qemu::qmp::decoder::Decoder;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let whole = messages(bytes, bytes.len().max(1));
    let pieces = messages(bytes, usize::from(*size).max(1));
    assert_eq!(whole, pieces);
});

/// What a stream says, up to its first fault.
fn messages(bytes: &[u8], piece: usize) -> Vec<String> {
    let mut decoder = Decoder::default();
    let mut found = Vec::new();
    for piece in bytes.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => found.push(format!("{message:?}")),
                Ok(None) => break,
                Err(_) => return found,
            }
        }
    }
    found
}
