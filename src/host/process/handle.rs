//! Holding on to a process by its pidfd, and ending it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Liveness, ProcessError, ProcessIdentity, ProcessTable, raw_pid};

/// A process that cannot be mistaken for another one: signals and waits go through a descriptor,
/// not a number.
#[derive(Debug)]
pub struct ProcessHandle {
    identity: ProcessIdentity,
    pidfd: OwnedFd,
}

impl ProcessHandle {
    /// Opens a recorded process, or returns `None` when it is dead.
    ///
    /// The identity is verified before the descriptor is opened and again after: in between the pid
    /// could have changed hands. Fails when the process cannot be judged.
    pub fn open(identity: &ProcessIdentity) -> Result<Option<Self>, ProcessError> {
        let table = ProcessTable::host()?;
        if !is_alive(&table, identity)? {
            return Ok(None);
        }
        let Some(pid) = raw_pid(identity.pid) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(failure("open", identity, error)),
        };
        let same = is_alive(&table, identity)?;
        Ok(same.then_some(Self { identity: *identity, pidfd }))
    }

    /// Whose handle this is.
    pub fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    /// Sends a signal; `false` when the process had already exited.
    pub fn signal(&self, signal: Signal) -> Result<bool, ProcessError> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(failure("signal", &self.identity, error)),
        }
    }

    /// Waits until the process has exited or `deadline` has passed; `true` when it has exited. It
    /// need not have been reaped. Without a deadline it waits for as long as it takes.
    pub fn wait_exit(&self, deadline: Option<Instant>) -> Result<bool, ProcessError> {
        loop {
            let timeout = deadline.map(remaining);
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return Ok(false);
                }
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(failure("wait for", &self.identity, error)),
            }
        }
    }
}

impl AsFd for ProcessHandle {
    /// The pidfd; it becomes readable when the process exits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// The time left until an instant, in the form that `poll` takes; zero when it has passed.
pub(crate) fn remaining(deadline: Instant) -> Timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    }
}

/// How a process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminated {
    /// It exited within the grace that SIGTERM gave it.
    ByTerm,
    /// It had to be killed.
    ByKill,
    /// It was dead before anything was sent.
    AlreadyDead,
}

/// Why a process was not proven dead. Whatever it may be using must stay.
#[derive(Debug, thiserror::Error)]
pub enum TerminateError {
    /// It could not be judged, opened, signalled or waited for.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It outlived SIGKILL for as long as we waited.
    #[error(
        "process {pid} still exists {waited:?} after SIGKILL; the kernel holds it, try again later"
    )]
    Survived {
        /// Whom it was about.
        pid: u32,
        /// How long we waited after SIGKILL.
        waited: Duration,
    },
}

/// Ends a process and returns once it is proven dead: SIGTERM, up to `grace`, then SIGKILL and up
/// to `kill_wait`.
///
/// With a `grace` of zero it is killed at once. Fails closed: any doubt is an error, never a
/// success.
pub fn terminate(
    identity: &ProcessIdentity,
    grace: Duration,
    kill_wait: Duration,
) -> Result<Terminated, TerminateError> {
    let Some(process) = ProcessHandle::open(identity)? else {
        return Ok(Terminated::AlreadyDead);
    };
    if !grace.is_zero() {
        if !process.signal(Signal::TERM)? {
            return Ok(Terminated::AlreadyDead);
        }
        if process.wait_exit(Some(Instant::now() + grace))? {
            return Ok(Terminated::ByTerm);
        }
    }
    process.signal(Signal::KILL)?;
    if process.wait_exit(Some(Instant::now() + kill_wait))? {
        return Ok(Terminated::ByKill);
    }
    Err(TerminateError::Survived { pid: identity.pid, waited: kill_wait })
}

fn is_alive(table: &ProcessTable, identity: &ProcessIdentity) -> Result<bool, ProcessError> {
    match table.liveness(identity) {
        Liveness::Alive => Ok(true),
        Liveness::Dead => Ok(false),
        Liveness::Inconclusive(reason) => {
            Err(ProcessError::Inconclusive { pid: identity.pid, reason })
        }
    }
}

fn failure(what: &'static str, identity: &ProcessIdentity, error: Errno) -> ProcessError {
    ProcessError::Pidfd { what, pid: identity.pid, source: error.into() }
}
