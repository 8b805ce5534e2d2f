//! Handoffs: claims, delegation, answers and recorded think calls.

use cynode_core::{
    agents::AgentRole,
    ids::{CallId, HandoffId, JobId, ProjectId, RunId, TaskId, ThreadId, UserId},
    names::ProfileName,
    paging::PageRequest,
    workflow::{
        handoffs::{
            AnalysisAnswer, HandoffAnswer, HandoffKind, HandoffRequest, HandoffState,
            ModelDecision, PlanAnswer, RunHandoff, TraceEvent,
        },
        reports::{ReportKind, ReportView},
    },
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Number of claims of a handoff whose events of planning are kept.
const KEPT_PLANNING_CLAIMS: i64 = 50;

/// A handoff to be stored.
#[derive(Clone, Debug)]
pub struct NewHandoff<'a> {
    /// Its id.
    pub id: HandoffId,
    /// The handoff it is a share of.
    pub parent: Option<HandoffId>,
    /// In whose name.
    pub user: UserId,
    /// Where.
    pub project: ProjectId,
    /// For which task.
    pub task: Option<TaskId>,
    /// In which run.
    pub run: Option<RunId>,
    /// About which job.
    pub job: Option<JobId>,
    /// In which chat.
    pub thread: Option<ThreadId>,
    /// Whether a run waits for it.
    pub driven: bool,
    /// Names the question.
    pub about: &'a str,
    /// What is asked.
    pub request: &'a HandoffRequest,
    /// Its trace.
    pub trace: &'a str,
}

/// A handoff, as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct HandoffRecord {
    /// Its id.
    pub id: HandoffId,
    /// What kind.
    pub kind: HandoffKind,
    /// Where it stands.
    pub state: HandoffState,
    /// The handoff it is a share of.
    pub parent: Option<HandoffId>,
    /// In whose name.
    pub user: UserId,
    /// Where.
    pub project: ProjectId,
    /// For which task.
    pub task: Option<TaskId>,
    /// In which run.
    pub run: Option<RunId>,
    /// About which job.
    pub job: Option<JobId>,
    /// In which chat.
    pub thread: Option<ThreadId>,
    /// Whether a run waits for it.
    pub driven: bool,
    /// What is asked.
    pub request: HandoffRequest,
    /// Why it failed.
    pub failure: Option<String>,
    /// How often it was begun.
    pub attempt: u32,
    /// How often nothing was heard of whoever worked on it.
    pub lost: u32,
    /// The token of the last claim.
    pub fencing_token: i64,
    /// Who has or had it.
    pub worker: Option<String>,
    /// Until when silence is believed.
    pub lease_expires_at: Option<OffsetDateTime>,
    /// Its trace.
    pub trace: String,
    /// When it was stored.
    pub created_at: OffsetDateTime,
    /// When it ended.
    pub ended_at: Option<OffsetDateTime>,
}

struct HandoffRow {
    handoff_id: Uuid,
    kind: String,
    state: String,
    parent_id: Option<Uuid>,
    user_id: Uuid,
    project_id: Uuid,
    task_id: Option<Uuid>,
    run_id: Option<Uuid>,
    job_id: Option<Uuid>,
    thread_id: Option<Uuid>,
    blocks_run: bool,
    request: Value,
    failure: Option<String>,
    attempt: i32,
    expired_leases: i32,
    fencing_token: i64,
    worker: Option<String>,
    lease_expires_at: Option<OffsetDateTime>,
    trace_id: String,
    created_at: OffsetDateTime,
    ended_at: Option<OffsetDateTime>,
}

fn corrupt_handoff(column: &'static str) -> DbError {
    DbError::Corrupt { table: "handoffs", column }
}

impl TryFrom<HandoffRow> for HandoffRecord {
    type Error = DbError;

    fn try_from(row: HandoffRow) -> Result<Self, DbError> {
        Ok(Self {
            id: HandoffId::from_uuid(row.handoff_id),
            kind: HandoffKind::from_name(&row.kind).ok_or_else(|| corrupt_handoff("kind"))?,
            state: HandoffState::from_name(&row.state).ok_or_else(|| corrupt_handoff("state"))?,
            parent: row.parent_id.map(HandoffId::from_uuid),
            user: UserId::from_uuid(row.user_id),
            project: ProjectId::from_uuid(row.project_id),
            task: row.task_id.map(TaskId::from_uuid),
            run: row.run_id.map(RunId::from_uuid),
            job: row.job_id.map(JobId::from_uuid),
            thread: row.thread_id.map(ThreadId::from_uuid),
            driven: row.blocks_run,
            request: serde_json::from_value(row.request)
                .map_err(corrupt_column("handoffs", "request"))?,
            failure: row.failure,
            attempt: u32::try_from(row.attempt).map_err(corrupt_column("handoffs", "attempt"))?,
            lost: u32::try_from(row.expired_leases)
                .map_err(corrupt_column("handoffs", "expired_leases"))?,
            fencing_token: row.fencing_token,
            worker: row.worker,
            lease_expires_at: row.lease_expires_at,
            trace: row.trace_id,
            created_at: row.created_at,
            ended_at: row.ended_at,
        })
    }
}

