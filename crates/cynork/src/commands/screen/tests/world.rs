//! An installation to look at, made of what a server would answer.

#![expect(clippy::needless_pass_by_value, reason = "values are written where they are given")]

use cynode_core::ids::{ApprovalId, JobId, ProjectId, PullRequestId, TaskId, WaitId};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use super::{FetchTopic, NOW, Stage, TopicAnswer};
use crate::{client::ListResponse, commands::screen::message::ScreenMessage};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value:#}"))
}

/// A time, seconds before all is looked at.
pub(super) fn ago(seconds: i64) -> String {
    at(NOW - Duration::seconds(seconds))
}

fn at(time: OffsetDateTime) -> String {
    time.format(&Rfc3339).unwrap()
}

pub(super) fn task_id(number: u128) -> TaskId {
    format!("{}_{:032x}", TaskId::PREFIX, number).parse().unwrap()
}

pub(super) fn project_id(number: u128) -> ProjectId {
    format!("{}_{:032x}", ProjectId::PREFIX, number).parse().unwrap()
}

pub(super) fn job_id(number: u128) -> JobId {
    format!("{}_{:032x}", JobId::PREFIX, number).parse().unwrap()
}

pub(super) fn approval_id(number: u128) -> ApprovalId {
    format!("{}_{:032x}", ApprovalId::PREFIX, number).parse().unwrap()
}

pub(super) fn wait_id(number: u128) -> WaitId {
    format!("{}_{:032x}", WaitId::PREFIX, number).parse().unwrap()
}

/// The plan that a task waits with from the beginning.
pub(super) fn plan_of(number: u128) -> FetchTopic {
    FetchTopic::Plan(project_id(1), task_id(number), wait_id(number))
}

pub(super) fn pull_request_id() -> PullRequestId {
    format!("{}_{:032x}", PullRequestId::PREFIX, 1_u128).parse().unwrap()
}

pub(super) fn me() -> TopicAnswer {
    TopicAnswer::Me(Box::new(read(json!({
        "user": {
            "id": "usr_00000000000000000000000000000001", "handle": "ada", "display_name": "Ada", "email": null,
            "role": "admin", "active": true, "created_at": ago(1_000_000),
        },
        "installation_role": "admin",
    }))))
}

pub(super) fn projects() -> TopicAnswer {
    let project = |number: u128, slug: &str| {
        json!({
            "id": project_id(number), "slug": slug, "title": slug, "description": null,
            "created_by": "usr_00000000000000000000000000000001", "created_at": ago(900_000),
        })
    };
    TopicAnswer::Projects(read(json!([project(1, "web"), project(2, "slug")])))
}

pub(super) fn task(number: u128, name: &str, state: &str, words: &str) -> Value {
    let created = 40 * (31 - i64::try_from(number).unwrap()).pow(3);
    let mut task = json!({
        "id": task_id(number), "project_id": project_id(1 + number % 2), "name": name, "description": words,
        "acceptance_criteria": [{ "text": "its tests hold", "check": { "argv": ["sh", "tests/all.sh"] } }],
        "budget": { "max_cost_micros": 500_000, "max_tokens": null },
        "state": state, "depends_on": [], "created_by": "usr_00000000000000000000000000000001",
        "created_at": ago(created), "updated_at": ago(created),
    });
    match state {
        "running" => task["started_at"] = ago(created - 2).into(),
        "completed" | "failed" | "cancelled" => task["ended_at"] = ago(created / 2).into(),
        _ => {}
    }
    if state == "failed" {
        task["failure"] = "the plan could not be carried out".into();
    }
    task
}

