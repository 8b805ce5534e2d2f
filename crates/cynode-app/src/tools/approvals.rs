//! Approvals: a person permits one exact call. An approval is valid once, for one agent, one tool, the same arguments
//! and the same policy, until it expires.

use cynode_core::{
    events::EventKind,
    ids::{AgentTokenId, ApprovalId, CallId, ProjectId, TaskId, UserId},
    policies::ApprovalKind,
    roles::UserRole,
};
use cynode_db::{
    tasks::policies,
    tools::{agent_tokens, approvals},
};
use cynode_wire::tools::{ApprovalView, DecideApproval};
use serde_json::{Value, json};
use time::Duration;

pub use cynode_db::tools::approvals::{Approval, ApprovalRequest, ApprovalState};

use crate::{
    App, Ctx, Error, OperationRequest,
    platform::{context::EventDraft, keys::InstallationKeys, operation},
    tasks::policies::require_second_person,
};

/// Lifetime of a request and of its answer.
const APPROVAL_TTL: Duration = Duration::minutes(30);

/// Maximum number of pending requests of one agent, so that they do not bury those of others.
const MAX_PENDING_APPROVALS: i64 = 20;

/// State of the approval of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalOutcome {
    /// A person approved, and this call has consumed the approval.
    Spent(ApprovalId),
    /// A person refused.
    Refused(ApprovalId),
    /// The request is pending.
    Waiting(Box<Approval>),
    /// Nobody was asked, because the agent has too many pending requests.
    TooMany,
}

/// Consumes the approval of this exact call, or requests one.
#[tracing::instrument(name = "app.approvals.obtain_approval", skip_all)]
#[operation]
pub async fn obtain_approval(
    app: &App,
    request: &OperationRequest,
    asked: &ApprovalRequest,
    arguments: &str,
    call: CallId,
) -> Result<ApprovalOutcome, Error> {
    let mut ctx = app.begin_transaction(request).await?;
    let now = ctx.now;
    if let Some(id) = approvals::consume_approval(ctx.conn(), asked, call, now).await? {
        app.commit_operation(ctx).await?;
        return Ok(ApprovalOutcome::Spent(id));
    }
    if !approvals::can_request_approval(ctx.conn(), asked, MAX_PENDING_APPROVALS, now).await? {
        return Ok(ApprovalOutcome::TooMany);
    }
    let id = ApprovalId::from_uuid(ctx.new_uuid());
    // The person who decides must see the arguments. They are sealed for everybody else.
    let keys = &app.gateway_parts()?.keys;
    let sealed = keys.seal_secret(
        ctx.environment(),
        &approval_associated_data(asked.agent, &asked.arguments, &asked.tool),
        arguments.as_bytes(),
    )?;
    let found =
        approvals::request_approval(ctx.conn(), id, asked, &sealed, now, now + APPROVAL_TTL)
            .await?;
    if found.id == id {
        let data = json!({ "approval_id": id, "tool": asked.tool, "rules": asked.rules });
        let mut told = EventDraft::new(EventKind::ApprovalRequested, data);
        if let Some(project) = asked.project {
            told = told.with_project(project);
        }
        if let Some(task) = asked.task {
            told = told.with_task(task);
        }
        ctx.record_event(told).await?;
    }
    app.commit_operation(ctx).await?;
    Ok(match found.state {
        ApprovalState::Refused => ApprovalOutcome::Refused(found.id),
        // The approval came between our two reads: the next attempt consumes it.
        ApprovalState::Asked | ApprovalState::Approved | ApprovalState::Used => {
            ApprovalOutcome::Waiting(Box::new(found))
        }
    })
}

/// Returns the associated data of sealed arguments.
pub(crate) fn approval_associated_data(
    agent: AgentTokenId,
    digest: &[u8; 32],
    tool: &str,
) -> Vec<u8> {
    [agent.as_uuid().as_bytes().as_slice(), digest, tool.as_bytes()].concat()
}

/// Lists the calls that wait for a decision of the caller.
#[tracing::instrument(name = "app.approvals.list_pending_approvals", skip_all)]
#[operation]
pub async fn list_pending_approvals(ctx: &mut Ctx) -> Result<Vec<ApprovalView>, Error> {
    let (member, now) = (ctx.visibility_filter()?, ctx.now);
    let found = approvals::list_pending_approvals(ctx.conn(), member, now).await?;
    Ok(found.into_iter().map(to_approval_view).collect())
}

/// Lists the calls that were decided and are still stored: an approval is deleted a day after it expires.
#[tracing::instrument(name = "app.approvals.list_decided_approvals", skip_all)]
#[operation]
pub async fn list_decided_approvals(ctx: &mut Ctx) -> Result<Vec<ApprovalView>, Error> {
    let member = ctx.visibility_filter()?;
    let found = approvals::list_decided_approvals(ctx.conn(), member).await?;
    Ok(found.into_iter().map(to_approval_view).collect())
}

