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
    directory: tempfile::TempDir,
    /// The jobs of other units, still out.
    others: Vec<Value>,
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
        Self::of(&["a"], payload, files).await
    }

    /// The same with several units; the first has brought something.
    async fn of(units: &[&str], payload: Value, files: &[(&str, Option<&str>)]) -> Self {
        let base = [("tests/sum.py", "assert 1\n"), ("Makefile", "test:\n")];
        Self::over(&base, units, payload, files).await
    }

    /// The same over a repository with these files.
    async fn over(
        base: &[(&str, &str)],
        units: &[&str],
        payload: Value,
        files: &[(&str, Option<&str>)],
    ) -> Self {
        let mut drive = Drive::new().await;
        let (directory, _, _) = repository();
        let at = directory.path();
        let first = git(at, &["rev-parse", "HEAD"]);
        let base: Vec<_> = base.iter().map(|(path, text)| (*path, Some(*text))).collect();
        change(at, &first, &base);
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
        let held = drive.dispatched_with(units, &payload).await;
        let node = Machine::join(&drive.app, &drive.admin, 1, 10).await;
        let others = node.claim(1, 10).await;
        let commit = String::new();
        let mut brought = Self { drive, node, held, head, commit, directory, others };
        brought.commit = brought.bring(units[0], files).await;
        brought
    }

    /// The worker of a unit brings a change; gives its commit.
    async fn bring(&mut self, unit: &str, files: &[(&str, Option<&str>)]) -> String {
        let of = |job: &Value| job["unit"] == unit;
        let job = self.others.remove(self.others.iter().position(of).unwrap());
        let (commit, bundle) = change(self.directory.path(), &self.head, files);
        let bundle = store(&self.node, &job, &bundle).await;
        let body = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
            "result": { "summary": "done", "stop_reason": "end_turn", "commit": commit, "bundle": bundle } });
        self.node.client.post(&path(&job, "result"), body).await.expect(200);
        commit
    }

    /// What a unit's result has to answer for.
    async fn anomalies(&self, unit: &str) -> Value {
        let mut anomalies = results(&self.drive.app).await[unit]["anomalies"].clone();
        for one in anomalies.as_array_mut().unwrap() {
            assert!(one.as_object_mut().unwrap().remove("object_id").unwrap().is_string());
        }
        anomalies
    }

    async fn gather(&mut self, checks: Value) {
        self.gather_of("a", checks).await;
    }

    async fn gather_of(&mut self, unit: &str, checks: Value) {
        let effect = json!({ "effect": "gather_evidence", "unit": unit, "attempt": 1, "checks": checks,
            "timeout_seconds": 60 });
        let more = json!({ "effects": [effect], "wait": { "reason": "job" } });
        self.drive.step(&self.held, "wait", more).await.expect(200);
        self.held = self.drive.start().await;
    }

    /// Runs the next job of checks; the exit code of each.
    async fn check(&self, claim: u32, codes: &[i32]) -> Value {
        self.check_tests(claim, codes, None).await
    }

    /// The same with results per test.
    async fn check_tests(&self, claim: u32, codes: &[i32], tests: Option<Value>) -> Value {
        let job = self.node.claim(claim, 10).await.remove(0);
        let checks = job["work"]["worker"]["checks"].as_array().unwrap();
        let steps: Vec<_> = checks
            .iter()
            .zip(codes)
            .map(|(check, code)| {
                let mut step = json!({ "argv": check["argv"], "exit_code": code, "output": format!("ended {code}"),
                    "sha256": "ab", "truncated": false, "milliseconds": 7 });
                if let Some(tests) = &tests {
                    step["tests"] = json!({ "format": "tap", "tests": tests });
                }
                step
            })
            .collect();
        let body = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
            "result": { "stop_reason": "end_turn", "steps": steps } });
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
        let by_person = waived == "a person took it";
        let accept = json!([{ "effect": "accept_unit", "unit": "a", "attempt": 1, "waived": waived, "by_person": by_person }]);
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
            "attempts": 1, "opened_at": null, "ended_at": null,
        }])
    );
    assert_eq!(brought.end(Value::Null).await, (200, 200));
}