/// Stores a handoff; it may be claimed at once.
#[tracing::instrument(name = "db.handoffs.insert_handoff", skip_all)]
pub async fn insert_handoff(conn: &mut Conn, new: &NewHandoff<'_>) -> Result<(), DbError> {
    let kind = new.request.handoff_kind();
    let request =
        serde_json::to_value(new.request).map_err(corrupt_column("handoffs", "request"))?;
    sqlx::query!(
        "
        INSERT INTO handoffs (handoff_id, kind, role, state, parent_id, user_id, project_id, task_id, run_id, job_id, thread_id,
            blocks_run, question_key, request, trace_id, created_at, due_at)
        VALUES ($1, $2, $3, 'queued', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp(), clock_timestamp())
        ",
        new.id.as_uuid(),
        kind.as_str(),
        kind.assigned_role().as_str(),
        new.parent.map(HandoffId::as_uuid),
        new.user.as_uuid(),
        new.project.as_uuid(),
        new.task.map(TaskId::as_uuid),
        new.run.map(RunId::as_uuid),
        new.job.map(JobId::as_uuid),
        new.thread.map(ThreadId::as_uuid),
        new.driven,
        new.about,
        request,
        new.trace,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Names the profile of a handoff that has neither a task nor a chat.
#[tracing::instrument(name = "db.handoffs.set_handoff_profile", skip_all)]
pub async fn set_handoff_profile(
    conn: &mut Conn,
    id: HandoffId,
    profile: &ProfileName,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE handoffs SET profile = $2 WHERE handoff_id = $1",
        id.as_uuid(),
        profile.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The profile that a handoff names: its own, that of the handoff which this is a share of, or that of its chat. The profile of its
/// task is not among them.
#[tracing::instrument(name = "db.handoffs.profile_of_handoff", skip_all)]
pub async fn profile_of_handoff(
    conn: &mut Conn,
    id: HandoffId,
) -> Result<Option<ProfileName>, DbError> {
    let name = sqlx::query_scalar!(
        "
        SELECT coalesce(h.profile, p.profile, c.profile)
        FROM handoffs h
        LEFT JOIN handoffs p ON p.handoff_id = h.parent_id
        LEFT JOIN chat_threads c ON c.thread_id = h.thread_id
        WHERE h.handoff_id = $1
        ",
        id.as_uuid(),
    );
    let name = name.fetch_optional(conn).await?.flatten();
    name.map(TryInto::try_into).transpose().map_err(corrupt_column("handoffs", "profile"))
}

/// Who claims, and how.
#[derive(Clone, Copy, Debug)]
pub struct HandoffClaim<'a> {
    /// The role of the program.
    pub role: AgentRole,
    /// The name of the program.
    pub worker: &'a str,
    /// Names the claim.
    pub claim_id: Uuid,
    /// How long it may be silent.
    pub ttl_ms: i64,
    /// Most handoffs of this role that may be worked on at once, over all programs.
    pub at_once: i64,
}

/// Gives the handoff that is due longest. Claimed again under the same id, the same one is given. Chats are not claimed: they are
/// given directly.
#[tracing::instrument(name = "db.handoffs.claim_handoff", skip_all)]
pub async fn claim_handoff(
    conn: &mut Conn,
    claim: HandoffClaim<'_>,
) -> Result<Option<HandoffRecord>, DbError> {
    sqlx::query_as!(
        HandoffRow,
        r#"
        WITH before AS MATERIALIZED (
            SELECT handoff_id FROM handoffs WHERE claim_id = $3 AND worker = $2 AND state = 'claimed'
        ), free AS MATERIALIZED (
            SELECT handoff_id FROM handoffs h
            WHERE state = 'queued' AND role = $1 AND kind <> 'chat' AND due_at <= clock_timestamp()
                AND NOT EXISTS (SELECT FROM before)
                AND (SELECT count(*) FROM handoffs c WHERE c.state = 'claimed' AND c.role = $1) < $5
                AND NOT EXISTS (SELECT FROM task_parks p
                    WHERE p.task_id = h.task_id AND (p.parked_until IS NULL OR p.parked_until > clock_timestamp()))
                AND NOT coalesce(
                    (SELECT i.kind = 'pause' FROM task_instructions i
                        WHERE i.task_id = h.task_id AND i.applied_at IS NULL AND i.kind IN ('pause', 'resume')
                        ORDER BY i.number DESC LIMIT 1),
                    EXISTS (SELECT FROM waits w
                        WHERE w.task_id = h.task_id AND w.resolved_at IS NULL AND w.reason = 'paused'))
            ORDER BY due_at
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        ), taken AS (
            UPDATE handoffs h
            SET state = 'claimed', worker = $2, claim_id = $3, fencing_token = fencing_token + 1, attempt = attempt + 1,
                lease_expires_at = clock_timestamp() + $4::bigint * interval '1 millisecond'
            FROM free WHERE h.handoff_id = free.handoff_id
            RETURNING h.*
        ), given AS (
            SELECT * FROM taken
            UNION ALL
            SELECT h.* FROM handoffs h JOIN before USING (handoff_id)
        )
        SELECT handoff_id AS "handoff_id!", kind AS "kind!", state AS "state!", parent_id, user_id AS "user_id!",
            project_id AS "project_id!", task_id, run_id, job_id, thread_id, blocks_run AS "blocks_run!",
            request AS "request!", failure, attempt AS "attempt!", expired_leases AS "expired_leases!",
            fencing_token AS "fencing_token!", worker, lease_expires_at, trace_id AS "trace_id!", created_at AS "created_at!", ended_at
        FROM given
        "#,
        claim.role.as_str(),
        claim.worker,
        claim.claim_id,
        claim.ttl_ms,
        claim.at_once,
    )
    .fetch_optional(conn)
    .await?
    .map(HandoffRecord::try_from)
    .transpose()
}

/// Takes a chat that was just stored, for the process that holds the line.
#[tracing::instrument(name = "db.handoffs.claim_chat", skip_all)]
pub async fn claim_chat(
    conn: &mut Conn,
    id: HandoffId,
    worker: &str,
    ttl_ms: i64,
) -> Result<Option<HandoffRecord>, DbError> {
    sqlx::query_as!(
        HandoffRow,
        r#"
        UPDATE handoffs SET state = 'claimed', worker = $2, fencing_token = fencing_token + 1, attempt = attempt + 1,
            lease_expires_at = clock_timestamp() + $3::bigint * interval '1 millisecond'
        WHERE handoff_id = $1 AND state = 'queued' AND kind = 'chat'
        RETURNING handoff_id, kind, state, parent_id, user_id, project_id, task_id, run_id, job_id, thread_id, blocks_run, request,
            failure, attempt, expired_leases, fencing_token, worker, lease_expires_at, trace_id, created_at, ended_at
        "#,
        id.as_uuid(),
        worker,
        ttl_ms,
    )
    .fetch_optional(conn)
    .await?
    .map(HandoffRecord::try_from)
    .transpose()
}

/// A claim as its holder names it.
#[derive(Clone, Copy, Debug)]
pub struct HandoffLease<'a> {
    /// The handoff.
    pub id: HandoffId,
    /// The program.
    pub worker: &'a str,
    /// The token of the claim.
    pub fencing_token: i64,
}

/// Locks a handoff that is worked on under this claim; `None` when it is not, or not any more.
#[tracing::instrument(name = "db.handoffs.lock_claimed_handoff", skip_all)]
pub async fn lock_claimed_handoff(
    conn: &mut Conn,
    held: HandoffLease<'_>,
) -> Result<Option<HandoffRecord>, DbError> {
    sqlx::query_as!(
        HandoffRow,
        "
        SELECT handoff_id, kind, state, parent_id, user_id, project_id, task_id, run_id, job_id, thread_id, blocks_run, request,
            failure, attempt, expired_leases, fencing_token, worker, lease_expires_at, trace_id, created_at, ended_at
        FROM handoffs WHERE handoff_id = $1 AND worker = $2 AND fencing_token = $3 AND state = 'claimed'
        FOR NO KEY UPDATE
        ",
        held.id.as_uuid(),
        held.worker,
        held.fencing_token,
    )
    .fetch_optional(conn)
    .await?
    .map(HandoffRecord::try_from)
    .transpose()
}

/// Gives more time. `None` when it is not held under this claim.
#[tracing::instrument(name = "db.handoffs.renew_handoff_lease", skip_all)]
pub async fn renew_handoff_lease(
    conn: &mut Conn,
    held: HandoffLease<'_>,
    ttl_ms: i64,
) -> Result<Option<OffsetDateTime>, DbError> {
    let row = sqlx::query_scalar!(
        r#"
        UPDATE handoffs SET lease_expires_at = clock_timestamp() + $4::bigint * interval '1 millisecond'
        WHERE handoff_id = $1 AND worker = $2 AND fencing_token = $3 AND state = 'claimed'
        RETURNING lease_expires_at AS "until!"
        "#,
        held.id.as_uuid(),
        held.worker,
        held.fencing_token,
        ttl_ms,
    );
    Ok(row.fetch_optional(conn).await?)
}

/// How a handoff ends or goes on.
#[derive(Clone, Debug)]
pub enum HandoffTransition<'a> {
    /// It is answered.
    Done(&'a HandoffAnswer),
    /// It came to nothing for good.
    Failed(&'a str),
    /// It is tried again after a while.
    Again(&'a str, i64),
    /// Somebody else does a share first.
    Delegated,
    /// Nobody wants it any more.
    Cancelled,
}

/// Moves a handoff that is locked.
#[tracing::instrument(name = "db.handoffs.settle_handoff", skip_all)]
pub async fn settle_handoff(
    conn: &mut Conn,
    id: HandoffId,
    ending: &HandoffTransition<'_>,
) -> Result<(), DbError> {
    let (state, answer, failure, delay) = match ending {
        HandoffTransition::Done(answer) => {
            let answer =
                serde_json::to_value(answer).map_err(corrupt_column("handoffs", "answer"))?;
            (HandoffState::Done, Some(answer), None, 0)
        }
        HandoffTransition::Failed(why) => (HandoffState::Failed, None, Some(*why), 0),
        HandoffTransition::Again(why, delay) => (HandoffState::Queued, None, Some(*why), *delay),
        HandoffTransition::Delegated => (HandoffState::Delegated, None, None, 0),
        HandoffTransition::Cancelled => (HandoffState::Cancelled, None, None, 0),
    };
    sqlx::query!(
        "
        UPDATE handoffs SET state = $2, answer = $3, failure = $4, claim_id = NULL, lease_expires_at = NULL,
            due_at = clock_timestamp() + $5::bigint * interval '1 millisecond',
            ended_at = CASE WHEN $2 IN ('done', 'failed', 'cancelled') THEN clock_timestamp() END
        WHERE handoff_id = $1
        ",
        id.as_uuid(),
        state.as_str(),
        answer,
        failure,
        delay,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A handoff whose share is done may be claimed again. `None` when it does not wait for one.
#[tracing::instrument(name = "db.handoffs.requeue_delegated_handoff", skip_all)]
pub async fn requeue_delegated_handoff(conn: &mut Conn, id: HandoffId) -> Result<bool, DbError> {
    // It has gone on as it should, so this is no new attempt.
    let done = sqlx::query!(
        "
        UPDATE handoffs SET state = 'queued', due_at = clock_timestamp(), attempt = attempt - 1
        WHERE handoff_id = $1 AND state = 'delegated'
        ",
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Whether a person has paused a task: the last word that is not taken up yet says so, or the run waits for them.
#[tracing::instrument(name = "db.handoffs.is_task_paused", skip_all, fields(task.id = %task))]
pub async fn is_task_paused(conn: &mut Conn, task: TaskId) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT coalesce(
            (SELECT i.kind = 'pause' FROM task_instructions i
                WHERE i.task_id = $1 AND i.applied_at IS NULL AND i.kind IN ('pause', 'resume')
                ORDER BY i.number DESC LIMIT 1),
            EXISTS (SELECT FROM waits w WHERE w.task_id = $1 AND w.resolved_at IS NULL AND w.reason = 'paused')) AS "paused!"
        "#,
        task.as_uuid(),
    );
    Ok(found.fetch_one(conn).await?)
}

/// Takes a handoff that is locked back from whoever works on it, as if it had not been given: it is no attempt, and what was thought
/// stays.
#[tracing::instrument(name = "db.handoffs.requeue_claimed_handoff", skip_all)]
pub async fn requeue_claimed_handoff(conn: &mut Conn, id: HandoffId) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE handoffs SET state = 'queued', claim_id = NULL, lease_expires_at = NULL, due_at = clock_timestamp(), attempt = attempt - 1
        WHERE handoff_id = $1
        ",
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lets analysts' claims come one after the other; to be called in a transaction.
pub async fn lock_analyst_claims(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('cynode.analysts'))").execute(conn).await?;
    Ok(())
}

/// Locks a handoff of which still nothing is heard under this claim.
#[tracing::instrument(name = "db.handoffs.lock_expired_handoff", skip_all)]
pub async fn lock_expired_handoff(
    conn: &mut Conn,
    held: HandoffLease<'_>,
) -> Result<Option<HandoffRecord>, DbError> {
    sqlx::query_as!(
        HandoffRow,
        "
        SELECT handoff_id, kind, state, parent_id, user_id, project_id, task_id, run_id, job_id, thread_id, blocks_run, request,
            failure, attempt, expired_leases, fencing_token, worker, lease_expires_at, trace_id, created_at, ended_at
        FROM handoffs WHERE handoff_id = $1 AND worker = $2 AND fencing_token = $3 AND state = 'claimed'
            AND lease_expires_at < clock_timestamp()
        FOR NO KEY UPDATE
        ",
        held.id.as_uuid(),
        held.worker,
        held.fencing_token,
    )
    .fetch_optional(conn)
    .await?
    .map(HandoffRecord::try_from)
    .transpose()
}

/// Counts that nothing was heard of whoever worked on it.
#[tracing::instrument(name = "db.handoffs.count_lease_expiry", skip_all)]
pub async fn count_lease_expiry(conn: &mut Conn, id: HandoffId) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE handoffs SET expired_leases = expired_leases + 1 WHERE handoff_id = $1",
        id.as_uuid()
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lets questions of a job and the ends of their handoffs come one after the other; to be called in a transaction.
pub async fn lock_job_questions(conn: &mut Conn, job: JobId) -> Result<(), DbError> {
    let name = format!("cynode.questions {job}");
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name)
        .execute(conn)
        .await?;
    Ok(())
}

/// How many reports of a job were handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportHandoffCounts {
    /// All of them.
    pub all: i64,
    /// Those that are still open.
    pub open: i64,
    /// Those that ask for a person.
    pub of_people: i64,
    /// Those that ask for a person and are still open.
    pub of_people_open: i64,
}

/// How many reports of a job were handed off, and how many of them are still open.
#[tracing::instrument(name = "db.handoffs.count_job_report_handoffs", skip_all)]
pub async fn count_job_report_handoffs(
    conn: &mut Conn,
    job: JobId,
) -> Result<ReportHandoffCounts, DbError> {
    let row = sqlx::query_as!(
        ReportHandoffCounts,
        r#"
        SELECT count(*) AS "all!", count(*) FILTER (WHERE ended_at IS NULL) AS "open!",
            count(*) FILTER (WHERE of_people) AS "of_people!",
            count(*) FILTER (WHERE of_people AND ended_at IS NULL) AS "of_people_open!"
        FROM (
            SELECT ended_at, request -> 'report' ->> 'kind' = 'request_human_input' AS of_people
            FROM handoffs WHERE job_id = $1 AND kind = 'report'
        ) asked
        "#,
        job.as_uuid(),
    );
    Ok(row.fetch_one(conn).await?)
}

/// The open handoff of a job that asks the same in the same words.
#[tracing::instrument(name = "db.handoffs.find_duplicate_question", skip_all)]
pub async fn find_duplicate_question(
    conn: &mut Conn,
    job: JobId,
    kind: ReportKind,
    summary: &str,
) -> Result<Option<HandoffId>, DbError> {
    let found = sqlx::query_scalar!(
        "
        SELECT handoff_id FROM handoffs
        WHERE job_id = $1 AND kind = 'report' AND ended_at IS NULL
            AND request -> 'report' ->> 'kind' = $2 AND request -> 'report' ->> 'summary' = $3
        LIMIT 1
        ",
        job.as_uuid(),
        kind.as_str(),
        summary,
    );
    Ok(found.fetch_optional(conn).await?.map(HandoffId::from_uuid))
}

/// Notes which handoff asks what a report asks.
#[tracing::instrument(name = "db.handoffs.link_report_handoff", skip_all)]
pub async fn link_report_handoff(
    conn: &mut Conn,
    id: HandoffId,
    report: Uuid,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE agent_reports SET handoff_id = $2 WHERE report_id = $1",
        report,
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The newest report of a job that asks and that no handoff asks, while the job runs: of those that ask for a person, of the others, or
/// of both. Whoever asks for a person comes first.
#[tracing::instrument(name = "db.handoffs.next_unasked_report", skip_all)]
pub async fn next_unasked_report(
    conn: &mut Conn,
    job: JobId,
    of_people: bool,
    others: bool,
) -> Result<Option<ReportView>, DbError> {
    let row = sqlx::query!(
        "
        SELECT r.report_id, r.agent_role, u.key, r.kind, r.summary, r.details, r.reported_at
        FROM agent_reports r JOIN jobs j ON j.job_id = r.job_id JOIN work_units u ON u.unit_id = j.unit_id
        WHERE r.job_id = $1 AND j.state = 'running' AND r.handoff_id IS NULL
            AND (($2::boolean AND r.kind = 'request_human_input')
                OR ($3::boolean AND r.kind IN ('work_blocked', 'needs_clarification')))
        ORDER BY r.kind = 'request_human_input' DESC, r.reported_at DESC, r.report_id DESC LIMIT 1
        ",
        job.as_uuid(),
        of_people,
        others,
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let wrong = |column| DbError::Corrupt { table: "agent_reports", column };
        Ok(ReportView {
            report_id: row.report_id,
            agent_role: AgentRole::from_name(&row.agent_role).ok_or_else(|| wrong("agent_role"))?,
            job_id: Some(job),
            unit: Some(row.key),
            kind: ReportKind::from_name(&row.kind).ok_or_else(|| wrong("kind"))?,
            summary: row.summary,
            details: row.details,
            reported_at: row.reported_at,
        })
    })
    .transpose()
}

/// Handoffs of which nothing is heard.
#[tracing::instrument(name = "db.handoffs.list_expired_handoffs", skip_all)]
pub async fn list_expired_handoffs(
    conn: &mut Conn,
    most: i64,
) -> Result<Vec<HandoffRecord>, DbError> {
    sqlx::query_as!(
        HandoffRow,
        "
        SELECT handoff_id, kind, state, parent_id, user_id, project_id, task_id, run_id, job_id, thread_id, blocks_run, request,
            failure, attempt, expired_leases, fencing_token, worker, lease_expires_at, trace_id, created_at, ended_at
        FROM handoffs WHERE state = 'claimed' AND lease_expires_at < clock_timestamp()
        ORDER BY lease_expires_at LIMIT $1
        ",
        most,
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(HandoffRecord::try_from)
    .collect()
}

/// The question of a run that it has not taken the answer to.
#[tracing::instrument(name = "db.handoffs.handoff_of_run", skip_all)]
pub async fn handoff_of_run(conn: &mut Conn, task: TaskId) -> Result<Option<RunHandoff>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT h.handoff_id, h.question_key, h.state, h.answer, h.failure,
            coalesce((SELECT sum(t.cost_micros) FROM think_calls t
                WHERE t.handoff_created_at >= h.created_at AND t.handoff_id IN (
                    SELECT h.handoff_id
                    UNION ALL SELECT share.handoff_id FROM handoffs share WHERE share.parent_id = h.handoff_id)), 0)::bigint
                AS "cost_micros!"
        FROM handoffs h WHERE h.task_id = $1 AND h.blocks_run AND h.consumed_at IS NULL AND h.state <> 'cancelled'
        "#,
        task.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let answer = row.answer.map(serde_json::from_value).transpose();
        Ok(RunHandoff {
            handoff_id: HandoffId::from_uuid(row.handoff_id),
            about: row.question_key,
            state: HandoffState::from_name(&row.state).ok_or_else(|| corrupt_handoff("state"))?,
            answer: answer.map_err(corrupt_column("handoffs", "answer"))?,
            failure: row.failure,
            cost_micros: row.cost_micros.unsigned_abs(),
        })
    })
    .transpose()
}

