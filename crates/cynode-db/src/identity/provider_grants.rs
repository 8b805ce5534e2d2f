//! Grants of identity providers: their checks, their end, and the sessions that hang on them.

use cynode_core::{
    accounts::LoginMethod,
    ids::{ExternalIdentityId, IdentityProviderId, ProviderGrantId, SessionId, UserId},
    paging::PageRequest,
    settings::registry::DISABLE_LOCAL_LOGIN_SETTING,
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{Conn, DbError};

/// What a provider granted at a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGrant {
    /// Its id.
    pub id: ProviderGrantId,
    /// The account at the provider.
    pub identity: ExternalIdentityId,
    /// The session of the person at the provider.
    pub provider_session: Option<String>,
    /// The tokens, encrypted.
    pub sealed_tokens: Vec<u8>,
    /// When it was granted.
    pub created_at: OffsetDateTime,
    /// Until when its sessions work without another check.
    pub valid_until: OffsetDateTime,
}

/// Stores a grant. Its provider has just confirmed the person.
pub async fn insert_grant(conn: &mut Conn, grant: &NewGrant) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO provider_grants (provider_grant_id, external_identity_id, provider_session, sealed_tokens,
            confirmed_at, valid_until, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $5)
        ",
        grant.id.as_uuid(),
        grant.identity.as_uuid(),
        grant.provider_session,
        grant.sealed_tokens,
        grant.created_at,
        grant.valid_until,
    )
    .execute(&mut *conn)
    .await?;
    note_confirmation(conn, grant.id, grant.created_at).await
}

/// Stores when the provider of a grant confirmed its person.
async fn note_confirmation(
    conn: &mut Conn,
    grant: ProviderGrantId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE external_identities e
        SET confirmed_at = $2
        FROM provider_grants g
        WHERE g.provider_grant_id = $1 AND e.external_identity_id = g.external_identity_id
        ",
        grant.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stores that a provider no longer confirms a person, or nobody of its people.
pub async fn clear_confirmation(
    conn: &mut Conn,
    provider: IdentityProviderId,
    subject: Option<&str>,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE external_identities
        SET confirmed_at = NULL
        WHERE identity_provider_id = $1 AND ($2::text IS NULL OR subject = $2)
        ",
        provider.as_uuid(),
        subject,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The users whom only this provider vouches for: they have no password that works, no account at another provider, and are in no
/// directory.
pub async fn list_dependent_users(
    conn: &mut Conn,
    provider: IdentityProviderId,
) -> Result<Vec<UserId>, DbError> {
    let users = sqlx::query_scalar!(
        "
        SELECT e.user_id FROM external_identities e
        WHERE e.identity_provider_id = $1
          AND (NOT EXISTS (SELECT FROM password_credentials p WHERE p.user_id = e.user_id)
            OR EXISTS (SELECT FROM system_settings s WHERE s.key = $2 AND s.value = 'true'))
          AND NOT EXISTS (SELECT FROM scim_users d WHERE d.user_id = e.user_id)
          AND NOT EXISTS (SELECT FROM external_identities o
              WHERE o.user_id = e.user_id AND o.identity_provider_id <> e.identity_provider_id)
        ORDER BY e.user_id
        ",
        provider.as_uuid(),
        DISABLE_LOCAL_LOGIN_SETTING,
    );
    let users = users.fetch_all(conn).await?;
    Ok(users.into_iter().map(UserId::from_uuid).collect())
}

/// Where and how a session was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOrigin {
    /// How.
    pub method: LoginMethod,
    /// What the client calls itself.
    pub device: Option<String>,
    /// Where its request came from.
    pub source: String,
    /// The grant that the session hangs on.
    pub grant: Option<ProviderGrantId>,
    /// Whether the person has shown a second factor.
    pub second_factor: bool,
}

/// Stores where and how a session was started.
pub async fn set_session_origin(
    conn: &mut Conn,
    session: SessionId,
    origin: &SessionOrigin,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE user_sessions
        SET login_method = $2, device = $3, source = $4, provider_grant_id = $5, second_factor = $6
        WHERE session_id = $1
        ",
        session.as_uuid(),
        origin.method.as_str(),
        origin.device,
        origin.source,
        origin.grant.map(ProviderGrantId::as_uuid),
        origin.second_factor,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// How a session was started, the grant that it hangs on, and whether its person has shown a second factor.
pub type FoundOrigin = (Option<LoginMethod>, Option<ProviderGrantId>, bool);

/// The origin of a session. `None` if it has ended.
pub async fn find_session_origin(
    conn: &mut Conn,
    session: SessionId,
    now: OffsetDateTime,
) -> Result<Option<FoundOrigin>, DbError> {
    let row = sqlx::query!(
        "
        SELECT login_method, provider_grant_id, second_factor
        FROM user_sessions
        WHERE session_id = $1 AND ended_at IS NULL AND expires_at > $2
        FOR SHARE
        ",
        session.as_uuid(),
        now,
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let method = row.login_method.map(|name| parse_method(&name)).transpose()?;
        Ok((method, row.provider_grant_id.map(ProviderGrantId::from_uuid), row.second_factor))
    })
    .transpose()
}

/// When and how a session was started. `None` if it has ended.
pub async fn find_session_start(
    conn: &mut Conn,
    session: SessionId,
    now: OffsetDateTime,
) -> Result<Option<(OffsetDateTime, Option<LoginMethod>)>, DbError> {
    let row = sqlx::query!(
        "
        SELECT created_at, login_method FROM user_sessions
        WHERE session_id = $1 AND ended_at IS NULL AND expires_at > $2
        ",
        session.as_uuid(),
        now,
    );
    let row = row.fetch_optional(conn).await?;
    row.map(|row| {
        Ok((row.created_at, row.login_method.map(|name| parse_method(&name)).transpose()?))
    })
    .transpose()
}

fn parse_method(name: &str) -> Result<LoginMethod, DbError> {
    LoginMethod::from_name(name)
        .ok_or(DbError::Corrupt { table: "user_sessions", column: "login_method" })
}

/// State of the check of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantCheckState {
    /// The grant holds: no check is due.
    Confirmed,
    /// Another process checks it.
    Claimed,
    /// This caller has to check it.
    Due(DueGrant),
}

