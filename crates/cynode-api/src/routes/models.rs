//! Models, for people who run the installation: providers, keys, models, ceilings, usage.

use axum::http::StatusCode;
use cynode_app::{budgets, models, usage};
use cynode_core::{
    ids::{BudgetId, ProjectId, ProviderKeyId, TaskId, UserId},
    models::UsageBy,
};
use cynode_wire::{
    models::{
        AddProviderKey, BudgetScopeType, CeilingView, ModelView, ParkView, ProviderKeyView,
        ProviderView, SetBudget, SetModel, SetProvider, UsageCall, UsageSum,
    },
    page::Page,
};
use serde::Deserialize;
use time::OffsetDateTime;

use super::gate::Whole;
use crate::{
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, PageQuery, Path, Query},
};

/// The providers of models.
#[utoipa::path(get, path = "/v1/providers", tag = "models", responses((status = OK, body = Whole<ProviderView>)))]
pub(crate) async fn list_providers(call: Call) -> Result<Json<Whole<ProviderView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(models::providers(ctx)));
    Ok(Json(Whole::new(found.await?)))
}

/// Add a provider, or describe it anew.
#[utoipa::path(put, path = "/v1/providers/{name}", tag = "models", params(("name" = String, Path)),
    request_body = SetProvider, responses((status = OK, body = ProviderView)))]
pub(crate) async fn set_provider(
    Path(name): Path<String>,
    call: Mutation<SetProvider>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let set = app.mutate(&request, |ctx| {
        Box::pin(async move { models::set_provider(ctx, &name, body).await })
    });
    Ok(Answered(StatusCode::OK, set.await?))
}

/// Remove a provider with its keys.
#[utoipa::path(delete, path = "/v1/providers/{name}", tag = "models", params(("name" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn remove_provider(
    Path(name): Path<String>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { models::remove_provider(ctx, &name).await })
    });
    Ok(Answered(StatusCode::NO_CONTENT, done.await?))
}

/// Give a provider a key. It is stored encrypted and never shown again.
#[utoipa::path(post, path = "/v1/providers/{name}/keys", tag = "models", params(("name" = String, Path)),
    request_body = AddProviderKey, responses((status = CREATED, body = ProviderKeyView)))]
pub(crate) async fn add_provider_key(
    Path(name): Path<String>,
    call: Mutation<AddProviderKey>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let parts = app.gate()?.clone();
    let added = app.mutate(&request, |ctx| {
        Box::pin(async move { models::add_key(ctx, &parts, &name, body).await })
    });
    Ok(Answered(StatusCode::CREATED, added.await?))
}

/// Take a key away from a provider.
#[utoipa::path(delete, path = "/v1/providers/{name}/keys/{key}", tag = "models",
    params(("name" = String, Path), ("key" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn remove_provider_key(
    Path((name, key)): Path<(String, ProviderKeyId)>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { models::remove_key(ctx, &name, key).await })
    });
    Ok(Answered(StatusCode::NO_CONTENT, done.await?))
}

/// The models with their prices and the ways to them.
#[utoipa::path(get, path = "/v1/model-registry", tag = "models", responses((status = OK, body = Whole<ModelView>)))]
pub(crate) async fn list_registry(call: Call) -> Result<Json<Whole<ModelView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(models::list(ctx)));
    Ok(Json(Whole::new(found.await?)))
}

/// Add a model, or describe it anew. A `/` in its id is written `%2F`.
#[utoipa::path(put, path = "/v1/model-registry/{id}", tag = "models", params(("id" = String, Path)),
    request_body = SetModel, responses((status = OK, body = ModelView)))]
pub(crate) async fn set_model(
    Path(id): Path<String>,
    call: Mutation<SetModel>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let set =
        app.mutate(&request, |ctx| Box::pin(async move { models::set(ctx, &id, body).await }));
    Ok(Answered(StatusCode::OK, set.await?))
}

/// Remove a model.
#[utoipa::path(delete, path = "/v1/model-registry/{id}", tag = "models", params(("id" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn remove_model(
    Path(id): Path<String>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let done = call
        .app
        .mutate(&call.request, |ctx| Box::pin(async move { models::remove(ctx, &id).await }));
    Ok(Answered(StatusCode::NO_CONTENT, done.await?))
}

/// Whose ceilings are wanted.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfScope {
    /// `installation`, `user`, `project` or `task`; without it: all but those of tasks that have ended, at most 1,000, tasks last.
    #[param(value_type = Option<String>)]
    scope_type: Option<BudgetScopeType>,
    /// The user, project or task.
    scope_id: Option<String>,
}

