//! Restricted API keys, idle sessions, second factors, break-glass links, and who may create projects.

use cynode_app::{Error, identity::break_glass, platform::keys::InstallationKeys};
use cynode_core::roles::UserRole;
use cynode_testkit::{Client, TestApp};
use data_encoding::BASE32_NOPAD;
use serde_json::{Value, json};
use time::Duration;
use totp_rs::{Builder, Secret};

const PASSWORD: &str = "correct horse battery";

/// A key of that person with these restrictions.
async fn key(by: &Client, mut body: Value) -> Client {
    body["name"] = json!("ci");
    let token = by.post("/v1/api-keys", body).await.expect(201).text("token");
    by.with_token(&token)
}

/// A user with a password, logged in.
async fn person(app: &TestApp, admin: &Client, handle: &str, role: Option<&str>) -> Client {
    let body =
        json!({ "handle": handle, "display_name": handle, "password": PASSWORD, "role": role });
    admin.post("/v1/users", body).await.expect(201);
    let login = log_in(app, handle, None).await.expect(201);
    app.anonymous().with_token(&login.text("token"))
}

async fn log_in(app: &TestApp, handle: &str, code: Option<&str>) -> cynode_testkit::Reply {
    let mut body = json!({ "handle": handle, "password": PASSWORD });
    if let Some(code) = code {
        body["code"] = json!(code);
    }
    app.anonymous().post("/v1/sessions", body).await
}

async fn set(admin: &Client, setting: &str, value: Value) {
    let body = json!({ "value": value, "expected_version": 0 });
    admin.put(&format!("/v1/settings/{setting}"), body).await.expect(200);
}

/// The code that an authenticator with that secret shows now.
fn code_now(app: &TestApp, secret: &str) -> String {
    let bytes: [u8; 20] = BASE32_NOPAD.decode(secret.as_bytes()).unwrap().try_into().unwrap();
    let totp = Builder::new().with_secret(Secret::new_stack(bytes)).build().unwrap();
    let seconds = app.app.environment().now().unix_timestamp();
    totp.generate(u64::try_from(seconds).unwrap()).to_string()
}

/// Enrols a second factor. Returns its secret and the recovery codes.
async fn enrol(app: &TestApp, client: &Client) -> (String, Vec<String>) {
    let begun = client.post("/v1/me/second-factor", json!({ "password": PASSWORD })).await;
    let secret = begun.expect(200).text("secret");
    let body = json!({ "code": code_now(app, &secret) });
    let codes = client.post("/v1/me/second-factor/confirm", body).await.expect(200).json();
    let codes = codes["codes"].as_array().unwrap().iter();
    (secret, codes.map(|code| code.as_str().unwrap().to_owned()).collect())
}

#[tokio::test]
async fn a_key_with_scopes_opens_its_operations_and_no_others() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let task = json!({ "project_id": project, "description": "x" });
    let tasks = key(&admin, json!({ "scopes": ["tasks"] })).await;
    tasks.post("/v1/tasks", task.clone()).await.expect(201);
    tasks.get("/v1/tasks").await.expect(200);
    tasks.get("/v1/me").await.expect(200);
    for path in ["/v1/users", "/v1/settings", "/v1/projects", "/v1/events", "/v1/audit/head"] {
        let refused = tasks.get(path).await.expect(403);
        assert_eq!(refused.text("code"), "key_denied", "{path}");
    }
    let reads = key(&admin, json!({ "scopes": ["tasks", "accounts"], "read_only": true })).await;
    reads.get("/v1/tasks").await.expect(200);
    reads.get("/v1/users").await.expect(200);
    let refused = reads.post("/v1/tasks", task).await.expect(403);
    assert_eq!(refused.text("detail"), "this API key only reads");
}

#[tokio::test]
async fn a_key_issues_no_agent_that_does_more_than_the_key() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let task = json!({ "project_id": project, "description": "x" });
    let task = admin.post("/v1/tasks", task).await.expect(201).text("id");
    let agent = json!({ "role": "developer", "project_id": project, "task_id": task });
    let tools = key(&admin, json!({ "scopes": ["tools"] })).await;
    let refused = tools.post("/v1/agent-tokens", agent.clone()).await.expect(403);
    assert_eq!(refused.text("code"), "key_denied");
    tools.get(&format!("/v1/agent-tokens?project_id={project}")).await.expect(200);
    for body in [json!({}), json!({ "scopes": ["manager", "tools"] })] {
        key(&admin, body).await.post("/v1/agent-tokens", agent.clone()).await.expect(201);
    }
}

