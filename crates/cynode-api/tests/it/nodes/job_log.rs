//! Changes of jobs as events, the log of a job as a stream, and the artifacts of jobs.

use axum::http::Method;
use cynode_core::roles::UserRole;

use super::*;
use crate::events::Stream;

/// A job that a node has claimed.
struct Claimed {
    drive: Drive,
    node: Machine,
    job: Value,
}

impl Claimed {
    async fn new() -> Self {
        let drive = Drive::new().await;
        drive.dispatched_with(&["a"], &work()).await;
        let node = Machine::join(&drive.app, &drive.admin, 1, 1).await;
        let job = node.claim(1, 1).await.remove(0);
        Self { drive, node, job }
    }

    async fn say(&self, first: u64, text: &str) {
        let event = json!({ "at_ms": first, "event": "message", "data": { "text": text } });
        let body = json!({ "fencing_token": self.job["fencing_token"], "first": first, "events": [event] });
        self.node.client.post(&path(&self.job, "events"), body).await.expect(200);
    }

    async fn finish(&self, artifacts: Value) {
        let result =
            json!({ "summary": "done", "stop_reason": "end_turn", "artifacts": artifacts });
        let body = json!({ "fencing_token": self.job["fencing_token"], "outcome": "succeeded", "result": result });
        self.node.client.post(&path(&self.job, "result"), body).await.expect(200);
    }

    fn log(&self) -> String {
        format!("/v1/jobs/{}/events/stream", self.job["job_id"].as_str().unwrap())
    }
}

#[tokio::test]
async fn each_change_of_a_jobs_state_is_one_event_and_log_lines_are_none() {
    let drive = Drive::new().await;
    let place = format!("/v1/events?task_id={}", drive.task);
    let mut stream = Stream::open(&drive.admin, &place).await;
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 1).await;
    let job = node.claim(1, 1).await.remove(0);
    // The same claim again changes nothing.
    assert_eq!(node.claim(1, 1).await.len(), 1);
    let claimed = Claimed { drive, node, job };
    claimed.say(0, "one").await;
    claimed.node.heartbeat(&[&claimed.job], json!([])).await;
    claimed.finish(json!({})).await;
    let mut changes = Vec::new();
    while changes.len() < 3 {
        let event = stream.next().await.unwrap();
        if event.kind == "job.changed" {
            changes.push(event.data);
        }
    }
    let told: Vec<Value> = changes.iter().map(|it| it["data"].clone()).collect();
    let id = &claimed.job["job_id"];
    let node = claimed.node.id;
    assert_eq!(
        told,
        [
            json!({ "job_id": id, "state": "queued", "attempt": 1, "unit": "a", "checks": false }),
            json!({ "job_id": id, "state": "running", "attempt": 1, "unit": "a", "checks": false, "node_id": node }),
            json!({ "job_id": id, "state": "succeeded", "attempt": 1, "unit": "a", "checks": false, "node_id": node }),
        ]
    );
    let places: Vec<_> = changes.iter().map(|it| (&it["project_id"], &it["task_id"])).collect();
    let (project, task) = (json!(claimed.drive.project), json!(claimed.drive.task));
    assert_eq!(places, [(&project, &task); 3]);
    let all = "SELECT count(*) FROM events WHERE kind = 'job.changed'";
    assert_eq!(claimed.drive.app.db.number(all).await, 3);
}

#[tokio::test]
async fn a_job_that_is_cancelled_or_lost_is_told_too() {
    let claimed = Claimed::new().await;
    let states = async |claimed: &Claimed| {
        let states =
            "SELECT data ->> 'state' FROM events WHERE kind = 'job.changed' ORDER BY xact, seq";
        claimed.drive.app.db.texts(states).await
    };
    let cancel = format!("/v1/tasks/{}/cancel", claimed.drive.task);
    claimed.drive.admin.post(&cancel, json!(null)).await.expect(200);
    assert_eq!(states(&claimed).await, ["queued", "running", "cancelled"]);
    let claimed = Claimed::new().await;
    let lost = "UPDATE jobs SET state = 'lost', ended_at = clock_timestamp()";
    claimed.drive.app.db.execute(lost).await;
    assert_eq!(states(&claimed).await, ["queued", "running", "lost"], "whatever statement it is");
}

