//! HTTP endpoint of MCP.

mod stream;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use cynode_app::{
    platform::{
        body_budget::{BodyError, BodyLimits, BodyReservation, ReservedBody, body_caller_of},
        certificates::CertifiedClient,
        tokens::{self, PresentedToken},
    },
    tools::agent_tokens::ResolvedAgentToken,
};
use cynode_core::{
    agents::AgentRole,
    ids::CallId,
    releases::{RELEASE_HEADER, Release},
    sync::lock_unpoisoned,
    trace::TraceParent,
};
use cynode_policy::{
    agents::AgentIdentity,
    catalogue::CatalogueTool,
    decision::{check_tool_access, list_permitted_tools, optional_ids},
    reasons::RefusalReason,
};
use cynode_wire::platform::processes::ProcessKind;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::{
    Gateway, GatewayShared, PendingCallKey,
    calls::{CallAnswer, CallDecision, Cancellation},
    envelope::{self, LEGACY_VERSIONS, McpMessage, ProtocolEra},
    headers,
    responses::{self, RpcError, code, json_response},
};

/// Time for which a caller may cache a tool list, in milliseconds. Every call is decided anew in any case.
const TOOL_LIST_TTL_MS: u64 = 5_000;

/// Maximum number of JSON values of a message.
const MAX_MESSAGE_VALUES: usize = 50_000;

/// Maximum size of a message of the installation's own programs, unless more is configured for all.
const MAX_SERVICE_MESSAGE_BYTES: usize = 8 * 1024 * 1024;
/// Time until the answer to a message begins. It is longer than any tool may take, and a stream may go on for longer.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(15);

/// Media type of streamed answers.
const EVENT_STREAM_MEDIA_TYPE: &str = "text/event-stream";

/// Returns the routes of the gateway, for the internal port.
pub fn gateway_router(gateway: &Gateway) -> Router {
    Router::new()
        .route("/mcp", post(receive_message).fallback(method_not_allowed))
        .route("/.well-known/oauth-protected-resource", get(resource_metadata))
        .route("/.well-known/oauth-protected-resource/mcp", get(resource_metadata))
        .layer(middleware::from_fn(limit_request_time))
        .with_state(gateway.inner.clone())
}

/// Gives up a request whose answer does not begin in time.
async fn limit_request_time(request: Request, next: Next) -> Response {
    let answered = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await;
    answered.unwrap_or_else(|_| {
        let told =
            "the request took too long and was given up; look at what it did before you repeat it";
        RpcError::service_unavailable(told).to_response(ProtocolEra::Modern)
    })
}

/// Rejects server-opened streams and session deletion. Both belong to older revisions, and the gateway keeps no sessions.
async fn method_not_allowed() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response()
}

/// Returns the protected resource metadata (RFC 9728). The orchestrator itself issues tokens, so no authorization server is named.
async fn resource_metadata(request_headers: HeaderMap) -> Response {
    let host = request_headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let body = json!({
        "resource": format!("http://{}/mcp", host.unwrap_or("localhost")),
        "resource_name": "CyNode tools",
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["agent"],
    });
    json_response(StatusCode::OK, body.to_string())
}

/// Handles one message.
async fn receive_message(State(inner): State<Arc<GatewayShared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let client = parts.extensions.get::<CertifiedClient>().cloned();
    let request_headers = parts.headers;
    if !inner.hosts.admits_request(&request_headers) {
        let told = "this host or origin is not served here: a name under which this port is meant stands in `gateway.allowed_hosts`";
        return RpcError::new(StatusCode::FORBIDDEN, code::FORBIDDEN, told)
            .to_response(ProtocolEra::Modern);
    }
    let hangup = Cancellation::default();
    // The guard is dropped when the caller's connection closes.
    let line = hangup.connection_guard();
    // The call runs in its own task: a caller that disconnects must not leave a partial operation.
    let work = inner.handle_message(request_headers, client, body, hangup);
    let work = work.instrument(tracing::Span::current());
    let answer = match TaskTracker::new().spawn(work).await {
        Ok(answer) => answer,
        Err(_) => {
            let told = "something went wrong on our side";
            RpcError::new(StatusCode::INTERNAL_SERVER_ERROR, code::INTERNAL_ERROR, told)
                .to_response(ProtocolEra::Modern)
        }
    };
    // A stream continues after its headers are sent, so its body holds the guard.
    let streams = answer.headers().get(header::CONTENT_TYPE)
        == Some(&HeaderValue::from_static(EVENT_STREAM_MEDIA_TYPE));
    if streams { answer.map(|body| stream::guard_body(body, line)) } else { answer }
}

