//! Servers that run as sandboxed processes. They need bubblewrap and the system's own Python.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cynode_gateway::upstream::{UpstreamCall, UpstreamError, UpstreamServer, UpstreamTransport};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::support::{Sandboxed, find, program as server, raw, sandboxed, say, text, until};

fn upstreams() -> Sandboxed {
    sandboxed(|_| {})
}

fn processes(mark: &str) -> usize {
    find(mark).len()
}

async fn none_is_left(mark: &str) {
    until("no process is left", || processes(mark) == 0).await;
}

#[tokio::test]
async fn both_eras_are_listed_and_called() {
    for era in ["modern", "legacy", "fragile"] {
        let (upstreams, server) = (upstreams(), server(era, "mark-both-eras"));
        let tools = upstreams.list_server_tools(&server).await.unwrap();
        assert_eq!(tools[0].name, "echo", "{era}");
        let said = say(&upstreams, &server, "echo", "{\n  \"text\":\r\n \"a\\nb\"\n}").await;
        assert_eq!(said.unwrap(), (r#"{"text": "a\nb"}"#.to_owned(), false), "{era}");
        upstreams.shutdown_all().await;
        none_is_left("mark-both-eras").await;
    }
}

#[tokio::test]
async fn a_legacy_server_that_ignores_what_it_does_not_know_is_greeted_after_a_while() {
    let server = UpstreamServer { timeout: Duration::from_secs(20), ..server("deaf", "mark-deaf") };
    let upstreams = sandboxed(|options| options.patience = Duration::from_millis(300));
    assert_eq!(upstreams.list_server_tools(&server).await.unwrap()[0].name, "echo");
}

#[tokio::test]
async fn the_environment_is_what_was_configured_and_nothing_else() {
    let (upstreams, server) = (upstreams(), server("modern", "mark-environment"));
    let (environment, _) = say(&upstreams, &server, "environment", "{}").await.unwrap();
    let mut environment: Value = serde_json::from_str(&environment).unwrap();
    // What Python sets itself.
    environment.as_object_mut().unwrap().remove("LC_CTYPE");
    assert_eq!(
        environment,
        json!({
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "TOKEN": "of-the-server",
} ),
        "S001-10, B001-15: the keys that were configured and no other; nothing of our environment passes"
    );
}

#[tokio::test]
async fn a_server_sees_and_reaches_nothing_of_the_machine() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let arguments = json!({"port": listener.local_addr().unwrap().port()}).to_string();
    let (upstreams, server) = (upstreams(), server("modern", "mark-look"));
    let (seen, _) = say(&upstreams, &server, "look", &arguments).await.unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&seen).unwrap(),
        json!({
            "uid": 1000,
            "caps": "0000000000000000",
            "seccomp": "2",
            "no_new_privileges": "1",
            "users": ["root", "agent", "nobody"],
            "shadow": "FileNotFoundError",
            "private_keys": "FileNotFoundError",
            "write_usr": "OSError",
            "write_root": "OSError",
            "write_by_link": "OSError",
            "write_by_climbing": "OSError",
            "write_home": "None",
            "network": "ConnectionRefusedErr",
            "processes": 2,
        }),
        "S001-10, S001-42: it reads, writes and reaches only what it was given"
    );
}

#[tokio::test]
async fn no_process_is_left_after_shutdown_not_even_one_that_went_its_own_way() {
    let (upstreams, server) = (upstreams(), server("modern", "mark-shutdown"));
    say(&upstreams, &server, "linger", "{}").await.unwrap();
    // A process that is being started has no arguments for a moment.
    until("S001-43: the session keeps what it started", || processes("mark-shutdown") == 2).await;
    upstreams.shutdown_all().await;
    none_is_left("mark-shutdown").await;
}

#[tokio::test]
async fn the_dead_are_buried_whether_they_ended_or_were_killed() {
    for tool in ["echo", "hang"] {
        let (upstreams, server) = (upstreams(), server("modern", "mark-buried"));
        let hasty = UpstreamServer { timeout: Duration::from_millis(200), ..server.clone() };
        upstreams.list_server_tools(&server).await.unwrap();
        let started = find("mark-buried");
        assert_eq!(started.len(), 1, "the server; no process outside shows its arguments");
        let outcome = say(&upstreams, &hasty, tool, "{}").await;
        assert_eq!(outcome.is_ok(), tool == "echo");
        upstreams.shutdown_all().await;
        // A process that is dead but not buried still has its folder.
        until("all are buried", || started.iter().all(|process| !process.exists())).await;
    }
}

#[tokio::test]
async fn no_process_is_left_when_everything_is_dropped() {
    let (upstreams, server) = (upstreams(), server("legacy", "mark-drop"));
    say(&upstreams, &server, "linger", "{}").await.unwrap();
    drop(upstreams);
    none_is_left("mark-drop").await;
}

#[tokio::test]
async fn no_process_is_left_of_a_forgotten_server() {
    let (upstreams, server) = (upstreams(), server("modern", "mark-forget"));
    say(&upstreams, &server, "echo", "{}").await.unwrap();
    upstreams.drop_server(server.id);
    none_is_left("mark-forget").await;
}

