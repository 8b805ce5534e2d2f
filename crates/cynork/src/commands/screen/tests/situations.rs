use super::{world::*, *};
use crate::{commands::screen::cache::TaskListQuery, failure::CliErrorKind};

/// Compares what is shown with what is kept.
fn same(name: &str, stage: &mut Stage) {
    let TerminalSize { width, height } = stage.state.size;
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let shown = stage.show();
    settings.bind(|| insta::assert_snapshot!(format!("{name}-{width}x{height}"), shown));
}

/// Plays a situation at all sizes and compares what is shown.
fn situation(name: &str, play: impl Fn(&mut Stage)) {
    for (width, height) in [(80, 24), (120, 36), (200, 60)] {
        let mut stage = Stage::new(width, height);
        play(&mut stage);
        stage.wait(200);
        same(name, &mut stage);
    }
}

fn list(stage: &mut Stage) {
    stage.answer(FetchTopic::Tasks(TaskListQuery::default()), tasks());
    stage.answer(FetchTopic::Costs, costs());
}

/// The newest of the list, opened.
fn opened(stage: &mut Stage, part: &str) {
    list(stage);
    stage.press("<Enter>");
    stage.answer(FetchTopic::Timeline(task_id(30)), story(timeline(30)));
    stage.press(part);
}

#[test]
fn an_installation_without_anything_says_what_to_do_first() {
    situation("empty", |stage| {
        stage.answer(FetchTopic::Tasks(TaskListQuery::default()), some_tasks(&[]));
        stage.answer(FetchTopic::Approvals, TopicAnswer::Approvals(Vec::new()));
    });
}

#[test]
fn thirty_tasks_are_a_list_with_state_age_and_cost() {
    situation("tasks", |stage| {
        list(stage);
        waiting(stage);
        stage.press("jjj");
        stage.answer(FetchTopic::Timeline(task_id(27)), story(timeline(27)));
    });
}

#[test]
fn a_filter_leaves_what_fits() {
    situation("filter", |stage| {
        list(stage);
        stage.press("/login");
    });
}

#[test]
fn a_running_task_shows_its_plan_as_boxes() {
    situation("plan", |stage| {
        opened(stage, "5");
        stage.press("j");
    });
}

#[test]
fn a_plan_that_waits_is_drawn_before_it_is_carried_out() {
    situation("planned", |stage| {
        list(stage);
        waiting(stage);
        stage.press("2o5");
        stage.answer(plan_of(24), planned());
    });
}

#[test]
fn the_timeline_tells_steps_and_waits_in_order() {
    situation("timeline", |stage| opened(stage, "6"));
}

#[test]
fn the_log_of_the_job_that_runs_is_followed() {
    situation("logs", |stage| {
        opened(stage, "7");
        stage.answer(FetchTopic::Log(job_id(4)), log());
    });
}

#[test]
fn a_diff_is_shown_file_by_file() {
    situation("diff", |stage| {
        list(stage);
        stage.press("<Enter>8");
        stage.answer(FetchTopic::Timeline(task_id(30)), story(delivered(30)));
        stage.answer(FetchTopic::Files(pull_request_id()), files());
        stage.answer(FetchTopic::Diff(pull_request_id(), "src/switch.tsx".into()), diff());
    });
}

#[test]
fn evidence_is_newest_first_with_what_was_found() {
    situation("evidence", |stage| {
        opened(stage, "9");
        stage.answer(FetchTopic::Evidence(task_id(30)), evidence());
    });
}

#[test]
fn the_inbox_shows_a_plan_exactly() {
    situation("inbox-plan", |stage| {
        list(stage);
        waiting(stage);
        stage.press("2");
        stage.answer(plan_of(24), planned());
    });
}

#[test]
fn the_inbox_shows_a_question_and_its_answer_is_typed_in_place() {
    situation("inbox-question", |stage| {
        list(stage);
        waiting(stage);
        stage.press("2jaTo the page.");
    });
}

#[test]
fn the_inbox_shows_a_call_exactly_with_what_hides_in_it() {
    situation("inbox-call", |stage| {
        list(stage);
        waiting(stage);
        stage.press("2jj");
        stage.answer(FetchTopic::Approval(approval_id(1)), looked_at());
    });
}

#[test]
fn a_call_is_approved_after_a_question_that_says_what() {
    situation("inbox-sure", |stage| {
        list(stage);
        waiting(stage);
        stage.press("2jj");
        stage.answer(FetchTopic::Approval(approval_id(1)), looked_at());
        stage.press("a");
    });
}

#[test]
fn a_task_that_asks_shows_its_question_and_how_to_answer_it() {
    situation("task-question", |stage| {
        list(stage);
        waiting(stage);
        stage.press("2jo");
    });
}

#[test]
fn a_task_that_asks_a_lot_still_shows_its_plan() {
    situation("task-long-question", |stage| {
        list(stage);
        waiting(stage);
        let mut story = timeline(22);
        let question = "Which of these is meant?\n".repeat(30);
        story["waits"] = serde_json::json!([{ "wait_id": wait_id(23), "reason": "human_input",
            "owner": "person", "question": question, "opened_at": ago(5) }]);
        stage.press("2jo");
        stage.answer(FetchTopic::Timeline(task_id(22)), world::story(story));
    });
}

