//! Joining an installation.

use anyhow::{Context, ensure};
use cynode_wire::{
    accounts::SecretText,
    nodes::{JoinNode, NodeReport},
};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    client::{Backoff, Caller, ClientError},
    key::Key,
    store::{Identity, Store},
};

/// How often an orchestrator that does not answer is asked. The token may be shown again: it gives the same node.
const TRIES: u32 = 5;

/// Makes this machine a node of the installation at `url`.
pub(crate) async fn join(
    store: &Store,
    url: &str,
    token: &SecretString,
    name: String,
    report: NodeReport,
) -> anyhow::Result<Identity> {
    let known = store.identity()?;
    ensure!(
        known.as_ref().is_none_or(|known| known.url == url),
        "this machine is a node of {} already; use another --state to join a second installation",
        known.map(|known| known.url).unwrap_or_default(),
    );
    let key = Key::read_or_make(&store.key_file())?;
    let body = JoinNode {
        join_token: SecretText(token.expose_secret().to_owned()),
        name,
        public_key: key.public(),
        report,
    };
    let caller = Caller::new(url)?;
    let mut backoff = Backoff::default();
    let mut tries = 1;
    let joined = loop {
        match caller.join(&body).await {
            Err(ClientError::Unreachable(error)) if tries < TRIES => {
                tracing::warn!(event = "join.again", error = format!("{error:#}"), "no answer");
                tries += 1;
                backoff.pause().await;
            }
            Err(error @ ClientError::Unreachable(_)) => {
                return Err(error).with_context(|| {
                    format!("no answer from {url}: does `server.internal_listen` listen there, and may this machine reach it?")
                });
            }
            joined => {
                break joined.with_context(|| format!("{url} did not let this machine join"))?;
            }
        }
    };
    let identity = Identity { node_id: joined.node_id, name: joined.name, url: url.to_owned() };
    store.set_identity(&identity)?;
    Ok(identity)
}
