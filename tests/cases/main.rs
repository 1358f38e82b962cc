//! What people ran into in the field, as tests: one theme a module.
//!
//! Every case runs real `cocoon` processes on a root of its own. The judge of `cocoon-test-world` looks at what they
//! leave: the journal, directories, processes, locks.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod adopt;
mod deaths;
mod hold;
mod identity;
mod in_flight;
mod leftovers;
mod names;
mod namespace;
mod power;
mod removal;
mod strays;
mod transfer;

use std::path::Path;

use cocoon_test_world::World;

/// A world with an image whose guest follows a script.
fn world(script: &str) -> World {
    let world = World::new(Path::new(env!("CARGO_BIN_EXE_cocoon")));
    world.import(script);
    world
}

/// The arguments that create or run a small VM.
fn birth<'a>(verb: &'a str, name: &'a str, image: &'a str) -> [&'a str; 11] {
    ["vm", verb, "--name", name, "--cpu", "1", "--memory", "64M", "--storage", "16M", image]
}

/// Runs a command that is to die at a boundary.
#[track_caller]
fn die_at(world: &World, arguments: &[&str], boundary: &str) {
    let ran = world.run_with(arguments, &[("COCOON_CRASH_AT", boundary)]);
    assert!(ran.was_killed(), "not killed at {boundary}: {}", ran.told());
}
