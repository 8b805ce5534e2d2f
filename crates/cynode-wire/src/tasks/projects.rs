//! Projects and members on the wire.

use cynode_core::{
    ids::{ProjectId, UserId},
    names::{Handle, ProjectSlug, Prose, Title},
    projects::{Project, ProjectMember},
    roles::UserRole,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::identity::accounts::{RoleChange, RoleName};

/// Makes a project. The caller becomes its first admin.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateProject {
    /// Its name in URLs.
    #[schema(value_type = String, example = "web-app")]
    pub slug: ProjectSlug,
    /// Its name for people.
    #[schema(value_type = String)]
    pub title: Title,
    /// What it is about.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub description: Option<Prose>,
}

/// Changes a project; what is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateProject {
    /// Its name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub title: Option<Title>,
    /// What it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub description: Option<Prose>,
}

/// A project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProjectView {
    /// Its id.
    #[schema(value_type = String, example = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    pub id: ProjectId,
    /// Its name in URLs.
    #[schema(value_type = String)]
    pub slug: ProjectSlug,
    /// Its name for people.
    #[schema(value_type = String)]
    pub title: Title,
    /// What it is about.
    #[schema(value_type = Option<String>)]
    pub description: Option<Prose>,
    /// Who made it.
    #[schema(value_type = String)]
    pub created_by: UserId,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// Since when it is archived: no task can be asked for in it.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub archived_at: Option<OffsetDateTime>,
}

impl From<Project> for ProjectView {
    fn from(project: Project) -> Self {
        let Project { id, slug, title, description, created_by, created_at, archived_at } = project;
        Self { id, slug, title, description, created_by, created_at, archived_at }
    }
}

/// Gives a user a role in a project.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetMember {
    /// The role.
    #[schema(value_type = RoleName)]
    pub role: UserRole,
}

/// Gives a group a role in a project.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetGroupRole {
    /// The role; `none` takes it away.
    pub role: RoleChange,
}

/// A user's own role in a project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// The user.
    #[schema(value_type = String)]
    pub user_id: UserId,
    /// The user's handle.
    #[schema(value_type = String)]
    pub handle: Handle,
    /// The role.
    #[schema(value_type = RoleName)]
    pub role: UserRole,
    /// Since when.
    #[serde(with = "time::serde::rfc3339")]
    pub added_at: OffsetDateTime,
}

impl From<ProjectMember> for MemberView {
    fn from(member: ProjectMember) -> Self {
        let ProjectMember { user, handle, role, added_at } = member;
        Self { user_id: user, handle, role, added_at }
    }
}
