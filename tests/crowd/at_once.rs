//! Processes that create, stop, delete and list at once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use cocoon_journal::Fold as _;
use cocoon_test_world::World;

use crate::acknowledged::{Done, Written, follow};
use crate::{birth, number, world};

/// Names that all fight for.
const SHARED: usize = 4;

/// The life of one VM of its own, and a try at a name that others want too. Each verb is a process.
fn life(world: &World, number: usize) -> Vec<Done> {
    let (own, shared) = (format!("own-{number}"), format!("shared-{}", number % SHARED));
    let listed = |there: bool| {
        let names: Vec<_> = world.list().iter().map(|vm| vm["config"]["name"].clone()).collect();
        assert_eq!(names.contains(&own.as_str().into()), there, "{own}: {names:?}");
    };
    // Starting takes longest, so not everybody does.
    let verb = if number.is_multiple_of(4) { "run" } else { "create" };
    let mut row = vec![Done::run(world, "Committed", &birth(verb, &own))];
    assert!(row[0].is_yes(), "{}", row[0].ran.told());
    listed(true);
    row.push(Done::run(world, "Committed", &birth("create", &shared)));
    if verb == "run" {
        row.push(Done::run(world, "Stopped", &["vm", "stop", "--force", &own]));
        assert!(row[2].is_yes(), "{}", row[2].ran.told());
    }
    row.push(Done::run(world, "Deleted", &["vm", "rm", &own]));
    assert!(row.last().unwrap().is_yes(), "{}", row.last().unwrap().ran.told());
    listed(false);
    row
}

fn lives(world: &World, crowd: usize) -> Vec<Vec<Done>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut rows = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= crowd {
                return rows;
            }
            rows.push(life(world, number));
        }
    };
    std::thread::scope(|scope| {
        let at_once = number("COCOON_AT_ONCE", 12).min(crowd);
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

#[test]
fn a_crowd_loses_doubles_and_reorders_nothing() {
    let mut world = world();
    // Seals, and checkpoints, come while all are at it.
    world.environment.push(("COCOON_SEGMENT_EVENTS", "25".into()));
    let (world, end) = (&world, OnceLock::new());
    let journal = world.root().join("journal");
    let (rows, written) = std::thread::scope(|scope| {
        let followers: Vec<_> =
            (0..2).map(|_| scope.spawn(|| follow(&journal, || end.get().copied()))).collect();
        let rows = lives(world, number("COCOON_CROWD", 48));
        let written = Written::of(world);
        end.set(written.position().seq).unwrap();
        for follower in followers {
            assert_eq!(follower.join().unwrap(), written.position());
        }
        (rows, written)
    });
    rows.iter().for_each(|row| written.check(row));
    for name in 0..SHARED.min(rows.len()) {
        let of = rows.iter().map(|row| &row[1]);
        let told = format!("--name shared-{name} ");
        let won = of.filter(|done| done.is_yes() && done.ran.command.contains(&told)).count();
        assert_eq!(won, 1, "one gets the name {name}");
    }
    world.findings_at_rest().none();
    world.requires_agreement();
}
