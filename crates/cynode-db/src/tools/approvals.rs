//! Approvals of exact calls.

use cynode_core::ids::{AgentTokenId, ApprovalId, CallId, ProjectId, TaskId, UserId};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError};

/// Where a question stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalState {
    /// Nobody has answered.
    Asked,
    /// A person said yes.
    Approved,
    /// A person said no.
    Refused,
    /// The yes was used.
    Used,
}

impl ApprovalState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Asked, Self::Approved, Self::Refused, Self::Used];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Approved => "approved",
            Self::Refused => "refused",
            Self::Used => "used",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// What exactly is asked for: who, what, with which arguments, under which policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRequest {
    /// Who calls.
    pub agent: AgentTokenId,
    /// In which project.
    pub project: Option<ProjectId>,
    /// For which task.
    pub task: Option<TaskId>,
    /// The tool.
    pub tool: String,
    /// The keyed digest of the arguments.
    pub arguments: [u8; 32],
    /// The policy that wanted approval.
    pub policy: [u8; 32],
    /// The rules that wanted it.
    pub rules: Vec<String>,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// What is asked for.
    pub asked: ApprovalRequest,
    /// The arguments, sealed, until it is answered.
    pub sealed: Option<Vec<u8>>,
    /// Where it stands.
    pub state: ApprovalState,
    /// When it was asked.
    pub asked_at: OffsetDateTime,
    /// When it is too late.
    pub expires_at: OffsetDateTime,
    /// Who answered.
    pub decided_by: Option<UserId>,
    /// When it was answered.
    pub decided_at: Option<OffsetDateTime>,
}

struct ApprovalRow {
    approval_id: Uuid,
    agent_token_id: Uuid,
    project_id: Option<Uuid>,
    task_id: Option<Uuid>,
    tool: String,
    arguments_digest: Vec<u8>,
    policy_hash: Vec<u8>,
    rules: Vec<String>,
    arguments_sealed: Option<Vec<u8>>,
    state: String,
    requested_at: OffsetDateTime,
    expires_at: OffsetDateTime,
    decided_by: Option<Uuid>,
    decided_at: Option<OffsetDateTime>,
}

impl TryFrom<ApprovalRow> for Approval {
    type Error = DbError;

    fn try_from(row: ApprovalRow) -> Result<Self, DbError> {
        let wrong = |column| DbError::Corrupt { table: "approvals", column };
        let asked = ApprovalRequest {
            agent: AgentTokenId::from_uuid(row.agent_token_id),
            project: row.project_id.map(ProjectId::from_uuid),
            task: row.task_id.map(TaskId::from_uuid),
            tool: row.tool,
            arguments: row.arguments_digest.try_into().map_err(|_| wrong("arguments_digest"))?,
            policy: row.policy_hash.try_into().map_err(|_| wrong("policy_hash"))?,
            rules: row.rules,
        };
        Ok(Self {
            id: ApprovalId::from_uuid(row.approval_id),
            asked,
            sealed: row.arguments_sealed,
            state: ApprovalState::from_name(&row.state).ok_or_else(|| wrong("state"))?,
            asked_at: row.requested_at,
            expires_at: row.expires_at,
            decided_by: row.decided_by.map(UserId::from_uuid),
            decided_at: row.decided_at,
        })
    }
}

