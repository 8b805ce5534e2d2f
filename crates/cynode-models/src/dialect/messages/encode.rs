use serde_json::{Map, Value, json};

use crate::{
    dialect::{
        Dialect, ProviderCapabilities,
        canonical::{
            CanonicalMessage, CanonicalRequest, ContentPart, DialectExtras, DocumentPart,
            DocumentSource, ExtrasLevel, FunctionTool, ImagePart, ImageSource, MessageRole,
            ModelError, OutputFormat, ReasoningEffort, ReasoningPart, TextPart, ThinkingMode,
            ToolCall, ToolChoice, ToolInput, ToolResult,
        },
        chat::{foreign_choice_error, foreign_part_error},
        encode_function_fields, encode_function_tools,
    },
    tools::{flat_tool_name, wrap_arguments},
};

const DIALECT: Dialect = Dialect::Messages;

/// Encodes a request for a provider. Fails if the dialect cannot express it.
pub fn encode_request(
    request: &CanonicalRequest,
    target: &ProviderCapabilities,
) -> Result<Value, ModelError> {
    check_encodable(request)?;
    let mut out = Map::new();
    out.insert("model".into(), json!(request.model));
    let limit = request.max_output_tokens.unwrap_or(target.default_max_tokens);
    out.insert("max_tokens".into(), json!(limit));
    if !request.instructions.is_empty() {
        let system = request.instructions.iter().map(encode_text).collect::<Result<Vec<_>, _>>()?;
        out.insert("system".into(), collapse_single_text(system));
    }
    out.insert("messages".into(), Value::Array(encode_messages(&request.messages)?));
    let tools = encode_function_tools(&request.tools, None, (DIALECT, target), encode_function)?;
    if !tools.is_empty() {
        out.insert("tools".into(), Value::Array(tools));
        let parallel = request.parallel_tool_calls;
        if let Some(choice) = encode_tool_choice(request.tool_choice.as_ref(), parallel)? {
            out.insert("tool_choice".into(), choice);
        }
    }
    let config = encode_output_config(request, target)?;
    if !config.is_empty() {
        out.insert("output_config".into(), Value::Object(config));
    }
    if let Some(thinking) = encode_thinking(request, limit)? {
        out.insert("thinking".into(), thinking);
    }
    if let Some(temperature) = &request.temperature {
        out.insert("temperature".into(), json!(temperature));
    }
    if let Some(top_p) = &request.top_p {
        out.insert("top_p".into(), json!(top_p));
    }
    if !request.stop.is_empty() {
        out.insert("stop_sequences".into(), json!(request.stop));
    }
    if let Some(user) = &request.user {
        out.insert("metadata".into(), json!({ "user_id": user }));
    }
    if request.stream {
        out.insert("stream".into(), json!(true));
    }
    request.extras.write_into(ExtrasLevel::Request, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

/// Rejects fields that the dialect cannot express.
fn check_encodable(request: &CanonicalRequest) -> Result<(), ModelError> {
    if request.seed.is_some() {
        return Err(ModelError::bad_request("`seed` cannot be said in Messages"));
    }
    let hot = request.temperature.as_ref().and_then(|number| number.as_f64());
    if hot.is_some_and(|temperature| temperature > 1.0) {
        return Err(ModelError::bad_request("a `temperature` above 1 cannot be said in Messages"));
    }
    if request.output == Some(OutputFormat::JsonObject) {
        return Err(ModelError::bad_request(
            "an answer of any JSON object cannot be said in Messages: give a JSON schema",
        ));
    }
    Ok(())
}

fn encode_output_config(
    request: &CanonicalRequest,
    target: &ProviderCapabilities,
) -> Result<Map<String, Value>, ModelError> {
    let mut out = Map::new();
    match request.thinking.as_ref().and_then(|thinking| thinking.effort) {
        None | Some(ReasoningEffort::None) => {}
        // The lowest effort of this dialect.
        Some(ReasoningEffort::Minimal | ReasoningEffort::Low) => {
            out.insert("effort".into(), json!("low"));
        }
        Some(effort) => {
            out.insert("effort".into(), json!(effort.as_str()));
        }
    }
    if let Some(OutputFormat::JsonSchema { schema, .. }) = &request.output {
        if !target.schema_output {
            return Err(ModelError::bad_request(
                "this model's provider knows no answers by a JSON schema",
            ));
        }
        out.insert("format".into(), json!({ "type": "json_schema", "schema": schema }));
    }
    Ok(out)
}

fn encode_thinking(request: &CanonicalRequest, limit: u32) -> Result<Option<Value>, ModelError> {
    let Some(thinking) = &request.thinking else { return Ok(None) };
    let mut out = Map::new();
    let mode = match (thinking.mode, thinking.effort) {
        (Some(mode), _) => mode,
        (None, Some(ReasoningEffort::None)) => ThinkingMode::Disabled,
        (None, Some(_)) => ThinkingMode::Adaptive,
        (None, None) => return Ok(None),
    };
    let kind = match mode {
        ThinkingMode::Adaptive => "adaptive",
        ThinkingMode::BetweenTools => "between_tools",
        ThinkingMode::Budget(_) => "enabled",
        ThinkingMode::Disabled => "disabled",
    };
    out.insert("type".into(), json!(kind));
    if let ThinkingMode::Budget(budget) = mode {
        let Some(budget) = super::clamp_thinking_budget(budget.into(), limit.into()) else {
            return Ok(None);
        };
        out.insert("budget_tokens".into(), json!(budget));
    }
    thinking.extras.write_into(ExtrasLevel::Thinking, DIALECT, &mut out)?;
    Ok(Some(Value::Object(out)))
}

fn encode_tool_choice(
    choice: Option<&ToolChoice>,
    parallel: Option<bool>,
) -> Result<Option<Value>, ModelError> {
    let mut out = match choice {
        None if parallel == Some(false) => json!({ "type": "auto" }),
        None => return Ok(None),
        Some(ToolChoice::Auto) => json!({ "type": "auto" }),
        Some(ToolChoice::None) => return Ok(Some(json!({ "type": "none" }))),
        Some(ToolChoice::Required) => json!({ "type": "any" }),
        Some(ToolChoice::One(name)) => json!({ "type": "tool", "name": name }),
        Some(ToolChoice::Foreign(foreign)) if foreign.from == DIALECT => foreign.value.clone(),
        Some(ToolChoice::Foreign(foreign)) => return Err(foreign_choice_error(&foreign.value)),
    };
    if let Some(parallel) = parallel {
        out["disable_parallel_tool_use"] = json!(!parallel);
    }
    Ok(Some(out))
}

fn encode_function(tool: &FunctionTool, namespace: Option<&str>) -> Result<Value, ModelError> {
    encode_function_fields(tool, namespace, "input_schema", DIALECT).map(Value::Object)
}

/// Encodes the turns. Tool results and the user's text after them are one message.
fn encode_messages(messages: &[CanonicalMessage]) -> Result<Vec<Value>, ModelError> {
    let mut out: Vec<(MessageRole, Map<String, Value>, Vec<Value>)> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let within = |error: ModelError| error.with_context(format!("message {index}"));
        let mut blocks = Vec::new();
        for part in &message.parts {
            blocks.extend(encode_block(part, message.role).map_err(within)?);
        }
        // The provider rejects empty messages, and they carry no content.
        if blocks.is_empty() {
            continue;
        }
        let mut head = Map::new();
        head.insert("role".into(), json!(wire_role(message.role)));
        message.extras.write_into(ExtrasLevel::Message, DIALECT, &mut head).map_err(within)?;
        match out.last_mut() {
            Some((MessageRole::Tool, _, last)) if message.role == MessageRole::User => {
                last.extend(blocks);
            }
            _ => out.push((message.role, head, blocks)),
        }
    }
    Ok(out
        .into_iter()
        .map(|(_, mut head, blocks)| {
            head.insert("content".into(), collapse_single_text(blocks));
            Value::Object(head)
        })
        .collect())
}

const fn wire_role(role: MessageRole) -> &'static str {
    match role {
        MessageRole::System => "system",
        MessageRole::User | MessageRole::Tool => "user",
        MessageRole::Assistant => "assistant",
    }
}

