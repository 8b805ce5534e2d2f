//! Secrets in JSON values.

use serde_json::{Map, Value};

use super::{Found, Redactor};

/// JSON in a string in JSON in a string …: deeper than this it is only text.
const MAX_DEPTH: usize = 4;

/// Redacts every string of a value.
pub(super) fn redact(redactor: &Redactor, value: &mut Value) -> Found {
    let mut found = Found::default();
    walk(redactor, value, 0, &mut found);
    found
}

fn walk(redactor: &Redactor, value: &mut Value, depth: usize, found: &mut Found) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => string(redactor, text, depth, found),
        Value::Array(values) => {
            for value in values {
                walk(redactor, value, depth, found);
            }
        }
        Value::Object(map) => object(redactor, map, depth, found),
    }
}

fn object(redactor: &Redactor, map: &mut Map<String, Value>, depth: usize, found: &mut Found) {
    for (key, value) in map.iter_mut() {
        walk(redactor, value, depth, found);
        assigned(redactor, key, value, found);
    }
    if !map.keys().any(|key| !redactor.text(key).found.is_empty()) {
        return;
    }
    for (key, value) in std::mem::take(map) {
        let key = redactor.text(&key);
        found.merge(key.found);
        let mut name = key.value.into_owned();
        while map.contains_key(&name) {
            name.push('\'');
        }
        map.insert(name, value);
    }
}

/// A string, or strings in a list, under a key that announces a secret.
fn assigned(redactor: &Redactor, key: &str, value: &mut Value, found: &mut Found) {
    match value {
        Value::String(text) => {
            let inner = &redactor.0;
            let Some(rule) = inner.scanner.rules().guess(key, text) else { return };
            let mut out = String::new();
            found.add(inner.labels.write_whole(rule, text, &mut out));
            *text = out;
        }
        Value::Array(values) => {
            for value in values.iter_mut().filter(|value| value.is_string()) {
                assigned(redactor, key, value, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
    }
}

fn string(redactor: &Redactor, text: &mut String, depth: usize, found: &mut Found) {
    let seen = redactor.text(text);
    if !seen.found.is_empty() {
        found.merge(seen.found);
        *text = seen.value.into_owned();
    }
    if depth < MAX_DEPTH && text.trim_start().starts_with(['{', '[', '"']) {
        let Ok(mut inner) = serde_json::from_str::<Value>(text) else { return };
        let mut within = Found::default();
        walk(redactor, &mut inner, depth + 1, &mut within);
        // written anew only if the text as it stands hid something
        if !within.is_empty() {
            found.merge(within);
            *text = inner.to_string();
        }
    }
}
