//! Evidence: results of checks for an attempt of a unit.

use cynode_core::{
    evidence::{
        ChangeAnomaly, CheckRunResult, CheckTally, EvidenceCheck,
        base::{BASE_CHECK_CLAIM_SECONDS, BaseOutcome, classify_base_run, is_same_failure},
        evaluate_check_with_tests,
        test_results::{CheckReports, TestReport, TestRunComparison},
    },
    ids::{EvidenceId, JobId, TaskId},
    nodes::CommandOutcome,
    workflow::{
        evidence::{BaseCheckResult, BaseChecks, CheckResult, EvidenceState, EvidenceView},
        plan::UnitKey,
    },
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column, workflow};

/// What evidence is to be gathered about, as the database knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct EvidenceSubject {
    /// The unit.
    pub unit: Uuid,
    /// What it is called.
    pub title: String,
    /// The commit that it brought, else the one it started from.
    pub commit: Option<String>,
    /// The commit that the task's work started from.
    pub pinned_from: Option<String>,
    /// What its worker ran in.
    pub sandbox: Option<Value>,
    /// Where its worker ran.
    pub placement: Option<Value>,
    /// Files that checks run with as they were before the change.
    pub restored_tests: Option<Value>,
    /// Whether its result is in.
    pub open: bool,
}

/// The attempt of a unit that evidence is gathered about; `None` when there is no such attempt.
#[tracing::instrument(name = "db.evidence.find_evidence_subject", skip_all, fields(task.id = %task, unit = %key))]
pub async fn find_evidence_subject(
    conn: &mut Conn,
    task: TaskId,
    key: &UnitKey,
    attempt: u32,
) -> Result<Option<EvidenceSubject>, DbError> {
    let row = sqlx::query_as!(
        EvidenceSubject,
        r#"
        SELECT u.unit_id AS unit, u.title, coalesce(j.result ->> 'commit', j.base_commit) AS "commit",
            coalesce((SELECT c.base_commit FROM task_continuations c WHERE c.task_id = u.task_id),
                (SELECT first.base_commit FROM jobs first WHERE first.task_id = u.task_id AND first.base_commit IS NOT NULL
                    AND first.evidence_id IS NULL ORDER BY first.started_at LIMIT 1)) AS "pinned_from?",
            j.payload -> 'unit' -> 'work' -> 'sandbox' AS "sandbox", j.payload -> 'unit' -> 'work' -> 'placement' AS "placement",
            j.result -> 'restored_tests' AS "restored_tests",
            u.state IN ('collected', 'done') OR (u.state = 'dispatched' AND j.state = 'succeeded') AS "open!"
        FROM work_units u JOIN jobs j ON j.unit_id = u.unit_id AND j.attempt = $3 AND j.evidence_id IS NULL
        WHERE u.task_id = $1 AND u.key = $2 AND u.attempts = $3
        "#,
        task.as_uuid(),
        key.as_str(),
        attempt.cast_signed(),
    );
    Ok(row.fetch_optional(conn).await?)
}

/// What a change of a task is measured by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeBaseline {
    /// The commit that the task's work started from.
    pub base: Option<String>,
    /// What must be shown for the task to be done.
    pub criteria: Value,
    /// What the plan says of its units.
    pub units: Vec<Value>,
    /// The anomalies that a person was shown of results that they accepted, a list for each.
    pub accepted_anomalies: Vec<Value>,
}

/// What a change of a task is measured by.
#[tracing::instrument(name = "db.evidence.load_change_baseline", skip_all, fields(task.id = %task))]
pub async fn load_change_baseline(
    conn: &mut Conn,
    task: TaskId,
) -> Result<ChangeBaseline, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT t.acceptance_criteria,
            coalesce((SELECT c.base_commit FROM task_continuations c WHERE c.task_id = t.task_id),
                (SELECT first.base_commit FROM jobs first WHERE first.task_id = t.task_id AND first.base_commit IS NOT NULL
                    AND first.evidence_id IS NULL ORDER BY first.started_at LIMIT 1)) AS "base?",
            ARRAY(SELECT u.payload FROM work_units u WHERE u.task_id = t.task_id ORDER BY u.position) AS "units!: Vec<Value>",
            ARRAY(SELECT j.result -> 'accepted_anomalies' FROM jobs j WHERE j.task_id = t.task_id AND j.accepted_reason IS NOT NULL
                AND jsonb_typeof(j.result -> 'anomalies') = 'array' AND j.result -> 'accepted_anomalies' IS NOT NULL) AS "accepted_anomalies!: Vec<Value>"
        FROM tasks t WHERE t.task_id = $1
        "#,
        task.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map_or_else(ChangeBaseline::default, |row| ChangeBaseline {
        base: row.base,
        criteria: row.acceptance_criteria,
        units: row.units,
        accepted_anomalies: row.accepted_anomalies,
    }))
}

