use std::collections::BTreeMap;

use cynode_core::{
    agents::AgentRole,
    evidence::{ChangeAnomaly, CheckTally, EvidenceCheck},
    workflow::{
        evidence::{CheckResult, Evidence},
        findings::{FindingSeverity, VerificationFinding},
        handoffs::{
            AnalysisAnswer, AnalysisStatus, HandoffAnswer, HandoffRequest, PlanAnswer,
            ResultVerification, VerifyOutcome,
        },
        reports::{ReportKind, ReportView},
    },
};
use cynode_wire::manager::handoffs::{HandoffAssignment, PlanRevision};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::{
    Script, Tools, answer, asked, class, handoff, judged, judging, plan, planned, planning, prefer,
    report, run, said, scope, task_id, tests, unit,
};
use crate::{
    decision_context::{DecisionError, DecisionKind},
    decisions::{HandoffOutcome, manager::TESTS_REQUIRED_PREFIX},
};

const WORDS: &str = "Do something";

async fn of(size: &str) -> PlanAnswer {
    let answers = [class("feature_request"), scope(size), plan(&[unit("Add it")])];
    let tools = Tools::with_files(&[("AGENTS.md", "Pages over storage."), ("src/main.rs", "")]);
    planned(run(&handoff(WORDS, planning()), &Script::of(&answers), &tools).await)
}

fn verifying(
    planned: &PlanAnswer,
    judge: ResultVerification,
    reports: Vec<ReportView>,
) -> HandoffAssignment {
    let mut handoff = handoff(WORDS, HandoffRequest::Verify(judge));
    handoff.context.reports = reports;
    handoff.context.planned = Some(Box::new(planned.clone()));
    handoff
}

async fn verified(
    handoff: &HandoffAssignment,
    script: &Script,
) -> Result<HandoffOutcome, DecisionError> {
    run(handoff, script, &Tools::default()).await
}

fn issue(text: &str) -> Value {
    json!({"description": text, "file_location": "src/main.rs:1", "how_to_fix": "mend it"})
}

fn wants_changes(critical: usize, major: usize, minor: usize) -> Value {
    let some = |n: usize, what: &str| vec![issue(what); n];
    json!({
        "critical_issues": some(critical, "it crashes"), "major_issues": some(major, "no test"),
        "minor_issues": some(minor, "spaces"), "summary": "not yet",
    })
}

fn placed(finding: VerificationFinding) -> VerificationFinding {
    let (at, how_to_fix) = (Some("src/main.rs:1".to_owned()), Some("mend it".to_owned()));
    VerificationFinding { at, how_to_fix, ..finding }
}

fn reviewed(unit: &str, kind: ReportKind, details: Value) -> Vec<ReportView> {
    vec![report(AgentRole::Reviewer, unit, kind, details)]
}

/// A review unit that was made after so many rounds.
fn review_after(planned: &PlanAnswer, rounds: u32) -> ResultVerification {
    let mut judge = judging(planned, "review", json!({"summary": "done"}));
    judge.payload["iteration"] = json!(rounds);
    judge
}

#[tokio::test]
async fn the_first_and_second_failed_review_go_back_and_the_third_goes_on_with_the_issues_noted() {
    let planned = of("small").await;
    let script = Script::default();
    let mut outcomes = Vec::new();
    for rounds in 0..3 {
        let details = wants_changes(0, 1, 1);
        let reports = reviewed("review", ReportKind::ReviewChangesRequested, details);
        let handoff = verifying(&planned, review_after(&planned, rounds), reports);
        let judgement = judged(verified(&handoff, &script).await);
        assert_eq!(
            judgement.findings,
            [
                placed(VerificationFinding::new(FindingSeverity::Major, "no test")),
                placed(VerificationFinding::new(FindingSeverity::Minor, "spaces")),
            ],
            "S004-111, S004-115, S004-116, S004-117: the issues with place and remedy"
        );
        outcomes.push((judgement.outcome, judgement.note));
    }
    assert_eq!(
        outcomes,
        [
            (
                VerifyOutcome::Revise,
                "the review wants changes (0 critical, 1 major): revision 1 of 2".to_owned()
            ),
            (
                VerifyOutcome::Revise,
                "the review wants changes (0 critical, 1 major): revision 2 of 2".to_owned()
            ),
            (
                VerifyOutcome::Accept,
                "the review still wants changes after 2 revisions; it goes on with the issues noted"
                    .to_owned()
            ),
        ],
        "S004-115, S004-116, S004-117"
    );
    assert!(script.kinds().is_empty(), "S004-122: a rule of the service decides, no model");
}

