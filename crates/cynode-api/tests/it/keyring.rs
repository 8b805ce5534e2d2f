//! Keys of the installation: rotation while it is used, and the export of audit records.

use std::{path::Path, sync::Arc};

use cynode_app::{
    App, AppEnvironment, Clock,
    background::key_rotation::{self, KeyringProcess},
    platform::{
        keys::{
            self, FixedKeyStore, InstallationKeys, KeyPurpose, KeyringChange, LocalMasterKeys,
            MasterKeyService, VaultOptions, VaultTransit,
        },
        tokens::{self, TokenKind},
    },
    tools::audit::{self, sinks},
};
use cynode_core::roles::UserRole;
use cynode_testkit::{
    Client, TestApp,
    inbox::{ObjectInbox, SyslogInbox, WebhookInbox},
    kms::{FakeVault, VAULT_TOKEN},
};
use serde_json::{Value, json};
use time::Duration;
use tokio::net::TcpListener;

/// Longer than any process needs to learn about a new key and to settle.
const SETTLED: Duration = Duration::seconds(30);

async fn begin(app: &App, purpose: KeyPurpose) {
    let change = KeyringChange { purpose, at_once: true };
    keys::begin_rotation(app, change).await.unwrap();
}

/// Rotates a key to its end.
async fn rotate(app: &TestApp, purpose: KeyPurpose) {
    begin(&app.app, purpose).await;
    // The new key is loaded before it is used.
    key_rotation::advance_rotations(&app.app).await.unwrap();
    app.clock.advance(SETTLED);
    for _ in 0..10 {
        let step = key_rotation::advance_rotations(&app.app).await.unwrap();
        assert_eq!(step.stuck, Vec::<String>::new());
        if step.finished {
            return;
        }
        app.clock.advance(SETTLED);
    }
    panic!("the rotation does not end");
}

async fn states(admin: &Client, purpose: &str) -> Vec<String> {
    let keyring = admin.get("/v1/keyring").await.expect(200).json();
    let keys = keyring["keys"].as_array().unwrap().iter();
    let own = keys.filter(|key| key["purpose"] == purpose);
    own.map(|key| key["state"].as_str().unwrap().to_owned()).collect()
}

/// Gives the installation one secret of each simple kind.
async fn add_secrets(admin: &Client, count: usize) {
    let provider = json!({ "kind": "compatible", "base_url": "http://127.0.0.1:9/v1" });
    admin.put("/v1/providers/tape", provider).await.expect(200);
    for number in 0..count {
        let body = json!({ "label": format!("label-{number}"), "key": "a-secret-key" });
        admin.post("/v1/providers/tape/keys", body).await.expect(201);
    }
}

const OLD_SECRETS: &str =
    "SELECT count(*) FROM provider_keys WHERE sealed_by = '00000000-0000-8000-8000-000000000001'";

