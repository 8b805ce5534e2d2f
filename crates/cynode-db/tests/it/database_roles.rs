use cynode_db::platform::{
    database_roles::{self, RUNTIME_ROLE},
    schema,
};
use cynode_testkit_db::{NOW, TestDb};

/// Lets the connection act as the role of a running server. A role belongs to the whole cluster, which other tests use too: one of those
/// that make it at the same moment wins, and the others try again.
pub(crate) async fn become_runtime_role(conn: &mut cynode_db::Conn) {
    while database_roles::ensure_runtime_role(conn, "00ff").await.is_err() {}
    schema::migrate_schema(conn, NOW).await.unwrap();
    sqlx::raw_sql("SET ROLE cynode_runtime").execute(conn).await.unwrap();
}

#[tokio::test]
async fn the_role_of_a_running_server_reads_and_writes_rows_only() {
    let db = TestDb::new().await;
    let mut conn = db.conn().await;
    let owner = database_roles::get_role_privileges(&mut conn).await.unwrap();
    assert!(!owner.is_restricted(), "{owner:?}");
    become_runtime_role(&mut conn).await;
    let runtime = database_roles::get_role_privileges(&mut conn).await.unwrap();
    assert_eq!(runtime.role, RUNTIME_ROLE);
    assert!(runtime.is_restricted() && runtime.unreadable_tables == 0, "{runtime:?}");
    sqlx::query("SELECT count(*) FROM tasks").execute(&mut *conn).await.unwrap();
    sqlx::query("DELETE FROM idempotency_keys").execute(&mut *conn).await.unwrap();
    for refused in [
        "CREATE TABLE own (number int)",
        "ALTER TABLE tasks DROP COLUMN name",
        "DROP TABLE tasks",
        "UPDATE audit_records SET seq = 1",
        "DELETE FROM events_2026_11",
        "UPDATE installation_epochs SET epoch = 7",
        "DELETE FROM _sqlx_migrations",
        "SELECT grant_runtime_privileges('cynode_runtime')",
    ] {
        let error = sqlx::query(refused).execute(&mut *conn).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
        assert_eq!(code, "42501", "{refused}: {error}");
    }
}

#[tokio::test]
async fn a_running_server_makes_its_partitions_and_no_other_table() {
    let db = TestDb::new().await;
    let mut conn = db.conn().await;
    become_runtime_role(&mut conn).await;
    let later = time::macros::datetime!(2033-05-01 0:00 UTC);
    schema::ensure_partitions(&mut conn, later).await.unwrap();
    let missing = schema::tables_without_partition(&mut conn, later).await.unwrap();
    assert_eq!(missing, Vec::<String>::new());
    for wrong in [
        "SELECT ensure_month_partition('tasks', '2033-05-01')",
        "SELECT ensure_month_partition('events', '2033-05-02')",
    ] {
        assert!(sqlx::query(wrong).execute(&mut *conn).await.is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_role_that_may_change_no_tables_finds_nothing_to_migrate_or_names_who_can() {
    let db = TestDb::new().await;
    let mut conn = db.conn().await;
    become_runtime_role(&mut conn).await;
    let total = schema::MIGRATOR.iter().count();
    let found = schema::migrate_schema(&mut conn, NOW).await.unwrap();
    assert_eq!(found, schema::MigrationSummary { applied: 0, total });
    let newest =
        "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    for statement in ["RESET ROLE", newest, "SET ROLE cynode_runtime"] {
        sqlx::query(statement).execute(&mut *conn).await.unwrap();
    }
    let refused = schema::migrate_schema(&mut conn, NOW).await.unwrap_err().to_string();
    assert!(refused.contains("1 migrations are missing") && refused.contains("owner"), "{refused}");
}

#[tokio::test]
async fn a_password_that_is_no_number_is_refused() {
    let db = TestDb::new().await;
    let mut conn = db.conn().await;
    for password in ["", "'; DROP TABLE tasks; --", "correct horse"] {
        let made = database_roles::ensure_runtime_role(&mut conn, password).await;
        assert!(made.is_err(), "{password}");
    }
}
