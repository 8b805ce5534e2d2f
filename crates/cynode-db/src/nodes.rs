//! Nodes: identity, tokens, placed jobs and job events.

use cynode_core::{
    ids::{InstructionId, JobId, NodeId, ProjectId, RunId, TaskId, UserId},
    names::ProfileName,
    nodes::{JobEvent, JobPhase, NodeJobStatus, NodeReport, NodeState},
    workflow::{instructions::InstructionKind, jobs::JobPayload, plan::UnitKey},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    platform::{error::corrupt_column, keyring::TokenHash},
};

/// A node, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRecord {
    /// Its id.
    pub id: NodeId,
    /// What it is called.
    pub name: String,
    /// The key that it signs with.
    pub public_key: [u8; 32],
    /// Whether it gets jobs.
    pub state: NodeState,
    /// Its labels.
    pub labels: Vec<String>,
    /// What it can do.
    pub report: NodeReport,
    /// When it was given a job last.
    pub turn: i64,
    /// When it joined.
    pub joined_at: OffsetDateTime,
    /// When it was heard of last.
    pub last_seen_at: OffsetDateTime,
    /// How long ago that was, by the database's clock.
    pub silent_ms: i64,
    /// Which process of it may speak; 0 when none ever ran.
    pub generation: i64,
    /// How many jobs it has.
    pub jobs: u32,
}

struct NodeRow {
    node_id: Uuid,
    name: String,
    public_key: Vec<u8>,
    state: String,
    labels: Vec<String>,
    report: Value,
    last_placement: i64,
    joined_at: OffsetDateTime,
    last_seen_at: OffsetDateTime,
    silent_ms: i64,
    generation: i64,
    jobs: i64,
}

impl TryFrom<NodeRow> for NodeRecord {
    type Error = DbError;

    fn try_from(row: NodeRow) -> Result<Self, DbError> {
        Ok(Self {
            id: NodeId::from_uuid(row.node_id),
            name: row.name,
            public_key: row.public_key.try_into().map_err(corrupt_column("nodes", "public_key"))?,
            state: NodeState::from_name(&row.state)
                .ok_or(DbError::Corrupt { table: "nodes", column: "state" })?,
            labels: row.labels,
            report: serde_json::from_value(row.report)
                .map_err(corrupt_column("nodes", "report"))?,
            turn: row.last_placement,
            joined_at: row.joined_at,
            last_seen_at: row.last_seen_at,
            silent_ms: row.silent_ms,
            generation: row.generation,
            jobs: u32::try_from(row.jobs).unwrap_or(u32::MAX),
        })
    }
}

/// A one-time token, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The labels of whoever uses it.
    pub labels: Vec<String>,
    /// Who issued it; `None` is the person at the machine.
    pub issued_by: Option<UserId>,
    /// Who used it.
    pub node: Option<NodeId>,
    /// Whether it is too old.
    pub expired: bool,
}

/// Stores a one-time token.
#[tracing::instrument(name = "db.nodes.insert_join_token", skip_all)]
pub async fn insert_join_token(
    conn: &mut Conn,
    token: &TokenHash,
    labels: &[String],
    by: Option<UserId>,
    now: OffsetDateTime,
    expires_at: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO node_join_tokens (token_hash, labels, issued_by, issued_at, expires_at, hash_key_id)
        VALUES ($1, $2, $3, $4, $5, $6)
        ",
        &token.hash as &[u8],
        labels,
        by.map(UserId::as_uuid),
        now,
        expires_at,
        token.key,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Locks a one-time token until the end of the transaction.
#[tracing::instrument(name = "db.nodes.lock_join_token", skip_all)]
pub async fn lock_join_token(
    conn: &mut Conn,
    hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Option<JoinToken>, DbError> {
    let row = sqlx::query!(
        "SELECT labels, issued_by, node_id, expires_at FROM node_join_tokens WHERE token_hash = ANY ($1) FOR UPDATE",
        hashes as &[[u8; 32]],
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| JoinToken {
        labels: row.labels,
        issued_by: row.issued_by.map(UserId::from_uuid),
        node: row.node_id.map(NodeId::from_uuid),
        expired: row.expires_at <= now,
    }))
}

/// A machine that joins.
#[derive(Clone, Debug)]
pub struct NewNode<'a> {
    /// Its id.
    pub id: NodeId,
    /// What it is called.
    pub name: &'a str,
    /// Its key.
    pub public_key: &'a [u8; 32],
    /// Its labels.
    pub labels: &'a [String],
    /// What it can do.
    pub report: &'a NodeReport,
    /// Who let it.
    pub by: Option<UserId>,
    /// The hashes that its token may be stored under.
    pub token_hashes: &'a [[u8; 32]],
}

