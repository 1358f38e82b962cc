//! JSON Schema, as much of it as ours use: `type`, `enum`, `const`, `pattern` of ids, `minimum`, `properties`,
//! `required`, `items`, `minItems`, `oneOf`, and `$ref` to another file or to `$defs`.

use serde_json::Value;

use crate::repository;

/// A schema of `docs/schemas`.
pub(crate) fn load(name: &str) -> Value {
    let path = repository().join("docs/schemas").join(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Faults of a value. A field that its schema does not describe is one: consumers ignore it, and readers miss it.
pub(crate) fn faults(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(target) = schema["$ref"].as_str() {
        return follow(root, target, value, at);
    }
    let mut found = Vec::new();
    for (keyword, rule) in schema.as_object().into_iter().flatten() {
        found.extend(broken(root, schema, keyword, rule, value, at));
    }
    found
}

fn follow(root: &Value, target: &str, value: &Value, at: &str) -> Vec<String> {
    match target.strip_prefix("#/$defs/") {
        Some(name) => faults(root, &root["$defs"][name], value, at),
        None => {
            let other = load(target);
            faults(&other, &other, value, at)
        }
    }
}

fn broken(
    root: &Value,
    schema: &Value,
    keyword: &str,
    rule: &Value,
    value: &Value,
    at: &str,
) -> Vec<String> {
    let fault = |ok: bool| {
        if ok { Vec::new() } else { vec![format!("{at}: {value} breaks {keyword} {rule}")] }
    };
    match keyword {
        "$schema" | "$id" | "$defs" | "title" | "description" => Vec::new(),
        "type" => {
            fault(rule.as_str() == Some(kind(value)) || (rule == "number" && value.is_number()))
        }
        "const" => fault(rule == value),
        "enum" => fault(rule.as_array().is_some_and(|all| all.contains(value))),
        "minimum" => fault(value.as_f64() >= rule.as_f64()),
        "minItems" => fault(
            value.as_array().map(Vec::len)
                >= rule.as_u64().map(|least| usize::try_from(least).unwrap()),
        ),
        "required" => {
            let names = rule.as_array().into_iter().flatten().filter_map(Value::as_str);
            names
                .filter(|name| value.get(name).is_none())
                .map(|name| format!("{at}: no {name}"))
                .collect()
        }
        "properties" => fields(root, rule, value, at),
        "items" => {
            let items = value.as_array().into_iter().flatten().enumerate();
            items.flat_map(|(n, item)| faults(root, rule, item, &format!("{at}[{n}]"))).collect()
        }
        "oneOf" => {
            let all = rule.as_array().into_iter().flatten();
            fault(all.filter(|one| faults(root, one, value, at).is_empty()).count() == 1)
        }
        "format" => fault(rule == "date-time" && is_time(value)),
        other => panic!("{at}: the keyword {other} is not known here ({schema})"),
    }
}

fn fields(root: &Value, rules: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, field) in value.as_object().into_iter().flatten() {
        match rules.get(name) {
            Some(rule) => found.extend(faults(root, rule, field, &format!("{at}.{name}"))),
            None => found.push(format!("{at}.{name} is not described")),
        }
    }
    found
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_time(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    text.len() >= 20 && text.is_ascii() && text.ends_with('Z') && text.as_bytes()[10] == b'T'
}

#[test]
fn faults_are_found() {
    let schema = serde_json::json!({
        "type": "object",
        "required": ["a"],
        "properties": { "a": { "type": "integer", "minimum": 1 }, "b": { "enum": ["x"] } },
    });
    let of = |value: Value| faults(&schema, &schema, &value, "$").len();
    assert_eq!(of(serde_json::json!({ "a": 1, "b": "x" })), 0);
    assert_eq!(of(serde_json::json!({ "a": 0 })), 1);
    assert_eq!(of(serde_json::json!({ "b": "y" })), 2);
    assert_eq!(of(serde_json::json!({ "a": 1, "c": 1 })), 1);
    assert_eq!(of(serde_json::json!([])), 2);
}
