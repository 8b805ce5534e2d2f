//! Verification of a result. Results of workers are claims; a review's verdict, test results and an analyst's findings
//! are combined by rule.

use std::fmt::Write as _;

use cynode_core::workflow::{
    decisions::{
        UnitKind,
        review::{
            IssueCounts, ReviewConclusion, ReviewNextStep, ReviewOptions, decide_after_review,
            decide_after_tests,
        },
    },
    evidence::Evidence,
    findings::{FindingSeverity, ReviewFeedback, ReviewOutcome, VerificationFinding},
    handoffs::{
        AnalysisAnswer, AnalysisStatus, HandoffAnswer, ResultVerification, VerifyAnswer,
        VerifyOutcome,
    },
    reports::{ReportKind, ReportPayload, TestResults},
};
use serde_json::Value;

use super::{
    super::{
        HandoffOutcome,
        analyst::review_result,
        answers::{self, ANSWER_CHOICES_HINT, PersonAnswer},
        fence, prompts,
        types::TestSelection,
        unit::{UnitPayload, has_unit_of_kind},
    },
    dispatch::reporting_role,
    find_preference, last_report, review_options, to_outcome,
};
use crate::decision_context::{DecisionContext, DecisionError};

/// Prefix of a finding that requests tests after an approved review.
pub const TESTS_REQUIRED_PREFIX: &str = "tests are wanted: ";

/// Maximum number of findings of one verdict.
const MAX_FINDINGS: usize = 40;

pub(super) async fn verify_result(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
) -> Result<HandoffOutcome, DecisionError> {
    let payload = UnitPayload::parse_payload(&judge.unit, &judge.payload)?;
    if let Some(why) = reported_failure(&judge.output) {
        let why = format!("the worker itself says that it failed: {why}");
        return Ok(redo_outcome(vec![critical_finding(why)], "the result says that it failed"));
    }
    let shown = judge.evidence.clone().unwrap_or_default();
    if !shown.is_satisfied()
        && let Some(outcome) = handle_failing_evidence(desk, judge, &shown)
    {
        return Ok(outcome);
    }
    let waived = (!shown.is_satisfied()).then(|| CHECKS_OPTIONAL_WAIVER.to_owned());
    let outcome = match payload.kind {
        UnitKind::Review => verify_review(desk, judge, &payload).await,
        UnitKind::Test => Ok(verify_tests(desk, judge, &payload)),
        UnitKind::Init
        | UnitKind::Spec
        | UnitKind::Design
        | UnitKind::Implementation
        | UnitKind::Fix => verify_unit(desk, judge).await,
        // A merge has no worker: only its checks count.
        UnitKind::Integration => {
            let note = "what was made beside each other was put together";
            Ok(verification_outcome(VerifyOutcome::Accept, Vec::new(), Vec::new(), note))
        }
    };
    Ok(with_evidence(outcome?, &shown, waived))
}

/// Waiver of failed checks, if the preferences make them optional.
const CHECKS_OPTIONAL_WAIVER: &str =
    "checks need not pass here (agents.project_manager.review.require_tests_pass)";

