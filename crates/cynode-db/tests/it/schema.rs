use cynode_core::{events::EventKind, preferences::ScopeType, roles::Role, tasks::TaskStateName};
use cynode_db::schema;
use cynode_testkit::{NOW, TestDb};

#[tokio::test]
async fn two_processes_that_migrate_at_once_do_it_once() {
    let db = TestDb::empty().await;
    let (mut left, mut right) = (db.conn().await, db.conn().await);
    let (left, right) =
        tokio::join!(schema::migrate(&mut left, NOW), schema::migrate(&mut right, NOW));
    let total = schema::MIGRATOR.iter().count();
    assert_eq!((left.unwrap().total, right.unwrap().total), (total, total));
    assert_eq!(schema::pending(&mut *db.conn().await).await.unwrap(), Vec::<String>::new());
    let recorded = db.number("SELECT count(*) FROM _sqlx_migrations").await;
    assert_eq!(usize::try_from(recorded).unwrap(), total);
}

#[tokio::test]
async fn a_database_without_tables_is_told_what_it_lacks() {
    let db = TestDb::empty().await;
    let pending = schema::pending(&mut *db.conn().await).await.unwrap();
    assert_eq!(pending, ["accounts", "projects", "settings", "tasks", "events"]);
}

#[tokio::test]
async fn migrating_again_changes_nothing() {
    let db = TestDb::new().await;
    let migrated = schema::migrate(&mut *db.conn().await, NOW).await.unwrap();
    assert_eq!(migrated.applied, 0);
}

/// A user 1 and a project 2, for rows that refer to them.
async fn populate(db: &TestDb) {
    db.execute(
        "INSERT INTO users (user_id, handle, display_name, state, created_at, updated_at)
         VALUES ('00000000-0000-0000-0000-000000000001', 'ada', 'Ada', 'active', now(), now())",
    )
    .await;
    db.execute(
        "INSERT INTO projects (project_id, slug, title, created_by, created_at, updated_at)
         VALUES ('00000000-0000-0000-0000-000000000002', 'web', 'Web',
                 '00000000-0000-0000-0000-000000000001', now(), now())",
    )
    .await;
}

/// Tries to store a value and says whether the schema took it.
async fn takes(db: &TestDb, statement: &str, value: &str) -> bool {
    let mut tx = db.begin().await;
    let statement = statement.replace("{}", value);
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut *tx).await.is_ok()
}

#[tokio::test]
async fn the_schema_and_the_types_know_the_same_states() {
    let db = TestDb::new().await;
    populate(&db).await;

    let role = "INSERT INTO role_bindings (user_id, role, bound_at)
        VALUES ('00000000-0000-0000-0000-000000000001', '{}', now())";
    for known in Role::ALL {
        assert!(takes(&db, role, known.as_str()).await, "{known:?}");
    }
    assert!(!takes(&db, role, "owner").await);

    let kind = "INSERT INTO events (occurred_at, kind, trace_id, data)
        VALUES ('2026-11-01', '{}', repeat('a', 32), '{}')";
    let kind = kind.replacen("'{}')", "'{\"a\":1}')", 1);
    for known in EventKind::ALL {
        assert!(takes(&db, &kind, known.as_str()).await, "{known:?}");
    }
    assert!(!takes(&db, &kind, "Task Created").await);

    let scope = "INSERT INTO preferences (scope_type, scope_id, key, value, version, updated_by, updated_at)
        VALUES ('{}', CASE WHEN '{}' = 'system' THEN '00000000-0000-0000-0000-000000000000' ELSE gen_random_uuid() END, 'k', '1', 1,
                '00000000-0000-0000-0000-000000000001', now())";
    for known in ScopeType::ALL {
        assert!(takes(&db, scope, known.as_str()).await, "{known:?}");
    }
    assert!(!takes(&db, scope, "planet").await);
}

#[tokio::test]
async fn the_schema_refuses_a_task_whose_columns_contradict_its_state() {
    let db = TestDb::new().await;
    populate(&db).await;
    let insert = "INSERT INTO tasks (task_id, project_id, name, description, acceptance_criteria, created_by,
            created_at, updated_at, state, started_at, ended_at, failure)
        VALUES (gen_random_uuid(), '00000000-0000-0000-0000-000000000002', 'a', 'b', '[]',
            '00000000-0000-0000-0000-000000000001', now(), now(), {})";
    let good = [
        (TaskStateName::Queued, "'queued', NULL, NULL, NULL"),
        (TaskStateName::Running, "'running', now(), NULL, NULL"),
        (TaskStateName::Completed, "'completed', now(), now(), NULL"),
        (TaskStateName::Failed, "'failed', now(), now(), 'why'"),
        (TaskStateName::Cancelled, "'cancelled', NULL, now(), NULL"),
    ];
    assert_eq!(good.map(|(state, _)| state), TaskStateName::ALL);
    for (state, columns) in good {
        assert!(takes(&db, insert, columns).await, "{state:?}");
    }
    for columns in [
        "'queued', now(), NULL, NULL",
        "'running', NULL, NULL, NULL",
        "'completed', now(), NULL, NULL",
        "'failed', now(), now(), NULL",
        "'cancelled', NULL, NULL, NULL",
        "'done', NULL, now(), NULL",
    ] {
        assert!(!takes(&db, insert, columns).await, "{columns}");
    }
}
