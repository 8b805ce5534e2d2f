//! The client of the public HTTP API.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use cynode_core::{
    releases::{RELEASE_HEADER, Release, ReleaseSkew},
    trace::{TraceId, TraceParent},
};
use cynode_net::{
    sse::{RawSseEvent, SseEventParser},
    tls::ClientTls,
    transport::{Transport, check_transport},
};
use cynode_wire::{platform::problem::ProblemDetails, tasks::events::STREAM_FAILED_KIND};
use reqwest::{Method, Response};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

pub use crate::failure::{CliError, CliErrorKind, Result};
use crate::operations::{self, Operation};

/// Timeout of one attempt.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long requests are retried while an installation restarts.
const RETRY_TIMEOUT: Duration = Duration::from_mins(1);

/// Idle timeout of an event stream: the server sends a keep-alive every 15 seconds.
pub(crate) const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Maximum size of one event.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// Timeout of a merge.
pub(crate) const MERGE_TIMEOUT: Duration = Duration::from_mins(2);

/// Delay between attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// A list, or a page of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ListResponse<T> {
    /// The items of the list or page.
    pub items: Vec<T>,
    /// Cursor of the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A client of one installation.
#[derive(Clone, Debug)]
pub struct ApiClient {
    http: reqwest::Client,
    base: String,
    token: Option<SecretString>,
    /// The trace id of all its requests.
    trace: TraceId,
    /// Whether each request is logged to standard error.
    told: bool,
    transport: ClientTransport,
}

/// How a client may reach an installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTransport {
    /// Certificate authority to trust instead of those of the machine.
    pub ca_file: Option<PathBuf>,
    /// Whether clear text may go beyond this machine.
    pub insecure: bool,
}

/// A request that has not been sent yet.
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
    /// Builds a request for an operation without path parameters.
    pub fn for_operation(operation: Operation) -> Self {
        Self::with_path_params(operation, [""; 0])
    }

    /// Builds a request for any path; `operation` is used in messages.
    pub fn at_path(operation: Operation, path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::for_operation(operation) }
    }

    /// Builds a request for an operation; the values replace its path parameters, in order.
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

    /// Adds a query parameter, if it has a value.
    #[must_use]
    pub fn with_query(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn with_json_body(mut self, body: &Value) -> Self {
        self.body = Some((body.to_string().into_bytes(), "application/json".to_owned()));
        self
    }

    /// Sets a file as the body.
    #[must_use]
    pub fn with_file_body(mut self, bytes: Vec<u8>, kind: impl Into<String>) -> Self {
        self.body = Some((bytes, kind.into()));
        self
    }

    /// Sets the idempotency key, so that the request can be repeated.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Returns the path with its query.
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
    /// Returns the JSON body.
    pub(crate) fn carried(&self) -> Value {
        let bytes = self.body.as_ref().map_or(b"null".as_slice(), |(bytes, _)| bytes.as_slice());
        serde_json::from_slice(bytes).unwrap_or_default()
    }
}