#[tokio::test]
async fn after_a_rotation_every_secret_opens_with_the_new_key_and_the_old_one_is_gone() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    add_secrets(&admin, 3).await;
    assert_eq!(app.db.number(OLD_SECRETS).await, 3);
    rotate(&app, KeyPurpose::Master).await;
    assert_eq!(states(&admin, "master").await, ["retired", "active"]);
    assert_eq!(app.db.number(OLD_SECRETS).await, 0);
    // The first signing and token keys followed from the old master key, so they are gone too.
    assert_eq!(states(&admin, "signing").await, ["retired", "active"]);
    assert_eq!(states(&admin, "token").await, ["retired", "active"]);
    let left = "SELECT count(*) FROM installation_keys WHERE retired_at IS NOT NULL AND wrapped IS NOT NULL";
    assert_eq!(app.db.number(left).await, 0);

    // A process that starts now opens everything; one with the old master key opens nothing.
    let again = app.app.installation_keys().unwrap().open_again(&app.app).await.unwrap();
    assert_eq!(again.public_keys(), app.public_keys());
    let old =
        LocalMasterKeys::new(Box::new(FixedKeyStore::new([7; 32])), AppEnvironment::from_system());
    assert!(InstallationKeys::open_keyring(&app.app, Arc::new(old)).await.is_err());
    // The provider's keys are used as before: the registry can be loaded.
    let listed = admin.get("/v1/providers").await.expect(200).json();
    assert_eq!(listed["items"][0]["keys"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn writers_at_the_same_moment_lose_nothing() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    add_secrets(&admin, 1).await;
    let write = async {
        for number in 0..60 {
            let body = json!({ "label": format!("during-{number}"), "key": "another-secret" });
            admin.post("/v1/providers/tape/keys", body).await.expect(201);
        }
    };
    let turn = async {
        begin(&app.app, KeyPurpose::Master).await;
        for _ in 0..30 {
            app.clock.advance(Duration::seconds(1));
            key_rotation::advance_rotations(&app.app).await.unwrap();
        }
    };
    tokio::join!(write, turn);
    rotate_to_end(&app).await;
    assert_eq!(app.db.number("SELECT count(*) FROM provider_keys").await, 61);
    assert_eq!(app.db.number(OLD_SECRETS).await, 0);
    assert_eq!(states(&admin, "master").await, ["retired", "active"]);
}

async fn rotate_to_end(app: &TestApp) {
    for _ in 0..10 {
        app.clock.advance(SETTLED);
        if key_rotation::advance_rotations(&app.app).await.unwrap().finished {
            return;
        }
    }
    panic!("the rotation does not end");
}

#[tokio::test]
async fn a_rotation_that_was_killed_goes_on_in_another_process() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    add_secrets(&admin, 220).await;
    begin(&app.app, KeyPurpose::Master).await;
    app.clock.advance(SETTLED);
    let step = key_rotation::advance_by_batches(&app.app, 1).await.unwrap();
    assert!(!step.finished && step.changed >= 200, "{step:?}");
    assert_eq!(app.db.number(OLD_SECRETS).await, 20);

    let (other, _) = app.replica_app();
    let keys = app.app.installation_keys().unwrap().open_again(&other).await.unwrap();
    let other = other.with_keys(keys);
    // A repeated command begins nothing new.
    let change = KeyringChange { purpose: KeyPurpose::Master, at_once: true };
    assert!(keys::begin_rotation(&other, change).await.unwrap().is_empty());
    for _ in 0..10 {
        app.clock.advance(SETTLED);
        if key_rotation::advance_rotations(&other).await.unwrap().finished {
            break;
        }
    }
    assert_eq!(app.db.number(OLD_SECRETS).await, 0);
    assert_eq!(states(&admin, "master").await, ["retired", "active"]);
}

/// A second process over the same database, with the keys that it has loaded until now.
async fn replica(app: &TestApp, name: &str) -> (App, KeyringProcess) {
    let (other, _) = app.replica_app();
    let keys = app.app.installation_keys().unwrap().open_again(&other).await.unwrap();
    let other = other.with_keys(keys);
    let id = other.environment().new_uuid(app.clock.now());
    let process = KeyringProcess { id, name: name.to_owned() };
    key_rotation::report_loads(&other, &process).await.unwrap();
    (other, process)
}

#[tokio::test]
async fn a_rotation_waits_for_every_live_process_and_names_the_one_that_lacks_the_key() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    add_secrets(&admin, 1).await;
    let (other, process) = replica(&app, "web-2 127.0.0.1:7402").await;
    begin(&app.app, KeyPurpose::Master).await;
    // It lives and does not load the new key: its copy of the master key is another one.
    for _ in 0..4 {
        app.clock.advance(SETTLED);
        key_rotation::report_loads(&other, &process).await.unwrap();
        let step = key_rotation::advance_rotations(&app.app).await.unwrap();
        assert_eq!(step.waiting_for, ["web-2 127.0.0.1:7402"]);
        assert_eq!((step.changed, step.retired, step.finished), (0, 0, false));
    }
    assert_eq!(app.db.number(OLD_SECRETS).await, 1);
    let keyring = admin.get("/v1/keyring").await.expect(200).json();
    assert_eq!(keyring["waiting_for"], json!(["web-2 127.0.0.1:7402"]));

    key_rotation::advance_rotations(&other).await.unwrap();
    key_rotation::report_loads(&other, &process).await.unwrap();
    for _ in 0..3 {
        app.clock.advance(SETTLED);
        key_rotation::report_loads(&other, &process).await.unwrap();
        key_rotation::advance_rotations(&app.app).await.unwrap();
    }
    assert_eq!(app.db.number(OLD_SECRETS).await, 0);
    assert_eq!(states(&admin, "master").await, ["retired", "active"]);
    assert_eq!(states(&admin, "token").await, ["retired", "active"]);
}

