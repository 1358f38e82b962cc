//! A disk that takes its time: whoever waits is told what for.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use cocoon_test_faults::disk::skipped;
use cocoon_test_faults::{Call, Kind, Verdict, judged};
use cocoon_test_world::{Ran, World};
use nix::pty::openpty;

use crate::{birth, cocoon};

/// Runs a command on a disk on which each sync of a segment takes this long. `None` where that cannot be done.
fn with_syncs_of<T: Send + 'static>(
    time: Duration,
    run: fn(&World) -> T,
) -> Option<(T, PathBuf, World)> {
    let world = World::new(cocoon());
    world.import("");
    let segments = world.root().canonicalize().unwrap().join("journal/seg");
    let below = segments.clone();
    let judge = move |call: &Call| match call.kind {
        Kind::Sync if call.path.starts_with(&below) => Verdict::Wait(time),
        _ => Verdict::Go,
    };
    let ran = judged(judge, move || (run(&world), world));
    let (ran, world) = ran.map_err(|error| skipped("faults", &error.to_string())).ok()?;
    Some((ran, segments, world))
}

fn create(world: &World) -> Ran {
    world.run(&birth("create", "a")).ok()
}

/// Runs a command whose standard error is a terminal; `told` is called with all that came so far.
fn at_a_terminal(world: &World, arguments: &[&str], mut told: impl FnMut(&str)) -> String {
    let pty = openpty(None, None).unwrap();
    let mut command = world.command(arguments);
    let mut child = command.stdout(Stdio::null()).stderr(pty.slave).spawn().unwrap();
    // The command holds a copy of the other end, which would keep it open.
    drop(command);
    let (mut text, mut terminal) = (String::new(), std::fs::File::from(pty.master));
    let mut buffer = [0; 4096];
    // Fails once nobody has the other end.
    while let Ok(len @ 1..) = terminal.read(&mut buffer) {
        text.push_str(&String::from_utf8_lossy(&buffer[..len]));
        told(&text);
    }
    assert!(child.wait().unwrap().success(), "{text}");
    text
}

#[test]
fn a_slow_sync_is_told_once_with_the_file() {
    let time = Duration::from_millis(1300);
    let Some((ran, segments, world)) = with_syncs_of(time, create) else { return };
    let told = ran.stderr();
    assert_eq!(told.matches("waiting for the disk to write").count(), 1, "{told}");
    assert!(told.contains(segments.to_str().unwrap()), "{told}");
    assert!(!ran.stdout().contains("waiting"), "answers are answers: {}", ran.stdout());
    world.findings_at_rest().none();
}

#[test]
fn at_a_terminal_a_slow_sync_is_told_while_it_lasts() {
    let time = Duration::from_millis(1300);
    let create = |world: &World| at_a_terminal(world, &birth("create", "a"), |_| ());
    let Some((told, ..)) = with_syncs_of(time, create) else { return };
    assert_eq!(told.matches("the answer comes after it").count(), 1, "{told}");
}

/// No sync is slow enough by itself, but all of them are slow.
#[test]
fn syncs_of_a_fifth_of_a_second_add_up() {
    let time = Duration::from_millis(220);
    let run = |world: &World| world.run(&birth("run", "a")).ok().stderr();
    let Some((told, ..)) = with_syncs_of(time, run) else { return };
    assert_eq!(told.matches("waiting for the disk to write").count(), 1, "{told}");
}

#[test]
fn a_disk_that_is_quick_enough_is_not_worth_a_word() {
    let Some((ran, ..)) = with_syncs_of(Duration::from_millis(20), create) else { return };
    assert!(!ran.stderr().contains("waiting"));
}

#[test]
fn a_lock_that_is_held_for_long_is_told() {
    let world = World::new(cocoon());
    world.import("");
    let path = world.root().join("journal/LOCK");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.lock().unwrap();
    let told = at_a_terminal(&world, &birth("create", "a"), |told| {
        if told.contains("waiting for") {
            // It would wait until its deadline otherwise.
            file.unlock().unwrap();
        }
    });
    assert_eq!(told.matches("waiting for").count(), 1, "{told}");
    assert!(told.contains("journal/LOCK") && told.contains("held by"), "{told}");
}
