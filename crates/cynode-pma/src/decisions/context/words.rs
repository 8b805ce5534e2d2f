//! Parses a project's instructions for agents (`CLAUDE.md`, `AGENTS.md`): layout, conventions, build commands. No model
//! is asked.

use std::collections::{BTreeMap, BTreeSet};

use cynode_core::workflow::handoffs::ProjectContext;
use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use crate::decisions::{fence, unit::is_repository_path};

/// Maximum length of the file that is read.
const MAX_GUIDE_CHARS: usize = 20_000;
/// Maximum length of the architecture.
const MAX_ARCHITECTURE_CHARS: usize = 2_000;
/// Maximum number of entries of each kind.
const MAX_ENTRIES: usize = 30;
/// Maximum length of an entry.
const MAX_ENTRY_CHARS: usize = 300;

/// A block of the file, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MarkdownBlock {
    Heading(HeadingLevel, String),
    Paragraph(String),
    Item(String),
    Row(Vec<String>),
    Code { language: String, text: String },
}

/// Topic of a heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HeadingTopic {
    Architecture,
    Paths,
    Patterns,
    Commands,
}

type HeadingTopics = BTreeSet<HeadingTopic>;

/// Parses a project's instructions for agents.
pub fn parse_agent_guide(text: &str) -> ProjectContext {
    let text: String = text.chars().take(MAX_GUIDE_CHARS).collect();
    let blocks = parse_blocks(&text);
    let mut found = GuideContents::default();
    let mut above: Vec<(HeadingLevel, HeadingTopics)> = Vec::new();
    for block in &blocks {
        if let MarkdownBlock::Heading(level, title) = block {
            above.retain(|(higher, _)| higher < level);
            let mut about = topics_of_heading(title);
            if about.is_empty() {
                // A heading without a topic inherits that of its parent.
                about = above.last().map(|(_, topics)| topics.clone()).unwrap_or_default();
            }
            above.push((*level, about));
            continue;
        }
        let none = HeadingTopics::new();
        found.add_block(block, above.last().map_or(&none, |(_, topics)| topics));
    }
    found.into_context(text)
}

#[derive(Default)]
struct GuideContents {
    first: Option<String>,
    architecture: Vec<String>,
    key_paths: BTreeMap<String, String>,
    patterns: BTreeMap<String, String>,
    build_commands: Vec<String>,
    other_commands: Vec<String>,
}

impl GuideContents {
    fn add_block(&mut self, block: &MarkdownBlock, topics: &HeadingTopics) {
        match block {
            MarkdownBlock::Heading(..) => {}
            MarkdownBlock::Paragraph(text) => {
                self.first.get_or_insert_with(|| text.clone());
                self.add_text(text, topics);
            }
            MarkdownBlock::Item(text) => {
                let place = (topics.contains(&HeadingTopic::Architecture)
                    || topics.contains(&HeadingTopic::Paths))
                .then(|| parse_path_entry(text))
                .flatten();
                match place {
                    Some((path, what)) => insert_entry(&mut self.key_paths, &path, &what),
                    None => self.add_text(text, topics),
                }
            }
            MarkdownBlock::Row(cells) => self.add_row(cells, topics),
            MarkdownBlock::Code { language, text } => {
                let shell = matches!(
                    language.as_str(),
                    "" | "bash" | "sh" | "shell" | "console" | "zsh" | "powershell"
                );
                if shell && topics.contains(&HeadingTopic::Commands) {
                    self.build_commands.extend(parse_commands(text));
                } else if shell && !language.is_empty() {
                    self.other_commands.extend(parse_commands(text));
                } else if topics.contains(&HeadingTopic::Architecture) && language.is_empty() {
                    self.architecture.push(text.trim_end().to_owned());
                }
            }
        }
    }

    fn add_text(&mut self, text: &str, topics: &HeadingTopics) {
        if topics.contains(&HeadingTopic::Commands) {
            self.build_commands.extend(code_spans(text).filter(|span| is_command(span)));
        }
        if topics.contains(&HeadingTopic::Patterns) {
            let (name, how) = split_rule_name(text);
            insert_entry(&mut self.patterns, &name, &how);
        } else if topics.contains(&HeadingTopic::Architecture) {
            self.architecture.push(text.to_owned());
        }
    }