/// Decides about a result with failing evidence. No model and no analyst is asked, because the unit is not done. Returns `None` if
/// checks need not pass.
fn handle_failing_evidence(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
    shown: &Evidence,
) -> Option<HandoffOutcome> {
    let (used, options) = limit_revisions(desk, judge);
    let findings = shown.to_findings();
    let failing = findings.iter().filter(|it| it.severity == FindingSeverity::Critical).count();
    // Without a repository no attempt can produce evidence: only a person can decide.
    let nowhere = shown.commit.is_none() && shown.anomalies.is_empty();
    // A check that cannot run on the machine cannot be fixed by an attempt. A check that failed twice with the same output would fail a
    // third time.
    let stuck = shown.first_obstacle().is_some() || shown.first_repeated().is_some();
    let next = match decide_after_tests(true, used, &options) {
        ReviewNextStep::Revise if nowhere || stuck => ReviewNextStep::Escalate,
        next => next,
    };
    match next {
        ReviewNextStep::Accept | ReviewNextStep::ProceedNoted => None,
        ReviewNextStep::Revise => {
            let round = used + 1;
            let most = options.max_review_iterations;
            let note =
                format!("{failing} things speak against the result: revision {round} of {most}");
            Some(verification_outcome(VerifyOutcome::Redo, findings, Vec::new(), note))
        }
        ReviewNextStep::Escalate => {
            if let Some(said) = answers::parse_answer(judge.answer.as_ref()) {
                let waived = matches!(said, PersonAnswer::Proceed)
                    .then(|| "a person took it as it is".to_owned());
                return Some(with_waiver(
                    outcome_by_person(judge, said, VerifyOutcome::Redo, findings),
                    waived,
                ));
            }
            let (worst, more) = shown.listed_findings();
            let mut listed: String = worst
                .iter()
                .map(|finding| {
                    format!("\n- {}", fence::sanitize_line(&finding.describe_finding(), 300))
                })
                .collect();
            if more > 0 {
                let task = desk.handoff.context.task.as_ref();
                let task = task.map_or_else(|| "TASK".to_owned(), |task| task.id.to_string());
                let _ = write!(
                    listed,
                    "\nand {more} more: `cynork task evidence {task}` shows them. Who proceeds takes them with this unit, and later \
                     units answer for them again."
                );
            }
            let title = fence::sanitize_line(&judge.title, 200);
            let times = judge.unit_attempt;
            if let Some((result, why)) = shown.first_obstacle() {
                let check = fence::sanitize_line(&result.check.command_line(), 200);
                let (why, remedy) = (why.describe_obstacle(), why.suggested_fix(&result.check));
                return Some(question_outcome(format!(
                    "What `{title}` brought cannot be checked: `{check}` cannot run here, {why}. {remedy}{listed}\n{RERUN_CHECKS_HINT} {ANSWER_CHOICES_HINT}"
                )));
            }
            let alike = shown.first_repeated().map(|result| {
                let check = fence::sanitize_line(&result.check.command_line(), 200);
                format!("\n`{check}` failed twice with the same words, so no further attempt is paid without you.")
            });
            let alike = alike.unwrap_or_default();
            Some(question_outcome(if nowhere {
                format!(
                    "What `{title}` brought cannot be checked: the project has no repository.{listed}\n{ANSWER_CHOICES_HINT}"
                )
            } else {
                format!(
                    "After {times} attempts this still speaks against `{title}`:{listed}{alike}\n{ANSWER_CHOICES_HINT}"
                )
            }))
        }
    }
}

/// Hint for a person who has made a check runnable.
const RERUN_CHECKS_HINT: &str =
    "Answer `again` when it can run: the checks are run again, and no agent works for it.";

/// Returns the number of revisions so far, and the options with at most as many revisions as there are attempts.
fn limit_revisions(desk: &DecisionContext<'_>, judge: &ResultVerification) -> (u32, ReviewOptions) {
    let options = review_options(desk);
    let used = judge.unit_attempt.saturating_sub(1);
    let most = used.saturating_add(judge.attempts_left.unwrap_or(u32::MAX));
    let max_review_iterations = options.max_review_iterations.min(most);
    (used, ReviewOptions { max_review_iterations, ..options })
}

/// Adds the findings of the checks to a verdict.
fn with_evidence(
    outcome: HandoffOutcome,
    shown: &Evidence,
    waived: Option<String>,
) -> HandoffOutcome {
    let mut outcome = with_waiver(outcome, waived);
    if let HandoffOutcome::Answer(answer) = &mut outcome
        && let HandoffAnswer::Judged(judged) = answer.as_mut()
    {
        for finding in shown.to_findings() {
            if !judged.findings.contains(&finding) && judged.findings.len() < MAX_FINDINGS {
                judged.findings.push(finding);
            }
        }
        judged.findings.sort_by_key(|finding| finding.severity);
    }
    outcome
}

fn with_waiver(mut outcome: HandoffOutcome, waived: Option<String>) -> HandoffOutcome {
    if let HandoffOutcome::Answer(answer) = &mut outcome
        && let HandoffAnswer::Judged(judged) = answer.as_mut()
        && judged.outcome == VerifyOutcome::Accept
    {
        judged.waived = waived;
    }
    outcome
}

/// Returns why an output reports a failure itself.
fn reported_failure(output: &Value) -> Option<String> {
    let field = |name: &str| output.get(name).and_then(Value::as_str).map(str::to_lowercase);
    let bad = |word: &String| {
        matches!(
            word.as_str(),
            "failed"
                | "failure"
                | "error"
                | "errored"
                | "cancelled"
                | "canceled"
                | "lost"
                | "timeout"
                | "crashed"
                | "refused"
                | "unverified"
                | "inactive"
                | "no_progress"
                | "limit"
        )
    };
    let told = ["status", "outcome", "stop_reason"].into_iter().filter_map(field).find(bad)?;
    let summary = output.get("summary").and_then(Value::as_str).unwrap_or_default();
    Some(fence::sanitize_line(&format!("{told} {summary}"), 500))
}

