//! Tool servers and the tools they offer.

use cynode_core::{
    agents::ToolScope,
    ids::{ProjectId, ServerId, UserId},
};
use cynode_policy::{catalogue::ToolAudience, tool_names::ToolName};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A server.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolServer {
    /// Its id.
    pub id: ServerId,
    /// What people call it; unique.
    pub name: String,
    /// What people read.
    pub title: String,
    /// How it is reached, without secrets.
    pub transport: Value,
    /// The admin who allowed that it is on this machine or in a private network.
    pub private_allowed_by: Option<UserId>,
    /// Whether that holds: whoever allowed it is still an admin.
    pub private: bool,
    /// Its credentials, sealed.
    pub sealed: Option<Vec<u8>>,
    /// What its tools' names begin with; empty for none.
    pub prefix: String,
    /// Whose agents may use it.
    pub audience: ToolAudience,
    /// Who installed it.
    pub owner: UserId,
    /// Who may call its tools, unless a tool has another scope.
    pub scope: ToolScope,
    /// How long a call may take.
    pub timeout_ms: i32,
    /// Most calls at once.
    pub max_in_flight: i32,
    /// Whether it is in use.
    pub enabled: bool,
    /// When its tools were last read.
    pub listed_at: Option<OffsetDateTime>,
    /// Why they could not be.
    pub failure: Option<String>,
    /// When it was installed.
    pub created_at: OffsetDateTime,
}

/// A tool that a server offers.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerTool {
    /// The server.
    pub server: ServerId,
    /// What the server calls it.
    pub tool: String,
    /// What we call it.
    pub name: ToolName,
    /// What the server said last.
    pub definition: Value,
    /// What a person accepted.
    pub accepted: Option<Value>,
    /// What it does to the world, as a person judged it.
    pub annotations: Value,
    /// Whether the server offers it no more.
    pub gone: bool,
    /// Who accepted it.
    pub accepted_by: Option<UserId>,
    /// When it was accepted.
    pub accepted_at: Option<OffsetDateTime>,
}

struct ToolServerRow {
    server_id: Uuid,
    name: String,
    title: String,
    transport: Value,
    private_allowed_by: Option<Uuid>,
    private: bool,
    sealed_credentials: Option<Vec<u8>>,
    prefix: String,
    audience: String,
    project_id: Option<Uuid>,
    owner_id: Uuid,
    scope: String,
    timeout_ms: i32,
    max_in_flight: i32,
    enabled: bool,
    listed_at: Option<OffsetDateTime>,
    failure: Option<String>,
    created_at: OffsetDateTime,
}

impl TryFrom<ToolServerRow> for ToolServer {
    type Error = DbError;

    fn try_from(row: ToolServerRow) -> Result<Self, DbError> {
        let wrong = |column| DbError::Corrupt { table: "tool_servers", column };
        let audience = match (row.audience.as_str(), row.project_id) {
            ("everybody", None) => ToolAudience::Everybody,
            ("user", None) => ToolAudience::User(UserId::from_uuid(row.owner_id)),
            ("project", Some(project)) => ToolAudience::Project(ProjectId::from_uuid(project)),
            _ => return Err(wrong("audience")),
        };
        Ok(Self {
            id: ServerId::from_uuid(row.server_id),
            name: row.name,
            title: row.title,
            transport: row.transport,
            private_allowed_by: row.private_allowed_by.map(UserId::from_uuid),
            private: row.private,
            sealed: row.sealed_credentials,
            prefix: row.prefix,
            audience,
            owner: UserId::from_uuid(row.owner_id),
            scope: ToolScope::from_name(&row.scope).ok_or_else(|| wrong("scope"))?,
            timeout_ms: row.timeout_ms,
            max_in_flight: row.max_in_flight,
            enabled: row.enabled,
            listed_at: row.listed_at,
            failure: row.failure,
            created_at: row.created_at,
        })
    }
}

/// The name and the project of an audience in the database.
fn audience_columns(audience: ToolAudience) -> (&'static str, Option<Uuid>) {
    match audience {
        ToolAudience::Everybody => ("everybody", None),
        ToolAudience::User(_) => ("user", None),
        ToolAudience::Project(project) => ("project", Some(project.as_uuid())),
    }
}

