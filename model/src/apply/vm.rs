//! The fold of a VM.
//!
//! ```text
//!   Prereserved          Committed            Running              Stopped, ExitObserved
//!  ------------> creating --------> created ---------> running ---------------------------> stopped
//!                   |                  |                  ^ |                                  |
//!                   |                  |          Running | | StopFailed      Running          |
//!                   |                  | LaunchFailed     | v               <-----------------  |
//!                   |                  +--------------> error  <------------------------------ +
//!                   |                                     |         LaunchFailed
//!                   |   any state: Tombstoned -> leased --TombstoneRolledBack--> as before
//!                   |                              |
//!                   +----------------------------> | DeleteBegan
//!                                                  v
//!                                              deleting --DeleteStepDone...--> Deleted: gone, name free
//!
//!   no record, or any state but deleting: Adopted -> running, stopped or created, as it was found
//! ```

use super::IllegalEvent;
use crate::event::vm::{Adopted, ExitObserved, LaunchBegan, Prereserved, StepFailed, Tombstoned};
use crate::event::{Stamp, VmEvent};
use crate::id::{OperationId, VmId};
use crate::mutant::{self, Mutant};
use crate::record::{
    DeleteStep, Launch, LaunchPhase, Operation, OperationKind, ProcessIdentity, Reason,
    RemovalPhase, Tombstone, VmCore, VmNotes, VmRecord, VmState,
};

/// What an event needs of the record, said when it does not get it.
type Need = Result<(), &'static str>;

fn need(holds: bool, why: &'static str) -> Need {
    if holds { Ok(()) } else { Err(why) }
}

/// Folds an event into the record of its VM; `None` is a VM that is not there.
///
/// # Errors
/// [`IllegalEvent`] if it does not fit.
pub fn apply_vm(
    record: Option<&VmRecord>,
    id: VmId,
    stamp: &Stamp,
    event: &VmEvent,
) -> Result<Option<VmRecord>, IllegalEvent> {
    let name = event.info().name;
    let subject = || format!("VM {id}");
    let misfit =
        |why| IllegalEvent::Misfit { event: name, seq: stamp.seq, subject: subject(), why };
    if let VmEvent::Prereserved(body) = event {
        return match record {
            Some(_) => Err(misfit("its id is taken")),
            None => Ok(Some(prereserved(id, stamp, body))),
        };
    }
    if let VmEvent::Adopted(body) = event {
        return adopted(record, id, stamp, body).map(Some).map_err(misfit);
    }
    let Some(record) = record else {
        return Err(IllegalEvent::Absent { event: name, seq: stamp.seq, subject: subject() });
    };
    let mut record = record.clone();
    change(&mut record, stamp, event).map_err(misfit)?;
    record.notes.updated_us = stamp.at_us;
    record.notes.last_seq = stamp.seq;
    let gone = matches!(event, VmEvent::Deleted(_));
    Ok((!gone).then_some(record))
}

fn prereserved(id: VmId, stamp: &Stamp, body: &Prereserved) -> VmRecord {
    let core = VmCore {
        id,
        name: body.name.clone(),
        image: body.image,
        state: VmState::Creating,
        generation: 0,
        operation: Some(Operation { id: stamp.operation, kind: body.operation }),
        storage_prepared: false,
        launch: None,
        tombstone: None,
        first_booted: false,
        interval_open: false,
        failure: None,
    };
    let notes = VmNotes {
        created_us: stamp.at_us,
        updated_us: stamp.at_us,
        first_seq: stamp.seq,
        last_seq: stamp.seq,
        operation_us: Some(stamp.at_us),
        ..VmNotes::default()
    };
    VmRecord { core, spec: (*body.spec).clone(), notes }
}

