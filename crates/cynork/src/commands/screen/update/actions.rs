//! Actions on the installation: always after a confirmation with the exact content.

use cynode_core::{
    delivery::PullRequestState,
    tasks::TaskStateName,
    workflow::{instructions::InstructionKind, waits::WaitReason},
};
use cynode_wire::tasks::TaskView;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::super::{
    cache::FetchTopic,
    input::LineInput,
    keys::KeyCommand,
    message::ScreenEffect,
    state::{Dialog, DialogPurpose, Pane, ScreenAction, ScreenState, ScrollArea, TextRequirement},
    store::InboxItem,
    view,
};
use crate::{
    commands::task::{RetryAction, build_retry_task, retry_action},
    failure::{CliError, CliErrorKind, Result},
};

/// Opens the dialog of an action, or explains why it is not possible.
pub(super) fn begin_action(state: &mut ScreenState, command: KeyCommand) {
    let asked = match state.pane {
        Pane::Inbox => dialog_for_item(state, command),
        Pane::Tasks => dialog_for_task(state, command),
        Pane::PullRequests => dialog_for_pull_request(state, command),
        Pane::Nodes | Pane::Spend | Pane::Projects | Pane::Models | Pane::Chat => {
            Err("choose a task or something that waits first".to_owned())
        }
    };
    match asked {
        Ok(mut dialog) => {
            state.attempts += 1;
            dialog.number = state.attempts;
            state.offsets.remove(&ScrollArea::Dialog);
            state.dialog = Some(dialog);
        }
        Err(why) => state.show_note(why, false),
    }
}

fn action_dialog(deed: ScreenAction, question: &str, done: &str) -> Dialog {
    build_dialog(DialogPurpose::Act(deed), question, done)
}

fn build_dialog(purpose: DialogPurpose, question: &str, done: &str) -> Dialog {
    Dialog {
        purpose,
        question: question.to_owned(),
        body: Vec::new(),
        words: TextRequirement::None,
        input: LineInput::default(),
        about: None,
        number: 0,
        sending: false,
        failure: None,
        done: done.to_owned(),
    }
}

fn dialog_for_item(state: &ScreenState, command: KeyCommand) -> Result<Dialog, String> {
    let item = state.chosen_item().ok_or("nothing waits for you")?;
    let yes = match command {
        KeyCommand::Approve => true,
        KeyCommand::Deny => false,
        _ => return Err("a approves or answers, d denies, o goes to the task".to_owned()),
    };
    match item {
        InboxItem::Plan(task) | InboxItem::Question(task) => answer_dialog(state, task, yes),
        InboxItem::Call(id) => {
            let call = state.known.looked_at.get(&id);
            let call =
                call.ok_or("wait until it is shown: nobody says yes to what they do not see")?;
            let deed = ScreenAction::Decide { approval: id, yes };
            let (question, done) = if yes {
                ("May this call be made, once?", "the call may be made")
            } else {
                ("Refuse this call?", "the call was refused")
            };
            let body = view::call_lines(call);
            Ok(Dialog { body, ..action_dialog(deed, question, done) })
        }
    }
}

/// Returns the dialog for an approval, a rejection or an answer to a waiting task.
fn answer_dialog(
    state: &ScreenState,
    task: cynode_core::ids::TaskId,
    yes: bool,
) -> Result<Dialog, String> {
    let wait = state.known.waits.get(&task).ok_or("it does not wait for you any more")?;
    let about = Some(wait.id);
    let name = &wait.name;
    match (wait.reason, yes) {
        (WaitReason::Approval, true) => {
            let body = view::plan_summary(state, task);
            if body.is_empty() {
                return Err(match state.known.pending_plan(task) {
                    Some(None) => "there is no plan to be seen: nobody says yes to that",
                    _ => "wait until it is shown: nobody says yes to what they do not see",
                }
                .to_owned());
            }
            let question = format!("May {name} be carried out as planned?");
            let deed = ScreenAction::Approve { task, wait: wait.id, yes };
            Ok(Dialog { body, about, ..action_dialog(deed, &question, &format!("{name} goes on")) })
        }
        (WaitReason::Approval, false) => {
            let question = format!("Send the plan of {name} back? Say what should be different:");
            let done = format!("the plan of {name} was sent back");
            let deed = ScreenAction::Approve { task, wait: wait.id, yes };
            Ok(Dialog {
                words: TextRequirement::Optional,
                about,
                ..action_dialog(deed, &question, &done)
            })
        }
        (WaitReason::HumanInput, true) => {
            let body = wait
                .question
                .iter()
                .flat_map(|it| super::super::text::sanitize_lines(it))
                .collect();
            let question = format!("Your answer to {name}:");
            let done = format!("{name} has your answer");
            let deed = ScreenAction::Answer { task, wait: wait.id };
            Ok(Dialog {
                body,
                words: TextRequirement::Needed,
                about,
                ..action_dialog(deed, &question, &done)
            })
        }
        (WaitReason::HumanInput, false) => {
            Err("a question is answered with a; x in the tasks pane cancels the task".to_owned())
        }
        _ => Err(format!("{name} does not wait for an answer")),
    }
}

