//! Servers over streamable HTTP, of both eras.
//!
//! Written on top of the HTTP client rather than of an MCP library, for three reasons: arguments
//! and results pass through as the bytes they are, every read has a bound, and a call costs little
//! more than the POST that it is.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode, Url};
use secrecy::SecretString;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::catalog::{self, Catalog, Mirrors};
use super::error::{Effect, Failure};
use super::message::{self, Era, Message};
use super::sse::Events;
use super::{Call, Definition, MAX_ANSWER, Progress, Reply, UpstreamError, header};

/// How long a message may take on whose answer nothing depends.
const COURTESY: Duration = Duration::from_secs(2);

/// A server over HTTP whose era is known.
#[derive(Debug)]
pub(super) struct Http {
    link: Link,
    era: Era,
    next: AtomicU64,
    mirrors: RwLock<Arc<Mirrors>>,
}

impl Http {
    /// Finds out the era, and agrees on a session if it is the legacy one.
    pub(super) async fn open(
        client: &Client,
        url: &str,
        headers: &[(String, SecretString)],
        patience: Duration,
        tasks: &TaskTracker,
    ) -> Result<Self, UpstreamError> {
        let mut link = Link::new(client, url, headers, tasks)?;
        let era = match timeout(patience, link.discover()).await {
            Ok(discovered) => discovered?,
            Err(_) => None,
        };
        let era = match era {
            Some(era) => era,
            None => link.initialize().await?,
        };
        link.headers.insert(header::VERSION, HeaderValue::from_static(era.version()));
        let http = Self { link, era, next: AtomicU64::new(3), mirrors: RwLock::default() };
        match era {
            // Which arguments go into headers is known from the list alone. A server whose list
            // fails may still have tools that work.
            Era::Modern => match http.list().await {
                Ok(_) | Err(Failure { effect: Effect::Keep, .. }) => {}
                Err(failure) => return Err(failure.error),
            },
            Era::Legacy(_) => http.initialized().await?,
        }
        Ok(http)
    }

    async fn initialized(&self) -> Result<(), UpstreamError> {
        let response = self
            .link
            .post(self.link.headers.clone(), message::initialized()?)
            .await
            .map_err(|failure| failure.error)?;
        let status = response.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(UpstreamError::Status { status: status.as_u16() })
        }
    }

    /// All tools of the server.
    pub(super) async fn list(&self) -> Result<Vec<Definition>, Failure> {
        let mut tools = self.pages().await?;
        if self.era == Era::Modern {
            let mirrors = Arc::new(catalog::mirrored(&mut tools));
            *self.mirrors.write().unwrap_or_else(PoisonError::into_inner) = mirrors;
        }
        Ok(tools)
    }

    async fn pages(&self) -> Result<Vec<Definition>, Failure> {
        let mut catalog = Catalog::default();
        loop {
            let id = self.id();
            let body = message::list(id, self.era, catalog.cursor()).map_err(Failure::keep)?;
            let page = self.ask(id, self.headers("tools/list"), body, None).await?;
            match catalog.add(&page)? {
                ControlFlow::Continue(next) => catalog = next,
                ControlFlow::Break(tools) => return Ok(tools),
            }
        }
    }

    /// Calls a tool.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Reply, Failure> {
        let outcome = self.call_once(call).await;
        let Err(Failure {
            error: UpstreamError::Protocol { code: message::HEADER_MISMATCH, .. },
            ..
        }) = &outcome
        else {
            return outcome;
        };
        // Refused before it ran: the tool's schema wants other headers than when we read it.
        self.list().await?;
        self.call_once(call).await
    }

    async fn call_once(&self, call: &Call<'_>) -> Result<Reply, Failure> {
        let id = self.id();
        let body = message::call(id, self.era, call).map_err(Failure::keep)?;
        let mut headers = self.headers("tools/call");
        if self.era == Era::Modern {
            headers.insert(header::NAME, header::value_of(call.tool));
            let mirrors = Arc::clone(&self.mirrors.read().unwrap_or_else(PoisonError::into_inner));
            if let Some(mirrors) = mirrors.get(call.tool) {
                header::mirror_into(&mut headers, mirrors, call.arguments);
            }
        }
        let result = self.ask(id, headers, body, call.progress.as_ref()).await?;
        message::reply(self.era, result).map_err(Failure::keep)
    }

    /// Sends a request and waits for its answer. When nobody waits any more, the server is told.
    async fn ask(
        &self,
        id: u64,
        headers: HeaderMap,
        body: Vec<u8>,
        progress: Option<&mpsc::Sender<Progress>>,
    ) -> Result<Box<RawValue>, Failure> {
        let mut withdrawal = Withdrawal { http: self, id, due: true };
        let response = self.link.post(headers, body).await;
        let outcome = match response {
            Ok(response) => self.link.answer(response, id, progress).await,
            Err(failure) => Err(failure),
        };
        withdrawal.due = false;
        outcome
    }

    fn headers(&self, method: &'static str) -> HeaderMap {
        let mut headers = self.link.headers.clone();
        if self.era == Era::Modern {
            headers.insert(header::METHOD, HeaderValue::from_static(method));
        }
        headers
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends the session, if there is one.
    pub(super) async fn close(&self) {
        if !self.link.has_session() {
            return;
        }
        let request = self
            .link
            .client
            .delete(self.link.url.clone())
            .headers(self.link.headers.clone())
            .timeout(COURTESY);
        // Servers may refuse this; the session then ends by itself.
        drop(request.send().await);
    }
}

