//! The example, step by step, as it is observable from outside.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use cynode_e2e::faults::Trigger;
use cynode_testkit::pause;
use serde_json::{Value, json};

use super::{
    facts::{Made, activity, commits, observe, rows},
    stage::{Stage, WORDS},
};
use crate::{
    chaos::{Facts, differences},
    nodes::scene::git,
};

/// Timeout of the example.
const STUCK: Duration = Duration::from_mins(1);

/// How long no model call may happen when there is nothing to decide.
const IDLE: Duration = Duration::from_secs(3);

/// The unit that is built, and the files that it changes.
const UNIT: &str = "add-dark-mode-toggle-to-settings";
const FILES: [&str; 2] = ["Pages/Settings.razor", "Shared/ThemeProvider.razor"];

/// The tools that the project manager calls, in order.
const MANAGERS_TOOLS: [&str; 4] =
    ["git.tree", "git.read", "db.task.refine", "git.pull_request.open"];

/// An undisturbed run.
pub(super) struct Unbroken {
    pub(super) facts: Facts,
    /// The messages that occur in every run.
    pub(super) heard: Vec<Trigger>,
}

/// Runs the example twice without a fault: once to check each step, once to check that it repeats.
pub(super) async fn tell(stage: &Stage) -> (Unbroken, bool) {
    stage.world.faults.start_recording();
    let begun = Instant::now();
    let task = stage.begin().await;
    let ended = stage.ends(&task, STUCK).await;
    let heard = stage.world.faults.stop_recording();
    let took = begun.elapsed();
    if !ended {
        println!("WRONG it does not end; see {}", stage.world.logs().display());
        let query = "SELECT kind, state, attempt, failure FROM handoffs WHERE task_id = $1 ORDER BY handoff_id";
        for handoff in rows(&stage.world.pool, query, &task).await {
            println!("      {handoff}");
        }
        return (Unbroken { facts: Facts::new(), heard }, false);
    }
    let mut checks = Checks::default();
    let seen = TaskRecords::gather(stage, &task).await;
    eleven_steps(stage, &seen, &mut checks);
    records(&seen, &mut checks);
    let query = "SELECT kind FROM events WHERE task_id = $1 AND kind IN ('task.started', 'task.completed') ORDER BY xact, seq";
    let events = rows(&stage.world.pool, query, &task).await;
    let expected = json!([{ "kind": "task.started" }, { "kind": "task.completed" }]);
    checks.step("   events", "execution starts and stops once");
    checks.that("S001-74: events", &json!(events), &expected);
    manager_part(&seen, &mut checks);
    workflow(&seen, &heard, &mut checks);
    let before = activity(stage).await;
    pause(IDLE).await;
    let (calls, handoffs) = activity(stage).await;
    checks.step("   nothing to do", "nobody asks a model");
    checks.that(
        "S004-003, S004-012: model calls and handoffs",
        &json!([calls, handoffs]),
        &json!([before.0, before.1]),
    );
    let facts = observe(stage, &task).await;
    stage.world.faults.start_recording();
    let again = stage.begin().await;
    stage.ends(&again, STUCK).await;
    let heard = in_both(heard, stage.world.faults.stop_recording());
    let other = differences(&facts, &observe(stage, &again).await);
    checks.step("   once more", "the same comes of it");
    checks.that("S001-09: differences", &json!(other), &json!([]));
    println!(
        "\nthe example took {:.1} s and {calls} model calls; {} facts are compared from here on",
        took.as_secs_f64(),
        facts.len()
    );
    (Unbroken { facts, heard }, checks.end())
}

/// Returns the messages of both runs: the number of waits depends on timing.
fn in_both(mut heard: Vec<Trigger>, mut again: Vec<Trigger>) -> Vec<Trigger> {
    heard.retain(|trigger| {
        let found = again.iter().position(|other| other == trigger);
        found.map(|at| again.swap_remove(at)).is_some()
    });
    heard
}

/// Findings compared with expectations.
#[derive(Default)]
struct Checks {
    /// The current step.
    open: Option<String>,
    wrong: Vec<String>,
    bad: usize,
}

impl Checks {
    /// Begins a step.
    fn step(&mut self, name: &str, what: &str) {
        self.close();
        self.open = Some(format!("{name:<18}{what}"));
    }

