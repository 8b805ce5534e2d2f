//! The contract with whoever drives tasks. (REQ-AGENTS-0004, 0116, 0117, 0118)

use std::collections::BTreeSet;

use cynode_core::ids::TaskId;
use cynode_testkit::{Client, Reply, TestApp, TestDb};
use insta::assert_json_snapshot;
use serde_json::{Value, json};

/// A task, and somebody who drives it by hand.
pub(crate) struct Drive {
    pub(crate) app: TestApp,
    pub(crate) admin: Client,
    pub(crate) runner: Client,
    pub(crate) project: String,
    pub(crate) task: String,
}

/// A lease that was granted, and where the run stands.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) lease: Value,
    pub(crate) position: Value,
}

impl Drive {
    pub(crate) async fn new() -> Self {
        Self::over(TestApp::new().await).await
    }

    pub(crate) async fn over(app: TestApp) -> Self {
        let admin = app.admin().await;
        let project = app.project(&admin, "web").await.to_string();
        let runner = app.runner().await;
        let mut drive = Self { app, admin, runner, project, task: String::new() };
        drive.task = drive.another(json!([])).await;
        drive
    }

    /// Another task of the project.
    pub(crate) async fn another(&self, depends_on: Value) -> String {
        let body = json!({ "project_id": self.project, "description": "Mend it",
            "acceptance_criteria": [{ "text": "the tests pass" }], "depends_on": depends_on });
        self.admin.post("/v1/tasks", body).await.expect(201).text("id")
    }

    pub(crate) async fn start_as(&self, task: &str, holder: &str, key: &str) -> Reply {
        let body = json!({ "task_id": task, "holder": holder, "idempotency_key": key });
        self.runner.post("/v1/workflow/start", body).await
    }

    /// Starts the task as the runner, under a key of its own.
    pub(crate) async fn start(&self) -> Held {
        self.start_task(&self.task.clone()).await
    }

    pub(crate) async fn start_task(&self, task: &str) -> Held {
        let key = format!("key-{}", self.app.db.number("SELECT nextval('events_seq')").await);
        let started = self.start_as(task, "runner", &key).await.expect(200).json();
        let mut lease = started["lease"].clone();
        lease["task_id"] = json!(task);
        for field in ["holder", "expires_at"] {
            lease.as_object_mut().unwrap().remove(field);
        }
        Held { lease, position: started["position"].clone() }
    }

    pub(crate) async fn resume(&self) -> Value {
        let body = json!({ "task_id": self.task });
        self.runner.post("/v1/workflow/resume", body).await.expect(200).json()
    }

    /// Sends a checkpoint for the node that is next.
    pub(crate) async fn step(&self, held: &Held, verdict: &str, more: Value) -> Reply {
        let mut body = json!({
            "lease": held.lease,
            "sequence": held.position["sequence"].as_i64().unwrap() + 1,
            "node": held.position["next"]["node"],
            "verdict": verdict,
            "state": held.position["state"].as_object().map_or(json!({}), |state| json!(state)),
            "seen_wakes": held.position["wakes"],
            "attempt": 1,
            "duration_ms": 5,
        });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        self.runner.post("/v1/workflow/checkpoint", body).await
    }

    /// A checkpoint that must be accepted; the lease then stands where it led.
    pub(crate) async fn go(&self, held: &mut Held, verdict: &str, more: Value) {
        let answer = self.step(held, verdict, more).await.expect(200).json();
        let state = held.position["state"].clone();
        held.position = answer;
        if held.position.get("state").is_none() {
            held.position["state"] = state;
        }
    }

    /// Drives a task with these units to the place where all of them are out.
    pub(crate) async fn dispatched(&self, units: &[&str]) -> Held {
        self.dispatched_with(units, &Value::Null).await
    }

    /// The same, each unit with that payload.
    pub(crate) async fn dispatched_with(&self, units: &[&str], payload: &Value) -> Held {
        let mut held = self.start().await;
        self.go(&mut held, "pass", json!({})).await;
        let planned: Vec<_> = units
            .iter()
            .map(|key| json!({ "key": key, "title": key, "payload": payload }))
            .collect();
        let plan = json!([{ "effect": "plan_units", "units": planned }]);
        self.go(&mut held, "pass", json!({ "effects": plan })).await;
        let jobs: Vec<_> = units.iter().map(|key| create_job(key, 1)).collect();
        self.go(&mut held, "pass", json!({ "effects": jobs })).await;
        held
    }

    /// The lease of the task has ended by the database's clock.
    pub(crate) async fn expire(&self) {
        let past = "UPDATE workflow_leases SET expires_at = now() - interval '1 second'";
        assert_eq!(self.app.db.execute(past).await, 1);
    }
}

pub(crate) fn create_job(unit: &str, attempt: u32) -> Value {
    json!({ "effect": "create_job", "unit": unit, "attempt": attempt, "timeout_seconds": 600 })
}

