//! Answer links: signed, single-use links with which one person answers one question.

use cynode_core::{
    accounts::CallerCredential,
    ids::{ApprovalId, TaskId, WaitId},
    names::Prose,
    roles::UserRole,
};
use cynode_db::{DbError, identity::accounts, notifications};
use cynode_wire::{
    tools::DecideApproval,
    workflow::timeline::{AnswerQuestion, ApprovePlan},
};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::{
    App, AuthenticatedCaller, Ctx, Error, OperationRequest,
    notifications::{HumanQuestion, QuestionRef, link_token::LinkToken, question},
    platform::operation,
    tools::approvals,
    workflow::signals,
};

/// Form value that approves.
pub const APPROVE_FORM: &str = "decision=approve";

/// Form value that refuses.
pub const REFUSE_FORM: &str = "decision=refuse";

/// Reason why a link does not work.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The signature is invalid.
    #[error("this link is not one of ours")]
    Forged,
    /// The link has expired.
    #[error("this is over: the time in which it could be answered has passed")]
    Expired,
    /// The link was used.
    #[error("this link was used already")]
    Used,
    /// The question was answered in another way or withdrawn.
    #[error("this was answered already, or is not asked any more")]
    Answered,
    /// The person may no longer answer.
    #[error("you may not answer this any more")]
    NotYours,
    /// The submitted answer is invalid.
    #[error("{0}")]
    NoAnswer(String),
    /// Error of an operation.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<DbError> for LinkError {
    fn from(error: DbError) -> Self {
        Self::Failed(error.into())
    }
}

/// Answer of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkAnswer {
    /// Approval.
    Yes,
    /// Refusal, with an optional change request.
    No(Option<String>),
    /// Free text.
    Words(String),
}

/// Page that shows a question to the person of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerPage {
    /// Question to be answered.
    pub question: HumanQuestion,
    /// Name of the person.
    pub person: String,
    /// Expiry of the link.
    pub expires_at: OffsetDateTime,
}

/// Authenticates a link. Returns the person and the question.
async fn authenticate_link(
    app: &App,
    text: &str,
) -> Result<(LinkToken, [u8; 32], AuthenticatedCaller), LinkError> {
    let keys = &app.gateway_parts()?.keys;
    let token = keys.tag_keys().iter().find_map(|key| LinkToken::decode_token(text, key));
    let token = token.ok_or(LinkError::Forged)?;
    let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    let (mut conn, now) = (app.conn().await?, app.environment().now());
    if notifications::is_link_used(&mut conn, &hash).await? {
        return Err(LinkError::Used);
    }
    if token.expires_at <= now {
        return Err(LinkError::Expired);
    }
    // A change of the password invalidates earlier links, as it ends all other access. Tokens have a resolution of
    // one second.
    let changed = accounts::password_changed_at(&mut conn, token.user).await?;
    if changed.is_some_and(|at| at.unix_timestamp() > token.made_at.unix_timestamp()) {
        return Err(LinkError::NotYours);
    }
    // The connection goes back to the pool: an identity provider may be slow.
    drop(conn);
    let credential = CallerCredential::Link(token.user);
    let caller = app.find_caller_on_behalf(token.user, credential).await?;
    Ok((token, hash, caller.ok_or(LinkError::NotYours)?))
}

/// Returns the question of a link. Reading has no effect, because mail scanners open links too.
#[tracing::instrument(name = "app.links.load_answer_page", skip_all)]
#[operation]
pub async fn load_answer_page(app: &App, text: &str) -> Result<AnswerPage, LinkError> {
    let (token, _, caller) = authenticate_link(app, text).await?;
    let request = OperationRequest {
        caller: Some(caller),
        trace: app.environment().new_trace_id(),
        attempt: None,
    };
    let gate = app.gateway_parts()?.clone();
    let found = app.read(&request, |ctx| {
        Box::pin(async move {
            let now = ctx.now;
            let found = question::find_question(ctx.conn(), &gate.keys, token.asked, now).await?;
            let Some(question) = found else { return Ok(None) };
            match question.project {
                Some(project) => ctx.require_project_role(project, UserRole::Operator).await?,
                None => ctx.require_role(UserRole::Admin)?,
            };
            let person = question::display_name_of(ctx.conn(), token.user).await?;
            Ok(Some(AnswerPage { question, person, expires_at: token.expires_at }))
        })
    });
    match found.await {
        Ok(Some(sheet)) if sheet.question.open => Ok(sheet),
        Ok(_) => Err(LinkError::Answered),
        Err(error) => Err(to_link_error(error)),
    }
}

