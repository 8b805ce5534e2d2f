use super::{world::*, *};
use crate::{
    commands::screen::{cache::TaskListQuery, state::ScreenAction},
    failure::CliErrorKind,
};
use cynode_core::workflow::instructions::InstructionKind;
use serde_json::json;

fn stage() -> Stage {
    let mut stage = Stage::new(80, 24);
    stage.answer(FetchTopic::Tasks(TaskListQuery::default()), tasks());
    waiting(&mut stage);
    stage.wanted();
    stage
}

/// What is to be done: the deed, the name of the attempt and the words.
fn done(stage: &mut Stage) -> Option<(u64, String, ScreenAction, Option<String>)> {
    stage.wanted().into_iter().find_map(|want| match want {
        ScreenEffect::Do { number, key, deed, words } => Some((number, key, deed, words)),
        _ => None,
    })
}

#[test]
fn a_plan_is_approved_after_it_was_seen_and_confirmed() {
    let mut stage = stage();
    stage.press("2a");
    assert!(stage.state.dialog.is_none());
    assert!(stage.show().contains("nobody says yes to what they do not see"));
    stage.answer(plan_of(24), planned());
    stage.press("a");
    assert!(stage.show().contains("May rate-limit-24 be carried out as planned?"));
    assert!(done(&mut stage).is_none());
    stage.press("y");
    let (number, _, deed, words) = done(&mut stage).unwrap();
    assert_eq!(
        (deed, words),
        (ScreenAction::Approve { task: task_id(24), wait: wait_id(24), yes: true }, None)
    );
    assert!(stage.show().contains("it is sent"));
    stage.press("y");
    assert!(done(&mut stage).is_none(), "not twice");
    stage.tell(ScreenMessage::Done(number, Ok(())));
    let shown = stage.show();
    assert!(shown.contains("✓ rate-limit-24 goes on") && shown.contains("2 Inbox (2)"), "{shown}");
}

#[test]
fn what_was_not_answered_is_sent_again_as_the_same_attempt() {
    let mut stage = stage();
    stage.answer(plan_of(24), planned());
    stage.press("2ay");
    let (number, key, deed, _) = done(&mut stage).unwrap();
    stage.tell(ScreenMessage::Done(
        number,
        Err(CliError::new(CliErrorKind::Unreachable, "nobody answers")),
    ));
    assert!(stage.show().contains("nobody answers"));
    stage.press("y");
    assert_eq!(done(&mut stage), Some((number, key.clone(), deed, None)));
    stage.tell(ScreenMessage::Done(
        number,
        Err(CliError::new(CliErrorKind::Conflict, "somebody was first")),
    ));
    stage.press("<Esc>a");
    stage.press("y");
    assert_ne!(done(&mut stage).unwrap().1, key, "asked anew it is another attempt");
}

#[test]
fn a_plan_goes_back_with_words_or_without() {
    let mut stage = stage();
    stage.press("2dsmaller, please<Enter>");
    let (.., deed, words) = done(&mut stage).unwrap();
    assert_eq!(deed, ScreenAction::Approve { task: task_id(24), wait: wait_id(24), yes: false });
    assert_eq!(words.as_deref(), Some("smaller, please"));
    let mut stage = self::stage();
    stage.press("2d<Enter>");
    assert_eq!(done(&mut stage).unwrap().3, None);
}

#[test]
fn a_question_needs_words() {
    let mut stage = stage();
    stage.press("2ja<Enter>");
    assert!(done(&mut stage).is_none());
    assert!(stage.show().contains("it needs words"));
    stage.press("To the page.<Enter>");
    let (number, _, deed, words) = done(&mut stage).unwrap();
    assert_eq!(deed, ScreenAction::Answer { task: task_id(22), wait: wait_id(22) });
    assert_eq!(words.as_deref(), Some("To the page."));
    stage.tell(ScreenMessage::Done(number, Ok(())));
    assert!(!stage.show().contains("? asks"));
}

#[test]
fn other_words_are_another_attempt() {
    let mut stage = stage();
    stage.press("2jaone<Enter>");
    let (number, key, ..) = done(&mut stage).unwrap();
    stage.tell(ScreenMessage::Done(
        number,
        Err(CliError::new(CliErrorKind::Unreachable, "nobody answers")),
    ));
    stage.press(" more<Enter>");
    let (_, other, _, words) = done(&mut stage).unwrap();
    assert_ne!(key, other);
    assert_eq!(words.as_deref(), Some("one more"));
}

