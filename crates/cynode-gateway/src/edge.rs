//! The HTTP endpoint.

mod stream;

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use cynode_app::{
    agents::Known,
    tokens::{self, Presented},
};
use cynode_core::{ids::CallId, sync::lock, trace::TraceParent};
use cynode_policy::{
    catalogue::Tool,
    gate::{list, open_to},
    reasons::Reason,
};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::{
    Gateway, Inner, Named,
    answers::{self, Failure, code, json_response},
    calls::{Answer, Decided, Hangup},
    envelope::{self, Era, LEGACY, Message},
    headers,
};

/// How long a caller may go by a list it was given, in milliseconds. A call is decided anew in any case.
const LIST_TTL: u64 = 5_000;

/// The media type of answers that come in pieces.
const EVENTS: &str = "text/event-stream";

/// The routes of the gateway, for the internal port.
pub fn router(gateway: &Gateway) -> Router {
    let most = gateway.inner.most_bytes;
    Router::new()
        .route("/mcp", post(message).fallback(not_here))
        .route("/.well-known/oauth-protected-resource", get(metadata))
        .route("/.well-known/oauth-protected-resource/mcp", get(metadata))
        .layer(DefaultBodyLimit::max(most))
        .with_state(gateway.inner.clone())
}

/// Streams that a server opens and sessions that a client ends are things of older revisions, and not kept here.
async fn not_here() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response()
}

/// Where tokens come from (RFC 9728): from the orchestrator itself, so no authorisation server is named.
async fn metadata(request_headers: HeaderMap) -> Response {
    let host = request_headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let body = json!({
        "resource": format!("http://{}/mcp", host.unwrap_or("localhost")),
        "resource_name": "CyNode tools",
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["agent"],
    });
    json_response(StatusCode::OK, body.to_string())
}

/// Takes one message.
async fn message(
    State(inner): State<Arc<Inner>>,
    request_headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    if !inner.hosts.admit(&request_headers) {
        let told = "this host or origin is not served here: a name under which this port is meant stands in `gate.hosts`";
        return Failure::new(StatusCode::FORBIDDEN, code::FORBIDDEN, told).response(Era::Modern);
    }
    let Ok(body) = body else {
        let told = format!("a message has at most {} bytes", inner.most_bytes);
        return Failure::new(StatusCode::PAYLOAD_TOO_LARGE, code::INVALID_REQUEST, told)
            .response(Era::Modern);
    };
    let hangup = Hangup::default();
    // Dropped when the caller's connection goes.
    let line = hangup.line();
    // What was begun is carried on in a task of its own: a caller that goes away must not leave half an operation.
    let work = inner.handle(request_headers, body, hangup).instrument(tracing::Span::current());
    let answer = match TaskTracker::new().spawn(work).await {
        Ok(answer) => answer,
        Err(_) => {
            let told = "something went wrong on our side";
            Failure::new(StatusCode::INTERNAL_SERVER_ERROR, code::INTERNAL, told)
                .response(Era::Modern)
        }
    };
    // A stream goes on after its head was answered, and keeps the line itself.
    let streams =
        answer.headers().get(header::CONTENT_TYPE) == Some(&HeaderValue::from_static(EVENTS));
    if streams { answer.map(|body| stream::holding(body, line)) } else { answer }
}

