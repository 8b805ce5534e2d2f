use serde_json::{Map, Value, json};

use crate::{
    dialect::{
        Dialect,
        chat::{file_source, image_source, no_parameters},
        fields::{self, Fields},
        seals,
    },
    talk::{
        CustomTool, Document, DocumentSource, Effort, Extras, Foreign, Format, FunctionTool, Image,
        ImageSource, Input, Message, ModelError, Namespace, Output, Part, Reasoning, Request, Role,
        Text, Thinking, Tool, ToolCall, ToolChoice, ToolResult,
    },
};

const HERE: Dialect = Dialect::Responses;

/// With this a provider is asked for seals.
pub(super) const SEALS: &str = "reasoning.encrypted_content";

/// What a client asks.
pub fn read_request(body: &Value) -> Result<Request, ModelError> {
    let mut fields = Fields::of(body).map_err(|error| error.within("the request"))?;
    stateless(&mut fields)?;
    let mut input = Conversation::default();
    if let Some(text) = fields.string("instructions")? {
        input.instructions.push(Text::plain(text));
    }
    let mut tools = tools(fields.list("tools")?)?;
    input.read(fields.need("input")?)?;
    tools.append(&mut input.tools);
    let (output, verbosity) = text_config(fields.object("text")?)?;
    let thinking = fields.object("reasoning")?.map(thinking).transpose()?;
    let include = fields.get("include").filter(|include| {
        // Seals are asked for whenever a model thinks.
        thinking.is_none() || **include != json!([SEALS])
    });
    let include = include.map(|include| ("include".to_owned(), include.clone()));
    let stream = fields.flag("stream")?.unwrap_or(false);
    Ok(Request {
        model: fields.need_string("model")?,
        instructions: input.instructions,
        messages: input.messages,
        tools,
        tool_choice: fields.get("tool_choice").map(tool_choice).transpose()?,
        parallel_tool_calls: fields.flag("parallel_tool_calls")?,
        output,
        max_output_tokens: fields.count("max_output_tokens")?,
        temperature: fields.number("temperature")?,
        top_p: fields.number("top_p")?,
        stop: Vec::new(),
        seed: None,
        thinking,
        verbosity,
        user: fields.string("user")?,
        stream,
        include_usage: stream,
        extras: Extras::new(HERE, include.into_iter().collect::<Map<_, _>>())
            .and(&fields.rest(HERE), HERE),
    })
}

fn stateless(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    for name in ["previous_response_id", "conversation"] {
        if fields.get(name).is_some() {
            return Err(ModelError::bad(format!(
                "`{name}` is not supported: nothing is stored here, send the whole conversation as `input`"
            )));
        }
    }
    if fields.flag("background")?.unwrap_or(false) {
        return Err(ModelError::bad("`background` is not supported: nothing is stored here"));
    }
    // Nothing is stored, whatever is asked.
    fields.get("store");
    Ok(())
}

fn thinking(mut fields: Fields<'_>) -> Result<Thinking, ModelError> {
    let effort = fields.text("effort")?.map(|word| {
        let unknown = || ModelError::bad(format!("`reasoning.effort` knows no `{word}`"));
        Effort::of(word).ok_or_else(unknown)
    });
    Ok(Thinking {
        effort: effort.transpose()?,
        mode: None,
        summary: fields.string("summary")?,
        extras: fields.rest(HERE),
    })
}

fn text_config(fields: Option<Fields<'_>>) -> Result<(Option<Output>, Option<String>), ModelError> {
    let Some(mut fields) = fields else { return Ok((None, None)) };
    let verbosity = fields.string("verbosity")?;
    let Some(mut format) = fields.object("format")? else { return Ok((None, verbosity)) };
    let output = match format.need_text("type")? {
        "text" => None,
        "json_object" => Some(Output::JsonObject),
        "json_schema" => Some(Output::JsonSchema {
            name: format.string("name")?,
            description: format.string("description")?,
            schema: format.need("schema")?.clone(),
            strict: format.flag("strict")?.unwrap_or(false),
        }),
        other => return Err(ModelError::bad(format!("`text.format` knows no type `{other}`"))),
    };
    Ok((output, verbosity))
}

