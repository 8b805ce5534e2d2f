//! Profiles of the installation and of projects. Those that come with the product are not stored.

use std::sync::Arc;

use cynode_core::{
    ids::{ProjectId, UserId},
    profiles::{ProfileName, ProfileSpec, ProfileVersion},
};
use cynode_policy::agents::AgentProfile;
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// Table of the profiles, as errors name it.
const TABLE: &str = "profiles";

/// A profile, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredProfile {
    /// The row. It stays the same when a deleted profile is made again.
    pub id: Uuid,
    /// Project that it belongs to; `None`: the installation.
    pub project: Option<ProjectId>,
    /// Name, version and what it permits.
    pub current: ProfileVersion,
    /// Time at which it was created first.
    pub created_at: OffsetDateTime,
    /// Time of the last change.
    pub updated_at: OffsetDateTime,
    /// User who changed it last.
    pub updated_by: UserId,
    /// Time at which it was deleted.
    pub deleted_at: Option<OffsetDateTime>,
}

/// One version of a profile, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenProfile {
    /// The version.
    pub version: u32,
    /// What it permits.
    pub spec: ProfileSpec,
    /// User who wrote it.
    pub written_by: UserId,
    /// When.
    pub written_at: OffsetDateTime,
}

struct ProfileRow {
    profile_id: Uuid,
    project_id: Option<Uuid>,
    name: String,
    version: i32,
    spec: Value,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
    updated_by: Uuid,
    deleted_at: Option<OffsetDateTime>,
}

impl TryFrom<ProfileRow> for StoredProfile {
    type Error = DbError;

    fn try_from(row: ProfileRow) -> Result<Self, DbError> {
        let name = ProfileName::try_from(row.name).map_err(corrupt_column(TABLE, "name"))?;
        Ok(Self {
            id: row.profile_id,
            project: row.project_id.map(ProjectId::from_uuid),
            current: to_profile_version(name, row.version, row.spec)?,
            created_at: row.created_at,
            updated_at: row.updated_at,
            updated_by: UserId::from_uuid(row.updated_by),
            deleted_at: row.deleted_at,
        })
    }
}

fn to_profile_version(
    name: ProfileName,
    version: i32,
    spec: Value,
) -> Result<ProfileVersion, DbError> {
    let spec: ProfileSpec = serde_json::from_value(spec).map_err(corrupt_column(TABLE, "spec"))?;
    let version = u32::try_from(version).map_err(corrupt_column(TABLE, "version"))?;
    Ok(ProfileVersion { name, version, spec: Arc::new(spec) })
}

/// The profile of an agent, by the columns of its token and of `current_profile`. A profile that does not exist, or that this version
/// cannot read, permits nothing; the tokens of other agents stay as they are.
pub(crate) fn to_agent_profile(
    name: &str,
    network: bool,
    version: Option<i32>,
    spec: Option<Value>,
) -> AgentProfile {
    let stored = || {
        let name = name.parse::<ProfileName>().ok()?;
        let (version, spec) = version.zip(spec)?;
        match to_profile_version(name, version, spec) {
            Ok(profile) => Some(AgentProfile::from(profile)),
            Err(error) => {
                // Tokens are resolved many times a second: what is wrong is told where the profile is looked at.
                tracing::debug!(event = "profile.unreadable", %error, "a profile cannot be read");
                None
            }
        }
    };
    let profile = AgentProfile::from_shipped(name)
        .or_else(stored)
        .unwrap_or_else(|| AgentProfile::unknown(name));
    if network { profile } else { profile.without_network() }
}

