//! `cocoon vm logs`, on logs that a test writes.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::libc::{SYS_poll as POLL, SYS_ppoll as PPOLL};

use crate::sandbox::Sandbox;

/// A VM that never ran, and the console log that it does not have yet.
fn sandbox_with_log() -> (Sandbox, PathBuf) {
    let sandbox = Sandbox::with_guest();
    let id = sandbox.create("web");
    let log = sandbox.root().join("log/qemu").join(id).join("console.log");
    (sandbox, log)
}

/// Whether a process sleeps until something happens, however long that takes.
fn sleeps_for_good(process: &Child) -> bool {
    let Ok(call) = fs::read_to_string(format!("/proc/{}/syscall", process.id())) else {
        return false;
    };
    let words: Vec<&str> = call.split(' ').collect();
    let [number, _, _, timeout, ..] = words[..] else { return false };
    let timeout = u64::from_str_radix(timeout.trim_start_matches("0x"), 16).unwrap();
    match number.parse() {
        Ok(PPOLL) => timeout == 0,
        Ok(POLL) => timeout & 0xffff_ffff == 0xffff_ffff,
        _ => false,
    }
}

fn falls_asleep(process: &Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !sleeps_for_good(process) {
        assert!(Instant::now() < deadline, "it does not sleep, it looks again and again");
        std::thread::yield_now();
    }
}

#[test]
fn a_text_that_is_waited_for_wakes_whoever_waits() {
    let (sandbox, log) = sandbox_with_log();
    let mut command = sandbox.command(["vm", "logs", "--console", "--until", "login:", "web"]);
    let mut waiting = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(waiting.stdout.take().unwrap());
    falls_asleep(&waiting);
    let mut guest = fs::File::create(&log).unwrap();
    guest.write_all(b"booting\n").unwrap();
    let mut line = String::new();
    shown.read_line(&mut line).unwrap();
    assert_eq!(line, "booting\n");
    falls_asleep(&waiting);
    guest.write_all(b"web lo").unwrap();
    falls_asleep(&waiting);
    guest.write_all(b"gin: ").unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
}

#[test]
fn a_log_whose_directory_is_made_later_is_found() {
    let (sandbox, log) = sandbox_with_log();
    let directory = log.parent().unwrap();
    let aside = sandbox.path().join("aside");
    fs::rename(directory, &aside).unwrap();
    let waiting = sandbox.command(["vm", "logs", "--console", "--until", "up", "web"]).spawn();
    let mut waiting = waiting.unwrap();
    falls_asleep(&waiting);
    fs::rename(&aside, directory).unwrap();
    fs::write(&log, "up").unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
}

#[test]
fn a_follower_ends_with_its_reader_even_if_nothing_is_written() {
    let (sandbox, log) = sandbox_with_log();
    fs::write(&log, "one\n").unwrap();
    let mut command = sandbox.command(["vm", "logs", "--console", "--follow", "web"]);
    let mut following = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(following.stdout.take().unwrap());
    let mut line = String::new();
    shown.read_line(&mut line).unwrap();
    drop(shown);
    assert_eq!(following.wait().unwrap().code(), Some(0));
    let late = ["vm", "logs", "--console", "--until", "two", "--timeout", "10ms", "web"];
    sandbox.cocoon(late).says(1, "does not have \"two\"");
}
