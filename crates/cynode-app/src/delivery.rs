//! Delivery: what a task's units brought becomes one commit on a branch of its own, and a pull request for people.
//!
//! **Invariant**: each step may be done again after a kill at any line and then gives the same: the row says what is meant before
//! anything is made, the commit's name follows from the row, and a branch is only moved from where it was seen. The default
//! branch is never written here; only [`merge`] moves it, for a person.

mod evidence;
mod forges;
mod merging;
mod reviewing;

use cynode_core::{
    delivery::{
        AUTHOR_SETTING, Author, DeliveryMode, Destination, PullRequestState, branch, ends_without,
        message, title as one_line,
    },
    events::EventKind,
    ids::{DeliveryId, ProjectId, PullRequestId, TaskId},
    roles::Role,
    tasks::{Task, TaskStateName},
};
use cynode_db::{
    Conn, DbError,
    deliveries::{self, Delivery},
    pull_requests::{self, CommentAuthor, Offered, PullRequest},
    repositories, tasks, waits,
};
use cynode_wire::{
    delivery::{
        ChangedFiles, CommentView, DeliveryView, DiffView, FollowUpView, PullRequestDetail,
        PullRequestView, ReviewView,
    },
    page::{Page, PageRequest},
    timeline::PullRequestEntry,
};
use serde_json::json;

pub use merging::merge;
pub use reviewing::{FollowUp, Remark, close, comment, follow_up, review};

use crate::{
    App, Ctx, Error, Request,
    context::Told,
    inference,
    repositories::{Difference, Moved, NewCommit},
    settings,
};

/// How often it is looked again when something changes meanwhile.
const ROUNDS: usize = 6;

/// Most bytes of a difference that is shown.
const MOST_DIFF: usize = 1024 * 1024;

/// Most characters of a pull request's words.
const MOST_BODY: usize = 20_000;

/// What the units of a task brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Brought {
    /// The commit that has all the others in it.
    pub(crate) commit: String,
    /// The commits of the units.
    pub(crate) covers: Vec<String>,
}

/// The commit that contains everything that the units of a task which are done brought; `None` when they brought nothing.
pub(crate) async fn head_of(app: &App, task: &Task) -> Result<Option<Brought>, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let covers = deliveries::commits(&mut conn, task.id).await?;
    drop(conn);
    if covers.is_empty() {
        return Ok(None);
    }
    let mut heads = app.gate()?.repositories.heads(task.project, &covers).await?.into_iter();
    let why = "the units made commits that nobody has put together yet";
    let newest = heads.next().filter(|_| heads.next().is_none());
    let commit = newest.ok_or_else(|| Error::Clash(why.into()))?;
    Ok(Some(Brought { commit, covers }))
}

/// The pull request that the work of a task goes to, if there is one: its own, or the one that it goes on with. One that was merged
/// takes nothing more.
async fn meant(conn: &mut Conn, task: TaskId) -> Result<Option<PullRequest>, DbError> {
    let own = pull_requests::of_task(conn, task).await?;
    let found = match own {
        Some(own) => Some(own),
        None => pull_requests::continued_by(conn, task).await?,
    };
    Ok(found.filter(|it| it.state != PullRequestState::Merged))
}

/// The commit that the work of a task starts from, when it goes on with a pull request.
pub(crate) async fn continued_from(app: &App, task: TaskId) -> Result<Option<String>, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let continued = pull_requests::continued_by(&mut conn, task).await?;
    let open = continued.filter(|it| it.state != PullRequestState::Merged);
    Ok(open.and_then(|it| it.head_commit))
}

/// What a delivery begins with.
enum Begun {
    /// There is nothing to deliver.
    Nothing,
    /// It was delivered before.
    Done(Box<PullRequest>),
    /// It is to be carried out.
    UnderWay(Box<PullRequest>, Box<Delivery>),
    /// Something changed while it was looked at.
    Moved,
}

/// What a commit and a pull request say.
struct Words {
    title: String,
    body: String,
}

