//! Notifications and their channels.

use axum::http::StatusCode;
use cynode_app::notifications::{self, inbox, web_push};
use cynode_core::{
    ids::{ChannelId, NotificationId},
    notifications::NotificationState,
    paging::Page,
};
use cynode_wire::notifications::{
    ChannelView, ChannelWithSecret, CreateChannel, NotificationView, SubscribeBrowser,
    UpdateChannel, WebPushKeyView,
    inbox::{InboxView, ViewInboxItem},
};
use serde::Deserialize;

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
};

/// Owner filter of channels and notifications.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AllOwnersQuery {
    /// Those of all users, for an admin of the installation; your own and those of your projects by default.
    #[serde(default)]
    all: bool,
}

/// State filter of notifications.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct NotificationStateQuery {
    /// `pending`, `sent`, `failed` or `dropped`.
    #[param(value_type = Option<String>)]
    state: Option<NotificationState>,
}

/// Lists what waits for a decision of yours. Those items come first because of which most stands still.
///
/// These events change it: `task.waiting`, `task.instructed`, `task.cancelled`, `task.completed`, `task.failed`,
/// `task.parked`, `task.unparked`, `approval.requested`, `approval.decided`, `agent_token.revoked`,
/// `environment.proposed`, `environment.accepted`, `environment.rejected`, `tool_server.*`, `pull_request.*`, `inbox.viewed`
/// and changes of your roles.
#[utoipa::path(get, path = "/v1/inbox", tag = "notifications",
    responses((status = OK, body = InboxView)))]
pub(crate) async fn list_inbox(call: AuthenticatedCall) -> Result<Json<InboxView>, ApiError> {
    let parts = call.app.gateway_parts()?.clone();
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { inbox::list_inbox(ctx, &parts.keys).await })
    });
    Ok(Json(found.await?))
}

/// Says that you look at an item of your inbox; others see your name with it. Repeat it while you look: it ends after 30 seconds.
/// The event `inbox.viewed` says that somebody began to look.
#[utoipa::path(put, path = "/v1/inbox/{item}/presence", tag = "notifications", request_body = ViewInboxItem,
    params(("item" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn view_inbox_item(
    Path(item): Path<String>,
    call: MutationCall<ViewInboxItem>,
) -> Result<MutationResponse, ApiError> {
    let seen = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { inbox::view_inbox_item(ctx, &item).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, seen.await?))
}

/// Creates a notification channel: a webhook, a mailbox or an ntfy topic. A browser is subscribed by
/// `POST /v1/web-push/subscriptions`.
#[utoipa::path(post, path = "/v1/notification-channels", tag = "notifications", request_body = CreateChannel,
    responses((status = CREATED, body = ChannelWithSecret)))]
pub(crate) async fn create_channel(
    call: MutationCall<CreateChannel>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let (gate, parts) = (app.gateway_parts()?.clone(), app.notification_parts()?.clone());
    let made = app.run_secret_mutation(&request, |ctx| {
        Box::pin(async move { notifications::create_channel(ctx, (&gate, &parts), body).await })
    });
    Ok(MutationResponse(StatusCode::CREATED, made.await?))
}

/// Lists notification channels.
#[utoipa::path(get, path = "/v1/notification-channels", tag = "notifications", params(AllOwnersQuery, PageQuery),
    responses((status = OK, body = Page<ChannelView>)))]
pub(crate) async fn list_channels(
    call: AuthenticatedCall,
    Query(AllOwnersQuery { all }): Query<AllOwnersQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ChannelView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call.app.read(&call.request, |ctx| notifications::list_channels(ctx, all, page));
    Ok(Json(found.await?))
}

/// Returns one notification channel.
#[utoipa::path(get, path = "/v1/notification-channels/{channel}", tag = "notifications",
    params(("channel" = String, Path)), responses((status = OK, body = ChannelView)))]
pub(crate) async fn get_channel(
    call: AuthenticatedCall,
    Path(channel): Path<ChannelId>,
) -> Result<Json<ChannelView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| notifications::get_channel(ctx, channel));
    Ok(Json(found.await?))
}

