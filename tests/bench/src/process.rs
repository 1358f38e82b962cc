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
    /// Most memory that it had at once, KiB. Never less than what its parent had when it was started.
    pub(crate) peak_kib: u64,
}

/// Runs one process to its end.
pub(crate) fn measure(command: &mut Command) -> Outcome<Cost> {
    let began = Instant::now();
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    wait(&child, began)
}

/// Waits for a child and takes its accounts.
pub(crate) fn wait(child: &Child, began: Instant) -> Outcome<Cost> {
    Ok(reap(nix::libc::pid_t::try_from(child.id())?)?.cost(began))
}

/// Starts processes one after the other and takes the accounts of each as it ends: another thread reaps while this one starts.
pub(crate) fn crowd(commands: impl Iterator<Item = Command>) -> Outcome<Vec<Cost>> {
    std::thread::scope(|scope| {
        let (started, starts) = std::sync::mpsc::channel();
        let reaper = scope.spawn(move || {
            let mut ends = Vec::new();
            // Each start is a promise of one end; which process that is shows only then.
            while starts.recv().is_ok() {
                ends.push(reap(-1).map_err(|error| error.to_string())?);
            }
            Ok::<_, String>(ends)
        });
        let mut began = std::collections::BTreeMap::new();
        for mut command in commands {
            let at = Instant::now();
            let child = command.stdout(Stdio::null()).spawn()?;
            began.insert(nix::libc::pid_t::try_from(child.id())?, at);
            started.send(())?;
        }
        drop(started);
        let ends = reaper.join().map_err(|_| "the reaper panicked")??;
        let cost = |end: End| {
            let began = began.get(&end.pid).ok_or("a process ended that was not started")?;
            Ok(end.cost(*began))
        };
        ends.into_iter().map(cost).collect()
    })
}

/// The end of a process.
struct End {
    pid: nix::libc::pid_t,
    at: Instant,
    cpu: Duration,
    peak_kib: u64,
}

impl End {
    fn cost(&self, began: Instant) -> Cost {
        Cost { wall: self.at - began, cpu: self.cpu, peak_kib: self.peak_kib }
    }
}

/// Waits for one process, or for any with -1.
#[expect(unsafe_code, reason = "wait4 has no safe wrapper")]
fn reap(pid: nix::libc::pid_t) -> Outcome<End> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    let mut usage: nix::libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live, writable values of the types that wait4 takes.
    let reaped = unsafe { nix::libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    let at = Instant::now();
    if reaped < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    if status != 0 {
        return Err(format!("process {reaped} ended with status {status:#x}").into());
    }
    let time = |value: nix::libc::timeval| {
        let seconds = u64::try_from(value.tv_sec).unwrap_or_default();
        let micros = u64::try_from(value.tv_usec).unwrap_or_default();
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    Ok(End {
        pid: reaped,
        at,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        peak_kib: u64::try_from(usage.ru_maxrss).unwrap_or_default(),
    })
}
