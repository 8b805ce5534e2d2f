//! Output: for people by default, for programs on request. Standard output contains only the requested result.

use std::{
    fmt::Write as _,
    io::{ErrorKind, IsTerminal, Write as _},
    sync::OnceLock,
};

use comfy_table::{ColumnConstraint, ContentArrangement, Table, TableStyle, Width};
use serde::Serialize;

use crate::{
    failure::{CliError, Result},
    format::escape_invisible,
    terminal::{self, Colorizer, TextStyle},
};

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CliOutputFormat {
    /// For people.
    Readable,
    /// One JSON value.
    Json,
    /// Only names, one per line.
    Quiet,
}

/// The output of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CliOutput {
    pub(crate) form: CliOutputFormat,
    pub(crate) paint: Colorizer,
}

/// Set once standard output cannot be written any more: to an error, unless only its reader has closed the pipe.
static STDOUT_CLOSED: OnceLock<Result<()>> = OnceLock::new();

/// Writes a line to standard output.
pub(crate) fn print_line(line: &str) {
    write_stdout(&format!("{line}\n"));
}

/// Writes text to standard output unchanged. After a failed write nothing more is written.
pub(crate) fn write_stdout(words: &str) {
    if is_stdout_closed() {
        return;
    }
    let mut out = std::io::stdout();
    if let Err(error) = out.write_all(words.as_bytes()).and_then(|()| out.flush()) {
        let _ = STDOUT_CLOSED.set(ignore_broken_pipe(&error));
    }
}

/// Returns whether standard output is closed: a command that only prints can stop.
pub(crate) fn is_stdout_closed() -> bool {
    STDOUT_CLOSED.get().is_some()
}

/// Returns an error if output was lost.
pub(crate) fn check_stdout() -> Result<()> {
    STDOUT_CLOSED.get().cloned().unwrap_or(Ok(()))
}

/// Converts a write error. A closed pipe is not an error.
pub(crate) fn ignore_broken_pipe(error: &std::io::Error) -> Result<()> {
    match error.kind() {
        ErrorKind::BrokenPipe => Ok(()),
        _ => Err(CliError::internal_error(format!("standard output cannot be written: {error}"))),
    }
}

/// Writes a line to standard error.
pub(crate) fn print_stderr_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

impl CliOutput {
    /// Creates an output of a format; in colour only on a terminal where colours are enabled.
    pub(crate) fn new(form: CliOutputFormat, colour: bool) -> Self {
        let colour = colour && form == CliOutputFormat::Readable && std::io::stdout().is_terminal();
        Self { form, paint: Colorizer(colour) }
    }

    /// Writes one result: the value for programs, its names in quiet mode, a text for people.
    pub(crate) fn print_answer<T: Serialize>(
        self,
        value: &T,
        names: impl FnOnce(&T) -> Vec<String>,
        text: impl FnOnce(&T, Colorizer) -> String,
    ) -> Result<()> {
        match self.form {
            CliOutputFormat::Json => Self::print_json(value)?,
            CliOutputFormat::Quiet => {
                for name in names(value) {
                    print_line(&escape_invisible(&name));
                }
            }
            CliOutputFormat::Readable => {
                let text = text(value, self.paint);
                if !text.is_empty() {
                    print_line(text.trim_end_matches('\n'));
                }
            }
        }
        Ok(())
    }

    /// Writes one JSON value.
    pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<()> {
        let text = serde_json::to_string_pretty(value).map_err(|error| {
            CliError::internal_error(format!("the answer cannot be written: {error}"))
        })?;
        print_line(&text);
        Ok(())
    }

    /// Writes one JSON value on one line.
    pub(crate) fn print_json_line<T: Serialize>(value: &T) -> Result<()> {
        let text = serde_json::to_string(value).map_err(|error| {
            CliError::internal_error(format!("the answer cannot be written: {error}"))
        })?;
        print_line(&text);
        Ok(())
    }

