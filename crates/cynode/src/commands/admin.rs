//! `cynode admin`: operations that require access to the machine.

use std::{path::PathBuf, process::ExitCode};

use clap::{Subcommand, ValueEnum};
use cynode_app::{
    identity::service_tokens::{self, ServiceKind},
    nodes,
};
use cynode_core::names::Title;

use super::{block_on, bootstrap_link, open_app};
use crate::{
    config::LoadedConfig,
    gateway,
    installation::InstallationArgs,
    output, restate,
    telemetry::{self, LogSink},
};

/// Run administrative actions that require access to this machine.
#[derive(Subcommand)]
pub(crate) enum AdminCommand {
    /// Print a one-time link that creates the first admin; valid for 24 hours.
    Bootstrap,
    /// Issue a service token for a program of the installation, and revoke its earlier tokens.
    Token {
        /// Kind of program.
        kind: ServiceKindArg,
        /// Name of the program.
        #[arg(long, default_value = "main")]
        name: Title,
    },
    /// Issue a one-time token with which a machine joins as a node (`cynode-node join`); valid for an hour.
    JoinToken {
        /// Label for the node; may be repeated.
        #[arg(long = "label", value_name = "LABEL")]
        labels: Vec<String>,
    },
    /// Generate the master key, from which every key of the installation is derived. Keep a copy apart from the database's
    /// backups.
    MasterKey {
        /// Output file.
        file: PathBuf,
    },
    /// Generate the signing key of an engine: `key.pem` for the engine, `key.pub` for the runner.
    EngineKey {
        /// Output directory of the two files.
        directory: PathBuf,
    },
}

/// Kind of program.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ServiceKindArg {
    /// Runs the workflow of tasks.
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
            gateway::create_master_key(file)?;
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
        Ok(service_tokens::issue_service_token(&app, kind, name).await?)
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
        Ok(cynode_app::identity::bootstrap::issue_bootstrap_token(&app).await?)
    })?;
    if let Some(token) = token {
        output::print_line(&bootstrap_link(&loaded.config, &token.0));
        Ok(ExitCode::SUCCESS)
    } else {
        output::print_error("this installation has an admin already; ask them for an account");
        Ok(ExitCode::FAILURE)
    }
}
