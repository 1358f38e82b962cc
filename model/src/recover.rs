//! Recovery plans: what to do about records whose world may have moved on.
//!
//! A plan is made from records and from what was seen; it does nothing. Whoever carries it out takes the lock and looks
//! again: the plan only says where looking is worth it. What cannot be told yet changes nothing and names its reason.

use crate::command::VmmSeen;
use crate::id::VmId;
use crate::mutant::{self, Mutant};
use crate::record::{ProcessIdentity, VmCore, VmState};

/// What was seen of an ops lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockSeen {
    /// Nobody holds it: the operation on the record, if there is one, is dead.
    Free,
    /// Somebody holds it.
    Held,
}

/// What was seen of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its ops lock.
    pub lock: LockSeen,
    /// Its VMM.
    pub vmm: VmmSeen,
}

/// What to do about one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing is owed.
    Leave,
    /// It runs; tell when this process ends.
    Watch(ProcessIdentity),
    /// Its owner is dead: take the lock, take over, and do what is owed.
    TakeOver,
    /// Its VMM is dead and nobody recorded it.
    RecordExit,
    /// Its VMM lives and the record says otherwise.
    Adopt(ProcessIdentity),
    /// Somebody works on it; look again later.
    Busy,
    /// It cannot be told yet, for this reason; look again later.
    CannotTell(String),
}

/// What to do about one VM, by its record and what was seen.
#[must_use]
pub fn plan_vm(core: &VmCore, seen: &Seen) -> Action {
    if core.state == VmState::Creating && mutant::on(Mutant::AgeGate) {
        return Action::Leave;
    }
    if core.operation.is_some() {
        return match seen.lock {
            LockSeen::Free => Action::TakeOver,
            LockSeen::Held => Action::Busy,
        };
    }
    let open = core.state == VmState::Running || core.interval_open;
    match (&seen.vmm, core.state) {
        (VmmSeen::Alive(identity), VmState::Running) => Action::Watch(*identity),
        (VmmSeen::Alive(_), _) if seen.lock == LockSeen::Held => Action::Busy,
        (VmmSeen::Alive(identity), _) => Action::Adopt(*identity),
        (VmmSeen::Dead, _) if open => Action::RecordExit,
        (VmmSeen::Inconclusive(reason), _) => Action::CannotTell(reason.clone()),
        (VmmSeen::Dead, _) => Action::Leave,
    }
}

/// What of an action stands while the root is unconfirmed: what would change something is withheld.
#[must_use]
pub fn unconfirmed(action: Action, reason: &str) -> Action {
    match action {
        Action::TakeOver | Action::RecordExit | Action::Adopt(_) => {
            Action::CannotTell(format!("this root is unconfirmed: {reason}"))
        }
        Action::Leave | Action::Watch(_) | Action::Busy | Action::CannotTell(_) => action,
    }
}

/// Whether a VM's directory proves that its record is an older one. `noted` is the generation that was written there after
/// an event with it was durable, so no journal that is whole is ever behind it.
#[must_use]
pub fn is_older(core: &VmCore, noted: u64) -> bool {
    core.generation < noted
}

/// What to do about all of them, in order of their ids; those of which nothing is owed are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// One action a VM.
    pub actions: Vec<(VmId, Action)>,
}

/// Makes a plan.
pub fn recover<'a>(seen: impl IntoIterator<Item = (&'a VmCore, Seen)>) -> Plan {
    let actions = seen.into_iter().map(|(core, seen)| (core.id, plan_vm(core, &seen)));
    let mut actions: Vec<_> = actions.filter(|(_, action)| *action != Action::Leave).collect();
    actions.sort_by_key(|(id, _)| *id);
    Plan { actions }
}
