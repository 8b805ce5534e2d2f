//! Artifacts on the wire: files that jobs and agents stored.

use cynode_core::ids::{ArtifactId, JobId, ProjectId, TaskId};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// A stored file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactView {
    /// Unique id of the artifact.
    #[schema(value_type = String)]
    pub id: ArtifactId,
    /// Project that it belongs to.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// Task that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// Job that stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub job_id: Option<JobId>,
    /// Name of the file, as the job or the agent gave it.
    pub name: String,
    /// Media type, as the job or the agent gave it. The file is always served as `application/octet-stream`.
    pub media_type: String,
    /// SHA-256 of the bytes, in hexadecimal.
    pub sha256: String,
    /// Number of bytes.
    pub bytes: u64,
    /// When it was stored.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}
