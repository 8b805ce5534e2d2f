use serde_json::{Map, Value, json};

use super::decode::decode_tool_call;
use crate::dialect::{
    Dialect, DialectCodec as _, ResponseContext,
    canonical::{
        CanonicalResponse, ContentPart, DialectExtras, ModelError, ReasoningPart, StopReason,
        TokenUsage, ToolCall, ToolInput,
    },
    fields::{JsonFields, text_field, token_count_at},
};

/// Decodes a provider's response.
pub fn decode_response(body: &Value) -> Result<CanonicalResponse, ModelError> {
    if body.get("error").is_some_and(|error| !error.is_null()) {
        return Err(Dialect::Chat.decode_error(0, body, None));
    }
    decode_body(body).map_err(ModelError::into_upstream_error)
}

fn decode_body(body: &Value) -> Result<CanonicalResponse, ModelError> {
    let mut fields = JsonFields::from_value(body)?;
    let choices = fields.get_list("choices")?;
    let choice = choices.first().ok_or_else(|| ModelError::bad_request("it has no choice"))?;
    let message =
        choice.get("message").ok_or_else(|| ModelError::bad_request("it has no message"))?;
    let parts = decode_parts(message)?;
    let stop = decode_stop_reason(text_field(choice, "finish_reason"), &parts);
    Ok(CanonicalResponse {
        id: fields.get_string("id")?.unwrap_or_default(),
        model: fields.get_string("model")?.unwrap_or_default(),
        parts,
        stop,
        usage: fields.get_value("usage").map(decode_usage),
    })
}

fn decode_parts(message: &Value) -> Result<Vec<ContentPart>, ModelError> {
    let mut parts = Vec::new();
    let mut fields = JsonFields::from_value(message)?;
    let (long, short) = (fields.get_text("reasoning_content")?, fields.get_text("reasoning")?);
    if let Some(text) = long.or(short).filter(|text| !text.is_empty()) {
        parts.push(ContentPart::Reasoning(ReasoningPart { text: text.to_owned(), seal: None }));
    }
    if let Some(text) = fields.get_text("content")?.filter(|text| !text.is_empty()) {
        parts.push(ContentPart::from_text(text));
    }
    if let Some(text) = fields.get_string("refusal")?.filter(|text| !text.is_empty()) {
        parts.push(ContentPart::Refusal(text));
    }
    for call in fields.get_list("tool_calls")? {
        parts.push(ContentPart::ToolCall(ToolCall {
            extras: DialectExtras::default(),
            ..decode_tool_call(call)?
        }));
    }
    Ok(parts)
}

/// Decodes the stop reason. Not every server sends `tool_calls` when it should.
pub(super) fn decode_stop_reason(reason: &str, parts: &[ContentPart]) -> StopReason {
    let refuses = parts.iter().any(|part| matches!(part, ContentPart::Refusal(_)));
    match reason {
        "length" => StopReason::MaxTokens,
        "content_filter" => StopReason::Refusal,
        _ if refuses => StopReason::Refusal,
        "tool_calls" | "function_call" => StopReason::ToolCalls,
        _ if CanonicalResponse::has_tool_calls(parts) => StopReason::ToolCalls,
        _ => StopReason::EndTurn,
    }
}

pub(super) fn decode_usage(usage: &Value) -> TokenUsage {
    TokenUsage {
        input: token_count_at(usage, "/prompt_tokens"),
        cached_input: token_count_at(usage, "/prompt_tokens_details/cached_tokens"),
        cache_written: token_count_at(usage, "/prompt_tokens_details/cache_write_tokens"),
        output: token_count_at(usage, "/completion_tokens"),
        reasoning: token_count_at(usage, "/completion_tokens_details/reasoning_tokens"),
    }
}

/// Encodes a response for a client.
pub fn encode_response(answer: &CanonicalResponse, reply: &ResponseContext) -> Value {
    let mut out = Map::new();
    out.insert("id".into(), json!(response_id(&answer.id, reply)));
    out.insert("object".into(), json!("chat.completion"));
    out.insert("created".into(), json!(reply.created));
    out.insert("model".into(), json!(answer.model));
    out.insert(
        "choices".into(),
        json!([{
            "index": 0,
            "message": encode_message(&answer.parts),
            "logprobs": null,
            "finish_reason": encode_finish_reason(&answer.stop, &answer.parts),
        }]),
    );
    if let Some(usage) = &answer.usage {
        out.insert("usage".into(), encode_usage(usage));
    }
    Value::Object(out)
}

/// Returns the provider's id, or CyNode's own id if the provider sent none.
pub(in crate::dialect) fn response_id<'a>(id: &'a str, reply: &'a ResponseContext) -> &'a str {
    if id.is_empty() { &reply.id } else { id }
}

fn encode_message(parts: &[ContentPart]) -> Value {
    let (mut content, mut refusal, mut thoughts) = (None, None, None);
    let mut calls = Vec::new();
    let add = |to: &mut Option<String>, text: &str| to.get_or_insert_default().push_str(text);
    for part in parts {
        match part {
            ContentPart::Text(text) => add(&mut content, &text.text),
            ContentPart::Refusal(text) => add(&mut refusal, text),
            ContentPart::Reasoning(thought) if !thought.text.is_empty() => {
                add(&mut thoughts, &thought.text);
            }
            ContentPart::ToolCall(call) => calls.push(encode_tool_call(call)),
            // Reasoning without text, and content that a model does not produce.
            ContentPart::Reasoning(_)
            | ContentPart::Image(_)
            | ContentPart::Document(_)
            | ContentPart::ToolResult(_)
            | ContentPart::Foreign(_) => {}
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

fn encode_tool_call(call: &ToolCall) -> Value {
    match &call.input {
        ToolInput::Json(text) => json!({
            "id": call.id,
            "type": "function",
            "function": { "name": call.name, "arguments": text },
        }),
        ToolInput::Free(text) => json!({
            "id": call.id,
            "type": "custom",
            "custom": { "name": call.name, "input": text },
        }),
    }
}

pub(super) fn encode_finish_reason(stop: &StopReason, parts: &[ContentPart]) -> &'static str {
    match stop {
        StopReason::EndTurn | StopReason::StopSequence(_) | StopReason::Pause => "stop",
        StopReason::MaxTokens | StopReason::ContextWindow => "length",
        StopReason::ToolCalls => "tool_calls",
        // A refusal with text of its own ends like any other response.
        StopReason::Refusal if parts.iter().any(|part| matches!(part, ContentPart::Refusal(_))) => {
            "stop"
        }
        StopReason::Refusal => "content_filter",
    }
}

pub(super) fn encode_usage(usage: &TokenUsage) -> Value {
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
