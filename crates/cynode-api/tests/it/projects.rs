use cynode_app::background::maintenance;
use cynode_core::roles::UserRole;
use cynode_testkit::TestApp;
use serde_json::json;

#[tokio::test]
async fn whoever_makes_a_project_is_its_first_admin() {
    let app = TestApp::new().await;
    let bob = app.user("bob", Some(UserRole::Operator)).await;
    bob.post("/v1/projects", json!({ "slug": "web", "title": "Web" })).await.expect(201);
    let members = bob.get("/v1/projects/web/members").await.expect(200).json();
    assert_eq!(members["items"][0]["handle"], "bob");
    assert_eq!(members["items"][0]["role"], "admin");
    bob.patch("/v1/projects/web", json!({ "title": "The web" })).await.expect(200);
    let found = bob.get("/v1/projects/web").await.expect(200);
    assert_eq!(found.text("title"), "The web");
}

#[tokio::test]
async fn to_somebody_without_a_role_a_project_does_not_exist() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let project = app.project(&admin, "web").await;
    let hidden = bob.get("/v1/projects/web").await.expect(404);
    let missing = bob.get("/v1/projects/nothing").await.expect(404);
    assert_eq!(hidden.text("detail"), "project `web` does not exist");
    assert_eq!(missing.text("detail"), "project `nothing` does not exist");
    bob.get(&format!("/v1/projects/{project}")).await.expect(404);
    assert_eq!(bob.get("/v1/projects").await.expect(200).json()["items"], json!([]));
}

#[tokio::test]
async fn a_members_role_is_what_the_member_may_do() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let project = app.project(&admin, "web").await;
    let member = format!("/v1/projects/web/members/{}", bob.user.unwrap());
    let task = json!({ "project_id": project, "description": "Do it" });

    admin.put(&member, json!({ "role": "viewer" })).await.expect(204);
    assert_eq!(bob.get("/v1/projects").await.expect(200).json()["items"][0]["slug"], "web");
    let problem = bob.post("/v1/tasks", task.clone()).await.expect(403);
    assert_eq!(problem.text("detail"), "this needs the role operator in the project");

    admin.put(&member, json!({ "role": "operator" })).await.expect(204);
    bob.post("/v1/tasks", task.clone()).await.expect(201);
    bob.patch("/v1/projects/web", json!({ "title": "Mine" })).await.expect(403);

    admin.delete(&member).await.expect(204);
    bob.post("/v1/tasks", task).await.expect(404);
    admin.delete(&member).await.expect(404);
}

#[tokio::test]
async fn a_group_can_have_a_role_in_a_project() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    app.project(&admin, "web").await;
    let group = admin.post("/v1/groups", json!({ "name": "devs" })).await.expect(201).text("id");
    admin.patch(&format!("/v1/groups/{group}"), json!({ "add": [bob.user] })).await.expect(200);
    let binding = format!("/v1/projects/web/groups/{group}");
    admin.put(&binding, json!({ "role": "viewer" })).await.expect(204);
    bob.get("/v1/projects/web").await.expect(200);
    admin.put(&binding, json!({ "role": "none" })).await.expect(204);
    bob.get("/v1/projects/web").await.expect(404);
}

#[tokio::test]
async fn a_slug_that_is_taken_or_unsafe_is_refused() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let make =
        async |slug: &str| admin.post("/v1/projects", json!({ "slug": slug, "title": "T" })).await;
    make("web").await.expect(201);
    assert_eq!(make("web").await.expect(409).text("code"), "already_exists");
    for slug in ["../etc", "A", "", "a b", "a\u{0}b"] {
        assert_eq!(make(slug).await.expect(400).text("code"), "malformed", "{slug:?}");
    }
}

#[tokio::test]
async fn a_project_that_is_not_there_is_told_with_a_near_one_that_the_caller_may_see() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let web = app.project(&admin, "web-app").await;
    app.project(&admin, "secret").await;
    app.member(web, &bob, UserRole::Viewer).await;
    let detail = async |name: &str| {
        bob.get(&format!("/v1/projects/{name}")).await.expect(404).text("detail")
    };
    assert_eq!(detail("web-ap").await, "project `web-ap` does not exist; is `web-app` meant?");
    assert_eq!(detail("secre").await, "project `secre` does not exist");
}

