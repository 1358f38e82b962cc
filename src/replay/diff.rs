//! What changed between two points.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::snapshot::{Snapshot, object};

/// One VM that is not what it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Fields with both values, null where there was none; a VM that came or went has all of its fields.
    pub fields: Vec<(String, Value, Value)>,
    /// Whether it was there before and after.
    pub there: (bool, bool),
}

/// All VMs that are not what they were, in order of their ids.
#[must_use]
pub fn diff(before: &Snapshot, after: &Snapshot) -> Vec<Difference> {
    let (before, after) = (objects(before), objects(after));
    let ids: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differences = ids.into_iter().map(|id| {
        let (old, new) = (before.get(id), after.get(id));
        let name = new.or(old).and_then(|vm| vm.get("config.name")).and_then(Value::as_str);
        Difference {
            id: id.clone(),
            name: name.unwrap_or_default().to_owned(),
            fields: fields(old, new),
            there: (old.is_some(), new.is_some()),
        }
    });
    differences.filter(|difference| !difference.fields.is_empty()).collect()
}

type Fields = BTreeMap<String, Value>;

fn objects(snapshot: &Snapshot) -> BTreeMap<String, Fields> {
    let objects = snapshot.vms().into_iter().map(|record| {
        let mut fields = Fields::new();
        flatten("", serde_json::to_value(object(record)).unwrap_or_default(), &mut fields);
        (record.core.id.to_string(), fields)
    });
    objects.collect()
}

fn flatten(path: &str, value: Value, into: &mut Fields) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                flatten(&path, value, into);
            }
        }
        value => {
            into.insert(path.to_owned(), value);
        }
    }
}

fn fields(old: Option<&Fields>, new: Option<&Fields>) -> Vec<(String, Value, Value)> {
    let none = Fields::new();
    let (old, new) = (old.unwrap_or(&none), new.unwrap_or(&none));
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let both = names.into_iter().map(|name| {
        let value = |fields: &Fields| fields.get(name).cloned().unwrap_or_default();
        (name.clone(), value(old), value(new))
    });
    both.filter(|(_, old, new)| old != new).collect()
}

impl Difference {
    /// The difference as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let change = match self.there {
            (false, true) => "added",
            (true, false) => "removed",
            _ => "changed",
        };
        let fields: Vec<Value> = self
            .fields
            .iter()
            .map(|(field, from, to)| json!({ "field": field, "from": from, "to": to }))
            .collect();
        json!({ "id": self.id, "name": self.name, "change": change, "fields": fields })
    }
}
