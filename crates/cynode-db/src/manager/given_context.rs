//! What agents were given beside their questions: records of memory and skills, by id.

use cynode_core::{
    ids::{HandoffId, JobId, TaskId},
    workflow::given_context::{GivenContext, GivenMemory, GivenSkill},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Most claims of a task or a handoff that are listed.
const MAX_LISTED_CLAIMS: i64 = 1000;

struct GivenRow {
    handoff_id: Option<Uuid>,
    job_id: Option<Uuid>,
    fencing_token: i64,
    profile: String,
    profile_version: i32,
    memories: Value,
    skills: Value,
    failure: Option<String>,
    given_at: OffsetDateTime,
}

impl TryFrom<GivenRow> for GivenContext {
    type Error = DbError;

    fn try_from(row: GivenRow) -> Result<Self, DbError> {
        let memories: Vec<GivenMemory> = serde_json::from_value(row.memories)
            .map_err(corrupt_column("given_context", "memories"))?;
        let skills: Vec<GivenSkill> = serde_json::from_value(row.skills)
            .map_err(corrupt_column("given_context", "skills"))?;
        Ok(Self {
            handoff_id: row.handoff_id.map(HandoffId::from_uuid),
            job_id: row.job_id.map(JobId::from_uuid),
            fencing_token: row.fencing_token,
            profile: row.profile,
            profile_version: u32::try_from(row.profile_version)
                .map_err(corrupt_column("given_context", "profile_version"))?,
            memories,
            skills,
            failure: row.failure,
            given_at: row.given_at,
        })
    }
}

/// Records what was given under a claim. Recorded again, the newest is kept: the claim was answered again after its answer was lost.
#[tracing::instrument(name = "db.given_context.record_given_context", skip_all)]
pub async fn record_given_context(conn: &mut Conn, given: &GivenContext) -> Result<(), DbError> {
    let memories = serde_json::to_value(&given.memories)
        .map_err(corrupt_column("given_context", "memories"))?;
    let skills =
        serde_json::to_value(&given.skills).map_err(corrupt_column("given_context", "skills"))?;
    let handoff = given.handoff_id.map(HandoffId::as_uuid);
    let job = given.job_id.map(JobId::as_uuid);
    sqlx::query!(
        "DELETE FROM given_context WHERE (handoff_id = $1 OR job_id = $2) AND fencing_token = $3",
        handoff,
        job,
        given.fencing_token,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "
        INSERT INTO given_context (handoff_id, job_id, fencing_token, profile, profile_version, memories, skills, failure, given_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ",
        handoff,
        job,
        given.fencing_token,
        given.profile,
        i32::try_from(given.profile_version).unwrap_or(i32::MAX),
        memories,
        skills,
        given.failure,
        given.given_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What the last claim of a handoff under this profile was given, if memory could be searched.
#[tracing::instrument(name = "db.given_context.find_given_to_handoff", skip_all)]
pub async fn find_given_to_handoff(
    conn: &mut Conn,
    handoff: HandoffId,
    profile: &str,
) -> Result<Option<GivenContext>, DbError> {
    sqlx::query_as!(
        GivenRow,
        "
        SELECT handoff_id, job_id, fencing_token, profile, profile_version, memories, skills, failure, given_at
        FROM given_context WHERE handoff_id = $1 AND profile = $2 AND failure IS NULL
        ORDER BY fencing_token DESC LIMIT 1
        ",
        handoff.as_uuid(),
        profile,
    )
    .fetch_optional(conn)
    .await?
    .map(GivenContext::try_from)
    .transpose()
}

/// What a handoff was given, claim by claim. Claims that were given nothing are left out.
#[tracing::instrument(name = "db.given_context.list_given_to_handoff", skip_all)]
pub async fn list_given_to_handoff(
    conn: &mut Conn,
    handoff: HandoffId,
) -> Result<Vec<GivenContext>, DbError> {
    let rows = sqlx::query_as!(
        GivenRow,
        "
        SELECT handoff_id, job_id, fencing_token, profile, profile_version, memories, skills, failure, given_at
        FROM given_context
        WHERE handoff_id = $1 AND (memories <> '[]' OR skills <> '[]' OR failure IS NOT NULL)
        ORDER BY fencing_token LIMIT $2
        ",
        handoff.as_uuid(),
        MAX_LISTED_CLAIMS,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(GivenContext::try_from).collect()
}

/// What the handoffs and jobs of a task were given, in order; of a very long run the last. Claims that were given nothing are left out.
#[tracing::instrument(name = "db.given_context.list_given_to_task", skip_all)]
pub async fn list_given_to_task(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Vec<GivenContext>, DbError> {
    let rows = sqlx::query_as!(
        GivenRow,
        "
        SELECT g.handoff_id, g.job_id, g.fencing_token, g.profile, g.profile_version, g.memories, g.skills, g.failure, g.given_at
        FROM given_context g
        WHERE (g.handoff_id IN (SELECT h.handoff_id FROM handoffs h WHERE h.task_id = $1)
                OR g.job_id IN (SELECT j.job_id FROM jobs j WHERE j.task_id = $1))
            AND (g.memories <> '[]' OR g.skills <> '[]' OR g.failure IS NOT NULL)
        ORDER BY g.given_no DESC
        LIMIT $2
        ",
        task.as_uuid(),
        MAX_LISTED_CLAIMS,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().rev().map(GivenContext::try_from).collect()
}

/// The name of the profile of the token that a handoff is worked on with.
#[tracing::instrument(name = "db.given_context.profile_of_handoff_token", skip_all)]
pub async fn profile_of_handoff_token(
    conn: &mut Conn,
    handoff: HandoffId,
) -> Result<Option<String>, DbError> {
    let found = sqlx::query_scalar!(
        "
        SELECT profile FROM agent_tokens WHERE handoff_id = $1 AND revoked_at IS NULL
        ORDER BY created_at DESC, agent_token_id DESC LIMIT 1
        ",
        handoff.as_uuid(),
    );
    Ok(found.fetch_optional(conn).await?)
}
