//! What must always hold, numbered, each in one sentence and with the evidence that it is judged by.
//!
//! Two judges use the list: [`check_record`] looks at one folded record, and [`Judge`] reads a journal from its first
//! event to its last and says which record first broke what. Invariants about the world (files, processes) are judged
//! by the checker and by the crash tests.

use std::collections::BTreeMap;

use crate::apply::{ApplyError, IllegalEvent};
use crate::event::{Event, Stamp, VmEvent};
use crate::id::VmId;
use crate::record::{LaunchPhase, RemovalPhase, VmCore, VmState};
use crate::state::State;
use crate::view::{Base, Lookup, Nothing, View};

/// What an invariant is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The journal alone.
    Journal,
    /// The journal and the world.
    World,
}

/// One invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invariant {
    /// Its number.
    pub id: &'static str,
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub sentence: &'static str,
    /// What it is judged by.
    pub evidence: Evidence,
}

/// The list. Numbers are never reused.
pub const INVARIANTS: &[Invariant] = &[
    Invariant {
        id: "V1",
        name: "lock proof",
        sentence: "A `creating` record is tombstoned only under its ops lock: by its own operation while that lives, by others only after.",
        evidence: Evidence::World,
    },
    Invariant {
        id: "V2",
        name: "no age",
        sentence: "A `creating` record whose lock is free and whose VMM is proven dead is reclaimable at once, by daemon, gc and verb through one body.",
        evidence: Evidence::World,
    },
    Invariant {
        id: "V3",
        name: "roll forward",
        sentence: "A removal that is `deleting` is never rolled back, and one that is `leased` touched no file.",
        evidence: Evidence::Journal,
    },
    Invariant {
        id: "V4",
        name: "names",
        sentence: "There is one record a name; a name is free exactly when its record is gone; a pending record holds its name.",
        evidence: Evidence::Journal,
    },
    Invariant {
        id: "V5",
        name: "no forgotten VMM",
        sentence: "No record and no directory goes while its VMM may live; an inconclusive probe is never an exit, and a record that its VM's directory proves older than the VM is never acted upon.",
        evidence: Evidence::World,
    },
    Invariant {
        id: "V6",
        name: "replay",
        sentence: "Two folds of a prefix are equal, a checkpoint with its tail equals the whole, and an event applied twice is illegal or skipped.",
        evidence: Evidence::Journal,
    },
    Invariant {
        id: "V7",
        name: "nothing leaks",
        sentence: "Once faults stop and probes are conclusive, every directory, process and lock file has an owner or was left alone by an adoption; before that, every leftover is named by a debt with its reason.",
        evidence: Evidence::World,
    },
    Invariant {
        id: "V9",
        name: "finished by replay",
        sentence: "From every reachable state, once everyone is dead and faults stop, at most two passes of recovery leave nothing half done; a stop whose guest still has the time that it was given is waited for, not half done.",
        evidence: Evidence::World,
    },
    Invariant {
        id: "V10",
        name: "asked for",
        sentence: "A committed VM goes only because somebody asked for the removal of that very VM, not of what it was before its creation ended.",
        evidence: Evidence::World,
    },
    Invariant {
        id: "V11",
        name: "durable first",
        sentence: "Whatever is answered, and whatever is done to the host, stands on events that a loss of power does not take.",
        evidence: Evidence::World,
    },
    Invariant {
        id: "V12",
        name: "only its own",
        sentence: "No process is signalled that is not proven to be the VM's, and no file is removed that this root's journal has not named.",
        evidence: Evidence::World,
    },
    Invariant {
        id: "V13",
        name: "unconfirmed",
        sentence: "From the event that makes a root unconfirmed until its adoption, nothing is recorded of a VM or an image but what the adoption takes in; so nobody ends a process or removes a file.",
        evidence: Evidence::Journal,
    },
];

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its number.
    pub invariant: &'static str,
    /// The event at which it was first seen broken.
    pub seq: u64,
    /// What is wrong.
    pub what: String,
}

/// What is wrong with a folded record; empty if nothing.
#[must_use]
pub fn check_record(core: &VmCore) -> Vec<(&'static str, &'static str)> {
    let mut wrong = Vec::new();
    let mut claim = |holds: bool, invariant, what| {
        if !holds {
            wrong.push((invariant, what));
        }
    };
    let creating = core.state == VmState::Creating;
    let up = core.launch.is_some_and(|launch| launch.phase == LaunchPhase::Up);
    let in_flight = core.launch.is_some() && !up;
    let deleting =
        core.tombstone.as_ref().is_some_and(|tombstone| tombstone.phase == RemovalPhase::Deleting);
    claim(!creating || core.operation.is_some(), "V1", "a placeholder without an operation");
    claim(creating == (core.generation == 0), "V6", "the generation does not tell a placeholder");
    claim(!creating || core.launch.is_none(), "V5", "a placeholder with a VMM");
    claim(
        core.tombstone.is_none() || core.operation.is_some(),
        "V3",
        "a removal without an operation",
    );
    claim(!in_flight || core.operation.is_some(), "V5", "a launch without an operation");
    claim(core.state != VmState::Running || up, "V5", "running without a VMM");
    claim(
        core.state != VmState::Running || core.interval_open,
        "V6",
        "running, and no time counted",
    );
    claim(!deleting || core.launch.is_none(), "V5", "files go while a VMM may live");
    claim(core.state != VmState::Stopped || !up, "V5", "stopped while a VMM may live");
    wrong
}

