//! QEMU behind the backend trait, driven over QMP.

mod command;
mod exit;
pub mod probe;
pub mod qmp;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::qmp::{Event, Qmp, QmpError};
use crate::host::serial;
use crate::host::vmm::ready::{Waited, wait_for_listener};
use crate::host::vmm::{
    ApiError, Backend, BackendKind, EventStream, ExitReason, LaunchError, LaunchFailure,
    LaunchSpec, Leftovers, Liveness, MissingBinary, RuntimePaths, VmmCommandLine, VmmEvent,
    VmmState, find_executable,
};

/// The binary that is looked for along `PATH` unless another one is configured.
pub const DEFAULT_BINARY: &str = "qemu-system-x86_64";

/// How much of the VMM log is read for the reason of an exit, in bytes.
const EXIT_TAIL: u64 = 64 << 10;

/// The QEMU backend.
#[derive(Clone, Debug)]
pub struct Qemu {
    binary: PathBuf,
}

impl Default for Qemu {
    fn default() -> Self {
        Self::new(DEFAULT_BINARY)
    }
}

impl Qemu {
    /// A backend that runs `binary`: a path, or a name to be looked for along `PATH`.
    #[must_use]
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self { binary: binary.into() }
    }
}

impl Backend for Qemu {
    fn kind(&self) -> BackendKind {
        BackendKind::Qemu
    }

    fn binary(&self) -> Result<PathBuf, MissingBinary> {
        find_executable(&self.binary).ok_or_else(|| MissingBinary {
            backend: BackendKind::Qemu,
            binary: self.binary.display().to_string(),
            remedy: "install it (Debian: apt-get install qemu-system-x86 qemu-utils) or configure its path".to_owned(),
        })
    }

    fn command(&self, spec: &LaunchSpec) -> Result<VmmCommandLine, LaunchError> {
        Ok(VmmCommandLine { program: self.binary()?, args: command::arguments(spec)? })
    }

    fn wait_ready(
        &self,
        paths: &RuntimePaths,
        liveness: &mut Liveness<'_>,
        timeout: Duration,
    ) -> Result<VmmState, LaunchFailure> {
        let deadline = Instant::now() + timeout;
        let waited = wait_for_listener(&paths.api_socket, liveness, deadline).map_err(|errno| {
            LaunchFailure::Directory { socket: paths.api_socket.clone(), errno }
        })?;
        let stream = match waited {
            Waited::Connected(stream) => stream,
            Waited::Gone => return Err(LaunchFailure::exited(paths, self.exit_reason(paths))),
            Waited::TimedOut => return Err(LaunchFailure::not_ready(paths, timeout)),
        };
        let answer =
            Qmp::handshake(stream, deadline).and_then(|mut qmp| query_status(&mut qmp, deadline));
        answer.map_err(|error| match error {
            QmpError::Closed { .. } => LaunchFailure::exited(paths, self.exit_reason(paths)),
            QmpError::TimedOut { .. } if !liveness() => {
                LaunchFailure::exited(paths, self.exit_reason(paths))
            }
            QmpError::TimedOut { .. } => LaunchFailure::not_ready(paths, timeout),
            error => LaunchFailure::misbehaved(paths, api_error(&paths.api_socket, error)),
        })
    }