/// Stores a node and uses up its token.
#[tracing::instrument(name = "db.nodes.insert_node", skip_all)]
pub async fn insert_node(
    conn: &mut Conn,
    new: NewNode<'_>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        WITH node AS (
            INSERT INTO nodes (node_id, name, public_key, state, labels, report, slots, joined_by, joined_at, last_seen_at)
            VALUES ($1, $2, $3, 'active', $4, $5, $6, $7, $8, clock_timestamp())
            RETURNING node_id
        )
        UPDATE node_join_tokens SET node_id = (SELECT node_id FROM node) WHERE token_hash = ANY ($9)
        ",
        new.id.as_uuid(),
        new.name,
        new.public_key as &[u8],
        new.labels,
        encode_node_report(new.report)?,
        capped_slots(new.report),
        new.by.map(UserId::as_uuid),
        now,
        new.token_hashes as &[[u8; 32]],
    )
    .execute(conn)
    .await?;
    Ok(())
}

fn encode_node_report(report: &NodeReport) -> Result<Value, DbError> {
    serde_json::to_value(report).map_err(corrupt_column("nodes", "report"))
}

fn capped_slots(report: &NodeReport) -> i32 {
    i32::try_from(report.slots.min(1000)).unwrap_or(1000)
}

/// One node; `None` when there is none of that id.
#[tracing::instrument(name = "db.nodes.get_node", skip_all)]
pub async fn get_node(conn: &mut Conn, id: NodeId) -> Result<Option<NodeRecord>, DbError> {
    Ok(select_nodes(conn, Some(id), true).await?.into_iter().next())
}

/// All nodes by name; removed ones only when they are wanted.
#[tracing::instrument(name = "db.nodes.list_nodes", skip_all)]
pub async fn list_nodes(conn: &mut Conn) -> Result<Vec<NodeRecord>, DbError> {
    select_nodes(conn, None, false).await
}

