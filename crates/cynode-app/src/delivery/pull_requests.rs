//! Delivery: merges the commits of a task's units into one branch and opens a pull request.
//!
//! **Invariant**: each step is idempotent and survives a kill at any line. The row records the intent before anything
//! is created, the commit's name follows from the row, and a branch moves only from the commit that was read (compare
//! and swap). Delivery never writes the default branch; only the merge of a person moves it.

mod evidence;
mod forges;
mod merge;
mod review;

use cynode_core::{
    delivery::{
        AUTHOR_SETTING, CommitAuthor, DeliveryMode, Destination, PullRequestState, commit_message,
        commit_title as one_line, delivery_branch, is_end_without_answer,
    },
    events::EventKind,
    ids::{DeliveryId, ProjectId, PullRequestId, TaskId, UserId},
    paging::{Page, PageRequest},
    policies::{ApprovalKind, PolicySet},
    roles::UserRole,
    tasks::{Task, TaskStateName},
};
use cynode_db::{
    Conn, DbError,
    delivery::{
        deliveries::{self, DeliveryRecord},
        pull_requests::{self, CommentAuthor, PullRequestHead, PullRequestRecord},
        repositories,
    },
    tasks,
    workflow::waits,
};
use cynode_wire::{
    delivery::{
        ChangedFiles, CommentView, DeliveryView, DiffView, FollowUpView, PullRequestDetail,
        PullRequestView, ReviewView, TaskDiff,
    },
    workflow::timeline::PullRequestEntry,
};
use serde_json::json;

pub use merge::merge_pull_request;
pub use review::{
    FollowUpOutcome, ReviewRemark, add_comment, close_pull_request, create_follow_up, submit_review,
};

use crate::{
    App, Ctx, Error, OperationRequest,
    delivery::repositories::{BranchMove, CommitDiff, NewCommit},
    platform::{context::EventDraft, operation, settings},
    tasks::policies::{is_second_person_demanded, policies_of_task},
};

/// Maximum number of rounds of a delivery when something changes meanwhile.
const MAX_DELIVERY_ROUNDS: usize = 6;

/// Maximum number of bytes of a diff that is shown.
const MAX_DIFF_BYTES: usize = 1024 * 1024;

/// Maximum number of characters of a pull request's body.
const MAX_BODY_CHARS: usize = 20_000;

/// Combined result of the units of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliverySource {
    /// Commit that contains all the others.
    pub(crate) commit: String,
    /// Commits of the units.
    pub(crate) covers: Vec<String>,
}

/// Returns the commit that contains the results of all completed units of a task. Returns `None` when they changed
/// nothing.
pub(crate) async fn delivery_source_of(
    app: &App,
    task: &Task,
) -> Result<Option<DeliverySource>, Error> {
    let mut conn = app.conn().await?;
    let covers = deliveries::list_unit_commits(&mut conn, task.id).await?;
    drop(conn);
    if covers.is_empty() {
        return Ok(None);
    }
    let mut heads = app
        .gateway_parts()?
        .repositories
        .independent_heads(task.project, &covers)
        .await?
        .into_iter();
    let why = "the units made commits that nobody has put together yet";
    let newest = heads.next().filter(|_| heads.next().is_none());
    let commit = newest.ok_or_else(|| Error::MergeConflict(why.into()))?;
    Ok(Some(DeliverySource { commit, covers }))
}

