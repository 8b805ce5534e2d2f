//! Authentication: finds the caller of a token on every request, so that a revocation takes effect at once.

use cynode_core::{
    accounts::{CallerCredential, KeyRestrictions, ProjectLimit},
    ids::{ApiKeyId, ProjectId, SessionId, UserId},
    roles::UserRole,
    settings::registry::{
        ADMIN_SECOND_FACTOR_SETTING, DEFAULT_KEY_CONFIRMATION_HOURS, DEFAULT_SESSION_IDLE_MINUTES,
        SESSION_IDLE_SETTING,
    },
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{
    Conn, DbError,
    identity::accounts::parse_scopes,
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
    /// What an API key is held to; `None` for every other credential.
    pub key: Option<KeyRestrictions>,
}

/// What an agent is held to, beside what the person it works for may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentRestrictions {
    /// The only project it may see.
    pub project: ProjectId,
    /// The role of the person in the whole installation, which counts in that project.
    pub person: Option<UserRole>,
}

/// The callers behind those of the session tokens that work at `now`. A session of an identity provider works until its
/// next check is due.
#[tracing::instrument(name = "db.authentication.find_session_callers", skip_all)]
pub async fn find_session_callers(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Vec<([u8; 32], AuthenticatedCaller)>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT s.token_hash, s.session_id, s.user_id, s.second_factor, ARRAY(
            SELECT b.role FROM role_bindings b WHERE b.user_id = s.user_id AND b.project_id IS NULL
            UNION ALL
            SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
            WHERE m.user_id = s.user_id AND b.project_id IS NULL
        ) AS "roles!",
        coalesce((SELECT value = 'true' FROM system_settings WHERE key = $3), false) AS "factor_needed!"
        FROM user_sessions s
        JOIN users u USING (user_id)
        LEFT JOIN provider_grants g USING (provider_grant_id)
        WHERE s.token_hash = ANY($1) AND s.ended_at IS NULL AND s.expires_at > $2 AND u.state = 'active'
          AND s.last_used_at > $2::timestamptz - interval '1 minute'
              * coalesce((SELECT (value #>> '{}')::bigint FROM system_settings WHERE key = $4), $5::bigint)
          AND (s.provider_grant_id IS NULL OR (g.ended_at IS NULL AND g.valid_until > $2))
        "#,
        token_hashes as &[[u8; 32]],
        now,
        ADMIN_SECOND_FACTOR_SETTING,
        SESSION_IDLE_SETTING,
        DEFAULT_SESSION_IDLE_MINUTES,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let credential = CallerCredential::Session(SessionId::from_uuid(row.session_id));
            let role = effective_role(&row.roles, row.factor_needed, row.second_factor)?;
            to_caller("user_sessions", row.token_hash, row.user_id, credential, role)
        })
        .collect()
}

/// The callers behind those of the API keys that work at `now`.
///
/// A person whom only an identity provider vouches for has an account there, no password that could be used, and is in no directory. Their
/// keys work while the provider confirms one of their grants. Without a grant that could be checked, the provider's last word counts for
/// the hours of a setting.
#[tracing::instrument(name = "db.authentication.find_api_key_callers", skip_all)]
pub async fn find_api_key_callers(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Vec<([u8; 32], AuthenticatedCaller)>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT k.token_hash, k.api_key_id, k.user_id, k.scopes, k.read_only, k.limited_to_projects, k.second_factor, ARRAY(
            SELECT b.role FROM role_bindings b WHERE b.user_id = k.user_id AND b.project_id IS NULL
            UNION ALL
            SELECT b.role FROM group_members m JOIN role_bindings b USING (group_id)
            WHERE m.user_id = k.user_id AND b.project_id IS NULL
        ) AS "roles!",
        coalesce((SELECT value = 'true' FROM system_settings WHERE key = $3), false) AS "factor_needed!"
        FROM api_keys k
        CROSS JOIN LATERAL (SELECT FROM users o WHERE o.user_id = k.user_id AND o.state = 'active' OFFSET 0) u
        WHERE k.token_hash = ANY($1) AND k.revoked_at IS NULL
          AND (k.expires_at IS NULL OR k.expires_at > $2)
          AND ((SELECT count(*) FROM external_identities e WHERE e.user_id = k.user_id) = 0
            OR provider_word(k.user_id, $2, $4) IN ('unneeded', 'confirmed'))
        "#,
        token_hashes as &[[u8; 32]],
        now,
        ADMIN_SECOND_FACTOR_SETTING,
        DEFAULT_KEY_CONFIRMATION_HOURS,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let credential = CallerCredential::ApiKey(ApiKeyId::from_uuid(row.api_key_id));
            let person = effective_role(&row.roles, row.factor_needed, row.second_factor)?;
            // A key of some projects has no role in the installation: what its user has there counts in those projects only.
            let role = if row.limited_to_projects { None } else { person };
            let (hash, caller) =
                to_caller("api_keys", row.token_hash, row.user_id, credential, role)?;
            let key = KeyRestrictions {
                scopes: parse_scopes(row.scopes)?,
                read_only: row.read_only,
                project_limit: row.limited_to_projects.then_some(ProjectLimit { person }),
            };
            Ok((hash, AuthenticatedCaller { key: Some(key), ..caller }))
        })
        .collect()
}

