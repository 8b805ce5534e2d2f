//! Replays: a person has a recorded decision asked again, and nothing but the replay comes of it.

use cynode_core::roles::UserRole;
use cynode_testkit::{Client, TestApp};
use serde_json::{Value, json};

use crate::models::{model, says, scripted};

const REPLAYS: &str = "/v1/handoffs/hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708/decisions/0/replays";

/// A decision of the project manager about the project `web`, with its prompt.
async fn decided(app: &TestApp, admin: &Client) {
    app.project(admin, "web").await;
    let handoff = r#"
        INSERT INTO handoffs (handoff_id, kind, role, state, user_id, project_id, blocks_run, question_key, request, trace_id, created_at, due_at)
        SELECT '0192d5c8-b6f0-7cc1-a1a3-c2b4d5e6f708', 'plan', 'project_manager', 'queued', created_by, project_id, false, '',
            '{ "kind": "plan", "previous_plan": null, "feedback": [], "answer": null, "attempt": 1, "started_units": [] }',
            repeat('a', 32), '2026-11-01T12:00:00Z', '2026-11-01T12:00:00Z'
        FROM projects WHERE slug = 'web'"#;
    assert_eq!(app.db.execute(handoff).await, 1);
    let decision = r#"
        INSERT INTO think_calls (handoff_id, step, handoff_created_at, fencing_token, project_id, kind, prompt_digest, schema_digest, model,
            output, attempts, validation_errors, input_tokens, output_tokens, cost_micros, latency_ms, model_call_ids, trace_id, decided_at)
        SELECT handoff_id, 0, created_at, 1, project_id, 'classify', repeat('b', 64), repeat('c', 64), 'small',
            '{ "reason": "a typo", "class": "quick_fix" }', 1, '{}', 30, 6, 36, 900, '{}', trace_id, created_at
        FROM handoffs"#;
    assert_eq!(app.db.execute(decision).await, 1);
    let prompt = r#"
        INSERT INTO think_prompts (handoff_id, step, prompt, created_at)
        SELECT handoff_id, 0, '{ "model": "small", "temperature": 0.0, "max_tokens": 100,
            "messages": [{ "role": "system", "content": "Classify." }, { "role": "user", "content": "A typo." }],
            "response_format": { "type": "json_schema", "json_schema": { "name": "classify", "strict": true, "schema": {
                "type": "object", "required": ["reason", "class"], "additionalProperties": false,
                "properties": { "reason": { "type": "string" }, "class": { "type": "string", "enum": ["quick_fix", "feature_request"] } }
            } } } }', created_at
        FROM handoffs"#;
    assert_eq!(app.db.execute(prompt).await, 1);
}

fn without<'a>(mut view: Value, names: impl IntoIterator<Item = &'a str>) -> Value {
    for name in names {
        view.as_object_mut().unwrap().remove(name);
    }
    view
}