/// Returns the pull request that the work of a task goes to: its own, or the one that the task continues. A merged
/// one accepts nothing more.
async fn target_pull_request(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Option<PullRequestRecord>, DbError> {
    let own = pull_requests::pull_request_of_task(conn, task).await?;
    let found = match own {
        Some(own) => Some(own),
        None => pull_requests::pull_request_continued_by(conn, task).await?,
    };
    Ok(found.filter(|it| it.state != PullRequestState::Merged))
}

/// Returns the commit that work starts from when the task continues a pull request.
pub(crate) async fn continuation_base(app: &App, task: TaskId) -> Result<Option<String>, Error> {
    let mut conn = app.conn().await?;
    let continued = pull_requests::pull_request_continued_by(&mut conn, task).await?;
    let open = continued.filter(|it| it.state != PullRequestState::Merged);
    Ok(open.and_then(|it| it.head_commit))
}

/// First step of a delivery.
enum DeliveryStart {
    /// There is nothing to deliver.
    Nothing,
    /// The work is already delivered.
    Done(Box<PullRequestRecord>),
    /// The delivery is to be executed.
    UnderWay(Box<PullRequestRecord>, Box<DeliveryRecord>),
    /// Something changed since it was read.
    Moved,
}

/// Texts of a commit and a pull request.
struct DeliveryText {
    title: String,
    body: String,
}

/// Opens a pull request for the results of a task's units, or adds them to the existing one. Returns `None` when they
/// changed nothing. A repeat has no effect.
#[tracing::instrument(name = "app.delivery.open_pull_request", skip_all, fields(task.id = %id))]
#[operation]
pub async fn open_pull_request(
    app: &App,
    request: &OperationRequest,
    id: TaskId,
    title: &str,
    body: &str,
) -> Result<Option<PullRequestView>, Error> {
    let (task, mode) = app.read(request, |ctx| Box::pin(require_deliverable(ctx, id))).await?;
    let Some(brought) = delivery_source_of(app, &task).await? else { return Ok(None) };
    evidence::require_fresh_evidence(app, &task, &brought.commit).await?;
    // The texts go into a commit and to a forge, where they can no longer be redacted.
    let title = crate::platform::redaction::redact_text(app, title.to_owned()).await?;
    let body = evidence::append_test_results(app, &task, &brought.commit, body).await?;
    let body = crate::platform::redaction::redact_text(app, body.replace('\0', "")).await?;
    let mut words = DeliveryText { title: one_line(&title), body };
    if words.title.is_empty() {
        words.title = one_line(&task.name.as_str().replace('-', " "));
    }
    words.body = words.body.trim().chars().take(MAX_BODY_CHARS).collect();
    // An unfinished delivery is completed first: each round completes one delivery or begins one.
    for _ in 0..MAX_DELIVERY_ROUNDS {
        match begin_delivery(app, request, &task, &brought, &words).await? {
            DeliveryStart::Nothing => return Ok(None),
            DeliveryStart::Done(found) => return Ok(Some(to_pull_request_view(*found))),
            DeliveryStart::UnderWay(found, delivery) => {
                execute_delivery(app, request, &found, &delivery, mode).await?;
            }
            DeliveryStart::Moved => {}
        }
    }
    Err(Error::Overloaded)
}

/// Returns a task whose work the caller may deliver.
async fn require_deliverable(ctx: &mut Ctx, id: TaskId) -> Result<(Task, DeliveryMode), Error> {
    let task = crate::tasks::get_task(ctx, id).await?;
    ctx.require_project_role(task.project, UserRole::Operator).await?;
    if !matches!(task.state.state_name(), TaskStateName::Queued | TaskStateName::Running) {
        return Err(Error::TaskEnded);
    }
    let mode = delivery_mode_of(ctx, &task).await?;
    if mode == DeliveryMode::None {
        return Err(Error::Conflict(
            "the preference `delivery.mode` says that nothing is delivered",
        ));
    }
    Ok((task, mode))
}

async fn delivery_mode_of(ctx: &mut Ctx, task: &Task) -> Result<DeliveryMode, Error> {
    let preferences = crate::tasks::preferences::workflow_preferences(ctx, task).await?;
    let said = preferences.iter().find(|(key, _)| key.as_str() == DeliveryMode::PREFERENCE_KEY);
    Ok(DeliveryMode::from_preference(said.map(|(_, value)| value)))
}

/// State of the repository before a delivery, read from git.
struct DeliverySnapshot {
    pull_request: Option<PullRequestRecord>,
    forge: Destination,
    default_branch: String,
    base: String,
    parent: String,
    tree: String,
    changes: bool,
}

async fn load_delivery_snapshot(
    app: &App,
    task: &Task,
    brought: &DeliverySource,
) -> Result<DeliverySnapshot, Error> {
    let mut conn = app.conn().await?;
    let repository = repositories::get_repository(&mut conn, task.project).await?;
    let repository =
        repository.ok_or_else(|| Error::not_found("repository of project", task.project))?;
    let pull_request = target_pull_request(&mut conn, task.id).await?;
    let last = match &pull_request {
        Some(found) => deliveries::list_pull_request_deliveries(&mut conn, found.id).await?.pop(),
        None => None,
    };
    drop(conn);
    let (git, project) = (&app.gateway_parts()?.repositories, task.project);
    let source = &brought.commit;
    let head = pull_request.as_ref().and_then(|found| found.head_commit.clone());
    if let (Some(head), Some(last)) = (&head, &last) {
        let seen = if last.task == task.id { &last.source } else { head };
        if !git.contains_commit(project, source, seen).await? {
            let why = "something was added to the pull request since this work began";
            return Err(Error::MergeConflict(why.into()));
        }
    }
    let there = git.branch_head(project, &repository.default_branch).await?;
    let there = there.unwrap_or(repository.head);
    let base = git.merge_base(project, source, &there).await?;
    let why = "the work shares no history with the default branch";
    let base = base.ok_or_else(|| Error::MergeConflict(why.into()))?;
    let parent = head.unwrap_or_else(|| base.clone());
    let tree = git.tree_of_commit(project, source).await?;
    let changes = tree != git.tree_of_commit(project, &parent).await?;
    let default_branch = repository.default_branch;
    let forge = forges::project_destination(app, project).await?;
    Ok(DeliverySnapshot { pull_request, forge, default_branch, base, parent, tree, changes })
}

/// Records the intent of a delivery in one transaction.
async fn begin_delivery(
    app: &App,
    request: &OperationRequest,
    task: &Task,
    brought: &DeliverySource,
    words: &DeliveryText,
) -> Result<DeliveryStart, Error> {
    let looked = load_delivery_snapshot(app, task, brought).await?;
    let mut ctx = app.begin_transaction(request).await?;
    let now = ctx.now;
    // Deliveries of a project are serialized: numbers have no gaps, and no delivery builds on a commit that is about
    // to change.
    repositories::lock_repository(ctx.conn(), task.project).await?;
    if let Some(before) =
        deliveries::find_delivery_by_source(ctx.conn(), task.id, &brought.commit).await?
    {
        let begun = resume_delivery(&mut ctx, before, brought).await?;
        app.commit_operation(ctx).await?;
        return Ok(begun);
    }
    let found = target_pull_request(ctx.conn(), task.id).await?;
    if found != looked.pull_request {
        return Ok(DeliveryStart::Moved);
    }
    let found = match found {
        Some(found) if found.state == PullRequestState::Closed => {
            return Err(closed_pull_request_error());
        }
        Some(found) => {
            let last = deliveries::list_pull_request_deliveries(ctx.conn(), found.id).await?.pop();
            if let Some(last) = last.filter(|last| last.delivered_at.is_none()) {
                pull_requests::reset_failed_pull_request(ctx.conn(), found.id, now).await?;
                app.commit_operation(ctx).await?;
                return Ok(DeliveryStart::UnderWay(Box::new(found), Box::new(last)));
            }
            Some(found)
        }
        None if looked.changes => Some(create_pull_request(&mut ctx, task, &looked, words).await?),
        None => None,
    };
    let author = commit_author(&mut ctx).await?;
    let mut delivery = DeliveryRecord {
        id: DeliveryId::from_uuid(ctx.new_uuid()),
        task: task.id,
        pull_request: found.as_ref().map(|found| found.id),
        source: brought.commit.clone(),
        covers: brought.covers.clone(),
        parent: looked.parent,
        tree: looked.tree,
        title: words.title.clone(),
        body: words.body.clone(),
        author,
        commit: None,
        created_at: now,
        delivered_at: None,
    };
    if !looked.changes {
        // The existing head already contains all of it.
        delivery.commit = found.as_ref().and_then(|found| found.head_commit.clone());
        delivery.delivered_at = Some(now);
    }
    deliveries::insert_delivery(ctx.conn(), &delivery).await?;
    app.commit_operation(ctx).await?;
    Ok(match found {
        None => DeliveryStart::Nothing,
        Some(found) if looked.changes => {
            DeliveryStart::UnderWay(Box::new(found), Box::new(delivery))
        }
        Some(found) => DeliveryStart::Done(Box::new(found)),
    })
}

const fn closed_pull_request_error() -> Error {
    Error::Conflict("a person closed the pull request")
}

/// Resumes a delivery that was begun before.
async fn resume_delivery(
    ctx: &mut Ctx,
    before: DeliveryRecord,
    brought: &DeliverySource,
) -> Result<DeliveryStart, Error> {
    let now = ctx.now;
    deliveries::set_covered_commits(ctx.conn(), before.id, &brought.covers).await?;
    let Some(id) = before.pull_request else { return Ok(DeliveryStart::Nothing) };
    let found = pull_requests::lock_pull_request(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("pull request", id))?;
    if found.state == PullRequestState::Closed {
        return Err(closed_pull_request_error());
    }
    if before.delivered_at.is_some() {
        return Ok(DeliveryStart::Done(Box::new(found)));
    }
    pull_requests::reset_failed_pull_request(ctx.conn(), id, now).await?;
    Ok(DeliveryStart::UnderWay(Box::new(found), Box::new(before)))
}

/// Stores a pull request that is being created.
async fn create_pull_request(
    ctx: &mut Ctx,
    task: &Task,
    looked: &DeliverySnapshot,
    words: &DeliveryText,
) -> Result<PullRequestRecord, Error> {
    let (number, turn) =
        pull_requests::next_pull_request_number(ctx.conn(), task.project, task.id).await?;
    let now = ctx.now;
    let new = PullRequestRecord {
        id: PullRequestId::from_uuid(ctx.new_uuid()),
        project: task.project,
        task: task.id,
        number,
        forge: looked.forge,
        branch: delivery_branch(&task.name, task.id, turn),
        base_branch: looked.default_branch.clone(),
        base_commit: looked.base.clone(),
        head_commit: None,
        tree: None,
        title: words.title.clone(),
        body: words.body.clone(),
        state: PullRequestState::Opening,
        remote_number: None,
        url: None,
        failure: None,
        merge_commit: None,
        merge_parent: None,
        merged_by: None,
        opened_at: None,
        merged_at: None,
        closed_at: None,
        created_at: now,
        updated_at: now,
    };
    pull_requests::insert_pull_request(ctx.conn(), &new).await?;
    Ok(new)
}

/// Returns the author of commits.
async fn commit_author(ctx: &mut Ctx) -> Result<CommitAuthor, Error> {
    let set = settings::setting_value(ctx.conn(), AUTHOR_SETTING).await?;
    // An invalid setting is ignored, because a commit must be created nevertheless.
    Ok(set.as_ref().and_then(|value| value.as_str()?.parse().ok()).unwrap_or_default())
}

/// Creates the commit of a delivery. What a lost installation pushed for the same task is taken if it is the same, and built upon otherwise.
async fn create_delivery_commit(
    app: &App,
    project: ProjectId,
    delivery: &DeliveryRecord,
    lost: Option<String>,
) -> Result<String, Error> {
    let git = &app.gateway_parts()?.repositories;
    let DeliveryRecord { tree, parent, title, body, author, created_at, .. } = delivery;
    let mut parents = vec![parent.as_str()];
    if let Some(lost) = &lost {
        let is_same = git.tree_of_commit(project, lost).await? == *tree
            && git.contains_commit(project, lost, parent).await?;
        if is_same {
            return Ok(lost.clone());
        }
        parents.push(lost);
    }
    let message = commit_message(title, body, delivery.task, author);
    let new = NewCommit { tree, parents: &parents, message: &message, author, at: *created_at };
    Ok(git.create_commit(project, &new).await?)
}

/// Creates the commit, moves the branch and publishes the pull request. Each step is idempotent.
async fn execute_delivery(
    app: &App,
    request: &OperationRequest,
    found: &PullRequestRecord,
    delivery: &DeliveryRecord,
    mode: DeliveryMode,
) -> Result<(), Error> {
    let (git, project, tree) = (&app.gateway_parts()?.repositories, found.project, &delivery.tree);
    let lost = forges::find_lost_head(app, found, delivery.task).await?;
    let commit = create_delivery_commit(app, project, delivery, lost).await?;
    let from = found.head_commit.as_deref();
    match git.move_branch(project, &found.branch, from, &commit).await? {
        BranchMove::There => {}
        BranchMove::Elsewhere(_) => {
            let why = format!("somebody else moved the branch `{}`", found.branch);
            let refusal = Error::MergeConflict(why);
            return Err(record_delivery_failure(app, request, found, refusal).await);
        }
    }
    let published = match forges::publish_pull_request(app, found, &commit, mode).await {
        Ok(published) => published,
        Err(refusal @ Error::UpstreamRejected(_)) => {
            return Err(record_delivery_failure(app, request, found, refusal).await);
        }
        Err(error) => return Err(error),
    };
    let mut ctx = app.begin_transaction(request).await?;
    let now = ctx.now;
    let still = pull_requests::lock_pull_request(ctx.conn(), found.id).await?;
    let still = still.ok_or_else(|| Error::not_found("pull request", found.id))?;
    if !matches!(
        still.state,
        PullRequestState::Opening | PullRequestState::Open | PullRequestState::Failed
    ) {
        deliveries::delete_unfinished_delivery(ctx.conn(), delivery.id).await?;
        app.commit_operation(ctx).await?;
        let why = "the pull request was merged or closed while something was added to it";
        return Err(Error::Conflict(why));
    }
    if still.head_commit.as_deref() == Some(&commit) {
        return Ok(());
    }
    let offered = PullRequestHead {
        commit: &commit,
        tree,
        remote_number: published.number,
        url: published.url.as_deref(),
    };
    pull_requests::mark_pull_request_open(ctx.conn(), found.id, &offered, now).await?;
    deliveries::mark_delivery_done(ctx.conn(), delivery.id, &commit, now).await?;
    let kind = match still.head_commit {
        None => EventKind::PullRequestOpened,
        Some(_) => EventKind::PullRequestUpdated,
    };
    let url = published.url.unwrap_or_else(|| local_url_of(found.id));
    let data = json!({
        "pull_request_id": found.id, "number": found.number, "forge": found.forge, "title": found.title,
        "branch": found.branch, "commit": commit, "remote_number": published.number, "url": url,
    });
    ctx.record_event(EventDraft::new(kind, data).with_project(project).with_task(delivery.task))
        .await?;
    app.commit_operation(ctx).await
}

/// Records why a delivery failed, for people to read.
async fn record_delivery_failure(
    app: &App,
    request: &OperationRequest,
    found: &PullRequestRecord,
    refusal: Error,
) -> Error {
    let note = async {
        let mut ctx = app.begin_transaction(request).await?;
        let now = ctx.now;
        let short: String = refusal.to_string().chars().take(1000).collect();
        pull_requests::record_delivery_failure(ctx.conn(), found.id, &short, now).await?;
        app.commit_operation(ctx).await
    };
    match note.await {
        Ok(()) => refusal,
        Err(error) => error,
    }
}

/// Rejects the completion of a task whose work is to be delivered and was not.
pub(crate) async fn require_delivered(ctx: &mut Ctx, task: &Task) -> Result<(), Error> {
    let commits = deliveries::list_unit_commits(ctx.conn(), task.id).await?;
    if commits.is_empty()
        || repositories::get_repository(ctx.conn(), task.project).await?.is_none()
        || delivery_mode_of(ctx, task).await? == DeliveryMode::None
        || deliveries::is_fully_delivered(ctx.conn(), task.id, &commits).await?
    {
        return Ok(());
    }
    if waits::last_wait_answer(ctx.conn(), task.id)
        .await?
        .is_some_and(|said| is_end_without_answer(&said))
    {
        return Ok(());
    }
    let why = "what the units brought is in no open pull request: open one, or let a person say `end without`";
    Err(Error::Invalid(why.into()))
}

/// Returns the path of a local pull request.
fn local_url_of(id: PullRequestId) -> String {
    format!("/v1/pull-requests/{id}")
}

/// Converts a pull request to its API view.
pub(crate) fn to_pull_request_view(found: PullRequestRecord) -> PullRequestView {
    // A merge that is only planned is not shown.
    let merged = found.state == PullRequestState::Merged;
    PullRequestView {
        url: found.url.unwrap_or_else(|| local_url_of(found.id)),
        id: found.id,
        project_id: found.project,
        task_id: found.task,
        number: found.number,
        forge: found.forge,
        branch: found.branch,
        base_branch: found.base_branch,
        base_commit: found.base_commit,
        head_commit: found.head_commit,
        tree: found.tree,
        title: found.title,
        body: found.body,
        state: found.state,
        remote_number: found.remote_number,
        failure: found.failure,
        opened_at: found.opened_at,
        merged_at: found.merged_at,
        merged_by: found.merged_by.filter(|_| merged),
        merge_commit: found.merge_commit.filter(|_| merged),
        closed_at: found.closed_at,
        created_at: found.created_at,
        updated_at: found.updated_at,
    }
}

/// Returns the timeline entry of a task's pull request.
pub(crate) async fn timeline_entry_of(
    ctx: &mut Ctx,
    task: TaskId,
) -> Result<Option<PullRequestEntry>, Error> {
    let own = pull_requests::pull_request_of_task(ctx.conn(), task).await?;
    let found = match own {
        Some(own) => Some(own),
        None => pull_requests::pull_request_continued_by(ctx.conn(), task).await?,
    };
    Ok(found.map(|found| PullRequestEntry {
        id: found.id,
        number: found.remote_number.unwrap_or(found.number),
        url: found.url.unwrap_or_else(|| local_url_of(found.id)),
        state: found.state,
        title: found.title,
        branch: found.branch,
        commit: found.head_commit,
        failure: found.failure,
    }))
}

/// Returns a pull request that the caller may see.
async fn require_visible(ctx: &mut Ctx, id: PullRequestId) -> Result<PullRequestRecord, Error> {
    let missing = || Error::not_found("pull request", id);
    ctx.caller()?;
    let found = pull_requests::get_pull_request(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_project_role(found.project, UserRole::Viewer).await {
        Err(Error::NotFound { .. }) => Err(missing()),
        result => result.map(|_| found),
    }
}

/// Returns a pull request that the caller may decide about. The caller must be a person.
async fn require_decidable(ctx: &mut Ctx, id: PullRequestId) -> Result<PullRequestRecord, Error> {
    let found = require_visible(ctx, id).await?;
    let caller = ctx.require_project_role(found.project, UserRole::Operator).await?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(UserRole::Operator, "as a person"));
    }
    Ok(found)
}