#[tokio::test]
async fn a_pool_of_few_connections_is_not_used_up_by_what_requests_share() {
    let db = TestDb::new().await.with_connections(3);
    let drive = Drive::over(TestApp::over(db)).await;
    drive.start().await;
    let named = json!({ "project_id": drive.project, "name": "named", "description": "x" });
    drive.admin.post("/v1/tasks", named).await.expect(201);
    let task = drive.admin.get(&format!("/v1/tasks/{}", drive.task)).await.expect(200).json();
    assert_eq!(task["state"], "running");
}

#[tokio::test]
async fn a_start_gives_the_lease_the_task_and_the_first_node() {
    let drive = Drive::new().await;
    let started = drive.start_as(&drive.task, "runner", "key").await.expect(200).json();
    assert_json_snapshot!(started, {
        ".lease.expires_at" => "[time]", ".position.run_id" => "[id]", ".position.task_id" => "[id]",
        ".task.project_id" => "[id]", ".task.trace_id" => "[trace]",
    }, @r#"
    {
      "status": "started",
      "lease": {
        "lease_id": "key",
        "holder": "runner",
        "fencing_token": 1,
        "expires_at": "[time]"
      },
      "task": {
        "project_id": "[id]",
        "name": "mend-it",
        "description": "Mend it",
        "acceptance_criteria": [
          {
            "text": "the tests pass"
          }
        ],
        "preferences": {},
        "trace_id": "[trace]"
      },
      "position": {
        "task_id": "[id]",
        "run_id": "[id]",
        "sequence": 0,
        "next": {
          "do": "run",
          "node": "load_task_context"
        },
        "wakes": 0,
        "retries_used": 0,
        "units": [],
        "state": {
          "acceptance_criteria": [],
          "preferences_effective": {},
          "plan": null,
          "current_step_index": 0,
          "attempts_by_step": {},
          "last_result": null,
          "verification": null,
          "feedback": [],
          "node_failures": 0,
          "failure": null,
          "summary": null,
          "runner": null
        }
      }
    }
    "#);
    assert_eq!(started["status"], "started", "S002-09, S002-39, S002-62: a start is answered");
    assert_eq!(started["position"]["task_id"], json!(drive.task), "S002-10");
    let first = json!({ "do": "run", "node": "load_task_context" });
    assert_eq!(started["position"]["next"], first, "S002-24");
    let loaded = &started["position"]["state"]["acceptance_criteria"];
    assert_eq!(*loaded, json!([]), "S002-24: nothing is loaded before the first step");
    let task = drive.admin.get(&format!("/v1/tasks/{}", drive.task)).await.expect(200).json();
    assert_eq!(task["state"], "running");
    let state = started["position"]["state"].as_object().unwrap();
    for field in [
        "acceptance_criteria",
        "preferences_effective",
        "plan",
        "current_step_index",
        "attempts_by_step",
        "last_result",
        "verification",
    ] {
        assert!(state.contains_key(field), "B023-05: {field}");
    }
    assert_eq!(started["position"]["task_id"], json!(drive.task), "B023-05");
}

#[tokio::test]
async fn the_same_holder_and_key_get_the_same_lease_and_another_holder_is_refused() {
    let drive = Drive::new().await;
    let first = drive.start_as(&drive.task, "runner", "key").await.expect(200).json();
    let again = drive.start_as(&drive.task, "runner", "key").await.expect(200).json();
    assert_eq!(again["status"], "already_running", "B023-01");
    assert!(first["position"]["run_id"].is_string(), "B023-01: the run is named");
    for field in ["lease_id", "holder", "fencing_token"] {
        assert_eq!(again["lease"][field], first["lease"][field], "{field}");
    }
    for (holder, key) in [("other", "key"), ("other", "other"), ("runner", "other")] {
        let refused = drive.start_as(&drive.task, holder, key).await.expect(409);
        assert_eq!(refused.text("code"), "lease_held", "B023-01, S002-14: {holder} {key}");
    }
    let stored = "SELECT lease_id || ' ' || holder || ' ' || fencing_token FROM workflow_leases";
    assert_eq!(drive.app.db.texts(stored).await, ["key runner 1"], "S002-45, S002-64");
    drive.start_as("tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "runner", "key").await.expect(404);
}

#[tokio::test]
async fn of_many_starts_at_once_one_gets_the_lease() {
    let drive = Drive::new().await;
    let starts = (0..16).map(|number| {
        let (holder, key) = (format!("runner-{number}"), format!("key-{number}"));
        let drive = &drive;
        async move { drive.start_as(&drive.task, &holder, &key).await.status }
    });
    let mut statuses = futures::future::join_all(starts).await;
    statuses.sort_unstable();
    assert_eq!(statuses[0], 200);
    let others_wait = statuses[1..].iter().all(|status| *status == 409);
    assert!(others_wait, "S002-13, S002-14: {statuses:?}");
    let runs = "SELECT count(*) FROM workflow_runs";
    assert_eq!(
        drive.app.db.number(runs).await,
        1,
        "X-02, S002-12, S002-14, S002-35: one task has one workflow"
    );
    let fencing = drive.app.db.number("SELECT fencing_token FROM workflow_leases").await;
    assert_eq!(fencing, 1, "X-04: the lease guards every start");
}

#[tokio::test]
async fn a_lease_that_has_ended_is_free_and_its_holder_is_shut_out() {
    let drive = Drive::new().await;
    let mut late = drive.start().await;
    drive.go(&mut late, "pass", json!({})).await;
    drive.expire().await;
    // Without anybody in its place: ended is ended.
    assert_eq!(drive.step(&late, "pass", json!({})).await.expect(409).text("code"), "fenced");
    let taken = drive.start_as(&drive.task, "other", "other").await.expect(200).json();
    assert_eq!(taken["lease"]["fencing_token"], 2);
    assert_eq!(taken["position"]["sequence"], 1);
    assert_eq!(taken["position"]["next"], json!({ "do": "run", "node": "plan_steps" }));
    let refused = drive.step(&late, "pass", json!({})).await.expect(409);
    assert_eq!(refused.text("code"), "fenced", "B004-53, S002-13: the crashed holder is shut out");
    let renew = drive.runner.post("/v1/workflow/renew", late.lease.clone()).await.expect(409);
    assert_eq!(renew.text("code"), "fenced");
    // Giving back what is not one's own changes nothing.
    drive.runner.post("/v1/workflow/release", late.lease.clone()).await.expect(204);
    drive.start_as(&drive.task, "runner", "key").await.expect(409);
}

#[tokio::test]
async fn the_same_call_in_another_process_or_again_in_the_same_one_shuts_the_one_before_out_at_once()
 {
    let drive = Drive::new().await;
    let start = |instance: &'static str| {
        let body = json!({ "task_id": drive.task, "holder": "runner", "idempotency_key": "call",
            "instance": instance });
        let runner = drive.runner.clone();
        async move { runner.post("/v1/workflow/start", body).await.expect(200).json() }
    };
    let first = start("process-1#1").await;
    let second = start("process-2#1").await;
    let third = start("process-2#2").await;
    for (started, token) in [(&first, 1), (&second, 2), (&third, 3)] {
        assert_eq!(started["lease"]["fencing_token"], token);
    }
    let again = start("process-2#2").await;
    assert_eq!(again["lease"]["fencing_token"], 3, "the same attempt asks again");
    let held = |started: &Value| Held {
        lease: json!({ "task_id": drive.task, "lease_id": "call",
            "fencing_token": started["lease"]["fencing_token"] }),
        position: started["position"].clone(),
    };
    for before in [&first, &second] {
        drive.step(&held(before), "pass", json!({})).await.expect(409);
    }
    drive.step(&held(&third), "pass", json!({})).await.expect(200);
}

#[tokio::test]
async fn the_timeline_says_which_process_went_on_and_when_the_one_before_was_last_heard_of() {
    let drive = Drive::new().await;
    let start = |key: &'static str, instance: Option<&'static str>| {
        let mut body = json!({ "task_id": drive.task, "holder": "runner", "idempotency_key": key });
        if let Some(instance) = instance {
            body["instance"] = json!(instance);
        }
        let (runner, task) = (drive.runner.clone(), drive.task.clone());
        async move {
            let started = runner.post("/v1/workflow/start", body).await.expect(200).json();
            let token = &started["lease"]["fencing_token"];
            let lease = json!({ "task_id": task, "lease_id": key, "fencing_token": token });
            Held { lease, position: started["position"].clone() }
        }
    };
    let mut held = start("a", Some("process-1#1")).await;
    drive.go(&mut held, "pass", json!({})).await;
    // The first process falls silent; the second one falls silent too, and the engine repeats its call in a third one.
    drive.expire().await;
    let mut held = start("b", Some("process-2#1")).await;
    let plan =
        json!([{ "effect": "plan_units", "units": [{ "key": "a", "title": "a", "payload": {} }] }]);
    drive.go(&mut held, "pass", json!({ "effects": plan })).await;
    let held = start("b", Some("process-3#1")).await;
    // A process that takes the lease again after it gave it back is no news, nor is one that does not name itself.
    drive.runner.post("/v1/workflow/release", held.lease.clone()).await.expect(204);
    let held = start("c", Some("process-3#2")).await;
    drive.runner.post("/v1/workflow/release", held.lease.clone()).await.expect(204);
    let held = start("d", None).await;
    drive.runner.post("/v1/workflow/release", held.lease.clone()).await.expect(204);
    start("e", Some("process-4")).await;
    let path = format!("/v1/tasks/{}/timeline", drive.task);
    let timeline = drive.admin.get(&path).await.expect(200).json();
    let steps = timeline["steps"].as_array().unwrap();
    let carried: Vec<_> = steps.iter().map(|step| step["instance"].as_str().unwrap()).collect();
    assert_eq!(carried, ["process-1", "process-2"]);
    let takeovers = timeline["takeovers"].as_array().unwrap();
    let told: Vec<_> = takeovers
        .iter()
        .map(|it| json!([it["sequence"], it["previous_instance"], it["instance"], it["ended_by"]]))
        .collect();
    assert_eq!(
        told,
        [
            json!([1, "process-1", "process-2", "expired"]),
            json!([2, "process-2", "process-3", "replaced"]),
        ]
    );
    let seen: Vec<_> = takeovers.iter().map(|it| &it["previous_seen_at"]).collect();
    assert_eq!(seen, [&steps[0]["at"], &steps[1]["at"]], "a stored step is a sign of life");
}

#[tokio::test]
async fn nothing_is_stored_without_the_lease_the_number_and_the_node_that_follow() {
    let drive = Drive::new().await;
    let held = drive.start().await;
    let wrong = [
        ("lease", json!({ "task_id": drive.task, "lease_id": "key", "fencing_token": 9 })),
        ("lease", json!({ "task_id": drive.task, "lease_id": "guess", "fencing_token": 1 })),
        ("sequence", json!(2)),
        ("sequence", json!(0)),
        ("node", json!("finalize_summary")),
    ];
    for (field, value) in wrong {
        let refused = drive.step(&held, "pass", json!({ field: value })).await;
        assert_eq!(refused.status, 409, "S002-17, S002-46: {field}");
    }
    drive.step(&held, "wait", json!({})).await.expect(422);
    drive.step(&held, "pass", json!({ "wait": { "reason": "job" } })).await.expect(422);
    drive.step(&held, "pass", json!({ "state": { "anything": 1 } })).await.expect(400);
    let count = "SELECT count(*) FROM workflow_transitions";
    assert_eq!(drive.app.db.number(count).await, 0, "S002-17, S002-46");
}

#[tokio::test]
async fn without_the_store_no_step_is_started_and_none_is_taken() {
    let drive = Drive::new().await;
    let held = drive.start().await;
    drive.app.db.pool().close().await;
    let taken = drive.step(&held, "pass", json!({})).await;
    assert_eq!(taken.status, 503, "S002-17: without a checkpoint there is no next step");
    let started = drive.start_as(&drive.task, "runner", "key").await;
    assert_eq!(started.status, 503, "S002-17: without the store there is no first step");
}

#[tokio::test]
async fn a_checkpoint_sent_again_gets_the_answer_and_has_no_second_effect() {
    let drive = Drive::new().await;
    let mut held = drive.start().await;
    drive.go(&mut held, "pass", json!({})).await;
    let plan =
        json!({ "effects": [{ "effect": "plan_units", "units": [{ "key": "a", "title": "a" }] }] });
    drive.go(&mut held, "pass", plan).await;
    let send = json!({ "effects": [create_job("a", 1)] });
    let first = drive.step(&held, "pass", send.clone()).await.expect(200).json();
    let again = drive.step(&held, "pass", send).await.expect(200).json();
    let without_state = |mut answer: Value| {
        answer.as_object_mut().unwrap().remove("state");
        answer
    };
    assert_eq!(without_state(again), without_state(first));
    let jobs = drive.app.db.number("SELECT count(*) FROM jobs").await;
    assert_eq!(jobs, 1, "B004-63: what is next is there once");
    assert_eq!(drive.app.db.number("SELECT count(*) FROM workflow_transitions").await, 3);
}

#[tokio::test]
async fn a_wait_sent_again_after_the_lease_was_given_back_gets_its_answer() {
    let drive = Drive::new().await;
    let held = drive.dispatched(&["a"]).await;
    let wait = json!({ "wait": { "reason": "job" } });
    let first = drive.step(&held, "wait", wait.clone()).await.expect(200).json();
    let expected =
        json!({ "do": "wait", "node": "collect_result", "reason": "job", "owner": "worker" });
    assert_eq!(first["next"], expected);
    let again = drive.step(&held, "wait", wait).await.expect(200).json();
    assert_eq!(again["next"], expected);
    assert_eq!(drive.app.db.number("SELECT count(*) FROM waits").await, 1);
}

#[tokio::test]
async fn a_checkpoint_that_waits_for_its_run_holds_none_of_its_units() {
    let drive = Drive::new().await;
    let held = drive.dispatched(&["a"]).await;
    // Somebody reports something, who takes the run first.
    let mut reporting = drive.app.db.begin().await;
    let task: TaskId = drive.task.parse().unwrap();
    cynode_db::workflow::wake_runs(&mut reporting, &[task.as_uuid()]).await.unwrap();
    let more = json!({
        "effects": [{ "effect": "fail_unit", "unit": "a", "attempt": 1 }],
        "wait": { "reason": "human_input", "question": "And now?" },
    });
    let storing = drive.step(&held, "wait", more);
    let looking = async {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while drive.app.db.number(waits).await == 0 {}
        let free =
            "SELECT count(*) FROM (SELECT unit_id FROM work_units FOR UPDATE SKIP LOCKED) AS free";
        let free = drive.app.db.number(free).await;
        reporting.commit().await.unwrap();
        free
    };
    let (stored, free) = tokio::join!(storing, looking);
    stored.expect(200);
    assert_eq!(free, 1);
}

#[tokio::test]
async fn a_task_whose_dependency_failed_stays_queued_and_says_so() {
    let drive = Drive::new().await;
    let next = drive.another(json!([drive.task])).await;
    let standing = async || {
        let story = drive.admin.get(&format!("/v1/tasks/{next}/timeline")).await.expect(200).json();
        [story["state"].clone(), story["standing"].clone()]
    };
    assert_eq!(standing().await, ["queued", "waits for the tasks it depends on"]);
    let mut held = drive.start().await;
    drive.go(&mut held, "fail", json!({})).await;
    drive.step(&held, "pass", json!({ "note": "no such repository" })).await.expect(200);
    let why = "cannot start: `mend-it`, on which it depends, was given up";
    assert_eq!(standing().await, ["queued", why]);
}

#[tokio::test]
async fn whoever_plans_anew_sees_which_units_failed() {
    let drive = Drive::new().await;
    let mut held = drive.dispatched(&["a", "b"]).await;
    let fail = json!([{ "effect": "fail_unit", "unit": "a", "attempt": 1 }]);
    drive.go(&mut held, "revise", json!({ "effects": fail })).await;
    let resumed = drive.resume().await["position"].clone();
    drive.runner.post("/v1/workflow/release", held.lease.clone()).await.expect(204);
    for position in [held.position, resumed, drive.start().await.position] {
        assert_eq!(position["next"], json!({ "do": "run", "node": "plan_steps" }));
        let units = position["units"].as_array().unwrap().iter();
        let states: Vec<_> = units.map(|unit| [&unit["key"], &unit["state"]]).collect();
        assert_eq!(states, [["a", "failed"], ["b", "dispatched"]]);
    }
}

#[tokio::test]
async fn checkpoint_units_and_jobs_change_together_or_not_at_all() {
    let drive = Drive::new().await;
    let held = drive.dispatched(&["a", "b"]).await;
    let facts = "SELECT hashtextextended(concat((SELECT json_agg(c) FROM workflow_checkpoints c),
        (SELECT json_agg(u ORDER BY key) FROM work_units u), (SELECT json_agg(j ORDER BY job_id) FROM jobs j),
        (SELECT count(*) FROM workflow_transitions)), 0)";
    let before = drive.app.db.number(facts).await;
    // The first effect would be possible, the second is not: there is no result yet.
    let impossible = json!({ "effects": [
        { "effect": "fail_unit", "unit": "a", "attempt": 1 },
        { "effect": "collect_job", "unit": "b", "attempt": 1 },
    ] });
    let refused = drive.step(&held, "pass", impossible).await.expect(422);
    assert_eq!(
        refused.text("detail"),
        "unit `b` cannot be collected in its present state and attempt"
    );
    for effect in [
        json!({ "effect": "accept_unit", "unit": "a", "attempt": 1 }),
        json!({ "effect": "create_job", "unit": "a", "attempt": 1, "timeout_seconds": 1 }),
        json!({ "effect": "create_job", "unit": "a", "attempt": 2, "timeout_seconds": 1 }),
        json!({ "effect": "retry_unit", "unit": "a", "attempt": 2 }),
        json!({ "effect": "retry_unit", "unit": "nobody", "attempt": 1 }),
        json!({ "effect": "plan_units", "units": [{ "key": "x", "title": "x", "depends_on": ["x"] }] }),
    ] {
        drive.step(&held, "pass", json!({ "effects": [effect] })).await.expect(422);
    }
    let after = drive.app.db.number(facts).await;
    assert_eq!(after, before, "B004-06, B004-57, X-02: all of it is stored, or nothing");
    let units = drive.app.db.texts("SELECT key FROM work_units ORDER BY key").await;
    assert_eq!(units, ["a", "b"], "X-02: one unit for each step of the plan");
}

