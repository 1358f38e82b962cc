//! The service that embeds cocoon is stopped, with everything in its session and its control group.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::process::Running;
use crate::root::{Root, birth};

/// A control group of the test's own; `None` where none can be made.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mut fields = mounts.lines().map(|line| line.split(' '));
        let mount = fields.find_map(|mut fields| {
            let (point, kind) = (fields.nth(1)?, fields.next()?);
            (kind == "cgroup2").then(|| point.to_owned())
        })?;
        let path = Path::new(&mount).join(name);
        std::fs::create_dir(&path).ok()?;
        Some(Self(path))
    }

    fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// Kills all that is in it.
    fn kill(&self) {
        for pid in std::fs::read_to_string(self.processes()).unwrap().lines() {
            let _ = nix::sys::signal::kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn vms_outlive_the_service_that_started_them() {
    let root = Root::new();
    let group = Group::new(&format!("cocoon-test-{}", std::process::id()));
    let enter = group
        .as_ref()
        .map_or(String::new(), |group| format!("echo $$ > '{}' && ", group.processes().display()));
    let cocoon = root.command(&birth("run", "a"));
    let mut embedder = Command::new("sh");
    let script = format!("{enter}\"$@\" && echo started && exec sleep 600");
    embedder.arg("-c").arg(script).arg("sh").arg(cocoon.get_program()).args(cocoon.get_args());
    embedder.envs(cocoon.get_envs().filter_map(|(name, value)| Some((name, value?))));
    embedder.process_group(0);
    let mut embedder = Running::start(&mut embedder);
    embedder.out.until("started");
    let pid = root.pid("a");
    killpg(Pid::from_raw(i32::try_from(embedder.pid()).unwrap()), Signal::SIGKILL).unwrap();
    if let Some(group) = &group {
        group.kill();
    }
    embedder.wait();
    let vm = root.inspect("a");
    assert_eq!((&vm["state"], &vm["pid"]), (&"running".into(), &pid.into()));
    let daemon = root.daemon(crate::root::NEVER);
    assert_eq!(daemon.vms()["a"]["watched_pid"], pid);
    daemon.stop();
    root.ok(&["vm", "stop", "a"]);
}
