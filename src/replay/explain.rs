//! Why a VM is as it is, in words: who owns it, alive or dead since when, what is owed, and who could have acted.

use cocoon_model::event::{Event, SupervisorEvent};
use cocoon_model::id::VmId;
use cocoon_model::record::{VmRecord, VmState};
use cocoon_model::step::next_step;
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::filter::fits_vm;
use super::line::{Actor, Content, Death, Line, Note, Row};
use super::text;
use super::track::{Owner, Tracked, Tracker, vm_state};
use super::{Pieces, ReplayError, Timeline};
use crate::cli::vm_object::rfc3339;
use crate::host::process::{Liveness, ProcessIdentity, ProcessTable};

/// Rows of the VM that are repeated.
const LAST_ROWS: usize = 12;

/// One thing that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// What about: `state`, `before`, `owner`, `life`, `vmm`, `owed`, `verbs`, `gc`, `daemon`, `next`.
    pub about: &'static str,
    /// The sentence.
    pub text: String,
}

/// What is said about one VM.
#[derive(Debug, Default)]
pub struct Explanation {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The last event of the journal, and its time in microseconds since 1970.
    pub as_of: (u64, i64),
    /// Sentences, in order.
    pub statements: Vec<Statement>,
    /// Its last rows.
    pub rows: Vec<Row>,
    /// Ids of other VMs that had the same name.
    pub namesakes: Vec<String>,
}

/// Explains a VM, given by its name, its id or the beginning of its id. Of several that had a name, the last counts.
///
/// # Errors
/// If there is no journal, or no such VM in it.
pub fn explain(
    open: impl Fn() -> Result<Timeline<Pieces>, ReplayError>,
    reference: &str,
) -> Result<Explanation, ReplayError> {
    let mut timeline = open()?;
    timeline.by_ref().for_each(drop);
    let found = find(timeline.tracker(), reference);
    let Some((id, others)) = found.split_last() else {
        return Err(ReplayError::UnknownVm { reference: reference.to_owned() });
    };
    let mut witness = Witness::new(*id, timeline.tracker());
    open()?.for_each(|line| witness.see(line));
    let mut explanation = Explanation {
        id: id.to_string(),
        as_of: timeline.as_of(),
        namesakes: others.iter().map(ToString::to_string).collect(),
        ..Explanation::default()
    };
    if let Some(vm) = timeline.tracker().vm(*id) {
        explanation.name.clone_from(&vm.name);
        explanation.about(vm, &witness, &timeline);
    }
    explanation.rows = witness.rows;
    Ok(explanation)
}

/// VMs that a reference means, those that changed last at the end.
fn find(tracker: &Tracker, reference: &str) -> Vec<VmId> {
    let fits = |(id, vm): &(VmId, &Tracked<VmRecord>)| fits_vm(reference, id.as_str(), &vm.name);
    let mut found: Vec<_> = tracker.vms().filter(fits).collect();
    // As for verbs, a name comes before the beginning of an id.
    if found.iter().any(|(_, vm)| vm.name == reference) {
        found.retain(|(_, vm)| vm.name == reference);
    }
    found.sort_by_key(|(_, vm)| (vm.record.is_some(), vm.last.0));
    found.into_iter().map(|(id, _)| id).collect()
}

/// What is gathered about one VM while the history passes by.
struct Witness {
    id: VmId,
    /// The owner's last event: what came after it, somebody could have acted upon.
    since: u64,
    rows: Vec<Row>,
    deaths: Vec<Death>,
    /// The last `gc` that wrote anything after that.
    gc: Option<(u64, Actor)>,
    daemon: Daemon,
}

/// The life of the daemon that was there last.
#[derive(Default)]
struct Daemon {
    started: Option<(u64, i64, Actor)>,
    stopped: Option<(u64, i64)>,
    died: bool,
}

impl Daemon {
    /// Why the daemon has not finished what is owed. `life` is that of a daemon that did not say that it stopped.
    fn sentence(&self, life: Option<Liveness>) -> String {
        let Some((seq, at_us, actor)) = &self.started else {
            return "The daemon finishes it; none ever ran.".to_owned();
        };
        let began = format!("the last one, {actor}, started at seq {seq}, {}", rfc3339(*at_us));
        let became = match (self.stopped, life) {
            (Some((seq, at_us)), _) => format!("stopped at seq {seq}, {}", rfc3339(at_us)),
            (None, _) if self.died => "died with its host or before the next one".to_owned(),
            (None, Some(Liveness::Alive)) => "lives: it retries, and its log says why".to_owned(),
            (None, Some(Liveness::Dead)) => "is dead".to_owned(),
            (None, Some(Liveness::Inconclusive(why))) => format!("may live ({why})"),
            (None, None) => "has not said that it stopped".to_owned(),
        };
        format!("The daemon finishes it; {began}, and {became}.")
    }
}

impl Witness {
    fn new(id: VmId, tracker: &Tracker) -> Self {
        let owner = tracker.vm(id).and_then(|vm| vm.owner.as_ref());
        Self {
            id,
            since: owner.map_or(u64::MAX, |owner| owner.seq),
            rows: Vec::new(),
            deaths: Vec::new(),
            gc: None,
            daemon: Daemon::default(),
        }
    }