/// A run takes the answer. `false` when there is none to take.
#[tracing::instrument(name = "db.handoffs.take_handoff_answer", skip_all)]
pub async fn take_handoff_answer(
    conn: &mut Conn,
    task: TaskId,
    id: HandoffId,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE handoffs SET consumed_at = clock_timestamp()
        WHERE handoff_id = $2 AND task_id = $1 AND blocks_run AND consumed_at IS NULL AND state IN ('done', 'failed')
        ",
        task.as_uuid(),
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Nobody wants the open handoffs of a task any more, nor their shares; of a run's own questions if `driven`, of all else.
/// Gives which.
#[tracing::instrument(name = "db.handoffs.cancel_task_handoffs", skip_all)]
pub async fn cancel_task_handoffs(
    conn: &mut Conn,
    task: TaskId,
    driven: bool,
) -> Result<Vec<HandoffId>, DbError> {
    let rows = sqlx::query_scalar!(
        "
        WITH meant AS (
            SELECT handoff_id FROM handoffs
            WHERE task_id = $1 AND consumed_at IS NULL AND state <> 'cancelled' AND (NOT $2 OR blocks_run)
        )
        UPDATE handoffs h
        SET state = CASE WHEN h.state IN ('done', 'failed') THEN h.state ELSE 'cancelled' END,
            ended_at = coalesce(h.ended_at, clock_timestamp()), consumed_at = clock_timestamp(),
            claim_id = NULL, lease_expires_at = NULL
        WHERE h.handoff_id IN (SELECT handoff_id FROM meant
                UNION ALL SELECT share.handoff_id FROM handoffs share JOIN meant ON share.parent_id = meant.handoff_id)
            AND (h.ended_at IS NULL OR h.handoff_id IN (SELECT handoff_id FROM meant))
        RETURNING h.handoff_id
        ",
        task.as_uuid(),
        driven,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(HandoffId::from_uuid).collect())
}

/// Ends every token of these handoffs.
#[tracing::instrument(name = "db.handoffs.revoke_handoff_tokens", skip_all)]
pub async fn revoke_handoff_tokens(
    conn: &mut Conn,
    ids: &[HandoffId],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    sqlx::query!(
        "UPDATE agent_tokens SET revoked_at = $2 WHERE handoff_id = ANY ($1) AND revoked_at IS NULL",
        &ids,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Ties a token to a handoff: it ends with it.
#[tracing::instrument(name = "db.handoffs.bind_token_to_handoff", skip_all)]
pub async fn bind_token_to_handoff(
    conn: &mut Conn,
    token: cynode_core::ids::AgentTokenId,
    id: HandoffId,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE agent_tokens SET handoff_id = $2 WHERE agent_token_id = $1",
        token.as_uuid(),
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The shares of a handoff that are answered, oldest first.
#[tracing::instrument(name = "db.handoffs.list_analyses", skip_all)]
pub async fn list_analyses(
    conn: &mut Conn,
    parent: HandoffId,
) -> Result<Vec<AnalysisAnswer>, DbError> {
    let rows = sqlx::query_scalar!(
        r#"SELECT answer AS "answer!" FROM handoffs WHERE parent_id = $1 AND state = 'done' ORDER BY created_at"#,
        parent.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|answer| match serde_json::from_value(answer) {
            Ok(HandoffAnswer::Analysed(analysed)) => Ok(analysed),
            Ok(_) => Err(corrupt_handoff("answer")),
            Err(error) => Err(corrupt_column("handoffs", "answer")(error)),
        })
        .collect()
}

/// How the present plan of a run came about.
#[tracing::instrument(name = "db.handoffs.latest_plan_of_run", skip_all)]
pub async fn latest_plan_of_run(
    conn: &mut Conn,
    run: RunId,
) -> Result<Option<PlanAnswer>, DbError> {
    let row = sqlx::query_scalar!(
        r#"
        SELECT answer AS "answer!" FROM handoffs
        WHERE run_id = $1 AND kind = 'plan' AND state = 'done' AND answer ->> 'answer' = 'planned'
        ORDER BY created_at DESC LIMIT 1
        "#,
        run.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|answer| match serde_json::from_value(answer) {
        Ok(HandoffAnswer::Planned(planned)) => Ok(planned),
        Ok(_) => Err(corrupt_handoff("answer")),
        Err(error) => Err(corrupt_column("handoffs", "answer")(error)),
    })
    .transpose()
}

/// One handoff.
#[tracing::instrument(name = "db.handoffs.get_handoff", skip_all)]
pub async fn get_handoff(conn: &mut Conn, id: HandoffId) -> Result<Option<HandoffRecord>, DbError> {
    sqlx::query_as!(
        HandoffRow,
        "
        SELECT handoff_id, kind, state, parent_id, user_id, project_id, task_id, run_id, job_id, thread_id, blocks_run, request,
            failure, attempt, expired_leases, fencing_token, worker, lease_expires_at, trace_id, created_at, ended_at
        FROM handoffs WHERE handoff_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(HandoffRecord::try_from)
    .transpose()
}

/// What came of a handoff.
#[tracing::instrument(name = "db.handoffs.get_handoff_answer", skip_all)]
pub async fn get_handoff_answer(
    conn: &mut Conn,
    id: HandoffId,
) -> Result<Option<HandoffAnswer>, DbError> {
    let found =
        sqlx::query_scalar!("SELECT answer FROM handoffs WHERE handoff_id = $1", id.as_uuid());
    let found = found.fetch_optional(conn).await?.flatten();
    found.map(serde_json::from_value).transpose().map_err(corrupt_column("handoffs", "answer"))
}

/// What agents reported about a task, oldest first; the newest thousand.
pub async fn list_task_reports(conn: &mut Conn, task: TaskId) -> Result<Vec<ReportView>, DbError> {
    list_reports(conn, task, None).await
}

/// What was reported, of one job if it is named: the newest, oldest of them first.
#[tracing::instrument(name = "db.handoffs.list_reports", skip_all)]
async fn list_reports(
    conn: &mut Conn,
    task: TaskId,
    job: Option<Uuid>,
) -> Result<Vec<ReportView>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT * FROM (
            SELECT r.report_id, r.agent_role, r.job_id, u.key AS "key?", r.kind, r.summary, r.details, r.reported_at
            FROM agent_reports r LEFT JOIN jobs j ON j.job_id = r.job_id LEFT JOIN work_units u ON u.unit_id = j.unit_id
            WHERE r.task_id = $1 AND ($2::uuid IS NULL OR r.job_id = $2)
            ORDER BY r.reported_at DESC, r.report_id DESC LIMIT 1000
        ) newest ORDER BY reported_at, report_id
        "#,
        task.as_uuid(),
        job,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let wrong = |column| DbError::Corrupt { table: "agent_reports", column };
            Ok(ReportView {
                report_id: row.report_id,
                agent_role: AgentRole::from_name(&row.agent_role)
                    .ok_or_else(|| wrong("agent_role"))?,
                job_id: row.job_id.map(JobId::from_uuid),
                unit: row.key,
                kind: ReportKind::from_name(&row.kind).ok_or_else(|| wrong("kind"))?,
                summary: row.summary,
                details: row.details,
                reported_at: row.reported_at,
            })
        })
        .collect()
}

/// The handoff that a token is for.
#[tracing::instrument(name = "db.handoffs.handoff_of_token", skip_all)]
pub async fn handoff_of_token(
    conn: &mut Conn,
    token: cynode_core::ids::AgentTokenId,
) -> Result<Option<HandoffId>, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT handoff_id FROM agent_tokens WHERE agent_token_id = $1",
        token.as_uuid(),
    );
    Ok(found.fetch_optional(conn).await?.flatten().map(HandoffId::from_uuid))
}

