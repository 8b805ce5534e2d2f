//! The program: reads its flags and serves the engine's calls.

use std::sync::Arc;

use clap::Parser;
use cynode_runner::{Manager, cli::Cli};

fn main() -> anyhow::Result<()> {
    Cli::parse().run(Arc::new(Manager))
}
