//! `cynode admin`: what only the person at the machine may do.

use std::{path::PathBuf, process::ExitCode};

use clap::{Subcommand, ValueEnum};
use cynode_app::{
    nodes,
    services::{self, ServiceKind},
};
use cynode_core::names::Title;

use super::{block_on, bootstrap_link, open_app};
use crate::{
    config::LoadedConfig,
    gate,
    installation::InstallationArgs,
    output, restate,
    telemetry::{self, LogSink},
};

/// Things that only the person at the machine may do.
#[derive(Subcommand)]
pub(crate) enum AdminCommand {
    /// Prints a link that makes the first admin. It works once, for 24 hours.
    Bootstrap,
    /// Prints a new token for a program that works for the installation, and ends the ones it had.
    Token {
        /// What it does.
        kind: ServiceKindArg,
        /// What it is called.
        #[arg(long, default_value = "main")]
        name: Title,
    },
    /// Prints a token with which one machine can join as a node: `cynode-node join`. It works once, for an hour.
    JoinToken {
        /// A label that the node will have. May be repeated.
        #[arg(long = "label", value_name = "LABEL")]
        labels: Vec<String>,
    },
    /// Makes a master key: from it every key of the installation is made. Keep a copy where the database's backups are not.
    MasterKey {
        /// Where it is written.
        file: PathBuf,
    },
    /// Makes the key with which an engine signs its calls: `key.pem` for the engine, `key.pub` for the runner.
    EngineKey {
        /// Where the two files are written.
        directory: PathBuf,
    },
}

/// What a program does.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ServiceKindArg {
    /// Drives tasks.
    Runner,
    /// Works on jobs.
    Worker,
    /// Runs the project manager.
    Manager,
    /// Runs analysts.
    Analyst,
}

pub(crate) fn run_admin(
    command: &AdminCommand,
    installation: &InstallationArgs,
    loaded: &mut LoadedConfig,
) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start_telemetry(&loaded.config.telemetry, &LogSink::Person)?;
    // The others only write files.
    if matches!(
        command,
        AdminCommand::Bootstrap | AdminCommand::Token { .. } | AdminCommand::JoinToken { .. }
    ) {
        installation.fill_config(&mut loaded.config, true)?;
    }
    match command {
        AdminCommand::Bootstrap => print_bootstrap_link(loaded),
        AdminCommand::Token { kind, name } => issue_service_token(loaded, *kind, name),
        AdminCommand::JoinToken { labels } => issue_join_token(loaded, labels.clone()),
        AdminCommand::MasterKey { file } => {
            gate::create_master_key(file)?;
            output::print_line(&format!("wrote {}", file.display()));
            Ok(ExitCode::SUCCESS)
        }
        AdminCommand::EngineKey { directory } => {
            let (private, public) = (directory.join("key.pem"), directory.join("key.pub"));
            anyhow::ensure!(!private.exists(), "{} is there already", private.display());
            std::fs::create_dir_all(directory)?;
            restate::create_key_pair(&private, &public)?;
            output::print_line(&format!("wrote {} and {}", private.display(), public.display()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn issue_service_token(
    loaded: &LoadedConfig,
    kind: ServiceKindArg,
    name: &Title,
) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.pool_options()?;
    let kind = match kind {
        ServiceKindArg::Runner => ServiceKind::Runner,
        ServiceKindArg::Worker => ServiceKind::Worker,
        ServiceKindArg::Manager => ServiceKind::Manager,
        ServiceKindArg::Analyst => ServiceKind::Analyst,
    };
    let token = block_on(async {
        let app = open_app(&loaded.config, &options)?;
        Ok(services::issue_service_token(&app, kind, name).await?)
    })?;
    output::print_line(&token.0);
    Ok(ExitCode::SUCCESS)
}

fn issue_join_token(loaded: &LoadedConfig, labels: Vec<String>) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.pool_options()?;
    let token = block_on(async {
        let app = open_app(&loaded.config, &options)?;
        Ok(nodes::issue_local_join_token(&app, labels).await?)
    })?;
    output::print_line(&token.0);
    Ok(ExitCode::SUCCESS)
}

fn print_bootstrap_link(loaded: &LoadedConfig) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.pool_options()?;
    let token = block_on(async {
        let app = open_app(&loaded.config, &options)?;
        Ok(cynode_app::bootstrap::issue_bootstrap_token(&app).await?)
    })?;
    if let Some(token) = token {
        output::print_line(&bootstrap_link(&loaded.config, &token.0));
        Ok(ExitCode::SUCCESS)
    } else {
        output::print_error("this installation has an admin already; ask them for an account");
        Ok(ExitCode::FAILURE)
    }
}
