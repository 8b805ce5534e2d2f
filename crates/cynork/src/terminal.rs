//! The terminal: lines that stay, and below them a few that are drawn anew. Without a terminal only the lines that stay.

use std::{io::IsTerminal, time::Duration};

use ratatui::text::Span;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr,
};
use tokio::sync::oneshot;

use crate::{format::escape_invisible, output::write_stdout};

/// Colours and weights, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextStyle {
    /// Heavy.
    Bold,
    /// Faint.
    Dim,
    /// It is good.
    Green,
    /// It is bad.
    Red,
    /// It wants attention.
    Yellow,
    /// It goes on.
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

/// Whether and how words are coloured.
#[derive(Clone, Copy, Debug)]
pub struct Colorizer(pub bool);

impl Colorizer {
    /// A text in a style, if there are any.
    pub fn apply_style(self, style: TextStyle, text: &str) -> String {
        if self.0 && !text.is_empty() {
            format!("\u{1b}[{}m{text}\u{1b}[0m", style.ansi_code())
        } else {
            text.to_owned()
        }
    }
}

/// How many columns a text takes, when it holds nothing that a terminal obeys.
pub fn display_width(text: &str) -> usize {
    Span::raw(text).width()
}

/// A text that others wrote, without anything that a terminal obeys or that hides: lines and words stay, tabs become
/// spaces. For what is looked at in passing, such as what programs write in colours; see [`shown`] for what is decided by.
pub fn sanitize_text(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(one) = rest.next() {
        match one {
            '\u{1b}' => match rest.next() {
                // A control sequence ends with a letter or a sign, a string with a bell or an escape.
                Some('[') => while rest.next().is_some_and(|it| !('@'..='~').contains(&it)) {},
                Some(']' | 'P' | '^' | '_' | 'X') => {
                    while let Some(inner) = rest.next() {
                        if inner == '\u{7}' || inner == '\u{1b}' && rest.next() == Some('\\') {
                            break;
                        }
                    }
                }
                _ => {}
            },
            '\n' => kept.push('\n'),
            '\t' => kept.push_str("    "),
            one if one.is_control() || is_bidi_control(one) => {}
            one => kept.push(one),
        }
    }
    kept
}

/// Whether a character turns the direction of others.
const fn is_bidi_control(one: char) -> bool {
    matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first line of a text that others wrote, with what hides in it written out.
pub fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    escape_for_terminal(line.trim())
}

/// A text that others wrote and somebody decides by: what a terminal would obey, or what cannot be seen, is written out
/// where it stands, and tabs become spaces.
pub fn escape_for_terminal(text: &str) -> String {
    escape_invisible(&text.replace('\t', "    "))
}

/// A text cut to a number of columns; what was cut shows.
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

/// A line broken between words where it is wider than the terminal; what follows stands below the first word. Colours take no place.
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

/// One line, made of pieces of which each has its style.
#[derive(Clone, Debug, Default)]
pub struct StyledLine(Vec<(Option<TextStyle>, String)>);

impl StyledLine {
    /// With words as they are.
    #[must_use]
    pub fn with_text(mut self, text: impl AsRef<str>) -> Self {
        self.0.push((None, sanitize_text(text.as_ref()).replace('\n', " ")));
        self
    }

    /// With words in a style.
    #[must_use]
    pub fn with_styled(mut self, style: TextStyle, text: impl AsRef<str>) -> Self {
        self.0.push((Some(style), sanitize_text(text.as_ref()).replace('\n', " ")));
        self
    }

    /// With spaces up to a column, and what is behind it cut off.
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

    /// The line, no wider than that.
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
            // The last piece that has a place shows that something is missing behind it.
            let missing = all > columns && wide >= left;
            let text = if missing { truncate_to_width(&format!("{text}…"), left) } else { text };
            left = left.saturating_sub(wide);
            kept.push((style, text));
        }
        kept
    }
}

