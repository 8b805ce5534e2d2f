//! The way to the orchestrator's tools: one gate, which checks and records every call. There is no other.

mod host;

use std::time::Duration;

use cynode_core::trace::TraceId;
use cynode_wire::handoffs::Handoff;
use reqwest::{RequestBuilder, StatusCode, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::desk::{Boxed, Hands, Trouble};

pub use host::{Host, HostError};

/// The revision of the protocol that is spoken: every request stands alone.
const PROTOCOL: &str = "2026-07-28";

/// Longest time of one call.
const PATIENCE: Duration = Duration::from_mins(1);

/// Most bytes of an answer.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// In whose name something is asked, and in which trace.
#[derive(Clone, Debug)]
pub struct Pass {
    token: SecretString,
    trace: Option<TraceId>,
}

impl Pass {
    /// A pass outside any trace.
    pub const fn new(token: SecretString) -> Self {
        Self { token, trace: None }
    }

    /// The pass of a handoff: its own token, its own trace.
    pub fn of(handoff: &Handoff) -> Self {
        let token = handoff.token.0.clone().into();
        Self { token, trace: handoff.context.trace_id.parse().ok() }
    }

    /// The same pass in the trace of a handoff.
    #[must_use]
    pub fn tracing(&self, trace: &str) -> Self {
        Self { token: self.token.clone(), trace: trace.parse().ok() }
    }

    /// Shows the pass with a request.
    pub(crate) fn show(&self, request: RequestBuilder) -> RequestBuilder {
        let request = request.bearer_auth(self.token.expose_secret());
        match self.trace {
            Some(trace) => {
                let span = rand::random::<u64>() | 1;
                request.header("traceparent", format!("00-{trace}-{span:016x}-01"))
            }
            None => request,
        }
    }
}

/// The gate.
#[derive(Clone, Debug)]
pub struct Gate {
    http: reqwest::Client,
    endpoint: String,
}

/// A tool that the gate offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its dotted name, `db.task.get`.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The schema of its arguments.
    pub input: Value,
}

impl Tool {
    /// Its name on the wire and for models, which take no dots.
    pub fn wire_name(&self) -> String {
        on_the_wire(&self.name)
    }
}

/// The name of a tool as it is written on the wire.
fn on_the_wire(name: &str) -> String {
    name.replace('.', "__")
}

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// The gate cannot be reached, or cannot answer now. It may have done what it was asked.
    #[error("the gate cannot be reached: {0}")]
    Away(String),
    /// It said no.
    #[error("refused ({code}): {reason}")]
    Refused {
        /// The name of the reason.
        code: String,
        /// In words.
        reason: String,
    },
    /// It let the call through, and the tool came to nothing.
    #[error("{code}: {detail}")]
    Failed {
        /// The name of the failure.
        code: String,
        /// In words.
        detail: String,
    },
}

impl GateError {
    /// What it means for the work at a desk.
    pub fn trouble(self, tool: &str) -> Trouble {
        match self {
            Self::Away(why) => {
                Trouble::Transient(format!("`{tool}`: the gate cannot be reached: {why}"))
            }
            // These say "in a moment".
            Self::Refused { code, reason }
                if matches!(
                    code.as_str(),
                    "stale" | "no_audit" | "too_fast" | "quota_used" | "token_expired"
                ) =>
            {
                Trouble::Transient(format!("`{tool}` ({code}): {reason}"))
            }
            Self::Refused { code, reason } => {
                Trouble::Refused { tool: tool.to_owned(), code, reason }
            }
            Self::Failed { code, detail } => {
                let told = format!("`{tool}` failed ({code}): {detail}");
                let passes =
                    matches!(code.as_str(), "unavailable" | "internal" | "busy" | "timeout");
                if passes { Trouble::Transient(told) } else { Trouble::Permanent(told) }
            }
        }
    }
}

/// A client for the orchestrator: no proxy, and no way to anywhere that an answer might name.
pub fn http() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .connect_timeout(Duration::from_secs(5))
        .tcp_nodelay(true)
        .build()
}

impl Gate {
    /// The gate of the orchestrator at `base`, its internal port.
    pub fn new(http: reqwest::Client, base: &str) -> Self {
        Self { http, endpoint: format!("{}/mcp", base.trim_end_matches('/')) }
    }

    /// Calls a tool by its dotted name, and gives its structured result, or its text if it has nothing else.
    pub async fn call(
        &self,
        pass: &Pass,
        tool: &str,
        arguments: &impl Serialize,
    ) -> Result<Value, GateError> {
        let raw = self.call_raw(pass, tool, arguments, PATIENCE).await?;
        serde_json::from_str(&raw).map_err(|error| GateError::Away(error.to_string()))
    }

    /// The same, as JSON text, and with a patience of its own.
    async fn call_raw(
        &self,
        pass: &Pass,
        tool: &str,
        arguments: &impl Serialize,
        patience: Duration,
    ) -> Result<String, GateError> {
        let name = on_the_wire(tool);
        let params = json!({ "name": name, "arguments": arguments });
        let result = self.send(pass, "tools/call", Some(&name), params, patience).await?;
        let result: CallResult = serde_json::from_str(result.get())
            .map_err(|error| GateError::Away(error.to_string()))?;
        // Something is wanted first that only a person could give: there is none here.
        if result.kind.as_deref().is_some_and(|kind| kind != "complete") {
            let reason = "the call waits for something that cannot be given here".to_owned();
            return Err(GateError::Refused { code: "needs_input".into(), reason });
        }
        if result.is_error { Err(result.failure()) } else { Ok(result.given()) }
    }

