//! Whether a removal is still about the VM that its user spoke of.
//!
//! `rm` looks at a VM, may have to wait for its lock, and looks again. In between a creation may have ended well: then the
//! record has become somebody's fresh VM, and nobody asked for its removal. Or its creator may have died: then what is
//! left is exactly what the user wants gone.

use crate::id::OperationId;
use crate::mutant::{self, Mutant};
use crate::record::{VmCore, VmState};

/// A record as a removal saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sighting {
    /// Its generation.
    pub generation: u64,
    /// The operation in flight, or its remains.
    pub operation: Option<OperationId>,
    /// That operation brings the VM into being.
    pub birth: bool,
}

impl Sighting {
    /// The record as it is.
    #[must_use]
    pub fn of(core: &VmCore) -> Self {
        let placeholder = core.state == VmState::Creating;
        let counts = placeholder || !mutant::on(Mutant::RunInFlight);
        Self {
            generation: core.generation,
            operation: core.operation.map(|operation| operation.id),
            birth: counts && core.operation.is_some_and(|operation| operation.kind.is_birth()),
        }
    }

    /// Whether a removal may queue behind the holder of the lock. Behind one that brings the VM into being only if its user
    /// wants to wait for that.
    #[must_use]
    pub fn may_queue(&self, wait: bool) -> bool {
        wait || !self.birth || mutant::on(Mutant::ForceWaits)
    }

    /// Whether what was found under the lock is another VM than the one that was asked about. A creation that ended well
    /// since has made a fresh VM; one that died has not: the record still names its operation.
    #[must_use]
    pub fn became_another(&self, found: &Self, wait: bool) -> bool {
        let died = self.operation.is_some() && self.operation == found.operation;
        let matters = wait || self.birth;
        matters && !died && self.generation != found.generation && !mutant::on(Mutant::ForceWaits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(generation: u64, operation: Option<u128>, birth: bool) -> Sighting {
        Sighting { generation, operation: operation.map(OperationId), birth }
    }

    #[test]
    fn a_creation_that_ended_well_has_made_another_vm() {
        let asked = seen(0, Some(1), true);
        assert!(asked.became_another(&seen(1, None, false), false));
        assert!(asked.became_another(&seen(2, Some(2), false), true));
    }

    #[test]
    fn a_creation_that_died_has_left_the_same() {
        let asked = seen(0, Some(1), true);
        assert!(!asked.became_another(&asked, true));
        // A run that died after its commit.
        assert!(!asked.became_another(&seen(1, Some(1), true), false));
    }

    #[test]
    fn whoever_did_not_wait_for_a_birth_means_the_vm_whatever_it_did() {
        assert!(!seen(2, None, false).became_another(&seen(3, None, false), false));
        assert!(seen(2, None, false).became_another(&seen(3, None, false), true));
    }

    #[test]
    fn nobody_queues_behind_a_birth_without_saying_so() {
        assert!(!seen(0, Some(1), true).may_queue(false));
        assert!(seen(0, Some(1), true).may_queue(true));
        assert!(seen(1, Some(1), false).may_queue(false));
    }
}
