//! Jobs: claim, renew the lease, report the result.

use std::time::{Duration, Instant};

use cynode_core::ids::JobId;
use cynode_db::{DbError, workflow::jobs};
use cynode_wire::workflow::jobs::{ClaimJobs, ClaimedJobs, JobHeartbeat, JobReport, JobStatusView};

use crate::{
    App, Ctx, Error,
    identity::service_tokens::ServiceIdentity,
    platform::{
        operation,
        timeouts::{validate_ttl_ms, wait_timeout},
    },
};

/// Lease of a job when its worker names none.
const DEFAULT_JOB_TTL_SECONDS: u32 = 60;

/// Maximum number of jobs per claim.
const MAX_CLAIMED_JOBS: u16 = 100;

/// How long a claim waits for a wake-up before it polls, when no process-wide poll runs.
const JOB_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Claims queued jobs for a worker. With a wait time it long-polls for some.
#[tracing::instrument(name = "app.jobs.claim_jobs", skip_all, fields(worker = service.name))]
#[operation]
pub async fn claim_jobs(
    app: &App,
    service: &ServiceIdentity,
    body: &ClaimJobs,
) -> Result<ClaimedJobs, Error> {
    if !(1..=MAX_CLAIMED_JOBS).contains(&body.max_jobs) {
        return Err(Error::Invalid(format!("`max_jobs` is 1 to {MAX_CLAIMED_JOBS}")));
    }
    let ttl = validate_ttl_ms(body.expires_in_seconds, DEFAULT_JOB_TTL_SECONDS)?;
    let until = Instant::now() + wait_timeout(body.wait_ms);
    loop {
        let mut sign = std::pin::pin!(app.work_signal());
        sign.as_mut().enable();
        let mut tx = app.begin().await?;
        // A repeated claim after a lost answer must find the jobs of the first.
        jobs::lock_claim(&mut tx, body.claim_id).await?;
        let max_jobs = body.max_jobs.into();
        let jobs = jobs::claim_jobs(&mut tx, &service.name, body.claim_id, max_jobs, ttl).await?;
        tx.commit().await.map_err(DbError::from)?;
        if !jobs.is_empty() {
            app.announce_commit();
        }
        let left = until.saturating_duration_since(Instant::now());
        if !jobs.is_empty() || left.is_zero() {
            return Ok(ClaimedJobs { jobs });
        }
        let _ = tokio::time::timeout(left.min(app.poll_delay(JOB_POLL_INTERVAL)), sign).await;
    }
}

/// Renews the lease of a job.
#[tracing::instrument(name = "app.jobs.renew_job", skip_all, fields(job.id = %job))]
#[operation]
pub async fn renew_job(
    ctx: &mut Ctx,
    service: &ServiceIdentity,
    job: JobId,
    body: &JobHeartbeat,
) -> Result<JobStatusView, Error> {
    let ttl = validate_ttl_ms(body.expires_in_seconds, DEFAULT_JOB_TTL_SECONDS)?;
    let claim = jobs::JobClaim { job, worker: &service.name, fencing_token: body.fencing_token };
    if jobs::renew_job_lease(ctx.conn(), claim, ttl).await? {
        let state = cynode_core::workflow::units::JobState::Running;
        return Ok(JobStatusView { job_id: job, state });
    }
    Err(refused_claim_error(jobs::get_claim_state(ctx.conn(), job).await?, claim))
}

/// Stores the result of a job and wakes its run. A repeat has no effect. A report that is late, from another worker,
/// or about a cancelled job is rejected.
#[tracing::instrument(name = "app.jobs.report_job", skip_all, fields(job.id = %job))]
#[operation]
pub async fn report_job(
    app: &App,
    service: &ServiceIdentity,
    job: JobId,
    body: &JobReport,
) -> Result<JobStatusView, Error> {
    let claim = jobs::JobClaim { job, worker: &service.name, fencing_token: body.fencing_token };
    let state = body.outcome.job_state();
    let mut conn = app.conn().await?;
    if let Some(task) = jobs::record_job_result(&mut conn, claim, state, &body.result).await? {
        app.announce_commit();
        app.announce_job_log(job);
        app.announce_due_runs(&[task]);
        return Ok(JobStatusView { job_id: job, state });
    }
    let said = |there: &jobs::JobClaimState| {
        there.state == state
            && there.fencing_token == claim.fencing_token
            && there.worker.as_deref() == Some(claim.worker)
    };
    // The result is already stored, so nothing is woken.
    let standing = jobs::get_claim_state(&mut conn, job).await?;
    if standing.as_ref().is_some_and(said) {
        return Ok(JobStatusView { job_id: job, state });
    }
    Err(refused_claim_error(standing, claim))
}

fn refused_claim_error(standing: Option<jobs::JobClaimState>, claim: jobs::JobClaim<'_>) -> Error {
    match standing {
        None => Error::not_found("job", claim.job),
        Some(standing)
            if standing.fencing_token != claim.fencing_token
                || standing.worker.as_deref() != Some(claim.worker) =>
        {
            Error::Fenced("the job was given to somebody else")
        }
        Some(standing) => Error::InvalidState(cynode_core::InvalidTransition {
            what: "job",
            state: standing.state.as_str(),
            verb: "be reported about",
        }),
    }
}
