//! The world: what a crash leaves and what it takes.
//!
//! ```text
//!   journal    durable | frame  frame           written, not synced: a power loss keeps any prefix of them
//!   place      ops lock file, who holds it      one a VM
//!              helper                           of a creation; holds the ops lock until it is gone
//!              run directory, log directory     half made, whole, half removed
//!              VMM lock file, VMM               forked, booting, up, dying; holds the VMM lock until it is gone
//!   actor      program counter, what it knows   dies with all of it; the kernel drops its locks
//!   budgets    kills, power losses, VMM deaths, failures
//! ```

use std::hash::{Hash, Hasher};

use super::books::{Answer, End, FoldId, Process, Sight};
use super::table::hash_of;
use crate::id::OperationId;
use crate::record::{DeleteStep, StopMode};
use crate::removal::Sighting;
use crate::step::Step;

/// The most VMs of a scope.
pub(crate) const VMS: u8 = 3;
/// The same, as the length of arrays.
pub(crate) const SLOTS: usize = VMS as usize;
/// The most actors of a scope.
pub(crate) const ACTORS: usize = 6;
/// The most frames that are written and not synced.
pub(crate) const TAIL: usize = 6;

/// The journal: the state up to the last durable frame, and after each frame behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Journal {
    pub(crate) durable: FoldId,
    pub(crate) tail: [FoldId; TAIL],
    pub(crate) unsynced: u8,
}

impl Journal {
    /// The state after the last frame.
    pub(crate) fn top(&self) -> FoldId {
        match self.unsynced {
            0 => self.durable,
            n => self.tail[usize::from(n) - 1],
        }
    }

    /// Appends a frame; false if more are un-synced than the world has room for.
    pub(crate) fn push(&mut self, fold: FoldId) -> bool {
        let at = usize::from(self.unsynced);
        if at == TAIL {
            return false;
        }
        self.tail[at] = fold;
        self.unsynced += 1;
        true
    }

    /// Makes all that is written durable.
    pub(crate) fn sync(&mut self) {
        *self = Self { durable: self.top(), ..Self::default() };
    }

    /// Loses all but the first `kept` frames that were not durable.
    pub(crate) fn lose(&mut self, kept: u8) {
        self.unsynced = kept;
        self.sync();
    }
}

/// The run directory of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum RunDir {
    #[default]
    Absent,
    /// Without a disk.
    Born,
    Whole,
    /// Its removal was begun.
    Torn,
}

/// A helper that makes a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Helper {
    #[default]
    Absent,
    /// At work for an actor.
    Working(u8),
    /// Its parent died: it has a death signal coming.
    Orphan,
}

/// The VMM of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Vmm {
    #[default]
    Absent,
    /// Forked, and still running its parent's image.
    Forked,
    /// It runs, and waits to be told to run the guest.
    Booting,
    /// The guest runs.
    Up,
    /// Dead, and what it held is not released yet.
    Dying,
}

impl Vmm {
    pub(crate) fn lives(self) -> bool {
        matches!(self, Self::Forked | Self::Booting | Self::Up)
    }
}

/// Of [`Place::ops_held`]: the helper.
pub(crate) const BY_HELPER: u8 = 1 << 6;
/// Of [`Place::ops_held`]: the VMM, or the child that will be it.
pub(crate) const BY_VMM: u8 = 1 << 7;

/// All that the host has of one VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Place {
    pub(crate) ops_file: bool,
    /// Who has the ops lock's descriptor, as bits: actors by number, helper, VMM.
    pub(crate) ops_held: u8,
    pub(crate) helper: Helper,
    pub(crate) run: RunDir,
    pub(crate) log: bool,
    pub(crate) vmm_file: bool,
    pub(crate) vmm: Vmm,
    pub(crate) process: Process,
    /// Its directories are of another installation.
    pub(crate) foreign: bool,
}

impl Place {
    /// Whether anything of the VM is there that is not its lock file.
    pub(crate) fn has_directories(&self) -> bool {
        self.run != RunDir::Absent || self.log
    }
}

/// A step in one byte: its place in [`STEPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Owed(u8);

/// The steps of this world. There is no clock, so no guest is given time to power off.
const STEPS: [Step; 11] = [
    Step::PrepareStorage,
    Step::ChooseLaunch,
    Step::SpawnVmm,
    Step::AwaitVmm,
    Step::SettleLaunch,
    Step::StopVmm(StopMode::Kill),
    Step::ProveVmmDead { kill: false },
    Step::ProveVmmDead { kill: true },
    Step::Remove(DeleteStep::RunDirectory),
    Step::Remove(DeleteStep::LogDirectory),
    Step::Remove(DeleteStep::VmmLock),
];

impl Owed {
    /// `None` for a step that this world does not know.
    pub(crate) fn of(step: Step) -> Option<Self> {
        let at = STEPS.iter().position(|known| *known == step)?;
        u8::try_from(at).ok().map(Self)
    }

    pub(crate) fn step(self) -> Step {
        STEPS[usize::from(self.0)]
    }
}

