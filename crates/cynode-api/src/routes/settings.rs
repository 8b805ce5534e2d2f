use axum::http::StatusCode;
use cynode_app::platform::settings;
use cynode_core::names::DottedKey;
use cynode_wire::platform::settings::{ChangeView, SetValue, ValueHistory, ValueList, ValueView};
use serde::Deserialize;

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, Path, Query},
};

/// Optimistic lock of a deletion.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct VersionQuery {
    /// The version that you read.
    pub(crate) expected_version: u32,
}

/// Lists all system settings.
#[utoipa::path(get, path = "/v1/settings", tag = "settings",
    responses((status = OK, body = ValueList)))]
pub(crate) async fn list_settings(call: AuthenticatedCall) -> Result<Json<ValueList>, ApiError> {
    let found = call.app.read(&call.request, |ctx| settings::list_settings(ctx)).await?;
    Ok(Json(ValueList { items: found.into_iter().map(ValueView::from).collect() }))
}

/// Returns one system setting.
#[utoipa::path(get, path = "/v1/settings/{key}", tag = "settings", params(("key" = String, Path)),
    responses((status = OK, body = ValueView)))]
pub(crate) async fn get_setting(
    call: AuthenticatedCall,
    Path(key): Path<DottedKey>,
) -> Result<Json<ValueView>, ApiError> {
    let found = call
        .app
        .read(&call.request, |ctx| Box::pin(async move { settings::get_setting(ctx, &key).await }));
    Ok(Json(found.await?.into()))
}

/// Lists the versions of a system setting, newest first.
#[utoipa::path(get, path = "/v1/settings/{key}/history", tag = "settings",
    params(("key" = String, Path)), responses((status = OK, body = ValueHistory)))]
pub(crate) async fn setting_history(
    call: AuthenticatedCall,
    Path(key): Path<DottedKey>,
) -> Result<Json<ValueHistory>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { settings::list_setting_changes(ctx, &key).await })
    });
    Ok(Json(ValueHistory { items: found.await?.into_iter().map(ChangeView::from).collect() }))
}

/// Sets a system setting, unless another writer changed it in between.
#[utoipa::path(put, path = "/v1/settings/{key}", tag = "settings", params(("key" = String, Path)),
    request_body = SetValue, responses((status = OK, body = ValueView)))]
pub(crate) async fn set_setting(
    Path(key): Path<DottedKey>,
    call: MutationCall<SetValue>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let answer = app.mutate(&request, |ctx| {
        Box::pin(async move {
            let written =
                settings::set_setting(ctx, &key, &body.value, body.expected_state()).await?;
            Ok(ValueView::from(written))
        })
    });
    Ok(MutationResponse(StatusCode::OK, answer.await?))
}

/// Deletes a system setting, unless another writer changed it in between.
#[utoipa::path(delete, path = "/v1/settings/{key}", tag = "settings",
    params(("key" = String, Path), VersionQuery), responses((status = NO_CONTENT)))]
pub(crate) async fn delete_setting(
    Path(key): Path<DottedKey>,
    Query(version): Query<VersionQuery>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let version = i64::from(version.expected_version);
    let answer = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { settings::delete_setting(ctx, &key, version).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, answer.await?))
}
