//! The terminal: lines that stay, and below them a few that are drawn anew. Without a terminal only the lines that stay.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

/// Colours and weights, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Bold,
    Dim,
    Green,
    Red,
    Yellow,
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
pub(super) struct Paint(pub(super) bool);

impl Paint {
    pub(super) fn dye(self, style: Style, text: &str) -> String {
        if self.0 { format!("\u{1b}[{}m{text}\u{1b}[0m", style.code()) } else { text.to_owned() }
    }
}

/// Where it is told.
pub(super) struct Screen {
    pub(super) paint: Paint,
    /// Whether there are lines below that are drawn anew.
    live: bool,
    below: Vec<String>,
    turn: usize,
}

const WHEEL: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠹"];

impl Screen {
    pub(super) fn new(plain: bool) -> Self {
        let terminal = std::io::stdout().is_terminal() && !plain;
        let colour = terminal && !crate::config::no_colour();
        Self { paint: Paint(colour), live: terminal, below: Vec::new(), turn: 0 }
    }

    /// A line that stays.
    pub(super) fn say(&mut self, line: &str) {
        let mut text = self.erased();
        text.push_str(line);
        text.push('\n');
        text.push_str(&self.drawn());
        put(&text);
    }

    /// A line that stays and heads what follows.
    pub(super) fn head(&mut self, number: usize, title: &str) {
        self.say("");
        let title = self.paint.dye(Style::Bold, &format!("{number}. {title}"));
        self.say(&title);
    }

    /// What is shown below until the next.
    pub(super) fn below(&mut self, lines: Vec<String>) {
        if !self.live {
            return;
        }
        let mut text = self.erased();
        self.turn = (self.turn + 1) % WHEEL.len();
        self.below = lines;
        text.push_str(&self.drawn());
        put(&text);
    }

    /// Puts a question; the answer comes on the same line.
    pub(super) fn ask(&mut self, question: &str) {
        let mut text = self.erased();
        self.below.clear();
        text.push_str(&self.paint.dye(Style::Bold, question));
        text.push(' ');
        put(&text);
    }

    /// What takes away the lines below.
    fn erased(&self) -> String {
        if self.below.is_empty() {
            return String::new();
        }
        format!("\u{1b}[{}A\u{1b}[J", self.below.len())
    }

    fn drawn(&self) -> String {
        let width = columns();
        let wheel = WHEEL.get(self.turn).copied().unwrap_or_default();
        let mut text = String::new();
        for (at, line) in self.below.iter().enumerate() {
            let mark = if at == 0 { wheel } else { " " };
            let line: String = line.chars().take(width.saturating_sub(4)).collect();
            text.push_str(&self.paint.dye(Style::Dim, &format!(" {mark} {line}")));
            text.push('\n');
        }
        text
    }
}

fn put(text: &str) {
    let mut out = std::io::stdout();
    // A reader that has gone away is no reason to fail.
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// How wide the terminal is.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 20).unwrap_or(80)
}

/// Minutes and seconds.
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
