//! Extractors of handlers. A rejection is always problem+json.

#![expect(clippy::disallowed_types, reason = "these are the wrappers")]

use std::{convert::Infallible, marker::PhantomData};

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, MatchedPath, Request as HttpRequest},
    http::{Extensions, HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use cynode_app::{
    App, AuthenticatedCaller, ClientSource, Error, IdempotentAttempt, OperationAnswer,
    OperationRequest,
    identity::{
        scim::ScimClient,
        service_tokens::{ServiceIdentity, ServiceKind},
        session_origin::SessionClient,
    },
    nodes::{self, AuthenticatedNode},
    platform::{
        certificates::CertifiedClient,
        tokens::{self, PresentedToken},
    },
};
use cynode_core::{
    paging::{Cursor, PageRequest},
    releases::{RELEASE_HEADER, Release},
    trace::TraceId,
};
use cynode_wire::{nodes::NodeHeartbeat, platform::processes::ProcessKind};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    AppState, browser::is_json_content, error::ApiError, key_scopes::require_operation_scope,
};

/// The header that carries the idempotency key.
pub(crate) const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";

/// Header of a request that a page sends by itself, without an act of its person. Any value counts.
const AUTOMATIC_REQUEST_HEADER: &str = "x-cynode-automatic";

/// Validated path parameters.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(ApiError))]
pub(crate) struct Path<T>(pub(crate) T);

/// Validated query parameters.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(ApiError))]
pub(crate) struct Query<T>(pub(crate) T);

/// The source of a request, as the server knows it from its connection.
pub(crate) struct RequestSource(pub(crate) ClientSource);

impl<S: Sync> FromRequestParts<S> for RequestSource {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(source_of(&parts.extensions)))
    }
}

/// Returns the source of a request. A request without a connection is made within this process.
pub(crate) fn source_of(extensions: &Extensions) -> ClientSource {
    extensions.get::<ClientSource>().copied().unwrap_or(ClientSource::LOCAL)
}

/// The client of a request: what it calls itself, and its source.
pub(crate) struct RequestClient(pub(crate) SessionClient);

impl<S: Sync> FromRequestParts<S> for RequestClient {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let device = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
        Ok(Self(SessionClient::new(device, source_of(&parts.extensions))))
    }
}

/// A request of a caller without an account, whose body is not JSON or not there.
pub(crate) struct AnonymousRequest {
    pub(crate) app: App,
    pub(crate) request: OperationRequest,
}

impl FromRequestParts<AppState> for AnonymousRequest {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let trace = request_trace(parts, &state.app);
        let request = OperationRequest { caller: None, trace, attempt: None };
        Ok(Self { app: state.app.clone(), request })
    }
}

/// A read-only request of an authenticated caller.
pub(crate) struct AuthenticatedCall {
    pub(crate) app: App,
    pub(crate) request: OperationRequest,
    pub(crate) shown: PresentedToken,
}

/// A request of an authenticated caller that changes state, with its body.
pub(crate) struct MutationCall<T> {
    pub(crate) app: App,
    pub(crate) request: OperationRequest,
    pub(crate) body: T,
}

/// A request of a caller without an account, with its body.
pub(crate) struct AnonymousCall<T> {
    pub(crate) app: App,
    pub(crate) request: OperationRequest,
    pub(crate) body: T,
}

/// A request of a service of the installation, with its body. Such requests are idempotent by themselves, so they need
/// no
/// `Idempotency-Key`.
pub(crate) struct ServiceCall<K, T> {
    pub(crate) app: App,
    pub(crate) request: OperationRequest,
    pub(crate) service: ServiceIdentity,
    pub(crate) body: T,
    kind: PhantomData<K>,
}

/// A service role, as a type parameter in the signature of a handler.
pub(crate) trait ServiceRole {
    const KIND: ServiceKind;
    const PROCESS: ProcessKind;
}

/// Role of the runners, which drive tasks.
pub(crate) struct RunnerRole;

/// Role of the workers, which run jobs.
pub(crate) struct WorkerRole;

