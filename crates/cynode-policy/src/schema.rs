//! Schemas of arguments: bounded, compiled once, without reaching out.

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

use crate::schema_cost::{
    MAX_EXPANDED_PARTS, MAX_REFERENCE_CHAIN, MAX_SCHEMA_PATTERNS, MAX_VALIDATION_COST, SchemaGraph,
};

/// Most bytes of a schema as JSON.
pub const MAX_SCHEMA_BYTES: usize = 128 * 1024;

/// Deepest nesting of a schema.
pub const MAX_SCHEMA_DEPTH: usize = 48;

/// Most bytes of one compiled regular expression.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;

/// Highest cost of a validation that says where the arguments are wrong. The validator keeps the errors of every branch of `anyOf`.
const MAX_EXPLAINED_COST: u64 = 10_000;

/// Why a schema cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolSchemaError {
    /// It is not a schema of an object.
    #[error("a tool's schema describes an object: `\"type\": \"object\"`")]
    NotAnObject,
    /// It is too large or too deep.
    #[error("a tool's schema has at most {MAX_SCHEMA_BYTES} bytes and {MAX_SCHEMA_DEPTH} levels")]
    TooLarge,
    /// It refers to something outside itself.
    #[error("a tool's schema refers only to itself, not to `{0}`")]
    Foreign(String),
    /// It would cost too much to validate anything by it.
    #[error(
        "a tool's schema applies at most {MAX_EXPANDED_PARTS} of its parts to one value, with every `$ref` followed through at most \
         {MAX_REFERENCE_CHAIN} levels, and has at most {MAX_SCHEMA_PATTERNS} patterns"
    )]
    TooComplex,
    /// It applies itself to the same value again.
    #[error(
        "a tool's schema refers to itself only for a part of the value, not for the same value"
    )]
    EndlessRecursion,
    /// A part of it has an address of its own.
    #[error("no part of a tool's schema has an `$id` of its own")]
    NestedId,
    /// It is no valid JSON Schema.
    #[error("the schema is wrong: {0}")]
    Invalid(String),
}

/// A schema, ready to check arguments.
#[derive(Clone, Debug)]
pub struct ToolSchema {
    validator: std::sync::Arc<Validator>,
    graph: std::sync::Arc<SchemaGraph>,
}

impl ToolSchema {
    /// Compiles a schema of an object. Patterns run in linear time, nothing is fetched, and the cost of a validation is bounded.
    pub fn compile_schema(value: &Value) -> Result<Self, ToolSchemaError> {
        if value.get("type") != Some(&Value::String("object".into())) {
            return Err(ToolSchemaError::NotAnObject);
        }
        if value.to_string().len() > MAX_SCHEMA_BYTES || exceeds_depth(value, MAX_SCHEMA_DEPTH) {
            return Err(ToolSchemaError::TooLarge);
        }
        if let Some(foreign) = find_external_ref(value) {
            return Err(ToolSchemaError::Foreign(foreign));
        }
        let graph = SchemaGraph::from_schema(value)?;
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN_BYTES))
            .build(value)
            .map_err(|error| ToolSchemaError::Invalid(truncate_message(&error.to_string())))?;
        Ok(Self { validator: std::sync::Arc::new(validator), graph: std::sync::Arc::new(graph) })
    }

    /// Whether a JSON text of that size is validated in so short a time that nobody has to wait for it.
    pub fn is_cheap_for(&self, bytes: usize) -> bool {
        self.graph.is_cheap_for(bytes)
    }

    /// What is wrong with the arguments, if anything: where and which rule, never the value itself. Arguments that would take too long to
    /// validate are wrong, too.
    pub fn find_violation(&self, arguments: &Value) -> Option<String> {
        let cost = self.graph.estimate_cost(arguments);
        if cost > MAX_VALIDATION_COST {
            return Some("too many parts of the schema apply to too many values: send less".into());
        }
        // Almost all arguments are good, and saying so is much cheaper than looking for complaints.
        if self.validator.is_valid(arguments) {
            return None;
        }
        let unexplained = || Some("the arguments do not fit the schema".to_owned());
        if cost > MAX_EXPLAINED_COST {
            return unexplained();
        }
        let Err(error) = self.validator.validate(arguments) else { return unexplained() };
        let place = error.instance_path().to_string();
        let place =
            if place.is_empty() { "the arguments".to_owned() } else { format!("`{place}`") };
        let rule = error.masked();
        Some(truncate_message(&format!("{place}: {rule}")))
    }
}

/// A complaint holds pieces of the schema, which may be long.
fn truncate_message(text: &str) -> String {
    const MAX_MESSAGE_CHARS: usize = 300;
    if text.chars().count() <= MAX_MESSAGE_CHARS {
        return text.to_owned();
    }
    text.chars().take(MAX_MESSAGE_CHARS).chain(std::iter::once('…')).collect()
}

fn exceeds_depth(value: &Value, levels: usize) -> bool {
    if levels == 0 {
        return true;
    }
    match value {
        Value::Object(map) => map.values().any(|value| exceeds_depth(value, levels - 1)),
        Value::Array(items) => items.iter().any(|value| exceeds_depth(value, levels - 1)),
        _ => false,
    }
}

fn find_external_ref(value: &Value) -> Option<String> {
    match value {
        Value::Object(map) => map.iter().find_map(|(key, value)| match (key.as_str(), value) {
            ("$ref" | "$dynamicRef", Value::String(target)) if !target.starts_with('#') => {
                Some(target.clone())
            }
            _ => find_external_ref(value),
        }),
        Value::Array(items) => items.iter().find_map(find_external_ref),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_complaint_says_where_and_why_and_never_what() {
        let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "maximum": 5}}});
        let schema = ToolSchema::compile_schema(&schema).unwrap();
        assert_eq!(schema.find_violation(&json!({"n": 3})), None);
        let told = schema.find_violation(&json!({"n": "hunter2-secret"})).unwrap();
        assert!(told.starts_with("`/n`: ") && !told.contains("hunter2"), "{told}");
        assert!(schema.find_violation(&json!({})).is_some());
    }

    #[test]
    fn a_schema_that_reaches_out_is_too_deep_or_is_none_is_refused() {
        let compile = |value: Value| ToolSchema::compile_schema(&value).err();
        assert_eq!(compile(json!({"type": "string"})), Some(ToolSchemaError::NotAnObject));
        assert_eq!(
            compile(json!({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/x"}}})),
            Some(ToolSchemaError::Foreign("http://127.0.0.1/x".into()))
        );
        let deep = (0..60).fold(json!({}), |inner, _| json!({ "not": inner }));
        assert_eq!(
            compile(json!({"type": "object", "not": deep})),
            Some(ToolSchemaError::TooLarge)
        );
        assert!(matches!(
            compile(json!({"type": "object", "properties": {"a": {"type": "nonsense"}}})),
            Some(ToolSchemaError::Invalid(_))
        ));
    }
}
