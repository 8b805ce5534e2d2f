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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn there_are_eight_kinds_of_reports_and_no_other() {
        let names = ReportKind::ALL.map(ReportKind::as_str);
        let eight = [
            "work_completed",
            "review_approved",
            "review_changes_requested",
            "tests_passed",
            "tests_failed",
            "work_blocked",
            "needs_clarification",
            "request_human_input",
        ];
        assert_eq!(names, eight, "S004-060");
        for kind in ReportKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(ReportKind::from_name(kind.as_str()), Some(kind));
        }
        let other = serde_json::from_value::<ReportKind>(json!("all_is_well")).unwrap_err();
        let expected = eight.map(|name| format!("`{name}`")).join(", ");
        let refusal = format!("unknown variant `all_is_well`, expected one of {expected}");
        assert_eq!(other.to_string(), refusal, "S004-060: there is no ninth");
    }

    #[test]
    fn a_report_carries_the_payload_of_its_kind_and_no_other() {
        use ReportKind::{
            NeedsClarification, RequestHumanInput, ReviewApproved, ReviewChangesRequested,
            TestsFailed, TestsPassed, WorkBlocked, WorkCompleted,
        };
        let stored = |kind: ReportKind, details: &Value| {
            serde_json::to_value(kind.parse_payload(details.clone()).unwrap()).unwrap()
        };
        let work =
            json!({ "files_modified": ["src/x.rs"], "artifacts": ["docs/x.md"], "notes": ["n"] });
        assert_eq!(stored(WorkCompleted, &work), work, "S004-061, S004-070: what was done");
        let issue = json!({ "description": "wrong", "file_location": "src/x.rs:4", "how_to_fix": "turn it round" });
        let review = json!({ "critical_issues": [issue], "major_issues": [], "minor_issues": [], "summary": "s" });
        let with_verdict = |verdict: &str| {
            let mut review = review.clone();
            review["verdict"] = json!(verdict);
            review
        };
        let approved = stored(ReviewApproved, &review);
        assert_eq!(approved, with_verdict("approved"), "S004-062: the review passed");
        let refused = stored(ReviewChangesRequested, &review);
        let changes = with_verdict("changes_requested");
        assert_eq!(refused, changes, "S004-063: the issues, with feedback");
        let passed = json!({ "passed": 4, "failed": 0, "command": "cargo test", "failures": [] });
        assert_eq!(stored(TestsPassed, &passed), passed, "S004-064, S004-070: all tests pass");
        let failed =
            json!({ "passed": 3, "failed": 1, "command": "cargo test", "failures": ["sums"] });
        assert_eq!(stored(TestsFailed, &failed), failed, "S004-065, S004-070: what failed");
        let blocker = json!({ "needs": "a compiler", "tried": ["make"] });
        assert_eq!(stored(WorkBlocked, &blocker), blocker, "S004-066, S004-070: what is missing");
        let question = json!({ "options": ["red", "blue"] });
        let asked = stored(NeedsClarification, &question);
        assert_eq!(asked, question, "S004-067, S004-070: what is unclear");
        let forms = [
            (WorkCompleted, &work),
            (ReviewApproved, &review),
            (TestsPassed, &passed),
            (WorkBlocked, &blocker),
            (NeedsClarification, &question),
        ];
        for kind in ReportKind::ALL {
            let own = match kind {
                WorkCompleted => WorkCompleted,
                ReviewApproved | ReviewChangesRequested => ReviewApproved,
                TestsPassed | TestsFailed => TestsPassed,
                WorkBlocked => WorkBlocked,
                NeedsClarification | RequestHumanInput => NeedsClarification,
            };
            for (form_of, form) in forms {
                let accepted = kind.parse_payload(form.clone()).is_ok();
                assert_eq!(accepted, form_of == own, "S004-081: {kind:?} and {form}");
            }
        }
    }
}
