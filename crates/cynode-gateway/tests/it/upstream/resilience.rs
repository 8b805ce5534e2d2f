//! Servers that are dead, slow, greedy or talk nonsense.

use std::sync::Arc;
use std::time::Duration;

use cynode_gateway::upstream::{MAX_ANSWER_BYTES, UpstreamCall, UpstreamError, UpstreamServer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::fake::{Answers, Era, Fake};
use super::support::{http, raw, say, until, upstreams};

/// An address at which nobody listens.
async fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

#[tokio::test]
async fn a_dead_server_is_left_alone_while_another_works() {
    let upstreams = upstreams();
    let fake = Fake::start(Era::Modern, Answers::Json).await;
    let alive = http(&fake.url);
    let address = nowhere().await;
    let dead = UpstreamServer { id: Uuid::from_u128(2), ..http(&format!("http://{address}/mcp")) };

    let error = say(&upstreams, &dead, "echo", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Unreachable(_)), "{error:?}");
    let error = say(&upstreams, &dead, "echo", "{}").await.unwrap_err();
    let UpstreamError::CircuitOpen { retry_after } = error else {
        panic!("B001-19: an open circuit answers with an error: {error:?}")
    };
    assert!(retry_after <= Duration::from_millis(500));
    say(&upstreams, &alive, "echo", "{}").await.unwrap();

    // It comes back, and after the pause it is found by itself.
    let fake = Fake::start_at(&address, Era::Legacy, Answers::Json).await;
    let mut clock = tokio::time::interval(Duration::from_millis(20));
    while let Err(error) = say(&upstreams, &dead, "echo", "{}").await {
        assert!(matches!(error, UpstreamError::CircuitOpen { .. }), "{error:?}");
        clock.tick().await;
    }
    assert_eq!(fake.count("tools/call"), 1);
}

#[tokio::test]
async fn a_server_that_restarts_is_connected_to_anew() {
    let upstreams = upstreams();
    let fake = Fake::start(Era::Legacy, Answers::Json).await;
    let (server, address) = (http(&fake.url), fake.address());
    say(&upstreams, &server, "echo", "{}").await.unwrap();
    fake.die().await;
    let fake = Fake::start_at(&address, Era::Modern, Answers::Json).await;
    // What was kept open to the old one may break once; nothing was carried out twice.
    let first = say(&upstreams, &server, "echo", "{}").await;
    if let Err(error) = first {
        assert!(matches!(error, UpstreamError::Unreachable(_)), "{error:?}");
        say(&upstreams, &server, "echo", "{}").await.unwrap();
    }
    assert_eq!(fake.count("server/discover"), 1);
}

#[tokio::test]
async fn a_connection_that_breaks_again_and_again_is_left_alone() {
    let upstreams = upstreams();
    let fake = Fake::start(Era::Modern, Answers::Json).await;
    let server = http(&fake.url);
    for tool in ["vanish", "broken"] {
        let error = say(&upstreams, &server, tool, "{}").await.unwrap_err();
        assert!(
            matches!(error, UpstreamError::Unreachable(_) | UpstreamError::Status { status: 502 }),
            "{error:?}"
        );
    }
    let error = say(&upstreams, &server, "echo", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::CircuitOpen { .. }), "{error:?}");
}

#[tokio::test]
async fn a_slow_server_times_out_and_may_be_called_again() {
    for era in [Era::Modern, Era::Legacy] {
        let upstreams = upstreams();
        let fake = Fake::start(era, Answers::Json).await;
        let server = UpstreamServer {
            timeout: Duration::from_millis(200),
            max_in_flight: 1,
            ..http(&fake.url)
        };
        let error = say(&upstreams, &server, "slow", "{}").await.unwrap_err();
        assert!(matches!(error, UpstreamError::Timeout), "{error:?}");
        say(&upstreams, &server, "echo", "{}").await.unwrap();
        until("the request is gone", || fake.abandoned() == 1).await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_even_greet_is_left_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let upstreams = upstreams();
    let server = UpstreamServer { timeout: Duration::from_millis(100), ..http(&url) };
    let error = say(&upstreams, &server, "echo", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Timeout), "{error:?}");
    let error = say(&upstreams, &server, "echo", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::CircuitOpen { .. }), "{error:?}");
}

#[tokio::test]
async fn calls_beyond_the_bound_are_refused_and_others_are_not_touched() {
    let upstreams = Arc::new(upstreams());
    let (full, free) = (
        Fake::start(Era::Modern, Answers::Json).await,
        Fake::start(Era::Modern, Answers::Json).await,
    );
    let server = UpstreamServer { max_in_flight: 2, ..http(&full.url) };
    let mut calls = JoinSet::new();
    for _ in 0..2 {
        let (upstreams, server) = (Arc::clone(&upstreams), server.clone());
        calls.spawn(async move { say(&upstreams, &server, "slow", "{}").await });
    }
    until("both calls are in flight", || full.count("tools/call") == 2).await;
    let error = say(&upstreams, &server, "echo", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Overloaded), "{error:?}");
    let other = UpstreamServer { id: Uuid::from_u128(2), ..http(&free.url) };
    say(&upstreams, &other, "echo", "{}").await.unwrap();
    calls.shutdown().await;
    say(&upstreams, &server, "echo", "{}").await.unwrap();
}

