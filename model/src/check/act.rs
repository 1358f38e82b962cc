//! One step of one actor: the programs of the commands, as the engine runs them.
//!
//! Each step is one transaction, one sync, or one effect, so that a kill fits between any two of them. What is decided
//! is decided by the crate's own functions: nothing here knows what a record owes.
//!
//! ```text
//!   verb:       Idle -> Try/Wait (lock) -> Enter -> [take over, Drive...] -> Entered -> Decide -> Sync -> Drive
//!   Drive:      next_step -> effects of the step -> Report -> Sync -> Drive -> ... -> nothing owed: answer
//!   collector:  Idle -> (what is worth a look) -> Try -> Enter -> take over, Drive... -> Idle
//! ```

mod collect;
mod drive;
mod enter;
mod judge;

use std::convert::Infallible;

use crate::mutant::{self, Mutant};
use crate::sight::{Conclusion, VmmLock, conclude};

use super::books::{Answer, Ask, Books, Facts, Process, Sight};
use super::scope::{Cast, Role};
use super::trace::Line;
use super::world::{Actor, BY_VMM, Duty, Ended, Glimpse, Pc, Place, Then, VMS, Vmm, World};

/// What a step brought to light.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The first invariant that broke, with what is wrong.
    pub(crate) wrong: Option<(&'static str, String)>,
    /// Kinds of events that were written, as bits in the order of their table.
    pub(crate) reached: u64,
    /// Outcomes that are no events, as bits of [`OUTCOMES`].
    pub(crate) outcomes: u64,
    /// The trace, if one is wanted.
    pub(crate) lines: Option<Vec<Line>>,
    /// The world has no room for this; said, never passed over.
    pub(crate) overflow: Option<&'static str>,
}

/// Outcomes that a scope can ask for beside events.
pub(crate) const OUTCOMES: [&str; 6] =
    ["busy", "collected", "in-flight", "moved-on", "name-taken", "swept"];

impl Findings {
    pub(crate) fn break_(&mut self, invariant: &'static str, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some((invariant, what()));
        }
    }
}

/// Whether a step could be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Went,
    /// It waits for somebody, or it cannot fail here.
    Blocked,
}

/// One actor at work in a world.
pub(crate) struct Act<'a> {
    pub(crate) books: &'a mut Books,
    pub(crate) casts: &'a [Cast],
    pub(crate) world: &'a mut World,
    pub(crate) found: &'a mut Findings,
    pub(crate) me: usize,
    /// The effect or the look of this step fails.
    pub(crate) fails: bool,
}

