//! Health queries about the database itself.

use crate::{Conn, DbError};

/// Asks the database for a sign of life.
pub async fn ping_database(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!(r#"SELECT 1 AS "one!""#).fetch_one(conn).await?;
    Ok(())
}

/// Whether anybody is admin of the installation.
pub async fn has_admin(conn: &mut Conn) -> Result<bool, DbError> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM role_bindings
            JOIN users USING (user_id)
            WHERE role = 'admin' AND project_id IS NULL AND state = 'active'
        ) AS "found!"
        "#
    )
    .fetch_one(conn)
    .await?;
    Ok(found)
}
