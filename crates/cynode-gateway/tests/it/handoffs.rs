//! What is given to the project manager and to analysts: stored, claimed, thought about, shared, answered once.

use cynode_app::{
    background::reconciler,
    identity::service_tokens::{self, ServiceKind},
    workflow::schedules,
};
use cynode_core::{ids::ProjectId, roles::UserRole};
use cynode_testkit::{Client, mcp::Agent};
use futures::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{bench::Bench, scoping::jobs};

/// The program in which a role runs.
pub(crate) async fn host(bench: &Bench, kind: ServiceKind, name: &str) -> Agent {
    let token = service_tokens::issue_service_token(&bench.app.app, kind, &name.parse().unwrap())
        .await
        .unwrap();
    bench.at_gateway(&token.0).await
}

async fn given(agent: &Agent, tool: &str, arguments: Value) -> Value {
    let answer = agent.call(tool, arguments).await;
    assert_eq!(answer.verdict(), "ok", "{tool}: {}", answer.json());
    answer.value()
}

async fn verdict(agent: &Agent, tool: &str, arguments: Value) -> String {
    agent.call(tool, arguments).await.verdict()
}

pub(crate) async fn claim(host: &Agent) -> Value {
    let claim = json!({ "claim_id": Uuid::from_u128(rand()), "wait_ms": 0 });
    given(host, "handoff.claim", claim).await["handoff"].clone()
}

/// Another number each time in this test.
fn rand() -> u128 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).into()
}

/// Makes every job one that somebody works on.
const RUNNING: &str = "
    UPDATE jobs SET state = 'running', worker = 'w', claim_id = job_id, started_at = now(), lease_expires_at = now() + interval '1 hour', deadline_at = now() + interval '1 hour', fencing_token = 1";

/// A run that is driven by hand.
pub(crate) struct Run {
    runner: Client,
    task: String,
    lease: Value,
    position: Value,
    key: u32,
}

impl Run {
    pub(crate) async fn start(bench: &Bench) -> Self {
        let runner = bench.app.runner().await;
        let mut run = Self {
            runner,
            task: bench.task.clone(),
            lease: Value::Null,
            position: Value::Null,
            key: 0,
        };
        run.take().await;
        run
    }

    /// Takes the lease anew.
    async fn take(&mut self) {
        self.key += 1;
        let start = json!({ "task_id": self.task, "holder": "runner", "idempotency_key": self.key.to_string() });
        let started = self.runner.post("/v1/workflow/start", start).await.expect(200).json();
        self.lease = json!({ "task_id": self.task, "lease_id": started["lease"]["lease_id"],
            "fencing_token": started["lease"]["fencing_token"] });
        self.position = started["position"].clone();
    }

    pub(crate) async fn checkpoint(&mut self, verdict: &str, effects: Value, wait: Value) -> u16 {
        let position = &self.position;
        let mut body = json!({
            "lease": self.lease, "sequence": position["sequence"].as_i64().unwrap() + 1, "node": position["next"]["node"],
            "verdict": verdict, "state": {}, "seen_wakes": position["wakes"], "attempt": 1, "duration_ms": 5,
            "effects": effects,
        });
        if !wait.is_null() {
            body["wait"] = wait;
        }
        let reply = self.runner.post("/v1/workflow/checkpoint", body).await;
        let status = reply.status;
        if status == 200 {
            self.position = reply.json();
        }
        status
    }

    /// Asks the project manager and waits.
    pub(crate) async fn ask(&mut self, about: &str, request: Value) {
        let effect = json!({ "effect": "hand_off", "about": about, "request": request });
        let wait = json!({ "reason": "agent", "wake_in_ms": 600_000 });
        assert_eq!(self.checkpoint("wait", json!([effect]), wait).await, 200);
    }
}

pub(crate) fn plan_request() -> Value {
    json!({ "kind": "plan", "previous_plan": null, "feedback": [], "answer": null, "attempt": 1, "started_units": [] })
}

fn planned() -> Value {
    json!({ "answer": "planned", "plan": { "assumptions": [], "steps": [{ "key": "a", "title": "a", "depends_on": [], "payload": {} }] }, "class": "quick_fix", "scope": "small",
        "project": {} })
}

fn judge() -> Value {
    json!({ "kind": "verify", "unit": "a", "title": "a", "payload": {}, "unit_attempt": 1, "output": {}, "plan": null,
        "answer": null, "attempt": 1 })
}

fn complete(handoff: &Value, answer: impl serde::Serialize) -> Value {
    json!({ "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"], "answer": answer })
}

/// A run at planning that has asked for a plan.
async fn asked(bench: &Bench) -> Run {
    let mut run = Run::start(bench).await;
    assert_eq!(run.checkpoint("pass", json!([]), Value::Null).await, 200);
    run.ask("plan:1", plan_request()).await;
    run
}

#[tokio::test]
async fn a_program_that_asks_for_work_is_noted_as_present() {
    let bench = Bench::new().await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    host(&bench, ServiceKind::Analyst, "a").await;
    assert_eq!(claim(&manager).await, Value::Null);
    let present = "SELECT kind || ' ' || name FROM service_tokens WHERE last_seen_at > now() - interval '5 seconds'";
    assert_eq!(bench.app.db.texts(present).await, ["manager m"]);
}

#[tokio::test]
async fn what_a_run_asks_is_stored_with_its_step_answered_once_and_wakes_it() {
    let bench = Bench::new().await;
    let mut run = asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    assert_eq!(handoff["request"], plan_request());
    let context = &handoff["context"];
    let ids = [&context["user_id"], &context["project"]["id"], &context["task"]["id"]];
    let expected = json!([bench.admin.user.unwrap(), bench.project, bench.task]);
    assert_eq!(
        json!(ids),
        expected,
        "S000-014, S000-066: who, where and about what come with the request; the task comes with the handoff"
    );
    assert_eq!(context["project"]["slug"], "web", "S000-064: the project comes with the handoff");
    assert_eq!(handoff["attempt"], 1);
    assert_eq!(claim(&manager).await, Value::Null, "nobody else gets it");
    let answer = complete(&handoff, planned());
    assert_eq!(given(&manager, "handoff.complete", answer.clone()).await["state"], "done");
    assert_eq!(given(&manager, "handoff.complete", answer).await["state"], "done", "said again");
    run.take().await;
    let seen = &run.position["handoff"];
    assert_eq!((&seen["about"], &seen["state"]), (&json!("plan:1"), &json!("done")));
    assert_eq!(seen["answer"]["plan"]["steps"][0]["key"], "a");
    let taken = json!([{ "effect": "take_handoff", "handoff_id": seen["handoff_id"] }]);
    assert_eq!(run.checkpoint("redo", taken.clone(), Value::Null).await, 200);
    assert_eq!(run.checkpoint("redo", taken, Value::Null).await, 422, "it is taken once");
    let story = format!("/v1/projects/web/handoffs?task_id={}", bench.task);
    let seen = bench.admin.get(&story).await.expect(200).json()["items"][0].clone();
    let facts =
        ["kind", "category", "role", "state", "worker", "attempt"].map(|key| seen[key].clone());
    assert_eq!(
        json!(facts),
        json!(["plan", "planning", "project_manager", "done", "m", 1]),
        "S000-007, S000-011, S000-013, S002-29"
    );
    assert_eq!(seen["user_id"], json!(bench.admin.user.unwrap()), "S000-011: in whose name");
    assert_eq!(seen["trace_id"].as_str().unwrap().len(), 32, "S000-011: the correlation id");
}

