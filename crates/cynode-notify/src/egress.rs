//! SSRF guard for notification channels: which URLs a delivery may call, and the HTTP client that enforces it. The
//! resolver drops addresses that are not globally routable, and no redirect is followed.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use cynode_core::globally_routable::is_globally_routable;
use reqwest::{
    Client, Response, StatusCode,
    dns::{Addrs, Name, Resolve, Resolving},
    header::RETRY_AFTER,
    redirect::Policy,
};
use url::{Host, Url};

use crate::{DeliveryError, DeliveryReceipt, MAX_RESPONSE_BYTES, text};

/// Longest time that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// How far a notice may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryEgress {
    /// To addresses that are out in the open, encrypted.
    Public,
    /// To this machine and private networks too.
    Anywhere,
}

/// Why an address is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryUrlError {
    /// It is not of the web.
    #[error("the address is not http or https")]
    Scheme,
    /// It names nobody.
    #[error("the address has no host")]
    Host,
    /// It holds a credential, which everybody who sees the address would see.
    #[error("the address holds a name or a password: give the secret by itself")]
    Credential,
    /// It has a part that is never sent.
    #[error("the address has a fragment")]
    Fragment,
    /// It is not out in the open.
    #[error("the address is not a public one")]
    Private,
    /// What is told would travel in the open.
    #[error("a public address is https")]
    Plain,
}

/// Whether an address may be used, as far as that can be told before its name is looked up.
pub fn validate_delivery_url(url: &Url, egress: DeliveryEgress) -> Result<(), DeliveryUrlError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(DeliveryUrlError::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(DeliveryUrlError::Credential);
    }
    if url.fragment().is_some() {
        return Err(DeliveryUrlError::Fragment);
    }
    let open = match url.host().ok_or(DeliveryUrlError::Host)? {
        Host::Ipv4(ip) => is_globally_routable(ip.into()),
        Host::Ipv6(ip) => is_globally_routable(ip.into()),
        Host::Domain(_) => true,
    };
    match egress {
        DeliveryEgress::Anywhere => Ok(()),
        DeliveryEgress::Public if !open => Err(DeliveryUrlError::Private),
        DeliveryEgress::Public if url.scheme() == "http" => Err(DeliveryUrlError::Plain),
        DeliveryEgress::Public => Ok(()),
    }
}

/// Finds addresses of names, and only those that are out in the open. It is asked for the very connection that is made, so
/// that a name cannot lead elsewhere the second time.
#[derive(Clone, Debug, Default)]
struct PublicResolver;

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let open: Vec<SocketAddr> =
                found.filter(|address| is_globally_routable(address.ip())).collect();
            if open.is_empty() {
                return Err("the name leads to no public address".into());
            }
            Ok(Box::new(open.into_iter()) as Addrs)
        })
    }
}

/// The ways out.
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
            open: client().dns_resolver(Arc::new(PublicResolver)).build()?,
            anywhere: client().build()?,
        })
    }

    /// The way to an address, if there is one.
    pub(crate) fn client_for(
        &self,
        url: &Url,
        egress: DeliveryEgress,
    ) -> Result<&Client, DeliveryError> {
        validate_delivery_url(url, egress)
            .map_err(|error| DeliveryError::permanent_error(error.to_string()))?;
        Ok(match egress {
            DeliveryEgress::Public => &self.open,
            DeliveryEgress::Anywhere => &self.anywhere,
        })
    }
}

/// Why a request got no answer, without the address: it may hold what opens a door.
pub(crate) fn to_transport_error(error: &reqwest::Error) -> DeliveryError {
    DeliveryError::transient_error(if error.is_timeout() {
        "there was no answer in time"
    } else if error.is_connect() {
        "there was no connection"
    } else {
        "the connection broke"
    })
}

/// An answer, read as far as it is kept.
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

    /// The status and the first words.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_public_and_encrypted_unless_it_is_said_otherwise() {
        let check = |text: &str, egress| validate_delivery_url(&text.parse().unwrap(), egress);
        for (text, open, anywhere) in [
            ("https://example.com/hook?x=1", Ok(()), Ok(())),
            ("https://93.184.216.34/", Ok(()), Ok(())),
            ("http://example.com/", Err(DeliveryUrlError::Plain), Ok(())),
            ("https://127.0.0.1/", Err(DeliveryUrlError::Private), Ok(())),
            ("https://2130706433/", Err(DeliveryUrlError::Private), Ok(())),
            ("https://0x7f.1/", Err(DeliveryUrlError::Private), Ok(())),
            ("http://169.254.169.254/latest", Err(DeliveryUrlError::Private), Ok(())),
            ("https://[::1]/", Err(DeliveryUrlError::Private), Ok(())),
            ("https://[::ffff:10.0.0.1]/", Err(DeliveryUrlError::Private), Ok(())),
            (
                "https://a:b@example.com/",
                Err(DeliveryUrlError::Credential),
                Err(DeliveryUrlError::Credential),
            ),
            (
                "https://example.com/#x",
                Err(DeliveryUrlError::Fragment),
                Err(DeliveryUrlError::Fragment),
            ),
            ("file:///etc/passwd", Err(DeliveryUrlError::Scheme), Err(DeliveryUrlError::Scheme)),
            ("gopher://example.com/", Err(DeliveryUrlError::Scheme), Err(DeliveryUrlError::Scheme)),
        ] {
            assert_eq!(
                (check(text, DeliveryEgress::Public), check(text, DeliveryEgress::Anywhere)),
                (open, anywhere),
                "{text}"
            );
        }
    }
}
