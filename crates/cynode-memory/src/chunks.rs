//! Chunks: the records that a document or a source file becomes.
//!
//! Markdown and reStructuredText are cut at their headings, and the title of a chunk is the path of its headings: `Guide > Install`. Rust, Python,
//! JavaScript, TypeScript and Go are cut at functions, types and implementations, and the title is `path::name`. Other files are cut between
//! paragraphs. Comments stay with the definition that they precede.
//!
//! A chunk has about [`TARGET_CHARS`] characters and at most [`MAX_CHARS`]. Every line with a letter or a digit is in exactly one chunk, except that
//! a line longer than a chunk is in several.

mod code;
mod headings;

use std::ops::Range;

/// About how many characters a chunk has.
pub const TARGET_CHARS: usize = 1_200;

/// Maximum number of characters of a chunk.
pub const MAX_CHARS: usize = 4_000;

/// Maximum number of characters of a definition that stays whole.
const MAX_DEFINITION_CHARS: usize = 2_000;

/// Maximum number of characters of a title.
pub const MAX_TITLE_CHARS: usize = 200;

/// Endings of files that hold source or configuration, without a grammar here.
const OTHER_CODE: [&str; 32] = [
    "bash", "bat", "c", "cc", "cpp", "cs", "css", "cxx", "dart", "ex", "exs", "h", "hpp", "java",
    "json", "kt", "lua", "m", "php", "pl", "proto", "ps1", "rb", "scala", "scss", "sh", "sql",
    "swift", "toml", "yaml", "yml", "zig",
];

/// What a chunk was cut from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// Text for people.
    Document,
    /// Source or configuration.
    Code,
}

/// One part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The path of headings, or `path::name`, or the path.
    pub title: String,
    /// The lines of the file.
    pub text: String,
    /// The first line, from 1.
    pub start_line: u32,
    /// The last line.
    pub end_line: u32,
    /// What it was cut from.
    pub kind: ChunkKind,
}

/// Cuts a file by what its path says that it is.
pub fn chunk_file(path: &str, text: &str) -> Vec<Chunk> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name
        .rsplit_once('.')
        .map(|(_, extension)| extension.to_ascii_lowercase())
        .unwrap_or_default();
    let lines = split_lines(text);
    let (sections, kind) = match extension.as_str() {
        "md" | "markdown" | "mdx" => {
            (headings::markdown_sections(path, &lines), ChunkKind::Document)
        }
        "rst" => (headings::rst_sections(path, &lines), ChunkKind::Document),
        other => match code::sections(path, other, text, &lines) {
            Some(sections) => (sections, ChunkKind::Code),
            None if OTHER_CODE.contains(&other) => {
                (vec![Section::whole(path, &lines)], ChunkKind::Code)
            }
            None => (vec![Section::whole(path, &lines)], ChunkKind::Document),
        },
    };
    cut(&lines, &sections, kind)
}

/// Cuts a text with headings in Markdown, such as a page or a report. Chunks before the first heading have the title.
pub fn chunk_text(title: &str, text: &str) -> Vec<Chunk> {
    let lines = split_lines(text);
    cut(&lines, &headings::markdown_sections(title, &lines), ChunkKind::Document)
}

/// Lines that belong together, and their title.
#[derive(Debug)]
struct Section {
    title: String,
    lines: Range<usize>,
}

impl Section {
    fn whole(title: &str, lines: &[&str]) -> Self {
        Self { title: title.to_owned(), lines: 0..lines.len() }
    }
}

fn split_lines(text: &str) -> Vec<&str> {
    text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect()
}

fn chars(lines: &[&str]) -> usize {
    lines.iter().map(|line| line.chars().count() + 1).sum()
}

fn has_words(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}

fn cut(lines: &[&str], sections: &[Section], kind: ChunkKind) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for section in sections {
        let title: String = section.title.chars().take(MAX_TITLE_CHARS).collect();
        let limit = if kind == ChunkKind::Code { MAX_DEFINITION_CHARS } else { TARGET_CHARS };
        for piece in pieces(lines, section.lines.clone(), limit) {
            let text = lines.get(piece.clone()).unwrap_or_default().join("\n");
            push_chunks(&mut chunks, &title, &text, &piece, kind);
        }
    }
    chunks
}

/// Adds the chunk of some lines, or several when one line is too long for one.
fn push_chunks(
    chunks: &mut Vec<Chunk>,
    title: &str,
    text: &str,
    lines: &Range<usize>,
    kind: ChunkKind,
) {
    let number = |line: usize| u32::try_from(line).unwrap_or(u32::MAX);
    let (start_line, end_line) = (number(lines.start + 1), number(lines.end));
    let mut rest = text;
    while !rest.is_empty() {
        let (part, remaining) = rest.split_at(part_end(rest));
        if has_words(part) {
            chunks.push(Chunk {
                title: title.to_owned(),
                text: part.to_owned(),
                start_line,
                end_line,
                kind,
            });
        }
        rest = remaining;
    }
}

/// Where the first part of a text ends: all of it, or behind the last space within the target.
fn part_end(text: &str) -> usize {
    if text.chars().nth(MAX_CHARS).is_none() {
        return text.len();
    }
    let end = text.char_indices().nth(TARGET_CHARS).map_or(text.len(), |(at, _)| at);
    let head = text.get(..end).unwrap_or_default();
    head.rfind(char::is_whitespace)
        .and_then(|at| head.get(at..)?.chars().next().map(|space| at + space.len_utf8()))
        .unwrap_or(end)
}

/// Cuts lines into ranges of about the target: at an empty line where there is one in the second half, else between two lines. Lines that have at most
/// `limit` characters together stay together.
fn pieces(lines: &[&str], range: Range<usize>, limit: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let range = trim(lines, range);
    if chars(lines.get(range.clone()).unwrap_or_default()) <= limit {
        found.push(range);
        return found;
    }
    let (mut start, mut size, mut blank) = (range.start, 0, None);
    for at in range.clone() {
        let line = lines.get(at).copied().unwrap_or_default();
        let length = line.chars().count() + 1;
        if size + length > TARGET_CHARS && at > start {
            let end = blank.filter(|_| length <= TARGET_CHARS).unwrap_or(at);
            found.push(trim(lines, start..end));
            start = end;
            size = chars(lines.get(start..at).unwrap_or_default());
            blank = None;
        }
        size += length;
        if line.trim().is_empty() && size > TARGET_CHARS / 2 {
            blank = Some(at + 1);
        }
    }
    found.push(trim(lines, start..range.end));
    found.retain(|piece| !piece.is_empty());
    found
}

/// Leaves out empty lines at both ends.
fn trim(lines: &[&str], range: Range<usize>) -> Range<usize> {
    let is_empty = |at: &usize| lines.get(*at).is_none_or(|line| line.trim().is_empty());
    let start = range.clone().find(|at| !is_empty(at)).unwrap_or(range.end);
    let end = range.clone().rev().find(|at| !is_empty(at)).map_or(start, |last| last + 1);
    start..end
}
