//! Budgets: spending limits of scopes for model calls.

use cynode_core::{
    budget::Budget,
    events::EventKind,
    ids::{BudgetId, ProjectId, TaskId, UserId},
    models::BudgetScope,
    roles::UserRole,
};
use cynode_db::models::budgets::{self, BudgetStatus};
use cynode_wire::models::{BudgetScopeType, BudgetSource, BudgetStatusView, ParkView, SetBudget};
use serde_json::json;

use crate::{
    Ctx, Error,
    platform::{context::EventDraft, operation},
};

/// Rejects a caller who may not read the budgets of a scope, or may not change them. Agents may never change them.
async fn authorize_budget_access(
    ctx: &mut Ctx,
    scope: BudgetScope,
    change: bool,
) -> Result<(), Error> {
    let caller = ctx.caller()?;
    if change && caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Admin, "as a person: agents set no budgets"));
    }
    let (whole, part) = if change {
        (UserRole::Admin, UserRole::Admin)
    } else {
        (UserRole::Viewer, UserRole::Viewer)
    };
    match scope {
        BudgetScope::Installation => ctx.require_role(whole).map(|_| ()),
        BudgetScope::User(user) if user == caller.user && !change => Ok(()),
        BudgetScope::User(_) => ctx.require_role(UserRole::Admin).map(|_| ()),
        BudgetScope::Project(project) => ctx.require_project_role(project, part).await.map(|_| ()),
        BudgetScope::Task(task) => {
            let task = crate::tasks::get_task(ctx, task).await?;
            let part = if change { UserRole::Operator } else { UserRole::Viewer };
            ctx.require_project_role(task.project, part).await.map(|_| ())
        }
    }
}

/// Parses a budget scope.
pub fn parse_budget_scope(kind: BudgetScopeType, id: Option<&str>) -> Result<BudgetScope, Error> {
    fn parse_scope_id<T: std::str::FromStr<Err: std::fmt::Display>>(
        id: Option<&str>,
    ) -> Result<T, Error> {
        let id = id.ok_or_else(|| Error::Invalid("`scope_id` is missing".into()))?;
        id.parse().map_err(|error: T::Err| Error::Invalid(format!("`scope_id`: {error}")))
    }
    match kind {
        BudgetScopeType::Installation if id.is_some() => {
            Err(Error::Invalid("the installation has no `scope_id`".into()))
        }
        BudgetScopeType::Installation => Ok(BudgetScope::Installation),
        BudgetScopeType::User => parse_scope_id::<UserId>(id).map(BudgetScope::User),
        BudgetScopeType::Project => parse_scope_id::<ProjectId>(id).map(BudgetScope::Project),
        BudgetScopeType::Task => parse_scope_id::<TaskId>(id).map(BudgetScope::Task),
    }
}

/// Sets a budget. Calls in progress continue; the next call is checked against it.
#[tracing::instrument(name = "app.budgets.set_budget", skip_all)]
#[operation]
pub async fn set_budget(ctx: &mut Ctx, body: &SetBudget) -> Result<BudgetStatusView, Error> {
    let scope = parse_budget_scope(body.scope_type, body.scope_id.as_deref())?;
    authorize_budget_access(ctx, scope, true).await?;
    if let BudgetScope::User(user) = scope
        && cynode_db::identity::accounts::get_user(ctx.conn(), user).await?.is_none()
    {
        return Err(Error::not_found("user", user));
    }
    if body.max_cost_micros.is_none() && body.max_tokens.is_none() {
        return Err(Error::Invalid("give `max_cost_micros`, `max_tokens` or both".into()));
    }
    let limits = Budget { max_cost_micros: body.max_cost_micros, max_tokens: body.max_tokens };
    let (by, now) = (ctx.caller()?.user, ctx.now);
    let new = BudgetId::from_uuid(ctx.new_uuid());
    let id = budgets::set_budget(ctx.conn(), new, scope, body.period, &limits, by, now).await?;
    let ceiling = budgets::get_budget(ctx.conn(), id, now).await?;
    let ceiling = ceiling.ok_or_else(|| Error::not_found("budget", id))?;
    record_budget_event(ctx, &ceiling, "set").await?;
    Ok(to_budget_view(&ceiling))
}

/// Deletes a budget.
#[tracing::instrument(name = "app.budgets.delete_budget", skip_all)]
#[operation]
pub async fn delete_budget(ctx: &mut Ctx, id: BudgetId) -> Result<(), Error> {
    ctx.caller()?;
    let now = ctx.now;
    let missing = || Error::not_found("budget", id);
    let ceiling = budgets::get_budget(ctx.conn(), id, now).await?.ok_or_else(missing)?;
    match authorize_budget_access(ctx, ceiling.scope, true).await {
        Err(Error::NotFound { .. }) => return Err(missing()),
        result => result?,
    }
    budgets::remove_budget(ctx.conn(), id).await?;
    record_budget_event(ctx, &ceiling, "removed").await
}