/// Tells a legacy server that nobody waits for an answer any more, unless it has come.
///
/// It does so when it is dropped, and so for all reasons there are: time, cancellation, and a
/// caller that went away. A modern server sees the connection close and needs to be told nothing.
struct Withdrawal<'a> {
    http: &'a Http,
    id: u64,
    due: bool,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        if self.due
            && matches!(self.http.era, Era::Legacy(_))
            && let Ok(body) = message::cancelled(self.id)
        {
            self.http.link.post_aside(body);
        }
    }
}

/// Where the server is and what is sent with every request.
#[derive(Clone, Debug)]
struct Link {
    client: Client,
    url: Url,
    headers: HeaderMap,
    tasks: TaskTracker,
}

impl Link {
    fn new(
        client: &Client,
        url: &str,
        headers: &[(String, SecretString)],
        tasks: &TaskTracker,
    ) -> Result<Self, UpstreamError> {
        let url = Url::parse(url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            // Credentials belong into headers, where they are kept as secrets.
            .filter(|url| url.username().is_empty() && url.password().is_none())
            .ok_or(UpstreamError::Misconfigured("the address"))?;
        let mut headers = header::configured(headers)?;
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Self { client: client.clone(), url, headers, tasks: tasks.clone() })
    }

    /// Asks in the words of the modern era; `None` if the server does not speak it.
    async fn discover(&self) -> Result<Option<Era>, UpstreamError> {
        let mut headers = self.headers.clone();
        headers.insert(header::VERSION, HeaderValue::from_static(message::MODERN));
        headers.insert(header::METHOD, HeaderValue::from_static("server/discover"));
        let response =
            self.post(headers, message::discover(1)?).await.map_err(|failure| failure.error)?;
        match self.answer(response, 1, None).await {
            Ok(result) => Ok(message::discovered(&result)),
            // An outage or a closed door says nothing about the era.
            Err(Failure { effect: Effect::Lose, error }) => Err(error),
            Err(Failure { error: UpstreamError::Status { status }, .. })
                if matches!(status, 401 | 403 | 429 | 500..) =>
            {
                Err(UpstreamError::Status { status })
            }
            Err(_) => Ok(None),
        }
    }

