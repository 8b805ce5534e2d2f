//! Upstream servers over streamable HTTP, of both eras.
//!
//! The client is written on top of the HTTP client rather than an MCP library, for three reasons: arguments and results
//! pass through as bytes, every read is bounded, and a call costs little more than its POST.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cynode_net::sse::SseEventParser;
use futures::FutureExt as _;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode, Url};
use secrecy::SecretString;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::catalog::{self, HeaderMirrors, MAX_PAGE_BYTES, UpstreamCatalog};
use super::error::{ConnectionEffect, ExchangeFailure};
use super::message::{self, ServerMessage, UpstreamEra};
use super::{
    CallProgress, MAX_ANSWER_BYTES, UpstreamCall, UpstreamError, UpstreamReply, UpstreamTool,
    header,
};

/// Maximum number of bytes of one stream: an answer and the notifications around it.
const MAX_STREAM_BYTES: usize = 4 * MAX_ANSWER_BYTES;

/// Maximum size of the answer that detects the era or starts a session.
const MAX_HANDSHAKE_BYTES: usize = 1024 * 1024;

/// Additional bytes of an event for its id, its name and its field names.
const SSE_FIELD_BYTES: usize = 1024;

/// Timeout of a best-effort message, whose answer is not needed.
const BEST_EFFORT_TIMEOUT: Duration = Duration::from_secs(2);

/// A server over HTTP whose era is known.
#[derive(Debug)]
pub(super) struct HttpConnection {
    link: HttpEndpoint,
    era: UpstreamEra,
    next: AtomicU64,
    mirrors: RwLock<Arc<HeaderMirrors>>,
}

impl HttpConnection {
    /// Detects the era, and starts a session in the legacy era.
    pub(super) async fn open_connection(
        client: &Client,
        url: &str,
        headers: &[(String, SecretString)],
        patience: Duration,
        tasks: &TaskTracker,
    ) -> Result<Self, UpstreamError> {
        let mut link = HttpEndpoint::new(client, url, headers, tasks)?;
        let era = match timeout(patience, link.discover_era()).await {
            Ok(discovered) => discovered?,
            Err(_) => None,
        };
        let era = match era {
            Some(era) => era,
            None => link.initialize_session().await?,
        };
        link.headers
            .insert(header::VERSION_HEADER, HeaderValue::from_static(era.protocol_version()));
        let http = Self { link, era, next: AtomicU64::new(3), mirrors: RwLock::default() };
        match era {
            // Only the list tells which arguments are mirrored into headers. A server whose list fails may still have working tools.
            UpstreamEra::Modern => match http.list_tools().await {
                Ok(_) | Err(ExchangeFailure { effect: ConnectionEffect::Keep, .. }) => {}
                Err(failure) => return Err(failure.error),
            },
            UpstreamEra::Legacy(_) => http.send_initialized().await?,
        }
        Ok(http)
    }

