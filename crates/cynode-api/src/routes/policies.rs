use axum::http::StatusCode;
use cynode_app::tasks::policies;
use cynode_core::ids::{ProjectId, TaskId};
use cynode_wire::tasks::policies::{EffectivePolicyList, PolicyList, SetPolicy};
use serde::Deserialize;

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, Path, Query},
    routes::preferences::{ScopeQuery, parse_subject},
};

/// Lists the mandatory policies of one scope: the system, a group or a project.
#[utoipa::path(get, path = "/v1/policies", tag = "settings", params(ScopeQuery),
    responses((status = OK, body = PolicyList)))]
pub(crate) async fn list_policies(
    call: AuthenticatedCall,
    Query(scope): Query<ScopeQuery>,
) -> Result<Json<PolicyList>, ApiError> {
    let scope = scope.to_preference_scope()?;
    let found = call.app.read(&call.request, |ctx| policies::list_policies(ctx, scope)).await?;
    Ok(Json(PolicyList::from(&found)))
}

/// Sets a mandatory policy. All policies that apply hold together, so a narrower scope can only be stricter.
#[utoipa::path(put, path = "/v1/policies/{key}", tag = "settings",
    params(("key" = String, Path), ScopeQuery), request_body = SetPolicy,
    responses((status = OK, body = PolicyList)))]
pub(crate) async fn set_policy(
    Path(key): Path<String>,
    Query(scope): Query<ScopeQuery>,
    call: MutationCall<SetPolicy>,
) -> Result<MutationResponse, ApiError> {
    let scope = scope.to_preference_scope()?;
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let found = policies::set_policy(ctx, scope, &key, &body.value).await?;
            Ok(PolicyList::from(&found))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Deletes a mandatory policy.
#[utoipa::path(delete, path = "/v1/policies/{key}", tag = "settings",
    params(("key" = String, Path), ScopeQuery), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_policy(
    Path(key): Path<String>,
    Query(scope): Query<ScopeQuery>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let scope = scope.to_preference_scope()?;
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { policies::delete_policy(ctx, scope, &key).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}

/// Subject of the effective policies.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EffectivePolicyQuery {
    /// A task; its project and its author count.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
    /// A project, with the groups that you are in.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
}

/// Lists the mandatory policies that hold, each with the scopes that it comes from and who set it.
#[utoipa::path(get, path = "/v1/effective-policies", tag = "settings", params(EffectivePolicyQuery),
    responses((status = OK, body = EffectivePolicyList)))]
pub(crate) async fn effective_policies(
    call: AuthenticatedCall,
    Query(query): Query<EffectivePolicyQuery>,
) -> Result<Json<EffectivePolicyList>, ApiError> {
    let about = parse_subject(query.task_id, query.project_id)?;
    let found = call.app.read(&call.request, |ctx| policies::effective_policies(ctx, about));
    Ok(Json(EffectivePolicyList::from(&found.await?)))
}
