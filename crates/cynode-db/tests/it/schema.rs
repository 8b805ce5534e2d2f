use cynode_core::{
    accounts::{ApiScope, LoginMethod},
    delivery::{Destination, PullRequestState, ReviewVerdict},
    environments::{EnvironmentOrigin, EnvironmentState, PackageSource},
    events::EventKind,
    notifications::ChannelKind,
    preferences::ScopeType,
    profiles::SHIPPED_PROFILES,
    roles::UserRole,
    tasks::TaskStateName,
    workflow::{
        StepVerdict, WorkflowStep,
        instructions::InstructionKind,
        replays::ReplayState,
        timeline::LeaseEnd,
        units::{JobState, UnitState},
        waits::WaitReason,
    },
};
use cynode_db::{identity::service_tokens::ServiceKind, platform::schema};
use cynode_testkit_db::{NOW, TestDb};

#[tokio::test]
async fn two_processes_that_migrate_at_once_do_it_once() {
    let db = TestDb::empty().await;
    let (mut left, mut right) = (db.conn().await, db.conn().await);
    let (left, right) = tokio::join!(
        schema::migrate_schema(&mut left, NOW),
        schema::migrate_schema(&mut right, NOW)
    );
    let total = schema::MIGRATOR.iter().count();
    assert_eq!((left.unwrap().total, right.unwrap().total), (total, total));
    assert_eq!(
        schema::pending_migrations(&mut *db.conn().await).await.unwrap(),
        Vec::<String>::new()
    );
    let recorded = db.number("SELECT count(*) FROM _sqlx_migrations").await;
    assert_eq!(usize::try_from(recorded).unwrap(), total);
}

#[tokio::test]
async fn a_database_without_tables_is_told_what_it_lacks() {
    let db = TestDb::empty().await;
    let pending = schema::pending_migrations(&mut *db.conn().await).await.unwrap();
    let all = [
        "identity",
        "platform",
        "projects and tasks",
        "events",
        "nodes",
        "workflow",
        "jobs",
        "manager",
        "tools and policy",
        "audit",
        "models",
        "budgets",
        "delivery",
        "forges",
        "notifications",
        "schedules",
        "project deletion",
        "environments",
        "test results",
        "rule versions",
        "job changes and presence",
        "decided approvals",
        "web push",
        "replays takeovers and tool calls",
        "issued certificates",
        "identity providers",
        "identity hardening",
        "keyring and privileged audit",
        "backup and roles",
        "keyring loads",
        "versions",
        "identity links",
        "provider confirmations",
        "profiles",
        "memory",
        "memory ingests",
        "skills",
        "given context",
        "task profiles",
    ];
    assert_eq!(pending, all);
}

#[tokio::test]
async fn migrating_again_changes_nothing() {
    let db = TestDb::new().await;
    let migrated = schema::migrate_schema(&mut *db.conn().await, NOW).await.unwrap();
    assert_eq!(migrated.applied, 0);
}

#[tokio::test]
async fn a_database_of_something_else_is_left_alone() {
    let db = TestDb::empty().await;
    db.execute("CREATE TABLE orders (number int)").await;
    let refused = schema::migrate_schema(&mut *db.conn().await, NOW).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the database holds tables of something else, `orders` among them: CyNode needs a database of its own"
    );
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(db.texts(tables).await, ["orders"]);
}

/// A user 1 and a project 2, for rows that refer to them.
pub(crate) async fn populate(db: &TestDb) {
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
    for known in UserRole::ALL {
        assert!(takes(&db, role, known.as_str()).await, "{known:?}");
    }
    assert!(!takes(&db, role, "owner").await);

    let key = "INSERT INTO api_keys (api_key_id, user_id, name, token_hash, created_at, scopes)
        VALUES (gen_random_uuid(), '00000000-0000-0000-0000-000000000001', 'k', decode(repeat('00', 32), 'hex'), now(), ARRAY['{}'])";
    for known in ApiScope::ALL {
        assert!(takes(&db, key, known.as_str()).await, "{known:?}");
    }
    assert!(!takes(&db, key, "everything").await);

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

    let policy = "INSERT INTO mandatory_policies (scope_type, scope_id, key, value, set_by, set_at)
        VALUES ('{}', CASE WHEN '{}' = 'system' THEN '00000000-0000-0000-0000-000000000000' ELSE gen_random_uuid() END, 'k', 'true',
                '00000000-0000-0000-0000-000000000001', now())";
    for known in ScopeType::ALL {
        // Users and tasks have no policies: what they could set, they could unset.
        let bounds = !matches!(known, ScopeType::User | ScopeType::Task);
        assert_eq!(takes(&db, policy, known.as_str()).await, bounds, "{known:?}");
    }
}

