//! A provider that answers by a script: always the same, without a network, for tests, demonstrations and trying things out.
//!
//! A script is `{"rules": [{"when": {…}, "answer": {…}}]}`. The first rule whose conditions all hold answers; a rule without
//! `when` always does.

use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::talk::{
    Answer, Extras, Input, Kind, ModelError, Part, Request, Role, Stop, Tool, ToolCall, Usage,
};

/// A script that can be followed.
#[derive(Debug)]
pub struct Script {
    rules: Vec<Rule>,
}

/// Why a script cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// It is not a script.
    #[error("it is not a script: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A pattern is wrong.
    #[error("`user_matches`: {0}")]
    Pattern(#[from] regex::Error),
    /// A rule says nothing.
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
    when: WhenText,
    answer: Said,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WhenText {
    tool_results: Option<usize>,
    tool_offered: Option<String>,
    user_matches: Option<String>,
    model: Option<String>,
}

#[derive(Debug)]
struct Rule {
    tool_results: Option<usize>,
    tool_offered: Option<String>,
    user_matches: Option<Regex>,
    model: Option<String>,
    answer: Said,
}

/// What a rule answers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    tool_calls: Vec<Called>,
    #[serde(default)]
    error: Option<Failing>,
    #[serde(default)]
    usage: Option<Used>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Called {
    name: String,
    /// Where the tool is, for clients that offer tools in groups.
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    arguments: Option<Value>,
    #[serde(default)]
    input: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Failing {
    kind: Kind,
    message: String,
    #[serde(default)]
    retry_after_seconds: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Used {
    input: u64,
    output: u64,
}

impl Script {
    /// Reads a script, or says what is wrong with it.
    pub fn read(value: &Value) -> Result<Self, ScriptError> {
        let text: ScriptText = serde_json::from_value(value.clone())?;
        let rules = text.rules.into_iter().enumerate().map(|(at, rule)| {
            let answer = rule.answer;
            if answer.text.is_none() && answer.tool_calls.is_empty() && answer.error.is_none() {
                return Err(ScriptError::Empty(at));
            }
            let user_matches = rule.when.user_matches.as_deref().map(Regex::new).transpose()?;
            let WhenText { tool_results, tool_offered, model, .. } = rule.when;
            Ok(Rule { tool_results, tool_offered, user_matches, model, answer })
        });
        Ok(Self { rules: rules.collect::<Result<_, ScriptError>>()? })
    }

    /// What the script says to a request.
    pub fn answer(&self, request: &Request) -> Result<Answer, ModelError> {
        let seen = Seen::of(request);
        let rule = self.rules.iter().find(|rule| rule.holds(&seen)).ok_or_else(|| {
            ModelError::new(Kind::Upstream, "the script has no answer to this question")
        })?;
        if let Some(error) = &rule.answer.error {
            let told = ModelError::new(error.kind, error.message.clone());
            return Err(match error.retry_after_seconds {
                Some(seconds) => told.with_retry_after(Duration::from_secs(seconds)),
                None => told,
            });
        }
        Ok(rule.answer.spoken(request, &seen))
    }
}

impl Rule {
    fn holds(&self, seen: &Seen<'_>) -> bool {
        self.tool_results.is_none_or(|wanted| wanted == seen.tool_results)
            && self.tool_offered.as_deref().is_none_or(|name| seen.tools.contains(&name))
            && self.user_matches.as_ref().is_none_or(|pattern| pattern.is_match(&seen.user))
            && self.model.as_deref().is_none_or(|model| model == seen.model)
    }
}

/// What a script may look at.
struct Seen<'a> {
    model: &'a str,
    tools: Vec<&'a str>,
    tool_results: usize,
    user: String,
    bytes: usize,
}

impl<'a> Seen<'a> {
    fn of(request: &'a Request) -> Self {
        fn names<'a>(tools: &'a [Tool], into: &mut Vec<&'a str>) {
            for tool in tools {
                match tool {
                    Tool::Function(tool) => into.push(&tool.name),
                    Tool::Custom(tool) => into.push(&tool.name),
                    Tool::Namespace(space) => names(&space.tools, into),
                    Tool::Foreign(_) => {}
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
        names(&request.tools, &mut seen.tools);
        for message in &request.messages {
            let mut words = Vec::new();
            for part in &message.parts {
                match part {
                    Part::Text(text) => words.push(text.text.as_str()),
                    Part::ToolResult(result) => {
                        seen.tool_results += 1;
                        let texts = result.parts.iter().filter_map(|part| match part {
                            Part::Text(text) => Some(text.text.len()),
                            _ => None,
                        });
                        seen.bytes += texts.sum::<usize>();
                    }
                    _ => {}
                }
            }
            seen.bytes += words.iter().map(|text| text.len()).sum::<usize>();
            if message.role == Role::User && !words.is_empty() {
                seen.user = words.join("\n");
            }
        }
        seen
    }
}

impl Said {
    fn spoken(&self, request: &Request, seen: &Seen<'_>) -> Answer {
        let mark = mark(request);
        let mut parts: Vec<Part> = self.text.iter().map(Part::text).collect();
        for (at, call) in self.tool_calls.iter().enumerate() {
            let input = match &call.input {
                Some(text) => Input::Free(text.clone()),
                None => Input::Json(
                    call.arguments.as_ref().map_or_else(|| "{}".into(), Value::to_string),
                ),
            };
            parts.push(Part::ToolCall(ToolCall {
                id: format!("call_{mark}_{at}"),
                name: call.name.clone(),
                namespace: call.namespace.clone(),
                input,
                extras: Extras::default(),
            }));
        }
        let stop = if self.tool_calls.is_empty() { Stop::EndTurn } else { Stop::ToolCalls };
        let spoken = self.text.as_ref().map_or(0, String::len)
            + self.tool_calls.iter().map(|call| call.name.len() + 20).sum::<usize>();
        let used = self.usage.unwrap_or(Used {
            input: (seen.bytes as u64).div_ceil(4).max(1),
            output: (spoken as u64).div_ceil(4).max(1),
        });
        let usage = Usage { input: used.input, output: used.output, ..Usage::default() };
        let (id, model) = (format!("scripted_{mark}"), request.model.clone());
        Answer { id, model, parts, stop, usage: Some(usage) }
    }
}

/// A name that is the same for the same request.
fn mark(request: &Request) -> String {
    let text = serde_json::to_vec(request).unwrap_or_default();
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dialect::{Dialect, Speak as _};

    fn script() -> Script {
        Script::read(&json!({ "rules": [
            { "when": { "tool_offered": "shell", "tool_results": 0 },
              "answer": { "tool_calls": [{ "name": "shell", "arguments": { "command": "ls" } }] } },
            { "when": { "user_matches": "(?i)fail" },
              "answer": { "error": { "kind": "rate_limited", "message": "slowly", "retry_after_seconds": 7 } } },
            { "answer": { "text": "done", "usage": { "input": 11, "output": 3 } } },
        ] }))
        .unwrap()
    }

    fn asked(body: &Value) -> Request {
        Dialect::Chat.read_request(body).unwrap()
    }

    #[test]
    fn the_first_rule_whose_conditions_hold_answers_and_always_the_same() {
        let tools =
            json!([{ "type": "function", "function": { "name": "shell", "parameters": {} } }]);
        let first = json!({ "model": "m", "messages": [{ "role": "user", "content": "go" }], "tools": tools });
        let answer = script().answer(&asked(&first)).unwrap();
        assert_eq!(answer.stop, Stop::ToolCalls);
        assert_eq!(script().answer(&asked(&first)).unwrap(), answer);
        let Part::ToolCall(call) = &answer.parts[0] else { panic!("{answer:?}") };
        let second = json!({ "model": "m", "tools": tools, "messages": [
            { "role": "user", "content": "go" },
            { "role": "assistant", "tool_calls": [{ "id": call.id, "type": "function",
                "function": { "name": "shell", "arguments": "{}" } }] },
            { "role": "tool", "tool_call_id": call.id, "content": "a b c" },
        ] });
        let answer = script().answer(&asked(&second)).unwrap();
        assert_eq!(answer.parts, [Part::text("done")]);
        assert_eq!(answer.usage, Some(Usage { input: 11, output: 3, ..Usage::default() }));
    }

    #[test]
    fn a_tool_of_a_group_is_called_in_its_group() {
        let script = Script::read(&json!({ "rules": [{ "answer": { "tool_calls": [
            { "name": "report", "namespace": "mcp__cynode", "arguments": {} }] } }] }));
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "go" }] });
        let answer = script.unwrap().answer(&asked(&body)).unwrap();
        let Part::ToolCall(call) = &answer.parts[0] else { panic!("{answer:?}") };
        assert_eq!(
            (call.name.as_str(), call.namespace.as_deref()),
            ("report", Some("mcp__cynode"))
        );
    }

    #[test]
    fn a_rule_may_fail_as_a_provider_does() {
        let body =
            json!({ "model": "m", "messages": [{ "role": "user", "content": "please FAIL" }] });
        let error = script().answer(&asked(&body)).unwrap_err();
        let told = ModelError::new(Kind::RateLimited, "slowly");
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
            assert!(Script::read(&wrong).is_err(), "{wrong}");
        }
    }
}
