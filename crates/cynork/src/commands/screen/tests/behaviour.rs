use super::{world::*, *};
use crate::{
    commands::screen::{
        cache::TaskListQuery,
        state::{ConnectionState, Focus, Pane, TaskPart},
    },
    failure::CliErrorKind,
};
use ratatui::style::Color;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

fn list(stage: &mut Stage) {
    stage.answer(FetchTopic::Tasks(TaskListQuery::default()), tasks());
}

fn unreachable() -> CliError {
    CliError::new(CliErrorKind::Unreachable, "nobody answers")
}

/// From behind which event it wants to hear what happens; `now` when from now on.
fn listens(wants: &[ScreenEffect]) -> Option<&str> {
    wants.iter().find_map(|want| match want {
        ScreenEffect::Listen(after) => Some(after.as_deref().unwrap_or("now")),
        _ => None,
    })
}

#[test]
fn only_what_is_in_sight_is_asked_for() {
    let mut narrow = Stage::new(80, 24);
    list(&mut narrow);
    narrow.wait(1_000);
    let asked = narrow.asked();
    assert!(
        asked.contains(&FetchTopic::Costs) && asked.contains(&FetchTopic::Running),
        "{asked:?}"
    );
    assert!(
        !asked.iter().any(|it| matches!(it, FetchTopic::Timeline(_) | FetchTopic::Nodes)),
        "{asked:?}"
    );

    narrow.press("<Enter>");
    assert_eq!(narrow.asked(), [FetchTopic::Timeline(task_id(30))]);
    narrow.press("<Esc>3");
    assert_eq!(narrow.asked(), [FetchTopic::Nodes]);

    let mut wide = Stage::new(200, 60);
    list(&mut wide);
    wide.wait(1_000);
    assert!(wide.asked().contains(&FetchTopic::Timeline(task_id(30))));
}

#[test]
fn what_is_passed_over_quickly_is_not_asked_for() {
    let mut stage = Stage::new(200, 60);
    list(&mut stage);
    stage.answer(FetchTopic::Timeline(task_id(30)), story(timeline(30)));
    stage.wanted();
    for _ in 0..9 {
        stage.press("j");
        stage.wait(30);
    }
    assert_eq!(stage.asked(), []);
    stage.wait(200);
    assert_eq!(stage.asked(), [FetchTopic::Timeline(task_id(21))]);
}

#[test]
fn of_each_kind_one_question_is_under_way_and_many_events_are_one_more() {
    let mut stage = Stage::new(80, 24);
    stage.wanted();
    for _ in 0..100 {
        stage.tell(event("approval.requested", None, json!({})));
        stage.wait(20);
    }
    assert_eq!(stage.asked(), [], "one is under way since the beginning");
    stage.answer(FetchTopic::Approvals, TopicAnswer::Approvals(Vec::new()));
    stage.wait(1_000);
    assert_eq!(stage.asked(), [FetchTopic::Approvals]);
    stage.answer(FetchTopic::Approvals, TopicAnswer::Approvals(Vec::new()));
    stage.wait(1_000);
    assert_eq!(stage.asked(), []);
}

#[test]
fn events_change_the_list_without_a_question() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.wanted();
    assert!(stage.show().contains("▸ running   dark-mode-30"));
    stage.tell(event("task.completed", Some(30), json!({ "name": "dark-mode-30" })));
    assert!(stage.show().contains("✓ done      dark-mode-30"));
    assert!(!stage.asked().iter().any(|it| matches!(it, FetchTopic::Tasks(_))));
    stage.tell(event("task.created", Some(31), json!({ "name": "new" })));
    stage.wait(400);
    assert!(stage.asked().contains(&FetchTopic::Tasks(TaskListQuery::default())));
}

