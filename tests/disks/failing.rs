//! Calls on the files of the journal that fail once, under whole commands.
//!
//! The life of a VM is lived once to count the calls, then again with one of them failing. Its commands go on by
//! themselves, each a process of its own, as a user's do.

use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

use cocoon_test_faults::disk::skipped;
use cocoon_test_faults::{Call, Kind, Verdict, judged};
use cocoon_test_world::{Ran, World};

use crate::{birth, cocoon, states};

/// Points that are taken, unless `COCOON_FAULTS` says how many.
const POINTS: usize = 24;

/// What cannot be listed for want of descriptors is there all the same.
#[test]
fn a_journal_that_cannot_be_looked_at_is_not_gone() {
    let world = World::new(cocoon());
    world.import("");
    let segments = world.root().canonicalize().unwrap().join("journal/seg");
    let judge = move |call: &Call| match call.kind {
        Kind::Open if call.path == segments => Verdict::Fail(nix::libc::EMFILE),
        _ => Verdict::Go,
    };
    let ran = judged(judge, move || (world.run(&birth("create", "a")), world));
    let Ok((ran, _world)) = ran.map_err(|error| skipped("faults", &error.to_string())) else {
        return;
    };
    let told = ran.refused("Too many open files").stderr();
    assert!(!told.contains("gone"), "{told}");
}

/// A life, and what each of its commands came to.
fn live(world: &World) -> Vec<Ran> {
    let commands: [&[&str]; 6] = [
        &birth("create", "a"),
        &["vm", "start", "a"],
        &["vm", "list"],
        &["vm", "stop", "--force", "a"],
        &["vm", "rm", "a"],
        &["gc"],
    ];
    commands.into_iter().map(|arguments| world.run(arguments)).collect()
}

/// Lives it with the call at `fail` failing with that errno; the calls as well.
fn live_with(fail: Option<(usize, i32)>) -> Option<(Vec<Ran>, Vec<Call>, World)> {
    let world = World::new(cocoon());
    world.import("");
    let below = world.root().canonicalize().unwrap().join("journal");
    let calls = Arc::new(Mutex::new(Vec::new()));
    let noted = calls.clone();
    let judge = move |call: &Call| {
        if !call.path.starts_with(&below) {
            return Verdict::Go;
        }
        let mut noted = noted.lock().unwrap();
        noted.push(call.clone());
        match fail {
            Some((at, errno)) if at + 1 == noted.len() => Verdict::Fail(errno),
            _ => Verdict::Go,
        }
    };
    let lived = judged(judge, move || (live(&world), world));
    let (ran, world) = lived.map_err(|error| skipped("faults", &error.to_string())).ok()?;
    let calls = calls.lock().unwrap().clone();
    Some((ran, calls, world))
}

#[test]
fn commands_go_on_after_each_failing_call_of_the_journal() {
    let Some((ran, calls, world)) = live_with(None) else { return };
    for ran in ran {
        ran.ok();
    }
    drop(world);
    let points = calls.iter().enumerate();
    let points = points.flat_map(|(at, call)| call.kind.errors().iter().map(move |e| (at, *e)));
    let points: Vec<_> = points.collect();
    let wanted = std::env::var("COCOON_FAULTS").map_or(POINTS, |points| points.parse().unwrap());
    let step = points.len().div_ceil(wanted.max(1)).max(1);
    let failed = points.iter().step_by(step);
    let wrong = failed.filter(|(at, errno)| catch_unwind(|| fail(*at, *errno)).is_err()).count();
    assert_eq!(wrong, 0, "see above");
    println!("{} calls, {} failures of them", calls.len(), points.len().div_ceil(step));
}

fn fail(at: usize, errno: i32) {
    let (ran, calls, world) = live_with(Some((at, errno))).unwrap();
    let why = std::io::Error::from_raw_os_error(errno).to_string();
    let context = format!("{why} of {:?}", calls.get(at));
    let refused: Vec<_> = ran.iter().filter(|ran| !ran.output.status.success()).collect();
    let told = || ran.iter().map(Ran::told).collect::<String>();
    if let Some(first) = refused.first() {
        assert_eq!(first.code(), Some(1), "{context}\n{}", told());
        assert!(first.stderr().contains(&why), "{context}: why\n{}", told());
        assert!(first.stderr().contains("journal"), "{context}: on what\n{}", told());
    }
    // Whatever was refused can be asked for again, and nothing of it is in the way.
    if !states(&world).is_empty() {
        world.run(&["vm", "rm", "--force", "a"]).ok();
    }
    world.run(&birth("run", "b")).ok();
    world.run(&["vm", "rm", "--force", "b"]).ok();
    world.run(&["gc"]).ok();
    world.requires_agreement();
    world.findings_at_rest().none();
}
