//! A disk that takes its time: whoever waits is told what for.

use std::path::PathBuf;
use std::time::Duration;

use cocoon_test_faults::disk::skipped;
use cocoon_test_faults::{Call, Kind, Verdict, judged};
use cocoon_test_world::{Ran, World};

use crate::{birth, cocoon};

/// Runs a command on a disk on which each sync of a segment takes this long. `None` where that cannot be done.
fn create_with_syncs_of(world: World, time: Duration) -> Option<(Ran, PathBuf, World)> {
    let segments = world.root().canonicalize().unwrap().join("journal/seg");
    let below = segments.clone();
    let judge = move |call: &Call| match call.kind {
        Kind::Sync if call.path.starts_with(&below) => Verdict::Wait(time),
        _ => Verdict::Go,
    };
    let ran = judged(judge, move || (world.run(&birth("create", "a")), world));
    let (ran, world) = ran.map_err(|error| skipped("faults", &error.to_string())).ok()?;
    Some((ran, segments, world))
}

fn world() -> World {
    let world = World::new(cocoon());
    world.import("");
    world
}

#[test]
fn a_slow_sync_is_told_once_with_the_file() {
    let time = Duration::from_millis(1300);
    let Some((ran, segments, world)) = create_with_syncs_of(world(), time) else { return };
    let ran = ran.ok();
    let told = ran.stderr();
    assert_eq!(told.matches("waiting for the disk to write").count(), 1, "{told}");
    assert!(told.contains(segments.to_str().unwrap()), "{told}");
    assert!(!ran.stdout().contains("waiting"), "answers are answers: {}", ran.stdout());
    world.findings_at_rest().none();
}

#[test]
fn a_disk_that_is_quick_enough_is_not_worth_a_word() {
    let time = Duration::from_millis(20);
    let Some((ran, ..)) = create_with_syncs_of(world(), time) else { return };
    assert!(!ran.ok().stderr().contains("waiting"));
}
