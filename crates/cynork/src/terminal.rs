//! The terminal: permanent lines, and below them a live area that is redrawn. Without a terminal there are only permanent
//! lines.

use std::{io::IsTerminal, time::Duration};

use ratatui::text::Span;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr,
};
use tokio::sync::oneshot;

pub use crate::untrusted_text::sanitize_text;
use crate::{output::write_stdout, untrusted_text::escape_invisible};

/// Text styles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextStyle {
    /// Emphasis.
    Bold,
    /// De-emphasis.
    Dim,
    /// Success.
    Green,
    /// Failure.
    Red,
    /// Attention.
    Yellow,
    /// Progress.
    Cyan,
}

impl TextStyle {
    const fn ansi_code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Green => "32",
            Self::Red => "31",
            Self::Yellow => "33",
            Self::Cyan => "36",
        }
    }
}

/// Applies styles, if they are enabled.
#[derive(Clone, Copy, Debug)]
pub struct Colorizer(pub bool);

impl Colorizer {
    /// Returns a text in a style, if styles are enabled.
    pub fn apply_style(self, style: TextStyle, text: &str) -> String {
        if self.0 && !text.is_empty() {
            format!("\u{1b}[{}m{text}\u{1b}[0m", style.ansi_code())
        } else {
            text.to_owned()
        }
    }
}

/// Returns the width of a text without control sequences.
pub fn display_width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns the first line of untrusted text, with hidden characters escaped.
pub fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    escape_for_terminal(line.trim())
}

/// Escapes control characters and invisible characters in untrusted text that a person decides by; tabs become spaces.
pub fn escape_for_terminal(text: &str) -> String {
    escape_invisible(&text.replace('\t', "    "))
}

