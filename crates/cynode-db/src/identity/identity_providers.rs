//! Identity providers, the groups that they map, and the accounts that people have there.

use std::collections::BTreeMap;

use cynode_core::{
    ids::{ExternalIdentityId, GroupId, IdentityProviderId, UserId},
    names::{GroupName, Title},
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Claims that a person must have, each with one of its values.
pub type RequiredClaims = BTreeMap<String, Vec<String>>;

/// An identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct IdentityProviderRecord {
    /// Its id.
    pub id: IdentityProviderId,
    /// Its name in addresses.
    pub name: String,
    /// What people see.
    pub display_name: Title,
    /// Identifier of the issuer. It never changes.
    pub issuer: String,
    /// Our id at the provider.
    pub client_id: String,
    /// Our secret at the provider, encrypted. A public client has none.
    pub sealed_secret: Option<Vec<u8>>,
    /// Scopes that a login asks for.
    pub scopes: Vec<String>,
    /// Claim that lists groups.
    pub groups_claim: String,
    /// Whether a person without an account here gets one at the first login.
    pub create_accounts: bool,
    /// Whether accounts of the directory log in by it: its subject is their external id.
    pub links_directory: bool,
    /// Claims that a person must have, each with one of these values.
    pub required_claims: RequiredClaims,
    /// Whether only members of a mapped group get an account.
    pub mapped_groups_only: bool,
    /// The claim whose value is the external id of an account of the directory. It never changes.
    pub directory_claim: String,
    /// Values of the claim `acr` that stand for a second factor.
    pub second_factor_contexts: Vec<String>,
    /// Whether people can log in by it.
    pub enabled: bool,
    /// Whether the file of the configuration owns it.
    pub from_file: bool,
    /// When it was created.
    pub created_at: OffsetDateTime,
    /// When it was changed last.
    pub updated_at: OffsetDateTime,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a column of its own")]
struct IdentityProviderRow {
    identity_provider_id: Uuid,
    name: String,
    display_name: String,
    issuer: String,
    client_id: String,
    sealed_secret: Option<Vec<u8>>,
    scopes: Vec<String>,
    groups_claim: String,
    create_accounts: bool,
    links_directory: bool,
    second_factor_contexts: Vec<String>,
    enabled: bool,
    from_file: bool,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
    required_claims: Value,
    mapped_groups_only: bool,
    directory_claim: String,
}

impl TryFrom<IdentityProviderRow> for IdentityProviderRecord {
    type Error = DbError;

    fn try_from(row: IdentityProviderRow) -> Result<Self, DbError> {
        Ok(Self {
            id: IdentityProviderId::from_uuid(row.identity_provider_id),
            name: row.name,
            display_name: row
                .display_name
                .try_into()
                .map_err(corrupt_column("identity_providers", "display_name"))?,
            issuer: row.issuer,
            client_id: row.client_id,
            sealed_secret: row.sealed_secret,
            scopes: row.scopes,
            groups_claim: row.groups_claim,
            create_accounts: row.create_accounts,
            links_directory: row.links_directory,
            second_factor_contexts: row.second_factor_contexts,
            enabled: row.enabled,
            from_file: row.from_file,
            created_at: row.created_at,
            updated_at: row.updated_at,
            required_claims: serde_json::from_value(row.required_claims)
                .map_err(corrupt_column("identity_providers", "required_claims"))?,
            mapped_groups_only: row.mapped_groups_only,
            directory_claim: row.directory_claim,
        })
    }
}

/// Stores an identity provider: a new one, or what changed of one with that id.
#[tracing::instrument(name = "db.identity_providers.set_identity_provider", skip_all)]
pub async fn set_identity_provider(
    conn: &mut Conn,
    provider: &IdentityProviderRecord,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO identity_providers (identity_provider_id, name, display_name, issuer, client_id, sealed_secret,
            scopes, groups_claim, create_accounts, enabled, from_file, created_at, updated_at, links_directory,
            second_factor_contexts, required_claims, mapped_groups_only, directory_claim)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
        ON CONFLICT (identity_provider_id) DO UPDATE
        SET display_name = $3, client_id = $5, sealed_secret = $6, scopes = $7, groups_claim = $8,
            create_accounts = $9, enabled = $10, from_file = $11, updated_at = $13, links_directory = $14,
            second_factor_contexts = $15, required_claims = $16, mapped_groups_only = $17
        ",
        provider.id.as_uuid(),
        provider.name,
        provider.display_name.as_str(),
        provider.issuer,
        provider.client_id,
        provider.sealed_secret.as_deref(),
        &provider.scopes,
        provider.groups_claim,
        provider.create_accounts,
        provider.enabled,
        provider.from_file,
        provider.created_at,
        provider.updated_at,
        provider.links_directory,
        &provider.second_factor_contexts,
        json!(provider.required_claims),
        provider.mapped_groups_only,
        provider.directory_claim,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// One identity provider; it stays locked until the transaction ends.
pub async fn lock_identity_provider(
    conn: &mut Conn,
    name: &str,
) -> Result<Option<IdentityProviderRecord>, DbError> {
    sqlx::query_as!(
        IdentityProviderRow,
        "
        SELECT identity_provider_id, name, display_name, issuer, client_id, sealed_secret, scopes, groups_claim,
            create_accounts, links_directory, second_factor_contexts, enabled, from_file, created_at, updated_at,
            required_claims, mapped_groups_only, directory_claim
        FROM identity_providers
        WHERE name = $1
        FOR UPDATE
        ",
        name,
    )
    .fetch_optional(conn)
    .await?
    .map(IdentityProviderRecord::try_from)
    .transpose()
}

/// One identity provider, by its name.
pub async fn find_identity_provider(
    conn: &mut Conn,
    name: &str,
) -> Result<Option<IdentityProviderRecord>, DbError> {
    sqlx::query_as!(
        IdentityProviderRow,
        "
        SELECT identity_provider_id, name, display_name, issuer, client_id, sealed_secret, scopes, groups_claim,
            create_accounts, links_directory, second_factor_contexts, enabled, from_file, created_at, updated_at,
            required_claims, mapped_groups_only, directory_claim
        FROM identity_providers
        WHERE name = $1
        ",
        name,
    )
    .fetch_optional(conn)
    .await?
    .map(IdentityProviderRecord::try_from)
    .transpose()
}

/// One identity provider, by its id.
pub async fn get_identity_provider(
    conn: &mut Conn,
    id: IdentityProviderId,
) -> Result<Option<IdentityProviderRecord>, DbError> {
    sqlx::query_as!(
        IdentityProviderRow,
        "
        SELECT identity_provider_id, name, display_name, issuer, client_id, sealed_secret, scopes, groups_claim,
            create_accounts, links_directory, second_factor_contexts, enabled, from_file, created_at, updated_at,
            required_claims, mapped_groups_only, directory_claim
        FROM identity_providers
        WHERE identity_provider_id = $1
        ",
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(IdentityProviderRecord::try_from)
    .transpose()
}

/// All identity providers, by name.
#[tracing::instrument(name = "db.identity_providers.list_identity_providers", skip_all)]
pub async fn list_identity_providers(
    conn: &mut Conn,
) -> Result<Vec<IdentityProviderRecord>, DbError> {
    sqlx::query_as!(
        IdentityProviderRow,
        "
        SELECT identity_provider_id, name, display_name, issuer, client_id, sealed_secret, scopes, groups_claim,
            create_accounts, links_directory, second_factor_contexts, enabled, from_file, created_at, updated_at,
            required_claims, mapped_groups_only, directory_claim
        FROM identity_providers
        ORDER BY name
        ",
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(IdentityProviderRecord::try_from)
    .collect()
}

/// Deletes an identity provider with its mappings, the accounts of people there, their grants and sessions, and the
/// memberships that it gave.
pub async fn delete_identity_provider(
    conn: &mut Conn,
    id: IdentityProviderId,
) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM identity_providers WHERE identity_provider_id = $1", id.as_uuid())
        .execute(conn)
        .await?;
    Ok(())
}

/// Says that a group of a provider is a group here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMapping {
    /// The name of the group in the claim.
    pub claim_value: String,
    /// The group here.
    pub group: GroupId,
    /// Its name.
    pub group_name: GroupName,
}

/// The mappings of a provider, by the name in the claim.
pub async fn list_group_mappings(
    conn: &mut Conn,
    provider: IdentityProviderId,
) -> Result<Vec<GroupMapping>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT m.claim_value, m.group_id, g.name
        FROM provider_group_mappings m
        JOIN groups g USING (group_id)
        WHERE m.identity_provider_id = $1
        ORDER BY m.claim_value, g.name
        ",
        provider.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(GroupMapping {
                claim_value: row.claim_value,
                group: GroupId::from_uuid(row.group_id),
                group_name: row.name.try_into().map_err(corrupt_column("groups", "name"))?,
            })
        })
        .collect()
}

