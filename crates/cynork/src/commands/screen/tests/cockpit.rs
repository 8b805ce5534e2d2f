use super::{world::*, *};
use crate::{
    commands::screen::{
        cache::TaskListQuery,
        message::{ExternalViewer, ViewerContent},
        state::{ChatSpeaker, Focus, Pane, ScreenAction, TaskPart},
    },
    failure::CliErrorKind,
};
use cynode_core::ids::TaskId;
use serde_json::{Value, json};

fn stage() -> Stage {
    let mut stage = Stage::new(120, 36);
    stage.answer(FetchTopic::Tasks(TaskListQuery::default()), tasks());
    waiting(&mut stage);
    stage.wanted();
    stage
}

/// A task that is asked for: the name of the attempt, the task that has ended before it, and the body.
fn created(stage: &mut Stage) -> Option<(u64, String, Option<TaskId>, Value)> {
    stage.wanted().into_iter().find_map(|want| match want {
        ScreenEffect::Create { number, key, ended, body } => {
            Some((number, key, ended, serde_json::to_value(*body).unwrap()))
        }
        _ => None,
    })
}

#[test]
fn the_list_beside_a_task_has_the_project_and_no_column_that_is_cut_to_nothing() {
    for width in [80, 100, 120, 140, 160, 200] {
        let mut stage = Stage::new(width, 36);
        stage.answer(FetchTopic::Tasks(TaskListQuery::default()), tasks());
        let shown = stage.show();
        let head = shown.lines().find(|line| line.contains("STATE")).unwrap();
        let head = head.split("││").next().unwrap();
        assert!(head.contains("PROJECT") && head.contains("AGE"), "{width}: {head}");
        assert!(!head.contains('…'), "{width}: {head}");
        let row = shown.lines().find(|line| line.contains("groolich-grooer-29")).unwrap();
        assert!(row.contains("slug"), "{width}: {row}");
    }
}

#[test]
fn no_title_of_a_task_is_cut() {
    for width in [80, 120, 200] {
        let mut stage = Stage::new(width, 36);
        stage.answer(FetchTopic::Tasks(TaskListQuery::default()), tasks());
        waiting(&mut stage);
        stage.press("2jo");
        let shown = stage.show();
        assert!(shown.contains("it has a question for you"), "{width}: {shown}");
        assert!(shown.contains("Go back to the page, or to the list"), "{width}: {shown}");
        assert!(shown.contains("a answers"), "{width}: {shown}");
    }
}

#[test]
fn a_question_is_answered_where_the_task_is_shown() {
    let mut stage = stage();
    stage.press("2jo");
    stage.wanted();
    stage.press("aTo the page.<Enter>");
    let deed = stage.wanted().into_iter().find_map(|want| match want {
        ScreenEffect::Do { deed, words, .. } => Some((deed, words)),
        _ => None,
    });
    let answer = ScreenAction::Answer { task: task_id(22), wait: wait_id(22) };
    assert_eq!(deed, Some((answer, Some("To the page.".to_owned()))));
}

#[test]
fn a_new_task_is_asked_for_once_with_its_checks_and_its_budget() {
    let mut stage = stage();
    stage.press("c");
    assert!(stage.show().contains("New task"));
    stage.press("<BackTab>");
    for _ in 0..12 {
        stage.tell(ScreenMessage::Key(KeyEvent::from(KeyCode::Backspace)));
    }
    stage.press(
        "sl<Tab><Tab>Shorter names<Enter>make test<Enter>sh tests/all.sh<Enter><Enter>0.5<Enter>",
    );
    let (number, key, ended, body) =
        created(&mut stage).unwrap_or_else(|| panic!("{}", stage.show()));
    assert_eq!(ended, None);
    assert_eq!(
        body,
        json!({
            "project_id": project_id(2), "description": "Shorter names", "depends_on": [],
            "acceptance_criteria": [
                { "text": "`make test` succeeds", "check": { "argv": ["sh", "-c", "make test"] } },
                { "text": "`sh tests/all.sh` succeeds", "check": { "argv": ["sh", "-c", "sh tests/all.sh"] } },
            ],
            "budget": { "max_cost_micros": 500_000, "max_tokens": null },
        })
    );
    let unreachable = CliError::new(CliErrorKind::Unreachable, "nobody answers");
    stage.tell(ScreenMessage::Created(number, Err(unreachable)));
    assert!(stage.show().contains("nobody answers"));
    stage.press("<Enter>");
    assert_eq!(created(&mut stage).unwrap().1, key, "sent again it is the same attempt");
    let task =
        serde_json::from_value(task(31, "shorter-names", "queued", "Shorter names")).unwrap();
    stage.tell(ScreenMessage::Created(number, Ok(Box::new(task))));
    let shown = stage.show();
    assert!(stage.state.form.is_none() && shown.contains("shorter-names was accepted"), "{shown}");
    assert_eq!(stage.state.task, Some(task_id(31)));
}

