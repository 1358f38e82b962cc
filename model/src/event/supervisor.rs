//! Bodies of the events of the daemon.

use serde::{Deserialize, Serialize};

/// A daemon began to supervise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Version of the binary.
    pub version: String,
    /// Until when the one before was last seen alive, microseconds since 1970; from its heartbeat.
    pub previous_alive_until_us: Option<i64>,
}

/// The daemon stopped in good order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {}
