//! What people tell running tasks.

use cynode_core::ids::TaskId;
use cynode_db::tasks;
use insta::assert_json_snapshot;
use serde_json::{Value, json};

use crate::workflow::{Drive, Held};

impl Drive {
    async fn tell(&self, body: Value) -> Value {
        let path = format!("/v1/tasks/{}/instructions", self.task);
        self.admin.post(&path, body).await.expect(202).json()
    }

    async fn refusal(&self) -> String {
        self.start_as(&self.task, "runner", "asks").await.expect(409).text("detail")
    }
}

fn next(held: &Held) -> Value {
    held.position["next"].clone()
}

const RUN_PLAN: &str = "plan_steps";

#[tokio::test]
async fn a_paused_task_stops_at_the_next_step_and_goes_on_when_it_is_told() {
    let drive = Drive::new().await;
    let mut held = drive.start().await;
    drive.tell(json!({ "kind": "pause" })).await;
    // The node that runs may end.
    drive.go(&mut held, "pass", json!({})).await;
    let paused = json!({ "do": "wait", "node": RUN_PLAN, "reason": "paused", "owner": "person" });
    assert_eq!(next(&held), paused);
    assert_eq!(drive.refusal().await, "the task cannot be driven now: a person paused it");
    drive.tell(json!({ "kind": "resume" })).await;
    let held = drive.start().await;
    assert_eq!(next(&held), json!({ "do": "run", "node": RUN_PLAN }));
    assert_eq!(held.position["ended_wait"], json!({ "reason": "paused", "resolution": "resumed" }));
}

#[tokio::test]
async fn whatever_is_asked_with_a_pause_is_told_and_kept_until_the_task_goes_on() {
    let drive = Drive::new().await;
    let mut held = drive.start().await;
    drive.tell(json!({ "kind": "pause", "text": "Which key?" })).await;
    drive.go(&mut held, "pass", json!({})).await;
    let open = "SELECT coalesce(question, 'none') FROM waits WHERE resolved_at IS NULL";
    assert_eq!(drive.app.db.texts(open).await, ["Which key?"]);
    drive.tell(json!({ "kind": "pause", "text": "Which colour?" })).await;
    let paused = "the task cannot be driven now: a person paused it";
    assert_eq!(drive.refusal().await, paused);
    assert_eq!(drive.app.db.texts(open).await, ["Which key?\n\nWhich colour?"]);
    // A plan made anew is no answer, and a pause without words asks nothing more.
    for body in [json!({ "kind": "revise", "text": "Otherwise" }), json!({ "kind": "pause" })] {
        drive.tell(body).await;
        assert_eq!(drive.refusal().await, paused);
        assert_eq!(drive.app.db.texts(open).await, ["Which key?\n\nWhich colour?"]);
    }
    let told =
        "SELECT data ->> 'question' FROM events WHERE kind = 'task.waiting' ORDER BY xact, seq";
    let both = "Which key?\n\nWhich colour?";
    assert_eq!(drive.app.db.texts(told).await, ["Which key?", both, both]);
    drive.tell(json!({ "kind": "resume" })).await;
    let held = drive.start().await;
    assert_eq!(next(&held), json!({ "do": "run", "node": RUN_PLAN }));
    let resumed = json!({ "reason": "paused", "resolution": "resumed" });
    assert_eq!(held.position["ended_wait"], resumed);
}

#[tokio::test]
async fn a_result_that_comes_during_a_pause_waits_and_does_not_wake() {
    let drive = Drive::new().await;
    let held = drive.dispatched(&["a"]).await;
    drive.step(&held, "wait", json!({ "wait": { "reason": "job" } })).await.expect(200);
    drive.tell(json!({ "kind": "pause" })).await;
    assert_eq!(drive.refusal().await, "the task cannot be driven now: a person paused it");
    let worker =
        drive.app.service(cynode_app::identity::service_tokens::ServiceKind::Worker, "w").await;
    let claim = json!({ "claim_id": "0192d5c8-b6f0-7cc1-a1a3-c2b4d5e6f708", "max_jobs": 1 });
    let job = worker.post("/v1/jobs/claim", claim).await.expect(200).json()["jobs"][0].clone();
    let path = format!("/v1/jobs/{}/result", job["job_id"].as_str().unwrap());
    let report = json!({ "fencing_token": 1, "outcome": "succeeded", "result": {} });
    worker.post(&path, report).await.expect(200);
    assert_eq!(drive.refusal().await, "the task cannot be driven now: a person paused it");
    let due = "SELECT count(*) FROM workflow_runs WHERE due_at IS NOT NULL";
    assert_eq!(drive.app.db.number(due).await, 0, "nobody is called for a task that is paused");
    drive.tell(json!({ "kind": "resume" })).await;
    let held = drive.start().await;
    assert_eq!(next(&held), json!({ "do": "run", "node": "collect_result" }));
    assert_eq!(held.position["units"][0]["job"]["state"], "succeeded");
}

