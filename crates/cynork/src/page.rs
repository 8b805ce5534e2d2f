//! Minimal parsing of the server's own HTML pages.

/// Returns the text between two marks.
pub(crate) fn text_between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let start = text.find(from)? + from.len();
    let rest = text.get(start..)?;
    rest.get(..rest.find(to)?)
}

/// Unescapes HTML text.
pub(crate) fn unescape_html(text: &str) -> String {
    let marks = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    marks.iter().fold(text.to_owned(), |text, (mark, character)| text.replace(mark, character))
}

/// Returns the text of a page's first paragraph.
pub(crate) fn first_paragraph(html: &str) -> Option<String> {
    if !html.trim_start().to_ascii_lowercase().starts_with("<!doctype html") {
        return None;
    }
    text_between(html, "<p>", "</p>").map(unescape_html)
}
