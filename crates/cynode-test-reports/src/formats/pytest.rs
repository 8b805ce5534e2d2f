//! Text of pytest: the short summary of `-rA`, the lines of `-v`, and the counts at the end.

use std::collections::BTreeMap;

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{MAX_REPORTED_TESTS, TestCounts, TestStatus},
};

use super::{FormatParser, FormatResults, read_counts};
use crate::{
    LineSource,
    collector::{ResultCollector, count_results, normalize_name},
};

/// Words of results, with their status. An expected failure neither passes nor fails.
const WORDS: [(&str, TestStatus); 6] = [
    ("PASSED", TestStatus::Passed),
    ("FAILED", TestStatus::Failed),
    ("ERROR", TestStatus::Failed),
    ("SKIPPED", TestStatus::Skipped),
    ("XFAIL", TestStatus::Skipped),
    ("XPASS", TestStatus::Passed),
];

#[derive(Debug)]
pub(super) struct PytestParser {
    collector: ResultCollector,
    section: Section,
    /// Results of the present session.
    session: BTreeMap<String, TestStatus>,
    /// Results that a worse one of the same test replaced, such as that of a test before its clean-up failed.
    replaced: TestCounts,
    is_open: bool,
    is_recognised: bool,
}

/// Part of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Progress,
    Details,
    Summary,
}

impl Default for PytestParser {
    fn default() -> Self {
        Self {
            collector: ResultCollector::new(TestReportFormat::Pytest),
            section: Section::Details,
            session: BTreeMap::new(),
            replaced: TestCounts::default(),
            is_open: false,
            is_recognised: false,
        }
    }
}

impl FormatParser for PytestParser {
    fn read_line(&mut self, line: &str, _source: LineSource) {
        if let Some(title) = banner_title(line, '=') {
            match title {
                "test session starts" => {
                    self.close_session(None);
                    self.is_open = true;
                    self.is_recognised = true;
                    self.section = Section::Progress;
                }
                "short test summary info" => {
                    self.is_open = true;
                    self.section = Section::Summary;
                }
                title => match parse_summary(title) {
                    Some(counts) => self.close_session(Some(counts)),
                    None => self.section = Section::Details,
                },
            }
        } else if banner_title(line, '!').is_some() {
            // Interrupted, or stopped after a number of failures.
            self.collector.mark_incomplete();
        } else if let Some(counts) = parse_summary(line) {
            // `-q` has no banners.
            self.close_session(Some(counts));
        } else if self.section == Section::Summary {
            if let Some((name, status)) = parse_summary_line(line) {
                self.record_result(name, status);
            }
        } else if self.section == Section::Progress
            && let Some((name, status)) = parse_verbose_line(line)
        {
            self.record_result(name, status);
        }
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        self.close_session(None);
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

impl PytestParser {
    fn record_result(&mut self, name: &str, status: TestStatus) {
        let name = normalize_name(name);
        let has_room = self.session.len() < MAX_REPORTED_TESTS;
        match self.session.get_mut(&name) {
            Some(known) if *known < status => {
                self.replaced.add_result(*known);
                *known = status;
            }
            Some(_) => {}
            None if has_room => {
                self.session.insert(name, status);
            }
            None => {}
        }
    }

    /// Ends a session: with its own counts, or without.
    fn close_session(&mut self, counts: Option<TestCounts>) {
        match counts {
            Some(counts) => {
                self.is_recognised = true;
                let mut listed = count_results(self.session.values());
                listed.add_counts(self.replaced);
                self.collector.add_unlisted(counts.excess_over(listed));
            }
            None if self.is_open => self.collector.mark_incomplete(),
            None => {}
        }
        for (name, status) in std::mem::take(&mut self.session) {
            self.collector.record_worst(&name, status);
        }
        self.replaced = TestCounts::default();
        self.is_open = false;
        self.section = Section::Details;
    }
}

/// Returns the title between two runs of a letter, as pytest draws its banners.
fn banner_title(line: &str, letter: char) -> Option<&str> {
    let line = line.trim_end();
    let title = line.trim_matches(letter);
    let framed = line.starts_with(letter) && line.ends_with(letter) && title.len() < line.len();
    let title = title.strip_prefix(' ').and_then(|it| it.strip_suffix(' '))?;
    framed.then_some(title)
}

/// Reads the counts at the end: `2 failed, 3 passed, 1 warning in 0.12s`.
fn parse_summary(text: &str) -> Option<TestCounts> {
    let (counts, duration) = text.trim().rsplit_once(" in ")?;
    let number = duration.split(' ').next()?.strip_suffix('s')?;
    number.parse::<f64>().ok()?;
    let mut total = TestCounts::default();
    if counts == "no tests ran" {
        return Some(total);
    }
    for part in counts.split(", ") {
        let (number, word) = read_counts(part, ',').next()?;
        let count = match word {
            "passed" | "xpassed" => &mut total.passed,
            "skipped" | "xfailed" => &mut total.skipped,
            "failed" | "error" | "errors" => &mut total.failed,
            "deselected" | "warning" | "warnings" | "rerun" | "subtests passed"
            | "subtests failed" | "subtests skipped" => continue,
            _ => return None,
        };
        *count = count.saturating_add(number);
    }
    Some(total)
}

/// Reads a line of the short summary: `FAILED tests/test_a.py::test_b - reason`.
fn parse_summary_line(line: &str) -> Option<(&str, TestStatus)> {
    let (word, rest) = line.split_once(' ')?;
    let (_, status) = WORDS.into_iter().find(|(known, _)| *known == word)?;
    // Skipped tests are counted by place and not named.
    if rest.starts_with('[') {
        return None;
    }
    Some((remove_reason(rest), status))
}

/// Removes the reason after a name. The parameters of a test may have a dash too.
fn remove_reason(text: &str) -> &str {
    let dashes = || text.match_indices(" - ").map(|(at, _)| &text[..at]);
    let balanced = |name: &&str| name.matches('[').count() == name.matches(']').count();
    dashes().find(balanced).or_else(|| dashes().next()).unwrap_or(text).trim()
}

/// Reads a line of `-v`: `tests/test_a.py::test_b PASSED [ 50%]`, or of xdist: `[gw0] [ 50%] PASSED tests/test_a.py::test_b`.
fn parse_verbose_line(line: &str) -> Option<(&str, TestStatus)> {
    let line = line.trim_end();
    if line.starts_with("[gw") {
        let (_, rest) = line.split_once("%] ")?;
        let (word, name) = rest.split_once(' ')?;
        let (_, status) = WORDS.into_iter().find(|(known, _)| *known == word)?;
        return name.contains("::").then(|| (name.trim(), status));
    }
    let line = match line.strip_suffix("%]").and_then(|it| it.rsplit_once(" [")) {
        Some((before, _)) => before.trim_end(),
        None => line,
    };
    // The last word of a result counts; a reason in parentheses may follow it.
    let results = WORDS.into_iter().filter_map(|(word, status)| {
        let at = line.rfind(&format!(" {word}"))?;
        let rest = &line[at + 1 + word.len()..];
        (rest.is_empty() || rest.starts_with(" (")).then_some((at, status))
    });
    let (at, status) = results.max_by_key(|(at, _)| *at)?;
    let name = line[..at].trim_end();
    (name.contains("::") && !name.starts_with(' ')).then_some((name, status))
}