/// The handoffs of a project, newest first; of one task if it is named.
#[tracing::instrument(name = "db.handoffs.list_handoffs", skip_all)]
pub async fn list_handoffs(
    conn: &mut Conn,
    project: ProjectId,
    task: Option<TaskId>,
    page: PageRequest,
) -> Result<Vec<HandoffRecord>, DbError> {
    sqlx::query_as!(
        HandoffRow,
        "
        SELECT handoff_id, kind, state, parent_id, user_id, project_id, task_id, run_id, job_id, thread_id, blocks_run, request,
            failure, attempt, expired_leases, fencing_token, worker, lease_expires_at, trace_id, created_at, ended_at
        FROM handoffs
        WHERE project_id = $1 AND ($2::uuid IS NULL OR task_id = $2) AND ($3::uuid IS NULL OR handoff_id < $3)
        ORDER BY handoff_id DESC LIMIT $4
        ",
        project.as_uuid(),
        task.map(TaskId::as_uuid),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(HandoffRecord::try_from)
    .collect()
}

/// What is kept of a thought beside the thought itself.
#[derive(Clone, Debug)]
pub struct NewModelDecision<'a> {
    /// The handoff.
    pub handoff: &'a HandoffRecord,
    /// The thought.
    pub decision: &'a ModelDecision,
    /// The question.
    pub prompt: &'a Value,
    /// The calls at the model egress.
    pub calls: &'a [CallId],
}