    fn boot(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError> {
        call(paths, "cont", timeout).map(drop)
    }

    fn pause(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError> {
        call(paths, "stop", timeout).map(drop)
    }

    fn resume(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError> {
        call(paths, "cont", timeout).map(drop)
    }

    fn status(&self, paths: &RuntimePaths, timeout: Duration) -> Result<VmmState, ApiError> {
        converse(&paths.api_socket, timeout, query_status)
    }

    fn request_power_off(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError> {
        call(paths, "system_powerdown", timeout).map(drop)
    }

    fn quit(&self, paths: &RuntimePaths, timeout: Duration) -> Result<(), ApiError> {
        converse(&paths.api_socket, timeout, |qmp, deadline| {
            match qmp.execute("quit", None, deadline) {
                // QEMU may be gone before its answer is out; it hangs up on nothing else.
                Ok(_) | Err(QmpError::Closed { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn cancel_leftovers(
        &self,
        paths: &RuntimePaths,
        timeout: Duration,
    ) -> Result<Leftovers, ApiError> {
        converse(&paths.api_socket, timeout, |qmp, deadline| {
            Ok(Leftovers {
                migration: cancel_migration(qmp, deadline)?,
                block_jobs: cancel_block_jobs(qmp, deadline)?,
            })
        })
    }

    fn watch(
        &self,
        paths: &RuntimePaths,
        timeout: Duration,
    ) -> Result<Box<dyn EventStream>, ApiError> {
        let socket = paths.event_socket.clone();
        let qmp = Qmp::connect(&socket, Instant::now() + timeout)
            .map_err(|error| api_error(&socket, error))?;
        Ok(Box::new(Events { qmp, socket }))
    }

    fn exit_reason(&self, paths: &RuntimePaths) -> ExitReason {
        serial::tail(&paths.vmm_log, EXIT_TAIL)
            .map_or(ExitReason::Unknown, |log| exit::reason(&log))
    }
}

fn call(paths: &RuntimePaths, command: &str, timeout: Duration) -> Result<Value, ApiError> {
    converse(&paths.api_socket, timeout, |qmp, deadline| qmp.execute(command, None, deadline))
}

/// One short conversation: QEMU serves a client at a time, so none stays longer than its question.
fn converse<T>(
    socket: &Path,
    timeout: Duration,
    conversation: impl FnOnce(&mut Qmp, Instant) -> Result<T, QmpError>,
) -> Result<T, ApiError> {
    let deadline = Instant::now() + timeout;
    Qmp::connect(socket, deadline)
        .and_then(|mut qmp| conversation(&mut qmp, deadline))
        .map_err(|error| api_error(socket, error))
}

/// Only a dial proves death. A connection that ends may mean an exit that is under way, which the process will show.
fn api_error(socket: &Path, error: QmpError) -> ApiError {
    match error {
        QmpError::Dial(failure @ crate::host::vmm::DialFailure::Dead { .. }) => {
            ApiError::Dead(failure)
        }
        QmpError::Refused { command, description, .. } => {
            ApiError::Refused { command, description }
        }
        error => ApiError::Inconclusive { socket: socket.to_owned(), reason: error.to_string() },
    }
}

fn query_status(qmp: &mut Qmp, deadline: Instant) -> Result<VmmState, QmpError> {
    let answer = qmp.execute("query-status", None, deadline)?;
    Ok(state(answer.get("status").and_then(Value::as_str).unwrap_or("no status")))
}

fn state(word: &str) -> VmmState {
    match word {
        "prelaunch" => VmmState::Prelaunch,
        "running" => VmmState::Running,
        "paused" | "postmigrate" | "debug" => VmmState::Paused,
        "inmigrate" | "restore-vm" => VmmState::Restoring,
        "finish-migrate" | "save-vm" => VmmState::Saving,
        "suspended" => VmmState::Suspended,
        "shutdown" => VmmState::ShutDown,
        "internal-error" | "io-error" | "guest-panicked" | "watchdog" => {
            VmmState::Failed(word.to_owned())
        }
        other => VmmState::Unknown(other.to_owned()),
    }
}

fn cancel_migration(qmp: &mut Qmp, deadline: Instant) -> Result<bool, QmpError> {
    let answer = qmp.execute("query-migrate", None, deadline)?;
    let ended = ["none", "completed", "failed", "cancelled"];
    let active =
        answer.get("status").and_then(Value::as_str).is_some_and(|status| !ended.contains(&status));
    if active {
        qmp.execute("migrate_cancel", None, deadline)?;
    }
    Ok(active)
}

fn cancel_block_jobs(qmp: &mut Qmp, deadline: Instant) -> Result<Vec<String>, QmpError> {
    let answer = qmp.execute("query-block-jobs", None, deadline)?;
    let devices =
        answer.as_array().into_iter().flatten().filter_map(|job| job.get("device")?.as_str());
    let mut cancelled = Vec::new();
    for device in devices {
        let arguments = json!({ "device": device, "force": true });
        match qmp.execute("block-job-cancel", Some(arguments), deadline) {
            Ok(_) => cancelled.push(device.to_owned()),
            // It ended between the two questions.
            Err(QmpError::Refused { class, .. }) if class == "DeviceNotActive" => {}
            Err(error) => return Err(error),
        }
    }
    Ok(cancelled)
}

#[derive(Debug)]
struct Events {
    qmp: Qmp,
    socket: PathBuf,
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.qmp.as_fd()
    }
}

impl EventStream for Events {
    fn next(&mut self, deadline: Instant) -> Result<Option<VmmEvent>, ApiError> {
        match self.qmp.next_event(deadline) {
            Ok(event) => Ok(event.map(|event| translate(&event))),
            Err(QmpError::Closed { .. }) => Ok(Some(VmmEvent::HungUp)),
            Err(error) => Err(api_error(&self.socket, error)),
        }
    }
}

fn translate(event: &Event) -> VmmEvent {
    let word = |key| event.data.get(key).and_then(Value::as_str).unwrap_or_default();
    match event.name.as_str() {
        "STOP" => VmmEvent::Paused,
        "RESUME" => VmmEvent::Resumed,
        "POWERDOWN" => VmmEvent::PowerButton,
        "SHUTDOWN" => VmmEvent::ShuttingDown(exit::from_event(word("reason"))),
        "RESET" => VmmEvent::Reset,
        "GUEST_PANICKED" => VmmEvent::GuestPanicked,
        "BLOCK_IO_ERROR" => {
            let (node, operation, reason) = (word("node-name"), word("operation"), word("reason"));
            VmmEvent::DiskError(format!("{operation} on {node}: {reason}"))
        }
        other => VmmEvent::Other(other.to_owned()),
    }
}
