//! The schema that rules are checked against: an action for each tool, with the arguments that the tool declares.

use std::collections::BTreeSet;

use cedar_policy::{RestrictedExpression, Schema};
use cynode_core::{agents::AgentRole, error_chain::format_error_chain};
use serde_json::{Map, Value, json};

use crate::catalogue::ToolCatalogue;

/// Deepest nesting of arguments that rules can look into.
const MAX_ARGUMENT_DEPTH: usize = 4;

/// Describes the catalogue to the rules.
pub(super) fn build_cedar_schema(catalogue: &ToolCatalogue) -> Result<Schema, String> {
    let mut actions = Map::new();
    let mut groups = BTreeSet::new();
    for tool in catalogue.iter_tools() {
        let name = &tool.definition.name;
        let own: Vec<_> = name.group_patterns().collect();
        groups.extend(own.iter().cloned());
        let member_of: Vec<_> = own.iter().map(|group| json!({ "id": group })).collect();
        let context = json!({
            "type": "Record",
            "attributes": {
                "agent": record_schema(&["kind", "user", "project", "task", "handoff", "profile"], &["network"]),
                "tool": record_schema(&[], &["read_only", "destructive", "open_world"]),
                "arguments": ArgumentShape::from_schema(&tool.definition.input).to_cedar_type(),
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
    Schema::from_json_value(schema).map_err(|error| format_error_chain(&error))
}

fn record_schema(texts: &[&str], flags: &[&str]) -> Value {
    let texts = texts.iter().map(|name| ((*name).to_owned(), json!({ "type": "String" })));
    let flags = flags.iter().map(|name| ((*name).to_owned(), json!({ "type": "Boolean" })));
    let attributes: Map<String, Value> = texts.chain(flags).collect();
    json!({ "type": "Record", "attributes": attributes })
}

/// What rules see of arguments: the part of a tool's schema that Cedar has types for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ArgumentShape {
    Text,
    Flag,
    Number,
    Set(Box<Self>),
    Record(Vec<(String, Self)>),
}

impl ArgumentShape {
    /// What rules see of the arguments that a schema describes.
    pub(super) fn from_schema(schema: &Value) -> Self {
        record_shape(schema, MAX_ARGUMENT_DEPTH)
    }

    /// The same in Cedar's words.
    fn to_cedar_type(&self) -> Value {
        match self {
            Self::Text => json!({ "type": "String" }),
            Self::Flag => json!({ "type": "Boolean" }),
            Self::Number => json!({ "type": "Long" }),
            Self::Set(element) => json!({ "type": "Set", "element": element.to_cedar_type() }),
            Self::Record(fields) => {
                let attributes = fields.iter().map(|(name, shape)| {
                    let mut kind = shape.to_cedar_type();
                    // Even what the schema requires is optional here: a rule asks with `has` and cannot fail.
                    kind["required"] = Value::Bool(false);
                    (name.clone(), kind)
                });
                let attributes: Map<String, Value> = attributes.collect();
                json!({ "type": "Record", "attributes": attributes })
            }
        }
    }

    /// What people call the type.
    pub(super) fn cedar_type_name(&self) -> String {
        match self {
            Self::Text => "String".to_owned(),
            Self::Flag => "Boolean".to_owned(),
            Self::Number => "Long".to_owned(),
            Self::Set(element) => format!("Set<{}>", element.cedar_type_name()),
            Self::Record(_) => "Record".to_owned(),
        }
    }

    /// A value as rules see it: exactly what is described above. `None` when it cannot be held, as a whole number that is
    /// too large.
    pub(super) fn to_expression(&self, value: &Value) -> Option<RestrictedExpression> {
        match (self, value) {
            (Self::Text, Value::String(text)) => {
                Some(RestrictedExpression::new_string(text.clone()))
            }
            (Self::Flag, Value::Bool(flag)) => Some(RestrictedExpression::new_bool(*flag)),
            (Self::Number, Value::Number(number)) => {
                number.as_i64().map(RestrictedExpression::new_long)
            }
            (Self::Set(element), Value::Array(items)) => {
                let items = items.iter().map(|item| element.to_expression(item));
                items.collect::<Option<Vec<_>>>().map(RestrictedExpression::new_set)
            }
            (Self::Record(fields), Value::Object(given)) => {
                let given = fields.iter().filter_map(|(name, shape)| {
                    let value = given.get(name).filter(|value| !value.is_null())?;
                    Some(shape.to_expression(value).map(|shown| (name.clone(), shown)))
                });
                RestrictedExpression::new_record(given.collect::<Option<Vec<_>>>()?).ok()
            }
            _ => None,
        }
    }
}

fn record_shape(schema: &Value, depth: usize) -> ArgumentShape {
    let properties = schema.get("properties").and_then(Value::as_object);
    let fields = properties.into_iter().flatten().filter_map(|(name, property)| {
        shape_of(property, depth).map(|shape| (name.clone(), shape))
    });
    ArgumentShape::Record(fields.collect())
}

fn shape_of(schema: &Value, depth: usize) -> Option<ArgumentShape> {
    match json_type_of(schema)? {
        "string" => Some(ArgumentShape::Text),
        "boolean" => Some(ArgumentShape::Flag),
        "integer" => Some(ArgumentShape::Number),
        "array" => {
            let element = shape_of(schema.get("items")?, depth.checked_sub(1)?)?;
            Some(ArgumentShape::Set(Box::new(element)))
        }
        "object" => Some(record_shape(schema, depth.checked_sub(1)?)),
        _ => None,
    }
}

/// The name of a type that rules know; `null` beside it only means that it may be left out.
fn json_type_of(schema: &Value) -> Option<&str> {
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