#[tokio::test]
async fn checks_run_on_another_node_than_the_work_where_there_is_one() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    let other = Machine::join(&brought.drive.app, &brought.drive.admin, 2, 1).await;
    // By turns it would be the node that did the work.
    let turns = "UPDATE nodes SET last_placement = CASE name WHEN 'node-1' THEN 1 ELSE 1000 END";
    assert_eq!(brought.drive.app.db.execute(turns).await, 2);
    brought.gather(json!([holds()])).await;
    assert_eq!(brought.node.claim(2, 10).await, Vec::<Value>::new());
    assert_eq!(other.claim(3, 10).await[0]["work"]["worker"]["kind"], "checks");
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
async fn each_check_has_a_job_with_time_enough_and_what_one_showed_outlives_the_others() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    let long =
        json!({ "argv": ["make", "all"], "time_limit_seconds": 3600, "unless_before": true });
    let short = json!({ "argv": ["make", "test"], "if_runnable": true });
    brought.gather(json!([long, short])).await;
    let has_time = |job: &Value, most: u64| {
        let left = job["seconds_left"].as_u64().unwrap();
        assert!((most - 20..=most).contains(&left), "{left} of {most}");
    };
    let first = brought.check(2, &[0]).await;
    assert_eq!(first["work"]["worker"]["checks"], json!([long]));
    has_time(&first, 3900);
    let second = brought.node.claim(3, 10).await.remove(0);
    assert_eq!(second["work"]["worker"]["checks"], json!([short]));
    has_time(&second, 900);
    let body = json!({ "fencing_token": second["fencing_token"], "outcome": "failed",
        "result": { "summary": "its time was up", "stop_reason": "timeout" } });
    brought.node.client.post(&path(&second, "result"), body).await.expect(200);
    brought.gather(json!([long, short])).await;
    let again = brought.check(4, &[0]).await;
    assert_eq!(again["work"]["worker"]["checks"], json!([short]));
    assert_eq!(
        brought.tallies().await,
        json!({ "state": "passed", "checks": [["passed", 1], ["passed", 1]] })
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
async fn checks_of_an_ended_task_are_run_again_and_what_they_showed_before_stays() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    brought.gather(json!([holds()])).await;
    let again = format!("/v1/tasks/{}/evidence/rerun", brought.drive.task);
    let admin = brought.drive.admin.clone();
    let refused = async || admin.post(&again, json!(null)).await.expect(409).text("detail");
    let why = "the task runs its checks right now: wait until they have ended";
    assert_eq!(refused().await, why);
    brought.check(2, &[0]).await;
    let why = "the task has not ended and runs its checks by itself; if it waits for you about a check, answer `again`";
    assert_eq!(refused().await, why);
    assert_eq!(brought.end(Value::Null).await, (200, 200));
    admin.post(&again, json!(null)).await.expect(202);
    let job = brought.check(3, &[1]).await;
    assert_eq!(job["base"], json!(brought.commit));
    assert_eq!(job["work"]["worker"]["checks"], json!([holds()]));
    brought.check(4, &[1]).await;
    let shown = brought.shown().await;
    let brief = shown.as_array().unwrap().iter();
    let brief =
        brief.map(|it| json!([it["unit"], it["attempt"], it["commit"], it["state"], it["stale"]]));
    assert_eq!(
        brief.collect::<Vec<_>>(),
        [
            json!(["a", 1, brought.commit, "passed", true]),
            json!(["a", 1, brought.commit, "failed", false]),
        ]
    );
    let told = "SELECT data ->> 'units' FROM events WHERE kind = 'evidence.requested'";
    assert_eq!(brought.drive.app.db.texts(told).await, ["[\"a\"]"]);
    let task = brought.drive.admin.get(&format!("/v1/tasks/{}", brought.drive.task)).await;
    assert_eq!(task.expect(200).text("state"), "completed", "the task stays as it ended");
    brought.drive.app.db.execute("UPDATE tasks SET files_expired_at = ended_at").await;
    assert_eq!(refused().await, "the commits of the task are not kept any more");
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
async fn an_old_failure_excuses_no_test_that_a_change_broke() {
    let own = json!({ "argv": ["make", "test"], "unless_before": true });
    let was = json!({ "old": "failed", "one": "passed" });
    let same = json!({ "old": "failed", "one": "passed" });
    let broken = json!({ "old": "failed", "one": "failed" });
    let old = json!({ "total": 1, "names": ["old"] });
    let excused = json!({
        "before": { "passed": 1, "skipped": 0, "failed": 1 },
        "after": { "passed": 1, "skipped": 0, "failed": 1 },
        "pass_to_pass": 1,
        "fail_to_fail": old,
    });
    let refused = json!({
        "before": { "passed": 1, "skipped": 0, "failed": 1 },
        "after": { "passed": 0, "skipped": 0, "failed": 2 },
        "pass_to_fail": { "total": 1, "names": ["one"] },
        "pass_to_pass": 0,
        "fail_to_fail": old,
    });
    for (after, state, tally, compared) in
        [(same, "passed", "before", excused), (broken, "failed", "failed", refused)]
    {
        let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
        brought.gather(json!([own])).await;
        brought.check_tests(2, &[2], Some(after.clone())).await;
        brought.check_tests(3, &[2], Some(after)).await;
        brought.check_tests(4, &[2], Some(was.clone())).await;
        let expected = json!({ "state": state, "checks": [[tally, 2]] });
        assert_eq!(brought.tallies().await, expected);
        assert_eq!(brought.shown().await[0]["checks"][0]["tests"], compared);
    }
}

#[tokio::test]
async fn checks_whose_sandbox_came_to_nothing_are_begun_anew_and_show_nothing_until_then() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    brought.gather(json!([holds()])).await;
    let job = brought.node.claim(2, 10).await.remove(0);
    let body = json!({ "fencing_token": job["fencing_token"], "outcome": "failed",
        "result": { "summary": "no room for a sandbox", "stop_reason": "failed" } });
    brought.node.client.post(&path(&job, "result"), body).await.expect(200);
    let shown = brought.shown().await;
    assert_eq!(
        json!([shown[0]["state"], shown[0]["error"], shown[0]["attempts"]]),
        json!(["unable", "no room for a sandbox", 1])
    );
    brought.gather(json!([holds()])).await;
    brought.check(3, &[0]).await;
    let shown = brought.shown().await;
    assert_eq!(json!([shown[0]["state"], shown[0]["attempts"]]), json!(["passed", 2]));
}

