//! Text of vitest. Only `--reporter=verbose` names the tests that passed.

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{TestCounts, TestStatus},
};

use super::{FormatParser, FormatResults, is_duration, read_counts, split_mark};
use crate::{LineSource, collector::ResultCollector};

/// Marks of results. The last two are of tests that did not run.
const MARKS: [char; 5] = ['✓', '×', '❯', '↓', '□'];

#[derive(Debug)]
pub(super) struct VitestParser {
    collector: ResultCollector,
    listed: TestCounts,
    is_open: bool,
    is_recognised: bool,
}

impl Default for VitestParser {
    fn default() -> Self {
        Self {
            collector: ResultCollector::new(TestReportFormat::Jest),
            listed: TestCounts::default(),
            is_open: false,
            is_recognised: false,
        }
    }
}

impl FormatParser for VitestParser {
    fn read_line(&mut self, line: &str, _source: LineSource) {
        if line.trim_start().starts_with("RUN  v") {
            self.is_open = true;
        } else if let Some(name) = line.strip_prefix(" FAIL  ") {
            self.read_failure(name.trim());
        } else if let Some(counts) = line.trim_start().strip_prefix("Tests  ") {
            self.read_summary(counts);
        } else if let Some((_, mark, title)) = split_mark(line, &MARKS)
            && let Some(name) = test_name(title)
        {
            let status = match mark {
                '✓' => TestStatus::Passed,
                '×' => TestStatus::Failed,
                '❯' => return,
                _ => TestStatus::Skipped,
            };
            self.collector.record_numbered(&name, status);
            self.listed.add_result(status);
        }
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        if self.is_open {
            self.collector.mark_incomplete();
        }
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

impl VitestParser {
    /// Reads the head of a described failure: `a.test.js > suite > title`. The list may have named it already.
    fn read_failure(&mut self, text: &str) {
        if let Some(name) = test_name(text) {
            if !self.collector.contains_name(&name) {
                self.collector.record_worst(&name, TestStatus::Failed);
                self.listed.add_result(TestStatus::Failed);
            }
        } else if let Some((file, _)) = text.split_once(" [") {
            // The file could not be loaded.
            self.collector.record_worst(remove_project(file.trim()), TestStatus::Failed);
            self.collector.mark_incomplete();
        }
    }

    /// Reads `1 failed | 5 passed | 1 skipped (7)`.
    fn read_summary(&mut self, text: &str) {
        let Some((counts, _)) = text.rsplit_once(" (") else { return };
        let mut total = TestCounts::default();
        for (number, word) in read_counts(counts, '|') {
            let count = match word {
                "passed" => &mut total.passed,
                "failed" => &mut total.failed,
                "skipped" | "todo" => &mut total.skipped,
                _ => continue,
            };
            *count = count.saturating_add(number);
        }
        self.collector.add_unlisted(total.excess_over(self.listed));
        self.listed = TestCounts::default();
        self.is_open = false;
        self.is_recognised = true;
    }
}

/// Removes the name of a project before a file: `|unit| a.test.js`.
fn remove_project(text: &str) -> &str {
    let project = text.strip_prefix('|').and_then(|it| it.split_once("| "));
    project.map_or(text, |(_, rest)| rest.trim_start())
}

/// Returns the name of a test that begins with its file.
fn test_name(text: &str) -> Option<String> {
    let text = remove_project(text);
    let (file, _) = text.split_once(" > ")?;
    let is_file = file.contains('.') && !file.contains(' ');
    let name = match text.rsplit_once(' ') {
        Some((name, duration)) if is_duration(duration) => name,
        _ => text,
    };
    is_file.then(|| name.trim_end().to_owned())
}
