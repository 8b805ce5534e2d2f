//! What follows a result. What workers bring and report are claims; a review's verdict, tests' results and an analyst's findings
//! are put together by rule.

use std::fmt::Write as _;

use cynode_core::judgement::{
    UnitKind,
    review::{Issues, Next, ReviewOptions, Verdict, after_review, after_tests},
};
use cynode_wire::{
    evidence::Evidence,
    handoffs::{Analysed, AnalysisStatus, HandoffAnswer, Judge, Judged, JudgedOutcome},
    reports::{ReportKind, ReportPayload, ReviewFeedback, ReviewVerdict, TestResults},
    workflow::{Finding, Severity},
};
use serde_json::Value;

use super::{
    super::{
        Outcome,
        analyst::reviewed,
        answers::{self, CHOICES, Said},
        decisions::TestsChosen,
        fence, prompts,
        unit::{UnitPayload, has},
    },
    answered,
    dispatch::reporter,
    last_report, options, preference,
};
use crate::desk::{Desk, Trouble};

/// How a finding begins that asks for tests after a good review.
pub const TESTS_WANTED: &str = "tests are wanted: ";

/// Most findings of one judgement.
const MOST: usize = 40;

pub(super) async fn verify(desk: &Desk<'_>, judge: &Judge) -> Result<Outcome, Trouble> {
    let payload = UnitPayload::read(&judge.unit, &judge.payload)?;
    if let Some(why) = failed(&judge.output) {
        let why = format!("the worker itself says that it failed: {why}");
        return Ok(redo(vec![critical(why)], "the result says that it failed"));
    }
    let shown = judge.evidence.clone().unwrap_or_default();
    if !shown.holds()
        && let Some(outcome) = spoken_against(desk, judge, &shown)
    {
        return Ok(outcome);
    }
    let waived = (!shown.holds()).then(|| NEED_NOT_PASS.to_owned());
    let outcome = match payload.kind {
        UnitKind::Review => review(desk, judge, &payload).await,
        UnitKind::Test => Ok(test(desk, judge, &payload)),
        UnitKind::Init
        | UnitKind::Spec
        | UnitKind::Design
        | UnitKind::Implementation
        | UnitKind::Fix => ordinary(desk, judge).await,
        // Nobody made anything: what was put together is checked, and that is all.
        UnitKind::Integration => {
            let note = "what was made beside each other was put together";
            Ok(judged(JudgedOutcome::Accept, Vec::new(), Vec::new(), note))
        }
    };
    Ok(with_evidence(outcome?, &shown, waived))
}

/// Why a result is taken though checks do not hold, when the installation wants it so.
const NEED_NOT_PASS: &str =
    "checks need not pass here (agents.project_manager.review.require_tests_pass)";

/// What follows a result that evidence speaks against. No model and no analyst is asked: it is not done. `None` when checks need not pass.
fn spoken_against(desk: &Desk<'_>, judge: &Judge, shown: &Evidence) -> Option<Outcome> {
    let (used, options) = limited(desk, judge);
    let findings = shown.findings();
    let failing = findings.iter().filter(|it| it.severity == Severity::Critical).count();
    // Where there are no files no attempt can show anything: only a person can decide.
    let nowhere = shown.commit.is_none() && shown.odd.is_empty();
    let next = match after_tests(true, used, &options) {
        Next::Revise if nowhere => Next::Escalate,
        next => next,
    };
    match next {
        Next::Accept | Next::ProceedNoted => None,
        Next::Revise => {
            let round = used + 1;
            let most = options.max_review_iterations;
            let note =
                format!("{failing} things speak against the result: revision {round} of {most}");
            Some(judged(JudgedOutcome::Redo, findings, Vec::new(), note))
        }
        Next::Escalate => {
            if let Some(said) = answers::read(judge.answer.as_ref()) {
                let waived =
                    matches!(said, Said::Proceed).then(|| "a person took it as it is".to_owned());
                return Some(with_waiver(
                    by_person(judge, said, JudgedOutcome::Redo, findings),
                    waived,
                ));
            }
            let (worst, more) = shown.listed();
            let mut listed: String = worst
                .iter()
                .map(|finding| format!("\n- {}", fence::line(&finding.told(), 300)))
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
            let title = fence::line(&judge.title, 200);
            let times = judge.unit_attempt;
            Some(ask(if nowhere {
                format!(
                    "What `{title}` brought cannot be checked: the project has no repository.{listed}\n{CHOICES}"
                )
            } else {
                format!(
                    "After {times} attempts this still speaks against `{title}`:{listed}\n{CHOICES}"
                )
            }))
        }
    }
}

