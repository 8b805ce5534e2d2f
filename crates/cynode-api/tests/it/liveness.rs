//! Work that nobody takes is told in words, with what to type; and whether work can be done at all.

use cynode_app::{
    identity::service_tokens::{self, ServiceKind},
    workflow::liveness::StallLog,
};
use cynode_wire::workflow::timeline::{StallKind, TaskTimeline};
use serde_json::{Value, json};

use crate::{
    nodes::{Machine, work},
    workflow::Drive,
};

/// What the timeline of the task says that nobody takes: what kind, the sentence, the first command.
async fn stalls(drive: &Drive) -> Vec<(StallKind, String, String)> {
    let path = format!("/v1/tasks/{}/timeline", drive.task);
    let timeline: TaskTimeline = drive.admin.get(&path).await.expect(200).parse();
    let told = |stall: cynode_wire::workflow::timeline::StallView| {
        (stall.kind, stall.detail, stall.commands.first().cloned().unwrap_or_default())
    };
    timeline.stalls.into_iter().map(told).collect()
}

fn one(kind: StallKind, detail: &str, command: &str) -> Vec<(StallKind, String, String)> {
    vec![(kind, detail.to_owned(), command.to_owned())]
}

/// A task with one job, placed on `node-1` by the claim of another node that takes none.
async fn placed() -> (Drive, Machine) {
    let drive = Drive::new().await;
    drive.dispatched_with(&["a"], &work()).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 1).await;
    let full = Machine::join(&drive.app, &drive.admin, 2, 0).await;
    assert_eq!(full.claim(1, 1).await, Vec::<Value>::new());
    let placed = "SELECT count(*) FROM jobs WHERE placed_at IS NOT NULL";
    assert_eq!(drive.app.db.number(placed).await, 1);
    (drive, node)
}

const LONG_AGO: &str = "UPDATE jobs SET placed_at = now() - interval '11 seconds'";

#[tokio::test]
async fn a_job_that_a_connected_node_does_not_take_is_told_until_it_takes_it() {
    let (drive, node) = placed().await;
    assert_eq!(stalls(&drive).await, [], "it was placed just now");
    drive.app.db.execute(LONG_AGO).await;
    let detail = "the node `node-1` is connected and has not taken the job that is placed on it for more than 10 seconds";
    let wanted = one(StallKind::UnclaimedJob, detail, "cynork node show node-1");
    assert_eq!(stalls(&drive).await, wanted);
    let status = drive.admin.get("/v1/readiness").await.expect(200).json();
    let checks = status["checks"].as_array().unwrap();
    let work = checks.iter().find(|check| check["name"] == "work").unwrap();
    assert_eq!(work["status"], "failed");
    assert_eq!(work["detail"], format!("1 waiting and not taken: {detail}"));
    assert_eq!(status["ready"], false);
    assert_eq!(node.claim(2, 1).await.len(), 1);
    assert_eq!(stalls(&drive).await, []);
}

#[tokio::test]
async fn a_job_on_a_node_that_fell_silent_is_told_as_such() {
    let (drive, _node) = placed().await;
    drive.app.db.execute(LONG_AGO).await;
    let silent = "UPDATE nodes SET last_seen_at = now() - interval '12 seconds'";
    drive.app.db.execute(silent).await;
    let detail = "the node `node-1`, on which the job is placed, has not been heard of for more than 10 seconds";
    let wanted = one(StallKind::UnclaimedJob, detail, "cynork node list");
    assert_eq!(stalls(&drive).await, wanted);
}

#[tokio::test]
async fn a_job_that_fits_no_node_says_what_is_missing_and_one_that_waits_its_turn_says_nothing() {
    let drive = Drive::new().await;
    let mut wanted = work();
    wanted["work"]["worker"] = json!({ "kind": "acp", "agent": "codex" });
    drive.dispatched_with(&["a"], &wanted).await;
    let long_ago = "UPDATE jobs SET queued_at = now() - interval '11 seconds'";
    drive.app.db.execute(long_ago).await;
    let nowhere = "no machine takes the job: no node is connected: make a join token and run `cynode-node join` on a machine of yours";
    assert_eq!(stalls(&drive).await, one(StallKind::UnplacedJob, nowhere, "cynork node list"));
    let _node = Machine::join(&drive.app, &drive.admin, 1, 1).await;
    let [(kind, detail, command)] = stalls(&drive).await.try_into().unwrap();
    let missing = "no machine takes the job: no connected node has the coding agent `codex`: run `cynode-node agents install codex` on one";
    assert_eq!((kind, detail.as_str()), (StallKind::UnplacedJob, missing));
    assert!(command.starts_with("cynode-node agents install codex"), "{command}");
    // With the agent there and every place taken, it waits as it should.
    let agent = r#"UPDATE nodes SET slots = 0, report = jsonb_set(jsonb_set(report, '{slots}', '0'), '{agents}', '[{"agent":"codex","version":"1"}]')"#;
    drive.app.db.execute(agent).await;
    assert_eq!(stalls(&drive).await, []);
}

