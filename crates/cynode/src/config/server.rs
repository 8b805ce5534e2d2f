use std::{net::SocketAddr, time::Duration};

use cynode_api::Limits;
use cynode_core::tuning::Bounded;

use super::reader::Reader;

/// How requests are taken.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where the user-facing interface listens.
    pub(crate) listen: SocketAddr,
    /// Where runners and workers are listened to.
    pub(crate) internal_listen: SocketAddr,
    /// Where people reach the user-facing interface.
    pub(crate) public_url: Option<String>,
    /// Bounds on one request.
    pub(crate) limits: Limits,
    /// How long running requests may take when the server is told to stop.
    pub(crate) grace: Duration,
}

const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 12080);

const INTERNAL: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 12082);

const BODY: Bounded<i64> =
    Bounded { name: "CYNODE_SERVER_BODY_LIMIT_BYTES", min: 1024, max: 64 << 20, default: 1 << 20 };
const TIMEOUT: Bounded<i64> =
    Bounded { name: "CYNODE_SERVER_REQUEST_TIMEOUT_SECONDS", min: 1, max: 600, default: 30 };
const GRACE: Bounded<i64> =
    Bounded { name: "CYNODE_SERVER_SHUTDOWN_GRACE_SECONDS", min: 0, max: 300, default: 10 };

impl Server {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let listen = reader.value("server.listen", LISTEN);
        let internal_listen = reader.value("server.internal_listen", INTERNAL);
        let public_url = reader.optional("server.public_url");
        let body = reader.integer("server.body_limit_bytes", BODY);
        let time = reader.integer("server.request_timeout_seconds", TIMEOUT);
        let grace = reader.integer("server.shutdown_grace_seconds", GRACE);
        let limits = Limits {
            body: usize::try_from(body).unwrap_or(usize::MAX),
            time: Duration::from_secs(time.unsigned_abs()),
        };
        let grace = Duration::from_secs(grace.unsigned_abs());
        Self { listen, internal_listen, public_url, limits, grace }
    }
}