fn dialog_for_task(state: &ScreenState, command: KeyCommand) -> Result<Dialog, String> {
    let task = state.chosen_task().ok_or("there is no task")?;
    let (id, name) = (task.id, task.name.as_str());
    let lives = matches!(task.state, TaskStateName::Queued | TaskStateName::Running);
    if !matches!(command, KeyCommand::Merge | KeyCommand::Retry) && !lives {
        return Err(match task.state {
            TaskStateName::Completed => format!("{name} is completed"),
            _ => format!("{name} has ended ({}): R asks for it again", task.state.as_str()),
        });
    }
    let instruct = |kind| ScreenAction::Instruct { task: id, kind };
    match command {
        KeyCommand::Approve | KeyCommand::Deny => {
            answer_dialog(state, id, command == KeyCommand::Approve)
        }
        KeyCommand::Pause if state.wait_reason_of(id) == Some(WaitReason::Paused) => {
            Err(format!("{name} is paused already: r resumes it"))
        }
        KeyCommand::Pause => {
            let question = format!("Pause {name} at its next step?");
            Ok(action_dialog(
                instruct(InstructionKind::Pause),
                &question,
                &format!("{name} will pause"),
            ))
        }
        KeyCommand::Resume => {
            let question = format!("Let {name} go on?");
            Ok(action_dialog(
                instruct(InstructionKind::Resume),
                &question,
                &format!("{name} goes on"),
            ))
        }
        KeyCommand::Revise => {
            let question =
                format!("Have the plan of {name} made anew? Say what should be different:");
            let done = format!("the plan of {name} is made anew");
            let deed = instruct(InstructionKind::Revise);
            Ok(Dialog { words: TextRequirement::Needed, ..action_dialog(deed, &question, &done) })
        }
        KeyCommand::Cancel => {
            let question =
                format!("Cancel {name} and all that depends on it? This cannot be taken back.");
            Ok(action_dialog(
                ScreenAction::Cancel { task: id },
                &question,
                &format!("{name} was cancelled"),
            ))
        }
        KeyCommand::Merge => {
            let entry = state.pull_request().ok_or(format!("{name} has no pull request yet"))?;
            let Some(entry) = state.mergeable_pull_request() else {
                return Err(format!("pull request #{} is {}", entry.number, entry.state.as_str()));
            };
            let question =
                format!("Merge pull request #{}? This cannot be taken back.", entry.number);
            let done = format!("pull request #{} was merged", entry.number);
            let deed = ScreenAction::Merge { task: id, pull_request: entry.id };
            let body = vec![
                super::super::text::first_sanitized_line(&entry.title),
                format!("from {}", entry.branch),
            ];
            Ok(Dialog { body, ..action_dialog(deed, &question, &done) })
        }
        KeyCommand::Retry => retry_dialog(state, task),
        _ => Err(String::new()),
    }
}