#[tokio::test]
async fn a_key_changes_accounts_and_channels_only_if_it_was_made_for_that() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let user =
        |handle: &str| json!({ "handle": handle, "display_name": "B", "password": PASSWORD });
    let channel = json!({ "name": "x", "kind": "ntfy", "address": "https://ntfy.sh/x" });
    let whole = key(&admin, json!({})).await;
    whole.get("/v1/users").await.expect(200);
    whole.post("/v1/users", user("bob")).await.expect(403);
    whole.post("/v1/notification-channels", channel).await.expect(403);
    whole.post("/v1/groups", json!({ "name": "x" })).await.expect(403);
    let accounts = key(&admin, json!({ "scopes": ["accounts"] })).await;
    accounts.post("/v1/users", user("bob")).await.expect(201);
    // What would outlive the key needs a person all the same.
    accounts.post("/v1/api-keys", json!({ "name": "more" })).await.expect(409);
    accounts.post("/v1/scim-tokens", json!({ "name": "more" })).await.expect(403);
    accounts.post("/v1/me/second-factor", json!({})).await.expect(403);
}

#[tokio::test]
async fn a_key_of_a_project_sees_nothing_else_even_if_its_person_is_an_admin() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (web, other) = (app.project(&admin, "web").await, app.project(&admin, "other").await);
    let task = |project| json!({ "project_id": project, "description": "x" });
    let hidden = admin.post("/v1/tasks", task(other)).await.expect(201).text("id");
    let limited = key(&admin, json!({ "projects": [web] })).await;
    let own = limited.post("/v1/tasks", task(web)).await.expect(201).text("id");
    limited.get(&format!("/v1/tasks/{own}")).await.expect(200);
    limited.get("/v1/tasks?project=web").await.expect(200);
    limited.get("/v1/projects/web").await.expect(200);
    for path in ["/v1/projects/other", "/v1/tasks?project=other"] {
        limited.get(path).await.expect(404);
    }
    limited.get(&format!("/v1/tasks/{hidden}")).await.expect(404);
    limited.post("/v1/tasks", task(other)).await.expect(404);
    for path in ["/v1/tasks", "/v1/projects", "/v1/events", "/v1/users", "/v1/inbox", "/v1/usage"] {
        limited.get(path).await.expect(403);
    }
    limited.post("/v1/projects", json!({ "slug": "x", "title": "X" })).await.expect(403);
    // Without its project the key is worth nothing.
    app.db.execute("DELETE FROM api_key_projects").await;
    limited.get("/v1/projects/web").await.expect(404);
}

#[tokio::test]
async fn a_key_is_made_for_projects_that_its_person_sees_and_for_known_scopes() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let project = app.project(&admin, "web").await;
    let make = async |body: Value| bob.post("/v1/api-keys", body).await;
    make(json!({ "name": "x", "projects": [project] })).await.expect(404);
    make(json!({ "name": "x", "projects": [] })).await.expect(422);
    make(json!({ "name": "x", "scopes": [] })).await.expect(422);
    make(json!({ "name": "x", "scopes": ["everything"] })).await.expect(400);
    let missing = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
    let body = json!({ "name": "x", "projects": [missing] });
    admin.post("/v1/api-keys", body).await.expect(422);
    app.member(project, &bob, UserRole::Viewer).await;
    let body =
        json!({ "name": "x", "projects": [project], "scopes": ["tasks"], "read_only": true });
    let made = make(body).await.expect(201).json();
    let view = &made["api_key"];
    assert_eq!(
        (&view["scopes"], &view["read_only"], &view["projects"], &view["last_used_at"]),
        (&json!(["tasks"]), &json!(true), &json!([project]), &Value::Null)
    );
}