fn critical_finding(text: String) -> VerificationFinding {
    VerificationFinding::new(FindingSeverity::Critical, text)
}

fn verification_outcome(
    outcome: VerifyOutcome,
    mut findings: Vec<VerificationFinding>,
    recommended_actions: Vec<String>,
    note: impl Into<String>,
) -> HandoffOutcome {
    findings.truncate(MAX_FINDINGS);
    for finding in &mut findings {
        finding.text = fence::sanitize_text(&finding.text, 1_500);
        for words in [&mut finding.at, &mut finding.how_to_fix] {
            *words = words
                .as_deref()
                .map(|text| fence::sanitize_line(text, 300))
                .filter(|it| !it.is_empty());
        }
    }
    let note = note.into();
    let by_person = false;
    let waived = None;
    let judged = VerifyAnswer { outcome, findings, recommended_actions, note, by_person, waived };
    to_outcome(HandoffAnswer::Judged(judged))
}

fn redo_outcome(findings: Vec<VerificationFinding>, note: &str) -> HandoffOutcome {
    verification_outcome(VerifyOutcome::Redo, findings, Vec::new(), note)
}

fn question_outcome(question: String) -> HandoffOutcome {
    to_outcome(HandoffAnswer::Ask { question })
}

/// Builds the verdict from a person's decision about a result.
fn outcome_by_person(
    judge: &ResultVerification,
    said: PersonAnswer,
    otherwise: VerifyOutcome,
    findings: Vec<VerificationFinding>,
) -> HandoffOutcome {
    let mut outcome = outcome_of_answer(judge, said, otherwise, findings);
    if let HandoffOutcome::Answer(answer) = &mut outcome
        && let HandoffAnswer::Judged(judged) = answer.as_mut()
    {
        judged.by_person = true;
    }
    outcome
}

fn outcome_of_answer(
    judge: &ResultVerification,
    said: PersonAnswer,
    otherwise: VerifyOutcome,
    mut findings: Vec<VerificationFinding>,
) -> HandoffOutcome {
    match said {
        PersonAnswer::Stop(why) => {
            let note = format!("a person gave it up: {}", fence::sanitize_line(&why, 300));
            verification_outcome(VerifyOutcome::GiveUp, findings, Vec::new(), note)
        }
        PersonAnswer::Proceed => verification_outcome(
            VerifyOutcome::Accept,
            findings,
            Vec::new(),
            "a person took it as it is",
        ),
        PersonAnswer::Words(words) => {
            let text = answers::quote_answer(&words, judge.answer.as_ref());
            findings.insert(0, VerificationFinding::new(FindingSeverity::Major, text));
            verification_outcome(
                otherwise,
                findings,
                Vec::new(),
                "a person said what is to be done",
            )
        }
    }
}

async fn verify_review(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
    payload: &UnitPayload,
) -> Result<HandoffOutcome, DecisionError> {
    let options = review_options(desk);
    let Some(feedback) = review_verdict(desk, judge, payload) else {
        let missing = "there is no report of the kind review_approved or review_changes_requested that can be read";
        return Ok(handle_missing_report(
            desk,
            judge,
            "reviewer",
            missing,
            "the review has no verdict",
        ));
    };
    let mut findings = feedback.to_findings();
    let verdict = match feedback.verdict {
        ReviewOutcome::Approved => ReviewConclusion::Approved,
        ReviewOutcome::ChangesRequested => ReviewConclusion::ChangesRequested,
    };
    if findings.is_empty() && verdict == ReviewConclusion::ChangesRequested {
        let text =
            line_or_default(&feedback.summary, "the review wants changes and does not say which");
        findings.push(VerificationFinding::new(FindingSeverity::Major, text));
    }
    let issues = count_issues(&findings);
    Ok(match decide_after_review(verdict, issues, payload.iteration, &options) {
        ReviewNextStep::Accept => {
            return handle_approved_review(desk, judge, payload, &feedback, findings).await;
        }
        ReviewNextStep::Revise => {
            let round = payload.iteration + 1;
            let note = format!(
                "the review wants changes ({} critical, {} major): revision {round} of {}",
                issues.critical, issues.major, options.max_review_iterations
            );
            verification_outcome(VerifyOutcome::Revise, findings, Vec::new(), note)
        }
        ReviewNextStep::ProceedNoted => {
            let note = format!(
                "the review still wants changes after {} revisions; it goes on with the issues noted",
                payload.iteration
            );
            verification_outcome(VerifyOutcome::Accept, findings, Vec::new(), note)
        }
        ReviewNextStep::Escalate => escalate_findings(judge, payload, findings, "review"),
    })
}

