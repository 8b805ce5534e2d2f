//! The continuous sweep.

use std::{
    fs::File,
    future::Future,
    path::Path,
    pin::Pin,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cynode_app::{
    background::{
        maintenance,
        reconciler::{self, DueRun, EngineError, WorkflowEngine},
    },
    identity::service_tokens::ServiceKind,
};
use cynode_core::ids::TaskId;
use cynode_testkit::{NOW, TestApp};
use serde_json::{Value, json};

use crate::workflow::{Drive, create_job};

/// Writes down what it is told.
#[derive(Default)]
struct Listener {
    told: Mutex<Vec<DueRun>>,
    deaf: AtomicBool,
}

impl WorkflowEngine for Listener {
    fn dispatch_run<'a>(
        &'a self,
        due: &'a DueRun,
    ) -> Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send + 'a>> {
        Box::pin(async move {
            if self.deaf.load(Ordering::Relaxed) {
                return Err(EngineError("away".into()));
            }
            self.told.lock().unwrap().push(due.clone());
            Ok(())
        })
    }
}

const LATER: Duration = Duration::from_mins(1);

impl Listener {
    async fn hears(&self, drive: &Drive, redispatch_after: Duration) -> Vec<String> {
        reconciler::dispatch_due(&drive.app.app, self, redispatch_after).await.unwrap();
        let told = std::mem::take(&mut *self.told.lock().unwrap());
        told.into_iter().map(|due| due.task.to_string()).collect()
    }
}

#[tokio::test]
async fn the_engine_is_told_of_a_task_as_soon_as_it_is_asked_for() {
    let (drive, engine) = (Drive::new().await, Listener::default());
    let blocked = drive.another(json!([drive.task])).await;
    let heard = engine.hears(&drive, LATER).await;
    assert_eq!(
        heard,
        vec![drive.task.clone()],
        "S000-035, S002-22, S002-52, B023-03, X-04: the ready task and no other"
    );
    let again = engine.hears(&drive, LATER).await;
    assert_eq!(again, Vec::<String>::new(), "S002-22: one workflow for a task");
    // It was told, and nothing came of it.
    assert_eq!(engine.hears(&drive, Duration::ZERO).await, vec![drive.task.clone()]);
    crate::workflow::complete(&drive, &drive.task).await;
    assert_eq!(engine.hears(&drive, LATER).await, [blocked]);
}

#[tokio::test]
async fn a_run_that_somebody_drives_is_left_alone_until_the_lease_ends() {
    let (drive, engine) = (Drive::new().await, Listener::default());
    drive.start().await;
    assert_eq!(engine.hears(&drive, Duration::ZERO).await, Vec::<String>::new());
    drive.expire().await;
    assert_eq!(engine.hears(&drive, Duration::ZERO).await, vec![drive.task.clone()]);
}

