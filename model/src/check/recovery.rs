//! Bounded liveness: from every state, everyone dies, faults stop, and recovery comes to rest.
//!
//! What is left when all processes of cocoon are dead is far less than what there was before: many states have the same
//! remains, and each remains are recovered once.

use crate::record::VmState;

use super::act::{Act, Findings, Flow, slots};
use super::books::{Books, Process};
use super::moves::{DUTIES, Move, by_itself, end_helper, exec, make};
use super::scope::{Cast, Role};
use super::table::Set;
use super::trace::Line;
use super::world::{Actor, BY_VMM, Helper, Pc, RunDir, VMS, Vmm, World};

/// Passes that may change something.
const PASSES: usize = 2;

/// Steps of one duty; far more than any needs.
const STEPS: usize = 200;

const COLLECTOR: [Cast; 1] = [Cast { role: Role::Gc, slot: VMS, name: 0 }];
const SWEEPER: [Cast; 1] = [Cast { role: Role::Sweep, slot: VMS, name: 0 }];

/// What is broken, and what led there from the crash on.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) invariant: &'static str,
    pub(crate) what: String,
    pub(crate) lines: Vec<Line>,
}

/// Remains that were recovered already.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    known: Set,
}

impl Recovered {
    /// How many remains were told apart.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Bytes that this occupies.
    pub(crate) fn bytes(&self) -> usize {
        self.known.bytes()
    }

    /// Lets everyone die and recovers, unless these remains were recovered before.
    pub(crate) fn check(&mut self, world: &World, books: &mut Books, vms: u8) -> Option<Stuck> {
        let remains = remains(world);
        if !self.known.insert(remains.hash(0, vms)) {
            return None;
        }
        recover(&remains, books, vms, false).err().or_else(|| sweep(&remains, books, vms).err())
    }
}

/// The same once more, with a trace.
pub(crate) fn retell(world: &World, books: &mut Books, vms: u8) -> Option<Stuck> {
    let remains = remains(world);
    recover(&remains, books, vms, true).err().or_else(|| sweep(&remains, books, vms).err())
}

/// What there is when everyone is dead and what was dying is gone.
fn remains(world: &World) -> World {
    let mut rest = *world;
    rest.actors = Default::default();
    rest.budgets = Default::default();
    rest.journal.sync();
    for slot in slots(VMS) {
        let place = &mut rest.places[usize::from(slot)];
        // A killed process keeps nothing; what inherited a lock may keep it.
        place.ops_held &= BY_VMM;
        if place.helper != Helper::Absent {
            end_helper(&mut rest, slot, false);
        }
        let place = &mut rest.places[usize::from(slot)];
        match place.vmm {
            Vmm::Forked => exec(&mut rest, slot),
            Vmm::Dying => {
                (place.vmm, place.process) = (Vmm::Absent, Process::default());
                place.ops_held &= !BY_VMM;
            }
            Vmm::Absent | Vmm::Booting | Vmm::Up => {}
        }
    }
    rest
}

struct Pass<'a> {
    world: World,
    books: &'a mut Books,
    casts: &'static [Cast],
    found: Findings,
}

impl Pass<'_> {
    fn stuck(&mut self, invariant: &'static str, what: String) -> Stuck {
        Stuck { invariant, what, lines: self.found.lines.take().unwrap_or_default() }
    }

    /// Runs one duty on one slot to its end, if it is worth it.
    fn duty(&mut self, slot: u8, duty: super::world::Duty) -> Result<(), Stuck> {
        let before = self.world;
        let turn = Move::Turn { actor: 0, slot, duty };
        if make(&mut self.world, self.books, self.casts, &mut self.found, turn) == Flow::Blocked {
            self.world = before;
            return Ok(());
        }
        for _ in 0..STEPS {
            if let Some((invariant, what)) = self.found.wrong.take() {
                return Err(self.stuck(invariant, format!("in recovery: {what}")));
            }
            if self.world.actors[0].pc == Pc::Idle {
                self.world.actors[0] = Actor::default();
                return Ok(());
            }
            self.step(slot)?;
        }
        Err(self.stuck("V9", format!("the recovery of vm{slot} does not end")))
    }

    fn step(&mut self, slot: u8) -> Result<(), Stuck> {
        let before = self.world;
        let mut act = Act {
            books: self.books,
            casts: self.casts,
            world: &mut self.world,
            found: &mut self.found,
            me: 0,
            fails: false,
        };
        if act.step() == Flow::Went {
            return Ok(());
        }
        self.world = before;
        let mut moves = Vec::new();
        by_itself(&self.world, slot, &mut moves);
        match moves.first() {
            Some(what) => {
                make(&mut self.world, self.books, self.casts, &mut self.found, *what);
                Ok(())
            }
            None => Err(self.stuck("V9", format!("the recovery of vm{slot} waits for nobody"))),
        }
    }
}