#[tokio::test]
async fn every_key_expires_as_the_settings_say_and_shows_its_last_use() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let made = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).json();
    assert_eq!(made["api_key"]["expires_at"], "2027-01-30T12:00:00Z");
    let program = app.anonymous().with_token(made["token"].as_str().unwrap());
    app.clock.advance(Duration::minutes(5));
    program.get("/v1/me").await.expect(200);
    app.clock.advance(Duration::seconds(30));
    program.get("/v1/me").await.expect(200);
    let listed = admin.get("/v1/api-keys").await.expect(200).json();
    assert_eq!(listed["items"][0]["last_used_at"], "2026-11-01T12:05:00Z");

    set(&admin, "auth.api_key_days", json!(7)).await;
    set(&admin, "auth.api_key_max_days", json!(30)).await;
    let made = admin.post("/v1/api-keys", json!({ "name": "x" })).await.expect(201).json();
    assert_eq!(made["api_key"]["expires_at"], "2026-11-08T12:05:30Z");
    let long = json!({ "name": "x", "expires_in_days": 31 });
    let refused = admin.post("/v1/api-keys", long).await.expect(422);
    assert_eq!(refused.text("detail"), "`expires_in_days` is 1 to 30");
}

#[tokio::test]
async fn a_session_that_nobody_uses_ends_and_one_that_is_used_goes_on() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    set(&admin, "auth.session_idle_minutes", json!(30)).await;
    let bob = app.user("bob", None).await;
    for _ in 0..4 {
        app.clock.advance(Duration::minutes(20));
        admin.get("/v1/me").await.expect(200);
    }
    // Bob was away for 80 minutes.
    bob.get("/v1/me").await.expect(401);
    app.clock.advance(Duration::minutes(31));
    admin.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_session_is_idle_after_an_hour_where_nothing_else_is_set() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    app.clock.advance(Duration::minutes(59));
    admin.get("/v1/me").await.expect(200);
    app.clock.advance(Duration::minutes(60));
    admin.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_page_that_opens_its_stream_again_and_again_keeps_no_session_alive() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    set(&admin, "auth.session_idle_minutes", json!(30)).await;
    let page = admin.with_header("accept", "text/event-stream");
    app.clock.advance(Duration::minutes(20));
    page.get("/v1/me").await.expect(200);
    app.clock.advance(Duration::minutes(11));
    page.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn what_a_page_loads_by_itself_keeps_no_session_alive_and_what_a_person_does_there_goes_on() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    set(&admin, "auth.session_idle_minutes", json!(30)).await;
    let page = admin.with_header("x-cynode-automatic", "true");
    app.clock.advance(Duration::minutes(20));
    page.get("/v1/me").await.expect(200);
    page.post("/v1/groups", json!({ "name": "testers" })).await.expect(201);
    app.clock.advance(Duration::minutes(9));
    admin.get("/v1/me").await.expect(200);
    for _ in 0..2 {
        app.clock.advance(Duration::minutes(14));
        page.get("/v1/me").await.expect(200);
    }
    app.clock.advance(Duration::minutes(3));
    page.get("/v1/me").await.expect(401);
    admin.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_program_that_says_it_is_automatic_uses_its_key_all_the_same() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let key = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    app.clock.advance(Duration::minutes(5));
    let program = app.anonymous().with_token(&key).with_header("x-cynode-automatic", "1");
    program.get("/v1/me").await.expect(200);
    let listed = admin.get("/v1/api-keys").await.expect(200).json();
    assert_eq!(listed["items"][0]["last_used_at"], "2026-11-01T12:05:00Z");
}

#[tokio::test]
async fn a_login_needs_the_code_of_the_second_factor_and_each_code_counts_once() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let bob = person(&app, &admin, "bob", None).await;
    let elsewhere = log_in(&app, "bob", None).await.expect(201).text("token");
    let (secret, codes) = enrol(&app, &bob).await;
    assert_eq!(codes.len(), 10);
    // Who had the password alone is out.
    app.anonymous().with_token(&elsewhere).get("/v1/me").await.expect(401);
    bob.get("/v1/me").await.expect(200);

    let refused = log_in(&app, "bob", None).await.expect(401);
    assert_eq!(refused.text("code"), "second_factor_required");
    log_in(&app, "bob", Some("000000")).await.expect(401);
    // The code that confirmed the enrolment was used.
    log_in(&app, "bob", Some(&code_now(&app, &secret))).await.expect(401);
    app.clock.advance(Duration::seconds(30));
    let code = code_now(&app, &secret);
    log_in(&app, "bob", Some(&code)).await.expect(201);
    let replayed = log_in(&app, "bob", Some(&code)).await.expect(401);
    assert_eq!(replayed.text("code"), "unauthenticated");

    log_in(&app, "bob", Some(&codes[0].to_uppercase())).await.expect(201);
    log_in(&app, "bob", Some(&codes[0])).await.expect(401);
    let state = bob.get("/v1/me/second-factor").await.expect(200).json();
    assert_eq!(
        state,
        json!({ "enrolled": true, "session_verified": true, "required": false, "recovery_codes_left": 9 })
    );
    let stored = "SELECT encode(sealed_secret, 'hex') FROM totp_credentials";
    let secret = BASE32_NOPAD.decode(secret.as_bytes()).unwrap();
    assert!(
        !app.db.texts(stored).await.join("").contains(&data_encoding::HEXLOWER.encode(&secret))
    );
    let kinds = "SELECT DISTINCT kind FROM events WHERE kind LIKE '%factor%' OR kind LIKE 'recovery%' ORDER BY kind";
    assert_eq!(
        app.db.texts(kinds).await,
        ["recovery_code.used", "recovery_codes.issued", "second_factor.enrolled"]
    );
}