#[test]
fn a_wait_that_is_heard_of_is_in_the_inbox_at_once_and_gone_with_its_end() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    let data = json!({ "name": "dark-mode-30", "reason": "approval", "question": "May it?", "wait_id": wait_id(1) });
    stage.tell(event("task.waiting", Some(30), data));
    let shown = stage.show();
    assert!(shown.contains("2 Inbox (1)") && shown.contains("1 thing waits for you"), "{shown}");
    assert!(shown.contains("⚑ plan      dark-mode-30"), "{shown}");
    stage.tell(event("task.cancelled", Some(30), json!({})));
    assert!(stage.show().contains("nothing waits for you"));
}

#[test]
fn running_tasks_are_looked_at_one_after_the_other_for_what_they_wait_for() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    let items = [3, 2, 1].map(|it| task(it, &format!("t-{it}"), "running", "x"));
    stage.answer(FetchTopic::Running, some_tasks(&items));
    let mut looked = Vec::new();
    for _ in 0..3 {
        let asked = stage.asked();
        let Some(FetchTopic::Timeline(id)) =
            asked.iter().find(|it| matches!(it, FetchTopic::Timeline(_)))
        else {
            panic!("{asked:?}")
        };
        assert_eq!(asked.iter().filter(|it| matches!(it, FetchTopic::Timeline(_))).count(), 1);
        looked.push(*id);
        stage.answer(FetchTopic::Timeline(*id), story(timeline(1)));
    }
    assert_eq!(looked, [1, 2, 3].map(task_id));
    stage.wait(1_000);
    assert!(!stage.asked().iter().any(|it| matches!(it, FetchTopic::Timeline(_))));
}

#[test]
fn without_the_server_nothing_is_asked_and_it_is_tried_again_less_and_less_often() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.tell(event("task.started", Some(30), json!({})));
    stage.wanted();
    let mut pauses = Vec::new();
    for _ in 0..6 {
        stage.tell(ScreenMessage::Deaf(unreachable()));
        assert_eq!(stage.asked(), []);
        let mut passed = 0;
        while listens(&stage.wants).is_none() {
            stage.wait(100);
            passed += 100;
        }
        assert_eq!(listens(&stage.wanted()), Some("742.17"), "behind the last that was heard");
        pauses.push(passed);
    }
    assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 5_000, 5_000]);
    let shown = stage.show();
    assert!(shown.contains("✗ reconnecting for 1") && shown.contains("dark-mode-30"), "{shown}");

    stage.tell(ScreenMessage::Listening);
    let asked = stage.asked();
    assert!(asked.contains(&FetchTopic::Tasks(TaskListQuery::default())), "all is old: {asked:?}");
    assert!(stage.show().contains("● live"));
}

#[test]
fn two_questions_without_any_answer_are_a_lost_connection() {
    let mut stage = Stage::new(80, 24);
    stage.refuse(FetchTopic::Costs, unreachable());
    assert!(matches!(stage.state.link, ConnectionState::Live));
    stage.refuse(FetchTopic::Tasks(TaskListQuery::default()), unreachable());
    assert!(matches!(stage.state.link, ConnectionState::Lost { .. }));
}

#[test]
fn what_takes_long_turns_a_wheel_and_what_is_old_is_marked() {
    let mut stage = Stage::new(80, 24);
    stage.press("3");
    stage.wait(600);
    assert!(stage.show().contains("the server is asked"));
    stage.answer(FetchTopic::Nodes, nodes());
    stage.wait(5_000);
    assert!(stage.asked().contains(&FetchTopic::Nodes));
    stage.refuse(FetchTopic::Nodes, CliError::new(CliErrorKind::Internal, "it broke"));
    let shown = stage.show();
    assert!(shown.contains("! old") && shown.contains("big-machine"), "{shown}");
}

#[test]
fn it_is_drawn_when_something_changed_and_once_a_second_for_its_clocks() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    for topic in
        [FetchTopic::Costs, FetchTopic::Running, FetchTopic::Approvals, FetchTopic::Readiness]
    {
        stage.refuse(topic, CliError::new(CliErrorKind::Refused, "no"));
    }
    stage.draw();
    for _ in 0..9 {
        stage.wait(100);
        assert!(!stage.state.changed, "nothing happened");
    }
    stage.wait(100);
    assert!(stage.state.changed, "a second has passed");
    stage.draw();
    stage.press("j");
    assert!(stage.state.changed);
}

