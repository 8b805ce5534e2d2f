//! The gateway, for people: agent tokens, tools, rules, tool servers, approvals.

use axum::http::StatusCode;
use cynode_app::{
    manager::reports,
    tools::{agent_tokens, approvals, audit, catalogue, tool_servers},
};
use cynode_core::{
    ids::{AgentTokenId, ApprovalId, ProjectId, ServerId},
    paging::Page,
    tools::ToolAnnotations,
};
use cynode_wire::tools::{
    AcceptTools, AgentTokenView, AllowlistView, ApprovalView, DecideApproval, ExplainRequest,
    InstallServer, IssueAgentToken, IssuedAgentToken, PolicyExplanation, RuleView, ServerView,
    SetRule, SetTool, ToolView, UpdateServer, audit::ToolStats,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, MutationCall, MutationResponse, PageQuery, Path, Query},
};

/// A list without pagination.
#[derive(Serialize, ToSchema)]
pub(crate) struct UnpagedList<T> {
    items: Vec<T>,
}

impl<T> UnpagedList<T> {
    pub(super) const fn new(items: Vec<T>) -> Self {
        Self { items }
    }
}

/// Issues a token for an agent. The secret is shown only in this response.
#[utoipa::path(post, path = "/v1/agent-tokens", tag = "gate", request_body = IssueAgentToken,
    responses((status = CREATED, body = IssuedAgentToken)))]
pub(crate) async fn issue_agent_token(
    call: MutationCall<IssueAgentToken>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let issued =
        app.run_secret_mutation(&request, |ctx| agent_tokens::issue_agent_token(ctx, body));
    Ok(MutationResponse(StatusCode::CREATED, issued.await?))
}

/// Filter of agent tokens.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AgentTokenQuery {
    /// The project of the tokens.
    #[param(value_type = String)]
    project_id: ProjectId,
}

/// Lists the agent tokens of a project, newest first.
#[utoipa::path(get, path = "/v1/agent-tokens", tag = "gate", params(AgentTokenQuery, PageQuery),
    responses((status = OK, body = Page<AgentTokenView>)))]
pub(crate) async fn list_agent_tokens(
    call: AuthenticatedCall,
    Query(of): Query<AgentTokenQuery>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<AgentTokenView>>, ApiError> {
    let page = page.to_page_request()?;
    let found = call
        .app
        .read(&call.request, |ctx| agent_tokens::list_agent_tokens(ctx, of.project_id, page));
    Ok(Json(found.await?.map(|token| agent_tokens::to_agent_token_view(&token))))
}

/// Revokes an agent token, at once and everywhere.
#[utoipa::path(delete, path = "/v1/agent-tokens/{token}", tag = "gate", params(("token" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn revoke_agent_token(
    Path(token): Path<AgentTokenId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| agent_tokens::revoke_agent_token(ctx, token));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Lists the tools, the roles that may call them, and whether they are enabled.
#[utoipa::path(get, path = "/v1/tools", tag = "gate", responses((status = OK, body = UnpagedList<ToolView>)))]
pub(crate) async fn list_tools(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<ToolView>>, ApiError> {
    let parts = call.app.gateway_parts()?.clone();
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { catalogue::list_tools(ctx, &parts).await })
    });
    Ok(Json(UnpagedList { items: found.await? }))
}

/// The time that is counted.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ToolStatsQuery {
    /// Only calls in this project; of all projects that you may see when it is left out.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Only calls at or after this time; a day before the end by default, at most 31 days.
    #[serde(default, with = "time::serde::rfc3339::option")]
    since: Option<OffsetDateTime>,
    /// Only calls before this time; now by default.
    #[serde(default, with = "time::serde::rfc3339::option")]
    until: Option<OffsetDateTime>,
}

/// Counts the recorded calls of each tool: allowed, refused and failed ones, their median and 95th percentile duration, and the last one.
#[utoipa::path(get, path = "/v1/tool-stats", tag = "gate", params(ToolStatsQuery),
    responses((status = OK, body = ToolStats)))]
pub(crate) async fn tool_stats(
    call: AuthenticatedCall,
    Query(query): Query<ToolStatsQuery>,
) -> Result<Json<ToolStats>, ApiError> {
    let ToolStatsQuery { project_id: project, since, until } = query;
    let wanted = audit::ToolStatsRequest { project, since, until };
    let counted = call.app.read(&call.request, |ctx| audit::count_tool_calls(ctx, wanted));
    Ok(Json(counted.await?))
}

/// Enables or disables a tool, or sets its scope.
#[utoipa::path(put, path = "/v1/tools/{name}", tag = "gate", params(("name" = String, Path)), request_body = SetTool,
    responses((status = OK, body = ToolView)))]
pub(crate) async fn set_tool(
    Path(name): Path<String>,
    call: MutationCall<SetTool>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let set = app.mutate(&request, |ctx| {
        Box::pin(async move { catalogue::set_tool(ctx, &parts, &name, body).await })
    });
    Ok(MutationResponse(StatusCode::OK, set.await?))
}

