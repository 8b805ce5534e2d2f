//! Coding agents: what they do becomes events, and whatever they do, a turn ends.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use cynode_core::{
    ids::SkillId,
    nodes::{JobEventData, WorkStopReason},
    skills::{SelectedSkill, SkillFile},
    workflow::jobs::WorkerChoice,
};
use cynode_node::workers::{TurnOutcome, WorkerError, WorkerInstruction};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Bench, Line, People, put};

const RECIPE: &str = r#"
    name = "fake"
    title = "Fake"
    licence = "none"
    dialect = "chat"
    program = ["/usr/bin/python3", "{agent}/agent.py"]
    version = ["/usr/bin/python3", "{agent}/agent.py"]
    packages = { fake = "1.0.0" }
    env = { FAKE_ENV = "{models} {key} {model}", FAKE_START = "HOW" }
    files = { ".fake/config" = "model={model}" }
    skills = ".fake/skills"
    free = { mode = "free" }
    asking = { mode = "asking" }
"#;

/// A job for the agent of the tests, which starts like that.
fn bench(start: &str) -> Bench {
    let mut bench = Bench::new(WorkerChoice::Acp { agent: "fake".into() });
    let recipes = bench.folder.path().join("recipes");
    put(&recipes.join("fake.toml"), &RECIPE.replace("HOW", start));
    bench.recipes = bench.recipes.with_folder(&recipes).unwrap();
    put(&bench.agents().join("fake/agent.py"), include_str!("agent.py"));
    let made_of = json!({ "packages": { "fake": "1.0.0" }, "native": {} });
    let mark = json!({ "agent": "fake", "made_of": made_of }).to_string();
    put(&bench.agents().join("fake/cynode-agent.json"), &mark);
    bench
}

/// The same, with people who are asked.
fn asking() -> Bench {
    let mut bench = bench("");
    bench.ask_permission = true;
    bench
}

/// The values that the agent noted in a file, one a line.
fn noted(bench: &Bench, name: &str) -> Vec<Value> {
    let text = bench.file(name).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn turn(stop: WorkStopReason, said: &str) -> TurnOutcome {
    TurnOutcome { said: said.into(), ..TurnOutcome::new(stop) }
}

fn said(text: &str) -> JobEventData {
    JobEventData::Message { text: text.into() }
}

/// The events with words that were told in pieces put together: where a piece ends is a matter of time.
fn joined(events: Vec<JobEventData>) -> Vec<JobEventData> {
    let mut joined: Vec<JobEventData> = Vec::new();
    for happened in events {
        match (joined.last_mut(), &happened) {
            (Some(JobEventData::Message { text }), JobEventData::Message { text: more }) => {
                text.push_str(more);
            }
            _ => joined.push(happened),
        }
    }
    joined
}

#[tokio::test]
async fn what_an_agent_does_is_told_in_order_and_its_last_words_are_kept() {
    let (turn, mut heard, _) = bench("").turn("greet").await;
    let usage = json!({ "totalTokens": 12 });
    assert_eq!(turn, TurnOutcome { usage, ..self::turn(WorkStopReason::EndTurn, "Hello.") });
    let JobEventData::Session { resumed: false, .. } = heard.remove(0) else { panic!("{heard:?}") };
    let heard = joined(heard);
    let tool = |status: &str| JobEventData::Tool {
        call: "call-1".into(),
        title: "ls".into(),
        status: status.into(),
        input: json!({ "command": "ls" }),
    };
    let entries = json!([{ "content": "greet", "priority": "high", "status": "pending" }]);
    let expected = [
        JobEventData::Prompt { text: "greet".into() },
        JobEventData::Reasoning { text: "Hm.".into() },
        said("I look."),
        tool("pending"),
        JobEventData::Plan { entries },
        tool("completed"),
        JobEventData::Usage { usage: json!({ "used": 10, "size": 100 }) },
        said("Hello."),
    ];
    assert_eq!(heard, expected, "S004-146: what the agent does is reported in order");
}

#[tokio::test]
async fn an_agent_gets_the_gate_the_environment_and_the_files_of_its_recipe_and_no_token() {
    let bench = bench("");
    bench.turn("greet").await;
    let gate = json!({ "type": "http", "name": "cynode", "url": "http://127.0.0.1:4002/mcp",
        "headers": [{ "name": "Authorization", "value": "Bearer sandbox" }] });
    let new = json!({ "cwd": "/work", "mcpServers": [gate], "fake": "http://127.0.0.1:4001 sandbox some/model",
        "file": "model=some/model" });
    assert_eq!(noted(&bench, "new"), [new]);
    assert_eq!(noted(&bench, "mode"), ["free"]);
}

/// The names of all files below a folder.
fn names_below(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        names.push(entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            names.extend(names_below(&entry.path()));
        }
    }
    names
}