/// Installs a server.
#[tracing::instrument(name = "db.servers.insert_tool_server", skip_all)]
pub async fn insert_tool_server(conn: &mut Conn, server: &ToolServer) -> Result<(), DbError> {
    let (audience, project) = audience_columns(server.audience);
    sqlx::query!(
        "
        INSERT INTO tool_servers (server_id, name, title, transport, sealed_credentials, prefix, audience, project_id, owner_id, scope,
            timeout_ms, max_in_flight, enabled, created_at, updated_at, private_allowed_by)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14, $15)
        ",
        server.id.as_uuid(),
        server.name,
        server.title,
        server.transport,
        server.sealed,
        server.prefix,
        audience,
        project,
        server.owner.as_uuid(),
        server.scope.as_str(),
        server.timeout_ms,
        server.max_in_flight,
        server.enabled,
        server.created_at,
        server.private_allowed_by.map(UserId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Changes what may be changed about a server. `off_by` is who switches it off with that; without them it stays known who did.
#[tracing::instrument(name = "db.servers.update_tool_server", skip_all)]
pub async fn update_tool_server(
    conn: &mut Conn,
    server: &ToolServer,
    off_by: Option<UserId>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE tool_servers SET title = $2, scope = $3, timeout_ms = $4, max_in_flight = $5, enabled = $6, updated_at = $7,
            disabled_by = CASE WHEN NOT $6::boolean THEN COALESCE($8::uuid, disabled_by) END, private_allowed_by = $9
        WHERE server_id = $1
        ",
        server.id.as_uuid(),
        server.title,
        server.scope.as_str(),
        server.timeout_ms,
        server.max_in_flight,
        server.enabled,
        now,
        off_by.map(UserId::as_uuid),
        server.private_allowed_by.map(UserId::as_uuid),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes a server and everything it offers.
#[tracing::instrument(name = "db.servers.delete_tool_server", skip_all)]
pub async fn delete_tool_server(conn: &mut Conn, id: ServerId) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM tool_servers WHERE server_id = $1", id.as_uuid())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() > 0)
}

/// Every server, by name.
#[tracing::instrument(name = "db.servers.list_tool_servers", skip_all)]
pub async fn list_tool_servers(conn: &mut Conn) -> Result<Vec<ToolServer>, DbError> {
    sqlx::query_as!(
        ToolServerRow,
        r#"
        SELECT server_id, name, title, transport, private_allowed_by, is_active_admin(private_allowed_by) AS "private!",
            sealed_credentials, prefix, audience, project_id, owner_id, scope, timeout_ms, max_in_flight, enabled, listed_at, failure,
            created_at
        FROM tool_servers ORDER BY name
        "#
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(ToolServer::try_from)
    .collect()
}

/// One server.
pub async fn get_tool_server(conn: &mut Conn, id: ServerId) -> Result<Option<ToolServer>, DbError> {
    sqlx::query_as!(
        ToolServerRow,
        r#"
        SELECT server_id, name, title, transport, private_allowed_by, is_active_admin(private_allowed_by) AS "private!",
            sealed_credentials, prefix, audience, project_id, owner_id, scope, timeout_ms, max_in_flight, enabled, listed_at, failure,
            created_at
        FROM tool_servers WHERE server_id = $1
        "#,
        id.as_uuid(),
    )
    .fetch_optional(conn)
    .await?
    .map(ToolServer::try_from)
    .transpose()
}

/// Counts the servers of an audience: those of a person for themselves, those of a project, or those of everybody.
#[tracing::instrument(name = "db.servers.count_tool_servers", skip_all)]
pub async fn count_tool_servers(conn: &mut Conn, audience: ToolAudience) -> Result<i64, DbError> {
    let (name, project) = audience_columns(audience);
    let owner = match audience {
        ToolAudience::User(user) => Some(user.as_uuid()),
        ToolAudience::Everybody | ToolAudience::Project(_) => None,
    };
    let count = sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!" FROM tool_servers
        WHERE audience = $1 AND ($2::uuid IS NULL OR owner_id = $2) AND ($3::uuid IS NULL OR project_id = $3)
        "#,
        name,
        owner,
        project,
    );
    Ok(count.fetch_one(conn).await?)
}

struct ServerToolRow {
    server_id: Uuid,
    tool: String,
    name: String,
    definition: Value,
    accepted_definition: Option<Value>,
    annotations: Value,
    withdrawn: bool,
    accepted_by: Option<Uuid>,
    accepted_at: Option<OffsetDateTime>,
}

impl TryFrom<ServerToolRow> for ServerTool {
    type Error = DbError;

    fn try_from(row: ServerToolRow) -> Result<Self, DbError> {
        Ok(Self {
            server: ServerId::from_uuid(row.server_id),
            tool: row.tool,
            name: row.name.try_into().map_err(corrupt_column("server_tools", "name"))?,
            definition: row.definition,
            accepted: row.accepted_definition,
            annotations: row.annotations,
            gone: row.withdrawn,
            accepted_by: row.accepted_by.map(UserId::from_uuid),
            accepted_at: row.accepted_at,
        })
    }
}

/// What a server offers, by name.
#[tracing::instrument(name = "db.servers.list_server_tools", skip_all)]
pub async fn list_server_tools(
    conn: &mut Conn,
    server: ServerId,
) -> Result<Vec<ServerTool>, DbError> {
    sqlx::query_as!(
        ServerToolRow,
        "
        SELECT server_id, tool, name, definition, accepted_definition, annotations, withdrawn, accepted_by, accepted_at
        FROM server_tools WHERE server_id = $1 ORDER BY name
        ",
        server.as_uuid(),
    )
    .fetch_all(conn)
    .await?
    .into_iter()
    .map(ServerTool::try_from)
    .collect()
}

/// A tool that a person accepted once, as policy decisions need it.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptedTool {
    /// The server.
    pub server: ServerId,
    /// What the server calls it.
    pub tool: String,
    /// What we call it.
    pub name: ToolName,
    /// What the person accepted.
    pub definition: Value,
    /// What it does to the world, as a person judged it.
    pub annotations: Value,
    /// Whether the server still offers exactly that.
    pub unchanged: bool,
}

/// Every tool that was accepted once, by name. A definition that nobody accepted is not even read.
#[tracing::instrument(name = "db.servers.list_accepted_tools", skip_all)]
pub async fn list_accepted_tools(conn: &mut Conn) -> Result<Vec<AcceptedTool>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT server_id, tool, name, accepted_definition AS "definition!", annotations,
            NOT withdrawn AND accepted_definition = definition AS "unchanged!"
        FROM server_tools WHERE accepted_definition IS NOT NULL ORDER BY name
        "#
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(AcceptedTool {
                server: ServerId::from_uuid(row.server_id),
                tool: row.tool,
                name: row.name.try_into().map_err(corrupt_column("server_tools", "name"))?,
                definition: row.definition,
                annotations: row.annotations,
                unchanged: row.unchanged,
            })
        })
        .collect()
}