/// Returns the people whose words made the work in a pull request, where four eyes are demanded of it; else nobody. A
/// reviewer whose remarks became a follow-up task is the author of that.
async fn barred_authors(
    ctx: &mut Ctx,
    found: &PullRequestRecord,
) -> Result<(PolicySet, Vec<UserId>), Error> {
    let task = task_of_pull_request(ctx, found).await?;
    let held = policies_of_task(ctx, &task).await?;
    let kinds = [ApprovalKind::Merge, ApprovalKind::Review];
    if !is_second_person_demanded(ctx, &held, &kinds).await? {
        return Ok((held, Vec::new()));
    }
    let mut authors = tasks::policies::list_task_authors(ctx.conn(), task.id).await?;
    for follow_up in pull_requests::list_follow_ups(ctx.conn(), found.id).await? {
        authors.extend(tasks::policies::list_task_authors(ctx.conn(), follow_up.task).await?);
    }
    Ok((held, authors))
}

/// Lists the pull requests of a project, newest first.
#[tracing::instrument(name = "app.delivery.list_pull_requests", skip_all)]
#[operation]
pub async fn list_pull_requests(
    ctx: &mut Ctx,
    project: ProjectId,
    state: Option<PullRequestState>,
    page: PageRequest,
) -> Result<Page<PullRequestView>, Error> {
    ctx.require_project_role(project, UserRole::Viewer).await?;
    let found = pull_requests::list_pull_requests(ctx.conn(), project, state, page).await?;
    Ok(page.into_page(found, |it| it.id.as_uuid()).map(to_pull_request_view))
}