impl ServiceRole for RunnerRole {
    const KIND: ServiceKind = ServiceKind::Runner;
    const PROCESS: ProcessKind = ProcessKind::Runner;
}

impl ServiceRole for WorkerRole {
    const KIND: ServiceKind = ServiceKind::Worker;
    const PROCESS: ProcessKind = ProcessKind::Worker;
}

impl<K: ServiceRole, T: DeserializeOwned> FromRequest<AppState> for ServiceCall<K, T> {
    type Rejection = ApiError;

    async fn from_request(request: HttpRequest, state: &AppState) -> Result<Self, ApiError> {
        let (_, shown) = bearer_token(request.headers())?;
        let service = state.app.authenticate_service(&shown, K::KIND).await?;
        require_service_certificate(request.extensions(), K::KIND)?;
        if let Some(release) = named_release(request.headers()) {
            state.app.note_release(K::PROCESS, &service.name, release).await;
        }
        let (parts, body) = read_body(request, state).await?;
        let request = OperationRequest {
            caller: None,
            trace: request_trace(&parts, &state.app),
            attempt: None,
        };
        let body = parse_json_body(&parts.headers, &body)?;
        Ok(Self { app: state.app.clone(), request, service, body, kind: PhantomData })
    }
}

/// A request of a node, before its body is read.
pub(crate) struct NodeCall {
    pub(crate) app: App,
    pub(crate) request: OperationRequest,
    pub(crate) node: AuthenticatedNode,
}

/// A request of a node, with its body.
pub(crate) struct NodeMessage<T> {
    pub(crate) app: App,
    pub(crate) request: OperationRequest,
    pub(crate) node: AuthenticatedNode,
    pub(crate) body: T,
}

impl FromRequestParts<AppState> for NodeCall {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let (_, shown) = bearer_token(&parts.headers)?;
        let node = state.app.authenticate_node(&shown).await?;
        require_own_certificate(&parts.extensions, &node)?;
        let request = OperationRequest {
            caller: None,
            trace: request_trace(parts, &state.app),
            attempt: None,
        };
        Ok(Self { app: state.app.clone(), request, node })
    }
}

impl<T: DeserializeOwned> FromRequest<AppState> for NodeMessage<T> {
    type Rejection = ApiError;

    async fn from_request(request: HttpRequest, state: &AppState) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let NodeCall { app, request, node } =
            NodeCall::from_request_parts(&mut parts, state).await?;
        let (parts, body) = read_body(HttpRequest::from_parts(parts, body), state).await?;
        Ok(Self { app, request, node, body: parse_json_body(&parts.headers, &body)? })
    }
}

/// Refuses the token of a node on a connection with the certificate of another holder. A request without a certificate was let through by
/// [`crate::require_client_certificates`], or came to a port without TLS.
fn require_own_certificate(
    extensions: &Extensions,
    node: &AuthenticatedNode,
) -> Result<(), ApiError> {
    match extensions.get::<CertifiedClient>() {
        Some(client) if client.is_other_than(node.id) => Err(Error::Unauthenticated.into()),
        Some(_) | None => Ok(()),
    }
}

/// Refuses the token of a program on a connection with the certificate of a node or of another program.
fn require_service_certificate(extensions: &Extensions, kind: ServiceKind) -> Result<(), ApiError> {
    match extensions.get::<CertifiedClient>() {
        Some(client) if client.is_other_service_than(kind) => Err(Error::Unauthenticated.into()),
        Some(_) | None => Ok(()),
    }
}

/// A heartbeat of a node.
pub(crate) struct NodeHeartbeatCall {
    pub(crate) app: App,
    pub(crate) node: AuthenticatedNode,
    pub(crate) body: NodeHeartbeat,
}

impl FromRequest<AppState> for NodeHeartbeatCall {
    type Rejection = ApiError;

