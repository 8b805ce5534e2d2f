//! The screen in situations: what it shows at two sizes, what it makes of keys, clicks, events and answers.

mod acting;
mod behaviour;
mod cockpit;
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
    cache::FetchTopic,
    message::{ScreenEffect, ScreenMessage},
    state::{ScreenState, TerminalSize},
    store::TopicAnswer,
    update::{self, update_state},
    view::render_frame,
};
use crate::failure::CliError;

/// The time at which everything is looked at.
const NOW: OffsetDateTime = datetime!(2026-11-01 12:00 UTC);

/// A screen that is told things and drawn into memory.
struct Stage {
    state: ScreenState,
    wants: Vec<ScreenEffect>,
}

impl Stage {
    /// A screen of somebody who is logged in.
    fn new(width: u16, height: u16) -> Self {
        let mut state = ScreenState::new(
            "http://127.0.0.1:12080",
            "seed".into(),
            NOW,
            TerminalSize { width, height },
        );
        let wants = update::initial_effects(&mut state, true);
        let mut stage = Self { state, wants };
        stage.tell(ScreenMessage::Listening);
        stage.answer(FetchTopic::Me, world::me());
        stage.answer(FetchTopic::Projects, world::projects());
        stage
    }

    /// Tells it something; what is wanted is kept until it is taken.
    fn tell(&mut self, message: ScreenMessage) {
        self.wants.extend(update_state(&mut self.state, message));
    }

    fn answer(&mut self, topic: FetchTopic, answer: TopicAnswer) {
        self.tell(ScreenMessage::Answered(topic, Ok(answer)));
    }

    fn refuse(&mut self, topic: FetchTopic, failure: CliError) {
        self.tell(ScreenMessage::Answered(topic, Err(failure)));
    }

    /// Lets time pass.
    fn wait(&mut self, milliseconds: i64) {
        let now = self.state.now + Duration::milliseconds(milliseconds);
        self.tell(ScreenMessage::Tick(now));
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
                    "lt" => (KeyCode::Char('<'), KeyModifiers::NONE),
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
            self.tell(ScreenMessage::Key(KeyEvent::new(code, with)));
        }
    }

    fn mouse(&mut self, kind: MouseEventKind, column: u16, row: u16) {
        let modifiers = KeyModifiers::NONE;
        self.tell(ScreenMessage::Mouse(MouseEvent { kind, column, row, modifiers }));
    }

    /// Clicks on the first cell of a text that is shown.
    fn click(&mut self, text: &str) {
        let shown = self.show();
        let (row, column) = shown
            .lines()
            .enumerate()
            .find_map(|(row, line)| {
                line.find(text).map(|at| (row, super::text::display_width(&line[..at])))
            })
            .unwrap_or_else(|| panic!("{text} is not shown:\n{shown}"));
        let (column, row) = (u16::try_from(column).unwrap(), u16::try_from(row).unwrap());
        self.mouse(MouseEventKind::Down(MouseButton::Left), column, row);
    }

    /// Draws it, as the loop does.
    fn draw(&mut self) -> Buffer {
        let TerminalSize { width, height } = self.state.size;
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut drawn = super::state::ScreenLayout::default();
        self.state.changed = false;
        terminal.draw(|frame| drawn = render_frame(&self.state, frame)).unwrap();
        self.tell(ScreenMessage::Drawn(drawn));
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
                    covered = super::text::display_width(cell.symbol()).saturating_sub(1);
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
    fn wanted(&mut self) -> Vec<ScreenEffect> {
        std::mem::take(&mut self.wants)
    }

    /// What of it was asked for.
    fn asked(&mut self) -> Vec<FetchTopic> {
        let wanted = self.wanted().into_iter();
        let topics = wanted.filter_map(|want| match want {
            ScreenEffect::Fetch(topic, _) => Some(topic),
            _ => None,
        });
        topics.collect()
    }
}
