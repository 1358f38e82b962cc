//! All that can happen next.

use super::act::{Act, Findings, Flow, can_fail, slots};
use super::books::{Books, Process};
use super::scope::Cast;
use super::trace::{Line, line, name};
use super::world::{Actor, BY_HELPER, BY_VMM, Duty, Helper, Pc, RunDir, Vmm, World};
use crate::mutant::{self, Mutant};

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Move {
    /// An actor takes a step; its effect or its look may fail.
    Step { actor: u8, fails: bool },
    /// A collector turns to a duty.
    Turn { actor: u8, slot: u8, duty: Duty },
    /// An actor is killed.
    Kill { actor: u8 },
    /// A helper writes its disk and ends.
    HelperEnds { slot: u8 },
    /// The helper of a dead parent dies of its death signal.
    HelperDies { slot: u8 },
    /// A forked child runs another image.
    Exec { slot: u8 },
    /// A dead VMM releases what it held.
    Released { slot: u8 },
    /// A VMM dies by itself.
    VmmDies { slot: u8 },
    /// The host loses its power; so many frames that were not durable are found again.
    PowerLoss { kept: u8 },
}

impl Move {
    /// Whether something goes wrong in it.
    pub(crate) fn is_fault(&self) -> bool {
        match self {
            Self::Kill { .. } | Self::VmmDies { .. } | Self::PowerLoss { .. } => true,
            Self::Step { fails, .. } => *fails,
            Self::Turn { .. }
            | Self::HelperEnds { .. }
            | Self::HelperDies { .. }
            | Self::Exec { .. }
            | Self::Released { .. } => false,
        }
    }
}

pub(crate) const DUTIES: [Duty; 4] = [Duty::Settle, Duty::Exit, Duty::Stray, Duty::Locks];

/// All moves that may be possible; some turn out to be blocked.
pub(crate) fn moves(world: &World, casts: &[Cast], vms: u8, into: &mut Vec<Move>) {
    into.clear();
    let budgets = world.budgets;
    for (at, cast) in casts.iter().enumerate() {
        let (actor, state) = (u8::try_from(at).unwrap_or(0), &world.actors[at]);
        match state.pc {
            Pc::Done | Pc::Failed | Pc::Dead => continue,
            Pc::Idle if cast.role.is_collector() => {
                let turns = slots(vms).flat_map(|slot| DUTIES.map(|duty| (slot, duty)));
                into.extend(turns.map(|(slot, duty)| Move::Turn { actor, slot, duty }));
            }
            _ => into.push(Move::Step { actor, fails: false }),
        }
        if budgets.failures > 0 && can_fail(state) {
            into.push(Move::Step { actor, fails: true });
        }
        if budgets.kills > 0 && state.pc != Pc::Idle {
            into.push(Move::Kill { actor });
        }
    }
    for slot in slots(vms) {
        by_itself(world, slot, into);
        let vmm = world.places[usize::from(slot)].vmm;
        if budgets.vmm_deaths > 0 && matches!(vmm, Vmm::Booting | Vmm::Up) {
            into.push(Move::VmmDies { slot });
        }
    }
    if budgets.power_losses > 0 {
        into.extend((0..=world.journal.unsynced).map(|kept| Move::PowerLoss { kept }));
    }
}

/// What goes on by itself at a place.
pub(crate) fn by_itself(world: &World, slot: u8, into: &mut Vec<Move>) {
    let place = &world.places[usize::from(slot)];
    match place.helper {
        Helper::Absent => {}
        Helper::Working(_) => into.push(Move::HelperEnds { slot }),
        Helper::Orphan => into.extend([Move::HelperDies { slot }, Move::HelperEnds { slot }]),
    }
    match place.vmm {
        Vmm::Forked => into.push(Move::Exec { slot }),
        Vmm::Dying => into.push(Move::Released { slot }),
        Vmm::Absent | Vmm::Booting | Vmm::Up => {}
    }
}