    async fn from_request(request: HttpRequest, state: &AppState) -> Result<Self, ApiError> {
        let (_, shown) = bearer_token(request.headers())?;
        let extensions = request.extensions().clone();
        let app = state.app.clone();
        let recalled = app.cached_node(&shown);
        let known = match recalled {
            Some(node) => node,
            None => app.authenticate_node(&shown).await?,
        };
        require_own_certificate(&extensions, &known)?;
        let (parts, body) = read_body(request, state).await?;
        let body: NodeHeartbeat = parse_json_body(&parts.headers, &body)?;
        // A cached identity is enough for a heartbeat that reports nothing.
        let node = match recalled {
            Some(_) if !nodes::is_idle(&body) => app.authenticate_node(&shown).await?,
            Some(_) | None => known,
        };
        Ok(Self { app, node, body })
    }
}

impl FromRequestParts<AppState> for AuthenticatedCall {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let (_, shown) = user_credential(parts, state)?;
        let caller = Some(authenticate_account(&state.app, &shown, parts).await?);
        let request =
            OperationRequest { caller, trace: request_trace(parts, &state.app), attempt: None };
        Ok(Self { app: state.app.clone(), request, shown })
    }
}

impl<T: DeserializeOwned> FromRequest<AppState> for MutationCall<T> {
    type Rejection = ApiError;

    async fn from_request(request: HttpRequest, state: &AppState) -> Result<Self, ApiError> {
        // Authenticate first: the body of an unauthenticated caller is not even read.
        let (parts, body) = request.into_parts();
        let (text, shown) = user_credential(&parts, state)?;
        let caller = Some(authenticate_account(&state.app, &shown, &parts).await?);
        let (parts, body) = read_body(HttpRequest::from_parts(parts, body), state).await?;
        let attempt = parse_attempt(&parts, &text, &body)?;
        let request =
            OperationRequest { caller, trace: request_trace(&parts, &state.app), attempt };
        Ok(Self { app: state.app.clone(), request, body: parse_json_body(&parts.headers, &body)? })
    }
}

impl<T: DeserializeOwned> FromRequest<AppState> for AnonymousCall<T> {
    type Rejection = ApiError;

    async fn from_request(request: HttpRequest, state: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = read_body(request, state).await?;
        let attempt = parse_attempt(&parts, "", &body)?;
        let request =
            OperationRequest { caller: None, trace: request_trace(&parts, &state.app), attempt };
        Ok(Self { app: state.app.clone(), request, body: parse_json_body(&parts.headers, &body)? })
    }
}

/// Authenticates an account and counts its request. An account that sends too many, and an API key that does not open the
/// operation, are refused before the body is read.
async fn authenticate_account(
    app: &App,
    shown: &PresentedToken,
    parts: &Parts,
) -> Result<AuthenticatedCaller, ApiError> {
    let caller = if is_unattended(&parts.headers) {
        app.authenticate_unattended(shown).await?
    } else {
        app.authenticate_caller(shown).await?
    };
    app.count_request(&caller)?;
    if let Some(release) = named_release(&parts.headers) {
        app.note_release(ProcessKind::CommandLine, &caller.user.as_uuid().to_string(), release)
            .await;
    }
    if caller.key.is_some() {
        let path = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
        require_operation_scope(&caller, &parts.method, path.unwrap_or_default())?;
    }
    Ok(caller)
}

/// Returns the release that a program of ours named. The middleware has refused one that is too far away.
fn named_release(headers: &HeaderMap) -> Option<Release> {
    headers.get(RELEASE_HEADER)?.to_str().ok()?.parse().ok()
}

/// Returns whether no person made a request. A client that says so of itself can only let its session end sooner.
fn is_unattended(headers: &HeaderMap) -> bool {
    accepts_event_stream(headers) || headers.contains_key(AUTOMATIC_REQUEST_HEADER)
}

/// Returns whether a request asks for server-sent events and nothing else.
fn accepts_event_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT);
    accepted.is_some_and(|kind| kind.as_bytes().eq_ignore_ascii_case(b"text/event-stream"))
}

/// Authenticates a directory by its bearer token. A cookie is no credential there.
pub(crate) async fn authenticate_directory(
    parts: &Parts,
    state: &AppState,
) -> Result<ScimClient, ApiError> {
    let (_, shown) = bearer_token(&parts.headers)?;
    Ok(state.app.authenticate_scim(&shown).await?)
}

