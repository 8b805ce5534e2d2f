//! The way to the models and to the tool gate.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Body as _, Incoming},
    header::{HeaderName, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Body, Door, full, told};

/// Most requests of one job to the models at once.
const MOST_QUESTIONS: usize = 16;

/// Most requests of one job to the tools at once; streams that wait for news are among them.
const MOST_CALLS: usize = 32;

/// Most bytes of a question: conversations with images are long.
const QUESTION_BYTES: usize = 48 * 1024 * 1024;

/// Most bytes of a call.
const CALL_BYTES: usize = 8 * 1024 * 1024;

/// Headers that say how something is meant, never who means it.
const INWARD: [&str; 7] = [
    "accept",
    "content-type",
    "user-agent",
    "anthropic-version",
    "anthropic-beta",
    "openai-beta",
    "last-event-id",
];

/// Headers of answers that say something to a client and nothing about where they come from.
const OUTWARD: [&str; 7] = [
    "content-type",
    "cache-control",
    "retry-after",
    "request-id",
    "x-request-id",
    "x-should-retry",
    "allow",
];

/// Where requests go.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    http: reqwest::Client,
    base: String,
}

impl Upstream {
    /// The orchestrator at `base`.
    pub(crate) fn new(base: &str) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .tcp_nodelay(true)
            .tcp_keepalive(Duration::from_secs(30))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self { http, base: base.trim_end_matches('/').to_owned() })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Models,
    Tools,
}

/// What a request may be.
#[derive(Debug, PartialEq, Eq)]
enum Pass {
    /// It goes on to this path.
    To(&'static str),
    /// The node answers: somebody is there.
    Here,
    /// It goes nowhere.
    No,
}

/// Everything that is let through. Queries are dropped: no path has one that matters.
fn pass(kind: Kind, method: &Method, path: &str) -> Pass {
    match (kind, method.as_str(), path) {
        (Kind::Models, "POST", "/v1/chat/completions") => Pass::To("/v1/chat/completions"),
        (Kind::Models, "POST", "/v1/responses") => Pass::To("/v1/responses"),
        (Kind::Models, "POST", "/v1/messages") => Pass::To("/v1/messages"),
        (Kind::Models, "POST", "/v1/messages/count_tokens") => {
            Pass::To("/v1/messages/count_tokens")
        }
        (Kind::Models, "GET", "/v1/models") => Pass::To("/v1/models"),
        (Kind::Models, "HEAD", "/") => Pass::Here,
        (Kind::Tools, "POST" | "GET" | "DELETE", "/mcp") => Pass::To("/mcp"),
        _ => Pass::No,
    }
}

pub(super) struct Forwarder {
    kind: Kind,
    upstream: Upstream,
    token: SecretString,
    trace: String,
    room: Arc<Semaphore>,
}

impl Forwarder {
    pub(super) fn new(kind: Kind, upstream: Upstream, token: SecretString, trace: String) -> Self {
        let most = match kind {
            Kind::Models => MOST_QUESTIONS,
            Kind::Tools => MOST_CALLS,
        };
        Self { kind, upstream, token, trace, room: Arc::new(Semaphore::new(most)) }
    }

    const fn most_bytes(&self) -> usize {
        match self.kind {
            Kind::Models => QUESTION_BYTES,
            Kind::Tools => CALL_BYTES,
        }
    }

    async fn forward(
        &self,
        path: &str,
        request: Request<Incoming>,
        place: OwnedSemaphorePermit,
    ) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let most = self.most_bytes();
        if body.size_hint().lower() > most as u64 {
            return too_large(most);
        }
        let mut onward = self
            .upstream
            .http
            .request(parts.method, format!("{}{path}", self.upstream.base))
            .headers(inward(&parts.headers))
            .bearer_auth(self.token.expose_secret());
        if !self.trace.is_empty() {
            let span = rand::random::<u64>() | 1;
            onward = onward.header("traceparent", format!("00-{}-{span:016x}-01", self.trace));
        }
        if !body.is_end_stream() {
            if let Some(length) = body.size_hint().exact() {
                onward = onward.header("content-length", length);
            }
            onward = onward.body(reqwest::Body::wrap(Limited::new(body, most)));
        }
        match onward.send().await {
            Ok(answer) => back(answer, place),
            Err(error) if caused_by_size(&error) => too_large(most),
            Err(error) => {
                tracing::debug!(
                    event = "forward.failed",
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "no answer"
                );
                let mut response = told(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the node cannot reach the orchestrator now; ask again",
                );
                response.headers_mut().insert("retry-after", HeaderValue::from_static("2"));
                response
            }
        }
    }
}

