//! Collectors: the daemon, gc, and an embedder that starts. They act on all VMs, again and again.
//!
//! Between two rounds a collector is idle and has forgotten everything (the daemon but for what it watches). In which order
//! it comes to the VMs, and to its duties, is left open: every order is explored.

use crate::mutant::{self, Mutant};
use crate::record::VmState;
use crate::recover::{Action, LockSeen, Seen, plan_vm};

use super::{Act, Flow};
use crate::check::books::{Facts, Process};
use crate::check::scope::Role;
use crate::check::world::{Actor, Duty, Ended, Pc, RunDir, Vmm};

impl Act<'_> {
    /// Turns to a duty, if it is worth it.
    pub(crate) fn turn_to(&mut self, slot: u8, duty: Duty) -> Flow {
        let watched = self.now().watched;
        *self.actor() = Actor { at: slot, duty, watched, ..Actor::default() };
        let facts = self.facts();
        let role = self.role();
        match (duty, facts) {
            (Duty::Settle, Some(facts)) if role == Role::Sweep => {
                if facts.state != VmState::Creating {
                    return Flow::Blocked;
                }
                self.look_and(Pc::Try)
            }
            (Duty::Settle, Some(facts)) => self.plan(slot, &facts),
            (Duty::Exit, _) if role == Role::Daemon => self.hear_exit(slot),
            (Duty::Stray, None) if role == Role::Gc => self.find_stray(slot),
            (Duty::Locks, None) if role == Role::Gc => {
                let place = *self.place();
                if place.ops_held == 0 && (place.ops_file || place.vmm_file) {
                    return self.look_and(Pc::Try);
                }
                Flow::Blocked
            }
            _ => Flow::Blocked,
        }
    }

    /// What is looked at is durable.
    fn look_and(&mut self, pc: Pc) -> Flow {
        self.read();
        self.go(pc)
    }

    fn plan(&mut self, slot: u8, facts: &Facts) -> Flow {
        let sight = self.observe(slot, facts);
        let free = self.place().ops_held == 0;
        let lock = if free { LockSeen::Free } else { LockSeen::Held };
        let seen = Seen { lock, vmm: sight.seen() };
        let fold = self.world.journal.top();
        let Some(core) = self.books.core(fold, slot) else { return Flow::Blocked };
        let daemon = self.role() == Role::Daemon;
        match plan_vm(core, &seen) {
            Action::TakeOver | Action::Adopt(_) => self.look_and(Pc::Try),
            Action::RecordExit if daemon => {
                self.actor().generation = facts.generation;
                self.look_and(Pc::Record)
            }
            Action::RecordExit => self.look_and(Pc::Try),
            Action::Watch(_) if daemon => self.watch(slot, facts),
            Action::Watch(_) | Action::Leave | Action::Busy | Action::CannotTell(_) => {
                Flow::Blocked
            }
        }
    }

    fn watch(&mut self, slot: u8, facts: &Facts) -> Flow {
        let at = usize::from(slot);
        let process = facts.process.unwrap_or_default();
        if self.now().watched[at] == (facts.generation + 1, process) {
            return Flow::Blocked;
        }
        self.read();
        let (duty, at_slot) = (Duty::default(), 0);
        let actor = self.actor();
        (actor.duty, actor.at) = (duty, at_slot);
        actor.watched[at] = (facts.generation + 1, process);
        self.note("watch", "");
        Flow::Went
    }

    /// A process that it watches has ended.
    fn hear_exit(&mut self, slot: u8) -> Flow {
        let (generation, process) = self.now().watched[usize::from(slot)];
        let place = *self.place();
        let lives = place.vmm.lives() && place.process == process;
        if process == Process::default() || lives {
            return Flow::Blocked;
        }
        self.actor().generation = generation - 1;
        self.note("exit-heard", "");
        self.go(Pc::Record)
    }

    fn find_stray(&mut self, slot: u8) -> Flow {
        let place = *self.place();
        let named = self.books.has_named(self.world.journal.top(), slot);
        if place.ops_held != 0 || !place.has_directories() || place.vmm != Vmm::Absent {
            return Flow::Blocked;
        }
        if named || mutant::on(Mutant::StrayUnnamed) {
            self.look_and(Pc::Try)
        } else {
            Flow::Blocked
        }
    }

    /// A directory without a record: removed under the lock, if no VMM may live.
    pub(super) fn stray(&mut self) -> Flow {
        if self.read().is_some() || self.place().vmm != Vmm::Absent {
            return self.finish(Pc::Idle);
        }
        if self.fails {
            self.note("gc.remove-directory", "failed");
            return self.finish(Pc::Idle);
        }
        self.judge_removal();
        self.effect("gc.remove-directory");
        let place = self.place();
        place.run = RunDir::Absent;
        place.log = false;
        self.go(Pc::SweepOps(Ended::Gone))
    }

    /// Lock files of what has no record. That of a VMM goes only while nobody holds it.
    pub(super) fn sweep_locks(&mut self) -> Flow {
        if self.read().is_none() {
            let place = self.place();
            place.ops_file = false;
            place.vmm_file &= place.vmm != Vmm::Absent;
            self.outcome("swept");
            self.effect("gc.sweep-locks");
        }
        self.finish(Pc::Idle)
    }
}
