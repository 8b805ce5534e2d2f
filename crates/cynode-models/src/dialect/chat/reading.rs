use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    dialect::{
        Dialect,
        fields::{self, Fields},
        media::split_data_url,
    },
    talk::{
        CustomTool, Document, DocumentSource, Effort, Extras, Foreign, Format, FunctionTool, Image,
        ImageSource, Input, Message, ModelError, Output, Part, Reasoning, Request, Role, Text,
        Thinking, Tool, ToolCall, ToolChoice, ToolResult,
    },
};

const HERE: Dialect = Dialect::Chat;

/// What a client asks.
pub fn read_request(body: &Value) -> Result<Request, ModelError> {
    let mut fields = Fields::of(body).map_err(|error| error.within("the request"))?;
    one_answer(fields.count("n")?)?;
    let (instructions, messages) = conversation(fields.list("messages")?)?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    let include_usage = match fields.object("stream_options")? {
        Some(mut options) => options.flag("include_usage")?.unwrap_or(false),
        None => false,
    };
    // `max_tokens` is the older name.
    let (new, old) = (fields.count("max_completion_tokens")?, fields.count("max_tokens")?);
    Ok(Request {
        model: fields.need_string("model")?,
        instructions,
        messages,
        tools: tools(fields.list("tools")?)?,
        tool_choice: fields.get("tool_choice").map(tool_choice).transpose()?,
        parallel_tool_calls: fields.flag("parallel_tool_calls")?,
        output: fields.get("response_format").map(output).transpose()?.flatten(),
        max_output_tokens: new.or(old),
        temperature: fields.number("temperature")?,
        top_p: fields.number("top_p")?,
        stop: stop(fields.get("stop"))?,
        seed: seed(fields.get("seed"))?,
        thinking: thinking(fields.text("reasoning_effort")?)?,
        verbosity: fields.string("verbosity")?,
        user: fields.string("user")?,
        stream,
        include_usage: stream && include_usage,
        extras: fields.rest(HERE),
    })
}

fn one_answer(n: Option<u32>) -> Result<(), ModelError> {
    match n {
        None | Some(1) => Ok(()),
        Some(_) => Err(ModelError::bad("`n` must be 1: one request has one answer here")),
    }
}

fn seed(value: Option<&Value>) -> Result<Option<i64>, ModelError> {
    let whole = |value: &Value| {
        value.as_i64().ok_or_else(|| ModelError::bad("`seed` must be a whole number"))
    };
    value.map(whole).transpose()
}

fn stop(value: Option<&Value>) -> Result<Vec<String>, ModelError> {
    let bad = || ModelError::bad("`stop` must be text or a list of texts");
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(word)) => Ok(vec![word.clone()]),
        Some(Value::Array(words)) => {
            words.iter().map(|word| word.as_str().map(str::to_owned).ok_or_else(bad)).collect()
        }
        Some(_) => Err(bad()),
    }
}

fn thinking(effort: Option<&str>) -> Result<Option<Thinking>, ModelError> {
    let Some(word) = effort else { return Ok(None) };
    let effort = Effort::of(word)
        .ok_or_else(|| ModelError::bad(format!("`reasoning_effort` knows no `{word}`")))?;
    Ok(Some(Thinking { effort: Some(effort), ..Thinking::default() }))
}

fn output(format: &Value) -> Result<Option<Output>, ModelError> {
    let within = |error: ModelError| error.within("`response_format`");
    let mut fields = Fields::of(format).map_err(within)?;
    match fields.need_text("type").map_err(within)? {
        "text" => Ok(None),
        "json_object" => Ok(Some(Output::JsonObject)),
        "json_schema" => {
            let mut inner = fields.need_object("json_schema").map_err(within)?;
            Ok(Some(Output::JsonSchema {
                name: inner.string("name").map_err(within)?,
                description: inner.string("description").map_err(within)?,
                schema: inner
                    .get("schema")
                    .cloned()
                    .unwrap_or_else(|| Value::Object(<_>::default())),
                strict: inner.flag("strict").map_err(within)?.unwrap_or(false),
            }))
        }
        other => Err(ModelError::bad(format!("`response_format` knows no type `{other}`"))),
    }
}

