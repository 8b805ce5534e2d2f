//! Envelope of a message: its protocol era, its method, and whether its headers agree with its body.
//!
//! Decisions use the body alone. Headers are only compared with it, so that an intermediary that reads headers sees the call that is
//! executed.

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    headers,
    responses::{RpcError, code},
    strict_json,
};

/// Protocol version of the modern era, in which every request is self-contained.
pub(crate) const MODERN_VERSION: &str = "2026-07-28";

/// Protocol versions of the legacy era, newest first.
pub(crate) const LEGACY_VERSIONS: [&str; 4] =
    ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// Key of the protocol version in `_meta`.
const META_VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// Protocol era of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolEra {
    /// Every request is self-contained.
    Modern,
    /// Requests follow a handshake.
    Legacy,
}

/// A parsed message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum McpMessage {
    /// A request, which expects a response.
    Request(Box<McpRequest>),
    /// A notification, which has no response.
    Notification {
        /// Method of the notification.
        method: String,
        /// Parameters of the notification.
        params: Value,
    },
    /// A response. The gateway ignores it, because it sends no requests.
    Response,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct McpRequest {
    /// Protocol era.
    pub(crate) era: ProtocolEra,
    /// Id of the request, which its response repeats: a text or a number.
    pub(crate) id: Value,
    /// Method of the request.
    pub(crate) method: String,
    /// Parameters. Those of a tool call are in `call`.
    pub(crate) params: Value,
    /// Tool and arguments of a tool call, with the bytes unchanged.
    pub(crate) call: Option<McpToolCall>,
}

/// A tool call, as the caller sent it.
#[derive(Clone, Debug)]
pub(crate) struct McpToolCall {
    /// Name of the tool.
    pub(crate) name: String,
    /// Arguments, as validated JSON.
    pub(crate) arguments: Value,
    /// Arguments, as the original bytes.
    pub(crate) raw: Box<RawValue>,
    /// Progress token, if the caller wants progress notifications.
    pub(crate) progress: Option<Value>,
    /// Capabilities of the caller's client, as it states them.
    pub(crate) capabilities: Option<Box<RawValue>>,
    /// Responses to the input requests of an earlier round.
    pub(crate) responses: Option<Box<RawValue>>,
    /// State of an earlier round.
    pub(crate) state: Option<String>,
}

impl PartialEq for McpToolCall {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.raw.get() == other.raw.get() && self.state == other.state
    }
}

#[derive(Deserialize)]
struct RawEnvelope<'a> {
    #[serde(borrow)]
    params: Option<RawCallParams<'a>>,
}

#[derive(Deserialize)]
struct RawCallParams<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, rename = "inputResponses")]
    responses: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<RawCallMeta<'a>>,
}

#[derive(Deserialize)]
struct RawCallMeta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
}

/// Parses a message and compares it with its headers.
pub(crate) fn parse_message(headers: &HeaderMap, body: &[u8]) -> Result<McpMessage, RpcError> {
    let message = strict_json::parse_strict_json(body).map_err(|error| {
        let why = strict_json::parse_error_message(&error);
        let kind = if why == "it is not JSON" { code::PARSE_ERROR } else { code::INVALID_REQUEST };
        RpcError::bad_request(kind, format!("the body is wrong: {why}"))
    })?;
    let invalid = |why: &str| RpcError::bad_request(code::INVALID_REQUEST, why);
    let Value::Object(mut object) = message else { return Err(invalid("one message at a time")) };
    if object.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(invalid("`jsonrpc` is \"2.0\""));
    }
    let id = object.remove("id");
    let with_id = |failure: RpcError| failure.with_request_id(id.clone());
    let method = match object.remove("method") {
        Some(Value::String(method)) => method,
        Some(_) => return Err(with_id(invalid("`method` is a text"))),
        None if object.contains_key("result") || object.contains_key("error") => {
            return Ok(McpMessage::Response);
        }
        None => return Err(with_id(invalid("`method` is missing"))),
    };
    let mut params = match object.remove("params") {
        None => Value::Object(serde_json::Map::new()),
        Some(params @ Value::Object(_)) => params,
        Some(_) => return Err(with_id(invalid("`params` is an object"))),
    };
    let id = match id {
        None => return Ok(McpMessage::Notification { method, params }),
        Some(id @ (Value::String(_) | Value::Number(_))) => id,
        Some(_) => return Err(invalid("`id` is a text or a number")),
    };
    let with_id = |failure: RpcError| failure.with_request_id(Some(id.clone()));
    let era = detect_era(headers, &params).map_err(with_id)?;
    match era {
        ProtocolEra::Modern => validate_modern(headers, &method, &params).map_err(with_id)?,
        ProtocolEra::Legacy => validate_legacy(headers, &method, &params).map_err(with_id)?,
    }
    let call = match method.as_str() {
        "tools/call" => Some(parse_tool_call(body, &mut params).map_err(with_id)?),
        _ => None,
    };
    Ok(McpMessage::Request(Box::new(McpRequest { era, id, method, params, call })))
}

