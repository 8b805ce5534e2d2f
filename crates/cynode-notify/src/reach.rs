//! Which addresses may be reached, and how.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use cynode_core::addresses::is_public;
use reqwest::{
    Client, Response, StatusCode,
    dns::{Addrs, Name, Resolve, Resolving},
    header::RETRY_AFTER,
    redirect::Policy,
};
use url::{Host, Url};

use crate::{Failed, MOST_ANSWER, Sent, text};

/// Longest time that a server may ask for.
const LONGEST_REST: Duration = Duration::from_hours(1);

/// How far a notice may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To addresses that are out in the open, encrypted.
    Public,
    /// To this machine and private networks too.
    Anywhere,
}

/// Why an address is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
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
pub fn check(url: &Url, reach: Reach) -> Result<(), Unreachable> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Unreachable::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Unreachable::Credential);
    }
    if url.fragment().is_some() {
        return Err(Unreachable::Fragment);
    }
    let open = match url.host().ok_or(Unreachable::Host)? {
        Host::Ipv4(ip) => is_public(ip.into()),
        Host::Ipv6(ip) => is_public(ip.into()),
        Host::Domain(_) => true,
    };
    match reach {
        Reach::Anywhere => Ok(()),
        Reach::Public if !open => Err(Unreachable::Private),
        Reach::Public if url.scheme() == "http" => Err(Unreachable::Plain),
        Reach::Public => Ok(()),
    }
}

/// Finds addresses of names, and only those that are out in the open. It is asked for the very connection that is made, so
/// that a name cannot lead elsewhere the second time.
#[derive(Clone, Debug, Default)]
struct Open;

impl Resolve for Open {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let open: Vec<SocketAddr> = found.filter(|address| is_public(address.ip())).collect();
            if open.is_empty() {
                return Err("the name leads to no public address".into());
            }
            Ok(Box::new(open.into_iter()) as Addrs)
        })
    }
}

/// The ways out.
#[derive(Clone, Debug)]
pub(crate) struct Ways {
    open: Client,
    anywhere: Client,
}

impl Ways {
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
            open: client().dns_resolver(Arc::new(Open)).build()?,
            anywhere: client().build()?,
        })
    }

    /// The way to an address, if there is one.
    pub(crate) fn to(&self, url: &Url, reach: Reach) -> Result<&Client, Failed> {
        check(url, reach).map_err(|error| Failed::lasting(error.to_string()))?;
        Ok(match reach {
            Reach::Public => &self.open,
            Reach::Anywhere => &self.anywhere,
        })
    }
}

/// Why a request got no answer, without the address: it may hold what opens a door.
pub(crate) fn unanswered(error: &reqwest::Error) -> Failed {
    Failed::passing(if error.is_timeout() {
        "there was no answer in time"
    } else if error.is_connect() {
        "there was no connection"
    } else {
        "the connection broke"
    })
}

/// An answer, read as far as it is kept.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    after: Option<Duration>,
    words: String,
}

impl Answer {
    pub(crate) async fn read(mut response: Response) -> Self {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let mut bytes = Vec::new();
        while bytes.len() < MOST_ANSWER
            && let Ok(Some(chunk)) = response.chunk().await
        {
            bytes.extend_from_slice(&chunk);
        }
        bytes.truncate(MOST_ANSWER);
        let words = text::line(&String::from_utf8_lossy(&bytes));
        Self { status, after: after.map(|after| after.min(LONGEST_REST)), words }
    }

    /// The status and the first words.
    pub(crate) fn told(&self) -> String {
        let status = self.status.as_u16();
        if self.words.is_empty() { status.to_string() } else { format!("{status} {}", self.words) }
    }

    pub(crate) fn sent(&self) -> Sent {
        Sent { answer: self.told() }
    }

    pub(crate) fn failed(&self, again: bool) -> Failed {
        Failed {
            again,
            after: self.after,
            gone: false,
            why: format!("the answer was {}", self.told()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_public_and_encrypted_unless_it_is_said_otherwise() {
        let check = |text: &str, reach| check(&text.parse().unwrap(), reach);
        for (text, open, anywhere) in [
            ("https://example.com/hook?x=1", Ok(()), Ok(())),
            ("https://93.184.216.34/", Ok(()), Ok(())),
            ("http://example.com/", Err(Unreachable::Plain), Ok(())),
            ("https://127.0.0.1/", Err(Unreachable::Private), Ok(())),
            ("https://2130706433/", Err(Unreachable::Private), Ok(())),
            ("https://0x7f.1/", Err(Unreachable::Private), Ok(())),
            ("http://169.254.169.254/latest", Err(Unreachable::Private), Ok(())),
            ("https://[::1]/", Err(Unreachable::Private), Ok(())),
            ("https://[::ffff:10.0.0.1]/", Err(Unreachable::Private), Ok(())),
            (
                "https://a:b@example.com/",
                Err(Unreachable::Credential),
                Err(Unreachable::Credential),
            ),
            ("https://example.com/#x", Err(Unreachable::Fragment), Err(Unreachable::Fragment)),
            ("file:///etc/passwd", Err(Unreachable::Scheme), Err(Unreachable::Scheme)),
            ("gopher://example.com/", Err(Unreachable::Scheme), Err(Unreachable::Scheme)),
        ] {
            assert_eq!(
                (check(text, Reach::Public), check(text, Reach::Anywhere)),
                (open, anywhere),
                "{text}"
            );
        }
    }
}
