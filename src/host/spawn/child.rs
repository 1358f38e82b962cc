//! What a child does between fork and exec.
//!
//! Only the calling thread exists there, and locks that other threads held stay locked for ever:
//! nothing in this module may allocate, take a lock or call anything that is not async-signal-safe.
//! All calls are bare system calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::libc;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::LinkNameSpaceType;

/// A step of the preparation. The numbers travel through the report pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Step {
    Session = 1,
    ParentDeath = 2,
    Signals = 3,
    Limits = 4,
    OomScore = 5,
    Cgroup = 6,
    Descriptors = 7,
    Lock = 8,
    Network = 9,
}

impl Step {
    const ALL: [Self; 9] = [
        Self::Session,
        Self::ParentDeath,
        Self::Signals,
        Self::Limits,
        Self::OomScore,
        Self::Cgroup,
        Self::Descriptors,
        Self::Lock,
        Self::Network,
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|step| *step as u8 == number)
    }

    /// What was tried, for a sentence that begins with "cannot".
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Session => "start a session",
            Self::ParentDeath => "tie its life to ours",
            Self::Signals => "reset its signals",
            Self::Limits => "reset its resource limits",
            Self::OomScore => "reset its OOM score",
            Self::Cgroup => "enter its cgroup",
            Self::Descriptors => "close the other descriptors",
            Self::Lock => "inherit its lock",
            Self::Network => "enter its network namespace",
        }
    }
}

/// A failed step, as the parent reads it.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) step: Step,
    pub(super) error: io::Error,
}

/// The child's end of the report pipe: five bytes a failed step, its number and the error number.
#[derive(Debug)]
pub(super) struct Reporter {
    pipe: OwnedFd,
}

/// A report pipe: the end to read in the parent and the one to write in the child. Both are
/// close-on-exec.
pub(super) fn report_pipe() -> io::Result<(io::PipeReader, Reporter)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader, Reporter { pipe: OwnedFd::from(writer) }))
}

/// Takes a report apart; anything incomplete is passed over.
pub(super) fn parse_reports(bytes: &[u8]) -> Vec<Report> {
    let (reports, _) = bytes.as_chunks::<5>();
    let parse = |[number, error @ ..]: &[u8; 5]| {
        let error = io::Error::from_raw_os_error(i32::from_le_bytes(*error));
        Step::from_number(*number).map(|step| Report { step, error })
    };
    reports.iter().filter_map(parse).collect()
}

impl Reporter {
    /// Tells the parent about a failed step and goes on.
    pub(super) fn note(&self, step: Step, result: Result<(), Errno>) {
        let Err(error) = result else { return };
        let [a, b, c, d] = error.raw_os_error().to_le_bytes();
        // Nobody is left to tell if the parent cannot be told.
        let _ = rustix::io::write(&self.pipe, &[step as u8, a, b, c, d]);
    }

    /// Tells the parent about a failed step and gives up.
    pub(super) fn require(&self, step: Step, result: Result<(), Errno>) -> io::Result<()> {
        self.note(step, result);
        Ok(result?)
    }
}

/// Leaves the caller's session, terminal and process group.
pub(super) fn new_session() -> Result<(), Errno> {
    rustix::process::setsid().map(drop)
}

/// Has the kernel kill this process when the thread that forked it ends; fails if that has happened
/// already.
pub(super) fn die_with_parent(parent: Option<Pid>) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == parent { Ok(()) } else { Err(Errno::SRCH) }
}

/// Gives every signal its default action, and blocks none. Handlers go with the exec anyway, but
/// "ignored" and "blocked" are inherited.
pub(super) fn reset_signals() -> Result<(), Errno> {
    // All zeros: default action, no flags, empty mask; no kernel's structure is larger.
    let default_action = [0_u64; 8];
    let (old, mask_bytes) = (std::ptr::null_mut::<u64>(), size_of::<u64>());
    for number in 1..=64 {
        // SAFETY: the kernel reads the action, which outlives the call, and writes nothing. (The C
        // library's own function would pass over the signals that it keeps for itself.) It fails
        // for SIGKILL and SIGSTOP alone.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, number, default_action.as_ptr(), old, mask_bytes)
        };
    }
    nix::sys::signal::SigSet::empty()
        .thread_set_mask()
        .map_err(|error| Errno::from_raw_os_error(error as i32))
}