/// A grant that has to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueGrant {
    /// Its id.
    pub id: ProviderGrantId,
    /// Fencing token of this check.
    pub check_number: i64,
    /// The provider.
    pub provider: IdentityProviderId,
    /// Identifier of the person there.
    pub subject: String,
    /// The person here.
    pub user: UserId,
    /// The tokens, encrypted.
    pub sealed_tokens: Vec<u8>,
    /// When the provider last confirmed it.
    pub confirmed_at: OffsetDateTime,
    /// Since when the provider could not be reached.
    pub unreachable_since: Option<OffsetDateTime>,
}

/// A grant, and whether it is confirmed.
struct FoundGrant {
    provider_grant_id: Uuid,
    confirmed: bool,
}

/// The grant that a session hangs on, if the session could be used.
async fn find_grant_of_session(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Option<FoundGrant>, DbError> {
    let found = sqlx::query_as!(
        FoundGrant,
        r#"
        SELECT g.provider_grant_id, g.valid_until > $2 AS "confirmed!"
        FROM user_sessions s
        JOIN users u USING (user_id)
        JOIN provider_grants g USING (provider_grant_id)
        WHERE s.token_hash = ANY ($1) AND s.ended_at IS NULL AND s.expires_at > $2 AND u.state = 'active' AND g.ended_at IS NULL
        "#,
        token_hashes as &[[u8; 32]],
        now,
    );
    Ok(found.fetch_optional(conn).await?)
}

/// The owner of an API key, if the key could be used.
async fn find_key_owner(
    conn: &mut Conn,
    token_hashes: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<Option<UserId>, DbError> {
    let owner = sqlx::query_scalar!(
        "
        SELECT user_id FROM api_keys
        WHERE token_hash = ANY ($1) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)
        ",
        token_hashes as &[[u8; 32]],
        now,
    );
    Ok(owner.fetch_optional(conn).await?.map(UserId::from_uuid))
}

/// The grant of a user that is confirmed for longest.
async fn find_grant_of_user(
    conn: &mut Conn,
    user: UserId,
    now: OffsetDateTime,
) -> Result<Option<FoundGrant>, DbError> {
    let found = sqlx::query_as!(
        FoundGrant,
        r#"
        SELECT g.provider_grant_id, g.valid_until > $2 AS "confirmed!"
        FROM users u
        JOIN external_identities e USING (user_id)
        JOIN provider_grants g USING (external_identity_id)
        WHERE u.user_id = $1 AND u.state = 'active' AND g.ended_at IS NULL
        ORDER BY g.valid_until DESC, g.provider_grant_id
        LIMIT 1
        "#,
        user.as_uuid(),
        now,
    );
    Ok(found.fetch_optional(conn).await?)
}

/// Whose grant is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantCredential<'a> {
    /// That of a session, which hangs on one grant. Its token is stored under one of these hashes.
    Session(&'a [[u8; 32]]),
    /// Any of the owner of an API key. Its token is stored under one of these hashes.
    ApiKey(&'a [[u8; 32]]),
    /// Any of a user.
    User(UserId),
}

/// Claims the check of a grant that is not confirmed at `now`. Of several callers one has to check, until the claim is `claim` old by the
/// clock of the database. `None` if the credential could not be used, or if there is no grant behind it.
#[tracing::instrument(name = "db.provider_grants.claim_grant_check", skip_all)]
pub async fn claim_grant_check(
    conn: &mut Conn,
    credential: GrantCredential<'_>,
    now: OffsetDateTime,
    claim: Duration,
) -> Result<Option<GrantCheckState>, DbError> {
    let found = match credential {
        GrantCredential::Session(hashes) => find_grant_of_session(conn, hashes, now).await?,
        GrantCredential::ApiKey(hashes) => match find_key_owner(conn, hashes, now).await? {
            Some(owner) => find_grant_of_user(conn, owner, now).await?,
            None => None,
        },
        GrantCredential::User(user) => find_grant_of_user(conn, user, now).await?,
    };
    let Some(found) = found else { return Ok(None) };
    if found.confirmed {
        return Ok(Some(GrantCheckState::Confirmed));
    }
    let row = sqlx::query!(
        "
        UPDATE provider_grants g
        SET claimed_until = clock_timestamp() + interval '1 second' * $3::bigint, check_number = g.check_number + 1
        FROM external_identities e
        WHERE g.provider_grant_id = $1 AND e.external_identity_id = g.external_identity_id
          AND g.ended_at IS NULL AND g.valid_until <= $2
          AND (g.claimed_until IS NULL OR g.claimed_until <= clock_timestamp())
        RETURNING g.check_number, g.sealed_tokens, g.confirmed_at, g.unreachable_since,
            e.identity_provider_id, e.subject, e.user_id
        ",
        found.provider_grant_id,
        now,
        claim.whole_seconds(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(Some(row.map_or(GrantCheckState::Claimed, |row| {
        GrantCheckState::Due(DueGrant {
            id: ProviderGrantId::from_uuid(found.provider_grant_id),
            check_number: row.check_number,
            provider: IdentityProviderId::from_uuid(row.identity_provider_id),
            subject: row.subject,
            user: UserId::from_uuid(row.user_id),
            sealed_tokens: row.sealed_tokens,
            confirmed_at: row.confirmed_at,
            unreachable_since: row.unreachable_since,
        })
    })))
}

/// The users in whose name something acts by itself, and whose last confirmation is over at `now`: they have agent tokens, schedules or
/// notification channels.
#[tracing::instrument(name = "db.provider_grants.list_users_to_confirm", skip_all)]
pub async fn list_users_to_confirm(
    conn: &mut Conn,
    now: OffsetDateTime,
    limit: i64,
) -> Result<Vec<UserId>, DbError> {
    let users = sqlx::query_scalar!(
        "
        SELECT e.user_id
        FROM provider_grants g
        JOIN external_identities e USING (external_identity_id)
        JOIN users u USING (user_id)
        WHERE g.ended_at IS NULL AND g.valid_until <= $1 AND u.state = 'active'
          AND (EXISTS (SELECT FROM agent_tokens t
                WHERE t.user_id = e.user_id AND t.revoked_at IS NULL AND t.expires_at > $1)
            OR EXISTS (SELECT FROM schedules s WHERE s.acts_for = e.user_id AND s.enabled)
            OR EXISTS (SELECT FROM notification_channels c WHERE c.user_id = e.user_id AND c.enabled))
          AND NOT EXISTS (SELECT FROM external_identities o JOIN provider_grants h USING (external_identity_id)
                WHERE o.user_id = e.user_id AND h.ended_at IS NULL AND h.valid_until > $1)
        GROUP BY e.user_id
        ORDER BY min(g.valid_until), e.user_id
        LIMIT $2
        ",
        now,
        limit,
    );
    Ok(users.fetch_all(conn).await?.into_iter().map(UserId::from_uuid).collect())
}

/// Stores the tokens that a provider has just issued, before anything else is asked. `false` if this check was superseded or the grant has
/// ended.
pub async fn store_grant_tokens(
    conn: &mut Conn,
    grant: &DueGrant,
    sealed_tokens: &[u8],
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE provider_grants SET sealed_tokens = $3
        WHERE provider_grant_id = $1 AND check_number = $2 AND ended_at IS NULL
        ",
        grant.id.as_uuid(),
        grant.check_number,
        sealed_tokens,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Stores that the provider confirmed a grant. `false` if this check was superseded or the grant has ended.
pub async fn confirm_grant(
    conn: &mut Conn,
    grant: &DueGrant,
    sealed_tokens: &[u8],
    now: OffsetDateTime,
    valid_until: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE provider_grants
        SET sealed_tokens = $3, confirmed_at = $4, valid_until = $5, claimed_until = NULL, unreachable_since = NULL
        WHERE provider_grant_id = $1 AND check_number = $2 AND ended_at IS NULL
        ",
        grant.id.as_uuid(),
        grant.check_number,
        sealed_tokens,
        now,
        valid_until,
    )
    .execute(&mut *conn)
    .await?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    note_confirmation(conn, grant.id, now).await?;
    Ok(true)
}

/// Stores that the provider could not be reached. `false` if this check was superseded or the grant has ended.
pub async fn extend_grant(
    conn: &mut Conn,
    grant: &DueGrant,
    unreachable_since: OffsetDateTime,
    valid_until: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE provider_grants
        SET valid_until = $3, claimed_until = NULL, unreachable_since = $4
        WHERE provider_grant_id = $1 AND check_number = $2 AND ended_at IS NULL
        ",
        grant.id.as_uuid(),
        grant.check_number,
        valid_until,
        unreachable_since,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Makes the next request of every session of a provider wait for a new check.
pub async fn expire_confirmations(
    conn: &mut Conn,
    provider: IdentityProviderId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE provider_grants g
        SET valid_until = $2
        FROM external_identities e
        WHERE e.identity_provider_id = $1 AND e.external_identity_id = g.external_identity_id
          AND g.ended_at IS NULL AND g.valid_until > $2
        ",
        provider.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The grants that end together.
#[derive(Clone, Copy, Debug)]
pub enum EndedGrants<'a> {
    /// This one.
    One(ProviderGrantId),
    /// This one, which a check refused. Nothing ends if the check was superseded.
    Refused(&'a DueGrant),
    /// Those of a person at the provider, or of one session there. A grant of the person whose session is unknown ends in
    /// each case: it may be that one.
    Logout {
        /// The provider.
        provider: IdentityProviderId,
        /// The person.
        subject: Option<&'a str>,
        /// The session at the provider.
        session: Option<&'a str>,
    },
    /// All of a provider.
    Provider(IdentityProviderId),
}

/// Ends grants and their sessions, and forgets their tokens. Returns the sessions that ended, with their users.
#[tracing::instrument(name = "db.provider_grants.end_grants", skip_all)]
pub async fn end_grants(
    conn: &mut Conn,
    which: EndedGrants<'_>,
    now: OffsetDateTime,
) -> Result<Vec<(SessionId, UserId)>, DbError> {
    let ended = match which {
        EndedGrants::One(grant) => end_one_grant(conn, grant, None, now).await?,
        EndedGrants::Refused(grant) => {
            end_one_grant(conn, grant.id, Some(grant.check_number), now).await?
        }
        EndedGrants::Logout { provider, subject, session } => {
            end_provider_grants(conn, provider, subject, session, now).await?
        }
        EndedGrants::Provider(provider) => {
            end_provider_grants(conn, provider, None, None, now).await?
        }
    };
    let rows = sqlx::query!(
        "
        UPDATE user_sessions SET ended_at = $2
        WHERE provider_grant_id = ANY ($1) AND ended_at IS NULL
        RETURNING session_id, user_id
        ",
        &ended,
        now,
    )
    .fetch_all(conn)
    .await?;
    let sessions = rows.into_iter();
    Ok(sessions
        .map(|row| (SessionId::from_uuid(row.session_id), UserId::from_uuid(row.user_id)))
        .collect())
}

async fn end_one_grant(
    conn: &mut Conn,
    grant: ProviderGrantId,
    check_number: Option<i64>,
    now: OffsetDateTime,
) -> Result<Vec<Uuid>, DbError> {
    let ended = sqlx::query_scalar!(
        "
        UPDATE provider_grants
        SET ended_at = $2, sealed_tokens = ''::bytea, claimed_until = NULL
        WHERE provider_grant_id = $1 AND ended_at IS NULL AND ($3::bigint IS NULL OR check_number = $3)
        RETURNING provider_grant_id
        ",
        grant.as_uuid(),
        now,
        check_number,
    )
    .fetch_all(conn)
    .await?;
    Ok(ended)
}

async fn end_provider_grants(
    conn: &mut Conn,
    provider: IdentityProviderId,
    subject: Option<&str>,
    session: Option<&str>,
    now: OffsetDateTime,
) -> Result<Vec<Uuid>, DbError> {
    let ended = sqlx::query_scalar!(
        "
        UPDATE provider_grants g
        SET ended_at = $4, sealed_tokens = ''::bytea, claimed_until = NULL
        FROM external_identities e
        WHERE e.identity_provider_id = $1 AND e.external_identity_id = g.external_identity_id AND g.ended_at IS NULL
          AND ($2::text IS NULL OR e.subject = $2)
          AND ($3::text IS NULL OR g.provider_session = $3 OR (g.provider_session IS NULL AND $2::text IS NOT NULL))
        RETURNING g.provider_grant_id
        ",
        provider.as_uuid(),
        subject,
        session,
        now,
    )
    .fetch_all(conn)
    .await?;
    Ok(ended)
}

/// The provider and the sealed tokens behind a session, if it hangs on a grant.
pub async fn find_session_grant(
    conn: &mut Conn,
    session: SessionId,
) -> Result<Option<(ProviderGrantId, IdentityProviderId, Vec<u8>)>, DbError> {
    let row = sqlx::query!(
        "
        SELECT g.provider_grant_id, g.sealed_tokens, e.identity_provider_id
        FROM user_sessions s
        JOIN provider_grants g USING (provider_grant_id)
        JOIN external_identities e USING (external_identity_id)
        WHERE s.session_id = $1 AND g.ended_at IS NULL
        ",
        session.as_uuid(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| {
        (
            ProviderGrantId::from_uuid(row.provider_grant_id),
            IdentityProviderId::from_uuid(row.identity_provider_id),
            row.sealed_tokens,
        )
    }))
}

/// Whether a grant has a session that can be used.
pub async fn has_open_session(
    conn: &mut Conn,
    grant: ProviderGrantId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM user_sessions WHERE provider_grant_id = $1 AND ended_at IS NULL AND expires_at > $2
        ) AS "found!"
        "#,
        grant.as_uuid(),
        now,
    )
    .fetch_one(conn)
    .await?;
    Ok(found)
}

/// Whether a provider confirms a person at `now`. A grant whose check is due says nothing: its session may never be used
/// again, so that nobody would ask about it.
pub async fn has_confirmed_grant(
    conn: &mut Conn,
    provider: IdentityProviderId,
    subject: &str,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM provider_grants g
            JOIN external_identities e USING (external_identity_id)
            WHERE e.identity_provider_id = $1 AND e.subject = $2 AND g.ended_at IS NULL AND g.valid_until > $3
        ) AS "found!"
        "#,
        provider.as_uuid(),
        subject,
        now,
    )
    .fetch_one(conn)
    .await?;
    Ok(found)
}

/// A session that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub user: UserId,
    /// How it was started; unknown for an old one.
    pub method: Option<LoginMethod>,
    /// What people see of its provider.
    pub provider: Option<String>,
    /// What its client calls itself.
    pub device: Option<String>,
    /// Where it was started from.
    pub source: Option<String>,
    /// When it was started.
    pub created_at: OffsetDateTime,
    /// When it ends by itself.
    pub expires_at: OffsetDateTime,
}

/// The sessions of a user that can be used, by id, one more than a page holds.
#[tracing::instrument(name = "db.provider_grants.list_open_sessions", skip_all)]
pub async fn list_open_sessions(
    conn: &mut Conn,
    user: UserId,
    page: PageRequest,
    now: OffsetDateTime,
) -> Result<Vec<OpenSession>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT s.session_id, s.login_method, s.device, s.source, s.created_at, s.expires_at, p.display_name AS "provider?"
        FROM user_sessions s
        LEFT JOIN provider_grants g USING (provider_grant_id)
        LEFT JOIN external_identities e USING (external_identity_id)
        LEFT JOIN identity_providers p USING (identity_provider_id)
        WHERE s.user_id = $1 AND s.ended_at IS NULL AND s.expires_at > $2 AND ($3::uuid IS NULL OR s.session_id > $3)
        ORDER BY s.session_id
        LIMIT $4
        "#,
        user.as_uuid(),
        now,
        page.after.map(|cursor| cursor.0),
        page.row_limit(),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(OpenSession {
                id: SessionId::from_uuid(row.session_id),
                user,
                method: row.login_method.map(|name| parse_method(&name)).transpose()?,
                provider: row.provider,
                device: row.device,
                source: row.source,
                created_at: row.created_at,
                expires_at: row.expires_at,
            })
        })
        .collect()
}

