//! Schedules on the wire: work that is asked for at its time.

use cynode_core::{
    ids::{HandoffId, ProjectId, ScheduleId, TaskId, UserId},
    names::{ProfileName, TaskName},
    schedules::{FiringCause, MissedPolicy, ScheduleAction, ScheduleTrigger},
    tasks::TaskStateName,
    workflow::handoffs::HandoffState,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::tasks::{BudgetView, CriterionView, TaskStateView};

/// [`ScheduleTrigger`] for the document.
#[derive(ToSchema)]
#[schema(as = ScheduleTrigger)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ScheduleTriggerView {
    /// Again and again.
    Cron {
        /// Five fields: minute, hour, day of the month, month, day of the week.
        #[schema(example = "0 9 * * mon")]
        expression: String,
        /// The time zone whose clock it goes by; `UTC` when it is left out.
        #[schema(example = "Europe/Berlin")]
        timezone: Option<String>,
    },
    /// One time.
    Once {
        /// When.
        at: OffsetDateTime,
    },
}

/// [`ScheduleAction`] for the document.
#[derive(ToSchema)]
#[schema(as = ScheduleAction)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ScheduleActionView {
    /// Words, which the project manager makes tasks of each time.
    Words {
        /// What is wanted.
        text: String,
    },
    /// The same task each time, named by the schedule and the time.
    Task {
        /// What is to be done.
        description: String,
        /// What must be shown for it to be done.
        #[schema(value_type = Option<Vec<CriterionView>>)]
        acceptance_criteria: Option<Vec<CriterionView>>,
        /// What each may spend.
        budget: Option<BudgetView>,
    },
}

/// [`MissedPolicy`] for the document.
#[derive(ToSchema)]
#[schema(as = MissedPolicy, rename_all = "snake_case")]
pub enum MissedPolicyView {
    /// Nothing is done.
    Skip,
    /// It is done once, however many times were missed.
    Once,
}

/// Makes a schedule. It acts in your name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSchedule {
    /// Where its work lives.
    #[schema(value_type = String, example = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub project_id: ProjectId,
    /// Its name, unique in the project.
    #[schema(value_type = String, example = "weekly-updates")]
    pub name: TaskName,
    /// When it is due.
    #[schema(value_type = ScheduleTriggerView)]
    pub trigger: ScheduleTrigger,
    /// What it asks for.
    #[schema(value_type = ScheduleActionView)]
    pub action: ScheduleAction,
    /// The profile that its work is done under; absent: that of the preferences, else `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "research")]
    pub profile: Option<ProfileName>,
    /// What is done about times at which CyNode did not run; `once` when it is left out.
    #[serde(default = "default_missed_policy")]
    #[schema(value_type = Option<MissedPolicyView>)]
    pub missed_policy: MissedPolicy,
    /// Whether it is switched on; it is when it is left out.
    #[serde(default = "default_enabled")]
    #[schema(value_type = Option<bool>)]
    pub enabled: bool,
}

const fn default_missed_policy() -> MissedPolicy {
    MissedPolicy::Once
}

const fn default_enabled() -> bool {
    true
}

/// Changes a schedule. What is left out stays; it acts in your name from then on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateSchedule {
    /// The version that you read: the write is refused if somebody wrote in between.
    pub expected_version: u32,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub name: Option<TaskName>,
    /// When it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ScheduleTriggerView>)]
    pub trigger: Option<ScheduleTrigger>,
    /// What it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ScheduleActionView>)]
    pub action: Option<ScheduleAction>,
    /// The profile that its work is done under. `default` is a profile, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub profile: Option<ProfileName>,
    /// What is done about times that are missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MissedPolicyView>)]
    pub missed_policy: Option<MissedPolicy>,
    /// Whether it is switched on. Switched on again, it is due at its next time from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleView {
    /// Its id.
    #[schema(value_type = String)]
    pub schedule_id: ScheduleId,
    /// Where its work lives.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// Its name.
    #[schema(value_type = String)]
    pub name: TaskName,
    /// When it is due.
    #[schema(value_type = ScheduleTriggerView)]
    pub trigger: ScheduleTrigger,
    /// What it asks for.
    #[schema(value_type = ScheduleActionView)]
    pub action: ScheduleAction,
    /// The profile that its work is done under, where it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub profile: Option<ProfileName>,
    /// What is done about times that are missed.
    #[schema(value_type = MissedPolicyView)]
    pub missed_policy: MissedPolicy,
    /// Whether it is switched on.
    pub enabled: bool,
    /// When it is due next; nothing when it is switched off or over.
    #[serde(with = "time::serde::rfc3339::option")]
    pub next_at: Option<OffsetDateTime>,
    /// How often it fired.
    pub firings: i64,
    /// What came of it last.
    pub last_firing: Option<FiringView>,
    /// How often it was written.
    pub version: i64,
    /// Whether an agent wrote it last and no person has reviewed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreviewed: bool,
    /// In whose name it acts: of whoever wrote it last.
    #[schema(value_type = String)]
    pub acts_for: UserId,
    /// Who made it.
    #[schema(value_type = String)]
    pub created_by: UserId,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it was written last.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// One time that a schedule fired, with what came of it so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FiringView {
    /// Its number, from 1.
    pub number: i64,
    /// `due` when its time had come, `asked` when a person did not wait for it.
    #[schema(value_type = String)]
    pub cause: FiringCause,
    /// The time that had come.
    #[serde(with = "time::serde::rfc3339")]
    pub due_at: OffsetDateTime,
    /// When it was done.
    #[serde(with = "time::serde::rfc3339")]
    pub fired_at: OffsetDateTime,
    /// How many times before this one were missed; at most 1000 are counted.
    pub missed_count: u32,
    /// `task` when a task was made, `handoff` when the project manager was asked, `skipped` when it was too late, `refused` when it
    /// could not be done.
    pub outcome: String,
    /// What the project manager was asked.
    #[schema(value_type = Option<String>)]
    pub handoff_id: Option<HandoffId>,
    /// Where that stands.
    pub handoff_state: Option<HandoffState>,
    /// The tasks that came of it.
    pub tasks: Vec<FiredTask>,
    /// Why nothing came of it, or why the project manager made these tasks.
    pub note: Option<String>,
    /// Its trace.
    pub trace_id: String,
}

/// A task that came of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FiredTask {
    /// Its id.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Its name.
    #[schema(value_type = String)]
    pub name: TaskName,
    /// Where it stands.
    #[schema(value_type = TaskStateView)]
    pub state: TaskStateName,
}
