//! The program: reads its settings and works in its role.

use std::process::ExitCode;

use clap::Parser;
use cynode_pma::cli::Cli;

fn main() -> anyhow::Result<ExitCode> {
    Cli::parse().run()
}