const WORDS: [(&str, &str); 10] = [
    ("dark-mode", "Add a dark mode switch that remembers what was chosen."),
    ("slug-max", "Add an option --max LENGTH to slug: no name is longer."),
    ("fix-login", "The login page forgets where one came from; go back there."),
    ("csv-export", "Let reports be taken away as CSV, with the columns that are shown."),
    ("rate-limit", "Refuse more than ten calls a second of one key, in words."),
    ("faster-search", "Search takes two seconds with 10,000 notes. It should take 0.2."),
    ("upgrade-axum", "Upgrade axum to its newest version."),
    ("typo-readme", "The README says “recieve”."),
    ("invoice-pdf", "Write invoices as PDF/A."),
    ("gräßlich-größer", "Umlaute in Überschriften: größer zeigen, 漢字 auch."),
];

/// Thirty tasks in every state.
pub(super) fn tasks() -> TopicAnswer {
    let states =
        ["completed", "running", "completed", "failed", "queued", "completed", "cancelled"];
    let items: Vec<Value> = (1..=30_u128)
        .rev()
        .map(|number| {
            let place = usize::try_from(number).unwrap();
            let (name, words) = WORDS[place % 10];
            let state = if number == 30 { "running" } else { states[place % 7] };
            let name = name.replace(|letter: char| !letter.is_ascii(), "o");
            task(number, &format!("{name}-{number}"), state, words)
        })
        .collect();
    TopicAnswer::Tasks(ListResponse { items: read(json!(items)), next_cursor: None })
}

pub(super) fn some_tasks(items: &[Value]) -> TopicAnswer {
    TopicAnswer::Tasks(ListResponse { items: read(json!(items)), next_cursor: None })
}

pub(super) fn costs() -> TopicAnswer {
    let sum = |number: u128| {
        json!({ "key": task_id(number), "calls": 9, "failed": 0, "input_tokens": 12_000, "cached_tokens": 0,
            "output_tokens": 900, "cost_micros": 3_456 * number })
    };
    TopicAnswer::Sums(read(json!((1..=30).map(sum).collect::<Vec<_>>())))
}

fn unit(key: &str, title: &str, after: &[&str], state: &str, attempts: u32) -> Value {
    json!({ "key": key, "title": title, "depends_on": after, "state": state, "attempts": attempts, "findings": [] })
}

/// A plan of seven units, in the middle of it.
pub(super) fn seven_units() -> Value {
    let mut units = vec![
        unit("design", "Decide how the switch looks and where it is kept", &[], "done", 1),
        unit("store", "Keep what was chosen", &["design"], "done", 2),
        unit("api", "Tell the page what was chosen", &["design"], "collected", 1),
        unit("page", "Show the switch", &["design"], "dispatched", 2),
        unit("sync", "Keep it the same on all devices", &["store", "api"], "pending", 0),
        unit("view", "Colours for the dark", &["api", "page"], "pending", 0),
        unit("tests", "Tests for all of it", &["sync", "view"], "pending", 0),
    ];
    units[3]["findings"] = json!([{ "severity": "major", "text": "the switch cannot be reached by keyboard",
        "at": "src/switch.tsx:12", "how_to_fix": null }]);
    json!(units)
}

fn step(sequence: i64, node: &str, verdict: &str, unit: Option<&str>, note: Option<&str>) -> Value {
    json!({ "sequence": sequence, "node": node, "verdict": verdict, "unit": unit, "attempt": 1, "actor": "runner",
        "duration_ms": 120, "cost_micros": 900, "note": note, "at": ago(400 - sequence * 37) })
}

fn job(number: u128, unit: &str, attempt: u32, state: &str, times: (i64, Option<i64>)) -> Value {
    let (begun, ended) = times;
    json!({ "job_id": job_id(number), "unit": unit, "attempt": attempt, "state": state, "worker": "node-1",
        "queued_at": ago(begun + 1), "started_at": ago(begun), "ended_at": ended.map(ago) })
}

