//! Schema of an answer: converts it for the provider and parses the answer.

use cynode_core::workflow::replays::extract_json;
use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value, json};

use super::AnswerValidator;

/// Maximum nesting of a schema; a recursive one has no end.
const MAX_SCHEMA_DEPTH: usize = 24;

/// Maximum length of a validation error.
const MAX_COMPLAINT_CHARS: usize = 400;

/// Schema of an answer, for requests and for validation.
#[derive(Debug)]
pub struct AnswerSchema {
    whole: Value,
    wire: Value,
    strict: bool,
    validator: Validator,
}

impl AnswerSchema {
    /// Compiles a JSON Schema.
    pub fn from_schema(schema: &Value) -> Result<Self, String> {
        let definitions = schema.get("$defs").cloned().unwrap_or(Value::Null);
        let whole = inline_references(schema, &definitions, 0)?;
        let wire = to_strict_schema(&whole);
        let strict = has_closed_objects(&wire);
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(PatternOptions::regex())
            .build(&whole)
            .map_err(|error| error.to_string())?;
        Ok(Self { whole, wire, strict, validator })
    }

    /// Builds the `response_format` for a model. Features that not every provider supports (bounds, references) are put into descriptions.
    pub fn response_format(&self, name: &str) -> Value {
        let schema = json!({ "name": name, "strict": self.strict, "schema": self.wire });
        json!({ "type": "json_schema", "json_schema": schema })
    }

    /// Returns the schema as one line of JSON.
    pub fn to_compact_json(&self) -> String {
        self.wire.to_string()
    }

    /// Parses an answer: JSON that matches the schema and passes `check`. The error text is written for the model.
    pub fn parse_answer(&self, text: &str, check: AnswerValidator<'_>) -> Result<Value, String> {
        self.validate_answer(extract_json(text)?, check)
    }

    /// Validates an answer that is JSON already.
    pub fn validate_answer(
        &self,
        mut value: Value,
        check: AnswerValidator<'_>,
    ) -> Result<Value, String> {
        prune_null_members(&mut value, &self.whole);
        if let Some(error) = self.validator.iter_errors(&value).next() {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "the answer".into() } else { format!("`{place}`") };
            return Err(truncate_complaint(&format!("{place}: {error}")));
        }
        check(&value).map_err(|complaint| truncate_complaint(&complaint))?;
        Ok(value)
    }
}

