//! Who may work on a VM, and whether its VMM lives.
//!
//! ```text
//!  <root>/locks/            0700, one user
//!    vm/<id>.lock           ops lock: held by the one operation that works on the VM
//!    vmm/<id>.lock          VMM lock: held by the VMM alone, from its start to its death
//!    snapshot/<id>.lease    exclusive while a snapshot is built, shared while it is read
//!    images.lock            shared while images are used, exclusive while they are collected
//!    daemon.lock            held by the one daemon
//! ```
//!
//! All are `flock` locks, which the kernel drops with the last process that holds them: nobody has
//! to clean up after a killed holder, and a file that is left behind locks nothing. A free ops lock
//! proves that nobody works on the VM; a free VMM lock proves that its VMM is dead.
//!
//! Lock files are swept when what they lock is gone. Whoever takes a lock therefore checks that the
//! file it locked is still the one at the path, and starts again otherwise:
//!
//! ```text
//!  taker:    open ─► flock ─► same inode at the path? ─ yes ─► write who we are ─► held
//!              ▲                        │ no (swept meanwhile)
//!              └────────────────────────┘
//!  sweeper:  open ─► try flock ─► same inode? ─► still unknown? ─► unlink ─► close
//!  observer: open (never creates) ─► try shared flock ─► free or held
//! ```
//!
//! The ops lock is close-on-exec, so a VMM never inherits it. Helpers do, deliberately: while a
//! disk tool of a killed operation still writes, the lock is not free. The content of a lock file
//! (a [`Holder`]) is for messages and never decides anything, save that a dead holder's lock is
//! waited for before it is called busy.

mod file;
mod remove;
mod sweep;
mod wait;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use sweep::Sweep;

use crate::host::boot;
use crate::host::process::{self, Liveness, ProcessIdentity};
use file::{Held, Mode};

/// How long a lock whose recorded holder is dead may stay taken before it is called busy: the
/// kernel tears a killed process down at its leisure, and a helper of it may still be dying.
const TEARDOWN_WAIT: Duration = Duration::from_secs(2);

/// How often the record of a held lock is read again while waiting for a teardown.
const RECORD_REREAD: Duration = Duration::from_millis(50);

/// How often the VMM lock is tried while its holder is being torn down, which takes milliseconds.
const VMM_RETRY: Duration = Duration::from_millis(5);

/// Who holds a lock, for the messages that others print.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub identity: ProcessIdentity,
    /// What it is doing, as typed: `vm clone`.
    pub verb: String,
    /// The operation, as named in the journal.
    pub operation: Uuid,
    /// Since when, in microseconds since 1970.
    pub since_us: u64,
}

impl Holder {
    /// A record of the calling process, starting now.
    pub fn own(verb: &str, operation: Uuid) -> Result<Self, process::ProcessError> {
        let identity = process::own_identity()?;
        Ok(Self { identity, verb: verb.to_owned(), operation, since_us: boot::wall_us() })
    }

    /// How long it has held the lock, by the wall clock; zero if that was set back.
    pub fn age(&self) -> Duration {
        Duration::from_micros(boot::wall_us().saturating_sub(self.since_us))
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pid, seconds) = (self.identity.pid, self.age().as_secs());
        write!(f, "`{}` (pid {pid}, operation {}, for {seconds} s", self.verb, self.operation)?;
        match process::liveness(&self.identity) {
            Liveness::Dead => write!(f, "; that process is dead, a helper of it still runs)"),
            _ if process::is_stopped(&self.identity) => {
                write!(f, "; that process is stopped, `kill -CONT {pid}` lets it go on)")
            }
            _ => write!(f, ")"),
        }
    }
}

/// A lock that somebody else holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// What is locked: `VM abc`.
    pub what: String,
    /// Who holds it, where that is recorded.
    pub holder: Option<Box<Holder>>,
}

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.holder {
            Some(holder) => write!(f, "{} is in use by {holder}", self.what),
            None => write!(f, "{} is in use by a process that left no record", self.what),
        }
    }
}

