//! Reading frames in order, across seals.
//!
//! ```text
//!            step: frame                        step: frame ends in JournalSealed
//!   +-----> at a mark ------------------------> at the seal --+
//!   |          | nothing but zeroes: End                      | next segment: checked against
//!   |          | anything else: Bad                           v the hash of the seal
//!   +----------+ (may become a frame later)      mark at the start of the next segment
//! ```
//!
//! A cursor believes a frame only if its checksum holds, its sequence number follows, and it names the
//! hash and the length of the frame before. It judges nothing: what a bad frame means depends on who
//! reads and on what is known to be durable.

use std::path::Path;
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Frame, FrameError, HEADER_LEN, Hash, Position, Seq};
use crate::head::Head;
use crate::reserved::{FIRST_KIND, JournalEvent, RECORD_FORMAT, sealed_next};
use crate::segment::{self, Segment};
use crate::window::Window;

mod locate;

/// A place between two frames: what is before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The segment, by its first sequence number.
    pub(crate) segment: Seq,
    /// Last sequence number before the mark.
    pub(crate) seq: Seq,
    /// Hash of the frame before the mark.
    pub(crate) hash: Hash,
    /// Offset in the segment.
    pub(crate) offset: u64,
    /// Length of the frame before it in the same segment, 0 if there is none.
    pub(crate) last_len: u32,
}

impl Mark {
    /// The start of a segment.
    pub(crate) fn start_of(segment: &Segment) -> Self {
        let header = &segment.header;
        Self {
            segment: header.first,
            seq: header.first.saturating_sub(1),
            hash: header.prev_hash,
            offset: segment::HEADER_LEN,
            last_len: 0,
        }
    }

    /// The place after a frame of `len` bytes.
    pub(crate) fn after(&self, frame: &Frame, hash: Hash, len: usize) -> Self {
        Self {
            segment: self.segment,
            seq: frame.last_seq(),
            hash,
            offset: self.offset.saturating_add(u64::try_from(len).unwrap_or(u64::MAX)),
            // A frame has at most 64 KiB.
            last_len: u32::try_from(len).unwrap_or(u32::MAX),
        }
    }

    pub(crate) fn position(&self) -> Position {
        Position { seq: self.seq, hash: self.hash }
    }
}

/// A frame that a cursor read.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) frame: Frame,
    pub(crate) hash: Hash,
    pub(crate) after: Mark,
    pub(crate) bytes: Vec<u8>,
}

/// What a cursor met.
#[expect(clippy::large_enum_variant, reason = "nearly every step is a frame")]
#[derive(Debug)]
pub(crate) enum Step {
    Frame(Found),
    /// Nothing more.
    End,
    /// Something that is no frame, or not the one that should follow.
    Bad(Fault),
}

/// What is wrong with the bytes at a mark.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Frame(FrameError),
    #[error("the frame has seq {found}, {expected} should follow")]
    Order { expected: Seq, found: Seq },
    #[error("the frame does not continue the one before it")]
    Chain,
    #[error("the next segment, {0}, is missing")]
    NextMissing(Seq),
    #[error("the next segment, {0}, does not continue this one")]
    NextForeign(Seq),
}

/// A reader of frames.
#[derive(Debug)]
pub(crate) struct Cursor {
    directory: Directory,
    segment: Arc<Segment>,
    mark: Mark,
    /// The segment that the frame before the mark sealed the way to.
    next: Option<Seq>,
    window: Window,
}

