//! Mandatory policies: what admins demand holds against those who would rather not.

use cynode_core::roles::UserRole;
use cynode_testkit::{Client, Reply, TestApp};
use serde_json::{Value, json};

use crate::{
    models::{ask, chat, model, says, scripted, words},
    workflow::Drive,
};

const PROVIDERS: &str = "model_routing.allowed_external_providers";
const APPROVE_PLAN: &str = "workflow.approve_plan";

async fn demand(client: &Client, key: &str, scope: &str, value: Value) -> Reply {
    client.put(&format!("/v1/policies/{key}?{scope}"), json!({ "value": value })).await
}

async fn prefer(client: &Client, key: &str, scope: &str, value: Value) -> Reply {
    let body = json!({ "value": value, "expected_version": 0 });
    client.put(&format!("/v1/preferences/{key}?{scope}"), body).await
}

#[tokio::test]
async fn a_user_does_not_widen_the_providers_that_an_admin_allows() {
    let app = TestApp::new().await;
    let (admin, mallory) = (app.admin().await, app.user("mallory", Some(UserRole::Operator)).await);
    scripted(&admin, "outside", false, says("outside")).await;
    scripted(&admin, "inside", true, says("inside")).await;
    model(&admin, "both", &["outside", "inside"], json!({})).await;
    let own = format!("scope_type=user&scope_id={}", mallory.user.unwrap());
    let agents = "agents.sandbox_agent.model_routing.allowed_external_providers";
    prefer(&mallory, PROVIDERS, &own, json!(["outside"])).await.expect(200);
    prefer(&mallory, agents, &own, json!(["outside"])).await.expect(200);
    let project = app.project(&admin, "web").await;
    let task = json!({ "project_id": project, "description": "Do it" });
    let task = mallory.post("/v1/tasks", task).await.expect(201).text("id");
    let body =
        json!({ "role": "developer", "project_id": project, "task_id": task, "models": ["both"] });
    let token = mallory.post("/v1/agent-tokens", body).await.expect(201).text("token");
    let agent = app.at_internal_port().with_token(&token);
    for client in [&mallory, &agent] {
        assert_eq!(words(&ask(client, chat("both", "1")).await.expect(200)), "outside");
    }

    demand(&admin, PROVIDERS, "scope_type=system", json!([])).await.expect(200);
    for client in [&mallory, &agent] {
        assert_eq!(words(&ask(client, chat("both", "2")).await.expect(200)), "inside");
    }
    for key in [PROVIDERS, agents] {
        let path = format!("/v1/preferences/{key}?{own}");
        let again = json!({ "value": ["outside"], "expected_version": 1 });
        let refused = mallory.put(&path, again).await.expect(403);
        assert_eq!(refused.text("code"), "policy_denied");
        let said = refused.text("detail");
        let why = "the policy `model_routing.allowed_external_providers` of the installation allows none; admin set it on";
        assert!(said.contains(why), "{said}");
    }
    // A project cannot allow again what the installation does not.
    let scope = format!("scope_type=project&scope_id={project}");
    demand(&admin, PROVIDERS, &scope, json!(["outside"])).await.expect(200);
    assert_eq!(words(&ask(&agent, chat("both", "3")).await.expect(200)), "inside");
    let path = format!("/v1/effective-policies?task_id={task}");
    let held = admin.get(&path).await.expect(200).json();
    assert_eq!(
        (&held["items"][0]["key"], &held["items"][0]["value"]),
        (&json!(PROVIDERS), &json!([]))
    );
    let scopes: Vec<_> = held["items"][0]["sources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["scope_type"])
        .collect();
    assert_eq!(scopes, ["system", "project"]);
}

#[tokio::test]
async fn an_operator_does_not_switch_the_approval_of_a_plan_off_for_a_task() {
    let drive = Drive::new().await;
    let mallory = drive.app.user("mallory", Some(UserRole::Operator)).await;
    let of_task = format!("scope_type=task&scope_id={}", drive.task);
    prefer(&mallory, APPROVE_PLAN, &of_task, json!(false)).await.expect(200);
    let of_project = format!("scope_type=project&scope_id={}", drive.project);
    demand(&drive.admin, APPROVE_PLAN, &of_project, json!(true)).await.expect(200);

    let path = format!("/v1/effective-preferences?task_id={}", drive.task);
    let held = drive.admin.get(&path).await.expect(200).json();
    assert_eq!(held["effective"][APPROVE_PLAN], json!(true));
    assert_eq!(held["sources"][APPROVE_PLAN]["policy"], json!(true));
    let started = drive.start_as(&drive.task, "runner", "key").await.expect(200).json();
    assert_eq!(started["task"]["preferences"][APPROVE_PLAN], json!(true), "the driver asks");

    let again = json!({ "value": false, "expected_version": 1 });
    let path = format!("/v1/preferences/{APPROVE_PLAN}?{of_task}");
    mallory.put(&path, again).await.expect(403);
    let body =
        json!({ "project_id": drive.project, "description": "Do it", "approve_plan": false });
    let refused = mallory.post("/v1/tasks", body).await.expect(403);
    assert_eq!(refused.text("code"), "policy_denied");
    assert_eq!(drive.app.db.number("SELECT count(*) FROM tasks").await, 1);
}

#[tokio::test]
async fn a_policy_reaches_a_run_that_has_read_its_preferences_before() {
    let drive = Drive::new().await;
    let of_task = format!("scope_type=task&scope_id={}", drive.task);
    prefer(&drive.admin, APPROVE_PLAN, &of_task, json!(false)).await.expect(200);
    let mut held = drive.start().await;
    let state = json!({ "preferences_effective": { APPROVE_PLAN: false } });
    drive.go(&mut held, "pass", json!({ "state": state })).await;
    demand(&drive.admin, APPROVE_PLAN, "scope_type=system", json!(true)).await.expect(200);
    let resumed = drive.resume().await;
    assert_eq!(resumed["position"]["state"]["preferences_effective"][APPROVE_PLAN], json!(true));
    assert_eq!(resumed["task"]["preferences"][APPROVE_PLAN], json!(true));
}

#[tokio::test]
async fn an_admin_of_a_project_makes_its_policies_stricter_and_never_looser() {
    let app = TestApp::new().await;
    let (admin, owner) = (app.admin().await, app.user("owner", None).await);
    let project = app.project(&admin, "web").await;
    app.member(project, &owner, UserRole::Admin).await;
    let scope = format!("scope_type=project&scope_id={project}");
    let labels = "placement.allowed_labels";
    demand(&admin, labels, &scope, json!(["eu", "ch"])).await.expect(200);
    demand(&owner, labels, &scope, json!(["eu"])).await.expect(200);
    for wider in [json!(["eu", "us"]), json!(["eu", "ch"])] {
        assert_eq!(
            demand(&owner, labels, &scope, wider).await.expect(403).text("code"),
            "policy_denied"
        );
    }
    owner.delete(&format!("/v1/policies/{labels}?{scope}")).await.expect(403);
    demand(&owner, labels, "scope_type=system", json!([])).await.expect(403);
    let listed = owner.get(&format!("/v1/policies?{scope}")).await.expect(200).json();
    assert_eq!(listed["items"][0]["value"], json!(["eu"]));
    admin.delete(&format!("/v1/policies/{labels}?{scope}")).await.expect(204);
    admin.delete(&format!("/v1/policies/{labels}?{scope}")).await.expect(404);
    let kinds = "SELECT kind FROM events WHERE kind LIKE 'policy.%' ORDER BY xact, seq";
    assert_eq!(app.db.texts(kinds).await, ["policy.set", "policy.set", "policy.deleted"]);
}

#[tokio::test]
async fn what_nobody_would_enforce_is_refused() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let system = "scope_type=system";
    let said = demand(&admin, "workflow.approve_plans", system, json!(true))
        .await
        .expect(422)
        .text("detail");
    assert!(said.contains("is `workflow.approve_plan` meant?"), "{said}");
    demand(&admin, APPROVE_PLAN, system, json!(false)).await.expect(422);
    demand(&admin, PROVIDERS, system, json!("eu")).await.expect(422);
    let own = format!("scope_type=user&scope_id={}", admin.user.unwrap());
    demand(&admin, APPROVE_PLAN, &own, json!(true)).await.expect(422);
    let domains = "security.web_browse.allowed_domains";
    let said = prefer(&admin, domains, system, json!(["docs.rs"])).await.expect(422).text("detail");
    assert!(said.contains("is a policy, which admins set"), "{said}");
    assert_eq!(app.db.number("SELECT count(*) FROM mandatory_policies").await, 0);
}

#[tokio::test]
async fn the_author_of_a_task_does_not_approve_its_plan_where_four_eyes_are_demanded() {
    let drive = Drive::new().await;
    let eve = drive.app.user("eve", Some(UserRole::Operator)).await;
    let of_project = format!("scope_type=project&scope_id={}", drive.project);
    demand(&drive.admin, "approvals.four_eyes", &of_project, json!(true)).await.expect(200);
    let mut held = drive.start().await;
    drive.go(&mut held, "pass", json!({})).await;
    drive
        .step(&held, "wait", json!({ "wait": { "reason": "approval", "question": "May it?" } }))
        .await
        .expect(200);
    let path = format!("/v1/tasks/{}/approve", drive.task);
    let yes = json!({ "approved": true });
    assert_eq!(
        drive.admin.post(&path, yes.clone()).await.expect(403).text("code"),
        "policy_denied"
    );
    eve.post(&path, yes).await.expect(200);
}
