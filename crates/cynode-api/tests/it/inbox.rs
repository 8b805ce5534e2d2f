//! The inbox: what waits for one person, in one list.

use cynode_app::tools::approvals::{self, ApprovalOutcome, ApprovalRequest};
use cynode_core::{
    ids::{CallId, ProjectId},
    roles::UserRole,
};
use cynode_testkit::{Client, TestApp};
use serde_json::{Value, json};

struct Scene {
    app: TestApp,
    admin: Client,
    project: ProjectId,
    /// The id of one of its tasks.
    task: String,
}

impl Scene {
    /// A project with one thing of each kind that waits for a person.
    async fn new() -> Self {
        let app = TestApp::new().await;
        let admin = app.admin().await;
        let project = app.project(&admin, "web").await;
        let mut task = String::new();
        for name in ["planned", "curious", "parked", "later", "undelivered"] {
            let body = json!({ "project_id": project, "name": name, "description": "Do it" });
            task = admin.post("/v1/tasks", body).await.expect(201).text("id");
        }
        for statement in [
            "INSERT INTO task_dependencies SELECT l.task_id, p.task_id FROM tasks l, tasks p WHERE l.name = 'later' AND p.name = 'planned'",
            "INSERT INTO waits (wait_id, task_id, sequence, reason, owner, question, opened_at)
             SELECT gen_random_uuid(), task_id, 1, 'approval', 'person', 'May I?', '2026-11-01T10:00Z' FROM tasks WHERE name = 'planned'",
            "INSERT INTO waits (wait_id, task_id, sequence, reason, owner, question, opened_at)
             SELECT gen_random_uuid(), task_id, 1, 'human_input', 'person', E'Which\\u202e colour?', '2026-11-01T10:01Z'
             FROM tasks WHERE name = 'curious'",
            "INSERT INTO task_parks (task_id, kind, reason, parked_at)
             SELECT task_id, 'repeats', 'the same question was asked 5 times in a row', '2026-11-01T10:02Z' FROM tasks WHERE name = 'parked'",
            "INSERT INTO project_environments (project_id, version, digest, spec, origin, reasons, warnings, state, proposed_at)
             SELECT project_id, 1, repeat('a', 64), '{\"setup\": [\"npm ci\"]}', 'detected', '[]', '[\"no lock file\"]', 'proposed',
             '2026-11-01T10:03Z' FROM projects",
            "INSERT INTO pull_requests (pull_request_id, project_id, task_id, number, forge, branch, base_branch, base_commit, title, body, state,
             failure, created_at, updated_at)
             SELECT gen_random_uuid(), project_id, task_id, 1, 'local', 'cynode/undelivered', 'main', repeat('b', 40), 'Do it', '', 'failed',
             'the forge said no', '2026-11-01T10:04Z', '2026-11-01T10:04Z' FROM tasks WHERE name = 'undelivered'",
            "INSERT INTO tool_servers (server_id, name, title, transport, prefix, audience, owner_id, scope, timeout_ms, max_in_flight, enabled,
             created_at, updated_at)
             SELECT gen_random_uuid(), 'weather', 'Weather', '{\"transport\": {\"type\": \"http\", \"url\": \"https://w.example\"}, \"secrets\": []}',
             '', 'everybody', user_id, 'both', 1000, 1, true, '2026-11-01T10:05Z', '2026-11-01T10:05Z' FROM users WHERE handle = 'admin'",
            "INSERT INTO server_tools (server_id, tool, name, definition, annotations, seen_at)
             SELECT server_id, 'rain', 'rain', '{}', '{}', '2026-11-01T10:05Z' FROM tool_servers",
        ] {
            app.db.execute(statement).await;
        }
        Self { app, admin, project, task }
    }

    /// Lets an agent ask whether it may call a tool.
    async fn ask_for_call(&self) -> String {
        let agent =
            json!({ "role": "developer", "project_id": self.project, "task_id": self.task });
        let agent =
            self.admin.post("/v1/agent-tokens", agent).await.expect(201).text("agent_token_id");
        let asked = ApprovalRequest {
            agent: agent.parse().unwrap(),
            project: Some(self.project),
            task: None,
            tool: "git.push".into(),
            arguments: [1; 32],
            policy: [2; 32],
            rules: vec!["some".into()],
        };
        let trace = self.app.app.environment().new_trace_id();
        let request = cynode_app::OperationRequest { caller: None, trace, attempt: None };
        let call: CallId = "cal_00000000000000000000000000000001".parse().unwrap();
        let arguments = "{\"branch\":\"main\"}";
        let asked =
            approvals::obtain_approval(&self.app.app, &request, &asked, arguments, call).await;
        match asked.unwrap() {
            ApprovalOutcome::Waiting(approval) => approval.id.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

/// The kinds, titles, texts and actions of an inbox.
fn summary(inbox: &Value) -> Vec<Value> {
    let items = inbox["items"].as_array().unwrap().iter();
    items
        .map(|it| json!([it["kind"], it["title"], it["text"], it["blocked_tasks"], it["actions"]]))
        .collect()
}

#[tokio::test]
async fn all_that_waits_for_a_person_is_one_list_by_how_much_stands_still() {
    let scene = Scene::new().await;
    let approval = scene.ask_for_call().await;
    let inbox = scene.admin.get("/v1/inbox").await.expect(200).json();
    assert_eq!(
        summary(&inbox),
        [
            json!([
                "plan",
                "May the plan of planned be carried out?",
                "May I?",
                2,
                ["approve", "send_back", "cancel"]
            ]),
            json!([
                "question",
                "curious asks a question",
                "Which\\u{202e} colour?",
                1,
                ["answer", "cancel"]
            ]),
            json!([
                "parked",
                "parked is parked: it may not call models",
                "the same question was asked 5 times in a row",
                1,
                ["unpark", "cancel"]
            ]),
            json!([
                "delivery",
                "The work of undelivered could not be delivered",
                "the forge said no",
                1,
                ["close"]
            ]),
            json!([
                "environment",
                "May jobs of web run in environment 1?",
                "setup:\n    [\n      \"npm ci\"\n    ]\nWarning: no lock file",
                0,
                ["accept", "reject"]
            ]),
            json!([
                "tool_definition",
                "weather offers tools that nobody has accepted",
                "rain (new)",
                0,
                ["accept"]
            ]),
            json!([
                "call",
                "May an agent call git.push?",
                "git.push\nbranch: main",
                0,
                ["approve", "deny"]
            ]),
        ]
    );
    let counts = json!({ "total": 7, "plan": 1, "question": 1, "call": 1, "environment": 1, "tool_definition": 1,
        "delivery": 1, "parked": 1 });
    assert_eq!(inbox["counts"], counts);
    assert_eq!(inbox["items"][6]["id"], approval.as_str());
    assert_eq!(inbox["items"][0]["project_slug"], "web");
    assert_eq!(inbox["items"][4]["id"], "web/1");
}

#[tokio::test]
async fn an_inbox_holds_only_what_its_person_may_decide() {
    let scene = Scene::new().await;
    scene.ask_for_call().await;
    let kinds = async |client: &Client| {
        let inbox = client.get("/v1/inbox").await.expect(200).json();
        let items = inbox["items"].as_array().unwrap().iter();
        let mut kinds: Vec<String> =
            items.map(|it| it["kind"].as_str().unwrap().to_owned()).collect();
        assert_eq!(inbox["counts"]["total"], kinds.len());
        kinds.sort_unstable();
        kinds
    };
    let own = ["call", "delivery", "parked", "plan", "question"];
    let stranger = scene.app.user("stranger", None).await;
    assert!(kinds(&stranger).await.is_empty());
    let viewer = scene.app.user("viewer", Some(UserRole::Viewer)).await;
    assert!(kinds(&viewer).await.is_empty(), "a viewer decides nothing");
    scene.app.member(scene.project, &stranger, UserRole::Viewer).await;
    assert!(kinds(&stranger).await.is_empty());
    scene.app.member(scene.project, &stranger, UserRole::Operator).await;
    assert_eq!(kinds(&stranger).await, own);
    scene.app.member(scene.project, &stranger, UserRole::Admin).await;
    assert_eq!(
        kinds(&stranger).await,
        ["call", "delivery", "environment", "parked", "plan", "question"]
    );
    let operator = scene.app.user("operator", Some(UserRole::Operator)).await;
    assert_eq!(kinds(&operator).await, own);
    // An archived project waits for nobody.
    let archive = "UPDATE projects SET archived_at = created_at, archived_by = created_by";
    scene.app.db.execute(archive).await;
    assert_eq!(kinds(&scene.admin).await, ["tool_definition"]);
}

#[tokio::test]
async fn what_was_decided_is_gone_from_every_inbox() {
    let scene = Scene::new().await;
    let approval = scene.ask_for_call().await;
    let other = scene.app.user("other", Some(UserRole::Admin)).await;
    let count = async |client: &Client| {
        client.get("/v1/inbox").await.expect(200).json()["counts"]["total"].as_u64().unwrap()
    };
    assert_eq!((count(&scene.admin).await, count(&other).await), (7, 7));
    let path = format!("/v1/approvals/{approval}");
    other.post(&path, json!({ "approved": false })).await.expect(200);
    scene.admin.post("/v1/projects/web/environments/1/reject", json!({})).await.expect(200);
    assert_eq!((count(&scene.admin).await, count(&other).await), (5, 5));
}

#[tokio::test]
async fn where_four_eyes_are_demanded_an_author_is_not_offered_to_approve() {
    let scene = Scene::new().await;
    scene.app.db.execute(
        "INSERT INTO mandatory_policies (scope_type, scope_id, key, value, set_by, set_at)
         SELECT 'system', '00000000-0000-0000-0000-000000000000', 'approvals.four_eyes', 'true', user_id, now() FROM users WHERE handle = 'admin'",
    ).await;
    let other = scene.app.user("other", Some(UserRole::Operator)).await;
    let actions = async |client: &Client| {
        let inbox = client.get("/v1/inbox").await.expect(200).json();
        let plan = inbox["items"].as_array().unwrap().iter().find(|it| it["kind"] == "plan");
        plan.unwrap()["actions"].clone()
    };
    assert_eq!(actions(&scene.admin).await, json!(["send_back", "cancel"]));
    assert_eq!(actions(&other).await, json!(["approve", "send_back", "cancel"]));
}

#[tokio::test]
async fn who_looks_at_an_item_is_shown_to_the_others_and_told_once() {
    let scene = Scene::new().await;
    let other = scene.app.user("other", Some(UserRole::Operator)).await;
    let inbox = scene.admin.get("/v1/inbox").await.expect(200).json();
    let plan = inbox["items"][0]["id"].as_str().unwrap().to_owned();
    let place = format!("/v1/inbox/{plan}/presence");
    let viewers = async |client: &Client| {
        let inbox = client.get("/v1/inbox").await.expect(200).json();
        inbox["items"][0].get("viewers").cloned()
    };
    let told = async || {
        let told = "SELECT data ->> 'item' FROM events WHERE kind = 'inbox.viewed'";
        scene.app.db.texts(told).await
    };
    assert_eq!(viewers(&scene.admin).await, None);
    for _ in 0..2 {
        other.put(&place, json!({})).await.expect(204);
    }
    assert_eq!(viewers(&scene.admin).await, Some(json!(["other"])));
    assert_eq!(viewers(&other).await, None, "nobody is told of themselves");
    assert_eq!(told().await, std::slice::from_ref(&plan), "a repeat is no news");
    let later = "UPDATE inbox_viewers SET seen_at = seen_at - interval '31 seconds'";
    assert_eq!(scene.app.db.execute(later).await, 1);
    assert_eq!(viewers(&scene.admin).await, None);
    other.put(&place, json!({})).await.expect(204);
    assert_eq!(told().await, [plan.clone(), plan.clone()]);
}

#[tokio::test]
async fn only_what_is_in_ones_own_inbox_can_be_looked_at() {
    let scene = Scene::new().await;
    let other = scene.app.user("other", Some(UserRole::Operator)).await;
    // The environment is the matter of admins; its id has a slash.
    let place = "/v1/inbox/web%2F1/presence";
    other.put(place, json!({})).await.expect(404);
    scene.admin.put(place, json!({})).await.expect(204);
    scene.admin.put("/v1/inbox/nothing/presence", json!({})).await.expect(404);
    scene.admin.put(place, json!({ "for": "ever" })).await.expect(400);
    assert_eq!(scene.app.db.number("SELECT count(*) FROM inbox_viewers").await, 1);
}