#[tokio::test]
async fn what_happens_while_a_run_is_about_to_wait_makes_it_due_at_once() {
    let drive = Drive::new().await;
    let held = drive.dispatched(&["a"]).await;
    let due = "SELECT count(*) FROM workflow_runs WHERE due_at <= clock_timestamp()";
    let worker =
        drive.app.service(cynode_app::identity::service_tokens::ServiceKind::Worker, "w").await;
    let claim = json!({ "claim_id": "0192d5c8-b6f0-7cc1-a1a3-c2b4d5e6f708", "max_jobs": 1 });
    let job = worker.post("/v1/jobs/claim", claim).await.expect(200).json()["jobs"][0].clone();
    // The runner has looked and seen nothing; now the result comes.
    let report = json!({ "fencing_token": 1, "outcome": "succeeded", "result": {} });
    let path = format!("/v1/jobs/{}/result", job["job_id"].as_str().unwrap());
    worker.post(&path, report).await.expect(200);
    drive.step(&held, "wait", json!({ "wait": { "reason": "job" } })).await.expect(200);
    assert_eq!(drive.app.db.number(due).await, 1);
    // The next one has seen it, and rests until it is woken.
    let held = drive.start().await;
    assert_eq!(held.position["ended_wait"], json!({ "reason": "job", "resolution": "woken" }));
    assert_eq!(held.position["units"][0]["job"]["state"], "succeeded");
    drive.step(&held, "wait", json!({ "wait": { "reason": "job" } })).await.expect(200);
    assert_eq!(drive.app.db.number(due).await, 0);
}

