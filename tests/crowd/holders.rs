//! Processes that are stopped while they hold what others need, at each boundary at which they may be.
//!
//! ```text
//!   LOCK         everybody waits for it: a stopped holder is continued, a stuck one is named
//!   OWNER, CKPT  nobody waits for them, whatever becomes of their holder
//! ```

use std::collections::BTreeSet;
use std::process::Child;
use std::time::{Duration, Instant};

use cocoon_journal::{Entry, Journal as _, Options, Proposal, SegmentedJournal, Subject};
use cocoon_journal::{Unfolded, Writer};
use cocoon_test_world::{World, filled};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use uuid::Uuid;

use crate::{birth, empty_world, world};

/// Names of boundaries within sections of LOCK, in the first life of a journal and when a segment is sealed.
fn in_lock(name: &str) -> bool {
    let outside = ["journal.sync.before", "journal.sync.after"];
    name.starts_with("journal.") && !outside.contains(&name)
}

/// Names of boundaries at which OWNER or CKPT is held.
fn in_derived(name: &str) -> bool {
    name.starts_with("store.") || name.starts_with("checkpoint.")
}

/// The boundaries that a command passes.
fn passed(world: &World, arguments: &[&str], which: fn(&str) -> bool) -> BTreeSet<String> {
    let log = world.beside().join("boundaries");
    let crash_log = ("COCOON_CRASH_LOG", log.to_str().unwrap());
    world.run_with(arguments, &[crash_log, filled::VARIABLE]).ok();
    let text = std::fs::read_to_string(log).unwrap();
    let names: BTreeSet<_> = text.lines().filter(|name| which(name)).map(str::to_owned).collect();
    assert!(names.len() > 2, "{names:?}");
    names
}

/// Starts a command that stops itself at a boundary, and waits until it has.
fn stopped_at(world: &World, arguments: &[&str], boundary: &str) -> Child {
    let child = world.start(arguments, &[("COCOON_STOP_AT", boundary), filled::VARIABLE]);
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped(), "{boundary} was not reached");
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
}

fn full() -> World {
    let world = world();
    filled::fill(&world);
    world
}

#[test]
fn a_stopped_holder_of_the_lock_is_continued() {
    let verb = birth("create", "stopped");
    for boundary in passed(&full(), &verb, in_lock) {
        println!("{boundary}");
        let world = full();
        let child = stopped_at(&world, &verb, &boundary);
        // At `journal.head.after` it may have let go of the lock already, and goes on when it is told to.
        world.run_with(&birth("create", "other"), &[filled::VARIABLE]).ok();
        signal(&child, Signal::CONT);
        world.wait(child).ok();
        world.run(&["vm", "rm", "stopped"]).ok();
        world.run(&["vm", "rm", "other"]).ok();
        world.findings_at_rest().none();
        world.requires_agreement();
    }
}

#[test]
fn the_first_command_may_be_stopped_anywhere() {
    let verb = ["vm", "list"];
    for boundary in passed(&empty_world(), &verb, in_lock) {
        let world = empty_world();
        let child = stopped_at(&world, &verb, &boundary);
        world.import("");
        world.wait(child).ok();
        world.requires_agreement();
    }
}

#[test]
fn nobody_waits_for_who_writes_checkpoints_or_feeds_the_store() {
    let verb = birth("create", "stopped");
    for boundary in passed(&full(), &verb, in_derived) {
        println!("{boundary}");
        let world = full();
        let child = stopped_at(&world, &verb, &boundary);
        world.run(&birth("create", "other")).ok();
        world.run(&["vm", "list"]).ok();
        signal(&child, Signal::KILL);
        assert!(world.wait(child).was_killed());
        world.run(&["vm", "rm", "other"]).ok();
        assert_eq!(world.inspect("stopped")["state"], "created", "its answer was out");
        world.findings_at_rest().none();
        world.requires_agreement();
    }
}

/// A process that holds the lock and does not let go, though nobody stopped it.
#[test]
fn a_stuck_holder_of_the_lock_is_named() {
    let world = world();
    let mut journal =
        SegmentedJournal::open_existing(&world.root().join("journal"), Options::default()).unwrap();
    let mut end = Unfolded::default();
    journal.refresh(&mut end).unwrap();
    let writer = Writer::of_this_process(Uuid::from_u128(1), "stuck").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let decide = |_: &Unfolded| {
        let refused = world.run(&birth("create", "waits")).refused("the journal has been locked");
        let told = refused.stderr();
        assert!(told.contains(&format!("process {} (stuck)", std::process::id())), "{told}");
        assert!(world.list().is_empty(), "who only reads does not wait");
        Ok(Proposal::<()>::Answer(()))
    };
    journal.transact(&mut end, &writer, deadline, decide).unwrap();
    world.run(&birth("create", "waits")).ok();
    world.run(&["vm", "rm", "waits"]).ok();
    world.findings_at_rest().none();
}

/// What a newer program would append.
pub(crate) fn newer_event() -> Entry {
    let subject = Subject::new("vm/from-the-future").unwrap();
    Entry { kind: 59_999, version: 9, subject, body: vec![1, 2, 3] }
}
