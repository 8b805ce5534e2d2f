//! `cynode admin`: what only the person at the machine may do.

use std::{path::PathBuf, process::ExitCode};

use clap::{Subcommand, ValueEnum};
use cynode_app::{
    nodes,
    services::{self, ServiceKind},
};
use cynode_core::names::Title;

use super::{app, block_on, bootstrap_link};
use crate::{
    config::Loaded,
    gate,
    installation::Installation,
    output, restate,
    telemetry::{self, Sink},
};

/// Things that only the person at the machine may do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Prints a link that makes the first admin. It works once, for 24 hours.
    Bootstrap,
    /// Prints a new token for a program that works for the installation, and ends the ones it had.
    Token {
        /// What it does.
        kind: Kind,
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
pub(crate) enum Kind {
    /// Drives tasks.
    Runner,
    /// Works on jobs.
    Worker,
    /// Runs the project manager.
    Manager,
    /// Runs analysts.
    Analyst,
}

pub(crate) fn run(
    command: &Command,
    installation: &Installation,
    loaded: &mut Loaded,
) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start(&loaded.config.telemetry, &Sink::Person)?;
    // The others only write files.
    if matches!(command, Command::Bootstrap | Command::Token { .. } | Command::JoinToken { .. }) {
        installation.fill(&mut loaded.config, true)?;
    }
    match command {
        Command::Bootstrap => bootstrap(loaded),
        Command::Token { kind, name } => token(loaded, *kind, name),
        Command::JoinToken { labels } => join_token(loaded, labels.clone()),
        Command::MasterKey { file } => {
            gate::make_key(file)?;
            output::say(&format!("wrote {}", file.display()));
            Ok(ExitCode::SUCCESS)
        }
        Command::EngineKey { directory } => {
            let (private, public) = (directory.join("key.pem"), directory.join("key.pub"));
            anyhow::ensure!(!private.exists(), "{} is there already", private.display());
            std::fs::create_dir_all(directory)?;
            restate::make_key(&private, &public)?;
            output::say(&format!("wrote {} and {}", private.display(), public.display()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn token(loaded: &Loaded, kind: Kind, name: &Title) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.options()?;
    let kind = match kind {
        Kind::Runner => ServiceKind::Runner,
        Kind::Worker => ServiceKind::Worker,
        Kind::Manager => ServiceKind::Manager,
        Kind::Analyst => ServiceKind::Analyst,
    };
    let token = block_on(async {
        let app = app(&loaded.config, &options)?;
        Ok(services::issue(&app, kind, name).await?)
    })?;
    output::say(&token.0);
    Ok(ExitCode::SUCCESS)
}

fn join_token(loaded: &Loaded, labels: Vec<String>) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.options()?;
    let token = block_on(async {
        let app = app(&loaded.config, &options)?;
        Ok(nodes::issue_local_join_token(&app, labels).await?)
    })?;
    output::say(&token.0);
    Ok(ExitCode::SUCCESS)
}

fn bootstrap(loaded: &Loaded) -> anyhow::Result<ExitCode> {
    let options = loaded.config.database.options()?;
    let token = block_on(async {
        let app = app(&loaded.config, &options)?;
        Ok(cynode_app::bootstrap::issue(&app).await?)
    })?;
    if let Some(token) = token {
        output::say(&bootstrap_link(&loaded.config, &token.0));
        Ok(ExitCode::SUCCESS)
    } else {
        output::complain("this installation has an admin already; ask them for an account");
        Ok(ExitCode::FAILURE)
    }
}