#[tokio::test]
async fn a_session_that_began_without_the_second_factor_can_show_it_later() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let bob = person(&app, &admin, "bob", Some("admin")).await;
    let (secret, codes) = enrol(&app, &bob).await;
    set(&bob, "auth.admins_need_second_factor", json!(true)).await;
    // As a session of an identity provider begins that asked for no second factor.
    app.db.execute("UPDATE user_sessions SET second_factor = false").await;
    bob.get("/v1/users").await.expect(403);
    let path = "/v1/me/second-factor/verify";
    bob.post(path, json!({ "code": "000000" })).await.expect(422);
    app.clock.advance(Duration::seconds(30));
    let code = code_now(&app, &secret);
    let state = bob.post(path, json!({ "code": code })).await.expect(200).json();
    assert_eq!(state["session_verified"], true);
    bob.get("/v1/users").await.expect(200);
    bob.post(path, json!({ "code": code })).await.expect(422);
    bob.post(path, json!({ "code": codes[0] })).await.expect(200);
}

#[tokio::test]
async fn guesses_at_the_code_of_a_second_factor_are_throttled() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let bob = person(&app, &admin, "bob", None).await;
    let (secret, _) = enrol(&app, &bob).await;
    for _ in 0..10 {
        log_in(&app, "bob", Some("000000")).await.expect(401);
    }
    app.clock.advance(Duration::milliseconds(500));
    log_in(&app, "bob", Some("000000")).await.expect(429);
    app.clock.advance(Duration::seconds(30));
    log_in(&app, "bob", Some(&code_now(&app, &secret))).await.expect(201);
    for _ in 0..10 {
        let body = json!({ "code": "000000" });
        bob.post("/v1/me/second-factor/recovery-codes", body).await.expect(422);
    }
    let body = json!({ "code": "000000" });
    bob.post("/v1/me/second-factor/recovery-codes", body).await.expect(429);
}

#[tokio::test]
async fn whoever_has_the_password_does_not_guess_the_code_with_patience() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let bob = person(&app, &admin, "bob", None).await;
    let (secret, _) = enrol(&app, &bob).await;
    let mut statuses = Vec::new();
    for _ in 0..40 {
        // Longer than any delay of login throttling.
        app.clock.advance(Duration::minutes(1));
        statuses.push(log_in(&app, "bob", Some("000000")).await.status);
    }
    assert_eq!(statuses[..30], [401; 30]);
    assert!(statuses[30..].contains(&429), "{statuses:?}");
    let code = code_now(&app, &secret);
    assert_eq!(log_in(&app, "bob", Some(&code)).await.expect(429).text("code"), "rate_limited");
}

#[tokio::test]
async fn a_second_factor_is_enrolled_once_with_the_password_and_deleted_with_both() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let bob = person(&app, &admin, "bob", None).await;
    let begin = async |body: Value| bob.post("/v1/me/second-factor", body).await;
    begin(json!({})).await.expect(422);
    begin(json!({ "password": "wrong password!" })).await.expect(422);
    let begun = begin(json!({ "password": PASSWORD })).await.expect(200).json();
    let uri = begun["uri"].as_str().unwrap();
    assert!(uri.starts_with("otpauth://totp/CyNode:bob?secret="), "{uri}");
    assert!(begun["qr_svg"].as_str().unwrap().contains("<svg"));
    let wrong = json!({ "code": "000000" });
    bob.post("/v1/me/second-factor/confirm", wrong).await.expect(422);
    // Until a code confirms it, a login is as before.
    log_in(&app, "bob", None).await.expect(201);
    let (secret, _) = enrol(&app, &bob).await;
    begin(json!({ "password": PASSWORD })).await.expect(409);

    app.clock.advance(Duration::seconds(30));
    let delete = async |password: &str, code: &str| {
        let body = json!({ "password": password, "code": code });
        bob.post("/v1/me/second-factor/delete", body).await
    };
    delete("wrong password!", &code_now(&app, &secret)).await.expect(422);
    delete(PASSWORD, "000000").await.expect(422);
    delete(PASSWORD, &code_now(&app, &secret)).await.expect(204);
    log_in(&app, "bob", None).await.expect(201);
}

