//! A key management service on loopback with the transit protocol of Vault. It keeps what it encrypts in memory.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use data_encoding::BASE64;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The token that the service takes.
pub const VAULT_TOKEN: &str = "hvs.a-token-of-a-test";

#[derive(Default)]
struct VaultState {
    latest: u64,
    min_decryption: u64,
    /// Version, associated data and plaintext, by the number in the ciphertext.
    wrapped: Vec<(u64, String, String)>,
    /// Requests that were answered, as method and path.
    requests: Vec<String>,
}

/// A key management service.
pub struct FakeVault {
    /// Listen address.
    pub address: SocketAddr,
    state: Arc<Mutex<VaultState>>,
    stop: CancellationToken,
}

impl FakeVault {
    /// Starts it on a free port, with a key of version 1.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let first = VaultState { latest: 1, min_decryption: 1, ..VaultState::default() };
        let state = Arc::new(Mutex::new(first));
        let router = Router::new()
            .route("/v1/transit/encrypt/{key}", post(encrypt))
            .route("/v1/transit/decrypt/{key}", post(decrypt))
            .route("/v1/transit/keys/{key}", get(read_key))
            .route("/v1/transit/keys/{key}/rotate", post(rotate))
            .route("/v1/transit/keys/{key}/config", post(configure))
            .with_state(state.clone());
        let stop = CancellationToken::new();
        let until = stop.clone().cancelled_owned();
        TaskTracker::new().spawn(async move {
            let _ = axum::serve(listener, router).with_graceful_shutdown(until).await;
        });
        Self { address, state, stop }
    }

    /// Returns the address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the latest version, and the first that still opens.
    pub fn versions(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap();
        (state.latest, state.min_decryption)
    }

    /// Returns the requests that were answered.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }
}

impl Drop for FakeVault {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

type Shared = State<Arc<Mutex<VaultState>>>;

fn is_permitted(headers: &HeaderMap) -> bool {
    headers.get("x-vault-token").is_some_and(|token| token == VAULT_TOKEN)
}

fn refuse(status: StatusCode) -> Response {
    (status, axum::Json(json!({ "errors": ["refused"] }))).into_response()
}

async fn encrypt(State(state): Shared, headers: HeaderMap, body: Bytes) -> Response {
    if !is_permitted(&headers) {
        return refuse(StatusCode::FORBIDDEN);
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let mut state = state.lock().unwrap();
    state.requests.push("encrypt".to_owned());
    let version = body["key_version"].as_u64().unwrap_or(state.latest);
    if version > state.latest || version < state.min_decryption {
        return refuse(StatusCode::BAD_REQUEST);
    }
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let number = state.wrapped.len();
    state.wrapped.push((version, text("associated_data"), text("plaintext")));
    let ciphertext = format!("vault:v{version}:{}", BASE64.encode(&number.to_be_bytes()));
    axum::Json(json!({ "data": { "ciphertext": ciphertext, "key_version": version } }))
        .into_response()
}

async fn decrypt(State(state): Shared, headers: HeaderMap, body: Bytes) -> Response {
    if !is_permitted(&headers) {
        return refuse(StatusCode::FORBIDDEN);
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let mut state = state.lock().unwrap();
    state.requests.push("decrypt".to_owned());
    let parts: Vec<_> = body["ciphertext"].as_str().unwrap_or_default().split(':').collect();
    let [_, version, number] = parts[..] else { return refuse(StatusCode::BAD_REQUEST) };
    let number = BASE64.decode(number.as_bytes()).unwrap();
    let number = usize::from_be_bytes(number.try_into().unwrap());
    let (own, associated_data, plaintext) = state.wrapped[number].clone();
    let good = version == format!("v{own}")
        && own >= state.min_decryption
        && body["associated_data"] == associated_data;
    if good {
        axum::Json(json!({ "data": { "plaintext": plaintext } })).into_response()
    } else {
        refuse(StatusCode::BAD_REQUEST)
    }
}

async fn read_key(State(state): Shared, headers: HeaderMap) -> Response {
    if !is_permitted(&headers) {
        return refuse(StatusCode::FORBIDDEN);
    }
    let state = state.lock().unwrap();
    let data =
        json!({ "latest_version": state.latest, "min_decryption_version": state.min_decryption });
    axum::Json(json!({ "data": data })).into_response()
}

async fn rotate(State(state): Shared, headers: HeaderMap) -> Response {
    if !is_permitted(&headers) {
        return refuse(StatusCode::FORBIDDEN);
    }
    state.lock().unwrap().latest += 1;
    StatusCode::NO_CONTENT.into_response()
}

async fn configure(State(state): Shared, headers: HeaderMap, body: Bytes) -> Response {
    if !is_permitted(&headers) {
        return refuse(StatusCode::FORBIDDEN);
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    state.lock().unwrap().min_decryption = body["min_decryption_version"].as_u64().unwrap();
    StatusCode::NO_CONTENT.into_response()
}
