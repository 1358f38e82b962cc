//! Folded records in checkpoints: one byte of format version, then bincode.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CodecError, from_bytes, wire};

/// The longest record, bytes.
const RECORD_LIMIT: usize = 64 * 1024;

/// The format that is written. All before it stay readable.
pub const RECORD_FORMAT: u8 = 1;

/// Turns a record into bytes.
///
/// # Errors
/// [`CodecError::Record`] if it is too long.
pub fn encode_record<T: Serialize>(record: &T) -> Result<Vec<u8>, CodecError> {
    let mut bytes = vec![RECORD_FORMAT];
    let body = bincode::serde::encode_to_vec(record, wire::<RECORD_LIMIT>())
        .map_err(|error| CodecError::Record(error.to_string()))?;
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Turns bytes into a record.
///
/// # Errors
/// [`CodecError::Record`] for an unknown format or bytes that do not decode.
pub fn decode_record<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    match bytes.split_first() {
        Some((&RECORD_FORMAT, body)) => {
            from_bytes::<T, RECORD_LIMIT>(body).map_err(CodecError::Record)
        }
        Some((format, _)) => {
            Err(CodecError::Record(format!("format {format} is newer than this version knows")))
        }
        None => Err(CodecError::Record("it is empty".to_owned())),
    }
}