/// The tools that have one of these names: server, name at the server, and ours.
#[tracing::instrument(name = "db.servers.find_tool_names", skip_all)]
pub async fn find_tool_names(
    conn: &mut Conn,
    names: &[String],
) -> Result<Vec<(ServerId, String, String)>, DbError> {
    let rows =
        sqlx::query!("SELECT server_id, tool, name FROM server_tools WHERE name = ANY($1)", names)
            .fetch_all(conn)
            .await?;
    let found = rows.into_iter();
    Ok(found.map(|row| (ServerId::from_uuid(row.server_id), row.tool, row.name)).collect())
}

/// How much was accepted of a server, and of all servers of its audience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedTotals {
    /// The tools of the server.
    pub tools: i64,
    /// The bytes of their definitions, as text.
    pub bytes: i64,
    /// The bytes of all definitions of servers of the same user or the same project.
    pub audience_bytes: i64,
}

/// Sums up what was accepted of a server and of its audience.
#[tracing::instrument(name = "db.servers.sum_accepted_tools", skip_all)]
pub async fn sum_accepted_tools(
    conn: &mut Conn,
    server: &ToolServer,
) -> Result<AcceptedTotals, DbError> {
    let (name, project) = audience_columns(server.audience);
    let totals = sqlx::query_as!(
        AcceptedTotals,
        r#"
        WITH accepted AS (
            SELECT t.server_id = $1 AS own, octet_length(t.accepted_definition::text)::bigint AS bytes
            FROM server_tools t JOIN tool_servers s USING (server_id)
            WHERE t.accepted_definition IS NOT NULL AND s.audience = $2 AND ($3::uuid IS NULL OR s.project_id = $3)
                AND (s.audience <> 'user' OR s.owner_id = $4)
        )
        SELECT count(*) FILTER (WHERE own) AS "tools!", coalesce(sum(bytes) FILTER (WHERE own), 0)::bigint AS "bytes!",
            coalesce(sum(bytes), 0)::bigint AS "audience_bytes!"
        FROM accepted
        "#,
        server.id.as_uuid(),
        name,
        project,
        server.owner.as_uuid(),
    );
    Ok(totals.fetch_one(conn).await?)
}

