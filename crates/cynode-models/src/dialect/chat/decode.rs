use std::collections::BTreeSet;

use serde_json::Value;

use crate::dialect::{
    Dialect,
    canonical::{
        CanonicalMessage, CanonicalRequest, CanonicalTool, ContentPart, CustomTool,
        CustomToolFormat, DialectExtras, DocumentPart, DocumentSource, ForeignValue, FunctionTool,
        ImagePart, ImageSource, MessageRole, ModelError, OutputFormat, ReasoningEffort,
        ReasoningPart, TextPart, ThinkingConfig, ToolCall, ToolChoice, ToolInput, ToolResult,
    },
    fields::{self, JsonFields},
    media::split_data_url,
};

const DIALECT: Dialect = Dialect::Chat;

/// Decodes a client's request.
pub fn decode_request(body: &Value) -> Result<CanonicalRequest, ModelError> {
    let mut fields =
        JsonFields::from_value(body).map_err(|error| error.with_context("the request"))?;
    check_single_choice(fields.get_count("n")?)?;
    let (instructions, messages) = decode_conversation(fields.get_list("messages")?)?;
    let stream = fields.get_bool("stream")?.unwrap_or(false);
    let include_usage = match fields.get_object("stream_options")? {
        Some(mut options) => options.get_bool("include_usage")?.unwrap_or(false),
        None => false,
    };
    // `max_tokens` is the older name.
    let (new, old) = (fields.get_count("max_completion_tokens")?, fields.get_count("max_tokens")?);
    Ok(CanonicalRequest {
        // Without one, the router has chosen the default.
        model: fields.get_string("model")?.unwrap_or_default(),
        instructions,
        messages,
        tools: decode_tools(fields.get_list("tools")?)?,
        tool_choice: fields.get_value("tool_choice").map(decode_tool_choice).transpose()?,
        parallel_tool_calls: fields.get_bool("parallel_tool_calls")?,
        output: fields
            .get_value("response_format")
            .map(decode_output_format)
            .transpose()?
            .flatten(),
        max_output_tokens: new.or(old),
        temperature: fields.get_number("temperature")?,
        top_p: fields.get_number("top_p")?,
        stop: decode_stop_sequences(fields.get_value("stop"))?,
        seed: decode_seed(fields.get_value("seed"))?,
        thinking: decode_thinking(fields.get_text("reasoning_effort")?)?,
        verbosity: fields.get_string("verbosity")?,
        user: fields.get_string("user")?,
        stream,
        include_usage: stream && include_usage,
        extras: fields.into_extras(DIALECT),
    })
}

fn check_single_choice(n: Option<u32>) -> Result<(), ModelError> {
    match n {
        None | Some(1) => Ok(()),
        Some(_) => Err(ModelError::bad_request("`n` must be 1: one request has one answer here")),
    }
}

fn decode_seed(value: Option<&Value>) -> Result<Option<i64>, ModelError> {
    let whole = |value: &Value| {
        value.as_i64().ok_or_else(|| ModelError::bad_request("`seed` must be a whole number"))
    };
    value.map(whole).transpose()
}

fn decode_stop_sequences(value: Option<&Value>) -> Result<Vec<String>, ModelError> {
    let bad = || ModelError::bad_request("`stop` must be text or a list of texts");
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(word)) => Ok(vec![word.clone()]),
        Some(Value::Array(words)) => {
            words.iter().map(|word| word.as_str().map(str::to_owned).ok_or_else(bad)).collect()
        }
        Some(_) => Err(bad()),
    }
}

fn decode_thinking(effort: Option<&str>) -> Result<Option<ThinkingConfig>, ModelError> {
    let Some(word) = effort else { return Ok(None) };
    let effort = ReasoningEffort::from_name(word)
        .ok_or_else(|| ModelError::bad_request(format!("`reasoning_effort` knows no `{word}`")))?;
    Ok(Some(ThinkingConfig { effort: Some(effort), ..ThinkingConfig::default() }))
}

fn decode_output_format(format: &Value) -> Result<Option<OutputFormat>, ModelError> {
    let within = |error: ModelError| error.with_context("`response_format`");
    let mut fields = JsonFields::from_value(format).map_err(within)?;
    match fields.require_text("type").map_err(within)? {
        "text" => Ok(None),
        "json_object" => Ok(Some(OutputFormat::JsonObject)),
        "json_schema" => {
            let mut inner = fields.require_object("json_schema").map_err(within)?;
            Ok(Some(OutputFormat::JsonSchema {
                name: inner.get_string("name").map_err(within)?,
                description: inner.get_string("description").map_err(within)?,
                schema: inner
                    .get_value("schema")
                    .cloned()
                    .unwrap_or_else(|| Value::Object(<_>::default())),
                strict: inner.get_bool("strict").map_err(within)?.unwrap_or(false),
            }))
        }
        other => Err(ModelError::bad_request(format!("`response_format` knows no type `{other}`"))),
    }
}