fn tool_choice(choice: &Value) -> Result<ToolChoice, ModelError> {
    let within = |error: ModelError| error.within("`tool_choice`");
    if let Some(word) = choice.as_str() {
        return match word {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => Err(ModelError::bad(format!("`tool_choice` knows no `{other}`"))),
        };
    }
    let mut fields = Fields::of(choice).map_err(within)?;
    let kind = match fields.need_text("type").map_err(within)? {
        "function" => "function",
        "custom" => "custom",
        _ => return Ok(ToolChoice::Foreign(Foreign { from: HERE, value: choice.clone() })),
    };
    let mut inner = fields.need_object(kind).map_err(within)?;
    inner.need_string("name").map(ToolChoice::One).map_err(within)
}

fn tools(tools: &[Value]) -> Result<Vec<Tool>, ModelError> {
    let place = |place: usize| move |error: ModelError| error.within(format!("tools[{place}]"));
    tools.iter().enumerate().map(|(index, value)| tool(value).map_err(place(index))).collect()
}

fn tool(value: &Value) -> Result<Tool, ModelError> {
    let mut fields = Fields::of(value)?;
    match fields.need_text("type")? {
        "function" => {
            let mut inner = fields.need_object("function")?;
            Ok(Tool::Function(FunctionTool {
                name: inner.need_string("name")?,
                description: inner.string("description")?,
                parameters: inner.get("parameters").cloned().unwrap_or_else(no_parameters),
                strict: inner.flag("strict")?.unwrap_or(false),
                extras: inner.rest(HERE),
            }))
        }
        "custom" => {
            let mut inner = fields.need_object("custom")?;
            Ok(Tool::Custom(CustomTool {
                name: inner.need_string("name")?,
                description: inner.string("description")?,
                format: inner.object("format")?.map(format).transpose()?,
                extras: inner.rest(HERE),
            }))
        }
        _ => Ok(Tool::Foreign(Foreign { from: HERE, value: value.clone() })),
    }
}

/// The schema of a function that takes nothing.
pub(in crate::dialect) fn no_parameters() -> Value {
    serde_json::json!({ "type": "object", "properties": {} })
}

fn format(mut fields: Fields<'_>) -> Result<Format, ModelError> {
    match fields.need_text("type")? {
        "grammar" => {
            let mut grammar = fields.need_object("grammar")?;
            Ok(Format::Grammar {
                syntax: grammar.need_string("syntax")?,
                definition: grammar.need_string("definition")?,
            })
        }
        _ => Ok(Format::Text),
    }
}

/// What stands before the conversation, and the conversation.
fn conversation(list: &[Value]) -> Result<(Vec<Text>, Vec<Message>), ModelError> {
    let mut instructions = Vec::new();
    let mut messages: Vec<Message> = Vec::new();
    let mut free = BTreeSet::new();
    for (index, value) in list.iter().enumerate() {
        let within = |error: ModelError| error.within(format!("messages[{index}]"));
        let mut message = message(value).map_err(within)?;
        answer_in_kind(&mut message, &mut free);
        match (message.role, messages.last_mut()) {
            // A system message has nothing but text.
            (Role::System, None) => instructions.extend(message.parts.into_iter().filter_map(text)),
            // The results of one turn belong together.
            (Role::Tool, Some(last)) if last.role == Role::Tool => last.parts.extend(message.parts),
            _ => messages.push(message),
        }
    }
    Ok((instructions, messages))
}

/// Marks the results of tools for free text, which here look like all others. `free` has the ids of their calls so far.
fn answer_in_kind(message: &mut Message, free: &mut BTreeSet<String>) {
    for part in &mut message.parts {
        match part {
            Part::ToolCall(ToolCall { id, input: Input::Free(_), .. }) => {
                free.insert(id.clone());
            }
            Part::ToolCall(ToolCall { id, input: Input::Json(_), .. }) => {
                free.remove(id.as_str());
            }
            Part::ToolResult(result) => result.custom = free.contains(&result.id),
            _ => {}
        }
    }
}

fn text(part: Part) -> Option<Text> {
    match part {
        Part::Text(text) => Some(text),
        _ => None,
    }
}

