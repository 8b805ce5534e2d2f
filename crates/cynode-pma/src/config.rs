//! Configuration: flags, then the file, then the environment. Nothing else reads the environment.
//!
//! **Invariant**: no setting holds a secret; settings for secrets name a file. No setting is about a provider of
//! models.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use cynode_core::tuning::{BoundedNumber, MODEL_TEMPERATURE, PLANNER_MAX_STEPS, TuningNote};
use serde::{Deserialize, Deserializer};

use crate::{
    instructions::{DEFAULT_INSTRUCTIONS_DIR, InstructionPaths},
    role::PmaRole,
    role_runtime::RoleTuning,
};

/// How many handoffs are worked on at once.
const CONCURRENCY_SETTING: BoundedNumber<i64> =
    BoundedNumber { name: "concurrency", min: 1, max: 64, default: 4 };

/// How long a model may think, in seconds.
const THINK_SECONDS_SETTING: BoundedNumber<i64> =
    BoundedNumber { name: "think-seconds", min: 1, max: 600, default: 60 };

/// How long silence about a handoff is believed, in seconds.
const LEASE_SECONDS_SETTING: BoundedNumber<i64> =
    BoundedNumber { name: "lease-seconds", min: 1, max: 600, default: 20 };

/// One source of settings. Every one may be left out, and every one is a text, whatever it was written as.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SettingsLayer {
    /// Role of this process: `project_manager` or `project_analyst`. Or `PMA_ROLE`.
    #[arg(long)]
    #[serde(deserialize_with = "deserialize_text")]
    role: Option<String>,
    /// Directory with the instructions of both roles; defaults to `instructions`. Or `PMA_INSTRUCTIONS`.
    #[arg(long, value_name = "DIR")]
    #[serde(deserialize_with = "deserialize_text")]
    instructions: Option<String>,
    /// Directory with the project manager's instructions, if elsewhere. Or `PMA_PROJECT_MANAGER_INSTRUCTIONS`.
    #[arg(long, value_name = "DIR")]
    #[serde(deserialize_with = "deserialize_text")]
    project_manager_instructions: Option<String>,
    /// Directory with the analyst's instructions, if elsewhere. Or `PMA_PROJECT_ANALYST_INSTRUCTIONS`.
    #[arg(long, value_name = "DIR")]
    #[serde(deserialize_with = "deserialize_text")]
    project_analyst_instructions: Option<String>,
    /// URL of the orchestrator's internal port; defaults to `http://127.0.0.1:12082`. Or `PMA_ORCHESTRATOR`.
    #[arg(long, value_name = "URL")]
    #[serde(deserialize_with = "deserialize_text")]
    orchestrator: Option<String>,
    /// File with the service token. Or `PMA_TOKEN_FILE`.
    #[arg(long, value_name = "FILE")]
    #[serde(deserialize_with = "deserialize_text")]
    token_file: Option<String>,
    /// Listen address for health checks, and for chats with the project manager; defaults to `127.0.0.1:12088`, for the
    /// analyst to port 12089. Or `PMA_LISTEN`.
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(deserialize_with = "deserialize_text")]
    listen: Option<String>,
    /// File with the credential that the orchestrator sends with a chat; without it, chats are refused. Or
    /// `PMA_CREDENTIAL_FILE`.
    #[arg(long, value_name = "FILE")]
    #[serde(deserialize_with = "deserialize_text")]
    credential_file: Option<String>,
    /// Maximum number of concurrent handoffs, 1 to 64; defaults to `4`. Or `PMA_CONCURRENCY`.
    #[arg(long, value_name = "NUMBER")]
    #[serde(deserialize_with = "deserialize_text")]
    concurrency: Option<String>,
    /// Timeout of a model call, 1 to 600 seconds; defaults to `60`. Or `PMA_THINK_SECONDS`.
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "deserialize_text")]
    think_seconds: Option<String>,
    /// Lease of a handoff, after which another process may take it, 1 to 600 seconds; defaults to `20`. Or
    /// `PMA_LEASE_SECONDS`.
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "deserialize_text")]
    lease_seconds: Option<String>,
    /// Maximum number of steps of a plan, 1 to 50. Or `PLANNER_MAX_STEPS`.
    #[arg(long, value_name = "NUMBER")]
    #[serde(deserialize_with = "deserialize_text")]
    planner_max_steps: Option<String>,
    /// Sampling temperature, 0 to 2. Or `MODEL_TEMPERATURE`.
    #[arg(long, value_name = "NUMBER")]
    #[serde(deserialize_with = "deserialize_text")]
    model_temperature: Option<String>,
    /// Log filter; defaults to `info`. Or `PMA_LOG`.
    #[arg(long, value_name = "FILTER")]
    #[serde(deserialize_with = "deserialize_text")]
    log: Option<String>,
}