/// The question about this exact call, made if there is none. One that is too old is asked anew.
#[tracing::instrument(name = "db.approvals.request_approval", skip_all)]
pub async fn request_approval(
    conn: &mut Conn,
    id: ApprovalId,
    asked: &ApprovalRequest,
    sealed: &[u8],
    now: OffsetDateTime,
    expires_at: OffsetDateTime,
) -> Result<Approval, DbError> {
    sqlx::query_as!(
        ApprovalRow,
        r#"
        INSERT INTO approvals AS a (approval_id, agent_token_id, project_id, task_id, tool, arguments_digest, policy_hash,
            rules, state, requested_at, expires_at, arguments_sealed)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'asked', $9, $10, $11)
        ON CONFLICT (agent_token_id, tool, arguments_digest, policy_hash)
            WHERE state IN ('asked', 'approved', 'refused')
        DO UPDATE SET
            approval_id = CASE WHEN a.expires_at <= $9 THEN $1 ELSE a.approval_id END,
            state = CASE WHEN a.expires_at <= $9 THEN 'asked' ELSE a.state END,
            requested_at = CASE WHEN a.expires_at <= $9 THEN $9 ELSE a.requested_at END,
            decided_by = CASE WHEN a.expires_at <= $9 THEN NULL ELSE a.decided_by END,
            decided_at = CASE WHEN a.expires_at <= $9 THEN NULL ELSE a.decided_at END,
            arguments_sealed = CASE WHEN a.expires_at <= $9 THEN $11 ELSE a.arguments_sealed END,
            expires_at = CASE WHEN a.expires_at <= $9 THEN $10 ELSE a.expires_at END
        RETURNING approval_id, agent_token_id, project_id, task_id, tool, arguments_digest, policy_hash, rules, arguments_sealed, state,
            requested_at, expires_at, decided_by, decided_at
        "#,
        id.as_uuid(),
        asked.agent.as_uuid(),
        asked.project.map(ProjectId::as_uuid),
        asked.task.map(TaskId::as_uuid),
        asked.tool,
        &asked.arguments as &[u8],
        &asked.policy as &[u8],
        &asked.rules,
        now,
        expires_at,
        sealed,
    )
    .fetch_one(conn)
    .await?
    .try_into()
}