/// Keeps a thought of a handoff that is locked. Kept again, nothing changes. One that found no answer is replaced by one that did, and one
/// to another question by whoever claimed the handoff later: what it is about has changed meanwhile, and what was thought after
/// it is gone too. `false` when the same claim asks two questions at one step.
#[tracing::instrument(name = "db.handoffs.record_decision", skip_all)]
pub async fn record_decision(conn: &mut Conn, new: &NewModelDecision<'_>) -> Result<bool, DbError> {
    let key = ThinkCallKey::new(new);
    let mut totals = ThinkCallTotals::default();
    if let Some(before) = find_think_call(conn, key).await? {
        match before.compare_with(new) {
            ThinkCallMatch::Recorded => return Ok(true),
            ThinkCallMatch::Conflict => return Ok(false),
            ThinkCallMatch::Unanswered => totals = before.into_totals(),
            ThinkCallMatch::Outdated => {}
        }
        key.delete_with_later_steps(conn).await?;
    }
    totals.add_decision(new);
    insert_think_call(conn, key, new, &totals).await?;
    insert_think_prompt(conn, key, new.prompt).await?;
    Ok(true)
}

/// The key of a recorded think call.
#[derive(Clone, Copy)]
struct ThinkCallKey {
    handoff: Uuid,
    step: i32,
    handoff_created_at: OffsetDateTime,
}

