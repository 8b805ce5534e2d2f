//! Derives the JSON Schema of a tool's arguments from the type's OpenAPI schema.

use serde_json::{Map, Value};
use utoipa::{PartialSchema, ToSchema};

/// Returns the complete schema: referenced schemas are inside it.
pub(super) fn tool_schema_of<T: ToSchema>() -> Value {
    let mut named = Vec::new();
    T::schemas(&mut named);
    let mut schema = serde_json::to_value(<T as PartialSchema>::schema()).unwrap_or(Value::Null);
    inline_references(&mut schema);
    let mut definitions = Map::new();
    for (name, described) in named {
        let mut described = serde_json::to_value(described).unwrap_or(Value::Null);
        inline_references(&mut described);
        definitions.insert(name, described);
    }
    if !definitions.is_empty() {
        schema["$defs"] = Value::Object(definitions);
    }
    if let Value::Object(object) = &mut schema {
        object.entry("type").or_insert_with(|| Value::String("object".into()));
        object.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    }
    schema
}

/// Rewrites references so that they point inside the schema.
fn inline_references(value: &mut Value) {
    match value {
        Value::Object(map) => {
            // Examples are for readers of the API documentation only.
            map.remove("example");
            for (key, value) in map.iter_mut() {
                match value {
                    Value::String(target) if key == "$ref" => {
                        *target = target.replace("#/components/schemas/", "#/$defs/");
                    }
                    value => inline_references(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(inline_references),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
