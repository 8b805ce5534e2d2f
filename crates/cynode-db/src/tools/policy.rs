//! Policy of tools: switches, scopes, rules and quotas.

use cynode_core::{
    agents::ToolScope,
    ids::{AgentTokenId, TaskId, UserId},
};
use cynode_policy::{
    catalogue::ToolOverride,
    rules::{PolicyRule, RuleMode},
};
use time::OffsetDateTime;

use crate::{Conn, DbError};

/// The number that every change raises.
pub async fn get_policy_epoch(conn: &mut Conn) -> Result<i64, DbError> {
    Ok(sqlx::query_scalar!("SELECT epoch FROM policy_epoch").fetch_one(conn).await?)
}

/// Notes, in the transaction of the change, that every replica must look again.
#[tracing::instrument(name = "db.gate.bump_policy_epoch", skip_all)]
pub async fn bump_policy_epoch(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!("UPDATE policy_epoch SET epoch = epoch + 1").execute(conn).await?;
    Ok(())
}

/// What people decided about tools, by name.
#[tracing::instrument(name = "db.gate.list_tool_overrides", skip_all)]
pub async fn list_tool_overrides(conn: &mut Conn) -> Result<Vec<(String, ToolOverride)>, DbError> {
    let rows =
        sqlx::query!("SELECT name, enabled, scope FROM tool_overrides").fetch_all(conn).await?;
    rows.into_iter()
        .map(|row| {
            let scope = row.scope.map(|name| {
                let wrong = DbError::Corrupt { table: "tool_overrides", column: "scope" };
                ToolScope::from_name(&name).ok_or(wrong)
            });
            Ok((row.name, ToolOverride { enabled: row.enabled, scope: scope.transpose()? }))
        })
        .collect()
}

/// Sets what people decided about a tool. `off_by` is who switches it off with that; without them it stays known who did.
#[tracing::instrument(name = "db.gate.set_tool_override", skip_all, fields(tool.name = name))]
pub async fn set_tool_override(
    conn: &mut Conn,
    name: &str,
    set: &ToolOverride,
    off_by: Option<UserId>,
    by: UserId,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO tool_overrides (name, enabled, scope, updated_by, updated_at, disabled_by) VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (name) DO UPDATE SET enabled = $2, scope = $3, updated_by = $4, updated_at = $5,
            disabled_by = CASE WHEN $2::boolean IS FALSE THEN COALESCE($6::uuid, tool_overrides.disabled_by) END
        ",
        name,
        set.enabled,
        set.scope.map(ToolScope::as_str),
        by.as_uuid(),
        now,
        off_by.map(UserId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether it was that user who switched a tool off.
pub async fn is_disabled_by(conn: &mut Conn, name: &str, user: UserId) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!("SELECT disabled_by FROM tool_overrides WHERE name = $1", name);
    Ok(found.fetch_optional(conn).await?.flatten() == Some(user.as_uuid()))
}

/// Whether somebody else than that user switched a server or a tool of it off.
pub async fn is_disabled_by_another(
    conn: &mut Conn,
    server: cynode_core::ids::ServerId,
    user: UserId,
) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (SELECT FROM tool_servers s
                WHERE s.server_id = $1 AND NOT s.enabled AND s.disabled_by IS DISTINCT FROM $2::uuid)
            OR EXISTS (SELECT FROM server_tools t JOIN tool_overrides g ON g.name = t.name
                WHERE t.server_id = $1 AND NOT g.enabled AND g.disabled_by IS DISTINCT FROM $2::uuid) AS "found!"
        "#,
        server.as_uuid(),
        user.as_uuid(),
    );
    Ok(found.fetch_one(conn).await?)
}

