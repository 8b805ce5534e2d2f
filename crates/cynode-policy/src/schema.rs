//! Schemas of arguments: bounded, compiled once, without reaching out.

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

/// Most bytes of a schema as JSON.
pub const MOST_BYTES: usize = 128 * 1024;

/// Deepest nesting of a schema.
pub const DEEPEST: usize = 48;

/// Why a schema cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// It is not a schema of an object.
    #[error("a tool's schema describes an object: `\"type\": \"object\"`")]
    NotAnObject,
    /// It is too large or too deep.
    #[error("a tool's schema has at most {MOST_BYTES} bytes and {DEEPEST} levels")]
    TooLarge,
    /// It refers to something outside itself.
    #[error("a tool's schema refers only to itself, not to `{0}`")]
    Foreign(String),
    /// It is no valid JSON Schema.
    #[error("the schema is wrong: {0}")]
    Invalid(String),
}

/// A schema, ready to check arguments.
#[derive(Clone, Debug)]
pub struct Schema {
    validator: std::sync::Arc<Validator>,
}

impl Schema {
    /// Compiles a schema of an object. Patterns run in linear time and nothing is fetched.
    pub fn compile(value: &Value) -> Result<Self, SchemaError> {
        if value.get("type") != Some(&Value::String("object".into())) {
            return Err(SchemaError::NotAnObject);
        }
        if value.to_string().len() > MOST_BYTES || deeper_than(value, DEEPEST) {
            return Err(SchemaError::TooLarge);
        }
        if let Some(foreign) = foreign_reference(value) {
            return Err(SchemaError::Foreign(foreign));
        }
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(PatternOptions::regex())
            .build(value)
            .map_err(|error| SchemaError::Invalid(error.to_string()))?;
        Ok(Self { validator: std::sync::Arc::new(validator) })
    }

    /// What is wrong with the arguments, if anything: where and which rule, never the value itself.
    pub fn complaint(&self, arguments: &Value) -> Option<String> {
        // Almost all arguments are good, and saying so is much cheaper than looking for complaints.
        if self.validator.is_valid(arguments) {
            return None;
        }
        let Some(error) = self.validator.iter_errors(arguments).next() else {
            return Some("the arguments do not fit the schema".to_owned());
        };
        let place = error.instance_path().to_string();
        let place =
            if place.is_empty() { "the arguments".to_owned() } else { format!("`{place}`") };
        let rule = error.masked();
        Some(clip(&format!("{place}: {rule}")))
    }
}

/// A complaint holds pieces of the schema, which may be long.
fn clip(text: &str) -> String {
    const MOST: usize = 300;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST).chain(std::iter::once('…')).collect()
}

fn deeper_than(value: &Value, levels: usize) -> bool {
    if levels == 0 {
        return true;
    }
    match value {
        Value::Object(map) => map.values().any(|value| deeper_than(value, levels - 1)),
        Value::Array(items) => items.iter().any(|value| deeper_than(value, levels - 1)),
        _ => false,
    }
}

fn foreign_reference(value: &Value) -> Option<String> {
    match value {
        Value::Object(map) => map.iter().find_map(|(key, value)| match (key.as_str(), value) {
            ("$ref" | "$dynamicRef", Value::String(target)) if !target.starts_with('#') => {
                Some(target.clone())
            }
            _ => foreign_reference(value),
        }),
        Value::Array(items) => items.iter().find_map(foreign_reference),
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
        let schema = Schema::compile(&schema).unwrap();
        assert_eq!(schema.complaint(&json!({"n": 3})), None);
        let told = schema.complaint(&json!({"n": "hunter2-secret"})).unwrap();
        assert!(told.starts_with("`/n`: ") && !told.contains("hunter2"), "{told}");
        assert!(schema.complaint(&json!({})).is_some());
    }

    #[test]
    fn a_schema_that_reaches_out_is_too_deep_or_is_none_is_refused() {
        let compile = |value: Value| Schema::compile(&value).err();
        assert_eq!(compile(json!({"type": "string"})), Some(SchemaError::NotAnObject));
        assert_eq!(
            compile(json!({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/x"}}})),
            Some(SchemaError::Foreign("http://127.0.0.1/x".into()))
        );
        let deep = (0..60).fold(json!({}), |inner, _| json!({ "not": inner }));
        assert_eq!(compile(json!({"type": "object", "not": deep})), Some(SchemaError::TooLarge));
        assert!(matches!(
            compile(json!({"type": "object", "properties": {"a": {"type": "nonsense"}}})),
            Some(SchemaError::Invalid(_))
        ));
    }
}
