//! Profiles that tasks, schedules and chats name, up to the jobs that nodes get. (S001-10, S001-22, B001-17, B001-22)

use cynode_app::workflow::schedules;
use cynode_core::ids::ProjectId;
use cynode_testkit::{
    TestApp,
    provider::{Behaviour, TestProvider},
};
use serde_json::{Value, json};

use crate::{
    models::{ask, chat},
    nodes::{Machine, path, work},
    workflow::Drive,
};

/// Everything but the network, as `default`, with what `more` says otherwise.
fn spec(more: &Value) -> Value {
    let mut spec = json!({ "tools": ["*"], "variables": ["*"], "models": ["*"], "memory": "write",
        "paths": { "read": ["**"], "write": ["**"] } });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

#[tokio::test]
async fn a_task_names_a_profile_that_exists_and_has_its_budget_unless_it_has_one_of_its_own() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let other = app.project(&admin, "other").await;
    let cheap = json!({ "name": "cheap", "project_id": project, "spec": spec(&json!({ "budget_micros": 700_000 })) });
    admin.post("/v1/profiles", cheap).await.expect(201);
    let task = |project: ProjectId, more: Value| {
        let mut body = json!({ "project_id": project, "description": "Do it" });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let made = admin.post("/v1/tasks", task(project, json!({ "profile": "cheap" }))).await;
    let made = made.expect(201).json();
    assert_eq!(
        (&made["profile"], &made["budget"]["max_cost_micros"]),
        (&json!("cheap"), &json!(700_000))
    );
    let read = admin.get(&format!("/v1/tasks/{}", made["id"].as_str().unwrap())).await;
    assert_eq!(read.expect(200).json()["profile"], "cheap");
    let told = "SELECT data ->> 'profile' FROM events WHERE kind = 'task.created'";
    assert_eq!(app.db.texts(told).await, ["cheap"]);
    // Its own budget, a profile without one, and no profile at all.
    let own = json!({ "profile": "cheap", "budget": { "max_cost_micros": 5, "max_tokens": null } });
    let made = admin.post("/v1/tasks", task(project, own)).await.expect(201).json();
    assert_eq!(made["budget"]["max_cost_micros"], 5);
    let default = admin.post("/v1/tasks", task(project, json!({}))).await.expect(201).json();
    let offline = task(project, json!({ "profile": "offline", "name": "offline" }));
    let offline = admin.post("/v1/tasks", offline).await.expect(201).json();
    assert_eq!((default.get("profile"), &default["budget"]), (None, &offline["budget"]));
    // A profile of another project, of nobody, and what is no name.
    let before = app.db.number("SELECT count(*) FROM tasks").await;
    let refused = admin.post("/v1/tasks", task(other, json!({ "profile": "cheap" }))).await;
    assert!(refused.expect(422).text("detail").contains("`cheap` does not exist"));
    let named = task(project, json!({ "profile": "nobody", "name": "named" }));
    admin.post("/v1/tasks", named).await.expect(422);
    admin.post("/v1/tasks", task(project, json!({ "profile": "NO NAME" }))).await.expect(400);
    assert_eq!(app.db.number("SELECT count(*) FROM tasks").await, before);
}

#[tokio::test]
async fn a_repeated_request_with_a_profile_makes_one_task_and_a_retry_keeps_the_profile() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let body = json!({ "project_id": project, "name": "once", "description": "Do it", "profile": "builder" });
    let keyed = admin.with_header("idempotency-key", "a-key-of-its-own");
    let first = keyed.post("/v1/tasks", body.clone()).await.expect(201).json();
    assert_eq!(keyed.post("/v1/tasks", body).await.expect(201).json(), first);
    assert_eq!(app.db.number("SELECT count(*) FROM tasks").await, 1);
    let task = format!("/v1/tasks/{}", first["id"].as_str().unwrap());
    admin.post(&format!("{task}/cancel"), json!(null)).await.expect(200);
    let again = json!({ "project_id": project, "description": "Do it" });
    let again = admin.post(&format!("{task}/retry"), again).await.expect(201).json();
    assert_eq!(again["profile"], "builder");
}

