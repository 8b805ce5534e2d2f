use cynode_core::roles::Role;
use cynode_testkit::TestApp;
use serde_json::json;

#[tokio::test]
async fn whoever_makes_a_project_is_its_first_admin() {
    let app = TestApp::new().await;
    let bob = app.user("bob", Some(Role::Operator)).await;
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
    assert_eq!(make("web").await.expect(409).text("code"), "taken");
    for slug in ["../etc", "A", "", "a b", "a\u{0}b"] {
        assert_eq!(make(slug).await.expect(400).text("code"), "malformed", "{slug:?}");
    }
}
