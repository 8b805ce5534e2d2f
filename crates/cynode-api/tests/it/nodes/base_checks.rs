//! Checks that are tried on the base commit before anybody works.

use super::*;
use crate::workflow::Held;

/// A task at planning, in a project with a repository.
struct Planned {
    drive: Drive,
    held: Held,
    head: String,
}

fn check(line: &str) -> Value {
    json!({ "argv": ["sh", "-c", line] })
}

impl Planned {
    async fn new() -> Self {
        let mut drive = Drive::new().await;
        let (_directory, head, bundle) = repository();
        let place = format!("/v1/projects/{}/repository", drive.project);
        assert_eq!(put(&drive.admin, &place, bundle).await.0, 200);
        let body = json!({ "project_id": drive.project, "name": "checked", "description": "Mend it",
            "acceptance_criteria": [{ "text": "it holds", "check": check("pytest") }] });
        drive.task = drive.admin.post("/v1/tasks", body).await.expect(201).text("id");
        let held = Self::planned(&drive).await;
        Self { drive, held, head }
    }

    async fn planned(drive: &Drive) -> Held {
        let mut held = drive.start().await;
        drive.go(&mut held, "pass", json!({})).await;
        held
    }

    /// The plan is made, and these checks are tried.
    async fn try_checks(&mut self, checks: Value) {
        let units = json!([{ "key": "a", "title": "a", "payload": work() }]);
        let effects = json!([{ "effect": "plan_units", "units": units },
            { "effect": "try_checks", "checks": checks }]);
        let more = json!({ "effects": effects, "wait": { "reason": "job", "wake_in_ms": 60_000 } });
        self.drive.step(&self.held, "wait", more).await.expect(200);
    }

    /// What is known, without its times.
    async fn base(&self) -> Value {
        let place = format!("/v1/tasks/{}/evidence", self.drive.task);
        let shown = self.drive.admin.get(&place).await.expect(200).json();
        assert_eq!(shown["evidence"], json!([]), "it is no evidence about a unit");
        let mut base = shown["base"].clone();
        for field in ["opened_at", "ended_at"] {
            base.as_object_mut().unwrap().remove(field);
        }
        base
    }

    async fn report(node: &Machine, job: &Value, steps: Value, outcome: &str) {
        let body = json!({ "fencing_token": job["fencing_token"], "outcome": outcome,
            "result": { "stop_reason": "end_turn", "steps": steps } });
        node.client.post(&path(job, "result"), body).await.expect(200);
    }
}

fn step(line: &str, code: i32, output: &str) -> Value {
    json!({ "argv": ["sh", "-c", line], "exit_code": code, "output": output, "sha256": "ab", "truncated": false,
        "milliseconds": 7 })
}

#[tokio::test]
async fn checks_are_tried_on_the_base_commit_in_one_job_that_is_no_attempt_of_any_unit() {
    let mut planned = Planned::new().await;
    let node = Machine::join(&planned.drive.app, &planned.drive.admin, 1, 10).await;
    planned.try_checks(json!([check("pytest"), check("make test"), check("true")])).await;
    assert_eq!(planned.base().await["state"], "gathering");
    let job = node.claim(1, 10).await.remove(0);
    let limited = |line: &str| json!({ "argv": ["sh", "-c", line], "time_limit_seconds": 300 });
    assert_eq!(
        json!([
            job["base"],
            job["unit"],
            job["attempt"],
            job["work"]["worker"],
            job["work"]["commit"],
            job["work"]["tools"]
        ]),
        json!([planned.head, "base-check", 0,
            { "kind": "checks", "checks": [limited("pytest"), limited("make test"), limited("true")] }, "never", []])
    );
    let steps = json!([
        step("pytest", 127, "sh: 1: pytest: not found"),
        step("make test", 2, "1 failed"),
        step("true", 0, ""),
    ]);
    Planned::report(&node, &job, steps.clone(), "succeeded").await;
    // Said again, nothing changes.
    Planned::report(&node, &job, steps, "succeeded").await;
    let result = |line: &str, outcome: &str, code: i32, words: &str| {
        let mut result = json!({ "check": check(line), "outcome": outcome, "exit_code": code, "milliseconds": 7 });
        if !words.is_empty() {
            result["excerpt"] = json!(words);
        }
        result
    };
    let known = json!({
        "commit": planned.head, "state": "failed", "attempts": 1,
        "checks": [
            result("pytest", "cannot_run", 127, "sh: 1: pytest: not found"),
            result("make test", "fails", 2, "1 failed"),
            result("true", "passes", 0, ""),
        ],
    });
    assert_eq!(planned.base().await, known);
    // Whoever drives it finds the same, and the unit has had no attempt.
    planned.held = planned.drive.start().await;
    let position = &planned.held.position;
    assert_eq!(position["base_checks"]["checks"], known["checks"]);
    assert_eq!(
        json!([
            position["next"]["node"],
            position["units"][0]["attempts"],
            position["retries_used"]
        ]),
        json!(["plan_steps", 0, 0])
    );
    // Once more: only what could not run is tried again.
    planned.try_checks(json!([check("pytest"), check("make test"), check("true")])).await;
    let again = node.claim(2, 10).await.remove(0);
    assert_eq!(again["work"]["worker"]["checks"], json!([limited("pytest")]));
    Planned::report(&node, &again, json!([step("pytest", 0, "2 passed")]), "succeeded").await;
    let base = planned.base().await;
    assert_eq!(
        json!([base["attempts"], base["checks"][0]["outcome"], base["checks"][1]["outcome"]]),
        json!([2, "passes", "fails"])
    );
}

