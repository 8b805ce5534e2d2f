//! Whether the service can do its work.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The process answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: String,
    /// The version of the program.
    pub version: String,
}

/// Whether everything that is needed is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// Whether requests can be served.
    pub ready: bool,
    /// What was looked at.
    pub checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ReadinessCheck)]
pub struct Check {
    /// What.
    pub name: String,
    /// How it stands.
    pub status: CheckStatus,
    /// What was seen.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// How a thing that was looked at stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// Good.
    Ok,
    /// Usable, but somebody should look.
    Warning,
    /// Not usable.
    Failed,
}

impl Check {
    /// A thing that is good.
    pub fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.into(), status: CheckStatus::Ok, detail: detail.into(), fix: None }
    }

    /// A thing that works but needs a look.
    pub fn warning(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        let status = CheckStatus::Warning;
        Self { name: name.into(), status, detail: detail.into(), fix: Some(fix.into()) }
    }

    /// A thing that does not work.
    pub fn failed(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        let status = CheckStatus::Failed;
        Self { name: name.into(), status, detail: detail.into(), fix: Some(fix.into()) }
    }
}

impl From<Vec<Check>> for Readiness {
    fn from(checks: Vec<Check>) -> Self {
        let ready = checks.iter().all(|check| check.status != CheckStatus::Failed);
        Self { ready, checks }
    }
}
