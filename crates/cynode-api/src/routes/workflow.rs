//! The internal port: the contract with runners and workers.

use axum::http::StatusCode;
use cynode_app::{jobs, workflow};
use cynode_core::ids::JobId;
use cynode_wire::{
    jobs::{ClaimJobs, ClaimedJobs, JobAlive, JobReport, JobStanding},
    workflow::{
        Checkpoint, LeaseRef, LeaseView, Position, RenewLease, ResumeWorkflow, Resumed,
        StartWorkflow, Started,
    },
};

use crate::{
    error::ApiError,
    extract::{Answered, Json, Path, Runner, ServiceCall, Worker},
};

/// Take the lease of a task, if the gates are open, and learn where its run stands.
#[utoipa::path(post, path = "/v1/workflow/start", tag = "workflow", request_body = StartWorkflow,
    responses((status = OK, body = Started)))]
pub(crate) async fn start_workflow(
    call: ServiceCall<Runner, StartWorkflow>,
) -> Result<Answered, ApiError> {
    Ok(Answered(StatusCode::OK, workflow::start(&call.app, &call.request, &call.body).await?))
}

/// Learn where a run stands, without taking it.
#[utoipa::path(post, path = "/v1/workflow/resume", tag = "workflow", request_body = ResumeWorkflow,
    responses((status = OK, body = Resumed)))]
pub(crate) async fn resume_workflow(
    call: ServiceCall<Runner, ResumeWorkflow>,
) -> Result<Json<Resumed>, ApiError> {
    Ok(Json(workflow::resume(&call.app, &call.request, &call.body).await?))
}

/// Store what a node did: state, history and effects together, under the lease.
#[utoipa::path(post, path = "/v1/workflow/checkpoint", tag = "workflow", request_body = Checkpoint,
    responses((status = OK, body = Position)))]
pub(crate) async fn checkpoint_workflow(
    call: ServiceCall<Runner, Checkpoint>,
) -> Result<Answered, ApiError> {
    Ok(Answered(StatusCode::OK, workflow::checkpoint(&call.app, &call.request, call.body).await?))
}

/// Keep a lease.
#[utoipa::path(post, path = "/v1/workflow/renew", tag = "workflow", request_body = RenewLease,
    responses((status = OK, body = LeaseView)))]
pub(crate) async fn renew_lease(
    call: ServiceCall<Runner, RenewLease>,
) -> Result<Answered, ApiError> {
    let ServiceCall { app, request, body, .. } = call;
    let renewed =
        app.mutate(&request, |ctx| Box::pin(async move { workflow::renew(ctx, &body).await }));
    Ok(Answered(StatusCode::OK, renewed.await?))
}

/// Give a lease back.
#[utoipa::path(post, path = "/v1/workflow/release", tag = "workflow", request_body = LeaseRef,
    responses((status = NO_CONTENT)))]
pub(crate) async fn release_lease(
    call: ServiceCall<Runner, LeaseRef>,
) -> Result<Answered, ApiError> {
    let ServiceCall { app, request, body, .. } = call;
    let released =
        app.mutate(&request, |ctx| Box::pin(async move { workflow::release(ctx, &body).await }));
    Ok(Answered(StatusCode::NO_CONTENT, released.await?))
}

/// Take queued jobs.
#[utoipa::path(post, path = "/v1/jobs/claim", tag = "jobs", request_body = ClaimJobs,
    responses((status = OK, body = ClaimedJobs)))]
pub(crate) async fn claim_jobs(
    call: ServiceCall<Worker, ClaimJobs>,
) -> Result<Json<ClaimedJobs>, ApiError> {
    Ok(Json(jobs::claim(&call.app, &call.service, &call.body).await?))
}

/// Say that a job is being worked on.
#[utoipa::path(post, path = "/v1/jobs/{job}/alive", tag = "jobs", request_body = JobAlive,
    params(("job" = String, Path)), responses((status = OK, body = JobStanding)))]
pub(crate) async fn keep_job(
    Path(job): Path<JobId>,
    call: ServiceCall<Worker, JobAlive>,
) -> Result<Answered, ApiError> {
    let ServiceCall { app, request, service, body, .. } = call;
    let kept = app.mutate(&request, |ctx| {
        Box::pin(async move { jobs::keep(ctx, &service, job, &body).await })
    });
    Ok(Answered(StatusCode::OK, kept.await?))
}

/// Report what came of a job.
#[utoipa::path(post, path = "/v1/jobs/{job}/result", tag = "jobs", request_body = JobReport,
    params(("job" = String, Path)), responses((status = OK, body = JobStanding)))]
pub(crate) async fn report_job(
    Path(job): Path<JobId>,
    call: ServiceCall<Worker, JobReport>,
) -> Result<Json<JobStanding>, ApiError> {
    Ok(Json(jobs::report(&call.app, &call.service, job, &call.body).await?))
}
