//! Scripted provider: deterministic responses without a network, for tests, demonstrations and trials.
//!
//! A script is `{"rules": [{"when": {…}, "answer": {…}}]}`. The first rule whose conditions all hold answers; a rule without `when` always
//! matches.

use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::dialect::canonical::{
    CanonicalRequest, CanonicalResponse, CanonicalTool, ContentPart, DialectExtras, MessageRole,
    ModelError, ModelErrorKind, StopReason, TokenUsage, ToolCall, ToolInput,
};

/// A valid script.
#[derive(Debug)]
pub struct ModelScript {
    rules: Vec<ScriptRule>,
}

/// Reason for rejecting a script.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The value is not a script.
    #[error("it is not a script: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A pattern is invalid.
    #[error("`user_matches`: {0}")]
    Pattern(#[from] regex::Error),
    /// A rule has no response.
    #[error("rule {0} has neither `text` nor `tool_calls` nor `error`")]
    Empty(usize),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptText {
    rules: Vec<RuleText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    #[serde(default)]
    when: ConditionText,
    answer: ScriptedResponse,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionText {
    tool_results: Option<usize>,
    tool_offered: Option<String>,
    user_matches: Option<String>,
    model: Option<String>,
}

#[derive(Debug)]
struct ScriptRule {
    tool_results: Option<usize>,
    tool_offered: Option<String>,
    user_matches: Option<Regex>,
    model: Option<String>,
    answer: ScriptedResponse,
}

/// Response of a rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedResponse {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    tool_calls: Vec<ScriptedToolCall>,
    #[serde(default)]
    error: Option<ScriptedError>,
    #[serde(default)]
    usage: Option<ScriptedUsage>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedToolCall {
    name: String,
    /// Namespace of the tool, for clients that offer tools in groups.
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    arguments: Option<Value>,
    #[serde(default)]
    input: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedError {
    kind: ModelErrorKind,
    message: String,
    #[serde(default)]
    retry_after_seconds: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedUsage {
    input: u64,
    output: u64,
}

impl ModelScript {
    /// Parses a script.
    pub fn parse_script(value: &Value) -> Result<Self, ScriptError> {
        let text: ScriptText = serde_json::from_value(value.clone())?;
        let rules = text.rules.into_iter().enumerate().map(|(at, rule)| {
            let answer = rule.answer;
            if answer.text.is_none() && answer.tool_calls.is_empty() && answer.error.is_none() {
                return Err(ScriptError::Empty(at));
            }
            let user_matches = rule.when.user_matches.as_deref().map(Regex::new).transpose()?;
            let ConditionText { tool_results, tool_offered, model, .. } = rule.when;
            Ok(ScriptRule { tool_results, tool_offered, user_matches, model, answer })
        });
        Ok(Self { rules: rules.collect::<Result<_, ScriptError>>()? })
    }

    /// Returns the script's response to a request.
    pub fn respond_to(&self, request: &CanonicalRequest) -> Result<CanonicalResponse, ModelError> {
        let seen = ScriptContext::from_request(request);
        let rule = self.rules.iter().find(|rule| rule.matches_request(&seen)).ok_or_else(|| {
            ModelError::new(ModelErrorKind::Upstream, "the script has no answer to this question")
        })?;
        if let Some(error) = &rule.answer.error {
            let told = ModelError::new(error.kind, error.message.clone());
            return Err(match error.retry_after_seconds {
                Some(seconds) => told.with_retry_after(Duration::from_secs(seconds)),
                None => told,
            });
        }
        Ok(rule.answer.to_response(request, &seen))
    }
}

impl ScriptRule {
    fn matches_request(&self, seen: &ScriptContext<'_>) -> bool {
        self.tool_results.is_none_or(|wanted| wanted == seen.tool_results)
            && self.tool_offered.as_deref().is_none_or(|name| seen.tools.contains(&name))
            && self.user_matches.as_ref().is_none_or(|pattern| pattern.is_match(&seen.user))
            && self.model.as_deref().is_none_or(|model| model == seen.model)
    }
}

/// Fields of a request that the conditions of a rule may use.
struct ScriptContext<'a> {
    model: &'a str,
    tools: Vec<&'a str>,
    tool_results: usize,
    user: String,
    bytes: usize,
}

impl<'a> ScriptContext<'a> {
    fn from_request(request: &'a CanonicalRequest) -> Self {
        fn collect_tool_names<'a>(tools: &'a [CanonicalTool], into: &mut Vec<&'a str>) {
            for tool in tools {
                match tool {
                    CanonicalTool::Function(tool) => into.push(&tool.name),
                    CanonicalTool::Custom(tool) => into.push(&tool.name),
                    CanonicalTool::Namespace(space) => collect_tool_names(&space.tools, into),
                    CanonicalTool::Foreign(_) => {}
                }
            }
        }
        let mut seen = Self {
            model: &request.model,
            tools: Vec::new(),
            tool_results: 0,
            user: String::new(),
            bytes: request.instructions.iter().map(|text| text.text.len()).sum(),
        };
        collect_tool_names(&request.tools, &mut seen.tools);
        for message in &request.messages {
            let mut words = Vec::new();
            for part in &message.parts {
                match part {
                    ContentPart::Text(text) => words.push(text.text.as_str()),
                    ContentPart::ToolResult(result) => {
                        seen.tool_results += 1;
                        let texts = result.parts.iter().filter_map(|part| match part {
                            ContentPart::Text(text) => Some(text.text.len()),
                            _ => None,
                        });
                        seen.bytes += texts.sum::<usize>();
                    }
                    _ => {}
                }
            }
            seen.bytes += words.iter().map(|text| text.len()).sum::<usize>();
            if message.role == MessageRole::User && !words.is_empty() {
                seen.user = words.join("\n");
            }
        }
        seen
    }
}

impl ScriptedResponse {
    fn to_response(
        &self,
        request: &CanonicalRequest,
        seen: &ScriptContext<'_>,
    ) -> CanonicalResponse {
        let mark = request_digest(request);
        let mut parts: Vec<ContentPart> = self.text.iter().map(ContentPart::from_text).collect();
        for (at, call) in self.tool_calls.iter().enumerate() {
            let input = match &call.input {
                Some(text) => ToolInput::Free(text.clone()),
                None => ToolInput::Json(
                    call.arguments.as_ref().map_or_else(|| "{}".into(), Value::to_string),
                ),
            };
            parts.push(ContentPart::ToolCall(ToolCall {
                id: format!("call_{mark}_{at}"),
                name: call.name.clone(),
                namespace: call.namespace.clone(),
                input,
                extras: DialectExtras::default(),
            }));
        }
        let stop =
            if self.tool_calls.is_empty() { StopReason::EndTurn } else { StopReason::ToolCalls };
        let spoken = self.text.as_ref().map_or(0, String::len)
            + self.tool_calls.iter().map(|call| call.name.len() + 20).sum::<usize>();
        let used = self.usage.unwrap_or(ScriptedUsage {
            input: (seen.bytes as u64).div_ceil(4).max(1),
            output: (spoken as u64).div_ceil(4).max(1),
        });
        let usage = TokenUsage { input: used.input, output: used.output, ..TokenUsage::default() };
        let (id, model) = (format!("scripted_{mark}"), request.model.clone());
        CanonicalResponse { id, model, parts, stop, usage: Some(usage) }
    }
}

/// Returns an id that is the same for the same request.
fn request_digest(request: &CanonicalRequest) -> String {
    let text = serde_json::to_vec(request).unwrap_or_default();
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dialect::{Dialect, DialectCodec as _};

    fn script() -> ModelScript {
        ModelScript::parse_script(&json!({ "rules": [
            { "when": { "tool_offered": "shell", "tool_results": 0 },
              "answer": { "tool_calls": [{ "name": "shell", "arguments": { "command": "ls" } }] } },
            { "when": { "user_matches": "(?i)fail" },
              "answer": { "error": { "kind": "rate_limited", "message": "slowly", "retry_after_seconds": 7 } } },
            { "answer": { "text": "done", "usage": { "input": 11, "output": 3 } } },
        ] }))
        .unwrap()
    }

    fn asked(body: &Value) -> CanonicalRequest {
        Dialect::Chat.decode_request(body).unwrap()
    }

    #[test]
    fn the_first_rule_whose_conditions_hold_answers_and_always_the_same() {
        let tools =
            json!([{ "type": "function", "function": { "name": "shell", "parameters": {} } }]);
        let first = json!({ "model": "m", "messages": [{ "role": "user", "content": "go" }], "tools": tools });
        let answer = script().respond_to(&asked(&first)).unwrap();
        assert_eq!(answer.stop, StopReason::ToolCalls);
        assert_eq!(script().respond_to(&asked(&first)).unwrap(), answer);
        let ContentPart::ToolCall(call) = &answer.parts[0] else { panic!("{answer:?}") };
        let second = json!({ "model": "m", "tools": tools, "messages": [
            { "role": "user", "content": "go" },
            { "role": "assistant", "tool_calls": [{ "id": call.id, "type": "function",
                "function": { "name": "shell", "arguments": "{}" } }] },
            { "role": "tool", "tool_call_id": call.id, "content": "a b c" },
        ] });
        let answer = script().respond_to(&asked(&second)).unwrap();
        assert_eq!(answer.parts, [ContentPart::from_text("done")]);
        assert_eq!(
            answer.usage,
            Some(TokenUsage { input: 11, output: 3, ..TokenUsage::default() })
        );
    }

    #[test]
    fn a_tool_of_a_group_is_called_in_its_group() {
        let script = ModelScript::parse_script(&json!({ "rules": [{ "answer": { "tool_calls": [
            { "name": "report", "namespace": "mcp__cynode", "arguments": {} }] } }] }));
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "go" }] });
        let answer = script.unwrap().respond_to(&asked(&body)).unwrap();
        let ContentPart::ToolCall(call) = &answer.parts[0] else { panic!("{answer:?}") };
        assert_eq!(
            (call.name.as_str(), call.namespace.as_deref()),
            ("report", Some("mcp__cynode"))
        );
    }

    #[test]
    fn a_rule_may_fail_as_a_provider_does() {
        let body =
            json!({ "model": "m", "messages": [{ "role": "user", "content": "please FAIL" }] });
        let error = script().respond_to(&asked(&body)).unwrap_err();
        let told = ModelError::new(ModelErrorKind::RateLimited, "slowly");
        assert_eq!(error, told.with_retry_after(Duration::from_secs(7)));
    }

    #[test]
    fn a_script_with_a_mistake_is_refused() {
        for wrong in [
            json!({}),
            json!({ "rules": [{}] }),
            json!({ "rules": [{ "answer": {} }] }),
            json!({ "rules": [{ "when": { "user_matches": "(" }, "answer": { "text": "a" } }] }),
            json!({ "rules": [{ "when": { "moon": "full" }, "answer": { "text": "a" } }] }),
        ] {
            assert!(ModelScript::parse_script(&wrong).is_err(), "{wrong}");
        }
    }
}
