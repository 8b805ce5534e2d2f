//! Coverage of changed lines, from the reports that test frameworks write: lcov, Cobertura XML, JSON of coverage.py and of Istanbul, and
//! profiles of `go test -coverprofile`.
//!
//! Only lines that were changed are kept in memory, whatever the report says. The content decides about the format.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use cynode_core::evidence::test_results::LineCoverage;
use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};

use crate::{MAX_REPORT_FILE_BYTES, formats::junit::read_attribute};

/// Path of the workspace, which file names may begin with.
const WORKSPACE_PREFIX: &str = "/work/";

/// Lines that were changed, by file. Paths are relative to the workspace.
pub type ChangedLines = BTreeMap<String, BTreeSet<u32>>;

/// Counts the changed lines that tests ran. Returns none if the report is not understood or knows no changed line.
pub fn count_changed_lines(report: &[u8], changed: &ChangedLines) -> Option<LineCoverage> {
    if report.len() > MAX_REPORT_FILE_BYTES {
        return None;
    }
    let mut counter = LineCounter { changed, lines: BTreeMap::new() };
    let text = report.trim_ascii_start();
    if text.starts_with(b"{") {
        counter.read_json(text)?;
    } else {
        let text = String::from_utf8_lossy(text);
        if text.starts_with('<') {
            counter.read_cobertura(&text);
        } else if text.starts_with("mode:") {
            counter.read_go_profile(&text);
        } else {
            counter.read_lcov(&text);
        }
    }
    counter.into_coverage()
}

/// Changed lines of which a report says whether they were run.
struct LineCounter<'a> {
    changed: &'a ChangedLines,
    lines: BTreeMap<(&'a str, u32), bool>,
}

/// A changed file that a report names.
#[derive(Clone, Copy)]
struct ChangedFile<'a> {
    path: &'a str,
    lines: &'a BTreeSet<u32>,
}

impl<'a> LineCounter<'a> {
    /// Returns the changed file that a report means. A report may name it from the root of a source directory, or with a package before it;
    /// then it must be the only one that fits.
    fn find_file(&self, name: &str) -> Option<ChangedFile<'a>> {
        let name = name.strip_prefix(WORKSPACE_PREFIX).unwrap_or(name);
        let name = name.strip_prefix("./").unwrap_or(name);
        if name.is_empty() {
            return None;
        }
        if let Some((path, lines)) = self.changed.get_key_value(name) {
            return Some(ChangedFile { path, lines });
        }
        let is_end = |long: &str, short: &str| {
            long.strip_suffix(short).is_some_and(|before| before.ends_with('/'))
        };
        let mut fitting =
            self.changed.iter().filter(|(path, _)| is_end(path, name) || is_end(name, path));
        let (path, lines) = fitting.next()?;
        fitting.next().is_none().then_some(ChangedFile { path, lines })
    }

    /// Records lines of a file from one to another.
    fn record_lines(&mut self, file: ChangedFile<'a>, from: u32, to: u32, is_run: bool) {
        if from > to {
            return;
        }
        for line in file.lines.range(from..=to) {
            *self.lines.entry((file.path, *line)).or_default() |= is_run;
        }
    }

    fn into_coverage(self) -> Option<LineCoverage> {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let total = count(self.lines.len());
        let run = count(self.lines.values().filter(|is_run| **is_run).count());
        (total > 0).then_some(LineCoverage { run, total })
    }

    /// Reads lines such as `SF:src/a.js` and `DA:12,1`.
    fn read_lcov(&mut self, text: &str) {
        let mut file = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("SF:") {
                file = self.find_file(name.trim());
            } else if let (Some(file), Some(data)) = (file, line.strip_prefix("DA:")) {
                let mut parts = data.split(',').map(str::trim);
                let number = parts.next().and_then(|text| text.parse().ok());
                let hits = parts.next().and_then(|text| text.parse::<i64>().ok());
                if let (Some(number), Some(hits)) = (number, hits) {
                    self.record_lines(file, number, number, hits > 0);
                }
            }
        }
    }

    /// Reads lines such as `example.org/pkg/a.go:10.2,12.3 2 1`.
    fn read_go_profile(&mut self, text: &str) {
        for line in text.lines() {
            if let Some((name, from, to, is_run)) = parse_go_block(line)
                && let Some(file) = self.find_file(name)
            {
                self.record_lines(file, from, to, is_run);
            }
        }
    }

    /// Reads the elements `class` and `line`. What cannot be read ends the reading; entities of the document itself are not replaced.
    fn read_cobertura(&mut self, text: &str) {
        let mut reader = Reader::from_str(text);
        let mut file = None;
        while let Ok(event) = reader.read_event() {
            match event {
                Event::Start(element) | Event::Empty(element) => {
                    match element.local_name().as_ref() {
                        "class" => {
                            let name = read_attribute(&element, "filename").unwrap_or_default();
                            file = self.find_file(&name);
                        }
                        "line" => self.read_cobertura_line(file, &element),
                        _ => {}
                    }
                }
                Event::Eof => return,
                _ => {}
            }
        }
    }

    fn read_cobertura_line(&mut self, file: Option<ChangedFile<'a>>, element: &BytesStart<'_>) {
        let number = |name| read_attribute(element, name).and_then(|text| text.parse::<u32>().ok());
        if let (Some(file), Some(line), Some(hits)) = (file, number("number"), number("hits")) {
            self.record_lines(file, line, line, hits > 0);
        }
    }

    fn read_json(&mut self, text: &[u8]) -> Option<()> {
        let mut reader = serde_json::Deserializer::from_slice(text);
        FilesSeed { counter: self, is_top: true }.deserialize(&mut reader).ok()
    }
}

