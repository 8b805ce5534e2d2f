//! The keyring: keys of the installation, wrapped by the master key, and what names them.

use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Key of secrets that name none.
pub const FIRST_MASTER_KEY: Uuid = Uuid::from_u128(0x8000_8000_0000_0000_0001);
/// Key of signatures that name none.
pub const FIRST_SIGNING_KEY: Uuid = Uuid::from_u128(0x8000_8000_0000_0000_0002);
/// Key of tokens that were stored before the keyring: SHA-256 without a key.
pub const FIRST_TOKEN_KEY: Uuid = Uuid::from_u128(0x8000_8000_0000_0000_0003);

/// What a token is stored under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenHash {
    /// The key of the hash.
    pub key: Uuid,
    /// The hash.
    pub hash: [u8; 32],
}

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyPurpose {
    /// Seals secrets.
    Master,
    /// Signs audit records.
    Signing,
    /// Hashes tokens, and authenticates links and challenges.
    Token,
}

impl KeyPurpose {
    /// Every purpose.
    pub const ALL: [Self; 3] = [Self::Master, Self::Signing, Self::Token];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Signing => "signing",
            Self::Token => "token",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|purpose| purpose.as_str() == name)
    }
}

/// Material of a key, wrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedMaterial {
    /// The version of the master key.
    pub by: String,
    /// The wrapped bytes.
    pub bytes: Vec<u8>,
}

/// A key, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// Its id.
    pub id: Uuid,
    /// What it is for.
    pub purpose: KeyPurpose,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// From when on it is used.
    pub activates_at: OffsetDateTime,
    /// Before when it is not retired; `None` while no newer key takes over.
    pub retires_at: Option<OffsetDateTime>,
    /// When it was retired.
    pub retired_at: Option<OffsetDateTime>,
    /// Whether it follows from the master key of the first version.
    pub derived: bool,
    /// Its material; a derived key may have none.
    pub wrapped: Option<WrappedMaterial>,
    /// The public key, of a key that signs.
    pub public_key: Option<[u8; 32]>,
    /// The signature of its successor, of a retired key.
    pub endorsement: Option<KeyEndorsement>,
    /// The signature of its predecessor.
    pub introduction: Option<KeyEndorsement>,
}

/// The signature of a key under the public key of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEndorsement {
    /// The key that signed.
    pub by: Uuid,
    /// Its signature.
    pub signature: [u8; 64],
}

/// Those who change the keyring do it one after the other.
pub async fn lock_keyring(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('cynode.keyring'))")
        .fetch_one(conn)
        .await?;
    Ok(())
}

/// Takes the lock of the work of a rotation until the end of the transaction. `false` when another process works.
pub async fn try_lock_rotation(conn: &mut Conn) -> Result<bool, DbError> {
    let taken = sqlx::query_scalar!(
        r#"SELECT pg_try_advisory_xact_lock(hashtext('cynode.key_rotation')) AS "taken!""#
    );
    Ok(taken.fetch_one(conn).await?)
}

/// Every key, oldest first.
#[tracing::instrument(name = "db.keyring.list_keys", skip_all)]
pub async fn list_keys(conn: &mut Conn) -> Result<Vec<KeyRecord>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT key_id, purpose, created_at, activates_at, retires_at, retired_at, derived, wrapped_by, wrapped, public_key,
            endorsement, endorsed_by, introduction, introduced_by
        FROM installation_keys ORDER BY activates_at, key_id
        "
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let purpose = KeyPurpose::from_name(&row.purpose)
                .ok_or(DbError::Corrupt { table: "installation_keys", column: "purpose" })?;
            let public_key = row.public_key.map(<[u8; 32]>::try_from).transpose();
            let signature = row.endorsement.map(<[u8; 64]>::try_from).transpose();
            let signature =
                signature.map_err(corrupt_column("installation_keys", "endorsement"))?;
            let introduction = row.introduction.map(<[u8; 64]>::try_from).transpose();
            let introduction =
                introduction.map_err(corrupt_column("installation_keys", "introduction"))?;
            Ok(KeyRecord {
                id: row.key_id,
                purpose,
                created_at: row.created_at,
                activates_at: row.activates_at,
                retires_at: row.retires_at,
                retired_at: row.retired_at,
                derived: row.derived,
                wrapped: row
                    .wrapped_by
                    .zip(row.wrapped)
                    .map(|(by, bytes)| WrappedMaterial { by, bytes }),
                public_key: public_key
                    .map_err(corrupt_column("installation_keys", "public_key"))?,
                endorsement: row
                    .endorsed_by
                    .zip(signature)
                    .map(|(by, signature)| KeyEndorsement { by, signature }),
                introduction: row
                    .introduced_by
                    .zip(introduction)
                    .map(|(by, signature)| KeyEndorsement { by, signature }),
            })
        })
        .collect()
}