/// Where it is told.
#[derive(Debug)]
pub struct LiveTerminal {
    /// How it is coloured.
    pub paint: Colorizer,
    /// Whether there are lines below that are drawn anew.
    live: bool,
    below: Vec<String>,
    turn: usize,
    /// How the terminal was before what is typed was kept from showing among what is drawn.
    before: Option<Termios>,
}

const SPINNER_FRAMES: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠹"];

impl LiveTerminal {
    /// The terminal that this program has; plain, or without one, nothing is drawn anew.
    pub fn new(plain: bool, no_colour: bool) -> Self {
        let terminal = std::io::stdout().is_terminal() && !plain;
        let colour = terminal && !no_colour;
        Self { paint: Colorizer(colour), live: terminal, below: Vec::new(), turn: 0, before: None }
    }

    /// Whether there are lines below that are drawn anew.
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// How many columns a line below may take, and how many lines there may be.
    pub fn available_size(&self) -> (usize, usize) {
        let (columns, rows) = terminal_size();
        (columns.saturating_sub(4), rows.saturating_sub(2))
    }

    /// A line that stays.
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

    /// A line that stays and heads what follows.
    pub fn print_heading(&mut self, number: usize, title: &str) {
        self.print_line("");
        let title = self.paint.apply_style(TextStyle::Bold, &format!("{number}. {title}"));
        self.print_line(&title);
    }

    /// What is shown below until the next; each line no wider than [`LiveTerminal::room`] says.
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

    /// Puts a question; the answer comes on the same line. What was typed before it could be read is no answer.
    pub fn show_prompt(&mut self, question: &str) {
        self.restore_echo();
        let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
        let mut text = self.erase_sequence();
        self.below.clear();
        text.push_str(&self.paint.apply_style(TextStyle::Bold, question));
        text.push(' ');
        write_stdout(&text);
    }

    /// Keeps what is typed from showing: it would stand in the middle of what is drawn.
    fn disable_echo(&mut self) {
        if self.before.is_some() {
            return;
        }
        let Ok(mut modes) = tcgetattr(std::io::stdin()) else { return };
        self.before = Some(modes.clone());
        modes.local_modes.remove(LocalModes::ECHO);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &modes);
    }

    /// Shows what is typed again.
    fn restore_echo(&mut self) {
        if let Some(before) = self.before.take() {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
        }
    }

    /// What takes away the lines below. A terminal that has become narrower has broken them.
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

/// How wide and how high the terminal is.
pub fn terminal_size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let rows = size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 4);
    (terminal_columns().unwrap_or(80), rows.unwrap_or(24))
}

/// How wide the terminal is; nothing without one, and where it does not say.
pub fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 20)
}

/// What the person types, line by line. A line is read only when one is asked for, so that an editor can have the terminal in between.
#[derive(Debug, Default)]
pub struct LineReader {
    reading: Option<oneshot::Receiver<Option<String>>>,
}

impl LineReader {
    /// The next line; `None` when there is nobody to type any more. Given up in between, the line is the next one's.
    pub async fn next_line(&mut self) -> Option<String> {
        let reading = self.reading.get_or_insert_with(spawn_line_reader);
        let line = reading.await.unwrap_or(None);
        self.reading = None;
        line
    }

    /// Forgets a line that was typed while none was asked for.
    pub fn discard_pending(&mut self) {
        let typed = self.reading.as_mut().is_some_and(|reading| reading.try_recv().is_ok());
        if typed {
            self.reading = None;
        }
    }
}

/// Reads one line in a thread of its own, since nobody can be made to stop reading.
fn spawn_line_reader() -> oneshot::Receiver<Option<String>> {
    let (tell, reading) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line).unwrap_or(0);
        // Whoever asked may be gone.
        let _ = tell.send((read > 0).then(|| line.trim().to_owned()));
    });
    reading
}

/// Minutes and seconds.
pub fn format_clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests;
