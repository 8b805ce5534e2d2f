//! Test Anything Protocol, versions 12 to 14, with nested subtests.

use cynode_core::{environments::TestReportFormat, evidence::test_results::TestStatus};

use super::{FormatParser, FormatResults, MAX_SUITE_DEPTH};
use crate::{LineSource, collector::ResultCollector, status_from_success};

/// Indentation of one level of subtests.
const LEVEL_SPACES: usize = 4;

#[derive(Debug)]
pub(super) struct TapParser {
    collector: ResultCollector,
    /// Titles of the open subtests, outermost first.
    subtests: Vec<String>,
    /// Title that the last comment gave to the points after it.
    group: Option<String>,
    /// Point of a subtest whose diagnostic may say that it is a suite.
    pending: Option<PendingPoint>,
    /// Deepest level of the points since the last point of each outer level.
    deeper: Deeper,
    is_in_diagnostic: bool,
    stream: Stream,
    is_recognised: bool,
}

/// One document of the protocol.
#[derive(Debug, Default)]
struct Stream {
    is_open: bool,
    plan: Option<u32>,
    points: u32,
}

/// Points of a deeper level that came before the point of their parent.
#[derive(Debug, Default)]
struct Deeper {
    /// Whether there were any, and whether one failed, by level.
    levels: Vec<(bool, bool)>,
}

impl Deeper {
    fn note_point(&mut self, level: usize, failed: bool) {
        self.levels.resize(self.levels.len().max(level), (false, false));
        for outer in self.levels.iter_mut().take(level) {
            *outer = (true, outer.1 || failed);
        }
    }

    /// Returns whether a point has subtests, and whether one of them failed.
    fn take_children(&mut self, level: usize) -> (bool, bool) {
        let children = self.levels.get(level).copied().unwrap_or_default();
        self.levels.truncate(level);
        children
    }
}

#[derive(Debug)]
struct PendingPoint {
    name: String,
    status: TestStatus,
    is_explained_by_child: bool,
}

impl Default for TapParser {
    fn default() -> Self {
        Self {
            collector: ResultCollector::new(TestReportFormat::Tap),
            subtests: Vec::new(),
            group: None,
            pending: None,
            deeper: Deeper::default(),
            is_in_diagnostic: false,
            stream: Stream::default(),
            is_recognised: false,
        }
    }
}

impl FormatParser for TapParser {
    fn read_line(&mut self, line: &str, source: LineSource) {
        if source == LineSource::Stderr {
            return;
        }
        let text = line.trim_start();
        let level = (line.len() - text.len()) / LEVEL_SPACES;
        if self.is_in_diagnostic {
            self.read_diagnostic(text);
        } else if text == "---" && line != text {
            self.is_in_diagnostic = true;
        } else if let Some(point) = parse_point(text) {
            self.flush_pending(false);
            if level <= MAX_SUITE_DEPTH {
                self.read_point(level, &point);
            }
        } else if let Some(plan) = parse_plan(text) {
            if line == text {
                self.stream.is_open = true;
                self.stream.plan = Some(plan);
            }
        } else if let Some(comment) = text.strip_prefix('#') {
            self.flush_pending(false);
            self.read_comment(level, comment.trim());
        } else if line.starts_with("TAP version ") {
            self.close_stream();
            self.stream.is_open = true;
        } else if text.starts_with("Bail out!") {
            self.collector.mark_incomplete();
        }
    }

    fn into_results(mut self: Box<Self>) -> FormatResults {
        self.close_stream();
        FormatResults { report: self.collector.into_report(), is_recognised: self.is_recognised }
    }
}

impl TapParser {
    fn read_point(&mut self, level: usize, point: &Point<'_>) {
        if level == 0 {
            self.stream.points = self.stream.points.saturating_add(1);
            // Only numbered points of a document are beyond doubt.
            self.is_recognised |= self.stream.is_open && point.is_numbered;
        }
        let failed = point.status == TestStatus::Failed;
        let (has_children, child_failed) = self.deeper.take_children(level);
        self.deeper.note_point(level, failed);
        self.subtests.truncate(level);
        let mut path: Vec<&str> = self.subtests.iter().map(String::as_str).collect();
        if level == 0 {
            path.extend(self.group.as_deref());
        }
        if !point.title.is_empty() || path.is_empty() {
            path.push(if point.title.is_empty() { "(no name)" } else { point.title });
        }
        let name = path.join(" > ");
        if has_children {
            let is_explained_by_child = !failed || child_failed;
            let status = point.status;
            self.pending = Some(PendingPoint { name, status, is_explained_by_child });
        } else {
            self.collector.record_numbered(&name, point.status);
        }
    }

