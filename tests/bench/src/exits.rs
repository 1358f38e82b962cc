//! From the death of a VMM to its exit in the journal, a daemon running.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use cocoon::engine::Engine;
use cocoon::engine::follow::Follower;
use cocoon::settings::{Given, Settings};
use cocoon_model::id::VmId;
use cocoon_model::record::{Reason, VmState};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Outcome;
use crate::daemon::{Daemon, LONG};
use crate::fleet::Fleet;
use crate::table::{head, median, ms, quantile, row};

#[derive(Debug, Args)]
pub(crate) struct ExitsArgs {
    /// The `cocoon` binary, a release build
    #[arg(long, default_value = "target/release/cocoon")]
    cocoon: PathBuf,
    /// The fake VMM
    #[arg(long, default_value = "target/release/cocoon-fake-vmm")]
    vmm: PathBuf,
    /// VMs that die one after the other
    #[arg(long, default_value_t = 50)]
    singly: usize,
    /// VMs that die at once
    #[arg(long, default_value_t = 500)]
    at_once: usize,
}

/// From just before SIGKILL was sent until a follower of the journal read the exit, durable.
pub(crate) fn run(args: &ExitsArgs) -> Outcome {
    let fleet = Fleet::start(&args.cocoon, &args.vmm, args.singly + args.at_once)?;
    let engine = open(&fleet, &std::path::absolute(&args.vmm)?)?;
    let mut daemon = Daemon::start(&fleet)?;
    let mut follower = engine.follow()?;
    let pids = pids(&follower)?;
    let (singly, at_once) = pids.split_at(args.singly);
    let mut alone = Vec::new();
    for one in singly {
        alone.extend(deaths(&mut follower, std::slice::from_ref(one))?);
    }
    let together = deaths(&mut follower, at_once)?;
    daemon.stop()?;
    println!("death of a VMM to its exit in the journal\n");
    head(&["deaths", "median ms", "p99 ms", "longest ms"]);
    for (what, times) in [("one after the other", &alone), ("at once", &together)] {
        row(&[
            format!("{} {what}", times.len()),
            ms(median(times)),
            ms(quantile(times, 0.99)),
            ms(quantile(times, 1.0)),
        ]);
    }
    Ok(())
}

fn open(fleet: &Fleet, vmm: &Path) -> Outcome<Engine> {
    let given = Given {
        root_dir: Some(fleet.dir().join("r")),
        qemu_binary: Some(vmm.to_owned()),
        ..Given::default()
    };
    Ok(Engine::open(Settings::load(given, None)?)?)
}

fn pids(follower: &Follower) -> Outcome<Vec<(VmId, Pid)>> {
    let running = follower.vms().filter(|record| record.core.state == VmState::Running);
    running
        .map(|record| {
            let launched = record.core.launch.and_then(|launch| launch.identity);
            let pid = launched.ok_or("a running VM has no process")?.pid;
            Ok((record.core.id, Pid::from_raw(i32::try_from(pid)?)))
        })
        .collect()
}

/// Kills VMMs as fast as it goes, and waits for their exits: how long each took.
fn deaths(follower: &mut Follower, vmms: &[(VmId, Pid)]) -> Outcome<Vec<Duration>> {
    let mut killed = BTreeMap::new();
    for (id, pid) in vmms {
        killed.insert(*id, Instant::now());
        kill(*pid, Signal::SIGKILL)?;
    }
    let mut times = Vec::new();
    while !killed.is_empty() {
        let update = follower.next(LONG)?.ok_or("an exit did not come")?;
        if update.record.notes.transition_reason == Some(Reason::UnexpectedExit)
            && let Some(began) = killed.remove(&update.record.core.id)
        {
            times.push(began.elapsed());
        }
    }
    Ok(times)
}
