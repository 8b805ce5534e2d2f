//! MCP client of the gateway. Every tool call goes through it, and the gateway checks and records each one.

mod host;

use std::time::Duration;

use cynode_core::{
    releases::{RELEASE_HEADER, Release},
    trace::TraceId,
};
use cynode_net::backoff::{Backoff, Jitter};
use cynode_wire::manager::handoffs::HandoffAssignment;
use reqwest::{RequestBuilder, StatusCode, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::decision_context::{BoxedFuture, DecisionError, OfferedTool, ToolClient};

pub(crate) use host::retry_while_away;
pub use host::{OrchestratorClient, OrchestratorError, PlanningRecorder};

/// MCP protocol revision: every request is stateless.
const MCP_PROTOCOL_VERSION: &str = "2026-07-28";

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_mins(1);

/// Backoff between attempts to reach the orchestrator.
pub(crate) const ORCHESTRATOR_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(200), Duration::from_secs(15), Jitter::Half);

/// Maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// Token and trace of a request.
#[derive(Clone, Debug)]
pub struct RequestCredentials {
    token: SecretString,
    trace: Option<TraceId>,
}

impl RequestCredentials {
    /// Creates credentials without a trace.
    pub const fn new(token: SecretString) -> Self {
        Self { token, trace: None }
    }

    /// Creates the credentials of a handoff: its own token and trace.
    pub fn from_handoff(handoff: &HandoffAssignment) -> Self {
        let token = handoff.token.0.clone().into();
        Self { token, trace: handoff.context.trace_id.parse().ok() }
    }

    /// Returns the same credentials with another trace.
    #[must_use]
    pub fn with_trace(&self, trace: &str) -> Self {
        Self { token: self.token.clone(), trace: trace.parse().ok() }
    }

    /// Adds the credentials to a request.
    pub(crate) fn authorize_request(&self, request: RequestBuilder) -> RequestBuilder {
        let request = request
            .bearer_auth(self.token.expose_secret())
            .header(RELEASE_HEADER, Release::current().to_string());
        match self.trace {
            Some(trace) => {
                let span = rand::random::<u64>() | 1;
                request.header("traceparent", format!("00-{trace}-{span:016x}-01"))
            }
            None => request,
        }
    }
}

/// MCP client of the gateway.
#[derive(Clone, Debug)]
pub struct McpClient {
    http: reqwest::Client,
    endpoint: String,
}

/// Converts a dotted name to its wire form.
pub(crate) fn to_wire_name(name: &str) -> String {
    name.replace('.', "__")
}

/// Error of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum McpError {
    /// The gateway is unreachable or cannot answer now. It may have executed the call.
    #[error("the gate cannot be reached: {0}")]
    Away(String),
    /// The gateway refused the call.
    #[error("refused ({code}): {reason}")]
    Refused {
        /// Code of the refusal.
        code: String,
        /// Reason in words.
        reason: String,
    },
    /// The gateway allowed the call, and the tool failed.
    #[error("{code}: {detail}")]
    Failed {
        /// Code of the failure.
        code: String,
        /// Description of the failure.
        detail: String,
    },
}

impl McpError {
    /// Converts the error for a decision.
    pub fn into_decision_error(self, tool: &str) -> DecisionError {
        match self {
            Self::Away(why) => {
                DecisionError::Transient(format!("`{tool}`: the gate cannot be reached: {why}"))
            }
            // These codes are transient.
            Self::Refused { code, reason }
                if matches!(
                    code.as_str(),
                    "stale_policy"
                        | "audit_unavailable"
                        | "rate_limited"
                        | "quota_exceeded"
                        | "token_expired"
                ) =>
            {
                DecisionError::Transient(format!("`{tool}` ({code}): {reason}"))
            }
            Self::Refused { code, reason } => {
                DecisionError::Refused { tool: tool.to_owned(), code, reason }
            }
            Self::Failed { code, detail } => {
                let told = format!("`{tool}` failed ({code}): {detail}");
                let passes = matches!(
                    code.as_str(),
                    "unavailable"
                        | "upstream_unavailable"
                        | "internal"
                        | "overloaded"
                        | "rate_limited"
                        | "timeout"
                );
                if passes { DecisionError::Transient(told) } else { DecisionError::Permanent(told) }
            }
        }
    }
}

