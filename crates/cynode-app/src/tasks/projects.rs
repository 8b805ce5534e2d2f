//! Projects and their members.

use std::{collections::HashSet, str::FromStr};

use cynode_core::{
    events::EventKind,
    ids::{ProjectId, UserId},
    names::ProjectSlug,
    paging::{Page, PageRequest},
    projects::{Project, ProjectMember},
    roles::UserRole,
};
use cynode_db::{Conn, identity::authentication, tasks::projects};
use cynode_wire::tasks::projects::{CreateProject, UpdateProject};
use serde_json::json;

use crate::{
    AuthenticatedCaller, Ctx, Error,
    platform::{
        context::{EventDraft, is_limited_to_projects},
        operation,
    },
};

/// Reference to a project: by id or by slug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectRef {
    /// Unique id of the project.
    Id(ProjectId),
    /// Slug of the project.
    Slug(ProjectSlug),
}

/// The text is no valid reference to a project.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProjectRefError(String);

impl FromStr for ProjectRef {
    type Err = ProjectRefError;

    fn from_str(text: &str) -> Result<Self, ProjectRefError> {
        // No slug contains `_`, so ids and slugs cannot be confused.
        if text.contains('_') {
            let id = text.parse::<ProjectId>();
            id.map(Self::Id).map_err(|error| ProjectRefError(error.to_string()))
        } else {
            let slug = text.parse::<ProjectSlug>();
            slug.map(Self::Slug).map_err(|error| ProjectRefError(error.to_string()))
        }
    }
}

/// Resolves a reference to the id of a project that the caller may see.
#[operation]
pub async fn resolve_project(ctx: &mut Ctx, project: &ProjectRef) -> Result<ProjectId, Error> {
    match project {
        ProjectRef::Id(id) => Ok(*id),
        ProjectRef::Slug(slug) => {
            let Some(id) = projects::find_project_id(ctx.conn(), slug).await? else {
                return Err(missing_project_error(ctx, slug).await?);
            };
            match ctx.require_project_role(id, UserRole::Viewer).await {
                // A caller who may not see the project gets the same answer as for a missing one.
                Err(Error::NotFound { .. }) => Err(missing_project_error(ctx, slug).await?),
                result => result.map(|_| id),
            }
        }
    }
}

/// Returns the error for a missing project, with the most similar name that the caller may see.
async fn missing_project_error(ctx: &mut Ctx, slug: &ProjectSlug) -> Result<Error, Error> {
    let Ok(member) = ctx.visibility_filter() else { return Ok(Error::not_found("project", slug)) };
    let known = projects::list_project_slugs(ctx.conn(), member).await?;
    Ok(Error::not_found_near("project", slug.as_str(), known.iter().map(String::as_str)))
}

/// Resolves an optional reference to a project.
#[operation]
pub async fn resolve_optional_project(
    ctx: &mut Ctx,
    project: Option<&ProjectRef>,
) -> Result<Option<ProjectId>, Error> {
    match project {
        Some(project) => resolve_project(ctx, project).await.map(Some),
        None => Ok(None),
    }
}

/// The projects that a caller may see.
pub(crate) enum VisibleProjects {
    /// Every project: the caller has a role in the installation.
    All,
    /// The projects in which the caller has a role.
    Own(HashSet<ProjectId>),
}

impl VisibleProjects {
    /// Loads the projects that the caller may see.
    pub(crate) async fn load_for_caller(ctx: &mut Ctx) -> Result<Self, Error> {
        match ctx.visibility_filter()? {
            None => Ok(Self::All),
            Some(user) => {
                let own = projects::list_member_projects(ctx.conn(), user).await?;
                Ok(Self::Own(own.into_iter().collect()))
            }
        }
    }

    /// Returns whether the caller may see the project.
    pub(crate) fn includes_project(&self, project: ProjectId) -> bool {
        match self {
            Self::All => true,
            Self::Own(own) => own.contains(&project),
        }
    }
}

/// Requires the permission to create projects, which operators of the installation have. Rejects agents and API keys of
/// some projects, whose user may have it.
async fn require_project_creation(ctx: &mut Ctx) -> Result<AuthenticatedCaller, Error> {
    let caller = ctx.caller()?;
    let bounded = caller.bounds.is_some() || is_limited_to_projects(&caller);
    let allowed = caller.role >= Some(UserRole::Operator)
        || (!bounded && authentication::can_create_projects(ctx.conn(), caller.user).await?);
    if allowed {
        return Ok(caller);
    }
    ctx.require_role(UserRole::Operator).map_err(|_| {
        let place = "in the installation, or the permission to create projects";
        Error::forbidden(UserRole::Operator, place)
    })
}

