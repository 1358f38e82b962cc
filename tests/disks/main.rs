//! Disks that are full, that fail, that are slow and that lose their power, under whole commands.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test ends at what it did not expect")]

mod failing;
mod full;
mod power;
mod slow;

use std::path::Path;

use cocoon_test_world::World;
use cocoon_test_world::world::IMAGE;

/// The binary under test.
fn cocoon() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_cocoon"))
}

/// The arguments of `vm create` or `vm run`.
fn birth<'a>(verb: &'a str, name: &'a str) -> [&'a str; 11] {
    ["vm", verb, "--name", name, "--cpu", "1", "--memory", "64M", "--storage", "16M", IMAGE]
}

/// Names and states of all VMs.
fn states(world: &World) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let vms = world.list();
    let mut states: Vec<_> =
        vms.iter().map(|vm| (text(&vm["config"]["name"]), text(&vm["state"]))).collect();
    states.sort();
    states
}

/// Runs a test in a thread of its own, which leaves the mount namespace of the others.
fn apart(test: fn()) {
    std::thread::spawn(test).join().unwrap();
}