#[tokio::test]
async fn whoever_asks_before_anything_happened_is_told_to_wait() {
    let drive = Drive::new().await;
    let held = drive.dispatched(&["a"]).await;
    drive.step(&held, "wait", json!({ "wait": { "reason": "job" } })).await.expect(200);
    let early = drive.start_as(&drive.task, "runner", "early").await.expect(409);
    assert_eq!(
        early.text("detail"),
        "the task cannot be driven now: it waits, and nothing has happened yet"
    );
    // Asking too early neither ends the wait nor moves the time at which it ends.
    let later = "UPDATE workflow_runs SET due_at = now() + interval '1 hour'";
    drive.app.db.execute(later).await;
    drive.start_as(&drive.task, "runner", "early").await.expect(409);
    let kept = "SELECT count(*) FROM workflow_runs WHERE due_at > now() + interval '50 minutes'";
    assert_eq!(drive.app.db.number(kept).await, 1);
    assert_eq!(
        drive.app.db.number("SELECT count(*) FROM waits WHERE resolved_at IS NULL").await,
        1
    );
}

#[tokio::test]
async fn whoever_looks_at_a_run_can_wait_until_something_happens_to_it() {
    let drive = Drive::new().await;
    let held = drive.dispatched(&["a"]).await;
    let seen = held.position["wakes"].as_i64().unwrap();
    let look = |seen: i64| {
        let (runner, task) = (drive.runner.clone(), drive.task.clone());
        async move {
            let body = json!({ "task_id": task, "seen_wakes": seen, "wait_ms": 20_000 });
            runner.post("/v1/workflow/resume", body).await.expect(200).json()
        }
    };
    // What has happened already is told at once.
    assert_eq!(look(seen - 1).await["position"]["wakes"], seen);
    let instruct = async {
        let path = format!("/v1/tasks/{}/instructions", drive.task);
        drive.admin.post(&path, json!({ "kind": "pause" })).await.expect(202);
    };
    let (looked, ()) = tokio::join!(look(seen), instruct);
    assert_eq!(looked["position"]["wakes"], seen + 1);
}