async fn select_nodes(
    conn: &mut Conn,
    id: Option<NodeId>,
    removed: bool,
) -> Result<Vec<NodeRecord>, DbError> {
    let rows = sqlx::query_as!(
        NodeRow,
        r#"
        SELECT node_id, name, public_key, state, labels, report, last_placement, joined_at, last_seen_at, generation,
            (extract(epoch FROM clock_timestamp() - last_seen_at) * 1000)::bigint AS "silent_ms!",
            (SELECT count(*) FROM jobs j WHERE j.node_id = n.node_id AND j.state IN ('queued', 'running')) AS "jobs!"
        FROM nodes n
        WHERE ($1::uuid IS NULL OR node_id = $1) AND ($2 OR state <> 'removed')
        ORDER BY name
        "#,
        id.map(NodeId::as_uuid),
        removed,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(NodeRecord::try_from).collect()
}

/// Changes what people decide about a node.
#[tracing::instrument(name = "db.nodes.update_node", skip_all)]
pub async fn update_node(
    conn: &mut Conn,
    id: NodeId,
    state: NodeState,
    labels: &[String],
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE nodes SET state = $2, labels = $3 WHERE node_id = $1",
        id.as_uuid(),
        state.as_str(),
        labels,
    )
    .execute(&mut *conn)
    .await?;
    if state == NodeState::Removed {
        sqlx::query!("DELETE FROM node_tokens WHERE node_id = $1", id.as_uuid())
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Notes what a node can do now.
#[tracing::instrument(name = "db.nodes.update_node_report", skip_all)]
pub async fn update_node_report(
    conn: &mut Conn,
    id: NodeId,
    report: &NodeReport,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE nodes SET report = $2, slots = $3, last_seen_at = clock_timestamp() WHERE node_id = $1",
        id.as_uuid(),
        encode_node_report(report)?,
        capped_slots(report),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a node was heard of, unless that was noted within the last moments. A time that is still to come is of a clock
/// that was set back.
#[tracing::instrument(name = "db.nodes.touch_node", skip_all)]
pub async fn touch_node(conn: &mut Conn, id: NodeId, noted_ms: i64) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE nodes SET last_seen_at = clock_timestamp()
        WHERE node_id = $1
            AND last_seen_at NOT BETWEEN clock_timestamp() - $2::bigint * interval '1 millisecond' AND clock_timestamp()
        ",
        id.as_uuid(),
        noted_ms,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that several nodes were heard of now.
#[tracing::instrument(name = "db.nodes.touch_nodes", skip_all)]
pub async fn touch_nodes(conn: &mut Conn, ids: &[Uuid]) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE nodes SET last_seen_at = clock_timestamp() WHERE node_id = ANY($1) AND state <> 'removed'",
        ids,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Who asks for a token of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenPurpose {
    /// A process that starts: it takes over from the one before.
    Start,
    /// The process of that generation.
    Renewal(i64),
}

/// Stores a node's token and forgets its old ones. Gives the generation of the process that asked; `None` when another one has
/// started since.
#[tracing::instrument(name = "db.nodes.insert_node_token", skip_all)]
pub async fn insert_node_token(
    conn: &mut Conn,
    id: NodeId,
    token: &TokenHash,
    asker: TokenPurpose,
    now: OffsetDateTime,
    expires_at: OffsetDateTime,
) -> Result<Option<i64>, DbError> {
    let renewed = match asker {
        TokenPurpose::Start => None,
        TokenPurpose::Renewal(generation) => Some(generation),
    };
    let generation = sqlx::query_scalar!(
        "
        UPDATE nodes SET generation = generation + CASE WHEN $2::bigint IS NULL THEN 1 ELSE 0 END
        WHERE node_id = $1 AND ($2::bigint IS NULL OR generation = $2)
        RETURNING generation
        ",
        id.as_uuid(),
        renewed,
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(generation) = generation else { return Ok(None) };
    sqlx::query!(
        "DELETE FROM node_tokens WHERE node_id = $1 AND ($3 OR expires_at < $2)",
        id.as_uuid(),
        now,
        renewed.is_none(),
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "INSERT INTO node_tokens (token_hash, node_id, expires_at, hash_key_id) VALUES ($1, $2, $3, $4)",
        &token.hash as &[u8],
        id.as_uuid(),
        expires_at,
        token.key,
    )
    .execute(conn)
    .await?;
    Ok(Some(generation))
}

/// The node behind a token that works.
#[tracing::instrument(name = "db.nodes.find_node_by_token", skip_all)]
pub async fn find_node_by_token(
    conn: &mut Conn,
    hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Option<(NodeId, NodeState)>, DbError> {
    let row = sqlx::query!(
        "
        SELECT node_id, state FROM node_tokens JOIN nodes USING (node_id)
        WHERE token_hash = ANY ($1) AND expires_at > $2 AND state <> 'removed'
        ",
        hashes as &[[u8; 32]],
        now,
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let state = NodeState::from_name(&row.state);
        let state = state.ok_or(DbError::Corrupt { table: "nodes", column: "state" })?;
        Ok((NodeId::from_uuid(row.node_id), state))
    })
    .transpose()
}

/// Whether a token is still one of its node: a process of the node that started later has ended it otherwise.
#[tracing::instrument(name = "db.nodes.has_node_token", skip_all)]
pub async fn has_node_token(
    conn: &mut Conn,
    id: NodeId,
    hashes: &[[u8; 32]],
) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM node_tokens WHERE token_hash = ANY ($2) AND node_id = $1) AS "found!""#,
        id.as_uuid(),
        hashes as &[[u8; 32]],
    );
    Ok(found.fetch_one(conn).await?)
}

/// Whether there are jobs that must be placed, or placed anew.
#[tracing::instrument(name = "db.nodes.has_jobs_to_place", skip_all)]
pub async fn has_jobs_to_place(conn: &mut Conn, silent_ms: i64) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
                SELECT FROM jobs
                WHERE state = 'queued' AND requires_node AND node_id IS NULL
                    AND NOT EXISTS (SELECT FROM task_parks p
                        WHERE p.task_id = jobs.task_id AND (p.parked_until IS NULL OR p.parked_until > clock_timestamp()))
            )
            OR EXISTS (
                SELECT FROM nodes n JOIN jobs j USING (node_id)
                WHERE j.state = 'queued' AND (n.state <> 'active'
                    OR n.last_seen_at < clock_timestamp() - $1::bigint * interval '1 millisecond')
            ) AS "found!"
        "#,
        silent_ms,
    )
    .fetch_one(conn)
    .await?;
    Ok(found)
}

/// Lets one place jobs at a time, until the end of the transaction. Whoever comes meanwhile waits: what the other did not see is
/// placed then.
pub async fn lock_placement(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('cynode.placement'))")
        .execute(conn)
        .await?;
    Ok(())
}

/// Takes queued jobs back from nodes that get none or were not heard of.
#[tracing::instrument(name = "db.nodes.unplace_stale_jobs", skip_all)]
pub async fn unplace_stale_jobs(conn: &mut Conn, silent_ms: i64) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE jobs j SET node_id = NULL, placed_at = NULL
        FROM nodes n
        WHERE n.node_id = j.node_id AND j.state = 'queued' AND (n.state <> 'active'
            OR n.last_seen_at < clock_timestamp() - $1::bigint * interval '1 millisecond')
        ",
        silent_ms,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Takes queued jobs back from all nodes, those of one project or all, so that they are placed by the policies of now.
