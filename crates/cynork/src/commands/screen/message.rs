//! What the screen is told, and what it wants.

use cynode_core::{
    events::EventView,
    ids::{ProjectId, PullRequestId, TaskId},
};
use cynode_wire::{
    identity::accounts::SessionView,
    tasks::{CreateTask, TaskView},
};
use ratatui::crossterm::event::{KeyEvent, MouseEvent};
use secrecy::SecretString;
use serde_json::Value;
use time::OffsetDateTime;

use super::{
    cache::FetchTopic,
    state::{ScreenAction, ScreenLayout, TerminalSize},
    store::TopicAnswer,
};
use crate::failure::Result;

/// Something that the screen is told.
#[derive(Debug)]
pub(super) enum ScreenMessage {
    /// The time.
    Tick(OffsetDateTime),
    /// A key was pressed.
    Key(KeyEvent),
    /// A text was pasted.
    Pasted(String),
    /// The mouse was clicked or its wheel turned.
    Mouse(MouseEvent),
    /// The terminal has another size.
    Resized(TerminalSize),
    /// It was drawn.
    Drawn(ScreenLayout),
    /// From now on it is heard what happens.
    Listening,
    /// Something happened.
    Heard(Box<EventView>),
    /// Nothing is heard any more.
    Deaf(crate::failure::CliError),
    /// What was asked for came, or not.
    Answered(FetchTopic, Result<TopicAnswer>),
    /// Something was done, or not.
    Done(u64, Result<()>),
    /// Somebody logged in, or not.
    LoggedIn(Result<Box<SessionView>>),
    /// A task was accepted, or not.
    Created(u64, Result<Box<TaskView>>),
    /// The project manager says something; nothing more at the end.
    Replied(u64, Result<Option<String>>),
    /// Another program gave the terminal back, or could not be started.
    Returned(Result<()>),
}

/// A program of the person's that shows a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExternalViewer {
    /// `$VISUAL` or `$EDITOR`.
    Editor,
    /// `$PAGER`.
    Pager,
}

/// A text that is shown in another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ViewerContent {
    /// This one; the name of its file ends so.
    Text(&'static str, String),
    /// The whole difference of a pull request.
    Diff(PullRequestId),
}

/// Something that the screen wants.
#[derive(Debug)]
pub(super) enum ScreenEffect {
    /// An answer; of a log from this event on.
    Fetch(FetchTopic, u64),
    /// To hear what happens, from behind this event.
    Listen(Option<String>),
    /// Something done; sent again, the key names the same attempt.
    Do { number: u64, key: String, deed: ScreenAction, words: Option<String> },
    /// A session.
    LogIn { handle: String, password: SecretString },
    /// A task, new or one that has ended once more; sent again, the key names the same attempt.
    Create { number: u64, key: String, ended: Option<TaskId>, body: Box<CreateTask> },
    /// An answer of the project manager to what was said.
    Ask { number: u64, project: Option<ProjectId>, messages: Vec<Value> },
    /// No answer any more.
    StopAsking,
    /// A text in another program.
    Show(ExternalViewer, ViewerContent),
    /// The whole screen drawn anew.
    Clear,
    /// The shell, until it calls back.
    Suspend,
    /// The end.
    Quit,
}