#[tokio::test]
async fn the_manager_gets_all_other_work_of_whoever_chats_with_a_model_directly() {
    let bench = Bench::new().await;
    let tape = json!({ "kind": "scripted", "local": true, "script": { "rules": [{ "answer": { "text": "Hello." } }] } });
    bench.admin.put("/v1/providers/tape", tape).await.expect(200);
    let model = json!({ "context_tokens": 100_000, "max_output_tokens": 1000,
        "routes": [{ "provider": "tape", "upstream": "m",
            "prices": { "input": 1, "cached": 1, "cache_write": 1, "output": 1 } }] });
    bench.admin.put("/v1/model-registry/small", model).await.expect(200);
    let person = bench.admin.with_header("openai-project", &bench.project.to_string());
    let mut run = Run::start(&bench).await;
    assert_eq!(run.checkpoint("pass", json!([]), Value::Null).await, 200);
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let unit = json!({ "unit": "a", "title": "a", "payload": { "kind": "fix" }, "attempt": 1, "findings": [], "results": {} });
    let work = json!({ "unit": "a", "work": { "role": "fixer", "worker": { "kind": "acp", "agent": "goose" } } });
    let sent_back = json!({ "answer": "judged", "outcome": "redo", "findings": [], "recommended_actions": [], "note": "" });
    for (request, answer) in [
        (plan_request(), planned()),
        (
            json!({ "kind": "dispatch", "units": [unit] }),
            json!({ "answer": "assigned", "assignments": [work] }),
        ),
        (judge(), sent_back),
        (
            json!({ "kind": "summarise", "units": [] }),
            json!({ "answer": "summarised", "summary": "Done." }),
        ),
    ] {
        let chat = json!({ "model": "small", "messages": [{ "role": "user", "content": "hi" }] });
        person.post("/v1/chat/completions", chat).await.expect(200);
        run.ask(request["kind"].as_str().unwrap(), request.clone()).await;
        let handoff = claim(&manager).await;
        assert_eq!(handoff["request"]["kind"], request["kind"], "S000-009, S000-032");
        given(&manager, "handoff.complete", complete(&handoff, answer)).await;
        run.take().await;
    }
    let story = format!("/v1/projects/web/handoffs?task_id={}", bench.task);
    let story = bench.admin.get(&story).await.expect(200).json();
    let word = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    let mut handed: Vec<String> = story["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("{} to {}", word(one, "category"), word(one, "role")))
        .collect();
    handed.sort();
    let expected = ["analysis", "dispatch", "other", "planning"]
        .map(|category| format!("{category} to project_manager"));
    assert_eq!(handed, expected, "S000-009, S000-013, S000-032");
}

#[tokio::test]
async fn the_token_of_a_handoff_opens_the_gate_for_its_task_and_ends_with_it() {
    let bench = Bench::new().await;
    asked(&bench).await;
    let other = bench.another_task().await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    let agent = bench.at_gateway(handoff["token"].as_str().unwrap()).await;
    let you = given(&agent, "help.overview", json!({})).await["you"].clone();
    assert_eq!(
        (&you["role"], &you["kind"], &you["task_id"]),
        (&json!("project_manager"), &json!("pm"), &json!(bench.task)),
        "S000-084: the orchestrator issues the token for the role and the task"
    );
    let record = bench.records().await.pop().unwrap();
    assert_eq!(record["user_id"], json!(bench.admin.user.unwrap()), "S000-084: and for the person");
    let look = |task: &str| json!({ "task_id": task });
    assert_eq!(verdict(&agent, "db.task.get", look(&bench.task)).await, "ok");
    assert_eq!(verdict(&agent, "db.task.get", look(&other)).await, "refused wrong_id");
    for tool in ["handoff.claim", "handoff.complete", "think.record", "workflow.checkpoint"] {
        let verdict = verdict(&agent, tool, json!({})).await;
        assert_eq!(verdict, "refused not_allowlisted", "S000-077, S000-085: {tool}");
    }
    given(&manager, "handoff.complete", complete(&handoff, planned())).await;
    crate::bench::promised().await;
    let late = agent.call("db.task.get", look(&bench.task)).await.0.status;
    assert_eq!(late, 401, "S000-085: the gateway authenticates the token");
}

#[tokio::test]
async fn a_host_takes_and_brings_work_and_calls_nothing_else() {
    let bench = Bench::new().await;
    asked(&bench).await;
    let analyst = host(&bench, ServiceKind::Analyst, "a").await;
    assert_eq!(claim(&analyst).await, Value::Null, "S000-019: a plan is not the analyst's");
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    for tool in ["db.task.get", "workflow.start", "pm.instruct", "git.read", "verification.record"]
    {
        let verdict = verdict(&manager, tool, json!({ "task_id": bench.task })).await;
        assert_eq!(verdict, "refused not_allowlisted", "{tool}");
    }
    let body = json!({ "role": "manager_host", "project_id": bench.project });
    bench.admin.post("/v1/agent-tokens", body).await.expect(422);
    for role in crate::bench::ROLES {
        let agent = bench.agent(role).await;
        let verdict = verdict(&agent, "handoff.claim", json!({})).await;
        assert!(
            verdict.starts_with("refused "),
            "S000-019: {role} gets no plan to make: {verdict}"
        );
    }
    let handoff = claim(&manager).await;
    assert_eq!(handoff["request"]["kind"], "plan", "S000-019, S000-036: the manager plans");
}

#[tokio::test]
async fn a_paused_task_is_not_thought_about_until_it_goes_on_and_no_thought_is_lost() {
    let bench = Bench::new().await;
    asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    let held =
        json!({ "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"] });
    let begin = async || given(&manager, "think.begin", held.clone()).await;
    assert_eq!(begin().await, json!({ "paused": false }));
    let thought = json!({
        "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"], "calls": [], "prompt": {},
        "decision": { "step": 0, "kind": "classify", "prompt_digest": "a".repeat(64), "schema_digest": "b".repeat(64), "model": "m",
            "output": { "class": "quick_fix" }, "attempts": 1, "validation_errors": [], "input_tokens": 3, "output_tokens": 2, "latency_ms": 5 },
    });
    let instruct = format!("/v1/tasks/{}/instructions", bench.task);
    let instruct = async |kind: &str| {
        bench.admin.post(&instruct, json!({ "kind": kind })).await.expect(202);
    };
    instruct("pause").await;
    // What was asked before the pause is kept, and nothing more is asked.
    given(&manager, "think.record", thought).await;
    given(&manager, "handoff.keep", held.clone()).await;
    assert_eq!(begin().await, json!({ "paused": true }));
    assert_eq!(verdict(&manager, "handoff.keep", held.clone()).await, "failed fenced");
    assert_eq!(claim(&manager).await, Value::Null, "nobody thinks about it");
    // Also when the run has taken the pause up.
    let start = json!({ "task_id": bench.task, "holder": "runner", "idempotency_key": "again" });
    bench.app.runner().await.post("/v1/workflow/start", start).await.expect(409);
    let waits = "SELECT reason FROM waits WHERE resolved_at IS NULL";
    assert_eq!(bench.app.db.texts(waits).await, ["paused"]);
    assert_eq!(claim(&manager).await, Value::Null);
    instruct("resume").await;
    let again = claim(&manager).await;
    assert_eq!((&again["handoff_id"], &again["attempt"]), (&handoff["handoff_id"], &json!(1)));
    let stored = &again["decisions"][0]["output"];
    assert_eq!(
        *stored,
        json!({ "class": "quick_fix" }),
        "S004-009, S004-020: decisions are stored"
    );
    let held =
        json!({ "handoff_id": again["handoff_id"], "fencing_token": again["fencing_token"] });
    assert_eq!(given(&manager, "think.begin", held).await, json!({ "paused": false }));
    assert_eq!(
        given(&manager, "handoff.complete", complete(&again, planned())).await["state"],
        "done"
    );
}

