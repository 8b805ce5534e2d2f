//! Configuration: flag > file > environment > default, one struct per section.
//!
//! All problems are reported at once. An unknown key is refused, in a file and in a `CYNODE_…` variable alike. Tunable numbers
//! are clamped with a warning; any other malformed value is refused. Secrets come from a file or the environment, never from a
//! flag, which every user of the machine could read.
//!
//! To add a key: add a field to its section, a line in `read_section`, and a comment with a line in `config.default.toml`. The
//! comment becomes its meaning in `docs/reference/configuration.md`.

mod auth;
mod database;
mod egress;
mod engine;
mod gateway;
mod mail;
mod manager;
mod master_key;
mod memory;
mod planner;
mod reader;
mod retention;
mod server;
mod storage;
mod telemetry;
mod tls;

use std::fmt;

use cynode_core::tuning::TuningNote;

pub(crate) use auth::AuthConfig;
pub(crate) use database::DatabaseConfig;
pub(crate) use egress::EgressConfig;
pub(crate) use engine::{ENGINE_SOCKET_PREFIX, EngineConfig};
pub(crate) use gateway::GatewayConfig;
pub(crate) use mail::MailConfig;
pub(crate) use manager::ManagerConfig;
pub(crate) use master_key::{MasterKeyConfig, MasterKeySource};
pub(crate) use memory::MemoryConfig;
pub(crate) use planner::PlannerConfig;
pub(crate) use reader::{ConfigSources, EffectiveSetting, UNSET_VALUE};
pub(crate) use retention::RetentionConfig;
pub(crate) use server::ServerConfig;
pub(crate) use storage::StorageConfig;
pub(crate) use telemetry::TelemetryConfig;
pub(crate) use tls::{AcmeConfigSection, TlsConfig};

/// Returns the directories of the program search path.
#[expect(clippy::disallowed_methods, reason = "this is the config module")]
pub(crate) fn search_path() -> Vec<std::path::PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

/// Returns the variables of the environment that a supervised program gets.
#[expect(clippy::disallowed_methods, reason = "this is the config module")]
pub(crate) fn inherited_variables(
    is_wanted: impl Fn(&str) -> bool,
) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(&is_wanted)).collect()
}

/// Returns whether the user disabled colours (<https://no-color.org>).
pub(crate) fn is_color_disabled() -> bool {
    is_variable_set("NO_COLOR")
}

/// Returns whether windows can be shown: on X11, on Wayland, or beside Windows.
pub(crate) fn has_display() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"].into_iter().any(is_variable_set)
}

/// Returns whether the person is at another machine.
pub(crate) fn is_ssh_session() -> bool {
    ["SSH_CONNECTION", "SSH_TTY"].into_iter().any(is_variable_set)
}

/// Returns the variables that a program with windows needs.
pub(crate) fn display_variables() -> Vec<(&'static str, std::ffi::OsString)> {
    ["DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_CURRENT_DESKTOP"]
        .into_iter()
        .filter_map(|name| Some((name, read_variable(name)?)))
        .collect()
}

/// Returns user and group of the person who started this process with `sudo`.
pub(crate) fn sudo_caller() -> Option<(u32, u32)> {
    let number = |name: &str| read_variable(name)?.to_str()?.parse::<u32>().ok();
    number("SUDO_UID").filter(|user| *user != 0).zip(number("SUDO_GID"))
}

fn is_variable_set(name: &str) -> bool {
    read_variable(name).is_some()
}

#[expect(clippy::disallowed_methods, reason = "this is the config module")]
fn read_variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Every key with its default and its meaning.
pub(crate) const DEFAULT_CONFIG_TOML: &str = include_str!("../config.default.toml");

