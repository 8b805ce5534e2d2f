//! The terminal: lines that stay, and below them a few that are drawn anew. Without a terminal only the lines that stay.

use std::{io::IsTerminal, time::Duration};

use ratatui::text::Span;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr,
};
use tokio::sync::oneshot;

use crate::{look::visible, output::put};

/// Colours and weights, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
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

impl Style {
    const fn code(self) -> &'static str {
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
pub struct Paint(pub bool);

impl Paint {
    /// A text in a style, if there are any.
    pub fn dye(self, style: Style, text: &str) -> String {
        if self.0 && !text.is_empty() {
            format!("\u{1b}[{}m{text}\u{1b}[0m", style.code())
        } else {
            text.to_owned()
        }
    }
}

/// How many columns a text takes, when it holds nothing that a terminal obeys.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// A text that others wrote, without anything that a terminal obeys or that hides: lines and words stay, tabs become
/// spaces. For what is looked at in passing, such as what programs write in colours; see [`shown`] for what is decided by.
pub fn clean(text: &str) -> String {
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
            one if one.is_control() || hides(one) => {}
            one => kept.push(one),
        }
    }
    kept
}

/// Whether a character turns the direction of others.
const fn hides(one: char) -> bool {
    matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first line of a text that others wrote, with what hides in it written out.
pub fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    shown(line.trim())
}

/// A text that others wrote and somebody decides by: what a terminal would obey, or what cannot be seen, is written out
/// where it stands, and tabs become spaces.
pub fn shown(text: &str) -> String {
    visible(&text.replace('\t', "    "))
}

