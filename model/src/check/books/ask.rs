//! Commands, sights and outcomes in a few bytes each.

use crate::command::{Command, VmmSeen};
use crate::id::{LaunchToken, VmId};
use crate::record::{Accelerator, OperationKind, ProcessIdentity, StopMode};
use crate::step::{Outcome, Step};

use super::{image_id, name_of, spec};

/// A process: its number within a boot, and the boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Process {
    pub(crate) pid: u8,
    pub(crate) boot: u8,
}

impl Process {
    pub(crate) fn identity(self) -> ProcessIdentity {
        let (pid, boot_id) = (u32::from(self.pid), u128::from(self.boot));
        ProcessIdentity { pid, start_time: u64::from(self.pid), boot_id, pid_namespace: 1 }
    }

    pub(crate) fn of(identity: &ProcessIdentity) -> Self {
        let small = |wide: u64| u8::try_from(wide).unwrap_or(u8::MAX);
        Self { pid: small(identity.start_time), boot: u8::try_from(identity.boot_id).unwrap_or(0) }
    }
}

/// What was seen of a VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sight {
    Dead,
    Alive(Process),
    CannotTell,
}

impl Sight {
    pub(crate) fn of(seen: &VmmSeen) -> Self {
        match seen {
            VmmSeen::Dead => Self::Dead,
            VmmSeen::Alive(identity) => Self::Alive(Process::of(identity)),
            VmmSeen::Inconclusive(_) => Self::CannotTell,
        }
    }

    pub(crate) fn seen(self) -> VmmSeen {
        match self {
            Self::Dead => VmmSeen::Dead,
            Self::Alive(process) => VmmSeen::Alive(process.identity()),
            Self::CannotTell => VmmSeen::Inconclusive(String::new()),
        }
    }
}

/// The end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum End {
    Done,
    Chosen,
    Spawned(Process),
    Up(Process),
    Failed,
    Unproven,
}

impl End {
    fn outcome(self) -> Outcome {
        match self {
            Self::Done => Outcome::Done,
            Self::Chosen => Outcome::Chosen(LaunchToken(1), Accelerator::Tcg),
            Self::Spawned(process) => Outcome::Spawned(process.identity()),
            Self::Up(process) => Outcome::Up(process.identity()),
            Self::Failed => Outcome::Failed("it failed".to_owned()),
            Self::Unproven => Outcome::Unproven("it cannot be told".to_owned()),
        }
    }
}

/// A command, small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Ask {
    Prereserve { slot: u8, name: u8, run: bool },
    TakeOver { slot: u8 },
    Start { slot: u8, generation: u8, seen: Sight },
    Stop { slot: u8, seen: Sight },
    Delete { slot: u8, seen: Sight, force: bool },
    Report { slot: u8, step: Step, end: End },
    Adopt { slot: u8, generation: u8, process: Process },
    ObserveExit { slot: u8, generation: u8 },
}

impl Ask {
    pub(crate) fn slot(self) -> u8 {
        match self {
            Self::Prereserve { slot, .. }
            | Self::TakeOver { slot }
            | Self::Start { slot, .. }
            | Self::Stop { slot, .. }
            | Self::Delete { slot, .. }
            | Self::Report { slot, .. }
            | Self::Adopt { slot, .. }
            | Self::ObserveExit { slot, .. } => slot,
        }
    }

    pub(super) fn command(self, id: VmId) -> Command {
        let (token, accelerator) = (LaunchToken(1), Accelerator::Tcg);
        match self {
            Self::Prereserve { slot, name, run } => {
                let kind = if run { OperationKind::Run } else { OperationKind::Create };
                let spec = Box::new(spec(slot));
                Command::Prereserve { id, name: name_of(name), image: image_id(), kind, spec }
            }
            Self::TakeOver { .. } => Command::TakeOver { id },
            Self::Start { generation, seen, .. } => {
                let (generation, seen) = (u64::from(generation), seen.seen());
                Command::Start { id, generation, seen, token, accelerator }
            }
            Self::Stop { seen, .. } => {
                Command::Stop { id, seen: seen.seen(), mode: StopMode::Kill }
            }
            Self::Delete { seen, force, .. } => Command::Delete { id, seen: seen.seen(), force },
            Self::Report { step, end, .. } => Command::Report { id, step, outcome: end.outcome() },
            Self::Adopt { generation, process, .. } => {
                let (generation, identity) = (u64::from(generation), process.identity());
                Command::Adopt { id, generation, identity }
            }
            Self::ObserveExit { generation, .. } => {
                Command::ObserveExit { id, generation: u64::from(generation), evidence: None }
            }
        }
    }
}
