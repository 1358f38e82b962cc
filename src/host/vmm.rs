//! Hypervisors behind one trait.
//!
//! A virtual machine monitor (VMM) is one process that runs one VM. It is launched from a [`LaunchSpec`], is driven
//! through an API socket, and is alive exactly as long as its process is. What a backend does here is only to speak:
//! to turn a specification into a command line, and calls into messages on the socket. Spawning, locks and signals
//! belong to their own modules, so that all backends share them.
//!
//! ```text
//!            command()            wait_ready()             boot()
//!   nothing ----------> process -------------> Prelaunch ----------> Running <---> Paused
//!                          |                       |                    |   pause/resume
//!                          |  early exit: reported with the end of its log
//!                          v                       v                    v
//!                        gone <------------- quit, signal, guest power-off, crash
//! ```
//!
//! The guest does not run before [`Backend::boot`]: whoever launches has spoken to the VMM, and can write that down,
//! before the first instruction of the guest. A launcher that dies in between leaves a VMM that says
//! [`VmmState::Prelaunch`], which nobody can take for a guest that someone is using.
//!
//! Every call is blocking and takes the time it may last. An answer that does not come is
//! [`ApiError::Inconclusive`], never "dead": only a socket that nobody listens on is.

pub mod dial;
pub mod event;
pub mod exit;
pub mod launch;
pub mod paths;
pub mod power;
pub mod prepare;
pub mod ready;

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

pub use cocoon_model::record::BackendKind;

pub use self::dial::{Dial, DialFailure, dial, probe};
pub use self::event::{EventStream, VmmEvent};
pub use self::exit::{EARLY_EXIT, ExitReason, early_exit_report};
pub use self::launch::{
    Accelerator, Boot, DIRECT_CMDLINE, Disk, DiskFormat, DiskRole, LaunchError, LaunchSpec, Nic,
    VmmCommandLine,
};
pub use self::paths::{PathError, RuntimePaths, SOCKET_PATH_MAX};
pub use self::power::{PRESS_AGAIN, power_off};
pub use self::prepare::{PrepareError, prepare, remove_sockets};
pub use self::ready::{LaunchFailure, Liveness};

/// How long a dial of an API socket may take before it is inconclusive.
pub const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// How long one call on an API socket may take unless the caller knows better.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A hypervisor whose binary this host lacks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{backend} needs {binary}, which is not on this host; {remedy}")]
pub struct MissingBinary {
    /// The backend that was asked for.
    pub backend: BackendKind,
    /// The name or path that was looked for.
    pub binary: String,
    /// What to do about it.
    pub remedy: String,
}

/// What a VMM says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmmState {
    /// It is set up and its guest has not run yet.
    Prelaunch,
    /// The guest runs.
    Running,
    /// The guest is stopped between two instructions and can be resumed.
    Paused,
    /// It waits for, or takes in, a saved guest.
    Restoring,
    /// The guest's state is being written out.
    Saving,
    /// The guest has put itself to sleep.
    Suspended,
    /// The guest is off and the process about to exit.
    ShutDown,
    /// The VMM cannot go on; its own word for why.
    Failed(String),
    /// A word that this version does not know.
    Unknown(String),
}

impl VmmState {
    /// Whether the guest can execute instructions in this state.
    #[must_use]
    pub fn guest_runs(&self) -> bool {
        matches!(self, Self::Running | Self::Suspended)
    }
}

/// Why a call to a VMM did not succeed.
#[derive(Debug, Error)]
pub enum ApiError {
    /// Nobody listens on the API socket, so the VMM is not there.
    #[error(transparent)]
    Dead(DialFailure),
    /// The VMM may live, but no answer came. Nothing may be concluded from it.
    #[error("{socket}: {reason}; the VMM may be alive, try again or look at its log")]
    Inconclusive {
        /// The API socket.
        socket: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The VMM answered that it will not.
    #[error("the VMM refused {command}: {description}")]
    Refused {
        /// The call.
        command: String,
        /// The VMM's own words.
        description: String,
    },
}

impl ApiError {
    /// Whether this proves that no VMM listens on the socket.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self, Self::Dead(_))
    }
}

/// What [`Backend::cancel_leftovers`] found running inside a VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Whether a migration (a snapshot being written) was cancelled.
    pub migration: bool,
    /// The block jobs that were cancelled, by name.
    pub block_jobs: Vec<String>,
}

impl Leftovers {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.migration && self.block_jobs.is_empty()
    }
}

/// One hypervisor. All calls are blocking; `timeout` bounds the whole call, the dial included.
pub trait Backend: std::fmt::Debug + Send + Sync {
    /// Which hypervisor this is.
    fn kind(&self) -> BackendKind;

    /// The binary that will be run, found on this host.
    fn binary(&self) -> Result<PathBuf, MissingBinary>;

    /// The command line that launches a VM. It is a function of the specification alone.
    fn command(&self, spec: &LaunchSpec) -> Result<VmmCommandLine, LaunchError>;

    /// Waits until the VMM answers on its API socket. `liveness` tells whether the process is still there; a VMM
    /// that exits meanwhile is reported with the end of its log.
    fn wait_ready(
        &self,
        paths: &RuntimePaths,
        liveness: &mut Liveness<'_>,
        timeout: Duration,
    ) -> Result<VmmState, LaunchFailure>;

    /// Lets the guest run for the first time. Already running is fine.
    fn boot(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError>;

    /// Stops the guest between two instructions. Already paused is fine.
    fn pause(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError>;

    /// Lets a paused guest go on. Already running is fine.
    fn resume(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError>;

    /// What the VMM says of itself.
    fn status(&self, paths: &RuntimePaths, timeout: Duration) -> Result<VmmState, ApiError>;

    /// Presses the power button. Says nothing about whether the guest will heed it.
    fn request_power_off(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError>;

    /// Tells the VMM to flush its disks and exit. It has heard; its exit is seen by its process.
    fn quit(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError>;

    /// Cancels what an operation that died may still have running inside the VMM.
    fn cancel_leftovers(
        &self,
        paths: &RuntimePaths,
        timeout: Duration,
    ) -> Result<Leftovers, ApiError>;

    /// Opens the stream of what happens to the VM. It does not disturb callers of the API.
    fn watch(
        &self,
        paths: &RuntimePaths,
        timeout: Duration,
    ) -> Result<Box<dyn EventStream>, ApiError>;

    /// Why the VMM of the last launch exited, as far as it left word in its log. Evidence, never a guess.
    fn exit_reason(&self, paths: &RuntimePaths) -> ExitReason;
}

/// Looks for an executable: `name` as it is if it holds a slash, else along `PATH`.
#[must_use]
pub fn find_executable(name: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.components().count() > 1 {
        return runs(name).then(|| name.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|candidate| runs(candidate))
}