fn tool_choice(choice: &Value) -> Result<ToolChoice, ModelError> {
    if let Some(word) = choice.as_str() {
        return match word {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => Err(ModelError::bad(format!("`tool_choice` knows no `{other}`"))),
        };
    }
    let mut fields = Fields::of(choice).map_err(|error| error.within("`tool_choice`"))?;
    match fields.need_text("type")? {
        "function" | "custom" => fields.need_string("name").map(ToolChoice::One),
        _ => Ok(ToolChoice::Foreign(Foreign { from: HERE, value: choice.clone() })),
    }
}

fn tools(tools: &[Value]) -> Result<Vec<Tool>, ModelError> {
    let place = |place: usize| move |error: ModelError| error.within(format!("tools[{place}]"));
    tools.iter().enumerate().map(|(index, value)| tool(value).map_err(place(index))).collect()
}

fn tool(value: &Value) -> Result<Tool, ModelError> {
    let mut fields = Fields::of(value)?;
    match fields.need_text("type")? {
        "function" => Ok(Tool::Function(FunctionTool {
            name: fields.need_string("name")?,
            description: fields.string("description")?,
            parameters: fields.get("parameters").cloned().unwrap_or_else(no_parameters),
            strict: fields.flag("strict")?.unwrap_or(false),
            extras: fields.rest(HERE),
        })),
        "custom" => Ok(Tool::Custom(CustomTool {
            name: fields.need_string("name")?,
            description: fields.string("description")?,
            format: fields.object("format")?.map(format).transpose()?,
            extras: fields.rest(HERE),
        })),
        "namespace" => Ok(Tool::Namespace(Namespace {
            name: fields.need_string("name")?,
            description: fields.string("description")?,
            tools: tools(fields.list("tools")?)?,
            extras: fields.rest(HERE),
        })),
        _ => Ok(Tool::Foreign(Foreign { from: HERE, value: value.clone() })),
    }
}

fn format(mut fields: Fields<'_>) -> Result<Format, ModelError> {
    match fields.need_text("type")? {
        "grammar" => Ok(Format::Grammar {
            syntax: fields.need_string("syntax")?,
            definition: fields.need_string("definition")?,
        }),
        _ => Ok(Format::Text),
    }
}

/// The items of the input, put together to turns.
#[derive(Debug, Default)]
struct Conversation {
    instructions: Vec<Text>,
    messages: Vec<Message>,
    tools: Vec<Tool>,
}

impl Conversation {
    fn read(&mut self, input: &Value) -> Result<(), ModelError> {
        match input {
            Value::String(text) => {
                self.messages.push(Message::new(Role::User, vec![Part::text(text)]));
                Ok(())
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    self.item(value).map_err(|error| error.within(format!("input[{index}]")))?;
                }
                Ok(())
            }
            _ => Err(ModelError::bad("`input` must be text or a list of items")),
        }
    }

    fn item(&mut self, value: &Value) -> Result<(), ModelError> {
        let mut fields = Fields::of(value)?;
        match fields.text("type")?.unwrap_or("message") {
            "message" => self.message(fields)?,
            "additional_tools" => self.tools.extend(tools(fields.list("tools")?)?),
            "item_reference" => {
                return Err(ModelError::bad(
                    "an item by its id is not supported: nothing is stored here, send the item",
                ));
            }
            "reasoning" => self.add(Role::Assistant, Part::Reasoning(thought(value)?)),
            "function_call" | "custom_tool_call" => {
                self.add(Role::Assistant, Part::ToolCall(tool_call(value)?));
            }
            "function_call_output" => {
                self.add(Role::Tool, Part::ToolResult(tool_result(fields, false)?));
            }
            "custom_tool_call_output" => {
                self.add(Role::Tool, Part::ToolResult(tool_result(fields, true)?));
            }
            other => {
                let role = if other.ends_with("_output") { Role::Tool } else { Role::Assistant };
                self.add(role, Part::Foreign(Foreign { from: HERE, value: value.clone() }));
            }
        }
        Ok(())
    }

    /// Adds to the turn of `role`, or begins one.
    fn add(&mut self, role: Role, part: Part) {
        match self.messages.last_mut() {
            Some(last) if last.role == role => last.parts.push(part),
            _ => self.messages.push(Message::new(role, vec![part])),
        }
    }

    fn message(&mut self, mut fields: Fields<'_>) -> Result<(), ModelError> {
        let role = match fields.need_text("role")? {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => return Err(ModelError::bad(format!("there is no role `{other}`"))),
        };
        let parts = content(fields.get("content"))?;
        let texts = parts.iter().map(|part| match part {
            Part::Text(text) => Some(text.clone()),
            _ => None,
        });
        match role {
            Role::Assistant => parts.into_iter().for_each(|part| self.add(role, part)),
            Role::System => match texts.collect::<Option<Vec<_>>>() {
                None => return Err(ModelError::bad("a developer message can only have text")),
                Some(texts) if self.messages.is_empty() => self.instructions.extend(texts),
                Some(_) => self.messages.push(Message { role, parts, extras: fields.rest(HERE) }),
            },
            Role::User | Role::Tool => {
                self.messages.push(Message { role, parts, extras: fields.rest(HERE) });
            }
        }
        Ok(())
    }
}

