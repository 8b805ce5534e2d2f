//! The way to the orchestrator. The node always calls; nobody calls the node.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use cynode_core::ids::{JobId, NodeId};
use cynode_wire::{
    nodes::{
        AskChallenge, AskNodeToken, AskPermission, Assignments, ClaimAssignments, EventsStored,
        Heartbeat, HeartbeatAnswer, JobEvents, JoinNode, JoinedNode, NodeChallenge, NodeReport,
        NodeResult, NodeToken, Permission, StoredBlob,
    },
    problem::Problem,
};
use reqwest::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Mutex, time::Instant};

use crate::key::Key;

/// Longest time of an ordinary call.
const PATIENCE: Duration = Duration::from_secs(20);

/// How much longer than asked a call that waits may take.
const SLACK: Duration = Duration::from_secs(10);

/// Longest time of an upload.
const UPLOAD: Duration = Duration::from_mins(15);

/// Most bytes of an answer.
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The orchestrator cannot be reached, or cannot answer now. It may have done what it was asked.
    #[error("the orchestrator cannot be reached")]
    Unreachable(#[source] anyhow::Error),
    /// It will not do what it was asked.
    #[error("refused with {status}: {detail}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Why.
        detail: String,
    },
}

impl ClientError {
    fn unreachable(error: impl Into<anyhow::Error>) -> Self {
        Self::Unreachable(error.into())
    }

    /// Whether asking again may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Refused { status: 401 | 403, .. })
    }

    /// Whether the job is not ours any more.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Refused { status: 404 | 409 | 410, .. })
    }
}

/// Talks to the orchestrator without being anybody: for joining.
#[derive(Clone, Debug)]
pub struct Caller {
    http: reqwest::Client,
    base: String,
}

impl Caller {
    /// A caller of the orchestrator at `base`.
    pub fn new(base: &str) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(ClientError::unreachable)?;
        Ok(Self { http, base: base.trim_end_matches('/').to_owned() })
    }

    /// Makes this machine a node.
    pub async fn join(&self, body: &JoinNode) -> Result<JoinedNode, ClientError> {
        self.post("join", None, body, PATIENCE).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        token: Option<&SecretString>,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::unreachable)?;
        let request = self.request(Method::POST, path, token).timeout(patience);
        answer(request.header("content-type", "application/json").body(body)).await
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        token: Option<&SecretString>,
    ) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}/v1/nodes/{path}", self.base));
        match token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }
}

/// Talks to the orchestrator as a node.
#[derive(Debug)]
pub struct Client {
    caller: Caller,
    node: NodeId,
    key: Key,
    token: Mutex<Option<Token>>,
}

#[derive(Clone, Debug)]
struct Token {
    secret: SecretString,
    /// From when on a new one is wanted.
    renew: Instant,
    /// From when on it is of no use.
    ends: Instant,
}

impl Client {
    /// A client for the node that has this key.
    pub fn new(base: &str, node: NodeId, key: Key) -> Result<Self, ClientError> {
        Ok(Self { caller: Caller::new(base)?, node, key, token: Mutex::new(None) })
    }

    /// Says what the node can do.
    pub async fn report(&self, body: &NodeReport) -> Result<(), ClientError> {
        self.post("report", body, PATIENCE).await.map(|_: serde_json::Value| ())
    }

    /// Asks for jobs.
    pub async fn claim(&self, body: &ClaimAssignments) -> Result<Assignments, ClientError> {
        self.post("claim", body, Duration::from_millis(body.wait_ms.into()) + SLACK).await
    }

    /// Says what the node is at.
    pub async fn heartbeat(
        &self,
        body: &Heartbeat,
        patience: Duration,
    ) -> Result<HeartbeatAnswer, ClientError> {
        self.post("heartbeat", body, patience).await
    }

    /// Stores events of a job.
    pub async fn events(&self, job: JobId, body: &JobEvents) -> Result<EventsStored, ClientError> {
        self.post(&format!("jobs/{job}/events"), body, PATIENCE).await
    }

    /// Asks a person.
    pub async fn permission(
        &self,
        job: JobId,
        body: &AskPermission,
    ) -> Result<Permission, ClientError> {
        let patience = Duration::from_millis(body.wait_ms.into()) + SLACK;
        self.post(&format!("jobs/{job}/permission"), body, patience).await
    }

    /// Says what came of a job.
    pub async fn result(&self, job: JobId, body: &NodeResult) -> Result<(), ClientError> {
        let path = format!("jobs/{job}/result");
        // The orchestrator looks at the commit before it answers.
        self.post(&path, body, UPLOAD).await.map(|_: serde_json::Value| ())
    }

    /// Stores a file that came out of a job.
    pub async fn blob(
        &self,
        job: JobId,
        fencing_token: i64,
        file: &Path,
        blob: &StoredBlob,
    ) -> Result<StoredBlob, ClientError> {
        let path = format!("jobs/{job}/blobs/{}?fencing_token={fencing_token}", blob.sha256);
        let mut again = true;
        loop {
            let token = self.token().await?;
            let file = tokio::fs::File::open(file).await.map_err(ClientError::unreachable)?;
            let body = reqwest::Body::wrap_stream(tokio_util::io::ReaderStream::new(file));
            let request = self.caller.request(Method::PUT, &path, Some(&token)).timeout(UPLOAD);
            let request = request
                .header("content-type", "application/octet-stream")
                .header("content-length", blob.bytes)
                .body(body);
            match answer(request).await {
                Err(ClientError::Refused { status: 401, .. }) if again => {
                    again = false;
                    self.forget(&token).await;
                }
                answer => return answer,
            }
        }
    }

