//! Messages to the screen, and its effects.

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

/// A message to the screen.
#[derive(Debug)]
pub(super) enum ScreenMessage {
    /// The time.
    Tick(OffsetDateTime),
    /// A key was pressed.
    Key(KeyEvent),
    /// A text was pasted.
    Pasted(String),
    /// A mouse button was clicked, or the wheel was turned.
    Mouse(MouseEvent),
    /// The terminal was resized.
    Resized(TerminalSize),
    /// A frame was drawn.
    Drawn(ScreenLayout),
    /// The event stream is open.
    Listening,
    /// An event arrived.
    Heard(Box<EventView>),
    /// The event stream ended or could not be opened.
    Deaf(crate::failure::CliError),
    /// A fetch succeeded or failed.
    Answered(FetchTopic, Result<TopicAnswer>),
    /// An action succeeded or failed.
    Done(u64, Result<()>),
    /// A login succeeded or failed.
    LoggedIn(Result<Box<SessionView>>),
    /// A task was created, or refused.
    Created(u64, Result<Box<TaskView>>),
    /// A chunk of the project manager's answer; `None` at its end.
    Replied(u64, Result<Option<String>>),
    /// Another program returned the terminal, or could not be started.
    Returned(Result<()>),
}

/// An external program that shows a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExternalViewer {
    /// `$VISUAL` or `$EDITOR`.
    Editor,
    /// `$PAGER`.
    Pager,
}

/// A text for another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ViewerContent {
    /// This text, with the extension of its file.
    Text(&'static str, String),
    /// The whole diff of a pull request.
    Diff(PullRequestId),
}

/// An effect that the screen requests.
#[derive(Debug)]
pub(super) enum ScreenEffect {
    /// Fetch a topic; a log from this event on.
    Fetch(FetchTopic, u64),
    /// Open the event stream after this event.
    Listen(Option<String>),
    /// Perform an action; the idempotency key identifies repeated attempts.
    Do { number: u64, key: String, deed: ScreenAction, words: Option<String> },
    /// Create a session.
    LogIn { handle: String, password: SecretString },
    /// Create or retry a task; the idempotency key identifies repeated attempts.
    Create { number: u64, key: String, ended: Option<TaskId>, body: Box<CreateTask> },
    /// Ask the project manager for the next answer of a conversation.
    Ask { number: u64, project: Option<ProjectId>, messages: Vec<Value> },
    /// Cancel the pending answer.
    StopAsking,
    /// Show a text in another program.
    Show(ExternalViewer, ViewerContent),
    /// Redraw the whole screen.
    Clear,
    /// Suspend to the shell.
    Suspend,
    /// Quit.
    Quit,
}
