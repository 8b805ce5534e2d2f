//! Decodes JSON objects of other parties: tolerates absent fields, validates present ones.

use serde_json::{Map, Number, Value};

use super::Dialect;
use crate::dialect::canonical::{ContentPart, DialectExtras, ModelError};

/// An object that tracks which of its fields have been read.
#[derive(Debug)]
pub(super) struct JsonFields<'a> {
    map: &'a Map<String, Value>,
    seen: Vec<&'static str>,
}

impl<'a> JsonFields<'a> {
    pub(super) fn from_value(value: &'a Value) -> Result<Self, ModelError> {
        match value {
            Value::Object(map) => Ok(Self { map, seen: Vec::new() }),
            other => Err(ModelError::bad_request(format!(
                "must be an object, not {}",
                json_type_name(other)
            ))),
        }
    }

    /// Returns the field, if it is present and not null.
    pub(super) fn get_value(&mut self, name: &'static str) -> Option<&'a Value> {
        self.seen.push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn require_value(&mut self, name: &'static str) -> Result<&'a Value, ModelError> {
        self.get_value(name).ok_or_else(|| ModelError::bad_request(format!("`{name}` is missing")))
    }

    pub(super) fn get_text(&mut self, name: &'static str) -> Result<Option<&'a str>, ModelError> {
        self.get_value(name)
            .map(|value| value.as_str().ok_or_else(|| wrong_type_error(name, "text", value)))
            .transpose()
    }

    pub(super) fn require_text(&mut self, name: &'static str) -> Result<&'a str, ModelError> {
        let value = self.require_value(name)?;
        value.as_str().ok_or_else(|| wrong_type_error(name, "text", value))
    }

    pub(super) fn get_string(&mut self, name: &'static str) -> Result<Option<String>, ModelError> {
        Ok(self.get_text(name)?.map(str::to_owned))
    }

    pub(super) fn require_string(&mut self, name: &'static str) -> Result<String, ModelError> {
        Ok(self.require_text(name)?.to_owned())
    }

    pub(super) fn get_bool(&mut self, name: &'static str) -> Result<Option<bool>, ModelError> {
        self.get_value(name)
            .map(|value| {
                value.as_bool().ok_or_else(|| wrong_type_error(name, "true or false", value))
            })
            .transpose()
    }

    pub(super) fn get_number(&mut self, name: &'static str) -> Result<Option<Number>, ModelError> {
        self.get_value(name)
            .map(|value| match value {
                Value::Number(number) => Ok(number.clone()),
                other => Err(wrong_type_error(name, "a number", other)),
            })
            .transpose()
    }

    pub(super) fn get_count(&mut self, name: &'static str) -> Result<Option<u32>, ModelError> {
        self.get_value(name)
            .map(|value| {
                let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
                count.ok_or_else(|| {
                    wrong_type_error(name, "a whole number that is not too large", value)
                })
            })
            .transpose()
    }

    pub(super) fn get_list(&mut self, name: &'static str) -> Result<&'a [Value], ModelError> {
        match self.get_value(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(wrong_type_error(name, "a list", other)),
        }
    }

    /// Returns the nested object `name`.
    pub(super) fn get_object(&mut self, name: &'static str) -> Result<Option<Self>, ModelError> {
        self.get_value(name)
            .map(JsonFields::from_value)
            .transpose()
            .map_err(|error| error.with_context(format!("`{name}`")))
    }

    pub(super) fn require_object(&mut self, name: &'static str) -> Result<Self, ModelError> {
        JsonFields::from_value(self.require_value(name)?)
            .map_err(|error| error.with_context(format!("`{name}`")))
    }

    /// Returns the fields that have not been read.
    pub(super) fn into_extras(self, from: Dialect) -> DialectExtras {
        let unread = self
            .map
            .iter()
            .filter(|(name, value)| !value.is_null() && !self.seen.iter().any(|seen| seen == name));
        DialectExtras::new(
            from,
            unread.map(|(name, value)| (name.clone(), value.clone())).collect(),
        )
    }
}

/// Returns the number at `pointer`, or 0.
pub(super) fn token_count_at(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Returns the text of a field, or an empty text.
pub(super) fn text_field<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn wrong_type_error(name: &str, wanted: &str, value: &Value) -> ModelError {
    ModelError::bad_request(format!("`{name}` must be {wanted}, not {}", json_type_name(value)))
}

fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number of that kind",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Decodes content that is text or a list of parts, which `part` decodes. Rejects anything else with the dialect's own message.
pub(super) fn decode_content_parts(
    value: Option<&Value>,
    wrong: &'static str,
    part: impl Fn(&Value) -> Result<ContentPart, ModelError>,
) -> Result<Vec<ContentPart>, ModelError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![ContentPart::from_text(text)]),
        Some(Value::Array(items)) => {
            let place = |index: usize| {
                move |error: ModelError| error.with_context(format!("content[{index}]"))
            };
            items.iter().enumerate().map(|(index, item)| part(item).map_err(place(index))).collect()
        }
        Some(_) => Err(ModelError::bad_request(wrong)),
    }
}
