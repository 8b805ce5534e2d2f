use cynode_core::{
    budget::Currency,
    environments::TestReportFormat,
    evidence::{
        EvidenceCheck,
        test_results::{TestReport, TestStatus, compare_reports},
    },
    workflow::{evidence::EvidenceState, waits::WaitReason},
};
use serde_json::json;
use time::macros::datetime;

use super::*;
use crate::format::format_amount;

const PLAIN: Colorizer = Colorizer(false);
const USD: Currency = Currency::USD;

const WAIT: &str = "wai_0192d5c8b6f07cc1a1a3c2b4d5e6f708";

#[test]
fn a_plan_is_a_tree_with_what_must_hold_and_what_shows_it() {
    let given = json!({
        "steps": [
            { "key": "add", "title": "Add it", "depends_on": [], "payload": {
                "kind": "implementation",
                "brief": { "files_to_modify": ["a", "b"], "requirements": ["It is there"] },
                "checks": [{ "argv": ["sh", "-c", "make test"] }],
            } },
            { "key": "doc", "title": "Describe it", "depends_on": ["add"], "payload": { "kind": "implementation" } },
            { "key": "review", "title": "Review the change", "depends_on": ["add", "doc"], "payload": { "kind": "review" } },
            { "key": "more", "title": "Something else", "depends_on": [], "payload": {} },
        ],
        "assumptions": ["It is wanted"],
    });
    let given: Plan = serde_json::from_value(given).unwrap();
    assert_eq!(
        render_plan(&given, PLAIN),
        [
            "├─ Add it",
            "│  │  kind   implementation",
            "│  │  files  a, b",
            "│  │  must   It is there",
            "│  │  check  make test",
            "│  └─ Describe it",
            "│     │  kind   implementation",
            "│     └─ Review the change",
            "│           kind   review",
            "└─ Something else",
            "assumed: It is wanted",
        ]
    );
}

fn result(
    line: &str,
    tally: CheckTally,
    rounds: u32,
    exit: Option<i32>,
    excerpt: &str,
) -> CheckResult {
    CheckResult {
        check: EvidenceCheck::from_shell_line(line),
        tally,
        rounds,
        exit_code: exit,
        sha256: String::new(),
        excerpt: excerpt.to_owned(),
        milliseconds: 12,
        repeated: false,
        tests: None,
    }
}

#[test]
fn evidence_is_a_table_in_which_what_failed_says_why() {
    let view = EvidenceView {
        evidence_id: "evd_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap(),
        unit: "add".parse().unwrap(),
        attempt: 1,
        commit: Some("0123456789abcdef".into()),
        state: EvidenceState::Failed,
        stale: false,
        checks: vec![
            result("make test", CheckTally::Failed, 2, Some(2), "one\n\ntwo\n"),
            result("ls", CheckTally::Passed, 1, Some(0), "never shown"),
            result("sleep 9", CheckTally::Failed, 2, None, ""),
        ],
        waived: None,
        error: Some("the machine was away".into()),
        attempts: 1,
        opened_at: datetime!(2026-01-01 0:00 UTC),
        ended_at: None,
    };
    assert_eq!(
        render_evidence(&view, PLAIN),
        [
            "evidence for attempt 1 of add, commit 0123456789: failed",
            "  ✗ failed  make test  exit 2, 12 ms, 2 runs",
            "      one",
            "      two",
            "  ✓ passed  ls         exit 0, 12 ms",
            "  ✗ failed  sleep 9    ended, 12 ms, 2 runs",
            "  the machine was away",
        ]
    );
    assert!(
        render_evidence(&view, Colorizer(true))[1].starts_with("  \u{1b}[31m✗ failed\u{1b}[0m")
    );
}

