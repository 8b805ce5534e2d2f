//! JSON Schemas of outputs that are in no other document.

use serde_json::{Value, json};

/// Returns a reference into the OpenAPI document.
fn schema_reference(name: &str) -> Value {
    json!({ "$ref": format!("openapi.json#/components/schemas/{name}") })
}

/// Returns an object schema with exactly these fields, all required.
fn strict_object_schema(properties: &Value) -> Value {
    let required: Vec<String> =
        properties.as_object().into_iter().flat_map(|it| it.keys().cloned()).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn string_schema() -> Value {
    json!({ "type": "string" })
}

fn nullable_string_schema() -> Value {
    json!({ "type": ["string", "null"] })
}

fn string_array_schema() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

fn array_schema(item: &Value) -> Value {
    json!({ "type": "array", "items": item })
}

/// Returns the schema of any object.
pub(super) fn object_schema() -> Value {
    json!({ "type": "object" })
}

pub(super) fn status_schema() -> Value {
    strict_object_schema(&json!({
        "url": string_schema(), "version": string_schema(), "ready": { "type": "boolean" }, "checks": array_schema(&schema_reference("ReadinessCheck")),
        "project": { "type": ["string", "null"] }, "logged_in": { "type": "boolean" },
    }))
}

pub(super) fn sample_schema() -> Value {
    strict_object_schema(
        &json!({ "path": string_schema(), "project_id": string_schema(), "words": string_schema(), "next": string_schema() }),
    )
}

pub(super) fn pull_schema() -> Value {
    strict_object_schema(
        &json!({ "branch": string_schema(), "before": string_schema(), "head": string_schema() }),
    )
}

pub(super) fn clone_schema() -> Value {
    strict_object_schema(
        &json!({ "path": string_schema(), "branch": string_schema(), "head": string_schema() }),
    )
}

pub(super) fn download_schema() -> Value {
    strict_object_schema(
        &json!({ "artifact_id": string_schema(), "path": string_schema(), "bytes": { "type": "integer" } }),
    )
}

pub(super) fn memory_search_schema() -> Value {
    strict_object_schema(
        &json!({ "trace_id": string_schema(), "profile": string_schema(), "hits": array_schema(&schema_reference("MemoryHitView")) }),
    )
}

pub(super) fn forgotten_schema() -> Value {
    strict_object_schema(&json!({ "forgotten": { "type": "integer" } }))
}

pub(super) fn trial_schema() -> Value {
    let count = || json!({ "type": ["integer", "null"] });
    let setup = strict_object_schema(&json!({
        "step": string_schema(), "succeeded": { "type": ["boolean", "null"] }, "milliseconds": { "type": "integer" }, "fix": nullable_string_schema(),
    }));
    let check = strict_object_schema(&json!({
        "command": string_schema(), "exit_code": count(), "milliseconds": { "type": "integer" }, "passed": count(), "failed": count(),
        "skipped": count(), "fix": nullable_string_schema(),
    }));
    strict_object_schema(&json!({
        "task_id": string_schema(), "version": { "type": "integer" }, "succeeded": { "type": "boolean" }, "setup": array_schema(&setup),
        "checks": array_schema(&check), "failure": nullable_string_schema(),
    }))
}

pub(super) fn run_schema() -> Value {
    serde_json::from_str(crate::RUN_SCHEMA).unwrap_or(Value::Null)
}

pub(super) fn plan_schema() -> Value {
    strict_object_schema(&json!({
        "task_id": string_schema(), "class": nullable_string_schema(), "scope": nullable_string_schema(),
        "plan": { "oneOf": [{ "type": "null" }, schema_reference("Plan")] }, "units": array_schema(&schema_reference("UnitView")), "mermaid": string_schema(),
    }))
}

pub(super) fn logs_schema() -> Value {
    let event = strict_object_schema(&json!({
        "job_id": string_schema(), "unit": string_schema(), "attempt": { "type": "integer" }, "number": { "type": "integer" },
        "at": { "type": "string", "format": "date-time" }, "at_ms": { "type": "integer" }, "event": string_schema(), "data": true,
    }));
    strict_object_schema(&json!({ "items": array_schema(&event) }))
}

pub(super) fn diff_schema() -> Value {
    json!({ "anyOf": [schema_reference("DiffView"), schema_reference("ChangedFiles")] })
}

pub(super) fn cost_schema() -> Value {
    let step = strict_object_schema(&json!({
        "sequence": { "type": "integer" }, "node": string_schema(), "unit": nullable_string_schema(), "cost_micros": { "type": "integer" },
    }));
    strict_object_schema(&json!({
        "task_id": string_schema(), "cost_micros": { "type": "integer" }, "budget": schema_reference("BudgetView"), "steps": array_schema(&step),
        "models": array_schema(&schema_reference("UsageSum")),
    }))
}

pub(super) fn park_schema() -> Value {
    json!({ "oneOf": [{ "type": "null" }, schema_reference("ParkView")] })
}

pub(super) fn chat_schema() -> Value {
    strict_object_schema(
        &json!({ "model": string_schema(), "content": string_schema(), "finish_reason": nullable_string_schema() }),
    )
}

pub(super) fn link_schema() -> Value {
    let side = json!({ "type": "array", "prefixItems": [string_schema(), string_schema()], "items": false });
    let answers = json!({ "type": "array", "items": { "enum": ["approve", "refuse", "answer"] } });
    strict_object_schema(
        &json!({ "title": string_schema(), "exact": string_schema(), "about": array_schema(&side), "answers": answers }),
    )
}

pub(super) fn link_answer_schema() -> Value {
    strict_object_schema(&json!({ "said": { "enum": ["yes", "no", "words"] } }))
}

pub(super) fn metrics_schema() -> Value {
    let labels = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    let sample = strict_object_schema(
        &json!({ "name": string_schema(), "labels": labels, "value": { "type": ["number", "null"] } }),
    );
    strict_object_schema(&json!({ "items": array_schema(&sample) }))
}

pub(super) fn completions_schema() -> Value {
    strict_object_schema(&json!({ "shell": string_schema(), "script": string_schema() }))
}

pub(super) fn man_pages_schema() -> Value {
    strict_object_schema(&json!({ "directory": string_schema(), "pages": string_array_schema() }))
}

pub(super) fn config_schema() -> Value {
    strict_object_schema(&json!({
        "file": string_schema(), "url": string_schema(), "project": nullable_string_schema(),
        "helper": { "type": ["array", "null"], "items": { "type": "string" } }, "logged_in": { "type": "boolean" },
    }))
}

/// Returns the exit codes, whose meaning is stable.
pub(super) fn exit_codes() -> Value {
    json!({
        "0": "success",
        "1": "the outcome is a failure: a task failed, a check did not pass, or a person said no",
        "2": "usage error: the command line is not valid or something is missing",
        "3": "not logged in, or not allowed",
        "4": "not found, or not visible to you",
        "5": "conflict: somebody else was first, or the state does not allow it",
        "6": "invalid input",
        "7": "the server is unreachable or overloaded",
        "8": "internal error of cynork or of the server",
        "130": "interrupted with Ctrl-C; work that was begun goes on",
    })
}
