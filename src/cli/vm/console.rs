//! `cocoon vm console`.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use crate::cli::{CliError, Global, output};
use crate::engine::EngineError;
use crate::host::process;
use crate::host::vmm::RuntimePaths;

#[derive(Debug, Args)]
pub(in crate::cli) struct ConsoleArgs {
    /// Name, id or beginning of an id
    vm: String,
    /// The character that, followed by a full stop, ends the connection
    #[arg(long, default_value = "^]", value_parser = escape)]
    escape_char: u8,
}

/// Reads an escape character: one byte, or `^` and a letter for a control character.
fn escape(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [one] => Ok(*one),
        [b'^', control @ b'@'..=b'_'] => Ok(control - b'@'),
        [b'^', control @ b'a'..=b'z'] => Ok(control - b'`'),
        _ => Err(format!("`{text}` is not a character; write one, or ^] for a control character")),
    }
}

pub(super) fn run(args: &ConsoleArgs, global: Global) -> Result<(), CliError> {
    let (engine, _) = global.reading_engine()?;
    let id = engine.resolve(&args.vm)?;
    let record = engine
        .vm(id)?
        .ok_or_else(|| EngineError::NotFound { what: "vm", reference: args.vm.clone() })?;
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(CliError::Failed(
            "the console needs a terminal; `cocoon vm logs --console` shows what the guest wrote"
                .to_owned(),
        ));
    }
    let paths = RuntimePaths::new(Path::new(&record.spec.run_dir), Path::new(&record.spec.log_dir))
        .map_err(|error| CliError::Failed(error.to_string()))?;
    let socket = UnixStream::connect(&paths.console_socket).map_err(|error| {
        CliError::Failed(format!(
            "vm {id}: cannot connect to its console ({error}); is it running? `cocoon vm inspect {id}` says"
        ))
    })?;
    output::say(&format!(
        "Connected to {}. {} and a full stop end the connection.",
        record.core.name,
        shown(args.escape_char)
    ));
    let signals = Deadly::hold()?;
    let raw = RawTerminal::enter()?;
    let ended = relay(&socket, args.escape_char, &signals);
    drop(raw);
    output::say("");
    signals.release()?;
    ended
}

/// Signals that would end this process with the terminal left raw: they end it once the terminal is as it was.
struct Deadly {
    before: SigSet,
    arrived: SignalFd,
}

impl Deadly {
    /// From now on they arrive at a descriptor. No other thread of this process may be there to take them.
    fn hold() -> Result<Self, CliError> {
        let mut deadly = SigSet::empty();
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
            deadly.add(signal);
        }
        let mut blocked = deadly;
        // A terminal that is somebody else's by then is put right all the same.
        blocked.add(Signal::SIGTTOU);
        let before = SigSet::thread_get_mask().map_err(no_signals)?;
        blocked.thread_block().map_err(no_signals)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let arrived = SignalFd::with_flags(&deadly, flags).map_err(no_signals)?;
        Ok(Self { before, arrived })
    }

    /// Lets signals do what they do; the one that has arrived, if one has, ends this process here.
    fn release(self) -> Result<(), CliError> {
        if let Some(arrived) = self.arrived.read_signal().map_err(no_signals)?
            && let Ok(number) = i32::try_from(arrived.ssi_signo)
        {
            process::die_by(Signal::try_from(number).map_err(no_signals)?).map_err(no_signals)?;
        }
        self.before.thread_set_mask().map_err(no_signals)
    }
}

fn no_signals(errno: nix::Error) -> CliError {
    CliError::Failed(format!("cannot wait for signals: {errno}"))
}

fn shown(escape: u8) -> String {
    if escape < 32 {
        format!("^{}", char::from(escape + b'@'))
    } else {
        char::from(escape).to_string()
    }
}

/// The terminal without echo and lines, until dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Result<Self, CliError> {
        let failed =
            |errno: nix::Error| CliError::Failed(format!("cannot change the terminal: {errno}"));
        let before = tcgetattr(io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).map_err(failed)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing better can be done for a terminal that refuses.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}

/// Copies both ways until either side ends, the escape is typed, or a signal says so.
fn relay(mut socket: &UnixStream, escape: u8, signals: &Deadly) -> Result<(), CliError> {
    let failed =
        |error: io::Error| CliError::Failed(format!("the console connection broke: {error}"));
    let (stdin, mut escaped, mut buffer) = (io::stdin(), false, [0_u8; 4096]);
    loop {
        let mut ends = [
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.arrived.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ends, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => continue,
            Err(errno) => return Err(failed(errno.into())),
        }
        let ready = |end: &PollFd<'_>| end.revents().is_some_and(|events| !events.is_empty());
        let [typed, written, told] = [ready(&ends[0]), ready(&ends[1]), ready(&ends[2])];
        if told {
            return Ok(());
        }
        if written {
            let read = socket.read(&mut buffer).map_err(failed)?;
            if read == 0 {
                return Ok(());
            }
            output::write(buffer.get(..read).unwrap_or_default())?;
        }
        if typed {
            let read = nix::unistd::read(stdin.as_fd(), &mut buffer)
                .map_err(|errno| failed(errno.into()))?;
            let typed = buffer.get(..read).unwrap_or_default();
            let (send, over) = unescape(typed, escape, &mut escaped);
            socket.write_all(&send).map_err(failed)?;
            if over || read == 0 {
                return Ok(());
            }
        }
    }
}

/// What of the typed bytes goes to the guest, and whether the connection is over.
fn unescape(typed: &[u8], escape: u8, escaped: &mut bool) -> (Vec<u8>, bool) {
    let mut send = Vec::with_capacity(typed.len());
    for &byte in typed {
        match (std::mem::take(escaped), byte) {
            (true, b'.') => return (send, true),
            (true, byte) if byte == escape => send.push(byte),
            (true, byte) => send.extend([escape, byte]),
            (false, byte) if byte == escape => *escaped = true,
            (false, byte) => send.push(byte),
        }
    }
    (send, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        assert_eq!(escape("^]"), Ok(0x1d));
        assert_eq!(escape("^a"), Ok(1));
        assert_eq!(escape("~"), Ok(b'~'));
        assert!(escape("^^^").is_err());
        let mut escaped = false;
        assert_eq!(unescape(b"ls\x1d", 0x1d, &mut escaped), (b"ls".to_vec(), false));
        assert_eq!(unescape(b".rest", 0x1d, &mut escaped), (Vec::new(), true));
        let mut escaped = false;
        assert_eq!(
            unescape(b"\x1d\x1dx\x1dy", 0x1d, &mut escaped),
            (b"\x1dx\x1dy".to_vec(), false)
        );
    }
}