    fn that(&mut self, what: &str, found: &Value, expected: &Value) {
        if found != expected {
            self.wrong.push(format!("{what}: {found}\n        instead of {expected}"));
        }
    }

    fn close(&mut self) {
        if let Some(step) = self.open.take() {
            println!("{} {step}", if self.wrong.is_empty() { "ok   " } else { "WRONG" });
        }
        for text in self.wrong.drain(..) {
            println!("      {text}");
            self.bad += 1;
        }
    }

    /// Returns whether all checks passed.
    fn end(mut self) -> bool {
        self.close();
        self.bad == 0
    }
}

/// All observable records of a task.
struct TaskRecords {
    task: Value,
    timeline: Value,
    /// Oldest first, with their decisions.
    handoffs: Vec<Value>,
    /// The answer to each, in the same order.
    answers: Vec<Value>,
    /// The stored decisions.
    thoughts: Vec<Value>,
    jobs: BTreeMap<String, Value>,
    reports: Vec<Value>,
    calls: Vec<Value>,
    audit: Vec<Value>,
    made: Vec<Made>,
    /// The checkpoints of the run, each with its trace.
    checkpoints: Vec<Value>,
    /// The pull requests of the task.
    offered: Vec<Value>,
}

impl TaskRecords {
    async fn gather(stage: &Stage, task: &str) -> Self {
        let (world, pool) = (&stage.world, &stage.world.pool);
        let path = format!("/v1/projects/{}/handoffs?task_id={task}", world.project);
        let mut handoffs = stage.list(&path).await;
        handoffs.reverse();
        let jobs = "SELECT u.key, j.payload, j.base_commit, j.result, j.trace_id FROM jobs j JOIN work_units u USING (unit_id)
            WHERE j.task_id = $1 AND j.evidence_id IS NULL";
        let jobs = rows(pool, jobs, task).await.into_iter();
        let keyed = |job: Value| (job["key"].as_str().unwrap().to_owned(), job);
        let mut answers = Vec::new();
        for handoff in &handoffs {
            let id = handoff["handoff_id"].as_str().unwrap();
            answers.push(world.get(&format!("/v1/handoffs/{id}")).await["answer"].take());
        }
        let thoughts = "SELECT t.kind, t.cost_micros, t.latency_ms, t.trace_id, t.model_call_ids, t.validation_errors FROM think_calls t
            JOIN handoffs h USING (handoff_id) WHERE t.task_id = $1 ORDER BY handoff_id, step";
        let checkpoints = "SELECT trace_id FROM workflow_checkpoints WHERE task_id = $1
            UNION ALL SELECT trace_id FROM workflow_transitions WHERE task_id = $1";
        let mut offered =
            stage.list(&format!("/v1/projects/{}/pull-requests", world.project)).await;
        offered.retain(|it| it["task_id"] == task);
        Self {
            offered,
            task: world.get(&format!("/v1/tasks/{task}")).await,
            timeline: world.get(&format!("/v1/tasks/{task}/timeline")).await,
            handoffs,
            answers,
            thoughts: rows(pool, thoughts, task).await,
            jobs: jobs.map(keyed).collect(),
            reports: stage.list(&format!("/v1/tasks/{task}/reports")).await,
            calls: stage.list(&format!("/v1/usage/calls?task_id={task}")).await,
            audit: stage.list(&format!("/v1/audit?task_id={task}&limit=1000")).await,
            made: commits(stage, task).await,
            checkpoints: rows(pool, checkpoints, task).await,
        }
    }

    /// Returns kind and answer of each decision of a handoff.
    fn decisions_of(&self, handoff: usize) -> Value {
        let thoughts = self.handoffs.get(handoff).and_then(|it| it["decisions"].as_array());
        let thoughts = thoughts.into_iter().flatten();
        thoughts.map(|it| json!([it["kind"], it["output"]])).collect()
    }

    fn answer(&self, handoff: usize) -> &Value {
        self.answers.get(handoff).unwrap_or(&Value::Null)
    }

    /// Returns the reports of agents: author, subject and content.
    fn reported(&self) -> Value {
        let told = |it: &Value| json!({ "by": it["agent_role"], "unit": it["unit"], "kind": it["kind"], "summary": it["summary"], "details": it["details"] });
        self.reports.iter().map(told).collect()
    }

