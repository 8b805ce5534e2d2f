//! Agent tokens.

use std::sync::Arc;

use cynode_core::{
    agents::AgentRole,
    ids::{AgentTokenId, JobId, NodeId, ProjectId, RunId, TaskId, UserId},
    paging::PageRequest,
    roles::UserRole,
    settings::registry::DEFAULT_KEY_CONFIRMATION_HOURS,
    workflow::handoffs::HandoffKind,
};
use cynode_policy::{agents::AgentIdentity, tool_names::ToolName};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    identity::authentication::{CHECK_TOLERANCE, strongest_role},
    platform::{error::corrupt_column, keyring::TokenHash},
    tools::profiles::to_agent_profile,
};

/// A token, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentToken {
    /// What it is good for.
    pub agent: AgentIdentity,
    /// Whether it may use the network that its profile has.
    pub network: bool,
    /// The models it opens.
    pub models: Vec<String>,
    /// The person who asked for it; `None`: the orchestrator itself.
    pub issued_by: Option<UserId>,
    /// When.
    pub created_at: OffsetDateTime,
    /// When it was revoked.
    pub revoked_at: Option<OffsetDateTime>,
}

/// Whether a token works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenState {
    /// It does.
    Good,
    /// Its time is over.
    Expired,
    /// It was revoked, or whoever it works for was switched off.
    Revoked,
}

/// What is behind a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentTokenLookup {
    /// The agent.
    pub agent: AgentIdentity,
    /// Whether the token works.
    pub state: TokenState,
    /// The role of the person it works for, in the whole installation.
    pub person: Option<UserRole>,
    /// The models that the token opens.
    pub models: Vec<String>,
    /// The node that its job runs on.
    pub node: Option<NodeId>,
}

struct AgentTokenRow {
    agent_token_id: Uuid,
    role: String,
    user_id: Uuid,
    project_id: Uuid,
    task_id: Option<Uuid>,
    run_id: Option<Uuid>,
    job_id: Option<Uuid>,
    handoff_kind: Option<String>,
    profile: String,
    network: bool,
    profile_version: Option<i32>,
    profile_spec: Option<Value>,
    tools: Option<Vec<String>>,
    models: Option<Vec<String>>,
    issued_by: Option<Uuid>,
    created_at: OffsetDateTime,
    expires_at: OffsetDateTime,
    revoked_at: Option<OffsetDateTime>,
}

impl TryFrom<AgentTokenRow> for AgentToken {
    type Error = DbError;

    fn try_from(row: AgentTokenRow) -> Result<Self, DbError> {
        let wrong = |column| DbError::Corrupt { table: "agent_tokens", column };
        let tools = match row.tools {
            None => None,
            Some(names) => {
                let names: Result<Vec<ToolName>, _> =
                    names.into_iter().map(ToolName::try_from).collect();
                Some(Arc::from(names.map_err(corrupt_column("agent_tokens", "tools"))?))
            }
        };
        let agent = AgentIdentity {
            token: AgentTokenId::from_uuid(row.agent_token_id),
            role: AgentRole::from_name(&row.role).ok_or_else(|| wrong("role"))?,
            user: Some(UserId::from_uuid(row.user_id)),
            project: Some(ProjectId::from_uuid(row.project_id)),
            task: row.task_id.map(TaskId::from_uuid),
            run: row.run_id.map(RunId::from_uuid),
            job: row.job_id.map(JobId::from_uuid),
            handoff: row
                .handoff_kind
                .map(|name| HandoffKind::from_name(&name).ok_or_else(|| wrong("handoff_id")))
                .transpose()?,
            profile: to_agent_profile(
                &row.profile,
                row.network,
                row.profile_version,
                row.profile_spec,
            ),
            tools,
            // Whoever asks for a token was asked for the role; what became of it since is found where the token is shown.
            operates: true,
            expires_at: Some(row.expires_at),
        };
        let issued_by = row.issued_by.map(UserId::from_uuid);
        let models = row.models.unwrap_or_default();
        let (created_at, revoked_at) = (row.created_at, row.revoked_at);
        Ok(Self { agent, network: row.network, models, issued_by, created_at, revoked_at })
    }
}

