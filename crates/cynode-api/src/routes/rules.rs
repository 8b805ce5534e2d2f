//! Rules before they hold: check, vocabulary, backtest, draft and history; and the decision about a recorded call.

use cynode_app::tools::catalogue;
use cynode_core::ids::ApprovalId;
use cynode_wire::tools::{
    DecideApproval,
    rules::{
        BacktestReport, BacktestRule, CallExplanation, CheckRule, ExplainRecordedCall,
        RuleCheckView, RuleDraftView, RuleVersionView, RuleVocabulary,
    },
};

use super::tools::UnpagedList;
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, Path},
};

/// Checks a policy rule as setting it does, and names the place of each error. Nothing is stored.
#[utoipa::path(post, path = "/v1/rules/check", tag = "gate", request_body = CheckRule,
    responses((status = OK, body = RuleCheckView)))]
pub(crate) async fn check_rule(
    call: MutationCall<CheckRule>,
) -> Result<Json<RuleCheckView>, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let checked = app.read(&request, |ctx| {
        Box::pin(async move { catalogue::check_rule(ctx, &parts, &body).await })
    });
    Ok(Json(checked.await?))
}

/// Lists all that a policy rule can speak of: tools with their arguments, roles, groups, servers and facts.
#[utoipa::path(get, path = "/v1/rules/vocabulary", tag = "gate",
    responses((status = OK, body = RuleVocabulary)))]
pub(crate) async fn rule_vocabulary(
    call: AuthenticatedCall,
) -> Result<Json<RuleVocabulary>, ApiError> {
    let parts = call.app.gateway_parts()?.clone();
    let listed = call.app.read(&call.request, |ctx| {
        Box::pin(async move { catalogue::describe_rule_vocabulary(ctx, &parts).await })
    });
    Ok(Json(listed.await?))
}

/// Lists the versions of a policy rule, newest first.
#[utoipa::path(get, path = "/v1/rules/{name}/history", tag = "gate", params(("name" = String, Path)),
    responses((status = OK, body = UnpagedList<RuleVersionView>)))]
pub(crate) async fn rule_history(
    call: AuthenticatedCall,
    Path(name): Path<String>,
) -> Result<Json<UnpagedList<RuleVersionView>>, ApiError> {
    let listed = call.app.read(&call.request, |ctx| {
        Box::pin(async move { catalogue::list_rule_versions(ctx, &name).await })
    });
    Ok(Json(UnpagedList::new(listed.await?)))
}

/// Tries a policy rule on the recorded calls of the last days. Records hold no arguments: a rule that needs them is undecidable for the
/// calls that nothing else rules out. Nothing is stored.
#[utoipa::path(post, path = "/v1/rules/backtest", tag = "gate", request_body = BacktestRule,
    responses((status = OK, body = BacktestReport)))]
pub(crate) async fn backtest_rule(
    call: MutationCall<BacktestRule>,
) -> Result<Json<BacktestReport>, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let tried = app.read(&request, |ctx| {
        Box::pin(async move { catalogue::backtest_rule(ctx, &parts, &body).await })
    });
    Ok(Json(tried.await?))
}

/// Drafts a policy rule in shadow mode from a call that waits or waited for approval, so that such calls are decided alike. Nothing is
/// stored. The arguments of the call are known only until it is decided.
#[utoipa::path(post, path = "/v1/approvals/{approval}/draft-rule", tag = "gate", params(("approval" = String, Path)),
    request_body = DecideApproval, responses((status = OK, body = RuleDraftView)))]
pub(crate) async fn draft_rule(
    Path(approval): Path<ApprovalId>,
    call: MutationCall<DecideApproval>,
) -> Result<Json<RuleDraftView>, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let drafted = app.read(&request, |ctx| {
        Box::pin(
            async move { catalogue::draft_rule_from_approval(ctx, &parts, approval, body).await },
        )
    });
    Ok(Json(drafted.await?))
}

/// Explains the policy decision about a recorded call, as it was recorded and as it would be now. Nothing is called and nothing is
/// recorded.
#[utoipa::path(post, path = "/v1/policy/explain-call", tag = "gate", request_body = ExplainRecordedCall,
    responses((status = OK, body = CallExplanation)))]
pub(crate) async fn explain_recorded_call(
    call: MutationCall<ExplainRecordedCall>,
) -> Result<Json<CallExplanation>, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let explained = app.read(&request, |ctx| {
        Box::pin(async move { catalogue::explain_recorded_call(ctx, &parts, &body).await })
    });
    Ok(Json(explained.await?))
}
