//! What models were used for, in numbers.

use cynode_core::{models::UsageBy, roles::Role};
use cynode_db::usage;
use cynode_wire::{
    models::{UsageCall, UsageSum},
    page::{Page, PageRequest},
};

pub use cynode_db::usage::Filter;

use crate::{Ctx, Error};

/// Narrows a filter to what the caller may see.
async fn narrowed(ctx: &mut Ctx, mut filter: Filter) -> Result<Filter, Error> {
    let caller = ctx.caller()?;
    if let Some(task) = filter.task {
        crate::tasks::get(ctx, task).await?;
    } else if let Some(project) = filter.project {
        ctx.require_in(project, Role::Viewer).await?;
    } else if filter.user != Some(caller.user) {
        filter.seen_by = ctx.seen_by()?;
    }
    Ok(filter)
}

/// Sums of the calls that the caller may see, dearest first.
#[tracing::instrument(name = "app.usage.sums", skip_all)]
pub async fn sums(ctx: &mut Ctx, filter: Filter, by: UsageBy) -> Result<Vec<UsageSum>, Error> {
    let filter = narrowed(ctx, filter).await?;
    let sums = usage::sums(ctx.conn(), filter, by).await?.into_iter();
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

/// The calls that the caller may see, newest first.
#[tracing::instrument(name = "app.usage.calls", skip_all)]
pub async fn calls(
    ctx: &mut Ctx,
    filter: Filter,
    page: PageRequest,
) -> Result<Page<UsageCall>, Error> {
    let filter = narrowed(ctx, filter).await?;
    let found = usage::calls(ctx.conn(), filter, page).await?;
    Ok(page.cut(found, |call| call.id.as_uuid()).map(|call| UsageCall {
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