/// Encodes one plain text as text, anything else as a list.
fn collapse_single_text(mut blocks: Vec<Value>) -> Value {
    if let [Value::Object(only)] = blocks.as_mut_slice()
        && only.len() == 2
        && only.get("type").is_some_and(|kind| kind == "text")
        && let Some(text) = only.remove("text")
    {
        return text;
    }
    Value::Array(blocks)
}

fn encode_block(part: &ContentPart, role: MessageRole) -> Result<Option<Value>, ModelError> {
    match part {
        // The provider rejects an empty text, and it carries no content.
        ContentPart::Text(words) if words.text.is_empty() => Ok(None),
        ContentPart::Text(words) => encode_text(words).map(Some),
        ContentPart::Image(picture) => encode_image(picture).map(Some),
        ContentPart::Document(paper) => encode_document(paper).map(Some),
        ContentPart::ToolCall(call) => encode_tool_use(call).map(Some),
        ContentPart::ToolResult(result) => encode_tool_result(result).map(Some),
        ContentPart::Reasoning(thought) => Ok(encode_own_thinking(thought)),
        ContentPart::Refusal(words) if role == MessageRole::Assistant => {
            encode_text(&TextPart::from_text(words)).map(Some)
        }
        ContentPart::Refusal(_) => Err(ModelError::bad_request("only the model declines")),
        ContentPart::Foreign(foreign) if foreign.from == DIALECT => Ok(Some(foreign.value.clone())),
        ContentPart::Foreign(foreign) => Err(foreign_part_error(&foreign.value)),
    }
}