/// How often a unit went back already, and the options with no more revisions than there are attempts.
fn limited(desk: &Desk<'_>, judge: &Judge) -> (u32, ReviewOptions) {
    let options = options(desk);
    let used = judge.unit_attempt.saturating_sub(1);
    let most = used.saturating_add(judge.attempts_left.unwrap_or(u32::MAX));
    let max_review_iterations = options.max_review_iterations.min(most);
    (used, ReviewOptions { max_review_iterations, ..options })
}

/// A judgement with what the checks noted beside it.
fn with_evidence(outcome: Outcome, shown: &Evidence, waived: Option<String>) -> Outcome {
    let mut outcome = with_waiver(outcome, waived);
    if let Outcome::Answer(answer) = &mut outcome
        && let HandoffAnswer::Judged(judged) = answer.as_mut()
    {
        for finding in shown.findings() {
            if !judged.findings.contains(&finding) && judged.findings.len() < MOST {
                judged.findings.push(finding);
            }
        }
        judged.findings.sort_by_key(|finding| finding.severity);
    }
    outcome
}

fn with_waiver(mut outcome: Outcome, waived: Option<String>) -> Outcome {
    if let Outcome::Answer(answer) = &mut outcome
        && let HandoffAnswer::Judged(judged) = answer.as_mut()
        && judged.outcome == JudgedOutcome::Accept
    {
        judged.waived = waived;
    }
    outcome
}

/// Why an output is no success by its own words.
fn failed(output: &Value) -> Option<String> {
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
    let told = ["status", "outcome", "stop"].into_iter().filter_map(field).find(bad)?;
    let summary = output.get("summary").and_then(Value::as_str).unwrap_or_default();
    Some(fence::line(&format!("{told} {summary}"), 500))
}

fn critical(text: String) -> Finding {
    Finding::new(Severity::Critical, text)
}

fn judged(
    outcome: JudgedOutcome,
    mut findings: Vec<Finding>,
    recommended_actions: Vec<String>,
    note: impl Into<String>,
) -> Outcome {
    findings.truncate(MOST);
    for finding in &mut findings {
        finding.text = fence::clean(&finding.text, 1_500);
        for words in [&mut finding.at, &mut finding.how_to_fix] {
            *words =
                words.as_deref().map(|text| fence::line(text, 300)).filter(|it| !it.is_empty());
        }
    }
    let note = note.into();
    let by_person = false;
    let waived = None;
    let judged = Judged { outcome, findings, recommended_actions, note, by_person, waived };
    answered(HandoffAnswer::Judged(judged))
}

fn redo(findings: Vec<Finding>, note: &str) -> Outcome {
    judged(JudgedOutcome::Redo, findings, Vec::new(), note)
}

fn ask(question: String) -> Outcome {
    answered(HandoffAnswer::Ask { question })
}

/// What a person decided about a result that nobody else could decide about.
fn by_person(
    judge: &Judge,
    said: Said,
    otherwise: JudgedOutcome,
    findings: Vec<Finding>,
) -> Outcome {
    let mut outcome = decided(judge, said, otherwise, findings);
    if let Outcome::Answer(answer) = &mut outcome
        && let HandoffAnswer::Judged(judged) = answer.as_mut()
    {
        judged.by_person = true;
    }
    outcome
}