#[tokio::test]
async fn the_log_of_a_job_is_followed_to_its_end_and_who_comes_back_misses_nothing() {
    let claimed = Claimed::new().await;
    claimed.say(0, "one").await;
    let mut log = Stream::open(&claimed.drive.admin, &claimed.log()).await;
    let first = log.next().await.unwrap();
    assert_eq!((first.id.as_str(), first.kind.as_str()), ("0", "job.event"));
    assert_eq!((&first.data["number"], &first.data["event"]), (&json!(0), &json!("message")));
    assert_eq!(first.data["data"], json!({ "text": "one" }));
    claimed.say(1, "two").await;
    assert_eq!(log.next().await.unwrap().data["data"], json!({ "text": "two" }));
    let back = claimed.drive.admin.with_header("last-event-id", "0");
    let mut again = Stream::open(&back, &claimed.log()).await;
    assert_eq!(again.next().await.unwrap().id, "1");
    let mut late = Stream::open(&claimed.drive.admin, &format!("{}?from=2", claimed.log())).await;
    claimed.finish(json!({})).await;
    for stream in [&mut log, &mut again, &mut late] {
        let last = stream.next().await.unwrap();
        assert_eq!((last.id.as_str(), last.kind.as_str()), ("", "job.ended"));
        assert_eq!(last.data, json!({ "job_id": claimed.job["job_id"], "state": "succeeded" }));
        assert!(stream.next().await.is_none(), "nothing follows the end");
    }
    // A log that has ended is whole, too.
    let mut whole = Stream::open(&claimed.drive.admin, &claimed.log()).await;
    let mut kinds = Vec::new();
    while let Some(event) = whole.next().await {
        kinds.push(event.kind);
    }
    assert_eq!(kinds, ["job.event", "job.event", "job.ended"]);
    let wrong = claimed.drive.admin.with_header("last-event-id", "yesterday");
    assert_eq!(wrong.raw(Method::GET, &claimed.log(), None).await.status(), 400);
    let stranger = claimed.drive.app.user("stranger", None).await;
    assert_eq!(stranger.raw(Method::GET, &claimed.log(), None).await.status(), 404);
}

#[tokio::test]
async fn a_followed_log_ends_when_its_reader_may_not_see_it_any_more() {
    let claimed = Claimed::new().await;
    let project = claimed.drive.project.parse().unwrap();
    let bob = claimed.drive.app.user("bob", None).await;
    claimed.drive.app.member(project, &bob, UserRole::Viewer).await;
    claimed.say(0, "one").await;
    let mut log = Stream::open(&bob, &claimed.log()).await;
    assert_eq!(log.next().await.unwrap().id, "0");
    claimed.drive.app.db.execute("DELETE FROM project_members").await;
    claimed.say(1, "two").await;
    let last = log.next().await.unwrap();
    assert_eq!((last.id.as_str(), last.kind.as_str()), ("", "stream.failed"));
    assert_eq!(last.data["status"], 404);
    assert!(log.next().await.is_none());
}

#[tokio::test]
async fn the_artifacts_of_a_task_are_listed_and_downloaded_by_its_people_alone() {
    let claimed = Claimed::new().await;
    let stored = store(&claimed.node, &claimed.job, b"0123456789").await;
    claimed.finish(json!({ "a \"report\".txt": stored })).await;
    let admin = &claimed.drive.admin;
    let list = format!("/v1/tasks/{}/artifacts", claimed.drive.task);
    let mut shown = admin.get(&list).await.expect(200).json();
    let id = shown["items"][0]["id"].take().as_str().unwrap().to_owned();
    assert!(shown["items"][0]["created_at"].take().is_string());
    assert_eq!(
        shown,
        json!({ "items": [{ "id": null, "project_id": claimed.drive.project, "task_id": claimed.drive.task,
            "job_id": claimed.job["job_id"], "name": "a \"report\".txt", "media_type": "application/octet-stream",
            "sha256": stored["sha256"], "bytes": 10, "created_at": null }] })
    );
    let place = format!("/v1/artifacts/{id}");
    let read = async |client: &Client| {
        let response = client.raw(Method::GET, &place, None).await;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, headers, body)
    };
    let (status, headers, body) = read(admin).await;
    assert_eq!((status, &body[..]), (200, &b"0123456789"[..]));
    assert_eq!(headers["content-type"], "application/octet-stream");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    let name = "attachment; filename*=UTF-8''a%20%22report%22.txt";
    assert_eq!(headers["content-disposition"], name);
    let (status, headers, body) = read(&admin.with_header("range", "bytes=2-4")).await;
    assert_eq!((status, &body[..]), (206, &b"234"[..]));
    assert_eq!(headers["content-range"], "bytes 2-4/10");
    assert_eq!(headers["content-length"], "3");
    let (status, _, body) = read(&admin.with_header("range", "bytes=20-")).await;
    assert_eq!((status, body.len()), (200, 10), "a range that is not there is no range");
    let stranger = claimed.drive.app.user("stranger", None).await;
    assert_eq!(read(&stranger).await.0, 404);
    stranger.get(&list).await.expect(404);
    let project = claimed.drive.project.parse().unwrap();
    claimed.drive.app.member(project, &stranger, UserRole::Viewer).await;
    assert_eq!(read(&stranger).await.0, 200);
}
