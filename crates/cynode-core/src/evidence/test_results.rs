//! Results per test: what a run of a test suite says, and what changed between two runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::environments::TestReportFormat;

/// Maximum number of tests of a report. Further ones are counted, not listed.
pub const MAX_REPORTED_TESTS: usize = 20_000;

/// Maximum number of bytes of a test's name.
pub const MAX_TEST_NAME_BYTES: usize = 300;

/// Maximum number of names of each list of a comparison. Further ones are counted, not listed.
pub const MAX_LISTED_TESTS: usize = 100;

/// Results of one run of a test suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestReport {
    /// Format that was read.
    pub format: TestReportFormat,
    /// Results by name of the test. A name that occurs several times has the worst of its results.
    pub tests: BTreeMap<String, TestStatus>,
    /// Results that the summary of the run counts and nothing names.
    #[serde(default, skip_serializing_if = "TestCounts::is_zero")]
    pub unlisted: TestCounts,
    /// Whether the run ended before its own summary, or the report is too large: tests may be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Changed lines that the tests ran; none where there is no coverage report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<LineCoverage>,
}

/// How many of the changed lines that can run were run by tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LineCoverage {
    /// Number of changed lines that were run.
    pub run: u32,
    /// Number of changed lines that can run.
    pub total: u32,
}

/// Result of a test. The order is from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TestStatus {
    /// It passed.
    Passed,
    /// It was skipped.
    Skipped,
    /// It failed, or ended with an error.
    Failed,
}

/// Counts of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TestCounts {
    /// Number of passed tests.
    pub passed: u32,
    /// Number of skipped tests.
    pub skipped: u32,
    /// Number of failed tests.
    pub failed: u32,
}

impl TestCounts {
    /// Returns whether nothing was counted.
    pub const fn is_zero(&self) -> bool {
        self.passed == 0 && self.skipped == 0 && self.failed == 0
    }

    /// Returns the number of tests that ran: skipped ones did not.
    pub const fn count_run(self) -> u32 {
        self.passed.saturating_add(self.failed)
    }

    /// Adds one result.
    pub const fn add_result(&mut self, status: TestStatus) {
        let count = match status {
            TestStatus::Passed => &mut self.passed,
            TestStatus::Skipped => &mut self.skipped,
            TestStatus::Failed => &mut self.failed,
        };
        *count = count.saturating_add(1);
    }

    /// Adds other counts.
    pub const fn add_counts(&mut self, other: Self) {
        self.passed = self.passed.saturating_add(other.passed);
        self.skipped = self.skipped.saturating_add(other.skipped);
        self.failed = self.failed.saturating_add(other.failed);
    }

    /// Returns what these counts have more than others.
    #[must_use]
    pub const fn excess_over(self, other: Self) -> Self {
        Self {
            passed: self.passed.saturating_sub(other.passed),
            skipped: self.skipped.saturating_sub(other.skipped),
            failed: self.failed.saturating_sub(other.failed),
        }
    }
}

/// Names of tests: how many there are, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TestNames {
    /// Number of names.
    pub total: u32,
    /// The first names, at most 100.
    pub names: BTreeSet<String>,
}

impl TestNames {
    /// Returns whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Adds a name that was not added before.
    fn add_name(&mut self, name: &str) {
        self.total = self.total.saturating_add(1);
        if self.names.len() < MAX_LISTED_TESTS {
            self.names.insert(name.to_owned());
        }
    }
}

/// Differences between two runs of a test suite.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TestRunComparison {
    /// Counts before the change; none when no run before it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<TestCounts>,
    /// Counts after the change.
    pub after: TestCounts,
    /// Tests that failed before and pass now.
    #[serde(skip_serializing_if = "TestNames::is_empty")]
    pub fail_to_pass: TestNames,
    /// Tests that passed before and fail now.
    #[serde(skip_serializing_if = "TestNames::is_empty")]
    pub pass_to_fail: TestNames,
    /// Number of tests that passed before and pass now.
    pub pass_to_pass: u32,
    /// Tests that failed before and fail now.
    #[serde(skip_serializing_if = "TestNames::is_empty")]
    pub fail_to_fail: TestNames,
    /// Tests that fail now and of which no earlier result is known.
    #[serde(skip_serializing_if = "TestNames::is_empty")]
    pub failed: TestNames,
    /// Tests that are new.
    #[serde(skip_serializing_if = "TestNames::is_empty")]
    pub added: TestNames,
    /// Tests that ran before and are gone or skipped now.
    #[serde(skip_serializing_if = "TestNames::is_empty")]
    pub vanished: TestNames,
    /// Tests with different results in runs of the same commit.
    #[serde(skip_serializing_if = "TestNames::is_empty")]
    pub flaky: TestNames,
    /// How many tests fewer ran than before, where the runs do not name the tests that passed.
    #[serde(skip_serializing_if = "is_none_counted")]
    pub fewer: u32,
    /// Whether a run ended before its own summary, or failed tests are not named: tests may be missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Whether the run before the change ended with its own summary, and the last one after it did not or has no results.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub broke_off: bool,
    /// Changed lines that the tests ran; none where there is no coverage report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coverage: Option<LineCoverage>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_none_counted(number: &u32) -> bool {
    *number == 0
}

