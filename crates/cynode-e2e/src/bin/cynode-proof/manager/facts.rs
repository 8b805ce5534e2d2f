//! Observable facts about an ended task, to compare two runs.

use cynode_core::ids::{JobId, ProjectId, TaskId};
use serde_json::Value;
use sqlx::PgPool;
use uuid::Uuid;

use super::stage::Stage;
use crate::{chaos::Facts, nodes::scene::git};

pub(super) fn raw(task: &str) -> Uuid {
    task.parse::<TaskId>().unwrap().as_uuid()
}

/// Facts from the database, with their number of occurrences. Steps that only wait are not compared, since they depend on
/// timing, and neither is the number of attempts of a handoff, which a kill changes. The trace of a plan ranks tools by words,
/// and the task's name is among them.
const FACTS: &str = "
    SELECT 'task ' || state AS fact, 1::bigint AS times FROM tasks WHERE task_id = $1
    UNION ALL
    SELECT 'run ' || coalesce(outcome, 'open') || ', retries ' || retries_used, 1 FROM workflow_runs WHERE task_id = $1
    UNION ALL
    SELECT 'unit ' || key || ' ' || state || ', attempts ' || attempts || ', found ' || findings::text, 1
    FROM work_units WHERE task_id = $1
    UNION ALL
    SELECT 'job ' || u.key || ' ' || j.attempt || ' ' || j.state
        || CASE WHEN j.collected_at IS NULL THEN ' left' ELSE ' collected' END, count(*)
    FROM jobs j JOIN work_units u USING (unit_id) WHERE j.task_id = $1 AND j.evidence_id IS NULL GROUP BY 1
    UNION ALL
    SELECT 'evidence of ' || u.key || ' ' || e.attempt || ' ' || e.state || ': ' || e.checks::text, count(*)
    FROM evidence e JOIN work_units u USING (unit_id) WHERE e.task_id = $1 GROUP BY 1
    UNION ALL
    SELECT 'check ' || r.number || ' of ' || u.key || ', round ' || r.round || ': ' || r.passed || ' ' || coalesce(r.exit_code, -1), count(*)
    FROM evidence_results r JOIN evidence e USING (evidence_id) JOIN work_units u USING (unit_id) WHERE e.task_id = $1 GROUP BY 1
    UNION ALL
    SELECT 'step ' || step || ' ' || verdict || ' ' || coalesce(unit_key, '') || ' ' || coalesce(note, ''), count(*)
    FROM workflow_transitions WHERE task_id = $1 AND verdict <> 'wait' GROUP BY 1
    UNION ALL
    SELECT 'event ' || kind, count(*) FROM events WHERE task_id = $1 AND kind NOT IN ('preference.set', 'job.changed') GROUP BY 1
    UNION ALL
    SELECT 'steps out of order', max(sequence) - count(*) FROM workflow_transitions WHERE task_id = $1
    UNION ALL
    SELECT 'steps stored twice', count(*) - count(DISTINCT sequence) FROM workflow_transitions WHERE task_id = $1
    UNION ALL
    SELECT 'waits left open', count(*) FROM waits WHERE task_id = $1 AND resolved_at IS NULL
    UNION ALL
    SELECT 'leases left', count(*) FROM workflow_leases WHERE task_id = $1 AND expires_at > clock_timestamp()
    UNION ALL
    SELECT 'summary ' || regexp_replace(coalesce(state ->> 'summary', 'none'), 'Pull request #[0-9]+', 'Pull request of its own'), 1
    FROM workflow_checkpoints WHERE task_id = $1
    UNION ALL
    SELECT 'handoff ' || kind || ' ' || state || ' ' || replace(coalesce((answer - 'trace' - 'pull_request')::text, 'unanswered'), $2, 'this task')
        || CASE WHEN answer ? 'pull_request' THEN ' with a pull request' ELSE '' END, count(*)
    FROM handoffs WHERE task_id = $1 GROUP BY 1
    UNION ALL
    SELECT 'answers that no run took', count(*) FROM handoffs WHERE task_id = $1 AND blocks_run AND consumed_at IS NULL
    UNION ALL
    SELECT 'thought ' || t.step || ' of ' || h.kind || ': ' || t.kind || ' by ' || t.model || ' ' || coalesce(t.output::text, 'none'), count(*)
    FROM think_calls t JOIN handoffs h USING (handoff_id) WHERE t.task_id = $1 GROUP BY 1
    UNION ALL
    SELECT 'report of the ' || agent_role || ': ' || kind || ' ' || summary || ' ' || details::text, count(*)
    FROM agent_reports WHERE task_id = $1 GROUP BY 1
    UNION ALL
    SELECT 'judgement of the ' || agent_role || ' on ' || coalesce(unit_key, 'all') || ': ' || status, count(*)
    FROM verifications WHERE task_id = $1 GROUP BY 1
    UNION ALL
    SELECT 'pull request ' || state || ' at ' || forge || ': ' || title, count(*) FROM pull_requests WHERE task_id = $1 GROUP BY 1
    UNION ALL
    SELECT 'deliveries' || CASE WHEN delivered_at IS NULL THEN ' left' ELSE '' END, count(*) FROM deliveries WHERE task_id = $1
    GROUP BY 1
    UNION ALL
    SELECT 'tokens of handoffs left', count(*)
    FROM agent_tokens a JOIN handoffs h USING (handoff_id) WHERE h.task_id = $1 AND a.revoked_at IS NULL";