/// The story of a task that runs.
pub(super) fn timeline(number: u128) -> Value {
    json!({
        "task_id": task_id(number), "run_id": "run_00000000000000000000000000000001",
        "trace_id": "0af7651916cd43dd8448eb211c80319c", "state": "running", "node": "collect_result",
        "standing": "works at collecting results", "retries_used": 1, "cost_micros": 103_680,
        "steps": [
            step(1, "load_task_context", "pass", None, None),
            step(2, "plan_steps", "pass", None, None),
            step(3, "dispatch_step", "pass", Some("design"), None),
            step(4, "verify_step_result", "pass", Some("design"), None),
            step(5, "collect_result", "wait", Some("store"), Some("a job is out")),
            step(6, "verify_step_result", "redo", Some("page"),
                Some("the check `sh tests/switch.sh` does not hold (exit code 1, expected 0):\nnot ok 3")),
            step(7, "dispatch_step", "pass", Some("page"), None),
        ],
        "waits": [
            { "wait_id": wait_id(101), "reason": "approval", "owner": "person", "question": "May this plan be carried out?",
              "opened_at": ago(325), "resolved_at": ago(301), "resolution": "approved", "answer": "Yes, but keep it small." },
            { "wait_id": wait_id(102), "reason": "job", "owner": "worker", "opened_at": ago(220), "resolved_at": ago(180), "resolution": "done" },
            { "wait_id": wait_id(103), "reason": "job", "owner": "worker", "opened_at": ago(30) },
        ],
        "units": seven_units(),
        "jobs": [
            job(1, "design", 1, "succeeded", (300, Some(262))),
            job(2, "page", 1, "succeeded", (250, Some(205))),
            job(3, "page", 1, "failed", (204, Some(200))),
            job(4, "page", 2, "running", (42, None)),
        ],
        "mermaid": "", "plan_mermaid": "",
    })
}

/// The same, delivered.
pub(super) fn delivered(number: u128) -> Value {
    let mut timeline = timeline(number);
    timeline["state"] = "completed".into();
    timeline["standing"] = "completed".into();
    timeline["summary"] = "The switch is there and remembers.".into();
    for unit in timeline["units"].as_array_mut().unwrap() {
        unit["state"] = "done".into();
    }
    timeline["pull_request"] = json!({ "id": pull_request_id(), "number": 7, "url": "", "state": "open",
        "title": "Add a dark mode switch", "branch": "cynode/dark-mode-30", "commit": "0123456789abcdef0123" });
    timeline
}

pub(super) fn story(timeline: Value) -> TopicAnswer {
    TopicAnswer::Timeline(Box::new(read(timeline)))
}

pub(super) fn log() -> TopicAnswer {
    let event = |number: u64, at_ms: u64, event: &str, data: Value| json!({ "number": number, "at": ago(40), "at_ms": at_ms, "event": event, "data": data });
    let events = json!([
        event(0, 0, "phase", json!({ "phase": "preparing_workspace" })),
        event(1, 900, "message", json!({ "text": "I read src/switch.tsx and its tests." })),
        event(
            2,
            2_100,
            "tool",
            json!({ "call": "1", "title": "Run tests", "status": "in_progress",
            "input": { "argv": ["sh", "tests/switch.sh"] } })
        ),
        event(
            3,
            2_300,
            "output",
            json!({ "stream": "stdout",
            "text": "\u{1b}[32mok 1\u{1b}[0m a switch is there\n\u{1b}[31mnot ok 3\u{1b}[0m it is reached by keyboard\n" })
        ),
        event(
            4,
            2_400,
            "output",
            json!({ "stream": "stderr", "text": "tests/switch.sh: 1 of 3 failed" })
        ),
        event(
            5,
            4_000,
            "message",
            json!({ "text": "The switch needs a role and a key handler, so that whoever uses \
            the keyboard only can turn it on and off as well as those with a mouse." })
        ),
        event(6, 65_000, "note", json!({ "text": "the agent is silent for a minute" })),
    ]);
    TopicAnswer::Log(read(events), false)
}

pub(super) fn files() -> TopicAnswer {
    let file = |path: &str, came: u64, went: u64| json!({ "path": path, "insertions": came, "deletions": went });
    TopicAnswer::Files(read(json!({ "base": "a", "head": "b", "truncated": false,
        "files": [file("src/switch.tsx", 5, 2), file("src/theme.css", 31, 0), file("tests/switch.sh", 12, 1)] })))
}

