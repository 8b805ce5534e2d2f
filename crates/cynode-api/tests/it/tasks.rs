use cynode_core::roles::UserRole;
use cynode_testkit::TestApp;
use insta::assert_json_snapshot;
use serde_json::json;

#[tokio::test]
async fn a_task_is_stored_as_it_was_asked_for() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let body = json!({
        "project_id": project,
        "name": "fix-login",
        "description": "The login is broken.\nMend it.",
        "acceptance_criteria": [{ "text": "the tests pass" }],
        "budget": { "max_cost_micros": 2_500_000, "max_tokens": 100_000 },
    });
    let made = admin.post("/v1/tasks", body).await.expect(201);
    let task = made.json();
    assert_json_snapshot!(task, { ".id" => "[id]", ".project_id" => "[id]", ".created_by" => "[id]" }, @r#"
    {
      "id": "[id]",
      "project_id": "[id]",
      "name": "fix-login",
      "description": "The login is broken.\nMend it.",
      "acceptance_criteria": [
        {
          "text": "the tests pass"
        }
      ],
      "budget": {
        "max_cost_micros": 2500000,
        "max_tokens": 100000
      },
      "state": "queued",
      "depends_on": [],
      "created_by": "[id]",
      "created_at": "2026-11-01T12:00:00Z",
      "updated_at": "2026-11-01T12:00:00Z"
    }
    "#);
    let id = made.text("id");
    let read = admin.get(&format!("/v1/tasks/{id}")).await.expect(200).json();
    assert_eq!(read, task, "B004-56");
    assert_eq!(admin.get("/v1/tasks/fix-login?project=web").await.expect(200).json(), task);
    admin.get("/v1/tasks/fix-login").await.expect(422);
}

/// Everything that was kept of tasks, of what they were told and of what is asked for at its time.
const KEPT: &str = "
    SELECT tasks::text FROM tasks UNION ALL SELECT events::text FROM events
    UNION ALL SELECT task_instructions::text FROM task_instructions UNION ALL SELECT schedules::text FROM schedules
";

#[tokio::test]
async fn secrets_in_what_is_asked_for_are_kept_nowhere() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let provider = json!({ "kind": "compatible", "base_url": "http://127.0.0.1:9/v1" });
    admin.put("/v1/providers/far", provider).await.expect(200);
    let key = json!({ "label": "first", "key": "far-secret-key-0001" });
    admin.post("/v1/providers/far/keys", key).await.expect(201);
    let github = format!("ghp_{}", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8");
    let words = format!("{github} and far-secret-key-0001 open the door");
    let criteria = json!([{ "text": words }]);
    let mut id = String::new();
    for name in [Some("named"), None] {
        let body = json!({ "project_id": project, "name": name, "description": words, "acceptance_criteria": criteria });
        let repeated = admin.with_header("idempotency-key", name.unwrap_or("nameless"));
        let made = repeated.post("/v1/tasks", body.clone()).await.expect(201);
        let again = repeated.post("/v1/tasks", body).await.expect(201);
        assert_eq!(again.json(), made.json(), "it is the same task");
        assert!(made.text("description").ends_with(" open the door"), "{:?}", made.body);
        id = made.text("id");
    }
    let told = json!({ "kind": "revise", "text": words });
    admin.post(&format!("/v1/tasks/{id}/instructions"), told).await.expect(202);
    let when = json!({ "kind": "cron", "expression": "0 9 * * *", "timezone": "UTC" });
    let what = json!({ "kind": "words", "text": words });
    let body = json!({ "project_id": project, "name": "daily", "trigger": when, "action": what });
    admin.post("/v1/schedules", body).await.expect(201);
    let kept = app.db.texts(KEPT).await.join("\n").to_lowercase();
    assert!(kept.matches("open the door").count() >= 6, "{kept}");
    for secret in ["a1b2c3d4", "far-secret-key-0001"] {
        assert!(!kept.contains(secret), "{kept}");
    }
}

#[tokio::test]
async fn a_task_without_a_name_gets_the_next_free_one() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let mut names = Vec::new();
    for _ in 0..3 {
        let body = json!({ "project_id": project, "description": "Deploy docs!" });
        names.push(admin.post("/v1/tasks", body).await.expect(201).text("name"));
    }
    assert_eq!(names, ["deploy-docs", "deploy-docs-2", "deploy-docs-3"]);
    let taken = json!({ "project_id": project, "description": "x", "name": "deploy-docs" });
    assert_eq!(admin.post("/v1/tasks", taken).await.expect(409).text("code"), "already_exists");
}

