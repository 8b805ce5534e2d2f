use cynode_core::evidence::Check;
use cynode_wire::evidence::EvidenceState;
use serde_json::json;
use time::macros::datetime;

use super::*;

const PLAIN: Paint = Paint(false);

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
        plan(&given, PLAIN),
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

fn result(line: &str, tally: Tally, rounds: u32, exit: Option<i32>, excerpt: &str) -> CheckResult {
    CheckResult {
        check: Check::line(line),
        tally,
        rounds,
        exit_code: exit,
        sha256: String::new(),
        excerpt: excerpt.to_owned(),
        milliseconds: 12,
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
            result("make test", Tally::Failed, 2, Some(2), "one\n\ntwo\n"),
            result("ls", Tally::Passed, 1, Some(0), "never shown"),
            result("sleep 9", Tally::Failed, 2, None, ""),
        ],
        waived: None,
        trouble: Some("the machine was away".into()),
        tries: 1,
        opened_at: datetime!(2026-01-01 0:00 UTC),
        ended_at: None,
    };
    assert_eq!(
        evidence(&view, PLAIN),
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
    assert!(evidence(&view, Paint(true))[1].starts_with("  \u{1b}[31m✗ failed\u{1b}[0m"));
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
    let given = Timeline {
        task_id: "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap(),
        run_id: "run_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap(),
        trace_id: String::new(),
        state: cynode_core::tasks::TaskStateName::Running,
        node: None,
        standing: String::new(),
        summary: None,
        retries_used: 0,
        cost_micros: 0,
        steps,
        waits: Vec::new(),
        units: Vec::new(),
        jobs: Vec::new(),
        pull_request: None,
        mermaid: String::new(),
        plan_mermaid: String::new(),
    };
    assert_eq!(
        timeline(&given, PLAIN),
        [" 0:00  load_task_context  pass", " 1:05  verify_step_result redo   add  it is wrong",]
    );
}

#[test]
fn a_difference_leaves_out_what_only_git_reads() {
    let text = "diff --git a/a b/a\nindex 1..2 100644\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-old\n+new\n";
    assert_eq!(diff(text, PLAIN), ["--- a/a", "+++ b/a", "@@ -1 +1 @@", "-old", "+new"]);
    let coloured = diff(text, Paint(true));
    assert_eq!(coloured[3..], ["\u{1b}[31m-old\u{1b}[0m", "\u{1b}[32m+new\u{1b}[0m"]);
}

#[test]
fn money_has_four_digits_behind_the_point() {
    assert_eq!(
        [0, 1_234, 500_000, 12_000_000].map(money),
        ["0.0000", "0.0012", "0.5000", "12.0000"]
    );
}