/// What a task goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskContinuation {
    /// The commit that its work begins with.
    pub start_commit: String,
    /// The commit that the work of the earlier task began with: changes are measured from there.
    pub base_commit: String,
}

/// What a task goes on from, if it goes on from something.
#[tracing::instrument(name = "db.evidence.get_task_continuation", skip_all, fields(task.id = %task))]
pub async fn get_task_continuation(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Option<TaskContinuation>, DbError> {
    let row = sqlx::query_as!(
        TaskContinuation,
        "SELECT start_commit, base_commit FROM task_continuations WHERE task_id = $1",
        task.as_uuid(),
    );
    Ok(row.fetch_optional(conn).await?)
}

/// Notes what a task goes on from.
#[tracing::instrument(name = "db.evidence.insert_task_continuation", skip_all, fields(task.id = %task))]
pub async fn insert_task_continuation(
    conn: &mut Conn,
    task: TaskId,
    earlier: TaskId,
    from: &TaskContinuation,
) -> Result<(), DbError> {
    sqlx::query!(
        "INSERT INTO task_continuations (task_id, earlier_task_id, start_commit, base_commit) VALUES ($1, $2, $3, $4)",
        task.as_uuid(),
        earlier.as_uuid(),
        from.start_commit,
        from.base_commit,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A commit that an attempt of a unit left, whatever became of the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptCommit {
    /// The unit.
    pub unit: String,
    /// The attempt.
    pub attempt: i32,
    /// The commit.
    pub commit: String,
    /// How many checks were asked for.
    pub checks: i32,
    /// How many of them held.
    pub held: i64,
}

/// The commits that the attempts at a task left, oldest first. When the files of the task have expired there is none.
#[tracing::instrument(name = "db.evidence.list_attempt_commits", skip_all, fields(task.id = %task))]
pub async fn list_attempt_commits(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Vec<AttemptCommit>, DbError> {
    let rows = sqlx::query_as!(
        AttemptCommit,
        r#"
        SELECT u.key AS "unit!", j.attempt AS "attempt!", j.result ->> 'commit' AS "commit!",
            coalesce(jsonb_array_length(e.checks), 0) AS "checks!",
            (SELECT count(DISTINCT r.number) FROM evidence_results r
                WHERE r.evidence_id = e.evidence_id AND r.round > 0 AND r.passed) AS "held!"
        FROM jobs j
        JOIN work_units u ON u.unit_id = j.unit_id
        LEFT JOIN evidence e ON e.unit_id = j.unit_id AND e.attempt = j.attempt AND e.superseded_at IS NULL
        WHERE j.task_id = $1 AND j.evidence_id IS NULL AND j.result ->> 'commit' IS NOT NULL
            AND NOT EXISTS (SELECT FROM tasks t WHERE t.task_id = $1 AND t.files_expired_at IS NOT NULL)
        ORDER BY j.ended_at, j.job_id
        "#,
        task.as_uuid(),
    );
    Ok(rows.fetch_all(conn).await?)
}

/// Evidence, locked, as whoever goes on with it needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct LockedEvidence {
    /// Its id.
    pub id: EvidenceId,
    /// The commit.
    pub commit: Option<String>,
    /// Where the files are from that checks go by.
    pub pinned_from: Option<String>,
    /// Every check that was asked for.
    pub checks: Vec<EvidenceCheck>,
    /// Where it stands.
    pub state: EvidenceState,
    /// Whether a job of it is queued or runs.
    pub alive: bool,
    /// How often it was begun.
    pub attempts: u32,
    /// What the checks came to, in their order: the run before the change, and the rounds after it.
    pub rounds: Vec<(Option<CheckRunResult>, Vec<CheckRunResult>)>,
    /// Their results per test, in the order of the checks.
    pub reports: Vec<CheckReports>,
}

impl LockedEvidence {
    /// What a check's runs amount to.
    pub fn tally_of_check(&self, number: usize) -> CheckTally {
        let tests = self.reports.get(number).and_then(CheckReports::compare_runs);
        match (self.checks.get(number), self.rounds.get(number)) {
            (Some(check), Some((before, rounds))) => {
                evaluate_check_with_tests(check, *before, rounds, tests.as_ref())
            }
            _ => CheckTally::Again,
        }
    }
}

/// Begins evidence, or locks what was begun. What it must be about is said once.
#[tracing::instrument(name = "db.evidence.open_evidence", skip_all, fields(task.id = %task))]
pub async fn open_evidence(
    conn: &mut Conn,
    id: EvidenceId,
    task: TaskId,
    attempt: u32,
    subject: &EvidenceSubject,
) -> Result<LockedEvidence, DbError> {
    // The run first, as everybody does: results wake it before they are noted here.
    workflow::lock_run(conn, task).await?;
    sqlx::query!(
        "
        INSERT INTO evidence (evidence_id, task_id, unit_id, attempt, commit, pinned_from, checks, state, gather_attempts, opened_at)
        VALUES ($1, $2, $3, $4, $5, $6, '[]', 'gathering', 1, clock_timestamp())
        ON CONFLICT (unit_id, attempt) WHERE superseded_at IS NULL DO NOTHING
        ",
        id.as_uuid(),
        task.as_uuid(),
        subject.unit,
        attempt.cast_signed(),
        subject.commit,
        subject.pinned_from,
    )
    .execute(&mut *conn)
    .await?;
    let id = sqlx::query_scalar!(
        "SELECT evidence_id FROM evidence WHERE unit_id = $1 AND attempt = $2 AND superseded_at IS NULL FOR UPDATE",
        subject.unit,
        attempt.cast_signed(),
    )
    .fetch_one(&mut *conn)
    .await?;
    let known = lock_evidence(conn, EvidenceId::from_uuid(id)).await?;
    known.ok_or(DbError::Corrupt { table: "evidence", column: "evidence_id" })
}

/// Marks evidence as superseded: its checks are run again, and what they show then counts.
#[tracing::instrument(name = "db.evidence.supersede_evidence", skip_all, fields(evidence.id = %id))]
pub async fn supersede_evidence(conn: &mut Conn, id: EvidenceId) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE evidence SET superseded_at = clock_timestamp() WHERE evidence_id = $1 AND superseded_at IS NULL",
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether the commits and artifacts of a task were removed.
#[tracing::instrument(name = "db.evidence.has_expired_files", skip_all, fields(task.id = %task))]
pub async fn has_expired_files(conn: &mut Conn, task: TaskId) -> Result<bool, DbError> {
    let expired = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM tasks WHERE task_id = $1 AND files_expired_at IS NOT NULL) AS "expired!""#,
        task.as_uuid(),
    );
    Ok(expired.fetch_one(conn).await?)
}

/// Begins what is known of a task's checks before any change, or locks what was begun.
#[tracing::instrument(name = "db.evidence.open_base_evidence", skip_all, fields(task.id = %task))]
pub async fn open_base_evidence(
    conn: &mut Conn,
    id: EvidenceId,
    task: TaskId,
) -> Result<LockedEvidence, DbError> {
    workflow::lock_run(conn, task).await?;
    sqlx::query!(
        "
        INSERT INTO evidence (evidence_id, task_id, attempt, checks, state, gather_attempts, opened_at)
        VALUES ($1, $2, 0, '[]', 'gathering', 1, clock_timestamp())
        ON CONFLICT (task_id) WHERE unit_id IS NULL DO NOTHING
        ",
        id.as_uuid(),
        task.as_uuid(),
    )
    .execute(&mut *conn)
    .await?;
    let known = lock_base_evidence(conn, task).await?;
    known.ok_or(DbError::Corrupt { table: "evidence", column: "evidence_id" })
}

/// What is known of a task's checks before any change, locked; `None` when they were never tried.
#[tracing::instrument(name = "db.evidence.lock_base_evidence", skip_all, fields(task.id = %task))]
pub async fn lock_base_evidence(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Option<LockedEvidence>, DbError> {
    let id = sqlx::query_scalar!(
        "SELECT evidence_id FROM evidence WHERE task_id = $1 AND unit_id IS NULL FOR UPDATE",
        task.as_uuid(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    match id {
        Some(id) => lock_evidence(conn, EvidenceId::from_uuid(id)).await,
        None => Ok(None),
    }
}

/// Notes the commit that a job tries checks on, if it is such a job and the commit was not known.
#[tracing::instrument(name = "db.evidence.set_base_commit", skip_all, fields(job.id = %job))]
pub async fn set_base_commit(conn: &mut Conn, job: JobId, commit: &str) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE evidence SET commit = $2
        WHERE unit_id IS NULL AND commit IS NULL AND evidence_id = (SELECT evidence_id FROM jobs WHERE job_id = $1)
        ",
        job.as_uuid(),
        commit,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Cancels the jobs of evidence that no node has taken; whether one has been taken and runs.
#[tracing::instrument(name = "db.evidence.cancel_queued_jobs", skip_all, fields(evidence.id = %id))]
pub async fn cancel_queued_jobs(conn: &mut Conn, id: EvidenceId) -> Result<bool, DbError> {
    sqlx::query!(
        "UPDATE jobs SET state = 'cancelled', ended_at = clock_timestamp() WHERE evidence_id = $1 AND state = 'queued'",
        id.as_uuid(),
    )
    .execute(&mut *conn)
    .await?;
    let runs = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM jobs WHERE evidence_id = $1 AND state = 'running') AS "runs!""#,
        id.as_uuid(),
    );
    Ok(runs.fetch_one(conn).await?)
}

/// Forgets the runs of checks that are to be run again, because the machine they could not run on was mended.
#[tracing::instrument(name = "db.evidence.delete_check_runs", skip_all, fields(evidence.id = %id))]
pub async fn delete_check_runs(
    conn: &mut Conn,
    id: EvidenceId,
    numbers: &[usize],
) -> Result<(), DbError> {
    let numbers: Vec<i32> =
        numbers.iter().map(|number| i32::try_from(*number).unwrap_or(i32::MAX)).collect();
    sqlx::query!(
        "DELETE FROM evidence_results WHERE evidence_id = $1 AND number = ANY ($2)",
        id.as_uuid(),
        &numbers,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What a task's checks came to before any change; `None` when they were never tried.
#[tracing::instrument(name = "db.evidence.get_base_checks", skip_all, fields(task.id = %task))]
pub async fn get_base_checks(conn: &mut Conn, task: TaskId) -> Result<Option<BaseChecks>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT e.evidence_id, e.commit, e.checks, e.state, e.error, e.gather_attempts, e.opened_at, e.ended_at,
            EXISTS (SELECT FROM jobs j WHERE j.evidence_id = e.evidence_id AND j.state IN ('queued', 'running')) AS "alive!",
            EXISTS (SELECT FROM jobs j WHERE j.evidence_id = e.evidence_id AND j.state = 'queued'
                AND j.queued_at < clock_timestamp() - $2::bigint * interval '1 second') AS "unclaimed!"
        FROM evidence e WHERE e.task_id = $1 AND e.unit_id IS NULL
        "#,
        task.as_uuid(),
        i64::from(BASE_CHECK_CLAIM_SECONDS),
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let runs = sqlx::query!(
        "
        SELECT DISTINCT ON (number) number, passed, exit_code, excerpt, duration_ms, comparison
        FROM evidence_results WHERE evidence_id = $1
        ORDER BY number, round DESC
        ",
        row.evidence_id,
    )
    .fetch_all(conn)
    .await?;
    let checks: Vec<EvidenceCheck> =
        serde_json::from_value(row.checks).map_err(corrupt_column("evidence", "checks"))?;
    let results = checks.into_iter().enumerate().map(|(number, check)| {
        let own = |at: i32| usize::try_from(at).is_ok_and(|it| it == number);
        Ok::<_, DbError>(match runs.iter().find(|run| own(run.number)) {
            Some(run) => BaseCheckResult {
                outcome: classify_base_run(&check, run.passed, run.exit_code, &run.excerpt),
                check,
                exit_code: run.exit_code,
                excerpt: run.excerpt.clone(),
                milliseconds: u64::try_from(run.duration_ms).unwrap_or_default(),
                tests: parse_comparison(run.comparison.as_ref())?.map(|tests| tests.after),
            },
            None => BaseCheckResult {
                check,
                outcome: BaseOutcome::NotTried,
                exit_code: None,
                excerpt: String::new(),
                milliseconds: 0,
                tests: None,
            },
        })
    });
    let results = results.collect::<Result<Vec<BaseCheckResult>, DbError>>()?;
    let mut state = parse_evidence_state(&row.state)?;
    let mut error = row.error;
    if state == EvidenceState::Gathering && !row.alive {
        state = EvidenceState::Unable;
        error = Some("nothing was heard of the node any more".to_owned());
    }
    Ok(Some(BaseChecks {
        commit: row.commit,
        state,
        unclaimed: row.unclaimed,
        checks: results,
        error,
        attempts: u32::try_from(row.gather_attempts)
            .map_err(corrupt_column("evidence", "gather_attempts"))?,
        opened_at: row.opened_at,
        ended_at: row.ended_at,
    }))
}

/// Evidence, locked until the end of the transaction.
#[tracing::instrument(name = "db.evidence.lock_evidence", skip_all, fields(evidence.id = %id))]
pub async fn lock_evidence(
    conn: &mut Conn,
    id: EvidenceId,
) -> Result<Option<LockedEvidence>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT commit, pinned_from, checks, state, gather_attempts,
            EXISTS (SELECT FROM jobs j WHERE j.evidence_id = e.evidence_id AND j.state IN ('queued', 'running')) AS "alive!"
        FROM evidence e WHERE evidence_id = $1 FOR UPDATE
        "#,
        id.as_uuid(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let checks: Vec<EvidenceCheck> =
        serde_json::from_value(row.checks).map_err(corrupt_column("evidence", "checks"))?;
    let results = sqlx::query!(
        "SELECT number, round, passed, exit_code, tests FROM evidence_results WHERE evidence_id = $1 ORDER BY number, round",
        id.as_uuid(),
    )
    .fetch_all(&mut *conn)
    .await?;
    let mut reports = load_base_reports(conn, id, &checks).await?;
    let mut rounds = vec![(None, Vec::new()); checks.len()];
    for row in results {
        let at = usize::try_from(row.number).unwrap_or(usize::MAX);
        let Some((before, after)) = rounds.get_mut(at) else { continue };
        let Some(own) = reports.get_mut(at) else { continue };
        let ran = CheckRunResult { holds: row.passed, exit_code: row.exit_code };
        let report = row.tests.map(parse_report).transpose()?;
        if row.round == 0 {
            *before = Some(ran);
            own.before = report.or_else(|| own.before.take());
        } else {
            after.push(ran);
            own.after.push(report);
        }
    }
    Ok(Some(LockedEvidence {
        id,
        commit: row.commit,
        pinned_from: row.pinned_from,
        checks,
        state: parse_evidence_state(&row.state)?,
        alive: row.alive,
        attempts: u32::try_from(row.gather_attempts)
            .map_err(corrupt_column("evidence", "gather_attempts"))?,
        rounds,
        reports,
    }))
}

/// The reports of checks before any change, in the order of `checks`: those of the base commit, if the work started from it. Reports that
/// come after the evidence was opened are left out, so that stored comparisons stay right.
async fn load_base_reports(
    conn: &mut Conn,
    id: EvidenceId,
    checks: &[EvidenceCheck],
) -> Result<Vec<CheckReports>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT DISTINCT ON (r.number) r.number AS "number!", b.checks AS "checks!", r.tests AS "tests!"
        FROM evidence e
        JOIN evidence b ON b.task_id = e.task_id AND b.unit_id IS NULL AND b.commit = e.pinned_from
        JOIN evidence_results r ON r.evidence_id = b.evidence_id
        WHERE e.evidence_id = $1 AND e.unit_id IS NOT NULL AND r.tests IS NOT NULL AND r.recorded_at < e.opened_at
        ORDER BY r.number, r.round DESC
        "#,
        id.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    let mut reports = vec![CheckReports::default(); checks.len()];
    for row in rows {
        let tried: Vec<EvidenceCheck> =
            serde_json::from_value(row.checks).map_err(corrupt_column("evidence", "checks"))?;
        let check = usize::try_from(row.number).ok().and_then(|number| tried.get(number));
        let same = check.and_then(|check| checks.iter().position(|it| it == check));
        if let Some(own) = same.and_then(|at| reports.get_mut(at)) {
            own.before = Some(parse_report(row.tests)?);
        }
    }
    Ok(reports)
}

fn parse_report(value: Value) -> Result<TestReport, DbError> {
    serde_json::from_value(value).map_err(corrupt_column("evidence_results", "tests"))
}

fn parse_comparison(value: Option<&Value>) -> Result<Option<TestRunComparison>, DbError> {
    let parsed = value.map(|value| serde_json::from_value(value.clone())).transpose();
    parsed.map_err(corrupt_column("evidence_results", "comparison"))
}

fn parse_evidence_state(name: &str) -> Result<EvidenceState, DbError> {
    EvidenceState::from_name(name).ok_or(DbError::Corrupt { table: "evidence", column: "state" })
}

/// Where evidence stands from now on.
#[tracing::instrument(name = "db.evidence.update_evidence", skip_all, fields(evidence.id = %id))]
pub async fn update_evidence(
    conn: &mut Conn,
    id: EvidenceId,
    checks: &[EvidenceCheck],
    state: EvidenceState,
    error: Option<&str>,
    attempts: u32,
) -> Result<(), DbError> {
    let checks = serde_json::to_value(checks).map_err(corrupt_column("evidence", "checks"))?;
    sqlx::query!(
        "
        UPDATE evidence
        SET checks = $2, state = $3, error = $4, gather_attempts = $5,
            ended_at = CASE WHEN $3 = 'gathering' THEN NULL ELSE clock_timestamp() END
        WHERE evidence_id = $1
        ",
        id.as_uuid(),
        checks,
        state.as_str(),
        error,
        attempts.cast_signed(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A job that runs checks.
#[derive(Clone, Debug)]
pub struct NewEvidenceJob<'a> {
    /// Its id.
    pub id: Uuid,
    /// The evidence.
    pub evidence: EvidenceId,
    /// What it is given.
    pub payload: &'a Value,
}

/// Queues a job that runs checks, with the trace of the run.
#[tracing::instrument(name = "db.evidence.queue_evidence_job", skip_all, fields(evidence.id = %job.evidence))]
pub async fn queue_evidence_job(conn: &mut Conn, job: &NewEvidenceJob<'_>) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO jobs (job_id, task_id, unit_id, attempt, state, payload, trace_id, queued_at, evidence_id)
        SELECT $1, e.task_id, e.unit_id, e.attempt, 'queued', $3, r.trace_id, clock_timestamp(), e.evidence_id
        FROM evidence e JOIN workflow_runs r USING (task_id)
        WHERE e.evidence_id = $2
        ",
        job.id,
        job.evidence.as_uuid(),
        job.payload,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What a job gathers, with what it was given; `None` for work.
#[tracing::instrument(name = "db.evidence.evidence_of_job", skip_all, fields(job.id = %job))]
pub async fn evidence_of_job(
    conn: &mut Conn,
    job: JobId,
) -> Result<Option<(EvidenceId, Value)>, DbError> {
    let row = sqlx::query!(
        r#"SELECT evidence_id AS "evidence_id!", payload FROM jobs WHERE job_id = $1 AND evidence_id IS NOT NULL"#,
        job.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| (EvidenceId::from_uuid(row.evidence_id), row.payload)))
}

/// One run of a check.
#[derive(Clone, Debug)]
pub struct NewCheckRun<'a> {
    /// Which check.
    pub number: usize,
    /// Which round; 0 is the run on what was there before.
    pub round: usize,
    /// Whether it held.
    pub holds: bool,
    /// What came of it.
    pub outcome: &'a CommandOutcome,
    /// Its results per test, compared with the run before the change.
    pub comparison: Option<TestRunComparison>,
}

/// Notes a run. Noted again, nothing changes.
#[tracing::instrument(name = "db.evidence.insert_check_run", skip_all, fields(evidence.id = %id))]
pub async fn insert_check_run(
    conn: &mut Conn,
    id: EvidenceId,
    job: JobId,
    run: &NewCheckRun<'_>,
) -> Result<(), DbError> {
    let number = |value: usize| i32::try_from(value).unwrap_or(i32::MAX);
    let tests = run.outcome.tests.as_ref().map(serde_json::to_value).transpose();
    let tests = tests.map_err(corrupt_column("evidence_results", "tests"))?;
    let comparison = run.comparison.as_ref().map(serde_json::to_value).transpose();
    let comparison = comparison.map_err(corrupt_column("evidence_results", "comparison"))?;
    sqlx::query!(
        "
        INSERT INTO evidence_results
            (evidence_id, number, round, job_id, passed, exit_code, output_sha256, excerpt, duration_ms, tests, comparison, recorded_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, clock_timestamp())
        ON CONFLICT DO NOTHING
        ",
        id.as_uuid(),
        number(run.number),
        number(run.round),
        job.as_uuid(),
        run.holds,
        run.outcome.exit_code,
        run.outcome.sha256,
        run.outcome.output,
        i64::try_from(run.outcome.milliseconds).unwrap_or(i64::MAX),
        tests,
        comparison,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes why what an attempt of a unit brought was taken as it is, and the anomalies that a person who took it was shown: that,
/// and nothing else, is not held against the task again.
#[tracing::instrument(name = "db.evidence.record_acceptance", skip_all, fields(task.id = %task, unit = %key))]
pub async fn record_acceptance(
    conn: &mut Conn,
    task: TaskId,
    key: &UnitKey,
    attempt: u32,
    why: &str,
    shown: &[ChangeAnomaly],
) -> Result<(), DbError> {
    let shown = serde_json::to_value(shown).map_err(corrupt_column("jobs", "result"))?;
    sqlx::query!(
        "
        UPDATE jobs j
        SET accepted_reason = left($4, 500),
            result = CASE WHEN jsonb_typeof(j.result -> 'anomalies') = 'array' THEN jsonb_set(j.result, '{accepted_anomalies}', (
                SELECT coalesce(jsonb_agg(listed.it), '[]') FROM jsonb_array_elements(j.result -> 'anomalies') AS listed (it)
                WHERE EXISTS (SELECT FROM jsonb_array_elements($5::jsonb) AS shown (it)
                    WHERE listed.it = shown.it || jsonb_build_object('object_id', listed.it -> 'object_id'))
            )) ELSE j.result END
        FROM work_units u
        WHERE u.task_id = $1 AND u.key = $2 AND j.unit_id = u.unit_id AND j.attempt = $3 AND j.evidence_id IS NULL
        ",
        task.as_uuid(),
        key.as_str(),
        attempt.cast_signed(),
        why,
        shown,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether nothing of a task could ever be checked, because its work had no files, and a unit of it was taken as it is.
#[tracing::instrument(name = "db.evidence.is_accepted_unchecked", skip_all, fields(task.id = %task))]
pub async fn is_accepted_unchecked(conn: &mut Conn, task: TaskId) -> Result<bool, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT coalesce(bool_or(j.accepted_reason IS NOT NULL AND u.state = 'done' AND u.attempts = j.attempt), false)
            AND coalesce(bool_and(j.base_commit IS NULL AND j.result ->> 'commit' IS NULL), true) AS "taken!"
        FROM work_units u JOIN jobs j USING (unit_id)
        WHERE u.task_id = $1 AND j.evidence_id IS NULL
        "#,
        task.as_uuid(),
    )
    .fetch_one(conn)
    .await?;
    Ok(row.taken)
}

/// Whether a unit's evidence lets it be taken: nothing was gathered, or it is good, and there is no anomaly; or a reason is given for taking it
/// all the same.
#[tracing::instrument(name = "db.evidence.allows_acceptance", skip_all, fields(task.id = %task, unit = %key))]
pub async fn allows_acceptance(
    conn: &mut Conn,
    task: TaskId,
    key: &UnitKey,
    attempt: u32,
    waived: Option<&str>,
) -> Result<bool, DbError> {
    let row = sqlx::query!(
        r#"
        WITH mine AS (
            SELECT e.evidence_id, e.state FROM evidence e JOIN work_units u USING (unit_id)
            WHERE u.task_id = $1 AND u.key = $2 AND e.attempt = $3 AND e.superseded_at IS NULL
        ), noted AS (
            UPDATE evidence e SET waiver_reason = $4 FROM mine
            WHERE e.evidence_id = mine.evidence_id AND mine.state <> 'passed' AND $4::text IS NOT NULL
        )
        SELECT $4::text IS NOT NULL OR (coalesce((SELECT bool_and(state = 'passed') FROM mine), true) AND NOT EXISTS (
            SELECT FROM jobs j JOIN work_units u USING (unit_id)
            WHERE u.task_id = $1 AND u.key = $2 AND j.attempt = $3 AND j.evidence_id IS NULL
                AND jsonb_typeof(j.result -> 'anomalies') = 'array' AND j.result -> 'anomalies' <> '[]')) AS "good!"
        "#,
        task.as_uuid(),
        key.as_str(),
        attempt.cast_signed(),
        waived,
    )
    .fetch_one(conn)
    .await?;
    Ok(row.good)
}

/// Everything that was shown of a task, oldest first; only of the last attempts if so asked.
#[tracing::instrument(name = "db.evidence.list_task_evidence", skip_all, fields(task.id = %task))]
pub async fn list_task_evidence(
    conn: &mut Conn,
    task: TaskId,
    last_only: bool,
) -> Result<Vec<EvidenceView>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT e.evidence_id, u.key, e.attempt, e.commit, e.checks, e.state, e.error, e.gather_attempts, e.waiver_reason,
            e.opened_at, e.ended_at,
            e.superseded_at IS NOT NULL OR u.attempts <> e.attempt OR EXISTS (SELECT FROM work_units d JOIN jobs j ON j.unit_id = d.unit_id AND j.attempt = d.attempts
                WHERE d.task_id = u.task_id AND u.key = ANY (d.depends_on) AND j.evidence_id IS NULL
                    AND j.result ->> 'commit' IS NOT NULL AND j.result ->> 'commit' <> e.commit) AS "stale!",
            EXISTS (SELECT FROM jobs j WHERE j.evidence_id = e.evidence_id AND j.state IN ('queued', 'running')) AS "alive!",
            p.evidence_id AS "earlier_id?", p.checks AS "earlier_checks?"
        FROM evidence e JOIN work_units u ON u.unit_id = e.unit_id
        LEFT JOIN evidence p ON p.unit_id = e.unit_id AND p.attempt = e.attempt - 1 AND p.superseded_at IS NULL
        WHERE e.task_id = $1 AND (NOT $2 OR (u.attempts = e.attempt AND e.superseded_at IS NULL))
        ORDER BY e.opened_at, e.evidence_id
        "#,
        task.as_uuid(),
        last_only,
    )
    .fetch_all(&mut *conn)
    .await?;
    let ids: Vec<Uuid> =
        rows.iter().flat_map(|row| [Some(row.evidence_id), row.earlier_id]).flatten().collect();
    let runs = sqlx::query_as!(
        CheckRunRow,
        "
        SELECT evidence_id, number, round, passed, exit_code, output_sha256, excerpt, duration_ms, comparison, recorded_at
        FROM evidence_results WHERE evidence_id = ANY ($1)
        ORDER BY evidence_id, number, round
        ",
        &ids,
    )
    .fetch_all(conn)
    .await?;
    let mut views = Vec::new();
    for row in rows {
        let checks: Vec<EvidenceCheck> =
            serde_json::from_value(row.checks).map_err(corrupt_column("evidence", "checks"))?;
        let earlier: Vec<EvidenceCheck> = match row.earlier_checks {
            Some(checks) => {
                serde_json::from_value(checks).map_err(corrupt_column("evidence", "checks"))?
            }
            None => Vec::new(),
        };
        let of = |id: Uuid, number: usize| {
            let own = move |run: &&CheckRunRow| {
                run.evidence_id == id && usize::try_from(run.number).is_ok_and(|it| it == number)
            };
            runs.iter().filter(own).collect::<Vec<_>>()
        };
        let results = checks
            .into_iter()
            .enumerate()
            .map(|(number, check)| {
                let at = earlier.iter().position(|it| *it == check);
                let before = row.earlier_id.zip(at).map(|(id, at)| of(id, at));
                let before = before.and_then(|runs| runs.last().copied());
                check_result(check, &of(row.evidence_id, number), before)
            })
            .collect::<Result<Vec<CheckResult>, DbError>>()?;
        let mut state = parse_evidence_state(&row.state)?;
        let mut error = row.error;
        if state == EvidenceState::Gathering && !row.alive {
            state = EvidenceState::Unable;
            error = Some("nothing was heard of the checks any more".to_owned());
        }
        views.push(EvidenceView {
            evidence_id: EvidenceId::from_uuid(row.evidence_id),
            unit: row.key.try_into().map_err(corrupt_column("work_units", "key"))?,
            attempt: u32::try_from(row.attempt).map_err(corrupt_column("evidence", "attempt"))?,
            commit: row.commit,
            state,
            stale: row.stale,
            checks: results,
            waived: row.waiver_reason,
            error,
            attempts: u32::try_from(row.gather_attempts)
                .map_err(corrupt_column("evidence", "gather_attempts"))?,
            opened_at: row.opened_at,
            ended_at: row.ended_at,
        });
    }
    Ok(views)
}

/// A run of a check, as it is stored.
struct CheckRunRow {
    evidence_id: Uuid,
    number: i32,
    round: i32,
    passed: bool,
    exit_code: Option<i32>,
    output_sha256: String,
    excerpt: String,
    duration_ms: i64,
    comparison: Option<Value>,
    recorded_at: OffsetDateTime,
}

impl CheckRunRow {
    const fn to_check_run(&self) -> CheckRunResult {
        CheckRunResult { holds: self.passed, exit_code: self.exit_code }
    }
}

/// What a check came to by its runs, oldest first; `earlier` is the last run of the attempt before.
fn check_result(
    check: EvidenceCheck,
    runs: &[&CheckRunRow],
    earlier: Option<&CheckRunRow>,
) -> Result<CheckResult, DbError> {
    let before = runs.iter().find(|run| run.round == 0).map(|run| run.to_check_run());
    let after: Vec<&CheckRunRow> = runs.iter().copied().filter(|run| run.round > 0).collect();
    let rounds: Vec<CheckRunResult> = after.iter().map(|run| run.to_check_run()).collect();
    let last = after.last();
    // The run before the change may come after those of the change; the last comparison knows all of them.
    let latest = runs.iter().max_by_key(|run| (run.recorded_at, run.round));
    let tests = parse_comparison(latest.and_then(|run| run.comparison.as_ref()))?;
    let repeated = last.zip(earlier.filter(|run| run.round > 0)).is_some_and(|(last, earlier)| {
        !last.passed
            && !earlier.passed
            && is_same_failure(
                (earlier.exit_code, &earlier.excerpt),
                (last.exit_code, &last.excerpt),
            )
    });
    Ok(CheckResult {
        tally: evaluate_check_with_tests(&check, before, &rounds, tests.as_ref()),
        check,
        rounds: u32::try_from(rounds.len()).unwrap_or(u32::MAX),
        exit_code: last.and_then(|run| run.exit_code),
        sha256: last.map(|run| run.output_sha256.clone()).unwrap_or_default(),
        excerpt: last.map(|run| run.excerpt.clone()).unwrap_or_default(),
        milliseconds: last.and_then(|run| u64::try_from(run.duration_ms).ok()).unwrap_or_default(),
        repeated,
        tests,
    })
}
