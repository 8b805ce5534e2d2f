//! Client of the orchestrator's `workflow.*` tools, through the gateway that every agent uses.

use std::time::Duration;

use cynode_core::{
    ids::TaskId,
    releases::{RELEASE_HEADER, Release},
};
use cynode_net::tls::ClientTls;
use cynode_wire::workflow::{
    LeaseRef, LeaseView, RenewLease, ResumeWorkflow, ResumeWorkflowResult, StartWorkflow,
    StartWorkflowResult, StepCheckpoint, WorkflowPosition,
};
use reqwest::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// MCP protocol revision: every request is stateless.
const MCP_PROTOCOL_VERSION: &str = "2026-07-28";

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Client with the runner's token.
#[derive(Clone, Debug)]
pub struct WorkflowClient {
    http: reqwest::Client,
    endpoint: String,
    token: SecretString,
}

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowClientError {
    /// The orchestrator is unreachable or cannot answer now. It may have executed the request.
    #[error("the orchestrator cannot be reached")]
    Unreachable(#[source] anyhow::Error),
    /// The lease is held by another runner: the call was fenced off.
    #[error("superseded: {0}")]
    Fenced(String),
    /// The task cannot be driven now.
    #[error("not now: {0}")]
    NotNow(String),
    /// The orchestrator rejected the request permanently.
    #[error("refused with {status}: {detail}")]
    Refused {
        /// HTTP status of the response.
        status: u16,
        /// Reason that the orchestrator gave.
        detail: String,
    },
}

impl WorkflowClient {
    /// Creates a client for the orchestrator's internal port at `base`, which trusts the roots of the machine.
    pub fn new(base: &str, token: SecretString) -> Result<Self, WorkflowClientError> {
        Self::with_tls(base, token, &ClientTls::default())
    }

    /// Creates a client for the orchestrator's internal port at `base`.
    pub fn with_tls(
        base: &str,
        token: SecretString,
        tls: &ClientTls,
    ) -> Result<Self, WorkflowClientError> {
        let builder = reqwest::Client::builder()
            .timeout(CALL_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .pool_max_idle_per_host(64);
        let http = tls
            .configure_client(builder)
            .map_err(|error| WorkflowClientError::Unreachable(error.into()))?
            .build()
            .map_err(|error| WorkflowClientError::Unreachable(error.into()))?;
        Ok(Self { http, endpoint: format!("{}/mcp", base.trim_end_matches('/')), token })
    }

    /// Acquires the lease of a task.
    pub async fn start_workflow(
        &self,
        body: &StartWorkflow,
    ) -> Result<StartWorkflowResult, WorkflowClientError> {
        self.call_tool("start", body, None).await
    }

    /// Reads the position of a run.
    pub async fn resume_workflow(
        &self,
        body: &ResumeWorkflow,
    ) -> Result<ResumeWorkflowResult, WorkflowClientError> {
        self.call_tool("resume", body, None).await
    }

    /// Stores the checkpoint of a step.
    pub async fn store_checkpoint(
        &self,
        body: &StepCheckpoint,
        trace: &str,
    ) -> Result<WorkflowPosition, WorkflowClientError> {
        #[derive(Serialize)]
        struct CheckpointArguments<'a> {
            task_id: TaskId,
            checkpoint: &'a StepCheckpoint,
        }
        let arguments = CheckpointArguments { task_id: body.lease.task_id, checkpoint: body };
        self.call_tool("checkpoint", &arguments, Some(trace)).await
    }

    /// Renews a lease.
    pub async fn renew_lease(&self, body: &RenewLease) -> Result<LeaseView, WorkflowClientError> {
        self.call_tool("renew", body, None).await
    }

    /// Releases a lease.
    pub async fn release_lease(&self, body: &LeaseRef) -> Result<(), WorkflowClientError> {
        self.call_tool("release", body, None).await.map(|_: serde_json::Value| ())
    }

    /// Calls a `workflow.*` tool through the gateway.
    async fn call_tool<T: DeserializeOwned>(
        &self,
        verb: &str,
        arguments: &impl Serialize,
        trace: Option<&str>,
    ) -> Result<T, WorkflowClientError> {
        let name = format!("workflow__{verb}");
        let mut request = self
            .http
            .post(&self.endpoint)
            .bearer_auth(self.token.expose_secret())
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", MCP_PROTOCOL_VERSION)
            .header("mcp-method", "tools/call")
            .header("mcp-name", &name)
            .header(RELEASE_HEADER, Release::current().to_string())
            .json(&WorkflowCall::new(&name, arguments));
        if let Some(trace) = trace {
            let span = rand::random::<u64>() | 1;
            request = request.header("traceparent", format!("00-{trace}-{span:016x}-01"));
        }
        let answer =
            request.send().await.map_err(|error| WorkflowClientError::Unreachable(error.into()))?;
        let status = answer.status();
        let body =
            answer.bytes().await.map_err(|error| WorkflowClientError::Unreachable(error.into()))?;
        parse_response(status, &body)
    }
}

/// Decodes the gateway's response.
fn parse_response<T: DeserializeOwned>(
    status: StatusCode,
    body: &[u8],
) -> Result<T, WorkflowClientError> {
    let later = status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    if later {
        return Err(WorkflowClientError::Unreachable(anyhow::anyhow!("{status}")));
    }
    let reply: WorkflowResponse = serde_json::from_slice(body).map_err(|error| {
        if status.is_success() {
            WorkflowClientError::Unreachable(error.into())
        } else {
            WorkflowClientError::Refused { status: status.as_u16(), detail: String::new() }
        }
    })?;
    let result = match reply {
        WorkflowResponse { result: Some(result), .. } => result,
        WorkflowResponse { error, .. } => {
            let detail = error.map(|error| error.message).unwrap_or_default();
            return Err(WorkflowClientError::Refused { status: status.as_u16(), detail });
        }
    };
    let structured = result.structured.as_deref().map_or("null", RawValue::get);
    let unreadable = |error: serde_json::Error| WorkflowClientError::Unreachable(error.into());
    if !result.is_error {
        return serde_json::from_str(structured).map_err(unreadable);
    }
    let told: WorkflowErrorBody = serde_json::from_str(structured).map_err(unreadable)?;
    let (code, detail) = match (told.error, told.refused) {
        (Some(error), _) => (error.code, error.detail),
        (None, Some(refused)) => (refused.code, refused.reason),
        (None, None) => (String::new(), String::new()),
    };
    Err(match code.as_str() {
        "fenced" => WorkflowClientError::Fenced(detail),
        "lease_held" | "not_runnable" | "task_ended" => WorkflowClientError::NotNow(detail),
        "unavailable" | "upstream_unavailable" | "internal" | "overloaded" | "timeout" => {
            WorkflowClientError::Unreachable(anyhow::anyhow!("{code}: {detail}"))
        }
        _ => WorkflowClientError::Refused { status: status.as_u16(), detail },
    })
}

#[derive(Serialize)]
struct WorkflowCall<'a, A> {
    jsonrpc: &'static str,
    id: u32,
    method: &'static str,
    params: WorkflowCallParams<'a, A>,
}

