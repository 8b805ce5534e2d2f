//! JSON of jest (`--json`) and of vitest (`--reporter=json`).

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{TestReport, TestStatus},
};
use serde_json::Value;

use super::{FormatParser, FormatResults};
use crate::{LineSource, collector::ResultCollector};

/// Path of the workspace, which file names begin with.
const WORKSPACE_PREFIX: &str = "/work/";

/// Finds documents that are lines of an output.
#[derive(Debug)]
pub(super) struct JestParser {
    collector: ResultCollector,
    is_recognised: bool,
}

impl Default for JestParser {
    fn default() -> Self {
        Self { collector: ResultCollector::new(TestReportFormat::Jest), is_recognised: false }
    }
}

impl FormatParser for JestParser {
    fn read_line(&mut self, line: &str, _source: LineSource) {
        if line.starts_with("{\"num") {
            let read = serde_json::from_str(line).ok();
            match read.and_then(|document: Value| read_document(&document, &mut self.collector)) {
                Some(()) => self.is_recognised = true,
                // It is cut, or something else was written into it.
                None => self.collector.mark_incomplete(),
            }
        }
    }

    fn into_results(self: Box<Self>) -> FormatResults {
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

/// Reads a report file.
pub(crate) fn parse_document(bytes: &[u8]) -> Option<TestReport> {
    let document: Value = serde_json::from_slice(bytes).ok()?;
    let mut collector = ResultCollector::new(TestReportFormat::Jest);
    read_document(&document, &mut collector)?;
    Some(collector.into_report())
}

fn read_document(document: &Value, collector: &mut ResultCollector) -> Option<()> {
    for file in document.get("testResults")?.as_array()? {
        let path = file["name"].as_str().unwrap_or_default();
        let path = path.strip_prefix(WORKSPACE_PREFIX).unwrap_or(path);
        let tests = file["assertionResults"].as_array().map_or(&[][..], Vec::as_slice);
        for test in tests {
            let suites = test["ancestorTitles"].as_array().map_or(&[][..], Vec::as_slice);
            let titles = suites.iter().filter_map(Value::as_str).chain(test["title"].as_str());
            let name = std::iter::once(path).chain(titles).filter(|title| !title.is_empty());
            let name = name.collect::<Vec<_>>().join(" > ");
            let status = match test["status"].as_str() {
                Some("passed") => TestStatus::Passed,
                Some("failed") => TestStatus::Failed,
                _ => TestStatus::Skipped,
            };
            collector.record_numbered(&name, status);
        }
        // A file that cannot be loaded has no tests.
        if tests.is_empty() && file["status"] == "failed" {
            collector.record_worst(path, TestStatus::Failed);
            collector.mark_incomplete();
        }
    }
    Some(())
}
