//! Groups: they give roles to many users at once.

use cynode_core::{
    accounts::Group,
    events::EventKind,
    ids::{GroupId, ProjectId},
    paging::{Page, PageRequest},
    roles::UserRole,
};
use cynode_db::identity::groups;
use cynode_wire::identity::accounts::{CreateGroup, RoleChange, UpdateGroup};
use serde_json::json;

use crate::{
    Ctx, Error,
    platform::{context::EventDraft, operation},
};

/// Creates a group.
#[tracing::instrument(name = "app.groups.create_group", skip_all)]
#[operation]
pub async fn create_group(ctx: &mut Ctx, body: CreateGroup) -> Result<Group, Error> {
    ctx.require_role(UserRole::Admin)?;
    let (id, now) = (GroupId::from_uuid(ctx.new_uuid()), ctx.now);
    match groups::insert_group(ctx.conn(), id, &body.name, now).await {
        Err(error) if error.is_refused_by("groups_name_unique") => {
            return Err(Error::AlreadyExists {
                what: "a group with the name",
                name: body.name.into(),
            });
        }
        result => result?,
    }
    ctx.record_event(EventDraft::new(EventKind::GroupCreated, json!({ "group_id": id }))).await?;
    Ok(Group {
        id,
        name: body.name,
        role: None,
        can_create_projects: false,
        members: Vec::new(),
        created_at: now,
    })
}

/// Lists all groups.
#[tracing::instrument(name = "app.groups.list_groups", skip_all)]
#[operation]
pub async fn list_groups(ctx: &mut Ctx, page: PageRequest) -> Result<Page<Group>, Error> {
    ctx.require_role(UserRole::Viewer)?;
    let found = groups::list_groups(ctx.conn(), page).await?;
    Ok(page.into_page(found, |group| group.id.as_uuid()))
}

/// Updates the members and the role of a group.
#[tracing::instrument(name = "app.groups.update_group", skip_all, fields(group.id = %id))]
#[operation]
pub async fn update_group(ctx: &mut Ctx, id: GroupId, body: UpdateGroup) -> Result<Group, Error> {
    ctx.require_role(UserRole::Admin)?;
    let now = ctx.now;
    let missing = || Error::not_found("group", id);
    groups::lock_group(ctx.conn(), id).await?.ok_or_else(missing)?;
    groups::remove_members(ctx.conn(), id, &body.remove).await?;
    match groups::add_members(ctx.conn(), id, &body.add, now).await {
        Err(error) if error.is_refused_by("group_members_user_id_fkey") => {
            return Err(Error::Invalid("`add` names a user who does not exist".into()));
        }
        result => result?,
    }
    if let Some(role) = body.role {
        groups::set_group_role(ctx.conn(), id, None, role.into(), now).await?;
    }
    if let Some(allowed) = body.can_create_projects {
        groups::set_project_creation(ctx.conn(), id, allowed).await?;
    }
    let data = json!({
        "group_id": id,
        "role": body.role,
        "can_create_projects": body.can_create_projects,
        "added": body.add,
        "removed": body.remove,
    });
    // The preferences of its members may have changed, and whether they are admins.
    ctx.invalidate_policy().await?;
    ctx.record_event(EventDraft::new(EventKind::GroupUpdated, data)).await?;
    groups::lock_group(ctx.conn(), id).await?.ok_or_else(missing)
}

/// Sets or removes the role of a group in a project.
#[tracing::instrument(name = "app.groups.set_project_role", skip_all, fields(group.id = %id, project.id = %project))]
#[operation]
pub async fn set_project_role(
    ctx: &mut Ctx,
    project: ProjectId,
    id: GroupId,
    role: RoleChange,
) -> Result<(), Error> {
    ctx.require_project_role(project, UserRole::Admin).await?;
    let now = ctx.now;
    match groups::set_group_role(ctx.conn(), id, Some(project), role.into(), now).await {
        Err(error) if error.is_refused_by("role_bindings_group_id_fkey") => {
            return Err(Error::not_found("group", id));
        }
        Err(error) if error.is_refused_by("role_bindings_project_id_fkey") => {
            return Err(Error::not_found("project", project));
        }
        result => result?,
    }
    let data = json!({ "group_id": id, "role": role });
    ctx.record_event(EventDraft::new(EventKind::ProjectMemberSet, data).with_project(project)).await
}
