//! The program: reads its flags and serves the engine's calls.

use std::sync::Arc;

use clap::Parser;
use cynode_runner::{cli::Cli, mind::Nobody};

fn main() -> anyhow::Result<()> {
    Cli::parse().run(Arc::new(Nobody))
}
