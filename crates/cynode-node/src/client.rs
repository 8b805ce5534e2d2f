//! HTTP client of the orchestrator, with retries by exponential backoff and jitter. The node always calls; it is never
//! called.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use cynode_core::{
    ids::{JobId, NodeId},
    nodes::NodeReport,
    releases::{RELEASE_HEADER, Release, ReleaseSkew},
};
use cynode_net::{
    backoff::{Backoff, Jitter},
    tls::ClientTls,
};
use cynode_wire::{
    nodes::{
        AskCertificate, AskChallenge, AskNodeToken, AskPermission, ClaimAssignments, EventsReceipt,
        HeartbeatAnswer, JobAssignments, JobEvents, JoinNode, JoinedNode, NodeCertificate,
        NodeChallenge, NodeHeartbeat, NodeResult, NodeToken, PermissionAnswer, StoredBlob,
        VerifiedNode, VerifyNode,
    },
    platform::problem::ProblemDetails,
};
use reqwest::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::key::NodeKey;

/// Timeout of an ordinary request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Extra time that a long-poll request may take beyond the requested wait.
const LONG_POLL_GRACE: Duration = Duration::from_secs(10);

/// Timeout of each of the two requests that obtain a token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of an upload.
const UPLOAD_TIMEOUT: Duration = Duration::from_mins(15);

/// Backoff between attempts of a request.
pub(crate) const CALL_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5), Jitter::Half);

/// Maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Error of a request to the orchestrator.
#[derive(Debug, thiserror::Error)]
pub enum NodeClientError {
    /// The orchestrator is unreachable or cannot answer now. It may have executed the request.
    #[error("the orchestrator cannot be reached")]
    Unreachable(#[source] anyhow::Error),
    /// The orchestrator rejected the request.
    #[error("refused with {status}: {detail}")]
    Refused {
        /// HTTP status of the response.
        status: u16,
        /// Reason that the orchestrator gave.
        detail: String,
    },
    /// Another process of this node started later. This process may no longer act for the node.
    #[error("another process of this node started later and has taken over")]
    Superseded,
}

impl NodeClientError {
    fn from_unreachable(error: impl Into<anyhow::Error>) -> Self {
        Self::Unreachable(error.into())
    }

    /// Returns whether a retry may help. A superseded process does not stop retrying by itself: the whole process ends.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_) | Self::Superseded | Self::Refused { status: 401 | 403 | 426, .. }
        )
    }

    /// Returns whether the job is no longer assigned to this node.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Refused { status: 404 | 409 | 410, .. })
    }
}

/// Unauthenticated client of the orchestrator, for joining.
#[derive(Clone, Debug)]
pub struct AnonymousClient {
    http: reqwest::Client,
    base: String,
}

impl AnonymousClient {
    /// Creates a client for the orchestrator at `base`, which trusts the roots of the machine.
    pub fn new(base: &str) -> Result<Self, NodeClientError> {
        Self::with_tls(base, &ClientTls::default())
    }

    /// Creates a client for the orchestrator at `base`.
    pub fn with_tls(base: &str, tls: &ClientTls) -> Result<Self, NodeClientError> {
        let builder = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        let http = tls
            .configure_client(builder)
            .map_err(NodeClientError::from_unreachable)?
            .build()
            .map_err(NodeClientError::from_unreachable)?;
        Ok(Self { http, base: base.trim_end_matches('/').to_owned() })
    }

    /// Registers this machine as a node.
    pub async fn join_node(&self, body: &JoinNode) -> Result<JoinedNode, NodeClientError> {
        self.post_json("join", None, body, REQUEST_TIMEOUT).await
    }

    async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        token: Option<&SecretString>,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, NodeClientError> {
        let body = serde_json::to_vec(body).map_err(NodeClientError::from_unreachable)?;
        let request = self.build_request(Method::POST, path, token).timeout(patience);
        send_request(request.header("content-type", "application/json").body(body)).await
    }

    fn build_request(
        &self,
        method: Method,
        path: &str,
        token: Option<&SecretString>,
    ) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}/v1/nodes/{path}", self.base));
        let request = request.header(RELEASE_HEADER, Release::current().to_string());
        match token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }
}