/// A text, or a number as it was written.
fn deserialize_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrNumber {
        Text(String),
        Whole(i64),
        Fraction(f64),
    }
    Ok(Some(match TextOrNumber::deserialize(deserializer)? {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Whole(number) => number.to_string(),
        TextOrNumber::Fraction(number) => number.to_string(),
    }))
}

/// The variables that are read, and nothing else of the environment.
const ENVIRONMENT_VARIABLES: [&str; 14] = [
    "PMA_ROLE",
    "PMA_INSTRUCTIONS",
    "PMA_PROJECT_MANAGER_INSTRUCTIONS",
    "PMA_PROJECT_ANALYST_INSTRUCTIONS",
    "PMA_ORCHESTRATOR",
    "PMA_TOKEN_FILE",
    "PMA_LISTEN",
    "PMA_CREDENTIAL_FILE",
    "PMA_CONCURRENCY",
    "PMA_THINK_SECONDS",
    "PMA_LEASE_SECONDS",
    "PLANNER_MAX_STEPS",
    "MODEL_TEMPERATURE",
    "PMA_LOG",
];

/// The environment, as far as it is ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PmaEnvironment(BTreeMap<String, String>);

impl PmaEnvironment {
    /// Reads it.
    #[expect(clippy::disallowed_methods, reason = "the one place where the environment is read")]
    pub fn from_process() -> Self {
        let values = ENVIRONMENT_VARIABLES.iter().filter_map(|name| {
            let value = std::env::var_os(name)?;
            Some(((*name).to_owned(), value.to_string_lossy().into_owned()))
        });
        Self(values.collect())
    }

    /// An environment with these values.
    pub fn from_values(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(values.into_iter().collect())
    }

    /// The settings in it. A variable that is set to nothing is not set.
    fn to_layer(&self) -> SettingsLayer {
        let value = |name: &str| self.0.get(name).filter(|value| !value.is_empty()).cloned();
        SettingsLayer {
            role: value("PMA_ROLE"),
            instructions: value("PMA_INSTRUCTIONS"),
            project_manager_instructions: value("PMA_PROJECT_MANAGER_INSTRUCTIONS"),
            project_analyst_instructions: value("PMA_PROJECT_ANALYST_INSTRUCTIONS"),
            orchestrator: value("PMA_ORCHESTRATOR"),
            token_file: value("PMA_TOKEN_FILE"),
            listen: value("PMA_LISTEN"),
            credential_file: value("PMA_CREDENTIAL_FILE"),
            concurrency: value("PMA_CONCURRENCY"),
            think_seconds: value("PMA_THINK_SECONDS"),
            lease_seconds: value("PMA_LEASE_SECONDS"),
            planner_max_steps: value("PLANNER_MAX_STEPS"),
            model_temperature: value("MODEL_TEMPERATURE"),
            log: value("PMA_LOG"),
        }
    }
}

/// Where a setting came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingSource {
    /// The command line.
    Flag,
    /// The file.
    File,
    /// The environment.
    Environment,
}

impl fmt::Display for SettingSource {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Flag => "the command line",
            Self::File => "the configuration file",
            Self::Environment => "the environment",
        })
    }
}

/// Why a process cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Nobody said what it is.
    #[error(
        "no role was given: use --role, `role` in the configuration file, or PMA_ROLE; it is project_manager or project_analyst"
    )]
    NoRole,
    /// What it is said to be does not exist.
    #[error("the role from {source_of} is neither project_manager nor project_analyst")]
    BadRole {
        /// Where it came from.
        source_of: SettingSource,
    },
    /// A setting that must be there is not.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A setting cannot be used.
    #[error("`{name}` from {source_of} cannot be used: {why}")]
    Bad {
        /// Which.
        name: &'static str,
        /// Where it came from.
        source_of: SettingSource,
        /// Why.
        why: String,
    },
    /// The file cannot be read.
    #[error("the configuration file is wrong: {0}")]
    File(String),
}

/// How a process is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct PmaConfig {
    /// What it is, for its whole life.
    pub role: PmaRole,
    /// Where the instructions are.
    pub places: InstructionPaths,
    /// The orchestrator's internal port.
    pub orchestrator: String,
    /// The file with the process's token.
    pub token_file: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// The file with the orchestrator's credential.
    pub credential_file: Option<PathBuf>,
    /// Most handoffs at once.
    pub concurrency: usize,
    /// How long silence about a handoff is believed.
    pub lease: Duration,
    /// The numbers.
    pub tuning: RoleTuning,
    /// Which log lines are written.
    pub log: String,
}

/// The three sources, strongest first.
struct SettingsLayers([(SettingSource, SettingsLayer); 3]);

