//! Evidence as it is stored: what the checks of the orchestrator showed of a commit.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    evidence::{
        ChangeAnomaly, CheckTally, EvidenceCheck,
        base::{BaseOutcome, Obstacle, find_exit_obstacle, find_obstacle},
        describe_exit_code,
        test_results::{TestCounts, TestRunComparison},
    },
    ids::EvidenceId,
    workflow::{
        findings::{FindingSeverity, VerificationFinding},
        plan::UnitKey,
    },
};

/// What is known of one attempt of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvidenceView {
    /// Its id.
    #[schema(value_type = String)]
    pub evidence_id: EvidenceId,
    /// The unit.
    #[schema(value_type = String)]
    pub unit: UnitKey,
    /// The attempt.
    pub attempt: u32,
    /// The commit that the checks ran on.
    pub commit: Option<String>,
    /// Where it stands.
    pub state: EvidenceState,
    /// Whether another commit of the task has come since: then it shows nothing any more.
    pub stale: bool,
    /// The checks, in the order in which they ran.
    pub checks: Vec<CheckResult>,
    /// Why the result was taken though a check did not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waived: Option<String>,
    /// Why nothing could be shown, when the sandbox itself came to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often it was begun.
    pub attempts: u32,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub opened_at: OffsetDateTime,
    /// When it was complete.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub ended_at: Option<OffsetDateTime>,
}

/// Where evidence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceState {
    /// Checks run, or wait for a place.
    Gathering,
    /// Every check held.
    Passed,
    /// A check did not hold.
    Failed,
    /// The sandbox came to nothing: nothing is shown.
    Unable,
}

impl EvidenceState {
    const ALL: [Self; 4] = [Self::Gathering, Self::Passed, Self::Failed, Self::Unable];

    /// The name on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gathering => "gathering",
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Unable => "unable",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// What a check came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckResult {
    /// The check.
    pub check: EvidenceCheck,
    /// What its runs amount to: `again`, `passed`, `flaky` or `failed`.
    #[schema(value_type = String)]
    pub tally: CheckTally,
    /// How often it ran.
    pub rounds: u32,
    /// The exit code of the last run, 128 and the signal when one ended it; none when a limit ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The SHA-256 of all that the last run wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// The end of what the last run wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub excerpt: String,
    /// How long the last run took.
    #[serde(default)]
    pub milliseconds: u64,
    /// Whether the attempt before failed with the same exit code and the same words.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
    /// Results per test, compared with the run before the change; none when the check has no such results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<TestRunComparison>,
}

impl CheckResult {
    /// Returns whether it ended as it must, and its results per test speak against the change all the same.
    pub fn is_failed_by_tests(&self) -> bool {
        let is_broken = self.tests.as_ref().is_some_and(TestRunComparison::has_broken_tests);
        is_broken && self.exit_code == Some(self.check.expect_exit)
    }

    /// Returns the results per test in a line: `pytest: 412 passed, 2 fixed, 0 broken`.
    pub fn describe_tests(&self) -> Option<String> {
        let tests = self.tests.as_ref()?;
        let command = self.check.command_line();
        let command = command.lines().next().unwrap_or_default();
        Some(format!("{command}: {}", tests.summary_line()))
    }

    /// Why the check cannot run on the machine, if that is why it does not hold: exit codes 126 and 127. No agent can mend that.
    pub fn run_obstacle(&self) -> Option<Obstacle> {
        let failed = self.tally == CheckTally::Failed;
        failed.then(|| find_exit_obstacle(&self.check, self.exit_code, &self.excerpt)).flatten()
    }
}

/// The checks of a task, tried on the base commit before any change and before any agent works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BaseChecks {
    /// The commit; none while no node has taken the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Where it stands: `gathering` while a job is queued or runs, `passed` when every check holds already, `unable` when they could not
    /// be tried.
    pub state: EvidenceState,
    /// Whether no node took the job within its time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unclaimed: bool,
    /// The checks, the task's own first.
    pub checks: Vec<BaseCheckResult>,
    /// Why they could not be tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often a job for it was begun.
    pub attempts: u32,
    /// When it was asked for.
    #[serde(with = "time::serde::rfc3339")]
    pub opened_at: OffsetDateTime,
    /// When it was complete.
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub ended_at: Option<OffsetDateTime>,
}

/// What a check came to on the base commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BaseCheckResult {
    /// The check.
    pub check: EvidenceCheck,
    /// `not_tried`, `passes`, `fails`, `cannot_run` or `timed_out`.
    #[schema(value_type = String)]
    pub outcome: BaseOutcome,
    /// The exit code; none when a limit ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The end of what it wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub excerpt: String,
    /// How long it took.
    #[serde(default)]
    pub milliseconds: u64,
    /// Counts of its tests; none when it has no results per test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<TestCounts>,
}

impl BaseCheckResult {
    /// Why it cannot run on the machine, if it cannot.
    pub fn run_obstacle(&self) -> Option<Obstacle> {
        let stuck = self.outcome == BaseOutcome::CannotRun;
        stuck.then(|| find_obstacle(&self.check, self.exit_code, &self.excerpt)).flatten()
    }

