//! HTTP client for providers.

use std::{
    collections::HashMap,
    error::Error as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use cynode_core::{
    models::{Dialect, ProviderKind},
    sync::lock_unpoisoned,
};
use cynode_net::tls::ClientTls;
use futures::{Stream, StreamExt, TryStreamExt};
use reqwest::{
    Client, StatusCode,
    header::{
        ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
    },
    redirect::Policy,
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use url::Url;

use crate::dialect::{
    DialectCodec as _,
    canonical::{ModelError, ModelErrorKind},
};

/// Timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a response that is not streamed.
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// Maximum size of an error response.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Version of the Messages API that is sent when the client names none.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// Statuses that an intermediary may send while the provider continues to work on the request.
const INTERMEDIARY_STATUSES: [u16; 8] = [408, 499, 502, 504, 520, 522, 523, 524];

/// Maximum `retry-after` that is accepted from a provider.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Client headers that are forwarded to the provider if both use the same dialect.
pub const FORWARDED_HEADERS: [&str; 2] = ["anthropic-beta", "anthropic-version"];

/// Prefixes of the allowed beta features.
const ALLOWED_BETA_PREFIXES: [&str; 8] = [
    "claude-code-",
    "interleaved-thinking-",
    "fine-grained-tool-streaming-",
    "token-efficient-tools-",
    "structured-outputs-",
    "prompt-caching-",
    "output-128k-",
    "effort-",
];

/// Endpoint of a provider on the network.
#[derive(Clone, Debug)]
pub struct UpstreamEndpoint {
    /// Kind of provider.
    pub kind: ProviderKind,
    /// Dialect of the endpoint.
    pub dialect: Dialect,
    /// Base URL, including `/v1`.
    pub base_url: Url,
}

/// Sends requests to providers.
#[derive(Clone, Debug)]
pub struct UpstreamClient {
    client: Client,
    idle: Duration,
    tls: ClientTls,
    /// Clients with longer idle timeouts, by timeout.
    patient: Arc<Mutex<HashMap<Duration, Client>>>,
}

/// Failure of a request, and whether the provider certainly did no work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamFailure {
    /// Reason of the failure.
    pub error: ModelError,
    /// Whether the provider did no work, so that nothing can be billed.
    pub free: bool,
}

/// A response whose headers have arrived: the provider has accepted the request.
#[derive(Debug)]
pub struct UpstreamResponse {
    response: reqwest::Response,
}

impl UpstreamClient {
    /// Creates a client that trusts the roots of the machine. `idle` is the maximum time between two reads from a provider.
    pub fn new(idle: Duration) -> Result<Self, ModelError> {
        Self::with_tls(idle, ClientTls::default())
    }

    /// Creates a client like [`Self::new`] with a trust of its own.
    pub fn with_tls(idle: Duration, tls: ClientTls) -> Result<Self, ModelError> {
        Ok(Self { client: build_client(idle, &tls)?, idle, tls, patient: Arc::default() })
    }

    /// Returns a client with this idle timeout, or with the default one if that is longer.
    fn client_with_timeout(&self, idle: Duration) -> Result<Client, ModelError> {
        if idle <= self.idle {
            return Ok(self.client.clone());
        }
        // The map has one entry per distinct configured timeout.
        let mut patient = lock_unpoisoned(&self.patient);
        if let Some(found) = patient.get(&idle) {
            return Ok(found.clone());
        }
        let made = build_client(idle, &self.tls)?;
        patient.insert(idle, made.clone());
        Ok(made)
    }

    /// Sends a request to a provider, with this idle timeout. After `Ok`, the provider works on the response.
    pub async fn send_request(
        &self,
        place: &UpstreamEndpoint,
        key: Option<&SecretString>,
        forwarded: &[(String, String)],
        body: Vec<u8>,
        stream: bool,
        idle: Duration,
    ) -> Result<UpstreamResponse, UpstreamFailure> {
        let headers = request_headers(place, key, forwarded, stream)
            .map_err(|error| UpstreamFailure { error, free: true })?;
        let client = self
            .client_with_timeout(idle)
            .map_err(|error| UpstreamFailure { error, free: true })?;
        let request = client.post(endpoint_url(place)).headers(headers).body(body);
        let response = request.send().await.map_err(|error| UpstreamFailure {
            // Without a connection the request was not sent.
            free: error.is_connect(),
            error: transport_error(&error),
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(UpstreamResponse { response });
        }
        if status.is_redirection() {
            let told = format!("the provider sends us elsewhere ({status}), which is not followed");
            return Err(UpstreamFailure {
                error: ModelError::new(ModelErrorKind::Upstream, told),
                free: true,
            });
        }
        let wait = parse_retry_after(response.headers());
        let body = read_body(response, MAX_ERROR_BYTES).await.unwrap_or_default();
        let body = serde_json::from_slice(&body).unwrap_or_else(|_| {
            // A body that is not JSON may be anything, for example a proxy's error page. The status is enough.
            let reason = status.canonical_reason().unwrap_or("an error");
            Value::String(format!("the provider answered {} ({reason})", status.as_u16()))
        });
        let error = place.dialect.decode_error(status.as_u16(), &body, wait);
        Err(UpstreamFailure { error, free: !INTERMEDIARY_STATUSES.contains(&status.as_u16()) })
    }
}

fn build_client(idle: Duration, tls: &ClientTls) -> Result<Client, ModelError> {
    let builder = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(idle)
        // The API key goes only to the configured address.
        .redirect(Policy::none())
        // Shorter than the keep-alive of servers: a connection that the server is closing would lose a request.
        .pool_idle_timeout(Duration::from_secs(4))
        .tcp_nodelay(true)
        .no_proxy();
    let builder = tls.configure_client(builder).map_err(|error| {
        ModelError::new(ModelErrorKind::Unavailable, format!("TLS cannot be used: {error}"))
    })?;
    builder
        .build()
        .map_err(|error| ModelError::new(ModelErrorKind::Unavailable, describe_error(&error)))
}

impl UpstreamResponse {
    /// Reads the complete response.
    pub async fn read_json(self) -> Result<Value, ModelError> {
        let body = read_body(self.response, MAX_BODY_BYTES).await?;
        serde_json::from_slice(&body).map_err(|_| {
            ModelError::new(ModelErrorKind::Upstream, "the provider's answer is not JSON")
        })
    }

    /// Returns the response as a stream of bytes.
    pub fn into_byte_stream(self) -> impl Stream<Item = Result<Bytes, ModelError>> + Send + Unpin {
        self.response.bytes_stream().map_err(|error| transport_error(&error)).boxed()
    }
}

fn endpoint_url(place: &UpstreamEndpoint) -> Url {
    let mut url = place.base_url.clone();
    let path = match place.dialect {
        Dialect::Chat => "chat/completions",
        Dialect::Responses => "responses",
        Dialect::Messages => "messages",
    };
    let whole = format!("{}/{path}", url.path().trim_end_matches('/'));
    url.set_path(&whole);
    url
}

fn request_headers(
    place: &UpstreamEndpoint,
    key: Option<&SecretString>,
    forwarded: &[(String, String)],
    stream: bool,
) -> Result<HeaderMap, ModelError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let accept = if stream { "text/event-stream" } else { "application/json" };
    headers.insert(ACCEPT, HeaderValue::from_static(accept));
    if place.dialect == Dialect::Messages {
        headers.insert("anthropic-version", HeaderValue::from_static(ANTHROPIC_VERSION));
        for (name, value) in forwarded {
            let value = if name == "anthropic-beta" { filter_betas(value) } else { value.clone() };
            if value.is_empty() {
                continue;
            }
            let pair = name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(&value).ok());
            if let Some((name, value)) = pair.filter(|_| FORWARDED_HEADERS.contains(&name.as_str()))
            {
                headers.insert(name, value);
            }
        }
    }
    if let Some(key) = key {
        let secret = |text: String| {
            let value = HeaderValue::from_str(&text);
            let mut value = value.map_err(|_| {
                ModelError::new(ModelErrorKind::Unavailable, "the provider's key cannot be sent")
            })?;
            value.set_sensitive(true);
            Ok(value)
        };
        if place.dialect == Dialect::Messages {
            headers.insert("x-api-key", secret(key.expose_secret().to_owned())?);
        }
        if place.kind != ProviderKind::Anthropic {
            headers.insert(AUTHORIZATION, secret(format!("Bearer {}", key.expose_secret()))?);
        }
    }
    Ok(headers)
}

