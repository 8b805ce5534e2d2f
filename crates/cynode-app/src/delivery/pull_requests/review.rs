//! Comments and reviews of pull requests, and the follow-up tasks that continue them.

use cynode_core::{
    delivery::{Destination, MAX_FOLLOW_UPS, PullRequestState, ReviewVerdict},
    events::EventKind,
    ids::{CommentId, PullRequestId, ReviewId, TaskId, UserId},
    names::Prose,
    policies::ApprovalKind,
    tasks::{Criterion, Task, TaskStateName},
};
use cynode_db::{
    delivery::{
        forges,
        pull_requests::{
            self, CommentAuthor, PullRequestComment, PullRequestRecord, PullRequestReview,
        },
    },
    identity::accounts,
    tasks,
};
use cynode_wire::{
    delivery::{CommentView, NewComment, NewReview, PullRequestView, ReviewReceipt},
    tasks::CreateTask,
};
use serde_json::json;

use super::{
    barred_authors, require_decidable, task_of_pull_request, to_comment_view, to_pull_request_view,
    to_review_view,
};
use crate::{
    Ctx, Error,
    platform::{context::EventDraft, operation},
    tasks::policies::require_second_person,
};

/// Maximum number of remarks of one review.
const MAX_REVIEW_REMARKS: usize = 100;

/// Adds a comment to a pull request.
#[tracing::instrument(name = "app.delivery.add_comment", skip_all, fields(pull_request.id = %id))]
#[operation]
pub async fn add_comment(
    ctx: &mut Ctx,
    id: PullRequestId,
    body: NewComment,
) -> Result<CommentView, Error> {
    let found = require_decidable(ctx, id).await?;
    let (user, now) = (ctx.caller()?.user, ctx.now);
    let new = CommentId::from_uuid(ctx.new_uuid());
    let comment = build_comment(new, user, body, None, now)?;
    pull_requests::insert_comment(ctx.conn(), id, &comment).await?;
    let data = json!({ "pull_request_id": id, "number": found.number, "comment_id": new });
    let told = EventDraft::new(EventKind::PullRequestCommented, data);
    ctx.record_event(told.with_project(found.project).with_task(found.task)).await?;
    Ok(to_comment_view(comment))
}

fn build_comment(
    id: CommentId,
    user: UserId,
    body: NewComment,
    review: Option<ReviewId>,
    now: time::OffsetDateTime,
) -> Result<PullRequestComment, Error> {
    let plain =
        |path: &String| (1..=1000).contains(&path.len()) && !path.contains(char::is_control);
    if body.path.as_ref().is_some_and(|path| !plain(path))
        || body.line.is_some_and(|line| line == 0 || body.path.is_none() || line > 10_000_000)
    {
        let rule = "`path` is the path of a file; `line` counts from 1 and needs a path";
        return Err(Error::Invalid(rule.into()));
    }
    Ok(PullRequestComment {
        id,
        author: CommentAuthor::Person(user),
        path: body.path,
        line: body.line,
        body: body.body.into(),
        source: format!("person:{id}"),
        review,
        created_at: now,
    })
}

