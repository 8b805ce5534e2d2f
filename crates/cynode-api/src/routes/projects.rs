use axum::http::StatusCode;
use cynode_app::{
    identity::groups,
    tasks::projects::{self, ProjectRef},
};
use cynode_core::{
    ids::{GroupId, UserId},
    paging::Page,
};
use cynode_wire::tasks::projects::{
    CreateProject, MemberView, ProjectView, SetGroupRole, SetMember, UpdateProject,
};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
};

/// A project in a URL: its id `prj_…` or its slug.
#[derive(Clone, Debug)]
pub(crate) struct ProjectName(pub(crate) ProjectRef);

impl<'de> Deserialize<'de> for ProjectName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

/// Creates a project. You become its first admin.
#[utoipa::path(post, path = "/v1/projects", tag = "projects", request_body = CreateProject,
    responses((status = CREATED, body = ProjectView)))]
pub(crate) async fn create_project(
    call: MutationCall<CreateProject>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async { Ok(ProjectView::from(projects::create_project(ctx, body).await?)) })
    });
    Ok(MutationResponse(StatusCode::CREATED, answer.await?))
}

/// Filter of projects.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ProjectListQuery {
    /// Whether archived projects are included.
    #[serde(default)]
    archived: bool,
}

/// Lists the projects you may see; archived ones only with `archived=true`.
#[utoipa::path(get, path = "/v1/projects", tag = "projects", params(ProjectListQuery, PageQuery),
    responses((status = OK, body = Page<ProjectView>)))]
pub(crate) async fn list_projects(
    call: AuthenticatedCall,
    Query(wanted): Query<ProjectListQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ProjectView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call
        .app
        .read(&call.request, |ctx| projects::list_projects(ctx, wanted.archived, page))
        .await?;
    Ok(Json(found.map(ProjectView::from)))
}

/// Archives a project: it takes no new tasks until it is unarchived. Open tasks prevent it.
#[utoipa::path(post, path = "/v1/projects/{project}/archive", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = ProjectView)))]
pub(crate) async fn archive_project(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            Ok(ProjectView::from(projects::archive_project(ctx, id).await?))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Unarchives a project.
#[utoipa::path(post, path = "/v1/projects/{project}/unarchive", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = ProjectView)))]
pub(crate) async fn unarchive_project(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            Ok(ProjectView::from(projects::unarchive_project(ctx, id).await?))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Deletes an archived project with its tasks, repository, models, budgets, schedules and preferences.
/// Events and audit records stay.
#[utoipa::path(delete, path = "/v1/projects/{project}", tag = "projects",
    params(("project" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_project(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            projects::delete_project(ctx, id).await
        })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Returns one project, by id or slug.
#[utoipa::path(get, path = "/v1/projects/{project}", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = ProjectView)))]
pub(crate) async fn get_project(
    call: AuthenticatedCall,
    Path(ProjectName(project)): Path<ProjectName>,
) -> Result<Json<ProjectView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { projects::get_project(ctx, &project).await })
    });
    Ok(Json(found.await?.into()))
}

/// Updates a project.
#[utoipa::path(patch, path = "/v1/projects/{project}", tag = "projects",
    params(("project" = String, Path)), request_body = UpdateProject,
    responses((status = OK, body = ProjectView)))]
pub(crate) async fn update_project(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<UpdateProject>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            Ok(ProjectView::from(projects::update_project(ctx, id, body).await?))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Lists the members of a project.
#[utoipa::path(get, path = "/v1/projects/{project}/members", tag = "projects",
    params(("project" = String, Path), PageQuery), responses((status = OK, body = Page<MemberView>)))]
pub(crate) async fn list_members(
    call: AuthenticatedCall,
    Path(ProjectName(project)): Path<ProjectName>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<MemberView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            projects::list_members(ctx, id, page).await
        })
    });
    Ok(Json(found.await?.map(MemberView::from)))
}

/// Sets the role of a user in a project.
#[utoipa::path(put, path = "/v1/projects/{project}/members/{user}", tag = "projects",
    params(("project" = String, Path), ("user" = String, Path)), request_body = SetMember,
    responses((status = NO_CONTENT)))]
pub(crate) async fn set_member(
    Path((project, user)): Path<(ProjectName, UserId)>,
    call: MutationCall<SetMember>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project.0).await?;
            projects::set_member(ctx, id, user, body.role).await
        })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Removes a user from a project.
#[utoipa::path(delete, path = "/v1/projects/{project}/members/{user}", tag = "projects",
    params(("project" = String, Path), ("user" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn remove_member(
    Path((project, user)): Path<(ProjectName, UserId)>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project.0).await?;
            projects::remove_member(ctx, id, user).await
        })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Sets or removes the role of a group in a project.
#[utoipa::path(put, path = "/v1/projects/{project}/groups/{group}", tag = "projects",
    params(("project" = String, Path), ("group" = String, Path)), request_body = SetGroupRole,
    responses((status = NO_CONTENT)))]
pub(crate) async fn set_group_role(
    Path((project, group)): Path<(ProjectName, GroupId)>,
    call: MutationCall<SetGroupRole>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project.0).await?;
            groups::set_project_role(ctx, id, group, body.role).await
        })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}
