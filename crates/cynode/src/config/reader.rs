use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context;
use cynode_core::tuning::{BoundedNumber, TuningNote};
use secrecy::SecretString;

/// Variables with our prefix that are not settings.
const NON_SETTING_VARIABLES: [&str; 2] = ["CYNODE_TEST_CLUSTER", "CYNODE_BIN"];

/// The display of a key without a value.
pub(crate) const UNSET_VALUE: &str = "(not set)";

/// The three sources of settings, as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigSources {
    /// `--set`, by key.
    pub(crate) flags: BTreeMap<String, String>,
    /// The file, flattened to dotted keys.
    pub(crate) file: BTreeMap<String, String>,
    /// The environment variables.
    pub(crate) environment: BTreeMap<String, String>,
}

/// The effective value of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectiveSetting {
    pub(crate) key: &'static str,
    /// Its environment variable.
    pub(crate) variable: String,
    /// The effective value; masked if it is a secret.
    pub(crate) value: String,
    pub(crate) source: ConfigValueSource,
}

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigValueSource {
    Flag,
    File,
    Environment,
    Default,
}

impl ConfigValueSource {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::File => "file",
            Self::Environment => "environment",
            Self::Default => "default",
        }
    }
}

impl ConfigSources {
    /// Reads the sources of this process. Where neither a flag nor the environment names a file, `default_file` is read if it exists.
    pub(crate) fn from_process(
        file: Option<&Path>,
        flags: &[String],
        default_file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "this is the config module")]
        let environment: BTreeMap<_, _> = std::env::vars_os()
            .filter_map(|(name, value)| {
                // A value that is not UTF-8 cannot be a valid setting.
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            })
            .collect();
        let named = file.map(Path::to_owned);
        let named = named.or_else(|| environment.get("CYNODE_CONFIG").map(PathBuf::from));
        let named = named.or_else(|| default_file.filter(|file| file.exists()).map(Path::to_owned));
        let file = match named {
            Some(path) => {
                let text = std::fs::read_to_string(&path);
                let text = text.with_context(|| format!("cannot read {}", path.display()))?;
                Self::parse_file(&text).with_context(|| format!("in {}", path.display()))?
            }
            None => BTreeMap::new(),
        };
        let flags = flags
            .iter()
            .map(|flag| {
                let pair =
                    flag.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
                pair.with_context(|| format!("--set takes KEY=VALUE, got `{flag}`"))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { flags, file, environment })
    }

    /// Flattens TOML: `[server] listen = "x"` becomes `server.listen`.
    pub(crate) fn parse_file(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
        fn flatten_table(prefix: &str, table: &toml::Table, flat: &mut BTreeMap<String, String>) {
            for (name, value) in table {
                let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                match value {
                    toml::Value::Table(table) => flatten_table(&key, table, flat),
                    toml::Value::String(text) => {
                        flat.insert(key, text.clone());
                    }
                    other => {
                        flat.insert(key, other.to_string());
                    }
                }
            }
        }
        // The parser's message quotes the line, which may be a secret: only the position is reported.
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            anyhow::anyhow!("line {line} is not TOML")
        })?;
        let mut flat = BTreeMap::new();
        flatten_table("", &table, &mut flat);
        Ok(flat)
    }
}

/// Reads values from the sources and collects all problems.
pub(crate) struct ConfigReader {
    sources: ConfigSources,
    keys: BTreeSet<&'static str>,
    variables: BTreeSet<String>,
    effective: Vec<EffectiveSetting>,
    notes: Vec<TuningNote>,
    problems: Vec<String>,
}