#[test]
fn results_per_test_stand_below_their_check() {
    let before = TestReport {
        tests: [("mended", TestStatus::Failed), ("gone", TestStatus::Passed)]
            .map(|(name, status)| (name.to_owned(), status))
            .into(),
        ..TestReport::new(TestReportFormat::Pytest)
    };
    let after = TestReport {
        tests: [("mended", TestStatus::Passed), ("new\u{1b}[31m", TestStatus::Passed)]
            .map(|(name, status)| (name.to_owned(), status))
            .into(),
        ..TestReport::new(TestReportFormat::Pytest)
    };
    let view = EvidenceView {
        evidence_id: "evd_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap(),
        unit: "add".parse().unwrap(),
        attempt: 1,
        commit: Some("0123456789abcdef".into()),
        state: EvidenceState::Passed,
        stale: false,
        checks: vec![CheckResult {
            tests: Some(compare_reports(Some(&before), &[&after])),
            ..result("pytest", CheckTally::Passed, 1, Some(0), "")
        }],
        waived: None,
        error: None,
        attempts: 1,
        opened_at: datetime!(2026-01-01 0:00 UTC),
        ended_at: None,
    };
    let lines = render_evidence(&view, PLAIN);
    assert_eq!(
        lines[..5],
        [
            "evidence for attempt 1 of add, commit 0123456789: passed",
            "  ✓ passed  pytest  exit 0, 12 ms",
            "      tests: 2 passed, 1 fixed, 1 new, 1 vanished, 0 broken",
            "      vanished: gone",
            "      fixed: mended",
        ]
    );
    assert!(lines[5].starts_with("      new: new") && !lines[5].contains('\u{1b}'), "{lines:?}");
}

#[test]
fn what_only_waited_is_not_told() {
    let step = |sequence: i64, node: &str, verdict: &str, at, note: Option<&str>| StepEntry {
        sequence,
        node: node.into(),
        verdict: verdict.into(),
        unit: note.map(|_| "add".to_owned()),
        attempt: 1,
        actor: "runner".into(),
        instance: None,
        duration_ms: 1,
        cost_micros: 0,
        note: note.map(str::to_owned),
        at,
    };
    let steps = vec![
        step(1, "load_task_context", "pass", datetime!(2026-01-01 0:00:00 UTC), None),
        step(2, "plan_steps", "wait", datetime!(2026-01-01 0:00:01 UTC), None),
        step(
            3,
            "verify_step_result",
            "redo",
            datetime!(2026-01-01 0:01:05 UTC),
            Some("it is wrong\nand long"),
        ),
    ];
    let given = TaskTimeline {
        task_id: "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap(),
        run_id: "run_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap(),
        trace_id: String::new(),
        state: cynode_core::tasks::TaskStateName::Running,
        node: None,
        standing: String::new(),
        stalls: Vec::new(),
        summary: None,
        retries_used: 0,
        cost_micros: 0,
        steps,
        takeovers: Vec::new(),
        waits: Vec::new(),
        units: Vec::new(),
        jobs: Vec::new(),
        given: Vec::new(),
        pull_request: None,
        mermaid: String::new(),
        plan_mermaid: String::new(),
    };
    assert_eq!(
        render_timeline(&given, PLAIN),
        [" 0:00  read the task      pass", " 1:05  check work         redo   add  it is wrong",]
    );
}

#[test]
fn another_process_stands_where_it_took_over() {
    let mut timeline = working();
    let step = |sequence: i64, at: &str| -> StepEntry {
        serde_json::from_value(
            json!({ "sequence": sequence, "node": "plan_steps", "verdict": "pass", "attempt": 1,
            "actor": "runner", "duration_ms": 1, "cost_micros": 0, "at": at }),
        )
        .unwrap()
    };
    timeline.steps = vec![step(1, "2026-01-01T00:00:00Z"), step(2, "2026-01-01T00:01:10Z")];
    let takeover = json!({ "sequence": 1, "holder": "runner", "instance": "99998888777766665555444433332222",
        "previous_holder": "runner", "previous_instance": "1111222233334444", "previous_seen_at": "2026-01-01T00:00:20Z",
        "ended_by": "expired", "lease_ended_at": "2026-01-01T00:00:50Z", "taken_at": "2026-01-01T00:01:05Z" });
    timeline.takeovers = vec![serde_json::from_value(takeover).unwrap()];
    assert_eq!(
        render_timeline(&timeline, PLAIN),
        [
            " 0:00  plan               pass",
            " 1:05  takeover           expired runner 99998888 after runner 11112222, last heard of at 0:20",
            " 1:10  plan               pass",
        ]
    );
}

#[test]
fn a_difference_leaves_out_what_only_git_reads() {
    let text = "diff --git a/a b/a\nindex 1..2 100644\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-old\n+new\n";
    assert_eq!(render_diff(text, PLAIN), ["--- a/a", "+++ b/a", "@@ -1 +1 @@", "-old", "+new"]);
    let coloured = render_diff(text, Colorizer(true));
    assert_eq!(coloured[3..], ["\u{1b}[31m-old\u{1b}[0m", "\u{1b}[32m+new\u{1b}[0m"]);
}