#[derive(Serialize)]
struct WorkflowCallParams<'a, A> {
    name: &'a str,
    arguments: &'a A,
    #[serde(rename = "_meta")]
    meta: WorkflowCallMeta,
}

#[derive(Serialize)]
struct WorkflowCallMeta {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    version: &'static str,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: NoCapabilities,
}

#[derive(Serialize)]
struct NoCapabilities {}

impl<'a, A: Serialize> WorkflowCall<'a, A> {
    const fn new(name: &'a str, arguments: &'a A) -> Self {
        let meta =
            WorkflowCallMeta { version: MCP_PROTOCOL_VERSION, capabilities: NoCapabilities {} };
        Self {
            jsonrpc: "2.0",
            id: 1,
            method: "tools/call",
            params: WorkflowCallParams { name, arguments, meta },
        }
    }
}

#[derive(Deserialize)]
struct WorkflowResponse {
    result: Option<WorkflowCallResult>,
    error: Option<WorkflowRpcError>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkflowCallResult {
    #[serde(default)]
    is_error: bool,
    #[serde(rename = "structuredContent")]
    structured: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct WorkflowRpcError {
    message: String,
}

#[derive(Deserialize)]
struct WorkflowErrorBody {
    error: Option<WorkflowErrorDetail>,
    refused: Option<WorkflowRefusalDetail>,
}

#[derive(Deserialize)]
struct WorkflowErrorDetail {
    code: String,
    detail: String,
}

#[derive(Deserialize)]
struct WorkflowRefusalDetail {
    code: String,
    reason: String,
}
