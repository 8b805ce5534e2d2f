//! The echo server, through the client.

use cynode_gateway::upstream::UpstreamError;
use cynode_testkit::echo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::support::{http, say, upstreams};

#[tokio::test]
async fn the_echo_server_has_its_three_tools() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, echo::router()).await.unwrap() });
    let (upstreams, server) = (upstreams(), http(&url));

    let tools = upstreams.list_server_tools(&server).await.unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["echo", "fail", "slow"]);
    let said = say(&upstreams, &server, "echo", r#"{"text":"a\"b"}"#).await.unwrap();
    assert_eq!(said, ("a\"b".to_owned(), false));
    assert!(say(&upstreams, &server, "fail", "{}").await.unwrap().1);
    assert_eq!(say(&upstreams, &server, "slow", r#"{"ms":1}"#).await.unwrap().0, "done");
    let error = say(&upstreams, &server, "none", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Protocol { code: -32602, .. }), "{error:?}");
}