impl TestReport {
    /// Creates a report without results.
    pub const fn new(format: TestReportFormat) -> Self {
        let unlisted = TestCounts { passed: 0, skipped: 0, failed: 0 };
        Self { format, tests: BTreeMap::new(), unlisted, incomplete: false, coverage: None }
    }

    /// Returns the counts.
    pub fn counts(&self) -> TestCounts {
        let mut counts = self.unlisted;
        for status in self.tests.values() {
            counts.add_result(*status);
        }
        counts
    }

    /// Returns whether every test that ran is named.
    pub const fn names_all_tests(&self) -> bool {
        self.unlisted.passed == 0 && self.names_all_failures()
    }

    /// Returns whether every test that failed is named.
    pub const fn names_all_failures(&self) -> bool {
        !self.incomplete && self.unlisted.failed == 0
    }

    /// Records a result. The worst result of a name counts.
    pub fn record_result(&mut self, name: &str, status: TestStatus) {
        let end = name.floor_char_boundary(MAX_TEST_NAME_BYTES);
        let name = name[..end].trim();
        if name.is_empty() {
            return;
        }
        if let Some(known) = self.tests.get_mut(name) {
            *known = (*known).max(status);
        } else if self.tests.len() < MAX_REPORTED_TESTS {
            self.tests.insert(name.to_owned(), status);
        } else {
            self.unlisted.add_result(status);
            self.incomplete = true;
        }
    }
}

/// Reports of the runs of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReports {
    /// Report of the run before the change.
    pub before: Option<TestReport>,
    /// Reports of the rounds after it, oldest first; none for a round without one.
    pub after: Vec<Option<TestReport>>,
}

impl CheckReports {
    /// Compares the runs. If the last round after the change has no report, it counts as a run that broke off where the run before the
    /// change had results; else there is nothing to compare.
    pub fn compare_runs(&self) -> Option<TestRunComparison> {
        let has_report = self.after.last()?.is_some();
        let missing = match &self.before {
            Some(before) if !has_report && !before.incomplete && !before.counts().is_zero() => {
                Some(TestReport { incomplete: true, ..TestReport::new(before.format) })
            }
            Some(_) | None => None,
        };
        if !has_report && missing.is_none() {
            return None;
        }
        let after: Vec<&TestReport> = self.after.iter().flatten().chain(missing.as_ref()).collect();
        Some(compare_reports(self.before.as_ref(), &after))
    }
}

/// Compares the run before a change with the runs after it, the last of which counts.
pub fn compare_reports(before: Option<&TestReport>, after: &[&TestReport]) -> TestRunComparison {
    let Some((last, earlier)) = after.split_last() else { return TestRunComparison::default() };
    let mut compared = TestRunComparison {
        before: before.map(TestReport::counts),
        after: last.counts(),
        incomplete: !last.names_all_failures() || before.is_some_and(|run| run.incomplete),
        broke_off: last.incomplete && before.is_some_and(|run| !run.incomplete),
        coverage: last.coverage,
        ..TestRunComparison::default()
    };
    for (name, status) in &last.tests {
        if earlier.iter().any(|run| run.tests.get(name).is_some_and(|was| was != status)) {
            compared.flaky.add_name(name);
        }
        let was = before.and_then(|before| before.tests.get(name));
        let list = match (was, status) {
            (Some(TestStatus::Passed), TestStatus::Passed) => {
                compared.pass_to_pass += 1;
                continue;
            }
            (Some(TestStatus::Failed), TestStatus::Passed) => &mut compared.fail_to_pass,
            (Some(TestStatus::Passed), TestStatus::Failed) => &mut compared.pass_to_fail,
            (Some(TestStatus::Failed), TestStatus::Failed) => &mut compared.fail_to_fail,
            (Some(TestStatus::Passed | TestStatus::Failed), TestStatus::Skipped) => {
                &mut compared.vanished
            }
            (Some(TestStatus::Skipped) | None, TestStatus::Failed) => &mut compared.failed,
            // Where the run before did not name what passed, nobody knows what is new.
            (None, _) if before.is_some_and(TestReport::names_all_tests) => &mut compared.added,
            (Some(TestStatus::Skipped) | None, _) => continue,
        };
        list.add_name(name);
    }
    let Some(before) = before else { return compared };
    // A test that is not named may have passed, unless all that ran are named.
    let lists_run = last.names_all_tests();
    for (name, was) in &before.tests {
        if last.tests.contains_key(name) || *was == TestStatus::Skipped {
            continue;
        }
        if lists_run {
            compared.vanished.add_name(name);
        } else if *was == TestStatus::Failed && last.names_all_failures() {
            compared.fail_to_pass.add_name(name);
        }
    }
    let names_run = before.names_all_tests() && lists_run;
    if !(before.incomplete || last.incomplete || names_run) {
        let ran = |report: &TestReport| report.counts().count_run();
        compared.fewer = ran(before).saturating_sub(ran(last));
        let passed = before.unlisted.passed.min(last.unlisted.passed);
        compared.pass_to_pass = compared.pass_to_pass.saturating_add(passed);
    }
    compared
}