/// Stores a new key.
#[tracing::instrument(name = "db.keyring.insert_key", skip_all)]
pub async fn insert_key(conn: &mut Conn, key: &KeyRecord) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO installation_keys (key_id, purpose, created_at, activates_at, wrapped_by, wrapped, public_key, introduction,
            introduced_by)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ",
        key.id,
        key.purpose.as_str(),
        key.created_at,
        key.activates_at,
        key.wrapped.as_ref().map(|wrapped| wrapped.by.as_str()),
        key.wrapped.as_ref().map(|wrapped| wrapped.bytes.as_slice()),
        key.public_key.as_ref().map(<[u8; 32]>::as_slice),
        key.introduction.as_ref().map(|it| it.signature.as_slice()),
        key.introduction.map(|it| it.by),
    )
    .execute(&mut *conn)
    .await?;
    if key.purpose != KeyPurpose::Signing {
        sqlx::query!("INSERT INTO openable_keys (key_id) VALUES ($1)", key.id)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Says of every older key of a purpose from when on it may be retired.
#[tracing::instrument(name = "db.keyring.supersede_keys", skip_all)]
pub async fn supersede_keys(
    conn: &mut Conn,
    purpose: KeyPurpose,
    by: Uuid,
    retires_at: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE installation_keys SET retires_at = least(retires_at, $3)
        WHERE purpose = $1 AND key_id <> $2 AND retired_at IS NULL
        ",
        purpose.as_str(),
        by,
        retires_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stores the material of a key anew, under another version of the master key.
#[tracing::instrument(name = "db.keyring.rewrap_key", skip_all)]
pub async fn rewrap_key(
    conn: &mut Conn,
    id: Uuid,
    wrapped: &WrappedMaterial,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE installation_keys SET wrapped_by = $2, wrapped = $3 WHERE key_id = $1 AND retired_at IS NULL",
        id,
        wrapped.by.as_str(),
        wrapped.bytes.as_slice(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stores the public key of a key that had none.
#[tracing::instrument(name = "db.keyring.set_public_key", skip_all)]
pub async fn set_public_key(conn: &mut Conn, id: Uuid, key: &[u8; 32]) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE installation_keys SET public_key = $2 WHERE key_id = $1 AND public_key IS NULL",
        id,
        key as &[u8],
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Retires a key and destroys its material. The schema refuses it while anything names the key.
#[tracing::instrument(name = "db.keyring.retire_key", skip_all)]
pub async fn retire_key(
    conn: &mut Conn,
    id: Uuid,
    now: OffsetDateTime,
    endorsement: Option<KeyEndorsement>,
) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM openable_keys WHERE key_id = $1", id).execute(&mut *conn).await?;
    sqlx::query!(
        "
        UPDATE installation_keys SET retired_at = $2, wrapped = NULL, endorsement = $3, endorsed_by = $4
        WHERE key_id = $1 AND retired_at IS NULL
        ",
        id,
        now,
        endorsement.as_ref().map(|it| it.signature.as_slice()),
        endorsement.map(|it| it.by),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Makes a key active later, unless it is active at `now`.
#[tracing::instrument(name = "db.keyring.postpone_activation", skip_all)]
pub async fn postpone_activation(
    conn: &mut Conn,
    id: Uuid,
    now: OffsetDateTime,
    until: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE installation_keys SET activates_at = $3 WHERE key_id = $1 AND retired_at IS NULL AND activates_at BETWEEN $2 AND $3",
        id,
        now,
        until,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A process that holds the keyring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyringProcess {
    /// Its id: another one after a restart.
    pub id: Uuid,
    /// What people call it.
    pub name: String,
}

/// Notes which keys a live process has loaded.
#[tracing::instrument(name = "db.keyring.report_loads", skip_all)]
pub async fn report_loads(
    conn: &mut Conn,
    process: &KeyringProcess,
    keys: &[Uuid],
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO keyring_loads (process_id, process_name, key_ids, seen_at) VALUES ($1, left($2, 200), $3, $4)
        ON CONFLICT (process_id) DO UPDATE SET key_ids = excluded.key_ids, seen_at = excluded.seen_at
        ",
        process.id,
        process.name,
        keys,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Forgets processes that were not seen since then.
#[tracing::instrument(name = "db.keyring.delete_gone_processes", skip_all)]
pub async fn delete_gone_processes(
    conn: &mut Conn,
    process: Uuid,
    since: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM keyring_loads WHERE process_id = $1 OR seen_at < $2", process, since)
        .execute(conn)
        .await?;
    Ok(())
}

/// The names of the processes that were seen since then and have not loaded a key.
#[tracing::instrument(name = "db.keyring.list_processes_without_key", skip_all)]
pub async fn list_processes_without_key(
    conn: &mut Conn,
    key: Uuid,
    since: OffsetDateTime,
) -> Result<Vec<String>, DbError> {
    Ok(sqlx::query_scalar!(
        "SELECT process_name FROM keyring_loads WHERE seen_at > $2 AND NOT $1 = ANY (key_ids) ORDER BY process_name",
        key,
        since,
    )
    .fetch_all(conn)
    .await?)
}

/// How often things of one kind name a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// The key.
    pub key: Uuid,
    /// The kind of thing.
    pub kind: String,
    /// How many name it.
    pub count: i64,
}

/// Counts what names each key.
#[tracing::instrument(name = "db.keyring.count_key_uses", skip_all)]
pub async fn count_key_uses(conn: &mut Conn) -> Result<Vec<KeyUse>, DbError> {
    Ok(sqlx::query_as!(
        KeyUse,
        r#"
        SELECT key AS "key!", kind AS "kind!", count(*) AS "count!" FROM (
            SELECT sealed_by AS key, 'provider keys' AS kind FROM provider_keys
            UNION ALL SELECT sealed_by, 'tool servers' FROM tool_servers
            UNION ALL SELECT sealed_by, 'approvals' FROM approvals
            UNION ALL SELECT credential_sealed_by, 'forge credentials' FROM project_remotes
            UNION ALL SELECT webhook_sealed_by, 'webhook secrets' FROM project_remotes
            UNION ALL SELECT sealed_by, 'notification channels' FROM notification_channels
            UNION ALL SELECT old_sealed_by, 'notification channels' FROM notification_channels
            UNION ALL SELECT sealed_by, 'project secrets' FROM project_secrets
            UNION ALL SELECT sealed_by, 'audit sinks' FROM audit_sinks
            UNION ALL SELECT sealed_by, 'web push keys' FROM web_push_keys
            UNION ALL SELECT sealed_by, 'second factors' FROM totp_credentials
            UNION ALL SELECT sealed_by, 'identity providers' FROM identity_providers
            UNION ALL SELECT sealed_by, 'provider grants' FROM provider_grants
            UNION ALL SELECT hash_key_id, 'sessions' FROM user_sessions
            UNION ALL SELECT hash_key_id, 'API keys' FROM api_keys
            UNION ALL SELECT hash_key_id, 'bootstrap tokens' FROM bootstrap_tokens
            UNION ALL SELECT hash_key_id, 'service tokens' FROM service_tokens
            UNION ALL SELECT hash_key_id, 'agent tokens' FROM agent_tokens
            UNION ALL SELECT hash_key_id, 'join tokens' FROM node_join_tokens
            UNION ALL SELECT hash_key_id, 'node tokens' FROM node_tokens
            UNION ALL SELECT hash_key_id, 'SCIM tokens' FROM scim_tokens
            UNION ALL SELECT hash_key_id, 'break-glass tokens' FROM break_glass_tokens
            UNION ALL SELECT hash_key_id, 'device codes' FROM device_authorizations
            UNION ALL SELECT signed_by, 'chains' FROM audit_chains
            UNION ALL SELECT signed_by, 'signed heads' FROM audit_checkpoints
        ) named
        WHERE key IS NOT NULL GROUP BY key, kind ORDER BY key, kind
        "#
    )
    .fetch_all(conn)
    .await?)
}

/// Where a sealed secret is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealedColumn {
    /// A key of a provider.
    ProviderKey(Uuid),
    /// The credentials of a tool server.
    ToolServer(Uuid),
    /// The arguments of a call that waits for an approval.
    Approval(Uuid),
    /// The credential of the remote of a project.
    ForgeCredential(Uuid),
    /// The webhook secret of the remote of a project.
    WebhookSecret(Uuid),
    /// The secret of a notification channel.
    ChannelSecret(Uuid),
    /// The secret of a notification channel that is being rotated out.
    OldChannelSecret(Uuid),
    /// A secret of a project.
    ProjectSecret(Uuid, String),
    /// The secret of an audit sink.
    AuditSink(Uuid),
    /// The private key for web push.
    WebPushKey,
    /// The secret of the second factor of a user.
    SecondFactor(Uuid),
    /// The secret of this installation at an identity provider.
    IdentityProvider(Uuid),
    /// The tokens of a grant of an identity provider.
    ProviderGrant(Uuid),
}

/// Replaces a sealed secret, if it is still the one that was read. `false` when somebody changed it meanwhile.
#[tracing::instrument(name = "db.keyring.replace_sealed", skip_all)]
pub async fn replace_sealed(
    conn: &mut Conn,
    column: &SealedColumn,
    old: &[u8],
    new: &[u8],
) -> Result<bool, DbError> {
    macro_rules! update {
        ($sql:tt, $($arg:tt)*) => {
            sqlx::query!($sql, $($arg)*).execute(conn).await?
        };
    }
    let done = match column {
        SealedColumn::ProviderKey(id) => update!(
            "UPDATE provider_keys SET sealed_key = $3 WHERE key_id = $1 AND sealed_key = $2",
            *id,
            old,
            new
        ),
        SealedColumn::ToolServer(id) => update!(
            "UPDATE tool_servers SET sealed_credentials = $3 WHERE server_id = $1 AND sealed_credentials = $2",
            *id,
            old,
            new
        ),
        SealedColumn::Approval(id) => update!(
            "UPDATE approvals SET arguments_sealed = $3 WHERE approval_id = $1 AND arguments_sealed = $2",
            *id,
            old,
            new
        ),
        SealedColumn::ForgeCredential(project) => update!(
            "UPDATE project_remotes SET credential = $3 WHERE project_id = $1 AND credential = $2",
            *project,
            old,
            new
        ),
        SealedColumn::WebhookSecret(project) => update!(
            "UPDATE project_remotes SET webhook_secret = $3 WHERE project_id = $1 AND webhook_secret = $2",
            *project,
            old,
            new
        ),
        SealedColumn::ChannelSecret(id) => update!(
            "UPDATE notification_channels SET sealed_secret = $3 WHERE channel_id = $1 AND sealed_secret = $2",
            *id,
            old,
            new
        ),
        SealedColumn::OldChannelSecret(id) => update!(
            "UPDATE notification_channels SET old_sealed_secret = $3 WHERE channel_id = $1 AND old_sealed_secret = $2",
            *id,
            old,
            new
        ),
        SealedColumn::ProjectSecret(project, name) => update!(
            "UPDATE project_secrets SET sealed = $3 WHERE project_id = $1 AND sealed = $2 AND name = $4",
            *project,
            old,
            new,
            name.as_str()
        ),
        SealedColumn::AuditSink(id) => update!(
            "UPDATE audit_sinks SET sealed_secret = $3 WHERE sink_id = $1 AND sealed_secret = $2",
            *id,
            old,
            new
        ),
        SealedColumn::WebPushKey => update!(
            "UPDATE web_push_keys SET sealed_private_key = $2 WHERE sealed_private_key = $1",
            old,
            new
        ),
        SealedColumn::SecondFactor(user) => update!(
            "UPDATE totp_credentials SET sealed_secret = $3 WHERE user_id = $1 AND sealed_secret = $2",
            *user,
            old,
            new
        ),
        SealedColumn::IdentityProvider(id) => update!(
            "UPDATE identity_providers SET sealed_secret = $3 WHERE identity_provider_id = $1 AND sealed_secret = $2",
            *id,
            old,
            new
        ),
        SealedColumn::ProviderGrant(id) => update!(
            "UPDATE provider_grants SET sealed_tokens = $3 WHERE provider_grant_id = $1 AND sealed_tokens = $2",
            *id,
            old,
            new
        ),
    };
    Ok(done.rows_affected() == 1)
}

/// The sealed arguments of a call, with what they are bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedArguments {
    /// The approval.
    pub approval: Uuid,
    /// The agent's token.
    pub agent: Uuid,
    /// The tool.
    pub tool: String,
    /// The digest of the arguments.
    pub digest: [u8; 32],
    /// The sealed arguments.
    pub sealed: Vec<u8>,
}

/// Sealed arguments that name another key than this one.
#[tracing::instrument(name = "db.keyring.list_sealed_arguments", skip_all)]
pub async fn list_sealed_arguments(
    conn: &mut Conn,
    active: Uuid,
    limit: i64,
) -> Result<Vec<SealedArguments>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT approval_id, agent_token_id, tool, arguments_digest, arguments_sealed AS "arguments_sealed!" FROM approvals
        WHERE arguments_sealed IS NOT NULL AND sealed_by <> $1 LIMIT $2
        "#,
        active,
        limit,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let digest = row.arguments_digest.try_into();
            Ok(SealedArguments {
                approval: row.approval_id,
                agent: row.agent_token_id,
                tool: row.tool,
                digest: digest.map_err(corrupt_column("approvals", "arguments_digest"))?,
                sealed: row.arguments_sealed,
            })
        })
        .collect()
}

/// The sealed secrets of second factors that name another key than this one, each with its user.
#[tracing::instrument(name = "db.keyring.list_sealed_second_factors", skip_all)]
pub async fn list_sealed_second_factors(
    conn: &mut Conn,
    active: Uuid,
    limit: i64,
) -> Result<Vec<(Uuid, Vec<u8>)>, DbError> {
    let rows = sqlx::query!(
        "SELECT user_id, sealed_secret FROM totp_credentials WHERE sealed_by <> $1 LIMIT $2",
        active,
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.user_id, row.sealed_secret)).collect())
}

