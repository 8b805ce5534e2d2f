//! The update function of the screen. Pure: it returns effects.

mod actions;
mod chat;
mod navigation;
mod prompt;
mod task_form;
mod text_view;

use ratatui::{
    crossterm::event::{
        KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
    },
    layout::Position,
};
use time::{Duration, OffsetDateTime};

use super::{
    cache::FetchTopic,
    input::LineInput,
    keys::{self, KeyCommand},
    message::{ExternalViewer, ScreenEffect, ScreenMessage},
    state::{
        ClickTarget, ConnectionState, Focus, LoginForm, Pane, ScreenState, ScrollArea,
        SearchDirection, TerminalSize,
    },
    store::TopicAnswer,
    subscriptions, text,
};
use crate::failure::{CliError, CliErrorKind, Result};

/// How long a note is shown.
const NOTE_DURATION: Duration = Duration::seconds(8);

/// Number of consecutive requests without a response after which the connection counts as lost, whatever the stream says.
const MAX_UNANSWERED_REQUESTS: u32 = 2;

/// Applies one message. Returns the effects.
pub(super) fn update_state(state: &mut ScreenState, message: ScreenMessage) -> Vec<ScreenEffect> {
    let mut wants = Vec::new();
    match message {
        ScreenMessage::Tick(now) => handle_tick(state, now, &mut wants),
        ScreenMessage::Key(key) if key.kind == KeyEventKind::Release => {}
        ScreenMessage::Key(key) => {
            // A person who presses a key has read the note.
            (state.changed, state.note) = (true, None);
            handle_key(state, key, &mut wants);
        }
        ScreenMessage::Pasted(text) => {
            state.changed = true;
            navigation::paste_text(state, &text);
        }
        ScreenMessage::Mouse(mouse) => handle_mouse(state, mouse, &mut wants),
        ScreenMessage::Resized(size) => (state.size, state.changed) = (size, true),
        ScreenMessage::Drawn(drawn) => {
            state.offsets.extend(&drawn.tops);
            state.drawn = drawn;
            text_view::resolve_search(state);
        }
        ScreenMessage::Listening => handle_connected(state),
        ScreenMessage::Heard(event) => {
            state.position = Some(event.id.to_string());
            state.known.apply_event(&event, &mut state.shelf);
            state.changed = true;
        }
        ScreenMessage::Deaf(failure) => handle_disconnected(state, failure),
        ScreenMessage::Answered(topic, answer) => handle_answer(state, &topic, answer),
        ScreenMessage::Done(number, result) => actions::handle_done(state, number, result),
        ScreenMessage::LoggedIn(result) => handle_login(state, result.map(drop), &mut wants),
        ScreenMessage::Created(number, result) => task_form::handle_created(state, number, result),
        ScreenMessage::Replied(number, result) => chat::handle_reply(state, number, result),
        ScreenMessage::Returned(result) => {
            state.changed = true;
            if let Err(failure) = result {
                state.show_note(failure.detail, false);
            }
        }
    }
    state.keep_selection();
    actions::close_stale_dialog(state);
    subscriptions::request_needed_topics(state, &mut wants);
    wants
}

/// Returns the initial effects.
pub(super) fn initial_effects(state: &mut ScreenState, has_token: bool) -> Vec<ScreenEffect> {
    let mut wants = Vec::new();
    if has_token {
        wants.push(ScreenEffect::Listen(None));
        subscriptions::request_needed_topics(state, &mut wants);
    } else {
        state.login = Some(LoginForm::default());
    }
    wants
}