#[tokio::test]
async fn feedback_sends_a_running_task_back_to_planning_and_stops_what_is_not_wanted() {
    let drive = Drive::new().await;
    let mut held = drive.dispatched(&["a", "b"]).await;
    drive.tell(json!({ "kind": "revise", "text": "Use the other library" })).await;
    drive.tell(json!({ "kind": "expand_scope", "text": "And the docs" })).await;
    drive.go(&mut held, "done", json!({})).await;
    assert_eq!(next(&held), json!({ "do": "run", "node": RUN_PLAN }));
    let said = json!([
        { "kind": "revise", "text": "Use the other library" },
        { "kind": "expand_scope", "text": "And the docs" },
    ]);
    assert_eq!(held.position["state"]["feedback"], said);
    let plan = json!([{ "effect": "plan_units", "units": [{ "key": "b", "title": "b" }, { "key": "c", "title": "c" }] }]);
    drive.go(&mut held, "pass", json!({ "effects": plan })).await;
    let states: Vec<_> = held.position["units"]
        .as_array()
        .unwrap()
        .iter()
        .map(|unit| (unit["key"].as_str().unwrap(), unit["state"].as_str().unwrap()))
        .collect();
    assert_eq!(states, [("a", "cancelled"), ("b", "dispatched"), ("c", "pending")]);
    let jobs =
        "SELECT u.key || ' ' || j.state FROM jobs j JOIN work_units u USING (unit_id) ORDER BY 1";
    assert_eq!(drive.app.db.texts(jobs).await, ["a cancelled", "b queued"]);
}

#[tokio::test]
async fn feedback_before_the_first_node_skips_nothing() {
    let drive = Drive::new().await;
    let path =
        format!("/v1/preferences/workflow.approve_plan?scope_type=task&scope_id={}", drive.task);
    drive.admin.put(&path, json!({ "value": true, "expected_version": 0 })).await.expect(200);
    drive.tell(json!({ "kind": "revise", "text": "Mind the docs" })).await;
    let started = drive.start_as(&drive.task, "runner", "key").await.expect(200).json();
    assert_eq!(started["position"]["next"], json!({ "do": "run", "node": "load_task_context" }));
    assert_eq!(started["task"]["preferences"], json!({ "workflow.approve_plan": true }));
    let said = json!([{ "kind": "revise", "text": "Mind the docs" }]);
    assert_eq!(started["position"]["state"]["feedback"], said);
}

#[tokio::test]
async fn a_waiting_task_is_woken_by_an_instruction() {
    let drive = Drive::new().await;
    let held = drive.dispatched(&["a"]).await;
    drive.step(&held, "wait", json!({ "wait": { "reason": "job" } })).await.expect(200);
    drive.tell(json!({ "kind": "reduce_scope", "text": "Leave the docs" })).await;
    let held = drive.start().await;
    assert_eq!(next(&held), json!({ "do": "run", "node": RUN_PLAN }));
    assert_eq!(
        drive.app.db.number("SELECT count(*) FROM waits WHERE resolved_at IS NULL").await,
        0
    );
}

#[tokio::test]
async fn an_instruction_without_its_text_or_of_no_known_kind_is_refused() {
    let drive = Drive::new().await;
    let path = format!("/v1/tasks/{}/instructions", drive.task);
    drive.admin.post(&path, json!({ "kind": "revise" })).await.expect(422);
    drive.admin.post(&path, json!({ "kind": "explode" })).await.expect(400);
}

