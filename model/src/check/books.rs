//! Folded states as small numbers.
//!
//! A search meets the same folded state in millions of worlds. Each is kept once and named by a number; what the crate's
//! own [`decide`] and `apply` make of it is asked once for each command and remembered. Only what decisions can read is
//! kept ([`VmCore`] and the name index): times and sequence numbers are forgotten, so that histories of unequal length
//! meet.

mod ask;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decide::{Decision, Refusal, decide};
use crate::event::{Event, Stamp, VmEvent};
use crate::id::{Id, ImageId, OperationId, VmId};
use crate::invariant::check_record;
use crate::mutant::{self, Mutant};
use crate::record::{
    BackendKind, Boot, DiskFormat, ImageContent, ImageCore, ImageRecord, ImageType, OperationKind,
    RemovalKind, RemovalPhase, SupervisorRecord, VmConfig, VmCore, VmNotes, VmRecord, VmSpec,
    VmState,
};
use crate::removal::Sighting;
use crate::state::{Change, State};
use crate::step::{Step, next_step};
use crate::view::{Base, Lookup, NameSpace};

use super::table::{Table, hash_of};
use super::world::{SLOTS, VMS};

pub(crate) use ask::{Ask, End, Process, Sight};

/// The number of a folded state.
pub(crate) type FoldId = u32;

/// The number of a record; 0 is no record.
type RecordId = u16;

/// What was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Answer {
    Accepted,
    Already,
    NameTaken(u8),
    Late,
    Refused,
}

/// An event of a decision, as far as the world is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) slot: u8,
    pub(crate) name: &'static str,
    pub(crate) kind: u16,
    pub(crate) before: Option<Facts>,
    pub(crate) after: Option<Facts>,
    pub(crate) removal: Option<RemovalKind>,
    /// The operation from which the record was taken.
    pub(crate) taken_from: u8,
}

/// What became of a command in a folded state.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pub(crate) answer: Answer,
    /// The refusal, for traces.
    pub(crate) said: String,
    /// The states after each frame: one for a decision that is not torn.
    pub(crate) folds: Vec<FoldId>,
    pub(crate) told: Vec<Told>,
    /// What is broken, by number and in words.
    pub(crate) wrong: Vec<(&'static str, String)>,
}

/// What actors look up of a record, small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Facts {
    pub(crate) state: VmState,
    pub(crate) generation: u8,
    pub(crate) operation: u8,
    pub(crate) kind: Option<OperationKind>,
    pub(crate) next: Option<Step>,
    pub(crate) process: Option<Process>,
    pub(crate) launched: bool,
    pub(crate) interval_open: bool,
    /// The record as a removal sees it.
    pub(crate) sighting: Sighting,
    pub(crate) phase: Option<RemovalPhase>,
}

/// A folded state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Key {
    records: [RecordId; SLOTS],
    /// Who holds each name, plus one.
    names: [u8; SLOTS],
    /// VMs that the history has named.
    named: u8,
}

/// All folded states that were met, and what commands make of them.
#[derive(Debug)]
pub(crate) struct Books {
    records: Vec<(Arc<VmRecord>, Facts)>,
    record_ids: BTreeMap<VmCore, RecordId>,
    keys: Vec<Key>,
    key_ids: BTreeMap<Key, FoldId>,
    verdicts: Vec<Verdict>,
    asked: Table,
    ids: Ids,
}

/// The folded state of a journal without an event about a VM.
pub(crate) const EMPTY: FoldId = 0;

impl Default for Books {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            record_ids: BTreeMap::new(),
            keys: vec![Key::default()],
            key_ids: BTreeMap::from([(Key::default(), EMPTY)]),
            verdicts: Vec::new(),
            asked: Table::default(),
            ids: Ids { first: 0 },
        }
    }
}

impl Books {
    /// Books of VMs whose ids begin with a number.
    pub(crate) fn with_ids_from(first: u8) -> Self {
        Self { ids: Ids { first }, ..Self::default() }
    }

    /// What there is to know of a VM in a folded state.
    pub(crate) fn facts(&self, fold: FoldId, slot: u8) -> Option<Facts> {
        let id = self.keys[fold as usize].records[usize::from(slot)];
        id.checked_sub(1).map(|at| self.records[usize::from(at)].1)
    }

    /// The record of a VM in a folded state.
    pub(crate) fn core(&self, fold: FoldId, slot: u8) -> Option<&VmCore> {
        let id = self.keys[fold as usize].records[usize::from(slot)];
        id.checked_sub(1).map(|at| &self.records[usize::from(at)].0.core)
    }

