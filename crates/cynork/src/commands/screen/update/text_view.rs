//! Text views: search, horizontal scrolling, external viewers.

use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::super::{
    input::LineInput,
    message::{ExternalViewer, ScreenEffect, ViewerContent},
    state::{Pane, ScreenState, ScrollArea, SearchDirection, TaskPart},
    view,
};

/// Number of cells that `<` and `>` scroll.
const SHIFT_CELLS: usize = 16;

/// Opens the search input.
pub(super) fn begin_search(state: &mut ScreenState) {
    state.search.input = LineInput::default();
    state.search.typing = true;
}

/// Handles a key in the search input.
pub(super) fn handle_search_key(state: &mut ScreenState, key: KeyEvent) {
    match key.code {
        KeyCode::Enter => {
            state.search.typing = false;
            state.found = None;
            state.seek = (!state.search.input.as_str().is_empty()).then_some(SearchDirection::Here);
        }
        KeyCode::Esc => (state.search.input, state.search.typing) = (LineInput::default(), false),
        _ => {
            state.search.input.handle_key(key);
        }
    }
}

/// Goes to the next or previous match.
pub(super) fn go_to_match(state: &mut ScreenState, seek: SearchDirection) {
    if state.visible_text_area().is_none() {
        state.show_note("n and N go through what / found in a log, a diff or a timeline", false);
    } else if state.search.input.as_str().is_empty() {
        state.show_note("search with / first", false);
    } else {
        state.seek = Some(seek);
    }
}

/// Resolves a pending search once the matches are known; it wraps around at the end.
pub(super) fn resolve_search(state: &mut ScreenState) {
    let Some(seek) = state.seek.take() else { return };
    let Some(place) = state.visible_text_area() else { return };
    state.changed = true;
    let top = state.drawn.tops.get(&place).copied().unwrap_or(0);
    let end = state.drawn.ends.get(&place).copied().unwrap_or(0);
    let page = page_lines(state, place);
    let in_sight = state.found.filter(|at| (top..top + page).contains(at));
    let from = in_sight.unwrap_or(top);
    let matches = &state.drawn.matches;
    let (next, other) = match seek {
        SearchDirection::Here => (matches.iter().find(|at| **at >= from), matches.first()),
        SearchDirection::Next => (matches.iter().find(|at| **at > from), matches.first()),
        SearchDirection::Previous => (matches.iter().rfind(|at| **at < from), matches.last()),
    };
    let Some(next) = next.or(other).copied() else {
        let text = state.search.input.as_str().to_owned();
        return state.show_note(format!("`{text}` is not in it"), false);
    };
    state.found = Some(next);
    state.follow = false;
    state.offsets.insert(place, top);
    if !(top..top + page).contains(&next) {
        state.offsets.insert(place, next.saturating_sub(page / 3).min(end));
    }
}

fn page_lines(state: &ScreenState, place: ScrollArea) -> usize {
    state.drawn.pages.get(&place).copied().unwrap_or(1)
}

/// Toggles line wrapping.
pub(super) fn toggle_wrap(state: &mut ScreenState) {
    state.wrap = !state.wrap;
    state.shift = 0;
    let words = if state.wrap {
        "long lines are wrapped"
    } else {
        "long lines are not wrapped: < and > scroll sideways"
    };
    state.show_note(words, true);
}

/// Scrolls horizontally.
pub(super) fn shift_sideways(state: &mut ScreenState, right: bool) {
    if state.visible_text_area().is_none() {
        return;
    }
    if state.wrap {
        toggle_wrap(state);
    }
    state.shift = if right {
        state.shift + SHIFT_CELLS.min(state.drawn.overflow)
    } else {
        state.shift.saturating_sub(SHIFT_CELLS)
    };
}

/// Opens the visible text in another program.
pub(super) fn open_in_viewer(
    state: &mut ScreenState,
    viewer: ExternalViewer,
    wants: &mut Vec<ScreenEffect>,
) {
    let content = match state.pane {
        Pane::PullRequests => state.chosen_pull_request().map(|pull| ViewerContent::Diff(pull.id)),
        Pane::Tasks if state.shows_task() => match (state.part, state.pull_request()) {
            (TaskPart::Diff, Some(entry)) => Some(ViewerContent::Diff(entry.id)),
            (TaskPart::Diff, None) => {
                let work = state.task.and_then(|task| state.known.works.get(&task)?.as_ref());
                work.map(|work| ViewerContent::Text("diff", work.diff.text.clone()))
            }
            _ => view::part_text(state).map(|text| ViewerContent::Text("txt", text)),
        },
        _ => None,
    };
    match content {
        Some(content) => wants.push(ScreenEffect::Show(viewer, content)),
        None => {
            state.show_note("open a task first: its plan, timeline, logs, diff or evidence", false);
        }
    }
}
