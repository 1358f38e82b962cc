//! `cocoon vm console`, at a terminal of its own.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

use crate::sandbox::Sandbox;

/// A console that is connected, with its terminal.
struct Connected {
    console: Child,
    guest: std::os::unix::net::UnixStream,
    keyboard: File,
    terminal: File,
}

impl Connected {
    /// Plays the guest of a VM that was never started: all that `vm console` needs is its socket.
    fn to_a_vm_of(sandbox: &Sandbox) -> Self {
        let id = sandbox.create("web");
        let socket = sandbox.root().join("run/qemu").join(id).join("console.sock");
        let listener = UnixListener::bind(socket).unwrap();
        let pty = openpty(None, None).unwrap();
        let (keyboard, terminal) = (File::from(pty.master), File::from(pty.slave));
        let mut command = sandbox.command(["vm", "console", "web"]);
        command.stdin(terminal.try_clone().unwrap()).stdout(terminal.try_clone().unwrap());
        let console = command.spawn().unwrap();
        let mut guest = listener.accept().unwrap().0;
        guest.write_all(b"login: ").unwrap();
        let mut connected = Self { console, guest, keyboard, terminal };
        // What the guest writes is shown, so the terminal is raw by now.
        connected.reads("login: ");
        assert!(!connected.echoes());
        connected
    }

    fn reads(&mut self, text: &str) {
        let mut read = vec![0; text.len()];
        self.keyboard.read_exact(&mut read).unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), text);
    }

    fn echoes(&self) -> bool {
        tcgetattr(&self.terminal).unwrap().local_flags.contains(LocalFlags::ECHO)
    }

    /// How the console ended; its terminal must be as it was.
    fn ended(&mut self) -> ExitStatus {
        let status = self.console.wait().unwrap();
        assert!(self.echoes(), "the terminal was left raw by {status}");
        status
    }
}

#[test]
fn a_console_that_is_told_to_end_leaves_the_terminal_as_it_was() {
    let sandbox = Sandbox::with_guest();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        let mut connected = Connected::to_a_vm_of(&sandbox);
        let pid = i32::try_from(connected.console.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
        assert_eq!(connected.ended().signal(), Some(signal as i32));
        assert_eq!(sandbox.cocoon(["vm", "rm", "web"]).code, 0);
    }
}

#[test]
fn a_console_passes_keys_and_ends_by_its_escape_or_with_the_guest() {
    let sandbox = Sandbox::with_guest();
    let mut connected = Connected::to_a_vm_of(&sandbox);
    connected.keyboard.write_all(b"root\x03").unwrap();
    let mut typed = [0; 5];
    connected.guest.read_exact(&mut typed).unwrap();
    assert_eq!(&typed, b"root\x03", "even what would be a signal");
    connected.keyboard.write_all(b"\x1d.").unwrap();
    assert_eq!(connected.ended().code(), Some(0));
    assert_eq!(sandbox.cocoon(["vm", "rm", "web"]).code, 0);
    let mut connected = Connected::to_a_vm_of(&sandbox);
    connected.guest.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(connected.ended().code(), Some(0));
}