    /// Returns the job input of a unit.
    fn work(&self, unit: &str) -> &Value {
        self.jobs.get(unit).map_or(&Value::Null, |job| &job["payload"]["unit"]["work"])
    }
}

/// The handoffs of the example, in order: the analyst's part comes before the second half of the handoff that it belongs to.
const PLAN: usize = 0;
const BUILD: usize = 1;
const BUILT: usize = 2;
const ANALYSED: usize = 3;
const LOOK: usize = 4;
const LOOKED: usize = 5;
const END: usize = 6;

#[expect(clippy::too_many_lines, reason = "eleven steps, one after the other")]
fn eleven_steps(stage: &Stage, seen: &TaskRecords, checks: &mut Checks) {
    let sample = &stage.sample;
    let said = |kind: &str| json!([kind, sample.answers[kind].answer]);
    let kinds: Value =
        seen.handoffs.iter().map(|it| json!([it["kind"], it["role"], it["state"]])).collect();
    let manager = |kind: &str| json!([kind, "project_manager", "done"]);

    checks.step(" 1 receives", "the words are kept as they were given");
    checks.that(
        "S004-148, B004-56: description (B004-56)",
        &seen.task["description"],
        &json!(WORDS),
    );
    let all = json!([
        manager("plan"),
        manager("dispatch"),
        manager("verify"),
        ["analyse", "project_analyst", "done"],
        manager("dispatch"),
        manager("verify"),
        manager("summarise"),
    ]);
    checks.that("S001-19, S001-21: handoffs", &kinds, &all);
    let roles: Value =
        seen.jobs.values().map(|it| it["payload"]["unit"]["work"]["role"].clone()).collect();
    checks.that(
        "S004-121: the roles of the jobs, without a project manager",
        &roles,
        &json!(["developer", "reviewer"]),
    );

    let planned = seen.answer(PLAN);
    checks.step(" 2 classifies", "a feature request");
    checks.that("S004-149: first thought", &seen.decisions_of(PLAN)[0], &said("classify"));
    checks.that("S004-149: class", &planned["class"], &json!("feature_request"));

    checks.step(
        " 3 gathers",
        "architecture, paths and patterns from CLAUDE.md, and asks no model for them",
    );
    checks.that("S004-150: project", &planned["project"], &learned(&sample.words));
    let read: Vec<_> = tools(seen, "project_manager");
    checks.that("tools of the manager", &json!(read), &json!(MANAGERS_TOOLS));

    checks.step(" 4 assesses", "small");
    let thoughts = json!([said("classify"), said("assess_scope"), said("plan")]);
    checks.that("thoughts (X-10)", &seen.decisions_of(PLAN), &thoughts);
    checks.that("S004-151: scope", &planned["scope"], &json!("small"));

    checks.step(" 5 plans", "no architect: implementation, then review");
    let steps = planned["plan"]["steps"].as_array().into_iter().flatten();
    let steps: Value =
        steps.map(|it| json!([it["key"], it["payload"]["kind"], it["depends_on"]])).collect();
    checks.that(
        "S004-152: units",
        &steps,
        &json!([[UNIT, "implementation", []], ["review", "review", [UNIT]]]),
    );
    checks.that("edges", &edges(&seen.timeline), &json!([[UNIT, []], ["review", [UNIT]]]));

    checks.step(" 6 sends", "a developer: the fixer, the fast tier, with task, files and pattern");
    checks.that(
        "assignment",
        &seen.answer(BUILD)["assignments"],
        &json!([{ "unit": UNIT, "work": seen.work(UNIT) }]),
    );
    let work = building(&sample.workers["fixer"]);
    checks.that("S004-084, S004-100, S004-153: work", seen.work(UNIT), &work);

    let files = json!({ "files_modified": FILES, "artifacts": [], "notes": [] });
    let summary = "Added toggle with localStorage persistence";
    checks.step(" 7 hears", "work_completed, with the files and a summary");
    let built = json!({ "by": "developer", "unit": UNIT, "kind": "work_completed", "summary": summary, "details": files });
    checks.that(
        "S004-154, B004-17: first report of a developer (B004-17)",
        &seen.reported()[0],
        &built,
    );
    checks.that(
        "the analyst's thoughts",
        &seen.decisions_of(ANALYSED),
        &json!([said("review_artifact")]),
    );
    // The project's own commands run over the change and over the base: this machine has no such program.
    let unable = |command: &str| {
        let text =
            format!("the check `{command}` does not hold, and did not before the change either");
        json!({ "severity": "minor", "text": text })
    };
    let noted = json!([unable("dotnet build"), unable("dotnet test")]);
    let good = json!({ "answer": "judged", "outcome": "accept", "findings": noted, "recommended_actions": [],
        "note": "an analyst found it good", "by_person": false });
    checks.that("judgement", seen.answer(BUILT), &good);

    checks.step(" 8 sends", "a reviewer, with context, who begins where the developer ended");
    checks.that(
        "assignment",
        &seen.answer(LOOK)["assignments"],
        &json!([{ "unit": "review", "work": seen.work("review") }]),
    );
    let work = reviewing(&sample.workers["reviewer"]);
    checks.that("S004-155: work", seen.work("review"), &work);
    let made = seen.made.first().map(|it| it.commit.as_str());
    checks.that(
        "where it begins",
        &seen.jobs.get("review").unwrap_or(&Value::Null)["base_commit"],
        &json!(made),
    );

    let minor = "Consider adding transition animation";
    checks.step(" 9 hears", "review_approved, with one minor issue");
    let told = "The toggle follows the pattern and the choice is kept.";
    let issue = json!({ "description": minor, "file_location": "", "how_to_fix": "" });
    let details = json!({ "verdict": "approved", "critical_issues": [], "major_issues": [], "minor_issues": [issue], "summary": told });
    let looked = json!({ "by": "reviewer", "unit": "review", "kind": "review_approved", "summary": told, "details": details });
    checks.that("S004-106, S004-156: all reports", &seen.reported(), &json!([built, looked]));

    let finding = json!({ "severity": "minor", "text": minor });
    checks.step("10 considers", "tests are not needed");
    let chosen = json!([said("choose_tests")]);
    checks.that("S004-157: thoughts", &seen.decisions_of(LOOKED), &chosen);
    let good = json!({ "answer": "judged", "outcome": "accept", "findings": [finding], "recommended_actions": [],
        "note": "the review found it good; no tests are needed: Small UI change, manual test sufficient", "by_person": false });
    checks.that("S004-157: judgement", seen.answer(LOOKED), &good);

    checks.step(
        "11 delivers",
        "one commit of the two files on a branch of its own, and a pull request by the project manager",
    );
    checks.that("S001-19, S004-159: state", &seen.task["state"], &json!("completed"));
    checks.that("last thought", &seen.decisions_of(END), &json!([said("summarise")]));
    let words = sample.answers["summarise"].answer["summary"].as_str().unwrap_or_default();
    let counted = "2 units done:\n- Add dark mode toggle to settings\n- Review the change";
    let offered = seen.offered.first().unwrap_or(&Value::Null);
    let named = format!("Pull request #{}", offered["number"]);
    let summary = format!("{words}\n\n{counted}\n\n{named}");
    checks.that("summary", &seen.timeline["summary"], &json!(summary));
    checks.that("commits", &delivered(stage, seen), &expected_commits(&sample.workers["fixer"]));
    checks.that("pull requests (X-23)", &json!(seen.offered.len()), &json!(1));
    let done = "- Add dark mode toggle to settings\n- Review the change";
    let unable = |command| {
        format!(
            "- minor: the check `{command}` does not hold, and did not before the change either"
        )
    };
    let noted = format!("{}\n{}\n- minor: {minor}", unable("dotnet build"), unable("dotnet test"));
    let body = format!("{words}\n\n## What was done\n\n{done}\n\n## What was noted\n\n{noted}");
    let shown = json!([
        offered["state"],
        offered["forge"],
        offered["title"],
        offered["body"],
        offered["task_id"]
    ]);
    let expected = json!(["open", "local", WORDS, body, seen.task["id"]]);
    checks.that(
        "S004-152, S004-159, X-23: pull request at the local forge (X-23)",
        &shown,
        &expected,
    );
    let id = seen.task["id"].as_str().unwrap_or_default();
    let says =
        format!("{WORDS}\n\n{body}\n\nCyNode-Task: {id}\nSigned-off-by: CyNode <cynode@localhost>");
    let branch = json!({ "over": 1, "from main": true, "tree of the work": true, "says": says });
    checks.that("branch", &on_branch(stage, seen, offered), &branch);
}