#[tokio::test]
async fn an_archived_project_takes_no_work_and_comes_back_as_it_was() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    app.project(&admin, "api").await;
    let task = json!({ "project_id": project, "name": "t", "description": "x" });
    admin.post("/v1/tasks", task.clone()).await.expect(201);
    let refused = admin.post("/v1/projects/web/archive", json!(null)).await.expect(409);
    assert_eq!(
        refused.text("detail"),
        "tasks of the project are not done: wait for them, or stop them (`cynork task list --project NAME --state running`, \
         `cynork task cancel TASK`)"
    );
    admin.post("/v1/tasks/t/cancel?project=web", json!(null)).await.expect(200);
    let archived = admin.post("/v1/projects/web/archive", json!(null)).await.expect(200);
    assert_eq!(archived.text("archived_at"), "2026-11-01T12:00:00Z");
    admin.post("/v1/projects/web/archive", json!(null)).await.expect(409);
    let slugs = async |query: &str| {
        let found = admin.get(&format!("/v1/projects{query}")).await.expect(200).json();
        let items = found["items"].as_array().unwrap().clone();
        items.iter().map(|it| it["slug"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(slugs("").await, ["api"]);
    assert_eq!(slugs("?archived=true").await, ["api", "web"]);
    // Stored with others, stored alone, and by a schedule: none is taken.
    for name in [json!("u"), json!(null)] {
        let body = json!({ "project_id": project, "name": name, "description": "x" });
        let refused = admin.post("/v1/tasks", body).await.expect(409);
        assert_eq!(
            refused.text("detail"),
            "the project is archived: `cynork project unarchive NAME` takes it back",
            "B023-09"
        );
    }
    admin.get("/v1/tasks/t?project=web").await.expect(200);
    admin.delete("/v1/projects/api").await.expect(409);
    admin.post("/v1/projects/web/unarchive", json!(null)).await.expect(200);
    admin.post("/v1/projects/web/unarchive", json!(null)).await.expect(409);
    let body = json!({ "project_id": project, "name": "u", "description": "x" });
    admin.post("/v1/tasks", body).await.expect(201);
    assert_eq!(slugs("").await, ["api", "web"]);
}

#[tokio::test]
async fn the_models_of_an_archived_project_answer_nobody() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let web = app.project(&admin, "web").await;
    let script = json!({ "rules": [{ "answer": { "text": "own" } }] });
    let body = json!({ "kind": "scripted", "local": true, "script": script });
    admin.put("/v1/providers/tape", body).await.expect(200);
    let body = json!({ "context_tokens": 1000, "max_output_tokens": 10, "tier": "fast", "project_id": web,
        "routes": [{ "provider": "tape", "upstream": "m" }] });
    admin.put("/v1/model-registry/own", body).await.expect(200);
    let client = admin.with_header("openai-project", "web");
    let question = json!({ "model": "own", "messages": [{ "role": "user", "content": "hi" }] });
    client.post("/v1/chat/completions", question.clone()).await.expect(200);
    admin.post("/v1/projects/web/archive", json!(null)).await.expect(200);
    let refused = client.post("/v1/chat/completions", question.clone()).await.expect(400).json();
    assert_eq!(
        refused["error"]["message"],
        "the project is archived: `cynork project unarchive NAME` takes it back"
    );
    let told =
        admin.get(&format!("/v1/model-choices?project_id={web}&tier=fast")).await.expect(200);
    assert_eq!(told.json()["tiers"][0]["choices"][0]["reason"], "its project is archived");
    admin.post("/v1/projects/web/unarchive", json!(null)).await.expect(200);
    client.post("/v1/chat/completions", question).await.expect(200);
}

#[tokio::test]
async fn a_deleted_project_is_gone_with_all_that_was_in_it_and_its_records_stay() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (web, api) = (app.project(&admin, "web").await, app.project(&admin, "api").await);
    let script =
        json!({ "rules": [{ "answer": { "text": "own", "usage": { "input": 1, "output": 1 } } }] });
    let body = json!({ "kind": "scripted", "local": true, "script": script });
    admin.put("/v1/providers/tape", body).await.expect(200);
    for project in [web, api] {
        let body = json!({ "context_tokens": 1000, "max_output_tokens": 10, "project_id": project,
            "routes": [{ "provider": "tape", "upstream": "m" }] });
        admin.put(&format!("/v1/model-registry/own-{project}"), body).await.expect(200);
        let task = json!({ "project_id": project, "name": "t", "description": "x", "approve_plan": false });
        let task = admin.post("/v1/tasks", task).await.expect(201).text("id");
        let body =
            json!({ "role": "developer", "project_id": project, "task_id": task, "models": [] });
        admin.post("/v1/agent-tokens", body).await.expect(201);
        let body = json!({ "scope_type": "project", "scope_id": project, "period": "day", "max_tokens": 100_000 });
        admin.put("/v1/budgets", body).await.expect(200);
        let path = format!("/v1/preferences/standards.x?scope_type=project&scope_id={project}");
        admin.put(&path, json!({ "value": "y", "expected_version": 0 })).await.expect(200);
        let path = format!("/v1/projects/{project}/environments");
        admin.post(&path, json!({ "spec": { "setup": ["make"] } })).await.expect(201);
        let path = format!("/v1/projects/{project}/secrets/token");
        admin.put(&path, json!({ "value": "long enough" })).await.expect(200);
        let client = admin.with_header("openai-project", &project.to_string());
        let question = json!({ "model": format!("own-{project}"), "messages": [{ "role": "user", "content": "hi" }] });
        client.post("/v1/chat/completions", question).await.expect(200);
        admin.post(&format!("/v1/tasks/{task}/cancel"), json!(null)).await.expect(200);
    }
    app.settled().await;
    let directory = app.repository(&web.to_string());
    std::fs::create_dir_all(&directory).unwrap();
    let count = async |table: &'static str| app.db.number(table).await;
    let calls = count("SELECT count(*) FROM model_calls").await;
    let events = count("SELECT count(*) FROM events").await;
    admin.delete("/v1/projects/web").await.expect(409);
    admin.post("/v1/projects/web/archive", json!(null)).await.expect(200);
    admin.delete("/v1/projects/web").await.expect(204);
    admin.get("/v1/projects/web").await.expect(404);
    for one in [
        "SELECT count(*) FROM projects",
        "SELECT count(*) FROM tasks",
        "SELECT count(*) FROM workflow_runs",
        "SELECT count(*) FROM agent_tokens",
        "SELECT count(*) FROM project_environments",
        "SELECT count(*) FROM project_secrets",
        "SELECT count(*) FROM models",
        "SELECT count(*) FROM budgets WHERE scope_type = 'project'",
        "SELECT count(*) FROM preferences WHERE scope_type = 'project'",
        "SELECT count(*) FROM preferences WHERE scope_type = 'task'",
    ] {
        assert_eq!(count(one).await, 1, "of the other project: {one}");
    }
    assert_eq!(count("SELECT count(*) FROM model_calls").await, calls);
    assert_eq!(count("SELECT count(*) FROM events").await, events + 2, "archived and deleted");
    // The name is free, and what comes under it is another project.
    admin.post("/v1/projects", json!({ "slug": "web", "title": "Web" })).await.expect(201);
    // The files follow, when nobody can be bringing anything any more.
    maintenance::run_maintenance_once(&app.app).await.unwrap();
    assert!(directory.exists());
    app.db
        .execute("UPDATE deleted_project_files SET deleted_at = deleted_at - interval '2 hours'")
        .await;
    maintenance::run_maintenance_once(&app.app).await.unwrap();
    assert!(!directory.exists());
    assert_eq!(count("SELECT count(*) FROM deleted_project_files").await, 0);
}

#[tokio::test]
async fn files_of_a_deleted_project_are_forgotten_by_the_turn_after_one_that_was_killed() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let web = app.project(&admin, "web").await;
    let directory = app.repository(&web.to_string());
    std::fs::create_dir_all(directory.join("objects")).unwrap();
    admin.post("/v1/projects/web/archive", json!(null)).await.expect(200);
    admin.delete("/v1/projects/web").await.expect(204);
    let count = "SELECT count(*) FROM deleted_project_files";
    app.db
        .execute("UPDATE deleted_project_files SET deleted_at = deleted_at - interval '2 hours'")
        .await;
    // A directory that cannot be removed keeps the note: here a file stands in its place.
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::write(&directory, "in the way").unwrap();
    let turn = maintenance::run_maintenance_once(&app.app).await;
    assert_eq!((turn.is_err(), app.db.number(count).await), (true, 1));
    // Killed when the directory was gone and the note was not: the next turn takes the note.
    std::fs::remove_file(&directory).unwrap();
    maintenance::run_maintenance_once(&app.app).await.unwrap();
    assert_eq!((directory.exists(), app.db.number(count).await), (false, 0));
}
