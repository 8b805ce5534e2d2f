//! Rewrites a request before it goes to a provider, in the client's dialect.

use cynode_core::models::ProviderKind;
use serde_json::{Map, Value, json};

use crate::{
    content_guard,
    dialect::{
        Dialect,
        canonical::{ModelError, ModelErrorKind},
        messages::clamp_thinking_budget,
    },
};

/// Types of tools that the client itself runs. The provider runs all others.
const CLIENT_TOOL_TYPES: [&str; 7] =
    ["function", "custom", "namespace", "local_shell", "shell", "apply_patch", "tool_search"];

/// Prefixes of the types of tools that clients of Messages run.
const MESSAGES_CLIENT_TOOL_PREFIXES: [&str; 5] =
    ["custom", "bash_", "text_editor_", "computer_", "memory_"];

/// Fields that make the provider access the network by itself, choose another model, or use a feature with another price.
const HOSTED_FEATURE_FIELDS: [&str; 13] = [
    "mcp_servers",
    "web_search_options",
    "container",
    "plugins",
    "search_parameters",
    "enable_search",
    "models",
    "route",
    "provider",
    "transforms",
    "speed",
    "inference_geo",
    "context_management",
];

/// Fields that hold the client's own content, in which field names are arbitrary.
pub(crate) const CLIENT_CONTENT_FIELDS: [&str; 7] = [
    "arguments",
    "input",
    "input_examples",
    "input_schema",
    "output_schema",
    "parameters",
    "schema",
];

/// A request that may be rewritten.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRewrite {
    dialect: Dialect,
    body: Value,
}

impl RequestRewrite {
    /// Creates a rewrite of a request. Rejects features that are never forwarded, and resets the cache lifetime to the default, whose price
    /// is known.
    pub fn new(dialect: Dialect, mut body: Value) -> Result<Self, ModelError> {
        let bad = |told: &str| Err(ModelError::new(ModelErrorKind::BadRequest, told));
        if !body.is_object() {
            return bad("the body is not a JSON object");
        }
        let given = |name: &str| body.get(name).filter(|value| !value.is_null());
        if given("n").is_some_and(|n| *n != json!(1)) {
            return bad("`n`: one answer at a time; ask again for another");
        }
        if given("stream").is_some_and(|stream| !stream.is_boolean()) {
            return bad("`stream` is true or false");
        }
        if given("model").is_some_and(|model| !model.is_string()) {
            return bad("`model` is a text");
        }
        if given("prompt").is_some() {
            return bad("`prompt`: what is stored with a provider cannot be looked at");
        }
        if body.get("background") == Some(&Value::Bool(true)) {
            return bad("`background`: an answer that nobody waits for cannot be accounted for");
        }
        let tier = body.get("service_tier").and_then(Value::as_str);
        if tier
            .is_some_and(|tier| !["auto", "default", "standard", "standard_only"].contains(&tier))
        {
            return bad("`service_tier`: only the ordinary one has a known price");
        }
        strip_cache_ttl(&mut body);
        // In Responses, the conversation has the field name that tool arguments have elsewhere.
        if let Some(conversation) = body.get_mut("input") {
            strip_cache_ttl(conversation);
        }
        Ok(Self { dialect, body })
    }

    /// Returns the model's id, as the client wrote it.
    pub fn model_id(&self) -> Option<&str> {
        self.body.get("model").and_then(Value::as_str)
    }

    /// Returns whether the response is streamed.
    pub fn is_streaming(&self) -> bool {
        self.body.get("stream") == Some(&Value::Bool(true))
    }

    /// Returns whether the client requested token usage at the end of the stream.
    pub fn includes_usage(&self) -> bool {
        self.dialect != Dialect::Chat
            || self.body.get("stream_options").and_then(|options| options.get("include_usage"))
                == Some(&Value::Bool(true))
    }