/// Decides about a result without a readable report: the unit is retried, and then a person is asked. Work is not discarded because a
/// report is missing.
fn handle_missing_report(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
    who: &str,
    missing: &str,
    note: &str,
) -> HandoffOutcome {
    let findings = vec![critical_finding(missing.to_owned())];
    if let Some(said) = answers::parse_answer(judge.answer.as_ref()) {
        let said = match said {
            PersonAnswer::Words(words) if is_acceptance(&words) => PersonAnswer::Proceed,
            said => said,
        };
        let taken = vec![VerificationFinding::new(FindingSeverity::Note, missing)];
        let findings = if matches!(said, PersonAnswer::Proceed) { taken } else { findings };
        return outcome_by_person(judge, said, VerifyOutcome::Redo, findings);
    }
    if judge.attempts_left.is_none_or(|left| left > 0) {
        return redo_outcome(findings, note);
    }
    let task = desk.handoff.context.task.as_ref();
    let task = task.map_or_else(|| "TASK".to_owned(), |task| task.id.to_string());
    let (title, times) = (fence::sanitize_line(&judge.title, 200), judge.unit_attempt);
    question_outcome(format!(
        "The {who} of `{title}` left no report that can be read, in {times} attempts. What was built before it was checked and taken: \
         `cynork task diff {task}` shows it.\nAnswer `accept` to take the work without it, `again` to have it done once more, or `stop` \
         to give the task up."
    ))
}

/// Returns whether an answer is exactly the word that accepts the work.
fn is_acceptance(words: &str) -> bool {
    words.trim_matches(|c: char| !c.is_alphanumeric()).eq_ignore_ascii_case("accept")
}

fn escalate_findings(
    judge: &ResultVerification,
    payload: &UnitPayload,
    findings: Vec<VerificationFinding>,
    what: &str,
) -> HandoffOutcome {
    if let Some(said) = answers::parse_answer(judge.answer.as_ref()) {
        return outcome_by_person(judge, said, VerifyOutcome::Revise, findings);
    }
    let issues = render_findings(&findings);
    question_outcome(format!(
        "After {} revisions the {what} is still not good:{issues}\n{ANSWER_CHOICES_HINT}",
        payload.iteration
    ))
}

/// Renders the critical and major findings as a list for a person.
fn render_findings(findings: &[VerificationFinding]) -> String {
    findings
        .iter()
        .filter(|finding| {
            matches!(finding.severity, FindingSeverity::Critical | FindingSeverity::Major)
        })
        .take(10)
        .map(|finding| format!("\n- {}", fence::sanitize_line(&finding.describe_finding(), 300)))
        .collect()
}

/// Returns the verdict of a review, from the reviewer's last report.
fn review_verdict(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
    payload: &UnitPayload,
) -> Option<ReviewFeedback> {
    let verdicts =
        |kind| matches!(kind, ReportKind::ReviewApproved | ReportKind::ReviewChangesRequested);
    let role = reporting_role(payload);
    let report = last_report(desk, judge.unit.as_str(), |by| by == role, verdicts)?;
    match report.kind.parse_payload(report.details.clone()) {
        Ok(ReportPayload::Review(mut feedback)) => {
            if feedback.summary.trim().is_empty() {
                feedback.summary.clone_from(&report.summary);
            }
            Some(feedback)
        }
        Ok(_) | Err(_) => None,
    }
}

fn count_issues(findings: &[VerificationFinding]) -> IssueCounts {
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    IssueCounts {
        critical: of(FindingSeverity::Critical),
        major: of(FindingSeverity::Major),
        minor: of(FindingSeverity::Minor),
    }
}