#[test]
fn a_form_says_what_is_wrong_before_anything_is_sent() {
    for (keys, wrong) in [
        ("c<BackTab>x<Tab>Something<Enter><Enter><Enter>", "there is no project"),
        ("c<Enter><Enter><Enter>", "what do you want?"),
        ("cSomething<Enter><Enter>much<Enter>", "an amount is written like 0.50"),
    ] {
        let mut stage = stage();
        stage.press(keys);
        assert!(created(&mut stage).is_none(), "{keys}");
        let shown = stage.show();
        assert!(shown.contains(wrong), "{keys}: {shown}");
    }
}

#[test]
fn a_task_that_has_ended_is_asked_for_again_with_what_should_be_different() {
    let mut stage = stage();
    stage.press(":task typo-readme-17<Enter>");
    let mut story = timeline(17);
    story["state"] = "failed".into();
    stage.answer(FetchTopic::Timeline(task_id(17)), world::story(story));
    stage.press("Rleave the tests alone<Enter>");
    let (number, _, ended, body) =
        created(&mut stage).unwrap_or_else(|| panic!("{}", stage.show()));
    assert_eq!(ended, Some(task_id(17)));
    assert_eq!(body["description"], json!("The README says “recieve”.\n\nleave the tests alone"));
    let task = serde_json::from_value(task(31, "typo-again", "queued", "x")).unwrap();
    stage.tell(ScreenMessage::Created(number, Ok(Box::new(task))));
    assert!(stage.state.dialog.is_none());
    assert_eq!(stage.state.task, Some(task_id(31)));
}

#[test]
fn before_a_yes_to_a_plan_stands_who_does_it_with_what_and_for_how_much() {
    let mut stage = stage();
    stage.press("2");
    let topic = FetchTopic::Before(project_id(1), task_id(24), wait_id(24));
    let asked = |stage: &mut Stage| {
        stage.wanted().iter().any(|want| matches!(want, ScreenEffect::Fetch(it, _) if *it == topic))
    };
    assert!(!asked(&mut stage), "there is no plan to say anything about");
    stage.answer(plan_of(24), planned());
    assert!(asked(&mut stage));
    let facts = [("models", "small-1 (fast)"), ("limit", "5.00 USD")];
    let facts = facts.map(|(name, words)| (name, words.to_owned())).to_vec();
    stage.answer(topic, TopicAnswer::Before(facts));
    let shown = stage.show();
    for words in ["models    small-1 (fast)", "limit     5.00 USD"] {
        assert!(shown.contains(words), "{shown}");
    }
}

#[test]
fn the_diff_of_a_task_that_failed_shows_the_work_that_it_left() {
    let mut stage = stage();
    stage.press(":task typo-readme-17<Enter>");
    let mut story = timeline(17);
    story["state"] = "failed".into();
    stage.answer(FetchTopic::Timeline(task_id(17)), world::story(story));
    stage.press("8");
    let shown = |stage: &mut Stage, work: Option<Value>| {
        let work = work.map(|work| Box::new(serde_json::from_value(work).unwrap()));
        stage.answer(FetchTopic::Work(task_id(17)), TopicAnswer::Work(work));
        stage.show()
    };
    let nothing = shown(&mut stage, None);
    assert!(nothing.contains("No work was kept yet"), "{nothing}");
    let work = json!({
        "unit": "spelling", "attempt": 2, "state": "failed", "checks": 3, "checks_passed": 1,
        "files": { "base": "a", "head": "b", "truncated": false, "files": [] },
        "diff": { "base": "a", "head": "b", "text": "@@ -1 +1 @@\n-recieve\n+receive\n", "truncated": false },
    });
    let left = shown(&mut stage, Some(work));
    for words in ["not offered: spelling", "attempt 2, 1 of 3 checks held", "-recieve", "+receive"]
    {
        assert!(left.contains(words), "{words}: {left}");
    }
}

