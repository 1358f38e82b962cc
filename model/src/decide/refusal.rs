//! Refusals, as sentences.

use crate::id::{ImageId, OperationId, VmId};
use crate::record::OperationKind;

/// Why a command cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such VM.
    #[error("vm {0}: vm not found")]
    VmNotFound(VmId),
    /// The name is taken.
    #[error("vm name \"{name}\" already exists (id: {holder})")]
    NameTaken {
        /// The name.
        name: String,
        /// Who holds it.
        holder: VmId,
    },
    /// The id is taken.
    #[error("id collision \"{0}\" (retry)")]
    IdTaken(VmId),
    /// The image is gone or going.
    #[error("image {0} is not there any more; choose another with `cocoon image list`")]
    ImageGone(ImageId),
    /// The image name is taken by other content.
    #[error(
        "image \"{name}\" already exists with other content (id: {holder}); remove it first or choose another name"
    )]
    ImageNameTaken {
        /// The name.
        name: String,
        /// Who holds it.
        holder: ImageId,
    },
    /// No such image.
    #[error("image {0}: image not found")]
    ImageNotFound(ImageId),
    /// VMs use the image.
    #[error("image \"{name}\" is in use by {}", list(users))]
    ImageInUse {
        /// The image's name.
        name: String,
        /// Names of some of its users.
        users: Vec<String>,
    },
    /// The VM is only a placeholder.
    #[error(
        "vm {id} is still being created and cannot be {verb}; if its creator is dead, `cocoon vm reconcile-stale-create {id}` clears it"
    )]
    Creating {
        /// The VM.
        id: VmId,
        /// What was asked, as a participle.
        verb: &'static str,
    },
    /// The VM runs.
    #[error("vm {0}: stop before delete: running (force required)")]
    Running(VmId),
    /// The VMM cannot be judged.
    #[error("vm {id}: cannot tell whether its VMM lives: {reason}; nothing was changed")]
    Inconclusive {
        /// The VM.
        id: VmId,
        /// Why not.
        reason: String,
    },
    /// An operation that is not this one owns the record.
    #[error("vm {id} is in the middle of `{}` (operation {:032x}); wait for it", kind.as_str(), operation.0)]
    OperationInFlight {
        /// The VM.
        id: VmId,
        /// What it is for.
        kind: OperationKind,
        /// Which.
        operation: OperationId,
    },
    /// This operation does not own the record any more.
    #[error("vm {0} was taken over by another operation; this one changes nothing more")]
    LostOwnership(VmId),
    /// The record does not owe this step.
    #[error("vm {id} does not owe the step `{step}`")]
    NotOwed {
        /// The VM.
        id: VmId,
        /// The step.
        step: &'static str,
    },
    /// The VM is not what the user spoke of any more.
    #[error(
        "vm {id} changed while you waited (generation {found}, was {expected}); look at it again before removing it"
    )]
    MovedOn {
        /// The VM.
        id: VmId,
        /// The generation that the user spoke of.
        expected: u64,
        /// The generation that it has.
        found: u64,
    },
    /// The journal may be older than the world.
    #[error(
        "this root is unconfirmed: {0}; no VM, process or directory is touched until `cocoon adopt` (with --dry-run it only shows what it would do)"
    )]
    Unconfirmed(String),
    /// The observation is late.
    #[error("vm {0} has moved on since its VMM was seen dead")]
    Late(VmId),
}

impl Refusal {
    /// What the user can do, where the sentence does not say it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NameTaken { name, .. } => {
                Some(format!("choose another name, or remove the VM with `cocoon vm rm {name}`"))
            }
            Self::ImageInUse { .. } => Some("remove these VMs first".to_owned()),
            Self::Running(id) => {
                Some(format!("stop it with `cocoon vm stop {id}`, or add --force to kill it"))
            }
            Self::Inconclusive { .. } => {
                Some("`cocoon doctor` says what this user may see of processes".to_owned())
            }
            Self::VmNotFound(_)
            | Self::IdTaken(_)
            | Self::ImageGone(_)
            | Self::ImageNameTaken { .. }
            | Self::ImageNotFound(_)
            | Self::Creating { .. }
            | Self::OperationInFlight { .. }
            | Self::LostOwnership(_)
            | Self::NotOwed { .. }
            | Self::MovedOn { .. }
            | Self::Unconfirmed(_)
            | Self::Late(_) => None,
        }
    }
}

fn list(users: &[String]) -> String {
    users.join(", ")
}
