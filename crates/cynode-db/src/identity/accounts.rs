//! Users, their passwords, sessions and API keys, and the one-time token of the first admin.

use cynode_core::{
    accounts::{ApiKey, ApiScope, ScopeSet, User, UserState},
    ids::{ApiKeyId, ProjectId, SessionId, UserId},
    names::Handle,
    paging::PageRequest,
    roles::UserRole,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    platform::{
        error::{corrupt_column, parse_role},
        keyring::TokenHash,
    },
};

struct UserRow {
    user_id: Uuid,
    handle: String,
    display_name: String,
    email: Option<String>,
    disabled_at: Option<OffsetDateTime>,
    created_at: OffsetDateTime,
    can_create_projects: bool,
    role: Option<String>,
}

impl TryFrom<UserRow> for User {
    type Error = DbError;

    fn try_from(row: UserRow) -> Result<Self, DbError> {
        Ok(Self {
            id: UserId::from_uuid(row.user_id),
            handle: row.handle.try_into().map_err(corrupt_column("users", "handle"))?,
            display_name: row
                .display_name
                .try_into()
                .map_err(corrupt_column("users", "display_name"))?,
            email: row
                .email
                .map(TryInto::try_into)
                .transpose()
                .map_err(corrupt_column("users", "email"))?,
            role: row.role.map(|name| parse_role("role_bindings", &name)).transpose()?,
            can_create_projects: row.can_create_projects,
            state: row.disabled_at.map_or(UserState::Active, |at| UserState::Disabled { at }),
            created_at: row.created_at,
        })
    }
}

/// Stores a new, active user.
#[tracing::instrument(name = "db.accounts.insert_user", skip_all, fields(user.id = %user.id))]
pub async fn insert_user(conn: &mut Conn, user: &User) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO users (user_id, handle, display_name, email, state, created_at, updated_at, can_create_projects)
        VALUES ($1, $2, $3, $4, 'active', $5, $5, $6)
        ",
        user.id.as_uuid(),
        user.handle.as_str(),
        user.display_name.as_str(),
        user.email.as_ref().map(|email| email.as_str()),
        user.created_at,
        user.can_create_projects,
    )
    .execute(&mut *conn)
    .await?;
    set_installation_role(conn, user.id, user.role, user.created_at).await
}

/// Gives a user a role in the whole installation, or takes it away.
pub async fn set_installation_role(
    conn: &mut Conn,
    user: UserId,
    role: Option<UserRole>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    match role {
        Some(role) => {
            sqlx::query!(
                "
            INSERT INTO role_bindings (user_id, role, bound_at)
            VALUES ($1, $2, $3)
            ON CONFLICT ON CONSTRAINT role_bindings_unique DO UPDATE SET role = $2, bound_at = $3
            ",
                user.as_uuid(),
                role.as_str(),
                now,
            )
            .execute(conn)
            .await?
        }
        None => {
            sqlx::query!(
                "DELETE FROM role_bindings WHERE user_id = $1 AND project_id IS NULL",
                user.as_uuid(),
            )
            .execute(conn)
            .await?
        }
    };
    Ok(())
}

/// Who switches an account off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisabledBy {
    /// An admin.
    Admin,
    /// The directory, which lifts only what it did itself.
    Directory,
}