#[test]
fn a_new_task_is_a_form() {
    situation("new-task", |stage| {
        list(stage);
        stage.press("c");
        stage.press("Add a switch for dark mode that remembers what was chosen, on every page and for every \
            person, also for whoever is not logged in<Enter>make test<Enter>sh tests/dark.sh<Tab><Tab>0.5");
    });
}

#[test]
fn a_task_that_failed_is_retried_with_words() {
    situation("retry", |stage| {
        list(stage);
        stage.press("jjjjjj<Enter>");
        let mut story = timeline(24);
        story["state"] = "failed".into();
        stage.answer(FetchTopic::Timeline(task_id(24)), world::story(story));
        stage.press("Rleave the database alone");
    });
}

#[test]
fn a_conversation_shows_who_said_what() {
    situation("chat", |stage| {
        list(stage);
        stage.press("CWhat is everybody working on?<Enter>");
        let number = stage.state.chat.number;
        for words in [
            "Two tasks are at work: `dark-mode-30` shows the switch, ",
            "and `rate-limit-24` \
            waits for a yes to its plan.\n\nNothing has failed today.",
        ] {
            stage.tell(ScreenMessage::Replied(number, Ok(Some(words.to_owned()))));
        }
        stage.tell(ScreenMessage::Replied(number, Ok(None)));
        stage.press("And what does it cost?");
    });
}

#[test]
fn projects_show_what_each_has_and_has_spent() {
    situation("projects", |stage| {
        list(stage);
        stage.press("P");
        stage.answer(FetchTopic::ByProject, by_project());
        stage.answer(FetchTopic::Repository(project_id(2)), repository());
    });
}

#[test]
fn pull_requests_of_all_projects_are_a_list() {
    situation("pulls", |stage| {
        list(stage);
        stage.press("U");
        stage.answer(FetchTopic::Pulls(None), pulls());
        stage.answer(FetchTopic::Pull(pull_request_id()), pull());
    });
}

#[test]
fn models_show_what_they_can_and_cost() {
    situation("models", |stage| {
        list(stage);
        stage.press("M");
        stage.answer(FetchTopic::Models, models());
    });
}

#[test]
fn a_command_is_typed_with_what_it_may_become() {
    situation("prompt", |stage| {
        list(stage);
        stage.press(":");
    });
}

#[test]
fn nodes_show_how_they_are_and_what_they_have_to_do() {
    situation("nodes", |stage| {
        stage.press("3");
        stage.answer(FetchTopic::Nodes, nodes());
        stage.press("j");
    });
}

#[test]
fn spend_shows_sums_and_budgets_with_bars() {
    situation("spend", |stage| {
        stage.press("4");
        stage.answer(FetchTopic::ByProject, by_project());
        stage.answer(FetchTopic::ByModel, by_model());
        stage.answer(FetchTopic::Budgets, budgets());
    });
}

#[test]
fn without_the_server_what_is_known_stays_and_it_is_said() {
    situation("disconnected", |stage| {
        list(stage);
        let why = "no answer from http://127.0.0.1:12080: Connection refused (os error 111)";
        stage.tell(ScreenMessage::Deaf(CliError::new(CliErrorKind::Unreachable, why)));
        stage.wait(12_000);
    });
}

#[test]
fn what_could_not_be_had_says_why_and_what_to_do() {
    situation("refused", |stage| {
        stage.press("4");
        stage.answer(FetchTopic::ByProject, by_project());
        stage.answer(FetchTopic::ByModel, by_model());
        let failure = CliError::new(CliErrorKind::Refused, "only admins see all budgets");
        stage.refuse(FetchTopic::Budgets, failure.with_fix("ask an admin for the role"));
    });
}

#[test]
fn help_lies_over_everything() {
    situation("help", |stage| {
        list(stage);
        stage.press("?");
    });
}

#[test]
fn whoever_is_not_logged_in_sees_a_form_that_hides_the_password() {
    situation("login", |stage| {
        let failure = CliError {
            code: Some("unauthenticated".into()),
            ..CliError::new(CliErrorKind::Refused, "the session has ended")
        };
        stage.refuse(FetchTopic::Nodes, failure.with_fix("log in with `cynork login`"));
        stage.press("correct horse");
    });
}

#[test]
fn below_sixty_columns_or_fifteen_rows_it_says_that_it_is_too_small() {
    for (width, height) in [(59, 24), (80, 14), (20, 5), (2, 1)] {
        let mut stage = Stage::new(width, height);
        list(&mut stage);
        same("too-small", &mut stage);
    }
    for (width, height) in [(60, 15), (119, 30), (120, 30)] {
        let mut stage = Stage::new(width, height);
        opened(&mut stage, "5");
        same("smallest", &mut stage);
    }
}