/// Authenticated client of the orchestrator, acting as a node.
#[derive(Debug)]
pub struct NodeClient {
    caller: AnonymousClient,
    tls: ClientTls,
    node: NodeId,
    key: NodeKey,
    session: Mutex<ClientSession>,
    superseded: CancellationToken,
}

/// State of the authenticated session: generation and token.
#[derive(Debug, Default)]
struct ClientSession {
    token: Option<SessionToken>,
    /// Generation of this process; `None` before its first token.
    generation: Option<i64>,
}

#[derive(Clone, Debug)]
struct SessionToken {
    secret: SecretString,
    /// Time from which the token is renewed.
    renew: Instant,
    /// Time at which the token expires.
    ends: Instant,
}

impl NodeClient {
    /// Creates a client for the node that owns this key, which trusts the roots of the machine.
    pub fn new(base: &str, node: NodeId, key: NodeKey) -> Result<Self, NodeClientError> {
        Self::with_tls(base, node, key, ClientTls::default())
    }

    /// Creates a client for the node that owns this key.
    pub fn with_tls(
        base: &str,
        node: NodeId,
        key: NodeKey,
        tls: ClientTls,
    ) -> Result<Self, NodeClientError> {
        let (session, superseded) = (Mutex::default(), CancellationToken::new());
        let caller = AnonymousClient::with_tls(base, &tls)?;
        Ok(Self { caller, tls, node, key, session, superseded })
    }

    /// Returns the trust and the certificate of its connections.
    pub(crate) const fn tls(&self) -> &ClientTls {
        &self.tls
    }

    /// Obtains a client certificate for the node's key.
    pub async fn renew_certificate(&self) -> Result<NodeCertificate, NodeClientError> {
        let (challenge, signature) = self.sign_challenge().await?;
        let body = AskCertificate { node_id: self.node, challenge, signature };
        self.caller.post_json("certificate", None, &body, REQUEST_TIMEOUT).await
    }

    /// Waits until another process of the node has taken over.
    pub async fn wait_superseded(&self) {
        self.superseded.cancelled().await;
    }

    /// Reports the capabilities of the node.
    pub async fn send_report(&self, body: &NodeReport) -> Result<(), NodeClientError> {
        self.post_authorized("report", body, REQUEST_TIMEOUT).await.map(|_: serde_json::Value| ())
    }

    /// Claims jobs by long poll.
    pub async fn claim_jobs(
        &self,
        body: &ClaimAssignments,
    ) -> Result<JobAssignments, NodeClientError> {
        self.post_authorized(
            "claim",
            body,
            Duration::from_millis(body.wait_ms.into()) + LONG_POLL_GRACE,
        )
        .await
    }

    /// Sends a heartbeat with the state of the node's jobs.
    pub async fn send_heartbeat(
        &self,
        body: &NodeHeartbeat,
        patience: Duration,
    ) -> Result<HeartbeatAnswer, NodeClientError> {
        self.post_authorized("heartbeat", body, patience).await
    }

    /// Stores a batch of a job's events.
    pub async fn store_events(
        &self,
        job: JobId,
        body: &JobEvents,
    ) -> Result<EventsReceipt, NodeClientError> {
        self.post_authorized(&format!("jobs/{job}/events"), body, REQUEST_TIMEOUT).await
    }

    /// Requests a person's permission, by long poll.
    pub async fn request_permission(
        &self,
        job: JobId,
        body: &AskPermission,
    ) -> Result<PermissionAnswer, NodeClientError> {
        let patience = Duration::from_millis(body.wait_ms.into()) + LONG_POLL_GRACE;
        self.post_authorized(&format!("jobs/{job}/permission"), body, patience).await
    }

    /// Submits the result of a job.
    pub async fn submit_result(
        &self,
        job: JobId,
        body: &NodeResult,
    ) -> Result<(), NodeClientError> {
        let path = format!("jobs/{job}/result");
        // The orchestrator verifies the commit before it answers, so this call gets the upload timeout.
        self.post_authorized(&path, body, UPLOAD_TIMEOUT).await.map(|_: serde_json::Value| ())
    }

