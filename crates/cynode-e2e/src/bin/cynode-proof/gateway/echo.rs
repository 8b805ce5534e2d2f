//! The echo server, to measure gateways with.

use std::net::SocketAddr;

use axum::{routing::get, serve::ListenerExt};
use clap::Args;
use cynode_testkit::echo;
use tokio::net::TcpListener;

/// A very fast MCP server, to put behind a gateway.
#[derive(Args)]
pub(crate) struct Echo {
    /// Where to listen, at `/` and at `/mcp`.
    #[arg(long)]
    listen: SocketAddr,
}

pub(crate) async fn run(served: Echo) -> anyhow::Result<()> {
    let listener = TcpListener::bind(served.listen).await?.tap_io(|stream| {
        // Without it a response may wait for the acknowledgement of the previous one.
        let _ = stream.set_nodelay(true);
    });
    let router = echo::router().route("/healthz", get(|| async { "good" }));
    Ok(axum::serve(listener, router).await?)
}
