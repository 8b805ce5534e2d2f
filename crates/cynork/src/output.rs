//! What is written: for people by default, for programs on request. Standard output holds what was asked for and
//! nothing else.

use std::{
    fmt::Write as _,
    io::{ErrorKind, IsTerminal, Write as _},
    sync::OnceLock,
};

use comfy_table::{ColumnConstraint, ContentArrangement, Table, TableStyle, Width};
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    look::visible,
    terminal::{self, Paint, Style},
};

/// How answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people.
    Readable,
    /// One JSON value.
    Json,
    /// Names only, one in a line.
    Quiet,
}

/// Where answers go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) form: Form,
    pub(crate) paint: Paint,
}

/// Set once nothing can be written to standard output any more: to a failure, unless only its reader has gone away.
static CLOSED: OnceLock<Result<()>> = OnceLock::new();

/// Writes a line to standard output.
pub(crate) fn say(line: &str) {
    put(&format!("{line}\n"));
}

/// Writes words to standard output as they are. Behind something that could not be written comes nothing more.
pub(crate) fn put(words: &str) {
    if closed() {
        return;
    }
    let mut out = std::io::stdout();
    if let Err(error) = out.write_all(words.as_bytes()).and_then(|()| out.flush()) {
        let _ = CLOSED.set(unless_gone(&error));
    }
}

/// Whether nothing can be written to standard output any more: what only tells has nothing left to do.
pub(crate) fn closed() -> bool {
    CLOSED.get().is_some()
}

/// Whether all that was asked for was written.
pub(crate) fn written() -> Result<()> {
    CLOSED.get().cloned().unwrap_or(Ok(()))
}

/// Why standard output cannot be written. A reader that has gone away is no reason to fail.
pub(crate) fn unless_gone(error: &std::io::Error) -> Result<()> {
    match error.kind() {
        ErrorKind::BrokenPipe => Ok(()),
        _ => Err(Failure::internal(format!("standard output cannot be written: {error}"))),
    }
}

/// Writes a line to standard error.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

impl Output {
    /// Output in a form; in colour only for a person at a terminal who wants it.
    pub(crate) fn new(form: Form, colour: bool) -> Self {
        let colour = colour && form == Form::Readable && std::io::stdout().is_terminal();
        Self { form, paint: Paint(colour) }
    }

    /// Writes one answer: the value for programs, its names when only those are wanted, a text for people.
    pub(crate) fn show<T: Serialize>(
        self,
        value: &T,
        names: impl FnOnce(&T) -> Vec<String>,
        text: impl FnOnce(&T, Paint) -> String,
    ) -> Result<()> {
        match self.form {
            Form::Json => Self::json(value)?,
            Form::Quiet => names(value).iter().for_each(|name| say(&visible(name))),
            Form::Readable => {
                let text = text(value, self.paint);
                if !text.is_empty() {
                    say(text.trim_end_matches('\n'));
                }
            }
        }
        Ok(())
    }

    /// Writes one JSON value.
    pub(crate) fn json<T: Serialize>(value: &T) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::internal(format!("the answer cannot be written: {error}")))?;
        say(&text);
        Ok(())
    }

    /// Writes what was done, for people; programs are given `value`.
    pub(crate) fn done<T: Serialize>(self, value: &T, sentence: &str) -> Result<()> {
        match self.form {
            Form::Json => Self::json(value)?,
            Form::Quiet => {}
            Form::Readable => {
                let tick = self.paint.dye(Style::Green, "✓");
                say(&format!("{tick} {}", visible(sentence)));
            }
        }
        Ok(())
    }

    /// Writes why nothing came of it, and what to do next.
    pub(crate) fn complain(self, failure: &Failure) {
        if self.form == Form::Json
            && let Ok(text) = serde_json::to_string(failure)
        {
            tell(&text);
            return;
        }
        let colour = self.paint.0 && std::io::stderr().is_terminal();
        for line in complaint(failure, Paint(colour)) {
            tell(&line);
        }
    }
}

/// Why nothing came of it, for people; what hides in the words of a server is written out.
fn complaint(failure: &Failure, paint: Paint) -> Vec<String> {
    let mut lines =
        vec![format!("{} {}", paint.dye(Style::Red, "cynork:"), visible(&failure.detail))];
    if let Some(fix) = &failure.fix {
        lines.push(format!("        {} {}", paint.dye(Style::Bold, "next:"), visible(fix)));
    }
    if let Some(trace) = &failure.trace_id {
        lines.push(paint.dye(Style::Dim, &format!("        trace {}", visible(trace))));
    }
    lines
}

/// Least columns that a sentence is given where there is not room for all of it.
const LEAST: u16 = 16;

/// Whether a text may be broken between lines: sentences may, while ids, names, addresses and times stay whole.
fn is_long(text: &str) -> bool {
    text.contains(' ') && terminal::width(&terminal::clean(text)) > usize::from(LEAST)
}

/// A table with a line of names above it.
pub(crate) fn table<const N: usize>(
    paint: Paint,
    heads: [&str; N],
    rows: Vec<[String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
    if std::io::stdout().is_terminal() {
        let columns = u16::try_from(terminal::size().0).unwrap_or(u16::MAX);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    let long: [bool; N] = std::array::from_fn(|at| rows.iter().any(|row| is_long(&row[at])));
    table.set_header(heads.map(|head| paint.dye(Style::Bold, &head.to_uppercase())));
    let empty = rows.is_empty();
    for row in rows {
        table.add_row(row);
    }
    for (column, long) in table.column_iter_mut().zip(long) {
        column.set_padding((0, 2)).set_constraint(if long {
            ColumnConstraint::LowerBoundary(Width::Fixed(LEAST))
        } else {
            ColumnConstraint::ContentWidth
        });
    }
    if empty {
        return paint.dye(Style::Dim, "nothing");
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    lines.join("\n")
}

/// One thing, a line for each of its sides; what is empty is left out.
pub(crate) fn record(paint: Paint, sides: &[(&str, String)]) -> String {
    let width = sides.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in sides.iter().filter(|(_, value)| !value.is_empty()) {
        let head = paint.dye(Style::Dim, &format!("{name:<width$}"));
        let inner = format!("\n{:width$}  ", "");
        let _ = writeln!(text, "{head}  {}", value.replace('\n', &inner));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    #[test]
    fn a_complaint_obeys_no_server() {
        let failure = Failure {
            trace_id: Some("0a\u{9b}".to_owned()),
            ..Failure::new(Kind::Invalid, "no\u{1b}[2J").fix("try\u{202e} it")
        };
        assert_eq!(
            complaint(&failure, Paint(false)),
            ["cynork: no\\u{1b}[2J", "        next: try\\u{202e} it", "        trace 0a\\u{9b}"]
        );
    }
}
