//! Entry point: parses the command line and serves the engine's calls.

use std::sync::Arc;

use clap::Parser;
use cynode_runner::{HandoffBackend, cli::RunnerCli};

fn main() -> anyhow::Result<()> {
    RunnerCli::parse().serve_until_signal(Arc::new(HandoffBackend))
}
