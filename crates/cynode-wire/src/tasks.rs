//! Tasks on the wire.

pub mod events;
pub mod policies;
pub mod preferences;
pub mod projects;

use cynode_core::{
    budget::{Amount, Budget},
    evidence::EvidenceCheck,
    ids::{ProjectId, TaskId, UserId},
    names::{ProfileName, Prose, TaskName},
    tasks::{Criterion, Task, TaskState, TaskStateName},
    workflow::handoffs::TaskRefinement,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Asks for a piece of work.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTask {
    /// Where it lives.
    #[schema(value_type = String, example = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub project_id: ProjectId,
    /// Its name, unique in the project; absent: made from the description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "fix-login")]
    pub name: Option<TaskName>,
    /// What is to be done.
    #[schema(value_type = String)]
    pub description: Prose,
    /// What must be shown for it to be done.
    #[serde(default)]
    #[schema(value_type = Vec<CriterionView>)]
    pub acceptance_criteria: Vec<Criterion>,
    /// What it may spend. A task without any limit gets the installation's default (setting `budget.task_default`).
    #[serde(default)]
    #[schema(value_type = BudgetView)]
    pub budget: Budget,
    /// What must be completed before it may start.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub depends_on: Vec<TaskId>,
    /// Whether a person is asked about the plan; absent: what the preference `workflow.approve_plan` says. `false` is a yes in
    /// advance. Agents cannot send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approve_plan: Option<bool>,
    /// The profile that its agents work under; absent: that of the preferences, else `default`. A task of an agent is done under the
    /// profile that the agent's own work names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "offline")]
    pub profile: Option<ProfileName>,
}

/// One thing that must be shown.
#[derive(ToSchema)]
#[schema(as = Criterion)]
pub struct CriterionView {
    /// The statement that must hold.
    pub text: String,
    /// What shows that it holds; without it, a reader's judgement does.
    pub check: Option<EvidenceCheck>,
}

/// A ceiling in money and in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BudgetView {
    /// Most money, in millionths of the installation's currency.
    #[schema(value_type = Option<u64>)]
    pub max_cost_micros: Option<Amount>,
    /// Most model tokens, in and out together.
    #[schema(value_type = Option<u64>)]
    pub max_tokens: Option<Amount>,
}

/// Names of [`TaskStateName`] for the document.
#[derive(ToSchema)]
#[schema(as = TaskState, rename_all = "snake_case")]
pub enum TaskStateView {
    /// Accepted and not yet started.
    Queued,
    /// A workflow drives it.
    Running,
    /// Its acceptance criteria were shown to hold.
    Completed,
    /// It was given up.
    Failed,
    /// A person stopped it.
    Cancelled,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// Its id.
    #[schema(value_type = String, example = "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub id: TaskId,
    /// Where it lives.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// Its name, unique in the project.
    #[schema(value_type = String)]
    pub name: TaskName,
    /// What is to be done.
    #[schema(value_type = String)]
    pub description: Prose,
    /// What must be shown for it to be done.
    #[schema(value_type = Vec<CriterionView>)]
    pub acceptance_criteria: Vec<Criterion>,
    /// What it may spend.
    pub budget: BudgetView,
    /// The profile that its agents work under, where it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub profile: Option<ProfileName>,
    /// Where it stands.
    #[schema(value_type = TaskStateView)]
    pub state: TaskStateName,
    /// When a workflow took it.
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
    /// Why it was given up.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<String>,
    /// Whether an agent wrote it last and no person has reviewed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreviewed: bool,
    /// What must be completed before it may start.
    #[schema(value_type = Vec<String>)]
    pub depends_on: Vec<TaskId>,
    /// Who asked for it.
    #[schema(value_type = String)]
    pub created_by: UserId,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it last changed.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
    /// How the project manager understood it; only where one task is looked at, and once it is planned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub refinement: Option<TaskRefinement>,
}

impl From<Task> for TaskView {
    fn from(task: Task) -> Self {
        let state = task.state.state_name();
        let (started_at, ended_at, failure) = match task.state {
            TaskState::Queued => (None, None, None),
            TaskState::Running { since } => (Some(since), None, None),
            TaskState::Completed { at } | TaskState::Cancelled { at } => (None, Some(at), None),
            TaskState::Failed { at, reason } => (None, Some(at), Some(reason)),
        };
        let Budget { max_cost_micros, max_tokens } = task.budget;
        Self {
            id: task.id,
            project_id: task.project,
            name: task.name,
            description: task.description,
            acceptance_criteria: task.acceptance_criteria,
            budget: BudgetView { max_cost_micros, max_tokens },
            profile: task.profile,
            state,
            started_at,
            ended_at,
            failure,
            unreviewed: task.unreviewed,
            depends_on: task.depends_on,
            created_by: task.created_by,
            created_at: task.created_at,
            updated_at: task.updated_at,
            refinement: None,
        }
    }
}

/// What a task is expected to cost and to take, from completed tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskEstimate {
    /// Tasks that the estimate is made from.
    pub basis: EstimateBasis,
    /// Number of those tasks.
    pub samples: u32,
    /// Cost, in millionths of the installation's currency; left out when nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<EstimateRange>,
    /// Time from start to end, in seconds; left out when nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<EstimateRange>,
}

/// Tasks that an estimate is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EstimateBasis {
    /// Completed tasks of the same project.
    Project,
    /// Completed tasks of all projects.
    Installation,
    /// Too few tasks have been completed.
    Unknown,
}

/// The expected range of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EstimateRange {
    /// Half of the tasks stayed below it.
    pub p50: u64,
    /// Nine of ten tasks stayed below it.
    pub p90: u64,
}