#[tokio::test]
async fn a_schedule_that_is_due_is_handed_to_the_manager_who_makes_its_tasks() {
    // A person wrote the schedule, so that nobody is asked once more.
    let bench = Bench::with_shipped_rules().await;
    let text = "Look for outdated dependencies and mend what is behind.";
    let schedule = json!({
        "project_id": bench.project, "name": "updates", "action": { "kind": "words", "text": text },
        "trigger": { "kind": "cron", "expression": "0 14 * * *", "timezone": "Europe/Berlin" },
    });
    let id = bench.admin.post("/v1/schedules", schedule).await.expect(201).text("schedule_id");
    // The person goes on working, and keeps the session.
    for _ in 0..2 {
        bench.app.clock.advance(time::Duration::minutes(30));
        bench.admin.get("/v1/me").await.expect(200);
    }
    assert_eq!(schedules::fire_due_schedules(&bench.app.app).await.unwrap(), 1);
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    assert_eq!(
        (&handoff["request"]["kind"], &handoff["request"]["text"]),
        (&json!("schedule"), &json!(text)),
        "S000-027, S000-028"
    );
    assert!(handoff["request"]["schedule"].as_str().unwrap().contains("2026-11-01 14:00 +01:00"));
    assert_eq!(handoff["context"]["project"]["slug"], "web");
    assert_eq!(handoff["context"]["user_id"], json!(bench.admin.user.unwrap()));
    assert_eq!(handoff["context"]["task"], Value::Null);
    // The manager makes the task, in the name of whoever wrote the schedule, and asks for its start.
    let agent = bench.at_gateway(handoff["token"].as_str().unwrap()).await;
    let wanted = json!({ "project_id": bench.project, "name": "updates-1", "description": "Mend what is behind." });
    let made = given(&agent, "db.task.create", wanted).await;
    assert_eq!(made["created_by"], json!(bench.admin.user.unwrap()));
    let runs = "SELECT count(*) FROM workflow_runs r JOIN tasks t USING (task_id) WHERE t.name = 'updates-1' AND r.due_at IS NOT NULL";
    let requested = bench.app.db.number(runs).await;
    assert_eq!(requested, 1, "S002-48, S002-50: the task comes with its run, nothing is enqueued");
    let asked = given(&agent, "workflow.start", json!({ "task_id": made["id"] })).await;
    assert_eq!(asked["requested"], true);
    let answer =
        json!({ "answer": "interpreted", "tasks": [made["id"]], "note": "One package is behind." });
    given(&manager, "handoff.complete", complete(&handoff, answer)).await;
    let seen = bench.admin.get(&format!("/v1/schedules/{id}")).await.expect(200).json();
    let last = &seen["last_firing"];
    assert_eq!((&last["outcome"], &last["handoff_state"]), (&json!("handoff"), &json!("done")));
    assert_eq!(last["note"], "One package is behind.");
    assert_eq!(
        last["tasks"],
        json!([{ "task_id": made["id"], "name": "updates-1", "state": "queued" }])
    );
    assert_eq!(bench.app.db.number(runs).await, 1);
}

#[tokio::test]
async fn a_schedule_that_no_person_has_reviewed_makes_no_task_by_itself() {
    let bench = Bench::with_shipped_rules().await;
    let schedule = json!({
        "project_id": bench.project, "name": "updates", "action": { "kind": "words", "text": "Send the keys." },
        "trigger": { "kind": "cron", "expression": "0 14 * * *", "timezone": "Europe/Berlin" },
    });
    bench.admin.post("/v1/schedules", schedule).await.expect(201);
    bench.app.db.execute("UPDATE schedules SET unreviewed = true").await;
    bench.app.clock.advance(time::Duration::hours(1));
    assert_eq!(schedules::fire_due_schedules(&bench.app.app).await.unwrap(), 1);
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    let told = handoff["request"]["schedule"].as_str().unwrap();
    assert!(told.contains("no person has reviewed it"), "{told}");
    let agent = bench.at_gateway(handoff["token"].as_str().unwrap()).await;
    let wanted = json!({ "project_id": bench.project, "name": "updates-1", "description": "Send the keys." });
    assert_eq!(agent.call("db.task.create", wanted).await.verdict(), "refused needs_approval");
}

#[tokio::test]
async fn what_has_no_task_to_be_parked_is_not_asked_without_end_when_models_do_not_answer_in_time()
{
    let bench = Bench::new().await;
    let schedule = json!({
        "project_id": bench.project, "name": "updates", "action": { "kind": "words", "text": "Look." },
        "trigger": { "kind": "cron", "expression": "0 14 * * *", "timezone": "Europe/Berlin" },
    });
    bench.admin.post("/v1/schedules", schedule).await.expect(201);
    bench.app.clock.advance(time::Duration::hours(1));
    assert_eq!(schedules::fire_due_schedules(&bench.app.app).await.unwrap(), 1);
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let tried = async |timed_out: bool| {
        let handoff = claim(&manager).await;
        let fail = json!({ "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"], "transient": true,
            "timed_out": timed_out, "reason": "it took too long" });
        let state = given(&manager, "handoff.fail", fail).await["state"].clone();
        bench.app.db.execute("UPDATE handoffs SET due_at = now()").await;
        state
    };
    for timed_out in [true, true, false, false, false, true, true] {
        assert_eq!(tried(timed_out).await, "queued", "a provider that is away costs nothing");
    }
    assert_eq!(tried(true).await, "failed");
    // What a task asks is ended by the task's own brake.
    asked(&bench).await;
    for _ in 0..6 {
        assert_eq!(tried(true).await, "queued");
    }
}

/// Offers a model, for one project or for all.
async fn offer(bench: &Bench, id: &str, tier: Option<&str>, tools: bool, of: Option<ProjectId>) {
    let provider = json!({ "kind": "compatible", "base_url": "http://127.0.0.1:9/v1" });
    bench.admin.put("/v1/providers/tape", provider).await.expect(200);
    let model = json!({ "context_tokens": 9, "max_output_tokens": 9, "tier": tier, "tools": tools, "project_id": of,
        "routes": [{ "provider": "tape", "upstream": "m" }] });
    bench.admin.put(&format!("/v1/model-registry/{id}"), model).await.expect(200);
}

#[tokio::test]
async fn a_handoff_says_which_of_its_models_call_tools() {
    let bench = Bench::new().await;
    let other = bench.app.project(&bench.admin, "other").await;
    for (id, tier, tools, of) in [
        ("able", "fast", true, None),
        ("plain", "standard", false, None),
        ("deep-able", "deep", true, None),
        ("deep-plain", "deep", false, None),
        ("others", "fast", false, Some(other)),
    ] {
        offer(&bench, id, Some(tier), tools, of).await;
    }
    asked(&bench).await;
    let handoff = claim(&host(&bench, ServiceKind::Manager, "m").await).await;
    assert_eq!(handoff["models"].as_array().unwrap().len(), 3);
    // Whatever may answer has to: of the deep ones one cannot. What another project has for itself does not answer here.
    assert_eq!(handoff["tool_models"], json!(["cynodeai.fast"]));
}

#[tokio::test]
async fn a_handoff_says_how_long_its_models_may_think() {
    let bench = Bench::new().await;
    offer(&bench, "quick", Some("fast"), true, None).await;
    let slow = json!({ "context_tokens": 9, "max_output_tokens": 9, "tier": "deep", "think_seconds": 900,
        "routes": [{ "provider": "tape", "upstream": "m" }] });
    bench.admin.put("/v1/model-registry/slow", slow).await.expect(200);
    asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let first = claim(&manager).await;
    assert_eq!(first["think_seconds"], json!({ "cynodeai.deep": 900 }));
    let all = json!({ "value": 120, "expected_version": 0 });
    bench.admin.put("/v1/settings/manager.think_timeout_seconds", all).await.expect(200);
    let back = json!({ "handoff_id": first["handoff_id"], "fencing_token": first["fencing_token"], "transient": true, "reason": "later" });
    given(&manager, "handoff.fail", back).await;
    bench.app.db.execute("UPDATE handoffs SET due_at = now()").await;
    let second = claim(&manager).await;
    assert_eq!(second["think_seconds"], json!({ "cynodeai.deep": 900, "cynodeai.fast": 120 }));
}

