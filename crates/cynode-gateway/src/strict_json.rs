//! Strict JSON parser: rejects duplicate keys, which two parsers could read differently.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses JSON and rejects duplicate keys, at any depth.
pub(crate) fn parse_strict_json(text: &[u8]) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = StrictJsonVisitor.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Returns the message of a parse error. It holds only the kind of error, because the text comes from an untrusted caller.
pub(crate) fn parse_error_message(error: &serde_json::Error) -> &'static str {
    if error.to_string().contains(DUPLICATE_KEY_MESSAGE) {
        "a key is there twice"
    } else {
        "it is not JSON"
    }
}

const DUPLICATE_KEY_MESSAGE: &str = "the same key twice";

struct StrictJsonVisitor;

impl<'de> DeserializeSeed<'de> for StrictJsonVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictJsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number too large"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(StrictJsonVisitor)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(StrictJsonVisitor)?;
            if object.insert(key, value).is_some() {
                return Err(de::Error::custom(DUPLICATE_KEY_MESSAGE));
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_refused_at_any_depth() {
        for text in
            [r#"{"a":1,"a":1}"#, r#"{"a":{"b":1,"b":2}}"#, r#"[{"x":[{"y":1,"\u0079":2}]}]"#]
        {
            let error = parse_strict_json(text.as_bytes()).unwrap_err();
            assert_eq!(parse_error_message(&error), "a key is there twice", "{text}");
        }
    }

    #[test]
    fn everything_else_is_read_as_it_is() {
        let text = r#"{"a":[1,-2,3.5,true,null,"x"],"b":{"a":{}},"n":18446744073709551615}"#;
        assert_eq!(
            parse_strict_json(text.as_bytes()).unwrap(),
            serde_json::from_str::<Value>(text).unwrap()
        );
        for text in ["", "{", "{} {}", "nul", "{\"a\":1,}", "\u{feff}{}"] {
            assert!(parse_strict_json(text.as_bytes()).is_err(), "{text}");
        }
        let deep = "[".repeat(4000);
        assert!(parse_strict_json(deep.as_bytes()).is_err());
    }
}
