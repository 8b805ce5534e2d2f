use axum::http::StatusCode;
use cynode_app::preferences::{self, About};
use cynode_core::{
    agents::AgentRole,
    ids::{ProjectId, TaskId},
    names::DottedKey,
    preferences::{Scope, ScopeType},
};
use cynode_wire::{
    preferences::EffectiveView,
    settings::{ChangeView, History, SetValue, ValueView, Values},
};
use serde::Deserialize;

use crate::{
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, Path, Query},
    routes::settings::VersionQuery,
};

/// Whom a preference speaks for.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScopeQuery {
    /// The kind of scope: system, group, user, project or task.
    #[param(value_type = String)]
    scope_type: ScopeType,
    /// Which one; left out for the system.
    scope_id: Option<String>,
}

impl ScopeQuery {
    fn scope(&self) -> Result<Scope, ApiError> {
        let wrong =
            |error: cynode_core::ids::IdError| ApiError::Malformed(format!("scope_id: {error}"));
        match (self.scope_type, self.scope_id.as_deref()) {
            (ScopeType::System, None) => Ok(Scope::System),
            (ScopeType::System, Some(_)) => {
                Err(ApiError::Malformed("the system scope takes no `scope_id`".into()))
            }
            (_, None) => Err(ApiError::Malformed("this scope needs a `scope_id`".into())),
            (ScopeType::Group, Some(id)) => id.parse().map(Scope::Group).map_err(wrong),
            (ScopeType::User, Some(id)) => id.parse().map(Scope::User).map_err(wrong),
            (ScopeType::Project, Some(id)) => id.parse().map(Scope::Project).map_err(wrong),
            (ScopeType::Task, Some(id)) => id.parse().map(Scope::Task).map_err(wrong),
        }
    }
}

/// All preferences of one scope.
#[utoipa::path(get, path = "/v1/preferences", tag = "settings", params(ScopeQuery),
    responses((status = OK, body = Values)))]
pub(crate) async fn list_preferences(
    call: Call,
    Query(scope): Query<ScopeQuery>,
) -> Result<Json<Values>, ApiError> {
    let scope = scope.scope()?;
    let found = call.app.read(&call.request, |ctx| Box::pin(preferences::list(ctx, scope))).await?;
    Ok(Json(Values { items: found.into_iter().map(ValueView::from).collect() }))
}

/// One preference of one scope.
#[utoipa::path(get, path = "/v1/preferences/{key}", tag = "settings",
    params(("key" = String, Path), ScopeQuery), responses((status = OK, body = ValueView)))]
pub(crate) async fn get_preference(
    call: Call,
    Path(key): Path<DottedKey>,
    Query(scope): Query<ScopeQuery>,
) -> Result<Json<ValueView>, ApiError> {
    let scope = scope.scope()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { preferences::get(ctx, scope, &key).await })
    });
    Ok(Json(found.await?.into()))
}

/// The writes of a preference, newest first.
#[utoipa::path(get, path = "/v1/preferences/{key}/history", tag = "settings",
    params(("key" = String, Path), ScopeQuery), responses((status = OK, body = History)))]
pub(crate) async fn preference_history(
    call: Call,
    Path(key): Path<DottedKey>,
    Query(scope): Query<ScopeQuery>,
) -> Result<Json<History>, ApiError> {
    let scope = scope.scope()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { preferences::history(ctx, scope, &key).await })
    });
    Ok(Json(History { items: found.await?.into_iter().map(ChangeView::from).collect() }))
}

/// Write a preference, if nobody wrote it in between.
#[utoipa::path(put, path = "/v1/preferences/{key}", tag = "settings",
    params(("key" = String, Path), ScopeQuery), request_body = SetValue,
    responses((status = OK, body = ValueView)))]
pub(crate) async fn set_preference(
    Path(key): Path<DottedKey>,
    Query(scope): Query<ScopeQuery>,
    call: Mutation<SetValue>,
) -> Result<Answered, ApiError> {
    let scope = scope.scope()?;
    let Mutation { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let expected = body.expected();
            let written = preferences::set(ctx, scope, &key, &body.value, expected).await?;
            Ok(ValueView::from(written))
        })
    });
    Ok(Answered(StatusCode::OK, answer.await?))
}

/// Delete a preference, if nobody wrote it in between.
#[utoipa::path(delete, path = "/v1/preferences/{key}", tag = "settings",
    params(("key" = String, Path), ScopeQuery, VersionQuery), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_preference(
    Path(key): Path<DottedKey>,
    Query(scope): Query<ScopeQuery>,
    Query(version): Query<VersionQuery>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let (scope, version) = (scope.scope()?, i64::from(version.expected_version));
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { preferences::delete(ctx, scope, &key, version).await })
    });
    Ok(Answered(StatusCode::NO_CONTENT, answer.await?))
}

/// For what the effective preferences are asked.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EffectiveQuery {
    /// A task, whose project and author count.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
    /// A project, for you.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Only what may reach this agent: `project_manager` or `project_analyst`.
    #[param(value_type = Option<String>)]
    agent_role: Option<AgentRole>,
}

/// What holds, and who said it: task > project > user > group > system.
#[utoipa::path(get, path = "/v1/effective-preferences", tag = "settings", params(EffectiveQuery),
    responses((status = OK, body = EffectiveView)))]
pub(crate) async fn effective_preferences(
    call: Call,
    Query(query): Query<EffectiveQuery>,
) -> Result<Json<EffectiveView>, ApiError> {
    let about = match (query.task_id, query.project_id) {
        (Some(_), Some(_)) => {
            return Err(ApiError::Malformed("give `task_id` or `project_id`, not both".into()));
        }
        (Some(task), None) => About::Task(task),
        (None, Some(project)) => About::Project(project),
        (None, None) => About::Caller,
    };
    let resolution = call
        .app
        .read(&call.request, |ctx| Box::pin(preferences::effective(ctx, about, query.agent_role)));
    Ok(Json(resolution.await?.into()))
}