#[tokio::test]
async fn an_admin_deletes_the_lost_second_factor_of_another_and_not_the_own_one() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let bob = person(&app, &admin, "bob", Some("admin")).await;
    enrol(&app, &bob).await;
    let id = bob.get("/v1/me").await.expect(200).json()["user"]["id"].as_str().unwrap().to_owned();
    let (path, change) = (format!("/v1/users/{id}"), json!({ "delete_second_factor": true }));
    bob.patch(&path, change.clone()).await.expect(409);
    admin.patch(&path, change).await.expect(200);
    bob.get("/v1/me").await.expect(401);
    log_in(&app, "bob", None).await.expect(201);
}

#[tokio::test]
async fn where_admins_need_a_second_factor_an_admin_without_one_has_no_role() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let bob = person(&app, &admin, "bob", Some("admin")).await;
    let before = key(&bob, json!({})).await;
    set(&admin, "auth.admins_need_second_factor", json!(true)).await;
    for client in [&bob, &before, &admin] {
        client.get("/v1/users").await.expect(403);
        let me = client.get("/v1/me").await.expect(200).json();
        assert_eq!(
            (&me["installation_role"], &me["needs_second_factor"]),
            (&Value::Null, &json!(true))
        );
    }
    // They enrol, and this session has the role again. A key from before has not: no factor stands behind it.
    let (secret, _) = enrol(&app, &bob).await;
    bob.get("/v1/users").await.expect(200);
    before.get("/v1/users").await.expect(403);
    key(&bob, json!({})).await.get("/v1/users").await.expect(200);
    app.clock.advance(Duration::seconds(30));
    let login = log_in(&app, "bob", Some(&code_now(&app, &secret))).await.expect(201);
    app.anonymous().with_token(&login.text("token")).get("/v1/users").await.expect(200);
    // Nobody else is concerned.
    let viewer = app.user("viewer", Some(UserRole::Viewer)).await;
    viewer.get("/v1/users").await.expect(200);
}

/// The keys of the installation, as the host has them.
fn host_keys() -> InstallationKeys {
    InstallationKeys::from_master(&[7; 32])
}

#[tokio::test]
async fn a_break_glass_link_logs_a_named_admin_in_once_and_is_recorded() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let bob = person(&app, &admin, "bob", Some("admin")).await;
    enrol(&app, &bob).await;
    set(&bob, "auth.admins_need_second_factor", json!(true)).await;
    let handle = "bob".parse().unwrap();
    let old = break_glass::issue_break_glass_token(&app.app, &host_keys(), &handle).await.unwrap();
    let new = break_glass::issue_break_glass_token(&app.app, &host_keys(), &handle).await.unwrap();
    let redeem = async |token: &str, body: Value| {
        let mut body = body;
        body["token"] = json!(token);
        app.anonymous().post("/v1/break-glass", body).await
    };
    redeem(&old.0, json!({})).await.expect(401);
    let body = json!({ "new_password": "another password", "delete_second_factor": true });
    let session = redeem(&new.0, body).await.expect(201);
    redeem(&new.0, json!({})).await.expect(401);
    let opened = app.anonymous().with_token(&session.text("token"));
    opened.get("/v1/users").await.expect(200);
    bob.get("/v1/me").await.expect(401);
    let login = json!({ "handle": "bob", "password": "another password" });
    app.anonymous().post("/v1/sessions", login).await.expect(201);
    app.clock.advance(Duration::hours(1));
    opened.get("/v1/me").await.expect(401);
    let kinds = "SELECT kind FROM events WHERE kind LIKE 'break_glass%' ORDER BY seq";
    assert_eq!(
        app.db.texts(kinds).await,
        ["break_glass.issued", "break_glass.issued", "break_glass.used"]
    );
}

