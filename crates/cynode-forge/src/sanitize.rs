//! Sanitizes text of a forge against prompt injection: removes hidden text.
//!
//! A person who reads an issue on a forge does not see HTML comments, invisible characters, attributes of tags or
//! titles of links. An agent reads all of it. The sanitizer removes what a person does not see, and also what a person
//! may not see, before the text is stored or shown to a model.

use serde::Serialize;
use unicode_general_category::{GeneralCategory, get_general_category};

/// Maximum size of a text.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Maximum number of passes over a text before every `<` is removed.
const MAX_SANITIZE_ROUNDS: usize = 16;

/// HTML elements whose content is not shown.
const HIDDEN_ELEMENTS: [&str; 16] = [
    "script", "style", "template", "noscript", "iframe", "object", "svg", "math", "head", "title",
    "audio", "video", "canvas", "noembed", "noframes", "xmp",
];

/// HTML elements without content.
const VOID_ELEMENTS: [&str; 12] =
    ["area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"];

/// HTML elements that end a line.
const LINE_BREAK_ELEMENTS: [&str; 14] = [
    "br",
    "p",
    "div",
    "li",
    "tr",
    "details",
    "summary",
    "blockquote",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "hr",
];

/// HTML elements in which a code fence has no meaning.
const RAW_TEXT_TAGS: [&str; 4] = ["<pre", "<script", "<style", "<textarea"];

/// Characters that may precede the text of a line: whitespace, list and quote markers.
const LINE_PREFIX_CHARS: [char; 19] = [
    ' ', '\t', '>', '-', '*', '+', '.', ')', '#', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9',
];

/// A text without hidden content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SanitizedText {
    /// Sanitized text.
    pub text: String,
    /// Counts of removed content.
    pub removed: RemovedContent,
}

/// Counts of content that was removed from a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RemovedContent {
    /// Invisible characters.
    pub characters: usize,
    /// HTML comments and similar markup.
    pub comments: usize,
    /// Tags, together with hidden content.
    pub tags: usize,
    /// Link titles and definitions, alternative texts of images, inline images.
    pub links: usize,
    /// Whether the end was truncated.
    pub cut: bool,
}

impl RemovedContent {
    /// Returns whether nothing was removed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Removes content that a person does not see on a forge.
pub fn sanitize_text(raw: &str) -> SanitizedText {
    let mut removed = RemovedContent::default();
    let mut end = raw.len().min(MAX_TEXT_BYTES);
    while !raw.is_char_boundary(end) {
        end -= 1;
    }
    removed.cut = end < raw.len();
    let mut text = strip_invisible_chars(&raw[..end], &mut removed);
    for round in 0.. {
        if round == MAX_SANITIZE_ROUNDS {
            // No legitimate text needs so many passes. After this, no HTML can remain.
            text.retain(|c| c != '<');
        }
        let next = sanitize_markup(&text, &mut removed);
        if next == text {
            break;
        }
        text = next;
    }
    SanitizedText { text, removed }
}

/// Sanitizes a single line, for titles and names.
pub fn sanitize_line(raw: &str) -> String {
    let cleaned = sanitize_text(raw).text;
    cleaned.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns whether a character is invisible, or changes the display of others.
pub fn is_invisible_char(c: char) -> bool {
    use GeneralCategory::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, Surrogate, Unassigned,
    };
    if matches!(c, '\n' | '\t') {
        return false;
    }
    matches!(
        c,
        '\u{034f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{fffc}' | '\u{1d159}' | '\u{e0000}'..='\u{e0fff}'
    ) || matches!(
        get_general_category(c),
        Control | Format | LineSeparator | ParagraphSeparator | PrivateUse | Surrogate | Unassigned
    )
}

/// Removes invisible characters and normalizes line ends.
fn strip_invisible_chars(raw: &str, removed: &mut RemovedContent) -> String {
    let mut text = String::with_capacity(raw.len());
    for c in raw.replace("\r\n", "\n").chars() {
        match c {
            '\r' => text.push('\n'),
            c if is_invisible_char(c) => removed.characters += 1,
            c => text.push(c),
        }
    }
    text
}

/// Sanitizes a text in one pass.
fn sanitize_markup(text: &str, removed: &mut RemovedContent) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // A fence counts only where every Markdown renderer sees one: unindented, after an empty line, outside of HTML.
    while !rest.is_empty() {
        match find_fenced_block(text, rest) {
            Some((before, code, after)) => {
                sanitize_prose(before, &mut out, removed);
                out.push_str(code);
                rest = after;
            }
            None => {
                sanitize_prose(rest, &mut out, removed);
                break;
            }
        }
    }
    collapse_blank_lines(&out)
}