    /// Returns the output limit that the client set.
    pub fn output_token_limit(&self) -> Option<u64> {
        let names: &[&str] = match self.dialect {
            Dialect::Chat => &["max_completion_tokens", "max_tokens"],
            Dialect::Responses => &["max_output_tokens"],
            Dialect::Messages => &["max_tokens"],
        };
        names.iter().filter_map(|name| self.body.get(*name).and_then(Value::as_u64)).min()
    }

    /// Removes features that the provider runs by itself: hosted tools, and servers that it calls. Every tool call must pass the gateway,
    /// and these would bypass it. Returns the number of removed features.
    pub fn strip_hosted_tools(&mut self) -> usize {
        let dialect = self.dialect;
        let mut removed = 0;
        for name in HOSTED_FEATURE_FIELDS {
            removed += usize::from(self.remove_field(name).is_some());
        }
        if let Some(Value::Array(tools)) = self.body.get_mut("tools") {
            let gone = retain_client_tools(dialect, tools);
            removed += gone;
            if tools.is_empty() && gone > 0 {
                self.remove_field("tools");
                self.remove_field("tool_choice");
            }
        }
        // Some clients of Responses offer tools among the messages.
        if let Some(Value::Array(items)) = self.body.get_mut("input") {
            for item in items {
                if let Some(Value::Array(tools)) = item.get_mut("tools") {
                    removed += retain_client_tools(dialect, tools);
                }
            }
        }
        removed
    }

    /// Checks that an agent's request carries all of its content itself, and removes the fields that agents may not set. Returns the number
    /// of removed fields.
    pub fn restrict_agent_content(&mut self) -> Result<usize, ModelError> {
        content_guard::restrict_agent_request(self.dialect, &mut self.body)
    }

    /// Checks that the provider has to fetch nothing for the request.
    pub fn check_inline_media(&self) -> Result<(), ModelError> {
        content_guard::check_inline_media(&self.body)
    }

    /// Prepends instructions to those of the client.
    pub fn prepend_instructions(&mut self, text: &str) {
        match self.dialect {
            Dialect::Chat => {
                let message = json!({ "role": "system", "content": text });
                if let Some(Value::Array(messages)) = self.body.get_mut("messages") {
                    messages.insert(0, message);
                }
            }
            Dialect::Responses => {
                let told = match self.body.get("instructions").and_then(Value::as_str) {
                    Some(own) => format!("{text}\n\n{own}"),
                    None => text.to_owned(),
                };
                self.body["instructions"] = Value::String(told);
            }
            Dialect::Messages => {
                let block = json!({ "type": "text", "text": text });
                let system = match self.remove_field("system") {
                    Some(Value::String(own)) => json!([block, { "type": "text", "text": own }]),
                    Some(Value::Array(mut blocks)) => {
                        blocks.insert(0, block);
                        Value::Array(blocks)
                    }
                    Some(_) | None => json!([block]),
                };
                self.body["system"] = system;
            }
        }
    }

    /// Returns the request as JSON text.
    pub fn to_json_text(&self) -> String {
        self.body.to_string()
    }

    /// Returns the request body.
    pub const fn as_body(&self) -> &Value {
        &self.body
    }

    /// Returns the request body for changes.
    pub const fn as_body_mut(&mut self) -> &mut Value {
        &mut self.body
    }

    /// Removes a field.
    fn remove_field(&mut self, name: &str) -> Option<Value> {
        self.body.as_object_mut().and_then(|fields| fields.shift_remove(name))
    }