#[test]
fn the_same_task_stays_chosen_when_newer_ones_come() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.press("jj");
    assert_eq!(stage.state.chosen_task().unwrap().id, task_id(28));
    let newer = [task(31, "newer", "queued", "x")];
    stage.answer(FetchTopic::Tasks(TaskListQuery::default()), some_tasks(&newer));
    assert_eq!(stage.state.chosen_task().unwrap().id, task_id(28));
}

#[test]
fn the_next_page_is_asked_for_when_the_end_is_in_sight() {
    let mut stage = Stage::new(80, 24);
    let TopicAnswer::Tasks(mut page) = tasks() else { panic!() };
    page.next_cursor = Some("there".into());
    stage.answer(FetchTopic::Tasks(TaskListQuery::default()), TopicAnswer::Tasks(page));
    stage.draw();
    let more = FetchTopic::More(TaskListQuery::default(), "there".into());
    assert!(!stage.asked().contains(&more));
    stage.press("G");
    stage.draw();
    assert!(stage.asked().contains(&more));
    let older = [task(0, "oldest", "completed", "x")];
    stage.answer(more, some_tasks(&older));
    stage.press("G");
    assert_eq!(stage.state.chosen_task().unwrap().id, task_id(0));
    assert_eq!(stage.state.listed_tasks().len(), 31);
    // The first page anew takes nothing of the others away.
    let TopicAnswer::Tasks(mut page) = tasks() else { panic!() };
    page.next_cursor = Some("there".into());
    stage.answer(FetchTopic::Tasks(TaskListQuery::default()), TopicAnswer::Tasks(page));
    assert_eq!(stage.state.listed_tasks().len(), 31);
    assert!(stage.state.known.more.is_none());
}

#[test]
fn words_of_the_filter_are_looked_for_here_and_states_and_projects_by_the_server() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.press("/login");
    assert!(
        stage.state.listed_tasks().iter().all(|task| task.name.as_str().starts_with("fix-login"))
    );
    assert_eq!(stage.state.listed_tasks().len(), 3);
    stage.press("<Esc>");
    assert_eq!(stage.state.listed_tasks().len(), 30);
    stage.wanted();
    stage.press("/state:failed project:web");
    assert!(
        !stage.asked().iter().any(|it| matches!(it, FetchTopic::Tasks(_))),
        "not for every letter"
    );
    stage.press("<Enter>");
    let query = TaskListQuery { state: Some("failed".into()), project: Some("web".into()) };
    assert_eq!(stage.asked(), [FetchTopic::Tasks(query.clone())]);
    // An answer to the old question is not taken for one to the new.
    stage.answer(FetchTopic::Tasks(TaskListQuery::default()), tasks());
    assert_eq!(stage.state.listed_tasks().len(), 0);
    stage.answer(FetchTopic::Tasks(query), some_tasks(&[task(3, "csv-export-3", "failed", "x")]));
    assert_eq!(stage.state.listed_tasks().len(), 1);
    stage.press("<Esc>");
    stage.wait(500);
    assert!(stage.asked().contains(&FetchTopic::Tasks(TaskListQuery::default())));
}

#[test]
fn keys_lead_everywhere_and_back() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    let at = |stage: &Stage| (stage.state.pane, stage.state.focus, stage.state.part);
    for (keys, pane, focus, part) in [
        ("<Tab>", Pane::Inbox, Focus::List, TaskPart::Plan),
        ("<BackTab>", Pane::Tasks, Focus::List, TaskPart::Plan),
        ("l", Pane::Inbox, Focus::List, TaskPart::Plan),
        ("4", Pane::Spend, Focus::List, TaskPart::Plan),
        ("<Esc>", Pane::Tasks, Focus::List, TaskPart::Plan),
        ("<Enter>", Pane::Tasks, Focus::Detail, TaskPart::Plan),
        ("<Tab>l", Pane::Tasks, Focus::Detail, TaskPart::Logs),
        ("hhh", Pane::Tasks, Focus::Detail, TaskPart::Evidence),
        ("6", Pane::Tasks, Focus::Detail, TaskPart::Timeline),
        ("<Esc>", Pane::Tasks, Focus::List, TaskPart::Timeline),
        ("8", Pane::Tasks, Focus::Detail, TaskPart::Diff),
        ("2", Pane::Inbox, Focus::List, TaskPart::Diff),
    ] {
        stage.press(keys);
        assert_eq!(at(&stage), (pane, focus, part), "after {keys}");
    }
}