#[tokio::test]
async fn a_reviewer_without_a_report_is_tried_again_and_then_a_person_is_asked_and_the_work_is_kept()
 {
    let planned = of("small").await;
    let script = Script::default();
    let with = |left: u32, words: Option<&str>| {
        let mut judge = review_after(&planned, 0);
        (judge.unit_attempt, judge.attempts_left) = (3 - left, Some(left));
        judge.answer = words.map(said);
        verifying(&planned, judge, Vec::new())
    };
    assert_eq!(judged(verified(&with(1, None), &script).await).outcome, VerifyOutcome::Redo);
    let question = asked(verified(&with(0, None), &script).await);
    assert!(question.contains("left no report that can be read, in 3 attempts."), "{question}");
    assert!(question.contains(&format!("`cynork task diff {}`", task_id())), "{question}");
    assert!(question.ends_with("or `stop` to give the task up."), "{question}");
    for (words, outcome) in [
        ("accept", VerifyOutcome::Accept),
        ("again", VerifyOutcome::Redo),
        ("stop", VerifyOutcome::GiveUp),
    ] {
        let judgement = judged(verified(&with(0, Some(words)), &script).await);
        assert_eq!((judgement.outcome, judgement.by_person), (outcome, true), "{words}");
    }
    assert!(script.kinds().is_empty(), "a rule decides, no model");
}

#[tokio::test]
async fn something_critical_after_the_last_revision_is_for_a_person_whose_word_decides() {
    let planned = of("small").await;
    let script = Script::default();
    let with = |words: Option<&str>| {
        let mut judge = review_after(&planned, 2);
        judge.answer = words.map(said);
        let details = wants_changes(1, 0, 0);
        let reports = reviewed("review", ReportKind::ReviewChangesRequested, details);
        verifying(&planned, judge, reports)
    };
    let question = asked(verified(&with(None), &script).await);
    assert_eq!(
        question,
        "After 2 revisions the review is still not good:\n- src/main.rs:1: it crashes (mend it)\n\
         Answer `proceed` to take it as it is, `stop` to give the task up, or say what is to be done.",
        "S004-117: it is escalated"
    );
    let outcome = async |words| judged(verified(&with(Some(words)), &script).await).outcome;
    assert_eq!(outcome("stop").await, VerifyOutcome::GiveUp);
    assert_eq!(outcome("proceed").await, VerifyOutcome::Accept);
    assert_eq!(outcome("Leave the cache out").await, VerifyOutcome::Revise);
}

#[tokio::test]
async fn preferences_change_how_often_and_whether_minor_issues_count() {
    let planned = of("small").await;
    let script = Script::default();
    let details = wants_changes(0, 0, 1);
    let reports = reviewed("review", ReportKind::ReviewChangesRequested, details);
    let mut handoff = verifying(&planned, review_after(&planned, 0), reports);
    prefer(&mut handoff, "agents.project_manager.review.skip_minor_issues", json!(false));
    assert_eq!(judged(verified(&handoff, &script).await).outcome, VerifyOutcome::Revise);
    prefer(&mut handoff, "agents.project_manager.review.max_review_iterations", json!(0));
    assert_eq!(judged(verified(&handoff, &script).await).outcome, VerifyOutcome::Accept);
    prefer(&mut handoff, "agents.project_manager.review.on_limit", json!("escalate"));
    assert!(asked(verified(&handoff, &script).await).starts_with("After 0 revisions"));
}

