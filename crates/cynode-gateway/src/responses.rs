//! Encodes results and errors as MCP answers.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cynode_policy::{
    catalogue::{CatalogueTool, ToolOrigin},
    reasons::RefusalReason,
};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::envelope::{LEGACY_VERSIONS, MODERN_VERSION, ProtocolEra};

/// Error codes: those that the protocol reserves, and CyNode's own, which are outside the reserved range.
pub(crate) mod code {
    /// The body is not JSON.
    pub(crate) const PARSE_ERROR: i64 = -32700;
    /// The body is not a valid message.
    pub(crate) const INVALID_REQUEST: i64 = -32600;
    /// The method does not exist.
    pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are invalid.
    pub(crate) const INVALID_PARAMS: i64 = -32602;
    /// Internal error of the gateway.
    pub(crate) const INTERNAL_ERROR: i64 = -32603;
    /// A header contradicts the body.
    pub(crate) const HEADER_MISMATCH: i64 = -32020;
    /// The caller's client lacks a required capability.
    pub(crate) const MISSING_CAPABILITY: i64 = -32021;
    /// The protocol version is not supported.
    pub(crate) const UNSUPPORTED_VERSION: i64 = -32022;
    /// The token is missing or invalid.
    pub(crate) const UNAUTHENTICATED: i64 = 401;
    /// The token is of the wrong kind, or the request comes from a foreign web page.
    pub(crate) const FORBIDDEN: i64 = 403;
    /// Rate limit: so many refusals came before that this one is not recorded.
    pub(crate) const TOO_MANY_REQUESTS: i64 = 429;
    /// The call cannot be decided or recorded now.
    pub(crate) const UNAVAILABLE: i64 = 503;
}

/// A protocol error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RpcError(Box<RpcErrorParts>);

#[derive(Clone, Debug, PartialEq)]
struct RpcErrorParts {
    status: StatusCode,
    code: i64,
    message: String,
    data: Option<Value>,
    id: Option<Value>,
}

impl RpcError {
    /// Creates the error of an invalid request.
    pub(crate) fn bad_request(code: i64, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Creates an error.
    pub(crate) fn new(status: StatusCode, code: i64, message: impl Into<String>) -> Self {
        Self(Box::new(RpcErrorParts {
            status,
            code,
            message: message.into(),
            data: None,
            id: None,
        }))
    }

    /// Creates the error of a temporarily unavailable service.
    pub(crate) fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, message)
    }

    /// Creates the error of a refusal that exceeds the rate limit of recorded refusals.
    pub(crate) fn too_many_requests(reason: &RefusalReason) -> Self {
        let told = format!(
            "{reason}, and too many calls were refused already. {}",
            reason.caller_advice()
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, code::TOO_MANY_REQUESTS, told)
    }

    /// Creates the error of an unsupported protocol version.
    pub(crate) fn unsupported_version(requested: &str) -> Self {
        let requested: String = requested.chars().take(60).collect();
        let mut failure =
            Self::bad_request(code::UNSUPPORTED_VERSION, "this revision is not spoken here");
        failure.0.data = Some(json!({ "supported": supported_versions(), "requested": requested }));
        failure
    }

    /// Creates an error from the error of a tool server.
    pub(crate) fn from_upstream(code: i64, message: String, data: Option<Value>) -> Self {
        let status = match code {
            code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
            code::PARSE_ERROR
            | code::INVALID_REQUEST
            | code::INVALID_PARAMS
            | code::HEADER_MISMATCH
            | code::MISSING_CAPABILITY
            | code::UNSUPPORTED_VERSION => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        };
        let mut failure = Self::new(status, code, message);
        failure.0.data = data;
        failure
    }

    /// Sets the id of the request that the error answers.
    #[must_use]
    pub(crate) fn with_request_id(mut self, id: Option<Value>) -> Self {
        self.0.id = self.0.id.or(id);
        self
    }

    /// Returns the error code.
    pub(crate) fn error_code(&self) -> i64 {
        self.0.code
    }

    /// Returns the JSON-RPC message.
    pub(crate) fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.0.code, "message": self.0.message });
        if let Some(data) = &self.0.data {
            error["data"] = data.clone();
        }
        json!({ "jsonrpc": "2.0", "id": self.0.id, "error": error })
    }

    /// Builds the HTTP response. In the legacy era, the error of a valid request has the HTTP status of a success.
    pub(crate) fn to_response(&self, era: ProtocolEra) -> Response {
        let RpcErrorParts { status, id, .. } = &*self.0;
        let understood =
            id.is_some() && !matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let waits = *status == StatusCode::TOO_MANY_REQUESTS;
        let status =
            if era == ProtocolEra::Legacy && understood { StatusCode::OK } else { *status };
        let mut response = json_response(status, self.to_json().to_string());
        if waits {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Returns the supported protocol versions.
pub(crate) fn supported_versions() -> Vec<&'static str> {
    std::iter::once(MODERN_VERSION).chain(LEGACY_VERSIONS).collect()
}

/// Builds a JSON response.
pub(crate) fn json_response(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], Body::from(body)).into_response()
}

