//! Waiting for a VMM to listen on its API socket.
//!
//! The wait is woken by the directory of the socket (inotify), not by a clock: a VMM binds its socket when it is
//! ready to talk. Between `bind` and `listen` there is an instant in which a dial is refused, so once the socket is
//! there the dial is repeated quickly. A floor of `FLOOR` bounds how late the death of the process is noticed.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use thiserror::Error;

use super::exit::log_ends;
use super::{ApiError, DialFailure, ExitReason, RuntimePaths, dial};

/// How often the process is looked at while nothing happens in the directory.
const FLOOR: Duration = Duration::from_millis(20);

/// How soon a dial is repeated when the socket is there and nobody listens yet.
const SOON: Duration = Duration::from_millis(1);

/// Tells whether the process that was launched may still be there.
pub type Liveness<'a> = dyn FnMut() -> bool + 'a;

/// Why a VMM did not become ready.
#[derive(Debug, Error)]
pub enum LaunchFailure {
    /// The process ended before it answered.
    #[error("the VMM exited before it was ready: {reason}{log}")]
    Exited {
        /// Why, as far as it left word.
        reason: ExitReason,
        /// The ends of its logs, as text to append.
        log: String,
    },
    /// The process lives and did not answer in time.
    #[error("the VMM did not answer on {socket} within {} ms; stop it and launch again{log}", waited.as_millis())]
    NotReady {
        /// The API socket.
        socket: PathBuf,
        /// How long it was waited for.
        waited: Duration,
        /// The ends of its logs, as text to append.
        log: String,
    },
    /// It answered, but not as a VMM should.
    #[error("the VMM answered wrongly: {error}{log}")]
    Misbehaved {
        /// What was wrong.
        error: ApiError,
        /// The ends of its logs, as text to append.
        log: String,
    },
    /// The run directory cannot be watched.
    #[error("cannot wait for {socket}: {errno}; check its directory")]
    Directory {
        /// The API socket.
        socket: PathBuf,
        /// What the kernel said.
        errno: nix::errno::Errno,
    },
}

impl LaunchFailure {
    /// The process is gone; its logs are read for the reason.
    #[must_use]
    pub fn exited(paths: &RuntimePaths, reason: ExitReason) -> Self {
        Self::Exited { reason, log: log_ends(paths) }
    }

    /// The deadline has passed.
    #[must_use]
    pub fn not_ready(paths: &RuntimePaths, waited: Duration) -> Self {
        Self::NotReady { socket: paths.api_socket.clone(), waited, log: log_ends(paths) }
    }

    /// The VMM spoke, and wrongly.
    #[must_use]
    pub fn misbehaved(paths: &RuntimePaths, error: ApiError) -> Self {
        Self::Misbehaved { error, log: log_ends(paths) }
    }
}

/// How the wait for a socket ended without a failure of the directory.
#[derive(Debug)]
pub(crate) enum Waited {
    /// Something listens.
    Connected(UnixStream),
    /// The process ended.
    Gone,
    /// The deadline passed.
    TimedOut,
}

/// Waits until something listens on `socket`, the process ends, or `deadline` passes.
pub(crate) fn wait_for_listener(
    socket: &Path,
    liveness: &mut Liveness<'_>,
    deadline: Instant,
) -> Result<Waited, nix::errno::Errno> {
    let watch = DirectoryWatch::of(socket)?;
    loop {
        // The order matters: a process that was alive before a dead dial may be about to listen; one that was gone
        // before it will not.
        let alive = liveness();
        let left = deadline.saturating_duration_since(Instant::now());
        match dial(socket, left.min(super::DIAL_TIMEOUT)) {
            Ok(stream) => return Ok(Waited::Connected(stream)),
            Err(_) if !alive => return Ok(Waited::Gone),
            Err(_) if left.is_zero() => return Ok(Waited::TimedOut),
            Err(DialFailure::Dead { errno: nix::errno::Errno::ENOENT, .. }) => {
                watch.wait(left.min(FLOOR))?;
            }
            Err(_) => watch.wait(left.min(SOON))?,
        }
    }
}

struct DirectoryWatch(Inotify);

impl DirectoryWatch {
    fn of(path: &Path) -> Result<Self, nix::errno::Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let directory = path.parent().unwrap_or_else(|| Path::new("/"));
        inotify.add_watch(directory, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO)?;
        Ok(Self(inotify))
    }

    fn wait(&self, limit: Duration) -> Result<(), nix::errno::Errno> {
        let mut descriptors = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut descriptors, poll_timeout(limit)) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Ok(_) => self.0.read_events().map(drop),
            Err(errno) => Err(errno),
        }
    }
}

/// A poll timeout that is never zero for a limit that is not, and never overflows.
pub(crate) fn poll_timeout(limit: Duration) -> PollTimeout {
    let millis = limit.as_micros().div_ceil(1000);
    PollTimeout::try_from(i32::try_from(millis).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_socket_that_comes_later_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (looked, look) = std::sync::mpsc::channel();
        let bind_at = path.clone();
        let server = std::thread::spawn(move || {
            look.recv().unwrap();
            let listener = UnixListener::bind(bind_at).unwrap();
            listener.accept().unwrap();
        });
        let mut liveness = || {
            let _ = looked.send(());
            true
        };
        let waited = wait_for_listener(&path, &mut liveness, far()).unwrap();
        assert!(matches!(waited, Waited::Connected(_)), "{waited:?}");
        server.join().unwrap();
    }

    #[test]
    fn the_death_of_the_process_ends_the_wait() {
        let directory = tempfile::tempdir().unwrap();
        let mut looks = 0;
        let mut liveness = || {
            looks += 1;
            looks < 3
        };
        let waited = wait_for_listener(&directory.path().join("s"), &mut liveness, far()).unwrap();
        assert!(matches!(waited, Waited::Gone), "{waited:?}");
    }

    #[test]
    fn the_deadline_ends_the_wait_for_a_socket_that_refuses() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let soon = Instant::now() + Duration::from_millis(30);
        let waited = wait_for_listener(&path, &mut || true, soon).unwrap();
        assert!(matches!(waited, Waited::TimedOut), "{waited:?}");
    }
}
