//! Ingests on the wire: files, repositories and pages that become records of memory.

use cynode_core::{
    ids::{IngestId, ProjectId, UserId},
    memory::ingests::{Ingest, IngestKind, IngestProgress, IngestState},
    profiles::ProfileName,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Begins an ingest, or adds files to one of files.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateIngest {
    /// What is read.
    pub kind: IngestKind,
    /// Profile of the records; `default` when it is left out.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "default")]
    pub profile: ProfileName,
    /// Name of the source of `files`, such as `docs`. What it ingested before is replaced: a file that is not sent again is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Ingest of `files` that these files belong to; a new one when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ingest_id: Option<IngestId>,
    /// Files of `files`: at most 200 at once, each with at most 262144 bytes. A path that is sent again replaces the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<IngestFile>>)]
    pub files: Vec<IngestFile>,
    /// Files of `files` that the client passed over: binary, empty or too large ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schema(value_type = Option<u32>)]
    pub skipped: u32,
    /// Whether more files of `files` follow. Nothing is read before the last ones are sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(value_type = Option<bool>)]
    pub more: bool,
    /// Commit of `repository`: 40 or 64 hexadecimal digits, or a branch; the default branch when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Address of `page`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A file that the client sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IngestFile {
    /// Path below the root of the source.
    #[schema(example = "guides/install.md")]
    pub path: String,
    /// Text of the file.
    pub text: String,
}

/// An ingest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IngestView {
    /// Id of the ingest.
    #[schema(value_type = String)]
    pub ingest_id: IngestId,
    /// Project of the records.
    #[schema(value_type = String)]
    pub project_id: ProjectId,
    /// Profile of the records.
    #[schema(value_type = String)]
    pub profile: ProfileName,
    /// What is read.
    pub kind: IngestKind,
    /// Source of the records: `files:NAME`, `repository` or `page:URL`.
    pub source: String,
    /// Commit of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Where it stands.
    pub state: IngestState,
    /// Whether files may still be added.
    pub open: bool,
    /// How far it is.
    pub progress: IngestProgress,
    /// Why it failed, or what keeps it waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// User who asked for it.
    #[schema(value_type = String)]
    pub requested_by: UserId,
    /// Trace of the request.
    pub trace_id: String,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it ended.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    pub finished_at: Option<OffsetDateTime>,
}

impl From<Ingest> for IngestView {
    fn from(ingest: Ingest) -> Self {
        Self {
            ingest_id: ingest.id,
            project_id: ingest.project,
            profile: ingest.profile,
            kind: ingest.kind,
            source: ingest.source,
            commit: ingest.commit,
            state: ingest.state,
            open: ingest.uploaded_at.is_none() && !ingest.state.is_final(),
            progress: ingest.progress,
            error: ingest.error,
            requested_by: ingest.requested_by,
            trace_id: ingest.trace.to_string(),
            created_at: ingest.created_at,
            finished_at: ingest.finished_at,
        }
    }
}
