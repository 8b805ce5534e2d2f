//! Skills: instructions for agents, with their files and versions.

use cynode_core::{
    ids::{ProjectId, SkillId, UserId},
    skills::{SkillContent, SkillFile, SkillOwner, SkillScope},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError};

/// How many versions of a skill are kept.
const MAX_SKILL_VERSIONS: i64 = 50;

/// A skill without its instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillHead {
    /// Its id.
    pub id: SkillId,
    /// Whose it is.
    pub owner: SkillOwner,
    /// What it is called.
    pub name: String,
    /// When it is of use.
    pub description: String,
    /// How often it was written.
    pub version: i64,
    /// Whether an agent wrote it last and no person has looked at it.
    pub unreviewed: bool,
    /// Whether an agent wrote it last, whoever has looked at it since.
    pub by_agent: bool,
    /// Who wrote it first.
    pub created_by: UserId,
    /// When it was written last.
    pub updated_at: OffsetDateTime,
}

/// A skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    /// All but what it says.
    pub head: SkillHead,
    /// What it says; its description is that of the head.
    pub content: SkillContent,
}

/// A version of a skill, without its instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillVersion {
    /// Which.
    pub version: i64,
    /// When it is of use.
    pub description: String,
    /// Whether an agent wrote it.
    pub by_agent: bool,
    /// Who wrote it, or for whom the agent works.
    pub written_by: UserId,
    /// When.
    pub written_at: OffsetDateTime,
    /// Who looked at what the agent wrote.
    pub reviewed_by: Option<UserId>,
    /// How many files it has beside its `SKILL.md`.
    pub files: i64,
}

struct SkillHeadRow {
    skill_id: Uuid,
    scope: String,
    project_id: Option<Uuid>,
    user_id: Option<Uuid>,
    name: String,
    description: String,
    version: i64,
    unreviewed: bool,
    by_agent: bool,
    created_by: Uuid,
    updated_at: OffsetDateTime,
}

impl TryFrom<SkillHeadRow> for SkillHead {
    type Error = DbError;

    fn try_from(row: SkillHeadRow) -> Result<Self, DbError> {
        let owner = match (SkillScope::from_name(&row.scope), row.project_id, row.user_id) {
            (Some(SkillScope::Installation), None, None) => SkillOwner::Installation,
            (Some(SkillScope::Project), Some(project), None) => {
                SkillOwner::Project(ProjectId::from_uuid(project))
            }
            (Some(SkillScope::Person), None, Some(user)) => {
                SkillOwner::Person(UserId::from_uuid(user))
            }
            _ => return Err(DbError::Corrupt { table: "skills", column: "scope" }),
        };
        Ok(Self {
            id: SkillId::from_uuid(row.skill_id),
            owner,
            name: row.name,
            description: row.description,
            version: row.version,
            unreviewed: row.unreviewed,
            by_agent: row.by_agent,
            created_by: UserId::from_uuid(row.created_by),
            updated_at: row.updated_at,
        })
    }
}

/// The id under which the skills of an owner are found: that of the project or the person, or none of anybody.
fn owner_id(owner: SkillOwner) -> Uuid {
    match owner {
        SkillOwner::Installation => Uuid::nil(),
        SkillOwner::Project(project) => project.as_uuid(),
        SkillOwner::Person(user) => user.as_uuid(),
    }
}

/// Stores a new skill.
#[tracing::instrument(name = "db.skills.insert_skill", skip_all)]
pub async fn insert_skill(conn: &mut Conn, skill: &Skill) -> Result<(), DbError> {
    let Skill { head, content } = skill;
    sqlx::query!(
        "
        INSERT INTO skills (skill_id, scope, project_id, user_id, name, description, body, license, allowed_tools, version,
            created_by, updated_by, created_at, updated_at, unreviewed, by_agent)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11, $12, $12, $13, $14)
        ",
        head.id.as_uuid(),
        head.owner.scope().as_str(),
        head.owner.project().map(ProjectId::as_uuid),
        head.owner.person().map(UserId::as_uuid),
        head.name,
        content.description,
        content.body,
        content.license,
        &content.allowed_tools,
        head.version,
        head.created_by.as_uuid(),
        head.updated_at,
        head.unreviewed,
        head.by_agent,
    )
    .execute(&mut *conn)
    .await?;
    insert_version(conn, skill, head.created_by).await
}