/// Why a lock was not taken, or could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The deadline passed while somebody else held the lock.
    #[error("{busy}; gave up after {waited:?}, wait for it to end or stop it, then try again")]
    TimedOut {
        /// What is locked, and by whom.
        busy: Busy,
        /// How long we waited.
        waited: Duration,
    },
    /// A VMM of this VM lives, or is being started.
    #[error("the VMM of VM {vm} is alive or starting; stop the VM before it is started again")]
    VmmAlive {
        /// The VM.
        vm: String,
    },
    /// An id that cannot be a file name.
    #[error(
        "{id:?} is not an id: 1 to 128 letters, digits, `.`, `_` and `-`, not starting with `.`"
    )]
    BadId {
        /// What was given.
        id: String,
    },
    /// A lock directory that others may enter, or that is not a directory of this user.
    #[error(
        "{path} {problem}; locks are safe only in a directory of one user, make it 0700 and yours"
    )]
    Insecure {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A lock file was replaced each time that we had locked it.
    #[error("{path} is replaced again and again; find out what removes lock files and stop it")]
    Replaced {
        /// The lock file.
        path: PathBuf,
    },
    /// A call failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What an observer sees of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// Nobody holds it.
    Free,
    /// Somebody holds it; who, where that is recorded.
    Held(Option<Holder>),
    /// There is no such file, so nobody holds it.
    NoFile,
}

/// The proof that this process works on one VM and nobody else does. Dropping it frees the VM,
/// unless a helper that inherited it still runs.
#[derive(Debug)]
#[must_use = "the VM is free again as soon as this is dropped"]
pub struct OpsGuard {
    vm: String,
    held: Held,
}

impl OpsGuard {
    /// The VM that may be worked on.
    pub fn vm(&self) -> &str {
        &self.vm
    }