/// Makes a move.
pub(crate) fn make(
    world: &mut World,
    books: &mut Books,
    casts: &[Cast],
    found: &mut Findings,
    what: Move,
) -> Flow {
    match what {
        Move::Step { actor, fails } => {
            world.budgets.failures -= u8::from(fails);
            act(world, books, casts, found, actor, fails).step()
        }
        Move::Turn { actor, slot, duty } => {
            act(world, books, casts, found, actor, false).turn_to(slot, duty)
        }
        Move::Kill { actor } => {
            let slot = world.actors[usize::from(actor)].at;
            kill(world, casts, usize::from(actor));
            told(world, books, casts, found, slot, '!', &name(casts, usize::from(actor)), "killed");
            Flow::Went
        }
        Move::PowerLoss { kept } => {
            let what = format!("power lost, {kept} frames kept");
            world.budgets.power_losses -= 1;
            (0..casts.len()).for_each(|actor| die(world, casts, actor));
            world.lose_power(kept);
            told(world, books, casts, found, 0, '!', "host", &what);
            Flow::Went
        }
        Move::VmmDies { slot } => {
            world.budgets.vmm_deaths -= 1;
            world.places[usize::from(slot)].vmm = Vmm::Dying;
            told(world, books, casts, found, slot, '!', "vmm", "dies");
            Flow::Went
        }
        Move::HelperEnds { slot } | Move::HelperDies { slot } => {
            let writes = matches!(what, Move::HelperEnds { .. });
            end_helper(world, slot, writes);
            let what = if writes { "disk written" } else { "dies with its parent" };
            told(world, books, casts, found, slot, ' ', "helper", what);
            Flow::Went
        }
        Move::Exec { slot } => {
            exec(world, slot);
            told(world, books, casts, found, slot, ' ', "vmm", "exec");
            Flow::Went
        }
        Move::Released { slot } => {
            let place = &mut world.places[usize::from(slot)];
            (place.vmm, place.process) = (Vmm::Absent, Process::default());
            place.ops_held &= !BY_VMM;
            told(world, books, casts, found, slot, ' ', "vmm", "released what it held");
            Flow::Went
        }
    }
}

fn act<'a>(
    world: &'a mut World,
    books: &'a mut Books,
    casts: &'a [Cast],
    found: &'a mut Findings,
    actor: u8,
    fails: bool,
) -> Act<'a> {
    Act { books, casts, world, found, me: usize::from(actor), fails }
}

/// Kills an actor: what it knew is gone, and the kernel drops its locks.
fn kill(world: &mut World, casts: &[Cast], actor: usize) {
    world.budgets.kills -= 1;
    world.bury(u8::try_from(actor).unwrap_or(0));
    die(world, casts, actor);
}

/// A collector is started anew some day; a command is not.
pub(crate) fn die(world: &mut World, casts: &[Cast], actor: usize) {
    let pc = match world.actors[actor].pc {
        Pc::Idle => Pc::Idle,
        Pc::Done => Pc::Done,
        _ if casts[actor].role.is_collector() => Pc::Idle,
        _ if casts[actor].role.is_birth() => Pc::Dead,
        _ => Pc::Done,
    };
    world.actors[actor] = Actor { pc, ..Actor::default() };
}

pub(crate) fn end_helper(world: &mut World, slot: u8, writes: bool) {
    let place = &mut world.places[usize::from(slot)];
    place.helper = Helper::Absent;
    place.ops_held &= !BY_HELPER;
    if writes && place.run == RunDir::Born {
        place.run = RunDir::Whole;
    }
}

pub(crate) fn exec(world: &mut World, slot: u8) {
    let place = &mut world.places[usize::from(slot)];
    place.vmm = Vmm::Booting;
    if !mutant::on(Mutant::LockInheritedByVmm) {
        place.ops_held &= !BY_VMM;
    }
}

#[expect(clippy::too_many_arguments, reason = "all of a line, in the order in which it is read")]
fn told(
    world: &World,
    books: &Books,
    casts: &[Cast],
    found: &mut Findings,
    slot: u8,
    mark: char,
    who: &str,
    what: &str,
) {
    if let Some(lines) = &mut found.lines {
        let about = line(books, casts, world, slot);
        lines.push(Line { mark, actor: who.to_owned(), what: what.to_owned(), ..about });
    }
}
