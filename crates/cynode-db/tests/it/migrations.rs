//! Migrations expand, then contract: the program of the release before works with the schema of this one.

use cynode_core::{
    profiles::{ProfileName, shipped_profile},
    releases::Release,
};
use cynode_db::{
    platform::schema::{self, MIGRATOR, MigrationError},
    tools::profiles,
};
use cynode_testkit_db::{NOW, TestDb};

/// The newest migration of the last release. Later ones must leave the program of that release able to work.
const RELEASED: i64 = 20_261_118_000_022;

/// The migration that stores profiles.
const PROFILES: i64 = 20_261_119_000_035;

/// Words by which a statement takes something away, or demands what the program before does not write.
const CONTRACTING: [&str; 8] = [
    "DROP TABLE",
    "DROP COLUMN",
    "DROP FUNCTION",
    "DROP SCHEMA",
    "RENAME TO",
    "RENAME COLUMN",
    "SET NOT NULL",
    "TRUNCATE",
];

/// The statements of a migration that the program of the release before could not bear.
fn contracting_statements(sql: &str) -> Vec<String> {
    let code: Vec<&str> = sql.lines().map(|line| line.split("--").next().unwrap_or("")).collect();
    let code = code.join("\n");
    let statements =
        code.split(';').map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    statements
        .filter(|text| {
            let upper = text.to_uppercase();
            let upper = upper.replace("IS NOT NULL", "");
            let demands = upper.starts_with("ALTER TABLE")
                && upper.contains("ADD COLUMN")
                && upper.contains("NOT NULL")
                && !upper.contains("DEFAULT")
                && !upper.contains("GENERATED");
            let converts = upper.contains("ALTER COLUMN") && upper.contains(" TYPE ");
            demands || converts || CONTRACTING.iter().any(|word| upper.contains(word))
        })
        .collect()
}

/// The release that a migration demands, if it says that it contracts.
fn demanded_release(sql: &str) -> Option<Release> {
    let line = sql.lines().find_map(|line| line.strip_prefix("-- Contracts; needs "))?;
    line.trim_end_matches('.').parse().ok()
}

#[test]
fn a_migration_after_the_last_release_only_adds_or_says_which_release_it_needs() {
    for migration in MIGRATOR.iter().filter(|migration| migration.version > RELEASED) {
        let sql = migration.sql.as_str();
        let found = contracting_statements(sql);
        let Some(needed) = demanded_release(sql) else {
            assert_eq!(found, Vec::<String>::new(), "{} takes away", migration.description);
            continue;
        };
        let raised = format!("UPDATE schema_requirements SET min_release = '{needed}'");
        assert!(sql.contains(&raised), "{} does not raise min_release", migration.description);
        // What it takes away was not used by the program of the release that it demands.
        assert!(needed <= Release::current(), "{} needs a later release", migration.description);
    }
}

#[test]
fn what_takes_away_is_found_and_what_adds_is_not() {
    let found = |sql: &str| contracting_statements(sql).len();
    assert_eq!(found("CREATE TABLE a (b int NOT NULL); CREATE INDEX c ON a (b);"), 0);
    assert_eq!(found("ALTER TABLE a ADD COLUMN c int;"), 0);
    assert_eq!(found("ALTER TABLE a ADD COLUMN c int, ADD CHECK (c IS NOT NULL OR b > 0);"), 0);
    assert_eq!(found("ALTER TABLE a ADD COLUMN c int NOT NULL DEFAULT 1;"), 0);
    assert_eq!(found("-- DROP TABLE a;\nSELECT 1;"), 0);
    assert_eq!(found("ALTER TABLE a ADD COLUMN c int NOT NULL;"), 1);
    assert_eq!(found("ALTER TABLE a DROP COLUMN b; DROP TABLE a;"), 2);
    assert_eq!(found("ALTER TABLE a RENAME COLUMN b TO c;"), 1);
    assert_eq!(found("ALTER TABLE a ALTER COLUMN b DROP NOT NULL;"), 0);
    assert_eq!(found("ALTER TABLE a ALTER COLUMN b SET DATA TYPE bigint;"), 1);
}