#[tokio::test]
async fn a_break_glass_link_is_worth_nothing_late_forged_or_for_somebody_who_is_no_admin() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    person(&app, &admin, "bob", Some("operator")).await;
    let issue = async |keys: InstallationKeys, handle: &str| {
        let handle = handle.parse().unwrap();
        break_glass::issue_break_glass_token(&app.app, &keys, &handle).await
    };
    let redeem = async |token: &str| {
        app.anonymous().post("/v1/break-glass", json!({ "token": token })).await
    };
    assert!(matches!(issue(host_keys(), "bob").await, Err(Error::Conflict(_))));
    assert!(matches!(issue(host_keys(), "nobody").await, Err(Error::NotFound { .. })));
    // Somebody who can write to the database alone does not have the master key.
    let forged = issue(InstallationKeys::from_master(&[8; 32]), "admin").await.unwrap();
    redeem(&forged.0).await.expect(401);
    let late = issue(host_keys(), "admin").await.unwrap();
    app.clock.advance(Duration::minutes(16));
    redeem(&late.0).await.expect(401);
    let weakened = issue(host_keys(), "admin").await.unwrap();
    app.user("second", Some(UserRole::Admin)).await;
    app.db.execute("DELETE FROM role_bindings WHERE user_id IN (SELECT user_id FROM users WHERE handle = 'admin')").await;
    redeem(&weakened.0).await.expect(401);
    for wrong in ["", "hunter2", &admin.token().unwrap()] {
        redeem(wrong).await.expect(401);
    }
}

#[tokio::test]
async fn creating_projects_is_a_permission_by_itself_given_to_a_person_or_a_group() {
    let app = TestApp::new().await;
    let (admin, bob, eve) =
        (app.admin().await, app.user("bob", None).await, app.user("eve", None).await);
    let create = async |by: &Client, slug: &str| {
        by.post("/v1/projects", json!({ "slug": slug, "title": "T" })).await
    };
    let refused = create(&bob, "one").await.expect(403);
    assert_eq!(
        refused.text("detail"),
        "this needs the role operator in the installation, or the permission to create projects"
    );
    let path = format!("/v1/users/{}", bob.user.unwrap());
    let changed = admin.patch(&path, json!({ "can_create_projects": true })).await.expect(200);
    assert_eq!(changed.json()["can_create_projects"], true);
    create(&bob, "one").await.expect(201);
    assert_eq!(bob.get("/v1/me").await.expect(200).json()["can_create_projects"], true);
    // It is no role: what others made stays unseen.
    app.project(&admin, "hidden").await;
    bob.get("/v1/projects/hidden").await.expect(404);

    create(&eve, "two").await.expect(403);
    let group = admin.post("/v1/groups", json!({ "name": "makers" })).await.expect(201).text("id");
    let change = json!({ "add": [eve.user], "can_create_projects": true });
    admin.patch(&format!("/v1/groups/{group}"), change).await.expect(200);
    create(&eve, "two").await.expect(201);
    admin.patch(&path, json!({ "can_create_projects": false })).await.expect(200);
    create(&bob, "three").await.expect(403);
}

#[tokio::test]
async fn the_setting_about_four_eyes_takes_known_kinds_only() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for wrong in [json!(true), json!(["everything"]), json!("plan")] {
        let body = json!({ "value": wrong, "expected_version": 0 });
        let refused = admin.put("/v1/settings/approvals.four_eyes", body).await.expect(422);
        assert!(refused.text("detail").contains("a list of some of"), "{:?}", refused.body);
    }
    set(&admin, "approvals.four_eyes", json!(["environment", "plan"])).await;
}

#[tokio::test]
async fn who_proposed_an_environment_does_not_accept_it_where_the_setting_says_so() {
    let app = TestApp::new().await;
    let (admin, second) = (app.admin().await, app.user("second", Some(UserRole::Admin)).await);
    app.project(&admin, "web").await;
    let proposal = json!({ "spec": { "setup": ["true"] } });
    let made = admin.post("/v1/projects/web/environments", proposal).await;
    let version = made.expect(201).json()["version"].as_u64().unwrap();
    set(&admin, "approvals.four_eyes", json!(["environment"])).await;
    let path = format!("/v1/projects/web/environments/{version}/accept");
    let refused = admin.post(&path, json!({})).await.expect(403);
    assert_eq!(
        refused.text("detail"),
        "you asked for this work, so another person must accept the environment: the setting \
         `approvals.four_eyes` names `environment`"
    );
    second.post(&path, json!({})).await.expect(200);
}