/// Returns the content of a pull request's branch.
fn on_branch(stage: &Stage, seen: &TaskRecords, offered: &Value) -> Value {
    let repository = stage.world.repository(&stage.world.project);
    let run = |arguments: &[&str]| git(&repository, arguments).unwrap_or_default();
    let branch = format!("refs/heads/{}", offered["branch"].as_str().unwrap_or_default());
    let made = seen.made.first().map(|it| it.commit.clone()).unwrap_or_default();
    let tree = |commit: &str| run(&["rev-parse", &format!("{commit}^{{tree}}")]);
    let over = run(&["rev-list", "--count", &format!("refs/heads/main..{branch}")]);
    let parent = run(&["rev-parse", &format!("{branch}^")]);
    json!({
        "over": over.parse::<i64>().ok(),
        "from main": parent == run(&["rev-parse", "refs/heads/main"]),
        "tree of the work": tree(&branch) == tree(&made),
        "says": run(&["log", "--format=%B", "-1", &branch]),
    })
}

/// Returns the project facts that follow from its own text.
fn learned(words: &str) -> Value {
    json!({
        "claude_md": words,
        "architecture": "Three layers: Core knows nothing, Infrastructure knows Core, App knows both.",
        "key_paths": { "Pages/": "what people see, one file a page", "Shared/": "parts that several pages use" },
        "patterns": {
            "Toggles": "a `Toggle` with a bound value, as in `Pages/Preferences.razor`",
            "Settings": "kept in the local storage of the browser",
        },
        "build_commands": ["dotnet build", "dotnet test"],
    })
}