#[tokio::test]
async fn tasks_asked_for_at_the_same_moment_get_different_names() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let body = || json!({ "project_id": project, "description": "Deploy docs" });
    let (a, b, c, d) = tokio::join!(
        admin.post("/v1/tasks", body()),
        admin.post("/v1/tasks", body()),
        admin.post("/v1/tasks", body()),
        admin.post("/v1/tasks", body()),
    );
    let mut names: Vec<_> = [a, b, c, d].map(|reply| reply.expect(201).text("name")).into();
    names.sort();
    assert_eq!(names, ["deploy-docs", "deploy-docs-2", "deploy-docs-3", "deploy-docs-4"]);
}

#[tokio::test]
async fn tasks_are_listed_newest_first_and_filtered() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (web, api) = (app.project(&admin, "web").await, app.project(&admin, "api").await);
    for (number, project) in [web, api, web].into_iter().enumerate() {
        app.clock.advance(time::Duration::SECOND);
        let body =
            json!({ "project_id": project, "name": format!("t-{number}"), "description": "x" });
        admin.post("/v1/tasks", body).await.expect(201);
    }
    admin.post("/v1/tasks/t-0/cancel?project=web", json!(null)).await.expect(200);
    let names = async |query: &str| -> Vec<String> {
        let page = admin.get(&format!("/v1/tasks?{query}")).await.expect(200).json();
        let items = page["items"].as_array().unwrap();
        items.iter().map(|task| task["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("").await, ["t-2", "t-1", "t-0"]);
    assert_eq!(names("project=web").await, ["t-2", "t-0"]);
    assert_eq!(names("project=web&state=queued").await, ["t-2"]);
    assert_eq!(names("state=cancelled").await, ["t-0"]);
    assert_eq!(names("limit=1").await, ["t-2"]);
    admin.get("/v1/tasks?state=asleep").await.expect(400);
}

#[tokio::test]
async fn a_task_is_cancelled_once() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let body = json!({ "project_id": project, "name": "t", "description": "x" });
    admin.post("/v1/tasks", body).await.expect(201);
    let cancelled = admin.post("/v1/tasks/t/cancel?project=web", json!(null)).await.expect(200);
    assert_eq!(cancelled.text("state"), "cancelled");
    assert_eq!(cancelled.text("ended_at"), "2026-11-01T12:00:00Z");
    let again = admin.post("/v1/tasks/t/cancel?project=web", json!(null)).await.expect(409);
    assert_eq!(again.text("detail"), "a task that is cancelled cannot be cancelled");
}

#[tokio::test]
async fn a_task_depends_only_on_tasks_of_its_project() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (web, api) = (app.project(&admin, "web").await, app.project(&admin, "api").await);
    let make = async |project, depends_on: Vec<String>| {
        let body = json!({ "project_id": project, "description": "x", "depends_on": depends_on });
        admin.post("/v1/tasks", body).await
    };
    let first = make(web, vec![]).await.expect(201).text("id");
    let second = make(web, vec![first.clone(), first.clone()]).await.expect(201).json();
    assert_eq!(second["depends_on"], json!([first]));
    make(api, vec![first]).await.expect(422);
    make(web, vec!["tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708".into()]).await.expect(422);
    assert_eq!(app.db.number("SELECT count(*) FROM tasks").await, 2);
}

#[tokio::test]
async fn nothing_of_one_project_is_seen_listed_or_counted_in_another() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (bob, eve) = (app.user("bob", None).await, app.user("eve", None).await);
    let (web, api) = (app.project(&admin, "web").await, app.project(&admin, "api").await);
    app.member(web, &bob, UserRole::Admin).await;
    app.member(api, &eve, UserRole::Admin).await;
    let body = json!({ "project_id": web, "name": "secret-plan", "description": "x" });
    let id = bob.post("/v1/tasks", body).await.expect(201).text("id");
    eve.get(&format!("/v1/tasks/{id}")).await.expect(404);
    eve.get("/v1/tasks/secret-plan?project=web").await.expect(404);
    eve.post(&format!("/v1/tasks/{id}/cancel"), json!(null)).await.expect(404);
    eve.get("/v1/tasks?project=web").await.expect(404);
    assert_eq!(eve.get("/v1/tasks").await.expect(200).json(), json!({ "items": [] }));
    let scope = format!("/v1/preferences?scope_type=task&scope_id={id}");
    eve.get(&scope).await.expect(404);
    eve.get(&format!("/v1/events?task_id={id}")).await.expect(404);
}

