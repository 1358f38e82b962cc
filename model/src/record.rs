//! What is known of each VM and image: the fold of its events.
//!
//! A VM record has three parts. [`VmCore`] is all that decisions, next steps and recovery plans may read, and all that
//! the checker hashes. [`VmSpec`] was fixed at birth and is read by effects only. [`VmNotes`] are times, sequence
//! numbers and texts for people.

use serde::{Deserialize, Serialize};

use crate::id::{ImageId, LaunchToken, OperationId, VmId};

mod root;

pub use root::{Doubt, Place, RootRecord};

/// Where a VM stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VmState {
    /// Reserved; its parts are being made. Whoever makes it holds the ops lock.
    Creating,
    /// Complete, never started.
    Created,
    /// Its VMM was seen to run.
    Running,
    /// Its VMM is gone.
    Stopped,
    /// Something failed; the notes say what. Its VMM may live.
    Error,
}

impl VmState {
    /// The name used in JSON and tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Error => "error",
        }
    }
}

/// Why a VM entered its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// All its parts were made.
    Create,
    /// Its first start.
    Boot,
    /// A later start.
    Restart,
    /// Someone asked for the stop.
    StopUser,
    /// A step failed.
    Error,
    /// The VMM ended and nobody had asked for it.
    UnexpectedExit,
    /// It was taken in as it was found.
    Adopted,
}

impl Reason {
    /// The name used in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Boot => "boot",
            Self::Restart => "restart",
            Self::StopUser => "stop-user",
            Self::Error => "error",
            Self::UnexpectedExit => "unexpected-exit",
            Self::Adopted => "adopted",
        }
    }
}

/// How a VM is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StopMode {
    /// The guest is asked to power off and has this many milliseconds for it; then the VMM is ended.
    Graceful {
        /// Milliseconds that the guest has.
        timeout_ms: u64,
    },
    /// The VMM is ended at once.
    Kill,
}

/// What an operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OperationKind {
    /// `vm create`.
    Create,
    /// `vm run`: create, then start, under one lock.
    Run,
    /// `vm start`.
    Start,
    /// `vm stop`.
    Stop(StopMode),
    /// `vm rm`.
    Delete {
        /// A running VMM is killed first.
        force: bool,
    },
    /// The removal of a `creating` record whose owner is dead.
    Reclaim,
}

impl OperationKind {
    /// The name used in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Run => "run",
            Self::Start => "start",
            Self::Stop(_) => "stop",
            Self::Delete { .. } => "rm",
            Self::Reclaim => "reclaim",
        }
    }

    /// Whether this operation brings a VM into being: nobody else may want that VM gone while it is in flight.
    #[must_use]
    pub fn is_birth(self) -> bool {
        matches!(self, Self::Create | Self::Run)
    }
}

/// The operation that a record belongs to. Whether its process lives, only the ops lock tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Operation {
    /// Its id; outcomes of any other operation are refused.
    pub id: OperationId,
    /// What it is for.
    pub kind: OperationKind,
}

/// Whom to signal: a process, told from every other process that has had or will have its pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// The boot that it lives in.
    #[serde(with = "crate::id::uuid")]
    pub boot_id: u128,
    /// Inode of its pid namespace.
    pub pid_namespace: u64,
}

/// How far a launch has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LaunchPhase {
    /// The VMM may be spawned at any moment.
    Began,
    /// The VMM was spawned; nobody has spoken to it yet.
    Spawned,
    /// The operation that launched it is dead: whether a VMM lives, the world must tell.
    Interrupted,
    /// The VMM reported that the guest runs.
    Up,
}

/// A VMM that may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Launch {
    /// Chosen before the launch.
    pub token: LaunchToken,
    /// How far it has come.
    pub phase: LaunchPhase,
    /// The VMM's process, once known.
    pub identity: Option<ProcessIdentity>,
}

/// Why a record is being removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RemovalKind {
    /// Someone asked for it; a VMM that lives against all expectation is a reason to refuse.
    Delete,
    /// Someone asked for it by force.
    ForcedDelete,
    /// Its creator failed and takes back what it made.
    Rollback,
    /// Its creator is dead.
    Reclaim,
}

impl RemovalKind {
    /// Whether a VMM that still lives is killed rather than spared.
    #[must_use]
    pub fn kills(self) -> bool {
        !matches!(self, Self::Delete)
    }
}

