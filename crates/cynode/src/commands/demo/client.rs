//! The way to the installation: its public interface, as for any client. Whoever is killed on the way, the question is asked again.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

/// How long one try may take.
const TRY: Duration = Duration::from_secs(10);

/// The pause before the next.
const PAUSE: Duration = Duration::from_millis(200);

/// A list, whole.
#[derive(Deserialize)]
pub(super) struct Items<T> {
    pub(super) items: Vec<T>,
}

/// A client of one installation.
#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<SecretString>,
}

/// What came of one try.
enum Tried {
    Answer(Vec<u8>),
    /// Nobody answers, or not now.
    Later,
    /// It will never be taken.
    Refused(StatusCode, String),
}

impl Client {
    pub(super) fn new(base: String) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().connect_timeout(TRY).build();
        Ok(Self { http: http.context("no HTTP client could be made")?, base, token: None })
    }

    /// The same, for somebody who has logged in.
    pub(super) fn with_token(&self, token: SecretString) -> Self {
        Self { token: Some(token), ..self.clone() }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.until_taken(Method::GET, path, None, &[], "application/json").await
    }

    /// Changes something, once: sent again it has the same key.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
        body: &Value,
    ) -> anyhow::Result<T> {
        let bytes = serde_json::to_vec(body)?;
        self.until_taken(Method::POST, path, Some(key), &bytes, "application/json").await
    }

    /// Sets something; sent again nothing changes.
    pub(super) async fn put(&self, path: &str, key: &str, body: &Value) -> anyhow::Result<Value> {
        let bytes = serde_json::to_vec(body)?;
        self.until_taken(Method::PUT, path, Some(key), &bytes, "application/json").await
    }

    /// Sends a file.
    pub(super) async fn send(&self, path: &str, key: &str, bytes: &[u8]) -> anyhow::Result<Value> {
        let kind = "application/octet-stream";
        self.until_taken(Method::PUT, path, Some(key), bytes, kind).await
    }

    /// Asks once; `None` when it was refused or nobody answers.
    pub(super) async fn once(&self, method: Method, path: &str, body: &Value) -> Option<Value> {
        let bytes = serde_json::to_vec(body).ok()?;
        match self.try_once(method, path, None, &bytes, "application/json").await {
            Tried::Answer(bytes) => Some(serde_json::from_slice(&bytes).unwrap_or(Value::Null)),
            Tried::Later | Tried::Refused(..) => None,
        }
    }

    /// What happens from now on; the caller reads it piece by piece.
    pub(super) async fn events(&self, query: &str, after: &str) -> Option<reqwest::Response> {
        let mut request = self.http.get(format!("{}/v1/events?{query}", self.base));
        request = request.header("Last-Event-ID", after);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose_secret());
        }
        let answer = request.send().await.ok()?;
        answer.status().is_success().then_some(answer)
    }

    async fn until_taken<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: &[u8],
        kind: &str,
    ) -> anyhow::Result<T> {
        let mut turn = tokio::time::interval(PAUSE);
        loop {
            turn.tick().await;
            match self.try_once(method.clone(), path, key, body, kind).await {
                Tried::Answer(bytes) => {
                    // Nothing at all is an answer too.
                    let bytes = if bytes.is_empty() { b"null".to_vec() } else { bytes };
                    let read = serde_json::from_slice(&bytes);
                    return read.with_context(|| format!("the answer of {path} cannot be read"));
                }
                Tried::Later => {}
                Tried::Refused(status, why) => {
                    bail!("{method} {path} was refused ({status}): {why}")
                }
            }
        }
    }

    async fn try_once(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: &[u8],
        kind: &str,
    ) -> Tried {
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.base));
        request = request.timeout(TRY);
        if method != Method::GET {
            request = request.header("Content-Type", kind).body(body.to_vec());
        }
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose_secret());
        }
        let Ok(answer) = request.send().await else { return Tried::Later };
        let status = answer.status();
        let Ok(bytes) = answer.bytes().await else { return Tried::Later };
        if status.is_success() {
            return Tried::Answer(bytes.to_vec());
        }
        if status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
        {
            return Tried::Later;
        }
        let problem: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let words = problem["detail"].as_str().or(problem["title"].as_str());
        Tried::Refused(status, words.unwrap_or("no reason was given").to_owned())
    }
}