    /// Whether the history up to a folded state has named a VM.
    pub(crate) fn has_named(&self, fold: FoldId, slot: u8) -> bool {
        self.keys[fold as usize].named & (1 << slot) != 0
    }

    /// How many folded states were met.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Bytes that all this occupies, roughly.
    pub(crate) fn bytes(&self) -> usize {
        let verdict = size_of::<Verdict>() + 2 * size_of::<Told>() + 32;
        self.keys.len() * 3 * size_of::<Key>()
            + self.verdicts.len() * verdict
            + self.records.len() * 3 * size_of::<VmRecord>()
            + self.asked.bytes()
    }

    /// What becomes of a command.
    pub(crate) fn ask(&mut self, fold: FoldId, operation: u8, ask: Ask) -> usize {
        let hash = hash_of(&(fold, operation, ask));
        if let Some(known) = self.asked.get(hash) {
            return known as usize;
        }
        let verdict = self.decide(fold, fold, operation, ask);
        let at = u32::try_from(self.verdicts.len()).unwrap_or(u32::MAX);
        self.verdicts.push(verdict);
        self.asked.insert(hash, at);
        at as usize
    }

    /// As [`ask`](Self::ask), by one who decides on an older state than the one that its frame will follow.
    pub(crate) fn ask_stale(&mut self, seen: FoldId, top: FoldId, op: u8, ask: Ask) -> usize {
        let hash = hash_of(&(seen, top, op, ask, "stale"));
        if let Some(known) = self.asked.get(hash) {
            return known as usize;
        }
        let verdict = self.decide(seen, top, op, ask);
        let at = u32::try_from(self.verdicts.len()).unwrap_or(u32::MAX);
        self.verdicts.push(verdict);
        self.asked.insert(hash, at);
        at as usize
    }

    /// The verdict of a number.
    pub(crate) fn verdict(&self, at: usize) -> &Verdict {
        &self.verdicts[at]
    }

    fn decide(&mut self, seen: FoldId, top: FoldId, operation: u8, ask: Ask) -> Verdict {
        let by = OperationId(u128::from(operation));
        let mut verdict = Verdict {
            answer: Answer::Accepted,
            said: String::new(),
            folds: Vec::new(),
            told: Vec::new(),
            wrong: Vec::new(),
        };
        let decision =
            decide(&State::on(self.base(seen), 0), by, &ask.command(self.ids.of(ask.slot())));
        match decision {
            Ok(Decision::Accepted(events)) => self.append(top, by, &events, &mut verdict),
            Ok(Decision::AlreadySo(settled)) => {
                verdict.answer = Answer::Already;
                verdict.said = format!("{settled:?}");
            }
            Ok(Decision::Refused(refusal)) => {
                verdict.answer = match &refusal {
                    Refusal::NameTaken { holder, .. } => Answer::NameTaken(self.ids.slot(*holder)),
                    Refusal::Late(_) => Answer::Late,
                    _ => Answer::Refused,
                };
                verdict.said = refusal.to_string();
            }
            Err(unreadable) => verdict.wrong.push(("V6", unreadable.to_string())),
        }
        verdict
    }

    /// Folds the events of one decision in, and judges what a journal alone can be judged by.
    fn append(&mut self, top: FoldId, by: OperationId, events: &[Event], verdict: &mut Verdict) {
        let mut fold = top;
        for event in events {
            let Event::Vm(id, event) = event else { continue };
            let slot = self.ids.slot(*id);
            let before = self.facts(fold, slot);
            self.judge_event(fold, slot, before, event, verdict);
            match self.fold_in(fold, by, *id, event) {
                Ok(next) => fold = next,
                Err(illegal) => verdict.wrong.push(("V6", illegal)),
            }
            let after = self.facts(fold, slot);
            self.judge_record(fold, slot, before, after, verdict);
            verdict.told.push(told(slot, event, before, after));
            if mutant::on(Mutant::TornDecision) {
                verdict.folds.push(fold);
            }
        }
        if verdict.folds.is_empty() {
            verdict.folds.push(fold);
        }
    }

    fn judge_event(
        &self,
        fold: FoldId,
        slot: u8,
        before: Option<Facts>,
        event: &VmEvent,
        verdict: &mut Verdict,
    ) {
        let phase = before.and_then(|facts| facts.phase);
        if let VmEvent::TombstoneRolledBack(_) = event
            && phase == Some(RemovalPhase::Deleting)
        {
            let what = format!("the removal of vm{slot} has begun, and is taken back");
            verdict.wrong.push(("V3", what));
        }
        if let VmEvent::Prereserved(body) = event {
            let holds =
                |other: &u8| self.core(fold, *other).is_some_and(|core| core.name == body.name);
            if let Some(other) = (0..VMS).find(holds) {
                let what = format!("vm{slot} takes the name {} of vm{other}", body.name);
                verdict.wrong.push(("V4", what));
            }
        }
    }

