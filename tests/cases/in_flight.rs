//! Creations in flight: nobody touches them while their owner lives, anybody clears them once it is dead.

use cocoon_model::record::VmState;
use rustix::process::{Pid, Signal, kill_process};

use crate::hold::{Hold, creation};
use crate::{die_at, world};

fn signal(child: &std::process::Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
}

#[test]
fn a_creation_in_flight_is_busy_and_then_succeeds() {
    let mut world = world("");
    let Some(hold) = Hold::new(&mut world) else { return };
    let child = hold.create(&world, "a");

    let sweep = world.run(&["vm", "reconcile-stale-create", "a", "-o", "json"]).ok();
    assert_eq!(sweep.json()["outcome"], "busy", "{}", sweep.told());
    assert_eq!(sweep.json()["holder"]["pid"], child.id(), "{}", sweep.told());
    let gc = world.run(&["gc"]).ok();
    assert!(gc.stderr().contains("somebody works on it"), "{}", gc.told());

    hold.release();
    world.wait(child).ok();
    assert_eq!(world.inspect("a")["state"], "created");
    world.findings_at_rest().none();
}

#[test]
fn a_forced_removal_never_queues_behind_a_creation_to_remove_its_fresh_vm() {
    let mut world = world("");
    let Some(hold) = Hold::new(&mut world) else { return };
    let child = hold.create(&world, "a");

    let refused = world.run(&["vm", "rm", "--force", "a"]).refused("in flight");
    for word in ["create", &child.id().to_string()] {
        assert!(refused.stderr().contains(word), "{}", refused.told());
    }
    hold.release();
    world.wait(child).ok();
    assert_eq!(world.inspect("a")["state"], "created");
}

#[test]
fn a_removal_that_waits_refuses_what_became_somebodys_fresh_vm() {
    let mut world = world("");
    let Some(hold) = Hold::new(&mut world) else { return };
    let creator = hold.create(&world, "a");
    let remover = world.start(&["vm", "rm", "--force", "--wait", "a"], &[]);
    hold.release();
    world.wait(creator).ok();
    let removal = world.wait(remover);
    // It may have come too late to see the creation at all, in which case it removes what it was asked to.
    let there = world.history().unwrap().named("a").is_some();
    assert_eq!(removal.code(), Some(i32::from(there)), "{}", removal.told());
    assert!(!there || removal.stderr().contains("changed while you waited"), "{}", removal.told());
    world.findings_at_rest().none();
}

#[test]
fn an_interrupted_creation_that_hangs_can_be_removed_at_once() {
    for how in [Signal::INT, Signal::HUP, Signal::TERM, Signal::KILL] {
        let mut world = world("");
        let Some(hold) = Hold::new(&mut world) else { return };
        let child = hold.create(&world, "a");
        assert_eq!(world.list()[0]["state"], "creating");

        signal(&child, how);
        assert!(!world.wait(child).output.status.success(), "{how:?}");
        world.run(&["vm", "rm", "a"]).ok();
        assert_eq!(world.list(), [] as [serde_json::Value; 0], "{how:?}");
        world.findings().none();
        world.run(&["gc"]).ok();
        world.findings_at_rest().none();
    }
}

#[test]
fn a_sweep_that_saw_busy_asks_again_and_collects() {
    let mut world = world("");
    let Some(hold) = Hold::new(&mut world) else { return };
    let child = hold.create(&world, "a");
    let sweep = || {
        let ran = world.run(&["vm", "reconcile-stale-create", "a", "-o", "json"]).ok();
        ran.json()["outcome"].as_str().unwrap().to_owned()
    };
    assert_eq!(sweep(), "busy");
    signal(&child, Signal::KILL);
    assert!(world.wait(child).was_killed());
    assert_eq!(sweep(), "collected");
    assert_eq!(sweep(), "not-found");
    world.findings_at_rest().none();
}

#[test]
fn a_sweep_that_dies_leaves_the_placeholder_to_the_next() {
    let world = world("");
    die_at(&world, &crate::birth("create", "a", "guest"), "storage.make-disk.after");
    die_at(&world, &["vm", "reconcile-stale-create", "a"], "remove.run-directory.before");
    // Half removed is no placeholder to be brought back: it goes forward, under the same word.
    let sweep = world.run(&["vm", "reconcile-stale-create", "a", "-o", "json"]).ok();
    assert_eq!(sweep.json()["outcome"], "collected", "{}", sweep.told());
    world.findings_at_rest().none();
}

#[test]
fn a_creator_killed_right_after_it_took_the_name_leaves_nothing() {
    let world = world("");
    die_at(&world, &crate::birth("create", "a", "guest"), "journal.head.after");
    assert_eq!(world.list()[0]["state"], "creating");
    let sweep = world.run(&["vm", "reconcile-stale-create", "a", "-o", "json"]).ok();
    assert_eq!(sweep.json()["outcome"], "collected", "{}", sweep.told());
    world.findings_at_rest().none();
    for directory in ["run/qemu", "log/qemu", "locks/vm", "locks/vmm"] {
        let entries = std::fs::read_dir(world.root().join(directory));
        assert_eq!(entries.map_or(0, Iterator::count), 0, "{directory}");
    }
    world.run(&crate::birth("create", "a", "guest")).ok();
}

#[test]
fn a_stop_does_not_touch_a_placeholder() {
    let world = world("");
    die_at(&world, &crate::birth("create", "a", "guest"), "storage.make-disk.after");
    world.run(&["vm", "stop", "a"]).refused("still being created");
    assert_eq!(world.history().unwrap().state_of("a"), Some(VmState::Creating));
    let sweep = world.run(&["vm", "reconcile-stale-create", "a", "-o", "json"]).ok();
    assert_eq!(sweep.json()["outcome"], "collected", "{}", sweep.told());
}

#[test]
fn a_creation_that_was_held_up_can_be_repeated_under_its_name() {
    let mut world = world("");
    let Some(hold) = Hold::new(&mut world) else { return };
    let child = hold.create(&world, "a");
    signal(&child, Signal::KILL);
    assert!(world.wait(child).was_killed());
    let again = world.start(&creation("a"), &[]);
    std::fs::read(world.beside().join("began")).unwrap();
    hold.release();
    let again = world.wait(again).ok();
    assert!(again.stderr().contains("cleared away"), "{}", again.told());
    world.findings_at_rest().none();
}
