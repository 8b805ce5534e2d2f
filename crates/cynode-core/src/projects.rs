//! Projects and their members.

use time::OffsetDateTime;

use crate::{
    ids::{ProjectId, UserId},
    names::{Handle, ProjectSlug, Prose, Title},
    roles::UserRole,
};

/// The place where tasks and members live. Nothing is shared between two projects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its id.
    pub id: ProjectId,
    /// Its name in URLs.
    pub slug: ProjectSlug,
    /// Its name for people.
    pub title: Title,
    /// What it is about.
    pub description: Option<Prose>,
    /// Who made it.
    pub created_by: UserId,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// Since when it is archived, if it is.
    pub archived_at: Option<OffsetDateTime>,
}

/// A user's own role in a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectMember {
    /// The user.
    pub user: UserId,
    /// The user's handle.
    pub handle: Handle,
    /// The role.
    pub role: UserRole,
    /// Since when.
    pub added_at: OffsetDateTime,
}
