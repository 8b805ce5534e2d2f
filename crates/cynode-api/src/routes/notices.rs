//! What people are told, and by which ways.

use axum::http::StatusCode;
use cynode_app::notices;
use cynode_core::{
    ids::{ChannelId, NotificationId},
    notices::NoticeState,
};
use cynode_wire::{
    notices::{ChannelView, ChannelWithSecret, CreateChannel, NotificationView, UpdateChannel},
    page::Page,
};
use serde::Deserialize;

use crate::{
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, PageQuery, Path, Query},
};

/// Whose channels and notices are wanted.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Everybody {
    /// Everybody's, for an admin of the installation; your own and those of your projects when it is left out.
    #[serde(default)]
    all: bool,
}

/// Which notices are wanted.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct InState {
    /// `pending`, `sent`, `failed` or `dropped`.
    #[param(value_type = Option<String>)]
    state: Option<NoticeState>,
}

/// Add a way to be told: a webhook, a mailbox or a topic of ntfy.
#[utoipa::path(post, path = "/v1/notification-channels", tag = "notifications", request_body = CreateChannel,
    responses((status = CREATED, body = ChannelWithSecret)))]
pub(crate) async fn create_channel(call: Mutation<CreateChannel>) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let (gate, parts) = (app.gate()?.clone(), app.notices()?.clone());
    let made = app.mutate_secret(&request, |ctx| {
        Box::pin(async move { notices::create_channel(ctx, (&gate, &parts), body).await })
    });
    Ok(Answered(StatusCode::CREATED, made.await?))
}

/// The ways to be told.
#[utoipa::path(get, path = "/v1/notification-channels", tag = "notifications", params(Everybody, PageQuery),
    responses((status = OK, body = Page<ChannelView>)))]
pub(crate) async fn list_channels(
    call: Call,
    Query(Everybody { all }): Query<Everybody>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ChannelView>>, ApiError> {
    let page = page.page()?;
    let found = call.app.read(&call.request, |ctx| Box::pin(notices::channels(ctx, all, page)));
    Ok(Json(found.await?))
}

/// One way to be told.
#[utoipa::path(get, path = "/v1/notification-channels/{channel}", tag = "notifications",
    params(("channel" = String, Path)), responses((status = OK, body = ChannelView)))]
pub(crate) async fn get_channel(
    call: Call,
    Path(channel): Path<ChannelId>,
) -> Result<Json<ChannelView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(notices::channel(ctx, channel)));
    Ok(Json(found.await?))
}

/// Change a way to be told: its name, what it is told of, its quiet, its secret; switch it on or off.
#[utoipa::path(patch, path = "/v1/notification-channels/{channel}", tag = "notifications",
    params(("channel" = String, Path)), request_body = UpdateChannel,
    responses((status = OK, body = ChannelWithSecret)))]
pub(crate) async fn update_channel(
    Path(channel): Path<ChannelId>,
    call: Mutation<UpdateChannel>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let gate = app.gate()?.clone();
    let set = app.mutate_secret(&request, |ctx| {
        Box::pin(async move { notices::update_channel(ctx, &gate, channel, body).await })
    });
    Ok(Answered(StatusCode::OK, set.await?))
}

/// Remove a way to be told, with what was to be told by it.
#[utoipa::path(delete, path = "/v1/notification-channels/{channel}", tag = "notifications",
    params(("channel" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn remove_channel(
    Path(channel): Path<ChannelId>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let done =
        call.app.mutate(&call.request, |ctx| Box::pin(notices::remove_channel(ctx, channel)));
    Ok(Answered(StatusCode::NO_CONTENT, done.await?))
}

/// Try a way to be told. What comes of it is with the notices.
#[utoipa::path(post, path = "/v1/notification-channels/{channel}/test", tag = "notifications",
    params(("channel" = String, Path)), responses((status = ACCEPTED, body = NotificationView)))]
pub(crate) async fn try_channel(
    Path(channel): Path<ChannelId>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let queued = call.app.mutate(&call.request, |ctx| Box::pin(notices::try_channel(ctx, channel)));
    Ok(Answered(StatusCode::ACCEPTED, queued.await?))
}

/// What was told and what is to be told, newest first, with every attempt.
#[utoipa::path(get, path = "/v1/notifications", tag = "notifications", params(Everybody, InState, PageQuery),
    responses((status = OK, body = Page<NotificationView>)))]
pub(crate) async fn list_notifications(
    call: Call,
    Query(Everybody { all }): Query<Everybody>,
    Query(InState { state }): Query<InState>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<NotificationView>>, ApiError> {
    let page = page.page()?;
    let found = call.app.read(&call.request, |ctx| Box::pin(notices::list(ctx, all, state, page)));
    Ok(Json(found.await?))
}

/// Tell something once more, under the same id.
#[utoipa::path(post, path = "/v1/notifications/{notification}/replay", tag = "notifications",
    params(("notification" = String, Path)), responses((status = ACCEPTED, body = NotificationView)))]
pub(crate) async fn replay_notification(
    Path(notification): Path<NotificationId>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let queued = call.app.mutate(&call.request, |ctx| Box::pin(notices::replay(ctx, notification)));
    Ok(Answered(StatusCode::ACCEPTED, queued.await?))
}