/// Creates a project. The caller becomes its first admin.
#[tracing::instrument(name = "app.projects.create_project", skip_all)]
#[operation]
pub async fn create_project(ctx: &mut Ctx, body: CreateProject) -> Result<Project, Error> {
    let caller = require_project_creation(ctx).await?;
    let project = Project {
        id: ProjectId::from_uuid(ctx.new_uuid()),
        slug: body.slug,
        title: body.title,
        description: body.description,
        created_by: caller.user,
        created_at: ctx.now,
        archived_at: None,
    };
    match projects::insert_project(ctx.conn(), &project).await {
        Err(error) if error.is_refused_by("projects_slug_unique") => {
            return Err(Error::AlreadyExists {
                what: "a project with the slug",
                name: project.slug.into(),
            });
        }
        result => result?,
    }
    let now = ctx.now;
    projects::set_member(ctx.conn(), project.id, caller.user, UserRole::Admin, now).await?;
    let told = EventDraft::new(EventKind::ProjectCreated, json!({ "slug": project.slug }));
    ctx.record_event(told.with_project(project.id)).await?;
    Ok(project)
}

/// Returns one project.
#[tracing::instrument(name = "app.projects.get_project", skip_all)]
#[operation]
pub async fn get_project(ctx: &mut Ctx, project: &ProjectRef) -> Result<Project, Error> {
    let id = resolve_project(ctx, project).await?;
    ctx.require_project_role(id, UserRole::Viewer).await?;
    projects::get_project(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("project", id))
}

/// Lists the projects that the caller may see; archived ones only on request.
#[tracing::instrument(name = "app.projects.list_projects", skip_all)]
#[operation]
pub async fn list_projects(
    ctx: &mut Ctx,
    archived: bool,
    page: PageRequest,
) -> Result<Page<Project>, Error> {
    let member = ctx.visibility_filter()?;
    let found = projects::list_projects(ctx.conn(), member, archived, page).await?;
    Ok(page.into_page(found, |project| project.id.as_uuid()))
}

/// Updates a project.
#[tracing::instrument(name = "app.projects.update_project", skip_all, fields(project.id = %id))]
#[operation]
pub async fn update_project(
    ctx: &mut Ctx,
    id: ProjectId,
    body: UpdateProject,
) -> Result<Project, Error> {
    ctx.require_project_role(id, UserRole::Admin).await?;
    let now = ctx.now;
    let (title, description) = (body.title.as_ref(), body.description.as_ref());
    let project = projects::update_project(ctx.conn(), id, title, description, now).await?;
    let project = project.ok_or_else(|| Error::not_found("project", id))?;
    ctx.record_event(EventDraft::new(EventKind::ProjectUpdated, json!({})).with_project(id))
        .await?;
    Ok(project)
}

/// Message for work that is requested in an archived project.
pub(crate) const ARCHIVED_MESSAGE: &str =
    "the project is archived: `cynork project unarchive NAME` takes it back";

/// Rejects work in an archived project.
pub(crate) async fn require_active_project(conn: &mut Conn, id: ProjectId) -> Result<(), Error> {
    if projects::is_project_archived(conn, id).await? {
        Err(Error::Conflict(ARCHIVED_MESSAGE))
    } else {
        Ok(())
    }
}

/// Archives a project: no task can be created in it, its models answer nobody, its schedules and its forge sync stop,
/// and lists omit it. All its data stays.
#[tracing::instrument(name = "app.projects.archive_project", skip_all, fields(project.id = %id))]
#[operation]
pub async fn archive_project(ctx: &mut Ctx, id: ProjectId) -> Result<Project, Error> {
    let caller = ctx.require_project_role(id, UserRole::Admin).await?;
    // A concurrent creation of a task waits for this lock.
    let locked = projects::lock_project(ctx.conn(), id).await?;
    let project = locked.ok_or_else(|| Error::not_found("project", id))?;
    if project.archived_at.is_some() {
        return Err(Error::Conflict("the project is archived already"));
    }
    if projects::count_open_tasks(ctx.conn(), id).await? > 0 {
        return Err(Error::Conflict(
            "tasks of the project are not done: wait for them, or stop them (`cynork task list --project NAME --state running`, \
             `cynork task cancel TASK`)",
        ));
    }
    let now = ctx.now;
    projects::set_project_archived(ctx.conn(), id, Some(caller.user), now).await?;
    ctx.invalidate_models().await?;
    let told = EventDraft::new(EventKind::ProjectArchived, json!({ "slug": project.slug }));
    ctx.record_event(told.with_project(id)).await?;
    Ok(Project { archived_at: Some(now), ..project })
}

