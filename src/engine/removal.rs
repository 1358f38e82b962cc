//! Removing a VM.

use std::path::Path;

use cocoon_model::command::Command;
use cocoon_model::decide::Refusal;
use cocoon_model::id::VmId;
use cocoon_model::record::{DeleteStep, OperationKind, VmRecord};
use cocoon_model::removal::Sighting;
use cocoon_model::step::Outcome;

use super::caller::Caller;
use super::drive::{Haste, Rest};
use super::effect::perform;
use super::{Engine, EngineError};
use crate::host::directory;
use crate::host::lock::{Observed, OpsGuard};
use crate::host::spawn::Scope;

/// How a VM is removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct RemovalRequest {
    /// A running VMM is killed first.
    pub force: bool,
    /// An operation in flight is waited for.
    pub wait: bool,
}

impl Engine {
    /// Removes a VM: its VMM is proven dead before anything of it goes.
    ///
    /// # Errors
    /// A refusal; a create or run of this VM in flight; or the step that failed, which then stays owed.
    pub fn remove(
        &self,
        id: VmId,
        request: RemovalRequest,
        caller: &Caller,
    ) -> Result<(), EngineError> {
        self.require_confirmed()?;
        let asked = self.vm(id)?.ok_or(Refusal::VmNotFound(id))?;
        let guard = self.lock_for_removal(&asked, request, caller)?;
        let haste = if request.force { Haste::Force } else { Haste::None };
        let entered = self.enter_locked(guard, id, caller, haste)?;
        if let Some(found) = &entered.found {
            refuse_another(&asked, found, request)?;
        }
        let record = match &entered.rest {
            // A dead creation or removal was all that there was of it.
            Rest::Gone if entered.finished.is_some() => return Ok(()),
            Rest::Gone => return Err(Refusal::VmNotFound(id).into()),
            Rest::There(record) => record,
        };
        let seen = self.see_vmm(&entered.guard, record)?;
        let command = Command::Delete { id, seen, force: request.force };
        self.submit_locked(&entered.guard, caller, &command)?;
        match self.drive(&entered.guard, caller, id, haste)? {
            Rest::Gone => {
                self.sweep_ops_lock(&entered.guard);
                Ok(())
            }
            Rest::There(record) => Err(EngineError::Step {
                id,
                step: "rm",
                reason: record.core.failure.clone().unwrap_or_else(|| "it was given up".to_owned()),
            }),
        }
    }

    /// Takes the lock, but never queues behind an operation that is bringing this very VM into being.
    fn lock_for_removal(
        &self,
        asked: &VmRecord,
        request: RemovalRequest,
        caller: &Caller,
    ) -> Result<OpsGuard, EngineError> {
        let id = asked.core.id;
        let holder = caller.holder()?;
        match self.locks().try_ops(id.as_str(), &holder)? {
            Ok(guard) => Ok(guard),
            Err(busy) => {
                let now = self.vm(id)?;
                let refused = now.filter(|now| !Sighting::of(&now.core).may_queue(request.wait));
                if let Some(operation) = refused.and_then(|now| now.core.operation) {
                    return Err(in_flight(id, operation.kind, busy.holder));
                }
                Ok(self.locks().ops(id.as_str(), &holder, caller.deadline())?)
            }
        }
    }

    pub(super) fn remove_part(
        &self,
        guard: &OpsGuard,
        record: &VmRecord,
        part: DeleteStep,
    ) -> Outcome {
        let Some(tombstone) = &record.core.tombstone else {
            return Outcome::Failed("nothing is being removed".to_owned());
        };
        let id = record.core.id.as_str();
        let removal = &tombstone.removal;
        let root = self.root_uuid();
        let removed = match part {
            DeleteStep::RunDirectory => perform("remove.run-directory", || {
                directory::remove(Path::new(&removal.run_dir), root, id)
                    .map(|_| ())
                    .map_err(|e| e.to_string())
            }),
            DeleteStep::LogDirectory => perform("remove.log-directory", || {
                directory::remove(Path::new(&removal.log_dir), root, id)
                    .map(|_| ())
                    .map_err(|e| e.to_string())
            }),
            DeleteStep::VmmLock => {
                let scope = perform("remove.control-group", || Scope::of_vm(id).remove());
                scope.map_err(|error| error.to_string()).and_then(|()| {
                    perform("remove.vmm-lock", || self.locks().remove_vmm(guard))
                        .map_err(|error| error.to_string())
                })
            }
        };
        match removed {
            Ok(()) => Outcome::Done,
            Err(reason) => Outcome::Failed(reason),
        }
    }

    /// The lock file of a VM that is gone goes while we hold it; if we die before, gc sweeps it.
    pub(super) fn sweep_ops_lock(&self, guard: &OpsGuard) {
        if let Err(error) = perform("remove.ops-lock", || self.locks().remove_ops(guard)) {
            tracing::debug!("the lock file of {} stays for gc: {error}", guard.vm());
        }
    }

    /// The same, if there is no record of it: taking the lock has made the file.
    pub(super) fn sweep_if_gone(&self, guard: &OpsGuard, id: VmId) {
        if let Ok(None) = self.vm(id) {
            self.sweep_ops_lock(guard);
        }
    }

    /// Waits until nobody works on a VM.
    ///
    /// # Errors
    /// If its lock cannot be looked at.
    pub fn idle(&self, id: VmId) -> Result<bool, EngineError> {
        Ok(!matches!(self.locks().observe_ops(id.as_str())?, Observed::Held(_)))
    }
}

/// A creation that ended well since the user asked has made somebody's fresh VM; one that died has not. Under the lock the
/// record says which: it still names the operation that the user saw, or it has moved on.
fn refuse_another(
    asked: &VmRecord,
    found: &VmRecord,
    request: RemovalRequest,
) -> Result<(), EngineError> {
    let (was, is) = (Sighting::of(&asked.core), Sighting::of(&found.core));
    if was.became_another(&is, request.wait) {
        let (id, expected, found) = (asked.core.id, was.generation, is.generation);
        return Err(Refusal::MovedOn { id, expected, found }.into());
    }
    Ok(())
}

fn in_flight(
    id: VmId,
    kind: OperationKind,
    holder: Option<Box<crate::host::lock::Holder>>,
) -> EngineError {
    EngineError::InFlight { id, verb: kind.as_str(), holder }
}