/// What became different about the tools of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToolListChange {
    /// Anything at all.
    pub any: bool,
    /// A tool that was accepted once, so that policy decisions depend on it.
    pub accepted: bool,
}

impl std::ops::BitOrAssign for ToolListChange {
    fn bitor_assign(&mut self, other: Self) {
        self.any |= other.any;
        self.accepted |= other.accepted;
    }
}

/// Notes that a server offers a tool, with this definition. Gives whether that is new or another than before; what was
/// accepted stays as it is.
#[tracing::instrument(name = "db.servers.upsert_server_tool", skip_all)]
pub async fn upsert_server_tool(
    conn: &mut Conn,
    tool: &ServerTool,
    now: OffsetDateTime,
) -> Result<ToolListChange, DbError> {
    let row = sqlx::query!(
        r#"
        WITH before AS (SELECT definition, withdrawn FROM server_tools WHERE server_id = $1 AND tool = $2)
        INSERT INTO server_tools (server_id, tool, name, definition, annotations, seen_at)
        VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (server_id, tool) DO UPDATE SET definition = $4, withdrawn = false, seen_at = $6
        RETURNING NOT EXISTS (SELECT FROM before WHERE definition = $4 AND NOT withdrawn) AS "changed!",
            accepted_definition IS NOT NULL AS "accepted!"
        "#,
        tool.server.as_uuid(),
        tool.tool,
        tool.name.as_str(),
        tool.definition,
        tool.annotations,
        now,
    )
    .fetch_one(conn)
    .await?;
    Ok(ToolListChange { any: row.changed, accepted: row.changed && row.accepted })
}

/// Notes which tools a server offers no more. Those that nobody accepted are removed: a server that offers other tools
/// each time must not fill the table.
#[tracing::instrument(name = "db.servers.mark_missing_tools", skip_all)]
pub async fn mark_missing_tools(
    conn: &mut Conn,
    server: ServerId,
    offered: &[String],
) -> Result<ToolListChange, DbError> {
    let removed = sqlx::query!(
        "DELETE FROM server_tools WHERE server_id = $1 AND accepted_definition IS NULL AND NOT tool = ANY($2)",
        server.as_uuid(),
        offered,
    )
    .execute(&mut *conn)
    .await?;
    let withdrawn = sqlx::query!(
        "UPDATE server_tools SET withdrawn = true WHERE server_id = $1 AND NOT withdrawn AND NOT tool = ANY($2)",
        server.as_uuid(),
        offered,
    )
    .execute(conn)
    .await?;
    let accepted = withdrawn.rows_affected() > 0;
    Ok(ToolListChange { any: accepted || removed.rows_affected() > 0, accepted })
}

/// Notes that a server's tools were read, or why not.
#[tracing::instrument(name = "db.servers.record_tool_listing", skip_all)]
pub async fn record_tool_listing(
    conn: &mut Conn,
    server: ServerId,
    failure: Option<&str>,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        UPDATE tool_servers
        SET listed_at = CASE WHEN $2::text IS NULL THEN $3::timestamptz ELSE listed_at END, failure = $2
        WHERE server_id = $1
        ",
        server.as_uuid(),
        failure,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Accepts exactly the definition that the person saw. Gives whether the server still offers it.
#[tracing::instrument(name = "db.servers.accept_tool_definition", skip_all)]
pub async fn accept_tool_definition(
    conn: &mut Conn,
    server: ServerId,
    tool: &str,
    seen: &Value,
    by: UserId,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE server_tools SET accepted_definition = definition, accepted_by = $4, accepted_at = $5
        WHERE server_id = $1 AND tool = $2 AND definition = $3
        ",
        server.as_uuid(),
        tool,
        seen,
        by.as_uuid(),
        now,
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Sets what a tool does to the world. Gives what was set before; `None` when there is no such tool.
#[tracing::instrument(name = "db.servers.set_tool_annotations", skip_all)]
pub async fn set_tool_annotations(
    conn: &mut Conn,
    server: ServerId,
    tool: &str,
    annotations: &Value,
) -> Result<Option<Value>, DbError> {
    let before = sqlx::query_scalar!(
        r#"
        WITH before AS (SELECT annotations FROM server_tools WHERE server_id = $1 AND tool = $2)
        UPDATE server_tools SET annotations = $3 WHERE server_id = $1 AND tool = $2
        RETURNING (SELECT annotations FROM before) AS "annotations!"
        "#,
        server.as_uuid(),
        tool,
        annotations,
    );
    Ok(before.fetch_optional(conn).await?)
}