/// Renders the JSON-RPC message with a result.
pub(crate) fn render_result(id: &Value, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}")
}

/// Builds the result of a refused call, for models and programs. It is a tool result and not a protocol error, so that the model reads it
/// and stops.
pub(crate) fn refusal_result(
    era: ProtocolEra,
    reason: &RefusalReason,
    until: Option<OffsetDateTime>,
    now: OffsetDateTime,
) -> Value {
    let mut text =
        format!("Refused ({}): {reason}. {}", reason.reason_code(), reason.caller_advice());
    let mut refused = refusal_details(reason);
    if let Some(until) = until {
        let wait = (until - now).whole_milliseconds().max(0);
        let at = until.format(&Rfc3339).unwrap_or_default();
        text = format!("{text} Try again at {at}, in {wait} ms.");
        refused["reset_at"] = json!(at);
        refused["retry_after_ms"] = json!(wait);
    }
    error_result(era, &text, &json!({ "refused": refused }))
}

/// Returns the details of a refusal, for programs.
pub(crate) fn refusal_details(reason: &RefusalReason) -> Value {
    json!({
        "code": reason.reason_code(),
        "step": reason.decision_stage().as_str(),
        "reason": reason.to_string(),
        "advice": reason.caller_advice(),
    })
}

/// Builds the result of a failed call.
pub(crate) fn error_result(era: ProtocolEra, text: &str, structured: &Value) -> Value {
    mark_complete(
        era,
        json!({
            "content": [{ "type": "text", "text": text }],
            "structuredContent": structured,
            "isError": true,
        }),
    )
}

/// Returns the output schema that agents see. Native tools have none.
pub(crate) fn output_schema_of(tool: &CatalogueTool) -> Option<&Value> {
    match tool.definition.origin {
        ToolOrigin::Native => None,
        ToolOrigin::Server { .. } => tool.definition.output.as_ref(),
    }
}

/// Adapts a result that replaces a tool's own result. Clients validate all structured content against the tool's output schema, refusals
/// too, so the details move to `_meta`.
pub(crate) fn fit_output_schema(tool: &CatalogueTool, mut result: Value) -> Value {
    if output_schema_of(tool).is_none() {
        return result;
    }
    let told = result.as_object_mut().and_then(|said| said.remove("structuredContent"));
    if let Some(Value::Object(told)) = told {
        let beside = told.into_iter().map(|(key, value)| (format!("cynode/{key}"), value));
        result["_meta"] = Value::Object(beside.collect());
    }
    result
}

/// Builds the result of a native tool. A model also gets it as text; a program reads only the structured content.
pub(crate) fn success_result(era: ProtocolEra, value: Value, reader: ResultReader) -> Value {
    let content = match (&value, reader) {
        (Value::Object(_), ResultReader::Program) => json!([]),
        (Value::String(text), _) => json!([{ "type": "text", "text": text }]),
        (value, _) => json!([{ "type": "text", "text": value.to_string() }]),
    };
    let mut result = json!({ "content": content, "isError": false });
    // Structured content must be an object. Any other value is sent only as text.
    if value.is_object() {
        result["structuredContent"] = value;
    }
    mark_complete(era, result)
}

/// Reader of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultReader {
    /// A model.
    Model,
    /// A program of the installation.
    Program,
}

/// Marks a result as complete, if the era requires it.
pub(crate) fn mark_complete(era: ProtocolEra, mut result: Value) -> Value {
    if era == ProtocolEra::Modern && result.get("resultType").is_none() {
        result["resultType"] = json!("complete");
    }
    result
}

/// Adds the call id, by which the outcome can be looked up later.
pub(crate) fn with_call_id(mut response: Response, call: cynode_core::ids::CallId) -> Response {
    if let Ok(value) = HeaderValue::from_str(&call.to_string()) {
        response.headers_mut().insert("x-cynode-call-id", value);
    }
    response
}

/// Builds the `WWW-Authenticate` challenge, which says where tokens come from.
pub(crate) fn auth_challenge(headers: &HeaderMap, error: &str, scope: Option<&str>) -> HeaderValue {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let safe = host.bytes().all(|b| b.is_ascii_alphanumeric() || b".:-[]".contains(&b));
    let host = if safe { host } else { "localhost" };
    let scope = scope.map(|scope| format!(", scope=\"{scope}\"")).unwrap_or_default();
    let text = format!(
        "Bearer error=\"{error}\"{scope}, resource_metadata=\"http://{host}/.well-known/oauth-protected-resource/mcp\""
    );
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("Bearer"))
}
