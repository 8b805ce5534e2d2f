//! What a task changed, and what was found about it.

use cynode_wire::{delivery::ChangedFiles, reports::ReviewFeedback, workflow::Severity};

use crate::{
    look::visible,
    terminal::{Paint, Style, shown, width},
};

/// Most signs of a file's bar.
const BAR: u64 = 24;

/// A difference, with what came and what went; what hides in it is written out.
pub fn diff(text: &str, paint: Paint) -> Vec<String> {
    let line = |(head, line): (bool, &str)| {
        let line = visible(line);
        match line.as_bytes() {
            _ if head => paint.dye(Style::Bold, &line),
            [b'+', ..] => paint.dye(Style::Green, &line),
            [b'-', ..] => paint.dye(Style::Red, &line),
            [b'@', b'@', ..] => paint.dye(Style::Cyan, &line),
            _ => line,
        }
    };
    let only_git = |line: &str| line.starts_with("index ") || line.starts_with("diff ");
    let shown = headed(text).filter(|(head, line)| !(*head && only_git(line)));
    shown.map(line).collect()
}

/// The lines of a difference, each with whether it is in the head of a file: before the first change in it. Behind that,
/// a line that begins like a head is one that came or went.
pub fn headed(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut head = true;
    text.lines().map(move |line| {
        // Lines of a file begin with a sign of their own.
        head = line.starts_with("diff ") || head && !line.starts_with("@@");
        (head, line)
    })
}

/// The files that are different, with how many lines came and went, and the sum of them.
pub fn files(changed: &ChangedFiles, paint: Paint) -> Vec<String> {
    let paths: Vec<String> =
        changed.files.iter().map(|file| shown(&file.path).replace('\n', " ")).collect();
    let wide = paths.iter().map(|path| width(path)).max().unwrap_or(0);
    let most = changed.files.iter().map(|file| sum(file.insertions) + sum(file.deletions)).max();
    let (mut came, mut went) = (0, 0);
    let mut lines = Vec::new();
    for (file, path) in changed.files.iter().zip(&paths) {
        let pad = " ".repeat(wide - width(path));
        let (Some(plus), Some(minus)) = (file.insertions, file.deletions) else {
            lines.push(format!("  {path}{pad}  no text"));
            continue;
        };
        (came, went) = (came + plus, went + minus);
        let scale = |count: u64| match most {
            Some(most) if most > BAR => (count * BAR).div_ceil(most),
            _ => count,
        };
        let signs = |sign: &str, count: u64| sign.repeat(usize::try_from(count).unwrap_or(0));
        let plus_bar = paint.dye(Style::Green, &signs("+", scale(plus)));
        let minus_bar = paint.dye(Style::Red, &signs("-", scale(minus)));
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

fn sum(count: Option<u64>) -> u64 {
    count.unwrap_or(0)
}

/// What everybody found, worst first, and how many of each kind.
pub fn findings(feedback: &ReviewFeedback, paint: Paint) -> Vec<String> {
    let found = feedback.findings();
    if found.is_empty() {
        return vec![format!("findings: {}", paint.dye(Style::Green, "none"))];
    }
    let kinds = [Severity::Critical, Severity::Major, Severity::Minor, Severity::Note];
    let counts: Vec<String> = kinds
        .into_iter()
        .filter_map(|kind| {
            let count = found.iter().filter(|finding| finding.severity == kind).count();
            let (word, style) = named(kind);
            (count > 0).then(|| paint.dye(style, &format!("{count} {word}")))
        })
        .collect();
    let mut lines = vec![format!("findings: {}", counts.join(", "))];
    for finding in &found {
        let (word, style) = named(finding.severity);
        let told = shown(&finding.told());
        for (at, line) in told.lines().filter(|line| !line.trim().is_empty()).enumerate() {
            let head =
                if at == 0 { paint.dye(style, &format!("{word:<8}")) } else { " ".repeat(8) };
            lines.push(format!("  {head}  {line}"));
        }
    }
    lines
}

const fn named(severity: Severity) -> (&'static str, Style) {
    match severity {
        Severity::Critical => ("critical", Style::Red),
        Severity::Major => ("major", Style::Yellow),
        Severity::Minor => ("minor", Style::Dim),
        Severity::Note => ("note", Style::Dim),
    }
}