#[tokio::test]
async fn a_change_answers_for_new_files_in_a_language_that_people_do_not_want() {
    let mut brought = Brought::of(&["a", "b"], payload(), &[("tools/old.py", Some("1\n"))]).await;
    assert_eq!(brought.anomalies("a").await, json!([]));
    let place = format!(
        "/v1/preferences/code.language.disallowed?scope_type=project&scope_id={}",
        brought.drive.project
    );
    let value = json!({ "value": ["Python", "go"], "expected_version": 0 });
    brought.drive.admin.put(&place, value).await.expect(200);
    brought.bring("b", &[("tools/new.py", Some("2\n")), ("src/main.rs", Some("x\n"))]).await;
    let found = |path: &str| json!({ "anomaly": "language_disallowed", "path": path, "language": "python" });
    assert_eq!(brought.anomalies("b").await, json!([found("tools/new.py"), found("tools/old.py")]));
}

#[tokio::test]
async fn a_change_answers_for_tests_it_removed_and_for_files_that_decide_the_checks() {
    let mut payload = payload();
    payload["checks"] = json!([{ "argv": ["make", "test"] }]);
    let files =
        [("a.txt", Some("two\n")), ("tests/sum.py", None), ("Makefile", Some("test: ;true\n"))];
    let brought = Brought::new(payload, &files).await;
    assert_eq!(
        brought.anomalies("a").await,
        json!([{ "anomaly": "check_touched", "path": "Makefile" }, { "anomaly": "test_removed", "path": "tests/sum.py" }])
    );
    // Whoever is asked can read all of it before anybody has judged it.
    let place = format!("/v1/tasks/{}/evidence", brought.drive.task);
    let shown = brought.drive.admin.get(&place).await.expect(200).json();
    let issues = shown["feedback"]["critical_issues"].as_array().unwrap().clone();
    let at: Vec<_> = issues.iter().map(|issue| issue["file_location"].clone()).collect();
    assert_eq!(json!(at), json!(["Makefile:1", "tests/sum.py:1"]));
    // Whoever judges, the orchestrator takes it only with a reason.
    let mut brought = brought;
    assert_eq!(brought.end(Value::Null).await, (422, 0));
}

