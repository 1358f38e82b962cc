//! The state as a fold over the journal's frames.

use cocoon_journal::{Fold, Frame, Hash, Position};
use cocoon_model::apply::ApplyError;
use cocoon_model::event::Stamp;
use cocoon_model::id::OperationId;
use cocoon_model::state::State;
use cocoon_model::view::Unreadable;

use super::base::CheckpointBase;
use crate::codec::{self, CodecError};

/// Why a frame could not be folded in, or a decision not be taken on the fold.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// The bytes of an event.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The event does not fit the state.
    #[error(
        "the journal holds an event that cannot have happened: {0}; `cocoon replay --check` shows where"
    )]
    Illegal(#[from] ApplyError),
    /// The checkpoint under the state.
    #[error("cannot read the checkpoint under the state: {0}")]
    Unreadable(#[from] Unreadable),
}

/// The folded state, and the frame up to which it is folded.
#[derive(Debug, Default)]
pub struct StateFold {
    state: State<CheckpointBase>,
    position: Position,
    witnessed: Option<Witnessed>,
    differs: bool,
}

/// A frame that the journal held once, as a witness outside of it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Witnessed(Position);

impl Witnessed {
    /// Whether the journal has another frame in its place.
    fn differs(self, position: Position) -> bool {
        self.0.seq == position.seq && self.0.hash != position.hash
    }
}

impl StateFold {
    /// Stands on a base that was folded up to a position.
    #[must_use]
    pub fn on(base: CheckpointBase, position: Position) -> Self {
        let state = State::on(base, position.seq);
        Self { state, position, witnessed: None, differs: false }
    }

    /// Looks out for the frame that a witness names, from here on.
    pub fn expect(&mut self, witnessed: Option<Position>) {
        self.witnessed = witnessed.map(Witnessed);
        self.differs = self.witnessed.is_some_and(|witnessed| witnessed.differs(self.position));
    }

    /// What a witness proves of the journal that is folded up to here; `None` if it proves nothing. `witnessed` is what it
    /// said before the fold was brought up to date.
    #[must_use]
    pub fn is_older(&self, witnessed: Option<Position>) -> Option<String> {
        let ends = self.position.seq;
        match witnessed {
            Some(witnessed) if witnessed.seq > ends => Some(format!(
                "the journal ends at event {ends}, and had come to event {} before: an older copy was put in its place",
                witnessed.seq
            )),
            _ if self.differs => Some(
                "the journal is not the one that was here before: another copy was put in its place"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> &State<CheckpointBase> {
        &self.state
    }
}

impl Fold for StateFold {
    type Error = FoldError;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), FoldError> {
        codec::check_codec(frame.header.codec)?;
        for (seq, entry) in frame.events() {
            match codec::decode(entry)? {
                Some(event) => self.state.apply(&stamp(frame, seq), &event)?,
                None => match codec::doubt(entry) {
                    Some(reason) => self.state.doubt(seq, reason)?,
                    None => self.state.skip(seq).map_err(ApplyError::from)?,
                },
            }
        }
        self.position = frame.position(hash);
        self.differs |= self.witnessed.is_some_and(|witnessed| witnessed.differs(self.position));
        Ok(())
    }
}

/// What the journal knows of an event beside its body.
#[must_use]
pub fn stamp(frame: &Frame, seq: u64) -> Stamp {
    Stamp {
        seq,
        at_us: frame.header.wall_us,
        operation: OperationId(frame.header.operation.as_u128()),
    }
}