async fn record_budget_event(
    ctx: &mut Ctx,
    ceiling: &BudgetStatus,
    change: &str,
) -> Result<(), Error> {
    let data = json!({ "budget_id": ceiling.id, "period": ceiling.period, "change": change,
        "max_cost_micros": ceiling.limits.max_cost_micros, "max_tokens": ceiling.limits.max_tokens });
    let told = EventDraft::new(EventKind::BudgetSet, data);
    let told = match ceiling.scope {
        BudgetScope::Installation => told,
        BudgetScope::User(user) => told.with_subject(user),
        BudgetScope::Project(project) => told.with_project(project),
        BudgetScope::Task(task) => {
            let project = crate::tasks::get_task(ctx, task).await?.project;
            told.with_project(project).with_task(task)
        }
    };
    ctx.record_event(told).await
}

/// Lists the budgets of a scope; without one, all budgets of the installation but those of ended tasks.
#[tracing::instrument(name = "app.budgets.list_budgets", skip_all)]
#[operation]
pub async fn list_budgets(
    ctx: &mut Ctx,
    scope: Option<BudgetScope>,
) -> Result<Vec<BudgetStatusView>, Error> {
    let now = ctx.now;
    let found = match scope {
        Some(scope) => {
            authorize_budget_access(ctx, scope, false).await?;
            budgets::list_scope_budgets(ctx.conn(), scope, now).await?
        }
        None => {
            ctx.require_role(UserRole::Admin)?;
            budgets::list_budgets(ctx.conn(), now).await?
        }
    };
    Ok(found.iter().map(to_budget_view).collect())
}

/// Converts a budget to its API view.
pub(crate) fn to_budget_view(ceiling: &BudgetStatus) -> BudgetStatusView {
    let (scope_type, scope_id) = match ceiling.scope {
        BudgetScope::Installation => (BudgetScopeType::Installation, None),
        BudgetScope::User(id) => (BudgetScopeType::User, Some(id.to_string())),
        BudgetScope::Project(id) => (BudgetScopeType::Project, Some(id.to_string())),
        BudgetScope::Task(id) => (BudgetScopeType::Task, Some(id.to_string())),
    };
    BudgetStatusView {
        budget_id: ceiling.id,
        scope_type,
        scope_id,
        period: ceiling.period,
        since: ceiling.since,
        max_cost_micros: ceiling.limits.max_cost_micros,
        max_tokens: ceiling.limits.max_tokens,
        spent_micros: ceiling.spent_micros,
        reserved_micros: ceiling.reserved_micros,
        spent_tokens: ceiling.spent_tokens,
        reserved_tokens: ceiling.reserved_tokens,
        source: match (ceiling.set_by, ceiling.scope) {
            (Some(_), _) => BudgetSource::Person,
            (None, BudgetScope::Task(_)) => BudgetSource::Task,
            (None, _) => BudgetSource::Default,
        },
    }
}

/// Returns why a task is parked and may not call models, if it is.
#[tracing::instrument(name = "app.budgets.park_of_task", skip_all, fields(task.id = %task))]
#[operation]
pub async fn park_of_task(ctx: &mut Ctx, task: TaskId) -> Result<Option<ParkView>, Error> {
    crate::tasks::get_task(ctx, task).await?;
    let now = ctx.now;
    let park = budgets::get_task_park(ctx.conn(), task, now).await?;
    Ok(park.map(|park| ParkView { kind: park.kind, reason: park.reason, until: park.until }))
}

/// Unparks a task, so that it may call models again.
#[tracing::instrument(name = "app.budgets.unpark_task", skip_all, fields(task.id = %id))]
#[operation]
pub async fn unpark_task(ctx: &mut Ctx, id: TaskId) -> Result<(), Error> {
    let task = crate::tasks::get_task(ctx, id).await?;
    authorize_budget_access(ctx, BudgetScope::Task(id), true).await?;
    if !budgets::unpark_task(ctx.conn(), id).await? {
        return Err(Error::Conflict("the task is not parked"));
    }
    let told = EventDraft::new(EventKind::TaskUnparked, json!({ "name": task.name }));
    ctx.record_event(told.with_project(task.project).with_task(id)).await?;
    cynode_db::workflow::wake_runs(ctx.conn(), &[id.as_uuid()]).await?;
    ctx.wake_task(id);
    Ok(())
}
