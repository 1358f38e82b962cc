//! What can be asked of the journal.

use crate::event::vm::Adopted;
use crate::id::LaunchToken;
use crate::id::{ImageId, VmId};
use crate::record::{
    Accelerator, ImageContent, OperationKind, Place, ProcessIdentity, StopMode, VmSpec,
};
use crate::step::{Outcome, Step};

/// What was seen of a VM's VMM.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VmmSeen {
    /// It is proven dead, or was never there.
    Dead,
    /// It lives.
    Alive(ProcessIdentity),
    /// It cannot be told, for this reason. Never taken for dead.
    Inconclusive(String),
}

/// A request to change something. Those of the first group need the VM's ops lock; the engine asks for its guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Take an id and a name for a new VM.
    Prereserve {
        /// The id; its ops lock is held.
        id: VmId,
        /// The name.
        name: String,
        /// The image.
        image: ImageId,
        /// `Create` or `Run`.
        kind: OperationKind,
        /// Everything that is fixed from now on.
        spec: Box<VmSpec>,
    },
    /// Go on with whatever a dead operation left on this record.
    TakeOver {
        /// The VM.
        id: VmId,
    },
    /// Start a VM.
    Start {
        /// The VM.
        id: VmId,
        /// The generation at which its VMM was looked at.
        generation: u64,
        /// What was seen of its VMM, under the lock.
        seen: VmmSeen,
        /// The mark of the launch.
        token: LaunchToken,
        /// How instructions will be run.
        accelerator: Accelerator,
    },
    /// Stop a VM.
    Stop {
        /// The VM.
        id: VmId,
        /// What was seen of its VMM, under the lock.
        seen: VmmSeen,
        /// How.
        mode: StopMode,
    },
    /// Remove a VM.
    Delete {
        /// The VM.
        id: VmId,
        /// What was seen of its VMM, under the lock.
        seen: VmmSeen,
        /// A running VMM is killed first.
        force: bool,
    },
    /// What became of a step.
    Report {
        /// The VM.
        id: VmId,
        /// The step.
        step: Step,
        /// What became of it.
        outcome: Outcome,
    },
    /// A VMM of a committed VM was found alive, under the lock.
    Adopt {
        /// The VM.
        id: VmId,
        /// The generation at which its VMM was looked at.
        generation: u64,
        /// The VMM's process.
        identity: ProcessIdentity,
    },
    /// A VMM was proven dead. Needs no lock: fenced by the generation.
    ObserveExit {
        /// The VM.
        id: VmId,
        /// The generation that was seen running.
        generation: u64,
        /// What the VMM left word of.
        evidence: Option<String>,
    },
    /// Take a name for an image whose files are in the store.
    ImportImage {
        /// The id.
        id: ImageId,
        /// The name.
        name: String,
        /// Content digest of the whole.
        digest: String,
        /// The files.
        content: ImageContent,
    },
    /// Begin to remove an image, or go on with it.
    RemoveImage {
        /// The image.
        id: ImageId,
    },
    /// The files of an image are gone.
    FinishImageRemoval {
        /// The image.
        id: ImageId,
    },
    /// A daemon begins.
    StartSupervising {
        /// Version of the binary.
        version: String,
        /// Until when the one before was last seen alive, microseconds since 1970.
        previous_alive_until_us: Option<i64>,
    },
    /// The daemon ends in good order.
    StopSupervising,
    /// Something proves that the journal is older than its world.
    Doubt {
        /// What, in a sentence.
        reason: String,
    },
    /// Take a VM in as it was found, under its lock.
    TakeIn {
        /// The VM.
        id: VmId,
        /// All that is known of it.
        found: Box<Adopted>,
    },
    /// Confirm the root as it is now.
    AdoptRoot {
        /// Where it is.
        place: Place,
    },
}

impl Command {
    /// The VM that it is about, if it is about one.
    #[must_use]
    pub fn vm(&self) -> Option<VmId> {
        match self {
            Self::Prereserve { id, .. }
            | Self::TakeOver { id }
            | Self::Start { id, .. }
            | Self::Stop { id, .. }
            | Self::Delete { id, .. }
            | Self::Report { id, .. }
            | Self::Adopt { id, .. }
            | Self::TakeIn { id, .. }
            | Self::ObserveExit { id, .. } => Some(*id),
            Self::ImportImage { .. }
            | Self::RemoveImage { .. }
            | Self::FinishImageRemoval { .. }
            | Self::StartSupervising { .. }
            | Self::Doubt { .. }
            | Self::AdoptRoot { .. }
            | Self::StopSupervising => None,
        }
    }

    /// Whether it may be carried out while the root is unconfirmed: it touches no process, directory or file, and says
    /// nothing of a VM but what was just seen.
    #[must_use]
    pub fn needs_no_confirmation(&self) -> bool {
        matches!(
            self,
            Self::Doubt { .. }
                | Self::TakeIn { .. }
                | Self::AdoptRoot { .. }
                | Self::StartSupervising { .. }
                | Self::StopSupervising
        )
    }
}