impl ConfigReader {
    pub(crate) fn new(sources: ConfigSources) -> Self {
        Self {
            sources,
            keys: BTreeSet::new(),
            variables: BTreeSet::from(["CYNODE_CONFIG".to_owned()]),
            effective: Vec::new(),
            notes: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn find_raw(
        &mut self,
        key: &'static str,
        variable: &str,
    ) -> Option<(String, ConfigValueSource)> {
        self.keys.insert(key);
        self.variables.insert(variable.to_owned());
        let ConfigSources { flags, file, environment } = &self.sources;
        let found = flags.get(key).map(|text| (text, ConfigValueSource::Flag));
        let found = found.or_else(|| file.get(key).map(|text| (text, ConfigValueSource::File)));
        // An empty variable is how shells write "not set".
        let set = environment.get(variable).filter(|text| !text.is_empty());
        let found = found.or_else(|| set.map(|text| (text, ConfigValueSource::Environment)));
        found.map(|(text, source)| (text.clone(), source))
    }

    fn record_effective(
        &mut self,
        key: &'static str,
        variable: &str,
        value: impl std::fmt::Display,
        source: ConfigValueSource,
    ) {
        let (variable, value) = (variable.to_owned(), value.to_string());
        self.effective.push(EffectiveSetting { key, variable, value, source });
    }

    /// Reads a value of any type; a malformed one is a problem.
    pub(crate) fn parse_value<T>(&mut self, key: &'static str, default: T) -> T
    where
        T: FromStr<Err: std::fmt::Display> + std::fmt::Display,
    {
        let variable = env_variable_name(key);
        match self.find_raw(key, &variable) {
            Some((text, source)) => match text.parse::<T>() {
                Ok(value) => {
                    self.record_effective(key, &variable, &value, source);
                    value
                }
                Err(error) => {
                    self.problems.push(format!("{key} (from {}): {error}", source.as_str()));
                    default
                }
            },
            None => {
                self.record_effective(key, &variable, &default, ConfigValueSource::Default);
                default
            }
        }
    }

    /// Reads an optional text.
    pub(crate) fn optional_text(&mut self, key: &'static str) -> Option<String> {
        let variable = env_variable_name(key);
        let found = self.find_raw(key, &variable);
        let (shown, source) = match &found {
            Some((text, source)) => (text.clone(), *source),
            None => (UNSET_VALUE.to_owned(), ConfigValueSource::Default),
        };
        self.record_effective(key, &variable, &shown, source);
        found.map(|(text, _)| text)
    }

    /// Reads a comma-separated list in lower case; empty if it is absent.
    pub(crate) fn lowercase_list(&mut self, key: &'static str) -> Vec<String> {
        let text = self.optional_text(key).unwrap_or_default();
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries.map(str::to_ascii_lowercase).collect()
    }

    /// Reads a comma-separated list of values of any type; a malformed entry is a problem.
    pub(crate) fn parse_list<T: FromStr<Err: std::fmt::Display>>(
        &mut self,
        key: &'static str,
    ) -> Vec<T> {
        let mut values = Vec::new();
        for entry in self.lowercase_list(key) {
            match entry.parse::<T>() {
                Ok(value) => values.push(value),
                Err(error) => self.problems.push(format!("{key}: `{entry}`: {error}")),
            }
        }
        values
    }

    /// Reads an integer and clamps it with a warning; the bounds' name is the variable's.
    pub(crate) fn bounded_integer(&mut self, key: &'static str, bounds: BoundedNumber<i64>) -> i64 {
        self.read_bounded(key, bounds.name, |text| bounds.parse_clamped(text), bounds.default)
    }

    /// Reads a float and clamps it with a warning; the bounds' name is the variable's.
    pub(crate) fn bounded_float(&mut self, key: &'static str, bounds: BoundedNumber<f64>) -> f64 {
        self.read_bounded(key, bounds.name, |text| bounds.parse_clamped(text), bounds.default)
    }

    fn read_bounded<T: std::fmt::Display>(
        &mut self,
        key: &'static str,
        variable: &str,
        read: impl Fn(&str) -> (T, Option<TuningNote>),
        default: T,
    ) -> T {
        let (value, source) = match self.find_raw(key, variable) {
            Some((text, source)) => {
                let (value, note) = read(&text);
                self.notes.extend(note);
                (value, source)
            }
            None => (default, ConfigValueSource::Default),
        };
        self.record_effective(key, variable, &value, source);
        value
    }

    /// Reads a secret: from a file that `key_file` names, from the configuration file, or from a variable.
    pub(crate) fn read_secret(
        &mut self,
        key: &'static str,
        key_file: &'static str,
        variable_name: &str,
    ) -> Option<SecretString> {
        let named = self.optional_text(key_file);
        if self.sources.flags.contains_key(key) {
            self.keys.insert(key);
            let problem = "a flag can be read by everybody on this machine";
            self.problems.push(format!("{key}: {problem}; use --set {key_file}=FILE"));
            return None;
        }
        let direct = self.find_raw(key, variable_name);
        let found = match (named, direct) {
            (Some(_), Some((_, ConfigValueSource::File))) => {
                self.problems.push(format!("give {key} or {key_file}, not both"));
                None
            }
            (Some(path), _) => match std::fs::read_to_string(&path) {
                Ok(text) => {
                    Some((text.trim_end_matches(['\r', '\n']).to_owned(), ConfigValueSource::File))
                }
                Err(error) => {
                    self.problems.push(format!("{key_file}: cannot read {path}: {error}"));
                    None
                }
            },
            (None, direct) => direct,
        };
        match found {
            Some((text, source)) => {
                self.record_effective(key, variable_name, crate::redact::MASK, source);
                Some(text.into())
            }
            None => {
                let source = ConfigValueSource::Default;
                self.record_effective(key, variable_name, UNSET_VALUE, source);
                None
            }
        }
    }

    /// Adds a problem of values that contradict each other.
    pub(crate) fn add_problem(&mut self, problem: String) {
        self.problems.push(problem);
    }

    /// Returns the effective settings, or all problems.
    pub(crate) fn finish_reading(
        mut self,
    ) -> Result<(Vec<EffectiveSetting>, Vec<TuningNote>), Vec<String>> {
        let unknown = |key: &&String| !self.keys.contains(key.as_str());
        for key in self.sources.flags.keys().filter(unknown) {
            self.problems.push(format!("{key} (from flag): there is no such key"));
        }
        for key in self.sources.file.keys().filter(unknown) {
            self.problems.push(format!("{key} (from file): there is no such key"));
        }
        for name in self.sources.environment.keys() {
            // Kubernetes sets such variables in every pod beside a service called `cynode`.
            let cluster = name.starts_with("CYNODE_SERVICE_") || name.starts_with("CYNODE_PORT");
            let ours = name.starts_with("CYNODE_")
                && !cluster
                && !NON_SETTING_VARIABLES.contains(&name.as_str());
            if ours && !self.variables.contains(name) {
                self.problems.push(format!("{name} (from environment): there is no such variable"));
            }
        }
        if self.problems.is_empty() { Ok((self.effective, self.notes)) } else { Err(self.problems) }
    }
}

/// Returns the environment variable of a key: `server.listen` is `CYNODE_SERVER_LISTEN`.
fn env_variable_name(key: &str) -> String {
    format!("CYNODE_{}", key.replace('.', "_").to_uppercase())
}
