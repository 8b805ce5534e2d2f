//! Adapter between installed tool servers and the upstream pool, and the refresh of their tools.

use std::{sync::Arc, time::Duration};

use cynode_app::{
    App,
    tools::tool_servers::{
        self, CallableServer, ListingHealth, OfferedTool, ServerToolListing, ToolServerClient,
    },
};
use cynode_core::ids::ServerId;
use cynode_wire::tools::ServerTransport;
use futures::{StreamExt as _, stream};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::upstream::{UpstreamPool, UpstreamServer, UpstreamTransport};

/// Interval of the refresh of all tool lists.
const TOOL_REFRESH_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum number of servers that are refreshed at a time: what they send takes memory until it is stored.
const MAX_CONCURRENT_REFRESHES: usize = 8;

pub(crate) fn to_upstream_server(server: &CallableServer) -> UpstreamServer {
    let transport = match &server.transport {
        ServerTransport::Http { url } => UpstreamTransport::Http {
            url: url.clone(),
            headers: server.secrets.clone(),
            private: server.private,
        },
        ServerTransport::Stdio { command, args, network, network_hosts } => {
            UpstreamTransport::Stdio {
                program: command.clone(),
                args: args.clone(),
                env: server.secrets.clone(),
                files: Vec::new(),
                network_hosts: if *network { network_hosts.clone() } else { Vec::new() },
            }
        }
    };
    UpstreamServer {
        id: server.id.as_uuid(),
        transport,
        timeout: server.timeout,
        max_in_flight: server.max_in_flight,
    }
}

impl ToolServerClient for UpstreamPool {
    fn list_tools<'a>(&'a self, reachable: &'a CallableServer) -> ServerToolListing<'a> {
        Box::pin(async move {
            let listed = Self::list_server_tools(self, &to_upstream_server(reachable)).await;
            let listed = listed.map_err(|error| error.describe_for_admin())?;
            let offered = |definition: crate::upstream::UpstreamTool| OfferedTool {
                tool: definition.name,
                definition: definition.raw,
            };
            Ok(listed.into_iter().map(offered).collect())
        })
    }

    fn close_server(&self, server: ServerId) {
        Self::drop_server(self, server.as_uuid());
    }
}

/// Refreshes the tool list of every installed server periodically, until `stop`. Servers whose last listing failed are queried apart from
/// the others, so that those that do not answer delay only each other.
pub(crate) async fn run_tool_refresh(app: App, stop: CancellationToken) {
    futures::future::join(
        run_refresh_lane(&app, &stop, ListingHealth::Healthy),
        run_refresh_lane(&app, &stop, ListingHealth::Failing),
    )
    .await;
}

/// Refreshes the servers of one health periodically, a few at a time. Each has a time limit of its own.
async fn run_refresh_lane(app: &App, stop: &CancellationToken, health: ListingHealth) {
    let mut turn = tokio::time::interval(TOOL_REFRESH_INTERVAL);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    turn.tick().await;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        let Ok(servers) = tool_servers::list_enabled_servers(app, health).await else { continue };
        refresh_servers(app, servers).await;
    }
}

/// Refreshes servers, at most [`MAX_CONCURRENT_REFRESHES`] at a time.
async fn refresh_servers(app: &App, servers: Vec<ServerId>) {
    let refreshes = servers.into_iter().map(|server| {
        let app = app.clone();
        async move {
            if let Err(error) = tool_servers::refresh_tools(&app, server).await {
                tracing::warn!(event = "tool_server.refresh_failed", %error, server.id = %server, "the tools of a server could not be refreshed");
            }
        }
    });
    stream::iter(refreshes).buffer_unordered(MAX_CONCURRENT_REFRESHES).collect::<()>().await;
}

/// Creates the client of tool servers for the operations.
pub fn build_tool_server_adapter(upstreams: Arc<UpstreamPool>) -> Arc<dyn ToolServerClient> {
    upstreams
}
