//! Models, for the operators of the installation: providers, keys, models, budgets, usage.

use axum::http::StatusCode;
use cynode_app::models::{
    budgets,
    inference::{self, RoutingSubject},
    registry, usage,
};
use cynode_core::{
    agents::AgentRole,
    ids::{BudgetId, ProjectId, ProviderKeyId, TaskId, UserId},
    models::{Tier, UsageBy, UsageStep},
    paging::Page,
};
use cynode_wire::models::{
    AddProviderKey, BudgetScopeType, BudgetStatusView, ModelChoices, ModelView, ParkView,
    ProviderKeyView, ProviderView, SetBudget, SetModel, SetProvider, UsageCall, UsagePoint,
    UsageSum,
};
use serde::Deserialize;
use time::OffsetDateTime;

use super::tools::UnpagedList;
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
};

/// Lists the providers of models.
#[utoipa::path(get, path = "/v1/providers", tag = "models", responses((status = OK, body = UnpagedList<ProviderView>)))]
pub(crate) async fn list_providers(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<ProviderView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| registry::list_providers(ctx));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Creates or replaces a provider.
#[utoipa::path(put, path = "/v1/providers/{name}", tag = "models", params(("name" = String, Path)),
    request_body = SetProvider, responses((status = OK, body = ProviderView)))]
pub(crate) async fn set_provider(
    Path(name): Path<String>,
    call: MutationCall<SetProvider>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let set = app.mutate(&request, |ctx| {
        Box::pin(async move { registry::set_provider(ctx, &name, body).await })
    });
    Ok(MutationResponse(StatusCode::OK, set.await?))
}

/// Deletes a provider with its keys.
#[utoipa::path(delete, path = "/v1/providers/{name}", tag = "models", params(("name" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_provider(
    Path(name): Path<String>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { registry::delete_provider(ctx, &name).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Adds a key to a provider. The key is stored encrypted and never shown again.
#[utoipa::path(post, path = "/v1/providers/{name}/keys", tag = "models", params(("name" = String, Path)),
    request_body = AddProviderKey, responses((status = CREATED, body = ProviderKeyView)))]
pub(crate) async fn add_provider_key(
    Path(name): Path<String>,
    call: MutationCall<AddProviderKey>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let added = app.mutate(&request, |ctx| {
        Box::pin(async move { registry::add_provider_key(ctx, &parts, &name, body).await })
    });
    Ok(MutationResponse(StatusCode::CREATED, added.await?))
}

/// Deletes a key of a provider.
#[utoipa::path(delete, path = "/v1/providers/{name}/keys/{key}", tag = "models",
    params(("name" = String, Path), ("key" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_provider_key(
    Path((name, key)): Path<(String, ProviderKeyId)>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { registry::delete_provider_key(ctx, &name, key).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Lists the models with their prices and routes.
#[utoipa::path(get, path = "/v1/model-registry", tag = "models", responses((status = OK, body = UnpagedList<ModelView>)))]
pub(crate) async fn list_registry(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<ModelView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| registry::list_models(ctx));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Creates or replaces a model. A `/` in its id is written `%2F`.
#[utoipa::path(put, path = "/v1/model-registry/{id}", tag = "models", params(("id" = String, Path)),
    request_body = SetModel, responses((status = OK, body = ModelView)))]
pub(crate) async fn set_model(
    Path(id): Path<String>,
    call: MutationCall<SetModel>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let set = app
        .mutate(&request, |ctx| Box::pin(async move { registry::set_model(ctx, &id, body).await }));
    Ok(MutationResponse(StatusCode::OK, set.await?))
}

/// Deletes a model.
#[utoipa::path(delete, path = "/v1/model-registry/{id}", tag = "models", params(("id" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_model(
    Path(id): Path<String>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { registry::delete_model(ctx, &id).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Subject of a model choice.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChoiceQuery {
    /// A task; its project and its author count.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
    /// A project, with your own preferences.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// An agent role; its own preferences count.
    #[param(value_type = Option<String>)]
    agent_role: Option<AgentRole>,
    /// Only this tier: `fast`, `standard` or `deep`.
    #[param(value_type = Option<String>)]
    tier: Option<Tier>,
}

/// Explains the choice of models for each tier: the first model, its fallbacks in order, and why the rest are not used.
#[utoipa::path(get, path = "/v1/model-choices", tag = "models", params(ChoiceQuery),
    responses((status = OK, body = ModelChoices)))]
pub(crate) async fn explain_models(
    call: AuthenticatedCall,
    Query(query): Query<ChoiceQuery>,
) -> Result<Json<ModelChoices>, ApiError> {
    let ChoiceQuery { task_id: task, project_id: project, agent_role: role, tier } = query;
    if task.is_some() && project.is_some() {
        return Err(ApiError::Malformed("give `task_id` or `project_id`, not both".into()));
    }
    let subject = RoutingSubject { project, task, role, tier };
    Ok(Json(inference::explain_routing(&call.app, &call.request, subject).await?))
}

/// Filter of budgets.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct BudgetQuery {
    /// `installation`, `user`, `project` or `task`. By default all except those of ended tasks, at most 1,000, tasks
    /// last.
    #[param(value_type = Option<String>)]
    scope_type: Option<BudgetScopeType>,
    /// Id of the user, project or task.
    scope_id: Option<String>,
}

