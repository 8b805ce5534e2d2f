//! Jobs, as whoever works on them sees them.

use cynode_core::{
    ids::JobId,
    workflow::{jobs::ClaimedJob, units::JobState},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

/// Asks for work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimJobs {
    /// Names this claim: sent again, it gives the same jobs and no others.
    pub claim_id: Uuid,
    /// Most jobs, 1 to 100.
    pub max_jobs: u16,
    /// How long they may be silent, 1 to 3600 seconds; 60 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u32>,
    /// How long to wait for work when there is none, at most 20000; 0 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u32>,
}

/// The jobs of a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClaimedJobs {
    /// The jobs, oldest first.
    pub jobs: Vec<ClaimedJob>,
}

/// Says that a job is being worked on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobHeartbeat {
    /// The token of the claim.
    pub fencing_token: i64,
    /// How long it may be silent from now, 1 to 3600 seconds; 60 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u32>,
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobReport {
    /// The token of the claim.
    pub fencing_token: i64,
    /// Whether the worker says it succeeded. A claim, not evidence.
    pub outcome: JobOutcome,
    /// What the worker reports.
    pub result: Value,
}

/// What a worker says about its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// It was done.
    Succeeded,
    /// It was not.
    Failed,
}

impl JobOutcome {
    /// The state that follows.
    pub const fn job_state(self) -> JobState {
        match self {
            Self::Succeeded => JobState::Succeeded,
            Self::Failed => JobState::Failed,
        }
    }
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobStatusView {
    /// Its id.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// Where it stands.
    pub state: JobState,
}