/// Returns one pull request in detail.
#[tracing::instrument(name = "app.delivery.get_pull_request", skip_all, fields(pull_request.id = %id))]
#[operation]
pub async fn get_pull_request(
    ctx: &mut Ctx,
    id: PullRequestId,
) -> Result<PullRequestDetail, Error> {
    let found = require_visible(ctx, id).await?;
    load_detail(ctx, found).await
}

/// Returns the pull request that the work of a task went to or goes to.
#[tracing::instrument(name = "app.delivery.pull_request_of_task", skip_all, fields(task.id = %task))]
#[operation]
pub async fn pull_request_of_task(
    ctx: &mut Ctx,
    task: TaskId,
) -> Result<Option<PullRequestDetail>, Error> {
    crate::tasks::get_task(ctx, task).await?;
    let own = pull_requests::pull_request_of_task(ctx.conn(), task).await?;
    let found = match own {
        Some(own) => Some(own),
        None => pull_requests::pull_request_continued_by(ctx.conn(), task).await?,
    };
    match found {
        Some(found) => load_detail(ctx, found).await.map(Some),
        None => Ok(None),
    }
}

async fn load_detail(ctx: &mut Ctx, found: PullRequestRecord) -> Result<PullRequestDetail, Error> {
    let (id, head) = (found.id, found.head_commit.clone());
    let comments = pull_requests::list_comments(ctx.conn(), id).await?;
    let reviews = pull_requests::list_reviews(ctx.conn(), id).await?;
    let deliveries = deliveries::list_pull_request_deliveries(ctx.conn(), id).await?;
    let follow_ups = pull_requests::list_follow_ups(ctx.conn(), id).await?;
    Ok(PullRequestDetail {
        checks: evidence::list_pull_request_checks(ctx, &found).await?,
        pull_request: to_pull_request_view(found),
        comments: comments.into_iter().map(to_comment_view).collect(),
        reviews: reviews.into_iter().map(|it| to_review_view(it, head.as_deref())).collect(),
        deliveries: deliveries.into_iter().map(to_delivery_view).collect(),
        follow_ups: follow_ups.into_iter().map(to_follow_up_view).collect(),
    })
}