    /// Greets a legacy server and keeps the session that it opens.
    async fn initialize(&mut self) -> Result<Era, UpstreamError> {
        let response = self
            .post(self.headers.clone(), message::initialize(2)?)
            .await
            .map_err(|failure| failure.error)?;
        let session = response.headers().get(header::SESSION).cloned();
        match self.answer(response, 2, None).await {
            Ok(result) => {
                if let Some(mut session) = session {
                    session.set_sensitive(true);
                    self.headers.insert(header::SESSION, session);
                }
                message::greeted(&result)
            }
            // It was only slow to answer when it was asked first.
            Err(failure) if message::names_modern(&failure.error) => Ok(Era::Modern),
            Err(failure) => Err(failure.error),
        }
    }

    fn has_session(&self) -> bool {
        self.headers.contains_key(header::SESSION)
    }

    /// Whether the server is known to be modern; such a one may not ask us anything.
    fn is_modern(&self) -> bool {
        self.headers.get(header::VERSION).is_some_and(|version| version == message::MODERN)
    }

    async fn post(&self, headers: HeaderMap, body: Vec<u8>) -> Result<Response, Failure> {
        let mut request = reqwest::Request::new(Method::POST, self.url.clone());
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body.into());
        self.client.execute(request).await.map_err(lost)
    }

    /// Posts something on whose answer nothing depends, without waiting for it.
    fn post_aside(&self, body: Vec<u8>) {
        // Outside of a runtime nothing can be sent, and dropping must not panic.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let link = self.clone();
        self.tasks.spawn(async move {
            let sent = timeout(COURTESY, link.post(link.headers.clone(), body)).await;
            drop(sent);
        });
    }

    /// Reads the answer to request `id` out of a response.
    async fn answer(
        &self,
        response: Response,
        id: u64,
        progress: Option<&mpsc::Sender<Progress>>,
    ) -> Result<Box<RawValue>, Failure> {
        let status = response.status();
        let refused = UpstreamError::Status { status: status.as_u16() };
        match (status, Kind::of(&response)) {
            (StatusCode::NOT_FOUND, _) if self.has_session() => Err(Failure::renew(refused)),
            (
                StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT,
                _,
            ) => Err(Failure::lose(refused)),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => Err(Failure::keep(refused)),
            (status, Kind::Json) => match single(&bounded(response).await?, id) {
                Err(Failure { error: UpstreamError::Malformed(_), .. }) if !status.is_success() => {
                    Err(self.doubt(status, refused))
                }
                Err(Failure { error, effect: Effect::Keep }) => Err(self.doubt(status, error)),
                outcome => outcome,
            },
            (status, _) if !status.is_success() => Err(self.doubt(status, refused)),
            (_, Kind::Stream) => self.follow(response, id, progress).await,
            (_, Kind::Other) => {
                Err(Failure::keep(UpstreamError::Malformed("neither JSON nor an event stream")))
            }
        }
    }

    /// What a refusal means for the connection. One in words that a modern server does not use is
    /// a sign that it is none any more; the era is found out anew at the next call.
    fn doubt(&self, status: StatusCode, error: UpstreamError) -> Failure {
        let in_its_words = match &error {
            UpstreamError::Protocol { code, .. } => {
                matches!(code, -32602 | -32601 | -32099..=-32020)
            }
            _ => status == StatusCode::TOO_MANY_REQUESTS,
        };
        if self.is_modern() && status.is_client_error() && !in_its_words {
            Failure::retire(error)
        } else {
            Failure::keep(error)
        }
    }

    /// Reads events until the answer to request `id` is among them.
    async fn follow(
        &self,
        mut response: Response,
        id: u64,
        progress: Option<&mpsc::Sender<Progress>>,
    ) -> Result<Box<RawValue>, Failure> {
        let mut events = Events::new(MAX_ANSWER);
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            events.feed(&chunk).map_err(Failure::keep)?;
            while let Some(data) = events.next().map_err(Failure::keep)? {
                // The first event of a stream may be empty, only there to give it an id.
                if data.is_empty() {
                    continue;
                }
                if let Some(outcome) = self.hear(&data, id, progress) {
                    self.finish(response);
                    return outcome;
                }
            }
        }
        Err(Failure::lose(UpstreamError::unreachable("the stream ended before the answer")))
    }

    /// Reads a stream that has given its answer to its end, which is near, so that its connection
    /// can be used again. The caller does not wait for this.
    fn finish(&self, mut response: Response) {
        // Mostly the end has come along with the answer.
        if matches!(response.chunk().now_or_never(), Some(Ok(None) | Err(_))) {
            return;
        }
        let rest = async move { while let Ok(Some(_)) = response.chunk().await {} };
        self.tasks.spawn(timeout(COURTESY, rest));
    }

    /// Takes in one message of a stream; gives back the answer if it is that.
    fn hear(
        &self,
        data: &[u8],
        id: u64,
        progress: Option<&mpsc::Sender<Progress>>,
    ) -> Option<Result<Box<RawValue>, Failure>> {
        match message::read(data) {
            Ok(Message::Answer { id: Some(theirs), outcome }) if theirs == id => {
                Some(settle(outcome))
            }
            Ok(Message::Progress { token, progress: news }) if token == id => {
                if let Some(progress) = progress {
                    // A reader that is slow or gone must not hold up the call.
                    drop(progress.try_send(news));
                }
                None
            }
            Ok(Message::Request { id, method }) if !self.is_modern() => {
                if let Ok(body) = message::answer_to(id, &method) {
                    self.post_aside(body);
                }
                None
            }
            Ok(_) => None,
            Err(error) => Some(Err(Failure::keep(error))),
        }
    }
}