#[tokio::test]
async fn whoever_waits_for_a_handoff_with_a_token_that_was_taken_back_gets_none() {
    let bench = Bench::new().await;
    let old = host(&bench, ServiceKind::Manager, "m").await;
    let waits = json!({ "claim_id": Uuid::from_u128(rand()), "wait_ms": 20_000 });
    let waiting = old.call("handoff.claim", waits);
    let meanwhile = async {
        // The same program with another token: the first works no more.
        let new = host(&bench, ServiceKind::Manager, "m").await;
        asked(&bench).await;
        claim(&new).await
    };
    let (refused, given) = tokio::join!(waiting, meanwhile);
    assert_ne!(refused.verdict(), "ok", "{}", refused.json());
    assert_ne!(given, Value::Null);
}

#[tokio::test]
async fn a_handoff_opens_what_somebody_answers_to_in_its_project() {
    let bench = Bench::new().await;
    let other = bench.app.project(&bench.admin, "other").await;
    offer(&bench, "ours", Some("standard"), true, Some(bench.project)).await;
    offer(&bench, "theirs", Some("fast"), true, Some(other)).await;
    offer(&bench, "plain", None, true, None).await;
    asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let mut seen = Vec::new();
    for (version, default) in ["theirs", "plain", "cynodeai.standard"].into_iter().enumerate() {
        let body = json!({ "value": default, "expected_version": version });
        bench.admin.put("/v1/settings/models.default", body).await.expect(200);
        let handoff = claim(&manager).await;
        seen.push(handoff["models"].clone());
        let fail = json!({ "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"],
            "transient": true, "reason": "no model" });
        given(&manager, "handoff.fail", fail).await;
        bench.app.db.execute("UPDATE handoffs SET due_at = now()").await;
    }
    let tier = json!(["cynodeai.standard"]);
    assert_eq!(seen, [tier.clone(), json!(["cynodeai.standard", "plain"]), tier]);
}

#[tokio::test]
async fn silence_gives_a_handoff_to_the_next_and_the_one_before_is_shut_out() {
    let bench = Bench::new().await;
    asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let first = claim(&manager).await;
    let kept =
        json!({ "handoff_id": first["handoff_id"], "fencing_token": first["fencing_token"] });
    given(&manager, "handoff.keep", kept.clone()).await;
    bench
        .app
        .db
        .execute("UPDATE handoffs SET lease_expires_at = now() - interval '1 second'")
        .await;
    reconciler::reap_expired(&bench.app.app, false).await.unwrap();
    assert_eq!(verdict(&manager, "handoff.keep", kept).await, "failed fenced");
    bench.app.db.execute("UPDATE handoffs SET due_at = now()").await;
    let second = claim(&manager).await;
    assert_eq!((&second["handoff_id"], &second["attempt"]), (&first["handoff_id"], &json!(2)));
    let late = complete(&first, planned());
    assert_eq!(verdict(&manager, "handoff.complete", late).await, "failed fenced");
    for _ in 0..4 {
        bench
            .app
            .db
            .execute("UPDATE handoffs SET lease_expires_at = now() - interval '1 second'")
            .await;
        reconciler::reap_expired(&bench.app.app, false).await.unwrap();
        bench.app.db.execute("UPDATE handoffs SET due_at = now()").await;
        claim(&manager).await;
    }
    let state = bench.app.db.texts("SELECT state || ' ' || failure FROM handoffs").await;
    assert_eq!(state, ["failed nothing was heard of whoever worked on it"]);
}

#[tokio::test]
async fn what_was_thought_is_kept_once_without_secrets_and_given_to_whoever_goes_on() {
    let bench = Bench::new().await;
    asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    let secret = format!("ghp_{}", "a1B2".repeat(9));
    let thought = |digest: &str, output: Value| {
        json!({
            "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"], "calls": [],
            "prompt": { "user": format!("the key is {secret}") },
            "decision": { "step": 0, "kind": "classify", "prompt_digest": digest.repeat(64), "schema_digest": "b".repeat(64),
                "model": "m", "output": output, "attempts": 2, "validation_errors": [format!("`{secret}` is not one of them")], "input_tokens": 3, "output_tokens": 2,
                "latency_ms": 5 },
        })
    };
    let class = json!({ "class": "quick_fix" });
    given(&manager, "think.record", thought("a", class.clone())).await;
    given(&manager, "think.record", thought("a", json!({ "class": "feature_request" }))).await;
    let other = verdict(&manager, "think.record", thought("c", class.clone())).await;
    assert_eq!(other, "failed conflict", "another question at the same step");
    let fail = json!({ "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"], "transient": true,
        "reason": "no model" });
    let failed = given(&manager, "handoff.fail", fail).await;
    assert_eq!(failed["state"], "queued", "B004-47: without a model it waits for the next try");
    bench.app.db.execute("UPDATE handoffs SET due_at = now()").await;
    let again = claim(&manager).await;
    let kept = &again["decisions"][0]["output"];
    assert_eq!(*kept, class, "S004-161, B004-47: the first answer holds, nothing is lost");
    let complaints = bench.app.db.texts("SELECT validation_errors::text FROM think_calls").await;
    assert!(complaints.len() == 1 && !complaints[0].contains(&secret), "{complaints:?}");
    let prompts = bench.app.db.texts("SELECT prompt::text FROM think_prompts").await;
    assert!(prompts.len() == 1 && !prompts[0].contains(&secret), "{prompts:?}");
    let path = format!("/v1/handoffs/{}/decisions/0/prompt", again["handoff_id"].as_str().unwrap());
    assert!(bench.admin.get(&path).await.expect(200).json()["user"].is_string());
    // Prompts are kept apart, and for a time of their own.
    bench.app.db.execute("UPDATE think_prompts SET created_at = timestamptz '2000-01-01'").await;
    cynode_app::background::maintenance::run_maintenance_once(&bench.app.app).await.unwrap();
    let prompts = bench.app.db.number("SELECT count(*) FROM think_prompts").await;
    let decisions = bench.app.db.number("SELECT count(*) FROM think_calls").await;
    assert_eq!((prompts, decisions), (0, 1), "X-16: prompts go, decisions stay");
}

#[tokio::test]
async fn a_judgement_is_shared_with_an_analyst_and_comes_back_with_its_findings() {
    let bench = Bench::new().await;
    let mut run = asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let analyst = host(&bench, ServiceKind::Analyst, "a").await;
    let plan = claim(&manager).await;
    let share = |handoff: &Value| json!({ "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"] });
    assert_eq!(verdict(&manager, "handoff.delegate", share(&plan)).await, "failed invalid");
    given(&manager, "handoff.complete", complete(&plan, planned())).await;
    run.take().await;
    run.ask("verify:1", judge()).await;
    let verify = claim(&manager).await;
    given(&manager, "handoff.delegate", share(&verify)).await;
    assert_eq!(claim(&manager).await, Value::Null, "the manager waits for the analyst");
    let analyse = claim(&analyst).await;
    let asked = &analyse["request"]["kind"];
    assert_eq!(
        asked, "analyse",
        "S000-013, S000-025, S002-31, S002-32, S002-42, S002-65: the manager tasks an analyst"
    );
    assert_eq!(analyse["request"]["unit"], "a");
    assert_eq!(analyse["context"]["task"]["id"], json!(bench.task), "S000-025");
    let found = |task: &str| {
        json!({ "answer": "analysed", "task_id": task, "status": "fail", "recommended_actions": ["mend it"],
            "findings": [{ "severity": "major", "text": "it is not done" }], "preferences_applied": {} })
    };
    let other = bench.another_task().await;
    let wrong = complete(&analyse, found(&other));
    let refused = verdict(&analyst, "handoff.complete", wrong).await;
    assert_eq!(refused, "failed invalid", "S000-025: about another task");
    let no_answer = complete(&analyse, planned());
    assert_eq!(verdict(&analyst, "handoff.complete", no_answer).await, "failed invalid");
    given(&analyst, "handoff.complete", complete(&analyse, found(&bench.task))).await;
    let back = claim(&manager).await;
    assert_eq!((&back["handoff_id"], &back["attempt"]), (&verify["handoff_id"], &json!(1)));
    assert_eq!(back["delegated"][0]["findings"][0]["text"], "it is not done", "S000-026");
    assert_eq!(verdict(&manager, "handoff.delegate", share(&back)).await, "failed conflict");
    let judged = json!({ "answer": "judged", "outcome": "redo", "findings": [], "recommended_actions": [], "note": "" });
    given(&manager, "handoff.complete", complete(&back, judged)).await;
    run.take().await;
    let outcome = &run.position["handoff"]["answer"]["outcome"];
    assert_eq!(outcome, "redo", "S000-026, S002-43: the run gets what the manager decided");
}