#[tokio::test]
async fn what_a_person_took_is_not_held_against_what_follows_as_long_as_it_is_the_same() {
    let mut payload = payload();
    payload["checks"] = json!([{ "argv": ["make", "test"] }]);
    let files = [("Makefile", Some("test: ;true\n")), ("tests/sum.py", Some("pass\n"))];
    let units = ["a", "b", "c", "d"];
    let why = "SELECT accepted_reason FROM jobs WHERE accepted_reason IS NOT NULL";
    for by_person in [false, true] {
        let mut brought = Brought::of(&units, payload.clone(), &files).await;
        let anomalies = brought.anomalies("a").await;
        assert_eq!(anomalies.as_array().unwrap().len(), 2, "{anomalies}");
        let collect = json!([{ "effect": "collect_job", "unit": "a", "attempt": 1 }]);
        brought.drive.go(&mut brought.held, "pass", json!({ "effects": collect })).await;
        let accept = json!([{ "effect": "accept_unit", "unit": "a", "attempt": 1,
            "waived": "it need not hold", "by_person": by_person, "shown_anomalies": anomalies }]);
        brought.drive.step(&brought.held, "pass", json!({ "effects": accept })).await.expect(200);
        // Whoever took it, the reason is kept.
        assert_eq!(brought.drive.app.db.texts(why).await, ["it need not hold"]);
        // The same files, with something else beside them.
        brought.bring("b", &[("a.txt", Some("two\n"))]).await;
        let restored_tests = results(&brought.drive.app).await["b"]["restored_tests"].clone();
        if by_person {
            assert_eq!((brought.anomalies("b").await, restored_tests), (json!([]), json!([])));
        } else {
            assert_eq!(
                (brought.anomalies("b").await, restored_tests),
                (anomalies, json!(["tests/sum.py"]))
            );
            continue;
        }
        // Changed again, it has to be answered for again, and nothing else has.
        brought.bring("c", &[("Makefile", Some("test: ;exit 0\n"))]).await;
        assert_eq!(
            brought.anomalies("c").await,
            json!([{ "anomaly": "check_touched", "path": "Makefile" }])
        );
        // As before the change there is nothing to answer for.
        brought.bring("d", &[("Makefile", Some("test:\n"))]).await;
        assert_eq!(brought.anomalies("d").await, json!([]));
    }
}

#[tokio::test]
async fn what_a_person_was_not_shown_they_did_not_take() {
    let mut payload = payload();
    payload["checks"] = json!([{ "argv": ["make", "test"] }]);
    let files = [("Makefile", Some("test: ;true\n")), ("tests/sum.py", Some("pass\n"))];
    let mut brought = Brought::of(&["a", "b"], payload, &files).await;
    let anomalies = brought.anomalies("a").await;
    let collect = json!([{ "effect": "collect_job", "unit": "a", "attempt": 1 }]);
    brought.drive.go(&mut brought.held, "pass", json!({ "effects": collect })).await;
    let never = json!({ "anomaly": "test_removed", "path": "tests/other.py" });
    let accept = json!([{ "effect": "accept_unit", "unit": "a", "attempt": 1,
        "waived": "a person took it", "by_person": true, "shown_anomalies": [anomalies[0], never] }]);
    brought.drive.step(&brought.held, "pass", json!({ "effects": accept })).await.expect(200);
    brought.bring("b", &[("a.txt", Some("two\n"))]).await;
    let restored_tests = results(&brought.drive.app).await["b"]["restored_tests"].clone();
    assert_eq!(
        (brought.anomalies("b").await, restored_tests),
        (json!([anomalies[1]]), json!(["tests/sum.py"]))
    );
}

