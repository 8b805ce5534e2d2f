//! Authentication: finds the caller of a token on every request, so that a revocation takes effect at once.

use cynode_core::{
    accounts::CallerCredential,
    ids::{ApiKeyId, ProjectId, SessionId, UserId},
    roles::UserRole,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    platform::error::{corrupt_column, parse_role},
};

/// A caller that the database knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthenticatedCaller {
    /// The account.
    pub user: UserId,
    /// What was shown.
    pub credential: CallerCredential,
    /// The strongest role in the whole installation, groups counted. An agent has none, whoever it works for.
    pub role: Option<UserRole>,
    /// What an agent is held to; `None` for people.
    pub bounds: Option<AgentRestrictions>,
}

/// What an agent is held to, beside what the person it works for may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentRestrictions {
    /// The only project it may see.
    pub project: ProjectId,
    /// The role of the person in the whole installation, which counts in that project.
    pub person: Option<UserRole>,
}

/// The callers behind those of the session tokens that work at `now`.
#[tracing::instrument(name = "db.authentication.find_session_callers", skip_all)]
pub async fn find_session_callers(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Vec<([u8; 32], AuthenticatedCaller)>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT s.token_hash, s.session_id, s.user_id, ARRAY(
            SELECT b.role FROM role_bindings b WHERE b.user_id = s.user_id AND b.project_id IS NULL
            UNION ALL
            SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
            WHERE m.user_id = s.user_id AND b.project_id IS NULL
        ) AS "roles!"
        FROM user_sessions s
        JOIN users u USING (user_id)
        WHERE s.token_hash = ANY($1) AND s.ended_at IS NULL AND s.expires_at > $2 AND u.state = 'active'
        "#,
        token_hashes as &[[u8; 32]],
        now,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let credential = CallerCredential::Session(SessionId::from_uuid(row.session_id));
            to_caller("user_sessions", row.token_hash, row.user_id, credential, &row.roles)
        })
        .collect()
}

/// The callers behind those of the API keys that work at `now`.
#[tracing::instrument(name = "db.authentication.find_api_key_callers", skip_all)]
pub async fn find_api_key_callers(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Vec<([u8; 32], AuthenticatedCaller)>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT k.token_hash, k.api_key_id, k.user_id, ARRAY(
            SELECT b.role FROM role_bindings b WHERE b.user_id = k.user_id AND b.project_id IS NULL
            UNION ALL
            SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
            WHERE m.user_id = k.user_id AND b.project_id IS NULL
        ) AS "roles!"
        FROM api_keys k
        JOIN users u USING (user_id)
        WHERE k.token_hash = ANY($1) AND k.revoked_at IS NULL
          AND (k.expires_at IS NULL OR k.expires_at > $2) AND u.state = 'active'
        "#,
        token_hashes as &[[u8; 32]],
        now,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let credential = CallerCredential::ApiKey(ApiKeyId::from_uuid(row.api_key_id));
            to_caller("api_keys", row.token_hash, row.user_id, credential, &row.roles)
        })
        .collect()
}

/// The caller that a user is by a link of a notice; nobody when the account may not be used.
pub async fn find_link_caller(
    conn: &mut Conn,
    user: UserId,
) -> Result<Option<AuthenticatedCaller>, DbError> {
    find_caller_on_behalf(conn, user, CallerCredential::Link(user)).await
}

/// The caller that a user is by something that stands for them; nobody when the account may not be used.
#[tracing::instrument(name = "db.authentication.find_caller_on_behalf", skip_all)]
pub async fn find_caller_on_behalf(
    conn: &mut Conn,
    user: UserId,
    credential: CallerCredential,
) -> Result<Option<AuthenticatedCaller>, DbError> {
    let roles = sqlx::query_scalar!(
        r#"
        SELECT ARRAY(
            SELECT b.role FROM role_bindings b WHERE b.user_id = u.user_id AND b.project_id IS NULL
            UNION ALL
            SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
            WHERE m.user_id = u.user_id AND b.project_id IS NULL
        ) AS "roles!"
        FROM users u
        WHERE u.user_id = $1 AND u.state = 'active'
        "#,
        user.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    roles
        .map(|roles| {
            Ok(AuthenticatedCaller {
                user,
                credential,
                role: strongest_role(&roles)?,
                bounds: None,
            })
        })
        .transpose()
}

fn to_caller(
    table: &'static str,
    token_hash: Vec<u8>,
    user: Uuid,
    credential: CallerCredential,
    roles: &[String],
) -> Result<([u8; 32], AuthenticatedCaller), DbError> {
    let hash = token_hash.try_into().map_err(corrupt_column(table, "token_hash"))?;
    let (user, role) = (UserId::from_uuid(user), strongest_role(roles)?);
    Ok((hash, AuthenticatedCaller { user, credential, role, bounds: None }))
}

/// The user's strongest role in a project by membership or group; the installation's is not counted.
#[tracing::instrument(name = "db.authentication.project_role", skip_all, fields(project.id = %project))]
pub async fn project_role(
    conn: &mut Conn,
    user: UserId,
    project: ProjectId,
) -> Result<Option<UserRole>, DbError> {
    let roles = sqlx::query_scalar!(
        r#"
        SELECT role AS "role!" FROM project_members WHERE project_id = $2 AND user_id = $1
        UNION ALL
        SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
        WHERE m.user_id = $1 AND b.project_id = $2
        "#,
        user.as_uuid(),
        project.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    strongest_role(&roles)
}

/// The user's strongest role in any project, by membership or group; the installation's is not counted.
#[tracing::instrument(name = "db.authentication.strongest_project_role", skip_all)]
pub async fn strongest_project_role(
    conn: &mut Conn,
    user: UserId,
) -> Result<Option<UserRole>, DbError> {
    let roles = sqlx::query_scalar!(
        r#"
        SELECT role AS "role!" FROM project_members WHERE user_id = $1
        UNION
        SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
        WHERE m.user_id = $1 AND b.project_id IS NOT NULL
        "#,
        user.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    strongest_role(&roles)
}

pub(crate) fn strongest_role(roles: &[String]) -> Result<Option<UserRole>, DbError> {
    roles.iter().try_fold(None, |best, name| Ok(best.max(Some(parse_role("role_bindings", name)?))))
}
