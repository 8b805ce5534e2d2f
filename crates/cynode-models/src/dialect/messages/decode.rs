use serde_json::Value;

use crate::dialect::{
    Dialect,
    canonical::{
        CanonicalMessage, CanonicalRequest, CanonicalTool, ContentPart, DocumentPart,
        DocumentSource, ForeignValue, FunctionTool, ImagePart, ImageSource, MessageRole,
        ModelError, OutputFormat, ReasoningEffort, ReasoningPart, ReasoningSeal, TextPart,
        ThinkingConfig, ThinkingMode, ToolCall, ToolChoice, ToolInput, ToolResult,
    },
    fields::{self, JsonFields},
    seals,
};

const DIALECT: Dialect = Dialect::Messages;

/// Decodes a client's request.
pub fn decode_request(body: &Value) -> Result<CanonicalRequest, ModelError> {
    let mut fields =
        JsonFields::from_value(body).map_err(|error| error.with_context("the request"))?;
    let (effort, output) = decode_output_config(fields.get_object("output_config")?)?;
    let (tool_choice, parallel_tool_calls) = decode_tool_choice(fields.get_value("tool_choice"))?;
    let stream = fields.get_bool("stream")?.unwrap_or(false);
    Ok(CanonicalRequest {
        // Without one, the router has chosen the default.
        model: fields.get_string("model")?.unwrap_or_default(),
        instructions: decode_instructions(fields.get_value("system"))?,
        messages: decode_conversation(fields.get_list("messages")?)?,
        tools: decode_tools(fields.get_list("tools")?)?,
        tool_choice,
        parallel_tool_calls,
        output,
        max_output_tokens: fields.get_count("max_tokens")?,
        temperature: fields.get_number("temperature")?,
        top_p: fields.get_number("top_p")?,
        stop: decode_stop_sequences(fields.get_list("stop_sequences")?)?,
        seed: None,
        thinking: decode_thinking(fields.get_object("thinking")?, effort)?,
        verbosity: None,
        user: match fields.get_object("metadata")? {
            Some(mut metadata) => metadata.get_string("user_id")?,
            None => None,
        },
        stream,
        include_usage: stream,
        extras: fields.into_extras(DIALECT),
    })
}

fn decode_stop_sequences(words: &[Value]) -> Result<Vec<String>, ModelError> {
    let bad = || ModelError::bad_request("`stop_sequences` must be a list of texts");
    words.iter().map(|word| word.as_str().map(str::to_owned).ok_or_else(bad)).collect()
}

fn decode_output_config(
    fields: Option<JsonFields<'_>>,
) -> Result<(Option<ReasoningEffort>, Option<OutputFormat>), ModelError> {
    let Some(mut fields) = fields else { return Ok((None, None)) };
    let effort = fields.get_text("effort")?.map(|word| {
        ReasoningEffort::from_name(word)
            .ok_or_else(|| ModelError::bad_request(format!("`effort` knows no `{word}`")))
    });
    let output = match fields.get_object("format")? {
        None => None,
        Some(mut format) => match format.require_text("type")? {
            "json_schema" => Some(OutputFormat::JsonSchema {
                name: None,
                description: None,
                schema: format.require_value("schema")?.clone(),
                strict: true,
            }),
            other => {
                return Err(ModelError::bad_request(format!(
                    "`output_config.format` knows no type `{other}`"
                )));
            }
        },
    };
    Ok((effort.transpose()?, output))
}

