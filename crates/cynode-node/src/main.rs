//! The program: reads its flags and does what they say.

use clap::Parser;
use cynode_node::cli::Cli;

fn main() -> anyhow::Result<()> {
    Cli::parse().run()
}