impl TestRunComparison {
    /// Returns whether a test that passed before fails now.
    pub const fn has_broken_tests(&self) -> bool {
        !self.pass_to_fail.is_empty()
    }

    /// Returns whether a test fails that did not fail in a run before the change that named all of its failures.
    pub const fn has_new_failures(&self) -> bool {
        self.before.is_some() && !self.incomplete && !self.failed.is_empty()
    }

    /// Describes the results in a line, such as `412 passed, 2 fixed, 1 new, 0 broken`.
    pub fn summary_line(&self) -> String {
        let mut parts = vec![format!("{} passed", self.after.passed)];
        let mut add = |number: u32, word: &str| {
            if number > 0 {
                parts.push(format!("{number} {word}"));
            }
        };
        add(self.after.failed, "failed");
        add(self.after.skipped, "skipped");
        add(self.fail_to_pass.total, "fixed");
        add(self.added.total, "new");
        add(self.fail_to_fail.total, "failed before already");
        add(self.vanished.total, "vanished");
        add(self.fewer, "fewer than before");
        add(self.flaky.total, "flaky");
        if self.before.is_some() {
            parts.push(format!("{} broken", self.pass_to_fail.total));
        }
        if self.incomplete {
            parts.push("incomplete".to_owned());
        }
        if let Some(LineCoverage { run, total }) = self.coverage {
            parts.push(format!("{run} of {total} changed lines run by tests"));
        }
        parts.join(", ")
    }

    /// Returns the lists that people look at, worst first, each with its word.
    pub fn named_lists(&self) -> impl Iterator<Item = (&'static str, &TestNames)> {
        [
            ("broken", &self.pass_to_fail),
            ("failed", &self.failed),
            ("vanished", &self.vanished),
            ("flaky", &self.flaky),
            ("fixed", &self.fail_to_pass),
            ("new", &self.added),
            ("failed before already", &self.fail_to_fail),
        ]
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
    }

    /// Describes the lists, one in a line, with at most `max` names each.
    pub fn describe_lists(&self, max: usize) -> Vec<String> {
        self.named_lists()
            .map(|(word, list)| format!("{word}: {}", list.describe_names(max)))
            .collect()
    }
}