    /// Returns the request for a provider that uses the same dialect: with the provider's name of the model, an output limit of `most`
    /// tokens, and token usage at the end of a stream.
    pub fn to_provider_body(&self, kind: ProviderKind, upstream: &str, most: u64) -> Value {
        let mut body = self.body.as_object().cloned().unwrap_or_default();
        body.insert("model".into(), Value::String(upstream.to_owned()));
        // Only the field that this provider reads is sent, whichever one the client used.
        for name in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
            body.shift_remove(name);
        }
        let name = match self.dialect {
            Dialect::Chat if kind == ProviderKind::OpenAi => "max_completion_tokens",
            Dialect::Chat | Dialect::Messages => "max_tokens",
            Dialect::Responses => "max_output_tokens",
        };
        body.insert(name.into(), json!(most));
        match self.dialect {
            Dialect::Chat if self.is_streaming() => {
                let options = body.entry("stream_options").or_insert_with(|| json!({}));
                if let Value::Object(options) = options {
                    options.insert("include_usage".into(), Value::Bool(true));
                } else {
                    *options = json!({ "include_usage": true });
                }
            }
            // The provider does not store the request unless the client asks for it.
            Dialect::Responses => {
                body.entry("store").or_insert(Value::Bool(false));
            }
            // If the limit is not reduced, the client's budget stays: with interleaved thinking a budget may exceed the limit.
            Dialect::Messages if self.output_token_limit().is_none_or(|limit| most < limit) => {
                reduce_thinking_budget(&mut body, most);
            }
            Dialect::Chat | Dialect::Messages => {}
        }
        Value::Object(body)
    }
}

