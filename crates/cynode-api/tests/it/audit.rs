//! What a verification of the audit log finds: records that lost their signatures, events without records, chains that were cut off.

use cynode_app::{
    Clock,
    tools::audit::{self, KeptHeads, Report, VerificationScope, sinks},
};
use cynode_testkit::{Client, TestApp, inbox::WebhookInbox};
use serde_json::{Value, json};
use time::Duration;

/// Records a privileged event, and chains it.
async fn create_group(app: &TestApp, admin: &Client, name: &str) {
    admin.post("/v1/groups", json!({ "name": name })).await.expect(201);
    audit::chain_privileged_events(&app.app).await.unwrap();
}

/// Signs the head of the open chain: time passes until one is due.
async fn sign_head(app: &TestApp) {
    app.clock.advance(Duration::minutes(2));
    audit::chain_privileged_events(&app.app).await.unwrap();
}

/// An installation with a chain of two records under a signed head.
async fn chained_app() -> (TestApp, Client) {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    create_group(&app, &admin, "ops").await;
    create_group(&app, &admin, "devs").await;
    sign_head(&app).await;
    (app, admin)
}

async fn verify(app: &TestApp) -> Report {
    audit::verify_audit_log(&app.app, &app.public_keys()).await.unwrap()
}

async fn verify_within(app: &TestApp, scope: &VerificationScope) -> Vec<String> {
    let keys = app.public_keys();
    audit::verify_audit_log_within(&app.app, &keys, scope).await.unwrap().problems
}

/// The problems without the names of their chains.
fn told(problems: &[String]) -> Vec<&str> {
    problems.iter().map(|text| text.split_once(": ").map_or(&**text, |(_, rest)| rest)).collect()
}

#[tokio::test]
async fn records_that_lost_their_signed_heads_do_not_verify() {
    let (app, _) = chained_app().await;
    assert_eq!(verify(&app).await.problems, Vec::<String>::new());
    app.db.execute("DELETE FROM audit_checkpoints").await;
    // A chain that has just begun has no head yet.
    assert_eq!(verify(&app).await.problems, Vec::<String>::new());
    app.clock.advance(Duration::minutes(3));
    let problems = verify(&app).await.problems;
    assert_eq!(told(&problems), ["it has no signed head: its records may have been changed"]);
    let allowed = VerificationScope { allow_unproven: true, ..VerificationScope::default() };
    assert_eq!(verify_within(&app, &allowed).await, Vec::<String>::new());
}

#[tokio::test]
async fn records_that_no_head_covers_for_five_minutes_do_not_verify() {
    let (app, admin) = chained_app().await;
    let read_at = app.clock.now();
    create_group(&app, &admin, "later").await;
    assert_eq!(verify(&app).await.problems, Vec::<String>::new());
    app.clock.advance(Duration::minutes(5));
    let problems = verify(&app).await.problems;
    let wanted = "1 records are older than 5 minutes, and no signed head covers them";
    assert_eq!(told(&problems), [wanted]);
    // A backup is as it was when it was taken.
    let backup = VerificationScope { as_of: Some(read_at), ..VerificationScope::default() };
    assert_eq!(verify_within(&app, &backup).await, Vec::<String>::new());
    audit::chain_privileged_events(&app.app).await.unwrap();
    assert_eq!(verify(&app).await.problems, Vec::<String>::new());
}

#[tokio::test]
async fn a_privileged_event_without_a_record_is_found() {
    let (app, admin) = chained_app().await;
    // Somebody takes an event from the queue, so that it gets no record.
    admin.post("/v1/groups", json!({ "name": "secret" })).await.expect(201);
    app.db.execute("DELETE FROM privileged_event_queue").await;
    // Somebody adds an event that never was.
    app.db
        .execute(
            "INSERT INTO events (occurred_at, kind, trace_id, data)
             SELECT max(occurred_at), 'user.updated', repeat('0', 32), '{}' FROM events",
        )
        .await;
    assert_eq!(verify(&app).await.problems, Vec::<String>::new(), "it may be on its way");
    app.clock.advance(Duration::minutes(2));
    let problems = verify(&app).await.problems;
    let kinds: Vec<_> = problems.iter().filter_map(|text| text.split('`').nth(1)).collect();
    assert_eq!(kinds, ["group.created", "user.updated"], "{problems:?}");
    assert!(problems.iter().all(|text| text.contains("has no record")), "{problems:?}");
}