/// Stores a new token's hash.
#[tracing::instrument(name = "db.agent_tokens.insert_agent_token", skip_all)]
pub async fn insert_agent_token(
    conn: &mut Conn,
    token: &AgentToken,
    stored: &TokenHash,
) -> Result<(), DbError> {
    let agent = &token.agent;
    let tools: Option<Vec<String>> =
        agent.tools.as_ref().map(|tools| tools.iter().map(ToString::to_string).collect());
    sqlx::query!(
        "
        INSERT INTO agent_tokens (agent_token_id, role, user_id, project_id, task_id, run_id, job_id, profile, network,
            tools, token_hash, issued_by, created_at, expires_at, models, hash_key_id)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
        ",
        agent.token.as_uuid(),
        agent.role.as_str(),
        agent.user.map(UserId::as_uuid),
        agent.project.map(ProjectId::as_uuid),
        agent.task.map(TaskId::as_uuid),
        agent.run.map(RunId::as_uuid),
        agent.job.map(JobId::as_uuid),
        &*agent.profile.name,
        token.network,
        tools.as_deref(),
        &stored.hash as &[u8],
        token.issued_by.map(UserId::as_uuid),
        token.created_at,
        agent.expires_at,
        &token.models,
        stored.key,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The agents behind those of the tokens that we know, and whether each token works at `now`.
#[tracing::instrument(name = "db.agent_tokens.find_agent_tokens", skip_all)]
pub async fn find_agent_tokens(
    conn: &mut Conn,
    hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Vec<([u8; 32], AgentTokenLookup)>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT t.token_hash, t.agent_token_id, t.role, t.user_id, t.project_id, t.task_id, t.run_id, t.job_id,
            t.profile, t.network, f.profile_version AS "profile_version?", f.profile_spec AS "profile_spec?",
            t.tools, t.models, t.issued_by, t.created_at, t.expires_at, t.revoked_at,
            agent_handoff_kind(t.handoff_id) AS "handoff_kind?",
            u.state = 'active' AS "active!",
            j.ended_at IS NOT NULL AS "over!",
            j.node_id AS "node_id?",
            CASE WHEN (SELECT count(*) FROM external_identities e WHERE e.user_id = t.user_id) > 0
                THEN provider_word(t.user_id, $2, $3) END AS "word?",
            ARRAY(
                SELECT p.role FROM project_members p WHERE p.project_id = t.project_id AND p.user_id = t.user_id
                UNION ALL
                SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
                WHERE m.user_id = t.user_id AND b.project_id = t.project_id
            ) AS "own!",
            ARRAY(
                SELECT b.role FROM role_bindings b WHERE b.user_id = t.user_id AND b.project_id IS NULL
                UNION ALL
                SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
                WHERE m.user_id = t.user_id AND b.project_id IS NULL
            ) AS "roles!"
        FROM unnest($1::bytea[]) AS shown (hash)
        JOIN agent_tokens t ON t.token_hash = hash
        JOIN users u USING (user_id)
        LEFT JOIN jobs j ON j.job_id = t.job_id
        LEFT JOIN LATERAL current_profile(t.profile, t.project_id) f ON true
        "#,
        hashes as &[[u8; 32]],
        now - CHECK_TOLERANCE,
        DEFAULT_KEY_CONFIRMATION_HOURS,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let hash =
                row.token_hash.try_into().map_err(corrupt_column("agent_tokens", "token_hash"))?;
            // An agent can do no more than the person it works for, who may have left the project or may only read there.
            let person = strongest_role(&row.roles)?;
            let role = strongest_role(&row.own)?.max(person);
            // A token that the person gave out needs somebody who vouches for them now. The work of a task goes on while an identity provider
            // cannot be asked, and ends when it says no.
            let vouched = match row.word.as_deref() {
                None | Some("unneeded" | "confirmed") => true,
                Some("refused") => false,
                Some(_) => row.issued_by.is_none(),
            };
            // Nor can it do anything once its job has ended, whoever ended it.
            let stands = row.active && vouched && !row.over && role.is_some();
            let state = if row.revoked_at.is_some() || !stands {
                TokenState::Revoked
            } else if row.expires_at <= now {
                TokenState::Expired
            } else {
                TokenState::Good
            };
            let token = AgentToken::try_from(AgentTokenRow {
                agent_token_id: row.agent_token_id,
                role: row.role,
                user_id: row.user_id,
                project_id: row.project_id,
                task_id: row.task_id,
                run_id: row.run_id,
                job_id: row.job_id,
                handoff_kind: row.handoff_kind,
                profile: row.profile,
                network: row.network,
                profile_version: row.profile_version,
                profile_spec: row.profile_spec,
                tools: row.tools,
                models: row.models,
                issued_by: row.issued_by,
                created_at: row.created_at,
                expires_at: row.expires_at,
                revoked_at: row.revoked_at,
            })?;
            let agent = AgentIdentity { operates: role >= Some(UserRole::Operator), ..token.agent };
            let node = row.node_id.map(NodeId::from_uuid);
            Ok((hash, AgentTokenLookup { agent, state, person, models: token.models, node }))
        })
        .collect()
}

