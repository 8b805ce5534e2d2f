//! Requests as a client of Chat Completions sends them.

use axum::body::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming};
use serde_json::json;

use crate::gateway::wire::Endpoint;

/// Endpoint and credential of the client.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) endpoint: Endpoint,
    pub(crate) token: String,
    pub(crate) model: String,
    /// The project that pays for the calls.
    pub(crate) project: Option<String>,
    /// Maximum number of output tokens.
    pub(crate) max_tokens: u32,
}

impl Asker {
    /// Builds a request with a streamed response.
    pub(crate) fn request(&self, text: &str) -> anyhow::Result<Request<Full<Bytes>>> {
        let body = json!({
            "model": self.model, "stream": true, "stream_options": { "include_usage": true }, "max_tokens": self.max_tokens,
            "messages": [
                { "role": "system", "content": "You mend programs. Answer briefly." },
                { "role": "user", "content": text },
            ],
        });
        let mut request = Request::post(&self.endpoint.path)
            .header("host", self.endpoint.address.to_string())
            .header("content-type", "application/json")
            .header("accept", "text/event-stream");
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        if let Some(project) = &self.project {
            request = request.header("openai-project", project);
        }
        Ok(request.body(Full::from(body.to_string()))?)
    }
}

/// Returns the call id that the gateway assigned.
pub(crate) fn call_id(response: &Response<Incoming>) -> Option<String> {
    let value = response.headers().get("x-cynode-call")?;
    value.to_str().ok().map(str::to_owned)
}

/// The end marker of a complete stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]";

/// Returns the microseconds of the machine's clock, which all its processes share.
pub(crate) fn clock() -> i128 {
    cynode_app::AppEnvironment::from_system().now().unix_timestamp_nanos() / 1000
}

/// Returns the send time of a chunk from a line of the stream: it is between two markers.
pub(crate) fn stamps(line: &str) -> Option<i128> {
    let (_, rest) = line.split_once('@')?;
    let (stamp, _) = rest.split_once('@')?;
    stamp.parse().ok()
}
