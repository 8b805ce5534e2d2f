//! Ceilings on what is spent.

use cynode_core::{
    budget::Budget,
    events::EventKind,
    ids::{BudgetId, ProjectId, TaskId, UserId},
    models::BudgetScope,
    roles::Role,
};
use cynode_db::budgets::{self, Ceiling};
use cynode_wire::models::{BudgetScopeType, CeilingView, ParkView, SetBudget};
use serde_json::json;

use crate::{Ctx, Error, context::Told};

/// Refuses a caller who may not look at a scope's ceilings, or who may not change them. Agents never may change them.
async fn permit(ctx: &mut Ctx, scope: BudgetScope, change: bool) -> Result<(), Error> {
    let caller = ctx.caller()?;
    if change && caller.bounds.is_some() {
        return Err(Error::forbidden(Role::Admin, "as a person: agents set no budgets"));
    }
    let (whole, part) =
        if change { (Role::Admin, Role::Admin) } else { (Role::Viewer, Role::Viewer) };
    match scope {
        BudgetScope::Installation => ctx.require(whole).map(|_| ()),
        BudgetScope::User(user) if user == caller.user && !change => Ok(()),
        BudgetScope::User(_) => ctx.require(Role::Admin).map(|_| ()),
        BudgetScope::Project(project) => ctx.require_in(project, part).await.map(|_| ()),
        BudgetScope::Task(task) => {
            let task = crate::tasks::get(ctx, task).await?;
            let part = if change { Role::Operator } else { Role::Viewer };
            ctx.require_in(task.project, part).await.map(|_| ())
        }
    }
}

/// The scope that is meant.
pub fn scope(kind: BudgetScopeType, id: Option<&str>) -> Result<BudgetScope, Error> {
    fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(id: Option<&str>) -> Result<T, Error> {
        let id = id.ok_or_else(|| Error::Invalid("`scope_id` is missing".into()))?;
        id.parse().map_err(|error: T::Err| Error::Invalid(format!("`scope_id`: {error}")))
    }
    match kind {
        BudgetScopeType::Installation if id.is_some() => {
            Err(Error::Invalid("the installation has no `scope_id`".into()))
        }
        BudgetScopeType::Installation => Ok(BudgetScope::Installation),
        BudgetScopeType::User => parsed::<UserId>(id).map(BudgetScope::User),
        BudgetScopeType::Project => parsed::<ProjectId>(id).map(BudgetScope::Project),
        BudgetScopeType::Task => parsed::<TaskId>(id).map(BudgetScope::Task),
    }
}

/// Sets a ceiling. Calls that are under way go on; the next one is measured by it.
#[tracing::instrument(name = "app.budgets.set", skip_all)]
pub async fn set(ctx: &mut Ctx, body: &SetBudget) -> Result<CeilingView, Error> {
    let scope = scope(body.scope_type, body.scope_id.as_deref())?;
    permit(ctx, scope, true).await?;
    if let BudgetScope::User(user) = scope
        && cynode_db::accounts::user(ctx.conn(), user).await?.is_none()
    {
        return Err(Error::not_found("user", user));
    }
    if body.max_cost_micros.is_none() && body.max_tokens.is_none() {
        return Err(Error::Invalid("give `max_cost_micros`, `max_tokens` or both".into()));
    }
    let limits = Budget { max_cost_micros: body.max_cost_micros, max_tokens: body.max_tokens };
    let (by, now) = (ctx.caller()?.user, ctx.now);
    let new = BudgetId::from_uuid(ctx.uuid());
    let id = budgets::set(ctx.conn(), new, scope, body.period, &limits, by, now).await?;
    let ceiling = budgets::get(ctx.conn(), id, now).await?;
    let ceiling = ceiling.ok_or_else(|| Error::not_found("budget", id))?;
    tell(ctx, &ceiling, "set").await?;
    Ok(view(&ceiling))
}