#[tracing::instrument(name = "db.nodes.unplace_queued_jobs", skip_all)]
pub async fn unplace_queued_jobs(
    conn: &mut Conn,
    project: Option<ProjectId>,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE jobs j SET node_id = NULL, placed_at = NULL
        WHERE j.state = 'queued' AND j.node_id IS NOT NULL
            AND ($1::uuid IS NULL OR EXISTS (SELECT FROM tasks t WHERE t.task_id = j.task_id AND t.project_id = $1))
        ",
        project.map(ProjectId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A queued job without a node.
#[derive(Clone, Debug, PartialEq)]
pub struct UnplacedJob {
    /// When it was queued.
    pub queued_at: OffsetDateTime,
    /// The job.
    pub job: JobId,
    /// What it is to do.
    pub work: Value,
    /// Its project.
    pub project: ProjectId,
    /// The author of its task.
    pub author: UserId,
    /// The profile that its task names.
    pub profile: Option<String>,
    /// The nodes that worked on what it checks; none for a job that checks nothing.
    pub worked_on: Vec<String>,
}

/// Queued jobs without a node and what they are to do, oldest first, behind a place in the queue. None is locked: most may fit
/// nowhere, and are looked at again and again.
#[tracing::instrument(name = "db.nodes.list_unplaced_jobs", skip_all)]
pub async fn list_unplaced_jobs(
    conn: &mut Conn,
    behind: Option<(OffsetDateTime, JobId)>,
    most: i64,
) -> Result<Vec<UnplacedJob>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT j.queued_at, j.job_id, j.payload -> 'unit' -> 'work' AS "work!", t.project_id, t.created_by, t.profile,
            CASE WHEN j.evidence_id IS NULL THEN '{}'::text[] ELSE ARRAY(
                SELECT DISTINCT n.name FROM jobs w JOIN nodes n USING (node_id)
                WHERE w.task_id = j.task_id AND w.evidence_id IS NULL) END AS "worked_on!: Vec<String>"
        FROM jobs j JOIN tasks t USING (task_id)
        WHERE j.state = 'queued' AND j.requires_node AND j.node_id IS NULL
            AND ($2::timestamptz IS NULL OR (j.queued_at, j.job_id) > ($2, $3::uuid))
            AND NOT EXISTS (SELECT FROM task_parks p
                WHERE p.task_id = j.task_id AND (p.parked_until IS NULL OR p.parked_until > clock_timestamp()))
        ORDER BY j.queued_at, j.job_id
        LIMIT $1
        "#,
        most,
        behind.map(|(queued_at, _)| queued_at),
        behind.map(|(_, job)| job.as_uuid()),
    )
    .fetch_all(conn)
    .await?;
    let rows = rows.into_iter().map(|row| UnplacedJob {
        queued_at: row.queued_at,
        job: JobId::from_uuid(row.job_id),
        work: row.work,
        project: ProjectId::from_uuid(row.project_id),
        author: UserId::from_uuid(row.created_by),
        profile: row.profile,
        worked_on: row.worked_on,
    });
    Ok(rows.collect())
}

/// Places a job; the node has had its turn. Gives the number of the turn; `None` when the job is not there to be placed any more, or
/// somebody is about to change it: whoever places many waits for nobody.
#[tracing::instrument(name = "db.nodes.place_job", skip_all, fields(job.id = %job, node.id = %node))]
pub async fn place_job(conn: &mut Conn, job: JobId, node: NodeId) -> Result<Option<i64>, DbError> {
    let turn = sqlx::query_scalar!(
        r#"
        WITH free AS MATERIALIZED (
            SELECT job_id FROM jobs
            WHERE job_id = $1 AND state = 'queued' AND node_id IS NULL
            FOR UPDATE SKIP LOCKED
        ), placed AS (
            UPDATE jobs j SET node_id = $2, placed_at = clock_timestamp() FROM free WHERE j.job_id = free.job_id RETURNING j.job_id
        )
        UPDATE nodes SET last_placement = nextval('node_placements')
        WHERE node_id = $2 AND EXISTS (SELECT FROM placed)
        RETURNING last_placement AS "last_placement!"
        "#,
        job.as_uuid(),
        node.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(turn)
}

/// A job that a node has claimed, with what its assignment is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedNodeJob {
    /// The job.
    pub job: JobId,
    /// Its task.
    pub task: TaskId,
    /// The run.
    pub run: RunId,
    /// The project.
    pub project: ProjectId,
    /// Who the task is for.
    pub user: UserId,
    /// The unit.
    pub unit: UnitKey,
    /// Which attempt.
    pub attempt: u32,
    /// The token of the claim.
    pub fencing_token: i64,
    /// What is to be done.
    pub payload: JobPayload,
    /// Commits that it can start from: of an earlier attempt, else of the units before it.
    pub bases: Vec<String>,
    /// Whether an earlier attempt of the unit left a commit.
    pub again: bool,
    /// How long it may take from now.
    pub seconds_left: i64,
    /// The trace.
    pub trace_id: String,
}

