//! The form of a new task.

use cynode_core::budget::{Amount, Budget};
use cynode_wire::tasks::TaskView;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::super::{
    cache::FetchTopic,
    input::LineInput,
    message::ScreenEffect,
    prompt,
    state::{ScreenState, TaskForm},
};
use super::navigation;
use crate::{
    commands::task::TaskDraft,
    failure::{CliError, Result},
    input,
};

/// Opens the form, optionally for a project.
pub(super) fn open_form(state: &mut ScreenState, project: Option<cynode_core::ids::ProjectId>) {
    let project = project.or_else(|| state.default_project());
    let name = project.map(|id| state.known.project_name(id)).unwrap_or_default();
    state.attempts += 1;
    state.form = Some(TaskForm::new(&name, state.attempts));
}

/// Handles a key in the form.
pub(super) fn handle_form_key(
    state: &mut ScreenState,
    key: KeyEvent,
    wants: &mut Vec<ScreenEffect>,
) {
    let names: Vec<String> = state.known.projects.values().cloned().collect();
    let Some(form) = &mut state.form else { return };
    if form.sending {
        if key.code == KeyCode::Esc {
            state.form = None;
        }
        return;
    }
    let count = form.field_count();
    match key.code {
        KeyCode::Esc => state.form = None,
        KeyCode::Tab if form.field == 0 && complete_project(&mut form.project, &names) => {}
        KeyCode::Tab | KeyCode::Down => form.field = (form.field + 1) % count,
        KeyCode::BackTab | KeyCode::Up => form.field = (form.field + count - 1) % count,
        KeyCode::Enter if form.field + 1 < count => form.field += 1,
        KeyCode::Enter => submit_form(state, wants),
        _ => {
            let before = form.active_field().clone();
            form.active_field().handle_key(key);
            if before != *form.active_field() {
                form.failure = None;
                form.normalize_checks();
                // Different content is a different attempt.
                state.attempts += 1;
                if let Some(form) = &mut state.form {
                    form.number = state.attempts;
                }
            }
        }
    }
}

/// Completes the name of a project. Returns whether there was something to complete.
fn complete_project(input: &mut LineInput, names: &[String]) -> bool {
    let begun = input.as_str().to_owned();
    let mut fits = names.iter().filter(|name| name.starts_with(&begun) && **name != begun);
    match (fits.next(), fits.next()) {
        (Some(one), None) => {
            *input = LineInput::with_text(one);
            true
        }
        _ => false,
    }
}

/// Submits the form.
pub(super) fn submit_form(state: &mut ScreenState, wants: &mut Vec<ScreenEffect>) {
    let Some(form) = &state.form else { return };
    if form.sending {
        return;
    }
    let asked = build_create_task(state, form);
    let Some(form) = &mut state.form else { return };
    match asked {
        Ok(body) => {
            (form.sending, form.failure) = (true, None);
            let (number, key) = (form.number, format!("{}-{}", state.seed, form.number));
            wants.push(ScreenEffect::Create { number, key, ended: None, body: Box::new(body) });
        }
        Err((field, failure)) => (form.field, form.failure) = (field, Some(failure)),
    }
}

/// Builds the request, or returns the invalid field and the reason.
fn build_create_task(
    state: &ScreenState,
    form: &TaskForm,
) -> Result<cynode_wire::tasks::CreateTask, (usize, CliError)> {
    let name = form.project.as_str().trim();
    let project = state.known.find_project(name).ok_or_else(|| {
        let names = state.known.projects.values().map(String::as_str);
        let near = prompt::nearest_match(name, names);
        let near = near.map_or(String::new(), |near| format!(" Did you mean {near}?"));
        let what = if name.is_empty() {
            "which project?".to_owned()
        } else {
            format!("there is no project {name}.{near}")
        };
        let failure = CliError::invalid_input(what);
        (0, failure.with_fix("`cynork run` in a repository makes a project for it"))
    })?;
    let text = form.budget.as_str().trim();
    let max_cost_micros = if text.is_empty() {
        None
    } else {
        let amount = input::parse_money(text)
            .and_then(|micros| Amount::try_from(micros).map_err(|error| error.to_string()));
        Some(amount.map_err(|why| (form.field_count() - 1, CliError::invalid_input(why)))?)
    };
    let checks = form.checks.iter().map(|check| check.as_str().trim());
    let checks: Vec<&str> = checks.filter(|check| !check.is_empty()).collect();
    let budget = Budget { max_cost_micros, max_tokens: None };
    let wanted = TaskDraft::from_words(form.words.as_str(), &checks, budget);
    Ok(wanted.map_err(|failure| (1, failure))?.into_create_task(project, Vec::new()))
}

/// Handles the result of the request.
pub(super) fn handle_created(state: &mut ScreenState, number: u64, result: Result<Box<TaskView>>) {
    state.changed = true;
    match result {
        Ok(task) => {
            state.form.take_if(|form| form.number == number);
            state.dialog.take_if(|dialog| dialog.number == number);
            state
                .shelf
                .mark_stale(|topic| matches!(topic, FetchTopic::Tasks(_) | FetchTopic::Running));
            let (id, name) = (task.id, task.name.as_str().to_owned());
            state.known.add_created_task(*task);
            navigation::show_task(state, id);
            state.show_note(format!("{name} was accepted"), true);
        }
        Err(failure) => {
            let form = state.form.as_mut().filter(|form| form.number == number);
            let dialog = state.dialog.as_mut().filter(|dialog| dialog.number == number);
            if let Some(form) = form {
                (form.sending, form.failure) = (false, Some(failure));
            } else if let Some(dialog) = dialog {
                (dialog.sending, dialog.failure) = (false, Some(failure));
            } else {
                state.show_note(failure.detail, false);
            }
        }
    }
}