#[tokio::test]
async fn a_job_and_each_of_its_events_carry_the_profile_that_its_task_names() {
    let mut drive = Drive::new().await;
    let body =
        json!({ "project_id": drive.project, "description": "Build it", "profile": "builder" });
    drive.task = drive.admin.post("/v1/tasks", body).await.expect(201).text("id");
    // The task's profile wins over the preference.
    let preference = json!({ "value": "offline", "expected_version": 0 });
    drive
        .admin
        .put("/v1/preferences/memory.profile?scope_type=system", preference)
        .await
        .expect(200);
    let mut payload = work();
    payload["work"]["sandbox"] = json!({ "memory_mib": 4096, "processes": 100_000 });
    drive.dispatched_with(&["a"], &payload).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 1).await;
    let job = node.claim(1, 1).await.remove(0);
    assert_eq!(
        (&job["profile"]["name"], &job["profile"]["version"]),
        (&json!("builder"), &json!(1))
    );
    let sandbox = &job["work"]["sandbox"];
    let sizes = [&sandbox["memory_mib"], &sandbox["cpu_percent"], &sandbox["processes"]];
    assert_eq!(json!(sizes), json!([4096, 400, 1024]), "B001-17");
    let told = json!({ "fencing_token": job["fencing_token"], "first": 0,
        "events": [{ "at_ms": 1, "event": "message", "data": { "text": "hello" } }] });
    node.client.post(&path(&job, "events"), told).await.expect(200);
    let log = format!("/v1/jobs/{}/events", job["job_id"].as_str().unwrap());
    let events = drive.admin.get(&log).await.expect(200).json();
    let event = &events["items"][0];
    assert_eq!((&event["profile"], &event["number"]), (&json!("builder"), &json!(0)), "B001-22");
    assert_eq!(event["trace_id"], job["trace_id"], "S001-22");
    let tokens = format!("/v1/agent-tokens?project_id={}&all=true", drive.project);
    let tokens = drive.admin.get(&tokens).await.expect(200).json();
    let token = tokens["items"].as_array().unwrap().iter();
    let mut token = token.filter(|it| it["agent_token_id"] == job["agent_token_id"]);
    assert_eq!(token.next().unwrap()["profile"], "builder");
}

#[tokio::test]
async fn a_job_under_a_profile_that_hides_files_or_is_gone_fails_with_the_reason() {
    for (name, more, reason) in [
        ("hides", json!({ "paths": { "read": ["docs/**"] } }), "cannot hide files"),
        ("gone", json!({}), "`gone` that the task or a preference names does not exist"),
        // A later release wrote it.
        ("later", json!({}), "`later` that the task or a preference names does not exist"),
    ] {
        let mut drive = Drive::new().await;
        let body = json!({ "name": name, "spec": spec(&more) });
        drive.admin.post("/v1/profiles", body).await.expect(201);
        let body =
            json!({ "project_id": drive.project, "description": "Build it", "profile": name });
        drive.task = drive.admin.post("/v1/tasks", body).await.expect(201).text("id");
        drive.dispatched_with(&["a"], &work()).await;
        if name == "gone" {
            drive.admin.delete("/v1/profiles/gone").await.expect(204);
        }
        let unreadable = "UPDATE profiles SET spec = '{\"newer\": true}' WHERE name = 'later'";
        drive.app.db.execute(unreadable).await;
        let node = Machine::join(&drive.app, &drive.admin, 1, 1).await;
        assert_eq!(node.claim(1, 1).await, Vec::<Value>::new());
        let result = "SELECT (result ->> 'stop_reason') || ' ' || (result ->> 'summary') FROM jobs WHERE state = 'failed'";
        let result = drive.app.db.texts(result).await.remove(0);
        assert!(result.starts_with("impossible ") && result.contains(reason), "{name}: {result}");
    }
}