#[tokio::test]
async fn skills_are_in_the_home_of_an_agent_in_its_own_format_and_not_in_its_workspace() {
    let mut bench = bench("");
    let skill = |name: &str, path: &str| SelectedSkill {
        skill_id: SkillId::from_uuid(uuid::Uuid::nil()),
        name: name.into(),
        description: "When code changed.".into(),
        version: 2,
        body: "Run `scripts/check.sh`.".into(),
        files: vec![SkillFile {
            path: path.into(),
            text: "#!/bin/sh\ntrue\n".into(),
            executable: true,
        }],
        untrusted: false,
    };
    bench.assignment.work.context.skills = vec![
        skill("run-the-tests", "scripts/check.sh"),
        // What a broken orchestrator might send stays in the folder of skills.
        skill("../../work/planted", "planted.sh"),
        skill("escapes", "../../../../work/planted.sh"),
    ];
    bench.turn("greet").await;
    let folder = bench.sandbox.home.join(".fake/skills/run-the-tests");
    let document = "---\nname: run-the-tests\ndescription: \"When code changed.\"\n---\n\nRun `scripts/check.sh`.\n";
    assert_eq!(fs::read_to_string(folder.join("SKILL.md")).unwrap(), document);
    let script = folder.join("scripts/check.sh");
    assert_eq!(fs::read_to_string(&script).unwrap(), "#!/bin/sh\ntrue\n");
    assert_ne!(fs::metadata(&script).unwrap().permissions().mode() & 0o111, 0);
    let mut worked_on = names_below(&bench.sandbox.work);
    worked_on.sort();
    assert_eq!(
        worked_on,
        ["mode", "new", "prompts"],
        "nothing of a skill becomes part of a change"
    );
    let escaped = names_below(&bench.sandbox.home.join(".fake/skills/escapes"));
    assert_eq!(escaped, ["SKILL.md"]);
}

#[tokio::test]
async fn an_agent_that_is_to_ask_is_put_into_the_mode_in_which_it_does() {
    let bench = asking();
    bench.turn("greet").await;
    assert_eq!(noted(&bench, "mode"), ["asking"]);
}

