//! What completed tasks cost and how long they took.

use cynode_core::ids::ProjectId;

use crate::{Conn, DbError};

/// What completed tasks cost and how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskStatistics {
    /// Number of tasks.
    pub samples: i64,
    /// Median of their cost.
    pub cost_p50: Option<i64>,
    /// Ninetieth percentile of their cost.
    pub cost_p90: Option<i64>,
    /// Median of their seconds.
    pub seconds_p50: Option<i64>,
    /// Ninetieth percentile of their seconds.
    pub seconds_p90: Option<i64>,
}

/// The statistics of the newest completed tasks of a project, at most so many.
#[tracing::instrument(name = "db.estimates.project_statistics", skip_all, fields(project.id = %project))]
pub async fn project_statistics(
    conn: &mut Conn,
    project: ProjectId,
    max_tasks: i64,
) -> Result<TaskStatistics, DbError> {
    let statistics = sqlx::query_as!(
        TaskStatistics,
        r#"
        WITH newest AS MATERIALIZED (
            SELECT task_id, extract(epoch FROM ended_at - coalesce(started_at, created_at))::double precision AS seconds
            FROM tasks WHERE project_id = $1 AND state = 'completed'
            ORDER BY task_id DESC LIMIT $2
        ), sample AS (
            SELECT seconds, (SELECT coalesce(sum(c.cost_micros), 0) FROM model_calls c
                WHERE c.task_id = newest.task_id)::double precision AS cost
            FROM newest
        )
        SELECT count(*) AS "samples!",
            (percentile_cont(0.5) WITHIN GROUP (ORDER BY cost))::bigint AS cost_p50,
            (percentile_cont(0.9) WITHIN GROUP (ORDER BY cost))::bigint AS cost_p90,
            (percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds))::bigint AS seconds_p50,
            (percentile_cont(0.9) WITHIN GROUP (ORDER BY seconds))::bigint AS seconds_p90
        FROM sample
        "#,
        project.as_uuid(),
        max_tasks,
    );
    Ok(statistics.fetch_one(conn).await?)
}

/// The statistics of the newest completed tasks of all projects, at most so many.
#[tracing::instrument(name = "db.estimates.installation_statistics", skip_all)]
pub async fn installation_statistics(
    conn: &mut Conn,
    max_tasks: i64,
) -> Result<TaskStatistics, DbError> {
    let statistics = sqlx::query_as!(
        TaskStatistics,
        r#"
        WITH newest AS MATERIALIZED (
            SELECT task_id, extract(epoch FROM ended_at - coalesce(started_at, created_at))::double precision AS seconds
            FROM tasks WHERE state = 'completed'
            ORDER BY task_id DESC LIMIT $1
        ), sample AS (
            SELECT seconds, (SELECT coalesce(sum(c.cost_micros), 0) FROM model_calls c
                WHERE c.task_id = newest.task_id)::double precision AS cost
            FROM newest
        )
        SELECT count(*) AS "samples!",
            (percentile_cont(0.5) WITHIN GROUP (ORDER BY cost))::bigint AS cost_p50,
            (percentile_cont(0.9) WITHIN GROUP (ORDER BY cost))::bigint AS cost_p90,
            (percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds))::bigint AS seconds_p50,
            (percentile_cont(0.9) WITHIN GROUP (ORDER BY seconds))::bigint AS seconds_p90
        FROM sample
        "#,
        max_tasks,
    );
    Ok(statistics.fetch_one(conn).await?)
}
