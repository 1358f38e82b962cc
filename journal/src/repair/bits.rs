//! A frame in which one bit is wrong.
//!
//! The checksum alone would find a wrong answer now and then. But a frame names the hash of the frame
//! before it, and a later frame, the next segment, `HEAD` or a checkpoint names its own: together they
//! leave one answer.

use crate::frame::{Frame, Hash, MAX_FRAME_LEN};

/// The frame that `bytes` were before one of their bits was flipped, if `fits` accepts it.
pub(super) fn mend(
    bytes: &[u8],
    fits: impl Fn(&Frame, Hash) -> bool,
) -> Option<(Frame, Vec<u8>, Hash)> {
    if bytes.len() > MAX_FRAME_LEN {
        return None;
    }
    let mut tried = bytes.to_vec();
    for at in 0..tried.len() {
        for bit in 0..8 {
            *tried.get_mut(at)? ^= 1 << bit;
            if let Ok((frame, len, hash)) = Frame::decode(&tried)
                && len == tried.len()
                && fits(&frame, hash)
            {
                return Some((frame, tried, hash));
            }
            *tried.get_mut(at)? ^= 1 << bit;
        }
    }
    None
}
