//! Evidence gate of delivery: the one place that checks evidence before anything is delivered.

use std::fmt::Write as _;

use cynode_core::{
    evidence::{CheckTally, test_results::TestRunComparison},
    tasks::Task,
    workflow::evidence::{CheckResult, EvidenceView},
};
use cynode_db::delivery::{evidence, pull_requests::PullRequestRecord};
use cynode_wire::delivery::PullRequestCheck;

use crate::{App, Ctx, Error};

/// Rejects the delivery of a commit without fresh evidence. A commit with failing evidence, or one that was never
/// checked, is not delivered.
pub(super) async fn require_fresh_evidence(
    app: &App,
    task: &Task,
    commit: &str,
) -> Result<(), Error> {
    let mut conn = app.conn().await?;
    crate::delivery::evidence::require_evidence(&mut conn, task.id, &task.acceptance_criteria)
        .await?;
    let shown = evidence::list_task_evidence(&mut conn, task.id, true).await?;
    let wanted = task.acceptance_criteria.iter().any(|criterion| criterion.check.is_some());
    // Evidence of an earlier commit does not cover this one.
    let fresh = |it: &EvidenceView| it.commit.as_deref() == Some(commit);
    if wanted && !shown.iter().any(fresh) {
        return Err(Error::Invalid("the commit that is to be delivered was not checked".into()));
    }
    Ok(())
}

/// Lists the checks of the work in a pull request.
pub(super) async fn list_pull_request_checks(
    ctx: &mut Ctx,
    found: &PullRequestRecord,
) -> Result<Vec<PullRequestCheck>, Error> {
    let shown = evidence::list_task_evidence(ctx.conn(), found.task, true).await?;
    let fresh = shown.into_iter().filter(|it| !it.stale);
    let each = fresh.flat_map(|it| {
        let waived = it.waived.clone();
        it.checks.into_iter().map(move |result| PullRequestCheck {
            name: result.check.command_line(),
            state: match result.tally {
                CheckTally::Passed | CheckTally::Flaky => "passed",
                CheckTally::Failed | CheckTally::Before => "failed",
                CheckTally::Again => "pending",
            }
            .to_owned(),
            url: None,
            summary: describe_check(&result, waived.as_deref()),
        })
    });
    Ok(each.collect())
}

/// Describes the outcome of a check: why it counts as it does, and its results per test.
fn describe_check(result: &CheckResult, waived: Option<&str>) -> Option<String> {
    let outcome = match (result.tally, waived) {
        (CheckTally::Flaky, _) => Some("holds only sometimes".to_owned()),
        (CheckTally::Before, _) => Some("did not hold before the change either".to_owned()),
        (CheckTally::Failed, Some(why)) => Some(format!("taken all the same: {why}")),
        (CheckTally::Passed | CheckTally::Failed | CheckTally::Again, _) => None,
    };
    let tests = result.tests.as_ref().map(TestRunComparison::summary_line);
    let parts: Vec<String> = tests.into_iter().chain(outcome).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Maximum number of names of each list of tests in the description of a pull request.
const MAX_NAMED_TESTS: usize = 10;

/// Returns the description of a pull request with the results per test of the checks of its commit.
pub(super) async fn append_test_results(
    app: &App,
    task: &Task,
    commit: &str,
    body: &str,
) -> Result<String, Error> {
    let mut conn = app.conn().await?;
    let shown = evidence::list_task_evidence(&mut conn, task.id, true).await?;
    let fresh = shown.iter().filter(|it| it.commit.as_deref() == Some(commit));
    Ok(render_test_results(body, fresh.flat_map(|it| &it.checks)))
}

/// Renders results per test below a description; nothing is added where there are none. Names are code, so that they are no markup.
fn render_test_results<'a>(body: &str, checks: impl Iterator<Item = &'a CheckResult>) -> String {
    let mut text = String::new();
    for result in checks {
        let (Some(line), Some(tests)) = (result.describe_tests(), &result.tests) else { continue };
        let _ = writeln!(text, "- {}", as_code(&line));
        for (word, list) in tests.named_lists().filter(|(word, _)| *word != "new") {
            let names: Vec<String> =
                list.names.iter().take(MAX_NAMED_TESTS).map(|name| as_code(name)).collect();
            let listed = u32::try_from(names.len()).unwrap_or(u32::MAX);
            let more = match list.total.saturating_sub(listed) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let _ = writeln!(text, "  - {word}: {}{more}", names.join(", "));
        }
    }
    if text.is_empty() {
        return body.to_owned();
    }
    format!("{}\n\n## Tests\n\n{}", body.trim_end(), text.trim_end())
}

/// Returns a text as code in Markdown. What would end the code is replaced.
fn as_code(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|letter| if letter == '`' || letter.is_control() { '\'' } else { letter })
        .collect();
    format!("`{plain}`")
}

#[cfg(test)]
mod tests {
    use cynode_core::{
        environments::TestReportFormat,
        evidence::{
            EvidenceCheck,
            test_results::{TestReport, TestStatus, compare_reports},
        },
    };

    use super::*;

    fn result(tests: Option<TestRunComparison>) -> CheckResult {
        CheckResult {
            check: EvidenceCheck::from_shell_line("make test"),
            tally: CheckTally::Passed,
            rounds: 1,
            exit_code: Some(0),
            sha256: String::new(),
            excerpt: String::new(),
            milliseconds: 1,
            repeated: false,
            tests,
        }
    }

    #[test]
    fn the_description_lists_the_tests_of_checks_that_name_them() {
        let report = |status| TestReport {
            tests: [("a `b`".to_owned(), status)].into(),
            ..TestReport::new(TestReportFormat::Tap)
        };
        let (before, after) = (report(TestStatus::Failed), report(TestStatus::Passed));
        let known = result(Some(compare_reports(Some(&before), &[&after])));
        let unknown = result(None);
        assert_eq!(
            render_test_results("Words\n", [&unknown, &known].into_iter()),
            "Words\n\n## Tests\n\n- `make test: 1 passed, 1 fixed, 0 broken`\n  - fixed: `a 'b'`"
        );
        assert_eq!(render_test_results("Words\n", [&unknown].into_iter()), "Words\n");
        assert_eq!(describe_check(&known, None).as_deref(), Some("1 passed, 1 fixed, 0 broken"));
        assert_eq!(describe_check(&unknown, None), None);
    }
}