#[tokio::test]
async fn a_job_that_needs_more_than_any_node_gives_is_refused_and_names_the_largest_and_its_line() {
    let drive = Drive::new().await;
    let mut wanted = work();
    wanted["work"]["sandbox"] = json!({ "memory_mib": 3000 });
    drive.dispatched_with(&["a"], &wanted).await;
    drive.app.db.execute("UPDATE jobs SET queued_at = now() - interval '11 seconds'").await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 1).await;
    let limits = r#"UPDATE nodes SET report = jsonb_set(report, '{job_limits}',
        '{"memory_mib": 2048, "cpu_percent": 200, "processes": 512, "disk_mib": 4096}')"#;
    drive.app.db.execute(limits).await;
    assert_eq!(node.claim(1, 1).await.len(), 0, "the machine has 4096 MiB, a job gets 2048");
    let small = "no machine takes the job: it needs 3000 MiB of memory; the largest allowed node `node-1` gives a job 2048 MiB";
    let line = "memory_mib = 3000  # in node.toml of node-1, or of a larger machine; then start its node again";
    assert_eq!(stalls(&drive).await, one(StallKind::UnplacedJob, small, line));
}

/// Asks the project manager for a plan, eleven seconds ago.
async fn asked(drive: &Drive) {
    let mut held = drive.start().await;
    drive.go(&mut held, "pass", json!({})).await;
    let request = json!({ "kind": "plan", "previous_plan": null, "feedback": [], "answer": null, "attempt": 1, "started_units": [] });
    let effect = json!({ "effect": "hand_off", "about": "plan:1", "request": request });
    let wait = json!({ "reason": "agent", "wake_in_ms": 600_000 });
    drive.step(&held, "wait", json!({ "effects": [effect], "wait": wait })).await.expect(200);
    let long_ago = "UPDATE handoffs SET due_at = now() - interval '11 seconds'";
    assert_eq!(drive.app.db.execute(long_ago).await, 1);
}

#[tokio::test]
async fn a_question_that_nobody_takes_is_told_and_one_behind_others_is_not() {
    let drive = Drive::new().await;
    asked(&drive).await;
    let nobody = "no project manager process takes the question: none is running";
    assert_eq!(stalls(&drive).await, one(StallKind::UnclaimedHandoff, nobody, "cynork status"));
    drive.app.service(ServiceKind::Manager, "up").await;
    service_tokens::record_presence(&drive.app.app, ServiceKind::Manager, "up").await;
    let there =
        "the project manager is connected and has not taken the question for more than 10 seconds";
    assert_eq!(stalls(&drive).await, one(StallKind::UnclaimedHandoff, there, "cynork status"));
    // Somebody works on another question: this one has to wait for its turn.
    let other = "INSERT INTO handoffs (handoff_id, kind, role, state, user_id, project_id, blocks_run, question_key, request, claim_id, due_at, trace_id, created_at)
        SELECT gen_random_uuid(), 'schedule', role, 'claimed', user_id, project_id, false, '', request, gen_random_uuid(), now(), trace_id, now() FROM handoffs";
    assert_eq!(drive.app.db.execute(other).await, 1);
    assert_eq!(stalls(&drive).await, []);
    service_tokens::record_departure(&drive.app.app, ServiceKind::Manager, "up").await;
    assert_eq!(stalls(&drive).await, one(StallKind::UnclaimedHandoff, nobody, "cynork status"));
}

#[tokio::test]
async fn a_run_that_nobody_drives_says_whether_the_engine_was_told() {
    let drive = Drive::new().await;
    assert_eq!(stalls(&drive).await, [], "it was asked for just now");
    let long_ago = "UPDATE workflow_runs SET due_at = now() - interval '11 seconds'";
    drive.app.db.execute(long_ago).await;
    let untold = "the engine that drives tasks cannot be told that the task goes on";
    assert_eq!(stalls(&drive).await, one(StallKind::UndrivenRun, untold, "cynork status"));
    drive.app.db.execute("UPDATE workflow_runs SET dispatched_at = now()").await;
    let told = "the engine was told that the task goes on, and no runner has driven it for more than 10 seconds";
    assert_eq!(stalls(&drive).await, one(StallKind::UndrivenRun, told, "cynork status"));
    drive.start().await;
    assert_eq!(stalls(&drive).await, []);
}