    /// The tools that the pass opens.
    pub async fn tools(&self, pass: &Pass) -> Result<Vec<Tool>, GateError> {
        let result = self.send(pass, "tools/list", None, json!({}), PATIENCE).await?;
        let listed: Listed = serde_json::from_str(result.get())
            .map_err(|error| GateError::Away(error.to_string()))?;
        let tools = listed.tools.into_iter().map(|tool| Tool {
            name: tool.name.replace("__", "."),
            description: tool.description,
            input: tool.input,
        });
        Ok(tools.collect())
    }

    async fn send(
        &self,
        pass: &Pass,
        method: &str,
        name: Option<&str>,
        mut params: Value,
        patience: Duration,
    ) -> Result<Box<RawValue>, GateError> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": PROTOCOL,
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut request = self
            .http
            .post(&self.endpoint)
            .timeout(patience)
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", PROTOCOL)
            .header("mcp-method", method)
            .json(&message);
        if let Some(name) = name {
            request = request.header("mcp-name", name);
        }
        let away = |error: reqwest::Error| GateError::Away(told(error));
        let answer = pass.show(request).send().await.map_err(away)?;
        let status = answer.status();
        let body = bounded(answer, MOST_BYTES).await.map_err(GateError::Away)?;
        read(status, &body)
    }
}

/// What the answer of the gate means.
fn read(status: StatusCode, body: &[u8]) -> Result<Box<RawValue>, GateError> {
    let later = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    let reply: Option<Reply> = serde_json::from_slice(body).ok();
    match reply {
        _ if later => Err(GateError::Away(status.to_string())),
        Some(Reply { result: Some(result), error: None }) if status.is_success() => Ok(result),
        Some(Reply { error: Some(error), .. }) => {
            Err(GateError::Refused { code: error.code.to_string(), reason: error.message })
        }
        _ if status.is_success() => Err(GateError::Away("an answer that cannot be read".into())),
        _ => Err(GateError::Refused {
            code: status.as_u16().to_string(),
            reason: "the gate did not say why".into(),
        }),
    }
}

/// The body of an answer, if it is not too long.
pub(crate) async fn bounded(mut answer: reqwest::Response, most: usize) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(told)? {
        if body.len() + piece.len() > most {
            return Err(format!("the answer has more than {most} bytes"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Why a request failed, without its address.
pub(crate) fn told(error: reqwest::Error) -> String {
    cynode_core::causes::told(&error.without_url())
}

#[derive(Deserialize)]
struct Reply {
    result: Option<Box<RawValue>>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    code: i64,
    message: String,
}

#[derive(Deserialize)]
struct Listed {
    tools: Vec<ListedTool>,
}

#[derive(Deserialize)]
struct ListedTool {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(rename = "inputSchema")]
    input: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallResult {
    #[serde(default)]
    is_error: bool,
    #[serde(rename = "resultType")]
    kind: Option<String>,
    #[serde(rename = "structuredContent")]
    structured: Option<Box<RawValue>>,
    #[serde(default)]
    content: Vec<Content>,
}

#[derive(Deserialize)]
struct Content {
    text: Option<String>,
}

#[derive(Default, Deserialize)]
struct Told {
    error: Option<ToldError>,
    refused: Option<ToldRefusal>,
}

#[derive(Deserialize)]
struct ToldError {
    code: String,
    detail: String,
}

#[derive(Deserialize)]
struct ToldRefusal {
    code: String,
    reason: String,
}

impl CallResult {
    /// What the tool gave, as JSON.
    fn given(self) -> String {
        match self.structured {
            Some(structured) => structured.get().to_owned(),
            None => Value::String(self.text()).to_string(),
        }
    }

    fn text(&self) -> String {
        let texts: Vec<&str> =
            self.content.iter().filter_map(|part| part.text.as_deref()).collect();
        texts.join("\n")
    }

    fn failure(self) -> GateError {
        let structured = self.structured.as_deref().map_or("null", RawValue::get);
        let told: Option<Told> = serde_json::from_str(structured).unwrap_or_default();
        match told.unwrap_or_default() {
            Told { refused: Some(refused), .. } => {
                GateError::Refused { code: refused.code, reason: refused.reason }
            }
            Told { error: Some(error), .. } => {
                GateError::Failed { code: error.code, detail: error.detail }
            }
            Told { error: None, refused: None } => {
                GateError::Failed { code: "failed".into(), detail: self.text() }
            }
        }
    }
}

/// Calls tools with the token of a handoff.
#[derive(Clone, Debug)]
pub struct GateHands {
    gate: Gate,
    pass: Pass,
}

impl GateHands {
    /// The hands of a handoff.
    pub fn of(gate: Gate, handoff: &Handoff) -> Self {
        Self { gate, pass: Pass::of(handoff) }
    }
}

impl Hands for GateHands {
    fn call<'a>(&'a self, tool: &'a str, arguments: Value) -> Boxed<'a, Result<Value, Trouble>> {
        Box::pin(async move {
            let called = self.gate.call(&self.pass, tool, &arguments).await;
            called.map_err(|error| error.trouble(tool))
        })
    }
}