#[test]
fn nothing_of_a_difference_is_hidden() {
    let text = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n--- a comment\n+++ x\n\
        +\tok\u{1b}]0;\n+evil()\n+\u{7}\u{202e}\u{e0041}\ndiff --git a/b b/b\nindex 1..2\n--- a/b\n+++ b/b\n";
    assert_eq!(
        render_diff(text, PLAIN),
        [
            "--- a/a",
            "+++ b/a",
            "@@ -1,2 +1,2 @@",
            "--- a comment",
            "+++ x",
            "+\tok\\u{1b}]0;",
            "+evil()",
            "+\\u{7}\\u{202e}\\u{e0041}",
            "--- a/b",
            "+++ b/b",
        ]
    );
    let coloured = render_diff(text, Colorizer(true));
    assert_eq!(
        coloured[3..5],
        ["\u{1b}[31m--- a comment\u{1b}[0m", "\u{1b}[32m+++ x\u{1b}[0m"],
        "what went and came is no head"
    );
}

#[test]
fn nothing_of_a_plan_is_hidden_from_whoever_says_yes() {
    let given = json!({ "steps": [{ "key": "add", "title": "Add it", "payload": {
        "kind": "implementation",
        "brief": { "files_to_modify": ["a\u{202e}b"], "requirements": ["One\u{2066}two"] },
        "checks": [{ "argv": ["sh", "-c", "make test\nrm -rf x"] }],
    } }] });
    let given: Plan = serde_json::from_value(given).unwrap();
    assert_eq!(
        render_plan(&given, PLAIN),
        [
            "└─ Add it",
            "      kind   implementation",
            "      files  a\\u{202e}b",
            "      must   One\\u{2066}two",
            "      check  make test rm -rf x",
        ]
    );
}

#[test]
fn money_has_four_digits_behind_the_point_and_its_currency() {
    assert_eq!(
        [0, 1_234, 500_000, 12_000_000].map(format_amount),
        ["0.0000", "0.0012", "0.5000", "12.0000"]
    );
    assert_eq!(format_money(500_000, USD), "0.5000 USD");
}

fn unit(key: &str, title: &str, after: &[&str], state: &str, attempts: u32) -> UnitView {
    serde_json::from_value(json!({ "key": key, "title": title, "depends_on": after, "state": state,
        "attempts": attempts, "findings": [] }))
    .unwrap()
}

#[test]
fn a_plan_says_where_its_units_stand() {
    let given = json!({ "steps": [
        { "key": "add", "title": "Add it" },
        { "key": "review", "title": "Review it", "depends_on": ["add"] },
    ] });
    let given: Plan = serde_json::from_value(given).unwrap();
    let standing = [
        unit("add", "Add it", &[], "done", 2),
        unit("review", "Review it", &["add"], "dispatched", 1),
    ];
    let wanted = ["└─ Add it  ✓ done, attempt 2", "   └─ Review it  ▶ dispatched"];
    assert_eq!(render_plan_status(&given, &standing, PLAIN), wanted);
    assert_eq!(render_units(&standing, PLAIN), wanted);
}

/// A task in the middle of its work.
fn working() -> TaskTimeline {
    serde_json::from_value(json!({
        "task_id": "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "run_id": "run_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "trace_id": "", "state": "running",
        "node": "collect_result", "standing": "waits at Collect Result for job (owner: worker)",
        "retries_used": 1, "cost_micros": 12_300, "steps": [],
        "waits": [{ "wait_id": WAIT, "reason": "job", "owner": "worker", "opened_at": "2026-01-01T00:00:00Z" }],
        "units": [
            unit("add", "Add the option --max to slug, so that no name is longer than it says and names are cut between words", &[], "done", 2),
            unit("review", "Review the change", &["add"], "dispatched", 1),
            unit("test", "Try the change", &["review"], "pending", 0),
        ],
        "jobs": [{ "job_id": "job_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "unit": "review", "attempt": 1,
            "state": "running", "queued_at": "2026-01-01T00:00:00Z" }],
        "mermaid": "", "plan_mermaid": "",
    }))
    .unwrap()
}

fn seen<'a>(timeline: &'a TaskTimeline, tail: &'a [String]) -> TaskProgress<'a> {
    TaskProgress {
        elapsed: std::time::Duration::from_secs(83),
        timeline,
        spent: 12_300,
        most: Some(500_000),
        currency: USD,
        action: Some("review: sh tests/names_test.sh"),
        tail,
        held: None,
        away: None,
    }
}

