//! Test support, a dev-dependency only: [`TestApp`] is the whole application over its own database, called in process, with a
//! manual clock and deterministic ids. Forges, identity providers, model providers, package registries, inboxes and MCP servers are fakes on loopback.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod app;
pub mod echo;
pub mod forges;
pub mod identity_provider;
pub mod inbox;
pub mod kms;
pub mod mcp;
pub mod package_registry;
pub mod provider;
pub mod secrets;
mod sources;
mod tls;

pub use app::{Client, Reply, TestApp, TestGateway};
pub use cynode_testkit_db::{NOW, TestDb, pause};
pub use sources::{SeededRandom, TestClock};
pub use tls::TlsInternalPort;