fn decode_tool_choice(choice: &Value) -> Result<ToolChoice, ModelError> {
    let within = |error: ModelError| error.with_context("`tool_choice`");
    if let Some(word) = choice.as_str() {
        return match word {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => Err(ModelError::bad_request(format!("`tool_choice` knows no `{other}`"))),
        };
    }
    let mut fields = JsonFields::from_value(choice).map_err(within)?;
    let kind = match fields.require_text("type").map_err(within)? {
        "function" => "function",
        "custom" => "custom",
        _ => return Ok(ToolChoice::Foreign(ForeignValue { from: DIALECT, value: choice.clone() })),
    };
    let mut inner = fields.require_object(kind).map_err(within)?;
    inner.require_string("name").map(ToolChoice::One).map_err(within)
}

fn decode_tools(tools: &[Value]) -> Result<Vec<CanonicalTool>, ModelError> {
    let place =
        |place: usize| move |error: ModelError| error.with_context(format!("tools[{place}]"));
    tools
        .iter()
        .enumerate()
        .map(|(index, value)| decode_tool(value).map_err(place(index)))
        .collect()
}

fn decode_tool(value: &Value) -> Result<CanonicalTool, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    match fields.require_text("type")? {
        "function" => {
            let mut inner = fields.require_object("function")?;
            Ok(CanonicalTool::Function(FunctionTool {
                name: inner.require_string("name")?,
                description: inner.get_string("description")?,
                parameters: inner
                    .get_value("parameters")
                    .cloned()
                    .unwrap_or_else(empty_parameter_schema),
                strict: inner.get_bool("strict")?.unwrap_or(false),
                extras: inner.into_extras(DIALECT),
            }))
        }
        "custom" => {
            let mut inner = fields.require_object("custom")?;
            Ok(CanonicalTool::Custom(CustomTool {
                name: inner.require_string("name")?,
                description: inner.get_string("description")?,
                format: inner.get_object("format")?.map(decode_tool_format).transpose()?,
                extras: inner.into_extras(DIALECT),
            }))
        }
        _ => Ok(CanonicalTool::Foreign(ForeignValue { from: DIALECT, value: value.clone() })),
    }
}

/// Returns the schema of a function without parameters.
pub(in crate::dialect) fn empty_parameter_schema() -> Value {
    serde_json::json!({ "type": "object", "properties": {} })
}

fn decode_tool_format(mut fields: JsonFields<'_>) -> Result<CustomToolFormat, ModelError> {
    match fields.require_text("type")? {
        "grammar" => {
            let mut grammar = fields.require_object("grammar")?;
            Ok(CustomToolFormat::Grammar {
                syntax: grammar.require_string("syntax")?,
                definition: grammar.require_string("definition")?,
            })
        }
        _ => Ok(CustomToolFormat::Text),
    }
}

/// Decodes the instructions and the conversation.
fn decode_conversation(
    list: &[Value],
) -> Result<(Vec<TextPart>, Vec<CanonicalMessage>), ModelError> {
    let mut instructions = Vec::new();
    let mut messages: Vec<CanonicalMessage> = Vec::new();
    let mut free = BTreeSet::new();
    for (index, value) in list.iter().enumerate() {
        let within = |error: ModelError| error.with_context(format!("messages[{index}]"));
        let mut message = decode_message(value).map_err(within)?;
        mark_custom_results(&mut message, &mut free);
        match (message.role, messages.last_mut()) {
            // A system message holds only text.
            (MessageRole::System, None) => {
                instructions.extend(message.parts.into_iter().filter_map(into_text_part));
            }
            // The results of one turn are one message.
            (MessageRole::Tool, Some(last)) if last.role == MessageRole::Tool => {
                last.parts.extend(message.parts);
            }
            _ => messages.push(message),
        }
    }
    Ok((instructions, messages))
}

/// Marks the results of custom tools, which look like all others in this dialect. `free` holds the ids of the custom tool calls so far.
fn mark_custom_results(message: &mut CanonicalMessage, free: &mut BTreeSet<String>) {
    for part in &mut message.parts {
        match part {
            ContentPart::ToolCall(ToolCall { id, input: ToolInput::Free(_), .. }) => {
                free.insert(id.clone());
            }
            ContentPart::ToolCall(ToolCall { id, input: ToolInput::Json(_), .. }) => {
                free.remove(id.as_str());
            }
            ContentPart::ToolResult(result) => result.custom = free.contains(&result.id),
            _ => {}
        }
    }
}

fn into_text_part(part: ContentPart) -> Option<TextPart> {
    match part {
        ContentPart::Text(text) => Some(text),
        _ => None,
    }
}

