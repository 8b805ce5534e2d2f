use serde_json::{Map, Value, json};

use crate::dialect::{
    Dialect,
    canonical::{
        CanonicalMessage, CanonicalRequest, CanonicalTool, ContentPart, CustomTool,
        CustomToolFormat, DialectExtras, DocumentPart, DocumentSource, ForeignValue, FunctionTool,
        ImagePart, ImageSource, MessageRole, ModelError, OutputFormat, ReasoningEffort,
        ReasoningPart, TextPart, ThinkingConfig, ToolCall, ToolChoice, ToolInput, ToolNamespace,
        ToolResult,
    },
    chat::{empty_parameter_schema, parse_file_source, parse_image_source},
    fields::{self, JsonFields},
    seals,
};

const DIALECT: Dialect = Dialect::Responses;

/// Value of `include` that requests seals from a provider.
pub(super) const INCLUDE_ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// Decodes a client's request.
pub fn decode_request(body: &Value) -> Result<CanonicalRequest, ModelError> {
    let mut fields =
        JsonFields::from_value(body).map_err(|error| error.with_context("the request"))?;
    check_stateless(&mut fields)?;
    let mut input = InputConversation::default();
    if let Some(text) = fields.get_string("instructions")? {
        input.instructions.push(TextPart::from_text(text));
    }
    let mut tools = decode_tools(fields.get_list("tools")?)?;
    input.decode_input(fields.require_value("input")?)?;
    tools.append(&mut input.tools);
    let (output, verbosity) = decode_text_config(fields.get_object("text")?)?;
    let thinking = fields.get_object("reasoning")?.map(decode_thinking).transpose()?;
    let include = fields.get_value("include").filter(|include| {
        // CyNode always requests seals when a model thinks.
        thinking.is_none() || **include != json!([INCLUDE_ENCRYPTED_REASONING])
    });
    let include = include.map(|include| ("include".to_owned(), include.clone()));
    let stream = fields.get_bool("stream")?.unwrap_or(false);
    Ok(CanonicalRequest {
        // Without one, the router has chosen the default.
        model: fields.get_string("model")?.unwrap_or_default(),
        instructions: input.instructions,
        messages: input.messages,
        tools,
        tool_choice: fields.get_value("tool_choice").map(decode_tool_choice).transpose()?,
        parallel_tool_calls: fields.get_bool("parallel_tool_calls")?,
        output,
        max_output_tokens: fields.get_count("max_output_tokens")?,
        temperature: fields.get_number("temperature")?,
        top_p: fields.get_number("top_p")?,
        stop: Vec::new(),
        seed: None,
        thinking,
        verbosity,
        user: fields.get_string("user")?,
        stream,
        include_usage: stream,
        extras: DialectExtras::new(DIALECT, include.into_iter().collect::<Map<_, _>>())
            .merge_with(&fields.into_extras(DIALECT), DIALECT),
    })
}

fn check_stateless(fields: &mut JsonFields<'_>) -> Result<(), ModelError> {
    for name in ["previous_response_id", "conversation"] {
        if fields.get_value(name).is_some() {
            return Err(ModelError::bad_request(format!(
                "`{name}` is not supported: nothing is stored here, send the whole conversation as `input`"
            )));
        }
    }
    if fields.get_bool("background")?.unwrap_or(false) {
        return Err(ModelError::bad_request(
            "`background` is not supported: nothing is stored here",
        ));
    }
    // The field is ignored: no response is stored.
    fields.get_value("store");
    Ok(())
}

fn decode_thinking(mut fields: JsonFields<'_>) -> Result<ThinkingConfig, ModelError> {
    let effort = fields.get_text("effort")?.map(|word| {
        let unknown = || ModelError::bad_request(format!("`reasoning.effort` knows no `{word}`"));
        ReasoningEffort::from_name(word).ok_or_else(unknown)
    });
    Ok(ThinkingConfig {
        effort: effort.transpose()?,
        mode: None,
        summary: fields.get_string("summary")?,
        extras: fields.into_extras(DIALECT),
    })
}

fn decode_text_config(
    fields: Option<JsonFields<'_>>,
) -> Result<(Option<OutputFormat>, Option<String>), ModelError> {
    let Some(mut fields) = fields else { return Ok((None, None)) };
    let verbosity = fields.get_string("verbosity")?;
    let Some(mut format) = fields.get_object("format")? else { return Ok((None, verbosity)) };
    let output = match format.require_text("type")? {
        "text" => None,
        "json_object" => Some(OutputFormat::JsonObject),
        "json_schema" => Some(OutputFormat::JsonSchema {
            name: format.get_string("name")?,
            description: format.get_string("description")?,
            schema: format.require_value("schema")?.clone(),
            strict: format.get_bool("strict")?.unwrap_or(false),
        }),
        other => {
            return Err(ModelError::bad_request(format!("`text.format` knows no type `{other}`")));
        }
    };
    Ok((output, verbosity))
}

