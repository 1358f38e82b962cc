//! The entrance of a command: what it looks at under the lock, and what it has decided.

use crate::command::Command;
use crate::mutant::{self, Mutant};
use crate::record::VmState;
use crate::sight::idle_command;

use super::{Act, Flow};
use crate::check::books::{Ask, Process, Sight};
use crate::check::scope::{Cast, Role};
use crate::check::world::{Actor, Ended, Glimpse, Pc, Then};

impl Act<'_> {
    pub(super) fn enter(&mut self) -> Flow {
        let role = self.role();
        let Some(facts) = self.read() else {
            let ended = if role.is_collector() { Ended::Gone } else { Ended::Failed };
            if role.is_birth() {
                // The holder of the name is gone since.
                return self.go_back_to_reserve();
            }
            return self.go(Pc::SweepOps(ended));
        };
        let creating = facts.state == VmState::Creating;
        if creating && role == Role::Stop {
            let hides = mutant::on(Mutant::StopHidesPlaceholder);
            return if hides { self.go(Pc::Entered) } else { self.finish(Pc::Failed) };
        }
        if !creating && role == Role::Sweep && !mutant::on(Mutant::ReclaimCommitted) {
            return self.finish(Pc::Idle);
        }
        if matches!(role, Role::Remove { .. }) {
            self.actor().found = Glimpse::of(&facts.sighting);
        }
        if facts.operation == 0 && role != Role::Sweep {
            self.actor().generation = facts.generation;
            return self.go(Pc::LookIdle);
        }
        let recovery = self.new_operation();
        self.actor().recovery = recovery;
        let slot = self.now().at;
        self.submit(recovery, Ask::TakeOver { slot }, Then::Taken)
    }

    pub(super) fn look_idle(&mut self) -> Flow {
        let Some(sight) = self.look() else { return Flow::Blocked };
        // The generation is that of the record which was read when the lock was taken.
        let Actor { at: slot, generation, operation, .. } = self.now();
        let Some(core) = self.books.core(self.world.journal.top(), slot) else {
            return self.idle_done();
        };
        let ask = match idle_command(core, &sight.seen(), || None) {
            Some(Command::ObserveExit { .. }) => Ask::ObserveExit { slot, generation },
            Some(Command::Adopt { identity, .. }) => {
                Ask::Adopt { slot, generation, process: Process::of(&identity) }
            }
            Some(_) | None => return self.idle_done(),
        };
        self.submit(operation, ask, Then::Idle)
    }

    pub(super) fn idle_done(&mut self) -> Flow {
        self.actor().generation = 0;
        match self.role() {
            Role::Create | Role::Run => self.go_back_to_reserve(),
            Role::Remove { .. } | Role::Start | Role::Stop => self.go(Pc::Entered),
            Role::Sweep | Role::Gc | Role::Daemon => self.finish(Pc::Idle),
        }
    }

    pub(super) fn go_back_to_reserve(&mut self) -> Flow {
        self.release();
        let slot = self.own_slot();
        self.actor().at = slot;
        self.go(Pc::Reserve)
    }

    pub(super) fn entered(&mut self) -> Flow {
        let actor = self.now();
        if let Role::Remove { wait, .. } = self.role()
            && actor.asked.sighting().became_another(&actor.found.sighting(), wait)
        {
            self.outcome("moved-on");
            return self.finish(Pc::Failed);
        }
        if self.role() == Role::Start {
            let Some(facts) = self.read() else { return self.finish(Pc::Failed) };
            self.actor().generation = facts.generation;
        }
        let Some(sight) = self.look() else { return Flow::Blocked };
        self.go(Pc::Decide(sight))
    }

    pub(super) fn decide(&mut self, seen: Sight) -> Flow {
        let Actor { at: slot, generation, operation, .. } = self.now();
        let ask = match self.role() {
            Role::Start => Ask::Start { slot, generation, seen },
            Role::Remove { force, .. } => Ask::Delete { slot, seen, force },
            _ => Ask::Stop { slot, seen },
        };
        self.submit(operation, ask, Then::Begun)
    }

    pub(super) fn reserve(&mut self) -> Flow {
        let Cast { role, name, .. } = self.casts[self.me];
        let Actor { at: slot, operation, .. } = self.now();
        let ask = Ask::Prereserve { slot, name, run: role == Role::Run };
        self.submit(operation, ask, Then::Reserved)
    }

    pub(super) fn record(&mut self) -> Flow {
        let Actor { at: slot, generation, .. } = self.now();
        self.submit(0, Ask::ObserveExit { slot, generation }, Then::Recorded)
    }
}