/// Gives a node the oldest jobs that were placed on it: one statement. Claimed again under the same id, the same jobs are
/// given and no others.
#[tracing::instrument(name = "db.nodes.claim_node_jobs", skip_all, fields(node.id = %node))]
pub async fn claim_node_jobs(
    conn: &mut Conn,
    node: NodeId,
    claim_id: Uuid,
    most: i64,
    ttl_ms: i64,
) -> Result<Vec<ClaimedNodeJob>, DbError> {
    let rows = sqlx::query!(
        r#"
        WITH before AS MATERIALIZED (
            SELECT job_id FROM jobs WHERE claim_id = $3 AND worker = $2 AND state = 'running'
        ), free AS MATERIALIZED (
            SELECT job_id FROM jobs
            WHERE state = 'queued' AND node_id = $1 AND NOT EXISTS (SELECT FROM before)
                AND NOT EXISTS (SELECT FROM task_parks p
                    WHERE p.task_id = jobs.task_id AND (p.parked_until IS NULL OR p.parked_until > clock_timestamp()))
            ORDER BY queued_at
            LIMIT $4
            FOR UPDATE SKIP LOCKED
        ), claimed AS (
            UPDATE jobs j
            SET state = 'running', worker = $2, claim_id = $3, fencing_token = fencing_token + 1, phase = 'preparing',
                started_at = clock_timestamp(),
                lease_expires_at = clock_timestamp() + $5::bigint * interval '1 millisecond',
                deadline_at = clock_timestamp() + (payload ->> 'timeout_seconds')::bigint * interval '1 second'
            FROM free WHERE j.job_id = free.job_id
            RETURNING j.*
        ), given AS (
            SELECT * FROM claimed
            UNION ALL
            SELECT j.* FROM jobs j JOIN before USING (job_id)
        )
        SELECT g.job_id AS "job_id!", g.task_id AS "task_id!", r.run_id, t.project_id, t.created_by,
            coalesce(u.key, 'base-check') AS "key!", g.attempt AS "attempt!", g.fencing_token AS "fencing_token!", g.payload AS "payload!",
            greatest(extract(epoch FROM g.deadline_at - clock_timestamp())::bigint, 1) AS "seconds_left!",
            g.trace_id AS "trace_id!",
            CASE WHEN g.evidence_id IS NOT NULL THEN array_remove(ARRAY[g.payload -> 'unit' ->> 'commit'], NULL) ELSE coalesce(
                (SELECT ARRAY[old.result ->> 'commit'] FROM jobs old
                    WHERE old.unit_id = g.unit_id AND old.result ->> 'commit' IS NOT NULL
                    ORDER BY old.attempt DESC LIMIT 1),
                -- In the order of the plan: so they are put together.
                ARRAY(SELECT brought.commit FROM (
                    SELECT DISTINCT ON (d.unit_id) d.position, done.result ->> 'commit' AS commit
                    FROM work_units d JOIN jobs done ON done.unit_id = d.unit_id
                    WHERE d.task_id = g.task_id AND d.key = ANY (u.depends_on) AND done.state = 'succeeded'
                        AND done.result ->> 'commit' IS NOT NULL
                    ORDER BY d.unit_id, done.attempt DESC) AS brought
                    ORDER BY brought.position)
            ) END AS "bases!: Vec<String>",
            g.evidence_id IS NULL AND (
                EXISTS (SELECT FROM jobs old WHERE old.unit_id = g.unit_id AND old.result ->> 'commit' IS NOT NULL)
                OR (u.depends_on = '{}' AND EXISTS (SELECT FROM task_continuations c WHERE c.task_id = g.task_id))) AS "again!"
        FROM given g
        LEFT JOIN work_units u ON u.unit_id = g.unit_id
        JOIN tasks t ON t.task_id = g.task_id
        JOIN workflow_runs r ON r.task_id = g.task_id
        ORDER BY g.queued_at, g.job_id
        "#,
        node.as_uuid(),
        node.to_string(),
        claim_id,
        most,
        ttl_ms,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(ClaimedNodeJob {
                job: JobId::from_uuid(row.job_id),
                task: TaskId::from_uuid(row.task_id),
                run: RunId::from_uuid(row.run_id),
                project: ProjectId::from_uuid(row.project_id),
                user: UserId::from_uuid(row.created_by),
                unit: row.key.try_into().map_err(corrupt_column("work_units", "key"))?,
                attempt: u32::try_from(row.attempt).map_err(corrupt_column("jobs", "attempt"))?,
                fencing_token: row.fencing_token,
                payload: serde_json::from_value(row.payload)
                    .map_err(corrupt_column("jobs", "payload"))?,
                bases: row.bases,
                again: row.again,
                seconds_left: row.seconds_left,
                trace_id: row.trace_id,
            })
        })
        .collect()
}

