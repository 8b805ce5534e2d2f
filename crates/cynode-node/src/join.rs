//! Joins an installation with a join token.

use anyhow::{Context, ensure};
use cynode_core::nodes::NodeReport;
use cynode_wire::{identity::accounts::SecretText, nodes::JoinNode};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    client::{AnonymousClient, CALL_BACKOFF, NodeClientError},
    key::NodeKey,
    store::{NodeIdentity, NodeStore},
};

/// Maximum number of attempts to reach the orchestrator. A retry with the same token is safe: it returns the same node.
const MAX_JOIN_ATTEMPTS: u32 = 5;

/// Joins the installation at `url` as a node.
pub(crate) async fn join_installation(
    store: &NodeStore,
    url: &str,
    token: &SecretString,
    name: String,
    report: NodeReport,
) -> anyhow::Result<NodeIdentity> {
    let known = store.load_identity()?;
    ensure!(
        known.as_ref().is_none_or(|known| known.url == url),
        "this machine is a node of {} already; use another --state to join a second installation",
        known.map(|known| known.url).unwrap_or_default(),
    );
    let key = NodeKey::load_or_create(&store.key_file())?;
    let body = JoinNode {
        join_token: SecretText(token.expose_secret().to_owned()),
        name,
        public_key: key.public_key_hex(),
        report,
    };
    let caller = AnonymousClient::new(url)?;
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
    let identity = NodeIdentity { node_id: joined.node_id, name: joined.name, url: url.to_owned() };
    store.save_identity(&identity)?;
    Ok(identity)
}
