//! The directory: its tokens, and the users and groups that it manages.

use cynode_core::{
    accounts::ScimToken,
    ids::{GroupId, ScimTokenId, UserId},
    names::{EmailAddress, GroupName, Handle, Title},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Conn, DbError,
    platform::{error::corrupt_column, keyring::TokenHash},
};

struct ScimTokenRow {
    scim_token_id: Uuid,
    name: String,
    created_by: Uuid,
    created_at: OffsetDateTime,
    expires_at: OffsetDateTime,
    revoked_at: Option<OffsetDateTime>,
    last_used_at: Option<OffsetDateTime>,
}

impl TryFrom<ScimTokenRow> for ScimToken {
    type Error = DbError;

    fn try_from(row: ScimTokenRow) -> Result<Self, DbError> {
        Ok(Self {
            id: ScimTokenId::from_uuid(row.scim_token_id),
            name: row.name.try_into().map_err(corrupt_column("scim_tokens", "name"))?,
            created_by: UserId::from_uuid(row.created_by),
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
            last_used_at: row.last_used_at,
        })
    }
}

/// Stores a token of a directory.
pub async fn insert_scim_token(
    conn: &mut Conn,
    token: &ScimToken,
    stored: &TokenHash,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO scim_tokens (scim_token_id, name, token_hash, created_by, created_at, expires_at, hash_key_id)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ",
        token.id.as_uuid(),
        token.name.as_str(),
        &stored.hash as &[u8],
        token.created_by.as_uuid(),
        token.created_at,
        token.expires_at,
        stored.key,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// All tokens of directories, newest first.
pub async fn list_scim_tokens(conn: &mut Conn) -> Result<Vec<ScimToken>, DbError> {
    sqlx::query_as!(
        ScimTokenRow,
        "
        SELECT scim_token_id, name, created_by, created_at, expires_at, revoked_at, last_used_at
        FROM scim_tokens ORDER BY scim_token_id DESC LIMIT 200
        "
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(ScimToken::try_from)
    .collect()
}

/// Revokes a token; one that was revoked before keeps its time. `None` when there is no such token.
pub async fn revoke_scim_token(
    conn: &mut Conn,
    id: ScimTokenId,
    now: OffsetDateTime,
) -> Result<Option<ScimToken>, DbError> {
    sqlx::query_as!(
        ScimTokenRow,
        "
        UPDATE scim_tokens SET revoked_at = coalesce(revoked_at, $2) WHERE scim_token_id = $1
        RETURNING scim_token_id, name, created_by, created_at, expires_at, revoked_at, last_used_at
        ",
        id.as_uuid(),
        now,
    )
    .fetch_optional(conn)
    .await?
    .map(ScimToken::try_from)
    .transpose()
}

/// The token that is stored under one of these hashes, if it works at `now`.
#[tracing::instrument(name = "db.scim.find_scim_token", skip_all)]
pub async fn find_scim_token(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Option<ScimTokenId>, DbError> {
    let id = sqlx::query_scalar!(
        "
        SELECT scim_token_id FROM scim_tokens
        WHERE token_hash = ANY ($1) AND revoked_at IS NULL AND expires_at > $2
        ",
        token_hashes as &[[u8; 32]],
        now,
    );
    Ok(id.fetch_optional(conn).await?.map(ScimTokenId::from_uuid))
}

/// Notes that a token was used.
pub async fn touch_scim_token(
    conn: &mut Conn,
    id: ScimTokenId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE scim_tokens SET last_used_at = $2
        WHERE scim_token_id = $1 AND (last_used_at IS NULL OR last_used_at < $2)
        ",
        id.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// An account that the directory manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScimUserRecord {
    /// The account.
    pub user: UserId,
    /// Its handle here.
    pub handle: Handle,
    /// What the directory calls it.
    pub user_name: String,
    /// The directory's own id of it.
    pub external_id: Option<String>,
    /// What others see.
    pub display_name: Title,
    /// Where the person can be written to.
    pub email: Option<EmailAddress>,
    /// Whether the account may be used.
    pub active: bool,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When the directory last changed it.
    pub updated_at: OffsetDateTime,
}

struct ScimUserRow {
    user_id: Uuid,
    handle: String,
    user_name: String,
    external_id: Option<String>,
    display_name: String,
    email: Option<String>,
    active: bool,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

impl TryFrom<ScimUserRow> for ScimUserRecord {
    type Error = DbError;

    fn try_from(row: ScimUserRow) -> Result<Self, DbError> {
        let email = row.email.map(TryInto::try_into).transpose();
        Ok(Self {
            user: UserId::from_uuid(row.user_id),
            handle: row.handle.try_into().map_err(corrupt_column("users", "handle"))?,
            user_name: row.user_name,
            external_id: row.external_id,
            display_name: row
                .display_name
                .try_into()
                .map_err(corrupt_column("users", "display_name"))?,
            email: email.map_err(corrupt_column("users", "email"))?,
            active: row.active,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

/// An attribute that accounts are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScimUserKey<'a> {
    /// What the directory calls it, in small or large letters.
    UserName(&'a str),
    /// The directory's own id.
    ExternalId(&'a str),
    /// What others see, in small or large letters.
    DisplayName(&'a str),
}

/// The accounts with that attribute.
#[tracing::instrument(name = "db.scim.find_scim_users", skip_all)]
pub async fn find_scim_users(
    conn: &mut Conn,
    key: ScimUserKey<'_>,
) -> Result<Vec<ScimUserRecord>, DbError> {
    let rows = match key {
        ScimUserKey::UserName(name) => {
            sqlx::query_as!(
                ScimUserRow,
                r#"
                SELECT s.user_id, u.handle, s.user_name, s.external_id, u.display_name, u.email,
                    u.state = 'active' AS "active!", u.created_at, s.updated_at
                FROM scim_users s JOIN users u USING (user_id)
                WHERE lower(s.user_name) = lower($1)
                "#,
                name,
            )
            .fetch_all(conn)
            .await?
        }
        ScimUserKey::ExternalId(id) => {
            sqlx::query_as!(
                ScimUserRow,
                r#"
                SELECT s.user_id, u.handle, s.user_name, s.external_id, u.display_name, u.email,
                    u.state = 'active' AS "active!", u.created_at, s.updated_at
                FROM scim_users s JOIN users u USING (user_id)
                WHERE s.external_id = $1
                ORDER BY s.user_id
                "#,
                id,
            )
            .fetch_all(conn)
            .await?
        }
        ScimUserKey::DisplayName(name) => {
            sqlx::query_as!(
                ScimUserRow,
                r#"
                SELECT s.user_id, u.handle, s.user_name, s.external_id, u.display_name, u.email,
                    u.state = 'active' AS "active!", u.created_at, s.updated_at
                FROM users u JOIN scim_users s USING (user_id)
                WHERE lower(u.display_name) = lower($1)
                ORDER BY s.user_id
                "#,
                name,
            )
            .fetch_all(conn)
            .await?
        }
    };
    rows.into_iter().map(ScimUserRecord::try_from).collect()
}

/// A page of the accounts, by id.
#[tracing::instrument(name = "db.scim.list_scim_users", skip_all)]
pub async fn list_scim_users(
    conn: &mut Conn,
    offset: i64,
    limit: i64,
) -> Result<Vec<ScimUserRecord>, DbError> {
    sqlx::query_as!(
        ScimUserRow,
        r#"
        SELECT s.user_id, u.handle, s.user_name, s.external_id, u.display_name, u.email,
            u.state = 'active' AS "active!", u.created_at, s.updated_at
        FROM scim_users s JOIN users u USING (user_id)
        ORDER BY s.user_id
        LIMIT $2 OFFSET $1
        "#,
        offset,
        limit,
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(ScimUserRecord::try_from)
    .collect()
}

/// How many accounts the directory manages.
pub async fn count_scim_users(conn: &mut Conn) -> Result<i64, DbError> {
    let count = sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM scim_users"#);
    Ok(count.fetch_one(conn).await?)
}

/// One account that the directory manages. It stays locked until the transaction ends.
#[tracing::instrument(name = "db.scim.lock_scim_user", skip_all, fields(user.id = %id))]
pub async fn lock_scim_user(
    conn: &mut Conn,
    id: UserId,
) -> Result<Option<ScimUserRecord>, DbError> {
    sqlx::query_as!(
        ScimUserRow,
        r#"
        SELECT s.user_id, u.handle, s.user_name, s.external_id, u.display_name, u.email,
            u.state = 'active' AS "active!", u.created_at, s.updated_at
        FROM scim_users s JOIN users u USING (user_id)
        WHERE s.user_id = $1
        FOR UPDATE OF s
        "#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(ScimUserRecord::try_from)
    .transpose()
}

/// Whether the directory disabled an account, and not an admin.
pub async fn is_disabled_by_directory(conn: &mut Conn, user: UserId) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT disabled_by_directory FROM users WHERE user_id = $1",
        user.as_uuid(),
    );
    Ok(found.fetch_one(conn).await?)
}

/// Puts an account under the directory.
pub async fn insert_scim_user(
    conn: &mut Conn,
    user: UserId,
    user_name: &str,
    external_id: Option<&str>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "INSERT INTO scim_users (user_id, user_name, external_id, updated_at) VALUES ($1, $2, $3, $4)",
        user.as_uuid(),
        user_name,
        external_id,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Writes what the directory says about an account; its state and handle stay.
pub async fn update_scim_user(
    conn: &mut Conn,
    record: &ScimUserRecord,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE scim_users SET user_name = $2, external_id = $3, updated_at = $4 WHERE user_id = $1",
        record.user.as_uuid(),
        record.user_name,
        record.external_id.as_deref(),
        now,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "UPDATE users SET display_name = $2, email = $3, updated_at = $4 WHERE user_id = $1",
        record.user.as_uuid(),
        record.display_name.as_str(),
        record.email.as_ref().map(|email| email.as_str()),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Takes an account from the directory; the account stays. Returns whether it was under it.
pub async fn delete_scim_user(conn: &mut Conn, user: UserId) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM scim_users WHERE user_id = $1", user.as_uuid())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Takes a user out of every group of the directory.
pub async fn leave_scim_groups(conn: &mut Conn, user: UserId) -> Result<(), DbError> {
    sqlx::query!(
        "
        DELETE FROM group_members m USING scim_groups s
        WHERE m.user_id = $1 AND s.group_id = m.group_id
        ",
        user.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether an account has that handle.
pub async fn has_handle(conn: &mut Conn, handle: &Handle) -> Result<bool, DbError> {
    let exists = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM users WHERE handle = $1) AS "exists!""#,
        handle.as_str(),
    );
    Ok(exists.fetch_one(conn).await?)
}

/// Whether a group has that name.
pub async fn has_group_name(conn: &mut Conn, name: &GroupName) -> Result<bool, DbError> {
    let exists = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM groups WHERE name = $1) AS "exists!""#,
        name.as_str(),
    );
    Ok(exists.fetch_one(conn).await?)
}

/// A group that the directory manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScimGroupRecord {
    /// The group.
    pub group: GroupId,
    /// What the directory calls it.
    pub display_name: String,
    /// The directory's own id of it.
    pub external_id: Option<String>,
    /// Its members that the directory manages, by id.
    pub members: Vec<UserId>,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When the directory last changed it.
    pub updated_at: OffsetDateTime,
}

struct ScimGroupRow {
    group_id: Uuid,
    display_name: String,
    external_id: Option<String>,
    members: Vec<Uuid>,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

impl From<ScimGroupRow> for ScimGroupRecord {
    fn from(row: ScimGroupRow) -> Self {
        Self {
            group: GroupId::from_uuid(row.group_id),
            display_name: row.display_name,
            external_id: row.external_id,
            members: row.members.into_iter().map(UserId::from_uuid).collect(),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// All groups that the directory manages, by id: those with that name or that id of the directory, where one is given.
#[tracing::instrument(name = "db.scim.list_scim_groups", skip_all)]
pub async fn list_scim_groups(
    conn: &mut Conn,
    display_name: Option<&str>,
    external_id: Option<&str>,
) -> Result<Vec<ScimGroupRecord>, DbError> {
    let rows = sqlx::query_as!(
        ScimGroupRow,
        r#"
        SELECT s.group_id, s.display_name, s.external_id, g.created_at, s.updated_at,
            ARRAY(SELECT m.user_id FROM group_members m JOIN scim_users su USING (user_id)
                WHERE m.group_id = s.group_id ORDER BY 1) AS "members!"
        FROM scim_groups s JOIN groups g USING (group_id)
        WHERE ($1::text IS NULL OR lower(s.display_name) = lower($1)) AND ($2::text IS NULL OR s.external_id = $2)
        ORDER BY s.group_id
        "#,
        display_name,
        external_id,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(ScimGroupRecord::from).collect())
}

/// One group that the directory manages. It stays locked until the transaction ends.
#[tracing::instrument(name = "db.scim.lock_scim_group", skip_all, fields(group.id = %id))]
pub async fn lock_scim_group(
    conn: &mut Conn,
    id: GroupId,
) -> Result<Option<ScimGroupRecord>, DbError> {
    let row = sqlx::query_as!(
        ScimGroupRow,
        r#"
        SELECT s.group_id, s.display_name, s.external_id, g.created_at, s.updated_at,
            ARRAY(SELECT m.user_id FROM group_members m JOIN scim_users su USING (user_id)
                WHERE m.group_id = s.group_id ORDER BY 1) AS "members!"
        FROM scim_groups s JOIN groups g USING (group_id)
        WHERE s.group_id = $1
        FOR UPDATE OF s
        "#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(ScimGroupRecord::from))
}

/// Puts a group under the directory.
pub async fn insert_scim_group(
    conn: &mut Conn,
    group: GroupId,
    display_name: &str,
    external_id: Option<&str>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "INSERT INTO scim_groups (group_id, display_name, external_id, updated_at) VALUES ($1, $2, $3, $4)",
        group.as_uuid(),
        display_name,
        external_id,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Writes what the directory says about a group; its members are written apart.
pub async fn update_scim_group(
    conn: &mut Conn,
    record: &ScimGroupRecord,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE scim_groups SET display_name = $2, external_id = $3, updated_at = $4 WHERE group_id = $1",
        record.group.as_uuid(),
        record.display_name,
        record.external_id.as_deref(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Those of the users that the directory manages.
pub async fn list_managed_users(conn: &mut Conn, users: &[UserId]) -> Result<Vec<UserId>, DbError> {
    let users: Vec<Uuid> = users.iter().map(|user| user.as_uuid()).collect();
    let managed =
        sqlx::query_scalar!("SELECT user_id FROM scim_users WHERE user_id = ANY($1)", &users);
    Ok(managed.fetch_all(conn).await?.into_iter().map(UserId::from_uuid).collect())
}
