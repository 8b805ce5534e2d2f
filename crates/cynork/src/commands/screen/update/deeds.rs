//! What is done to the installation: always after a question that says exactly what.

use cynode_core::{
    tasks::TaskStateName,
    workflow::{instructions::InstructionKind, waits::WaitReason},
};
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::super::{
    input::Input,
    keys::Command,
    known::Item,
    message::Want,
    shelf::Topic,
    state::{Deed, Dialog, Pane, Place, State, Words},
    view,
};
use crate::failure::{Failure, Kind, Result};

/// Opens the question, or says why there is nothing to ask.
pub(super) fn begin(state: &mut State, command: Command) {
    let asked = match state.pane {
        Pane::Inbox => for_item(state, command),
        Pane::Tasks => for_task(state, command),
        Pane::Nodes | Pane::Spend => Err("choose a task or something that waits first".to_owned()),
    };
    match asked {
        Ok(mut dialog) => {
            state.attempts += 1;
            dialog.number = state.attempts;
            state.offsets.remove(&Place::Dialog);
            state.dialog = Some(dialog);
        }
        Err(why) => state.tell(why, false),
    }
}

fn dialog(deed: Deed, question: &str, done: &str) -> Dialog {
    Dialog {
        deed,
        question: question.to_owned(),
        body: Vec::new(),
        words: Words::None,
        input: Input::default(),
        about: None,
        number: 0,
        sending: false,
        failure: None,
        done: done.to_owned(),
    }
}

fn for_item(state: &State, command: Command) -> Result<Dialog, String> {
    let item = state.chosen_item().ok_or("nothing waits for you")?;
    let yes = match command {
        Command::Approve => true,
        Command::Deny => false,
        _ => return Err("a approves or answers, d denies, o goes to the task".to_owned()),
    };
    match item {
        Item::Plan(task) | Item::Question(task) => answer(state, task, yes),
        Item::Call(id) => {
            let call = state.known.looked_at.get(&id);
            let call =
                call.ok_or("wait until it is shown: nobody says yes to what they do not see")?;
            let deed = Deed::Decide { approval: id, yes };
            let (question, done) = if yes {
                ("May this call be made, once?", "the call may be made")
            } else {
                ("Refuse this call?", "the call was refused")
            };
            let body = view::call_lines(call);
            Ok(Dialog { body, ..dialog(deed, question, done) })
        }
    }
}

/// A yes, a no or an answer to what a task waits with.
fn answer(state: &State, task: cynode_core::ids::TaskId, yes: bool) -> Result<Dialog, String> {
    let wait = state.known.waits.get(&task).ok_or("it does not wait for you any more")?;
    let about = Some(wait.id);
    let name = &wait.name;
    match (wait.reason, yes) {
        (WaitReason::Approval, true) => {
            let body = view::plan_short(state, task);
            if body.is_empty() {
                return Err(match state.known.plan(task) {
                    Some(None) => "there is no plan to be seen: nobody says yes to that",
                    _ => "wait until it is shown: nobody says yes to what they do not see",
                }
                .to_owned());
            }
            let question = format!("May {name} be carried out as planned?");
            let deed = Deed::Approve { task, wait: wait.id, yes };
            Ok(Dialog { body, about, ..dialog(deed, &question, &format!("{name} goes on")) })
        }
        (WaitReason::Approval, false) => {
            let question = format!("Send the plan of {name} back? Say what should be different:");
            let done = format!("the plan of {name} was sent back");
            let deed = Deed::Approve { task, wait: wait.id, yes };
            Ok(Dialog { words: Words::Optional, about, ..dialog(deed, &question, &done) })
        }
        (WaitReason::HumanInput, true) => {
            let body = wait.question.iter().flat_map(|it| super::super::text::lines(it)).collect();
            let question = format!("Your answer to {name}:");
            let done = format!("{name} has your answer");
            let deed = Deed::Answer { task, wait: wait.id };
            Ok(Dialog { body, words: Words::Needed, about, ..dialog(deed, &question, &done) })
        }
        (WaitReason::HumanInput, false) => {
            Err("a question is answered with a; x in the tasks pane cancels the task".to_owned())
        }
        _ => Err(format!("{name} does not wait for an answer")),
    }
}

fn for_task(state: &State, command: Command) -> Result<Dialog, String> {
    let task = state.chosen_task().ok_or("there is no task")?;
    let (id, name) = (task.id, task.name.as_str());
    let lives = matches!(task.state, TaskStateName::Queued | TaskStateName::Running);
    if command != Command::Merge && !lives {
        return Err(format!("{name} has ended: {}", task.state.as_str()));
    }
    let instruct = |kind| Deed::Instruct { task: id, kind };
    match command {
        Command::Approve | Command::Deny => answer(state, id, command == Command::Approve),
        Command::Pause if state.waits_for(id) == Some(WaitReason::Paused) => {
            Err(format!("{name} is paused already: r resumes it"))
        }
        Command::Pause => {
            let question = format!("Pause {name} at its next step?");
            Ok(dialog(instruct(InstructionKind::Pause), &question, &format!("{name} will pause")))
        }
        Command::Resume => {
            let question = format!("Let {name} go on?");
            Ok(dialog(instruct(InstructionKind::Continue), &question, &format!("{name} goes on")))
        }
        Command::Revise => {
            let question =
                format!("Have the plan of {name} made anew? Say what should be different:");
            let done = format!("the plan of {name} is made anew");
            let deed = instruct(InstructionKind::Revise);
            Ok(Dialog { words: Words::Needed, ..dialog(deed, &question, &done) })
        }
        Command::Cancel => {
            let question =
                format!("Cancel {name} and all that depends on it? This cannot be taken back.");
            Ok(dialog(Deed::Cancel { task: id }, &question, &format!("{name} was cancelled")))
        }
        Command::Merge => {
            let entry = state.pull_request().ok_or(format!("{name} has no pull request yet"))?;
            let Some(entry) = state.may_merge() else {
                return Err(format!("pull request #{} is {}", entry.number, entry.state.as_str()));
            };
            let question =
                format!("Merge pull request #{}? This cannot be taken back.", entry.number);
            let done = format!("pull request #{} was merged", entry.number);
            let deed = Deed::Merge { task: id, pull_request: entry.id };
            let body =
                vec![super::super::text::first(&entry.title), format!("from {}", entry.branch)];
            Ok(Dialog { body, ..dialog(deed, &question, &done) })
        }
        _ => Err(String::new()),
    }
}