/// Returns the project context that every role gets.
fn surroundings(rest: Value) -> Value {
    let Value::Object(mut context) = learned("") else { return Value::Null };
    context.remove("claude_md");
    context.remove("build_commands");
    context["patterns"]["build and test"] = json!("dotnet build; dotnet test");
    context.insert(
        "requirements".into(),
        json!(["The settings page has a toggle for dark mode", "The choice outlives the session"]),
    );
    if let Value::Object(rest) = rest {
        context.extend(rest);
    }
    Value::Object(context)
}

fn building(worker: &Value) -> Value {
    let context = surroundings(json!({
        "task_summary": format!("Add dark mode toggle to settings (The whole task: {WORDS})"),
        "files_to_modify": FILES,
        "files_to_read_first": ["Pages/Preferences.razor"],
        "pattern_reference": "Follow existing toggle in Pages/Preferences.razor",
        "constraints": ["The choice is kept in the local storage"],
    }));
    work("developer", worker, &context, "required")
}

fn reviewing(worker: &Value) -> Value {
    let form = "Report `review_approved` or `review_changes_requested` with `details` of this form: {\"critical_issues\": [], \
        \"major_issues\": [], \"minor_issues\": [], \"summary\": \"\"}; an issue is {\"description\": \"\", \"file_location\": \
        \"path:line\", \"how_to_fix\": \"\"}. Critical must be mended, major should be, minor could be.";
    let context = surroundings(json!({
        "task_summary": format!("Judge the change in this workspace. It was made for: {WORDS}"),
        "files_to_read_first": FILES,
        "constraints": ["The choice is kept in the local storage", form],
    }));
    work("reviewer", worker, &context, "never")
}

fn work(role: &str, worker: &Value, context: &Value, commit: &str) -> Value {
    json!({ "role": role, "worker": worker, "context": context, "models": ["cynodeai.fast"], "sandbox": {}, "placement": {}, "commit": commit })
}

/// Returns the dependencies between units.
fn edges(timeline: &Value) -> Value {
    let units = timeline["units"].as_array().into_iter().flatten();
    units.map(|unit| json!([unit["key"], unit["depends_on"]])).collect()
}