/// V2: an embedder that starts has every placeholder reclaimed at once.
fn sweep(remains: &World, books: &mut Books, vms: u8) -> Result<(), Stuck> {
    let found = Findings { lines: Some(Vec::new()), ..Findings::default() };
    let mut pass = Pass { world: *remains, books, casts: &SWEEPER, found };
    for slot in slots(vms) {
        let creating = |pass: &Pass<'_>| {
            let facts = pass.books.facts(pass.world.journal.top(), slot);
            facts.is_some_and(|facts| facts.state == VmState::Creating)
        };
        if creating(&pass) {
            pass.duty(slot, super::world::Duty::Settle)?;
            if creating(&pass) {
                let what = format!("vm{slot} is an ownerless placeholder and is not reclaimed");
                return Err(pass.stuck("V2", what));
            }
        }
    }
    Ok(())
}

fn recover(remains: &World, books: &mut Books, vms: u8, tells: bool) -> Result<(), Stuck> {
    let found = Findings { lines: tells.then(Vec::new), ..Findings::default() };
    let mut pass = Pass { world: *remains, books, casts: &COLLECTOR, found };
    for round in 0..=PASSES {
        let (before, owed) = (pass.world, owed(&pass, vms));
        for slot in slots(vms) {
            for duty in DUTIES {
                pass.duty(slot, duty)?;
            }
        }
        if pass.world == before {
            break;
        }
        if round == PASSES || self::owed(&pass, vms) >= owed {
            let what = format!("pass {} of recovery does not lessen what is owed", round + 1);
            return Err(pass.stuck("V9", what));
        }
    }
    for slot in slots(vms) {
        if let Some((invariant, what)) = unrest(&pass, slot) {
            return Err(pass.stuck(invariant, format!("after recovery {what}")));
        }
    }
    Ok(())
}

/// How much is owed.
fn owed(pass: &Pass<'_>, vms: u8) -> usize {
    slots(vms).map(|slot| debts(pass, slot)).sum()
}

fn debts(pass: &Pass<'_>, slot: u8) -> usize {
    let place = pass.world.places[usize::from(slot)];
    let up = matches!(place.vmm, Vmm::Booting | Vmm::Up);
    let Some(facts) = pass.books.facts(pass.world.journal.top(), slot) else {
        let stray = place.has_directories() && !place.foreign;
        let leftovers = [stray, place.ops_file || place.vmm_file, up];
        return leftovers.into_iter().filter(|left| *left).count();
    };
    let running = facts.state == VmState::Running;
    let drifted = up != running || (!up && facts.interval_open);
    usize::from(facts.operation != 0) * 2 + usize::from(drifted)
}

/// What is not at rest about a VM, and which invariant says so.
fn unrest(pass: &Pass<'_>, slot: u8) -> Option<(&'static str, String)> {
    let place = pass.world.places[usize::from(slot)];
    let up = matches!(place.vmm, Vmm::Booting | Vmm::Up);
    let Some(facts) = pass.books.facts(pass.world.journal.top(), slot) else {
        let leaks = [
            (up, "VMM"),
            (place.has_directories() && !place.foreign, "directory"),
            (place.ops_file, "ops lock file"),
            (place.vmm_file, "VMM lock file"),
        ];
        let leak = leaks.into_iter().find(|(there, _)| *there);
        return leak.map(|(_, what)| ("V7", format!("a {what} of vm{slot} has no owner")));
    };
    if facts.state == VmState::Creating {
        return Some(("V2", format!("vm{slot} is still a placeholder")));
    }
    if facts.operation != 0 || facts.phase.is_some() {
        return Some(("V9", format!("vm{slot} is half done")));
    }
    let running = facts.state == VmState::Running;
    if up != running || running != (place.vmm == Vmm::Up) {
        return Some(("V9", format!("vm{slot} and its record have drifted apart")));
    }
    if place.run != RunDir::Whole || !place.log {
        return Some(("V9", format!("vm{slot} has a record and no whole directory")));
    }
    None
}
