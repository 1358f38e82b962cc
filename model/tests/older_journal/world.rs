//! The small world of the tests beside it.

use std::fmt::Write as _;

use cocoon_model::command::{Command, VmmSeen};
use cocoon_model::decide::{Decision, decide};
use cocoon_model::event::root::RootUnconfirmed;
use cocoon_model::event::vm::Adopted;
use cocoon_model::event::{Event, Stamp};
use cocoon_model::id::{Id, LaunchToken, OperationId, VmId};
use cocoon_model::invariant::Judge;
use cocoon_model::record::{
    Accelerator, BackendKind, Blob, Boot, DeleteStep, ImageContent, ImageType, OperationKind,
    ProcessIdentity, RemovalPhase, StopMode, VmConfig, VmCore, VmSpec, VmState,
};
use cocoon_model::recover::{Action, LockSeen, Seen, is_older, recover, unconfirmed};
use cocoon_model::step::{Outcome, Step, next_step};
use cocoon_model::view::View;

/// What an actor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Create,
    Run,
    Start,
    Stop {
        kill: bool,
    },
    Delete {
        force: bool,
    },
    Reconcile,
    Observe,
    VmmDies,
    /// Probes become inconclusive.
    Blind {
        on: bool,
    },
    /// Making and removing files fails.
    Faulty {
        on: bool,
    },
    /// VMMs do not come up.
    Stubborn {
        on: bool,
    },
}

/// One actor's life: what it does, to what, and at which boundary it is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Act {
    pub(crate) verb: Verb,
    pub(crate) slot: u8,
    pub(crate) dies_at: Option<u32>,
}

/// The actor was killed.
struct Killed;

type Alive<T> = Result<T, Killed>;

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// The id in use for this slot; a new one for each birth.
    id: Option<VmId>,
    vmm: Option<ProcessIdentity>,
    directories: bool,
    /// The generation that was noted in its directory.
    noted: u64,
}

#[derive(Default)]
pub(crate) struct World {
    judge: Judge,
    places: [Place; 3],
    births: u8,
    operations: u128,
    pids: u32,
    seq: u64,
    blind: bool,
    faulty: bool,
    stubborn: bool,
    trace: String,
    image: Option<Id>,
    /// The journal as it was after an event, for whoever puts it back.
    kept: Option<Judge>,
    keep_at: Option<u64>,
    /// The last event that a witness outside of the journal has seen.
    witnessed: u64,
    /// What an older record speaks of, and is not there any more.
    ghost: Place,
}

/// One actor at work.
struct Actor {
    operation: OperationId,
    boundaries_left: Option<u32>,
}