    async fn send_initialized(&self) -> Result<(), UpstreamError> {
        let response = self
            .link
            .post_body(self.link.headers.clone(), message::encode_initialized()?)
            .await
            .map_err(|failure| failure.error)?;
        let status = response.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(UpstreamError::Status { status: status.as_u16() })
        }
    }

    /// Lists all tools of the server.
    pub(super) async fn list_tools(&self) -> Result<Vec<UpstreamTool>, ExchangeFailure> {
        let mut tools = self.fetch_pages().await?;
        if self.era == UpstreamEra::Modern {
            let mirrors = Arc::new(catalog::extract_mirrors(&mut tools));
            *self.mirrors.write().unwrap_or_else(PoisonError::into_inner) = mirrors;
        }
        Ok(tools)
    }

    async fn fetch_pages(&self) -> Result<Vec<UpstreamTool>, ExchangeFailure> {
        let mut catalog = UpstreamCatalog::default();
        loop {
            let id = self.next_id();
            let body = message::encode_list_tools(id, self.era, catalog.next_cursor())
                .map_err(ExchangeFailure::keep_connection)?;
            let headers = self.request_headers("tools/list");
            let page = self.send_request(id, headers, body, None, MAX_PAGE_BYTES).await?;
            match catalog.add_page(&page)? {
                ControlFlow::Continue(next) => catalog = next,
                ControlFlow::Break(tools) => return Ok(tools),
            }
        }
    }

    /// Calls a tool.
    pub(super) async fn call_tool(
        &self,
        call: &UpstreamCall<'_>,
    ) -> Result<UpstreamReply, ExchangeFailure> {
        let outcome = self.call_once(call).await;
        let Err(ExchangeFailure {
            error: UpstreamError::Protocol { code: message::HEADER_MISMATCH, .. },
            ..
        }) = &outcome
        else {
            return outcome;
        };
        // The server rejected the call before executing it: the tool's schema requires other headers than when it was last read.
        self.list_tools().await?;
        self.call_once(call).await
    }

    async fn call_once(&self, call: &UpstreamCall<'_>) -> Result<UpstreamReply, ExchangeFailure> {
        let id = self.next_id();
        let body = message::encode_call_tool(id, self.era, call)
            .map_err(ExchangeFailure::keep_connection)?;
        let mut headers = self.request_headers("tools/call");
        if self.era == UpstreamEra::Modern {
            headers.insert(header::NAME_HEADER, header::to_header_value(call.tool));
            let mirrors = Arc::clone(&self.mirrors.read().unwrap_or_else(PoisonError::into_inner));
            if let Some(mirrors) = mirrors.get(call.tool) {
                header::insert_mirrors(&mut headers, mirrors, call.arguments);
            }
        }
        let result =
            self.send_request(id, headers, body, call.progress.as_ref(), MAX_ANSWER_BYTES).await?;
        message::parse_reply(self.era, result).map_err(ExchangeFailure::keep_connection)
    }

    /// Sends a request and waits for its answer of at most `limit` bytes. If the caller stops waiting, the server is notified.
    async fn send_request(
        &self,
        id: u64,
        headers: HeaderMap,
        body: Vec<u8>,
        progress: Option<&mpsc::Sender<CallProgress>>,
        limit: usize,
    ) -> Result<Box<RawValue>, ExchangeFailure> {
        let mut withdrawal = HttpCancelGuard { http: self, id, due: true };
        let response = self.link.post_body(headers, body).await;
        let outcome = match response {
            Ok(response) => self.link.read_answer(response, id, progress, limit).await,
            Err(failure) => Err(failure),
        };
        withdrawal.due = false;
        outcome
    }

    fn request_headers(&self, method: &'static str) -> HeaderMap {
        let mut headers = self.link.headers.clone();
        if self.era == UpstreamEra::Modern {
            headers.insert(header::METHOD_HEADER, HeaderValue::from_static(method));
        }
        headers
    }

    fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends the session, if there is one.
    pub(super) async fn close_session(&self) {
        if !self.link.has_session() {
            return;
        }
        let request = self
            .link
            .client
            .delete(self.link.url.clone())
            .headers(self.link.headers.clone())
            .timeout(BEST_EFFORT_TIMEOUT);
        // Servers may reject this; the session then expires by itself.
        drop(request.send().await);
    }
}

/// Notifies a legacy server that a request was cancelled, unless its answer has arrived.
///
/// It does so on drop, so it covers all causes: timeout, cancellation, and a disconnected caller. A modern server sees the connection close
/// and needs no notification.
struct HttpCancelGuard<'a> {
    http: &'a HttpConnection,
    id: u64,
    due: bool,
}

impl Drop for HttpCancelGuard<'_> {
    fn drop(&mut self) {
        if self.due
            && matches!(self.http.era, UpstreamEra::Legacy(_))
            && let Ok(body) = message::encode_cancelled(self.id)
        {
            self.http.link.post_detached(body);
        }
    }
}