fn tail() -> Vec<String> {
    ["add  never shown", "review  I read slug", "review  and its tests", "review  all of them"]
        .map(str::to_owned)
        .into()
}

#[test]
fn a_task_at_work_fits_eighty_columns() {
    let (timeline, tail) = (working(), tail());
    assert_eq!(
        render_progress(&seen(&timeline, &tail), 76, 22, PLAIN),
        [
            "1:23  wait for work",
            "███░░░░░░░  1 of 3 units      ░░░░░░░░░░  cost 0.0123 of 0.5000 USD",
            "✓ done        try 2  Add the option --max to slug, so that no name is longe…",
            "▶ dispatched         Review the change",
            "· pending            Try the change",
            "now   review: sh tests/names_test.sh",
            "│ review  I read slug",
            "│ review  and its tests",
            "│ review  all of them",
            "waits for the work on review",
        ]
    );
}

#[test]
fn a_task_at_work_uses_a_hundred_and_twenty_columns() {
    let (timeline, tail) = (working(), tail());
    let lines =
        render_progress(&TaskProgress { most: None, ..seen(&timeline, &tail) }, 116, 40, PLAIN);
    assert_eq!(
        lines[1..4],
        [
            "███░░░░░░░  1 of 3 units      cost 0.0123 USD",
            "✓ done        try 2  Add the option --max to slug, so that no name is longer than it says and names are cut between…",
            "▶ dispatched         Review the change",
        ]
    );
    for columns in [20, 76, 116] {
        for line in render_progress(&seen(&timeline, &tail), columns, 40, Colorizer(true)) {
            assert!(crate::terminal::display_width(&sanitize_text(&line)) <= columns, "{line}");
        }
    }
}

#[test]
fn where_there_is_no_room_for_all_units_those_at_work_are_shown() {
    let mut timeline = working();
    timeline.units = (0..30)
        .map(|at| {
            let state = ["done", "dispatched", "pending"]
                [if at < 10 { 0 } else { usize::from(at > 11) + 1 }];
            unit(&format!("u{at}"), &format!("Unit {at}"), &[], state, 1)
        })
        .collect();
    let lines = render_progress(&seen(&timeline, &[]), 76, 8, PLAIN);
    assert_eq!(lines.len(), 8);
    assert_eq!(
        lines[2..6],
        [
            "▶ dispatched         Unit 10",
            "▶ dispatched         Unit 11",
            "· pending            Unit 12",
            "… and 27 more",
        ]
    );
}

#[test]
fn who_does_not_answer_is_told_in_place_of_where_it_stands() {
    let timeline = working();
    let view =
        TaskProgress { away: Some("no answer from http://a: refused"), ..seen(&timeline, &[]) };
    assert_eq!(
        render_progress(&view, 76, 22, PLAIN)[0],
        "1:23  no answer from http://a: refused; it is asked again"
    );
}

#[test]
fn what_holds_it_up_is_told_in_place_of_what_it_waits_for() {
    let timeline = working();
    let view = TaskProgress { held: Some("the budget is used up"), ..seen(&timeline, &[]) };
    assert_eq!(
        render_progress(&view, 76, 22, PLAIN).last().unwrap(),
        "cannot go on: the budget is used up"
    );
}

#[test]
fn what_nobody_takes_is_told_first_with_what_to_type() {
    let mut timeline = working();
    timeline.stalls = serde_json::from_value(json!([{
        "kind": "unclaimed_job", "since": "2026-01-01T00:00:00Z", "detail": "the node `a` takes nothing",
        "commands": ["cynork node show a", "cynode-node doctor"],
    }]))
    .unwrap();
    let view = TaskProgress { held: Some("the budget is used up"), ..seen(&timeline, &[]) };
    let lines = render_progress(&view, 76, 22, PLAIN);
    let last: Vec<&str> = lines.iter().rev().take(2).rev().map(String::as_str).collect();
    assert_eq!(last, ["stuck the node `a` takes nothing", "next: cynork node show a"]);
    assert_eq!(
        render_stalls(&timeline, PLAIN),
        ["the node `a` takes nothing", "  next: cynork node show a", "  next: cynode-node doctor",]
    );
}

