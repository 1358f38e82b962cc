//! Who a process is, whether it lives, and how to end it without ever hitting another one.
//!
//! A pid is reused, so a process is known by four things: the pid, the instant at which the kernel
//! started it, the boot in which that was, and the pid namespace in which the number means
//! something.
//!
//! ```text
//!  recorded identity ── other boot ────────────────────────────► Dead
//!        │           ── other pid namespace, /proc hidden ─────► Inconclusive
//!        ├─ no such pid, a zombie, another start time ─────────► Dead
//!        └─ same pid, same start time ─────────────────────────► Alive
//!
//!  terminate:  verify ─► pidfd_open ─► verify again ─► SIGTERM ─► wait ─► SIGKILL ─► wait ─► dead
//! ```
//!
//! "Inconclusive" is never taken for an exit: whoever gets it keeps what the process may still be
//! using. Needs Linux 5.4 or newer (`pidfd_open`, polling and waiting by pidfd).

mod handle;
mod scan;
mod stat;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub(crate) use handle::remaining;
pub use handle::{ProcessHandle, TerminateError, Terminated, terminate};
pub use scan::{Inconclusive, scan};

use crate::host::boot::{self, BootError};
use stat::Stat;

/// One process, for ever: no later process on any boot of this host has the same identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process id, as seen in `pid_namespace`.
    pub pid: u32,
    /// When the kernel started it, in clock ticks since boot.
    pub start_time: u64,
    /// The boot in which it was started.
    pub boot_id: Uuid,
    /// Inode number of the pid namespace in which `pid` was observed.
    pub pid_namespace: u64,
}

impl std::fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pid {}", self.pid)
    }
}

/// What is known of a recorded process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// It runs, or is stopped, but exists.
    Alive,
    /// It is gone for good; a zombie counts as gone.
    Dead,
    /// It cannot be told from here, for the reason given. Never to be taken for an exit.
    Inconclusive(String),
}

