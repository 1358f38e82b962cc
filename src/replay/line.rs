//! The lines of a timeline, and how they are written in JSON.

use std::fmt;

use cocoon_journal::inspect::Fault;
use cocoon_journal::reserved::JournalEvent;
use cocoon_journal::{Entry, FrameHeader};
use cocoon_model::event::Event;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::track::Owner;
use crate::cli::vm_object::rfc3339;
use crate::codec;

/// A process, by the verb that it carried out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Actor {
    /// The verb.
    pub verb: String,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
}

impl Actor {
    /// Who wrote a frame.
    #[must_use]
    pub fn of(header: &FrameHeader) -> Self {
        Self { verb: header.verb.clone(), pid: header.pid, start_time: header.start_time }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Verbs of two words stay one word for who cuts columns.
        f.pad(&format!("{}[{}]", self.verb.replace(' ', "-"), self.pid))
    }
}

/// A process that died before its operation was over, as far as the journal shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// Who died.
    pub actor: Actor,
    /// Its operation.
    pub operation: Uuid,
    /// What it worked on, with its name.
    pub subject: String,
    /// The name of what it worked on; empty if it has none.
    pub name: String,
    /// Its last event: number, time in microseconds since 1970, kind.
    pub last: (u64, i64, &'static str),
    /// Who found it dead; nobody if the whole host went down.
    pub found_by: Option<Actor>,
}

impl Death {
    /// The death of an owner, unless it was told already.
    pub(super) fn of(
        owner: &mut Owner,
        subject: String,
        name: &str,
        by: Option<&Actor>,
    ) -> Option<Self> {
        if std::mem::replace(&mut owner.told_dead, true) {
            return None;
        }
        Some(Self {
            actor: owner.actor.clone(),
            operation: Uuid::from_u128(owner.operation.0),
            subject,
            name: name.to_owned(),
            last: (owner.seq, owner.at_us, owner.event),
            found_by: by.cloned(),
        })
    }
}

/// Something between two events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The history begins later than at its first event; where the rest was moved to, if that is known.
    Begins(Option<String>),
    /// A process died before its operation was over.
    Death(Death),
    /// The host was restarted; both boots.
    Reboot(Uuid, Uuid),
    /// The wall clock was set, by so many microseconds.
    ClockSet(i64),
    /// Something is wrong with the journal.
    Fault(Fault),
    /// What follows was written, and is not known to be durable.
    NotDurable,
}

/// A note with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    /// The event that it stands before.
    pub seq: u64,
    /// The time of that event, microseconds since 1970; `None` if it is not known.
    pub at_us: Option<i64>,
    /// What is noted.
    pub note: Note,
}

/// What an event says, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// An event of the model.
    Model(Event),
    /// An event of the journal itself.
    Journal(JournalEvent),
    /// It cannot be read, for this reason.
    Unreadable(Entry, String),
}

/// A lock that was held, as far as the journal shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Which lock of the subject: `ops`, `vmm`, `image` or `daemon`.
    pub lock: &'static str,
    /// The process that holds it; 0 if it is not known.
    pub pid: u32,
}

/// An event and what it meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Number.
    pub seq: u64,
    /// Wall clock, microseconds since 1970.
    pub at_us: i64,
    /// Who wrote it.
    pub actor: Actor,
    /// On whose behalf.
    pub operation: Uuid,
    /// In which boot.
    pub boot_id: Uuid,
    /// Number of the kind.
    pub kind: u16,
    /// Version of the kind.
    pub version: u16,
    /// What it is about.
    pub subject: String,
    /// The name of what it is about; empty if it has none.
    pub name: String,
    /// Where the subject stood before, and after; `None` if it has no states.
    pub states: Option<(Standing, Standing)>,
    /// Locks that were held while it was written.
    pub locks: Vec<Held>,
    /// The step that the record owes after it.
    pub owed: Option<&'static str>,
    /// What it says.
    pub content: Content,
    /// Why it cannot have happened, if so.
    pub illegal: Option<String>,
}

