use super::*;
use crate::{
    client::ApiClient,
    config::{CliEnvironment, ConfigFile},
    context::CliContext,
    output::{CliOutput, CliOutputFormat},
};

#[test]
fn what_is_asked_for_is_shown_exactly_and_obeyed_by_no_terminal() {
    let arguments = json!({ "title": "run", "input": { "command": ["rm", "-rf", "\u{1b}[2Kx"] } });
    let shown = render_arguments(Some(&arguments)).join("\n");
    assert!(shown.contains("title:     run"), "{shown}");
    assert!(shown.contains("\"rm\"") && shown.contains("\"-rf\""), "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
    let hidden = json!({ "text": "a\nb\u{1b}[8m\u{202e}c" });
    assert_eq!(
        render_arguments(Some(&hidden)),
        ["text:      a", "           b\\u{1b}[8m\\u{202e}c"]
    );
    assert_eq!(render_arguments(None), ["what exactly is not shown any more"]);
}

#[test]
fn names_of_arguments_hide_nothing_either_and_each_argument_has_a_line() {
    let arguments = json!({ "cmd": "", "x\u{1b}[2K\ny": "\u{200b}a\u{e0041}", "z": "end\n" });
    assert_eq!(
        render_arguments(Some(&arguments)),
        ["cmd:", "x\\u{1b}[2K\\ny: \\u{200b}a\\u{e0041}", "z:         end", ""]
    );
    assert_eq!(render_arguments(Some(&json!({}))), ["without arguments"]);
    assert_eq!(render_arguments(Some(&json!(""))), ["arguments:"]);
}

#[test]
fn what_is_written_for_the_person_is_not_sent() {
    let text = "# a remark\n\nkept  \n# another\nand this\n";
    assert_eq!(strip_comments(text), "kept\nand this");
    assert_eq!(strip_comments("# only\n"), "");
}

fn wait() -> WaitId {
    "wai_0192d5c8b6f07cc1a1a3c2b4d5e6f708".parse().unwrap()
}

/// What comes of typed lines, the first of which answers `question`.
fn typed(question: PendingQuestion, lines: &[&str]) -> (Option<AnswerAction>, Option<String>) {
    let dir = tempfile::tempdir().unwrap();
    let environment = CliEnvironment::default();
    let context = CliContext {
        client: ApiClient::new("http://127.0.0.1:1").unwrap(),
        // Nothing is drawn in a test.
        out: CliOutput::new(CliOutputFormat::Json, false),
        file: ConfigFile::load_config(Some(dir.path().join("none")), &environment).unwrap(),
        environment,
        yes: false,
        currency: std::sync::OnceLock::new(),
        subject: std::sync::OnceLock::new(),
    };
    let task = json!({
        "id": "tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708", "project_id": "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "name": "a", "description": "A", "acceptance_criteria": [],
        "budget": { "max_cost_micros": null, "max_tokens": null }, "state": "running", "depends_on": [],
        "created_by": "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
    });
    let task = serde_json::from_value(task).unwrap();
    let mut scene = TaskFollower::new(&context, task, true, std::time::Duration::ZERO);
    scene.asked = Some(question);
    let deed = lines.iter().find_map(|line| scene.interpret_answer(line));
    let asked = scene.asked.map(|question| format!("{question:?}"));
    let asked = asked.map(|asked| asked.split('(').next().unwrap_or_default().to_owned());
    (deed, asked)
}

fn asks(name: &str) -> (Option<AnswerAction>, Option<String>) {
    (None, Some(name.to_owned()))
}

#[test]
fn a_plan_is_carried_out_only_by_a_clear_yes() {
    for line in ["y", "yes", "Yes", "Y"] {
        assert_eq!(
            typed(PendingQuestion::Plan(wait()), &[line]),
            (Some(AnswerAction::Approve(wait())), None),
            "{line}"
        );
    }
    for line in ["", "x", "yy", "yes please", "ok"] {
        assert_eq!(typed(PendingQuestion::Plan(wait()), &[line]), asks("Plan"), "{line}");
    }
}

#[test]
fn who_says_no_and_why_has_it_planned_anew_and_who_says_no_more_is_asked_again() {
    assert_eq!(typed(PendingQuestion::Plan(wait()), &["n"]), asks("Why"));
    let why = AnswerAction::Refuse("too much".to_owned(), wait());
    assert_eq!(typed(PendingQuestion::Plan(wait()), &["n", "too much"]), (Some(why), None));
    assert_eq!(typed(PendingQuestion::Plan(wait()), &["no", ""]), asks("Plan"));
}

#[test]
fn a_task_is_given_up_only_by_saying_so_and_then_a_clear_yes() {
    for line in ["g", "G", "give up"] {
        assert_eq!(typed(PendingQuestion::Plan(wait()), &[line]), asks("GiveUp"), "{line}");
    }
    assert_eq!(
        typed(PendingQuestion::Plan(wait()), &["g", "y"]),
        (Some(AnswerAction::Abort), None)
    );
    for line in ["", "n", "no", "g", "ok"] {
        assert_eq!(typed(PendingQuestion::Plan(wait()), &["g", line]), asks("Plan"), "{line}");
    }
}

#[test]
fn without_an_editor_a_line_says_what_should_be_different() {
    assert_eq!(typed(PendingQuestion::Plan(wait()), &["e"]), asks("Otherwise"));
    assert_eq!(typed(PendingQuestion::Plan(wait()), &["edit", ""]), asks("Plan"));
    let deed = AnswerAction::Revise("tests first".to_owned(), wait());
    assert_eq!(typed(PendingQuestion::Plan(wait()), &["e", "tests first"]), (Some(deed), None));
}

#[test]
fn an_answer_is_taken_as_it_was_typed_and_silence_is_none() {
    let question = || PendingQuestion::Answer(wait(), "Which?".to_owned());
    assert_eq!(typed(question(), &[""]), asks("Answer"));
    assert_eq!(
        typed(question(), &["yes"]),
        (Some(AnswerAction::Answer(wait(), "yes".to_owned())), None)
    );
}

#[test]
fn a_call_is_allowed_by_yes_and_by_nothing_else() {
    let id = "apr_0192d5c8b6f07cc1a1a3c2b4d5e6f708";
    let call = || {
        let call = json!({ "approval_id": id, "agent_token_id": "agt_0192d5c8b6f07cc1a1a3c2b4d5e6f708",
            "project_id": null, "task_id": null, "tool": "sh", "arguments_digest": "",
            "policy_hash": "", "rules": [], "state": "asked", "asked_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-01-01T00:00:00Z" });
        PendingQuestion::Call(Box::new(serde_json::from_value(call).unwrap()))
    };
    assert_eq!(typed(call(), &["y"]), (Some(AnswerAction::Allow(id.to_owned(), true)), None));
    assert_eq!(typed(call(), &["n"]), (Some(AnswerAction::Allow(id.to_owned(), false)), None));
    assert_eq!(typed(call(), &["e"]), asks("Call"));
    assert_eq!(typed(call(), &[""]), asks("Call"));
}