#[tokio::test]
async fn noise_long_lines_and_unknown_messages_do_not_disturb() {
    let (turn, heard, _) = bench("").turn("noise").await;
    assert_eq!(turn, self::turn(WorkStopReason::EndTurn, "Still here."));
    let left_out =
        heard.iter().any(|it| matches!(it, JobEventData::Truncated { bytes } if *bytes > 16 << 20));
    let output: String = heard
        .iter()
        .filter_map(|it| match it {
            JobEventData::Output { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert!(left_out, "{heard:?}");
    for line in ["Listening on port 1\n", "[]\n", "a complaint\n"] {
        assert!(output.contains(line), "{output}");
    }
    assert!(!heard.contains(&said("not mine")), "{heard:?}");
}

#[tokio::test]
async fn an_agent_that_dies_has_crashed_and_its_last_complaint_says_why() {
    let bench = bench("");
    let (mut session, mut line) = bench.start().await.unwrap();
    let crashed =
        turn(WorkStopReason::Crashed, "fake ended in the middle of its turn. panic: no more");
    let ended = session.run_prompt("die", &mut line.ears).await.unwrap();
    assert_eq!(ended, crashed, "B004-50: the end is noticed at once");
    let again = session.run_prompt("greet", &mut line.ears).await.unwrap();
    assert_eq!(again.stop, WorkStopReason::Crashed);
}

#[tokio::test]
async fn an_agent_that_says_nothing_is_inactive_and_noise_is_nothing() {
    for text in ["hang", "babble"] {
        let mut bench = bench("");
        bench.limits.inactive = Duration::from_millis(300);
        bench.limits.grace = Duration::from_millis(100);
        let (turn, ..) = bench.turn(text).await;
        assert_eq!(turn, self::turn(WorkStopReason::Inactive, ""), "{text}");
    }
}

#[tokio::test]
async fn an_agent_that_works_for_ever_is_out_of_time() {
    let mut bench = bench("");
    bench.limits.until = Instant::now() + Duration::from_secs(2);
    bench.limits.grace = Duration::from_millis(100);
    let (turn, ..) = bench.turn("work for ever").await;
    assert_eq!(turn, self::turn(WorkStopReason::Timeout, ""));
}

#[tokio::test]
async fn an_agent_that_goes_in_circles_makes_no_progress() {
    let (turn, heard, _) = bench("").turn("go in circles").await;
    assert_eq!(turn, self::turn(WorkStopReason::NoProgress, ""));
    let ended = |it: &&JobEventData| matches!(it, JobEventData::Tool { status, .. } if status == "completed");
    assert!(heard.iter().filter(ended).count() >= 24);
}

#[tokio::test]
async fn an_agent_gets_no_files_and_no_commands_from_outside_its_sandbox() {
    let (turn, ..) = bench("").turn("use yours").await;
    assert_eq!(turn, self::turn(WorkStopReason::EndTurn, "-32601 -32601 -32601"));
}

#[tokio::test]
async fn permission_is_asked_with_the_exact_command_and_given_for_this_time_only() {
    for (allow, state, outcome) in [
        (true, "allowed", r#"{"outcome": "selected", "optionId": "yes"}"#),
        (false, "refused", r#"{"outcome": "selected", "optionId": "no"}"#),
    ] {
        let mut bench = asking();
        bench.people = Arc::new(People { allow, ..People::default() });
        let (turn, heard, _) = bench.turn("ask").await;
        assert_eq!(turn, self::turn(WorkStopReason::EndTurn, outcome));
        let input = json!({ "kind": "execute", "input": { "command": "rm -rf build" } });
        assert_eq!(*bench.people.asked.lock().unwrap(), [("rm -rf build".to_owned(), input)]);
        let permissions: Vec<_> =
            heard.into_iter().filter(|it| matches!(it, JobEventData::Permission { .. })).collect();
        let permission = |state: &str| JobEventData::Permission {
            request: "call-1".into(),
            title: "rm -rf build".into(),
            state: state.into(),
        };
        assert_eq!(permissions, [permission("asked"), permission(state)]);
    }
}

#[tokio::test]
async fn an_agent_that_offers_no_way_to_refuse_is_refused_all_the_same() {
    let (turn, ..) = asking().turn("ask, but not whether").await;
    assert_eq!(turn, self::turn(WorkStopReason::EndTurn, r#"{"outcome": "cancelled"}"#));
}

#[tokio::test]
async fn an_agent_that_asks_without_being_told_to_waits_for_a_person_all_the_same() {
    let mut bench = bench("");
    bench.people = Arc::new(People { allow: false, ..People::default() });
    let (turn, ..) = bench.turn("ask").await;
    assert_eq!(
        turn,
        self::turn(WorkStopReason::EndTurn, r#"{"outcome": "selected", "optionId": "no"}"#)
    );
}

#[tokio::test]
async fn more_questions_than_people_can_have_open_are_refused_at_once() {
    let mut bench = asking();
    bench.people = Arc::new(People { silent: true, ..People::default() });
    let (turn, heard, _) = bench.turn("ask much").await;
    assert_eq!(turn, self::turn(WorkStopReason::EndTurn, "12 refused"));
    assert_eq!(bench.people.asked.lock().unwrap().len(), 8);
    let refused = |it: &&JobEventData| matches!(it, JobEventData::Permission { state, .. } if state == "refused");
    assert_eq!(heard.iter().filter(refused).count(), 12);
}

#[tokio::test]
async fn whoever_waits_for_a_person_is_not_inactive_but_can_be_cancelled() {
    let mut bench = asking();
    bench.people = Arc::new(People { silent: true, ..People::default() });
    bench.limits.inactive = Duration::from_millis(200);
    let (mut session, mut line) = bench.start().await.unwrap();
    let cancel = async {
        Line::until(&mut line.events, |it| matches!(it, JobEventData::Permission { .. })).await;
        let asked = Instant::now();
        tokio::time::sleep_until(asked + Duration::from_millis(600)).await;
        line.orders.send(WorkerInstruction::Cancel).await.unwrap();
    };
    let (turn, ()) = tokio::join!(session.run_prompt("ask", &mut line.ears), cancel);
    assert_eq!(turn.unwrap(), self::turn(WorkStopReason::Cancelled, r#"{"outcome": "cancelled"}"#));
}

#[tokio::test]
async fn a_cancelled_agent_stops_by_itself_or_is_given_up() {
    for (text, said) in [("wait", "Waiting.Stopped."), ("hang", "")] {
        let mut bench = bench("");
        bench.limits.grace = Duration::from_millis(500);
        let (mut session, mut line) = bench.start().await.unwrap();
        let cancel = async {
            Line::until(&mut line.events, |it| matches!(it, JobEventData::Prompt { .. })).await;
            line.orders.send(WorkerInstruction::Cancel).await.unwrap();
        };
        let (turn, ()) = tokio::join!(session.run_prompt(text, &mut line.ears), cancel);
        let wanted = self::turn(WorkStopReason::Cancelled, said);
        assert_eq!(turn.unwrap(), wanted, "B004-39: {text}");
    }
}

#[tokio::test]
async fn an_agent_is_told_in_the_middle_and_goes_on_in_the_same_session() {
    let bench = bench("");
    let (mut session, mut line) = bench.start().await.unwrap();
    let tell = async {
        Line::until(&mut line.events, |it| matches!(it, JobEventData::Prompt { .. })).await;
        line.orders.send(WorkerInstruction::Tell("Leave the tests out.".into())).await.unwrap();
    };
    let (turn, ()) = tokio::join!(session.run_prompt("wait", &mut line.ears), tell);
    assert_eq!(
        turn.unwrap(),
        self::turn(WorkStopReason::EndTurn, "You said: Leave the tests out."),
        "S004-078: the agent goes on with the rest"
    );
    let prompts = noted(&bench, "prompts");
    assert_eq!(prompts, ["wait", "Leave the tests out."], "S004-071: it is told while it works");
    assert_eq!(noted(&bench, "new").len(), 1);
}

#[tokio::test]
async fn a_paused_agent_does_nothing_until_it_may_go_on() {
    let bench = bench("");
    let (mut session, mut line) = bench.start().await.unwrap();
    let pause = async {
        Line::until(&mut line.events, |it| matches!(it, JobEventData::Prompt { .. })).await;
        line.orders.send(WorkerInstruction::Pause).await.unwrap();
        let paused = |it: &JobEventData| matches!(it, JobEventData::Note { text } if text == "The agent is paused.");
        Line::until(&mut line.events, paused).await;
        assert_eq!(noted(&bench, "prompts"), ["wait"], "S004-074: it does nothing");
        line.orders.send(WorkerInstruction::Resume).await.unwrap();
    };
    let (turn, ()) = tokio::join!(session.run_prompt("wait", &mut line.ears), pause);
    assert_eq!(turn.unwrap().stop, WorkStopReason::EndTurn, "S004-073: it goes on to its end");
    assert_eq!(noted(&bench, "prompts").len(), 2, "S004-073, S004-074: only when it is told so");
}

#[tokio::test]
async fn a_session_is_taken_up_again_after_a_kill_and_what_it_tells_again_is_not_told() {
    for (start, method) in [("", "session/resume"), ("loads", "session/load")] {
        let mut bench = bench(start);
        let (mut session, mut line) = bench.start().await.unwrap();
        session.run_prompt("greet", &mut line.ears).await.unwrap();
        let id = session.session_id().unwrap().to_owned();
        drop(session);
        bench.resume = Some(id.clone());
        let (mut session, mut line) = bench.start().await.unwrap();
        assert_eq!((session.session_id(), session.is_resumed()), (Some(&*id), true));
        assert_eq!(noted(&bench, "taken"), [json!({ "method": method, "servers": 1 })]);
        assert_eq!(line.heard(), [JobEventData::Session { session: id, resumed: true }]);
        let turn = session.run_prompt("go on", &mut line.ears).await.unwrap();
        assert_eq!(turn, self::turn(WorkStopReason::EndTurn, "You said: go on"));
    }
}

#[tokio::test]
async fn a_session_that_is_lost_is_begun_anew_and_that_is_said() {
    let mut bench = bench("");
    put(&bench.sandbox.home.join("sessions"), "another\n");
    bench.resume = Some("lost".into());
    let (session, mut line) = bench.start().await.unwrap();
    assert!(!session.is_resumed());
    let note = "The session could not be taken up again: fake answered session/resume with: Internal error: no such session";
    let [JobEventData::Note { text }, JobEventData::Session { resumed: false, .. }] =
        &line.heard()[..]
    else {
        panic!()
    };
    assert_eq!(text, note);
}

#[tokio::test]
async fn other_ends_of_a_turn_have_their_own_names() {
    for (text, expected) in [
        ("refuse", turn(WorkStopReason::Refused, "")),
        ("too much", turn(WorkStopReason::Limit, "")),
        ("fail", turn(WorkStopReason::Failed, "Internal error: 402: the budget is spent")),
    ] {
        let (turn, ..) = bench("").turn(text).await;
        assert_eq!(turn, expected);
    }
    let (turn, ..) = bench("").turn("nonsense").await;
    assert_eq!(turn.stop, WorkStopReason::Failed);
    assert!(turn.said.starts_with("fake ended its turn with nonsense"), "{turn:?}");
}

#[tokio::test]
async fn an_agent_that_does_not_start_is_an_error_that_says_why() {
    let why = async |start: &str, change: fn(&mut Bench)| {
        let mut bench = bench(start);
        bench.limits.startup = Duration::from_secs(2);
        change(&mut bench);
        bench.start().await.map(drop).unwrap_err().to_string()
    };
    let nothing = |_: &mut Bench| {};
    assert_eq!(
        why("dies", nothing).await,
        "fake ended before it was ready; it wrote: cannot start"
    );
    let slow = why("babbles", nothing).await;
    assert!(slow.starts_with("fake was not ready within 2 s; it wrote: hello\nhello"), "{slow}");
    assert_eq!(why("newer", nothing).await, "fake answered initialize with: protocol version 2");
    assert_eq!(
        why("refuses", nothing).await,
        "fake answered session/new with: Internal error: no session today"
    );
    assert_eq!(
        why("", |bench| bench.assignment.work.models.clear()).await,
        "the work names no model for the agent fake"
    );
    assert_eq!(
        why("", |bench| bench.assignment.work.models = vec!["a\"b".into()]).await,
        r#"a model of the name "a\"b" cannot be given to an agent"#
    );
    assert_eq!(
        why("", |bench| fs::remove_file(bench.agents().join("fake/agent.py")).unwrap()).await,
        "the agent fake is not installed on this node: run `cynode-node agents install fake`"
    );
}

#[tokio::test]
async fn an_agent_without_a_recipe_is_not_started() {
    let bench = Bench::new(WorkerChoice::Acp { agent: "nobody".into() });
    let error = bench.start().await.map(drop).unwrap_err();
    assert!(matches!(error, WorkerError::NoRecipe(name) if name == "nobody"));
}