#[tokio::test]
async fn a_rotation_goes_on_a_minute_after_a_process_died() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    replica(&app, "died").await;
    begin(&app.app, KeyPurpose::Token).await;
    app.clock.advance(SETTLED);
    let step = key_rotation::advance_rotations(&app.app).await.unwrap();
    assert_eq!((step.waiting_for, step.finished), (vec!["died".to_owned()], false));
    app.clock.advance(SETTLED);
    rotate_to_end(&app).await;
    assert_eq!(states(&admin, "token").await, ["retired", "active"]);
}

#[tokio::test]
async fn a_key_becomes_active_later_while_a_live_process_lacks_it() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (other, process) = replica(&app, "slow").await;
    begin(&app.app, KeyPurpose::Token).await;
    for _ in 0..5 {
        // Ten of its fifteen seconds are over, and it gets fifteen more.
        app.clock.advance(Duration::seconds(10));
        key_rotation::report_loads(&other, &process).await.unwrap();
        key_rotation::advance_rotations(&app.app).await.unwrap();
        assert_eq!(states(&admin, "token").await, ["active", "staged"]);
    }
    key_rotation::advance_rotations(&other).await.unwrap();
    key_rotation::report_loads(&other, &process).await.unwrap();
    app.clock.advance(Duration::seconds(15));
    assert_eq!(states(&admin, "token").await, ["retiring", "active"]);
}

#[tokio::test]
async fn the_keyring_shows_the_master_key_and_the_end_that_is_missing() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let master = async || admin.get("/v1/keyring").await.expect(200).json()["master_key"].clone();
    let first = master().await;
    assert_eq!((&first["place"], &first["unfinished"]), (&json!("memory"), &json!(false)));
    rotate(&app, KeyPurpose::Master).await;
    let rotated = master().await;
    assert!(rotated["version"].as_str().unwrap().starts_with("local:"), "{rotated}");
    assert_eq!(rotated["unfinished"], true);
    let keys = app.app.installation_keys().unwrap();
    keys.finish_master_rotation(&app.app).await.unwrap();
    assert_eq!(master().await["unfinished"], false);
}

#[tokio::test]
async fn a_secret_that_cannot_be_opened_keeps_its_key() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    add_secrets(&admin, 1).await;
    app.db
        .execute(
            "UPDATE provider_keys SET sealed_key = overlay(sealed_key placing '\\x0000' from 60)",
        )
        .await;
    begin(&app.app, KeyPurpose::Master).await;
    app.clock.advance(SETTLED);
    let step = key_rotation::advance_rotations(&app.app).await.unwrap();
    assert_eq!(step.stuck, ["key `label-0` of the provider `tape`"]);
    app.clock.advance(SETTLED);
    key_rotation::advance_rotations(&app.app).await.unwrap();
    assert_eq!(states(&admin, "master").await, ["retiring", "active"]);
    let key = admin.get("/v1/providers").await.expect(200).json()["items"][0]["keys"][0]["key_id"]
        .as_str()
        .unwrap()
        .to_owned();
    admin.delete(&format!("/v1/providers/tape/keys/{key}")).await.expect(204);
    rotate_to_end(&app).await;
    assert_eq!(states(&admin, "master").await, ["retired", "active"]);
}

#[tokio::test]
async fn tokens_work_before_during_and_after_a_rotation_and_unknown_ones_never() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let key = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    let by_key = admin.with_token(&key);
    let runner = app.runner().await;
    let (unknown, _) = tokens::issue_token(TokenKind::Session, &AppEnvironment::from_system());
    let stranger = admin.with_token(&unknown.0);
    let check = async || {
        admin.get("/v1/me").await.expect(200);
        by_key.get("/v1/me").await.expect(200);
        stranger.get("/v1/me").await.expect(401);
    };
    check().await;
    begin(&app.app, KeyPurpose::Token).await;
    for _ in 0..12 {
        check().await;
        key_rotation::advance_rotations(&app.app).await.unwrap();
        check().await;
        app.clock.advance(Duration::seconds(4));
    }
    assert_eq!(states(&admin, "token").await, ["retired", "active"]);
    check().await;
    let stored =
        "SELECT count(*) FROM api_keys WHERE hash_key_id = '00000000-0000-8000-8000-000000000003'";
    assert_eq!(app.db.number(stored).await, 0);
    // A second rotation begins from a real key.
    rotate(&app, KeyPurpose::Token).await;
    check().await;
    assert_eq!(states(&admin, "token").await, ["retired", "retired", "active"]);
    // New tokens are stored under the new key.
    let other = app.user("other", Some(UserRole::Viewer)).await;
    other.get("/v1/me").await.expect(200);
    drop(runner);
}