fn decided(
    judge: &Judge,
    said: Said,
    otherwise: JudgedOutcome,
    mut findings: Vec<Finding>,
) -> Outcome {
    match said {
        Said::Stop(why) => {
            let note = format!("a person gave it up: {}", fence::line(&why, 300));
            judged(JudgedOutcome::GiveUp, findings, Vec::new(), note)
        }
        Said::Proceed => {
            judged(JudgedOutcome::Accept, findings, Vec::new(), "a person took it as it is")
        }
        Said::Words(words) => {
            let text = answers::quoted(&words, judge.answer.as_ref());
            findings.insert(0, Finding::new(Severity::Major, text));
            judged(otherwise, findings, Vec::new(), "a person said what is to be done")
        }
    }
}

async fn review(desk: &Desk<'_>, judge: &Judge, payload: &UnitPayload) -> Result<Outcome, Trouble> {
    let options = options(desk);
    let Some(feedback) = verdict(desk, judge, payload) else {
        let missing = "there is no report of the kind review_approved or review_changes_requested that can be read";
        return Ok(redo(vec![critical(missing.to_owned())], "the review has no verdict"));
    };
    let mut findings = feedback.findings();
    let verdict = match feedback.verdict {
        ReviewVerdict::Approved => Verdict::Approved,
        ReviewVerdict::ChangesRequested => Verdict::ChangesRequested,
    };
    if findings.is_empty() && verdict == Verdict::ChangesRequested {
        let text = told(&feedback.summary, "the review wants changes and does not say which");
        findings.push(Finding::new(Severity::Major, text));
    }
    let issues = counted(&findings);
    Ok(match after_review(verdict, issues, payload.iteration, &options) {
        Next::Accept => return approved(desk, judge, payload, &feedback, findings).await,
        Next::Revise => {
            let round = payload.iteration + 1;
            let note = format!(
                "the review wants changes ({} critical, {} major): revision {round} of {}",
                issues.critical, issues.major, options.max_review_iterations
            );
            judged(JudgedOutcome::Revise, findings, Vec::new(), note)
        }
        Next::ProceedNoted => {
            let note = format!(
                "the review still wants changes after {} revisions; it goes on with the issues noted",
                payload.iteration
            );
            judged(JudgedOutcome::Accept, findings, Vec::new(), note)
        }
        Next::Escalate => escalated(judge, payload, findings, "review"),
    })
}

fn escalated(judge: &Judge, payload: &UnitPayload, findings: Vec<Finding>, what: &str) -> Outcome {
    if let Some(said) = answers::read(judge.answer.as_ref()) {
        return by_person(judge, said, JudgedOutcome::Revise, findings);
    }
    let issues = listed(&findings);
    ask(format!(
        "After {} revisions the {what} is still not good:{issues}\n{CHOICES}",
        payload.iteration
    ))
}

/// The findings that are more than minor, as a list for a person.
fn listed(findings: &[Finding]) -> String {
    findings
        .iter()
        .filter(|finding| matches!(finding.severity, Severity::Critical | Severity::Major))
        .take(10)
        .map(|finding| format!("\n- {}", fence::line(&finding.told(), 300)))
        .collect()
}

/// The verdict of a review, from the reviewer's last report.
fn verdict(desk: &Desk<'_>, judge: &Judge, payload: &UnitPayload) -> Option<ReviewFeedback> {
    let verdicts =
        |kind| matches!(kind, ReportKind::ReviewApproved | ReportKind::ReviewChangesRequested);
    let role = reporter(payload);
    let report = last_report(desk, judge.unit.as_str(), |by| by == role, verdicts)?;
    match report.kind.payload(report.details.clone()) {
        Ok(ReportPayload::Review(mut feedback)) => {
            if feedback.summary.trim().is_empty() {
                feedback.summary.clone_from(&report.summary);
            }
            Some(feedback)
        }
        Ok(_) | Err(_) => None,
    }
}

fn counted(findings: &[Finding]) -> Issues {
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    Issues {
        critical: of(Severity::Critical),
        major: of(Severity::Major),
        minor: of(Severity::Minor),
    }
}

