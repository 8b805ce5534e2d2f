//! Going about: what is chosen, how far it is scrolled, what is typed.

use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{
    super::{
        input::Input,
        keys::Command,
        message::Want,
        state::{Focus, Hit, Pane, Part, Place, State},
    },
    deeds,
};

/// Takes a text that was pasted, where words are asked for.
pub(super) fn paste(state: &mut State, text: &str) {
    if let Some(login) = &mut state.login {
        if login.sending {
            return;
        }
        let field = if login.field == 0 { &mut login.handle } else { &mut login.password };
        field.put(text.trim_end_matches(['\r', '\n']));
    } else if state.dialog.is_some() {
        deeds::write(state, |input| input.put(text));
    } else if state.filter.typing {
        state.filter.input.put(text);
    }
}

/// A key while somebody logs in.
pub(super) fn type_login(state: &mut State, key: KeyEvent, wants: &mut Vec<Want>) {
    let Some(login) = &mut state.login else { return };
    if login.sending {
        return;
    }
    match key.code {
        KeyCode::Esc => wants.push(Want::Quit),
        KeyCode::Tab | KeyCode::BackTab | KeyCode::Down | KeyCode::Up => login.field ^= 1,
        KeyCode::Enter if login.field == 0 => login.field = 1,
        KeyCode::Enter => {
            let handle = login.handle.text().trim().to_owned();
            if handle.is_empty() {
                login.field = 0;
                return;
            }
            login.sending = true;
            login.failure = None;
            let password = login.password.take().into();
            wants.push(Want::LogIn { handle, password });
        }
        _ => {
            let field = if login.field == 0 { &mut login.handle } else { &mut login.password };
            field.press(key);
        }
    }
}

/// Begins to type what is looked for.
pub(super) fn begin_filter(state: &mut State) {
    to_pane(state, Pane::Tasks);
    state.filter.typing = true;
}

/// A key while it is typed.
pub(super) fn type_filter(state: &mut State, key: KeyEvent) {
    match key.code {
        KeyCode::Enter => state.filter.typing = false,
        KeyCode::Esc => {
            state.filter.input = Input::default();
            state.filter.typing = false;
        }
        KeyCode::Down | KeyCode::Up => {
            state.filter.typing = false;
            go(state, if key.code == KeyCode::Down { Command::Down } else { Command::Up });
        }
        _ => {
            state.filter.input.press(key);
            // What is chosen may not be in the list any more.
            state.task = None;
            state.offsets.remove(&Place::Tasks);
            state.chose();
        }
    }
    if !state.filter.typing && state.filter.query != state.filter.asked() {
        state.filter.query = state.filter.asked();
        state.known.listed.clear();
        state.known.more = None;
        state
            .shelf
            .forget(|topic| matches!(topic, super::Topic::Tasks(_) | super::Topic::More(..)));
    }
}

/// A key while the help is open.
pub(super) fn read_help(state: &mut State, command: Option<Command>) {
    match command {
        Some(Command::Down | Command::Up | Command::PageDown | Command::PageUp) => {
            scroll(state, Place::Help, command.map_or(0, |it| steps(state, Place::Help, it)));
        }
        _ => {
            state.help = false;
            state.offsets.remove(&Place::Help);
        }
    }
}

/// How far a command goes in a place.
fn steps(state: &State, place: Place, command: Command) -> isize {
    let page = state.drawn.pages.get(&place).copied().unwrap_or(10);
    let page = isize::try_from(page.saturating_sub(1).max(1)).unwrap_or(1);
    match command {
        Command::Down => 1,
        Command::Up => -1,
        Command::PageDown => page,
        Command::PageUp => -page,
        Command::First => isize::MIN / 2,
        Command::Last => isize::MAX / 2,
        _ => 0,
    }
}

/// Scrolls a place; not beyond what can be seen.
fn scroll(state: &mut State, place: Place, by: isize) {
    let end = state.drawn.ends.get(&place).copied().unwrap_or(0);
    let to = state.offset(place).saturating_add_signed(by).min(end);
    state.offsets.insert(place, to);
    if place == Place::Log {
        state.follow = to >= end && by > 0;
    }
}

/// A number moved by some steps, within a list.
fn moved(at: usize, by: isize, count: usize) -> usize {
    at.saturating_add_signed(by).min(count.saturating_sub(1))
}

pub(super) fn go(state: &mut State, command: Command) {
    match command {
        Command::Down
        | Command::Up
        | Command::PageDown
        | Command::PageUp
        | Command::First
        | Command::Last => {
            let place = here(state);
            let by = steps(state, place, command);
            step(state, place, by);
        }
        Command::Open => open(state),
        Command::Back => back(state),
        Command::Left | Command::Right => aside(state, command == Command::Right),
        Command::NextPane | Command::LastPane => turn(state, command == Command::NextPane),
        Command::Pane(pane) => to_pane(state, pane),
        Command::Part(part) => to_part(state, part),
        Command::Earlier | Command::Later => {
            let by = if command == Command::Later { 1 } else { -1 };
            match (state.pane, state.part) {
                (Pane::Tasks, Part::Logs) => step(state, Place::Jobs, by),
                (Pane::Tasks, Part::Diff) => step(state, Place::Files, by),
                _ => {}
            }
        }
        Command::Follow => {
            state.follow = !state.follow;
        }
        Command::GoToTask => to_task(state),
        _ => {}
    }
}

