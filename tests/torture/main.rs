//! A mixed load of real `cocoon` processes on one root, killed at random.
//!
//! ```text
//!   workers:  a verb on a name ─► SIGKILL after a random while, or not ─► what it said is held against it
//!             names of a worker's own: what was acknowledged must be so at the next verb
//!             names shared by all:     whatever comes of it, in good order
//!   a daemon: started, killed, started again
//!   at last:  everyone dead ─► gc ─► gc ─► judge at rest ─► every name can be had again
//! ```
//!
//! `COCOON_TORTURE` is the number of kills (200), `COCOON_SEED` repeats the choices of a run, though not its schedule.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod daemon;
mod load;
mod random;
mod report;
mod victim;

use std::path::Path;
use std::sync::Mutex;

use cocoon_test_world::World;
use cocoon_test_world::world::IMAGE;

use daemon::supervise;
use load::{Load, Worker};
use report::Report;

/// Processes that are at work at once.
const WORKERS: u64 = 6;

/// Of a hundred kills, as many must hit a verb that lives.
const HITS_WANTED: usize = 30;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a whole number"))
}

#[test]
fn random_kills_lose_nothing() {
    let kills = number("COCOON_TORTURE", 200);
    let seed = number("COCOON_SEED", u64::from(std::process::id()));
    println!("seed {seed}: COCOON_SEED={seed} COCOON_TORTURE={kills} repeats its choices");
    let mut world = World::new(Path::new(env!("CARGO_BIN_EXE_cocoon")));
    // Segments are sealed all the time.
    world.environment.push(("COCOON_SEGMENT_EVENTS", "100".into()));
    let load = Load::new(&world, kills);
    let report = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let killed = supervise(&load, seed);
            report.lock().unwrap().daemons = killed;
        });
        for number in 0..WORKERS {
            let (load, report) = (&load, &report);
            scope.spawn(move || {
                let mut worker = Worker::new(load, seed, number);
                while worker.turn() {}
                report.lock().unwrap().add(worker.into_report());
            });
        }
    });
    let report = report.into_inner().unwrap();
    println!("{report}");
    assert_eq!(report.complaints, [] as [String; 0], "seed {seed}");

    at_rest(&world, seed);
    let (hits, kills) = (report.hits(), report.kills);
    assert!(hits * 100 >= kills * HITS_WANTED, "{hits} of {kills} kills hit a verb; seed {seed}");
}

/// Everyone is dead: two collections bring everything to rest, and every name can be had again.
fn at_rest(world: &World, seed: u64) {
    world.run(&["gc"]).ok();
    world.run(&["gc"]).ok();
    let findings = world.findings_at_rest();
    assert!(findings.is_empty(), "seed {seed}:\n{findings}");
    world.requires_agreement();
    for vm in world.list() {
        world.run(&["vm", "rm", "--force", vm["id"].as_str().unwrap()]).ok();
    }
    for name in load::names() {
        world.run(&load::birth("create", &name, IMAGE)).ok();
        world.run(&["vm", "rm", &name]).ok();
    }
    let findings = world.findings_at_rest();
    assert!(findings.is_empty(), "seed {seed}:\n{findings}");
    assert_eq!(world.processes(), []);
}
