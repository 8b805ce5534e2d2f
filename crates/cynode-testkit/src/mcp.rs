//! The agent side of MCP, in both protocol eras, over a [`Client`].

use axum::http::{HeaderValue, Method};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::{Client, Reply, TestGateway};

/// The revision with stateless requests.
pub const MODERN: &str = "2026-07-28";

/// The newest revision with a handshake.
pub const LEGACY: &str = "2025-11-25";

/// Maximum number of retries of a request that the gateway could not decide in time.
const MAX_REPEATS: usize = 20;

/// Era of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// Every request is stateless.
    Modern,
    /// A handshake comes first.
    Legacy,
}

/// An agent at the gateway.
#[derive(Clone)]
pub struct Agent {
    /// Its client, with its credential.
    pub client: Client,
    era: Era,
    id: Value,
    capabilities: Value,
}

/// The response to a message.
#[derive(Debug)]
pub struct Answer(pub Reply);

impl Client {
    /// Returns an agent of the same client that uses the stateless revision.
    pub fn modern(&self) -> Agent {
        Agent { client: self.clone(), era: Era::Modern, id: json!(1), capabilities: json!({}) }
    }

    /// Returns an agent of the same client that uses the revision with a handshake.
    pub fn legacy(&self) -> Agent {
        Agent { era: Era::Legacy, ..self.modern() }
    }
}

impl Agent {
    /// Declares that the agent's client can show URLs to a person.
    #[must_use]
    pub fn showing_urls(mut self) -> Self {
        self.capabilities = json!({ "elicitation": { "url": {} } });
        self
    }

    /// Sets the JSON-RPC id of its requests.
    #[must_use]
    pub fn naming(mut self, id: Value) -> Self {
        self.id = id;
        self
    }

    /// Sets the protocol era.
    #[must_use]
    pub fn in_era(mut self, era: Era) -> Self {
        self.era = era;
        self
    }

    /// Returns the same agent with an additional header.
    #[must_use]
    pub fn with_header(&self, name: &'static str, value: &str) -> Self {
        Self { client: self.client.with_header(name, value), ..self.clone() }
    }

    /// Returns the same agent at another gateway.
    #[must_use]
    pub fn at(&self, gateway: &TestGateway) -> Self {
        let token = self.client.token().unwrap_or_default();
        Self { client: gateway.client().with_token(&token), ..self.clone() }
    }

    /// Builds a message in its wire format.
    pub fn message(&self, method: &str, mut params: Value) -> Value {
        if self.era == Era::Modern {
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
            meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params })
    }

    /// Returns the client with the headers that belong to such a message.
    pub fn headed(&self, method: &str, name: Option<&str>) -> Client {
        match self.era {
            Era::Legacy => self.client.with_header("mcp-protocol-version", LEGACY),
            Era::Modern => {
                let client = self.client.with_header("mcp-protocol-version", MODERN);
                let client = client.with_header("mcp-method", method);
                match name {
                    // A name that is not valid in a header is encoded.
                    Some(name) if HeaderValue::from_str(name).is_ok() => {
                        client.with_header("mcp-name", name)
                    }
                    _ => client,
                }
            }
        }
    }

    /// Sends a request. A gateway on a busy machine may not be able to decide in time about a permission, and says so; the
    /// request is then repeated, as its answer advises.
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

    /// Sends a request once, without retries.
    pub async fn send_once(&self, method: &str, params: Value) -> Answer {
        let name = params["name"].as_str().map(ToOwned::to_owned);
        let client = self.headed(method, name.as_deref());
        Answer(client.post("/mcp", self.message(method, params)).await)
    }

    /// Sends a request with a given body.
    pub async fn send_text(&self, method: &str, name: Option<&str>, body: String) -> Answer {
        let response = self.headed(method, name).raw(Method::POST, "/mcp", Some(body)).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer(Reply { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    /// Sends a notification, which has no response.
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

    /// Lists the visible tools, complete.
    pub async fn listed(&self) -> Vec<Value> {
        let listed = self.send("tools/list", json!({})).await.0.expect(200).json();
        listed["result"]["tools"].as_array().unwrap().clone()
    }

    /// Lists the names of the visible tools.
    pub async fn tools(&self) -> Vec<String> {
        let tools = self.listed().await;
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Answer {
    /// Returns the whole message.
    pub fn json(&self) -> Value {
        self.0.json()
    }

    /// Returns whether the gateway could not decide in time.
    fn is_stale(&self) -> bool {
        if self.0.body.first() != Some(&b'{') {
            return false;
        }
        let message = self.json();
        let told = message["error"]["message"].as_str().unwrap_or_default();
        told.contains("does not know whether this is still permitted")
            || message["result"]["structuredContent"]["refused"]["code"] == "stale_policy"
    }

    /// Returns the result.
    pub fn result(&self) -> Value {
        self.json()["result"].clone()
    }

    /// Returns the structured content of a tool result.
    pub fn value(&self) -> Value {
        self.result()["structuredContent"].clone()
    }

    /// Returns the text of a tool result.
    pub fn text(&self) -> String {
        self.result()["content"][0]["text"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the call id of the audit records.
    pub fn call_id(&self) -> String {
        self.0.headers["x-cynode-call-id"].to_str().unwrap().to_owned()
    }

    /// Returns a summary: `ok`, `refused CODE`, `failed CODE` for a tool that failed, `asked` if input is required first,
    /// `error CODE` for a protocol error, or the status alone.
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
            // If the tool declared a different output structure, the code is beside it.
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