#[test]
fn a_task_that_asks_what_to_do_tries_again() {
    let mut stage = stage();
    stage.press("2joR<Enter>");
    let deed = stage.wanted().into_iter().find_map(|want| match want {
        ScreenEffect::Do { deed, words, .. } => Some((deed, words)),
        _ => None,
    });
    let again = ScreenAction::TryAgain { task: task_id(22), wait: wait_id(22) };
    assert_eq!(deed, Some((again, None)));
    let mut running = stage_with_story();
    running.press("R");
    assert!(running.state.dialog.is_none());
    assert!(running.show().contains("there is nothing to retry: it goes on by itself"));
}

fn stage_with_story() -> Stage {
    let mut stage = stage();
    stage.press("<Enter>");
    stage.answer(FetchTopic::Timeline(task_id(30)), story(timeline(30)));
    stage.wanted();
    stage
}

#[test]
fn commands_behind_the_colon_go_where_they_say() {
    for (line, pane) in [
        ("tasks", Pane::Tasks),
        ("inbox", Pane::Inbox),
        ("projects", Pane::Projects),
        ("prs", Pane::PullRequests),
        ("models", Pane::Models),
        ("nodes", Pane::Nodes),
        ("spend", Pane::Spend),
        ("chat", Pane::Chat),
    ] {
        let mut stage = stage();
        stage.press(&format!(":{line}<Enter>"));
        assert_eq!(stage.state.pane, pane, "{line}");
    }
    let mut stage = stage();
    stage.press(":logs<Enter>");
    assert_eq!(stage.state.part, TaskPart::Logs);
    stage.press(":new slug<Enter>");
    assert_eq!(stage.state.form.as_ref().unwrap().project.as_str(), "slug");
    stage.press("<Esc>:q<Enter>");
    assert!(matches!(stage.wanted().last(), Some(ScreenEffect::Quit)));
}

#[test]
fn a_command_with_a_project_lists_that_project_alone() {
    let mut stage = stage();
    stage.press(":tasks slug<Enter>");
    let query = TaskListQuery { project: Some("slug".into()), ..TaskListQuery::default() };
    assert!(stage.asked().contains(&FetchTopic::Tasks(query)));
    stage.press(":prs slug<Enter>");
    assert!(stage.asked().contains(&FetchTopic::Pulls(Some(project_id(2)))));
}

#[test]
fn a_command_is_completed_and_an_unknown_one_named() {
    let mut stage = stage();
    stage.press(":pro<Tab>");
    assert_eq!(stage.state.prompt.as_ref().unwrap().as_str(), "projects");
    stage.press("<Esc>:ch<Tab>s<Tab>");
    assert_eq!(stage.state.prompt.as_ref().unwrap().as_str(), "chat slug");
    stage.press("<Esc>:taks<Enter>");
    assert!(stage.show().contains("there is no command :taks. Did you mean :tasks?"));
    stage.press(":tasks webb<Enter>");
    assert!(stage.show().contains("there is no project webb. Did you mean web?"));
    assert_eq!(stage.state.filter.query, TaskListQuery::default());
}

#[test]
fn enter_on_a_project_lists_its_tasks() {
    let mut stage = stage();
    stage.press("Pj<Enter>");
    assert_eq!(stage.state.pane, Pane::Tasks);
    assert_eq!(stage.state.filter.query.project.as_deref(), Some("web"));
}

#[test]
fn a_pull_request_is_merged_and_leads_to_its_task() {
    let mut stage = stage();
    stage.press("U");
    stage.answer(FetchTopic::Pulls(None), pulls());
    stage.press("my");
    let deed = stage.wanted().into_iter().find_map(|want| match want {
        ScreenEffect::Do { deed, .. } => Some(deed),
        _ => None,
    });
    assert_eq!(
        deed,
        Some(ScreenAction::Merge { task: task_id(30), pull_request: pull_request_id() })
    );
    stage.press("<Esc>jm");
    assert!(stage.state.dialog.is_none());
    assert!(stage.show().contains("pull request #8 is merged"));
    stage.press("o");
    assert_eq!((stage.state.pane, stage.state.task), (Pane::Tasks, Some(task_id(30))));
}

