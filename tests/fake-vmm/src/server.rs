//! The process: one thread, one poll loop.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;

use crate::image_lock;
use crate::machine::{Answer, Machine, Output};
use crate::monitor::{Monitor, bind};
use crate::options::Options;

/// Runs until the guest or the host ends it; the exit code.
pub fn run(options: &Options) -> Result<u8, String> {
    let signals = signals()?;
    for path in &options.payload {
        File::open(path)
            .map_err(|error| format!("could not open kernel file '{}': {error}", path.display()))?;
    }
    let disks = options.disks.iter().map(|(path, read_only)| image_lock::open(path, *read_only));
    let disks: Vec<File> = disks.collect::<Result<_, _>>()?;
    if options.script.crashes_at_start {
        return Err("crashing at start, as the script says".to_owned());
    }
    let console = Console::open(&options.console_socket, &options.console_log)?;
    let monitors =
        options.monitors.iter().map(|path| Monitor::bind(path)).collect::<Result<_, _>>()?;
    let mut vmm = Vmm {
        machine: Machine::new(options.script.clone()),
        monitors,
        console,
        signals,
        mute: options.script.hangs,
        _disks: disks,
    };
    if !options.held {
        let mut out = Vec::new();
        vmm.machine.command("cont", &json!({}), Instant::now(), &mut out);
        if let Some(code) = vmm.put_out(out) {
            return Ok(code);
        }
    }
    loop {
        if let Some(code) = vmm.turn()? {
            return Ok(code);
        }
    }
}

fn signals() -> Result<SignalFd, String> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block().map_err(|errno| format!("cannot block signals: {errno}"))?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|errno| format!("cannot wait for signals: {errno}"))
}

struct Vmm {
    machine: Machine,
    monitors: Vec<Monitor>,
    console: Console,
    signals: SignalFd,
    mute: bool,
    /// Open for their locks.
    _disks: Vec<File>,
}

impl Vmm {
    /// Waits for something, handles it; the exit code if that was the end.
    fn turn(&mut self) -> Result<Option<u8>, String> {
        let ready = self.wait()?;
        let mut out = Vec::new();
        if ready.signal
            && let Ok(Some(info)) = self.signals.read_signal()
        {
            let name =
                std::fs::read_to_string(format!("/proc/{}/comm", info.ssi_pid)).unwrap_or_default();
            let (signal, pid) = (info.ssi_signo, info.ssi_pid);
            eprintln!(
                "qemu-system-x86_64: terminating on signal {signal} from pid {pid} ({})",
                name.trim_end()
            );
            self.machine.signal(&mut out);
        }
        if ready.console {
            self.console.receive();
        }
        for index in ready.monitors {
            if let Some(code) = self.serve(index) {
                return Ok(Some(code));
            }
        }
        self.machine.tick(Instant::now(), &mut out);
        Ok(self.put_out(out))
    }

    fn wait(&self) -> Result<Ready, String> {
        let mut polled = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.console.descriptor(), PollFlags::POLLIN),
        ];
        let monitors = if self.mute { &[] } else { self.monitors.as_slice() };
        polled.extend(
            monitors.iter().map(|monitor| PollFd::new(monitor.descriptor(), PollFlags::POLLIN)),
        );
        let timeout = self.machine.next_tick().map_or(PollTimeout::NONE, until);
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(format!("cannot wait: {errno}")),
        }
        let any = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        let ready: Vec<bool> = polled.iter().map(any).collect();
        let at = |index: usize| ready.get(index).copied().unwrap_or(false);
        let monitors = (0..monitors.len()).filter(|index| at(index + 2)).collect();
        Ok(Ready { signal: at(0), console: at(1), monitors })
    }

    /// What a command causes is told before the command is answered, as QEMU does.
    fn serve(&mut self, index: usize) -> Option<u8> {
        for command in self.monitors.get_mut(index).map(Monitor::receive).unwrap_or_default() {
            let mut out = Vec::new();
            let answer =
                self.machine.command(&command.name, &command.arguments, Instant::now(), &mut out);
            let exit = self.put_out(out);
            let monitor = self.monitors.get_mut(index)?;
            match answer {
                Answer::Return(value) => monitor.answer(&command, &json!({ "return": value })),
                Answer::Error(class, words) => monitor.refuse(&command, class, &words),
                Answer::Silence => {}
            }
            if exit.is_some() {
                return exit;
            }
        }
        None
    }

    fn put_out(&mut self, out: Vec<Output>) -> Option<u8> {
        for output in out {
            match output {
                Output::Event(name, data) => {
                    self.monitors.iter_mut().for_each(|monitor| monitor.tell(name, &data));
                }
                Output::Console(text) => self.console.write(text.as_bytes()),
                Output::Trace(text) => trace(&text),
                Output::Exit => {
                    self.remove_sockets();
                    return Some(0);
                }
                Output::Die => die(),
            }
        }
        None
    }

    fn remove_sockets(&self) {
        for path in self.monitors.iter().map(Monitor::path).chain([self.console.path.as_path()]) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Gone as by SIGKILL: sockets stay, nobody is told. The signal comes before `kill` returns.
fn die() {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), Signal::SIGKILL);
}

struct Ready {
    signal: bool,
    console: bool,
    monitors: Vec<usize>,
}

fn until(at: Instant) -> PollTimeout {
    let left = at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let millis = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}

/// A line as `-msg timestamp=on` writes it for trace points.
fn trace(text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    eprintln!("{}@{}.{:06}:{text}", std::process::id(), now.as_secs(), now.subsec_micros());
}

/// The guest's serial port: a log, and a socket for one client that gets everything and is echoed.
struct Console {
    path: std::path::PathBuf,
    listener: UnixListener,
    client: Option<UnixStream>,
    log: File,
}

impl Console {
    fn open(socket: &Path, log: &Path) -> Result<Self, String> {
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .map_err(|error| format!("Unable to open logfile {}: {error}", log.display()))?;
        Ok(Self { path: socket.to_owned(), listener: bind(socket)?, client: None, log })
    }

    fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        match &self.client {
            Some(client) => client.as_fd(),
            None => self.listener.as_fd(),
        }
    }

    fn receive(&mut self) {
        let Some(client) = &mut self.client else {
            self.client = self.listener.accept().ok().map(|(stream, _)| stream);
            return;
        };
        let mut block = [0_u8; 4096];
        match client.read(&mut block) {
            Ok(count) if count > 0 => self.echo(block.get(..count).unwrap_or_default()),
            _ => self.client = None,
        }
    }

    /// As a terminal of the guest would.
    fn echo(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).replace('\n', "\r\n");
        self.write(text.as_bytes());
    }

    fn write(&mut self, bytes: &[u8]) {
        let _ = self.log.write_all(bytes);
        if let Some(client) = &mut self.client
            && client.write_all(bytes).is_err()
        {
            self.client = None;
        }
    }
}