/// Replaces the mappings of a provider.
pub async fn set_group_mappings(
    conn: &mut Conn,
    provider: IdentityProviderId,
    mappings: &[(String, GroupId)],
) -> Result<(), DbError> {
    let values: Vec<String> = mappings.iter().map(|(value, _)| value.clone()).collect();
    let groups: Vec<Uuid> = mappings.iter().map(|(_, group)| group.as_uuid()).collect();
    sqlx::query!(
        "DELETE FROM provider_group_mappings WHERE identity_provider_id = $1",
        provider.as_uuid(),
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "
        INSERT INTO provider_group_mappings (identity_provider_id, claim_value, group_id)
        SELECT $1, claim_value, group_id FROM unnest($2::text[], $3::uuid[]) AS new (claim_value, group_id)
        ON CONFLICT DO NOTHING
        ",
        provider.as_uuid(),
        &values,
        &groups,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Gives a user the groups that these values of the claim map to, and takes away the other ones that the provider gave.
/// Returns the groups that were added and those that were removed.
#[tracing::instrument(name = "db.identity_providers.sync_group_members", skip_all)]
pub async fn sync_group_members(
    conn: &mut Conn,
    provider: IdentityProviderId,
    user: UserId,
    claim_values: &[String],
    now: OffsetDateTime,
) -> Result<(Vec<GroupId>, Vec<GroupId>), DbError> {
    let removed = sqlx::query_scalar!(
        "
        DELETE FROM group_members
        WHERE identity_provider_id = $1 AND user_id = $2 AND NOT group_id = ANY (ARRAY(
            SELECT m.group_id FROM provider_group_mappings m
            WHERE m.identity_provider_id = $1 AND m.claim_value = ANY ($3::text[])
        ))
        RETURNING group_id
        ",
        provider.as_uuid(),
        user.as_uuid(),
        claim_values,
    )
    .fetch_all(&mut *conn)
    .await?;
    let added = sqlx::query_scalar!(
        "
        INSERT INTO group_members (group_id, user_id, added_at, identity_provider_id)
        SELECT DISTINCT m.group_id, $2::uuid, $4::timestamptz, $1::uuid
        FROM provider_group_mappings m
        WHERE m.identity_provider_id = $1 AND m.claim_value = ANY ($3::text[])
        ON CONFLICT DO NOTHING
        RETURNING group_id
        ",
        provider.as_uuid(),
        user.as_uuid(),
        claim_values,
        now,
    )
    .fetch_all(conn)
    .await?;
    let to_ids = |ids: Vec<Uuid>| ids.into_iter().map(GroupId::from_uuid).collect();
    Ok((to_ids(added), to_ids(removed)))
}

/// Takes away the memberships that a provider gave in these groups. Gives how many.
pub async fn remove_members_of_groups(
    conn: &mut Conn,
    provider: IdentityProviderId,
    groups: &[GroupId],
) -> Result<u64, DbError> {
    let groups: Vec<Uuid> = groups.iter().map(|group| group.as_uuid()).collect();
    let done = sqlx::query!(
        "DELETE FROM group_members WHERE identity_provider_id = $1 AND group_id = ANY ($2)",
        provider.as_uuid(),
        &groups,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// Takes away every membership that a provider gave to a user, or to anybody when there is no user.
pub async fn remove_provider_memberships(
    conn: &mut Conn,
    provider: IdentityProviderId,
    user: Option<UserId>,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM group_members
        WHERE identity_provider_id = $1 AND ($2::uuid IS NULL OR user_id = $2)
        ",
        provider.as_uuid(),
        user.map(UserId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

/// An account of a person at a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalIdentity {
    /// Its id.
    pub id: ExternalIdentityId,
    /// The provider.
    pub provider: IdentityProviderId,
    /// Identifier of the person there.
    pub subject: String,
    /// The person here.
    pub user: UserId,
    /// When it was linked.
    pub linked_at: OffsetDateTime,
}

/// Stores an account at a provider.
pub async fn insert_external_identity(
    conn: &mut Conn,
    identity: &ExternalIdentity,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO external_identities (external_identity_id, identity_provider_id, subject, user_id, linked_at)
        VALUES ($1, $2, $3, $4, $5)
        ",
        identity.id.as_uuid(),
        identity.provider.as_uuid(),
        identity.subject,
        identity.user.as_uuid(),
        identity.linked_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that the account of a user was made by a login with this account at a provider.
pub async fn mark_made_account(conn: &mut Conn, id: ExternalIdentityId) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE external_identities SET made_account = true WHERE external_identity_id = $1",
        id.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The account of a subject, and whether its user may be used; neither can change until the transaction ends.
pub async fn find_external_identity(
    conn: &mut Conn,
    provider: IdentityProviderId,
    subject: &str,
) -> Result<Option<(ExternalIdentity, bool)>, DbError> {
    let row = sqlx::query!(
        r#"
        SELECT e.external_identity_id, e.user_id, e.linked_at, u.state = 'active' AS "active!"
        FROM external_identities e
        JOIN users u USING (user_id)
        WHERE e.identity_provider_id = $1 AND e.subject = $2
        FOR SHARE
        "#,
        provider.as_uuid(),
        subject,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| {
        let identity = ExternalIdentity {
            id: ExternalIdentityId::from_uuid(row.external_identity_id),
            provider,
            subject: subject.to_owned(),
            user: UserId::from_uuid(row.user_id),
            linked_at: row.linked_at,
        };
        (identity, row.active)
    }))
}

/// An account at a provider with the name of the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedIdentity {
    /// Its id.
    pub id: ExternalIdentityId,
    /// The provider.
    pub provider_id: IdentityProviderId,
    /// Name of the provider.
    pub provider: String,
    /// Whether the directory vouches for it.
    pub of_directory: bool,
    /// Whether the user's account was made by it.
    pub made_account: bool,
    /// What people see of the provider.
    pub provider_title: String,
    /// Identifier of the person there.
    pub subject: String,
    /// When it was linked.
    pub linked_at: OffsetDateTime,
}

/// The accounts that a user has at providers.
pub async fn list_linked_identities(
    conn: &mut Conn,
    user: UserId,
) -> Result<Vec<LinkedIdentity>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT e.external_identity_id, e.identity_provider_id, p.name, p.display_name, e.subject, e.linked_at, e.made_account,
            p.links_directory AND EXISTS (SELECT FROM scim_users d WHERE d.user_id = e.user_id) AS "of_directory!"
        FROM external_identities e
        JOIN identity_providers p USING (identity_provider_id)
        WHERE e.user_id = $1
        ORDER BY p.name
        "#,
        user.as_uuid(),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| LinkedIdentity {
            id: ExternalIdentityId::from_uuid(row.external_identity_id),
            provider_id: IdentityProviderId::from_uuid(row.identity_provider_id),
            provider: row.name,
            of_directory: row.of_directory,
            made_account: row.made_account,
            provider_title: row.display_name,
            subject: row.subject,
            linked_at: row.linked_at,
        })
        .collect())
}

/// Keeps others from changing the accounts that a user has at providers until the transaction ends.
pub async fn lock_identity_owner(conn: &mut Conn, user: UserId) -> Result<(), DbError> {
    sqlx::query!("SELECT FROM users WHERE user_id = $1 FOR NO KEY UPDATE", user.as_uuid())
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes an account at a provider with its grants and sessions.
pub async fn delete_external_identity(
    conn: &mut Conn,
    id: ExternalIdentityId,
) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM external_identities WHERE external_identity_id = $1", id.as_uuid())
        .execute(conn)
        .await?;
    Ok(())
}

/// Whether an admin could log in by an enabled provider: one who has an account there, or whom a mapped group would make one.
pub async fn has_provider_admin(conn: &mut Conn) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM external_identities e
            JOIN identity_providers p USING (identity_provider_id)
            JOIN users u USING (user_id)
            WHERE p.enabled AND u.state = 'active' AND EXISTS (
                SELECT FROM role_bindings b
                WHERE b.project_id IS NULL AND b.role = 'admin' AND (b.user_id = e.user_id
                    OR b.group_id IN (SELECT m.group_id FROM group_members m WHERE m.user_id = e.user_id)))
        ) OR EXISTS (
            SELECT FROM provider_group_mappings m
            JOIN identity_providers p USING (identity_provider_id)
            JOIN role_bindings b USING (group_id)
            WHERE p.enabled AND b.project_id IS NULL AND b.role = 'admin'
        ) AS "found!"
        "#,
    );
    Ok(found.fetch_one(conn).await?)
}