/// Finds the first fenced code block. Returns the text before it, the block, and the text after it.
fn find_fenced_block<'a>(whole: &'a str, rest: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
    let mut at = 0;
    let mut after_empty = true;
    for line in rest.split_inclusive('\n') {
        let bare = line.trim_end();
        if let Some((mark, length)) = parse_fence_start(bare).filter(|_| after_empty) {
            let before = &whole[..whole.len() - rest.len() + at];
            if is_fence_ambiguous(before) {
                return None;
            }
            let mut end = at + line.len();
            for inner in rest[end..].split_inclusive('\n') {
                end += inner.len();
                if is_fence_end(inner, mark, length) {
                    return Some((&rest[..at], &rest[at..end], &rest[end..]));
                }
            }
            // The fence is not closed: the whole rest is shown as code.
            return Some((&rest[..at], &rest[at..], ""));
        }
        after_empty = bare.trim_start().is_empty();
        at += line.len();
    }
    None
}

/// Returns whether the text before a fence may make it part of another construct.
fn is_fence_ambiguous(before: &str) -> bool {
    let lower = before.to_ascii_lowercase();
    let open = |from: &str, to: &str| match (lower.rfind(from), lower.rfind(to)) {
        (Some(from), Some(to)) => to < from,
        (from, _) => from.is_some(),
    };
    RAW_TEXT_TAGS.iter().any(|raw| lower.contains(raw))
        || open("<!--", "-->")
        || open("<?", "?>")
        || open("<!", ">")
        || open("<![cdata[", "]]>")
        || lower.contains("$$")
}

fn parse_fence_start(line: &str) -> Option<(char, usize)> {
    let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let length = line.chars().take_while(|c| *c == mark).count();
    let plain = mark == '~' || !line[length..].contains('`');
    (length >= 3 && plain).then_some((mark, length))
}

fn is_fence_end(line: &str, mark: char, length: usize) -> bool {
    let line = line.trim_end();
    let bare = line.trim_start_matches(' ');
    line.len() - bare.len() <= 3
        && bare.chars().count() >= length
        && bare.chars().all(|c| c == mark)
}

/// Sanitizes text outside of fences.
fn sanitize_prose(text: &str, out: &mut String, removed: &mut RemovedContent) {
    let text = strip_html(text, removed);
    let text = strip_link_definitions(&text, removed);
    out.push_str(&sanitize_links(&text, removed));
}

/// Removes HTML comments and tags.
fn strip_html(text: &str, removed: &mut RemovedContent) -> String {
    let mut out = String::with_capacity(text.len());
    let spans = find_code_spans(text);
    let mut at = 0;
    while let Some(found) = text[at..].find('<') {
        let start = at + found;
        out.push_str(&text[at..start]);
        if let Some((_, end)) = spans.iter().find(|(from, to)| (*from..*to).contains(&start)) {
            out.push_str(&text[start..*end]);
            at = *end;
            continue;
        }
        let rest = &text[start..];
        let to = |end: &str| rest.find(end).map_or(rest.len(), |found| found + end.len());
        let length = if rest.starts_with("<!--") {
            removed.comments += 1;
            // `<!-->` and `<!--->` are complete comments.
            if rest.starts_with("<!-->") {
                5
            } else if rest.starts_with("<!--->") {
                6
            } else {
                to("-->")
            }
        } else if rest.starts_with("<![CDATA[") {
            removed.comments += 1;
            to("]]>")
        } else if rest.starts_with("<?") {
            removed.comments += 1;
            to("?>")
        } else if rest.starts_with("<!") && rest[2..].starts_with(|c: char| c.is_ascii_alphabetic())
        {
            removed.comments += 1;
            to(">")
        } else if let Some(address) = parse_autolink(rest) {
            out.push_str(address);
            address.len() + 2
        } else if let Some(tag) =
            parse_html_tag(rest).filter(|tag| tag.closed || hides_rest_if_unclosed(&text[..start]))
        {
            removed.tags += 1;
            if LINE_BREAK_ELEMENTS.contains(&tag.name.as_str()) {
                out.push('\n');
            }
            if tag.hides { hidden_element_len(rest, &tag) } else { tag.length }
        } else {
            out.push('<');
            1
        };
        at = start + length;
    }
    out.push_str(&text[at..]);
    out
}