/// Undoes what the caller may have limited for itself: as much as its hard limits allow, no core
/// dumps (they would hold the guest's memory), and the usual stack.
pub(super) fn reset_limits() -> Result<(), Errno> {
    const STACK_BYTES: u64 = 8 << 20;
    const OPEN_FILES: u64 = 1 << 16;
    for resource in [
        Resource::Cpu,
        Resource::Fsize,
        Resource::Data,
        Resource::As,
        Resource::Nproc,
        Resource::Memlock,
        Resource::Locks,
    ] {
        raise_limit(resource)?;
    }
    set_soft_limit(Resource::Stack, STACK_BYTES)?;
    set_soft_limit(Resource::Nofile, OPEN_FILES)?;
    set_soft_limit(Resource::Core, 0)
}

/// Lifts a limit altogether if that is permitted, and as far as its hard limit otherwise.
fn raise_limit(resource: Resource) -> Result<(), Errno> {
    let maximum = rustix::process::getrlimit(resource).maximum;
    let unlimited = Rlimit { current: None, maximum: None };
    match rustix::process::setrlimit(resource, unlimited) {
        Err(Errno::PERM) => {
            rustix::process::setrlimit(resource, Rlimit { current: maximum, maximum })
        }
        done => done,
    }
}

fn set_soft_limit(resource: Resource, wanted: u64) -> Result<(), Errno> {
    let maximum = rustix::process::getrlimit(resource).maximum;
    let current = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
    rustix::process::setrlimit(resource, Rlimit { current, maximum })
}

/// Sets the OOM score adjustment to 0.
pub(super) fn reset_oom_score() -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty())?;
    rustix::io::write(&file, b"0").map(drop)
}

/// Moves this process into the cgroup whose `cgroup.procs` is open.
pub(super) fn enter_cgroup(processes: impl AsFd) -> Result<(), Errno> {
    rustix::io::write(processes, b"0").map(drop)
}

/// Moves this process, which has one thread, into a network namespace.
pub(super) fn enter_network(namespace: &OwnedFd) -> Result<(), Errno> {
    let network = Some(LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), network)
}

/// Marks every descriptor but the three streams close-on-exec. Closing them here would close the
/// pipe through which a failed exec is reported.
pub(super) fn close_others_on_exec() -> Result<(), Errno> {
    let (first, last, flags) = (3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: the call changes flags of descriptors and touches no memory.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Lets the exec'd program keep these descriptors.
pub(super) fn keep_across_exec(descriptors: &[OwnedFd]) -> Result<(), Errno> {
    descriptors.iter().try_for_each(|fd| rustix::io::fcntl_setfd(fd, FdFlags::empty()))
}

/// A copy of a descriptor that no stream of the child will take the place of.
pub(super) fn above_streams(fd: impl AsFd) -> io::Result<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, 3)?;
    debug_assert!(copy.as_raw_fd() >= 3);
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_pipe_and_garbage_is_passed_over() {
        use std::io::Read;
        let (mut reader, reporter) = report_pipe().unwrap();
        reporter.note(Step::OomScore, Err(Errno::ACCESS));
        reporter.note(Step::Session, Ok(()));
        assert!(reporter.require(Step::Lock, Err(Errno::BADF)).is_err());
        drop(reporter);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes.extend([99, 1, 0, 0, 0, 1, 2]);
        let reports = parse_reports(&bytes);
        let seen: Vec<_> = reports.iter().map(|r| (r.step, r.error.raw_os_error())).collect();
        assert_eq!(seen, [(Step::OomScore, Some(13)), (Step::Lock, Some(9))]);
    }

    #[test]
    fn every_step_has_its_number() {
        for step in Step::ALL {
            assert_eq!(Step::from_number(step as u8), Some(step));
        }
    }
}
