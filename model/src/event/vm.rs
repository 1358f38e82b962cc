//! Bodies of the events of a VM.

use serde::{Deserialize, Serialize};

use crate::id::{ImageId, LaunchToken, OperationId};
use crate::record::{
    Accelerator, DeleteStep, OperationKind, ProcessIdentity, Removal, RemovalKind, VmSpec,
};

/// A VM was taken in as it was found: the journal had not known it, or only as it was long before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// The name.
    pub name: String,
    /// The image that its disks stand on.
    pub image: ImageId,
    /// Everything that was fixed at its birth.
    pub spec: Box<VmSpec>,
    /// The generation from which it goes on: above all that its record and its directory had come to.
    pub generation: u64,
    /// Whether it has ever run.
    pub first_booted: bool,
    /// Its VMM, if it lives.
    pub identity: Option<ProcessIdentity>,
}

/// An id and a name were taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prereserved {
    /// The name.
    pub name: String,
    /// The image that its disks will stand on.
    pub image: ImageId,
    /// `Create` or `Run`.
    pub operation: OperationKind,
    /// Everything that is fixed from now on.
    pub spec: Box<VmSpec>,
}

/// Directories and disks are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoragePrepared {}

/// The VM is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {}

/// A VMM may be spawned from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchBegan {
    /// The mark of this launch.
    pub token: LaunchToken,
    /// How the guest's instructions are run.
    pub accelerator: Accelerator,
}

/// The VMM was spawned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launched {
    /// Its process.
    pub identity: ProcessIdentity,
}

/// The VMM reported that the guest runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Its process.
    pub identity: ProcessIdentity,
}

/// The launch failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFailed {
    /// What happened, in a sentence.
    pub reason: String,
}

/// The VMM is being stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopBegan {
    /// `Stop`, or a forced `Delete` that kills first.
    pub operation: OperationKind,
}

/// The VMM is proven dead, as was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {}

/// The VMM could not be ended or proven dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopFailed {
    /// What happened, in a sentence.
    pub reason: String,
}

/// The VMM ended and nobody had asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitObserved {
    /// The generation that the observer had seen; a record that moved on refuses.
    pub generation: u64,
    /// What the VMM left word of, if anything: evidence, never a guess.
    pub evidence: Option<String>,
}

/// The VM is to be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstoned {
    /// Why.
    pub kind: RemovalKind,
    /// What to remove.
    pub removal: Removal,
}

/// The removal was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TombstoneRolledBack {
    /// What happened, in a sentence.
    pub reason: String,
}

/// Files go from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteBegan {}

/// One step of the removal is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteStepDone {
    /// Which.
    pub step: DeleteStep,
}

/// The record is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {}

/// A step failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailed {
    /// Its name.
    pub step: String,
    /// What happened, in a sentence.
    pub reason: String,
}

/// The owner of a `creating` record is dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimBegan {
    /// The operation that had owned it.
    pub previous: OperationId,
}

/// The owner of an operation is dead; the writer goes on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationTakenOver {
    /// The operation that had owned the record.
    pub previous: OperationId,
}

/// The owner of an operation is dead and nothing of it is left to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationAbandoned {
    /// The operation that had owned the record.
    pub previous: OperationId,
}