/// Returns the URL of an autolink `<https://…>`, which is shown.
fn parse_autolink(text: &str) -> Option<&str> {
    let (inside, _) = text[1..].split_once('>')?;
    let (scheme, rest) = inside.split_once(':')?;
    let known = ["http", "https", "mailto"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let plain = |c: char| !c.is_whitespace() && !matches!(c, '<' | '"' | '\'' | '`');
    (known && !rest.is_empty() && rest.chars().all(plain)).then_some(inside)
}

/// Returns whether an unclosed tag after this text hides the rest. In the middle of a line it is only a `<`.
fn hides_rest_if_unclosed(before: &str) -> bool {
    let paragraph = before.rsplit_once("\n\n").map_or(before, |(_, last)| last);
    let line = paragraph.rsplit_once('\n').map_or(paragraph, |(_, last)| last);
    let lower = before.to_ascii_lowercase();
    line.trim_start_matches(LINE_PREFIX_CHARS).is_empty()
        || paragraph.contains('<')
        || RAW_TEXT_TAGS.iter().any(|raw| lower.contains(raw))
}

struct HtmlTag {
    name: String,
    length: usize,
    /// Whether the tag is closed by `>`.
    closed: bool,
    /// Whether its content is not shown.
    hides: bool,
}

/// Parses an opening or closing tag at the start of the text. An unclosed tag extends to the end of the text.
fn parse_html_tag(text: &str) -> Option<HtmlTag> {
    let closing = text.starts_with("</");
    let inside = &text[if closing { 2 } else { 1 }..];
    if !inside.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let named = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == ':';
    let name: String =
        inside.chars().take_while(|c| named(*c)).collect::<String>().to_ascii_lowercase();
    let mut quote = None;
    let mut length = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '>') => {
                length = Some(at + 1);
                break;
            }
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
    }
    // If a quote is not closed, the tag ends at the first `>`.
    let length = length.or_else(|| text.find('>').map(|at| at + 1));
    let closed = length.is_some();
    let length = length.unwrap_or(text.len());
    let inner = text[..length].to_ascii_lowercase();
    // Attribute names are outside of quotes.
    let mut quote = None;
    let names: String = inner
        .chars()
        .map(|c| match quote {
            None if matches!(c, '"' | '\'') => {
                quote = Some(c);
                ' '
            }
            None => c,
            Some(open) => {
                quote = quote.filter(|_| c != open);
                ' '
            }
        })
        .collect();
    let mut names = names.split(|c: char| c.is_whitespace() || matches!(c, '/' | '=' | '>'));
    let veils = names.any(|name| matches!(name, "hidden" | "style" | "aria-hidden"));
    // In HTML, `/>` does not close an element.
    let encloses = !closing && !VOID_ELEMENTS.contains(&name.as_str());
    let hides = encloses && (veils || HIDDEN_ELEMENTS.contains(&name.as_str()));
    Some(HtmlTag { name, length, closed, hides })
}

/// Returns the length of an element with hidden content; the rest of the text if it is not closed.
fn hidden_element_len(text: &str, tag: &HtmlTag) -> usize {
    let lower = text.to_ascii_lowercase();
    let (open, close) = (format!("<{}", tag.name), format!("</{}", tag.name));
    let (mut depth, mut at) = (1_usize, tag.length);
    while depth > 0 {
        let Some(found) = lower[at..].find(&close).map(|found| at + found) else {
            return text.len();
        };
        depth += lower[at..found].matches(&open).count();
        depth -= 1;
        at = lower[found..].find('>').map_or(text.len(), |end| found + end + 1);
    }
    at
}

/// Finds inline code spans: `…` with equal backtick runs on both sides.
///
/// A span counts only where every Markdown renderer agrees: on one line without `|`, `\` and `$`, with all earlier backtick runs of the
/// line paired, and with no `<` before it in its paragraph outside of such spans.
fn find_code_spans(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    if is_fence_ambiguous(text)
        && RAW_TEXT_TAGS.iter().any(|raw| text.to_ascii_lowercase().contains(raw))
    {
        return found;
    }
    let (mut at, mut sure) = (0, true);
    for line in text.split_inclusive('\n') {
        if line.trim().is_empty() {
            sure = true;
        } else if sure {
            match pair_backtick_runs(line) {
                Some(pairs) if !line.contains(['|', '\\', '$']) => {
                    for (from, to) in pairs {
                        // A construct that opens before the span may extend over it.
                        let between =
                            found.last().map_or(at, |(_, end): &(usize, usize)| (*end).max(at));
                        if text[between..at + from].contains('<') {
                            sure = false;
                            break;
                        }
                        found.push((at + from, at + to));
                    }
                    let last = found.last().map_or(at, |(_, end)| (*end).max(at));
                    sure = sure && !text[last..at + line.len()].contains('<');
                }
                _ => sure = false,
            }
        }
        at += line.len();
    }
    found
}