/// Lists budgets with their limit, reserved and spent amounts.
#[utoipa::path(get, path = "/v1/budgets", tag = "models", params(BudgetQuery),
    responses((status = OK, body = UnpagedList<BudgetStatusView>)))]
pub(crate) async fn list_budgets(
    call: AuthenticatedCall,
    Query(of): Query<BudgetQuery>,
) -> Result<Json<UnpagedList<BudgetStatusView>>, ApiError> {
    let scope = match of.scope_type {
        Some(kind) => Some(budgets::parse_budget_scope(kind, of.scope_id.as_deref())?),
        None => None,
    };
    let found = call.app.read(&call.request, |ctx| budgets::list_budgets(ctx, scope));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Sets a budget. There is one for each scope and period.
#[utoipa::path(put, path = "/v1/budgets", tag = "models", request_body = SetBudget,
    responses((status = OK, body = BudgetStatusView)))]
pub(crate) async fn set_budget(
    call: MutationCall<SetBudget>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let set =
        app.mutate(&request, |ctx| Box::pin(async move { budgets::set_budget(ctx, &body).await }));
    Ok(MutationResponse(StatusCode::OK, set.await?))
}

/// Deletes a budget.
#[utoipa::path(delete, path = "/v1/budgets/{budget}", tag = "models", params(("budget" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_budget(
    Path(budget): Path<BudgetId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| budgets::delete_budget(ctx, budget));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Returns the reason why a task may not call models now; `null` if it may.
#[utoipa::path(get, path = "/v1/tasks/{task}/park", tag = "models", params(("task" = String, Path)),
    responses((status = OK, body = Option<ParkView>)))]
pub(crate) async fn get_park(
    Path(task): Path<TaskId>,
    call: AuthenticatedCall,
) -> Result<Json<Option<ParkView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| budgets::park_of_task(ctx, task));
    Ok(Json(found.await?))
}

/// Allows a task to call models again.
#[utoipa::path(delete, path = "/v1/tasks/{task}/park", tag = "models", params(("task" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn unpark(
    Path(task): Path<TaskId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| budgets::unpark_task(ctx, task));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Filter of model calls.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageQuery {
    /// Only calls of this user.
    #[param(value_type = Option<String>)]
    user_id: Option<UserId>,
    /// Only calls in this project.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Only calls for this task.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
    /// Only calls at or after this time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    from: Option<OffsetDateTime>,
    /// Only calls before this time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    to: Option<OffsetDateTime>,
}

impl UsageQuery {
    const fn to_usage_filter(self) -> usage::UsageFilter {
        usage::UsageFilter {
            user: self.user_id,
            project: self.project_id,
            task: self.task_id,
            seen_by: None,
            from: self.from,
            to: self.to,
        }
    }
}

/// Grouping of the sums.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageSumQuery {
    /// `model`, `provider`, `user`, `project`, `task`, `role` or `day`.
    #[param(value_type = Option<String>)]
    by: Option<UsageBy>,
}

/// Lists the usage of models in sums, by cost, descending.
#[utoipa::path(get, path = "/v1/usage", tag = "models", params(UsageQuery, UsageSumQuery),
    responses((status = OK, body = UnpagedList<UsageSum>)))]
pub(crate) async fn sum_usage(
    call: AuthenticatedCall,
    Query(of): Query<UsageQuery>,
    Query(by): Query<UsageSumQuery>,
) -> Result<Json<UnpagedList<UsageSum>>, ApiError> {
    let by = by.by.unwrap_or(UsageBy::Model);
    let found =
        call.app.read(&call.request, |ctx| usage::list_usage_sums(ctx, of.to_usage_filter(), by));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Steps and grouping of a series.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageSeriesQuery {
    /// `hour` or `day`; `hour` by default.
    #[param(value_type = Option<String>)]
    step: Option<UsageStep>,
    /// `model`, `provider`, `user`, `project`, `task` or `role`; one total by default.
    #[param(value_type = Option<String>)]
    by: Option<UsageBy>,
}

/// Returns the usage of models over time, oldest first. Steps without calls are left out. Without `from` it is the last
/// week in hours, or the last 90 days.
#[utoipa::path(get, path = "/v1/usage/series", tag = "models", params(UsageQuery, UsageSeriesQuery),
    responses((status = OK, body = UnpagedList<UsagePoint>)))]
pub(crate) async fn usage_series(
    call: AuthenticatedCall,
    Query(of): Query<UsageQuery>,
    Query(UsageSeriesQuery { step, by }): Query<UsageSeriesQuery>,
) -> Result<Json<UnpagedList<UsagePoint>>, ApiError> {
    let step = step.unwrap_or(UsageStep::Hour);
    let found = call
        .app
        .read(&call.request, |ctx| usage::list_usage_series(ctx, of.to_usage_filter(), step, by));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Lists model calls, newest first. Their content is not stored.
#[utoipa::path(get, path = "/v1/usage/calls", tag = "models", params(UsageQuery, PageQuery),
    responses((status = OK, body = Page<UsageCall>)))]
pub(crate) async fn list_calls(
    call: AuthenticatedCall,
    Query(of): Query<UsageQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<UsageCall>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call
        .app
        .read(&call.request, |ctx| usage::list_usage_calls(ctx, of.to_usage_filter(), page));
    Ok(Json(found.await?))
}