fn truncate_complaint(text: &str) -> String {
    match text.char_indices().nth(MAX_COMPLAINT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Inlines all references and closes all objects: no additional members are allowed.
fn inline_references(schema: &Value, definitions: &Value, depth: usize) -> Result<Value, String> {
    if depth > MAX_SCHEMA_DEPTH {
        return Err("the form is too deep, or refers to itself".into());
    }
    match schema {
        Value::Object(object) => {
            let mut out = Map::new();
            if let Some(target) = object.get("$ref").and_then(Value::as_str) {
                let name = target.strip_prefix("#/$defs/").unwrap_or_default();
                let found = definitions
                    .get(name)
                    .ok_or_else(|| format!("the form refers to `{target}`, which is not in it"))?;
                if let Value::Object(found) = inline_references(found, definitions, depth + 1)? {
                    out = found;
                }
            }
            for (key, value) in object {
                match key.as_str() {
                    "$ref" | "$defs" | "$schema" | "title" | "default" | "examples" => {}
                    // These are names with schemas, or plain values, and not keywords.
                    "properties" => {
                        let members = value.as_object().into_iter().flatten();
                        let members = members.map(|(name, member)| {
                            Ok((name.clone(), inline_references(member, definitions, depth + 1)?))
                        });
                        let members: Result<Map<String, Value>, String> = members.collect();
                        out.insert(key.clone(), Value::Object(members?));
                    }
                    "enum" | "const" | "required" => {
                        out.insert(key.clone(), value.clone());
                    }
                    _ => {
                        out.insert(key.clone(), inline_references(value, definitions, depth + 1)?);
                    }
                }
            }
            if out.contains_key("properties") {
                out.insert("additionalProperties".into(), Value::Bool(false));
            }
            Ok(Value::Object(out))
        }
        Value::Array(items) => {
            let items = items.iter().map(|item| inline_references(item, definitions, depth + 1));
            items.collect::<Result<Vec<Value>, String>>().map(Value::Array)
        }
        value => Ok(value.clone()),
    }
}

/// Converts the schema to the subset that every provider supports. There every member is required; an optional member is nullable
/// instead.
fn to_strict_schema(schema: &Value) -> Value {
    let Value::Object(object) = schema else { return schema.clone() };
    let mut out = Map::new();
    let mut sentences: Vec<String> = Vec::new();
    sentences.extend(object.get("description").and_then(Value::as_str).map(str::to_owned));
    let branches = ["oneOf", "anyOf"].into_iter().find_map(|key| object.get(key)?.as_array());
    if let Some(branches) = branches {
        match collect_labels(branches) {
            Some((labels, meanings)) => {
                out.insert("type".into(), json!("string"));
                out.insert("enum".into(), Value::Array(labels));
                sentences.extend(meanings);
            }
            None => {
                let branches = branches.iter().map(to_strict_schema).collect();
                out.insert("anyOf".into(), Value::Array(branches));
            }
        }
    }
    for (key, value) in object {
        match key.as_str() {
            "type" | "enum" => {
                out.insert(key.clone(), value.clone());
            }
            "const" => {
                out.insert("enum".into(), json!([value]));
            }
            "items" => {
                out.insert(key.clone(), to_strict_schema(value));
            }
            "properties" => {
                let members = to_required_members(object, value);
                let names = members.keys().map(|name| json!(name)).collect();
                out.insert("required".into(), Value::Array(names));
                out.insert("properties".into(), Value::Object(members));
                out.insert("additionalProperties".into(), Value::Bool(false));
            }
            "additionalProperties" if !object.contains_key("properties") => {
                out.insert(key.clone(), to_strict_schema(value));
            }
            _ => sentences.extend(describe_bound(key, value)),
        }
    }
    if !sentences.is_empty() {
        out.insert("description".into(), Value::String(sentences.join(" ")));
    }
    Value::Object(out)
}

/// Converts the members of an object so that all of them are required: an optional one becomes nullable.
fn to_required_members(object: &Map<String, Value>, members: &Value) -> Map<String, Value> {
    let required: Vec<&str> = required_members(object).collect();
    let members = members.as_object().into_iter().flatten().map(|(name, member)| {
        let member = to_strict_schema(member);
        let is_required = required.contains(&name.as_str());
        (name.clone(), if is_required { member } else { to_nullable(member) })
    });
    members.collect()
}

/// Describes a bound in a sentence, because not every provider supports the keyword.
fn describe_bound(key: &str, value: &Value) -> Option<String> {
    Some(match key {
        "minimum" => format!("At least {value}."),
        "maximum" => format!("At most {value}."),
        "minLength" => format!("At least {value} characters."),
        "maxLength" => format!("At most {value} characters."),
        "minItems" => format!("At least {value} items."),
        "maxItems" => format!("At most {value} items."),
        _ => return None,
    })
}

/// Returns whether no object of a converted schema has arbitrary members. An object that has them has no strict form.
fn has_closed_objects(schema: &Value) -> bool {
    let Value::Object(object) = schema else { return true };
    if object.contains_key("additionalProperties") && !object.contains_key("properties") {
        return false;
    }
    let members = object.get("properties").and_then(Value::as_object);
    let members = members.into_iter().flat_map(|members| members.values());
    let branches = object.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    members.chain(branches).chain(object.get("items")).all(has_closed_objects)
}

/// Returns the labels of a choice and their meanings, if all branches are labels.
fn collect_labels(branches: &[Value]) -> Option<(Vec<Value>, Vec<String>)> {
    let (mut labels, mut meanings) = (Vec::new(), Vec::new());
    for branch in branches {
        let own: Vec<Value> = match (branch.get("const"), branch.get("enum")) {
            (Some(label), _) => vec![label.clone()],
            (None, Some(Value::Array(labels))) => labels.clone(),
            (None, _) => return None,
        };
        if !own.iter().all(Value::is_string) {
            return None;
        }
        if let Some(meaning) = branch.get("description").and_then(Value::as_str)
            && let Some(label) = own.first().and_then(Value::as_str)
        {
            meanings.push(format!("`{label}`: {meaning}"));
        }
        labels.extend(own);
    }
    Some((labels, meanings))
}

/// Makes a schema nullable.
fn to_nullable(mut schema: Value) -> Value {
    let Value::Object(object) = &mut schema else { return schema };
    if let Some(Value::Array(branches)) = object.get_mut("anyOf") {
        let null = json!({ "type": "null" });
        if !branches.contains(&null) {
            branches.push(null);
        }
        return schema;
    }
    match object.get_mut("type") {
        Some(Value::String(kind)) if kind != "null" => {
            let kinds = json!([kind, "null"]);
            object.insert("type".into(), kinds);
        }
        Some(Value::Array(kinds)) if !kinds.contains(&json!("null")) => kinds.push(json!("null")),
        _ => {}
    }
    if let Some(Value::Array(values)) = object.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    schema
}

fn required_members(object: &Map<String, Value>) -> impl Iterator<Item = &str> {
    object.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Removes optional members that are null: the strict schema tells models to write null.
fn prune_null_members(value: &mut Value, schema: &Value) {
    for branches in ["oneOf", "anyOf", "allOf"] {
        for branch in schema.get(branches).and_then(Value::as_array).into_iter().flatten() {
            prune_null_members(value, branch);
        }
    }
    match value {
        Value::Object(members) => {
            let Some(object) = schema.as_object() else { return };
            let Some(named) = object.get("properties").and_then(Value::as_object) else { return };
            let required: Vec<&str> = required_members(object).collect();
            members.retain(|name, member| {
                !(member.is_null()
                    && named.contains_key(name)
                    && !required.contains(&name.as_str()))
            });
            for (name, member) in members {
                if let Some(schema) = named.get(name) {
                    prune_null_members(member, schema);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    prune_null_members(item, schema);
                }
            }
        }
        _ => {}
    }
}