#[tokio::test]
async fn more_than_anybody_reads_is_not_listed_and_said_to_be_more() {
    let paths: Vec<String> = (0..510).map(|number| format!("tests/t{number:03}.py")).collect();
    let base: Vec<_> = paths.iter().map(|path| (path.as_str(), "assert 1\n")).collect();
    let gone: Vec<_> = paths.iter().map(|path| (path.as_str(), None)).collect();
    let brought = Brought::over(&base, &["a"], payload(), &gone).await;
    let unseen = |reason: &str| json!({ "anomaly": "unseen", "path": "", "reason": reason });
    let removed = paths.iter().map(|path| json!({ "anomaly": "test_removed", "path": path }));
    let mut anomalies = vec![
        unseen("it has more anomalies than are listed"),
        unseen("it touches more tests than are put back for the checks"),
    ];
    anomalies.extend(removed.take(499));
    assert_eq!(brought.anomalies("a").await, json!(anomalies));
    assert_eq!(results(&brought.drive.app).await["a"]["restored_tests"], json!(paths[..500]));
}

#[tokio::test]
async fn a_change_answers_for_what_tests_expect_and_not_for_what_new_ones_do() {
    let base = [("tests/expected.json", "1\n"), ("src/sum.snap", "1\n"), ("src/a.py", "a = 1\n")];
    let files = [
        ("tests/expected.json", Some("2\n")),
        ("tests/new.json", Some("2\n")),
        ("src/sum.snap", None),
        ("src/a.py", Some("a = 2\n")),
    ];
    let mut brought = Brought::over(&base, &["a"], payload(), &files).await;
    assert_eq!(
        brought.anomalies("a").await,
        json!([
            { "anomaly": "check_touched", "path": "src/sum.snap" },
            { "anomaly": "check_touched", "path": "tests/expected.json" },
        ])
    );
    assert_eq!(brought.end(Value::Null).await, (422, 0));
}

#[tokio::test]
async fn a_file_that_git_would_have_to_read_whole_is_not_looked_at_and_that_is_said() {
    let large = "\0".repeat(33 << 20);
    let files = [("large.bin", Some(large.as_str())), ("b.txt", Some("<<<<<<< ours\n"))];
    let brought = Brought::new(payload(), &files).await;
    assert_eq!(
        brought.anomalies("a").await,
        json!([
            { "anomaly": "merge_marks", "path": "b.txt", "line": 1 },
            { "anomaly": "unseen", "path": "large.bin", "reason": "it has more than 32 MiB" },
        ])
    );
}

#[tokio::test]
async fn what_is_too_large_to_be_looked_at_is_not_taken_for_good() {
    let large = "assert 1\n".repeat(200_000);
    let brought = Brought::new(payload(), &[("tests/sum.py", Some(&large))]).await;
    let why = "it is too large, one of too many, or no text";
    assert_eq!(
        brought.anomalies("a").await,
        json!([{ "anomaly": "unseen", "path": "tests/sum.py", "reason": why }])
    );
    // However large it is, a change without marks of a merge has none.
    let lines = "a line of a large file\n".repeat(600_000);
    let brought = Brought::new(payload(), &[("a.txt", Some(&lines))]).await;
    assert_eq!(brought.anomalies("a").await, json!([]));
    // Marks after more than anybody reads.
    let marked = format!("{lines}<<<<<<< ours\n=======\n>>>>>>> theirs\n");
    let mut brought = Brought::new(payload(), &[("a.txt", Some(&marked))]).await;
    let why = "files with marks of merges are too large to be read to their end";
    assert_eq!(
        brought.anomalies("a").await,
        json!([{ "anomaly": "unseen", "path": "", "reason": why }])
    );
    assert_eq!(brought.end(Value::Null).await, (422, 0));
}