fn decode_message(value: &Value) -> Result<CanonicalMessage, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    let role = match fields.require_text("role")? {
        "system" | "developer" => MessageRole::System,
        "user" => MessageRole::User,
        "assistant" => MessageRole::Assistant,
        "tool" => return decode_tool_message(fields),
        other => return Err(ModelError::bad_request(format!("there is no role `{other}`"))),
    };
    let mut parts = Vec::new();
    if role == MessageRole::Assistant {
        // Servers use one name or the other.
        let (long, short) = (fields.get_text("reasoning_content")?, fields.get_text("reasoning")?);
        if let Some(text) = long.or(short).filter(|text| !text.is_empty()) {
            parts.push(ContentPart::Reasoning(ReasoningPart { text: text.to_owned(), seal: None }));
        }
    }
    parts.extend(decode_content(fields.get_value("content"))?);
    if role == MessageRole::System && parts.iter().any(|part| !matches!(part, ContentPart::Text(_)))
    {
        return Err(ModelError::bad_request("a system message can only have text"));
    }
    if let Some(refusal) = fields.get_string("refusal")? {
        parts.push(ContentPart::Refusal(refusal));
    }
    for (index, call) in fields.get_list("tool_calls")?.iter().enumerate() {
        let within = |error: ModelError| error.with_context(format!("tool_calls[{index}]"));
        parts.push(ContentPart::ToolCall(decode_tool_call(call).map_err(within)?));
    }
    Ok(CanonicalMessage { role, parts, extras: fields.into_extras(DIALECT) })
}

fn decode_tool_message(mut fields: JsonFields<'_>) -> Result<CanonicalMessage, ModelError> {
    let id = fields.require_string("tool_call_id")?;
    let parts = decode_content(fields.get_value("content"))?;
    let extras = fields.into_extras(DIALECT);
    let result = ToolResult { id, parts, is_error: false, custom: false, extras };
    Ok(CanonicalMessage::new(MessageRole::Tool, vec![ContentPart::ToolResult(result)]))
}

/// Decodes a tool call, in a message or in a response.
pub(super) fn decode_tool_call(value: &Value) -> Result<ToolCall, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    let id = fields.require_string("id")?;
    let kind = fields.get_text("type")?.unwrap_or("function");
    let (name, input) = match kind {
        "custom" => {
            let mut custom = fields.require_object("custom")?;
            (custom.require_string("name")?, ToolInput::Free(custom.require_string("input")?))
        }
        _ => {
            let mut function = fields.require_object("function")?;
            (
                function.require_string("name")?,
                ToolInput::Json(arguments_text(function.get_value("arguments"))),
            )
        }
    };
    Ok(ToolCall { id, name, namespace: None, input, extras: fields.into_extras(DIALECT) })
}

/// Returns the arguments as text. A few servers send the object itself.
pub(super) fn arguments_text(value: Option<&Value>) -> String {
    match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn decode_content(value: Option<&Value>) -> Result<Vec<ContentPart>, ModelError> {
    fields::decode_content_parts(value, "`content` must be text or a list of parts", decode_part)
}

fn decode_part(value: &Value) -> Result<ContentPart, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    match fields.require_text("type")? {
        "text" => {
            let text = fields.require_string("text")?;
            Ok(ContentPart::Text(TextPart { text, extras: fields.into_extras(DIALECT) }))
        }
        "refusal" => fields.require_string("refusal").map(ContentPart::Refusal),
        "image_url" => {
            let mut inner = fields.require_object("image_url")?;
            let source = parse_image_source(inner.require_text("url")?);
            let extras = merge_extras(inner.into_extras(DIALECT), &fields.into_extras(DIALECT));
            Ok(ContentPart::Image(ImagePart {
                source,
                extras: extras.without_default("detail", "auto"),
            }))
        }
        "file" => {
            let mut inner = fields.require_object("file")?;
            let source = match (inner.get_text("file_data")?, inner.get_text("file_id")?) {
                (Some(data), _) => parse_file_source(data)?,
                (None, Some(id)) => DocumentSource::File { from: DIALECT, id: id.to_owned() },
                (None, None) => {
                    return Err(ModelError::bad_request("a file needs `file_data` or `file_id`"));
                }
            };
            let name = inner.get_string("filename")?;
            let extras = merge_extras(inner.into_extras(DIALECT), &fields.into_extras(DIALECT));
            Ok(ContentPart::Document(DocumentPart { source, name, extras }))
        }
        _ => Ok(ContentPart::Foreign(ForeignValue { from: DIALECT, value: value.clone() })),
    }
}

/// Merges the extra fields of an object and of its enclosing object.
fn merge_extras(inner: DialectExtras, outer: &DialectExtras) -> DialectExtras {
    inner.merge_with(outer, DIALECT)
}

/// Parses the URL of an image. The URL may embed the image.
pub(in crate::dialect) fn parse_image_source(url: &str) -> ImageSource {
    match split_data_url(url) {
        Some((media_type, data)) => {
            ImageSource::Base64 { media_type: media_type.to_owned(), data: data.to_owned() }
        }
        None => ImageSource::Url(url.to_owned()),
    }
}

/// Parses the data of a file.
pub(in crate::dialect) fn parse_file_source(data: &str) -> Result<DocumentSource, ModelError> {
    match split_data_url(data) {
        Some((media_type, data)) => {
            Ok(DocumentSource::Base64 { media_type: media_type.to_owned(), data: data.to_owned() })
        }
        None => Err(ModelError::bad_request("`file_data` must be `data:TYPE;base64,BYTES`")),
    }
}
