//! The address of the installation and the session: flags, then the environment, then a file that only its owner may read, then
//! a credential helper. This is the only place that reads the environment.

use std::{
    ffi::OsString,
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use crate::failure::{CliError, CliErrorKind, Result};

/// The default address of `cynode up`.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:12080";

/// The relevant environment variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct CliEnvironment {
    pub(crate) url: Option<String>,
    pub(crate) token: Option<SecretString>,
    /// Certificate authority of the installation.
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) no_colour: bool,
    /// Whether the terminal only supports plain lines.
    pub(crate) dumb: bool,
    pub(crate) editor: Option<String>,
    pub(crate) pager: Option<String>,
    directory: Option<PathBuf>,
}

impl CliEnvironment {
    /// Reads the environment.
    #[expect(
        clippy::disallowed_methods,
        reason = "this module is the one that reads the environment"
    )]
    pub(crate) fn from_process() -> Self {
        let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let text = |name: &str| given(name).and_then(|value| value.into_string().ok());
        let home = given("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = home.or_else(|| given("HOME").map(|home| PathBuf::from(home).join(".config")));
        let dumb = given("TERM") == Some(OsString::from("dumb"));
        Self {
            url: text("CYNORK_URL"),
            token: text("CYNORK_TOKEN").map(SecretString::from),
            ca_file: given("CYNORK_CA_FILE").map(PathBuf::from),
            no_colour: given("NO_COLOR").is_some() || dumb,
            dumb,
            editor: text("VISUAL").or_else(|| text("EDITOR")),
            pager: text("PAGER"),
            directory: home.map(|home| home.join("cynork")),
        }
    }
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredConfig {
    /// Address of the installation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// The session token, unless a helper stores it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// The credential helper: a program and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credential_helper: Option<Vec<String>>,
    /// Certificate authority of the installation, if the machine does not trust it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Whether clear text may go beyond this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) insecure: Option<bool>,
    /// The default project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<String>,
}

/// The file and its content.
#[derive(Clone, Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    pub(crate) kept: StoredConfig,
}

impl ConfigFile {
    /// Reads the file, if it exists.
    pub(crate) fn load_config(
        named: Option<PathBuf>,
        environment: &CliEnvironment,
    ) -> Result<Self> {
        let path = named
            .or_else(|| environment.directory.as_ref().map(|it| it.join("config.toml")))
            .ok_or_else(|| {
                CliError::new(
                    CliErrorKind::Usage,
                    "there is no home directory to keep a configuration in",
                )
                .with_fix("name a file with --config")
            })?;
        let kept = match fs::read_to_string(&path) {
            Ok(text) => {
                ensure_private(&path)?;
                toml::from_str(&text).map_err(|error| {
                    let line = error.message().to_owned();
                    CliError::new(
                        CliErrorKind::Usage,
                        format!("{} cannot be read: {line}", path.display()),
                    )
                    .with_fix("mend the file, or remove it and log in again")
                })?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => StoredConfig::default(),
            Err(error) => {
                let what = format!("{} cannot be read: {error}", path.display());
                return Err(CliError::new(CliErrorKind::Usage, what));
            }
        };
        Ok(Self { path, kept })
    }

    /// Returns the path of the file.
    pub(crate) fn file_path(&self) -> &Path {
        &self.path
    }

    /// Returns the stored session token.
    pub(crate) fn load_token(&self) -> Result<Option<SecretString>> {
        if let Some(token) = &self.kept.token {
            return Ok(Some(token.clone().into()));
        }
        let Some(helper) = &self.kept.credential_helper else { return Ok(None) };
        let answer = run_helper(helper, &HelperRequest { action: "get", secret: None })?;
        Ok(answer.secret.map(SecretString::from))
    }

    /// Stores or removes the session token; in the helper if there is one.
    pub(crate) fn store_token(&mut self, token: Option<&SecretString>) -> Result<()> {
        let secret = token.map(|token| token.expose_secret().to_owned());
        if let Some(helper) = &self.kept.credential_helper {
            self.kept.token = None;
            let action = if secret.is_some() { "store" } else { "erase" };
            run_helper(helper, &HelperRequest { action, secret })?;
        } else {
            self.kept.token = secret;
        }
        self.write_config()
    }

    /// Writes the file atomically; only its owner may read it.
    pub(crate) fn write_config(&self) -> Result<()> {
        let failed = |error: std::io::Error| {
            CliError::internal_error(format!("{} cannot be written: {error}", self.path.display()))
        };
        let text = toml::to_string(&self.kept)
            .map_err(|error| CliError::internal_error(error.to_string()))?;
        if let Some(parent) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        }
        let beside = self.path.with_extension(format!("{}.new", std::process::id()));
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)
            .map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&beside, &self.path).map_err(failed)
    }
}

/// Refuses a file with a session token that others may read.
fn ensure_private(path: &Path) -> Result<()> {
    let mode = fs::metadata(path).map_or(0, |it| it.permissions().mode());
    if mode & 0o077 != 0 {
        let what = format!("{} may be read by others (mode {:o})", path.display(), mode & 0o777);
        let fix = format!("chmod 600 {}", path.display());
        return Err(CliError::new(CliErrorKind::Refused, what).with_fix(fix));
    }
    Ok(())
}

/// The request to a helper, as one line of JSON.
#[derive(Serialize)]
struct HelperRequest {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

/// The response of a helper, as one line of JSON.
#[derive(Default, Deserialize)]
struct HelperResponse {
    secret: Option<String>,
    error: Option<String>,
}

fn run_helper(helper: &[String], asked: &HelperRequest) -> Result<HelperResponse> {
    let failed = |why: String| {
        CliError::new(CliErrorKind::Refused, format!("the credential helper failed: {why}"))
            .with_fix("see `credential_helper` in the configuration of cynork")
    };
    let Some((program, arguments)) = helper.split_first() else {
        return Err(failed("its command is empty".into()));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("{program}: {error}")))?;
    let line = serde_json::to_string(asked).map_err(|error| failed(error.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        // A helper that does not read its input fails below.
        let _ = writeln!(input, "{line}");
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{program}: {}", output.status)));
    }
    let first = output.stdout.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if first.is_empty() {
        return Ok(HelperResponse::default());
    }
    let answer: HelperResponse =
        serde_json::from_slice(first).map_err(|_| failed("its answer is not JSON".into()))?;
    match answer.error {
        Some(why) => Err(failed(why)),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests;