fn message(value: &Value) -> Result<Message, ModelError> {
    let mut fields = Fields::of(value)?;
    let role = match fields.need_text("role")? {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => return tool_message(fields),
        other => return Err(ModelError::bad(format!("there is no role `{other}`"))),
    };
    let mut parts = Vec::new();
    if role == Role::Assistant {
        // The older servers call it the one, the newer the other.
        let (long, short) = (fields.text("reasoning_content")?, fields.text("reasoning")?);
        if let Some(text) = long.or(short).filter(|text| !text.is_empty()) {
            parts.push(Part::Reasoning(Reasoning { text: text.to_owned(), seal: None }));
        }
    }
    parts.extend(content(fields.get("content"))?);
    if role == Role::System && parts.iter().any(|part| !matches!(part, Part::Text(_))) {
        return Err(ModelError::bad("a system message can only have text"));
    }
    if let Some(refusal) = fields.string("refusal")? {
        parts.push(Part::Refusal(refusal));
    }
    for (index, call) in fields.list("tool_calls")?.iter().enumerate() {
        let within = |error: ModelError| error.within(format!("tool_calls[{index}]"));
        parts.push(Part::ToolCall(tool_call(call).map_err(within)?));
    }
    Ok(Message { role, parts, extras: fields.rest(HERE) })
}

fn tool_message(mut fields: Fields<'_>) -> Result<Message, ModelError> {
    let id = fields.need_string("tool_call_id")?;
    let parts = content(fields.get("content"))?;
    let extras = fields.rest(HERE);
    let result = ToolResult { id, parts, is_error: false, custom: false, extras };
    Ok(Message::new(Role::Tool, vec![Part::ToolResult(result)]))
}

/// A call of a tool, in a message or in an answer.
pub(super) fn tool_call(value: &Value) -> Result<ToolCall, ModelError> {
    let mut fields = Fields::of(value)?;
    let id = fields.need_string("id")?;
    let kind = fields.text("type")?.unwrap_or("function");
    let (name, input) = match kind {
        "custom" => {
            let mut custom = fields.need_object("custom")?;
            (custom.need_string("name")?, Input::Free(custom.need_string("input")?))
        }
        _ => {
            let mut function = fields.need_object("function")?;
            (function.need_string("name")?, Input::Json(arguments(function.get("arguments"))))
        }
    };
    Ok(ToolCall { id, name, namespace: None, input, extras: fields.rest(HERE) })
}

/// Arguments are text; a few servers give the object itself.
pub(super) fn arguments(value: Option<&Value>) -> String {
    match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn content(value: Option<&Value>) -> Result<Vec<Part>, ModelError> {
    fields::content(value, "`content` must be text or a list of parts", part)
}

fn part(value: &Value) -> Result<Part, ModelError> {
    let mut fields = Fields::of(value)?;
    match fields.need_text("type")? {
        "text" => {
            let text = fields.need_string("text")?;
            Ok(Part::Text(Text { text, extras: fields.rest(HERE) }))
        }
        "refusal" => fields.need_string("refusal").map(Part::Refusal),
        "image_url" => {
            let mut inner = fields.need_object("image_url")?;
            let source = image_source(inner.need_text("url")?);
            let extras = merged(inner.rest(HERE), &fields.rest(HERE));
            Ok(Part::Image(Image { source, extras: extras.without("detail", "auto") }))
        }
        "file" => {
            let mut inner = fields.need_object("file")?;
            let source = match (inner.text("file_data")?, inner.text("file_id")?) {
                (Some(data), _) => file_source(data)?,
                (None, Some(id)) => DocumentSource::File { from: HERE, id: id.to_owned() },
                (None, None) => {
                    return Err(ModelError::bad("a file needs `file_data` or `file_id`"));
                }
            };
            let name = inner.string("filename")?;
            let extras = merged(inner.rest(HERE), &fields.rest(HERE));
            Ok(Part::Document(Document { source, name, extras }))
        }
        _ => Ok(Part::Foreign(Foreign { from: HERE, value: value.clone() })),
    }
}

/// The extra fields of an object and of the object around it.
fn merged(inner: Extras, outer: &Extras) -> Extras {
    inner.and(outer, HERE)
}

/// A picture's address, which may hold the picture.
pub(in crate::dialect) fn image_source(url: &str) -> ImageSource {
    match split_data_url(url) {
        Some((media_type, data)) => {
            ImageSource::Base64 { media_type: media_type.to_owned(), data: data.to_owned() }
        }
        None => ImageSource::Url(url.to_owned()),
    }
}

/// A document's bytes.
pub(in crate::dialect) fn file_source(data: &str) -> Result<DocumentSource, ModelError> {
    match split_data_url(data) {
        Some((media_type, data)) => {
            Ok(DocumentSource::Base64 { media_type: media_type.to_owned(), data: data.to_owned() })
        }
        None => Err(ModelError::bad("`file_data` must be `data:TYPE;base64,BYTES`")),
    }
}
