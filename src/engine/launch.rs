//! The effects of a launch and of its end.

use std::path::Path;
use std::time::{Duration, Instant};

use cocoon_model::command::VmmSeen;
use cocoon_model::id::LaunchToken;
use cocoon_model::record::{self, StopMode, VmRecord};
use cocoon_model::step::Outcome;

use super::Engine;
use super::drive::Haste;
use super::effect::perform;
use super::observe::{host_identity, journal_identity};
use crate::host::boot;
use crate::host::lock::{Observed, OpsGuard};
use crate::host::process::{self, Liveness, ProcessHandle, ProcessIdentity};
use crate::host::serial;
use crate::host::spawn::{Placement, Scope, VmmCommand, spawn_vmm};
use crate::host::vmm::{self, ApiError, CALL_TIMEOUT, LaunchSpec, RuntimePaths, VmmState};

/// How long a killed VMM may take to be gone, with all that it held.
const DEATH_PATIENCE: Duration = Duration::from_secs(5);

type Told<T> = Result<T, String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(super) fn paths(record: &VmRecord) -> Told<RuntimePaths> {
    RuntimePaths::new(Path::new(&record.spec.run_dir), Path::new(&record.spec.log_dir))
        .map_err(text)
}

impl Engine {
    /// Chooses the mark and the accelerator of the next launch.
    pub(super) fn choose_launch(&self) -> Outcome {
        Outcome::Chosen(LaunchToken(super::random::u64()), self.accelerator())
    }

    pub(super) fn spawn_vmm(&self, _guard: &OpsGuard, record: &VmRecord) -> Outcome {
        match self.try_spawn(record) {
            Ok(identity) => Outcome::Spawned(journal_identity(&identity)),
            Err(reason) => Outcome::Failed(reason),
        }
    }

    fn try_spawn(&self, record: &VmRecord) -> Told<ProcessIdentity> {
        let paths = paths(record)?;
        let command = self.backend().command(&launch_spec(record, paths.clone())).map_err(text)?;
        let lock = self.locks().vmm_for_launch(record.core.id.as_str()).map_err(text)?;
        perform("vmm.clear-sockets", || clear_sockets(&paths))?;
        perform("vmm.begin-logs", || begin_logs(&paths))?;
        let vmm = VmmCommand {
            program: command.program,
            args: command.args,
            env: Vec::new(),
            log_file: paths.vmm_log,
            umask: 0o077,
            network_namespace: None,
            scope: Some(Scope::of_vm(record.core.id.as_str())),
        };
        let spawned = perform("vmm.spawn", || spawn_vmm(&vmm, lock)).map_err(text)?;
        if let Placement::Inherited(reason) = spawned.placement() {
            tracing::info!(
                "the VMM shares the control group of this command, and dies with it: {reason}"
            );
        }
        Ok(*spawned.identity())
    }

    pub(super) fn await_vmm(&self, guard: &OpsGuard, record: &VmRecord) -> Outcome {
        let Some(identity) = record.core.launch.and_then(|launch| launch.identity) else {
            return Outcome::Failed("its VMM was never spawned".to_owned());
        };
        match self.try_await(record, &identity) {
            Ok(()) => Outcome::Up(identity),
            Err(reason) => self.give_up(guard, record, reason),
        }
    }

    fn try_await(&self, record: &VmRecord, identity: &record::ProcessIdentity) -> Told<()> {
        let paths = paths(record)?;
        let mut lives = || !matches!(self.liveness(identity), Liveness::Dead);
        let wait = self.settings().socket_wait;
        self.backend().wait_ready(&paths, &mut lives, wait).map_err(|failure| {
            let hint = low_memory_hint(record.spec.config.memory);
            format!("{failure}{hint}")
        })?;
        perform("vmm.boot", || self.backend().boot(&paths, CALL_TIMEOUT)).map_err(text)
    }

    /// Ends the VMM of a launch that failed; only a VMM that is proven dead makes the failure final.
    fn give_up(&self, guard: &OpsGuard, record: &VmRecord, reason: String) -> Outcome {
        match self.kill(guard, record, Duration::ZERO) {
            Ok(()) => Outcome::Failed(reason),
            Err(kept) => {
                Outcome::Unproven(format!("{reason}; and its VMM could not be ended: {kept}"))
            }
        }
    }

