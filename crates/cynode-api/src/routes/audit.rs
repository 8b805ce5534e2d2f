//! The audit log: search, verification, signed heads, proofs, and an export with proofs.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use cynode_app::tools::audit;
use cynode_core::{
    ids::{CallId, ChainId, ProjectId, TaskId},
    paging::RecordCursor,
};
use cynode_wire::tools::{
    AuditPage, AuditProof, AuditReport,
    audit::{AuditBundleLine, AuditConsistency, AuditHeads},
};
use serde::Deserialize;
use time::OffsetDateTime;

use super::tools::UnpagedList;
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, Path, Query},
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
    let keys = call.app.gateway_parts()?.keys.public_keys();
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { audit::list_audit_heads(ctx, &keys, query.chain, limit).await })
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
    let keys = call.app.gateway_parts()?.keys.public_keys();
    let proof = call.app.read(&call.request, |ctx| {
        Box::pin(async move { audit::prove_append_only(ctx, &keys, chain, from, to).await })
    });
    Ok(Json(proof.await?))
}

/// Filter of audit records.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditFilterQuery {
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
}

impl AuditFilterQuery {
    fn into_search(self, cursor: Option<RecordCursor>, limit: u16) -> audit::AuditSearchRequest {
        audit::AuditSearchRequest {
            project: self.project_id,
            task: self.task_id,
            call: self.call_id,
            tool: self.tool,
            decision: self.decision,
            since: self.since,
            until: self.until,
            cursor,
            limit,
        }
    }
}

/// Page of audit records.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditPageQuery {
    /// The `next_cursor` of the previous page.
    #[param(value_type = Option<String>)]
    cursor: Option<RecordCursor>,
    /// Maximum number of records, 1 to 1000; 100 by default.
    limit: Option<u16>,
}

/// Lists audit records of tool calls, newest first. They contain no arguments and no results.
#[utoipa::path(get, path = "/v1/audit", tag = "gate", params(AuditFilterQuery, AuditPageQuery),
    responses((status = OK, body = AuditPage)))]
pub(crate) async fn search_audit(
    call: AuthenticatedCall,
    Query(filter): Query<AuditFilterQuery>,
    Query(AuditPageQuery { cursor, limit }): Query<AuditPageQuery>,
) -> Result<Json<AuditPage>, ApiError> {
    let limit = limit.unwrap_or(100);
    if !(1..=1000).contains(&limit) {
        return Err(ApiError::Malformed("`limit` is 1 to 1000".into()));
    }
    let wanted = filter.into_search(cursor, limit);
    let found = call.app.read(&call.request, |ctx| audit::search_records(ctx, wanted));
    Ok(Json(found.await?))
}

/// Verifies every audit record, chain and signature, as `cynode audit verify` does. For admins of the installation.
/// It reads all records.
#[utoipa::path(get, path = "/v1/audit/verify", tag = "gate", responses((status = OK, body = AuditReport)))]
pub(crate) async fn verify_audit(call: AuthenticatedCall) -> Result<Json<AuditReport>, ApiError> {
    Ok(Json(audit::verify_audit_log_as_admin(&call.app, &call.request).await?))
}

/// Proves that the records of a call are covered by the installation's signature, to a holder of its public key.
#[utoipa::path(get, path = "/v1/audit/{call}/proof", tag = "gate", params(("call" = String, Path)),
    responses((status = OK, body = UnpagedList<AuditProof>)))]
pub(crate) async fn prove_call(
    call: AuthenticatedCall,
    Path(id): Path<CallId>,
) -> Result<Json<UnpagedList<AuditProof>>, ApiError> {
    let keys = call.app.gateway_parts()?.keys.public_keys();
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { audit::prove_call_for_caller(ctx, id, &keys).await })
    });
    Ok(Json(UnpagedList::new(found.await?)))
}

/// Number of exported audit records.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportQuery {
    /// Maximum number of records, 1 to 5000; 1000 by default. The newest are exported.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 5000)]
    limit: Option<u16>,
}

/// Exports audit records with the signed heads and the proofs that cover them, one JSON object per line. A reader with the public key
/// can check them without the installation.
#[utoipa::path(get, path = "/v1/audit/export", tag = "gate", params(AuditFilterQuery, ExportQuery),
    responses((status = OK, body = AuditBundleLine, content_type = "application/x-ndjson")))]
pub(crate) async fn export_audit(
    call: AuthenticatedCall,
    Query(filter): Query<AuditFilterQuery>,
    Query(ExportQuery { limit }): Query<ExportQuery>,
) -> Result<Response, ApiError> {
    let limit = limit.unwrap_or(1000);
    if !(1..=5000).contains(&limit) {
        return Err(ApiError::Malformed("`limit` is 1 to 5000".into()));
    }
    let wanted = filter.into_search(None, limit);
    let keys = call.app.gateway_parts()?.keys.public_keys();
    let text = call.app.read(&call.request, |ctx| {
        Box::pin(async move { audit::export_records(ctx, &keys, wanted).await })
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"cynode-audit.ndjson\""),
    ];
    Ok((headers, text.await?).into_response())
}
