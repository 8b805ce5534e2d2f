//! SSRF guard, first half: tells from a URL whether it can name a public address, before its host name is resolved.

use cynode_core::globally_routable::is_globally_routable;
use url::{Host, Url};

/// Whether an address names this machine, in any of the ways in which that is written.
pub(crate) fn is_this_machine(url: &Url) -> bool {
    let name = url.domain().map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    name.is_some_and(|name| name == "localhost" || name.ends_with(".localhost"))
}

/// Whether an address names a public place, as far as that can be told before its name is looked up.
pub fn may_be_public(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => is_globally_routable(ip.into()),
        Some(Host::Ipv6(ip)) => is_globally_routable(ip.into()),
        Some(Host::Domain(_)) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_many_names() {
        let is = |url: &str| is_this_machine(&url.parse().unwrap());
        for here in ["https://localhost/", "http://LOCALHOST.:1/", "https://a.b.localhost/x"] {
            assert!(is(here), "{here}");
        }
        for elsewhere in
            ["https://localhost.example/", "https://notlocalhost/", "http://127.0.0.1/"]
        {
            assert!(!is(elsewhere), "{elsewhere}");
        }
    }
}
