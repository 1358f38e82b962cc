//! The loop that does what a record owes.
//!
//! A verb, the daemon, gc and a recovery all end up here: ask the record for its next step, perform it, journal what became
//! of it, ask again. Whoever comes after a death enters the same loop in the middle.

use std::sync::Arc;

use cocoon_model::command::Command;
use cocoon_model::decide::{Decision, Settled};
use cocoon_model::id::VmId;
use cocoon_model::record::VmRecord;
use cocoon_model::step::{Outcome, Step, failed_step, fails_as_before, next_step};

use super::caller::Caller;
use super::{Engine, EngineError};
use crate::host::lock::OpsGuard;

/// What has become of a VM when nothing more is owed.
#[derive(Debug, Clone)]
pub enum Rest {
    /// It is there.
    There(Arc<VmRecord>),
    /// Its record is gone.
    Gone,
}

impl Engine {
    /// Has a command about the guarded VM decided.
    ///
    /// # Errors
    /// Those of the journal, and refusals.
    pub(crate) fn submit_locked(
        &self,
        guard: &OpsGuard,
        caller: &Caller,
        command: &Command,
    ) -> Result<Option<Settled>, EngineError> {
        if command.vm().is_none_or(|id| id.as_str() != guard.vm()) {
            let vm = guard.vm();
            return Err(EngineError::Bug(format!("{command:?} under the lock of VM {vm}")));
        }
        self.submit(caller, command)
    }

    /// Has a command decided that needs no VM's lock.
    pub(crate) fn submit(
        &self,
        caller: &Caller,
        command: &Command,
    ) -> Result<Option<Settled>, EngineError> {
        match self.ledger().submit(caller, command)? {
            Decision::Accepted(_) => Ok(None),
            Decision::AlreadySo(settled) => Ok(Some(settled)),
            Decision::Refused(refusal) => Err(refusal.into()),
        }
    }

    /// Does what the record of the guarded VM owes, for as long as this caller owns it.
    ///
    /// # Errors
    /// The first step that failed, once what can be taken back is taken back; or the journal.
    pub(crate) fn drive(
        &self,
        guard: &OpsGuard,
        caller: &Caller,
        id: VmId,
        haste: Haste,
    ) -> Result<Rest, EngineError> {
        let mut failure = None;
        loop {
            let Some(record) = self.vm(id)? else { return finish(failure, Rest::Gone) };
            let owned = record.core.operation.is_some_and(|operation| operation.id == caller.id());
            let Some(step) = next_step(&record.core).filter(|_| owned) else {
                return finish(failure, Rest::There(record));
            };
            let outcome = cut(self.perform_step(guard, &record, step, haste));
            if let Some(error) = told(id, step, &outcome) {
                failure.get_or_insert(error);
            }
            let report = Command::Report { id, step, outcome };
            if let Err(error) = self.submit_locked(guard, caller, &report) {
                if let Some(cause) = failure {
                    tracing::error!("{cause}");
                }
                return Err(error);
            }
            let after = self.vm(id)?;
            let moved_on = |after: &&Arc<VmRecord>| after.core.generation > record.core.generation;
            if let Some(after) = after.as_ref().filter(moved_on) {
                self.note_generation(after);
            }
            let still_owed = after.is_some_and(|after| next_step(&after.core) == Some(step));
            if still_owed && failure.is_some() {
                return finish(failure, Rest::There(record));
            }
        }
    }
}

impl Engine {
    /// Tries the step at which the record of the guarded VM stands since somebody failed at it, before taking it over: what
    /// fails again in the same way is on record already, and nothing more is written about it.
    ///
    /// # Errors
    /// The same failure.
    pub(super) fn retry(
        &self,
        guard: &OpsGuard,
        id: VmId,
        haste: Haste,
    ) -> Result<(), EngineError> {
        let Some(record) = self.vm(id)? else { return Ok(()) };
        let Some(step) = failed_step(&record.core) else { return Ok(()) };
        let outcome = cut(self.perform_step(guard, &record, step, haste));
        let again = fails_as_before(&record.core, step, &outcome);
        told(id, step, &outcome).filter(|_| again).map_or(Ok(()), Err)
    }
}

/// How an operation deals with a guest that still has time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// It waits for it.
    None,
    /// It was told to use force.
    Force,
}

/// The longest reason that an event carries, bytes.
const REASON_MAX: usize = 2048;

/// An outcome whose reason fits into an event.
fn cut(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Failed(reason) => Outcome::Failed(cut_text(reason)),
        Outcome::Unproven(reason) => Outcome::Unproven(cut_text(reason)),
        other => other,
    }
}

/// A text that fits into an event.
pub(super) fn cut_text(mut text: String) -> String {
    let end = (0..=REASON_MAX).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

fn finish(failure: Option<EngineError>, rest: Rest) -> Result<Rest, EngineError> {
    failure.map_or(Ok(rest), Err)
}

fn told(id: VmId, step: Step, outcome: &Outcome) -> Option<EngineError> {
    match outcome {
        // Somebody else's launch has come to its end, which is what was to be brought about.
        Outcome::Failed(_) if step == Step::SettleLaunch => None,
        Outcome::Failed(reason) | Outcome::Unproven(reason) => {
            Some(EngineError::Step { id, step: step.as_str(), reason: reason.clone() })
        }
        Outcome::Done | Outcome::Chosen(..) | Outcome::Spawned(_) | Outcome::Up(_) => None,
    }
}
