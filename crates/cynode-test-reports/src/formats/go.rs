//! Output of `go test`: lines of `-json`, or the text of `-v`.

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{MAX_REPORTED_TESTS, TestStatus},
};
use serde_json::Value;

use super::{FormatParser, FormatResults};
use crate::{LineSource, collector::ResultCollector};

/// Maximum number of bytes of a line of `-json` that is read: longer ones are output of tests.
const MAX_EVENT_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct GoParser {
    collector: ResultCollector,
    /// Results of the package whose name stands after them.
    package: Vec<(String, TestStatus)>,
    is_recognised: bool,
}

impl Default for GoParser {
    fn default() -> Self {
        let collector = ResultCollector::new(TestReportFormat::Go);
        Self { collector, package: Vec::new(), is_recognised: false }
    }
}

impl FormatParser for GoParser {
    fn read_line(&mut self, line: &str, source: LineSource) {
        if source == LineSource::Stderr {
            return;
        }
        if line.starts_with('{') {
            if line.len() <= MAX_EVENT_BYTES && line.contains("\"Action\"") {
                self.read_event(line);
            }
        } else if let Some((name, status)) = parse_result(line) {
            if self.package.len() < MAX_REPORTED_TESTS {
                self.package.push((name.to_owned(), status));
            } else {
                self.collector.mark_incomplete();
            }
        } else if let Some((package, is_built)) = parse_package(line) {
            self.close_package(package);
            if !is_built {
                self.collector.mark_incomplete();
            }
        } else if line.starts_with("panic: ") && !self.package.is_empty() {
            // The tests after it do not run.
            self.collector.mark_incomplete();
        }
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        if !self.package.is_empty() {
            self.collector.mark_incomplete();
            self.close_package("");
        }
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

impl GoParser {
    fn read_event(&mut self, line: &str) {
        let Ok(event) = serde_json::from_str::<Value>(line) else { return };
        let (Some(action), Some(package)) = (event["Action"].as_str(), event["Package"].as_str())
        else {
            return;
        };
        let status = match action {
            "pass" => TestStatus::Passed,
            "fail" => TestStatus::Failed,
            "skip" => TestStatus::Skipped,
            _ => return,
        };
        self.is_recognised = true;
        match event["Test"].as_str() {
            Some(test) => self.collector.record_numbered(&format!("{package}::{test}"), status),
            // A package that does not build, or panics, fails without a test of its own.
            None if event["FailedBuild"].is_string() => self.collector.mark_incomplete(),
            None => {}
        }
    }

    fn close_package(&mut self, package: &str) {
        for (name, status) in std::mem::take(&mut self.package) {
            self.is_recognised = true;
            let name = if package.is_empty() { name } else { format!("{package}::{name}") };
            self.collector.record_numbered(&name, status);
        }
    }
}

/// Reads `--- PASS: TestA/sub (0.00s)`.
fn parse_result(line: &str) -> Option<(&str, TestStatus)> {
    let (word, rest) = line.trim_start().strip_prefix("--- ")?.split_once(": ")?;
    let status = match word {
        "PASS" => TestStatus::Passed,
        "FAIL" => TestStatus::Failed,
        "SKIP" => TestStatus::Skipped,
        _ => return None,
    };
    let (name, _) = rest.rsplit_once(" (")?;
    Some((name, status))
}

/// Reads `ok  \tpackage\t0.01s` or `FAIL\tpackage\t0.01s`, and whether the package could be built.
fn parse_package(line: &str) -> Option<(&str, bool)> {
    let mut parts = line.split('\t');
    let word = parts.next()?.trim_end();
    let package = parts.next()?.trim();
    if !matches!(word, "ok" | "FAIL") || package.is_empty() || package.contains(' ') {
        let failed = package.split_once(" [").filter(|_| word == "FAIL");
        return failed.map(|(package, _)| (package, false));
    }
    Some((package, true))
}
