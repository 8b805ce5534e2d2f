//! Text of `cargo test`: one block of each test binary.
//!
//! Cargo announces a binary on standard error, and the binary writes its results to standard output. The order of lines of the two
//! streams is not known, so the first announcement belongs to the first block, and so on.

use cynode_core::{
    environments::TestReportFormat,
    evidence::test_results::{MAX_REPORTED_TESTS, TestCounts, TestStatus},
};

use super::{FormatParser, FormatResults, read_counts};
use crate::{
    LineSource,
    collector::{ResultCollector, count_results, normalize_name},
};

/// Maximum number of test binaries.
const MAX_BINARIES: usize = 2000;

#[derive(Debug, Default)]
pub(super) struct CargoParser {
    blocks: Vec<Block>,
    announced: Vec<String>,
    /// Announcement in the stream of the results.
    present: Option<String>,
    recorded: usize,
    /// Test whose result stands on a later line.
    pending: Option<String>,
    is_stopped_early: bool,
    is_cut: bool,
}

/// Results of one test binary.
#[derive(Debug, Default)]
struct Block {
    binary: Option<String>,
    tests: Vec<(String, TestStatus)>,
    counts: Option<TestCounts>,
    /// Whether the list of results has ended, and what failed tests wrote follows.
    is_listed: bool,
}

impl FormatParser for CargoParser {
    fn read_line(&mut self, line: &str, source: LineSource) {
        if let Some(binary) = parse_announcement(line) {
            match source {
                LineSource::Stdout => self.present = Some(binary),
                LineSource::Stderr if self.announced.len() < MAX_BINARIES => {
                    self.announced.push(binary);
                }
                LineSource::Stderr => {}
            }
        } else if line.starts_with("error: test failed, to rerun pass") {
            // Without `--no-fail-fast` further binaries are not run.
            self.is_stopped_early = true;
        } else if line.starts_with("error: ")
            && (line.contains(" target failed:") || line.contains(" targets failed:"))
        {
            self.is_stopped_early = false;
        } else if line == "failures:" {
            if let Some(block) = self.open_block() {
                block.is_listed = true;
            }
        } else if is_block_start(line) {
            if self.blocks.len() < MAX_BINARIES {
                let binary = self.present.clone();
                self.blocks.push(Block { binary, ..Block::default() });
            } else {
                self.is_cut = true;
            }
            self.pending = None;
        } else if let Some(counts) = line.strip_prefix("test result: ").and_then(parse_counts) {
            if let Some(block) = self.open_block() {
                block.counts = Some(counts);
            }
        } else {
            self.read_result(line);
        }
    }

    fn into_results(self: Box<Self>) -> FormatResults {
        let Self { blocks, announced, is_stopped_early, is_cut, .. } = *self;
        let mut collector = ResultCollector::new(TestReportFormat::Cargo);
        if is_stopped_early || is_cut {
            collector.mark_incomplete();
        }
        let is_recognised = !blocks.is_empty();
        let mut announced = announced.into_iter();
        for Block { binary, tests, counts, .. } in blocks {
            let binary = binary.or_else(|| announced.next());
            let listed = count_results(tests.iter().map(|(_, status)| status));
            match counts {
                Some(counts) => collector.add_unlisted(counts.excess_over(listed)),
                None => collector.mark_incomplete(),
            }
            for (name, status) in tests {
                match &binary {
                    Some(binary) => collector.record_numbered(&format!("{binary}::{name}"), status),
                    None => collector.record_numbered(&name, status),
                }
            }
        }
        FormatResults { report: collector.into_report(), is_recognised }
    }
}

impl CargoParser {
    fn open_block(&mut self) -> Option<&mut Block> {
        self.blocks.last_mut().filter(|block| block.counts.is_none())
    }

    fn read_result(&mut self, line: &str) {
        let Some(block) = self.open_block() else { return };
        if block.is_listed {
            // `-q` names only what failed.
            let head = line.strip_prefix("---- ").and_then(|it| it.strip_suffix(" stdout ----"));
            let Some(name) = head.map(test_name) else { return };
            if !block.tests.iter().any(|(known, _)| *known == name) {
                self.record_result(name, TestStatus::Failed);
            }
        } else if let Some((name, result)) =
            line.strip_prefix("test ").and_then(|it| it.split_once(" ... "))
        {
            let name = test_name(name);
            match parse_status(result) {
                Some(status) => self.record_result(name, status),
                // With `--nocapture` what the test writes stands between its name and its result.
                None => self.pending = Some(name),
            }
        } else if let Some(status) = parse_status(line)
            && let Some(name) = self.pending.take()
        {
            self.record_result(name, status);
        }
    }

    fn record_result(&mut self, name: String, status: TestStatus) {
        if self.recorded >= MAX_REPORTED_TESTS {
            self.is_cut = true;
            return;
        }
        if let Some(block) = self.open_block() {
            block.tests.push((name, status));
            self.recorded += 1;
        }
    }
}

/// Returns the name of a test without `- should panic` and without the line of a doc test, which moves with the code above it.
fn test_name(text: &str) -> String {
    let name = text.trim().trim_end_matches(" - should panic");
    let name = name.trim_end_matches(" - compile fail").trim_end_matches(" - compile");
    let name = match name.rsplit_once(" (line ") {
        Some((before, line))
            if line.strip_suffix(')').is_some_and(|it| it.parse::<u32>().is_ok()) =>
        {
            before
        }
        _ => name,
    };
    normalize_name(name)
}

fn parse_status(text: &str) -> Option<TestStatus> {
    let word = text.split([' ', ',']).next()?;
    match word {
        "ok" => Some(TestStatus::Passed),
        "FAILED" => Some(TestStatus::Failed),
        "ignored" => Some(TestStatus::Skipped),
        "bench:" => Some(TestStatus::Passed),
        _ => None,
    }
}

/// Returns whether a line is `running 3 tests`.
fn is_block_start(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    matches!(words.as_slice(), ["running", number, "test" | "tests"] if number.parse::<u32>().is_ok())
}

/// Reads the counts of a binary: `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`.
fn parse_counts(text: &str) -> Option<TestCounts> {
    let (_, counts) = text.split_once(". ")?;
    let mut total = TestCounts::default();
    for (number, word) in read_counts(counts, ';') {
        match word {
            "passed" => total.passed = number,
            "failed" => total.failed = number,
            "ignored" => total.skipped = number,
            _ => {}
        }
    }
    Some(total)
}

/// Returns the name of an announced binary: `Running tests/issues.rs (target/debug/deps/issues-0123)`, `Doc-tests nom`.
fn parse_announcement(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(normalize_name(name));
    }
    let (_, path) = line.strip_prefix("Running ")?.strip_suffix(')')?.rsplit_once(" (")?;
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = match file.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => file,
    };
    Some(normalize_name(name))
}
