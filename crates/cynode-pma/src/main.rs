//! Entry point: reads the configuration and serves its role.

use std::process::ExitCode;

use clap::Parser;
use cynode_pma::cli::PmaCli;

fn main() -> anyhow::Result<ExitCode> {
    PmaCli::parse().run_command()
}