#[tokio::test]
async fn where_too_much_stands_behind_the_checks_every_program_may() {
    let mut payload = payload();
    payload["checks"] = json!([{ "argv": ["make", "test"] }]);
    // The script is named after more than is read of the file that decides.
    let long = format!("{}test: ;sh run.sh\n", "# a line that says nothing\n".repeat(20_000));
    let base = [("Makefile", long.as_str()), ("run.sh", "exit 1\n"), ("src/a.py", "a = 1\n")];
    let files = [("run.sh", Some("exit 0\n")), ("src/a.py", Some("a = 2\n"))];
    let brought = Brought::over(&base, &["a"], payload, &files).await;
    assert_eq!(
        brought.anomalies("a").await,
        json!([{ "anomaly": "check_touched", "path": "run.sh" }])
    );
}

#[tokio::test]
async fn a_check_needs_a_repository_and_where_there_is_none_work_is_taken_only_for_a_reason() {
    let mut drive = Drive::new().await;
    let project = drive.project.clone();
    let body = |name: Value| {
        let mut body = json!({ "project_id": project, "description": "Mend it",
            "acceptance_criteria": [{ "text": "it holds", "check": holds() }] });
        if name.is_string() {
            body["name"] = name;
        }
        body
    };
    for name in [Value::Null, json!("mend-it-well")] {
        let refused = drive.admin.post("/v1/tasks", body(name)).await.expect(422).json();
        let detail = refused["detail"].as_str().unwrap();
        let told = ["no repository", "PUT /v1/projects/", "leave `check` out"];
        assert!(told.iter().all(|words| detail.contains(words)), "{detail}");
    }
    let (_directory, _, bundle) = repository();
    let place = format!("/v1/projects/{}/repository", drive.project);
    assert_eq!(put(&drive.admin, &place, bundle).await.0, 200);
    // Whoever works without files leaves nothing that could be checked.
    let worker =
        drive.app.service(cynode_app::identity::service_tokens::ServiceKind::Worker, "w").await;
    let why = json!("it cannot be checked");
    let cases = [(1, Value::Null, false, 422), (2, why.clone(), false, 200), (3, why, true, 200)];
    for (number, waived, by_person, ends) in cases {
        let named = json!(format!("mend-{number}"));
        drive.task = drive.admin.post("/v1/tasks", body(named)).await.expect(201).text("id");
        let mut held = drive.dispatched(&["a"]).await;
        let claim = json!({ "claim_id": format!("0192d5c8-b6f0-7cc1-a1a3-c2b4d5e6f70{number}"), "max_jobs": 1 });
        let claimed = worker.post("/v1/jobs/claim", claim).await.expect(200).json();
        let place = format!("/v1/jobs/{}/result", claimed["jobs"][0]["job_id"].as_str().unwrap());
        let done =
            json!({ "fencing_token": 1, "outcome": "succeeded", "result": { "taken": "yes" } });
        worker.post(&place, done).await.expect(200);
        let collect = json!([{ "effect": "collect_job", "unit": "a", "attempt": 1 }]);
        drive.go(&mut held, "pass", json!({ "effects": collect })).await;
        let accept = json!([{ "effect": "accept_unit", "unit": "a", "attempt": 1,
            "waived": waived, "by_person": by_person }]);
        drive.go(&mut held, "pass", json!({ "effects": accept })).await;
        drive.go(&mut held, "done", json!({})).await;
        assert_eq!(drive.step(&held, "pass", json!({})).await.status, ends);
    }
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
async fn who_changes_nothing_is_checked_with_tests_as_they_were_before_the_others() {
    // As many lines that show something as before: it has no anomaly.
    let files = [("tests/sum.py", Some("assert True\n"))];
    let mut brought = Brought::of(&["a", "b"], payload(), &files).await;
    assert_eq!(brought.anomalies("a").await, json!([]));
    // The second starts from what the first brought.
    let after = "UPDATE jobs SET base_commit = $1, started_at = started_at + interval '1 second'
        WHERE unit_id = (SELECT unit_id FROM work_units WHERE key = 'b')";
    assert_eq!(brought.drive.app.db.execute_with(after, &brought.commit).await, 1);
    let job = brought.others.remove(0);
    let body = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
        "result": { "summary": "nothing to do", "stop_reason": "end_turn" } });
    brought.node.client.post(&path(&job, "result"), body).await.expect(200);
    let left = results(&brought.drive.app).await["b"].clone();
    assert_eq!(
        json!([left["commit"], left["anomalies"], left["restored_tests"]]),
        json!([null, [], ["tests/sum.py"]])
    );
    brought.gather_of("b", json!([holds()])).await;
    let job = brought.check(2, &[0]).await;
    let mut given = holds();
    given["pins"] = json!(["tests/sum.py"]);
    assert_eq!(
        (job["base"].clone(), job["work"]["worker"]["checks"].clone()),
        (json!(brought.commit), json!([given]))
    );
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
        "result": { "summary": "nothing to put together", "stop_reason": "end_turn" } });
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

