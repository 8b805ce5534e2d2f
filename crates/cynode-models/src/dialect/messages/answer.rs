use serde_json::{Map, Value, json};

use super::decode::decode_thinking_block;
use crate::dialect::{
    Dialect, DialectCodec as _, ResponseContext,
    canonical::{
        CanonicalResponse, ContentPart, DialectExtras, ModelError, ReasoningSeal, StopReason,
        TokenUsage, ToolCall, ToolInput,
    },
    chat::response_id,
    fields::{JsonFields, text_field, token_count_at},
    seals,
};

const DIALECT: Dialect = Dialect::Messages;

/// Decodes a provider's response.
pub fn decode_response(body: &Value) -> Result<CanonicalResponse, ModelError> {
    if text_field(body, "type") == "error" {
        return Err(DIALECT.decode_error(0, body, None));
    }
    decode_body(body).map_err(ModelError::into_upstream_error)
}

fn decode_body(body: &Value) -> Result<CanonicalResponse, ModelError> {
    let mut fields = JsonFields::from_value(body)?;
    let mut parts = Vec::new();
    for (index, value) in fields.get_list("content")?.iter().enumerate() {
        parts.extend(
            decode_block(value).map_err(|error| error.with_context(format!("content[{index}]")))?,
        );
    }
    parts.extend(refusal_text(body).map(ContentPart::Refusal));
    let stop =
        decode_stop_reason(text_field(body, "stop_reason"), body.get("stop_sequence"), &parts);
    Ok(CanonicalResponse {
        id: fields.get_string("id")?.unwrap_or_default(),
        model: fields.get_string("model")?.unwrap_or_default(),
        parts,
        stop,
        usage: fields.get_value("usage").map(decode_usage),
    })
}

fn decode_block(value: &Value) -> Result<Option<ContentPart>, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    Ok(match fields.require_text("type")? {
        "text" => {
            let text = fields.require_text("text")?;
            (!text.is_empty()).then(|| ContentPart::from_text(text))
        }
        "thinking" | "redacted_thinking" => {
            Some(ContentPart::Reasoning(decode_thinking_block(value)?))
        }
        "tool_use" => {
            let (id, name) = (fields.require_string("id")?, fields.require_string("name")?);
            let input = ToolInput::Json(fields.require_value("input")?.to_string());
            let extras = DialectExtras::default();
            Some(ContentPart::ToolCall(ToolCall { id, name, namespace: None, input, extras }))
        }
        other => {
            return Err(ModelError::bad_request(format!("there is no word for a block `{other}`")));
        }
    })
}

/// Returns the text of a refusal, which is a field beside the content.
pub(super) fn refusal_text(around: &Value) -> Option<String> {
    let words = around.pointer("/stop_details/explanation")?.as_str()?;
    (!words.is_empty()).then(|| words.to_owned())
}

pub(super) fn decode_stop_reason(
    reason: &str,
    sequence: Option<&Value>,
    parts: &[ContentPart],
) -> StopReason {
    match reason {
        "max_tokens" => StopReason::MaxTokens,
        "stop_sequence" => {
            StopReason::StopSequence(sequence.and_then(Value::as_str).map(str::to_owned))
        }
        "tool_use" => StopReason::ToolCalls,
        "refusal" => StopReason::Refusal,
        "pause_turn" => StopReason::Pause,
        "model_context_window_exceeded" => StopReason::ContextWindow,
        _ if CanonicalResponse::has_tool_calls(parts) => StopReason::ToolCalls,
        _ => StopReason::EndTurn,
    }
}

/// Decodes the token usage. Here `input_tokens` excludes cache reads and writes.
pub(super) fn decode_usage(usage: &Value) -> TokenUsage {
    let cached_input = token_count_at(usage, "/cache_read_input_tokens");
    let cache_written = token_count_at(usage, "/cache_creation_input_tokens");
    TokenUsage {
        input: token_count_at(usage, "/input_tokens")
            .saturating_add(cached_input)
            .saturating_add(cache_written),
        cached_input,
        cache_written,
        output: token_count_at(usage, "/output_tokens"),
        reasoning: token_count_at(usage, "/output_tokens_details/thinking_tokens"),
    }
}