/// Lists the allowlists of all roles.
#[utoipa::path(get, path = "/v1/allowlists", tag = "gate", responses((status = OK, body = UnpagedList<AllowlistView>)))]
pub(crate) async fn list_allowlists(_call: AuthenticatedCall) -> Json<UnpagedList<AllowlistView>> {
    Json(UnpagedList { items: catalogue::list_allowlists() })
}

/// Lists the policy rules.
#[utoipa::path(get, path = "/v1/rules", tag = "gate", responses((status = OK, body = UnpagedList<RuleView>)))]
pub(crate) async fn list_rules(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<RuleView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| catalogue::list_rules(ctx));
    Ok(Json(UnpagedList { items: found.await? }))
}

/// Sets a policy rule: one Cedar `forbid`. A rule that does not match the schema of the tools is refused.
#[utoipa::path(put, path = "/v1/rules/{name}", tag = "gate", params(("name" = String, Path)), request_body = SetRule,
    responses((status = OK, body = RuleView)))]
pub(crate) async fn set_rule(
    Path(name): Path<String>,
    call: MutationCall<SetRule>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let set = app.mutate(&request, |ctx| {
        Box::pin(async move { catalogue::set_rule(ctx, &parts, &name, &body).await })
    });
    Ok(MutationResponse(StatusCode::OK, set.await?))
}

/// Deletes a policy rule.
#[utoipa::path(delete, path = "/v1/rules/{name}", tag = "gate", params(("name" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn delete_rule(
    Path(name): Path<String>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { catalogue::delete_rule(ctx, &name).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Explains the policy decision about a call. Nothing is called and nothing is recorded.
#[utoipa::path(post, path = "/v1/policy/explain", tag = "gate", request_body = ExplainRequest,
    responses((status = OK, body = PolicyExplanation)))]
pub(crate) async fn explain(
    call: MutationCall<ExplainRequest>,
) -> Result<Json<PolicyExplanation>, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let told = app.read(&request, |ctx| {
        Box::pin(async move { catalogue::explain_call(ctx, &parts, &body).await })
    });
    Ok(Json(told.await?))
}

/// Installs a tool server. `refresh` lists its tools, or the server does within a minute; a person must accept them.
#[utoipa::path(post, path = "/v1/tool-servers", tag = "gate", request_body = InstallServer,
    responses((status = CREATED, body = ServerView)))]
pub(crate) async fn install_server(
    call: MutationCall<InstallServer>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let answer = app
        .mutate(&request, |ctx| {
            Box::pin(async move {
                let server = tool_servers::install_server(ctx, &parts, body).await?;
                tool_servers::get_server(ctx, server.id).await
            })
        })
        .await?;
    Ok(MutationResponse(StatusCode::CREATED, answer))
}

/// Lists the tool servers that you may see.
#[utoipa::path(get, path = "/v1/tool-servers", tag = "gate", responses((status = OK, body = UnpagedList<ServerView>)))]
pub(crate) async fn list_servers(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<ServerView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| tool_servers::list_servers(ctx));
    Ok(Json(UnpagedList { items: found.await? }))
}

/// Returns one tool server and its tools.
#[utoipa::path(get, path = "/v1/tool-servers/{server}", tag = "gate", params(("server" = String, Path)),
    responses((status = OK, body = ServerView)))]
pub(crate) async fn get_server(
    call: AuthenticatedCall,
    Path(server): Path<ServerId>,
) -> Result<Json<ServerView>, ApiError> {
    let found = call.app.read(&call.request, |ctx| tool_servers::get_server(ctx, server));
    Ok(Json(found.await?))
}

/// Updates a tool server.
#[utoipa::path(patch, path = "/v1/tool-servers/{server}", tag = "gate", params(("server" = String, Path)),
    request_body = UpdateServer, responses((status = OK, body = ServerView)))]
pub(crate) async fn update_server(
    Path(server): Path<ServerId>,
    call: MutationCall<UpdateServer>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let set = app.mutate(&request, |ctx| {
        Box::pin(async move { tool_servers::update_server(ctx, server, body).await })
    });
    Ok(MutationResponse(StatusCode::OK, set.await?))
}

/// Deletes a tool server and its tools.
#[utoipa::path(delete, path = "/v1/tool-servers/{server}", tag = "gate", params(("server" = String, Path)),
    responses((status = NO_CONTENT)))]
pub(crate) async fn uninstall_server(
    Path(server): Path<ServerId>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, .. } = call;
    let parts = app.gateway_parts()?.clone();
    let done = app.mutate(&request, |ctx| {
        Box::pin(async move { tool_servers::delete_server(ctx, &parts, server).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Refreshes the list of tools of a tool server now.
#[utoipa::path(post, path = "/v1/tool-servers/{server}/refresh", tag = "gate", params(("server" = String, Path)),
    responses((status = OK, body = ServerView)))]
pub(crate) async fn refresh_server(
    Path(server): Path<ServerId>,
    call: MutationCall<()>,
) -> Result<Json<ServerView>, ApiError> {
    let MutationCall { app, request, .. } = call;
    // A caller who may change the server may also refresh it.
    app.read(&request, |ctx| tool_servers::require_changeable_server(ctx, server)).await?;
    tool_servers::refresh_tools(&app, server).await?;
    let found = app.read(&request, |ctx| tool_servers::get_server(ctx, server));
    Ok(Json(found.await?))
}

/// Accepts the tools of a tool server, exactly as you saw them.
#[utoipa::path(post, path = "/v1/tool-servers/{server}/accept", tag = "gate", params(("server" = String, Path)),
    request_body = AcceptTools, responses((status = OK, body = ServerView)))]