/// Updates a notification channel: its name, its events, its quiet hours, its secret; enables or disables it.
#[utoipa::path(patch, path = "/v1/notification-channels/{channel}", tag = "notifications",
    params(("channel" = String, Path)), request_body = UpdateChannel,
    responses((status = OK, body = ChannelWithSecret)))]
pub(crate) async fn update_channel(
    Path(channel): Path<ChannelId>,
    call: MutationCall<UpdateChannel>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let gate = app.gateway_parts()?.clone();
    let set = app.run_secret_mutation(&request, |ctx| {
        Box::pin(async move { notifications::update_channel(ctx, &gate, channel, body).await })
    });
    Ok(MutationResponse(StatusCode::OK, set.await?))
}

/// Deletes a notification channel with its pending notifications.
#[utoipa::path(delete, path = "/v1/notification-channels/{channel}", tag = "notifications",
    params(("channel" = String, Path)), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_channel(
    Path(channel): Path<ChannelId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| notifications::delete_channel(ctx, channel));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Returns the public key with which browsers subscribe to web push (VAPID). It is created at the first request.
#[utoipa::path(get, path = "/v1/web-push/key", tag = "notifications",
    responses((status = OK, body = WebPushKeyView)))]
pub(crate) async fn web_push_key(call: AuthenticatedCall) -> Result<MutationResponse, ApiError> {
    let AuthenticatedCall { app, request, .. } = call;
    let gate = app.gateway_parts()?.clone();
    let key = app.mutate(&request, |ctx| {
        Box::pin(async move { web_push::get_web_push_key(ctx, &gate).await })
    });
    Ok(MutationResponse(StatusCode::OK, key.await?))
}

/// Subscribes a browser to your notifications: it becomes a channel of the kind `web_push`. Logging out of the session
/// ends the subscription.
#[utoipa::path(post, path = "/v1/web-push/subscriptions", tag = "notifications", request_body = SubscribeBrowser,
    responses((status = CREATED, body = ChannelView)))]
pub(crate) async fn subscribe_browser(
    call: MutationCall<SubscribeBrowser>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let gate = app.gateway_parts()?.clone();
    let made = app.mutate(&request, |ctx| {
        Box::pin(async move { web_push::subscribe_browser(ctx, &gate, body).await })
    });
    Ok(MutationResponse(StatusCode::CREATED, made.await?))
}

/// Sends a test notification to a channel. Its delivery is listed with the notifications.
#[utoipa::path(post, path = "/v1/notification-channels/{channel}/test", tag = "notifications",
    params(("channel" = String, Path)), responses((status = ACCEPTED, body = NotificationView)))]
pub(crate) async fn test_channel(
    Path(channel): Path<ChannelId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let queued = call.app.mutate(&call.request, |ctx| notifications::test_channel(ctx, channel));
    Ok(MutationResponse(StatusCode::ACCEPTED, queued.await?))
}

/// Lists pending and delivered notifications, newest first, with every attempt.
#[utoipa::path(get, path = "/v1/notifications", tag = "notifications", params(AllOwnersQuery, NotificationStateQuery, PageQuery),
    responses((status = OK, body = Page<NotificationView>)))]
pub(crate) async fn list_notifications(
    call: AuthenticatedCall,
    Query(AllOwnersQuery { all }): Query<AllOwnersQuery>,
    Query(NotificationStateQuery { state }): Query<NotificationStateQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<NotificationView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call
        .app
        .read(&call.request, |ctx| notifications::list_notifications(ctx, all, state, page));
    Ok(Json(found.await?))
}

/// Redelivers a notification under the same id.
#[utoipa::path(post, path = "/v1/notifications/{notification}/replay", tag = "notifications",
    params(("notification" = String, Path)), responses((status = ACCEPTED, body = NotificationView)))]
pub(crate) async fn replay_notification(
    Path(notification): Path<NotificationId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let queued = call
        .app
        .mutate(&call.request, |ctx| notifications::redeliver_notification(ctx, notification));
    Ok(MutationResponse(StatusCode::ACCEPTED, queued.await?))
}
