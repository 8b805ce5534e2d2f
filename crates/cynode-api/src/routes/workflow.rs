//! The internal port: the contract with runners and workers.

use axum::http::StatusCode;
use cynode_app::workflow::{self, jobs};
use cynode_core::ids::JobId;
use cynode_wire::workflow::{
    LeaseRef, LeaseView, RenewLease, ResumeWorkflow, ResumeWorkflowResult, StartWorkflow,
    StartWorkflowResult, StepCheckpoint, WorkflowPosition,
    jobs::{ClaimJobs, ClaimedJobs, JobHeartbeat, JobReport, JobStatusView},
};

use crate::{
    error::ApiError,
    extract::{Json, MutationResponse, Path, RunnerRole, ServiceCall, WorkerRole},
};

/// Takes the lease of a task, if the task may run, and returns the position of its run.
#[utoipa::path(post, path = "/v1/workflow/start", tag = "workflow", request_body = StartWorkflow,
    responses((status = OK, body = StartWorkflowResult)))]
pub(crate) async fn start_workflow(
    call: ServiceCall<RunnerRole, StartWorkflow>,
) -> Result<MutationResponse, ApiError> {
    Ok(MutationResponse(
        StatusCode::OK,
        workflow::start_workflow(&call.app, &call.request, &call.body).await?,
    ))
}

/// Returns the position of a run, without taking its lease.
#[utoipa::path(post, path = "/v1/workflow/resume", tag = "workflow", request_body = ResumeWorkflow,
    responses((status = OK, body = ResumeWorkflowResult)))]
pub(crate) async fn resume_workflow(
    call: ServiceCall<RunnerRole, ResumeWorkflow>,
) -> Result<Json<ResumeWorkflowResult>, ApiError> {
    Ok(Json(workflow::resume_workflow(&call.app, &call.request, &call.body).await?))
}

/// Stores the result of a step: state, history and effects in one transaction, under the lease.
#[utoipa::path(post, path = "/v1/workflow/checkpoint", tag = "workflow", request_body = StepCheckpoint,
    responses((status = OK, body = WorkflowPosition)))]
pub(crate) async fn checkpoint_workflow(
    call: ServiceCall<RunnerRole, StepCheckpoint>,
) -> Result<MutationResponse, ApiError> {
    Ok(MutationResponse(
        StatusCode::OK,
        workflow::store_checkpoint(&call.app, &call.request, call.body).await?,
    ))
}

/// Renews a lease.
#[utoipa::path(post, path = "/v1/workflow/renew", tag = "workflow", request_body = RenewLease,
    responses((status = OK, body = LeaseView)))]
pub(crate) async fn renew_lease(
    call: ServiceCall<RunnerRole, RenewLease>,
) -> Result<MutationResponse, ApiError> {
    let ServiceCall { app, request, body, .. } = call;
    let renewed = app
        .mutate(&request, |ctx| Box::pin(async move { workflow::renew_lease(ctx, &body).await }));
    Ok(MutationResponse(StatusCode::OK, renewed.await?))
}

/// Releases a lease.
#[utoipa::path(post, path = "/v1/workflow/release", tag = "workflow", request_body = LeaseRef,
    responses((status = NO_CONTENT)))]
pub(crate) async fn release_lease(
    call: ServiceCall<RunnerRole, LeaseRef>,
) -> Result<MutationResponse, ApiError> {
    let ServiceCall { app, request, body, .. } = call;
    let released = app
        .mutate(&request, |ctx| Box::pin(async move { workflow::release_lease(ctx, &body).await }));
    Ok(MutationResponse(StatusCode::NO_CONTENT, released.await?))
}

/// Claims queued jobs.
#[utoipa::path(post, path = "/v1/jobs/claim", tag = "jobs", request_body = ClaimJobs,
    responses((status = OK, body = ClaimedJobs)))]
pub(crate) async fn claim_jobs(
    call: ServiceCall<WorkerRole, ClaimJobs>,
) -> Result<Json<ClaimedJobs>, ApiError> {
    Ok(Json(jobs::claim_jobs(&call.app, &call.service, &call.body).await?))
}

/// Reports that a job has started.
#[utoipa::path(post, path = "/v1/jobs/{job}/alive", tag = "jobs", request_body = JobHeartbeat,
    params(("job" = String, Path)), responses((status = OK, body = JobStatusView)))]
pub(crate) async fn keep_job(
    Path(job): Path<JobId>,
    call: ServiceCall<WorkerRole, JobHeartbeat>,
) -> Result<MutationResponse, ApiError> {
    let ServiceCall { app, request, service, body, .. } = call;
    let kept = app.mutate(&request, |ctx| {
        Box::pin(async move { jobs::renew_job(ctx, &service, job, &body).await })
    });
    Ok(MutationResponse(StatusCode::OK, kept.await?))
}

/// Reports the result of a job.
#[utoipa::path(post, path = "/v1/jobs/{job}/result", tag = "jobs", request_body = JobReport,
    params(("job" = String, Path)), responses((status = OK, body = JobStatusView)))]
pub(crate) async fn report_job(
    Path(job): Path<JobId>,
    call: ServiceCall<WorkerRole, JobReport>,
) -> Result<Json<JobStatusView>, ApiError> {
    Ok(Json(jobs::report_job(&call.app, &call.service, job, &call.body).await?))
}