impl Cursor {
    fn new(directory: &Directory, segment: Segment) -> Self {
        let mark = Mark::start_of(&segment);
        Self {
            directory: directory.clone(),
            segment: Arc::new(segment),
            mark,
            next: None,
            window: Window::default(),
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Forgets what was read ahead.
    pub(crate) fn reload(&mut self) {
        self.window.clear();
    }

    /// Goes to the place after a frame that its writer is about to write.
    pub(crate) fn skip_own(&mut self, frame: &Frame, after: Mark) {
        self.next = frame.entries.last().and_then(sealed_next);
        self.mark = after;
        self.window.clear();
    }

    /// Reads the next frame, if there is a good one.
    pub(crate) fn step(&mut self) -> Result<Step, JournalError> {
        if let Some(next) = self.next
            && let Some(fault) = self.cross(next)?
        {
            return Ok(Step::Bad(fault));
        }
        let step = self.read_frame()?;
        match &step {
            Step::Frame(found) => {
                check_known(&found.frame, &self.segment.path)?;
                self.mark = found.after;
                self.next = found.frame.entries.last().and_then(sealed_next);
            }
            Step::End | Step::Bad(_) => self.window.clear(),
        }
        Ok(step)
    }

    /// Enters the next segment if a seal was read; a fault if that is not possible.
    pub(crate) fn cross_seal(&mut self) -> Result<Option<Fault>, JournalError> {
        self.next.map_or(Ok(None), |next| self.cross(next))
    }

    fn cross(&mut self, next: Seq) -> Result<Option<Fault>, JournalError> {
        let Some(segment) = self.directory.open_segment(next)? else {
            return Ok(Some(Fault::NextMissing(next)));
        };
        let start = Mark::start_of(&segment);
        let same_root = segment.header.root == self.segment.header.root;
        if !same_root || start.position() != self.mark.position() {
            return Ok(Some(Fault::NextForeign(next)));
        }
        self.segment = Arc::new(segment);
        self.mark = start;
        self.next = None;
        self.window.clear();
        Ok(None)
    }

    fn read_frame(&mut self) -> Result<Step, JournalError> {
        let offset = self.mark.offset;
        let mut bytes = self.window.forward(&self.segment, offset, HEADER_LEN)?;
        if bytes.is_empty() {
            return Ok(Step::End);
        }
        let mut decoded = Frame::decode(bytes);
        if let Err(FrameError::Incomplete { need, .. }) = decoded {
            bytes = self.window.forward(&self.segment, offset, need)?;
            decoded = Frame::decode(bytes);
        }
        match decoded {
            Ok((frame, len, hash)) => {
                let bytes = bytes.get(..len).unwrap_or_default().to_vec();
                Ok(self.judge(frame, hash, bytes))
            }
            Err(FrameError::NewerVersion { version }) => Err(JournalError::NewerFormat {
                path: self.segment.path.clone(),
                what: "frame header version",
                version: u32::from(version),
                needs: None,
            }),
            Err(_) if self.only_zeroes(offset)? => Ok(Step::End),
            Err(error) => Ok(Step::Bad(Fault::Frame(error))),
        }
    }

    fn judge(&self, frame: Frame, hash: Hash, bytes: Vec<u8>) -> Step {
        let header = &frame.header;
        let expected = self.mark.seq.saturating_add(1);
        if header.seq != expected {
            return Step::Bad(Fault::Order { expected, found: header.seq });
        }
        if header.prev_hash != self.mark.hash || header.prev_len != self.mark.last_len {
            return Step::Bad(Fault::Chain);
        }
        let after = self.mark.after(&frame, hash, bytes.len());
        Step::Frame(Found { frame, hash, after, bytes })
    }

    /// Whether nothing but zeroes follows: what a cut tail was overwritten with.
    fn only_zeroes(&mut self, mut offset: u64) -> Result<bool, JournalError> {
        loop {
            let bytes = self.window.forward(&self.segment, offset, HEADER_LEN)?;
            if bytes.is_empty() {
                return Ok(true);
            }
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            offset = offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        }
    }
}

/// Refuses what the journal of a newer program says of itself, and all that follows a barrier which this one cannot pass.
pub(crate) fn check_known(frame: &Frame, path: &Path) -> Result<(), JournalError> {
    let newer = |what, version, needs| {
        Err(JournalError::NewerFormat { path: path.to_owned(), what, version, needs })
    };
    if frame.header.flags != 0 {
        return newer("frame flags", u32::from(frame.header.flags), None);
    }
    for entry in frame.entries.iter().filter(|entry| entry.kind >= FIRST_KIND) {
        match JournalEvent::from_entry(entry) {
            None => return newer("an event of kind", u32::from(entry.kind), None),
            Some(JournalEvent::Upgraded { to, needs, .. }) if to > RECORD_FORMAT => {
                return newer("record format", to, Some(needs));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Where to begin reading.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    /// After a frame that is known.
    Position(Position),
    /// At the frame that holds this sequence number.
    Seq(Seq),
}

impl Cursor {
    /// A cursor before the first frame that is wanted. `head` only shortens the way there.
    ///
    /// `Ok(None)` if the journal ends before that place.
    pub(crate) fn locate(
        directory: &Directory,
        from: From,
        head: Option<&Head>,
    ) -> Result<Option<Self>, JournalError> {
        locate::locate(directory, from, head)
    }

    /// A cursor at the start of a segment.
    pub(crate) fn at_segment(
        directory: &Directory,
        first: Seq,
    ) -> Result<Option<Self>, JournalError> {
        Ok(directory.open_segment(first)?.map(|segment| Self::new(directory, segment)))
    }
}
