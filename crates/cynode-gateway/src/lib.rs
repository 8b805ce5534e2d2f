//! The MCP gateway: every tool call of every agent is authenticated, decided, recorded, executed and recorded again.
//!
//! **Invariant**: no call reaches a tool except through `calls`. A caller's claims about itself are ignored: its identity and its scope
//! come from its token. `cynode_policy::decision` and `calls` define the order of the checks, and no setting skips one.

mod calls;
mod edge;
mod egress;
mod envelope;
mod headers;
mod limits;
mod page_fetcher;
mod policy_cache;
mod responses;
mod signed_state;
mod strict_json;
mod tool_server_adapter;
pub mod tools;
pub mod upstream;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use cynode_app::{App, Error, platform::keys::InstallationKeys, tools::audit::AuditWriter};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use edge::gateway_router;
pub use egress::{EgressClient, EgressError, EgressRequest, EgressResponse};
pub use headers::AllowedHosts;
pub use policy_cache::{MAX_STALENESS, PolicyCache};
pub use tool_server_adapter::build_tool_server_adapter;

use calls::Cancellation;
use limits::CallLimiter;
use tools::NativeTools;
use upstream::UpstreamPool;

/// Options of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Host names under which the gateway is served, beside IP addresses and `localhost`.
    pub hosts: AllowedHosts,
    /// Public URL of the user interface. Approval requests link to it.
    pub public_url: String,
    /// Timeout of a native tool.
    pub patience: Duration,
    /// Maximum size of a message in bytes.
    pub most_bytes: usize,
}

/// The gateway. Cloning it is cheap.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<GatewayShared>,
}

pub(crate) struct GatewayShared {
    app: App,
    keys: InstallationKeys,
    keeper: Arc<PolicyCache>,
    audit: Arc<AuditWriter>,
    counter: CallLimiter,
    upstreams: Arc<UpstreamPool>,
    egress: EgressClient,
    tools: NativeTools,
    hosts: AllowedHosts,
    public_url: String,
    patience: Duration,
    most_bytes: usize,
    /// Pending calls of the legacy era, so that they can be cancelled.
    pending: Mutex<HashMap<PendingCallKey, Cancellation>>,
}

/// Key of a call of the legacy era: token, session and request id. Clients that share a token use the same request ids, so the session is
/// part of the key.
type PendingCallKey = ([u8; 32], String, String);

impl Gateway {
    /// Creates the gateway and loads the policy snapshot for the first time.
    pub async fn open_gateway(
        app: App,
        audit: Arc<AuditWriter>,
        upstreams: Arc<UpstreamPool>,
        egress: EgressClient,
        options: GatewayOptions,
    ) -> Result<Self, Error> {
        let keys = app.gateway_parts()?.keys.clone();
        let keeper = PolicyCache::load_initial(app.clone()).await?;
        let inner = GatewayShared {
            app,
            keys,
            keeper,
            audit,
            counter: CallLimiter::default(),
            upstreams,
            egress,
            tools: NativeTools::all_tools(),
            hosts: options.hosts,
            public_url: options.public_url.trim_end_matches('/').to_owned(),
            patience: options.patience,
            most_bytes: options.most_bytes,
            pending: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Starts the background tasks, which run until `stop`.
    pub fn spawn_background(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        tasks.spawn(self.inner.keeper.clone().run_refresh_loop(stop.clone()));
        tasks.spawn(tool_server_adapter::run_tool_refresh(self.inner.app.clone(), stop.clone()));
        let (upstreams, stop) = (self.inner.upstreams.clone(), stop.clone());
        tasks.spawn(async move {
            stop.cancelled().await;
            upstreams.shutdown_all().await;
        });
    }
}
