//! Schedules: tasks that are created at set times.

use axum::http::StatusCode;
use cynode_app::{tasks::projects, workflow::schedules};
use cynode_core::{ids::ScheduleId, paging::Page};
use cynode_wire::workflow::schedules::{CreateSchedule, FiringView, ScheduleView, UpdateSchedule};
use serde::Deserialize;

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
    routes::projects::ProjectName,
};

/// Creates a schedule, which acts in your name.
/// It has a cron expression with a time zone, or a single time; and a message to the project manager, or a whole task.
#[utoipa::path(post, path = "/v1/schedules", tag = "schedules", request_body = CreateSchedule,
    responses((status = CREATED, body = ScheduleView)))]
pub(crate) async fn create_schedule(
    call: MutationCall<CreateSchedule>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    schedules::redact_schedule(&app, &mut body.action).await?;
    let made = app.mutate(&request, |ctx| schedules::create_schedule(ctx, body));
    Ok(MutationResponse(StatusCode::CREATED, made.await?))
}

/// Filter of schedules.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScheduleQuery {
    /// Only schedules of this project, by id or slug.
    #[param(value_type = Option<String>)]
    project: Option<ProjectName>,
}

/// Lists the schedules you may see, newest first, with their next time and last result.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", params(ScheduleQuery, PageQuery),
    responses((status = OK, body = Page<ScheduleView>)))]
pub(crate) async fn list_schedules(
    call: AuthenticatedCall,
    Query(wanted): Query<ScheduleQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ScheduleView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let named = wanted.project.as_ref().map(|ProjectName(project)| project);
            let project = projects::resolve_optional_project(ctx, named).await?;
            schedules::list_schedules(ctx, project, page).await
        })
    });
    Ok(Json(found.await?))
}

/// Returns one schedule with its next time and last result.
#[utoipa::path(get, path = "/v1/schedules/{schedule}", tag = "schedules", params(("schedule" = String, Path)),
    responses((status = OK, body = ScheduleView)))]
pub(crate) async fn get_schedule(
    call: AuthenticatedCall,
    Path(schedule): Path<ScheduleId>,
) -> Result<Json<ScheduleView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| schedules::get_schedule(ctx, schedule));
    Ok(Json(found.await?))
}

/// Updates, enables or disables a schedule, unless another writer changed it in between. It then acts in your name.
#[utoipa::path(patch, path = "/v1/schedules/{schedule}", tag = "schedules", params(("schedule" = String, Path)),
    request_body = UpdateSchedule, responses((status = OK, body = ScheduleView)))]
pub(crate) async fn update_schedule(
    Path(schedule): Path<ScheduleId>,
    call: MutationCall<UpdateSchedule>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, mut body } = call;
    if let Some(action) = &mut body.action {
        schedules::redact_schedule(&app, action).await?;
    }
    let written = app.mutate(&request, |ctx| schedules::update_schedule(ctx, schedule, body));
    Ok(MutationResponse(StatusCode::OK, written.await?))
}

/// Deletes a schedule. The tasks that it created stay.
#[utoipa::path(delete, path = "/v1/schedules/{schedule}", tag = "schedules", params(("schedule" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_schedule(
    Path(schedule): Path<ScheduleId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| schedules::delete_schedule(ctx, schedule));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Fires a schedule now, in your name. Its next time stays the same.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/run", tag = "schedules", params(("schedule" = String, Path)),
    responses((status = CREATED, body = FiringView)))]
pub(crate) async fn run_schedule(
    Path(schedule): Path<ScheduleId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let fired = call.app.mutate(&call.request, |ctx| schedules::fire_schedule_now(ctx, schedule));
    Ok(MutationResponse(StatusCode::CREATED, fired.await?))
}
