//! Replays of decisions.

use cynode_core::{
    ids::{CallId, HandoffId, ReplayId, UserId},
    trace::TraceId,
    workflow::replays::ReplayState,
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Maximum number of replays of one decision that are listed.
const MAX_LISTED_REPLAYS: i64 = 50;

/// A replay to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewReplay<'a> {
    /// Unique id of the replay.
    pub id: ReplayId,
    /// Handoff of the decision.
    pub handoff: HandoffId,
    /// Number of the decision in its handoff.
    pub step: u32,
    /// Digest of the decision's prompt.
    pub prompt_digest: &'a str,
    /// Person who asks.
    pub user: UserId,
    /// Model that is asked.
    pub model: &'a str,
    /// Trace of the request.
    pub trace: TraceId,
    /// Time of the request.
    pub created_at: OffsetDateTime,
    /// Time from which a replay without an answer counts as cut off.
    pub expires_at: OffsetDateTime,
}

/// A stored replay.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayRecord {
    /// Unique id of the replay.
    pub id: ReplayId,
    /// Handoff of the decision.
    pub handoff: HandoffId,
    /// Number of the decision in its handoff.
    pub step: u32,
    /// How far it has got.
    pub state: ReplayState,
    /// Person who asked.
    pub user: UserId,
    /// Model that was asked for.
    pub model: String,
    /// Provider that answered.
    pub provider: Option<String>,
    /// Name of the model at that provider.
    pub upstream: Option<String>,
    /// Answer in the form that was asked for.
    pub output: Option<Value>,
    /// Text of an answer that is not in that form.
    pub answer_text: Option<String>,
    /// Why there is no answer, or what is wrong with it.
    pub error: Option<String>,
    /// Call of the model.
    pub call: Option<CallId>,
    /// Tokens that the model read.
    pub input_tokens: Option<i64>,
    /// Tokens that the model wrote.
    pub output_tokens: Option<i64>,
    /// Cost in millionths; `None` when it is not known.
    pub cost_micros: Option<i64>,
    /// How long the model took.
    pub latency_ms: Option<i64>,
    /// Time of the request.
    pub created_at: OffsetDateTime,
    /// Time from which a replay without an answer counts as cut off.
    pub expires_at: OffsetDateTime,
    /// Time of its end.
    pub ended_at: Option<OffsetDateTime>,
}

struct ReplayRow {
    replay_id: Uuid,
    handoff_id: Uuid,
    step: i32,
    state: String,
    user_id: Uuid,
    model: String,
    provider: Option<String>,
    upstream: Option<String>,
    output: Option<Value>,
    answer_text: Option<String>,
    error: Option<String>,
    call_id: Option<Uuid>,
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
    cost_micros: Option<i64>,
    latency_ms: Option<i64>,
    created_at: OffsetDateTime,
    expires_at: OffsetDateTime,
    ended_at: Option<OffsetDateTime>,
}

impl TryFrom<ReplayRow> for ReplayRecord {
    type Error = DbError;

    fn try_from(row: ReplayRow) -> Result<Self, DbError> {
        let unknown = DbError::Corrupt { table: "decision_replays", column: "state" };
        Ok(Self {
            id: ReplayId::from_uuid(row.replay_id),
            handoff: HandoffId::from_uuid(row.handoff_id),
            step: u32::try_from(row.step).map_err(corrupt_column("decision_replays", "step"))?,
            state: ReplayState::from_name(&row.state).ok_or(unknown)?,
            user: UserId::from_uuid(row.user_id),
            model: row.model,
            provider: row.provider,
            upstream: row.upstream,
            output: row.output,
            answer_text: row.answer_text,
            error: row.error,
            call: row.call_id.map(CallId::from_uuid),
            input_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
            cost_micros: row.cost_micros,
            latency_ms: row.latency_ms,
            created_at: row.created_at,
            expires_at: row.expires_at,
            ended_at: row.ended_at,
        })
    }
}

fn to_step_number(step: u32) -> i32 {
    i32::try_from(step).unwrap_or(i32::MAX)
}

/// Stores a replay, unless `max_running` replays of the person run. Returns whether it was stored.
#[tracing::instrument(name = "db.replays.insert_replay", skip_all)]
pub async fn insert_replay(
    conn: &mut Conn,
    new: &NewReplay<'_>,
    max_running: i64,
) -> Result<bool, DbError> {
    let stored = sqlx::query!(
        "
        INSERT INTO decision_replays (replay_id, handoff_id, step, prompt_digest, user_id, model, state, trace_id, created_at, expires_at)
        SELECT $1::uuid, $2::uuid, $3::integer, $4::text, $5::uuid, $6::text, 'running', $7::text, $8::timestamptz, $9::timestamptz
        WHERE (SELECT count(*) FROM decision_replays
            WHERE user_id = $5 AND state = 'running' AND expires_at > $8) < $10::bigint
        ",
        new.id.as_uuid(),
        new.handoff.as_uuid(),
        to_step_number(new.step),
        new.prompt_digest,
        new.user.as_uuid(),
        new.model,
        new.trace.to_string(),
        new.created_at,
        new.expires_at,
        max_running,
    )
    .execute(conn)
    .await?;
    Ok(stored.rows_affected() > 0)
}

