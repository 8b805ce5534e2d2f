//! Profiles: what agents may use.

use cynode_core::{
    ids::{ProjectId, UserId},
    profiles::ProfileSpec,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// Creates a profile.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateProfile {
    /// Name of the profile, which never changes: small letters, digits and single dashes, at most 63.
    #[schema(example = "docs-writer")]
    pub name: String,
    /// Project whose agents may work under it; the agents of all projects when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// What it permits. What it does not name is not there.
    pub spec: ProfileSpec,
}

/// Writes a profile anew.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateProfile {
    /// The version that you read: the write is refused if somebody wrote in between.
    pub expected_version: u32,
    /// What it permits. What it does not name is not there.
    pub spec: ProfileSpec,
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    /// Name of the profile.
    pub name: String,
    /// Project that it belongs to; none for one of the installation and one that comes with the product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub project_id: Option<ProjectId>,
    /// Whether it comes with the product. Nobody can change such a profile.
    pub shipped: bool,
    /// Version, counted from 1.
    pub version: u32,
    /// What it permits.
    pub spec: ProfileSpec,
    /// User who wrote this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub updated_by: Option<UserId>,
    /// Time of this version.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub updated_at: Option<OffsetDateTime>,
}

/// A version of a profile, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileVersionView {
    /// Version, counted from 1.
    pub version: u32,
    /// What it permits.
    pub spec: ProfileSpec,
    /// User who wrote it.
    #[schema(value_type = String)]
    pub written_by: UserId,
    /// Time at which it was written.
    #[serde(with = "time::serde::rfc3339")]
    pub written_at: OffsetDateTime,
}