    fn add_row(&mut self, cells: &[String], topics: &HeadingTopics) {
        let [first, rest @ ..] = cells else { return };
        let rest = rest.iter().filter(|cell| !cell.is_empty()).cloned().collect::<Vec<_>>();
        let bare = first.trim_matches('`').to_owned();
        if topics.contains(&HeadingTopic::Commands) {
            self.build_commands.extend(
                cells.iter().flat_map(|cell| code_spans(cell)).filter(|span| is_command(span)),
            );
        } else if looks_like_path(&bare) {
            insert_entry(&mut self.key_paths, &bare, &rest.join("; "));
        } else if let Some((path, what)) = rest.first().and_then(|cell| parse_path_entry(cell))
            && (topics.contains(&HeadingTopic::Paths)
                || topics.contains(&HeadingTopic::Architecture))
        {
            // A table may name the thing in its first column and the path in its second.
            insert_entry(&mut self.key_paths, &path, if what.is_empty() { &bare } else { &what });
        } else if topics.contains(&HeadingTopic::Patterns) {
            insert_entry(&mut self.patterns, &bare, &rest.join("; "));
        }
    }

    fn into_context(self, text: String) -> ProjectContext {
        let mut architecture = self.architecture.join("\n");
        if architecture.trim().is_empty() {
            architecture = self.first.unwrap_or_default();
        }
        let mut build_commands =
            if self.build_commands.is_empty() { self.other_commands } else { self.build_commands };
        let mut seen = BTreeSet::new();
        build_commands.retain(|command| seen.insert(command.clone()));
        build_commands.truncate(MAX_ENTRIES);
        ProjectContext {
            claude_md: Some(text),
            architecture: fence::truncate_middle(architecture.trim(), MAX_ARCHITECTURE_CHARS),
            key_paths: self.key_paths,
            patterns: self.patterns,
            build_commands,
        }
    }
}

fn insert_entry(map: &mut BTreeMap<String, String>, name: &str, text: &str) {
    if map.len() < MAX_ENTRIES && !name.is_empty() {
        map.entry(fence::sanitize_line(name, MAX_ENTRY_CHARS))
            .or_insert_with(|| fence::sanitize_line(text, MAX_ENTRY_CHARS));
    }
}

/// Returns the topics of a heading, by its words.
fn topics_of_heading(title: &str) -> HeadingTopics {
    use HeadingTopic::{Architecture, Commands, Paths, Patterns};
    let words = title.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    words
        .flat_map(|word| -> &[HeadingTopic] {
            match word.as_str() {
                "architecture" | "overview" | "design" | "about" => &[Architecture],
                "structure" | "layout" => &[Architecture, Paths],
                "path" | "paths" | "directories" | "directory" | "folders" | "files" | "map"
                | "modules" | "crates" | "packages" | "where" | "locations" => &[Paths],
                "pattern" | "patterns" | "convention" | "conventions" | "style" | "guideline"
                | "guidelines" | "rules" | "practices" | "standards" => &[Patterns],
                "build" | "building" | "test" | "tests" | "testing" | "run" | "running"
                | "command" | "commands" | "develop" | "development" | "setup" | "install"
                | "lint" | "linting" | "check" | "checks" => &[Commands],
                _ => &[],
            }
        })
        .copied()
        .collect()
}

/// Returns the code spans of a text.
fn code_spans(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(|span| span.trim().to_owned())
}

fn is_command(span: &str) -> bool {
    let first = span.split_whitespace().next().unwrap_or_default();
    let known = [
        "cargo",
        "npm",
        "npx",
        "pnpm",
        "yarn",
        "bun",
        "make",
        "just",
        "go",
        "dotnet",
        "mvn",
        "gradle",
        "./gradlew",
        "python",
        "python3",
        "pytest",
        "tox",
        "uv",
        "poetry",
        "bundle",
        "rake",
        "mix",
        "composer",
        "cmake",
        "ctest",
        "bazel",
        "swift",
        "zig",
        "deno",
        "docker",
        "ruff",
        "eslint",
    ];
    known.contains(&first)
}

fn looks_like_path(text: &str) -> bool {
    let dotted = text.rsplit_once('.').is_some_and(|(stem, ending)| {
        !stem.is_empty()
            && (1..=6).contains(&ending.len())
            && ending.chars().all(|c| c.is_ascii_alphanumeric())
    });
    !text.contains(char::is_whitespace)
        && !text.contains("://")
        && !text.contains("::")
        && is_repository_path(text)
        && (text.contains('/') || dotted)
}

/// Parses a path at the start of a text, or the only one in it, and its description.
fn parse_path_entry(text: &str) -> Option<(String, String)> {
    let path = code_spans(text).find(|span| looks_like_path(span));
    if let Some(path) = path {
        let what = text.replacen(&format!("`{path}`"), "", 1);
        return Some((path, trim_separators(&what)));
    }
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let first = first.trim_end_matches([':', ',']);
    (first.contains('/') && looks_like_path(first))
        .then(|| (first.to_owned(), trim_separators(rest)))
}