impl ThinkCallKey {
    fn new(new: &NewModelDecision<'_>) -> Self {
        Self {
            handoff: new.handoff.id.as_uuid(),
            step: saturate_i32(new.decision.step),
            handoff_created_at: new.handoff.created_at,
        }
    }

    /// Deletes the call and those of later steps, with their prompts.
    async fn delete_with_later_steps(self, conn: &mut Conn) -> Result<(), DbError> {
        sqlx::query!(
            "
            WITH prompts AS (DELETE FROM think_prompts WHERE handoff_id = $1 AND step >= $2)
            DELETE FROM think_calls WHERE handoff_id = $1 AND step >= $2 AND handoff_created_at = $3
            ",
            self.handoff,
            self.step,
            self.handoff_created_at,
        )
        .execute(conn)
        .await?;
        Ok(())
    }
}

/// A think call that was recorded at the same step.
struct EarlierThinkCall {
    prompt_digest: String,
    answered: bool,
    fencing_token: i64,
    attempts: i32,
    model_call_ids: Vec<Uuid>,
    input_tokens: i64,
    output_tokens: i64,
    cost_micros: i64,
}

/// How a recorded think call relates to a new one at the same step.
enum ThinkCallMatch {
    /// The new one is recorded already.
    Recorded,
    /// The same claim asked another question.
    Conflict,
    /// It is the same question, and it had no answer.
    Unanswered,
    /// A later claim asks another question.
    Outdated,
}

