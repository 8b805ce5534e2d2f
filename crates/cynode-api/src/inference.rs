//! Inference endpoints in the dialects of the clients. Errors are encoded in the client's dialect.
//!
//! The user-facing port accepts sessions and API keys; the internal port accepts agent tokens.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::{Request as HttpRequest, State},
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use cynode_app::{
    Error, OperationRequest,
    models::inference::{
        self, Dialect, DialectCodec as _, FORWARDED_HEADERS, InferenceAnswer, InferenceCaller,
        InferenceRequest, ModelError, ModelErrorKind, OfferedModel, ThreadChoice, WireError,
    },
    platform::{
        body_budget::{BodyCaller, BodyError, BodyLimits, ReservedBody, body_caller_of},
        stream_limits::StreamPermit,
        tokens::{self, PresentedToken},
    },
    tasks::projects::ProjectRef,
};
use cynode_core::{names::ProfileName, trace::TraceId};
use futures::stream;
use serde_json::{Value, json};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    AppState,
    error::ApiError,
    extract::{Path, source_of},
    middleware,
};

/// Limits of a request body: conversations with images are long, but a list of a million values is an attack.
const BODY_LIMITS: BodyLimits = BodyLimits { max_bytes: 48 * 1024 * 1024, max_values: 200_000 };

/// Limits of the body of an account without any role, which can only chat with the project manager.
const STRANGER_BODY_LIMITS: BodyLimits = BodyLimits { max_bytes: 1024 * 1024, max_values: 50_000 };

/// Header that names the conversation of a message to the project manager: `new`, or its id.
const THREAD_HEADER: &str = "x-cynode-thread";

/// Header that names the profile under which the project manager answers.
const PROFILE_HEADER: &str = "x-cynode-profile";

/// The port of the endpoint, which decides which credentials it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InferencePort {
    People,
    Agents,
}

#[derive(Clone)]
struct InferenceState {
    state: AppState,
    door: InferencePort,
}

/// Builds the router for users and their programs.
pub(crate) fn router_for_people(state: &AppState) -> Router {
    inference_router(state, InferencePort::People)
}

/// Builds the router for agents.
pub(crate) fn router_for_agents(state: &AppState) -> Router {
    inference_router(state, InferencePort::Agents)
}

fn inference_router(state: &AppState, door: InferencePort) -> Router {
    Router::new()
        .route("/v1/models", get(list_models))
        .route("/v1/models/{id}", get(get_model))
        .route("/v1/chat/completions", post(create_chat_completion))
        .route("/v1/responses", post(create_response))
        .route("/v1/messages", post(create_message))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .layer(axum::middleware::from_fn(middleware::run_to_completion))
        .layer(CatchPanicLayer::custom(middleware::panic_response))
        .layer(axum::middleware::from_fn_with_state(state.clone(), middleware::observe_request))
        .with_state(InferenceState { state: state.clone(), door })
}

async fn create_chat_completion(
    State(doorway): State<InferenceState>,
    request: HttpRequest,
) -> Response {
    Box::pin(handle_model_request(&doorway, Dialect::Chat, request)).await
}

async fn create_response(State(doorway): State<InferenceState>, request: HttpRequest) -> Response {
    Box::pin(handle_model_request(&doorway, Dialect::Responses, request)).await
}

async fn create_message(State(doorway): State<InferenceState>, request: HttpRequest) -> Response {
    Box::pin(handle_model_request(&doorway, Dialect::Messages, request)).await
}

async fn handle_model_request(
    doorway: &InferenceState,
    dialect: Dialect,
    request: HttpRequest,
) -> Response {
    let stops_at_429 = request
        .headers()
        .get(header::USER_AGENT)
        .is_some_and(|agent| agent.as_bytes().starts_with(b"codex"));
    match ask_model(doorway, dialect, request).await {
        Ok((answered, permit)) => to_response(answered, permit),
        Err(error) => error_response(dialect, &error, stops_at_429),
    }
}

