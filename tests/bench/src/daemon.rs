//! A daemon of a fleet's root.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Outcome;
use crate::fleet::Fleet;

/// Longer than anything takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// It is killed when this is dropped.
pub(crate) struct Daemon(Child);

impl Daemon {
    /// Starts it and waits until it supervises.
    pub(crate) fn start(fleet: &Fleet) -> Outcome<Self> {
        let mut command = fleet.command();
        command.args(["daemon", "--no-api", "--reconcile-interval", "1h"]).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let said = BufReader::new(child.stderr.take().ok_or("no stderr")?);
        let (ready, is_ready) = std::sync::mpsc::channel();
        // It is read to its end, so that the daemon never waits for a reader.
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                if line.contains("supervising") && ready.send(()).is_err() {
                    return;
                }
            }
        });
        let daemon = Self(child);
        is_ready.recv_timeout(LONG)?;
        Ok(daemon)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn stop(&mut self) -> Outcome {
        kill(Pid::from_raw(i32::try_from(self.0.id())?), Signal::SIGTERM)?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
