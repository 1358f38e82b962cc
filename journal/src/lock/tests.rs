//! The lock against other processes and replaced files.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use uuid::Uuid;

use super::*;

fn writer(verb: &str) -> Writer {
    Writer { operation: Uuid::nil(), pid: std::process::id(), start_time: 0, verb: verb.into() }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(150)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

#[test]
fn past_the_deadline_the_holder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    let held = Lock::acquire(&path, &writer("vm create"), later()).unwrap();
    let error = Lock::acquire(&path, &writer("gc"), soon()).unwrap_err();
    let JournalError::Busy { holder: Some(holder), waited } = error else {
        panic!("{error}");
    };
    assert_eq!((holder.pid, holder.verb.as_str()), (std::process::id(), "vm create"));
    assert!(waited >= Duration::from_millis(150));
    drop(held);
    Lock::acquire(&path, &writer("gc"), later()).unwrap();
}

#[test]
fn a_waiter_gets_the_lock_when_it_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    let held = Lock::acquire(&path, &writer("first"), later()).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| Lock::acquire(&path, &writer("second"), later()).map(drop));
        // Released only once the waiter sleeps in the kernel: its wait is then a blocked one.
        while !is_waiting_for_a_lock() {
            std::thread::yield_now();
        }
        drop(held);
        waiter.join().unwrap().unwrap();
    });
}

/// Whether `/proc/locks` shows somebody blocked (`->`) on a flock of this process.
fn is_waiting_for_a_lock() -> bool {
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let pid = format!(" {} ", std::process::id());
    locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&pid))
}

#[test]
fn a_replaced_lock_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    let held = Lock::acquire(&path, &writer("old"), later()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let new = Lock::acquire(&path, &writer("new"), soon()).expect("the new file is free");
    assert!(new.is_at(&path).unwrap() && !held.is_at(&path).unwrap());
}

#[test]
fn signals_are_blocked_while_it_is_held_and_back_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let before = SigSet::thread_get_mask().unwrap();
    let held = Lock::acquire(&dir.path().join("LOCK"), &writer("x"), later()).unwrap();
    let during = SigSet::thread_get_mask().unwrap();
    assert!(during.contains(nix::sys::signal::Signal::SIGTSTP));
    drop(held);
    assert_eq!(SigSet::thread_get_mask().unwrap(), before);
}

#[test]
fn a_stopped_holder_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    // The child takes the lock on the descriptor that it inherits, says so, and waits for a byte.
    let script = "flock 9 && echo locked && read line";
    let file = open(&path).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: dup2 is async-signal-safe and touches nothing but descriptor 9 of the child.
    unsafe {
        command.pre_exec(move || match nix::libc::dup2(fd, 9) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        })
    };
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "locked\n");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let start_time = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
    Holder { pid: child.id(), start_time, verb: "stopped".into() }.record(&file).unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    drop(file);
    // Once continued it goes on reading; its input ends, it exits, and the lock is free.
    drop(child.stdin.take());
    let lock = Lock::acquire(&path, &writer("waiter"), later()).expect("the holder was continued");
    drop(lock);
    child.wait().unwrap();
}
