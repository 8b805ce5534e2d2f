//! What the screen is told, and what it wants.

use cynode_wire::{accounts::SessionView, events::EventView};
use ratatui::crossterm::event::{KeyEvent, MouseEvent};
use secrecy::SecretString;
use time::OffsetDateTime;

use super::{
    known::Answer,
    shelf::Topic,
    state::{Deed, Drawn, Size},
};
use crate::failure::Result;

/// Something that the screen is told.
#[derive(Debug)]
pub(super) enum Message {
    /// The time.
    Tick(OffsetDateTime),
    /// A key was pressed.
    Key(KeyEvent),
    /// A text was pasted.
    Pasted(String),
    /// The mouse was clicked or its wheel turned.
    Mouse(MouseEvent),
    /// The terminal has another size.
    Resized(Size),
    /// It was drawn.
    Drawn(Drawn),
    /// From now on it is heard what happens.
    Listening,
    /// Something happened.
    Heard(Box<EventView>),
    /// Nothing is heard any more.
    Deaf(crate::failure::Failure),
    /// What was asked for came, or not.
    Answered(Topic, Result<Answer>),
    /// Something was done, or not.
    Done(u64, Result<()>),
    /// Somebody logged in, or not.
    LoggedIn(Result<Box<SessionView>>),
}

/// Something that the screen wants.
#[derive(Debug)]
pub(super) enum Want {
    /// An answer; of a log from this event on.
    Fetch(Topic, u64),
    /// To hear what happens, from behind this event.
    Listen(Option<String>),
    /// Something done; sent again, the key names the same attempt.
    Do { number: u64, key: String, deed: Deed, words: Option<String> },
    /// A session.
    LogIn { handle: String, password: SecretString },
    /// The whole screen drawn anew.
    Clear,
    /// The shell, until it calls back.
    Suspend,
    /// The end.
    Quit,
}