    fn see(&mut self, line: Line) {
        match line {
            Line::Row(row) => self.see_row(row),
            Line::Note(noted) => {
                if let Note::Death(death) = noted.note {
                    self.daemon.died |= death.subject == "supervisor";
                    if death.subject == format!("vm/{}", self.id) {
                        self.deaths.push(death);
                    }
                }
            }
        }
    }

    fn see_row(&mut self, row: Row) {
        if row.seq > self.since && row.actor.verb == "gc" {
            self.gc = Some((row.seq, row.actor.clone()));
        }
        match &row.content {
            Content::Model(Event::Supervisor(SupervisorEvent::Started(_))) => {
                let started = Some((row.seq, row.at_us, row.actor));
                self.daemon = Daemon { started, ..Daemon::default() };
            }
            Content::Model(Event::Supervisor(SupervisorEvent::Stopped(_))) => {
                self.daemon.stopped = Some((row.seq, row.at_us));
            }
            Content::Model(Event::Vm(id, _)) if *id == self.id => {
                if self.rows.len() == LAST_ROWS {
                    self.rows.remove(0);
                }
                self.rows.push(row);
            }
            _ => {}
        }
    }
}

impl Explanation {
    fn say(&mut self, about: &'static str, text: impl Into<String>) {
        self.statements.push(Statement { about, text: text::plain(text.into()) });
    }

    fn about(&mut self, vm: &Tracked<VmRecord>, witness: &Witness, timeline: &Timeline<Pieces>) {
        if !vm.certain {
            self.say("state", "Events are missing from the journal: what follows may be wrong.");
        }
        let Some(record) = vm.record.as_deref() else {
            let (seq, actor) = &vm.last;
            self.say("state", format!("It is gone: {actor} removed it, the last event is {seq}."));
            return;
        };
        self.say("state", state_sentence(record));
        let owner = vm.owner.as_ref().map(|owner| Uuid::from_u128(owner.operation.0));
        for death in witness.deaths.iter().filter(|death| Some(death.operation) != owner) {
            let text = format!(
                "{} died before its operation was over; its last event was {} at seq {}.",
                death.actor, death.last.2, death.last.0
            );
            self.say("before", text);
        }
        let life = vm.owner.as_ref().map(|owner| self.owner(owner, timeline));
        self.vmm(record);
        self.owed(record);
        match life {
            None => self.say("next", "No operation is in flight on it; nothing is owed."),
            Some(Liveness::Alive) => {
                self.say(
                    "next",
                    "Its owner lives and holds its lock: everybody else waits, or is told `busy`.",
                );
            }
            Some(_) => self.collectors(record, witness, timeline.tracker()),
        }
    }

    fn owner(&mut self, owner: &Owner, timeline: &Timeline<Pieces>) -> Liveness {
        let ago = Timestamp::now().as_microsecond().saturating_sub(owner.at_us);
        let text = format!(
            "It belongs to {} (operation {}), whose last event is {} at seq {}, {}: {} ago.",
            owner.actor,
            Uuid::from_u128(owner.operation.0),
            owner.event,
            owner.seq,
            rfc3339(owner.at_us),
            span(ago),
        );
        self.say("owner", text);
        let rebooted = timeline.boot_id().is_some_and(|boot_id| boot_id != owner.boot_id);
        let life = if rebooted { Liveness::Dead } else { liveness(owner) };
        let text = match &life {
            _ if rebooted => "It died with its host, which was rebooted since.".to_owned(),
            Liveness::Alive => format!("It lives: process {} is that very one.", owner.actor.pid),
            Liveness::Dead => format!(
                "It is dead: no process {} of that start time is there. It died after seq {}, {}.",
                owner.actor.pid,
                owner.seq,
                rfc3339(owner.at_us)
            ),
            Liveness::Inconclusive(reason) => format!("Whether it lives cannot be told: {reason}."),
        };
        self.say("life", text);
        life
    }

    fn vmm(&mut self, record: &VmRecord) {
        let text = match record.core.launch {
            None => "No VMM of it may live.".to_owned(),
            Some(launch) => match launch.identity {
                None => {
                    "A VMM of it may have been spawned; nobody recorded its process.".to_owned()
                }
                Some(identity) => {
                    let identity = ProcessIdentity {
                        pid: identity.pid,
                        start_time: identity.start_time,
                        boot_id: Uuid::from_u128(identity.boot_id),
                        pid_namespace: identity.pid_namespace,
                    };
                    match alive(&identity) {
                        Liveness::Alive => format!("Its VMM, pid {}, lives.", identity.pid),
                        Liveness::Dead => format!(
                            "Its VMM, pid {}, is dead, and nobody has recorded that.",
                            identity.pid
                        ),
                        Liveness::Inconclusive(why) => {
                            format!(
                                "Whether its VMM, pid {}, lives cannot be told: {why}.",
                                identity.pid
                            )
                        }
                    }
                }
            },
        };
        self.say("vmm", text);
    }

