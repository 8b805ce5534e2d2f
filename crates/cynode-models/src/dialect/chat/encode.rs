use serde_json::{Map, Value, json};

use crate::{
    dialect::{
        Dialect, ProviderCapabilities,
        canonical::{
            CanonicalMessage, CanonicalRequest, ContentPart, DocumentPart, DocumentSource,
            ExtrasLevel, FunctionTool, ImagePart, ImageSource, MessageRole, ModelError,
            OutputFormat, ReasoningEffort, TextPart, ThinkingConfig, ThinkingMode, ToolCall,
            ToolChoice, ToolInput, ToolResult,
        },
        encode_function_fields, encode_function_tools,
        media::data_url,
    },
    tools::{flat_tool_name, wrap_arguments},
};

const DIALECT: Dialect = Dialect::Chat;

/// Encodes a request for a provider. Fails if the dialect cannot express it.
pub fn encode_request(
    request: &CanonicalRequest,
    target: &ProviderCapabilities,
) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("model".into(), json!(request.model));
    out.insert("messages".into(), Value::Array(encode_messages(request, target)?));
    let tools = encode_function_tools(&request.tools, None, (DIALECT, target), encode_function)?;
    let has_tools = !tools.is_empty();
    if has_tools {
        out.insert("tools".into(), Value::Array(tools));
    }
    if let Some(choice) = request.tool_choice.as_ref().filter(|_| has_tools) {
        out.insert("tool_choice".into(), encode_tool_choice(choice)?);
    }
    if let Some(parallel) = request.parallel_tool_calls.filter(|_| has_tools) {
        out.insert("parallel_tool_calls".into(), json!(parallel));
    }
    if let Some(output) = &request.output {
        out.insert("response_format".into(), encode_response_format(output));
    }
    if let Some(limit) = request.max_output_tokens {
        let name =
            if target.max_completion_tokens { "max_completion_tokens" } else { "max_tokens" };
        out.insert(name.into(), json!(limit));
    }
    if let Some(temperature) = &request.temperature {
        out.insert("temperature".into(), json!(temperature));
    }
    if let Some(top_p) = &request.top_p {
        out.insert("top_p".into(), json!(top_p));
    }
    if !request.stop.is_empty() {
        out.insert("stop".into(), json!(request.stop));
    }
    if let Some(seed) = request.seed {
        out.insert("seed".into(), json!(seed));
    }
    if let Some(effort) = request.thinking.as_ref().and_then(resolve_effort) {
        out.insert("reasoning_effort".into(), json!(effort.as_str()));
    }
    if let Some(verbosity) = &request.verbosity {
        out.insert("verbosity".into(), json!(verbosity));
    }
    if let Some(user) = &request.user {
        out.insert("user".into(), json!(user));
    }
    if request.stream {
        out.insert("stream".into(), json!(true));
        // CyNode needs the token usage, whether or not the client requested it.
        out.insert("stream_options".into(), json!({ "include_usage": true }));
    }
    request.extras.write_into(ExtrasLevel::Request, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

/// Returns the reasoning effort for a dialect that has no other thinking option.
pub(in crate::dialect) fn resolve_effort(thinking: &ThinkingConfig) -> Option<ReasoningEffort> {
    let by_mode = match thinking.mode {
        Some(ThinkingMode::Budget(0..=4096)) => Some(ReasoningEffort::Low),
        Some(ThinkingMode::Budget(4097..=16384)) => Some(ReasoningEffort::Medium),
        Some(ThinkingMode::Budget(_)) => Some(ReasoningEffort::High),
        // The provider's default applies: not every model can disable thinking.
        Some(ThinkingMode::Adaptive | ThinkingMode::BetweenTools | ThinkingMode::Disabled)
        | None => None,
    };
    thinking.effort.or(by_mode)
}

fn encode_response_format(output: &OutputFormat) -> Value {
    match output {
        OutputFormat::JsonObject => json!({ "type": "json_object" }),
        OutputFormat::JsonSchema { .. } => {
            json!({ "type": "json_schema", "json_schema": encode_schema_fields(output) })
        }
    }
}

/// Encodes name, description, schema and strictness, as both `OpenAI` dialects have them.
pub(in crate::dialect) fn encode_schema_fields(output: &OutputFormat) -> Map<String, Value> {
    let mut out = Map::new();
    if let OutputFormat::JsonSchema { name, description, schema, strict } = output {
        out.insert("name".into(), json!(name.as_deref().unwrap_or("answer")));
        if let Some(description) = description {
            out.insert("description".into(), json!(description));
        }
        out.insert("schema".into(), schema.clone());
        out.insert("strict".into(), json!(strict));
    }
    out
}

fn encode_tool_choice(choice: &ToolChoice) -> Result<Value, ModelError> {
    Ok(match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::One(name) => json!({ "type": "function", "function": { "name": name } }),
        ToolChoice::Foreign(foreign) if foreign.from == DIALECT => foreign.value.clone(),
        ToolChoice::Foreign(foreign) => return Err(foreign_choice_error(&foreign.value)),
    })
}

