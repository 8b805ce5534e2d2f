use serde_json::{Map, Value, json};

use super::{
    decode::{decode_reasoning, decode_tool_call},
    encode,
};
use crate::dialect::{
    Dialect, DialectCodec as _, ProviderCapabilities, ResponseContext,
    canonical::{
        CanonicalRequest, CanonicalResponse, ContentPart, DialectExtras, ModelError, ReasoningPart,
        StopReason, TokenUsage, ToolCall, ToolInput,
    },
    chat::{resolve_effort, response_id},
    errors::openai_error_code,
    fields::{JsonFields, text_field, token_count_at},
    seals,
};

const DIALECT: Dialect = Dialect::Responses;

/// Decodes a provider's response.
pub fn decode_response(body: &Value) -> Result<CanonicalResponse, ModelError> {
    let failed = body.get("error").is_some_and(|error| !error.is_null());
    match text_field(body, "status") {
        _ if failed => Err(DIALECT.decode_error(0, body, None)),
        "" | "completed" | "incomplete" => {
            decode_body(body).map_err(ModelError::into_upstream_error)
        }
        other => Err(ModelError::upstream_error(format!("the provider's response is {other}"))),
    }
}

fn decode_body(body: &Value) -> Result<CanonicalResponse, ModelError> {
    let mut fields = JsonFields::from_value(body)?;
    let mut parts = Vec::new();
    for (index, value) in fields.get_list("output")?.iter().enumerate() {
        decode_item(value, &mut parts)
            .map_err(|error| error.with_context(format!("output[{index}]")))?;
    }
    let stop =
        decode_stop_reason(body, CanonicalResponse::has_tool_calls(&parts), has_refusal(&parts));
    Ok(CanonicalResponse {
        id: fields.get_string("id")?.unwrap_or_default(),
        model: fields.get_string("model")?.unwrap_or_default(),
        parts,
        stop,
        usage: fields.get_value("usage").map(decode_usage),
    })
}

fn has_refusal(parts: &[ContentPart]) -> bool {
    parts.iter().any(|part| matches!(part, ContentPart::Refusal(_)))
}

fn decode_item(value: &Value, parts: &mut Vec<ContentPart>) -> Result<(), ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    match fields.require_text("type")? {
        "message" => {
            for part in fields.get_list("content")? {
                parts.extend(decode_message_content(part)?);
            }
        }
        "reasoning" => {
            let thought = decode_reasoning(value)?;
            if !thought.text.is_empty() || thought.seal.is_some() {
                parts.push(ContentPart::Reasoning(thought));
            }
        }
        "function_call" | "custom_tool_call" => {
            let call = ToolCall { extras: DialectExtras::default(), ..decode_tool_call(value)? };
            parts.push(ContentPart::ToolCall(call));
        }
        other => {
            return Err(ModelError::bad_request(format!("there is no word for an item `{other}`")));
        }
    }
    Ok(())
}

fn decode_message_content(value: &Value) -> Result<Option<ContentPart>, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    match fields.require_text("type")? {
        "output_text" => {
            let text = fields.require_text("text")?;
            Ok((!text.is_empty()).then(|| ContentPart::from_text(text)))
        }
        "refusal" => fields.require_string("refusal").map(ContentPart::Refusal).map(Some),
        other => Err(ModelError::bad_request(format!("there is no word for content `{other}`"))),
    }
}

/// Decodes the stop reason. This dialect sends one only if the response was truncated.
pub(super) fn decode_stop_reason(response: &Value, called: bool, refused: bool) -> StopReason {
    let why = response.pointer("/incomplete_details/reason").and_then(Value::as_str);
    match (text_field(response, "status"), why) {
        ("incomplete", Some("content_filter")) => StopReason::Refusal,
        ("incomplete", _) => StopReason::MaxTokens,
        _ if refused => StopReason::Refusal,
        _ if called => StopReason::ToolCalls,
        _ => StopReason::EndTurn,
    }
}

pub(super) fn decode_usage(usage: &Value) -> TokenUsage {
    TokenUsage {
        input: token_count_at(usage, "/input_tokens"),
        cached_input: token_count_at(usage, "/input_tokens_details/cached_tokens"),
        cache_written: token_count_at(usage, "/input_tokens_details/cache_write_tokens"),
        output: token_count_at(usage, "/output_tokens"),
        reasoning: token_count_at(usage, "/output_tokens_details/reasoning_tokens"),
    }
}