/// A log of many lines in one job.
fn long_log(stage: &mut Stage) {
    stage.press("7");
    let event = |number: u64| {
        let text = if number % 40 == 7 { "the Needle is here" } else { "hay" };
        json!({ "number": number, "at": ago(40), "at_ms": number * 1000, "event": "output",
            "data": { "stream": "stdout", "text": format!("{number}: {text}") } })
    };
    let events = json!((0..120).map(event).collect::<Vec<_>>());
    let events = serde_json::from_value(events).unwrap();
    stage.answer(FetchTopic::Log(job_id(4)), TopicAnswer::Log(events, false));
    stage.show();
}

/// The number of the line that was found.
fn found(stage: &mut Stage) -> Option<String> {
    stage.show();
    let shown = stage.show();
    let at = stage.state.found?;
    let top = stage.state.drawn.tops[&crate::commands::screen::state::ScrollArea::Log];
    let page = stage.state.drawn.pages[&crate::commands::screen::state::ScrollArea::Log];
    assert!((top..top + page).contains(&at), "{at} is not in sight: {shown}");
    Some(stage.state.drawn.matches.iter().position(|it| *it == at)?.to_string())
}

#[test]
fn a_log_is_searched_and_gone_through_match_by_match() {
    let mut stage = stage_with_story();
    long_log(&mut stage);
    assert!(stage.state.follow);
    stage.press("g/needle<Enter>");
    assert_eq!(found(&mut stage).as_deref(), Some("0"));
    assert!(!stage.state.follow, "what was found stays in sight");
    for wanted in ["1", "2", "0"] {
        stage.press("n");
        assert_eq!(found(&mut stage).as_deref(), Some(wanted));
    }
    stage.press("N");
    assert_eq!(found(&mut stage).as_deref(), Some("2"));
    stage.press("/nowhere<Enter>");
    stage.show();
    assert!(stage.show().contains("`nowhere` is not in it"));
}

#[test]
fn a_slash_in_the_list_still_filters_the_tasks() {
    let mut stage = stage_with_story();
    stage.press("<Esc>/login");
    assert!(stage.state.filter.typing && !stage.state.search.typing);
}

#[test]
fn nothing_of_a_long_line_is_lost() {
    let command = format!("PATH=/opt/venv/bin:$PATH pytest -q {}", "tests/unit/".repeat(12));
    for keys in ["9", "9w>>>>>>>>>>>>>>>>>>>>"] {
        let mut stage = stage_with_story();
        stage.press("9");
        let check = json!({ "check": { "argv": ["sh", "-c", command] }, "tally": "passed", "rounds": 1,
            "exit_code": 0, "excerpt": "", "milliseconds": 412 });
        let evidence = json!({ "evidence": [{ "evidence_id": format!("evd_{:032x}", 1), "unit": "page",
            "attempt": 1, "commit": "0123456789abcdef0123", "state": "passed", "stale": false,
            "checks": [check], "attempts": 1, "opened_at": ago(200), "ended_at": ago(190) }],
            "feedback": { "verdict": "approved", "critical_issues": [], "major_issues": [],
                "minor_issues": [], "summary": "" } });
        let evidence = TopicAnswer::Evidence(Box::new(serde_json::from_value(evidence).unwrap()));
        stage.answer(FetchTopic::Evidence(task_id(30)), evidence);
        for key in keys.chars().skip(1) {
            stage.press(&key.to_string());
            stage.show();
        }
        let shown = stage.show();
        let end = "tests/unit/tests/unit/";
        assert!(shown.contains(end), "{keys}: {shown}");
        if keys == "9" {
            let whole: String = shown.split_whitespace().collect();
            assert_eq!(whole.matches("tests/unit/").count(), 12, "{shown}");
        } else {
            assert!(stage.state.shift > 0 && stage.state.drawn.overflow == 0, "{shown}");
            stage.press("<lt>");
            assert!(stage.state.shift > 0);
            stage.press("w");
            assert_eq!(stage.state.shift, 0);
        }
    }
}

#[test]
fn a_log_has_no_raw_json_in_it() {
    let mut stage = stage_with_story();
    stage.press("7");
    stage.answer(FetchTopic::Log(job_id(4)), log());
    let shown = stage.show();
    assert!(shown.contains("▸ Run tests: sh tests/switch.sh"), "{shown}");
    assert!(!shown.contains("{\""), "{shown}");
}

