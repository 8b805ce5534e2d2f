//! Navigation: selection, scrolling, text inputs.

use cynode_core::ids::TaskId;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{
    super::{
        input::LineInput,
        keys::KeyCommand,
        message::ScreenEffect,
        state::{ClickTarget, Focus, Pane, ScreenState, ScrollArea, TaskPart},
        store::InboxItem,
    },
    actions,
};

/// Handles pasted text in the active input.
pub(super) fn paste_text(state: &mut ScreenState, text: &str) {
    if let Some(login) = &mut state.login {
        if login.sending {
            return;
        }
        let field = if login.field == 0 { &mut login.handle } else { &mut login.password };
        field.insert_text(text.trim_end_matches(['\r', '\n']));
    } else if state.dialog.is_some() {
        actions::edit_words(state, |input| input.insert_text(text));
    } else if let Some(form) = &mut state.form {
        if !form.sending {
            form.active_field().insert_text(text);
            form.normalize_checks();
        }
    } else if let Some(prompt) = &mut state.prompt {
        prompt.insert_text(text);
    } else if state.filter.typing {
        state.filter.input.insert_text(text);
    } else if state.search.typing {
        state.search.input.insert_text(text);
    } else if state.pane == Pane::Chat && state.focus == Focus::Detail {
        state.chat.input.insert_text(text);
    }
}

/// Handles a key in the login form.
pub(super) fn handle_login_key(
    state: &mut ScreenState,
    key: KeyEvent,
    wants: &mut Vec<ScreenEffect>,
) {
    let Some(login) = &mut state.login else { return };
    if login.sending {
        return;
    }
    match key.code {
        KeyCode::Esc => wants.push(ScreenEffect::Quit),
        KeyCode::Tab | KeyCode::BackTab | KeyCode::Down | KeyCode::Up => login.field ^= 1,
        KeyCode::Enter if login.field == 0 => login.field = 1,
        KeyCode::Enter => {
            let handle = login.handle.as_str().trim().to_owned();
            if handle.is_empty() {
                login.field = 0;
                return;
            }
            login.sending = true;
            login.failure = None;
            let password = login.password.take_text().into();
            wants.push(ScreenEffect::LogIn { handle, password });
        }
        _ => {
            let field = if login.field == 0 { &mut login.handle } else { &mut login.password };
            field.handle_key(key);
        }
    }
}

/// Opens the filter input.
pub(super) fn begin_filter(state: &mut ScreenState) {
    switch_to_pane(state, Pane::Tasks);
    state.filter.typing = true;
}

/// Handles a key in the filter input.
pub(super) fn handle_filter_key(state: &mut ScreenState, key: KeyEvent) {
    match key.code {
        KeyCode::Enter => state.filter.typing = false,
        KeyCode::Esc => {
            state.filter.input = LineInput::default();
            state.filter.typing = false;
        }
        KeyCode::Down | KeyCode::Up => {
            state.filter.typing = false;
            execute_navigation(
                state,
                if key.code == KeyCode::Down { KeyCommand::Down } else { KeyCommand::Up },
            );
        }
        _ => {
            state.filter.input.handle_key(key);
            // The selected task may not be listed any more.
            state.task = None;
            state.offsets.remove(&ScrollArea::Tasks);
            state.on_selection_change();
        }
    }
    apply_filter(state);
}

/// Lists the tasks of one project.
pub(super) fn list_project(state: &mut ScreenState, project: &str) {
    switch_to_pane(state, Pane::Tasks);
    state.filter.input = LineInput::with_text(&format!("project:{project}"));
    state.filter.typing = false;
    state.task = None;
    state.offsets.remove(&ScrollArea::Tasks);
    state.on_selection_change();
    apply_filter(state);
}

/// Applies the filter; requests a new list if the server's part changed.
fn apply_filter(state: &mut ScreenState) {
    if !state.filter.typing && state.filter.query != state.filter.server_query() {
        state.filter.query = state.filter.server_query();
        state.known.listed.clear();
        state.known.more = None;
        state.shelf.evict_topics(|topic| {
            matches!(topic, super::FetchTopic::Tasks(_) | super::FetchTopic::More(..))
        });
    }
}

