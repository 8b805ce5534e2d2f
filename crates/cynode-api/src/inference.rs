//! The doors at which models are asked, in the dialects that clients speak. Failures are told in the client's dialect.
//!
//! The user-facing port takes sessions and API keys, the internal port takes tokens of agents.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody as _},
    extract::{DefaultBodyLimit, FromRequest, Request as HttpRequest, State},
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use cynode_app::{
    Error, Request,
    inference::{
        self, Answered, Dialect, FORWARDED, Kind, ModelError, Offered, Question, Speak as _, Who,
        WireError,
    },
    tokens,
};
use cynode_core::{ids::ProjectId, trace::TraceId};
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{AppState, extract::Path, middleware};

/// Most bytes of a question: conversations with images are long.
const MOST_BYTES: usize = 48 * 1024 * 1024;

/// Most commas in it.
const MOST_COMMAS: usize = 2_000_000;

const MIB: usize = 1024 * 1024;

/// How many MiB of large questions may be read at once, by all doors together.
static ROOM: Semaphore = Semaphore::const_new(512);

/// How long a large question waits until there is room for it, and how long it may then take to come.
const PATIENCE: Duration = Duration::from_secs(20);
const READING: Duration = Duration::from_mins(2);

/// Who is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    People,
    Agents,
}

#[derive(Clone)]
struct Doorway {
    state: AppState,
    door: Door,
}

/// The router for people and their programs.
pub(crate) fn for_people(state: &AppState) -> Router {
    router(state, Door::People)
}

/// The router for agents.
pub(crate) fn for_agents(state: &AppState) -> Router {
    router(state, Door::Agents)
}

fn router(state: &AppState, door: Door) -> Router {
    Router::new()
        .route("/v1/models", get(list))
        .route("/v1/models/{id}", get(one))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/responses", post(responses))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .layer(axum::middleware::from_fn(middleware::carried_out))
        .layer(CatchPanicLayer::custom(middleware::panicked))
        .layer(axum::middleware::from_fn_with_state(state.clone(), middleware::observe))
        .with_state(Doorway { state: state.clone(), door })
}

async fn chat(State(doorway): State<Doorway>, request: HttpRequest) -> Response {
    asked(&doorway, Dialect::Chat, request).await
}

async fn responses(State(doorway): State<Doorway>, request: HttpRequest) -> Response {
    asked(&doorway, Dialect::Responses, request).await
}

async fn messages(State(doorway): State<Doorway>, request: HttpRequest) -> Response {
    asked(&doorway, Dialect::Messages, request).await
}

async fn asked(doorway: &Doorway, dialect: Dialect, request: HttpRequest) -> Response {
    let stops_at_429 = request
        .headers()
        .get(header::USER_AGENT)
        .is_some_and(|agent| agent.as_bytes().starts_with(b"codex"));
    match ask(doorway, dialect, request).await {
        Ok(answered) => told(answered),
        Err(error) => refused(dialect, &error, stops_at_429),
    }
}

async fn ask(
    doorway: &Doorway,
    dialect: Dialect,
    request: HttpRequest,
) -> Result<Answered, ModelError> {
    let trace = doorway.trace(request.extensions());
    let left = request.extensions().get::<middleware::Left>().map(|left| left.0.clone());
    // Who is asking comes before what is asked.
    let (parts, body) = request.into_parts();
    let who = doorway.who(&parts.headers, trace).await?;
    let headers = forwarded(&parts.headers);
    let (body, size) = read(HttpRequest::from_parts(parts, body)).await?;
    let mut question = Question::new(dialect, body, size, who, trace, headers);
    question.left = left.unwrap_or_default();
    inference::ask(&doorway.state.app, question).await
}

/// What is asked, and how many bytes it had. Of these none is left.
async fn read(request: HttpRequest) -> Result<(Value, usize), ModelError> {
    let most = request.body().size_hint().upper();
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(MOST_BYTES);
    let room = room(&ROOM, most, PATIENCE).await?;
    let reading = Bytes::from_request(request, &());
    let body = match room {
        None => reading.await,
        // Whoever dawdles does not keep the room from others.
        Some(_) => tokio::time::timeout(READING, reading).await.map_err(|_| {
            ModelError::new(Kind::Timeout, "the body took longer to come than is waited for")
        })?,
    };
    let body = body.map_err(|rejection| {
        let kind = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Kind::TooLarge,
            _ => Kind::BadRequest,
        };
        ModelError::new(kind, "the body could not be read, or is larger than is taken here")
    })?;
    // Text is long; a list of a million things is an attack.
    if body.split(|byte| *byte == b',').nth(MOST_COMMAS).is_some() {
        return Err(ModelError::new(Kind::TooLarge, "the body has too many parts"));
    }
    let value = serde_json::from_slice(&body).map_err(|error| {
        ModelError::new(Kind::BadRequest, format!("the body is not JSON: {error}"))
    })?;
    Ok((value, body.len()))
}

