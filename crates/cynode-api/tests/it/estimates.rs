//! Estimates of tasks before they are created.

use cynode_core::roles::UserRole;
use cynode_testkit::TestApp;
use serde_json::{Value, json};

/// Completes all tasks. The number at the end of its name says how much a task took and cost.
const COMPLETE: &str = "
    UPDATE tasks SET state = 'completed', started_at = '2026-11-01T10:00Z',
        ended_at = '2026-11-01T10:00Z'::timestamptz + right(name, 1)::integer * interval '100 seconds'";
const CHARGE: &str = "
    INSERT INTO model_calls (call_id, started_at, user_id, task_id, credential, trace_id, dialect, model, provider, upstream,
        prompt_digest, redactions, streamed, outcome, basis, input_tokens, cached_tokens, cache_write_tokens, output_tokens,
        reasoning_tokens, cost_micros)
    SELECT gen_random_uuid(), '2026-11-01T10:00Z', created_by, task_id, 'session', repeat('0', 32), 'chat', 'm', 'p', 'm',
        decode(repeat('00', 32), 'hex'), 0, false, 'answered', 'reported', 1, 0, 0, 1, 0, right(name, 1)::integer * 500000
    FROM tasks, generate_series(1, 2)";

#[tokio::test]
async fn a_task_is_estimated_from_completed_tasks_of_its_project_or_of_all() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (web, other) = (app.project(&admin, "web").await, app.project(&admin, "other").await);
    let bob = app.user("bob", None).await;
    app.member(other, &bob, UserRole::Operator).await;
    for name in ["a-1", "a-2"] {
        let body = json!({ "project_id": web, "name": name, "description": "x" });
        admin.post("/v1/tasks", body).await.expect(201);
    }
    app.db.execute(COMPLETE).await;
    let wish = |project: Value| json!({ "project_id": project, "description": "Mend it" });
    let estimate = async |project: Value| {
        admin.post("/v1/task-estimates", wish(project)).await.expect(200).json()
    };
    let unknown = json!({ "basis": "unknown", "samples": 2 });
    assert_eq!(estimate(json!(web)).await, unknown, "two are too few");
    let body = json!({ "project_id": web, "name": "a-3", "description": "x" });
    admin.post("/v1/tasks", body).await.expect(201);
    app.db.execute(COMPLETE).await;
    app.db.execute(CHARGE).await;
    let known = |basis: &str| {
        json!({ "basis": basis, "samples": 3, "cost_micros": { "p50": 2_000_000, "p90": 2_800_000 },
            "seconds": { "p50": 200, "p90": 280 } })
    };
    assert_eq!(estimate(json!(web)).await, known("project"));
    assert_eq!(estimate(json!(other)).await, known("installation"));
    let own = bob.post("/v1/task-estimates", wish(json!(other))).await.expect(200).json();
    assert_eq!(own, json!({ "basis": "unknown", "samples": 0 }), "nothing of other projects");
    bob.post("/v1/task-estimates", wish(json!(web))).await.expect(404);
    assert_eq!(app.db.number("SELECT count(*) FROM tasks").await, 3, "nothing is created");
}