/// Opens a pull request for what a task's units brought, or adds it to the one that there is. `None` when they changed nothing.
/// Asked again, nothing more happens.
#[tracing::instrument(name = "app.delivery.open", skip_all, fields(task.id = %id))]
pub async fn open(
    app: &App,
    request: &Request,
    id: TaskId,
    title: &str,
    body: &str,
) -> Result<Option<PullRequestView>, Error> {
    let (task, mode) = app.read(request, |ctx| Box::pin(deliverable(ctx, id))).await?;
    let Some(brought) = head_of(app, &task).await? else { return Ok(None) };
    evidence::must_hold(app, &task, &brought.commit).await?;
    // They go into a commit and to a forge, where nobody takes anything out any more.
    let title = inference::redacted(app, title.to_owned()).await?;
    let body = inference::redacted(app, body.replace('\0', "")).await?;
    let mut words = Words { title: one_line(&title), body };
    if words.title.is_empty() {
        words.title = one_line(&task.name.as_str().replace('-', " "));
    }
    words.body = words.body.trim().chars().take(MOST_BODY).collect();
    // What was begun before is ended first: each round ends one delivery or begins one.
    for _ in 0..ROUNDS {
        match begin(app, request, &task, &brought, &words).await? {
            Begun::Nothing => return Ok(None),
            Begun::Done(found) => return Ok(Some(view(*found))),
            Begun::UnderWay(found, delivery) => {
                carry_out(app, request, &found, &delivery, mode).await?;
            }
            Begun::Moved => {}
        }
    }
    Err(Error::Busy)
}

/// A task whose work may be delivered by the caller.
async fn deliverable(ctx: &mut Ctx, id: TaskId) -> Result<(Task, DeliveryMode), Error> {
    let task = crate::tasks::get(ctx, id).await?;
    ctx.require_in(task.project, Role::Operator).await?;
    if !matches!(task.state.name(), TaskStateName::Queued | TaskStateName::Running) {
        return Err(Error::Ended);
    }
    let mode = mode(ctx, &task).await?;
    if mode == DeliveryMode::None {
        return Err(Error::Conflict(
            "the preference `delivery.mode` says that nothing is delivered",
        ));
    }
    Ok((task, mode))
}

async fn mode(ctx: &mut Ctx, task: &Task) -> Result<DeliveryMode, Error> {
    let preferences = crate::preferences::of_workflow(ctx, task).await?;
    let said = preferences.iter().find(|(key, _)| key.as_str() == DeliveryMode::KEY);
    Ok(DeliveryMode::of(said.map(|(_, value)| value)))
}

/// What git says about a delivery, before anything is written.
struct Looked {
    pull_request: Option<PullRequest>,
    forge: Destination,
    default_branch: String,
    base: String,
    parent: String,
    tree: String,
    changes: bool,
}

async fn look(app: &App, task: &Task, brought: &Brought) -> Result<Looked, Error> {
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    let repository = repositories::get(&mut conn, task.project).await?;
    let repository =
        repository.ok_or_else(|| Error::not_found("repository of project", task.project))?;
    let pull_request = meant(&mut conn, task.id).await?;
    let last = match &pull_request {
        Some(found) => deliveries::of_pull_request(&mut conn, found.id).await?.pop(),
        None => None,
    };
    drop(conn);
    let (git, project) = (&app.gate()?.repositories, task.project);
    let source = &brought.commit;
    let head = pull_request.as_ref().and_then(|found| found.head_commit.clone());
    if let (Some(head), Some(last)) = (&head, &last) {
        let seen = if last.task == task.id { &last.source } else { head };
        if !git.contains(project, source, seen).await? {
            let why = "something was added to the pull request since this work began";
            return Err(Error::Clash(why.into()));
        }
    }
    let there = git.branch(project, &repository.default_branch).await?;
    let there = there.unwrap_or(repository.head);
    let base = git.shared(project, source, &there).await?;
    let why = "the work shares no history with the default branch";
    let base = base.ok_or_else(|| Error::Clash(why.into()))?;
    let parent = head.unwrap_or_else(|| base.clone());
    let tree = git.tree_of(project, source).await?;
    let changes = tree != git.tree_of(project, &parent).await?;
    let default_branch = repository.default_branch;
    let forge = forges::destination(app, project).await?;
    Ok(Looked { pull_request, forge, default_branch, base, parent, tree, changes })
}