fn handle_tick(state: &mut ScreenState, now: OffsetDateTime, wants: &mut Vec<ScreenEffect>) {
    // Ages and clocks change every second; spinners turn four times per second.
    let turns = |at: OffsetDateTime| at.unix_timestamp_nanos() / 250_000_000;
    let moving = state.shelf.has_slow_fetch(now)
        || state.dialog.as_ref().is_some_and(|it| it.sending)
        || state.form.as_ref().is_some_and(|it| it.sending)
        || state.chat.sending
        || state.login.as_ref().is_some_and(|it| it.sending);
    let before = state.now;
    state.now = now;
    if before.unix_timestamp() != now.unix_timestamp() || (moving && turns(before) != turns(now)) {
        state.changed = true;
    }
    if state.note.as_ref().is_some_and(|note| now - note.since >= NOTE_DURATION) {
        state.note = None;
        state.changed = true;
    }
    if state.login.is_none()
        && let ConnectionState::Lost { again, .. } = &mut state.link
        && again.is_some_and(|again| again <= now)
    {
        *again = None;
        wants.push(ScreenEffect::Listen(state.position.clone()));
    }
}

fn handle_connected(state: &mut ScreenState) {
    let before = std::mem::replace(&mut state.link, ConnectionState::Live);
    state.unanswered = 0;
    state.changed = true;
    if let ConnectionState::Lost { why, .. } = before {
        let why = text::first_sanitized_line(&why.detail);
        state.show_note(
            format!("connected again, nothing was lost ({why}; `cynork status` says more)"),
            true,
        );
        // Events were missed meanwhile; everything is fetched again.
        state.shelf.reset_all();
    }
}

/// Handles a lost event stream: the data stays, and reconnection is attempted with backoff.
fn handle_disconnected(state: &mut ScreenState, why: CliError) {
    state.changed = true;
    if is_unauthenticated(&why) {
        return require_login(state, why);
    }
    let (since, tries) = match &state.link {
        ConnectionState::Lost { since, tries, .. } => (*since, tries + 1),
        ConnectionState::Opening | ConnectionState::Live => (state.now, 0),
    };
    let pause = Duration::milliseconds(500 * (1 << tries.min(4)));
    let again = Some(state.now + pause.min(Duration::seconds(5)));
    state.link = ConnectionState::Lost { since, again, tries, why };
}

/// Returns whether the server rejected the credential.
fn is_unauthenticated(failure: &CliError) -> bool {
    failure.kind == CliErrorKind::Refused && failure.code.as_deref() == Some("unauthenticated")
}

fn require_login(state: &mut ScreenState, why: CliError) {
    let handle = state.known.me.as_ref().map(|me| me.user.handle.as_str().to_owned());
    let login = state.login.get_or_insert_default();
    if let Some(handle) = handle {
        (login.handle, login.field) = (LineInput::with_text(&handle), 1);
    }
    // The form itself is the next step.
    login.failure = Some(CliError { fix: None, ..why });
    login.sending = false;
    (state.dialog, state.form, state.prompt, state.help) = (None, None, None, false);
    state.link = ConnectionState::Opening;
    state.shelf.reset_all();
    state.changed = true;
}

fn handle_answer(state: &mut ScreenState, topic: &FetchTopic, answer: Result<TopicAnswer>) {
    state.changed = true;
    match answer {
        Ok(answer) => {
            state.unanswered = 0;
            refresh_changed_job_logs(state, topic, &answer);
            let again = state.known.apply_answer(topic, answer, &state.filter.query);
            state.shelf.finish_fetch(topic, state.now, None);
            if again {
                state.shelf.mark_stale(|it| it == topic);
            }
        }
        Err(failure) if is_unauthenticated(&failure) => require_login(state, failure),
        Err(failure) => {
            if let FetchTopic::Timeline(task) = topic
                && failure.kind != CliErrorKind::Unreachable
            {
                state.known.unsure.remove(task);
            }
            state.shelf.finish_fetch(topic, state.now, Some(failure.clone()));
            if failure.kind == CliErrorKind::Unreachable {
                state.unanswered += 1;
                if state.unanswered >= MAX_UNANSWERED_REQUESTS
                    && matches!(state.link, ConnectionState::Live)
                {
                    handle_disconnected(state, failure);
                }
            }
        }
    }
}

