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
    let this = schema::without_partition(&mut conn, now).await?;
    let next = schema::without_partition(&mut conn, now + time::Duration::days(31)).await?;
    let fix = "run `cynode migrate`";
    checks.push(if !this.is_empty() {
        let detail = format!("this month has no place in {}", this.join(", "));
        Check::failed("partitions", detail, fix)
    } else if !next.is_empty() {
        let detail = format!("next month has no place in {}", next.join(", "));
        Check::warning("partitions", detail, fix)
    } else {
        Check::ok("partitions", "this and next month have a place in every table")
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