/// Percent-encodes a text for a path or a query.
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
    /// Builds a client of the installation at an address, which trusts the roots of the machine. Clear text beyond this machine is refused.
    pub fn new(base: &str) -> Result<Self> {
        Self::with_transport(base, ClientTransport::default())
    }

    /// Builds a client of the installation at an address.
    pub fn with_transport(base: &str, transport: ClientTransport) -> Result<Self> {
        let reached = check_transport(base, transport.insecure).map_err(|error| {
            CliError::new(CliErrorKind::Refused, error.to_string())
                .with_fix("use the https address of the installation, or --insecure if nobody else is on the way")
        })?;
        // A redirect would carry a password or a session to another address.
        let mut http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none());
        match reached {
            Transport::Encrypted => {
                let tls = ClientTls::from_files(transport.ca_file.as_deref(), None);
                let configured = tls.and_then(|tls| tls.configure_client(http));
                http = configured.map_err(|error| {
                    CliError::new(CliErrorKind::Usage, format!("--ca-file: {error}"))
                })?;
            }
            // Without TLS no certificates are loaded, and there is no proxy on this machine.
            Transport::Loopback => http = http.tls_certs_only([]).no_proxy(),
            Transport::Insecure => {
                http = http.tls_certs_only([]).no_proxy();
                crate::output::print_stderr_line(&format!(
                    "warning: {base} is not encrypted: everybody on the way can read and change what is sent"
                ));
            }
        }
        let http = http.build().map_err(|error| {
            CliError::internal_error(format!("no HTTP client could be made: {error}"))
        })?;
        let base = base.trim_end_matches('/').to_owned();
        let trace = TraceId::from_random(rand::random);
        Ok(Self { http, base, token: None, trace, told: false, transport })
    }

    /// Returns the certificate authority that other programs have to trust, if the machine does not.
    pub fn ca_file(&self) -> Option<&Path> {
        self.transport.ca_file.as_deref()
    }

    /// Sets the session token.
    #[must_use]
    pub fn with_token(mut self, token: SecretString) -> Self {
        self.token = Some(token);
        self
    }

    /// Sets whether each request is logged to standard error.
    #[must_use]
    pub fn with_call_log(mut self, told: bool) -> Self {
        self.told = told;
        self
    }

    /// Sets the trace id of its requests.
    #[must_use]
    pub fn with_trace(mut self, trace: TraceId) -> Self {
        self.trace = trace;
        self
    }

    /// Returns the trace id of its requests.
    pub const fn trace_id(&self) -> TraceId {
        self.trace
    }

    /// Returns a client of another installation with the same settings. It has no session token: that belongs to the
    /// installation that issued it.
    pub fn for_base_url(&self, base: &str) -> Result<Self> {
        let other = Self::with_transport(base, self.transport.clone())?;
        Ok(other.with_call_log(self.told).with_trace(self.trace))
    }

    /// Returns whether there is a session token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the session token, for other programs that send requests.
    pub fn session_token(&self) -> Option<&SecretString> {
        self.token.as_ref()
    }

    /// Logs a successful request of another program.
    pub fn log_call(&self, call: &ApiRequest) {
        if self.told {
            let Operation { id, method, .. } = call.operation;
            crate::output::print_stderr_line(&format!("{id} {method} {} 200", call.path));
        }
    }

    /// Returns the address of the installation.
    pub fn base_url(&self) -> &str {
        &self.base
    }

    /// Sends a request once and parses its response; an empty response is `null`.
    pub async fn send<T: DeserializeOwned>(&self, call: &ApiRequest) -> Result<T> {
        parse_response(call, &self.fetch_bytes(call, REQUEST_TIMEOUT).await?)
    }

    /// Does the same with another timeout, for slow requests such as an upload.
    pub async fn send_with_timeout<T: DeserializeOwned>(
        &self,
        call: &ApiRequest,
        limit: Duration,
    ) -> Result<T> {
        parse_response(call, &self.fetch_bytes(call, limit).await?)
    }

    /// Sends a request and retries while there is no response: for requests that must not be lost when a process is killed. A
    /// request that changes state needs [`ApiRequest::with_idempotency_key`].
    pub async fn send_with_retry<T: DeserializeOwned>(&self, call: &ApiRequest) -> Result<T> {
        self.send_with_retry_hook(call, |_| {}).await
    }

    /// Does the same until a timeout, and then returns the last error.
    pub async fn send_with_retry_timeout<T: DeserializeOwned>(
        &self,
        call: &ApiRequest,
    ) -> Result<T> {
        match tokio::time::timeout(RETRY_TIMEOUT, self.send_with_retry(call)).await {
            Ok(answer) => answer,
            Err(_) => self.send(call).await,
        }
    }

    /// Does the same, and calls a hook after each attempt without a response.
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
                // A response that cannot be parsed would not be parsed at the second attempt either.
                answer => return parse_response(call, &answer?),
            }
        }
    }

    async fn fetch_bytes(&self, call: &ApiRequest, limit: Duration) -> Result<Vec<u8>> {
        let response = self.open_response(call, Some(limit)).await?;
        let bytes = response.bytes().await.map_err(|error| self.unreachable_error(&error))?;
        Ok(bytes.to_vec())
    }

    /// Sends a request and returns its response as text.
    pub async fn fetch_text(&self, call: &ApiRequest) -> Result<String> {
        let response = self.open_response(call, Some(REQUEST_TIMEOUT)).await?;
        response.text().await.map_err(|error| self.unreachable_error(&error))
    }

    /// Sends a request and returns the response as a stream.
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

    /// Converts a refusal of the server into an error for the user.
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

    /// Sends a request and returns the response with any status.
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
        request = request.header(RELEASE_HEADER, Release::current().to_string());
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
        let answer = answer?;
        ensure_release_fits(answer.headers())?;
        Ok(answer)
    }

    /// Sends a request and parses its response with any status, such as that of a server that is not ready.
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

    /// Opens the event stream, from now on or after the last received event.
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