#[tokio::test]
async fn input_that_hides_overflows_or_escapes_is_refused_with_a_reason() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let refused = |field: &str, value: serde_json::Value| {
        let mut body = json!({ "project_id": project, "description": "x" });
        body[field] = value;
        body
    };
    for body in [
        refused("description", json!("a\u{202e}b")),
        refused("description", json!("a\u{0}b")),
        refused("description", json!("x".repeat(20_001))),
        refused("description", json!("")),
        refused("name", json!("../../etc/passwd")),
        refused("budget", json!({ "max_tokens": -1 })),
        refused("budget", json!({ "max_tokens": 9_223_372_036_854_775_808_u64 })),
        refused("project_id", json!("usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")),
        refused("priority", json!(1)),
    ] {
        let problem = admin.post("/v1/tasks", body).await.expect(400);
        assert_eq!(problem.text("code"), "malformed", "S001-11");
        assert!(
            problem.text("detail").starts_with("the body is wrong: "),
            "{}",
            problem.text("detail")
        );
    }
}

#[tokio::test]
async fn a_task_without_a_limit_gets_the_installations_default() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let make = async |name: Option<&str>, budget: serde_json::Value| {
        let body =
            json!({ "project_id": project, "name": name, "description": "x", "budget": budget });
        let made = admin.post("/v1/tasks", body).await.expect(201).json();
        (made["budget"]["max_cost_micros"].clone(), made["budget"]["max_tokens"].clone())
    };
    // Named ones are stored with others, unnamed ones alone.
    assert_eq!(make(Some("a"), json!({})).await, (json!(5_000_000), json!(null)));
    assert_eq!(make(None, json!({})).await, (json!(5_000_000), json!(null)));
    assert_eq!(make(Some("b"), json!({ "max_tokens": 9 })).await, (json!(null), json!(9)));
    assert_eq!(make(None, json!({ "max_cost_micros": 7 })).await, (json!(7), json!(null)));
    let set = async |value: serde_json::Value, version: i64| {
        let body = json!({ "value": value, "expected_version": version });
        admin.put("/v1/settings/budget.task_default", body).await
    };
    set(json!(2.5), 0).await.expect(200);
    assert_eq!(make(Some("c"), json!({})).await, (json!(2_500_000), json!(null)));
    assert_eq!(make(None, json!({})).await, (json!(2_500_000), json!(null)));
    set(json!("none"), 1).await.expect(200);
    assert_eq!(make(Some("d"), json!({})).await, (json!(null), json!(null)));
    let refused = set(json!(0), 2).await.expect(422);
    assert_eq!(
        refused.text("detail"),
        "`budget.task_default` is an amount above 0 with at most six decimals, such as 5 or 2.50, or \"none\""
    );
}

#[tokio::test]
async fn a_yes_in_advance_is_kept_with_the_task_it_was_asked_for_with() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let make = async |name: Option<&str>, said: serde_json::Value| {
        let mut body = json!({ "project_id": project, "name": name, "description": "x" });
        body["approve_plan"] = said;
        let task = admin.post("/v1/tasks", body).await.expect(201).text("id");
        let path = format!("/v1/preferences?scope_type=task&scope_id={task}");
        let found = admin.get(&path).await.expect(200).json()["items"].clone();
        let said = |it: &serde_json::Value| (it["key"].clone(), it["value"].clone());
        found.as_array().unwrap().iter().map(said).collect::<Vec<_>>()
    };
    let key = json!("workflow.approve_plan");
    assert_eq!(make(Some("a"), json!(false)).await, [(key.clone(), json!(false))]);
    assert_eq!(make(None, json!(false)).await, [(key.clone(), json!(false))]);
    assert_eq!(make(None, json!(true)).await, [(key, json!(true))]);
    assert_eq!(make(Some("b"), json!(null)).await, []);
}