/// Endpoint of a server, with the headers of every request.
#[derive(Clone, Debug)]
struct HttpEndpoint {
    client: Client,
    url: Url,
    headers: HeaderMap,
    tasks: TaskTracker,
}

impl HttpEndpoint {
    fn new(
        client: &Client,
        url: &str,
        headers: &[(String, SecretString)],
        tasks: &TaskTracker,
    ) -> Result<Self, UpstreamError> {
        let url = Url::parse(url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            // Credentials belong in headers, where they are stored as secrets.
            .filter(|url| url.username().is_empty() && url.password().is_none())
            .ok_or(UpstreamError::Misconfigured("the address"))?;
        let mut headers = header::parse_configured_headers(headers)?;
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Self { client: client.clone(), url, headers, tasks: tasks.clone() })
    }

    /// Sends a discovery request of the modern era. Returns `None` if the server does not support it.
    async fn discover_era(&self) -> Result<Option<UpstreamEra>, UpstreamError> {
        let mut headers = self.headers.clone();
        headers.insert(header::VERSION_HEADER, HeaderValue::from_static(message::MODERN_VERSION));
        headers.insert(header::METHOD_HEADER, HeaderValue::from_static("server/discover"));
        let response = self
            .post_body(headers, message::encode_discover(1)?)
            .await
            .map_err(|failure| failure.error)?;
        match self.read_answer(response, 1, None, MAX_HANDSHAKE_BYTES).await {
            Ok(result) => Ok(message::era_from_discovery(&result)),
            // An outage or a rejection says nothing about the era.
            Err(ExchangeFailure { effect: ConnectionEffect::Lose, error }) => Err(error),
            Err(ExchangeFailure { error: UpstreamError::Status { status }, .. })
                if matches!(status, 401 | 403 | 429 | 500..) =>
            {
                Err(UpstreamError::Status { status })
            }
            Err(_) => Ok(None),
        }
    }

    /// Sends the handshake of the legacy era and stores its session.
    async fn initialize_session(&mut self) -> Result<UpstreamEra, UpstreamError> {
        let response = self
            .post_body(self.headers.clone(), message::encode_initialize(2)?)
            .await
            .map_err(|failure| failure.error)?;
        let session = response.headers().get(header::SESSION_HEADER).cloned();
        match self.read_answer(response, 2, None, MAX_HANDSHAKE_BYTES).await {
            Ok(result) => {
                if let Some(mut session) = session {
                    session.set_sensitive(true);
                    self.headers.insert(header::SESSION_HEADER, session);
                }
                message::era_from_initialize(&result)
            }
            // The server was only slow to answer the first request.
            Err(failure) if message::supports_modern(&failure.error) => Ok(UpstreamEra::Modern),
            Err(failure) => Err(failure.error),
        }
    }

    fn has_session(&self) -> bool {
        self.headers.contains_key(header::SESSION_HEADER)
    }

    /// Returns whether the server is known to be modern. A modern server may not send requests.
    fn is_modern(&self) -> bool {
        self.headers
            .get(header::VERSION_HEADER)
            .is_some_and(|version| version == message::MODERN_VERSION)
    }

    async fn post_body(
        &self,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<Response, ExchangeFailure> {
        let mut request = reqwest::Request::new(Method::POST, self.url.clone());
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body.into());
        self.client.execute(request).await.map_err(transport_failure)
    }

    /// Posts a best-effort message without waiting for its answer.
    fn post_detached(&self, body: Vec<u8>) {
        // Outside of a runtime nothing can be sent, and drop must not panic.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let link = self.clone();
        self.tasks.spawn(async move {
            let sent =
                timeout(BEST_EFFORT_TIMEOUT, link.post_body(link.headers.clone(), body)).await;
            drop(sent);
        });
    }

