//! One parser for each framework.

use cynode_core::{environments::TestReportFormat, evidence::test_results::TestReport};

use crate::LineSource;

mod automake;
mod ava;
mod cargo;
mod ctest;
mod go;
pub(crate) mod jest;
mod jest_text;
pub(crate) mod junit;
mod mocha;
mod nextest;
mod node_spec;
mod pytest;
mod tap;
mod vitest;

/// Parser of the output of one framework.
pub(crate) trait FormatParser: Send + Sync {
    /// Reads a line.
    fn read_line(&mut self, line: &str, source: LineSource);

    /// Ends the reading.
    fn into_results(self: Box<Self>) -> FormatResults;
}

/// What a parser read.
#[derive(Debug)]
pub(crate) struct FormatResults {
    pub(crate) report: TestReport,
    /// Whether the output is of this framework beyond doubt.
    pub(crate) is_recognised: bool,
}

impl FormatResults {
    pub(crate) fn has_results(&self) -> bool {
        !self.report.tests.is_empty() || !self.report.unlisted.is_zero()
    }
}

/// Creates the parsers of a format, or all that recognise their output.
pub(crate) fn create_parsers(format: Option<TestReportFormat>) -> Vec<Box<dyn FormatParser>> {
    let Some(format) = format else {
        return vec![
            Box::new(pytest::PytestParser::default()),
            Box::new(cargo::CargoParser::default()),
            Box::new(nextest::NextestParser::default()),
            Box::new(tap::TapParser::default()),
            Box::new(node_spec::NodeSpecParser::default()),
            Box::new(ava::AvaParser::default()),
            Box::new(jest::JestParser::default()),
            Box::new(jest_text::JestTextParser::default()),
            Box::new(vitest::VitestParser::default()),
            Box::new(mocha::MochaParser::default()),
            Box::new(go::GoParser::default()),
            Box::new(ctest::CtestParser::default()),
            Box::new(automake::AutomakeParser::default()),
        ];
    };
    match format {
        TestReportFormat::Junit => vec![Box::new(junit::JunitParser::default())],
        TestReportFormat::Pytest => vec![Box::new(pytest::PytestParser::default())],
        TestReportFormat::Cargo => vec![Box::new(cargo::CargoParser::default())],
        TestReportFormat::Nextest => vec![Box::new(nextest::NextestParser::default())],
        TestReportFormat::Tap => vec![
            Box::new(tap::TapParser::default()),
            Box::new(node_spec::NodeSpecParser::default()),
            Box::new(ava::AvaParser::default()),
        ],
        TestReportFormat::Jest => vec![
            Box::new(jest::JestParser::default()),
            Box::new(jest_text::JestTextParser::default()),
            Box::new(vitest::VitestParser::default()),
        ],
        TestReportFormat::Mocha => vec![Box::new(mocha::MochaParser::default())],
        TestReportFormat::Go => vec![Box::new(go::GoParser::default())],
        TestReportFormat::Ctest => vec![Box::new(ctest::CtestParser::default())],
        TestReportFormat::Automake => vec![Box::new(automake::AutomakeParser::default())],
    }
}

/// Splits a result line into its indentation, its mark and its title; none for a line that begins with no mark.
fn split_mark<'line>(line: &'line str, marks: &[char]) -> Option<(usize, char, &'line str)> {
    let text = line.trim_start();
    let mut letters = text.chars();
    let mark = letters.next().filter(|mark| marks.contains(mark))?;
    let title = letters.as_str().strip_prefix(' ')?.trim();
    (!title.is_empty()).then(|| (line.len() - text.len(), mark, title))
}

/// Removes a duration in parentheses from the end of a title, such as `(12 ms)` or `(1.5s)`.
fn remove_duration(title: &str) -> &str {
    let Some((before, duration)) = title.strip_suffix(')').and_then(|it| it.rsplit_once(" ("))
    else {
        return title;
    };
    if is_duration(duration) { before.trim_end() } else { title }
}

/// Returns whether a text is a number with a unit of time.
fn is_duration(text: &str) -> bool {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = &text[number.len()..];
    matches!(unit, "ms" | "s" | "m" | "min" | "h") && number.trim_end().parse::<f64>().is_ok()
}

/// Reads the counts of a summary: numbers, each before its word, with a separator between them.
fn read_counts(text: &str, separator: char) -> impl Iterator<Item = (u32, &str)> {
    text.split(separator).filter_map(|part| {
        let (number, word) = part.trim().split_once(' ')?;
        Some((number.parse().ok()?, word.trim()))
    })
}

/// Titles of suites that are still open, by their indentation.
#[derive(Debug, Default)]
struct SuiteStack {
    titles: Vec<(usize, String)>,
}

/// Maximum depth of suites.
const MAX_SUITE_DEPTH: usize = 50;

impl SuiteStack {
    /// Closes the suites that are as deep as an indentation or deeper.
    fn close_suites(&mut self, indentation: usize) {
        self.titles.retain(|(depth, _)| *depth < indentation);
    }

    fn open_suite(&mut self, indentation: usize, title: &str) {
        self.close_suites(indentation);
        if self.titles.len() < MAX_SUITE_DEPTH {
            self.titles.push((indentation, crate::collector::normalize_name(title)));
        }
    }

    /// Returns the path of a test at an indentation.
    fn test_path(&mut self, indentation: usize, title: &str) -> String {
        self.close_suites(indentation);
        let suites = self.titles.iter().map(|(_, title)| title.as_str());
        suites.chain([title]).collect::<Vec<_>>().join(" > ")
    }
}