/// Where keys go.
fn here(state: &State) -> Place {
    match (state.pane, state.focus) {
        (Pane::Tasks, Focus::List) => Place::Tasks,
        (Pane::Tasks, Focus::Detail) => state.part.place(),
        (Pane::Inbox, Focus::List) => Place::Inbox,
        (Pane::Inbox, Focus::Detail) => Place::Item,
        (Pane::Nodes, Focus::List) => Place::Nodes,
        (Pane::Nodes, Focus::Detail) => Place::Node,
        (Pane::Spend, Focus::List) => Place::Spend,
        (Pane::Spend, Focus::Detail) => Place::Budgets,
    }
}

/// Chooses another row where there are rows, and scrolls where there are lines.
fn step(state: &mut State, place: Place, by: isize) {
    match place {
        Place::Tasks => {
            let ids: Vec<_> = state.listed().iter().map(|task| task.id).collect();
            let at = ids.iter().position(|id| Some(*id) == state.task).unwrap_or(0);
            let next = ids.get(moved(at, by, ids.len())).copied();
            if next != state.task {
                state.task = next;
                state.chose();
            }
        }
        Place::Inbox => {
            let items = state.inbox();
            let at = items.iter().position(|it| Some(*it) == state.chosen_item()).unwrap_or(0);
            let next = items.get(moved(at, by, items.len())).copied();
            if next != state.item {
                state.item = next;
                state.chose();
            }
        }
        Place::Nodes => {
            let ids: Vec<_> = state.known.nodes.iter().map(|node| node.node_id).collect();
            let chosen = state.chosen_node().map(|node| node.node_id);
            let at = ids.iter().position(|id| Some(*id) == chosen).unwrap_or(0);
            state.node = ids.get(moved(at, by, ids.len())).copied();
            state.offsets.remove(&Place::Node);
        }
        Place::Plan => {
            let Some(keys) = state.timeline().map(|it| &it.units) else { return };
            if keys.is_empty() {
                return scroll(state, place, by);
            }
            let keys: Vec<_> = keys.iter().map(|unit| unit.key.clone()).collect();
            let at = state.chosen_unit().unwrap_or(0);
            state.unit = keys.get(moved(at, by, keys.len())).cloned();
        }
        Place::Jobs => {
            let chosen = state.chosen_job().map(|job| job.job_id);
            let Some(jobs) = state.timeline().map(|it| &it.jobs) else { return };
            let at = jobs.iter().position(|job| Some(job.job_id) == chosen).unwrap_or(0);
            let next = jobs.get(moved(at, by, jobs.len())).map(|job| job.job_id);
            (state.job, state.follow) = (next, true);
            state.offsets.remove(&Place::Log);
        }
        Place::Files => {
            let Some(entry) = state.pull_request() else { return };
            let Some(files) = state.known.files.get(&entry.id) else { return };
            let chosen = state.chosen_file();
            let at = files.files.iter().position(|it| Some(it.path.as_str()) == chosen);
            let next = moved(at.unwrap_or(0), by, files.files.len());
            state.file = files.files.get(next).map(|file| file.path.clone());
            state.offsets.remove(&Place::Diff);
        }
        _ => scroll(state, place, by),
    }
}

fn open(state: &mut State) {
    match state.pane {
        Pane::Tasks | Pane::Inbox | Pane::Nodes => state.focus = Focus::Detail,
        // Elsewhere it is one column.
        Pane::Spend if state.size.is_wide() => state.focus = Focus::Detail,
        Pane::Spend => {}
    }
}

fn back(state: &mut State) {
    if state.focus == Focus::Detail {
        state.list();
    } else if state.pane == Pane::Tasks && !state.filter.input.text().is_empty() {
        state.filter.typing = true;
        type_filter(state, KeyEvent::from(KeyCode::Esc));
    } else if state.pane != Pane::Tasks {
        to_pane(state, Pane::Tasks);
    }
}

/// The next of some, or the one before; after the last comes the first.
fn beside<T: Copy + PartialEq>(all: &[T], one: T, next: bool) -> T {
    let at = all.iter().position(|it| *it == one).unwrap_or(0);
    let to = if next { at + 1 } else { at + all.len() - 1 };
    all.get(to % all.len()).copied().unwrap_or(one)
}

fn aside(state: &mut State, next: bool) {
    match state.pane {
        Pane::Tasks if state.shows_task() => state.part = beside(&Part::ALL, state.part, next),
        _ => to_pane(state, beside(&Pane::ALL, state.pane, next)),
    }
}

