//! What agents report to the project manager: eight kinds, each with a payload of its own. A report is a claim.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    agents::AgentRole,
    ids::JobId,
    workflow::findings::{ReviewFeedback, ReviewOutcome},
};

/// What kind of report it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportKind {
    /// The work is done.
    WorkCompleted,
    /// A review found it good.
    ReviewApproved,
    /// A review wants something changed.
    ReviewChangesRequested,
    /// Every test passed.
    TestsPassed,
    /// A test failed.
    TestsFailed,
    /// The work cannot go on.
    WorkBlocked,
    /// What is asked for is not clear.
    NeedsClarification,
    /// A person must decide.
    RequestHumanInput,
}

impl ReportKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::WorkCompleted,
        Self::ReviewApproved,
        Self::ReviewChangesRequested,
        Self::TestsPassed,
        Self::TestsFailed,
        Self::WorkBlocked,
        Self::NeedsClarification,
        Self::RequestHumanInput,
    ];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WorkCompleted => "work_completed",
            Self::ReviewApproved => "review_approved",
            Self::ReviewChangesRequested => "review_changes_requested",
            Self::TestsPassed => "tests_passed",
            Self::TestsFailed => "tests_failed",
            Self::WorkBlocked => "work_blocked",
            Self::NeedsClarification => "needs_clarification",
            Self::RequestHumanInput => "request_human_input",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether the project manager must decide something while the agent still works.
    pub const fn needs_decision(self) -> bool {
        matches!(self, Self::WorkBlocked | Self::NeedsClarification | Self::RequestHumanInput)
    }

    /// Reads what goes with a report of this kind; what is wrong is told in words.
    pub fn parse_payload(self, details: Value) -> Result<ReportPayload, String> {
        let details =
            if details.is_null() { Value::Object(serde_json::Map::new()) } else { details };
        let wrong = |error: serde_json::Error| format!("`details` of {}: {error}", self.as_str());
        Ok(match self {
            Self::WorkCompleted => {
                ReportPayload::Completion(serde_json::from_value(details).map_err(wrong)?)
            }
            Self::ReviewApproved | Self::ReviewChangesRequested => {
                let mut feedback: ReviewFeedback =
                    serde_json::from_value(details).map_err(wrong)?;
                feedback.verdict = match self {
                    Self::ReviewApproved => ReviewOutcome::Approved,
                    _ => ReviewOutcome::ChangesRequested,
                };
                ReportPayload::Review(feedback)
            }
            Self::TestsPassed | Self::TestsFailed => {
                ReportPayload::Tests(serde_json::from_value(details).map_err(wrong)?)
            }
            Self::WorkBlocked => {
                ReportPayload::Blocker(serde_json::from_value(details).map_err(wrong)?)
            }
            Self::NeedsClarification | Self::RequestHumanInput => {
                ReportPayload::Question(serde_json::from_value(details).map_err(wrong)?)
            }
        })
    }
}

/// What goes with a report, by its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ReportPayload {
    /// Of `work_completed`.
    Completion(CompletionInfo),
    /// Of `review_approved` and `review_changes_requested`.
    Review(ReviewFeedback),
    /// Of `tests_passed` and `tests_failed`.
    Tests(TestResults),
    /// Of `work_blocked`.
    Blocker(BlockerInfo),
    /// Of `needs_clarification` and `request_human_input`.
    Question(OpenQuestion),
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompletionInfo {
    /// The files that were changed.
    pub files_modified: Vec<String>,
    /// What was left behind for others, by path.
    pub artifacts: Vec<String>,
    /// What others should know.
    pub notes: Vec<String>,
}

/// How tests went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TestResults {
    /// How many passed.
    pub passed: u32,
    /// How many failed.
    pub failed: u32,
    /// The command that ran them.
    pub command: String,
    /// What failed, one by one.
    pub failures: Vec<String>,
}

/// What stands in the way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BlockerInfo {
    /// What is missing.
    pub needs: String,
    /// What was tried.
    pub tried: Vec<String>,
}

/// What is not clear.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenQuestion {
    /// The ways it could be understood or decided.
    pub options: Vec<String>,
}

/// A report that was kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportView {
    /// Its id.
    pub report_id: Uuid,
    /// The role of the agent, from its token.
    #[schema(value_type = String)]
    pub agent_role: AgentRole,
    /// The job it worked on.
    #[schema(value_type = Option<String>)]
    pub job_id: Option<JobId>,
    /// The unit of the plan.
    pub unit: Option<String>,
    /// What kind.
    pub kind: ReportKind,
    /// In a few sentences.
    pub summary: String,
    /// What goes with it, of the form of its kind.
    pub details: Value,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub reported_at: OffsetDateTime,
}
