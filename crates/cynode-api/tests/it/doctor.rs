//! The diagnosis of an installation.

use cynode_core::{releases::Release, roles::UserRole};
use cynode_testkit::TestApp;
use cynode_wire::platform::processes::ProcessKind;
use serde_json::{Value, json};

fn named(diagnosis: &Value, name: &str) -> Vec<Value> {
    let checks = diagnosis["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["name"] == name).cloned().collect()
}

#[tokio::test]
async fn an_admin_sees_what_the_server_can_check_and_what_to_do_about_it() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let body = json!({ "kind": "compatible", "base_url": "http://127.0.0.1:9/v1" });
    admin.put("/v1/providers/tape", body).await.expect(200);
    let diagnosis = admin.get("/v1/doctor").await.expect(200).json();
    assert_eq!(
        named(&diagnosis, "storage"),
        [json!({ "name": "storage", "state": "ok", "detail": "files can be stored and read" })]
    );
    assert_eq!(
        named(&diagnosis, "provider"),
        [
            json!({ "name": "provider", "state": "unknown", "detail": "`tape` was not called within the last hour",
            "fix": "call one of its models, for example with `cynork chat`" })
        ]
    );
    // The clock of a test stands still.
    assert_eq!(named(&diagnosis, "clock")[0]["state"], "fail");
    assert_eq!(diagnosis["state"], "fail");
    assert_eq!(named(&diagnosis, "nodes")[0]["blocks_work"], true);
    assert_eq!(named(&diagnosis, "backups")[0]["state"], "unknown");
    // Tests connect as the owner of the cluster.
    assert_eq!(named(&diagnosis, "database role")[0]["state"], "warn");
    for name in [
        "database",
        "schema",
        "partitions",
        "admin",
        "manager",
        "models",
        "versions",
        "keys",
        "privileged events",
    ] {
        assert_eq!(named(&diagnosis, name).len(), 1, "{name}: {diagnosis}");
    }
    for check in diagnosis["checks"].as_array().unwrap() {
        assert!(check["state"] == "ok" || check["fix"].is_string(), "{check}");
    }
}

const FAILED_CALL: &str = "
    INSERT INTO model_calls (call_id, started_at, user_id, credential, trace_id, dialect, model, provider, upstream,
        prompt_digest, redactions, streamed, outcome, error, basis, input_tokens, cached_tokens, cache_write_tokens,
        output_tokens, reasoning_tokens, cost_micros)
    SELECT gen_random_uuid(), '2026-11-01T11:30Z', user_id, 'session', repeat('0', 32), 'chat', 'm', 'tape', 'm',
        decode(repeat('00', 32), 'hex'), 0, false, 'failed', '429 from there', 'free', 0, 0, 0, 0, 0, 0 FROM users LIMIT 1";
const ANSWERED_CALL: &str = "
    INSERT INTO model_calls (call_id, started_at, user_id, credential, trace_id, dialect, model, provider, upstream,
        prompt_digest, redactions, streamed, outcome, error, basis, input_tokens, cached_tokens, cache_write_tokens,
        output_tokens, reasoning_tokens, cost_micros)
    SELECT gen_random_uuid(), '2026-11-01T11:31Z', user_id, 'session', repeat('0', 32), 'chat', 'm', 'tape', 'm',
        decode(repeat('00', 32), 'hex'), 0, false, 'answered', NULL, 'free', 0, 0, 0, 0, 0, 0 FROM users LIMIT 1";

#[tokio::test]
async fn a_provider_whose_last_call_failed_is_named_with_its_error() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let body = json!({ "kind": "compatible", "base_url": "http://127.0.0.1:9/v1" });
    admin.put("/v1/providers/tape", body).await.expect(200);
    let check = async || {
        let diagnosis = admin.get("/v1/doctor").await.expect(200).json();
        let check = named(&diagnosis, "provider").remove(0);
        json!([check["state"], check["detail"]])
    };
    app.db.execute(FAILED_CALL).await;
    assert_eq!(check().await, json!(["warn", "the last call of `tape` failed: 429 from there"]));
    app.db.execute(ANSWERED_CALL).await;
    let good = "`tape` answers; 1 of 2 calls of the last hour failed";
    assert_eq!(check().await, json!(["ok", good]));
}

#[tokio::test]
async fn only_admins_of_the_installation_see_the_diagnosis() {
    let app = TestApp::new().await;
    let operator = app.user("operator", Some(UserRole::Operator)).await;
    operator.get("/v1/doctor").await.expect(403);
}

#[tokio::test]
async fn an_admin_sees_every_release_that_is_used_and_which_does_not_fit() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let own = Release::current();
    let next = Release::new(0, 2, 0);
    app.app.note_release(ProcessKind::Manager, "up", own).await;
    app.app.note_release(ProcessKind::Analyst, "up", next).await;
    // A command line of the next release, and later the one of this release by the same person.
    admin.with_header("cynode-release", &next.to_string()).get("/v1/me").await.expect(200);
    app.clock.advance(time::Duration::minutes(5));
    admin.with_header("cynode-release", &own.to_string()).get("/v1/me").await.expect(200);
    let listed = admin.get("/v1/processes").await.expect(200).json();
    let facts: Vec<Value> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["kind"] != "database")
        .map(|it| json!([it["kind"], it["name"], it["version"], it["present"], it["skewed"]]))
        .collect();
    assert_eq!(
        facts,
        [
            json!(["manager", "up", own.to_string(), false, false]),
            json!(["analyst", "up", "0.2.0", false, true]),
            json!(["command_line", "admin", own.to_string(), true, false]),
            json!(["command_line", "admin", "0.2.0", false, false]),
        ]
    );
    let databases = listed["items"].as_array().unwrap().iter();
    assert_eq!(databases.filter(|it| it["kind"] == "database").count(), 1);
}

#[tokio::test]
async fn an_admin_sees_the_backups_with_their_last_verification_and_who_can_open_them() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    assert_eq!(admin.get("/v1/backups").await.expect(200).json(), json!({ "items": [] }));
    let recorded = "INSERT INTO backups
        (backup_id, taken_at, completed_at, location, program_version, bytes, verified_at, problems, recipients)
        VALUES ('00000000-0000-0000-0000-000000000001', '2026-11-01T03:00Z', '2026-11-01T03:01Z', '/backups/one', '0.1.0', 7, NULL,
            '{}', '{age1reader}'),
        ('00000000-0000-0000-0000-000000000002', '2026-11-01T05:00Z', '2026-11-01T05:01Z', '/backups/two', '0.1.0', 8,
            '2026-11-01T06:00Z', '{a task is missing}', '{}')";
    app.db.execute(recorded).await;
    let expected = json!({ "items": [
        {
            "backup_id": "00000000-0000-0000-0000-000000000002", "taken_at": "2026-11-01T05:00:00Z",
            "completed_at": "2026-11-01T05:01:00Z", "location": "/backups/two", "program_version": "0.1.0", "bytes": 8,
            "recipients": [], "verified_at": "2026-11-01T06:00:00Z", "problems": ["a task is missing"],
        },
        {
            "backup_id": "00000000-0000-0000-0000-000000000001", "taken_at": "2026-11-01T03:00:00Z",
            "completed_at": "2026-11-01T03:01:00Z", "location": "/backups/one", "program_version": "0.1.0", "bytes": 7,
            "recipients": ["age1reader"], "problems": [],
        },
    ] });
    assert_eq!(admin.get("/v1/backups").await.expect(200).json(), expected);
}