/// Handles an approved review: asks whether tests are needed, unless the workflow has a test stage.
async fn handle_approved_review(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
    payload: &UnitPayload,
    feedback: &ReviewFeedback,
    mut findings: Vec<VerificationFinding>,
) -> Result<HandoffOutcome, DecisionError> {
    let planned = desk.handoff.context.planned.as_deref().map(|planned| &planned.plan);
    let plan = judge.plan.as_ref().or(planned);
    if plan.is_some_and(|plan| has_unit_of_kind(plan, UnitKind::Test)) {
        return Ok(verification_outcome(
            VerifyOutcome::Accept,
            findings,
            Vec::new(),
            "the review found it good",
        ));
    }
    let task = super::handoff_task(desk)?;
    let project = super::planned_project(desk);
    let question =
        prompts::choose_tests_prompt(&task.description, payload.scope, &project, &feedback.summary);
    let TestSelection { why, commands, needed } = desk.make_decision(&question).await?;
    let why = fence::sanitize_line(&why, 500);
    Ok(if needed {
        findings.insert(
            0,
            VerificationFinding::new(
                FindingSeverity::Note,
                format!("{TESTS_REQUIRED_PREFIX}{why}"),
            ),
        );
        let commands = commands.iter().map(|command| fence::sanitize_line(command, 300)).collect();
        verification_outcome(
            VerifyOutcome::Revise,
            findings,
            commands,
            "the review found it good; tests are to be run",
        )
    } else {
        let note = format!("the review found it good; no tests are needed: {why}");
        verification_outcome(VerifyOutcome::Accept, findings, Vec::new(), note)
    })
}

fn verify_tests(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
    payload: &UnitPayload,
) -> HandoffOutcome {
    let options = review_options(desk);
    let Some((results, said, summary)) = find_test_results(desk, judge, payload) else {
        let missing =
            "there is no report of the kind tests_passed or tests_failed that can be read";
        return handle_missing_report(desk, judge, "tester", missing, "the tests have no result");
    };
    // A success report with failures counts as a failure.
    let bad = said == ReportKind::TestsFailed || results.failed > 0 || !results.failures.is_empty();
    let findings = test_failure_findings(&results, &summary, bad, options);
    match decide_after_tests(bad, payload.iteration, &options) {
        ReviewNextStep::Accept => {
            let note = format!("the tests passed ({})", results.passed);
            verification_outcome(VerifyOutcome::Accept, findings, Vec::new(), note)
        }
        ReviewNextStep::ProceedNoted => {
            let note = "tests failed, and need not pass; it goes on with the failures noted";
            verification_outcome(VerifyOutcome::Accept, findings, Vec::new(), note)
        }
        ReviewNextStep::Revise => {
            let round = payload.iteration + 1;
            let note =
                format!("tests failed: revision {round} of {}", options.max_review_iterations);
            verification_outcome(VerifyOutcome::Revise, findings, Vec::new(), note)
        }
        ReviewNextStep::Escalate => escalate_findings(judge, payload, findings, "test"),
    }
}

fn find_test_results(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
    payload: &UnitPayload,
) -> Option<(TestResults, ReportKind, String)> {
    let results = |kind| matches!(kind, ReportKind::TestsPassed | ReportKind::TestsFailed);
    let role = reporting_role(payload);
    let report = last_report(desk, judge.unit.as_str(), |by| by == role, results)?;
    match report.kind.parse_payload(report.details.clone()) {
        Ok(ReportPayload::Tests(results)) => Some((results, report.kind, report.summary.clone())),
        Ok(_) | Err(_) => None,
    }
}

fn test_failure_findings(
    results: &TestResults,
    summary: &str,
    bad: bool,
    options: ReviewOptions,
) -> Vec<VerificationFinding> {
    if !bad {
        return Vec::new();
    }
    let severity =
        if options.require_tests_pass { FindingSeverity::Major } else { FindingSeverity::Minor };
    let mut findings: Vec<VerificationFinding> = results
        .failures
        .iter()
        .take(20)
        .map(|text| VerificationFinding::new(severity, fence::sanitize_line(text, 500)))
        .collect();
    if findings.is_empty() {
        let text = line_or_default(summary, "tests failed, and nobody said which");
        findings.push(VerificationFinding::new(severity, text));
    }
    findings
}

fn line_or_default(text: &str, otherwise: &str) -> String {
    let text = fence::sanitize_line(text, 1_000);
    if text.is_empty() { otherwise.to_owned() } else { text }
}

