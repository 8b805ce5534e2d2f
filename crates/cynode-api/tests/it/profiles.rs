//! Profiles over HTTP: who writes them, what is kept of them, and what can name them.

use cynode_core::roles::UserRole;
use cynode_testkit::{Client, TestApp};
use serde_json::{Value, json};

fn narrow() -> Value {
    json!({ "description": "Writes documents.", "tools": ["help.*", "memory.search"],
        "paths": { "read": ["**"], "write": ["docs/**"] }, "memory": "read" })
}

/// Asks for a token of a developer on a task.
async fn issue(admin: &Client, work: &Value, more: Value) -> cynode_testkit::Reply {
    let mut body = work.clone();
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    admin.post("/v1/agent-tokens", body).await
}

/// A developer's work on a new task of a new project.
async fn work(app: &TestApp, admin: &Client) -> Value {
    let project = app.project(admin, "web").await;
    let task = json!({ "project_id": project, "description": "x" });
    let task = admin.post("/v1/tasks", task).await.expect(201).text("id");
    json!({ "role": "developer", "project_id": project, "task_id": task })
}

#[tokio::test]
async fn a_profile_has_versions_and_of_two_writers_one_is_told() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let body = json!({ "name": "docs", "spec": narrow() });
    let made = admin.post("/v1/profiles", body.clone()).await.expect(201).json();
    assert_eq!((&made["version"], &made["shipped"]), (&json!(1), &json!(false)));
    assert_eq!(made["spec"]["paths"]["write"], json!(["docs/**"]));
    let again = admin.post("/v1/profiles", body.clone()).await.expect(409);
    assert_eq!(again.text("code"), "already_exists", "B001-14: one name, one profile");
    let path = "/v1/profiles/docs";
    let write = |version: u32| json!({ "expected_version": version, "spec": { "tools": ["*"] } });
    let changed = admin.put(path, write(1)).await.expect(200).json();
    assert_eq!((&changed["version"], &changed["spec"]["tools"]), (&json!(2), &json!(["*"])));
    let late = admin.put(path, write(1)).await.expect(409);
    assert_eq!(late.text("code"), "version_conflict");
    assert_eq!(admin.put(path, write(2)).await.expect(200).json()["version"], 2, "no change");
    assert_eq!(admin.get(path).await.expect(200).json(), changed);
    let versions = async || {
        let all = admin.get("/v1/profiles/docs/versions").await.expect(200).json();
        let items = all["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["version"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(versions().await, [2, 1]);
    admin.delete(path).await.expect(204);
    admin.get(path).await.expect(404);
    admin.delete(path).await.expect(404);
    admin.put(path, write(2)).await.expect(404);
    assert_eq!(versions().await, [2, 1], "the history stays");
    let again = admin.post("/v1/profiles", body).await.expect(201).json();
    assert_eq!(again["version"], 3, "versions are never used twice");
    let kinds = "SELECT kind FROM events WHERE kind LIKE 'profile.%' ORDER BY seq";
    assert_eq!(
        app.db.texts(kinds).await,
        ["profile.created", "profile.updated", "profile.deleted", "profile.created"]
    );
}

#[tokio::test]
async fn the_installation_and_projects_have_profiles_that_their_own_admins_write() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let (owner, member) = (app.user("owner", None).await, app.user("member", None).await);
    app.member(project, &owner, UserRole::Admin).await;
    app.member(project, &member, UserRole::Operator).await;
    let stranger = app.user("stranger", None).await;
    let own = json!({ "name": "docs", "project_id": project, "spec": narrow() });
    let common = json!({ "name": "docs", "spec": { "tools": ["*"] } });
    member.post("/v1/profiles", own.clone()).await.expect(403);
    stranger.post("/v1/profiles", own.clone()).await.expect(404);
    owner.post("/v1/profiles", common.clone()).await.expect(403);
    owner.post("/v1/profiles", own).await.expect(201);
    admin.post("/v1/profiles", common).await.expect(201);
    let place = format!("/v1/profiles/docs?project_id={project}");
    let found = member.get(&place).await.expect(200).json();
    assert_eq!(found["project_id"], json!(project), "X-13: the project's own comes first");
    assert_eq!(admin.get("/v1/profiles/docs").await.expect(200).json()["project_id"], json!(null));
    stranger.get(&place).await.expect(404);
    let list = format!("/v1/profiles?project_id={project}");
    let listed = member.get(&list).await.expect(200).json();
    let names: Vec<_> = listed["items"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["default", "offline", "research", "builder", "reviewer", "docs", "docs"]);
    let elsewhere = app.project(&admin, "other").await;
    let of_other = admin.get(&format!("/v1/profiles?project_id={elsewhere}")).await.expect(200);
    assert_eq!(of_other.json()["items"].as_array().unwrap().len(), 6, "X-13: nothing of another");
    member.delete(&place).await.expect(403);
    owner.delete(&place).await.expect(204);
    member.get(&place).await.expect(404);
    let listed = member.get(&list).await.expect(200).json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 5, "X-13: nor does its namesake hold");
    admin.get("/v1/profiles/docs").await.expect(200);
    owner.delete(&place).await.expect(404);
    let again = json!({ "name": "docs", "project_id": project, "spec": narrow() });
    owner.post("/v1/profiles", again).await.expect(201);
    assert_eq!(member.get(&place).await.expect(200).json()["version"], 2);
}