/// Stores a review of a pull request. Requested changes go to a follow-up task.
#[tracing::instrument(name = "app.delivery.submit_review", skip_all, fields(pull_request.id = %id))]
#[operation]
pub async fn submit_review(
    ctx: &mut Ctx,
    id: PullRequestId,
    body: NewReview,
) -> Result<ReviewReceipt, Error> {
    require_decidable(ctx, id).await?;
    let (user, now) = (ctx.caller()?.user, ctx.now);
    let found = pull_requests::lock_pull_request(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("pull request", id))?;
    if found.forge != Destination::Local {
        return Err(Error::Conflict("the pull request lives at a forge and is reviewed there"));
    }
    let (PullRequestState::Open, Some(head)) = (found.state, found.head_commit.clone()) else {
        return Err(found.state.invalid_transition("be reviewed").into());
    };
    if body.commit.as_ref().is_some_and(|commit| *commit != head) {
        return Err(Error::Conflict("another commit is offered by now: look at it first"));
    }
    if body.comments.len() > MAX_REVIEW_REMARKS {
        return Err(Error::Invalid(format!("a review has at most {MAX_REVIEW_REMARKS} remarks")));
    }
    if body.verdict == ReviewVerdict::Approve {
        let (held, authors) = barred_authors(ctx, &found).await?;
        require_second_person(ctx, &held, &authors, user, ApprovalKind::Review).await?;
    }
    let asks = match body.verdict {
        ReviewVerdict::Approve => false,
        ReviewVerdict::Changes => true,
        ReviewVerdict::Comment => !body.comments.is_empty(),
    };
    if asks && body.comments.is_empty() && body.note.is_none() {
        return Err(Error::Invalid("say what should be different: a `note`, or `comments`".into()));
    }
    let review = PullRequestReview {
        id: ReviewId::from_uuid(ctx.new_uuid()),
        user,
        verdict: body.verdict,
        note: body.note.map(String::from),
        commit: head.clone(),
        created_at: now,
    };
    pull_requests::insert_review(ctx.conn(), id, &review).await?;
    let author = handle_of_user(ctx, user).await?;
    let note = review.note.iter();
    let mut remarks: Vec<ReviewRemark> =
        note.map(|note| ReviewRemark::without_location(&author, note)).collect();
    for one in body.comments {
        let comment =
            build_comment(CommentId::from_uuid(ctx.new_uuid()), user, one, Some(review.id), now)?;
        pull_requests::insert_comment(ctx.conn(), id, &comment).await?;
        let (path, line) = (comment.path, comment.line);
        remarks.push(ReviewRemark { author: author.clone(), body: comment.body, path, line });
    }
    let data = json!({
        "pull_request_id": id, "number": found.number, "review_id": review.id, "verdict": review.verdict,
        "remarks": remarks.len(),
    });
    let told = EventDraft::new(EventKind::PullRequestCommented, data);
    ctx.record_event(told.with_project(found.project).with_task(found.task)).await?;
    let (mut task, mut none) = (None, None);
    if asks {
        match create_follow_up(ctx, id, &format!("review:{}", review.id), user, &remarks).await? {
            FollowUpOutcome::Made(made) | FollowUpOutcome::Before(made) => task = Some(made),
            FollowUpOutcome::Refused(why) => none = Some(why.to_owned()),
        }
    }
    let review = to_review_view(review, Some(&head));
    Ok(ReviewReceipt { review, follow_up: task, no_follow_up: none })
}

async fn handle_of_user(ctx: &mut Ctx, user: UserId) -> Result<String, Error> {
    let found = accounts::get_user(ctx.conn(), user).await?;
    Ok(found.map_or_else(|| user.to_string(), |user| user.handle.to_string()))
}

/// A change that is requested of a pull request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewRemark {
    /// Display name of the author.
    pub author: String,
    /// Text of the remark.
    pub body: String,
    /// Path of the file that it concerns.
    pub path: Option<String>,
    /// Line in the file.
    pub line: Option<u32>,
}

impl ReviewRemark {
    /// Creates a remark about the whole pull request.
    pub fn without_location(author: &str, body: &str) -> Self {
        Self { author: author.to_owned(), body: body.to_owned(), path: None, line: None }
    }

    fn to_list_item(&self) -> String {
        let place = match (&self.path, self.line) {
            (Some(path), Some(line)) => format!(" at `{path}` line {line}"),
            (Some(path), None) => format!(" at `{path}`"),
            (None, _) => String::new(),
        };
        let body = self.body.trim().replace('\n', "\n  ");
        format!("- {}{place}: {body}", self.author)
    }
}

/// Outcome of a request for a follow-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowUpOutcome {
    /// The task was created.
    Made(TaskId),
    /// The task already existed.
    Before(TaskId),
    /// No task was created, for this reason.
    Refused(&'static str),
}

