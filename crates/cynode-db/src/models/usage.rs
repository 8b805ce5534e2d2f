//! Usage of models: sums and calls.

use cynode_core::{
    ids::{CallId, ProjectId, TaskId, UserId},
    models::{Basis, CallOutcome, UsageBy, UsageStep},
    paging::PageRequest,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError};

/// Which calls are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageFilter {
    /// Of one user.
    pub user: Option<UserId>,
    /// In one project.
    pub project: Option<ProjectId>,
    /// For one task.
    pub task: Option<TaskId>,
    /// In projects that this user is a member of, or their own.
    pub seen_by: Option<UserId>,
    /// Not before.
    pub from: Option<OffsetDateTime>,
    /// Before.
    pub to: Option<OffsetDateTime>,
}

/// The sum of some calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageTotals {
    /// What they have in common.
    pub key: Option<String>,
    /// How many.
    pub calls: i64,
    /// How many of them were not answered.
    pub failed: i64,
    /// Tokens read.
    pub input_tokens: i64,
    /// Of these, from a cache.
    pub cached_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// What they cost, in millionths.
    pub cost_micros: i64,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCallRecord {
    /// Its id.
    pub id: CallId,
    /// When it was made.
    pub at: OffsetDateTime,
    /// By whom.
    pub user: UserId,
    /// In which project.
    pub project: Option<ProjectId>,
    /// For which task.
    pub task: Option<TaskId>,
    /// In which role.
    pub role: Option<String>,
    /// The trace it belongs to.
    pub trace: String,
    /// Which model was asked for.
    pub model: String,
    /// Who answered.
    pub provider: String,
    /// How it ended.
    pub outcome: CallOutcome,
    /// What went wrong.
    pub error: Option<String>,
    /// What the numbers rest on.
    pub basis: Basis,
    /// Tokens read.
    pub input_tokens: i64,
    /// Of these, from a cache.
    pub cached_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Of these, spent on reasoning.
    pub reasoning_tokens: i64,
    /// What it cost, in millionths.
    pub cost_micros: i64,
    /// How many secrets were replaced in what was asked.
    pub redactions: i32,
    /// Milliseconds until the answer began.
    pub first_byte_ms: Option<i32>,
    /// Milliseconds until it ended.
    pub duration_ms: Option<i32>,
}

/// Sums of calls.
#[tracing::instrument(name = "db.usage.sum_usage", skip_all)]
pub async fn sum_usage(
    conn: &mut Conn,
    filter: UsageFilter,
    by: UsageBy,
) -> Result<Vec<UsageTotals>, DbError> {
    let sums = sqlx::query_as!(
        UsageTotals,
        r#"
        SELECT CASE $7
                WHEN 'model' THEN model
                WHEN 'provider' THEN provider
                WHEN 'user' THEN 'usr_' || replace(user_id::text, '-', '')
                WHEN 'project' THEN 'prj_' || replace(project_id::text, '-', '')
                WHEN 'task' THEN 'tsk_' || replace(task_id::text, '-', '')
                WHEN 'role' THEN agent_role
                ELSE to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') END AS key,
            count(*) AS "calls!", count(*) FILTER (WHERE outcome <> 'answered') AS "failed!",
            sum(input_tokens)::bigint AS "input_tokens!", sum(cached_tokens)::bigint AS "cached_tokens!",
            sum(output_tokens)::bigint AS "output_tokens!", sum(cost_micros)::bigint AS "cost_micros!"
        FROM model_calls c
        WHERE ($1::uuid IS NULL OR user_id = $1) AND ($2::uuid IS NULL OR project_id = $2)
            AND ($3::uuid IS NULL OR task_id = $3)
            AND ($4::uuid IS NULL OR user_id = $4
                OR EXISTS (SELECT FROM project_members m WHERE m.project_id = c.project_id AND m.user_id = $4)
                OR EXISTS (SELECT FROM group_members g JOIN role_bindings b USING (group_id)
                    WHERE g.user_id = $4 AND b.project_id = c.project_id))
            AND ($5::timestamptz IS NULL OR started_at >= $5) AND ($6::timestamptz IS NULL OR started_at < $6)
        GROUP BY 1 ORDER BY 7 DESC, 1 LIMIT 1000
        "#,
        filter.user.map(UserId::as_uuid),
        filter.project.map(ProjectId::as_uuid),
        filter.task.map(TaskId::as_uuid),
        filter.seen_by.map(UserId::as_uuid),
        filter.from,
        filter.to,
        by.as_str(),
    );
    Ok(sums.fetch_all(conn).await?)
}

/// The sum of the calls of one step of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsagePointRecord {
    /// Begin of the step.
    pub at: OffsetDateTime,
    /// What the calls have in common.
    pub key: Option<String>,
    /// Number of calls.
    pub calls: i64,
    /// Number of calls that were not answered.
    pub failed: i64,
    /// Tokens read.
    pub input_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Cost in millionths.
    pub cost_micros: i64,
}