#[tokio::test]
async fn the_schema_refuses_a_browser_without_keys_or_of_many_people() {
    let db = TestDb::new().await;
    populate(&db).await;
    let channel = "INSERT INTO notification_channels (scope, user_id, kind, address, sealed_secret, channel_id, name, event_kinds,
            min_gap_seconds, enabled, created_by, created_at, updated_at)
        SELECT {}, gen_random_uuid(), 'x', ARRAY['task.failed'], 0, true, '00000000-0000-0000-0000-000000000001'::uuid, now(), now()
        FROM generate_series(1, 1)";
    let twice = channel.replace("generate_series(1, 1)", "generate_series(1, 2)");
    let own = "'user', '00000000-0000-0000-0000-000000000001'::uuid";
    let browser = format!("{own}, 'web_push', 'https://push.example.com/1', '\\x01'::bytea");
    assert!(takes(&db, channel, &browser).await);
    assert!(!takes(&db, &twice, &browser).await, "a browser has one owner");
    let hook = format!("{own}, 'webhook', 'https://example.com/1', '\\x01'::bytea");
    assert!(takes(&db, &twice, &hook).await);
    let bare = format!("{own}, 'web_push', 'https://push.example.com/1', NULL::bytea");
    assert!(!takes(&db, channel, &bare).await);
    let shared =
        "'installation', NULL::uuid, 'web_push', 'https://push.example.com/1', '\\x01'::bytea";
    assert!(!takes(&db, channel, shared).await);
}

/// The words that a CHECK of a table's column admits.
async fn admitted(db: &TestDb, table: &str, column: &str) -> Vec<String> {
    let query = "SELECT string_agg(pg_get_constraintdef(c.oid), ' ') FROM pg_constraint c
        WHERE c.conrelid = to_regclass($1) AND c.contype = 'c'";
    let text: String = sqlx::query_scalar(query).bind(table).fetch_one(&db.pool()).await.unwrap();
    // `column = ANY (ARRAY['a'::text, 'b'::text])`, or the arms of a CASE over the column.
    let marks = [
        format!("({column} = ANY (ARRAY["),
        format!("COALESCE({column}, "),
        format!("CASE {column}\n"),
    ];
    let at = marks.iter().find_map(|mark| text.find(mark.as_str())).unwrap();
    let rest = &text[at..];
    let words: Vec<String> = if rest.starts_with("CASE") {
        rest.split("WHEN '").skip(1).map(|arm| arm.split('\'').next().unwrap().to_owned()).collect()
    } else {
        let list = &rest[rest.find("ARRAY[").unwrap()..];
        let list = &list[..list.find(']').unwrap()];
        list.split('\'').skip(1).step_by(2).map(ToOwned::to_owned).collect()
    };
    assert!(!words.is_empty(), "{text}");
    words
}

