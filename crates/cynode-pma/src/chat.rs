//! Chats: the orchestrator sends one, and the process streams the answer back. Backpressure: a bounded channel holds
//! the chunks, and the model waits while it is full.
//!
//! **Invariant**: only the orchestrator is let in. A caller with another credential is refused before anything is read,
//! asked or called.

mod offer;
mod stream_reader;
mod turn;

use std::{convert::Infallible, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use cynode_core::{
    models::PROJECT_MANAGER_MODEL_ID,
    workflow::handoffs::{ChatMessage, HandoffRequest},
};
use cynode_wire::manager::handoffs::HandoffAssignment;
use futures::stream;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::{decision_context::DecisionError, role::PmaRole, role_runtime::RoleRuntime};
use turn::{TurnEvent, TurnSummary, TurnUsage, run_turn};

/// Maximum size of a handoff.
const MAX_HANDOFF_BYTES: usize = 16 * 1024 * 1024;

/// Capacity of the answer channel. When it is full, the model waits.
const ANSWER_CHANNEL_CAPACITY: usize = 64;

/// State of the chat endpoint: the credential and the runtime.
struct ChatEndpoint {
    office: RoleRuntime,
    credential: [u8; 32],
    tracker: TaskTracker,
}

/// Builds the router of a role. Only the project manager serves chats, and only for the orchestrator's credential.
pub fn build_router(
    office: &RoleRuntime,
    credential: Option<&SecretString>,
    tracker: &TaskTracker,
) -> Router {
    let role = office.bundle.role;
    let health = move || async move {
        json_response(StatusCode::OK, &json!({ "status": "ok", "role": role.as_str() }))
    };
    let router = Router::new().route("/healthz", get(health));
    match (role, credential) {
        (PmaRole::ProjectManager, Some(credential)) => {
            let door = ChatEndpoint {
                office: office.clone(),
                credential: Sha256::digest(credential.expose_secret()).into(),
                tracker: tracker.clone(),
            };
            let chats = Router::new().route("/internal/chat/completions", post(handle_chat));
            router.merge(chats.with_state(Arc::new(door)))
        }
        (PmaRole::ProjectManager, None) | (PmaRole::ProjectAnalyst, _) => router,
    }
}

/// Returns the whole answer to a chat, for callers that do not stream.
pub(crate) async fn complete_chat(
    office: &RoleRuntime,
    handoff: &HandoffAssignment,
    turns: &[ChatMessage],
) -> Result<String, DecisionError> {
    let (sender, mut receiver) = mpsc::channel(ANSWER_CHANNEL_CAPACITY);
    let made = async {
        let sender = sender;
        run_turn(office, handoff, turns, &sender).await
    };
    let heard = async {
        let mut text = String::new();
        while let Some(said) = receiver.recv().await {
            if let TurnEvent::Text(piece) = said {
                text.push_str(&piece);
            }
        }
        text
    };
    let (made, text) = tokio::join!(made, heard);
    made.map(|_| text).map_err(|failure| failure.trouble)
}

async fn handle_chat(State(door): State<Arc<ChatEndpoint>>, request: Request) -> Response {
    if !door.is_authorized(request.headers()) {
        let told = "only the orchestrator is let in here";
        return problem_response(StatusCode::UNAUTHORIZED, told);
    }
    let Ok(body) = to_bytes(request.into_body(), MAX_HANDOFF_BYTES).await else {
        return problem_response(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the handoff cannot be read, or is too long",
        );
    };
    let mut handoff: HandoffAssignment = match serde_json::from_slice(&body) {
        Ok(handoff) => handoff,
        Err(error) => {
            return problem_response(
                StatusCode::BAD_REQUEST,
                &format!("this is no handoff: {error}"),
            );
        }
    };
    let HandoffRequest::Chat { messages } = &handoff.request else {
        return problem_response(StatusCode::UNPROCESSABLE_ENTITY, "only chats are answered here");
    };
    let messages = messages.clone();
    door.office.drop_foreign_preferences(&mut handoff);
    let (sender, receiver) = mpsc::channel(ANSWER_CHANNEL_CAPACITY);
    door.tracker.spawn(stream_answer(door.office.clone(), handoff, messages, sender));
    let pieces = stream::unfold(receiver, |mut receiver| async {
        let piece: Vec<u8> = receiver.recv().await?;
        Some((Ok::<_, Infallible>(piece), receiver))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

impl ChatEndpoint {
    /// Returns whether the request has the orchestrator's credential exactly once. Digests are compared, so that the timing reveals
    /// nothing about the credential.
    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        let shown = value.as_bytes().strip_prefix(b"Bearer ");
        shown.is_some_and(|shown| Sha256::digest(shown).as_slice() == self.credential)
    }
}

/// Streams an answer as it is generated. If the client disconnects, all work in progress is dropped.
async fn stream_answer(
    office: RoleRuntime,
    handoff: HandoffAssignment,
    turns: Vec<ChatMessage>,
    out: mpsc::Sender<Vec<u8>>,
) {
    let id = handoff.handoff_id;
    let trace_id = handoff.context.trace_id.clone();
    tracing::info!(event = "chat.started", handoff = %id, trace_id);
    let (sender, mut receiver) = mpsc::channel(1);
    let made = async {
        let sender = sender;
        run_turn(&office, &handoff, &turns, &sender).await
    };
    let written = async {
        let mut chunks =
            ChunkEncoder { id: format!("chatcmpl-{}", id.as_uuid().simple()), created: 0 };
        let mut first = true;
        while let Some(said) = receiver.recv().await {
            let chunk = match said {
                TurnEvent::Began(created) => {
                    chunks.created = created;
                    if !std::mem::take(&mut first) {
                        continue;
                    }
                    chunks.encode_delta(&json!({ "role": "assistant", "content": "" }), None)
                }
                TurnEvent::Text(text) => chunks.encode_delta(&json!({ "content": text }), None),
            };
            if out.send(render_sse_event(&chunk)).await.is_err() {
                break;
            }
        }
        chunks
    };
    let both = async { tokio::join!(made, written) };
    let (made, chunks) = tokio::select! {
        biased;
        () = out.closed() => {
            tracing::info!(event = "chat.abandoned", handoff = %id, trace_id);
            return;
        }
        both = both => both,
    };
    let last = match &made {
        Ok(TurnSummary { finish, usage }) => {
            let ended = render_sse_event(&chunks.encode_delta(&json!({}), Some(finish)));
            [ended, render_sse_event(&chunks.encode_usage(*usage)), b"data: [DONE]\n\n".to_vec()]
                .concat()
        }
        // No `[DONE]`: an incomplete answer must not look complete.
        Err(failure) => render_sse_event(&json!({ "error": failure.object })),
    };
    let _ = out.send(last).await;
    tracing::info!(event = "chat.ended", handoff = %id, answered = made.is_ok(), trace_id);
}

/// Encodes chunks in the format of Chat Completions.
struct ChunkEncoder {
    id: String,
    created: u64,
}

impl ChunkEncoder {
    fn encode_chunk(&self, choices: &Value, usage: &Value) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": PROJECT_MANAGER_MODEL_ID, "choices": choices, "usage": usage,
        })
    }

    fn encode_delta(&self, delta: &Value, finish: Option<&str>) -> Value {
        let choice =
            json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish });
        self.encode_chunk(&json!([choice]), &Value::Null)
    }

    fn encode_usage(&self, usage: TurnUsage) -> Value {
        let TurnUsage { prompt_tokens, completion_tokens } = usage;
        self.encode_chunk(
            &json!([]),
            &json!({
                "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens.saturating_add(completion_tokens),
            }),
        )
    }
}

/// Renders one event of the stream.
fn render_sse_event(data: &Value) -> Vec<u8> {
    format!("data: {data}\n\n").into_bytes()
}

fn problem_response(status: StatusCode, told: &str) -> Response {
    json_response(status, &json!({ "status": status.as_u16(), "detail": told }))
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
