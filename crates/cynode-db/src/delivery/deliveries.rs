//! Deliveries: the commits made from a task's units.

use cynode_core::{
    delivery::CommitAuthor,
    ids::{DeliveryId, PullRequestId, TaskId},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A delivery, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryRecord {
    /// Its id.
    pub id: DeliveryId,
    /// The task.
    pub task: TaskId,
    /// The pull request; none when the work changed nothing.
    pub pull_request: Option<PullRequestId>,
    /// The verified commit of the work.
    pub source: String,
    /// The commits of the units, all of which are in it.
    pub covers: Vec<String>,
    /// What the commit follows.
    pub parent: String,
    /// What is in it.
    pub tree: String,
    /// Its first line.
    pub title: String,
    /// The rest of what it says.
    pub body: String,
    /// Who it is by.
    pub author: CommitAuthor,
    /// The commit, once it was delivered.
    pub commit: Option<String>,
    /// When it was begun; the commit's own time.
    pub created_at: OffsetDateTime,
    /// When it was done.
    pub delivered_at: Option<OffsetDateTime>,
}

struct DeliveryRow {
    delivery_id: Uuid,
    task_id: Uuid,
    pull_request_id: Option<Uuid>,
    source: String,
    unit_commits: Vec<String>,
    parent: String,
    tree: String,
    title: String,
    body: String,
    author: String,
    commit_id: Option<String>,
    created_at: OffsetDateTime,
    delivered_at: Option<OffsetDateTime>,
}

impl TryFrom<DeliveryRow> for DeliveryRecord {
    type Error = DbError;

    fn try_from(row: DeliveryRow) -> Result<Self, DbError> {
        Ok(Self {
            id: DeliveryId::from_uuid(row.delivery_id),
            task: TaskId::from_uuid(row.task_id),
            pull_request: row.pull_request_id.map(PullRequestId::from_uuid),
            source: row.source,
            covers: row.unit_commits,
            parent: row.parent,
            tree: row.tree,
            title: row.title,
            body: row.body,
            author: row.author.parse().map_err(corrupt_column("deliveries", "author"))?,
            commit: row.commit_id,
            created_at: row.created_at,
            delivered_at: row.delivered_at,
        })
    }
}

/// The commits that the units of a task which are done left, in no order.
#[tracing::instrument(name = "db.deliveries.list_unit_commits", skip_all, fields(task.id = %task))]
pub async fn list_unit_commits(conn: &mut Conn, task: TaskId) -> Result<Vec<String>, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT DISTINCT commit AS "commit!" FROM (
            SELECT DISTINCT ON (u.unit_id) j.result ->> 'commit' AS commit
            FROM work_units u JOIN jobs j USING (unit_id)
            WHERE u.task_id = $1 AND u.state = 'done' AND j.state = 'succeeded' AND j.requires_node
                AND j.result ->> 'commit' IS NOT NULL
            ORDER BY u.unit_id, j.attempt DESC
        ) AS newest
        ORDER BY 1
        "#,
        task.as_uuid(),
    );
    Ok(found.fetch_all(conn).await?)
}

/// Stores a delivery.
#[tracing::instrument(name = "db.deliveries.insert_delivery", skip_all, fields(task.id = %new.task))]
pub async fn insert_delivery(conn: &mut Conn, new: &DeliveryRecord) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO deliveries (delivery_id, task_id, pull_request_id, source, unit_commits, parent, tree, title, body, author, commit_id,
            created_at, delivered_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
        ",
        new.id.as_uuid(),
        new.task.as_uuid(),
        new.pull_request.map(PullRequestId::as_uuid),
        new.source,
        &new.covers,
        new.parent,
        new.tree,
        new.title,
        new.body,
        new.author.to_string(),
        new.commit,
        new.created_at,
        new.delivered_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The delivery of a task's work at a commit.
#[tracing::instrument(name = "db.deliveries.find_delivery_by_source", skip_all, fields(task.id = %task))]
pub async fn find_delivery_by_source(
    conn: &mut Conn,
    task: TaskId,
    source: &str,
) -> Result<Option<DeliveryRecord>, DbError> {
    sqlx::query_as!(
        DeliveryRow,
        "
        SELECT delivery_id, task_id, pull_request_id, source, unit_commits, parent, tree, title, body, author, commit_id, created_at,
            delivered_at
        FROM deliveries WHERE task_id = $1 AND source = $2
        ",
        task.as_uuid(),
        source,
    )
    .fetch_optional(conn)
    .await?
    .map(DeliveryRecord::try_from)
    .transpose()
}

/// The deliveries of a pull request, oldest first; at most the last is under way.
#[tracing::instrument(name = "db.deliveries.list_pull_request_deliveries", skip_all)]
pub async fn list_pull_request_deliveries(
    conn: &mut Conn,
    id: PullRequestId,
) -> Result<Vec<DeliveryRecord>, DbError> {
    sqlx::query_as!(
        DeliveryRow,
        "
        SELECT delivery_id, task_id, pull_request_id, source, unit_commits, parent, tree, title, body, author, commit_id, created_at,
            delivered_at
        FROM deliveries WHERE pull_request_id = $1 ORDER BY created_at, delivery_id
        ",
        id.as_uuid(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(DeliveryRecord::try_from)
    .collect()
}

/// Notes that a delivery was made, or that it was found to have these commits in it.
#[tracing::instrument(name = "db.deliveries.mark_delivery_done", skip_all, fields(delivery.id = %id))]
pub async fn mark_delivery_done(
    conn: &mut Conn,
    id: DeliveryId,
    commit: &str,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE deliveries SET commit_id = $2, delivered_at = coalesce(delivered_at, $3)
        WHERE delivery_id = $1 AND (commit_id IS NULL OR commit_id = $2)
        ",
        id.as_uuid(),
        commit,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes which commits of units are in a delivery.
#[tracing::instrument(name = "db.deliveries.set_covered_commits", skip_all, fields(delivery.id = %id))]
pub async fn set_covered_commits(
    conn: &mut Conn,
    id: DeliveryId,
    covers: &[String],
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE deliveries SET unit_commits = $2 WHERE delivery_id = $1 AND unit_commits <> $2",
        id.as_uuid(),
        covers,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Forgets a delivery that can never be made because what it builds on is gone.
#[tracing::instrument(name = "db.deliveries.delete_unfinished_delivery", skip_all, fields(delivery.id = %id))]
pub async fn delete_unfinished_delivery(conn: &mut Conn, id: DeliveryId) -> Result<(), DbError> {
    sqlx::query!(
        "DELETE FROM deliveries WHERE delivery_id = $1 AND delivered_at IS NULL",
        id.as_uuid()
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether everything that a task's units brought was delivered to a pull request that is not closed, or changes nothing.
#[tracing::instrument(name = "db.deliveries.is_fully_delivered", skip_all, fields(task.id = %task))]
pub async fn is_fully_delivered(
    conn: &mut Conn,
    task: TaskId,
    commits: &[String],
) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM deliveries d LEFT JOIN pull_requests p USING (pull_request_id)
            WHERE d.task_id = $1 AND d.delivered_at IS NOT NULL AND d.unit_commits @> $2
                AND (p.pull_request_id IS NULL OR p.state IN ('open', 'merged'))
        ) AS "found!"
        "#,
        task.as_uuid(),
        commits,
    );
    Ok(found.fetch_one(conn).await?)
}
