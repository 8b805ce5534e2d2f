//! People's answers to exact calls. A yes is good for one call of one agent to one tool with the same arguments under the same
//! policy, until it expires, once.

use cynode_core::{
    events::EventKind,
    ids::{ApprovalId, CallId},
    roles::Role,
};
use cynode_db::approvals;
use cynode_wire::gate::{ApprovalView, DecideApproval};
use serde_json::{Value, json};
use time::Duration;

pub use cynode_db::approvals::{Approval, ApprovalState, Asked};

use crate::{App, Ctx, Error, Request, context::Told, keys::Keys};

/// How long a question and its answer are good.
const LIFETIME: Duration = Duration::minutes(30);

/// Most questions of one agent that wait for an answer: more would bury those of others.
const MOST_WAITING: i64 = 20;

/// What is known about a call that needs approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A person said yes, and this call has used it up.
    Spent(ApprovalId),
    /// A person said no.
    Refused(ApprovalId),
    /// Nobody has answered yet.
    Waiting(Box<Approval>),
    /// Nobody was asked: too many questions of the agent wait already.
    TooMany,
}

/// Uses up the yes to this exact call, or asks for one.
#[tracing::instrument(name = "app.approvals.seek", skip_all)]
pub async fn seek(
    app: &App,
    request: &Request,
    asked: &Asked,
    arguments: &str,
    call: CallId,
) -> Result<Standing, Error> {
    let mut ctx = app.open(request).await?;
    let now = ctx.now;
    if let Some(id) = approvals::spend(ctx.conn(), asked, call, now).await? {
        app.commit(ctx).await?;
        return Ok(Standing::Spent(id));
    }
    if !approvals::room(ctx.conn(), asked, MOST_WAITING, now).await? {
        return Ok(Standing::TooMany);
    }
    let id = ApprovalId::from_uuid(ctx.uuid());
    // Whoever answers must see what they say yes to; nobody else need.
    let keys = &app.gate()?.keys;
    let sealed = keys.seal(ctx.environment(), &place(asked), arguments.as_bytes())?;
    let found = approvals::ask(ctx.conn(), id, asked, &sealed, now, now + LIFETIME).await?;
    if found.id == id {
        let data = json!({ "approval_id": id, "tool": asked.tool, "rules": asked.rules });
        let mut told = Told::new(EventKind::ApprovalAsked, data);
        if let Some(project) = asked.project {
            told = told.project(project);
        }
        if let Some(task) = asked.task {
            told = told.task(task);
        }
        ctx.record(told).await?;
    }
    app.commit(ctx).await?;
    Ok(match found.state {
        ApprovalState::Refused => Standing::Refused(found.id),
        // Said yes between our two looks: the next attempt uses it.
        ApprovalState::Asked | ApprovalState::Approved | ApprovalState::Used => {
            Standing::Waiting(Box::new(found))
        }
    })
}

/// What sealed arguments are good for.
fn place(asked: &Asked) -> Vec<u8> {
    [asked.agent.as_uuid().as_bytes().as_slice(), &asked.arguments, asked.tool.as_bytes()].concat()
}

/// The calls that wait for an answer of the caller.
#[tracing::instrument(name = "app.approvals.waiting", skip_all)]
pub async fn waiting(ctx: &mut Ctx) -> Result<Vec<ApprovalView>, Error> {
    let (member, now) = (ctx.seen_by()?, ctx.now);
    let found = approvals::waiting(ctx.conn(), member, now).await?;
    Ok(found.into_iter().map(view).collect())
}

/// Answers a call that waits. Only a person may, and never the agent itself.
#[tracing::instrument(name = "app.approvals.decide", skip_all)]
pub async fn decide(
    ctx: &mut Ctx,
    id: ApprovalId,
    body: DecideApproval,
) -> Result<ApprovalView, Error> {
    let caller = ctx.caller()?;
    let missing = || Error::not_found("approval", id);
    let found = approvals::get(ctx.conn(), id).await?.ok_or_else(missing)?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(Role::Operator, "as a person: agents approve nothing"));
    }
    match found.asked.project {
        Some(project) => match ctx.require_in(project, Role::Operator).await {
            Err(Error::NotFound { .. }) => return Err(missing()),
            result => result?,
        },
        None => ctx.require(Role::Admin)?,
    };
    let (now, answer) =
        (ctx.now, if body.approved { ApprovalState::Approved } else { ApprovalState::Refused });
    if !approvals::decide(ctx.conn(), id, answer, caller.user, now).await? {
        return Err(Error::Conflict(
            "the question was answered before, is too old, or whoever asked has ended",
        ));
    }
    let data = json!({ "approval_id": id, "approved": body.approved });
    let mut told = Told::new(EventKind::ApprovalDecided, data);
    if let Some(project) = found.asked.project {
        told = told.project(project);
    }
    ctx.record(told).await?;
    Ok(view(Approval { state: answer, sealed: None, ..found }))
}

/// One question, for whoever may see its project.
#[tracing::instrument(name = "app.approvals.get", skip_all)]
pub async fn get(ctx: &mut Ctx, keys: &Keys, id: ApprovalId) -> Result<ApprovalView, Error> {
    ctx.caller()?;
    let missing = || Error::not_found("approval", id);
    let found = approvals::get(ctx.conn(), id).await?.ok_or_else(missing)?;
    match found.asked.project {
        Some(project) => ctx.require_in(project, Role::Viewer).await.map_err(|_| missing())?,
        None => ctx.require(Role::Viewer)?,
    };
    let arguments = arguments(&found, keys);
    Ok(ApprovalView { arguments, ..view(found) })
}

/// The arguments of a call that nobody has answered yet.
pub(crate) fn arguments(found: &Approval, keys: &Keys) -> Option<Value> {
    let sealed = found.sealed.as_ref()?;
    let opened = keys.open(&place(&found.asked), sealed).ok()?;
    serde_json::from_slice(&opened).ok()
}

fn view(approval: Approval) -> ApprovalView {
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
    }
}
