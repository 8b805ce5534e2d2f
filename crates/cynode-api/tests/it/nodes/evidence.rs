//! Evidence: checks of what units brought, and what a task needs to end well.

use super::*;
use crate::workflow::Held;

/// A task whose criterion has a check, with one unit whose worker brought a commit.
struct Brought {
    drive: Drive,
    node: Machine,
    held: Held,
    head: String,
    commit: String,
}

const HOLDS: &str = "./holds.sh";

fn holds() -> Value {
    json!({ "argv": [HOLDS] })
}

/// Writes files, or removes those without text, and gives the commit and its bundle on top of `base`.
fn change(at: &Path, base: &str, files: &[(&str, Option<&str>)]) -> (String, Vec<u8>) {
    for (path, text) in files {
        match text {
            Some(text) => {
                std::fs::create_dir_all(at.join(path).parent().unwrap()).unwrap();
                std::fs::write(at.join(path), text).unwrap();
            }
            None => std::fs::remove_file(at.join(path)).unwrap(),
        }
    }
    git(at, &["add", "--all"]);
    git(at, &["commit", "--quiet", "-m", "change"]);
    let commit = git(at, &["rev-parse", "HEAD"]);
    git(at, &["bundle", "create", "--quiet", ".git/job.bundle", &format!("{base}..HEAD"), "HEAD"]);
    (commit, std::fs::read(at.join(".git/job.bundle")).unwrap())
}

impl Brought {
    async fn new(payload: Value, files: &[(&str, Option<&str>)]) -> Self {
        let mut drive = Drive::new().await;
        let (directory, _, _) = repository();
        let at = directory.path();
        let first = git(at, &["rev-parse", "HEAD"]);
        change(at, &first, &[("tests/sum.py", Some("assert 1\n")), ("Makefile", Some("test:\n"))]);
        let head = git(at, &["rev-parse", "HEAD"]);
        git(at, &["bundle", "create", "--quiet", ".git/all.bundle", "--branches"]);
        let bundle = std::fs::read(at.join(".git/all.bundle")).unwrap();
        let place = format!("/v1/projects/{}/repository", drive.project);
        assert_eq!(put(&drive.admin, &place, bundle).await.0, 200);
        // What is delivered is another matter.
        let prefer =
            format!("/v1/preferences/delivery.mode?scope_type=project&scope_id={}", drive.project);
        let none = json!({ "value": "none", "expected_version": 0 });
        drive.admin.put(&prefer, none).await.expect(200);
        let body = json!({ "project_id": drive.project, "description": "Mend it",
            "acceptance_criteria": [{ "text": "it holds", "check": holds() }] });
        drive.task = drive.admin.post("/v1/tasks", body).await.expect(201).text("id");
        let held = drive.dispatched_with(&["a"], &payload).await;
        let node = Machine::join(&drive.app, &drive.admin, 1, 10).await;
        let job = node.claim(1, 10).await.remove(0);
        let (commit, bundle) = change(at, &head, files);
        let bundle = store(&node, &job, &bundle).await;
        let body = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
            "result": { "summary": "done", "stop": "end_turn", "commit": commit, "bundle": bundle } });
        node.client.post(&path(&job, "result"), body).await.expect(200);
        Self { drive, node, held, head, commit }
    }

    async fn gather(&mut self, checks: Value) {
        let effect = json!({ "effect": "gather_evidence", "unit": "a", "attempt": 1, "checks": checks,
            "timeout_seconds": 60 });
        let more = json!({ "effects": [effect], "wait": { "reason": "job" } });
        self.drive.step(&self.held, "wait", more).await.expect(200);
        self.held = self.drive.start().await;
    }

    /// Runs the next job of checks; the exit code of each.
    async fn check(&self, claim: u32, codes: &[i32]) -> Value {
        let job = self.node.claim(claim, 10).await.remove(0);
        let checks = job["work"]["worker"]["checks"].as_array().unwrap();
        let steps: Vec<_> = checks
            .iter()
            .zip(codes)
            .map(|(check, code)| {
                json!({ "argv": check["argv"], "exit_code": code, "output": format!("ended {code}"),
                    "sha256": "ab", "truncated": false, "milliseconds": 7 })
            })
            .collect();
        let body = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
            "result": { "stop": "end_turn", "steps": steps } });
        self.node.client.post(&path(&job, "result"), body).await.expect(200);
        job
    }

    async fn shown(&self) -> Value {
        let place = format!("/v1/tasks/{}/evidence", self.drive.task);
        self.drive.admin.get(&place).await.expect(200).json()["evidence"].clone()
    }

    async fn tallies(&self) -> Value {
        let shown = self.shown().await;
        let checks = shown[0]["checks"].as_array().unwrap().clone();
        let each = checks.iter().map(|it| json!([it["tally"], it["rounds"]]));
        json!({ "state": shown[0]["state"], "checks": each.collect::<Vec<_>>() })
    }

    /// From a collected result to the end: accepts the unit, and completes the task.
    async fn end(&mut self, waived: Value) -> (u16, u16) {
        let collect = json!([{ "effect": "collect_job", "unit": "a", "attempt": 1 }]);
        self.drive.go(&mut self.held, "pass", json!({ "effects": collect })).await;
        let accept =
            json!([{ "effect": "accept_unit", "unit": "a", "attempt": 1, "waived": waived }]);
        let accepted = self.drive.step(&self.held, "pass", json!({ "effects": accept })).await;
        if accepted.status != 200 {
            return (accepted.status, 0);
        }
        self.held.position = accepted.json();
        self.drive.go(&mut self.held, "done", json!({})).await;
        (200, self.drive.step(&self.held, "pass", json!({})).await.status)
    }
}

