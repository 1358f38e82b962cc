//! The loop that does what a record owes, one effect a step.

use crate::mutant::{self, Mutant};
use crate::record::DeleteStep;
use crate::step::Step;

use super::{Act, Flow};
use crate::check::books::{Ask, End, Process, Sight};
use crate::check::world::{
    Actor, BY_HELPER, BY_VMM, Ended, Helper, Owed, Pc, RunDir, SLOTS, Then, Vmm,
};

impl Act<'_> {
    pub(super) fn drive(&mut self) -> Flow {
        match self.now().pc {
            Pc::Drive => self.next(),
            Pc::MakeDisk => self.make_disk(),
            Pc::AwaitDisk => self.await_disk(),
            Pc::AwaitExec => self.await_exec(),
            Pc::Kill(step, end) => self.kill(step, end),
            Pc::AwaitDeath(step, end) => self.await_death(step, end),
            Pc::RemoveRest => self.remove_rest(),
            Pc::Report(step, end) => self.report(step, end),
            _ => Flow::Blocked,
        }
    }

    /// Asks the record what it owes, and begins with it.
    fn next(&mut self) -> Flow {
        let actor = self.now();
        let me = if actor.recovery != 0 { actor.recovery } else { actor.operation };
        let Some(facts) = self.read() else { return self.end(Ended::Gone) };
        let Some(step) = facts.next.filter(|_| facts.operation == me) else {
            return self.end(if actor.failed { Ended::Failed } else { Ended::There });
        };
        let Some(step) = Owed::of(step) else {
            self.found.overflow = Some("a step that this world does not know");
            return Flow::Blocked;
        };
        if actor.failed && actor.last == Some(step) {
            return self.end(Ended::Failed);
        }
        self.begin_step(step)
    }

    fn end(&mut self, ended: Ended) -> Flow {
        if self.fails {
            return Flow::Blocked;
        }
        self.ended(ended)
    }

    fn begin_step(&mut self, step: Owed) -> Flow {
        match step.step() {
            Step::PrepareStorage => self.make_directories(step),
            Step::ChooseLaunch if self.fails => Flow::Blocked,
            Step::ChooseLaunch => self.report(step, End::Chosen),
            Step::SpawnVmm => self.fork(step),
            Step::AwaitVmm => self.boot(step),
            Step::SettleLaunch => self.settle_launch(step),
            Step::StopVmm(_) => self.kill(step, End::Done),
            Step::ProveVmmDead { kill } => self.prove_dead(step, kill),
            Step::Remove(part) => self.remove(step, part),
        }
    }

    fn make_directories(&mut self, step: Owed) -> Flow {
        if self.fails {
            return self.go(Pc::Report(step, End::Failed));
        }
        let place = self.place();
        if place.run == RunDir::Absent {
            place.run = RunDir::Born;
        }
        place.log = true;
        self.effect("storage.make-directories");
        self.go(Pc::MakeDisk)
    }

    fn make_disk(&mut self) -> Flow {
        let me = u8::try_from(self.me).unwrap_or(0);
        let place = self.place();
        place.helper = Helper::Working(me);
        if !mutant::on(Mutant::HelperWithoutLock) {
            place.ops_held |= BY_HELPER;
        }
        self.effect("storage.make-disk");
        if mutant::on(Mutant::UnlockBeforeCommit) {
            let me = self.me;
            self.place().ops_held &= !(1 << me);
        }
        self.go(Pc::AwaitDisk)
    }

    fn await_disk(&mut self) -> Flow {
        if self.place().helper != Helper::Absent {
            return Flow::Blocked;
        }
        let end = if self.fails { End::Failed } else { End::Done };
        self.report_step(Step::PrepareStorage, end)
    }

    /// Takes the VMM's lock and forks: the child holds both locks until it runs another image, then that of the VMM.
    fn fork(&mut self, step: Owed) -> Flow {
        if matches!(self.place().vmm, Vmm::Forked | Vmm::Dying) {
            return Flow::Blocked;
        }
        self.place().vmm_file = true;
        if self.fails {
            return self.go(Pc::Report(step, End::Failed));
        }
        if self.place().vmm.lives() {
            let slot = self.now().at;
            self.found.break_("V5", || format!("a second VMM of vm{slot}"));
        }
        let process = Process { pid: self.new_pid(), boot: self.world.boot };
        let place = self.place();
        place.vmm = Vmm::Forked;
        place.process = process;
        place.ops_held |= BY_VMM;
        self.effect("vmm.spawn");
        self.go(Pc::AwaitExec)
    }

    /// A number that no record, no process and no watcher has.
    fn new_pid(&self) -> u8 {
        let journal = &self.world.journal;
        let tail = &journal.tail[..usize::from(journal.unsynced)];
        let mut used = tail
            .iter()
            .chain([&journal.durable])
            .fold(1, |bits, fold| bits | self.books.pids(*fold));
        for place in &self.world.places {
            used |= 1 << place.process.pid;
        }
        for actor in &self.world.actors {
            for slot in 0..SLOTS {
                used |= 1 << actor.watched[slot].1.pid;
            }
        }
        u8::try_from(used.trailing_ones()).unwrap_or(0)
    }

    fn await_exec(&mut self) -> Flow {
        let place = *self.place();
        match place.vmm {
            Vmm::Forked => Flow::Blocked,
            Vmm::Booting | Vmm::Up => self.report_step(Step::SpawnVmm, End::Spawned(place.process)),
            // It was seen to run, and is dead by now: the next step finds that out.
            Vmm::Absent | Vmm::Dying => self.report_step(Step::SpawnVmm, End::Failed),
        }
    }

    /// Tells the VMM to run the guest.
    fn boot(&mut self, step: Owed) -> Flow {
        let lives = self.place().vmm == Vmm::Booting && !self.fails;
        if !lives {
            return self.go(Pc::Kill(step, End::Failed));
        }
        let place = self.place();
        place.vmm = Vmm::Up;
        let process = place.process;
        self.effect("vmm.boot");
        self.go(Pc::Report(step, End::Up(process)))
    }

    fn settle_launch(&mut self, step: Owed) -> Flow {
        let Some(sight) = self.look() else { return Flow::Blocked };
        match sight {
            Sight::CannotTell => self.go(Pc::Report(step, End::Unproven)),
            Sight::Dead => self.go(Pc::Report(step, End::Failed)),
            Sight::Alive(process) if self.place().vmm == Vmm::Up => {
                self.go(Pc::Report(step, End::Up(process)))
            }
            Sight::Alive(_) => self.go(Pc::Kill(step, End::Failed)),
        }
    }

    fn prove_dead(&mut self, step: Owed, kill: bool) -> Flow {
        let Some(sight) = self.look() else { return Flow::Blocked };
        match sight {
            Sight::CannotTell => self.go(Pc::Report(step, End::Unproven)),
            Sight::Dead => self.go(Pc::Report(step, End::Done)),
            Sight::Alive(_) if kill => self.go(Pc::Kill(step, End::Done)),
            Sight::Alive(_) => self.go(Pc::Report(step, End::Failed)),
        }
    }

    fn kill(&mut self, step: Owed, end: End) -> Flow {
        let recorded = self.facts().and_then(|facts| facts.process);
        let sight = match recorded.filter(|_| mutant::on(Mutant::PidReused)) {
            Some(process) if process.boot != self.world.boot => Some(Sight::Alive(process)),
            _ => self.look(),
        };
        let Some(sight) = sight else { return Flow::Blocked };
        let process = match sight {
            Sight::CannotTell => return self.go(Pc::Report(step, End::Unproven)),
            Sight::Dead => return self.go(Pc::Report(step, end)),
            Sight::Alive(process) => process,
        };
        if process.boot != self.world.boot {
            let slot = self.now().at;
            let what =
                || format!("the process that now has the number of vm{slot}'s VMM is killed");
            self.found.break_("V12", what);
        }
        self.place().vmm = Vmm::Dying;
        self.effect("vmm.terminate");
        self.go(Pc::AwaitDeath(step, end))
    }

    fn await_death(&mut self, step: Owed, end: End) -> Flow {
        if self.place().vmm != Vmm::Absent {
            return Flow::Blocked;
        }
        self.go(Pc::Report(step, end))
    }

    fn remove(&mut self, step: Owed, part: DeleteStep) -> Flow {
        let place = *self.place();
        if part == DeleteStep::VmmLock && place.vmm != Vmm::Absent {
            return Flow::Blocked;
        }
        if self.fails {
            return self.go(Pc::Report(step, End::Failed));
        }
        self.judge_removal();
        match part {
            DeleteStep::RunDirectory if place.run != RunDir::Absent => {
                self.place().run = RunDir::Torn;
                self.effect(step.step().as_str());
                return self.go(Pc::RemoveRest);
            }
            DeleteStep::RunDirectory => {}
            DeleteStep::LogDirectory => self.place().log = false,
            DeleteStep::VmmLock => self.place().vmm_file = false,
        }
        self.effect(step.step().as_str());
        self.go(Pc::Report(step, End::Done))
    }

    fn remove_rest(&mut self) -> Flow {
        self.judge_removal();
        self.place().run = RunDir::Absent;
        self.effect("remove-run-directory");
        self.report_step(Step::Remove(DeleteStep::RunDirectory), End::Done)
    }

    /// Reports the end of a step. The same rule as the engine's: a failure is remembered, and a step that is owed again
    /// after one ends the run.
    fn report(&mut self, step: Owed, end: End) -> Flow {
        let Actor { at: slot, operation, recovery, .. } = self.now();
        let failed = match end {
            End::Failed => step.step() != Step::SettleLaunch,
            End::Unproven => true,
            End::Done | End::Chosen | End::Spawned(_) | End::Up(_) => false,
        };
        let by = if recovery != 0 { recovery } else { operation };
        let actor = self.actor();
        actor.failed |= failed;
        // Only after a failure does it matter which step came last.
        actor.last = actor.failed.then_some(step);
        let ask = Ask::Report { slot, step: step.step(), end };
        self.submit(by, ask, Then::Driven)
    }

    fn report_step(&mut self, step: Step, end: End) -> Flow {
        match Owed::of(step) {
            Some(step) => self.go(Pc::Report(step, end)),
            None => Flow::Blocked,
        }
    }
}