#[tokio::test]
async fn a_review_without_a_verdict_of_its_reviewer_is_done_again() {
    let planned = of("small").await;
    let script = Script::default();
    let approved = ReportKind::ReviewApproved;
    let cases = [
        vec![],
        // Whoever wrote it does not judge it.
        vec![report(AgentRole::Developer, "review", approved, json!({}))],
        // A verdict about something else.
        vec![report(AgentRole::Reviewer, "other", approved, json!({}))],
        // Something that is no verdict.
        vec![report(AgentRole::Reviewer, "review", ReportKind::WorkCompleted, json!({}))],
        // A verdict that cannot be read.
        vec![report(AgentRole::Reviewer, "review", approved, json!({"verdict": "lgtm"}))],
    ];
    for reports in cases {
        let handoff = verifying(&planned, review_after(&planned, 0), reports);
        let judgement = judged(verified(&handoff, &script).await);
        assert_eq!(judgement.outcome, VerifyOutcome::Redo);
        assert_eq!(judgement.findings.len(), 1);
        assert_eq!(judgement.findings[0].severity, FindingSeverity::Critical);
    }
}

#[tokio::test]
async fn the_last_verdict_counts_and_a_bare_no_is_told_by_its_summary() {
    let planned = of("small").await;
    let script = Script::default();
    let mut reports = reviewed("review", ReportKind::ReviewApproved, Value::Null);
    reports.extend(reviewed("review", ReportKind::ReviewChangesRequested, Value::Null));
    let handoff = verifying(&planned, review_after(&planned, 0), reports);
    let judgement = judged(verified(&handoff, &script).await);
    assert_eq!(judgement.outcome, VerifyOutcome::Revise);
    assert_eq!(
        judgement.findings,
        [VerificationFinding::new(FindingSeverity::Major, "That is what I did.".to_owned())]
    );
}

#[tokio::test]
async fn a_good_review_that_needs_tests_sends_for_them_and_a_workflow_with_tests_asks_nobody() {
    let planned = of("small").await;
    let reports = reviewed("review", ReportKind::ReviewApproved, json!({}));
    let handoff = verifying(&planned, review_after(&planned, 0), reports.clone());
    let script = Script::of(&[tests(true)]);
    let judgement = judged(verified(&handoff, &script).await);
    assert_eq!(judgement.outcome, VerifyOutcome::Revise);
    assert!(judgement.findings[0].text.starts_with(TESTS_REQUIRED_PREFIX));
    assert_eq!(judgement.recommended_actions, ["dotnet test"]);

    let planned = of("large").await;
    let handoff = verifying(&planned, review_after(&planned, 0), reports);
    let script = Script::default();
    assert_eq!(judged(verified(&handoff, &script).await).outcome, VerifyOutcome::Accept);
    assert!(script.kinds().is_empty());
}

#[tokio::test]
async fn tests_pass_by_what_the_tester_counted_and_not_by_the_word() {
    let planned = of("large").await;
    let script = Script::default();
    let tested = |kind, details: Value, rounds: u32| {
        let mut judge = judging(&planned, "test", json!({"summary": "done"}));
        judge.payload["iteration"] = json!(rounds);
        verifying(&planned, judge, vec![report(AgentRole::Tester, "test", kind, details)])
    };
    let (yes, no) = (ReportKind::TestsPassed, ReportKind::TestsFailed);
    let failed = json!({"passed": 3, "failed": 1, "failures": ["sums_are_right"]});
    let outcome = async |handoff: HandoffAssignment| judged(verified(&handoff, &script).await);

    let good = outcome(tested(yes, json!({"passed": 4}), 0)).await;
    assert_eq!((good.outcome, good.note.as_str()), (VerifyOutcome::Accept, "the tests passed (4)"));
    let claimed = outcome(tested(yes, failed.clone(), 0)).await;
    assert_eq!(claimed.outcome, VerifyOutcome::Revise, "a yes with failures is no yes");
    let bad = outcome(tested(no, failed.clone(), 1)).await;
    assert_eq!(bad.outcome, VerifyOutcome::Revise);
    assert_eq!(
        bad.findings,
        [VerificationFinding::new(FindingSeverity::Major, "sums_are_right".to_owned())]
    );
    let last = tested(no, failed.clone(), 2);
    assert!(asked(verified(&last, &script).await).starts_with("After 2 revisions the test"));
    let mut loose = tested(no, failed, 2);
    prefer(&mut loose, "agents.project_manager.review.require_tests_pass", json!(false));
    assert_eq!(outcome(loose).await.outcome, VerifyOutcome::Accept);
    let silent = verifying(&planned, judging(&planned, "test", json!({})), vec![]);
    assert_eq!(outcome(silent).await.outcome, VerifyOutcome::Redo);
}

