//! Where a request comes from: the peer of its connection, or the client that a trusted proxy names.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use hyper::HeaderMap;
use ipnet::IpNet;

/// Header in which each proxy appends the address that it was called from.
const FORWARDED_FOR_HEADER: &str = "x-forwarded-for";

/// Source of a request: an IPv4 address, or the /64 prefix of an IPv6 address, because one subscriber has all addresses of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientSource(IpAddr);

impl ClientSource {
    /// This machine itself.
    pub const LOCAL: Self = Self(IpAddr::V4(Ipv4Addr::LOCALHOST));

    /// Returns the source that an address belongs to.
    pub fn from_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::LOCAL,
            IpAddr::V4(address) => Self(IpAddr::V4(address)),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
            }
        }
    }

    /// Returns whether it is this machine itself.
    pub fn is_local(self) -> bool {
        self == Self::LOCAL
    }
}

impl fmt::Display for ClientSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}

/// Network of reverse proxies whose word about their clients is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyNetwork(IpNet);

/// Why a text is not a [`ProxyNetwork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is neither an address nor a network such as 10.0.0.0/8")]
pub struct ProxyNetworkError;

impl FromStr for ProxyNetwork {
    type Err = ProxyNetworkError;

    fn from_str(text: &str) -> Result<Self, ProxyNetworkError> {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        address.or_else(|_| text.parse::<IpNet>()).map(Self).map_err(|_| ProxyNetworkError)
    }
}

/// Returns whether an address is that of a trusted proxy.
pub(super) fn is_trusted_proxy(proxies: &[ProxyNetwork], address: IpAddr) -> bool {
    proxies.iter().any(|network| network.0.contains(&address.to_canonical()))
}

/// Returns the source of a request. A peer that is no trusted proxy is the source, whatever its headers say. Behind trusted proxies it is
/// the last address that no trusted proxy has: what stands before it was sent by the client and may be invented.
pub(super) fn resolve_source(
    proxies: &[ProxyNetwork],
    peer: IpAddr,
    headers: &HeaderMap,
) -> ClientSource {
    let mut source = peer;
    if is_trusted_proxy(proxies, peer) {
        let values = headers.get_all(FORWARDED_FOR_HEADER).iter();
        let hops: Vec<&str> =
            values.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(',')).collect();
        for hop in hops.into_iter().rev() {
            let Some(address) = parse_hop(hop.trim()) else { break };
            source = address;
            if !is_trusted_proxy(proxies, source) {
                break;
            }
        }
    }
    ClientSource::from_address(source)
}

/// Parses an address that a proxy wrote, with or without a port.
fn parse_hop(text: &str) -> Option<IpAddr> {
    let address = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> ClientSource {
        ClientSource::from_address(text.parse().unwrap())
    }

    fn resolve(proxies: &[&str], peer: &str, forwarded: &[&str]) -> ClientSource {
        let proxies: Vec<ProxyNetwork> =
            proxies.iter().map(|network| network.parse().unwrap()).collect();
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED_FOR_HEADER, value.parse().unwrap());
        }
        resolve_source(&proxies, peer.parse().unwrap(), &headers)
    }

    #[test]
    fn addresses_of_one_subscriber_are_one_source() {
        assert_eq!(source("2001:db8:1:2::7"), source("2001:db8:1:2:ffff::8"));
        assert_ne!(source("2001:db8:1:2::7"), source("2001:db8:1:3::7"));
        assert_eq!(source("::ffff:192.0.2.7"), source("192.0.2.7"));
        assert_ne!(source("192.0.2.7"), source("192.0.2.8"));
        assert!(source("127.3.2.1").is_local() && source("::1").is_local());
        assert!(!source("10.0.0.1").is_local());
        assert_eq!(source("192.0.2.7").to_string(), "192.0.2.7");
        assert_eq!(source("2001:db8:1:2::7").to_string(), "2001:db8:1:2::/64");
    }

    #[test]
    fn a_stranger_cannot_choose_its_source() {
        assert_eq!(resolve(&[], "192.0.2.7", &["198.51.100.1"]), source("192.0.2.7"));
        let proxies = ["10.0.0.0/8", "127.0.0.1"];
        assert_eq!(resolve(&proxies, "192.0.2.7", &["198.51.100.1"]), source("192.0.2.7"));
        // The client invented the first address; the proxy appended the second.
        let invented = ["127.0.0.1, 192.0.2.7"];
        assert_eq!(resolve(&proxies, "10.1.2.3", &invented), source("192.0.2.7"));
        let invented = ["127.0.0.1", "192.0.2.7, 10.9.9.9"];
        assert_eq!(resolve(&proxies, "127.0.0.1", &invented), source("192.0.2.7"));
    }

    #[test]
    fn a_trusted_proxy_names_its_client_and_what_it_garbles_is_its_own() {
        let proxies = ["10.0.0.0/8", "::1"];
        assert_eq!(resolve(&proxies, "::ffff:10.1.2.3", &["192.0.2.7"]), source("192.0.2.7"));
        assert_eq!(resolve(&proxies, "::1", &["192.0.2.7:4711"]), source("192.0.2.7"));
        assert_eq!(resolve(&proxies, "::1", &["[2001:db8::1]:4711"]), source("2001:db8::1"));
        assert_eq!(resolve(&proxies, "10.1.2.3", &["192.0.2.7, unknown"]), source("10.1.2.3"));
        assert_eq!(resolve(&proxies, "10.1.2.3", &[]), source("10.1.2.3"));
    }

    #[test]
    fn a_network_is_an_address_or_has_a_prefix() {
        assert_eq!("10.0.0.1".parse::<ProxyNetwork>(), "10.0.0.1/32".parse());
        assert_eq!("proxy.example".parse::<ProxyNetwork>(), Err(ProxyNetworkError));
    }
}