/// Ceilings on spending, and how near they are.
#[utoipa::path(get, path = "/v1/budgets", tag = "models", params(OfScope),
    responses((status = OK, body = Whole<CeilingView>)))]
pub(crate) async fn list_budgets(
    call: Call,
    Query(of): Query<OfScope>,
) -> Result<Json<Whole<CeilingView>>, ApiError> {
    let scope = match of.scope_type {
        Some(kind) => Some(budgets::scope(kind, of.scope_id.as_deref())?),
        None => None,
    };
    let found = call.app.read(&call.request, |ctx| Box::pin(budgets::list(ctx, scope)));
    Ok(Json(Whole::new(found.await?)))
}

/// Set a ceiling: one for each scope and period.
#[utoipa::path(put, path = "/v1/budgets", tag = "models", request_body = SetBudget,
    responses((status = OK, body = CeilingView)))]
pub(crate) async fn set_budget(call: Mutation<SetBudget>) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let set = app.mutate(&request, |ctx| Box::pin(async move { budgets::set(ctx, &body).await }));
    Ok(Answered(StatusCode::OK, set.await?))
}

/// Remove a ceiling.
#[utoipa::path(delete, path = "/v1/budgets/{budget}", tag = "models", params(("budget" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn remove_budget(
    Path(budget): Path<BudgetId>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| Box::pin(budgets::remove(ctx, budget)));
    Ok(Answered(StatusCode::NO_CONTENT, done.await?))
}

/// Why a task may not ask models now; `null` when it may.
#[utoipa::path(get, path = "/v1/tasks/{task}/park", tag = "models", params(("task" = String, Path)),
    responses((status = OK, body = Option<ParkView>)))]
pub(crate) async fn get_park(
    Path(task): Path<TaskId>,
    call: Call,
) -> Result<Json<Option<ParkView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(budgets::parked(ctx, task)));
    Ok(Json(found.await?))
}

/// Let a task ask models again.
#[utoipa::path(delete, path = "/v1/tasks/{task}/park", tag = "models", params(("task" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn unpark(
    Path(task): Path<TaskId>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| Box::pin(budgets::unpark(ctx, task)));
    Ok(Answered(StatusCode::NO_CONTENT, done.await?))
}

/// Which calls are wanted.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfCalls {
    /// Of one user.
    #[param(value_type = Option<String>)]
    user_id: Option<UserId>,
    /// In one project.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// For one task.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
    /// Not before.
    #[serde(default, with = "time::serde::rfc3339::option")]
    from: Option<OffsetDateTime>,
    /// Before.
    #[serde(default, with = "time::serde::rfc3339::option")]
    to: Option<OffsetDateTime>,
}

impl OfCalls {
    const fn filter(self) -> usage::Filter {
        usage::Filter {
            user: self.user_id,
            project: self.project_id,
            task: self.task_id,
            seen_by: None,
            from: self.from,
            to: self.to,
        }
    }
}

/// How sums are made.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SumBy {
    /// `model`, `provider`, `user`, `project`, `task`, `role` or `day`.
    #[param(value_type = Option<String>)]
    by: Option<UsageBy>,
}

/// What models were used for, in sums, dearest first.
#[utoipa::path(get, path = "/v1/usage", tag = "models", params(OfCalls, SumBy),
    responses((status = OK, body = Whole<UsageSum>)))]
pub(crate) async fn sum_usage(
    call: Call,
    Query(of): Query<OfCalls>,
    Query(by): Query<SumBy>,
) -> Result<Json<Whole<UsageSum>>, ApiError> {
    let by = by.by.unwrap_or(UsageBy::Model);
    let found = call.app.read(&call.request, |ctx| Box::pin(usage::sums(ctx, of.filter(), by)));
    Ok(Json(Whole::new(found.await?)))
}

/// Calls of models, newest first. What was said is not kept.
#[utoipa::path(get, path = "/v1/usage/calls", tag = "models", params(OfCalls, PageQuery),
    responses((status = OK, body = Page<UsageCall>)))]
pub(crate) async fn list_calls(
    call: Call,
    Query(of): Query<OfCalls>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<UsageCall>>, ApiError> {
    let page = page.page()?;
    let found = call.app.read(&call.request, |ctx| Box::pin(usage::calls(ctx, of.filter(), page)));
    Ok(Json(found.await?))
}