/// A call of a tool, in the input or in an answer.
pub(super) fn tool_call(value: &Value) -> Result<ToolCall, ModelError> {
    let mut fields = Fields::of(value)?;
    let input = match fields.need_text("type")? {
        "custom_tool_call" => Input::Free(fields.need_string("input")?),
        _ => Input::Json(fields.need_string("arguments")?),
    };
    Ok(ToolCall {
        id: fields.need_string("call_id")?,
        name: fields.need_string("name")?,
        namespace: fields.string("namespace")?,
        input,
        extras: fields.rest(HERE),
    })
}

fn tool_result(mut fields: Fields<'_>, custom: bool) -> Result<ToolResult, ModelError> {
    Ok(ToolResult {
        id: fields.need_string("call_id")?,
        parts: content(fields.get("output"))?,
        is_error: false,
        custom,
        extras: fields.rest(HERE),
    })
}

/// A thought, in the input or in an answer.
pub(super) fn thought(value: &Value) -> Result<Reasoning, ModelError> {
    let mut fields = Fields::of(value)?;
    let id = fields.text("id")?;
    let summary = joined(fields.list("summary")?);
    let content = joined(fields.list("content")?);
    let text = if summary.is_empty() { content } else { summary };
    let sealed = fields.text("encrypted_content")?.filter(|sealed| !sealed.is_empty());
    Ok(Reasoning { text, seal: sealed.map(|text| seals::read(text, HERE, id)) })
}

fn joined(parts: &[Value]) -> String {
    let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
    texts.collect::<Vec<_>>().join("\n\n")
}

fn content(value: Option<&Value>) -> Result<Vec<Part>, ModelError> {
    fields::content(value, "content must be text or a list of parts", part)
}

fn part(value: &Value) -> Result<Part, ModelError> {
    let mut fields = Fields::of(value)?;
    match fields.need_text("type")? {
        "input_text" | "output_text" | "text" => {
            let text = fields.need_string("text")?;
            Ok(Part::Text(Text { text, extras: fields.rest(HERE) }))
        }
        "refusal" => fields.need_string("refusal").map(Part::Refusal),
        "input_image" => {
            let source = match (fields.text("image_url")?, fields.text("file_id")?) {
                (Some(url), _) => image_source(url),
                (None, Some(id)) => ImageSource::File { from: HERE, id: id.to_owned() },
                (None, None) => {
                    return Err(ModelError::bad("an image needs `image_url` or `file_id`"));
                }
            };
            Ok(Part::Image(Image { source, extras: fields.rest(HERE).without("detail", "auto") }))
        }
        "input_file" => {
            let data =
                (fields.text("file_data")?, fields.text("file_url")?, fields.text("file_id")?);
            let source = match data {
                (Some(data), ..) => file_source(data)?,
                (None, Some(url), _) => DocumentSource::Url(url.to_owned()),
                (None, None, Some(id)) => DocumentSource::File { from: HERE, id: id.to_owned() },
                (None, None, None) => {
                    return Err(ModelError::bad(
                        "a file needs `file_data`, `file_url` or `file_id`",
                    ));
                }
            };
            let name = fields.string("filename")?;
            Ok(Part::Document(Document { source, name, extras: fields.rest(HERE) }))
        }
        _ => Ok(Part::Foreign(Foreign { from: HERE, value: value.clone() })),
    }
}
