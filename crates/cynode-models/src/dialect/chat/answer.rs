use serde_json::{Map, Value, json};

use super::reading::tool_call;
use crate::{
    dialect::{
        Dialect, Reply, Speak as _,
        fields::{Fields, tokens, word},
    },
    talk::{Answer, Extras, Input, ModelError, Part, Reasoning, Stop, ToolCall, Usage},
};

/// What a provider answered.
pub fn read_answer(body: &Value) -> Result<Answer, ModelError> {
    if body.get("error").is_some_and(|error| !error.is_null()) {
        return Err(Dialect::Chat.read_error(0, body, None));
    }
    read(body).map_err(ModelError::by_provider)
}

fn read(body: &Value) -> Result<Answer, ModelError> {
    let mut fields = Fields::of(body)?;
    let choices = fields.list("choices")?;
    let choice = choices.first().ok_or_else(|| ModelError::bad("it has no choice"))?;
    let message = choice.get("message").ok_or_else(|| ModelError::bad("it has no message"))?;
    let parts = parts(message)?;
    let stop = stop(word(choice, "finish_reason"), &parts);
    Ok(Answer {
        id: fields.string("id")?.unwrap_or_default(),
        model: fields.string("model")?.unwrap_or_default(),
        parts,
        stop,
        usage: fields.get("usage").map(usage),
    })
}

fn parts(message: &Value) -> Result<Vec<Part>, ModelError> {
    let mut parts = Vec::new();
    let mut fields = Fields::of(message)?;
    let (long, short) = (fields.text("reasoning_content")?, fields.text("reasoning")?);
    if let Some(text) = long.or(short).filter(|text| !text.is_empty()) {
        parts.push(Part::Reasoning(Reasoning { text: text.to_owned(), seal: None }));
    }
    if let Some(text) = fields.text("content")?.filter(|text| !text.is_empty()) {
        parts.push(Part::text(text));
    }
    if let Some(text) = fields.string("refusal")?.filter(|text| !text.is_empty()) {
        parts.push(Part::Refusal(text));
    }
    for call in fields.list("tool_calls")? {
        parts.push(Part::ToolCall(ToolCall { extras: Extras::default(), ..tool_call(call)? }));
    }
    Ok(parts)
}

/// Why the answer ended. Not every server says `tool_calls` when it should.
pub(super) fn stop(reason: &str, parts: &[Part]) -> Stop {
    let refuses = parts.iter().any(|part| matches!(part, Part::Refusal(_)));
    match reason {
        "length" => Stop::MaxTokens,
        "content_filter" => Stop::Refusal,
        _ if refuses => Stop::Refusal,
        "tool_calls" | "function_call" => Stop::ToolCalls,
        _ if Answer::calls_tools(parts) => Stop::ToolCalls,
        _ => Stop::EndTurn,
    }
}

pub(super) fn usage(usage: &Value) -> Usage {
    Usage {
        input: tokens(usage, "/prompt_tokens"),
        cached_input: tokens(usage, "/prompt_tokens_details/cached_tokens"),
        cache_written: tokens(usage, "/prompt_tokens_details/cache_write_tokens"),
        output: tokens(usage, "/completion_tokens"),
        reasoning: tokens(usage, "/completion_tokens_details/reasoning_tokens"),
    }
}

/// The answer for a client.
pub fn write_answer(answer: &Answer, reply: &Reply) -> Value {
    let mut out = Map::new();
    out.insert("id".into(), json!(answer_id(&answer.id, reply)));
    out.insert("object".into(), json!("chat.completion"));
    out.insert("created".into(), json!(reply.created));
    out.insert("model".into(), json!(answer.model));
    out.insert(
        "choices".into(),
        json!([{
            "index": 0,
            "message": message(&answer.parts),
            "logprobs": null,
            "finish_reason": finish_reason(&answer.stop, &answer.parts),
        }]),
    );
    if let Some(usage) = &answer.usage {
        out.insert("usage".into(), write_usage(usage));
    }
    Value::Object(out)
}

/// The provider's id, or ours if it gave none.
pub(in crate::dialect) fn answer_id<'a>(id: &'a str, reply: &'a Reply) -> &'a str {
    if id.is_empty() { &reply.id } else { id }
}

fn message(parts: &[Part]) -> Value {
    let (mut content, mut refusal, mut thoughts) = (None, None, None);
    let mut calls = Vec::new();
    let add = |to: &mut Option<String>, text: &str| to.get_or_insert_default().push_str(text);
    for part in parts {
        match part {
            Part::Text(text) => add(&mut content, &text.text),
            Part::Refusal(text) => add(&mut refusal, text),
            Part::Reasoning(thought) if !thought.text.is_empty() => {
                add(&mut thoughts, &thought.text);
            }
            Part::ToolCall(call) => calls.push(write_call(call)),
            // Thoughts without words, and what a model does not say.
            Part::Reasoning(_)
            | Part::Image(_)
            | Part::Document(_)
            | Part::ToolResult(_)
            | Part::Foreign(_) => {}
        }
    }
    let mut out = Map::new();
    out.insert("role".into(), json!("assistant"));
    out.insert("content".into(), json!(content));
    out.insert("refusal".into(), json!(refusal));
    if let Some(thoughts) = thoughts {
        out.insert("reasoning_content".into(), json!(thoughts));
    }
    if !calls.is_empty() {
        out.insert("tool_calls".into(), Value::Array(calls));
    }
    Value::Object(out)
}

fn write_call(call: &ToolCall) -> Value {
    match &call.input {
        Input::Json(text) => json!({
            "id": call.id,
            "type": "function",
            "function": { "name": call.name, "arguments": text },
        }),
        Input::Free(text) => json!({
            "id": call.id,
            "type": "custom",
            "custom": { "name": call.name, "input": text },
        }),
    }
}

pub(super) fn finish_reason(stop: &Stop, parts: &[Part]) -> &'static str {
    match stop {
        Stop::EndTurn | Stop::StopSequence(_) | Stop::Pause => "stop",
        Stop::MaxTokens | Stop::ContextWindow => "length",
        Stop::ToolCalls => "tool_calls",
        // With words of its own a refusal is an answer like another.
        Stop::Refusal if parts.iter().any(|part| matches!(part, Part::Refusal(_))) => "stop",
        Stop::Refusal => "content_filter",
    }
}

pub(super) fn write_usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_input,
            "cache_write_tokens": usage.cache_written,
        },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning },
    })
}
