//! Events in JSON, for people and other programs: fields by their names, ids as they are spelled elsewhere.

use cocoon_journal::Entry;
use cocoon_journal::export::Described;
use cocoon_journal::reserved::{self, JournalEvent};
use cocoon_model::event::{BodyWriter, Event};
use serde::Serialize;
use serde_json::{Value, json};

use super::{decode, kind_info};
use crate::cli::vm_object::rfc3339;

struct ToJson;

impl BodyWriter for ToJson {
    type Written = Value;
    type Error = serde_json::Error;

    fn write<T: Serialize>(self, body: &T) -> Result<Value, serde_json::Error> {
        serde_json::to_value(body)
    }
}

/// The body of an event; null if it has something that JSON cannot hold.
#[must_use]
pub fn event_json(event: &Event) -> Value {
    let body = match event {
        Event::Vm(_, event) => event.write_body(ToJson),
        Event::Image(_, event) => event.write_body(ToJson),
        Event::Supervisor(event) => event.write_body(ToJson),
        Event::Root(event) => event.write_body(ToJson),
    };
    body.unwrap_or_default()
}

/// The body of an event of the journal itself.
#[must_use]
pub fn journal_event_json(event: &JournalEvent) -> Value {
    match event {
        JournalEvent::Sealed { next } => json!({ "next": next }),
        JournalEvent::TailCut { segment, offset, length, hash } => json!({
            "segment": segment, "offset": offset, "length": length, "hash": hex(hash),
        }),
        JournalEvent::Salvaged { last_kept, first_lost, lost } => json!({
            "last_kept": last_kept, "first_lost": first_lost, "lost": lost,
        }),
        JournalEvent::Restored { last, taken_us, backup } => json!({
            "last": last, "taken_at": rfc3339(*taken_us), "backup": hex(backup),
        }),
        JournalEvent::Imported { last, from, export } => json!({
            "last": last, "from_root": from, "export": hex(export),
        }),
        JournalEvent::Upgraded { from, to, needs } => json!({
            "from": from, "to": to, "needs": needs,
        }),
        JournalEvent::Archived { from, first, hash } => json!({
            "from": from, "first": first, "hash": hex(hash),
        }),
        _ => Value::Null,
    }
}

/// The name of a kind, whoever it belongs to.
#[must_use]
pub fn kind_name(kind: u16) -> Option<&'static str> {
    kind_info(kind)
        .map(|info| info.name)
        .or_else(|| reserved::kind_info(kind).map(|info| info.name))
}

/// Name and body of an entry, as far as this version knows them.
#[must_use]
pub fn describe(entry: &Entry) -> Described {
    let body = match decode(entry) {
        Ok(Some(event)) => Some(event_json(&event)),
        Ok(None) => JournalEvent::from_entry(entry).map(|event| journal_event_json(&event)),
        Err(_) => None,
    };
    Described { name: kind_name(entry.kind).map(str::to_owned), body }
}

/// Bytes in hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
