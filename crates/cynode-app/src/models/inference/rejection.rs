//! Rejection of model calls: a budget is exhausted, a task is parked, a provider's quota is used up, or an agent sends content that it may
//! not send.

use std::time::{Duration, Instant};

use cynode_core::{
    events::EventKind,
    ids::{BudgetId, ProjectId, TaskId, UserId},
    models::ParkKind,
    sync::lock_unpoisoned,
};
use cynode_db::{
    models::budgets::{self, TaskPark},
    tasks,
};
use cynode_models::{
    dialect::canonical::{ModelError, ModelErrorKind},
    request_rewrite::RequestRewrite,
};
use serde_json::json;
use time::OffsetDateTime;

use super::{
    InferenceCaller, InferenceRequest, InferenceRuntime, RATE_LIMIT_COOLDOWN, format_timestamp,
    request, telemetry,
};
use crate::{
    App, Ctx, Error, OperationRequest,
    platform::{context::EventDraft, error::log_background_error},
};

/// Minimum interval between events about the same exhausted budget.
const BUDGET_EVENT_INTERVAL: Duration = Duration::from_mins(1);

/// Restricts the request of an agent to content that the request itself carries. A refusal is recorded, because an innocent agent does not
/// cause one.
pub(super) fn restrict_agent_content(
    rewrite: &mut RequestRewrite,
    who: &InferenceCaller,
) -> Result<(), ModelError> {
    match rewrite.restrict_agent_content() {
        Ok(0) => Ok(()),
        Ok(dropped) => {
            tracing::info!(
                event = "model.fields_dropped",
                dropped,
                "removed fields that agents may not set"
            );
            Ok(())
        }
        Err(error) => {
            telemetry::record_refused_call("content");
            tracing::warn!(
                event = "model.content_refused",
                task.id = who.task_id().map(tracing::field::display),
                job.id = who.job_id().map(tracing::field::display),
                agent.role = who.agent_role().map(|role| role.as_str()),
                code = error.code.as_deref(),
                "refused content that an agent may not send"
            );
            Err(error)
        }
    }
}

/// Parks the task because all keys of the provider are in cooldown. The task resumes when the cooldown ends.
pub(super) async fn park_for_quota(
    app: &App,
    request: &InferenceRequest,
    until: OffsetDateTime,
) -> ModelError {
    let now = app.environment().now();
    let wait = Duration::try_from(until - now).unwrap_or_default();
    let told = "no key of the provider may be used now: its quota is used up, or it was refused";
    if wait > RATE_LIMIT_COOLDOWN
        && let Some(task) = request.who.task_id()
    {
        let park = TaskPark { kind: ParkKind::Quota, reason: told.into(), until: Some(until) };
        if let Err(error) = park_task(app, request, task, &park).await {
            tracing::error!(
                event = "task.park_failed",
                error = cynode_core::error_chain::format_error_chain(&error),
                "a task could not be parked"
            );
        }
    }
    quota_error(told, wait)
}

/// Returns the error for an exhausted quota: retry soon after a short cooldown, else stop.
fn quota_error(told: &str, wait: Duration) -> ModelError {
    let told = format!("{told}, for another {} s", wait.as_secs() + 1);
    if wait <= RATE_LIMIT_COOLDOWN {
        return ModelError::new(ModelErrorKind::RateLimited, told).with_retry_after(wait);
    }
    ModelError::new(ModelErrorKind::QuotaExhausted, told).with_code("quota_exhausted")
}

async fn park_task(
    app: &App,
    request: &InferenceRequest,
    task: TaskId,
    park: &TaskPark,
) -> Result<(), Error> {
    let mut ctx = app.begin_transaction(&request.to_operation_request()).await?;
    let now = ctx.now;
    if budgets::park_task(ctx.conn(), task, park, now).await? {
        record_park_event(&mut ctx, request.who.project, task, park).await?;
    }
    app.commit_operation(ctx).await
}

async fn record_park_event(
    ctx: &mut Ctx,
    project: Option<ProjectId>,
    task: TaskId,
    park: &TaskPark,
) -> Result<(), Error> {
    let data = json!({ "kind": park.kind, "reason": park.reason });
    let mut told = EventDraft::new(EventKind::TaskParked, data).with_task(task);
    if let Some(project) = project {
        told = told.with_project(project);
    }
    ctx.record_event(told).await
}