impl SettingsLayers {
    /// What holds of one setting, and who said it.
    fn find_setting(
        &self,
        of: impl Fn(&SettingsLayer) -> &Option<String>,
    ) -> Option<(SettingSource, String)> {
        self.0.iter().find_map(|(source, layer)| Some((*source, of(layer).clone()?)))
    }
}

impl SettingsLayer {
    /// The settings of a configuration file.
    pub fn parse_file(text: &str) -> Result<Self, ConfigError> {
        // The parser would show the line, which may hold anything.
        toml::from_str(text).map_err(|error| ConfigError::File(error.message().to_owned()))
    }
}

impl PmaConfig {
    /// Settles what holds: flags before the file before the environment. What was taken otherwise than it was written is told.
    pub fn resolve_layers(
        flags: SettingsLayer,
        file: SettingsLayer,
        environment: &PmaEnvironment,
    ) -> Result<(Self, Vec<TuningNote>), ConfigError> {
        let layers = SettingsLayers([
            (SettingSource::Flag, flags),
            (SettingSource::File, file),
            (SettingSource::Environment, environment.to_layer()),
        ]);
        let (source_of, role) =
            layers.find_setting(|layer| &layer.role).ok_or(ConfigError::NoRole)?;
        let role = PmaRole::from_name(&role).ok_or(ConfigError::BadRole { source_of })?;
        let path = |of: fn(&SettingsLayer) -> &Option<String>| {
            layers.find_setting(of).map(|(_, path)| PathBuf::from(path))
        };
        let places = InstructionPaths {
            root: path(|layer| &layer.instructions)
                .unwrap_or_else(|| PathBuf::from(DEFAULT_INSTRUCTIONS_DIR)),
            project_manager: path(|layer| &layer.project_manager_instructions),
            project_analyst: path(|layer| &layer.project_analyst_instructions),
        };
        let mut notes = Vec::new();
        let mut whole = |bounded: BoundedNumber<i64>, of: fn(&SettingsLayer) -> &Option<String>| {
            let (value, note) = layers
                .find_setting(of)
                .map_or((bounded.default, None), |(_, text)| bounded.parse_clamped(&text));
            notes.extend(note);
            u32::try_from(value).unwrap_or(1)
        };
        let max_steps = whole(PLANNER_MAX_STEPS, |layer| &layer.planner_max_steps);
        let concurrency = whole(CONCURRENCY_SETTING, |layer| &layer.concurrency);
        let think_seconds = whole(THINK_SECONDS_SETTING, |layer| &layer.think_seconds);
        let lease_seconds = whole(LEASE_SECONDS_SETTING, |layer| &layer.lease_seconds);
        let (temperature, note) = layers
            .find_setting(|layer| &layer.model_temperature)
            .map_or((MODEL_TEMPERATURE.default, None), |(_, text)| {
                MODEL_TEMPERATURE.parse_clamped(&text)
            });
        notes.extend(note);
        let patience = Duration::from_secs(think_seconds.into());
        let config = Self {
            role,
            places,
            orchestrator: parse_orchestrator_url(&layers)?,
            token_file: path(|layer| &layer.token_file)
                .ok_or(ConfigError::Missing("token-file"))?,
            listen: parse_listen_address(&layers, role)?,
            credential_file: path(|layer| &layer.credential_file),
            concurrency: usize::try_from(concurrency).unwrap_or(1),
            lease: Duration::from_secs(lease_seconds.into()),
            tuning: RoleTuning { max_steps, temperature, patience },
            log: layers
                .find_setting(|layer| &layer.log)
                .map_or_else(|| "info".into(), |(_, log)| log),
        };
        Ok((config, notes))
    }
}

fn parse_orchestrator_url(layers: &SettingsLayers) -> Result<String, ConfigError> {
    let Some((source_of, text)) = layers.find_setting(|layer| &layer.orchestrator) else {
        return Ok("http://127.0.0.1:12082".into());
    };
    let bad = |why: &str| ConfigError::Bad { name: "orchestrator", source_of, why: why.into() };
    let url = reqwest::Url::parse(&text).map_err(|error| bad(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad("it begins with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("an address holds no credentials"));
    }
    Ok(text)
}

fn parse_listen_address(layers: &SettingsLayers, role: PmaRole) -> Result<SocketAddr, ConfigError> {
    let default = match role {
        PmaRole::ProjectManager => 12088,
        // So that both roles can run on one machine as they are.
        PmaRole::ProjectAnalyst => 12089,
    };
    match layers.find_setting(|layer| &layer.listen) {
        None => Ok(SocketAddr::from(([127, 0, 0, 1], default))),
        Some((source_of, text)) => text.parse().map_err(|_| ConfigError::Bad {
            name: "listen",
            source_of,
            why: "it is an address and a port, as 127.0.0.1:12088".into(),
        }),
    }
}

#[cfg(test)]
mod tests;
