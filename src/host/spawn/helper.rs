//! Running a tool to its end: `qemu-img`, `mkfs`, a network plugin.
//!
//! A helper never outlives its purpose: it is killed with the thread that runs it, and at its
//! deadline. Until it is really gone it holds the locks of the operation, so nobody else touches
//! what it may still be writing.

use std::ffi::OsStr;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use super::child::{self, Reporter, Step};
use crate::host::process::remaining;

/// How much of the standard output is kept, in bytes, unless told otherwise.
const OUTPUT_MAX: usize = 1 << 20;

/// How much of the end of the standard error is kept, in bytes, and how much of that goes into a
/// message, in lines.
const ERRORS_MAX: usize = 64 << 10;
const ERROR_LINES: usize = 10;

/// How often one look at a pipe reads from it: enough for the largest pipe, 1 MiB.
const DRAIN_READS: usize = 64;

/// How long a killed helper may take to go.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// What a helper printed before it succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperOutput {
    /// The beginning of its standard output.
    pub stdout: Vec<u8>,
    /// Whether there was more of it than was to be kept.
    pub stdout_truncated: bool,
    /// The last lines of its standard error.
    pub stderr: String,
}

/// Why a helper did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The program is not there.
    #[error("{program} was not found; install it, or configure its path")]
    NotFound {
        /// The program.
        program: PathBuf,
    },
    /// It could not be started or followed.
    #[error("cannot {what} {program}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The program.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It failed.
    #[error("{program} failed with {status}: {stderr}")]
    Failed {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The beginning of its standard output, where network plugins explain themselves.
        stdout: Vec<u8>,
        /// The last lines of its standard error.
        stderr: String,
    },
    /// It was killed at its deadline.
    #[error("{program} was killed after {ran:?}, its deadline: {stderr}")]
    TimedOut {
        /// The program.
        program: PathBuf,
        /// How long it ran.
        ran: Duration,
        /// The last lines of its standard error.
        stderr: String,
    },
    /// It was killed but does not go; it keeps the locks of the operation until it does.
    #[error(
        "{program} (pid {pid}) does not die; the VM stays locked until the kernel lets go of it"
    )]
    Stuck {
        /// The program.
        program: PathBuf,
        /// The process.
        pid: u32,
    },
}

/// A tool to be run to its end.
#[derive(Debug)]
pub struct HelperCommand {
    program: PathBuf,
    command: Command,
    locks: io::Result<Vec<OwnedFd>>,
    input: Vec<u8>,
    output_max: usize,
}

impl HelperCommand {
    /// A run of `program`, a path or a bare name. Its environment is ours, its messages are in
    /// English.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let mut command = Command::new(program);
        command.env("LC_ALL", "C");
        let program = PathBuf::from(program);
        Self { program, command, locks: Ok(Vec::new()), input: Vec::new(), output_max: OUTPUT_MAX }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it in another directory.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Gives it bytes on its standard input, which is empty otherwise.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// Has it inherit a lock: `guard.inheritable_fd()`. May be given several times.
    pub fn holding(mut self, lock: BorrowedFd<'_>) -> Self {
        let copy = child::above_streams(lock);
        self.locks = self.locks.and_then(|mut locks| {
            locks.push(copy?);
            Ok(locks)
        });
        self
    }

    /// Keeps at most so many bytes of its standard output.
    pub fn output_max(mut self, bytes: usize) -> Self {
        self.output_max = bytes;
        self
    }

    /// Runs it until it exits or `deadline` passes, at which it is killed with all of its process
    /// group.
    pub fn run(self, deadline: Option<Instant>) -> Result<HelperOutput, HelperError> {
        let (program, output_max) = (self.program.clone(), self.output_max);
        let child = self.start()?;
        let mut run = Run::new(child, output_max).map_err(|source| HelperError::Io {
            what: "follow",
            program: program.clone(),
            source,
        })?;
        run.finish(&program, deadline)
    }