async fn ask_model(
    doorway: &InferenceState,
    dialect: Dialect,
    request: HttpRequest,
) -> Result<(InferenceAnswer, Option<StreamPermit>), ModelError> {
    let trace = doorway.request_trace(request.extensions());
    let left = request.extensions().get::<middleware::ClientGone>().map(|left| left.0.clone());
    // Authenticate first, before the body is read.
    let (parts, body) = request.into_parts();
    let (who, caller) = doorway.authenticate_caller(&parts, trace).await?;
    let permit = doorway.open_stream(&who, &parts.extensions)?;
    let headers = forwarded_headers(&parts.headers);
    let thread = named_thread(&parts.headers)?;
    let profile = named_profile(&parts.headers)?;
    let (body, size) = doorway.read_model_request(&who, caller, body).await?;
    let mut question = InferenceRequest::new(dialect, body, size, who, trace, headers);
    question.left = left.unwrap_or_default();
    question.thread = thread;
    question.profile = profile;
    Ok((inference::ask_model(&doorway.state.app, question).await?, permit))
}

/// Encodes why a body was not read.
fn body_error(error: &BodyError) -> ModelError {
    let kind = match error {
        BodyError::TooLarge(_) | BodyError::TooManyValues(_) => ModelErrorKind::TooLarge,
        BodyError::Overloaded => ModelErrorKind::RateLimited,
        BodyError::TooSlow => ModelErrorKind::Timeout,
        BodyError::Broken(_) => ModelErrorKind::BadRequest,
    };
    let failure = ModelError::new(kind, error.to_string());
    match error {
        BodyError::Overloaded => failure.with_retry_after(Duration::from_secs(1)),
        _ => failure,
    }
}

/// Returns the conversation with the project manager that a request names.
fn named_thread(headers: &HeaderMap) -> Result<ThreadChoice, ModelError> {
    let Some(value) = headers.get(THREAD_HEADER) else { return Ok(ThreadChoice::default()) };
    let named = value.to_str().ok().and_then(|text| text.parse().ok());
    named.ok_or_else(|| {
        let told = "`X-CyNode-Thread` is `new`, or the id of one of your conversations, `thr_…`";
        ModelError::new(ModelErrorKind::BadRequest, told)
    })
}

/// Returns the profile that a message to the project manager names.
fn named_profile(headers: &HeaderMap) -> Result<Option<ProfileName>, ModelError> {
    let Some(value) = headers.get(PROFILE_HEADER) else { return Ok(None) };
    let named = value.to_str().ok().and_then(|text| text.parse().ok());
    named.map(Some).ok_or_else(|| {
        let told = "`X-CyNode-Profile` is the name of a profile: 1 to 63 of a-z, 0-9 and `-`";
        ModelError::new(ModelErrorKind::BadRequest, told)
    })
}

fn forwarded_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let pairs = FORWARDED_HEADERS.iter().filter_map(|name| {
        let value = headers.get(*name)?.to_str().ok()?;
        Some(((*name).to_owned(), value.to_owned()))
    });
    pairs.collect()
}

impl InferenceState {
    fn request_trace(&self, extensions: &Extensions) -> TraceId {
        let known = extensions.get::<TraceId>().copied();
        known.unwrap_or_else(|| self.state.app.environment().new_trace_id())
    }

