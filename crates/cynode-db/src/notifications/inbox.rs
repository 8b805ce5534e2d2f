//! The inbox of a person: everything that waits for a decision which they may make.

use cynode_core::{
    ids::{AgentTokenId, ProjectId, TaskId, UserId},
    notifications::InboxKind,
    roles::UserRole,
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A person's inbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InboxRecords {
    /// The items, those first because of which most stands still.
    pub items: Vec<InboxRecord>,
    /// How many items of each kind there are, beyond the limit too.
    pub counts: Vec<(InboxKind, u32)>,
    /// Whether some policy or the setting of the installation demands four eyes.
    pub four_eyes: bool,
}

/// An item of an inbox, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxRecord {
    /// Kind of the item.
    pub kind: InboxKind,
    /// Id of the wait, the approval, the tool server, the pull request or the task; of the project for an environment.
    pub id: Uuid,
    /// Project that it belongs to, with its slug.
    pub project: Option<(ProjectId, String)>,
    /// Task that it belongs to.
    pub task: Option<InboxTask>,
    /// Version of the environment.
    pub version: Option<u32>,
    /// Tool, origin of the environment, tool server, title of the pull request, or kind of the park.
    pub subject: String,
    /// Question, rules of the call, offered tools, failure of the delivery, or reason of the park.
    pub detail: String,
    /// Plan or environment.
    pub payload: Option<Value>,
    /// Criteria of the task, or warnings about the environment.
    pub notes: Option<Value>,
    /// Call that waits for approval.
    pub call: Option<InboxCall>,
    /// Time at which it began to wait.
    pub since: OffsetDateTime,
    /// Time at which it ends by itself.
    pub until: Option<OffsetDateTime>,
    /// Number of units of work that stand still because of it.
    pub blocked_units: u32,
    /// Number of tasks that stand still because of it.
    pub blocked_tasks: u32,
}

/// The task of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxTask {
    /// Id of the task.
    pub id: TaskId,
    /// Name of the task.
    pub name: String,
    /// User who created the task.
    pub created_by: UserId,
    /// Whether it ended without being completed, so that it can be tried again.
    pub can_retry: bool,
}

/// The call of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxCall {
    /// Agent that calls.
    pub agent: AgentTokenId,
    /// Keyed digest of the arguments.
    pub arguments: [u8; 32],
    /// The arguments, sealed.
    pub sealed: Vec<u8>,
}

/// Rank of a role, as the query compares it.
const fn role_rank(role: Option<UserRole>) -> i32 {
    match role {
        None => 0,
        Some(UserRole::Viewer) => 1,
        Some(UserRole::Operator) => 2,
        Some(UserRole::Admin) => 3,
    }
}

fn corrupt(column: &'static str) -> DbError {
    DbError::Corrupt { table: "inbox", column }
}

/// Notes that a user looks at an item of the inbox, and removes who has not said so for a while. Gives whether the user begins to look.
#[tracing::instrument(name = "db.inbox.touch_viewer", skip_all)]
pub async fn touch_viewer(
    conn: &mut Conn,
    item: &str,
    user: UserId,
    ttl_seconds: i64,
) -> Result<bool, DbError> {
    let began = sqlx::query_scalar!(
        r#"
        INSERT INTO inbox_viewers (item, user_id, seen_at) VALUES ($1, $2, clock_timestamp())
        ON CONFLICT (item, user_id) DO UPDATE SET seen_at = excluded.seen_at
        RETURNING coalesce((
            SELECT old.seen_at < clock_timestamp() - $3::bigint * interval '1 second'
            FROM inbox_viewers old WHERE old.item = $1 AND old.user_id = $2), true) AS "began!"
        "#,
        item,
        user.as_uuid(),
        ttl_seconds,
    )
    .fetch_one(&mut *conn)
    .await?;
    if began {
        sqlx::query!(
            "DELETE FROM inbox_viewers WHERE seen_at < now() - $1::bigint * interval '1 second'",
            ttl_seconds,
        )
        .execute(conn)
        .await?;
    }
    Ok(began)
}

