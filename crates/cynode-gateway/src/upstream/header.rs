//! Headers that repeat parts of a modern request's body for intermediaries.

use std::collections::HashSet;

use data_encoding::BASE64;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::UpstreamError;

/// Header of the protocol version.
pub(super) const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// Header of the request's method.
pub(super) const METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");
/// Header of the tool's name.
pub(super) const NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");
/// Header of the session id of the legacy era.
pub(super) const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// Prefix of the header of a mirrored argument.
const PARAMETER_HEADER_PREFIX: &str = "mcp-param-";

/// Schema keyword of an argument that must be mirrored into a header.
const MIRROR_KEYWORD: &str = "x-mcp-header";

/// Parses and validates the headers that an operator configured. They may not override the gateway's own headers.
pub(super) fn parse_configured_headers(
    headers: &[(String, SecretString)],
) -> Result<HeaderMap, UpstreamError> {
    let mut map = HeaderMap::with_capacity(headers.len() + 8);
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| UpstreamError::Misconfigured("the name of a header"))?;
        if is_protocol_header(&name) {
            return Err(UpstreamError::Misconfigured("a header that the protocol needs itself"));
        }
        let mut value = HeaderValue::from_str(value.expose_secret())
            .map_err(|_| UpstreamError::Misconfigured("the value of a header"))?;
        value.set_sensitive(true);
        map.append(name, value);
    }
    Ok(map)
}

fn is_protocol_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("mcp-")
        || matches!(
            name,
            "accept"
                | "accept-encoding"
                | "connection"
                | "content-length"
                | "content-type"
                | "host"
                | "last-event-id"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
        )
}

/// An argument that a tool mirrors into a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderMirror {
    /// Path of the argument.
    path: Vec<String>,
    header: HeaderName,
}

/// Returns the arguments that a tool's schema mirrors. Fails if the schema is not acceptable.
///
/// The keyword is valid only on a string, integer or boolean that is reached from the root through `properties` alone: elsewhere two
/// readers could disagree about the value.
pub(super) fn find_mirrors(schema: &Value) -> Result<Vec<HeaderMirror>, &'static str> {
    let mut mirrors = Vec::new();
    if let Value::Object(root) = schema {
        if root.contains_key(MIRROR_KEYWORD) {
            return Err("x-mcp-header on the whole of the arguments");
        }
        collect_mirrors(root, &mut Vec::new(), &mut mirrors)?;
    }
    let distinct: HashSet<&HeaderName> = mirrors.iter().map(|mirror| &mirror.header).collect();
    if distinct.len() == mirrors.len() { Ok(mirrors) } else { Err("x-mcp-header given twice") }
}

fn collect_mirrors(
    schema: &Map<String, Value>,
    path: &mut Vec<String>,
    mirrors: &mut Vec<HeaderMirror>,
) -> Result<(), &'static str> {
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            (MIRROR_KEYWORD | "default" | "const" | "enum" | "examples", _) => {}
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    let Value::Object(property) = property else { continue };
                    path.push(name.clone());
                    mirrors.extend(parse_mirror(property, path)?);
                    collect_mirrors(property, path, mirrors)?;
                    path.pop();
                }
            }
            (_, elsewhere) if mentions_keyword(elsewhere) => {
                return Err("x-mcp-header where it cannot be followed");
            }
            _ => {}
        }
    }
    Ok(())
}

fn parse_mirror(
    property: &Map<String, Value>,
    path: &[String],
) -> Result<Option<HeaderMirror>, &'static str> {
    let Some(annotation) = property.get(MIRROR_KEYWORD) else { return Ok(None) };
    let header = annotation
        .as_str()
        .filter(|name| !name.is_empty())
        .and_then(|name| {
            HeaderName::from_bytes(format!("{PARAMETER_HEADER_PREFIX}{name}").as_bytes()).ok()
        })
        .ok_or("x-mcp-header that is no header name")?;
    match property.get("type").and_then(Value::as_str) {
        Some("string" | "integer" | "boolean") => {
            Ok(Some(HeaderMirror { path: path.to_vec(), header }))
        }
        _ => Err("x-mcp-header on something that is not a plain value"),
    }
}