/// The current version of a profile that is not shipped: that of the project, else that of the installation. One that this version cannot read
/// is `None`, as if it did not exist: it permits nothing, and the work of others goes on.
#[tracing::instrument(name = "db.profiles.find_current_profile", skip_all)]
pub async fn find_current_profile(
    conn: &mut Conn,
    project: Option<ProjectId>,
    name: &ProfileName,
) -> Result<Option<ProfileVersion>, DbError> {
    let row = sqlx::query!(
        r#"SELECT profile_version AS "version!", profile_spec AS "spec!" FROM current_profile($1, $2)"#,
        name.as_str(),
        project.map(ProjectId::as_uuid),
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    match to_profile_version(name.clone(), row.version, row.spec) {
        Ok(profile) => Ok(Some(profile)),
        Err(error) => {
            tracing::warn!(event = "profile.unreadable", profile.name = %name, %error, "a profile cannot be read");
            Ok(None)
        }
    }
}

/// The profile of that name that holds in a project, or in the installation, with its row. One that the project deleted is not followed by
/// that of the installation.
#[tracing::instrument(name = "db.profiles.get_profile", skip_all)]
pub async fn get_profile(
    conn: &mut Conn,
    project: Option<ProjectId>,
    name: &ProfileName,
) -> Result<Option<StoredProfile>, DbError> {
    let row = sqlx::query_as!(
        ProfileRow,
        "
        SELECT profile_id, project_id, name, version, spec, created_at, updated_at, updated_by, deleted_at
        FROM profiles
        WHERE name = $2 AND (project_id = $1 OR project_id IS NULL)
        ORDER BY project_id IS NULL
        LIMIT 1
        ",
        project.map(ProjectId::as_uuid),
        name.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    row.filter(|row| row.deleted_at.is_none()).map(StoredProfile::try_from).transpose()
}

/// The profile of exactly that scope, locked until the transaction ends. One that was deleted is given, too.
#[tracing::instrument(name = "db.profiles.lock_profile", skip_all)]
pub async fn lock_profile(
    conn: &mut Conn,
    project: Option<ProjectId>,
    name: &ProfileName,
) -> Result<Option<StoredProfile>, DbError> {
    sqlx::query_as!(
        ProfileRow,
        "
        SELECT profile_id, project_id, name, version, spec, created_at, updated_at, updated_by, deleted_at
        FROM profiles
        WHERE name = $2 AND project_id IS NOT DISTINCT FROM $1
        FOR UPDATE
        ",
        project.map(ProjectId::as_uuid),
        name.as_str(),
    )
    .fetch_optional(conn)
    .await?
    .map(StoredProfile::try_from)
    .transpose()
}

/// The profiles that hold in a project, or in the installation alone, by name. One of the project stands before its namesake, and one that the
/// project deleted takes its namesake along.
#[tracing::instrument(name = "db.profiles.list_profiles", skip_all)]
pub async fn list_profiles(
    conn: &mut Conn,
    project: Option<ProjectId>,
) -> Result<Vec<StoredProfile>, DbError> {
    sqlx::query_as!(
        ProfileRow,
        "
        SELECT profile_id, project_id, name, version, spec, created_at, updated_at, updated_by, deleted_at
        FROM profiles p
        WHERE deleted_at IS NULL AND (project_id = $1 OR project_id IS NULL)
            AND NOT EXISTS (SELECT FROM profiles o WHERE o.project_id = $1 AND o.name = p.name AND o.deleted_at IS NOT NULL)
        ORDER BY name, project_id IS NULL
        ",
        project.map(ProjectId::as_uuid),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(StoredProfile::try_from)
    .collect()
}

/// How many profiles a scope has, with those that were deleted.
#[tracing::instrument(name = "db.profiles.count_profiles", skip_all)]
pub async fn count_profiles(conn: &mut Conn, project: Option<ProjectId>) -> Result<i64, DbError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM profiles WHERE project_id IS NOT DISTINCT FROM $1"#,
        project.map(ProjectId::as_uuid),
    )
    .fetch_one(conn)
    .await?)
}

/// A profile that is about to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewProfile<'a> {
    /// The row, if there was none of that name.
    pub id: Uuid,
    /// Project that it belongs to; `None`: the installation.
    pub project: Option<ProjectId>,
    /// Name of the profile.
    pub name: &'a ProfileName,
    /// What it permits.
    pub spec: &'a ProfileSpec,
    /// User who writes it.
    pub by: UserId,
}