impl GatewayShared {
    async fn handle_message(
        self: Arc<Self>,
        headers: HeaderMap,
        client: Option<CertifiedClient>,
        body: Body,
        hangup: Cancellation,
    ) -> Response {
        let said = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let essence = said.and_then(|kind| kind.split(';').next()).map(str::trim);
        if essence.is_none_or(|essence| !essence.eq_ignore_ascii_case("application/json")) {
            let told = "a message is application/json";
            return RpcError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::INVALID_REQUEST, told)
                .to_response(ProtocolEra::Modern);
        }
        // Authenticate first, before the body is read.
        let (shown, known) = match self.authenticate_caller(&headers, client.as_ref()).await {
            Ok(found) => found,
            Err(response) => return *response,
        };
        let ReservedBody { bytes, reservation } = match self.read_message(shown, &known, body).await
        {
            Ok(body) => body,
            Err(error) => return body_failure(&error).to_response(ProtocolEra::Modern),
        };
        let message = match envelope::parse_message(&headers, &bytes) {
            Ok(message) => message,
            Err(failure) => return failure.to_response(ProtocolEra::Modern),
        };
        drop(bytes);
        match message {
            McpMessage::Response => StatusCode::ACCEPTED.into_response(),
            McpMessage::Notification { method, params } => {
                if method == "notifications/cancelled" {
                    self.cancel_call(&headers, shown, &params);
                }
                StatusCode::ACCEPTED.into_response()
            }
            McpMessage::Request(request) => {
                let (era, id) = (request.era, request.id.clone());
                match (era, request.method.as_str()) {
                    (ProtocolEra::Modern, "server/discover") => {
                        result_response(&id, &discovery_result())
                    }
                    (ProtocolEra::Legacy, "initialize") => self.initialize_session(&request),
                    (ProtocolEra::Legacy, "ping") => result_response(&id, &json!({})),
                    (_, "tools/list") => self.handle_tools_list(&known, era, &id).await,
                    (_, "tools/call") => {
                        let call = (*request, reservation);
                        self.handle_tools_call(headers, shown, known, call, hangup).await
                    }
                    _ => {
                        let told = "there is no such method here";
                        let failure =
                            RpcError::new(StatusCode::NOT_FOUND, code::METHOD_NOT_FOUND, told);
                        failure.with_request_id(Some(id)).to_response(era)
                    }
                }
            }
        }
    }

    /// Authenticates the sender of a message. A rejected caller is recorded, and the answer says where tokens come from. A token on a
    /// connection with the certificate of somebody else was stolen.
    async fn authenticate_caller(
        &self,
        headers: &HeaderMap,
        client: Option<&CertifiedClient>,
    ) -> Result<(PresentedToken, ResolvedAgentToken), Box<Response>> {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (value, more) = (values.next(), values.next());
        let shown = value
            .filter(|_| more.is_none())
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .and_then(|text| tokens::parse_token(text).ok());
        let (reason, known) = match shown {
            Some(shown) if shown.kind.opens_gateway() => {
                match self.keeper.resolve_token(shown).await {
                    Ok(known) if client.is_some_and(|own| !own.may_show_agent_token(&known)) => {
                        (RefusalReason::InvalidToken, Some(known))
                    }
                    Ok(known) => {
                        self.note_release(headers, &known).await;
                        return Ok((shown, known));
                    }
                    Err(reason) => (reason, self.keeper.last_known_agent(shown)),
                }
            }
            // A valid format, but a kind of token that does not open the gateway.
            Some(_) => (RefusalReason::NotGrantedByToken, None),
            None => (RefusalReason::InvalidToken, None),
        };
        Err(Box::new(self.reject_caller(headers, &reason, known.as_ref()).await))
    }

    /// Notes the release that a program of the installation named.
    async fn note_release(&self, headers: &HeaderMap, known: &ResolvedAgentToken) {
        let kind = match known.agent.role {
            AgentRole::ManagerHost => ProcessKind::Manager,
            AgentRole::AnalystHost => ProcessKind::Analyst,
            AgentRole::WorkflowRunner => ProcessKind::Runner,
            _ => return,
        };
        let named = headers.get(RELEASE_HEADER).and_then(|named| named.to_str().ok());
        let release = named.and_then(|named| named.parse::<Release>().ok());
        if let (Some(name), Some(release)) = (&known.service, release) {
            self.app.note_release(kind, name, release).await;
        }
    }

    /// Reads the body of an authenticated caller's message.
    async fn read_message(
        &self,
        shown: PresentedToken,
        known: &ResolvedAgentToken,
        body: Body,
    ) -> Result<ReservedBody, BodyError> {
        let max_bytes = match known.service {
            Some(_) => self.most_bytes.max(MAX_SERVICE_MESSAGE_BYTES),
            None => self.most_bytes,
        };
        let limits = BodyLimits { max_bytes, max_values: MAX_MESSAGE_VALUES };
        let declared = body.size_hint().exact();
        let stream = body.into_data_stream();
        let caller = known.agent.user.map_or(shown.hash, body_caller_of);
        self.app.body_budget().read_body(caller, stream, declared, limits).await
    }

    async fn reject_caller(
        &self,
        headers: &HeaderMap,
        reason: &RefusalReason,
        known: Option<&ResolvedAgentToken>,
    ) -> Response {
        let now = self.app.environment().now();
        let call = CallId::from_uuid(self.app.environment().new_uuid(now));
        // The body is not read: only the headers say what was asked.
        let (era, id) = (ProtocolEra::Modern, Value::Null);
        let method = headers.get("mcp-method").and_then(|method| method.to_str().ok());
        let method = method.unwrap_or_default();
        let recorded = match known {
            Some(known) => self.counter.should_record_former(known.agent.token),
            None if !self.counter.should_record_stranger() => {
                return RpcError::too_many_requests(reason)
                    .with_request_id(Some(id))
                    .to_response(ProtocolEra::Modern);
            }
            None => true,
        };
        if !recorded {
            return unauthorized_response(headers, reason, id);
        }
        let mut entry = Self::build_audit_entry(call, trace_id_of(self, headers), known, now);
        // An unknown method name is text that the caller chose, so it is not recorded.
        let ours = ["tools/call", "tools/list", "server/discover", "initialize", "ping"];
        entry.method = if ours.contains(&method) { method.to_owned() } else { "other".into() };
        let CallAnswer { said, .. } = self.refuse_call(entry, era, &id, reason, None, None).await;
        // If the refusal cannot be decided or recorded, the answer says so.
        if let Err(failure) = &said
            && failure.error_code() == code::UNAVAILABLE
        {
            return failure.to_response(era);
        }
        responses::with_call_id(unauthorized_response(headers, reason, id), call)
    }

    /// Handles the handshake of the legacy era. The gateway keeps no session: it sends a session id only because some clients need one.
    fn initialize_session(&self, request: &envelope::McpRequest) -> Response {
        let wanted = request.params.get("protocolVersion").and_then(Value::as_str);
        let version = LEGACY_VERSIONS
            .iter()
            .find(|version| Some(**version) == wanted)
            .unwrap_or(&LEGACY_VERSIONS[0]);
        let mut response = result_response(
            &request.id,
            &json!({
                "protocolVersion": version,
                "capabilities": { "tools": {} },
                "serverInfo": server_info(),
            }),
        );
        let session =
            self.app.environment().new_uuid(self.app.environment().now()).simple().to_string();
        if let Ok(session) = HeaderValue::from_str(&session) {
            response.headers_mut().insert("mcp-session-id", session);
        }
        response
    }

    /// Lists the tools that the caller may call, and no others.
    async fn handle_tools_list(
        &self,
        known: &ResolvedAgentToken,
        era: ProtocolEra,
        id: &Value,
    ) -> Response {
        let state = match self.keeper.fresh_policy().await {
            Ok(state) => state,
            Err(reason) => {
                return RpcError::service_unavailable(reason.to_string())
                    .with_request_id(Some(id.clone()))
                    .to_response(era);
            }
        };
        let agent = &known.agent;
        let key = (agent.token.as_uuid(), agent.operates, agent.profile.version);
        let held = lock_unpoisoned(&state.lists).get(&key).cloned();
        let tools = held.unwrap_or_else(|| {
            let tools: Vec<_> = list_permitted_tools(&known.agent, &state.loaded.gate)
                .into_iter()
                .map(|tool| render_tool(&known.agent, tool))
                .collect();
            let tools: Arc<str> = Value::Array(tools).to_string().into();
            let mut lists = lock_unpoisoned(&state.lists);
            if lists.len() > 1000 {
                lists.clear();
            }
            lists.insert(key, tools.clone());
            tools
        });
        let result = match era {
            ProtocolEra::Legacy => format!("{{\"tools\":{tools}}}"),
            // The list depends on the agent, so shared caches must not store it.
            ProtocolEra::Modern => format!(
                "{{\"resultType\":\"complete\",\"ttlMs\":{TOOL_LIST_TTL_MS},\"cacheScope\":\"private\",\"tools\":{tools}}}"
            ),
        };
        let mut response = json_response(StatusCode::OK, responses::render_result(id, &result));
        let private = HeaderValue::from_static("private, no-store");
        response.headers_mut().insert(header::CACHE_CONTROL, private);
        response
    }

    async fn handle_tools_call(
        self: Arc<Self>,
        headers: HeaderMap,
        shown: PresentedToken,
        known: ResolvedAgentToken,
        (mut request, reservation): (envelope::McpRequest, BodyReservation),
        hangup: Cancellation,
    ) -> Response {
        let (era, id) = (request.era, request.id.clone());
        let Some(call) = request.call.take() else {
            return RpcError::bad_request(code::INVALID_PARAMS, "`params` are missing")
                .with_request_id(Some(id))
                .to_response(era);
        };
        if era == ProtocolEra::Modern
            && let Ok(state) = self.keeper.fresh_policy().await
            && let Some(tool) = state.loaded.gate.catalogue.find_by_wire_name(&call.name)
            && let Err(failure) =
                headers::check_mirrored_headers(&headers, &tool.definition.input, &call.arguments)
            // The answer reveals nothing about a tool that the caller may not call: the policy refuses it.
            && check_tool_access(&known.agent, &state.loaded.gate, tool).is_ok()
        {
            return failure.with_request_id(Some(id)).to_response(era);
        }
        let trace = trace_id_of(&self, &headers);
        let key = pending_call_key(&headers, shown, &id);
        if era == ProtocolEra::Legacy {
            self.lock_pending().insert(key.clone(), hangup.clone());
        }
        let streams = headers.get_all(header::ACCEPT).iter().any(|accept| {
            accept.to_str().is_ok_and(|accept| accept.contains(EVENT_STREAM_MEDIA_TYPE))
        });
        let decision = self.decide_call(shown, known, request, call, trace).await;
        // A call that runs keeps what it needs of the message; the limits of its agent bound how many do.
        drop(reservation);
        let response = match decision {
            CallDecision::Over(answer) => answer_response(answer, era),
            CallDecision::Admitted(admitted) if streams && admitted.reports_progress() => {
                // The stream removes the pending entry when it ends.
                return stream::stream_progress(self.clone(), *admitted, hangup, key);
            }
            CallDecision::Admitted(admitted) => {
                answer_response(admitted.execute_call(hangup.clone(), None).await, era)
            }
        };
        self.remove_pending(&key, &hangup);
        response
    }

    /// Handles the caller's cancellation of a call.
    fn cancel_call(&self, headers: &HeaderMap, shown: PresentedToken, params: &Value) {
        let Some(id) = params.get("requestId") else { return };
        if let Some(hangup) = self.lock_pending().get(&pending_call_key(headers, shown, id)) {
            hangup.token.cancel();
        }
    }

    /// Removes a finished call from the pending ones. A later call with the same key stays.
    fn remove_pending(&self, key: &PendingCallKey, hangup: &Cancellation) {
        let mut pending = self.lock_pending();
        if pending.get(key).is_some_and(|held| held.is_same_call(hangup)) {
            pending.remove(key);
        }
    }

    fn lock_pending(
        &self,
    ) -> std::sync::MutexGuard<'_, std::collections::HashMap<PendingCallKey, Cancellation>> {
        lock_unpoisoned(&self.pending)
    }
}