/// Returns the error for a tool choice that only its own dialect supports.
pub(in crate::dialect) fn foreign_choice_error(choice: &Value) -> ModelError {
    let kind = choice.get("type").and_then(Value::as_str).unwrap_or("another");
    ModelError::bad_request(format!(
        "`tool_choice` of type `{kind}` cannot be said in the dialect of this model's provider"
    ))
}

fn encode_function(tool: &FunctionTool, namespace: Option<&str>) -> Result<Value, ModelError> {
    let fields = encode_function_fields(tool, namespace, "parameters", DIALECT)?;
    Ok(json!({ "type": "function", "function": fields }))
}

fn encode_messages(
    request: &CanonicalRequest,
    target: &ProviderCapabilities,
) -> Result<Vec<Value>, ModelError> {
    let mut out = Vec::new();
    if !request.instructions.is_empty() {
        let content = encode_texts(request.instructions.iter())?;
        out.push(json!({ "role": "system", "content": content }));
    }
    for (index, message) in request.messages.iter().enumerate() {
        let within = |error: ModelError| error.with_context(format!("message {index}"));
        match message.role {
            MessageRole::System => {
                out.push(encode_plain_message(message, "system").map_err(within)?);
            }
            MessageRole::User => out.push(encode_plain_message(message, "user").map_err(within)?),
            MessageRole::Assistant => {
                out.push(encode_assistant_message(message, target).map_err(within)?);
            }
            MessageRole::Tool => {
                for part in &message.parts {
                    out.push(encode_tool_message(part).map_err(within)?);
                }
            }
        }
    }
    Ok(out)
}

/// Encodes one plain text as text, anything else as a list.
fn encode_texts<'a>(
    parts: impl ExactSizeIterator<Item = &'a TextPart>,
) -> Result<Value, ModelError> {
    let mut out = parts.map(encode_text).collect::<Result<Vec<_>, _>>()?;
    Ok(collapse_single_text(&mut out))
}

fn collapse_single_text(parts: &mut Vec<Value>) -> Value {
    if let [Value::Object(only)] = parts.as_mut_slice()
        && only.len() == 2
        && only.get("type").is_some_and(|kind| kind == "text")
        && let Some(text) = only.remove("text")
    {
        return text;
    }
    Value::Array(std::mem::take(parts))
}