fn to_comment_view(comment: pull_requests::PullRequestComment) -> CommentView {
    let (author_id, author_role) = match comment.author {
        CommentAuthor::Person(user) => (Some(user), None),
        CommentAuthor::Agent(role) => (None, Some(role)),
    };
    CommentView {
        id: comment.id,
        author_id,
        author_role,
        path: comment.path,
        line: comment.line,
        body: comment.body,
        review_id: comment.review,
        created_at: comment.created_at,
    }
}

fn to_review_view(review: pull_requests::PullRequestReview, head: Option<&str>) -> ReviewView {
    ReviewView {
        id: review.id,
        user_id: review.user,
        verdict: review.verdict,
        note: review.note,
        current: head == Some(&review.commit),
        commit: review.commit,
        created_at: review.created_at,
    }
}

fn to_delivery_view(delivery: DeliveryRecord) -> DeliveryView {
    DeliveryView {
        task_id: delivery.task,
        commit: delivery.commit,
        source: delivery.source,
        title: delivery.title,
        created_at: delivery.created_at,
    }
}

fn to_follow_up_view(it: pull_requests::FollowUpTask) -> FollowUpView {
    FollowUpView {
        task_id: it.task,
        number: it.number,
        source: it.source,
        created_at: it.created_at,
    }
}

