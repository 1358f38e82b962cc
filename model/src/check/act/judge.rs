//! What a step must not do, judged by the whole world and by what happened before: nobody in it can see as much.

use crate::event::{VmEvent, WrittenBy};
use crate::record::RemovalKind;

use super::Act;
use crate::check::books::Told;
use crate::check::world::{Actor, Helper, Pc};

impl Act<'_> {
    /// Whoever acts or answers stands on what a power loss cannot take.
    pub(super) fn judge_reliance(&mut self, actor: Actor) {
        if actor.relies_on > 0 && !matches!(actor.pc, Pc::Sync(..)) {
            let role = self.role().as_str();
            let what = || format!("{role} goes on from frames that are not durable");
            self.found.break_("V11", what);
        }
    }

    pub(super) fn judge_append(&mut self, at: usize) {
        if let Some((invariant, what)) = self.books.verdict(at).wrong.first() {
            let what = what.clone();
            self.found.break_(invariant, || what);
        }
        for index in 0..self.books.verdict(at).told.len() {
            let told = self.books.verdict(at).told[index].clone();
            if let Some(bit) = VmEvent::KINDS.iter().position(|info| info.kind == told.kind) {
                self.found.reached |= 1 << bit;
            }
            self.judge_writer(&told);
            self.judge_vmm(&told);
            self.judge_asked(&told);
            self.tell(&told);
        }
    }

    /// V1: only the holder of the lock writes, and only from the dead is anything taken over.
    pub(super) fn judge_writer(&mut self, told: &Told) {
        let info = VmEvent::KINDS.iter().find(|info| info.kind == told.kind);
        let needs_lock = info.is_some_and(|info| info.by == WrittenBy::LockHolder);
        let (place, role) = (self.world.places[usize::from(told.slot)], self.role().as_str());
        if needs_lock && place.ops_held & (1 << self.me) == 0 {
            let (slot, name) = (told.slot, told.name);
            self.found
                .break_("V1", || format!("{role} writes {name} of vm{slot} without its lock"));
        }
        if told.taken_from == 0 {
            return;
        }
        let owner = (0..self.casts.len()).find(|other| {
            let actor = &self.world.actors[*other];
            let lives = !matches!(actor.pc, Pc::Idle | Pc::Done | Pc::Failed | Pc::Dead);
            let owns = actor.operation == told.taken_from || actor.recovery == told.taken_from;
            *other != self.me && lives && owns
        });
        if let Some(owner) = owner {
            let owner = self.casts[owner].role.as_str();
            let slot = told.slot;
            self.found.break_("V1", || format!("{role} takes vm{slot} from {owner}, which lives"));
        }
    }

    /// V5: nothing is said to be dead or gone while the VMM lives.
    pub(super) fn judge_vmm(&mut self, told: &Told) {
        let place = self.world.places[usize::from(told.slot)];
        let says_dead = matches!(
            told.name,
            "ExitObserved" | "Stopped" | "LaunchFailed" | "DeleteBegan" | "Deleted"
        );
        if says_dead && place.vmm.lives() {
            let (slot, name) = (told.slot, told.name);
            self.found.break_("V5", || format!("{name} of vm{slot}, whose VMM lives"));
        }
        if told.name == "DeleteBegan" && place.helper != Helper::Absent {
            let slot = told.slot;
            self.found.break_("V7", || format!("vm{slot} goes while a helper still writes to it"));
        }
    }

    /// V10: a committed VM goes only because somebody asked for that very VM.
    pub(super) fn judge_asked(&mut self, told: &Told) {
        let Some(kind) = told.removal else { return };
        let before = told.before.map_or(0, |facts| facts.generation);
        if before == 0 {
            return;
        }
        let slot = told.slot;
        let asked = matches!(kind, RemovalKind::Delete | RemovalKind::ForcedDelete);
        if !asked {
            self.found
                .break_("V10", || format!("vm{slot} was committed, and nobody asked for that"));
            return;
        }
        let born =
            self.casts.iter().zip(&self.world.actors).any(|(cast, actor)| {
                cast.role.is_birth() && cast.slot == slot && actor.pc == Pc::Done
            });
        if self.now().asked_in_birth && born {
            let what =
                || format!("vm{slot} became somebody's fresh VM since its removal was asked");
            self.found.break_("V10", what);
        }
    }

    /// V5 and V7, of an effect that removes files.
    pub(super) fn judge_removal(&mut self) {
        let slot = self.now().at;
        let place = *self.place();
        if place.vmm.lives() {
            self.found.break_("V5", || format!("files of vm{slot} go while its VMM lives"));
        }
        if place.helper != Helper::Absent {
            self.found.break_("V7", || format!("files of vm{slot} go while a helper writes them"));
        }
        if !self.books.has_named(self.world.journal.top(), slot) {
            self.found
                .break_("V12", || format!("files of vm{slot} go, which no journal has named"));
        }
    }
}
