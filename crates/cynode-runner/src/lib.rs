//! The workflow runner: drives tasks through the graph of `cynode-core`, one file per step.
//!
//! **Invariant**: the runner holds no database password and no provider key. It reads a task from the orchestrator and
//! changes it only by a checkpoint under a lease. A kill loses nothing, and a step that runs twice takes effect once.
//!
//! The engine calls `driver::TaskDriver`; the runner serves nothing else.
//!
//! # To add a step
//!
//! 1. A variant of `WorkflowStep` in `cynode-core`, and what follows it in `next`.
//! 2. A file in `steps/` with its input, its output, a function between them, and `run_<name>_step`, which returns the checkpoint.
//! 3. A line in `steps::execute_step`.

pub mod agent_backend;
pub mod cli;
mod client;
mod driver;
mod given_plan;
mod handoff_backend;
mod serve;
mod steps;

pub use client::{WorkflowClient, WorkflowClientError};
pub use handoff_backend::HandoffBackend;
pub use serve::{RunnerOptions, serve_runner};
