//! The schema that rules are checked against: an action for each tool, with the arguments that the tool declares.

use std::collections::BTreeSet;

use cedar_policy::Schema;
use cynode_core::{agents::AgentRole, causes::told};
use serde_json::{Map, Value, json};

use crate::catalogue::Catalogue;

/// Deepest nesting of arguments that rules can look into.
const DEEPEST: usize = 4;

/// Describes the catalogue to the rules.
pub(super) fn of(catalogue: &Catalogue) -> Result<Schema, String> {
    let mut actions = Map::new();
    let mut groups = BTreeSet::new();
    for tool in catalogue.tools() {
        let name = &tool.definition.name;
        let own: Vec<_> = name.groups().collect();
        groups.extend(own.iter().cloned());
        let member_of: Vec<_> = own.iter().map(|group| json!({ "id": group })).collect();
        let context = json!({
            "type": "Record",
            "attributes": {
                "agent": facts(&["kind", "user", "project", "task", "profile"], &["network"]),
                "tool": facts(&[], &["read_only", "destructive", "open_world"]),
                "arguments": record(&tool.definition.input, DEEPEST),
            },
        });
        actions.insert(name.to_string(), json!({
            "memberOf": member_of,
            "appliesTo": { "principalTypes": ["Role"], "resourceTypes": ["Server"], "context": context },
        }));
    }
    for group in groups {
        actions.insert(group, json!({}));
    }
    let roles: Vec<_> = AgentRole::ALL.iter().map(|role| role.as_str()).collect();
    let schema = json!({ "": {
        "entityTypes": { "Role": { "enum": roles }, "Server": {} },
        "actions": actions,
    }});
    Schema::from_json_value(schema).map_err(|error| told(&error))
}

fn facts(texts: &[&str], flags: &[&str]) -> Value {
    let texts = texts.iter().map(|name| ((*name).to_owned(), json!({ "type": "String" })));
    let flags = flags.iter().map(|name| ((*name).to_owned(), json!({ "type": "Boolean" })));
    let attributes: Map<String, Value> = texts.chain(flags).collect();
    json!({ "type": "Record", "attributes": attributes })
}

/// The part of an object's schema that rules can speak about.
fn record(schema: &Value, depth: usize) -> Value {
    let mut attributes = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        if let Some(mut kind) = type_of(property, depth) {
            // Even what the schema requires is optional here: a rule asks with `has` and cannot fail.
            kind["required"] = Value::Bool(false);
            attributes.insert(name.clone(), kind);
        }
    }
    json!({ "type": "Record", "attributes": attributes })
}

/// The name of a type that rules know; `null` beside it only means that it may be left out.
fn kind_of(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(kind) => Some(kind),
        Value::Array(kinds) => {
            let mut kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            let kind = kinds.next()?;
            kinds.next().is_none().then_some(kind)
        }
        _ => None,
    }
}

fn type_of(schema: &Value, depth: usize) -> Option<Value> {
    match kind_of(schema)? {
        "string" => Some(json!({ "type": "String" })),
        "boolean" => Some(json!({ "type": "Boolean" })),
        "integer" => Some(json!({ "type": "Long" })),
        "array" => {
            let element = type_of(schema.get("items")?, depth.checked_sub(1)?)?;
            Some(json!({ "type": "Set", "element": element }))
        }
        "object" => Some(record(schema, depth.checked_sub(1)?)),
        _ => None,
    }
}

/// The arguments as rules see them: exactly what the schema above describes. `None` when one of them cannot be held, as a
/// whole number that is too large.
pub(super) fn readable(schema: &Value, arguments: &Value) -> Option<Value> {
    read(schema, arguments, DEEPEST)
}

fn read(schema: &Value, value: &Value, depth: usize) -> Option<Value> {
    let mut out = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let described = type_of(property, depth).is_some();
        match value.get(name) {
            Some(value) if described && !value.is_null() => {
                out.insert(name.clone(), fit(property, value, depth)?);
            }
            Some(_) | None => {}
        }
    }
    Some(Value::Object(out))
}

fn fit(schema: &Value, value: &Value, depth: usize) -> Option<Value> {
    match (kind_of(schema)?, value) {
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => Some(value.clone()),
        ("integer", Value::Number(number)) => number.as_i64().map(Value::from),
        ("array", Value::Array(items)) => {
            let element = schema.get("items")?;
            let depth = depth.checked_sub(1)?;
            let items = items.iter().map(|item| fit(element, item, depth));
            items.collect::<Option<Vec<_>>>().map(Value::Array)
        }
        ("object", Value::Object(_)) => read(schema, value, depth.checked_sub(1)?),
        _ => None,
    }
}
