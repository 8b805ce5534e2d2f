//! Results per test: what a run of a test suite says, and what changed between two runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::environments::TestReportFormat;

/// Maximum number of tests of a report. Further ones are counted, not listed.
pub const MAX_REPORTED_TESTS: usize = 20_000;

/// Maximum number of bytes of a test's name.
pub const MAX_TEST_NAME_BYTES: usize = 300;

/// Results of one run of a test suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestReport {
    /// Format that was read.
    pub format: TestReportFormat,
    /// Results by name of the test. A name that occurs several times has the worst of its results.
    pub tests: BTreeMap<String, TestStatus>,
    /// Whether the run ended before its own summary, or the report is too large: tests may be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
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

/// Differences between two runs of a test suite.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TestComparison {
    /// Counts before the change.
    pub before: TestCounts,
    /// Counts after the change.
    pub after: TestCounts,
    /// Tests that failed before and pass now.
    pub fail_to_pass: BTreeSet<String>,
    /// Tests that passed before and fail now.
    pub pass_to_fail: BTreeSet<String>,
    /// Number of tests that passed before and pass now.
    pub pass_to_pass: u32,
    /// Tests that failed before and fail now.
    pub fail_to_fail: BTreeSet<String>,
    /// Tests that are new.
    pub added: BTreeSet<String>,
    /// Tests that ran before and are gone or skipped now.
    pub vanished: BTreeSet<String>,
    /// Tests with different results in runs of the same commit.
    pub flaky: BTreeSet<String>,
}

impl TestReport {
    /// Returns the counts.
    pub fn counts(&self) -> TestCounts {
        let count = |status| self.tests.values().filter(|it| **it == status).count();
        let count = |status| u32::try_from(count(status)).unwrap_or(u32::MAX);
        TestCounts {
            passed: count(TestStatus::Passed),
            skipped: count(TestStatus::Skipped),
            failed: count(TestStatus::Failed),
        }
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
            self.incomplete = true;
        }
    }
}

/// Compares the run before a change with the runs after it, the last of which counts.
pub fn compare_reports(before: Option<&TestReport>, after: &[&TestReport]) -> TestComparison {
    let Some((last, earlier)) = after.split_last() else { return TestComparison::default() };
    let mut found = TestComparison {
        before: before.map(TestReport::counts).unwrap_or_default(),
        after: last.counts(),
        ..TestComparison::default()
    };
    for (name, status) in &last.tests {
        if earlier.iter().any(|run| run.tests.get(name).is_some_and(|was| was != status)) {
            found.flaky.insert(name.clone());
        }
        let was = before.and_then(|before| before.tests.get(name));
        let list = match (was, status) {
            (Some(TestStatus::Passed), TestStatus::Passed) => {
                found.pass_to_pass += 1;
                continue;
            }
            (Some(TestStatus::Failed), TestStatus::Passed) => &mut found.fail_to_pass,
            (Some(TestStatus::Passed), TestStatus::Failed) => &mut found.pass_to_fail,
            (Some(TestStatus::Failed), TestStatus::Failed) => &mut found.fail_to_fail,
            (Some(TestStatus::Passed | TestStatus::Failed), TestStatus::Skipped) => {
                &mut found.vanished
            }
            (Some(TestStatus::Skipped), _) => continue,
            (None, _) => &mut found.added,
        };
        list.insert(name.clone());
    }
    let before = before.into_iter().flat_map(|before| &before.tests);
    let gone = before.filter(|(name, was)| {
        **was != TestStatus::Skipped && !last.tests.contains_key(name.as_str())
    });
    found.vanished.extend(gone.map(|(name, _)| name.clone()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(tests: &[(&str, TestStatus)]) -> TestReport {
        let tests = tests.iter().map(|(name, status)| ((*name).to_owned(), *status)).collect();
        TestReport { format: TestReportFormat::Tap, tests, incomplete: false }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
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
        ]);
        let expected = TestComparison {
            before: TestCounts { passed: 4, skipped: 0, failed: 2 },
            after: TestCounts { passed: 4, skipped: 1, failed: 2 },
            fail_to_pass: names(&["mended"]),
            pass_to_fail: names(&["broken"]),
            pass_to_pass: 1,
            fail_to_fail: names(&["still"]),
            added: names(&["new", "shaky"]),
            vanished: names(&["gone", "hidden"]),
            flaky: names(&["shaky"]),
        };
        assert_eq!(compare_reports(Some(&before), &[&first, &after]), expected);
        assert_eq!(compare_reports(Some(&before), &[]), TestComparison::default());
    }

    #[test]
    fn the_worst_result_of_a_name_counts() {
        let mut report = report(&[]);
        report.record_result("one", TestStatus::Failed);
        report.record_result("one", TestStatus::Passed);
        report.record_result(" ", TestStatus::Passed);
        assert_eq!(report.tests, BTreeMap::from([("one".to_owned(), TestStatus::Failed)]));
    }
}
