//! The MCP edge: every tool call of every agent comes in here, is decided, recorded, carried out and recorded again.
//!
//! **Invariant**: there is no way to a tool around [`calls`]. What a caller says about itself is never believed: who it is
//! and what it works on comes from its token. The order of the questions is written down in `cynode_policy::gate` and
//! in [`calls`], and no setting leaves one out.

mod answers;
mod calls;
mod edge;
mod egress;
mod envelope;
mod headers;
mod keeper;
mod limits;
mod reach;
mod states;
mod strict;
pub mod tools;
pub mod upstream;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use cynode_app::{App, Error, audit::Writer, keys::Keys};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use edge::router;
pub use egress::{Egress, EgressError, Fetched, Outgoing};
pub use headers::Hosts;
pub use keeper::{FRESH, Keeper};
pub use reach::reach;

use calls::Hangup;
use limits::Counter;
use tools::Tools;
use upstream::Upstreams;

/// What an installation decides about its gateway.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names under which it is meant, beside addresses and `localhost`.
    pub hosts: Hosts,
    /// Where people reach the user interface: approvals point there.
    pub public_url: String,
    /// Longest time of one of our own tools.
    pub patience: Duration,
    /// Most bytes of a message.
    pub most_bytes: usize,
}

/// The gateway. Cloning it is cheap.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    app: App,
    keys: Keys,
    keeper: Arc<Keeper>,
    audit: Arc<Writer>,
    counter: Counter,
    upstreams: Arc<Upstreams>,
    egress: Egress,
    tools: Tools,
    hosts: Hosts,
    public_url: String,
    patience: Duration,
    most_bytes: usize,
    /// Calls of the older era, so that they can be given up.
    pending: Mutex<HashMap<Named, Hangup>>,
}

/// What names a call of the older era: the token, the session and the request. Clients that share a token number their
/// requests alike.
type Named = ([u8; 32], String, String);

impl Gateway {
    /// Puts the parts together and reads the gate for the first time.
    pub async fn open(
        app: App,
        audit: Arc<Writer>,
        upstreams: Arc<Upstreams>,
        egress: Egress,
        options: Options,
    ) -> Result<Self, Error> {
        let keys = app.gate()?.keys.clone();
        let keeper = Keeper::open(app.clone()).await?;
        let inner = Inner {
            app,
            keys,
            keeper,
            audit,
            counter: Counter::default(),
            upstreams,
            egress,
            tools: Tools::all(),
            hosts: options.hosts,
            public_url: options.public_url.trim_end_matches('/').to_owned(),
            patience: options.patience,
            most_bytes: options.most_bytes,
            pending: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Starts what works in the background until `stop`.
    pub fn start(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        tasks.spawn(self.inner.keeper.clone().run(stop.clone()));
        tasks.spawn(reach::keep_asking(self.inner.app.clone(), stop.clone()));
        let (upstreams, stop) = (self.inner.upstreams.clone(), stop.clone());
        tasks.spawn(async move {
            stop.cancelled().await;
            upstreams.shutdown().await;
        });
    }
}
