//! Skills on the wire: instructions that agents may be given.

use cynode_core::ids::{ProjectId, SkillId, UserId};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Writes a new skill.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSkill {
    /// The project whose agents may be given it.
    #[schema(value_type = String, example = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub project_id: ProjectId,
    /// What it is called; unique in the project, and never changed.
    #[schema(example = "run-the-tests")]
    pub name: String,
    /// When it is of use.
    pub description: String,
    /// The instructions, at most 64 KiB.
    pub body: String,
}

/// Writes a skill anew.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateSkill {
    /// The version that you read: the write is refused if somebody wrote in between.
    pub expected_version: u32,
    /// When it is of use.
    pub description: String,
    /// The instructions, at most 64 KiB.
    pub body: String,
}

/// A skill in a list: all but its instructions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillSummary {
    /// Its id.
    #[schema(value_type = String)]
    pub skill_id: SkillId,
    /// The project it belongs to.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// What it is called.
    pub name: String,
    /// When it is of use.
    pub description: String,
    /// How often it was written.
    pub version: i64,
    /// Whether an agent wrote it last and no person has reviewed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreviewed: bool,
    /// Who wrote it first.
    #[schema(value_type = String)]
    pub created_by: UserId,
    /// When it was written last.
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// A skill with its instructions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillView {
    /// All but its instructions.
    #[serde(flatten)]
    pub summary: SkillSummary,
    /// The instructions.
    pub body: String,
}
