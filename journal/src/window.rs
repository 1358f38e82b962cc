//! Buffered positioned reads of a segment.

use crate::error::JournalError;
use crate::segment::Segment;

/// Bytes fetched at once, unless one frame needs more. Most readers want the last few hundred events, and what is fetched has
/// to be cleared first.
const CHUNK: usize = 32 * 1024;

/// A stretch of a segment, in memory.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Reused at full length, so that it is cleared only once.
    buffer: Vec<u8>,
    len: usize,
    start: u64,
}

impl Window {
    /// Forgets what was read: the file may have changed since.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// The bytes from `offset` that are in memory after `want` of them were asked for; fewer than
    /// `want` only if the file ends there. Reads ahead.
    pub(crate) fn forward(
        &mut self,
        segment: &Segment,
        offset: u64,
        want: usize,
    ) -> Result<&[u8], JournalError> {
        if self.held(offset).len() < want {
            self.load(segment, offset, CHUNK.max(want))?;
        }
        Ok(self.held(offset))
    }

    /// As [`forward`](Self::forward), but what is read with it lies before `offset + want`.
    pub(crate) fn backward(
        &mut self,
        segment: &Segment,
        offset: u64,
        want: usize,
    ) -> Result<&[u8], JournalError> {
        if self.held(offset).len() < want {
            let end = offset.saturating_add(widen(want));
            let start = end.saturating_sub(widen(CHUNK)).min(offset);
            let len = usize::try_from(end - start).unwrap_or(CHUNK);
            self.load(segment, start, len)?;
        }
        Ok(self.held(offset))
    }

    fn load(&mut self, segment: &Segment, start: u64, len: usize) -> Result<(), JournalError> {
        self.len = 0;
        self.start = start;
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        self.len = segment.read(self.buffer.get_mut(..len).unwrap_or_default(), start)?;
        Ok(())
    }

    fn held(&self, offset: u64) -> &[u8] {
        let skip = offset.checked_sub(self.start).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.buffer.get(skip..self.len)).unwrap_or_default()
    }
}

fn widen(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