/// How long after a check was due what acts in the name of a person goes on: checks come in rounds.
pub const CHECK_TOLERANCE: Duration = Duration::seconds(10);

/// The caller that a user is by a link of a notice; nobody when the account may not be used.
pub async fn find_link_caller(
    conn: &mut Conn,
    user: UserId,
    now: OffsetDateTime,
) -> Result<Option<AuthenticatedCaller>, DbError> {
    find_caller_on_behalf(conn, user, CallerCredential::Link(user), now).await
}

/// The caller that a user is by something that stands for them; nobody when the account may not be used, or when nobody vouches for the
/// person any more.
#[tracing::instrument(name = "db.authentication.find_caller_on_behalf", skip_all)]
pub async fn find_caller_on_behalf(
    conn: &mut Conn,
    user: UserId,
    credential: CallerCredential,
    now: OffsetDateTime,
) -> Result<Option<AuthenticatedCaller>, DbError> {
    if !is_vouched_for(conn, user, now).await? {
        return Ok(None);
    }
    let Some(roles) = find_active_roles(conn, user).await? else { return Ok(None) };
    let role = strongest_role(&roles)?;
    Ok(Some(AuthenticatedCaller { user, credential, role, bounds: None, key: None }))
}

/// Whether somebody vouches for a person: the installation itself, its directory or an identity provider.
async fn is_vouched_for(
    conn: &mut Conn,
    user: UserId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let vouched = sqlx::query_scalar!(
        r#"SELECT provider_word($1, $2, $3) IN ('unneeded', 'confirmed') AS "vouched!""#,
        user.as_uuid(),
        now - CHECK_TOLERANCE,
        DEFAULT_KEY_CONFIRMATION_HOURS,
    );
    Ok(vouched.fetch_one(conn).await?)
}

/// The strongest role of an active user in the whole installation, whoever vouches for them.
#[tracing::instrument(name = "db.authentication.find_person_role", skip_all)]
pub async fn find_person_role(conn: &mut Conn, user: UserId) -> Result<Option<UserRole>, DbError> {
    strongest_role(&find_active_roles(conn, user).await?.unwrap_or_default())
}

/// The roles of a user in the whole installation. `None` when the account may not be used.
async fn find_active_roles(conn: &mut Conn, user: UserId) -> Result<Option<Vec<String>>, DbError> {
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
    );
    Ok(roles.fetch_optional(conn).await?)
}

fn to_caller(
    table: &'static str,
    token_hash: Vec<u8>,
    user: Uuid,
    credential: CallerCredential,
    role: Option<UserRole>,
) -> Result<([u8; 32], AuthenticatedCaller), DbError> {
    let hash = token_hash.try_into().map_err(corrupt_column(table, "token_hash"))?;
    let user = UserId::from_uuid(user);
    Ok((hash, AuthenticatedCaller { user, credential, role, bounds: None, key: None }))
}

/// The strongest of the roles. Where admins need a second factor, an admin who has shown none has no role.
fn effective_role(
    roles: &[String],
    factor_needed: bool,
    second_factor: bool,
) -> Result<Option<UserRole>, DbError> {
    let role = strongest_role(roles)?;
    let is_withheld = factor_needed && !second_factor && role == Some(UserRole::Admin);
    Ok(if is_withheld { None } else { role })
}

/// Whether a key that is limited to projects opens that one.
#[tracing::instrument(name = "db.authentication.is_project_of_key", skip_all, fields(project.id = %project))]
pub async fn is_project_of_key(
    conn: &mut Conn,
    key: ApiKeyId,
    project: ProjectId,
) -> Result<bool, DbError> {
    let covered = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM api_key_projects WHERE api_key_id = $1 AND project_id = $2) AS "covered!""#,
        key.as_uuid(),
        project.as_uuid(),
    );
    Ok(covered.fetch_one(conn).await?)
}

/// Whether a user was given the permission to create projects, by themselves or by a group.
#[tracing::instrument(name = "db.authentication.can_create_projects", skip_all)]
pub async fn can_create_projects(conn: &mut Conn, user: UserId) -> Result<bool, DbError> {
    let allowed = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (SELECT FROM users WHERE user_id = $1 AND can_create_projects)
            OR EXISTS (SELECT FROM group_members m JOIN groups g USING (group_id)
                WHERE m.user_id = $1 AND g.can_create_projects) AS "allowed!"
        "#,
        user.as_uuid(),
    );
    Ok(allowed.fetch_one(conn).await?)
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
