use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use cynode_app::platform::wakeups::ReconcileInterval;
use cynode_core::tuning::BoundedNumber;

use super::reader::ConfigReader;

/// Prefix of an address of the engine that is a socket.
pub(crate) const ENGINE_SOCKET_PREFIX: &str = "unix:";

/// The engine that drives runs, and the runner that it calls.
#[derive(Debug)]
pub(crate) struct EngineConfig {
    /// The ingress of an external engine, to which runs are dispatched. Without it, only runners that poll drive tasks.
    pub(crate) ingress_url: Option<String>,
    /// The admin address at which the runner is registered.
    pub(crate) admin_url: Option<String>,
    /// The address at which the engine calls the runner.
    pub(crate) runner_url: Option<String>,
    /// Where the runner that `up` starts listens. The engine that `up` starts has sockets only.
    pub(crate) runner_listen: SocketAddr,
    /// Interval of the reconciler, and the delay until it dispatches again.
    pub(crate) pace: ReconcileInterval,
}

const fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

const RECONCILE_INTERVAL_MS: BoundedNumber<i64> = BoundedNumber {
    name: "CYNODE_ENGINE_RECONCILE_INTERVAL_MS",
    min: 50,
    max: 60_000,
    default: 1000,
};
const REDISPATCH_AFTER_MS: BoundedNumber<i64> = BoundedNumber {
    name: "CYNODE_ENGINE_REDISPATCH_AFTER_MS",
    min: 200,
    max: 600_000,
    default: 5000,
};

impl EngineConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let milliseconds = |value: i64| Duration::from_millis(value.unsigned_abs());
        Self {
            ingress_url: reader.optional_text("engine.ingress_url"),
            admin_url: reader.optional_text("engine.admin_url"),
            runner_url: reader.optional_text("engine.runner_url"),
            runner_listen: reader.parse_value("engine.runner_listen", loopback_address(12084)),
            pace: ReconcileInterval {
                every: milliseconds(
                    reader.bounded_integer("engine.reconcile_interval_ms", RECONCILE_INTERVAL_MS),
                ),
                redispatch_after: milliseconds(
                    reader.bounded_integer("engine.redispatch_after_ms", REDISPATCH_AFTER_MS),
                ),
            },
        }
    }
}
