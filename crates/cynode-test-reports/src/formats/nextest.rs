//! Text of `cargo nextest`: one line of each test and a summary.

use std::collections::BTreeMap;

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{MAX_REPORTED_TESTS, TestCounts, TestStatus},
};

use super::{FormatParser, FormatResults, read_counts};
use crate::{
    LineSource,
    collector::{ResultCollector, count_results, normalize_name},
};

#[derive(Debug, Default)]
pub(super) struct NextestParser {
    /// Results by name. The last try of a test counts.
    tests: BTreeMap<String, TestStatus>,
    counts: Option<TestCounts>,
    is_cut: bool,
}

impl FormatParser for NextestParser {
    fn read_line(&mut self, line: &str, _source: LineSource) {
        let line = line.trim();
        if let Some(summary) = line.strip_prefix("Summary [") {
            self.read_summary(summary);
        } else if let Some((name, status)) = parse_result(line) {
            if self.tests.len() < MAX_REPORTED_TESTS || self.tests.contains_key(&name) {
                self.tests.insert(name, status);
            } else {
                self.is_cut = true;
            }
        }
    }

    fn into_results(self: Box<Self>) -> FormatResults {
        let mut collector = ResultCollector::new(TestReportFormat::Nextest);
        let listed = count_results(self.tests.values());
        match self.counts {
            Some(counts) => collector.add_unlisted(counts.excess_over(listed)),
            None => collector.mark_incomplete(),
        }
        if self.is_cut {
            collector.mark_incomplete();
        }
        for (name, status) in &self.tests {
            collector.record_worst(name, *status);
        }
        FormatResults { report: collector.into_report(), is_recognised: self.counts.is_some() }
    }
}

impl NextestParser {
    /// Reads a summary: `0.010s] 3 tests run: 2 passed (1 flaky), 1 failed, 4 skipped`.
    fn read_summary(&mut self, text: &str) {
        let Some((ran, counts)) = text.split_once("] ").and_then(|(_, it)| it.split_once(" run: "))
        else {
            return;
        };
        let mut total = self.counts.unwrap_or_default();
        for (number, word) in read_counts(counts, ',') {
            let count = match word.split(' ').next().unwrap_or_default() {
                "passed" => &mut total.passed,
                "failed" | "timed" | "exec" => &mut total.failed,
                "skipped" => &mut total.skipped,
                _ => continue,
            };
            *count = count.saturating_add(number);
        }
        // `2/3 tests run` stopped at a failure.
        self.is_cut |= ran.split(' ').next().is_some_and(|number| number.contains('/'));
        self.counts = Some(total);
    }
}

/// Reads a result: `PASS [   0.004s] (1/3) crate::binary path::test`.
fn parse_result(line: &str) -> Option<(String, TestStatus)> {
    let (words, rest) = line.split_once('[')?;
    let mut words = words.split_whitespace();
    let mut word = words.next()?;
    if word == "TRY" {
        words.next()?;
        word = words.next()?;
    }
    let status = match word {
        "PASS" | "LEAK" | "FLAKY" => TestStatus::Passed,
        "FAIL" | "TIMEOUT" | "ABORT" | "XFAIL" | "LEAK-FAIL" => TestStatus::Failed,
        "SKIP" => TestStatus::Skipped,
        word if word.starts_with("SIG") => TestStatus::Failed,
        _ => return None,
    };
    let (_, name) = rest.split_once(']')?;
    let mut name = name.trim();
    if let Some((_, after)) = name.strip_prefix('(').and_then(|it| it.split_once(") ")) {
        name = after.trim();
    }
    // A binary and a test.
    name.contains(' ').then(|| (normalize_name(name), status))
}