/// Notes what is meant, in one transaction.
async fn begin(
    app: &App,
    request: &Request,
    task: &Task,
    brought: &Brought,
    words: &Words,
) -> Result<Begun, Error> {
    let looked = look(app, task, brought).await?;
    let mut ctx = app.open(request).await?;
    let now = ctx.now;
    // One after the other in a project: numbers have no gaps, and nobody builds on what is about to change.
    repositories::lock(ctx.conn(), task.project).await?;
    if let Some(before) = deliveries::of_source(ctx.conn(), task.id, &brought.commit).await? {
        let begun = again(&mut ctx, before, brought).await?;
        app.commit(ctx).await?;
        return Ok(begun);
    }
    let found = meant(ctx.conn(), task.id).await?;
    if found != looked.pull_request {
        return Ok(Begun::Moved);
    }
    let found = match found {
        Some(found) if found.state == PullRequestState::Closed => return Err(closed()),
        Some(found) => {
            let last = deliveries::of_pull_request(ctx.conn(), found.id).await?.pop();
            if let Some(last) = last.filter(|last| last.delivered_at.is_none()) {
                pull_requests::try_again(ctx.conn(), found.id, now).await?;
                app.commit(ctx).await?;
                return Ok(Begun::UnderWay(Box::new(found), Box::new(last)));
            }
            Some(found)
        }
        None if looked.changes => Some(create(&mut ctx, task, &looked, words).await?),
        None => None,
    };
    let author = author(&mut ctx).await?;
    let mut delivery = Delivery {
        id: DeliveryId::from_uuid(ctx.uuid()),
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
        // What is there already has all of it.
        delivery.commit = found.as_ref().and_then(|found| found.head_commit.clone());
        delivery.delivered_at = Some(now);
    }
    deliveries::insert(ctx.conn(), &delivery).await?;
    app.commit(ctx).await?;
    Ok(match found {
        None => Begun::Nothing,
        Some(found) if looked.changes => Begun::UnderWay(Box::new(found), Box::new(delivery)),
        Some(found) => Begun::Done(Box::new(found)),
    })
}

fn closed() -> Error {
    Error::Clash("a person closed the pull request".into())
}

/// Goes on with a delivery that was begun before.
async fn again(ctx: &mut Ctx, before: Delivery, brought: &Brought) -> Result<Begun, Error> {
    let now = ctx.now;
    deliveries::cover(ctx.conn(), before.id, &brought.covers).await?;
    let Some(id) = before.pull_request else { return Ok(Begun::Nothing) };
    let found = pull_requests::lock(ctx.conn(), id).await?;
    let found = found.ok_or_else(|| Error::not_found("pull request", id))?;
    if found.state == PullRequestState::Closed {
        return Err(closed());
    }
    if before.delivered_at.is_some() {
        return Ok(Begun::Done(Box::new(found)));
    }
    pull_requests::try_again(ctx.conn(), id, now).await?;
    Ok(Begun::UnderWay(Box::new(found), Box::new(before)))
}

