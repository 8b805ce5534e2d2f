//! Keys of the installation, and the sinks of its audit records.

use axum::http::StatusCode;
use cynode_app::{background::key_rotation, tools::audit::sinks};
use cynode_wire::{
    platform::keys::KeyringView,
    tools::audit::{AuditSinkView, SetAuditSink},
};

use super::tools::UnpagedList;
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, Path},
};

/// Lists the keys of the installation with their age and use, and the progress of a rotation. For admins. No key is shown.
#[utoipa::path(get, path = "/v1/keyring", tag = "operation", responses((status = OK, body = KeyringView)))]
pub(crate) async fn get_keyring(call: AuthenticatedCall) -> Result<Json<KeyringView>, ApiError> {
    Ok(Json(key_rotation::list_keys(&call.app, &call.request).await?))
}

/// Lists the sinks of audit records with their lag. For admins.
#[utoipa::path(get, path = "/v1/audit/sinks", tag = "gate",
    responses((status = OK, body = UnpagedList<AuditSinkView>)))]
pub(crate) async fn list_audit_sinks(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<AuditSinkView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| sinks::list_sinks(ctx));
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Sets a sink: a receiver of audit records outside of the installation. For admins.
#[utoipa::path(put, path = "/v1/audit/sinks/{name}", tag = "gate", params(("name" = String, Path)), request_body = SetAuditSink,
    responses((status = OK, body = AuditSinkView)))]
pub(crate) async fn set_audit_sink(
    Path(name): Path<String>,
    call: MutationCall<SetAuditSink>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let keys = app.gateway_parts()?.keys.clone();
    let set = app.mutate(&request, |ctx| {
        Box::pin(async move { sinks::set_sink(ctx, &keys, name, body).await })
    });
    Ok(MutationResponse(StatusCode::OK, set.await?))
}

/// Deletes a sink of audit records with its position.
#[utoipa::path(delete, path = "/v1/audit/sinks/{name}", tag = "gate", params(("name" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_audit_sink(
    Path(name): Path<String>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call
        .app
        .mutate(&call.request, |ctx| Box::pin(async move { sinks::delete_sink(ctx, &name).await }));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}