/// Removes a ceiling.
#[tracing::instrument(name = "app.budgets.remove", skip_all)]
pub async fn remove(ctx: &mut Ctx, id: BudgetId) -> Result<(), Error> {
    ctx.caller()?;
    let now = ctx.now;
    let missing = || Error::not_found("budget", id);
    let ceiling = budgets::get(ctx.conn(), id, now).await?.ok_or_else(missing)?;
    match permit(ctx, ceiling.scope, true).await {
        Err(Error::NotFound { .. }) => return Err(missing()),
        result => result?,
    }
    budgets::remove(ctx.conn(), id).await?;
    tell(ctx, &ceiling, "removed").await
}

async fn tell(ctx: &mut Ctx, ceiling: &Ceiling, change: &str) -> Result<(), Error> {
    let data = json!({ "budget_id": ceiling.id, "period": ceiling.period, "change": change,
        "max_cost_micros": ceiling.limits.max_cost_micros, "max_tokens": ceiling.limits.max_tokens });
    let told = Told::new(EventKind::BudgetSet, data);
    let told = match ceiling.scope {
        BudgetScope::Installation => told,
        BudgetScope::User(user) => told.about(user),
        BudgetScope::Project(project) => told.project(project),
        BudgetScope::Task(task) => {
            let project = crate::tasks::get(ctx, task).await?.project;
            told.project(project).task(task)
        }
    };
    ctx.record(told).await
}

/// The ceilings of a scope; without one, all of the installation but those of tasks that have ended.
#[tracing::instrument(name = "app.budgets.list", skip_all)]
pub async fn list(ctx: &mut Ctx, scope: Option<BudgetScope>) -> Result<Vec<CeilingView>, Error> {
    let now = ctx.now;
    let found = match scope {
        Some(scope) => {
            permit(ctx, scope, false).await?;
            budgets::of(ctx.conn(), scope, now).await?
        }
        None => {
            ctx.require(Role::Admin)?;
            budgets::list(ctx.conn(), now).await?
        }
    };
    Ok(found.iter().map(view).collect())
}

/// How a ceiling is shown.
pub(crate) fn view(ceiling: &Ceiling) -> CeilingView {
    let (scope_type, scope_id) = match ceiling.scope {
        BudgetScope::Installation => (BudgetScopeType::Installation, None),
        BudgetScope::User(id) => (BudgetScopeType::User, Some(id.to_string())),
        BudgetScope::Project(id) => (BudgetScopeType::Project, Some(id.to_string())),
        BudgetScope::Task(id) => (BudgetScopeType::Task, Some(id.to_string())),
    };
    CeilingView {
        budget_id: ceiling.id,
        scope_type,
        scope_id,
        period: ceiling.period,
        since: ceiling.since,
        max_cost_micros: ceiling.limits.max_cost_micros,
        max_tokens: ceiling.limits.max_tokens,
        spent_micros: ceiling.spent_micros,
        held_micros: ceiling.held_micros,
        spent_tokens: ceiling.spent_tokens,
        held_tokens: ceiling.held_tokens,
    }
}

/// Why a task may not think now, if it may not.
#[tracing::instrument(name = "app.budgets.parked", skip_all, fields(task.id = %task))]
pub async fn parked(ctx: &mut Ctx, task: TaskId) -> Result<Option<ParkView>, Error> {
    crate::tasks::get(ctx, task).await?;
    let now = ctx.now;
    let park = budgets::parked(ctx.conn(), task, now).await?;
    Ok(park.map(|park| ParkView { kind: park.kind, reason: park.reason, until: park.until }))
}

/// Lets a task think again.
#[tracing::instrument(name = "app.budgets.unpark", skip_all, fields(task.id = %id))]
pub async fn unpark(ctx: &mut Ctx, id: TaskId) -> Result<(), Error> {
    let task = crate::tasks::get(ctx, id).await?;
    permit(ctx, BudgetScope::Task(id), true).await?;
    if !budgets::unpark_task(ctx.conn(), id).await? {
        return Err(Error::Conflict("the task is not parked"));
    }
    let told = Told::new(EventKind::TaskUnparked, json!({ "name": task.name }));
    ctx.record(told.project(task.project).task(id)).await?;
    cynode_db::workflow::wake(ctx.conn(), &[id.as_uuid()]).await?;
    ctx.wake(id);
    Ok(())
}