/// Why a process could not be identified.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The host itself could not be identified.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// Something about a live process could not be read.
    #[error("cannot read {path}: {source}; run as the owner of the process or as root")]
    Unreadable {
        /// The entry below `/proc`.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// `/proc` shows something else than this process's own pid namespace.
    #[error("{root} does not show the processes of this pid namespace; mount its own there")]
    ForeignProc {
        /// The proc file system that was asked.
        root: PathBuf,
    },
    /// A process file system entry has an unknown form.
    #[error("{path} has an unknown form; its process cannot be judged")]
    Malformed {
        /// The entry below `/proc`.
        path: PathBuf,
    },
    /// A pidfd call failed.
    #[error("cannot {what} process {pid}: {source}")]
    Pidfd {
        /// What was tried: "open", "signal", "wait for".
        what: &'static str,
        /// Whom it was about.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process cannot be judged from here.
    #[error("process {pid} cannot be judged: {reason}")]
    Inconclusive {
        /// Whom it was about.
        pid: u32,
        /// Why.
        reason: String,
    },
}

/// Lets everyone else go first on the processors, from now on: the calling thread, and those that it starts.
pub fn step_back() {
    // Whoever may not be nice is not; it only takes longer for others.
    let _ = rustix::process::setpriority_process(None, 19);
}

/// The identity of the calling process.
pub fn own_identity() -> Result<ProcessIdentity, ProcessError> {
    let pid = std::process::id();
    ProcessTable::host()?
        .identify(pid)?
        .ok_or(ProcessError::ForeignProc { root: PathBuf::from(HOST_PROC) })
}

/// The identity of a live process, or `None` when no such process lives (a zombie does not).
pub fn identify(pid: u32) -> Result<Option<ProcessIdentity>, ProcessError> {
    ProcessTable::host()?.identify(pid)
}

/// Whether a recorded process still lives. To ask about many, keep one [`ProcessTable`].
pub fn liveness(identity: &ProcessIdentity) -> Liveness {
    match ProcessTable::host() {
        Ok(table) => table.liveness(identity),
        Err(error) => Liveness::Inconclusive(error.to_string()),
    }
}

/// Whether a recorded process is alive but stopped (SIGSTOP, a debugger). For messages only.
pub fn is_stopped(identity: &ProcessIdentity) -> bool {
    is_alive_and(identity, Stat::is_stopped)
}

/// Whether a recorded process is on its way out: killed, or being torn down, which takes a while
/// for one with much memory. It still holds what it held, but will not for long. It is not dead
/// yet.
pub fn is_dying(identity: &ProcessIdentity) -> bool {
    is_alive_and(identity, Stat::is_dying)
}

fn is_alive_and(identity: &ProcessIdentity, holds: impl Fn(&Stat) -> bool) -> bool {
    let Ok(table) = ProcessTable::host() else { return false };
    table.liveness(identity) == Liveness::Alive
        && matches!(table.stat(identity.pid), Ok(Some(stat)) if holds(&stat))
}

const HOST_PROC: &str = "/proc";

/// A view of one proc file system, with the boot and the namespace that it belongs to.
#[derive(Debug, Clone)]
pub struct ProcessTable {
    root: PathBuf,
    boot_id: Uuid,
    pid_namespace: u64,
}

impl ProcessTable {
    /// The view of the host's `/proc`.
    pub fn host() -> Result<Self, ProcessError> {
        Self::at(Path::new(HOST_PROC))
    }

    /// The view of a proc file system mounted elsewhere. Fails unless it shows the caller's own pid
    /// namespace.
    pub fn at(root: &Path) -> Result<Self, ProcessError> {
        let own = std::process::id().to_string();
        let shown = std::fs::read_link(root.join("self"))
            .map_err(|source| BootError::Unreadable { path: root.join("self"), source })?;
        if shown != Path::new(&own) {
            return Err(ProcessError::ForeignProc { root: root.to_owned() });
        }
        Ok(Self {
            root: root.to_owned(),
            boot_id: boot::read_id(&root.join("sys/kernel/random/boot_id"))?,
            pid_namespace: boot::read_namespace(&root.join("self/ns/pid"))?,
        })
    }

    /// Whether a recorded process lived in another pid namespace than the caller's, where it cannot be looked at.
    pub fn is_foreign(&self, identity: &ProcessIdentity) -> bool {
        identity.boot_id == self.boot_id && identity.pid_namespace != self.pid_namespace
    }

    /// The identity of a live process, or `None` when no such process lives.
    pub fn identify(&self, pid: u32) -> Result<Option<ProcessIdentity>, ProcessError> {
        let stat = self.stat(pid)?;
        Ok(stat.filter(|stat| !stat.is_dead()).map(|stat| self.identity(pid, &stat)))
    }

    /// The identity of a child that was not reaped yet; it may be a zombie.
    pub(crate) fn identify_child(&self, pid: u32) -> Result<Option<ProcessIdentity>, ProcessError> {
        Ok(self.stat(pid)?.map(|stat| self.identity(pid, &stat)))
    }

    /// Whether a recorded process still lives.
    pub fn liveness(&self, identity: &ProcessIdentity) -> Liveness {
        if identity.boot_id != self.boot_id {
            return Liveness::Dead;
        }
        if identity.pid_namespace != self.pid_namespace {
            return Liveness::Inconclusive(format!(
                "pid {} belongs to pid namespace {}, this process lives in {}",
                identity.pid, identity.pid_namespace, self.pid_namespace
            ));
        }
        match self.stat(identity.pid) {
            Ok(Some(stat)) if stat.start_time == identity.start_time && !stat.is_dead() => {
                Liveness::Alive
            }
            Ok(_) => Liveness::Dead,
            Err(error) => Liveness::Inconclusive(error.to_string()),
        }
    }

    fn identity(&self, pid: u32, stat: &Stat) -> ProcessIdentity {
        ProcessIdentity {
            pid,
            start_time: stat.start_time,
            boot_id: self.boot_id,
            pid_namespace: self.pid_namespace,
        }
    }

    /// Reads the state of a process; `None` when the kernel knows no such pid.
    fn stat(&self, pid: u32) -> Result<Option<Stat>, ProcessError> {
        if let Some(stat) = self.read_stat(pid)? {
            return Ok(Some(stat));
        }
        // A /proc mounted with hidepid shows other users' processes as missing; the kernel does not
        // lie to pidfd_open.
        if !exists(pid)? {
            return Ok(None);
        }
        match self.read_stat(pid)? {
            Some(stat) => Ok(Some(stat)),
            None if !exists(pid)? => Ok(None),
            None => Err(ProcessError::Inconclusive {
                pid,
                reason: format!("it exists but {} hides it", self.root.display()),
            }),
        }
    }

    fn read_stat(&self, pid: u32) -> Result<Option<Stat>, ProcessError> {
        let path = self.root.join(format!("{pid}/stat"));
        match read_line(&path) {
            Ok(bytes) => Stat::parse(&bytes).map(Some).ok_or(ProcessError::Malformed { path }),
            Err(error) if vanished(&error) => Ok(None),
            Err(source) => Err(ProcessError::Unreadable { path, source }),
        }
    }
}

/// Reads a file of one line. The kernel makes the line anew for each call to read, and mostly gives it whole; a reader of
/// any file would ask for its length first, and read it in small pieces.
fn read_line(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    let mut line = Vec::with_capacity(STAT_LEN);
    let mut piece = [0; STAT_LEN];
    while !line.ends_with(b"\n") {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => line.extend_from_slice(piece.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

/// Longer than a line of `/proc/PID/stat` gets, bytes.
const STAT_LEN: usize = 1024;

/// Whether the kernel has a process, zombies included, under this pid.
fn exists(pid: u32) -> Result<bool, ProcessError> {
    let Some(raw) = raw_pid(pid) else { return Ok(false) };
    match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(_) => Ok(true),
        // EINVAL: the number belongs to a thread, not to a process (or is out of range).
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => Ok(false),
        Err(error) => Err(ProcessError::Pidfd { what: "open", pid, source: error.into() }),
    }
}

fn raw_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// Whether an error from below `/proc/<pid>` says that the process went away meanwhile.
fn vanished(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Ends this process by a signal that it had put off: at once, or when it blocks that signal no longer.
pub(crate) fn die_by(signal: nix::sys::signal::Signal) -> nix::Result<()> {
    nix::sys::signal::raise(signal)
}

#[cfg(test)]
pub(crate) mod tests;