/// A VM that was found: with a record made of what its directory says, or with an older one brought up to what is there.
/// Whatever the older one had in flight has long come to its end.
fn adopted(
    record: Option<&VmRecord>,
    id: VmId,
    stamp: &Stamp,
    body: &Adopted,
) -> Result<VmRecord, &'static str> {
    if let Some(VmRecord { core, .. }) = record {
        let going = |tombstone: &Tombstone| tombstone.phase == RemovalPhase::Deleting;
        need(!core.tombstone.as_ref().is_some_and(going), "it is being removed")?;
        need(core.name == body.name && core.image == body.image, "its record is another VM's")?;
    }
    let before = record.map_or(0, |record| record.core.generation);
    need(body.generation > before, "its record is as new as that")?;
    let up = |identity| Launch {
        token: crate::id::LaunchToken::default(),
        phase: LaunchPhase::Up,
        identity: Some(identity),
    };
    let first_booted = body.first_booted || body.identity.is_some();
    let state = match body.identity {
        Some(_) => VmState::Running,
        None if first_booted => VmState::Stopped,
        None => VmState::Created,
    };
    let core = VmCore {
        id,
        name: body.name.clone(),
        image: body.image,
        state,
        generation: body.generation,
        operation: None,
        storage_prepared: true,
        launch: body.identity.map(up),
        tombstone: None,
        first_booted,
        interval_open: body.identity.is_some(),
        failure: None,
    };
    let notes = adopted_notes(record.map(|record| &record.notes), stamp, &core);
    Ok(VmRecord { core, spec: (*body.spec).clone(), notes })
}

fn adopted_notes(before: Option<&VmNotes>, stamp: &Stamp, core: &VmCore) -> VmNotes {
    let new = VmNotes { created_us: stamp.at_us, first_seq: stamp.seq, ..VmNotes::default() };
    let mut notes = before.cloned().unwrap_or(new);
    notes.updated_us = stamp.at_us;
    notes.last_seq = stamp.seq;
    notes.transition_us = Some(stamp.at_us);
    notes.transition_reason = Some(Reason::Adopted);
    notes.operation_us = None;
    if core.interval_open {
        notes.started_us = notes.started_us.filter(|_| notes.stopped_us.is_none());
        notes.started_us.get_or_insert(stamp.at_us);
        notes.stopped_us = None;
    } else if notes.started_us.is_some() && notes.stopped_us.is_none() {
        notes.stopped_us = Some(stamp.at_us);
    }
    notes
}

/// One arm an event, no wildcard: a new kind does not compile until it says what it does.
fn change(record: &mut VmRecord, stamp: &Stamp, event: &VmEvent) -> Need {
    match event {
        VmEvent::Prereserved(_) => Err("its id is taken"),
        VmEvent::Adopted(_) => Err("it is taken in whole, not changed"),
        VmEvent::StoragePrepared(_) => storage_prepared(&mut record.core, stamp),
        VmEvent::Committed(_) => committed(record, stamp),
        VmEvent::LaunchBegan(body) => launch_began(record, stamp, body),
        VmEvent::Launched(body) => launched(&mut record.core, stamp, body.identity),
        VmEvent::Running(body) => running(record, stamp, body.identity),
        VmEvent::LaunchFailed(body) => launch_failed(record, stamp, &body.reason),
        VmEvent::StopBegan(body) => stop_began(record, stamp, body.operation),
        VmEvent::Stopped(_) => stopped(record, stamp),
        VmEvent::StopFailed(body) => stop_failed(record, stamp, &body.reason),
        VmEvent::ExitObserved(body) => exit_observed(record, stamp, body),
        VmEvent::Tombstoned(body) => tombstoned(record, stamp, body),
        VmEvent::TombstoneRolledBack(body) => rolled_back(record, stamp, &body.reason),
        VmEvent::DeleteBegan(_) => delete_began(&mut record.core, stamp),
        VmEvent::DeleteStepDone(body) => delete_step_done(&mut record.core, stamp, body.step),
        VmEvent::Deleted(_) => deleted(&record.core, stamp),
        VmEvent::StepFailed(body) => step_failed(record, stamp, body),
        VmEvent::ReclaimBegan(body) => {
            need(record.core.state == VmState::Creating, "it is not `creating`")?;
            need(record.core.tombstone.is_none(), "it is being removed")?;
            take_over(record, stamp, body.previous)?;
            set_operation(record, stamp, OperationKind::Reclaim);
            Ok(())
        }
        VmEvent::OperationTakenOver(body) => {
            take_over(record, stamp, body.previous)?;
            if let Some(launch) = launch_in_flight(&mut record.core) {
                launch.phase = LaunchPhase::Interrupted;
            }
            if record.core.state == VmState::Creating {
                set_operation(record, stamp, OperationKind::Reclaim);
            }
            Ok(())
        }
        VmEvent::OperationAbandoned(body) => {
            take_over(record, stamp, body.previous)?;
            need(launch_in_flight(&mut record.core).is_none(), "a launch is in flight")?;
            need(record.core.tombstone.is_none(), "it is being removed")?;
            need(
                record.core.state != VmState::Creating,
                "a placeholder is reclaimed, not abandoned",
            )?;
            clear_operation(record);
            Ok(())
        }
    }
}

