//! Idle nodes: they join, send heartbeats, and wait for jobs, as real nodes do.

use std::{path::Path, time::Duration};

use clap::Args;
use cynode_core::{ids::NodeId, nodes::NodeReport};
use cynode_node::{
    client::{AnonymousClient, NodeClient},
    key::NodeKey,
};
use cynode_wire::nodes::{ClaimAssignments, IssuedJoinToken, JoinNode, NodeHeartbeat};
use futures::future::join_all;
use serde_json::json;
use uuid::Uuid;

/// Heartbeat interval and wait time of a claim, as of an idle node.
const HEARTBEAT: Duration = Duration::from_secs(5);
const CLAIM_WAIT_MS: u32 = 20_000;

#[derive(Args)]
pub(crate) struct IdleNodes {
    /// How many.
    #[arg(long)]
    nodes: usize,
    /// Where an admin lets them join.
    #[arg(long)]
    admin_url: String,
    #[arg(long)]
    admin_token: String,
    /// Where nodes ask for jobs.
    #[arg(long)]
    orchestrator: String,
}

/// Runs until it is killed.
pub(crate) async fn run(args: IdleNodes) -> anyhow::Result<bool> {
    let keys = tempfile::tempdir()?;
    let mut clients = Vec::new();
    for number in 0..args.nodes {
        clients.push(join(&args, keys.path(), number).await?);
    }
    println!("joined {}", clients.len());
    join_all(clients.iter().enumerate().map(|(number, client)| async move {
        // Spread the heartbeats over the interval.
        let share = u32::try_from(args.nodes).unwrap_or(u32::MAX).max(1);
        let offset = HEARTBEAT * u32::try_from(number).unwrap_or_default() / share;
        tokio::join!(beat(client, offset), claim(client));
    }))
    .await;
    Ok(true)
}

async fn join(args: &IdleNodes, keys: &Path, number: usize) -> anyhow::Result<NodeClient> {
    let issued = reqwest::Client::new()
        .post(format!("{}/v1/nodes/join-tokens", args.admin_url))
        .bearer_auth(&args.admin_token)
        .json(&json!({ "labels": ["idle"] }))
        .send()
        .await?
        .error_for_status()?
        .json::<IssuedJoinToken>()
        .await?;
    let key = NodeKey::load_or_create(&keys.join(number.to_string()))?;
    let body = JoinNode {
        join_token: issued.join_token,
        name: format!("idle-{number}"),
        public_key: key.public_key_hex(),
        report: NodeReport { slots: 1, ..NodeReport::default() },
    };
    let joined = AnonymousClient::new(&args.orchestrator)?.join_node(&body).await?;
    let id: NodeId = joined.node_id;
    Ok(NodeClient::new(&args.orchestrator, id, key)?)
}

async fn beat(client: &NodeClient, offset: Duration) {
    let _ = tokio::time::timeout(offset, std::future::pending::<()>()).await;
    let mut turn = tokio::time::interval(HEARTBEAT);
    let body = NodeHeartbeat { jobs: Vec::new(), delivered: Vec::new() };
    loop {
        turn.tick().await;
        if let Err(error) = client.send_heartbeat(&body, HEARTBEAT).await {
            println!("a heartbeat failed: {error}");
        }
    }
}

async fn claim(client: &NodeClient) {
    let mut pause = tokio::time::interval(Duration::from_millis(200));
    loop {
        pause.tick().await;
        let claim_id: Uuid = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
        let (wait_ms, applies_profiles) = (CLAIM_WAIT_MS, true);
        let body = ClaimAssignments { claim_id, max_jobs: 1, wait_ms, applies_profiles };
        match client.claim_jobs(&body).await {
            Ok(claimed) => assert!(claimed.jobs.is_empty(), "there was nothing to do"),
            Err(error) => println!("a claim failed: {error}"),
        }
    }
}
