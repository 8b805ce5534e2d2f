//! Moves that are played.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use cynode_core::{
    nodes::{JobEventData, WorkStopReason},
    workflow::jobs::{RevisionFeedback, ScriptedMove, WorkerChoice},
};
use cynode_node::workers::TurnOutcome;
use serde_json::{Value, json};
use tokio::net::UnixListener;

use crate::support::Bench;

/// What a gate was asked, with the key that came with it.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// A gate with one tool, which refuses to be told nothing.
async fn gate(State(asked): State<Asked>, headers: HeaderMap, body: String) -> String {
    let request: Value = serde_json::from_str(&body).unwrap();
    let key = headers["authorization"].to_str().unwrap().to_owned();
    asked.lock().unwrap().push((key, request["params"].clone()));
    let schema =
        json!({ "type": "object", "properties": { "task_id": {}, "kind": {}, "summary": {} } });
    let result = match request["method"].as_str() {
        Some("tools/list") if request["params"]["cursor"].is_null() => {
            json!({ "tools": [], "nextCursor": "2" })
        }
        Some("tools/list") => json!({ "tools": [{ "name": "pm__report", "inputSchema": schema }] }),
        _ if request["params"]["arguments"]["summary"].is_null() => {
            json!({ "isError": true, "content": [{ "type": "text", "text": "refused: no summary" }] })
        }
        _ => json!({ "content": [{ "type": "text", "text": "noted" }] }),
    };
    json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }).to_string()
}

/// Plays the moves with a gate; also gives what the gate was asked.
async fn play(
    moves: Vec<ScriptedMove>,
) -> (Bench, TurnOutcome, Vec<JobEventData>, Vec<(String, Value)>) {
    let bench = Bench::new(WorkerChoice::Scripted { moves, revised: None });
    let asked = Asked::default();
    let router = Router::new().route("/mcp", post(gate)).with_state(Arc::clone(&asked));
    let listener = UnixListener::bind(bench.gate()).unwrap();
    let serve = axum::serve(listener, router);
    let (turn, heard, _) = tokio::select! {
        played = bench.turn("") => played,
        served = serve.into_future() => panic!("{served:?}"),
    };
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    (bench, turn, heard, asked)
}

fn run(script: &str) -> ScriptedMove {
    ScriptedMove::Run { argv: ["sh", "-c", script].map(str::to_owned).to_vec() }
}

fn tool(arguments: Value) -> ScriptedMove {
    ScriptedMove::Tool { name: "pm.report".into(), arguments }
}

#[tokio::test]
async fn moves_are_played_one_after_the_other() {
    let text = "it's \"here\"\n$HOME";
    let (bench, turn, heard, asked) = play(vec![
        ScriptedMove::Say { text: "I begin.".into() },
        ScriptedMove::Write { path: "deep/er/a.txt".into(), text: text.into() },
        ScriptedMove::Wait { milliseconds: 1 },
        run("cp deep/er/a.txt b.txt"),
        tool(json!({ "kind": "work_completed", "summary": "Done." })),
        ScriptedMove::Say { text: "I end.".into() },
    ])
    .await;
    assert_eq!(
        (turn.stop, turn.said.as_str(), turn.steps.len()),
        (WorkStopReason::EndTurn, "I end.", 1)
    );
    assert_eq!(bench.file("b.txt").as_deref(), Some(text));
    let task = bench.assignment.task_id.to_string();
    let arguments = json!({ "kind": "work_completed", "summary": "Done.", "task_id": task });
    let called = json!({ "name": "pm.report", "arguments": arguments });
    assert_eq!(asked.last().unwrap(), &("Bearer sandbox".to_owned(), called));
    let words: Vec<_> =
        heard.iter().filter(|it| matches!(it, JobEventData::Message { .. })).collect();
    assert_eq!(words.len(), 2);
    let reported = JobEventData::Tool {
        call: "step-5".into(),
        title: "pm.report".into(),
        status: "completed".into(),
        input: arguments,
    };
    assert!(heard.contains(&reported), "{heard:?}");
}

#[tokio::test]
async fn without_the_list_of_tools_nothing_is_called_with_half_of_its_arguments() {
    /// A gate that does not say what it has, the first so many times.
    async fn busy(
        State((left, asked)): State<(Arc<Mutex<u32>>, Asked)>,
        headers: HeaderMap,
        body: String,
    ) -> Result<String, StatusCode> {
        if body.contains("tools/list") {
            let mut left = left.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                return Err(StatusCode::SERVICE_UNAVAILABLE);
            }
        }
        Ok(gate(State(asked), headers, body).await)
    }
    let report = || tool(json!({ "kind": "work_completed", "summary": "Done." }));
    for (times, stop, called) in
        [(2, WorkStopReason::EndTurn, true), (u32::MAX, WorkStopReason::Failed, false)]
    {
        let bench = Bench::new(WorkerChoice::Scripted { moves: vec![report()], revised: None });
        let (left, asked) = (Arc::new(Mutex::new(times)), Asked::default());
        let state = (left, Arc::clone(&asked));
        let router = Router::new().route("/mcp", post(busy)).with_state(state);
        let serve = axum::serve(UnixListener::bind(bench.gate()).unwrap(), router);
        let (turn, ..) = tokio::select! {
            played = bench.turn("") => played,
            served = serve.into_future() => panic!("{served:?}"),
        };
        assert_eq!(turn.stop, stop, "{turn:?}");
        let asked = asked.lock().unwrap();
        let calls: Vec<_> =
            asked.iter().filter(|(_, asked)| asked["name"] == "pm.report").collect();
        let task = json!(bench.assignment.task_id.to_string());
        let whole = calls.iter().all(|(_, asked)| asked["arguments"]["task_id"] == task);
        assert_eq!((!calls.is_empty(), whole), (called, true), "{calls:?}");
    }
}

#[tokio::test]
async fn the_first_move_that_fails_ends_it() {
    for (failing, said) in [
        (run("echo oh; exit 2"), "sh -c echo oh; exit 2 failed with exit code 2: oh\n"),
        (tool(Value::Null), "pm.report: refused: no summary"),
        (ScriptedMove::Fail { text: "I give up.".into() }, "I give up."),
        (
            ScriptedMove::Write { path: "../a".into(), text: String::new() },
            "../a is not in the workspace",
        ),
    ] {
        let (bench, turn, ..) = play(vec![failing, run("touch after")]).await;
        assert_eq!((turn.stop, turn.said.as_str()), (WorkStopReason::Failed, said));
        assert_eq!(bench.file("after"), None);
    }
}

#[tokio::test]
async fn who_is_told_what_was_wrong_plays_the_other_moves() {
    let say = |text: &str| vec![ScriptedMove::Say { text: text.into() }];
    let told = RevisionFeedback { summary: "It was not good.".into(), findings: Vec::new() };
    for (feedback, revised, said) in [
        (None, Some(say("again")), "first"),
        (Some(told.clone()), Some(say("again")), "again"),
        (Some(told), None, "first"),
    ] {
        let mut bench = Bench::new(WorkerChoice::Scripted { moves: say("first"), revised });
        bench.assignment.work.context.revision_feedback = feedback;
        let (turn, ..) = bench.turn("").await;
        assert_eq!(turn.said, said);
    }
}