/// Handles a key while the help is open.
pub(super) fn handle_help_key(state: &mut ScreenState, command: Option<KeyCommand>) {
    match command {
        Some(KeyCommand::Down | KeyCommand::Up | KeyCommand::PageDown | KeyCommand::PageUp) => {
            scroll_by(
                state,
                ScrollArea::Help,
                command.map_or(0, |it| scroll_steps(state, ScrollArea::Help, it)),
            );
        }
        _ => {
            state.help = false;
            state.offsets.remove(&ScrollArea::Help);
        }
    }
}

/// Returns the step size of a command in an area.
fn scroll_steps(state: &ScreenState, place: ScrollArea, command: KeyCommand) -> isize {
    let page = state.drawn.pages.get(&place).copied().unwrap_or(10);
    let page = isize::try_from(page.saturating_sub(1).max(1)).unwrap_or(1);
    match command {
        KeyCommand::Down => 1,
        KeyCommand::Up => -1,
        KeyCommand::PageDown => page,
        KeyCommand::PageUp => -page,
        KeyCommand::First => isize::MIN / 2,
        KeyCommand::Last => isize::MAX / 2,
        _ => 0,
    }
}

/// Scrolls an area within its bounds.
pub(super) fn scroll_by(state: &mut ScreenState, place: ScrollArea, by: isize) {
    let end = state.drawn.ends.get(&place).copied().unwrap_or(0);
    let to = state.scroll_offset(place).saturating_add_signed(by).min(end);
    state.offsets.insert(place, to);
    if place == ScrollArea::Log {
        state.follow = to >= end && by > 0;
    }
}

/// Returns the item at some distance from the selected one.
fn next_of<T: Clone + PartialEq>(all: &[T], chosen: Option<&T>, by: isize) -> Option<T> {
    let at = all.iter().position(|it| Some(it) == chosen).unwrap_or(0);
    all.get(offset_index(at, by, all.len())).cloned()
}

/// Moves an index within the bounds of a list.
fn offset_index(at: usize, by: isize, count: usize) -> usize {
    at.saturating_add_signed(by).min(count.saturating_sub(1))
}

pub(super) fn execute_navigation(state: &mut ScreenState, command: KeyCommand) {
    match command {
        KeyCommand::Down
        | KeyCommand::Up
        | KeyCommand::PageDown
        | KeyCommand::PageUp
        | KeyCommand::First
        | KeyCommand::Last => {
            let place = focused_area(state);
            let by = scroll_steps(state, place, command);
            move_selection(state, place, by);
        }
        KeyCommand::Open => open_selection(state),
        KeyCommand::Back => go_back(state),
        KeyCommand::Left | KeyCommand::Right => cycle_part(state, command == KeyCommand::Right),
        KeyCommand::NextPane | KeyCommand::LastPane => {
            cycle_pane(state, command == KeyCommand::NextPane);
        }
        KeyCommand::Pane(pane) => switch_to_pane(state, pane),
        KeyCommand::Part(part) => switch_to_part(state, part),
        KeyCommand::Earlier | KeyCommand::Later => {
            let by = if command == KeyCommand::Later { 1 } else { -1 };
            match (state.pane, state.part) {
                (Pane::Tasks, TaskPart::Logs) => move_selection(state, ScrollArea::Jobs, by),
                (Pane::Tasks, TaskPart::Diff) => move_selection(state, ScrollArea::Files, by),
                _ => {}
            }
        }
        KeyCommand::Follow => {
            state.follow = !state.follow;
        }
        KeyCommand::GoToTask => go_to_item_task(state),
        _ => {}
    }
}

/// Returns the focused area.
fn focused_area(state: &ScreenState) -> ScrollArea {
    match (state.pane, state.focus) {
        (Pane::Tasks, Focus::List) => ScrollArea::Tasks,
        (Pane::Tasks, Focus::Detail) => state.part.scroll_area(),
        (Pane::Inbox, Focus::List) => ScrollArea::Inbox,
        (Pane::Inbox, Focus::Detail) => ScrollArea::Item,
        (Pane::Nodes, Focus::List) => ScrollArea::Nodes,
        (Pane::Nodes, Focus::Detail) => ScrollArea::Node,
        (Pane::Spend, Focus::List) => ScrollArea::Spend,
        (Pane::Spend, Focus::Detail) => ScrollArea::Budgets,
        (Pane::Projects, Focus::List) => ScrollArea::Projects,
        (Pane::Projects, Focus::Detail) => ScrollArea::Project,
        (Pane::PullRequests, Focus::List) => ScrollArea::PullRequests,
        (Pane::PullRequests, Focus::Detail) => ScrollArea::PullRequest,
        (Pane::Models, Focus::List) => ScrollArea::Models,
        (Pane::Models, Focus::Detail) => ScrollArea::Model,
        (Pane::Chat, _) => ScrollArea::Chat,
    }
}

