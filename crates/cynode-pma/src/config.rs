//! Configuration: flags, then the file, then the environment. Nothing else reads the environment.
//!
//! **Invariant**: no setting holds a secret; settings for secrets name a file. No setting is about a provider of
//! models.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use cynode_core::tuning::{BoundedNumber, MODEL_TEMPERATURE, PLANNER_MAX_STEPS, TuningNote};
use cynode_net::transport::{check_transport, is_loopback_listener};
use serde::{Deserialize, Deserializer};

use crate::{
    instructions::{DEFAULT_INSTRUCTIONS_DIR, InstructionPaths},
    role::PmaRole,
    role_runtime::RoleTuning,
};

/// Maximum number of concurrent handoffs.
const CONCURRENCY_SETTING: BoundedNumber<i64> =
    BoundedNumber { name: "concurrency", min: 1, max: 64, default: 4 };

/// Timeout of a model call, in seconds.
const THINK_SECONDS_SETTING: BoundedNumber<i64> =
    BoundedNumber { name: "think-seconds", min: 1, max: 600, default: 60 };

/// Lease of a handoff, in seconds.
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
    /// Certificate authority (PEM) of the orchestrator's internal port, if it is the installation's own. Or `PMA_CA_FILE`.
    #[arg(long, value_name = "FILE")]
    #[serde(deserialize_with = "deserialize_text")]
    ca_file: Option<String>,
    /// Client certificate (PEM), from `cynode admin certificate`; a changed file is loaded without a restart. Or
    /// `PMA_CERTIFICATE_FILE`.
    #[arg(long, value_name = "FILE")]
    #[serde(deserialize_with = "deserialize_text")]
    certificate_file: Option<String>,
    /// Key (PEM) of the client certificate. Or `PMA_KEY_FILE`.
    #[arg(long, value_name = "FILE")]
    #[serde(deserialize_with = "deserialize_text")]
    key_file: Option<String>,
    /// Allow clear text beyond this machine: everybody on the way can read and change it. Or `PMA_INSECURE`.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[serde(deserialize_with = "deserialize_text")]
    insecure: Option<String>,
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

/// Deserializes a text, or a number or a truth value as text.
fn deserialize_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrNumber {
        Text(String),
        Whole(i64),
        Fraction(f64),
        Truth(bool),
    }
    Ok(Some(match TextOrNumber::deserialize(deserializer)? {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Whole(number) => number.to_string(),
        TextOrNumber::Fraction(number) => number.to_string(),
        TextOrNumber::Truth(truth) => truth.to_string(),
    }))
}

/// Environment variables that are read; no others are.
const ENVIRONMENT_VARIABLES: [&str; 18] = [
    "PMA_ROLE",
    "PMA_INSTRUCTIONS",
    "PMA_PROJECT_MANAGER_INSTRUCTIONS",
    "PMA_PROJECT_ANALYST_INSTRUCTIONS",
    "PMA_ORCHESTRATOR",
    "PMA_CA_FILE",
    "PMA_CERTIFICATE_FILE",
    "PMA_KEY_FILE",
    "PMA_INSECURE",
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

/// The program's environment variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PmaEnvironment(BTreeMap<String, String>);

impl PmaEnvironment {
    /// Reads the process environment.
    #[expect(clippy::disallowed_methods, reason = "the one place where the environment is read")]
    pub fn from_process() -> Self {
        let values = ENVIRONMENT_VARIABLES.iter().filter_map(|name| {
            let value = std::env::var_os(name)?;
            Some(((*name).to_owned(), value.to_string_lossy().into_owned()))
        });
        Self(values.collect())
    }

    /// Creates an environment with the given values.
    pub fn from_values(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(values.into_iter().collect())
    }

    /// Converts the variables to a settings layer. An empty variable counts as unset.
    fn to_layer(&self) -> SettingsLayer {
        let value = |name: &str| self.0.get(name).filter(|value| !value.is_empty()).cloned();
        SettingsLayer {
            role: value("PMA_ROLE"),
            instructions: value("PMA_INSTRUCTIONS"),
            project_manager_instructions: value("PMA_PROJECT_MANAGER_INSTRUCTIONS"),
            project_analyst_instructions: value("PMA_PROJECT_ANALYST_INSTRUCTIONS"),
            orchestrator: value("PMA_ORCHESTRATOR"),
            ca_file: value("PMA_CA_FILE"),
            certificate_file: value("PMA_CERTIFICATE_FILE"),
            key_file: value("PMA_KEY_FILE"),
            insecure: value("PMA_INSECURE"),
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

/// Source of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingSource {
    /// Command line flag.
    Flag,
    /// Configuration file.
    File,
    /// Environment variable.
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

/// Error of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The role is missing.
    #[error(
        "no role was given: use --role, `role` in the configuration file, or PMA_ROLE; it is project_manager or project_analyst"
    )]
    NoRole,
    /// The role does not exist.
    #[error("the role from {source_of} is neither project_manager nor project_analyst")]
    BadRole {
        /// Source of the setting.
        source_of: SettingSource,
    },
    /// A required setting is missing.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A setting is invalid.
    #[error("`{name}` from {source_of} cannot be used: {why}")]
    Bad {
        /// Name of the setting.
        name: &'static str,
        /// Source of the setting.
        source_of: SettingSource,
        /// Reason why it is invalid.
        why: String,
    },
    /// The file cannot be read.
    #[error("the configuration file is wrong: {0}")]
    File(String),
}

/// Configuration of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct PmaConfig {
    /// Role of the process, for its whole lifetime.
    pub role: PmaRole,
    /// Paths of the instructions.
    pub places: InstructionPaths,
    /// URL of the orchestrator's internal port.
    pub orchestrator: String,
    /// Certificate authority of the orchestrator's internal port.
    pub ca_file: Option<PathBuf>,
    /// Client certificate and its key.
    pub identity_files: Option<(PathBuf, PathBuf)>,
    /// Whether clear text may leave this machine.
    pub insecure: bool,
    /// File with the service token.
    pub token_file: PathBuf,
    /// Listen address.
    pub listen: SocketAddr,
    /// File with the orchestrator's credential.
    pub credential_file: Option<PathBuf>,
    /// Maximum number of concurrent handoffs.
    pub concurrency: usize,
    /// Lease of a handoff.
    pub lease: Duration,
    /// Tuning parameters.
    pub tuning: RoleTuning,
    /// Log filter.
    pub log: String,
}

