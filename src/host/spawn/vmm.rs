//! Starting a VMM.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};

use super::cgroup::{Prepared, Scope};
use super::child::{self, Report, Reporter, Step};
use crate::host::lock::VmmLock;
use crate::host::process::{ProcessError, ProcessIdentity, ProcessTable};

/// Where programs are looked for when the caller has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How a VMM is to be started.
#[derive(Debug, Clone)]
pub struct VmmCommand {
    /// The program: an absolute path, or a bare name that is looked for in PATH.
    pub program: PathBuf,
    /// Its arguments, the program's name not included.
    pub args: Vec<OsString>,
    /// Its environment beyond PATH; nothing else is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// The file that its output is appended to; created with mode 0600 if need be. Capping it is
    /// the caller's.
    pub log_file: PathBuf,
    /// The umask of the VMM: 0o077 keeps what it creates to this user.
    pub umask: u32,
    /// The cgroup that it is to live in, if any.
    pub scope: Option<Scope>,
    /// The network namespace that it is to live in, as a file (`/run/netns/x`), if not ours.
    pub network_namespace: Option<PathBuf>,
}

impl VmmCommand {
    /// A command without arguments, in the caller's cgroup and network, whose files nobody else
    /// may read.
    pub fn new(program: impl Into<PathBuf>, log_file: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            log_file: log_file.into(),
            umask: 0o077,
            scope: None,
            network_namespace: None,
        }
    }
}

/// Where a VMM came to live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// In a cgroup of its own, at this path. Where the host has version 1 hierarchies beside the
    /// unified one, it stays in the caller's groups of those.
    Scope(PathBuf),
    /// In the caller's cgroup, for the reason given: whatever kills that kills the VMM.
    Inherited(String),
}

/// Why a VMM did not start. None is left running.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program is named by a relative path, which would be looked for below `/`.
    #[error("{program} is a relative path; name the VMM by its absolute path or by its bare name")]
    RelativeProgram {
        /// The program.
        program: PathBuf,
    },
    /// The program is not there.
    #[error("{program} was not found; install it, or configure the path of the VMM")]
    NotFound {
        /// The program.
        program: PathBuf,
    },
    /// The log file could not be opened.
    #[error("cannot open the VMM log {path}: {source}")]
    Log {
        /// The log file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The network namespace is not there.
    #[error("cannot open the network namespace {path}: {source}; the network was not set up")]
    Network {
        /// The file of the namespace.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The new process could not be prepared.
    #[error("cannot start {program}: it could not {what}: {source}")]
    Prepare {
        /// The program.
        program: PathBuf,
        /// What failed.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The fork or the exec failed.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It was started but could not be identified, and was killed again.
    #[error("{program} was started but could not be identified, so it was killed: {source}")]
    Unidentified {
        /// The program.
        program: PathBuf,
        /// Why.
        source: ProcessError,
    },
    /// Somebody else reaped it before it could be identified.
    #[error("{program} exited at once; its log may say why: {log_file}")]
    Gone {
        /// The program.
        program: PathBuf,
        /// The log file.
        log_file: PathBuf,
    },
}

/// A VMM that was started. Dropping this leaves it running.
#[derive(Debug)]
pub struct VmmProcess {
    identity: ProcessIdentity,
    placement: Placement,
    child: Option<Child>,
}

impl VmmProcess {
    /// Who it is.
    pub fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    /// Which cgroup it lives in.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Its exit status, if it has exited; reaps it. `None` while it runs.
    pub fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.as_mut().map_or(Ok(None), Child::try_wait)
    }
}

/// Children whose handles were dropped. A command exits long before its VMM does, but in a process
/// that lives on a dead VMM stays a zombie until it is reaped.
static LEFT_RUNNING: Mutex<Vec<Child>> = Mutex::new(Vec::new());

impl Drop for VmmProcess {
    fn drop(&mut self) {
        let mut left = LEFT_RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        left.extend(self.child.take());
        reap(&mut left);
    }
}

fn reap(left: &mut Vec<Child>) {
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

/// Starts a VMM in a session of its own, with the VMM lock as its only descriptor beside the three
/// streams. When this returns the program has been executed; when it fails nothing runs. The lock
/// is consumed either way: afterwards it is held for exactly as long as the VMM, or a child of it,
/// lives.
pub fn spawn_vmm(command: &VmmCommand, lock: VmmLock) -> Result<VmmProcess, SpawnError> {
    let program = &command.program;
    if program.is_relative() && program.components().count() != 1 {
        return Err(SpawnError::RelativeProgram { program: program.clone() });
    }
    let table = ProcessTable::host()
        .map_err(|source| SpawnError::Unidentified { program: program.clone(), source })?;
    let scope = command.scope.as_ref().map(Scope::prepare);
    let launch = Launch::new(command, &lock, scope.as_ref().and_then(|scope| scope.as_ref().ok()));
    let (child, reports) = launch?.run(program)?;
    drop(lock);
    let mut vmm = identify(command, &table, child)?;
    vmm.placement = placement(scope, &reports);
    Ok(vmm)
}

fn start_failure(program: &Path, source: io::Error) -> SpawnError {
    let program = program.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => SpawnError::NotFound { program },
        _ => SpawnError::Start { program, source },
    }
}

/// A command that is ready to be started.
struct Launch {
    command: Command,
    reader: io::PipeReader,
}

impl Launch {
    fn new(vmm: &VmmCommand, lock: &VmmLock, scope: Option<&Prepared>) -> Result<Self, SpawnError> {
        let failed = |source| SpawnError::Start { program: vmm.program.clone(), source };
        let (log, errors) = open_log(&vmm.log_file)
            .map_err(|source| SpawnError::Log { path: vmm.log_file.clone(), source })?;
        let (reader, reporter) = child::report_pipe().map_err(failed)?;
        let processes = scope.map(|scope| child::above_streams(&scope.processes)).transpose();
        let preparation = Preparation {
            reporter,
            lock: [child::above_streams(lock).map_err(failed)?],
            processes: processes.map_err(failed)?,
            network: vmm.network_namespace.as_deref().map(open_namespace).transpose()?,
            umask: Mode::from_bits_truncate(vmm.umask),
        };
        let mut command = Command::new(&vmm.program);
        command
            .args(&vmm.args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()))
            .envs(vmm.env.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        // SAFETY: `prepare` makes bare system calls on its own descriptors; it neither allocates
        // nor locks.
        unsafe { command.pre_exec(move || preparation.prepare()) };
        Ok(Self { command, reader })
    }

    /// Starts the command and collects the reports of the child.
    fn run(self, program: &Path) -> Result<(Child, Vec<Report>), SpawnError> {
        let Self { mut command, mut reader } = self;
        let spawned = command.spawn();
        // The command owns the parent's copies of the child's descriptors; without this the report
        // never ends.
        drop(command);
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes);
        let mut reports = child::parse_reports(&bytes);
        match spawned {
            Ok(child) => {
                tracing::debug!(pid = child.id(), ?read, ?reports, "VMM started");
                Ok((child, reports))
            }
            Err(source) => Err(match reports.pop_if(|report| !is_optional(report.step)) {
                Some(report) => SpawnError::Prepare {
                    program: program.to_owned(),
                    what: report.step.what(),
                    source: report.error,
                },
                None => start_failure(program, source),
            }),
        }
    }
}