/// A person who looks at an item of the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxViewer {
    /// Id of the item.
    pub item: String,
    /// Display name of the person.
    pub name: String,
}

/// The people who look at items of the inbox now, without this one.
#[tracing::instrument(name = "db.inbox.list_viewers", skip_all)]
pub async fn list_viewers(
    conn: &mut Conn,
    except: UserId,
    ttl_seconds: i64,
) -> Result<Vec<InboxViewer>, DbError> {
    let rows = sqlx::query_as!(
        InboxViewer,
        "
        SELECT v.item, u.display_name AS name FROM inbox_viewers v JOIN users u USING (user_id)
        WHERE v.seen_at >= now() - $2::bigint * interval '1 second' AND v.user_id <> $1
        ORDER BY v.item, u.display_name
        LIMIT 1000
        ",
        except.as_uuid(),
        ttl_seconds,
    );
    Ok(rows.fetch_all(conn).await?)
}

/// Lists what waits for a user with that role in the installation.
#[tracing::instrument(name = "db.inbox.list_inbox", skip_all)]
pub async fn list_inbox(
    conn: &mut Conn,
    user: UserId,
    role: Option<UserRole>,
    now: OffsetDateTime,
    limit: i64,
) -> Result<InboxRecords, DbError> {
    let rows = sqlx::query_as!(
        InboxRow,
        r#"
        WITH visible AS NOT MATERIALIZED (
            SELECT p.project_id, p.slug, GREATEST($2::integer, (
                SELECT max(CASE bound.role WHEN 'admin' THEN 3 WHEN 'operator' THEN 2 ELSE 1 END) FROM (
                    SELECT m.role FROM project_members m WHERE m.project_id = p.project_id AND m.user_id = $1
                    UNION ALL
                    SELECT b.role FROM group_members g JOIN role_bindings b USING (group_id)
                    WHERE g.user_id = $1 AND b.project_id = p.project_id) AS bound)) AS rank
            FROM projects p
            WHERE p.archived_at IS NULL
        ), items AS (
            SELECT CASE w.reason WHEN 'approval' THEN 'plan' ELSE 'question' END AS kind, w.wait_id AS item_id, v.project_id, v.slug,
                t.task_id, NULL::integer AS version, NULL::text AS subject, w.question AS detail,
                CASE w.reason WHEN 'approval' THEN c.state -> 'plan' END AS payload, t.acceptance_criteria AS notes,
                NULL::uuid AS agent_token_id, NULL::bytea AS arguments_digest, NULL::bytea AS arguments_sealed,
                w.opened_at AS since, w.expires_at AS until
            FROM waits w JOIN tasks t USING (task_id) JOIN visible v USING (project_id) LEFT JOIN workflow_checkpoints c USING (task_id)
            WHERE w.resolved_at IS NULL AND w.reason IN ('approval', 'human_input') AND t.state IN ('queued', 'running') AND v.rank >= 2
            UNION ALL
            SELECT 'call', a.approval_id, v.project_id, v.slug, a.task_id, NULL, a.tool, array_to_string(a.rules, ', '), NULL, NULL,
                a.agent_token_id, a.arguments_digest, a.arguments_sealed, a.requested_at, a.expires_at
            FROM approvals a LEFT JOIN visible v USING (project_id)
            WHERE a.state = 'asked' AND a.expires_at > $3 AND agent_is_active(a.agent_token_id, $3)
                AND CASE WHEN a.project_id IS NULL THEN $2 >= 3 ELSE v.rank >= 2 END
            UNION ALL
            SELECT 'environment', e.project_id, v.project_id, v.slug, NULL, e.version, e.origin, NULL, e.spec, e.warnings, NULL, NULL, NULL,
                e.proposed_at, NULL
            FROM project_environments e JOIN visible v USING (project_id)
            WHERE e.state = 'proposed' AND v.rank >= 3
            UNION ALL
            SELECT 'tool_definition', s.server_id, s.project_id, min(v.slug), NULL, NULL, s.name,
                string_agg(o.name || CASE WHEN o.accepted_definition IS NULL THEN ' (new)' ELSE ' (changed)' END, E'\n' ORDER BY o.name),
                NULL, NULL, NULL, NULL, NULL, min(o.seen_at), NULL
            FROM tool_servers s JOIN server_tools o USING (server_id)
            LEFT JOIN LATERAL (SELECT * FROM visible WHERE visible.project_id = s.project_id LIMIT 1) AS v ON true
            WHERE s.enabled AND NOT o.withdrawn AND o.accepted_definition IS DISTINCT FROM o.definition
                AND (s.project_id IS NULL OR v.project_id IS NOT NULL)
                AND ($2 >= 3 OR s.owner_id = $1 AND s.transport #>> '{transport,type}' <> 'stdio' AND CASE s.audience
                    WHEN 'project' THEN v.rank >= 2
                    WHEN 'user' THEN $2 >= 2
                        OR EXISTS (SELECT FROM project_members m JOIN projects p USING (project_id)
                            WHERE m.user_id = $1 AND m.role IN ('operator', 'admin') AND p.archived_at IS NULL)
                        OR EXISTS (SELECT FROM group_members g JOIN role_bindings b USING (group_id) JOIN projects p USING (project_id)
                            WHERE g.user_id = $1 AND b.role IN ('operator', 'admin') AND p.archived_at IS NULL)
                    ELSE false END)
            GROUP BY s.server_id
            UNION ALL
            SELECT 'delivery', r.pull_request_id, v.project_id, v.slug, r.task_id, NULL, r.title, r.failure, NULL, NULL, NULL, NULL, NULL,
                r.updated_at, NULL
            FROM pull_requests r JOIN visible v USING (project_id)
            WHERE r.state = 'failed' AND v.rank >= 2
            UNION ALL
            SELECT 'parked', k.task_id, v.project_id, v.slug, k.task_id, NULL, k.kind, k.reason, NULL, NULL, NULL, NULL, NULL,
                k.parked_at, k.parked_until
            FROM task_parks k JOIN tasks t USING (task_id) JOIN visible v USING (project_id)
            WHERE (k.parked_until IS NULL OR k.parked_until > $3) AND t.state IN ('queued', 'running') AND v.rank >= 2
        )
        SELECT i.kind AS "kind!", i.item_id AS "item_id!", i.project_id AS "project_id?", i.slug AS "slug?", i.task_id AS "task_id?",
            t.name AS "task_name?", t.created_by AS "created_by?", t.state AS "task_state?", i.version AS "version?", i.subject AS "subject?", i.detail AS "detail?",
            i.payload AS "payload?", i.notes AS "notes?", i.agent_token_id AS "agent_token_id?",
            i.arguments_digest AS "arguments_digest?", i.arguments_sealed AS "arguments_sealed?", i.since AS "since!", i.until AS "until?",
            stopped.units AS "blocked_units!", stopped.tasks AS "blocked_tasks!",
            EXISTS (SELECT FROM mandatory_policies WHERE key = 'approvals.four_eyes')
                OR EXISTS (SELECT FROM system_settings WHERE key = 'approvals.four_eyes') AS "four_eyes!",
            (SELECT jsonb_object_agg(c.kind, c.number) FROM (SELECT kind, count(*) AS number FROM items GROUP BY kind) AS c) AS "counts!"
        FROM items i LEFT JOIN tasks t USING (task_id)
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN i.kind = 'plan' AND jsonb_typeof(i.payload -> 'steps') = 'array' THEN jsonb_array_length(i.payload -> 'steps')::bigint
                WHEN i.kind = 'call' THEN num_nonnulls(i.task_id)::bigint
                ELSE (SELECT count(*) FROM work_units u
                    WHERE u.task_id = i.task_id AND u.state IN ('pending', 'dispatched', 'collected'))
                END AS units,
                (
                    WITH RECURSIVE later AS (
                        SELECT i.task_id AS task_id
                        UNION
                        SELECT d.task_id FROM task_dependencies d JOIN later l ON d.depends_on = l.task_id
                    )
                    SELECT count(*) FROM later l JOIN tasks o USING (task_id) WHERE o.state IN ('queued', 'running')
                ) AS tasks
        ) AS stopped
        ORDER BY stopped.units + stopped.tasks DESC, i.since, i.item_id
        LIMIT $4
        "#,
        user.as_uuid(),
        role_rank(role),
        now,
        limit,
    )
    .fetch_all(conn)
    .await?;
    collect_inbox(rows)
}