/// Detects the era from the header, or from the body if the header is absent.
fn detect_era(headers: &HeaderMap, params: &Value) -> Result<ProtocolEra, RpcError> {
    match headers::single_header(headers, "mcp-protocol-version")? {
        Some(version) if LEGACY_VERSIONS.contains(&version) || version == "2024-10-07" => {
            Ok(ProtocolEra::Legacy)
        }
        Some(_) => Ok(ProtocolEra::Modern),
        None => {
            let stated = params.get("_meta").and_then(|meta| meta.get(META_VERSION_KEY));
            Ok(if stated.is_some() { ProtocolEra::Modern } else { ProtocolEra::Legacy })
        }
    }
}

/// Validates a modern request: its required fields, in the order that the protocol defines.
fn validate_modern(headers: &HeaderMap, method: &str, params: &Value) -> Result<(), RpcError> {
    let missing = |what: &str| {
        RpcError::bad_request(
            code::INVALID_PARAMS,
            format!("`_meta` is missing, or `{what}` in it"),
        )
    };
    let meta =
        params.get("_meta").and_then(Value::as_object).ok_or_else(|| missing(META_VERSION_KEY))?;
    let version = meta
        .get(META_VERSION_KEY)
        .and_then(Value::as_str)
        .ok_or_else(|| missing(META_VERSION_KEY))?;
    if !meta.get(META_CAPABILITIES_KEY).is_some_and(Value::is_object) {
        return Err(missing(META_CAPABILITIES_KEY));
    }
    let mismatch = |name: &str| {
        RpcError::bad_request(
            code::HEADER_MISMATCH,
            format!("the header `{name}` is missing or says something else than the body"),
        )
    };
    if headers::single_header(headers, "mcp-protocol-version")? != Some(version) {
        return Err(mismatch("MCP-Protocol-Version"));
    }
    if version != MODERN_VERSION {
        return Err(RpcError::unsupported_version(version));
    }
    if headers::single_header(headers, "mcp-method")? != Some(method) {
        return Err(mismatch("Mcp-Method"));
    }
    if method == "tools/call" {
        let name = params.get("name").and_then(Value::as_str).unwrap_or_default();
        let stated = headers::single_header(headers, "mcp-name")?;
        if stated.and_then(headers::decode_header).as_deref() != Some(name) {
            return Err(mismatch("Mcp-Name"));
        }
    }
    Ok(())
}

/// Validates a legacy request. The legacy era does not define these headers, but an intermediary may rely on them if they are there.
fn validate_legacy(headers: &HeaderMap, method: &str, params: &Value) -> Result<(), RpcError> {
    let name = params.get("name").and_then(Value::as_str);
    let differs = |header: Option<&str>, said: Option<&str>| {
        header.is_some_and(|header| headers::decode_header(header).as_deref() != said)
    };
    if differs(headers::single_header(headers, "mcp-method")?, Some(method))
        || (method == "tools/call" && differs(headers::single_header(headers, "mcp-name")?, name))
    {
        let told = "the headers `Mcp-Method` and `Mcp-Name` say something else than the body";
        return Err(RpcError::bad_request(code::HEADER_MISMATCH, told));
    }
    Ok(())
}

/// Removes the tool call from `params` and returns it.
fn parse_tool_call(body: &[u8], params: &mut Value) -> Result<McpToolCall, RpcError> {
    let invalid = |why: &str| RpcError::bad_request(code::INVALID_PARAMS, why);
    let name = params.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| invalid("`name` is the tool's name"))?.to_owned();
    let arguments = match params.get_mut("arguments") {
        None => Value::Object(serde_json::Map::new()),
        Some(arguments) => arguments.take(),
    };
    // The same bytes were parsed before, so this can fail only for a shape that was already rejected.
    let pieces: RawEnvelope<'_> =
        serde_json::from_slice(body).map_err(|_| invalid("`params` cannot be read"))?;
    let params_raw = pieces.params.ok_or_else(|| invalid("`params` are missing"))?;
    let raw = params_raw.arguments.map(ToOwned::to_owned);
    let raw = match raw {
        Some(raw) => raw,
        None => RawValue::from_string("{}".into()).map_err(|_| invalid("`arguments`"))?,
    };
    let state = match params.get("requestState") {
        None => None,
        Some(Value::String(state)) => Some(state.clone()),
        Some(_) => return Err(invalid("`requestState` is the text that was given")),
    };
    let progress = params.get("_meta").and_then(|meta| meta.get("progressToken"));
    let progress = progress.filter(|token| token.is_string() || token.is_number()).cloned();
    let capabilities = params_raw.meta.and_then(|meta| meta.capabilities).map(ToOwned::to_owned);
    let responses = params_raw.responses.map(ToOwned::to_owned);
    Ok(McpToolCall { name, arguments, raw, progress, capabilities, responses, state })
}

#[cfg(test)]
mod tests;