impl Actor {
    fn boundary(&mut self) -> Alive<()> {
        match self.boundaries_left.as_mut() {
            Some(0) => Err(Killed),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

fn spec(name: &str) -> VmSpec {
    VmSpec {
        backend: BackendKind::Qemu,
        config: VmConfig {
            cpu: 1,
            memory: 1 << 28,
            storage: 1 << 30,
            queue_size: 0,
            disk_queue_size: 0,
            image: "guest".to_owned(),
            image_digest: String::new(),
            image_type: ImageType::Cloudimg,
            no_direct_io: false,
        },
        boot: Boot::Disk,
        disks: Vec::new(),
        nics: Vec::new(),
        run_dir: format!("/run/{name}"),
        log_dir: format!("/log/{name}"),
    }
}

impl World {
    fn actor(&mut self, dies_at: Option<u32>) -> Actor {
        self.operations += 1;
        Actor { operation: OperationId(self.operations), boundaries_left: dies_at }
    }

    fn submit(&mut self, actor: &mut Actor, command: &Command) -> Alive<Decision> {
        actor.boundary()?;
        self.see_witness(actor.operation);
        let decision = decide(self.judge.state(), actor.operation, command).expect("in memory");
        if let Decision::Accepted(events) = &decision {
            for event in events {
                self.append(actor.operation, event);
            }
        }
        // Events of one decision are there together or not at all.
        if self.keep_at.take_if(|at| *at <= self.seq).is_some() {
            self.kept = Some(self.judge.clone());
        }
        actor.boundary()?;
        self.witnessed = self.witnessed.max(self.seq);
        Ok(decision)
    }

    /// A witness that has seen a later event puts it on record that the journal is an older one.
    fn see_witness(&mut self, operation: OperationId) {
        if self.witnessed > self.seq && self.doubt().is_none() {
            let reason = "a later event was seen".to_owned();
            self.append(operation, &Event::Root(RootUnconfirmed { reason }.into()));
        }
    }

    fn doubt(&self) -> Option<String> {
        self.judge.state().root().expect("in memory").doubt.map(|doubt| doubt.reason)
    }

    /// Has the journal kept as it is after an event.
    pub(crate) fn keep_at(&mut self, seq: u64) {
        self.keep_at = Some(seq);
    }

    /// Puts the kept journal in the place of the newer one, under a world that went on. The witness beside it may go with it.
    pub(crate) fn put_back(&mut self, with_witness: bool) {
        let Some(kept) = self.kept.take() else { return };
        self.judge = kept;
        self.seq = self.judge.state().applied();
        if with_witness {
            self.witnessed = self.seq;
        }
        writeln!(self.trace, "^ the journal is as it was after {}", self.seq).expect("a string");
    }

    fn append(&mut self, operation: OperationId, event: &Event) {
        self.seq += 1;
        let stamp = Stamp { seq: self.seq, at_us: 0, operation };
        writeln!(self.trace, "{} op{} {:?}", self.seq, operation.0, event).expect("a string");
        let before = self.judge.violations().len();
        self.judge.next(&stamp, event);
        assert_eq!(
            self.judge.violations().len(),
            before,
            "{:?}\n{}",
            self.judge.violations(),
            self.trace
        );
    }

    pub(crate) fn act(&mut self, act: &Act) {
        let slot = usize::from(act.slot);
        match act.verb {
            Verb::VmmDies => self.places[slot].vmm = None,
            Verb::Blind { on } => self.blind = on,
            Verb::Faulty { on } => self.faulty = on,
            Verb::Stubborn { on } => self.stubborn = on,
            _ => {
                let mut actor = self.actor(act.dies_at);
                // The lock dies with its holder, so a killed actor needs no cleaning up.
                let _killed = self.verb(&mut actor, act.verb, slot);
            }
        }
    }

    fn verb(&mut self, actor: &mut Actor, verb: Verb, slot: usize) -> Alive<()> {
        if matches!(verb, Verb::Create | Verb::Run) {
            return self.birth(actor, verb, slot);
        }
        let Some(id) = self.places[slot].id else { return Ok(()) };
        if verb == Verb::Observe {
            return self.observe(actor, id);
        }
        if self.refuses_older(actor, id)? {
            return Ok(());
        }
        let creating = self.core(id).is_some_and(|core| core.state == VmState::Creating);
        if verb == Verb::Reconcile && !creating {
            return Ok(());
        }
        self.take_over(actor, id)?;
        let command = match verb {
            Verb::Start => Command::Start {
                id,
                generation: self.core(id).map_or(0, |core| core.generation),
                seen: self.seen(id),
                token: LaunchToken(self.seq),
                accelerator: Accelerator::Tcg,
            },
            Verb::Stop { kill } => {
                let mode = if kill { StopMode::Kill } else { StopMode::Graceful { timeout_ms: 1 } };
                Command::Stop { id, seen: self.seen(id), mode }
            }
            Verb::Delete { force } => Command::Delete { id, seen: self.seen(id), force },
            _ => return Ok(()),
        };
        self.submit(actor, &command)?;
        self.drive(actor, id)
    }

    fn birth(&mut self, actor: &mut Actor, verb: Verb, slot: usize) -> Alive<()> {
        let image = self.image();
        self.births = self.births.checked_add(1).expect("few births");
        let id = Id::from_slot(self.births);
        let name = format!("vm{slot}");
        let kind = if verb == Verb::Run { OperationKind::Run } else { OperationKind::Create };
        let spec = Box::new(spec(&name));
        let command = Command::Prereserve { id, name, image, kind, spec };
        actor.boundary()?;
        let free = self.places[slot].id.is_none_or(|id| self.core(id).is_none());
        if free {
            // Only what the journal will name may be left behind by this place.
            assert!(!self.places[slot].directories && self.places[slot].vmm.is_none());
            self.places[slot].id = Some(id);
            self.places[slot].noted = 0;
        }
        self.submit(actor, &command)?;
        self.drive(actor, id)
    }

    fn image(&mut self) -> Id {
        if let Some(image) = self.image {
            return image;
        }
        let id = Id::from_slot(255);
        let content = ImageContent::Disk {
            disk: Blob { hash: "0".repeat(64), size: 1 },
            format: cocoon_model::record::DiskFormat::Raw,
            virtual_size: 1,
        };
        let command =
            Command::ImportImage { id, name: "guest".into(), digest: "d".into(), content };
        let mut actor = self.actor(None);
        assert!(matches!(self.submit(&mut actor, &command), Ok(Decision::Accepted(_))));
        self.image = Some(id);
        id
    }

    fn observe(&mut self, actor: &mut Actor, id: VmId) -> Alive<()> {
        if self.refuses_older(actor, id)? {
            return Ok(());
        }
        let Some(core) = self.core(id) else { return Ok(()) };
        if self.seen(id) == VmmSeen::Dead {
            self.submit(
                actor,
                &Command::ObserveExit { id, generation: core.generation, evidence: None },
            )?;
        }
        Ok(())
    }

    /// A record that the directory of its VM proves older is not acted upon, and makes the root unconfirmed.
    fn refuses_older(&mut self, actor: &mut Actor, id: VmId) -> Alive<bool> {
        let noted = self.place(id).noted;
        if !self.core(id).is_some_and(|core| is_older(&core, noted)) {
            return Ok(false);
        }
        let reason = "its directory has seen a later generation".to_owned();
        self.submit(actor, &Command::Doubt { reason })?;
        Ok(true)
    }

    fn take_over(&mut self, actor: &mut Actor, id: VmId) -> Alive<()> {
        if self.refuses_older(actor, id)? {
            return Ok(());
        }
        self.submit(actor, &Command::TakeOver { id })?;
        self.drive(actor, id)
    }

    /// The loop that the engine runs.
    fn drive(&mut self, actor: &mut Actor, id: VmId) -> Alive<()> {
        for _ in 0..16 {
            let Some(core) = self.core(id) else { return Ok(()) };
            if core.operation.map(|operation| operation.id) != Some(actor.operation) {
                return Ok(());
            }
            let Some(step) = next_step(&core) else { return Ok(()) };
            actor.boundary()?;
            let outcome = self.perform(id, step);
            actor.boundary()?;
            let stays_owed = matches!(outcome, Outcome::Unproven(_))
                || matches!((step, &outcome), (Step::Remove(_), Outcome::Failed(_)));
            self.submit(actor, &Command::Report { id, step, outcome })?;
            let generation = self.core(id).map_or(0, |after| after.generation);
            if generation > core.generation {
                self.place(id).noted = generation;
            }
            if stays_owed {
                return Ok(());
            }
        }
        panic!("the steps of VM {id} do not end\n{}", self.trace);
    }

    fn perform(&mut self, id: VmId, step: Step) -> Outcome {
        let (blind, faulty, stubborn) = (self.blind, self.faulty, self.stubborn);
        self.pids += 1;
        let identity =
            ProcessIdentity { pid: self.pids, start_time: 1, boot_id: 1, pid_namespace: 1 };
        let place = self.place(id);
        match step {
            Step::PrepareStorage => {
                place.directories = true;
                if faulty { Outcome::Failed("no space".into()) } else { Outcome::Done }
            }
            Step::ChooseLaunch => Outcome::Chosen(LaunchToken(7), Accelerator::Tcg),
            Step::SpawnVmm if !place.directories => Outcome::Failed("its disk is gone".into()),
            Step::SpawnVmm => {
                assert!(place.vmm.is_none(), "a second VMM");
                place.vmm = Some(identity);
                Outcome::Spawned(identity)
            }
            Step::AwaitVmm | Step::SettleLaunch => match place.vmm {
                Some(_) if blind => Outcome::Unproven("cannot look".into()),
                Some(identity) if !stubborn => Outcome::Up(identity),
                _ => {
                    place.vmm = None;
                    Outcome::Failed("it did not come up".into())
                }
            },
            Step::StopVmm(_) | Step::ProveVmmDead { kill: true } => {
                if blind {
                    return Outcome::Unproven("cannot look".into());
                }
                place.vmm = None;
                Outcome::Done
            }
            Step::ProveVmmDead { kill: false } => match place.vmm {
                _ if blind => Outcome::Unproven("cannot look".into()),
                Some(_) => Outcome::Failed("it lives".into()),
                None => Outcome::Done,
            },
            Step::Remove(_) if faulty => Outcome::Failed("busy".into()),
            Step::Remove(DeleteStep::RunDirectory) => {
                assert!(place.vmm.is_none(), "files go while a VMM lives");
                // The note goes with the directory.
                (place.directories, place.noted) = (false, 0);
                Outcome::Done
            }
            Step::Remove(_) => Outcome::Done,
        }
    }

    fn place(&mut self, id: VmId) -> &mut Place {
        let at = self.places.iter().position(|place| place.id == Some(id));
        match at {
            Some(at) => &mut self.places[at],
            None => {
                self.ghost = Place { id: Some(id), ..Place::default() };
                &mut self.ghost
            }
        }
    }

    fn core(&self, id: VmId) -> Option<VmCore> {
        self.judge.state().vm(id).expect("in memory").map(|record| record.core.clone())
    }

    fn seen(&self, id: VmId) -> VmmSeen {
        let place = self.places.iter().find(|place| place.id == Some(id));
        match place.and_then(|place| place.vmm) {
            _ if self.blind => VmmSeen::Inconclusive("cannot look".into()),
            Some(identity) => VmmSeen::Alive(identity),
            None => VmmSeen::Dead,
        }
    }

    pub(crate) fn faults_stop(&mut self) {
        (self.blind, self.faulty, self.stubborn) = (false, false, false);
    }

    /// Passes of recovery until one has nothing to do; how many did something.
    pub(crate) fn recover_until_still(&mut self) -> usize {
        for passes in 0..8 {
            let cores: Vec<VmCore> = self
                .judge
                .state()
                .vms()
                .expect("in memory")
                .iter()
                .map(|record| record.core.clone())
                .collect();
            let seen = cores
                .iter()
                .map(|core| (core, Seen { lock: LockSeen::Free, vmm: self.seen(core.id) }));
            let mut work = recover(seen).actions;
            if let Some(reason) = self.doubt() {
                work.iter_mut()
                    .for_each(|(_, action)| *action = unconfirmed(action.clone(), &reason));
                work.retain(|(_, action)| !matches!(action, Action::CannotTell(_)));
            }
            work.retain(|(_, action)| !matches!(action, Action::Watch(_)));
            if work.is_empty() {
                return passes;
            }
            for (id, action) in work {
                let mut actor = self.actor(None);
                let done = match action {
                    Action::TakeOver => self.take_over(&mut actor, id),
                    Action::RecordExit => self.observe(&mut actor, id),
                    Action::Adopt(identity) => {
                        let generation = self.core(id).map_or(0, |core| core.generation);
                        self.submit(&mut actor, &Command::Adopt { id, generation, identity })
                            .map(|_| ())
                    }
                    other => panic!("nothing to wait for, and yet {other:?}\n{}", self.trace),
                };
                assert!(done.is_ok(), "nobody kills a recovery here");
            }
        }
        panic!("recovery does not come to rest\n{}", self.trace);
    }

    /// VMMs and directories, by VM; with whether no record, or only an older one, knows of them.
    pub(crate) fn there(&self) -> Vec<(VmId, bool, bool, bool)> {
        let places = self.places.iter().filter_map(|place| Some((place.id?, place)));
        let older = |id, noted| self.core(id).is_none_or(|core| core.generation < noted);
        places
            .map(|(id, place)| (id, place.vmm.is_some(), place.directories, older(id, place.noted)))
            .collect()
    }

    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.witnessed > self.seq || self.doubt().is_some()
    }

    /// What `cocoon adopt` does: takes in what is there, then confirms the root.
    pub(crate) fn adopt(&mut self) {
        let places = self.places;
        for (slot, place) in places.iter().enumerate() {
            let Some(id) = place.id.filter(|_| place.directories) else { continue };
            let core = self.core(id);
            let going = |core: &VmCore| {
                core.tombstone.as_ref().is_some_and(|t| t.phase == RemovalPhase::Deleting)
            };
            let older = core.as_ref().is_none_or(|core| is_older(core, place.noted));
            let drifted = core.as_ref().is_some_and(|core| {
                place.vmm.is_some() && (core.state != VmState::Running || core.operation.is_some())
            });
            if !(older || drifted) || core.as_ref().is_some_and(going) {
                continue;
            }
            let before = core.as_ref().map_or(0, |core| core.generation);
            let name = core.map_or_else(|| self.free_name(slot), |core| core.name);
            let found = Box::new(Adopted {
                spec: Box::new(spec(&name)),
                name,
                image: self.image(),
                generation: before.max(place.noted) + 1,
                first_booted: place.vmm.is_some(),
                identity: place.vmm,
            });
            let mut actor = self.actor(None);
            let taken = self.submit(&mut actor, &Command::TakeIn { id, found });
            assert!(matches!(taken, Ok(Decision::Accepted(_))), "{}", self.trace);
        }
        self.witnessed = self.seq;
        let mut actor = self.actor(None);
        let place = cocoon_model::record::Place::default();
        assert!(self.submit(&mut actor, &Command::AdoptRoot { place }).is_ok());
        assert!(!self.is_unconfirmed(), "{}", self.trace);
    }

    /// What somebody does who sees from an adoption that the directory of a VM is gone.
    pub(crate) fn remove_what_is_gone(&mut self) {
        for slot in 0..self.places.len() {
            let place = self.places[slot];
            if place.id.is_some_and(|id| !place.directories && self.core(id).is_some()) {
                let slot = u8::try_from(slot).expect("few slots");
                self.act(&Act { verb: Verb::Delete { force: true }, slot, dies_at: None });
            }
        }
    }

    fn free_name(&self, slot: usize) -> String {
        let name = format!("vm{slot}");
        let taken = self.judge.state().vm_by_name(&name).expect("in memory").is_some();
        if taken { format!("{name}-found") } else { name }
    }

    pub(crate) fn assert_nothing_half_done(&self) {
        for place in &self.places {
            let core = place.id.and_then(|id| self.core(id));
            let running = core.as_ref().is_some_and(|core| core.state == VmState::Running);
            assert_eq!(place.vmm.is_some(), running, "{core:?}\n{}", self.trace);
            assert_eq!(place.directories, core.is_some(), "{core:?}\n{}", self.trace);
            if let Some(core) = core {
                assert!(core.operation.is_none() && core.tombstone.is_none(), "{}", self.trace);
                assert_ne!(core.state, VmState::Creating, "{}", self.trace);
            }
        }
    }

    pub(crate) fn assert_judged(&self) {
        assert!(
            self.judge.violations().is_empty(),
            "{:?}\n{}",
            self.judge.violations(),
            self.trace
        );
    }

    pub(crate) fn trace(&self) -> String {
        self.trace.clone()
    }
}