/// The sealed tokens of grants that name another key than this one, each with its grant.
#[tracing::instrument(name = "db.keyring.list_sealed_grants", skip_all)]
pub async fn list_sealed_grants(
    conn: &mut Conn,
    active: Uuid,
    limit: i64,
) -> Result<Vec<(Uuid, Vec<u8>)>, DbError> {
    let rows = sqlx::query!(
        "SELECT provider_grant_id, sealed_tokens FROM provider_grants WHERE sealed_by <> $1 LIMIT $2",
        active,
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.provider_grant_id, row.sealed_tokens)).collect())
}

/// A table of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenTable {
    /// Sessions of users.
    Sessions,
    /// API keys.
    ApiKeys,
    /// One-time tokens for the first admin.
    BootstrapTokens,
    /// Tokens of services.
    ServiceTokens,
    /// Tokens of agents.
    AgentTokens,
    /// One-time tokens of machines that join.
    JoinTokens,
    /// Tokens of nodes.
    NodeTokens,
    /// Tokens of directories.
    ScimTokens,
    /// One-time tokens for an admin.
    BreakGlassTokens,
    /// Codes of devices that wait for their login.
    DeviceCodes,
}

impl TokenTable {
    /// Every table.
    pub const ALL: [Self; 10] = [
        Self::Sessions,
        Self::ApiKeys,
        Self::BootstrapTokens,
        Self::ServiceTokens,
        Self::AgentTokens,
        Self::JoinTokens,
        Self::NodeTokens,
        Self::ScimTokens,
        Self::BreakGlassTokens,
        Self::DeviceCodes,
    ];
}

