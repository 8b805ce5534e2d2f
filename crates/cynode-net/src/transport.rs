//! Clear text stays on this machine: which addresses a client may call without TLS, and where a server may listen without it.

use std::net::{IpAddr, SocketAddr};

use url::{Host, Url};

use crate::ssrf::is_localhost_name;

/// Why an address is not called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The text is no address of HTTP.
    #[error("`{0}` is no address: it is https://HOST[:PORT], or http://HOST:PORT on this machine")]
    Malformed(String),
    /// The address is not encrypted and not on this machine.
    #[error(
        "{0} is not encrypted, and not on this machine: use https, or allow clear text with --insecure (everybody on the way can then read \
         and change what is sent)"
    )]
    ClearText(String),
}

/// How a client reaches a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By TLS.
    Encrypted,
    /// In clear text, and the bytes do not leave this machine.
    Loopback,
    /// In clear text over a network, because somebody allowed it. The caller warns of it at every start.
    Insecure,
}

/// Returns whether the host of a URL is this machine itself. A name other than `localhost` is not resolved, and is not.
pub fn is_loopback_url(url: &Url) -> bool {
    is_localhost_name(url)
        || match url.host() {
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => IpAddr::V6(ip).to_canonical().is_loopback(),
            Some(Host::Domain(_)) | None => false,
        }
}

/// Returns whether only this machine reaches a listener.
pub fn is_loopback_listener(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Decides how a client reaches an address. Clear text over a network is refused unless `insecure` allows it.
pub fn check_transport(address: &str, insecure: bool) -> Result<Transport, TransportError> {
    let malformed = || TransportError::Malformed(address.to_owned());
    let url: Url = address.parse().map_err(|_| malformed())?;
    if url.host().is_none() {
        return Err(malformed());
    }
    match url.scheme() {
        "https" => Ok(Transport::Encrypted),
        "http" if is_loopback_url(&url) => Ok(Transport::Loopback),
        "http" if insecure => Ok(Transport::Insecure),
        // The address may hold a password: only its origin is named.
        "http" => Err(TransportError::ClearText(url.origin().ascii_serialization())),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_text_stays_on_this_machine_unless_somebody_allows_it() {
        for address in ["http://127.0.0.1:12082", "http://[::1]:1", "http://localhost:12080/x"] {
            assert_eq!(check_transport(address, false), Ok(Transport::Loopback), "{address}");
        }
        assert_eq!(check_transport("https://cynode.example", false), Ok(Transport::Encrypted));
        for address in
            ["http://cynode.example", "http://10.0.0.7:12082", "http://127.0.0.1.example"]
        {
            let origin = address.to_owned();
            let refused = Err(TransportError::ClearText(origin));
            assert_eq!(check_transport(address, false), refused, "{address}");
            assert_eq!(check_transport(address, true), Ok(Transport::Insecure), "{address}");
        }
    }

    #[test]
    fn a_refusal_names_no_password() {
        let refused = check_transport("http://me:hunter2@cynode.example/", false).unwrap_err();
        assert_eq!(refused, TransportError::ClearText("http://cynode.example".to_owned()));
    }

    #[test]
    fn what_is_no_address_is_refused_whatever_is_allowed() {
        for address in ["ftp://cynode.example", "cynode.example", "unix:/run/x"] {
            let refused = TransportError::Malformed(address.to_owned());
            assert_eq!(check_transport(address, true), Err(refused), "{address}");
        }
    }

    #[test]
    fn only_loopback_addresses_are_this_machine() {
        let local = |text: &str| is_loopback_listener(text.parse().unwrap());
        assert!(local("127.0.0.1:1") && local("127.3.2.1:1") && local("[::1]:1"));
        assert!(local("[::ffff:127.0.0.1]:1"));
        assert!(!local("0.0.0.0:1") && !local("[::]:1") && !local("10.0.0.1:1"));
    }
}
