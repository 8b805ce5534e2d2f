//! What is said when a question is not asked: a ceiling is reached, a task may not think, a quota is used up.

use std::time::{Duration, Instant};

use cynode_core::{
    events::EventKind,
    ids::{BudgetId, ProjectId, TaskId, UserId},
    models::ParkKind,
    sync::lock,
};
use cynode_db::{
    DbError,
    budgets::{self, Park},
    tasks,
};
use cynode_models::talk::{Kind, ModelError};
use serde_json::json;
use time::OffsetDateTime;

use super::{Models, Question, SHORT, question, stamp, telemetry};
use crate::{App, Ctx, Error, Request, context::Told, error::complain};

/// How often a ceiling that is reached is told of.
const TELL_EVERY: Duration = Duration::from_mins(1);

/// No key is left that does not rest: the task rests too, and the clock wakes it.
pub(super) async fn park_for_quota(
    app: &App,
    question: &Question,
    until: OffsetDateTime,
) -> ModelError {
    let now = app.environment().now();
    let wait = Duration::try_from(until - now).unwrap_or_default();
    let told = "no key of the provider may be used now: its quota is used up, or it was refused";
    if wait > SHORT
        && let Some(task) = question.who.task()
    {
        let park = Park { kind: ParkKind::Quota, reason: told.into(), until: Some(until) };
        if let Err(error) = park_task(app, question, task, &park).await {
            tracing::error!(
                event = "error",
                error = cynode_core::causes::told(&error),
                "a task could not be parked"
            );
        }
    }
    resting(told, wait)
}

/// What is said while a quota is waited for: try again soon, or stop.
fn resting(told: &str, wait: Duration) -> ModelError {
    let told = format!("{told}, for another {} s", wait.as_secs() + 1);
    if wait <= SHORT {
        return ModelError::new(Kind::RateLimited, told).with_retry_after(wait);
    }
    ModelError::new(Kind::QuotaExhausted, told).with_code("quota_exhausted")
}

async fn park_task(app: &App, question: &Question, task: TaskId, park: &Park) -> Result<(), Error> {
    let mut ctx = app.open(&question.request()).await?;
    let now = ctx.now;
    if budgets::park_task(ctx.conn(), task, park, now).await? {
        tell_of_park(&mut ctx, question.who.project, task, park).await?;
    }
    app.commit(ctx).await
}

async fn tell_of_park(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    task: TaskId,
    park: &Park,
) -> Result<(), Error> {
    let data = json!({ "kind": park.kind, "reason": park.reason });
    let mut told = Told::new(EventKind::TaskParked, data).task(task);
    if let Some(project) = project {
        told = told.project(project);
    }
    ctx.record(told).await
}

/// A ceiling is reached: says which, and how to go on.
pub(super) async fn full(
    app: &App,
    models: &Models,
    question: &Question,
    budget: BudgetId,
) -> ModelError {
    telemetry::refused("budget");
    let ceiling = async {
        let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
        budgets::get(&mut conn, budget, app.environment().now()).await
    };
    let told = match ceiling.await {
        Ok(Some(ceiling)) => {
            let view = crate::budgets::view(&ceiling);
            if tell_now(models, budget) {
                let mut told =
                    Told::new(EventKind::BudgetExhausted, json!({ "budget_id": budget }));
                if let Some(project) = question.who.project {
                    told = told.project(project);
                }
                if let Some(task) = question.who.task() {
                    told = told.task(task);
                }
                let told = told.about(question.who.user);
                if let Ok(mut ctx) = app.open(&question.request()).await
                    && ctx.record(told).await.is_ok()
                {
                    let _ = app.commit(ctx).await;
                }
            }
            question::full(&view)
        }
        _ => "a budget is used up".to_owned(),
    };
    ModelError::new(Kind::BudgetExhausted, told).with_code("budget_exhausted")
}

fn tell_now(models: &Models, budget: BudgetId) -> bool {
    let mut told = lock(&models.told);
    let now = Instant::now();
    if told.get(&budget).is_some_and(|last| now - *last < TELL_EVERY) {
        return false;
    }
    told.retain(|_, last| now - *last < TELL_EVERY);
    told.insert(budget, now);
    true
}

/// Pauses a task that may not think and tells people, once, whoever else finds it out at the same time.
async fn pause(
    app: &App,
    mut ctx: Ctx,
    id: TaskId,
    by: Option<UserId>,
    park: &Park,
) -> Result<(), Error> {
    let now = ctx.now;
    // The task first, as those do who let it go on.
    let Some(task) = tasks::lock(ctx.conn(), id).await? else { return Ok(()) };
    if !budgets::tell_park(ctx.conn(), id, now).await? {
        return Ok(());
    }
    tell_of_park(&mut ctx, Some(task.project), id, park).await?;
    let by = by.unwrap_or(task.created_by);
    crate::workflow::signals::pause(&mut ctx, id, by, &park.reason).await?;
    app.commit(ctx).await
}

/// Pauses tasks that were found out by a process that died before it told anybody: parked, nobody asks for them any more.
pub(crate) async fn pause_parked(app: &App, request: &Request, most: i64) -> Result<(), Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let untold = budgets::untold_parks(&mut conn, most).await?;
    drop(conn);
    for (task, park) in untold {
        let ctx = crate::sweep::open(app, request).await?;
        if let Err(error) = pause(app, ctx, task, None, &park).await {
            complain(&error, "a parked task could not be paused");
        }
    }
    Ok(())
}

/// The task may not think. When nobody was told yet, people are told and the task is paused.
pub(super) async fn parked(app: &App, question: &Question, park: &Park, new: bool) -> ModelError {
    telemetry::refused(park.kind.as_str());
    if new && let Some(task) = question.who.task() {
        let request = question.request();
        let paused = async {
            let ctx = app.open(&request).await?;
            pause(app, ctx, task, Some(question.who.user), park).await
        };
        if let Err(error) = paused.await {
            tracing::error!(
                event = "error",
                error = cynode_core::causes::told(&error),
                "a task could not be paused"
            );
        }
    }
    if let (ParkKind::Quota, Some(until)) = (park.kind, park.until) {
        let wait = Duration::try_from(until - app.environment().now()).unwrap_or_default();
        return resting(&park.reason, wait);
    }
    let until = park.until.map(|until| format!(" until {}", stamp(until))).unwrap_or_default();
    let told = format!("the task may not ask models{until}: {}", park.reason);
    ModelError::new(Kind::BudgetExhausted, told).with_code("task_parked")
}