/// Returns the credential of a user, with its text: the bearer token, or the session cookie of a request without
/// `Authorization`.
fn user_credential(parts: &Parts, state: &AppState) -> Result<(String, PresentedToken), ApiError> {
    if parts.headers.contains_key(header::AUTHORIZATION) {
        bearer_token(&parts.headers).map(|(text, shown)| (text.to_owned(), shown))
    } else {
        state.browser.cookie_credential(parts)
    }
}

/// Returns the bearer token. Any other scheme is not a credential.
fn bearer_token(headers: &HeaderMap) -> Result<(&str, PresentedToken), ApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, more) = (values.next(), values.next());
    let text = value
        .filter(|_| more.is_none())
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .ok_or(Error::Unauthenticated)?;
    let shown = tokens::parse_token(text).map_err(|_| Error::Unauthenticated)?;
    Ok((text, shown))
}

pub(crate) fn request_trace(parts: &Parts, app: &App) -> TraceId {
    parts.extensions.get::<TraceId>().copied().unwrap_or_else(|| app.environment().new_trace_id())
}

pub(crate) async fn read_body(
    request: HttpRequest,
    state: &AppState,
) -> Result<(Parts, Bytes), ApiError> {
    let (parts, body) = request.into_parts();
    let request = HttpRequest::from_parts(parts.clone(), body);
    let body = Bytes::from_request(request, state).await?;
    Ok((parts, body))
}

fn parse_attempt(
    parts: &Parts,
    token: &str,
    body: &[u8],
) -> Result<Option<IdempotentAttempt>, ApiError> {
    let mut keys = parts.headers.get_all(IDEMPOTENCY_KEY_HEADER).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    if keys.next().is_some() {
        return Err(ApiError::Malformed("there is more than one Idempotency-Key".into()));
    }
    // A key that is not ASCII becomes empty here, and validation rejects it with the rule.
    let key = key.to_str().unwrap_or_default();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let request: [&[u8]; 3] = [parts.method.as_str().as_bytes(), target.as_bytes(), body];
    Ok(Some(IdempotentAttempt::new(key, token, &request)?))
}

/// Parses a JSON body. A missing body is `null`, for endpoints that take no input.
fn parse_json_body<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, ApiError> {
    if body.is_empty() {
        return serde_json::from_str("null")
            .map_err(|_| ApiError::Malformed("a body is missing".into()));
    }
    if !is_json_content(headers) {
        return Err(ApiError::MediaType);
    }
    serde_json::from_slice(body)
        .map_err(|error| ApiError::Malformed(format!("the body is wrong: {error}")))
}

/// Pagination parameters of a list.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// The `next_cursor` of the previous page.
    #[param(value_type = Option<String>)]
    cursor: Option<Cursor>,
    /// Maximum number of items, 1 to 200; 50 by default.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 200)]
    limit: Option<u16>,
}

impl PageQuery {
    pub(crate) fn to_page_request(self) -> Result<PageRequest, ApiError> {
        let limit = self.limit.unwrap_or(PageRequest::DEFAULT_LIMIT);
        if !(1..=PageRequest::MAX_LIMIT).contains(&limit) {
            return Err(ApiError::Malformed(format!("`limit` is 1 to {}", PageRequest::MAX_LIMIT)));
        }
        Ok(PageRequest { after: self.cursor, limit })
    }
}

/// A JSON response.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: serde::Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

/// The response to a mutation. A repeated request gets the same response, byte by byte.
pub(crate) struct MutationResponse(pub(crate) StatusCode, pub(crate) OperationAnswer);

impl IntoResponse for MutationResponse {
    fn into_response(self) -> Response {
        let Self(status, OperationAnswer { body, replayed }) = self;
        let mut response = if status == StatusCode::NO_CONTENT {
            status.into_response()
        } else {
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        };
        if replayed {
            let replayed = axum::http::HeaderValue::from_static("true");
            response.headers_mut().insert("idempotency-replayed", replayed);
        }
        response
    }
}