/// Reads `NAME:LINE.COLUMN,LINE.COLUMN STATEMENTS COUNT`.
fn parse_go_block(line: &str) -> Option<(&str, u32, u32, bool)> {
    let (name, rest) = line.rsplit_once(':')?;
    let mut words = rest.split_whitespace();
    let (from, to) = words.next()?.split_once(',')?;
    let count: u64 = words.nth(1)?.parse().ok()?;
    let line_of = |place: &str| place.split('.').next()?.parse().ok();
    Some((name, line_of(from)?, line_of(to)?, count > 0))
}

/// Reads a map from files to what was run of them: the whole document of Istanbul, or the part `files` of coverage.py.
struct FilesSeed<'a, 'b> {
    counter: &'b mut LineCounter<'a>,
    is_top: bool,
}

/// Lines of a file, in the form of coverage.py or of Istanbul.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FileLines {
    executed_lines: Vec<u32>,
    missing_lines: Vec<u32>,
    #[serde(rename = "statementMap")]
    statements: BTreeMap<String, Statement>,
    #[serde(rename = "s")]
    counts: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Statement {
    start: StatementPlace,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StatementPlace {
    line: Option<u32>,
}

impl<'de> DeserializeSeed<'de> for FilesSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FilesSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a coverage report")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if self.is_top && name == "files" {
                map.next_value_seed(FilesSeed { counter: &mut *self.counter, is_top: false })?;
            } else if let Some(file) = self.counter.find_file(&name) {
                record_file(self.counter, file, &map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

fn record_file<'a>(counter: &mut LineCounter<'a>, file: ChangedFile<'a>, found: &FileLines) {
    for (lines, is_run) in [(&found.executed_lines, true), (&found.missing_lines, false)] {
        for line in lines {
            counter.record_lines(file, *line, *line, is_run);
        }
    }
    for (id, statement) in &found.statements {
        if let (Some(line), Some(count)) = (statement.start.line, found.counts.get(id)) {
            counter.record_lines(file, line, line, *count > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed() -> ChangedLines {
        let lines = |numbers: &[u32]| numbers.iter().copied().collect();
        [("src/pkg/a.py", lines(&[1, 2, 3, 9])), ("src/other/b.py", lines(&[5]))]
            .map(|(path, lines): (&str, BTreeSet<u32>)| (path.to_owned(), lines))
            .into()
    }

    fn count(report: &str) -> Option<(u32, u32)> {
        let coverage = count_changed_lines(report.as_bytes(), &changed());
        coverage.map(|LineCoverage { run, total }| (run, total))
    }

    #[test]
    fn each_format_says_which_changed_lines_were_run() {
        let lcov = "TN:\nSF:/work/src/pkg/a.py\nDA:1,1\nDA:2,0,abc\nDA:4,1\nDA:1,0\nend_of_record\nSF:src/other/b.py\nDA:5,3\n";
        let cobertura = "<?xml version=\"1.0\"?><!DOCTYPE coverage SYSTEM \"x\"><coverage><packages><package><classes>\
            <class filename=\"pkg/a.py\"><lines><line number=\"1\" hits=\"1\"/><line number=\"2\" hits=\"0\"/></lines></class>\
            <class filename=\"none.py\"><lines><line number=\"3\" hits=\"1\"/></lines></class></classes></package></packages></coverage>";
        let python = r#"{"meta":{"version":"7"},"files":{"src/pkg/a.py":{"executed_lines":[1,3,4],"missing_lines":[9],"summary":{}},"x.py":{"executed_lines":[1]}},"totals":{}}"#;
        let istanbul = r#"{"/work/src/pkg/a.py":{"path":"x","statementMap":{"0":{"start":{"line":1,"column":0},"end":{"line":1}},"1":{"start":{"line":2}},"2":{"start":{"line":null}}},"s":{"0":4,"1":0,"2":1},"f":{}}}"#;
        let go = "mode: set\nexample.org/mod/src/pkg/a.py:1.2,3.4 2 1\nexample.org/mod/src/pkg/a.py:8.1,4294967295.9 1 0\n";
        let found = [lcov, cobertura, python, istanbul, go].map(count);
        assert_eq!(found, [Some((2, 3)), Some((1, 2)), Some((2, 3)), Some((1, 2)), Some((3, 4))]);
    }

    #[test]
    fn what_is_no_report_or_of_other_files_counts_nothing() {
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        let texts = [
            "",
            "{}",
            "{",
            "[]",
            "<coverage>",
            "<class filename=\"&x;\"><line number=\"1\" hits=\"1\"/>",
            "mode: set\nsrc/pkg/a.py:3.1,1.1 1 1\nsrc/pkg/a.py:x,y 1 1\n",
            "SF:\nDA:1,1\n",
            "SF:src/pkg/a.py\nDA:99999999999,1\nDA:1\n",
            "DA:1,1\n",
            deep.as_str(),
        ];
        assert_eq!(texts.map(count), [None; 11]);
        let twice = [("a/x.py", 1), ("b/x.py", 1)];
        let twice = twice.map(|(path, line)| (path.to_owned(), BTreeSet::from([line]))).into();
        assert_eq!(count_changed_lines(b"SF:x.py\nDA:1,1\n", &twice), None);
    }
}
