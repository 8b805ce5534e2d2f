//! Egress of tools that call URLs, with an SSRF guard. A request never reaches this machine, a private network or a cloud metadata service:
//! the resolver drops addresses that are not globally routable, and each redirect is checked again. The client connects to the resolved
//! address that was checked, which prevents DNS rebinding.

use std::{sync::Arc, time::Duration};

use cynode_core::policies::{PolicyKey, PolicySet};
use cynode_net::{
    ssrf::PublicResolver,
    url_policy::{UrlError, UrlPolicy, validate_public_url},
};
use cynode_policy::agents::AgentProfile;
use futures::StreamExt;
use reqwest::{
    Client, Method, StatusCode,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION},
    redirect::Policy,
};
use url::Url;

/// Maximum size of a response body in bytes.
const MAX_RESPONSE_BYTES: usize = 2 * 1024 * 1024;

/// Timeout of a request, including its redirects.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of redirects that are followed.
const MAX_REDIRECTS: usize = 5;

/// Sends HTTP requests for agents.
#[derive(Clone, Debug)]
pub struct EgressClient {
    public: Client,
    /// Client for the few private hosts that an admin has allowed.
    inside: Client,
    opened: Arc<[String]>,
}

/// Response of an external server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressResponse {
    /// Final URL, after redirects.
    pub url: String,
    /// HTTP status.
    pub status: u16,
    /// Media type, as the server states it.
    pub media_type: Option<String>,
    /// Body as text.
    pub body: String,
    /// Whether the body was truncated.
    pub truncated: bool,
}

/// Request to an external server.
#[derive(Clone, Debug)]
pub struct EgressRequest {
    /// HTTP method.
    pub method: Method,
    /// Target URL.
    pub url: String,
    /// Request headers.
    pub headers: Vec<(String, String)>,
    /// Request body.
    pub body: Option<String>,
    /// Policies about domains that hold for the caller. Each redirect obeys them too.
    pub policies: PolicySet,
    /// Profile of the agent, whose network rules each redirect obeys too.
    pub profile: AgentProfile,
}

/// Reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// The URL is not allowed.
    #[error("{0}")]
    Refused(&'static str),
    /// The profile of the agent does not permit the request.
    #[error("{0}")]
    ProfileDenied(String),
    /// A mandatory policy does not allow the domain.
    #[error("{0}")]
    PolicyDenied(String),
    /// The server is unreachable.
    #[error("the server could not be reached")]
    Unreachable,
    /// The request timed out.
    #[error("the server did not answer in time")]
    Timeout,
}

impl EgressClient {
    /// Creates a client. `opened` lists the private hosts that an admin allows, as `host:port`.
    pub fn new(opened: Vec<String>) -> Result<Self, reqwest::Error> {
        let client = || {
            Client::builder()
                .redirect(Policy::none())
                .no_proxy()
                .connect_timeout(Duration::from_secs(5))
        };
        Ok(Self {
            public: client().dns_resolver(Arc::new(PublicResolver::default())).build()?,
            inside: client().build()?,
            opened: opened.into(),
        })
    }

    /// Sends a request and follows redirects. Each redirect is validated anew.
    pub async fn send_request(
        &self,
        outgoing: EgressRequest,
    ) -> Result<EgressResponse, EgressError> {
        tokio::time::timeout(REQUEST_TIMEOUT, self.follow_redirects(outgoing))
            .await
            .unwrap_or(Err(EgressError::Timeout))
    }

    async fn follow_redirects(
        &self,
        outgoing: EgressRequest,
    ) -> Result<EgressResponse, EgressError> {
        let mut url: Url =
            outgoing.url.parse().map_err(|_| EgressError::Refused("`url` is not an address"))?;
        let mut headers = parse_headers(&outgoing.headers)?;
        let mut body = outgoing.body;
        for _ in 0..=MAX_REDIRECTS {
            require_in_profile(&outgoing.profile, &outgoing.method, &url)?;
            require_allowed_domain(&outgoing.policies, &url)?;
            let client = self.select_client(&url)?;
            let mut request =
                client.request(outgoing.method.clone(), url.clone()).headers(headers.clone());
            if let Some(body) = &body {
                request = request.body(body.clone());
            }
            let answer = request.send().await.map_err(|_| EgressError::Unreachable)?;
            match redirect_target(&url, &answer) {
                Some(next) if outgoing.method == Method::GET => {
                    // Headers and body meant for one origin are not sent to another.
                    if next.origin() != url.origin() {
                        headers = HeaderMap::new();
                        body = None;
                    }
                    url = next;
                }
                _ => return read_response(url, answer).await,
            }
        }
        Err(EgressError::Refused("too many redirects"))
    }

