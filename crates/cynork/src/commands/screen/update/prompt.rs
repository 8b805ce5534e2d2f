//! Input of the command prompt.

use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{
    super::{
        input::LineInput,
        keys::KeyCommand,
        message::ScreenEffect,
        prompt::{self, ParsedPrompt, PromptAction},
        state::{Pane, ScreenState},
    },
    actions, chat, navigation, task_form,
};

/// Handles a key in the prompt.
pub(super) fn handle_prompt_key(
    state: &mut ScreenState,
    key: KeyEvent,
    wants: &mut Vec<ScreenEffect>,
) {
    let Some(input) = &mut state.prompt else { return };
    match key.code {
        KeyCode::Esc => state.prompt = None,
        // Deleting the colon closes the prompt.
        KeyCode::Backspace if input.as_str().is_empty() => state.prompt = None,
        KeyCode::Tab => {
            let line = input.as_str().to_owned();
            state.prompt = Some(LineInput::with_text(&prompt::complete_prompt(state, &line)));
        }
        KeyCode::Enter => {
            let line = input.take_text();
            state.prompt = None;
            if !line.trim().is_empty() {
                match prompt::parse_prompt(&line) {
                    Ok(typed) => run_prompt_command(state, typed, wants),
                    Err(why) => state.show_note(why, false),
                }
            }
        }
        _ => {
            input.handle_key(key);
        }
    }
}

fn run_prompt_command(
    state: &mut ScreenState,
    ParsedPrompt { action, argument }: ParsedPrompt,
    wants: &mut Vec<ScreenEffect>,
) {
    if action == PromptAction::Task {
        return show_task(state, &argument.unwrap_or_default());
    }
    let project = match argument.as_deref().map(|name| (name, state.known.find_project(name))) {
        None => None,
        Some((_, Some(id))) => Some(id),
        Some((name, None)) => {
            let names = state.known.projects.values().map(String::as_str);
            let near = prompt::nearest_match(name, names);
            let near = near.map_or(String::new(), |near| format!(" Did you mean {near}?"));
            return state.show_note(format!("there is no project {name}.{near}"), false);
        }
    };
    match action {
        PromptAction::Pane(Pane::Tasks) => match argument {
            Some(name) => navigation::list_project(state, &name),
            None => navigation::switch_to_pane(state, Pane::Tasks),
        },
        PromptAction::Pane(Pane::PullRequests) => {
            (state.scope, state.pull) = (project, None);
            navigation::switch_to_pane(state, Pane::PullRequests);
        }
        PromptAction::Pane(Pane::Chat) => chat::open_chat(state, project),
        PromptAction::Pane(pane) => navigation::switch_to_pane(state, pane),
        PromptAction::Part(part) => navigation::switch_to_part(state, part),
        PromptAction::New => task_form::open_form(state, project),
        PromptAction::Retry => actions::begin_action(state, KeyCommand::Retry),
        PromptAction::Help => state.help = true,
        PromptAction::Refresh => super::execute_command(state, KeyCommand::Refresh, wants),
        PromptAction::Quit => wants.push(ScreenEffect::Quit),
        PromptAction::Task => {}
    }
}

fn show_task(state: &mut ScreenState, name: &str) {
    let tasks = state.known.tasks.values().rev();
    let found = tasks.filter(|task| task.name.as_str() == name).map(|task| task.id).next();
    match found {
        Some(id) => navigation::show_task(state, id),
        None => state.show_note(format!("there is no task {name} in the list"), false),
    }
}
