//! Requests whose client goes away.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use cynode_testkit::TestApp;
use serde_json::json;

/// Goes on with something for a while, and then drops it.
async fn begin_and_drop<T>(future: impl Future<Output = T>, polls: usize) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let done = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if done {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_at_any_moment_leaves_nothing_half_done() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let project = app.project(&admin, "web").await;
    for polls in 1..=120 {
        // Without a name it takes a transaction of its own.
        let body = json!({ "project_id": project, "description": "Dropped" });
        begin_and_drop(admin.post("/v1/tasks", body), polls).await;
    }
    // What is answered afterwards is there, whatever connection it went through.
    for _ in 0..16 {
        let body = json!({ "project_id": project, "description": "Kept" });
        admin.post("/v1/tasks", body).await.expect(201);
    }
    let open = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(app.db.number(open).await, 0);
    let without_event = "SELECT count(*) FROM tasks t
        WHERE NOT EXISTS (SELECT FROM events e WHERE e.task_id = t.task_id AND e.kind = 'task.created')";
    assert_eq!(app.db.number(without_event).await, 0);
    assert_eq!(app.db.number("SELECT count(*) FROM tasks WHERE description = 'Kept'").await, 16);
}
