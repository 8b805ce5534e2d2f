//! SSRF guard: tells globally routable addresses from loopback, private, link-local and cloud metadata addresses, in URLs and in DNS
//! answers.
//!
//! A URL is checked twice. [`is_private_host`] checks an IP address that is written in the URL. [`PublicResolver`] drops the private
//! addresses of a name when the connection is made, which prevents DNS rebinding.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// Returns whether an address is globally routable. An address that is not known to be public is rejected.
pub fn is_globally_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_globally_routable_v4(ip),
        IpAddr::V6(ip) => is_globally_routable_v6(ip),
    }
}

fn is_globally_routable_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_broadcast()
        || ip.is_documentation()
        || a == 0
        || (a == 100 && (64..128).contains(&b)) // shared by carriers
        || (a == 192 && b == 0 && c == 0) // protocol assignments
        || (a == 192 && b == 88 && c == 99) // 6to4 relays
        || (a == 198 && (18..20).contains(&b)) // benchmarks
        || a >= 240)
}

fn is_globally_routable_v6(ip: Ipv6Addr) -> bool {
    // An IPv4 address that is mapped into IPv6 is checked as IPv4.
    if let Some(inner) = ip.to_ipv4_mapped() {
        return is_globally_routable_v4(inner);
    }
    let segments = ip.segments();
    let global = segments[0] & 0xe000 == 0x2000;
    let documentation =
        (segments[0] == 0x2001 && segments[1] == 0xdb8) || segments[0] & 0xfff0 == 0x3ff0;
    // Teredo, 6to4 and other tunnels lead to addresses that this check cannot see.
    let tunnel = (segments[0] == 0x2001 && segments[1] < 0x200) || segments[0] == 0x2002;
    global && !documentation && !tunnel
}

/// Returns whether a URL has no host, or has an IP address as its host that is not globally routable. A name may still resolve to a private
/// address: [`PublicResolver`] checks that.
pub fn is_private_host(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => !is_globally_routable(ip.into()),
        Some(Host::Ipv6(ip)) => !is_globally_routable(ip.into()),
        Some(Host::Domain(_)) => false,
        None => true,
    }
}

/// Returns whether the host of a URL is the name `localhost` or a subdomain of it.
pub fn is_localhost_name(url: &Url) -> bool {
    let name = url.domain().map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    name.is_some_and(|name| name == "localhost" || name.ends_with(".localhost"))
}

/// Returns whether the text is a host name and not an IP address in any notation.
pub fn is_host_name(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    host.contains('.')
        && host.len() <= 253
        && last.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-')
        && !last.is_empty()
        && host.split('.').all(|part| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
}

/// Returns the globally routable addresses among `addresses`.
pub fn retain_public_addresses(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    addresses.into_iter().filter(|address| is_globally_routable(address.ip())).collect()
}

/// Resolves a name to its globally routable addresses. The list is empty if the name has only other addresses.
pub async fn resolve_public_addresses(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    tokio::net::lookup_host((name, port)).await.map(retain_public_addresses)
}

/// DNS resolver of an HTTP client that returns globally routable addresses only. The client connects to exactly the addresses that were
/// checked. The client does not call the resolver for an IP address that is written in a URL: see [`is_private_host`].
#[derive(Clone, Copy, Debug)]
pub struct PublicResolver {
    message: &'static str,
}

impl PublicResolver {
    /// Creates a resolver that rejects private addresses with this message.
    pub const fn with_message(message: &'static str) -> Self {
        Self { message }
    }
}

impl Default for PublicResolver {
    fn default() -> Self {
        Self::with_message("the name leads to no public address")
    }
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let message = self.message;
        Box::pin(async move {
            let addresses = resolve_public_addresses(name.as_str(), 0).await?;
            if addresses.is_empty() {
                return Err(message.into());
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_globally_routable_addresses_are_public() {
        let public = |text: &str| is_globally_routable(text.parse().unwrap());
        for text in ["93.184.216.34", "1.1.1.1", "2606:2800:220:1::1", "::ffff:8.8.8.8"] {
            assert!(public(text), "{text}");
        }
        for text in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "2002:7f00:1::",
            "2001:db8::1",
            "64:ff9b::a00:1",
            "2001::1",
        ] {
            assert!(!public(text), "{text}");
        }
    }

    #[test]
    fn a_url_that_names_a_private_address_is_private() {
        let private = |url: &str| is_private_host(&url.parse().unwrap());
        for url in ["http://127.0.0.1/", "https://[::1]:1/", "https://2130706433/", "data:text"] {
            assert!(private(url), "{url}");
        }
        for url in ["https://example.com/", "https://1.1.1.1/", "http://localhost/"] {
            assert!(!private(url), "{url}");
        }
    }

    #[test]
    fn localhost_has_many_spellings() {
        let is = |url: &str| is_localhost_name(&url.parse().unwrap());
        for here in ["https://localhost/", "http://LOCALHOST.:1/", "https://a.b.localhost/x"] {
            assert!(is(here), "{here}");
        }
        for elsewhere in
            ["https://localhost.example/", "https://notlocalhost/", "http://127.0.0.1/"]
        {
            assert!(!is(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn an_address_is_no_name_however_it_is_written() {
        for name in ["crates.io", "static.crates.io", "xn--bcher-kva.example"] {
            assert!(is_host_name(name), "{name}");
        }
        for name in [
            "127.0.0.1",
            "2130706433",
            "0x7f.1",
            "127.1",
            "[::1]",
            "::1",
            "localhost",
            "a..b",
            "a.b.",
            "a b.c",
            "",
        ] {
            assert!(!is_host_name(name), "{name}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_no_public_address_is_refused_with_the_message_of_the_caller() {
        for (resolver, message) in [
            (PublicResolver::default(), "the name leads to no public address"),
            (PublicResolver::with_message("not here"), "not here"),
        ] {
            let error = resolver.resolve("localhost".parse().unwrap()).await.err().unwrap();
            assert_eq!(error.to_string(), message);
        }
    }
}
