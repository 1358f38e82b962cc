//! What the outcome of a step means.

use super::operation::tombstone;
use super::{Decision, Refusal, Settled};
use crate::event::VmEvent;
use crate::event::vm::{
    Committed, DeleteBegan, DeleteStepDone, Deleted, LaunchBegan, LaunchFailed, Launched, Running,
    StepFailed, StopFailed, Stopped, StoragePrepared, TombstoneRolledBack,
};
use crate::id::{OperationId, VmId};
use crate::mutant::{self, Mutant};
use crate::record::{DeleteStep, OperationKind, RemovalKind, VmCore, VmRecord};
use crate::step::{Outcome, Step, fails_as_before, next_step};
use crate::view::{Lookup, View};

pub(super) fn report(
    view: &impl View,
    by: OperationId,
    id: VmId,
    step: Step,
    outcome: &Outcome,
) -> Lookup<Decision> {
    let Some(record) = view.vm(id)? else {
        return Ok(Decision::AlreadySo(Settled::Gone));
    };
    if record.core.operation.map(|operation| operation.id) != Some(by) {
        return Ok(Decision::Refused(Refusal::LostOwnership(id)));
    }
    if next_step(&record.core) != Some(step) {
        return Ok(Decision::Refused(Refusal::NotOwed { id, step: step.as_str() }));
    }
    Ok(match events(&record, step, outcome) {
        Some(events) if events.is_empty() => Decision::AlreadySo(Settled::AlreadyRecorded),
        Some(events) => {
            let events = events.into_iter().map(|event| crate::event::Event::Vm(id, event));
            Decision::Accepted(events.collect())
        }
        None => Decision::Refused(Refusal::NotOwed { id, step: step.as_str() }),
    })
}

/// The events of an outcome; `None` if the outcome does not belong to the step.
fn events(record: &VmRecord, step: Step, outcome: &Outcome) -> Option<Vec<VmEvent>> {
    match step {
        Step::PrepareStorage => match outcome {
            Outcome::Done => Some(vec![StoragePrepared {}.into(), Committed {}.into()]),
            Outcome::Failed(reason) | Outcome::Unproven(reason) => {
                Some(vec![failed(step, reason), tombstone(record, RemovalKind::Rollback)])
            }
            Outcome::Chosen(..) | Outcome::Spawned(_) | Outcome::Up(_) => None,
        },
        Step::ChooseLaunch => match outcome {
            Outcome::Chosen(token, accelerator) => {
                Some(vec![LaunchBegan { token: *token, accelerator: *accelerator }.into()])
            }
            _ => None,
        },
        Step::SpawnVmm | Step::AwaitVmm | Step::SettleLaunch => launch(record, step, outcome),
        Step::StopVmm(_) => stop(record, outcome),
        Step::ProveVmmDead { .. } => match outcome {
            Outcome::Done => Some(vec![DeleteBegan {}.into()]),
            Outcome::Failed(reason) | Outcome::Unproven(reason) => {
                Some(vec![TombstoneRolledBack { reason: reason.clone() }.into()])
            }
            Outcome::Chosen(..) | Outcome::Spawned(_) | Outcome::Up(_) => None,
        },
        Step::Remove(part) => match outcome {
            Outcome::Done => Some(removed(&record.core, part)),
            Outcome::Failed(reason) | Outcome::Unproven(reason) => {
                Some(failed_anew(&record.core, step, outcome, reason))
            }
            Outcome::Chosen(..) | Outcome::Spawned(_) | Outcome::Up(_) => None,
        },
    }
}

fn failed(step: Step, reason: &str) -> VmEvent {
    StepFailed { step: step.as_str().to_owned(), reason: reason.to_owned() }.into()
}

/// The same failure is recorded again only when its reason changes.
fn failed_anew(core: &VmCore, step: Step, outcome: &Outcome, reason: &str) -> Vec<VmEvent> {
    if fails_as_before(core, step, outcome) { Vec::new() } else { vec![failed(step, reason)] }
}

fn launch(record: &VmRecord, step: Step, outcome: &Outcome) -> Option<Vec<VmEvent>> {
    match outcome {
        Outcome::Spawned(identity) if step == Step::SpawnVmm => {
            Some(vec![Launched { identity: *identity }.into()])
        }
        Outcome::Up(identity) if step != Step::SpawnVmm => {
            Some(vec![Running { identity: *identity }.into()])
        }
        Outcome::Failed(reason) => Some(vec![LaunchFailed { reason: reason.clone() }.into()]),
        Outcome::Unproven(reason) => Some(failed_anew(&record.core, step, outcome, reason)),
        Outcome::Done | Outcome::Chosen(..) | Outcome::Spawned(_) | Outcome::Up(_) => None,
    }
}

fn stop(record: &VmRecord, outcome: &Outcome) -> Option<Vec<VmEvent>> {
    let removal = record
        .core
        .operation
        .is_some_and(|operation| matches!(operation.kind, OperationKind::Delete { .. }));
    match outcome {
        // One frame: no window in which a forced removal has stopped the VM and forgotten why.
        Outcome::Done if removal => {
            Some(vec![Stopped {}.into(), tombstone(record, RemovalKind::ForcedDelete)])
        }
        Outcome::Unproven(_) if removal && mutant::on(Mutant::RecordBeforeProof) => {
            Some(vec![Stopped {}.into(), tombstone(record, RemovalKind::ForcedDelete)])
        }
        Outcome::Done => Some(vec![Stopped {}.into()]),
        Outcome::Failed(reason) | Outcome::Unproven(reason) => {
            Some(vec![StopFailed { reason: reason.clone() }.into()])
        }
        Outcome::Chosen(..) | Outcome::Spawned(_) | Outcome::Up(_) => None,
    }
}

fn removed(core: &VmCore, part: DeleteStep) -> Vec<VmEvent> {
    let done = core.tombstone.as_ref().map_or(0, |tombstone| tombstone.done.len());
    let mut events = vec![DeleteStepDone { step: part }.into()];
    if done + 1 == DeleteStep::ALL.len() {
        events.push(Deleted {}.into());
    }
    events
}