#[test]
fn where_it_stands_is_told_to_whoever_is_asked_with_all_that_is_asked() {
    let mut timeline = working();
    assert_eq!(describe_standing(&timeline), "waits for the work on review");
    timeline.waits[0].reason = WaitReason::HumanInput;
    timeline.waits[0].question = Some("Which one?\n1. this\n2. that".into());
    assert_eq!(describe_standing(&timeline), "waits for your answer: Which one?\n1. this\n2. that");
    timeline.waits.clear();
    timeline.standing = "works at Plan Steps".into();
    assert_eq!(describe_standing(&timeline), "works at Plan Steps");
}

#[test]
fn what_it_waits_for_is_told_in_words() {
    let mut timeline = working();
    for (reason, words) in [
        ("approval", "your yes to the plan"),
        ("human_input", "your answer: Which one?"),
        ("paused", "somebody who lets it go on: Which one?"),
        ("agent", "the project manager, who thinks"),
        ("job", "the work on review"),
    ] {
        timeline.waits = vec![
            serde_json::from_value(
                json!({ "wait_id": WAIT, "reason": reason, "owner": "x", "question": "Which one?",
                "opened_at": "2026-01-01T00:00:00Z" }),
            )
            .unwrap(),
        ];
        assert_eq!(describe_wait(&timeline).unwrap(), words);
    }
    timeline.jobs[0].state = "queued".into();
    assert_eq!(describe_wait(&timeline).unwrap(), "a machine that takes review");
    timeline.waits[0].reason = WaitReason::Paused;
    timeline.waits[0].question = None;
    assert_eq!(describe_wait(&timeline).unwrap(), "somebody who lets it go on: it is paused");
    timeline.waits[0].resolved_at = Some(datetime!(2026-01-01 0:00 UTC));
    assert_eq!(describe_wait(&timeline), None);
}

fn event(kind: &str, data: &Value) -> cynode_wire::nodes::JobEventView {
    let event = json!({ "number": 0, "at": "2026-01-01T00:00:00Z", "at_ms": 0, "event": kind, "data": data });
    serde_json::from_value(event).unwrap()
}

#[test]
fn what_happens_in_a_job_is_told_by_its_kind() {
    let tool = |status: &str| {
        event(
            "tool",
            &json!({ "call": "1", "title": "Run", "status": status, "input": { "argv": ["make", "test"] } }),
        )
    };
    for (given, wanted) in [
        (event("message", &json!({ "text": "one\n\ntwo\u{1b}[2J" })), vec!["one", "two"]),
        (event("output", &json!({ "stream": "stdout", "text": "ok\n" })), vec!["ok"]),
        (tool("in_progress"), vec!["▸ Run: make test"]),
        (tool("failed"), vec!["✗ Run"]),
        (tool("completed"), vec![]),
        (event("phase", &json!({ "phase": "working" })), vec!["· working"]),
        (event("phase", &json!({ "phase": "setting_up" })), vec!["· setting up the environment"]),
        (
            event("setup", &json!({ "step": "npm ci", "number": 2, "of": 5, "succeeded": null })),
            vec!["· setting up the environment (2 of 5: npm ci)"],
        ),
        (
            event("setup", &json!({ "step": "npm ci", "number": 2, "of": 5, "succeeded": true })),
            vec![],
        ),
        (
            event("setup", &json!({ "step": "npm ci", "number": 2, "of": 5, "succeeded": false })),
            vec!["✗ setting up the environment (2 of 5: npm ci) failed"],
        ),
        (
            event(
                "packages",
                &json!({ "fetches": [
                { "source": "npm", "package": "a", "version": "1.0", "sha256": "0", "bytes": 1 },
                { "source": "npm", "package": "b", "version": "2.0", "refused": "it is 1 day old" },
            ] }),
            ),
            vec!["package refused: npm:b 2.0: it is 1 day old"],
        ),
        (event("truncated", &json!({ "bytes": 12 })), vec!["· 12 bytes more were left out"]),
        (
            event("permission", &json!({ "state": "asked", "title": "rm" })),
            vec!["permission asked: rm"],
        ),
        (
            event("plan", &json!({ "entries": [{ "content": "look", "status": "completed" }] })),
            vec!["✓ look"],
        ),
        (event("usage", &json!({ "usage": {} })), vec![]),
        (event("something new", &json!({})), vec![]),
    ] {
        assert_eq!(render_job_event(&given, PLAIN), wanted, "{}", given.event);
    }
    assert_eq!(render_job_highlight(&event("output", &json!({ "text": "ok" })), PLAIN), [""; 0]);
    assert_eq!(render_job_highlight(&tool("in_progress"), PLAIN), ["▸ Run: make test"]);
}

