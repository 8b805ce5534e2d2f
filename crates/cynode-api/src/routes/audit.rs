//! What a reader needs to check the audit log: signed heads, consistency proofs, and an export with proofs.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use cynode_app::tools::audit;
use cynode_core::ids::{CallId, ChainId, ProjectId, TaskId};
use cynode_wire::tools::audit::{AuditBundleLine, AuditConsistency, AuditHeads};
use serde::Deserialize;
use time::OffsetDateTime;

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, Query},
};

/// Selection of signed heads.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct HeadQuery {
    /// Only this chain.
    #[param(value_type = Option<String>)]
    chain: Option<ChainId>,
    /// Maximum number of chains, 1 to 500; 100 by default.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 500)]
    limit: Option<u16>,
}

/// Lists the chains of audit records, newest first, each with its newest signed head.
#[utoipa::path(get, path = "/v1/audit/head", tag = "gate", params(HeadQuery),
    responses((status = OK, body = AuditHeads)))]
pub(crate) async fn audit_heads(
    call: AuthenticatedCall,
    Query(query): Query<HeadQuery>,
) -> Result<Json<AuditHeads>, ApiError> {
    let limit = query.limit.unwrap_or(100);
    if !(1..=500).contains(&limit) {
        return Err(ApiError::Malformed("`limit` is 1 to 500".into()));
    }
    let key = call.app.gateway_parts()?.keys.verifying_key();
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { audit::list_audit_heads(ctx, &key, query.chain, limit).await })
    });
    Ok(Json(found.await?))
}

/// Two heads of one chain.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ConsistencyQuery {
    /// The chain.
    #[param(value_type = String)]
    chain: ChainId,
    /// The number of records of the earlier head.
    #[param(minimum = 1)]
    from: u64,
    /// The number of records of the later head, which is signed; the newest by default.
    to: Option<u64>,
}

/// Proves that a chain of audit records was only appended to since an earlier head (RFC 6962). A chain that is shorter than the head is
/// refused with `chain_truncated`.
#[utoipa::path(get, path = "/v1/audit/consistency", tag = "gate", params(ConsistencyQuery),
    responses((status = OK, body = AuditConsistency)))]
pub(crate) async fn audit_consistency(
    call: AuthenticatedCall,
    Query(query): Query<ConsistencyQuery>,
) -> Result<Json<AuditConsistency>, ApiError> {
    let ConsistencyQuery { chain, from, to } = query;
    let key = call.app.gateway_parts()?.keys.verifying_key();
    let proof = call.app.read(&call.request, |ctx| {
        Box::pin(async move { audit::prove_append_only(ctx, &key, chain, from, to).await })
    });
    Ok(Json(proof.await?))
}

/// Filter of exported audit records.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportQuery {
    /// Only records of this project; required unless you may see the whole installation.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Only records of this task.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
    /// Only records of this call.
    #[param(value_type = Option<String>)]
    call_id: Option<CallId>,
    /// Only records of this tool.
    tool: Option<String>,
    /// Only records with this decision: `allow`, `deny` or `needs_approval`.
    decision: Option<String>,
    /// Only records at or after this time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    since: Option<OffsetDateTime>,
    /// Only records before this time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    until: Option<OffsetDateTime>,
    /// Maximum number of records, 1 to 5000; 1000 by default. The newest are exported.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 5000)]
    limit: Option<u16>,
}

/// Exports audit records with the signed heads and the proofs that cover them, one JSON object per line. A reader with the public key
/// can check them without the installation.
#[utoipa::path(get, path = "/v1/audit/export", tag = "gate", params(ExportQuery),
    responses((status = OK, body = AuditBundleLine, content_type = "application/x-ndjson")))]
pub(crate) async fn export_audit(
    call: AuthenticatedCall,
    Query(query): Query<ExportQuery>,
) -> Result<Response, ApiError> {
    let limit = query.limit.unwrap_or(1000);
    if !(1..=5000).contains(&limit) {
        return Err(ApiError::Malformed("`limit` is 1 to 5000".into()));
    }
    let wanted = audit::AuditSearchRequest {
        project: query.project_id,
        task: query.task_id,
        call: query.call_id,
        tool: query.tool,
        decision: query.decision,
        since: query.since,
        until: query.until,
        cursor: None,
        limit,
    };
    let key = call.app.gateway_parts()?.keys.verifying_key();
    let text = call.app.read(&call.request, |ctx| {
        Box::pin(async move { audit::export_records(ctx, &key, wanted).await })
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"cynode-audit.ndjson\""),
    ];
    Ok((headers, text.await?).into_response())
}