#[tokio::test]
async fn the_program_before_works_with_what_a_later_release_added() {
    let db = TestDb::new().await;
    let mut conn = db.conn().await;
    let later = schema::program_schema_version() + 1;
    db.execute("ALTER TABLE tasks ADD COLUMN later_column text").await;
    let note =
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        SELECT max(version) + 1, 'later', true, '\\x00', 0 FROM _sqlx_migrations";
    db.execute(note).await;
    assert_eq!(schema::schema_version(&mut conn).await.unwrap(), later);
    let summary = schema::migrate_schema(&mut conn, NOW).await.unwrap();
    assert_eq!(summary.applied, 0);
    assert_eq!(schema::pending_migrations(&mut conn).await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_program_that_is_too_old_for_the_schema_is_told_what_to_install() {
    let db = TestDb::new().await;
    let mut conn = db.conn().await;
    db.execute("UPDATE schema_requirements SET min_release = '99.0.0'").await;
    let refused = schema::migrate_schema(&mut conn, NOW).await.unwrap_err();
    assert!(
        matches!(&refused, MigrationError::TooNew { needed, .. } if *needed == Release::new(99, 0, 0))
    );
    assert!(refused.to_string().contains("install 99.0.0 or newer"), "{refused}");
}

#[tokio::test]
async fn a_migration_of_another_lineage_is_refused() {
    let db = TestDb::new().await;
    let note =
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (20261117000000, 'foreign', true, '\\x00', 0)";
    db.execute(note).await;
    let refused = schema::migrate_schema(&mut *db.conn().await, NOW).await.unwrap_err();
    assert!(matches!(refused, MigrationError::Migrate(_)), "{refused}");
}

#[tokio::test]
async fn names_of_profiles_that_were_labels_permit_what_the_default_does() {
    let db = TestDb::new().await;
    let user = "INSERT INTO users (user_id, handle, display_name, state, created_at, updated_at)
        VALUES ('00000000-0000-0000-0000-000000000001', 'ada', 'Ada', 'active', now(), now())";
    db.execute(user).await;
    let labels = r#"
        INSERT INTO preferences (scope_type, scope_id, key, value, version, updated_by, updated_at)
        SELECT scope, id::uuid, key, value::jsonb, 1, user_id, now()
        FROM users, (VALUES
            ('system', '00000000-0000-0000-0000-000000000000', 'memory.profile', '"careful"'),
            ('user', '00000000-0000-0000-0000-000000000001', 'memory.profile', '"NO NAME"'),
            ('user', '00000000-0000-0000-0000-000000000001', 'agents.project_manager.profile', '"planner"'),
            ('project', '00000000-0000-0000-0000-000000000002', 'memory.profile', '"careful"'),
            ('group', '00000000-0000-0000-0000-000000000003', 'memory.profile', '"offline"'),
            ('task', '00000000-0000-0000-0000-000000000004', 'memory.profile', 'null')
        ) given (scope, id, key, value)"#;
    assert_eq!(db.execute(labels).await, 6);
    let migration = MIGRATOR.iter().find(|migration| migration.version == PROFILES).unwrap();
    let statements = migration.sql.as_str().split(';');
    for statement in statements.filter(|text| text.contains("INSERT INTO profile")) {
        db.execute(statement).await;
    }
    let mut conn = db.conn().await;
    let kept = profiles::list_profiles(&mut conn, None).await.unwrap();
    let names: Vec<_> = kept.iter().map(|profile| profile.current.name.as_str()).collect();
    assert_eq!(names, ["careful", "planner"]);
    let default = shipped_profile(&ProfileName::default()).unwrap();
    for profile in &kept {
        let name = &profile.current.name;
        assert_eq!(*profile.current.spec, default, "{name}");
        let versions = profiles::list_versions(&mut conn, None, name, 9).await.unwrap();
        assert_eq!(versions.len(), 1, "{name}");
    }
}