/// Forgets what was decided about tools that are gone for good: one of the same name later is another tool.
pub async fn delete_tool_overrides(
    conn: &mut Conn,
    server: cynode_core::ids::ServerId,
) -> Result<(), DbError> {
    sqlx::query!(
        "DELETE FROM tool_overrides WHERE name IN (SELECT name FROM server_tools WHERE server_id = $1)",
        server.as_uuid(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A rule with what is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRule {
    /// The rule.
    pub rule: PolicyRule,
    /// How often it was written.
    pub version: i64,
    /// Who wrote it last; nobody when it came with the installation.
    pub updated_by: Option<UserId>,
    /// When.
    pub updated_at: OffsetDateTime,
}

/// All rules, by name.
#[tracing::instrument(name = "db.gate.list_rules", skip_all)]
pub async fn list_rules(conn: &mut Conn) -> Result<Vec<StoredRule>, DbError> {
    let rows = sqlx::query!(
        "SELECT name, mode, text, version, updated_by, updated_at FROM policy_rules ORDER BY name"
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let mode = RuleMode::from_name(&row.mode)
                .ok_or(DbError::Corrupt { table: "policy_rules", column: "mode" })?;
            Ok(StoredRule {
                rule: PolicyRule { name: row.name, mode, text: row.text },
                version: row.version,
                updated_by: row.updated_by.map(UserId::from_uuid),
                updated_at: row.updated_at,
            })
        })
        .collect()
}

/// Writers of rules and whoever changes the catalogue wait for each other: each rule is checked against the tools that
/// there are.
pub async fn lock_policy(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!("SELECT epoch FROM policy_epoch FOR UPDATE").fetch_one(conn).await?;
    Ok(())
}

/// Writes a rule and keeps the version. A rule that was deleted goes on counting where it stopped.
#[tracing::instrument(name = "db.gate.set_rule", skip_all)]
pub async fn set_rule(
    conn: &mut Conn,
    rule: &PolicyRule,
    by: UserId,
    now: OffsetDateTime,
) -> Result<StoredRule, DbError> {
    let version = sqlx::query_scalar!(
        r#"
        WITH written AS (
            INSERT INTO policy_rules (name, mode, text, version, updated_by, updated_at)
            SELECT $1, $2, $3, coalesce((SELECT max(v.version) FROM policy_rule_versions v WHERE v.name = $1), 0) + 1, $4, $5
            ON CONFLICT (name) DO UPDATE
            SET mode = excluded.mode, text = excluded.text, version = excluded.version,
                updated_by = excluded.updated_by, updated_at = excluded.updated_at
            RETURNING name, mode, text, version, updated_by, updated_at
        ), stored AS (
            INSERT INTO policy_rule_versions (name, version, mode, text, changed_by, changed_at)
            SELECT name, version, mode, text, updated_by, updated_at FROM written
        )
        SELECT version AS "version!" FROM written
        "#,
        rule.name,
        rule.mode.as_str(),
        rule.text,
        by.as_uuid(),
        now,
    )
    .fetch_one(conn)
    .await?;
    Ok(StoredRule { rule: rule.clone(), version, updated_by: Some(by), updated_at: now })
}

/// Removes a rule and keeps who did. Gives whether it was there.
#[tracing::instrument(name = "db.gate.delete_rule", skip_all)]
pub async fn delete_rule(
    conn: &mut Conn,
    name: &str,
    by: UserId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        WITH gone AS (DELETE FROM policy_rules WHERE name = $1 RETURNING name)
        INSERT INTO policy_rule_versions (name, version, changed_by, changed_at)
        SELECT name, coalesce((SELECT max(v.version) FROM policy_rule_versions v WHERE v.name = $1), 0) + 1, $2, $3 FROM gone
        ",
        name,
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// One version of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleVersion {
    /// Its number.
    pub version: i64,
    /// What the rule did and said; `None`: it was deleted.
    pub rule: Option<(RuleMode, String)>,
    /// Who wrote it; nobody when it came with the installation.
    pub changed_by: Option<UserId>,
    /// When.
    pub changed_at: OffsetDateTime,
}

/// The last 200 versions of a rule, newest first.
#[tracing::instrument(name = "db.gate.list_rule_versions", skip_all)]
pub async fn list_rule_versions(conn: &mut Conn, name: &str) -> Result<Vec<RuleVersion>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT version, mode, text, changed_by, changed_at FROM policy_rule_versions
        WHERE name = $1 ORDER BY version DESC LIMIT 200
        ",
        name,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let rule = match (row.mode, row.text) {
                (Some(mode), Some(text)) => {
                    let wrong = DbError::Corrupt { table: "policy_rule_versions", column: "mode" };
                    Some((RuleMode::from_name(&mode).ok_or(wrong)?, text))
                }
                _ => None,
            };
            let changed_by = row.changed_by.map(UserId::from_uuid);
            Ok(RuleVersion { version: row.version, rule, changed_by, changed_at: row.changed_at })
        })
        .collect()
}