    /// Writes a confirmation for people; programs get `value`.
    pub(crate) fn print_success<T: Serialize>(self, value: &T, sentence: &str) -> Result<()> {
        match self.form {
            CliOutputFormat::Json => Self::print_json(value)?,
            CliOutputFormat::Quiet => {}
            CliOutputFormat::Readable => {
                let tick = self.paint.apply_style(TextStyle::Green, "✓");
                print_line(&format!("{tick} {}", escape_invisible(sentence)));
            }
        }
        Ok(())
    }

    /// Writes an error and its fix.
    pub(crate) fn print_error(self, failure: &CliError) {
        if self.form == CliOutputFormat::Json
            && let Ok(text) = serde_json::to_string(failure)
        {
            print_stderr_line(&text);
            return;
        }
        let colour = self.paint.0 && std::io::stderr().is_terminal();
        for line in render_error_lines(failure, Colorizer(colour)) {
            print_stderr_line(&line);
        }
    }
}

/// Renders an error for people; hidden characters in the text of a server are escaped.
fn render_error_lines(failure: &CliError, paint: Colorizer) -> Vec<String> {
    let mut lines = vec![format!(
        "{} {}",
        paint.apply_style(TextStyle::Red, "cynork:"),
        escape_invisible(&failure.detail)
    )];
    if let Some(fix) = &failure.fix {
        lines.push(format!(
            "        {} {}",
            paint.apply_style(TextStyle::Bold, "next:"),
            escape_invisible(fix)
        ));
    }
    if let Some(trace) = &failure.trace_id {
        lines.push(
            paint
                .apply_style(TextStyle::Dim, &format!("        trace {}", escape_invisible(trace))),
        );
    }
    lines
}

/// Minimum width of a sentence column in a narrow table.
const MIN_SENTENCE_COLUMNS: usize = 16;

/// Maximum width of a word that stays whole: an id is narrower.
const MAX_WORD_COLUMNS: usize = 40;

/// Columns between two table columns.
const COLUMN_GAP: u16 = 2;

/// Returns the width of a text without its colours.
fn text_columns(text: &str) -> usize {
    terminal::sanitize_text(text).lines().map(terminal::display_width).max().unwrap_or(0)
}

/// Returns whether a text may be wrapped: sentences may; ids, names, addresses and times stay whole.
fn is_wrappable(text: &str) -> bool {
    text.contains(' ') && text_columns(text) > MIN_SENTENCE_COLUMNS
}

/// Returns the minimum width of a column, and whether that is less than its natural width.
fn min_column_width(head: &str, cells: &[&str]) -> (usize, bool) {
    if !cells.iter().any(|cell| is_wrappable(cell)) {
        return (
            cells.iter().map(|cell| text_columns(cell)).fold(text_columns(head), usize::max),
            false,
        );
    }
    let words = cells.iter().flat_map(|cell| cell.split_whitespace()).map(text_columns);
    let words = words.filter(|word| *word <= MAX_WORD_COLUMNS).fold(text_columns(head), usize::max);
    (words.max(MIN_SENTENCE_COLUMNS), true)
}

/// Renders a table with a header.
pub(crate) fn render_table<const N: usize>(
    paint: Colorizer,
    heads: [&str; N],
    rows: Vec<[String; N]>,
) -> String {
    if rows.is_empty() {
        return paint.apply_style(TextStyle::Dim, "nothing");
    }
    let rows = rows.into_iter().map(Vec::from).collect();
    match terminal::terminal_columns() {
        Some(columns) => render_table_within(paint, &heads, rows, columns),
        None => {
            let columns = std::io::stdout().is_terminal().then(|| terminal::terminal_size().0);
            layout_table(paint, &heads, rows, columns)
        }
    }
}

