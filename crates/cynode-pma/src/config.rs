//! How a process is set up: by flags, then by its file, then by the environment. Nothing else reads the environment.
//!
//! **Invariant**: no setting holds a secret; those for secrets name a file. No setting is about a provider of models.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use cynode_core::tuning::{Bounded, MODEL_TEMPERATURE, Note, PLANNER_MAX_STEPS};
use serde::{Deserialize, Deserializer};

use crate::{
    instructions::{Places, ROOT},
    office::Tuning,
    role::Role,
};

/// How many handoffs are worked on at once.
const CONCURRENCY: Bounded<i64> = Bounded { name: "concurrency", min: 1, max: 64, default: 4 };

/// How long a model may think, in seconds.
const THINK_SECONDS: Bounded<i64> =
    Bounded { name: "think-seconds", min: 1, max: 600, default: 60 };

/// How long silence about a handoff is believed, in seconds.
const LEASE_SECONDS: Bounded<i64> =
    Bounded { name: "lease-seconds", min: 1, max: 600, default: 20 };

/// One source of settings. Every one may be left out, and every one is a text, whatever it was written as.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Layer {
    /// What this process is: `project_manager` or `project_analyst`. Or `PMA_ROLE`.
    #[arg(long)]
    #[serde(deserialize_with = "text")]
    role: Option<String>,
    /// The directory of the instructions of both roles; `instructions` by default. Or `PMA_INSTRUCTIONS`.
    #[arg(long, value_name = "DIR")]
    #[serde(deserialize_with = "text")]
    instructions: Option<String>,
    /// The project manager's instructions, when they are elsewhere. Or `PMA_PROJECT_MANAGER_INSTRUCTIONS`.
    #[arg(long, value_name = "DIR")]
    #[serde(deserialize_with = "text")]
    project_manager_instructions: Option<String>,
    /// The analyst's instructions, when they are elsewhere. Or `PMA_PROJECT_ANALYST_INSTRUCTIONS`.
    #[arg(long, value_name = "DIR")]
    #[serde(deserialize_with = "text")]
    project_analyst_instructions: Option<String>,
    /// The orchestrator's internal port; `http://127.0.0.1:12082` by default. Or `PMA_ORCHESTRATOR`.
    #[arg(long, value_name = "URL")]
    #[serde(deserialize_with = "text")]
    orchestrator: Option<String>,
    /// A file that holds the process's token. Or `PMA_TOKEN_FILE`.
    #[arg(long, value_name = "FILE")]
    #[serde(deserialize_with = "text")]
    token_file: Option<String>,
    /// Where it is asked for its health, and the manager for chats; `127.0.0.1:12088`, port 12089 for the analyst by default. Or `PMA_LISTEN`.
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(deserialize_with = "text")]
    listen: Option<String>,
    /// A file that holds what the orchestrator shows when it hands over a chat; without it no chat is taken. Or `PMA_CREDENTIAL_FILE`.
    #[arg(long, value_name = "FILE")]
    #[serde(deserialize_with = "text")]
    credential_file: Option<String>,
    /// Most handoffs at once, 1 to 64; `4` by default. Or `PMA_CONCURRENCY`.
    #[arg(long, value_name = "NUMBER")]
    #[serde(deserialize_with = "text")]
    concurrency: Option<String>,
    /// How long a model may think, 1 to 600 seconds; `60` by default. Or `PMA_THINK_SECONDS`.
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "text")]
    think_seconds: Option<String>,
    /// How long it may be silent before another process takes its handoffs, 1 to 600 seconds; `20` by default. Or `PMA_LEASE_SECONDS`.
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "text")]
    lease_seconds: Option<String>,
    /// Most steps of a plan, 1 to 50. Or `PLANNER_MAX_STEPS`.
    #[arg(long, value_name = "NUMBER")]
    #[serde(deserialize_with = "text")]
    planner_max_steps: Option<String>,
    /// How freely words are chosen, 0 to 2. Or `MODEL_TEMPERATURE`.
    #[arg(long, value_name = "NUMBER")]
    #[serde(deserialize_with = "text")]
    model_temperature: Option<String>,
    /// Which log lines are written; `info` by default. Or `PMA_LOG`.
    #[arg(long, value_name = "FILTER")]
    #[serde(deserialize_with = "text")]
    log: Option<String>,
}

/// A text, or a number as it was written.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Whole(i64),
        Fraction(f64),
    }
    Ok(Some(match Written::deserialize(deserializer)? {
        Written::Text(text) => text,
        Written::Whole(number) => number.to_string(),
        Written::Fraction(number) => number.to_string(),
    }))
}

