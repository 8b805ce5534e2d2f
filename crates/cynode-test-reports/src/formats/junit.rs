//! `JUnit` XML. A document with a type definition or with entities of its own is refused.

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{TestReport, TestStatus},
};
use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};

use super::{FormatParser, FormatResults};
use crate::{LineSource, MAX_REPORT_FILE_BYTES, collector::ResultCollector};

/// Maximum depth of elements.
const MAX_DEPTH: usize = 64;

/// Finds a document in an output.
#[derive(Debug, Default)]
pub(super) struct JunitParser {
    document: String,
    is_in_document: bool,
}

impl FormatParser for JunitParser {
    fn read_line(&mut self, line: &str, source: LineSource) {
        if source == LineSource::Stderr {
            return;
        }
        let begins = ["<?xml", "<testsuites", "<testsuite"];
        self.is_in_document |= begins.iter().any(|begin| line.trim_start().starts_with(begin));
        if self.is_in_document && self.document.len() + line.len() < MAX_REPORT_FILE_BYTES {
            self.document.push_str(line);
            self.document.push('\n');
        }
        if line.trim_end().ends_with("</testsuites>") {
            self.is_in_document = false;
        }
    }

    fn into_results(self: Box<Self>) -> FormatResults {
        let report = parse_document(&self.document);
        let is_recognised = report.is_some();
        let report = report.unwrap_or_else(|| TestReport::new(TestReportFormat::Junit));
        FormatResults { report, is_recognised }
    }
}

/// Reads a document; none when it is no report.
pub(crate) fn parse_document(text: &str) -> Option<TestReport> {
    let mut reader = Reader::from_str(text);
    let mut state = DocumentState::new();
    loop {
        match reader.read_event() {
            Ok(Event::Start(element)) => state.open_element(&element)?,
            Ok(Event::Empty(element)) => {
                state.open_element(&element)?;
                state.close_element();
            }
            Ok(Event::End(_)) => state.close_element(),
            Ok(Event::DocType(_)) => return None,
            Ok(Event::Eof) => break,
            Ok(_) => {}
            Err(_) => {
                state.collector.mark_incomplete();
                break;
            }
        }
    }
    state.into_report()
}

/// Element that is open.
#[derive(Debug)]
enum OpenElement {
    Suite(String),
    Test { name: String, status: TestStatus },
    Other,
}

#[derive(Debug)]
struct DocumentState {
    collector: ResultCollector,
    open: Vec<OpenElement>,
    has_suite: bool,
}

impl DocumentState {
    fn new() -> Self {
        let collector = ResultCollector::new(TestReportFormat::Junit);
        Self { collector, open: Vec::new(), has_suite: false }
    }

    fn open_element(&mut self, element: &BytesStart<'_>) -> Option<()> {
        if self.open.len() >= MAX_DEPTH {
            return None;
        }
        let opened = match element.local_name().as_ref() {
            "testsuite" | "testsuites" => {
                self.has_suite = true;
                OpenElement::Suite(read_attribute(element, "name").unwrap_or_default())
            }
            "testcase" => self.open_test(element),
            "failure" | "error" => self.set_status(TestStatus::Failed),
            "skipped" => self.set_status(TestStatus::Skipped),
            _ => OpenElement::Other,
        };
        self.open.push(opened);
        Some(())
    }

    fn open_test(&self, element: &BytesStart<'_>) -> OpenElement {
        let title = read_attribute(element, "name").unwrap_or_default();
        let class = read_attribute(element, "classname").filter(|class| !class.is_empty());
        let suite = || {
            self.open.iter().rev().find_map(|it| match it {
                OpenElement::Suite(name) if !name.is_empty() => Some(name.clone()),
                _ => None,
            })
        };
        let name = match class.or_else(suite) {
            Some(class) => format!("{class}::{title}"),
            None => title,
        };
        OpenElement::Test { name, status: TestStatus::Passed }
    }

    /// Sets the status of the test around an element.
    fn set_status(&mut self, worse: TestStatus) -> OpenElement {
        if let Some(OpenElement::Test { status, .. }) = self.open.last_mut() {
            *status = (*status).max(worse);
        }
        OpenElement::Other
    }

    fn close_element(&mut self) {
        if let Some(OpenElement::Test { name, status }) = self.open.pop() {
            self.collector.record_numbered(&name, status);
        }
    }

    fn into_report(mut self) -> Option<TestReport> {
        if !self.open.is_empty() {
            self.collector.mark_incomplete();
        }
        self.has_suite.then(|| self.collector.into_report())
    }
}

/// Reads an attribute. Only the entities of XML itself are replaced.
pub(crate) fn read_attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let attribute = element.attributes().flatten().find(|it| it.key.as_ref() == name)?;
    let value = attribute.normalized_value(XmlVersion::Implicit1_0).ok()?;
    Some(value.into_owned())
}