/// Notes the version of the profile that a job was assigned with.
#[tracing::instrument(name = "db.nodes.set_job_profile", skip_all, fields(job.id = %job))]
pub async fn set_job_profile(
    conn: &mut Conn,
    job: JobId,
    profile: &ProfileName,
    version: u32,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE jobs SET profile = $2, profile_version = $3 WHERE job_id = $1",
        job.as_uuid(),
        profile.as_str(),
        i32::try_from(version).unwrap_or(i32::MAX),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes the commit that a job starts from.
#[tracing::instrument(name = "db.nodes.set_job_base", skip_all, fields(job.id = %job))]
pub async fn set_job_base(
    conn: &mut Conn,
    job: JobId,
    base: Option<&str>,
    merge: &[String],
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE jobs SET base_commit = $2, merge_commits = $3 WHERE job_id = $1",
        job.as_uuid(),
        base,
        merge
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Gives the jobs that a node names more time, and notes how far they are: one statement. Gives those that it still has.
#[tracing::instrument(name = "db.nodes.renew_job_leases", skip_all, fields(node.id = %node))]
pub async fn renew_job_leases(
    conn: &mut Conn,
    node: NodeId,
    held: &[NodeJobStatus],
    ttl_ms: i64,
) -> Result<Vec<JobId>, DbError> {
    let ids: Vec<_> = held.iter().map(|job| job.job_id.as_uuid()).collect();
    let tokens: Vec<_> = held.iter().map(|job| job.fencing_token).collect();
    let phases: Vec<_> = held.iter().map(|job| job_phase_name(job.phase).to_owned()).collect();
    let kept = sqlx::query_scalar!(
        "
        WITH seen AS (
            UPDATE nodes SET last_seen_at = clock_timestamp() WHERE node_id = $1
        )
        UPDATE jobs j
        SET lease_expires_at = least(clock_timestamp() + $6::bigint * interval '1 millisecond', deadline_at),
            phase = held.phase
        FROM unnest($3::uuid[], $4::bigint[], $5::text[]) AS held (job_id, fencing_token, phase)
        WHERE j.job_id = held.job_id AND j.fencing_token = held.fencing_token AND j.worker = $2 AND j.state = 'running'
            AND j.deadline_at > clock_timestamp()
        RETURNING j.job_id
        ",
        node.as_uuid(),
        node.to_string(),
        &ids,
        &tokens,
        &phases,
        ttl_ms,
    )
    .fetch_all(conn)
    .await?;
    Ok(kept.into_iter().map(JobId::from_uuid).collect())
}

const fn job_phase_name(phase: JobPhase) -> &'static str {
    match phase {
        JobPhase::Preparing => "preparing",
        JobPhase::SettingUp => "setting_up",
        JobPhase::Working => "working",
        JobPhase::Asking => "asking",
        JobPhase::Finishing => "finishing",
    }
}

/// What agents at work are to be told and were not yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingInstruction {
    /// The instruction.
    pub id: InstructionId,
    /// The job.
    pub job: JobId,
    /// What kind.
    pub kind: InstructionKind,
    /// The words.
    pub text: Option<String>,
}

/// What the agents of these jobs were not told yet, oldest first: what their task was told since they began, unless it is for another
/// job, and words to go on with that came when an agent of an earlier attempt at the same unit might have heard them and did not.
#[tracing::instrument(name = "db.nodes.list_pending_instructions", skip_all)]
pub async fn list_pending_instructions(
    conn: &mut Conn,
    jobs: &[JobId],
) -> Result<Vec<PendingInstruction>, DbError> {
    let jobs: Vec<_> = jobs.iter().map(|job| job.as_uuid()).collect();
    let rows = sqlx::query!(
        "
        SELECT i.instruction_id, j.job_id, i.kind, i.text
        FROM jobs j JOIN task_instructions i USING (task_id)
        WHERE j.job_id = ANY ($1) AND j.state = 'running' AND (i.job_id IS NULL OR i.job_id = j.job_id)
            AND (i.issued_at >= j.started_at OR (
                i.kind = 'resume' AND i.text IS NOT NULL AND i.job_id IS NULL
                AND j.payload #>> '{unit,work,worker,kind}' IN ('acp', 'scripted')
                AND EXISTS (SELECT FROM jobs earlier WHERE earlier.unit_id = j.unit_id AND earlier.attempt < j.attempt
                    AND earlier.started_at <= i.issued_at)
                AND NOT EXISTS (SELECT FROM jobs agent JOIN instruction_deliveries heard ON heard.job_id = agent.job_id
                    WHERE agent.unit_id = j.unit_id AND heard.instruction_id = i.instruction_id)))
            AND NOT EXISTS (SELECT FROM instruction_deliveries d
                WHERE d.job_id = j.job_id AND d.instruction_id = i.instruction_id)
        ORDER BY i.number
        LIMIT 200
        ",
        &jobs,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(PendingInstruction {
                id: InstructionId::from_uuid(row.instruction_id),
                job: JobId::from_uuid(row.job_id),
                kind: InstructionKind::from_name(&row.kind)
                    .ok_or(DbError::Corrupt { table: "task_instructions", column: "kind" })?,
                text: row.text,
            })
        })
        .collect()
}

