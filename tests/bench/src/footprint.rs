//! What a host with many VMs and a long past costs: memory, bytes on disk, time to open.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::Outcome;
use crate::daemon::Daemon;
use crate::fleet::Fleet;
use crate::past::Past;
use crate::process::measure;
use crate::table::{head, row};

mod disk;
mod ends;

#[derive(Debug, Args)]
pub(crate) struct FootprintArgs {
    /// The `cocoon` binary, a release build
    #[arg(long, default_value = "target/release/cocoon")]
    cocoon: PathBuf,
    /// The fake VMM
    #[arg(long, default_value = "target/release/cocoon-fake-vmm")]
    vmm: PathBuf,
    /// VMs that are there, none of them running
    #[arg(long, default_value_t = 10_000)]
    residents: usize,
    /// Events that have happened already, beyond those of the residents
    #[arg(long, default_value_t = 20_000)]
    events: u64,
    /// How often each end is tried
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

pub(crate) fn run(args: &FootprintArgs) -> Outcome {
    let fleet = Fleet::start(&args.cocoon, &args.vmm, 0)?;
    let root = fleet.root();
    let began = Instant::now();
    let mut past = Past::open(&root)?;
    past.residents(args.residents)?;
    past.events(args.events)?;
    past.feed_store()?;
    let events = past.seq()?;
    drop(past);
    println!(
        "{} VMs, {events} events, made in {:.1} s\n",
        args.residents,
        began.elapsed().as_secs_f64()
    );
    memory(&fleet)?;
    println!();
    disk::report(&root.join("journal"), events)?;
    println!();
    ends::report(&fleet, args.runs)
}

/// The arguments of a small creation.
pub(super) fn create(name: &str) -> Vec<String> {
    let small = ["--nics", "0", "--cpu", "1", "--memory", "64M", "--storage", "16M"];
    let words = ["vm", "create", "--name", name].into_iter().chain(small).chain(["guest"]);
    words.map(str::to_owned).collect()
}

/// Peaks of whole processes.
fn memory(fleet: &Fleet) -> Outcome {
    head(&["peak memory", "MiB", "of `version`"]);
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let version = peak_of(fleet, &words("version"))?;
    let print = |what: &str, kib: u64| row(&[what.to_owned(), mib(kib), times(kib, version)]);
    let peak = |what: &str, arguments: &[String]| -> Outcome {
        print(what, peak_of(fleet, arguments)?);
        Ok(())
    };
    print("version", version);
    peak("vm list -o json", &words("vm list -o json"))?;
    peak("vm inspect", &words("vm inspect resident-0"))?;
    peak("vm create", &create("measured"))?;
    fleet.cocoon(&["vm", "rm", "measured"])?;
    let mut daemon = Daemon::start(fleet)?;
    // It takes in an event or two before it is looked at.
    let made = create("watched");
    fleet.cocoon(&made.iter().map(String::as_str).collect::<Vec<_>>())?;
    fleet.cocoon(&["vm", "rm", "watched"])?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()))?;
    print("daemon", field(&status, "VmHWM:")?);
    print("daemon, at rest", field(&status, "VmRSS:")?);
    daemon.stop()
}

#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^52 KiB")]
fn times(kib: u64, of: u64) -> String {
    format!("{:.1}", kib as f64 / of.max(1) as f64)
}

#[expect(clippy::cast_precision_loss, reason = "memory is far below 2^52 KiB")]
fn mib(kib: u64) -> String {
    format!("{:.1}", kib as f64 / 1024.0)
}

/// A field of `/proc/PID/status`, KiB.
fn field(status: &str, name: &str) -> Outcome<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or_else(|| format!("the kernel does not say {name}"))?.parse()?)
}

/// The peak of a command, KiB. A small process stands between: the kernel counts what a parent has into the peak of its child.
fn peak_of(fleet: &Fleet, arguments: &[String]) -> Outcome<u64> {
    let cocoon = fleet.command();
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("peak").arg(cocoon.get_program()).args(arguments);
    for (name, value) in cocoon.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().map_err(|_| format!("{arguments:?} failed").into())
}

/// The small process.
pub(crate) fn peak(command: &[OsString]) -> Outcome {
    let (program, arguments) = command.split_first().ok_or("no command")?;
    println!("{}", measure(Command::new(program).args(arguments))?.peak_kib);
    Ok(())
}

/// The files below a directory, with what is known of them.
fn files(dir: &Path) -> Outcome<Vec<(PathBuf, std::fs::Metadata)>> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_dir() {
                dirs.push(entry.path());
            } else {
                found.push((entry.path(), meta));
            }
        }
    }
    Ok(found)
}