/// The last lines of a job's log arrive with its end.
fn refresh_changed_job_logs(state: &mut ScreenState, topic: &FetchTopic, answer: &TopicAnswer) {
    let (FetchTopic::Timeline(task), TopicAnswer::Timeline(timeline)) = (topic, answer) else {
        return;
    };
    let Some(before) = state.known.timelines.get(task) else { return };
    let same = |job: &cynode_core::workflow::timeline::JobEntry| before.jobs.contains(job);
    let others: Vec<_> =
        timeline.jobs.iter().filter(|job| !same(job)).map(|it| it.job_id).collect();
    state.shelf.mark_stale(|topic| matches!(topic, FetchTopic::Log(job) if others.contains(job)));
}

fn handle_login(state: &mut ScreenState, result: Result<()>, wants: &mut Vec<ScreenEffect>) {
    state.changed = true;
    match result {
        Ok(()) => {
            state.login = None;
            state.shelf.reset_all();
            state.link = ConnectionState::Opening;
            wants.push(ScreenEffect::Listen(None));
        }
        Err(failure) => {
            if let Some(login) = &mut state.login {
                (login.sending, login.failure) = (false, Some(failure));
            }
        }
    }
}

fn handle_key(state: &mut ScreenState, mut key: KeyEvent, wants: &mut Vec<ScreenEffect>) {
    // On a slow connection an escape and the next letter arrive together, and look like one key.
    if key.modifiers.contains(KeyModifiers::ALT) && matches!(key.code, KeyCode::Char(_)) {
        handle_key(state, KeyEvent::from(KeyCode::Esc), wants);
        key.modifiers.remove(KeyModifiers::ALT);
    }
    let command = keys::command_for_key(key);
    if command == Some(KeyCommand::Suspend) {
        return wants.push(ScreenEffect::Suspend);
    }
    let control = !matches!(key.code, KeyCode::Char('q'));
    if command == Some(KeyCommand::Quit) && (control || state.size.is_too_small()) {
        return wants.push(ScreenEffect::Quit);
    }
    if state.size.is_too_small() {
        return;
    }
    if state.login.is_some() {
        return navigation::handle_login_key(state, key, wants);
    }
    if state.dialog.is_some() {
        return actions::handle_dialog_key(state, key, wants);
    }
    if state.form.is_some() {
        return task_form::handle_form_key(state, key, wants);
    }
    if state.help {
        return navigation::handle_help_key(state, command);
    }
    if state.prompt.is_some() {
        return prompt::handle_prompt_key(state, key, wants);
    }
    if state.filter.typing {
        return navigation::handle_filter_key(state, key);
    }
    if state.search.typing {
        return text_view::handle_search_key(state, key);
    }
    if state.pane == Pane::Chat && state.focus == Focus::Detail {
        return chat::handle_chat_key(state, key, wants);
    }
    if let Some(command) = command {
        execute_command(state, command, wants);
    }
}

fn execute_command(state: &mut ScreenState, command: KeyCommand, wants: &mut Vec<ScreenEffect>) {
    match command {
        KeyCommand::Quit => wants.push(ScreenEffect::Quit),
        KeyCommand::Help => state.help = true,
        KeyCommand::Refresh => {
            state.shelf.reset_all();
            wants.push(ScreenEffect::Clear);
        }
        KeyCommand::Filter
            if state.focus == Focus::Detail && state.visible_text_area().is_some() =>
        {
            text_view::begin_search(state);
        }
        KeyCommand::Filter => navigation::begin_filter(state),
        KeyCommand::NextMatch | KeyCommand::PreviousMatch => {
            let next = command == KeyCommand::NextMatch;
            text_view::go_to_match(
                state,
                if next { SearchDirection::Next } else { SearchDirection::Previous },
            );
        }
        KeyCommand::Wrap => text_view::toggle_wrap(state),
        KeyCommand::ShiftLeft | KeyCommand::ShiftRight => {
            text_view::shift_sideways(state, command == KeyCommand::ShiftRight);
        }
        KeyCommand::Edit => text_view::open_in_viewer(state, ExternalViewer::Editor, wants),
        KeyCommand::Page => text_view::open_in_viewer(state, ExternalViewer::Pager, wants),
        KeyCommand::Prompt => state.prompt = Some(LineInput::default()),
        KeyCommand::NewTask => task_form::open_form(state, None),
        KeyCommand::Pane(Pane::Chat) => chat::open_chat(state, None),
        KeyCommand::Approve
        | KeyCommand::Deny
        | KeyCommand::Pause
        | KeyCommand::Resume
        | KeyCommand::Revise
        | KeyCommand::Cancel
        | KeyCommand::Retry
        | KeyCommand::Merge => actions::begin_action(state, command),
        _ => navigation::execute_navigation(state, command),
    }
}

