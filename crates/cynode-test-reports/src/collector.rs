//! Collects the results of one framework.

use std::collections::BTreeMap;

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{
        MAX_REPORTED_TESTS, MAX_TEST_NAME_BYTES, TestCounts, TestReport, TestStatus,
    },
};

/// Number of bytes of a name that stay free for its number.
const NUMBER_BYTES: usize = 10;

/// Results of one framework, while they are read.
#[derive(Debug)]
pub(crate) struct ResultCollector {
    report: TestReport,
    /// How often a name occurred.
    occurrences: BTreeMap<String, u32>,
}

impl ResultCollector {
    pub(crate) const fn new(format: TestReportFormat) -> Self {
        Self { report: TestReport::new(format), occurrences: BTreeMap::new() }
    }

    /// Records the result of a test that may be named several times. The worst result counts.
    pub(crate) fn record_worst(&mut self, name: &str, status: TestStatus) {
        self.report.record_result(&normalize_name(name), status);
    }

    /// Records the result of a test. Another test of the same name gets a number.
    pub(crate) fn record_numbered(&mut self, name: &str, status: TestStatus) {
        let name = normalize_name(name);
        if name.is_empty() {
            return;
        }
        let has_room = self.occurrences.len() < MAX_REPORTED_TESTS;
        let number = match self.occurrences.get_mut(&name) {
            Some(number) => {
                *number = number.saturating_add(1);
                *number
            }
            None if has_room => {
                self.occurrences.insert(name.clone(), 1);
                1
            }
            None => 1,
        };
        match number {
            1 => self.report.record_result(&name, status),
            number => self.report.record_result(&numbered_name(&name, number), status),
        }
    }

    /// Returns whether a test of that name was recorded.
    pub(crate) fn contains_name(&self, name: &str) -> bool {
        self.report.tests.contains_key(&normalize_name(name))
    }

    pub(crate) const fn add_unlisted(&mut self, counts: TestCounts) {
        self.report.unlisted.add_counts(counts);
    }

    /// Notes that tests may be missing.
    pub(crate) const fn mark_incomplete(&mut self) {
        self.report.incomplete = true;
    }

    pub(crate) fn into_report(self) -> TestReport {
        self.report
    }
}

/// Returns a name in one line without control characters, in bounded length.
pub(crate) fn normalize_name(name: &str) -> String {
    let name = name.trim();
    let end = name.floor_char_boundary(MAX_TEST_NAME_BYTES - NUMBER_BYTES);
    let plain = name[..end].chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    plain.collect::<String>().trim().to_owned()
}

/// Returns the name of a later test of the same name.
pub(crate) fn numbered_name(name: &str, number: u32) -> String {
    format!("{name} #{number}")
}

/// Counts results.
pub(crate) fn count_results<'a>(results: impl Iterator<Item = &'a TestStatus>) -> TestCounts {
    let mut counts = TestCounts::default();
    for status in results {
        counts.add_result(*status);
    }
    counts
}
