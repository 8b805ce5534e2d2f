//! `cynode admin`: what only the person at the machine may do.

use std::process::ExitCode;

use clap::Subcommand;
use cynode_app::bootstrap;

use super::{app, block_on, bootstrap_link};
use crate::{
    config::Loaded,
    output,
    telemetry::{self, Sink},
};

/// Things that only the person at the machine may do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Prints a link that makes the first admin. It works once, for 24 hours.
    Bootstrap,
}

pub(crate) fn run(command: &Command, loaded: &Loaded) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start(&loaded.config.telemetry, &Sink::Stderr)?;
    let Command::Bootstrap = command;
    let options = loaded.config.database.options()?;
    let token = block_on(async {
        let app = app(&loaded.config, &options)?;
        Ok(bootstrap::issue(&app).await?)
    })?;
    if let Some(token) = token {
        output::say(&bootstrap_link(&loaded.config, &token.0));
        Ok(ExitCode::SUCCESS)
    } else {
        output::complain("this installation has an admin already; ask them for an account");
        Ok(ExitCode::FAILURE)
    }
}