/// Room for a question of so many bytes; a small one needs none.
async fn room(
    of: &Semaphore,
    bytes: usize,
    patience: Duration,
) -> Result<Option<SemaphorePermit<'_>>, ModelError> {
    if bytes <= MIB {
        return Ok(None);
    }
    let wanted = u32::try_from(bytes.min(MOST_BYTES).div_ceil(MIB)).unwrap_or(u32::MAX);
    match tokio::time::timeout(patience, of.acquire_many(wanted)).await {
        Ok(Ok(room)) => Ok(Some(room)),
        Ok(Err(_)) | Err(_) => {
            let told = "too many large questions are being read at once; ask again";
            let error = ModelError::new(Kind::RateLimited, told);
            Err(error.with_retry_after(Duration::from_secs(1)))
        }
    }
}

fn forwarded(headers: &HeaderMap) -> Vec<(String, String)> {
    let pairs = FORWARDED.iter().filter_map(|name| {
        let value = headers.get(*name)?.to_str().ok()?;
        Some(((*name).to_owned(), value.to_owned()))
    });
    pairs.collect()
}

impl Doorway {
    fn trace(&self, extensions: &Extensions) -> TraceId {
        let known = extensions.get::<TraceId>().copied();
        known.unwrap_or_else(|| self.state.app.environment().trace())
    }

    /// Who is behind the credential, which clients of Messages send as `x-api-key`.
    async fn who(&self, headers: &HeaderMap, trace: TraceId) -> Result<Who, ModelError> {
        let wrong = || {
            let told = "the credential is missing, expired, revoked or wrong; send a CyNode key as `Authorization: Bearer …` or `x-api-key`";
            ModelError::new(Kind::Unauthorized, told).with_code("invalid_api_key")
        };
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        let text =
            bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
        let shown = text.and_then(|text| tokens::present(text).ok()).ok_or_else(wrong)?;
        let app = &self.state.app;
        let who = match self.door {
            Door::Agents if shown.kind.is_agents() => inference::agent(app, &shown).await,
            Door::People if !shown.kind.is_agents() => {
                let project = headers.get("openai-project").map(|value| {
                    let id = value.to_str().ok().and_then(|text| text.parse::<ProjectId>().ok());
                    id.ok_or_else(|| {
                        let told = "`OpenAI-Project` is the id of a project, `prj_…`";
                        ModelError::new(Kind::BadRequest, told)
                    })
                });
                let project = project.transpose()?;
                match app.authenticate(&shown).await {
                    Ok(caller) => {
                        let request = Request { caller: Some(caller), trace, attempt: None };
                        inference::person(app, &request, project).await
                    }
                    Err(error) => Err(error),
                }
            }
            Door::Agents | Door::People => Err(Error::Unauthenticated),
        };
        who.map_err(|error| match error {
            Error::Unauthenticated => wrong(),
            Error::Forbidden { .. } => ModelError::new(Kind::Forbidden, error.to_string()),
            Error::NotFound { .. } => ModelError::new(Kind::NotFound, error.to_string()),
            Error::Unavailable(_) => ModelError::new(Kind::Unavailable, error.to_string()),
            error => {
                let cause = cynode_core::causes::told(&error);
                tracing::error!(event = "error", error = cause, "a model could not be asked");
                ModelError::new(Kind::Upstream, error.to_string())
            }
        })
    }
}

fn told(answered: Answered) -> Response {
    let (call, mut response) = match answered {
        Answered::Whole(call, body) => (call, axum::Json(body).into_response()),
        Answered::Streamed(call, receiver) => {
            let pieces = stream::unfold(receiver, |mut receiver| async {
                let piece = receiver.recv().await?;
                Some((Ok::<_, Infallible>(piece), receiver))
            });
            let mut response = Response::new(Body::from_stream(pieces));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
            (call, response)
        }
    };
    if let Ok(value) = HeaderValue::from_str(&call.to_string()) {
        response.headers_mut().insert("x-cynode-call", value);
    }
    response
}

