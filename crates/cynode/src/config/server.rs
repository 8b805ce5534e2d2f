use std::{net::SocketAddr, time::Duration};

use cynode_api::RequestLimits;
use cynode_app::AccountLimits;
use cynode_core::tuning::BoundedNumber;
use cynode_net::server::ServerOptions;

use super::reader::ConfigReader;

/// The HTTP server.
#[derive(Debug)]
pub(crate) struct ServerConfig {
    /// Listen address of the user-facing port.
    pub(crate) listen: SocketAddr,
    /// Listen address of the internal port, for runners and workers.
    pub(crate) internal_listen: SocketAddr,
    /// Whether a reverse proxy that speaks TLS is before the user-facing port. Only this machine and `trusted_proxies` may then connect.
    pub(crate) behind_proxy: bool,
    /// Public URL of the user-facing port.
    pub(crate) public_url: Option<String>,
    /// Limits of one request.
    pub(crate) limits: RequestLimits,
    /// Rate limits of one account.
    pub(crate) account_limits: AccountLimits,
    /// Grace period of running requests on shutdown.
    pub(crate) grace: Duration,
    /// Timeouts and limits of connections.
    pub(crate) connections: ServerOptions,
}

const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 12080);

const DEFAULT_INTERNAL_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 12082);

/// Maximum of a rate limit: practically none.
const MAX_RATE: i64 = 1_000_000;

const BODY_LIMIT_BYTES: BoundedNumber<i64> = BoundedNumber {
    name: "CYNODE_SERVER_BODY_LIMIT_BYTES",
    min: 1024,
    max: 64 << 20,
    default: 1 << 20,
};
const REQUEST_TIMEOUT_SECONDS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_SERVER_REQUEST_TIMEOUT_SECONDS", min: 1, max: 600, default: 30 };
const REQUESTS_PER_SECOND: BoundedNumber<i64> = BoundedNumber {
    name: "CYNODE_SERVER_REQUESTS_PER_SECOND",
    min: 1,
    max: MAX_RATE,
    default: AccountLimits::DEFAULT.requests_per_second as i64,
};
const REQUEST_BURST: BoundedNumber<i64> = BoundedNumber {
    name: "CYNODE_SERVER_REQUEST_BURST",
    min: 1,
    max: MAX_RATE,
    default: AccountLimits::DEFAULT.request_burst as i64,
};
const POLICY_CHANGES_PER_MINUTE: BoundedNumber<i64> = BoundedNumber {
    name: "CYNODE_SERVER_POLICY_CHANGES_PER_MINUTE",
    min: 1,
    max: MAX_RATE,
    default: AccountLimits::DEFAULT.policy_changes_per_minute as i64,
};
const SHUTDOWN_GRACE_SECONDS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_SERVER_SHUTDOWN_GRACE_SECONDS", min: 0, max: 300, default: 10 };
const HEADER_TIMEOUT_SECONDS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_SERVER_HEADER_TIMEOUT_SECONDS", min: 1, max: 120, default: 10 };
const MAX_CONNECTIONS: BoundedNumber<i64> =
    BoundedNumber { name: "CYNODE_SERVER_MAX_CONNECTIONS", min: 64, max: 100_000, default: 4096 };
const MAX_CONNECTIONS_PER_SOURCE: BoundedNumber<i64> = BoundedNumber {
    name: "CYNODE_SERVER_MAX_CONNECTIONS_PER_SOURCE",
    min: 8,
    max: 100_000,
    default: 512,
};

impl ServerConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        let listen = reader.parse_value("server.listen", DEFAULT_LISTEN);
        let internal_listen = reader.parse_value("server.internal_listen", DEFAULT_INTERNAL_LISTEN);
        let public_url = reader.optional_text("server.public_url");
        let body = reader.bounded_integer("server.body_limit_bytes", BODY_LIMIT_BYTES);
        let time =
            reader.bounded_integer("server.request_timeout_seconds", REQUEST_TIMEOUT_SECONDS);
        let account_limits = read_account_limits(reader);
        let grace = reader.bounded_integer("server.shutdown_grace_seconds", SHUTDOWN_GRACE_SECONDS);
        let limits = RequestLimits {
            body: usize::try_from(body).unwrap_or(usize::MAX),
            time: Duration::from_secs(time.unsigned_abs()),
        };
        let grace = Duration::from_secs(grace.unsigned_abs());
        let connections = read_connection_limits(reader);
        let behind_proxy = reader.parse_value("server.behind_proxy", false);
        if behind_proxy && connections.trusted_proxies.is_empty() {
            let problem = "server.behind_proxy: name the addresses of the proxy in server.trusted_proxies; nobody else may connect";
            reader.add_problem(problem.to_owned());
        }
        Self {
            listen,
            internal_listen,
            behind_proxy,
            public_url,
            limits,
            account_limits,
            grace,
            connections,
        }
    }
}

/// Reads the keys about connections.
fn read_connection_limits(reader: &mut ConfigReader) -> ServerOptions {
    let header_timeout =
        reader.bounded_integer("server.header_timeout_seconds", HEADER_TIMEOUT_SECONDS);
    let all = reader.bounded_integer("server.max_connections", MAX_CONNECTIONS);
    let own =
        reader.bounded_integer("server.max_connections_per_source", MAX_CONNECTIONS_PER_SOURCE);
    ServerOptions {
        header_timeout: Duration::from_secs(header_timeout.unsigned_abs()),
        max_connections: usize::try_from(all).unwrap_or(usize::MAX),
        max_connections_per_source: usize::try_from(own).unwrap_or(usize::MAX),
        trusted_proxies: reader.parse_list("server.trusted_proxies"),
        ..ServerOptions::default()
    }
}

fn read_account_limits(reader: &mut ConfigReader) -> AccountLimits {
    let mut rate =
        |key, bounds| u32::try_from(reader.bounded_integer(key, bounds)).unwrap_or(u32::MAX);
    AccountLimits {
        requests_per_second: rate("server.requests_per_second", REQUESTS_PER_SECOND),
        request_burst: rate("server.request_burst", REQUEST_BURST),
        policy_changes_per_minute: rate(
            "server.policy_changes_per_minute",
            POLICY_CHANGES_PER_MINUTE,
        ),
    }
}
