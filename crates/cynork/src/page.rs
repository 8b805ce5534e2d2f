//! The server's own small pages, as far as they are read here.

/// What stands between two marks.
pub(crate) fn text_between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let start = text.find(from)? + from.len();
    let rest = text.get(start..)?;
    rest.get(..rest.find(to)?)
}

/// Text of a page as it was before it was made safe.
pub(crate) fn unescape_html(text: &str) -> String {
    let marks = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    marks.iter().fold(text.to_owned(), |text, (mark, character)| text.replace(mark, character))
}

/// What a page says in its first paragraph.
pub(crate) fn first_paragraph(html: &str) -> Option<String> {
    if !html.trim_start().to_ascii_lowercase().starts_with("<!doctype html") {
        return None;
    }
    text_between(html, "<p>", "</p>").map(unescape_html)
}