/// Whether an agent may ask this: it was asked before, or fewer than `most` questions of the agent wait for an answer. It must
/// be called inside a transaction, so that two questions of one agent are counted one after the other.
#[tracing::instrument(name = "db.approvals.can_request_approval", skip_all)]
pub async fn can_request_approval(
    conn: &mut Conn,
    asked: &ApprovalRequest,
    most: i64,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    sqlx::query_scalar!(
        "SELECT agent_token_id FROM agent_tokens WHERE agent_token_id = $1 FOR NO KEY UPDATE",
        asked.agent.as_uuid(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    let room = sqlx::query_scalar!(
        r#"
        SELECT count(*) FILTER (WHERE state = 'asked') < $5::bigint
            OR COALESCE(bool_or(tool = $2 AND arguments_digest = $3 AND policy_hash = $4), false) AS "room!"
        FROM approvals
        WHERE agent_token_id = $1 AND state IN ('asked', 'approved', 'refused') AND expires_at > $6
        "#,
        asked.agent.as_uuid(),
        asked.tool,
        &asked.arguments as &[u8],
        &asked.policy as &[u8],
        most,
        now,
    );
    Ok(room.fetch_one(conn).await?)
}

/// Uses up a yes to this exact call. Only one of any number of callers gets it.
#[tracing::instrument(name = "db.approvals.consume_approval", skip_all)]
pub async fn consume_approval(
    conn: &mut Conn,
    asked: &ApprovalRequest,
    call: CallId,
    now: OffsetDateTime,
) -> Result<Option<ApprovalId>, DbError> {
    let id = sqlx::query_scalar!(
        "
        UPDATE approvals SET state = 'used', used_at = $5, call_id = $6
        WHERE agent_token_id = $1 AND tool = $2 AND arguments_digest = $3 AND policy_hash = $4 AND state = 'approved'
            AND expires_at > $5
        RETURNING approval_id
        ",
        asked.agent.as_uuid(),
        asked.tool,
        &asked.arguments as &[u8],
        &asked.policy as &[u8],
        now,
        call.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(id.map(ApprovalId::from_uuid))
}

/// One question.
pub async fn get_approval(conn: &mut Conn, id: ApprovalId) -> Result<Option<Approval>, DbError> {
    sqlx::query_as!(
        ApprovalRow,
        "
        SELECT approval_id, agent_token_id, project_id, task_id, tool, arguments_digest, policy_hash, rules, arguments_sealed, state,
            requested_at, expires_at, decided_by, decided_at
        FROM approvals WHERE approval_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(Approval::try_from)
    .transpose()
}

/// Whether whoever asked can still use an answer.
#[tracing::instrument(name = "db.approvals.is_requester_active", skip_all)]
pub async fn is_requester_active(
    conn: &mut Conn,
    asker: AgentTokenId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let lives =
        sqlx::query_scalar!(r#"SELECT agent_is_active($1, $2) AS "lives!""#, asker.as_uuid(), now);
    Ok(lives.fetch_one(conn).await?)
}

/// The questions that wait for an answer and whose asker can still use it, oldest first; of one user's projects when `member` is given.
#[tracing::instrument(name = "db.approvals.list_pending_approvals", skip_all)]
pub async fn list_pending_approvals(
    conn: &mut Conn,
    member: Option<UserId>,
    now: OffsetDateTime,
) -> Result<Vec<Approval>, DbError> {
    sqlx::query_as!(
        ApprovalRow,
        r#"
        SELECT approval_id, agent_token_id, a.project_id, task_id, tool, arguments_digest, policy_hash, rules, arguments_sealed, state,
            requested_at, expires_at, decided_by, decided_at
        FROM approvals a
        WHERE state = 'asked' AND expires_at > $2
            AND agent_is_active(agent_token_id, $2)
            AND ($1::uuid IS NULL
                OR a.project_id IN (SELECT project_id FROM project_members WHERE user_id = $1)
                OR a.project_id IN (SELECT b.project_id FROM group_members m JOIN role_bindings b USING (group_id)
                    WHERE m.user_id = $1))
        ORDER BY requested_at LIMIT 200
        "#,
        member.map(UserId::as_uuid),
        now,
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(Approval::try_from)
    .collect()
}

/// The questions that were answered and are still stored, newest answer first; of one user's projects when `member` is given.
#[tracing::instrument(name = "db.approvals.list_decided_approvals", skip_all)]
pub async fn list_decided_approvals(
    conn: &mut Conn,
    member: Option<UserId>,
) -> Result<Vec<Approval>, DbError> {
    sqlx::query_as!(
        ApprovalRow,
        r#"
        SELECT approval_id, agent_token_id, a.project_id, task_id, tool, arguments_digest, policy_hash, rules, arguments_sealed, state,
            requested_at, expires_at, decided_by, decided_at
        FROM approvals a
        WHERE state <> 'asked'
            AND ($1::uuid IS NULL
                OR a.project_id IN (SELECT project_id FROM project_members WHERE user_id = $1)
                OR a.project_id IN (SELECT b.project_id FROM group_members m JOIN role_bindings b USING (group_id)
                    WHERE m.user_id = $1))
        ORDER BY decided_at DESC, approval_id LIMIT 200
        "#,
        member.map(UserId::as_uuid),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(Approval::try_from)
    .collect()
}

/// Forgets questions that are too old to be answered or used.
#[tracing::instrument(name = "db.approvals.prune_approvals", skip_all)]
pub async fn prune_approvals(conn: &mut Conn, before: OffsetDateTime) -> Result<u64, DbError> {
    let done = sqlx::query!("DELETE FROM approvals WHERE expires_at < $1", before);
    Ok(done.execute(conn).await?.rows_affected())
}

/// Answers a question that nobody has answered, that is not too old, and whose asker can still use the answer.
#[tracing::instrument(name = "db.approvals.decide_approval", skip_all)]
pub async fn decide_approval(
    conn: &mut Conn,
    id: ApprovalId,
    answer: ApprovalState,
    by: UserId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE approvals SET state = $2, decided_by = $3, decided_at = $4, arguments_sealed = NULL
        WHERE approval_id = $1 AND state = 'asked' AND expires_at > $4 AND agent_is_active(agent_token_id, $4)
        ",
        id.as_uuid(),
        answer.as_str(),
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// What a person has said to exactly this, whether or not it was used since; `None` when nobody has.
#[tracing::instrument(name = "db.approvals.find_approval_decision", skip_all)]
pub async fn find_approval_decision(
    conn: &mut Conn,
    asked: &ApprovalRequest,
) -> Result<Option<bool>, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT state <> 'refused' AS "allowed!" FROM approvals
        WHERE agent_token_id = $1 AND tool = $2 AND arguments_digest = $3 AND policy_hash = $4 AND state IN ('used', 'refused')
        ORDER BY decided_at DESC LIMIT 1
        "#,
        asked.agent.as_uuid(),
        asked.tool,
        &asked.arguments as &[u8],
        &asked.policy as &[u8],
    );
    Ok(found.fetch_optional(conn).await?)
}