    fn judge_record(
        &self,
        fold: FoldId,
        slot: u8,
        before: Option<Facts>,
        after: Option<Facts>,
        verdict: &mut Verdict,
    ) {
        let names = self.keys[fold as usize].names;
        for (name, holder) in names.iter().enumerate() {
            let text = name_of(u8::try_from(name).unwrap_or(0));
            let held: Vec<u8> = (0..VMS)
                .filter(|slot| self.core(fold, *slot).is_some_and(|core| core.name == text))
                .collect();
            let indexed: Vec<u8> = holder.checked_sub(1).into_iter().collect();
            if held != indexed {
                let what = format!("{text} is held by {held:?}, and the index says {indexed:?}");
                verdict.wrong.push(("V4", what));
            }
        }
        let Some(core) = self.core(fold, slot) else { return };
        let generation = |facts: Option<Facts>| facts.map_or(0, |facts| facts.generation);
        let (was, is) = (generation(before), generation(after));
        if is != was && is != was + 1 {
            verdict.wrong.push(("V6", format!("vm{slot} went from generation {was} to {is}")));
        }
        for (invariant, what) in check_record(core) {
            verdict.wrong.push((invariant, format!("vm{slot}: {what}")));
        }
    }

    fn base(&self, fold: FoldId) -> FoldBase<'_> {
        FoldBase { books: self, key: self.keys[fold as usize] }
    }

    /// The state after one event, folded in by the product's own fold on top of a base.
    fn fold_in(
        &mut self,
        fold: FoldId,
        by: OperationId,
        id: VmId,
        event: &VmEvent,
    ) -> Result<FoldId, String> {
        let (mut key, ids) = (self.keys[fold as usize], self.ids);
        let mut state = State::on(FoldBase { books: self, key }, 0);
        let stamp = Stamp { seq: 1, at_us: 0, operation: by };
        state.apply(&stamp, &Event::Vm(id, event.clone())).map_err(|error| error.to_string())?;
        let mut changed = Vec::new();
        for change in state.changes() {
            match change {
                Change::Vm(id, record) => changed.push((ids.slot(id), record.cloned())),
                Change::Name(NameSpace::Vm, name, holder) => {
                    let at = usize::from(number_of(name));
                    key.names[at] = holder.map_or(0, |id| ids.slot(id) + 1);
                }
                Change::Name(..)
                | Change::Image(..)
                | Change::User(..)
                | Change::Supervisor(_)
                | Change::Root(_) => {}
            }
        }
        for (slot, record) in changed {
            key.records[usize::from(slot)] = record.map_or(0, |record| self.keep(record));
        }
        if matches!(event, VmEvent::Prereserved(_)) {
            key.named |= 1 << ids.slot(id);
        }
        Ok(self.name(key))
    }

    fn name(&mut self, key: Key) -> FoldId {
        if let Some(known) = self.key_ids.get(&key) {
            return *known;
        }
        let id = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.keys.push(key);
        self.key_ids.insert(key, id);
        id
    }

    fn keep(&mut self, mut record: VmRecord) -> RecordId {
        if let Some(known) = self.record_ids.get(&record.core) {
            return *known;
        }
        record.notes = VmNotes::default();
        let facts = facts(&record.core);
        let core = record.core.clone();
        self.records.push((Arc::new(record), facts));
        // Far fewer records than this can be told apart within a scope; a search reports how many there were.
        let id = u16::try_from(self.records.len()).unwrap_or(u16::MAX);
        self.record_ids.insert(core, id);
        id
    }

    /// Operations that records of a folded state name, as bits.
    pub(crate) fn operations(&self, fold: FoldId) -> u32 {
        self.all_facts(fold).fold(0, |bits, facts| bits | 1 << facts.operation)
    }

    /// Processes that records of a folded state name, as bits.
    pub(crate) fn pids(&self, fold: FoldId) -> u32 {
        let pid = |facts: Facts| facts.process.map_or(0, |process| process.pid);
        self.all_facts(fold).fold(0, |bits, facts| bits | 1 << pid(facts))
    }

    fn all_facts(&self, fold: FoldId) -> impl Iterator<Item = Facts> {
        (0..VMS).filter_map(move |slot| self.facts(fold, slot))
    }
}

