//! An agent's side of the protocol, in both eras, over a [`Client`].

use axum::http::{HeaderValue, Method};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::{Client, Reply, TestGateway};

/// The revision in which every request stands alone.
pub const MODERN: &str = "2026-07-28";

/// The newest revision with a handshake.
pub const LEGACY: &str = "2025-11-25";

/// How often a request is repeated that the gateway could not decide in time.
const MAX_REPEATS: usize = 20;

/// Which kind of protocol is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// Every request stands alone.
    Modern,
    /// A handshake comes first.
    Legacy,
}

/// An agent at the gateway.
#[derive(Clone)]
pub struct Agent {
    /// Who it is.
    pub client: Client,
    era: Era,
    id: Value,
    capabilities: Value,
}

/// The answer to a message.
#[derive(Debug)]
pub struct Answer(pub Reply);

impl Client {
    /// The same caller, speaking the revision in which every request stands alone.
    pub fn modern(&self) -> Agent {
        Agent { client: self.clone(), era: Era::Modern, id: json!(1), capabilities: json!({}) }
    }

    /// The same caller, speaking the revision with a handshake.
    pub fn legacy(&self) -> Agent {
        Agent { era: Era::Legacy, ..self.modern() }
    }
}

impl Agent {
    /// The same agent, saying that its client can show addresses to a person.
    #[must_use]
    pub fn showing_urls(mut self) -> Self {
        self.capabilities = json!({ "elicitation": { "url": {} } });
        self
    }

    /// The same agent, naming its requests like that.
    #[must_use]
    pub fn naming(mut self, id: Value) -> Self {
        self.id = id;
        self
    }

    /// The same agent in the other era.
    #[must_use]
    pub fn in_era(mut self, era: Era) -> Self {
        self.era = era;
        self
    }

    /// The same agent, sending that header too.
    #[must_use]
    pub fn with_header(&self, name: &'static str, value: &str) -> Self {
        Self { client: self.client.with_header(name, value), ..self.clone() }
    }

    /// The same agent at another gateway.
    #[must_use]
    pub fn at(&self, gateway: &TestGateway) -> Self {
        let token = self.client.token().unwrap_or_default();
        Self { client: gateway.client().with_token(&token), ..self.clone() }
    }

    /// A message, as it goes over the wire.
    pub fn message(&self, method: &str, mut params: Value) -> Value {
        if self.era == Era::Modern {
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
            meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params })
    }

    /// The client with the headers that go with such a message.
    pub fn headed(&self, method: &str, name: Option<&str>) -> Client {
        match self.era {
            Era::Legacy => self.client.with_header("mcp-protocol-version", LEGACY),
            Era::Modern => {
                let client = self.client.with_header("mcp-protocol-version", MODERN);
                let client = client.with_header("mcp-method", method);
                match name {
                    // What no header can hold is written otherwise.
                    Some(name) if HeaderValue::from_str(name).is_ok() => {
                        client.with_header("mcp-name", name)
                    }
                    _ => client,
                }
            }
        }
    }

    /// Sends a request. A gateway on a busy machine may not know in time whether something is still permitted and says so;
    /// the request is then sent again, as its answer advises.
    pub async fn send(&self, method: &str, params: Value) -> Answer {
        let mut answer = self.send_once(method, params.clone()).await;
        for _ in 0..MAX_REPEATS {
            if !answer.is_stale() {
                break;
            }
            answer = self.send_once(method, params.clone()).await;
        }
        answer
    }

    /// Sends a request and takes any answer.
    pub async fn send_once(&self, method: &str, params: Value) -> Answer {
        let name = params["name"].as_str().map(ToOwned::to_owned);
        let client = self.headed(method, name.as_deref());
        Answer(client.post("/mcp", self.message(method, params)).await)
    }

    /// Sends a request whose text is given.
    pub async fn send_text(&self, method: &str, name: Option<&str>, body: String) -> Answer {
        let response = self.headed(method, name).raw(Method::POST, "/mcp", Some(body)).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer(Reply { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    /// Tells something that has no answer.
    pub async fn notify(&self, method: &str, params: Value) -> Reply {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.headed(method, None).post("/mcp", body).await
    }

    /// Calls a tool.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.send("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Calls a tool with further parameters.
    pub async fn call_with(&self, tool: &str, arguments: Value, more: Value) -> Answer {
        let mut params = more;
        params["name"] = json!(tool);
        params["arguments"] = arguments;
        self.send("tools/call", params).await
    }

    /// The tools that it is shown, whole.
    pub async fn listed(&self) -> Vec<Value> {
        let listed = self.send("tools/list", json!({})).await.0.expect(200).json();
        listed["result"]["tools"].as_array().unwrap().clone()
    }

    /// The names of the tools that it is shown.
    pub async fn tools(&self) -> Vec<String> {
        let tools = self.listed().await;
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Answer {
    /// The whole message.
    pub fn json(&self) -> Value {
        self.0.json()
    }

    /// Whether the gateway could not decide in time.
    fn is_stale(&self) -> bool {
        if self.0.body.first() != Some(&b'{') {
            return false;
        }
        let message = self.json();
        let told = message["error"]["message"].as_str().unwrap_or_default();
        told.contains("does not know whether this is still permitted")
            || message["result"]["structuredContent"]["refused"]["code"] == "stale_policy"
    }

    /// The result.
    pub fn result(&self) -> Value {
        self.json()["result"].clone()
    }

    /// What a tool gave, as structure.
    pub fn value(&self) -> Value {
        self.result()["structuredContent"].clone()
    }

    /// What a tool gave, as text.
    pub fn text(&self) -> String {
        self.result()["content"][0]["text"].as_str().unwrap_or_default().to_owned()
    }

    /// The name under which the call is recorded.
    pub fn call_id(&self) -> String {
        self.0.headers["x-cynode-call-id"].to_str().unwrap().to_owned()
    }

    /// What came of it, in a word or two: `ok`, `refused CODE`, `failed CODE` for a tool that failed, `asked` when
    /// something is wanted first, `error CODE` for a failure of the protocol, or the status alone.
    pub fn verdict(&self) -> String {
        if self.0.body.first() != Some(&b'{') {
            return self.0.status.to_string();
        }
        let message = self.json();
        if let Some(code) = message["error"]["code"].as_i64() {
            return format!("error {code}");
        }
        let result = &message["result"];
        let word = |of: &str| {
            let told = result["structuredContent"][of]["code"].as_str();
            // Where the tool promised another structure it stands beside it.
            let told = told.or_else(|| result["_meta"][format!("cynode/{of}")]["code"].as_str());
            told.map(|code| match of {
                "refused" => format!("refused {code}"),
                _ => format!("failed {code}"),
            })
        };
        if result["resultType"] == "input_required" {
            "asked".into()
        } else if let Some(word) = word("refused").or_else(|| word("error")) {
            word
        } else if result["isError"] == true {
            "failed".into()
        } else {
            "ok".into()
        }
    }
}