/// Where an actor stands in its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Pc {
    /// Not begun, or between two rounds.
    #[default]
    Idle,
    /// Ended; of a birth: ended well.
    Done,
    /// Ended with an error.
    Failed,
    /// Of a birth: killed, or ended with an error.
    Dead,
    /// Takes the lock, if it is free.
    Try,
    /// Waits for the lock.
    Wait,
    /// Looks at the record under the lock.
    Enter,
    /// Looks at the VMM of a record that no operation owns.
    LookIdle,
    /// Nothing is left over: looks at the VMM for its own decision.
    Entered,
    /// Has its own command decided.
    Decide(Sight),
    /// Reserves id and name.
    Reserve,
    /// Records an exit without a lock.
    Record,
    /// Its frame is written; syncs it.
    Sync(Then, Answer),
    /// Asks the record what it owes, and begins with it.
    Drive,
    MakeDisk,
    AwaitDisk,
    AwaitExec,
    /// Ends the VMM, for a step that ends so.
    Kill(Owed, End),
    AwaitDeath(Owed, End),
    RemoveRest,
    /// Reports the end of a step.
    Report(Owed, End),
    /// Removes the ops lock's file, and ends so.
    SweepOps(Ended),
    /// Gives up: takes back what taking the lock has made.
    Abort,
    /// Removes a directory without a record.
    Stray,
    /// Removes lock files without a record.
    SweepLocks,
}

/// What follows a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Then {
    Reserved,
    Driven,
    Taken,
    Idle,
    Begun,
    Recorded,
}

/// How a run of steps ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ended {
    Gone,
    There,
    Failed,
}

/// What a collector does on a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Duty {
    #[default]
    Settle,
    /// Of the daemon: journals the end of a process that it watches.
    Exit,
    Stray,
    Locks,
}

/// A [`Sighting`] in three bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Glimpse {
    generation: u8,
    operation: u8,
    birth: bool,
}

impl Glimpse {
    pub(crate) fn of(sighting: &Sighting) -> Self {
        let operation = sighting.operation.map_or(0, |operation| operation.0);
        Self {
            generation: u8::try_from(sighting.generation).unwrap_or(u8::MAX),
            operation: u8::try_from(operation).unwrap_or(u8::MAX),
            birth: sighting.birth,
        }
    }

    pub(crate) fn sighting(self) -> Sighting {
        let operation = (self.operation != 0).then(|| OperationId(u128::from(self.operation)));
        Sighting { generation: u64::from(self.generation), operation, birth: self.birth }
    }
}

/// One process of cocoon, with what it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Actor {
    pub(crate) pc: Pc,
    /// The slot that it works on.
    pub(crate) at: u8,
    pub(crate) duty: Duty,
    /// Its operation; 0 before it has one.
    pub(crate) operation: u8,
    /// The operation that finishes what a dead one left; 0 if none.
    pub(crate) recovery: u8,
    pub(crate) tries: u8,
    /// A generation that it has looked at.
    pub(crate) generation: u8,
    /// What it was asked about.
    pub(crate) asked: Glimpse,
    /// Whether that was being brought into being. Only judges look at it.
    pub(crate) asked_in_birth: bool,
    /// What it found under the lock.
    pub(crate) found: Glimpse,
    pub(crate) failed: bool,
    pub(crate) last: Option<Owed>,
    /// Of the daemon, a VM: the generation that it saw run, plus one, and the process.
    pub(crate) watched: [(u8, Process); SLOTS],
    /// Frames of the tail, from the first, on which it relies.
    pub(crate) relies_on: u8,
}

/// What may still go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Budgets {
    pub(crate) kills: u8,
    pub(crate) power_losses: u8,
    pub(crate) vmm_deaths: u8,
    pub(crate) failures: u8,
}

/// What of a world is hashed: no lengths, since these do not change within a search.
struct Parts<'a>(&'a Journal, &'a [Place], &'a [Actor], &'a Budgets, u8);

impl Hash for Parts<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self(journal, places, actors, budgets, boot) = self;
        hasher.write(&journal.durable.to_le_bytes());
        let tail = &journal.tail[..usize::from(journal.unsynced)];
        tail.iter().for_each(|fold| hasher.write(&fold.to_le_bytes()));
        hasher.write(&[journal.unsynced, *boot]);
        places.iter().for_each(|place| place.hash(hasher));
        actors.iter().for_each(|actor| actor.hash(hasher));
        budgets.hash(hasher);
    }
}

/// All that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct World {
    pub(crate) journal: Journal,
    pub(crate) places: [Place; SLOTS],
    pub(crate) actors: [Actor; ACTORS],
    pub(crate) budgets: Budgets,
    pub(crate) boot: u8,
}

impl World {
    /// The hash of a world of so many actors and VMs.
    pub(crate) fn hash(&self, actors: usize, vms: u8) -> u128 {
        let Self { journal, places, actors: all, budgets, boot } = self;
        let places = &places[..usize::from(vms)];
        hash_of(&Parts(journal, places, &all[..actors], budgets, *boot))
    }

    /// Operations that a living actor has, as bits.
    pub(crate) fn living_operations(&self) -> u32 {
        let living = |actor: &&Actor| !matches!(actor.pc, Pc::Done | Pc::Failed | Pc::Dead);
        let bits = |bits, actor: &Actor| bits | 1 << actor.operation | 1 << actor.recovery;
        self.actors.iter().filter(living).fold(0, bits) & !1
    }

    /// The journal becomes durable.
    pub(crate) fn sync(&mut self) {
        self.journal.sync();
        for actor in &mut self.actors {
            actor.relies_on = 0;
        }
    }

    /// A process has died: the kernel drops what it held, and its helpers are told.
    pub(crate) fn bury(&mut self, actor: u8) {
        for place in &mut self.places {
            place.ops_held &= !(1 << actor);
            if place.helper == Helper::Working(actor) {
                place.helper = Helper::Orphan;
            }
        }
    }

    /// The host loses its power; of the frames that were not durable it finds the first `kept` again.
    pub(crate) fn lose_power(&mut self, kept: u8) {
        self.journal.lose(kept);
        self.boot += 1;
        for place in &mut self.places {
            place.ops_held = 0;
            place.helper = Helper::Absent;
            place.vmm = Vmm::Absent;
            place.process = Process::default();
        }
    }
}
