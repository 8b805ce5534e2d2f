//! Evidence on the wire: what the orchestrator's own checks showed of a commit.

use cynode_core::workflow::{
    evidence::{BaseChecks, EvidenceView},
    findings::ReviewFeedback,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What was shown of a task, and what everybody found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskEvidence {
    /// What checks showed, oldest first.
    pub evidence: Vec<EvidenceView>,
    /// What the checks came to on the base commit, before any change; left out when they were not tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseChecks>,
    /// What checks, analysts, reviewers and testers found about the units as they stand, as one review.
    pub feedback: ReviewFeedback,
}
