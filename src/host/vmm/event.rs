//! What a VMM tells of itself unasked.

use std::fmt;
use std::os::fd::AsFd;
use std::time::Instant;

use super::{ApiError, ExitReason};

/// Something that happened to a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmmEvent {
    /// The guest was stopped between two instructions.
    Paused,
    /// The guest goes on, or runs for the first time.
    Resumed,
    /// The power button was pressed.
    PowerButton,
    /// The guest is going away, and why; the exit of the process follows.
    ShuttingDown(ExitReason),
    /// The guest was reset.
    Reset,
    /// The guest's kernel told that it panicked.
    GuestPanicked,
    /// A disk could not be read or written; the VMM's words.
    DiskError(String),
    /// Something else, by the VMM's own name for it.
    Other(String),
    /// The VMM hung up: it has exited, or is about to.
    HungUp,
}

/// The events of one VM in their order. Its descriptor becomes readable when there may be one.
pub trait EventStream: fmt::Debug + Send + AsFd {
    /// The next event; `None` when `deadline` passes without one.
    fn next(&mut self, deadline: Instant) -> Result<Option<VmmEvent>, ApiError>;
}
