//! Bodies of the events of the root itself.

use serde::{Deserialize, Serialize};

use crate::record::Place;

/// The journal was found to be older than what it speaks of: nothing is touched until somebody adopts the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootUnconfirmed {
    /// What proves it, in a sentence.
    pub reason: String,
}

/// Somebody looked at what is there and took the root for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootAdopted {
    /// Where the root was then.
    pub place: Place,
}