#[test]
fn a_call_is_decided_after_its_arguments_were_shown_with_what_hides_in_them() {
    let mut stage = stage();
    stage.press("2jja");
    assert!(stage.state.dialog.is_none());
    stage.answer(FetchTopic::Approval(approval_id(1)), looked_at());
    stage.press("d");
    let shown = stage.show();
    assert!(shown.contains("git.push") && shown.contains("main\\u{202e}txt.exe"), "{shown}");
    stage.press("n");
    assert!(done(&mut stage).is_none() && stage.state.dialog.is_none());
    stage.press("dy");
    let (number, _, deed, _) = done(&mut stage).unwrap();
    assert_eq!(deed, ScreenAction::Decide { approval: approval_id(1), yes: false });
    stage.tell(ScreenMessage::Done(number, Ok(())));
    assert!(stage.show().contains("2 Inbox (2)"));
}

#[test]
fn a_question_that_is_not_open_any_more_is_taken_back() {
    let mut stage = stage();
    stage.press("2jaTo the");
    assert!(stage.state.dialog.is_some());
    stage.tell(event("task.cancelled", Some(22), json!({})));
    assert!(stage.state.dialog.is_none());
    assert!(stage.show().contains("it does not wait for this any more"));
}

#[test]
fn another_plan_is_another_question() {
    let mut stage = stage();
    stage.answer(plan_of(24), planned());
    stage.press("2a");
    assert!(stage.state.dialog.is_some());
    stage.tell(other_plan());
    assert!(stage.state.dialog.is_none());
    let topic = FetchTopic::Plan(project_id(1), task_id(24), wait_id(25));
    stage.wait(400);
    assert!(stage.asked().contains(&topic), "it is looked at anew");
}

/// The plan was sent back, and another one waits.
fn other_plan() -> ScreenMessage {
    let data = json!({ "name": "rate-limit-24", "reason": "approval", "question": "May the other?", "wait_id": wait_id(25) });
    event("task.waiting", Some(24), data)
}

#[test]
fn the_plan_before_is_not_shown_for_the_one_that_waits_now() {
    let mut stage = stage();
    stage.answer(plan_of(24), planned());
    stage.press("2");
    assert!(stage.show().contains("Count the calls of each key"));
    stage.tell(other_plan());
    // What was on its way is the plan before.
    stage.answer(plan_of(24), planned());
    stage.press("a");
    assert!(stage.state.dialog.is_none());
    let shown = stage.show();
    assert!(shown.contains("nobody says yes to what they do not see"), "{shown}");
    assert!(!shown.contains("Count the calls of each key"), "{shown}");
    let topic = FetchTopic::Plan(project_id(1), task_id(24), wait_id(25));
    stage.answer(topic, planned_anew("Count them all"));
    stage.press("a");
    assert!(stage.show().contains("• Count them all"));
    stage.press("y");
    let (.., deed, _) = done(&mut stage).unwrap();
    assert_eq!(deed, ScreenAction::Approve { task: task_id(24), wait: wait_id(25), yes: true });
}

#[test]
fn units_count_as_seen_only_if_their_story_is_of_the_wait_that_is_open() {
    let mut stage = stage();
    let mut before = timeline(24);
    before["waits"] = json!([{ "wait_id": wait_id(24), "reason": "approval", "owner": "person",
        "question": "May this plan be carried out?", "opened_at": ago(240) }]);
    stage.answer(FetchTopic::Timeline(task_id(24)), story(before.clone()));
    stage.press("2");
    stage.tell(other_plan());
    // A story that was on its way does not bring back the wait before.
    stage.answer(FetchTopic::Timeline(task_id(24)), story(before));
    stage.press("a");
    assert!(stage.state.dialog.is_none());
    let mut now = timeline(24);
    now["waits"] = json!([{ "wait_id": wait_id(25), "reason": "approval", "owner": "person",
        "question": "May the other?", "opened_at": ago(0) }]);
    stage.answer(FetchTopic::Timeline(task_id(24)), story(now));
    stage.press("ay");
    let (.., deed, _) = done(&mut stage).unwrap();
    assert_eq!(deed, ScreenAction::Approve { task: task_id(24), wait: wait_id(25), yes: true });
}