#[tokio::test]
async fn a_process_that_does_not_answer_is_ended_and_started_anew() {
    let (upstreams, server) = (upstreams(), server("modern", "mark-hang"));
    // Started before, so that the short time is spent on the call alone.
    say(&upstreams, &server, "echo", "{}").await.unwrap();
    let hasty = UpstreamServer { timeout: Duration::from_millis(200), ..server.clone() };
    let error = say(&upstreams, &hasty, "hang", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Timeout), "{error:?}");
    none_is_left("mark-hang").await;
    say(&upstreams, &server, "echo", "{}").await.unwrap();
}

#[tokio::test]
async fn a_process_that_does_not_even_greet_is_ended() {
    let upstreams = upstreams();
    let mut server = server("modern", "mark-mute");
    if let UpstreamTransport::Stdio { args, .. } = &mut server.transport {
        *args = ["-c", "import time; time.sleep(600)", "mark-mute"].map(ToOwned::to_owned).to_vec();
    }
    server.timeout = Duration::from_millis(300);
    let error = upstreams.list_server_tools(&server).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Timeout), "{error:?}");
    let error = upstreams.list_server_tools(&server).await.unwrap_err();
    assert!(matches!(error, UpstreamError::CircuitOpen { .. }), "{error:?}");
    none_is_left("mark-mute").await;
}

#[tokio::test]
async fn a_process_that_crashes_is_started_anew() {
    let (upstreams, server) = (upstreams(), server("legacy", "mark-crash"));
    let error = say(&upstreams, &server, "crash", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Unreachable(_)), "{error:?}");
    say(&upstreams, &server, "echo", "{}").await.unwrap();
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_unreachable() {
    let upstreams = upstreams();
    let mut server = server("modern", "mark-nothing");
    if let UpstreamTransport::Stdio { program, .. } = &mut server.transport {
        "/usr/bin/no-such-program".clone_into(program);
    }
    let error = upstreams.list_server_tools(&server).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Unreachable(_)), "{error:?}");
}

#[tokio::test]
async fn without_bubblewrap_nothing_is_started() {
    let upstreams = sandboxed(|options| {
        let sandbox = options.sandbox.as_mut().unwrap();
        sandbox.bwrap = PathBuf::from("/usr/bin/no-such-sandbox");
    });
    let error = upstreams.list_server_tools(&server("modern", "mark-unsafe")).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Sandbox(_)), "{error:?}");
    assert_eq!(processes("mark-unsafe"), 0);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_refused() {
    let (upstreams, server) = (upstreams(), server("modern", "mark-huge"));
    let error = say(&upstreams, &server, "huge", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::TooLarge { .. }), "{error:?}");
    none_is_left("mark-huge").await;
    say(&upstreams, &server, "echo", "{}").await.unwrap();
}

#[tokio::test]
async fn noise_on_either_stream_does_not_matter() {
    let (upstreams, server) = (upstreams(), server("legacy", "mark-noise"));
    for (tool, answer) in [("noise", "quiet now"), ("flood", "flooded")] {
        assert_eq!(say(&upstreams, &server, tool, "{}").await.unwrap().0, answer);
    }
}

#[tokio::test]
async fn progress_arrives_and_what_the_server_asks_of_us_is_not_found() {
    for era in ["modern", "legacy"] {
        let (upstreams, server) = (upstreams(), server(era, "mark-progress"));
        let (sender, mut receiver) = mpsc::channel(4);
        let arguments = raw("{}");
        let call =
            UpstreamCall { progress: Some(sender), ..UpstreamCall::new("progress", &arguments) };
        assert_eq!(text(upstreams.call_server_tool(&server, call).await.unwrap()).0, "done");
        let mut steps = Vec::new();
        while let Some(progress) = receiver.recv().await {
            steps.push(progress.progress.as_u64().unwrap());
        }
        assert_eq!(steps, [1, 2], "{era}");
        assert_eq!(say(&upstreams, &server, "ask", "{}").await.unwrap().0, "-32601", "{era}");
    }
}

#[tokio::test]
async fn a_cancelled_call_ends_at_once_and_the_server_learns_of_it() {
    for era in ["modern", "legacy"] {
        let upstreams = Arc::new(upstreams());
        let server = server(era, "mark-cancel");
        say(&upstreams, &server, "echo", "{}").await.unwrap();
        let cancel = CancellationToken::new();
        let mut calls = JoinSet::new();
        let (shared, copy, token) = (Arc::clone(&upstreams), server.clone(), cancel.clone());
        calls.spawn(async move {
            let arguments = raw("{}");
            let call = UpstreamCall { cancel: token, ..UpstreamCall::new("later", &arguments) };
            shared.call_server_tool(&copy, call).await
        });
        // Lets the call get as far as it gets without an answer.
        tokio::task::yield_now().await;
        cancel.cancel();
        let outcome = calls.join_next().await.unwrap().unwrap();
        assert!(matches!(outcome, Err(UpstreamError::Cancelled)), "{outcome:?}");
        let (cancelled, _) = say(&upstreams, &server, "cancelled", "{}").await.unwrap();
        assert_eq!(cancelled, r#"[["notifications/cancelled", true]]"#, "{era}");
    }
}