/// Reads a journal event by event and collects what is broken.
#[derive(Debug, Clone, Default)]
pub struct Judge<B = Nothing> {
    state: State<B>,
    names: BTreeMap<String, VmId>,
    held: BTreeMap<VmId, String>,
    violations: Vec<Violation>,
}

impl<B: Base> Judge<B> {
    /// Begins after the event `applied`, with the state that a base holds.
    ///
    /// # Errors
    /// If the base cannot be read.
    pub fn on(base: B, applied: u64) -> Lookup<Self> {
        let (mut names, mut held) = (BTreeMap::new(), BTreeMap::new());
        for record in base.vms("")? {
            let (id, name) = (record.core.id, record.core.name);
            names.insert(name.clone(), id);
            held.insert(id, name);
        }
        Ok(Self { state: State::on(base, applied), names, held, violations: Vec::new() })
    }

    /// The folded state so far.
    #[must_use]
    pub fn state(&self) -> &State<B> {
        &self.state
    }

    /// What was found so far, in order.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Passes over an event of the journal itself.
    pub fn skip(&mut self, seq: u64) {
        if let Err(illegal) = self.state.skip(seq) {
            self.note(seq, &illegal);
        }
    }

    /// Passes over an event of the journal itself that makes the root unconfirmed.
    pub fn doubt(&mut self, seq: u64, reason: &str) {
        if let Err(ApplyError::Illegal(illegal)) = self.state.doubt(seq, reason) {
            self.note(seq, &illegal);
        }
    }

    /// Judges the next event.
    pub fn next(&mut self, stamp: &Stamp, event: &Event) {
        let before = self.generation(event);
        self.judge_confirmation(stamp.seq, event);
        match self.state.apply(stamp, event) {
            Ok(()) => {}
            Err(ApplyError::Illegal(illegal)) => return self.note(stamp.seq, &illegal),
            // A state in memory can always be read; of another base only what was read can be judged.
            Err(ApplyError::Unreadable(_)) => return,
        }
        if let Event::Vm(id, event) = event {
            self.judge_name(stamp.seq, *id, event);
            let taken_in = matches!(event, VmEvent::Adopted(_));
            self.judge_record(stamp.seq, *id, before, taken_in);
        }
    }

    fn generation(&self, event: &Event) -> u64 {
        let Event::Vm(id, _) = event else { return 0 };
        self.state.vm(*id).ok().flatten().map_or(0, |record| record.core.generation)
    }

    fn note(&mut self, seq: u64, illegal: &IllegalEvent) {
        self.violations.push(Violation { invariant: "V6", seq, what: illegal.to_string() });
    }

    fn judge_confirmation(&mut self, seq: u64, event: &Event) {
        let touches = match event {
            Event::Vm(_, event) => !matches!(event, VmEvent::Adopted(_)),
            Event::Image(..) => true,
            Event::Supervisor(_) | Event::Root(_) => false,
        };
        let doubted = self.state.root().is_ok_and(|root| root.doubt.is_some());
        if touches && doubted {
            let what = format!("{} while the root was unconfirmed", event.info().name);
            self.violations.push(Violation { invariant: "V13", seq, what });
        }
    }

    fn judge_name(&mut self, seq: u64, id: VmId, event: &VmEvent) {
        let taken = match event {
            VmEvent::Prereserved(body) => Some(&body.name),
            VmEvent::Adopted(body) if !self.held.contains_key(&id) => Some(&body.name),
            _ => None,
        };
        if let Some(name) = taken {
            self.held.insert(id, name.clone());
            if let Some(holder) = self.names.insert(name.clone(), id) {
                let what = format!("VM {id} took the name \"{name}\" of VM {holder}");
                self.violations.push(Violation { invariant: "V4", seq, what });
            }
        }
        if let VmEvent::Deleted(_) = event
            && let Some(name) = self.held.remove(&id)
            && self.names.get(&name) == Some(&id)
        {
            self.names.remove(&name);
        }
    }

    fn judge_record(&mut self, seq: u64, id: VmId, before: u64, taken_in: bool) {
        let Ok(Some(record)) = self.state.vm(id) else { return };
        let after = record.core.generation;
        let dense = after == before || after == before + 1 || (taken_in && after > before);
        if !dense {
            let what = format!("VM {id} went from generation {before} to {after}");
            self.violations.push(Violation { invariant: "V6", seq, what });
        }
        for (invariant, what) in check_record(&record.core) {
            let what = format!("VM {id}: {what}");
            self.violations.push(Violation { invariant, seq, what });
        }
    }
}
