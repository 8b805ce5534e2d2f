//! Joins an installation with a join token.

use std::path::Path;

use anyhow::{Context, ensure};
use cynode_core::nodes::NodeReport;
use cynode_net::tls::split_pinned_token;
use cynode_wire::{identity::accounts::SecretText, nodes::JoinNode};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    client::{AnonymousClient, CALL_BACKOFF, NodeClientError},
    key::NodeKey,
    store::{NodeIdentity, NodeStore},
    trust,
};

/// Maximum number of attempts to reach the orchestrator. A retry with the same token is safe: it returns the same node.
const MAX_JOIN_ATTEMPTS: u32 = 5;

/// Joins the installation at `url` as a node. The token may carry the pin of the installation's certificate authority, which is then the
/// only one that is trusted; without a pin it is that of `ca_file`, or those of the machine.
pub(crate) async fn join_installation(
    store: &NodeStore,
    url: &str,
    token: &SecretString,
    name: String,
    report: NodeReport,
    ca_file: Option<&Path>,
) -> anyhow::Result<NodeIdentity> {
    let (token, pin) = split_pinned_token(token.expose_secret())?;
    let known = store.load_identity()?;
    ensure!(
        known.as_ref().is_none_or(|known| known.url == url),
        "this machine is a node of {} already; use another --state to join a second installation",
        known.map(|known| known.url).unwrap_or_default(),
    );
    let key = NodeKey::load_or_create(&store.key_file())?;
    let body = JoinNode {
        join_token: SecretText(token.to_owned()),
        name,
        public_key: key.public_key_hex(),
        report,
    };
    let caller = AnonymousClient::with_tls(url, &trust::join_trust(ca_file, pin)?)?;
    let mut backoff = CALL_BACKOFF;
    let mut tries = 1;
    let joined = loop {
        match caller.join_node(&body).await {
            Err(NodeClientError::Unreachable(error)) if tries < MAX_JOIN_ATTEMPTS => {
                tracing::warn!(event = "join.retried", error = format!("{error:#}"), "no answer");
                tries += 1;
                backoff.wait_next_delay().await;
            }
            Err(error @ NodeClientError::Unreachable(_)) => {
                return Err(error).with_context(|| {
                    format!("no answer from {url}: does `server.internal_listen` listen there, and may this machine reach it?")
                });
            }
            joined => {
                break joined.with_context(|| format!("{url} did not let this machine join"))?;
            }
        }
    };
    // Where the roots of the machine vouched for the server, a proxy is before it and takes no certificate of ours.
    let own_authority = pin.is_some() || ca_file.is_some();
    if let Some(certificate) = joined.certificate.as_ref().filter(|_| own_authority) {
        trust::store_certificate(store, certificate, pin)?;
    }
    let identity = NodeIdentity { node_id: joined.node_id, name: joined.name, url: url.to_owned() };
    store.save_identity(&identity)?;
    Ok(identity)
}
