//! The forms of answers that are in no other document, as JSON Schemas.

use serde_json::{Value, json};

/// A reference into the OpenAPI document.
fn of(name: &str) -> Value {
    json!({ "$ref": format!("openapi.json#/components/schemas/{name}") })
}

/// An object with just these fields, all of them there.
fn exactly(properties: &Value) -> Value {
    let required: Vec<String> =
        properties.as_object().into_iter().flat_map(|it| it.keys().cloned()).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn text_or_null() -> Value {
    json!({ "type": ["string", "null"] })
}

fn texts() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

fn list(item: &Value) -> Value {
    json!({ "type": "array", "items": item })
}

/// Something, of a form that depends on what it is about.
pub(super) fn object() -> Value {
    json!({ "type": "object" })
}

pub(super) fn status() -> Value {
    exactly(&json!({
        "url": text(), "version": text(), "ready": { "type": "boolean" }, "checks": list(&of("ReadinessCheck")),
        "logged_in": { "type": "boolean" },
    }))
}

pub(super) fn sample() -> Value {
    exactly(&json!({ "path": text(), "project_id": text(), "words": text(), "next": text() }))
}

pub(super) fn pull() -> Value {
    exactly(&json!({ "branch": text(), "before": text(), "head": text() }))
}

pub(super) fn copy() -> Value {
    exactly(&json!({ "path": text(), "branch": text(), "head": text() }))
}

pub(super) fn run() -> Value {
    serde_json::from_str(crate::RUN_SCHEMA).unwrap_or(Value::Null)
}

pub(super) fn plan() -> Value {
    exactly(&json!({
        "task_id": text(), "class": text_or_null(), "scope": text_or_null(),
        "plan": { "oneOf": [{ "type": "null" }, of("Plan")] }, "units": list(&of("UnitView")), "mermaid": text(),
    }))
}

pub(super) fn logs() -> Value {
    let event = exactly(&json!({
        "job_id": text(), "unit": text(), "attempt": { "type": "integer" }, "number": { "type": "integer" },
        "at": { "type": "string", "format": "date-time" }, "at_ms": { "type": "integer" }, "event": text(), "data": true,
    }));
    exactly(&json!({ "items": list(&event) }))
}

pub(super) fn diff() -> Value {
    json!({ "anyOf": [of("DiffView"), of("ChangedFiles")] })
}

pub(super) fn cost() -> Value {
    let step = exactly(&json!({
        "sequence": { "type": "integer" }, "node": text(), "unit": text_or_null(), "cost_micros": { "type": "integer" },
    }));
    exactly(&json!({
        "task_id": text(), "cost_micros": { "type": "integer" }, "budget": of("BudgetView"), "steps": list(&step),
        "models": list(&of("UsageSum")),
    }))
}

pub(super) fn parked() -> Value {
    json!({ "oneOf": [{ "type": "null" }, of("ParkView")] })
}

pub(super) fn answered() -> Value {
    exactly(&json!({ "model": text(), "content": text(), "finish_reason": text_or_null() }))
}

pub(super) fn link() -> Value {
    let side = json!({ "type": "array", "prefixItems": [text(), text()], "items": false });
    let answers = json!({ "type": "array", "items": { "enum": ["approve", "refuse", "answer"] } });
    exactly(&json!({ "title": text(), "exact": text(), "about": list(&side), "answers": answers }))
}

pub(super) fn said() -> Value {
    exactly(&json!({ "said": { "enum": ["yes", "no", "words"] } }))
}

pub(super) fn metrics() -> Value {
    let labels = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    let sample = exactly(
        &json!({ "name": text(), "labels": labels, "value": { "type": ["number", "null"] } }),
    );
    exactly(&json!({ "items": list(&sample) }))
}

pub(super) fn completions() -> Value {
    exactly(&json!({ "shell": text(), "script": text() }))
}

pub(super) fn pages() -> Value {
    exactly(&json!({ "directory": text(), "pages": texts() }))
}

pub(super) fn config() -> Value {
    exactly(&json!({
        "file": text(), "url": text(), "project": text_or_null(),
        "helper": { "type": ["array", "null"], "items": { "type": "string" } }, "logged_in": { "type": "boolean" },
    }))
}

/// The exit codes, which never change their meaning.
pub(super) fn exit_codes() -> Value {
    json!({
        "0": "done",
        "1": "done, and what it waited for ended badly",
        "2": "the command line was not understood",
        "3": "not logged in, or not allowed",
        "4": "there is no such thing, or not for you",
        "5": "somebody was first, or it is not in the state for it",
        "6": "what was given is not right",
        "7": "nobody answers, or not now",
        "8": "something is wrong on this side or on the other",
        "130": "left with Ctrl-C; what was begun goes on",
    })
}