/// Encodes a response for a client.
pub fn encode_response(answer: &CanonicalResponse, reply: &ResponseContext) -> Value {
    let id = response_id(&answer.id, reply);
    let output = answer.parts.iter().enumerate().filter_map(|(place, part)| {
        let item_id = item_id_of(part, id, place);
        encode_item(part, &item_id, "completed")
    });
    let frame = ResponseFrame { id, model: &answer.model, reply };
    let refused = has_refusal(&answer.parts);
    frame.final_response(&answer.stop, refused, output.collect(), answer.usage.as_ref())
}

/// Returns the id of the item at `place`. A reasoning item keeps the id that its provider knows.
pub(super) fn item_id_of(part: &ContentPart, id: &str, place: usize) -> String {
    let prefix = match part {
        ContentPart::Reasoning(ReasoningPart { seal: Some(seal), .. }) if seal.by == DIALECT => {
            match &seal.id {
                Some(id) => return id.clone(),
                None => "rs",
            }
        }
        ContentPart::Reasoning(_) => "rs",
        ContentPart::ToolCall(ToolCall { input: ToolInput::Free(_), .. }) => "ctc",
        ContentPart::ToolCall(_) => "fc",
        _ => "msg",
    };
    format!("{prefix}_{id}_{place}")
}

/// Encodes a part as an item of the output.
pub(super) fn encode_item(part: &ContentPart, id: &str, status: &str) -> Option<Value> {
    let message = |content: Vec<Value>| {
        Some(json!({
            "id": id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }))
    };
    let empty = status == "in_progress";
    match part {
        ContentPart::Text(_) | ContentPart::Refusal(_) if empty => message(Vec::new()),
        ContentPart::Text(_) | ContentPart::Refusal(_) => {
            message(encode_content_part(part).into_iter().collect())
        }
        ContentPart::Reasoning(thought) => {
            let mut out = Map::new();
            out.insert("id".into(), json!(id));
            out.insert("type".into(), json!("reasoning"));
            out.insert("summary".into(), encode_summary(&thought.text));
            if let Some(seal) = &thought.seal {
                out.insert("encrypted_content".into(), json!(seals::encode_seal(seal, DIALECT)));
            }
            Some(Value::Object(out))
        }
        ContentPart::ToolCall(call) => {
            let (kind, field, text) = match &call.input {
                ToolInput::Json(text) => ("function_call", "arguments", text),
                ToolInput::Free(text) => ("custom_tool_call", "input", text),
            };
            let mut out = Map::new();
            out.insert("id".into(), json!(id));
            out.insert("type".into(), json!(kind));
            out.insert("status".into(), json!(status));
            out.insert("call_id".into(), json!(call.id));
            out.insert("name".into(), json!(call.name));
            if let Some(namespace) = &call.namespace {
                out.insert("namespace".into(), json!(namespace));
            }
            out.insert(field.into(), json!(text));
            Some(Value::Object(out))
        }
        // A model produces none of these.
        ContentPart::Image(_)
        | ContentPart::Document(_)
        | ContentPart::ToolResult(_)
        | ContentPart::Foreign(_) => None,
    }
}

/// Encodes text as the content of a message.
pub(super) fn encode_content_part(part: &ContentPart) -> Option<Value> {
    match part {
        ContentPart::Text(text) => Some(json!({
            "type": "output_text",
            "text": text.text,
            "annotations": [],
            "logprobs": [],
        })),
        ContentPart::Refusal(text) => Some(json!({ "type": "refusal", "refusal": text })),
        _ => None,
    }
}

/// Encodes the summary of reasoning.
pub(super) fn encode_summary(text: &str) -> Value {
    if text.is_empty() { json!([]) } else { json!([{ "type": "summary_text", "text": text }]) }
}

/// Fields that all forms of a response have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseFrame<'a> {
    pub(super) id: &'a str,
    pub(super) model: &'a str,
    pub(super) reply: &'a ResponseContext,
}

