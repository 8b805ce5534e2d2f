use super::{world::*, *};
use crate::{commands::screen::shelf::Query, failure::Kind};

/// Compares what is shown with what is kept.
fn same(name: &str, stage: &mut Stage) {
    let Size { width, height } = stage.state.size;
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let shown = stage.show();
    settings.bind(|| insta::assert_snapshot!(format!("{name}-{width}x{height}"), shown));
}

/// Plays a situation at both sizes and compares what is shown.
fn situation(name: &str, play: impl Fn(&mut Stage)) {
    for (width, height) in [(80, 24), (200, 60)] {
        let mut stage = Stage::new(width, height);
        play(&mut stage);
        stage.wait(200);
        same(name, &mut stage);
    }
}

fn list(stage: &mut Stage) {
    stage.answer(Topic::Tasks(Query::default()), tasks());
    stage.answer(Topic::Costs, costs());
}

/// The newest of the list, opened.
fn opened(stage: &mut Stage, part: &str) {
    list(stage);
    stage.press("<Enter>");
    stage.answer(Topic::Timeline(task_id(30)), story(timeline(30)));
    stage.press(part);
}

#[test]
fn an_installation_without_anything_says_what_to_do_first() {
    situation("empty", |stage| {
        stage.answer(Topic::Tasks(Query::default()), some_tasks(&[]));
        stage.answer(Topic::Approvals, Answer::Approvals(Vec::new()));
    });
}

#[test]
fn thirty_tasks_are_a_list_with_state_age_and_cost() {
    situation("tasks", |stage| {
        list(stage);
        waiting(stage);
        stage.press("jjj");
        stage.answer(Topic::Timeline(task_id(27)), story(timeline(27)));
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
        stage.answer(Topic::Log(job_id(4)), log());
    });
}

#[test]
fn a_diff_is_shown_file_by_file() {
    situation("diff", |stage| {
        list(stage);
        stage.press("<Enter>8");
        stage.answer(Topic::Timeline(task_id(30)), story(delivered(30)));
        stage.answer(Topic::Files(pull_request_id()), files());
        stage.answer(Topic::Diff(pull_request_id(), "src/switch.tsx".into()), diff());
    });
}

#[test]
fn evidence_is_newest_first_with_what_was_found() {
    situation("evidence", |stage| {
        opened(stage, "9");
        stage.answer(Topic::Evidence(task_id(30)), evidence());
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
        stage.answer(Topic::Approval(approval_id(1)), looked_at());
    });
}

#[test]
fn a_call_is_approved_after_a_question_that_says_what() {
    situation("inbox-sure", |stage| {
        list(stage);
        waiting(stage);
        stage.press("2jj");
        stage.answer(Topic::Approval(approval_id(1)), looked_at());
        stage.press("a");
    });
}

#[test]
fn nodes_show_how_they_are_and_what_they_have_to_do() {
    situation("nodes", |stage| {
        stage.press("3");
        stage.answer(Topic::Nodes, nodes());
        stage.press("j");
    });
}

#[test]
fn spend_shows_sums_and_budgets_with_bars() {
    situation("spend", |stage| {
        stage.press("4");
        stage.answer(Topic::ByProject, by_project());
        stage.answer(Topic::ByModel, by_model());
        stage.answer(Topic::Budgets, budgets());
    });
}

#[test]
fn without_the_server_what_is_known_stays_and_it_is_said() {
    situation("disconnected", |stage| {
        list(stage);
        let why = "no answer from http://127.0.0.1:12080: Connection refused (os error 111)";
        stage.tell(Message::Deaf(Failure::new(Kind::Unreachable, why)));
        stage.wait(12_000);
    });
}

#[test]
fn what_could_not_be_had_says_why_and_what_to_do() {
    situation("refused", |stage| {
        stage.press("4");
        stage.answer(Topic::ByProject, by_project());
        stage.answer(Topic::ByModel, by_model());
        let failure = Failure::new(Kind::Refused, "only admins see all budgets");
        stage.refuse(Topic::Budgets, failure.fix("ask an admin for the role"));
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
        let failure = Failure {
            code: Some("unauthenticated".into()),
            ..Failure::new(Kind::Refused, "the session has ended")
        };
        stage.refuse(Topic::Nodes, failure.fix("log in with `cynork login`"));
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