/// The three sources, in order of precedence.
struct SettingsLayers([(SettingSource, SettingsLayer); 3]);

impl SettingsLayers {
    /// Returns the effective value of a setting and its source.
    fn find_setting(
        &self,
        of: impl Fn(&SettingsLayer) -> &Option<String>,
    ) -> Option<(SettingSource, String)> {
        self.0.iter().find_map(|(source, layer)| Some((*source, of(layer).clone()?)))
    }
}

impl SettingsLayer {
    /// Parses a configuration file.
    pub fn parse_file(text: &str) -> Result<Self, ConfigError> {
        // The parser's own message would show the line, which may contain a secret.
        toml::from_str(text).map_err(|error| ConfigError::File(error.message().to_owned()))
    }
}

impl PmaConfig {
    /// Resolves the settings: flags override the file, the file overrides the environment. Values that were adjusted are reported.
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
        let insecure = parse_insecure(&layers)?;
        let files = (path(|layer| &layer.certificate_file), path(|layer| &layer.key_file));
        let identity_files = match files {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(ConfigError::Missing("key-file")),
            (None, Some(_)) => return Err(ConfigError::Missing("certificate-file")),
        };
        let encrypted = identity_files.is_some();
        let config = Self {
            role,
            places,
            orchestrator: parse_orchestrator_url(&layers, insecure)?,
            ca_file: path(|layer| &layer.ca_file),
            identity_files,
            insecure,
            token_file: path(|layer| &layer.token_file)
                .ok_or(ConfigError::Missing("token-file"))?,
            listen: parse_listen_address(&layers, role, encrypted || insecure)?,
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

fn parse_insecure(layers: &SettingsLayers) -> Result<bool, ConfigError> {
    let Some((source_of, text)) = layers.find_setting(|layer| &layer.insecure) else {
        return Ok(false);
    };
    let why = "it is true or false".to_owned();
    text.parse().map_err(|_| ConfigError::Bad { name: "insecure", source_of, why })
}

fn parse_orchestrator_url(layers: &SettingsLayers, insecure: bool) -> Result<String, ConfigError> {
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
    check_transport(&text, insecure).map_err(|error| bad(&error.to_string()))?;
    Ok(text)
}

fn parse_listen_address(
    layers: &SettingsLayers,
    role: PmaRole,
    may_be_open: bool,
) -> Result<SocketAddr, ConfigError> {
    let default = match role {
        PmaRole::ProjectManager => 12088,
        // The default ports differ, so that both roles can run on one machine.
        PmaRole::ProjectAnalyst => 12089,
    };
    let Some((source_of, text)) = layers.find_setting(|layer| &layer.listen) else {
        return Ok(SocketAddr::from(([127, 0, 0, 1], default)));
    };
    let bad = |why: &str| ConfigError::Bad { name: "listen", source_of, why: why.into() };
    let address: SocketAddr =
        text.parse().map_err(|_| bad("it is an address and a port, as 127.0.0.1:12088"))?;
    if !may_be_open && !is_loopback_listener(address) {
        return Err(bad(
            "it is beyond this machine, and chats are not encrypted: give --certificate-file and --key-file, or allow clear text with --insecure",
        ));
    }
    Ok(address)
}

#[cfg(test)]
mod tests;