#[test]
fn an_escape_and_a_letter_that_come_together_are_both() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.press("<Enter>");
    let key = KeyEvent::new(KeyCode::Char('/'), KeyModifiers::ALT);
    stage.tell(ScreenMessage::Key(key));
    assert_eq!(stage.state.focus, Focus::List);
    assert!(stage.state.filter.typing && stage.state.filter.input.as_str().is_empty());
}

#[test]
fn lists_scroll_with_what_is_chosen_and_pages_go_by_what_is_shown() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.draw();
    stage.press("<PgDn>");
    assert_eq!(stage.state.chosen_task().unwrap().id, task_id(11));
    stage.press("G");
    let shown = stage.show();
    assert!(shown.contains("slug-max-1 ") && !shown.contains("dark-mode-30"), "{shown}");
    stage.press("g");
    assert!(stage.show().contains("dark-mode-30"));
}

#[test]
fn the_mouse_clicks_tabs_and_rows_and_its_wheel_scrolls() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.click("3 Nodes");
    assert_eq!(stage.state.pane, Pane::Nodes);
    stage.click("1 Tasks");
    stage.click("csv-export-23");
    assert_eq!(stage.state.chosen_task().unwrap().id, task_id(23));
    assert_eq!(stage.state.focus, Focus::List);
    stage.mouse(MouseEventKind::ScrollDown, 10, 10);
    assert_eq!(stage.state.chosen_task().unwrap().id, task_id(22));
    stage.click("slug-max-21");
    stage.click("slug-max-21");
    assert_eq!(stage.state.focus, Focus::Detail, "clicked again, it opens");
    stage.answer(FetchTopic::Timeline(task_id(21)), story(timeline(21)));
    stage.click("6 Timeline");
    assert_eq!(stage.state.part, TaskPart::Timeline);
    stage.click("5 Plan");
    stage.click("Show the swi");
    assert_eq!(stage.state.unit.as_ref().unwrap().as_str(), "page");
    stage.click("? help");
    assert!(stage.show().contains("The mouse works too."));
    stage.click("The mouse works too.");
    assert!(!stage.state.help);
}

#[test]
fn a_log_follows_its_end_until_somebody_scrolls_up() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.press("<Enter>7");
    stage.answer(FetchTopic::Timeline(task_id(30)), story(timeline(30)));
    stage.answer(FetchTopic::Log(job_id(4)), lines(0, 40));
    assert!(stage.show().contains("line 39"));
    stage.press("kk");
    let shown = stage.show();
    assert!(!shown.contains("line 39") && shown.contains("stays here"), "{shown}");
    stage.answer(FetchTopic::Log(job_id(4)), lines(40, 60));
    assert!(!stage.show().contains("line 59"));
    stage.press("G");
    assert!(stage.show().contains("line 59"));
    assert!(stage.state.follow);
    // The next question goes on behind the last that is known.
    stage.wanted();
    stage.wait(1_100);
    let from = stage.wanted().into_iter().find_map(|want| match want {
        ScreenEffect::Fetch(FetchTopic::Log(_), from) => Some(from),
        _ => None,
    });
    assert_eq!(from, Some(60));
}

fn lines(from: u64, to: u64) -> TopicAnswer {
    let event = |number: u64| {
        let data = json!({ "stream": "stdout", "text": format!("line {number}") });
        json!({ "number": number, "at": ago(10), "at_ms": number * 100, "event": "output", "data": data })
    };
    let events: Vec<Value> = (from..to).map(event).collect();
    TopicAnswer::Log(serde_json::from_value(json!(events)).unwrap(), false)
}

