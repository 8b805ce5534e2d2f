//! JSON of jest (`--json`) and of vitest (`--reporter=json`).
//!
//! A document is read as a stream: of each test only its name and its status stay in memory, and what failed tests say is passed over.

use std::fmt;

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{
        MAX_REPORTED_TESTS, MAX_TEST_NAME_BYTES, TestCounts, TestReport, TestStatus,
    },
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{FormatParser, FormatResults};
use crate::{LineSource, collector::ResultCollector};

/// Path of the workspace, which file names begin with.
const WORKSPACE_PREFIX: &str = "/work/";

/// Text between the parts of a name.
const NAME_SEPARATOR: &str = " > ";

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
            match read_document(line.as_bytes(), &mut self.collector) {
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
    let mut collector = ResultCollector::new(TestReportFormat::Jest);
    read_document(bytes, &mut collector)?;
    Some(collector.into_report())
}

/// Reads a document; none when it is not whole or no report.
fn read_document(bytes: &[u8], collector: &mut ResultCollector) -> Option<()> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let has_results = reader.deserialize_map(DocumentVisitor { collector }).ok()?;
    reader.end().ok()?;
    has_results.then_some(())
}

/// Reads the whole document. The value says whether it has results.
struct DocumentVisitor<'a> {
    collector: &'a mut ResultCollector,
}

impl<'de> Visitor<'de> for DocumentVisitor<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("results of jest")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut has_results = false;
        while let Some(BoundedText(key)) = map.next_key()? {
            if key == "testResults" {
                map.next_value_seed(FilesVisitor { collector: &mut *self.collector })?;
                has_results = true;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(has_results)
    }
}

/// Reads the list of test files.
struct FilesVisitor<'a> {
    collector: &'a mut ResultCollector,
}

impl<'de> DeserializeSeed<'de> for FilesVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for FilesVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of test files")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut files: A) -> Result<(), A::Error> {
        while let Some(file) = files.next_element()? {
            record_file(file, self.collector);
        }
        Ok(())
    }
}

/// A test file. Its name may come after its tests.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TestFile {
    name: BoundedText,
    status: BoundedText,
    assertion_results: FileTests,
}

fn record_file(file: TestFile, collector: &mut ResultCollector) {
    let path = file.name.0.strip_prefix(WORKSPACE_PREFIX).unwrap_or(&file.name.0);
    let FileTests { tests, unlisted } = file.assertion_results;
    // A file that cannot be loaded has no tests.
    if tests.is_empty() && unlisted.is_zero() && file.status.0 == "failed" {
        collector.record_worst(path, TestStatus::Failed);
        collector.mark_incomplete();
    }
    for (titles, status) in tests {
        let parts = [path, titles.as_str()].into_iter().filter(|part| !part.is_empty());
        let name = parts.collect::<Vec<_>>().join(NAME_SEPARATOR);
        collector.record_numbered(&name, status);
    }
    collector.add_unlisted(unlisted);
}

/// Tests of a file: the first ones by their suites and title, and the number of the others.
#[derive(Debug, Default)]
struct FileTests {
    tests: Vec<(String, TestStatus)>,
    unlisted: TestCounts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AssertionResult {
    ancestor_titles: TitlePath,
    title: BoundedText,
    status: BoundedText,
}

impl<'de> Deserialize<'de> for FileTests {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FileTestsVisitor)
    }
}

struct FileTestsVisitor;

impl<'de> Visitor<'de> for FileTestsVisitor {
    type Value = FileTests;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of tests")
    }

    fn visit_unit<E: Error>(self) -> Result<FileTests, E> {
        Ok(FileTests::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut assertions: A) -> Result<FileTests, A::Error> {
        let mut found = FileTests::default();
        while let Some(assertion) = assertions.next_element()? {
            let AssertionResult { ancestor_titles: TitlePath(mut name), title, status } = assertion;
            append_title(&mut name, &title.0);
            let status = match status.0.as_str() {
                "passed" => TestStatus::Passed,
                "failed" => TestStatus::Failed,
                _ => TestStatus::Skipped,
            };
            if found.tests.len() < MAX_REPORTED_TESTS {
                found.tests.push((name, status));
            } else {
                found.unlisted.add_result(status);
            }
        }
        Ok(found)
    }
}

/// Adds a title to a path of titles, as long as there is room.
fn append_title(path: &mut String, title: &str) {
    if title.is_empty() || path.len() + NAME_SEPARATOR.len() >= MAX_TEST_NAME_BYTES {
        return;
    }
    if !path.is_empty() {
        path.push_str(NAME_SEPARATOR);
    }
    let end = title.floor_char_boundary(MAX_TEST_NAME_BYTES.saturating_sub(path.len()));
    path.push_str(&title[..end]);
}

/// Titles of suites, joined.
#[derive(Debug, Default)]
struct TitlePath(String);

impl<'de> Deserialize<'de> for TitlePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TitlePathVisitor)
    }
}

struct TitlePathVisitor;

impl<'de> Visitor<'de> for TitlePathVisitor {
    type Value = TitlePath;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of titles")
    }

    fn visit_unit<E: Error>(self) -> Result<TitlePath, E> {
        Ok(TitlePath::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut titles: A) -> Result<TitlePath, A::Error> {
        let mut path = TitlePath::default();
        while let Some(BoundedText(title)) = titles.next_element()? {
            append_title(&mut path.0, &title);
        }
        Ok(path)
    }
}

/// Text of bounded length; empty for another value.
#[derive(Debug, Default)]
struct BoundedText(String);

impl<'de> Deserialize<'de> for BoundedText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BoundedTextVisitor)
    }
}

struct BoundedTextVisitor;

impl Visitor<'_> for BoundedTextVisitor {
    type Value = BoundedText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a plain value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<BoundedText, E> {
        let end = text.floor_char_boundary(MAX_TEST_NAME_BYTES);
        Ok(BoundedText(text[..end].to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<BoundedText, E> {
        Ok(BoundedText::default())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<BoundedText, E> {
        Ok(BoundedText::default())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<BoundedText, E> {
        Ok(BoundedText::default())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<BoundedText, E> {
        Ok(BoundedText::default())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<BoundedText, E> {
        Ok(BoundedText::default())
    }
}
