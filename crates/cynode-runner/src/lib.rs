//! Drives tasks through the graph of `cynode-core`, one file per node.
//!
//! **Invariant**: the runner holds no database password and no provider key. All it knows of a task it learned from the
//! orchestrator, and all it does to a task it does by a checkpoint under a lease. Killed at any moment, it loses nothing;
//! run twice, a step takes effect once.
//!
//! The engine calls `driver::TaskDriver`; it serves nothing else, and no chat.
//!
//! # To add a node
//!
//! 1. A variant of `Node` in `cynode-core`, and what follows it in `next`.
//! 2. A file in `nodes/` with its `Input`, its `Output`, `run`, and `step`, which turns the output into a checkpoint.
//! 3. A line in `nodes::run`.

pub mod cli;
mod client;
mod driver;
mod handed;
pub mod mind;
mod nodes;
mod serve;

pub use client::{WorkflowClient, WorkflowClientError};
pub use handed::HandoffBackend;
pub use serve::{RunnerOptions, serve_runner};
