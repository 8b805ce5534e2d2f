//! SSRF guard for forges that a project's member names: only an admin may connect a forge on this machine or in a
//! private network. The resolver drops addresses that are not globally routable.

use std::{io, net::SocketAddr};

use cynode_core::globally_routable::is_globally_routable;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// What is said of any other place.
pub(crate) const PRIVATE_ADDRESS_MESSAGE: &str = "the forge is on this machine or in a private network, and only an admin of the installation \
     connects a project with such a forge";

/// Whether an address says itself that it is not out in the open.
pub(crate) fn is_private_host(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => !is_globally_routable(ip.into()),
        Some(Host::Ipv6(ip)) => !is_globally_routable(ip.into()),
        Some(Host::Domain(_)) => false,
        None => true,
    }
}

/// The public addresses of a name.
pub(crate) async fn resolve_public_addresses(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = tokio::net::lookup_host((name, port)).await?;
    Ok(found.filter(|address| is_globally_routable(address.ip())).collect())
}

/// Finds the public addresses of names. It is asked for the very connection that is made, so that a name cannot lead elsewhere the
/// second time.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublicResolver;

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = resolve_public_addresses(name.as_str(), 0).await?;
            if found.is_empty() {
                return Err(PRIVATE_ADDRESS_MESSAGE.into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
