use cynode_testkit::TestApp;
use serde_json::json;
use time::Duration;

const KEY: &str = "idempotency-key";

#[tokio::test]
async fn a_creation_sent_again_with_its_key_gives_the_same_answer_and_no_second_task() {
    let app = TestApp::new().await;
    let admin = app.admin().await.with_header(KEY, "k1");
    let project = app.project(&admin, "web").await;
    let body = json!({ "project_id": project, "description": "Do it" });
    let first = admin.post("/v1/tasks", body.clone()).await.expect(201);
    let second = admin.post("/v1/tasks", body).await.expect(201);
    assert_eq!(first.body, second.body);
    assert_eq!(first.headers.get("idempotency-replayed"), None);
    assert_eq!(second.headers["idempotency-replayed"], "true");
    assert_eq!(app.db.number("SELECT count(*) FROM tasks").await, 1);
    assert_eq!(app.db.number("SELECT count(*) FROM events WHERE kind = 'task.created'").await, 1);
}

#[tokio::test]
async fn of_equal_requests_at_the_same_moment_one_takes_effect_and_all_get_its_answer() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    for round in 0..10 {
        let key = format!("round-{round}");
        let (here, there) = (
            admin.with_header(KEY, &key),
            app.replica().with_token(&admin.token().unwrap()).with_header(KEY, &key),
        );
        let body = json!({ "project_id": project, "description": "Do it" });
        let (a, b, c) = tokio::join!(
            here.post("/v1/tasks", body.clone()),
            there.post("/v1/tasks", body.clone()),
            here.post("/v1/tasks", body.clone()),
        );
        let (a, b, c) = (a.expect(201).body, b.expect(201).body, c.expect(201).body);
        assert_eq!((&a, &a), (&b, &c));
    }
    assert_eq!(app.db.number("SELECT count(*) FROM tasks").await, 10);
}

#[tokio::test]
async fn a_repeat_succeeds_where_a_second_attempt_would_be_refused() {
    let app = TestApp::new().await;
    let admin = app.admin().await.with_header(KEY, "k1");
    let body = json!({ "slug": "web", "title": "Web" });
    let first = admin.post("/v1/projects", body.clone()).await.expect(201);
    let repeat = admin.post("/v1/projects", body.clone()).await.expect(201);
    assert_eq!(first.body, repeat.body);
    let other = admin.with_header(KEY, "k2").post("/v1/projects", body).await.expect(409);
    assert_eq!(other.text("code"), "already_exists");
}

#[tokio::test]
async fn a_key_cannot_be_used_for_another_request() {
    let app = TestApp::new().await;
    let admin = app.admin().await.with_header(KEY, "k1");
    admin.post("/v1/projects", json!({ "slug": "web", "title": "Web" })).await.expect(201);
    let body = json!({ "slug": "other", "title": "Web" });
    let problem = admin.post("/v1/projects", body).await.expect(422);
    assert_eq!(problem.text("code"), "idempotency_key_reused");
    assert_eq!(app.db.number("SELECT count(*) FROM projects").await, 1);
}

#[tokio::test]
async fn the_same_key_of_another_caller_is_another_key() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let other = app.user("eve", Some(cynode_core::roles::UserRole::Admin)).await;
    let key = |client: &cynode_testkit::Client| client.with_header(KEY, "same");
    key(&admin).post("/v1/projects", json!({ "slug": "a", "title": "A" })).await.expect(201);
    let made =
        key(&other).post("/v1/projects", json!({ "slug": "b", "title": "B" })).await.expect(201);
    assert_eq!(made.text("slug"), "b");
}

#[tokio::test]
async fn who_lost_the_role_does_not_get_the_answer_again() {
    let app = TestApp::new().await;
    let (admin, bob) =
        (app.admin().await, app.user("bob", Some(cynode_core::roles::UserRole::Operator)).await);
    let bob_once = bob.with_header(KEY, "k1");
    let body = json!({ "slug": "web", "title": "Web" });
    bob_once.post("/v1/projects", body.clone()).await.expect(201);
    let path = format!("/v1/users/{}", bob.user.unwrap());
    admin.patch(&path, json!({ "role": "viewer" })).await.expect(200);
    bob_once.post("/v1/projects", body).await.expect(403);
}

#[tokio::test]
async fn who_left_the_project_does_not_get_the_answer_again() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let project = app.project(&admin, "web").await;
    app.member(project, &bob, cynode_core::roles::UserRole::Operator).await;
    let remove = format!("/v1/projects/web/members/{}", bob.user.unwrap());
    for (key, name) in [("k1", None), ("k2", Some("given"))] {
        let body = json!({ "project_id": project, "description": "Do it", "name": name });
        bob.with_header(KEY, key).post("/v1/tasks", body).await.expect(201);
    }
    admin.delete(&remove).await.expect(204);
    for (key, name) in [("k1", None), ("k2", Some("given"))] {
        let body = json!({ "project_id": project, "description": "Do it", "name": name });
        bob.with_header(KEY, key).post("/v1/tasks", body).await.expect(404);
    }
}

#[tokio::test]
async fn a_request_that_failed_leaves_its_key_free() {
    let app = TestApp::new().await;
    let admin = app.admin().await.with_header(KEY, "k1");
    admin.post("/v1/projects", json!({ "slug": "BAD", "title": "Web" })).await.expect(400);
    admin.post("/v1/projects", json!({ "slug": "web", "title": "Web" })).await.expect(201);
}

#[tokio::test]
async fn the_answer_with_a_secret_is_repeated_but_not_readable_in_the_database() {
    let app = TestApp::new().await;
    let admin = app.admin().await.with_header(KEY, "k1");
    let first = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
    let again = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201);
    assert_eq!(first.body, again.body);
    let kept = app.db.texts("SELECT encode(answer, 'escape') FROM idempotency_keys").await.join("");
    assert!(!kept.is_empty());
    for part in [&first.text("token"), "api_key", "ci"] {
        assert!(!kept.contains(part), "{part} can be read");
    }
}

#[tokio::test]
async fn an_answer_is_forgotten_after_its_time() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let token = admin.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    let program = app.anonymous().with_token(&token).with_header(KEY, "k1");
    program.post("/v1/projects", json!({ "slug": "a", "title": "A" })).await.expect(201);
    app.clock.advance(Duration::hours(24));
    program.post("/v1/projects", json!({ "slug": "b", "title": "B" })).await.expect(201);
    app.clock.advance(Duration::hours(24));
    cynode_app::background::maintenance::run_maintenance_once(&app.app).await.unwrap();
    assert_eq!(app.db.number("SELECT count(*) FROM idempotency_keys").await, 0);
}

#[tokio::test]
async fn a_key_that_is_no_key_is_refused() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for key in ["", "with space", &"x".repeat(201)] {
        let body = json!({ "slug": "web", "title": "Web" });
        admin.with_header(KEY, key).post("/v1/projects", body).await.expect(422);
    }
}