/// What a response carries.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    Stream,
    Other,
}

impl Kind {
    fn of(response: &Response) -> Self {
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

/// Reads a body that must not pass [`MAX_ANSWER`]. Most come in one piece and are not copied.
async fn bounded(mut response: Response) -> Result<Bytes, Failure> {
    let too_large = || Failure::keep(UpstreamError::TooLarge { limit: MAX_ANSWER });
    if response.content_length().is_some_and(|length| length > MAX_ANSWER as u64) {
        return Err(too_large());
    }
    let first = response.chunk().await.map_err(lost)?.unwrap_or_default();
    let Some(second) = response.chunk().await.map_err(lost)? else { return Ok(first) };
    let mut whole = BytesMut::from(first);
    whole.extend_from_slice(&second);
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if whole.len() + chunk.len() > MAX_ANSWER {
            return Err(too_large());
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

/// Reads a body that is the answer to request `id` and nothing else.
fn single(body: &[u8], id: u64) -> Result<Box<RawValue>, Failure> {
    match message::read(body).map_err(Failure::keep)? {
        Message::Answer { id: Some(theirs), outcome } if theirs == id => settle(outcome),
        // The server could not tell which request it refuses; there is only one it can be.
        Message::Answer { id: None, outcome: outcome @ Err(_) } => settle(outcome),
        Message::Answer { .. }
        | Message::Request { .. }
        | Message::Progress { .. }
        | Message::Other => {
            Err(Failure::keep(UpstreamError::Malformed("the answer to something else")))
        }
    }
}

fn settle(outcome: Result<&RawValue, UpstreamError>) -> Result<Box<RawValue>, Failure> {
    match outcome {
        Ok(result) => Ok(result.to_owned()),
        // It spoke this revision a while ago. Whatever it speaks now, it has done nothing.
        Err(error @ UpstreamError::Protocol { code: message::UNSUPPORTED_VERSION, .. }) => {
            Err(Failure::renew(error))
        }
        Err(error) => Err(Failure::keep(error)),
    }
}

/// The address is left out: it may hold a credential.
fn lost(error: reqwest::Error) -> Failure {
    Failure::lose(UpstreamError::unreachable(error.without_url()))
}
