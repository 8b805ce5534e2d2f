//! Whoever waits rests until there is something, and misses nothing.

use std::time::Duration;

use cynode_app::{
    App,
    platform::wakeups::{self, ReconcileInterval},
};
use cynode_testkit::{TestApp, TestDb};
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    events::Stream,
    nodes::{Machine, work},
    workflow::Drive,
};

/// A look that no test waits for: what is found is found by a wake-up.
const NEVER: Duration = Duration::from_hours(1);

/// Shorter than whoever rests looks by itself.
const SOON: Duration = Duration::from_secs(4);

/// Looks for a process until it is dropped.
pub(crate) struct Attended(CancellationToken);

impl Attended {
    pub(crate) fn begin(app: &App, every: Duration) -> Self {
        let stop = CancellationToken::new();
        let pace = ReconcileInterval { every, redispatch_after: Duration::from_secs(5) };
        TaskTracker::new().spawn(wakeups::run_wakeups(app.clone(), pace, stop.clone()));
        Self(stop)
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

async fn until(holds: impl Fn() -> bool) {
    let looks = async {
        let mut turn = tokio::time::interval(Duration::from_millis(5));
        while !holds() {
            turn.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), looks).await.expect("it holds after a while");
}

/// What a node gets that waits for a job.
async fn wait_for_job(node: &Machine, number: u32) -> Vec<Value> {
    let claim_id = format!("0192d5c8-b6f0-7cc1-a1a3-{number:012}");
    let body = json!({ "claim_id": claim_id, "max_jobs": 1, "wait_ms": 15_000,
        "applies_profiles": true });
    let given = tokio::time::timeout(SOON, node.client.post("/v1/nodes/claim", body)).await;
    let given = given.expect("the job is given soon").expect(200).json();
    given["jobs"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_node_that_waits_is_woken_by_the_job_that_was_placed_on_it() {
    let drive = Drive::new().await;
    let attended = Attended::begin(&drive.app.app, NEVER);
    let idle = Machine::join(&drive.app, &drive.admin, 1, 0).await;
    let node = Machine::join(&drive.app, &drive.admin, 2, 1).await;
    let queue = async {
        tokio::task::yield_now().await;
        drive.dispatched_with(&["a"], &work()).await;
    };
    let body = json!({ "claim_id": "0192d5c8-b6f0-7cc1-a1a3-000000000001", "max_jobs": 1, "wait_ms": 1500 });
    let other = idle.client.post("/v1/nodes/claim", body);
    let (given, other, ()) = tokio::join!(wait_for_job(&node, 2), other, queue);
    let units: Vec<_> = given.iter().map(|job| job["unit"].clone()).collect();
    assert_eq!(units, [json!("a")], "B004-17: a unit that is sent finds somebody at once");
    assert_eq!(other.expect(200).json(), json!({ "jobs": [] }), "it has no room");
    drop(attended);
}

#[tokio::test]
async fn what_happens_in_another_process_is_heard() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (other, elsewhere) = app.replica_app();
    let attended = [Attended::begin(&app.app, NEVER), Attended::begin(&other, NEVER)];
    until(|| app.app.hears_peers() && other.hears_peers()).await;
    let mut stream = Stream::open(&admin, "/v1/events").await;
    let elsewhere = elsewhere.with_token(&admin.token().unwrap());
    let body = json!({ "slug": "web", "title": "Web" });
    elsewhere.post("/v1/projects", body).await.expect(201);
    let heard = tokio::time::timeout(SOON, stream.next()).await.expect("it is heard soon");
    assert_eq!(heard.unwrap().kind, "project.created");
    drop(attended);
}

#[tokio::test]
async fn what_an_older_transaction_held_back_is_heard_soon_after_its_end() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (other, _) = app.replica_app();
    let attended = [Attended::begin(&app.app, NEVER), Attended::begin(&other, NEVER)];
    until(|| app.app.hears_peers() && other.hears_peers()).await;
    let mut stream = Stream::open(&admin, "/v1/events").await;
    let mut older = app.db.begin().await;
    crate::events::write_one(&mut older).await;
    admin.post("/v1/projects", json!({ "slug": "web", "title": "Web" })).await.expect(201);
    let early = tokio::time::timeout(Duration::from_millis(300), stream.next()).await;
    assert!(early.is_err(), "it could still be overtaken");
    older.rollback().await.unwrap();
    let heard = tokio::time::timeout(SOON, stream.next()).await.expect("it is heard soon");
    assert_eq!(heard.unwrap().kind, "project.created");
    drop(attended);
}

#[tokio::test]
async fn a_stream_says_that_the_database_was_lost_and_goes_on_where_it_ended() {
    let app = TestApp::new().await;
    let admin = app.admin().await;
    let (other, _) = app.replica_app();
    let attended = [Attended::begin(&app.app, NEVER), Attended::begin(&other, NEVER)];
    until(|| app.app.hears_peers() && other.hears_peers()).await;
    let mut stream = Stream::open(&admin, "/v1/events").await;
    app.db
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .await;
    let last = tokio::time::timeout(SOON, stream.next()).await.expect("it is said soon").unwrap();
    assert_eq!((last.id.as_str(), last.kind.as_str()), ("", "stream.failed"));
    let said = (&last.data["status"], &last.data["code"], &last.data["detail"]);
    let wanted = (json!(503), json!("unavailable"), json!("the database cannot be reached"));
    assert_eq!(said, (&wanted.0, &wanted.1, &wanted.2));
    assert!(stream.next().await.is_none());
    let mut stream = Stream::open(&admin, "/v1/events").await;
    admin.post("/v1/projects", json!({ "slug": "web", "title": "Web" })).await.expect(201);
    assert_eq!(stream.next().await.unwrap().kind, "project.created");
    drop(attended);
}

#[tokio::test]
async fn where_no_process_is_heard_one_look_finds_what_waits() {
    let drive = Drive::over(TestApp::over(TestDb::new().await.with_connections(5))).await;
    let attended = Attended::begin(&drive.app.app, Duration::from_millis(50));
    let node = Machine::join(&drive.app, &drive.admin, 1, 1).await;
    drive.dispatched_with(&["a"], &work()).await;
    // As if another process had queued it: nobody is told here.
    drive.app.db.execute("UPDATE jobs SET state = 'cancelled', ended_at = now()").await;
    let appear = async {
        tokio::task::yield_now().await;
        drive.app.db.execute("UPDATE jobs SET state = 'queued', ended_at = NULL").await;
    };
    let (given, ()) = tokio::join!(wait_for_job(&node, 1), appear);
    assert_eq!(given.len(), 1);
    assert!(!drive.app.app.hears_peers());
    drop(attended);
}

#[tokio::test]
async fn heartbeats_of_idle_nodes_are_written_down_with_the_next_look() {
    let drive = Drive::new().await;
    let nodes = [
        Machine::join(&drive.app, &drive.admin, 1, 1).await,
        Machine::join(&drive.app, &drive.admin, 2, 1).await,
    ];
    let attended = Attended::begin(&drive.app.app, Duration::from_millis(50));
    drive.app.db.execute("UPDATE nodes SET last_seen_at = now() - interval '1 hour'").await;
    let alive = "SELECT count(*) FROM nodes WHERE last_seen_at > now() - interval '1 minute'";
    assert_eq!(drive.app.db.number(alive).await, 0);
    let nothing = json!({ "jobs": [], "delivered": [] });
    for node in &nodes {
        let said = node.client.post("/v1/nodes/heartbeat", nothing.clone()).await.expect(200);
        assert_eq!(said.json(), json!({ "stop": [], "instructions": [], "draining": false }));
    }
    let seen = async { while drive.app.db.number(alive).await < 2 {} };
    tokio::time::timeout(SOON, seen).await.expect("both are heard of");
    let stranger = nodes[0].client.with_token("cyn_node_of_nobody");
    stranger.post("/v1/nodes/heartbeat", nothing).await.expect(401);
    drop(attended);
}
