use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ModelError;
use crate::dialect::{Dialect, is_openai};

/// Fields without a canonical form, with the dialect that they come from.
///
/// The same dialect encodes them unchanged. Another dialect drops fields that are only hints, and rejects the rest: a caller's requirement
/// is never lost silently.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DialectExtras {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    from: Option<Dialect>,
    #[serde(skip_serializing_if = "Map::is_empty", default)]
    fields: Map<String, Value>,
}

/// Position of extra fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtrasLevel {
    Request,
    Message,
    Part,
    Tool,
    /// Thinking configuration: all its extra fields are hints.
    Thinking,
}

impl DialectExtras {
    /// Creates extras with `fields` of the dialect `from`.
    pub fn new(from: Dialect, fields: Map<String, Value>) -> Self {
        Self { from: (!fields.is_empty()).then_some(from), fields }
    }

    /// Returns whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Merges these fields with `others`. Both come from the dialect `from`.
    pub(crate) fn merge_with(mut self, others: &Self, from: Dialect) -> Self {
        self.fields.extend(others.fields.iter().map(|(name, value)| (name.clone(), value.clone())));
        Self::new(from, self.fields)
    }

    /// Removes a field that only holds its default value.
    pub(crate) fn without_default(mut self, name: &str, default: &str) -> Self {
        self.fields.retain(|field, value| field != name || *value != default);
        if self.fields.is_empty() { Self::default() } else { self }
    }

    /// Returns the field `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)
    }

    /// Adds the fields that `to` supports to `out`. Rejects unsupported fields that must not be lost.
    pub(crate) fn write_into(
        &self,
        level: ExtrasLevel,
        to: Dialect,
        out: &mut Map<String, Value>,
    ) -> Result<(), ModelError> {
        let Some(from) = self.from else { return Ok(()) };
        for (name, value) in &self.fields {
            let same =
                from == to || (is_openai(from) && is_openai(to) && is_shared_field(level, name));
            if same {
                out.entry(name.as_str()).or_insert_with(|| value.clone());
            } else if !(is_hint(level, from, name) || is_neutral(name, value)) {
                return Err(ModelError::bad_request(format!(
                    "`{name}` of {from} cannot be said in {to}, which this model's provider speaks"
                )));
            }
        }
        Ok(())
    }
}

/// Returns whether both `OpenAI` dialects have a field of this name with the same meaning.
fn is_shared_field(level: ExtrasLevel, name: &str) -> bool {
    match level {
        ExtrasLevel::Request => matches!(
            name,
            "metadata"
                | "moderation"
                | "prompt_cache_key"
                | "prompt_cache_options"
                | "prompt_cache_retention"
                | "safety_identifier"
                | "service_tier"
                | "top_logprobs"
        ),
        ExtrasLevel::Part => matches!(name, "detail" | "prompt_cache_breakpoint"),
        ExtrasLevel::Message | ExtrasLevel::Tool | ExtrasLevel::Thinking => false,
    }
}

/// Returns whether another dialect may drop the field: it affects cost, speed, caching or bookkeeping, not the content of the request.
fn is_hint(level: ExtrasLevel, from: Dialect, name: &str) -> bool {
    match level {
        ExtrasLevel::Request => match from {
            Dialect::Chat => matches!(
                name,
                "metadata"
                    | "prompt_cache_key"
                    | "prompt_cache_options"
                    | "prompt_cache_retention"
                    | "safety_identifier"
                    | "service_tier"
                    | "store"
                    | "stream_options"
            ),
            Dialect::Responses => matches!(
                name,
                "client_metadata"
                    | "include"
                    | "metadata"
                    | "prompt_cache_key"
                    | "prompt_cache_options"
                    | "prompt_cache_retention"
                    | "safety_identifier"
                    | "service_tier"
                    | "store"
                    | "stream_options"
            ),
            Dialect::Messages => matches!(
                name,
                "cache_control"
                    | "context_management"
                    | "diagnostics"
                    | "metadata"
                    | "service_tier"
                    | "speed"
            ),
        },
        ExtrasLevel::Thinking => true,
        ExtrasLevel::Message => matches!(name, "id" | "name" | "phase" | "status"),
        ExtrasLevel::Part => matches!(
            name,
            "annotations"
                | "cache_control"
                | "created_by"
                | "detail"
                | "id"
                | "logprobs"
                | "prompt_cache_breakpoint"
                | "status"
        ),
        ExtrasLevel::Tool => matches!(
            name,
            "cache_control"
                | "defer_loading"
                | "eager_input_streaming"
                | "input_examples"
                | "output_schema"
        ),
    }
}

/// Returns whether the value requests nothing.
fn is_neutral(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(word) => name == "truncation" && word == "disabled",
        Value::Array(items) => {
            items.is_empty()
                || (name == "modalities" && items == &["text"])
                || (name == "allowed_callers" && items == &["direct"])
        }
        Value::Object(fields) => {
            fields.is_empty()
                || (name == "caller" && fields.get("type").is_some_and(|kind| kind == "direct"))
                || (name == "citations" && fields.get("enabled") == Some(&Value::Bool(false)))
        }
    }
}