    /// The address of a job's repository, and what opens it.
    pub(crate) async fn repository(
        &self,
        job: JobId,
    ) -> Result<(String, SecretString), ClientError> {
        let url = format!("{}/v1/nodes/jobs/{job}/git", self.caller.base);
        Ok((url, self.token().await?))
    }

    /// Gets a token, to see whether the orchestrator knows the node.
    pub async fn check(&self) -> Result<(), ClientError> {
        self.token().await.map(drop)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let token = self.token().await?;
        match self.caller.post(path, Some(&token), body, patience).await {
            Err(ClientError::Refused { status: 401, .. }) => {
                self.forget(&token).await;
                let token = self.token().await?;
                self.caller.post(path, Some(&token), body, patience).await
            }
            answer => answer,
        }
    }

    /// The token, renewed before it ends. One that still works is used when no new one is to be had.
    async fn token(&self) -> Result<SecretString, ClientError> {
        let mut held = self.token.lock().await;
        let now = Instant::now();
        let old = held.as_ref().filter(|token| now < token.ends);
        if let Some(token) = old.filter(|token| now < token.renew) {
            return Ok(token.secret.clone());
        }
        match self.fetch().await {
            Ok(token) => Ok(held.insert(token).secret.clone()),
            Err(error) => old.map(|token| token.secret.clone()).ok_or(error),
        }
    }

    async fn fetch(&self) -> Result<Token, ClientError> {
        let asked = Instant::now();
        let patience = Duration::from_secs(5);
        let challenge: NodeChallenge = self
            .caller
            .post("challenge", None, &AskChallenge { node_id: self.node }, patience)
            .await?;
        let signature = self.key.answer(self.node, &challenge.challenge);
        let ask = AskNodeToken { node_id: self.node, challenge: challenge.challenge, signature };
        let token: NodeToken = self.caller.post("token", None, &ask, patience).await?;
        let lasts = Duration::from_secs(token.expires_in_seconds.into());
        Ok(Token {
            secret: token.token.0.into(),
            renew: asked + lasts / 3 * 2,
            ends: asked + lasts,
        })
    }

    /// Drops a token that was refused, unless somebody has a newer one already.
    async fn forget(&self, refused: &SecretString) {
        let mut held = self.token.lock().await;
        if held.as_ref().is_some_and(|held| held.secret.expose_secret() == refused.expose_secret())
        {
            *held = None;
        }
    }
}

/// Sends a request and reads what the answer means.
async fn answer<T: DeserializeOwned>(request: reqwest::RequestBuilder) -> Result<T, ClientError> {
    let mut answer = request.send().await.map_err(ClientError::unreachable)?;
    let status = answer.status();
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(ClientError::unreachable)? {
        let chunk: Bytes = chunk;
        if body.len() + chunk.len() > MOST_BYTES {
            return Err(ClientError::unreachable(anyhow::anyhow!("the answer is too large")));
        }
        body.extend_from_slice(&chunk);
    }
    read(status, &body)
}

fn read<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, ClientError> {
    if status.is_success() {
        let body = if body.is_empty() { b"null" } else { body };
        return serde_json::from_slice(body).map_err(ClientError::unreachable);
    }
    let told = serde_json::from_slice::<Problem>(body).map(|problem| problem.detail);
    let detail = told.unwrap_or_else(|_| status.to_string());
    let refused = status.is_client_error()
        && !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    if refused {
        Err(ClientError::Refused { status: status.as_u16(), detail })
    } else {
        Err(ClientError::unreachable(anyhow::anyhow!("{status}: {detail}")))
    }
}

/// Pauses between tries: short at first, never long, never in step with others.
#[derive(Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_secs(5);

    /// The next pause.
    fn next(&mut self) -> Duration {
        let full = Self::FIRST.saturating_mul(1 << self.0.min(10)).min(Self::MOST);
        self.0 = self.0.saturating_add(1);
        full.mul_f64(rand::random_range(0.5..1.0))
    }

    /// Lets it pass.
    pub(crate) async fn pause(&mut self) {
        let end = Instant::now() + self.next();
        tokio::time::sleep_until(end).await;
    }
}

/// Calls until there is an answer that stays. It is for the caller to give up: by dropping it.
pub(crate) async fn until_answered<T, F>(mut call: impl FnMut() -> F) -> Result<T, ClientError>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let mut backoff = Backoff::default();
    loop {
        match call().await {
            Err(error) if error.may_pass() => {
                tracing::debug!(
                    event = "call.failed",
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "asked again"
                );
                backoff.pause().await;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_means_is_told_by_its_status() {
        let unreachable = |status| {
            let read = read::<u8>(status, b"");
            matches!(read, Err(ClientError::Unreachable(_)))
        };
        assert!(unreachable(StatusCode::INTERNAL_SERVER_ERROR));
        assert!(unreachable(StatusCode::TOO_MANY_REQUESTS));
        assert!(unreachable(StatusCode::FOUND));
        assert!(!unreachable(StatusCode::CONFLICT));
        assert_eq!(read::<u8>(StatusCode::OK, b"7").unwrap(), 7);
        assert!(read::<()>(StatusCode::NO_CONTENT, b"").is_ok());
        assert!(read::<u8>(StatusCode::CONFLICT, b"").is_err_and(|error| error.is_gone()));
        assert!(read::<u8>(StatusCode::FORBIDDEN, b"").is_err_and(|error| error.may_pass()));
    }

    #[test]
    fn pauses_grow_and_stay_below_five_seconds() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..50).map(|_| backoff.next()).collect();
        assert!(pauses[0] <= Duration::from_millis(100));
        assert!(pauses.iter().all(|pause| *pause <= Backoff::MOST));
        assert!(pauses[49] >= Backoff::MOST / 2);
    }
}