    /// Reads and parses the body of an authenticated caller. Returns it with its size in bytes; the raw bytes are dropped.
    async fn read_model_request(
        &self,
        who: &InferenceCaller,
        caller: BodyCaller,
        body: Body,
    ) -> Result<(Value, usize), ModelError> {
        let declared = body.size_hint().exact();
        let stream = body.into_data_stream();
        let budget = self.state.app.body_budget();
        let limits = if who.has_any_role() { BODY_LIMITS } else { STRANGER_BODY_LIMITS };
        let read = budget.read_body(caller, stream, declared, limits).await;
        let ReservedBody { bytes, reservation } = read.map_err(|error| body_error(&error))?;
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            ModelError::new(ModelErrorKind::BadRequest, format!("the body is not JSON: {error}"))
        })?;
        drop(reservation);
        Ok((value, bytes.len()))
    }

    /// Counts the request of a user until its answer ends. Agents are limited by their jobs.
    fn open_stream(
        &self,
        who: &InferenceCaller,
        extensions: &Extensions,
    ) -> Result<Option<StreamPermit>, ModelError> {
        match self.door {
            InferencePort::Agents => Ok(None),
            InferencePort::People => {
                let opened = self.state.app.open_chat_stream(who.user, source_of(extensions));
                opened.map(Some).map_err(|error| {
                    let limited = ModelError::new(ModelErrorKind::RateLimited, error.to_string());
                    limited.with_retry_after(Duration::from_secs(5))
                })
            }
        }
    }

    /// Returns the session token of a browser's cookie, on the port of people only.
    fn cookie_token(&self, parts: &Parts) -> Result<Option<PresentedToken>, ModelError> {
        if self.door == InferencePort::Agents {
            return Ok(None);
        }
        match self.state.browser.cookie_credential(parts) {
            Ok((_, shown)) => Ok(Some(shown)),
            Err(ApiError::Operation(_)) => Ok(None),
            Err(error) => Err(ModelError::new(ModelErrorKind::Forbidden, error.to_string())),
        }
    }

    /// Authenticates the credential. Clients of the Messages dialect send it as `x-api-key`. Returns the hash of its token, too.
    async fn authenticate_caller(
        &self,
        parts: &Parts,
        trace: TraceId,
    ) -> Result<(InferenceCaller, BodyCaller), ModelError> {
        let headers = &parts.headers;
        let wrong = || {
            let told = "the credential is missing, expired, revoked or wrong; send a CyNode key as `Authorization: Bearer …` or `x-api-key`";
            ModelError::new(ModelErrorKind::Unauthorized, told).with_code("invalid_api_key")
        };
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        let text =
            bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
        let named =
            headers.contains_key(header::AUTHORIZATION) || headers.contains_key("x-api-key");
        let shown = if named {
            text.and_then(|text| tokens::parse_token(text).ok()).ok_or_else(wrong)?
        } else {
            self.cookie_token(parts)?.ok_or_else(wrong)?
        };
        let app = &self.state.app;
        let who = match self.door {
            InferencePort::Agents if shown.kind.opens_gateway() => {
                inference::resolve_agent_caller(app, &shown).await
            }
            InferencePort::People if !shown.kind.opens_gateway() => {
                let project = headers.get("openai-project").map(|value| {
                    let named =
                        value.to_str().ok().and_then(|text| text.parse::<ProjectRef>().ok());
                    named.ok_or_else(|| {
                        let told = "`OpenAI-Project` is the name of a project or its id, `prj_…`";
                        ModelError::new(ModelErrorKind::BadRequest, told)
                    })
                });
                let project = project.transpose()?;
                match app.authenticate_caller(&shown).await {
                    Ok(caller) => match app.count_request(&caller) {
                        Ok(()) => {
                            let request =
                                OperationRequest { caller: Some(caller), trace, attempt: None };
                            inference::resolve_user_caller(app, &request, project).await
                        }
                        Err(error) => Err(error),
                    },
                    Err(error) => Err(error),
                }
            }
            InferencePort::Agents | InferencePort::People => Err(Error::Unauthenticated),
        };
        who.map(|who| {
            let caller = body_caller_of(who.user);
            (who, caller)
        })
        .map_err(|error| match error {
            Error::Unauthenticated => wrong(),
            Error::Forbidden { .. } | Error::KeyDenied(_) => {
                ModelError::new(ModelErrorKind::Forbidden, error.to_string())
            }
            Error::NotFound { .. } => ModelError::new(ModelErrorKind::NotFound, error.to_string()),
            Error::RateLimited { after, .. } => {
                ModelError::new(ModelErrorKind::RateLimited, error.to_string())
                    .with_retry_after(after)
            }
            Error::Unavailable(_) => {
                ModelError::new(ModelErrorKind::Unavailable, error.to_string())
            }
            error => {
                let cause = cynode_core::error_chain::format_error_chain(&error);
                tracing::error!(
                    event = "caller.authentication_failed",
                    error = cause,
                    "the caller of a model could not be authenticated"
                );
                ModelError::new(ModelErrorKind::Upstream, error.to_string())
            }
        })
    }
}