#[tokio::test]
async fn what_comes_with_the_product_can_neither_be_changed_nor_shadowed() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    for name in ["default", "offline", "research", "builder", "reviewer"] {
        let path = format!("/v1/profiles/{name}");
        let shipped = admin.get(&path).await.expect(200).json();
        assert_eq!((&shipped["shipped"], &shipped["version"]), (&json!(true), &json!(1)));
        let body = json!({ "expected_version": 1, "spec": { "tools": ["*"] } });
        let refused = admin.put(&path, body).await.expect(409);
        assert!(refused.text("detail").contains("another name"), "{}", refused.text("detail"));
        admin.delete(&path).await.expect(409);
        for place in [json!(null), json!(project)] {
            let body = json!({ "name": name, "project_id": place, "spec": {} });
            admin.post("/v1/profiles", body).await.expect(409);
        }
        let copied = json!({ "name": format!("my-{name}"), "spec": shipped["spec"] });
        admin.post("/v1/profiles", copied).await.expect(201);
    }
}

#[tokio::test]
async fn a_profile_that_nobody_could_mean_is_refused_with_the_field() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for (spec, field) in [
        (json!({ "tools": ["db*"] }), "tools"),
        (json!({ "network": [{ "domain": "https://docs.rs", "methods": ["GET"] }] }), "network"),
        (json!({ "paths": { "read": ["../outside"] } }), "paths.read"),
        (json!({ "models": vec!["m"; 201] }), "models"),
    ] {
        let refused = admin.post("/v1/profiles", json!({ "name": "odd", "spec": spec })).await;
        let refused = refused.expect(422).text("detail");
        assert!(refused.contains(field), "{refused}");
    }
    let unknown = json!({ "name": "odd", "spec": { "tool": ["*"] } });
    admin.post("/v1/profiles", unknown).await.expect(400);
    for name in ["", "Odd", "9", "a--b", "a_b", "../a"] {
        let body = json!({ "name": name, "spec": {} });
        admin.post("/v1/profiles", body).await.expect(422);
    }
    assert_eq!(app.db.number("SELECT count(*) FROM profiles").await, 0);
}

#[tokio::test]
async fn a_token_names_a_profile_that_exists_and_network_only_takes_away() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let work = work(&app, &admin).await;
    let missing = issue(&admin, &work, json!({ "profile": "researcher" })).await.expect(404);
    assert!(missing.text("detail").contains("research"), "{}", missing.text("detail"));
    issue(&admin, &work, json!({ "profile": "No Name" })).await.expect(422);
    let refused = issue(&admin, &work, json!({ "network": true })).await.expect(422);
    assert!(refused.text("detail").contains("`default` has no network"), "S001-40");
    for (more, network) in [
        (json!({}), false),
        (json!({ "profile": "research" }), true),
        (json!({ "profile": "research", "network": true }), true),
        (json!({ "profile": "research", "network": false }), false),
    ] {
        let issued = issue(&admin, &work, more.clone()).await.expect(201).json();
        assert_eq!(issued["network"], network, "S001-40: {more}");
    }
    admin
        .put(
            "/v1/preferences/memory.profile?scope_type=system",
            json!({ "value": "gone", "expected_version": 0 }),
        )
        .await
        .expect(200);
    let refused = issue(&admin, &work, json!({})).await.expect(422);
    assert!(refused.text("detail").contains("`gone`"), "S001-18: never `default` instead");
}

#[tokio::test]
async fn a_token_without_a_profile_works_under_that_of_the_preferences() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let work = work(&app, &admin).await;
    admin.post("/v1/profiles", json!({ "name": "docs", "spec": narrow() })).await.expect(201);
    let value = json!({ "value": "docs", "expected_version": 0 });
    admin.put("/v1/preferences/memory.profile?scope_type=system", value).await.expect(200);
    let issued = issue(&admin, &work, json!({})).await.expect(201).json();
    assert_eq!(issued["profile"], "docs", "S001-18");
    let named = issue(&admin, &work, json!({ "profile": "offline" })).await.expect(201).json();
    assert_eq!(named["profile"], "offline", "S001-18: what is named comes first");
    let explain = json!({ "agent_token_id": issued["agent_token_id"], "tool": "skills.list" });
    let told = admin.post("/v1/policy/explain", explain).await.expect(200).json();
    assert_eq!(
        (&told["reason"], &told["profile"], &told["profile_version"]),
        (&json!("not_in_profile"), &json!("docs"), &json!(1)),
        "B001-13"
    );
}
