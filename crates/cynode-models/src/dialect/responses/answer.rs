use serde_json::{Map, Value, json};

use super::{
    reading::{thought, tool_call},
    writing,
};
use crate::{
    dialect::{
        Dialect, Reply, Speak as _, Target,
        chat::{answer_id, effort},
        errors::openai_code,
        fields::{Fields, tokens, word},
        seals,
    },
    talk::{Answer, Extras, Input, ModelError, Part, Reasoning, Request, Stop, ToolCall, Usage},
};

const HERE: Dialect = Dialect::Responses;

/// What a provider answered.
pub fn read_answer(body: &Value) -> Result<Answer, ModelError> {
    let failed = body.get("error").is_some_and(|error| !error.is_null());
    match word(body, "status") {
        _ if failed => Err(HERE.read_error(0, body, None)),
        "" | "completed" | "incomplete" => read(body).map_err(ModelError::by_provider),
        other => Err(ModelError::upstream(format!("the provider's response is {other}"))),
    }
}

fn read(body: &Value) -> Result<Answer, ModelError> {
    let mut fields = Fields::of(body)?;
    let mut parts = Vec::new();
    for (index, value) in fields.list("output")?.iter().enumerate() {
        item(value, &mut parts).map_err(|error| error.within(format!("output[{index}]")))?;
    }
    let stop = stop(body, Answer::calls_tools(&parts), refuses(&parts));
    Ok(Answer {
        id: fields.string("id")?.unwrap_or_default(),
        model: fields.string("model")?.unwrap_or_default(),
        parts,
        stop,
        usage: fields.get("usage").map(usage),
    })
}

fn refuses(parts: &[Part]) -> bool {
    parts.iter().any(|part| matches!(part, Part::Refusal(_)))
}

fn item(value: &Value, parts: &mut Vec<Part>) -> Result<(), ModelError> {
    let mut fields = Fields::of(value)?;
    match fields.need_text("type")? {
        "message" => {
            for part in fields.list("content")? {
                parts.extend(said(part)?);
            }
        }
        "reasoning" => {
            let thought = thought(value)?;
            if !thought.text.is_empty() || thought.seal.is_some() {
                parts.push(Part::Reasoning(thought));
            }
        }
        "function_call" | "custom_tool_call" => {
            let call = ToolCall { extras: Extras::default(), ..tool_call(value)? };
            parts.push(Part::ToolCall(call));
        }
        other => return Err(ModelError::bad(format!("there is no word for an item `{other}`"))),
    }
    Ok(())
}

fn said(value: &Value) -> Result<Option<Part>, ModelError> {
    let mut fields = Fields::of(value)?;
    match fields.need_text("type")? {
        "output_text" => {
            let text = fields.need_text("text")?;
            Ok((!text.is_empty()).then(|| Part::text(text)))
        }
        "refusal" => fields.need_string("refusal").map(Part::Refusal).map(Some),
        other => Err(ModelError::bad(format!("there is no word for content `{other}`"))),
    }
}

/// Why the answer ended, which this dialect says only when it was cut short.
pub(super) fn stop(response: &Value, called: bool, refused: bool) -> Stop {
    let why = response.pointer("/incomplete_details/reason").and_then(Value::as_str);
    match (word(response, "status"), why) {
        ("incomplete", Some("content_filter")) => Stop::Refusal,
        ("incomplete", _) => Stop::MaxTokens,
        _ if refused => Stop::Refusal,
        _ if called => Stop::ToolCalls,
        _ => Stop::EndTurn,
    }
}

pub(super) fn usage(usage: &Value) -> Usage {
    Usage {
        input: tokens(usage, "/input_tokens"),
        cached_input: tokens(usage, "/input_tokens_details/cached_tokens"),
        cache_written: tokens(usage, "/input_tokens_details/cache_write_tokens"),
        output: tokens(usage, "/output_tokens"),
        reasoning: tokens(usage, "/output_tokens_details/reasoning_tokens"),
    }
}

/// The answer for a client.
pub fn write_answer(answer: &Answer, reply: &Reply) -> Value {
    let id = answer_id(&answer.id, reply);
    let output = answer.parts.iter().enumerate().filter_map(|(place, part)| {
        let item_id = item_id(part, id, place);
        write_item(part, &item_id, "completed")
    });
    let frame = Frame { id, model: &answer.model, reply };
    let refused = refuses(&answer.parts);
    frame.ended(&answer.stop, refused, output.collect(), answer.usage.as_ref())
}