/// Returns the diff of a pull request, of one file if it is named.
#[tracing::instrument(name = "app.delivery.diff_pull_request", skip_all, fields(pull_request.id = %id))]
#[operation]
pub async fn diff_pull_request(
    app: &App,
    request: &OperationRequest,
    id: PullRequestId,
    path: Option<&str>,
) -> Result<DiffView, Error> {
    let found = app.read(request, |ctx| Box::pin(require_visible(ctx, id))).await?;
    let (base, head) = commit_range_of(&found)?;
    diff_commits(app, found.project, base, head, path).await
}

fn commit_range_of(found: &PullRequestRecord) -> Result<(String, String), Error> {
    let head = found.head_commit.clone();
    let head = head.ok_or(Error::Conflict("nothing was delivered to the pull request yet"))?;
    Ok((found.base_commit.clone(), head))
}

async fn diff_commits(
    app: &App,
    project: ProjectId,
    base: String,
    head: String,
    path: Option<&str>,
) -> Result<DiffView, Error> {
    if path.is_some_and(|path| path.len() > 1000 || path.is_empty() || path.contains('\0')) {
        return Err(Error::Invalid("`path` is the path of a file below the root".into()));
    }
    let git = &app.gateway_parts()?.repositories;
    let found = git.diff_commits(project, &base, &head, path, MAX_DIFF_BYTES).await?;
    let CommitDiff { text, truncated, inexact } = found;
    Ok(DiffView { base, head, text, truncated, inexact })
}

