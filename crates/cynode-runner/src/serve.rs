use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use anyhow::Context;
use cynode_net::tls::ClientTls;
use restate_sdk::prelude::{Endpoint, HttpServer};
use secrecy::SecretString;
use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;

use crate::{
    agent_backend::AgentBackend,
    client::WorkflowClient,
    driver::{DriverContext, TaskDriver},
};

/// Options of a runner.
#[derive(Debug)]
pub struct RunnerOptions {
    /// Listen address for calls of the engine.
    pub listen: SocketAddr,
    /// URL of the orchestrator's internal port, `http://127.0.0.1:12082`.
    pub orchestrator: String,
    /// What the runner trusts when it calls the orchestrator, and the certificate that it shows.
    pub tls: ClientTls,
    /// Token of the runner.
    pub token: SecretString,
    /// Name of the runner, the same for all its processes.
    pub name: String,
    /// Duration of a lease.
    pub lease: Duration,
    /// Time to wait for a job's result before the run is suspended.
    pub linger: Duration,
    /// Public key of the engine's signatures, `publickeyv1_…`; an unsigned call is rejected.
    pub engine_key: String,
}

/// Serves the engine's calls until `stop`.
pub async fn serve_runner(
    options: RunnerOptions,
    mind: Arc<dyn AgentBackend>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let client = WorkflowClient::with_tls(&options.orchestrator, options.token, &options.tls)?;
    let instance = format!("{:032x}", rand::random::<u128>());
    let RunnerOptions { name: holder, lease, linger, .. } = options;
    let attempts = AtomicU64::new(1);
    let shared = DriverContext { client, mind, holder, instance, attempts, lease, linger };
    let endpoint = Endpoint::builder()
        .bind(TaskDriver(Arc::new(shared)))
        .identity_key(&options.engine_key)
        .context("the engine's key is malformed; it has the form publickeyv1_…")?
        .build();
    // TCP_NODELAY is set on the listener, and accepted connections inherit it: the engine's library does not set it. Without it every
    // answer would wait for a delayed acknowledgement.
    let socket = if options.listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_nodelay(true)?;
    socket.set_reuseaddr(true)?;
    socket.bind(options.listen).with_context(|| format!("cannot listen on {}", options.listen))?;
    let listener = socket.listen(1024)?;
    tracing::info!(event = "runner.started", listen = %options.listen, "listening");
    HttpServer::new(endpoint).serve_with_cancel(listener, stop.cancelled_owned()).await;
    tracing::info!(event = "runner.stopped", "stopped");
    Ok(())
}