/// Returns the dialog of a retry: the same rule as that of `cynork task retry`.
fn retry_dialog(state: &ScreenState, task: &TaskView) -> Result<Dialog, String> {
    let (id, name) = (task.id, task.name.as_str());
    let timeline = state.known.timelines.get(&id).ok_or("wait until the task is shown")?;
    match retry_action(timeline) {
        RetryAction::Answer(wait) => {
            let question =
                format!("Have {name} try it again? You may say what should be different:");
            let done = format!("{name} tries it again");
            let asked = state.known.waits.get(&id).and_then(|wait| wait.question.as_deref());
            let body = asked.map(super::super::text::sanitize_lines).unwrap_or_default();
            let deed = ScreenAction::TryAgain { task: id, wait };
            let about = Some(wait);
            Ok(Dialog {
                body,
                words: TextRequirement::Optional,
                about,
                ..action_dialog(deed, &question, &done)
            })
        }
        RetryAction::Resume => {
            let question = format!("{name} is paused. Let it go on?");
            let deed = ScreenAction::Instruct { task: id, kind: InstructionKind::Resume };
            Ok(action_dialog(deed, &question, &format!("{name} goes on")))
        }
        RetryAction::Anew => {
            let question = format!(
                "Ask for {name} once more, from the best work that it left? You may say what should be different:"
            );
            let body = super::super::text::sanitize_lines(task.description.as_str());
            let asked = build_dialog(DialogPurpose::AskAgain(id), &question, "it was accepted");
            Ok(Dialog { body, words: TextRequirement::Optional, ..asked })
        }
        RetryAction::Nothing(why) => Err(format!("there is nothing to retry: {why}")),
    }
}

/// Returns the dialog of an action on a pull request in its pane.
fn dialog_for_pull_request(state: &ScreenState, command: KeyCommand) -> Result<Dialog, String> {
    let pull = state.chosen_pull_request().ok_or("there is no pull request")?;
    if command != KeyCommand::Merge {
        return Err("m merges it, o goes to its task, e opens its diff".to_owned());
    }
    if pull.state != PullRequestState::Open {
        return Err(format!("pull request #{} is {}", pull.number, pull.state.as_str()));
    }
    let project = state.known.project_name(pull.project_id);
    let question =
        format!("Merge pull request #{} of {project}? This cannot be taken back.", pull.number);
    let done = format!("pull request #{} was merged", pull.number);
    let deed = ScreenAction::Merge { task: pull.task_id, pull_request: pull.id };
    let branches = format!("from {} into {}", pull.branch, pull.base_branch);
    let body = vec![super::super::text::first_sanitized_line(&pull.title), branches];
    Ok(Dialog { body, ..action_dialog(deed, &question, &done) })
}

/// Handles a key while a dialog is open.
pub(super) fn handle_dialog_key(
    state: &mut ScreenState,
    key: KeyEvent,
    wants: &mut Vec<ScreenEffect>,
) {
    let Some(dialog) = &state.dialog else { return };
    let typed = dialog.words != TextRequirement::None;
    match key.code {
        KeyCode::Esc => state.dialog = None,
        KeyCode::Enter => confirm_dialog(state, wants),
        KeyCode::PageDown | KeyCode::PageUp => {
            let end = state.drawn.ends.get(&ScrollArea::Dialog).copied().unwrap_or(0);
            let by = if key.code == KeyCode::PageDown { 5 } else { -5 };
            let to = state.scroll_offset(ScrollArea::Dialog).saturating_add_signed(by).min(end);
            state.offsets.insert(ScrollArea::Dialog, to);
        }
        KeyCode::Char('y' | 'Y') if !typed => confirm_dialog(state, wants),
        KeyCode::Char('n' | 'N' | 'q') if !typed => state.dialog = None,
        _ => {
            edit_words(state, |input| {
                input.handle_key(key);
            });
        }
    }
}

/// Edits the text of a dialog that takes text and was not sent yet; other dialogs take none.
pub(super) fn edit_words(state: &mut ScreenState, change: impl FnOnce(&mut LineInput)) {
    let Some(dialog) = &mut state.dialog else { return };
    if dialog.words == TextRequirement::None || dialog.sending {
        return;
    }
    let before = dialog.input.clone();
    change(&mut dialog.input);
    if before != dialog.input {
        // A different text is a different attempt.
        state.attempts += 1;
        (dialog.number, dialog.failure) = (state.attempts, None);
    }
}