fn decode_thinking(
    fields: Option<JsonFields<'_>>,
    effort: Option<ReasoningEffort>,
) -> Result<Option<ThinkingConfig>, ModelError> {
    let Some(mut fields) = fields else {
        return Ok(effort
            .map(|effort| ThinkingConfig { effort: Some(effort), ..ThinkingConfig::default() }));
    };
    let mode = match fields.require_text("type")? {
        "enabled" => ThinkingMode::Budget(
            fields
                .get_count("budget_tokens")?
                .ok_or_else(|| ModelError::bad_request("`thinking.budget_tokens` is missing"))?,
        ),
        "adaptive" => ThinkingMode::Adaptive,
        "between_tools" => ThinkingMode::BetweenTools,
        "disabled" => ThinkingMode::Disabled,
        other => {
            return Err(ModelError::bad_request(format!("`thinking` knows no type `{other}`")));
        }
    };
    Ok(Some(ThinkingConfig {
        effort,
        mode: Some(mode),
        summary: None,
        extras: fields.into_extras(DIALECT),
    }))
}

fn decode_tool_choice(
    choice: Option<&Value>,
) -> Result<(Option<ToolChoice>, Option<bool>), ModelError> {
    let Some(value) = choice else { return Ok((None, None)) };
    let mut fields =
        JsonFields::from_value(value).map_err(|error| error.with_context("`tool_choice`"))?;
    let choice = match fields.require_text("type")? {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::One(fields.require_string("name")?),
        _ => ToolChoice::Foreign(ForeignValue { from: DIALECT, value: value.clone() }),
    };
    let parallel = fields.get_bool("disable_parallel_tool_use")?.map(|disabled| !disabled);
    Ok((Some(choice), parallel))
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
    match fields.get_text("type")? {
        None | Some("custom") => Ok(CanonicalTool::Function(FunctionTool {
            name: fields.require_string("name")?,
            description: fields.get_string("description")?,
            parameters: fields.require_value("input_schema")?.clone(),
            strict: fields.get_bool("strict")?.unwrap_or(false),
            extras: fields.into_extras(DIALECT),
        })),
        Some(_) => Ok(CanonicalTool::Foreign(ForeignValue { from: DIALECT, value: value.clone() })),
    }
}

fn decode_instructions(system: Option<&Value>) -> Result<Vec<TextPart>, ModelError> {
    let parts = decode_content(system).map_err(|error| error.with_context("`system`"))?;
    let text = |part| match part {
        ContentPart::Text(text) => Ok(text),
        _ => Err(ModelError::bad_request("`system` can only have text")),
    };
    parts.into_iter().map(text).collect()
}

fn decode_conversation(list: &[Value]) -> Result<Vec<CanonicalMessage>, ModelError> {
    let mut messages = Vec::new();
    for (index, value) in list.iter().enumerate() {
        decode_message(value, &mut messages)
            .map_err(|error| error.with_context(format!("messages[{index}]")))?;
    }
    Ok(messages)
}

fn decode_message(value: &Value, messages: &mut Vec<CanonicalMessage>) -> Result<(), ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    let role = match fields.require_text("role")? {
        "user" => MessageRole::User,
        "assistant" => MessageRole::Assistant,
        "system" => MessageRole::System,
        other => return Err(ModelError::bad_request(format!("there is no role `{other}`"))),
    };
    let parts = decode_content(fields.get_value("content"))?;
    let extras = fields.into_extras(DIALECT);
    if role != MessageRole::User {
        messages.push(CanonicalMessage { role, parts, extras });
        return Ok(());
    }
    // Tool results are in the user's message here. In the canonical form they are a separate turn.
    let start = messages.len();
    for part in parts {
        let role = if matches!(part, ContentPart::ToolResult(_)) {
            MessageRole::Tool
        } else {
            MessageRole::User
        };
        match messages.get_mut(start..).and_then(<[CanonicalMessage]>::last_mut) {
            Some(last) if last.role == role => last.parts.push(part),
            _ => {
                messages.push(CanonicalMessage { role, parts: vec![part], extras: extras.clone() });
            }
        }
    }
    if messages.len() == start {
        messages.push(CanonicalMessage { role, parts: Vec::new(), extras });
    }
    Ok(())
}

fn decode_content(value: Option<&Value>) -> Result<Vec<ContentPart>, ModelError> {
    fields::decode_content_parts(value, "content must be text or a list of blocks", decode_part)
}