// Units that an analyst judges.

fn analysed(status: AnalysisStatus, findings: &[FindingSeverity]) -> AnalysisAnswer {
    let found = |severity: &FindingSeverity| VerificationFinding::new(*severity, "found");
    AnalysisAnswer {
        task_id: task_id(),
        status,
        findings: findings.iter().map(found).collect(),
        recommended_actions: vec!["mend it".to_owned()],
        preferences_applied: BTreeMap::new(),
    }
}

async fn developed(output: Value) -> HandoffAssignment {
    let planned = of("small").await;
    let judge = judging(&planned, "add-it", output);
    verifying(&planned, judge, vec![])
}

#[tokio::test]
async fn findings_of_an_analyst_decide_what_follows() {
    use AnalysisStatus::{Fail, NeedsClarification, Pass};
    use FindingSeverity::{Critical, Major, Minor, Note};
    let script = Script::default();
    let cases: [(AnalysisStatus, &[FindingSeverity], Option<VerifyOutcome>); 9] = [
        (Pass, &[], Some(VerifyOutcome::Accept)),
        (Pass, &[Minor, Note], Some(VerifyOutcome::Accept)),
        (Pass, &[Critical], Some(VerifyOutcome::Redo)),
        (Fail, &[Critical], Some(VerifyOutcome::Redo)),
        (Fail, &[Major], Some(VerifyOutcome::Redo)),
        (Fail, &[], Some(VerifyOutcome::Redo)),
        (Fail, &[Minor], Some(VerifyOutcome::Accept)),
        (NeedsClarification, &[Note], None),
        (NeedsClarification, &[Major], None),
    ];
    for (status, findings, wanted) in cases {
        let mut handoff = developed(json!({"summary": "done"})).await;
        handoff.delegated = vec![analysed(status, findings)];
        let outcome = verified(&handoff, &script).await;
        match (answer(outcome), wanted) {
            (HandoffAnswer::Judged(judgement), Some(wanted)) => {
                assert_eq!(judgement.outcome, wanted, "S000-026: {status:?} {findings:?}");
                assert_eq!(judgement.recommended_actions, ["mend it"], "S000-026");
            }
            (HandoffAnswer::Ask { .. }, None) => {}
            (other, wanted) => panic!("{status:?} {findings:?}: {other:?}, not {wanted:?}"),
        }
    }
    assert!(script.kinds().is_empty());
}

/// What follows an analyst's finding about an attempt after which so many are left.
async fn found(
    severity: FindingSeverity,
    attempt: u32,
    left: Option<u32>,
    most: u32,
) -> HandoffAnswer {
    let mut handoff = developed(json!({ "summary": "done" })).await;
    if let HandoffRequest::Verify(judge) = &mut handoff.request {
        judge.unit_attempt = attempt;
        judge.attempts_left = left;
    }
    prefer(&mut handoff, "agents.project_manager.review.max_review_iterations", json!(most));
    handoff.delegated = vec![analysed(AnalysisStatus::Fail, &[severity])];
    answer(verified(&handoff, &Script::default()).await)
}