impl Inner {
    async fn handle(self: Arc<Self>, headers: HeaderMap, body: Bytes, hangup: Hangup) -> Response {
        let said = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let essence = said.and_then(|kind| kind.split(';').next()).map(str::trim);
        if essence.is_none_or(|essence| !essence.eq_ignore_ascii_case("application/json")) {
            let told = "a message is application/json";
            return Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::INVALID_REQUEST, told)
                .response(Era::Modern);
        }
        let message = match envelope::read(&headers, &body) {
            Ok(message) => message,
            Err(failure) => return failure.response(Era::Modern),
        };
        let (shown, known) = match self.authenticate(&headers, &message).await {
            Ok(found) => found,
            Err(response) => return *response,
        };
        match message {
            Message::Response => StatusCode::ACCEPTED.into_response(),
            Message::Notification { method, params } => {
                if method == "notifications/cancelled" {
                    self.give_up(&headers, shown, &params);
                }
                StatusCode::ACCEPTED.into_response()
            }
            Message::Request(request) => {
                let (era, id) = (request.era, request.id.clone());
                match (era, request.method.as_str()) {
                    (Era::Modern, "server/discover") => answered(&id, &discovery()),
                    (Era::Legacy, "initialize") => self.initialize(&request),
                    (Era::Legacy, "ping") => answered(&id, &json!({})),
                    (_, "tools/list") => self.list(&known, era, &id).await,
                    (_, "tools/call") => self.call(headers, shown, known, *request, hangup).await,
                    _ => {
                        let told = "there is no such method here";
                        let failure =
                            Failure::new(StatusCode::NOT_FOUND, code::METHOD_NOT_FOUND, told);
                        failure.of(Some(id)).response(era)
                    }
                }
            }
        }
    }

    /// Who sends a message. Whoever is turned away is recorded, and told where tokens come from.
    async fn authenticate(
        &self,
        headers: &HeaderMap,
        message: &Message,
    ) -> Result<(Presented, Known), Box<Response>> {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (value, more) = (values.next(), values.next());
        let shown = value
            .filter(|_| more.is_none())
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .and_then(|text| tokens::present(text).ok());
        let (reason, known) = match shown {
            Some(shown) if shown.kind.is_agents() => match self.keeper.agent(shown).await {
                Ok(known) => return Ok((shown, known)),
                Err(reason) => (reason, self.keeper.facts(shown)),
            },
            // A token of ours that opens another door.
            Some(_) => (Reason::NotInToken, None),
            None => (Reason::NoToken, None),
        };
        Err(Box::new(self.turn_away(headers, message, &reason, known.as_ref()).await))
    }

    async fn turn_away(
        &self,
        headers: &HeaderMap,
        message: &Message,
        reason: &Reason,
        known: Option<&Known>,
    ) -> Response {
        let now = self.app.environment().now();
        let call = CallId::from_uuid(self.app.environment().uuid(now));
        let (era, id, method) = match message {
            Message::Request(request) => (request.era, request.id.clone(), request.method.as_str()),
            Message::Notification { method, .. } => (Era::Modern, Value::Null, method.as_str()),
            Message::Response => (Era::Modern, Value::Null, "response"),
        };
        let recorded = match known {
            Some(known) => self.counter.records_former(known.agent.token),
            None if !self.counter.records_stranger() => {
                return Failure::too_many(reason).of(Some(id)).response(Era::Modern);
            }
            None => true,
        };
        if !recorded {
            return refusal(headers, reason, id);
        }
        let mut entry = Self::entry(call, trace(self, headers), known, now);
        // A method is the caller's own word, unless it is one of ours.
        let ours = ["tools/call", "tools/list", "server/discover", "initialize", "ping"];
        entry.method = if ours.contains(&method) { method.to_owned() } else { "other".into() };
        let Answer { said, .. } = self.refuse(entry, era, &id, reason, None, None).await;
        // What cannot be decided or recorded is not answered as if it were.
        if let Err(failure) = &said
            && failure.code() == code::UNAVAILABLE
        {
            return failure.response(era);
        }
        answers::with_call(refusal(headers, reason, id), call)
    }

    /// The handshake of the older era. Nothing is kept: the session's name is only given because some clients want one.
    fn initialize(&self, request: &envelope::Request) -> Response {
        let wanted = request.params.get("protocolVersion").and_then(Value::as_str);
        let version = LEGACY.iter().find(|version| Some(**version) == wanted).unwrap_or(&LEGACY[0]);
        let mut response = answered(
            &request.id,
            &json!({
                "protocolVersion": version,
                "capabilities": { "tools": {} },
                "serverInfo": server_info(),
            }),
        );
        let session =
            self.app.environment().uuid(self.app.environment().now()).simple().to_string();
        if let Ok(session) = HeaderValue::from_str(&session) {
            response.headers_mut().insert("mcp-session-id", session);
        }
        response
    }

    /// The tools that the caller may call, and no others.
    async fn list(&self, known: &Known, era: Era, id: &Value) -> Response {
        let state = match self.keeper.state().await {
            Ok(state) => state,
            Err(reason) => {
                return Failure::unavailable(reason.to_string()).of(Some(id.clone())).response(era);
            }
        };
        let key = (known.agent.token.as_uuid(), known.agent.operates);
        let held = lock(&state.lists).get(&key).cloned();
        let tools = held.unwrap_or_else(|| {
            let tools: Vec<_> = list(&known.agent, &state.loaded.gate)
                .into_iter()
                .map(|tool| shown(tool))
                .collect();
            let tools: Arc<str> = Value::Array(tools).to_string().into();
            let mut lists = lock(&state.lists);
            if lists.len() > 1000 {
                lists.clear();
            }
            lists.insert(key, tools.clone());
            tools
        });
        let result = match era {
            Era::Legacy => format!("{{\"tools\":{tools}}}"),
            // What one agent sees is nobody else's business, nor any cache's in between.
            Era::Modern => format!(
                "{{\"resultType\":\"complete\",\"ttlMs\":{LIST_TTL},\"cacheScope\":\"private\",\"tools\":{tools}}}"
            ),
        };
        let mut response = json_response(StatusCode::OK, answers::result(id, &result));
        let private = HeaderValue::from_static("private, no-store");
        response.headers_mut().insert(header::CACHE_CONTROL, private);
        response
    }

    async fn call(
        self: Arc<Self>,
        headers: HeaderMap,
        shown: Presented,
        known: Known,
        mut request: envelope::Request,
        hangup: Hangup,
    ) -> Response {
        let (era, id) = (request.era, request.id.clone());
        let Some(call) = request.call.take() else {
            return Failure::bad(code::INVALID_PARAMS, "`params` are missing")
                .of(Some(id))
                .response(era);
        };
        if era == Era::Modern
            && let Ok(state) = self.keeper.state().await
            && let Some(tool) = state.loaded.gate.catalogue.on_the_wire(&call.name)
            && let Err(failure) =
                headers::mirrored(&headers, &tool.definition.input, &call.arguments)
            // What is not open to the caller is not spoken of: the gate refuses it in its own words.
            && open_to(&known.agent, &state.loaded.gate, tool).is_ok()
        {
            return failure.of(Some(id)).response(era);
        }
        let trace = trace(&self, &headers);
        let key = named(&headers, shown, &id);
        if era == Era::Legacy {
            self.pending().insert(key.clone(), hangup.clone());
        }
        let streams = headers
            .get_all(header::ACCEPT)
            .iter()
            .any(|accept| accept.to_str().is_ok_and(|accept| accept.contains(EVENTS)));
        let response = match self.decide(shown, known, request, call, trace).await {
            Decided::Over(answer) => said(answer, era),
            Decided::Admitted(admitted) if streams && admitted.tells_progress() => {
                // The entry among the pending ones goes with the stream.
                return stream::progress(self.clone(), *admitted, hangup, key);
            }
            Decided::Admitted(admitted) => {
                said(admitted.carry_out(hangup.clone(), None).await, era)
            }
        };
        self.ended(&key, &hangup);
        response
    }

    /// The caller gives a call up.
    fn give_up(&self, headers: &HeaderMap, shown: Presented, params: &Value) {
        let Some(id) = params.get("requestId") else { return };
        if let Some(hangup) = self.pending().get(&named(headers, shown, id)) {
            hangup.token.cancel();
        }
    }

    /// Nobody can give up a call that has ended. A later one of the same name goes on.
    fn ended(&self, key: &Named, hangup: &Hangup) {
        let mut pending = self.pending();
        if pending.get(key).is_some_and(|held| held.is(hangup)) {
            pending.remove(key);
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<Named, Hangup>> {
        lock(&self.pending)
    }
}

/// What names a call of the older era.
fn named(headers: &HeaderMap, shown: Presented, id: &Value) -> Named {
    let session = headers.get("mcp-session-id").and_then(|value| value.to_str().ok());
    (shown.hash, session.unwrap_or_default().to_owned(), id.to_string())
}

/// The trace that a message belongs to: the caller's, or a new one.
fn trace(inner: &Inner, headers: &HeaderMap) -> cynode_core::trace::TraceId {
    let parent = headers.get("traceparent").and_then(|value| value.to_str().ok());
    let parent: Option<TraceParent> = parent.and_then(|text| text.parse().ok());
    parent.map_or_else(|| inner.app.environment().trace(), |parent| parent.trace)
}

fn said(answer: Answer, era: Era) -> Response {
    let response = match answer.said {
        Ok(body) => json_response(StatusCode::OK, body),
        Err(failure) => failure.response(era),
    };
    answers::with_call(response, answer.call)
}

fn answered(id: &Value, result: &Value) -> Response {
    json_response(StatusCode::OK, answers::result(id, &result.to_string()))
}

fn server_info() -> Value {
    json!({ "name": "cynode", "title": "CyNode", "version": env!("CARGO_PKG_VERSION") })
}

fn discovery() -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": answers::supported(),
        "capabilities": { "tools": {} },
        "ttlMs": 60_000,
        "cacheScope": "private",
        "_meta": { "io.modelcontextprotocol/serverInfo": server_info() },
    })
}

/// A tool as agents see it.
fn shown(tool: &Tool) -> Value {
    let definition = &tool.definition;
    let mut shown = json!({
        "name": definition.name.wire(),
        "title": definition.title,
        "description": definition.description,
        "inputSchema": definition.input,
        "annotations": definition.annotations,
    });
    if let Some(output) = answers::promised(tool) {
        shown["outputSchema"] = output.clone();
    }
    shown
}

/// The head of an event stream.
fn event_stream(body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENTS));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// What somebody is told whose token opens nothing here.
fn refusal(headers: &HeaderMap, reason: &Reason, id: Value) -> Response {
    let (status, error, scope) = match reason {
        Reason::NotInToken => (StatusCode::FORBIDDEN, "insufficient_scope", Some("agent")),
        _ => (StatusCode::UNAUTHORIZED, "invalid_token", None),
    };
    let word =
        if status == StatusCode::FORBIDDEN { code::FORBIDDEN } else { code::UNAUTHENTICATED };
    let told = format!("{reason}. {}", reason.advice());
    let mut response = Failure::new(status, word, told).of(Some(id)).response(Era::Modern);
    let challenge = answers::challenge(headers, error, scope);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    response
}