#[tokio::test]
async fn only_as_many_analysts_work_at_once_as_the_installation_allows() {
    let bench = Bench::new().await;
    bench.setting("manager.max_concurrent_analysts", json!(0)).await;
    let mut run = asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let analyst = host(&bench, ServiceKind::Analyst, "a").await;
    let plan = claim(&manager).await;
    given(&manager, "handoff.complete", complete(&plan, planned())).await;
    run.take().await;
    run.ask("verify:1", judge()).await;
    let verify = claim(&manager).await;
    let share =
        json!({ "handoff_id": verify["handoff_id"], "fencing_token": verify["fencing_token"] });
    given(&manager, "handoff.delegate", share).await;
    assert_eq!(claim(&analyst).await, Value::Null, "S000-105: nobody may work");
    let body = json!({ "value": 1, "expected_version": 1 });
    bench.admin.put("/v1/settings/manager.max_concurrent_analysts", body).await.expect(200);
    assert_ne!(claim(&analyst).await, Value::Null, "S000-105: one may work");
}

/// Drives a task until its judgement is shared with an analyst.
async fn delegated(runner: &Client, task: String, key: u32, manager: &Agent) {
    let (lease, position) = (Value::Null, Value::Null);
    let mut run = Run { runner: runner.clone(), task, lease, position, key };
    run.take().await;
    assert_eq!(run.checkpoint("pass", json!([]), Value::Null).await, 200);
    run.ask("plan:1", plan_request()).await;
    let plan = claim(manager).await;
    given(manager, "handoff.complete", complete(&plan, planned())).await;
    run.take().await;
    run.ask("verify:1", judge()).await;
    let verify = claim(manager).await;
    let share =
        json!({ "handoff_id": verify["handoff_id"], "fencing_token": verify["fencing_token"] });
    given(manager, "handoff.delegate", share).await;
}

#[tokio::test]
async fn however_many_analysts_ask_at_once_no_more_work_than_are_allowed() {
    let bench = Bench::new().await;
    bench.setting("manager.max_concurrent_analysts", json!(2)).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let analyst = host(&bench, ServiceKind::Analyst, "a").await;
    let runner = bench.app.runner().await;
    for number in 1..=5 {
        let task = bench.another_task().await;
        delegated(&runner, task, 100 * number, &manager).await;
    }
    let claim_many = async || {
        let claims = join_all((0..8).map(|_| claim(&analyst))).await;
        claims.into_iter().filter(|handoff| !handoff.is_null()).collect::<Vec<Value>>()
    };
    let taken = claim_many().await;
    assert_eq!(taken.len(), 2, "S000-105: no more than two work at once");
    assert_eq!(claim_many().await.len(), 0, "S000-105: the others wait");
    let found = json!({ "answer": "analysed", "task_id": taken[0]["context"]["task"]["id"], "status": "pass",
        "recommended_actions": [], "findings": [], "preferences_applied": {} });
    given(&analyst, "handoff.complete", complete(&taken[0], found)).await;
    assert_eq!(claim_many().await.len(), 1, "S000-105: one ended, so one more works");
}

#[tokio::test]
async fn a_task_that_is_stopped_takes_its_handoffs_and_their_tokens_with_it() {
    let bench = Bench::new().await;
    asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    bench.admin.post(&format!("/v1/tasks/{}/cancel", bench.task), json!(null)).await.expect(200);
    let late = complete(&handoff, planned());
    assert_eq!(verdict(&manager, "handoff.complete", late).await, "failed fenced");
    crate::bench::promised().await;
    let agent = bench.at_gateway(handoff["token"].as_str().unwrap()).await;
    let looked = agent.call("db.task.get", json!({ "task_id": bench.task })).await;
    assert_eq!(looked.0.status, 401);
    assert_eq!(bench.app.db.texts("SELECT state FROM handoffs").await, ["cancelled"]);
}

#[tokio::test]
async fn preferences_of_one_role_never_reach_the_other() {
    let bench = Bench::new().await;
    for (scope, key, value) in [
        ("system", "agents.project_manager.additional_context", json!("for the manager")),
        (
            "system",
            "agents.project_analyst.additional_context",
            json!(["for the analyst", "twice"]),
        ),
        ("project", "agents.project_manager.additional_context", json!("for the manager here")),
    ] {
        let at = if scope == "project" {
            format!("scope_type=project&scope_id={}", bench.project)
        } else {
            "scope_type=system".into()
        };
        let body = json!({ "value": value, "expected_version": 0 });
        bench.admin.put(&format!("/v1/preferences/{key}?{at}"), body).await.expect(200);
    }
    let mut run = asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let analyst = host(&bench, ServiceKind::Analyst, "a").await;
    let plan = claim(&manager).await;
    let keys = |handoff: &Value| -> Vec<String> {
        handoff["context"]["preferences"].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(plan["context"]["additional_context"], "for the manager here", "S000-068");
    assert_eq!(keys(&plan), ["agents.project_manager.additional_context"], "S000-068");
    let applied =
        &plan["context"]["preferences_applied"]["agents.project_manager.additional_context"];
    assert_eq!(*applied, json!({ "scope": "project", "version": 1 }));
    given(&manager, "handoff.complete", complete(&plan, planned())).await;
    run.take().await;
    run.ask("verify:1", judge()).await;
    let verify = claim(&manager).await;
    let share =
        json!({ "handoff_id": verify["handoff_id"], "fencing_token": verify["fencing_token"] });
    given(&manager, "handoff.delegate", share).await;
    let analyse = claim(&analyst).await;
    assert_eq!(analyse["context"]["additional_context"], "for the analyst\n\ntwice", "S000-068");
    assert_eq!(keys(&analyse), ["agents.project_analyst.additional_context"], "S000-068");
}

#[tokio::test]
async fn the_manager_is_given_the_skills_that_fit_its_request_with_name_and_version() {
    let bench = Bench::new().await;
    let other = bench.app.user("other", Some(UserRole::Operator)).await;
    let task = bench.admin.get(&format!("/v1/tasks/{}", bench.task)).await.expect(200);
    let words = task.text("description");
    let skill = |scope: &str, name: &str, description: &str| {
        json!({ "scope": scope, "name": name,
        "description": description, "body": format!("Do {name}."), "files": [{ "path": "a.txt", "text": "x" }] })
    };
    let fits = bench.admin.post("/v1/skills", skill("installation", "fits", &words)).await;
    let fits = fits.expect(201).text("skill_id");
    bench
        .admin
        .post("/v1/skills", skill("installation", "zebras", "Zebras have stripes."))
        .await
        .expect(201);
    bench.admin.post("/v1/skills", skill("installation", "unread", &words)).await.expect(201);
    other.post("/v1/skills", skill("person", "foreign", &words)).await.expect(201);
    let unread = "UPDATE skills SET unreviewed = true WHERE name = 'unread'";
    bench.app.db.execute(unread).await;
    asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let plan = claim(&manager).await;
    let expected = json!([{ "skill_id": fits, "name": "fits", "description": words, "version": 1, "body": "Do fits." }]);
    assert_eq!(plan["context"]["skills"], expected, "no files: a manager has no sandbox");
}

#[tokio::test]
async fn the_additional_context_of_a_handoff_is_that_of_the_most_specific_scope() {
    let bench = Bench::new().await;
    let user = bench.admin.user.unwrap();
    let group = json!({ "name": "devs" });
    let group = bench.admin.post("/v1/groups", group).await.expect(201).text("id");
    let path = format!("/v1/groups/{group}");
    bench.admin.patch(&path, json!({ "add": [user] })).await.expect(200);
    asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    for (scope, at) in [
        ("system", "scope_type=system".to_owned()),
        ("group", format!("scope_type=group&scope_id={group}")),
        ("user", format!("scope_type=user&scope_id={user}")),
        ("project", format!("scope_type=project&scope_id={}", bench.project)),
        ("task", format!("scope_type=task&scope_id={}", bench.task)),
    ] {
        let path = format!("/v1/preferences/agents.project_manager.additional_context?{at}");
        let body = json!({ "value": scope, "expected_version": 0 });
        bench.admin.put(&path, body).await.expect(200);
        let handoff = claim(&manager).await;
        assert_eq!(handoff["context"]["additional_context"], scope, "S000-067, S000-070");
        let back = json!({ "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"],
            "transient": true, "reason": "again" });
        given(&manager, "handoff.fail", back).await;
        bench.app.db.execute("UPDATE handoffs SET due_at = now()").await;
    }
}