/// A launch that was neither seen to run nor to fail.
fn launch_in_flight(core: &mut VmCore) -> Option<&mut Launch> {
    core.launch.as_mut().filter(|launch| launch.phase != LaunchPhase::Up)
}

/// The fence: outcomes count only for the operation that the record names.
fn owned(core: &VmCore, stamp: &Stamp) -> Need {
    let owner = core.operation.map(|operation| operation.id);
    need(owner == Some(stamp.operation), "another operation owns it")
}

fn set_operation(record: &mut VmRecord, stamp: &Stamp, kind: OperationKind) {
    record.core.operation = Some(Operation { id: stamp.operation, kind });
    record.notes.operation_us = Some(stamp.at_us);
}

fn clear_operation(record: &mut VmRecord) {
    record.core.operation = None;
    record.notes.operation_us = None;
}

/// The only place where a VM changes its state.
fn transition(record: &mut VmRecord, stamp: &Stamp, state: VmState, reason: Reason) {
    record.core.state = state;
    record.core.generation += 1;
    record.notes.transition_us = Some(stamp.at_us);
    record.notes.transition_reason = Some(reason);
    if state != VmState::Error {
        record.core.failure = None;
    }
}

fn close_interval(record: &mut VmRecord, stamp: &Stamp) {
    record.core.interval_open = false;
    record.notes.stopped_us = Some(stamp.at_us);
}

fn storage_prepared(core: &mut VmCore, stamp: &Stamp) -> Need {
    owned(core, stamp)?;
    need(core.state == VmState::Creating && core.tombstone.is_none(), "it is not `creating`")?;
    need(!core.storage_prepared, "its storage is prepared already")?;
    core.storage_prepared = true;
    Ok(())
}

fn committed(record: &mut VmRecord, stamp: &Stamp) -> Need {
    let core = &record.core;
    owned(core, stamp)?;
    need(core.state == VmState::Creating && core.tombstone.is_none(), "it is not `creating`")?;
    need(core.storage_prepared, "its storage is not prepared")?;
    transition(record, stamp, VmState::Created, Reason::Create);
    if record.core.operation.is_some_and(|operation| operation.kind == OperationKind::Create) {
        clear_operation(record);
    }
    Ok(())
}

fn launch_began(record: &mut VmRecord, stamp: &Stamp, body: &LaunchBegan) -> Need {
    let core = &record.core;
    need(
        core.state != VmState::Creating && core.state != VmState::Running,
        "it cannot be started",
    )?;
    need(core.tombstone.is_none(), "it is being removed")?;
    need(core.launch.is_none(), "a VMM of it may live")?;
    match core.operation {
        None => set_operation(record, stamp, OperationKind::Start),
        Some(operation) => {
            owned(core, stamp)?;
            need(operation.kind == OperationKind::Run, "another kind of operation owns it")?;
        }
    }
    let launch = Launch { token: body.token, phase: LaunchPhase::Began, identity: None };
    record.notes.exit_evidence = None;
    record.core.launch = Some(launch);
    record.notes.accelerator = Some(body.accelerator);
    Ok(())
}