#[tokio::test]
async fn a_retry_begins_with_the_best_that_was_left_and_is_measured_from_where_that_began() {
    let mut brought = Brought::new(payload(), &[("a.txt", Some("two\n"))]).await;
    let collect = json!([{ "effect": "collect_job", "unit": "a", "attempt": 1 }]);
    brought.drive.go(&mut brought.held, "pass", json!({ "effects": collect })).await;
    let fail = json!([{ "effect": "fail_unit", "unit": "a", "attempt": 1 }]);
    brought.drive.go(&mut brought.held, "fail", json!({ "effects": fail })).await;
    brought.drive.step(&brought.held, "pass", json!({ "note": "no" })).await.expect(200);
    // What was left can be seen, and is called what it is.
    let place = format!("/v1/tasks/{}/diff", brought.drive.task);
    let left = brought.drive.admin.get(&place).await.expect(200).json();
    assert_eq!(
        json!([
            left["unit"],
            left["attempt"],
            left["state"],
            left["checks"],
            left["diff"]["base"],
            left["diff"]["head"]
        ]),
        json!(["a", 1, "failed", 0, brought.head, brought.commit])
    );
    assert_eq!(left["files"]["files"][0]["path"], "a.txt");

    let body = json!({ "project_id": brought.drive.project, "name": "again", "description": "Mend it",
        "acceptance_criteria": [{ "text": "it holds", "check": holds() }] });
    let place = format!("/v1/tasks/{}/retry", brought.drive.task);
    let again = brought.drive.admin.post(&place, body.clone()).await.expect(201);
    let told = "Mend it\n\nAn earlier attempt at this left unfinished work, which is in the files that you begin with. It ended: no";
    assert_eq!(again.text("description"), told);
    brought.drive.task = again.text("id");
    brought.held = brought.drive.dispatched_with(&["a"], &payload()).await;
    let job = brought.node.claim(2, 10).await.remove(0);
    assert_eq!(job["base"], brought.commit);
    // Nothing more is to be changed: what was left is what it brings.
    let done = json!({ "fencing_token": job["fencing_token"], "outcome": "succeeded",
        "result": { "summary": "nothing to do", "stop_reason": "end_turn" } });
    brought.node.client.post(&path(&job, "result"), done).await.expect(200);
    brought.gather(json!([holds()])).await;
    let check = brought.check(3, &[0]).await;
    assert_eq!(
        json!([check["base"], check["work"]["worker"]["pinned_from"]]),
        json!([brought.commit, brought.head])
    );

    // One that goes on is not asked for once more.
    let place = format!("/v1/tasks/{}/retry", brought.drive.task);
    let refused = brought.drive.admin.post(&place, body).await;
    assert_eq!(refused.status, 409);
}