/// Approves or refuses a pending call. Only a person may, never the agent itself.
#[tracing::instrument(name = "app.approvals.decide_approval", skip_all)]
#[operation]
pub async fn decide_approval(
    ctx: &mut Ctx,
    id: ApprovalId,
    body: DecideApproval,
) -> Result<ApprovalView, Error> {
    let caller = ctx.caller()?;
    let missing = || Error::not_found("approval", id);
    let found = approvals::get_approval(ctx.conn(), id).await?.ok_or_else(missing)?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Operator, "as a person: agents approve nothing"));
    }
    match found.asked.project {
        Some(project) => match ctx.require_project_role(project, UserRole::Operator).await {
            Err(Error::NotFound { .. }) => return Err(missing()),
            result => result?,
        },
        None => ctx.require_role(UserRole::Admin)?,
    };
    if body.approved {
        let asked = &found.asked;
        require_other_approver(ctx, asked.agent, (asked.project, asked.task), caller.user).await?;
    }
    let (now, answer) =
        (ctx.now, if body.approved { ApprovalState::Approved } else { ApprovalState::Refused });
    if !approvals::decide_approval(ctx.conn(), id, answer, caller.user, now).await? {
        return Err(Error::Conflict(
            "the question was answered before, is too old, or whoever asked has ended",
        ));
    }
    let data = json!({ "approval_id": id, "approved": body.approved });
    let mut told = EventDraft::new(EventKind::ApprovalDecided, data);
    if let Some(project) = found.asked.project {
        told = told.with_project(project);
    }
    ctx.record_event(told).await?;
    Ok(to_approval_view(Approval {
        state: answer,
        sealed: None,
        decided_by: Some(caller.user),
        decided_at: Some(now),
        ..found
    }))
}

/// Rejects a person for whom the agent works, where four eyes are demanded.
pub(crate) async fn require_other_approver(
    ctx: &mut Ctx,
    agent: AgentTokenId,
    (project, task): (Option<ProjectId>, Option<TaskId>),
    user: UserId,
) -> Result<(), Error> {
    let mut authors = Vec::new();
    if let Some(token) = agent_tokens::get_agent_token(ctx.conn(), agent).await? {
        authors.extend(token.agent.user);
        authors.extend(token.issued_by);
    }
    if let Some(task) = task {
        authors.extend(policies::list_task_authors(ctx.conn(), task).await?);
    }
    for author in &authors {
        let held = policies::load_policies(ctx.conn(), *author, project).await?;
        require_second_person(ctx, &held, &authors, user, ApprovalKind::Call).await?;
    }
    Ok(())
}

/// Returns one request for a caller who may see its project.
#[tracing::instrument(name = "app.approvals.get_approval", skip_all)]
#[operation]
pub async fn get_approval(
    ctx: &mut Ctx,
    keys: &InstallationKeys,
    id: ApprovalId,
) -> Result<ApprovalView, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("approval", id);
    let found = approvals::get_approval(ctx.conn(), id).await?.ok_or_else(missing)?;
    match found.asked.project {
        Some(project) => {
            ctx.require_project_role(project, UserRole::Viewer).await.map_err(|_| missing())?
        }
        None => ctx.require_role(UserRole::Viewer)?,
    };
    let arguments = unseal_arguments(&found, keys);
    Ok(ApprovalView { arguments, ..to_approval_view(found) })
}

/// Unseals the arguments of a pending call.
pub(crate) fn unseal_arguments(found: &Approval, keys: &InstallationKeys) -> Option<Value> {
    let asked = &found.asked;
    let sealed = found.sealed.as_ref()?;
    unseal_call(keys, asked.agent, &asked.arguments, &asked.tool, sealed)
}

/// Unseals the arguments of a call of that agent, with their digest.
pub(crate) fn unseal_call(
    keys: &InstallationKeys,
    agent: AgentTokenId,
    digest: &[u8; 32],
    tool: &str,
    sealed: &[u8],
) -> Option<Value> {
    let place = approval_associated_data(agent, digest, tool);
    serde_json::from_slice(&keys.unseal_secret(&place, sealed).ok()?).ok()
}

fn to_approval_view(approval: Approval) -> ApprovalView {
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    ApprovalView {
        approval_id: approval.id,
        agent_token_id: approval.asked.agent,
        project_id: approval.asked.project,
        task_id: approval.asked.task,
        tool: approval.asked.tool,
        arguments_digest: hex(&approval.asked.arguments),
        policy_hash: hex(&approval.asked.policy),
        rules: approval.asked.rules,
        state: approval.state.as_str().to_owned(),
        arguments: None,
        asked_at: approval.asked_at,
        expires_at: approval.expires_at,
        decided_by: approval.decided_by,
        decided_at: approval.decided_at,
    }
}
