//! Reading a bundle, which may be anything.

use std::io::{self, Read, Write};

use super::{BUNDLE_HEADER_LEN, BundleEnd, BundleFault, BundleHeader, END_LEN, END_MAGIC};
use crate::frame::{Frame, FrameError, HEADER_LEN, Hash, Peek, Position};

/// A frame of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundled {
    /// The frame.
    pub frame: Frame,
    /// Its hash.
    pub hash: Hash,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The frames of a bundle. Ends without an error only after the end of the bundle was found to fit; what was delivered
/// until then may be part of a bundle that was changed.
#[derive(Debug)]
pub struct BundleReader<R> {
    input: R,
    header: BundleHeader,
    hasher: blake3::Hasher,
    stub_left: u64,
    read: BundleEnd,
    done: bool,
}

impl<R: Read> BundleReader<R> {
    /// Begins to read.
    ///
    /// # Errors
    ///
    /// If `input` does not start like a bundle.
    pub fn new(mut input: R) -> Result<Self, BundleFault> {
        let mut bytes = Vec::new();
        input.by_ref().take(widen(BUNDLE_HEADER_LEN)).read_to_end(&mut bytes)?;
        let header = BundleHeader::decode(&bytes)?;
        let before = Position { seq: header.first.saturating_sub(1), hash: header.prev_hash };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        Ok(Self {
            input,
            hasher,
            stub_left: header.stub_len,
            read: BundleEnd { last: before, ..BundleEnd::default() },
            header,
            done: false,
        })
    }

    /// What its start says.
    #[must_use]
    pub fn header(&self) -> &BundleHeader {
        &self.header
    }

    /// What it holds; right only after the iterator has ended without an error.
    #[must_use]
    pub fn end(&self) -> BundleEnd {
        self.read
    }

    /// Copies the stub, if it was not passed by yet. What is copied is checked only by the end of the bundle.
    ///
    /// # Errors
    ///
    /// If the bundle ends inside it, or either side fails.
    pub fn copy_stub(&mut self, out: &mut impl Write) -> Result<(), BundleFault> {
        let mut buffer = vec![0; 64 * 1024];
        while self.stub_left > 0 {
            let want = usize::try_from(self.stub_left).unwrap_or(usize::MAX).min(buffer.len());
            let piece = buffer.get_mut(..want).unwrap_or_default();
            self.input.read_exact(piece).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => BundleFault::CutShort { seq: self.read.last.seq },
                _ => BundleFault::Io(error),
            })?;
            self.hasher.update(piece);
            out.write_all(piece)?;
            self.stub_left -= widen(want);
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Bundled>, BundleFault> {
        self.copy_stub(&mut io::sink())?;
        let mut bytes = Vec::new();
        self.fill(&mut bytes, END_LEN)?;
        if bytes.starts_with(&END_MAGIC) {
            return self.finish(&bytes).map(|()| None);
        }
        self.fill(&mut bytes, HEADER_LEN)?;
        let seq = self.read.last.seq;
        let fault = |source| BundleFault::Frame { seq, source };
        let peek = Peek::new(&bytes);
        let len = match peek {
            Ok(peek) => peek.len,
            // Whether a newer version wrote it is known once all of it was read.
            Err(FrameError::Incomplete { need, .. }) => need,
            Err(error) => return Err(fault(error)),
        };
        self.fill(&mut bytes, len)?;
        let (frame, _, hash) = Frame::decode(&bytes).map_err(fault)?;
        self.check_order(&frame).map_err(fault)?;
        self.hasher.update(&bytes);
        self.read.frames += 1;
        self.read.events += u64::from(frame.header.count);
        self.read.last = frame.position(hash);
        Ok(Some(Bundled { frame, hash, bytes }))
    }

    /// An export of a damaged journal has gaps, which its sequence numbers show; what is adjacent chains.
    fn check_order(&self, frame: &Frame) -> Result<(), FrameError> {
        let (seq, last) = (frame.header.seq, self.read.last);
        let is_next = last.seq.checked_add(1) == Some(seq);
        let what = if seq <= last.seq {
            "it comes after one that is later"
        } else if is_next && frame.header.prev_hash != last.hash {
            "it does not continue the one before"
        } else if !is_next && self.header.is_backup {
            "events are missing before it"
        } else {
            return Ok(());
        };
        Err(FrameError::Malformed { what })
    }

    fn fill(&mut self, bytes: &mut Vec<u8>, len: usize) -> Result<(), BundleFault> {
        let missing = widen(len.saturating_sub(bytes.len()));
        self.input.by_ref().take(missing).read_to_end(bytes)?;
        if bytes.len() < len {
            return Err(BundleFault::CutShort { seq: self.read.last.seq });
        }
        Ok(())
    }

    fn finish(&mut self, bytes: &[u8]) -> Result<(), BundleFault> {
        self.read.digest = *self.hasher.finalize().as_bytes();
        if bytes != self.read.encode() {
            let what = "its end does not fit what is before it";
            return Err(BundleFault::End { what });
        }
        let mut more = [0];
        loop {
            match self.input.read(&mut more) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(BundleFault::End { what: "something follows its end" }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl<R: Read> Iterator for BundleReader<R> {
    type Item = Result<Bundled, BundleFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step();
        self.done = !matches!(step, Ok(Some(_)));
        step.transpose()
    }
}

fn widen(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
