//! Reading JSON objects that other people write: tolerant of what is absent, exact about what is there.

use serde_json::{Map, Number, Value};

use super::Dialect;
use crate::talk::{Extras, ModelError, Part};

/// An object of which some fields have been read.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    seen: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(value: &'a Value) -> Result<Self, ModelError> {
        match value {
            Value::Object(map) => Ok(Self { map, seen: Vec::new() }),
            other => Err(ModelError::bad(format!("must be an object, not {}", noun(other)))),
        }
    }

    /// The field, if it is there and not null.
    pub(super) fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.seen.push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn need(&mut self, name: &'static str) -> Result<&'a Value, ModelError> {
        self.get(name).ok_or_else(|| ModelError::bad(format!("`{name}` is missing")))
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<&'a str>, ModelError> {
        self.get(name)
            .map(|value| value.as_str().ok_or_else(|| wrong(name, "text", value)))
            .transpose()
    }

    pub(super) fn need_text(&mut self, name: &'static str) -> Result<&'a str, ModelError> {
        let value = self.need(name)?;
        value.as_str().ok_or_else(|| wrong(name, "text", value))
    }

    pub(super) fn string(&mut self, name: &'static str) -> Result<Option<String>, ModelError> {
        Ok(self.text(name)?.map(str::to_owned))
    }

    pub(super) fn need_string(&mut self, name: &'static str) -> Result<String, ModelError> {
        Ok(self.need_text(name)?.to_owned())
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ModelError> {
        self.get(name)
            .map(|value| value.as_bool().ok_or_else(|| wrong(name, "true or false", value)))
            .transpose()
    }

    pub(super) fn number(&mut self, name: &'static str) -> Result<Option<Number>, ModelError> {
        self.get(name)
            .map(|value| match value {
                Value::Number(number) => Ok(number.clone()),
                other => Err(wrong(name, "a number", other)),
            })
            .transpose()
    }

    pub(super) fn count(&mut self, name: &'static str) -> Result<Option<u32>, ModelError> {
        self.get(name)
            .map(|value| {
                let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
                count.ok_or_else(|| wrong(name, "a whole number that is not too large", value))
            })
            .transpose()
    }

    pub(super) fn list(&mut self, name: &'static str) -> Result<&'a [Value], ModelError> {
        match self.get(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(wrong(name, "a list", other)),
        }
    }

    /// An object inside this one.
    pub(super) fn object(&mut self, name: &'static str) -> Result<Option<Self>, ModelError> {
        self.get(name)
            .map(Fields::of)
            .transpose()
            .map_err(|error| error.within(format!("`{name}`")))
    }

    pub(super) fn need_object(&mut self, name: &'static str) -> Result<Self, ModelError> {
        Fields::of(self.need(name)?).map_err(|error| error.within(format!("`{name}`")))
    }

    /// What nobody has read.
    pub(super) fn rest(self, from: Dialect) -> Extras {
        let unread = self
            .map
            .iter()
            .filter(|(name, value)| !value.is_null() && !self.seen.iter().any(|seen| seen == name));
        Extras::new(from, unread.map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}

/// The number at `pointer`, or nothing used.
pub(super) fn tokens(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// The text of a field, if it is one.
pub(super) fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn wrong(name: &str, wanted: &str, value: &Value) -> ModelError {
    ModelError::bad(format!("`{name}` must be {wanted}, not {}", noun(value)))
}

fn noun(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number of that kind",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Content that is text or a list of what `part` reads; anything else is refused with the dialect's own words.
pub(super) fn content(
    value: Option<&Value>,
    wrong: &'static str,
    part: impl Fn(&Value) -> Result<Part, ModelError>,
) -> Result<Vec<Part>, ModelError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![Part::text(text)]),
        Some(Value::Array(items)) => {
            let place =
                |index: usize| move |error: ModelError| error.within(format!("content[{index}]"));
            items.iter().enumerate().map(|(index, item)| part(item).map_err(place(index))).collect()
        }
        Some(_) => Err(ModelError::bad(wrong)),
    }
}