    /// The locked descriptor, close-on-exec, for
    /// [`crate::host::spawn::HelperCommand::holding`] alone.
    pub fn inheritable_fd(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

/// The lock that a VMM is to inherit. Once
/// [`crate::host::spawn::spawn_vmm`] has consumed it, only the VMM holds it.
#[derive(Debug)]
#[must_use = "the launch is given up as soon as this is dropped"]
pub struct VmmLock {
    vm: String,
    held: Held,
}

impl VmmLock {
    /// Whose VMM may be started.
    pub fn vm(&self) -> &str {
        &self.vm
    }
}

impl AsFd for VmmLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

/// A lock that is neither a VM's nor a VMM's: the daemon's, the images', a snapshot's.
#[derive(Debug)]
#[must_use = "the lock is free again as soon as this is dropped"]
pub struct LockGuard {
    held: Held,
}

impl LockGuard {
    /// The locked descriptor, close-on-exec, for
    /// [`crate::host::spawn::HelperCommand::holding`] alone.
    pub fn inheritable_fd(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

/// The locks of one root.
#[derive(Debug, Clone)]
pub struct Locks {
    directory: PathBuf,
}

/// A lock and how messages call it.
struct Target {
    path: PathBuf,
    what: String,
}

impl Locks {
    /// Opens `<root>/locks`, creating what is missing of it. Refuses directories that other users
    /// may enter.
    pub fn open(root: &Path) -> Result<Self, LockError> {
        let directory = root.join("locks");
        for path in ["", "vm", "vmm", "snapshot"].map(|name| directory.join(name)) {
            file::private_directory(&path)?;
        }
        Ok(Self { directory })
    }

    /// Takes the ops lock of a VM, waiting until `deadline`, or for as long as it takes.
    pub fn ops(
        &self,
        vm: &str,
        holder: &Holder,
        deadline: Option<Instant>,
    ) -> Result<OpsGuard, LockError> {
        let held = self.vm(vm)?.take(Mode::Exclusive, holder, deadline)?;
        Ok(OpsGuard { vm: vm.to_owned(), held })
    }

    /// Takes the ops lock of a VM if nobody holds it. Waits only for the teardown of a dead holder,
    /// 2 s at most.
    pub fn try_ops(&self, vm: &str, holder: &Holder) -> Result<Result<OpsGuard, Busy>, LockError> {
        let taken = self.vm(vm)?.try_take(Mode::Exclusive, holder)?;
        Ok(taken.map(|held| OpsGuard { vm: vm.to_owned(), held }))
    }

    /// Whether somebody works on a VM. Creates nothing and hinders nobody.
    pub fn observe_ops(&self, vm: &str) -> Result<Observed, LockError> {
        file::observe(&self.vm(vm)?.path, Mode::Shared)
    }

    /// Takes the lock that the next VMM of a VM is to inherit. A VMM that dies at this moment is
    /// waited for, 2 s at most; one that lives is an error.
    pub fn vmm_for_launch(&self, vm: &str) -> Result<VmmLock, LockError> {
        let path = self.vmm(vm)?;
        let deadline = Instant::now() + TEARDOWN_WAIT;
        loop {
            let now = Instant::now();
            if let Some(file) = wait::take_until(&path, Mode::Exclusive, Some(now))? {
                return Ok(VmmLock { vm: vm.to_owned(), held: Held::unrecorded(file) });
            }
            if now >= deadline {
                return Err(LockError::VmmAlive { vm: vm.to_owned() });
            }
            // Not left to a waiting thread: an abandoned one would take the lock for an instant
            // after the VMM's death, and make observers believe that it lives.
            std::thread::sleep(VMM_RETRY);
        }
    }

    /// Whether a VMM of this VM is alive or starting ([`Observed::Held`]) or proven dead.
    pub fn observe_vmm(&self, vm: &str) -> Result<Observed, LockError> {
        file::observe(&self.vmm(vm)?, Mode::Shared)
    }

    /// Whether a VMM of this VM is alive or starting: [`Locks::observe_vmm`] without asking more, for those who list many.
    pub fn vmm_is_held(&self, vm: &str) -> Result<bool, LockError> {
        file::is_held(&self.vmm(vm)?, Mode::Shared)
    }

    /// Becomes the one daemon of this root, if there is no other.
    pub fn daemon(&self, holder: &Holder) -> Result<Result<LockGuard, Busy>, LockError> {
        let taken = self.daemon_target().try_take(Mode::Exclusive, holder)?;
        Ok(taken.map(|held| LockGuard { held }))
    }

    /// Whether a lock taken by [`daemon`](Self::daemon) is still that of this root: the root may have been removed, and
    /// another made in its place, under a living daemon.
    pub fn is_daemon_of(&self, guard: &LockGuard) -> bool {
        guard.held.is_at(&self.daemon_target().path).unwrap_or(false)
    }

    /// Whether a daemon serves this root.
    pub fn observe_daemon(&self) -> Result<Observed, LockError> {
        file::observe(&self.daemon_target().path, Mode::Shared)
    }

    /// Keeps images from being collected while they are used.
    pub fn images_shared(
        &self,
        holder: &Holder,
        deadline: Option<Instant>,
    ) -> Result<LockGuard, LockError> {
        let held = self.images().take(Mode::Shared, holder, deadline)?;
        Ok(LockGuard { held })
    }

    /// Has the image store for itself.
    pub fn images_exclusive(
        &self,
        holder: &Holder,
        deadline: Option<Instant>,
    ) -> Result<LockGuard, LockError> {
        let held = self.images().take(Mode::Exclusive, holder, deadline)?;
        Ok(LockGuard { held })
    }

    /// Takes the lease of a snapshot that is to be built, removed or otherwise changed.
    pub fn snapshot_exclusive(
        &self,
        snapshot: &str,
        holder: &Holder,
        deadline: Option<Instant>,
    ) -> Result<LockGuard, LockError> {
        let held = self.snapshot(snapshot)?.take(Mode::Exclusive, holder, deadline)?;
        Ok(LockGuard { held })
    }

    /// Takes the lease of a snapshot that is to be read, together with other readers.
    pub fn snapshot_shared(
        &self,
        snapshot: &str,
        holder: &Holder,
        deadline: Option<Instant>,
    ) -> Result<LockGuard, LockError> {
        let held = self.snapshot(snapshot)?.take(Mode::Shared, holder, deadline)?;
        Ok(LockGuard { held })
    }

    /// Takes the lease of a snapshot if nobody builds or reads it.
    pub fn try_snapshot_exclusive(
        &self,
        snapshot: &str,
        holder: &Holder,
    ) -> Result<Result<LockGuard, Busy>, LockError> {
        let taken = self.snapshot(snapshot)?.try_take(Mode::Exclusive, holder)?;
        Ok(taken.map(|held| LockGuard { held }))
    }

    /// Whether a snapshot is being built or read.
    pub fn observe_snapshot(&self, snapshot: &str) -> Result<Observed, LockError> {
        // Readers share the lock, so only an exclusive try tells whether there are any.
        file::observe(&self.snapshot(snapshot)?.path, Mode::Exclusive)
    }

    fn vm(&self, id: &str) -> Result<Target, LockError> {
        let path = self.directory.join("vm").join(file_name(id, "lock")?);
        Ok(Target { path, what: format!("VM {id}") })
    }

    fn vmm(&self, id: &str) -> Result<PathBuf, LockError> {
        Ok(self.directory.join("vmm").join(file_name(id, "lock")?))
    }

    fn snapshot(&self, id: &str) -> Result<Target, LockError> {
        let path = self.directory.join("snapshot").join(file_name(id, "lease")?);
        Ok(Target { path, what: format!("snapshot {id}") })
    }

    fn images(&self) -> Target {
        let path = self.directory.join("images.lock");
        Target { path, what: "the image store".to_owned() }
    }

    fn daemon_target(&self) -> Target {
        Target { path: self.directory.join("daemon.lock"), what: "the daemon's place".to_owned() }
    }
}

impl Target {
    fn take(
        &self,
        mode: Mode,
        holder: &Holder,
        deadline: Option<Instant>,
    ) -> Result<Held, LockError> {
        let began = Instant::now();
        match wait::take_until(&self.path, mode, deadline)? {
            Some(file) => Ok(Held::recorded(file, mode, holder)),
            None => Err(LockError::TimedOut {
                busy: self.busy(file::read_holder(&self.path)),
                waited: began.elapsed(),
            }),
        }
    }

    fn try_take(&self, mode: Mode, holder: &Holder) -> Result<Result<Held, Busy>, LockError> {
        let deadline = Instant::now() + TEARDOWN_WAIT;
        let mut until = Instant::now();
        loop {
            if let Some(file) = wait::take_until(&self.path, mode, Some(until))? {
                return Ok(Ok(Held::recorded(file, mode, holder)));
            }
            // No record: the holder has not written it yet, or has just let go. A dead one: it is
            // being torn down.
            let current = file::read_holder(&self.path);
            let lives = current.as_ref().is_some_and(Holder::may_go_on);
            if lives || Instant::now() >= deadline {
                return Ok(Err(self.busy(current)));
            }
            until = deadline.min(Instant::now() + RECORD_REREAD);
        }
    }

    fn busy(&self, holder: Option<Holder>) -> Busy {
        Busy { what: self.what.clone(), holder: holder.map(Box::new) }
    }
}

impl Holder {
    /// Whether it may hold its lock for longer than a teardown takes.
    fn may_go_on(&self) -> bool {
        process::liveness(&self.identity) != Liveness::Dead && !process::is_dying(&self.identity)
    }
}

/// The file name of an id's lock; refuses what would lead out of the directory.
fn file_name(id: &str, suffix: &str) -> Result<String, LockError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let valid = (1..=128).contains(&id.len()) && !id.starts_with('.') && id.bytes().all(allowed);
    if valid {
        Ok(format!("{id}.{suffix}"))
    } else {
        Err(LockError::BadId { id: id.chars().take(140).collect() })
    }
}

#[cfg(test)]
pub(crate) mod tests;
