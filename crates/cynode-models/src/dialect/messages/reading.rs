use serde_json::Value;

use crate::{
    dialect::{
        Dialect,
        fields::{self, Fields},
        seals,
    },
    talk::{
        Document, DocumentSource, Effort, Foreign, FunctionTool, Image, ImageSource, Input,
        Message, Mode, ModelError, Output, Part, Reasoning, Request, Role, Seal, Text, Thinking,
        Tool, ToolCall, ToolChoice, ToolResult,
    },
};

const HERE: Dialect = Dialect::Messages;

/// What a client asks.
pub fn read_request(body: &Value) -> Result<Request, ModelError> {
    let mut fields = Fields::of(body).map_err(|error| error.within("the request"))?;
    let (effort, output) = output_config(fields.object("output_config")?)?;
    let (tool_choice, parallel_tool_calls) = tool_choice(fields.get("tool_choice"))?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    Ok(Request {
        model: fields.need_string("model")?,
        instructions: instructions(fields.get("system"))?,
        messages: conversation(fields.list("messages")?)?,
        tools: tools(fields.list("tools")?)?,
        tool_choice,
        parallel_tool_calls,
        output,
        max_output_tokens: fields.count("max_tokens")?,
        temperature: fields.number("temperature")?,
        top_p: fields.number("top_p")?,
        stop: stop(fields.list("stop_sequences")?)?,
        seed: None,
        thinking: thinking(fields.object("thinking")?, effort)?,
        verbosity: None,
        user: match fields.object("metadata")? {
            Some(mut metadata) => metadata.string("user_id")?,
            None => None,
        },
        stream,
        include_usage: stream,
        extras: fields.rest(HERE),
    })
}

fn stop(words: &[Value]) -> Result<Vec<String>, ModelError> {
    let bad = || ModelError::bad("`stop_sequences` must be a list of texts");
    words.iter().map(|word| word.as_str().map(str::to_owned).ok_or_else(bad)).collect()
}

fn output_config(
    fields: Option<Fields<'_>>,
) -> Result<(Option<Effort>, Option<Output>), ModelError> {
    let Some(mut fields) = fields else { return Ok((None, None)) };
    let effort = fields.text("effort")?.map(|word| {
        Effort::of(word).ok_or_else(|| ModelError::bad(format!("`effort` knows no `{word}`")))
    });
    let output = match fields.object("format")? {
        None => None,
        Some(mut format) => match format.need_text("type")? {
            "json_schema" => Some(Output::JsonSchema {
                name: None,
                description: None,
                schema: format.need("schema")?.clone(),
                strict: true,
            }),
            other => {
                return Err(ModelError::bad(format!(
                    "`output_config.format` knows no type `{other}`"
                )));
            }
        },
    };
    Ok((effort.transpose()?, output))
}

fn thinking(
    fields: Option<Fields<'_>>,
    effort: Option<Effort>,
) -> Result<Option<Thinking>, ModelError> {
    let Some(mut fields) = fields else {
        return Ok(effort.map(|effort| Thinking { effort: Some(effort), ..Thinking::default() }));
    };
    let mode = match fields.need_text("type")? {
        "enabled" => Mode::Budget(
            fields
                .count("budget_tokens")?
                .ok_or_else(|| ModelError::bad("`thinking.budget_tokens` is missing"))?,
        ),
        "adaptive" => Mode::Adaptive,
        "between_tools" => Mode::BetweenTools,
        "disabled" => Mode::Disabled,
        other => return Err(ModelError::bad(format!("`thinking` knows no type `{other}`"))),
    };
    Ok(Some(Thinking { effort, mode: Some(mode), summary: None, extras: fields.rest(HERE) }))
}

fn tool_choice(choice: Option<&Value>) -> Result<(Option<ToolChoice>, Option<bool>), ModelError> {
    let Some(value) = choice else { return Ok((None, None)) };
    let mut fields = Fields::of(value).map_err(|error| error.within("`tool_choice`"))?;
    let choice = match fields.need_text("type")? {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::One(fields.need_string("name")?),
        _ => ToolChoice::Foreign(Foreign { from: HERE, value: value.clone() }),
    };
    let parallel = fields.flag("disable_parallel_tool_use")?.map(|disabled| !disabled);
    Ok((Some(choice), parallel))
}

fn tools(tools: &[Value]) -> Result<Vec<Tool>, ModelError> {
    let place = |place: usize| move |error: ModelError| error.within(format!("tools[{place}]"));
    tools.iter().enumerate().map(|(index, value)| tool(value).map_err(place(index))).collect()
}

fn tool(value: &Value) -> Result<Tool, ModelError> {
    let mut fields = Fields::of(value)?;
    match fields.text("type")? {
        None | Some("custom") => Ok(Tool::Function(FunctionTool {
            name: fields.need_string("name")?,
            description: fields.string("description")?,
            parameters: fields.need("input_schema")?.clone(),
            strict: fields.flag("strict")?.unwrap_or(false),
            extras: fields.rest(HERE),
        })),
        Some(_) => Ok(Tool::Foreign(Foreign { from: HERE, value: value.clone() })),
    }
}