/// Verifies a unit without a review of its own: by an analyst, or by the project manager if analysts are disabled.
async fn verify_unit(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
) -> Result<HandoffOutcome, DecisionError> {
    if let Some(said) = answers::parse_answer(judge.answer.as_ref()) {
        return Ok(outcome_by_person(judge, said, VerifyOutcome::Redo, Vec::new()));
    }
    // An agent whose last report is a question is not done.
    let unit = judge.unit.as_str();
    if let Some(report) = last_report(desk, unit, |_| true, |_| true)
        && report.kind.needs_decision()
    {
        let about = fence::sanitize_line(&judge.title, 200);
        let words = fence::sanitize_text(&report.summary, 1_500);
        return Ok(question_outcome(format!(
            "The {} of `{about}` says ({}):\n{words}\n{ANSWER_CHOICES_HINT}",
            report.agent_role.as_str(),
            report.kind.as_str(),
        )));
    }
    let delegated = &desk.handoff.delegated;
    if delegated.is_empty() {
        let enabled = find_preference(
            &desk.handoff.context.preferences,
            "agents.project_manager.analysts.enabled",
        );
        // Only an explicit `false` disables analysts.
        if enabled.and_then(Value::as_bool).unwrap_or(true) {
            return Ok(HandoffOutcome::Delegate);
        }
        let own = review_result(desk, judge).await?;
        return Ok(merge_analyses(desk, judge, &[own]));
    }
    let task = super::handoff_task(desk)?.id;
    if delegated.iter().any(|analysed| analysed.task_id != task) {
        return Err(DecisionError::Permanent("an analyst answered about another task".into()));
    }
    Ok(merge_analyses(desk, judge, delegated))
}

/// Combines the verdicts of analysts: the worst one decides.
fn merge_analyses(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
    analysed: &[AnalysisAnswer],
) -> HandoffOutcome {
    let options = review_options(desk);
    let mut findings: Vec<VerificationFinding> = Vec::new();
    let mut actions: Vec<String> = Vec::new();
    for one in analysed {
        for finding in &one.findings {
            if !findings.contains(finding) {
                findings.push(finding.clone());
            }
        }
        actions
            .extend(one.recommended_actions.iter().map(|action| fence::sanitize_line(action, 500)));
    }
    actions.truncate(MAX_FINDINGS);
    let issues = count_issues(&findings);
    let grave = issues.critical > 0 || issues.major > 0;
    let is = |status| analysed.iter().any(|one| one.status == status);
    if grave && !is(AnalysisStatus::NeedsClarification) {
        return handle_rejected_result(desk, judge, findings, actions);
    }
    if is(AnalysisStatus::Fail) {
        if issues.minor > 0 && options.skip_minor_issues && !grave {
            let note = "an analyst found only minor issues; they are noted";
            return verification_outcome(VerifyOutcome::Accept, findings, actions, note);
        }
        if !grave && issues.minor == 0 {
            let text = "an analyst found it not good and did not say why".to_owned();
            findings.push(VerificationFinding::new(FindingSeverity::Major, text));
        }
        return handle_rejected_result(desk, judge, findings, actions);
    }
    if is(AnalysisStatus::NeedsClarification) {
        let open: String = findings
            .iter()
            .take(10)
            .map(|finding| {
                format!("\n- {}", fence::sanitize_line(&finding.describe_finding(), 300))
            })
            .collect();
        let about = fence::sanitize_line(&judge.title, 200);
        return question_outcome(format!(
            "It cannot be told whether `{about}` is done:{open}\n{ANSWER_CHOICES_HINT}"
        ));
    }
    verification_outcome(VerifyOutcome::Accept, findings, actions, "an analyst found it good")
}

/// Decides about a result that an analyst rejected: it is revised, or the configured limit action applies.
fn handle_rejected_result(
    desk: &DecisionContext<'_>,
    judge: &ResultVerification,
    findings: Vec<VerificationFinding>,
    actions: Vec<String>,
) -> HandoffOutcome {
    let (used, options) = limit_revisions(desk, judge);
    match decide_after_review(
        ReviewConclusion::ChangesRequested,
        count_issues(&findings),
        used,
        &options,
    ) {
        ReviewNextStep::Accept | ReviewNextStep::Revise => verification_outcome(
            VerifyOutcome::Redo,
            findings,
            actions,
            "an analyst found it not good",
        ),
        ReviewNextStep::ProceedNoted => {
            let times = judge.unit_attempt;
            let note = format!(
                "an analyst still found it not good after {times} attempts; it goes on with the issues noted"
            );
            verification_outcome(VerifyOutcome::Accept, findings, actions, note)
        }
        ReviewNextStep::Escalate => {
            let about = fence::sanitize_line(&judge.title, 200);
            let (issues, times) = (render_findings(&findings), judge.unit_attempt);
            question_outcome(format!(
                "After {times} attempts an analyst still finds `{about}` not good:{issues}\n{ANSWER_CHOICES_HINT}"
            ))
        }
    }
}
