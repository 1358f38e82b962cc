//! The one place where the supervisor sleeps: an epoll over everything that may wake it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use super::DaemonError;

/// Who wakes the supervisor.
pub(super) type Token = u64;

/// A signal to stop.
pub(super) const SIGNAL: Token = 0;
/// A frame of the journal.
pub(super) const JOURNAL: Token = 1;
/// A thread of ours.
pub(super) const WAKER: Token = 2;
/// From here on: processes.
pub(super) const FIRST_PROCESS: Token = 16;

/// Events that one look may bring; the next look brings the rest.
const BATCH: usize = 1024;

/// An epoll.
pub(super) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(super) fn new() -> Result<Self, DaemonError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(DaemonError::system("make an epoll"))?;
        Ok(Self { epoll, events: Vec::with_capacity(BATCH) })
    }

    pub(super) fn add(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
    }

    /// Removes a descriptor; one that is closed already removed itself.
    pub(super) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Sleeps until `deadline` or until somebody wakes it; says who did.
    pub(super) fn wait(&mut self, deadline: Instant) -> Result<Vec<Token>, DaemonError> {
        self.events.clear();
        let left = timespec(deadline.saturating_duration_since(Instant::now()));
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(DaemonError::system("wait for events")(errno)),
        }
        Ok(self.events.iter().map(|event| event.data.u64()).collect())
    }
}

/// Wakes the supervisor from another thread.
#[derive(Debug, Clone)]
pub(super) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(super) fn new() -> Result<Self, DaemonError> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let fd = eventfd(0, flags).map_err(DaemonError::system("make an eventfd"))?;
        Ok(Self(Arc::new(fd)))
    }

    pub(super) fn wake(&self) {
        // It fails only when it was woken 2^64 times already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Takes note that it was woken.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Has the signals that stop a daemon arrive at a descriptor, and nowhere else.
pub(super) fn block_signals() -> Result<SignalFd, DaemonError> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block().map_err(DaemonError::system("block signals"))?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .map_err(DaemonError::system("receive signals"))
}

/// Each watched process takes a descriptor: as many as we may have.
pub(super) fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(errno) = raised {
        tracing::warn!("cannot raise the limit of open descriptors: {errno}");
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
