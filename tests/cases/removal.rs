//! Removing VMs.

use std::fs;

use crate::{birth, die_at, world};

#[test]
fn a_vmm_whose_lock_file_was_removed_by_hand_is_found_and_killed() {
    let world = world("");
    world.run(&birth("run", "a", "guest")).ok();
    let id = world.inspect("a")["id"].as_str().unwrap().to_owned();
    fs::remove_file(world.root().join(format!("locks/vmm/{id}.lock"))).unwrap();
    assert_eq!(world.inspect("a")["state"], "running");
    world.run(&["vm", "rm", "a"]).refused("force required");
    world.run(&["vm", "rm", "--force", "a"]).ok();
    assert_eq!(world.processes(), []);
    world.findings_at_rest().none();
}

#[test]
fn a_vmm_that_nobody_recorded_and_whose_lock_file_is_gone_is_found_by_what_it_is() {
    let world = world("");
    world.run(&birth("create", "a", "guest")).ok();
    die_at(&world, &["vm", "start", "a"], "vmm.spawn.after");
    let id = world.history().unwrap().named("a").unwrap().core.id.to_string();
    assert_eq!(world.processes().len(), 1);
    fs::remove_file(world.root().join(format!("locks/vmm/{id}.lock"))).unwrap();
    world.run(&["vm", "rm", "--force", "a"]).ok();
    assert_eq!(world.processes(), []);
    world.findings_at_rest().none();
}

#[test]
fn a_guest_that_ignores_the_power_button_is_killed_at_once_by_a_forced_removal() {
    let world = world("cocoon.ignore-power-button");
    world.run(&birth("run", "a", "guest")).ok();
    let log = world.beside().join("passed");
    let variables = [("COCOON_CRASH_LOG", log.to_str().unwrap())];
    world.run_with(&["vm", "rm", "--force", "a"], &variables).ok();
    let passed = fs::read_to_string(log).unwrap();
    assert!(passed.contains("vmm.terminate.after"), "{passed}");
    assert!(!passed.contains("vmm.power-off"), "the guest was asked: {passed}");
    world.findings_at_rest().none();
}

#[test]
fn a_batch_says_of_each_what_became_of_it() {
    let world = world("");
    for (verb, name) in [("create", "a"), ("run", "b"), ("create", "c")] {
        world.run(&birth(verb, name, "guest")).ok();
    }
    let id = |name| world.inspect(name)["id"].as_str().unwrap().to_owned();
    let (a, c) = (id("a"), id("c"));
    let ran = world.run(&["vm", "rm", "a", "b", "nobody", "c", "-o", "json"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.told());
    let said = ran.json();
    assert_eq!(said["succeeded"], serde_json::json!([a, c]), "{}", ran.told());
    let failed = said["failed"].as_array().unwrap();
    let told = |at: usize| failed[at]["error"].as_str().unwrap();
    assert_eq!((&failed[0]["id"], &failed[1]["id"]), (&"b".into(), &"nobody".into()));
    assert!(told(0).contains("force required") && told(1).contains("vm not found"));
    assert_eq!(world.list().len(), 1);
    world.findings_at_rest().none();
}

#[test]
fn a_removal_during_a_start_serializes_with_it() {
    for _ in 0..10 {
        let world = world("cocoon.fake.boot=0.01");
        world.run(&birth("create", "a", "guest")).ok();
        let start = world.start(&["vm", "start", "a"], &[]);
        let remove = world.start(&["vm", "rm", "--force", "a"], &[]);
        let (start, remove) = (world.wait(start), world.wait(remove));
        let started = start.output.status.success();
        assert!(started || start.stderr().contains("vm not found"), "{}", start.told());
        remove.ok();
        assert_eq!(world.list(), [] as [serde_json::Value; 0]);
        assert_eq!(world.processes(), []);
        world.findings_at_rest().none();
    }
}

#[test]
fn a_removal_waits_for_a_start_that_fails() {
    let world = world("cocoon.fake.hang");
    world.run(&birth("create", "a", "guest")).ok();
    let quickly = [("COCOON_SOCKET_WAIT_TIMEOUT_SECONDS", "1")];
    let start = world.start(&["vm", "start", "a"], &quickly);
    let remove = world.start(&["vm", "rm", "--force", "a"], &quickly);
    let start = world.wait(start);
    assert_eq!(start.code(), Some(1), "{}", start.told());
    world.wait(remove).ok();
    assert_eq!(world.processes(), []);
    world.findings_at_rest().none();
}

#[test]
fn a_removal_that_waits_takes_a_crashed_vm_for_what_the_user_saw() {
    let world = world("");
    world.run(&birth("run", "a", "guest")).ok();
    let pid = world.inspect("a")["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    world.run(&["vm", "wait", "--state", "stopped", "a"]).ok();
    world.run(&["vm", "rm", "--wait", "a"]).ok();
    world.findings_at_rest().none();
}