#[tokio::test]
async fn an_analyst_sends_back_until_the_smaller_limit_and_then_it_is_noted_or_asked_about() {
    let mut seen = Vec::new();
    for (attempt, left, most) in
        [(2, Some(1), 2), (3, Some(2), 2), (3, None, 2), (3, Some(0), 5), (3, Some(1), 5)]
    {
        for severity in [FindingSeverity::Major, FindingSeverity::Critical] {
            seen.push(match found(severity, attempt, left, most).await {
                HandoffAnswer::Judged(judged) => Some(judged.outcome),
                HandoffAnswer::Ask { question } => {
                    let words =
                        "After 3 attempts an analyst still finds `Add it` not good:\n- found\n";
                    assert!(question.starts_with(words), "{question}");
                    None
                }
                other => panic!("no judgement: {other:?}"),
            });
        }
    }
    let (back, noted) = (Some(VerifyOutcome::Redo), Some(VerifyOutcome::Accept));
    let ended = [noted, None, noted, None, noted, None];
    assert_eq!(seen, [&[back, back][..], &ended, &[back, back]].concat());
}

#[tokio::test]
async fn evidence_against_the_last_attempt_is_for_a_person_whatever_reviews_may_do() {
    let mut handoff = developed(json!({ "status": "completed" })).await;
    let HandoffRequest::Verify(judge) = &mut handoff.request else { unreachable!() };
    judge.evidence = Some(shown(CheckTally::Failed));
    judge.unit_attempt = 3;
    judge.attempts_left = Some(0);
    prefer(&mut handoff, "agents.project_manager.review.max_review_iterations", json!(5));
    let question = asked(verified(&handoff, &Script::default()).await);
    assert!(question.starts_with("After 3 attempts this still speaks against"), "{question}");
}

fn shown(tally: CheckTally) -> Evidence {
    let check = CheckResult {
        check: EvidenceCheck::from_shell_line("make test"),
        tally,
        rounds: 2,
        exit_code: Some(2),
        sha256: String::new(),
        excerpt: "1 of 3 failed".into(),
        milliseconds: 9,
        repeated: false,
        tests: None,
    };
    Evidence { commit: Some("c".repeat(40)), checks: vec![check], anomalies: Vec::new() }
}

/// What follows evidence about an attempt, and what else was asked.
async fn weighed(evidence: Evidence, attempt: u32, words: Option<&str>) -> HandoffAnswer {
    let mut handoff = developed(json!({ "status": "completed" })).await;
    if let HandoffRequest::Verify(judge) = &mut handoff.request {
        judge.evidence = Some(evidence);
        judge.unit_attempt = attempt;
        judge.answer = words.map(said);
    }
    handoff.delegated = vec![analysed(AnalysisStatus::Pass, &[])];
    let script = Script::of(&[]);
    let outcome = verified(&handoff, &script).await;
    assert_eq!(script.questions(), [""; 0], "no model is asked");
    answer(outcome)
}

#[tokio::test]
async fn evidence_against_a_result_sends_it_back_twice_and_then_asks_a_person() {
    let text = "the check `make test` does not hold (exit code 2, expected 0):\n1 of 3 failed";
    let found = VerificationFinding::new(FindingSeverity::Critical, text);
    for attempt in [1, 2] {
        let HandoffAnswer::Judged(judged) = weighed(shown(CheckTally::Failed), attempt, None).await
        else {
            panic!("no judgement")
        };
        let judged = (judged.outcome, judged.findings);
        assert_eq!(judged, (VerifyOutcome::Redo, vec![found.clone()]), "X-18");
    }
    let HandoffAnswer::Ask { question } = weighed(shown(CheckTally::Failed), 3, None).await else {
        panic!("no question")
    };
    assert!(question.contains("After 3 attempts") && question.contains("make test"), "{question}");
    let HandoffAnswer::Judged(judged) =
        weighed(shown(CheckTally::Failed), 3, Some("proceed")).await
    else {
        panic!("no judgement")
    };
    let waived = Some("a person took it as it is".to_owned());
    assert_eq!(
        (judged.outcome, judged.waived, judged.by_person),
        (VerifyOutcome::Accept, waived, true)
    );
}