/// Pairs the backtick runs of a line; `None` if one has no partner.
fn pair_backtick_runs(line: &str) -> Option<Vec<(usize, usize)>> {
    let mut runs = Vec::new();
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'`' {
            let end = at + bytes[at..].iter().take_while(|b| **b == b'`').count();
            runs.push((at, end));
            at = end;
        } else {
            at += 1;
        }
    }
    let mut pairs = Vec::new();
    let mut next = 0;
    while next < runs.len() {
        let (from, to) = runs[next];
        let partner = runs[next + 1..].iter().position(|(a, b)| b - a == to - from)?;
        next += partner + 1;
        pairs.push((from, runs[next].1));
        next += 1;
    }
    Some(pairs)
}

/// Removes link and footnote definitions, which are shown nowhere or elsewhere.
fn strip_link_definitions(text: &str, removed: &mut RemovedContent) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut skipping, mut note) = (false, false);
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for (at, line) in lines.iter().enumerate() {
        let empty = line.trim().is_empty();
        let indented = line.starts_with([' ', '\t']);
        if empty {
            skipping = false;
        } else if note && !skipping {
            // Further paragraphs of a footnote are indented.
            skipping = indented;
            note = indented;
        }
        let bare = line.trim_start_matches(LINE_PREFIX_CHARS);
        if !skipping && starts_link_definition(bare, &lines[at + 1..]) {
            removed.links += 1;
            note = bare.starts_with("[^");
            // The whole paragraph is removed: the end of a title is ambiguous.
            skipping = true;
        }
        if !skipping {
            out.push_str(line);
        }
    }
    out
}

/// Returns whether a definition starts here: `[…]:`, where the label may span several lines.
fn starts_link_definition(line: &str, following: &[&str]) -> bool {
    if !line.starts_with('[') {
        return false;
    }
    let mut name = line.to_owned();
    for next in following.iter().take_while(|next| !next.trim().is_empty()).take(20) {
        if name.contains(']') {
            break;
        }
        name.push_str(next);
    }
    let mut escaped = false;
    for (at, c) in name.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => return false,
            ']' => return name[at + 1..].starts_with(':'),
            _ => {}
        }
    }
    false
}

/// Removes titles of links, alternative texts of images, and images with inline data.
fn sanitize_links(text: &str, removed: &mut RemovedContent) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(found) = text[at..].find("](") {
        let middle = at + found;
        let Some(link) = parse_link_target(&text[middle + 2..]) else {
            out.push_str(&text[at..middle + 2]);
            at = middle + 2;
            continue;
        };
        let end = middle + 2 + link.length;
        let image = find_open_bracket(&text[at..middle]).map(|open| at + open);
        let image = image.filter(|open| text[..*open].ends_with('!'));
        match image {
            Some(open) => {
                let words = &text[open + 1..middle];
                out.push_str(&text[at..open - 1]);
                if link.address.trim_start_matches('<').to_ascii_lowercase().starts_with("data:") {
                    removed.links += 1;
                } else {
                    removed.links += usize::from(!words.is_empty() || link.titled);
                    out.push_str("![](");
                    out.push_str(link.address);
                    out.push(')');
                }
            }
            None => {
                removed.links += usize::from(link.titled);
                out.push_str(&text[at..middle + 2]);
                out.push_str(link.address);
                out.push(')');
            }
        }
        at = end;
    }
    out.push_str(&text[at..]);
    out
}

/// Returns the opening bracket that matches the bracket at the end of the text.
fn find_open_bracket(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices().rev() {
        match c {
            ']' => depth += 1,
            '[' if depth == 0 => return Some(at),
            '[' => depth -= 1,
            _ => {}
        }
    }
    None
}

struct LinkTarget<'a> {
    address: &'a str,
    titled: bool,
    length: usize,
}

