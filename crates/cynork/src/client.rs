//! The way to an installation: its public HTTP interface, as for any client.

use std::{collections::VecDeque, fmt::Write as _, time::Duration};

use cynode_core::trace::{TraceId, TraceParent};
use cynode_net::sse::{RawSseEvent, SseEventParser};
use cynode_wire::{platform::problem::ProblemDetails, tasks::events::STREAM_FAILED_KIND};
use reqwest::{Method, Response};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

pub use crate::failure::{CliError, CliErrorKind, Result};
use crate::operations::{self, Operation};

/// How long one try may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a person waits gladly for somebody who is being started again.
const RETRY_TIMEOUT: Duration = Duration::from_mins(1);

/// How long a stream of events may be silent: the server says every 15 seconds that it is there.
pub(crate) const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Most bytes of one event.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// How long a merge may take.
pub(crate) const MERGE_TIMEOUT: Duration = Duration::from_mins(2);

/// The pause before the next.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// A list, whole or a page of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ListResponse<T> {
    /// What is in it.
    pub items: Vec<T>,
    /// How to ask for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A client of one installation.
#[derive(Clone, Debug)]
pub struct ApiClient {
    http: reqwest::Client,
    base: String,
    token: Option<SecretString>,
    /// The trace that all its calls belong to.
    trace: TraceId,
    /// Whether each call is told on standard error.
    told: bool,
}

/// One call, before it is made.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    operation: Operation,
    path: String,
    query: Vec<(&'static str, String)>,
    headers: Vec<(String, String)>,
    body: Option<(Vec<u8>, String)>,
    key: Option<String>,
}

impl ApiRequest {
    /// A call of an operation whose path has no places.
    pub fn for_operation(operation: Operation) -> Self {
        Self::with_path_params(operation, [""; 0])
    }

    /// A call of whatever is at a path; what it is called is that of `operation`.
    pub fn at_path(operation: Operation, path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::for_operation(operation) }
    }

    /// A call of an operation; the values take the places in its path, in order.
    pub fn with_path_params<S: AsRef<str>>(
        operation: Operation,
        places: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut path = String::new();
        let mut places = places.into_iter();
        for (at, part) in operation.path.split('/').enumerate() {
            if at > 0 {
                path.push('/');
            }
            if part.starts_with('{') {
                path.push_str(&percent_encode(places.next().as_ref().map_or("", AsRef::as_ref)));
            } else {
                path.push_str(part);
            }
        }
        let (query, headers) = (Vec::new(), Vec::new());
        Self { operation, path, query, headers, body: None, key: None }
    }

    /// With a word of the query, if there is one.
    #[must_use]
    pub fn with_query(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    /// With a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn with_json_body(mut self, body: &Value) -> Self {
        self.body = Some((body.to_string().into_bytes(), "application/json".to_owned()));
        self
    }

    /// With a file as its body.
    #[must_use]
    pub fn with_file_body(mut self, bytes: Vec<u8>, kind: impl Into<String>) -> Self {
        self.body = Some((bytes, kind.into()));
        self
    }

    /// Sent again, it is known by this key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The path with its query.
    fn request_target(&self) -> String {
        let mut target = self.path.clone();
        for (at, (name, value)) in self.query.iter().enumerate() {
            target.push(if at == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            target.push_str(&percent_encode(value));
        }
        target
    }
}

#[cfg(test)]
impl ApiRequest {
    /// The value that it carries.
    pub(crate) fn carried(&self) -> Value {
        let bytes = self.body.as_ref().map_or(b"null".as_slice(), |(bytes, _)| bytes.as_slice());
        serde_json::from_slice(bytes).unwrap_or_default()
    }
}

/// A word as it is written in a path or a query.
fn percent_encode(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            written.push(char::from(byte));
        } else {
            let _ = write!(written, "%{byte:02X}");
        }
    }
    written
}