/// Builds the response. A stream holds its permit until it ends.
fn to_response(answered: InferenceAnswer, permit: Option<StreamPermit>) -> Response {
    let (call, mut response) = match answered {
        InferenceAnswer::Whole(call, body) => (call, axum::Json(body).into_response()),
        InferenceAnswer::Streamed(call, receiver) => {
            let pieces = stream::unfold((receiver, permit), |(mut receiver, permit)| async {
                let piece = receiver.recv().await?;
                Some((Ok::<_, Infallible>(piece), (receiver, permit)))
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

/// Encodes an error in the client's dialect. Among the clients of the Responses dialect only Codex stops retrying at
/// the
/// status that this dialect has for an exhausted account; the others stop at the status of the other dialects.
fn error_response(dialect: Dialect, error: &ModelError, stops_at_429: bool) -> Response {
    let WireError { mut status, body, retry_after, should_retry } = dialect.encode_error(error);
    let spent =
        matches!(error.kind, ModelErrorKind::BudgetExhausted | ModelErrorKind::QuotaExhausted);
    if spent && dialect == Dialect::Responses && !stops_at_429 {
        status = StatusCode::PAYMENT_REQUIRED.as_u16();
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = (status, axum::Json(body)).into_response();
    let headers = response.headers_mut();
    if let Some(wait) = retry_after {
        // Round up: a client that retries after this many seconds must not come too early.
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

/// Guesses the dialect for errors where the path does not determine it: clients of Messages send a version header.
fn guess_dialect(headers: &HeaderMap) -> Dialect {
    if headers.contains_key("anthropic-version") { Dialect::Messages } else { Dialect::Chat }
}

async fn list_models(State(doorway): State<InferenceState>, parts: Parts) -> Response {
    let dialect = guess_dialect(&parts.headers);
    match offered_models(&doorway, &parts).await {
        Ok(models) => {
            let data: Vec<Value> = models.iter().map(model_to_json).collect();
            let (first, last) =
                (data.first().map(|m| m["id"].clone()), data.last().map(|m| m["id"].clone()));
            // The fields of both families of clients are present.
            axum::Json(json!({
                "object": "list", "data": data, "has_more": false, "first_id": first, "last_id": last,
            }))
            .into_response()
        }
        Err(error) => error_response(dialect, &error, false),
    }
}

async fn get_model(
    State(doorway): State<InferenceState>,
    Path(id): Path<String>,
    parts: Parts,
) -> Response {
    let dialect = guess_dialect(&parts.headers);
    let found = offered_models(&doorway, &parts).await.and_then(|models| {
        models.into_iter().find(|model| model.id == id).ok_or_else(|| {
            ModelError::new(ModelErrorKind::NotFound, "there is no such model")
                .with_code("model_not_found")
        })
    });
    match found {
        Ok(model) => axum::Json(model_to_json(&model)).into_response(),
        Err(error) => error_response(dialect, &error, false),
    }
}

async fn offered_models(
    doorway: &InferenceState,
    parts: &Parts,
) -> Result<Vec<OfferedModel>, ModelError> {
    let (who, _) =
        doorway.authenticate_caller(parts, doorway.request_trace(&parts.extensions)).await?;
    inference::list_offered_models(&doorway.state.app, &who)
        .await
        .map_err(|error| ModelError::new(ModelErrorKind::Unavailable, error.to_string()))
}

fn model_to_json(model: &OfferedModel) -> Value {
    let at = model.created.format(&time::format_description::well_known::Rfc3339);
    json!({
        "id": model.id, "object": "model", "created": model.created.unix_timestamp(), "owned_by": model.owner,
        "type": "model", "lifecycle": "active", "display_name": model.title, "created_at": at.unwrap_or_default(),
    })
}

async fn count_tokens(State(doorway): State<InferenceState>, request: HttpRequest) -> Response {
    let trace = doorway.request_trace(request.extensions());
    let counted = async {
        let (parts, body) = request.into_parts();
        let (who, caller) = doorway.authenticate_caller(&parts, trace).await?;
        let _permit = doorway.open_stream(&who, &parts.extensions)?;
        let (body, _) = doorway.read_model_request(&who, caller, body).await?;
        Ok(inference::estimate_tokens(&body))
    };
    match counted.await {
        Ok(tokens) => axum::Json(json!({ "input_tokens": tokens })).into_response(),
        Err(error) => error_response(Dialect::Messages, &error, false),
    }
}