#[test]
fn a_whole_page_of_a_log_means_there_is_more_and_the_end_of_a_job_its_last_lines() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.press("<Enter>7");
    let mut ended = timeline(30);
    stage.answer(FetchTopic::Timeline(task_id(30)), story(ended.clone()));
    let TopicAnswer::Log(events, _) = lines(0, 20) else { panic!() };
    stage.wanted();
    stage.answer(FetchTopic::Log(job_id(4)), TopicAnswer::Log(events, true));
    stage.wait(400);
    assert_eq!(stage.asked(), [FetchTopic::Log(job_id(4))]);
    stage.answer(FetchTopic::Log(job_id(4)), lines(20, 21));
    ended["jobs"][3]["state"] = "succeeded".into();
    stage.answer(FetchTopic::Timeline(task_id(30)), story(ended));
    stage.wait(400);
    assert!(stage.asked().contains(&FetchTopic::Log(job_id(4))));
    stage.answer(FetchTopic::Log(job_id(4)), lines(21, 22));
    stage.wait(10_000);
    assert!(!stage.asked().contains(&FetchTopic::Log(job_id(4))), "nothing more comes");
}

#[test]
fn a_stranger_logs_in_and_goes_on() {
    let mut state =
        ScreenState::new("http://h", "seed".into(), NOW, TerminalSize { width: 80, height: 24 });
    let wants = update::initial_effects(&mut state, false);
    assert!(wants.is_empty(), "nothing is asked for before: {wants:?}");
    let mut stage = Stage { state, wants };
    stage.press("ada<Enter>correct q horse");
    let shown = stage.show();
    assert!(shown.contains("ada") && shown.contains("•••") && !shown.contains("horse"), "{shown}");
    stage.press("<Enter>");
    let wanted = stage.wanted();
    let [ScreenEffect::LogIn { handle, password }] = wanted.as_slice() else {
        panic!("{wanted:?}")
    };
    assert_eq!((handle.as_str(), password.expose_secret()), ("ada", "correct q horse"));
    assert!(!format!("{wanted:?}").contains("horse"));
    stage.tell(ScreenMessage::LoggedIn(Err(CliError::new(
        CliErrorKind::Refused,
        "wrong name or password",
    ))));
    assert!(stage.show().contains("wrong name or password"));
    stage.press("again<Enter>");
    stage.wanted();
    let session: cynode_wire::identity::accounts::SessionView = serde_json::from_value(json!({
        "token": "t", "expires_at": ago(-1000), "user": { "id": "usr_00000000000000000000000000000001", "handle": "ada",
            "display_name": "Ada", "email": null, "role": null, "active": true, "created_at": ago(9) } }))
    .unwrap();
    stage.tell(ScreenMessage::LoggedIn(Ok(Box::new(session))));
    let wanted = stage.wanted();
    assert_eq!(listens(&wanted), Some("now"));
    assert!(stage.state.login.is_none());
}

#[test]
fn resized_it_shows_the_same_with_other_room() {
    let mut stage = Stage::new(200, 60);
    list(&mut stage);
    stage.answer(FetchTopic::Timeline(task_id(30)), story(timeline(30)));
    stage.press("<Enter>6");
    assert!(stage.show().contains("csv-export-23") && stage.show().contains("start work"));
    stage.tell(ScreenMessage::Resized(TerminalSize { width: 80, height: 24 }));
    let shown = stage.show();
    assert!(!shown.contains("csv-export-23") && shown.contains("start work"), "{shown}");
    stage.tell(ScreenMessage::Resized(TerminalSize { width: 40, height: 10 }));
    assert!(stage.show().contains("needs 60x15"));
    stage.wanted();
    stage.press("q");
    assert!(matches!(stage.wanted().as_slice(), [ScreenEffect::Quit]));
}

