//! Package proxy of a node: packages for sandboxes without an open network.
//!
//! A job reaches [`PackageProxy`] by a Unix socket, which is `127.0.0.1:`[`PACKAGE_PORT`] in its sandbox. The proxy answers GET and HEAD
//! requests for indexes and files of crates, `PyPI`, npm and Debian. It fetches them from [`Upstreams`], checks every file against the digest
//! in the index, keeps it in a content-addressed cache, and applies the package policy of the job. Uploads, logins, searches, other hosts
//! and tunnels are refused.
//!
//! **Invariant**: nothing of a job's request leaves the node but the name of a package, a version and a file that the index names. No byte
//! of a file reaches a job before the whole file has the digest of the index. Credentials of an upstream reach no job and no log.

mod advisories;
mod client_config;
mod error;
mod handler;
mod integrity;
mod machine_config;
mod proxy;
mod registries;
mod rules;
mod single_flight;
mod store;
mod upstream_client;
mod upstreams;
mod versions;

pub use self::{
    client_config::{ClientConfiguration, client_configuration, offline_configuration},
    error::PackageProxyError,
    handler::JobPackageHandler,
    proxy::{JobPackages, PackageProxy, PackageProxyOptions, PackageProxyStats, UnixClock},
    upstreams::{UPSTREAM_KEYS, Upstreams},
};

/// Port of the proxy inside a sandbox.
pub const PACKAGE_PORT: u16 = 3129;
