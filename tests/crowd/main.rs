//! Many `cocoon` processes on one root at once, and processes that are stopped or killed in the middle of a section that
//! others wait for.
//!
//! What each process was told is held against the journal, as are the invariants and what is found on the host.
//! `COCOON_CROWD` is the number of processes of the crowd (48), `COCOON_AT_ONCE` how many of them run at a time (12).

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod acknowledged;
mod at_once;
mod first;
mod holders;
mod versions;

use std::path::Path;

use cocoon_test_world::World;

/// A world with an image.
fn world() -> World {
    let world = empty_world();
    world.import("");
    world
}

/// A world in which nothing has happened yet.
fn empty_world() -> World {
    World::new(Path::new(env!("CARGO_BIN_EXE_cocoon")))
}

/// The arguments that create or run a small VM.
fn birth<'a>(verb: &'a str, name: &'a str) -> [&'a str; 11] {
    ["vm", verb, "--name", name, "--cpu", "1", "--memory", "64M", "--storage", "16M", "guest"]
}

/// A number from the environment.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}
