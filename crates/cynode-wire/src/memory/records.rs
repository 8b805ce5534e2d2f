//! Records of memory on the wire.

use cynode_core::{
    ids::{IngestId, MemoryId, ProjectId, TaskId, UserId},
    memory::{MemoryAuthor, MemoryKind, MemoryState},
    profiles::ProfileName,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Records something.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateMemory {
    /// Profile of the record; `default` when it is left out.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "default")]
    pub profile: ProfileName,
    /// What it is.
    pub kind: MemoryKind,
    /// What it is about, on one line of at most 300 characters.
    #[schema(example = "Retries")]
    pub title: String,
    /// The text, at most 16384 bytes.
    #[schema(example = "Wait twice as long before each retry, at most a minute.")]
    pub content: String,
    /// Where it comes from; `note` when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The path of the file that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The URL that it was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Corrects a record, pins it, or both. What is left out stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateMemory {
    /// What it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<MemoryKind>,
    /// What it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Whether it outlives its age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryView {
    /// Its id.
    #[schema(value_type = String)]
    pub memory_id: MemoryId,
    /// The project it belongs to.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// The profile it belongs to. Agents under another one do not find it.
    #[schema(value_type = String)]
    pub profile: ProfileName,
    /// What it is.
    pub kind: MemoryKind,
    /// Whether it is found.
    pub state: MemoryState,
    /// What it is about.
    pub title: String,
    /// The text, without secrets.
    pub content: String,
    /// Where it comes from.
    pub source: String,
    /// The path of the file it was in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The URL it was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The commit it was read at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Who wrote it.
    pub author: MemoryAuthor,
    /// The person, or the person for whom the agent works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub user_id: Option<UserId>,
    /// The role of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The task it was written in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// The ingest that read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ingest_id: Option<IngestId>,
    /// Whether it outlives its age.
    pub pinned: bool,
    /// Whether a stranger may have written it: it is fenced where agents read it.
    pub untrusted: bool,
    /// The record that it corrects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub supersedes: Option<MemoryId>,
    /// The record that corrects it. It is no longer found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub superseded_by: Option<MemoryId>,
    /// The SHA-256 of its kind, title, path and text.
    pub sha256: String,
    /// When it was written.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// Who accepted or rejected it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub decided_by: Option<UserId>,
    /// When.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    pub decided_at: Option<OffsetDateTime>,
}

/// Searches the memory of a project under a profile.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchMemories {
    /// Profile that is searched; `default` when it is left out.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "default")]
    pub profile: ProfileName,
    /// What is searched for.
    #[schema(example = "how long do we wait between retries?")]
    pub query: String,
    /// Of these kinds only; any when it is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<MemoryKind>>)]
    pub kinds: Vec<MemoryKind>,
    /// Whose path begins so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_prefix: Option<String>,
    /// Maximum number of hits: 1 to 50, 10 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 50)]
    pub limit: Option<u16>,
}

/// A record that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryHitView {
    /// How well it fits, from 0 to 1; higher is better.
    pub score: f64,
    /// The record.
    pub memory: MemoryView,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryHitsView {
    /// The best first; hits with equal scores are ordered by id.
    pub hits: Vec<MemoryHitView>,
}

/// Forgets records that meet all of the conditions. At least one is given.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetMemories {
    /// Profile whose records are forgotten; `default` when it is left out.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "default")]
    pub profile: ProfileName,
    /// Of this source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Written more than so many days ago. Pinned ones stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 36500)]
    pub older_than_days: Option<u32>,
    /// All records of the profile, without another condition.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(value_type = Option<bool>)]
    pub all: bool,
}

/// What was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForgottenView {
    /// How many records.
    pub forgotten: u64,
    /// Whether there are more: ask again.
    pub more: bool,
}