/// Encodes why the body of a message was not read.
fn body_failure(error: &BodyError) -> RpcError {
    let (status, word) = match error {
        BodyError::TooLarge(_) | BodyError::TooManyValues(_) => {
            (StatusCode::PAYLOAD_TOO_LARGE, code::INVALID_REQUEST)
        }
        BodyError::Overloaded => (StatusCode::TOO_MANY_REQUESTS, code::TOO_MANY_REQUESTS),
        BodyError::TooSlow => (StatusCode::REQUEST_TIMEOUT, code::INVALID_REQUEST),
        BodyError::Broken(_) => (StatusCode::BAD_REQUEST, code::INVALID_REQUEST),
    };
    RpcError::new(status, word, error.to_string())
}

/// Returns the key of a pending call of the legacy era.
fn pending_call_key(headers: &HeaderMap, shown: PresentedToken, id: &Value) -> PendingCallKey {
    let session = headers.get("mcp-session-id").and_then(|value| value.to_str().ok());
    (shown.hash, session.unwrap_or_default().to_owned(), id.to_string())
}

/// Returns the trace id of a message: the caller's, or a new one.
fn trace_id_of(inner: &GatewayShared, headers: &HeaderMap) -> cynode_core::trace::TraceId {
    let parent = headers.get("traceparent").and_then(|value| value.to_str().ok());
    let parent: Option<TraceParent> = parent.and_then(|text| text.parse().ok());
    parent.map_or_else(|| inner.app.environment().new_trace_id(), |parent| parent.trace)
}

