//! Text of the `spec` reporter of `node --test`.

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{TestCounts, TestStatus},
};

use super::{FormatParser, FormatResults, SuiteStack, remove_duration, split_mark};
use crate::{LineSource, collector::ResultCollector};

/// Marks of a suite, of results and of the summary.
const MARKS: [char; 5] = ['▶', '✔', '✖', '﹣', 'ℹ'];

#[derive(Debug)]
pub(super) struct NodeSpecParser {
    collector: ResultCollector,
    suites: SuiteStack,
    listed: TestCounts,
    counts: TestCounts,
    has_summary: bool,
}

impl Default for NodeSpecParser {
    fn default() -> Self {
        Self {
            collector: ResultCollector::new(TestReportFormat::Tap),
            suites: SuiteStack::default(),
            listed: TestCounts::default(),
            counts: TestCounts::default(),
            has_summary: false,
        }
    }
}

impl FormatParser for NodeSpecParser {
    fn read_line(&mut self, line: &str, source: LineSource) {
        if source == LineSource::Stderr {
            return;
        }
        let Some((indentation, mark, title)) = split_mark(line, &MARKS) else { return };
        if mark == 'ℹ' {
            self.read_summary(title);
            return;
        }
        // The failures are listed once more after the summary.
        if self.has_summary {
            return;
        }
        if mark == '▶' {
            self.suites.open_suite(indentation, remove_duration(title));
            return;
        }
        let (title, comment) = title.rsplit_once(" # ").unwrap_or((title, ""));
        let name = remove_duration(title);
        // A suite is closed by a line with its result.
        let is_suite = self.suites.titles.iter().any(|(depth, open)| {
            *depth == indentation && *open == crate::collector::normalize_name(name)
        });
        let status = match mark {
            '﹣' => TestStatus::Skipped,
            _ if comment.starts_with("TODO") || comment.starts_with("SKIP") => TestStatus::Skipped,
            '✔' => TestStatus::Passed,
            _ => TestStatus::Failed,
        };
        let path = self.suites.test_path(indentation, name);
        if !is_suite {
            self.collector.record_numbered(&path, status);
            self.listed.add_result(status);
        }
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        if self.has_summary {
            self.collector.add_unlisted(self.counts.excess_over(self.listed));
        } else {
            self.collector.mark_incomplete();
        }
        FormatResults { report: self.collector.into_report(), is_recognised: self.has_summary }
    }
}

impl NodeSpecParser {
    fn read_summary(&mut self, text: &str) {
        let Some((word, number)) = text.split_once(' ') else { return };
        let Ok(number) = number.trim().parse::<u32>() else { return };
        let count = match word {
            "tests" => {
                self.has_summary = true;
                return;
            }
            "pass" => &mut self.counts.passed,
            "fail" | "cancelled" => &mut self.counts.failed,
            "skipped" | "todo" => &mut self.counts.skipped,
            _ => return,
        };
        *count = count.saturating_add(number);
    }
}