fn told(slot: u8, event: &VmEvent, before: Option<Facts>, after: Option<Facts>) -> Told {
    let info = event.info();
    let (removal, previous) = match event {
        VmEvent::Tombstoned(body) => (Some(body.kind), 0),
        VmEvent::ReclaimBegan(body) => (None, body.previous.0),
        VmEvent::OperationTakenOver(body) => (None, body.previous.0),
        VmEvent::OperationAbandoned(body) => (None, body.previous.0),
        _ => (None, 0),
    };
    let taken_from = u8::try_from(previous).unwrap_or(0);
    Told { slot, name: info.name, kind: info.kind, before, after, removal, taken_from }
}

fn facts(core: &VmCore) -> Facts {
    let small = |wide: u128| u8::try_from(wide).unwrap_or(u8::MAX);
    Facts {
        state: core.state,
        generation: small(u128::from(core.generation)),
        operation: core.operation.map_or(0, |operation| small(operation.id.0)),
        kind: core.operation.map(|operation| operation.kind),
        next: next_step(core),
        process: core.launch.and_then(|launch| launch.identity).as_ref().map(Process::of),
        launched: core.launch.is_some(),
        interval_open: core.interval_open,
        sighting: Sighting::of(core),
        phase: core.tombstone.as_ref().map(|tombstone| tombstone.phase),
    }
}

/// Ids of slots.
#[derive(Debug, Clone, Copy)]
struct Ids {
    first: u8,
}

impl Ids {
    fn of(self, slot: u8) -> Id {
        Id::from_slot(self.first + slot + 1)
    }

    fn slot(self, id: Id) -> u8 {
        (0..VMS).find(|slot| self.of(*slot) == id).unwrap_or(0)
    }
}

fn image_id() -> ImageId {
    Id::from_slot(255)
}

fn name_of(name: u8) -> String {
    format!("name{name}")
}

fn number_of(name: &str) -> u8 {
    name.trim_start_matches("name").parse().unwrap_or(0)
}

fn spec(slot: u8) -> VmSpec {
    VmSpec {
        backend: BackendKind::Qemu,
        config: VmConfig {
            cpu: 1,
            memory: 1 << 28,
            storage: 1 << 30,
            queue_size: 0,
            disk_queue_size: 0,
            image: String::new(),
            image_digest: String::new(),
            image_type: ImageType::Cloudimg,
            no_direct_io: false,
        },
        boot: Boot::Disk,
        disks: Vec::new(),
        nics: Vec::new(),
        run_dir: format!("/run/{slot}"),
        log_dir: format!("/log/{slot}"),
    }
}

/// A folded state as what later events stand on, as a checkpoint is for the product.
struct FoldBase<'a> {
    books: &'a Books,
    key: Key,
}

impl FoldBase<'_> {
    fn record(&self, slot: u8) -> Option<VmRecord> {
        let id = self.key.records[usize::from(slot)];
        id.checked_sub(1).map(|at| (*self.books.records[usize::from(at)].0).clone())
    }
}

impl Base for FoldBase<'_> {
    fn vm(&self, id: VmId) -> Lookup<Option<VmRecord>> {
        Ok(self.record(self.books.ids.slot(id)))
    }

    fn vms(&self, prefix: &str) -> Lookup<Vec<VmRecord>> {
        let fits = |record: &VmRecord| record.core.id.as_str().starts_with(prefix);
        Ok((0..VMS).filter_map(|slot| self.record(slot)).filter(fits).collect())
    }

    fn image(&self, id: ImageId) -> Lookup<Option<ImageRecord>> {
        let core =
            ImageCore { id, name: "image".to_owned(), digest: String::new(), removing: None };
        let disk = crate::record::Blob { hash: String::new(), size: 1 };
        let content = ImageContent::Disk { disk, format: DiskFormat::Raw, virtual_size: 1 };
        Ok((id == image_id()).then_some(ImageRecord { core, content, created_us: 0 }))
    }

    fn images(&self) -> Lookup<Vec<ImageRecord>> {
        Ok(self.image(image_id())?.into_iter().collect())
    }

    fn name(&self, space: NameSpace, name: &str) -> Lookup<Option<Id>> {
        if space == NameSpace::Image {
            return Ok(None);
        }
        let holder = self.key.names[usize::from(number_of(name))];
        Ok(holder.checked_sub(1).map(|slot| self.books.ids.of(slot)))
    }

    fn image_users(&self, _: ImageId) -> Lookup<Vec<VmId>> {
        Ok((0..VMS)
            .filter(|slot| self.record(*slot).is_some())
            .map(|slot| self.books.ids.of(slot))
            .collect())
    }

    fn supervisor(&self) -> Lookup<SupervisorRecord> {
        Ok(SupervisorRecord::default())
    }
}
