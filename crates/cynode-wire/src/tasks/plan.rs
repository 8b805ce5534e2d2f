//! Plans, what people said about them, and how waits for people ended.

use cynode_core::workflow::{instructions::InstructionKind, waits::WaitReason};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// What a person said about the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanFeedback {
    /// What kind of instruction it was.
    #[schema(value_type = InstructionKindView)]
    pub kind: InstructionKind,
    /// What was said.
    pub text: String,
}

/// How a wait was ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedWait {
    /// What was waited for.
    #[schema(value_type = WaitReasonView)]
    pub reason: WaitReason,
    /// `woken`, `approved`, `rejected`, `answered`, `resumed`, `expired` or `cancelled`.
    pub resolution: WaitResolution,
    /// What a person was asked, when they were asked something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// What the person said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitResolution {
    /// What was waited for has come.
    Woken,
    /// A person said yes.
    Approved,
    /// A person said no.
    Rejected,
    /// A person answered.
    Answered,
    /// A person ended the pause.
    Resumed,
    /// Nobody came in time.
    Expired,
    /// The task was stopped.
    Cancelled,
}

impl WaitResolution {
    const ALL: [Self; 7] = [
        Self::Woken,
        Self::Approved,
        Self::Rejected,
        Self::Answered,
        Self::Resumed,
        Self::Expired,
        Self::Cancelled,
    ];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Woken => "woken",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Answered => "answered",
            Self::Resumed => "resumed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    /// The resolution of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resolution| resolution.as_str() == name)
    }
}

/// [`Plan`] for the document.
#[derive(ToSchema)]
#[schema(as = Plan)]
pub struct PlanView {
    /// The units.
    pub steps: Vec<PlannedUnitView>,
    /// What the plan takes for granted.
    pub assumptions: Vec<String>,
}

/// [`PlannedUnit`] for the document.
#[derive(ToSchema)]
#[schema(as = PlannedUnit)]
pub struct PlannedUnitView {
    /// Its name, unique in the task.
    pub key: String,
    /// What is to be done.
    pub title: String,
    /// The units that must be done before it.
    pub depends_on: Vec<String>,
    /// What the job is given.
    pub payload: Value,
}

/// Names of [`WaitReason`] for the document.
#[derive(ToSchema)]
#[schema(as = WaitReason, rename_all = "snake_case")]
pub enum WaitReasonView {
    /// A job that is out.
    Job,
    /// A person's yes to the plan.
    Approval,
    /// A person's answer to a question.
    HumanInput,
    /// A person paused the task.
    Paused,
    /// The time of the next attempt.
    Retry,
    /// A provider's quota.
    Quota,
    /// An agent that is not connected.
    Agent,
}

/// Names of [`InstructionKind`] for the document.
#[derive(ToSchema)]
#[schema(as = InstructionKind, rename_all = "snake_case")]
pub enum InstructionKindView {
    /// Stop at the next step and wait.
    Pause,
    /// Go on after a pause.
    Resume,
    /// Give the task up.
    Abort,
    /// Make the plan anew with this feedback.
    Revise,
    /// Do this too.
    ExpandScope,
    /// Leave this out.
    ReduceScope,
}
