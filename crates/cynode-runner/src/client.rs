//! The way to the orchestrator.

use std::time::Duration;

use cynode_wire::{
    problem::Problem,
    workflow::{
        Checkpoint, LeaseRef, LeaseView, Position, RenewLease, ResumeWorkflow, Resumed,
        StartWorkflow, Started,
    },
};
use reqwest::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};

/// Longest time of one call.
const PATIENCE: Duration = Duration::from_secs(20);

/// Talks to the orchestrator with the runner's token.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
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
        Ok(Self { http, base: base.trim_end_matches('/').to_owned(), token })
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
        self.call("checkpoint", body, Some(trace)).await
    }

    /// Keeps a lease.
    pub async fn renew(&self, body: &RenewLease) -> Result<LeaseView, ClientError> {
        self.call("renew", body, None).await
    }

    /// Gives a lease back.
    pub async fn release(&self, body: &LeaseRef) -> Result<(), ClientError> {
        self.send("release", body, None).await.map(|_| ())
    }

    async fn call<T: DeserializeOwned>(
        &self,
        verb: &str,
        body: &impl Serialize,
        trace: Option<&str>,
    ) -> Result<T, ClientError> {
        let answer = self.send(verb, body, trace).await?;
        answer.json().await.map_err(|error| ClientError::Unreachable(error.into()))
    }

    async fn send(
        &self,
        verb: &str,
        body: &impl Serialize,
        trace: Option<&str>,
    ) -> Result<reqwest::Response, ClientError> {
        let mut request = self
            .http
            .post(format!("{}/v1/workflow/{verb}", self.base))
            .bearer_auth(self.token.expose_secret())
            .json(body);
        if let Some(trace) = trace {
            let span = rand::random::<u64>() | 1;
            request = request.header("traceparent", format!("00-{trace}-{span:016x}-01"));
        }
        let answer =
            request.send().await.map_err(|error| ClientError::Unreachable(error.into()))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let problem: Option<Problem> = answer.json().await.ok();
        let (code, detail) =
            problem.map(|problem| (problem.code, problem.detail)).unwrap_or_default();
        Err(match (status, code.as_str()) {
            (StatusCode::CONFLICT, "fenced") => ClientError::Fenced(detail),
            (StatusCode::CONFLICT, "lease_held" | "gate" | "ended") => ClientError::NotNow(detail),
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT, _) => {
                ClientError::Unreachable(anyhow::anyhow!("{status}: {detail}"))
            }
            (status, _) if status.is_server_error() => {
                ClientError::Unreachable(anyhow::anyhow!("{status}: {detail}"))
            }
            (status, _) => ClientError::Refused { status: status.as_u16(), detail },
        })
    }
}