/// Moves the selection in a list, or scrolls a text.
fn move_selection(state: &mut ScreenState, place: ScrollArea, by: isize) {
    match place {
        ScrollArea::Tasks => {
            let ids: Vec<_> = state.listed_tasks().iter().map(|task| task.id).collect();
            let at = ids.iter().position(|id| Some(*id) == state.task).unwrap_or(0);
            let next = ids.get(offset_index(at, by, ids.len())).copied();
            if next != state.task {
                state.task = next;
                state.on_selection_change();
            }
        }
        ScrollArea::Inbox => {
            let items = state.inbox_items();
            let at = items.iter().position(|it| Some(*it) == state.chosen_item()).unwrap_or(0);
            let next = items.get(offset_index(at, by, items.len())).copied();
            if next != state.item {
                state.item = next;
                state.on_selection_change();
            }
        }
        ScrollArea::Nodes => {
            let ids: Vec<_> = state.known.nodes.iter().map(|node| node.node_id).collect();
            let chosen = state.chosen_node().map(|node| node.node_id);
            let at = ids.iter().position(|id| Some(*id) == chosen).unwrap_or(0);
            state.node = ids.get(offset_index(at, by, ids.len())).copied();
            state.offsets.remove(&ScrollArea::Node);
        }
        ScrollArea::Projects => {
            let ids: Vec<_> = state.known.project_views.iter().map(|it| it.id).collect();
            let chosen = state.chosen_project().map(|it| it.id);
            state.project = next_of(&ids, chosen.as_ref(), by);
            state.on_selection_change();
        }
        ScrollArea::PullRequests => {
            let ids: Vec<_> = state.known.pulls.iter().map(|it| it.id).collect();
            let chosen = state.chosen_pull_request().map(|it| it.id);
            state.pull = next_of(&ids, chosen.as_ref(), by);
            state.on_selection_change();
        }
        ScrollArea::Models => {
            let ids: Vec<_> = state.known.models.iter().map(|it| it.id.clone()).collect();
            let chosen = state.chosen_model().map(|it| it.id.clone());
            state.model = next_of(&ids, chosen.as_ref(), by);
            state.on_selection_change();
        }
        ScrollArea::Plan => {
            let Some(keys) = state.chosen_timeline().map(|it| &it.units) else { return };
            if keys.is_empty() {
                return scroll_by(state, place, by);
            }
            let keys: Vec<_> = keys.iter().map(|unit| unit.key.clone()).collect();
            let at = state.chosen_unit().unwrap_or(0);
            state.unit = keys.get(offset_index(at, by, keys.len())).cloned();
        }
        ScrollArea::Jobs => {
            let chosen = state.chosen_job().map(|job| job.job_id);
            let Some(jobs) = state.chosen_timeline().map(|it| &it.jobs) else { return };
            let at = jobs.iter().position(|job| Some(job.job_id) == chosen).unwrap_or(0);
            let next = jobs.get(offset_index(at, by, jobs.len())).map(|job| job.job_id);
            (state.job, state.follow) = (next, true);
            state.offsets.remove(&ScrollArea::Log);
        }
        ScrollArea::Files => {
            let Some(entry) = state.pull_request() else { return };
            let Some(files) = state.known.files.get(&entry.id) else { return };
            let chosen = state.chosen_file();
            let at = files.files.iter().position(|it| Some(it.path.as_str()) == chosen);
            let next = offset_index(at.unwrap_or(0), by, files.files.len());
            state.file = files.files.get(next).map(|file| file.path.clone());
            state.offsets.remove(&ScrollArea::Diff);
        }
        _ => scroll_by(state, place, by),
    }
}

