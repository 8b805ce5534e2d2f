//! `cynork process`: the programs of the installation with their releases.

use clap::Subcommand;
use cynode_wire::platform::processes::{ProcessKind, ProcessView};

use crate::{client::ApiRequest, context::CliContext, failure::Result, operations};

#[derive(Subcommand)]
pub(crate) enum ProcessCommand {
    /// List servers, engine, database, runners, project managers, analysts, nodes and command lines with the version that each runs.
    #[command(after_help = "Example: cynork process list")]
    List,
}

impl ProcessCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => list_processes(context).await,
        }
    }
}

async fn list_processes(context: &CliContext) -> Result<()> {
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_PROCESSES),
            None,
            |process: &ProcessView| process.name.clone(),
            ["kind", "name", "version", "seen", "note"],
            |process: &ProcessView, look| {
                let seen = if process.present {
                    "now".to_owned()
                } else {
                    look.format_relative_time(process.last_seen_at)
                };
                let note = if process.skewed { "does not fit this server" } else { "" };
                [
                    look.style_bold(describe_kind(process.kind)),
                    process.name.clone(),
                    process.version.clone(),
                    seen,
                    note.to_owned(),
                ]
            },
        )
        .await
}

const fn describe_kind(kind: ProcessKind) -> &'static str {
    match kind {
        ProcessKind::Server => "server",
        ProcessKind::Engine => "engine",
        ProcessKind::Database => "database",
        ProcessKind::Runner => "runner",
        ProcessKind::Worker => "worker",
        ProcessKind::Manager => "project manager",
        ProcessKind::Analyst => "analyst",
        ProcessKind::Node => "node",
        ProcessKind::CommandLine => "command line",
    }
}