impl Door for Forwarder {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        // A whole address in the request line is an attempt to choose one.
        let path = match request.uri().authority() {
            Some(_) => "",
            None => request.uri().path(),
        };
        match pass(self.kind, request.method(), path) {
            Pass::Here => Response::new(full("")),
            Pass::No => {
                let what = format!("{} {}", request.method(), request.uri().path());
                told(
                    StatusCode::FORBIDDEN,
                    &format!(
                        "`{what}` is not let out of this sandbox: only models and tools are, by their own paths"
                    ),
                )
            }
            Pass::To(path) => match Arc::clone(&self.room).try_acquire_owned() {
                Ok(place) => self.forward(path, request, place).await,
                Err(_) => {
                    let mut response = told(
                        StatusCode::TOO_MANY_REQUESTS,
                        "this job has too many requests open at once; end one first",
                    );
                    response.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
                    response
                }
            },
        }
    }
}

fn too_large(most: usize) -> Response<Body> {
    told(StatusCode::PAYLOAD_TOO_LARGE, &format!("the body is larger than {most} bytes"))
}

fn inward(headers: &HeaderMap) -> HeaderMap {
    keep(headers, |name| INWARD.contains(&name) || name.starts_with("mcp-"))
}

fn outward(headers: &HeaderMap) -> HeaderMap {
    keep(headers, |name| {
        OUTWARD.contains(&name)
            || ["mcp-", "anthropic-ratelimit-", "x-ratelimit-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
    })
}

fn keep(headers: &HeaderMap, wanted: impl Fn(&str) -> bool) -> HeaderMap {
    let pairs = headers.iter().filter(|(name, _)| wanted(name.as_str()));
    pairs.map(|(name, value): (&HeaderName, &HeaderValue)| (name.clone(), value.clone())).collect()
}

/// Passes the answer on as it comes. The place is given back when it has ended.
fn back(answer: reqwest::Response, place: OwnedSemaphorePermit) -> Response<Body> {
    let status = answer.status();
    if status.is_redirection() {
        return told(StatusCode::BAD_GATEWAY, "the orchestrator answered with another address");
    }
    let headers = outward(answer.headers());
    let (_, body) = hyper::http::Response::from(answer).into_parts();
    let body = body.map_err(anyhow::Error::from).map_frame(move |frame| {
        let _until_the_end = &place;
        frame.map_data(|data: Bytes| data)
    });
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn caused_by_size(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_listed_paths_are_let_through() {
        let models = |method: &str, path| pass(Kind::Models, &method.parse().unwrap(), path);
        let tools = |method: &str, path| pass(Kind::Tools, &method.parse().unwrap(), path);
        assert_eq!(models("POST", "/v1/messages"), Pass::To("/v1/messages"));
        assert_eq!(models("GET", "/v1/models"), Pass::To("/v1/models"));
        assert_eq!(models("HEAD", "/"), Pass::Here);
        assert_eq!(tools("DELETE", "/mcp"), Pass::To("/mcp"));
        for (method, path) in [
            ("GET", "/v1/messages"),
            ("POST", "/v1/messages/"),
            ("POST", "//v1/messages"),
            ("POST", "/v1/./messages"),
            ("POST", "/v1/%6dessages"),
            ("POST", "/v1/nodes/claim"),
            ("GET", "/"),
            ("POST", "/mcp"),
            ("CONNECT", ""),
        ] {
            assert_eq!(models(method, path), Pass::No, "{method} {path}");
        }
        for (method, path) in [("PUT", "/mcp"), ("POST", "/mcp/x"), ("POST", "/v1/messages")] {
            assert_eq!(tools(method, path), Pass::No, "{method} {path}");
        }
    }

    #[test]
    fn headers_that_could_name_somebody_are_dropped() {
        let mut headers = HeaderMap::new();
        for name in [
            "authorization",
            "x-api-key",
            "cookie",
            "host",
            "forwarded",
            "x-forwarded-for",
            "x-cynode-project",
            "traceparent",
            "proxy-authorization",
            "connection",
            "content-length",
            "transfer-encoding",
            "idempotency-key",
            "accept",
            "mcp-session-id",
        ] {
            headers.insert(name, HeaderValue::from_static("x"));
        }
        let left: Vec<_> = inward(&headers).keys().map(|name| name.to_string()).collect();
        assert_eq!(left, ["accept", "mcp-session-id"]);
    }
}
