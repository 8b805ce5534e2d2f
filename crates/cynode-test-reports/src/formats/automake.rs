//! Text of automake's `make check`: `PASS: name`, and a summary with `# TOTAL:`.

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{TestCounts, TestStatus},
};

use super::{FormatParser, FormatResults};
use crate::{LineSource, collector::ResultCollector};

#[derive(Debug)]
pub(super) struct AutomakeParser {
    collector: ResultCollector,
    listed: TestCounts,
    counts: TestCounts,
    has_summary: bool,
    is_recognised: bool,
}

impl Default for AutomakeParser {
    fn default() -> Self {
        Self {
            collector: ResultCollector::new(TestReportFormat::Automake),
            listed: TestCounts::default(),
            counts: TestCounts::default(),
            has_summary: false,
            is_recognised: false,
        }
    }
}

impl FormatParser for AutomakeParser {
    fn read_line(&mut self, line: &str, _source: LineSource) {
        if let Some(summary) = line.strip_prefix("# ") {
            let Some((word, number)) = summary.split_once(':') else { return };
            let Ok(number) = number.trim().parse::<u32>() else { return };
            if word == "TOTAL" {
                self.has_summary = true;
                self.is_recognised = true;
            } else if let Some(status) = parse_word(word).filter(|_| self.has_summary) {
                let count = match status {
                    TestStatus::Passed => &mut self.counts.passed,
                    TestStatus::Skipped => &mut self.counts.skipped,
                    TestStatus::Failed => &mut self.counts.failed,
                };
                *count = count.saturating_add(number);
            }
        } else if let Some((word, name)) = line.split_once(": ")
            && let Some(status) = parse_word(word)
        {
            self.collector.record_numbered(name, status);
            self.listed.add_result(status);
            self.has_summary = false;
        }
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        if self.has_summary {
            self.collector.add_unlisted(self.counts.excess_over(self.listed));
        } else {
            self.collector.mark_incomplete();
        }
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

fn parse_word(word: &str) -> Option<TestStatus> {
    match word {
        "PASS" => Some(TestStatus::Passed),
        // An expected failure neither passes nor fails.
        "SKIP" | "XFAIL" => Some(TestStatus::Skipped),
        "FAIL" | "XPASS" | "ERROR" => Some(TestStatus::Failed),
        _ => None,
    }
}
