//! Load on an MCP gateway, and the checks of its audit records, for the proofs in `prove/`. Loopback only.

mod audit_check;
mod echo;
mod latency;
mod revocation;
mod storm;
mod tamper;
pub(crate) mod wire;

use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;

/// Load on an MCP gateway, and the checks of what it recorded.
#[derive(Subcommand)]
pub(crate) enum GatewayCommand {
    /// A very fast MCP server, to put behind a gateway.
    Echo(echo::Echo),
    /// Calls at constant rates to several targets in turn, and what each adds to the first.
    Latency(latency::ToolLatency),
    /// Calls of all kinds to a gateway that somebody kills meanwhile, with a log of what became of each.
    Storm(storm::ToolStorm),
    /// Compares the log of a storm with the records.
    AuditCheck(audit_check::AuditCheck),
    /// Changes records one value at a time and sees that the check finds each.
    Tamper(tamper::Tamper),
    /// Takes a token back and switches a tool off under load, and measures when the last call went through.
    Revocation(revocation::Revocation),
}

/// Runs the command. Returns whether the check passed.
pub(crate) async fn run(command: GatewayCommand) -> anyhow::Result<bool> {
    match command {
        GatewayCommand::Echo(echo) => echo::run(echo).await.map(|()| true),
        GatewayCommand::Latency(latency) => {
            tokio::task::spawn_blocking(move || latency::run(&latency)).await?
        }
        GatewayCommand::Storm(storm) => storm::run(storm).await,
        GatewayCommand::AuditCheck(check) => audit_check::run(check).await,
        GatewayCommand::Tamper(tamper) => tamper::run(tamper).await,
        GatewayCommand::Revocation(revocation) => revocation::run(revocation).await,
    }
}

/// Parses `NAME=VALUE`.
pub(crate) fn named(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = text.split_once('=').context("NAME=VALUE is needed")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep_until(tokio::time::Instant::now() + time).await;
}