/// Writes a skill anew, if it is at the version that the writer believes. The oldest versions are removed.
#[tracing::instrument(name = "db.skills.update_skill", skip_all)]
pub async fn update_skill(
    conn: &mut Conn,
    skill: &Skill,
    expected: i64,
    by: UserId,
) -> Result<bool, DbError> {
    let Skill { head, content } = skill;
    let done = sqlx::query!(
        "
        UPDATE skills SET description = $2, body = $3, license = $4, allowed_tools = $5, version = $6, updated_by = $7,
            updated_at = $8, unreviewed = $9, by_agent = $10
        WHERE skill_id = $1 AND version = $11
        ",
        head.id.as_uuid(),
        content.description,
        content.body,
        content.license,
        &content.allowed_tools,
        head.version,
        by.as_uuid(),
        head.updated_at,
        head.unreviewed,
        head.by_agent,
        expected,
    )
    .execute(&mut *conn)
    .await?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    insert_version(conn, skill, by).await?;
    sqlx::query!(
        "DELETE FROM skill_versions WHERE skill_id = $1 AND version <= $2",
        head.id.as_uuid(),
        head.version - MAX_SKILL_VERSIONS,
    )
    .execute(conn)
    .await?;
    Ok(true)
}

async fn insert_version(conn: &mut Conn, skill: &Skill, by: UserId) -> Result<(), DbError> {
    let Skill { head, content } = skill;
    sqlx::query!(
        "
        INSERT INTO skill_versions (skill_id, version, description, body, license, allowed_tools, by_agent, written_by, written_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ",
        head.id.as_uuid(),
        head.version,
        content.description,
        content.body,
        content.license,
        &content.allowed_tools,
        head.by_agent,
        by.as_uuid(),
        head.updated_at,
    )
    .execute(&mut *conn)
    .await?;
    let paths: Vec<String> = content.files.iter().map(|file| file.path.clone()).collect();
    let texts: Vec<String> = content.files.iter().map(|file| file.text.clone()).collect();
    let executable: Vec<bool> = content.files.iter().map(|file| file.executable).collect();
    sqlx::query!(
        "
        INSERT INTO skill_files (skill_id, version, position, path, content, executable)
        SELECT $1, $2, (n - 1)::smallint, path, content, executable
        FROM unnest($3::text[], $4::text[], $5::boolean[]) WITH ORDINALITY AS new (path, content, executable, n)
        ",
        head.id.as_uuid(),
        head.version,
        &paths,
        &texts,
        &executable,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes a skill and its versions.
#[tracing::instrument(name = "db.skills.delete_skill", skip_all)]
pub async fn delete_skill(conn: &mut Conn, id: SkillId) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM skills WHERE skill_id = $1", id.as_uuid());
    Ok(done.execute(conn).await?.rows_affected() > 0)
}

/// One skill without its instructions.
pub async fn get_skill_head(conn: &mut Conn, id: SkillId) -> Result<Option<SkillHead>, DbError> {
    let found = sqlx::query_as!(
        SkillHeadRow,
        "
        SELECT skill_id, scope, project_id, user_id, name, description, version, unreviewed, by_agent, created_by, updated_at
        FROM skills WHERE skill_id = $1
        ",
        id.as_uuid(),
    );
    found.fetch_optional(conn).await?.map(SkillHead::try_from).transpose()
}

/// What the present version of a skill says.
#[tracing::instrument(name = "db.skills.get_content", skip_all)]
pub async fn get_content(conn: &mut Conn, id: SkillId) -> Result<Option<SkillContent>, DbError> {
    let found = sqlx::query!(
        "SELECT version, description, body, license, allowed_tools FROM skills WHERE skill_id = $1",
        id.as_uuid(),
    );
    let Some(row) = found.fetch_optional(&mut *conn).await? else { return Ok(None) };
    Ok(Some(SkillContent {
        description: row.description,
        body: row.body,
        license: row.license,
        allowed_tools: row.allowed_tools,
        files: list_files(conn, id, row.version).await?,
    }))
}

/// What a version of a skill says.
#[tracing::instrument(name = "db.skills.get_version_content", skip_all)]
pub async fn get_version_content(
    conn: &mut Conn,
    id: SkillId,
    version: i64,
) -> Result<Option<SkillContent>, DbError> {
    let found = sqlx::query!(
        "SELECT description, body, license, allowed_tools FROM skill_versions WHERE skill_id = $1 AND version = $2",
        id.as_uuid(),
        version,
    );
    let Some(row) = found.fetch_optional(&mut *conn).await? else { return Ok(None) };
    Ok(Some(SkillContent {
        description: row.description,
        body: row.body,
        license: row.license,
        allowed_tools: row.allowed_tools,
        files: list_files(conn, id, version).await?,
    }))
}

async fn list_files(conn: &mut Conn, id: SkillId, version: i64) -> Result<Vec<SkillFile>, DbError> {
    let found = sqlx::query_as!(
        SkillFile,
        r#"
        SELECT path, content AS "text!", executable
        FROM skill_files WHERE skill_id = $1 AND version = $2 ORDER BY position
        "#,
        id.as_uuid(),
        version,
    );
    Ok(found.fetch_all(conn).await?)
}

/// The skill of that name.
#[tracing::instrument(name = "db.skills.find_skill", skip_all)]
pub async fn find_skill(
    conn: &mut Conn,
    owner: SkillOwner,
    name: &str,
) -> Result<Option<SkillId>, DbError> {
    let found = sqlx::query_scalar!(
        "SELECT skill_id FROM skills WHERE owner_id = $1 AND name = $2",
        owner_id(owner),
        name,
    );
    Ok(found.fetch_optional(conn).await?.map(SkillId::from_uuid))
}

/// How many skills somebody has.
#[tracing::instrument(name = "db.skills.count_skills", skip_all)]
pub async fn count_skills(conn: &mut Conn, owner: SkillOwner) -> Result<i64, DbError> {
    let found = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM skills WHERE owner_id = $1"#,
        owner_id(owner),
    );
    Ok(found.fetch_one(conn).await?)
}

/// The skills of somebody, by name.
#[tracing::instrument(name = "db.skills.list_skills", skip_all)]
pub async fn list_skills(conn: &mut Conn, owner: SkillOwner) -> Result<Vec<SkillHead>, DbError> {
    let found = sqlx::query_as!(
        SkillHeadRow,
        "
        SELECT skill_id, scope, project_id, user_id, name, description, version, unreviewed, by_agent, created_by, updated_at
        FROM skills WHERE owner_id = $1 ORDER BY name LIMIT 500
        ",
        owner_id(owner),
    );
    found.fetch_all(conn).await?.into_iter().map(SkillHead::try_from).collect()
}

/// The skills that agents may be given that work for a user in a project: those of the installation, the project and the user that
/// nobody has to review.
#[tracing::instrument(name = "db.skills.list_candidates", skip_all)]
pub async fn list_candidates(
    conn: &mut Conn,
    user: UserId,
    project: ProjectId,
) -> Result<Vec<SkillHead>, DbError> {
    let owners = [SkillOwner::Installation, SkillOwner::Project(project), SkillOwner::Person(user)]
        .map(owner_id);
    let found = sqlx::query_as!(
        SkillHeadRow,
        "
        SELECT skill_id, scope, project_id, user_id, name, description, version, unreviewed, by_agent, created_by, updated_at
        FROM skills WHERE owner_id = ANY($1) AND NOT unreviewed ORDER BY owner_id, name LIMIT 1500
        ",
        &owners[..],
    );
    found.fetch_all(conn).await?.into_iter().map(SkillHead::try_from).collect()
}

/// The versions of a skill that are kept, the newest first.
#[tracing::instrument(name = "db.skills.list_versions", skip_all)]
pub async fn list_versions(conn: &mut Conn, id: SkillId) -> Result<Vec<SkillVersion>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT v.version, v.description, v.by_agent, v.written_by, v.written_at, v.reviewed_by,
            (SELECT count(*) FROM skill_files f WHERE f.skill_id = v.skill_id AND f.version = v.version) AS "files!"
        FROM skill_versions v WHERE v.skill_id = $1 ORDER BY v.version DESC
        "#,
        id.as_uuid(),
    );
    let versions = rows.fetch_all(conn).await?.into_iter().map(|row| SkillVersion {
        version: row.version,
        description: row.description,
        by_agent: row.by_agent,
        written_by: UserId::from_uuid(row.written_by),
        written_at: row.written_at,
        reviewed_by: row.reviewed_by.map(UserId::from_uuid),
        files: row.files,
    });
    Ok(versions.collect())
}

/// Notes that a person has looked at a version of a skill. Returns whether that is the present one.
#[tracing::instrument(name = "db.skills.mark_skill_reviewed", skip_all)]
pub async fn mark_skill_reviewed(
    conn: &mut Conn,
    id: SkillId,
    version: i64,
    by: UserId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "UPDATE skills SET unreviewed = false WHERE skill_id = $1 AND version = $2",
        id.as_uuid(),
        version,
    )
    .execute(&mut *conn)
    .await?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query!(
        "
        UPDATE skill_versions SET reviewed_by = $3, reviewed_at = $4
        WHERE skill_id = $1 AND version = $2 AND by_agent AND reviewed_by IS NULL
        ",
        id.as_uuid(),
        version,
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(true)
}
