//! What is outside: addresses that may be reached for an agent.

use cynode_core::addresses::is_public;
use url::{Host, Url};

/// Whether an address names a public place, as far as that can be told before its name is looked up.
pub fn may_be_public(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => is_public(ip.into()),
        Some(Host::Ipv6(ip)) => is_public(ip.into()),
        Some(Host::Domain(_)) => true,
        None => false,
    }
}