/// Removes the lifetime of every cache marker: a longer lifetime has another price.
fn strip_cache_ttl(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(strip_cache_ttl),
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "cache_control" {
                    if let Value::Object(mark) = value {
                        mark.shift_remove("ttl");
                    }
                } else if !CLIENT_CONTENT_FIELDS.contains(&name.as_str()) {
                    strip_cache_ttl(value);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Reduces the thinking budget when the output limit was reduced.
fn reduce_thinking_budget(body: &mut Map<String, Value>, most: u64) {
    let budget = body.get_mut("thinking").and_then(|thinking| thinking.get_mut("budget_tokens"));
    let Some(budget) = budget else { return };
    let Some(asked) = budget.as_u64() else { return };
    match clamp_thinking_budget(asked, most) {
        Some(left) => *budget = json!(left),
        None => {
            body.shift_remove("thinking");
        }
    }
}

/// Retains only the tools that the client runs, in groups too. Returns the number of removed tools.
fn retain_client_tools(dialect: Dialect, tools: &mut Vec<Value>) -> usize {
    let before = tools.len();
    tools.retain(|tool| is_client_tool(dialect, tool));
    let mut removed = before - tools.len();
    for tool in tools {
        if let Some(Value::Array(grouped)) = tool.get_mut("tools") {
            removed += retain_client_tools(dialect, grouped);
        }
    }
    removed
}

fn is_client_tool(dialect: Dialect, tool: &Value) -> bool {
    let kind = tool.get("type").and_then(Value::as_str);
    match (dialect, kind) {
        (Dialect::Messages, None) => true,
        (Dialect::Messages, Some(kind)) => {
            MESSAGES_CLIENT_TOOL_PREFIXES.iter().any(|known| kind.starts_with(known))
        }
        (Dialect::Chat | Dialect::Responses, Some(kind)) => {
            CLIENT_TOOL_TYPES.contains(&kind) && !is_hosted_variant(kind, tool)
        }
        (Dialect::Chat | Dialect::Responses, None) => false,
    }
}

/// Returns whether the provider runs this tool although clients run others of the same type. The client must say that it runs the tool.
fn is_hosted_variant(kind: &str, tool: &Value) -> bool {
    let word = |pointer: &str| tool.pointer(pointer).and_then(Value::as_str);
    match kind {
        "shell" => word("/environment/type") != Some("local"),
        "tool_search" => word("/execution") != Some("client"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{DialectCodec as _, ProviderCapabilities};

    fn shaped(dialect: Dialect, body: Value) -> RequestRewrite {
        RequestRewrite::new(dialect, body).unwrap()
    }

    #[test]
    fn what_cannot_be_accounted_for_is_refused() {
        for body in [
            json!([]),
            json!({ "n": 2 }),
            json!({ "n": 2.0 }),
            json!({ "n": "2" }),
            json!({ "stream": "true" }),
            json!({ "model": 5 }),
            json!({ "prompt": { "id": "p" } }),
            json!({ "background": true }),
            json!({ "service_tier": "priority" }),
        ] {
            let error = RequestRewrite::new(Dialect::Chat, body.clone()).unwrap_err();
            assert_eq!(error.kind, ModelErrorKind::BadRequest, "{body}");
        }
    }

    #[test]
    fn tools_that_the_provider_would_run_are_taken_out_and_the_clients_own_stay() {
        let own = json!([{ "type": "function", "name": "a" }, { "type": "custom", "name": "b" }]);
        let mut request = shaped(
            Dialect::Responses,
            json!({ "tools": [own[0], { "type": "web_search" }, own[1], { "type": "mcp" }] }),
        );
        assert_eq!(request.strip_hosted_tools(), 2);
        assert_eq!(*request.as_body(), json!({ "tools": own }));

        let group = |tools: Value| json!({ "type": "namespace", "name": "g", "tools": tools });
        let offer =
            |tools: Value| json!({ "input": [{ "type": "additional_tools", "tools": tools }] });
        let (kept, hosted) = (json!([own[0]]), json!([own[0], { "type": "code_interpreter" }]));
        let mut request =
            shaped(Dialect::Responses, offer(json!([group(hosted), { "type": "web_search" }])));
        assert_eq!(request.strip_hosted_tools(), 2);
        assert_eq!(*request.as_body(), offer(json!([group(kept)])));

        let own = json!([
            { "type": "shell", "environment": { "type": "local" } },
            { "type": "tool_search", "execution": "client" },
        ]);
        let mut request = shaped(
            Dialect::Responses,
            json!({ "tools": [
                { "type": "shell" }, own[0], { "type": "shell", "environment": { "type": "container_auto" } },
                { "type": "tool_search" }, own[1], { "type": "tool_search", "execution": "server" },
            ] }),
        );
        assert_eq!(request.strip_hosted_tools(), 4);
        assert_eq!(*request.as_body(), json!({ "tools": own }));

        let own = json!([{ "name": "a", "input_schema": {} }, { "type": "bash_20250124", "name": "bash" }]);
        let mut request = shaped(
            Dialect::Messages,
            json!({ "tools": [own[0], { "type": "web_search_20260209", "name": "w" }, own[1]], "mcp_servers": [{}] }),
        );
        assert_eq!(request.strip_hosted_tools(), 2);
        assert_eq!(*request.as_body(), json!({ "tools": own }));

        let mut request = shaped(
            Dialect::Chat,
            json!({ "tools": [{ "type": "web_search" }], "tool_choice": "auto", "web_search_options": {} }),
        );
        assert_eq!(request.strip_hosted_tools(), 2);
        assert_eq!(*request.as_body(), json!({}));
    }

    #[test]
    fn a_request_is_addressed_with_the_providers_name_a_limit_and_a_count() {
        let chat = json!({ "model": "ours", "messages": [], "stream": true, "max_tokens": 9000,
            "max_completion_tokens": 1 });
        assert_eq!(shaped(Dialect::Chat, chat.clone()).output_token_limit(), Some(1));
        let addressed =
            shaped(Dialect::Chat, chat).to_provider_body(ProviderKind::Compatible, "theirs", 100);
        assert_eq!(
            addressed,
            json!({ "model": "theirs", "messages": [], "stream": true, "max_tokens": 100,
                "stream_options": { "include_usage": true } })
        );
        let addressed = shaped(Dialect::Chat, json!({ "model": "ours" }));
        let addressed = addressed.to_provider_body(ProviderKind::OpenAi, "theirs", 7);
        assert_eq!(addressed, json!({ "model": "theirs", "max_completion_tokens": 7 }));
        let addressed = shaped(Dialect::Responses, json!({ "model": "ours", "store": true }));
        let addressed = addressed.to_provider_body(ProviderKind::OpenAi, "theirs", 7);
        assert_eq!(addressed, json!({ "model": "theirs", "store": true, "max_output_tokens": 7 }));
        let addressed = shaped(Dialect::Messages, json!({ "model": "ours", "stream": true }));
        let addressed = addressed.to_provider_body(ProviderKind::Anthropic, "theirs", 7);
        assert_eq!(addressed, json!({ "model": "theirs", "stream": true, "max_tokens": 7 }));
    }

    #[test]
    fn no_mark_for_caching_names_a_time_and_the_clients_own_words_stay() {
        let own = json!({ "cache_control": { "ttl": "1h" } });
        let asked = |mark: Value| {
            json!({
                "model": "m",
                "max_tokens": 7,
                "system": [{ "type": "text", "text": "s", "cache_control": mark }],
                "messages": [
                    { "role": "assistant", "content": [
                        { "type": "tool_use", "id": "t", "name": "a", "input": own, "cache_control": mark },
                    ] },
                    { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t",
                        "content": [{ "type": "text", "text": "r", "cache_control": mark }], "cache_control": mark }] },
                ],
                "tools": [{ "name": "a", "input_schema": { "properties": own }, "cache_control": mark }],
                "cache_control": mark,
            })
        };
        let brief = asked(json!({ "type": "ephemeral" }));
        let request = shaped(Dialect::Messages, asked(json!({ "type": "ephemeral", "ttl": "1h" })));
        assert_eq!(request.to_provider_body(ProviderKind::Anthropic, "m", 7), brief);
        let read = Dialect::Messages.decode_request(request.as_body()).unwrap();
        let written =
            Dialect::Messages.encode_request(&read, &ProviderCapabilities::default()).unwrap();
        assert_eq!(written, brief);

        let part =
            |mark: Value| json!({ "type": "input_text", "text": "q", "cache_control": mark });
        let request = shaped(
            Dialect::Responses,
            json!({ "input": [{ "role": "user", "content": [part(json!({ "ttl": "1h" }))] }] }),
        );
        let brief = json!({ "input": [{ "role": "user", "content": [part(json!({}))] }] });
        assert_eq!(*request.as_body(), brief);
    }

    #[test]
    fn a_shorter_answer_leaves_less_to_think_and_one_that_is_not_leaves_the_thoughts_alone() {
        let thinking = |budget: u64| json!({ "type": "enabled", "budget_tokens": budget });
        let asked = json!({ "model": "ours", "max_tokens": 9000, "thinking": thinking(8000) });
        let asked = shaped(Dialect::Messages, asked);
        let addressed = |most| asked.to_provider_body(ProviderKind::Anthropic, "theirs", most);
        for (most, left) in [(9000, 8000), (8001, 8000), (8000, 7999), (1025, 1024)] {
            assert_eq!(
                addressed(most),
                json!({ "model": "theirs", "thinking": thinking(left), "max_tokens": most })
            );
        }
        assert_eq!(addressed(1024), json!({ "model": "theirs", "max_tokens": 1024 }));

        let larger = json!({ "model": "theirs", "max_tokens": 9000, "thinking": thinking(20_000) });
        let addressed = shaped(Dialect::Messages, larger.clone());
        assert_eq!(addressed.to_provider_body(ProviderKind::Anthropic, "theirs", 9000), larger);
    }

    #[test]
    fn instructions_come_before_those_of_the_client_in_every_dialect() {
        let mut chat =
            shaped(Dialect::Chat, json!({ "messages": [{ "role": "user", "content": "q" }] }));
        chat.prepend_instructions("first");
        let expected =
            json!([{ "role": "system", "content": "first" }, { "role": "user", "content": "q" }]);
        assert_eq!(chat.as_body()["messages"], expected);
        let mut responses = shaped(Dialect::Responses, json!({ "instructions": "own" }));
        responses.prepend_instructions("first");
        assert_eq!(responses.as_body()["instructions"], "first\n\nown");
        for (system, count) in
            [(json!("own"), 2), (json!([{ "type": "text", "text": "own" }]), 2), (Value::Null, 1)]
        {
            let mut messages = shaped(Dialect::Messages, json!({ "system": system }));
            messages.prepend_instructions("first");
            let blocks = messages.as_body()["system"].clone();
            assert_eq!(blocks[0], json!({ "type": "text", "text": "first" }));
            assert_eq!(blocks.as_array().map(Vec::len), Some(count));
        }
    }
}