#[tokio::test]
async fn a_check_that_cannot_run_is_for_a_person_at_once_and_is_no_bad_work() {
    let mut evidence = shown(CheckTally::Failed);
    evidence.checks[0].exit_code = Some(127);
    evidence.checks[0].excerpt = "sh: 1: make: not found".into();
    let HandoffAnswer::Ask { question } = weighed(evidence, 1, None).await else {
        panic!("no question")
    };
    let words = "cannot be checked: `make test` cannot run here, program `make` is not found. Install it on the node";
    assert!(
        question.contains(words) && question.contains("Answer `again` when it can run"),
        "{question}"
    );
}

#[tokio::test]
async fn the_same_failure_twice_in_the_same_words_is_for_a_person_before_a_third_attempt() {
    let mut evidence = shown(CheckTally::Failed);
    evidence.checks[0].repeated = true;
    let HandoffAnswer::Ask { question } = weighed(evidence, 2, None).await else {
        panic!("no question")
    };
    let words =
        "`make test` failed twice with the same words, so no further attempt is paid without you.";
    assert!(question.starts_with("After 2 attempts this still speaks against"), "{question}");
    assert!(question.contains(words), "{question}");
}

#[tokio::test]
async fn a_person_is_told_how_much_more_there_is_and_where_to_read_it() {
    let anomaly = |number| ChangeAnomaly::TestRemoved { path: format!("tests/t{number}.py") };
    let evidence = |most: u32| Evidence {
        anomalies: (0..most).map(anomaly).collect(),
        ..shown(CheckTally::Failed)
    };
    let HandoffAnswer::Ask { question } = weighed(evidence(12), 3, None).await else {
        panic!("no question")
    };
    let listed = question.lines().filter(|line| line.starts_with("- ")).count();
    let told = format!("and 3 more: `cynork task evidence {}` shows them.", task_id());
    assert!(listed == 10 && question.contains(&told), "{question}");
    // The check that does not hold is one of them.
    assert_eq!(evidence(12).listed_anomalies(), (0..9).map(anomaly).collect::<Vec<_>>());
    let HandoffAnswer::Ask { question } = weighed(evidence(9), 3, None).await else {
        panic!("no question")
    };
    assert!(!question.contains("more:"), "{question}");
    assert_eq!(evidence(9).listed_anomalies(), evidence(9).anomalies);
}

#[tokio::test]
async fn what_can_never_be_checked_is_for_a_person_at_once_whose_word_is_enough() {
    let nowhere = || {
        let mut evidence = Evidence { commit: None, ..shown(CheckTally::Again) };
        evidence.checks[0].rounds = 0;
        evidence
    };
    let HandoffAnswer::Ask { question } = weighed(nowhere(), 1, None).await else {
        panic!("no question")
    };
    let told = ["cannot be checked: the project has no repository", "make test", "proceed"];
    assert!(told.iter().all(|words| question.contains(words)), "{question}");
    let HandoffAnswer::Judged(judged) = weighed(nowhere(), 1, Some("proceed")).await else {
        panic!("no judgement")
    };
    let waived = Some("a person took it as it is".to_owned());
    assert_eq!(
        (judged.outcome, judged.waived, judged.by_person),
        (VerifyOutcome::Accept, waived, true)
    );
}

#[tokio::test]
async fn good_evidence_is_noted_and_the_analyst_decides() {
    for (tally, findings) in [
        (CheckTally::Passed, vec![]),
        (
            CheckTally::Flaky,
            vec![VerificationFinding::new(
                FindingSeverity::Minor,
                "the check `make test` holds only sometimes (2 runs)",
            )],
        ),
    ] {
        let HandoffAnswer::Judged(judged) = weighed(shown(tally), 1, None).await else {
            panic!("no judgement")
        };
        let waived = None;
        assert_eq!(
            (judged.outcome, judged.findings, judged.waived),
            (VerifyOutcome::Accept, findings, waived)
        );
    }
}