fn encode_text(text: &TextPart) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("type".into(), json!("text"));
    out.insert("text".into(), json!(text.text));
    text.extras.write_into(ExtrasLevel::Part, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_plain_message(message: &CanonicalMessage, role: &str) -> Result<Value, ModelError> {
    let mut parts = message.parts.iter().map(encode_part).collect::<Result<Vec<_>, _>>()?;
    let content = if parts.is_empty() { json!("") } else { collapse_single_text(&mut parts) };
    let mut out = Map::new();
    out.insert("role".into(), json!(role));
    out.insert("content".into(), content);
    message.extras.write_into(ExtrasLevel::Message, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_part(part: &ContentPart) -> Result<Value, ModelError> {
    match part {
        ContentPart::Text(words) => encode_text(words),
        ContentPart::Image(picture) => encode_image(picture),
        ContentPart::Document(paper) => encode_document(paper),
        ContentPart::Foreign(foreign) if foreign.from == DIALECT => Ok(foreign.value.clone()),
        ContentPart::Foreign(foreign) => Err(foreign_part_error(&foreign.value)),
        ContentPart::ToolCall(_)
        | ContentPart::ToolResult(_)
        | ContentPart::Reasoning(_)
        | ContentPart::Refusal(_) => {
            Err(ModelError::bad_request("only the model calls tools, thinks and declines"))
        }
    }
}

/// Returns the error for content that only its own dialect supports.
pub(in crate::dialect) fn foreign_part_error(value: &Value) -> ModelError {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("unknown");
    ModelError::bad_request(format!(
        "content of type `{kind}` cannot be said in the dialect of this model's provider"
    ))
}

fn encode_image(picture: &ImagePart) -> Result<Value, ModelError> {
    let url = match &picture.source {
        ImageSource::Url(url) => url.clone(),
        ImageSource::Base64 { media_type, data } => data_url(media_type, data),
        ImageSource::File { .. } => {
            return Err(ModelError::bad_request(
                "an image in a provider's file store cannot be said here",
            ));
        }
    };
    let mut extras = Map::new();
    picture.extras.write_into(ExtrasLevel::Part, DIALECT, &mut extras)?;
    let mut inner = Map::new();
    inner.insert("url".into(), json!(url));
    if let Some(detail) = extras.shift_remove("detail") {
        inner.insert("detail".into(), detail);
    }
    let mut out = Map::new();
    out.insert("type".into(), json!("image_url"));
    out.insert("image_url".into(), Value::Object(inner));
    out.extend(extras);
    Ok(Value::Object(out))
}

fn encode_document(paper: &DocumentPart) -> Result<Value, ModelError> {
    let mut inner = Map::new();
    match &paper.source {
        DocumentSource::Base64 { media_type, data } => {
            let name = paper.name.as_deref().unwrap_or("document.pdf");
            inner.insert("filename".into(), json!(name));
            inner.insert("file_data".into(), json!(data_url(media_type, data)));
        }
        DocumentSource::File { from, id } if *from == DIALECT => {
            inner.insert("file_id".into(), json!(id));
        }
        DocumentSource::File { .. } => {
            return Err(ModelError::bad_request(
                "a document in a provider's file store cannot be said here",
            ));
        }
        DocumentSource::Url(_) => {
            return Err(ModelError::bad_request(
                "a document by its address cannot be said in Chat Completions",
            ));
        }
        DocumentSource::Text(_) => {
            return Err(ModelError::bad_request(
                "a document of plain text cannot be said in Chat Completions",
            ));
        }
    }
    let mut out = Map::new();
    out.insert("type".into(), json!("file"));
    out.insert("file".into(), Value::Object(inner));
    paper.extras.write_into(ExtrasLevel::Part, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_assistant_message(
    message: &CanonicalMessage,
    target: &ProviderCapabilities,
) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("role".into(), json!("assistant"));
    let (mut content, mut calls) = (Vec::new(), Vec::new());
    let (mut refusal, mut thoughts) = (String::new(), String::new());
    for part in &message.parts {
        match part {
            ContentPart::Text(words) => content.push(encode_text(words)?),
            ContentPart::Refusal(words) => refusal.push_str(words),
            ContentPart::Reasoning(thought) => thoughts.push_str(&thought.text),
            ContentPart::ToolCall(call) => calls.push(encode_tool_call(call)?),
            ContentPart::Image(_) | ContentPart::Document(_) | ContentPart::ToolResult(_) => {
                return Err(ModelError::bad_request(
                    "the model's own words cannot have this content",
                ));
            }
            ContentPart::Foreign(foreign) if foreign.from == DIALECT => {
                content.push(foreign.value.clone());
            }
            ContentPart::Foreign(foreign) => return Err(foreign_part_error(&foreign.value)),
        }
    }
    let content = if content.is_empty() { Value::Null } else { collapse_single_text(&mut content) };
    out.insert("content".into(), content);
    if target.reasoning_content && !thoughts.is_empty() {
        out.insert("reasoning_content".into(), json!(thoughts));
    }
    if !refusal.is_empty() {
        out.insert("refusal".into(), json!(refusal));
    }
    if !calls.is_empty() {
        out.insert("tool_calls".into(), Value::Array(calls));
    }
    message.extras.write_into(ExtrasLevel::Message, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_tool_call(call: &ToolCall) -> Result<Value, ModelError> {
    let arguments = match &call.input {
        ToolInput::Json(text) => text.clone(),
        ToolInput::Free(text) => wrap_arguments(text),
    };
    let name = flat_tool_name(call.namespace.as_deref(), &call.name);
    let mut out = Map::new();
    out.insert("id".into(), json!(call.id));
    out.insert("type".into(), json!("function"));
    out.insert("function".into(), json!({ "name": name, "arguments": arguments }));
    call.extras.write_into(ExtrasLevel::Part, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_tool_message(part: &ContentPart) -> Result<Value, ModelError> {
    let result = match part {
        ContentPart::ToolResult(result) => result,
        ContentPart::Foreign(foreign) => return Err(foreign_part_error(&foreign.value)),
        _ => {
            return Err(ModelError::bad_request(
                "among the results of tools there is something else",
            ));
        }
    };
    let mut out = Map::new();
    out.insert("role".into(), json!("tool"));
    out.insert("tool_call_id".into(), json!(result.id));
    out.insert("content".into(), encode_result_content(result)?);
    result.extras.write_into(ExtrasLevel::Part, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

fn encode_result_content(result: &ToolResult) -> Result<Value, ModelError> {
    let mut parts = Vec::new();
    for part in &result.parts {
        match part {
            ContentPart::Text(words) => parts.push(encode_text(words)?),
            ContentPart::Image(_) | ContentPart::Document(_) => {
                return Err(ModelError::bad_request(
                    "images and documents in a tool's result cannot be said in Chat Completions",
                ));
            }
            ContentPart::Foreign(foreign) => return Err(foreign_part_error(&foreign.value)),
            ContentPart::ToolCall(_)
            | ContentPart::ToolResult(_)
            | ContentPart::Reasoning(_)
            | ContentPart::Refusal(_) => {
                return Err(ModelError::bad_request("a tool's result cannot have this content"));
            }
        }
    }
    Ok(if parts.is_empty() { json!("") } else { collapse_single_text(&mut parts) })
}