#[tokio::test]
async fn a_decision_is_asked_again_beside_the_task_and_compared_field_by_field() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    decided(&app, &admin).await;
    scripted(&admin, "tape", true, says(r#"{ "reason": "a typo", "class": "feature_request" }"#))
        .await;
    scripted(&admin, "talk", true, says("It is a quick fix.")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    model(&admin, "other", &["talk"], json!({})).await;
    let tasks = "SELECT count(*) FROM handoffs WHERE state = 'queued' AND fencing_token = 0";
    let replay = admin.post(REPLAYS, json!({})).await.expect(200).json();
    let varying = ["replay_id", "user_id", "call_id", "latency_ms", "created_at", "ended_at"];
    assert_eq!(
        without(replay, varying),
        json!({
            "handoff_id": "hof_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "step": 0, "state": "answered", "model": "small",
            "provider": "tape", "upstream": "theirs",
            "output": { "reason": "a typo", "class": "feature_request" },
            "differences": [{ "path": "/class", "original": "quick_fix", "replay": "feature_request" }],
            "is_same": false, "input_tokens": 10, "output_tokens": 5, "cost_micros": 15,
        })
    );
    let other = admin.post(REPLAYS, json!({ "model": "other" })).await.expect(200).json();
    assert_eq!(
        (&other["state"], &other["answer_text"], &other["model"]),
        (&json!("invalid"), &json!("It is a quick fix."), &json!("other"))
    );
    let listed = admin.get(REPLAYS).await.expect(200).json();
    assert_eq!((&listed["cost_micros"], &listed["prompt_held"]), (&json!(36), &json!(true)));
    assert_eq!(listed["decision"]["output"], json!({ "reason": "a typo", "class": "quick_fix" }));
    assert_eq!(listed["replays"].as_array().unwrap().len(), 2);
    // The project pays, and nothing but the replays has changed.
    let paid = "SELECT count(*) FROM model_calls c JOIN projects p USING (project_id) WHERE p.slug = 'web' AND c.task_id IS NULL";
    assert_eq!(app.db.number(paid).await, 2);
    assert_eq!(app.db.number(tasks).await, 1);
    let told = "SELECT (data ->> 'state') FROM events WHERE kind = 'handoff.replayed' ORDER BY seq";
    assert_eq!(app.db.texts(told).await, ["running", "answered", "running", "invalid"]);
}

#[tokio::test]
async fn a_replay_that_is_sent_again_with_its_key_asks_no_model() {
    let app = TestApp::new().await;
    let admin = app.admin().await.with_header("idempotency-key", "k1");
    decided(&app, &admin).await;
    let other = admin.with_header("idempotency-key", "k2");
    scripted(&other, "tape", true, says(r#"{ "reason": "a typo", "class": "quick_fix" }"#)).await;
    model(&other.with_header("idempotency-key", "k3"), "small", &["tape"], json!({})).await;
    let first = admin.post(REPLAYS, json!({})).await.expect(200);
    let second = admin.post(REPLAYS, json!({})).await.expect(200);
    assert_eq!(first.body, second.body);
    assert_eq!(second.headers["idempotency-replayed"], "true");
    assert_eq!(first.json()["is_same"], true);
    assert_eq!(app.db.number("SELECT count(*) FROM model_calls").await, 1);
}

#[tokio::test]
async fn a_replay_is_refused_without_the_prompt_the_model_or_the_role() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    decided(&app, &admin).await;
    let refused = admin.post(REPLAYS, json!({})).await.expect(404);
    assert_eq!(refused.text("code"), "not_found", "nobody offers the model");
    scripted(&admin, "tape", true, says("{}")).await;
    model(&admin, "small", &["tape"], json!({})).await;
    admin.post(REPLAYS, json!({ "model": "cynodeai.pm" })).await.expect(404);
    let viewer = app.user("viewer", Some(UserRole::Viewer)).await;
    viewer.get(REPLAYS).await.expect(200);
    viewer.post(REPLAYS, json!({})).await.expect(403);
    app.db.execute("DELETE FROM think_prompts").await;
    let gone = admin.post(REPLAYS, json!({})).await.expect(409);
    assert_eq!(gone.text("code"), "conflict");
    assert_eq!(admin.get(REPLAYS).await.expect(200).json()["prompt_held"], false);
    assert_eq!(app.db.number("SELECT count(*) FROM decision_replays").await, 0);
    assert_eq!(app.db.number("SELECT count(*) FROM model_calls").await, 0);
}

#[tokio::test]
async fn a_replay_whose_process_died_is_shown_as_failed() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    decided(&app, &admin).await;
    scripted(&admin, "tape", true, says(r#"{ "reason": "a typo", "class": "quick_fix" }"#)).await;
    model(&admin, "small", &["tape"], json!({})).await;
    admin.post(REPLAYS, json!({})).await.expect(200);
    let cut_off = "UPDATE decision_replays SET state = 'running', output = NULL, ended_at = NULL";
    app.db.execute(cut_off).await;
    let state = async || admin.get(REPLAYS).await.expect(200).json()["replays"][0]["state"].clone();
    assert_eq!(state().await, "running");
    app.db.execute("UPDATE decision_replays SET expires_at = '2026-11-01T11:59:00Z'").await;
    assert_eq!(state().await, "failed");
}