impl TestNames {
    /// Describes the first names in a line, and how many more there are.
    pub fn describe_names(&self, max: usize) -> String {
        let first: Vec<&str> = self.names.iter().take(max).map(String::as_str).collect();
        let more = usize::try_from(self.total).unwrap_or(usize::MAX).saturating_sub(first.len());
        match more {
            0 => first.join(", "),
            more => format!("{} and {more} more", first.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(tests: &[(&str, TestStatus)]) -> TestReport {
        let tests = tests.iter().map(|(name, status)| ((*name).to_owned(), *status)).collect();
        TestReport { tests, ..TestReport::new(TestReportFormat::Tap) }
    }

    fn names(names: &[&str]) -> TestNames {
        TestNames {
            total: u32::try_from(names.len()).unwrap(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn each_way_a_test_can_change_is_told_apart() {
        use TestStatus::{Failed, Passed, Skipped};
        let before = report(&[
            ("mended", Failed),
            ("broken", Passed),
            ("same", Passed),
            ("still", Failed),
            ("gone", Passed),
            ("hidden", Passed),
        ]);
        let first = report(&[("shaky", Failed), ("same", Passed)]);
        let after = report(&[
            ("mended", Passed),
            ("broken", Failed),
            ("same", Passed),
            ("still", Failed),
            ("new", Passed),
            ("hidden", Skipped),
            ("shaky", Passed),
            ("wrong", Failed),
        ]);
        let expected = TestRunComparison {
            before: Some(TestCounts { passed: 4, skipped: 0, failed: 2 }),
            after: TestCounts { passed: 4, skipped: 1, failed: 3 },
            fail_to_pass: names(&["mended"]),
            pass_to_fail: names(&["broken"]),
            pass_to_pass: 1,
            fail_to_fail: names(&["still"]),
            failed: names(&["wrong"]),
            added: names(&["new", "shaky"]),
            vanished: names(&["gone", "hidden"]),
            flaky: names(&["shaky"]),
            ..TestRunComparison::default()
        };
        let compared = compare_reports(Some(&before), &[&first, &after]);
        assert_eq!(compared, expected);
        assert_eq!(
            compared.summary_line(),
            "4 passed, 3 failed, 1 skipped, 1 fixed, 2 new, 1 failed before already, 2 vanished, 1 flaky, 1 broken"
        );
        assert_eq!(
            compared.describe_lists(1),
            [
                "broken: broken",
                "failed: wrong",
                "vanished: gone and 1 more",
                "flaky: shaky",
                "fixed: mended",
                "new: new and 1 more",
                "failed before already: still",
            ]
        );
        assert_eq!(compare_reports(Some(&before), &[]), TestRunComparison::default());
    }

    #[test]
    fn runs_that_name_only_their_failures_are_compared_by_what_they_count() {
        use TestStatus::Failed;
        let counted = |tests: &[(&str, TestStatus)], passed| TestReport {
            unlisted: TestCounts { passed, skipped: 0, failed: 0 },
            ..report(tests)
        };
        let before = counted(&[("mended", Failed), ("still", Failed)], 10);
        let after = counted(&[("still", Failed)], 8);
        let expected = TestRunComparison {
            before: Some(TestCounts { passed: 10, skipped: 0, failed: 2 }),
            after: TestCounts { passed: 8, skipped: 0, failed: 1 },
            fail_to_pass: names(&["mended"]),
            pass_to_pass: 8,
            fail_to_fail: names(&["still"]),
            fewer: 3,
            ..TestRunComparison::default()
        };
        let compared = compare_reports(Some(&before), &[&after]);
        assert_eq!(compared, expected);
        assert!(!compared.has_broken_tests() && !compared.has_new_failures());
    }

    #[test]
    fn the_coverage_of_the_last_run_stands_behind_its_results() {
        let covered = |run| {
            let coverage = Some(LineCoverage { run, total: 36 });
            TestReport { coverage, ..report(&[("one", TestStatus::Passed)]) }
        };
        let compared = compare_reports(None, &[&covered(7), &covered(31)]);
        assert_eq!(compared.coverage, Some(LineCoverage { run: 31, total: 36 }));
        assert_eq!(compared.summary_line(), "1 passed, 31 of 36 changed lines run by tests");
    }

    #[test]
    fn a_run_that_broke_off_excuses_nothing_and_hides_nothing() {
        use TestStatus::{Failed, Passed};
        let before = report(&[("one", Passed), ("two", Failed)]);
        let cut = TestReport { incomplete: true, ..report(&[("two", Failed)]) };
        let compared = compare_reports(Some(&before), &[&cut]);
        assert!(compared.incomplete && compared.broke_off && compared.vanished.is_empty());
        assert!(!compare_reports(Some(&cut), &[&cut]).broke_off, "it broke off before already");
        let alone = compare_reports(None, &[&before]);
        assert_eq!((alone.before, alone.added.total, alone.broke_off), (None, 0, false));
    }

    #[test]
    fn results_that_are_gone_count_as_a_run_that_broke_off() {
        let one = report(&[("one", TestStatus::Passed)]);
        let reports = CheckReports { before: Some(one), after: vec![None] };
        let compared = reports.compare_runs().unwrap();
        assert!(compared.broke_off && compared.incomplete && compared.vanished.is_empty());
        assert_eq!(compared.after, TestCounts::default());
    }

    #[test]
    fn the_last_round_without_a_report_gives_no_comparison() {
        let one = report(&[("one", TestStatus::Passed)]);
        let reports = CheckReports { before: None, after: vec![Some(one.clone()), None] };
        assert_eq!(reports.compare_runs(), None);
        let reports = CheckReports { before: None, after: vec![None, Some(one)] };
        let counts = TestCounts { passed: 1, ..TestCounts::default() };
        assert_eq!(reports.compare_runs().map(|it| it.after), Some(counts));
    }

    #[test]
    fn the_worst_result_of_a_name_counts() {
        let mut report = report(&[]);
        report.record_result("one", TestStatus::Failed);
        report.record_result("one", TestStatus::Passed);
        report.record_result(" ", TestStatus::Passed);
        assert_eq!(report.tests, BTreeMap::from([("one".to_owned(), TestStatus::Failed)]));
    }

    #[test]
    fn many_names_are_counted_and_the_first_are_listed() {
        let mut names = TestNames::default();
        for at in 0..MAX_LISTED_TESTS + 5 {
            names.add_name(&format!("test {at:04}"));
        }
        assert_eq!((names.total, names.names.len()), (105, 100));
        assert_eq!(names.describe_names(2), "test 0000, test 0001 and 103 more");
    }
}
