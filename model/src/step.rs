//! What a record still owes, and what became of it.
//!
//! [`next_step`] is the whole of recovery: whoever holds the lock asks it, performs the step, reports the outcome, and asks
//! again, until nothing is owed. A step that could be half done is first looked at in the world by its effect.

use crate::id::LaunchToken;
use crate::record::{
    Accelerator, DeleteStep, LaunchPhase, OperationKind, ProcessIdentity, RemovalPhase, StopMode,
    Tombstone, VmCore, VmState,
};

/// Something that a record owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Make directories and disks.
    PrepareStorage,
    /// Choose the mark and the accelerator of the next launch.
    ChooseLaunch,
    /// Spawn the VMM.
    SpawnVmm,
    /// Wait until the VMM runs the guest.
    AwaitVmm,
    /// The launching operation died: find out whether a VMM runs the guest; if not, see it dead.
    SettleLaunch,
    /// End the VMM.
    StopVmm(StopMode),
    /// Prove the VMM dead before files go.
    ProveVmmDead {
        /// A VMM that lives is killed; otherwise it is a reason to give up.
        kill: bool,
    },
    /// Remove a part.
    Remove(DeleteStep),
}

impl Step {
    /// The name used in messages, traces and crash points.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PrepareStorage => "prepare-storage",
            Self::ChooseLaunch => "choose-launch",
            Self::SpawnVmm => "spawn-vmm",
            Self::AwaitVmm => "await-vmm",
            Self::SettleLaunch => "settle-launch",
            Self::StopVmm(_) => "stop-vmm",
            Self::ProveVmmDead { .. } => "prove-vmm-dead",
            Self::Remove(DeleteStep::RunDirectory) => "remove-run-directory",
            Self::Remove(DeleteStep::LogDirectory) => "remove-log-directory",
            Self::Remove(DeleteStep::VmmLock) => "remove-vmm-lock",
        }
    }
}

/// What became of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The mark and the accelerator of the launch.
    Chosen(LaunchToken, Accelerator),
    /// The VMM was spawned.
    Spawned(ProcessIdentity),
    /// The VMM runs the guest.
    Up(ProcessIdentity),
    /// It failed and left nothing behind; of a launch: its VMM is proven dead.
    Failed(String),
    /// It failed, and what it left cannot be told: it stays owed.
    Unproven(String),
}

/// What the record owes next; `None` if nothing.
#[must_use]
pub fn next_step(core: &VmCore) -> Option<Step> {
    if let Some(tombstone) = &core.tombstone {
        return removal_step(tombstone);
    }
    let operation = core.operation?;
    if core.state == VmState::Creating {
        return birth_step(core, operation.kind);
    }
    match core.launch.map(|launch| launch.phase) {
        Some(LaunchPhase::Began) => return Some(Step::SpawnVmm),
        Some(LaunchPhase::Spawned) => return Some(Step::AwaitVmm),
        Some(LaunchPhase::Interrupted) => return Some(Step::SettleLaunch),
        Some(LaunchPhase::Up) | None => {}
    }
    match operation.kind {
        OperationKind::Run => Some(Step::ChooseLaunch),
        OperationKind::Stop(mode) => Some(Step::StopVmm(mode)),
        OperationKind::Delete { .. } => Some(Step::StopVmm(StopMode::Kill)),
        OperationKind::Create | OperationKind::Start | OperationKind::Reclaim => None,
    }
}

/// The step at which whoever brought this record to rest before has failed, if that is where it stands. Whoever comes
/// next tries it before anything is written: what fails as it did before is on record already.
#[must_use]
pub fn failed_step(core: &VmCore) -> Option<Step> {
    let operation = core.operation.filter(|_| core.failure.is_some())?;
    match &core.tombstone {
        Some(tombstone) if tombstone.phase == RemovalPhase::Deleting => removal_step(tombstone),
        // It is taken back first.
        Some(_) => None,
        // Its VMM could not be proven dead, so that its tombstone was taken back.
        None if core.state == VmState::Creating && operation.kind == OperationKind::Reclaim => {
            Some(Step::ProveVmmDead { kill: true })
        }
        None => next_step(core).filter(|step| *step == Step::SettleLaunch),
    }
}

/// Whether a step has failed again in the way that the record tells.
#[must_use]
pub fn fails_as_before(core: &VmCore, step: Step, outcome: &Outcome) -> bool {
    let reason = match (step, outcome) {
        // The launch has come to its end, which is what was to be brought about.
        (Step::SettleLaunch, Outcome::Failed(_)) => return false,
        (_, Outcome::Failed(reason) | Outcome::Unproven(reason)) => reason,
        _ => return false,
    };
    match (step, core.failure.as_deref()) {
        (_, None) => false,
        // A tombstone that is taken back tells the reason alone.
        (Step::ProveVmmDead { .. }, Some(known)) => known == reason,
        (_, Some(known)) => known.strip_prefix(step.as_str()) == Some(&format!(": {reason}")),
    }
}

fn removal_step(tombstone: &Tombstone) -> Option<Step> {
    match tombstone.phase {
        RemovalPhase::Leased => Some(Step::ProveVmmDead { kill: tombstone.kind.kills() }),
        RemovalPhase::Deleting => {
            let next = DeleteStep::ALL.into_iter().find(|step| !tombstone.done.contains(step));
            next.map(Step::Remove)
        }
    }
}

fn birth_step(core: &VmCore, kind: OperationKind) -> Option<Step> {
    (kind.is_birth() && !core.storage_prepared).then_some(Step::PrepareStorage)
}