    /// Uploads a file that a job produced.
    pub async fn upload_blob(
        &self,
        job: JobId,
        fencing_token: i64,
        file: &Path,
        blob: &StoredBlob,
    ) -> Result<StoredBlob, NodeClientError> {
        let path = format!("jobs/{job}/blobs/{}?fencing_token={fencing_token}", blob.sha256);
        let mut again = true;
        loop {
            let token = self.current_token().await?;
            let file =
                tokio::fs::File::open(file).await.map_err(NodeClientError::from_unreachable)?;
            let body = reqwest::Body::wrap_stream(tokio_util::io::ReaderStream::new(file));
            let request =
                self.caller.build_request(Method::PUT, &path, Some(&token)).timeout(UPLOAD_TIMEOUT);
            let request = request
                .header("content-type", "application/octet-stream")
                .header("content-length", blob.bytes)
                .body(body);
            match send_request(request).await {
                Err(NodeClientError::Refused { status: 401, .. }) if again => {
                    again = false;
                    self.discard_token(&token).await;
                }
                answer => return answer,
            }
        }
    }

    /// Returns the URL of a job's repository and the credentials for it.
    pub(crate) async fn repository_access(
        &self,
        job: JobId,
    ) -> Result<(String, SecretString), NodeClientError> {
        let url = format!("{}/v1/nodes/jobs/{job}/git", self.caller.base);
        Ok((url, self.current_token().await?))
    }

    /// Verifies that the orchestrator knows the node's key. It creates no token, so a running process of the node is not disturbed.
    pub async fn verify_key(&self) -> Result<VerifiedNode, NodeClientError> {
        let (challenge, signature) = self.sign_challenge().await?;
        let body = VerifyNode { node_id: self.node, challenge, signature };
        self.caller.post_json("verify", None, &body, TOKEN_TIMEOUT).await
    }

    async fn post_authorized<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, NodeClientError> {
        let token = self.current_token().await?;
        match self.caller.post_json(path, Some(&token), body, patience).await {
            Err(NodeClientError::Refused { status: 401, .. }) => {
                self.discard_token(&token).await;
                let token = self.current_token().await?;
                self.caller.post_json(path, Some(&token), body, patience).await
            }
            answer => answer,
        }
    }

    /// Returns the token and renews it before it expires. A token that is still valid is used if the renewal fails.
    async fn current_token(&self) -> Result<SecretString, NodeClientError> {
        let mut session = self.session.lock().await;
        let now = Instant::now();
        let old = session.token.as_ref().filter(|token| now < token.ends);
        if let Some(token) = old.filter(|token| now < token.renew) {
            return Ok(token.secret.clone());
        }
        match self.fetch_token(session.generation).await {
            Ok((token, generation)) => {
                session.generation = Some(generation);
                Ok(session.token.insert(token).secret.clone())
            }
            Err(NodeClientError::Superseded) => {
                self.superseded.cancel();
                Err(NodeClientError::Superseded)
            }
            Err(error) => old.map(|token| token.secret.clone()).ok_or(error),
        }
    }

    async fn fetch_token(
        &self,
        generation: Option<i64>,
    ) -> Result<(SessionToken, i64), NodeClientError> {
        let asked = Instant::now();
        let (challenge, signature) = self.sign_challenge().await?;
        let ask = AskNodeToken { node_id: self.node, challenge, signature, generation };
        let token: NodeToken =
            self.caller.post_json("token", None, &ask, TOKEN_TIMEOUT).await.map_err(|error| {
                match error {
                    NodeClientError::Refused { status: 409, .. } => NodeClientError::Superseded,
                    other => other,
                }
            })?;
        let lasts = Duration::from_secs(token.expires_in_seconds.into());
        let renew = asked + lasts / 3 * 2;
        let secret = token.token.0.into();
        Ok((SessionToken { secret, renew, ends: asked + lasts }, token.generation))
    }

    /// Fetches a challenge from the orchestrator and signs it.
    async fn sign_challenge(&self) -> Result<(String, String), NodeClientError> {
        let ask = AskChallenge { node_id: self.node };
        let given: NodeChallenge =
            self.caller.post_json("challenge", None, &ask, TOKEN_TIMEOUT).await?;
        let signature = self.key.sign_challenge(self.node, &given.challenge);
        Ok((given.challenge, signature))
    }

    /// Discards a rejected token, unless a newer one has replaced it already.
    async fn discard_token(&self, refused: &SecretString) {
        let mut session = self.session.lock().await;
        let held = session.token.as_ref();
        if held.is_some_and(|held| held.secret.expose_secret() == refused.expose_secret()) {
            session.token = None;
        }
    }
}

