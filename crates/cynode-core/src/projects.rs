//! Projects and who works in them.

use time::OffsetDateTime;

use crate::{
    ids::{ProjectId, UserId},
    names::{Handle, ProjectSlug, Prose, Title},
    roles::Role,
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
}

/// A user's own role in a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The user.
    pub user: UserId,
    /// The user's handle.
    pub handle: Handle,
    /// The role.
    pub role: Role,
    /// Since when.
    pub added_at: OffsetDateTime,
}