    /// Reads the answer to request `id` from a response, of at most `limit` bytes.
    async fn read_answer(
        &self,
        response: Response,
        id: u64,
        progress: Option<&mpsc::Sender<CallProgress>>,
        limit: usize,
    ) -> Result<Box<RawValue>, ExchangeFailure> {
        let status = response.status();
        let refused = UpstreamError::Status { status: status.as_u16() };
        match (status, ResponseKind::of_response(&response)) {
            (StatusCode::NOT_FOUND, _) if self.has_session() => {
                Err(ExchangeFailure::renew_connection(refused))
            }
            (
                StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT,
                _,
            ) => Err(ExchangeFailure::lose_connection(refused)),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
                Err(ExchangeFailure::keep_connection(refused))
            }
            (status, ResponseKind::Json) => {
                match parse_single_answer(&read_bounded(response, limit).await?, id) {
                    Err(ExchangeFailure { error: UpstreamError::Malformed(_), .. })
                        if !status.is_success() =>
                    {
                        Err(self.classify_refusal(status, refused))
                    }
                    Err(ExchangeFailure { error, effect: ConnectionEffect::Keep }) => {
                        Err(self.classify_refusal(status, error))
                    }
                    outcome => outcome,
                }
            }
            (status, _) if !status.is_success() => Err(self.classify_refusal(status, refused)),
            (_, ResponseKind::Stream) => self.read_stream(response, id, progress, limit).await,
            (_, ResponseKind::Other) => Err(ExchangeFailure::keep_connection(
                UpstreamError::Malformed("neither JSON nor an event stream"),
            )),
        }
    }

    /// Classifies the effect of a rejection on the connection. An error that a modern server does not use shows that the server is no
    /// longer modern; the next call detects the era again.
    fn classify_refusal(&self, status: StatusCode, error: UpstreamError) -> ExchangeFailure {
        let in_its_words = match &error {
            UpstreamError::Protocol { code, .. } => {
                matches!(code, -32602 | -32601 | -32099..=-32020)
            }
            _ => status == StatusCode::TOO_MANY_REQUESTS,
        };
        if self.is_modern() && status.is_client_error() && !in_its_words {
            ExchangeFailure::retire_connection(error)
        } else {
            ExchangeFailure::keep_connection(error)
        }
    }

    /// Reads events until the answer to request `id`.
    async fn read_stream(
        &self,
        mut response: Response,
        id: u64,
        progress: Option<&mpsc::Sender<CallProgress>>,
        limit: usize,
    ) -> Result<Box<RawValue>, ExchangeFailure> {
        let too_large = |limit| ExchangeFailure::keep_connection(UpstreamError::TooLarge { limit });
        let mut parser = SseEventParser::new(limit + SSE_FIELD_BYTES);
        let (mut events, mut received) = (Vec::new(), 0_usize);
        while let Some(chunk) = response.chunk().await.map_err(transport_failure)? {
            received = received.saturating_add(chunk.len());
            if received > MAX_STREAM_BYTES {
                return Err(too_large(MAX_STREAM_BYTES));
            }
            let parsed = parser.push_raw_bytes(&chunk, &mut events);
            for event in events.drain(..) {
                if event.data.len() > limit {
                    return Err(too_large(limit));
                }
                // The first event of a stream may be empty and only carry an id.
                if event.data.is_empty() || !event.is_message() {
                    continue;
                }
                if let Some(outcome) = self.handle_event(&event.data, id, progress) {
                    self.drain_stream(response);
                    return outcome;
                }
            }
            parsed.map_err(|_| too_large(limit))?;
        }
        Err(ExchangeFailure::lose_connection(UpstreamError::from_transport(
            "the stream ended before the answer",
        )))
    }

    /// Reads a stream to its end after its answer, so that its connection can be reused. The caller does not wait for this.
    fn drain_stream(&self, mut response: Response) {
        // Usually the end arrives together with the answer.
        if matches!(response.chunk().now_or_never(), Some(Ok(None) | Err(_))) {
            return;
        }
        let rest = async move { while let Ok(Some(_)) = response.chunk().await {} };
        self.tasks.spawn(timeout(BEST_EFFORT_TIMEOUT, rest));
    }

    /// Handles one message of a stream. Returns the answer, if the message is the answer.
    fn handle_event(
        &self,
        data: &[u8],
        id: u64,
        progress: Option<&mpsc::Sender<CallProgress>>,
    ) -> Option<Result<Box<RawValue>, ExchangeFailure>> {
        match message::parse_server_message(data) {
            Ok(ServerMessage::Answer { id: Some(theirs), outcome }) if theirs == id => {
                Some(settle_outcome(outcome))
            }
            Ok(ServerMessage::Progress { token, progress: news }) if token == id => {
                if let Some(progress) = progress {
                    // A slow or closed reader must not delay the call.
                    drop(progress.try_send(news));
                }
                None
            }
            Ok(ServerMessage::Request { id, method }) if !self.is_modern() => {
                if let Ok(body) = message::encode_answer_to(id, &method) {
                    self.post_detached(body);
                }
                None
            }
            Ok(_) => None,
            Err(error) => Some(Err(ExchangeFailure::keep_connection(error))),
        }
    }
}

