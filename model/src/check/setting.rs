//! The world in which a scope begins.

use super::act::{Findings, Flow};
use super::books::Books;
use super::moves::{Move, by_itself, make};
use super::scope::Scope;
use super::world::{Actor, Budgets, Pc, RunDir, World};

/// Steps that a command takes at most when nothing goes wrong.
const STEPS: usize = 200;

impl Scope {
    /// The first world: what went before is done, nobody of the actors has begun.
    pub(crate) fn first(&self, books: &mut Books, found: &mut Findings) -> World {
        let mut world = World { boot: 1, ..World::default() };
        for cast in &self.before {
            run(&mut world, books, std::slice::from_ref(cast), cast.slot, found);
        }
        for slot in &self.foreign {
            let place = &mut world.places[usize::from(*slot)];
            (place.run, place.log, place.foreign) = (RunDir::Whole, true, true);
        }
        world.budgets = Budgets {
            kills: self.kills,
            power_losses: self.power_losses,
            vmm_deaths: self.vmm_deaths,
            failures: self.failures,
        };
        world
    }
}

/// Runs one command to its end, alone.
fn run(
    world: &mut World,
    books: &mut Books,
    casts: &[super::scope::Cast],
    slot: u8,
    found: &mut Findings,
) {
    for _ in 0..STEPS {
        if matches!(world.actors[0].pc, Pc::Done | Pc::Failed | Pc::Dead) {
            break;
        }
        let before = *world;
        let step = Move::Step { actor: 0, fails: false };
        if make(world, books, casts, found, step) == Flow::Went {
            continue;
        }
        *world = before;
        let mut alone = Vec::new();
        by_itself(world, slot, &mut alone);
        let Some(next) = alone.first() else { break };
        make(world, books, casts, found, *next);
    }
    if world.actors[0].pc != Pc::Done {
        found
            .break_("V9", || format!("`{}` of vm{slot} does not end well", casts[0].role.as_str()));
    }
    world.actors[0] = Actor::default();
}