fn decode_tool_choice(choice: &Value) -> Result<ToolChoice, ModelError> {
    if let Some(word) = choice.as_str() {
        return match word {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => Err(ModelError::bad_request(format!("`tool_choice` knows no `{other}`"))),
        };
    }
    let mut fields =
        JsonFields::from_value(choice).map_err(|error| error.with_context("`tool_choice`"))?;
    match fields.require_text("type")? {
        "function" | "custom" => fields.require_string("name").map(ToolChoice::One),
        _ => Ok(ToolChoice::Foreign(ForeignValue { from: DIALECT, value: choice.clone() })),
    }
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
        "function" => Ok(CanonicalTool::Function(FunctionTool {
            name: fields.require_string("name")?,
            description: fields.get_string("description")?,
            parameters: fields
                .get_value("parameters")
                .cloned()
                .unwrap_or_else(empty_parameter_schema),
            strict: fields.get_bool("strict")?.unwrap_or(false),
            extras: fields.into_extras(DIALECT),
        })),
        "custom" => Ok(CanonicalTool::Custom(CustomTool {
            name: fields.require_string("name")?,
            description: fields.get_string("description")?,
            format: fields.get_object("format")?.map(decode_tool_format).transpose()?,
            extras: fields.into_extras(DIALECT),
        })),
        "namespace" => Ok(CanonicalTool::Namespace(ToolNamespace {
            name: fields.require_string("name")?,
            description: fields.get_string("description")?,
            tools: decode_tools(fields.get_list("tools")?)?,
            extras: fields.into_extras(DIALECT),
        })),
        _ => Ok(CanonicalTool::Foreign(ForeignValue { from: DIALECT, value: value.clone() })),
    }
}

fn decode_tool_format(mut fields: JsonFields<'_>) -> Result<CustomToolFormat, ModelError> {
    match fields.require_text("type")? {
        "grammar" => Ok(CustomToolFormat::Grammar {
            syntax: fields.require_string("syntax")?,
            definition: fields.require_string("definition")?,
        }),
        _ => Ok(CustomToolFormat::Text),
    }
}

/// Groups the items of the input into turns.
#[derive(Debug, Default)]
struct InputConversation {
    instructions: Vec<TextPart>,
    messages: Vec<CanonicalMessage>,
    tools: Vec<CanonicalTool>,
}

impl InputConversation {
    fn decode_input(&mut self, input: &Value) -> Result<(), ModelError> {
        match input {
            Value::String(text) => {
                self.messages.push(CanonicalMessage::new(
                    MessageRole::User,
                    vec![ContentPart::from_text(text)],
                ));
                Ok(())
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    self.decode_item(value)
                        .map_err(|error| error.with_context(format!("input[{index}]")))?;
                }
                Ok(())
            }
            _ => Err(ModelError::bad_request("`input` must be text or a list of items")),
        }
    }

    fn decode_item(&mut self, value: &Value) -> Result<(), ModelError> {
        let mut fields = JsonFields::from_value(value)?;
        match fields.get_text("type")?.unwrap_or("message") {
            "message" => self.decode_message(fields)?,
            "additional_tools" => self.tools.extend(decode_tools(fields.get_list("tools")?)?),
            "item_reference" => {
                return Err(ModelError::bad_request(
                    "an item by its id is not supported: nothing is stored here, send the item",
                ));
            }
            "reasoning" => self.append_part(
                MessageRole::Assistant,
                ContentPart::Reasoning(decode_reasoning(value)?),
            ),
            "function_call" | "custom_tool_call" => {
                self.append_part(
                    MessageRole::Assistant,
                    ContentPart::ToolCall(decode_tool_call(value)?),
                );
            }
            "function_call_output" => {
                self.append_part(
                    MessageRole::Tool,
                    ContentPart::ToolResult(decode_tool_result(fields, false)?),
                );
            }
            "custom_tool_call_output" => {
                self.append_part(
                    MessageRole::Tool,
                    ContentPart::ToolResult(decode_tool_result(fields, true)?),
                );
            }
            other => {
                let role = if other.ends_with("_output") {
                    MessageRole::Tool
                } else {
                    MessageRole::Assistant
                };
                self.append_part(
                    role,
                    ContentPart::Foreign(ForeignValue { from: DIALECT, value: value.clone() }),
                );
            }
        }
        Ok(())
    }

    /// Adds a part to the current turn if it has the role `role`, or starts a new turn.
    fn append_part(&mut self, role: MessageRole, part: ContentPart) {
        match self.messages.last_mut() {
            Some(last) if last.role == role => last.parts.push(part),
            _ => self.messages.push(CanonicalMessage::new(role, vec![part])),
        }
    }

    fn decode_message(&mut self, mut fields: JsonFields<'_>) -> Result<(), ModelError> {
        let role = match fields.require_text("role")? {
            "system" | "developer" => MessageRole::System,
            "user" => MessageRole::User,
            "assistant" => MessageRole::Assistant,
            other => return Err(ModelError::bad_request(format!("there is no role `{other}`"))),
        };
        let parts = decode_content(fields.get_value("content"))?;
        let texts = parts.iter().map(|part| match part {
            ContentPart::Text(text) => Some(text.clone()),
            _ => None,
        });
        match role {
            MessageRole::Assistant => {
                for part in parts {
                    self.append_part(role, part);
                }
            }
            MessageRole::System => match texts.collect::<Option<Vec<_>>>() {
                None => {
                    return Err(ModelError::bad_request("a developer message can only have text"));
                }
                Some(texts) if self.messages.is_empty() => self.instructions.extend(texts),
                Some(_) => self.messages.push(CanonicalMessage {
                    role,
                    parts,
                    extras: fields.into_extras(DIALECT),
                }),
            },
            MessageRole::User | MessageRole::Tool => {
                self.messages.push(CanonicalMessage {
                    role,
                    parts,
                    extras: fields.into_extras(DIALECT),
                });
            }
        }
        Ok(())
    }
}