impl ApiClient {
    /// A client of the installation at an address.
    pub fn new(base: &str) -> Result<Self> {
        let mut http = reqwest::Client::builder().connect_timeout(Duration::from_secs(10));
        // Without TLS there is nothing to read certificates for, and on this machine no proxy is between.
        if base.starts_with("http://") {
            http = http.tls_certs_only([]).no_proxy();
        }
        let http = http.build().map_err(|error| {
            CliError::internal_error(format!("no HTTP client could be made: {error}"))
        })?;
        let base = base.trim_end_matches('/').to_owned();
        let trace = TraceId::from_random(rand::random);
        Ok(Self { http, base, token: None, trace, told: false })
    }

    /// The same, for somebody who has logged in.
    #[must_use]
    pub fn with_token(mut self, token: SecretString) -> Self {
        self.token = Some(token);
        self
    }

    /// The same; each call is told on standard error.
    #[must_use]
    pub fn with_call_log(mut self, told: bool) -> Self {
        self.told = told;
        self
    }

    /// The same; its calls belong to this trace.
    #[must_use]
    pub fn with_trace(mut self, trace: TraceId) -> Self {
        self.trace = trace;
        self
    }

    /// A client of another installation, told like this one. It has no session: that is for the one that gave it.
    pub fn for_base_url(&self, base: &str) -> Result<Self> {
        Ok(Self::new(base)?.with_call_log(self.told).with_trace(self.trace))
    }

    /// Whether somebody has logged in.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The session, for programs that make calls beside this one.
    pub fn session_token(&self) -> Option<&SecretString> {
        self.token.as_ref()
    }

    /// Tells of a call that another program made, and that went well.
    pub fn log_call(&self, call: &ApiRequest) {
        if self.told {
            let Operation { id, method, .. } = call.operation;
            crate::output::print_stderr_line(&format!("{id} {method} {} 200", call.path));
        }
    }

    /// Where the installation is.
    pub fn base_url(&self) -> &str {
        &self.base
    }

    /// Makes a call once and reads its answer; `null` when there is none.
    pub async fn send<T: DeserializeOwned>(&self, call: &ApiRequest) -> Result<T> {
        parse_response(call, &self.fetch_bytes(call, REQUEST_TIMEOUT).await?)
    }

    /// The same for what may take long, such as a file that is sent.
    pub async fn send_with_timeout<T: DeserializeOwned>(
        &self,
        call: &ApiRequest,
        limit: Duration,
    ) -> Result<T> {
        parse_response(call, &self.fetch_bytes(call, limit).await?)
    }

    /// Makes a call, again and again while nobody answers: for what must not be lost when a process is killed. A call that
    /// changes something needs a [`Call::key`].
    pub async fn send_with_retry<T: DeserializeOwned>(&self, call: &ApiRequest) -> Result<T> {
        self.send_with_retry_hook(call, |_| {}).await
    }

    /// The same for as long as a person waits gladly; then the last failure is given.
    pub async fn send_with_retry_timeout<T: DeserializeOwned>(
        &self,
        call: &ApiRequest,
    ) -> Result<T> {
        match tokio::time::timeout(RETRY_TIMEOUT, self.send_with_retry(call)).await {
            Ok(answer) => answer,
            Err(_) => self.send(call).await,
        }
    }

    /// The same; each time that nobody answers is told.
    pub async fn send_with_retry_hook<T: DeserializeOwned>(
        &self,
        call: &ApiRequest,
        mut missed: impl FnMut(&CliError),
    ) -> Result<T> {
        let mut turn = tokio::time::interval(RETRY_INTERVAL);
        loop {
            turn.tick().await;
            match self.fetch_bytes(call, REQUEST_TIMEOUT).await {
                Err(failure) if failure.is_transient() => missed(&failure),
                // What cannot be read the first time cannot be read the second time either.
                answer => return parse_response(call, &answer?),
            }
        }
    }