fn open_selection(state: &mut ScreenState) {
    match state.pane {
        Pane::Tasks
        | Pane::Inbox
        | Pane::Nodes
        | Pane::PullRequests
        | Pane::Models
        | Pane::Chat => state.focus = Focus::Detail,
        Pane::Projects => {
            if let Some(project) = state.chosen_project().map(|it| it.slug.as_str().to_owned()) {
                list_project(state, &project);
            }
        }
        // In a narrow terminal it is one column.
        Pane::Spend if state.size.is_wide() => state.focus = Focus::Detail,
        Pane::Spend => {}
    }
}

fn go_back(state: &mut ScreenState) {
    if state.focus == Focus::Detail {
        state.focus_list();
    } else if state.pane == Pane::Tasks && !state.filter.input.as_str().is_empty() {
        state.filter.typing = true;
        handle_filter_key(state, KeyEvent::from(KeyCode::Esc));
    } else if state.pane != Pane::Tasks {
        switch_to_pane(state, Pane::Tasks);
    }
}

/// Returns the next or previous item, cyclically.
fn cycle_item<T: Copy + PartialEq>(all: &[T], one: T, next: bool) -> T {
    let at = all.iter().position(|it| *it == one).unwrap_or(0);
    let to = if next { at + 1 } else { at + all.len() - 1 };
    all.get(to % all.len()).copied().unwrap_or(one)
}

fn cycle_part(state: &mut ScreenState, next: bool) {
    match state.pane {
        Pane::Tasks if state.shows_task() => {
            state.part = cycle_item(&TaskPart::ALL, state.part, next);
        }
        _ => switch_to_pane(state, cycle_item(&Pane::ALL, state.pane, next)),
    }
}

fn cycle_pane(state: &mut ScreenState, next: bool) {
    if state.pane == Pane::Tasks && state.focus == Focus::Detail {
        state.part = cycle_item(&TaskPart::ALL, state.part, next);
    } else {
        switch_to_pane(state, cycle_item(&Pane::ALL, state.pane, next));
    }
}

pub(super) fn switch_to_pane(state: &mut ScreenState, pane: Pane) {
    if state.pane != pane {
        state.pane = pane;
        state.chosen_at = state.now - time::Duration::seconds(1);
    }
    state.focus_list();
}

pub(super) fn switch_to_part(state: &mut ScreenState, part: TaskPart) {
    // The part belongs to the visible task, or to the selected one.
    state.pane = Pane::Tasks;
    state.part = part;
    if !state.size.is_wide() {
        state.focus = Focus::Detail;
    }
}

/// Goes from an inbox item or a pull request to its task.
fn go_to_item_task(state: &mut ScreenState) {
    let task = match (state.pane, state.chosen_item()) {
        (Pane::PullRequests, _) => state.chosen_pull_request().map(|pull| pull.task_id),
        (Pane::Inbox, Some(InboxItem::Call(id))) => {
            let call = state.known.approvals.iter().find(|it| it.approval_id == id);
            call.and_then(|call| call.task_id)
        }
        (Pane::Inbox, other) => other.and_then(InboxItem::waiting_task),
        _ => return,
    };
    match task.filter(|id| state.known.tasks.contains_key(id)) {
        Some(id) => show_task(state, id),
        None => state.show_note("that task is not known here yet: / in the tasks finds it", false),
    }
}

/// Shows one task.
pub(super) fn show_task(state: &mut ScreenState, id: TaskId) {
    state.task = Some(id);
    state.on_selection_change();
    state.pane = Pane::Tasks;
    state.focus = Focus::Detail;
}

/// Handles a click.
pub(super) fn handle_click(state: &mut ScreenState, hit: ClickTarget) {
    match hit {
        ClickTarget::Pane(pane) => switch_to_pane(state, pane),
        ClickTarget::Part(part) => switch_to_part(state, part),
        ClickTarget::Help => state.help = true,
        ClickTarget::Field(field) => {
            if let Some(form) = &mut state.form {
                form.field = field;
            } else if let Some(login) = &mut state.login {
                login.field = field;
            }
        }
        ClickTarget::Row(place, row) => select_row(state, place, row),
        ClickTarget::Area(place) => focus_area(state, place),
        ClickTarget::Yes | ClickTarget::No => {}
    }
}

