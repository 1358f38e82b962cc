//! Every file of a journal, damaged in every way: what comes of it, and a page that says so.
//!
//! ```text
//!   a root with history: sealed segments, a live one, checkpoints, generations of the store
//!     for each file, each damage, each place:  damage a copy
//!        read, write, verify, catch up         everything is there, or an error that names a command
//!        repair                                everything is there again, or what is lost is named and refused
//!        repair and accept the loss            a beginning of the history, the loss recorded; it goes on
//! ```
//!
//! Nothing may panic, and no history that is read may be shorter or other than what was acknowledged. The table of
//! outcomes is `docs/damage.md`; `COCOON_BLESS=1` rewrites it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "damage/harm.rs"]
mod harm;
#[path = "damage/judge.rs"]
mod judge;
#[path = "damage/kills.rs"]
mod kills;
#[path = "damage/page.rs"]
mod page;
#[path = "damage/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use harm::{HARMS, Harm};
use judge::Outcome;
use world::World;

/// Most of the time is spent waiting for locks of files that were just closed.
const WORKERS: usize = 6;

/// Outcomes by what was damaged, and how.
type Table = BTreeMap<(usize, usize), BTreeSet<Outcome>>;

#[test]
fn every_file_in_every_way() {
    let world = World::new();
    let subjects = world.subjects();
    let rows = Mutex::new(subjects.iter().enumerate().collect::<Vec<_>>());
    let table = Mutex::new(Table::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let row = rows.lock().unwrap().pop();
                    let Some((row, subject)) = row else { break };
                    for (column, outcome) in outcomes(&world, subject) {
                        table.lock().unwrap().entry((row, column)).or_default().insert(outcome);
                    }
                }
            });
        }
    });
    page::check(&subjects, &table.into_inner().unwrap());
}

/// What comes of every damage to one file, by the number of the damage.
fn outcomes(world: &World, subject: &world::Subject) -> Vec<(usize, Outcome)> {
    let mut found = Vec::new();
    for (column, harm) in HARMS.iter().enumerate() {
        let places = (0..harm.places()).filter_map(|place| befall(world, subject, *harm, place));
        found.extend(places.map(|outcome| (column, outcome)));
    }
    found
}

/// Damages a copy of the world and judges what comes of it; `None` if the harm cannot befall the file.
fn befall(world: &World, subject: &world::Subject, harm: Harm, place: u64) -> Option<Outcome> {
    let copy = world.copy();
    let label = format!("{}, {harm:?}, place {place}", subject.name);
    if !harm.befall(&copy, &subject.path, place) {
        return None;
    }
    Some(judge::judge(world, &copy, harm, &label))
}