    fn start(mut self) -> Result<Child, HelperError> {
        let program = self.program;
        let failed = |source| HelperError::Io { what: "start", program: program.clone(), source };
        let (mut reader, reporter) = child::report_pipe().map_err(failed)?;
        let preparation = Preparation {
            reporter,
            locks: self.locks.map_err(failed)?,
            parent: Some(rustix::process::getpid()),
        };
        let input = input_stream(&self.input).map_err(failed)?;
        self.command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: `prepare` makes bare system calls on its own descriptors; it neither allocates
        // nor locks.
        unsafe { self.command.pre_exec(move || preparation.prepare()) };
        let spawned = self.command.spawn();
        drop(self.command);
        match spawned {
            Ok(child) => Ok(child),
            Err(source) => {
                let mut bytes = Vec::new();
                let _ = reader.read_to_end(&mut bytes);
                Err(start_failure(program, source, &child::parse_reports(&bytes)))
            }
        }
    }
}

/// A standard input that holds all of the bytes: a pipe would need somebody to fill it meanwhile.
fn input_stream(bytes: &[u8]) -> io::Result<Stdio> {
    if bytes.is_empty() {
        return Ok(Stdio::null());
    }
    let memory = rustix::fs::memfd_create(c"helper-input", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(Stdio::from(file))
}

fn start_failure(program: PathBuf, source: io::Error, reports: &[child::Report]) -> HelperError {
    match reports.last() {
        Some(report) => HelperError::Io { what: report.step.what(), program, source },
        None if source.kind() == io::ErrorKind::NotFound => HelperError::NotFound { program },
        None => HelperError::Io { what: "start", program, source },
    }
}

/// The child's part, with all that it needs.
struct Preparation {
    reporter: Reporter,
    locks: Vec<OwnedFd>,
    parent: Option<Pid>,
}

impl Preparation {
    /// Runs in the child, between fork and exec.
    fn prepare(&self) -> io::Result<()> {
        let reporter = &self.reporter;
        reporter.require(Step::ParentDeath, child::die_with_parent(self.parent))?;
        // A session of its own: no key pressed at our terminal reaches it, and its group can be
        // killed as one.
        reporter.require(Step::Session, child::new_session())?;
        reporter.require(Step::Signals, child::reset_signals())?;
        reporter.require(Step::Descriptors, child::close_others_on_exec())?;
        reporter.require(Step::Lock, child::keep_across_exec(&self.locks))
    }
}

/// A helper on its way.
struct Run {
    child: Child,
    pidfd: OwnedFd,
    began: Instant,
    stdout: Stream,
    stderr: Stream,
}

/// How the wait for a helper ended.
#[derive(PartialEq, Eq)]
enum Waited {
    Exited,
    DeadlinePassed,
}

impl Run {
    fn new(mut child: Child, output_max: usize) -> io::Result<Self> {
        let prepared = Self::prepare(&mut child, output_max);
        match prepared {
            Ok((pidfd, stdout, stderr)) => {
                Ok(Self { child, pidfd, began: Instant::now(), stdout, stderr })
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn prepare(child: &mut Child, output_max: usize) -> io::Result<(OwnedFd, Stream, Stream)> {
        let pidfd = pidfd_open(pid_of(child)?, PidfdFlags::empty())?;
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        let keep_stdout = Keep::Beginning(output_max);
        Ok((pidfd, Stream::new(stdout, keep_stdout)?, Stream::new(stderr, Keep::End(ERRORS_MAX))?))
    }

    fn finish(
        &mut self,
        program: &Path,
        deadline: Option<Instant>,
    ) -> Result<HelperOutput, HelperError> {
        let failed =
            |source| HelperError::Io { what: "wait for", program: program.to_owned(), source };
        let waited = self.follow(deadline).map_err(failed)?;
        let timed_out = waited == Waited::DeadlinePassed;
        if timed_out {
            self.kill_group().map_err(failed)?;
            let gone = self.follow(Some(Instant::now() + KILL_WAIT)).map_err(failed)?;
            if gone == Waited::DeadlinePassed {
                let pid = self.child.id();
                return Err(HelperError::Stuck { program: program.to_owned(), pid });
            }
        }
        let status = self.child.wait().map_err(failed)?;
        self.judge(program, status, timed_out)
    }

    fn judge(
        &mut self,
        program: &Path,
        status: ExitStatus,
        timed_out: bool,
    ) -> Result<HelperOutput, HelperError> {
        let (program, stderr) = (program.to_owned(), last_lines(&self.stderr.bytes));
        let stdout = std::mem::take(&mut self.stdout.bytes);
        if status.success() {
            Ok(HelperOutput { stdout, stdout_truncated: self.stdout.truncated, stderr })
        } else if timed_out {
            Err(HelperError::TimedOut { program, ran: self.began.elapsed(), stderr })
        } else {
            Err(HelperError::Failed { program, status, stdout, stderr })
        }
    }

    /// Takes in what it prints until it exits. Something that it left behind may keep the pipes
    /// open; that is not waited for.
    fn follow(&mut self, deadline: Option<Instant>) -> io::Result<Waited> {
        loop {
            let Some(exited) = self.poll(deadline)? else { return Ok(Waited::DeadlinePassed) };
            self.stdout.drain()?;
            self.stderr.drain()?;
            if exited {
                return Ok(Waited::Exited);
            }
        }
    }

    /// Waits until it prints or exits: whether it has exited, or `None` at the deadline.
    fn poll(&self, deadline: Option<Instant>) -> io::Result<Option<bool>> {
        loop {
            let timeout = deadline.map(remaining);
            let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
            let streams = [&self.stdout.fd, &self.stderr.fd];
            fds.extend(streams.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return Ok(None);
                }
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(Some(!fds[0].revents().is_empty())),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Kills it with its children. It is not reaped yet, so nobody else can have its group.
    fn kill_group(&self) -> io::Result<()> {
        match rustix::process::kill_process_group(pid_of(&self.child)?, Signal::KILL) {
            Err(Errno::SRCH) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Only an error on the way leads here with the helper alive.
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}

fn pid_of(child: &Child) -> io::Result<Pid> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Which part of a stream is kept.
#[derive(Clone, Copy)]
enum Keep {
    Beginning(usize),
    End(usize),
}

/// One of the two pipes; `fd` goes at its end.
struct Stream {
    fd: Option<OwnedFd>,
    keep: Keep,
    bytes: Vec<u8>,
    truncated: bool,
}

impl Stream {
    fn new(fd: Option<OwnedFd>, keep: Keep) -> io::Result<Self> {
        if let Some(fd) = &fd {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(Self { fd, keep, bytes: Vec::new(), truncated: false })
    }

    /// Reads what is there; more than a pipe can hold only if it is refilled meanwhile, so that an
    /// endless stream does not keep its reader from looking at the deadline.
    fn drain(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        for _ in 0..DRAIN_READS {
            let Some(fd) = &self.fd else { return Ok(()) };
            match rustix::io::read(fd.as_fd(), &mut buffer) {
                Ok(0) => self.fd = None,
                Ok(length) => self.take(&buffer[..length]),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let excess = |max: usize| self.bytes.len().saturating_sub(max);
        match self.keep {
            Keep::Beginning(max) => {
                self.truncated |= excess(max) > 0;
                self.bytes.truncate(max);
            }
            // Cut only at twice the size, so that a chatty helper does not cost a move for each
            // line.
            Keep::End(max) if self.bytes.len() > 2 * max => {
                let excess = excess(max);
                self.bytes.drain(..excess);
            }
            Keep::End(_) => {}
        }
    }
}

/// The last lines of a text, whatever its bytes.
fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let skipped = lines.len().saturating_sub(ERROR_LINES);
    lines[skipped..].join("\n")
}
