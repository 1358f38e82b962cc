//! Who is who: processes that cannot be looked at, and pids that changed hands.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command};

use cocoon_test_world::{World, processes};
use rustix::fs::{FlockOperation, flock};

use crate::namespace::Namespace;
use crate::{birth, die_at, world};

/// In the namespace, reading an entry of the VMM in `/proc` fails, as it does on a failing host.
fn hide(namespace: &Namespace, world: &World, entry: &str) {
    let pid = world.processes()[0].pid;
    namespace.run(&format!("mount --bind /proc/self/mem /proc/{pid}/{entry}"));
}

#[test]
fn a_vmm_that_cannot_be_looked_at_is_not_taken_for_dead() {
    let mut world = world("");
    world.run(&birth("run", "a", "guest")).ok();
    let Some(namespace) = Namespace::enter(&mut world) else { return };
    hide(&namespace, &world, "stat");
    still_there(&world);
    world.wrapper.clear();
    world.run(&["vm", "rm", "--force", "a"]).ok();
    world.findings_at_rest().none();
}

#[test]
fn a_scan_that_cannot_be_completed_proves_nothing() {
    let mut world = world("");
    world.run(&birth("create", "a", "guest")).ok();
    // Nobody recorded this VMM: only a scan can find it.
    die_at(&world, &["vm", "start", "a"], "vmm.spawn.after");
    let Some(namespace) = Namespace::enter(&mut world) else { return };
    hide(&namespace, &world, "cmdline");
    still_there(&world);
    world.wrapper.clear();
    world.run(&["vm", "rm", "--force", "a"]).ok();
    world.findings_at_rest().none();
}

#[test]
fn the_lock_of_a_process_that_is_being_torn_down_is_waited_for() {
    let world = world("");
    world.run(&birth("create", "a", "guest")).ok();
    die_at(&world, &["vm", "start", "a"], "vmm.spawn.before");
    let id = world.history().unwrap().named("a").unwrap().core.id.to_string();
    // A launcher that was killed lets go of its locks one after the other.
    let lock = File::open(world.root().join(format!("locks/vmm/{id}.lock"))).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();

    let mut gc = world.start(&["gc"], &[("COCOON_LOG_LEVEL", "debug")]);
    let mut lines = BufReader::new(gc.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("settle-launch")), "it never looked");
    drop(lock);
    let said: Vec<String> = lines.collect();
    assert!(gc.wait().unwrap().success(), "{said:?}");
    world.findings_at_rest().none();
    world.run(&["vm", "start", "a"]).ok();
}

#[test]
fn where_processes_of_others_are_hidden_nothing_is_taken_for_dead() {
    let mut world = world("");
    let Some(namespace) = Namespace::enter(&mut world) else { return };
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    namespace.run(&format!("chown -R 65534:65534 {}", world.beside().display()));
    let plain = nobody.map(str::to_owned).to_vec();
    let hidden = [world.wrapper.clone(), plain.clone()].concat();
    world.wrapper = plain;
    if world.run(&["version"]).code() != Some(0) {
        return eprintln!("skipped: another user cannot run what lies in this directory");
    }
    world.run(&birth("create", "a", "guest")).ok();
    die_at(&world, &["vm", "start", "a"], "vmm.spawn.after");

    namespace.run("mount -t proc -o hidepid=2 proc /proc");
    let open = std::mem::replace(&mut world.wrapper, hidden);
    let refused = world.run(&["vm", "rm", "--force", "a"]);
    assert!(refused.stderr().contains("hides the processes of other users"), "{}", refused.told());
    still_there(&world);
    world.wrapper = open;
    world.run(&["vm", "rm", "--force", "a"]).ok();
    world.findings_at_rest().none();
}

/// A removal that cannot tell is refused, and so is a collection: record, files and process stay.
fn still_there(world: &World) {
    let before = world.processes();
    assert_eq!(before.len(), 1);
    let refused = world.run(&["vm", "rm", "--force", "a"]);
    assert_eq!(refused.code(), Some(1), "{}", refused.told());
    world.run(&["gc"]);
    assert_eq!(world.processes(), before);
    assert!(world.history().unwrap().named("a").is_some(), "{}", refused.told());
    world.findings().none();
}

/// A process with this very pid that has nothing to do with us. `None` if somebody else got the pid.
fn impostor(pid: u32) -> Option<Child> {
    for _ in 0..1000 {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        if child.id() == pid {
            return Some(child);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
    None
}

#[test]
fn after_a_reboot_nobodys_pid_is_ours() {
    let mut world = world("");
    world.run(&birth("run", "a", "guest")).ok();
    world.run(&birth("run", "b", "guest")).ok();
    let vmms = world.processes();
    for vmm in &vmms {
        processes::kill(vmm, &world.root());
    }
    let Some(namespace) = Namespace::enter(&mut world) else { return };
    let boot_id = world.beside().join("boot_id");
    fs::write(&boot_id, "01234567-89ab-4cde-8f01-23456789abcd\n").unwrap();
    namespace.run(&format!("mount --bind {} /proc/sys/kernel/random/boot_id", boot_id.display()));
    let mut impostors: Vec<_> = vmms.iter().filter_map(|vmm| impostor(vmm.pid)).collect();

    for vm in world.list() {
        assert_ne!(vm["state"], "running");
    }
    world.run(&["vm", "start", "a"]).ok();
    world.run(&["vm", "rm", "--force", "b"]).ok();
    assert_eq!(world.inspect("a")["state"], "running");
    world.run(&["vm", "stop", "a"]).ok();
    for child in &mut impostors {
        assert_eq!(child.try_wait().unwrap(), None, "a foreign process was ended");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    world.findings().none();
}
