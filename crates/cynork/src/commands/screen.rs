//! The terminal screen, which `cynork` without a command opens.
//!
//! It has a pure core: [`state::ScreenState`] is the model, [`update`](update::update_state) applies one message and returns effects,
//! [`view`](view::render_screen) draws. This file is the thin loop around it: keys, the clock, the event stream and responses become
//! messages; effects become requests.

mod cache;
mod fetch;
mod graph;
mod input;
mod keys;
mod message;
mod prompt;
mod state;
mod store;
mod subscriptions;
mod text;
mod tty;
mod update;
mod view;

#[cfg(test)]
mod tests;

use std::{io, path::Path, time::Duration};

use cynode_core::events::EventView;
use time::OffsetDateTime;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::AbortHandle,
    time::{Instant, Interval, MissedTickBehavior},
};
use tokio_util::task::TaskTracker;

use self::{
    message::{ExternalViewer, ScreenEffect, ScreenMessage, ViewerContent},
    state::ScreenState,
    tty::Tty,
    update::update_state,
};
use super::account;
use crate::{
    client::{ApiClient, STREAM_IDLE_TIMEOUT},
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
};

/// Minimum time between two frames.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

/// How long pending requests are awaited when the person quits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of opening the event stream.
const STREAM_OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens the screen.
pub(crate) async fn open_screen(context: &mut CliContext) -> Result<()> {
    let missing = if context.environment.dumb {
        Some("the screen needs a terminal that it can draw on, and TERM says `dumb`")
    } else if !context.is_interactive() {
        Some("the screen needs a terminal, and there is none here")
    } else {
        None
    };
    if let Some(what) = missing {
        return Err(CliError::new(CliErrorKind::Usage, what)
            .with_fix("use a command, such as `cynork task list`; `cynork --help` names all"));
    }
    let broken = |error: io::Error| {
        CliError::internal_error(format!("the terminal cannot be used: {error}"))
            .with_fix("use a command, such as `cynork task list`")
    };
    let tty = Tty::acquire_terminal().map_err(broken)?;
    let size = tty.terminal_size().unwrap_or(update::DEFAULT_TERMINAL_SIZE);
    let seed = format!("screen-{:016x}", rand::random::<u64>());
    let mut state = ScreenState::new(context.client.base_url(), seed, current_time(), size);
    state.colour = context.out.paint.0;
    state.home = context.resolve_project(None, Path::new("."));
    let (keys, typed) = mpsc::unbounded_channel();
    tty.spawn_event_reader(keys).map_err(broken)?;
    let (tell, told) = mpsc::unbounded_channel();
    let mut turn = tokio::time::interval(FRAME_INTERVAL);
    turn.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let signals = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()];
    let [terminate, hangup, interrupt] = signals.map(signal);
    let mut ears = MessageSources {
        typed,
        told,
        turn,
        terminate: terminate.map_err(broken)?,
        hangup: hangup.map_err(broken)?,
        interrupt: interrupt.map_err(broken)?,
    };
    let hands = EffectRunner { tell, tasks: TaskTracker::new(), listener: None, answer: None };
    run_event_loop(context, state, tty, &mut ears, hands).await.map_err(broken)
}

/// Returns the current time for the screen.
#[expect(
    clippy::disallowed_methods,
    reason = "the screen's clock: everything else is told the time"
)]
fn current_time() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// The sources of messages.
struct MessageSources {
    typed: UnboundedReceiver<Option<ScreenMessage>>,
    told: UnboundedReceiver<ScreenMessage>,
    turn: Interval,
    terminate: Signal,
    hangup: Signal,
    interrupt: Signal,
}

impl MessageSources {
    /// Returns the next message; `None` at the end.
    async fn next(&mut self) -> Option<ScreenMessage> {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => None,
            _ = self.hangup.recv() => None,
            _ = self.interrupt.recv() => None,
            typed = self.typed.recv() => typed.flatten(),
            told = self.told.recv() => told,
            _ = self.turn.tick() => Some(ScreenMessage::Tick(current_time())),
        }
    }
}