    async fn fetch_bytes(&self, call: &ApiRequest, limit: Duration) -> Result<Vec<u8>> {
        let response = self.open_response(call, Some(limit)).await?;
        let bytes = response.bytes().await.map_err(|error| self.unreachable_error(&error))?;
        Ok(bytes.to_vec())
    }

    /// Makes a call and gives its answer as text.
    pub async fn fetch_text(&self, call: &ApiRequest) -> Result<String> {
        let response = self.open_response(call, Some(REQUEST_TIMEOUT)).await?;
        response.text().await.map_err(|error| self.unreachable_error(&error))
    }

    /// Makes a call and gives the answer while it still comes.
    pub async fn open_response(
        &self,
        call: &ApiRequest,
        limit: Option<Duration>,
    ) -> Result<Response> {
        let answer = self.send_raw(call, limit).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let body = answer.bytes().await.unwrap_or_default();
        Err(self.refusal_error(call, status, &body))
    }

    /// What a server said to a call, in words for whoever made it.
    fn refusal_error(&self, call: &ApiRequest, status: u16, body: &[u8]) -> CliError {
        let failure = CliError::from_response(status, body);
        match failure.code.as_deref() {
            Some("unauthenticated") => unauthenticated_error(failure, call.operation, self.has_token()),
            // Only the command `api` takes paths from people.
            Some("path_not_found") if call.operation.id != "api" => failure.with_fix(
                "is this the port for people, whose address `cynode up` prints, of a server that is as new as this `cynork`?",
            ),
            _ => failure,
        }
    }

    /// Makes a call and gives the answer, whatever its status.
    async fn send_raw(&self, call: &ApiRequest, limit: Option<Duration>) -> Result<Response> {
        let method = Method::from_bytes(call.operation.method.as_bytes())
            .map_err(|_| CliError::internal_error("no such method"))?;
        let mut request =
            self.http.request(method.clone(), self.base.clone() + &call.request_target());
        if let Some(limit) = limit {
            request = request.timeout(limit);
        }
        if let Some((bytes, kind)) = &call.body {
            request = request.header("Content-Type", kind).body(bytes.clone());
        }
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        let place = TraceParent { trace: self.trace, span: rand::random::<u64>().max(1), flags: 1 };
        request = request.header("traceparent", place.to_string());
        if method != Method::GET {
            let key =
                call.key.clone().unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
            request = request.header("Idempotency-Key", key);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose_secret());
        }
        let answer = request.send().await.map_err(|error| self.unreachable_error(&error));
        if self.told {
            let status = answer.as_ref().map_or("-".into(), |it| it.status().as_u16().to_string());
            let path = call.path.split('?').next().unwrap_or_default();
            crate::output::print_stderr_line(&format!(
                "{} {method} {path} {status}",
                call.operation.id
            ));
        }
        answer
    }

    /// Makes a call and reads its answer, also that of a server that is not ready.
    pub async fn send_any_status<T: DeserializeOwned>(&self, call: &ApiRequest) -> Result<T> {
        let answer = self.send_raw(call, Some(REQUEST_TIMEOUT)).await?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| self.unreachable_error(&error))?;
        serde_json::from_slice(&body).map_err(|_| self.refusal_error(call, status, &body))
    }

    fn unreachable_error(&self, error: &reqwest::Error) -> CliError {
        let mut why = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(inner) = source {
            why = inner.to_string();
            source = inner.source();
        }
        no_answer_error(&self.base, &why)
    }

    /// What happens from now on, or behind the last event that was heard.
    pub async fn open_event_stream(&self, call: &ApiRequest) -> Result<EventStream> {
        let response = self.open_response(call, None).await?;
        Ok(EventStream {
            response,
            parser: SseEventParser::new(MAX_EVENT_BYTES),
            parsed: VecDeque::new(),
            silence: Duration::MAX,
            failure: None,
        })
    }
}