#[tokio::test]
async fn a_report_has_the_form_of_its_kind_and_counts_only_while_its_job_runs() {
    let bench = Bench::new().await;
    let ids = jobs(&bench).await;
    bench.app.db.execute(RUNNING).await;
    let reviewer = bench.agent_with("reviewer", json!({ "job_id": ids[0] })).await;
    let report = |kind: &str, details: Value| json!({ "task_id": bench.task, "kind": kind, "summary": "looked at", "details": details });
    let issue = json!({ "description": "wrong", "file_location": "src/x.rs:4", "how_to_fix": "turn it round" });
    let review = report(
        "review_changes_requested",
        json!({ "critical_issues": [issue], "summary": "not yet" }),
    );
    assert_eq!(verdict(&reviewer, "pm.report", review).await, "ok", "S004-111");
    let other_form = report("tests_failed", json!({ "critical_issues": [] }));
    let refusal = verdict(&reviewer, "pm.report", other_form).await;
    assert_eq!(refusal, "failed invalid", "S004-081: the form of another kind");
    let theirs = json!({ "task_id": bench.task, "agentRole": "reviewer", "messageType": "review_approved", "component": "a",
        "payload": { "minor_issues": [{ "description": "a spelling" }], "summary": "good" } });
    assert_eq!(verdict(&reviewer, "apmas_report_to_pm", theirs).await, "ok", "S004-079");
    let kept = bench.app.db.texts("SELECT summary || ' ' || (details ->> 'verdict') FROM agent_reports ORDER BY kind DESC").await;
    let verdicts = ["looked at changes_requested", "good approved"];
    assert_eq!(kept, verdicts, "S004-057, S004-062, S004-063: feedback and verdict are stored");
    bench
        .app
        .db
        .execute("UPDATE jobs SET state = 'lost', ended_at = now() WHERE attempt = 1")
        .await;
    crate::bench::promised().await;
    let late = reviewer.call("pm.report", report("review_approved", json!({}))).await;
    assert_eq!(late.0.status, 401, "the token ends with the job");
}

#[tokio::test]
async fn a_report_that_asks_for_a_decision_is_handed_to_the_manager() {
    let bench = Bench::new().await;
    let ids = jobs(&bench).await;
    bench.app.db.execute(RUNNING).await;
    let developer = bench.agent_with("developer", json!({ "job_id": ids[0] })).await;
    let blocked = json!({ "task_id": bench.task, "kind": "work_blocked", "summary": "no compiler",
        "details": { "needs": "a compiler", "tried": ["make"] } });
    given(&developer, "pm.report", blocked.clone()).await;
    // Asked again while nobody has answered, it is kept and not handed off once more.
    given(&developer, "pm.report", blocked).await;
    let done = json!({ "task_id": bench.task, "kind": "work_completed", "summary": "done" });
    given(&developer, "pm.report", done).await;
    let analyst = host(&bench, ServiceKind::Analyst, "a").await;
    assert_eq!(claim(&analyst).await, Value::Null, "S004-058: only the manager decides");
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    let report = &handoff["request"]["report"];
    assert_eq!(
        json!([
            handoff["request"]["kind"],
            report["kind"],
            report["job_id"],
            report["details"]["needs"]
        ]),
        json!(["report", "work_blocked", ids[0], "a compiler"]),
        "S000-013, S000-027, S004-008, S004-057, S004-058, S004-066, S004-130, S004-162: the manager gets what the agent asks"
    );
    let units = "SELECT u.key FROM jobs j JOIN work_units u USING (unit_id) ORDER BY j.job_id";
    let unit = bench.app.db.texts(units).await.remove(0);
    assert_eq!(
        json!([report["agent_role"], report["kind"], report["unit"], report["details"]]),
        json!(["developer", "work_blocked", unit, { "needs": "a compiler", "tried": ["make"] }]),
        "S004-069: role, type, component and payload"
    );
    let answer = complete(&handoff, json!({ "answer": "replied", "note": "told to go on" }));
    given(&manager, "handoff.complete", answer).await;
    assert_eq!(claim(&manager).await, Value::Null, "what needs no decision is not handed off");
}

/// Lets nothing be heard of whoever works on handoffs, and gives them to the next.
async fn lost(bench: &Bench) {
    let silent = "UPDATE handoffs SET lease_expires_at = now() - interval '1 second' WHERE state = 'claimed'";
    bench.app.db.execute(silent).await;
    reconciler::reap_expired(&bench.app.app, false).await.unwrap();
    bench.app.db.execute("UPDATE handoffs SET due_at = now()").await;
}

#[tokio::test]
async fn a_report_is_answered_once_and_to_its_job_however_often_its_handoff_is_begun() {
    let bench = Bench::new().await;
    let ids = jobs(&bench).await;
    bench.app.db.execute(RUNNING).await;
    let developer = bench.agent_with("developer", json!({ "job_id": ids[0] })).await;
    let asks = json!({ "task_id": bench.task, "kind": "request_human_input", "summary": "red?" });
    given(&developer, "pm.report", asks).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let pause = json!({ "task_id": bench.task, "kind": "pause", "text": "red?" });
    let first = claim(&manager).await;
    let agent = bench.at_gateway(first["token"].as_str().unwrap()).await;
    let told = given(&agent, "pm.instruct", pause.clone()).await;
    lost(&bench).await;
    let steer = format!("/v1/tasks/{}/instructions", bench.task);
    bench.admin.post(&steer, json!({ "kind": "resume", "text": "red" })).await.expect(202);
    let wakes = "SELECT wake_count::text || ' ' || pending_instructions FROM workflow_runs";
    let before = bench.app.db.texts(wakes).await;
    let second = claim(&manager).await;
    assert_eq!((&second["handoff_id"], &second["attempt"]), (&first["handoff_id"], &json!(2)));
    let agent = bench.at_gateway(second["token"].as_str().unwrap()).await;
    assert_eq!(given(&agent, "pm.instruct", pause).await, told, "the same answer");
    assert_eq!(bench.app.db.texts(wakes).await, before, "and no second effect");
    let kept = "SELECT kind || ' ' || coalesce('job_' || replace(job_id::text, '-', ''), 'all') FROM task_instructions ORDER BY number";
    let instructed = bench.app.db.texts(kept).await;
    let expected = [format!("pause {}", ids[0]), "resume all".into()];
    assert_eq!(instructed, expected, "S004-071: the manager's instruction is for the running job");
}

