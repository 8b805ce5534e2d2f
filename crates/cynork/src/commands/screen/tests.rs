//! The screen in situations: what it shows at two sizes, what it makes of keys, clicks, events and answers.

mod acting;
mod behaviour;
mod situations;
mod world;

use ratatui::{
    Terminal,
    backend::TestBackend,
    buffer::Buffer,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind},
};
use time::{Duration, OffsetDateTime, macros::datetime};

use super::{
    known::Answer,
    message::{Message, Want},
    shelf::Topic,
    state::{Size, State},
    update::{self, update},
    view::view,
};
use crate::failure::Failure;

/// The time at which everything is looked at.
const NOW: OffsetDateTime = datetime!(2026-11-01 12:00 UTC);

/// A screen that is told things and drawn into memory.
struct Stage {
    state: State,
    wants: Vec<Want>,
}

impl Stage {
    /// A screen of somebody who is logged in.
    fn new(width: u16, height: u16) -> Self {
        let mut state =
            State::new("http://127.0.0.1:12080", "seed".into(), NOW, Size { width, height });
        let wants = update::open(&mut state, true);
        let mut stage = Self { state, wants };
        stage.tell(Message::Listening);
        stage.answer(Topic::Me, world::me());
        stage.answer(Topic::Projects, world::projects());
        stage
    }

    /// Tells it something; what is wanted is kept until it is taken.
    fn tell(&mut self, message: Message) {
        self.wants.extend(update(&mut self.state, message));
    }

    fn answer(&mut self, topic: Topic, answer: Answer) {
        self.tell(Message::Answered(topic, Ok(answer)));
    }

    fn refuse(&mut self, topic: Topic, failure: Failure) {
        self.tell(Message::Answered(topic, Err(failure)));
    }

    /// Lets time pass.
    fn wait(&mut self, milliseconds: i64) {
        let now = self.state.now + Duration::milliseconds(milliseconds);
        self.tell(Message::Tick(now));
    }

    /// Presses keys: letters, and names in angle brackets.
    fn press(&mut self, keys: &str) {
        let mut rest = keys;
        while let Some(letter) = rest.chars().next() {
            let named = rest.strip_prefix('<').and_then(|it| it.split_once('>'));
            let (code, with) = if let Some((name, behind)) = named {
                rest = behind;
                match name {
                    "Enter" => (KeyCode::Enter, KeyModifiers::NONE),
                    "Esc" => (KeyCode::Esc, KeyModifiers::NONE),
                    "Tab" => (KeyCode::Tab, KeyModifiers::NONE),
                    "BackTab" => (KeyCode::BackTab, KeyModifiers::SHIFT),
                    "Down" => (KeyCode::Down, KeyModifiers::NONE),
                    "PgDn" => (KeyCode::PageDown, KeyModifiers::NONE),
                    "PgUp" => (KeyCode::PageUp, KeyModifiers::NONE),
                    "^c" => (KeyCode::Char('c'), KeyModifiers::CONTROL),
                    "^l" => (KeyCode::Char('l'), KeyModifiers::CONTROL),
                    other => panic!("no key {other}"),
                }
            } else {
                rest = &rest[letter.len_utf8()..];
                (KeyCode::Char(letter), KeyModifiers::NONE)
            };
            self.tell(Message::Key(KeyEvent::new(code, with)));
        }
    }

    fn mouse(&mut self, kind: MouseEventKind, column: u16, row: u16) {
        let modifiers = KeyModifiers::NONE;
        self.tell(Message::Mouse(MouseEvent { kind, column, row, modifiers }));
    }

    /// Clicks on the first cell of a text that is shown.
    fn click(&mut self, text: &str) {
        let shown = self.show();
        let (row, column) = shown
            .lines()
            .enumerate()
            .find_map(|(row, line)| {
                line.find(text).map(|at| (row, super::text::width(&line[..at])))
            })
            .unwrap_or_else(|| panic!("{text} is not shown:\n{shown}"));
        let (column, row) = (u16::try_from(column).unwrap(), u16::try_from(row).unwrap());
        self.mouse(MouseEventKind::Down(MouseButton::Left), column, row);
    }

    /// Draws it, as the loop does.
    fn draw(&mut self) -> Buffer {
        let Size { width, height } = self.state.size;
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut drawn = super::state::Drawn::default();
        self.state.changed = false;
        terminal.draw(|frame| drawn = view(&self.state, frame)).unwrap();
        self.tell(Message::Drawn(drawn));
        terminal.backend().buffer().clone()
    }

    /// What is shown.
    fn show(&mut self) -> String {
        let buffer = self.draw();
        let width = usize::from(buffer.area.width);
        let mut text = String::new();
        for row in buffer.content.chunks(width) {
            let mut line = String::new();
            let mut covered = 0;
            for cell in row {
                if covered == 0 {
                    line.push_str(cell.symbol());
                    covered = super::text::width(cell.symbol()).saturating_sub(1);
                } else {
                    covered -= 1;
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// What was wanted since it was last looked.
    fn wanted(&mut self) -> Vec<Want> {
        std::mem::take(&mut self.wants)
    }

    /// What of it was asked for.
    fn asked(&mut self) -> Vec<Topic> {
        let wanted = self.wanted().into_iter();
        let topics = wanted.filter_map(|want| match want {
            Want::Fetch(topic, _) => Some(topic),
            _ => None,
        });
        topics.collect()
    }
}