#[tokio::test]
async fn events_that_a_person_causes_are_privileged_and_those_that_only_happen_are_not() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let task = json!({ "project_id": project, "description": "Wait.", "name": "wait" });
    admin.post("/v1/tasks", task).await.expect(201);
    admin.post("/v1/tasks/wait/cancel?project=web", json!(null)).await.expect(200);
    audit::chain_privileged_events(&app.app).await.unwrap();
    let found = admin.get("/v1/audit").await.expect(200).json();
    let reasons: Vec<_> =
        found["items"].as_array().unwrap().iter().map(|it| &it["reason"]).collect();
    assert!(reasons.contains(&&json!("task.cancelled")), "{reasons:?}");
    assert!(!reasons.contains(&&json!("task.created")), "{reasons:?}");
}

#[tokio::test]
async fn a_month_of_events_that_was_dropped_is_counted_and_no_problem() {
    let (app, _) = chained_app().await;
    let records = verify(&app).await.records;
    app.db.execute("DELETE FROM events").await;
    let problems = verify(&app).await.problems;
    assert_eq!(told(&problems), ["the event of record 0 was removed"]);
    app.db.execute("ALTER TABLE events DETACH PARTITION events_2026_11").await;
    let report = verify(&app).await;
    assert_eq!((report.problems, report.dropped_events), (Vec::new(), records));
}

#[tokio::test]
async fn a_head_that_was_kept_elsewhere_finds_what_was_cut_off() {
    let (app, admin) = chained_app().await;
    app.db
        .execute(
            "UPDATE user_sessions SET expires_at = expires_at + interval '30 days',
                 last_used_at = last_used_at + interval '25 hours'",
        )
        .await;
    app.clock.advance(Duration::hours(25));
    create_group(&app, &admin, "later").await;
    sign_head(&app).await;
    let heads = admin.get("/v1/audit/head").await.expect(200).json();
    let kept = |value: &Value| KeptHeads::parse_text(&value.to_string()).unwrap();
    let scope = |kept| VerificationScope { kept, ..VerificationScope::default() };
    let all = kept(&heads);
    assert_eq!((all.registry.len(), all.checkpoints.len()), (1, 2));
    assert_eq!(verify_within(&app, &scope(all.clone())).await, Vec::<String>::new());

    // The newest chain is cut off with its events: nothing that is left names it.
    for statement in [
        "DELETE FROM audit_records WHERE chain_id = (SELECT chain_id FROM audit_chains WHERE number = 2)",
        "DELETE FROM audit_checkpoints WHERE chain_id = (SELECT chain_id FROM audit_chains WHERE number = 2)",
        "DELETE FROM audit_chains WHERE number = 2",
        "DELETE FROM events WHERE occurred_at > (SELECT started_at + interval '1 hour' FROM audit_chains)",
    ] {
        app.db.execute(statement).await;
    }
    assert_eq!(verify(&app).await.problems, Vec::<String>::new(), "it looks whole");
    let registry = KeptHeads { checkpoints: Vec::new(), ..all.clone() };
    let cut_off =
        "a head that was kept elsewhere is of 2 chains, and there are 1: chains were cut off";
    assert_eq!(verify_within(&app, &scope(registry)).await, [cut_off]);
    let signed = KeptHeads { registry: Vec::new(), ..all.clone() };
    let problems = verify_within(&app, &scope(signed)).await;
    assert_eq!(told(&problems), ["a head of this chain was kept elsewhere, and the chain is gone"]);

    // The end of a chain that stays is cut off.
    for statement in [
        "DELETE FROM audit_records WHERE seq > 0",
        "DELETE FROM audit_checkpoints",
        "DELETE FROM events WHERE seq = (SELECT max(seq) FROM events WHERE kind = 'group.created')",
    ] {
        app.db.execute(statement).await;
    }
    let signed = heads["heads"].as_array().unwrap().iter().find(|head| head["number"] == 1);
    let problems = verify_within(&app, &scope(kept(signed.unwrap()))).await;
    assert_eq!(told(&problems), ["a checkpoint covers 2 records and there are 1"]);
}

