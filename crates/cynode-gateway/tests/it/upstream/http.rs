//! Listing and calling over HTTP, in both eras.

use std::net::SocketAddr;
use std::time::Duration;

use cynode_gateway::upstream::{
    CallProgress, UpstreamCall, UpstreamError, UpstreamInput, UpstreamReply, UpstreamServer,
    UpstreamTransport,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::fake::{Answers, Era, Fake};
use super::support::{http, raw, say, text, upstreams};

const ALL: [(Era, Answers); 4] = [
    (Era::Modern, Answers::Json),
    (Era::Modern, Answers::Sse),
    (Era::Legacy, Answers::Json),
    (Era::Legacy, Answers::Sse),
];

#[tokio::test]
async fn all_pages_of_the_tools_are_listed() {
    for (era, answers) in ALL {
        let fake = Fake::start(era, answers).await;
        let tools = upstreams().list_server_tools(&http(&fake.url)).await.unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["echo", "mirror", "fail"], "{era:?} {answers:?}");
        let echo = &tools[0];
        assert_eq!(echo.title.as_deref(), Some("Echo"));
        assert_eq!(echo.description.as_deref(), Some("Says it again."));
        assert_eq!(echo.raw["outputSchema"], json!({"type": "object"}));
        assert_eq!(echo.raw["annotations"], json!({"readOnlyHint": true}));
        assert_eq!(echo.raw["vendor"], json!([1, 2]));
    }
}