    /// Whether it may fail without anybody having to answer for it: it counts only where its program is there, or only if it held before.
    pub fn is_excused(&self) -> bool {
        self.check.unless_before
            || (self.check.if_runnable && matches!(self.exit_code, Some(126 | 127)))
    }

    /// In a line: the check, what it came to, and what to do where it cannot run.
    pub fn describe_result(&self) -> String {
        let command = self.check.command_line();
        let command = command.lines().next().unwrap_or_default();
        match (self.outcome, self.run_obstacle()) {
            (BaseOutcome::Passes, _) => format!("`{command}` passes before any change"),
            (BaseOutcome::Fails, _) => {
                let ended = self.exit_code.map(|code| format!(" ({})", describe_exit_code(code)));
                let ended = ended.unwrap_or_default();
                let tests = self.tests.filter(|tests| tests.failed > 0);
                let tests = tests.map(|it| format!(", {} of its tests fail", it.failed));
                let tests = tests.unwrap_or_default();
                format!(
                    "`{command}` fails before any change{ended}{tests}: the work has to make it pass"
                )
            }
            (BaseOutcome::CannotRun, Some(obstacle)) => {
                let ended = self.exit_code.map(|code| format!(" ({})", describe_exit_code(code)));
                let ended = ended.unwrap_or_default();
                let (why, remedy) =
                    (obstacle.describe_obstacle(), obstacle.suggested_fix(&self.check));
                format!("`{command}` cannot run here: {why}{ended}. {remedy}")
            }
            (BaseOutcome::CannotRun, None) => format!("`{command}` cannot run here"),
            (BaseOutcome::TimedOut, _) => {
                format!("`{command}` did not end within its time before any change")
            }
            (BaseOutcome::NotTried, _) => format!("`{command}` was not tried"),
        }
    }
}

impl BaseChecks {
    /// The checks that cannot run here and that nobody excuses.
    pub fn blocked_checks(&self) -> impl Iterator<Item = &BaseCheckResult> {
        self.checks.iter().filter(|it| it.outcome == BaseOutcome::CannotRun && !it.is_excused())
    }

    /// In a line, for the timeline: how many came to what.
    pub fn summary_line(&self) -> String {
        if let Some(error) = &self.error {
            return format!("the checks could not be tried before the work: {error}");
        }
        let count = |outcome| self.checks.iter().filter(|it| it.outcome == outcome).count();
        let parts = [
            (count(BaseOutcome::Passes), "pass"),
            (count(BaseOutcome::Fails), "fail"),
            (count(BaseOutcome::CannotRun), "cannot run here"),
            (count(BaseOutcome::TimedOut), "did not end in time"),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, word)| format!("{number} {word}"))
            .collect();
        format!("checks before any change: {}", parts.join(", "))
    }

    /// Line by line, for whoever says yes to the plan.
    pub fn describe_checks(&self) -> Vec<String> {
        match &self.error {
            Some(_) => vec![self.summary_line()],
            None => self.checks.iter().map(BaseCheckResult::describe_result).collect(),
        }
    }
}

/// What was shown of a result, for whoever judges it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Evidence {
    /// The commit that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// What the checks came to.
    pub checks: Vec<CheckResult>,
    /// The anomalies of the change: what it did that has to be answered for.
    #[schema(value_type = Vec<serde_json::Value>)]
    pub anomalies: Vec<ChangeAnomaly>,
}

/// Most characters of a check's words in a finding.
const MAX_EXCERPT_CHARS: usize = 1200;

/// Most findings that a person is shown in a question.
const MAX_LISTED_FINDINGS: usize = 10;

impl Evidence {
    /// What was found, worst first.
    pub fn to_findings(&self) -> Vec<VerificationFinding> {
        let mut findings = Vec::new();
        for result in &self.checks {
            let told = result.check.command_line();
            findings.extend(result.tests.iter().flat_map(|tests| test_findings(&told, tests)));
            let (severity, text) = match result.tally {
                CheckTally::Passed => continue,
                CheckTally::Flaky => (
                    FindingSeverity::Minor,
                    format!("the check `{told}` holds only sometimes ({} runs)", result.rounds),
                ),
                CheckTally::Before => (
                    FindingSeverity::Minor,
                    format!(
                        "the check `{told}` does not hold, and did not before the change either"
                    ),
                ),
                CheckTally::Failed => (FindingSeverity::Critical, describe_failure(&told, result)),
                CheckTally::Again => {
                    (FindingSeverity::Critical, format!("the check `{told}` was not run to an end"))
                }
            };
            findings.push(VerificationFinding::new(severity, text));
        }
        for anomaly in &self.anomalies {
            let line = if let ChangeAnomaly::MergeMarks { line, .. } = anomaly { *line } else { 1 };
            let path = Some(anomaly.file_path()).filter(|path| !path.is_empty());
            findings.push(VerificationFinding {
                at: path.map(|path| format!("{path}:{line}")),
                how_to_fix: Some(anomaly.suggested_fix().to_owned()),
                ..VerificationFinding::new(FindingSeverity::Critical, anomaly.describe_anomaly())
            });
        }
        findings.sort_by_key(|finding| finding.severity);
        findings
    }