#[tokio::test]
async fn an_event_that_cannot_be_recorded_as_it_is_keeps_no_other_from_its_record() {
    let (app, admin) = chained_app().await;
    app.db
        .execute(
            "WITH event AS (
                 INSERT INTO events (occurred_at, kind, trace_id, data)
                 SELECT max(occurred_at), 'a.' || repeat('b', 70), repeat('0', 32), '{}' FROM events
                 RETURNING xact, seq, occurred_at)
             INSERT INTO privileged_event_queue (xact, seq, occurred_at) SELECT * FROM event",
        )
        .await;
    admin.post("/v1/groups", json!({ "name": "behind" })).await.expect(201);
    assert_eq!(audit::chain_privileged_events(&app.app).await.unwrap(), 2);
    let records = app.db.texts("SELECT reason FROM audit_records ORDER BY seq DESC LIMIT 2").await;
    assert_eq!(records, ["group.created", "event.unfit"]);
    sign_head(&app).await;
    assert_eq!(verify(&app).await.problems, Vec::<String>::new());
    // The record has the digest of the event: a change of it is found like any other.
    app.db.execute("UPDATE events SET data = '{\"a\":1}' WHERE kind LIKE 'a.%'").await;
    let problems = verify(&app).await.problems;
    assert_eq!(told(&problems), ["the event of record 2 was changed"]);
}

#[tokio::test]
async fn heads_are_delivered_before_records_and_that_of_an_open_chain_always() {
    let (app, admin) = chained_app().await;
    // Many processes came and went since the chain of privileged events was begun.
    app.db
        .execute(
            "INSERT INTO audit_chains (chain_id, number, previous_hash, writer, started_at, signature)
             SELECT gen_random_uuid(), n, decode(repeat('00', 32), 'hex'), 'gateway', c.started_at, c.signature
             FROM audit_chains c, generate_series(2, 40) n",
        )
        .await;
    app.db
        .execute(
            "INSERT INTO audit_checkpoints (chain_id, size, root, head, signed_at, closed, signature)
             SELECT c.chain_id, 0, k.root, k.head, k.signed_at, true, k.signature
             FROM audit_chains c, audit_checkpoints k WHERE c.number > 1",
        )
        .await;
    let hook = WebhookInbox::start().await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    hook.trust(secret);
    let body = json!({ "target": { "kind": "webhook", "url": hook.url() }, "secret": secret });
    admin.put("/v1/audit/sinks/hook", body).await.expect(200);
    let exporter = sinks::AuditExporter::new().unwrap();
    sinks::export_once(&app.app, &exporter).await.unwrap();
    let first = hook.messages().remove(0).body["data"]["events"].as_array().unwrap().clone();
    let heads: Vec<_> = first.iter().map(|it| &it["unmapped"]["checkpoint"]).collect();
    assert_eq!(heads.iter().filter(|head| head["closed"] == true).count(), 20);
    let own: Vec<_> = heads.iter().filter(|head| head["closed"] == false).collect();
    assert_eq!((own.len(), &own[0]["size"]), (1, &json!(2)));
}

#[tokio::test]
async fn a_login_is_exported_with_its_user_and_its_address() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let hook = WebhookInbox::start().await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    hook.trust(secret);
    let body = json!({ "target": { "kind": "webhook", "url": hook.url() }, "secret": secret });
    admin.put("/v1/audit/sinks/hook", body).await.expect(200);
    let password = "correct horse battery";
    let user = json!({ "handle": "ada", "display_name": "Ada", "password": password });
    let user = admin.post("/v1/users", user).await.expect(201).json();
    let login = json!({ "handle": "ada", "password": password });
    app.anonymous().post("/v1/sessions", login).await.expect(201);
    audit::chain_privileged_events(&app.app).await.unwrap();
    sinks::export_once(&app.app, &sinks::AuditExporter::new().unwrap()).await.unwrap();
    let messages = hook.messages();
    let mut events = messages.iter().flat_map(|it| it.body["data"]["events"].as_array().unwrap());
    let login = events.rfind(|event| event["class_uid"] == 3002).unwrap();
    assert_eq!(login["user"]["uid"].as_str(), uuid_of(&user["id"]).as_deref());
    assert_eq!(login["src_endpoint"], json!({ "ip": "127.0.0.1" }));
}

/// The UUID of an id.
fn uuid_of(id: &Value) -> Option<String> {
    let id: cynode_core::ids::UserId = id.as_str()?.parse().ok()?;
    Some(id.as_uuid().to_string())
}