/// Runs effects; their responses become messages.
struct EffectRunner {
    tell: UnboundedSender<ScreenMessage>,
    tasks: TaskTracker,
    listener: Option<AbortHandle>,
    /// The pending answer of the project manager.
    answer: Option<AbortHandle>,
}

async fn run_event_loop(
    context: &mut CliContext,
    mut state: ScreenState,
    mut tty: Tty,
    ears: &mut MessageSources,
    mut hands: EffectRunner,
) -> io::Result<()> {
    let mut wants = update::initial_effects(&mut state, context.client.has_token());
    let mut drawn_at: Option<Instant> = None;
    loop {
        for want in std::mem::take(&mut wants) {
            match want {
                ScreenEffect::Quit => return await_pending_replies(&state, ears).await,
                ScreenEffect::Clear => tty.clear_screen()?,
                ScreenEffect::Suspend => tty.suspend_process()?,
                ScreenEffect::Show(viewer, content) => {
                    let shown = show_in_viewer(context, &mut tty, viewer, content).await?;
                    // A Ctrl-C for the other program was not meant for this one.
                    ears.interrupt = signal(SignalKind::interrupt())?;
                    wants.extend(update_state(&mut state, ScreenMessage::Returned(shown)));
                }
                other => hands.run_effect(&context.client, other),
            }
        }
        if !wants.is_empty() {
            continue;
        }
        // After several size changes in a row a terminal may report an older one last.
        if let Ok(size) = tty.terminal_size()
            && size != state.size
        {
            wants = update_state(&mut state, ScreenMessage::Resized(size));
            continue;
        }
        if state.changed && drawn_at.is_none_or(|then| then.elapsed() >= FRAME_INTERVAL) {
            state.changed = false;
            drawn_at = Some(Instant::now());
            let drawn = tty.draw_screen(&state)?;
            wants = update_state(&mut state, ScreenMessage::Drawn(drawn));
            if !wants.is_empty() {
                continue;
            }
        }
        let Some(message) = ears.next().await else {
            return await_pending_replies(&state, ears).await;
        };
        wants = update_state(&mut state, store_session(context, message));
    }
}

/// Shows a text in another program, and reports an error.
async fn show_in_viewer(
    context: &CliContext,
    tty: &mut Tty,
    viewer: ExternalViewer,
    content: ViewerContent,
) -> io::Result<Result<()>> {
    let (ending, text) = match content {
        ViewerContent::Text(ending, text) => (ending, text),
        ViewerContent::Diff(id) => match fetch::fetch_diff(&context.client, id).await {
            Ok(text) => ("diff", text),
            Err(failure) => return Ok(Err(failure)),
        },
    };
    let environment = &context.environment;
    let program = match viewer {
        ExternalViewer::Editor => environment.editor.clone().unwrap_or_else(|| "vi".to_owned()),
        ExternalViewer::Pager => environment.pager.clone().unwrap_or_else(|| "less".to_owned()),
    };
    let shown = tty
        .lend_to_program(move || {
            let mut editor = dialoguer::Editor::new();
            editor.executable(&program).extension(&format!(".{ending}")).require_save(false);
            editor.edit(&text).map(drop).map_err(|error| {
                let name = match viewer {
                    ExternalViewer::Editor => "EDITOR",
                    ExternalViewer::Pager => "PAGER",
                };
                let what = format!("{program} could not be run: {error}; ${name} names another");
                CliError::new(CliErrorKind::Usage, what)
            })
        })
        .await?;
    Ok(shown)
}

/// Stores a new session before it is used.
fn store_session(context: &mut CliContext, message: ScreenMessage) -> ScreenMessage {
    let ScreenMessage::LoggedIn(Ok(session)) = message else { return message };
    let token = secrecy::SecretString::from(session.token.0.clone());
    context.client = context.client.clone().with_token(token.clone());
    ScreenMessage::LoggedIn(account::store_session_token(context, &token).map(|()| session))
}

