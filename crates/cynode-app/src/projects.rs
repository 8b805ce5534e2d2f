//! Projects and their members.

use cynode_core::{
    events::EventKind,
    ids::{ProjectId, UserId},
    names::ProjectSlug,
    projects::{Member, Project},
    roles::Role,
};
use cynode_db::projects;
use cynode_wire::{
    page::{Page, PageRequest},
    projects::{CreateProject, UpdateProject},
};
use serde_json::json;

use crate::{Ctx, Error, context::Told};

/// How a project is named: by id or by slug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectRef {
    /// By id.
    Id(ProjectId),
    /// By slug.
    Slug(ProjectSlug),
}

/// The id of a project that the caller may see.
pub async fn resolve(ctx: &mut Ctx, project: &ProjectRef) -> Result<ProjectId, Error> {
    match project {
        ProjectRef::Id(id) => Ok(*id),
        ProjectRef::Slug(slug) => {
            let id = projects::id_of(ctx.conn(), slug).await?;
            let id = id.ok_or_else(|| Error::not_found("project", slug))?;
            match ctx.require_in(id, Role::Viewer).await {
                // Who may not see it learns no more than what they sent.
                Err(Error::NotFound { what, .. }) => Err(Error::not_found(what, slug)),
                result => result.map(|_| id),
            }
        }
    }
}

/// The same where naming one is left to the caller.
pub async fn resolve_if(
    ctx: &mut Ctx,
    project: Option<&ProjectRef>,
) -> Result<Option<ProjectId>, Error> {
    match project {
        Some(project) => resolve(ctx, project).await.map(Some),
        None => Ok(None),
    }
}

/// Makes a project; the caller becomes its first admin.
#[tracing::instrument(name = "app.projects.create", skip_all)]
pub async fn create(ctx: &mut Ctx, body: CreateProject) -> Result<Project, Error> {
    let caller = ctx.require(Role::Operator)?;
    let project = Project {
        id: ProjectId::from_uuid(ctx.uuid()),
        slug: body.slug,
        title: body.title,
        description: body.description,
        created_by: caller.user,
        created_at: ctx.now,
    };
    match projects::insert(ctx.conn(), &project).await {
        Err(error) if error.refused_by("projects_slug_taken") => {
            return Err(Error::Taken {
                what: "a project with the slug",
                name: project.slug.into(),
            });
        }
        result => result?,
    }
    let now = ctx.now;
    projects::set_member(ctx.conn(), project.id, caller.user, Role::Admin, now).await?;
    let told = Told::new(EventKind::ProjectCreated, json!({ "slug": project.slug }));
    ctx.record(told.project(project.id)).await?;
    Ok(project)
}

/// One project.
#[tracing::instrument(name = "app.projects.get", skip_all)]
pub async fn get(ctx: &mut Ctx, project: &ProjectRef) -> Result<Project, Error> {
    let id = resolve(ctx, project).await?;
    ctx.require_in(id, Role::Viewer).await?;
    projects::get(ctx.conn(), id).await?.ok_or_else(|| Error::not_found("project", id))
}

/// The projects that the caller may see.
#[tracing::instrument(name = "app.projects.list", skip_all)]
pub async fn list(ctx: &mut Ctx, page: PageRequest) -> Result<Page<Project>, Error> {
    let member = ctx.seen_by()?;
    let found = projects::list(ctx.conn(), member, page).await?;
    Ok(page.cut(found, |project| project.id.as_uuid()))
}

/// Changes a project.
#[tracing::instrument(name = "app.projects.update", skip_all, fields(project.id = %id))]
pub async fn update(ctx: &mut Ctx, id: ProjectId, body: UpdateProject) -> Result<Project, Error> {
    ctx.require_in(id, Role::Admin).await?;
    let now = ctx.now;
    let (title, description) = (body.title.as_ref(), body.description.as_ref());
    let project = projects::update(ctx.conn(), id, title, description, now).await?;
    let project = project.ok_or_else(|| Error::not_found("project", id))?;
    ctx.record(Told::new(EventKind::ProjectUpdated, json!({})).project(id)).await?;
    Ok(project)
}

/// The members of a project.
#[tracing::instrument(name = "app.projects.members", skip_all, fields(project.id = %id))]
pub async fn members(
    ctx: &mut Ctx,
    id: ProjectId,
    page: PageRequest,
) -> Result<Page<Member>, Error> {
    ctx.require_in(id, Role::Viewer).await?;
    let found = projects::members(ctx.conn(), id, page).await?;
    Ok(page.cut(found, |member| member.user.as_uuid()))
}

/// Gives a user a role in a project.
#[tracing::instrument(name = "app.projects.set_member", skip_all, fields(project.id = %id, user.id = %user))]
pub async fn set_member(
    ctx: &mut Ctx,
    id: ProjectId,
    user: UserId,
    role: Role,
) -> Result<(), Error> {
    ctx.require_in(id, Role::Admin).await?;
    let now = ctx.now;
    match projects::set_member(ctx.conn(), id, user, role, now).await {
        Err(error) if error.refused_by("project_members_user_id_fkey") => {
            return Err(Error::not_found("user", user));
        }
        Err(error) if error.refused_by("project_members_project_id_fkey") => {
            return Err(Error::not_found("project", id));
        }
        result => result?,
    }
    let data = json!({ "user_id": user, "role": role });
    ctx.record(Told::new(EventKind::ProjectMemberSet, data).project(id).about(user)).await
}

/// Takes a user out of a project.
#[tracing::instrument(name = "app.projects.remove_member", skip_all, fields(project.id = %id, user.id = %user))]
pub async fn remove_member(ctx: &mut Ctx, id: ProjectId, user: UserId) -> Result<(), Error> {
    ctx.require_in(id, Role::Admin).await?;
    if !projects::remove_member(ctx.conn(), id, user).await? {
        return Err(Error::not_found("member", user));
    }
    let data = json!({ "user_id": user });
    ctx.record(Told::new(EventKind::ProjectMemberRemoved, data).project(id).about(user)).await
}