/// Whose session it is, if it can be used.
pub async fn find_session_owner(
    conn: &mut Conn,
    session: SessionId,
    now: OffsetDateTime,
) -> Result<Option<UserId>, DbError> {
    let owner = sqlx::query_scalar!(
        "SELECT user_id FROM user_sessions WHERE session_id = $1 AND ended_at IS NULL AND expires_at > $2",
        session.as_uuid(),
        now,
    )
    .fetch_optional(conn)
    .await?;
    Ok(owner.map(UserId::from_uuid))
}

/// Removes grants without a session that were made before then, up to a number of them. Gives how many. The newest grant of a person stays
/// for whom something acts, such as an API key or a schedule: with it the provider is asked whether that still works.
#[tracing::instrument(name = "db.provider_grants.prune_grants", skip_all)]
pub async fn prune_grants(
    conn: &mut Conn,
    before: OffsetDateTime,
    limit: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM provider_grants
        WHERE provider_grant_id = ANY (ARRAY(
            SELECT g.provider_grant_id FROM provider_grants g
            WHERE g.created_at < $1
              AND NOT EXISTS (SELECT FROM user_sessions s WHERE s.provider_grant_id = g.provider_grant_id)
              AND (g.ended_at IS NOT NULL
                OR EXISTS (SELECT FROM provider_grants n
                    WHERE n.external_identity_id = g.external_identity_id AND n.ended_at IS NULL
                      AND (n.confirmed_at, n.provider_grant_id) > (g.confirmed_at, g.provider_grant_id))
                OR NOT EXISTS (SELECT FROM external_identities e JOIN api_keys k USING (user_id)
                    WHERE e.external_identity_id = g.external_identity_id AND k.revoked_at IS NULL
                      AND (k.expires_at IS NULL OR k.expires_at > $1))
                  AND NOT EXISTS (SELECT FROM external_identities e JOIN agent_tokens t USING (user_id)
                    WHERE e.external_identity_id = g.external_identity_id AND t.revoked_at IS NULL AND t.expires_at > $1)
                  AND NOT EXISTS (SELECT FROM external_identities e JOIN schedules s ON s.acts_for = e.user_id
                    WHERE e.external_identity_id = g.external_identity_id AND s.enabled)
                  AND NOT EXISTS (SELECT FROM external_identities e JOIN notification_channels c USING (user_id)
                    WHERE e.external_identity_id = g.external_identity_id AND c.enabled))
            LIMIT $2
        ))
        ",
        before,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}
