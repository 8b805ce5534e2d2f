//! Usage of models: totals and calls.

use cynode_core::{
    models::UsageBy,
    paging::{Page, PageRequest},
    roles::UserRole,
};
use cynode_db::models::usage;
use cynode_wire::models::{UsageCall, UsageSum};

pub use cynode_db::models::usage::UsageFilter;

use crate::{Ctx, Error, platform::operation};

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
