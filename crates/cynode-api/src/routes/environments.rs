//! Environments of projects, the secrets of their set-up, and the packages that jobs fetched.

use axum::http::StatusCode;
use cynode_app::{
    delivery::environments::{self, PackageFetchFilter, PackageFetchRecord, ProjectSecretInfo},
    tasks::projects,
};
use cynode_core::ids::TaskId;
use cynode_wire::{
    delivery::environments::{
        DecideEnvironment, DetectEnvironment, EnvironmentView, PackageFetchView, ProjectSecretView,
        ProposeEnvironment, SetProjectSecret, TryEnvironment,
    },
    tasks::TaskView,
};
use serde::Deserialize;

use super::{projects::ProjectName, tools::UnpagedList};
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, Path, Query},
};

fn to_secret_view(secret: ProjectSecretInfo) -> ProjectSecretView {
    ProjectSecretView { name: secret.name, set_by: secret.created_by, set_at: secret.created_at }
}

fn to_fetch_view(record: PackageFetchRecord) -> PackageFetchView {
    PackageFetchView {
        task_id: record.task,
        job_id: record.job,
        source: record.fetch.source,
        package: record.fetch.package,
        version: record.fetch.version,
        sha256: record.fetch.sha256,
        bytes: record.fetch.bytes,
        cached: record.fetch.cached,
        refused: record.fetch.refused,
        fetched_at: record.fetched_at,
    }
}

/// Lists the versions of a project's environment, newest first.
#[utoipa::path(get, path = "/v1/projects/{project}/environments", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = UnpagedList<EnvironmentView>)))]
pub(crate) async fn list_environments(
    Path(ProjectName(project)): Path<ProjectName>,
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<EnvironmentView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            environments::list_environments(ctx, id).await
        })
    });
    let found = found.await?.into_iter().map(environments::to_environment_view);
    Ok(Json(UnpagedList::new(found.collect())))
}

/// Proposes an environment for a project. It takes effect when an admin of the project accepts it.
/// The same content is not stored twice: the version that has it is returned.
#[utoipa::path(post, path = "/v1/projects/{project}/environments", tag = "projects",
    params(("project" = String, Path)), request_body = ProposeEnvironment,
    responses((status = CREATED, body = EnvironmentView)))]
pub(crate) async fn propose_environment(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<ProposeEnvironment>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            let record = environments::propose_environment(ctx, id, body.spec).await?;
            Ok(environments::to_environment_view(record))
        })
    });
    Ok(MutationResponse(StatusCode::CREATED, answer.await?))
}

/// Returns the version of a project's environment that jobs run in.
#[utoipa::path(get, path = "/v1/projects/{project}/environments/accepted", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = EnvironmentView)))]
pub(crate) async fn accepted_environment(
    Path(ProjectName(project)): Path<ProjectName>,
    call: AuthenticatedCall,
) -> Result<Json<EnvironmentView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            environments::get_accepted_environment(ctx, id).await
        })
    });
    Ok(Json(environments::to_environment_view(found.await?)))
}

/// Detects an environment from the files of the default branch and proposes it.
/// If the same content is accepted or proposed already, that version is returned.
#[utoipa::path(post, path = "/v1/projects/{project}/environments/detect", tag = "projects",
    params(("project" = String, Path)), request_body = DetectEnvironment,
    responses((status = OK, body = EnvironmentView)))]
pub(crate) async fn detect_environment(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<DetectEnvironment>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let found = app.read(&request, |ctx| {
        Box::pin(async move { projects::resolve_project(ctx, &project).await })
    });
    let project = found.await?;
    let answer = environments::detect_environment(&app, &request, project, body).await?;
    Ok(MutationResponse(StatusCode::OK, answer))
}

/// Tries a version of a project's environment: a task sets it up and runs its checks. No model is asked.
#[utoipa::path(post, path = "/v1/projects/{project}/environments/try", tag = "projects",
    params(("project" = String, Path)), request_body = TryEnvironment,
    responses((status = CREATED, body = TaskView)))]
pub(crate) async fn try_environment(
    Path(ProjectName(project)): Path<ProjectName>,
    call: MutationCall<TryEnvironment>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            Ok(TaskView::from(environments::try_environment(ctx, id, body).await?))
        })
    });
    Ok(MutationResponse(StatusCode::CREATED, answer.await?))
}