/// Where a subject stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The state; `None` if it is not there.
    pub state: Option<&'static str>,
    /// Whether nothing that happened to it is missing.
    pub certain: bool,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.state.unwrap_or("-"))?;
        f.write_str(if self.certain { "" } else { "?" })
    }
}

/// A line of a timeline.
#[expect(clippy::large_enum_variant, reason = "nearly every line is a row")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// An event.
    Row(Row),
    /// Something between two events.
    Note(Noted),
}

impl Row {
    /// The name of the kind.
    #[must_use]
    pub fn event(&self) -> String {
        let known = codec::kind_name(self.kind);
        known.map_or_else(|| format!("kind-{}", self.kind), str::to_owned)
    }

    /// The row as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "type": "event",
            "seq": self.seq,
            "time": rfc3339(self.at_us),
            "actor": self.actor,
            "operation": self.operation,
            "boot_id": self.boot_id,
            "event": self.event(),
            "kind": self.kind,
            "version": self.version,
            "subject": self.subject,
            "locks": self.locks,
            "owed": self.owed,
        });
        if let Value::Object(fields) = &mut value {
            if !self.name.is_empty() {
                fields.insert("name".to_owned(), json!(self.name));
            }
            if let Some((from, to)) = self.states {
                fields.insert("from".to_owned(), json!(from.state));
                fields.insert("to".to_owned(), json!(to.state));
                fields.insert("certain".to_owned(), json!(from.certain && to.certain));
            }
            if let Some(illegal) = &self.illegal {
                fields.insert("illegal".to_owned(), json!(illegal));
            }
            let (key, body) = self.content.to_json();
            fields.insert(key.to_owned(), body);
        }
        value
    }
}

impl Content {
    fn to_json(&self) -> (&'static str, Value) {
        match self {
            Self::Model(event) => ("body", codec::event_json(event)),
            Self::Journal(event) => ("body", codec::journal_event_json(event)),
            Self::Unreadable(entry, _) => ("body_hex", json!(codec::hex(&entry.body))),
        }
    }
}

impl Noted {
    /// The note as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let (seq, time) = (self.seq, self.at_us.map(rfc3339));
        match &self.note {
            Note::Begins(moved_to) => {
                json!({ "type": "begins", "seq": seq, "moved_to": moved_to })
            }
            Note::NotDurable => json!({ "type": "not-durable", "seq": seq }),
            Note::Death(death) => json!({
                "type": "death",
                "seq": seq,
                "time": time,
                "actor": death.actor,
                "operation": death.operation,
                "subject": death.subject,
                "name": death.name,
                "last_seq": death.last.0,
                "last_time": rfc3339(death.last.1),
                "last_event": death.last.2,
                "found_by": death.found_by,
            }),
            Note::Reboot(from, to) => json!({
                "type": "reboot", "seq": seq, "time": time, "from": from, "to": to,
            }),
            Note::ClockSet(by_us) => json!({
                "type": "clock-set", "seq": seq, "time": time, "by_us": by_us,
            }),
            Note::Fault(fault) => fault_json(fault),
        }
    }
}

/// A fault of a journal as a JSON object.
#[must_use]
pub fn fault_json(fault: &Fault) -> Value {
    json!({
        "type": if fault.kind.is_damage() { "damage" } else { "leftover" },
        "kind": fault.kind.as_str(),
        "seq": fault.seq,
        "path": fault.path,
        "offset": fault.offset,
        "bytes": fault.len,
        "lost": fault.lost.as_ref().map(|lost| [*lost.start(), *lost.end()]),
        "what": fault.what,
    })
}

impl Line {
    /// The event that the line is, or stands before.
    #[must_use]
    pub fn seq(&self) -> u64 {
        match self {
            Self::Row(row) => row.seq,
            Self::Note(noted) => noted.seq,
        }
    }

    /// The line as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Row(row) => row.to_json(),
            Self::Note(noted) => noted.to_json(),
        }
    }
}