impl EarlierThinkCall {
    fn compare_with(&self, new: &NewModelDecision<'_>) -> ThinkCallMatch {
        if self.prompt_digest == new.decision.prompt_digest {
            // The new one is sent again after the response to it was lost.
            let known = |call: &CallId| self.model_call_ids.contains(&call.as_uuid());
            let repeated = !new.calls.is_empty() && new.calls.iter().all(known);
            if self.answered || repeated {
                ThinkCallMatch::Recorded
            } else {
                ThinkCallMatch::Unanswered
            }
        } else if self.fencing_token >= new.handoff.fencing_token {
            ThinkCallMatch::Conflict
        } else {
            ThinkCallMatch::Outdated
        }
    }

    /// Calls without an answer cost something too.
    fn into_totals(self) -> ThinkCallTotals {
        ThinkCallTotals {
            attempts: self.attempts,
            model_call_ids: self.model_call_ids,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            earlier_cost_micros: self.cost_micros,
        }
    }
}

/// What was used for a question, earlier calls without an answer included.
#[derive(Default)]
struct ThinkCallTotals {
    attempts: i32,
    model_call_ids: Vec<Uuid>,
    input_tokens: i64,
    output_tokens: i64,
    /// Cost of the earlier calls. The database adds the cost of the new ones.
    earlier_cost_micros: i64,
}

impl ThinkCallTotals {
    fn add_decision(&mut self, new: &NewModelDecision<'_>) {
        let add = |sum: i64, value: u64| saturate_i64(value).saturating_add(sum);
        self.attempts = saturate_i32(new.decision.attempts).saturating_add(self.attempts);
        self.input_tokens = add(self.input_tokens, new.decision.input_tokens);
        self.output_tokens = add(self.output_tokens, new.decision.output_tokens);
        self.model_call_ids.extend(new.calls.iter().map(|call| call.as_uuid()));
    }
}

fn saturate_i32(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn saturate_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

async fn find_think_call(
    conn: &mut Conn,
    key: ThinkCallKey,
) -> Result<Option<EarlierThinkCall>, DbError> {
    let found = sqlx::query_as!(
        EarlierThinkCall,
        r#"
        SELECT prompt_digest, output IS NOT NULL AS "answered!", fencing_token, attempts, model_call_ids, input_tokens,
            output_tokens, cost_micros
        FROM think_calls WHERE handoff_id = $1 AND step = $2 AND handoff_created_at = $3
        "#,
        key.handoff,
        key.step,
        key.handoff_created_at,
    );
    Ok(found.fetch_optional(conn).await?)
}

async fn insert_think_call(
    conn: &mut Conn,
    key: ThinkCallKey,
    new: &NewModelDecision<'_>,
    totals: &ThinkCallTotals,
) -> Result<(), DbError> {
    let NewModelDecision { handoff, decision, calls, .. } = new;
    let new_call_ids: Vec<Uuid> = calls.iter().map(|call| call.as_uuid()).collect();
    sqlx::query!(
        "
        INSERT INTO think_calls (handoff_id, step, handoff_created_at, fencing_token, project_id, task_id, kind, prompt_digest,
            schema_digest, model, output, attempts, validation_errors, input_tokens, output_tokens, cost_micros, latency_ms,
            model_call_ids, trace_id, decided_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
            $16::bigint + coalesce((SELECT sum(c.cost_micros) FROM model_calls c
                WHERE c.project_id = $5 AND c.started_at >= $3 AND c.call_id = ANY ($17)), 0)::bigint,
            $18, $19, $20, clock_timestamp())
        ",
        key.handoff,
        key.step,
        key.handoff_created_at,
        handoff.fencing_token,
        handoff.project.as_uuid(),
        handoff.task.map(TaskId::as_uuid),
        decision.kind,
        decision.prompt_digest,
        decision.schema_digest,
        decision.model,
        decision.output,
        totals.attempts,
        &decision.validation_errors,
        totals.input_tokens,
        totals.output_tokens,
        totals.earlier_cost_micros,
        &new_call_ids,
        saturate_i64(decision.latency_ms),
        &totals.model_call_ids,
        handoff.trace,
    )
    .execute(conn)
    .await?;
    Ok(())
}

async fn insert_think_prompt(
    conn: &mut Conn,
    key: ThinkCallKey,
    prompt: &Value,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO think_prompts (handoff_id, step, prompt, created_at) VALUES ($1, $2, $3, clock_timestamp())
        ON CONFLICT DO NOTHING
        ",
        key.handoff,
        key.step,
        prompt,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What was thought about a handoff, in order, and what each thought cost.
#[tracing::instrument(name = "db.handoffs.list_decisions", skip_all)]
pub async fn list_decisions(
    conn: &mut Conn,
    id: HandoffId,
    handoff_created_at: OffsetDateTime,
) -> Result<Vec<(ModelDecision, i64)>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT step, kind, prompt_digest, schema_digest, model, output, attempts, validation_errors, input_tokens, output_tokens,
            latency_ms, cost_micros
        FROM think_calls WHERE handoff_id = $1 AND handoff_created_at = $2 ORDER BY step
        ",
        id.as_uuid(),
        handoff_created_at,
    )
    .fetch_all(conn)
    .await?;
    let small = |column| {
        move |value: i32| u32::try_from(value).map_err(corrupt_column("think_calls", column))
    };
    rows.into_iter()
        .map(|row| {
            let decision = ModelDecision {
                step: small("step")(row.step)?,
                kind: row.kind,
                prompt_digest: row.prompt_digest,
                schema_digest: row.schema_digest,
                model: row.model,
                output: row.output,
                attempts: small("attempts")(row.attempts)?,
                validation_errors: row.validation_errors,
                input_tokens: row.input_tokens.unsigned_abs(),
                output_tokens: row.output_tokens.unsigned_abs(),
                latency_ms: row.latency_ms.unsigned_abs(),
            };
            Ok((decision, row.cost_micros))
        })
        .collect()
}

