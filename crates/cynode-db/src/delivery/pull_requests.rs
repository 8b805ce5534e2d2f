//! Pull requests, their comments, reviews and follow-ups.

use cynode_core::{
    agents::AgentRole,
    delivery::{Destination, PullRequestState, ReviewVerdict},
    ids::{CommentId, ProjectId, PullRequestId, ReviewId, TaskId, UserId},
    paging::PageRequest,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A pull request, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequestRecord {
    /// Its id.
    pub id: PullRequestId,
    /// The project.
    pub project: ProjectId,
    /// The task that it was opened for.
    pub task: TaskId,
    /// Its number in the project.
    pub number: i64,
    /// Where it lives.
    pub forge: Destination,
    /// The branch that is offered.
    pub branch: String,
    /// The branch that it is meant for.
    pub base_branch: String,
    /// The commit that the work started from.
    pub base_commit: String,
    /// The commit that is offered, once something was delivered.
    pub head_commit: Option<String>,
    /// Its tree.
    pub tree: Option<String>,
    /// What it is.
    pub title: String,
    /// What was done, as Markdown.
    pub body: String,
    /// Where it stands.
    pub state: PullRequestState,
    /// Its number at the forge.
    pub remote_number: Option<i64>,
    /// Where people look at it.
    pub url: Option<String>,
    /// Why the last attempt to deliver came to nothing.
    pub failure: Option<String>,
    /// The merge that is meant or done.
    pub merge_commit: Option<String>,
    /// What the base branch had before it.
    pub merge_parent: Option<String>,
    /// Who merged it, if it was merged here.
    pub merged_by: Option<UserId>,
    /// When it was offered.
    pub opened_at: Option<OffsetDateTime>,
    /// When it was taken over.
    pub merged_at: Option<OffsetDateTime>,
    /// When it was closed.
    pub closed_at: Option<OffsetDateTime>,
    /// When it was begun.
    pub created_at: OffsetDateTime,
    /// When it last changed.
    pub updated_at: OffsetDateTime,
}

struct PullRequestRow {
    pull_request_id: Uuid,
    project_id: Uuid,
    task_id: Uuid,
    number: i64,
    forge: String,
    branch: String,
    base_branch: String,
    base_commit: String,
    head_commit: Option<String>,
    tree: Option<String>,
    title: String,
    body: String,
    state: String,
    remote_number: Option<i64>,
    url: Option<String>,
    failure: Option<String>,
    merge_commit: Option<String>,
    merge_parent: Option<String>,
    merged_by: Option<Uuid>,
    opened_at: Option<OffsetDateTime>,
    merged_at: Option<OffsetDateTime>,
    closed_at: Option<OffsetDateTime>,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

impl TryFrom<PullRequestRow> for PullRequestRecord {
    type Error = DbError;

    fn try_from(row: PullRequestRow) -> Result<Self, DbError> {
        let wrong = |column| DbError::Corrupt { table: "pull_requests", column };
        Ok(Self {
            id: PullRequestId::from_uuid(row.pull_request_id),
            project: ProjectId::from_uuid(row.project_id),
            task: TaskId::from_uuid(row.task_id),
            number: row.number,
            forge: Destination::from_name(&row.forge).ok_or(wrong("forge"))?,
            branch: row.branch,
            base_branch: row.base_branch,
            base_commit: row.base_commit,
            head_commit: row.head_commit,
            tree: row.tree,
            title: row.title,
            body: row.body,
            state: PullRequestState::from_name(&row.state).ok_or(wrong("state"))?,
            remote_number: row.remote_number,
            url: row.url,
            failure: row.failure,
            merge_commit: row.merge_commit,
            merge_parent: row.merge_parent,
            merged_by: row.merged_by.map(UserId::from_uuid),
            opened_at: row.opened_at,
            merged_at: row.merged_at,
            closed_at: row.closed_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

/// Stores a pull request that is being made.
#[tracing::instrument(name = "db.pull_requests.insert_pull_request", skip_all)]
pub async fn insert_pull_request(conn: &mut Conn, new: &PullRequestRecord) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO pull_requests (pull_request_id, project_id, task_id, number, forge, branch, base_branch, base_commit, title,
            body, state, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'opening', $11, $11)
        ",
        new.id.as_uuid(),
        new.project.as_uuid(),
        new.task.as_uuid(),
        new.number,
        new.forge.as_str(),
        new.branch,
        new.base_branch,
        new.base_commit,
        new.title,
        new.body,
        new.created_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The number of a project's next pull request, and how many a task has had. Whoever asks holds the repository's row.
#[tracing::instrument(name = "db.pull_requests.next_pull_request_number", skip_all)]
pub async fn next_pull_request_number(
    conn: &mut Conn,
    project: ProjectId,
    task: TaskId,
) -> Result<(i64, i64), DbError> {
    let row = sqlx::query!(
        r#"
        SELECT coalesce(max(number), 0) + 1 AS "number!", count(*) FILTER (WHERE task_id = $2) + 1 AS "turn!"
        FROM pull_requests WHERE project_id = $1
        "#,
        project.as_uuid(),
        task.as_uuid(),
    )
    .fetch_one(conn)
    .await?;
    Ok((row.number, row.turn))
}

/// One pull request.
#[tracing::instrument(name = "db.pull_requests.get_pull_request", skip_all, fields(pull_request.id = %id))]
pub async fn get_pull_request(
    conn: &mut Conn,
    id: PullRequestId,
) -> Result<Option<PullRequestRecord>, DbError> {
    sqlx::query_as!(
        PullRequestRow,
        "
        SELECT pull_request_id, project_id, task_id, number, forge, branch, base_branch, base_commit, head_commit, tree, title, body,
            state, remote_number, url, failure, merge_commit, merge_parent, merged_by, opened_at, merged_at, closed_at, created_at,
            updated_at
        FROM pull_requests WHERE pull_request_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(PullRequestRecord::try_from)
    .transpose()
}

/// The same, locked until the transaction ends.
#[tracing::instrument(name = "db.pull_requests.lock_pull_request", skip_all, fields(pull_request.id = %id))]
pub async fn lock_pull_request(
    conn: &mut Conn,
    id: PullRequestId,
) -> Result<Option<PullRequestRecord>, DbError> {
    sqlx::query!(
        "SELECT FROM pull_requests WHERE pull_request_id = $1 FOR NO KEY UPDATE",
        id.as_uuid()
    )
    .execute(&mut *conn)
    .await?;
    get_pull_request(conn, id).await
}

/// The newest pull request that was opened for a task.
#[tracing::instrument(name = "db.pull_requests.pull_request_of_task", skip_all, fields(task.id = %task))]
pub async fn pull_request_of_task(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Option<PullRequestRecord>, DbError> {
    let id = sqlx::query_scalar!(
        "SELECT pull_request_id FROM pull_requests WHERE task_id = $1 ORDER BY number DESC LIMIT 1",
        task.as_uuid(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    match id {
        Some(id) => get_pull_request(conn, PullRequestId::from_uuid(id)).await,
        None => Ok(None),
    }
}

/// The pull request that a task goes on with.
#[tracing::instrument(name = "db.pull_requests.pull_request_continued_by", skip_all, fields(task.id = %task))]
pub async fn pull_request_continued_by(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Option<PullRequestRecord>, DbError> {
    let id = sqlx::query_scalar!(
        "SELECT pull_request_id FROM pull_request_followups WHERE task_id = $1",
        task.as_uuid(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    match id {
        Some(id) => get_pull_request(conn, PullRequestId::from_uuid(id)).await,
        None => Ok(None),
    }
}

/// The pull requests of a project, newest first: one more than a page holds.
#[tracing::instrument(name = "db.pull_requests.list_pull_requests", skip_all)]
pub async fn list_pull_requests(
    conn: &mut Conn,
    project: ProjectId,
    state: Option<PullRequestState>,
    page: PageRequest,
) -> Result<Vec<PullRequestRecord>, DbError> {
    sqlx::query_as!(
        PullRequestRow,
        "
        SELECT pull_request_id, project_id, task_id, number, forge, branch, base_branch, base_commit, head_commit, tree, title, body,
            state, remote_number, url, failure, merge_commit, merge_parent, merged_by, opened_at, merged_at, closed_at, created_at,
            updated_at
        FROM pull_requests
        WHERE project_id = $1 AND ($2::uuid IS NULL OR pull_request_id < $2) AND ($4::text IS NULL OR state = $4)
        ORDER BY pull_request_id DESC
        LIMIT $3
        ",
        project.as_uuid(),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
        state.map(PullRequestState::as_str),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(PullRequestRecord::try_from)
    .collect()
}

/// It is being made again.
#[tracing::instrument(name = "db.pull_requests.reset_failed_pull_request", skip_all, fields(pull_request.id = %id))]
pub async fn reset_failed_pull_request(
    conn: &mut Conn,
    id: PullRequestId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE pull_requests SET state = CASE state WHEN 'failed' THEN 'opening' ELSE state END, failure = NULL, updated_at = $2
        WHERE pull_request_id = $1
        ",
        id.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes why it could not be made, or why a commit could not be added to it.
#[tracing::instrument(name = "db.pull_requests.record_delivery_failure", skip_all, fields(pull_request.id = %id))]
pub async fn record_delivery_failure(
    conn: &mut Conn,
    id: PullRequestId,
    why: &str,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE pull_requests SET state = CASE state WHEN 'opening' THEN 'failed' ELSE state END, failure = $2, updated_at = $3
        WHERE pull_request_id = $1 AND state IN ('opening', 'failed', 'open')
        ",
        id.as_uuid(),
        why,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequestHead<'a> {
    /// The commit.
    pub commit: &'a str,
    /// Its tree.
    pub tree: &'a str,
    /// The number at the forge.
    pub remote_number: Option<i64>,
    /// Where people look at it.
    pub url: Option<&'a str>,
}

/// It is offered at a commit.
#[tracing::instrument(name = "db.pull_requests.mark_pull_request_open", skip_all, fields(pull_request.id = %id))]
pub async fn mark_pull_request_open(
    conn: &mut Conn,
    id: PullRequestId,
    offered: &PullRequestHead<'_>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE pull_requests
        SET state = 'open', head_commit = $2, tree = $3, remote_number = coalesce($4, remote_number), url = coalesce($5, url),
            failure = NULL, opened_at = coalesce(opened_at, $6), updated_at = $6
        WHERE pull_request_id = $1
        ",
        id.as_uuid(),
        offered.commit,
        offered.tree,
        offered.remote_number,
        offered.url,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes how it is to be merged, before it is.
#[tracing::instrument(name = "db.pull_requests.record_merge_intent", skip_all, fields(pull_request.id = %id))]
pub async fn record_merge_intent(
    conn: &mut Conn,
    id: PullRequestId,
    commit: &str,
    parent: &str,
    by: UserId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE pull_requests SET merge_commit = $2, merge_parent = $3, merged_by = $4, updated_at = $5
        WHERE pull_request_id = $1 AND state = 'open'
        ",
        id.as_uuid(),
        commit,
        parent,
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// It was taken over, here or at its forge. Whoever closed it at the same moment came too late.
#[tracing::instrument(name = "db.pull_requests.mark_pull_request_merged", skip_all, fields(pull_request.id = %id))]
pub async fn mark_pull_request_merged(
    conn: &mut Conn,
    id: PullRequestId,
    commit: Option<&str>,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE pull_requests SET state = 'merged', merged_at = $3, merge_commit = coalesce($2, merge_commit), failure = NULL,
            closed_at = NULL, updated_at = $3
        WHERE pull_request_id = $1 AND state IN ('open', 'closed') AND head_commit IS NOT NULL AND opened_at IS NOT NULL
        ",
        id.as_uuid(),
        commit,
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// It is not wanted any more.
#[tracing::instrument(name = "db.pull_requests.mark_pull_request_closed", skip_all, fields(pull_request.id = %id))]
pub async fn mark_pull_request_closed(
    conn: &mut Conn,
    id: PullRequestId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE pull_requests SET state = 'closed', closed_at = $2, failure = NULL, updated_at = $2
        WHERE pull_request_id = $1 AND state IN ('opening', 'open', 'failed')
        ",
        id.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommentAuthor {
    /// A person.
    Person(UserId),
    /// An agent.
    Agent(AgentRole),
}

/// Something that was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequestComment {
    /// Its id.
    pub id: CommentId,
    /// Who said it.
    pub author: CommentAuthor,
    /// The file that it is about.
    pub path: Option<String>,
    /// The line.
    pub line: Option<u32>,
    /// What was said.
    pub body: String,
    /// Makes it be said once.
    pub source: String,
    /// The review that it was part of.
    pub review: Option<ReviewId>,
    /// When.
    pub created_at: OffsetDateTime,
}

/// Stores a comment; `false` when it was said before.
#[tracing::instrument(name = "db.pull_requests.insert_comment", skip_all, fields(pull_request.id = %id))]
pub async fn insert_comment(
    conn: &mut Conn,
    id: PullRequestId,
    comment: &PullRequestComment,
) -> Result<bool, DbError> {
    let (person, agent) = match comment.author {
        CommentAuthor::Person(user) => (Some(user.as_uuid()), None),
        CommentAuthor::Agent(role) => (None, Some(role.as_str())),
    };
    let done = sqlx::query!(
        "
        INSERT INTO pull_request_comments (comment_id, pull_request_id, author_id, author_role, path, line, body, source, review_id,
            created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        ON CONFLICT ON CONSTRAINT pull_request_comments_unique DO NOTHING
        ",
        comment.id.as_uuid(),
        id.as_uuid(),
        person,
        agent,
        comment.path,
        comment.line.map(u32::cast_signed),
        comment.body,
        comment.source,
        comment.review.map(ReviewId::as_uuid),
        comment.created_at,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Most comments and reviews that are shown.
const MAX_LISTED_COMMENTS: i64 = 1000;

/// What was said, oldest first.
#[tracing::instrument(name = "db.pull_requests.list_comments", skip_all, fields(pull_request.id = %id))]
pub async fn list_comments(
    conn: &mut Conn,
    id: PullRequestId,
) -> Result<Vec<PullRequestComment>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT comment_id, author_id, author_role, path, line, body, source, review_id, created_at
        FROM pull_request_comments WHERE pull_request_id = $1
        ORDER BY created_at, comment_id LIMIT $2
        ",
        id.as_uuid(),
        MAX_LISTED_COMMENTS,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let wrong = |column| DbError::Corrupt { table: "pull_request_comments", column };
            let author = match (row.author_id, row.author_role) {
                (Some(user), None) => CommentAuthor::Person(UserId::from_uuid(user)),
                (None, Some(role)) => {
                    let role = AgentRole::from_name(&role).ok_or(wrong("author_role"))?;
                    CommentAuthor::Agent(role)
                }
                _ => return Err(wrong("author_id")),
            };
            let line = row.line.map(u32::try_from).transpose();
            Ok(PullRequestComment {
                id: CommentId::from_uuid(row.comment_id),
                author,
                path: row.path,
                line: line.map_err(corrupt_column("pull_request_comments", "line"))?,
                body: row.body,
                source: row.source,
                review: row.review_id.map(ReviewId::from_uuid),
                created_at: row.created_at,
            })
        })
        .collect()
}

/// What a person thinks of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequestReview {
    /// Its id.
    pub id: ReviewId,
    /// Who.
    pub user: UserId,
    /// What.
    pub verdict: ReviewVerdict,
    /// Why.
    pub note: Option<String>,
    /// The commit that was looked at.
    pub commit: String,
    /// When.
    pub created_at: OffsetDateTime,
}

/// Stores a review.
#[tracing::instrument(name = "db.pull_requests.insert_review", skip_all, fields(pull_request.id = %id))]
pub async fn insert_review(
    conn: &mut Conn,
    id: PullRequestId,
    review: &PullRequestReview,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO pull_request_reviews (review_id, pull_request_id, user_id, verdict, note, commit_id, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ",
        review.id.as_uuid(),
        id.as_uuid(),
        review.user.as_uuid(),
        review.verdict.as_str(),
        review.note,
        review.commit,
        review.created_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The reviews, oldest first.
#[tracing::instrument(name = "db.pull_requests.list_reviews", skip_all, fields(pull_request.id = %id))]
pub async fn list_reviews(
    conn: &mut Conn,
    id: PullRequestId,
) -> Result<Vec<PullRequestReview>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT review_id, user_id, verdict, note, commit_id, created_at
        FROM pull_request_reviews WHERE pull_request_id = $1
        ORDER BY created_at, review_id LIMIT $2
        ",
        id.as_uuid(),
        MAX_LISTED_COMMENTS,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(PullRequestReview {
                id: ReviewId::from_uuid(row.review_id),
                user: UserId::from_uuid(row.user_id),
                verdict: ReviewVerdict::from_name(&row.verdict)
                    .ok_or(DbError::Corrupt { table: "pull_request_reviews", column: "verdict" })?,
                note: row.note,
                commit: row.commit_id,
                created_at: row.created_at,
            })
        })
        .collect()
}

/// A task that goes on with a pull request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowUpTask {
    /// What made it be made.
    pub source: String,
    /// Which one it is, from 1.
    pub number: i32,
    /// The task.
    pub task: TaskId,
    /// When it was made.
    pub created_at: OffsetDateTime,
}

/// The follow-ups of a pull request, in order.
#[tracing::instrument(name = "db.pull_requests.list_follow_ups", skip_all, fields(pull_request.id = %id))]
pub async fn list_follow_ups(
    conn: &mut Conn,
    id: PullRequestId,
) -> Result<Vec<FollowUpTask>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT source, number, task_id, created_at FROM pull_request_followups
        WHERE pull_request_id = $1 ORDER BY number
        ",
        id.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    let rows = rows.into_iter().map(|row| FollowUpTask {
        source: row.source,
        number: row.number,
        task: TaskId::from_uuid(row.task_id),
        created_at: row.created_at,
    });
    Ok(rows.collect())
}

/// Notes a follow-up.
#[tracing::instrument(name = "db.pull_requests.insert_follow_up", skip_all, fields(pull_request.id = %id))]
pub async fn insert_follow_up(
    conn: &mut Conn,
    id: PullRequestId,
    follow_up: &FollowUpTask,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO pull_request_followups (pull_request_id, source, number, task_id, created_at)
        VALUES ($1, $2, $3, $4, $5)
        ",
        id.as_uuid(),
        follow_up.source,
        follow_up.number,
        follow_up.task.as_uuid(),
        follow_up.created_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}
