//! HTTP clients of notification channels, with an SSRF guard. The resolver drops addresses that are not globally
//! routable, and no redirect is followed.

use std::{sync::Arc, time::Duration};

use cynode_net::{
    ssrf::PublicResolver,
    url_policy::{UrlPolicy, validate_public_url},
};
use reqwest::{Client, Response, StatusCode, header::RETRY_AFTER, redirect::Policy};
use url::Url;

use crate::{DeliveryError, DeliveryReceipt, MAX_RESPONSE_BYTES, text};

/// Maximum retry delay that a server may request.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Addresses that a notification may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryEgress {
    /// Globally routable addresses, with TLS.
    Public,
    /// All addresses, including this machine and private networks.
    Anywhere,
}

impl DeliveryEgress {
    /// Returns the URL policy of a channel.
    pub const fn url_policy(self) -> UrlPolicy {
        let anywhere = matches!(self, Self::Anywhere);
        UrlPolicy { allow_private: anywhere, allow_plaintext: anywhere, allow_fragment: false }
    }
}

/// HTTP clients, one for each [`DeliveryEgress`].
#[derive(Clone, Debug)]
pub(crate) struct EgressClients {
    open: Client,
    anywhere: Client,
}

impl EgressClients {
    pub(crate) fn new() -> Result<Self, reqwest::Error> {
        let client = || {
            Client::builder()
                .redirect(Policy::none())
                .no_proxy()
                .user_agent(concat!("cynode/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(Duration::from_secs(5))
                .timeout(Duration::from_secs(10))
        };
        Ok(Self {
            open: client().dns_resolver(Arc::new(PublicResolver::default())).build()?,
            anywhere: client().build()?,
        })
    }

    /// Returns the client for a URL, or an error if the URL is not allowed.
    pub(crate) fn client_for(
        &self,
        url: &Url,
        reach: DeliveryEgress,
    ) -> Result<&Client, DeliveryError> {
        validate_public_url(url, reach.url_policy())
            .map_err(|error| DeliveryError::permanent_error(error.to_string()))?;
        Ok(match reach {
            DeliveryEgress::Public => &self.open,
            DeliveryEgress::Anywhere => &self.anywhere,
        })
    }
}

/// Describes why a request got no response, without the URL: it may contain a secret.
pub(crate) fn to_transport_error(error: &reqwest::Error) -> DeliveryError {
    DeliveryError::transient_error(if error.is_timeout() {
        "there was no answer in time"
    } else if error.is_connect() {
        "there was no connection"
    } else {
        "the connection broke"
    })
}

/// Response of a receiver, with its body truncated.
pub(crate) struct DeliveryResponse {
    pub(crate) status: StatusCode,
    after: Option<Duration>,
    words: String,
}

impl DeliveryResponse {
    pub(crate) async fn read_response(mut response: Response) -> Self {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let mut bytes = Vec::new();
        while bytes.len() < MAX_RESPONSE_BYTES
            && let Ok(Some(chunk)) = response.chunk().await
        {
            bytes.extend_from_slice(&chunk);
        }
        bytes.truncate(MAX_RESPONSE_BYTES);
        let words = text::to_single_line(&String::from_utf8_lossy(&bytes));
        Self { status, after: after.map(|after| after.min(MAX_RETRY_AFTER)), words }
    }

    /// Returns the status and the first words of the body.
    pub(crate) fn status_summary(&self) -> String {
        let status = self.status.as_u16();
        if self.words.is_empty() { status.to_string() } else { format!("{status} {}", self.words) }
    }

    pub(crate) fn to_delivery_receipt(&self) -> DeliveryReceipt {
        DeliveryReceipt { answer: self.status_summary() }
    }

    pub(crate) fn to_delivery_error(&self, again: bool) -> DeliveryError {
        DeliveryError {
            again,
            after: self.after,
            gone: false,
            why: format!("the answer was {}", self.status_summary()),
        }
    }
}