    /// The operation that launched it is dead: a guest that runs is kept, one that does not is ended. A VMM that does not
    /// answer may run one, and is ended by force only.
    pub(super) fn settle_launch(
        &self,
        guard: &OpsGuard,
        record: &VmRecord,
        haste: Haste,
    ) -> Outcome {
        let interrupted = || "the command that was starting it died".to_owned();
        let identity = match self.see_vmm(guard, record) {
            Err(error) => return Outcome::Unproven(error.to_string()),
            Ok(VmmSeen::Inconclusive(reason)) => return Outcome::Unproven(reason),
            Ok(VmmSeen::Dead) => return Outcome::Failed(interrupted()),
            Ok(VmmSeen::Alive(identity)) => identity,
        };
        match self.status(record) {
            Ok(state) if state.guest_runs() => {
                self.cancel_leftovers(record);
                Outcome::Up(identity)
            }
            Err(ApiError::Inconclusive { socket, reason }) if haste == Haste::None => {
                let socket = socket.display();
                Outcome::Unproven(format!("{socket}: {reason}; its guest may run"))
            }
            Ok(_) | Err(_) => self.give_up(guard, record, interrupted()),
        }
    }

    /// Nobody owns what a dead operation still has running inside the VMM.
    fn cancel_leftovers(&self, record: &VmRecord) {
        let Ok(paths) = paths(record) else { return };
        let cancelled = perform("vmm.cancel-leftovers", || {
            self.backend().cancel_leftovers(&paths, CALL_TIMEOUT)
        });
        match cancelled {
            Ok(leftovers) if leftovers.is_empty() => {}
            Ok(leftovers) => {
                tracing::info!(?leftovers, "cancelled what a dead command had left running");
            }
            Err(error) => tracing::debug!("leftovers cannot be cancelled: {error}"),
        }
    }

    fn status(&self, record: &VmRecord) -> Result<VmmState, ApiError> {
        let paths = paths(record).map_err(|reason| ApiError::Inconclusive {
            socket: record.spec.run_dir.clone().into(),
            reason,
        })?;
        self.backend().status(&paths, CALL_TIMEOUT)
    }

    pub(super) fn stop_vmm(&self, guard: &OpsGuard, record: &VmRecord, mode: StopMode) -> Outcome {
        let stopped = match mode {
            // Disks that are about to go need no flush.
            StopMode::Kill if removes(record) => self.kill(guard, record, Duration::ZERO),
            StopMode::Kill => self.kill(guard, record, self.settings().terminate_grace),
            StopMode::Graceful { timeout_ms } => {
                self.power_off(guard, record, time_left(record, timeout_ms));
                self.kill(guard, record, self.settings().terminate_grace)
            }
        };
        match stopped {
            Ok(()) => Outcome::Done,
            Err(reason) => Outcome::Unproven(reason),
        }
    }

    /// Asks the guest to power off and gives it its time. What comes of it is seen by whoever ends the VMM next.
    fn power_off(&self, guard: &OpsGuard, record: &VmRecord, patience: Duration) {
        let deadline = Instant::now() + patience;
        let Ok(VmmSeen::Alive(identity)) = self.see_vmm(guard, record) else { return };
        let Ok(Some(process)) = ProcessHandle::open(&host_identity(&identity)) else { return };
        let Ok(paths) = paths(record) else { return };
        let mut wait_gone = |until| process.wait_exit(Some(until)).unwrap_or(false);
        let asked = perform("vmm.power-off", || {
            vmm::power_off(self.backend(), &paths, &mut wait_gone, deadline)
        });
        match asked {
            Ok(ended) => tracing::debug!(ended, "the guest had its time to power off"),
            Err(error) => tracing::debug!("the guest cannot be asked to power off: {error}"),
        }
    }

    /// Ends the VMM and proves it dead.
    pub(super) fn kill(&self, guard: &OpsGuard, record: &VmRecord, grace: Duration) -> Told<()> {
        match self.see_vmm(guard, record).map_err(text)? {
            VmmSeen::Inconclusive(reason) => return Err(reason),
            VmmSeen::Dead => {}
            VmmSeen::Alive(identity) => {
                let process = host_identity(&identity);
                perform("vmm.terminate", || process::terminate(&process, grace, DEATH_PATIENCE))
                    .map_err(text)?;
            }
        }
        self.await_death(record)?;
        perform("vmm.clear-sockets", || clear_sockets(&paths(record)?))?;
        // One that stays goes with the VM; a cgroup without a process costs nothing.
        let scope = Scope::of_vm(record.core.id.as_str());
        if let Err(error) = perform("vmm.remove-control-group", || scope.remove()) {
            tracing::debug!("the control group of {} stays: {error}", record.core.id);
        }
        Ok(())
    }

