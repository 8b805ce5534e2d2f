//! Estimates: what a task is expected to cost and to take, before it is created.

use cynode_core::{ids::ProjectId, roles::UserRole};
use cynode_db::tasks::estimates::{self, TaskStatistics};
use cynode_wire::tasks::{EstimateBasis, EstimateRange, TaskEstimate};

use crate::{Ctx, Error, platform::operation};

/// Number of completed tasks below which nothing is estimated.
const MIN_SAMPLES: i64 = 3;

/// Maximum number of completed tasks that are looked at, newest first.
const MAX_SAMPLES: i64 = 200;

/// Estimates a task of the project. Tasks of other projects count only for callers who may see every project.
#[tracing::instrument(name = "app.estimates.estimate_task", skip_all, fields(project.id = %project))]
#[operation]
pub async fn estimate_task(ctx: &mut Ctx, project: ProjectId) -> Result<TaskEstimate, Error> {
    let caller = ctx.require_project_role(project, UserRole::Operator).await?;
    let own = estimates::project_statistics(ctx.conn(), project, MAX_SAMPLES).await?;
    if own.samples >= MIN_SAMPLES {
        return Ok(to_estimate(EstimateBasis::Project, own));
    }
    if caller.role.is_some() && caller.bounds.is_none() {
        let all = estimates::installation_statistics(ctx.conn(), MAX_SAMPLES).await?;
        if all.samples >= MIN_SAMPLES {
            return Ok(to_estimate(EstimateBasis::Installation, all));
        }
    }
    let samples = u32::try_from(own.samples).unwrap_or_default();
    Ok(TaskEstimate { basis: EstimateBasis::Unknown, samples, cost_micros: None, seconds: None })
}

fn to_estimate(basis: EstimateBasis, found: TaskStatistics) -> TaskEstimate {
    let range = |p50: Option<i64>, p90: Option<i64>| {
        let number = |value: i64| u64::try_from(value).unwrap_or_default();
        Some(EstimateRange { p50: number(p50?), p90: number(p90?) })
    };
    TaskEstimate {
        basis,
        samples: u32::try_from(found.samples).unwrap_or(u32::MAX),
        cost_micros: range(found.cost_p50, found.cost_p90),
        seconds: range(found.seconds_p50, found.seconds_p90),
    }
}