#[tokio::test]
async fn a_plan_is_carried_out_only_after_a_yes_and_made_anew_after_a_no() {
    let drive = Drive::new().await;
    let approve = format!("/v1/tasks/{}/approve", drive.task);
    drive.admin.post(&approve, json!({ "approved": true })).await.expect(409);
    let mut shown = Vec::new();
    for (approved, resolution) in [(false, "rejected"), (true, "approved")] {
        let mut held = drive.start().await;
        if held.position["sequence"] == 0 {
            drive.go(&mut held, "pass", json!({})).await;
        }
        let ask = json!({ "wait": { "reason": "approval", "question": "May it?" } });
        drive.step(&held, "wait", ask).await.expect(200);
        assert_eq!(
            drive.refusal().await,
            "the task cannot be driven now: its plan waits for a person's yes"
        );
        let timeline = format!("/v1/tasks/{}/timeline", drive.task);
        let timeline = drive.admin.get(&timeline).await.expect(200).json();
        let waits = timeline["waits"].as_array().unwrap();
        // A yes to what was shown before is none to this.
        for wait in std::mem::replace(&mut shown, vec![waits.last().unwrap()["wait_id"].clone()]) {
            let late = json!({ "approved": true, "wait_id": wait });
            drive.admin.post(&approve, late).await.expect(409);
        }
        let body = json!({ "approved": approved, "note": "because", "wait_id": shown[0] });
        drive.admin.post(&approve, body).await.expect(200);
        let held = drive.start().await;
        assert_eq!(next(&held), json!({ "do": "run", "node": RUN_PLAN }));
        let ended = json!({ "reason": "approval", "resolution": resolution, "answer": "because" });
        assert_eq!(held.position["ended_wait"], ended);
        drive.runner.post("/v1/workflow/release", held.lease.clone()).await.expect(204);
    }
}

#[tokio::test]
async fn an_answer_reaches_the_node_that_asked_and_is_given_once() {
    let drive = Drive::new().await;
    let held = drive.start().await;
    let ask = json!({ "wait": { "reason": "human_input", "question": "Which colour?" } });
    drive.step(&held, "wait", ask).await.expect(200);
    let events = "SELECT data ->> 'question' FROM events WHERE kind = 'task.waiting'";
    assert_eq!(drive.app.db.texts(events).await, ["Which colour?"]);
    let answer = format!("/v1/tasks/{}/answer", drive.task);
    drive.admin.post(&answer, json!({ "text": "Blue" })).await.expect(200);
    drive.admin.post(&answer, json!({ "text": "Red" })).await.expect(409);
    let held = drive.start().await;
    let ended = json!({ "reason": "human_input", "resolution": "answered", "question": "Which colour?", "answer": "Blue" });
    assert_eq!(held.position["ended_wait"], ended);
}

#[tokio::test]
async fn an_answer_survives_a_pause_that_comes_before_it_is_read() {
    let drive = Drive::new().await;
    let held = drive.start().await;
    let ask = json!({ "wait": { "reason": "human_input", "question": "Which colour?" } });
    drive.step(&held, "wait", ask).await.expect(200);
    let answer = format!("/v1/tasks/{}/answer", drive.task);
    drive.admin.post(&answer, json!({ "text": "Blue" })).await.expect(200);
    drive.tell(json!({ "kind": "pause" })).await;
    assert_eq!(drive.refusal().await, "the task cannot be driven now: a person paused it");
    drive.tell(json!({ "kind": "resume" })).await;
    let held = drive.start().await;
    let ended = json!({ "reason": "human_input", "resolution": "answered", "question": "Which colour?", "answer": "Blue" });
    assert_eq!(held.position["ended_wait"], ended);
}

#[tokio::test]
async fn an_instruction_that_the_runner_saw_and_nobody_took_up_makes_a_resting_run_due() {
    let drive = Drive::new().await;
    let mut held = drive.dispatched(&["a"]).await;
    drive.tell(json!({ "kind": "revise", "text": "Otherwise" })).await;
    // A look at the run shows the new count, and takes nothing up.
    held.position["wakes"] = drive.resume().await["position"]["wakes"].clone();
    drive.step(&held, "wait", json!({ "wait": { "reason": "job" } })).await.expect(200);
    let due = "SELECT count(*) FROM workflow_runs WHERE due_at <= clock_timestamp()";
    assert_eq!(drive.app.db.number(due).await, 1);
    assert_eq!(next(&drive.start().await), json!({ "do": "run", "node": RUN_PLAN }));
}

#[tokio::test]
async fn an_instruction_given_before_the_end_is_heard() {
    let drive = Drive::new().await;
    let mut held = drive.start().await;
    for verdict in ["pass", "pass", "done"] {
        drive.go(&mut held, verdict, json!({})).await;
    }
    drive.tell(json!({ "kind": "expand_scope", "text": "And the docs" })).await;
    drive.step(&held, "pass", json!({})).await.expect(409);
    drive.runner.post("/v1/workflow/release", held.lease.clone()).await.expect(204);
    assert_eq!(next(&drive.start().await), json!({ "do": "run", "node": RUN_PLAN }));
}