#[tokio::test]
async fn a_removed_test_speaks_against_a_result_whose_checks_all_hold() {
    let anomalies = vec![ChangeAnomaly::TestRemoved { path: "tests/a.py".into() }];
    let evidence = Evidence { anomalies, ..shown(CheckTally::Passed) };
    let HandoffAnswer::Judged(judged) = weighed(evidence, 1, None).await else {
        panic!("no judgement")
    };
    let text = "the test `tests/a.py` was removed, and nobody asked for that";
    let found = VerificationFinding {
        at: Some("tests/a.py:1".into()),
        how_to_fix: Some("bring it back".into()),
        ..VerificationFinding::new(FindingSeverity::Critical, text)
    };
    assert_eq!((judged.outcome, judged.findings), (VerifyOutcome::Redo, vec![found]));
}

#[tokio::test]
async fn no_analyst_is_sent_where_they_are_switched_off_and_the_manager_judges_itself() {
    let mut handoff = developed(json!({"summary": "done"})).await;
    prefer(&mut handoff, "agents.project_manager.analysts.enabled", json!(false));
    let found = json!({
        "reason": "nothing shows it", "findings": [{"text": "no test", "severity": "major"}],
        "recommended_actions": ["add one"], "status": "fail",
    });
    let script = Script::of(&[(DecisionKind::ReviewArtifact, found)]);
    let judgement = judged(verified(&handoff, &script).await);
    assert_eq!(
        judgement.outcome,
        VerifyOutcome::Redo,
        "S000-040, S004-023: the manager judges itself; a revision"
    );
    assert_eq!(
        script.kinds(),
        [DecisionKind::ReviewArtifact],
        "S000-104, S004-023: by one decision"
    );
    let good = json!({"reason": "it is shown", "findings": [], "recommended_actions": [], "status": "pass"});
    let script = Script::of(&[(DecisionKind::ReviewArtifact, good)]);
    let judgement = judged(verified(&handoff, &script).await);
    assert_eq!(judgement.outcome, VerifyOutcome::Accept, "S004-023: an approval");
    // Anything but a plain no leaves them on.
    for on in [json!(true), json!("off")] {
        prefer(&mut handoff, "agents.project_manager.analysts.enabled", on);
        let outcome = verified(&handoff, &Script::default()).await;
        assert_eq!(outcome, Ok(HandoffOutcome::Delegate), "S000-040, S000-104: on");
    }
}

#[tokio::test]
async fn an_analysis_of_another_task_is_not_taken() {
    let mut handoff = developed(json!({"summary": "done"})).await;
    let other = cynode_core::ids::TaskId::from_uuid(uuid::Uuid::from_u128(77));
    handoff.delegated =
        vec![AnalysisAnswer { task_id: other, ..analysed(AnalysisStatus::Pass, &[]) }];
    let outcome = verified(&handoff, &Script::default()).await;
    assert_eq!(
        outcome,
        Err(DecisionError::Permanent("an analyst answered about another task".into())),
        "S000-026: findings apply to their own task"
    );
}

#[tokio::test]
async fn an_agent_whose_last_word_was_a_question_is_not_done() {
    let mut handoff = developed(json!({"summary": "done"})).await;
    let clarify = ReportKind::NeedsClarification;
    handoff.context.reports = vec![report(AgentRole::Developer, "add-it", clarify, json!({}))];
    let question = asked(verified(&handoff, &Script::default()).await);
    assert!(
        question.starts_with(
            "The developer of `Add it` says (needs_clarification):\nThat is what I did."
        )
    );
    let HandoffRequest::Verify(judge) = &mut handoff.request else { unreachable!() };
    judge.answer = Some(said("Use the new colours"));
    let judgement = judged(verified(&handoff, &Script::default()).await);
    assert_eq!(judgement.outcome, VerifyOutcome::Redo);
    assert_eq!(judgement.findings[0].text, "a person says: Use the new colours");
    // A yes or a no is one to what the agent asked.
    for words in ["yes", "No"] {
        let HandoffRequest::Verify(judge) = &mut handoff.request else { unreachable!() };
        judge.answer = Some(said(words));
        let judgement = judged(verified(&handoff, &Script::default()).await);
        assert_eq!(judgement.outcome, VerifyOutcome::Redo);
        assert_eq!(judgement.findings[0].text, format!("a person says: {words}"));
    }
}