#[tokio::test]
async fn a_task_is_not_driven_before_what_it_depends_on_is_completed() {
    let drive = Drive::new().await;
    let other = drive.another(json!([])).await;
    let dependent = drive.another(json!([drive.task, other])).await;
    let refused = drive.start_as(&dependent, "runner", "key").await.expect(409);
    assert_eq!(refused.text("code"), "not_runnable", "B023-09: a dependency is not finished");
    let due = "SELECT count(*) FROM workflow_runs WHERE due_at IS NOT NULL AND ended_at IS NULL";
    for (task, left) in [(drive.task.clone(), 1), (other, 1)] {
        complete(&drive, &task).await;
        assert_eq!(drive.app.db.number(due).await, left, "after {task}");
    }
    drive.start_as(&dependent, "runner", "key").await.expect(200);
    // What ends late finds nothing to wait for.
    let late = drive.another(json!([drive.task])).await;
    drive.start_as(&late, "runner", "key").await.expect(200);
}

/// Drives a task without any work to its end.
pub(crate) async fn complete(drive: &Drive, task: &str) {
    let mut held = drive.start_task(task).await;
    for verdict in ["pass", "pass", "done", "pass"] {
        drive.go(&mut held, verdict, json!({})).await;
    }
    assert_eq!(held.position["next"], json!({ "do": "end" }));
}