/// Waits a limited time for the responses to pending requests.
async fn await_pending_replies(state: &ScreenState, ears: &mut MessageSources) -> io::Result<()> {
    let dialog = state.dialog.as_ref().is_some_and(|dialog| dialog.sending);
    if dialog || state.form.as_ref().is_some_and(|form| form.sending) {
        let done = async {
            while let Some(message) = ears.told.recv().await {
                if matches!(message, ScreenMessage::Done(..) | ScreenMessage::Created(..)) {
                    break;
                }
            }
        };
        // A longer wait would change nothing: the server has received the request or not.
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, done).await;
    }
    Ok(())
}

impl EffectRunner {
    fn run_effect(&mut self, client: &ApiClient, want: ScreenEffect) {
        let (client, tell) = (client.clone(), self.tell.clone());
        match want {
            ScreenEffect::Fetch(topic, from) => {
                self.tasks.spawn(async move {
                    let answer = Box::pin(fetch::fetch_topic(&client, &topic, from)).await;
                    let _ = tell.send(ScreenMessage::Answered(topic, answer));
                });
            }
            ScreenEffect::Do { number, key, deed, words } => {
                self.tasks.spawn(async move {
                    let done = fetch::perform_action(&client, key, &deed, words.as_deref()).await;
                    let _ = tell.send(ScreenMessage::Done(number, done));
                });
            }
            ScreenEffect::LogIn { handle, password } => {
                self.tasks.spawn(async move {
                    let session = fetch::create_session(&client, &handle, &password).await;
                    let _ = tell.send(ScreenMessage::LoggedIn(session.map(Box::new)));
                });
            }
            ScreenEffect::Listen(after) => {
                if let Some(before) = self.listener.take() {
                    before.abort();
                }
                let listening = self.tasks.spawn(stream_events(client, after, tell));
                self.listener = Some(listening.abort_handle());
            }
            ScreenEffect::Create { number, key, ended, body } => {
                self.tasks.spawn(async move {
                    let task = fetch::submit_task(&client, key, ended, &body).await;
                    let _ = tell.send(ScreenMessage::Created(number, task.map(Box::new)));
                });
            }
            ScreenEffect::Ask { number, project, messages } => {
                let asking = self.tasks.spawn(async move {
                    let said = |words: &str| {
                        let _ =
                            tell.send(ScreenMessage::Replied(number, Ok(Some(words.to_owned()))));
                    };
                    let ended =
                        Box::pin(fetch::ask_manager(&client, project, &messages, said)).await;
                    let _ = tell.send(ScreenMessage::Replied(number, ended.map(|()| None)));
                });
                self.answer = Some(asking.abort_handle());
            }
            ScreenEffect::StopAsking => {
                if let Some(answer) = self.answer.take() {
                    answer.abort();
                }
            }
            ScreenEffect::Clear
            | ScreenEffect::Suspend
            | ScreenEffect::Show(..)
            | ScreenEffect::Quit => {}
        }
    }
}

/// Forwards events until the stream ends.
async fn stream_events(
    client: ApiClient,
    after: Option<String>,
    tell: UnboundedSender<ScreenMessage>,
) {
    let call = fetch::event_stream_call(after.as_ref());
    let opened = tokio::time::timeout(STREAM_OPEN_TIMEOUT, client.open_event_stream(&call)).await;
    let why = match opened {
        Err(_) => CliError::new(
            CliErrorKind::Unreachable,
            format!("no answer from {}", client.base_url()),
        ),
        Ok(Err(failure)) => failure,
        Ok(Ok(events)) => {
            let mut events = events.with_idle_timeout(STREAM_IDLE_TIMEOUT);
            let _ = tell.send(ScreenMessage::Listening);
            while let Some(heard) = events.next().await {
                // Unknown kinds of events are ignored.
                if let Ok(event) = serde_json::from_str::<EventView>(&heard.data) {
                    let _ = tell.send(ScreenMessage::Heard(Box::new(event)));
                }
            }
            events.take_error().unwrap_or_else(|| {
                let what = format!("the connection to {} has ended", client.base_url());
                CliError::new(CliErrorKind::Unreachable, what)
            })
        }
    };
    let _ = tell.send(ScreenMessage::Deaf(why));
}