/// Decodes a tool call, in the input or in a response.
pub(super) fn decode_tool_call(value: &Value) -> Result<ToolCall, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    let input = match fields.require_text("type")? {
        "custom_tool_call" => ToolInput::Free(fields.require_string("input")?),
        _ => ToolInput::Json(fields.require_string("arguments")?),
    };
    Ok(ToolCall {
        id: fields.require_string("call_id")?,
        name: fields.require_string("name")?,
        namespace: fields.get_string("namespace")?,
        input,
        extras: fields.into_extras(DIALECT),
    })
}

fn decode_tool_result(mut fields: JsonFields<'_>, custom: bool) -> Result<ToolResult, ModelError> {
    Ok(ToolResult {
        id: fields.require_string("call_id")?,
        parts: decode_content(fields.get_value("output"))?,
        is_error: false,
        custom,
        extras: fields.into_extras(DIALECT),
    })
}

/// Decodes reasoning, in the input or in a response.
pub(super) fn decode_reasoning(value: &Value) -> Result<ReasoningPart, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    let id = fields.get_text("id")?;
    let summary = join_texts(fields.get_list("summary")?);
    let content = join_texts(fields.get_list("content")?);
    let text = if summary.is_empty() { content } else { summary };
    let sealed = fields.get_text("encrypted_content")?.filter(|sealed| !sealed.is_empty());
    Ok(ReasoningPart { text, seal: sealed.map(|text| seals::decode_seal(text, DIALECT, id)) })
}

fn join_texts(parts: &[Value]) -> String {
    let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
    texts.collect::<Vec<_>>().join("\n\n")
}

fn decode_content(value: Option<&Value>) -> Result<Vec<ContentPart>, ModelError> {
    fields::decode_content_parts(value, "content must be text or a list of parts", decode_part)
}

fn decode_part(value: &Value) -> Result<ContentPart, ModelError> {
    let mut fields = JsonFields::from_value(value)?;
    match fields.require_text("type")? {
        "input_text" | "output_text" | "text" => {
            let text = fields.require_string("text")?;
            Ok(ContentPart::Text(TextPart { text, extras: fields.into_extras(DIALECT) }))
        }
        "refusal" => fields.require_string("refusal").map(ContentPart::Refusal),
        "input_image" => {
            let source = match (fields.get_text("image_url")?, fields.get_text("file_id")?) {
                (Some(url), _) => parse_image_source(url),
                (None, Some(id)) => ImageSource::File { from: DIALECT, id: id.to_owned() },
                (None, None) => {
                    return Err(ModelError::bad_request("an image needs `image_url` or `file_id`"));
                }
            };
            Ok(ContentPart::Image(ImagePart {
                source,
                extras: fields.into_extras(DIALECT).without_default("detail", "auto"),
            }))
        }
        "input_file" => {
            let data = (
                fields.get_text("file_data")?,
                fields.get_text("file_url")?,
                fields.get_text("file_id")?,
            );
            let source = match data {
                (Some(data), ..) => parse_file_source(data)?,
                (None, Some(url), _) => DocumentSource::Url(url.to_owned()),
                (None, None, Some(id)) => DocumentSource::File { from: DIALECT, id: id.to_owned() },
                (None, None, None) => {
                    return Err(ModelError::bad_request(
                        "a file needs `file_data`, `file_url` or `file_id`",
                    ));
                }
            };
            let name = fields.get_string("filename")?;
            Ok(ContentPart::Document(DocumentPart {
                source,
                name,
                extras: fields.into_extras(DIALECT),
            }))
        }
        _ => Ok(ContentPart::Foreign(ForeignValue { from: DIALECT, value: value.clone() })),
    }
}