fn encode_text(text: &TextPart) -> Result<Value, ModelError> {
    let mut out = Map::new();
    out.insert("type".into(), json!("text"));
    out.insert("text".into(), json!(text.text));
    with_part_extras(out, &text.extras)
}

fn with_part_extras(
    mut out: Map<String, Value>,
    extras: &DialectExtras,
) -> Result<Value, ModelError> {
    extras.write_into(ExtrasLevel::Part, DIALECT, &mut out)?;
    Ok(Value::Object(out))
}

/// Encodes reasoning for the provider that sealed it. Other providers could not verify it, so they do not get it.
fn encode_own_thinking(thought: &ReasoningPart) -> Option<Value> {
    let seal = thought.seal.as_ref().filter(|seal| seal.by == DIALECT)?;
    Some(super::answer::encode_thinking_block(&thought.text, Some(seal)))
}

fn encode_image(picture: &ImagePart) -> Result<Value, ModelError> {
    let source = match &picture.source {
        ImageSource::Url(url) => json!({ "type": "url", "url": url }),
        ImageSource::Base64 { media_type, data } => {
            json!({ "type": "base64", "media_type": media_type, "data": data })
        }
        ImageSource::File { from, id } if *from == DIALECT => {
            json!({ "type": "file", "file_id": id })
        }
        ImageSource::File { .. } => {
            return Err(ModelError::bad_request(
                "an image in a provider's file store cannot be said here",
            ));
        }
    };
    let mut out = Map::new();
    out.insert("type".into(), json!("image"));
    out.insert("source".into(), source);
    with_part_extras(out, &picture.extras)
}

fn encode_document(paper: &DocumentPart) -> Result<Value, ModelError> {
    let source = match &paper.source {
        DocumentSource::Url(url) => json!({ "type": "url", "url": url }),
        DocumentSource::Base64 { media_type, data } if media_type == "application/pdf" => {
            json!({ "type": "base64", "media_type": media_type, "data": data })
        }
        DocumentSource::Base64 { media_type, .. } => {
            return Err(ModelError::bad_request(format!(
                "a document of type `{media_type}` cannot be said in Messages"
            )));
        }
        DocumentSource::Text(words) => {
            json!({ "type": "text", "media_type": "text/plain", "data": words })
        }
        DocumentSource::File { from, id } if *from == DIALECT => {
            json!({ "type": "file", "file_id": id })
        }
        DocumentSource::File { .. } => {
            return Err(ModelError::bad_request(
                "a document in a provider's file store cannot be said here",
            ));
        }
    };
    let mut out = Map::new();
    out.insert("type".into(), json!("document"));
    out.insert("source".into(), source);
    if let Some(name) = &paper.name {
        out.insert("title".into(), json!(name));
    }
    with_part_extras(out, &paper.extras)
}

fn encode_tool_use(call: &ToolCall) -> Result<Value, ModelError> {
    let input = match &call.input {
        ToolInput::Json(text) => super::answer::parse_input_object(&call.name, text)?,
        ToolInput::Free(text) => {
            super::answer::parse_input_object(&call.name, &wrap_arguments(text))?
        }
    };
    let mut out = Map::new();
    out.insert("type".into(), json!("tool_use"));
    out.insert("id".into(), json!(sanitize_call_id(&call.id)));
    out.insert("name".into(), json!(flat_tool_name(call.namespace.as_deref(), &call.name)));
    out.insert("input".into(), input);
    with_part_extras(out, &call.extras)
}

/// Replaces characters of other providers' ids. This dialect allows letters, digits, `_` and `-` only.
fn sanitize_call_id(id: &str) -> String {
    let clean = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    id.chars().map(|letter| if clean(letter) { letter } else { '_' }).collect()
}

fn encode_tool_result(result: &ToolResult) -> Result<Value, ModelError> {
    let mut content = Vec::new();
    for part in &result.parts {
        content.extend(encode_block(part, MessageRole::Tool)?);
    }
    let mut out = Map::new();
    out.insert("type".into(), json!("tool_result"));
    out.insert("tool_use_id".into(), json!(sanitize_call_id(&result.id)));
    if !content.is_empty() {
        out.insert("content".into(), collapse_single_text(content));
    }
    if result.is_error {
        out.insert("is_error".into(), json!(true));
    }
    with_part_extras(out, &result.extras)
}