/// Whether a VMM may run without a step of its preparation.
fn is_optional(step: Step) -> bool {
    matches!(step, Step::Limits | Step::OomScore | Step::Cgroup)
}

/// The child's part, with all that it needs.
struct Preparation {
    reporter: Reporter,
    lock: [OwnedFd; 1],
    processes: Option<OwnedFd>,
    network: Option<OwnedFd>,
    umask: Mode,
}

impl Preparation {
    /// Runs in the child, between fork and exec.
    fn prepare(&self) -> io::Result<()> {
        let reporter = &self.reporter;
        reporter.require(Step::Session, child::new_session())?;
        reporter.require(Step::Signals, child::reset_signals())?;
        rustix::process::umask(self.umask);
        reporter.note(Step::Limits, child::reset_limits());
        reporter.note(Step::OomScore, child::reset_oom_score());
        if let Some(processes) = &self.processes {
            reporter.note(Step::Cgroup, child::enter_cgroup(processes));
        }
        if let Some(network) = &self.network {
            reporter.require(Step::Network, child::enter_network(network))?;
        }
        reporter.require(Step::Descriptors, child::close_others_on_exec())?;
        reporter.require(Step::Lock, child::keep_across_exec(&self.lock))
    }
}

fn open_namespace(path: &Path) -> Result<OwnedFd, SpawnError> {
    let failed = |source| SpawnError::Network { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    child::above_streams(file).map_err(failed)
}

fn open_log(path: &Path) -> io::Result<(std::fs::File, std::fs::File)> {
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    let errors = log.try_clone()?;
    Ok((log, errors))
}

/// Finds out who the new child is. It is our child and not yet reaped, so its pid is its own even
/// if it has exited.
fn identify(
    command: &VmmCommand,
    table: &ProcessTable,
    mut child: Child,
) -> Result<VmmProcess, SpawnError> {
    let program = command.program.clone();
    match table.identify_child(child.id()) {
        Ok(Some(identity)) => {
            let placement = Placement::Inherited(String::new());
            Ok(VmmProcess { identity, placement, child: Some(child) })
        }
        Ok(None) => Err(SpawnError::Gone { program, log_file: command.log_file.clone() }),
        Err(source) => {
            // Better no VMM than one that nobody can find again.
            let _ = child.kill();
            let _ = child.wait();
            Err(SpawnError::Unidentified { program, source })
        }
    }
}

fn placement(scope: Option<Result<Prepared, String>>, reports: &[Report]) -> Placement {
    let refused = reports.iter().find(|report| report.step == Step::Cgroup);
    match (scope, refused) {
        (None, _) => Placement::Inherited("no cgroup was asked for".to_owned()),
        (Some(Err(reason)), _) => Placement::Inherited(reason),
        (Some(Ok(prepared)), None) => Placement::Scope(prepared.path),
        (Some(Ok(prepared)), Some(report)) => Placement::Inherited(format!(
            "cannot enter cgroup {}: {}",
            prepared.path.display(),
            report.error
        )),
    }
}