#[tokio::test]
async fn links_that_were_sent_work_until_their_key_ends() {
    let app = TestApp::new().await;
    let keys = app.app.installation_keys().unwrap();
    let tag = keys.compute_tag(&[b"link"]);
    let change = KeyringChange { purpose: KeyPurpose::Token, at_once: false };
    keys::begin_rotation(&app.app, change).await.unwrap();
    app.clock.advance(Duration::hours(23));
    key_rotation::advance_rotations(&app.app).await.unwrap();
    assert_ne!(keys.compute_tag(&[b"link"]), tag, "new links have the new key");
    assert!(keys.verify_tag(&[b"link"], &tag));
    app.clock.advance(Duration::hours(2));
    rotate_to_end(&app).await;
    assert!(!keys.verify_tag(&[b"link"], &tag));
}

#[tokio::test]
async fn records_verify_across_a_rotation_of_the_signing_key() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let before = app.verifying_key();
    admin.post("/v1/groups", json!({ "name": "devs" })).await.expect(201);
    audit::chain_privileged_events(&app.app).await.unwrap();
    app.clock.advance(Duration::minutes(2));
    audit::chain_privileged_events(&app.app).await.unwrap();
    rotate(&app, KeyPurpose::Signing).await;
    assert_ne!(app.verifying_key(), before);
    app.clock.advance(Duration::hours(25));
    // The events of the rotation close the old chain and begin another.
    audit::chain_privileged_events(&app.app).await.unwrap();
    app.clock.advance(Duration::minutes(2));
    audit::chain_privileged_events(&app.app).await.unwrap();
    let report = audit::verify_audit_log(&app.app, &app.public_keys()).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!((report.chains, report.covered), (2, report.records));
    // Without the old public key the old heads are not ours.
    let newest = app.public_keys().public_keys().last().unwrap().clone();
    let newest = audit::PublicKeyring::new(vec![newest]);
    let report = audit::verify_audit_log(&app.app, &newest).await.unwrap();
    assert!(!report.problems.is_empty());
    // A public key that somebody adds to the database is not one of ours.
    app.db
        .execute(
            "INSERT INTO installation_keys (key_id, purpose, created_at, activates_at, retired_at, public_key)
             VALUES (gen_random_uuid(), 'signing', now(), '2020-01-01', '2030-01-01', decode(repeat('11', 32), 'hex'))",
        )
        .await;
    let again = app.app.installation_keys().unwrap().open_again(&app.app).await.unwrap();
    assert_eq!(again.public_keys(), app.public_keys());
}

#[tokio::test]
async fn a_rotation_that_is_repeated_at_once_retires_no_key_before_its_successor_is_used() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    admin.post("/v1/groups", json!({ "name": "devs" })).await.expect(201);
    audit::chain_privileged_events(&app.app).await.unwrap();
    app.clock.advance(Duration::minutes(2));
    audit::chain_privileged_events(&app.app).await.unwrap();
    for purpose in KeyPurpose::ALL {
        begin(&app.app, purpose).await;
        app.clock.advance(Duration::seconds(1));
        begin(&app.app, purpose).await;
        // After the end of the old key, had it been told to end now, and before the new one is used.
        app.clock.advance(Duration::seconds(12));
        key_rotation::advance_rotations(&app.app).await.unwrap();
        // A process that starts now has a key to seal, to sign and to hash with.
        app.app.installation_keys().unwrap().open_again(&app.app).await.unwrap();
        rotate_to_end(&app).await;
    }
    // The successor endorsed the old public key, and not the old key itself.
    let own = "SELECT count(*) FROM installation_keys WHERE endorsed_by = key_id";
    assert_eq!(app.db.number(own).await, 0);
    audit::chain_privileged_events(&app.app).await.unwrap();
    app.clock.advance(Duration::minutes(2));
    audit::chain_privileged_events(&app.app).await.unwrap();
    let again = app.app.installation_keys().unwrap().open_again(&app.app).await.unwrap();
    let report = audit::verify_audit_log(&app.app, &again.public_keys()).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