/// Whose hour a call counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuotaOwner {
    /// All agents of a task together.
    Task(TaskId),
    /// A token that is tied to no task.
    Token(AgentTokenId),
}

/// Takes up to `wanted` calls of an hour; fewer when the limit is near, none when it is reached. It must be called
/// inside a transaction, so that two who take at once take one after the other.
#[tracing::instrument(name = "db.gate.take_quota", skip_all)]
pub async fn take_quota(
    conn: &mut Conn,
    whose: QuotaOwner,
    hour: OffsetDateTime,
    wanted: i64,
    limit: i64,
) -> Result<i64, DbError> {
    let (counted, taken) = match whose {
        QuotaOwner::Task(task) => lock_task_quota(conn, task, hour).await?,
        QuotaOwner::Token(token) => lock_token_quota(conn, token, hour).await?,
    };
    // A replica whose clock is behind counts in the hour that others have begun.
    let before = if counted >= hour { taken } else { 0 };
    let given = wanted.min(limit - before).max(0);
    let (hour, taken) = (hour.max(counted), before + given);
    match whose {
        QuotaOwner::Task(task) => {
            sqlx::query!(
                "UPDATE task_call_quotas SET hour = $2, used_calls = $3 WHERE task_id = $1",
                task.as_uuid(),
                hour,
                taken,
            )
            .execute(conn)
            .await?
        }
        QuotaOwner::Token(token) => {
            sqlx::query!(
                "UPDATE token_call_quotas SET hour = $2, used_calls = $3 WHERE agent_token_id = $1",
                token.as_uuid(),
                hour,
                taken,
            )
            .execute(conn)
            .await?
        }
    };
    Ok(given)
}

/// The hour of a task and what was taken of it, locked.
async fn lock_task_quota(
    conn: &mut Conn,
    task: TaskId,
    hour: OffsetDateTime,
) -> Result<(OffsetDateTime, i64), DbError> {
    sqlx::query!(
        "INSERT INTO task_call_quotas (task_id, hour, used_calls) VALUES ($1, $2, 0) ON CONFLICT (task_id) DO NOTHING",
        task.as_uuid(),
        hour,
    )
    .execute(&mut *conn)
    .await?;
    let row = sqlx::query!(
        "SELECT hour, used_calls FROM task_call_quotas WHERE task_id = $1 FOR UPDATE",
        task.as_uuid(),
    )
    .fetch_one(conn)
    .await?;
    Ok((row.hour, row.used_calls))
}

/// The hour of a token and what was taken of it, locked.
async fn lock_token_quota(
    conn: &mut Conn,
    token: AgentTokenId,
    hour: OffsetDateTime,
) -> Result<(OffsetDateTime, i64), DbError> {
    sqlx::query!(
        "INSERT INTO token_call_quotas (agent_token_id, hour, used_calls) VALUES ($1, $2, 0) ON CONFLICT (agent_token_id) DO NOTHING",
        token.as_uuid(),
        hour,
    )
    .execute(&mut *conn)
    .await?;
    let row = sqlx::query!(
        "SELECT hour, used_calls FROM token_call_quotas WHERE agent_token_id = $1 FOR UPDATE",
        token.as_uuid(),
    )
    .fetch_one(conn)
    .await?;
    Ok((row.hour, row.used_calls))
}