#[tokio::test]
async fn many_callers_at_once_share_one_connection() {
    let upstreams = Arc::new(upstreams());
    let fake = Fake::start(Era::Legacy, Answers::Sse).await;
    let server = UpstreamServer { max_in_flight: 32, ..http(&fake.url) };
    let mut calls = JoinSet::new();
    for _ in 0..32 {
        let (upstreams, server) = (Arc::clone(&upstreams), server.clone());
        calls.spawn(async move { say(&upstreams, &server, "echo", "{}").await });
    }
    while let Some(outcome) = calls.join_next().await {
        outcome.unwrap().unwrap();
    }
    assert_eq!(fake.count("initialize"), 1);
}

#[tokio::test]
async fn a_cancelled_call_ends_at_once_and_the_server_learns_of_it() {
    for era in [Era::Modern, Era::Legacy] {
        let upstreams = upstreams();
        let fake = Fake::start(era, Answers::Json).await;
        let server = http(&fake.url);
        let (arguments, cancel) = (raw("{}"), CancellationToken::new());
        let call = UpstreamCall { cancel: cancel.clone(), ..UpstreamCall::new("slow", &arguments) };
        let (outcome, ()) = tokio::join!(upstreams.call_server_tool(&server, call), async {
            until("the call is in flight", || fake.count("tools/call") == 1).await;
            cancel.cancel();
        });
        assert!(matches!(outcome, Err(UpstreamError::Cancelled)), "{outcome:?}");
        server_learns_of_it(&fake, era).await;
    }
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_leaves_nothing_behind() {
    for era in [Era::Modern, Era::Legacy] {
        let upstreams = Arc::new(upstreams());
        let fake = Fake::start(era, Answers::Json).await;
        let server = UpstreamServer { max_in_flight: 1, ..http(&fake.url) };
        let mut calls = JoinSet::new();
        let (shared, copy) = (Arc::clone(&upstreams), server.clone());
        calls.spawn(async move { say(&shared, &copy, "slow", "{}").await });
        until("the call is in flight", || fake.count("tools/call") == 1).await;
        calls.shutdown().await;
        server_learns_of_it(&fake, era).await;
        say(&upstreams, &server, "echo", "{}").await.unwrap();
    }
}

async fn server_learns_of_it(fake: &Fake, era: Era) {
    until("the request is gone", || fake.abandoned() == 1).await;
    if era == Era::Modern {
        assert_eq!(fake.count("notifications/cancelled"), 0);
        return;
    }
    until("the server is told", || fake.count("notifications/cancelled") == 1).await;
    let seen = fake.seen();
    let of = |method: &str| seen.iter().find(|seen| seen.body["method"] == method).unwrap();
    assert_eq!(
        of("notifications/cancelled").body["params"]["requestId"],
        of("tools/call").body["id"]
    );
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_refused() {
    for answers in [Answers::Json, Answers::Sse] {
        let upstreams = upstreams();
        let fake = Fake::start(Era::Modern, answers).await;
        let server = http(&fake.url);
        for tool in ["huge", "huge_chunked", "huge_line", "huge_stream"] {
            let error = say(&upstreams, &server, tool, "{}").await.unwrap_err();
            let UpstreamError::TooLarge { limit } = error else { panic!("{tool}: {error:?}") };
            assert!(limit == MAX_ANSWER_BYTES || tool == "huge_stream");
        }
        say(&upstreams, &server, "echo", "{}").await.unwrap();
    }
}

#[tokio::test]
async fn nonsense_is_refused_and_the_connection_kept() {
    for era in [Era::Modern, Era::Legacy] {
        let upstreams = upstreams();
        let fake = Fake::start(era, Answers::Json).await;
        let server = http(&fake.url);
        for tool in
            ["garbage", "wrong_type", "garbage_event", "wrong_id", "not_an_object", "accepted"]
        {
            let error = say(&upstreams, &server, tool, "{}").await.unwrap_err();
            assert!(matches!(error, UpstreamError::Malformed(_)), "{tool}: {error:?}");
        }
        say(&upstreams, &server, "echo", "{}").await.unwrap();
        assert_eq!(fake.count("server/discover"), 1);
    }
}

#[tokio::test]
async fn a_forgotten_server_is_let_go_at_once() {
    let upstreams = Arc::new(upstreams());
    let fake = Fake::start(Era::Legacy, Answers::Json).await;
    let server = http(&fake.url);
    let mut calls = JoinSet::new();
    let (shared, copy) = (Arc::clone(&upstreams), server.clone());
    calls.spawn(async move { say(&shared, &copy, "slow", "{}").await });
    until("the call is in flight", || fake.count("tools/call") == 1).await;
    upstreams.drop_server(server.id);
    let outcome = calls.join_next().await.unwrap().unwrap();
    assert!(matches!(outcome, Err(UpstreamError::Closed)), "{outcome:?}");
    until("the session is ended", || fake.open_sessions() == 0).await;
    // Installed again, it is used again.
    say(&upstreams, &server, "echo", "{}").await.unwrap();
}

#[tokio::test]
async fn a_server_whose_configuration_changed_gets_a_new_connection() {
    let upstreams = upstreams();
    let (old, new) = (
        Fake::start(Era::Modern, Answers::Json).await,
        Fake::start(Era::Legacy, Answers::Json).await,
    );
    say(&upstreams, &http(&old.url), "echo", "{}").await.unwrap();
    say(&upstreams, &http(&new.url), "echo", "{}").await.unwrap();
    assert_eq!((old.count("tools/call"), new.count("tools/call")), (1, 1));
}

#[tokio::test]
async fn nothing_is_called_after_shutdown() {
    let upstreams = upstreams();
    let fake = Fake::start(Era::Modern, Answers::Json).await;
    upstreams.shutdown_all().await;
    let error = say(&upstreams, &http(&fake.url), "echo", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Closed), "{error:?}");
    assert!(fake.seen().is_empty());
}
