//! What an agent was given beside its question: records of memory and skills, by id.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::ids::{HandoffId, JobId, MemoryId, SkillId};

/// A record of memory that was given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GivenMemory {
    /// The record. It may be forgotten since.
    #[schema(value_type = String)]
    pub memory_id: MemoryId,
    /// How well it fitted the work, from 0 to 1; higher is better.
    pub score: f64,
}

/// A skill that was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GivenSkill {
    /// The skill.
    #[schema(value_type = String)]
    pub skill_id: SkillId,
    /// Its name.
    pub name: String,
    /// The version that was given.
    pub version: i64,
}

/// What was given under one claim of a handoff or a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GivenContext {
    /// The handoff it was given to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub handoff_id: Option<HandoffId>,
    /// The job it was given to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub job_id: Option<JobId>,
    /// The claim.
    pub fencing_token: i64,
    /// The profile under which memory was searched.
    pub profile: String,
    /// The version of the profile; 0 when it was not there any more.
    pub profile_version: u32,
    /// The records of memory, the best first.
    pub memories: Vec<GivenMemory>,
    /// The skills, the best first.
    pub skills: Vec<GivenSkill>,
    /// Why memory could not be searched; the work went on without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub given_at: OffsetDateTime,
}