/// Notes which agent was told which instruction.
#[tracing::instrument(name = "db.nodes.mark_instructions_delivered", skip_all)]
pub async fn mark_instructions_delivered(
    conn: &mut Conn,
    told: &[&PendingInstruction],
) -> Result<(), DbError> {
    let jobs: Vec<_> = told.iter().map(|told| told.job.as_uuid()).collect();
    let instructions: Vec<_> = told.iter().map(|told| told.id.as_uuid()).collect();
    sqlx::query!(
        "
        INSERT INTO instruction_deliveries (job_id, instruction_id, delivered_at)
        SELECT job_id, instruction_id, clock_timestamp()
        FROM unnest($1::uuid[], $2::uuid[]) AS told (job_id, instruction_id)
        ON CONFLICT DO NOTHING
        ",
        &jobs,
        &instructions,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A running job of a node, locked until the end of the transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningNodeJob {
    /// Its task.
    pub task: TaskId,
    /// Its project.
    pub project: ProjectId,
    /// The number of the event that is expected next.
    pub events_next: i64,
    /// The commit it was told to start from.
    pub base: Option<String>,
    /// The commits that were put together with it.
    pub merge: Vec<String>,
    /// Whether that is what an earlier attempt of the unit left.
    pub again: bool,
    /// What is to be done.
    pub work: Value,
    /// What the plan says of the unit.
    pub unit: Value,
}

/// The job, if the node has it under that claim.
#[tracing::instrument(name = "db.nodes.lock_running_job", skip_all, fields(job.id = %job))]
pub async fn lock_running_job(
    conn: &mut Conn,
    node: NodeId,
    job: JobId,
    fencing_token: i64,
) -> Result<Option<RunningNodeJob>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT j.task_id, t.project_id, j.next_event_number, j.base_commit, j.merge_commits,
            EXISTS (SELECT FROM jobs old WHERE old.unit_id = j.unit_id AND old.attempt < j.attempt
                AND old.result ->> 'commit' = j.base_commit)
                OR EXISTS (SELECT FROM task_continuations c WHERE c.task_id = j.task_id AND c.start_commit = j.base_commit) AS "again!",
            j.payload -> 'unit' -> 'work' AS "work!", j.payload -> 'unit' AS "unit!"
        FROM jobs j JOIN tasks t USING (task_id)
        WHERE j.job_id = $1 AND j.worker = $2 AND j.fencing_token = $3 AND j.state = 'running'
        FOR UPDATE OF j
        "#,
        job.as_uuid(),
        node.to_string(),
        fencing_token,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| RunningNodeJob {
        task: TaskId::from_uuid(row.task_id),
        project: ProjectId::from_uuid(row.project_id),
        events_next: row.next_event_number,
        base: row.base_commit,
        merge: row.merge_commits,
        again: row.again,
        work: row.work,
        unit: row.unit,
    }))
}

/// What a job may read of its project's repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSources {
    /// The project.
    pub project: ProjectId,
    /// The commit that it starts from, those that are merged into it, and the one that pinned files are taken from.
    pub commits: Vec<String>,
}