/// Returns the error for an exhausted budget. It names the budget and how to continue.
pub(super) async fn budget_exhausted_error(
    app: &App,
    models: &InferenceRuntime,
    request: &InferenceRequest,
    budget: BudgetId,
) -> ModelError {
    telemetry::record_refused_call("budget");
    let ceiling = async {
        let mut conn = app.conn().await?;
        budgets::get_budget(&mut conn, budget, app.environment().now()).await
    };
    let told = match ceiling.await {
        Ok(Some(ceiling)) => {
            let view = crate::models::budgets::to_budget_view(&ceiling);
            if is_event_due(models, budget) {
                let mut told =
                    EventDraft::new(EventKind::BudgetExhausted, json!({ "budget_id": budget }));
                if let Some(project) = request.who.project {
                    told = told.with_project(project);
                }
                if let Some(task) = request.who.task_id() {
                    told = told.with_task(task);
                }
                let told = told.with_subject(request.who.user);
                if let Ok(mut ctx) = app.begin_transaction(&request.to_operation_request()).await
                    && ctx.record_event(told).await.is_ok()
                {
                    let _ = app.commit_operation(ctx).await;
                }
            }
            request::render_exhausted_budget(&view)
        }
        _ => "a budget is used up".to_owned(),
    };
    ModelError::new(ModelErrorKind::BudgetExhausted, told).with_code("budget_exhausted")
}

fn is_event_due(models: &InferenceRuntime, budget: BudgetId) -> bool {
    let mut told = lock_unpoisoned(&models.told);
    let now = Instant::now();
    if told.get(&budget).is_some_and(|last| now - *last < BUDGET_EVENT_INTERVAL) {
        return false;
    }
    told.retain(|_, last| now - *last < BUDGET_EVENT_INTERVAL);
    told.insert(budget, now);
    true
}

/// Pauses a parked task and notifies people, once, even when several processes find it at the same time.
async fn pause_parked_task(
    app: &App,
    mut ctx: Ctx,
    id: TaskId,
    by: Option<UserId>,
    park: &TaskPark,
) -> Result<(), Error> {
    let now = ctx.now;
    // Lock order: the task first, as when it is resumed.
    let Some(task) = tasks::lock_task(ctx.conn(), id).await? else { return Ok(()) };
    if !budgets::mark_park_notified(ctx.conn(), id, now).await? {
        return Ok(());
    }
    record_park_event(&mut ctx, Some(task.project), id, park).await?;
    let by = by.unwrap_or(task.created_by);
    crate::tasks::pause_task(&mut ctx, id, by, &park.reason).await?;
    app.commit_operation(ctx).await
}

/// Pauses parked tasks whose process died before it notified anybody. A parked task makes no more calls that would
/// notice it.
pub(crate) async fn pause_parked_tasks(
    app: &App,
    request: &OperationRequest,
    most: i64,
) -> Result<(), Error> {
    let mut conn = app.conn().await?;
    let untold = budgets::list_unnotified_parks(&mut conn, most).await?;
    drop(conn);
    for (task, park) in untold {
        let ctx = app.begin_transaction_with_lock_timeout(request).await?;
        if let Err(error) = pause_parked_task(app, ctx, task, None, &park).await {
            log_background_error("task.pause_failed", &error, "a parked task could not be paused");
        }
    }
    Ok(())
}

/// Returns the error for a parked task. If nobody was notified yet, notifies people and pauses the task.
pub(super) async fn parked_task_error(
    app: &App,
    request: &InferenceRequest,
    park: &TaskPark,
    new: bool,
) -> ModelError {
    telemetry::record_refused_call(park.kind.as_str());
    if new && let Some(task) = request.who.task_id() {
        let operation = request.to_operation_request();
        let paused = async {
            let ctx = app.begin_transaction(&operation).await?;
            pause_parked_task(app, ctx, task, Some(request.who.user), park).await
        };
        if let Err(error) = paused.await {
            tracing::error!(
                event = "task.pause_failed",
                error = cynode_core::error_chain::format_error_chain(&error),
                "a task could not be paused"
            );
        }
    }
    if let (ParkKind::Quota, Some(until)) = (park.kind, park.until) {
        let wait = Duration::try_from(until - app.environment().now()).unwrap_or_default();
        return quota_error(&park.reason, wait);
    }
    let until =
        park.until.map(|until| format!(" until {}", format_timestamp(until))).unwrap_or_default();
    let told = format!("the task may not ask models{until}: {}", park.reason);
    ModelError::new(ModelErrorKind::BudgetExhausted, told).with_code("task_parked")
}
