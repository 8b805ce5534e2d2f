//! Usage of models: totals and calls.

use cynode_core::{
    models::{UsageBy, UsageStep},
    paging::{Page, PageRequest},
    roles::UserRole,
};
use cynode_db::models::usage;
use cynode_wire::models::{UsageCall, UsagePoint, UsageSum};
use time::Duration;

pub use cynode_db::models::usage::UsageFilter;

use crate::{Ctx, Error, platform::operation};

/// Maximum number of points of a series.
const MAX_SERIES_POINTS: i64 = 5000;

/// Narrows a filter to the calls that the caller may see.
async fn narrow_filter(ctx: &mut Ctx, mut filter: UsageFilter) -> Result<UsageFilter, Error> {
    let caller = ctx.caller()?;
    if let Some(task) = filter.task {
        crate::tasks::get_task(ctx, task).await?;
    } else if let Some(project) = filter.project {
        ctx.require_project_role(project, UserRole::Viewer).await?;
    } else if filter.user != Some(caller.user) {
        filter.seen_by = ctx.visibility_filter()?;
    }
    Ok(filter)
}

/// Lists totals of the calls that the caller may see, by cost, descending.
#[tracing::instrument(name = "app.usage.list_usage_sums", skip_all)]
#[operation]
pub async fn list_usage_sums(
    ctx: &mut Ctx,
    filter: UsageFilter,
    by: UsageBy,
) -> Result<Vec<UsageSum>, Error> {
    let filter = narrow_filter(ctx, filter).await?;
    let sums = usage::sum_usage(ctx.conn(), filter, by).await?.into_iter();
    Ok(sums
        .map(|sum| UsageSum {
            key: sum.key,
            calls: sum.calls,
            failed: sum.failed,
            input_tokens: sum.input_tokens,
            cached_tokens: sum.cached_tokens,
            output_tokens: sum.output_tokens,
            cost_micros: sum.cost_micros,
        })
        .collect())
}

/// Lists the usage that the caller may see as a series over time, oldest first. Without a begin it is that of the last
/// week in hours, or of the last 90 days.
#[tracing::instrument(name = "app.usage.list_usage_series", skip_all)]
#[operation]
pub async fn list_usage_series(
    ctx: &mut Ctx,
    filter: UsageFilter,
    step: UsageStep,
    by: Option<UsageBy>,
) -> Result<Vec<UsagePoint>, Error> {
    if by == Some(UsageBy::Day) {
        return Err(Error::Invalid("`by` is not `day` in a series: `step` is".into()));
    }
    let mut filter = narrow_filter(ctx, filter).await?;
    let to = filter.to.unwrap_or(ctx.now);
    let from = filter.from.unwrap_or_else(|| to.saturating_sub(default_range(step)));
    filter.from = Some(from);
    let points =
        usage::list_usage_points(ctx.conn(), filter, step, by, MAX_SERIES_POINTS + 1).await?;
    if i64::try_from(points.len()).unwrap_or(i64::MAX) > MAX_SERIES_POINTS {
        return Err(Error::Invalid(format!(
            "the series has more than {MAX_SERIES_POINTS} points: ask for less time, longer steps or one total"
        )));
    }
    let points = points.into_iter().map(|point| UsagePoint {
        at: point.at,
        key: point.key,
        calls: point.calls,
        failed: point.failed,
        input_tokens: point.input_tokens,
        output_tokens: point.output_tokens,
        cost_micros: point.cost_micros,
    });
    Ok(points.collect())
}

/// Returns the time that a series covers without a begin.
const fn default_range(step: UsageStep) -> Duration {
    match step {
        UsageStep::Hour => Duration::days(7),
        UsageStep::Day => Duration::days(90),
    }
}

/// Lists the calls that the caller may see, newest first.
#[tracing::instrument(name = "app.usage.list_usage_calls", skip_all)]
#[operation]
pub async fn list_usage_calls(
    ctx: &mut Ctx,
    filter: UsageFilter,
    page: PageRequest,
) -> Result<Page<UsageCall>, Error> {
    let filter = narrow_filter(ctx, filter).await?;
    let found = usage::list_model_calls(ctx.conn(), filter, page).await?;
    Ok(page.into_page(found, |call| call.id.as_uuid()).map(|call| UsageCall {
        call_id: call.id,
        at: call.at,
        user_id: call.user,
        project_id: call.project,
        task_id: call.task,
        agent_role: call.role,
        trace_id: call.trace,
        model: call.model,
        provider: call.provider,
        outcome: call.outcome,
        error: call.error,
        basis: call.basis,
        input_tokens: call.input_tokens,
        cached_tokens: call.cached_tokens,
        output_tokens: call.output_tokens,
        reasoning_tokens: call.reasoning_tokens,
        cost_micros: call.cost_micros,
        redactions: call.redactions,
        first_byte_ms: call.first_byte_ms,
        duration_ms: call.duration_ms,
    }))
}
