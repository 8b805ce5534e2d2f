use cynode_core::roles::UserRole;
use cynode_testkit::{Client, TestApp};
use serde_json::{Value, json};

const STYLE: &str = "output.summary_style";

async fn set(client: &Client, scope: &str, key: &str, value: Value) -> u16 {
    let body = json!({ "value": value, "expected_version": 0 });
    client.put(&format!("/v1/preferences/{key}?{scope}"), body).await.status
}

#[tokio::test]
async fn the_strongest_scope_holds_and_is_named() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let task = json!({ "project_id": project, "description": "Do it" });
    let task = admin.post("/v1/tasks", task).await.expect(201).text("id");
    let group = admin.post("/v1/groups", json!({ "name": "devs" })).await.expect(201).text("id");
    admin.patch(&format!("/v1/groups/{group}"), json!({ "add": [admin.user] })).await.expect(200);

    let scopes = [
        ("system", "scope_type=system".to_owned(), Value::Null),
        ("group", format!("scope_type=group&scope_id={group}"), json!(group)),
        ("user", format!("scope_type=user&scope_id={}", admin.user.unwrap()), json!(admin.user)),
        ("project", format!("scope_type=project&scope_id={project}"), json!(project)),
        ("task", format!("scope_type=task&scope_id={task}"), json!(task)),
    ];
    for (name, query, id) in scopes {
        assert_eq!(set(&admin, &query, STYLE, json!(name)).await, 200);
        let found =
            admin.get(&format!("/v1/effective-preferences?task_id={task}")).await.expect(200);
        assert_eq!(found.json()["effective"], json!({ STYLE: name }), "S000-067, S000-070");
        let source = &found.json()["sources"][STYLE];
        assert_eq!(source["scope_type"], name);
        assert_eq!(source["scope_id"], id, "S000-070: by the id of the user, group, project, task");
        assert_eq!(source["version"], 1);
    }
}

#[tokio::test]
async fn the_keys_of_one_agent_never_reach_the_other() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let manager = "agents.project_manager.model_routing.prefer_local";
    let analyst = "agents.project_analyst.model_routing.prefer_local";
    set(&admin, "scope_type=system", manager, json!(true)).await;
    set(&admin, "scope_type=system", analyst, json!(false)).await;
    set(&admin, "scope_type=system", STYLE, json!("brief")).await;
    let for_role = async |role: &str| {
        let path = format!("/v1/effective-preferences?agent_role={role}");
        admin.get(&path).await.expect(200).json()["effective"].clone()
    };
    let wanted = json!({ manager: true, STYLE: "brief" });
    assert_eq!(for_role("project_manager").await, wanted, "S000-106, S000-108");
    let wanted = json!({ analyst: false, STYLE: "brief" });
    assert_eq!(for_role("project_analyst").await, wanted, "S000-107, S000-108");
}

#[tokio::test]
async fn a_value_of_the_wrong_kind_is_refused_and_an_old_one_is_passed_over() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let key = "agents.project_manager.model_routing.prefer_local";
    assert_eq!(set(&admin, "scope_type=system", key, json!("yes")).await, 422);
    assert_eq!(set(&admin, "scope_type=system", key, json!(true)).await, 200);
    // A value from a time when the key had no type yet.
    app.db
        .execute(
            "INSERT INTO preferences (scope_type, scope_id, key, value, version, updated_by, updated_at)
             SELECT 'user', user_id, 'agents.project_manager.model_routing.prefer_local', '\"yes\"', 1, user_id, now()
             FROM users",
        )
        .await;
    let found = admin.get("/v1/effective-preferences").await.expect(200).json();
    assert_eq!(found["effective"], json!({ key: true }));
    assert_eq!(found["invalid"][0]["key"], key);
    assert_eq!(found["invalid"][0]["source"]["scope_type"], "user");
}

