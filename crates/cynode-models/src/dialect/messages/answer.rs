use serde_json::{Map, Value, json};

use super::reading::thought;
use crate::{
    dialect::{
        Dialect, Reply, Speak as _,
        chat::answer_id,
        fields::{Fields, tokens, word},
        seals,
    },
    talk::{Answer, Extras, Input, ModelError, Part, Seal, Stop, ToolCall, Usage},
};

const HERE: Dialect = Dialect::Messages;

/// What a provider answered.
pub fn read_answer(body: &Value) -> Result<Answer, ModelError> {
    if word(body, "type") == "error" {
        return Err(HERE.read_error(0, body, None));
    }
    read(body).map_err(ModelError::by_provider)
}

fn read(body: &Value) -> Result<Answer, ModelError> {
    let mut fields = Fields::of(body)?;
    let mut parts = Vec::new();
    for (index, value) in fields.list("content")?.iter().enumerate() {
        parts.extend(part(value).map_err(|error| error.within(format!("content[{index}]")))?);
    }
    parts.extend(refusal(body).map(Part::Refusal));
    let stop = stop(word(body, "stop_reason"), body.get("stop_sequence"), &parts);
    Ok(Answer {
        id: fields.string("id")?.unwrap_or_default(),
        model: fields.string("model")?.unwrap_or_default(),
        parts,
        stop,
        usage: fields.get("usage").map(usage),
    })
}

fn part(value: &Value) -> Result<Option<Part>, ModelError> {
    let mut fields = Fields::of(value)?;
    Ok(match fields.need_text("type")? {
        "text" => {
            let text = fields.need_text("text")?;
            (!text.is_empty()).then(|| Part::text(text))
        }
        "thinking" | "redacted_thinking" => Some(Part::Reasoning(thought(value)?)),
        "tool_use" => {
            let (id, name) = (fields.need_string("id")?, fields.need_string("name")?);
            let input = Input::Json(fields.need("input")?.to_string());
            let extras = Extras::default();
            Some(Part::ToolCall(ToolCall { id, name, namespace: None, input, extras }))
        }
        other => return Err(ModelError::bad(format!("there is no word for a block `{other}`"))),
    })
}

/// The words of a refusal, which stand beside the content.
pub(super) fn refusal(around: &Value) -> Option<String> {
    let words = around.pointer("/stop_details/explanation")?.as_str()?;
    (!words.is_empty()).then(|| words.to_owned())
}

pub(super) fn stop(reason: &str, sequence: Option<&Value>, parts: &[Part]) -> Stop {
    match reason {
        "max_tokens" => Stop::MaxTokens,
        "stop_sequence" => Stop::StopSequence(sequence.and_then(Value::as_str).map(str::to_owned)),
        "tool_use" => Stop::ToolCalls,
        "refusal" => Stop::Refusal,
        "pause_turn" => Stop::Pause,
        "model_context_window_exceeded" => Stop::ContextWindow,
        _ if Answer::calls_tools(parts) => Stop::ToolCalls,
        _ => Stop::EndTurn,
    }
}

/// What was used. Here `input_tokens` leaves out what the cache read and wrote.
pub(super) fn usage(usage: &Value) -> Usage {
    let cached_input = tokens(usage, "/cache_read_input_tokens");
    let cache_written = tokens(usage, "/cache_creation_input_tokens");
    Usage {
        input: tokens(usage, "/input_tokens")
            .saturating_add(cached_input)
            .saturating_add(cache_written),
        cached_input,
        cache_written,
        output: tokens(usage, "/output_tokens"),
        reasoning: tokens(usage, "/output_tokens_details/thinking_tokens"),
    }
}

/// The answer for a client, or why it cannot be said: arguments of tools must be objects here.
pub fn write_answer(answer: &Answer, reply: &Reply) -> Result<Value, ModelError> {
    let mut content = Vec::new();
    for part in &answer.parts {
        content.extend(block(part).map_err(|error| ModelError::upstream(error.message))?);
    }
    let mut out = Map::new();
    out.insert("id".into(), json!(answer_id(&answer.id, reply)));
    out.insert("type".into(), json!("message"));
    out.insert("role".into(), json!("assistant"));
    out.insert("model".into(), json!(answer.model));
    out.insert("content".into(), Value::Array(content));
    let refused = answer.parts.iter().filter_map(|part| match part {
        Part::Refusal(words) => Some(words.as_str()),
        _ => None,
    });
    out.extend(stop_fields(&answer.stop, &refused.collect::<String>()));
    out.insert("usage".into(), write_usage(&answer.usage.unwrap_or_default()));
    Ok(Value::Object(out))
}

fn block(part: &Part) -> Result<Option<Value>, ModelError> {
    Ok(match part {
        Part::Text(text) => Some(json!({ "type": "text", "text": text.text })),
        Part::Reasoning(thought) => Some(thinking_block(&thought.text, thought.seal.as_ref())),
        Part::ToolCall(call) => {
            let text = match &call.input {
                Input::Json(text) => text.clone(),
                Input::Free(text) => crate::tools::as_arguments(text),
            };
            let input = input_object(&call.name, &text)?;
            Some(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }))
        }
        // The words of a refusal stand beside the content, and a model says nothing else.
        Part::Refusal(_)
        | Part::Image(_)
        | Part::Document(_)
        | Part::ToolResult(_)
        | Part::Foreign(_) => None,
    })
}

/// A thought as a block.
pub(super) fn thinking_block(text: &str, seal: Option<&Seal>) -> Value {
    match seal {
        Some(seal) if seal.redacted => {
            json!({ "type": "redacted_thinking", "data": seals::write(seal, HERE) })
        }
        seal => {
            let signature = seal.map(|seal| seals::write(seal, HERE)).unwrap_or_default();
            json!({ "type": "thinking", "thinking": text, "signature": signature })
        }
    }
}

/// What a tool is given, as the object that this dialect wants.
pub(super) fn input_object(name: &str, text: &str) -> Result<Value, ModelError> {
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(input)) => Ok(Value::Object(input)),
        Ok(_) | Err(_) => Err(ModelError::bad(format!(
            "the arguments for the tool `{name}` are not a JSON object, and Messages can say nothing else"
        ))),
    }
}

/// Why the answer ended; `refused` are the words of a refusal.
pub(super) fn stop_fields(stop: &Stop, refused: &str) -> Map<String, Value> {
    let (reason, sequence) = match stop {
        Stop::EndTurn => ("end_turn", None),
        Stop::MaxTokens => ("max_tokens", None),
        Stop::StopSequence(sequence) => ("stop_sequence", sequence.as_deref()),
        Stop::ToolCalls => ("tool_use", None),
        Stop::Refusal => ("refusal", None),
        Stop::Pause => ("pause_turn", None),
        Stop::ContextWindow => ("model_context_window_exceeded", None),
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

pub(super) fn write_usage(usage: &Usage) -> Value {
    let cached = usage.cached_input.saturating_add(usage.cache_written);
    json!({
        "input_tokens": usage.input.saturating_sub(cached),
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cached_input,
        "output_tokens": usage.output,
        "output_tokens_details": { "thinking_tokens": usage.reasoning },
    })
}