/// Sends the action of a dialog. After a missing response, sending again is the same attempt.
pub(super) fn confirm_dialog(state: &mut ScreenState, wants: &mut Vec<ScreenEffect>) {
    let Some(dialog) = &mut state.dialog else { return };
    if dialog.sending {
        return;
    }
    let words = dialog.input.as_str().trim().to_owned();
    if dialog.words == TextRequirement::Needed && words.is_empty() {
        dialog.failure = Some(CliError::new(CliErrorKind::Invalid, "it needs words"));
        return;
    }
    let words = (!words.is_empty()).then_some(words);
    let (number, key) = (dialog.number, format!("{}-{}", state.seed, dialog.number));
    let want = match &dialog.purpose {
        DialogPurpose::AskAgain(task) => {
            let Some(task) = state.known.tasks.get(task) else { return };
            match build_retry_task(task, words.as_deref()) {
                Ok(body) => {
                    ScreenEffect::Create { number, key, ended: Some(task.id), body: Box::new(body) }
                }
                Err(failure) => {
                    dialog.failure = Some(failure);
                    return;
                }
            }
        }
        DialogPurpose::Act(deed) => ScreenEffect::Do { number, key, deed: deed.clone(), words },
    };
    (dialog.sending, dialog.failure) = (true, None);
    wants.push(want);
}

/// Handles the result of an action.
pub(super) fn handle_done(state: &mut ScreenState, number: u64, result: Result<()>) {
    state.changed = true;
    let open = state.dialog.as_ref().is_some_and(|dialog| dialog.number == number);
    match result {
        Ok(()) => {
            if let Some(dialog) = state.dialog.take_if(|dialog| dialog.number == number) {
                if let DialogPurpose::Act(deed) = &dialog.purpose {
                    apply_optimistically(state, deed);
                }
                state.show_note(dialog.done, true);
            } else {
                state.show_note("done", true);
            }
        }
        Err(failure) if open => {
            if let Some(dialog) = &mut state.dialog {
                (dialog.sending, dialog.failure) = (false, Some(failure));
            }
        }
        Err(failure) => state.show_note(failure.detail, false),
    }
}

/// Applies the expected effect of an action, before its event arrives.
fn apply_optimistically(state: &mut ScreenState, deed: &ScreenAction) {
    let task = match deed {
        ScreenAction::Approve { task, .. }
        | ScreenAction::Answer { task, .. }
        | ScreenAction::TryAgain { task, .. } => {
            state.known.waits.remove(task);
            *task
        }
        ScreenAction::Decide { approval, .. } => {
            state.known.approvals.retain(|call| call.approval_id != *approval);
            state.shelf.mark_stale(|topic| *topic == FetchTopic::Approvals);
            return;
        }
        ScreenAction::Merge { task, .. } => {
            let pulls =
                |topic: &FetchTopic| matches!(topic, FetchTopic::Pulls(_) | FetchTopic::Pull(_));
            state.shelf.mark_stale(pulls);
            *task
        }
        ScreenAction::Instruct { task, .. } | ScreenAction::Cancel { task } => *task,
    };
    state.shelf.mark_stale(|topic| matches!(topic, FetchTopic::Timeline(it) if *it == task));
}

/// Closes a dialog whose subject has changed.
pub(super) fn close_stale_dialog(state: &mut ScreenState) {
    let Some(dialog) = &state.dialog else { return };
    let task = match &dialog.purpose {
        DialogPurpose::Act(
            ScreenAction::Approve { task, .. }
            | ScreenAction::Answer { task, .. }
            | ScreenAction::TryAgain { task, .. },
        ) => *task,
        DialogPurpose::Act(
            ScreenAction::Decide { .. }
            | ScreenAction::Instruct { .. }
            | ScreenAction::Cancel { .. }
            | ScreenAction::Merge { .. },
        )
        | DialogPurpose::AskAgain(_) => return,
    };
    let now = state.known.waits.get(&task).map(|wait| wait.id);
    if !dialog.sending && now != dialog.about {
        state.dialog = None;
        state.show_note("it does not wait for this any more", false);
    }
}