/// A text cut to a number of columns; what was cut shows.
pub fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut taken = 1;
    for one in text.chars() {
        taken += width(one.encode_utf8(&mut [0; 4]));
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
pub fn wrapped(line: &str, columns: usize) -> String {
    let plain = clean(line);
    if width(&plain) <= columns {
        return line.to_owned();
    }
    let lead = |c: &char| matches!(c, ' ' | '│' | '├' | '└' | '─' | ':' | '0'..='9');
    let hang = plain.chars().take_while(lead).count();
    let hang = if hang * 2 > columns { 0 } else { hang };
    let (mut text, mut taken, mut begun) = (String::new(), 0, false);
    for word in line.split_inclusive(' ') {
        let wide = width(&clean(word));
        let needed = width(clean(word).trim_end_matches(' '));
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
pub struct Line(Vec<(Option<Style>, String)>);

impl Line {
    /// With words as they are.
    #[must_use]
    pub fn plain(mut self, text: impl AsRef<str>) -> Self {
        self.0.push((None, clean(text.as_ref()).replace('\n', " ")));
        self
    }

    /// With words in a style.
    #[must_use]
    pub fn dyed(mut self, style: Style, text: impl AsRef<str>) -> Self {
        self.0.push((Some(style), clean(text.as_ref()).replace('\n', " ")));
        self
    }

    /// With spaces up to a column, and what is behind it cut off.
    #[must_use]
    pub fn until(mut self, column: usize) -> Self {
        let taken: usize = self.0.iter().map(|(_, text)| width(text)).sum();
        if taken < column {
            self.0.push((None, " ".repeat(column - taken)));
        } else {
            self = Self(self.cut(column));
        }
        self
    }

    /// The line, no wider than that.
    pub fn fitted(self, columns: usize, paint: Paint) -> String {
        let pieces = self.cut(columns);
        let mut text = String::new();
        for (at, (style, piece)) in pieces.iter().enumerate() {
            let piece =
                if at + 1 == pieces.len() && style.is_none() { piece.trim_end() } else { piece };
            match style {
                Some(style) => text.push_str(&paint.dye(*style, piece)),
                None => text.push_str(piece),
            }
        }
        text
    }

    fn cut(self, columns: usize) -> Vec<(Option<Style>, String)> {
        let mut left = columns;
        let mut kept = Vec::new();
        let all: usize = self.0.iter().map(|(_, text)| width(text)).sum();
        for (style, text) in self.0 {
            if left == 0 {
                break;
            }
            let wide = width(&text);
            // The last piece that has a place shows that something is missing behind it.
            let missing = all > columns && wide >= left;
            let text = if missing { fit(&format!("{text}…"), left) } else { text };
            left = left.saturating_sub(wide);
            kept.push((style, text));
        }
        kept
    }
}

/// Where it is told.
#[derive(Debug)]
pub struct Screen {
    /// How it is coloured.
    pub paint: Paint,
    /// Whether there are lines below that are drawn anew.
    live: bool,
    below: Vec<String>,
    turn: usize,
    /// How the terminal was before what is typed was kept from showing among what is drawn.
    before: Option<Termios>,
}

const WHEEL: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠹"];

impl Screen {
    /// The terminal that this program has; plain, or without one, nothing is drawn anew.
    pub fn new(plain: bool, no_colour: bool) -> Self {
        let terminal = std::io::stdout().is_terminal() && !plain;
        let colour = terminal && !no_colour;
        Self { paint: Paint(colour), live: terminal, below: Vec::new(), turn: 0, before: None }
    }

    /// Whether there are lines below that are drawn anew.
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// How many columns a line below may take, and how many lines there may be.
    pub fn room(&self) -> (usize, usize) {
        let (columns, rows) = size();
        (columns.saturating_sub(4), rows.saturating_sub(2))
    }

    /// A line that stays.
    pub fn say(&mut self, line: &str) {
        let mut text = self.erased();
        text.push_str(&if self.live { wrapped(line, size().0) } else { line.to_owned() });
        text.push('\n');
        text.push_str(&self.drawn());
        put(&text);
    }

    /// A line that stays and heads what follows.
    pub fn head(&mut self, number: usize, title: &str) {
        self.say("");
        let title = self.paint.dye(Style::Bold, &format!("{number}. {title}"));
        self.say(&title);
    }

    /// What is shown below until the next; each line no wider than [`Screen::room`] says.
    pub fn below(&mut self, lines: Vec<String>) {
        if !self.live {
            return;
        }
        if lines.is_empty() {
            self.echo();
        } else {
            self.hush();
        }
        let mut text = self.erased();
        self.turn = (self.turn + 1) % WHEEL.len();
        self.below = lines;
        text.push_str(&self.drawn());
        put(&text);
    }

    /// Puts a question; the answer comes on the same line. What was typed before it could be read is no answer.
    pub fn ask(&mut self, question: &str) {
        self.echo();
        let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
        let mut text = self.erased();
        self.below.clear();
        text.push_str(&self.paint.dye(Style::Bold, question));
        text.push(' ');
        put(&text);
    }

    /// Keeps what is typed from showing: it would stand in the middle of what is drawn.
    fn hush(&mut self) {
        if self.before.is_some() {
            return;
        }
        let Ok(mut modes) = tcgetattr(std::io::stdin()) else { return };
        self.before = Some(modes.clone());
        modes.local_modes.remove(LocalModes::ECHO);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &modes);
    }

    /// Shows what is typed again.
    fn echo(&mut self) {
        if let Some(before) = self.before.take() {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
        }
    }

    /// What takes away the lines below. A terminal that has become narrower has broken them.
    fn erased(&self) -> String {
        if self.below.is_empty() {
            return String::new();
        }
        let (columns, _) = size();
        let rows: usize =
            self.below.iter().map(|line| (width(&clean(line)) + 3).div_ceil(columns).max(1)).sum();
        format!("\u{1b}[{rows}A\r\u{1b}[J")
    }

    fn drawn(&self) -> String {
        let wheel = WHEEL.get(self.turn).copied().unwrap_or_default();
        let wheel = self.paint.dye(Style::Cyan, wheel);
        let mut text = String::new();
        for (at, line) in self.below.iter().enumerate() {
            let mark = if at == 0 { wheel.as_str() } else { " " };
            text.extend([" ", mark, " ", line, "\n"]);
        }
        text
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.echo();
    }
}

/// How wide and how high the terminal is.
pub fn size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let rows = size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 4);
    (columns().unwrap_or(80), rows.unwrap_or(24))
}

/// How wide the terminal is; nothing without one, and where it does not say.
pub fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 20)
}

/// What the person types, line by line. A line is read only when one is asked for, so that an editor can have the terminal in between.
#[derive(Debug, Default)]
pub struct Typist {
    reading: Option<oneshot::Receiver<Option<String>>>,
}

impl Typist {
    /// The next line; `None` when there is nobody to type any more. Given up in between, the line is the next one's.
    pub async fn line(&mut self) -> Option<String> {
        let reading = self.reading.get_or_insert_with(read_one);
        let line = reading.await.unwrap_or(None);
        self.reading = None;
        line
    }

    /// Forgets a line that was typed while none was asked for.
    pub fn forget(&mut self) {
        let typed = self.reading.as_mut().is_some_and(|reading| reading.try_recv().is_ok());
        if typed {
            self.reading = None;
        }
    }
}

/// Reads one line in a thread of its own, since nobody can be made to stop reading.
fn read_one() -> oneshot::Receiver<Option<String>> {
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
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests;
