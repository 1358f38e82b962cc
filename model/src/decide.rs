//! Decisions: what a command means for the state as it is.
//!
//! Three answers: the events that make it so, "already so", or a refusal that a user can read. A decision reads only the
//! [`Core`](crate::record::VmCore) of a few subjects, through a [`View`]; it does nothing.

use crate::command::Command;
use crate::event::Event;
use crate::event::supervisor::{Started, Stopped};
use crate::id::{ImageId, OperationId, VmId};
use crate::view::{Lookup, View};

mod birth;
mod image;
mod operation;
mod refusal;
mod report;
mod root;

pub use refusal::Refusal;

/// Why nothing needs to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It runs.
    Running,
    /// It is stopped.
    Stopped,
    /// It is gone.
    Gone,
    /// Nobody left anything to do.
    NothingOwed,
    /// This failure is on record already.
    AlreadyRecorded,
    /// This very image is there under this name.
    ImageThere(ImageId),
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// These events make it so.
    Accepted(Vec<Event>),
    /// Nothing needs to change.
    AlreadySo(Settled),
    /// It cannot be.
    Refused(Refusal),
}

impl Decision {
    fn vm<const N: usize>(id: VmId, events: [crate::event::VmEvent; N]) -> Self {
        Self::Accepted(events.into_iter().map(|event| Event::Vm(id, event)).collect())
    }
}

/// Decides a command of an operation.
///
/// # Errors
/// [`Unreadable`](crate::view::Unreadable) if the state could not be looked up; nothing was decided.
pub fn decide(view: &impl View, operation: OperationId, command: &Command) -> Lookup<Decision> {
    if !command.needs_no_confirmation()
        && let Some(doubt) = view.root()?.doubt
    {
        return Ok(Decision::Refused(Refusal::Unconfirmed(doubt.reason)));
    }
    match command {
        Command::Prereserve { id, name, image, kind, spec } => {
            birth::prereserve(view, *id, name, *image, *kind, spec)
        }
        Command::TakeOver { id } => operation::take_over(view, operation, *id),
        Command::Start { id, generation, seen, token, accelerator } => {
            operation::start(view, *id, *generation, seen, *token, *accelerator)
        }
        Command::Stop { id, seen, mode } => operation::stop(view, *id, seen, *mode),
        Command::Delete { id, seen, force } => operation::delete(view, *id, seen, *force),
        Command::Report { id, step, outcome } => {
            report::report(view, operation, *id, *step, outcome)
        }
        Command::Adopt { id, generation, identity } => {
            operation::adopt(view, *id, *generation, *identity)
        }
        Command::ObserveExit { id, generation, evidence } => {
            operation::observe_exit(view, *id, *generation, evidence.as_ref())
        }
        Command::ImportImage { id, name, digest, content } => {
            image::import(view, *id, name, digest, content)
        }
        Command::RemoveImage { id } => image::remove(view, operation, *id),
        Command::FinishImageRemoval { id } => image::finish_removal(view, operation, *id),
        Command::StartSupervising { version, previous_alive_until_us } => {
            let started = Started {
                version: version.clone(),
                previous_alive_until_us: *previous_alive_until_us,
            };
            Ok(Decision::Accepted(vec![Event::Supervisor(started.into())]))
        }
        Command::Doubt { reason } => root::doubt(view, reason),
        Command::TakeIn { id, found } => root::take_in(view, *id, found),
        Command::AdoptRoot { place } => root::adopt(view, place),
        Command::StopSupervising => {
            Ok(Decision::Accepted(vec![Event::Supervisor(Stopped {}.into())]))
        }
    }
}
