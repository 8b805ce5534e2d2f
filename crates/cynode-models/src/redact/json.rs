//! Redaction of JSON values.

use serde_json::{Map, Value};

use super::{RedactionCounts, Redactor};

/// Maximum nesting of JSON inside JSON strings. Deeper levels are treated as text.
const MAX_DEPTH: usize = 4;

/// Redacts every string of a value.
pub(super) fn redact_value(redactor: &Redactor, value: &mut Value) -> RedactionCounts {
    let mut found = RedactionCounts::default();
    redact_nested(redactor, value, 0, &mut found);
    found
}

fn redact_nested(
    redactor: &Redactor,
    value: &mut Value,
    depth: usize,
    found: &mut RedactionCounts,
) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => redact_string(redactor, text, depth, found),
        Value::Array(values) => {
            for value in values {
                redact_nested(redactor, value, depth, found);
            }
        }
        Value::Object(map) => redact_object(redactor, map, depth, found),
    }
}

fn redact_object(
    redactor: &Redactor,
    map: &mut Map<String, Value>,
    depth: usize,
    found: &mut RedactionCounts,
) {
    for (key, value) in map.iter_mut() {
        redact_nested(redactor, value, depth, found);
        redact_assigned_value(redactor, key, value, found);
    }
    if !map.keys().any(|key| !redactor.redact_text(key).found.is_empty()) {
        return;
    }
    for (key, value) in std::mem::take(map) {
        let key = redactor.redact_text(&key);
        found.merge_counts(key.found);
        let mut name = key.value.into_owned();
        while map.contains_key(&name) {
            name.push('\'');
        }
        map.insert(name, value);
    }
}

/// Redacts a string, or the strings of a list, under a key that names a secret.
fn redact_assigned_value(
    redactor: &Redactor,
    key: &str,
    value: &mut Value,
    found: &mut RedactionCounts,
) {
    match value {
        Value::String(text) => {
            let inner = &redactor.0;
            let Some(rule) = inner.scanner.redaction_rules().guess_rule(key, text) else { return };
            let mut out = String::new();
            found.add_kind(inner.labels.write_whole(rule, text, &mut out));
            *text = out;
        }
        Value::Array(values) => {
            for value in values.iter_mut().filter(|value| value.is_string()) {
                redact_assigned_value(redactor, key, value, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
    }
}

fn redact_string(
    redactor: &Redactor,
    text: &mut String,
    depth: usize,
    found: &mut RedactionCounts,
) {
    let seen = redactor.redact_text(text);
    if !seen.found.is_empty() {
        found.merge_counts(seen.found);
        *text = seen.value.into_owned();
    }
    if depth < MAX_DEPTH && text.trim_start().starts_with(['{', '[', '"']) {
        let Ok(mut inner) = serde_json::from_str::<Value>(text) else { return };
        let mut within = RedactionCounts::default();
        redact_nested(redactor, &mut inner, depth + 1, &mut within);
        // the text is rewritten only if the nested JSON held a secret
        if !within.is_empty() {
            found.merge_counts(within);
            *text = inner.to_string();
        }
    }
}