/// Lists the sums of calls by step of time, oldest first. Steps without calls are left out.
#[tracing::instrument(name = "db.usage.list_usage_points", skip_all)]
pub async fn list_usage_points(
    conn: &mut Conn,
    filter: UsageFilter,
    step: UsageStep,
    by: Option<UsageBy>,
    limit: i64,
) -> Result<Vec<UsagePointRecord>, DbError> {
    let points = sqlx::query_as!(
        UsagePointRecord,
        r#"
        SELECT date_trunc($8, started_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS "at!",
            CASE $7
                WHEN 'model' THEN model
                WHEN 'provider' THEN provider
                WHEN 'user' THEN 'usr_' || replace(user_id::text, '-', '')
                WHEN 'project' THEN 'prj_' || replace(project_id::text, '-', '')
                WHEN 'task' THEN 'tsk_' || replace(task_id::text, '-', '')
                WHEN 'role' THEN agent_role
                END AS key,
            count(*) AS "calls!", count(*) FILTER (WHERE outcome <> 'answered') AS "failed!",
            sum(input_tokens)::bigint AS "input_tokens!", sum(output_tokens)::bigint AS "output_tokens!",
            sum(cost_micros)::bigint AS "cost_micros!"
        FROM model_calls c
        WHERE ($1::uuid IS NULL OR user_id = $1) AND ($2::uuid IS NULL OR project_id = $2)
            AND ($3::uuid IS NULL OR task_id = $3)
            AND ($4::uuid IS NULL OR user_id = $4
                OR EXISTS (SELECT FROM project_members m WHERE m.project_id = c.project_id AND m.user_id = $4)
                OR EXISTS (SELECT FROM group_members g JOIN role_bindings b USING (group_id)
                    WHERE g.user_id = $4 AND b.project_id = c.project_id))
            AND ($5::timestamptz IS NULL OR started_at >= $5) AND ($6::timestamptz IS NULL OR started_at < $6)
        GROUP BY 1, 2 ORDER BY 1, 7 DESC, 2 LIMIT $9
        "#,
        filter.user.map(UserId::as_uuid),
        filter.project.map(ProjectId::as_uuid),
        filter.task.map(TaskId::as_uuid),
        filter.seen_by.map(UserId::as_uuid),
        filter.from,
        filter.to,
        by.map_or("all", UsageBy::as_str),
        step.as_str(),
        limit,
    );
    Ok(points.fetch_all(conn).await?)
}

/// Calls, newest first.
#[tracing::instrument(name = "db.usage.list_model_calls", skip_all)]
pub async fn list_model_calls(
    conn: &mut Conn,
    filter: UsageFilter,
    page: PageRequest,
) -> Result<Vec<ModelCallRecord>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT call_id, started_at, user_id, project_id, task_id, agent_role, trace_id, model, provider, outcome, error, basis,
            input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost_micros, redactions, first_byte_ms, duration_ms
        FROM model_calls c
        WHERE ($1::uuid IS NULL OR user_id = $1) AND ($2::uuid IS NULL OR project_id = $2)
            AND ($3::uuid IS NULL OR task_id = $3)
            AND ($4::uuid IS NULL OR user_id = $4
                OR EXISTS (SELECT FROM project_members m WHERE m.project_id = c.project_id AND m.user_id = $4)
                OR EXISTS (SELECT FROM group_members g JOIN role_bindings b USING (group_id)
                    WHERE g.user_id = $4 AND b.project_id = c.project_id))
            AND ($5::timestamptz IS NULL OR started_at >= $5) AND ($6::timestamptz IS NULL OR started_at < $6)
            AND ($7::uuid IS NULL OR call_id < $7)
        ORDER BY call_id DESC LIMIT $8
        ",
        filter.user.map(UserId::as_uuid),
        filter.project.map(ProjectId::as_uuid),
        filter.task.map(TaskId::as_uuid),
        filter.seen_by.map(UserId::as_uuid),
        filter.from,
        filter.to,
        page.after.map(|cursor| cursor.0) as Option<Uuid>,
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let wrong = |column| DbError::Corrupt { table: "model_calls", column };
            Ok(ModelCallRecord {
                id: CallId::from_uuid(row.call_id),
                at: row.started_at,
                user: UserId::from_uuid(row.user_id),
                project: row.project_id.map(ProjectId::from_uuid),
                task: row.task_id.map(TaskId::from_uuid),
                role: row.agent_role,
                trace: row.trace_id,
                model: row.model,
                provider: row.provider,
                outcome: CallOutcome::from_name(&row.outcome).ok_or_else(|| wrong("outcome"))?,
                error: row.error,
                basis: Basis::from_name(&row.basis).ok_or_else(|| wrong("basis"))?,
                input_tokens: row.input_tokens,
                cached_tokens: row.cached_tokens,
                output_tokens: row.output_tokens,
                reasoning_tokens: row.reasoning_tokens,
                cost_micros: row.cost_micros,
                redactions: row.redactions,
                first_byte_ms: row.first_byte_ms,
                duration_ms: row.duration_ms,
            })
        })
        .collect()
}