/// An error in the client's dialect. Of those who speak Responses only Codex stops at the status that its dialect has for an
/// empty account; the others stop where clients of the other dialects do.
fn refused(dialect: Dialect, error: &ModelError, stops_at_429: bool) -> Response {
    let WireError { mut status, body, retry_after, should_retry } = dialect.write_error(error);
    let spent = matches!(error.kind, Kind::BudgetExhausted | Kind::QuotaExhausted);
    if spent && dialect == Dialect::Responses && !stops_at_429 {
        status = StatusCode::PAYMENT_REQUIRED.as_u16();
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = (status, axum::Json(body)).into_response();
    let headers = response.headers_mut();
    if let Some(wait) = retry_after {
        // Whoever comes at the told second must not come too early.
        let seconds = wait.as_millis().div_ceil(1000).max(1);
        let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(retry) = should_retry {
        let word = if retry { "true" } else { "false" };
        headers.insert("x-should-retry", HeaderValue::from_static(word));
    }
    response
}

/// The dialect in which errors are told where the path does not say: clients of Messages name a version.
fn guessed(headers: &HeaderMap) -> Dialect {
    if headers.contains_key("anthropic-version") { Dialect::Messages } else { Dialect::Chat }
}

async fn list(State(doorway): State<Doorway>, parts: Parts) -> Response {
    let dialect = guessed(&parts.headers);
    match offered(&doorway, &parts).await {
        Ok(models) => {
            let data: Vec<Value> = models.iter().map(shown).collect();
            let (first, last) =
                (data.first().map(|m| m["id"].clone()), data.last().map(|m| m["id"].clone()));
            // Both families of clients find what they look for.
            axum::Json(json!({
                "object": "list", "data": data, "has_more": false, "first_id": first, "last_id": last,
            }))
            .into_response()
        }
        Err(error) => refused(dialect, &error, false),
    }
}

async fn one(State(doorway): State<Doorway>, Path(id): Path<String>, parts: Parts) -> Response {
    let dialect = guessed(&parts.headers);
    let found = offered(&doorway, &parts).await.and_then(|models| {
        models.into_iter().find(|model| model.id == id).ok_or_else(|| {
            ModelError::new(Kind::NotFound, "there is no such model").with_code("model_not_found")
        })
    });
    match found {
        Ok(model) => axum::Json(shown(&model)).into_response(),
        Err(error) => refused(dialect, &error, false),
    }
}

async fn offered(doorway: &Doorway, parts: &Parts) -> Result<Vec<Offered>, ModelError> {
    let who = doorway.who(&parts.headers, doorway.trace(&parts.extensions)).await?;
    inference::offered(&doorway.state.app, &who)
        .await
        .map_err(|error| ModelError::new(Kind::Unavailable, error.to_string()))
}

fn shown(model: &Offered) -> Value {
    let at = model.created.format(&time::format_description::well_known::Rfc3339);
    json!({
        "id": model.id, "object": "model", "created": model.created.unix_timestamp(), "owned_by": model.owner,
        "type": "model", "lifecycle": "active", "display_name": model.title, "created_at": at.unwrap_or_default(),
    })
}

async fn count_tokens(State(doorway): State<Doorway>, request: HttpRequest) -> Response {
    let trace = doorway.trace(request.extensions());
    let counted = async {
        let (parts, body) = request.into_parts();
        doorway.who(&parts.headers, trace).await?;
        let (body, _) = read(HttpRequest::from_parts(parts, body)).await?;
        Ok(inference::count(&body))
    };
    match counted.await {
        Ok(tokens) => axum::Json(json!({ "input_tokens": tokens })).into_response(),
        Err(error) => refused(Dialect::Messages, &error, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many MiB are left while a question of so many bytes is read.
    async fn left(of: &Semaphore, bytes: usize) -> Result<usize, ModelError> {
        let room = room(of, bytes, Duration::ZERO).await?;
        let left = of.available_permits();
        drop(room);
        Ok(left)
    }

    #[tokio::test]
    async fn large_questions_are_read_while_there_is_room_and_small_ones_always() {
        let of = Semaphore::new(50);
        let told = "too many large questions are being read at once; ask again";
        let full =
            ModelError::new(Kind::RateLimited, told).with_retry_after(Duration::from_secs(1));
        assert_eq!(left(&of, MIB).await, Ok(50));
        assert_eq!(left(&of, MIB + 1).await, Ok(48));
        assert_eq!(left(&of, usize::MAX).await, Ok(2));
        let held = room(&of, MOST_BYTES, Duration::ZERO).await.unwrap();
        assert_eq!(left(&of, 3 * MIB).await, Err(full));
        assert_eq!(left(&of, 2 * MIB).await, Ok(0));
        assert_eq!(left(&of, MIB).await, Ok(2));
        drop(held);
        assert_eq!(left(&of, 3 * MIB).await, Ok(47));
    }
}