/// Sends a request and decodes the response.
async fn send_request<T: DeserializeOwned>(
    request: reqwest::RequestBuilder,
) -> Result<T, NodeClientError> {
    let mut answer = request.send().await.map_err(NodeClientError::from_unreachable)?;
    let status = answer.status();
    ensure_release_fits(answer.headers())?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(NodeClientError::from_unreachable)? {
        let chunk: Bytes = chunk;
        if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(NodeClientError::from_unreachable(anyhow::anyhow!(
                "the answer is too large"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    parse_response(status, &body)
}

/// Refuses the answer of an orchestrator that is more than one release away. One that names no release is not refused.
fn ensure_release_fits(headers: &reqwest::header::HeaderMap) -> Result<(), NodeClientError> {
    let Some(named) = headers.get(RELEASE_HEADER) else { return Ok(()) };
    let named = named.to_str().unwrap_or_default();
    let own = Release::current();
    if let Ok(server) = named.parse::<Release>()
        && own.skew_of(server) == ReleaseSkew::Compatible
    {
        return Ok(());
    }
    let detail = format!(
        "the orchestrator is `{named}` and this node is {own}: they work together when they are at most one release apart; install the \
         release of the orchestrator"
    );
    Err(NodeClientError::Refused { status: StatusCode::UPGRADE_REQUIRED.as_u16(), detail })
}

fn parse_response<T: DeserializeOwned>(
    status: StatusCode,
    body: &[u8],
) -> Result<T, NodeClientError> {
    if status.is_success() {
        let body = if body.is_empty() { b"null" } else { body };
        return serde_json::from_slice(body).map_err(NodeClientError::from_unreachable);
    }
    let told = serde_json::from_slice::<ProblemDetails>(body).map(|problem| problem.detail);
    let detail = told.unwrap_or_else(|_| status.to_string());
    let refused = status.is_client_error()
        && !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    if refused {
        Err(NodeClientError::Refused { status: status.as_u16(), detail })
    } else {
        Err(NodeClientError::from_unreachable(anyhow::anyhow!("{status}: {detail}")))
    }
}

/// Retries a call until it gets a final answer. The caller cancels it by dropping the future.
pub(crate) async fn call_with_retry<T, F>(mut call: impl FnMut() -> F) -> Result<T, NodeClientError>
where
    F: Future<Output = Result<T, NodeClientError>>,
{
    let mut backoff = CALL_BACKOFF;
    loop {
        match call().await {
            Err(error) if error.is_retryable() => {
                tracing::debug!(
                    event = "call.failed",
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "a call failed and is retried"
                );
                backoff.wait_next_delay().await;
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
            let read = parse_response::<u8>(status, b"");
            matches!(read, Err(NodeClientError::Unreachable(_)))
        };
        assert!(unreachable(StatusCode::INTERNAL_SERVER_ERROR));
        assert!(unreachable(StatusCode::TOO_MANY_REQUESTS));
        assert!(unreachable(StatusCode::FOUND));
        assert!(!unreachable(StatusCode::CONFLICT));
        assert_eq!(parse_response::<u8>(StatusCode::OK, b"7").unwrap(), 7);
        assert!(parse_response::<()>(StatusCode::NO_CONTENT, b"").is_ok());
        assert!(
            parse_response::<u8>(StatusCode::CONFLICT, b"").is_err_and(|error| error.is_gone())
        );
        assert!(
            parse_response::<u8>(StatusCode::FORBIDDEN, b"")
                .is_err_and(|error| error.is_retryable())
        );
    }

    #[test]
    fn an_orchestrator_more_than_one_release_away_is_refused_and_results_are_kept() {
        let fits = |release: &str| {
            let mut headers = reqwest::header::HeaderMap::new();
            headers.insert(RELEASE_HEADER, release.parse().unwrap());
            ensure_release_fits(&headers)
        };
        assert!(ensure_release_fits(&reqwest::header::HeaderMap::new()).is_ok());
        assert!(fits(&Release::current().to_string()).is_ok());
        for release in ["99.0.0", "next"] {
            let refused = fits(release).unwrap_err();
            assert!(refused.is_retryable() && !refused.is_gone(), "{release}");
            assert!(refused.to_string().contains("install the release"), "{refused}");
        }
    }
}
