//! Starting and stopping.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};

use crate::{birth, die_at, world};

fn is_held(path: &std::path::Path) -> bool {
    flock(File::open(path).unwrap(), FlockOperation::NonBlockingLockExclusive).is_err()
}

#[test]
fn the_vmm_of_a_killed_command_holds_its_own_lock_and_not_the_commands() {
    let world = world("");
    die_at(&world, &birth("run", "a", "guest"), "vmm.boot.after");
    let id = world.history().unwrap().named("a").unwrap().core.id.to_string();
    assert_eq!(world.processes().len(), 1);
    assert!(!is_held(&world.root().join(format!("locks/vm/{id}.lock"))));
    assert!(is_held(&world.root().join(format!("locks/vmm/{id}.lock"))));
    // Nobody has to wait for anything, and the guest that runs is kept.
    let before = world.processes();
    world.run(&["vm", "start", "a"]).ok();
    assert_eq!(world.processes(), before);
    world.run(&["vm", "stop", "a"]).ok();
    assert_eq!(world.processes(), []);
    world.findings_at_rest().none();
}

#[test]
fn a_stop_returns_when_the_vmm_is_gone_so_that_a_start_works_at_once() {
    let world = world("");
    world.run(&birth("run", "a", "guest")).ok();
    for round in 0..10 {
        let force: &[&str] = if round % 2 == 0 { &[] } else { &["--force"] };
        world.run(&[&["vm", "stop", "a"], force].concat()).ok();
        assert_eq!(world.processes(), []);
        world.run(&["vm", "start", "a"]).ok();
        assert_eq!(world.processes().len(), 1);
    }
    world.findings_at_rest().none();
}

#[test]
fn a_guest_that_ignores_the_power_button_is_ended_when_its_time_is_up() {
    let world = world("cocoon.ignore-power-button");
    world.run(&birth("run", "a", "guest")).ok();
    world.run(&["vm", "stop", "--timeout", "100ms", "a"]).ok();
    assert_eq!(world.processes(), []);
    assert_eq!(world.inspect("a")["state"], "stopped");
    world.findings_at_rest().none();
}

#[test]
fn force_ends_a_stop_that_died_and_nobody_else_holds_the_vm_meanwhile() {
    let world = world("cocoon.ignore-power-button");
    for force in [["vm", "stop", "--force", "a"], ["vm", "rm", "--force", "a"]] {
        world.run(&birth("run", "a", "guest")).ok();
        die_at(&world, &["vm", "stop", "--timeout", "1h", "a"], "vmm.power-off.before");
        // A collector leaves the guest its time, and keeps nobody waiting for it.
        let gc = world.run(&["gc"]).ok();
        assert!(gc.stderr().contains("still has time to power off"), "{}", gc.told());
        assert_eq!(world.processes().len(), 1);
        world.run(&force).ok();
        assert_eq!(world.processes(), []);
        world.run(&["gc"]).ok();
        if world.list().len() == 1 {
            world.run(&["vm", "rm", "a"]).ok();
        }
        world.findings_at_rest().none();
    }
}

#[test]
fn a_stop_that_died_is_finished_when_the_time_of_its_guest_is_over() {
    let world = world("cocoon.ignore-power-button");
    world.run(&birth("run", "a", "guest")).ok();
    die_at(&world, &["vm", "stop", "--timeout", "0s", "a"], "vmm.power-off.before");
    world.run(&["gc"]).ok();
    assert_eq!(world.processes(), []);
    assert_eq!(world.inspect("a")["last_transition_reason"], "stop-user");
    world.findings_at_rest().none();
}