/// Stores events of planning under a claim of a handoff that is locked. An event that is stored already has no effect; `false` if
/// another event has its number.
#[tracing::instrument(name = "db.handoffs.record_planning_events", skip_all)]
pub async fn record_planning_events(
    conn: &mut Conn,
    handoff: &HandoffRecord,
    events: &[TraceEvent],
) -> Result<bool, DbError> {
    // A handoff that waits for a budget is claimed again for days. A claim begins with its first event.
    if events.iter().any(|event| event.number == 1) {
        sqlx::query!(
            "DELETE FROM planning_events WHERE handoff_id = $1 AND fencing_token < $2",
            handoff.id.as_uuid(),
            handoff.fencing_token - KEPT_PLANNING_CLAIMS,
        )
        .execute(&mut *conn)
        .await?;
    }
    let numbers: Vec<i32> = events.iter().map(|event| saturate_i32(event.number)).collect();
    let kinds: Vec<String> = events.iter().map(|event| event.event.clone()).collect();
    let steps: Vec<i32> = events.iter().map(|event| saturate_i32(event.step)).collect();
    let profiles: Vec<String> = events.iter().map(|event| event.profile.clone()).collect();
    let data: Vec<Value> = events.iter().map(|event| event.data.clone()).collect();
    sqlx::query!(
        "
        INSERT INTO planning_events (handoff_id, fencing_token, number, event, step, profile, data, recorded_at)
        SELECT $1, $2, number, event, step, profile, data, clock_timestamp()
        FROM unnest($3::integer[], $4::text[], $5::integer[], $6::text[], $7::jsonb[]) AS new (number, event, step, profile, data)
        ON CONFLICT DO NOTHING
        ",
        handoff.id.as_uuid(),
        handoff.fencing_token,
        &numbers,
        &kinds,
        &steps,
        &profiles,
        &data,
    )
    .execute(&mut *conn)
    .await?;
    let same = sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!" FROM planning_events AS kept
        JOIN unnest($3::integer[], $4::text[], $5::integer[], $6::jsonb[]) AS new (number, event, step, data)
            USING (number, event, step, data)
        WHERE kept.handoff_id = $1 AND kept.fencing_token = $2
        "#,
        handoff.id.as_uuid(),
        handoff.fencing_token,
        &numbers,
        &kinds,
        &steps,
        &data,
    )
    .fetch_one(conn)
    .await?;
    Ok(usize::try_from(same).is_ok_and(|same| same == events.len()))
}

/// Lists the events of planning of a handoff, in the order in which they happened, with their claims and times.
#[tracing::instrument(name = "db.handoffs.list_planning_events", skip_all)]
pub async fn list_planning_events(
    conn: &mut Conn,
    handoff: &HandoffRecord,
) -> Result<Vec<(i64, OffsetDateTime, TraceEvent)>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT fencing_token, number, event, step, profile, data, recorded_at
        FROM planning_events WHERE handoff_id = $1 ORDER BY fencing_token, number
        ",
        handoff.id.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    let small = |column| {
        move |value: i32| u32::try_from(value).map_err(corrupt_column("planning_events", column))
    };
    rows.into_iter()
        .map(|row| {
            let event = TraceEvent {
                number: small("number")(row.number)?,
                event: row.event,
                trace_id: handoff.trace.clone(),
                step: small("step")(row.step)?,
                profile: row.profile,
                data: row.data,
            };
            Ok((row.fencing_token, row.recorded_at, event))
        })
        .collect()
}

/// The question of a thought, while it is kept.
#[tracing::instrument(name = "db.handoffs.get_decision_prompt", skip_all)]
pub async fn get_decision_prompt(
    conn: &mut Conn,
    id: HandoffId,
    step: u32,
) -> Result<Option<Value>, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT prompt FROM think_prompts WHERE handoff_id = $1 AND step = $2",
        id.as_uuid(),
        i32::try_from(step).unwrap_or(i32::MAX),
    );
    Ok(found.fetch_optional(conn).await?)
}

/// Removes questions from before `before`, at most `most`. Gives how many.
#[tracing::instrument(name = "db.handoffs.prune_prompts", skip_all)]
pub async fn prune_prompts(
    conn: &mut Conn,
    before: OffsetDateTime,
    most: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM think_prompts WHERE (handoff_id, step) IN
            (SELECT handoff_id, step FROM think_prompts WHERE created_at < $1 ORDER BY created_at LIMIT $2)
        ",
        before,
        most,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Takes what was said out of chats that ended before `before`, at most `most`: a conversation is kept in its thread. Gives how many.
#[tracing::instrument(name = "db.handoffs.prune_chat_contents", skip_all)]
pub async fn prune_chat_contents(
    conn: &mut Conn,
    before: OffsetDateTime,
    most: i64,
) -> Result<u64, DbError> {
    let request = HandoffRequest::Chat { messages: Vec::new() };
    let request = serde_json::to_value(request).map_err(corrupt_column("handoffs", "request"))?;
    let answer = HandoffAnswer::Chatted { content: String::new() };
    let answer = serde_json::to_value(answer).map_err(corrupt_column("handoffs", "answer"))?;
    let done = sqlx::query!(
        "
        UPDATE handoffs SET request = $3, answer = CASE WHEN answer IS NOT NULL THEN $4::jsonb END
        WHERE handoff_id IN
            (SELECT handoff_id FROM handoffs
                WHERE kind = 'chat' AND request -> 'messages' <> '[]'::jsonb AND ended_at < $1 ORDER BY ended_at LIMIT $2)
        ",
        before,
        most,
        request,
        answer,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// What agents reported about an attempt of a unit, oldest first.
pub async fn list_attempt_reports(
    conn: &mut Conn,
    task: TaskId,
    unit: &str,
    attempt: u32,
) -> Result<Vec<ReportView>, DbError> {
    let job = sqlx::query_scalar!(
        "
        SELECT j.job_id FROM jobs j JOIN work_units u USING (unit_id)
        WHERE j.task_id = $1 AND u.key = $2 AND j.attempt = $3 AND j.evidence_id IS NULL
        ",
        task.as_uuid(),
        unit,
        i32::try_from(attempt).unwrap_or(i32::MAX),
    );
    match job.fetch_optional(&mut *conn).await? {
        Some(job) => list_reports(conn, task, Some(job)).await,
        None => Ok(Vec::new()),
    }
}

/// The unit of a job that still runs; `None` when it does not.
#[tracing::instrument(name = "db.handoffs.running_unit", skip_all)]
pub async fn running_unit(conn: &mut Conn, job: JobId) -> Result<Option<String>, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT u.key FROM jobs j JOIN work_units u USING (unit_id) WHERE j.job_id = $1 AND j.state = 'running'",
        job.as_uuid(),
    );
    Ok(found.fetch_optional(conn).await?)
}