    fn select_client(&self, url: &Url) -> Result<&Client, EgressError> {
        let port = url.port_or_known_default().unwrap_or_default();
        let opened = url.host().is_some_and(|host| self.opened.contains(&format!("{host}:{port}")));
        let policy =
            UrlPolicy { allow_private: opened, allow_plaintext: true, allow_fragment: true };
        validate_public_url(url, policy)
            .map_err(|error| EgressError::Refused(describe_url_error(error)))?;
        Ok(if opened { &self.inside } else { &self.public })
    }
}

/// Rejects a request that the profile does not permit.
fn require_in_profile(
    profile: &AgentProfile,
    method: &Method,
    url: &Url,
) -> Result<(), EgressError> {
    let host = lowercase_host(url);
    if profile.spec.allows_request(method.as_str(), &host) {
        return Ok(());
    }
    Err(EgressError::ProfileDenied(format!(
        "the profile `{}` (version {}) does not permit {method} to `{host}`",
        profile.name, profile.version
    )))
}

fn lowercase_host(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_ascii_lowercase()
}

/// Rejects a host that a policy does not allow.
fn require_allowed_domain(policies: &PolicySet, url: &Url) -> Result<(), EgressError> {
    let host = lowercase_host(url);
    match policies.find_refusal(PolicyKey::AllowedDomains, &host) {
        Some(entry) => Err(EgressError::PolicyDenied(format!(
            "`{host}` is not reached: {}",
            entry.describe_policy()
        ))),
        None => Ok(()),
    }
}

/// Returns the message for the agent whose URL was rejected.
const fn describe_url_error(error: UrlError) -> &'static str {
    match error {
        UrlError::Scheme | UrlError::Plaintext => "only http and https lead outside",
        UrlError::Credentials => "an address with a password in it is not used",
        UrlError::Fragment => "an address with a fragment is not used",
        UrlError::NoHost => "`url` has no host",
        UrlError::PrivateAddress => "the address is not a public one",
    }
}

fn parse_headers(pairs: &[(String, String)]) -> Result<HeaderMap, EgressError> {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let wrong = |_| EgressError::Refused("a header is not one");
        let name: HeaderName =
            name.parse().map_err(|_| EgressError::Refused("a header is not one"))?;
        let forbidden = [
            "host",
            "connection",
            "content-length",
            "transfer-encoding",
            "upgrade",
            "te",
            "trailer",
        ];
        if forbidden.contains(&name.as_str()) || name.as_str().starts_with("proxy-") {
            return Err(EgressError::Refused(
                "a header that belongs to the connection is not set by a tool",
            ));
        }
        // Servers that obey them would do what the profile does not permit.
        if ["x-http-method-override", "x-http-method", "x-method-override"].contains(&name.as_str())
        {
            return Err(EgressError::Refused(
                "a header that names another method is not set by a tool",
            ));
        }
        map.append(name, HeaderValue::from_str(value).map_err(wrong)?);
    }
    Ok(map)
}

fn redirect_target(from: &Url, answer: &reqwest::Response) -> Option<Url> {
    let moved = matches!(
        answer.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let to = answer.headers().get(LOCATION)?.to_str().ok()?;
    if moved { from.join(to).ok() } else { None }
}

async fn read_response(url: Url, answer: reqwest::Response) -> Result<EgressResponse, EgressError> {
    let status = answer.status().as_u16();
    let media_type =
        answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(str::to_owned);
    let (mut bytes, mut truncated) = (Vec::new(), false);
    let mut stream = answer.bytes_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| EgressError::Unreachable)?;
        let room = MAX_RESPONSE_BYTES - bytes.len();
        bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            truncated = true;
            break;
        }
    }
    Ok(EgressResponse {
        url: url.into(),
        status,
        media_type,
        body: String::from_utf8_lossy(&bytes).into_owned(),
        truncated,
    })
}