/// Parses a link target: a URL, an optional title, and the closing parenthesis.
fn parse_link_target(text: &str) -> Option<LinkTarget<'_>> {
    let start = text.len() - text.trim_start().len();
    let rest = &text[start..];
    let mut depth = 0_usize;
    let long = rest.char_indices().find(|(_, c)| {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return true,
            ')' => depth -= 1,
            _ => {}
        }
        c.is_whitespace()
    });
    let (long, _) = long?;
    let (address, after) = rest.split_at(long);
    let spaces = after.len() - after.trim_start().len();
    let after = &after[spaces..];
    let base = start + long + spaces;
    if after.starts_with(')') {
        return Some(LinkTarget { address, titled: start > 0 || spaces > 0, length: base + 1 });
    }
    let close = match after.chars().next()? {
        '(' => ')',
        quote @ ('"' | '\'') => quote,
        _ => return None,
    };
    let mut escaped = false;
    for (at, c) in after.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == close => {
                let end = &after[at + 1..];
                let spaces = end.len() - end.trim_start().len();
                let closed = end[spaces..].starts_with(')');
                return closed.then_some(LinkTarget {
                    address,
                    titled: true,
                    length: base + at + 1 + spaces + 1,
                });
            }
            _ => {}
        }
    }
    None
}