fn turn(state: &mut State, next: bool) {
    if state.pane == Pane::Tasks && state.focus == Focus::Detail {
        state.part = beside(&Part::ALL, state.part, next);
    } else {
        to_pane(state, beside(&Pane::ALL, state.pane, next));
    }
}

fn to_pane(state: &mut State, pane: Pane) {
    if state.pane != pane {
        state.pane = pane;
        state.chosen_at = state.now - time::Duration::seconds(1);
    }
    state.list();
}

fn to_part(state: &mut State, part: Part) {
    // Whoever asks for a part means the task in sight, or the one that is chosen.
    state.pane = Pane::Tasks;
    state.part = part;
    if !state.size.is_wide() {
        state.focus = Focus::Detail;
    }
}

/// From what waits to the task that waits.
fn to_task(state: &mut State) {
    if state.pane != Pane::Inbox {
        return;
    }
    let task = match state.chosen_item() {
        Some(super::super::known::Item::Call(id)) => {
            let call = state.known.approvals.iter().find(|it| it.approval_id == id);
            call.and_then(|call| call.task_id)
        }
        other => other.and_then(super::super::known::Item::task),
    };
    match task.filter(|id| state.known.tasks.contains_key(id)) {
        Some(id) => {
            state.task = Some(id);
            state.chose();
            state.pane = Pane::Tasks;
            state.focus = Focus::Detail;
        }
        None => state.tell("that task is not known here yet", false),
    }
}

/// A click.
pub(super) fn click(state: &mut State, hit: Hit) {
    match hit {
        Hit::Pane(pane) => to_pane(state, pane),
        Hit::Part(part) => to_part(state, part),
        Hit::Help => state.help = true,
        Hit::Field(field) => {
            if let Some(login) = &mut state.login {
                login.field = field;
            }
        }
        Hit::Row(place, row) => row_clicked(state, place, row),
        Hit::Area(place) => focus(state, place),
        Hit::Yes | Hit::No => {}
    }
}

/// Keys go to what was clicked.
fn focus(state: &mut State, place: Place) {
    match place {
        Place::Tasks | Place::Inbox | Place::Nodes | Place::Spend => state.list(),
        Place::Help => state.help = false,
        Place::Dialog => {}
        _ => state.focus = Focus::Detail,
    }
}

/// A row; clicked once more, it opens.
fn row_clicked(state: &mut State, place: Place, row: usize) {
    let row_of = |at: Option<usize>| {
        let by = isize::try_from(row).unwrap_or(0) - isize::try_from(at.unwrap_or(0)).unwrap_or(0);
        (by, by == 0)
    };
    match place {
        Place::Tasks => {
            let again = state.listed().get(row).map(|task| task.id);
            let same = again.is_some() && again == state.chosen_task().map(|task| task.id);
            if same && state.focus == Focus::List {
                state.task = again;
                return open(state);
            }
            state.list();
            state.task = again;
            state.chose();
        }
        Place::Inbox => {
            let item = state.inbox().get(row).copied();
            state.list();
            if item != state.chosen_item() {
                state.item = item;
                state.chose();
            }
        }
        Place::Nodes => {
            state.node = state.known.nodes.get(row).map(|node| node.node_id);
            state.list();
        }
        Place::Plan => {
            let key = state.timeline().and_then(|it| it.units.get(row)).map(|it| it.key.clone());
            (state.unit, state.focus) = (key, Focus::Detail);
        }
        Place::Jobs => {
            let chosen = state.chosen_job().map(|job| job.job_id);
            let jobs = state.timeline().map(|it| &it.jobs);
            let at = jobs.and_then(|it| it.iter().position(|job| Some(job.job_id) == chosen));
            step(state, place, row_of(at).0);
            state.focus = Focus::Detail;
        }
        Place::Files => {
            let files = state.pull_request().and_then(|it| state.known.files.get(&it.id));
            let path = files.and_then(|it| it.files.get(row)).map(|file| file.path.clone());
            (state.file, state.focus) = (path, Focus::Detail);
            state.offsets.remove(&Place::Diff);
        }
        _ => {}
    }
}

/// The wheel, over whatever the mouse is.
pub(super) fn wheel(state: &mut State, hit: Hit, by: isize) {
    match hit {
        Hit::Row(Place::Plan, _) | Hit::Area(Place::Plan) => scroll(state, Place::Plan, by),
        Hit::Row(place @ (Place::Tasks | Place::Inbox | Place::Nodes), _)
        | Hit::Area(place @ (Place::Tasks | Place::Inbox | Place::Nodes)) => {
            step(state, place, by.signum());
        }
        Hit::Row(place @ (Place::Jobs | Place::Files), _) => step(state, place, by.signum()),
        Hit::Row(place, _) | Hit::Area(place) => scroll(state, place, by),
        _ => {}
    }
}