/// Focuses the clicked area.
fn focus_area(state: &mut ScreenState, place: ScrollArea) {
    match place {
        ScrollArea::Tasks
        | ScrollArea::Inbox
        | ScrollArea::Nodes
        | ScrollArea::Spend
        | ScrollArea::Projects
        | ScrollArea::PullRequests
        | ScrollArea::Models => state.focus_list(),
        ScrollArea::Help => state.help = false,
        ScrollArea::Dialog => {}
        _ => state.focus = Focus::Detail,
    }
}

/// Selects a row; a second click opens it.
fn select_row(state: &mut ScreenState, place: ScrollArea, row: usize) {
    let row_of = |at: Option<usize>| {
        let by = isize::try_from(row).unwrap_or(0) - isize::try_from(at.unwrap_or(0)).unwrap_or(0);
        (by, by == 0)
    };
    match place {
        ScrollArea::Tasks => {
            let again = state.listed_tasks().get(row).map(|task| task.id);
            let same = again.is_some() && again == state.chosen_task().map(|task| task.id);
            if same && state.focus == Focus::List {
                state.task = again;
                return open_selection(state);
            }
            state.focus_list();
            state.task = again;
            state.on_selection_change();
        }
        ScrollArea::Inbox => {
            let item = state.inbox_items().get(row).copied();
            state.focus_list();
            if item != state.chosen_item() {
                state.item = item;
                state.on_selection_change();
            }
        }
        ScrollArea::Nodes => {
            state.node = state.known.nodes.get(row).map(|node| node.node_id);
            state.focus_list();
        }
        ScrollArea::Projects => {
            let id = state.known.project_views.get(row).map(|it| it.id);
            let again = id.is_some() && id == state.chosen_project().map(|it| it.id);
            state.project = id;
            if again && state.focus == Focus::List {
                return open_selection(state);
            }
            state.focus_list();
        }
        ScrollArea::PullRequests => {
            state.pull = state.known.pulls.get(row).map(|it| it.id);
            state.on_selection_change();
            state.focus_list();
        }
        ScrollArea::Models => {
            state.model = state.known.models.get(row).map(|it| it.id.clone());
            state.focus_list();
        }
        ScrollArea::Plan => {
            let key =
                state.chosen_timeline().and_then(|it| it.units.get(row)).map(|it| it.key.clone());
            (state.unit, state.focus) = (key, Focus::Detail);
        }
        ScrollArea::Jobs => {
            let chosen = state.chosen_job().map(|job| job.job_id);
            let jobs = state.chosen_timeline().map(|it| &it.jobs);
            let at = jobs.and_then(|it| it.iter().position(|job| Some(job.job_id) == chosen));
            move_selection(state, place, row_of(at).0);
            state.focus = Focus::Detail;
        }
        ScrollArea::Files => {
            let files = state.pull_request().and_then(|it| state.known.files.get(&it.id));
            let path = files.and_then(|it| it.files.get(row)).map(|file| file.path.clone());
            (state.file, state.focus) = (path, Focus::Detail);
            state.offsets.remove(&ScrollArea::Diff);
        }
        _ => {}
    }
}

/// Returns whether an area has selectable rows.
const fn is_list(place: ScrollArea) -> bool {
    matches!(
        place,
        ScrollArea::Tasks
            | ScrollArea::Inbox
            | ScrollArea::Nodes
            | ScrollArea::Projects
            | ScrollArea::PullRequests
            | ScrollArea::Models
    )
}

/// Handles the wheel over the area under the mouse.
pub(super) fn handle_wheel(state: &mut ScreenState, hit: ClickTarget, by: isize) {
    match hit {
        ClickTarget::Row(ScrollArea::Plan, _) | ClickTarget::Area(ScrollArea::Plan) => {
            scroll_by(state, ScrollArea::Plan, by);
        }
        ClickTarget::Row(place, _) | ClickTarget::Area(place) if is_list(place) => {
            move_selection(state, place, by.signum());
        }
        ClickTarget::Row(place @ (ScrollArea::Jobs | ScrollArea::Files), _) => {
            move_selection(state, place, by.signum());
        }
        ClickTarget::Row(place, _) | ClickTarget::Area(place) => scroll_by(state, place, by),
        _ => {}
    }
}
