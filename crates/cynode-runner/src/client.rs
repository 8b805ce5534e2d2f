//! The way to the orchestrator: its tools `workflow.*`, through the gate that every agent passes.

use std::time::Duration;

use cynode_core::ids::TaskId;
use cynode_wire::workflow::{
    Checkpoint, LeaseRef, LeaseView, Position, RenewLease, ResumeWorkflow, Resumed, StartWorkflow,
    Started,
};
use reqwest::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// The revision of the protocol that is spoken: every request stands alone.
const PROTOCOL: &str = "2026-07-28";

/// Longest time of one call.
const PATIENCE: Duration = Duration::from_secs(20);

/// Talks to the orchestrator with the runner's token.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    endpoint: String,
    token: SecretString,
}

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The orchestrator cannot be reached, or cannot answer now. It may have done what it was asked.
    #[error("the orchestrator cannot be reached")]
    Unreachable(#[source] anyhow::Error),
    /// The lease is not ours any more.
    #[error("superseded: {0}")]
    Fenced(String),
    /// The task may not be driven now.
    #[error("not now: {0}")]
    NotNow(String),
    /// It will never do what it was asked.
    #[error("refused with {status}: {detail}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Why.
        detail: String,
    },
}

impl Client {
    /// A client of the orchestrator at `base`, its internal port.
    pub fn new(base: &str, token: SecretString) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder()
            .timeout(PATIENCE)
            .no_proxy()
            .pool_max_idle_per_host(64)
            .build()
            .map_err(|error| ClientError::Unreachable(error.into()))?;
        Ok(Self { http, endpoint: format!("{}/mcp", base.trim_end_matches('/')), token })
    }

    /// Takes the lease of a task.
    pub async fn start(&self, body: &StartWorkflow) -> Result<Started, ClientError> {
        self.call("start", body, None).await
    }

    /// Asks where a run stands.
    pub async fn resume(&self, body: &ResumeWorkflow) -> Result<Resumed, ClientError> {
        self.call("resume", body, None).await
    }

    /// Stores what a node did.
    pub async fn checkpoint(
        &self,
        body: &Checkpoint,
        trace: &str,
    ) -> Result<Position, ClientError> {
        #[derive(Serialize)]
        struct Arguments<'a> {
            task_id: TaskId,
            checkpoint: &'a Checkpoint,
        }
        let arguments = Arguments { task_id: body.lease.task_id, checkpoint: body };
        self.call("checkpoint", &arguments, Some(trace)).await
    }

    /// Keeps a lease.
    pub async fn renew(&self, body: &RenewLease) -> Result<LeaseView, ClientError> {
        self.call("renew", body, None).await
    }

    /// Gives a lease back.
    pub async fn release(&self, body: &LeaseRef) -> Result<(), ClientError> {
        self.call("release", body, None).await.map(|_: serde_json::Value| ())
    }

    /// Calls one of the tools `workflow.*`, through the gate like anybody.
    async fn call<T: DeserializeOwned>(
        &self,
        verb: &str,
        arguments: &impl Serialize,
        trace: Option<&str>,
    ) -> Result<T, ClientError> {
        let name = format!("workflow__{verb}");
        let mut request = self
            .http
            .post(&self.endpoint)
            .bearer_auth(self.token.expose_secret())
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", PROTOCOL)
            .header("mcp-method", "tools/call")
            .header("mcp-name", &name)
            .json(&Message::new(&name, arguments));
        if let Some(trace) = trace {
            let span = rand::random::<u64>() | 1;
            request = request.header("traceparent", format!("00-{trace}-{span:016x}-01"));
        }
        let answer =
            request.send().await.map_err(|error| ClientError::Unreachable(error.into()))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| ClientError::Unreachable(error.into()))?;
        read(status, &body)
    }
}

/// What the answer of the gate means.
fn read<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, ClientError> {
    let later = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    if later {
        return Err(ClientError::Unreachable(anyhow::anyhow!("{status}")));
    }
    let reply: Reply = serde_json::from_slice(body).map_err(|error| {
        if status.is_success() {
            ClientError::Unreachable(error.into())
        } else {
            ClientError::Refused { status: status.as_u16(), detail: String::new() }
        }
    })?;
    let result = match reply {
        Reply { result: Some(result), .. } => result,
        Reply { error, .. } => {
            let detail = error.map(|error| error.message).unwrap_or_default();
            return Err(ClientError::Refused { status: status.as_u16(), detail });
        }
    };
    let structured = result.structured.as_deref().map_or("null", RawValue::get);
    let unreadable = |error: serde_json::Error| ClientError::Unreachable(error.into());
    if !result.is_error {
        return serde_json::from_str(structured).map_err(unreadable);
    }
    let told: Told = serde_json::from_str(structured).map_err(unreadable)?;
    let (code, detail) = match (told.error, told.refused) {
        (Some(error), _) => (error.code, error.detail),
        (None, Some(refused)) => (refused.code, refused.reason),
        (None, None) => (String::new(), String::new()),
    };
    Err(match code.as_str() {
        "fenced" => ClientError::Fenced(detail),
        "lease_held" | "gate" | "ended" => ClientError::NotNow(detail),
        "unavailable" | "internal" | "busy" | "timeout" => {
            ClientError::Unreachable(anyhow::anyhow!("{code}: {detail}"))
        }
        _ => ClientError::Refused { status: status.as_u16(), detail },
    })
}

#[derive(Serialize)]
struct Message<'a, A> {
    jsonrpc: &'static str,
    id: u32,
    method: &'static str,
    params: Params<'a, A>,
}

#[derive(Serialize)]
struct Params<'a, A> {
    name: &'a str,
    arguments: &'a A,
    #[serde(rename = "_meta")]
    meta: Meta,
}

#[derive(Serialize)]
struct Meta {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    version: &'static str,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Nothing,
}

#[derive(Serialize)]
struct Nothing {}

impl<'a, A: Serialize> Message<'a, A> {
    const fn new(name: &'a str, arguments: &'a A) -> Self {
        let meta = Meta { version: PROTOCOL, capabilities: Nothing {} };
        Self {
            jsonrpc: "2.0",
            id: 1,
            method: "tools/call",
            params: Params { name, arguments, meta },
        }
    }
}

#[derive(Deserialize)]
struct Reply {
    result: Option<CallResult>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallResult {
    #[serde(default)]
    is_error: bool,
    #[serde(rename = "structuredContent")]
    structured: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Failure {
    message: String,
}

#[derive(Deserialize)]
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