#[test]
fn no_plan_is_not_a_plan_that_was_seen() {
    let mut stage = stage();
    stage.answer(plan_of(24), TopicAnswer::Plan(None));
    stage.press("2a");
    assert!(stage.state.dialog.is_none());
    assert!(stage.show().contains("there is no plan to be seen"));
}

#[test]
fn what_is_pasted_goes_only_where_words_are_asked_for() {
    let mut stage = stage();
    stage.answer(plan_of(24), planned());
    stage.press("2a");
    stage.tell(ScreenMessage::Pasted("rm -rf".into()));
    stage.press("y");
    let (number, key, _, words) = done(&mut stage).unwrap();
    assert_eq!(words, None);
    stage.tell(ScreenMessage::Done(number, Ok(())));
    stage.press("a");
    stage.tell(ScreenMessage::Pasted("To the page.".into()));
    stage.press("<Enter>");
    let (number, other, _, words) = done(&mut stage).unwrap();
    assert_eq!(words.as_deref(), Some("To the page."));
    assert_ne!(key, other);
    stage.tell(ScreenMessage::Pasted(" And back.".into()));
    stage.tell(ScreenMessage::Done(
        number,
        Err(CliError::new(CliErrorKind::Unreachable, "nobody answers")),
    ));
    stage.press("<Enter>");
    assert_eq!(done(&mut stage).unwrap().3.as_deref(), Some("To the page."));
}

#[test]
fn a_task_is_paused_resumed_revised_and_cancelled_after_a_question() {
    for (keys, deed, words) in [
        ("py", ScreenAction::Instruct { task: task_id(30), kind: InstructionKind::Pause }, None),
        (
            "r<Enter>",
            ScreenAction::Instruct { task: task_id(30), kind: InstructionKind::Resume },
            None,
        ),
        (
            "vless<Enter>",
            ScreenAction::Instruct { task: task_id(30), kind: InstructionKind::Revise },
            Some("less"),
        ),
        ("xy", ScreenAction::Cancel { task: task_id(30) }, None),
    ] {
        let mut stage = stage();
        stage.press(keys);
        let (_, _, done, said) = done(&mut stage).unwrap();
        assert_eq!((done, said.as_deref()), (deed, words), "{keys}");
    }
    for keys in ["pn", "x<Esc>", "v<Enter>", "jjxy"] {
        let mut stage = stage();
        stage.press(keys);
        assert!(done(&mut stage).is_none(), "{keys}");
    }
}

#[test]
fn an_open_pull_request_is_merged_after_a_question_and_others_are_not() {
    let mut stage = stage();
    stage.press("<Enter>m");
    assert!(stage.show().contains("no pull request yet"));
    stage.answer(FetchTopic::Timeline(task_id(30)), story(delivered(30)));
    stage.press("m");
    let shown = stage.show();
    assert!(
        shown.contains("Merge pull request #7?") && shown.contains("cannot be taken back"),
        "{shown}"
    );
    stage.click("y: yes");
    let (number, _, deed, _) = done(&mut stage).unwrap();
    assert_eq!(deed, ScreenAction::Merge { task: task_id(30), pull_request: pull_request_id() });
    stage.tell(ScreenMessage::Done(number, Ok(())));
    assert!(stage.show().contains("pull request #7 was merged"));
    let mut merged = delivered(30);
    merged["pull_request"]["state"] = "merged".into();
    stage.answer(FetchTopic::Timeline(task_id(30)), story(merged));
    stage.press("m");
    assert!(stage.state.dialog.is_none());
    assert!(stage.show().contains("pull request #7 is merged"));
}

#[test]
fn left_while_it_is_sent_it_is_told_when_it_is_done() {
    let mut stage = stage();
    stage.press("py");
    let (number, ..) = done(&mut stage).unwrap();
    stage.press("<Esc>");
    stage.tell(ScreenMessage::Done(
        number,
        Err(CliError::new(CliErrorKind::Conflict, "it has ended")),
    ));
    assert!(stage.show().contains("✗ it has ended"));
}
