use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use cynode_app::sweep::Pace;
use cynode_core::tuning::Bounded;

use super::reader::Reader;

/// The engine that drives runs, and the runner that it calls.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Where an engine that runs elsewhere is told of runs. Without it, only whoever asks by itself drives tasks.
    pub(crate) ingress_url: Option<String>,
    /// Where the runner is made known to it.
    pub(crate) admin_url: Option<String>,
    /// Where it calls the runner.
    pub(crate) runner_url: Option<String>,
    /// The ports of the engine that `up` starts.
    pub(crate) own: Ports,
    /// How the sweep goes about it.
    pub(crate) pace: Pace,
}

/// Where the engine and the runner of `up` listen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) runner: SocketAddr,
    pub(crate) ingress: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) node: SocketAddr,
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

const SWEEP: Bounded<i64> =
    Bounded { name: "CYNODE_ENGINE_SWEEP_MILLISECONDS", min: 50, max: 60_000, default: 1000 };
const RESEND: Bounded<i64> =
    Bounded { name: "CYNODE_ENGINE_RESEND_MILLISECONDS", min: 200, max: 600_000, default: 5000 };

impl Engine {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let milliseconds = |value: i64| Duration::from_millis(value.unsigned_abs());
        Self {
            ingress_url: reader.optional("engine.ingress_url"),
            admin_url: reader.optional("engine.admin_url"),
            runner_url: reader.optional("engine.runner_url"),
            own: Ports {
                runner: reader.value("engine.runner_listen", loopback(12084)),
                ingress: reader.value("engine.ingress_listen", loopback(12085)),
                admin: reader.value("engine.admin_listen", loopback(12086)),
                node: reader.value("engine.node_listen", loopback(12087)),
            },
            pace: Pace {
                every: milliseconds(reader.integer("engine.sweep_milliseconds", SWEEP)),
                resend: milliseconds(reader.integer("engine.resend_milliseconds", RESEND)),
            },
        }
    }
}