/// Returns a version of a project's environment.
#[utoipa::path(get, path = "/v1/projects/{project}/environments/{version}", tag = "projects",
    params(("project" = String, Path), ("version" = u32, Path)),
    responses((status = OK, body = EnvironmentView)))]
pub(crate) async fn get_environment(
    Path((project, version)): Path<(ProjectName, u32)>,
    call: AuthenticatedCall,
) -> Result<Json<EnvironmentView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project.0).await?;
            environments::get_environment(ctx, id, version).await
        })
    });
    Ok(Json(environments::to_environment_view(found.await?)))
}

/// Accepts a version: jobs of the project run in it from now on.
#[utoipa::path(post, path = "/v1/projects/{project}/environments/{version}/accept", tag = "projects",
    params(("project" = String, Path), ("version" = u32, Path)), request_body = DecideEnvironment,
    responses((status = OK, body = EnvironmentView)))]
pub(crate) async fn accept_environment(
    Path((project, version)): Path<(ProjectName, u32)>,
    call: MutationCall<DecideEnvironment>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project.0).await?;
            let record = environments::accept_environment(ctx, id, version, body).await?;
            Ok(environments::to_environment_view(record))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Rejects a version. If jobs ran in it, the project has no environment any more.
#[utoipa::path(post, path = "/v1/projects/{project}/environments/{version}/reject", tag = "projects",
    params(("project" = String, Path), ("version" = u32, Path)), request_body = DecideEnvironment,
    responses((status = OK, body = EnvironmentView)))]
pub(crate) async fn reject_environment(
    Path((project, version)): Path<(ProjectName, u32)>,
    call: MutationCall<DecideEnvironment>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project.0).await?;
            let record = environments::reject_environment(ctx, id, version, body).await?;
            Ok(environments::to_environment_view(record))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Lists the secrets of a project by name. Values are never shown.
#[utoipa::path(get, path = "/v1/projects/{project}/secrets", tag = "projects",
    params(("project" = String, Path)), responses((status = OK, body = UnpagedList<ProjectSecretView>)))]
pub(crate) async fn list_secrets(
    Path(ProjectName(project)): Path<ProjectName>,
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<ProjectSecretView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            environments::list_secrets(ctx, id).await
        })
    });
    Ok(Json(UnpagedList::new(found.await?.into_iter().map(to_secret_view).collect())))
}

/// Sets a secret of a project. It is stored sealed; the set-up of an accepted environment can get it.
#[utoipa::path(put, path = "/v1/projects/{project}/secrets/{secret}", tag = "projects",
    params(("project" = String, Path), ("secret" = String, Path)), request_body = SetProjectSecret,
    responses((status = OK, body = ProjectSecretView)))]
pub(crate) async fn set_secret(
    Path((project, name)): Path<(ProjectName, String)>,
    call: MutationCall<SetProjectSecret>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let keys = app.gateway_parts()?.keys.clone();
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project.0).await?;
            let secret = environments::set_secret(ctx, keys, id, name, body.value).await?;
            Ok(to_secret_view(secret))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Deletes a secret of a project.
#[utoipa::path(delete, path = "/v1/projects/{project}/secrets/{secret}", tag = "projects",
    params(("project" = String, Path), ("secret" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_secret(
    Path((project, name)): Path<(ProjectName, String)>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project.0).await?;
            environments::delete_secret(ctx, id, &name).await
        })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Filter of package fetches.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PackageQuery {
    /// Only fetches of this task.
    #[param(value_type = Option<String>)]
    task: Option<TaskId>,
    /// Only fetches that were refused.
    #[serde(default)]
    refused: bool,
}

/// Lists the packages that jobs of a project fetched or were refused, newest first; at most 1000.
#[utoipa::path(get, path = "/v1/projects/{project}/packages", tag = "projects",
    params(("project" = String, Path), PackageQuery),
    responses((status = OK, body = UnpagedList<PackageFetchView>)))]
pub(crate) async fn list_packages(
    Path(ProjectName(project)): Path<ProjectName>,
    call: AuthenticatedCall,
    Query(wanted): Query<PackageQuery>,
) -> Result<Json<UnpagedList<PackageFetchView>>, ApiError> {
    let filter = PackageFetchFilter { task: wanted.task, refused: wanted.refused };
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = projects::resolve_project(ctx, &project).await?;
            environments::list_package_fetches(ctx, id, filter).await
        })
    });
    Ok(Json(UnpagedList::new(found.await?.into_iter().map(to_fetch_view).collect())))
}
