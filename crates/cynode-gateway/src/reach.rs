//! Installed servers, as the way to them wants them.

use std::{sync::Arc, time::Duration};

use cynode_app::{
    App,
    servers::{self, Listing, Offered, Reach, Reachable},
};
use cynode_core::ids::ServerId;
use cynode_wire::gate::ServerTransport;
use tokio_util::sync::CancellationToken;

use crate::upstream::{Server, Transport, Upstreams};

/// How often servers are asked what they offer.
const EVERY: Duration = Duration::from_mins(1);

pub(crate) fn server(server: &Reachable) -> Server {
    let transport = match &server.transport {
        ServerTransport::Http { url } => Transport::Http {
            url: url.clone(),
            headers: server.secrets.clone(),
            private: server.private,
        },
        ServerTransport::Stdio { command, args, network } => Transport::Stdio {
            program: command.clone(),
            args: args.clone(),
            env: server.secrets.clone(),
            files: Vec::new(),
            network: *network,
        },
    };
    Server {
        id: server.id.as_uuid(),
        transport,
        timeout: server.timeout,
        max_in_flight: server.max_in_flight,
    }
}

impl Reach for Upstreams {
    fn list<'a>(&'a self, reachable: &'a Reachable) -> Listing<'a> {
        Box::pin(async move {
            let listed = Self::list(self, &server(reachable)).await;
            let listed = listed.map_err(|error| error.to_string())?;
            let offered = |definition: crate::upstream::Definition| Offered {
                tool: definition.name,
                definition: definition.raw,
            };
            Ok(listed.into_iter().map(offered).collect())
        })
    }

    fn forget(&self, server: ServerId) {
        Self::forget(self, server.as_uuid());
    }
}

/// Asks every installed server now and then what it offers, until it is told to stop. Each is asked by itself: one that does
/// not answer keeps nobody waiting.
pub(crate) async fn keep_asking(app: App, stop: CancellationToken) {
    let mut turn = tokio::time::interval(EVERY);
    turn.tick().await;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        let Ok(servers) = servers::in_use(&app).await else { continue };
        let asking = servers.into_iter().map(|server| {
            let app = app.clone();
            async move {
                if let Err(error) = servers::refresh(&app, server).await {
                    tracing::warn!(event = "error", %error, server.id = %server, "a server's tools could not be kept");
                }
            }
        });
        futures::future::join_all(asking).await;
    }
}

/// The way to servers, to be given to operations.
pub fn reach(upstreams: Arc<Upstreams>) -> Arc<dyn Reach> {
    upstreams
}
