//! Entry point: parses the command line and executes the command.

use std::{io::Write, process::ExitCode};

use clap::Parser;
use cynode_node::cli::NodeCli;

fn main() -> ExitCode {
    match NodeCli::parse().run_command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "cynode-node: {error:#}");
            ExitCode::FAILURE
        }
    }
}
