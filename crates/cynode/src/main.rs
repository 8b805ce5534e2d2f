//! The orchestrator's program: it reads the configuration, sets up telemetry, puts the parts together.
//!
//! **Invariant**: this is the only crate that reads the environment, and `config` the only module in it.

mod cluster;
mod commands;
mod config;
mod engine;
mod gate;
mod installation;
mod output;
mod redact;
mod restate;
mod supervise;
mod telemetry;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

use crate::{
    config::{Config, Sources},
    installation::Installation,
};

/// CyNode: a self-hosted control plane for teams of AI agents that build software.
#[derive(Parser)]
#[command(version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: Command,
}

/// Where settings come from: these flags, then the file, then the environment.
#[derive(Args)]
struct Settings {
    /// A configuration file (TOML); `cynode config default` prints one with every key.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets one key, for example `--set server.listen=127.0.0.1:8080`. May be repeated.
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Starts everything on this machine: a database of its own, the engine, the runner, the server, a link for the first admin.
    Up(commands::up::Up),
    /// Shows one task from its words to its merge on this machine: no key, no network, in a minute.
    Demo(commands::demo::Demo),
    /// Serves the HTTP interface over a database that exists.
    Serve,
    /// Brings the database's schema up to date.
    Migrate(Installation),
    /// Looks at this machine and says how to mend what is missing.
    Doctor(commands::doctor::Doctor),
    /// Shows and checks the configuration.
    #[command(subcommand)]
    Config(commands::config::Command),
    /// Things that only the person at the machine may do.
    Admin {
        #[command(flatten)]
        installation: Installation,
        #[command(subcommand)]
        command: commands::admin::Command,
    },
    /// Records of tool calls: whether they are all there and unchanged.
    Audit {
        #[command(flatten)]
        installation: Installation,
        #[command(subcommand)]
        command: commands::audit::Command,
    },
    /// Prints the OpenAPI document.
    Openapi {
        /// Of the internal port: the contract with runners and workers.
        #[arg(long)]
        internal: bool,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(_) if output::lost() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(error) => {
            output::complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    // These need no configuration, and must work when it is broken.
    match &cli.command {
        Command::Openapi { internal } => {
            let document =
                if *internal { cynode_api::internal_openapi() } else { cynode_api::openapi() };
            output::json(&document)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Config(commands::config::Command::Default) => {
            output::say(config::DEFAULT.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let sources = Sources::of_process(cli.settings.config.as_deref(), &cli.settings.set)?;
    let mut loaded = Config::load(sources)?;
    match cli.command {
        Command::Up(up) => commands::up::run(up, &mut loaded),
        Command::Demo(demo) => commands::demo::run(demo, &loaded.config),
        Command::Serve => commands::serve::run(loaded),
        Command::Migrate(installation) => commands::migrate::run(&installation, &mut loaded),
        Command::Doctor(doctor) => commands::doctor::run(&doctor, &loaded.config),
        Command::Config(command) => commands::config::run(&command, &loaded),
        Command::Admin { installation, command } => {
            commands::admin::run(&command, &installation, &mut loaded)
        }
        Command::Audit { installation, command } => {
            commands::audit::run(&command, &installation, &mut loaded)
        }
        Command::Openapi { .. } => Ok(ExitCode::SUCCESS),
    }
}
