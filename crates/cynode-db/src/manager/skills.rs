//! Skills: instructions for agents.

use cynode_core::ids::{ProjectId, SkillId, UserId};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError};

/// A skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    /// Its id.
    pub id: SkillId,
    /// The project it belongs to.
    pub project: ProjectId,
    /// What it is called.
    pub name: String,
    /// When it is of use.
    pub description: String,
    /// The instructions.
    pub body: String,
    /// How often it was written.
    pub version: i64,
    /// Whether an agent wrote it last and no person has looked at it.
    pub unreviewed: bool,
    /// Who wrote it first.
    pub created_by: UserId,
    /// When it was written last.
    pub updated_at: OffsetDateTime,
}

struct SkillRow {
    skill_id: Uuid,
    project_id: Uuid,
    name: String,
    description: String,
    body: String,
    version: i64,
    unreviewed: bool,
    created_by: Uuid,
    updated_at: OffsetDateTime,
}

impl From<SkillRow> for Skill {
    fn from(row: SkillRow) -> Self {
        Self {
            id: SkillId::from_uuid(row.skill_id),
            project: ProjectId::from_uuid(row.project_id),
            name: row.name,
            description: row.description,
            body: row.body,
            version: row.version,
            unreviewed: row.unreviewed,
            created_by: UserId::from_uuid(row.created_by),
            updated_at: row.updated_at,
        }
    }
}

/// Stores a new skill.
#[tracing::instrument(name = "db.skills.insert_skill", skip_all)]
pub async fn insert_skill(conn: &mut Conn, skill: &Skill) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO skills (skill_id, project_id, name, description, body, version, created_by, updated_by, created_at,
            updated_at, unreviewed)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8, $8, $9)
        ",
        skill.id.as_uuid(),
        skill.project.as_uuid(),
        skill.name,
        skill.description,
        skill.body,
        skill.version,
        skill.created_by.as_uuid(),
        skill.updated_at,
        skill.unreviewed,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Writes a skill anew, if it is at the version that the writer believes.
#[tracing::instrument(name = "db.skills.update_skill", skip_all)]
pub async fn update_skill(
    conn: &mut Conn,
    skill: &Skill,
    expected: i64,
    by: UserId,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE skills SET description = $2, body = $3, version = version + 1, updated_by = $4, updated_at = $5, unreviewed = $7
        WHERE skill_id = $1 AND version = $6
        ",
        skill.id.as_uuid(),
        skill.description,
        skill.body,
        by.as_uuid(),
        skill.updated_at,
        expected,
        skill.unreviewed,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Removes a skill.
#[tracing::instrument(name = "db.skills.delete_skill", skip_all)]
pub async fn delete_skill(conn: &mut Conn, id: SkillId) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM skills WHERE skill_id = $1", id.as_uuid());
    Ok(done.execute(conn).await?.rows_affected() > 0)
}

/// One skill.
pub async fn get_skill(conn: &mut Conn, id: SkillId) -> Result<Option<Skill>, DbError> {
    let found = sqlx::query_as!(
        SkillRow,
        "
        SELECT skill_id, project_id, name, description, body, version, unreviewed, created_by, updated_at
        FROM skills WHERE skill_id = $1
        ",
        id.as_uuid(),
    );
    Ok(found.fetch_optional(conn).await?.map(Skill::from))
}

/// The skills of a project, by name.
#[tracing::instrument(name = "db.skills.list_skills", skip_all)]
pub async fn list_skills(conn: &mut Conn, project: ProjectId) -> Result<Vec<Skill>, DbError> {
    let found = sqlx::query_as!(
        SkillRow,
        "
        SELECT skill_id, project_id, name, description, body, version, unreviewed, created_by, updated_at
        FROM skills WHERE project_id = $1 ORDER BY name LIMIT 500
        ",
        project.as_uuid(),
    );
    Ok(found.fetch_all(conn).await?.into_iter().map(Skill::from).collect())
}

/// Notes that a person has looked at a skill.
#[tracing::instrument(name = "db.skills.mark_skill_reviewed", skip_all)]
pub async fn mark_skill_reviewed(conn: &mut Conn, id: SkillId) -> Result<(), DbError> {
    sqlx::query!("UPDATE skills SET unreviewed = false WHERE skill_id = $1", id.as_uuid())
        .execute(conn)
        .await?;
    Ok(())
}
