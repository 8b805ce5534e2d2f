//! Counts of the recorded calls of each tool.

use cynode_core::{
    ids::{ProjectId, UserId},
    roles::UserRole,
};
use cynode_db::tools::audit::{self, ToolCallFilter};
use cynode_wire::tools::audit::{ToolCallStats, ToolStats};
use time::{Duration, OffsetDateTime};
use tokio::sync::Semaphore;

use crate::{Ctx, Error, platform::operation};

/// Time that is counted when no begin is named.
const DEFAULT_WINDOW: Duration = Duration::DAY;

/// Longest time that is counted at once.
const MAX_WINDOW: Duration = Duration::days(31);

/// Maximum number of counts that run at once in this process.
static COUNT_PERMITS: Semaphore = Semaphore::const_new(4);

/// Which calls are counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToolStatsRequest {
    /// Only calls in this project.
    pub project: Option<ProjectId>,
    /// Only calls since this time.
    pub since: Option<OffsetDateTime>,
    /// Only calls before this time.
    pub until: Option<OffsetDateTime>,
}

/// Counts the calls of each tool that the caller may see: those of one project, of all projects of the caller, or of the installation for a
/// caller with a role in it.
#[tracing::instrument(name = "app.audit.count_tool_calls", skip_all)]
#[operation]
pub async fn count_tool_calls(ctx: &mut Ctx, wanted: ToolStatsRequest) -> Result<ToolStats, Error> {
    let seen_by = match wanted.project {
        Some(project) => {
            ctx.require_project_role(project, UserRole::Viewer).await?;
            None
        }
        None => ctx.visibility_filter()?,
    };
    // A record of this very moment belongs to it, too.
    let until = wanted.until.unwrap_or(ctx.now + Duration::MICROSECOND);
    let since = wanted.since.unwrap_or_else(|| until.saturating_sub(DEFAULT_WINDOW));
    if since >= until || until - since > MAX_WINDOW + Duration::MICROSECOND {
        let told = "`since` is before `until`, and at most 31 days before it";
        return Err(Error::Invalid(told.into()));
    }
    let _permit = COUNT_PERMITS.try_acquire().map_err(|_| Error::Overloaded)?;
    let filter = ToolCallFilter {
        project: wanted.project.map(ProjectId::as_uuid),
        seen_by: seen_by.map(UserId::as_uuid),
        since,
        until,
    };
    let counted = audit::count_tool_calls(ctx.conn(), filter).await?;
    let items = counted.into_iter().map(|count| ToolCallStats {
        tool: count.tool,
        allowed: count.allowed,
        refused: count.refused,
        needs_approval: count.needs_approval,
        failed: count.failed,
        p50_us: count.p50_us,
        p95_us: count.p95_us,
        last_at: count.last_at,
    });
    Ok(ToolStats { since, until, items: items.collect() })
}
