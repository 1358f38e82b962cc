//! Decisions that begin, take over or end an operation on a VM.

use std::sync::Arc;

use super::{Decision, Refusal, Settled};
use crate::command::VmmSeen;
use crate::event::VmEvent;
use crate::event::vm::{
    ExitObserved, LaunchBegan, OperationAbandoned, OperationTakenOver, ReclaimBegan, Running,
    StopBegan, Stopped, TombstoneRolledBack, Tombstoned,
};
use crate::id::{LaunchToken, OperationId, VmId};
use crate::mutant::{self, Mutant};
use crate::record::{
    Accelerator, LaunchPhase, OperationKind, ProcessIdentity, Removal, RemovalKind, RemovalPhase,
    StopMode, VmCore, VmRecord, VmState,
};
use crate::view::{Lookup, View};

/// The tombstone of a record, complete: whoever resumes the removal reads nothing else.
pub(super) fn tombstone(record: &VmRecord, kind: RemovalKind) -> VmEvent {
    let removal =
        Removal { run_dir: record.spec.run_dir.clone(), log_dir: record.spec.log_dir.clone() };
    Tombstoned { kind, removal }.into()
}

pub(super) fn take_over(view: &impl View, by: OperationId, id: VmId) -> Lookup<Decision> {
    let Some(record) = view.vm(id)? else {
        return Ok(Decision::AlreadySo(Settled::Gone));
    };
    let Some(operation) = record.core.operation else {
        if mutant::on(Mutant::ReclaimCommitted) {
            return Ok(Decision::vm(id, [tombstone(&record, RemovalKind::Reclaim)]));
        }
        return Ok(Decision::AlreadySo(Settled::NothingOwed));
    };
    if operation.id == by {
        return Ok(Decision::AlreadySo(Settled::NothingOwed));
    }
    Ok(take_over_from(&record, id, operation.id))
}

fn take_over_from(record: &VmRecord, id: VmId, previous: OperationId) -> Decision {
    let core = &record.core;
    let taken = || OperationTakenOver { previous }.into();
    let reclaim = || tombstone(record, RemovalKind::Reclaim);
    let creating = core.state == VmState::Creating;
    match core.tombstone.as_ref().map(|tombstone| tombstone.phase) {
        Some(RemovalPhase::Deleting) if mutant::on(Mutant::DeletingRolledBack) => {
            let reason = String::new();
            Decision::vm(id, [taken(), TombstoneRolledBack { reason }.into()])
        }
        Some(RemovalPhase::Deleting) => Decision::vm(id, [taken()]),
        Some(RemovalPhase::Leased) => {
            // Nothing was touched, and the reasons may be gone: take it back, and decide anew.
            let reason = "the operation that wanted it is dead".to_owned();
            let back = TombstoneRolledBack { reason }.into();
            if creating {
                Decision::vm(id, [taken(), back, reclaim()])
            } else {
                Decision::vm(id, [taken(), back])
            }
        }
        None if creating => Decision::vm(id, [ReclaimBegan { previous }.into(), reclaim()]),
        None if owes_vmm(core) => Decision::vm(id, [taken()]),
        None => Decision::vm(id, [OperationAbandoned { previous }.into()]),
    }
}

/// Whether the remains of the operation are about a VMM: a launch to settle, or a stop to finish.
fn owes_vmm(core: &VmCore) -> bool {
    let launching = core.launch.is_some_and(|launch| launch.phase != LaunchPhase::Up);
    let stopping = core.operation.is_some_and(|operation| {
        matches!(operation.kind, OperationKind::Stop(_) | OperationKind::Delete { .. })
    });
    launching || stopping
}

/// The record of a VM on which a new operation may begin.
fn free(view: &impl View, id: VmId, verb: &'static str) -> Lookup<Result<Arc<VmRecord>, Decision>> {
    let Some(record) = view.vm(id)? else {
        return Ok(Err(Decision::Refused(Refusal::VmNotFound(id))));
    };
    if record.core.state == VmState::Creating {
        return Ok(Err(Decision::Refused(Refusal::Creating { id, verb })));
    }
    if let Some(operation) = record.core.operation {
        let (kind, operation) = (operation.kind, operation.id);
        return Ok(Err(Decision::Refused(Refusal::OperationInFlight { id, kind, operation })));
    }
    Ok(Ok(record))
}

fn inconclusive(id: VmId, reason: &str) -> Decision {
    Decision::Refused(Refusal::Inconclusive { id, reason: reason.to_owned() })
}

/// The exit that nobody recorded yet, if there is one.
fn unrecorded_exit(core: &VmCore, evidence: Option<&String>) -> Option<VmEvent> {
    let open = core.state == VmState::Running || core.interval_open;
    let evidence = evidence.cloned();
    open.then(|| ExitObserved { generation: core.generation, evidence }.into())
}