/// A good review: are tests needed? Not asked where the workflow has a stage for them.
async fn approved(
    desk: &Desk<'_>,
    judge: &Judge,
    payload: &UnitPayload,
    feedback: &ReviewFeedback,
    mut findings: Vec<Finding>,
) -> Result<Outcome, Trouble> {
    let planned = desk.handoff.context.planned.as_deref().map(|planned| &planned.plan);
    let plan = judge.plan.as_ref().or(planned);
    if plan.is_some_and(|plan| has(plan, UnitKind::Test)) {
        return Ok(judged(JudgedOutcome::Accept, findings, Vec::new(), "the review found it good"));
    }
    let task = super::task(desk)?;
    let project = super::project(desk);
    let question =
        prompts::choose_tests(&task.description, payload.scope, &project, &feedback.summary);
    let TestsChosen { why, commands, needed } = desk.think(&question).await?;
    let why = fence::line(&why, 500);
    Ok(if needed {
        findings.insert(0, Finding::new(Severity::Note, format!("{TESTS_WANTED}{why}")));
        let commands = commands.iter().map(|command| fence::line(command, 300)).collect();
        judged(
            JudgedOutcome::Revise,
            findings,
            commands,
            "the review found it good; tests are to be run",
        )
    } else {
        let note = format!("the review found it good; no tests are needed: {why}");
        judged(JudgedOutcome::Accept, findings, Vec::new(), note)
    })
}

fn test(desk: &Desk<'_>, judge: &Judge, payload: &UnitPayload) -> Outcome {
    let options = options(desk);
    let Some((results, said, summary)) = tested(desk, judge, payload) else {
        let missing =
            "there is no report of the kind tests_passed or tests_failed that can be read";
        return redo(vec![critical(missing.to_owned())], "the tests have no result");
    };
    // A yes with failures is no yes.
    let bad = said == ReportKind::TestsFailed || results.failed > 0 || !results.failures.is_empty();
    let findings = failures(&results, &summary, bad, options);
    match after_tests(bad, payload.iteration, &options) {
        Next::Accept => {
            let note = format!("the tests passed ({})", results.passed);
            judged(JudgedOutcome::Accept, findings, Vec::new(), note)
        }
        Next::ProceedNoted => {
            let note = "tests failed, and need not pass; it goes on with the failures noted";
            judged(JudgedOutcome::Accept, findings, Vec::new(), note)
        }
        Next::Revise => {
            let round = payload.iteration + 1;
            let note =
                format!("tests failed: revision {round} of {}", options.max_review_iterations);
            judged(JudgedOutcome::Revise, findings, Vec::new(), note)
        }
        Next::Escalate => escalated(judge, payload, findings, "test"),
    }
}

fn tested(
    desk: &Desk<'_>,
    judge: &Judge,
    payload: &UnitPayload,
) -> Option<(TestResults, ReportKind, String)> {
    let results = |kind| matches!(kind, ReportKind::TestsPassed | ReportKind::TestsFailed);
    let role = reporter(payload);
    let report = last_report(desk, judge.unit.as_str(), |by| by == role, results)?;
    match report.kind.payload(report.details.clone()) {
        Ok(ReportPayload::Tests(results)) => Some((results, report.kind, report.summary.clone())),
        Ok(_) | Err(_) => None,
    }
}

fn failures(
    results: &TestResults,
    summary: &str,
    bad: bool,
    options: ReviewOptions,
) -> Vec<Finding> {
    if !bad {
        return Vec::new();
    }
    let severity = if options.require_tests_pass { Severity::Major } else { Severity::Minor };
    let mut findings: Vec<Finding> = results
        .failures
        .iter()
        .take(20)
        .map(|text| Finding::new(severity, fence::line(text, 500)))
        .collect();
    if findings.is_empty() {
        let text = told(summary, "tests failed, and nobody said which");
        findings.push(Finding::new(severity, text));
    }
    findings
}

fn told(text: &str, otherwise: &str) -> String {
    let text = fence::line(text, 1_000);
    if text.is_empty() { otherwise.to_owned() } else { text }
}