fn decode_part(value: &Value) -> Result<ContentPart, ModelError> {
    let foreign = || Ok(ContentPart::Foreign(ForeignValue { from: DIALECT, value: value.clone() }));
    let mut fields = JsonFields::from_value(value)?;
    match fields.require_text("type")? {
        "text" => {
            let text = fields.require_string("text")?;
            Ok(ContentPart::Text(TextPart { text, extras: fields.into_extras(DIALECT) }))
        }
        "image" => match decode_image_source(fields.require_object("source")?)? {
            Some(source) => {
                Ok(ContentPart::Image(ImagePart { source, extras: fields.into_extras(DIALECT) }))
            }
            None => foreign(),
        },
        "document" => match decode_document_source(fields.require_object("source")?)? {
            Some(source) => {
                let name = fields.get_string("title")?;
                Ok(ContentPart::Document(DocumentPart {
                    source,
                    name,
                    extras: fields.into_extras(DIALECT),
                }))
            }
            None => foreign(),
        },
        "tool_use" => {
            let (id, name) = (fields.require_string("id")?, fields.require_string("name")?);
            let input = ToolInput::Json(fields.require_value("input")?.to_string());
            let extras = fields.into_extras(DIALECT);
            Ok(ContentPart::ToolCall(ToolCall { id, name, namespace: None, input, extras }))
        }
        "tool_result" => {
            let id = fields.require_string("tool_use_id")?;
            let parts = decode_content(fields.get_value("content"))?;
            let is_error = fields.get_bool("is_error")?.unwrap_or(false);
            let extras = fields.into_extras(DIALECT);
            Ok(ContentPart::ToolResult(ToolResult { id, parts, is_error, custom: false, extras }))
        }
        "thinking" | "redacted_thinking" => {
            decode_thinking_block(value).map(ContentPart::Reasoning)
        }
        _ => foreign(),
    }
}

/// Decodes reasoning, in a message or in a response.
pub(super) fn decode_thinking_block(value: &Value) -> Result<ReasoningPart, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    if fields.require_text("type")? == "redacted_thinking" {
        let seal = decode_redacted_seal(fields.require_text("data")?);
        return Ok(ReasoningPart { text: String::new(), seal: Some(seal) });
    }
    let text = fields.get_string("thinking")?.unwrap_or_default();
    let signature = fields.get_text("signature")?.filter(|signature| !signature.is_empty());
    Ok(ReasoningPart { text, seal: signature.map(|text| seals::decode_seal(text, DIALECT, None)) })
}

pub(super) fn decode_redacted_seal(data: &str) -> ReasoningSeal {
    ReasoningSeal { redacted: true, ..seals::decode_seal(data, DIALECT, None) }
}

fn decode_image_source(mut fields: JsonFields<'_>) -> Result<Option<ImageSource>, ModelError> {
    Ok(Some(match fields.require_text("type")? {
        "base64" => ImageSource::Base64 {
            media_type: fields.require_string("media_type")?,
            data: fields.require_string("data")?,
        },
        "url" => ImageSource::Url(fields.require_string("url")?),
        "file" => ImageSource::File { from: DIALECT, id: fields.require_string("file_id")? },
        _ => return Ok(None),
    }))
}

fn decode_document_source(
    mut fields: JsonFields<'_>,
) -> Result<Option<DocumentSource>, ModelError> {
    Ok(Some(match fields.require_text("type")? {
        "base64" => DocumentSource::Base64 {
            media_type: fields.require_string("media_type")?,
            data: fields.require_string("data")?,
        },
        "text" => DocumentSource::Text(fields.require_string("data")?),
        "url" => DocumentSource::Url(fields.require_string("url")?),
        "file" => DocumentSource::File { from: DIALECT, id: fields.require_string("file_id")? },
        _ => return Ok(None),
    }))
}
