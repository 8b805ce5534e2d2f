//! Sandboxes: their isolation and their start time.

mod bombs;
mod escape;
mod layout;
mod start;
mod targets;
mod tool_server;

use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum SandboxCommand {
    /// Attempts to get out of a sandbox, and to break the node from inside one.
    Escape(escape::Escape),
    /// The same attempts from the program of a tool server.
    EscapeToolServer(tool_server::ToolServerEscape),
    /// Measures how long a sandbox takes until a command has spoken in it.
    Start(start::Start),
}

pub(crate) async fn run(command: SandboxCommand) -> anyhow::Result<bool> {
    match command {
        SandboxCommand::Escape(escape) => escape::run(escape).await,
        SandboxCommand::EscapeToolServer(escape) => tool_server::run(escape).await,
        SandboxCommand::Start(start) => start::run(start).await,
    }
}