/// Nobody answers there, or not so that it can be understood.
fn no_answer_error(base: &str, why: &str) -> CliError {
    // What is no TLS at all is told by its first byte.
    if let Some(rest) = base.strip_prefix("https://")
        && why.contains("InvalidContentType")
    {
        let what = format!("no answer from {base}: what is there does not speak TLS");
        return CliError::new(CliErrorKind::Unreachable, what)
            .with_fix(format!("try http://{rest}"));
    }
    CliError::new(CliErrorKind::Unreachable, format!("no answer from {base}: {why}"))
        .with_fix("start it with `cynode up`, or name another with `--url` or `cynork login URL`")
}

/// Why somebody was not let in, in the words of what they tried: the server has one sentence for all of it. Whether there is
/// such a name nobody is told.
fn unauthenticated_error(failure: CliError, tried: Operation, has_token: bool) -> CliError {
    let again = "log in with `cynork login`";
    let (detail, fix) = if tried == operations::LOGIN {
        ("the name or the password is wrong", None)
    } else if tried == operations::BOOTSTRAP {
        (
            "this link was used, has run out, or belongs to another installation",
            Some(
                "`cynode admin bootstrap` prints another while there is no admin; once there is one, log in with `cynork login`",
            ),
        )
    } else if has_token {
        ("your session or API key has run out, was revoked or is wrong", Some(again))
    } else {
        ("you are not logged in", Some(again))
    };
    CliError { detail: detail.to_owned(), fix: fix.map(str::to_owned), ..failure }
}

/// An answer in its form; nothing at all is `null`.
fn parse_response<T: DeserializeOwned>(call: &ApiRequest, bytes: &[u8]) -> Result<T> {
    let bytes = if bytes.is_empty() { b"null".as_slice() } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| {
        let what = format!("the answer of {} cannot be read: {error}", call.operation.id);
        CliError::internal_error(what).with_fix("is this `cynork` as new as the server?")
    })
}

/// Server-sent events, as they come.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    parser: SseEventParser,
    /// Events that were received and not yet returned.
    parsed: VecDeque<ServerSentEvent>,
    /// How long nothing may come.
    silence: Duration,
    /// Why the server ended the stream, if it said so.
    failure: Option<CliError>,
}

/// One server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSentEvent {
    /// Where a client goes on behind it.
    pub id: String,
    /// What kind.
    pub event: String,
    /// What it carries.
    pub data: String,
}

impl From<RawSseEvent> for ServerSentEvent {
    fn from(event: RawSseEvent) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { id: text(&event.id), event: text(&event.name), data: text(&event.data) }
    }
}

impl EventStream {
    /// The same; when nothing at all comes for so long, not even a sign of life, the stream has broken.
    #[must_use]
    pub fn with_idle_timeout(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Why the server ended the stream; `None` when it only broke.
    pub fn take_error(&mut self) -> Option<CliError> {
        self.failure.take()
    }

    /// The next; `None` when the stream has ended or broken.
    pub async fn next(&mut self) -> Option<ServerSentEvent> {
        loop {
            if let Some(event) = self.parsed.pop_front() {
                if event.event == STREAM_FAILED_KIND {
                    self.failure = Some(parse_stream_error(&event.data));
                    return None;
                }
                return Some(event);
            }
            let piece = tokio::time::timeout(self.silence, self.response.chunk()).await;
            let piece = piece.ok()?.ok()??;
            let mut events = Vec::new();
            // A stream with an event that is too long has broken.
            self.parser.push_raw_bytes(&piece, &mut events).ok()?;
            self.parsed.extend(events.into_iter().map(ServerSentEvent::from));
        }
    }
}

/// The problem with which a server ended a stream.
fn parse_stream_error(data: &str) -> CliError {
    let status = serde_json::from_str::<ProblemDetails>(data).map_or(500, |problem| problem.status);
    CliError::from_response(status, data.as_bytes())
}

#[cfg(test)]
mod tests;