#[test]
fn every_size_can_be_drawn_in_every_place() {
    for (width, height) in
        [(1, 1), (59, 15), (60, 15), (61, 16), (80, 24), (119, 15), (120, 15), (300, 90)]
    {
        let mut stage = Stage::new(width, height);
        list(&mut stage);
        waiting(&mut stage);
        stage.answer(FetchTopic::Timeline(task_id(30)), story(delivered(30)));
        stage.answer(FetchTopic::Evidence(task_id(30)), evidence());
        stage.answer(FetchTopic::Log(job_id(4)), log());
        stage.answer(FetchTopic::Files(pull_request_id()), files());
        stage.answer(FetchTopic::Diff(pull_request_id(), "src/switch.tsx".into()), diff());
        stage.answer(plan_of(24), planned());
        stage.answer(FetchTopic::Approval(approval_id(1)), looked_at());
        stage.answer(FetchTopic::Nodes, nodes());
        stage.answer(FetchTopic::Budgets, budgets());
        for keys in [
            "", "<Enter>", "5jjj", "6", "7", "8", "9", "2", "j", "aa", "<Esc>", "j", "a", "<Esc>",
            "3", "4", "?",
        ] {
            stage.press(keys);
            stage.draw();
            stage.press("<PgDn>");
            stage.draw();
        }
    }
}

#[test]
fn differences_are_coloured_unless_nobody_wants_colours() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.press("<Enter>8");
    stage.answer(FetchTopic::Timeline(task_id(30)), story(delivered(30)));
    stage.answer(FetchTopic::Files(pull_request_id()), files());
    stage.answer(FetchTopic::Diff(pull_request_id(), "src/switch.tsx".into()), diff());
    let colours = |buffer: &Buffer| {
        let of = |sign: &str, colour: Color| {
            buffer.content.iter().any(|cell| cell.symbol() == sign && cell.fg == colour)
        };
        (of("+", Color::Green), of("-", Color::Red), of("@", Color::Cyan))
    };
    assert_eq!(colours(&stage.draw()), (true, true, true));
    stage.state.colour = false;
    let buffer = stage.draw();
    assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
}

#[test]
fn what_came_or_went_is_shown_though_it_begins_like_the_head_of_a_file() {
    let mut stage = Stage::new(80, 24);
    list(&mut stage);
    stage.press("<Enter>8");
    stage.answer(FetchTopic::Timeline(task_id(30)), story(delivered(30)));
    stage.answer(FetchTopic::Files(pull_request_id()), files());
    let text = "diff --git a/q.sql b/q.sql\n--- a/q.sql\n+++ b/q.sql\n@@ -1 +1 @@\n--- keep this\n+++ count\n";
    stage.answer(FetchTopic::Diff(pull_request_id(), "src/switch.tsx".into()), diff_of(text));
    let shown = stage.show();
    assert!(shown.contains("--- keep this") && shown.contains("+++ count"), "{shown}");
    assert!(!shown.contains("a/q.sql") && !shown.contains("b/q.sql"), "{shown}");
}

#[test]
fn the_shell_is_a_key_away_wherever_one_is() {
    for keys in ["", "<Enter>", "/abc", "2a", "?"] {
        let mut stage = Stage::new(80, 24);
        list(&mut stage);
        stage.press(keys);
        stage.wanted();
        stage.tell(ScreenMessage::Key(KeyEvent::new(KeyCode::Char('z'), KeyModifiers::CONTROL)));
        assert!(matches!(stage.wanted().as_slice(), [ScreenEffect::Suspend]), "{keys}");
    }
}

#[test]
fn it_ends_by_q_and_by_control_c_wherever_one_is() {
    for keys in ["q", "<^c>", "<Enter>q", "/abc<^c>", "2a<^c>", "?<^c>"] {
        let mut stage = Stage::new(80, 24);
        list(&mut stage);
        waiting(&mut stage);
        stage.wanted();
        stage.press(keys);
        assert!(stage.wanted().iter().any(|want| matches!(want, ScreenEffect::Quit)), "{keys}");
    }
}
