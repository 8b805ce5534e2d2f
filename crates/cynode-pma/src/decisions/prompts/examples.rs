//! Few-shot examples for prompts whose answer is a label. Each example has the format of the real data, and its reason
//! quotes that data. None of them is among the labelled inputs of `eval/`.

use std::io::{self, Write};

use cynode_core::{
    agents::AgentRole,
    workflow::{
        decisions::{IssueScope, WorkClass},
        findings::FindingSeverity,
        handoffs::{AnalysisStatus, FailureDecision},
    },
};
use serde::Serialize;
use serde_json::ser::Formatter;

use crate::decisions::{
    fence::fence_untrusted,
    types::{Classified, FailureHandled, ReviewFinding, Reviewed, Routed, Scoped},
};

/// Renders data and its answer.
fn render_example(data: &[(&'static str, &str)], answer: &impl Serialize) -> String {
    let data: String = data.iter().map(|(label, text)| fence_untrusted(label, text, 500)).collect();
    format!("{data}Answer: {}\n\n", to_spaced_json(answer))
}

/// Renders JSON in one line with spaces, as models write it by default.
fn to_spaced_json(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    let written =
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, SpacedFormatter));
    written.ok().and_then(|()| String::from_utf8(out).ok()).unwrap_or_default()
}

struct SpacedFormatter;

impl Formatter for SpacedFormatter {
    fn begin_array_value<W: Write + ?Sized>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}

/// Returns examples of each class.
pub(super) fn classify_examples() -> String {
    let worked = |(text, reason, class): (&str, &str, WorkClass)| {
        render_example(&[("Text", text)], &Classified { reason: reason.into(), class })
    };
    [
        (
            "We want a calculator for tiles, as a web page. Start from nothing.",
            "Start from nothing",
            WorkClass::NewProject,
        ),
        (
            "Dividing by zero shuts the calculator down.",
            "shuts the calculator down",
            WorkClass::QuickFix,
        ),
        (
            "Let the calculator remember the last ten results.",
            "remember the last ten results",
            WorkClass::FeatureRequest,
        ),
        (
            "The manual says 'teh keys', it should say 'the keys'.",
            "says 'teh keys', it should say 'the keys'",
            WorkClass::QuickFix,
        ),
        (
            "Brief: a phone app that counts birds. Must work offline. Deliver a first version.",
            "Brief: a phone app that counts birds",
            WorkClass::NewProject,
        ),
        (
            "Move the calculator to the newest version of its framework.",
            "Move the calculator to the newest version",
            WorkClass::FeatureRequest,
        ),
        (
            "Since the update the help page is empty and the menu leads nowhere.",
            "the help page is empty and the menu leads nowhere",
            WorkClass::QuickFix,
        ),
    ]
    .map(worked)
    .concat()
}

/// Returns examples of each scope.
pub(super) fn assess_scope_examples() -> String {
    let worked = |(text, facts, reason, components, files, scope): (
        &str,
        &str,
        &str,
        &[&str],
        u32,
        IssueScope,
    )| {
        let answer = Scoped {
            reason: reason.into(),
            components: components.iter().map(|it| (*it).to_owned()).collect(),
            estimated_files: files,
            scope,
        };
        render_example(&[("Text", text), ("What is known of the project", facts)], &answer)
    };
    [
        (
            "People can attach a file to a note.",
            "Notes have a form, a handler and a table.",
            "a form, a handler and a table",
            &["form", "handler", "table"][..],
            4,
            IssueScope::Medium,
        ),
        (
            "The button says Sav instead of Save.",
            "Labels are in labels.js, one string each.",
            "one string",
            &["labels.js"],
            1,
            IssueScope::Trivial,
        ),
        (
            "Several companies share one installation and must not see each other's notes.",
            "One company; every query reads all notes.",
            "every query reads all notes",
            &["every query", "users", "storage"],
            60,
            IssueScope::Large,
        ),
        (
            "Sort the list of notes by date, too, and remember the choice.",
            "list.py draws the list; nothing else does.",
            "list.py draws the list; nothing else does",
            &["list.py"],
            1,
            IssueScope::Small,
        ),
    ]
    .map(worked)
    .concat()
}