/// Returns the options of an HTTP client for the orchestrator, without proxy and without redirects.
pub(crate) fn http_client_builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .connect_timeout(Duration::from_secs(5))
        .tcp_nodelay(true)
}

/// Builds an HTTP client for the orchestrator, which trusts the roots of the machine.
pub fn build_http_client() -> Result<reqwest::Client, reqwest::Error> {
    http_client_builder().build()
}

impl McpClient {
    /// Creates a client for the orchestrator's internal port at `base`.
    pub fn new(http: reqwest::Client, base: &str) -> Self {
        Self { http, endpoint: format!("{}/mcp", base.trim_end_matches('/')) }
    }

    /// Calls a tool by its dotted name. Returns its structured result, or its text if it has none.
    pub async fn call_tool(
        &self,
        pass: &RequestCredentials,
        tool: &str,
        arguments: &impl Serialize,
    ) -> Result<Value, McpError> {
        let raw = self.call_tool_raw(pass, tool, arguments, CALL_TIMEOUT).await?;
        serde_json::from_str(&raw).map_err(|error| McpError::Away(error.to_string()))
    }

    /// Calls a tool with its own timeout and returns the result as JSON text.
    async fn call_tool_raw(
        &self,
        pass: &RequestCredentials,
        tool: &str,
        arguments: &impl Serialize,
        patience: Duration,
    ) -> Result<String, McpError> {
        let name = to_wire_name(tool);
        let params = json!({ "name": name, "arguments": arguments });
        let result = self.send_request(pass, "tools/call", Some(&name), params, patience).await?;
        let result: ToolCallResult = serde_json::from_str(result.get())
            .map_err(|error| McpError::Away(error.to_string()))?;
        // The tool requests input that only a person could give, and no person is here.
        if result.kind.as_deref().is_some_and(|kind| kind != "complete") {
            let reason = "the call waits for something that cannot be given here".to_owned();
            return Err(McpError::Refused { code: "input_required".into(), reason });
        }
        if result.is_error { Err(result.into_error()) } else { Ok(result.into_json()) }
    }

    /// Lists the tools that the credentials allow.
    pub async fn list_tools(
        &self,
        pass: &RequestCredentials,
    ) -> Result<Vec<OfferedTool>, McpError> {
        let result = self.send_request(pass, "tools/list", None, json!({}), CALL_TIMEOUT).await?;
        let listed: ToolListing = serde_json::from_str(result.get())
            .map_err(|error| McpError::Away(error.to_string()))?;
        let tools = listed.tools.into_iter().map(|tool| OfferedTool {
            name: tool.name.replace("__", "."),
            description: tool.description,
            input: tool.input,
            read_only: tool.annotations.read_only,
        });
        Ok(tools.collect())
    }

    async fn send_request(
        &self,
        pass: &RequestCredentials,
        method: &str,
        name: Option<&str>,
        mut params: Value,
        patience: Duration,
    ) -> Result<Box<RawValue>, McpError> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MCP_PROTOCOL_VERSION,
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut request = self
            .http
            .post(&self.endpoint)
            .timeout(patience)
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", MCP_PROTOCOL_VERSION)
            .header("mcp-method", method)
            .json(&message);
        if let Some(name) = name {
            request = request.header("mcp-name", name);
        }
        let away = |error: reqwest::Error| McpError::Away(describe_request_error(error));
        let answer = pass.authorize_request(request).send().await.map_err(away)?;
        let status = answer.status();
        let body = read_bounded_body(answer, MAX_RESPONSE_BYTES).await.map_err(McpError::Away)?;
        parse_response(status, &body)
    }
}

/// Parses the gateway's response.
fn parse_response(status: StatusCode, body: &[u8]) -> Result<Box<RawValue>, McpError> {
    let later = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    let reply: Option<McpResponse> = serde_json::from_slice(body).ok();
    match reply {
        _ if later => Err(McpError::Away(status.to_string())),
        Some(McpResponse { result: Some(result), error: None }) if status.is_success() => {
            Ok(result)
        }
        Some(McpResponse { error: Some(error), .. }) => {
            Err(McpError::Refused { code: error.code.to_string(), reason: error.message })
        }
        _ if status.is_success() => Err(McpError::Away("an answer that cannot be read".into())),
        _ => Err(McpError::Refused {
            code: status.as_u16().to_string(),
            reason: "the gate did not say why".into(),
        }),
    }
}