pub(crate) async fn accept_tools(
    Path(server): Path<ServerId>,
    call: MutationCall<AcceptTools>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let parts = app.gateway_parts()?.clone();
    let done = app.mutate(&request, |ctx| {
        Box::pin(async move { tool_servers::accept_tools(ctx, &parts, server, &body).await })
    });
    Ok(MutationResponse(StatusCode::OK, done.await?))
}

/// Annotates a tool with its effects. The annotations replace those of its server.
#[utoipa::path(put, path = "/v1/tool-servers/{server}/tools/{tool}/annotations", tag = "gate",
    params(("server" = String, Path), ("tool" = String, Path)), request_body = ToolAnnotations,
    responses((status = OK, body = ServerView)))]
pub(crate) async fn annotate_tool(
    Path((server, tool)): Path<(ServerId, String)>,
    call: MutationCall<ToolAnnotations>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let done = app.mutate(&request, |ctx| {
        Box::pin(async move { tool_servers::annotate_tool(ctx, server, &tool, body).await })
    });
    Ok(MutationResponse(StatusCode::OK, done.await?))
}

/// State filter of approvals.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ApprovalListQuery {
    /// The calls that were approved or denied, newest decision first, instead of those that wait. They are kept for a day.
    #[serde(default)]
    decided: bool,
}

/// Lists the calls that wait for your approval, or those that were decided.
#[utoipa::path(get, path = "/v1/approvals", tag = "gate", params(ApprovalListQuery),
    responses((status = OK, body = UnpagedList<ApprovalView>)))]
pub(crate) async fn list_approvals(
    call: AuthenticatedCall,
    Query(wanted): Query<ApprovalListQuery>,
) -> Result<Json<UnpagedList<ApprovalView>>, ApiError> {
    let items = if wanted.decided {
        call.app.read(&call.request, |ctx| approvals::list_decided_approvals(ctx)).await?
    } else {
        call.app.read(&call.request, |ctx| approvals::list_pending_approvals(ctx)).await?
    };
    Ok(Json(UnpagedList { items }))
}

/// Returns one call that waits or waited for approval.
#[utoipa::path(get, path = "/v1/approvals/{approval}", tag = "gate", params(("approval" = String, Path)),
    responses((status = OK, body = ApprovalView)))]
pub(crate) async fn get_approval(
    call: AuthenticatedCall,
    Path(approval): Path<ApprovalId>,
) -> Result<Json<ApprovalView>, ApiError> {
    let parts = call.app.gateway_parts()?.clone();
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move { approvals::get_approval(ctx, &parts.keys, approval).await })
    });
    Ok(Json(found.await?))
}

/// Approves a waiting call, which may then be made once, or denies it.
#[utoipa::path(post, path = "/v1/approvals/{approval}", tag = "gate", params(("approval" = String, Path)),
    request_body = DecideApproval, responses((status = OK, body = ApprovalView)))]
pub(crate) async fn decide_approval(
    Path(approval): Path<ApprovalId>,
    call: MutationCall<DecideApproval>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let done = app.mutate(&request, |ctx| approvals::decide_approval(ctx, approval, body));
    Ok(MutationResponse(StatusCode::OK, done.await?))
}

/// An image for sandboxes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageBody {
    /// The image, with its tag or digest.
    image: String,
}

/// Lists the images that sandboxes may use.
#[utoipa::path(get, path = "/v1/allowed-images", tag = "gate", responses((status = OK, body = UnpagedList<String>)))]
pub(crate) async fn list_images(
    call: AuthenticatedCall,
) -> Result<Json<UnpagedList<String>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| reports::list_images(ctx));
    Ok(Json(UnpagedList { items: found.await? }))
}

/// Allows an image for sandboxes.
#[utoipa::path(post, path = "/v1/allowed-images", tag = "gate", request_body = ImageBody,
    responses((status = NO_CONTENT)))]
pub(crate) async fn allow_image(
    call: MutationCall<ImageBody>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let done = app.mutate(&request, |ctx| {
        Box::pin(async move { reports::add_image(ctx, &body.image).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}

/// Selection of an image.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ImageQuery {
    /// The image, with its tag or digest.
    image: String,
}

/// Disallows an image for new sandboxes.
#[utoipa::path(delete, path = "/v1/allowed-images", tag = "gate", params(ImageQuery),
    responses((status = NO_CONTENT)))]
pub(crate) async fn disallow_image(
    Query(query): Query<ImageQuery>,
    call: MutationCall<()>,
) -> Result<MutationResponse, ApiError> {
    let done = call.app.mutate(&call.request, |ctx| {
        Box::pin(async move { reports::remove_image(ctx, &query.image).await })
    });
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}