fn launched(core: &mut VmCore, stamp: &Stamp, identity: ProcessIdentity) -> Need {
    owned(core, stamp)?;
    match core.launch.as_mut() {
        Some(launch) if launch.phase == LaunchPhase::Began => {
            launch.phase = LaunchPhase::Spawned;
            launch.identity = Some(identity);
            Ok(())
        }
        _ => Err("no launch waits for its VMM"),
    }
}

fn running(record: &mut VmRecord, stamp: &Stamp, identity: ProcessIdentity) -> Need {
    let core = &mut record.core;
    need(
        core.state != VmState::Creating && core.state != VmState::Running,
        "it cannot become running",
    )?;
    need(core.tombstone.is_none(), "it is being removed")?;
    if core.operation.is_some() {
        owned(core, stamp)?;
        need(launch_in_flight(core).is_some(), "no launch is in flight")?;
    }
    let token = core.launch.map(|launch| launch.token).unwrap_or_default();
    core.launch = Some(Launch { token, phase: LaunchPhase::Up, identity: Some(identity) });
    let reason = if core.first_booted { Reason::Restart } else { Reason::Boot };
    core.first_booted = true;
    if !core.interval_open {
        core.interval_open = true;
        record.notes.started_us = Some(stamp.at_us);
        record.notes.stopped_us = None;
    }
    transition(record, stamp, VmState::Running, reason);
    clear_operation(record);
    Ok(())
}

fn launch_failed(record: &mut VmRecord, stamp: &Stamp, reason: &str) -> Need {
    owned(&record.core, stamp)?;
    need(launch_in_flight(&mut record.core).is_some(), "no launch is in flight")?;
    record.core.launch = None;
    transition(record, stamp, VmState::Error, Reason::Error);
    record.core.failure = Some(reason.to_owned());
    clear_operation(record);
    Ok(())
}

fn stop_began(record: &mut VmRecord, stamp: &Stamp, kind: OperationKind) -> Need {
    let core = &record.core;
    let hides = mutant::on(Mutant::StopHidesPlaceholder);
    need(core.operation.is_none() || hides, "another operation owns it")?;
    need(core.tombstone.is_none(), "it is being removed")?;
    need(core.state != VmState::Creating || hides, "a placeholder is reclaimed, not stopped")?;
    need(
        matches!(kind, OperationKind::Stop(_) | OperationKind::Delete { force: true }),
        "only a stop or a forced removal stops a VM",
    )?;
    set_operation(record, stamp, kind);
    Ok(())
}

fn stops(core: &VmCore) -> bool {
    let stops = |operation: Operation| {
        matches!(operation.kind, OperationKind::Stop(_) | OperationKind::Delete { .. })
    };
    core.tombstone.is_none() && core.operation.is_some_and(stops)
}

fn stopped(record: &mut VmRecord, stamp: &Stamp) -> Need {
    owned(&record.core, stamp)?;
    need(stops(&record.core), "no stop is in flight")?;
    if record.core.interval_open {
        close_interval(record, stamp);
    }
    record.core.launch = None;
    transition(record, stamp, VmState::Stopped, Reason::StopUser);
    let removal = |operation: Operation| matches!(operation.kind, OperationKind::Delete { .. });
    if !record.core.operation.is_some_and(removal) {
        clear_operation(record);
    }
    Ok(())
}

fn stop_failed(record: &mut VmRecord, stamp: &Stamp, reason: &str) -> Need {
    owned(&record.core, stamp)?;
    need(stops(&record.core), "no stop is in flight")?;
    // The VMM is not proven dead: the launch stays, and the interval stays open.
    transition(record, stamp, VmState::Error, Reason::Error);
    record.core.failure = Some(reason.to_owned());
    clear_operation(record);
    Ok(())
}

