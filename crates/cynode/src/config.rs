//! Configuration: flag > file > environment > default, one struct per section.
//!
//! Every problem is reported at once. A key that nobody knows is refused, in a file and in a
//! `CYNODE_…` variable alike. Numbers that people tune are clamped with a warning; whatever else is
//! malformed is refused. Secrets come from a file or the environment, never from a flag, which
//! everybody on the machine could read.
//!
//! To add a key: a field in its section, a line in `read`, a line in `config.default.toml`.

mod auth;
mod database;
mod engine;
mod gate;
mod mail;
mod manager;
mod planner;
mod reader;
mod server;
mod telemetry;

use std::fmt;

use cynode_core::tuning::Note;

pub(crate) use auth::Auth;
pub(crate) use database::Database;
pub(crate) use engine::{Engine, Ports};
pub(crate) use gate::Gate;
pub(crate) use mail::Mail;
pub(crate) use manager::Manager;
pub(crate) use planner::Planner;
pub(crate) use reader::{Effective, Sources};
pub(crate) use server::Server;
pub(crate) use telemetry::Telemetry;

/// The directories in which programs are looked for.
#[expect(clippy::disallowed_methods, reason = "this is the config module")]
pub(crate) fn search_path() -> Vec<std::path::PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

/// Whether whoever runs this wants no colours (<https://no-color.org>).
#[expect(clippy::disallowed_methods, reason = "this is the config module")]
pub(crate) fn no_colour() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Every key with its default and what it means.
pub(crate) const DEFAULT: &str = include_str!("../config.default.toml");

/// Everything that can be configured.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) database: Database,
    pub(crate) engine: Engine,
    pub(crate) gate: Gate,
    /// The project manager.
    pub(crate) manager: Manager,
    /// Mail that is sent.
    pub(crate) mail: Mail,
    pub(crate) telemetry: Telemetry,
    pub(crate) auth: Auth,
    pub(crate) planner: Planner,
}

/// A configuration that holds, and how it came about.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) effective: Vec<Effective>,
    pub(crate) notes: Vec<Note>,
}

/// Everything that is wrong with a configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problems(Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is wrong:")?;
        for problem in &self.0 {
            write!(f, "\n  - {problem}")?;
        }
        f.write_str("\n`cynode config default` prints every key with its meaning")
    }
}

impl std::error::Error for Problems {}

impl Config {
    /// Reads every section, or says everything that is wrong.
    pub(crate) fn load(sources: Sources) -> Result<Loaded, Problems> {
        let mut reader = reader::Reader::new(sources);
        let config = Self {
            server: Server::read(&mut reader),
            database: Database::read(&mut reader),
            engine: Engine::read(&mut reader),
            gate: Gate::read(&mut reader),
            manager: Manager::read(&mut reader),
            mail: Mail::read(&mut reader),
            telemetry: Telemetry::read(&mut reader),
            auth: Auth::read(&mut reader),
            planner: Planner::read(&mut reader),
        };
        let (effective, notes) = reader.finish().map_err(Problems)?;
        Ok(Loaded { config, effective, notes })
    }
}

impl Loaded {
    /// Says in the log what was clamped.
    pub(crate) fn warn(&self) {
        for note in &self.notes {
            tracing::warn!(event = "config.adjusted", "{note}");
        }
    }
}

#[cfg(test)]
mod tests;
