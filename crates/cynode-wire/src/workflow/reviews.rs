//! Reviews on the wire: a person has looked at what an agent wrote.

use cynode_core::ids::{ScheduleId, SkillId, TaskId};
use serde::Deserialize;
use utoipa::ToSchema;

/// Names what a person has reviewed: exactly one of the ids.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewContent {
    /// A skill.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub skill_id: Option<SkillId>,
    /// The version of the skill that was looked at; the present one when it is left out. The review is refused if somebody wrote in between.
    #[serde(default)]
    pub version: Option<i64>,
    /// A schedule.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub schedule_id: Option<ScheduleId>,
    /// A task.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
}