/// How far a removal has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RemovalPhase {
    /// No file was touched: it may be taken back.
    Leased,
    /// Files may be gone: it can only go forward.
    Deleting,
}

/// The steps of a removal, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeleteStep {
    /// The run directory with disks and sockets.
    RunDirectory,
    /// The log directory.
    LogDirectory,
    /// The lock file of the VMM, with its control group.
    VmmLock,
}

impl DeleteStep {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::RunDirectory, Self::LogDirectory, Self::VmmLock];

    /// The name used in messages and traces.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RunDirectory => "run-directory",
            Self::LogDirectory => "log-directory",
            Self::VmmLock => "vmm-lock",
        }
    }
}

/// What a removal needs to know, complete when it begins: whoever resumes it reads this and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Removal {
    /// Run directory, absolute.
    pub run_dir: String,
    /// Log directory, absolute.
    pub log_dir: String,
}

/// A removal under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tombstone {
    /// Why.
    pub kind: RemovalKind,
    /// How far.
    pub phase: RemovalPhase,
    /// Steps that are done.
    pub done: Vec<DeleteStep>,
    /// What to remove.
    pub removal: Removal,
}

/// All of a VM that decisions read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VmCore {
    /// Its id.
    pub id: VmId,
    /// Its name; held for as long as the record is there.
    pub name: String,
    /// The image that its disks stand on.
    pub image: ImageId,
    /// Where it stands.
    pub state: VmState,
    /// Counts committed changes of state: 0 while `creating`, then 1, 2, ... without a gap.
    pub generation: u64,
    /// The operation in flight, or its remains.
    pub operation: Option<Operation>,
    /// Directories and disks are made.
    pub storage_prepared: bool,
    /// A VMM that may live.
    pub launch: Option<Launch>,
    /// A removal under way.
    pub tombstone: Option<Tombstone>,
    /// It has run at least once.
    pub first_booted: bool,
    /// Compute time is being counted: started and not stopped.
    pub interval_open: bool,
    /// The last failure, as it was told; gone with the next good transition.
    pub failure: Option<String>,
}

/// What runs a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// QEMU over QMP.
    Qemu,
    /// Cloud Hypervisor over its REST API.
    CloudHypervisor,
    /// Firecracker over its REST API.
    Firecracker,
}

impl BackendKind {
    /// The name used in JSON and paths.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::CloudHypervisor => "cloud-hypervisor",
            Self::Firecracker => "firecracker",
        }
    }
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageType {
    /// A kernel, an initrd and perhaps a root file system.
    Direct,
    /// A bootable disk.
    Cloudimg,
    /// Layers from a registry.
    Oci,
}

impl ImageType {
    /// The name used in JSON and tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Cloudimg => "cloudimg",
            Self::Oci => "oci",
        }
    }
}

/// The format of a disk file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// QEMU copy-on-write, version 2 or 3.
    Qcow2,
    /// Plain sectors.
    Raw,
}

impl DiskFormat {
    /// The name that `qemu-img` and JSON use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

/// What the user asked for, as the JSON contract shows it under `config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmConfig {
    /// Virtual processors.
    pub cpu: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Size of the root disk in bytes.
    pub storage: u64,
    /// Descriptors a network queue; 0 leaves it to the backend.
    pub queue_size: u32,
    /// Descriptors a disk queue; 0 leaves it to the backend.
    pub disk_queue_size: u32,
    /// Name of the image.
    pub image: String,
    /// Content digest of the image (`blake3:` and 64 hex digits).
    pub image_digest: String,
    /// What the image is.
    pub image_type: ImageType,
    /// The page cache of the host is used for disks.
    pub no_direct_io: bool,
}

/// How the guest boots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Boot {
    /// The VMM loads a kernel.
    Direct {
        /// Absolute path of the kernel in the image store.
        kernel: String,
        /// Absolute path of the initrd in the image store.
        initrd: String,
        /// Kernel command line.
        cmdline: String,
    },
    /// Firmware boots the first disk.
    Disk,
}

/// What a disk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskRole {
    /// The writable disk, copied on write from the image.
    Cow,
}