#[tokio::test]
async fn a_task_that_has_ended_is_never_driven_again() {
    let drive = Drive::new().await;
    complete(&drive, &drive.task).await;
    let task = drive.admin.get(&format!("/v1/tasks/{}", drive.task)).await.expect(200).json();
    assert_eq!(task["state"], "completed");
    let refused = drive.start_as(&drive.task, "runner", "again").await.expect(409);
    assert_eq!(refused.text("code"), "task_ended");
    let resumed = drive.resume().await;
    assert_eq!(resumed["position"]["next"], json!({ "do": "end" }));
    let instruct = format!("/v1/tasks/{}/instructions", drive.task);
    drive.admin.post(&instruct, json!({ "kind": "pause" })).await.expect(409);
}

#[tokio::test]
async fn a_task_with_units_that_are_not_done_cannot_be_completed() {
    let drive = Drive::new().await;
    let mut held = drive.start().await;
    drive.go(&mut held, "pass", json!({})).await;
    let plan = json!([{ "effect": "plan_units", "units": [{ "key": "a", "title": "a" }] }]);
    drive.go(&mut held, "pass", json!({ "effects": plan })).await;
    drive.go(&mut held, "done", json!({})).await;
    drive.step(&held, "pass", json!({})).await.expect(422);
    let task = drive.admin.get(&format!("/v1/tasks/{}", drive.task)).await.expect(200).json();
    assert_eq!(task["state"], "running", "B004-11: a unit is not done yet");
}