/// Returns the tools that an agent called successfully, in order.
fn tools(seen: &TaskRecords, role: &str) -> Vec<String> {
    let called = |it: &&Value| it["agent_role"] == role && it["outcome"] == "success";
    let called = seen.audit.iter().rev().filter(called);
    called.filter_map(|it| it["tool"].as_str().map(str::to_owned)).collect()
}

/// Returns the content of the repository: for each commit its unit, its number of commits over the base, and its changed files,
/// whole.
fn delivered(stage: &Stage, seen: &TaskRecords) -> Value {
    let repository = stage.world.repository(&stage.world.project);
    let run = |arguments: &[&str]| git(&repository, arguments).unwrap_or_default();
    let main = run(&["rev-parse", "refs/heads/main"]);
    let told = seen.made.iter().map(|Made { unit, commit, base, over, .. }| {
        let changed = run(&["diff", "--name-status", base, commit]);
        let file = |line: &str| {
            let (how, path) = line.split_once('\t').unwrap_or_default();
            json!([how, path, run(&["show", &format!("{commit}:{path}")])])
        };
        let files: Value = changed.lines().map(file).collect();
        json!({ "unit": unit, "over": over, "from main": *base == main, "files": files })
    });
    told.collect()
}

/// Returns the result of the worker's moves on the two files, and nothing else.
fn expected_commits(worker: &Value) -> Value {
    let moves = worker["moves"].as_array().map_or(&[][..], Vec::as_slice);
    let written = |path: &str| {
        let of = moves.iter().find(|it| it["move"] == "write" && it["path"] == path);
        of.and_then(|it| it["text"].as_str()).unwrap_or_default().trim()
    };
    let files: Value = FILES.into_iter().map(|path| json!(["M", path, written(path)])).collect();
    json!([{ "unit": UNIT, "over": 1, "from main": true, "files": files }])
}

/// Checks what the project manager did itself, and what it had done.
fn manager_part(seen: &TaskRecords, checks: &mut Checks) {
    checks.step("   manager", "decides all, asks tools, and has the rest done by jobs");
    let answers = seen.handoffs.iter().zip(&seen.answers);
    let answers: Value =
        answers.map(|(handoff, answer)| json!([handoff["kind"], answer["answer"]])).collect();
    let expected = json!([
        ["plan", "planned"],
        ["dispatch", "assigned"],
        ["verify", "judged"],
        ["analyse", "analysed"],
        ["dispatch", "assigned"],
        ["verify", "judged"],
        ["summarise", "summarised"],
    ]);
    checks.that("S000-009, S000-015, S000-039: what was asked and answered", &answers, &expected);
    let called = json!(tools(seen, "project_manager"));
    checks.that("S000-015: tools of the manager", &called, &json!(MANAGERS_TOOLS));

    let assigned = [BUILD, LOOK].into_iter();
    let assigned: Value = assigned
        .flat_map(|it| seen.answer(it)["assignments"].as_array().into_iter().flatten())
        .map(|it| json!([it["unit"], it["work"]]))
        .collect();
    let jobs: Value =
        seen.jobs.iter().map(|(unit, job)| json!([unit, job["payload"]["unit"]["work"]])).collect();
    checks.that("S000-006: jobs, and what the manager assigned", &jobs, &assigned);

    let used: BTreeSet<String> = seen
        .thoughts
        .iter()
        .flat_map(|it| it["model_call_ids"].as_array().into_iter().flatten())
        .filter_map(|it| it.as_str().map(|id| format!("cal_{}", id.replace('-', ""))))
        .collect();
    let outside: Value = seen
        .calls
        .iter()
        .filter(|it| !it["call_id"].as_str().is_some_and(|id| used.contains(id)))
        .cloned()
        .collect();
    let what = "S000-007, S000-009, S000-027: model calls that belong to no handoff";
    checks.that(what, &outside, &json!([]));
    let ended = json!([seen.task["state"], seen.work(UNIT)["models"]]);
    let expected = json!(["completed", ["cynodeai.fast"]]);
    checks.that("S000-039: how the task ended, and the model of its work", &ended, &expected);
}