#[test]
fn what_is_in_sight_is_opened_in_another_program() {
    let open = |stage: &mut Stage, keys: &str| {
        stage.press(keys);
        stage.wanted().into_iter().find_map(|want| match want {
            ScreenEffect::Show(viewer, content) => Some((viewer, content)),
            _ => None,
        })
    };
    let mut stage = stage_with_story();
    let Some((ExternalViewer::Editor, ViewerContent::Text("txt", plan))) = open(&mut stage, "5e")
    else {
        panic!("no plan")
    };
    assert!(plan.contains("Decide how the switch looks"), "{plan}");
    long_log(&mut stage);
    let Some((ExternalViewer::Pager, ViewerContent::Text("txt", log))) = open(&mut stage, "|")
    else {
        panic!("no log")
    };
    assert!(log.contains("0: hay") && log.contains("119: hay"), "all of it");
    assert_eq!(open(&mut stage, "8e"), None, "there is no diff yet");
    stage.answer(FetchTopic::Timeline(task_id(30)), story(delivered(30)));
    let diff = Some((ExternalViewer::Editor, ViewerContent::Diff(pull_request_id())));
    assert_eq!(open(&mut stage, "e"), diff);
    let failure = CliError::new(CliErrorKind::Usage, "vi could not be run");
    stage.tell(ScreenMessage::Returned(Err(failure)));
    assert!(stage.show().contains("vi could not be run"));
}

/// What the project manager is asked.
fn asked(stage: &mut Stage) -> Option<(u64, Vec<Value>)> {
    stage.wanted().into_iter().find_map(|want| match want {
        ScreenEffect::Ask { number, messages, .. } => Some((number, messages)),
        _ => None,
    })
}

#[test]
fn the_project_manager_is_asked_with_all_that_was_said_before() {
    let mut stage = stage();
    stage.press("CHello<Enter>");
    let (number, messages) = asked(&mut stage).unwrap();
    assert_eq!(messages, [json!({ "role": "user", "content": "Hello" })]);
    stage.press("not yet<Enter>");
    assert!(asked(&mut stage).is_none(), "one question after the other");
    stage.tell(ScreenMessage::Replied(number, Ok(Some("Good ".into()))));
    stage.tell(ScreenMessage::Replied(number, Ok(Some("day".into()))));
    stage.tell(ScreenMessage::Replied(number, Ok(None)));
    stage.press("<Enter>");
    let (_, messages) = asked(&mut stage).unwrap();
    let said = [("user", "Hello"), ("assistant", "Good day"), ("user", "not yet")];
    assert_eq!(messages, said.map(|(role, words)| json!({ "role": role, "content": words })));
}

#[test]
fn an_answer_that_breaks_off_or_is_stopped_was_not_said() {
    let mut stage = stage();
    stage.press("Cone<Enter>");
    let (number, _) = asked(&mut stage).unwrap();
    stage.tell(ScreenMessage::Replied(number, Ok(Some("half".into()))));
    let broke = CliError::new(CliErrorKind::Unreachable, "the answer broke off");
    stage.tell(ScreenMessage::Replied(number, Err(broke)));
    assert!(stage.show().contains("the answer broke off"));
    stage.press("two<Enter>");
    let (number, messages) = asked(&mut stage).unwrap();
    assert_eq!(messages, [json!({ "role": "user", "content": "two" })]);
    stage.press("<Esc>");
    assert!(matches!(stage.wanted().last(), Some(ScreenEffect::StopAsking)));
    stage.tell(ScreenMessage::Replied(number, Ok(Some("too late".into()))));
    assert_eq!(stage.state.chat.turns, [(ChatSpeaker::Person, "two".to_owned())]);
}

#[test]
fn what_is_typed_in_the_conversation_is_no_command_until_it_is_left() {
    let mut stage = stage();
    stage.press("Cqcx");
    assert_eq!(stage.state.chat.input.as_str(), "qcx");
    stage.press("<Esc>2");
    assert_eq!((stage.state.pane, stage.state.focus), (Pane::Inbox, Focus::List));
    stage.press("C");
    assert_eq!(stage.state.chat.input.as_str(), "qcx", "what was typed is kept");
}