fn answer_response(answer: CallAnswer, era: ProtocolEra) -> Response {
    let response = match answer.said {
        Ok(body) => json_response(StatusCode::OK, body),
        Err(failure) => failure.to_response(era),
    };
    responses::with_call_id(response, answer.call)
}

fn result_response(id: &Value, result: &Value) -> Response {
    json_response(StatusCode::OK, responses::render_result(id, &result.to_string()))
}

fn server_info() -> Value {
    json!({ "name": "cynode", "title": "CyNode", "version": env!("CARGO_PKG_VERSION") })
}

fn discovery_result() -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": responses::supported_versions(),
        "capabilities": { "tools": {} },
        "ttlMs": 60_000,
        "cacheScope": "private",
        "_meta": { "io.modelcontextprotocol/serverInfo": server_info() },
    })
}

/// Description of an id that the agent's token holds.
const TOKEN_ID_DESCRIPTION: &str = "Your token has it: leave it out.";

/// Returns the input schema of a tool as an agent sees it: ids that its token holds are optional.
fn input_schema_of(agent: &AgentIdentity, tool: &CatalogueTool) -> Value {
    let mut input = tool.definition.input.clone();
    let own = optional_ids(agent, tool);
    if let Some(required) = input.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !own.iter().any(|own| name == own));
    }
    for name in own {
        if let Some(property) = input.pointer_mut(&format!("/properties/{name}")) {
            property["description"] = Value::from(TOKEN_ID_DESCRIPTION);
        }
    }
    input
}

