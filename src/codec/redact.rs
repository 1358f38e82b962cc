//! Events without what is nobody else's business.
//!
//! Names, paths, command lines, digests, addresses and texts become placeholders: the same text the same placeholder, so
//! that it can still be seen what has the same name, image or disk. What happened, when, in which order, by which process
//! and verb, to which id, with which outcome, stays. What a later version adds is replaced until it is listed here as
//! harmless.

use std::collections::BTreeMap;

use cocoon_journal::Entry;
use cocoon_model::event::{BodyReader, Event, ImageEvent, RootEvent, SupervisorEvent, VmEvent};
use cocoon_model::id::Id;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use super::{decode, encode, event_json};

/// Fields whose texts are words of ours: kinds, states, steps, versions.
const WORDS: [&str; 15] = [
    "accelerator",
    "backend",
    "boot",
    "format",
    "image_type",
    "kind",
    "operation",
    "phase",
    "role",
    "state",
    "step",
    "stop",
    "Stop",
    "transition_reason",
    "version",
];
/// Texts of ours in fields that hold others, too.
const FORMATS: [&str; 4] = ["Qcow2", "Raw", "qcow2", "raw"];

/// What a text is, by the field that holds it.
fn class(field: &str) -> &'static str {
    match field {
        "name" => "name",
        "image" => "image",
        "run_dir" | "log_dir" | "path" | "kernel" | "initrd" | "base" | "rootfs" => "/path",
        "image_digest" | "digest" | "hash" => "digest",
        "mac" => "mac",
        "serial" => "serial",
        "cmdline" => "cmdline",
        _ => "text",
    }
}

struct FromJson(Value);

impl BodyReader for FromJson {
    type Error = serde_json::Error;

    fn read<T: DeserializeOwned>(self) -> Result<T, serde_json::Error> {
        serde_json::from_value(self.0)
    }
}

/// Replaces texts by placeholders, the same text by the same one.
#[derive(Debug, Default)]
pub struct Redactor {
    placeholders: BTreeMap<(&'static str, String), String>,
    counts: BTreeMap<&'static str, u64>,
}

impl Redactor {
    /// The entry without its texts. The body of one that cannot be read is dropped, as it may say anything.
    pub fn entry(&mut self, entry: &mut Entry) {
        match decode(entry) {
            // The journal's own events hold numbers and hashes.
            Ok(None) => {}
            Ok(Some(event)) => match self.event(entry, &event) {
                Some(redacted) => *entry = redacted,
                None => entry.body.clear(),
            },
            Err(_) => entry.body.clear(),
        }
    }

    fn event(&mut self, entry: &Entry, event: &Event) -> Option<Entry> {
        let mut body = event_json(event);
        self.value("", &mut body);
        let (kind, version, body) = (entry.kind, entry.version, FromJson(body));
        let redacted = match event {
            Event::Vm(id, _) => Event::Vm(*id, VmEvent::read_body(kind, version, body).ok()??),
            Event::Image(id, _) => {
                Event::Image(*id, ImageEvent::read_body(kind, version, body).ok()??)
            }
            Event::Supervisor(_) => {
                Event::Supervisor(SupervisorEvent::read_body(kind, version, body).ok()??)
            }
            Event::Root(_) => Event::Root(RootEvent::read_body(kind, version, body).ok()??),
        };
        encode(&redacted).ok()
    }

    fn value(&mut self, field: &str, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields.iter_mut() {
                    self.value(field, value);
                }
            }
            Value::Array(values) => {
                for value in values {
                    self.value(field, value);
                }
            }
            Value::String(text) if !is_harmless(field, text) => {
                let placeholder = self.placeholder(class(field), text);
                *text = placeholder;
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn placeholder(&mut self, class: &'static str, text: &str) -> String {
        // An image is called by the same name where it is imported and where it is used.
        let class = if class == "image" { "name" } else { class };
        let counts = &mut self.counts;
        let placeholder = self.placeholders.entry((class, text.to_owned())).or_insert_with(|| {
            let count = counts.entry(class).or_default();
            *count += 1;
            format!("{class}-{count}")
        });
        placeholder.clone()
    }
}

/// Fields whose text names something whatever it looks like: a host by its id, for one.
const NAMING: [&str; 2] = ["name", "machine"];

fn is_harmless(field: &str, text: &str) -> bool {
    WORDS.contains(&field)
        || FORMATS.contains(&text)
        || text.is_empty()
        || (!NAMING.contains(&field)
            && (text.parse::<Id>().is_ok() || Uuid::parse_str(text).is_ok()))
}