pub(super) fn diff() -> TopicAnswer {
    let text = "diff --git a/src/switch.tsx b/src/switch.tsx\nindex 1..2 100644\n--- a/src/switch.tsx\n+++ b/src/switch.tsx\n\
        @@ -8,7 +8,10 @@ export function Switch() {\n   const [dark, setDark] = useStored(\"dark\", false);\n   return (\n\
        -    <div className=\"switch\" onClick={() => setDark(!dark)}>\n-      {dark ? \"on\" : \"off\"}\n\
        +    <button\n+      role=\"switch\"\n+      aria-checked={dark}\n+      onClick={() => setDark(!dark)}>\n\
        +      {dark ? \"on\" : \"off\"}\n     </button>\n   );\n }\n";
    diff_of(text)
}

pub(super) fn diff_of(text: &str) -> TopicAnswer {
    TopicAnswer::Diff(read(json!({ "base": "a", "head": "b", "text": text, "truncated": false })))
}

pub(super) fn evidence() -> TopicAnswer {
    let check = |words: [&str; 2], tally: &str, exit: i32, said: &str| {
        json!({ "check": { "argv": words }, "tally": tally, "rounds": if tally == "flaky" { 3 } else { 1 },
            "exit_code": exit, "excerpt": said, "milliseconds": 412 })
    };
    let view = |attempt: u32, state: &str, stale: bool, checks: Value| {
        json!({ "evidence_id": format!("evd_{attempt:032x}"), "unit": "page", "attempt": attempt,
            "commit": "0123456789abcdef0123", "state": state, "stale": stale, "checks": checks, "attempts": 1,
            "opened_at": ago(200), "ended_at": ago(190) })
    };
    let failing = check(
        ["sh", "tests/switch.sh"],
        "failed",
        1,
        "ok 1 a switch is there\nnot ok 3 it is reached by keyboard\n",
    );
    TopicAnswer::Evidence(Box::new(read(json!({
        "evidence": [
            view(1, "failed", true, json!([check(["sh", "tests/all.sh"], "passed", 0, ""), failing])),
            view(2, "passed", false, json!([
                check(["sh", "tests/all.sh"], "passed", 0, ""), check(["sh", "tests/switch.sh"], "flaky", 0, "")])),
        ],
        "feedback": {
            "verdict": "approved", "critical_issues": [],
            "major_issues": [{ "description": "The switch is not told to screen readers", "file_location": "src/switch.tsx:12",
                "how_to_fix": "give it a label" }],
            "minor_issues": [{ "description": "A name could be shorter" }],
            "summary": "Works, one place, described.",
        },
    }))))
}

/// What waits: a plan, a question, a call; and a task that is paused.
pub(super) fn waiting(stage: &mut Stage) {
    let items = [
        task(
            24,
            "rate-limit-24",
            "running",
            "Refuse more than ten calls a second of one key, in words.",
        ),
        task(
            22,
            "fix-login-22",
            "running",
            "The login page forgets where one came from; go back there.",
        ),
        task(20, "invoice-pdf-20", "running", "Write invoices as PDF/A."),
    ];
    stage.answer(FetchTopic::Running, some_tasks(&items));
    for (number, reason, question) in [
        (24, "approval", "May this plan be carried out?"),
        (
            22,
            "human_input",
            "Go back to the page, or to the list it was opened from?\nBoth are possible.",
        ),
        (20, "paused", ""),
    ] {
        let mut story = timeline(number);
        story["units"] = json!([]);
        let opened = ago(i64::try_from(number).unwrap() * 10);
        story["waits"] = json!([{ "wait_id": wait_id(number), "reason": reason, "owner": "person",
            "question": question, "opened_at": opened }]);
        stage.answer(FetchTopic::Timeline(task_id(number)), super::world::story(story));
    }
    stage.answer(FetchTopic::Approvals, TopicAnswer::Approvals(read(json!([call()]))));
}

