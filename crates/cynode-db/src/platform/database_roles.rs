//! Roles of the database: the owner migrates, and a running server has a role that reads and writes rows and creates nothing.

use crate::{Conn, DbError};

/// Name of the role of a running server.
pub const RUNTIME_ROLE: &str = "cynode_runtime";

/// What the role of this connection may do beyond reading and writing rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolePrivileges {
    /// Name of the role.
    pub role: String,
    /// Whether it passes every check of the database.
    pub is_superuser: bool,
    /// Whether it may create roles or databases.
    pub creates_roles: bool,
    /// Whether it may create tables in our schema.
    pub creates_tables: bool,
    /// Number of our tables that it owns, and so may change or drop.
    pub owned_tables: i64,
    /// Number of our tables that it may not read.
    pub unreadable_tables: i64,
}

impl RolePrivileges {
    /// Returns whether the role reads and writes rows only.
    pub const fn is_restricted(&self) -> bool {
        !self.is_superuser && !self.creates_roles && !self.creates_tables && self.owned_tables == 0
    }
}

/// Reads the privileges of the role of this connection.
#[tracing::instrument(name = "db.database_roles.get_role_privileges", skip_all)]
pub async fn get_role_privileges(conn: &mut Conn) -> Result<RolePrivileges, DbError> {
    let privileges = sqlx::query_as!(
        RolePrivileges,
        r#"
        SELECT r.rolname::text AS "role!", r.rolsuper AS "is_superuser!",
            r.rolcreaterole OR r.rolcreatedb AS "creates_roles!",
            has_schema_privilege(current_schema()::text, 'CREATE') AS "creates_tables!",
            (SELECT count(*) FROM pg_class c
             WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND c.relowner = r.oid) AS "owned_tables!",
            (SELECT count(*) FROM pg_class c
             WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                 AND NOT has_table_privilege(c.oid, 'SELECT')) AS "unreadable_tables!"
        FROM pg_roles r WHERE r.rolname = current_user
        "#
    );
    Ok(privileges.fetch_one(conn).await?)
}

/// Creates the role of a running server in a cluster of our own, or gives it this password. The password is hexadecimal digits.
#[tracing::instrument(name = "db.database_roles.ensure_runtime_role", skip_all)]
pub async fn ensure_runtime_role(conn: &mut Conn, password: &str) -> Result<(), DbError> {
    // DDL takes no parameters, and a password that ends the literal must not get there.
    if password.is_empty() || !password.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(DbError::Corrupt { table: "pg_roles", column: "rolpassword" });
    }
    let verb = if has_runtime_role(conn).await? { "ALTER" } else { "CREATE" };
    let statement = format!(
        "{verb} ROLE {RUNTIME_ROLE} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD '{password}'"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(conn).await?;
    Ok(())
}

/// Gives the role of a running server what it needs, where there is such a role. Only the owner of the schema can.
pub(crate) async fn grant_runtime_privileges(conn: &mut Conn) -> Result<(), DbError> {
    if has_runtime_role(conn).await? {
        sqlx::query!("SELECT FROM grant_runtime_privileges($1)", RUNTIME_ROLE)
            .execute(conn)
            .await?;
    }
    Ok(())
}

async fn has_runtime_role(conn: &mut Conn) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1) AS "found!""#,
        RUNTIME_ROLE,
    );
    Ok(found.fetch_one(conn).await?)
}
