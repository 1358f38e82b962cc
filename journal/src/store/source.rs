//! Where the store reads the log.

use crate::error::{AnyError, JournalError};
use crate::frame::{Frame, Hash, Position, Seq};
use crate::journal::{Journal, Unfolded};

/// Frames in order, each with its hash.
pub type Frames<'a> = Box<dyn Iterator<Item = Result<(Frame, Hash), AnyError>> + 'a>;

/// Reads the log for the store, as often as a repair needs it. Every [`Journal`] is one.
pub trait FrameSource {
    /// The durable frames from the one that holds `seq`, or, if history begins later, from the
    /// first.
    ///
    /// # Errors
    /// Whatever keeps the log from being read.
    fn frames_from(&self, seq: Seq) -> Result<Frames<'_>, AnyError>;

    /// Reads to the end of the log and makes it durable; returns that end. Asked only when the
    /// store seems to be ahead: the durable position that a caller knows may be an old one, because
    /// what is written down of it is not synced.
    ///
    /// # Errors
    /// Whatever keeps the log from being read or synced.
    fn end(&self) -> Result<Position, AnyError>;
}

impl<J: Journal> FrameSource for J {
    fn frames_from(&self, seq: Seq) -> Result<Frames<'_>, AnyError> {
        let frames = match Journal::frames_from(self, seq) {
            Err(JournalError::HistoryBegins { first, .. }) => Journal::frames_from(self, first),
            frames => frames,
        };
        Ok(Box::new(frames?.map(|frame| frame.map_err(AnyError::from))))
    }

    fn end(&self) -> Result<Position, AnyError> {
        let mut end = Unfolded(self.durable()?);
        self.refresh(&mut end)?;
        Ok(end.0)
    }
}