/// Returns examples of work for each role.
pub(super) fn route_examples() -> String {
    let worked = |(work, reason, role): (&str, &str, AgentRole)| {
        render_example(&[("Work", work)], &Routed { reason: reason.into(), role })
    };
    [
        (
            "Say in a document which parts the mail server will have and how they talk to each other.",
            "which parts the mail server will have",
            AgentRole::Architect,
        ),
        ("Draw the page that shows the weather.", "Draw the page", AgentRole::Designer),
        (
            "Go through the change to the clock and say if it is good enough.",
            "say if it is good enough",
            AgentRole::Reviewer,
        ),
        (
            "Start the clock on three systems and write down what it shows.",
            "Start the clock on three systems",
            AgentRole::Tester,
        ),
        (
            "The check found that the clock is an hour late. Put it right.",
            "Put it right",
            AgentRole::Fixer,
        ),
        (
            "Write the function that reads the thermometer.",
            "Write the function",
            AgentRole::Developer,
        ),
    ]
    .map(worked)
    .concat()
}

/// Returns examples of results of each status.
pub(super) fn review_examples() -> String {
    let worked = |(must, result, reason, status, wrong): (
        &str,
        &str,
        &str,
        AnalysisStatus,
        Option<(&str, &str)>,
    )| {
        let finding = |(text, _): (&str, &str)| ReviewFinding {
            text: text.into(),
            severity: FindingSeverity::Major,
        };
        let answer = Reviewed {
            reason: reason.into(),
            status,
            findings: wrong.map(finding).into_iter().collect(),
            recommended_actions: wrong.map(|(_, action)| action.into()).into_iter().collect(),
        };
        render_example(&[("What must hold", must), ("Result", result)], &answer)
    };
    [
        (
            "- all tests pass",
            "make test: 4 passed, 1 failed. The worker says: done.",
            "1 failed",
            AnalysisStatus::Fail,
            Some(("a test fails", "mend the test")),
        ),
        (
            "- the lamp is green\n- a test shows it",
            "lamp.css: color: green\n1 test passed",
            "color: green; 1 test passed",
            AnalysisStatus::Pass,
            None,
        ),
        (
            "- the lamp has the right colour",
            "The worker asks which colour is the right one; nobody has said it.",
            "asks which colour",
            AnalysisStatus::NeedsClarification,
            Some(("nobody has said which colour", "say which colour")),
        ),
        (
            "- the lamp is green\n- it blinks",
            "color: red; blinking works",
            "color: red",
            AnalysisStatus::Fail,
            Some(("the lamp is red", "make it green")),
        ),
        (
            "- the bell rings twice",
            "-ring(1)\n+ring(2)\nbell_rings_twice: ok",
            "ring(2), bell_rings_twice: ok",
            AnalysisStatus::Pass,
            None,
        ),
    ]
    .map(worked)
    .concat()
}

/// Returns examples of failures of each kind.
pub(super) fn handle_failure_examples() -> String {
    let worked = |(why, reason, note, decision): (&str, &str, &str, FailureDecision)| {
        let answer = FailureHandled { reason: reason.into(), note: note.into(), decision };
        render_example(&[("What happened", why)], &answer)
    };
    [
        (
            "the server wants a certificate that only the owner can issue",
            "only the owner can issue",
            "Please issue the certificate.",
            FailureDecision::Escalate,
        ),
        (
            "the mirror did not answer within 30 seconds",
            "did not answer within 30 seconds",
            "Try the same again.",
            FailureDecision::Retry,
        ),
        (
            "stopped at the time limit after 3 of 40 chapters, those are good",
            "time limit after 3 of 40 chapters",
            "Do only the next three chapters.",
            FailureDecision::ReduceScope,
        ),
        (
            "the two rules exclude each other",
            "exclude each other",
            "Which of the two rules holds?",
            FailureDecision::Escalate,
        ),
        (
            "the change was refused, it has too many files; split it",
            "too many files; split it",
            "Change one folder only.",
            FailureDecision::ReduceScope,
        ),
        (
            "the linter found an unused variable in line 4",
            "an unused variable in line 4",
            "Remove the unused variable.",
            FailureDecision::Retry,
        ),
    ]
    .map(worked)
    .concat()
}