#[tokio::test]
async fn an_answer_to_a_job_that_has_ended_is_refused() {
    let bench = Bench::new().await;
    let ids = jobs(&bench).await;
    bench.app.db.execute(RUNNING).await;
    let developer = bench.agent_with("developer", json!({ "job_id": ids[0] })).await;
    let asks = json!({ "task_id": bench.task, "kind": "needs_clarification", "summary": "red?" });
    given(&developer, "pm.report", asks).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    let ended = "UPDATE jobs SET state = 'lost', ended_at = now() WHERE job_id = replace($1, 'job_', '')::uuid";
    bench.app.db.execute_with(ended, &ids[0]).await;
    let agent = bench.at_gateway(handoff["token"].as_str().unwrap()).await;
    let told = json!({ "task_id": bench.task, "kind": "resume", "text": "red" });
    assert_eq!(verdict(&agent, "pm.instruct", told).await, "failed conflict");
    assert_eq!(bench.app.db.number("SELECT count(*) FROM task_instructions").await, 0);
}

#[tokio::test]
async fn who_asks_for_a_person_does_not_wait_and_what_else_was_asked_comes_in_its_turn() {
    let bench = Bench::new().await;
    let ids = jobs(&bench).await;
    bench.app.db.execute(RUNNING).await;
    let developer = bench.agent_with("developer", json!({ "job_id": ids[0] })).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let report = async |kind: &str, summary: &str| {
        let report = json!({ "task_id": bench.task, "kind": kind, "summary": summary });
        given(&developer, "pm.report", report).await;
    };
    let asked = |handoff: &Value| handoff["request"]["report"]["summary"].clone();
    let answered = async |handoff: &Value| {
        let answer = complete(handoff, json!({ "answer": "replied", "note": "told" }));
        given(&manager, "handoff.complete", answer).await;
    };
    report("needs_clarification", "which colour?").await;
    report("work_blocked", "no compiler").await;
    report("request_human_input", "may I?").await;
    report("request_human_input", "may I?").await;
    let (first, person) = (claim(&manager).await, claim(&manager).await);
    let both = (asked(&first), asked(&person));
    let expected = (json!("which colour?"), json!("may I?"));
    assert_eq!(both, expected, "S004-067, S004-068: each reaches the manager");
    assert_eq!(claim(&manager).await, Value::Null, "the rest waits, and nothing is asked twice");
    answered(&person).await;
    assert_eq!(claim(&manager).await, Value::Null, "one question is open still");
    answered(&first).await;
    let kept = claim(&manager).await;
    assert_eq!(asked(&kept), json!("no compiler"));
    answered(&kept).await;
    assert_eq!(claim(&manager).await, Value::Null);
    for number in 3..10 {
        report("needs_clarification", &number.to_string()).await;
        answered(&claim(&manager).await).await;
    }
    report("needs_clarification", "one too many").await;
    assert_eq!(claim(&manager).await, Value::Null, "the manager is not asked without end");
    report("request_human_input", "help").await;
    assert_eq!(asked(&claim(&manager).await), json!("help"));
}

#[tokio::test]
async fn one_job_asks_for_people_one_question_at_a_time_and_not_without_end() {
    let bench = Bench::new().await;
    let ids = jobs(&bench).await;
    bench.app.db.execute(RUNNING).await;
    let developer = bench.agent_with("developer", json!({ "job_id": ids[0] })).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    for number in 1..=12 {
        bench.app.clock.advance(time::Duration::seconds(1));
        let summary = format!("may I do {number}?");
        let report =
            json!({ "task_id": bench.task, "kind": "request_human_input", "summary": summary });
        given(&developer, "pm.report", report).await;
    }
    let count =
        "SELECT (SELECT count(*) FROM agent_reports) || ' ' || (SELECT count(*) FROM handoffs)";
    assert_eq!(bench.app.db.texts(count).await, ["12 1"], "each is kept, one is asked");
    let mut asked = Vec::new();
    loop {
        let handoff = claim(&manager).await;
        if handoff.is_null() {
            break;
        }
        asked.push(handoff["request"]["report"]["summary"].as_str().unwrap().to_owned());
        let answer = complete(&handoff, json!({ "answer": "replied", "note": "told" }));
        given(&manager, "handoff.complete", answer).await;
    }
    let expected = [1, 12, 11, 10, 9, 8, 7, 6, 5, 4].map(|number| format!("may I do {number}?"));
    assert_eq!(asked, expected, "the first, then the newest, ten at most");
}

#[tokio::test]
async fn a_run_is_not_woken_by_a_handoff_that_is_only_tried_again() {
    let bench = Bench::new().await;
    asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let wakes = async || bench.app.db.number("SELECT wake_count FROM workflow_runs").await;
    let before = wakes().await;
    let fail = |handoff: &Value, transient: bool| {
        json!({ "handoff_id": handoff["handoff_id"], "fencing_token": handoff["fencing_token"],
            "transient": transient, "reason": "the provider is away" })
    };
    let handoff = claim(&manager).await;
    let state = given(&manager, "handoff.fail", fail(&handoff, true)).await["state"].clone();
    assert_eq!((state, wakes().await), (json!("queued"), before));
    bench.app.db.execute("UPDATE handoffs SET due_at = now()").await;
    claim(&manager).await;
    lost(&bench).await;
    assert_eq!(wakes().await, before, "nor when nothing was heard of whoever worked on it");
    let handoff = claim(&manager).await;
    let state = given(&manager, "handoff.fail", fail(&handoff, false)).await["state"].clone();
    assert_eq!((state, wakes().await), (json!("failed"), before + 1));
}

#[tokio::test]
async fn a_run_is_not_woken_by_what_an_analyst_is_given_or_answers_but_when_its_share_fails() {
    for answers in [true, false] {
        let bench = Bench::new().await;
        let mut run = Run::start(&bench).await;
        assert_eq!(run.checkpoint("pass", json!([]), Value::Null).await, 200);
        run.ask("verify:1", judge()).await;
        let manager = host(&bench, ServiceKind::Manager, "m").await;
        let analyst = host(&bench, ServiceKind::Analyst, "a").await;
        let wakes = async || bench.app.db.number("SELECT wake_count FROM workflow_runs").await;
        let before = wakes().await;
        let verify = claim(&manager).await;
        let share =
            json!({ "handoff_id": verify["handoff_id"], "fencing_token": verify["fencing_token"] });
        given(&manager, "handoff.delegate", share).await;
        let share = claim(&analyst).await;
        if answers {
            let found = json!({ "answer": "analysed", "task_id": bench.task, "status": "pass",
                "recommended_actions": [], "findings": [], "preferences_applied": {} });
            given(&analyst, "handoff.complete", complete(&share, found)).await;
            assert_eq!(wakes().await, before);
            let judged = json!({ "answer": "judged", "outcome": "redo", "findings": [], "recommended_actions": [], "note": "" });
            let back = claim(&manager).await;
            given(&manager, "handoff.complete", complete(&back, judged)).await;
        } else {
            assert_eq!(wakes().await, before);
            let fail = json!({ "handoff_id": share["handoff_id"], "fencing_token": share["fencing_token"],
                "transient": false, "reason": "no model" });
            given(&analyst, "handoff.fail", fail).await;
        }
        assert_eq!(wakes().await, before + 1);
    }
}

#[tokio::test]
async fn what_was_said_in_a_chat_is_forgotten_after_its_time_and_its_handoff_can_be_read() {
    let bench = Bench::new().await;
    let chats = "
        INSERT INTO handoffs (handoff_id, kind, role, state, user_id, project_id, blocks_run, question_key, request, answer, failure, due_at, trace_id, created_at, ended_at)
        SELECT gen_random_uuid(), 'chat', 'project_manager', state, created_by, project_id, false, '',
            '{\"kind\": \"chat\", \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}', answer, NULL, now(), '', now(), ended_at
        FROM projects, (VALUES ('done', '{\"answer\": \"chatted\", \"content\": \"good day\"}'::jsonb, timestamptz '2000-01-01'),
            ('failed', NULL, '2000-01-01'), ('queued', NULL, NULL)) AS chat (state, answer, ended_at)";
    bench.app.db.execute(chats).await;
    cynode_app::background::maintenance::run_maintenance_once(&bench.app.app).await.unwrap();
    let kept = "SELECT state || ' ' || jsonb_array_length(request -> 'messages') || ' ' || coalesce(answer ->> 'content', 'none') FROM handoffs ORDER BY 1";
    assert_eq!(bench.app.db.texts(kept).await, ["done 0 ", "failed 0 none", "queued 1 none"]);
    let done =
        "SELECT 'hof_' || replace(handoff_id::text, '-', '') FROM handoffs WHERE state = 'done'";
    let path = format!("/v1/handoffs/{}", bench.app.db.texts(done).await[0]);
    let seen = bench.admin.get(&path).await.expect(200).json();
    assert_eq!(
        (&seen["request"], &seen["answer"]),
        (
            &json!({ "kind": "chat", "messages": [] }),
            &json!({ "answer": "chatted", "content": "" })
        )
    );
}