#[tokio::test]
async fn a_tool_is_called_and_its_failure_is_a_result() {
    for (era, answers) in ALL {
        let fake = Fake::start(era, answers).await;
        let (upstreams, server) = (upstreams(), http(&fake.url));
        let echoed = say(&upstreams, &server, "echo", r#"{"text":"héllo"}"#).await.unwrap();
        assert_eq!(echoed, (r#"{"text":"héllo"}"#.to_owned(), false), "{era:?} {answers:?}");
        let failed = say(&upstreams, &server, "fail", "{}").await.unwrap();
        assert_eq!(failed, ("it failed".to_owned(), true), "{era:?} {answers:?}");
    }
}

#[tokio::test]
async fn an_error_of_the_protocol_is_passed_on() {
    for (era, answers) in ALL {
        let fake = Fake::start(era, answers).await;
        let error = say(&upstreams(), &http(&fake.url), "refuse", "{}").await.unwrap_err();
        assert!(
            matches!(&error, UpstreamError::Protocol { code: -32602, message, .. }
                if message == "not like this"),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn the_era_is_found_out_once_per_connection() {
    let fake = Fake::start(Era::Modern, Answers::Json).await;
    let (upstreams, server) = (upstreams(), http(&fake.url));
    for _ in 0..3 {
        say(&upstreams, &server, "echo", "{}").await.unwrap();
    }
    assert_eq!(fake.count("server/discover"), 1);
    assert_eq!(fake.count("initialize"), 0);
    assert_eq!(fake.count("tools/call"), 3);

    let fake = Fake::start(Era::Legacy, Answers::Json).await;
    let server = http(&fake.url);
    for _ in 0..3 {
        say(&upstreams, &server, "echo", "{}").await.unwrap();
    }
    assert_eq!(
        fake.methods(),
        [
            "server/discover",
            "initialize",
            "notifications/initialized",
            "tools/call",
            "tools/call",
            "tools/call"
        ]
    );
}

#[tokio::test]
async fn a_lost_session_is_opened_anew_and_the_call_made_once_again() {
    let fake = Fake::start(Era::Legacy, Answers::Json).await;
    let (upstreams, server) = (upstreams(), http(&fake.url));
    say(&upstreams, &server, "echo", "{}").await.unwrap();
    fake.lose_sessions();
    say(&upstreams, &server, "echo", "{}").await.unwrap();
    assert_eq!(fake.count("initialize"), 2);
    assert_eq!(fake.count("tools/call"), 3);
}

#[tokio::test]
async fn a_server_may_change_its_era_while_it_runs() {
    let fake = Fake::start(Era::Legacy, Answers::Json).await;
    let (upstreams, server) = (upstreams(), http(&fake.url));
    say(&upstreams, &server, "echo", "{}").await.unwrap();
    fake.become_era(Era::Modern);
    say(&upstreams, &server, "echo", "{}").await.unwrap();
    let modern = fake.seen().last().unwrap().clone();
    assert!(!modern.headers.contains_key("mcp-session-id"));
    assert_eq!(modern.headers["mcp-protocol-version"], "2026-07-28");

    // The way back is noticed by a refusal, which says nothing certain about the call.
    fake.become_era(Era::Legacy);
    let error = say(&upstreams, &server, "echo", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Protocol { code: -32000, .. }), "{error:?}");
    say(&upstreams, &server, "echo", "{}").await.unwrap();
}

#[tokio::test]
async fn progress_arrives_while_the_call_runs() {
    for era in [Era::Modern, Era::Legacy] {
        let fake = Fake::start(era, Answers::Json).await;
        let (sender, mut receiver) = mpsc::channel(4);
        let arguments = raw("{}");
        let call =
            UpstreamCall { progress: Some(sender), ..UpstreamCall::new("progress", &arguments) };
        let reply = upstreams().call_server_tool(&http(&fake.url), call).await.unwrap();
        assert_eq!(text(reply).0, "done");
        let mut heard = Vec::new();
        while let Some(progress) = receiver.recv().await {
            heard.push(progress);
        }
        let step = |progress: u64, message: &str| CallProgress {
            progress: progress.into(),
            total: Some(2.into()),
            message: Some(message.to_owned()),
        };
        assert_eq!(heard, [step(1, "half"), step(2, "whole")], "{era:?}");
    }
}

#[tokio::test]
async fn the_connection_of_a_stream_is_used_again() {
    let fake = Fake::start(Era::Modern, Answers::Sse).await;
    let (upstreams, server) = (upstreams(), http(&fake.url));
    for _ in 0..5 {
        say(&upstreams, &server, "trailing", "{}").await.unwrap();
        // The end of the stream comes, and is read, some time after the answer.
        let mut clock = tokio::time::interval(Duration::from_millis(150));
        clock.tick().await;
        clock.tick().await;
    }
    let peers: Vec<SocketAddr> = fake.seen().iter().map(|seen| seen.peer).collect();
    let (before, after) = peers.split_at(peers.len() - 4);
    assert!(after.iter().all(|peer| before.contains(peer)), "{peers:?}");
}

#[tokio::test]
async fn a_reader_of_progress_that_is_slow_does_not_hold_up_the_call() {
    let fake = Fake::start(Era::Modern, Answers::Json).await;
    let (sender, receiver) = mpsc::channel(1);
    let arguments = raw("{}");
    let call = UpstreamCall { progress: Some(sender), ..UpstreamCall::new("progress", &arguments) };
    upstreams().call_server_tool(&http(&fake.url), call).await.unwrap();
    drop(receiver);
}

#[tokio::test]
async fn input_that_a_tool_requires_passes_both_ways() {
    let fake = Fake::start(Era::Modern, Answers::Json).await;
    let (upstreams, server) = (upstreams(), http(&fake.url));
    let (arguments, elicitation) = (raw("{}"), raw(r#"{"elicitation":{"form":{}}}"#));

    let call =
        UpstreamCall { capabilities: Some(&elicitation), ..UpstreamCall::new("ask", &arguments) };
    let UpstreamReply::InputRequired(required) =
        upstreams.call_server_tool(&server, call).await.unwrap()
    else {
        panic!("input should be required")
    };
    let required: Value = serde_json::from_str(required.get()).unwrap();
    assert_eq!(required["inputRequests"]["q"]["params"]["message"], "sure?");
    assert_eq!(required["requestState"], "opaque");

    let (responses, state) = (raw(r#"{"q":{"action":"accept"}}"#), raw(r#""opaque""#));
    let input = UpstreamInput { responses: Some(&responses), state: Some(&state) };
    let call = UpstreamCall {
        capabilities: Some(&elicitation),
        input: Some(input),
        ..UpstreamCall::new("ask", &arguments)
    };
    let (got, _) = text(upstreams.call_server_tool(&server, call).await.unwrap());
    assert_eq!(got, r#"[{"q":{"action":"accept"}},"opaque"]"#);
}

#[tokio::test]
async fn elicitation_is_declared_only_for_an_agent_that_declared_it() {
    let fake = Fake::start(Era::Modern, Answers::Json).await;
    let error = say(&upstreams(), &http(&fake.url), "ask", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Protocol { code: -32021, .. }), "{error:?}");
}

#[tokio::test]
async fn what_a_legacy_server_asks_of_us_is_not_found_and_a_ping_is_answered() {
    let fake = Fake::start(Era::Legacy, Answers::Json).await;
    let (got, _) = say(&upstreams(), &http(&fake.url), "nosy", "{}").await.unwrap();
    let mut answers: Vec<Value> = serde_json::from_str(&got).unwrap();
    answers.sort_by_key(|answer| answer["id"].as_str().unwrap().to_owned());
    assert_eq!(answers[0], json!({"jsonrpc": "2.0", "id": "ping", "result": {}}));
    assert_eq!(answers[1]["id"], "sampling");
    assert_eq!(answers[1]["error"]["code"], -32601);
}

#[tokio::test]
async fn arguments_are_mirrored_into_headers_and_the_schema_is_read_again_when_it_changed() {
    let fake = Fake::start(Era::Modern, Answers::Json).await;
    let (upstreams, server) = (upstreams(), http(&fake.url));
    say(&upstreams, &server, "mirror", r#"{"region":"eu"}"#).await.unwrap();
    fake.rename_mirror("Zone");
    say(&upstreams, &server, "mirror", r#"{"region":"us"}"#).await.unwrap();
    let last = fake.seen().last().unwrap().clone();
    assert_eq!(last.headers["mcp-param-zone"], "us");
    assert!(!last.headers.contains_key("mcp-param-region"));
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_a_closed_door_is_reported() {
    let fake = Fake::start(Era::Modern, Answers::Json).await;
    for (path, expected) in [("moved", 307), ("locked", 401)] {
        let server = http(&fake.url.replace("/mcp", &format!("/{path}")));
        let error = say(&upstreams(), &server, "echo", "{}").await.unwrap_err();
        assert!(
            matches!(error, UpstreamError::Status { status } if status == expected),
            "{path}: {error:?}"
        );
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn an_address_that_is_none_is_a_matter_of_configuration() {
    let upstreams = upstreams();
    for url in ["", "mcp", "file:///etc/passwd", "http://", "http://me:secret@localhost/"] {
        let transport =
            UpstreamTransport::Http { url: url.to_owned(), headers: Vec::new(), private: true };
        let server = UpstreamServer { transport, ..http("") };
        for _ in 0..2 {
            let error = say(&upstreams, &server, "echo", "{}").await.unwrap_err();
            assert!(matches!(error, UpstreamError::Misconfigured(_)), "{url}: {error:?}");
        }
    }
}