#[tokio::test]
async fn a_run_that_waits_for_a_person_is_left_alone_and_one_that_waits_for_a_time_is_not() {
    let (drive, engine) = (Drive::new().await, Listener::default());
    let held = drive.start().await;
    let soon = json!({ "wait": { "reason": "retry", "wake_in_ms": 0 } });
    drive.step(&held, "wait", soon).await.expect(200);
    assert_eq!(engine.hears(&drive, Duration::ZERO).await, vec![drive.task.clone()]);
    let held = drive.start().await;
    let ask = json!({ "wait": { "reason": "human_input", "question": "Which colour?" } });
    drive.step(&held, "wait", ask).await.expect(200);
    assert_eq!(engine.hears(&drive, Duration::ZERO).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_engine_that_was_away_is_told_later_and_nothing_is_lost() {
    let (drive, engine) = (Drive::new().await, Listener::default());
    engine.deaf.store(true, Ordering::Relaxed);
    assert_eq!(engine.hears(&drive, LATER).await, Vec::<String>::new());
    engine.deaf.store(false, Ordering::Relaxed);
    assert_eq!(engine.hears(&drive, Duration::ZERO).await, vec![drive.task.clone()]);
}

/// Claims one job as each of `count` workers.
async fn workers(drive: &Drive, count: usize) -> Vec<Value> {
    let mut jobs = Vec::new();
    for number in 0..count {
        let worker = drive.app.service(ServiceKind::Worker, &format!("w{number}")).await;
        let claim_id = format!("0192d5c8-b6f0-7cc1-a1a3-{number:012}");
        let body = json!({ "claim_id": claim_id, "max_jobs": 1 });
        let claimed = worker.post("/v1/jobs/claim", body).await.expect(200).json();
        jobs.push(claimed["jobs"][0].clone());
    }
    jobs
}

async fn states(drive: &Drive) -> Vec<String> {
    let query = "SELECT j.state FROM jobs j JOIN work_units u USING (unit_id) ORDER BY u.key";
    drive.app.db.texts(query).await
}

#[tokio::test]
async fn a_job_of_which_nothing_is_heard_is_lost_and_its_late_result_refused() {
    let drive = Drive::new().await;
    let held = drive.dispatched(&["a"]).await;
    let job = workers(&drive, 1).await.remove(0);
    drive.step(&held, "wait", json!({ "wait": { "reason": "job" } })).await.expect(200);
    // A job that was just claimed has its time.
    assert!(!reconciler::reap_expired(&drive.app.app, false).await.unwrap());
    assert_eq!(states(&drive).await, ["running"]);
    let silent = "UPDATE jobs SET lease_expires_at = now() - interval '1 second'";
    drive.app.db.execute(silent).await;
    assert!(!reconciler::reap_expired(&drive.app.app, false).await.unwrap());
    assert_eq!(states(&drive).await, ["lost"], "S004-139, B004-33: a silent agent is noticed");
    let due = "SELECT count(*) FROM workflow_runs WHERE due_at <= clock_timestamp()";
    assert_eq!(drive.app.db.number(due).await, 1);
    let worker = drive.app.service(ServiceKind::Worker, "w0").await;
    let report = json!({ "fencing_token": 1, "outcome": "succeeded", "result": {} });
    let path = format!("/v1/jobs/{}/result", job["job_id"].as_str().unwrap());
    let late = worker.post(&path, report).await.status;
    assert_eq!(late, 409, "B004-53: whoever was given up moves nothing");
    // The next attempt is a job of its own, with a life of its own.
    let mut held = drive.start().await;
    let retry = json!({ "effects": [{ "effect": "retry_unit", "unit": "a", "attempt": 1 }] });
    drive.go(&mut held, "redo", retry).await;
    drive.go(&mut held, "pass", json!({ "effects": [create_job("a", 2)] })).await;
    assert_eq!(held.position["retries_used"], 1);
    let body = json!({ "claim_id": "0192d5c8-b6f0-7cc1-a1a3-000000000009", "max_jobs": 1 });
    let again = worker.post("/v1/jobs/claim", body).await.expect(200).json();
    assert_eq!(
        again["jobs"][0]["attempt"], 2,
        "S004-139, B004-48: and its work is given to another; the unit can be begun again"
    );
    assert!(!reconciler::reap_expired(&drive.app.app, false).await.unwrap());
    let running = "SELECT count(*) FROM jobs WHERE state = 'running'";
    assert_eq!(drive.app.db.number(running).await, 1, "B004-49: it has a lease of its own");
}

#[tokio::test]
async fn only_a_job_that_runs_is_given_up_for_its_silence() {
    let drive = Drive::new().await;
    drive.dispatched(&["a", "b"]).await;
    workers(&drive, 1).await;
    let silent =
        "UPDATE jobs SET lease_expires_at = now() - interval '1 second' WHERE state = 'running'";
    assert_eq!(drive.app.db.execute(silent).await, 1);
    reconciler::reap_expired(&drive.app.app, false).await.unwrap();
    let mut states = states(&drive).await;
    states.sort();
    assert_eq!(states, ["lost", "queued"], "B004-33: what does not run is not monitored");
}

#[tokio::test]
async fn a_job_past_its_deadline_is_given_up_however_alive_it_is() {
    let drive = Drive::new().await;
    drive.dispatched(&["a"]).await;
    let job = workers(&drive, 1).await.remove(0);
    drive.app.db.execute("UPDATE jobs SET deadline_at = now() - interval '1 second'").await;
    let worker = drive.app.service(ServiceKind::Worker, "w0").await;
    let alive = format!("/v1/jobs/{}/alive", job["job_id"].as_str().unwrap());
    worker.post(&alive, json!({ "fencing_token": 1 })).await.expect(200);
    reconciler::reap_expired(&drive.app.app, false).await.unwrap();
    assert_eq!(states(&drive).await, ["lost"], "B004-59");
}

#[tokio::test]
async fn when_most_of_the_fleet_looks_dead_nothing_is_done_before_somebody_looks() {
    let drive = Drive::new().await;
    drive.dispatched(&["a", "b", "c"]).await;
    workers(&drive, 3).await;
    let silent =
        "UPDATE jobs SET lease_expires_at = now() - interval '1 second' WHERE worker <> 'w2'";
    assert_eq!(drive.app.db.execute(silent).await, 2);
    assert!(reconciler::reap_expired(&drive.app.app, false).await.unwrap());
    // Said once, not at every turn.
    assert!(reconciler::reap_expired(&drive.app.app, true).await.unwrap());
    assert_eq!(states(&drive).await, ["running", "running", "running"]);
    let alerts = "SELECT kind FROM events WHERE kind LIKE 'reconciler.%' ORDER BY xact, seq";
    assert_eq!(drive.app.db.texts(alerts).await, ["reconciler.halted"]);
    // One of three may well be dead.
    drive
        .app
        .db
        .execute("UPDATE jobs SET lease_expires_at = now() + interval '1 hour' WHERE worker = 'w1'")
        .await;
    assert!(!reconciler::reap_expired(&drive.app.app, true).await.unwrap());
    assert_eq!(states(&drive).await, ["lost", "running", "running"]);
    assert_eq!(drive.app.db.texts(alerts).await, ["reconciler.halted", "reconciler.resumed"]);
}

#[tokio::test]
async fn an_admin_who_looked_can_let_the_sweep_act() {
    let drive = Drive::new().await;
    drive.dispatched(&["a", "b", "c"]).await;
    workers(&drive, 3).await;
    drive.app.db.execute("UPDATE jobs SET lease_expires_at = now() - interval '1 second'").await;
    assert!(reconciler::reap_expired(&drive.app.app, false).await.unwrap());
    let path = format!("/v1/settings/{}", cynode_core::settings::registry::FORCE_RECLAIM_SETTING);
    drive.admin.put(&path, json!({ "value": true, "expected_version": 0 })).await.expect(200);
    assert!(!reconciler::reap_expired(&drive.app.app, true).await.unwrap());
    assert_eq!(states(&drive).await, ["lost", "lost", "lost"]);
}

#[tokio::test]
async fn a_wait_whose_time_is_over_ends_and_the_run_learns_it() {
    let drive = Drive::new().await;
    let held = drive.start().await;
    let ask = json!({ "wait": { "reason": "human_input", "question": "Which?", "expires_in_seconds": 60 } });
    drive.step(&held, "wait", ask).await.expect(200);
    reconciler::reap_expired(&drive.app.app, false).await.unwrap();
    drive.start_as(&drive.task, "runner", "early").await.expect(409);
    drive.app.db.execute("UPDATE waits SET expires_at = now() - interval '1 second'").await;
    reconciler::reap_expired(&drive.app.app, false).await.unwrap();
    let held = drive.start().await;
    let ended = json!({ "reason": "human_input", "resolution": "expired", "question": "Which?" });
    assert_eq!(held.position["ended_wait"], ended);
}

#[tokio::test]
async fn a_run_that_somebody_holds_keeps_the_sweep_from_no_other() {
    let mut drive = Drive::new().await;
    let held = drive.start().await;
    let ask = json!({ "wait": { "reason": "human_input", "question": "Which?", "expires_in_seconds": 60 } });
    drive.step(&held, "wait", ask).await.expect(200);
    let first: TaskId = drive.task.parse().unwrap();
    drive.task = drive.another(json!([])).await;
    drive.dispatched(&["a"]).await;
    workers(&drive, 1).await;
    drive.app.db.execute("UPDATE waits SET expires_at = now() - interval '1 second'").await;
    drive.app.db.execute("UPDATE jobs SET lease_expires_at = now() - interval '1 second'").await;
    let mut slow = drive.app.db.begin().await;
    cynode_db::workflow::lock_run(&mut slow, first).await.unwrap();
    let ended = "SELECT resolution FROM waits WHERE resolution IS NOT NULL";
    let turn = tokio::time::timeout(
        Duration::from_secs(20),
        reconciler::reap_expired(&drive.app.app, false),
    );
    assert!(!turn.await.expect("it waits for nobody").unwrap());
    assert_eq!(states(&drive).await, ["lost"]);
    assert_eq!(drive.app.db.texts(ended).await, Vec::<String>::new());
    slow.rollback().await.unwrap();
    assert!(!reconciler::reap_expired(&drive.app.app, false).await.unwrap());
    assert_eq!(drive.app.db.texts(ended).await, ["expired"]);
}

#[tokio::test]
async fn what_a_killed_process_left_half_done_goes_and_what_is_being_done_stays() {
    let app = TestApp::new().await;
    let uploads = app.app.gateway_parts().unwrap().objects_directory.join("incoming");
    let repository = app.repository("prj_1");
    let bundles = repository.parent().unwrap().join("incoming");
    let packs = repository.join("objects/pack");
    let put = |path: &Path, minutes: i64| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(path).unwrap();
        file.set_modified((NOW - time::Duration::minutes(minutes)).into()).unwrap();
    };
    for directory in [&uploads, &bundles] {
        // As the object store calls what it has not finished, and shows to nobody.
        put(&directory.join("old#1"), 61);
        put(&directory.join("young#1"), 59);
    }
    put(&bundles.join("half/HEAD"), 61);
    let half = File::open(bundles.join("half")).unwrap();
    half.set_modified((NOW - time::Duration::minutes(61)).into()).unwrap();
    put(&packs.join("tmp_pack_old"), 61);
    put(&packs.join("tmp_pack_young"), 59);
    put(&packs.join("pack-old.pack"), 61);
    // Done twice, the second time finds nothing.
    for _ in 0..2 {
        maintenance::run_maintenance_once(&app.app).await.unwrap();
        assert_eq!(names(&uploads), ["young#1"]);
        assert_eq!(names(&bundles), ["young#1"]);
        assert_eq!(names(&packs), ["pack-old.pack", "tmp_pack_young"]);
    }
}

#[tokio::test]
async fn what_fails_of_maintenance_keeps_nothing_behind_it_from_being_done() {
    let app = TestApp::new().await;
    let uploads = app.app.gateway_parts().unwrap().objects_directory.join("incoming");
    std::fs::create_dir_all(&uploads).unwrap();
    let left = File::create(uploads.join("old#1")).unwrap();
    left.set_modified((NOW - time::Duration::minutes(61)).into()).unwrap();
    app.db.execute("ALTER TABLE idempotency_keys RENAME TO elsewhere").await;
    assert!(maintenance::run_maintenance_once(&app.app).await.is_err());
    assert_eq!(names(&uploads), Vec::<String>::new());
}

#[tokio::test]
async fn sessions_and_tokens_of_agents_go_some_time_after_their_end() {
    let drive = Drive::new().await;
    let (app, db) = (&drive.app, &drive.app.db);
    let token = json!({ "role": "developer", "project_id": drive.project, "task_id": drive.task });
    drive.admin.post("/v1/agent-tokens", token).await.expect(201);
    db.execute("DELETE FROM user_sessions").await;
    // Over for so many days, at the time of the test.
    db.execute(
        "INSERT INTO user_sessions (session_id, user_id, token_hash, created_at, expires_at)
         SELECT gen_random_uuid(), user_id, sha256(days::text::bytea), '2026-01-01', timestamptz '2026-11-01 12:00Z' - days * interval '1 day'
         FROM (SELECT user_id FROM users ORDER BY user_id LIMIT 1) AS one, unnest(ARRAY[-1, 0, 2]) AS days",
    ).await;
    db.execute(
        "INSERT INTO agent_tokens (agent_token_id, role, user_id, project_id, task_id, profile, network, token_hash, created_at, expires_at)
         SELECT gen_random_uuid(), role, user_id, project_id, task_id, profile, network, sha256(days::text::bytea), '2026-01-01',
            timestamptz '2026-11-01 12:00Z' - days * interval '1 day'
         FROM agent_tokens, unnest(ARRAY[89, 91, 92]) AS days",
    ).await;
    db.execute(
        "INSERT INTO agent_states (agent_token_id, task_id, heartbeat_at)
         SELECT agent_token_id, task_id, created_at FROM agent_tokens",
    )
    .await;
    let counts = async || {
        let counted = "SELECT (SELECT count(*) FROM user_sessions) * 100 + (SELECT count(*) FROM agent_tokens) * 10
            + (SELECT count(*) FROM agent_states)";
        db.number(counted).await
    };
    // The task goes on, and one of its agents may have left a checkpoint.
    maintenance::run_maintenance_once(&app.app).await.unwrap();
    assert_eq!(counts().await, 244);
    db.execute("UPDATE tasks SET state = 'cancelled', ended_at = now()").await;
    maintenance::run_maintenance_once(&app.app).await.unwrap();
    assert_eq!(counts().await, 222);
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