#[tokio::test]
async fn a_schedule_passes_its_profile_on_to_tasks_and_to_what_the_manager_is_asked() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let schedule = |name: &str, action: Value, profile: &str| {
        json!({ "project_id": project, "name": name, "action": action, "profile": profile,
            "trigger": { "kind": "cron", "expression": "0 9 * * *" } })
    };
    let task = json!({ "kind": "task", "description": "Build it all." });
    let words = json!({ "kind": "words", "text": "Look around." });
    admin.post("/v1/schedules", schedule("missing", task.clone(), "nobody")).await.expect(422);
    let made = admin.post("/v1/schedules", schedule("nightly", task, "builder")).await.expect(201);
    assert_eq!(made.json()["profile"], "builder");
    let place = format!("/v1/schedules/{}", made.text("schedule_id"));
    let change = json!({ "expected_version": 1, "profile": "offline" });
    assert_eq!(admin.patch(&place, change).await.expect(200).json()["profile"], "offline");
    let change = json!({ "expected_version": 2, "profile": "nobody" });
    admin.patch(&place, change).await.expect(422);
    admin.post("/v1/schedules", schedule("reading", words, "research")).await.expect(201);
    app.clock.advance(time::Duration::days(1));
    assert_eq!(schedules::fire_due_schedules(&app.app).await.unwrap(), 2);
    assert_eq!(app.db.texts("SELECT profile FROM tasks").await, ["offline"]);
    let asked = "SELECT profile FROM handoffs WHERE kind = 'schedule'";
    assert_eq!(app.db.texts(asked).await, ["research"]);
}

#[tokio::test]
async fn a_chat_is_answered_under_the_profile_that_it_names_and_keeps_it() {
    let manager = TestProvider::serve(Behaviour::default()).await;
    let app = TestApp::with_manager(&manager.url()).await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    let person = admin.with_header("openai-project", &project.to_string());
    let under = |profile: &str| person.with_header("x-cynode-profile", profile);
    ask(&person, chat("cynodeai.pm", "one")).await.expect(200);
    app.clock.advance(time::Duration::seconds(1));
    ask(&under("research"), chat("cynodeai.pm", "two")).await.expect(200);
    app.clock.advance(time::Duration::seconds(1));
    // The newest conversation has that profile: it goes on, also without a name.
    ask(&under("research"), chat("cynodeai.pm", "three")).await.expect(200);
    ask(&person, chat("cynodeai.pm", "four")).await.expect(200);
    let listed = person.get("/v1/chat/threads").await.expect(200).json();
    let threads = listed["items"].as_array().unwrap();
    let told: Vec<_> = threads.iter().map(|it| (it["title"].clone(), it.get("profile"))).collect();
    assert_eq!(told, [(json!("two"), Some(&json!("research"))), (json!("one"), None)]);
    let profiles = "SELECT a.profile FROM agent_tokens a JOIN handoffs h USING (handoff_id) ORDER BY h.created_at";
    let profiles = app.db.texts(profiles).await;
    assert_eq!(profiles, ["default", "research", "research", "research"]);
    // Another profile is another conversation, and one that does not exist is refused.
    let thread = threads[0]["thread_id"].as_str().unwrap();
    let other = under("offline").with_header("x-cynode-thread", thread);
    ask(&other, chat("cynodeai.pm", "five")).await.expect(400);
    ask(&under("nobody"), chat("cynodeai.pm", "six")).await.expect(400);
    ask(&under("NO NAME"), chat("cynodeai.pm", "seven")).await.expect(400);
    assert_eq!(app.db.number("SELECT count(*) FROM chat_threads").await, 2);
}

#[tokio::test]
async fn a_profile_says_what_it_permits() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let questions = json!({ "questions": [
        { "kind": "tool", "name": "web.fetch" }, { "kind": "request", "method": "get", "host": "Docs.rs" },
        { "kind": "request", "method": "POST", "host": "docs.rs" }, { "kind": "variable", "name": "CI" },
        { "kind": "read", "path": "a/b" }, { "kind": "write", "path": "../a" }, { "kind": "model", "id": "m" },
    ] });
    let told = admin.post("/v1/profiles/research/check", questions).await.expect(200).json();
    assert_eq!((&told["name"], &told["version"]), (&json!("research"), &json!(1)));
    let allowed: Vec<_> =
        told["decisions"].as_array().unwrap().iter().map(|it| it["allowed"].clone()).collect();
    assert_eq!(json!(allowed), json!([true, true, false, false, true, false, true]));
    assert_eq!(told["decisions"][0]["question"], json!({ "kind": "tool", "name": "web.fetch" }));
    admin.post("/v1/profiles/research/check", json!({ "questions": [] })).await.expect(422);
    let one = json!({ "questions": [{ "kind": "model", "id": "m" }] });
    admin.post("/v1/profiles/nobody/check", one).await.expect(404);
}
