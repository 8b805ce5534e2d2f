//! Text of mocha's `spec` reporter.

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{MAX_REPORTED_TESTS, TestCounts, TestStatus},
};

use super::{FormatParser, FormatResults, SuiteStack, remove_duration, split_mark};
use crate::{LineSource, collector::ResultCollector};

#[derive(Debug)]
pub(super) struct MochaParser {
    collector: ResultCollector,
    suites: SuiteStack,
    /// Results of the present run. They belong to mocha only if its summary follows.
    run: Vec<(String, TestStatus)>,
    failures: u32,
    listed: TestCounts,
    counts: TestCounts,
    has_summary: bool,
    is_recognised: bool,
}

impl Default for MochaParser {
    fn default() -> Self {
        Self {
            collector: ResultCollector::new(TestReportFormat::Mocha),
            suites: SuiteStack::default(),
            run: Vec::new(),
            failures: 0,
            listed: TestCounts::default(),
            counts: TestCounts::default(),
            has_summary: false,
            is_recognised: false,
        }
    }
}

impl FormatParser for MochaParser {
    fn read_line(&mut self, line: &str, source: LineSource) {
        if source == LineSource::Stderr {
            return;
        }
        let other = ["> ", "PASS ", "FAIL ", "Tests: ", "TAP version "];
        if other.iter().any(|prefix| line.starts_with(prefix)) {
            // Another program begins.
            self.close_run();
            self.start_run();
        } else if let Some((number, word)) = parse_count(line) {
            self.read_summary(number, word);
        } else if !self.has_summary {
            self.read_result(line);
        }
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        if !self.has_summary && !self.run.is_empty() {
            if self.is_recognised {
                self.run.clear();
            } else {
                // The run broke off; whether it is mocha at all is for the caller to say.
                self.collector.mark_incomplete();
                self.flush_run();
            }
        }
        self.close_run();
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

impl MochaParser {
    fn read_result(&mut self, line: &str) {
        let text = line.trim_start();
        let indentation = line.len() - text.len();
        // Lines without indentation are what tests write.
        if indentation < 2 || text.is_empty() {
            return;
        }
        let result = if let Some((_, _, title)) = split_mark(line, &['✓', '✔', '√']) {
            Some((TestStatus::Passed, remove_duration(title)))
        } else if let Some((_, _, title)) = split_mark(line, &['-']) {
            Some((TestStatus::Skipped, title))
        } else {
            text.strip_prefix(&format!("{}) ", self.failures.saturating_add(1)))
                .map(|title| (TestStatus::Failed, title))
        };
        let Some((status, title)) = result else {
            let deepest = self.suites.titles.last().map_or(0, |(depth, _)| *depth);
            // A suite is at most one step deeper than the one around it.
            if indentation.is_multiple_of(2) && indentation <= deepest + 2 {
                self.suites.open_suite(indentation, text);
            }
            return;
        };
        if status == TestStatus::Failed {
            self.failures = self.failures.saturating_add(1);
        }
        let path = self.suites.test_path(indentation, title);
        if self.run.len() < MAX_REPORTED_TESTS {
            self.run.push((path, status));
        }
    }

    fn read_summary(&mut self, number: u32, word: &str) {
        match word {
            "passing" => {
                self.flush_run();
                self.has_summary = true;
                self.is_recognised = true;
                self.counts.passed = number;
            }
            "pending" if self.has_summary => self.counts.skipped = number,
            "failing" if self.has_summary => self.counts.failed = number,
            _ => {}
        }
    }

    fn flush_run(&mut self) {
        for (name, status) in std::mem::take(&mut self.run) {
            self.collector.record_numbered(&name, status);
            self.listed.add_result(status);
        }
    }

    /// Counts what the summary has more than the list.
    fn close_run(&mut self) {
        if self.has_summary {
            self.collector.add_unlisted(self.counts.excess_over(self.listed));
        }
        self.listed = TestCounts::default();
        self.counts = TestCounts::default();
    }

    fn start_run(&mut self) {
        self.run.clear();
        self.failures = 0;
        self.suites = SuiteStack::default();
        self.has_summary = false;
    }
}

/// Reads `  4 passing (96ms)`, `  2 pending` or `  3 failing`.
fn parse_count(line: &str) -> Option<(u32, &str)> {
    let (number, rest) = line.strip_prefix("  ")?.split_once(' ')?;
    let word = rest.split(' ').next()?;
    let is_alone =
        rest == word || (word == "passing" && rest.contains(" (") && rest.ends_with(')'));
    let is_known = matches!(word, "passing" | "pending" | "failing");
    (is_known && is_alone).then(|| number.parse().ok().map(|number| (number, word))).flatten()
}
