//! The changes of a task, and the findings about them.

use cynode_core::workflow::findings::{FindingSeverity, ReviewFeedback};
use cynode_wire::delivery::ChangedFiles;

use crate::{
    format::escape_invisible,
    terminal::{Colorizer, TextStyle, display_width, escape_for_terminal},
};

/// Maximum width of a file's bar.
const MAX_BAR_COLUMNS: u64 = 24;

/// Renders a diff with coloured additions and removals; hidden characters are escaped.
pub fn render_diff(text: &str, paint: Colorizer) -> Vec<String> {
    let line = |(head, line): (bool, &str)| {
        let line = escape_invisible(line);
        match line.as_bytes() {
            _ if head => paint.apply_style(TextStyle::Bold, &line),
            [b'+', ..] => paint.apply_style(TextStyle::Green, &line),
            [b'-', ..] => paint.apply_style(TextStyle::Red, &line),
            [b'@', b'@', ..] => paint.apply_style(TextStyle::Cyan, &line),
            _ => line,
        }
    };
    let only_git = |line: &str| line.starts_with("index ") || line.starts_with("diff ");
    let shown = mark_header_lines(text).filter(|(head, line)| !(*head && only_git(line)));
    shown.map(line).collect()
}

/// Returns the lines of a diff, each with whether it is in the header of a file: before its first hunk. After that, a line that
/// looks like a header is a changed line.
pub fn mark_header_lines(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut head = true;
    text.lines().map(move |line| {
        // Content lines begin with a sign of their own.
        head = line.starts_with("diff ") || head && !line.starts_with("@@");
        (head, line)
    })
}

/// Renders the changed files, with their numbers of added and removed lines, and the totals.
pub fn render_changed_files(changed: &ChangedFiles, paint: Colorizer) -> Vec<String> {
    let paths: Vec<String> = changed
        .files
        .iter()
        .map(|file| escape_for_terminal(&file.path).replace('\n', " "))
        .collect();
    let wide = paths.iter().map(|path| display_width(path)).max().unwrap_or(0);
    let most = changed
        .files
        .iter()
        .map(|file| count_or_zero(file.insertions) + count_or_zero(file.deletions))
        .max();
    let (mut came, mut went) = (0, 0);
    let mut lines = Vec::new();
    for (file, path) in changed.files.iter().zip(&paths) {
        let pad = " ".repeat(wide - display_width(path));
        let (Some(plus), Some(minus)) = (file.insertions, file.deletions) else {
            lines.push(format!("  {path}{pad}  no text"));
            continue;
        };
        (came, went) = (came + plus, went + minus);
        let scale = |count: u64| match most {
            Some(most) if most > MAX_BAR_COLUMNS => (count * MAX_BAR_COLUMNS).div_ceil(most),
            _ => count,
        };
        let signs = |sign: &str, count: u64| sign.repeat(usize::try_from(count).unwrap_or(0));
        let plus_bar = paint.apply_style(TextStyle::Green, &signs("+", scale(plus)));
        let minus_bar = paint.apply_style(TextStyle::Red, &signs("-", scale(minus)));
        lines.push(format!(
            "  {path}{pad}  {:>9}  {plus_bar}{minus_bar}",
            format!("+{plus} -{minus}")
        ));
    }
    let files = changed.files.len();
    let more = if changed.truncated { ", and more" } else { "" };
    let word = if files == 1 { "file" } else { "files" };
    lines.insert(0, format!("{files} {word}{more}, +{came} -{went} lines"));
    lines
}

fn count_or_zero(count: Option<u64>) -> u64 {
    count.unwrap_or(0)
}

/// Renders all findings, by severity, and their number per kind.
pub fn render_findings(feedback: &ReviewFeedback, paint: Colorizer) -> Vec<String> {
    let found = feedback.to_findings();
    if found.is_empty() {
        return vec![format!("findings: {}", paint.apply_style(TextStyle::Green, "none"))];
    }
    let kinds = [
        FindingSeverity::Critical,
        FindingSeverity::Major,
        FindingSeverity::Minor,
        FindingSeverity::Note,
    ];
    let counts: Vec<String> = kinds
        .into_iter()
        .filter_map(|kind| {
            let count = found.iter().filter(|finding| finding.severity == kind).count();
            let (word, style) = severity_label(kind);
            (count > 0).then(|| paint.apply_style(style, &format!("{count} {word}")))
        })
        .collect();
    let mut lines = vec![format!("findings: {}", counts.join(", "))];
    for finding in &found {
        let (word, style) = severity_label(finding.severity);
        let told = escape_for_terminal(&finding.describe_finding());
        for (at, line) in told.lines().filter(|line| !line.trim().is_empty()).enumerate() {
            let head = if at == 0 {
                paint.apply_style(style, &format!("{word:<8}"))
            } else {
                " ".repeat(8)
            };
            lines.push(format!("  {head}  {line}"));
        }
    }
    lines
}

const fn severity_label(severity: FindingSeverity) -> (&'static str, TextStyle) {
    match severity {
        FindingSeverity::Critical => ("critical", TextStyle::Red),
        FindingSeverity::Major => ("major", TextStyle::Yellow),
        FindingSeverity::Minor => ("minor", TextStyle::Dim),
        FindingSeverity::Note => ("note", TextStyle::Dim),
    }
}
