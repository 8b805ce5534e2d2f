//! Evidence on the wire: what the orchestrator's own checks showed of a commit.

use cynode_core::{
    evidence::{Check, Odd, Tally, told_exit},
    ids::EvidenceId,
    workflow::plan::UnitKey,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    reports::ReviewFeedback,
    tasks::CheckView,
    workflow::{Finding, Severity},
};

/// What was shown of a task, and what everybody found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskEvidence {
    /// What checks showed, oldest first.
    pub evidence: Vec<EvidenceView>,
    /// What checks, analysts, reviewers and testers found about the units as they stand, as one review.
    pub feedback: ReviewFeedback,
}

/// What is known of one attempt of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvidenceView {
    /// Its id.
    #[schema(value_type = String)]
    pub evidence_id: EvidenceId,
    /// The unit.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// The attempt.
    pub attempt: u32,
    /// The commit that the checks ran on.
    pub commit: Option<String>,
    /// Where it stands.
    pub state: EvidenceState,
    /// Whether another commit of the task has come since: then it shows nothing any more.
    pub stale: bool,
    /// The checks, in the order in which they ran.
    pub checks: Vec<CheckResult>,
    /// Why the result was taken though a check did not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waived: Option<String>,
    /// Why nothing could be shown, when the sandbox itself came to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// How often it was begun.
    pub tries: u32,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub opened_at: OffsetDateTime,
    /// When it was complete.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub ended_at: Option<OffsetDateTime>,
}

/// Where evidence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceState {
    /// Checks run, or wait for a place.
    Gathering,
    /// Every check held.
    Passed,
    /// A check did not hold.
    Failed,
    /// The sandbox came to nothing: nothing is shown.
    Unable,
}

impl EvidenceState {
    const ALL: [Self; 4] = [Self::Gathering, Self::Passed, Self::Failed, Self::Unable];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gathering => "gathering",
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Unable => "unable",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// What a check came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckResult {
    /// The check.
    #[schema(value_type = CheckView)]
    pub check: Check,
    /// What its runs amount to: `again`, `passed`, `flaky` or `failed`.
    #[schema(value_type = String)]
    pub tally: Tally,
    /// How often it ran.
    pub rounds: u32,
    /// The exit code of the last run, 128 and the signal when one ended it; none when a limit ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The SHA-256 of all that the last run wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// The end of what the last run wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub excerpt: String,
    /// How long the last run took.
    #[serde(default)]
    pub milliseconds: u64,
}

/// What was shown of a result, for whoever judges it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Evidence {
    /// The commit that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// What the checks came to.
    pub checks: Vec<CheckResult>,
    /// What the change did that has to be answered for.
    #[schema(value_type = Vec<serde_json::Value>)]
    pub odd: Vec<Odd>,
}

/// Most characters of a check's words in a finding.
const MOST_WORDS: usize = 1200;

/// Most findings that a person is shown in a question.
const MOST_LISTED: usize = 10;

impl Evidence {
    /// What was found, worst first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for result in &self.checks {
            let told = result.check.told();
            let (severity, text) = match result.tally {
                Tally::Passed => continue,
                Tally::Flaky => (
                    Severity::Minor,
                    format!("the check `{told}` holds only sometimes ({} runs)", result.rounds),
                ),
                Tally::Before => (
                    Severity::Minor,
                    format!(
                        "the check `{told}` does not hold, and did not before the change either"
                    ),
                ),
                Tally::Failed => (Severity::Critical, failed(&told, result)),
                Tally::Again => {
                    (Severity::Critical, format!("the check `{told}` was not run to an end"))
                }
            };
            findings.push(Finding::new(severity, text));
        }
        for odd in &self.odd {
            let line = if let Odd::MergeMarks { line, .. } = odd { *line } else { 1 };
            let path = Some(odd.path()).filter(|path| !path.is_empty());
            findings.push(Finding {
                at: path.map(|path| format!("{path}:{line}")),
                how_to_fix: Some(odd.remedy().to_owned()),
                ..Finding::new(Severity::Critical, odd.told())
            });
        }
        findings.sort_by_key(|finding| finding.severity);
        findings
    }

    /// What a person is shown of what speaks against the result, and how much more there is.
    pub fn listed(&self) -> (Vec<Finding>, usize) {
        let mut found = self.findings();
        found.retain(|finding| finding.severity == Severity::Critical);
        let more = found.len().saturating_sub(MOST_LISTED);
        found.truncate(MOST_LISTED);
        (found, more)
    }

    /// What is odd among what a person is shown: who takes the result as it is takes this for the whole task, and nothing else.
    pub fn listed_odd(&self) -> &[Odd] {
        let grave = |it: &&CheckResult| matches!(it.tally, Tally::Failed | Tally::Again);
        let room = MOST_LISTED.saturating_sub(self.checks.iter().filter(grave).count());
        &self.odd[..self.odd.len().min(room)]
    }

    /// Whether nothing was looked at.
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty() && self.odd.is_empty()
    }

    /// Whether nothing speaks against the result.
    pub fn holds(&self) -> bool {
        self.odd.is_empty() && self.checks.iter().all(|it| it.tally.is_good())
    }
}

fn failed(told: &str, result: &CheckResult) -> String {
    let ended = match result.exit_code {
        Some(code) if code == result.check.expect_exit => {
            "the words it must write are missing".to_owned()
        }
        Some(code) => format!("{}, expected {}", told_exit(code), result.check.expect_exit),
        None => "ended by a limit, or never begun".to_owned(),
    };
    let from = result.excerpt.char_indices().rev().nth(MOST_WORDS).map_or(0, |(at, _)| at);
    let words = result.excerpt[from..].trim();
    if words.is_empty() {
        format!("the check `{told}` does not hold ({ended})")
    } else {
        format!("the check `{told}` does not hold ({ended}):\n{words}")
    }
}
