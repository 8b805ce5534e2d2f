//! Runs jobs in sandboxes on a machine of the user.
//!
//! **Invariant**: the node calls the orchestrator and is never called. Keys of models never reach it; the token of a job never
//! leaves it. What a job does happens in a sandbox that ends with the node, and what comes of it is reported until it is
//! acknowledged.
//!
//! `supervisor` keeps the node going, `job` does one job, `workspace` makes and takes out its files, `sockets` are the only
//! ways out of its sandbox, `outbox` tells what happens, `store` is what survives a restart.

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
mod pieces;
mod report;
pub mod sandbox;
mod sockets;
pub mod store;
pub mod supervisor;
pub mod workers;
mod workshop;
mod workspace;