/// Renders a tool for agents.
fn render_tool(agent: &AgentIdentity, tool: &CatalogueTool) -> Value {
    let definition = &tool.definition;
    let mut shown = json!({
        "name": definition.name.to_wire_name(),
        "title": definition.title,
        "description": definition.description,
        "inputSchema": input_schema_of(agent, tool),
        "annotations": definition.annotations,
    });
    if let Some(output) = responses::output_schema_of(tool) {
        shown["outputSchema"] = output.clone();
    }
    shown
}

/// Builds the response of an event stream.
fn event_stream(body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM_MEDIA_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Builds the answer for a caller whose token does not open the gateway.
fn unauthorized_response(headers: &HeaderMap, reason: &RefusalReason, id: Value) -> Response {
    let (status, error, scope) = match reason {
        RefusalReason::NotGrantedByToken => {
            (StatusCode::FORBIDDEN, "insufficient_scope", Some("agent"))
        }
        _ => (StatusCode::UNAUTHORIZED, "invalid_token", None),
    };
    let word =
        if status == StatusCode::FORBIDDEN { code::FORBIDDEN } else { code::UNAUTHENTICATED };
    let told = format!("{reason}. {}", reason.caller_advice());
    let mut response = RpcError::new(status, word, told)
        .with_request_id(Some(id))
        .to_response(ProtocolEra::Modern);
    let challenge = responses::auth_challenge(headers, error, scope);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    response
}