    /// Waits until the dead VMM's lock is free: then all that it held is released.
    fn await_death(&self, record: &VmRecord) -> Told<()> {
        match self.locks().observe_vmm(record.core.id.as_str()).map_err(text)? {
            Observed::Free | Observed::NoFile => Ok(()),
            Observed::Held(_) => {
                let lock = self.locks().vmm_for_launch(record.core.id.as_str());
                lock.map(drop).map_err(|error| format!("its VMM lock stays held: {error}"))
            }
        }
    }

    pub(super) fn prove_vmm_dead(
        &self,
        guard: &OpsGuard,
        record: &VmRecord,
        kill: bool,
    ) -> Outcome {
        match self.see_vmm(guard, record) {
            Err(error) => Outcome::Unproven(error.to_string()),
            Ok(VmmSeen::Inconclusive(reason)) => Outcome::Unproven(reason),
            Ok(VmmSeen::Dead) => Outcome::Done,
            Ok(VmmSeen::Alive(_)) if kill => match self.kill(guard, record, Duration::ZERO) {
                Ok(()) => Outcome::Done,
                Err(reason) => Outcome::Unproven(reason),
            },
            Ok(VmmSeen::Alive(identity)) => {
                Outcome::Failed(format!("its VMM lives (pid {}); stop it first", identity.pid))
            }
        }
    }
}

/// Each launch begins its logs anew; those of the launch before are kept beside them.
fn begin_logs(paths: &RuntimePaths) -> Told<()> {
    for log in [&paths.vmm_log, &paths.console_log] {
        serial::begin_log(log)
            .map_err(|error| format!("cannot begin {}: {error}", log.display()))?;
    }
    Ok(())
}

/// What is left of the time that a guest was given when its stop began: whoever takes a stop over does not begin anew.
pub(super) fn time_left(record: &VmRecord, timeout_ms: u64) -> Duration {
    let given = Duration::from_millis(timeout_ms);
    let began = record.notes.operation_us.and_then(|us| u64::try_from(us).ok());
    let gone =
        began.and_then(|began| boot::wall_us().checked_sub(began)).map(Duration::from_micros);
    given.saturating_sub(gone.unwrap_or_default())
}

fn removes(record: &VmRecord) -> bool {
    let delete = |operation: record::Operation| {
        matches!(operation.kind, record::OperationKind::Delete { .. })
    };
    record.core.operation.is_some_and(delete)
}

/// Sockets of a VMM that is not there any more would make the next one fail to bind.
fn clear_sockets(paths: &RuntimePaths) -> Told<()> {
    for socket in paths.sockets() {
        match std::fs::remove_file(socket) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot remove {}: {error}", socket.display())),
        }
    }
    Ok(())
}

fn low_memory_hint(memory: u64) -> &'static str {
    if memory < 96 << 20 {
        "; a Linux guest with an initrd needs about 96 MiB of memory: try --memory 128M"
    } else {
        ""
    }
}

fn launch_spec(record: &VmRecord, paths: RuntimePaths) -> LaunchSpec {
    use crate::host::vmm::{Accelerator, Boot, Disk, DiskRole, Nic};
    let spec = &record.spec;
    let boot = match &spec.boot {
        record::Boot::Disk => Boot::Disk,
        record::Boot::Direct { kernel, initrd, cmdline } => Boot::Direct {
            kernel: kernel.into(),
            initrd: Some(initrd.into()),
            cmdline: cmdline.clone(),
        },
    };
    let disk = |disk: &record::Disk| Disk {
        path: (&disk.path).into(),
        format: disk.format,
        readonly: false,
        serial: disk.serial.clone(),
        role: DiskRole::Root,
    };
    LaunchSpec {
        vm_id: record.core.id.to_string(),
        name: record.core.name.clone(),
        cpus: spec.config.cpu,
        memory_bytes: spec.config.memory,
        boot,
        disks: spec.disks.iter().map(disk).collect(),
        nics: spec.nics.iter().map(|nic| Nic::User { mac: nic.mac.clone() }).collect(),
        accelerator: record.notes.accelerator.unwrap_or(Accelerator::Tcg),
        paths,
    }
}
