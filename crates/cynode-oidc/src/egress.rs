//! HTTP client of identity providers, with an SSRF guard. The resolver drops addresses that are not globally routable,
//! and no redirect is followed. The few private hosts that the configuration names are reached without that guard.

use std::{sync::Arc, time::Duration};

use cynode_net::{
    ssrf::PublicResolver,
    url_policy::{UrlPolicy, validate_public_url},
};
use reqwest::{
    Client, RequestBuilder, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
    redirect::Policy,
};
use secrecy::{ExposeSecret, SecretString};
use url::{Url, form_urlencoded};

use crate::OidcError;

/// Maximum size of a response body.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;

const JSON_MEDIA_TYPE: &str = "application/json";
const FORM_MEDIA_TYPE: &str = "application/x-www-form-urlencoded";

/// Response of a provider: its status and its whole body.
pub(crate) struct ProviderResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: Vec<u8>,
}

/// Sends requests to identity providers.
#[derive(Clone, Debug)]
pub(crate) struct ProviderHttp {
    public: Client,
    /// Client for the private hosts that the configuration names.
    private: Client,
    private_hosts: Arc<[String]>,
}

impl ProviderHttp {
    /// Creates a client. `private_hosts` lists private hosts that may be reached, as `host:port`.
    pub(crate) fn new(private_hosts: Vec<String>) -> Result<Self, reqwest::Error> {
        let client = || {
            Client::builder()
                .redirect(Policy::none())
                .no_proxy()
                .user_agent(concat!("cynode/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(Duration::from_secs(5))
                .timeout(Duration::from_secs(10))
        };
        Ok(Self {
            public: client().dns_resolver(Arc::new(PublicResolver::default())).build()?,
            private: client().build()?,
            private_hosts: private_hosts.into(),
        })
    }

    /// Rejects a URL that neither we nor a browser may be sent to.
    pub(crate) fn validate_url(&self, url: &Url) -> Result<(), OidcError> {
        let private = self.is_private_host(url);
        let policy =
            UrlPolicy { allow_private: private, allow_plaintext: private, allow_fragment: false };
        validate_public_url(url, policy).map_err(|error| OidcError::Address(error.to_string()))
    }

    fn is_private_host(&self, url: &Url) -> bool {
        let port = url.port_or_known_default().unwrap_or_default();
        url.host().is_some_and(|host| self.private_hosts.contains(&format!("{host}:{port}")))
    }

    fn client_for(&self, url: &Url) -> Result<&Client, OidcError> {
        self.validate_url(url)?;
        Ok(if self.is_private_host(url) { &self.private } else { &self.public })
    }

    /// Sends a GET request for JSON, with an access token if there is one.
    pub(crate) async fn get_json(
        &self,
        url: &Url,
        access_token: Option<&str>,
    ) -> Result<ProviderResponse, OidcError> {
        let request = self.client_for(url)?.get(url.clone()).header(ACCEPT, JSON_MEDIA_TYPE);
        let request = match access_token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        send_request(request).await
    }

    /// Sends a form, with the credentials of the client if it authenticates itself by HTTP Basic.
    pub(crate) async fn post_form(
        &self,
        url: &Url,
        fields: &[(&str, &str)],
        basic: Option<(&str, &SecretString)>,
    ) -> Result<ProviderResponse, OidcError> {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self
            .client_for(url)?
            .post(url.clone())
            .header(ACCEPT, JSON_MEDIA_TYPE)
            .header(CONTENT_TYPE, FORM_MEDIA_TYPE)
            .body(body);
        let request = match basic {
            // Both parts are form-encoded first: RFC 6749, section 2.3.1.
            Some((id, secret)) => {
                request.basic_auth(encode_form(id), Some(encode_form(secret.expose_secret())))
            }
            None => request,
        };
        send_request(request).await
    }
}

fn encode_form(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

async fn send_request(request: RequestBuilder) -> Result<ProviderResponse, OidcError> {
    let response = request.send().await.map_err(|error| to_transport_error(&error))?;
    let status = response.status();
    let body = read_body(response).await?;
    // What a repeat may mend is no word of the provider about a person.
    if status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
    {
        return Err(OidcError::Unreachable(format!("it answered with status {}", status.as_u16())));
    }
    Ok(ProviderResponse { status, body })
}

async fn read_body(mut response: Response) -> Result<Vec<u8>, OidcError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| to_transport_error(&error))? {
        if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(OidcError::Protocol("its answer is too long".into()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Describes why a request got no response, without the URL: it may contain a secret.
fn to_transport_error(error: &reqwest::Error) -> OidcError {
    OidcError::Unreachable(
        if error.is_timeout() {
            "there was no answer in time"
        } else if error.is_connect() {
            "there was no connection"
        } else {
            "the connection broke"
        }
        .to_owned(),
    )
}
