//! Forwards requests of a sandbox to the orchestrator's models and gateway.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cynode_net::tls::ClientTls;
use cynode_sandbox::{SocketBody, SocketBodyError, SocketHandler, full_body};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Body as _, Incoming},
    header::{HeaderName, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent model requests of one job.
const MAX_MODEL_REQUESTS: usize = 16;

/// Maximum number of concurrent tool requests of one job, including open event streams.
const MAX_TOOL_REQUESTS: usize = 32;

/// Maximum size of a model request: conversations with images are large.
const MAX_MODEL_REQUEST_BYTES: usize = 48 * 1024 * 1024;

/// Maximum size of a tool request.
const MAX_TOOL_REQUEST_BYTES: usize = 8 * 1024 * 1024;

/// Request headers that describe the content and never the caller's identity.
const FORWARDED_REQUEST_HEADERS: [&str; 7] = [
    "accept",
    "content-type",
    "user-agent",
    "anthropic-version",
    "anthropic-beta",
    "openai-beta",
    "last-event-id",
];

/// Response headers that a client needs and that reveal nothing about the origin.
const FORWARDED_RESPONSE_HEADERS: [&str; 7] = [
    "content-type",
    "cache-control",
    "retry-after",
    "request-id",
    "x-request-id",
    "x-should-retry",
    "allow",
];

/// Upstream for forwarded requests.
#[derive(Clone, Debug)]
pub(crate) struct AgentUpstream {
    http: reqwest::Client,
    base: String,
}

impl AgentUpstream {
    /// Creates the upstream for the orchestrator at `base`.
    pub(crate) fn new(base: &str, tls: &ClientTls) -> anyhow::Result<Self> {
        let builder = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .tcp_nodelay(true)
            .tcp_keepalive(Duration::from_secs(30))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        let http = tls.configure_client(builder)?.build()?;
        Ok(Self { http, base: base.trim_end_matches('/').to_owned() })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamKind {
    Models,
    Tools,
}

/// Routing decision about a request.
#[derive(Debug, PartialEq, Eq)]
enum RouteDecision {
    /// Forwards the request to this path.
    To(&'static str),
    /// The node answers a liveness probe itself.
    Here,
    /// Rejects the request.
    No,
}

/// Matches a request against all allowed routes. Query strings are dropped: no allowed path needs one.
fn match_route(kind: UpstreamKind, method: &Method, path: &str) -> RouteDecision {
    match (kind, method.as_str(), path) {
        (UpstreamKind::Models, "POST", "/v1/chat/completions") => {
            RouteDecision::To("/v1/chat/completions")
        }
        (UpstreamKind::Models, "POST", "/v1/responses") => RouteDecision::To("/v1/responses"),
        (UpstreamKind::Models, "POST", "/v1/messages") => RouteDecision::To("/v1/messages"),
        (UpstreamKind::Models, "POST", "/v1/messages/count_tokens") => {
            RouteDecision::To("/v1/messages/count_tokens")
        }
        (UpstreamKind::Models, "GET", "/v1/models") => RouteDecision::To("/v1/models"),
        (UpstreamKind::Models, "HEAD", "/") => RouteDecision::Here,
        (UpstreamKind::Tools, "POST" | "GET" | "DELETE", "/mcp") => RouteDecision::To("/mcp"),
        _ => RouteDecision::No,
    }
}

pub(super) struct UpstreamForwarder {
    kind: UpstreamKind,
    upstream: AgentUpstream,
    token: SecretString,
    trace: String,
    room: Arc<Semaphore>,
}

impl UpstreamForwarder {
    pub(super) fn new(
        kind: UpstreamKind,
        upstream: AgentUpstream,
        token: SecretString,
        trace: String,
    ) -> Self {
        let most = match kind {
            UpstreamKind::Models => MAX_MODEL_REQUESTS,
            UpstreamKind::Tools => MAX_TOOL_REQUESTS,
        };
        Self { kind, upstream, token, trace, room: Arc::new(Semaphore::new(most)) }
    }

    const fn max_body_bytes(&self) -> usize {
        match self.kind {
            UpstreamKind::Models => MAX_MODEL_REQUEST_BYTES,
            UpstreamKind::Tools => MAX_TOOL_REQUEST_BYTES,
        }
    }

    async fn forward_request(
        &self,
        path: &str,
        request: Request<Incoming>,
        place: OwnedSemaphorePermit,
    ) -> Response<SocketBody> {
        let (parts, body) = request.into_parts();
        let most = self.max_body_bytes();
        if body.size_hint().lower() > most as u64 {
            return too_large_response(most);
        }
        let mut onward = self
            .upstream
            .http
            .request(parts.method, format!("{}{path}", self.upstream.base))
            .headers(filter_request_headers(&parts.headers))
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
            Ok(answer) => relay_response(answer, place),
            Err(error) if is_length_limit_error(&error) => too_large_response(most),
            Err(error) => {
                tracing::debug!(
                    event = "forward.failed",
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "no answer"
                );
                let mut response = error_response(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the node cannot reach the orchestrator now; ask again",
                );
                response.headers_mut().insert("retry-after", HeaderValue::from_static("2"));
                response
            }
        }
    }
}

impl SocketHandler for UpstreamForwarder {
    async fn handle_request(self: Arc<Self>, request: Request<Incoming>) -> Response<SocketBody> {
        // An absolute URI in the request line is an attempt to choose another host.
        let path = match request.uri().authority() {
            Some(_) => "",
            None => request.uri().path(),
        };
        match match_route(self.kind, request.method(), path) {
            RouteDecision::Here => Response::new(full_body("")),
            RouteDecision::No => {
                let what = format!("{} {}", request.method(), request.uri().path());
                error_response(
                    StatusCode::FORBIDDEN,
                    &format!(
                        "`{what}` is not let out of this sandbox: only models and tools are, by their own paths"
                    ),
                )
            }
            RouteDecision::To(path) => match Arc::clone(&self.room).try_acquire_owned() {
                Ok(place) => self.forward_request(path, request, place).await,
                Err(_) => {
                    let mut response = error_response(
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

/// Builds an error response of the node itself.
fn error_response(status: StatusCode, message: &str) -> Response<SocketBody> {
    cynode_sandbox::error_response("cynode_node", status, message)
}

fn too_large_response(most: usize) -> Response<SocketBody> {
    error_response(StatusCode::PAYLOAD_TOO_LARGE, &format!("the body is larger than {most} bytes"))
}

fn filter_request_headers(headers: &HeaderMap) -> HeaderMap {
    filter_headers(headers, |name| {
        FORWARDED_REQUEST_HEADERS.contains(&name) || name.starts_with("mcp-")
    })
}

fn filter_response_headers(headers: &HeaderMap) -> HeaderMap {
    filter_headers(headers, |name| {
        FORWARDED_RESPONSE_HEADERS.contains(&name)
            || ["mcp-", "anthropic-ratelimit-", "x-ratelimit-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
    })
}

fn filter_headers(headers: &HeaderMap, wanted: impl Fn(&str) -> bool) -> HeaderMap {
    let pairs = headers.iter().filter(|(name, _)| wanted(name.as_str()));
    pairs.map(|(name, value): (&HeaderName, &HeaderValue)| (name.clone(), value.clone())).collect()
}

/// Streams the response. The permit is released when the response has ended.
fn relay_response(answer: reqwest::Response, place: OwnedSemaphorePermit) -> Response<SocketBody> {
    let status = answer.status();
    if status.is_redirection() {
        return error_response(
            StatusCode::BAD_GATEWAY,
            "the orchestrator answered with another address",
        );
    }
    let headers = filter_response_headers(answer.headers());
    let (_, body) = hyper::http::Response::from(answer).into_parts();
    let body = body.map_err(SocketBodyError::from_cause).map_frame(move |frame| {
        let _until_the_end = &place;
        frame.map_data(|data: Bytes| data)
    });
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn is_length_limit_error(error: &reqwest::Error) -> bool {
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
        let models =
            |method: &str, path| match_route(UpstreamKind::Models, &method.parse().unwrap(), path);
        let tools =
            |method: &str, path| match_route(UpstreamKind::Tools, &method.parse().unwrap(), path);
        assert_eq!(models("POST", "/v1/messages"), RouteDecision::To("/v1/messages"));
        assert_eq!(models("GET", "/v1/models"), RouteDecision::To("/v1/models"));
        assert_eq!(models("HEAD", "/"), RouteDecision::Here);
        assert_eq!(tools("DELETE", "/mcp"), RouteDecision::To("/mcp"));
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
            assert_eq!(models(method, path), RouteDecision::No, "{method} {path}");
        }
        for (method, path) in [("PUT", "/mcp"), ("POST", "/mcp/x"), ("POST", "/v1/messages")] {
            assert_eq!(tools(method, path), RouteDecision::No, "{method} {path}");
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
        let left: Vec<_> =
            filter_request_headers(&headers).keys().map(|name| name.to_string()).collect();
        assert_eq!(left, ["accept", "mcp-session-id"]);
    }
}
