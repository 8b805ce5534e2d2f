use axum::http::StatusCode;
use cynode_app::tasks::preferences::{self, PreferenceSubject};
use cynode_core::{
    agents::AgentRole,
    ids::{ProjectId, TaskId},
    names::DottedKey,
    preferences::{PreferenceScope, ScopeType},
};
use cynode_wire::{
    platform::settings::{ChangeView, SetValue, ValueHistory, ValueList, ValueView},
    tasks::preferences::EffectiveView,
};
use serde::Deserialize;

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, Path, Query},
    routes::settings::VersionQuery,
};

/// The scope of a preference.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScopeQuery {
    /// Kind of the scope: system, group, user, project or task.
    #[param(value_type = String)]
    scope_type: ScopeType,
    /// Id of the group, user, project or task; omitted for the system.
    scope_id: Option<String>,
}

impl ScopeQuery {
    pub(super) fn to_preference_scope(&self) -> Result<PreferenceScope, ApiError> {
        let wrong =
            |error: cynode_core::ids::IdError| ApiError::Malformed(format!("scope_id: {error}"));
        match (self.scope_type, self.scope_id.as_deref()) {
            (ScopeType::System, None) => Ok(PreferenceScope::System),
            (ScopeType::System, Some(_)) => {
                Err(ApiError::Malformed("the system scope takes no `scope_id`".into()))
            }
            (_, None) => Err(ApiError::Malformed("this scope needs a `scope_id`".into())),
            (ScopeType::Group, Some(id)) => id.parse().map(PreferenceScope::Group).map_err(wrong),
            (ScopeType::User, Some(id)) => id.parse().map(PreferenceScope::User).map_err(wrong),
            (ScopeType::Project, Some(id)) => {
                id.parse().map(PreferenceScope::Project).map_err(wrong)
            }
            (ScopeType::Task, Some(id)) => id.parse().map(PreferenceScope::Task).map_err(wrong),
        }
    }
}

/// Lists the preferences of one scope.
#[utoipa::path(get, path = "/v1/preferences", tag = "settings", params(ScopeQuery),
    responses((status = OK, body = ValueList)))]
pub(crate) async fn list_preferences(
    call: AuthenticatedCall,
    Query(scope): Query<ScopeQuery>,
) -> Result<Json<ValueList>, ApiError> {
    let scope = scope.to_preference_scope()?;
    let found =
        call.app.read(&call.request, |ctx| preferences::list_preferences(ctx, scope)).await?;
    Ok(Json(ValueList { items: found.into_iter().map(ValueView::from).collect() }))
}

/// Returns one preference of one scope.
#[utoipa::path(get, path = "/v1/preferences/{key}", tag = "settings",
    params(("key" = String, Path), ScopeQuery), responses((status = OK, body = ValueView)))]
pub(crate) async fn get_preference(
    call: AuthenticatedCall,
    Path(key): Path<DottedKey>,
    Query(scope): Query<ScopeQuery>,
) -> Result<Json<ValueView>, ApiError> {
    let scope = scope.to_preference_scope()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { preferences::get_preference(ctx, scope, &key).await })
    });
    Ok(Json(found.await?.into()))
}

/// Lists the versions of a preference, newest first.
#[utoipa::path(get, path = "/v1/preferences/{key}/history", tag = "settings",
    params(("key" = String, Path), ScopeQuery), responses((status = OK, body = ValueHistory)))]
pub(crate) async fn preference_history(
    call: AuthenticatedCall,
    Path(key): Path<DottedKey>,
    Query(scope): Query<ScopeQuery>,
) -> Result<Json<ValueHistory>, ApiError> {
    let scope = scope.to_preference_scope()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { preferences::list_preference_changes(ctx, scope, &key).await })
    });
    Ok(Json(ValueHistory { items: found.await?.into_iter().map(ChangeView::from).collect() }))
}

/// Sets a preference, unless another writer changed it in between.
#[utoipa::path(put, path = "/v1/preferences/{key}", tag = "settings",
    params(("key" = String, Path), ScopeQuery), request_body = SetValue,
    responses((status = OK, body = ValueView)))]
pub(crate) async fn set_preference(
    Path(key): Path<DottedKey>,
    Query(scope): Query<ScopeQuery>,
    call: MutationCall<SetValue>,
) -> Result<MutationResponse, ApiError> {
    let scope = scope.to_preference_scope()?;
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let expected = body.expected_state();
            let written =
                preferences::set_preference(ctx, scope, &key, &body.value, expected).await?;
            Ok(ValueView::from(written))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Deletes a preference, unless another writer changed it in between.
#[utoipa::path(delete, path = "/v1/preferences/{key}", tag = "settings",
    params(("key" = String, Path), ScopeQuery, VersionQuery), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_preference(
    Path(key): Path<DottedKey>,
    Query(scope): Query<ScopeQuery>,
    Query(version): Query<VersionQuery>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let (scope, version) = (scope.to_preference_scope()?, i64::from(version.expected_version));
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { preferences::delete_preference(ctx, scope, &key, version).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Subject of the effective preferences.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EffectiveQuery {
    /// A task; its project and its author count.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
    /// A project, with your own preferences.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Only preferences that this agent role receives: `project_manager` or `project_analyst`.
    #[param(value_type = Option<String>)]
    agent_role: Option<AgentRole>,
}

/// Returns the subject of what holds.
pub(super) fn parse_subject(
    task: Option<TaskId>,
    project: Option<ProjectId>,
) -> Result<PreferenceSubject, ApiError> {
    match (task, project) {
        (Some(_), Some(_)) => {
            Err(ApiError::Malformed("give `task_id` or `project_id`, not both".into()))
        }
        (Some(task), None) => Ok(PreferenceSubject::Task(task)),
        (None, Some(project)) => Ok(PreferenceSubject::Project(project)),
        (None, None) => Ok(PreferenceSubject::Caller),
    }
}

/// Lists the effective preferences with the scope of each. Precedence: task > project > user > group > system.
#[utoipa::path(get, path = "/v1/effective-preferences", tag = "settings", params(EffectiveQuery),
    responses((status = OK, body = EffectiveView)))]
pub(crate) async fn effective_preferences(
    call: AuthenticatedCall,
    Query(query): Query<EffectiveQuery>,
) -> Result<Json<EffectiveView>, ApiError> {
    let about = parse_subject(query.task_id, query.project_id)?;
    let resolution = call.app.read(&call.request, |ctx| {
        preferences::effective_preferences(ctx, about, query.agent_role)
    });
    Ok(Json(resolution.await?.into()))
}