/// Lists the files that a pull request changes.
#[tracing::instrument(name = "app.delivery.list_changed_files", skip_all, fields(pull_request.id = %id))]
#[operation]
pub async fn list_changed_files(
    app: &App,
    request: &OperationRequest,
    id: PullRequestId,
) -> Result<ChangedFiles, Error> {
    let found = app.read(request, |ctx| Box::pin(require_visible(ctx, id))).await?;
    let (base, head) = commit_range_of(&found)?;
    let (files, truncated) =
        app.gateway_parts()?.repositories.list_changed_files(found.project, &base, &head).await?;
    Ok(ChangedFiles { base, head, files, truncated })
}

/// Returns the diff of a task's units so far, delivered or not.
#[tracing::instrument(name = "app.delivery.diff_of_task_units", skip_all, fields(task.id = %id))]
#[operation]
pub async fn diff_of_task_units(
    app: &App,
    request: &OperationRequest,
    id: TaskId,
    path: Option<&str>,
) -> Result<Option<DiffView>, Error> {
    let task = app.read(request, |ctx| crate::tasks::get_task(ctx, id)).await?;
    let Some(brought) = delivery_source_of(app, &task).await? else { return Ok(None) };
    let looked = load_delivery_snapshot(app, &task, &brought).await?;
    let shown = diff_commits(app, task.project, looked.base, brought.commit, path).await?;
    Ok(Some(shown))
}