fn mentions_keyword(value: &Value) -> bool {
    match value {
        Value::Object(map) => {
            map.contains_key(MIRROR_KEYWORD) || map.values().any(mentions_keyword)
        }
        Value::Array(values) => values.iter().any(mentions_keyword),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Adds the mirrored arguments to `headers`.
pub(super) fn insert_mirrors(
    headers: &mut HeaderMap,
    mirrors: &[HeaderMirror],
    arguments: &RawValue,
) {
    if mirrors.is_empty() {
        return;
    }
    let Ok(arguments) = serde_json::from_str::<Value>(arguments.get()) else { return };
    for HeaderMirror { path, header } in mirrors {
        let value = path.iter().try_fold(&arguments, |value, key| value.get(key));
        let text = match value {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(flag)) => flag.to_string(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => continue,
        };
        headers.insert(header, to_header_value(&text));
    }
}

/// Converts `text` to a header value. It is base64-encoded if it would not survive as literal text.
pub(super) fn to_header_value(text: &str) -> HeaderValue {
    let plain = text.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
        && text.trim_matches([' ', '\t']).len() == text.len()
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    let wrapped =
        if plain { None } else { Some(format!("=?base64?{}?=", BASE64.encode(text.as_bytes()))) };
    // Both forms consist of visible ASCII alone, so the empty fallback is never used.
    HeaderValue::from_str(wrapped.as_deref().unwrap_or(text))
        .unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;

    fn mirrored(schema: &Value, arguments: &Value) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        insert_mirrors(
            &mut headers,
            &find_mirrors(schema).unwrap(),
            &to_raw_value(arguments).unwrap(),
        );
        let mut pairs: Vec<(String, String)> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        pairs.sort();
        pairs
    }

    #[test]
    fn arguments_are_mirrored_where_the_schema_asks_for_it() {
        let schema = json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "plain": {"type": "string"},
            "deep": {"type": "object", "properties": {
                "count": {"type": "integer", "x-mcp-header": "Count"},
                "absent": {"type": "boolean", "x-mcp-header": "Absent"},
            }},
        }});
        let arguments =
            json!({"region": "zürich", "plain": "x", "deep": {"count": 3, "absent": null}});
        assert_eq!(
            mirrored(&schema, &arguments),
            [
                ("mcp-param-count".to_owned(), "3".to_owned()),
                ("mcp-param-region".to_owned(), "=?base64?esO8cmljaA==?=".to_owned()),
            ]
        );
    }

    #[test]
    fn annotations_that_two_readers_could_take_differently_are_refused() {
        let annotated = json!({"type": "string", "x-mcp-header": "A"});
        for schema in [
            json!({"x-mcp-header": "A"}),
            json!({"properties": {"a": {"type": "array", "x-mcp-header": "A"}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": ""}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": "no name"}}}),
            json!({"properties": {"a": {"type": "array", "items": annotated}}}),
            json!({"$defs": {"a": annotated}}),
            json!({"properties": {"a": annotated, "b": {"type": "string", "x-mcp-header": "a"}}}),
        ] {
            assert!(find_mirrors(&schema).is_err(), "{schema}");
        }
    }

    #[test]
    fn a_value_that_would_not_survive_is_wrapped() {
        for (text, expected) in [
            ("plain value", "plain value"),
            ("", ""),
            (" edge", "=?base64?IGVkZ2U=?="),
            ("a\nb", "=?base64?YQpi?="),
            ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ] {
            assert_eq!(to_header_value(text).to_str().unwrap(), expected);
        }
    }

    #[test]
    fn a_configured_header_cannot_speak_for_the_protocol() {
        for name in ["Mcp-Session-Id", "mcp-name", "Accept", "Content-Length", "Host", "bad name"] {
            let headers = [(name.to_owned(), SecretString::from("x"))];
            assert!(parse_configured_headers(&headers).is_err(), "{name}");
        }
        let headers = [("Authorization".to_owned(), SecretString::from("Bearer x"))];
        assert!(parse_configured_headers(&headers).unwrap()["authorization"].is_sensitive());
    }
}
