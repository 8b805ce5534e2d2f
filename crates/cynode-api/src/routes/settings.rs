use axum::http::StatusCode;
use cynode_app::settings;
use cynode_core::names::DottedKey;
use cynode_wire::settings::{ChangeView, History, SetValue, ValueView, Values};
use serde::Deserialize;

use crate::{
    error::ApiError,
    extract::{Answered, Call, Json, Mutation, Path, Query},
};

/// The version that a deletion expects.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct VersionQuery {
    /// The version that you saw.
    pub(crate) expected_version: u32,
}

/// All system settings.
#[utoipa::path(get, path = "/v1/settings", tag = "settings",
    responses((status = OK, body = Values)))]
pub(crate) async fn list_settings(call: Call) -> Result<Json<Values>, ApiError> {
    let found = call.app.read(&call.request, |ctx| Box::pin(settings::list(ctx))).await?;
    Ok(Json(Values { items: found.into_iter().map(ValueView::from).collect() }))
}

/// One system setting.
#[utoipa::path(get, path = "/v1/settings/{key}", tag = "settings", params(("key" = String, Path)),
    responses((status = OK, body = ValueView)))]
pub(crate) async fn get_setting(
    call: Call,
    Path(key): Path<DottedKey>,
) -> Result<Json<ValueView>, ApiError> {
    let found =
        call.app.read(&call.request, |ctx| Box::pin(async move { settings::get(ctx, &key).await }));
    Ok(Json(found.await?.into()))
}

/// The writes of a system setting, newest first.
#[utoipa::path(get, path = "/v1/settings/{key}/history", tag = "settings",
    params(("key" = String, Path)), responses((status = OK, body = History)))]
pub(crate) async fn setting_history(
    call: Call,
    Path(key): Path<DottedKey>,
) -> Result<Json<History>, ApiError> {
    let found = call
        .app
        .read(&call.request, |ctx| Box::pin(async move { settings::history(ctx, &key).await }));
    Ok(Json(History { items: found.await?.into_iter().map(ChangeView::from).collect() }))
}

/// Write a system setting, if nobody wrote it in between.
#[utoipa::path(put, path = "/v1/settings/{key}", tag = "settings", params(("key" = String, Path)),
    request_body = SetValue, responses((status = OK, body = ValueView)))]
pub(crate) async fn set_setting(
    Path(key): Path<DottedKey>,
    call: Mutation<SetValue>,
) -> Result<Answered, ApiError> {
    let Mutation { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let written = settings::set(ctx, &key, &body.value, body.expected()).await?;
            Ok(ValueView::from(written))
        })
    });
    Ok(Answered(StatusCode::OK, answer.await?))
}

/// Delete a system setting, if nobody wrote it in between.
#[utoipa::path(delete, path = "/v1/settings/{key}", tag = "settings",
    params(("key" = String, Path), VersionQuery), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_setting(
    Path(key): Path<DottedKey>,
    Query(version): Query<VersionQuery>,
    call: Mutation<()>,
) -> Result<Answered, ApiError> {
    let version = i64::from(version.expected_version);
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { settings::delete(ctx, &key, version).await })
    });
    Ok(Answered(StatusCode::NO_CONTENT, answer.await?))
}