/// Returns the beta features that a client may request: those that change neither the input nor its price.
fn filter_betas(value: &str) -> String {
    let names = value.split(',').map(str::trim);
    let known: Vec<&str> = names
        .filter(|name| ALLOWED_BETA_PREFIXES.iter().any(|known| name.starts_with(known)))
        .collect();
    known.join(",")
}

/// Returns the value of `retry-after` in seconds. A date is ignored.
fn parse_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let seconds: f64 = text.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().map(|wait| wait.min(MAX_RETRY_AFTER))
}

async fn read_body(response: reqwest::Response, most: usize) -> Result<Vec<u8>, ModelError> {
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| transport_error(&error))?;
        if body.len() + piece.len() > most {
            return Err(ModelError::new(
                ModelErrorKind::Upstream,
                "the provider's answer is too long",
            ));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn transport_error(error: &reqwest::Error) -> ModelError {
    let kind = if error.is_timeout() {
        ModelErrorKind::Timeout
    } else if error.is_connect() || error.status() == Some(StatusCode::BAD_GATEWAY) {
        ModelErrorKind::Unavailable
    } else {
        ModelErrorKind::Upstream
    };
    let fix = match kind {
        ModelErrorKind::Unavailable => "; check that it runs, and its base URL",
        _ => "",
    };
    let why = describe_error(error);
    ModelError::new(kind, format!("the provider could not be asked: {why}{fix}"))
}

/// Returns the error chain without the URL, which may hold secrets that users wrote into it.
fn describe_error(error: &reqwest::Error) -> String {
    error.source().map_or_else(
        || "the connection failed".into(),
        cynode_core::error_chain::format_error_chain,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dialect: Dialect, base_url: &str) -> UpstreamEndpoint {
        UpstreamEndpoint {
            kind: ProviderKind::Compatible,
            dialect,
            base_url: base_url.parse().unwrap(),
        }
    }

    #[test]
    fn each_dialect_has_its_path_below_the_address() {
        let asked = |dialect, base| endpoint_url(&place(dialect, base)).to_string();
        assert_eq!(asked(Dialect::Chat, "http://h:1/v1"), "http://h:1/v1/chat/completions");
        assert_eq!(asked(Dialect::Responses, "http://h/v1/"), "http://h/v1/responses");
        assert_eq!(asked(Dialect::Messages, "https://h/a/v1"), "https://h/a/v1/messages");
    }

    #[test]
    fn a_key_goes_into_the_headers_that_the_provider_reads_and_is_marked_as_secret() {
        let key = SecretString::from("k-1");
        let sent =
            request_headers(&place(Dialect::Chat, "http://h/v1"), Some(&key), &[], true).unwrap();
        assert_eq!(sent[AUTHORIZATION], "Bearer k-1");
        assert!(sent[AUTHORIZATION].is_sensitive());
        assert!(!sent.contains_key("x-api-key"));
        let mut anthropic = place(Dialect::Messages, "http://h/v1");
        anthropic.kind = ProviderKind::Anthropic;
        let said = [
            ("anthropic-beta", "claude-code-1, context-1m-1,effort-2"),
            ("host", "elsewhere"),
            ("x-api-key", "k-2"),
        ];
        let said = said.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let sent = request_headers(&anthropic, Some(&key), &said, false).unwrap();
        assert!(!sent.contains_key("host"));
        assert_eq!(sent["x-api-key"], "k-1");
        assert_eq!(sent["anthropic-version"], ANTHROPIC_VERSION);
        assert_eq!(sent["anthropic-beta"], "claude-code-1,effort-2");
        assert!(!sent.contains_key(AUTHORIZATION));
    }

    #[test]
    fn a_wait_is_read_from_seconds_only() {
        let wait = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            parse_retry_after(&headers)
        };
        assert_eq!(wait("2"), Some(Duration::from_secs(2)));
        assert_eq!(wait("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(wait("Wed, 21 Oct 2026 07:28:00 GMT"), None);
        assert_eq!(wait("-1"), None);
        assert_eq!(wait("nan"), None);
        assert_eq!(wait("1e12"), Some(MAX_RETRY_AFTER));
    }
}