/// One token.
pub async fn get_agent_token(
    conn: &mut Conn,
    id: AgentTokenId,
) -> Result<Option<AgentToken>, DbError> {
    sqlx::query_as!(
        AgentTokenRow,
        r#"
        SELECT agent_token_id, role, user_id, project_id, task_id, run_id, job_id, profile, network,
            f.profile_version AS "profile_version?", f.profile_spec AS "profile_spec?", tools, models, issued_by, created_at,
            expires_at, revoked_at, agent_handoff_kind(handoff_id) AS "handoff_kind?"
        FROM agent_tokens LEFT JOIN LATERAL current_profile(profile, project_id) f ON true
        WHERE agent_token_id = $1
        "#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(AgentToken::try_from)
    .transpose()
}

/// Those of the tokens that are still stored.
#[tracing::instrument(name = "db.agent_tokens.find_tokens_by_id", skip_all)]
pub async fn find_tokens_by_id(conn: &mut Conn, ids: &[Uuid]) -> Result<Vec<AgentToken>, DbError> {
    sqlx::query_as!(
        AgentTokenRow,
        r#"
        SELECT agent_token_id, role, user_id, project_id, task_id, run_id, job_id, profile, network,
            f.profile_version AS "profile_version?", f.profile_spec AS "profile_spec?", tools, models, issued_by, created_at,
            expires_at, revoked_at, agent_handoff_kind(handoff_id) AS "handoff_kind?"
        FROM agent_tokens LEFT JOIN LATERAL current_profile(profile, project_id) f ON true
        WHERE agent_token_id = ANY ($1)
        "#,
        ids,
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(AgentToken::try_from)
    .collect()
}

/// The tokens of a project, newest first.
#[tracing::instrument(name = "db.agent_tokens.list_agent_tokens", skip_all)]
pub async fn list_agent_tokens(
    conn: &mut Conn,
    project: ProjectId,
    page: PageRequest,
) -> Result<Vec<AgentToken>, DbError> {
    sqlx::query_as!(
        AgentTokenRow,
        r#"
        SELECT agent_token_id, role, user_id, project_id, task_id, run_id, job_id, profile, network,
            f.profile_version AS "profile_version?", f.profile_spec AS "profile_spec?", tools, models, issued_by, created_at,
            expires_at, revoked_at, agent_handoff_kind(handoff_id) AS "handoff_kind?"
        FROM agent_tokens LEFT JOIN LATERAL current_profile(profile, project_id) f ON true
        WHERE project_id = $1 AND ($2::uuid IS NULL OR agent_token_id < $2)
        ORDER BY agent_token_id DESC LIMIT $3
        "#,
        project.as_uuid(),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(AgentToken::try_from)
    .collect()
}

/// Ends a token. Gives whether it was there and had not been ended.
#[tracing::instrument(name = "db.agent_tokens.revoke_agent_token", skip_all)]
pub async fn revoke_agent_token(
    conn: &mut Conn,
    id: AgentTokenId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "UPDATE agent_tokens SET revoked_at = $2 WHERE agent_token_id = $1 AND revoked_at IS NULL",
        id.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Ends every token of a task: nobody works on it any more.
#[tracing::instrument(name = "db.agent_tokens.revoke_task_tokens", skip_all)]
pub async fn revoke_task_tokens(
    conn: &mut Conn,
    task: TaskId,
    now: OffsetDateTime,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "UPDATE agent_tokens SET revoked_at = $2 WHERE task_id = $1 AND revoked_at IS NULL",
        task.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Ends every token that a person gave out by hand.
#[tracing::instrument(name = "db.agent_tokens.revoke_issued_by", skip_all)]
pub async fn revoke_issued_by(
    conn: &mut Conn,
    user: UserId,
    now: OffsetDateTime,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "UPDATE agent_tokens SET revoked_at = $2 WHERE issued_by = $1 AND revoked_at IS NULL",
        user.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Ends every token of a job.
#[tracing::instrument(name = "db.agent_tokens.revoke_job_tokens", skip_all)]
pub async fn revoke_job_tokens(
    conn: &mut Conn,
    job: JobId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE agent_tokens SET revoked_at = $2 WHERE job_id = $1 AND revoked_at IS NULL",
        job.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The token that was issued first for a job, of those that work.
#[tracing::instrument(name = "db.agent_tokens.first_token_of_job", skip_all)]
pub async fn first_token_of_job(
    conn: &mut Conn,
    job: JobId,
) -> Result<Option<AgentTokenId>, DbError> {
    let found = sqlx::query_scalar!(
        "
        SELECT agent_token_id FROM agent_tokens
        WHERE job_id = $1 AND issued_by IS NULL AND revoked_at IS NULL
        ORDER BY created_at, agent_token_id LIMIT 1
        ",
        job.as_uuid(),
    );
    Ok(found.fetch_optional(conn).await?.map(AgentTokenId::from_uuid))
}

/// Removes tokens that were over before then, with the last word of their agents, up to a number of them. Those of a task that
/// goes on stay, for where its agents were, and so do those whose questions still wait. Gives how many.
#[tracing::instrument(name = "db.agent_tokens.prune_agent_tokens", skip_all)]
pub async fn prune_agent_tokens(
    conn: &mut Conn,
    before: OffsetDateTime,
    limit: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM agent_tokens WHERE agent_token_id = ANY (ARRAY(
            SELECT t.agent_token_id FROM agent_tokens t
            WHERE t.expires_at < $1
                AND NOT EXISTS (SELECT FROM tasks k WHERE k.task_id = t.task_id AND k.state IN ('queued', 'running'))
                AND NOT EXISTS (SELECT FROM approvals a
                    WHERE a.agent_token_id = t.agent_token_id AND a.state IN ('asked', 'approved', 'refused'))
            ORDER BY t.expires_at
            LIMIT $2))
        ",
        before,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// The profile that a token names.
#[tracing::instrument(name = "db.agent_tokens.profile_of_token", skip_all)]
pub async fn profile_of_token(
    conn: &mut Conn,
    token: AgentTokenId,
) -> Result<Option<String>, DbError> {
    let profile = sqlx::query_scalar!(
        "SELECT profile FROM agent_tokens WHERE agent_token_id = $1",
        token.as_uuid(),
    );
    Ok(profile.fetch_optional(conn).await?)
}