/// Reads the body of a response, up to a maximum size.
pub(crate) async fn read_bounded_body(
    mut answer: reqwest::Response,
    most: usize,
) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(describe_request_error)? {
        if body.len() + piece.len() > most {
            return Err(format!("the answer has more than {most} bytes"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Describes a failed request without its URL.
pub(crate) fn describe_request_error(error: reqwest::Error) -> String {
    cynode_core::error_chain::format_error_chain(&error.without_url())
}

#[derive(Deserialize)]
struct McpResponse {
    result: Option<Box<RawValue>>,
    error: Option<McpRpcError>,
}

#[derive(Deserialize)]
struct McpRpcError {
    code: i64,
    message: String,
}

#[derive(Deserialize)]
struct ToolListing {
    tools: Vec<ToolListingEntry>,
}

#[derive(Deserialize)]
struct ToolListingEntry {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(rename = "inputSchema")]
    input: Value,
    #[serde(default)]
    annotations: ToolListingHints,
}

#[derive(Default, Deserialize)]
struct ToolListingHints {
    #[serde(default, rename = "readOnlyHint")]
    read_only: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolCallResult {
    #[serde(default)]
    is_error: bool,
    #[serde(rename = "resultType")]
    kind: Option<String>,
    #[serde(rename = "structuredContent")]
    structured: Option<Box<RawValue>>,
    #[serde(default)]
    content: Vec<ToolContent>,
}

#[derive(Deserialize)]
struct ToolContent {
    text: Option<String>,
}

#[derive(Default, Deserialize)]
struct ToolErrorBody {
    error: Option<ToolErrorDetail>,
    refused: Option<ToolRefusalDetail>,
}

#[derive(Deserialize)]
struct ToolErrorDetail {
    code: String,
    detail: String,
}

#[derive(Deserialize)]
struct ToolRefusalDetail {
    code: String,
    reason: String,
}

impl ToolCallResult {
    /// Returns the tool's result as JSON.
    fn into_json(self) -> String {
        match self.structured {
            Some(structured) => structured.get().to_owned(),
            None => Value::String(self.joined_text()).to_string(),
        }
    }

    fn joined_text(&self) -> String {
        let texts: Vec<&str> =
            self.content.iter().filter_map(|part| part.text.as_deref()).collect();
        texts.join("\n")
    }

    fn into_error(self) -> McpError {
        let structured = self.structured.as_deref().map_or("null", RawValue::get);
        let told: Option<ToolErrorBody> = serde_json::from_str(structured).unwrap_or_default();
        match told.unwrap_or_default() {
            ToolErrorBody { refused: Some(refused), .. } => {
                McpError::Refused { code: refused.code, reason: refused.reason }
            }
            ToolErrorBody { error: Some(error), .. } => {
                McpError::Failed { code: error.code, detail: error.detail }
            }
            ToolErrorBody { error: None, refused: None } => {
                McpError::Failed { code: "failed".into(), detail: self.joined_text() }
            }
        }
    }
}

/// Tool client with the token of a handoff.
#[derive(Clone, Debug)]
pub struct McpToolClient {
    gate: McpClient,
    pass: RequestCredentials,
}

impl McpToolClient {
    /// Creates the tool client of a handoff.
    pub fn for_handoff(gate: McpClient, handoff: &HandoffAssignment) -> Self {
        Self { gate, pass: RequestCredentials::from_handoff(handoff) }
    }
}

impl ToolClient for McpToolClient {
    fn list_tools(&self) -> BoxedFuture<'_, Result<Vec<OfferedTool>, DecisionError>> {
        Box::pin(async move {
            let listed = self.gate.list_tools(&self.pass).await;
            listed.map_err(|error| error.into_decision_error("tools/list"))
        })
    }

    fn call_tool<'a>(
        &'a self,
        tool: &'a str,
        arguments: Value,
    ) -> BoxedFuture<'a, Result<Value, DecisionError>> {
        Box::pin(async move {
            let called = self.gate.call_tool(&self.pass, tool, &arguments).await;
            called.map_err(|error| error.into_decision_error(tool))
        })
    }
}