#[test]
fn files_have_their_lines_and_a_bar_and_are_summed_up() {
    let changed = json!({ "base": "1", "head": "2", "truncated": true, "files": [
        { "path": "src/a.rs", "insertions": 100, "deletions": 0 },
        { "path": "b", "insertions": 1, "deletions": 20 },
        { "path": "picture.png" },
    ] });
    assert_eq!(
        render_changed_files(&serde_json::from_value(changed).unwrap(), PLAIN),
        [
            "3 files, and more, +101 -20 lines",
            "  src/a.rs       +100 -0  ++++++++++++++++++++++++",
            "  b               +1 -20  +-----",
            "  picture.png  no text",
        ]
    );
}

#[test]
fn findings_are_counted_by_how_bad_they_are() {
    let issue =
        |text: &str| json!({ "description": text, "file_location": "a:1", "how_to_fix": "" });
    let feedback = json!({ "critical_issues": [issue("It loses data")], "minor_issues": [issue("A name"), issue("A word")] });
    assert_eq!(
        render_findings(&serde_json::from_value(feedback).unwrap(), PLAIN),
        [
            "findings: 1 critical, 2 minor",
            "  critical  a:1: It loses data",
            "  minor     a:1: A name",
            "  minor     a:1: A word",
        ]
    );
    assert_eq!(
        render_findings(&serde_json::from_value(json!({})).unwrap(), PLAIN),
        ["findings: none"]
    );
}

#[test]
fn what_was_spent_is_a_part_of_what_may_be() {
    assert_eq!(
        render_spending(250_000, Some(500_000), USD, PLAIN),
        "cost 0.2500 of 0.5000 USD  █████░░░░░ 50 %"
    );
    assert_eq!(
        render_spending(600_000, Some(500_000), USD, PLAIN),
        "cost 0.6000 of 0.5000 USD  ██████████ 120 %"
    );
    assert_eq!(
        render_spending(1, Some(0), USD, PLAIN),
        "cost 0.0000 of 0.0000 USD  ██████████ 100 %"
    );
    assert_eq!(render_spending(1_000_000, None, USD, PLAIN), "cost 1.0000 USD (no limit)");
    // Next to nothing is nothing, and what is not all is not full.
    assert_eq!(
        render_spending(2_000, Some(5_000_000), USD, PLAIN),
        "cost 0.0020 of 5.0000 USD  ░░░░░░░░░░ 0 %"
    );
    assert_eq!(
        render_spending(4_999_999, Some(5_000_000), USD, PLAIN),
        "cost 4.9999 of 5.0000 USD  █████████░ 99 %"
    );
}

#[test]
fn the_cost_of_a_task_is_told_by_step_and_by_model() {
    let task = json!({
        "id": "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "project_id": "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "name": "a", "description": "A", "acceptance_criteria": [],
        "budget": { "max_cost_micros": 500_000, "max_tokens": 9000 }, "state": "running", "depends_on": [],
        "created_by": "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
    });
    let mut timeline = working();
    let step = |node: &str, unit: Option<&str>, cost: u64| -> StepEntry {
        serde_json::from_value(
            json!({ "sequence": 1, "node": node, "verdict": "pass", "unit": unit,
            "attempt": 1, "actor": "runner", "duration_ms": 1, "cost_micros": cost,
            "at": "2026-01-01T00:00:00Z" }),
        )
        .unwrap()
    };
    timeline.steps = vec![
        step("plan_steps", None, 1000),
        step("verify_step_result", Some("add"), 300),
        step("dispatch_step", None, 0),
        step("verify_step_result", Some("add"), 300),
    ];
    let model = json!({ "key": "big", "calls": 3, "failed": 0, "input_tokens": 700, "cached_tokens": 0,
        "output_tokens": 80, "cost_micros": 100_000 });
    let text = render_task_cost(
        &serde_json::from_value(task).unwrap(),
        &timeline,
        &[serde_json::from_value(model).unwrap()],
        USD,
        PLAIN,
    );
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [
            "cost 0.1000 of 0.5000 USD  ██░░░░░░░░ 20 %",
            "tokens 780 of 9000",
            "",
            "STEP        UNIT  TIMES  COST",
            "plan              1      0.0010 USD",
            "check work  add   2      0.0006 USD",
            "",
            "MODEL  CALLS  TOKENS IN  TOKENS OUT  COST",
            "big    3      700        80          0.1000 USD",
        ]
    );
}