fn call() -> Value {
    json!({
        "approval_id": approval_id(1), "agent_token_id": "agt_00000000000000000000000000000001", "project_id": project_id(1),
        "task_id": task_id(22), "tool": "git.push", "arguments_digest": "5f1c", "policy_hash": "77aa",
        "rules": ["pushes-need-a-person"], "state": "asked", "asked_at": ago(60), "expires_at": ago(-1740),
    })
}

/// The call with its arguments, one of which hides something.
pub(super) fn looked_at() -> TopicAnswer {
    let mut call = call();
    call["arguments"] =
        json!({ "remote": "origin", "branch": "main\u{202e}txt.exe", "force": true });
    TopicAnswer::Approval(Box::new(read(call)))
}

/// A plan of one unit with a title.
pub(super) fn planned_anew(title: &str) -> TopicAnswer {
    TopicAnswer::Plan(Some(Box::new(read(json!({
        "plan": { "steps": [{ "key": "one", "title": title, "depends_on": [], "payload": {} }], "assumptions": [] },
        "class": "feature_request", "scope": "small", "project": {},
    })))))
}

pub(super) fn planned() -> TopicAnswer {
    let unit = |key: &str, title: &str, after: &[&str]| {
        json!({ "key": key, "title": title, "depends_on": after, "payload": {
            "kind": "implementation",
            "brief": { "files_to_modify": ["src/limit.rs"], "requirements": ["The eleventh call in a second is refused with 429"] },
            "checks": [{ "argv": ["cargo", "test", "limit"] }],
        } })
    };
    TopicAnswer::Plan(Some(Box::new(read(json!({
        "plan": { "steps": [
            unit("count", "Count the calls of each key", &[]),
            unit("refuse", "Refuse those that are too many, and say when to come back", &["count"]),
        ], "assumptions": ["A key is known before its call is counted"] },
        "class": "feature_request", "scope": "small", "project": {},
    })))))
}

pub(super) fn nodes() -> TopicAnswer {
    let node = |number: u128, name: &str, state: &str, alive: bool, jobs: u32, slots: u32| {
        json!({
            "node_id": format!("nod_{number:032x}"), "name": name, "state": state, "alive": alive, "started": true,
            "labels": ["linux", "fast"], "jobs": jobs, "joined_at": ago(500_000), "last_seen_at": ago(if alive { 3 } else { 900 }),
            "report": { "version": "0.1.0", "cores": 8, "memory_mib": 32_000, "disk_free_mib": 210_000, "slots": slots,
                "backends": [{ "backend": "bubblewrap", "version": "0.11.0" }, { "backend": "podman", "version": "5.4.2" }],
                "agents": [{ "agent": "goose", "version": "1.9.1" }], "facts": { "kernel": "6.12.0", "cgroups": "v2" } },
        })
    };
    TopicAnswer::Nodes(read(json!([
        node(1, "big-machine", "active", true, 3, 8),
        node(2, "laptop", "active", true, 2, 2),
        node(3, "old-server", "draining", true, 1, 4),
        node(4, "shed", "active", false, 0, 4),
    ])))
}

fn sum(key: Value, cost: i64, calls: i64) -> Value {
    json!({ "key": key, "calls": calls, "failed": calls / 20, "input_tokens": cost * 3, "cached_tokens": 0,
        "output_tokens": cost / 9, "cost_micros": cost })
}

pub(super) fn by_project() -> TopicAnswer {
    TopicAnswer::Sums(read(json!([
        sum(json!(project_id(1)), 4_512_300, 412),
        sum(json!(project_id(2)), 120_034, 31),
        sum(Value::Null, 2_000, 2)
    ])))
}

pub(super) fn by_model() -> TopicAnswer {
    TopicAnswer::Sums(read(json!([
        sum("deep-thinker".into(), 3_900_000, 120),
        sum("quick".into(), 734_334, 325)
    ])))
}