/// A unit that nobody else judges: an analyst does, or the project manager itself where there are none.
async fn ordinary(desk: &Desk<'_>, judge: &Judge) -> Result<Outcome, Trouble> {
    if let Some(said) = answers::read(judge.answer.as_ref()) {
        return Ok(by_person(judge, said, JudgedOutcome::Redo, Vec::new()));
    }
    // An agent whose last word was a question is not done.
    let unit = judge.unit.as_str();
    if let Some(report) = last_report(desk, unit, |_| true, |_| true)
        && report.kind.asks()
    {
        let about = fence::line(&judge.title, 200);
        let words = fence::clean(&report.summary, 1_500);
        return Ok(ask(format!(
            "The {} of `{about}` says ({}):\n{words}\n{CHOICES}",
            report.agent_role.as_str(),
            report.kind.as_str(),
        )));
    }
    let delegated = &desk.handoff.delegated;
    if delegated.is_empty() {
        let enabled = preference(
            &desk.handoff.context.preferences,
            "agents.project_manager.analysts.enabled",
        );
        // Only a plain no switches them off.
        if enabled.and_then(Value::as_bool).unwrap_or(true) {
            return Ok(Outcome::Delegate);
        }
        let own = reviewed(desk, judge).await?;
        return Ok(merged(desk, judge, &[own]));
    }
    let task = super::task(desk)?.id;
    if delegated.iter().any(|analysed| analysed.task_id != task) {
        return Err(Trouble::Permanent("an analyst answered about another task".into()));
    }
    Ok(merged(desk, judge, delegated))
}

/// What follows what analysts found: the worst decides.
fn merged(desk: &Desk<'_>, judge: &Judge, analysed: &[Analysed]) -> Outcome {
    let options = options(desk);
    let mut findings: Vec<Finding> = Vec::new();
    let mut actions: Vec<String> = Vec::new();
    for one in analysed {
        for finding in &one.findings {
            if !findings.contains(finding) {
                findings.push(finding.clone());
            }
        }
        actions.extend(one.recommended_actions.iter().map(|action| fence::line(action, 500)));
    }
    actions.truncate(MOST);
    let issues = counted(&findings);
    let grave = issues.critical > 0 || issues.major > 0;
    let is = |status| analysed.iter().any(|one| one.status == status);
    if grave && !is(AnalysisStatus::NeedsClarification) {
        return not_good(desk, judge, findings, actions);
    }
    if is(AnalysisStatus::Fail) {
        if issues.minor > 0 && options.skip_minor_issues && !grave {
            let note = "an analyst found only minor issues; they are noted";
            return judged(JudgedOutcome::Accept, findings, actions, note);
        }
        if !grave && issues.minor == 0 {
            let text = "an analyst found it not good and did not say why".to_owned();
            findings.push(Finding::new(Severity::Major, text));
        }
        return not_good(desk, judge, findings, actions);
    }
    if is(AnalysisStatus::NeedsClarification) {
        let open: String = findings
            .iter()
            .take(10)
            .map(|finding| format!("\n- {}", fence::line(&finding.told(), 300)))
            .collect();
        let about = fence::line(&judge.title, 200);
        return ask(format!("It cannot be told whether `{about}` is done:{open}\n{CHOICES}"));
    }
    judged(JudgedOutcome::Accept, findings, actions, "an analyst found it good")
}

/// What follows a result that an analyst found not good: it goes back, or what is wanted when it went back often enough.
fn not_good(
    desk: &Desk<'_>,
    judge: &Judge,
    findings: Vec<Finding>,
    actions: Vec<String>,
) -> Outcome {
    let (used, options) = limited(desk, judge);
    match after_review(Verdict::ChangesRequested, counted(&findings), used, &options) {
        Next::Accept | Next::Revise => {
            judged(JudgedOutcome::Redo, findings, actions, "an analyst found it not good")
        }
        Next::ProceedNoted => {
            let times = judge.unit_attempt;
            let note = format!(
                "an analyst still found it not good after {times} attempts; it goes on with the issues noted"
            );
            judged(JudgedOutcome::Accept, findings, actions, note)
        }
        Next::Escalate => {
            let about = fence::line(&judge.title, 200);
            let (issues, times) = (listed(&findings), judge.unit_attempt);
            ask(format!(
                "After {times} attempts an analyst still finds `{about}` not good:{issues}\n{CHOICES}"
            ))
        }
    }
}
