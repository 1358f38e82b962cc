//! Collecting what nobody owns any more.
//!
//! gc recovers what dead operations left, by the same body as every other actor, and sweeps files that belong to nothing.
//! It waits for nobody: what is locked is left for the next time. It removes only what the journal has named.

use cocoon_model::command::VmmSeen;
use cocoon_model::decide::Refusal;
use cocoon_model::id::VmId;
use cocoon_model::record::{OperationKind, StopMode, VmCore, VmRecord, VmState};
use cocoon_model::recover::{Action, recover, unconfirmed};
use cocoon_model::sight::idle_command;

use super::caller::Caller;
use super::drive::{Haste, Rest};
use super::effect::perform;
use super::launch::time_left;
use super::{Engine, EngineError};

/// What one item of a collection came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// `vm`, `image` or `vmlock`.
    pub module: &'static str,
    /// What was collected.
    pub what: String,
    /// Why.
    pub reason: &'static str,
}

/// What a collection came to.
#[derive(Debug, Default)]
pub struct Collection {
    /// What was collected or brought to rest.
    pub collected: Vec<Collected>,
    /// What is left for the next time, with the reason.
    pub left: Vec<(VmId, String)>,
    /// What failed.
    pub failures: Vec<EngineError>,
}

impl Engine {
    /// Collects what nobody owns any more.
    ///
    /// # Errors
    /// If the state cannot be read; failures of single items are in the collection.
    pub fn gc(&self, caller: &Caller) -> Result<Collection, EngineError> {
        let mut collection = Collection::default();
        if let Some(reason) = self.unconfirmed()? {
            self.list_what_is_left(&reason, &mut collection)?;
            return Ok(collection);
        }
        for (id, action) in self.plan()? {
            self.carry_out(id, &action, caller, &mut collection);
        }
        if let Err(error) = self.collect_directories(&caller.another(), &mut collection) {
            collection.failures.push(error);
        }
        match self.collect_images(&caller.another()) {
            Ok(unlinked) => collection.collected.extend(unlinked.iter().map(|path| Collected {
                module: "image",
                what: path.display().to_string(),
                reason: "unreferenced",
            })),
            Err(error) => collection.failures.push(error),
        }
        match self.require_confirmed().and_then(|()| self.sweep_locks()) {
            Ok(swept) => collection.collected.extend(swept),
            Err(error) => collection.failures.push(error),
        }
        Ok(collection)
    }

    /// What is owed to whom, by records and by what is seen of the world.
    ///
    /// # Errors
    /// If the state cannot be read. What cannot be seen of a single VM is in the plan.
    pub fn plan(&self) -> Result<Vec<(VmId, Action)>, EngineError> {
        let records = self.ledger().refresh()?.vms()?;
        let seen = self.survey(records);
        Ok(recover(seen.iter().map(|(record, seen)| (&record.core, seen.clone()))).actions)
    }

    /// Nothing is touched in an unconfirmed root: what would be is listed.
    fn list_what_is_left(
        &self,
        reason: &str,
        collection: &mut Collection,
    ) -> Result<(), EngineError> {
        for (id, action) in self.plan()? {
            match unconfirmed(action, reason) {
                Action::CannotTell(why) => collection.left.push((id, why)),
                Action::Busy => collection.left.push((id, "somebody works on it".to_owned())),
                _ => {}
            }
        }
        for (path, id, _) in self.stray_directories()? {
            collection.left.push((id, format!("{}: it has no record", path.display())));
        }
        collection.failures.push(Refusal::Unconfirmed(reason.to_owned()).into());
        Ok(())
    }

    fn carry_out(&self, id: VmId, action: &Action, caller: &Caller, collection: &mut Collection) {
        match action {
            Action::Leave | Action::Watch(_) => {}
            Action::Busy => collection.left.push((id, "somebody works on it".to_owned())),
            Action::CannotTell(reason) => collection.left.push((id, reason.clone())),
            Action::TakeOver | Action::RecordExit | Action::Adopt(_) => {
                match self.settle(id, &caller.another()) {
                    Ok(Settling::Collected(reason)) => collection.collected.push(Collected {
                        module: "vm",
                        what: id.to_string(),
                        reason,
                    }),
                    Ok(Settling::Nothing) => {}
                    Ok(Settling::Busy) => {
                        collection.left.push((id, "somebody works on it".to_owned()));
                    }
                    Ok(Settling::Waiting) => {
                        let why = "its guest still has time to power off";
                        collection.left.push((id, why.to_owned()));
                    }
                    Err(error) => collection.failures.push(error),
                }
            }
        }
    }

