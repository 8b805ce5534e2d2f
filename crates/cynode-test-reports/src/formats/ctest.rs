//! Text of `ctest`: `1/19 Test #1: name ......   Passed    0.01 sec`.

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{TestCounts, TestStatus},
};

use super::{FormatParser, FormatResults};
use crate::{LineSource, collector::ResultCollector};

#[derive(Debug)]
pub(super) struct CtestParser {
    collector: ResultCollector,
    listed: TestCounts,
    has_summary: bool,
    is_recognised: bool,
}

impl Default for CtestParser {
    fn default() -> Self {
        Self {
            collector: ResultCollector::new(TestReportFormat::Ctest),
            listed: TestCounts::default(),
            has_summary: false,
            is_recognised: false,
        }
    }
}

impl FormatParser for CtestParser {
    fn read_line(&mut self, line: &str, _source: LineSource) {
        if let Some((name, status)) = parse_result(line) {
            self.collector.record_numbered(name, status);
            self.listed.add_result(status);
            self.is_recognised = true;
            self.has_summary = false;
        } else if let Some(total) = parse_summary(line) {
            // The summary does not count tests that are disabled.
            let listed = self.listed.count_run();
            if total > listed.saturating_add(self.listed.skipped) {
                self.collector.mark_incomplete();
            }
            self.listed = TestCounts::default();
            self.has_summary = true;
            self.is_recognised = true;
        }
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        if !self.has_summary {
            self.collector.mark_incomplete();
        }
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

/// Reads a result: progress, number, name, dots, result.
fn parse_result(line: &str) -> Option<(&str, TestStatus)> {
    let (progress, rest) = line.trim_start().split_once(" Test ")?;
    let (at, all) = progress.split_once('/')?;
    at.trim().parse::<u32>().ok()?;
    all.trim().parse::<u32>().ok()?;
    let (number, rest) = rest.trim_start().strip_prefix('#')?.split_once(": ")?;
    number.trim().parse::<u32>().ok()?;
    // Dots fill the line up; with a long name there are few. The result begins with a word or with stars.
    let (name, result) = match rest.split_once(" ..") {
        Some((name, dots)) => (name, dots.trim_start_matches('.')),
        None => rest.split_once("   ")?,
    };
    let result = result.trim_start();
    let status = if result.starts_with("Passed") {
        TestStatus::Passed
    } else if result.contains("Not Run") || result.contains("Skipped") {
        let is_skipped = result.contains("Skipped") || result.contains("Disabled");
        if is_skipped { TestStatus::Skipped } else { TestStatus::Failed }
    } else if result.starts_with("***") || result.starts_with("Failed") {
        TestStatus::Failed
    } else {
        return None;
    };
    Some((name.trim(), status))
}

/// Reads the number of tests of `100% tests passed, 0 tests failed out of 19`.
fn parse_summary(line: &str) -> Option<u32> {
    let (counts, total) = line.rsplit_once(" tests failed out of ")?;
    counts.contains("% tests passed").then(|| total.trim().parse().ok()).flatten()
}
