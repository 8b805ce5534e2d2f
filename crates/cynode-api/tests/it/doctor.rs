//! The diagnosis of an installation.

use cynode_core::roles::UserRole;
use cynode_testkit::TestApp;
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