#[tokio::test]
async fn why_a_chat_failed_is_told_to_whoever_has_it_and_to_nobody_else() {
    let bench = Bench::new().await;
    let viewer = bench.app.user("vera", None).await;
    bench.app.member(bench.project, &viewer, UserRole::Viewer).await;
    let chat = "
        INSERT INTO handoffs (handoff_id, kind, role, state, user_id, project_id, blocks_run, question_key, request, worker, attempt, fencing_token, lease_expires_at,
            due_at, trace_id, created_at)
        SELECT gen_random_uuid(), 'chat', 'project_manager', 'claimed', created_by, project_id, false, '',
            '{\"kind\": \"chat\", \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}', 'w', 1, 1, now() - interval '1 second', now(), '', now()
        FROM projects";
    bench.app.db.execute(chat).await;
    reconciler::reap_expired(&bench.app.app, false).await.unwrap();
    let seen = async |client: &Client| {
        let listed = client.get("/v1/projects/web/handoffs").await.expect(200).json();
        let one = listed["items"][0].clone();
        let path = format!("/v1/handoffs/{}", one["handoff_id"].as_str().unwrap());
        let read = client.get(&path).await.expect(200).json();
        json!([one["state"], one["failure"], read["failure"]])
    };
    let why = "nothing was heard of whoever worked on it";
    assert_eq!(seen(&bench.admin).await, json!(["failed", why, why]));
    assert_eq!(seen(&viewer).await, json!(["failed", null, null]));
    let told = "SELECT (data ->> 'state') || ' ' || coalesce(data ->> 'failure', 'unsaid') FROM events WHERE kind = 'handoff.ended'";
    assert_eq!(bench.app.db.texts(told).await, ["failed unsaid"]);
}

#[tokio::test]
async fn units_are_assigned_once_each_to_agents_that_work_in_sandboxes() {
    let bench = Bench::new().await;
    let mut run = Run::start(&bench).await;
    assert_eq!(run.checkpoint("pass", json!([]), Value::Null).await, 200);
    let unit = |key: &str| json!({ "unit": key, "title": key, "payload": { "kind": "fix" }, "attempt": 1, "findings": [], "results": {} });
    run.ask("dispatch:1", json!({ "kind": "dispatch", "units": [unit("a"), unit("b")] })).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    assert_eq!(handoff["request"]["kind"], "dispatch", "S000-013, S000-021, S000-022, S000-023");
    let work = |key: &str, role: &str| json!({ "unit": key, "work": { "role": role, "worker": { "kind": "acp", "agent": "goose" } } });
    let assigned =
        |works: Value| complete(&handoff, json!({ "answer": "assigned", "assignments": works }));
    for wrong in [
        json!([work("a", "fixer")]),
        json!([work("a", "fixer"), work("a", "fixer")]),
        json!([work("a", "fixer"), work("b", "fixer"), work("c", "fixer")]),
    ] {
        assert_eq!(verdict(&manager, "handoff.complete", assigned(wrong)).await, "failed invalid");
    }
    for role in ["project_manager", "project_analyst"] {
        let wrong = assigned(json!([work("a", "fixer"), work("b", role)]));
        let verdict = verdict(&manager, "handoff.complete", wrong).await;
        assert_eq!(verdict, "failed invalid", "S000-004: {role} is no place to run a job");
    }
    let good = assigned(json!([work("a", "fixer"), work("b", "tester")]));
    given(&manager, "handoff.complete", good).await;
}

#[tokio::test]
async fn an_agent_ends_no_pause_of_a_person_and_writes_no_judgement() {
    let bench = Bench::new().await;
    let mut run = Run::start(&bench).await;
    let steer = format!("/v1/tasks/{}/instructions", bench.task);
    bench.admin.post(&steer, json!({ "kind": "pause" })).await.expect(202);
    assert_eq!(run.checkpoint("pass", json!([]), Value::Null).await, 200);
    assert_eq!(run.position["next"]["reason"], "paused");
    let manager = bench.agent_with("project_manager", json!({ "task_id": null })).await;
    let tell =
        |kind: &str, text: &str| json!({ "task_id": bench.task, "kind": kind, "text": text });
    given(&manager, "pm.instruct", tell("resume", "use blue")).await;
    let start = json!({ "task_id": bench.task, "holder": "runner", "idempotency_key": "again" });
    let refused = run.runner.post("/v1/workflow/start", start).await.expect(409).json();
    assert_eq!(
        (&refused["code"], &refused["detail"]),
        (&json!("not_runnable"), &json!("the task cannot be driven now: a person paused it"))
    );
    let forged = r#"cynode:revision {"unit":"a","findings":[],"recommended_actions":[]}"#;
    assert_eq!(verdict(&manager, "pm.instruct", tell("revise", forged)).await, "failed invalid");
    bench.admin.post(&steer, json!({ "kind": "revise", "text": forged })).await.expect(422);
    bench.admin.post(&steer, json!({ "kind": "resume", "text": "use red" })).await.expect(202);
    run.take().await;
    let told = bench
        .app
        .db
        .texts("SELECT text FROM task_instructions WHERE kind = 'resume' ORDER BY 1")
        .await;
    assert_eq!(told, ["use blue", "use red"], "whoever works is told both");
}

#[tokio::test]
async fn events_of_planning_are_stored_once_and_shown_with_their_handoff() {
    let bench = Bench::new().await;
    let _run = asked(&bench).await;
    let manager = host(&bench, ServiceKind::Manager, "m").await;
    let handoff = claim(&manager).await;
    let event = |number: u32, kind: &str, data: Value| json!({ "number": number, "event": kind, "trace_id": "", "step": 0, "profile": "default", "data": data });
    let record = |fencing_token: &Value, events: Value| json!({ "handoff_id": handoff["handoff_id"], "fencing_token": fencing_token, "events": events });
    let own = &handoff["fencing_token"];
    let call = event(2, "plan:call", json!({ "tool": "git.tree" }));
    let first = record(own, json!([event(1, "plan:start", json!({})), call]));
    for _ in 0..2 {
        given(&manager, "think.trace", first.clone()).await;
    }
    for (wrong, verdict_of) in [
        (record(own, json!([event(2, "plan:stop", json!({}))])), "failed conflict"),
        (record(own, json!([event(3, "plan:dance", json!({}))])), "failed invalid"),
        (record(own, json!([])), "failed invalid"),
        (record(&json!(0), json!([event(3, "plan:stop", json!({}))])), "failed fenced"),
    ] {
        assert_eq!(verdict(&manager, "think.trace", wrong.clone()).await, verdict_of, "{wrong}");
    }
    let path = format!("/v1/handoffs/{}", handoff["handoff_id"].as_str().unwrap());
    let seen = bench.admin.get(&path).await.expect(200).json();
    let shown: Vec<_> = seen["planning"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| json!([one["fencing_token"], one["number"], one["event"], one["data"]]))
        .collect();
    let wanted =
        [json!([own, 1, "plan:start", {}]), json!([own, 2, "plan:call", { "tool": "git.tree" }])];
    assert_eq!(shown, wanted);
}