#[tokio::test]
async fn a_plan_made_anew_sends_again_what_was_collected_and_drops_what_failed() {
    let drive = Drive::new().await;
    let mut held = drive.dispatched(&["a", "b"]).await;
    drive.app.db.execute("UPDATE work_units SET state = 'collected' WHERE key = 'a'").await;
    drive.app.db.execute("UPDATE work_units SET state = 'failed' WHERE key = 'b'").await;
    drive.tell(json!({ "kind": "revise", "text": "Otherwise" })).await;
    drive.go(&mut held, "pass", json!({})).await;
    let plan = json!([{ "effect": "plan_units", "units": [{ "key": "a", "title": "a" }] }]);
    drive.go(&mut held, "pass", json!({ "effects": plan })).await;
    let states: Vec<_> = held.position["units"]
        .as_array()
        .unwrap()
        .iter()
        .map(|unit| (unit["key"].as_str().unwrap(), unit["state"].as_str().unwrap()))
        .collect();
    assert_eq!(states, [("a", "pending"), ("b", "cancelled")]);
}

#[tokio::test]
async fn the_last_word_holds_when_a_pause_and_its_end_come_together() {
    let drive = Drive::new().await;
    let mut held = drive.start().await;
    drive.tell(json!({ "kind": "pause" })).await;
    drive.go(&mut held, "pass", json!({})).await;
    for kind in ["pause", "resume"] {
        drive.tell(json!({ "kind": kind })).await;
    }
    assert_eq!(next(&drive.start().await), json!({ "do": "run", "node": RUN_PLAN }));
}

#[tokio::test]
async fn a_task_cannot_depend_on_one_that_will_never_be_completed() {
    let drive = Drive::new().await;
    drive.tell(json!({ "kind": "abort" })).await;
    let body =
        json!({ "project_id": drive.project, "description": "x", "depends_on": [drive.task] });
    drive.admin.post("/v1/tasks", body).await.expect(422);
}

#[tokio::test]
async fn stopping_a_task_stops_its_dependents_its_jobs_and_whoever_drives_it() {
    let drive = Drive::new().await;
    let child = drive.another(json!([drive.task])).await;
    let grandchild = drive.another(json!([child])).await;
    let apart = drive.another(json!([])).await;
    let held = drive.dispatched(&["a"]).await;
    let told = drive.tell(json!({ "kind": "abort", "text": "Nobody wants it." })).await;
    assert_eq!(told, json!({ "kind": "abort", "state": "cancelled" }));
    let kept = "SELECT text FROM task_instructions WHERE kind = 'abort'";
    assert_eq!(drive.app.db.texts(kept).await, ["Nobody wants it."]);
    for (task, state) in [
        (&drive.task, "cancelled"),
        (&child, "cancelled"),
        (&grandchild, "cancelled"),
        (&apart, "queued"),
    ] {
        let found = drive.admin.get(&format!("/v1/tasks/{task}")).await.expect(200).json();
        assert_eq!(found["state"], state, "B023-10");
    }
    let late = drive.step(&held, "wait", json!({ "wait": { "reason": "job" } })).await.expect(409);
    assert_eq!(late.text("code"), "fenced");
    assert_eq!(drive.refusal().await, "the task has ended");
    assert_eq!(drive.app.db.texts("SELECT state FROM jobs").await, ["cancelled"]);
    let units = drive.app.db.texts("SELECT state FROM work_units").await;
    assert_eq!(units, ["cancelled"], "S004-076: its work unit does not run any more");
    let reasons = "SELECT coalesce(data ->> 'because_of', 'a person') FROM events WHERE kind = 'task.cancelled' ORDER BY 1";
    assert_eq!(
        drive.app.db.texts(reasons).await,
        ["a person".to_owned(), drive.task.clone(), drive.task.clone()]
    );
}

#[tokio::test]
async fn stopping_a_task_stops_also_what_is_made_below_its_dependents_at_that_moment() {
    let drive = Drive::new().await;
    let child: TaskId = drive.another(json!([drive.task])).await.parse().unwrap();
    let mut making = drive.app.db.begin().await;
    let mut made = tasks::get_task(&mut making, child).await.unwrap().unwrap();
    made.id = "tsk_ffffffffffffffffffffffffffffffff".parse().unwrap();
    made.name = "late".parse().unwrap();
    made.depends_on = vec![child];
    tasks::insert_task(&mut making, &made).await.unwrap();
    tasks::lock_states_shared(&mut making, &[child]).await.unwrap();
    let path = format!("/v1/tasks/{}/cancel", drive.task);
    let stopping = async {
        drive.admin.post(&path, json!(null)).await.expect(200);
    };
    let storing = async {
        // The stop waits for this one, and has listed what it stops already.
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while drive.app.db.number(waits).await == 0 {}
        making.commit().await.unwrap();
    };
    tokio::join!(stopping, storing);
    let states = "SELECT name || ' ' || state FROM tasks ORDER BY 1";
    assert_eq!(
        drive.app.db.texts(states).await,
        ["late cancelled", "mend-it cancelled", "mend-it-2 cancelled"]
    );
}