fn exit_observed(record: &mut VmRecord, stamp: &Stamp, body: &ExitObserved) -> Need {
    let core = &record.core;
    need(core.generation == body.generation, "it has moved on since it was looked at")?;
    need(core.state != VmState::Creating, "a placeholder is reclaimed, not stopped")?;
    need(core.state == VmState::Running || core.interval_open, "it was not running")?;
    need(core.operation.is_none(), "an operation on it is in flight")?;
    need(core.tombstone.is_none(), "it is being removed")?;
    close_interval(record, stamp);
    record.core.launch = None;
    transition(record, stamp, VmState::Stopped, Reason::UnexpectedExit);
    record.notes.exit_evidence.clone_from(&body.evidence);
    Ok(())
}

fn tombstoned(record: &mut VmRecord, stamp: &Stamp, body: &Tombstoned) -> Need {
    need(record.core.tombstone.is_none(), "it is being removed already")?;
    need(launch_in_flight(&mut record.core).is_none(), "a launch is in flight")?;
    need(record.core.state != VmState::Running, "it runs")?;
    if record.core.operation.is_some() {
        owned(&record.core, stamp)?;
    } else {
        need(
            record.core.state != VmState::Creating,
            "a placeholder has an owner to be taken over",
        )?;
        let force = body.kind.kills();
        set_operation(record, stamp, OperationKind::Delete { force });
    }
    record.core.tombstone = Some(Tombstone {
        kind: body.kind,
        phase: RemovalPhase::Leased,
        done: Vec::new(),
        removal: body.removal.clone(),
    });
    Ok(())
}

fn rolled_back(record: &mut VmRecord, stamp: &Stamp, reason: &str) -> Need {
    owned(&record.core, stamp)?;
    let leased = |tombstone: &Tombstone| {
        tombstone.phase == RemovalPhase::Leased || mutant::on(Mutant::DeletingRolledBack)
    };
    need(record.core.tombstone.as_ref().is_some_and(leased), "there is no removal to give up")?;
    record.core.tombstone = None;
    record.core.failure = Some(reason.to_owned());
    if record.core.state == VmState::Creating {
        // Its birth does not go on: it stays for whoever can prove its VMM dead.
        set_operation(record, stamp, OperationKind::Reclaim);
    } else {
        clear_operation(record);
    }
    Ok(())
}

fn delete_began(core: &mut VmCore, stamp: &Stamp) -> Need {
    owned(core, stamp)?;
    match core.tombstone.as_mut() {
        Some(tombstone) if tombstone.phase == RemovalPhase::Leased => {
            tombstone.phase = RemovalPhase::Deleting;
            core.launch = None;
            Ok(())
        }
        _ => Err("no removal waits to begin"),
    }
}

fn delete_step_done(core: &mut VmCore, stamp: &Stamp, step: DeleteStep) -> Need {
    owned(core, stamp)?;
    match core.tombstone.as_mut() {
        Some(tombstone) if tombstone.phase == RemovalPhase::Deleting => {
            need(!tombstone.done.contains(&step), "this step is done already")?;
            tombstone.done.push(step);
            Ok(())
        }
        _ => Err("no removal is under way"),
    }
}

fn deleted(core: &VmCore, stamp: &Stamp) -> Need {
    owned(core, stamp)?;
    let finished = core.tombstone.as_ref().is_some_and(|tombstone| {
        tombstone.phase == RemovalPhase::Deleting
            && DeleteStep::ALL.iter().all(|step| tombstone.done.contains(step))
    });
    need(finished, "steps of its removal are not done")
}

fn step_failed(record: &mut VmRecord, stamp: &Stamp, body: &StepFailed) -> Need {
    owned(&record.core, stamp)?;
    record.core.failure = Some(format!("{}: {}", body.step, body.reason));
    Ok(())
}

fn take_over(record: &mut VmRecord, stamp: &Stamp, previous: OperationId) -> Need {
    let Some(operation) = record.core.operation.as_mut() else {
        return Err("no operation owns it");
    };
    need(operation.id == previous, "another operation owns it")?;
    need(operation.id != stamp.operation, "this operation owns it already")?;
    operation.id = stamp.operation;
    Ok(())
}