#[tokio::test]
async fn what_nobody_takes_is_written_into_the_log_once_for_each_time() {
    let (drive, node) = placed().await;
    let mut log = StallLog::default();
    let mut looked = async || log.log_stalls(&drive.app.app).await.unwrap().len();
    assert_eq!(looked().await, 0);
    drive.app.db.execute(LONG_AGO).await;
    assert_eq!([looked().await, looked().await], [1, 0]);
    assert_eq!(node.claim(2, 1).await.len(), 1);
    assert_eq!(looked().await, 0);
    let again = "UPDATE jobs SET state = 'queued', worker = NULL, claim_id = NULL, started_at = NULL, lease_expires_at = NULL,
        placed_at = now() - interval '20 seconds'";
    drive.app.db.execute(again).await;
    assert_eq!([looked().await, looked().await], [1, 0], "another time");
}

/// What was looked at for a project: each name with how it stands and whether it blocks all work.
async fn readiness(drive: &Drive) -> Vec<(String, String, bool)> {
    let path = format!("/v1/readiness?project_id={}", drive.project);
    let told = drive.admin.get(&path).await.expect(200).json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let one = |check: &Value| {
        (text(&check["name"]), text(&check["status"]), check["blocks_work"] == true)
    };
    told["checks"].as_array().unwrap().iter().map(one).collect()
}

#[tokio::test]
async fn without_a_node_a_manager_and_a_model_work_is_impossible_and_each_says_what_to_type() {
    let drive = Drive::new().await;
    let seen = readiness(&drive).await;
    let seen: Vec<_> = seen.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), *c)).collect();
    let wanted = [
        ("database", "ok", false),
        ("schema", "ok", false),
        ("partitions", "ok", false),
        ("admin", "ok", false),
        ("engine", "warning", false),
        ("manager", "failed", true),
        ("analyst", "failed", false),
        ("nodes", "failed", true),
        ("agents", "ok", false),
        ("models", "failed", true),
        ("disk", "ok", false),
        ("work", "ok", false),
    ];
    assert_eq!(seen, wanted, "B004-47: the state of manager and models is shown");
    let path = format!("/v1/readiness?project_id={}", drive.project);
    let told = drive.admin.get(&path).await.expect(200).json();
    let models = told["checks"].as_array().unwrap().iter().find(|it| it["name"] == "models");
    let commands = &models.unwrap()["commands"];
    assert_eq!(commands, &json!(cynode_core::models::OFFER_COMMANDS));
    // Whoever may not see the project is told nothing about it.
    let stranger = drive.app.user("eve", None).await;
    stranger.get(&path).await.expect(404);
}

#[tokio::test]
async fn a_project_with_scripted_models_and_workers_of_its_own_is_ready() {
    let drive = Drive::new().await;
    let bare = Machine::join(&drive.app, &drive.admin, 1, 2).await;
    let report = json!({ "version": "0.1.0", "cores": 2, "memory_mib": 4096, "disk_free_mib": 9000, "slots": 2,
        "backends": [{ "backend": "bubblewrap", "version": "0.8.0" }], "warnings": ["`show` names /x, which does not exist"] });
    bare.client.post("/v1/nodes/report", report).await.expect(200);
    for (kind, name) in [(ServiceKind::Manager, "m"), (ServiceKind::Analyst, "a")] {
        drive.app.service(kind, name).await;
        service_tokens::record_presence(&drive.app.app, kind, name).await;
    }
    let provider =
        json!({ "kind": "scripted", "script": { "rules": [{ "answer": { "text": "x" } }] } });
    drive.admin.put("/v1/providers/tape", provider).await.expect(200);
    let prices = json!({ "input": 1, "cached": 1, "cache_write": 1, "output": 1 });
    let model = json!({ "context_tokens": 1000, "max_output_tokens": 100, "tier": "fast", "project_id": drive.project,
        "routes": [{ "provider": "tape", "upstream": "x", "prices": prices }] });
    drive.admin.put("/v1/model-registry/own", model).await.expect(200);
    let failing = async || {
        let seen = readiness(&drive).await;
        let odd = seen.into_iter().filter(|(name, status, _)| status != "ok" && name != "engine");
        odd.collect::<Vec<_>>()
    };
    let said = ("node".to_owned(), "warning".to_owned(), false);
    let no_agent = ("agents".to_owned(), "failed".to_owned(), true);
    assert_eq!(failing().await, [said, no_agent], "the usual agent is nowhere");
    for role in ["developer", "reviewer"] {
        let path = format!(
            "/v1/preferences/agents.project_manager.workers.{role}?scope_type=project&scope_id={}",
            drive.project
        );
        let worker = json!({ "kind": "scripted", "moves": [] });
        let body = json!({ "value": worker, "expected_version": 0 });
        drive.admin.put(&path, body).await.expect(200);
    }
    let said = ("node".to_owned(), "warning".to_owned(), false);
    assert_eq!(failing().await, [said]);
    drive.app.db.execute("UPDATE nodes SET report = report - 'warnings'").await;
    assert_eq!(failing().await, []);
}