/// Strips separating dashes and colons.
fn trim_separators(text: &str) -> String {
    let edge = |c: char| c.is_whitespace() || matches!(c, ':' | '-' | '–' | '—' | '→' | '=' | ',');
    text.trim_matches(edge).trim_end_matches('.').to_owned()
}

/// Splits a rule into its name and text: the words before a colon or dash, or else its first words.
fn split_rule_name(text: &str) -> (String, String) {
    for separator in [": ", " – ", " — ", " - "] {
        if let Some((name, how)) = text.split_once(separator)
            && name.chars().count() <= 40
        {
            return (name.trim_matches('`').to_owned(), how.to_owned());
        }
    }
    let name: Vec<_> = text.split_whitespace().take(4).collect();
    (name.join(" "), text.to_owned())
}

/// Parses the commands of a script, one per line.
fn parse_commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("$ ").or_else(|| line.strip_prefix("> ")).unwrap_or(line);
        line.split_once(" #").map_or(line, |(command, _)| command).trim()
    });
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| fence::sanitize_line(line, MAX_ENTRY_CHARS))
        .take(MAX_ENTRIES)
        .collect()
}

/// Parses the file into blocks.
fn parse_blocks(text: &str) -> Vec<MarkdownBlock> {
    let mut blocks = Vec::new();
    let mut reader = MarkdownReader::default();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        reader.handle_event(event, &mut blocks);
    }
    blocks
}

#[derive(Default)]
struct MarkdownReader {
    text: String,
    language: Option<String>,
    cells: Vec<String>,
    depth: usize,
}

impl MarkdownReader {
    fn handle_event(&mut self, event: Event<'_>, blocks: &mut Vec<MarkdownBlock>) {
        match event {
            Event::Text(text) => self.text.push_str(&text),
            Event::Code(code) => {
                self.text.push('`');
                self.text.push_str(&code);
                self.text.push('`');
            }
            Event::SoftBreak | Event::HardBreak => self.text.push(' '),
            Event::Start(tag) => self.start_tag(&tag, blocks),
            Event::End(tag) => self.end_tag(tag, blocks),
            Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::Html(_)
            | Event::InlineHtml(_)
            | Event::FootnoteReference(_)
            | Event::Rule
            | Event::TaskListMarker(_) => {}
        }
    }

    fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text).trim().to_owned()
    }

    /// Ends the current list item, if there is one.
    fn finish_item(&mut self, blocks: &mut Vec<MarkdownBlock>) {
        let text = self.take_text();
        if self.depth > 0 && !text.is_empty() {
            blocks.push(MarkdownBlock::Item(text));
        }
    }

    fn start_tag(&mut self, tag: &Tag<'_>, blocks: &mut Vec<MarkdownBlock>) {
        match tag {
            Tag::List(_) => {
                self.finish_item(blocks);
                self.depth += 1;
            }
            Tag::CodeBlock(kind) => {
                self.finish_item(blocks);
                self.language = Some(match kind {
                    CodeBlockKind::Indented => String::new(),
                    CodeBlockKind::Fenced(info) => {
                        info.split_whitespace().next().unwrap_or_default().to_lowercase()
                    }
                });
            }
            Tag::Paragraph if self.depth == 0 => self.text.clear(),
            Tag::Heading { .. } | Tag::TableCell => self.text.clear(),
            Tag::TableRow | Tag::TableHead => self.cells.clear(),
            _ => {}
        }
    }

    fn end_tag(&mut self, tag: TagEnd, blocks: &mut Vec<MarkdownBlock>) {
        match tag {
            TagEnd::Heading(level) => {
                let title = self.take_text();
                blocks.push(MarkdownBlock::Heading(level, title));
            }
            TagEnd::Paragraph if self.depth == 0 => {
                let text = self.take_text();
                if !text.is_empty() {
                    blocks.push(MarkdownBlock::Paragraph(text));
                }
            }
            TagEnd::Paragraph => self.text.push(' '),
            TagEnd::Item => self.finish_item(blocks),
            TagEnd::List(_) => self.depth = self.depth.saturating_sub(1),
            TagEnd::CodeBlock => {
                let language = self.language.take().unwrap_or_default();
                let text = std::mem::take(&mut self.text);
                blocks.push(MarkdownBlock::Code { language, text });
            }
            TagEnd::TableCell => {
                let cell = self.take_text();
                self.cells.push(cell);
            }
            TagEnd::TableRow => blocks.push(MarkdownBlock::Row(std::mem::take(&mut self.cells))),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