pub(super) fn budgets() -> TopicAnswer {
    let budget = |number: u128,
                  scope: &str,
                  id: Value,
                  period: &str,
                  most: Value,
                  spent: i64,
                  held: i64| {
        json!({ "budget_id": format!("bdg_{number:032x}"), "scope_type": scope, "scope_id": id, "period": period,
            "since": ago(40_000), "max_cost_micros": most, "max_tokens": 2_000_000, "spent_micros": spent, "reserved_micros": held,
            "spent_tokens": 350_000, "reserved_tokens": 0 })
    };
    TopicAnswer::Budgets(read(json!([
        budget(1, "installation", Value::Null, "month", 20_000_000.into(), 4_634_334, 40_000),
        budget(2, "project", json!(project_id(1)), "day", 5_000_000.into(), 4_512_300, 0),
        budget(
            3,
            "user",
            "usr_00000000000000000000000000000001".into(),
            "total",
            4_000_000.into(),
            4_634_334,
            0
        ),
        budget(4, "project", json!(project_id(2)), "total", Value::Null, 0, 0),
    ])))
}

/// An event, as the stream carries it.
pub(super) fn event(kind: &str, task: Option<u128>, data: Value) -> ScreenMessage {
    ScreenMessage::Heard(Box::new(read(json!({
        "id": "742.17", "kind": kind, "occurred_at": ago(0), "actor_id": null, "project_id": project_id(1),
        "task_id": task.map(task_id), "trace_id": "0af7651916cd43dd8448eb211c80319c", "data": data,
    }))))
}

pub(super) fn repository() -> TopicAnswer {
    TopicAnswer::Repository(Some(read(
        json!({ "project_id": project_id(2), "default_branch": "main",
        "head": "0123456789abcdef0123", "imported_at": ago(7200) }),
    )))
}

fn pull_request(number: u128, project: u128, state: &str, title: &str) -> Value {
    json!({ "id": format!("{}_{number:032x}", PullRequestId::PREFIX), "project_id": project_id(project),
        "task_id": task_id(30), "number": 6 + number, "forge": "local", "branch": format!("cynode/task-{number}"),
        "base_branch": "main", "base_commit": "aaaa", "head_commit": "bbbb", "title": title,
        "body": "The switch is a button with a role.\n\nIts state is kept in the browser.", "state": state,
        "url": "/pull/1", "created_at": ago(4000), "updated_at": ago(600 * i64::try_from(number).unwrap()) })
}

pub(super) fn pulls() -> TopicAnswer {
    TopicAnswer::Pulls(read(json!([
        pull_request(1, 1, "open", "Add a dark mode switch"),
        pull_request(2, 2, "merged", "Add an option --max to slug"),
        pull_request(3, 1, "failed", "Write invoices as PDF/A"),
    ])))
}

pub(super) fn pull() -> TopicAnswer {
    let mut pull = pull_request(1, 1, "open", "Add a dark mode switch");
    pull["checks"] =
        json!([{ "name": "evidence", "state": "passed", "summary": "2 of 2 checks hold" }]);
    pull["comments"] = json!([]);
    pull["reviews"] = json!([]);
    pull["deliveries"] = json!([]);
    pull["follow_ups"] = json!([]);
    TopicAnswer::Pull(Box::new(read(pull)))
}

pub(super) fn models() -> TopicAnswer {
    let model = |id: &str, tier: Value, project: Value, enabled: bool| {
        json!({ "id": id, "title": id, "tier": tier, "context_tokens": 200_000, "max_output_tokens": 8_000,
            "tools": true, "images": false, "json_schema": true, "skills": false, "enabled": enabled,
            "project_id": project, "routes": [{ "provider": "local", "upstream": format!("vendor/{id}"),
                "prices": { "input": 3_000_000, "cached": 300_000, "cache_write": 0, "output": 15_000_000 } }] })
    };
    TopicAnswer::Models(read(json!([
        model("deep-thinker", "deep".into(), Value::Null, true),
        model("quick", "fast".into(), json!(project_id(1)), true),
        model("retired", Value::Null, Value::Null, false),
    ])))
}
