//! What happened to a task, for people.

use cynode_core::{
    delivery::PullRequestState,
    ids::{InstructionId, JobId, PullRequestId, RunId, TaskId, WaitId},
    names::Prose,
    tasks::TaskStateName,
    workflow::{WorkflowStep, instructions::InstructionKind, waits::WaitReason},
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    delivery::PullRequestStateView,
    tasks::{
        TaskStateView,
        plan::{InstructionKindView, WaitReasonView},
    },
    workflow::{UnitView, WorkflowStepView},
};

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
    /// The waits, in order.
    pub waits: Vec<WaitEntry>,
    /// The plan's units.
    pub units: Vec<UnitView>,
    /// The jobs, in order.
    pub jobs: Vec<JobEntry>,
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

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepEntry {
    /// Its number.
    pub sequence: i64,
    /// The node that ran.
    pub node: String,
    /// What it found.
    pub verdict: String,
    /// The unit it was about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Which attempt of the node.
    pub attempt: u32,
    /// Who did it.
    pub actor: String,
    /// How long it took.
    pub duration_ms: u64,
    /// What it cost.
    pub cost_micros: u64,
    /// Why it failed, waits, or is redone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

/// One wait of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitEntry {
    /// Which it is; an answer may name it, so that it answers nothing else.
    #[schema(value_type = String)]
    pub wait_id: WaitId,
    /// What was waited for.
    #[schema(value_type = WaitReasonView)]
    pub reason: WaitReason,
    /// Who can end it.
    pub owner: String,
    /// What the owner is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Since when.
    #[serde(with = "time::serde::rfc3339")]
    pub opened_at: OffsetDateTime,
    /// When nobody is waited for any more.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub expires_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub resolved_at: Option<OffsetDateTime>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolution: Option<String>,
    /// What the person said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// One job of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobEntry {
    /// The job.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// The unit.
    pub unit: String,
    /// Which attempt.
    pub attempt: u32,
    /// Where it stands.
    pub state: String,
    /// Who works or worked on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Since when it waits or waited.
    #[serde(with = "time::serde::rfc3339")]
    pub queued_at: OffsetDateTime,
    /// When it was claimed.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub ended_at: Option<OffsetDateTime>,
}

/// Tells a running task something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InstructTask {
    /// What is to be done.
    #[schema(value_type = InstructionKindView)]
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
    #[schema(value_type = InstructionKindView)]
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