/// Returns the diff of the newest commit of a task against the base of its work. It also works for a running or
/// failed task.
#[tracing::instrument(name = "app.delivery.diff_of_latest_commit", skip_all, fields(task.id = %id))]
#[operation]
pub async fn diff_of_latest_commit(
    app: &App,
    request: &OperationRequest,
    id: TaskId,
    path: Option<&str>,
) -> Result<TaskDiff, Error> {
    let found = app.read(request, |ctx| {
        Box::pin(async move {
            let task = crate::tasks::get_task(ctx, id).await?;
            let left =
                cynode_db::delivery::evidence::list_attempt_commits(ctx.conn(), id).await?.pop();
            let base =
                cynode_db::delivery::evidence::load_change_baseline(ctx.conn(), id).await?.base;
            Ok((task, left.zip(base)))
        })
    });
    let (task, Some((left, base))) = found.await? else {
        return Err(Error::not_found("commit of task", id));
    };
    let git = &app.gateway_parts()?.repositories;
    let (files, truncated) = git.list_changed_files(task.project, &base, &left.commit).await?;
    let files = ChangedFiles { base: base.clone(), head: left.commit.clone(), files, truncated };
    let number = |value: i64| u32::try_from(value).unwrap_or(u32::MAX);
    Ok(TaskDiff {
        unit: left.unit,
        attempt: number(left.attempt.into()),
        state: task.state.state_name(),
        checks: number(left.checks.into()),
        checks_passed: number(left.held),
        files,
        diff: diff_commits(app, task.project, base, left.commit, path).await?,
    })
}

/// Returns the task of a pull request, for a follow-up.
async fn task_of_pull_request(ctx: &mut Ctx, found: &PullRequestRecord) -> Result<Task, Error> {
    let task = tasks::get_task(ctx.conn(), found.task).await?;
    task.ok_or_else(|| Error::not_found("task", found.task))
}
