//! Jobs: taken, kept alive, reported by whoever works on them.

use std::time::{Duration, Instant};

use cynode_core::ids::JobId;
use cynode_db::{DbError, jobs};
use cynode_wire::jobs::{ClaimJobs, ClaimedJobs, JobAlive, JobReport, JobStanding};

use crate::{
    App, Ctx, Error,
    services::Service,
    workflow::{lifetime, patience},
};

/// How long a job may be silent when its worker does not say.
const SILENCE: u32 = 60;

/// Most jobs of one claim.
const MOST: u16 = 100;

/// How long a claim waits for a sign from this process before it looks by itself: other processes queue too.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Gives queued jobs to a worker; if so asked, it waits for some.
#[tracing::instrument(name = "app.jobs.claim", skip_all, fields(worker = service.name))]
pub async fn claim(app: &App, service: &Service, body: &ClaimJobs) -> Result<ClaimedJobs, Error> {
    if !(1..=MOST).contains(&body.most) {
        return Err(Error::Invalid(format!("`most` is 1 to {MOST}")));
    }
    let ttl = lifetime(body.expires_in_seconds, SILENCE)?;
    let until = Instant::now() + patience(body.wait_ms);
    loop {
        let mut sign = std::pin::pin!(app.sign_of_work());
        sign.as_mut().enable();
        let mut tx = app.pool().begin().await.map_err(DbError::from)?;
        // A claim that got no answer and is sent again must find what the first one took.
        jobs::one_claim_at_a_time(&mut tx, body.claim_id).await?;
        let most = body.most.into();
        let jobs = jobs::claim(&mut tx, &service.name, body.claim_id, most, ttl).await?;
        tx.commit().await.map_err(DbError::from)?;
        let left = until.saturating_duration_since(Instant::now());
        if !jobs.is_empty() || left.is_zero() {
            return Ok(ClaimedJobs { jobs });
        }
        let _ = tokio::time::timeout(left.min(LOOK_EVERY), sign).await;
    }
}

/// Notes that a job is being worked on.
#[tracing::instrument(name = "app.jobs.keep", skip_all, fields(job.id = %job))]
pub async fn keep(
    ctx: &mut Ctx,
    service: &Service,
    job: JobId,
    body: &JobAlive,
) -> Result<JobStanding, Error> {
    let ttl = lifetime(body.expires_in_seconds, SILENCE)?;
    let claim = jobs::Claim { job, worker: &service.name, fencing_token: body.fencing_token };
    if jobs::keep(ctx.conn(), claim, ttl).await? {
        let state = cynode_core::workflow::units::JobState::Running;
        return Ok(JobStanding { job_id: job, state });
    }
    Err(refusal(jobs::standing(ctx.conn(), job).await?, claim))
}

/// Stores what came of a job and wakes its run. Reported again, nothing changes; reported late, by somebody else, or
/// about a job that is not wanted any more, it is refused.
#[tracing::instrument(name = "app.jobs.report", skip_all, fields(job.id = %job))]
pub async fn report(
    app: &App,
    service: &Service,
    job: JobId,
    body: &JobReport,
) -> Result<JobStanding, Error> {
    let claim = jobs::Claim { job, worker: &service.name, fencing_token: body.fencing_token };
    let state = body.outcome.state();
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    if let Some(task) = jobs::report(&mut conn, claim, state, &body.result).await? {
        app.committed();
        app.woken(&[task]);
        return Ok(JobStanding { job_id: job, state });
    }
    let said = |there: &jobs::Standing| {
        there.state == state
            && there.fencing_token == claim.fencing_token
            && there.worker.as_deref() == Some(claim.worker)
    };
    // Said before: there is nothing new to wake anybody for.
    let standing = jobs::standing(&mut conn, job).await?;
    if standing.as_ref().is_some_and(said) {
        return Ok(JobStanding { job_id: job, state });
    }
    Err(refusal(standing, claim))
}

fn refusal(standing: Option<jobs::Standing>, claim: jobs::Claim<'_>) -> Error {
    match standing {
        None => Error::not_found("job", claim.job),
        Some(standing)
            if standing.fencing_token != claim.fencing_token
                || standing.worker.as_deref() != Some(claim.worker) =>
        {
            Error::Fenced("the job was given to somebody else")
        }
        Some(standing) => Error::Transition(cynode_core::InvalidTransition {
            what: "job",
            state: standing.state.as_str(),
            verb: "be reported about",
        }),
    }
}