#[tokio::test]
async fn units_of_two_tasks_may_have_the_same_name() {
    let drive = Drive::new().await;
    drive.dispatched(&["a"]).await;
    let other = drive.another(json!([])).await;
    let mut held = drive.start_task(&other).await;
    drive.go(&mut held, "pass", json!({})).await;
    let plan = json!([{ "effect": "plan_units", "units": [{ "key": "a", "title": "a" }] }]);
    drive.go(&mut held, "pass", json!({ "effects": plan })).await;
    let units = drive.app.db.texts("SELECT key FROM work_units").await;
    assert_eq!(units, ["a", "a"], "B004-64");
}

#[tokio::test]
async fn a_run_is_resumed_after_the_node_that_was_checkpointed_last() {
    let drive = Drive::new().await;
    let body = json!({ "task_id": drive.task });
    drive.runner.post("/v1/workflow/resume", body).await.expect(404);
    let mut held = drive.start().await;
    let plan = json!({ "steps": [{ "key": "a", "title": "a" }], "assumptions": ["it builds"] });
    let judged =
        json!({ "unit": "a", "status": "pass", "findings": [], "recommended_actions": ["look"] });
    let state = json!({ "acceptance_criteria": [{ "text": "the tests pass" }], "node_failures": 2,
        "plan": plan, "verification": judged });
    drive.go(&mut held, "pass", json!({ "state": state })).await;
    drive.expire().await;
    let stored = "SELECT 'tsk_' || replace(task_id::text, '-', '') || ' ' || last_step
        FROM workflow_checkpoints";
    let own = format!("{} load_task_context", drive.task);
    assert_eq!(drive.app.db.texts(stored).await, [own], "S002-15, S002-16: saved by task");
    let resumed = drive.resume().await;
    assert_eq!(
        resumed["last_node"], "load_task_context",
        "S002-16, S002-39, B023-02, B023-06: loaded by task"
    );
    let next = json!({ "do": "run", "node": "plan_steps" });
    assert_eq!(resumed["position"]["next"], next, "S002-03, S002-11, S002-62, B023-02");
    let kept = &resumed["position"]["state"];
    assert_eq!(kept["node_failures"], 2, "S002-03, S002-11");
    assert_eq!(kept["plan"]["steps"][0]["key"], "a", "B023-05");
    assert_eq!(kept["plan"]["assumptions"], json!(["it builds"]), "B023-05");
    assert_eq!(kept["verification"], judged, "B023-05");
    let again = drive.start().await;
    assert_eq!(again.position["state"], resumed["position"]["state"], "S002-11");
}

/// The tests of this file are those of the checkpoints; its first line says which requirements they come from.
#[test]
fn the_tests_of_checkpoints_name_the_requirements_that_they_come_from() {
    let first = include_str!("workflow.rs").lines().next().unwrap();
    let named = first.split_once("REQ-AGENTS-").map(|(_, rest)| rest.trim_end_matches(')'));
    assert_eq!(named, Some("0004, 0116, 0117, 0118"), "S002-66");
}

/// The document of the port for runners, workers and nodes.
fn internal_document() -> Value {
    serde_json::from_str(include_str!("../../../../docs/openapi-internal.json")).unwrap()
}

