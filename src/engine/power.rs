//! Starting and stopping.

use std::sync::Arc;

use cocoon_model::command::Command;
use cocoon_model::decide::{Refusal, Settled};
use cocoon_model::id::{LaunchToken, VmId};
use cocoon_model::record::{StopMode, VmRecord, VmState};

use super::caller::Caller;
use super::drive::{Haste, Rest};
use super::enter::{Entered, Finished};
use super::{Engine, EngineError, random};

/// How often a start looks at a VM whose VMM is recorded dead while it looks.
const LOOKS: usize = 3;

impl Engine {
    /// Starts a VM; one that runs already is fine.
    ///
    /// # Errors
    /// A refusal, or the step of the launch that failed.
    pub fn start(&self, id: VmId, caller: &Caller) -> Result<Arc<VmRecord>, EngineError> {
        let entered = self.enter(id, caller, Haste::None)?;
        for _ in 0..LOOKS {
            let record = self.vm(id)?.map_or_else(|| there(&entered, id), Ok)?;
            let command = Command::Start {
                id,
                generation: record.core.generation,
                seen: self.see_vmm(&entered.guard, &record)?,
                token: LaunchToken(random::u64()),
                accelerator: self.accelerator(),
            };
            match self.begin(&entered, caller, id, &command) {
                Err(EngineError::Refused(Refusal::Late(_))) => {}
                begun => return begun,
            }
        }
        Err(Refusal::Late(id).into())
    }

    /// Stops a VM; one that is stopped already is fine.
    ///
    /// # Errors
    /// A refusal, or why the VMM could not be ended.
    pub fn stop(
        &self,
        id: VmId,
        mode: StopMode,
        caller: &Caller,
    ) -> Result<Arc<VmRecord>, EngineError> {
        self.require_confirmed()?;
        let guard = self.locks().ops(id.as_str(), &caller.holder()?, caller.deadline())?;
        // Who stops something wants to keep it: a placeholder is left to those who clear it away by name.
        if self.vm(id)?.is_some_and(|record| record.core.state == VmState::Creating) {
            return Err(Refusal::Creating { id, verb: "stopped" }.into());
        }
        let haste = if mode == StopMode::Kill { Haste::Force } else { Haste::None };
        let entered = self.enter_locked(guard, id, caller, haste)?;
        let record = there(&entered, id)?;
        let command = Command::Stop { id, seen: self.see_vmm(&entered.guard, &record)?, mode };
        self.begin(&entered, caller, id, &command)
    }

    fn begin(
        &self,
        entered: &Entered,
        caller: &Caller,
        id: VmId,
        command: &Command,
    ) -> Result<Arc<VmRecord>, EngineError> {
        let settled: Option<Settled> = self.submit_locked(&entered.guard, caller, command)?;
        tracing::debug!(vm = %id, ?settled, "decided");
        match self.drive(&entered.guard, caller, id, Haste::None)? {
            Rest::There(record) => Ok(record),
            Rest::Gone => Err(Refusal::VmNotFound(id).into()),
        }
    }
}

/// The record on which a verb begins, or why there is none.
fn there(entered: &Entered, id: VmId) -> Result<Arc<VmRecord>, EngineError> {
    match (&entered.rest, entered.finished) {
        (Rest::There(record), _) => Ok(Arc::clone(record)),
        (Rest::Gone, Some(Finished::Placeholder)) => Err(EngineError::Host(format!(
            "vm {id} was a placeholder of a creation that died; it was cleared away: vm not found"
        ))),
        (Rest::Gone, Some(_)) => Err(EngineError::Host(format!(
            "vm {id} was partially deleted; recovery finished the removal: vm not found"
        ))),
        (Rest::Gone, None) => Err(Refusal::VmNotFound(id).into()),
    }
}