fn instructions(system: Option<&Value>) -> Result<Vec<Text>, ModelError> {
    let parts = content(system).map_err(|error| error.within("`system`"))?;
    let text = |part| match part {
        Part::Text(text) => Ok(text),
        _ => Err(ModelError::bad("`system` can only have text")),
    };
    parts.into_iter().map(text).collect()
}

fn conversation(list: &[Value]) -> Result<Vec<Message>, ModelError> {
    let mut messages = Vec::new();
    for (index, value) in list.iter().enumerate() {
        message(value, &mut messages)
            .map_err(|error| error.within(format!("messages[{index}]")))?;
    }
    Ok(messages)
}

fn message(value: &Value, messages: &mut Vec<Message>) -> Result<(), ModelError> {
    let mut fields = Fields::of(value)?;
    let role = match fields.need_text("role")? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        other => return Err(ModelError::bad(format!("there is no role `{other}`"))),
    };
    let parts = content(fields.get("content"))?;
    let extras = fields.rest(HERE);
    if role != Role::User {
        messages.push(Message { role, parts, extras });
        return Ok(());
    }
    // Results of tools come in the user's message; here they are a turn of their own.
    let start = messages.len();
    for part in parts {
        let role = if matches!(part, Part::ToolResult(_)) { Role::Tool } else { Role::User };
        match messages.get_mut(start..).and_then(<[Message]>::last_mut) {
            Some(last) if last.role == role => last.parts.push(part),
            _ => messages.push(Message { role, parts: vec![part], extras: extras.clone() }),
        }
    }
    if messages.len() == start {
        messages.push(Message { role, parts: Vec::new(), extras });
    }
    Ok(())
}

fn content(value: Option<&Value>) -> Result<Vec<Part>, ModelError> {
    fields::content(value, "content must be text or a list of blocks", part)
}

fn part(value: &Value) -> Result<Part, ModelError> {
    let foreign = || Ok(Part::Foreign(Foreign { from: HERE, value: value.clone() }));
    let mut fields = Fields::of(value)?;
    match fields.need_text("type")? {
        "text" => {
            let text = fields.need_string("text")?;
            Ok(Part::Text(Text { text, extras: fields.rest(HERE) }))
        }
        "image" => match image_source(fields.need_object("source")?)? {
            Some(source) => Ok(Part::Image(Image { source, extras: fields.rest(HERE) })),
            None => foreign(),
        },
        "document" => match document_source(fields.need_object("source")?)? {
            Some(source) => {
                let name = fields.string("title")?;
                Ok(Part::Document(Document { source, name, extras: fields.rest(HERE) }))
            }
            None => foreign(),
        },
        "tool_use" => {
            let (id, name) = (fields.need_string("id")?, fields.need_string("name")?);
            let input = Input::Json(fields.need("input")?.to_string());
            let extras = fields.rest(HERE);
            Ok(Part::ToolCall(ToolCall { id, name, namespace: None, input, extras }))
        }
        "tool_result" => {
            let id = fields.need_string("tool_use_id")?;
            let parts = content(fields.get("content"))?;
            let is_error = fields.flag("is_error")?.unwrap_or(false);
            let extras = fields.rest(HERE);
            Ok(Part::ToolResult(ToolResult { id, parts, is_error, custom: false, extras }))
        }
        "thinking" | "redacted_thinking" => thought(value).map(Part::Reasoning),
        _ => foreign(),
    }
}

/// A thought, in a message or in an answer.
pub(super) fn thought(value: &Value) -> Result<Reasoning, ModelError> {
    let mut fields = Fields::of(value)?;
    if fields.need_text("type")? == "redacted_thinking" {
        let seal = redacted(fields.need_text("data")?);
        return Ok(Reasoning { text: String::new(), seal: Some(seal) });
    }
    let text = fields.string("thinking")?.unwrap_or_default();
    let signature = fields.text("signature")?.filter(|signature| !signature.is_empty());
    Ok(Reasoning { text, seal: signature.map(|text| seals::read(text, HERE, None)) })
}

pub(super) fn redacted(data: &str) -> Seal {
    Seal { redacted: true, ..seals::read(data, HERE, None) }
}

fn image_source(mut fields: Fields<'_>) -> Result<Option<ImageSource>, ModelError> {
    Ok(Some(match fields.need_text("type")? {
        "base64" => ImageSource::Base64 {
            media_type: fields.need_string("media_type")?,
            data: fields.need_string("data")?,
        },
        "url" => ImageSource::Url(fields.need_string("url")?),
        "file" => ImageSource::File { from: HERE, id: fields.need_string("file_id")? },
        _ => return Ok(None),
    }))
}

fn document_source(mut fields: Fields<'_>) -> Result<Option<DocumentSource>, ModelError> {
    Ok(Some(match fields.need_text("type")? {
        "base64" => DocumentSource::Base64 {
            media_type: fields.need_string("media_type")?,
            data: fields.need_string("data")?,
        },
        "text" => DocumentSource::Text(fields.need_string("data")?),
        "url" => DocumentSource::Url(fields.need_string("url")?),
        "file" => DocumentSource::File { from: HERE, id: fields.need_string("file_id")? },
        _ => return Ok(None),
    }))
}
