//! Whether the service can do its work.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The process answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthStatus {
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
    pub checks: Vec<ReadinessCheck>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ReadinessCheck)]
pub struct ReadinessCheck {
    /// What.
    pub name: String,
    /// How it stands.
    pub status: ReadinessStatus,
    /// What was seen.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// What to type, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Whether no task can be done while it fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocks_work: bool,
}

/// How a thing that was looked at stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadinessStatus {
    /// Good.
    Ok,
    /// Usable, but somebody should look.
    Warning,
    /// Not usable.
    Failed,
}

impl ReadinessCheck {
    /// A thing that is good.
    pub fn passed_check(name: &str, detail: impl Into<String>) -> Self {
        Self::new(name, ReadinessStatus::Ok, detail.into(), None)
    }

    /// A thing that works but needs a look.
    pub fn warning_check(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(name, ReadinessStatus::Warning, detail.into(), Some(fix.into()))
    }

    /// A thing that does not work.
    pub fn failed_check(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(name, ReadinessStatus::Failed, detail.into(), Some(fix.into()))
    }

    /// The same, with what to type.
    #[must_use]
    pub fn with_commands<T: Into<String>>(mut self, commands: impl IntoIterator<Item = T>) -> Self {
        self.commands = commands.into_iter().map(Into::into).collect();
        self
    }

    /// The same: no task can be done while it fails.
    #[must_use]
    pub fn with_blocking(mut self) -> Self {
        self.blocks_work = self.status == ReadinessStatus::Failed;
        self
    }

    fn new(name: &str, status: ReadinessStatus, detail: String, fix: Option<String>) -> Self {
        Self { name: name.into(), status, detail, fix, commands: Vec::new(), blocks_work: false }
    }
}

impl From<Vec<ReadinessCheck>> for Readiness {
    fn from(checks: Vec<ReadinessCheck>) -> Self {
        let ready = checks.iter().all(|check| check.status != ReadinessStatus::Failed);
        Self { ready, checks }
    }
}
