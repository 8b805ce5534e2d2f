//! Text of ava's own reporter.

use cynode_core::{environments::TestReportFormat, evidence::test_results::TestStatus};

use super::{FormatParser, FormatResults, remove_duration, split_mark};
use crate::{LineSource, collector::ResultCollector};

#[derive(Debug)]
pub(super) struct AvaParser {
    collector: ResultCollector,
    is_open: bool,
    is_recognised: bool,
}

impl Default for AvaParser {
    fn default() -> Self {
        let collector = ResultCollector::new(TestReportFormat::Tap);
        Self { collector, is_open: true, is_recognised: false }
    }
}

impl FormatParser for AvaParser {
    fn read_line(&mut self, line: &str, _source: LineSource) {
        if is_summary(line) {
            self.is_recognised = true;
        }
        if line.trim() == "─" {
            // The failures are described after the list.
            self.is_open = false;
        }
        if !self.is_open {
            return;
        }
        let Some((2, mark, title)) = split_mark(line, &['✔', '✘', '✖', '-']) else { return };
        let (status, title) = if mark == '-' {
            let skipped = title.strip_prefix("[skip] ").or_else(|| title.strip_prefix("[todo] "));
            let Some(title) = skipped else { return };
            (TestStatus::Skipped, title)
        } else if mark == '✔' {
            (TestStatus::Passed, title.strip_prefix("[expected fail] ").unwrap_or(title))
        } else {
            (TestStatus::Failed, title.strip_prefix("[fail]: ").unwrap_or(title))
        };
        self.collector.record_numbered(&remove_duration(title).replace(" › ", " > "), status);
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        if !self.is_recognised {
            self.collector.mark_incomplete();
        }
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

/// Returns whether a line is `  3 tests passed` or `  1 test failed`.
fn is_summary(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    line.starts_with("  ")
        && matches!(words.as_slice(), [number, "test" | "tests", "passed" | "failed"]
            if number.parse::<u32>().is_ok())
}
