//! Chats: the orchestrator hands one over and gets the answer as it is made.
//!
//! **Invariant**: only the orchestrator is let in. Whoever shows another credential is turned away before anything was read,
//! asked or called.

mod offer;
mod reading;
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
use cynode_core::models::PROJECT_MANAGER;
use cynode_wire::handoffs::{ChatMessage, Handoff, HandoffRequest};
use futures::stream;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::{desk::Trouble, office::Office, role::Role};
use turn::{Ended, Said, Usage, turn};

/// Most bytes of a handoff.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// Pieces of an answer that wait to be taken; then the model waits.
const MOST_WAITING: usize = 64;

/// Who is let in, and what for.
struct Door {
    office: Office,
    credential: [u8; 32],
    tracker: TaskTracker,
}

/// What a process of that role serves: chats only for the manager, and only with the orchestrator's credential.
pub fn router(office: &Office, credential: Option<&SecretString>, tracker: &TaskTracker) -> Router {
    let role = office.bundle.role;
    let health = move || async move {
        json_response(StatusCode::OK, &json!({ "status": "ok", "role": role.as_str() }))
    };
    let router = Router::new().route("/healthz", get(health));
    match (role, credential) {
        (Role::ProjectManager, Some(credential)) => {
            let door = Door {
                office: office.clone(),
                credential: Sha256::digest(credential.expose_secret()).into(),
                tracker: tracker.clone(),
            };
            let chats = Router::new().route("/internal/chat/completions", post(chat));
            router.merge(chats.with_state(Arc::new(door)))
        }
        (Role::ProjectManager, None) | (Role::ProjectAnalyst, _) => router,
    }
}

/// The whole answer to a chat, for those who do not listen while it is made.
pub(crate) async fn whole(
    office: &Office,
    handoff: &Handoff,
    turns: &[ChatMessage],
) -> Result<String, Trouble> {
    let (sender, mut receiver) = mpsc::channel(MOST_WAITING);
    let made = async {
        let sender = sender;
        turn(office, handoff, turns, &sender).await
    };
    let heard = async {
        let mut text = String::new();
        while let Some(said) = receiver.recv().await {
            if let Said::Text(piece) = said {
                text.push_str(&piece);
            }
        }
        text
    };
    let (made, text) = tokio::join!(made, heard);
    made.map(|_| text).map_err(|failure| failure.trouble)
}

async fn chat(State(door): State<Arc<Door>>, request: Request) -> Response {
    if !door.admits(request.headers()) {
        let told = "only the orchestrator is let in here";
        return problem(StatusCode::UNAUTHORIZED, told);
    }
    let Ok(body) = to_bytes(request.into_body(), MOST_BYTES).await else {
        return problem(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the handoff cannot be read, or is too long",
        );
    };
    let mut handoff: Handoff = match serde_json::from_slice(&body) {
        Ok(handoff) => handoff,
        Err(error) => {
            return problem(StatusCode::BAD_REQUEST, &format!("this is no handoff: {error}"));
        }
    };
    let HandoffRequest::Chat { messages } = &handoff.request else {
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "only chats are answered here");
    };
    let messages = messages.clone();
    door.office.receive(&mut handoff);
    let (sender, receiver) = mpsc::channel(MOST_WAITING);
    door.tracker.spawn(answer(door.office.clone(), handoff, messages, sender));
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

impl Door {
    /// Whether the request shows the orchestrator's credential, once. Digests are compared, so that the time it takes tells
    /// nothing about the credential.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        let shown = value.as_bytes().strip_prefix(b"Bearer ");
        shown.is_some_and(|shown| Sha256::digest(shown).as_slice() == self.credential)
    }
}

/// Makes an answer and writes it as it comes. When nobody listens any more, everything under way is dropped.
async fn answer(
    office: Office,
    handoff: Handoff,
    turns: Vec<ChatMessage>,
    out: mpsc::Sender<Vec<u8>>,
) {
    let id = handoff.handoff_id;
    let trace_id = handoff.context.trace_id.clone();
    tracing::info!(event = "chat.begun", handoff = %id, trace_id);
    let (sender, mut receiver) = mpsc::channel(1);
    let made = async {
        let sender = sender;
        turn(&office, &handoff, &turns, &sender).await
    };
    let written = async {
        let mut chunks = Chunks { id: format!("chatcmpl-{}", id.as_uuid().simple()), created: 0 };
        let mut first = true;
        while let Some(said) = receiver.recv().await {
            let chunk = match said {
                Said::Began(created) => {
                    chunks.created = created;
                    if !std::mem::take(&mut first) {
                        continue;
                    }
                    chunks.delta(&json!({ "role": "assistant", "content": "" }), None)
                }
                Said::Text(text) => chunks.delta(&json!({ "content": text }), None),
            };
            if out.send(event(&chunk)).await.is_err() {
                break;
            }
        }
        chunks
    };
    let both = async { tokio::join!(made, written) };
    let (made, chunks) = tokio::select! {
        biased;
        () = out.closed() => {
            tracing::info!(event = "chat.left", handoff = %id, trace_id);
            return;
        }
        both = both => both,
    };
    let last = match &made {
        Ok(Ended { finish, usage }) => {
            let ended = event(&chunks.delta(&json!({}), Some(finish)));
            [ended, event(&chunks.usage(*usage)), b"data: [DONE]\n\n".to_vec()].concat()
        }
        // No `[DONE]`: what is here is not an answer.
        Err(failure) => event(&json!({ "error": failure.object })),
    };
    let _ = out.send(last).await;
    tracing::info!(event = "chat.ended", handoff = %id, answered = made.is_ok(), trace_id);
}

/// Writes pieces in the words of Chat Completions.
struct Chunks {
    id: String,
    created: u64,
}

impl Chunks {
    fn head(&self, choices: &Value, usage: &Value) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": PROJECT_MANAGER, "choices": choices, "usage": usage,
        })
    }

    fn delta(&self, delta: &Value, finish: Option<&str>) -> Value {
        let choice =
            json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish });
        self.head(&json!([choice]), &Value::Null)
    }

    fn usage(&self, usage: Usage) -> Value {
        let Usage { prompt_tokens, completion_tokens } = usage;
        self.head(
            &json!([]),
            &json!({
                "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens.saturating_add(completion_tokens),
            }),
        )
    }
}

/// One event of the stream.
fn event(data: &Value) -> Vec<u8> {
    format!("data: {data}\n\n").into_bytes()
}

fn problem(status: StatusCode, told: &str) -> Response {
    json_response(status, &json!({ "status": status.as_u16(), "detail": told }))
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