impl ResponseFrame<'_> {
    fn response_object(&self, status: &str) -> Map<String, Value> {
        let mut out = Map::new();
        out.insert("id".into(), json!(self.id));
        out.insert("object".into(), json!("response"));
        out.insert("created_at".into(), json!(self.reply.created));
        out.insert("status".into(), json!(status));
        out.insert("error".into(), Value::Null);
        out.insert("incomplete_details".into(), Value::Null);
        out.insert("model".into(), json!(self.model));
        out.insert("output".into(), json!([]));
        out.extend(self.reply.echo.iter().map(|(name, value)| (name.clone(), value.clone())));
        for (name, value) in [
            ("parallel_tool_calls", json!(true)),
            ("tool_choice", json!("auto")),
            ("tools", json!([])),
        ] {
            out.entry(name).or_insert(value);
        }
        out.insert("usage".into(), Value::Null);
        out
    }

    /// Returns the response object before the end.
    pub(super) fn in_progress_response(&self) -> Value {
        Value::Object(self.response_object("in_progress"))
    }

    /// Returns the response object at the end. `refused` tells whether there was text of a refusal, which decides how a refusal is encoded.
    pub(super) fn final_response(
        &self,
        stop: &StopReason,
        refused: bool,
        output: Vec<Value>,
        usage: Option<&TokenUsage>,
    ) -> Value {
        let why = incomplete_reason(stop, refused);
        let mut out = self.response_object(if why.is_some() { "incomplete" } else { "completed" });
        if let Some(why) = why {
            out.insert("incomplete_details".into(), json!({ "reason": why }));
        }
        out.insert("output".into(), Value::Array(output));
        out.insert("usage".into(), json!(usage.map(encode_usage)));
        Value::Object(out)
    }

    /// Returns the response object of a failed response.
    pub(super) fn failed_response(&self, error: &ModelError, output: Vec<Value>) -> Value {
        let mut out = self.response_object("failed");
        let code = openai_error_code(DIALECT, error).unwrap_or_else(|| "invalid_prompt".to_owned());
        out.insert("error".into(), json!({ "code": code, "message": error.message }));
        out.insert("output".into(), Value::Array(output));
        Value::Object(out)
    }
}

/// Returns the reason why a response is incomplete, if it is.
pub(super) const fn incomplete_reason(stop: &StopReason, refused: bool) -> Option<&'static str> {
    match stop {
        StopReason::MaxTokens | StopReason::ContextWindow => Some("max_output_tokens"),
        StopReason::Refusal if !refused => Some("content_filter"),
        StopReason::Refusal
        | StopReason::EndTurn
        | StopReason::StopSequence(_)
        | StopReason::ToolCalls
        | StopReason::Pause => None,
    }
}

fn encode_usage(usage: &TokenUsage) -> Value {
    json!({
        "input_tokens": usage.input,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input,
            "cache_write_tokens": usage.cache_written,
        },
        "output_tokens": usage.output,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.input.saturating_add(usage.output),
    })
}

/// Returns the request fields that a response repeats.
pub(in crate::dialect) fn echo_request_fields(request: &CanonicalRequest) -> Map<String, Value> {
    let target =
        ProviderCapabilities { drop_foreign_tools: true, ..ProviderCapabilities::default() };
    let tools = encode::encode_tools(&request.tools, &target).unwrap_or_default();
    let choice = request.tool_choice.as_ref();
    let choice = choice.and_then(|choice| encode::encode_tool_choice(choice, &request.tools).ok());
    let effort = request.thinking.as_ref().and_then(resolve_effort).map(|effort| effort.as_str());
    let summary = request.thinking.as_ref().and_then(|thinking| thinking.summary.as_deref());
    let mut out = Map::new();
    out.insert("instructions".into(), Value::Null);
    out.insert("max_output_tokens".into(), json!(request.max_output_tokens));
    out.insert("parallel_tool_calls".into(), json!(request.parallel_tool_calls.unwrap_or(true)));
    out.insert("previous_response_id".into(), Value::Null);
    out.insert("reasoning".into(), json!({ "effort": effort, "summary": summary }));
    out.insert("store".into(), json!(false));
    out.insert("temperature".into(), json!(request.temperature));
    out.insert("tool_choice".into(), choice.unwrap_or_else(|| json!("auto")));
    out.insert("tools".into(), Value::Array(tools));
    out.insert("top_p".into(), json!(request.top_p));
    out.insert("truncation".into(), json!("disabled"));
    out.insert("metadata".into(), json!({}));
    out
}
