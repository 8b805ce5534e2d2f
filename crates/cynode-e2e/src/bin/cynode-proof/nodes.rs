//! Real nodes at the real orchestrator, each in its own network namespace, for the proofs in `prove/`. Needs root.

mod faults;
pub(crate) mod scene;
mod share;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::Places;

/// Real nodes, and what becomes of their jobs.
#[derive(Args)]
pub(crate) struct Nodes {
    #[command(flatten)]
    places: Places,
    /// `cynode-node`.
    #[arg(long)]
    node: PathBuf,
    /// What namespaces and disks that are made are called; whoever starts this can so find and remove them.
    #[arg(long)]
    tag: String,
    /// Keeps the world's directory when something is wrong.
    #[arg(long)]
    keep: bool,
    #[command(subcommand)]
    command: NodesCommand,
}

#[derive(Subcommand)]
enum NodesCommand {
    /// Two nodes share jobs; one is cut off in the middle and comes back.
    Share(share::Share),
    /// Breaks something at every state of a job.
    Faults(faults::NodeFaults),
}

/// Runs the proof. Returns whether it passed.
pub(crate) async fn run(nodes: Nodes) -> bool {
    let Nodes { places, node, tag, keep, command } = nodes;
    let options = scene::SceneOptions { places, node, tag, keep };
    match command {
        NodesCommand::Share(share) => Box::pin(share::run(&options, share)).await,
        NodesCommand::Faults(faults) => Box::pin(faults::run(&options, faults)).await,
    }
}
