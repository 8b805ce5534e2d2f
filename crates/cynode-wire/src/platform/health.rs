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

/// What the server found out about its installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Diagnosis {
    /// The worst state of a check. A check that could not be made does not count.
    pub state: DiagnosisState,
    /// What was checked. A name may occur several times, once for each node or provider.
    pub checks: Vec<DiagnosisCheck>,
}

/// One check of a diagnosis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiagnosisCheck {
    /// Name of the check.
    pub name: String,
    /// Result of the check.
    pub state: DiagnosisState,
    /// What was seen.
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// What to type, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Whether no task can be done while it fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocks_work: bool,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiagnosisState {
    /// The server cannot know it.
    Unknown,
    /// Good.
    Ok,
    /// Usable, but somebody should look.
    Warn,
    /// Not usable.
    Fail,
}

impl DiagnosisCheck {
    /// A check that the server cannot make by itself.
    pub fn unknown_check(name: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: DiagnosisState::Unknown,
            detail: detail.into(),
            fix: Some(fix.into()),
            commands: Vec::new(),
            blocks_work: false,
        }
    }
}

impl From<ReadinessStatus> for DiagnosisState {
    fn from(status: ReadinessStatus) -> Self {
        match status {
            ReadinessStatus::Ok => Self::Ok,
            ReadinessStatus::Warning => Self::Warn,
            ReadinessStatus::Failed => Self::Fail,
        }
    }
}

impl From<ReadinessCheck> for DiagnosisCheck {
    fn from(check: ReadinessCheck) -> Self {
        let ReadinessCheck { name, status, detail, fix, commands, blocks_work } = check;
        Self { name, state: status.into(), detail, fix, commands, blocks_work }
    }
}

impl From<Vec<DiagnosisCheck>> for Diagnosis {
    fn from(checks: Vec<DiagnosisCheck>) -> Self {
        let worst = checks.iter().map(|check| check.state).max();
        let state = worst.map_or(DiagnosisState::Ok, |worst| worst.max(DiagnosisState::Ok));
        Self { state, checks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnosis_is_as_bad_as_its_worst_check_and_the_unknown_does_not_count() {
        let state = |checks: Vec<DiagnosisCheck>| Diagnosis::from(checks).state;
        let unknown = || DiagnosisCheck::unknown_check("backups", "not known", "make some");
        let ok = || DiagnosisCheck::from(ReadinessCheck::passed_check("database", "it answers"));
        let warn = || ReadinessCheck::warning_check("clock", "it is late", "set it").into();
        let fail = || ReadinessCheck::failed_check("disk", "it is full", "make room").into();
        assert_eq!(state(vec![]), DiagnosisState::Ok);
        assert_eq!(state(vec![unknown(), ok()]), DiagnosisState::Ok);
        assert_eq!(state(vec![unknown(), ok(), warn()]), DiagnosisState::Warn);
        assert_eq!(state(vec![fail(), ok(), warn()]), DiagnosisState::Fail);
    }
}
