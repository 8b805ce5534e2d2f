//! Whether everything that is needed is there.

use std::time::Duration;

use cynode_db::{DbError, health, schema};
use cynode_wire::health::{Check, Readiness};

use crate::App;

/// How long the database may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Looks at everything and says what is missing and how to mend it.
#[tracing::instrument(name = "app.health.readiness", skip_all)]
pub async fn readiness(app: &App) -> Readiness {
    match tokio::time::timeout(PATIENCE, look(app)).await {
        Ok(Ok(checks)) => checks.into(),
        Ok(Err(error)) => unreachable_database(&format!("{:#}", anyhow::Error::from(error))),
        Err(_) => unreachable_database("it did not answer within 2 seconds"),
    }
}

fn unreachable_database(cause: &str) -> Readiness {
    tracing::warn!(event = "error", error = cause, "the database cannot be used");
    vec![Check::failed(
        "database",
        "PostgreSQL cannot be reached; the log has the cause",
        "start PostgreSQL and check `database.url` with `cynode config check`",
    )]
    .into()
}

async fn look(app: &App) -> Result<Vec<Check>, DbError> {
    let mut conn = app.pool().acquire().await?;
    health::ping(&mut conn).await?;
    let mut checks = vec![Check::ok("database", "PostgreSQL answers")];
    let pending = schema::pending(&mut conn).await.map_err(|error| match error {
        schema::SchemaError::Db(error) => error,
        schema::SchemaError::Migrate(_) | schema::SchemaError::Foreign { .. } => {
            DbError::Corrupt { table: "_sqlx_migrations", column: "version" }
        }
    })?;
    if !pending.is_empty() {
        let detail = format!("{} migrations are missing: {}", pending.len(), pending.join(", "));
        checks.push(Check::failed("schema", detail, "run `cynode migrate`"));
        return Ok(checks);
    }
    checks.push(Check::ok("schema", "every migration is applied"));
    let now = app.environment().now();
    checks.push(if !schema::has_partition(&mut conn, now).await? {
        Check::failed("partitions", "events of this month have no place", "run `cynode migrate`")
    } else if !schema::has_partition(&mut conn, now + time::Duration::days(31)).await? {
        Check::warning("partitions", "events of next month have no place", "run `cynode migrate`")
    } else {
        Check::ok("partitions", "events of this and next month have a place")
    });
    checks.push(if health::has_admin(&mut conn).await? {
        Check::ok("admin", "the installation has an admin")
    } else {
        Check::warning(
            "admin",
            "nobody can log in yet",
            "run `cynode admin bootstrap` and open the link",
        )
    });
    Ok(checks)
}
