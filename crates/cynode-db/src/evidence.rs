//! Evidence: what checks showed of an attempt of a unit.

use cynode_core::{
    evidence::{Check, Odd, Ran, Tally, weigh},
    ids::{EvidenceId, JobId, TaskId},
    workflow::plan::UnitKey,
};
use cynode_wire::{
    evidence::{CheckResult, EvidenceState, EvidenceView},
    nodes::StepOutcome,
};
use serde_json::Value;
use uuid::Uuid;

use crate::{Conn, DbError, error::corrupt, workflow};

/// What evidence is to be gathered about, as the database knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
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
    pub put_back: Option<Value>,
    /// Whether its result is in.
    pub open: bool,
}

/// The attempt of a unit that evidence is gathered about; `None` when there is no such attempt.
#[tracing::instrument(name = "db.evidence.subject", skip_all, fields(task.id = %task, unit = %key))]
pub async fn subject(
    conn: &mut Conn,
    task: TaskId,
    key: &UnitKey,
    attempt: u32,
) -> Result<Option<Subject>, DbError> {
    let row = sqlx::query_as!(
        Subject,
        r#"
        SELECT u.unit_id AS unit, u.title, coalesce(j.result ->> 'commit', j.base) AS "commit",
            (SELECT first.base FROM jobs first WHERE first.task_id = u.task_id AND first.base IS NOT NULL AND first.evidence_id IS NULL
                ORDER BY first.started_at LIMIT 1) AS "pinned_from",
            j.payload -> 'unit' -> 'work' -> 'sandbox' AS "sandbox", j.payload -> 'unit' -> 'work' -> 'placement' AS "placement",
            j.result -> 'put_back' AS "put_back",
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
pub struct Grounds {
    /// The commit that the task's work started from.
    pub base: Option<String>,
    /// What must be shown for the task to be done.
    pub criteria: Value,
    /// What the plan says of its units.
    pub units: Vec<Value>,
    /// What a person was shown of what was odd about results that they took, a list for each.
    pub taken: Vec<Value>,
}

/// What a change of a task is measured by.
#[tracing::instrument(name = "db.evidence.grounds", skip_all, fields(task.id = %task))]
pub async fn grounds(conn: &mut Conn, task: TaskId) -> Result<Grounds, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT t.acceptance_criteria,
            (SELECT first.base FROM jobs first WHERE first.task_id = t.task_id AND first.base IS NOT NULL AND first.evidence_id IS NULL
                ORDER BY first.started_at LIMIT 1) AS "base",
            ARRAY(SELECT u.payload FROM work_units u WHERE u.task_id = t.task_id ORDER BY u.position) AS "units!: Vec<Value>",
            ARRAY(SELECT j.result -> 'taken' FROM jobs j WHERE j.task_id = t.task_id AND j.taken IS NOT NULL
                AND jsonb_typeof(j.result -> 'odd') = 'array' AND j.result -> 'taken' IS NOT NULL) AS "taken!: Vec<Value>"
        FROM tasks t WHERE t.task_id = $1
        "#,
        task.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map_or_else(Grounds::default, |row| Grounds {
        base: row.base,
        criteria: row.acceptance_criteria,
        units: row.units,
        taken: row.taken,
    }))
}

/// Evidence, locked, as whoever goes on with it needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Its id.
    pub id: EvidenceId,
    /// The commit.
    pub commit: Option<String>,
    /// Where the files are from that checks go by.
    pub pinned_from: Option<String>,
    /// Every check that was asked for.
    pub checks: Vec<Check>,
    /// Where it stands.
    pub state: EvidenceState,
    /// Whether a job of it is queued or runs.
    pub alive: bool,
    /// How often it was begun.
    pub tries: u32,
    /// What the checks came to, in their order: the run before the change, and the rounds after it.
    pub rounds: Vec<(Option<Ran>, Vec<Ran>)>,
}

impl Known {
    /// What a check's runs amount to.
    pub fn tally(&self, number: usize) -> Tally {
        match (self.checks.get(number), self.rounds.get(number)) {
            (Some(check), Some((before, rounds))) => weigh(check, *before, rounds),
            _ => Tally::Again,
        }
    }
}

