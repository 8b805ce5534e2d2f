//! Tool calls as a client sends them, over connections of its own.

use std::{fmt, net::SocketAddr, str::FromStr};

use anyhow::{Context, ensure};
use axum::body::Bytes;
use clap::ValueEnum;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response, body::Incoming, client::conn::http1::SendRequest, header::CONTENT_TYPE,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinHandle};

/// Address of a server: `http://ADDRESS:PORT/PATH` on loopback.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
}

impl FromStr for Endpoint {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("http://").context("an address begins with http://")?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let address: SocketAddr = host.parse().context("an address names an IP and a port")?;
        ensure!(address.ip().is_loopback(), "load goes to loopback only");
        Ok(Self { address, path: format!("/{path}") })
    }
}

/// Which revisions of the protocol are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Era {
    /// 2026-07-28: each request stands alone.
    Modern,
    /// 2025-06-18, without a session.
    Legacy,
}

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-06-18";

/// Endpoint, credential and protocol of a caller.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) endpoint: Endpoint,
    pub(crate) token: String,
    pub(crate) era: Era,
}

impl Caller {
    pub(crate) fn modern(endpoint: Endpoint, token: &str) -> Self {
        Self { endpoint, token: token.to_owned(), era: Era::Modern }
    }

    pub(crate) fn request(
        &self,
        id: u64,
        tool: &str,
        arguments: &Value,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::post(&self.endpoint.path)
            .header("host", self.endpoint.address.to_string())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        let mut params = json!({ "name": tool, "arguments": arguments });
        request = match self.era {
            Era::Modern => {
                params["_meta"] = json!({
                    "io.modelcontextprotocol/protocolVersion": MODERN,
                    "io.modelcontextprotocol/clientCapabilities": {},
                });
                request
                    .header("mcp-protocol-version", MODERN)
                    .header("mcp-method", "tools/call")
                    .header("mcp-name", tool)
            }
            Era::Legacy => request.header("mcp-protocol-version", LEGACY),
        };
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        Ok(request.body(Full::from(body.to_string()))?)
    }
}

/// One keep-alive connection. Dropping it closes it, whatever is in flight on it.
pub(crate) struct Link {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// The server has not seen the request.
    NeverSent,
    /// The server may have seen the request. The call id is known if the response headers arrived.
    CutOff { call_id: Option<String> },
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct ToolAnswer {
    pub(crate) call_id: Option<String>,
    status: u16,
    events: bool,
    body: Bytes,
}

impl Link {
    pub(crate) async fn open(endpoint: &Endpoint) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(endpoint.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        #[expect(clippy::disallowed_methods, reason = "it ends with the link")]
        let driver = tokio::spawn(async move {
            // The outcome of the call reports any error.
            let _ = connection.await;
        });
        Ok(Self { sender, driver })
    }

    /// Sends a request. The body of the response is still to be read.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CallFailure> {
        if self.sender.ready().await.is_err() {
            return Err(CallFailure::NeverSent);
        }
        self.sender.try_send_request(request).await.map_err(|mut error| {
            // The request is returned only if nothing of it was written.
            let untouched = error.take_message().is_some();
            if untouched { CallFailure::NeverSent } else { CallFailure::CutOff { call_id: None } }
        })
    }

    pub(crate) async fn call(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<ToolAnswer, CallFailure> {
        let response = self.send(request).await?;
        let text = |name: &str| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let call_id = text("x-cynode-call-id");
        let events = text(CONTENT_TYPE.as_str())
            .is_some_and(|media_type| media_type.starts_with("text/event-stream"));
        let status = response.status().as_u16();
        match response.into_body().collect().await {
            Ok(body) => Ok(ToolAnswer { call_id, status, events, body: body.to_bytes() }),
            Err(_) => Err(CallFailure::CutOff { call_id }),
        }
    }
}

/// Meaning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The tool succeeded; its first text.
    Success(Option<String>),
    /// The gateway refused the call.
    Refused(String),
    /// The tool failed, with a code if it has codes.
    ToolError(Option<String>),
    /// A protocol error: its code, or else the HTTP status.
    Error(i64),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success(_) => f.write_str("success"),
            Self::Refused(code) => write!(f, "refused:{code}"),
            Self::ToolError(None) => f.write_str("tool_error"),
            Self::ToolError(Some(code)) => write!(f, "tool_error:{code}"),
            Self::Error(code) => write!(f, "error:{code}"),
        }
    }
}

impl ToolAnswer {
    pub(crate) fn verdict(&self) -> Verdict {
        let Some(message) = self.message() else { return Verdict::Error(self.status.into()) };
        if let Some(code) = message["error"]["code"].as_i64() {
            return Verdict::Error(code);
        }
        let result = &message["result"];
        let code = |of: &str| {
            // If the tool declared a different output structure, the code is beside it.
            let told = result["structuredContent"][of]["code"].as_str();
            let told = told.or_else(|| result["_meta"][format!("cynode/{of}")]["code"].as_str());
            told.map(str::to_owned)
        };
        if self.status != 200 || !result.is_object() {
            Verdict::Error(self.status.into())
        } else if result["isError"] != true {
            Verdict::Success(result["content"][0]["text"].as_str().map(str::to_owned))
        } else if let Some(code) = code("refused") {
            Verdict::Refused(code)
        } else {
            Verdict::ToolError(code("error"))
        }
    }

    /// Returns the JSON-RPC message; in an event stream it is the last one.
    fn message(&self) -> Option<Value> {
        if !self.events {
            return serde_json::from_slice(&self.body).ok();
        }
        let text = std::str::from_utf8(&self.body).ok()?;
        let last = text.lines().filter_map(|line| line.strip_prefix("data:")).next_back()?;
        serde_json::from_str(last).ok()
    }
}