/// Truncates a text to a number of columns, with a mark.
pub fn truncate_to_width(text: &str, columns: usize) -> String {
    if display_width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut taken = 1;
    for one in text.chars() {
        taken += display_width(one.encode_utf8(&mut [0; 4]));
        if taken > columns {
            break;
        }
        kept.push(one);
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// Wraps a line between words at the width of the terminal; continuation lines are indented to the first word. Colours take no
/// width.
pub fn wrap_line(line: &str, columns: usize) -> String {
    let plain = sanitize_text(line);
    if display_width(&plain) <= columns {
        return line.to_owned();
    }
    let lead = |c: &char| matches!(c, ' ' | '│' | '├' | '└' | '─' | ':' | '0'..='9');
    let hang = plain.chars().take_while(lead).count();
    let hang = if hang * 2 > columns { 0 } else { hang };
    let (mut text, mut taken, mut begun) = (String::new(), 0, false);
    for word in line.split_inclusive(' ') {
        let wide = display_width(&sanitize_text(word));
        let needed = display_width(sanitize_text(word).trim_end_matches(' '));
        if begun && taken + needed > columns {
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
            text.push_str(&" ".repeat(hang));
            taken = hang;
        }
        begun = begun || needed > 0 && taken >= hang;
        text.push_str(word);
        taken += wide;
    }
    text
}

/// One line of styled pieces.
#[derive(Clone, Debug, Default)]
pub struct StyledLine(Vec<(Option<TextStyle>, String)>);

impl StyledLine {
    /// Appends plain text.
    #[must_use]
    pub fn with_text(mut self, text: impl AsRef<str>) -> Self {
        self.0.push((None, sanitize_text(text.as_ref()).replace('\n', " ")));
        self
    }

    /// Appends styled text.
    #[must_use]
    pub fn with_styled(mut self, style: TextStyle, text: impl AsRef<str>) -> Self {
        self.0.push((Some(style), sanitize_text(text.as_ref()).replace('\n', " ")));
        self
    }

    /// Pads with spaces up to a column, or truncates there.
    #[must_use]
    pub fn pad_to_column(mut self, column: usize) -> Self {
        let taken: usize = self.0.iter().map(|(_, text)| display_width(text)).sum();
        if taken < column {
            self.0.push((None, " ".repeat(column - taken)));
        } else {
            self = Self(self.truncate_pieces(column));
        }
        self
    }

    /// Renders the line, at most this wide.
    pub fn render_fitted(self, columns: usize, paint: Colorizer) -> String {
        let pieces = self.truncate_pieces(columns);
        let mut text = String::new();
        for (at, (style, piece)) in pieces.iter().enumerate() {
            let piece =
                if at + 1 == pieces.len() && style.is_none() { piece.trim_end() } else { piece };
            match style {
                Some(style) => text.push_str(&paint.apply_style(*style, piece)),
                None => text.push_str(piece),
            }
        }
        text
    }

    fn truncate_pieces(self, columns: usize) -> Vec<(Option<TextStyle>, String)> {
        let mut left = columns;
        let mut kept = Vec::new();
        let all: usize = self.0.iter().map(|(_, text)| display_width(text)).sum();
        for (style, text) in self.0 {
            if left == 0 {
                break;
            }
            let wide = display_width(&text);
            // The last visible piece marks the truncation.
            let missing = all > columns && wide >= left;
            let text = if missing { truncate_to_width(&format!("{text}…"), left) } else { text };
            left = left.saturating_sub(wide);
            kept.push((style, text));
        }
        kept
    }
}

/// The terminal with its live area.
#[derive(Debug)]
pub struct LiveTerminal {
    /// The styles of the terminal.
    pub paint: Colorizer,
    /// Whether there is a live area.
    live: bool,
    below: Vec<String>,
    turn: usize,
    /// The terminal settings before echo was disabled.
    before: Option<Termios>,
}

const SPINNER_FRAMES: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠹"];

impl LiveTerminal {
    /// Opens the terminal of this process; in plain mode, or without a terminal, there is no live area.
    pub fn new(plain: bool, no_colour: bool) -> Self {
        let terminal = std::io::stdout().is_terminal() && !plain;
        let colour = terminal && !no_colour;
        Self { paint: Colorizer(colour), live: terminal, below: Vec::new(), turn: 0, before: None }
    }

    /// Returns whether there is a live area.
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// Returns the maximum width and height of the live area.
    pub fn available_size(&self) -> (usize, usize) {
        let (columns, rows) = terminal_size();
        (columns.saturating_sub(4), rows.saturating_sub(2))
    }

    /// Prints a permanent line.
    pub fn print_line(&mut self, line: &str) {
        let mut text = self.erase_sequence();
        text.push_str(&if self.live {
            wrap_line(line, terminal_size().0)
        } else {
            line.to_owned()
        });
        text.push('\n');
        text.push_str(&self.render_status_lines());
        write_stdout(&text);
    }

    /// Prints a permanent heading.
    pub fn print_heading(&mut self, number: usize, title: &str) {
        self.print_line("");
        let title = self.paint.apply_style(TextStyle::Bold, &format!("{number}. {title}"));
        self.print_line(&title);
    }

    /// Replaces the live area; each line is at most as wide as [`LiveTerminal::available_size`] says.
    pub fn set_status_lines(&mut self, lines: Vec<String>) {
        if !self.live {
            return;
        }
        if lines.is_empty() {
            self.restore_echo();
        } else {
            self.disable_echo();
        }
        let mut text = self.erase_sequence();
        self.turn = (self.turn + 1) % SPINNER_FRAMES.len();
        self.below = lines;
        text.push_str(&self.render_status_lines());
        write_stdout(&text);
    }

    /// Asks a question; the answer is typed on the same line. Input from before the question is discarded.
    pub fn show_prompt(&mut self, question: &str) {
        self.restore_echo();
        let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
        let mut text = self.erase_sequence();
        self.below.clear();
        text.push_str(&self.paint.apply_style(TextStyle::Bold, question));
        text.push(' ');
        write_stdout(&text);
    }

    /// Disables echo: typed text would appear in the middle of the live area.
    fn disable_echo(&mut self) {
        if self.before.is_some() {
            return;
        }
        let Ok(mut modes) = tcgetattr(std::io::stdin()) else { return };
        self.before = Some(modes.clone());
        modes.local_modes.remove(LocalModes::ECHO);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &modes);
    }

    /// Enables echo again.
    fn restore_echo(&mut self) {
        if let Some(before) = self.before.take() {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
        }
    }

    /// Returns the sequence that erases the live area. A terminal that has become narrower has wrapped its lines.
    fn erase_sequence(&self) -> String {
        if self.below.is_empty() {
            return String::new();
        }
        let (columns, _) = terminal_size();
        let rows: usize = self
            .below
            .iter()
            .map(|line| (display_width(&sanitize_text(line)) + 3).div_ceil(columns).max(1))
            .sum();
        format!("\u{1b}[{rows}A\r\u{1b}[J")
    }

    fn render_status_lines(&self) -> String {
        let wheel = SPINNER_FRAMES.get(self.turn).copied().unwrap_or_default();
        let wheel = self.paint.apply_style(TextStyle::Cyan, wheel);
        let mut text = String::new();
        for (at, line) in self.below.iter().enumerate() {
            let mark = if at == 0 { wheel.as_str() } else { " " };
            text.extend([" ", mark, " ", line, "\n"]);
        }
        text
    }
}

impl Drop for LiveTerminal {
    fn drop(&mut self) {
        self.restore_echo();
    }
}

/// Returns the width and height of the terminal.
pub fn terminal_size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let rows = size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 4);
    (terminal_columns().unwrap_or(80), rows.unwrap_or(24))
}

/// Returns the width of the terminal; `None` without one, or if it is unknown.
pub fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 20)
}

/// The lines that the person types. A line is read only on request, so that an editor can use the terminal in between.
#[derive(Debug, Default)]
pub struct LineReader {
    reading: Option<oneshot::Receiver<Option<String>>>,
}

impl LineReader {
    /// Returns the next line; `None` at the end of input. Cancellation-safe: a line that was being read is returned by the next
    /// call.
    pub async fn next_line(&mut self) -> Option<String> {
        let reading = self.reading.get_or_insert_with(spawn_line_reader);
        let line = reading.await.unwrap_or(None);
        self.reading = None;
        line
    }

    /// Discards a line that was typed without a request.
    pub fn discard_pending(&mut self) {
        let typed = self.reading.as_mut().is_some_and(|reading| reading.try_recv().is_ok());
        if typed {
            self.reading = None;
        }
    }
}

/// Reads one line in its own thread, since a blocking read cannot be cancelled.
fn spawn_line_reader() -> oneshot::Receiver<Option<String>> {
    let (tell, reading) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line).unwrap_or(0);
        // The receiver may be gone.
        let _ = tell.send((read > 0).then(|| line.trim().to_owned()));
    });
    reading
}

/// Formats minutes and seconds.
pub fn format_clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests;
