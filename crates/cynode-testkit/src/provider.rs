//! A fake model provider on loopback that implements the real wire formats and stores its requests.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::post,
};
use cynode_models::dialect::{
    Dialect, DialectCodec as _, ResponseContext, StreamEncoder,
    canonical::{CanonicalEvent, CanonicalResponse, ContentPart, StopReason, TokenUsage},
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The path at which it answers as a project manager.
const MANAGER: &str = "/v1/internal/chat/completions";

/// Behaviour of the provider.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// The words of its response, one chunk each.
    pub words: Vec<String>,
    /// The reported usage; `None` reports nothing.
    pub usage: Option<TokenUsage>,
    /// A failure instead of a response: status, body and `retry-after`.
    pub fails: Option<(u16, Value, Option<u64>)>,
    /// The only key for which it fails.
    pub only_for: Option<String>,
    /// Whether it closes the connection without a response.
    pub hangs_up: bool,
    /// Delay before each chunk.
    pub pause: Duration,
    /// Whether it stalls after the first chunk, or before a response without chunks, until it is resumed.
    pub stalls: bool,
    /// When it closes the connection.
    pub ends: Ends,
}

/// When a provider closes the connection of a streamed response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// After the last chunk.
    #[default]
    AfterAll,
    /// After the first chunk.
    AfterOne,
    /// Never.
    Never,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            words: ["Hello", " ", "there"].map(str::to_owned).into(),
            usage: Some(TokenUsage { input: 20, output: 3, ..TokenUsage::default() }),
            fails: None,
            only_for: None,
            hangs_up: false,
            pause: Duration::ZERO,
            stalls: false,
            ends: Ends::default(),
        }
    }
}

/// One received request.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Path of the request.
    pub path: String,
    /// Headers of the request.
    pub headers: HeaderMap,
    /// JSON body of the request.
    pub body: Value,
}

/// A running fake provider.
pub struct TestProvider {
    address: SocketAddr,
    shared: Arc<ProviderState>,
    stop: CancellationToken,
}

struct ProviderState {
    behaviour: Mutex<Behaviour>,
    sent: Mutex<Vec<Sent>>,
    go_on: Notify,
    left: Notify,
}

/// Records that the client disconnected before the response.
struct Waited<'a>(&'a ProviderState, bool);

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.left.notify_one();
        }
    }
}

impl TestProvider {
    /// Starts a provider on a free port.
    pub async fn serve(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::over(listener, behaviour)
    }

    /// Starts a provider on a given listener.
    pub fn over(listener: TcpListener, behaviour: Behaviour) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(ProviderState {
            behaviour: Mutex::new(behaviour),
            sent: Mutex::default(),
            go_on: Notify::new(),
            left: Notify::new(),
        });
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            .route("/v1/responses", post(answer))
            .route("/v1/messages", post(answer))
            .route(MANAGER, post(answer))
            .with_state(shared.clone());
        let stop = CancellationToken::new();
        let until = stop.clone().cancelled_owned();
        TaskTracker::new().spawn(async move {
            let _ = axum::serve(listener, router).with_graceful_shutdown(until).await;
        });
        Self { address, shared, stop }
    }

    /// Returns its base URL, `/v1` included.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Replaces its behaviour.
    pub fn behave(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap() = behaviour;
    }

    /// Resumes a stalled response.
    pub fn go_on(&self) {
        self.shared.go_on.notify_one();
    }

    /// Waits until a client has disconnected before the response.
    pub async fn until_left(&self) {
        self.shared.left.notified().await;
    }

    /// Returns the requests so far.
    pub fn sent(&self) -> Vec<Sent> {
        self.shared.sent.lock().unwrap().clone()
    }
}

impl Drop for TestProvider {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn answer(
    State(shared): State<Arc<ProviderState>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let dialect = match uri.path() {
        "/v1/chat/completions" | MANAGER => Dialect::Chat,
        "/v1/responses" => Dialect::Responses,
        _ => Dialect::Messages,
    };
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let behaviour = shared.behaviour.lock().unwrap().clone();
    let key = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let meant =
        behaviour.only_for.as_deref().is_none_or(|only| key.is_some_and(|key| key.ends_with(only)));
    shared.sent.lock().unwrap().push(Sent {
        path: uri.path().to_owned(),
        headers,
        body: body.clone(),
    });
    // A panic in a handler closes the connection, as a crashing provider does.
    assert!(!behaviour.hangs_up, "the provider hangs up");
    if let Some((status, body, wait)) = behaviour.fails.filter(|_| meant) {
        let mut response =
            (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
        if let Some(wait) = wait {
            response.headers_mut().insert(header::RETRY_AFTER, wait.into());
        }
        return response;
    }
    let answer = CanonicalResponse {
        id: "answer-1".into(),
        model: body["model"].as_str().unwrap_or_default().to_owned(),
        parts: vec![ContentPart::from_text(behaviour.words.concat())],
        stop: StopReason::EndTurn,
        usage: behaviour.usage,
    };
    let include_usage = body["stream_options"]["include_usage"] == json!(true);
    let reply = ResponseContext {
        created: 1,
        id: "answer-1".into(),
        include_usage,
        ..ResponseContext::default()
    };
    if body["stream"] != json!(true) && uri.path() != MANAGER {
        if behaviour.stalls {
            let mut waited = Waited(&shared, true);
            shared.go_on.notified().await;
            waited.1 = false;
        }
        return axum::Json(dialect.encode_response(&answer, &reply).unwrap()).into_response();
    }
    let mut writer = StreamEncoder::new(dialect, reply);
    let mut pieces = Vec::new();
    for event in answer.to_events() {
        match event {
            CanonicalEvent::TextDelta { index, .. } => {
                for text in &behaviour.words {
                    pieces.push(
                        writer
                            .encode_event(CanonicalEvent::TextDelta { index, text: text.clone() }),
                    );
                }
            }
            event => pieces.push(writer.encode_event(event)),
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    let first = pieces.iter().position(|piece| contains(piece, &behaviour.words[0])).unwrap_or(0);
    if behaviour.ends == Ends::AfterOne {
        pieces.truncate(first + 1);
    }
    let (pause, stalls) = (behaviour.pause, behaviour.stalls);
    let pieces = stream::iter(pieces.into_iter().enumerate()).then(move |(at, piece)| {
        let shared = shared.clone();
        async move {
            if stalls && at == first + 1 {
                shared.go_on.notified().await;
            }
            if !pause.is_zero() {
                let _ = tokio::time::timeout(pause, std::future::pending::<()>()).await;
            }
            Ok::<_, Infallible>(piece)
        }
    });
    let stays = (behaviour.ends == Ends::Never).then_some(());
    let open = stream::iter(stays).then(|()| std::future::pending());
    let pieces = Body::from_stream(pieces.chain(open));
    ([(header::CONTENT_TYPE, "text/event-stream")], pieces).into_response()
}

fn contains(piece: &[u8], word: &str) -> bool {
    let word = json!(word).to_string();
    piece.windows(word.len()).any(|part| part == word.as_bytes())
}
