//! What happened to a task, for people.

use cynode_core::{
    delivery::PullRequestState,
    ids::{InstructionId, PullRequestId, RunId, TaskId, WaitId},
    names::Prose,
    tasks::TaskStateName,
    workflow::{
        WorkflowStep,
        given_context::GivenContext,
        instructions::InstructionKind,
        timeline::{JobEntry, LeaseTakeover, StepEntry, WaitEntry},
        units::UnitView,
    },
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{delivery::PullRequestStateView, tasks::TaskStateView, workflow::WorkflowStepView};

/// The story of a task's run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskTimeline {
    /// The task.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// The run.
    #[schema(value_type = String)]
    pub run_id: RunId,
    /// The trace that everything about it carries.
    pub trace_id: String,
    /// Where the task stands.
    #[schema(value_type = TaskStateView)]
    pub state: TaskStateName,
    /// The node that is next; none when the run has ended or not begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkflowStepView>)]
    pub node: Option<WorkflowStep>,
    /// One sentence: where it stands and who is needed.
    pub standing: String,
    /// What it waits for and nobody takes, oldest first; empty while all goes on as it should.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stalls: Vec<StallView>,
    /// What came of it, once it has ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// How many retries it has used.
    pub retries_used: u32,
    /// What it has cost so far, in millionths of the installation's currency.
    pub cost_micros: u64,
    /// The steps, in order.
    pub steps: Vec<StepEntry>,
    /// Where another process went on with the run, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub takeovers: Vec<LeaseTakeover>,
    /// The waits, in order.
    pub waits: Vec<WaitEntry>,
    /// The plan's units.
    pub units: Vec<UnitView>,
    /// The jobs, in order.
    pub jobs: Vec<JobEntry>,
    /// What its agents were given beside their questions, in order: records of memory and skills.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<GivenContext>,
    /// What it was delivered as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<PullRequestEntry>,
    /// The graph as a mermaid flowchart, the present node marked.
    pub mermaid: String,
    /// The plan as a mermaid flowchart, each unit with its state.
    pub plan_mermaid: String,
}

/// Work that stands still because nobody takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StallView {
    /// What kind of work.
    pub kind: StallKind,
    /// Since when.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// What is wrong, in a sentence.
    pub detail: String,
    /// What to type, in this order.
    pub commands: Vec<String>,
}

/// What kind of work stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StallKind {
    /// A job that was placed on a node and is not claimed.
    UnclaimedJob,
    /// A job that fits no node.
    UnplacedJob,
    /// A question to the project manager or an analyst that nobody has taken.
    UnclaimedHandoff,
    /// A run that is due and that nobody drives.
    UndrivenRun,
    /// A decision that a model has not answered.
    SlowModel,
}

impl StallKind {
    /// The name on the wire and in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnclaimedJob => "unclaimed_job",
            Self::UnplacedJob => "unplaced_job",
            Self::UnclaimedHandoff => "unclaimed_handoff",
            Self::UndrivenRun => "undriven_run",
            Self::SlowModel => "slow_model",
        }
    }
}

/// What a task was delivered as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PullRequestEntry {
    /// The pull request.
    #[schema(value_type = String)]
    pub id: PullRequestId,
    /// Its number: at the forge, or in the project.
    pub number: i64,
    /// Where people look at it.
    pub url: String,
    /// Where it stands.
    #[schema(value_type = PullRequestStateView)]
    pub state: PullRequestState,
    /// What it is.
    pub title: String,
    /// The branch.
    pub branch: String,
    /// The commit that is offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Why the last attempt to deliver came to nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Tells a running task something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InstructTask {
    /// What is to be done.
    pub kind: InstructionKind,
    /// What is meant; needed to revise, expand and reduce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub text: Option<Prose>,
}

/// An instruction that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstructionReceipt {
    /// Its id; none when it was carried out at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub instruction_id: Option<InstructionId>,
    /// What is to be done.
    pub kind: InstructionKind,
    /// Where the task stands.
    #[schema(value_type = TaskStateView)]
    pub state: TaskStateName,
}

/// Says yes or no to a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovePlan {
    /// Yes or no.
    pub approved: bool,
    /// Why; what should be different, when it is a no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub note: Option<Prose>,
    /// Which wait it is meant for; without it, the one that is open. When another one is open by then, nothing is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub wait_id: Option<WaitId>,
}

/// Answers the question of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerQuestion {
    /// The answer.
    #[schema(value_type = String)]
    pub text: Prose,
    /// Which wait it is meant for; without it, the one that is open. When another one is open by then, nothing is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub wait_id: Option<WaitId>,
}
