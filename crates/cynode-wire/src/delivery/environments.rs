//! Environments of projects, their secrets and fetched packages on the wire.

use cynode_core::{
    environments::{
        EnvironmentOrigin, EnvironmentSpec, EnvironmentState, PackageSource, ProposalReason,
    },
    ids::{JobId, TaskId, UserId},
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::identity::accounts::SecretText;

/// A version of the environment of a project. It never changes; only its state does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentView {
    /// Version, counted per project from 1.
    pub version: u32,
    /// SHA-256 of the specification, in hexadecimal.
    pub digest: String,
    /// State of the version. Jobs run in the accepted one.
    pub state: EnvironmentState,
    /// Where it comes from.
    pub origin: EnvironmentOrigin,
    /// Commit that it was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_commit: Option<String>,
    /// The environment itself.
    pub spec: EnvironmentSpec,
    /// Reasons for its lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<ProposalReason>,
    /// What a person should look at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// User who proposed it; absent for the installation itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub proposed_by: Option<UserId>,
    /// Time of the proposal.
    #[serde(with = "time::serde::rfc3339")]
    pub proposed_at: OffsetDateTime,
    /// User who accepted or rejected it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub decided_by: Option<UserId>,
    /// Time of the decision.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub decided_at: Option<OffsetDateTime>,
    /// Note of the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Proposes an environment that a person wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProposeEnvironment {
    /// The environment.
    pub spec: EnvironmentSpec,
}

/// Detects an environment from the files of the repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DetectEnvironment {
    /// Whether the devcontainer file is read instead of the build files.
    pub devcontainer: bool,
}

/// Accepts or rejects a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DecideEnvironment {
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Tries a version: a task sets it up and runs its checks. No model is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TryEnvironment {
    /// The version; the newest proposal when it is left out, and without one the accepted version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// A secret of a project. Its value is never shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProjectSecretView {
    /// Name of the secret.
    pub name: String,
    /// User who set it.
    #[schema(value_type = String)]
    pub set_by: UserId,
    /// Time at which it was set.
    #[serde(with = "time::serde::rfc3339")]
    pub set_at: OffsetDateTime,
}

/// Sets a secret of a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetProjectSecret {
    /// The value, 8 to 4096 bytes without control characters. It is stored sealed and never shown again.
    #[schema(value_type = String)]
    pub value: SecretText,
}

/// A package that a job fetched, or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PackageFetchView {
    /// Task of the job.
    #[schema(value_type = String)]
    pub task_id: TaskId,
    /// Job that fetched.
    #[schema(value_type = String)]
    pub job_id: JobId,
    /// Registry.
    pub source: PackageSource,
    /// Name of the package.
    pub package: String,
    /// Version; empty for a file that belongs to none.
    pub version: String,
    /// SHA-256 of the file, in hexadecimal; empty when it was refused.
    pub sha256: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it came from the cache of the node.
    pub cached: bool,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Time at which it was reported.
    #[serde(with = "time::serde::rfc3339")]
    pub fetched_at: OffsetDateTime,
}