/// Refuses the answer of a server that is more than one release away. A server that names no release is not refused.
fn ensure_release_fits(headers: &reqwest::header::HeaderMap) -> Result<()> {
    let Some(named) = headers.get(RELEASE_HEADER) else { return Ok(()) };
    let own = Release::current();
    let server = named.to_str().ok().and_then(|text| text.parse::<Release>().ok());
    let (detail, fix) = match server.map(|server| (server, own.skew_of(server))) {
        Some((_, ReleaseSkew::Compatible)) => return Ok(()),
        Some((server, ReleaseSkew::TooOld)) => (
            format!("the server is {server} and this `cynork` is {own}: the server is too old"),
            format!("install `cynork` {server}, or ask an admin to upgrade the server"),
        ),
        Some((server, ReleaseSkew::TooNew)) => (
            format!("the server is {server} and this `cynork` is {own}: it is too old"),
            format!("install `cynork` {server}"),
        ),
        None => (
            "the server names a release that this `cynork` does not understand".to_owned(),
            "install the `cynork` of the server".to_owned(),
        ),
    };
    Err(CliError::new(CliErrorKind::Conflict, detail).with_fix(fix))
}

/// Returns the error for an installation that does not respond, or not in a known protocol.
fn no_answer_error(base: &str, why: &str) -> CliError {
    // A server without TLS is recognised by its first byte.
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

/// Explains a failed authentication in terms of the attempted operation, since the server has one sentence for all cases. It
/// never reveals whether a handle exists.
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

/// Parses a response; an empty one is `null`.
fn parse_response<T: DeserializeOwned>(call: &ApiRequest, bytes: &[u8]) -> Result<T> {
    let bytes = if bytes.is_empty() { b"null".as_slice() } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| {
        let what = format!("the answer of {} cannot be read: {error}", call.operation.id);
        CliError::internal_error(what).with_fix("is this `cynork` as new as the server?")
    })
}

/// A stream of server-sent events.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    parser: SseEventParser,
    /// Events that were received and not yet returned.
    parsed: VecDeque<ServerSentEvent>,
    /// Maximum time without any data.
    silence: Duration,
    /// The error with which the server ended the stream, if there was one.
    failure: Option<CliError>,
}

/// One server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSentEvent {
    /// Id of the event, from which a client resumes.
    pub id: String,
    /// Type of the event.
    pub event: String,
    /// Payload of the event.
    pub data: String,
}

impl From<RawSseEvent> for ServerSentEvent {
    fn from(event: RawSseEvent) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { id: text(&event.id), event: text(&event.name), data: text(&event.data) }
    }
}

impl EventStream {
    /// Sets the idle timeout: a stream without any data for this time, not even a keep-alive, is broken.
    #[must_use]
    pub fn with_idle_timeout(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Returns the error with which the server ended the stream; `None` if the connection broke.
    pub fn take_error(&mut self) -> Option<CliError> {
        self.failure.take()
    }

    /// Returns the next event; `None` if the stream has ended or broken.
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
            // A stream with an event above the limit counts as broken.
            self.parser.push_raw_bytes(&piece, &mut events).ok()?;
            self.parsed.extend(events.into_iter().map(ServerSentEvent::from));
        }
    }
}

/// Parses the problem with which a server ended a stream.
fn parse_stream_error(data: &str) -> CliError {
    let status = serde_json::from_str::<ProblemDetails>(data).map_or(500, |problem| problem.status);
    CliError::from_response(status, data.as_bytes())
}

#[cfg(test)]
mod tests;