fn to_link_error(error: Error) -> LinkError {
    match error {
        Error::Forbidden { .. } | Error::NotFound { .. } => LinkError::NotYours,
        Error::Conflict(_) | Error::InvalidState(_) | Error::TaskEnded => LinkError::Answered,
        Error::Invalid(why) => LinkError::NoAnswer(why),
        error => LinkError::Failed(error),
    }
}

/// Answers the question of a link by the same operation as the API, as the person of the link. Of two concurrent
/// answers one wins.
#[tracing::instrument(name = "app.links.answer_link", skip_all)]
#[operation]
pub async fn answer_link(app: &App, text: &str, said: LinkAnswer) -> Result<(), LinkError> {
    let (token, hash, caller) = authenticate_link(app, text).await?;
    let said = match said {
        LinkAnswer::Words(text) => {
            LinkAnswer::Words(crate::platform::redaction::redact_text(app, text).await?)
        }
        LinkAnswer::No(Some(note)) => {
            LinkAnswer::No(Some(crate::platform::redaction::redact_text(app, note).await?))
        }
        said @ (LinkAnswer::Yes | LinkAnswer::No(None)) => said,
    };
    let request = OperationRequest {
        caller: Some(caller),
        trace: app.environment().new_trace_id(),
        attempt: None,
    };
    let mut ctx = app.begin_transaction(&request).await?;
    let (user, now) = (caller.user, ctx.now);
    if !notifications::use_answer_link(ctx.conn(), &hash, user, now, token.expires_at).await? {
        return Err(LinkError::Used);
    }
    let done = match (token.asked, said) {
        (QuestionRef::Approval(id), LinkAnswer::Yes) => answer_approval(&mut ctx, id, true).await,
        (QuestionRef::Approval(id), LinkAnswer::No(_)) => {
            answer_approval(&mut ctx, id, false).await
        }
        (QuestionRef::Plan(id), LinkAnswer::Yes) => answer_plan(&mut ctx, id, true, None).await,
        (QuestionRef::Plan(id), LinkAnswer::No(note)) => {
            answer_plan(&mut ctx, id, false, note).await
        }
        (QuestionRef::Answer(id), LinkAnswer::Words(text)) => {
            answer_question(&mut ctx, id, &text).await
        }
        (QuestionRef::Answer(_), LinkAnswer::Yes | LinkAnswer::No(_)) => {
            Err(LinkError::NoAnswer("write your answer".into()))
        }
        (QuestionRef::Approval(_) | QuestionRef::Plan(_), LinkAnswer::Words(_)) => {
            Err(LinkError::NoAnswer("say yes or no".into()))
        }
    };
    // Dropping the context rolls everything back, and the link stays usable.
    done?;
    Ok(app.commit_operation(ctx).await?)
}

async fn answer_approval(ctx: &mut Ctx, id: ApprovalId, approved: bool) -> Result<(), LinkError> {
    if cynode_db::tools::approvals::get_approval(ctx.conn(), id).await?.is_none() {
        return Err(LinkError::Answered);
    }
    approvals::decide_approval(ctx, id, DecideApproval { approved })
        .await
        .map(|_| ())
        .map_err(to_link_error)
}

async fn answer_plan(
    ctx: &mut Ctx,
    id: WaitId,
    approved: bool,
    note: Option<String>,
) -> Result<(), LinkError> {
    let task = task_of_wait(ctx, id).await?;
    let note = note.as_deref().map(parse_prose).transpose()?;
    let body = ApprovePlan { approved, note, wait_id: Some(id) };
    let done = signals::approve_plan(ctx, task, &body).await;
    done.map(|_| ()).map_err(to_link_error)
}

async fn answer_question(ctx: &mut Ctx, id: WaitId, text: &str) -> Result<(), LinkError> {
    let task = task_of_wait(ctx, id).await?;
    let body = AnswerQuestion { text: parse_prose(text)?, wait_id: Some(id) };
    let done = signals::answer_task_question(ctx, task, &body).await;
    done.map(|_| ()).map_err(to_link_error)
}

async fn task_of_wait(ctx: &mut Ctx, id: WaitId) -> Result<TaskId, LinkError> {
    let wait = cynode_db::workflow::waits::get_wait(ctx.conn(), id).await?;
    Ok(wait.ok_or(LinkError::Answered)?.task)
}

fn parse_prose(text: &str) -> Result<Prose, LinkError> {
    text.trim()
        .parse()
        .map_err(|error: cynode_core::names::TextError| LinkError::NoAnswer(error.to_string()))
}
