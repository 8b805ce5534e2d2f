//! Questions as a client of Chat Completions asks them.

use axum::body::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming};
use serde_json::json;

use crate::gateway::wire::Endpoint;

/// Who asks whom.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) endpoint: Endpoint,
    pub(crate) token: String,
    pub(crate) model: String,
    /// The project that it is accounted to.
    pub(crate) project: Option<String>,
    /// Most tokens of an answer.
    pub(crate) max_tokens: u32,
}

impl Asker {
    /// A question whose answer is to be streamed.
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

/// The name that a gateway gave to a call.
pub(crate) fn call_id(response: &Response<Incoming>) -> Option<String> {
    let value = response.headers().get("x-cynode-call")?;
    value.to_str().ok().map(str::to_owned)
}

/// What marks the end of a stream that is whole.
pub(crate) const DONE: &[u8] = b"data: [DONE]";

/// Microseconds by the clock of the machine, which its processes share.
pub(crate) fn clock() -> i128 {
    cynode_app::AppEnvironment::from_system().now().unix_timestamp_nanos() / 1000
}

/// The moments at which pieces of an answer were sent, from lines of the stream: each stands between two marks.
pub(crate) fn stamps(line: &str) -> Option<i128> {
    let (_, rest) = line.split_once('@')?;
    let (stamp, _) = rest.split_once('@')?;
    stamp.parse().ok()
}