    fn read_diagnostic(&mut self, text: &str) {
        match text {
            "..." => self.is_in_diagnostic = false,
            "type: 'suite'" | "type: suite" => self.flush_pending(true),
            _ => {}
        }
    }

    /// Records the point of a subtest. A suite counts only if it failed by itself.
    fn flush_pending(&mut self, is_suite: bool) {
        if let Some(point) = self.pending.take()
            && !(is_suite && point.is_explained_by_child)
        {
            self.collector.record_numbered(&point.name, point.status);
        }
    }

    fn read_comment(&mut self, level: usize, comment: &str) {
        if let Some(title) = comment.strip_prefix("Subtest: ") {
            if level < MAX_SUITE_DEPTH {
                self.subtests.resize(level, String::new());
                self.subtests.push(crate::collector::normalize_name(title));
            }
            self.group = None;
        } else if level == 0 && !is_summary(comment) {
            let title = comment.strip_prefix("TODO ").unwrap_or(comment);
            self.group = Some(crate::collector::normalize_name(title));
        }
    }

    /// Ends a document.
    fn close_stream(&mut self) {
        self.flush_pending(false);
        let stream = std::mem::take(&mut self.stream);
        let has_content = stream.is_open || stream.points > 0;
        if has_content && stream.plan != Some(stream.points) {
            self.collector.mark_incomplete();
        }
        self.subtests.clear();
        self.group = None;
        self.deeper = Deeper::default();
        self.is_in_diagnostic = false;
    }
}

/// Returns whether a comment is one of the counts at the end.
fn is_summary(comment: &str) -> bool {
    let mut words = comment.split_whitespace();
    let is_count = matches!(
        words.next(),
        Some(
            "tests"
                | "suites"
                | "pass"
                | "fail"
                | "cancelled"
                | "skipped"
                | "skip"
                | "todo"
                | "duration_ms"
                | "ok"
        )
    );
    is_count && words.next().is_none_or(|number| number.parse::<f64>().is_ok())
}

/// A result line.
struct Point<'line> {
    status: TestStatus,
    title: &'line str,
    is_numbered: bool,
}

/// Reads `ok 1 - title # SKIP reason`.
fn parse_point(text: &str) -> Option<Point<'_>> {
    let (passed, rest) = match text.strip_prefix("not ok") {
        Some(rest) => (false, rest),
        None => (true, text.strip_prefix("ok")?),
    };
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    let rest = rest.trim_start();
    let digits = rest.len() - rest.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let after = &rest[digits..];
    let is_numbered = digits > 0 && (after.is_empty() || after.starts_with(' '));
    let title = if is_numbered { after } else { rest }.trim_start();
    // Without a number and a dash it may be any sentence.
    let title = match title.strip_prefix("- ") {
        Some(title) => title,
        None if is_numbered => title,
        None => return None,
    };
    let (title, directive) = split_directive(title);
    let status = if directive { TestStatus::Skipped } else { status_from_success(passed) };
    // An end of `{` opens the subtests of version 14.
    let title = title.strip_suffix(" {").unwrap_or(title);
    Some(Point { status, title: title.trim(), is_numbered })
}

/// Splits off `# SKIP` and `# TODO`. Both say that the result does not count.
fn split_directive(title: &str) -> (&str, bool) {
    for (at, _) in title.match_indices('#') {
        let before = &title[..at];
        let word = title[at + 1..].trim_start();
        let is_directive = ["skip", "todo"].iter().any(|known| {
            let head = word.get(..known.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(known))
        });
        if is_directive && !before.ends_with('\\') {
            return (before.trim_end(), true);
        }
    }
    (title, false)
}

/// Reads `1..12`.
fn parse_plan(text: &str) -> Option<u32> {
    let rest = text.strip_prefix("1..")?;
    rest.split([' ', '#']).next()?.parse().ok()
}
