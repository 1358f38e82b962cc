//! VMMs of a root, found by its path in their command lines.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process of a root that is not `cocoon` itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its pid.
    pub pid: u32,
    /// Its start time, in clock ticks since boot.
    pub start_time: u64,
    /// Its command line.
    pub command: String,
    /// The VM whose run directory its command line names.
    pub vm: Option<String>,
}

/// Everything that names a directory of this root in its command line, `cocoon` and zombies aside.
#[must_use]
pub fn of_root(root: &Path) -> Vec<Found> {
    let mut found: Vec<_> = pids().filter_map(|pid| look(pid, root)).collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// Ends everything that [`of_root`] finds, and waits until it is gone.
pub fn end_all_of(root: &Path) {
    while let Some(process) = of_root(root).first() {
        kill(process, root);
    }
}

/// Ends one process and waits until it is gone; one that is gone already is fine.
pub fn kill(process: &Found, root: &Path) {
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    // The pid may have changed hands before it was opened.
    if look(process.pid, root).as_ref() != Some(process) {
        return;
    }
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let _ = rustix::event::poll(&mut fds, None);
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn look(pid: u32, root: &Path) -> Option<Found> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut prefix = root.as_os_str().as_bytes().to_vec();
    prefix.push(b'/');
    if !bytes.windows(prefix.len()).any(|window| window == prefix) {
        return None;
    }
    let command = String::from_utf8_lossy(&bytes).replace('\0', " ");
    if command.split(' ').next().is_some_and(|program| program.ends_with("/cocoon")) {
        return None;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    let runs = format!("{}/run/qemu/", root.display());
    let vm = command.split_once(&runs).map(|(_, rest)| rest.chars().take(26).collect());
    Some(Found { pid, start_time: fields.get(19)?.parse().ok()?, command, vm })
}