/// Switches an account on or off. Returns whether it exists.
pub async fn set_user_state(
    conn: &mut Conn,
    user: UserId,
    state: UserState,
    by: DisabledBy,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let (name, disabled_at) = match state {
        UserState::Active => ("active", None),
        UserState::Disabled { at } => ("disabled", Some(at)),
    };
    let done = sqlx::query!(
        "
        UPDATE users SET state = $2, disabled_at = $3, updated_at = $4, disabled_by_directory = $5
        WHERE user_id = $1
        ",
        user.as_uuid(),
        name,
        disabled_at,
        now,
        disabled_at.is_some() && by == DisabledBy::Directory,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Gives a user the permission to create projects, or takes it away.
pub async fn set_project_creation(
    conn: &mut Conn,
    user: UserId,
    is_allowed: bool,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE users SET can_create_projects = $2, updated_at = $3 WHERE user_id = $1",
        user.as_uuid(),
        is_allowed,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// One user.
#[tracing::instrument(name = "db.accounts.get_user", skip_all, fields(user.id = %id))]
pub async fn get_user(conn: &mut Conn, id: UserId) -> Result<Option<User>, DbError> {
    sqlx::query_as!(
        UserRow,
        r#"
        SELECT u.user_id, handle, display_name, email, disabled_at, created_at, can_create_projects, b.role AS "role?"
        FROM users u
        LEFT JOIN role_bindings b ON b.user_id = u.user_id AND b.project_id IS NULL
        WHERE u.user_id = $1
        "#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(User::try_from)
    .transpose()
}

/// Users by id, one more than a page holds.
#[tracing::instrument(name = "db.accounts.list_users", skip_all)]
pub async fn list_users(conn: &mut Conn, page: PageRequest) -> Result<Vec<User>, DbError> {
    sqlx::query_as!(
        UserRow,
        r#"
        SELECT u.user_id, handle, display_name, email, disabled_at, created_at, can_create_projects, b.role AS "role?"
        FROM users u
        LEFT JOIN role_bindings b ON b.user_id = u.user_id AND b.project_id IS NULL
        WHERE $1::uuid IS NULL OR u.user_id > $1
        ORDER BY u.user_id
        LIMIT $2
        "#,
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(User::try_from)
    .collect()
}

/// How many active admins the installation has, not counting `except`. The bindings are locked, so that
/// two admins cannot switch each other off at the same moment.
pub async fn count_other_admins(conn: &mut Conn, except: UserId) -> Result<usize, DbError> {
    let admins = sqlx::query_scalar!(
        "
        SELECT b.user_id
        FROM role_bindings b
        JOIN users u USING (user_id)
        WHERE b.role = 'admin' AND b.project_id IS NULL AND u.state = 'active'
        FOR UPDATE
        "
    )
    .fetch_all(conn)
    .await?;
    Ok(admins.into_iter().filter(|id| *id != Some(except.as_uuid())).count())
}

/// Stores a password's hash.
pub async fn set_password(
    conn: &mut Conn,
    user: UserId,
    phc: &str,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO password_credentials (user_id, phc, changed_at)
        VALUES ($1, $2, $3)
        ON CONFLICT (user_id) DO UPDATE SET phc = $2, changed_at = $3
        ",
        user.as_uuid(),
        phc,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// When the user's password was set; `None` without one.
pub async fn password_changed_at(
    conn: &mut Conn,
    user: UserId,
) -> Result<Option<OffsetDateTime>, DbError> {
    let changed = sqlx::query_scalar!(
        "SELECT changed_at FROM password_credentials WHERE user_id = $1",
        user.as_uuid(),
    );
    Ok(changed.fetch_optional(conn).await?)
}

/// The user of that handle and the hash of their password, if the account may be used.
pub async fn find_password_hash(
    conn: &mut Conn,
    handle: &Handle,
) -> Result<Option<(UserId, String)>, DbError> {
    let row = sqlx::query!(
        "
        SELECT user_id, phc
        FROM users
        JOIN password_credentials USING (user_id)
        WHERE handle = $1 AND state = 'active'
        ",
        handle.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| (UserId::from_uuid(row.user_id), row.phc)))
}

/// Whether the account may still be used and its password is still the one with that hash; neither can change
/// until the transaction ends.
pub async fn is_password_current(
    conn: &mut Conn,
    user: UserId,
    phc: &str,
) -> Result<bool, DbError> {
    let found = sqlx::query!(
        "
        SELECT u.user_id
        FROM users u
        JOIN password_credentials p USING (user_id)
        WHERE u.user_id = $1 AND u.state = 'active' AND p.phc = $2
        FOR SHARE
        ",
        user.as_uuid(),
        phc,
    )
    .fetch_optional(conn)
    .await?;
    Ok(found.is_some())
}

/// Stores a session.
pub async fn insert_session(
    conn: &mut Conn,
    id: SessionId,
    user: UserId,
    token: &TokenHash,
    created_at: OffsetDateTime,
    expires_at: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO user_sessions (session_id, user_id, token_hash, created_at, expires_at, last_used_at, hash_key_id)
        VALUES ($1, $2, $3, $4, $5, $4, $6)
        ",
        id.as_uuid(),
        user.as_uuid(),
        &token.hash as &[u8],
        created_at,
        expires_at,
        token.key,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// When a session ends by itself.
pub async fn find_session_end(
    conn: &mut Conn,
    id: SessionId,
) -> Result<Option<OffsetDateTime>, DbError> {
    let end = sqlx::query_scalar!(
        "SELECT expires_at FROM user_sessions WHERE session_id = $1",
        id.as_uuid(),
    );
    Ok(end.fetch_optional(conn).await?)
}

/// Notes that the person behind a session has shown a second factor.
pub async fn mark_second_factor(conn: &mut Conn, id: SessionId) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE user_sessions SET second_factor = true WHERE session_id = $1",
        id.as_uuid()
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether the person behind a session has shown a second factor.
pub async fn has_second_factor(conn: &mut Conn, id: SessionId) -> Result<bool, DbError> {
    let shown = sqlx::query_scalar!(
        "SELECT second_factor FROM user_sessions WHERE session_id = $1",
        id.as_uuid(),
    );
    Ok(shown.fetch_optional(conn).await?.unwrap_or(false))
}

/// Notes that a session was used.
pub async fn touch_session(
    conn: &mut Conn,
    id: SessionId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE user_sessions SET last_used_at = $2 WHERE session_id = $1 AND last_used_at < $2",
        id.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that an API key was used.
pub async fn touch_api_key(
    conn: &mut Conn,
    id: ApiKeyId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE api_keys SET last_used_at = $2
        WHERE api_key_id = $1 AND (last_used_at IS NULL OR last_used_at < $2)
        ",
        id.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends one session.
pub async fn end_session(
    conn: &mut Conn,
    id: SessionId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE user_sessions SET ended_at = $2 WHERE session_id = $1 AND ended_at IS NULL",
        id.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends every session of a user, but for `kept`. Gives how many.
pub async fn end_sessions(
    conn: &mut Conn,
    user: UserId,
    kept: Option<SessionId>,
    now: OffsetDateTime,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        UPDATE user_sessions SET ended_at = $2
        WHERE user_id = $1 AND ended_at IS NULL AND ($3::uuid IS NULL OR session_id <> $3)
        ",
        user.as_uuid(),
        now,
        kept.map(SessionId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Removes sessions that were over before then, up to a number of them. Gives how many.
#[tracing::instrument(name = "db.accounts.prune_sessions", skip_all)]
pub async fn prune_sessions(
    conn: &mut Conn,
    before: OffsetDateTime,
    limit: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM user_sessions
        WHERE session_id = ANY (ARRAY(SELECT session_id FROM user_sessions WHERE expires_at < $1 LIMIT $2))
        ",
        before,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

struct ApiKeyRow {
    api_key_id: Uuid,
    user_id: Uuid,
    name: String,
    created_at: OffsetDateTime,
    expires_at: Option<OffsetDateTime>,
    revoked_at: Option<OffsetDateTime>,
    last_used_at: Option<OffsetDateTime>,
    scopes: Option<Vec<String>>,
    read_only: bool,
    limited_to_projects: bool,
    second_factor: bool,
    projects: Vec<Uuid>,
}

impl TryFrom<ApiKeyRow> for ApiKey {
    type Error = DbError;

    fn try_from(row: ApiKeyRow) -> Result<Self, DbError> {
        Ok(Self {
            id: ApiKeyId::from_uuid(row.api_key_id),
            user: UserId::from_uuid(row.user_id),
            name: row.name.try_into().map_err(corrupt_column("api_keys", "name"))?,
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
            last_used_at: row.last_used_at,
            scopes: parse_scopes(row.scopes)?,
            read_only: row.read_only,
            projects: row
                .limited_to_projects
                .then(|| row.projects.into_iter().map(ProjectId::from_uuid).collect()),
            second_factor: row.second_factor,
        })
    }
}

/// Reads the scopes of a key. A name that this version does not know is an error: read as none, the key would open more.
pub(crate) fn parse_scopes(names: Option<Vec<String>>) -> Result<Option<ScopeSet>, DbError> {
    let unknown = || DbError::Corrupt { table: "api_keys", column: "scopes" };
    let Some(names) = names else { return Ok(None) };
    let scopes: Result<ScopeSet, DbError> =
        names.iter().map(|name| ApiScope::from_name(name).ok_or_else(unknown)).collect();
    scopes.map(Some)
}

/// Stores an API key.
pub async fn insert_api_key(
    conn: &mut Conn,
    key: &ApiKey,
    token: &TokenHash,
) -> Result<(), DbError> {
    let scopes: Option<Vec<String>> = key.scopes.map(|scopes| {
        scopes.list_scopes().into_iter().map(|scope| scope.as_str().to_owned()).collect()
    });
    sqlx::query!(
        "
        INSERT INTO api_keys (api_key_id, user_id, name, token_hash, created_at, expires_at, scopes, read_only,
            limited_to_projects, second_factor, hash_key_id)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        ",
        key.id.as_uuid(),
        key.user.as_uuid(),
        key.name.as_str(),
        &token.hash as &[u8],
        key.created_at,
        key.expires_at,
        scopes.as_deref(),
        key.read_only,
        key.projects.is_some(),
        key.second_factor,
        token.key,
    )
    .execute(&mut *conn)
    .await?;
    let projects: Vec<Uuid> =
        key.projects.iter().flatten().map(|project| project.as_uuid()).collect();
    sqlx::query!(
        "
        INSERT INTO api_key_projects (api_key_id, project_id)
        SELECT $1, project_id FROM unnest($2::uuid[]) AS project_id
        ON CONFLICT DO NOTHING
        ",
        key.id.as_uuid(),
        &projects,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A user's API keys by id, one more than a page holds.
pub async fn list_api_keys(
    conn: &mut Conn,
    user: UserId,
    page: PageRequest,
) -> Result<Vec<ApiKey>, DbError> {
    sqlx::query_as!(
        ApiKeyRow,
        r#"
        SELECT api_key_id, user_id, name, created_at, expires_at, revoked_at, last_used_at, scopes, read_only,
            limited_to_projects, second_factor,
            ARRAY(SELECT p.project_id FROM api_key_projects p WHERE p.api_key_id = k.api_key_id ORDER BY 1) AS "projects!"
        FROM api_keys k
        WHERE user_id = $1 AND ($2::uuid IS NULL OR api_key_id > $2)
        ORDER BY api_key_id
        LIMIT $3
        "#,
        user.as_uuid(),
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(ApiKey::try_from)
    .collect()
}

/// Revokes a key; a key that was revoked before keeps its time. `None` when there is no such key.
pub async fn revoke_api_key(
    conn: &mut Conn,
    id: ApiKeyId,
    now: OffsetDateTime,
) -> Result<Option<ApiKey>, DbError> {
    sqlx::query_as!(
        ApiKeyRow,
        r#"
        UPDATE api_keys k
        SET revoked_at = coalesce(revoked_at, $2)
        WHERE api_key_id = $1
        RETURNING api_key_id, user_id, name, created_at, expires_at, revoked_at, last_used_at, scopes, read_only,
            limited_to_projects, second_factor,
            ARRAY(SELECT p.project_id FROM api_key_projects p WHERE p.api_key_id = k.api_key_id ORDER BY 1) AS "projects!"
        "#,
        id.as_uuid(),
        now,
    )
    .fetch_optional(conn)
    .await?
    .map(ApiKey::try_from)
    .transpose()
}

/// Revokes every key of a user; gives those that were not revoked before.
pub async fn revoke_api_keys(
    conn: &mut Conn,
    user: UserId,
    now: OffsetDateTime,
) -> Result<Vec<ApiKeyId>, DbError> {
    let revoked = sqlx::query_scalar!(
        "
        UPDATE api_keys SET revoked_at = $2
        WHERE user_id = $1 AND revoked_at IS NULL
        RETURNING api_key_id
        ",
        user.as_uuid(),
        now,
    )
    .fetch_all(conn)
    .await?;
    Ok(revoked.into_iter().map(ApiKeyId::from_uuid).collect())
}

/// Whose key it is.
pub async fn api_key_owner(conn: &mut Conn, id: ApiKeyId) -> Result<Option<UserId>, DbError> {
    let owner =
        sqlx::query_scalar!("SELECT user_id FROM api_keys WHERE api_key_id = $1", id.as_uuid())
            .fetch_optional(conn)
            .await?;
    Ok(owner.map(UserId::from_uuid))
}

/// Makes whoever issues or uses the one-time token wait for whoever does so now, until the transaction ends.
pub async fn lock_bootstrap(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!("SELECT FROM pg_advisory_xact_lock(hashtext('cynode.bootstrap'))")
        .fetch_one(conn)
        .await?;
    Ok(())
}

/// Stores the hash of a one-time token for the first admin; tokens made before stop working.
pub async fn insert_bootstrap_token(
    conn: &mut Conn,
    token: &TokenHash,
    now: OffsetDateTime,
    expires_at: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM bootstrap_tokens WHERE used_at IS NULL").execute(&mut *conn).await?;
    sqlx::query!(
        "INSERT INTO bootstrap_tokens (token_hash, created_at, expires_at, hash_key_id) VALUES ($1, $2, $3, $4)",
        &token.hash as &[u8],
        now,
        expires_at,
        token.key,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether a token with one of these hashes was ever given out and not replaced.
pub async fn has_bootstrap_token(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
) -> Result<bool, DbError> {
    let known = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM bootstrap_tokens WHERE token_hash = ANY ($1)) AS "known!""#,
        token_hashes as &[[u8; 32]],
    )
    .fetch_one(conn)
    .await?;
    Ok(known)
}

/// Uses up the one-time token. Of two callers at once, one gets `true`.
pub async fn use_bootstrap_token(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE bootstrap_tokens
        SET used_at = $2
        WHERE token_hash = ANY ($1) AND used_at IS NULL AND expires_at > $2
        ",
        token_hashes as &[[u8; 32]],
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}
