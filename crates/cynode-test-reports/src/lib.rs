//! Results per test, read from what test frameworks write: pytest, cargo, nextest, jest, vitest, mocha, ava, `node --test`, go, ctest,
//! automake, the Test Anything Protocol and `JUnit` XML.
//!
//! The input is hostile: tests write what they like. Reading is bounded in memory and never fails; what is not understood is passed over.
//! Results are claims of the program that ran, as its exit code is.
//!
//! Names of tests are stable between runs of the same command:
//!
//! - pytest: the node id, `tests/test_a.py::test_b[1]`.
//! - cargo: the test binary and the path, `issues::parses_zero`; doc tests without their line, `nom::src/lib.rs - many0`.
//! - nextest: as it prints them, `crate::binary path`.
//! - jest and vitest: the file, the suites and the title, `a.test.js > suite > title`.
//! - mocha, `node --test` and nested TAP: the suites and the title, `suite > title`.
//! - tape: the title of the test and the message of the assertion, `title > should be equal`.
//! - go: the package and the test, `example.org/pkg::TestA/sub`.
//! - ctest and automake: the name of the test.
//! - `JUnit` XML: class and name, `class::name`; the suite stands in for a missing class.
//!
//! A name that occurs again in the same run is numbered: `title > should be equal #2`.

mod collector;
mod coverage;
mod formats;
mod lines;

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{TestReport, TestStatus},
};

pub use crate::coverage::{ChangedLines, count_changed_lines};
use crate::{
    formats::{FormatParser, FormatResults},
    lines::LineBuffer,
};

/// Maximum number of bytes of a report file.
pub const MAX_REPORT_FILE_BYTES: usize = 16 * 1024 * 1024;

/// Reads results per test from the output of a command while it runs.
pub struct ReportReader {
    parsers: Vec<Box<dyn FormatParser>>,
    /// Whether any parser whose format was given counts, recognised or not.
    is_format_given: bool,
    stdout: LineBuffer,
    stderr: LineBuffer,
}

/// Stream that a line comes from. The order of lines of different streams is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineSource {
    Stdout,
    Stderr,
}

impl ReportReader {
    /// Creates a reader for a format, or for all of them: then the output says which it is.
    pub fn new(format: Option<TestReportFormat>) -> Self {
        Self {
            parsers: formats::create_parsers(format),
            is_format_given: format.is_some(),
            stdout: LineBuffer::default(),
            stderr: LineBuffer::default(),
        }
    }

    /// Reads more of standard output.
    pub fn push(&mut self, bytes: &[u8]) {
        let parsers = &mut self.parsers;
        self.stdout.push_bytes(bytes, |line| feed_line(parsers, line, LineSource::Stdout));
    }

    /// Reads more of standard error.
    pub fn push_stderr(&mut self, bytes: &[u8]) {
        let parsers = &mut self.parsers;
        self.stderr.push_bytes(bytes, |line| feed_line(parsers, line, LineSource::Stderr));
    }

    /// Returns the results; none when the output has no results that are understood.
    pub fn finish(mut self) -> Option<TestReport> {
        let parsers = &mut self.parsers;
        self.stdout.flush_line(|line| feed_line(parsers, line, LineSource::Stdout));
        self.stderr.flush_line(|line| feed_line(parsers, line, LineSource::Stderr));
        let results = self.parsers.into_iter().map(|parser| parser.into_results());
        let is_format_given = self.is_format_given;
        let used = results.filter(|it| it.is_recognised || (is_format_given && it.has_results()));
        merge_reports(used)
    }
}

fn feed_line(parsers: &mut [Box<dyn FormatParser>], line: &str, source: LineSource) {
    // No framework writes such a line, and a flood of them would take a parser's time each.
    if line.len() == 1 {
        return;
    }
    for parser in parsers {
        parser.read_line(line, source);
    }
}

/// Joins the results of several frameworks. The format is that of the one with the most tests.
fn merge_reports(results: impl Iterator<Item = FormatResults>) -> Option<TestReport> {
    let count = |report: &TestReport| {
        let counts = report.counts();
        counts.count_run().saturating_add(counts.skipped)
    };
    let mut merged: Option<TestReport> = None;
    for FormatResults { report, .. } in results {
        let Some(other) = merged.take() else {
            merged = Some(report);
            continue;
        };
        let (mut larger, smaller) =
            if count(&report) > count(&other) { (report, other) } else { (other, report) };
        for (name, status) in &smaller.tests {
            let name = if larger.tests.contains_key(name) {
                collector::numbered_name(name, 2)
            } else {
                name.clone()
            };
            larger.record_result(&name, *status);
        }
        larger.unlisted.add_counts(smaller.unlisted);
        larger.incomplete |= smaller.incomplete;
        merged = Some(larger);
    }
    merged
}

/// Reads a report file: `JUnit` XML, JSON of jest or vitest, or the text of another format.
pub fn read_report_file(format: TestReportFormat, bytes: &[u8]) -> Option<TestReport> {
    if bytes.len() > MAX_REPORT_FILE_BYTES {
        return None;
    }
    match format {
        TestReportFormat::Junit => formats::junit::parse_document(&String::from_utf8_lossy(bytes)),
        TestReportFormat::Jest => formats::jest::parse_document(bytes),
        TestReportFormat::Pytest
        | TestReportFormat::Cargo
        | TestReportFormat::Nextest
        | TestReportFormat::Tap
        | TestReportFormat::Mocha
        | TestReportFormat::Go
        | TestReportFormat::Ctest
        | TestReportFormat::Automake => {
            let mut reader = ReportReader::new(Some(format));
            reader.push(bytes);
            reader.finish()
        }
    }
}

/// Returns the status of a test that has one of two results.
pub(crate) const fn status_from_success(passed: bool) -> TestStatus {
    if passed { TestStatus::Passed } else { TestStatus::Failed }
}

#[cfg(test)]
mod tests;