#[tokio::test]
async fn the_schema_and_the_types_know_the_same_words_of_a_workflow() {
    fn names<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str) -> Vec<String> {
        all.iter().map(|one| name(*one).to_owned()).collect()
    }
    let db = TestDb::new().await;
    let steps = names(&WorkflowStep::ALL, WorkflowStep::as_str);
    assert_eq!(admitted(&db, "workflow_checkpoints", "last_step").await, steps);
    assert_eq!(admitted(&db, "workflow_checkpoints", "next_step").await, steps);
    let verdicts = names(&StepVerdict::ALL, StepVerdict::as_str);
    assert_eq!(admitted(&db, "workflow_transitions", "verdict").await, verdicts);
    let units = names(UnitState::ALL, UnitState::as_str);
    assert_eq!(admitted(&db, "work_units", "state").await, units);
    let mut jobs = names(JobState::ALL, JobState::as_str);
    let mut known = admitted(&db, "jobs", "state").await;
    jobs.sort();
    known.sort();
    assert_eq!(known, jobs);
    let states = names(PullRequestState::ALL, PullRequestState::as_str);
    assert_eq!(admitted(&db, "pull_requests", "state").await, states);
    let places = names(Destination::ALL, Destination::as_str);
    assert_eq!(admitted(&db, "pull_requests", "forge").await, places);
    let opinions = names(ReviewVerdict::ALL, ReviewVerdict::as_str);
    assert_eq!(admitted(&db, "pull_request_reviews", "verdict").await, opinions);
    let reasons = names(&WaitReason::ALL, WaitReason::as_str);
    assert_eq!(admitted(&db, "waits", "reason").await, reasons);
    let ends = names(&LeaseEnd::ALL, LeaseEnd::as_str);
    assert_eq!(admitted(&db, "lease_takeovers", "ended_by").await, ends);
    let replays = names(&ReplayState::ALL, ReplayState::as_str);
    assert_eq!(admitted(&db, "decision_replays", "state").await, replays);
    let kinds = names(&InstructionKind::ALL, InstructionKind::as_str);
    assert_eq!(admitted(&db, "task_instructions", "kind").await, kinds);
    let channels = names(&ChannelKind::ALL, ChannelKind::as_str);
    assert_eq!(admitted(&db, "notification_channels", "kind").await, channels);
    let methods = names(&LoginMethod::ALL, LoginMethod::as_str);
    assert_eq!(admitted(&db, "user_sessions", "login_method").await, methods);
    let sources = names(&PackageSource::ALL, PackageSource::as_str);
    assert_eq!(admitted(&db, "package_fetches", "source").await, sources);
    let states = admitted(&db, "project_environments", "state").await;
    let read = states.iter().filter_map(|name| EnvironmentState::from_name(name));
    assert_eq!(read.map(EnvironmentState::as_str).collect::<Vec<_>>(), states);
    let origins = admitted(&db, "project_environments", "origin").await;
    let read = origins.iter().filter_map(|name| EnvironmentOrigin::from_name(name));
    assert_eq!(read.map(EnvironmentOrigin::as_str).collect::<Vec<_>>(), origins);
    let holders = admitted(&db, "issued_certificates", "kind").await;
    let services = holders.iter().filter_map(|name| ServiceKind::from_name(name));
    let read: Vec<_> = ["node"].into_iter().chain(services.map(ServiceKind::as_str)).collect();
    assert_eq!(read, holders);
}

/// The tables whose exact shape the page of the contract must say.
const DOCUMENTED: [&str; 9] = [
    "workflow_runs",
    "workflow_leases",
    "lease_takeovers",
    "workflow_checkpoints",
    "workflow_transitions",
    "work_units",
    "jobs",
    "waits",
    "task_instructions",
];

#[tokio::test]
async fn the_page_of_the_contract_says_the_exact_shape_of_every_table() {
    let db = TestDb::new().await;
    let page = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/explanation/workflow.md"
    ));
    let page = page.unwrap();
    for table in DOCUMENTED {
        let query = "SELECT a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
                || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
            FROM pg_attribute a WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 ORDER BY a.attnum";
        let columns: Vec<String> =
            sqlx::query_scalar(query).bind(table).fetch_all(&db.pool()).await.unwrap();
        let shape = format!("```text\n{table}\n  {}\n```", columns.join("\n  "));
        assert!(
            page.contains(&shape),
            "S002-40, S002-41, S002-45, S002-55, S002-57, S002-61, B023-07, B023-08: docs/explanation/workflow.md must \
             hold:\n{shape}"
        );
        let by_task = columns.iter().any(|column| column == "task_id uuid not null");
        let by_thread = columns.iter().any(|column| column.contains("thread"));
        assert!(by_task && !by_thread, "S002-35: {table}");
    }
}

#[tokio::test]
async fn no_stored_profile_has_the_name_of_one_that_comes_with_the_product() {
    let db = TestDb::new().await;
    populate(&db).await;
    let insert = "INSERT INTO profiles (profile_id, name, version, spec, created_at, updated_at, updated_by)
        SELECT gen_random_uuid(), name, 1, '{\"tools\": []}', now(), now(), '00000000-0000-0000-0000-000000000001'
        FROM unnest(ARRAY[{}]) AS name";
    for name in SHIPPED_PROFILES {
        assert!(!takes(&db, insert, &format!("'{name}'")).await, "{name}");
    }
    assert!(takes(&db, insert, "'mine'").await);
    assert!(!takes(&db, insert, "'mine', 'mine'").await, "B001-14: one name, one profile");
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