/// Encodes a response for a client. Fails if tool arguments are not objects, which this dialect requires.
pub fn encode_response(
    answer: &CanonicalResponse,
    reply: &ResponseContext,
) -> Result<Value, ModelError> {
    let mut content = Vec::new();
    for part in &answer.parts {
        content
            .extend(encode_block(part).map_err(|error| ModelError::upstream_error(error.message))?);
    }
    let mut out = Map::new();
    out.insert("id".into(), json!(response_id(&answer.id, reply)));
    out.insert("type".into(), json!("message"));
    out.insert("role".into(), json!("assistant"));
    out.insert("model".into(), json!(answer.model));
    out.insert("content".into(), Value::Array(content));
    let refused = answer.parts.iter().filter_map(|part| match part {
        ContentPart::Refusal(words) => Some(words.as_str()),
        _ => None,
    });
    out.extend(encode_stop_fields(&answer.stop, &refused.collect::<String>()));
    out.insert("usage".into(), encode_usage(&answer.usage.unwrap_or_default()));
    Ok(Value::Object(out))
}

fn encode_block(part: &ContentPart) -> Result<Option<Value>, ModelError> {
    Ok(match part {
        ContentPart::Text(text) => Some(json!({ "type": "text", "text": text.text })),
        ContentPart::Reasoning(thought) => {
            Some(encode_thinking_block(&thought.text, thought.seal.as_ref()))
        }
        ContentPart::ToolCall(call) => {
            let text = match &call.input {
                ToolInput::Json(text) => text.clone(),
                ToolInput::Free(text) => crate::tools::wrap_arguments(text),
            };
            let input = parse_input_object(&call.name, &text)?;
            Some(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }))
        }
        // The text of a refusal is a field beside the content. A model produces none of the others.
        ContentPart::Refusal(_)
        | ContentPart::Image(_)
        | ContentPart::Document(_)
        | ContentPart::ToolResult(_)
        | ContentPart::Foreign(_) => None,
    })
}

/// Encodes reasoning as a block.
pub(super) fn encode_thinking_block(text: &str, seal: Option<&ReasoningSeal>) -> Value {
    match seal {
        Some(seal) if seal.redacted => {
            json!({ "type": "redacted_thinking", "data": seals::encode_seal(seal, DIALECT) })
        }
        seal => {
            let signature = seal.map(|seal| seals::encode_seal(seal, DIALECT)).unwrap_or_default();
            json!({ "type": "thinking", "thinking": text, "signature": signature })
        }
    }
}

/// Parses the input of a tool as an object, which this dialect requires.
pub(super) fn parse_input_object(name: &str, text: &str) -> Result<Value, ModelError> {
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(input)) => Ok(Value::Object(input)),
        Ok(_) | Err(_) => Err(ModelError::bad_request(format!(
            "the arguments for the tool `{name}` are not a JSON object, and Messages can say nothing else"
        ))),
    }
}

/// Encodes the stop reason. `refused` is the text of a refusal.
pub(super) fn encode_stop_fields(stop: &StopReason, refused: &str) -> Map<String, Value> {
    let (reason, sequence) = match stop {
        StopReason::EndTurn => ("end_turn", None),
        StopReason::MaxTokens => ("max_tokens", None),
        StopReason::StopSequence(sequence) => ("stop_sequence", sequence.as_deref()),
        StopReason::ToolCalls => ("tool_use", None),
        StopReason::Refusal => ("refusal", None),
        StopReason::Pause => ("pause_turn", None),
        StopReason::ContextWindow => ("model_context_window_exceeded", None),
    };
    let mut out = Map::new();
    out.insert("stop_reason".into(), json!(reason));
    out.insert("stop_sequence".into(), json!(sequence));
    if !refused.is_empty() {
        let details = json!({ "type": "refusal", "category": null, "explanation": refused });
        out.insert("stop_details".into(), details);
    }
    out
}

pub(super) fn encode_usage(usage: &TokenUsage) -> Value {
    let cached = usage.cached_input.saturating_add(usage.cache_written);
    json!({
        "input_tokens": usage.input.saturating_sub(cached),
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cached_input,
        "output_tokens": usage.output,
        "output_tokens_details": { "thinking_tokens": usage.reasoning },
    })
}