#[tokio::test]
async fn privileged_events_are_chained_once_and_a_change_of_one_is_found() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    admin.post("/v1/groups", json!({ "name": "devs" })).await.expect(201);
    admin.post("/v1/projects", json!({ "slug": "web", "title": "Web" })).await.expect(201);
    let first = audit::chain_privileged_events(&app.app).await.unwrap();
    assert!(first >= 2, "{first}");
    assert_eq!(audit::chain_privileged_events(&app.app).await.unwrap(), 0);
    assert_eq!(app.db.number("SELECT count(*) FROM privileged_event_queue").await, 0);
    let found = admin.get("/v1/audit").await.expect(200).json();
    let reasons: Vec<_> =
        found["items"].as_array().unwrap().iter().map(|it| &it["reason"]).collect();
    assert!(reasons.contains(&&json!("group.created")), "{reasons:?}");
    assert_eq!(found["items"][0]["method"], audit::PRIVILEGED_METHOD);

    app.clock.advance(Duration::minutes(2));
    audit::chain_privileged_events(&app.app).await.unwrap();
    let call = found["items"][0]["call_id"].as_str().unwrap();
    admin.get(&format!("/v1/audit/{call}/proof")).await.expect(200);
    let keys = app.public_keys();
    let report = audit::verify_audit_log(&app.app, &keys).await.unwrap();
    assert_eq!((report.problems, report.records, report.covered), (Vec::new(), first, first));

    app.db
        .execute("UPDATE events SET data = '{\"name\":\"admins\"}' WHERE kind = 'group.created'")
        .await;
    let report = audit::verify_audit_log(&app.app, &keys).await.unwrap();
    assert!(report.problems[0].contains("was changed"), "{:?}", report.problems);
    app.db.execute("DELETE FROM events WHERE kind = 'group.created'").await;
    let report = audit::verify_audit_log(&app.app, &keys).await.unwrap();
    assert!(report.problems[0].contains("was removed"), "{:?}", report.problems);
}

#[tokio::test]
async fn a_refused_login_is_a_privileged_event() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let user =
        json!({ "handle": "ada", "display_name": "Ada", "password": "correct horse battery" });
    admin.post("/v1/users", user).await.expect(201);
    let wrong = json!({ "handle": "ada", "password": "wrong horse battery" });
    app.anonymous().post("/v1/sessions", wrong).await.expect(401);
    let refused =
        "SELECT count(*) FROM events WHERE kind = 'login.refused' AND subject_id IS NOT NULL";
    assert_eq!(app.db.number(refused).await, 1);
}

/// The records and heads of messages: the JSON behind the fifth space.
fn bodies(messages: &[String]) -> Vec<Value> {
    let body = |message: &String| {
        let start = message.find('{').unwrap();
        serde_json::from_str(&message[start..]).unwrap()
    };
    messages.iter().map(body).collect()
}