fn payload() -> Value {
    let mut payload = work();
    payload["kind"] = json!("implementation");
    payload["brief"] = json!({ "files_to_modify": ["a.txt"] });
    payload
}

#[tokio::test]
async fn checks_run_on_the_commit_that_was_brought_by_nobody_who_could_bend_them() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    brought.gather(json!([holds()])).await;
    let job = brought.check(2, &[0]).await;
    assert_eq!(
        json!([
            job["base"],
            job["work"]["worker"],
            job["work"]["tools"],
            job["work"]["models"],
            job["work"]["commit"]
        ]),
        json!([brought.commit, { "kind": "checks", "checks": [holds()], "pinned_from": brought.head }, [], [], "never"])
    );
    let mut shown = brought.shown().await;
    for field in ["evidence_id", "opened_at", "ended_at"] {
        assert!(shown[0][field].take().is_string(), "{field}");
    }
    assert_eq!(
        shown,
        json!([{
            "evidence_id": null, "unit": "a", "attempt": 1, "commit": brought.commit, "state": "passed", "stale": false,
            "checks": [{ "check": holds(), "tally": "passed", "rounds": 1, "exit_code": 0, "sha256": "ab",
                "excerpt": "ended 0", "milliseconds": 7 }],
            "tries": 1, "opened_at": null, "ended_at": null,
        }])
    );
    assert_eq!(brought.end(Value::Null).await, (200, 200));
}

#[tokio::test]
async fn a_check_that_fails_is_run_again_and_one_that_changes_its_mind_is_marked() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    let other = json!({ "argv": ["make", "test"], "if_runnable": true });
    brought.gather(json!([holds(), other])).await;
    // What a person asked for is looked at alone.
    let alone = brought.check(2, &[1]).await;
    assert_eq!(alone["work"]["worker"]["checks"], json!([holds()]));
    assert_eq!(
        brought.tallies().await,
        json!({ "state": "gathering", "checks": [["again", 1], ["again", 0]] })
    );
    brought.check(3, &[0]).await;
    brought.check(4, &[0]).await;
    let rest = brought.check(5, &[0]).await;
    assert_eq!(rest["work"]["worker"]["checks"], json!([other]));
    assert_eq!(
        brought.tallies().await,
        json!({ "state": "passed", "checks": [["flaky", 3], ["passed", 1]] })
    );
}

#[tokio::test]
async fn evidence_against_a_result_stops_it_unless_somebody_answers_for_it() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    brought.gather(json!([holds()])).await;
    brought.check(2, &[1]).await;
    brought.check(3, &[1]).await;
    assert_eq!(brought.tallies().await, json!({ "state": "failed", "checks": [["failed", 2]] }));
    assert_eq!(brought.end(Value::Null).await, (422, 0));
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    brought.gather(json!([holds()])).await;
    brought.check(2, &[1]).await;
    brought.check(3, &[1]).await;
    assert_eq!(brought.end(json!("a person took it")).await, (200, 200));
    assert_eq!(brought.shown().await[0]["waived"], "a person took it");
}

#[tokio::test]
async fn a_task_does_not_end_well_before_its_criteria_were_checked_at_what_it_leaves() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    assert_eq!(brought.end(Value::Null).await, (200, 422));
    // Checks of something else do not count for it.
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    brought.gather(json!([{ "argv": ["true"] }])).await;
    brought.check(2, &[0]).await;
    assert_eq!(brought.end(Value::Null).await, (200, 422));
}

