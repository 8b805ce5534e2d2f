//! HTTP receivers of notifications.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use data_encoding::BASE64;
use ring::hmac;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Serves a router on a port until the token is cancelled.
pub(super) fn serve(listener: TcpListener, router: Router, stop: &CancellationToken) {
    let until = stop.clone().cancelled_owned();
    TaskTracker::new().spawn(async move {
        let _ = axum::serve(listener, router).with_graceful_shutdown(until).await;
    });
}

/// A received webhook request.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookRequest {
    /// The header `webhook-id`.
    pub id: String,
    /// The header `webhook-timestamp`.
    pub timestamp: i64,
    /// Number of signatures that are valid for one of the receiver's secrets.
    pub verified: usize,
    /// Number of signatures.
    pub signatures: usize,
    /// The JSON body.
    pub body: Value,
    /// Status of the response.
    pub answered: u16,
}

struct WebhookState {
    secrets: Mutex<Vec<String>>,
    answers: Mutex<VecDeque<(u16, Option<u64>)>>,
    messages: watch::Sender<Vec<WebhookRequest>>,
}

/// A webhook receiver. It verifies signatures with another library than the one that creates them.
pub struct WebhookInbox {
    /// Listen address.
    pub address: SocketAddr,
    shared: Arc<WebhookState>,
    stop: CancellationToken,
}

impl WebhookInbox {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        Self::over(TcpListener::bind("127.0.0.1:0").await.unwrap(), &[])
    }

    /// Starts it on a given listener.
    pub fn over(listener: TcpListener, trusted: &[&str]) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(WebhookState {
            secrets: Mutex::new(trusted.iter().map(|&it| it.to_owned()).collect()),
            answers: Mutex::default(),
            messages: watch::Sender::default(),
        });
        let stop = CancellationToken::new();
        let router = Router::new().route("/hook", post(take)).with_state(shared.clone());
        serve(listener, router, &stop);
        Self { address, shared, stop }
    }

    /// Returns the webhook URL.
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Adds a trusted secret.
    pub fn trust(&self, secret: &str) {
        self.shared.secrets.lock().unwrap().push(secret.to_owned());
    }

    /// Queues this status, with a `retry-after`, for the next request without one.
    pub fn answer(&self, status: u16, retry_after: Option<u64>) {
        self.shared.answers.lock().unwrap().push_back((status, retry_after));
    }

    /// Returns all requests, in order.
    pub fn messages(&self) -> Vec<WebhookRequest> {
        self.shared.messages.borrow().clone()
    }

    /// Waits for this number of requests.
    pub async fn until(&self, count: usize) -> Vec<WebhookRequest> {
        let mut messages = self.shared.messages.subscribe();
        messages.wait_for(|messages| messages.len() >= count).await.unwrap().clone()
    }
}

impl Drop for WebhookInbox {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn take(
    State(shared): State<Arc<WebhookState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = |name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let (id, timestamp, signatures) =
        (text("webhook-id"), text("webhook-timestamp"), text("webhook-signature"));
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(&body);
    let secrets = shared.secrets.lock().unwrap().clone();
    let right = |signature: &&str| {
        let Some(tag) = signature.strip_prefix("v1,") else { return false };
        let Ok(tag) = BASE64.decode(tag.as_bytes()) else { return false };
        secrets.iter().any(|secret| {
            let key = BASE64.decode(secret.trim_start_matches("whsec_").as_bytes()).unwrap();
            hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, &key), &signed, &tag).is_ok()
        })
    };
    let answer = shared.answers.lock().unwrap().pop_front();
    let (status, after) = answer.unwrap_or((204, None));
    let hook = WebhookRequest {
        timestamp: timestamp.parse().unwrap_or_default(),
        verified: signatures.split(' ').filter(right).count(),
        signatures: signatures.split(' ').count(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
        answered: status,
        id,
    };
    shared.messages.send_modify(|messages| messages.push(hook));
    let mut response = StatusCode::from_u16(status).unwrap().into_response();
    if let Some(after) = after {
        response.headers_mut().insert(header::RETRY_AFTER, after.into());
    }
    if (300..400).contains(&status) {
        response.headers_mut().insert(header::LOCATION, "/elsewhere".parse().unwrap());
    }
    response
}

/// A published ntfy message.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The `authorization` header.
    pub authorization: Option<String>,
    /// The JSON body.
    pub body: Value,
}

struct Topics {
    token: Option<String>,
    messages: watch::Sender<Vec<Published>>,
}

/// An ntfy server.
pub struct NtfyInbox {
    address: SocketAddr,
    shared: Arc<Topics>,
    stop: CancellationToken,
}

impl NtfyInbox {
    /// Starts it on a free port. If there is a token, publishing requires it.
    pub async fn start(token: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let token = token.map(str::to_owned);
        let shared = Arc::new(Topics { token, messages: watch::Sender::default() });
        let stop = CancellationToken::new();
        let router = Router::new().route("/", post(publish)).with_state(shared.clone());
        serve(listener, router, &stop);
        Self { address, shared, stop }
    }

    /// Returns the URL of a topic.
    pub fn topic(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// Returns all published messages, in order.
    pub fn messages(&self) -> Vec<Published> {
        self.shared.messages.borrow().clone()
    }

    /// Waits for this number of messages.
    pub async fn until(&self, count: usize) -> Vec<Published> {
        let mut messages = self.shared.messages.subscribe();
        messages.wait_for(|messages| messages.len() >= count).await.unwrap().clone()
    }
}

impl Drop for NtfyInbox {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn publish(State(shared): State<Arc<Topics>>, headers: HeaderMap, body: Bytes) -> Response {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let authorization = shown.map(str::to_owned);
    let wanted = shared.token.as_ref().map(|token| format!("Bearer {token}"));
    if wanted.is_some() && wanted != authorization {
        let told = json!({ "code": 40301, "http": 403, "error": "forbidden" });
        return (StatusCode::FORBIDDEN, told.to_string()).into_response();
    }
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    // Same limits as the real server: a valid topic, at most three buttons, and a message that does not become a file.
    let topic =
        body["topic"].as_str().is_some_and(|topic| !topic.is_empty() && !topic.contains('/'));
    let few = body["actions"].as_array().is_none_or(|actions| actions.len() <= 3);
    let short = body["message"].as_str().is_some_and(|message| message.len() <= 4096);
    if !(topic && few && short) {
        return (StatusCode::BAD_REQUEST, "{\"code\":40024}").into_response();
    }
    let told = json!({ "id": "sPs71M8A2T", "event": "message", "topic": body["topic"] });
    shared.messages.send_modify(|messages| messages.push(Published { authorization, body }));
    told.to_string().into_response()
}
