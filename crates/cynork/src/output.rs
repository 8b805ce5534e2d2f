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
const LEAST: usize = 16;

/// Widest word that stays whole: an id is narrower.
const WORD: usize = 40;

/// Columns between two.
const GAP: u16 = 2;

/// How many columns a text takes, colours aside.
fn wide(text: &str) -> usize {
    terminal::clean(text).lines().map(terminal::width).max().unwrap_or(0)
}

/// Whether a text may be broken between lines: sentences may, while ids, names, addresses and times stay whole.
fn is_long(text: &str) -> bool {
    text.contains(' ') && wide(text) > LEAST
}

/// Least columns that all of a column can be shown in, and whether that is less than it would take.
fn least(head: &str, cells: &[&str]) -> (usize, bool) {
    if !cells.iter().any(|cell| is_long(cell)) {
        return (cells.iter().map(|cell| wide(cell)).fold(wide(head), usize::max), false);
    }
    let words = cells.iter().flat_map(|cell| cell.split_whitespace()).map(wide);
    let words = words.filter(|word| *word <= WORD).fold(wide(head), usize::max);
    (words.max(LEAST), true)
}

/// A table with a line of names above it.
pub(crate) fn table<const N: usize>(
    paint: Paint,
    heads: [&str; N],
    rows: Vec<[String; N]>,
) -> String {
    if rows.is_empty() {
        return paint.dye(Style::Dim, "nothing");
    }
    let rows = rows.into_iter().map(Vec::from).collect();
    match terminal::columns() {
        Some(columns) => within(paint, &heads, rows, columns),
        None => {
            let columns = std::io::stdout().is_terminal().then(|| terminal::size().0);
            lined(paint, &heads, rows, columns)
        }
    }
}

/// A table no wider than that. Where there is not room for it, the ids of what has names are left out; and where that does
/// not help, each of its lines becomes a record, so that no id is broken.
fn within(paint: Paint, heads: &[&str], mut rows: Vec<Vec<String>>, columns: usize) -> String {
    let taken = |at: usize| {
        let cells: Vec<&str> = rows.iter().map(|row| row[at].as_str()).collect();
        least(heads[at], &cells).0 + usize::from(GAP)
    };
    let all: usize = (0..heads.len()).map(taken).sum();
    if all <= columns {
        return lined(paint, heads, rows, Some(columns));
    }
    let named = heads.iter().any(|head| matches!(*head, "name" | "handle"));
    let id = heads.iter().position(|head| *head == "id").filter(|_| named);
    if let Some(id) = id.filter(|id| all - taken(*id) <= columns) {
        let mut heads = heads.to_vec();
        heads.remove(id);
        for row in &mut rows {
            row.remove(id);
        }
        return lined(paint, &heads, rows, Some(columns));
    }
    let room = heads.iter().map(|head| wide(head)).max().unwrap_or(0) + usize::from(GAP);
    let room = columns.saturating_sub(room);
    let broken = |text: &String| {
        let lines = text.lines().map(|line| terminal::wrapped(line, room));
        lines.collect::<Vec<_>>().join("\n")
    };
    let records = rows.iter().map(|row| {
        let sides: Vec<_> = heads.iter().copied().zip(row.iter().map(broken)).collect();
        record(paint, &sides)
    });
    records.collect::<Vec<_>>().join("\n").trim_end_matches('\n').to_owned()
}

/// A table, its sentences broken where it would be wider than that.
fn lined(paint: Paint, heads: &[&str], rows: Vec<Vec<String>>, columns: Option<usize>) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
    if let Some(columns) = columns {
        let columns = u16::try_from(columns).unwrap_or(u16::MAX);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    let constraints: Vec<_> = heads
        .iter()
        .enumerate()
        .map(|(at, head)| {
            let cells: Vec<&str> = rows.iter().map(|row| row[at].as_str()).collect();
            match least(head, &cells) {
                (columns, true) => {
                    let columns = u16::try_from(columns).unwrap_or(u16::MAX);
                    ColumnConstraint::LowerBoundary(Width::Fixed(columns.saturating_add(GAP)))
                }
                (_, false) => ColumnConstraint::ContentWidth,
            }
        })
        .collect();
    table.set_header(heads.iter().map(|head| paint.dye(Style::Bold, &head.to_uppercase())));
    for row in rows {
        table.add_row(row);
    }
    for (column, constraint) in table.column_iter_mut().zip(constraints) {
        column.set_padding((0, GAP)).set_constraint(constraint);
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

    const TASK: &str = "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708";

    /// The words of each line.
    fn words(text: &str) -> Vec<Vec<&str>> {
        text.lines().map(|line| line.split_whitespace().collect()).collect()
    }

    #[test]
    fn where_there_is_no_room_for_a_table_ids_of_what_has_names_are_left_out() {
        let heads = ["id", "state", "name", "what"];
        let rows =
            || vec![[TASK, "running", "add-a-logo", "Add a logo"].map(str::to_owned).to_vec()];
        let shown = |columns| within(Paint(false), &heads, rows(), columns);
        assert_eq!(
            words(&shown(80)),
            [
                vec!["ID", "STATE", "NAME", "WHAT"],
                vec![TASK, "running", "add-a-logo", "Add", "a", "logo"]
            ]
        );
        assert_eq!(
            words(&shown(60)),
            [vec!["STATE", "NAME", "WHAT"], vec!["running", "add-a-logo", "Add", "a", "logo"]]
        );
    }

    #[test]
    fn what_has_only_an_id_is_told_line_by_line_before_the_id_is_broken() {
        let budget = "bdg_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
        let whose = format!("task {TASK}");
        let row = [whose.as_str(), "total", "0.1000 of 0.5000", "", budget];
        let rows = || vec![row.map(str::to_owned).to_vec()];
        let heads = ["whose", "per", "money", "since", "id"];
        let shown = |columns| within(Paint(false), &heads, rows(), columns);
        assert!(shown(140).lines().any(|line| line.contains(TASK) && line.contains(budget)));
        assert_eq!(
            shown(80),
            format!("whose  task {TASK}\nper    total\nmoney  0.1000 of 0.5000\nid     {budget}")
        );
    }

    #[test]
    fn a_sentence_is_broken_between_words_and_what_stands_beside_it_is_not() {
        let rows = vec![
            [TASK, "It was asked which of the two colours is meant"].map(str::to_owned).to_vec(),
        ];
        let text = within(Paint(false), &["id", "what"], rows, 60);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains(TASK), "{text}");
        let told: Vec<_> = text.split_whitespace().filter(|word| *word != TASK).collect();
        assert_eq!(told.join(" "), "ID WHAT It was asked which of the two colours is meant");
    }

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