#[tokio::test]
async fn what_did_not_hold_before_the_change_either_is_not_held_against_it() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    let own = json!({ "argv": ["make", "test"], "unless_before": true });
    brought.gather(json!([own])).await;
    brought.check(2, &[2]).await;
    brought.check(3, &[2]).await;
    let before = brought.check(4, &[2]).await;
    assert_eq!(before["base"], json!(brought.head));
    assert_eq!(brought.tallies().await, json!({ "state": "passed", "checks": [["before", 2]] }));
}

#[tokio::test]
async fn checks_whose_sandbox_came_to_nothing_are_begun_anew_and_show_nothing_until_then() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    brought.gather(json!([holds()])).await;
    let job = brought.node.claim(2, 10).await.remove(0);
    let body = json!({ "fencing_token": job["fencing_token"], "outcome": "failed",
        "result": { "summary": "no room for a sandbox", "stop": "failed" } });
    brought.node.client.post(&path(&job, "result"), body).await.expect(200);
    let shown = brought.shown().await;
    assert_eq!(
        json!([shown[0]["state"], shown[0]["trouble"], shown[0]["tries"]]),
        json!(["unable", "no room for a sandbox", 1])
    );
    brought.gather(json!([holds()])).await;
    brought.check(3, &[0]).await;
    let shown = brought.shown().await;
    assert_eq!(json!([shown[0]["state"], shown[0]["tries"]]), json!(["passed", 2]));
}

#[tokio::test]
async fn a_change_answers_for_tests_it_removed_and_for_files_that_decide_the_checks() {
    let mut payload = payload();
    payload["checks"] = json!([{ "argv": ["make", "test"] }]);
    let files =
        [("a.txt", Some("two\n")), ("tests/sum.py", None), ("Makefile", Some("test: ;true\n"))];
    let brought = Brought::new(payload, &files).await;
    let odd = results(&brought.drive.app).await["a"]["odd"].clone();
    assert_eq!(
        odd,
        json!([{ "odd": "check_touched", "path": "Makefile" }, { "odd": "test_removed", "path": "tests/sum.py" }])
    );
}

#[tokio::test]
async fn checks_run_with_tests_as_they_were_unless_the_plan_named_them() {
    let files = [("tests/sum.py", Some("assert 1\nassert 2\n"))];
    let make = json!({ "argv": ["make", "test"] });
    let mut brought = Brought::new(payload(), &files).await;
    brought.gather(json!([make])).await;
    // Each round, and the check that was asked for stays what it is.
    for (claim, code) in [(2, 1), (3, 1)] {
        let job = brought.check(claim, &[code]).await;
        let given = json!([{ "argv": ["make", "test"], "pins": ["tests/sum.py"] }]);
        assert_eq!(job["work"]["worker"]["checks"], given);
    }
    assert_eq!(brought.tallies().await, json!({ "state": "failed", "checks": [["failed", 2]] }));
    assert_eq!(brought.shown().await[0]["checks"][0]["check"], make);

    let mut named = payload();
    named["brief"] = json!({ "files_to_modify": ["tests/sum.py"] });
    let mut brought = Brought::new(named, &files).await;
    brought.gather(json!([make])).await;
    let job = brought.check(2, &[0]).await;
    assert_eq!(job["work"]["worker"]["checks"], json!([make]));
}

#[tokio::test]
async fn what_is_together_already_needs_no_commit_of_its_own() {
    let drive = Drive::new().await;
    let (_directory, head, bundle) = repository();
    let place = format!("/v1/projects/{}/repository", drive.project);
    assert_eq!(put(&drive.admin, &place, bundle).await.0, 200);
    let merge = json!({ "role": "fixer", "worker": { "kind": "merge" }, "commit": "required" });
    drive.dispatched_with(&["a"], &json!({ "kind": "integration", "work": merge })).await;
    let node = Machine::join(&drive.app, &drive.admin, 1, 10).await;
    let job = node.claim(1, 10).await.remove(0);
    let body = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
        "result": { "summary": "nothing to put together", "stop": "end_turn" } });
    let said = node.client.post(&path(&job, "result"), body).await.expect(200).json();
    let brought = results(&drive.app).await["a"]["commit"].clone();
    assert_eq!((said["state"].clone(), brought), (json!("succeeded"), json!(head)));
}

#[tokio::test]
async fn a_check_that_nobody_could_run_is_refused_with_the_task() {
    let drive = Drive::new().await;
    for check in [json!({ "argv": [] }), json!({ "argv": ["a"], "pins": ["../x"] })] {
        let body = json!({ "project_id": drive.project, "description": "Mend it",
            "acceptance_criteria": [{ "text": "it holds", "check": check }] });
        drive.admin.post("/v1/tasks", body).await.expect(422);
    }
}