/// A key while a question is open.
pub(super) fn press(state: &mut State, key: KeyEvent, wants: &mut Vec<Want>) {
    let Some(dialog) = &state.dialog else { return };
    let typed = dialog.words != Words::None;
    match key.code {
        KeyCode::Esc => state.dialog = None,
        KeyCode::Enter => confirm(state, wants),
        KeyCode::PageDown | KeyCode::PageUp => {
            let end = state.drawn.ends.get(&Place::Dialog).copied().unwrap_or(0);
            let by = if key.code == KeyCode::PageDown { 5 } else { -5 };
            let to = state.offset(Place::Dialog).saturating_add_signed(by).min(end);
            state.offsets.insert(Place::Dialog, to);
        }
        KeyCode::Char('y' | 'Y') if !typed => confirm(state, wants),
        KeyCode::Char('n' | 'N' | 'q') if !typed => state.dialog = None,
        _ => {
            write(state, |input| {
                input.press(key);
            });
        }
    }
}

/// Changes the words of a question that asks for some and is not sent yet; another takes none.
pub(super) fn write(state: &mut State, change: impl FnOnce(&mut Input)) {
    let Some(dialog) = &mut state.dialog else { return };
    if dialog.words == Words::None || dialog.sending {
        return;
    }
    let before = dialog.input.clone();
    change(&mut dialog.input);
    if before != dialog.input {
        // Other words are another attempt.
        state.attempts += 1;
        (dialog.number, dialog.failure) = (state.attempts, None);
    }
}

/// Yes: it is sent. What was not taken for want of an answer is the same attempt when it is sent again.
pub(super) fn confirm(state: &mut State, wants: &mut Vec<Want>) {
    let Some(dialog) = &mut state.dialog else { return };
    if dialog.sending {
        return;
    }
    let words = dialog.input.text().trim().to_owned();
    if dialog.words == Words::Needed && words.is_empty() {
        dialog.failure = Some(Failure::new(Kind::Invalid, "it needs words"));
        return;
    }
    (dialog.sending, dialog.failure) = (true, None);
    wants.push(Want::Do {
        number: dialog.number,
        key: format!("{}-{}", state.seed, dialog.number),
        deed: dialog.deed.clone(),
        words: (!words.is_empty()).then_some(words),
    });
}

/// It was done, or not.
pub(super) fn done(state: &mut State, number: u64, result: Result<()>) {
    state.changed = true;
    let open = state.dialog.as_ref().is_some_and(|dialog| dialog.number == number);
    match result {
        Ok(()) => {
            if let Some(dialog) = state.dialog.take_if(|dialog| dialog.number == number) {
                took_effect(state, &dialog.deed);
                state.tell(dialog.done, true);
            } else {
                state.tell("done", true);
            }
        }
        Err(failure) if open => {
            if let Some(dialog) = &mut state.dialog {
                (dialog.sending, dialog.failure) = (false, Some(failure));
            }
        }
        Err(failure) => state.tell(failure.detail, false),
    }
}

/// What is known at once, before anything is heard of it.
fn took_effect(state: &mut State, deed: &Deed) {
    let task = match deed {
        Deed::Approve { task, .. } | Deed::Answer { task, .. } => {
            state.known.waits.remove(task);
            *task
        }
        Deed::Decide { approval, .. } => {
            state.known.approvals.retain(|call| call.approval_id != *approval);
            state.shelf.outdate(|topic| *topic == Topic::Approvals);
            return;
        }
        Deed::Instruct { task, .. } | Deed::Cancel { task } | Deed::Merge { task, .. } => *task,
    };
    state.shelf.outdate(|topic| matches!(topic, Topic::Timeline(it) if *it == task));
}

/// A question about what is not so any more is taken back.
pub(super) fn settle(state: &mut State) {
    let Some(dialog) = &state.dialog else { return };
    let task = match &dialog.deed {
        Deed::Approve { task, .. } | Deed::Answer { task, .. } => *task,
        Deed::Decide { .. } | Deed::Instruct { .. } | Deed::Cancel { .. } | Deed::Merge { .. } => {
            return;
        }
    };
    let now = state.known.waits.get(&task).map(|wait| wait.id);
    if !dialog.sending && now != dialog.about {
        state.dialog = None;
        state.tell("it does not wait for this any more", false);
    }
}