/// Returns the facts about a task, its commits included.
pub(super) async fn observe(stage: &Stage, task: &str) -> Facts {
    let rows: Vec<(String, i64)> = sqlx::query_as(FACTS)
        .bind(raw(task))
        .bind(task)
        .fetch_all(&stage.world.pool)
        .await
        .unwrap();
    let mut facts: Facts = rows.into_iter().collect();
    let made = commits(stage, task).await;
    facts.insert("commits".into(), i64::try_from(made.len()).unwrap());
    for Made { unit, tree, over, .. } in made {
        facts.insert(format!("commit of {unit}: files {tree}"), over);
    }
    let branches = "SELECT branch, base_commit FROM pull_requests WHERE task_id = $1";
    let branches: Vec<(String, String)> =
        sqlx::query_as(branches).bind(raw(task)).fetch_all(&stage.world.pool).await.unwrap();
    let repository = stage.world.repository(&stage.world.project);
    for (branch, base) in branches {
        let branch = format!("refs/heads/{branch}");
        let tree = git(&repository, &["rev-parse", &format!("{branch}^{{tree}}")]);
        let over = git(&repository, &["rev-list", "--count", &format!("{base}..{branch}")]);
        let over = over.and_then(|over| over.parse().ok()).unwrap_or(-1);
        facts.insert(format!("branch: files {}", tree.unwrap_or_default()), over);
    }
    facts
}

/// The commit of a job in the project's repository.
pub(super) struct Made {
    pub(super) unit: String,
    pub(super) commit: String,
    /// The commit that the job started from.
    pub(super) base: String,
    tree: String,
    /// Number of commits on top of that base.
    pub(super) over: i64,
}

/// Returns the commits that jobs of a task left in the orchestrator's repository.
pub(super) async fn commits(stage: &Stage, task: &str) -> Vec<Made> {
    let query =
        "SELECT j.job_id, u.key, j.base_commit FROM jobs j JOIN work_units u USING (unit_id)
        WHERE j.task_id = $1 AND j.evidence_id IS NULL ORDER BY u.key, j.attempt";
    let jobs: Vec<(Uuid, String, Option<String>)> =
        sqlx::query_as(query).bind(raw(task)).fetch_all(&stage.world.pool).await.unwrap();
    let repository = stage.world.repository(&stage.world.project);
    let run = |arguments: &[&str]| git(&repository, arguments);
    let made = jobs.into_iter().filter_map(|(job, unit, base)| {
        let reference = format!("refs/cynode/jobs/{}", JobId::from_uuid(job));
        let commit = run(&["rev-parse", "--verify", "--quiet", &reference])?;
        let base = base?;
        let tree = run(&["rev-parse", &format!("{commit}^{{tree}}")])?;
        let over = run(&["rev-list", "--count", &format!("{base}..{commit}")])?.parse().ok()?;
        Some(Made { unit, commit, base, tree, over })
    });
    made.collect()
}

/// Number of model answers that no decision uses, and of restarts of handoffs.
pub(super) struct Effort {
    pub(super) unused: i64,
    pub(super) again: i64,
}

pub(super) async fn effort(pool: &PgPool, task: &str) -> Effort {
    let query = "
        WITH used AS (SELECT unnest(model_call_ids) AS call_id FROM think_calls WHERE task_id = $1),
        made AS (SELECT call_id FROM model_calls WHERE task_id = $1 AND outcome = 'answered')
        SELECT (SELECT count(*) FROM made WHERE call_id NOT IN (SELECT call_id FROM used)),
            (SELECT coalesce(sum(attempt - 1), 0) FROM handoffs WHERE task_id = $1)";
    let (unused, again) =
        sqlx::query_as::<_, (i64, i64)>(query).bind(raw(task)).fetch_one(pool).await.unwrap();
    Effort { unused, again }
}

/// Returns the number of model calls of a project, successful or not, and of its handoffs.
pub(super) async fn activity(stage: &Stage) -> (i64, i64) {
    let query = "SELECT (SELECT count(*) FROM model_calls WHERE project_id = $1), (SELECT count(*) FROM handoffs WHERE project_id = $1)";
    let project = stage.world.project.parse::<ProjectId>().unwrap().as_uuid();
    sqlx::query_as(query).bind(project).fetch_one(&stage.world.pool).await.unwrap()
}

/// Returns the rows of a query about a task, each as one JSON object.
pub(super) async fn rows(pool: &PgPool, query: &'static str, task: &str) -> Vec<Value> {
    let wrapped = format!("SELECT to_jsonb(rows) FROM ({query}) rows");
    let rows = sqlx::query_scalar::<_, Value>(sqlx::AssertSqlSafe(wrapped)).bind(raw(task));
    rows.fetch_all(pool).await.unwrap()
}