/// The id of the item at `place`. A thought keeps the name that its provider knows it by.
pub(super) fn item_id(part: &Part, id: &str, place: usize) -> String {
    let prefix = match part {
        Part::Reasoning(Reasoning { seal: Some(seal), .. }) if seal.by == HERE => match &seal.id {
            Some(id) => return id.clone(),
            None => "rs",
        },
        Part::Reasoning(_) => "rs",
        Part::ToolCall(ToolCall { input: Input::Free(_), .. }) => "ctc",
        Part::ToolCall(_) => "fc",
        _ => "msg",
    };
    format!("{prefix}_{id}_{place}")
}

/// A part as an item of the output.
pub(super) fn write_item(part: &Part, id: &str, status: &str) -> Option<Value> {
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
        Part::Text(_) | Part::Refusal(_) if empty => message(Vec::new()),
        Part::Text(_) | Part::Refusal(_) => message(content_part(part).into_iter().collect()),
        Part::Reasoning(thought) => {
            let mut out = Map::new();
            out.insert("id".into(), json!(id));
            out.insert("type".into(), json!("reasoning"));
            out.insert("summary".into(), summary(&thought.text));
            if let Some(seal) = &thought.seal {
                out.insert("encrypted_content".into(), json!(seals::write(seal, HERE)));
            }
            Some(Value::Object(out))
        }
        Part::ToolCall(call) => {
            let (kind, field, text) = match &call.input {
                Input::Json(text) => ("function_call", "arguments", text),
                Input::Free(text) => ("custom_tool_call", "input", text),
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
        // A model says none of these.
        Part::Image(_) | Part::Document(_) | Part::ToolResult(_) | Part::Foreign(_) => None,
    }
}

/// Words as the content of a message.
pub(super) fn content_part(part: &Part) -> Option<Value> {
    match part {
        Part::Text(text) => Some(json!({
            "type": "output_text",
            "text": text.text,
            "annotations": [],
            "logprobs": [],
        })),
        Part::Refusal(text) => Some(json!({ "type": "refusal", "refusal": text })),
        _ => None,
    }
}

/// What is told of a thought.
pub(super) fn summary(text: &str) -> Value {
    if text.is_empty() { json!([]) } else { json!([{ "type": "summary_text", "text": text }]) }
}

/// What every form of a response has in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) id: &'a str,
    pub(super) model: &'a str,
    pub(super) reply: &'a Reply,
}

impl Frame<'_> {
    fn response(&self, status: &str) -> Map<String, Value> {
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

    /// Before the end.
    pub(super) fn in_progress(&self) -> Value {
        Value::Object(self.response("in_progress"))
    }

    /// At the end. Whether there were words of refusal decides how a refusal is told.
    pub(super) fn ended(
        &self,
        stop: &Stop,
        refused: bool,
        output: Vec<Value>,
        usage: Option<&Usage>,
    ) -> Value {
        let why = incomplete(stop, refused);
        let mut out = self.response(if why.is_some() { "incomplete" } else { "completed" });
        if let Some(why) = why {
            out.insert("incomplete_details".into(), json!({ "reason": why }));
        }
        out.insert("output".into(), Value::Array(output));
        out.insert("usage".into(), json!(usage.map(write_usage)));
        Value::Object(out)
    }

    /// At an early end.
    pub(super) fn failed(&self, error: &ModelError, output: Vec<Value>) -> Value {
        let mut out = self.response("failed");
        let code = openai_code(HERE, error).unwrap_or_else(|| "invalid_prompt".to_owned());
        out.insert("error".into(), json!({ "code": code, "message": error.message }));
        out.insert("output".into(), Value::Array(output));
        Value::Object(out)
    }
}

/// Why a response is not complete, if it is not.
pub(super) const fn incomplete(stop: &Stop, refused: bool) -> Option<&'static str> {
    match stop {
        Stop::MaxTokens | Stop::ContextWindow => Some("max_output_tokens"),
        Stop::Refusal if !refused => Some("content_filter"),
        Stop::Refusal | Stop::EndTurn | Stop::StopSequence(_) | Stop::ToolCalls | Stop::Pause => {
            None
        }
    }
}

fn write_usage(usage: &Usage) -> Value {
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

/// What a response repeats of its request.
pub(in crate::dialect) fn echo(request: &Request) -> Map<String, Value> {
    let target = Target { drop_foreign_tools: true, ..Target::default() };
    let tools = writing::tools(&request.tools, &target).unwrap_or_default();
    let choice = request.tool_choice.as_ref();
    let choice = choice.and_then(|choice| writing::tool_choice(choice, &request.tools).ok());
    let effort = request.thinking.as_ref().and_then(effort).map(|effort| effort.word());
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
