//! What can be wrong with a generation.

use std::fmt;
use std::path::PathBuf;

use crate::frame::{Position, Seq};

/// Why a generation was, or must be, rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repair {
    /// Its directory is not there.
    Missing,
    /// It has lost events that it had.
    Behind {
        /// What it had.
        had: Position,
        /// What it has.
        has: Position,
    },
    /// sled cannot read it, or its content contradicts itself.
    Damaged {
        /// What was found.
        what: String,
    },
    /// It holds events beyond the durable end of the log. As only durable events are ever given to
    /// it, the log has lost acknowledged events, or was replaced by an older one: whoever receives
    /// this must raise it. What was lost is in the generation that was kept.
    Ahead {
        /// What the generation holds.
        store: Position,
        /// Where the log ends.
        log: Position,
    },
    /// It belongs to another history than the log.
    Different {
        /// The last position of the generation, or the hash it follows.
        store: Position,
        /// What the log has there.
        log: Position,
    },
}

impl Repair {
    /// Says whether it speaks of a loss in the log rather than in the store.
    #[must_use]
    pub fn accuses_log(&self) -> bool {
        matches!(self, Self::Ahead { .. } | Self::Different { .. })
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => write!(f, "it is missing"),
            Self::Behind { had, has } => write!(f, "it reached {had} and now ends at {has}"),
            Self::Damaged { what } => write!(f, "it is damaged: {what}"),
            Self::Ahead { store, log } => {
                write!(f, "it reaches {store}, beyond the end of the journal at {log}")
            }
            Self::Different { store, log } => {
                write!(f, "it has {store} where the journal has {log}")
            }
        }
    }
}

/// A repair that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// First sequence number of the generation.
    pub generation: Seq,
    /// Why.
    pub cause: Repair,
    /// Where the unfit generation is kept; `None` if nothing of it was left.
    pub kept: Option<PathBuf>,
}
