//! Whole processes, measured by the kernel.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;

/// What one process took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// From its start to its end.
    pub(crate) wall: Duration,
    /// Processor time, user and system.
    pub(crate) cpu: Duration,
}

/// Runs one process to its end.
pub(crate) fn measure(command: &mut Command) -> Outcome<Cost> {
    let began = Instant::now();
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    wait(&child, began)
}

/// Waits for a child and takes its accounts.
#[expect(unsafe_code, reason = "wait4 has no safe wrapper")]
pub(crate) fn wait(child: &Child, began: Instant) -> Outcome<Cost> {
    let pid = nix::libc::pid_t::try_from(child.id())?;
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    let mut usage: nix::libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live, writable values of the types that wait4 takes.
    let reaped = unsafe { nix::libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    let wall = began.elapsed();
    if reaped != pid {
        return Err(std::io::Error::last_os_error().into());
    }
    if status != 0 {
        return Err(format!("process {pid} ended with status {status:#x}").into());
    }
    let time = |value: nix::libc::timeval| {
        let seconds = u64::try_from(value.tv_sec).unwrap_or_default();
        let micros = u64::try_from(value.tv_usec).unwrap_or_default();
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    Ok(Cost { wall, cpu: time(usage.ru_utime) + time(usage.ru_stime) })
}