impl Act<'_> {
    pub(crate) fn role(&self) -> Role {
        self.casts[self.me].role
    }

    fn own_slot(&self) -> u8 {
        self.casts[self.me].slot
    }

    pub(crate) fn actor(&mut self) -> &mut Actor {
        &mut self.world.actors[self.me]
    }

    pub(crate) fn now(&self) -> Actor {
        self.world.actors[self.me]
    }

    pub(crate) fn place(&mut self) -> &mut Place {
        let at = usize::from(self.now().at);
        &mut self.world.places[at]
    }

    pub(crate) fn go(&mut self, pc: Pc) -> Flow {
        self.actor().pc = pc;
        Flow::Went
    }

    fn outcome(&mut self, name: &str) {
        if let Some(at) = OUTCOMES.iter().position(|known| *known == name) {
            self.found.outcomes |= 1 << at;
        }
    }

    /// Takes one step.
    pub(crate) fn step(&mut self) -> Flow {
        let actor = self.now();
        if self.fails && !can_fail(&actor) {
            return Flow::Blocked;
        }
        self.judge_reliance(actor);
        match actor.pc {
            Pc::Idle => self.begin(),
            Pc::Try => self.try_lock(),
            Pc::Wait => self.wait_lock(),
            Pc::Enter => self.enter(),
            Pc::LookIdle => self.look_idle(),
            Pc::Entered => self.entered(),
            Pc::Decide(sight) => self.decide(sight),
            Pc::Reserve => self.reserve(),
            Pc::Record => self.record(),
            Pc::Sync(then, answer) => self.sync(then, answer),
            Pc::SweepOps(ended) => self.sweep_ops(ended),
            Pc::Abort => self.abort(),
            Pc::Stray => self.stray(),
            Pc::SweepLocks => self.sweep_locks(),
            Pc::Drive
            | Pc::MakeDisk
            | Pc::AwaitDisk
            | Pc::AwaitExec
            | Pc::Kill(..)
            | Pc::AwaitDeath(..)
            | Pc::RemoveRest
            | Pc::Report(..) => self.drive(),
            Pc::Done | Pc::Failed | Pc::Dead => Flow::Blocked,
        }
    }

    // ---- beginning and ending

    fn begin(&mut self) -> Flow {
        let role = self.role();
        let slot = self.own_slot();
        self.actor().at = slot;
        match role {
            Role::Create | Role::Run | Role::Start | Role::Stop => {
                self.actor().operation = self.new_operation();
                self.wait_lock()
            }
            Role::Remove { .. } => match self.read() {
                None => self.finish(Pc::Failed),
                Some(facts) => {
                    self.actor().asked = Glimpse::of(&facts.sighting);
                    let birth = facts.kind.is_some_and(|kind| kind.is_birth());
                    self.actor().asked_in_birth = birth;
                    self.actor().operation = self.new_operation();
                    self.go(Pc::Try)
                }
            },
            Role::Sweep | Role::Gc | Role::Daemon => Flow::Blocked,
        }
    }

    /// An operation that nobody has and no record names.
    pub(crate) fn new_operation(&self) -> u8 {
        let journal = &self.world.journal;
        let tail = &journal.tail[..usize::from(journal.unsynced)];
        let recorded = tail.iter().chain([&journal.durable]);
        let used = recorded
            .fold(self.world.living_operations(), |bits, fold| bits | self.books.operations(*fold));
        u8::try_from((used | 1).trailing_ones()).unwrap_or(0)
    }

    /// Ends: answers, and the kernel drops all locks.
    pub(crate) fn finish(&mut self, pc: Pc) -> Flow {
        if self.now().relies_on > 0 {
            let role = self.role().as_str();
            self.found.break_("V11", || format!("{role} answers from frames that are not durable"));
        }
        let me = self.me;
        for place in &mut self.world.places {
            place.ops_held &= !(1 << me);
        }
        let watched = self.now().watched;
        let pc = match self.role() {
            role if role.is_collector() => Pc::Idle,
            // How a birth ended, judges want to know.
            role if role.is_birth() && pc != Pc::Done => Pc::Dead,
            _ => Pc::Done,
        };
        *self.actor() = Actor { pc, watched, ..Actor::default() };
        Flow::Went
    }

    /// The journal failed, or a step did: the command ends with an error.
    pub(crate) fn error(&mut self) -> Flow {
        // What it wrote and could not sync it does not rely on: it says that it failed.
        self.actor().relies_on = 0;
        if self.role().is_birth() {
            self.release();
            let slot = self.own_slot();
            self.actor().recovery = 0;
            self.actor().at = slot;
            return self.go(Pc::Abort);
        }
        self.finish(Pc::Failed)
    }

    /// Gives back the lock of a VM that is not its own.
    fn release(&mut self) {
        if self.now().at != self.own_slot() {
            let me = self.me;
            self.place().ops_held &= !(1 << me);
        }
    }

    fn abort(&mut self) -> Flow {
        if self.read().is_none() {
            self.place().ops_file = false;
            self.effect("remove.ops-lock");
        }
        self.finish(Pc::Failed)
    }

    // ---- the lock

    fn try_lock(&mut self) -> Flow {
        if mutant::on(Mutant::ReclaimWithoutLock) && self.role() == Role::Sweep {
            return self.go(Pc::Enter);
        }
        let place = *self.place();
        if place.ops_held == 0 {
            return self.take_lock();
        }
        let living = (1 << super::world::ACTORS) - 1;
        let kept_by_vmm = place.ops_held == BY_VMM && place.vmm != Vmm::Forked;
        if place.ops_held & living == 0 && !kept_by_vmm {
            // Its holder is dead and what it left is about to let go: that is waited for.
            return Flow::Blocked;
        }
        self.outcome("busy");
        self.note("busy", "");
        match self.role() {
            Role::Remove { wait, .. } => {
                let now = self.read();
                if now.is_some_and(|facts| !facts.sighting.may_queue(wait)) {
                    self.outcome("in-flight");
                    return self.finish(Pc::Failed);
                }
                self.go(Pc::Wait)
            }
            Role::Create | Role::Run => {
                let slot = self.own_slot();
                self.actor().at = slot;
                self.go(Pc::Reserve)
            }
            _ => self.finish(Pc::Idle),
        }
    }

    fn wait_lock(&mut self) -> Flow {
        if self.place().ops_held != 0 {
            return Flow::Blocked;
        }
        self.take_lock()
    }

    fn take_lock(&mut self) -> Flow {
        let me = self.me;
        let place = self.place();
        place.ops_file = true;
        place.ops_held = 1 << me;
        self.note("lock", "");
        let settles = self.now().at != self.own_slot();
        match (self.role(), self.now().duty) {
            (Role::Create | Role::Run, _) if !settles => self.go(Pc::Reserve),
            (_, Duty::Stray) => self.go(Pc::Stray),
            (_, Duty::Locks) => self.go(Pc::SweepLocks),
            _ => self.go(Pc::Enter),
        }
    }

    /// The record is gone: so goes the lock's file, while it is held.
    fn sweep_ops(&mut self, ended: Ended) -> Flow {
        let place = self.place();
        place.ops_file = false;
        self.effect("remove.ops-lock");
        if self.now().recovery != 0 {
            return self.recovered(ended);
        }
        match ended {
            Ended::Gone => self.finish(Pc::Done),
            Ended::There | Ended::Failed => self.finish(Pc::Failed),
        }
    }

    // ---- reading and looking

    /// The record as of now; what was read is durable.
    pub(crate) fn read(&mut self) -> Option<Facts> {
        if mutant::on(Mutant::AnswerOnUnsynced) {
            self.actor().relies_on = self.world.journal.unsynced;
        } else {
            self.world.sync();
        }
        self.facts()
    }

    pub(crate) fn facts(&self) -> Option<Facts> {
        self.books.facts(self.world.journal.top(), self.now().at)
    }

    /// What is seen of a VMM by anybody.
    pub(crate) fn observe(&self, slot: u8, facts: &Facts) -> Sight {
        let place = &self.world.places[usize::from(slot)];
        let recorded = facts.process.filter(|process| self.process_lives(slot, *process));
        let recorded = recorded.map_or(Sight::Dead, Sight::Alive).seen();
        let lock = || {
            Ok::<_, Infallible>(match place.vmm {
                Vmm::Forked | Vmm::Booting | Vmm::Up | Vmm::Dying => VmmLock::Held,
                Vmm::Absent if place.vmm_file => VmmLock::Free,
                Vmm::Absent => VmmLock::NoFile,
            })
        };
        let Some(core) = self.books.core(self.world.journal.top(), slot) else {
            return Sight::Dead;
        };
        let Ok(conclusion) = conclude(core, recorded, false, lock);
        match conclusion {
            Conclusion::Seen(seen) => Sight::of(&seen),
            Conclusion::Scan { otherwise } => match place.vmm {
                Vmm::Booting | Vmm::Up => Sight::Alive(place.process),
                // Between fork and exec a process has no command line of its own.
                Vmm::Forked => Sight::CannotTell,
                Vmm::Dying | Vmm::Absent => Sight::of(&otherwise),
            },
        }
    }

    fn process_lives(&self, slot: u8, process: Process) -> bool {
        let place = &self.world.places[usize::from(slot)];
        matches!(place.vmm, Vmm::Booting | Vmm::Up) && place.process == process
    }

    /// What the holder of the lock sees; `None` while what is torn down or starting is given its time.
    pub(crate) fn look(&mut self) -> Option<Sight> {
        if self.fails {
            self.note("look", "inconclusive");
            return Some(Sight::CannotTell);
        }
        let Some(facts) = self.facts() else { return Some(Sight::Dead) };
        match self.observe(self.now().at, &facts) {
            Sight::CannotTell => None,
            sight => Some(sight),
        }
    }

    // ---- the journal

    /// One transaction: decided on the newest state and appended as one frame, under the journal's lock.
    pub(crate) fn submit(&mut self, operation: u8, ask: Ask, then: Then) -> Flow {
        if self.fails {
            self.note("append", "no room");
            return self.error();
        }
        let journal = self.world.journal;
        let at = if mutant::on(Mutant::StaleView) {
            self.books.ask_stale(journal.durable, journal.top(), operation, ask)
        } else {
            self.books.ask(journal.top(), operation, ask)
        };
        let answer = self.books.verdict(at).answer;
        if answer != Answer::Accepted {
            return self.answered(at, ask, then, answer);
        }
        self.judge_append(at);
        for frame in 0..self.books.verdict(at).folds.len() {
            let fold = self.books.verdict(at).folds[frame];
            if !self.world.journal.push(fold) {
                self.found.overflow = Some("more un-synced frames than the world has room for");
            }
        }
        if self.world.budgets.power_losses == 0 {
            // Nothing can tell a durable frame from one that is not, where the power is never lost.
            self.world.sync();
            return self.committed(then, answer);
        }
        self.actor().relies_on = self.world.journal.unsynced;
        self.go(Pc::Sync(then, answer))
    }

    fn answered(&mut self, at: usize, ask: Ask, then: Then, answer: Answer) -> Flow {
        if let Some((invariant, what)) = self.books.verdict(at).wrong.first() {
            let what = what.clone();
            self.found.break_(invariant, || what);
        }
        if self.found.lines.is_some() {
            let said = self.books.verdict(at).said.clone();
            self.note(&format!("{ask:?}"), &said);
        }
        // What is answered from is made durable first.
        if mutant::on(Mutant::AnswerOnUnsynced) {
            self.actor().relies_on = self.world.journal.unsynced;
        } else {
            self.world.sync();
        }
        self.committed(then, answer)
    }

    fn sync(&mut self, then: Then, answer: Answer) -> Flow {
        if self.fails {
            self.note("sync", "failed");
            return self.error();
        }
        if !mutant::on(Mutant::AckBeforeSync) {
            self.world.sync();
            self.note("sync", "");
        }
        self.committed(then, answer)
    }

    fn committed(&mut self, then: Then, answer: Answer) -> Flow {
        let goes_on = matches!(answer, Answer::Accepted | Answer::Already);
        match then {
            Then::Taken if goes_on => self.go(Pc::Drive),
            Then::Driven if goes_on => self.go(Pc::Drive),
            Then::Taken | Then::Driven => self.error(),
            Then::Reserved => self.reserved(answer),
            Then::Idle if goes_on || answer == Answer::Late => self.idle_done(),
            Then::Idle => self.error(),
            Then::Begun => self.begun(answer),
            Then::Recorded => {
                let slot = usize::from(self.now().at);
                self.actor().watched[slot] = Default::default();
                self.finish(Pc::Idle)
            }
        }
    }

    fn reserved(&mut self, answer: Answer) -> Flow {
        let (Answer::NameTaken(holder), 0) = (answer, self.now().tries) else {
            return if answer == Answer::Accepted { self.go(Pc::Drive) } else { self.error() };
        };
        self.outcome("name-taken");
        self.actor().tries = 1;
        let interrupted = self.books.facts(self.world.journal.top(), holder);
        if interrupted.is_some_and(|facts| facts.operation != 0) {
            self.actor().at = holder;
            return self.go(Pc::Try);
        }
        self.error()
    }

    fn begun(&mut self, answer: Answer) -> Flow {
        match answer {
            Answer::Accepted => {
                let actor = self.actor();
                // Nothing that was looked at is looked at again.
                (actor.generation, actor.tries) = (0, 0);
                (actor.asked, actor.found) = Default::default();
                self.go(Pc::Drive)
            }
            Answer::Already => self.finish(Pc::Done),
            Answer::Late if self.now().tries < 2 => {
                self.actor().tries += 1;
                self.go(Pc::Entered)
            }
            Answer::Late | Answer::Refused | Answer::NameTaken(_) => self.finish(Pc::Failed),
        }
    }

    // ---- after a run of steps

    pub(crate) fn ended(&mut self, ended: Ended) -> Flow {
        if self.now().recovery != 0 {
            if ended == Ended::Gone {
                self.outcome("collected");
                return self.go(Pc::SweepOps(ended));
            }
            return self.recovered(ended);
        }
        match (self.role(), ended) {
            (Role::Create | Role::Run, Ended::There) => self.finish(Pc::Done),
            (Role::Create | Role::Run, _) => self.go(Pc::Abort),
            (Role::Remove { .. }, Ended::Gone) => self.go(Pc::SweepOps(ended)),
            (Role::Start | Role::Stop, Ended::There) => self.finish(Pc::Done),
            _ => self.finish(Pc::Failed),
        }
    }

    fn recovered(&mut self, ended: Ended) -> Flow {
        let actor = self.actor();
        actor.recovery = 0;
        (actor.failed, actor.last) = (false, None);
        match (self.role(), ended) {
            (Role::Create | Role::Run, Ended::Failed) => self.error(),
            (Role::Create | Role::Run, _) => self.go_back_to_reserve(),
            (Role::Remove { .. }, Ended::Gone) => self.finish(Pc::Done),
            (Role::Remove { .. } | Role::Start | Role::Stop, Ended::There) => self.go(Pc::Entered),
            _ => self.finish(Pc::Failed),
        }
    }
}

/// Whether something at this point of a program can fail.
pub(crate) fn can_fail(actor: &Actor) -> bool {
    match actor.pc {
        Pc::LookIdle
        | Pc::Entered
        | Pc::Decide(_)
        | Pc::Reserve
        | Pc::Record
        | Pc::Sync(..)
        | Pc::Drive
        | Pc::AwaitDisk
        | Pc::Kill(..)
        | Pc::Stray
        | Pc::Report(..) => true,
        Pc::Idle
        | Pc::Done
        | Pc::Failed
        | Pc::Dead
        | Pc::Try
        | Pc::Wait
        | Pc::Enter
        | Pc::MakeDisk
        | Pc::AwaitExec
        | Pc::AwaitDeath(..)
        | Pc::RemoveRest
        | Pc::SweepOps(_)
        | Pc::Abort
        | Pc::SweepLocks => false,
    }
}

/// Slots, for loops.
pub(crate) fn slots(scope_vms: u8) -> impl Iterator<Item = u8> {
    0..scope_vms.min(VMS)
}