fn all(id: VmId, events: impl IntoIterator<Item = VmEvent>) -> Decision {
    let events = events.into_iter().map(|event| crate::event::Event::Vm(id, event));
    Decision::Accepted(events.collect())
}

pub(super) fn start(
    view: &impl View,
    id: VmId,
    generation: u64,
    seen: &VmmSeen,
    token: LaunchToken,
    accelerator: Accelerator,
) -> Lookup<Decision> {
    let record = match free(view, id, "started")? {
        Ok(record) => record,
        Err(answer) => return Ok(answer),
    };
    Ok(match seen {
        VmmSeen::Inconclusive(reason) => inconclusive(id, reason),
        // An observer needs no lock: a VMM that was alive may be recorded dead since.
        VmmSeen::Alive(_) if record.core.generation != generation => {
            Decision::Refused(Refusal::Late(id))
        }
        VmmSeen::Alive(_) if record.core.state == VmState::Running => {
            Decision::AlreadySo(Settled::Running)
        }
        VmmSeen::Alive(identity) => Decision::vm(id, [Running { identity: *identity }.into()]),
        VmmSeen::Dead => {
            let began = LaunchBegan { token, accelerator }.into();
            all(id, unrecorded_exit(&record.core, None).into_iter().chain([began]))
        }
    })
}

pub(super) fn stop(view: &impl View, id: VmId, seen: &VmmSeen, mode: StopMode) -> Lookup<Decision> {
    if mutant::on(Mutant::StopHidesPlaceholder)
        && view.vm(id)?.is_some_and(|record| record.core.state == VmState::Creating)
    {
        let operation = OperationKind::Stop(mode);
        return Ok(Decision::vm(id, [StopBegan { operation }.into(), Stopped {}.into()]));
    }
    let record = match free(view, id, "stopped")? {
        Ok(record) => record,
        Err(answer) => return Ok(answer),
    };
    let began = || StopBegan { operation: OperationKind::Stop(mode) }.into();
    Ok(match seen {
        VmmSeen::Inconclusive(reason) => inconclusive(id, reason),
        VmmSeen::Alive(_) => Decision::vm(id, [began()]),
        VmmSeen::Dead => match unrecorded_exit(&record.core, None) {
            Some(exit) => Decision::vm(id, [exit]),
            None if record.core.state == VmState::Stopped => Decision::AlreadySo(Settled::Stopped),
            None => Decision::vm(id, [began(), Stopped {}.into()]),
        },
    })
}

pub(super) fn delete(view: &impl View, id: VmId, seen: &VmmSeen, force: bool) -> Lookup<Decision> {
    let record = match free(view, id, "removed")? {
        Ok(record) => record,
        Err(answer) => return Ok(answer),
    };
    let kind = if force { RemovalKind::ForcedDelete } else { RemovalKind::Delete };
    Ok(match seen {
        VmmSeen::Inconclusive(_) if mutant::on(Mutant::InconclusiveIsDead) => all(
            id,
            unrecorded_exit(&record.core, None).into_iter().chain([tombstone(&record, kind)]),
        ),
        VmmSeen::Inconclusive(reason) => inconclusive(id, reason),
        VmmSeen::Alive(_) if !force => Decision::Refused(Refusal::Running(id)),
        VmmSeen::Alive(_) => {
            Decision::vm(id, [StopBegan { operation: OperationKind::Delete { force } }.into()])
        }
        VmmSeen::Dead => all(
            id,
            unrecorded_exit(&record.core, None).into_iter().chain([tombstone(&record, kind)]),
        ),
    })
}

pub(super) fn adopt(
    view: &impl View,
    id: VmId,
    generation: u64,
    identity: ProcessIdentity,
) -> Lookup<Decision> {
    Ok(match free(view, id, "adopted")? {
        Err(answer) => answer,
        Ok(record) if record.core.generation != generation => Decision::Refused(Refusal::Late(id)),
        Ok(record) if record.core.state == VmState::Running => {
            Decision::AlreadySo(Settled::Running)
        }
        Ok(_) => Decision::vm(id, [Running { identity }.into()]),
    })
}

pub(super) fn observe_exit(
    view: &impl View,
    id: VmId,
    generation: u64,
    evidence: Option<&String>,
) -> Lookup<Decision> {
    let Some(record) = view.vm(id)? else {
        return Ok(Decision::AlreadySo(Settled::Gone));
    };
    let core = &record.core;
    let late = (core.generation != generation && !mutant::on(Mutant::LateExit))
        || core.operation.is_some()
        || core.state == VmState::Creating;
    if late {
        return Ok(Decision::Refused(Refusal::Late(id)));
    }
    Ok(match unrecorded_exit(core, evidence) {
        Some(exit) => Decision::vm(id, [exit]),
        None => Decision::AlreadySo(Settled::Stopped),
    })
}