/// Checks the stored records: calls, costs, traces, tool calls.
fn records(seen: &TaskRecords, checks: &mut Checks) {
    let texts = |rows: &[Value], field: &str| -> BTreeSet<String> {
        rows.iter().filter_map(|row| row[field].as_str().map(str::to_owned)).collect()
    };
    checks.step("   calls", "as many model calls as thoughts rest on, and the same");
    let hex = |it: &Value| it.as_str().map(|id| format!("cal_{}", id.replace('-', "")));
    let used =
        seen.thoughts.iter().flat_map(|it| it["model_call_ids"].as_array().into_iter().flatten());
    let used: Vec<String> = used.filter_map(hex).collect();
    checks.that("S004-004: how many", &json!([used.len(), seen.calls.len()]), &json!([6, 6]));
    let used: BTreeSet<String> = used.into_iter().collect();
    checks.that("which", &json!(used), &json!(texts(&seen.calls, "call_id")));
    checks.that("how they ended", &json!(texts(&seen.calls, "outcome")), &json!(["answered"]));

    checks.step("   thoughts", "each with its cost, its time and no complaint");
    let poor = |it: &&Value| {
        it["cost_micros"].as_i64() < Some(1)
            || it["latency_ms"].as_i64() < Some(1)
            || it["validation_errors"] != json!([])
    };
    let poor: Vec<_> = seen.thoughts.iter().filter(poor).collect();
    checks.that("S004-164: without", &json!(poor), &json!([]));
    let sum = |rows: &[Value]| rows.iter().filter_map(|it| it["cost_micros"].as_i64()).sum::<i64>();
    let costs = json!([sum(&seen.thoughts), sum(&seen.handoffs), seen.timeline["cost_micros"]]);
    let cost = sum(&seen.calls);
    checks.that("S004-164: costs", &costs, &json!([cost, cost, cost]));

    checks.step("   tool calls", "each is in the records, before and after");
    let of_roles: Value = ["project_manager", "project_analyst", "developer", "reviewer"]
        .into_iter()
        .map(|role| json!([role, tools(seen, role)]))
        .collect();
    let expected = json!([
        ["project_manager", MANAGERS_TOOLS],
        ["project_analyst", ["verification.record"]],
        ["developer", ["pm.report"]],
        ["reviewer", ["pm.report"]],
    ]);
    let label = "S001-60, X-23: tools of every agent, in order, the pull request's among them";
    checks.that(label, &of_roles, &expected);
    checks.that("records", &json!(seen.audit.len()), &json!(14));
    checks.that("decisions", &json!(texts(&seen.audit, "decision")), &json!(["allow"]));

    checks.step("   trace", "one, everywhere");
    let trace = json!([seen.timeline["trace_id"]]);
    let jobs: Vec<Value> = seen.jobs.values().cloned().collect();
    let places = [
        ("handoffs", &seen.handoffs),
        ("thoughts", &seen.thoughts),
        ("model calls", &seen.calls),
        ("tool calls", &seen.audit),
        ("jobs", &jobs),
        ("checkpoints", &seen.checkpoints),
    ];
    for (name, rows) in places {
        let what =
            format!("S001-19, S001-20, S001-69, X-15, B001-23: trace of {name} (X-15, B001-23)");
        checks.that(&what, &json!(texts(rows, "trace_id")), &trace);
    }
}

/// Checks who took part in the steps of the workflow.
fn workflow(seen: &TaskRecords, heard: &[Trigger], checks: &mut Checks) {
    checks.step("   workflow", "its steps ask the manager, and the manager asks the analyst");
    let asked: Value = seen.handoffs.iter().map(|it| json!([it["kind"], it["role"]])).collect();
    let manager = |kind: &str| json!([kind, "project_manager"]);
    let expected = json!([
        manager("plan"),
        manager("dispatch"),
        manager("verify"),
        ["analyse", "project_analyst"],
        manager("dispatch"),
        manager("verify"),
        manager("summarise"),
    ]);
    checks.that("S002-01, S002-29, S002-32, S002-42, S002-65: who is asked", &asked, &expected);
    let sent = |by: &str| heard.iter().any(|trigger| trigger.message.starts_with(by));
    let senders = json!([sent("manager:"), sent("analyst:"), sent("checkpoint:")]);
    let all = json!([true, true, true]);
    checks.that("S002-51: manager, analyst and runner send by themselves", &senders, &all);
}