/// Creates a task that continues a pull request on the same branch: once for each source, and at most three times.
/// The caller has checked that `by` may request work in the project.
#[tracing::instrument(name = "app.delivery.create_follow_up", skip_all, fields(pull_request.id = %id))]
#[operation]
pub async fn create_follow_up(
    ctx: &mut Ctx,
    id: PullRequestId,
    source: &str,
    by: UserId,
    remarks: &[ReviewRemark],
) -> Result<FollowUpOutcome, Error> {
    if !(1..=200).contains(&source.chars().count()) {
        return Err(Error::Invalid("a source has 1 to 200 characters".into()));
    }
    let found = pull_requests::lock_pull_request(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("pull request", id))?;
    let before = pull_requests::list_follow_ups(ctx.conn(), id).await?;
    if let Some(same) = before.iter().find(|it| it.source == source) {
        return Ok(FollowUpOutcome::Before(same.task));
    }
    if found.state != PullRequestState::Open {
        return Ok(FollowUpOutcome::Refused("the pull request is not open"));
    }
    let number = i32::try_from(before.len()).unwrap_or(i32::MAX).saturating_add(1);
    if number > MAX_FOLLOW_UPS {
        return Ok(FollowUpOutcome::Refused("it was followed up three times: a person must go on"));
    }
    let origin = task_of_pull_request(ctx, &found).await?;
    // Follow-ups are chained: each starts after the previous one has completed.
    let last = match before.last() {
        Some(last) => tasks::get_task(ctx.conn(), last.task).await?,
        None => Some(origin.clone()),
    };
    let under_way = |task: &Task| {
        matches!(task.state.state_name(), TaskStateName::Queued | TaskStateName::Running)
    };
    let depends_on = last.filter(under_way).map(|task| task.id).into_iter().collect();
    let body = build_follow_up_task(&found, &origin, number, remarks, depends_on)?;
    let task = crate::tasks::accept_task(ctx, body, by).await?.id;
    tasks::copy_task_ancestors(ctx.conn(), task, origin.id).await?;
    let now = ctx.now;
    let (source, created_at) = (source.to_owned(), now);
    let new = pull_requests::FollowUpTask { source, number, task, created_at };
    pull_requests::insert_follow_up(ctx.conn(), id, &new).await?;
    let data = json!({
        "pull_request_id": id, "number": found.number, "follow_up": number, "follow_up_task_id": task,
        "source": new.source,
    });
    let told = EventDraft::new(EventKind::PullRequestFollowUp, data);
    ctx.record_event(told.with_project(found.project).with_task(found.task)).await?;
    Ok(FollowUpOutcome::Made(task))
}

/// Builds the follow-up task.
fn build_follow_up_task(
    found: &PullRequestRecord,
    origin: &Task,
    number: i32,
    remarks: &[ReviewRemark],
    depends_on: Vec<TaskId>,
) -> Result<CreateTask, Error> {
    let lines: Vec<String> = remarks.iter().map(ReviewRemark::to_list_item).collect();
    let head = format!(
        "Follow up {number} on pull request {}, \"{}\": deal with what was said about it.",
        found.number, found.title
    );
    let text = format!(
        "{head}\n\nThe work goes on from branch `{}`, where everything done so far is.\n\n{}\n\nWhat was asked for at first:\n\n{}",
        found.branch,
        lines.join("\n"),
        origin.description
    );
    // A text that is too long loses its end, which is the part that was known before.
    let text: String = text.chars().take(20_000).collect();
    let unusable = |error: cynode_core::names::TextError| Error::Invalid(error.to_string());
    let description: Prose = text.trim().parse().map_err(unusable)?;
    let dealt =
        "Everything that was said about the pull request was dealt with, or it is said why not";
    let mut acceptance_criteria = origin.acceptance_criteria.clone();
    acceptance_criteria.truncate(99);
    acceptance_criteria.push(Criterion { text: dealt.parse().map_err(unusable)?, check: None });
    Ok(CreateTask {
        project_id: found.project,
        name: None,
        description,
        acceptance_criteria,
        budget: origin.budget,
        depends_on,
        approve_plan: None,
        profile: origin.profile.clone(),
    })
}

/// Closes a pull request in the name of a person. Its branch stays.
#[tracing::instrument(name = "app.delivery.close_pull_request", skip_all, fields(pull_request.id = %id))]
#[operation]
pub async fn close_pull_request(
    ctx: &mut Ctx,
    id: PullRequestId,
) -> Result<PullRequestView, Error> {
    let found = require_decidable(ctx, id).await?;
    if found.forge != Destination::Local && found.remote_number.is_some() {
        // Nothing would report the state on a forge that the project has left.
        let remote = forges::get_remote(ctx.conn(), found.project).await?;
        if remote.is_some_and(|remote| remote.forge == found.forge) {
            return Err(Error::Conflict("the pull request lives at a forge and is closed there"));
        }
    }
    let now = ctx.now;
    if !pull_requests::mark_pull_request_closed(ctx.conn(), id, now).await? {
        return Err(found.state.invalid_transition("be closed").into());
    }
    let data = json!({ "pull_request_id": id, "number": found.number, "title": found.title });
    let told = EventDraft::new(EventKind::PullRequestClosed, data);
    ctx.record_event(told.with_project(found.project).with_task(found.task)).await?;
    let closed = pull_requests::get_pull_request(ctx.conn(), id).await?;
    closed.map(to_pull_request_view).ok_or_else(|| Error::not_found("pull request", id))
}
