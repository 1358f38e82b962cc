//! Telling the service manager: `READY=1`, `WATCHDOG=1` and the like, datagrams to `$NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
    next: Instant,
}

impl Notifier {
    /// The one that the environment names.
    pub(super) fn from_environment() -> Self {
        let to = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty());
        let to = to.and_then(|socket| {
            connect(&socket)
                .map_err(|error| tracing::warn!("cannot reach the service manager: {error}"))
                .ok()
        });
        let of_us = match std::env::var("WATCHDOG_PID") {
            Ok(pid) => pid == std::process::id().to_string(),
            Err(_) => true,
        };
        let micros = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        // Three signs of life in the time that is given.
        let watchdog =
            micros.filter(|_| of_us).map(|micros: u64| Duration::from_micros(micros / 3));
        Self { to, watchdog, next: Instant::now() }
    }

    /// Tells lines `KEY=value`.
    pub(super) fn tell(&self, lines: &str) {
        let Some((socket, address)) = &self.to else { return };
        if let Err(error) = socket.send_to_addr(lines.as_bytes(), address) {
            tracing::debug!("cannot tell the service manager: {error}");
        }
    }

    /// Gives a sign of life if it is due; says when the next one is.
    pub(super) fn watchdog(&mut self, now: Instant) -> Option<Instant> {
        let every = self.watchdog?;
        if now >= self.next {
            self.tell("WATCHDOG=1");
            self.next = now + every;
        }
        Some(self.next)
    }
}

fn connect(socket: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    Ok((UnixDatagram::unbound()?, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_sockets_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("@cocoon-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        let receivers = [
            (path.as_os_str().to_owned(), UnixDatagram::bind(&path).unwrap()),
            (name.into(), UnixDatagram::bind_addr(&abstract_address).unwrap()),
        ];
        for (socket, receiver) in receivers {
            let to = Some(connect(&socket).unwrap());
            let watchdog = Some(Duration::from_secs(1));
            let mut notifier = Notifier { to, watchdog, next: Instant::now() };
            notifier.tell("READY=1");
            let mut buffer = [0; 64];
            let len = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"READY=1");
            let next = notifier.watchdog(Instant::now()).unwrap();
            let len = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"WATCHDOG=1");
            assert_eq!(notifier.watchdog(Instant::now()), Some(next), "none before its time");
        }
    }
}