#[tokio::test]
async fn each_scope_has_its_own_writers() {
    let app = TestApp::new().await;
    let (admin, bob) = (app.admin().await, app.user("bob", None).await);
    let project = app.project(&admin, "web").await;
    app.member(project, &bob, UserRole::Operator).await;
    let task = json!({ "project_id": project, "description": "Do it" });
    let task = bob.post("/v1/tasks", task).await.expect(201).text("id");
    let own = format!("scope_type=user&scope_id={}", bob.user.unwrap());
    let others = format!("scope_type=user&scope_id={}", admin.user.unwrap());
    for (scope, status) in [
        ("scope_type=system".to_owned(), 403),
        (own, 200),
        (others, 403),
        (format!("scope_type=project&scope_id={project}"), 403),
        (format!("scope_type=task&scope_id={task}"), 200),
    ] {
        assert_eq!(set(&bob, &scope, STYLE, json!("brief")).await, status, "{scope}");
    }
}

#[tokio::test]
async fn what_the_author_of_a_task_prefers_is_not_for_those_who_only_watch() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let (author, steers, watches) =
        (app.user("ann", None).await, app.user("bob", None).await, app.user("eve", None).await);
    app.member(project, &author, UserRole::Operator).await;
    app.member(project, &steers, UserRole::Operator).await;
    app.member(project, &watches, UserRole::Viewer).await;
    let own = format!("scope_type=user&scope_id={}", author.user.unwrap());
    assert_eq!(set(&author, &own, STYLE, json!("blunt")).await, 200);
    let task = json!({ "project_id": project, "description": "Do it" });
    let task = author.post("/v1/tasks", task).await.expect(201).text("id");
    let path = format!("/v1/effective-preferences?task_id={task}");
    for (client, status) in [(&author, 200), (&steers, 200), (&watches, 403)] {
        client.get(&path).await.expect(status);
    }
}

#[tokio::test]
async fn a_preference_is_versioned_kept_and_deleted_like_a_setting() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let path = format!("/v1/preferences/{STYLE}?scope_type=system");
    let write = |value: &str, version: u32| json!({ "value": value, "expected_version": version });
    admin.put(&path, write("a", 0)).await.expect(200);
    admin.put(&path, write("b", 0)).await.expect(409);
    admin.put(&path, write("b", 1)).await.expect(200);
    assert_eq!(admin.get(&path).await.expect(200).json()["value"], "b");
    admin.delete(&format!("{path}&expected_version=1")).await.expect(409);
    admin.delete(&format!("{path}&expected_version=2")).await.expect(204);
    admin.get(&path).await.expect(404);
    let history = format!("/v1/preferences/{STYLE}/history?scope_type=system");
    let items = admin.get(&history).await.expect(200).json()["items"].clone();
    let versions: Vec<_> =
        items.as_array().unwrap().iter().map(|item| item["version"].clone()).collect();
    assert_eq!(versions, [3, 2, 1]);
}

#[tokio::test]
async fn a_scope_that_contradicts_itself_is_refused() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    for query in [
        "",
        "scope_type=planet",
        "scope_type=user",
        "scope_type=system&scope_id=usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "scope_type=user&scope_id=prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
    ] {
        admin.get(&format!("/v1/preferences?{query}")).await.expect(400);
    }
}

#[tokio::test]
async fn a_preference_that_nobody_reads_is_refused_with_the_nearest_name() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let refused = async |key: &str| {
        let body = json!({ "value": true, "expected_version": 0 });
        let path = format!("/v1/preferences/{key}?scope_type=system");
        admin.put(&path, body).await.expect(422).text("detail")
    };
    assert_eq!(
        refused("workflow.approve_plans").await,
        "there is no preference `workflow.approve_plans`; is `workflow.approve_plan` meant?"
    );
    assert_eq!(
        refused("foo.bar").await,
        "there is no preference `foo.bar`; docs/reference/preferences.md lists them all; what agents are to be told goes under \
         `standards.<name>`"
    );
    assert_eq!(app.db.number("SELECT count(*) FROM preferences").await, 0);
}