/// How a replay ended.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplayOutcome {
    /// The model answered in the form that was asked for.
    Answered(Value),
    /// The model answered with this text, which is not in that form.
    Invalid {
        /// Text of the answer.
        text: String,
        /// What is wrong with it.
        error: String,
    },
    /// There is no answer, for this reason.
    Failed(String),
}

/// Ends a running replay. Tokens and cost are those of the recorded model call. Returns `false` when it had ended before.
#[tracing::instrument(name = "db.replays.finish_replay", skip_all)]
pub async fn finish_replay(
    conn: &mut Conn,
    id: ReplayId,
    outcome: &ReplayOutcome,
    call: Option<CallId>,
    latency_ms: i64,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let (state, output, text, error) = match outcome {
        ReplayOutcome::Answered(output) => {
            (ReplayState::Answered, Some(output.clone()), None, None)
        }
        ReplayOutcome::Invalid { text, error } => {
            (ReplayState::Invalid, None, Some(text.as_str()), Some(error.as_str()))
        }
        ReplayOutcome::Failed(error) => (ReplayState::Failed, None, None, Some(error.as_str())),
    };
    let ended = sqlx::query!(
        "
        UPDATE decision_replays r
        SET state = $2, output = $3, answer_text = $4, error = $5, call_id = $6, latency_ms = $7, ended_at = $8,
            provider = c.provider, upstream = c.upstream, input_tokens = c.input_tokens, output_tokens = c.output_tokens,
            cost_micros = c.cost_micros
        FROM decision_replays own
        JOIN handoffs h ON h.handoff_id = own.handoff_id
        LEFT JOIN model_calls c ON c.project_id = h.project_id AND c.started_at >= own.created_at AND c.call_id = $6
        WHERE own.replay_id = $1 AND r.replay_id = own.replay_id AND r.state = 'running'
        ",
        id.as_uuid(),
        state.as_str(),
        output,
        text,
        error,
        call.map(CallId::as_uuid),
        latency_ms,
        now,
    )
    .execute(conn)
    .await?;
    Ok(ended.rows_affected() > 0)
}

/// Returns one replay.
#[tracing::instrument(name = "db.replays.get_replay", skip_all)]
pub async fn get_replay(conn: &mut Conn, id: ReplayId) -> Result<Option<ReplayRecord>, DbError> {
    sqlx::query_as!(
        ReplayRow,
        "
        SELECT replay_id, handoff_id, step, state, user_id, model, provider, upstream, output, answer_text, error, call_id,
            input_tokens, output_tokens, cost_micros, latency_ms, created_at, expires_at, ended_at
        FROM decision_replays WHERE replay_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(ReplayRecord::try_from)
    .transpose()
}

/// Lists the replays of a decision with this prompt, newest first.
#[tracing::instrument(name = "db.replays.list_replays", skip_all)]
pub async fn list_replays(
    conn: &mut Conn,
    handoff: HandoffId,
    step: u32,
    prompt_digest: &str,
) -> Result<Vec<ReplayRecord>, DbError> {
    sqlx::query_as!(
        ReplayRow,
        "
        SELECT replay_id, handoff_id, step, state, user_id, model, provider, upstream, output, answer_text, error, call_id,
            input_tokens, output_tokens, cost_micros, latency_ms, created_at, expires_at, ended_at
        FROM decision_replays WHERE handoff_id = $1 AND step = $2 AND prompt_digest = $3
        ORDER BY created_at DESC, replay_id DESC LIMIT $4
        ",
        handoff.as_uuid(),
        to_step_number(step),
        prompt_digest,
        MAX_LISTED_REPLAYS,
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(ReplayRecord::try_from)
    .collect()
}

/// Removes replays from before `before`, at most `limit`. Returns how many.
#[tracing::instrument(name = "db.replays.prune_replays", skip_all)]
pub async fn prune_replays(
    conn: &mut Conn,
    before: OffsetDateTime,
    limit: i64,
) -> Result<u64, DbError> {
    let removed = sqlx::query!(
        "
        DELETE FROM decision_replays WHERE replay_id IN
            (SELECT replay_id FROM decision_replays WHERE created_at < $1 ORDER BY created_at LIMIT $2)
        ",
        before,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(removed.rows_affected())
}