/// Hashes of a table that name this key. Rows that somebody else changes at this moment are left out.
#[tracing::instrument(name = "db.keyring.list_token_hashes", skip_all)]
pub async fn list_token_hashes(
    conn: &mut Conn,
    table: TokenTable,
    key: Uuid,
    limit: i64,
) -> Result<Vec<[u8; 32]>, DbError> {
    macro_rules! select {
        ($sql:tt) => {
            sqlx::query_scalar!($sql, key, limit).fetch_all(conn).await?
        };
    }
    let rows = match table {
        TokenTable::Sessions => select!(
            "SELECT token_hash FROM user_sessions WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        TokenTable::ApiKeys => select!(
            "SELECT token_hash FROM api_keys WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        TokenTable::BootstrapTokens => select!(
            "SELECT token_hash FROM bootstrap_tokens WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        TokenTable::ServiceTokens => select!(
            "SELECT token_hash FROM service_tokens WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        TokenTable::AgentTokens => select!(
            "SELECT token_hash FROM agent_tokens WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        TokenTable::JoinTokens => select!(
            "SELECT token_hash FROM node_join_tokens WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        TokenTable::NodeTokens => select!(
            "SELECT token_hash FROM node_tokens WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        TokenTable::ScimTokens => select!(
            "SELECT token_hash FROM scim_tokens WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        TokenTable::BreakGlassTokens => select!(
            "SELECT token_hash FROM break_glass_tokens WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        TokenTable::DeviceCodes => select!(
            "SELECT device_code_hash FROM device_authorizations WHERE hash_key_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
    };
    let read = |hash: Vec<u8>| hash.try_into().map_err(corrupt_column("tokens", "token_hash"));
    rows.into_iter().map(read).collect()
}

/// Stores tokens under another key: each old hash with its new one.
#[tracing::instrument(name = "db.keyring.replace_token_hashes", skip_all)]
pub async fn replace_token_hashes(
    conn: &mut Conn,
    table: TokenTable,
    old: &[[u8; 32]],
    new: &[[u8; 32]],
    key: Uuid,
) -> Result<u64, DbError> {
    macro_rules! update {
        ($sql:tt) => {
            sqlx::query!($sql, old as &[[u8; 32]], new as &[[u8; 32]], key).execute(conn).await?
        };
    }
    let done = match table {
        TokenTable::Sessions => update!(
            "
            UPDATE user_sessions t SET token_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.token_hash = c.old
            "
        ),
        TokenTable::ApiKeys => update!(
            "
            UPDATE api_keys t SET token_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.token_hash = c.old
            "
        ),
        TokenTable::BootstrapTokens => update!(
            "
            UPDATE bootstrap_tokens t SET token_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.token_hash = c.old
            "
        ),
        TokenTable::ServiceTokens => update!(
            "
            UPDATE service_tokens t SET token_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.token_hash = c.old
            "
        ),
        TokenTable::AgentTokens => update!(
            "
            UPDATE agent_tokens t SET token_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.token_hash = c.old
            "
        ),
        TokenTable::JoinTokens => update!(
            "
            UPDATE node_join_tokens t SET token_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.token_hash = c.old
            "
        ),
        TokenTable::NodeTokens => update!(
            "
            UPDATE node_tokens t SET token_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.token_hash = c.old
            "
        ),
        TokenTable::ScimTokens => update!(
            "
            UPDATE scim_tokens t SET token_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.token_hash = c.old
            "
        ),
        TokenTable::BreakGlassTokens => update!(
            "
            UPDATE break_glass_tokens t SET token_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.token_hash = c.old
            "
        ),
        TokenTable::DeviceCodes => update!(
            "
            UPDATE device_authorizations t SET device_code_hash = c.new, hash_key_id = $3
            FROM unnest($1::bytea[], $2::bytea[]) AS c (old, new) WHERE t.device_code_hash = c.old
            "
        ),
    };
    Ok(done.rows_affected())
}
