//! Jobs, as whoever works on them sees them.

use cynode_app::identity::service_tokens::ServiceKind;
use cynode_testkit::Client;
use serde_json::{Value, json};

use crate::workflow::Drive;

fn claim(number: u32, most: u32) -> Value {
    json!({ "claim_id": format!("0192d5c8-b6f0-7cc1-a1a3-{number:012}"), "max_jobs": most })
}

async fn claimed(worker: &Client, number: u32, most: u32) -> Vec<Value> {
    let answer = worker.post("/v1/jobs/claim", claim(number, most)).await.expect(200).json();
    answer["jobs"].as_array().unwrap().clone()
}

fn result_path(job: &Value) -> String {
    format!("/v1/jobs/{}/result", job["job_id"].as_str().unwrap())
}

fn done(job: &Value) -> Value {
    json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded", "result": { "ok": true } })
}

#[tokio::test]
async fn a_claim_sent_again_gives_the_same_jobs_and_no_two_workers_get_the_same() {
    let drive = Drive::new().await;
    drive.dispatched(&["a", "b", "c"]).await;
    let left = drive.app.service(ServiceKind::Worker, "left").await;
    let right = drive.app.service(ServiceKind::Worker, "right").await;
    let first = claimed(&left, 1, 2).await;
    assert_eq!(first.len(), 2);
    assert_eq!(claimed(&left, 1, 2).await, first);
    // Another worker does not get them by guessing the claim.
    let second = claimed(&right, 1, 5).await;
    assert_eq!(second.len(), 1);
    let unit = |job: &Value| job["unit"].as_str().unwrap().to_owned();
    let mut units: Vec<_> = first.iter().chain(&second).map(unit).collect();
    units.sort();
    assert_eq!(units, ["a", "b", "c"]);
    assert_eq!(claimed(&left, 2, 5).await, Vec::<Value>::new());
    left.post("/v1/jobs/claim", claim(3, 0)).await.expect(422);
}

#[tokio::test]
async fn a_job_of_a_task_that_may_not_ask_models_waits_until_it_may() {
    let drive = Drive::new().await;
    drive.dispatched(&["a"]).await;
    let worker = drive.app.service(ServiceKind::Worker, "w").await;
    let park = "INSERT INTO task_parks (task_id, kind, reason, parked_until, parked_at)
        SELECT task_id, 'quota', 'used up', clock_timestamp() + interval '1 hour', clock_timestamp() FROM tasks";
    drive.app.db.execute(park).await;
    assert_eq!(claimed(&worker, 1, 1).await, Vec::<Value>::new());
    drive.app.db.execute("UPDATE task_parks SET parked_until = clock_timestamp()").await;
    assert_eq!(claimed(&worker, 2, 1).await.len(), 1);
}

#[tokio::test]
async fn a_job_is_told_what_to_do_and_what_was_wrong_the_last_time() {
    let drive = Drive::new().await;
    drive.dispatched(&["a"]).await;
    let worker = drive.app.service(ServiceKind::Worker, "w").await;
    let job = claimed(&worker, 1, 1).await.remove(0);
    assert_eq!(job["task_id"], json!(drive.task));
    assert_eq!((&job["attempt"], &job["fencing_token"]), (&json!(1), &json!(1)));
    let payload = json!({ "title": "a", "unit": null, "remedy": null, "timeout_seconds": 600 });
    assert_eq!(job["payload"], payload);
}

#[tokio::test]
async fn a_result_is_taken_once_and_only_from_whoever_has_the_job() {
    let drive = Drive::new().await;
    drive.dispatched(&["a"]).await;
    let worker = drive.app.service(ServiceKind::Worker, "w").await;
    let other = drive.app.service(ServiceKind::Worker, "other").await;
    let job = claimed(&worker, 1, 1).await.remove(0);
    let refused = other.post(&result_path(&job), done(&job)).await.expect(409);
    assert_eq!(refused.text("code"), "fenced");
    let mut old = done(&job);
    old["fencing_token"] = json!(0);
    assert_eq!(worker.post(&result_path(&job), old).await.expect(409).text("code"), "fenced");
    let first = worker.post(&result_path(&job), done(&job)).await.expect(200).json();
    let again = worker.post(&result_path(&job), done(&job)).await.expect(200).json();
    assert_eq!(first, again);
    let wakes = drive.app.db.number("SELECT wake_count FROM workflow_runs").await;
    assert_eq!(wakes, 1, "S002-27: a result of the job API wakes the run that collects it");
    // What was said cannot be unsaid.
    let mut failed = done(&job);
    failed["outcome"] = json!("failed");
    assert_eq!(
        worker.post(&result_path(&job), failed).await.expect(409).text("code"),
        "invalid_state",
        "B004-54"
    );
    let alive = format!("/v1/jobs/{}/alive", job["job_id"].as_str().unwrap());
    worker.post(&alive, json!({ "fencing_token": 1 })).await.expect(409);
    let unknown = "/v1/jobs/job_0192d5c8b6f07cc1a1a3c2b4d5e6f708/result";
    worker.post(unknown, done(&job)).await.expect(404);
}

#[tokio::test]
async fn a_late_result_of_a_stopped_task_is_refused() {
    let drive = Drive::new().await;
    drive.dispatched(&["a"]).await;
    let worker = drive.app.service(ServiceKind::Worker, "w").await;
    let job = claimed(&worker, 1, 1).await.remove(0);
    drive
        .admin
        .send("POST".parse().unwrap(), &format!("/v1/tasks/{}/cancel", drive.task), None)
        .await
        .expect(200);
    let refused = worker.post(&result_path(&job), done(&job)).await.expect(409);
    assert_eq!(refused.text("detail"), "a job that is cancelled cannot be reported about");
    let results = "SELECT count(*) FROM jobs WHERE result IS NOT NULL";
    assert_eq!(drive.app.db.number(results).await, 0);
}