/// Returns the meaning of a key: the comment above it in [`DEFAULT_CONFIG_TOML`], as one line.
pub(crate) fn key_meaning(key: &str) -> Option<String> {
    let (section, name) = key.split_once('.')?;
    let header = format!("[{section}]");
    let mut comment = Vec::new();
    for line in DEFAULT_CONFIG_TOML.lines().skip_while(|line| *line != header).skip(1) {
        let text = line.strip_prefix("# ").unwrap_or(line);
        if text.starts_with('[') {
            return None;
        }
        let assigned = text.split_once(" = ").map(|(left, _)| left);
        match assigned.filter(|left| !left.contains(' ')) {
            Some(left) if left == name => {
                return (!comment.is_empty()).then(|| comment.join(" "));
            }
            Some(_) => comment.clear(),
            None => comment.push(text),
        }
    }
    None
}

/// The whole configuration.
#[derive(Debug)]
pub(crate) struct CynodeConfig {
    pub(crate) server: ServerConfig,
    pub(crate) tls: TlsConfig,
    pub(crate) database: DatabaseConfig,
    pub(crate) engine: EngineConfig,
    pub(crate) storage: StorageConfig,
    pub(crate) master_key: MasterKeyConfig,
    pub(crate) gateway: GatewayConfig,
    pub(crate) egress: EgressConfig,
    /// The sections `audit` and `transcripts`.
    pub(crate) retention: RetentionConfig,
    /// The project manager.
    pub(crate) manager: ManagerConfig,
    /// Outgoing mail.
    pub(crate) mail: MailConfig,
    pub(crate) telemetry: TelemetryConfig,
    pub(crate) auth: AuthConfig,
    pub(crate) planner: PlannerConfig,
    pub(crate) memory: MemoryConfig,
}

/// A valid configuration and the sources of its values.
#[derive(Debug)]
pub(crate) struct LoadedConfig {
    pub(crate) config: CynodeConfig,
    pub(crate) effective: Vec<EffectiveSetting>,
    pub(crate) notes: Vec<TuningNote>,
    /// Keys of connections that leave the machine in clear text, because `tls.insecure` allows it.
    pub(crate) clear_text: Vec<String>,
}

/// All problems of a configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfigProblems(Vec<String>);

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is wrong:")?;
        for problem in &self.0 {
            write!(f, "\n  - {problem}")?;
        }
        f.write_str("\n`cynode config default` prints every key with its meaning")
    }
}

impl std::error::Error for ConfigProblems {}

impl CynodeConfig {
    /// Reads every section. Returns all problems if there are any.
    pub(crate) fn load_from(sources: ConfigSources) -> Result<LoadedConfig, ConfigProblems> {
        let mut reader = reader::ConfigReader::new(sources);
        let config = Self {
            server: ServerConfig::read_section(&mut reader),
            tls: TlsConfig::read_section(&mut reader),
            database: DatabaseConfig::read_section(&mut reader),
            engine: EngineConfig::read_section(&mut reader),
            storage: StorageConfig::read_section(&mut reader),
            master_key: MasterKeyConfig::read_section(&mut reader),
            gateway: GatewayConfig::read_section(&mut reader),
            egress: EgressConfig::read_section(&mut reader),
            retention: RetentionConfig::read_sections(&mut reader),
            manager: ManagerConfig::read_section(&mut reader),
            mail: MailConfig::read_section(&mut reader),
            telemetry: TelemetryConfig::read_section(&mut reader),
            auth: AuthConfig::read_section(&mut reader),
            planner: PlannerConfig::read_section(&mut reader),
            memory: MemoryConfig::read_section(&mut reader),
        };
        let clear_text = tls::check_connections(&config, &mut reader);
        let (effective, notes) = reader.finish_reading().map_err(ConfigProblems)?;
        Ok(LoadedConfig { config, effective, notes, clear_text })
    }
}

impl LoadedConfig {
    /// Logs the clamped values, and what `tls.insecure` allows.
    pub(crate) fn log_adjustments(&self) {
        for note in &self.notes {
            tracing::warn!(event = "config.adjusted", "{note}");
        }
        for key in &self.clear_text {
            tracing::warn!(
                event = "tls.insecure",
                key,
                "tls.insecure is set: this connection leaves the machine without TLS, and everybody on the way can read and change it"
            );
        }
    }
}

#[cfg(test)]
mod tests;