    fn owed(&mut self, record: &VmRecord) {
        if let Some(step) = next_step(&record.core) {
            self.say("owed", format!("It owes the step {}.", step.as_str()));
        } else if record.core.state == VmState::Creating && record.core.operation.is_some() {
            self.say("owed", "It owes its completion, or the removal of what was made of it.");
        }
        if let Some(failure) = &record.core.failure {
            self.say("owed", format!("The last failure was: {failure}."));
        }
    }

    /// Who could have finished what a dead owner left, and why it is still there.
    fn collectors(&mut self, record: &VmRecord, witness: &Witness, tracker: &Tracker) {
        let since = witness.since;
        self.say(
            "verbs",
            format!("Any verb on it finishes it first; none was given after seq {since}."),
        );
        match &witness.gc {
            None => self.say("gc", format!("`cocoon gc` finishes it; none wrote anything after seq {since}.")),
            Some((seq, actor)) => self.say(
                "gc",
                format!("{actor} wrote at seq {seq} and left it: it found the lock held, or the VMM not provably dead."),
            ),
        }
        self.say("daemon", witness.daemon.sentence(tracker.daemon().map(liveness)));
        let name = &record.core.name;
        let next = if record.core.state == VmState::Creating {
            format!("To finish it now: `cocoon vm reconcile-stale-create {name}`.")
        } else {
            "To finish it now: `cocoon gc`.".to_owned()
        };
        self.say("next", next);
    }

    /// The explanation as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let subject = text::subject(&format!("vm/{}", self.id), &self.name);
        let mut out = format!(
            "{subject} as of seq {}, {} (id {})\n\n",
            self.as_of.0,
            rfc3339(self.as_of.1),
            self.id
        );
        for statement in &self.statements {
            out.push_str(&format!("{:<8}{}\n", statement.about, statement.text));
        }
        if !self.namesakes.is_empty() {
            let others = self.namesakes.join(", ");
            out.push_str(&format!(
                "{:<8}It is the last of that name; before it: {others}.\n",
                "name"
            ));
        }
        out.push_str(&format!("\n{}\n", text::header()));
        for row in &self.rows {
            out.push_str(&format!("{}\n", text::row(row)));
        }
        out
    }

    /// The explanation as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let statements = self
            .statements
            .iter()
            .map(|statement| json!({ "about": statement.about, "text": statement.text }));
        json!({
            "id": self.id,
            "name": self.name,
            "seq": self.as_of.0,
            "time": rfc3339(self.as_of.1),
            "statements": statements.collect::<Vec<_>>(),
            "namesakes": self.namesakes,
            "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        })
    }
}

fn state_sentence(record: &VmRecord) -> String {
    let (state, core, notes) = (vm_state(record), &record.core, &record.notes);
    let operation = match core.operation {
        Some(operation) => {
            let since =
                notes.operation_us.map_or_else(String::new, |us| format!(" since {}", rfc3339(us)));
            format!("an operation is in flight on it, {}{since}", operation.kind.as_str())
        }
        None => "no operation is in flight on it".to_owned(),
    };
    format!("It is {state}, generation {}; {operation}.", core.generation)
}

/// Whether the process that wrote for an operation still is the one. The journal does not name its pid namespace: that
/// of the reader is taken for it.
fn liveness(owner: &Owner) -> Liveness {
    let Owner { actor, boot_id, .. } = owner;
    judge(*boot_id, |own| ProcessIdentity { pid: actor.pid, start_time: actor.start_time, ..*own })
}

fn alive(identity: &ProcessIdentity) -> Liveness {
    judge(identity.boot_id, |_| *identity)
}

/// Whether a process of some boot lives. Of another boot nothing is said here: that may have been another host.
fn judge(boot_id: Uuid, identity: impl FnOnce(&ProcessIdentity) -> ProcessIdentity) -> Liveness {
    let table = ProcessTable::host();
    let own = table.as_ref().map(|table| table.identify(std::process::id()));
    match (&table, own) {
        (Ok(table), Ok(Ok(Some(own)))) if own.boot_id == boot_id => table.liveness(&identity(&own)),
        (Ok(_), Ok(Ok(Some(_)))) => {
            Liveness::Inconclusive("this host, in this boot, is not where it ran".to_owned())
        }
        _ => Liveness::Inconclusive("/proc of this host cannot be read".to_owned()),
    }
}

/// A duration for people: its two largest units.
fn span(us: i64) -> String {
    let seconds = us / 1_000_000;
    match seconds {
        // A clock that jumped back less than a second is a clock that jumped back.
        _ if us <= 0 => "0 s".to_owned(),
        ..60 => format!("{seconds}.{:03} s", us / 1000 % 1000),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_for_people() {
        assert_eq!(span(1_234_567), "1.234 s");
        assert_eq!(span(843_000_000), "14 min 3 s");
        assert_eq!(span(90_000_000_000), "1 d 1 h");
        assert_eq!(span(-5), "0 s");
    }
}