    /// Brings one VM to rest, if nobody works on it: takes over what is in flight, records an exit, adopts a VMM.
    ///
    /// # Errors
    /// The journal, or the step that failed and stays owed.
    pub fn settle(&self, id: VmId, caller: &Caller) -> Result<Settling, EngineError> {
        self.require_confirmed()?;
        let Ok(guard) = self.locks().try_ops(id.as_str(), &caller.holder()?)? else {
            return Ok(Settling::Busy);
        };
        let Some(record) = self.vm(id)? else {
            self.sweep_ops_lock(&guard);
            return Ok(Settling::Nothing);
        };
        self.refuse_older(caller, &record)?;
        if record.core.operation.is_some() {
            let reason = owed(&record.core);
            if self.guest_has_time(&record)? {
                return Ok(Settling::Waiting);
            }
            let rest = self.recover_locked(&guard, caller, id, Haste::None)?;
            let gone = matches!(rest, Rest::Gone);
            return Ok(Settling::Collected(if gone { reason } else { "interrupted" }));
        }
        self.settle_idle(&guard, caller, &record)
    }

    /// Whether the time that a dead stop gave to a guest is not over. Nobody holds the lock for that long on its behalf:
    /// the VM is looked at again when its VMM ends, and when the time is over.
    fn guest_has_time(&self, record: &VmRecord) -> Result<bool, EngineError> {
        let mode = record.core.operation.map(|operation| operation.kind);
        let Some(OperationKind::Stop(StopMode::Graceful { timeout_ms })) = mode else {
            return Ok(false);
        };
        let alive = matches!(self.observe_vmm(record)?, VmmSeen::Alive(_));
        Ok(alive && !time_left(record, timeout_ms).is_zero())
    }

    /// A VM without an operation whose record and VMM may have drifted apart.
    pub(super) fn settle_idle(
        &self,
        guard: &crate::host::lock::OpsGuard,
        caller: &Caller,
        record: &VmRecord,
    ) -> Result<Settling, EngineError> {
        let core = &record.core;
        let seen = self.see_vmm(guard, record)?;
        let Some(command) = idle_command(core, &seen, || self.exit_evidence(record)) else {
            return Ok(Settling::Nothing);
        };
        let reason = if seen == VmmSeen::Dead { "unexpected-exit" } else { "adopted" };
        match self.submit_locked(guard, caller, &command) {
            Ok(_) => Ok(Settling::Collected(reason)),
            // An exit may be recorded without the lock: somebody who watches was faster.
            Err(EngineError::Refused(Refusal::Late(_))) => Ok(Settling::Nothing),
            Err(error) => Err(error),
        }
    }

    fn sweep_locks(&self) -> Result<Vec<Collected>, EngineError> {
        // Asked again under each lock. What cannot be looked up is kept.
        let is_known = |id: &str| match id.parse() {
            Ok(id) => self.vm(id).map_or(true, |record| record.is_some()),
            Err(_) => true,
        };
        let swept = perform("gc.sweep-locks", || self.locks().sweep(is_known))?;
        Ok(swept
            .removed
            .iter()
            .map(|path| Collected {
                module: "vmlock",
                what: path.display().to_string(),
                reason: "orphan-lease",
            })
            .collect())
    }
}

/// What bringing one VM to rest came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settling {
    /// Something was done, for this reason.
    Collected(&'static str),
    /// Nothing was owed.
    Nothing,
    /// Somebody works on it.
    Busy,
    /// The command that was stopping it died; its guest still has time to power off.
    Waiting,
}

fn owed(core: &VmCore) -> &'static str {
    if core.state == VmState::Creating { "stale-creating" } else { "interrupted-delete" }
}
