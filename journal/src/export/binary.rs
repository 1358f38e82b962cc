//! The end of a binary export, and reading one.

use std::io::{self, Read};

use super::Exported;
use crate::frame::{Frame, FrameError, HEADER_LEN, Hash, Peek, Position};
use crate::segment::{HeaderFault, SegmentHeader};

const MAGIC: [u8; 8] = *b"CCNEND\r\n";
const TRAILER_LEN: usize = 68;

pub(super) fn trailer(exported: &Exported) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for number in [exported.frames, exported.events, exported.last.seq] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&exported.last.hash);
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Why an export cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportFault {
    /// The input failed.
    #[error("cannot read the export: {0}")]
    Io(#[from] io::Error),
    /// Not an export, or a damaged one.
    #[error("this is no export of a journal: {0}; check the file")]
    Header(#[from] HeaderFault),
    /// A frame is damaged.
    #[error("the export is damaged after seq {seq}: {source}; use another copy")]
    Frame {
        /// Last good sequence number.
        seq: u64,
        /// What is wrong.
        source: FrameError,
    },
    /// The trailer is missing or does not fit.
    #[error("the export is cut short or damaged after seq {seq}; use another copy")]
    CutShort {
        /// Last good sequence number.
        seq: u64,
    },
}

/// The frames of a binary export. Ends only after the trailer was found to fit.
#[derive(Debug)]
pub struct BinaryFrames<R> {
    input: R,
    header: SegmentHeader,
    read: Exported,
    done: bool,
}

impl<R: Read> BinaryFrames<R> {
    /// Begins to read.
    ///
    /// # Errors
    ///
    /// If `input` does not start like an export.
    pub fn new(mut input: R) -> Result<Self, ExportFault> {
        let mut bytes = Vec::new();
        input.by_ref().take(crate::segment::HEADER_LEN).read_to_end(&mut bytes)?;
        let header = SegmentHeader::decode(&bytes)?;
        let read = Exported {
            last: Position { seq: header.first.saturating_sub(1), hash: header.prev_hash },
            ..Exported::default()
        };
        Ok(Self { input, header, read, done: false })
    }

    /// Root, first sequence number and the hash before it.
    #[must_use]
    pub fn header(&self) -> &SegmentHeader {
        &self.header
    }

    fn read(&mut self) -> Result<Option<(Frame, Hash)>, ExportFault> {
        let mut bytes = Vec::new();
        self.fill(&mut bytes, TRAILER_LEN)?;
        if bytes.starts_with(&MAGIC) {
            return self.end(&bytes).map(|()| None);
        }
        self.fill(&mut bytes, HEADER_LEN)?;
        let seq = self.read.last.seq;
        let fault = |source| ExportFault::Frame { seq, source };
        let peek = Peek::new(&bytes).map_err(fault)?;
        self.fill(&mut bytes, peek.len)?;
        let (frame, _, hash) = Frame::decode(&bytes).map_err(fault)?;
        let chained = self.read.frames == 0 || frame.header.prev_hash == self.read.last.hash;
        // Salvaged exports may have gaps, which their sequence numbers show; what is adjacent chains.
        if frame.header.seq <= seq || (frame.header.seq == seq + 1 && !chained) {
            return Err(fault(FrameError::Malformed {
                what: "it does not continue the one before",
            }));
        }
        self.read.count(&frame, hash);
        Ok(Some((frame, hash)))
    }

    fn fill(&mut self, bytes: &mut Vec<u8>, len: usize) -> Result<(), ExportFault> {
        let missing = u64::try_from(len.saturating_sub(bytes.len())).unwrap_or_default();
        self.input.by_ref().take(missing).read_to_end(bytes)?;
        if bytes.len() < len {
            return Err(ExportFault::CutShort { seq: self.read.last.seq });
        }
        Ok(())
    }

    fn end(&mut self, bytes: &[u8]) -> Result<(), ExportFault> {
        let mut read = self.read.clone();
        if read.frames == 0 {
            read.last = Position::default();
        }
        if bytes == trailer(&read) {
            Ok(())
        } else {
            Err(ExportFault::CutShort { seq: read.last.seq })
        }
    }
}

impl<R: Read> Iterator for BinaryFrames<R> {
    type Item = Result<(Frame, Hash), ExportFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let read = self.read();
        self.done = !matches!(read, Ok(Some(_)));
        read.transpose()
    }
}