/// Unarchives a project.
#[tracing::instrument(name = "app.projects.unarchive_project", skip_all, fields(project.id = %id))]
#[operation]
pub async fn unarchive_project(ctx: &mut Ctx, id: ProjectId) -> Result<Project, Error> {
    ctx.require_project_role(id, UserRole::Admin).await?;
    let locked = projects::lock_project(ctx.conn(), id).await?;
    let project = locked.ok_or_else(|| Error::not_found("project", id))?;
    if project.archived_at.is_none() {
        return Err(Error::Conflict("the project is not archived"));
    }
    let now = ctx.now;
    projects::set_project_archived(ctx.conn(), id, None, now).await?;
    ctx.invalidate_models().await?;
    let told = EventDraft::new(EventKind::ProjectUnarchived, json!({ "slug": project.slug }));
    ctx.record_event(told.with_project(id)).await?;
    Ok(Project { archived_at: None, ..project })
}

/// Deletes an archived project with its tasks, repository, models, budgets, schedules, preferences and members. Its
/// history stays: events, audit records and usage of models. The rows are deleted in this transaction; maintenance
/// removes the files.
#[tracing::instrument(name = "app.projects.delete_project", skip_all, fields(project.id = %id))]
#[operation]
pub async fn delete_project(ctx: &mut Ctx, id: ProjectId) -> Result<(), Error> {
    ctx.require_project_role(id, UserRole::Admin).await?;
    let locked = projects::lock_project(ctx.conn(), id).await?;
    let project = locked.ok_or_else(|| Error::not_found("project", id))?;
    if project.archived_at.is_none() {
        return Err(Error::Conflict(
            "only an archived project can be deleted: `cynork project archive NAME` first",
        ));
    }
    let now = ctx.now;
    projects::delete_project(ctx.conn(), id, now).await?;
    // Its models, its tool servers and the tokens of its agents become invalid in every replica.
    ctx.invalidate_policy().await?;
    let told = EventDraft::new(EventKind::ProjectDeleted, json!({ "slug": project.slug }));
    ctx.record_event(told.with_project(id)).await
}

/// Lists the members of a project.
#[tracing::instrument(name = "app.projects.list_members", skip_all, fields(project.id = %id))]
#[operation]
pub async fn list_members(
    ctx: &mut Ctx,
    id: ProjectId,
    page: PageRequest,
) -> Result<Page<ProjectMember>, Error> {
    ctx.require_project_role(id, UserRole::Viewer).await?;
    let found = projects::list_members(ctx.conn(), id, page).await?;
    Ok(page.into_page(found, |member| member.user.as_uuid()))
}

/// Sets the role of a user in a project.
#[tracing::instrument(name = "app.projects.set_member", skip_all, fields(project.id = %id, user.id = %user))]
#[operation]
pub async fn set_member(
    ctx: &mut Ctx,
    id: ProjectId,
    user: UserId,
    role: UserRole,
) -> Result<(), Error> {
    ctx.require_project_role(id, UserRole::Admin).await?;
    let now = ctx.now;
    match projects::set_member(ctx.conn(), id, user, role, now).await {
        Err(error) if error.is_refused_by("project_members_user_id_fkey") => {
            return Err(Error::not_found("user", user));
        }
        Err(error) if error.is_refused_by("project_members_project_id_fkey") => {
            return Err(Error::not_found("project", id));
        }
        result => result?,
    }
    let data = json!({ "user_id": user, "role": role });
    ctx.record_event(
        EventDraft::new(EventKind::ProjectMemberSet, data).with_project(id).with_subject(user),
    )
    .await
}

/// Removes a user from a project.
#[tracing::instrument(name = "app.projects.remove_member", skip_all, fields(project.id = %id, user.id = %user))]
#[operation]
pub async fn remove_member(ctx: &mut Ctx, id: ProjectId, user: UserId) -> Result<(), Error> {
    ctx.require_project_role(id, UserRole::Admin).await?;
    if !projects::remove_member(ctx.conn(), id, user).await? {
        return Err(Error::not_found("member", user));
    }
    let data = json!({ "user_id": user });
    ctx.record_event(
        EventDraft::new(EventKind::ProjectMemberRemoved, data).with_project(id).with_subject(user),
    )
    .await
}
