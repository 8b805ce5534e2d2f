//! What all tests share.

use std::time::Duration;

use cynode_gateway::upstream::{
    UpstreamCall, UpstreamError, UpstreamOptions, UpstreamPool, UpstreamReply, UpstreamServer,
    UpstreamTransport,
};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

pub(crate) fn upstreams() -> UpstreamPool {
    UpstreamPool::new(UpstreamOptions::default()).unwrap()
}

pub(crate) fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

pub(crate) fn http(url: &str) -> UpstreamServer {
    UpstreamServer {
        id: Uuid::from_u128(1),
        transport: UpstreamTransport::Http {
            url: url.to_owned(),
            headers: Vec::new(),
            private: true,
        },
        timeout: Duration::from_secs(5),
        max_in_flight: 8,
    }
}

/// Calls a tool and gives the text it answers with, and whether it failed.
pub(crate) async fn say(
    upstreams: &UpstreamPool,
    server: &UpstreamServer,
    tool: &str,
    arguments: &str,
) -> Result<(String, bool), UpstreamError> {
    let arguments = raw(arguments);
    upstreams.call_server_tool(server, UpstreamCall::new(tool, &arguments)).await.map(text)
}

/// The text of a result, and whether it is an error.
pub(crate) fn text(reply: UpstreamReply) -> (String, bool) {
    let UpstreamReply::Result { result, is_error } = reply else { panic!("no result: {reply:?}") };
    let result: Value = serde_json::from_str(result.get()).unwrap();
    (result["content"][0]["text"].as_str().unwrap().to_owned(), is_error)
}

/// Waits until `done`, looking every few milliseconds, and panics if it takes too long.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let mut clock = tokio::time::interval(Duration::from_millis(5));
    for _ in 0..1_000 {
        clock.tick().await;
        if done() {
            return;
        }
    }
    panic!("waited in vain until {what}");
}
