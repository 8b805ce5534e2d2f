//! Validates the address of a tool server and imports a registry's document.

use cynode_core::roles::UserRole;
use cynode_net::ssrf::{is_host_name, is_localhost_name, is_private_host};
use cynode_wire::tools::ServerTransport;
use serde_json::Value;
use url::Url;

use crate::Error;

/// Maximum number of hosts that a program may reach.
const MAX_NETWORK_HOSTS: usize = 64;
/// Maximum size of the address of a server.
const MAX_URL_BYTES: usize = 2048;

/// Returns the streamable HTTP transport of a registry's `server.json`.
pub(super) fn transport_from_document(document: &Value) -> Result<ServerTransport, Error> {
    // A registry wraps the document in `server`.
    let document = document.get("server").unwrap_or(document);
    let remotes = document.get("remotes").and_then(Value::as_array);
    let remote = remotes.into_iter().flatten().find(|remote| {
        remote.get("type").and_then(Value::as_str).is_some_and(|kind| kind == "streamable-http")
    });
    let url = remote.and_then(|remote| remote.get("url")).and_then(Value::as_str);
    match url {
        Some(url) => Ok(ServerTransport::Http { url: url.to_owned() }),
        None => Err(Error::Invalid(
            "`server_json` names no streamable-http remote: give `transport` with the program to run instead".into(),
        )),
    }
}

/// Rejects a disallowed address (SSRF guard). Only an admin may allow that a server is on this machine or in a private
/// network, and has to say so: the host of a public name may lead there, too.
pub(super) fn validate_transport(
    transport: &ServerTransport,
    admin: bool,
    allow_private: bool,
) -> Result<(), Error> {
    match transport {
        ServerTransport::Http { url } => {
            let wrong = || {
                Error::Invalid(format!(
                    "`url` is http:// or https:// with a host, without a password, of at most {MAX_URL_BYTES} bytes"
                ))
            };
            let length = url.len();
            let url: Url = url.parse().map_err(|_| wrong())?;
            let good = matches!(url.scheme(), "http" | "https")
                && url.username().is_empty()
                && url.password().is_none()
                && length <= MAX_URL_BYTES;
            if !good || url.host().is_none() {
                return Err(wrong());
            }
            if !admin && (allow_private || is_private(&url)) {
                return Err(Error::forbidden(
                    UserRole::Admin,
                    "in the installation: the server is on a private address",
                ));
            }
            if !allow_private && is_private(&url) {
                return Err(Error::Invalid(
                    "the server is on this machine or in a private network: give `allow_private` (`cynork tool install \
                     --allow-private`) if it may be there"
                        .into(),
                ));
            }
            Ok(())
        }
        ServerTransport::Stdio { command, network, network_hosts, .. } => {
            if !admin {
                return Err(Error::forbidden(
                    UserRole::Admin,
                    "in the installation: a program runs on our machine",
                ));
            }
            if command.is_empty() || command.contains('\0') {
                return Err(Error::Invalid("`command` is a program".into()));
            }
            validate_network_hosts(*network, network_hosts)?;
            if allow_private {
                return Err(Error::Invalid(
                    "`allow_private` is about the address of a server: a program has none".into(),
                ));
            }
            Ok(())
        }
    }
}

/// Rejects a program with a network and without hosts, and a host that is no name: the proxy resolves names and checks their addresses.
fn validate_network_hosts(network: bool, hosts: &[String]) -> Result<(), Error> {
    if network && hosts.is_empty() {
        return Err(Error::Invalid(
            "`network` needs `network_hosts`: name each host that the program may reach, such as `api.example.com`".into(),
        ));
    }
    if !network && !hosts.is_empty() {
        return Err(Error::Invalid("`network_hosts` are given with `network`: true".into()));
    }
    if hosts.len() > MAX_NETWORK_HOSTS {
        return Err(Error::Invalid(format!(
            "`network_hosts` has at most {MAX_NETWORK_HOSTS} hosts"
        )));
    }
    match hosts.iter().find(|host| !is_host_name(host)) {
        Some(_) => Err(Error::Invalid(
            "`network_hosts` are names of hosts such as `api.example.com`, without port and path; addresses are not let out".into(),
        )),
        None => Ok(()),
    }
}

/// Returns whether two servers have the same host. A program has none.
pub(super) fn same_host(one: &ServerTransport, other: &ServerTransport) -> bool {
    let host = |transport: &ServerTransport| match transport {
        ServerTransport::Http { url } => {
            let url = url.parse::<Url>().ok()?;
            url.host_str().map(|host| host.trim_end_matches('.').to_owned())
        }
        ServerTransport::Stdio { .. } => None,
    };
    host(one).is_some_and(|one| host(other) == Some(one))
}

fn is_private(url: &Url) -> bool {
    let inside = |name: &str| {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        [".internal", ".local"].iter().any(|end| name.ends_with(end))
    };
    is_private_host(url) || is_localhost_name(url) || url.domain().is_some_and(inside)
}
