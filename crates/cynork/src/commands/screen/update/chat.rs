//! The conversation with the project manager.

use cynode_core::ids::ProjectId;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use serde_json::json;

use super::super::{
    message::ScreenEffect,
    state::{ChatSpeaker, Focus, Pane, ScreenState, ScrollArea},
};
use super::navigation;
use crate::failure::Result;

/// Opens the pane and focuses its input.
pub(super) fn open_chat(state: &mut ScreenState, project: Option<ProjectId>) {
    let project = project.or(state.chat.project).or_else(|| state.default_project());
    if project != state.chat.project && !state.chat.sending {
        // Another project has another conversation.
        (state.chat.turns, state.chat.failure) = (Vec::new(), None);
        state.chat.project = project;
    }
    navigation::switch_to_pane(state, Pane::Chat);
    state.focus = Focus::Detail;
}

/// Handles a key in the input.
pub(super) fn handle_chat_key(
    state: &mut ScreenState,
    key: KeyEvent,
    wants: &mut Vec<ScreenEffect>,
) {
    match key.code {
        KeyCode::Esc if state.chat.sending => stop_answer(state, wants),
        KeyCode::Esc => state.focus = Focus::List,
        KeyCode::Enter => send_message(state, wants),
        KeyCode::PageUp | KeyCode::PageDown => {
            let by = if key.code == KeyCode::PageDown { 5 } else { -5 };
            navigation::scroll_by(state, ScrollArea::Chat, by);
        }
        KeyCode::Tab => navigation::switch_to_pane(state, Pane::Tasks),
        _ => {
            state.chat.input.handle_key(key);
        }
    }
}

fn send_message(state: &mut ScreenState, wants: &mut Vec<ScreenEffect>) {
    let text = state.chat.input.as_str().trim().to_owned();
    if state.chat.sending || text.is_empty() {
        return;
    }
    state.chat.input.take_text();
    // A question without an answer is not sent along with the next one.
    if state.chat.turns.last().is_some_and(|(speaker, _)| *speaker == ChatSpeaker::Person) {
        state.chat.turns.pop();
    }
    state.chat.turns.push((ChatSpeaker::Person, text));
    let messages = state.chat.turns.iter().map(|(speaker, text)| {
        let role = match speaker {
            ChatSpeaker::Person => "user",
            ChatSpeaker::Manager => "assistant",
        };
        json!({ "role": role, "content": text })
    });
    let messages = messages.collect();
    state.attempts += 1;
    (state.chat.number, state.chat.sending, state.chat.failure) = (state.attempts, true, None);
    state.follow = true;
    state.offsets.remove(&ScrollArea::Chat);
    let project = state.chat.project;
    wants.push(ScreenEffect::Ask { number: state.attempts, project, messages });
}

/// Cancels an answer: it is removed from the conversation.
fn stop_answer(state: &mut ScreenState, wants: &mut Vec<ScreenEffect>) {
    state.chat.sending = false;
    state.chat.turns.pop_if(|(speaker, _)| *speaker == ChatSpeaker::Manager);
    state.show_note("stopped: what was asked is not sent along with the next question", false);
    wants.push(ScreenEffect::StopAsking);
}

/// Handles a chunk of an answer, its end, or its failure.
pub(super) fn handle_reply(state: &mut ScreenState, number: u64, result: Result<Option<String>>) {
    state.changed = true;
    let chat = &mut state.chat;
    if !chat.sending || chat.number != number {
        return;
    }
    match result {
        Ok(Some(words)) => match chat.turns.last_mut() {
            Some((ChatSpeaker::Manager, text)) => text.push_str(&words),
            _ => chat.turns.push((ChatSpeaker::Manager, words)),
        },
        Ok(None) => chat.sending = false,
        Err(failure) => {
            // An incomplete answer is removed.
            chat.turns.pop_if(|(speaker, _)| *speaker == ChatSpeaker::Manager);
            (chat.sending, chat.failure) = (false, Some(failure));
        }
    }
}
