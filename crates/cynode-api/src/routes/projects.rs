use axum::http::StatusCode;
use cynode_app::{
    groups,
    projects::{self, ProjectRef},
};
use cynode_core::ids::{GroupId, UserId};
use cynode_wire::{
    page::Page,
    projects::{CreateProject, MemberView, ProjectView, SetGroupRole, SetMember, UpdateProject},
};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, PageQuery, Path, Query},
};

/// A project as a URL names it: `prj_…` or its slug.
#[derive(Clone, Debug)]
pub(crate) struct ProjectName(pub(crate) ProjectRef);

impl<'de> Deserialize<'de> for ProjectName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // No slug has a `_`, so the two never meet.
        let named = if text.contains('_') {
            text.parse().map(ProjectRef::Id).map_err(D::Error::custom)
        } else {
            text.parse().map(ProjectRef::Slug).map_err(D::Error::custom)
        };
        named.map(Self)
    }
}

/// Make a project. You become its first admin.
#[utoipa::path(post, path = "/v1/projects", tag = "projects", request_body = CreateProject,
    responses((status = CREATED, body = ProjectView)))]
pub(crate) async fn create_project(call: Mutation<CreateProject>) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async { Ok(ProjectView::from(projects::create(ctx, body).await?)) })
    });
    Ok(Answered(StatusCode::CREATED, answer.await?))
}

/// The projects you may see.
#[utoipa::path(get, path = "/v1/projects", tag = "projects", params(PageQuery),
    responses((status = OK, body = Page<ProjectView>)))]
pub(crate) async fn list_projects(
    call: Call,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ProjectView>>, ApiError> {
    let page = page.page()?;
    let found = call.app.read(&call.request, |ctx| Box::pin(projects::list(ctx, page))).await?;
    Ok(Json(found.map(ProjectView::from)))
}

/// One project, by id or slug.
#[utoipa::path(get, path = "/v1/projects/{project}", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = ProjectView)))]
pub(crate) async fn get_project(
    call: Call,
    Path(ProjectName(project)): Path<ProjectName>,
) -> Result<Json<ProjectView>, ApiError> {
    let found = call
        .app
        .read(&call.request, |ctx| Box::pin(async move { projects::get(ctx, &project).await }));
    Ok(Json(found.await?.into()))
}

/// Change a project.
#[utoipa::path(patch, path = "/v1/projects/{project}", tag = "projects",
    params(("project" = String, Path)), request_body = UpdateProject,
    responses((status = OK, body = ProjectView)))]
pub(crate) async fn update_project(
    Path(ProjectName(project)): Path<ProjectName>,
    call: Mutation<UpdateProject>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve(ctx, &project).await?;
            Ok(ProjectView::from(projects::update(ctx, id, body).await?))
        })
    });
    Ok(Answered(StatusCode::OK, answer.await?))
}

/// The members of a project.
#[utoipa::path(get, path = "/v1/projects/{project}/members", tag = "projects",
    params(("project" = String, Path), PageQuery), responses((status = OK, body = Page<MemberView>)))]
pub(crate) async fn list_members(
    call: Call,
    Path(ProjectName(project)): Path<ProjectName>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<MemberView>>, ApiError> {
    let page = page.page()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve(ctx, &project).await?;
            projects::members(ctx, id, page).await
        })
    });
    Ok(Json(found.await?.map(MemberView::from)))
}

/// Give a user a role in a project.
#[utoipa::path(put, path = "/v1/projects/{project}/members/{user}", tag = "projects",
    params(("project" = String, Path), ("user" = String, Path)), request_body = SetMember,
    responses((status = NO_CONTENT)))]
pub(crate) async fn set_member(
    Path((project, user)): Path<(ProjectName, UserId)>,
    call: Mutation<SetMember>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve(ctx, &project.0).await?;
            projects::set_member(ctx, id, user, body.role).await
        })
    });
    Ok(Answered(StatusCode::NO_CONTENT, answer.await?))
}

/// Take a user out of a project.
#[utoipa::path(delete, path = "/v1/projects/{project}/members/{user}", tag = "projects",
    params(("project" = String, Path), ("user" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn remove_member(
    Path((project, user)): Path<(ProjectName, UserId)>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve(ctx, &project.0).await?;
            projects::remove_member(ctx, id, user).await
        })
    });
    Ok(Answered(StatusCode::NO_CONTENT, answer.await?))
}

/// Give a group a role in a project, or take it away.
#[utoipa::path(put, path = "/v1/projects/{project}/groups/{group}", tag = "projects",
    params(("project" = String, Path), ("group" = String, Path)), request_body = SetGroupRole,
    responses((status = NO_CONTENT)))]
pub(crate) async fn set_group_role(
    Path((project, group)): Path<(ProjectName, GroupId)>,
    call: Mutation<SetGroupRole>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve(ctx, &project.0).await?;
            groups::set_project_role(ctx, id, group, body.role).await
        })
    });
    Ok(Answered(StatusCode::NO_CONTENT, answer.await?))
}