#[tokio::test]
async fn checks_that_no_node_takes_are_skipped_and_the_work_goes_on() {
    let mut planned = Planned::new().await;
    planned.try_checks(json!([check("pytest")])).await;
    let db = &planned.drive.app.db;
    let long = "UPDATE jobs SET queued_at = queued_at - interval '61 seconds'";
    assert_eq!(db.execute(long).await, 1);
    assert_eq!(db.execute("UPDATE workflow_runs SET due_at = now() WHERE due_at > now()").await, 1);
    planned.held = planned.drive.start().await;
    assert_eq!(planned.held.position["base_checks"]["unclaimed"], true);
    let skip = json!({ "effects": [{ "effect": "skip_checks" }] });
    planned.drive.go(&mut planned.held, "pass", skip).await;
    let base = planned.base().await;
    assert_eq!(
        json!([base["state"], base["error"]]),
        json!(["unable", "no node took the job within 60 s: see `cynork node list`"])
    );
    let node = Machine::join(&planned.drive.app, &planned.drive.admin, 1, 10).await;
    assert_eq!(node.claim(1, 10).await, [Value::Null; 0]);
}

#[tokio::test]
async fn where_there_is_no_repository_nothing_is_tried_and_the_run_is_woken() {
    let drive = Drive::new().await;
    let held = Planned::planned(&drive).await;
    let mut planned = Planned { drive, held, head: String::new() };
    planned.try_checks(json!([check("make test")])).await;
    planned.held = planned.drive.start().await;
    let base = &planned.held.position["base_checks"];
    assert_eq!(
        json!([base["state"], base["error"], base["checks"][0]["outcome"]]),
        json!(["unable", "the project has no repository", "not_tried"])
    );
}

#[tokio::test]
async fn a_task_that_is_cancelled_has_its_checks_tried_no_more() {
    let mut planned = Planned::new().await;
    planned.try_checks(json!([check("pytest")])).await;
    let place = format!("/v1/tasks/{}/cancel", planned.drive.task);
    planned.drive.admin.post(&place, json!(null)).await.expect(200);
    let node = Machine::join(&planned.drive.app, &planned.drive.admin, 1, 10).await;
    assert_eq!(node.claim(1, 10).await, [Value::Null; 0]);
}

#[tokio::test]
async fn another_check_that_a_person_names_is_what_the_task_is_done_by() {
    let mut planned = Planned::new().await;
    let criteria =
        json!([{ "text": "it holds", "check": check("PATH=/opt/venv/bin:$PATH pytest") }]);
    let effects = json!([{ "effect": "set_criteria", "criteria": criteria }]);
    planned.drive.go(&mut planned.held, "pass", json!({ "effects": effects })).await;
    let place = format!("/v1/tasks/{}", planned.drive.task);
    let task = planned.drive.admin.get(&place).await.expect(200).json();
    assert_eq!(task["acceptance_criteria"], criteria);
}