/// Begins evidence, or locks what was begun. What it must be about is said once.
#[tracing::instrument(name = "db.evidence.open", skip_all, fields(task.id = %task))]
pub async fn open(
    conn: &mut Conn,
    id: EvidenceId,
    task: TaskId,
    attempt: u32,
    subject: &Subject,
) -> Result<Known, DbError> {
    // The run first, as everybody does: results wake it before they are noted here.
    workflow::lock_run(conn, task).await?;
    sqlx::query!(
        "
        INSERT INTO evidence (evidence_id, task_id, unit_id, attempt, commit, pinned_from, checks, state, tries, opened_at)
        VALUES ($1, $2, $3, $4, $5, $6, '[]', 'gathering', 1, clock_timestamp())
        ON CONFLICT ON CONSTRAINT evidence_once DO NOTHING
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
        "SELECT evidence_id FROM evidence WHERE unit_id = $1 AND attempt = $2 FOR UPDATE",
        subject.unit,
        attempt.cast_signed(),
    )
    .fetch_one(&mut *conn)
    .await?;
    let known = lock(conn, EvidenceId::from_uuid(id)).await?;
    known.ok_or(DbError::Corrupt { table: "evidence", column: "evidence_id" })
}

/// Evidence, locked until the end of the transaction.
#[tracing::instrument(name = "db.evidence.lock", skip_all, fields(evidence.id = %id))]
pub async fn lock(conn: &mut Conn, id: EvidenceId) -> Result<Option<Known>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT commit, pinned_from, checks, state, tries,
            EXISTS (SELECT FROM jobs j WHERE j.evidence_id = e.evidence_id AND j.state IN ('queued', 'running')) AS "alive!"
        FROM evidence e WHERE evidence_id = $1 FOR UPDATE
        "#,
        id.as_uuid(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let checks: Vec<Check> =
        serde_json::from_value(row.checks).map_err(corrupt("evidence", "checks"))?;
    let results = sqlx::query!(
        "SELECT number, round, holds, exit_code FROM evidence_results WHERE evidence_id = $1 ORDER BY number, round",
        id.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    let mut rounds = vec![(None, Vec::new()); checks.len()];
    for row in results {
        let at = usize::try_from(row.number).unwrap_or(usize::MAX);
        let Some((before, after)) = rounds.get_mut(at) else { continue };
        let ran = Ran { holds: row.holds, exit_code: row.exit_code };
        if row.round == 0 {
            *before = Some(ran);
        } else {
            after.push(ran);
        }
    }
    Ok(Some(Known {
        id,
        commit: row.commit,
        pinned_from: row.pinned_from,
        checks,
        state: state(&row.state)?,
        alive: row.alive,
        tries: u32::try_from(row.tries).map_err(corrupt("evidence", "tries"))?,
        rounds,
    }))
}

fn state(name: &str) -> Result<EvidenceState, DbError> {
    EvidenceState::from_name(name).ok_or(DbError::Corrupt { table: "evidence", column: "state" })
}

/// Where evidence stands from now on.
#[tracing::instrument(name = "db.evidence.set", skip_all, fields(evidence.id = %id))]
pub async fn set(
    conn: &mut Conn,
    id: EvidenceId,
    checks: &[Check],
    state: EvidenceState,
    trouble: Option<&str>,
    tries: u32,
) -> Result<(), DbError> {
    let checks = serde_json::to_value(checks).map_err(corrupt("evidence", "checks"))?;
    sqlx::query!(
        "
        UPDATE evidence
        SET checks = $2, state = $3, trouble = $4, tries = $5,
            ended_at = CASE WHEN $3 = 'gathering' THEN NULL ELSE clock_timestamp() END
        WHERE evidence_id = $1
        ",
        id.as_uuid(),
        checks,
        state.as_str(),
        trouble,
        tries.cast_signed(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A job that runs checks.
#[derive(Clone, Debug)]
pub struct NewJob<'a> {
    /// Its id.
    pub id: Uuid,
    /// The evidence.
    pub evidence: EvidenceId,
    /// What it is given.
    pub payload: &'a Value,
}

/// Queues a job that runs checks, with the trace of the run.
#[tracing::instrument(name = "db.evidence.queue", skip_all, fields(evidence.id = %job.evidence))]
pub async fn queue(conn: &mut Conn, job: &NewJob<'_>) -> Result<(), DbError> {
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
#[tracing::instrument(name = "db.evidence.of_job", skip_all, fields(job.id = %job))]
pub async fn of_job(conn: &mut Conn, job: JobId) -> Result<Option<(EvidenceId, Value)>, DbError> {
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
pub struct Run<'a> {
    /// Which check.
    pub number: usize,
    /// Which round; 0 is the run on what was there before.
    pub round: usize,
    /// Whether it held.
    pub holds: bool,
    /// What came of it.
    pub outcome: &'a StepOutcome,
}

/// Notes a run. Noted again, nothing changes.
#[tracing::instrument(name = "db.evidence.note", skip_all, fields(evidence.id = %id))]
pub async fn note(
    conn: &mut Conn,
    id: EvidenceId,
    job: JobId,
    run: &Run<'_>,
) -> Result<(), DbError> {
    let number = |value: usize| i32::try_from(value).unwrap_or(i32::MAX);
    sqlx::query!(
        "
        INSERT INTO evidence_results (evidence_id, number, round, job_id, holds, exit_code, sha256, excerpt, milliseconds, at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp())
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
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes why what an attempt of a unit brought was taken as it is, and what a person who took it was shown of what is odd about it: that,
/// and nothing else, is not held against the task again.
#[tracing::instrument(name = "db.evidence.take", skip_all, fields(task.id = %task, unit = %key))]
pub async fn take(
    conn: &mut Conn,
    task: TaskId,
    key: &UnitKey,
    attempt: u32,
    why: &str,
    shown: &[Odd],
) -> Result<(), DbError> {
    let shown = serde_json::to_value(shown).map_err(corrupt("jobs", "result"))?;
    sqlx::query!(
        "
        UPDATE jobs j
        SET taken = left($4, 500),
            result = CASE WHEN jsonb_typeof(j.result -> 'odd') = 'array' THEN jsonb_set(j.result, '{taken}', (
                SELECT coalesce(jsonb_agg(listed.it), '[]') FROM jsonb_array_elements(j.result -> 'odd') AS listed (it)
                WHERE EXISTS (SELECT FROM jsonb_array_elements($5::jsonb) AS shown (it)
                    WHERE listed.it = shown.it || jsonb_build_object('is', listed.it -> 'is'))
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
#[tracing::instrument(name = "db.evidence.taken_unchecked", skip_all, fields(task.id = %task))]
pub async fn taken_unchecked(conn: &mut Conn, task: TaskId) -> Result<bool, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT coalesce(bool_or(j.taken IS NOT NULL AND u.state = 'done' AND u.attempts = j.attempt), false)
            AND coalesce(bool_and(j.base IS NULL AND j.result ->> 'commit' IS NULL), true) AS "taken!"
        FROM work_units u JOIN jobs j USING (unit_id)
        WHERE u.task_id = $1 AND j.evidence_id IS NULL
        "#,
        task.as_uuid(),
    )
    .fetch_one(conn)
    .await?;
    Ok(row.taken)
}

/// Whether a unit's evidence lets it be taken: nothing was gathered, or it is good, and nothing is odd; or a reason is given for taking it
/// all the same.
#[tracing::instrument(name = "db.evidence.lets_through", skip_all, fields(task.id = %task, unit = %key))]
pub async fn lets_through(
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
            WHERE u.task_id = $1 AND u.key = $2 AND e.attempt = $3
        ), noted AS (
            UPDATE evidence e SET waived = $4 FROM mine
            WHERE e.evidence_id = mine.evidence_id AND mine.state <> 'passed' AND $4::text IS NOT NULL
        )
        SELECT $4::text IS NOT NULL OR (coalesce((SELECT bool_and(state = 'passed') FROM mine), true) AND NOT EXISTS (
            SELECT FROM jobs j JOIN work_units u USING (unit_id)
            WHERE u.task_id = $1 AND u.key = $2 AND j.attempt = $3 AND j.evidence_id IS NULL
                AND jsonb_typeof(j.result -> 'odd') = 'array' AND j.result -> 'odd' <> '[]')) AS "good!"
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
#[tracing::instrument(name = "db.evidence.of_task", skip_all, fields(task.id = %task))]
pub async fn of_task(
    conn: &mut Conn,
    task: TaskId,
    last_only: bool,
) -> Result<Vec<EvidenceView>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT e.evidence_id, u.key, e.attempt, e.commit, e.checks, e.state, e.trouble, e.tries, e.waived, e.opened_at, e.ended_at,
            u.attempts <> e.attempt OR EXISTS (SELECT FROM work_units d JOIN jobs j ON j.unit_id = d.unit_id AND j.attempt = d.attempts
                WHERE d.task_id = u.task_id AND u.key = ANY (d.depends_on) AND j.evidence_id IS NULL
                    AND j.result ->> 'commit' IS NOT NULL AND j.result ->> 'commit' <> e.commit) AS "stale!",
            EXISTS (SELECT FROM jobs j WHERE j.evidence_id = e.evidence_id AND j.state IN ('queued', 'running')) AS "alive!"
        FROM evidence e JOIN work_units u USING (unit_id)
        WHERE e.task_id = $1 AND (NOT $2 OR u.attempts = e.attempt)
        ORDER BY e.opened_at, e.evidence_id
        "#,
        task.as_uuid(),
        last_only,
    )
    .fetch_all(&mut *conn)
    .await?;
    let ids: Vec<Uuid> = rows.iter().map(|row| row.evidence_id).collect();
    let runs = sqlx::query!(
        "
        SELECT evidence_id, number, round, holds, exit_code, sha256, excerpt, milliseconds
        FROM evidence_results WHERE evidence_id = ANY ($1)
        ORDER BY evidence_id, number, round
        ",
        &ids,
    )
    .fetch_all(conn)
    .await?;
    let mut views = Vec::new();
    for row in rows {
        let checks: Vec<Check> =
            serde_json::from_value(row.checks).map_err(corrupt("evidence", "checks"))?;
        let mut results = Vec::new();
        for (number, check) in checks.into_iter().enumerate() {
            let own: Vec<_> = runs
                .iter()
                .filter(|run| {
                    run.evidence_id == row.evidence_id
                        && usize::try_from(run.number).is_ok_and(|it| it == number)
                })
                .collect();
            let before = own
                .iter()
                .find(|run| run.round == 0)
                .map(|run| Ran { holds: run.holds, exit_code: run.exit_code });
            let after: Vec<_> = own.iter().filter(|run| run.round > 0).collect();
            let rounds: Vec<Ran> = after
                .iter()
                .map(|run| Ran { holds: run.holds, exit_code: run.exit_code })
                .collect();
            let last = after.last();
            results.push(CheckResult {
                tally: weigh(&check, before, &rounds),
                check,
                rounds: u32::try_from(rounds.len()).unwrap_or(u32::MAX),
                exit_code: last.and_then(|run| run.exit_code),
                sha256: last.map(|run| run.sha256.clone()).unwrap_or_default(),
                excerpt: last.map(|run| run.excerpt.clone()).unwrap_or_default(),
                milliseconds: last
                    .and_then(|run| u64::try_from(run.milliseconds).ok())
                    .unwrap_or_default(),
            });
        }
        let mut state = state(&row.state)?;
        let mut trouble = row.trouble;
        if state == EvidenceState::Gathering && !row.alive {
            state = EvidenceState::Unable;
            trouble = Some("nothing was heard of the checks any more".to_owned());
        }
        views.push(EvidenceView {
            evidence_id: EvidenceId::from_uuid(row.evidence_id),
            unit: row.key.try_into().map_err(corrupt("work_units", "key"))?,
            attempt: u32::try_from(row.attempt).map_err(corrupt("evidence", "attempt"))?,
            commit: row.commit,
            state,
            stale: row.stale,
            checks: results,
            waived: row.waived,
            trouble,
            tries: u32::try_from(row.tries).map_err(corrupt("evidence", "tries"))?,
            opened_at: row.opened_at,
            ended_at: row.ended_at,
        });
    }
    Ok(views)
}