#[tokio::test]
async fn a_unit_that_was_not_planned_here_is_not_judged_here() {
    let mut handoff = developed(json!({})).await;
    let HandoffRequest::Verify(judge) = &mut handoff.request else { unreachable!() };
    judge.payload = json!({"work": "anything"});
    assert!(matches!(
        verified(&handoff, &Script::default()).await,
        Err(DecisionError::Permanent(_))
    ));
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Drives reviews and plans in turn, as a runner does, until the review ends; gives the number of fixes.
async fn rounds(verdicts: &[(bool, usize, usize, usize)], most: u32) -> usize {
    let mut plan = of("small").await;
    let mut verdicts = verdicts.iter().copied();
    loop {
        let review =
            plan.plan.planned_units().iter().rfind(|unit| unit.payload["kind"] == "review");
        let key = review.unwrap().key.clone();
        let Some((approved, critical, major, minor)) = verdicts.next() else { break };
        let kind =
            if approved { ReportKind::ReviewApproved } else { ReportKind::ReviewChangesRequested };
        let reports = reviewed(key.as_str(), kind, wants_changes(critical, major, minor));
        let judge = judging(&plan, key.as_str(), json!({"summary": "done"}));
        let mut verify = verifying(&plan, judge, reports);
        prefer(&mut verify, "agents.project_manager.review.max_review_iterations", json!(most));
        let judge = async || answer(verified(&verify, &Script::of(&[tests(false)])).await);
        let first = judge().await;
        // A process that was restarted works on the same handoff once more.
        assert_eq!(judge().await, first, "S004-118: a restart changes nothing");
        let HandoffAnswer::Judged(judgement) = first else { break };
        if judgement.outcome != VerifyOutcome::Revise {
            break;
        }
        let request = HandoffRequest::Plan {
            previous_plan: Some(plan.plan.clone()),
            feedback: vec![PlanRevision::from_verify_answer(key, &judgement).to_feedback()],
            answer: None,
            attempt: 1,
            started_units: Vec::new(),
        };
        let mut handoff = handoff(WORDS, request);
        handoff.context.planned = Some(Box::new(plan));
        plan = planned(run(&handoff, &Script::default(), &Tools::default()).await);
        // All that the next process knows is what was stored.
        plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    }
    plan.plan.planned_units().iter().filter(|unit| unit.payload["kind"] == "fix").count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn whatever_reviewers_say_work_goes_back_no_more_often_than_allowed(
        verdicts in prop::collection::vec((any::<bool>(), 0_usize..2, 0_usize..2, 0_usize..2), 0..9),
        most in 0_u32..=5,
    ) {
        let fixes = wait(rounds(&verdicts, most));
        let allowed = usize::try_from(most).unwrap();
        prop_assert!(fixes <= allowed, "S004-118, S004-135, S004-144, X-18: {} of {}", fixes, most);
    }

    #[test]
    fn a_result_that_says_it_failed_is_never_accepted(
        field in prop_oneof![Just("status"), Just("outcome"), Just("stop_reason")],
        word in prop_oneof![Just("failed"), Just("FAILED"), Just("error"), Just("crashed"), Just("timeout")],
    ) {
        let mut handoff = wait(developed(json!({"summary": "all good", field: word})));
        handoff.delegated = vec![analysed(AnalysisStatus::Pass, &[])];
        let judgement = judged(wait(verified(&handoff, &Script::default())));
        prop_assert_eq!(judgement.outcome, VerifyOutcome::Redo);
    }
}
