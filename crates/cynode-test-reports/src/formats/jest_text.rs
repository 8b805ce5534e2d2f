//! Text of jest. Only `--verbose`, or a run of one file, names the tests that passed.

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{TestCounts, TestStatus},
};

use super::{FormatParser, FormatResults, SuiteStack, read_counts, remove_duration, split_mark};
use crate::{LineSource, collector::ResultCollector};

/// Marks of results. The last two are of tests that did not run.
const MARKS: [char; 5] = ['✓', '✔', '✕', '○', '✎'];

#[derive(Debug)]
pub(super) struct JestTextParser {
    collector: ResultCollector,
    suites: SuiteStack,
    /// File of the present results.
    file: String,
    is_in_list: bool,
    listed: TestCounts,
    is_open: bool,
    is_recognised: bool,
}

impl Default for JestTextParser {
    fn default() -> Self {
        Self {
            collector: ResultCollector::new(TestReportFormat::Jest),
            suites: SuiteStack::default(),
            file: String::new(),
            is_in_list: false,
            listed: TestCounts::default(),
            is_open: false,
            is_recognised: false,
        }
    }
}

impl FormatParser for JestTextParser {
    // Jest writes to standard error; what tests write goes through it.
    fn read_line(&mut self, line: &str, _source: LineSource) {
        if let Some(file) = line.strip_prefix("PASS ").or_else(|| line.strip_prefix("FAIL ")) {
            file_path(file).clone_into(&mut self.file);
            self.suites = SuiteStack::default();
            self.is_in_list = true;
            self.is_open = true;
        } else if let Some(counts) = line.strip_prefix("Tests: ") {
            self.read_summary(counts);
        } else if let Some(title) = line.strip_prefix("  ● ") {
            self.is_in_list = false;
            self.read_failure(title);
        } else if self.is_in_list {
            self.read_listed(line);
        }
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        if self.is_open {
            self.collector.mark_incomplete();
        }
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

impl JestTextParser {
    fn read_listed(&mut self, line: &str) {
        if line.trim().is_empty() {
            self.is_in_list = false;
        } else if let Some((indentation, mark, title)) = split_mark(line, &MARKS) {
            let status = match mark {
                '○' | '✎' => TestStatus::Skipped,
                '✕' => TestStatus::Failed,
                _ => TestStatus::Passed,
            };
            let title = match mark {
                '○' => title.strip_prefix("skipped ").unwrap_or(title),
                '✎' => title.strip_prefix("todo ").unwrap_or(title),
                _ => remove_duration(title),
            };
            let path = self.suites.test_path(indentation, title);
            self.collector.record_numbered(&format!("{} > {path}", self.file), status);
            self.listed.add_result(status);
        } else {
            let title = line.trim_start();
            self.suites.open_suite(line.len() - title.len(), title);
        }
    }

    /// Reads the head of a described failure: `suite › title`. The list may have named it already.
    fn read_failure(&mut self, title: &str) {
        if title == "Test suite failed to run" {
            self.collector.record_worst(&self.file, TestStatus::Failed);
            self.collector.mark_incomplete();
            return;
        }
        // A word alone is a head of another kind, such as `Console`.
        if title == "Console" || title.ends_with(':') || !self.is_open {
            return;
        }
        let name = format!("{} > {}", self.file, title.replace(" › ", " > "));
        if !self.collector.contains_name(&name) {
            self.collector.record_worst(&name, TestStatus::Failed);
            self.listed.add_result(TestStatus::Failed);
        }
    }

    /// Reads `1 failed, 1 skipped, 1 todo, 4 passed, 7 total`.
    fn read_summary(&mut self, text: &str) {
        let mut total = TestCounts::default();
        for (number, word) in read_counts(text, ',') {
            let count = match word {
                "passed" => &mut total.passed,
                "failed" => &mut total.failed,
                "skipped" | "todo" => &mut total.skipped,
                "total" => {
                    self.is_recognised = true;
                    continue;
                }
                _ => continue,
            };
            *count = count.saturating_add(number);
        }
        self.collector.add_unlisted(total.excess_over(self.listed));
        self.listed = TestCounts::default();
        self.is_open = false;
        self.is_in_list = false;
    }
}

/// Returns the path of a file without the duration after it.
fn file_path(text: &str) -> &str {
    remove_duration(text.trim())
}
