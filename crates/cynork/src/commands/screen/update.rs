//! What the screen makes of what it is told. Pure: what it wants is given back.

mod deeds;
mod moves;

use ratatui::{
    crossterm::event::{
        KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
    },
    layout::Position,
};
use time::{Duration, OffsetDateTime};

use super::{
    keys::{self, Command},
    known::Answer,
    message::{Message, Want},
    needs,
    shelf::Topic,
    state::{Focus, Hit, Link, Login, Pane, Place, Size, State},
};
use crate::failure::{Failure, Kind, Result};

/// How long a note is shown.
const NOTED: Duration = Duration::seconds(8);

/// After as many questions in a row without any answer nobody is there, whatever the stream says.
const SILENCE: u32 = 2;

/// Takes in one message; what is wanted now.
pub(super) fn update(state: &mut State, message: Message) -> Vec<Want> {
    let mut wants = Vec::new();
    match message {
        Message::Tick(now) => tick(state, now, &mut wants),
        Message::Key(key) if key.kind == KeyEventKind::Release => {}
        Message::Key(key) => {
            // Whoever goes on has read what was said.
            (state.changed, state.note) = (true, None);
            press(state, key, &mut wants);
        }
        Message::Pasted(text) => {
            state.changed = true;
            moves::paste(state, &text);
        }
        Message::Mouse(mouse) => point(state, mouse, &mut wants),
        Message::Resized(size) => (state.size, state.changed) = (size, true),
        Message::Drawn(drawn) => {
            state.offsets.extend(&drawn.tops);
            state.drawn = drawn;
        }
        Message::Listening => listening(state),
        Message::Heard(event) => {
            state.position = Some(event.id.to_string());
            state.known.hear(&event, &mut state.shelf);
            state.changed = true;
        }
        Message::Deaf(failure) => deaf(state, failure),
        Message::Answered(topic, answer) => answered(state, &topic, answer),
        Message::Done(number, result) => deeds::done(state, number, result),
        Message::LoggedIn(result) => logged_in(state, result.map(drop), &mut wants),
    }
    state.hold();
    deeds::settle(state);
    needs::ask(state, &mut wants);
    wants
}

/// What the screen wants when it opens.
pub(super) fn open(state: &mut State, has_token: bool) -> Vec<Want> {
    let mut wants = Vec::new();
    if has_token {
        wants.push(Want::Listen(None));
        needs::ask(state, &mut wants);
    } else {
        state.login = Some(Login::default());
    }
    wants
}

fn tick(state: &mut State, now: OffsetDateTime, wants: &mut Vec<Want>) {
    // Ages and clocks go by seconds; what is on its way turns four times in one.
    let turns = |at: OffsetDateTime| at.unix_timestamp_nanos() / 250_000_000;
    let moving = state.shelf.any_slow(now)
        || state.dialog.as_ref().is_some_and(|it| it.sending)
        || state.login.as_ref().is_some_and(|it| it.sending);
    let before = state.now;
    state.now = now;
    if before.unix_timestamp() != now.unix_timestamp() || (moving && turns(before) != turns(now)) {
        state.changed = true;
    }
    if state.note.as_ref().is_some_and(|note| now - note.since >= NOTED) {
        state.note = None;
        state.changed = true;
    }
    if state.login.is_none()
        && let Link::Lost { again, .. } = &mut state.link
        && again.is_some_and(|again| again <= now)
    {
        *again = None;
        wants.push(Want::Listen(state.position.clone()));
    }
}

fn listening(state: &mut State) {
    let before = std::mem::replace(&mut state.link, Link::Live);
    state.unanswered = 0;
    state.changed = true;
    if matches!(before, Link::Lost { .. }) {
        // What happened meanwhile is heard now; what changes without an event is asked for.
        state.shelf.begin_anew();
    }
}

/// Nobody tells what happens any more: what is known stays, and it is tried again, less and less often.
fn deaf(state: &mut State, why: Failure) {
    state.changed = true;
    if is_stranger(&why) {
        return stranger(state, why);
    }
    let (since, tries) = match &state.link {
        Link::Lost { since, tries, .. } => (*since, tries + 1),
        Link::Opening | Link::Live => (state.now, 0),
    };
    let pause = Duration::milliseconds(500 * (1 << tries.min(4)));
    let again = Some(state.now + pause.min(Duration::seconds(5)));
    state.link = Link::Lost { since, again, tries, why };
}

/// Whether the server does not know who is asking.
fn is_stranger(failure: &Failure) -> bool {
    failure.kind == Kind::Refused && failure.code.as_deref() == Some("unauthenticated")
}

fn stranger(state: &mut State, why: Failure) {
    let handle = state.known.me.as_ref().map(|me| me.user.handle.as_str().to_owned());
    let login = state.login.get_or_insert_default();
    if let Some(handle) = handle {
        (login.handle, login.field) = (super::input::Input::with(&handle), 1);
    }
    // The form is what to do next.
    login.failure = Some(Failure { fix: None, ..why });
    login.sending = false;
    (state.dialog, state.help) = (None, false);
    state.link = Link::Opening;
    state.shelf.begin_anew();
    state.changed = true;
}