/// Content type of a response.
#[derive(Clone, Copy)]
enum ResponseKind {
    Json,
    Stream,
    Other,
}

impl ResponseKind {
    fn of_response(response: &Response) -> Self {
        let kind = response.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let is = |name: &[u8]| {
            kind.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
        };
        if is(b"application/json") {
            Self::Json
        } else if is(b"text/event-stream") {
            Self::Stream
        } else {
            Self::Other
        }
    }
}

/// Reads a body of at most `limit` bytes. A body that arrives in one piece is not copied.
async fn read_bounded(mut response: Response, limit: usize) -> Result<Bytes, ExchangeFailure> {
    let too_large = || ExchangeFailure::keep_connection(UpstreamError::TooLarge { limit });
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let first = response.chunk().await.map_err(transport_failure)?.unwrap_or_default();
    let Some(second) = response.chunk().await.map_err(transport_failure)? else { return Ok(first) };
    let mut whole = BytesMut::from(first);
    whole.extend_from_slice(&second);
    while let Some(chunk) = response.chunk().await.map_err(transport_failure)? {
        if whole.len() + chunk.len() > limit {
            return Err(too_large());
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

/// Parses a body that is the answer to request `id` and nothing else.
fn parse_single_answer(body: &[u8], id: u64) -> Result<Box<RawValue>, ExchangeFailure> {
    match message::parse_server_message(body).map_err(ExchangeFailure::keep_connection)? {
        ServerMessage::Answer { id: Some(theirs), outcome } if theirs == id => {
            settle_outcome(outcome)
        }
        // The server could not identify the request that it rejects. It can only be this one.
        ServerMessage::Answer { id: None, outcome: outcome @ Err(_) } => settle_outcome(outcome),
        ServerMessage::Answer { .. }
        | ServerMessage::Request { .. }
        | ServerMessage::Progress { .. }
        | ServerMessage::Other => Err(ExchangeFailure::keep_connection(UpstreamError::Malformed(
            "the answer to something else",
        ))),
    }
}

fn settle_outcome(
    outcome: Result<&RawValue, UpstreamError>,
) -> Result<Box<RawValue>, ExchangeFailure> {
    match outcome {
        Ok(result) => Ok(result.to_owned()),
        // The server supported this version before. Whichever it supports now, it has executed nothing.
        Err(error @ UpstreamError::Protocol { code: message::UNSUPPORTED_VERSION, .. }) => {
            Err(ExchangeFailure::renew_connection(error))
        }
        Err(error) => Err(ExchangeFailure::keep_connection(error)),
    }
}

/// Converts a transport error. The URL is omitted because it may hold a credential.
fn transport_failure(error: reqwest::Error) -> ExchangeFailure {
    ExchangeFailure::lose_connection(UpstreamError::from_transport(error.without_url()))
}