    /// What a person is shown of what speaks against the result, and how much more there is.
    pub fn listed_findings(&self) -> (Vec<VerificationFinding>, usize) {
        let mut found = self.to_findings();
        found.retain(|finding| finding.severity == FindingSeverity::Critical);
        let more = found.len().saturating_sub(MAX_LISTED_FINDINGS);
        found.truncate(MAX_LISTED_FINDINGS);
        (found, more)
    }

    /// The anomalies among what a person is shown: who accepts the result accepts these for the whole task, and nothing else.
    pub fn listed_anomalies(&self) -> &[ChangeAnomaly] {
        let grave = |it: &&CheckResult| matches!(it.tally, CheckTally::Failed | CheckTally::Again);
        let room = MAX_LISTED_FINDINGS.saturating_sub(self.checks.iter().filter(grave).count());
        &self.anomalies[..self.anomalies.len().min(room)]
    }

    /// The first check that cannot run on the machine, and why.
    pub fn first_obstacle(&self) -> Option<(&CheckResult, Obstacle)> {
        self.checks.iter().find_map(|it| it.run_obstacle().map(|why| (it, why)))
    }

    /// The first check that failed in the attempt before with the same words.
    pub fn first_repeated(&self) -> Option<&CheckResult> {
        self.checks.iter().find(|it| it.repeated && it.tally == CheckTally::Failed)
    }

    /// Whether nothing was looked at.
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty() && self.anomalies.is_empty()
    }

    /// Whether nothing speaks against the result.
    pub fn is_satisfied(&self) -> bool {
        self.anomalies.is_empty() && self.checks.iter().all(|it| it.tally.is_good())
    }
}

/// Maximum number of names of tests in a finding.
const MAX_NAMED_TESTS: usize = 20;

/// What the results per test of a check show, beyond whether it holds: broken tests are part of why it does not.
fn test_findings(told: &str, tests: &TestRunComparison) -> Vec<VerificationFinding> {
    let mut findings = Vec::new();
    if !tests.vanished.is_empty() {
        let names = tests.vanished.describe_names(MAX_NAMED_TESTS);
        let text = format!("tests of `{told}` ran before the change and do not run now: {names}");
        findings.push(VerificationFinding {
            how_to_fix: Some("bring them back, or say why they are gone".to_owned()),
            ..VerificationFinding::new(FindingSeverity::Major, text)
        });
    }
    if let Some(before) = tests.before.filter(|_| tests.broke_off && tests.after.is_zero()) {
        let text = format!(
            "`{told}` gave results of {} tests before the change and gives none now",
            before.count_run()
        );
        findings.push(VerificationFinding::new(FindingSeverity::Major, text));
    }
    if tests.fewer > 0 {
        let text = format!("`{told}` ran {} tests fewer than before the change", tests.fewer);
        findings.push(VerificationFinding::new(FindingSeverity::Major, text));
    }
    if !tests.flaky.is_empty() {
        let names = tests.flaky.describe_names(MAX_NAMED_TESTS);
        let text = format!("tests of `{told}` pass only sometimes: {names}");
        findings.push(VerificationFinding::new(FindingSeverity::Minor, text));
    }
    if !tests.fail_to_fail.is_empty() {
        let names = tests.fail_to_fail.describe_names(MAX_NAMED_TESTS);
        let text = format!("tests of `{told}` failed before the change already: {names}");
        findings.push(VerificationFinding::new(FindingSeverity::Note, text));
    }
    findings
}

fn describe_failure(told: &str, result: &CheckResult) -> String {
    let ended = match result.exit_code {
        _ if result.is_failed_by_tests() => "tests that passed before fail now".to_owned(),
        Some(code) if code == result.check.expect_exit => {
            "the words it must write are missing".to_owned()
        }
        Some(code) => {
            format!("{}, expected {}", describe_exit_code(code), result.check.expect_exit)
        }
        None => "ended by a limit, or never begun".to_owned(),
    };
    let from = result.excerpt.char_indices().rev().nth(MAX_EXCERPT_CHARS).map_or(0, |(at, _)| at);
    let words = result.excerpt[from..].trim();
    let tests = result.tests.iter().flat_map(|tests| tests.named_lists());
    let named = tests.filter(|(word, _)| matches!(*word, "broken" | "failed"));
    let lines = named.map(|(word, list)| match word {
        "broken" => format!(
            "\nPassed before the change and fails now: {}",
            list.describe_names(MAX_NAMED_TESTS)
        ),
        _ => format!("\nFails: {}", list.describe_names(MAX_NAMED_TESTS)),
    });
    let lines: String = lines.collect();
    if words.is_empty() {
        format!("the check `{told}` does not hold ({ended}){lines}")
    } else {
        format!("the check `{told}` does not hold ({ended}):{lines}\n{words}")
    }
}