fn answered(state: &mut State, topic: &Topic, answer: Result<Answer>) {
    state.changed = true;
    match answer {
        Ok(answer) => {
            state.unanswered = 0;
            ended_jobs(state, topic, &answer);
            let again = state.known.learn(topic, answer, &state.filter.query);
            state.shelf.end(topic, state.now, None);
            if again {
                state.shelf.outdate(|it| it == topic);
            }
        }
        Err(failure) if is_stranger(&failure) => stranger(state, failure),
        Err(failure) => {
            if let Topic::Timeline(task) = topic
                && failure.kind != Kind::Unreachable
            {
                state.known.unsure.remove(task);
            }
            state.shelf.end(topic, state.now, Some(failure.clone()));
            if failure.kind == Kind::Unreachable {
                state.unanswered += 1;
                if state.unanswered >= SILENCE && matches!(state.link, Link::Live) {
                    deaf(state, failure);
                }
            }
        }
    }
}

/// The last lines of a job's log come with its end.
fn ended_jobs(state: &mut State, topic: &Topic, answer: &Answer) {
    let (Topic::Timeline(task), Answer::Timeline(timeline)) = (topic, answer) else { return };
    let Some(before) = state.known.timelines.get(task) else { return };
    let same = |job: &cynode_wire::timeline::JobEntry| before.jobs.contains(job);
    let others: Vec<_> =
        timeline.jobs.iter().filter(|job| !same(job)).map(|it| it.job_id).collect();
    state.shelf.outdate(|topic| matches!(topic, Topic::Log(job) if others.contains(job)));
}

fn logged_in(state: &mut State, result: Result<()>, wants: &mut Vec<Want>) {
    state.changed = true;
    match result {
        Ok(()) => {
            state.login = None;
            state.shelf.begin_anew();
            state.link = Link::Opening;
            wants.push(Want::Listen(None));
        }
        Err(failure) => {
            if let Some(login) = &mut state.login {
                (login.sending, login.failure) = (false, Some(failure));
            }
        }
    }
}

fn press(state: &mut State, mut key: KeyEvent, wants: &mut Vec<Want>) {
    // Over a slow link an escape and the letter after it come together, and look like one key.
    if key.modifiers.contains(KeyModifiers::ALT) && matches!(key.code, KeyCode::Char(_)) {
        press(state, KeyEvent::from(KeyCode::Esc), wants);
        key.modifiers.remove(KeyModifiers::ALT);
    }
    let command = keys::command(key);
    if command == Some(Command::Suspend) {
        return wants.push(Want::Suspend);
    }
    let control = !matches!(key.code, KeyCode::Char('q'));
    if command == Some(Command::Quit) && (control || state.size.is_too_small()) {
        return wants.push(Want::Quit);
    }
    if state.size.is_too_small() {
        return;
    }
    if state.login.is_some() {
        return moves::type_login(state, key, wants);
    }
    if state.dialog.is_some() {
        return deeds::press(state, key, wants);
    }
    if state.help {
        return moves::read_help(state, command);
    }
    if state.filter.typing {
        return moves::type_filter(state, key);
    }
    if let Some(command) = command {
        obey(state, command, wants);
    }
}

fn obey(state: &mut State, command: Command, wants: &mut Vec<Want>) {
    match command {
        Command::Quit => wants.push(Want::Quit),
        Command::Help => state.help = true,
        Command::Refresh => {
            state.shelf.begin_anew();
            wants.push(Want::Clear);
        }
        Command::Filter => moves::begin_filter(state),
        Command::Approve
        | Command::Deny
        | Command::Pause
        | Command::Resume
        | Command::Revise
        | Command::Cancel
        | Command::Merge => deeds::begin(state, command),
        _ => moves::go(state, command),
    }
}

/// How many lines the wheel turns at once.
const WHEEL: isize = 3;

fn point(state: &mut State, mouse: MouseEvent, wants: &mut Vec<Want>) {
    if state.size.is_too_small() {
        return;
    }
    let place = Position::new(mouse.column, mouse.row);
    let hits = state.drawn.hits.iter().rev();
    let hit = hits.filter(|(area, _)| area.contains(place)).map(|(_, hit)| *hit).next();
    let Some(hit) = hit else { return };
    let over = state.dialog.is_some() || state.help || state.login.is_some();
    let on_top =
        matches!(hit, Hit::Yes | Hit::No | Hit::Field(_) | Hit::Area(Place::Dialog | Place::Help));
    if over && !on_top {
        return;
    }
    state.changed = true;
    match mouse.kind {
        MouseEventKind::Down(MouseButton::Left) => match hit {
            Hit::Yes => deeds::confirm(state, wants),
            Hit::No => state.dialog = None,
            other => moves::click(state, other),
        },
        MouseEventKind::ScrollDown => moves::wheel(state, hit, WHEEL),
        MouseEventKind::ScrollUp => moves::wheel(state, hit, -WHEEL),
        _ => {}
    }
}

/// Which side keys are for when the terminal has room for both or one.
impl State {
    /// Goes to the list.
    fn list(&mut self) {
        self.focus = Focus::List;
    }

    /// What is in sight stays chosen, whatever comes before it.
    fn hold(&mut self) {
        if self.task.is_none() {
            self.task = self.chosen_task().map(|task| task.id);
        }
        if self.pane == Pane::Inbox {
            self.item = self.chosen_item();
        }
    }

    /// Something else is chosen.
    fn chose(&mut self) {
        self.chosen_at = self.now;
        for place in [
            Place::Item,
            Place::Node,
            Place::Plan,
            Place::Timeline,
            Place::Jobs,
            Place::Log,
            Place::Files,
            Place::Diff,
            Place::Evidence,
        ] {
            self.offsets.remove(&place);
        }
        (self.unit, self.job, self.file, self.follow) = (None, None, None, true);
    }
}

/// The size that a terminal is taken to have while it has not told.
pub(super) const UNTOLD: Size = Size { width: 80, height: 24 };
