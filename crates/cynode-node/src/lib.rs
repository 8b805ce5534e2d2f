//! The node agent: runs jobs in sandboxes on a user's machine.
//!
//! **Invariant**: the node calls the orchestrator and is never called. Model keys never reach it, and the token of a
//! job never leaves it. A job runs in a sandbox that ends with the node, and its result is reported until the
//! orchestrator acknowledges it.
//!
//! `supervisor` runs the node, `job` runs one job, `workspace` creates and exports its files, `job::environment` sets up what
//! they are built and tested with, `sockets` are the only connections out of its sandbox, `outbox` delivers events,
//! `store` is the state that survives a restart.

mod chunking;
pub mod cli;
pub mod client;
mod clock;
pub mod config;
mod doctor;
pub mod host;
mod job;
mod join;
pub mod key;
pub mod node;
mod outbox;
mod report;
mod sockets;
pub mod store;
pub mod supervisor;
mod trust;
mod worker_factory;
pub mod workers;
mod workspace;

pub use cynode_sandbox as sandbox;