#[test]
fn the_page_of_the_contract_lists_exactly_the_fields_of_the_state() {
    let document = internal_document();
    let state = document["components"]["schemas"]["RunState"]["properties"].as_object().unwrap();
    let fields: BTreeSet<&str> = state.keys().map(String::as_str).collect();
    let page = include_str!("../../../../docs/explanation/workflow.md");
    let (_, section) = page.split_once("\n## State\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed: BTreeSet<&str> = rows.filter_map(|row| row.split([' ', '`']).next()).collect();
    assert_eq!(listed, fields, "S002-40, S002-41, S002-55: docs/explanation/workflow.md, State");
}

#[test]
fn the_orchestrator_has_no_endpoint_that_verifies_a_result() {
    let document = internal_document();
    let paths = document["paths"].as_object().unwrap().keys();
    let verifying: Vec<_> = paths.filter(|path| path.contains("verif")).collect();
    assert_eq!(verifying, ["/v1/nodes/verify"], "S002-43: only nodes are verified at this port");
}

#[tokio::test]
async fn a_plan_made_anew_because_a_unit_failed_counts_as_a_retry_and_any_other_does_not() {
    let drive = Drive::new().await;
    let mut held = drive.dispatched(&["a"]).await;
    let fails = json!({ "effects": [{ "effect": "fail_unit", "unit": "a", "attempt": 1 }] });
    drive.go(&mut held, "revise", fails).await;
    assert_eq!(held.position["retries_used"], 1);
    drive.go(&mut held, "revise", json!({})).await;
    assert_eq!(held.position["retries_used"], 1);
    assert_eq!(drive.resume().await["position"]["retries_used"], 1);
}

#[tokio::test]
async fn a_failed_run_fails_its_task_and_stops_its_jobs() {
    let drive = Drive::new().await;
    let mut held = drive.dispatched(&["a"]).await;
    drive.go(&mut held, "fail", json!({ "note": "it cannot be" })).await;
    assert_eq!(held.position["next"], json!({ "do": "run", "node": "mark_failed" }));
    drive.go(&mut held, "pass", json!({ "note": "it cannot be" })).await;
    let task = drive.admin.get(&format!("/v1/tasks/{}", drive.task)).await.expect(200).json();
    assert_eq!((&task["state"], &task["failure"]), (&json!("failed"), &json!("it cannot be")));
    let left = "SELECT count(*) FROM jobs WHERE state <> 'cancelled'";
    assert_eq!(drive.app.db.number(left).await, 0, "B004-51: a failure does not stay for ever");
}

#[tokio::test]
async fn the_numbers_of_a_run_come_from_preferences_when_its_context_is_loaded() {
    let drive = Drive::new().await;
    let path = format!(
        "/v1/preferences/workflow.max_step_retries?scope_type=task&scope_id={}",
        drive.task
    );
    drive.admin.put(&path, json!({ "value": 5, "expected_version": 0 })).await.expect(200);
    let started = drive.start_as(&drive.task, "runner", "key").await.expect(200).json();
    assert_eq!(started["task"]["preferences"], json!({ "workflow.max_step_retries": 5 }));
}

#[tokio::test]
async fn what_no_column_can_hold_is_refused_for_good() {
    let drive = Drive::new().await;
    let held = drive.start().await;
    let state = json!({ "runner": "a\u{0}b" });
    drive.step(&held, "pass", json!({ "state": state })).await.expect(422);
    drive.step(&held, "pass", json!({ "note": "a\u{0}b" })).await.expect(422);
    let long = json!({ "reason": "retry", "wake_in_ms": u64::MAX });
    drive.step(&held, "wait", json!({ "wait": { "reason": "retry" } })).await.expect(422);
    drive.step(&held, "wait", json!({ "wait": long })).await.expect(200);
}

#[tokio::test]
async fn a_superseded_holder_learns_it_even_when_its_checkpoint_was_stored() {
    let drive = Drive::new().await;
    let held = drive.start().await;
    drive.step(&held, "pass", json!({})).await.expect(200);
    drive.expire().await;
    drive.start_as(&drive.task, "other", "other").await.expect(200);
    // The first one never got its answer and asks again.
    assert_eq!(drive.step(&held, "pass", json!({})).await.expect(409).text("code"), "fenced");
    assert_eq!(drive.app.db.number("SELECT count(*) FROM workflow_transitions").await, 1);
}

#[tokio::test]
async fn a_renewed_lease_lasts_and_a_returned_one_is_free() {
    let drive = Drive::new().await;
    let held = drive.start().await;
    let mut body = held.lease.clone();
    body["expires_in_seconds"] = json!(3600);
    let renewed = drive.runner.post("/v1/workflow/renew", body).await.expect(200).json();
    assert_eq!(renewed["fencing_token"], 1);
    let long =
        "SELECT count(*) FROM workflow_leases WHERE expires_at > now() + interval '50 minutes'";
    assert_eq!(drive.app.db.number(long).await, 1);
    drive.runner.post("/v1/workflow/release", held.lease.clone()).await.expect(204);
    let next = drive.start_as(&drive.task, "other", "other").await.expect(200).json();
    assert_eq!(next["lease"]["fencing_token"], 2);
}