fn collect_inbox(rows: Vec<InboxRow>) -> Result<InboxRecords, DbError> {
    let mut inbox = InboxRecords::default();
    if let Some(first) = rows.first() {
        inbox.counts = parse_counts(&first.counts)?;
        inbox.four_eyes = first.four_eyes;
    }
    inbox.items = rows.into_iter().map(InboxRecord::try_from).collect::<Result<_, _>>()?;
    Ok(inbox)
}

struct InboxRow {
    kind: String,
    item_id: Uuid,
    project_id: Option<Uuid>,
    slug: Option<String>,
    task_id: Option<Uuid>,
    task_name: Option<String>,
    created_by: Option<Uuid>,
    task_state: Option<String>,
    version: Option<i32>,
    subject: Option<String>,
    detail: Option<String>,
    payload: Option<Value>,
    notes: Option<Value>,
    agent_token_id: Option<Uuid>,
    arguments_digest: Option<Vec<u8>>,
    arguments_sealed: Option<Vec<u8>>,
    since: OffsetDateTime,
    until: Option<OffsetDateTime>,
    blocked_units: i64,
    blocked_tasks: i64,
    four_eyes: bool,
    counts: Value,
}

impl TryFrom<InboxRow> for InboxRecord {
    type Error = DbError;

    fn try_from(row: InboxRow) -> Result<Self, DbError> {
        let can_retry = matches!(row.task_state.as_deref(), Some("failed" | "cancelled"));
        let task = match (row.task_id, row.task_name, row.created_by) {
            (Some(id), Some(name), Some(created_by)) => Some(InboxTask {
                id: TaskId::from_uuid(id),
                name,
                created_by: UserId::from_uuid(created_by),
                can_retry,
            }),
            _ => None,
        };
        let call = match (row.agent_token_id, row.arguments_digest, row.arguments_sealed) {
            (Some(agent), Some(digest), Some(sealed)) => Some(InboxCall {
                agent: AgentTokenId::from_uuid(agent),
                arguments: digest.try_into().map_err(|_| corrupt("arguments_digest"))?,
                sealed,
            }),
            _ => None,
        };
        let version = row.version.map(u32::try_from).transpose();
        Ok(Self {
            kind: InboxKind::from_name(&row.kind).ok_or_else(|| corrupt("kind"))?,
            id: row.item_id,
            project: row.project_id.map(ProjectId::from_uuid).zip(row.slug),
            task,
            version: version.map_err(corrupt_column("inbox", "version"))?,
            subject: row.subject.unwrap_or_default(),
            detail: row.detail.unwrap_or_default(),
            payload: row.payload,
            notes: row.notes,
            call,
            since: row.since,
            until: row.until,
            blocked_units: u32::try_from(row.blocked_units).unwrap_or(u32::MAX),
            blocked_tasks: u32::try_from(row.blocked_tasks).unwrap_or(u32::MAX),
        })
    }
}

fn parse_counts(counts: &Value) -> Result<Vec<(InboxKind, u32)>, DbError> {
    let Value::Object(counts) = counts else { return Err(corrupt("counts")) };
    let counts = counts.iter().map(|(name, number)| {
        let kind = InboxKind::from_name(name).ok_or_else(|| corrupt("kind"))?;
        let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
        Ok((kind, number.unwrap_or(u32::MAX)))
    });
    counts.collect()
}