/// What a running job of the node may read, under whatever claim.
pub async fn sources_of_running_job(
    conn: &mut Conn,
    node: NodeId,
    job: JobId,
) -> Result<Option<JobSources>, DbError> {
    let found = sqlx::query!(
        r#"
        SELECT t.project_id, array_remove(ARRAY[j.base_commit, j.payload -> 'unit' -> 'work' -> 'worker' ->> 'pinned_from']
            || j.merge_commits, NULL) AS "commits!: Vec<String>"
        FROM jobs j JOIN tasks t USING (task_id)
        WHERE j.job_id = $1 AND j.worker = $2 AND j.state = 'running'
        "#,
        job.as_uuid(),
        node.to_string(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(found.map(|row| JobSources {
        project: ProjectId::from_uuid(row.project_id),
        commits: row.commits,
    }))
}

/// Extends the deadline of a claimed job by the time of its set-up. A repeat gives the same deadline. Returns the seconds that are left,
/// if the claim stands.
#[tracing::instrument(name = "db.nodes.extend_job_deadline", skip_all, fields(job.id = %job))]
pub async fn extend_job_deadline(
    conn: &mut Conn,
    job: JobId,
    fencing_token: i64,
    setup_seconds: u32,
) -> Result<Option<i64>, DbError> {
    let left = sqlx::query_scalar!(
        r#"
        UPDATE jobs
        SET deadline_at = started_at + ((payload ->> 'timeout_seconds')::bigint + $3) * interval '1 second'
        WHERE job_id = $1 AND fencing_token = $2 AND state = 'running'
        RETURNING greatest(extract(epoch FROM deadline_at - clock_timestamp())::bigint, 1) AS "left!"
        "#,
        job.as_uuid(),
        fencing_token,
        i64::from(setup_seconds),
    );
    Ok(left.fetch_optional(conn).await?)
}

/// Stores events of a job that [`lock_running_job`] has locked.
#[tracing::instrument(name = "db.nodes.append_job_events", skip_all, fields(job.id = %job))]
pub async fn append_job_events(
    conn: &mut Conn,
    job: JobId,
    held: &RunningNodeJob,
    events: &[JobEvent],
) -> Result<(), DbError> {
    let (mut at_ms, mut names, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for event in events {
        let told =
            serde_json::to_value(&event.data).map_err(corrupt_column("job_events", "data"))?;
        at_ms.push(i64::try_from(event.at_ms).unwrap_or(i64::MAX));
        names.push(told["event"].as_str().unwrap_or_default().to_owned());
        data.push(told["data"].clone());
    }
    sqlx::query!(
        "
        WITH told AS (
            INSERT INTO job_events (job_id, task_id, number, recorded_at, elapsed_ms, event, data)
            SELECT $1, $2, $3 + n - 1, clock_timestamp(), elapsed_ms, event, data
            FROM unnest($4::bigint[], $5::text[], $6::jsonb[]) WITH ORDINALITY AS e (elapsed_ms, event, data, n)
        )
        UPDATE jobs SET next_event_number = next_event_number + cardinality($4) WHERE job_id = $1
        ",
        job.as_uuid(),
        held.task.as_uuid(),
        held.events_next,
        &at_ms,
        &names,
        &data,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// An event of a job, as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct JobEventRecord {
    /// Its number.
    pub number: i64,
    /// When it came.
    pub recorded_at: OffsetDateTime,
    /// Milliseconds since the claim.
    pub elapsed_ms: i64,
    /// What kind.
    pub event: String,
    /// What.
    pub data: Value,
    /// The profile that the job was assigned with; none for one that was assigned before there were profiles.
    pub profile: Option<String>,
    /// The trace of the job.
    pub trace_id: String,
}

/// Events of a job, from a number on; only those with a text that contains `contains`, in any case.
#[tracing::instrument(name = "db.nodes.list_job_events", skip_all, fields(job.id = %job))]
pub async fn list_job_events(
    conn: &mut Conn,
    job: JobId,
    from: i64,
    contains: Option<&str>,
    most: i64,
) -> Result<Vec<JobEventRecord>, DbError> {
    let rows = sqlx::query_as!(
        JobEventRecord,
        "
        SELECT e.number, e.recorded_at, e.elapsed_ms, e.event, e.data, j.profile, j.trace_id
        FROM job_events e JOIN jobs j USING (job_id)
        WHERE e.job_id = $1 AND e.number >= $2
            AND ($4::text IS NULL OR EXISTS (
                SELECT FROM jsonb_path_query(e.data, 'strict $.**') AS inner_value
                WHERE jsonb_typeof(inner_value) = 'string' AND position(lower($4) IN lower(inner_value #>> '{}')) > 0))
        ORDER BY e.number
        LIMIT $3
        ",
        job.as_uuid(),
        from,
        most,
        contains,
    );
    Ok(rows.fetch_all(conn).await?)
}

/// Forgets events that came before, at most so many. Gives how many there were.
#[tracing::instrument(name = "db.nodes.prune_job_events", skip_all)]
pub async fn prune_job_events(
    conn: &mut Conn,
    before: OffsetDateTime,
    most: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM job_events e USING (
            SELECT job_id, number, recorded_at FROM job_events WHERE recorded_at < $1 LIMIT $2
        ) AS old
        WHERE e.job_id = old.job_id AND e.number = old.number AND e.recorded_at = old.recorded_at
        ",
        before,
        most,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}
