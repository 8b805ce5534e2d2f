//! The program of the orchestrator: it reads the configuration, sets up telemetry, and wires the parts together.
//!
//! **Invariant**: this is the only crate that reads the environment, and `config` is the only module in it that does.

mod backup;
mod browser;
mod cluster;
mod commands;
mod config;
mod engine;
mod gateway;
mod identity_provider_file;
mod installation;
mod master_key;
mod open_files;
mod output;
mod program_zone;
mod redact;
mod restate;
mod supervise;
mod telemetry;
mod tls;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};

use crate::{
    config::{ConfigSources, CynodeConfig},
    installation::InstallationArgs,
};

/// CyNode: a self-hosted control plane for teams of AI agents that build software.
#[derive(Parser)]
#[command(version, about, disable_help_subcommand = true)]
struct CynodeCli {
    #[command(flatten)]
    settings: ConfigArgs,
    #[command(subcommand)]
    command: CynodeCommand,
}

/// Sources of settings: these flags, then the file, then the environment.
#[derive(Args)]
struct ConfigArgs {
    /// Configuration file (TOML); `cynode config default` prints one with every key.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key, for example `--set server.listen=127.0.0.1:8080`; may be repeated.
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Subcommand)]
enum CynodeCommand {
    /// Start a complete installation on this machine: database, engine, runner, server, and a link for the first admin.
    Up(commands::up::UpArgs),
    /// Run a demo task on this machine, from request to merge, without an API key or network.
    Demo(commands::demo::DemoArgs),
    /// Serve the HTTP API on an existing database.
    Serve,
    /// Migrate the database schema.
    Migrate(commands::migrate::MigrateArgs),
    /// Back up an installation of `cynode up` while it runs: database, files and keys, encrypted.
    Backup(commands::backup::BackupArgs),
    /// Restore a backup into an empty data directory, or check that it can be restored.
    Restore(commands::restore::RestoreArgs),
    /// Check this machine and show how to fix what is missing.
    Doctor(commands::doctor::DoctorArgs),
    /// Show and check the configuration.
    #[command(subcommand)]
    Config(commands::config::CynodeConfigCommand),
    /// Run administrative actions that require access to this machine.
    Admin {
        #[command(flatten)]
        installation: InstallationArgs,
        #[command(subcommand)]
        command: commands::admin::AdminCommand,
    },
    /// Verify that the audit log of tool calls and privileged events is complete and unchanged.
    Audit {
        #[command(flatten)]
        installation: InstallationArgs,
        #[command(subcommand)]
        command: commands::audit::CynodeAuditCommand,
    },
    /// Print the OpenAPI document.
    Openapi {
        /// Print the document of the internal port, for runners and workers.
        #[arg(long)]
        internal: bool,
    },
    /// Write the reference pages that the code describes.
    #[command(hide = true)]
    Reference {
        /// The directory of the pages; `docs/reference` in the repository.
        directory: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = CynodeCli::parse();
    match run_command(cli) {
        Ok(_) if output::has_stdout_failed() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(error) => {
            output::print_error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The configuration that packages install and their units name.
const HOST_CONFIG_FILE: &str = "/etc/cynode/cynode.toml";

/// Returns the configuration of this host for commands of its administrator: they mean the installation that the units run. The demo
/// is an installation of its own.
fn default_config_file(command: &CynodeCommand) -> Option<&'static Path> {
    let administers =
        !matches!(command, CynodeCommand::Demo(_)) && rustix::process::geteuid().is_root();
    administers.then(|| Path::new(HOST_CONFIG_FILE))
}

fn run_command(cli: CynodeCli) -> anyhow::Result<ExitCode> {
    // These need no configuration, and must work when it is broken.
    match &cli.command {
        CynodeCommand::Openapi { internal } => {
            let document = if *internal {
                cynode_api::internal_openapi()
            } else {
                cynode_api::public_openapi()
            };
            output::print_json(&document)?;
            return Ok(ExitCode::SUCCESS);
        }
        CynodeCommand::Reference { directory } => {
            return commands::reference::write_reference(directory);
        }
        CynodeCommand::Config(commands::config::CynodeConfigCommand::Default) => {
            output::print_line(config::DEFAULT_CONFIG_TOML.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let sources = ConfigSources::from_process(
        cli.settings.config.as_deref(),
        &cli.settings.set,
        default_config_file(&cli.command),
    )?;
    let mut loaded = CynodeConfig::load_from(sources)?;
    match cli.command {
        CynodeCommand::Up(up) => commands::up::run_up(up, &mut loaded),
        CynodeCommand::Demo(demo) => commands::demo::run_demo(demo, &loaded.config),
        CynodeCommand::Serve => commands::serve::run_serve(loaded),
        CynodeCommand::Migrate(migrate) => commands::migrate::run_migrate(&migrate, &mut loaded),
        CynodeCommand::Backup(backup) => commands::backup::run_backup(&backup, &mut loaded),
        CynodeCommand::Restore(restore) => commands::restore::run_restore(&restore, &loaded.config),
        CynodeCommand::Doctor(doctor) => commands::doctor::run_doctor(&doctor, &mut loaded.config),
        CynodeCommand::Config(command) => commands::config::run_config(&command, &loaded),
        CynodeCommand::Admin { installation, command } => {
            commands::admin::run_admin(&command, &installation, &mut loaded)
        }
        CynodeCommand::Audit { installation, command } => {
            commands::audit::run_audit(&command, &installation, &mut loaded)
        }
        CynodeCommand::Openapi { .. } | CynodeCommand::Reference { .. } => Ok(ExitCode::SUCCESS),
    }
}