/// A pull request that is being made.
async fn create(
    ctx: &mut Ctx,
    task: &Task,
    looked: &Looked,
    words: &Words,
) -> Result<PullRequest, Error> {
    let (number, turn) = pull_requests::next(ctx.conn(), task.project, task.id).await?;
    let now = ctx.now;
    let new = PullRequest {
        id: PullRequestId::from_uuid(ctx.uuid()),
        project: task.project,
        task: task.id,
        number,
        forge: looked.forge,
        branch: branch(&task.name, task.id, turn),
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
    pull_requests::insert(ctx.conn(), &new).await?;
    Ok(new)
}

/// Who commits for people are by.
async fn author(ctx: &mut Ctx) -> Result<Author, Error> {
    let set = settings::value(ctx.conn(), AUTHOR_SETTING).await?;
    // What cannot be used is not: a commit must be made nevertheless.
    Ok(set.as_ref().and_then(|value| value.as_str()?.parse().ok()).unwrap_or_default())
}

/// Makes the commit, moves the branch, offers it. Done again, each of them changes nothing.
async fn carry_out(
    app: &App,
    request: &Request,
    found: &PullRequest,
    delivery: &Delivery,
    mode: DeliveryMode,
) -> Result<(), Error> {
    let (git, project) = (&app.gate()?.repositories, found.project);
    let Delivery { tree, parent, title, body, author, created_at, .. } = delivery;
    let message = message(title, body, delivery.task, author);
    let new = NewCommit { tree, parents: &[parent], message: &message, author, at: *created_at };
    let commit = git.make_commit(project, &new).await?;
    let from = found.head_commit.as_deref();
    match git.move_branch(project, &found.branch, from, &commit).await? {
        Moved::There => {}
        Moved::Elsewhere(_) => {
            let why = format!("somebody else moved the branch `{}`", found.branch);
            return Err(failed(app, request, found, why).await);
        }
    }
    let published = match forges::publish(app, found, &commit, mode).await {
        Ok(published) => published,
        Err(Error::Clash(why)) => return Err(failed(app, request, found, why).await),
        Err(error) => return Err(error),
    };
    let mut ctx = app.open(request).await?;
    let now = ctx.now;
    let still = pull_requests::lock(ctx.conn(), found.id).await?;
    let still = still.ok_or_else(|| Error::not_found("pull request", found.id))?;
    if !matches!(
        still.state,
        PullRequestState::Opening | PullRequestState::Open | PullRequestState::Failed
    ) {
        deliveries::forget(ctx.conn(), delivery.id).await?;
        app.commit(ctx).await?;
        let why = "the pull request was merged or closed while something was added to it";
        return Err(Error::Clash(why.into()));
    }
    if still.head_commit.as_deref() == Some(&commit) {
        return Ok(());
    }
    let offered = Offered {
        commit: &commit,
        tree,
        remote_number: published.number,
        url: published.url.as_deref(),
    };
    pull_requests::offer(ctx.conn(), found.id, &offered, now).await?;
    deliveries::done(ctx.conn(), delivery.id, &commit, now).await?;
    let kind = match still.head_commit {
        None => EventKind::PullRequestOpened,
        Some(_) => EventKind::PullRequestUpdated,
    };
    let url = published.url.unwrap_or_else(|| address(found.id));
    let data = json!({
        "pull_request_id": found.id, "number": found.number, "forge": found.forge, "title": found.title,
        "branch": found.branch, "commit": commit, "remote_number": published.number, "url": url,
    });
    ctx.record(Told::new(kind, data).project(project).task(delivery.task)).await?;
    app.commit(ctx).await
}

/// Notes why a delivery came to nothing, for people.
async fn failed(app: &App, request: &Request, found: &PullRequest, why: String) -> Error {
    let note = async {
        let mut ctx = app.open(request).await?;
        let now = ctx.now;
        let short: String = why.chars().take(1000).collect();
        pull_requests::fail(ctx.conn(), found.id, &short, now).await?;
        app.commit(ctx).await
    };
    match note.await {
        Ok(()) => Error::Clash(why),
        Err(error) => error,
    }
}

/// Refuses the good end of a task whose work was not delivered, though it is to be.
pub(crate) async fn must_be_delivered(ctx: &mut Ctx, task: &Task) -> Result<(), Error> {
    let commits = deliveries::commits(ctx.conn(), task.id).await?;
    if commits.is_empty()
        || repositories::get(ctx.conn(), task.project).await?.is_none()
        || mode(ctx, task).await? == DeliveryMode::None
        || deliveries::complete(ctx.conn(), task.id, &commits).await?
    {
        return Ok(());
    }
    if waits::last_answer(ctx.conn(), task.id).await?.is_some_and(|said| ends_without(&said)) {
        return Ok(());
    }
    let why = "what the units brought is in no open pull request: open one, or let a person say `end without`";
    Err(Error::Invalid(why.into()))
}

/// Where people find a pull request that lives here.
fn address(id: PullRequestId) -> String {
    format!("/v1/pull-requests/{id}")
}

/// A pull request, as people see it.
pub(crate) fn view(found: PullRequest) -> PullRequestView {
    // A merge that is only meant is nobody's business.
    let merged = found.state == PullRequestState::Merged;
    PullRequestView {
        url: found.url.unwrap_or_else(|| address(found.id)),
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

/// The pull request of a task, for its timeline.
pub(crate) async fn entry(ctx: &mut Ctx, task: TaskId) -> Result<Option<PullRequestEntry>, Error> {
    let own = pull_requests::of_task(ctx.conn(), task).await?;
    let found = match own {
        Some(own) => Some(own),
        None => pull_requests::continued_by(ctx.conn(), task).await?,
    };
    Ok(found.map(|found| PullRequestEntry {
        id: found.id,
        number: found.remote_number.unwrap_or(found.number),
        url: found.url.unwrap_or_else(|| address(found.id)),
        state: found.state,
        title: found.title,
        branch: found.branch,
        commit: found.head_commit,
        failure: found.failure,
    }))
}

/// A pull request that the caller may see.
async fn visible(ctx: &mut Ctx, id: PullRequestId) -> Result<PullRequest, Error> {
    let missing = || Error::not_found("pull request", id);
    ctx.caller()?;
    let found = pull_requests::get(ctx.conn(), id).await?.ok_or_else(missing)?;
    match ctx.require_in(found.project, Role::Viewer).await {
        Err(Error::NotFound { .. }) => Err(missing()),
        result => result.map(|_| found),
    }
}

/// A pull request about which the caller, a person, may decide.
async fn decidable(ctx: &mut Ctx, id: PullRequestId) -> Result<PullRequest, Error> {
    let found = visible(ctx, id).await?;
    let caller = ctx.require_in(found.project, Role::Operator).await?;
    if caller.bounds.is_some() {
        return Err(Error::forbidden(Role::Operator, "as a person"));
    }
    Ok(found)
}

/// The pull requests of a project, newest first.
#[tracing::instrument(name = "app.delivery.list", skip_all)]
pub async fn list(
    ctx: &mut Ctx,
    project: ProjectId,
    state: Option<PullRequestState>,
    page: PageRequest,
) -> Result<Page<PullRequestView>, Error> {
    ctx.require_in(project, Role::Viewer).await?;
    let found = pull_requests::list(ctx.conn(), project, state, page).await?;
    Ok(page.cut(found, |it| it.id.as_uuid()).map(view))
}

/// One pull request with everything about it.
#[tracing::instrument(name = "app.delivery.get", skip_all, fields(pull_request.id = %id))]
pub async fn get(ctx: &mut Ctx, id: PullRequestId) -> Result<PullRequestDetail, Error> {
    let found = visible(ctx, id).await?;
    detail(ctx, found).await
}

/// The pull request that the work of a task went to, or goes to.
#[tracing::instrument(name = "app.delivery.of_task", skip_all, fields(task.id = %task))]
pub async fn of_task(ctx: &mut Ctx, task: TaskId) -> Result<Option<PullRequestDetail>, Error> {
    crate::tasks::get(ctx, task).await?;
    let own = pull_requests::of_task(ctx.conn(), task).await?;
    let found = match own {
        Some(own) => Some(own),
        None => pull_requests::continued_by(ctx.conn(), task).await?,
    };
    match found {
        Some(found) => detail(ctx, found).await.map(Some),
        None => Ok(None),
    }
}

async fn detail(ctx: &mut Ctx, found: PullRequest) -> Result<PullRequestDetail, Error> {
    let (id, head) = (found.id, found.head_commit.clone());
    let comments = pull_requests::comments(ctx.conn(), id).await?;
    let reviews = pull_requests::reviews(ctx.conn(), id).await?;
    let deliveries = deliveries::of_pull_request(ctx.conn(), id).await?;
    let follow_ups = pull_requests::follow_ups(ctx.conn(), id).await?;
    Ok(PullRequestDetail {
        checks: evidence::checks(ctx, &found).await?,
        pull_request: view(found),
        comments: comments.into_iter().map(shown_comment).collect(),
        reviews: reviews.into_iter().map(|it| shown_review(it, head.as_deref())).collect(),
        deliveries: deliveries.into_iter().map(shown_delivery).collect(),
        follow_ups: follow_ups.into_iter().map(shown_follow_up).collect(),
    })
}

fn shown_comment(comment: pull_requests::Comment) -> CommentView {
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

fn shown_review(review: pull_requests::Review, head: Option<&str>) -> ReviewView {
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

fn shown_delivery(delivery: Delivery) -> DeliveryView {
    DeliveryView {
        task_id: delivery.task,
        commit: delivery.commit,
        source: delivery.source,
        title: delivery.title,
        created_at: delivery.created_at,
    }
}

fn shown_follow_up(it: pull_requests::FollowUp) -> FollowUpView {
    FollowUpView {
        task_id: it.task,
        number: it.number,
        source: it.source,
        created_at: it.created_at,
    }
}

/// What a pull request would change, as text; of one file if it is named.
#[tracing::instrument(name = "app.delivery.diff", skip_all, fields(pull_request.id = %id))]
pub async fn diff(
    app: &App,
    request: &Request,
    id: PullRequestId,
    path: Option<&str>,
) -> Result<DiffView, Error> {
    let found = app.read(request, |ctx| Box::pin(visible(ctx, id))).await?;
    let (base, head) = ends(&found)?;
    between(app, found.project, base, head, path).await
}

fn ends(found: &PullRequest) -> Result<(String, String), Error> {
    let head = found.head_commit.clone();
    let head = head.ok_or(Error::Conflict("nothing was delivered to the pull request yet"))?;
    Ok((found.base_commit.clone(), head))
}

async fn between(
    app: &App,
    project: ProjectId,
    base: String,
    head: String,
    path: Option<&str>,
) -> Result<DiffView, Error> {
    if path.is_some_and(|path| path.len() > 1000 || path.is_empty() || path.contains('\0')) {
        return Err(Error::Invalid("`path` is the path of a file below the root".into()));
    }
    let git = &app.gate()?.repositories;
    let found = git.diff(project, &base, &head, path, MOST_DIFF).await?;
    let Difference { text, truncated, inexact } = found;
    Ok(DiffView { base, head, text, truncated, inexact })
}

/// The files that a pull request would change.
#[tracing::instrument(name = "app.delivery.files", skip_all, fields(pull_request.id = %id))]
pub async fn files(app: &App, request: &Request, id: PullRequestId) -> Result<ChangedFiles, Error> {
    let found = app.read(request, |ctx| Box::pin(visible(ctx, id))).await?;
    let (base, head) = ends(&found)?;
    let (files, truncated) = app.gate()?.repositories.changed(found.project, &base, &head).await?;
    Ok(ChangedFiles { base, head, files, truncated })
}

/// What the units of a task changed so far, delivered or not.
#[tracing::instrument(name = "app.delivery.diff_of_task", skip_all, fields(task.id = %id))]
pub async fn diff_of_task(
    app: &App,
    request: &Request,
    id: TaskId,
    path: Option<&str>,
) -> Result<Option<DiffView>, Error> {
    let task = app.read(request, |ctx| Box::pin(crate::tasks::get(ctx, id))).await?;
    let Some(brought) = head_of(app, &task).await? else { return Ok(None) };
    let looked = look(app, &task, &brought).await?;
    let shown = between(app, task.project, looked.base, brought.commit, path).await?;
    Ok(Some(shown))
}

/// The task of a pull request, for whoever goes on with it.
async fn task_of(ctx: &mut Ctx, found: &PullRequest) -> Result<Task, Error> {
    let task = tasks::get(ctx.conn(), found.task).await?;
    task.ok_or_else(|| Error::not_found("task", found.task))
}