fn uids(bodies: &[Value]) -> Vec<String> {
    let records = bodies.iter().filter(|body| !body["unmapped"]["record"].is_null());
    records.map(|body| body["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_sink_that_was_down_gets_every_record_in_order() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let exporter = sinks::AuditExporter::new().unwrap();
    let inbox = SyslogInbox::start().await;
    let address = inbox.address;
    let target = json!({ "kind": "syslog", "transport": "tcp", "address": address.to_string() });
    admin.put("/v1/audit/sinks/siem", json!({ "target": target })).await.expect(200);
    audit::chain_privileged_events(&app.app).await.unwrap();
    assert_eq!(sinks::export_once(&app.app, &exporter).await.unwrap(), 1);
    assert_eq!(uids(&bodies(&inbox.messages())).len(), 1);

    drop(inbox);
    let listener = loop {
        // The port is free once the task of the receiver has ended.
        if let Ok(listener) = TcpListener::bind(address).await {
            break listener;
        }
        tokio::task::yield_now().await;
    };
    drop(listener);
    for number in 0..5 {
        admin.post("/v1/groups", json!({ "name": format!("g{number}") })).await.expect(201);
    }
    audit::chain_privileged_events(&app.app).await.unwrap();
    assert_eq!(sinks::export_once(&app.app, &exporter).await.unwrap(), 0);
    let sink = admin.get("/v1/audit/sinks").await.expect(200).json()["items"][0].clone();
    assert_eq!((&sink["lag_records"], &sink["failures"]), (&json!(5), &json!(1)));
    assert_eq!(sink["error"], "there was no connection");
    // It is left alone until its retry is due.
    assert_eq!(sinks::export_once(&app.app, &exporter).await.unwrap(), 0);

    let inbox = SyslogInbox::over(TcpListener::bind(address).await.unwrap());
    app.clock.advance(Duration::minutes(2));
    assert_eq!(sinks::export_once(&app.app, &exporter).await.unwrap(), 5);
    let sink = admin.get("/v1/audit/sinks").await.expect(200).json()["items"][0].clone();
    assert_eq!((&sink["lag_records"], &sink["failures"]), (&json!(0), &json!(0)));
    let received = uids(&bodies(&inbox.messages()));
    let ends: Vec<_> = received.iter().map(|uid| uid.rsplit('/').next().unwrap()).collect();
    assert_eq!(ends, ["1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn a_webhook_is_signed_and_a_bucket_gets_an_object_per_batch() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let exporter = sinks::AuditExporter::new().unwrap();
    let (hook, store) = (WebhookInbox::start().await, ObjectInbox::start().await);
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    hook.trust(secret);
    let body = json!({ "target": { "kind": "webhook", "url": hook.url() }, "secret": secret });
    admin.put("/v1/audit/sinks/hook", body).await.expect(200);
    // The secret belongs to its target: another one needs it again.
    let moved = json!({ "target": { "kind": "webhook", "url": "https://elsewhere.example/" } });
    admin.put("/v1/audit/sinks/hook", moved).await.expect(422);
    let body = json!({ "secret": "a-secret-access-key", "target": { "kind": "object_store",
        "endpoint": format!("http://{}", store.address), "region": "eu-central-1", "bucket": "audit",
        "prefix": "cynode", "access_key_id": "AKIAEXAMPLE" } });
    admin.put("/v1/audit/sinks/bucket", body).await.expect(200);
    let shown = admin.get("/v1/audit/sinks").await.expect(200);
    assert!(!String::from_utf8(shown.body.to_vec()).unwrap().contains("secret-access"));

    audit::chain_privileged_events(&app.app).await.unwrap();
    assert_eq!(sinks::export_once(&app.app, &exporter).await.unwrap(), 4);
    let messages = hook.messages();
    assert_eq!((messages.len(), messages[0].verified), (1, 1));
    let events = messages[0].body["data"]["events"].as_array().unwrap().clone();
    assert_eq!(uids(&events).len(), 2);
    assert_eq!((&events[0]["class_uid"], &events[0]["category_uid"]), (&json!(3004), &json!(3)));
    let objects = store.objects();
    assert_eq!(objects.len(), 1, "{objects:?}");
    let (path, text) = objects.into_iter().next().unwrap();
    assert!(path.starts_with("/audit/cynode/records/2026/11/01/"), "{path}");
    assert_eq!(text.lines().count(), 2);

    // Heads are shipped once they are signed.
    app.clock.advance(Duration::minutes(2));
    audit::chain_privileged_events(&app.app).await.unwrap();
    sinks::export_once(&app.app, &exporter).await.unwrap();
    let heads = store.objects().into_keys().filter(|path| path.contains("/heads/")).count();
    assert_eq!(heads, 1);
    let last = hook.messages().pop().unwrap();
    let head = &last.body["data"]["events"][0]["unmapped"]["checkpoint"];
    let head: audit::AuditCheckpoint = serde_json::from_value(head.clone()).unwrap();
    assert!(app.public_keys().verify_checkpoint(&head).is_ok());
}

#[tokio::test]
async fn an_exported_bundle_is_verified_with_the_public_keys_alone() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    admin.post("/v1/groups", json!({ "name": "devs" })).await.expect(201);
    audit::chain_privileged_events(&app.app).await.unwrap();
    app.clock.advance(Duration::minutes(2));
    audit::chain_privileged_events(&app.app).await.unwrap();
    let bundle = admin.get("/v1/audit/export").await.expect(200).body;
    let bundle = String::from_utf8(bundle.to_vec()).unwrap();
    let text = serde_json::to_string(app.public_keys().public_keys()).unwrap();
    let keys = audit::PublicKeyring::parse_text(&text).unwrap();
    let found = audit::verify_bundle(&bundle, &keys).unwrap();
    assert_eq!((found.problems, found.proven), (Vec::new(), found.records));
    let changed = bundle.replace("group.created", "group.updated");
    assert!(!audit::verify_bundle(&changed, &keys).unwrap().problems.is_empty());
    let cut = bundle.rsplit_once("{\"type\":\"end\"").unwrap().0;
    assert_eq!(audit::verify_bundle(cut, &keys), Err(audit::MalformedBundle::NoEnd));
    let foreign = audit::PublicKeyring::parse_text(&"11".repeat(32));
    assert!(
        foreign.is_err()
            || !audit::verify_bundle(&bundle, &foreign.unwrap()).unwrap().problems.is_empty()
    );
}

fn vault(fake: &FakeVault, directory: &Path) -> Arc<dyn MasterKeyService> {
    let token_file = directory.join("token");
    std::fs::write(&token_file, format!("{VAULT_TOKEN}\n")).unwrap();
    let options = VaultOptions {
        address: fake.url().parse().unwrap(),
        mount: "transit".to_owned(),
        key: "cynode".to_owned(),
        token_file,
        namespace: None,
        ca_file: None,
        insecure: false,
    };
    Arc::new(VaultTransit::new(options).unwrap())
}

#[tokio::test]
async fn a_new_installation_has_its_master_key_in_a_key_management_service() {
    let (app, fake) = (TestApp::new().await, FakeVault::start().await);
    let directory = tempfile::tempdir().unwrap();
    let service = vault(&fake, directory.path());
    let (other, _) = app.replica_app();
    let keys = InstallationKeys::open_keyring(&other, service.clone()).await.unwrap();
    let other = other.with_keys(keys);
    let derived = "SELECT count(*) FROM installation_keys WHERE retired_at IS NULL AND derived";
    assert_eq!(app.db.number(derived).await, 0);
    assert_eq!(fake.versions(), (1, 1));

    begin(&other, KeyPurpose::Master).await;
    for _ in 0..10 {
        app.clock.advance(SETTLED);
        if key_rotation::advance_rotations(&other).await.unwrap().finished {
            break;
        }
    }
    let keys = other.installation_keys().unwrap();
    // Killed before its end, the command finds that it is missing; done twice, it does nothing more.
    assert_eq!(fake.versions(), (2, 1));
    assert!(keys.is_rotation_unfinished(&other).await.unwrap());
    for _ in 0..2 {
        keys.finish_master_rotation(&other).await.unwrap();
        assert_eq!(fake.versions(), (2, 2), "the old version opens nothing");
        assert!(!keys.is_rotation_unfinished(&other).await.unwrap());
    }
    let wrapped = "SELECT DISTINCT wrapped_by FROM installation_keys WHERE retired_at IS NULL";
    assert_eq!(app.db.texts(wrapped).await, ["vault:transit/cynode:v2"]);
    InstallationKeys::open_keyring(&other, service.clone()).await.unwrap();

    // The service rotates its key by itself, or a rotation died before our keys were wrapped: the next rotation is a whole one.
    service.next_version().await.unwrap();
    assert_eq!(fake.versions(), (3, 2));
    assert!(!keys.is_rotation_unfinished(&other).await.unwrap());

    std::fs::write(directory.path().join("token"), "another").unwrap();
    let refused = keys.open_again(&other).await.err().unwrap();
    assert!(format!("{refused:?}").contains("403"), "{refused:?}");
}

#[tokio::test]
async fn every_sealed_column_names_its_key() {
    let app = TestApp::new().await;
    // A column of sealed bytes has a column beside it that refers to the key, so that no key is retired too early.
    let lacking = "
        SELECT c.table_name || '.' || c.column_name FROM information_schema.columns c
        WHERE c.table_schema = 'public' AND c.data_type = 'bytea' AND c.column_name LIKE '%sealed%'
            AND NOT EXISTS (
                SELECT FROM pg_constraint f
                WHERE f.contype = 'f' AND f.conrelid = format('public.%I', c.table_name)::regclass
                    AND f.confrelid = 'public.openable_keys'::regclass)
        ORDER BY 1";
    assert_eq!(app.db.texts(lacking).await, Vec::<String>::new());
    let tokens = "
        SELECT c.table_name::text FROM information_schema.columns c
        WHERE c.table_schema = 'public' AND c.column_name = 'token_hash' AND c.table_name <> 'used_answer_links'
            AND NOT EXISTS (
                SELECT FROM information_schema.columns k
                WHERE k.table_schema = 'public' AND k.table_name = c.table_name AND k.column_name = 'hash_key_id')";
    assert_eq!(app.db.texts(tokens).await, Vec::<String>::new());
}
