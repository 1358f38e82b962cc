//! Which effect each step is.

use cocoon_model::record::{StopMode, VmRecord};
use cocoon_model::step::{Outcome, Step};

use super::Engine;
use super::drive::Haste;
use crate::host::lock::OpsGuard;

impl Engine {
    /// Performs a step that the record of the guarded VM owes.
    pub(super) fn perform_step(
        &self,
        guard: &OpsGuard,
        record: &VmRecord,
        step: Step,
        haste: Haste,
    ) -> Outcome {
        tracing::debug!(vm = %record.core.id, step = step.as_str(), "step");
        match step {
            Step::PrepareStorage => self.prepare_storage(guard, record),
            Step::ChooseLaunch => self.choose_launch(),
            Step::SpawnVmm => self.spawn_vmm(guard, record),
            Step::AwaitVmm => self.await_vmm(guard, record),
            Step::SettleLaunch => self.settle_launch(guard, record, haste),
            Step::StopVmm(_) if haste == Haste::Force => {
                self.stop_vmm(guard, record, StopMode::Kill)
            }
            Step::StopVmm(mode) => self.stop_vmm(guard, record, mode),
            Step::ProveVmmDead { kill } => self.prove_vmm_dead(guard, record, kill),
            Step::Remove(part) => self.remove_part(guard, record, part),
        }
    }
}
