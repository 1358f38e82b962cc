//! A child process whose lines are awaited, and which never outlives its test.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than anything takes on a busy machine; reached only by a failure.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Lines as they come.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    pub(crate) fn of(source: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(source).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(receiver)
    }

    /// The next line.
    pub(crate) fn next(&self) -> String {
        self.0.recv_timeout(LONG).unwrap_or_else(|error| panic!("no line came: {error}"))
    }

    /// Lines up to the first that has this text.
    pub(crate) fn until(&self, text: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let line = match self.0.recv_timeout(LONG) {
                Ok(line) => line,
                Err(error) => panic!("`{text}` did not come: {error}; what came: {lines:#?}"),
            };
            let found = line.contains(text);
            lines.push(line);
            if found {
                return lines;
            }
        }
    }
}

/// A child.
pub(crate) struct Running {
    child: Child,
    pub(crate) out: Lines,
    pub(crate) err: Lines,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = Lines::of(child.stdout.take().unwrap());
        let err = Lines::of(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}
