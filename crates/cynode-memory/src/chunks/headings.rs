//! Sections of Markdown and reStructuredText.

use super::{MAX_TITLE_CHARS, Section};

/// What stands between the headings of a path.
const SEPARATOR: &str = " > ";

/// Collects sections while headings are found.
struct Headings {
    title: String,
    /// The open headings with their levels.
    path: Vec<(usize, String)>,
    start: usize,
    sections: Vec<Section>,
}

impl Headings {
    fn new(title: &str) -> Self {
        Self { title: title.to_owned(), path: Vec::new(), start: 0, sections: Vec::new() }
    }

    /// Ends the section before a heading and begins that of the heading, at a line.
    fn begin(&mut self, level: usize, heading: &str, start: usize) {
        self.end(start);
        self.path.retain(|(open, _)| *open < level);
        self.path.push((level, heading.chars().take(MAX_TITLE_CHARS).collect()));
        self.start = start;
    }

    fn end(&mut self, end: usize) {
        if self.start < end {
            let title = self.title();
            self.sections.push(Section { title, lines: self.start..end });
        }
    }

    /// The path of the open headings, as far as a title holds it.
    fn title(&self) -> String {
        if self.path.is_empty() {
            return self.title.clone();
        }
        let path = self.path.iter().flat_map(|(_, heading)| [SEPARATOR, heading.as_str()]);
        path.skip(1).flat_map(str::chars).take(MAX_TITLE_CHARS).collect()
    }

    /// Returns the sections. A heading without a body of its own goes to the section behind it.
    fn finish(mut self, lines: &[&str]) -> Vec<Section> {
        self.end(lines.len());
        let mut sections: Vec<Section> = Vec::new();
        let mut start = None;
        for section in self.sections {
            let lines = lines.get(section.lines.clone()).unwrap_or_default();
            let body =
                lines.iter().filter(|line| line.chars().any(char::is_alphanumeric)).count() > 1;
            let first = start.take().unwrap_or(section.lines.start);
            if body {
                sections.push(Section { title: section.title, lines: first..section.lines.end });
            } else {
                start = Some(first);
            }
        }
        if let Some(first) = start {
            sections.push(Section { title: self.title, lines: first..lines.len() });
        }
        sections
    }
}

/// Sections at `#` headings and at underlined ones. Lines in code fences and in the front matter are no headings.
pub(super) fn markdown_sections(title: &str, lines: &[&str]) -> Vec<Section> {
    let mut outline = Headings::new(title);
    let mut fence: Option<&str> = None;
    let mut previous = "";
    for (at, line) in lines.iter().enumerate().skip(front_matter(lines)) {
        let code = line.trim_start();
        if let Some(open) = fence {
            if code.starts_with(open) && code.trim_end().chars().all(|letter| open.contains(letter))
            {
                fence = None;
            }
            previous = "";
            continue;
        }
        fence = ["```", "~~~"].into_iter().find(|open| code.starts_with(*open));
        if let Some((level, heading)) = hash_heading(line) {
            outline.begin(level, heading, at);
            previous = "";
            continue;
        }
        if let Some(level) = underline_level(line)
            && is_paragraph(previous)
        {
            outline.begin(level, previous.trim(), at.saturating_sub(1));
        }
        previous = line;
    }
    outline.finish(lines)
}

/// The number of lines of the front matter.
fn front_matter(lines: &[&str]) -> usize {
    if lines.first().is_none_or(|line| line.trim_end() != "---") {
        return 0;
    }
    lines.iter().skip(1).position(|line| line.trim_end() == "---").map_or(0, |at| at + 2)
}

fn hash_heading(line: &str) -> Option<(usize, &str)> {
    let heading = line.trim_start_matches(' ');
    let rest = heading.trim_start_matches('#');
    let level = heading.len() - rest.len();
    let is_heading = line.len() - heading.len() <= 3
        && (1..=6).contains(&level)
        && (rest.is_empty() || rest.starts_with([' ', '\t']));
    is_heading.then(|| (level, rest.trim().trim_end_matches('#').trim_end()))
}

fn underline_level(line: &str) -> Option<usize> {
    let line = line.trim_end();
    let only = |letter: char| line.len() >= 2 && line.chars().all(|it| it == letter);
    if only('=') {
        Some(1)
    } else if only('-') {
        Some(2)
    } else {
        None
    }
}

fn is_paragraph(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with([' ', '\t', '>', '-', '*', '+', '|', '<'])
}

/// Sections at underlined titles. A kind of underline has the level of its first use.
pub(super) fn rst_sections(title: &str, lines: &[&str]) -> Vec<Section> {
    let mut outline = Headings::new(title);
    let mut levels: Vec<(char, bool)> = Vec::new();
    for (at, pair) in lines.windows(2).enumerate() {
        let &[heading, under] = pair else { continue };
        let Some(letter) = adornment(under) else { continue };
        let is_title = !heading.trim().is_empty() && adornment(heading).is_none();
        if !is_title || under.trim_end().chars().count() < heading.trim().chars().count() {
            continue;
        }
        let over =
            at.checked_sub(1).and_then(|before| adornment(lines.get(before)?)) == Some(letter);
        if !over && heading.starts_with([' ', '\t']) {
            continue;
        }
        let known = levels.iter().position(|level| *level == (letter, over));
        let level = known.unwrap_or(levels.len());
        if known.is_none() {
            levels.push((letter, over));
        }
        outline.begin(level, heading.trim(), at - usize::from(over));
    }
    outline.finish(lines)
}

/// The character of a line that is only one repeated punctuation character.
fn adornment(line: &str) -> Option<char> {
    let line = line.trim_end();
    let first = line.chars().next().filter(char::is_ascii_punctuation)?;
    (line.len() >= 3 && line.chars().all(|letter| letter == first)).then_some(first)
}
