//! Dialling a unix socket, which is the last word on whether a VMM listens.
//!
//! Connected means alive. No socket, or nobody behind it, means dead. Everything else (no permission, a full queue,
//! a path that is no socket) is inconclusive, and an inconclusive dial is never taken for an exit.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt::SendTimeout,
};
use nix::sys::time::TimeVal;
use thiserror::Error;

/// Why a dial did not connect.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DialFailure {
    /// Nothing listens: the socket is not there, or its owner is gone.
    #[error("nothing listens on {socket} ({errno})")]
    Dead {
        /// The socket.
        socket: PathBuf,
        /// `ENOENT` or `ECONNREFUSED`.
        errno: Errno,
    },
    /// Whether something listens cannot be told.
    #[error("cannot tell whether anything listens on {socket} ({errno}); try again")]
    Inconclusive {
        /// The socket.
        socket: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
}

/// What a dial tells of the VMM behind a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dial {
    /// Something listens.
    Alive,
    /// Nothing does.
    Dead,
    /// It cannot be told, and why.
    Inconclusive(String),
}

/// Connects to the unix socket at `path`, waiting at most `timeout` for its queue to have room.
pub fn dial(path: &Path, timeout: Duration) -> Result<UnixStream, DialFailure> {
    connect_within(path, timeout).map(UnixStream::from).map_err(|errno| {
        let socket = path.to_owned();
        match errno {
            Errno::ENOENT | Errno::ECONNREFUSED => DialFailure::Dead { socket, errno },
            _ => DialFailure::Inconclusive { socket, errno },
        }
    })
}

/// Dials and hangs up.
#[must_use]
pub fn probe(path: &Path, timeout: Duration) -> Dial {
    match dial(path, timeout) {
        Ok(_) => Dial::Alive,
        Err(DialFailure::Dead { .. }) => Dial::Dead,
        Err(failure @ DialFailure::Inconclusive { .. }) => Dial::Inconclusive(failure.to_string()),
    }
}

fn connect_within(path: &Path, timeout: Duration) -> Result<OwnedFd, Errno> {
    let address = UnixAddr::new(path)?;
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // A connect to a unix socket waits only for room in the listener's queue, and for as long as a send may wait.
    // Zero would mean for ever.
    let timeout = timeout.max(Duration::from_millis(1));
    let micros = i64::from(timeout.subsec_micros());
    let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    setsockopt(&fd, SendTimeout, &TimeVal::new(seconds, micros))?;
    loop {
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) => return Ok(fd),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::host::vmm::DIAL_TIMEOUT;

    #[test]
    fn a_listener_is_alive_and_its_left_socket_is_dead() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        assert_eq!(probe(&path, DIAL_TIMEOUT), Dial::Dead);
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(probe(&path, DIAL_TIMEOUT), Dial::Alive);
        drop(listener);
        assert!(path.exists());
        assert_eq!(probe(&path, DIAL_TIMEOUT), Dial::Dead);
    }

    #[test]
    fn a_full_queue_is_inconclusive_not_dead() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let fd =
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        nix::sys::socket::bind(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        nix::sys::socket::listen(&fd, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let mut held = Vec::new();
        let failure = loop {
            match dial(&path, Duration::from_millis(20)) {
                Ok(stream) => held.push(stream),
                Err(failure) => break failure,
            }
            assert!(held.len() < 64, "the queue never filled");
        };
        assert_eq!(failure, DialFailure::Inconclusive { socket: path, errno: Errno::EAGAIN });
    }

    #[test]
    fn what_is_no_socket_is_never_dead() {
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("x".repeat(120));
        assert!(matches!(probe(&long, DIAL_TIMEOUT), Dial::Inconclusive(_)));
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let below_a_file = file.join("s");
        assert!(matches!(probe(&below_a_file, DIAL_TIMEOUT), Dial::Inconclusive(_)));
    }
}