/// The variables that are read, and nothing else of the environment.
const VARIABLES: [&str; 14] = [
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
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Reads it.
    #[expect(clippy::disallowed_methods, reason = "the one place where the environment is read")]
    pub fn read() -> Self {
        let values = VARIABLES.iter().filter_map(|name| {
            let value = std::env::var_os(name)?;
            Some(((*name).to_owned(), value.to_string_lossy().into_owned()))
        });
        Self(values.collect())
    }

    /// An environment with these values.
    pub fn of(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(values.into_iter().collect())
    }

    /// The settings in it. A variable that is set to nothing is not set.
    fn layer(&self) -> Layer {
        let value = |name: &str| self.0.get(name).filter(|value| !value.is_empty()).cloned();
        Layer {
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
pub enum Source {
    /// The command line.
    Flag,
    /// The file.
    File,
    /// The environment.
    Environment,
}

impl fmt::Display for Source {
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
        source_of: Source,
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
        source_of: Source,
        /// Why.
        why: String,
    },
    /// The file cannot be read.
    #[error("the configuration file is wrong: {0}")]
    File(String),
}

/// How a process is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it is, for its whole life.
    pub role: Role,
    /// Where the instructions are.
    pub places: Places,
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
    pub tuning: Tuning,
    /// Which log lines are written.
    pub log: String,
}

/// The three sources, strongest first.
struct Layers([(Source, Layer); 3]);

impl Layers {
    /// What holds of one setting, and who said it.
    fn get(&self, of: impl Fn(&Layer) -> &Option<String>) -> Option<(Source, String)> {
        self.0.iter().find_map(|(source, layer)| Some((*source, of(layer).clone()?)))
    }
}

impl Layer {
    /// The settings of a configuration file.
    pub fn of_file(text: &str) -> Result<Self, ConfigError> {
        // The parser would show the line, which may hold anything.
        toml::from_str(text).map_err(|error| ConfigError::File(error.message().to_owned()))
    }
}

impl Config {
    /// Settles what holds: flags before the file before the environment. What was taken otherwise than it was written is told.
    pub fn settle(
        flags: Layer,
        file: Layer,
        environment: &Environment,
    ) -> Result<(Self, Vec<Note>), ConfigError> {
        let layers = Layers([
            (Source::Flag, flags),
            (Source::File, file),
            (Source::Environment, environment.layer()),
        ]);
        let (source_of, role) = layers.get(|layer| &layer.role).ok_or(ConfigError::NoRole)?;
        let role = Role::from_name(&role).ok_or(ConfigError::BadRole { source_of })?;
        let path =
            |of: fn(&Layer) -> &Option<String>| layers.get(of).map(|(_, path)| PathBuf::from(path));
        let places = Places {
            root: path(|layer| &layer.instructions).unwrap_or_else(|| PathBuf::from(ROOT)),
            project_manager: path(|layer| &layer.project_manager_instructions),
            project_analyst: path(|layer| &layer.project_analyst_instructions),
        };
        let mut notes = Vec::new();
        let mut whole = |bounded: Bounded<i64>, of: fn(&Layer) -> &Option<String>| {
            let (value, note) =
                layers.get(of).map_or((bounded.default, None), |(_, text)| bounded.read(&text));
            notes.extend(note);
            u32::try_from(value).unwrap_or(1)
        };
        let max_steps = whole(PLANNER_MAX_STEPS, |layer| &layer.planner_max_steps);
        let concurrency = whole(CONCURRENCY, |layer| &layer.concurrency);
        let think_seconds = whole(THINK_SECONDS, |layer| &layer.think_seconds);
        let lease_seconds = whole(LEASE_SECONDS, |layer| &layer.lease_seconds);
        let (temperature, note) = layers
            .get(|layer| &layer.model_temperature)
            .map_or((MODEL_TEMPERATURE.default, None), |(_, text)| MODEL_TEMPERATURE.read(&text));
        notes.extend(note);
        let patience = Duration::from_secs(think_seconds.into());
        let config = Self {
            role,
            places,
            orchestrator: orchestrator(&layers)?,
            token_file: path(|layer| &layer.token_file)
                .ok_or(ConfigError::Missing("token-file"))?,
            listen: listen(&layers, role)?,
            credential_file: path(|layer| &layer.credential_file),
            concurrency: usize::try_from(concurrency).unwrap_or(1),
            lease: Duration::from_secs(lease_seconds.into()),
            tuning: Tuning { max_steps, temperature, patience },
            log: layers.get(|layer| &layer.log).map_or_else(|| "info".into(), |(_, log)| log),
        };
        Ok((config, notes))
    }
}

fn orchestrator(layers: &Layers) -> Result<String, ConfigError> {
    let Some((source_of, text)) = layers.get(|layer| &layer.orchestrator) else {
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

fn listen(layers: &Layers, role: Role) -> Result<SocketAddr, ConfigError> {
    let default = match role {
        Role::ProjectManager => 12088,
        // So that both roles can run on one machine as they are.
        Role::ProjectAnalyst => 12089,
    };
    match layers.get(|layer| &layer.listen) {
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
