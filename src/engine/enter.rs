//! The entrance of every verb that changes a VM: its ops lock, and whatever a dead operation left.

use std::sync::Arc;

use cocoon_model::command::Command;
use cocoon_model::id::VmId;
use cocoon_model::record::{VmRecord, VmState};

use super::caller::Caller;
use super::drive::{Haste, Rest};
use super::gc::Settling;
use super::{Engine, EngineError};
use crate::host::lock::OpsGuard;

/// A VM with its lock held and nothing left over.
pub(super) struct Entered {
    pub(super) guard: OpsGuard,
    pub(super) rest: Rest,
    /// What was left over and is finished now, if anything was.
    pub(super) finished: Option<Finished>,
    /// The record as it was found under the lock, before anything was done.
    pub(super) found: Option<Arc<VmRecord>>,
}

/// What a dead operation had left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finished {
    /// A placeholder.
    Placeholder,
    /// A removal.
    Removal,
    /// Anything else.
    Other,
}

impl Engine {
    /// Takes the lock of a VM, waiting for it, and finishes what a dead operation left.
    pub(super) fn enter(
        &self,
        id: VmId,
        caller: &Caller,
        haste: Haste,
    ) -> Result<Entered, EngineError> {
        self.require_confirmed()?;
        let guard = self.locks().ops(id.as_str(), &caller.holder()?, caller.deadline())?;
        self.enter_locked(guard, id, caller, haste)
    }

    /// Finishes what a dead operation left on the guarded VM: its lock is ours, so its owner is dead.
    pub(super) fn enter_locked(
        &self,
        guard: OpsGuard,
        id: VmId,
        caller: &Caller,
        haste: Haste,
    ) -> Result<Entered, EngineError> {
        let Some(record) = self.vm(id)? else {
            self.sweep_ops_lock(&guard);
            return Ok(Entered { guard, rest: Rest::Gone, finished: None, found: None });
        };
        self.refuse_older(caller, &record)?;
        let Some(finished) = left_over(&record) else {
            // The record and its VMM may have drifted apart since somebody last looked.
            let rest = match self.settle_idle(&guard, caller, &record)? {
                Settling::Nothing | Settling::Busy | Settling::Waiting => {
                    Rest::There(Arc::clone(&record))
                }
                Settling::Collected(_) => self.vm(id)?.map_or(Rest::Gone, Rest::There),
            };
            return Ok(Entered { guard, rest, finished: None, found: Some(record) });
        };
        // Recovery is an operation of its own, so that the verb begins with a record that nobody owns.
        let recovery = caller.another();
        let rest = self.recover_locked(&guard, &recovery, id, haste)?;
        Ok(Entered { guard, rest, finished: Some(finished), found: Some(record) })
    }

    /// Takes over whatever is in flight on the guarded VM and brings it to rest.
    pub(super) fn recover_locked(
        &self,
        guard: &OpsGuard,
        caller: &Caller,
        id: VmId,
        haste: Haste,
    ) -> Result<Rest, EngineError> {
        // The wait for the lock may have been long.
        self.require_confirmed()?;
        if let Some(record) = self.vm(id)? {
            self.refuse_older(caller, &record)?;
        }
        self.retry(guard, id, haste)?;
        self.submit_locked(guard, caller, &Command::TakeOver { id })?;
        let rest = self.drive(guard, caller, id, haste)?;
        if let Rest::Gone = rest {
            self.sweep_ops_lock(guard);
        }
        Ok(rest)
    }
}

fn left_over(record: &Arc<VmRecord>) -> Option<Finished> {
    record.core.operation?;
    Some(if record.core.state == VmState::Creating {
        Finished::Placeholder
    } else if record.core.tombstone.is_some() {
        Finished::Removal
    } else {
        Finished::Other
    })
}