/// Whether a user has a password here.
pub async fn has_password(conn: &mut Conn, user: UserId) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM password_credentials WHERE user_id = $1) AS "found!""#,
        user.as_uuid(),
    )
    .fetch_one(conn)
    .await?;
    Ok(found)
}

/// The handles that begin with a text, to find a free one.
pub async fn list_handles_with_prefix(
    conn: &mut Conn,
    prefix: &str,
) -> Result<Vec<String>, DbError> {
    let handles = sqlx::query_scalar!(
        "SELECT handle FROM users WHERE starts_with(handle, $1) ORDER BY handle LIMIT 10000",
        prefix,
    )
    .fetch_all(conn)
    .await?;
    Ok(handles)
}

/// Uses up a value that works once: the state of a login, the id of a logout token. Of two callers one gets `true`.
pub async fn use_login_value(
    conn: &mut Conn,
    value_hash: &[u8; 32],
    expires_at: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "INSERT INTO used_login_values (value_hash, expires_at) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        value_hash,
        expires_at,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes used values that could not be used any more before then, up to a number of them. Gives how many.
pub async fn prune_login_values(
    conn: &mut Conn,
    before: OffsetDateTime,
    limit: i64,
) -> Result<u64, DbError> {
    let done = sqlx::query!(
        "
        DELETE FROM used_login_values
        WHERE value_hash = ANY (ARRAY(SELECT value_hash FROM used_login_values WHERE expires_at < $1 LIMIT $2))
        ",
        before,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}