/// Stores a new profile, or makes a deleted one again. Returns the version, or `None` if there is one of that name.
#[tracing::instrument(name = "db.profiles.insert_profile", skip_all)]
pub async fn insert_profile(
    conn: &mut Conn,
    new: &NewProfile<'_>,
    now: OffsetDateTime,
) -> Result<Option<u32>, DbError> {
    let spec = serde_json::to_value(new.spec).map_err(corrupt_column(TABLE, "spec"))?;
    let row = sqlx::query!(
        "
        INSERT INTO profiles (profile_id, project_id, name, version, spec, created_at, updated_at, updated_by)
        VALUES ($1, $2, $3, 1, $4, $5, $5, $6)
        ON CONFLICT ON CONSTRAINT profiles_name_unique DO UPDATE
        SET version = profiles.version + 1, spec = excluded.spec, updated_at = excluded.updated_at,
            updated_by = excluded.updated_by, deleted_at = NULL
        WHERE profiles.deleted_at IS NOT NULL
        RETURNING profile_id, version
        ",
        new.id,
        new.project.map(ProjectId::as_uuid),
        new.name.as_str(),
        spec,
        now,
        new.by.as_uuid(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    insert_version(conn, row.profile_id).await?;
    Ok(Some(u32::try_from(row.version).map_err(corrupt_column(TABLE, "version"))?))
}

/// Writes a profile anew, in a transaction that [`lock_profile`] has locked.
#[tracing::instrument(name = "db.profiles.update_profile", skip_all)]
pub async fn update_profile(
    conn: &mut Conn,
    id: Uuid,
    spec: &ProfileSpec,
    by: UserId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    let spec = serde_json::to_value(spec).map_err(corrupt_column(TABLE, "spec"))?;
    sqlx::query!(
        "
        UPDATE profiles SET version = version + 1, spec = $2, updated_by = $3, updated_at = $4
        WHERE profile_id = $1
        ",
        id,
        spec,
        by.as_uuid(),
        now,
    )
    .execute(&mut *conn)
    .await?;
    insert_version(conn, id).await
}

/// Keeps the present version in the history.
async fn insert_version(conn: &mut Conn, id: Uuid) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO profile_versions (profile_id, version, spec, written_by, written_at)
        SELECT profile_id, version, spec, updated_by, updated_at FROM profiles WHERE profile_id = $1
        ",
        id,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes a profile. Its history stays.
#[tracing::instrument(name = "db.profiles.delete_profile", skip_all)]
pub async fn delete_profile(
    conn: &mut Conn,
    id: Uuid,
    by: UserId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "UPDATE profiles SET deleted_at = $3, updated_at = $3, updated_by = $2 WHERE profile_id = $1",
        id,
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The last versions of a profile, newest first. One that was deleted has them, too.
#[tracing::instrument(name = "db.profiles.list_versions", skip_all)]
pub async fn list_versions(
    conn: &mut Conn,
    project: Option<ProjectId>,
    name: &ProfileName,
    limit: i64,
) -> Result<Vec<WrittenProfile>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT v.version, v.spec, v.written_by, v.written_at
        FROM profiles p JOIN profile_versions v USING (profile_id)
        WHERE p.name = $2 AND p.project_id IS NOT DISTINCT FROM $1
        ORDER BY v.version DESC
        LIMIT $3
        ",
        project.map(ProjectId::as_uuid),
        name.as_str(),
        limit,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let table = "profile_versions";
            Ok(WrittenProfile {
                version: u32::try_from(row.version).map_err(corrupt_column(table, "version"))?,
                spec: serde_json::from_value(row.spec).map_err(corrupt_column(table, "spec"))?,
                written_by: UserId::from_uuid(row.written_by),
                written_at: row.written_at,
            })
        })
        .collect()
}