/// One disk of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Absolute path.
    pub path: String,
    /// Its format.
    pub format: DiskFormat,
    /// The file in the image store that it stands on, with its format.
    pub base: Option<(String, DiskFormat)>,
    /// Size in bytes that the guest sees.
    pub size: u64,
    /// Serial number that the guest sees.
    pub serial: String,
    /// What it is for.
    pub role: DiskRole,
}

/// One network card of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Its address, `02:xx:xx:xx:xx:xx`.
    pub mac: String,
}

/// How instructions of the guest are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// By the hardware.
    Kvm,
    /// By emulation.
    Tcg,
}

impl Accelerator {
    /// The name used in JSON and on command lines.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// Everything about a VM that is fixed when it is reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpec {
    /// What runs it.
    pub backend: BackendKind,
    /// What the user asked for.
    pub config: VmConfig,
    /// How it boots.
    pub boot: Boot,
    /// Its disks, the root disk first.
    pub disks: Vec<Disk>,
    /// Its network cards, user-mode.
    pub nics: Vec<Nic>,
    /// Run directory, absolute.
    pub run_dir: String,
    /// Log directory, absolute.
    pub log_dir: String,
}

/// What people want to know about a VM and no decision reads. Times are microseconds since 1970 by the wall clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmNotes {
    /// When it was reserved.
    pub created_us: i64,
    /// When its record last changed.
    pub updated_us: i64,
    /// When it last started.
    pub started_us: Option<i64>,
    /// When it last stopped.
    pub stopped_us: Option<i64>,
    /// When it entered its state.
    pub transition_us: Option<i64>,
    /// Why it entered its state.
    pub transition_reason: Option<Reason>,
    /// How the guest's instructions are run, since the last launch.
    pub accelerator: Option<Accelerator>,
    /// What the VMM of the last unexpected exit left word of.
    pub exit_evidence: Option<String>,
    /// The event that reserved it.
    pub first_seq: u64,
    /// The event that last changed it.
    pub last_seq: u64,
    /// When the operation in flight began.
    pub operation_us: Option<i64>,
}

/// All that is known of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRecord {
    /// What decisions read.
    pub core: VmCore,
    /// What was fixed at birth.
    pub spec: VmSpec,
    /// What people want to know.
    pub notes: VmNotes,
}

/// A file of the image store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// 64 hex digits of its blake3 hash; also its name in the store.
    pub hash: String,
    /// Its size in bytes.
    pub size: u64,
}

/// The files of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageContent {
    /// Kernel, initrd and perhaps a root disk.
    Direct {
        /// The kernel.
        kernel: Blob,
        /// The initrd.
        initrd: Blob,
        /// The root disk, with its format and the size that a guest sees.
        rootfs: Option<(Blob, DiskFormat, u64)>,
        /// Kernel command line.
        cmdline: String,
    },
    /// A bootable disk.
    Disk {
        /// The disk.
        disk: Blob,
        /// Its format.
        format: DiskFormat,
        /// Size in bytes that a guest sees.
        virtual_size: u64,
    },
}

impl ImageContent {
    /// Its files.
    #[must_use]
    pub fn blobs(&self) -> Vec<&Blob> {
        match self {
            Self::Direct { kernel, initrd, rootfs, .. } => {
                let mut blobs = vec![kernel, initrd];
                blobs.extend(rootfs.as_ref().map(|(blob, _, _)| blob));
                blobs
            }
            Self::Disk { disk, .. } => vec![disk],
        }
    }
}

/// All of an image that decisions read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImageCore {
    /// Its id.
    pub id: ImageId,
    /// Its name.
    pub name: String,
    /// Content digest of the whole (`blake3:` and 64 hex digits).
    pub digest: String,
    /// The operation that removes it; no new VM may use it.
    pub removing: Option<OperationId>,
}

/// All that is known of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// What decisions read.
    pub core: ImageCore,
    /// Its files.
    pub content: ImageContent,
    /// When it was imported, microseconds since 1970.
    pub created_us: i64,
}

/// What is known of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorRecord {
    /// The instance that started last.
    pub instance: OperationId,
    /// It has not said that it stopped.
    pub running: bool,
    /// When it started, microseconds since 1970.
    pub started_us: i64,
    /// When it said that it stopped.
    pub stopped_us: Option<i64>,
    /// Until when the one before was last seen alive, microseconds since 1970.
    pub previous_alive_until_us: Option<i64>,
}