#[tokio::test]
async fn a_timeline_that_did_not_change_is_not_sent_again() {
    let drive = Drive::new().await;
    let mut held = drive.start().await;
    let path = format!("/v1/tasks/{}/timeline", drive.task);
    let first = drive.admin.get(&path).await.expect(200);
    let etag = first.headers["etag"].to_str().unwrap();
    assert_eq!(first.headers["cache-control"], "private, no-cache");
    let client = drive.admin.with_header("if-none-match", etag);
    assert!(client.get(&path).await.expect(304).body.is_empty());
    drive.go(&mut held, "pass", json!({})).await;
    assert_ne!(client.get(&path).await.expect(200).headers["etag"], etag);
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, told once")]
async fn the_timeline_tells_the_whole_story() {
    let drive = Drive::new().await;
    let mut held = drive.dispatched(&["a"]).await;
    drive.go(&mut held, "wait", json!({ "wait": { "reason": "job" }, "cost_micros": 7 })).await;
    let path = format!("/v1/tasks/{}/timeline", drive.task);
    let timeline = drive.admin.get(&path).await.expect(200).json();
    assert!(timeline["mermaid"].as_str().unwrap().ends_with("class collect_result here\n"));
    let steps: Vec<_> =
        timeline["steps"].as_array().unwrap().iter().map(|step| step["node"].clone()).collect();
    assert_eq!(
        steps,
        ["load_task_context", "plan_steps", "dispatch_step", "collect_result"],
        "S001-21: planning comes first, then the steps in their order"
    );
    assert_json_snapshot!(timeline, {
        ".task_id" => "[id]", ".run_id" => "[id]", ".trace_id" => "[trace]", ".mermaid" => "[drawing]",
        ".steps[].at" => "[time]", ".waits[].opened_at" => "[time]", ".jobs[].queued_at" => "[time]",
        ".jobs[].job_id" => "[id]", ".waits[].wait_id" => "[id]",
    }, @r##"
    {
      "task_id": "[id]",
      "run_id": "[id]",
      "trace_id": "[trace]",
      "state": "running",
      "node": "collect_result",
      "standing": "waits for a node to take the job of a",
      "retries_used": 0,
      "cost_micros": 7,
      "steps": [
        {
          "sequence": 1,
          "node": "load_task_context",
          "verdict": "pass",
          "attempt": 1,
          "actor": "runner",
          "duration_ms": 5,
          "cost_micros": 0,
          "at": "[time]"
        },
        {
          "sequence": 2,
          "node": "plan_steps",
          "verdict": "pass",
          "attempt": 1,
          "actor": "runner",
          "duration_ms": 5,
          "cost_micros": 0,
          "at": "[time]"
        },
        {
          "sequence": 3,
          "node": "dispatch_step",
          "verdict": "pass",
          "attempt": 1,
          "actor": "runner",
          "duration_ms": 5,
          "cost_micros": 0,
          "at": "[time]"
        },
        {
          "sequence": 4,
          "node": "collect_result",
          "verdict": "wait",
          "attempt": 1,
          "actor": "runner",
          "duration_ms": 5,
          "cost_micros": 7,
          "at": "[time]"
        }
      ],
      "waits": [
        {
          "wait_id": "[id]",
          "reason": "job",
          "owner": "worker",
          "opened_at": "[time]"
        }
      ],
      "units": [
        {
          "key": "a",
          "title": "a",
          "depends_on": [],
          "state": "dispatched",
          "attempts": 1,
          "findings": [],
          "job": {
            "attempt": 1,
            "state": "queued",
            "collected": false
          }
        }
      ],
      "jobs": [
        {
          "job_id": "[id]",
          "unit": "a",
          "attempt": 1,
          "state": "queued",
          "queued_at": "[time]"
        }
      ],
      "mermaid": "[drawing]",
      "plan_mermaid": "flowchart LR\n    a[\"a<br/>dispatched, attempt 1\"]:::dispatched\n    classDef pending fill:#eceff1\n    classDef dispatched fill:#ffd54f\n    classDef collected fill:#81d4fa\n    classDef done fill:#a5d6a7\n    classDef failed fill:#ef9a9a\n    classDef cancelled fill:#bdbdbd\n"
    }
    "##);
}