/// Lines per step of the wheel.
const WHEEL_LINES: isize = 3;

fn handle_mouse(state: &mut ScreenState, mouse: MouseEvent, wants: &mut Vec<ScreenEffect>) {
    if state.size.is_too_small() {
        return;
    }
    let place = Position::new(mouse.column, mouse.row);
    let hits = state.drawn.hits.iter().rev();
    let hit = hits.filter(|(area, _)| area.contains(place)).map(|(_, hit)| *hit).next();
    let Some(hit) = hit else { return };
    let over =
        state.dialog.is_some() || state.form.is_some() || state.help || state.login.is_some();
    let on_top = matches!(
        hit,
        ClickTarget::Yes
            | ClickTarget::No
            | ClickTarget::Field(_)
            | ClickTarget::Area(ScrollArea::Dialog | ScrollArea::Help)
    );
    if over && !on_top {
        return;
    }
    state.changed = true;
    match mouse.kind {
        MouseEventKind::Down(MouseButton::Left) => match hit {
            ClickTarget::Yes if state.form.is_some() => task_form::submit_form(state, wants),
            ClickTarget::Yes => actions::confirm_dialog(state, wants),
            ClickTarget::No => (state.dialog, state.form) = (None, None),
            ClickTarget::Pane(Pane::Chat) => chat::open_chat(state, None),
            other => navigation::handle_click(state, other),
        },
        MouseEventKind::ScrollDown => navigation::handle_wheel(state, hit, WHEEL_LINES),
        MouseEventKind::ScrollUp => navigation::handle_wheel(state, hit, -WHEEL_LINES),
        _ => {}
    }
}

/// Focus and selection, in wide and narrow terminals.
impl ScreenState {
    /// Moves the focus to the list.
    fn focus_list(&mut self) {
        self.focus = Focus::List;
    }

    /// Keeps the visible item selected, whatever is inserted before it.
    fn keep_selection(&mut self) {
        if self.task.is_none() {
            self.task = self.chosen_task().map(|task| task.id);
        }
        if self.pane == Pane::Inbox {
            self.item = self.chosen_item();
        }
    }

    /// Handles a change of the selection.
    fn on_selection_change(&mut self) {
        self.chosen_at = self.now;
        for place in [
            ScrollArea::Item,
            ScrollArea::Node,
            ScrollArea::Project,
            ScrollArea::PullRequest,
            ScrollArea::Model,
            ScrollArea::Plan,
            ScrollArea::Timeline,
            ScrollArea::Jobs,
            ScrollArea::Log,
            ScrollArea::Files,
            ScrollArea::Diff,
            ScrollArea::Evidence,
        ] {
            self.offsets.remove(&place);
        }
        (self.unit, self.job, self.file, self.follow) = (None, None, None, true);
        (self.shift, self.found) = (0, None);
    }
}

/// The assumed size of a terminal that has not reported one.
pub(super) const DEFAULT_TERMINAL_SIZE: TerminalSize = TerminalSize { width: 80, height: 24 };
