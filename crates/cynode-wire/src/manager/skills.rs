//! Skills on the wire: instructions that agents may be given.

use cynode_core::{
    ids::{ProjectId, SkillId, UserId},
    skills::{SkillFile, SkillScope},
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Writes a new skill.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSkill {
    /// Whose it is: the installation's, a project's or your own. A project's when it is left out.
    #[serde(default)]
    pub scope: SkillScope,
    /// The project whose agents may be given it; only for the scope `project`.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub project_id: Option<ProjectId>,
    /// What it is called; unique in its scope, and never changed.
    #[schema(example = "run-the-tests")]
    pub name: String,
    /// When it is of use. Skills are chosen by it.
    pub description: String,
    /// The instructions, at most 64 KiB.
    pub body: String,
    /// Under which licence it was published.
    #[serde(default)]
    pub license: Option<String>,
    /// The tools that its author says it needs. They permit nothing.
    #[serde(default)]
    pub allowed_tools: Vec<String>,
    /// Its files beside `SKILL.md`: at most 32, each at most 64 KiB, together at most 256 KiB.
    #[serde(default)]
    pub files: Vec<SkillFile>,
}

/// Writes a skill anew.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateSkill {
    /// The version that you read: the write is refused if somebody wrote in between.
    pub expected_version: u32,
    /// When it is of use. Skills are chosen by it.
    pub description: String,
    /// The instructions, at most 64 KiB.
    pub body: String,
    /// Under which licence it was published; it stays when it is left out, and an empty text removes it.
    #[serde(default)]
    pub license: Option<String>,
    /// The tools that its author says it needs; they stay when they are left out.
    #[serde(default)]
    pub allowed_tools: Option<Vec<String>>,
    /// Its files beside `SKILL.md`; they stay when they are left out.
    #[serde(default)]
    pub files: Option<Vec<SkillFile>>,
}

/// Writes a skill from a folder in the open format.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportSkill {
    /// Whose it is: the installation's, a project's or your own. A project's when it is left out.
    #[serde(default)]
    pub scope: SkillScope,
    /// The project whose agents may be given it; only for the scope `project`.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub project_id: Option<ProjectId>,
    /// The files of the folder, of which one is `SKILL.md`. Its front matter has `name` and `description`, and may have `license`,
    /// `allowed-tools`, `compatibility` and `metadata`.
    pub files: Vec<SkillFile>,
    /// The version that you read of the skill that is replaced; a new skill is written when it is left out.
    #[serde(default)]
    pub expected_version: Option<u32>,
}

/// A skill in a list: all but its instructions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillSummary {
    /// Its id.
    #[schema(value_type = String)]
    pub skill_id: SkillId,
    /// Whose it is.
    #[serde(default)]
    pub scope: SkillScope,
    /// The project it belongs to, if it is a project's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// The person it belongs to, if it is a person's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub user_id: Option<UserId>,
    /// What it is called.
    pub name: String,
    /// When it is of use.
    pub description: String,
    /// How often it was written.
    pub version: i64,
    /// Whether an agent wrote it last and no person has reviewed it: nobody is given it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreviewed: bool,
    /// Whether an agent wrote it last, whoever has reviewed it since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_agent: bool,
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
    /// Under which licence it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// The tools that its author says it needs. They permit nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_tools: Vec<String>,
    /// Its files beside `SKILL.md`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SkillFile>,
}

/// A skill as a folder in the open format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillExport {
    /// What it is called, and so the folder.
    pub name: String,
    /// Its version.
    pub version: i64,
    /// The files, `SKILL.md` first.
    pub files: Vec<SkillFile>,
}

/// A version of a skill in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillVersionSummary {
    /// Which.
    pub version: i64,
    /// When it is of use.
    pub description: String,
    /// Whether an agent wrote it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_agent: bool,
    /// Who wrote it, or for whom the agent worked.
    #[schema(value_type = String)]
    pub written_by: UserId,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub written_at: OffsetDateTime,
    /// Who reviewed what the agent wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reviewed_by: Option<UserId>,
    /// How many files it has beside `SKILL.md`.
    pub files: u32,
}

/// What a version of a skill says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillVersionView {
    /// What the skill is called.
    pub name: String,
    /// Which version.
    pub version: i64,
    /// When it is of use.
    pub description: String,
    /// The instructions.
    pub body: String,
    /// Under which licence it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// The tools that its author says it needs. They permit nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_tools: Vec<String>,
    /// Its files beside `SKILL.md`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SkillFile>,
}