/// Collapses consecutive empty lines to one.
fn collapse_blank_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut empty = 0;
    for line in text.split_inclusive('\n') {
        empty = if line.trim().is_empty() { empty + 1 } else { 0 };
        if empty < 3 {
            out.push_str(line);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cleaned(raw: &str) -> String {
        sanitize_text(raw).text
    }

    #[test]
    fn what_a_person_sees_stays() {
        for seen in [
            "Fix the login.\n\n- [ ] it works\n- [x] done\n",
            "```rust\nlet a: Vec<String> = b; // <!-- shown -->\n<?php echo 1;\n```\nafter\n",
            "Use `Vec<String>` and ``a ` <b>``, 1 < 2 && 3 > 2, a <- b, x<1>",
            "[docs](https://h/a_(b)) and ![](https://h/i.png)",
            "é, 日本語, emoji 😀, tab\there",
            "~~~\n``` <i>\n~~~\n",
        ] {
            assert_eq!(
                sanitize_text(seen),
                SanitizedText { text: seen.into(), removed: RemovedContent::default() }
            );
        }
    }

    #[test]
    fn comments_go_closed_or_not() {
        assert_eq!(cleaned("a<!-- hidden -->b"), "ab");
        assert_eq!(cleaned("a<!-- hidden"), "a");
        assert_eq!(cleaned("a<!--> b <!---> c"), "a b  c");
        assert_eq!(cleaned("a<!<!-- x -->-- hidden -->b"), "ab");
        assert_eq!(cleaned("a<?php hidden ?>b<!DOCTYPE hidden>c<![CDATA[hidden]]>d"), "abcd");
        assert_eq!(cleaned("<div>\n```\n<!-- hidden -->\n```\n"), "\n\n```\n\n```\n");
        assert_eq!(
            sanitize_text("a<!-- b -->").removed,
            RemovedContent { comments: 1, ..RemovedContent::default() }
        );
    }

    #[test]
    fn a_fence_that_a_reader_of_markdown_may_not_see_protects_nothing() {
        for hidden in [
            "<pre>\n\n```\n<!-- hidden -->\n```\n",
            "text\n```\n<!-- hidden -->\n```\n",
            "- a\n\n  ```\nb <!-- hidden -->\n",
            "<!--\n\n```\nhidden\n```\n-->",
            "# a `\n<x hidden> ` b",
            "a ` b\nc ` <x hidden> ` d",
            "| ` | <x hidden> ` |",
            "<a title=\"`\"> <x hidden> `",
        ] {
            assert!(!cleaned(hidden).contains("hidden"), "{hidden:?} gave {:?}", cleaned(hidden));
        }
    }

    #[test]
    fn tags_go_with_their_attributes_and_with_what_they_hide() {
        assert_eq!(cleaned("<details><summary>More</summary>words</details>"), "\n\nMore\nwords\n");
        assert_eq!(cleaned("a <b title=\"unseen > more\">bold</b> c"), "a bold c");
        assert_eq!(cleaned("a<script>x<script>y</script></script>b"), "ab");
        assert_eq!(cleaned("a<span hidden/>x</span>b<br hidden>c"), "ab\nc");
        assert_eq!(
            cleaned("a<span hidden>x<span>y</span></span>b<p style='display:none'>z"),
            "ab\n"
        );
        assert_eq!(cleaned("a<img alt='hidden' src=x>b<unknown words>c"), "abc");
        assert_eq!(cleaned("see <https://h/x> and <mailto:a@h>"), "see https://h/x and mailto:a@h");
        assert_eq!(cleaned("a <b is\n\nless"), "a <b is\n\nless");
        assert_eq!(cleaned("a\n  <div title=\"hidden\n\nhidden"), "a\n  \n");
        assert_eq!(cleaned("<i>a</i> <b hidden\n\nhidden"), "a ");
    }

    #[test]
    fn titles_definitions_and_words_of_images_go() {
        assert_eq!(
            cleaned("[a](https://h \"hidden\") [b](u 'h') [c](u (h))"),
            "[a](https://h) [b](u) [c](u)"
        );
        assert_eq!(cleaned("a\n\n[//]: # (hidden)\nb\n\nc\n"), "a\n\n\nc\n");
        assert_eq!(cleaned("> [x]:\n> /url\n> 'hidden'\n\nb"), "\nb");
        assert_eq!(cleaned("[a\nb]: /url 'hidden'\n\nc"), "\nc");
        assert_eq!(cleaned("a\n\n[^1]: hidden\n\n    hidden too\n\nb"), "a\n\n\nb");
        assert_eq!(cleaned("![hidden](https://h/i.png)"), "![](https://h/i.png)");
        assert_eq!(cleaned("![hidden](data:image/png;base64,AAAA) b"), " b");
    }

    #[test]
    fn characters_without_a_shape_go() {
        let hidden: String = "ab"
            .chars()
            .flat_map(|c| {
                [c, '\u{200b}', '\u{202e}', '\u{2066}', '\u{feff}', '\u{ad}', '\u{7}', '\u{e0041}']
            })
            .collect();
        let got = sanitize_text(&hidden);
        assert_eq!(
            got,
            SanitizedText {
                text: "ab".into(),
                removed: RemovedContent { characters: 14, ..RemovedContent::default() }
            }
        );
        assert_eq!(sanitize_line("  A\n\ttitle\u{200d} <!-- x --> here "), "A title here");
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        let got = sanitize_text(&"é".repeat(MAX_TEXT_BYTES));
        assert_eq!((got.text.len(), got.removed.cut), (MAX_TEXT_BYTES, true));
    }

    #[test]
    fn nesting_without_end_ends() {
        let deep = format!("{}{}", "<!".repeat(5000), "--x-->".repeat(5000));
        assert!(!cleaned(&deep).contains("<!--"));
    }

    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "<!--",
            "-->",
            "<",
            ">",
            "<b>",
            "</b>",
            "<p hidden>",
            "<script>",
            "</script>",
            "<pre>",
            "<?",
            "?>",
            "<!",
            "<![CDATA[",
            "]]>",
            "`",
            "``",
            "```",
            "~~~",
            "\n",
            "\n\n",
            " ",
            "    ",
            "[",
            "]",
            "](",
            ")",
            "[a]: ",
            "[^1]: ",
            "!",
            "(",
            "\"",
            "'",
            "x",
            "word ",
            "|",
            "\\",
            "$$",
            "data:",
            "https://h",
            "- [ ] ",
            "> ",
            "\u{200b}",
            "\u{202e}",
            "\u{e0020}",
            "é",
            "\t",
            "# ",
        ]);
        prop::collection::vec(prop_oneof![9 => piece.prop_map(str::to_owned), 1 => any::<char>().prop_map(String::from)], 0..60)
            .prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn cleaning_twice_is_cleaning_once(raw in pieces()) {
            let once = sanitize_text(&raw);
            let twice = sanitize_text(&once.text);
            prop_assert_eq!(&twice.text, &once.text);
        }

        #[test]
        fn nothing_without_a_shape_survives_and_nothing_grows(raw in pieces()) {
            let got = cleaned(&raw);
            prop_assert!(!got.chars().any(is_invisible_char));
            prop_assert!(got.len() <= raw.len());
        }

        #[test]
        fn no_comment_survives_outside_of_a_fence(raw in pieces()) {
            if !raw.contains("```") && !raw.contains("~~~") && !raw.contains('`') {
                prop_assert!(!cleaned(&raw).contains("<!--"));
            }
        }
    }
}