/// Renders a table of at most this width. If it does not fit, the ids of named objects are omitted; if it still does not fit,
/// each row becomes a record, so that no id is broken.
fn render_table_within(
    paint: Colorizer,
    heads: &[&str],
    mut rows: Vec<Vec<String>>,
    columns: usize,
) -> String {
    let taken = |at: usize| {
        let cells: Vec<&str> = rows.iter().map(|row| row[at].as_str()).collect();
        min_column_width(heads[at], &cells).0 + usize::from(COLUMN_GAP)
    };
    let all: usize = (0..heads.len()).map(taken).sum();
    if all <= columns {
        return layout_table(paint, heads, rows, Some(columns));
    }
    let named = heads.iter().any(|head| matches!(*head, "name" | "handle"));
    let id = heads.iter().position(|head| *head == "id").filter(|_| named);
    if let Some(id) = id.filter(|id| all - taken(*id) <= columns) {
        let mut heads = heads.to_vec();
        heads.remove(id);
        for row in &mut rows {
            row.remove(id);
        }
        return layout_table(paint, &heads, rows, Some(columns));
    }
    let room =
        heads.iter().map(|head| text_columns(head)).max().unwrap_or(0) + usize::from(COLUMN_GAP);
    let room = columns.saturating_sub(room);
    let broken = |text: &String| {
        let lines = text.lines().map(|line| terminal::wrap_line(line, room));
        lines.collect::<Vec<_>>().join("\n")
    };
    let records = rows.iter().map(|row| {
        let sides: Vec<_> = heads.iter().copied().zip(row.iter().map(broken)).collect();
        render_record(paint, &sides)
    });
    records.collect::<Vec<_>>().join("\n").trim_end_matches('\n').to_owned()
}

/// Lays out a table and wraps its sentences if it is wider than that.
fn layout_table(
    paint: Colorizer,
    heads: &[&str],
    rows: Vec<Vec<String>>,
    columns: Option<usize>,
) -> String {
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
            match min_column_width(head, &cells) {
                (columns, true) => {
                    let columns = u16::try_from(columns).unwrap_or(u16::MAX);
                    ColumnConstraint::LowerBoundary(Width::Fixed(
                        columns.saturating_add(COLUMN_GAP),
                    ))
                }
                (_, false) => ColumnConstraint::ContentWidth,
            }
        })
        .collect();
    table.set_header(
        heads.iter().map(|head| paint.apply_style(TextStyle::Bold, &head.to_uppercase())),
    );
    for row in rows {
        table.add_row(row);
    }
    for (column, constraint) in table.column_iter_mut().zip(constraints) {
        column.set_padding((0, COLUMN_GAP)).set_constraint(constraint);
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    lines.join("\n")
}

/// Renders one object, one line per field; empty fields are omitted.
pub(crate) fn render_record(paint: Colorizer, sides: &[(&str, String)]) -> String {
    let width = sides.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in sides.iter().filter(|(_, value)| !value.is_empty()) {
        let head = paint.apply_style(TextStyle::Dim, &format!("{name:<width$}"));
        let inner = format!("\n{:width$}  ", "");
        let _ = writeln!(text, "{head}  {}", value.replace('\n', &inner));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::CliErrorKind;

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
        let shown = |columns| render_table_within(Colorizer(false), &heads, rows(), columns);
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
        let shown = |columns| render_table_within(Colorizer(false), &heads, rows(), columns);
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
        let text = render_table_within(Colorizer(false), &["id", "what"], rows, 60);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains(TASK), "{text}");
        let told: Vec<_> = text.split_whitespace().filter(|word| *word != TASK).collect();
        assert_eq!(told.join(" "), "ID WHAT It was asked which of the two colours is meant");
    }

    #[test]
    fn a_complaint_obeys_no_server() {
        let failure = CliError {
            trace_id: Some("0a\u{9b}".to_owned()),
            ..CliError::new(CliErrorKind::Invalid, "no\u{1b}[2J").with_fix("try\u{202e} it")
        };
        assert_eq!(
            render_error_lines(&failure, Colorizer(false)),
            ["cynork: no\\u{1b}[2J", "        next: try\\u{202e} it", "        trace 0a\\u{9b}"]
        );
    }
}
