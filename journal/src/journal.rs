//! The contract of a journal, whatever keeps it.

use std::error::Error as StdError;
use std::ops::RangeInclusive;
use std::time::Instant;

use crate::error::JournalError;
use crate::frame::{Entry, Frame, Hash, Position, Seq, Writer};

/// State that follows a journal frame by frame.
pub trait Fold {
    /// Why a frame cannot be applied, or a decision not be made.
    type Error: StdError + Send + Sync + 'static;

    /// Where the fold stands. After [`apply`](Self::apply) it is the position of the frame applied.
    fn position(&self) -> Position;

    /// Takes over one frame. Called once for each, in order, the journal's own events included
    /// ([`reserved`](crate::reserved)).
    ///
    /// # Errors
    ///
    /// If the frame cannot be applied; the fold is then unchanged.
    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Self::Error>;
}

/// What a decision comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proposal<T> {
    /// These events, as one frame, and an answer that holds once they are durable. Refused with
    /// [`JournalError::OnlyReserveLeft`] on a full disk.
    Append(Vec<Entry>, T),
    /// The same for events that free space, end something or finish what was begun: on a full disk they
    /// may use the room that is kept for them.
    AppendFromReserve(Vec<Entry>, T),
    /// An answer that needs no event.
    Answer(T),
}

/// What a transaction came to. Everything that it relies on is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<T> {
    /// The decision's answer.
    pub answer: T,
    /// Sequence numbers of the events appended, if any.
    pub seqs: Option<RangeInclusive<Seq>>,
    /// Where the fold stands now. May be beyond `seqs` if the segment was sealed after them.
    pub position: Position,
}

/// An append-only history of decisions.
pub trait Journal {
    /// Decides on the newest state and records the decision, as one step among all writers.
    ///
    /// `fold` is brought to the end of the history; `decide` looks at it and proposes; the proposal's
    /// frame is applied to the fold, appended and made durable. `decide` runs under the writers' lock:
    /// it must neither wait nor start a process.
    ///
    /// # Errors
    ///
    /// * [`JournalError::Busy`] if the lock was not free until `deadline`; nothing was written.
    /// * [`JournalError::Decide`] and [`JournalError::Fold`] carry the fold's own error; nothing of
    ///   the proposal was written.
    /// * [`JournalError::Frame`] if the proposal exceeds a limit; nothing of it was written.
    /// * [`JournalError::OnlyReserveLeft`], and [`JournalError::Io`] with
    ///   [`is_full_disk`](JournalError::is_full_disk), if there is no room; nothing of the proposal was
    ///   written, and the handle goes on.
    /// * [`JournalError::Unacknowledged`] if it was written, or applied, but may not survive. This
    ///   handle then answers [`JournalError::Poisoned`] for ever, and the fold must be dropped.
    /// * [`JournalError::Damaged`] and the like if the history cannot be relied upon.
    fn transact<F: Fold, T>(
        &mut self,
        fold: &mut F,
        writer: &Writer,
        deadline: Instant,
        decide: impl FnOnce(&F) -> Result<Proposal<T>, F::Error>,
    ) -> Result<Outcome<T>, JournalError>;

    /// As [`transact`](Self::transact), for several decisions in a row: `decide` is asked until it has none left, and
    /// each sees what those before it did. Each is a frame of its own, but they may share one write and one sync. After
    /// an error, decisions before the failing one stand and are durable unless the error says otherwise.
    ///
    /// # Errors
    ///
    /// As [`transact`](Self::transact).
    fn transact_each<F: Fold, T>(
        &mut self,
        fold: &mut F,
        writer: &Writer,
        deadline: Instant,
        mut decide: impl FnMut(&F) -> Option<Result<Proposal<T>, F::Error>>,
    ) -> Result<Vec<Outcome<T>>, JournalError> {
        let mut outcomes = Vec::new();
        loop {
            let outcome = self.transact(fold, writer, deadline, |fold| match decide(fold) {
                None => Ok(Proposal::Answer(None)),
                Some(proposal) => Ok(match proposal? {
                    Proposal::Answer(answer) => Proposal::Answer(Some(answer)),
                    Proposal::Append(entries, answer) => Proposal::Append(entries, Some(answer)),
                    Proposal::AppendFromReserve(entries, answer) => {
                        Proposal::AppendFromReserve(entries, Some(answer))
                    }
                }),
            })?;
            let Outcome { answer: Some(answer), seqs, position } = outcome else {
                return Ok(outcomes);
            };
            outcomes.push(Outcome { answer, seqs, position });
        }
    }

    /// Brings a fold up to date without the writers' lock, and makes durable what it then relies on.
    ///
    /// # Errors
    ///
    /// As [`transact`](Self::transact).
    fn refresh<F: Fold>(&self, fold: &mut F) -> Result<(), JournalError>;

    /// As [`refresh`](Self::refresh), but what is read may not be durable yet: only for preparing a decision, whose
    /// transaction makes durable what it relies on. Whoever answers or refuses instead refreshes first.
    ///
    /// # Errors
    ///
    /// As [`transact`](Self::transact).
    fn look_ahead<F: Fold>(&self, fold: &mut F) -> Result<(), JournalError>;

    /// The durable frames from the one that holds `seq` on, up to what is durable now.
    ///
    /// # Errors
    ///
    /// [`JournalError::HistoryBegins`] if `seq` was retired; whatever reading meets.
    fn frames_from(
        &self,
        seq: Seq,
    ) -> Result<impl Iterator<Item = Result<(Frame, Hash), JournalError>>, JournalError>;

    /// How far the journal is known to be durable.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    fn durable(&self) -> Result<Position, JournalError>;
}

/// A fold that keeps nothing but its position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unfolded(pub Position);

impl Fold for Unfolded {
    type Error = std::convert::Infallible;

    fn position(&self) -> Position {
        self.0
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Self::Error> {
        self.0 = frame.position(hash);
        Ok(())
    }
}
