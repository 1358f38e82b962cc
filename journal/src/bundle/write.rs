//! Writing a bundle.

use std::io::{self, Read, Write};

use super::{BundleEnd, BundleHeader};
use crate::frame::{Frame, Hash, Position};

/// Writes a bundle front to back. Until [`finish`](Self::finish) it is one that was cut short.
#[derive(Debug)]
pub struct BundleWriter<W> {
    out: W,
    hasher: blake3::Hasher,
    end: BundleEnd,
}

impl<W: Write> BundleWriter<W> {
    /// Begins with the header.
    ///
    /// # Errors
    ///
    /// If `out` fails.
    pub fn new(out: W, header: &BundleHeader) -> io::Result<Self> {
        let mut writer = Self { out, hasher: blake3::Hasher::new(), end: BundleEnd::default() };
        // Where nothing follows, the last frame is the one before the first.
        writer.end.last = Position { seq: header.first.saturating_sub(1), hash: header.prev_hash };
        writer.write(&header.encode())?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.out.write_all(bytes)
    }

    /// Adds the stub, of as many bytes as the header says; before the first frame.
    ///
    /// # Errors
    ///
    /// If `stub` has fewer bytes, or either side fails.
    pub fn stub(&mut self, mut stub: impl Read, len: u64) -> io::Result<()> {
        let mut left = len;
        let mut buffer = vec![0; 64 * 1024];
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let piece = buffer.get_mut(..want).unwrap_or_default();
            stub.read_exact(piece)?;
            self.hasher.update(piece);
            self.out.write_all(piece)?;
            left -= u64::try_from(want).unwrap_or(left);
        }
        Ok(())
    }

    /// Adds a frame with its bytes.
    ///
    /// # Errors
    ///
    /// If `out` fails.
    pub fn frame(&mut self, frame: &Frame, hash: Hash, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes)?;
        self.end.frames += 1;
        self.end.events += u64::from(frame.header.count);
        self.end.last = frame.position(hash);
        Ok(())
    }

    /// The last frame that was added.
    #[must_use]
    pub fn last(&self) -> Position {
        self.end.last
    }

    /// Adds the end, and hands everything on.
    ///
    /// # Errors
    ///
    /// If `out` fails.
    pub fn finish(mut self) -> io::Result<BundleEnd> {
        self.end.digest = *self.hasher.finalize().as_bytes();
        self.out.write_all(&self.end.encode())?;
        self.out.flush()?;
        Ok(self.end)
    }
}
